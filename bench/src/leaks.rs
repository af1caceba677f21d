//! Of how many leaks of servers is told, and of how much that is none? At default settings.

use memscope::analyses::GrowthAnalysis;
use memscope::model::{Finding, GrowingSite};

use crate::program::Program;
use crate::servers::{Kind, Places, serve};

/// Servers of each kind.
const SERVERS: u64 = 40;
/// Least precision and recall.
const GOAL: f64 = 0.95;

/// Findings against the truth.
#[derive(Clone, Copy, Debug, Default)]
struct Score {
    right: u64,
    wrong: u64,
    missed: u64,
}

impl Score {
    const fn add(&mut self, other: Self) {
        self.right += other.right;
        self.wrong += other.wrong;
        self.missed += other.missed;
    }

    fn precision(self) -> f64 {
        share(self.right, self.wrong)
    }

    fn recall(self) -> f64 {
        share(self.right, self.missed)
    }
}

/// All is right where there is nothing.
fn share(right: u64, not: u64) -> f64 {
    if right + not == 0 { 1.0 } else { right as f64 / (right + not) as f64 }
}

/// Prints a line for each kind of server and their sum; gives whether the goals are met.
pub(crate) fn run() -> bool {
    println!(
        "{:<32} {:>7} {:>7} {:>7} {:>7} {:>10} {:>7}",
        "", "Servers", "Right", "Wrong", "Missed", "Precision", "Recall"
    );
    let (mut all, mut met) = (Score::default(), true);
    for kind in Kind::ALL {
        let mut score = Score::default();
        for seed in 0..SERVERS {
            score.add(one(kind, seed));
        }
        line(kind.name(), SERVERS, score);
        all.add(score);
        met &= score.precision() >= GOAL && score.recall() >= GOAL;
        // The cache-only ones: no false alarm at all.
        met &= kind != Kind::Caches || score.wrong == 0;
    }
    line("all", SERVERS * Kind::ALL.len() as u64, all);
    println!("goals (each at least {GOAL}, no false alarm for caches): {}", if met { "met" } else { "MISSED" });
    met
}

fn line(name: &str, servers: u64, score: Score) {
    let Score { right, wrong, missed } = score;
    let (precision, recall) = (score.precision(), score.recall());
    println!("{name:<32} {servers:>7} {right:>7} {wrong:>7} {missed:>7} {precision:>10.3} {recall:>7.3}");
}

fn one(kind: Kind, seed: u64) -> Score {
    let mut program = Program::new(vec![Box::new(GrowthAnalysis::default())]);
    let (places, leaking) = serve(kind, seed, &mut program);
    let findings = program.finish();
    let sites =
        findings.iter().flat_map(|found| if let Finding::Growth(growth) = found { &growth.sites[..] } else { &[] });
    let found: Vec<String> = sites.map(|site| name(site, &places)).collect();
    let is_leak = |place: &&String| leaking.as_ref() == Some(place);
    let right = found.iter().filter(is_leak).count() as u64;
    for wrong in found.iter().filter(|place| !is_leak(place)) {
        println!("  {}, seed {seed}: false alarm for {wrong}", kind.name());
    }
    Score { right, wrong: found.len() as u64 - right, missed: u64::from(leaking.is_some()).saturating_sub(right) }
}

/// Where it grows.
fn name(site: &GrowingSite, places: &Places) -> String {
    let pool = site.pool.event_type();
    let Some(of) = site.site else { return format!("the whole pool {pool}") };
    places.name(of.stacks, of.size_bytes).map_or_else(|| format!("a block of {pool}"), str::to_owned)
}
