use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::backend::ascend::pools;
use crate::{
    analyses::script::{Script, run},
    model::Device,
};

const PID: u32 = 30057;
const NPU0: Device = Device::Npu(0);
const NPU1: Device = Device::Npu(1);

fn script() -> Script {
    Script::new(PID, NPU0)
}

fn judge_with(script: &Script, end: &RunEnd) -> Vec<StepLeaks> {
    run(StepLeaksAnalysis::default(), script.events(), end)
        .into_iter()
        .map(|finding| match finding {
            Finding::StepLeaks(leaks) => leaks,
            other => panic!("not step leaks: {other:?}"),
        })
        .collect()
}

fn judge(script: &Script) -> Vec<StepLeaks> {
    judge_with(script, &RunEnd::default())
}

/// The finding of a run that must have exactly one.
fn judge_one(script: &Script) -> StepLeaks {
    let mut found = judge(script);
    assert_eq!(found.len(), 1, "{found:#?}");
    found.remove(0)
}

/// Address, step and survived steps.
fn brief(leaks: &[Leak]) -> Vec<(u64, u32, u32)> {
    leaks.iter().map(|leak| (leak.addr, leak.step, leak.survived_steps)).collect()
}

/// The golden run: one block of each step is never freed; steps 2 and 3 leak, 4 is the last.
#[test]
fn leaking_steps_are_reported_as_in_the_golden_run() {
    let found = judge_one(&Script::golden_leaky());
    assert_eq!(brief(&found.leaks), [(0x1680_0814_4000, 2, 2), (0x1680_0825_c000, 3, 1)]);
    assert_eq!(brief(&found.unjudged), [(0x1680_0835_c000, 4, 0)]);
    assert_eq!((found.pid, found.device, found.steps_ended), (PID, NPU0, 4));
    assert!(found.leaks.iter().all(|leak| leak.pool == pools::PTA && leak.size_bytes == 1 << 20));
}

/// Fault of the reference: a candidate stayed one after its free.
#[test]
fn block_freed_later_is_no_leak() {
    let mut script = script();
    script.step(1).step_start(2).alloc(pools::PTA, 0x1000, 64).step_end(2).step(3).step(4);
    assert_eq!(brief(&judge_one(&script).leaks), [(0x1000, 2, 2)]);
    script.free(pools::PTA, 0x1000);
    let found = judge_one(&script);
    assert_eq!((found.leaks.len(), found.unjudged.len(), found.steps_ended), (0, 0, 4));
}

/// Fault of the reference: blocks of the last step were passed over in silence.
#[test]
fn block_of_the_last_step_is_unjudged() {
    let mut script = script();
    script.step(1).step_start(2).alloc(pools::PTA, 0x1000, 64).step_end(2);
    script.alloc(pools::PTA, 0x2000, 64); // after the end of step 2: still step 2
    script.step_start(3).alloc(pools::PTA, 0x3000, 64); // step 3 never ends
    let found = judge_one(&script);
    assert_eq!(brief(&found.leaks), []);
    assert_eq!(brief(&found.unjudged), [(0x1000, 2, 0), (0x2000, 2, 0), (0x3000, 3, 0)]);
}

/// Fault of the reference: driver memory had no step rule.
#[test]
fn every_pool_of_device_memory_is_judged() {
    let mut script = script();
    script.step(1).step_start(2);
    let pools = [pools::MIND_SPORE, pools::ATB, pools::PTA_WORKSPACE, pools::PTA, pools::HOST, pools::HAL];
    for pool in pools {
        script.alloc(pool, 0x1000, 64);
    }
    script.step_end(2).step(3);
    let pools: Vec<Pool> = judge_one(&script).leaks.iter().map(|leak| leak.pool).collect();
    assert_eq!(pools, [pools::HAL, pools::PTA, pools::PTA_WORKSPACE, pools::ATB, pools::MIND_SPORE]);
}

/// Weights, optimizer state and caches come before step 2 and are kept.
#[test]
fn block_of_step_1_or_before_never_leaks() {
    let mut script = script();
    script.alloc(pools::PTA, 0x1000, 64).step_start(1).alloc(pools::PTA, 0x2000, 64).step_end(1);
    script.step(2).step(3).step(4);
    let found = judge_one(&script);
    assert_eq!((found.leaks.len(), found.unjudged.len(), found.steps_ended), (0, 0, 4));
}

/// A block handed out twice under one address is two blocks, and only the second one leaks.
#[test]
fn address_is_reused_after_free() {
    let mut script = script();
    script.step(1).step_start(2).alloc(pools::PTA, 0x1000, 64).step_end(2);
    script.step_start(3).free(pools::PTA, 0x1000).alloc(pools::PTA, 0x1000, 32).step_end(3).step(4);
    let found = judge_one(&script);
    assert_eq!(brief(&found.leaks), [(0x1000, 3, 1)]);
    assert_eq!(found.leaks[0].size_bytes, 32);
}

/// A pool that hands out a live address again has freed the first block unseen.
#[test]
fn replaced_block_is_no_leak() {
    let mut script = script();
    script.step(1).step_start(2).alloc(pools::PTA, 0x1000, 64).step_end(2).step(3);
    script.end(FreeCause::Replaced, pools::PTA, 0x1000).alloc(pools::PTA, 0x1000, 64);
    let found = judge_one(&script);
    assert_eq!(brief(&found.leaks), []);
    assert_eq!(brief(&found.unjudged), [(0x1000, 3, 0)]);
}

/// The step of a block from before the attach is not known: it is none that outlives its own.
#[test]
fn older_block_is_no_leak() {
    let mut script = script();
    script.step(1).step_start(2).older(pools::PTA, 0x1000, 64).alloc(pools::PTA, 0x2000, 64).step_end(2).step(3);
    let found = judge_one(&script);
    assert_eq!((brief(&found.leaks), brief(&found.unjudged)), (vec![(0x2000, 2, 1)], vec![]));
}

/// A free that turned out to have failed never happened, also for the steps that ended meanwhile.
#[test]
fn restored_block_leaks() {
    let mut script = script();
    script.step(1).step_start(2).alloc(pools::HAL, 0x1000, 64).free(pools::HAL, 0x1000).step_end(2);
    script.step(3).restore(pools::HAL, 0x1000).step(4);
    assert_eq!(brief(&judge_one(&script).leaks), [(0x1000, 2, 2)]);
}

/// A block freed between two windows of a script is no leak; one freed after the last window was live at the end of the
/// judged time.
#[test]
fn blocks_freed_after_the_last_stop_stay_leaks() {
    for (row_time_ns, leaks) in [(None, 0), (Some(9), 1)] {
        let mut script = script();
        script.step(1).step_start(2).alloc(pools::PTA, 0x1000, 64).step_end(2).step(3);
        script.end(FreeCause::Unwatched, pools::PTA, 0x1000).process_end();
        let mut events = script.events().to_vec();
        for event in &mut events {
            if let EventKind::Free(free) = &mut event.kind {
                free.row_time_ns = row_time_ns;
            }
        }
        let found = run(StepLeaksAnalysis::default(), &events, &RunEnd::default());
        let [Finding::StepLeaks(found)] = &found[..] else { panic!("not step leaks: {found:?}") };
        assert_eq!(found.leaks.len(), leaks, "{row_time_ns:?}");
    }
}

/// The end of the process or the trace frees nothing in the sense of the rule.
#[test]
fn blocks_alive_at_the_end_stay_leaks() {
    for cause in [FreeCause::ProcessEnd, FreeCause::TraceEnd] {
        let mut script = script();
        script.step(1).step_start(2).alloc(pools::PTA, 0x1000, 64).step_end(2).step(3);
        script.end(cause, pools::PTA, 0x1000).process_end();
        assert_eq!(brief(&judge_one(&script).leaks), [(0x1000, 2, 1)], "{cause:?}");
    }
}

/// Overlapping ranges may end in another order than they began.
#[test]
fn steps_may_end_out_of_order() {
    let mut script = script();
    script.step(1).step_start(2).alloc(pools::PTA, 0x1000, 64).step_start(3).step_end(3).step_end(2);
    assert_eq!(brief(&judge_one(&script).leaks), [(0x1000, 2, 1)]);
}

/// Only steps that end on the block's own device judge it.
#[test]
fn devices_are_independent() {
    let mut script = script();
    script.step(1).step_start(2).alloc(pools::PTA, 0x1000, 64).step_end(2);
    script.on(PID, NPU1).step(1).step_start(2).alloc(pools::PTA, 0x1000, 32).step_end(2).step(3).step(4);
    let found = judge(&script);
    assert_eq!(found.iter().map(|leaks| leaks.device).collect::<Vec<_>>(), [NPU0, NPU1]);
    assert_eq!((brief(&found[0].leaks), brief(&found[0].unjudged)), (vec![], vec![(0x1000, 2, 0)]));
    assert_eq!((brief(&found[1].leaks), brief(&found[1].unjudged)), (vec![(0x1000, 2, 2)], vec![]));
}

/// Processes share neither blocks nor steps, and are reported in order.
#[test]
fn processes_are_independent() {
    let mut script = Script::new(20, NPU0);
    script.step(1).step_start(2).alloc(pools::PTA, 0x1000, 64).step_end(2);
    script.on(10, NPU0).step(1).step_start(2).alloc(pools::PTA, 0x1000, 64).step_end(2).step(3);
    script.on(20, NPU0).free(pools::PTA, 0x1000).step(3);
    let found = judge(&script);
    assert_eq!(found.iter().map(|leaks| leaks.pid).collect::<Vec<_>>(), [10, 20]);
    assert_eq!(brief(&found[0].leaks), [(0x1000, 2, 1)]);
    assert_eq!(brief(&found[1].leaks), []);
}

/// A process that gets the id of one that ended starts with step 1 and no blocks.
#[test]
fn reused_process_id_is_another_process() {
    let mut script = script();
    script.step(1).step_start(2).alloc(pools::PTA, 0x1000, 64).step_end(2).step(3).process_end();
    script.step(1).step_start(2).alloc(pools::PTA, 0x2000, 64).step_end(2);
    let found = judge(&script);
    assert_eq!(found.len(), 2, "{found:#?}");
    assert_eq!(brief(&found[0].leaks), [(0x1000, 2, 1)]);
    assert_eq!((found[1].steps_ended, brief(&found[1].unjudged)), (2, vec![(0x2000, 2, 0)]));
}

/// Without steps there is no finding; a step on one device does not count on another.
#[test]
fn no_step_no_finding() {
    let mut script = script();
    script.alloc(pools::PTA, 0x1000, 64);
    assert_eq!(judge(&script), []);
    script.on(PID, NPU1).step(1);
    assert_eq!(judge(&script).iter().map(|leaks| leaks.device).collect::<Vec<_>>(), [NPU1]);
}

/// A lost free looks like a leak, so every finding of a run with losses is doubtful.
#[test]
fn lost_events_make_findings_doubtful() {
    let mut script = script();
    script.step(1);
    let lost = RunEnd { lost: 1, ..RunEnd::default() };
    assert_eq!(judge_with(&script, &lost)[0].confidence, Confidence::Doubtful);
    assert_eq!(judge(&script)[0].confidence, Confidence::Certain);
}

/// Many leaks over many steps are counted exactly.
#[test]
fn twenty_thousand_leaks_over_four_hundred_steps() {
    let (steps, blocks) = (400, 50);
    let mut script = script();
    for step in 1..=steps {
        script.step_start(step);
        for block in 0..blocks {
            script.alloc(pools::PTA, u64::from(step) << 32 | block << 12, 4096);
        }
        script.step_end(step);
    }
    let found = judge_one(&script);
    // Step 1 is skipped, and no step after the last could judge it.
    assert_eq!((found.leaks.len(), found.unjudged.len(), found.steps_ended), (398 * 50, 50, 400));
    let survived: u64 = found.leaks.iter().map(|leak| u64::from(leak.survived_steps)).sum();
    assert_eq!(survived, 50 * (1..=398).sum::<u64>());
}

/// 40 steps, each from `first` to `last` keeps a block, all at one place; at most `queue` of them at a time.
fn keeping(first: u32, last: u32, queue: usize) -> Script {
    let (mut script, mut kept) = (script(), Vec::new());
    for step in 1..=40 {
        script.step_start(step);
        if (first..=last).contains(&step) {
            let addr = u64::from(step) << 12;
            script.alloc(pools::PTA, addr, 512);
            kept.push(addr);
        }
        if kept.len() > queue {
            script.free(pools::PTA, kept.remove(0));
        }
        script.step_end(step);
    }
    script
}

/// Blocks that stay and keep coming leak. A few blocks, young ones, a full cache, a queue are undecided, and listed all
/// the same. Of 40 steps a quarter are 10.
#[test]
fn places_are_judged() {
    use StepVerdict::{FewSteps, Leak, Replaced, Stopped, Young};
    const ALL: usize = usize::MAX;
    for (first, last, queue, verdict, blocks, range) in [
        (1, 40, ALL, Leak, 38, [2, 39]),
        (28, 40, ALL, Leak, 12, [28, 39]),
        (30, 40, ALL, Leak, 10, [30, 39]),
        (31, 40, ALL, Young, 9, [31, 39]),
        (2, 30, ALL, Leak, 29, [2, 30]),
        (2, 29, ALL, Stopped, 28, [2, 29]),
        (3, 4, ALL, FewSteps, 2, [3, 4]),
        (1, 40, 12, Replaced, 11, [29, 39]),
        (1, 40, 3, Young, 2, [38, 39]),
    ] {
        let found = judge_one(&keeping(first, last, queue));
        let [place] = &found.places[..] else { panic!("one place: {:?}", found.places) };
        let text = format!("{first} {last} {queue}");
        assert_eq!((place.verdict, place.blocks, place.step_range), (verdict, blocks, range), "{text}");
        assert_eq!((place.size_bytes, place.each_bytes), (blocks * 512, Some(512)), "{text}");
        assert_eq!(found.leaks.len() as u64, blocks, "{text}");
    }
}

/// An event of a random traced program.
#[derive(Clone, Copy, Debug)]
enum Action {
    /// Allocates at the address; frees first the block there, with the cause given, or restores it.
    Touch {
        pool: Pool,
        addr: u64,
        cause: FreeCause,
        restore: bool,
    },
    StepStart,
    StepEnd,
}

fn action() -> impl Strategy<Value = Action> {
    let pool = prop::sample::select(vec![pools::HAL, pools::HOST, pools::PTA, pools::ATB]);
    let cause = prop::sample::select(vec![FreeCause::Program, FreeCause::Program, FreeCause::Replaced]);
    let touch = (pool, 1..4_u64, cause, prop::bool::weighted(0.1))
        .prop_map(|(pool, slot, cause, restore)| Action::Touch { pool, addr: slot << 12, cause, restore });
    prop_oneof![6 => touch, 1 => Just(Action::StepStart), 1 => Just(Action::StepEnd)]
}

/// Plays actions of two processes on two devices; steps are numbered per process, and may end on another device
/// than they began on.
fn play(actions: &[(u32, u32, Action)]) -> Script {
    let mut script = script();
    let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
    let mut open: BTreeMap<u32, u32> = BTreeMap::new();
    for &(pid, npu, action) in actions {
        script.on(pid, Device::Npu(npu));
        match action {
            Action::Touch { pool, addr, cause, .. } if script.is_live(pool, addr) => {
                script.end(cause, pool, addr);
            }
            Action::Touch { pool, addr, restore: true, .. } if script.was_freed(pool, addr) => {
                script.restore(pool, addr);
            }
            Action::Touch { pool, addr, .. } => {
                script.alloc(pool, addr, 64);
            }
            Action::StepStart => {
                let count = counts.entry(pid).or_default();
                *count += 1;
                open.insert(pid, *count);
                script.step_start(*count);
            }
            Action::StepEnd => {
                if let Some(step) = open.remove(&pid) {
                    script.step_end(step);
                }
            }
        }
    }
    script
}

/// Allocation ids with survived steps: of leaks, and of unjudged blocks; by process and device.
type Judged = BTreeMap<(u32, Device), [Vec<(u64, u32)>; 2]>;

/// The rule word by word: every event against every event.
fn naive(events: &[Event]) -> Judged {
    let mut found = Judged::new();
    for (at, event) in events.iter().enumerate() {
        if matches!(event.kind, EventKind::StepEnd { .. }) {
            found.entry((event.pid, event.device)).or_default();
        }
        let EventKind::Alloc(alloc) = &event.kind else { continue };
        let block = alloc.block;
        if alloc.restored || block.pool == pools::HOST || block.step < 2 {
            continue;
        }
        let (mut live, mut survived) = (true, 0);
        for later in events[at..].iter().filter(|later| later.pid == event.pid) {
            match later.kind {
                EventKind::Alloc(later) if later.block.allocation_id == block.allocation_id => live = true,
                EventKind::Free(later) if later.block.allocation_id == block.allocation_id => live = false,
                EventKind::StepEnd { step } if later.device == block.device && step > block.step => survived += 1,
                _ => {}
            }
        }
        if live {
            let kind = usize::from(survived == 0);
            found.entry((event.pid, block.device)).or_default()[kind].push((block.allocation_id, survived));
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Any interleaving of allocations, frees and steps ends as the rule says word by word.
    #[test]
    fn agrees_with_the_rule_word_by_word(
        actions in prop::collection::vec((1..3_u32, 0..2_u32, action()), 0..200),
    ) {
        let script = play(&actions);
        let numbers = |leaks: Vec<Leak>| {
            let mut numbers: Vec<_> =
                leaks.iter().map(|leak| (leak.allocation_id, leak.survived_steps)).collect();
            numbers.sort_unstable();
            numbers
        };
        let found: Judged = judge(&script)
            .into_iter()
            .map(|found| ((found.pid, found.device), [numbers(found.leaks), numbers(found.unjudged)]))
            .collect();
        prop_assert_eq!(found, naive(script.events()));
    }
}
