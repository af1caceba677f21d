//! Places that keep blocks.

use super::*;
use crate::analyses::growth::{GrowingSite, Growth, Increase, Site};
use crate::analyses::step_leaks::{Kept, StepLeakPlace, StepLeaks, StepVerdict};

fn steps(verdict: StepVerdict, steps_ended: u32, step_range: [u32; 2], stacks: Stacks) -> StepLeaks {
    let place = StepLeakPlace {
        pool: PTA,
        verdict,
        blocks: 8,
        size_bytes: 8 * MIB,
        steps: 4,
        step_range,
        each_bytes: None,
        stacks,
    };
    StepLeaks {
        pid: PID,
        device: NPU0,
        places: vec![place],
        leaks: Vec::new(),
        unjudged: Vec::new(),
        kept: Kept::default(),
        steps_ended,
        steps_from: StepsFrom::Marks,
        confidence: Confidence::Certain,
    }
}

fn growth(sites: Vec<GrowingSite>, increases: Vec<Increase>) -> Growth {
    Growth {
        pid: PID,
        device: NPU0,
        from_ns: SECOND_NS,
        span_ns: 100 * SECOND_NS,
        judged: true,
        not_judged: None,
        undetectable_bytes_per_hour: None,
        increases,
        sites,
        sites_full: false,
        confidence: Confidence::Certain,
    }
}

fn site(stacks: Stacks) -> Site {
    Site { pool: PTA, stacks, size_bytes: None, module_id: None, caller: None }
}

fn growing(stacks: Stacks) -> GrowingSite {
    GrowingSite {
        site: Some(site(stacks)),
        pool: PTA,
        blocks: 40,
        size_bytes: 40 * MIB,
        low_blocks: [0, 8, 16, 24, 32, 40],
        blocks_per_second: 1.0,
        bytes_per_second: MIB as f64,
        allocations: 40,
        ages: [10; 4],
        owners: Vec::new(),
    }
}

fn increase(youngest: u64, size_bytes: u64) -> Increase {
    let site = site(python(&["cache.py(3): fill"]));
    Increase {
        site,
        blocks: 4,
        size_bytes,
        low_bytes: None,
        live_blocks: 4,
        ages: [youngest, 0, 0, 4],
        owners: Vec::new(),
    }
}

/// The verdict of the finding decides, not a rule of our own: blocks of two steps are no leak.
#[test]
fn a_place_that_each_step_leaves_blocks_at() {
    let stacks = python(&["train.py(9): Trainer.step"]);
    let found = card(Rule::StepLeak, &[steps(StepVerdict::Leak, 6, [2, 5], stacks).into()]).expect("a card");
    assert_eq!((found.level, found.size_bytes), (Level::Warning, 8 * MIB));
    let text = "8.00 MiB in 8 blocks at train.py:9 Trainer.step, from 4 of 6 steps (2 to 5): about 2.00 MiB a step, not freed while \
        the program worked.";
    assert_eq!(found.text, text);
    assert!(advice(&found)[0].contains(".item() or .detach().cpu()"), "{:?}", advice(&found));
    assert_eq!(rules(&[steps(StepVerdict::FewSteps, 4, [2, 3], stacks).into()]), []);
    assert_eq!(rules(&[steps(StepVerdict::Young, 40, [30, 39], stacks).into()]), []);
}

/// If no call stack names the place there is no advice, and the card shows how to get one.
#[test]
fn a_place_without_a_stack_has_no_advice() {
    let found = card(Rule::StepLeak, &[steps(StepVerdict::Leak, 6, [2, 5], Stacks::default()).into()]).expect("a card");
    assert_eq!(advice(&found), [""; 0]);
    assert_eq!(found.evidence, ["no call stack says where: add --call-stack=python"]);
}

/// 1 MiB a second is 3600 MiB an hour, which is 3.52 GiB; 36 GiB free are full in 10.24 hours.
#[test]
fn a_place_that_grows() {
    let stacks = python(&["serve.py(20): put"]);
    let grows: Finding = growth(vec![growing(stacks)], Vec::new()).into();
    let found = card(Rule::Growth, &[grows, device_use(28 * GIB)]).expect("a card");
    assert_eq!(found.text, "3.52 GiB more an hour at serve.py:20 put: 40.00 MiB in 40 blocks live after 100 s.");
    assert!(
        found.evidence.contains(&"36.00 GiB of the device was free: full in 10.2 h at this rate".to_owned()),
        "{:?}",
        found.evidence
    );
    let unjudged = Growth { judged: false, ..growth(vec![growing(stacks)], Vec::new()) };
    assert_eq!(rules(&[unjudged.into()]), []);
}

/// A place that leaks by steps and grows is explained once, by the step.
#[test]
fn steps_explain_more_than_growth() {
    let stacks = python(&["train.py(9): Trainer.step"]);
    let both = [steps(StepVerdict::Leak, 6, [2, 5], stacks).into(), growth(vec![growing(stacks)], Vec::new()).into()];
    assert_eq!(rules(&both), [Rule::StepLeak]);
    let other = growth(vec![growing(python(&["other.py(1): g"]))], Vec::new());
    assert_eq!(rules(&[both[0].clone(), other.into()]), [Rule::Growth, Rule::StepLeak]);
}

/// Blocks of step 6 of 8 at the latest, three quarters of the run, are a cache; of step 7 they may be more to come. In
/// five steps nothing can be known, and less than 1 MiB is not worth a card.
#[test]
fn a_cache_is_no_leak() {
    let stacks = python(&["cache.py(3): fill"]);
    let kept = |verdict, ended, range| rules(&[steps(verdict, ended, range, stacks).into()]);
    assert_eq!(kept(StepVerdict::FewSteps, 8, [6, 6]), [Rule::CacheNotLeak]);
    assert_eq!(kept(StepVerdict::FewSteps, 8, [6, 7]), []);
    assert_eq!(kept(StepVerdict::FewSteps, 5, [1, 1]), []);
    assert_eq!(kept(StepVerdict::Stopped, 8, [1, 4]), [Rule::CacheNotLeak]);
    assert_eq!(kept(StepVerdict::Replaced, 8, [1, 4]), []);
    let found = card(Rule::CacheNotLeak, &[steps(StepVerdict::FewSteps, 8, [6, 6], stacks).into()]).expect("a card");
    assert_eq!(found.text, "8.00 MiB in 8 blocks at cache.py:3 fill, kept since step 6 of 8; none is newer.");
    assert_eq!(found.level, Level::Info);
    let mut small = steps(StepVerdict::FewSteps, 8, [6, 6], stacks);
    small.places[0].size_bytes = MIB - 1;
    assert_eq!(rules(&[small.into()]), []);
}

/// The same of a server: what grew and has no block of the last quarter of the time.
#[test]
fn growth_that_stopped_is_a_cache() {
    let of = |increase| rules(&[growth(Vec::new(), vec![increase]).into()]);
    assert_eq!(of(increase(0, MIB)), [Rule::CacheNotLeak]);
    assert_eq!(of(increase(1, MIB)), []);
    assert_eq!(of(increase(0, MIB - 1)), []);
}
