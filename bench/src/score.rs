//! What is found of a program, against the truth.

use std::collections::BTreeSet;

use memscope::analyses::Finding;
use memscope::analyses::growth::Site;
use memscope::analyses::step_leaks::StepVerdict;
use memscope::backend::ascend::pools;
use memscope::model::{Pool, Stacks};

/// Where blocks come from: their call stacks, or their size where there are none.
pub(crate) type Place = (Stacks, Option<u64>);

/// Of the blocks with these stacks and this size.
pub(crate) fn place_of(stacks: Stacks, size_bytes: u64) -> Place {
    (stacks, stacks.is_empty().then_some(size_bytes))
}

/// What a program really does.
pub(crate) struct Truth<'a> {
    /// Name of the place that leaks.
    pub(crate) leaking: Option<&'a str>,
    /// Name of a place.
    pub(crate) name: &'a dyn Fn(Place) -> Option<String>,
    /// Places of pools that hold blocks when the work is done; `None` if it is not asked.
    pub(crate) held: Option<BTreeSet<Place>>,
}

/// What a trace says of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// The place that leaks is named.
    pub(crate) found: bool,
    /// It is not, and this is left open: not judged, or its blocks are listed as an undecided increase.
    pub(crate) open: bool,
    /// Other places that are accused.
    pub(crate) wrong: Vec<String>,
    /// Of these, those that hold no block.
    empty: u64,
    /// Of these, driver blocks: all of them are a pool's segments.
    segments: u64,
}

impl Verdict {
    /// By growth, and by steps.
    pub(crate) fn of(findings: &[Finding], truth: &Truth<'_>) -> Self {
        let (mut accused, mut judged, mut undecided) = (BTreeSet::new(), false, false);
        for finding in findings {
            match finding {
                Finding::Growth(growth) => {
                    judged |= growth.judged;
                    let place = |site: Site| (site.stacks, site.size_bytes);
                    let increases = growth.increases.iter().filter(|increase| increase.site.pool != pools::HAL);
                    let mut names = increases.filter_map(|increase| (truth.name)(place(increase.site)));
                    undecided |= names.any(|name| Some(name.as_str()) == truth.leaking);
                    accused.extend(growth.sites.iter().map(|site| (site.pool, site.site.map(place))));
                }
                Finding::StepLeaks(steps) => {
                    judged |= steps.steps_ended > 1;
                    for found in &steps.places {
                        let place = place_of(found.stacks, found.each_bytes.unwrap_or_default());
                        if found.verdict == StepVerdict::Leak {
                            accused.insert((found.pool, Some(place)));
                        } else if found.pool != pools::HAL {
                            undecided |= (truth.name)(place).as_deref() == truth.leaking;
                        }
                    }
                }
                _ => {}
            }
        }
        let mut verdict = Self::default();
        for (pool, place) in accused {
            verdict.accuse(pool, place, truth);
        }
        verdict.open = truth.leaking.is_some() && !verdict.found && (undecided || !judged);
        verdict
    }

    fn accuse(&mut self, pool: Pool, place: Option<Place>, truth: &Truth<'_>) {
        let name = place.and_then(truth.name).filter(|_| pool != pools::HAL);
        if name.is_some() && name.as_deref() == truth.leaking {
            self.found = true;
            return;
        }
        let holds = |place| truth.held.as_ref().is_none_or(|held| held.contains(&place));
        match place {
            Some(_) if pool == pools::HAL => self.segments += 1,
            Some(place) if !holds(place) => self.empty += 1,
            _ => {}
        }
        let what = if place.is_some() { "a block of" } else { "the whole pool" };
        self.wrong.push(name.unwrap_or_else(|| format!("{what} {}", pool.event_type())));
    }

    /// Whether all of it is true of a program that leaks or does not.
    pub(crate) const fn is_right(&self, leaks: bool) -> bool {
        self.found == leaks && self.wrong.is_empty()
    }
}

/// Sums of verdicts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Score {
    runs: u64,
    right: u64,
    wrong: u64,
    missed: u64,
    /// Of those missed, those that are left open.
    open: u64,
    empty: u64,
    segments: u64,
}

impl Score {
    pub(crate) const fn one(verdict: &Verdict, leaks: bool) -> Self {
        Self {
            runs: 1,
            right: verdict.found as u64,
            wrong: verdict.wrong.len() as u64,
            missed: (leaks && !verdict.found) as u64,
            open: verdict.open as u64,
            empty: verdict.empty,
            segments: verdict.segments,
        }
    }

    pub(crate) const fn add(&mut self, other: Self) {
        self.runs += other.runs;
        self.right += other.right;
        self.wrong += other.wrong;
        self.missed += other.missed;
        self.open += other.open;
        self.empty += other.empty;
        self.segments += other.segments;
    }

    /// Of what is accused, the share that leaks.
    fn precision(self) -> f64 {
        share(self.right, self.wrong)
    }

    /// Of what leaks, the share that is found.
    fn recall(self) -> f64 {
        share(self.right, self.missed)
    }

    /// Precision and recall are at least this, and no place is accused that holds nothing of its own.
    pub(crate) fn meets(self, goal: f64) -> bool {
        self.precision() >= goal && self.recall() >= goal && self.empty + self.segments == 0
    }
}

/// All is right where there is nothing.
fn share(right: u64, not: u64) -> f64 {
    if right + not == 0 { 1.0 } else { right as f64 / (right + not) as f64 }
}

/// Scores by name, in the order in which the names came.
#[derive(Default)]
pub(crate) struct Table(Vec<(String, Score)>);

impl Table {
    pub(crate) fn add(&mut self, name: &str, score: Score) {
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some((_, sum)) => sum.add(score),
            None => self.0.push((name.to_owned(), score)),
        }
    }

    pub(crate) fn all(&self) -> Score {
        self.0.iter().fold(Score::default(), |mut all, (_, score)| {
            all.add(*score);
            all
        })
    }

    pub(crate) fn print(&self, title: &str) {
        println!(
            "\n{title:<40} {:>5} {:>6} {:>6} {:>7} {:>5} {:>6} {:>9} {:>10} {:>7}",
            "Runs", "Right", "Wrong", "Missed", "Open", "Empty", "Segments", "Precision", "Recall"
        );
        for (name, score) in self.0.iter().map(|(name, score)| (name.as_str(), *score)).chain([("all", self.all())]) {
            let Score { runs, right, wrong, missed, open, empty, segments } = score;
            println!(
                "{name:<40} {runs:>5} {right:>6} {wrong:>6} {missed:>7} {open:>5} {empty:>6} {segments:>9} {:>10.3} {:>7.3}",
                score.precision(),
                score.recall()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use memscope::analyses::growth::{GrowingSite, Growth, Increase};
    use memscope::model::{Confidence, Device, StackEnd};

    use super::*;

    fn site(pool: Pool, name: &str) -> Site {
        let python = (!name.is_empty()).then(|| memscope::model::Stack::keep([name], StackEnd::Root));
        let (stacks, size_bytes) = place_of(Stacks { python, ..Stacks::default() }, 512);
        Site { pool, stacks, size_bytes, module_id: None, caller: None }
    }

    /// Growth at these sites, an undecided increase at those.
    fn growth(sites: &[Option<Site>], increases: &[Site], judged: bool) -> Vec<Finding> {
        let growing = |site: &Option<Site>| GrowingSite {
            site: *site,
            pool: site.map_or(pools::PTA, |site| site.pool),
            blocks: 100,
            size_bytes: 51_200,
            low_blocks: [0; 6],
            blocks_per_second: 1.0,
            bytes_per_second: 512.0,
            allocations: 100,
            ages: [25; 4],
            owners: Vec::new(),
        };
        let increase = |site: &Site| Increase {
            site: *site,
            blocks: 9,
            size_bytes: 4608,
            low_bytes: None,
            live_blocks: 9,
            ages: [9, 0, 0, 0],
            owners: Vec::new(),
        };
        vec![Finding::Growth(Growth {
            pid: 1,
            device: Device::Npu(0),
            from_ns: 0,
            span_ns: 1,
            judged,
            not_judged: None,
            undetectable_bytes_per_hour: None,
            increases: increases.iter().map(increase).collect(),
            sites: sites.iter().map(growing).collect(),
            sites_full: false,
            confidence: Confidence::Certain,
        })]
    }

    /// The truth: `leak` leaks, `held` holds blocks as well, `gone` holds none; a segment is a block of the driver.
    #[test]
    fn verdicts_by_hand() {
        let [leak, held, gone] = ["leak", "held", "gone"].map(|name| site(pools::PTA, name));
        let segment = site(pools::HAL, "");
        let name = |place: Place| {
            [leak, held, gone]
                .into_iter()
                .zip(["leak", "held", "gone"])
                .find_map(|(site, name)| ((site.stacks, site.size_bytes) == place).then(|| name.to_owned()))
        };
        let places = [leak, held].map(|site| (site.stacks, site.size_bytes));
        let truth = Truth { leaking: Some("leak"), name: &name, held: Some(BTreeSet::from(places)) };
        let verdict = |sites: &[Option<Site>], increases: &[Site], judged| {
            let Verdict { found, open, wrong, empty, segments } =
                Verdict::of(&growth(sites, increases, judged), &truth);
            (found, open, wrong.len(), empty, segments)
        };
        assert_eq!(verdict(&[Some(leak)], &[], true), (true, false, 0, 0, 0));
        assert_eq!(verdict(&[], &[held], true), (false, false, 0, 0, 0), "another place is undecided");
        assert_eq!(verdict(&[], &[held, leak], true), (false, true, 0, 0, 0));
        assert_eq!(verdict(&[], &[], false), (false, true, 0, 0, 0), "not judged");
        assert_eq!(verdict(&[None], &[], true), (false, false, 1, 0, 0), "a whole pool is not the place");
        let all = [Some(leak), Some(held), Some(gone), Some(segment)];
        assert_eq!(verdict(&all, &[], true), (true, false, 3, 1, 1));
    }

    /// 8 of 10 accused places leak, 8 of 16 leaks are found.
    #[test]
    fn shares_by_hand() {
        let verdict = |found, wrong: &[&str]| Verdict {
            found,
            wrong: wrong.iter().map(|wrong| (*wrong).to_owned()).collect(),
            ..Verdict::default()
        };
        let mut table = Table::default();
        (0..8).for_each(|_| table.add("found", Score::one(&verdict(true, &[]), true)));
        (0..8).for_each(|_| table.add("missed", Score::one(&verdict(false, &[]), true)));
        table.add("sound", Score::one(&verdict(false, &["a", "b"]), false));
        let all = table.all();
        assert_eq!((all.runs, all.right, all.wrong, all.missed), (17, 8, 2, 8));
        assert!((all.precision() - 0.8).abs() < 1e-9 && (all.recall() - 0.5).abs() < 1e-9);
        assert!(all.meets(0.5) && !all.meets(0.51));
        table.add("empty", Score { empty: 1, ..Score::default() });
        assert!(!table.all().meets(0.5), "a place that holds nothing is accused");
    }
}
