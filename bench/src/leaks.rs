//! Which leaks of servers and training programs are found, and what is accused that is none? At default settings.

use crate::attached::Attached;
use crate::attaches;
use crate::extent::{Extent, measured};
use crate::program::{Ending, Program};
use crate::random::Random;
use crate::score::{Place, Score, Table, Truth, Verdict};
use crate::seeded_training::{self, Lesson};
use crate::servers::{Case, serve};

/// Least precision and recall.
const GOAL: f64 = 0.98;

/// Prints a table of each set; gives whether the goals are met.
pub(crate) fn run(extent: Extent) -> bool {
    let training = training(extent);
    let servers = servers(extent);
    let attaches = attaches::run(extent);
    println!("\ngoals: precision and recall at least {GOAL}, no place accused that holds nothing of its own, no flips");
    let parts = [("training", training), ("servers", servers), ("attaches", attaches)];
    for (name, met) in parts {
        println!("{name}: {}", if met { "met" } else { "MISSED" });
    }
    parts.iter().all(|(_, met)| *met)
}

/// Servers that are traced from their start to their end.
fn servers(extent: Extent) -> bool {
    let (mut cases, mut endings) = (Table::default(), Table::default());
    for case in Case::all() {
        for seed in 0..extent.servers {
            // Of each ending one server with stacks and one without.
            let ending = Ending::ALL[(seed / 2) as usize % Ending::ALL.len()];
            let verdict = server(case, seed, ending);
            if extent.details && !verdict.is_right(case.leaks) {
                println!("  {}, seed {seed}, {}: {}", case.name(), ending.name(), said(&verdict));
            }
            let score = Score::one(&verdict, case.leaks);
            cases.add(&case.name(), score);
            endings.add(ending.name(), score);
        }
    }
    cases.print("Servers, from their start");
    endings.print("The same, by their end");
    cases.all().meets(GOAL)
}

fn server(case: Case, seed: u64, ending: Ending) -> Verdict {
    let mut program = Program::new(measured());
    let mut served = serve(case, seed, &mut program, |_, _| {});
    let held = Some(program.held());
    let (findings, _) = program.end_by(ending, &mut served.random);
    let name = |place| served.places.name(place).map(str::to_owned);
    Verdict::of(&findings, &Truth { leaking: served.leaking.as_deref(), name: &name, held })
}

/// Training programs, by how their steps show, how they are traced, how they end.
fn training(extent: Extent) -> bool {
    let mut tables: [Table; 3] = Default::default();
    for seed in 0..extent.lessons {
        let lesson = Lesson::of(seed);
        let (verdict, leaks) = trained(lesson, seed);
        if extent.details && !verdict.is_right(leaks) {
            println!("  seed {seed}, {}: {}", lesson.name(), said(&verdict));
        }
        let score = Score::one(&verdict, leaks);
        let traced = if lesson.attached { "attached" } else { "run" };
        let names = [lesson.steps.name(), traced, lesson.ending.name()];
        tables.iter_mut().zip(names).for_each(|(table, name)| table.add(name, score));
    }
    let titles = ["Training programs", "The same, by how they are traced", "The same, by their end"];
    tables.iter().zip(titles).for_each(|(table, title)| table.print(title));
    tables[0].all().meets(GOAL)
}

/// What a trace says of it, and whether it leaks.
fn trained(lesson: Lesson, seed: u64) -> (Verdict, bool) {
    let whole = if lesson.attached { Vec::new() } else { measured() };
    let mut program = Program::new(whole);
    let mut trained = seeded_training::train(lesson, seed, &mut program, |program, run_ns| {
        if lesson.attached {
            let from_ns = Random::new(seed + (2 << 32)).between(run_ns / 10, run_ns * 4 / 10);
            program.attach(Attached::new(measured(), from_ns, run_ns * 10));
        }
    });
    let held = Some(program.held());
    let (findings, attached) = program.end_by(lesson.ending, &mut trained.random);
    let findings = if lesson.attached { attached.concat() } else { findings };
    let name = |(stacks, _): Place| seeded_training::place(stacks);
    let verdict = Verdict::of(&findings, &Truth { leaking: trained.leaking, name: &name, held });
    (verdict, trained.leaking.is_some())
}

/// A verdict that is not right.
fn said(verdict: &Verdict) -> String {
    let leak = match (verdict.found, verdict.open) {
        (true, _) => "found",
        (false, true) => "open",
        (false, false) => "not found",
    };
    format!("leak {leak}, accused besides {:?}", verdict.wrong)
}
