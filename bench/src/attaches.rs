//! Does the same server get the same verdict whenever it is attached to?

use crate::attached::Attached;
use crate::extent::{Extent, measured};
use crate::program::{Ending, Program};
use crate::random::Random;
use crate::score::{Truth, Verdict};
use crate::servers::{Case, serve};

/// Attaches to each server.
const ATTACHES: u64 = 50;

/// Verdicts of the attaches to one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    found: u64,
    open: u64,
    /// Neither found nor open; of a server without a leak, this is what is right.
    not_found: u64,
    /// Attaches that accuse a place that does not leak.
    wrong: u64,
}

impl Seen {
    fn add(&mut self, verdict: &Verdict) {
        match (verdict.found, verdict.open) {
            (true, _) => self.found += 1,
            (false, true) => self.open += 1,
            (false, false) => self.not_found += 1,
        }
        self.wrong += u64::from(!verdict.wrong.is_empty());
    }

    /// Attaches that say the contrary of the others: of the leak, and of the places that do not leak.
    const fn flips(self) -> u64 {
        let (accused, not) = (self.wrong, self.found + self.open + self.not_found - self.wrong);
        let of_leak = if self.found < self.not_found { self.found } else { self.not_found };
        of_leak + if accused < not { accused } else { not }
    }
}

/// Ends of the programs that are attached to until they end: of seeds 0 and 1.
const ENDINGS: [Ending; 2] = [Ending::InOrder, Ending::Signal];

/// Prints a line for each server, first of those that go on behind the traces; gives whether no verdict flips and none is wrong.
pub(crate) fn run(extent: Extent) -> bool {
    println!(
        "\n{:<40} {:>5} {:<17} {:>7} {:>6} {:>5} {:>10} {:>6} {:>6}",
        "Servers, attached to while they run", "Seed", "End", "Traces", "Found", "Open", "Not found", "Wrong", "Flips"
    );
    let mut met = true;
    for case in Case::attached() {
        let running = (0..extent.attached).map(|seed| (seed, Ending::Running));
        for (seed, ending) in running.chain((0..extent.attached).zip(ENDINGS)) {
            let verdicts = one(case, seed, ending, extent.details);
            let Seen { found, open, not_found, wrong } = verdicts;
            let (name, end, flips) = (case.name(), ending.name(), verdicts.flips());
            println!(
                "{name:<40} {seed:>5} {end:<17} {ATTACHES:>7} {found:>6} {open:>5} {not_found:>10} {wrong:>6} {flips:>6}"
            );
            met &= wrong == 0 && flips == 0 && !(case.leaks && found == 0);
        }
    }
    met
}

fn one(case: Case, seed: u64, ending: Ending, details: bool) -> Seen {
    let mut random = Random::new(seed + (3 << 32));
    let mut program = Program::new(Vec::new());
    let mut begins = Vec::new();
    let mut served = serve(case, seed, &mut program, |program, run_ns| {
        let (first_ns, length_ns) = case.window_ns(run_ns);
        for _ in 0..ATTACHES {
            let from_ns = random.between(first_ns, run_ns - length_ns);
            let until_ns = if ending == Ending::Running { from_ns + length_ns } else { 10 * run_ns };
            begins.push(from_ns);
            program.attach(Attached::new(measured(), from_ns, until_ns));
        }
    });
    let (_, attached) = program.end_by(ending, &mut served.random);
    let name = |place| served.places.name(place).map(str::to_owned);
    let truth = Truth { leaking: served.leaking.as_deref(), name: &name, held: None };
    let mut verdicts = Seen::default();
    for (findings, from_ns) in attached.iter().zip(begins) {
        let verdict = Verdict::of(findings, &truth);
        if details && !verdict.wrong.is_empty() {
            println!("  from {:.1} s on: accused {:?}", from_ns as f64 / 1e9, verdict.wrong);
        }
        verdicts.add(&verdict);
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: the fewer of found and not found; the fewer of those that accuse another place and those that do not.
    #[test]
    fn flips_are_the_fewer() {
        let seen = |found, open, not_found, wrong| Seen { found, open, not_found, wrong }.flips();
        assert_eq!(seen(50, 0, 0, 0), 0);
        assert_eq!(seen(47, 0, 3, 0), 3);
        assert_eq!(seen(2, 1, 47, 0), 2);
        assert_eq!(seen(47, 3, 0, 0), 0, "open is not the contrary");
        assert_eq!(seen(0, 0, 50, 50), 0);
        assert_eq!(seen(0, 0, 50, 4), 4);
    }
}
