//! A block has one owner, whichever analysis is asked: decompose, peaks, differences and requests that failed agree.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use proptest::prelude::*;

use super::decompose::tests::{ENGINE, STEP, actions, frames, perform, training};
use super::decompose::{DecomposeAnalysis, Owners as FinalOwners, RuleSet};
use super::diff::{At, Recorder};
use super::script::{Script, observe, run};
use super::select::When;
use super::{Finding, OomAnalysis, PeaksAnalysis, judged_leaks_by};
use crate::analyses::decompose::Decomposition;
use crate::backend::ascend::pools;
use crate::model::{AllocFailed, Device, Event, EventKind, FreeCause, LiveGroups, Name, OutOfMemory, Pool, RunEnd};

const PLACE: (Device, Pool) = (Device::Npu(0), pools::PTA);

static RULES: LazyLock<Arc<RuleSet>> = LazyLock::new(|| Arc::new(RuleSet::builtin()));

/// Blocks and bytes of each owner.
type Owners = BTreeMap<Option<Name>, (u64, u64)>;

fn of_groups(groups: &LiveGroups) -> Owners {
    groups.owners.iter().map(|sum| (sum.owner, (sum.live.blocks, sum.live.size_bytes))).collect()
}

fn of_parts(found: &Decomposition, of: impl Fn(&crate::analyses::decompose::OwnerPart) -> (u64, u64)) -> Owners {
    let mut owners = Owners::new();
    for part in &found.parts {
        let ((blocks, bytes), sum) = (of(part), owners.entry(part.owner).or_default());
        (sum.0, sum.1) = (sum.0 + blocks, sum.1 + bytes);
    }
    owners.retain(|_, sum| sum.0 > 0);
    owners
}

fn decomposed(events: &[Event]) -> (Decomposition, FinalOwners) {
    let (analysis, owners) = DecomposeAnalysis::new(Arc::clone(&RULES)).with_owners();
    let mut found = run(analysis, events, &RunEnd::default());
    let Some(Finding::Decompose(found)) = found.pop() else { panic!("{found:?}") };
    (found, owners.recv().expect("owners"))
}

fn at_peak(events: &[Event]) -> Owners {
    let mut found = run(PeaksAnalysis::new(Arc::clone(&RULES)), events, &RunEnd::default());
    let Some(Finding::Peak(found)) = found.pop() else { panic!("{found:?}") };
    of_groups(&found.groups)
}

fn snapshot(events: &[Event], at: At) -> Owners {
    let (recorder, snapshot) = Recorder::new(at, Arc::clone(&RULES));
    observe(recorder, events, &RunEnd::default());
    let found = snapshot.recv().expect("a snapshot");
    found.pools.get(&PLACE).map(|(_, groups)| of_groups(groups)).unwrap_or_default()
}

/// A request fails behind event `after`.
fn at_failure(events: &[Event], after: usize) -> Owners {
    let caller = Some(Name::fixed(&"aclrtMalloc"));
    let (pool, status, flags, out_of_memory) = (pools::HAL, 207_001, 0, true);
    let failed = AllocFailed { pool, size_bytes: 1, status, flags, caller, out_of_memory, request: 1, attempt: 1 };
    let mut script = events.to_vec();
    let at = Event { device: PLACE.0, ..events[after].clone() };
    // It is certain at the end that no further attempt follows.
    script.push(Event { kind: EventKind::OutOfMemory(OutOfMemory::Trigger(failed)), ..at.clone() });
    script.insert(after + 1, Event { kind: EventKind::AllocFailed(failed), ..at });
    let mut found = run(OomAnalysis::new(Arc::clone(&RULES)), &script, &RunEnd::default());
    let Some(Finding::Oom(found)) = found.pop() else { panic!("{found:?}") };
    let pool = found.pools.iter().find(|at| at.pool == PLACE.1);
    pool.map(|at| of_groups(&at.groups)).unwrap_or_default()
}

/// The list of all blocks: those live after event `after`, under their final owners.
fn listed(events: &[Event], after: usize, names: &FinalOwners) -> Owners {
    let mut live = BTreeMap::new();
    for event in &events[..=after] {
        match &event.kind {
            EventKind::Alloc(alloc) => drop(live.insert(alloc.block.allocation_id, alloc.block.size_bytes)),
            EventKind::Free(free) => drop(live.remove(&free.block.allocation_id)),
            _ => {}
        }
    }
    let mut sums = Owners::new();
    for (number, size_bytes) in live {
        let sum = sums.entry(names.get(&(1, number)).copied()).or_default();
        (sum.0, sum.1) = (sum.0 + 1, sum.1 + size_bytes);
    }
    sums
}

/// All answers at the peak, at the end, and behind these events.
fn check(script: &Script, moments: impl IntoIterator<Item = usize>) {
    let events = script.events();
    let (found, owners) = decomposed(events);
    let peak = of_parts(&found, |part| (part.peak_blocks, part.peak_bytes));
    assert_eq!(peak, at_peak(events));
    assert_eq!(peak, snapshot(events, At::Peak));
    assert_eq!(of_parts(&found, |part| (part.end_blocks, part.end_bytes)), snapshot(events, At::End));
    for after in moments {
        let event = &events[after];
        let listed = listed(events, after, &owners);
        assert_eq!(listed, snapshot(events, At::When(When::At(event.time_ns))), "behind event {after}");
        assert_eq!(listed, at_failure(events, after), "behind event {after}");
    }
}

/// Two steps of a training program: a gradient that a backward pass makes is one at every moment, for everybody.
#[test]
fn a_gradient_is_one_in_every_answer() {
    let script = training();
    check(&script, 0..script.events().len());
    let names = at_peak(script.events());
    let bytes = |owner: &str| names.iter().find(|(name, _)| name.is_some_and(|it| it.as_str() == owner));
    assert_eq!(bytes("PTA@gradient").map(|(_, sum)| *sum), Some((1, 50 << 20)), "{names:?}");
    assert_eq!(bytes("PTA@optimizer_state").map(|(_, sum)| *sum), Some((2, 207 << 20)), "{names:?}");
}

/// Backward passes leave a block behind every tenth of a second. Their rows say `backward`, and the growing blocks are
/// gradients: an optimizer's step finds all of them, as decompose has it. Ten seconds and more are judged.
#[test]
fn what_grows_has_its_final_owner() {
    let mut script = Script::new(1, PLACE.0);
    for number in 0..120 {
        script.thread(77).stacks(&[], &ENGINE).alloc(pools::PTA, 0x10_0000 + number * 0x1000, 512);
        script.thread(1).stacks(&frames(&STEP), &[]).alloc(pools::PTA, 0x7000, 64).free(pools::PTA, 0x7000);
    }
    for number in 0..120 {
        script.end(FreeCause::TraceEnd, pools::PTA, 0x10_0000 + number * 0x1000);
    }
    let mut events = script.events().to_vec();
    for event in &mut events {
        event.time_ns *= 100_000_000 / 3;
        if let EventKind::Free(free) = &mut event.kind {
            free.block.alloc_time_ns *= 100_000_000 / 3;
        }
        // The trace ends at a moment.
        event.time_ns = event.time_ns.min(12_000_000_000);
    }
    let (found, _) = decomposed(&events);
    let last = RunEnd { time_ns: 12_000_000_000, ..RunEnd::default() };
    let growth = run(judged_leaks_by(&RULES), &events, &last).into_iter().find_map(|finding| match finding {
        Finding::Growth(growth) => Some(growth),
        _ => None,
    });
    let growth = growth.expect("judged");
    let [site] = &growth.sites[..] else { panic!("{growth:#?}") };
    let owners: Owners = site.owners.iter().map(|sum| (sum.owner, (sum.live.blocks, sum.live.size_bytes))).collect();
    assert_eq!(owners, Owners::from([(Some(Name::keep("PTA@gradient")), (120, 120 * 512))]));
    assert_eq!(owners, of_parts(&found, |part| (part.end_blocks, part.end_bytes)));
}

proptest! {
    /// The answers agree for every program.
    #[test]
    fn answers_agree(actions in actions(), after in any::<prop::sample::Index>()) {
        let script = perform(&actions);
        let restored = |event: &Event| matches!(&event.kind, EventKind::Alloc(alloc) if alloc.restored);
        // Between a free that failed and its return a block is not live for some.
        if !script.events().is_empty() && !script.events().iter().any(restored) {
            check(&script, [after.index(script.events().len())]);
        }
    }

    /// After a free that failed a block has its first name again: all adds up.
    #[test]
    fn frees_that_failed_leave_nothing(actions in actions(), after in any::<prop::sample::Index>()) {
        let script = perform(&actions);
        let events = script.events();
        if !events.is_empty() {
            let after = after.index(events.len());
            let sum = |owners: &Owners| owners.values().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            let at = At::When(When::At(events[after].time_ns));
            let (recorder, snapshot) = Recorder::new(at, Arc::clone(&RULES));
            observe(recorder, events, &RunEnd::default());
            let found = snapshot.recv().expect("a snapshot");
            let (all, groups) = &found.pools[&PLACE];
            prop_assert_eq!((all.blocks, all.size_bytes), sum(&of_groups(groups)), "behind event {}", after);
        }
        let mut found = run(PeaksAnalysis::new(Arc::clone(&RULES)), events, &RunEnd::default());
        if let Some(Finding::Peak(found)) = found.pop() {
            let sum = found.groups.owners.iter().map(|sum| sum.live.size_bytes).sum::<u64>();
            prop_assert_eq!((sum, found.unseen_bytes), (found.seen.size_bytes, 0));
        }
    }
}
