use proptest::prelude::*;

use super::*;
use crate::analyses::decompose::Classifier;
use crate::analyses::script::{Script, run};
use crate::backend::ascend::pools;
use crate::model::{Block, EventKind, FreeCause, LiveGroups, LiveSum, Name};

const NPU0: Device = Device::Npu(0);
const NPU1: Device = Device::Npu(1);
const HCCL: Option<u8> = Some(3);

fn peaks(script: &Script) -> Vec<Peak> {
    let found = run(PeaksAnalysis::default(), script.events(), &RunEnd::default());
    found.into_iter().map(|finding| if let Finding::Peak(peak) = finding { peak } else { panic!() }).collect()
}

fn peak(script: &Script) -> Peak {
    let mut found = peaks(script);
    assert_eq!(found.len(), 1, "{found:#?}");
    found.remove(0)
}

const fn live(blocks: u64, size_bytes: u64) -> LiveSum {
    LiveSum { blocks, size_bytes }
}

/// Six iterations of a training program without marks, the highest in the fifth: four steps of the optimizer have
/// ended. With marks from the sixth on the marks count, and the peak is before the first; in the first iteration no
/// step has ended.
#[test]
fn steps_are_inferred_where_none_are_marked() {
    const STEP: [&str; 1] = ["/usr/lib/python3.11/site-packages/torch/optim/adam.py(242): Adam.step"];
    const FORWARD: [&str; 1] =
        ["/usr/lib/python3.11/site-packages/torch/nn/modules/module.py(1786): Module._call_impl"];
    for (highest, marked, expected) in
        [(5, false, (5, StepsFrom::Optimizer)), (5, true, (0, StepsFrom::Marks)), (1, false, (0, StepsFrom::Marks))]
    {
        let mut script = Script::new(7, NPU0);
        for iteration in 1..=6 {
            if marked && iteration == 6 {
                script.step_start(1);
            }
            let size = if iteration == highest { 9000 } else { 100 };
            script.stacks(&FORWARD, &[]).alloc(pools::PTA, 0x1000, size);
            script.stacks(&STEP, &[]).alloc(pools::PTA, 0x9000, 64).free(pools::PTA, 0x9000);
            script.stacks(&FORWARD, &[]).free(pools::PTA, 0x1000);
        }
        let found = peak(&script);
        assert_eq!((found.step, found.steps_from), expected, "{highest} {marked}");
        assert_eq!(found.peak_bytes, 9064);
    }
}

fn owners(groups: &LiveGroups) -> Vec<(&'static str, LiveSum)> {
    groups.owners.iter().map(|sum| (sum.owner.map_or("", Name::as_str), sum.live)).collect()
}

fn places(groups: &LiveGroups) -> Vec<(Option<&'static str>, LiveSum)> {
    let function = |stacks: crate::model::Stacks| stacks.native.map(|stack| stack.texts()[0]);
    groups.places.iter().map(|sum| (function(sum.stacks), sum.live)).collect()
}

fn sizes(groups: &LiveGroups) -> Vec<(u64, LiveSum)> {
    groups.sizes.iter().map(|sum| (sum.least_bytes, sum.live)).collect()
}

/// By hand: 100, 400, 430 (the peak), 330, 30, 130, 430 (not higher), 0.
#[test]
fn peak_is_reported_in_groups() {
    let mut script = Script::new(7, NPU0);
    script.step_start(3).module(HCCL).stacks(&[], &["f"]).alloc(pools::HAL, 0x1000, 100);
    script.stacks(&[], &["g"]).alloc(pools::HAL, 0x2000, 300).module(None).alloc(pools::HAL, 0x3000, 30);
    script.step_start(4).free(pools::HAL, 0x1000).free(pools::HAL, 0x2000);
    script.alloc(pools::HAL, 0x4000, 100).alloc(pools::HAL, 0x5000, 300);
    script.free(pools::HAL, 0x3000).free(pools::HAL, 0x4000).free(pools::HAL, 0x5000);
    let found = peak(&script);
    assert_eq!((found.start_ns, found.time_ns, found.step, found.peak_bytes), (1, 3, 3, 430));
    assert_eq!((found.seen, found.unseen_bytes), (live(3, 430), 0));
    assert_eq!(owners(&found.groups), [("CANN@HCCL", live(2, 400)), ("CANN@UNKNOWN", live(1, 30))]);
    assert_eq!(places(&found.groups), [(Some("g"), live(2, 330)), (Some("f"), live(1, 100))]);
    assert_eq!(sizes(&found.groups), [(16, live(1, 30)), (64, live(1, 100)), (256, live(1, 300))]);
    assert!(!found.groups.places_full && found.places_left_out == 0);
}

/// A process that ends at its peak, one with a peak that grew while groups came and went before, and one without
/// stacks.
#[test]
fn peak_at_the_end() {
    for cause in [FreeCause::TraceEnd, FreeCause::ProcessEnd] {
        let mut script = Script::new(7, NPU0);
        script.alloc(pools::PTA, 0x1000, 8).free(pools::PTA, 0x1000).alloc(pools::PTA, 0x2000, 5);
        script.alloc(pools::PTA, 0x1000, 9).end(cause, pools::PTA, 0x1000).end(cause, pools::PTA, 0x2000);
        let found = peak(&script);
        assert_eq!((found.time_ns, found.peak_bytes, found.seen), (3, 14, live(2, 14)));
        assert_eq!(sizes(&found.groups), [(4, live(1, 5)), (8, live(1, 9))]);
        assert_eq!(places(&found.groups), []);
    }
}

/// Memory that a program held before an exec is not added to that of the next one.
#[test]
fn programs_are_apart() {
    let mut script = Script::new(7, NPU0);
    script.alloc(pools::HAL, 0x1000, 80).end(FreeCause::ProcessEnd, pools::HAL, 0x1000);
    script.alloc(pools::HAL, 0x2000, 50).alloc(pools::HAL, 0x3000, 40);
    let found = peak(&script);
    assert_eq!((found.peak_bytes, found.seen), (90, live(2, 90)));
}

/// A failed free: the block was live all the time, and the sum with it is a peak once that is known.
#[test]
fn restored_block_counts() {
    let mut script = Script::new(7, NPU0);
    script.alloc(pools::HAL, 0x1000, 64).free(pools::HAL, 0x1000).alloc(pools::HAL, 0x2000, 10);
    script.restore(pools::HAL, 0x1000).free(pools::HAL, 0x2000);
    let found = peak(&script);
    assert_eq!((found.time_ns, found.peak_bytes, found.seen), (3, 74, live(2, 74)));
}

/// Attached late: the pool's own figure is the height, and the unseen part is named, not guessed.
#[test]
fn older_blocks_are_unseen() {
    let mut script = Script::new(7, NPU0);
    let start = ProcessStart { parent: 0, attached: true, command: "server".into(), pid_within: None };
    script.event(EventKind::ProcessStart(start));
    script.reported(Some((1010, 4096))).alloc(pools::PTA, 0x1000, 10);
    // Of the older ones much has gone: more is seen, and it is no peak.
    script.reported(Some((520, 4096))).alloc(pools::PTA, 0x2000, 20);
    let found = peak(&script);
    assert_eq!((found.attached, found.peak_bytes), (true, 1010));
    assert_eq!((found.seen, found.unseen_bytes), (live(1, 10), 1000));
}

/// Blocks of before the attach that are found later were there at the peak, too: by the pool's figure, which has them, or beside it.
#[test]
fn found_blocks_were_there() {
    let mut script = Script::new(7, NPU0);
    script.reported(Some((1110, 4096))).alloc(pools::PTA, 0x1000, 110);
    script.reported(Some((1000, 4096))).free(pools::PTA, 0x1000);
    script.older(pools::PTA, 0x2000, 400).older(pools::PTA, 0x3000, 600).free(pools::PTA, 0x2000);
    let found = peak(&script);
    assert_eq!((found.time_ns, found.peak_bytes, found.seen, found.unseen_bytes), (0, 1110, live(3, 1110), 0));
    let mut script = Script::new(7, NPU0);
    script.alloc(pools::HAL, 0x1000, 64).free(pools::HAL, 0x1000).alloc(pools::HAL, 0x2000, 10);
    script.older(pools::HAL, 0x3000, 100);
    let found = peak(&script);
    assert_eq!((found.time_ns, found.peak_bytes, found.seen), (0, 164, live(2, 164)));
    // Nothing before: they are the peak.
    let mut script = Script::new(7, NPU0);
    script.reported(Some((1000, 4096))).older(pools::PTA, 0x2000, 400).older(pools::PTA, 0x3000, 600);
    let found = peak(&script);
    assert_eq!((found.peak_bytes, found.seen, found.unseen_bytes), (1000, live(2, 1000), 0));
}

/// Every process, device and pool has its own peak, in that order; a process number can come back.
#[test]
fn peaks_are_separate() {
    let mut script = Script::new(7, NPU0);
    script.alloc(pools::PTA, 0x1000, 1).on(7, NPU1).alloc(pools::PTA, 0x1000, 2);
    script.on(6, NPU0).alloc(pools::PTA, 0x1000, 4).alloc(pools::HAL, 0x1000, 8);
    script.process_end().alloc(pools::HAL, 0x1000, 16);
    let reported: Vec<_> = peaks(&script).iter().map(|it| (it.pid, it.device, it.pool, it.peak_bytes)).collect();
    let expected = [
        (6, NPU0, pools::PTA, 4),
        (6, NPU0, pools::HAL, 8),
        (6, NPU0, pools::HAL, 16),
        (7, NPU0, pools::PTA, 1),
        (7, NPU1, pools::PTA, 2),
    ];
    assert_eq!(reported, expected);
}

#[test]
fn losses_make_doubtful() {
    let mut script = Script::new(7, NPU0);
    script.alloc(pools::HAL, 0x1000, 1);
    let found = run(PeaksAnalysis::default(), script.events(), &RunEnd { lost: 1, ..RunEnd::default() });
    assert!(matches!(&found[..], [Finding::Peak(Peak { confidence: Confidence::Doubtful, .. })]), "{found:?}");
}

/// Sizes that only a liar can have add up all the same.
#[test]
fn huge_sizes_add_up() {
    let mut script = Script::new(7, NPU0);
    script.reported(Some((u64::MAX, u64::MAX)));
    script.alloc(pools::PTA, 1, u64::MAX - 20).alloc(pools::PTA, 2, 19);
    assert_eq!(peak(&script).seen, live(1, u64::MAX - 20));
}

/// A call: the address, one of four places, the module, the size; at a live address, a free.
fn calls() -> impl Strategy<Value = Vec<(bool, u64, usize, u8, u64)>> {
    let pta = prop::bool::weighted(0.3);
    prop::collection::vec((pta, 0..24_u64, 0..4_usize, 0..4_u8, 0..5000_u64), 0..300)
}

proptest! {
    /// The peak, its time and its groups are those of a search through the list of live blocks after every event,
    /// and all three groupings have its sum.
    #[test]
    fn peaks_are_those_of_a_search(calls in calls()) {
        let mut script = Script::new(7, NPU0);
        let mut lives: BTreeMap<Pool, Vec<(u64, Block)>> = BTreeMap::new();
        let mut best: BTreeMap<Pool, (u64, u64, Vec<Block>)> = BTreeMap::new();
        for (pta, addr, place, module, size) in calls {
            let pool = if pta { pools::PTA } else { pools::HAL };
            let list = lives.entry(pool).or_default();
            if script.is_live(pool, addr) {
                script.free(pool, addr);
                list.retain(|(at, _)| *at != addr);
                continue;
            }
            let stack: &[&str] = [&[][..], &["f"], &["g"], &["h"]][place];
            script.stacks(&[], stack).module(Some(module)).alloc(pool, addr, size);
            let Some(EventKind::Alloc(alloc)) = script.events().last().map(|event| event.kind.clone()) else {
                panic!("no allocation")
            };
            list.push((addr, alloc.block));
            let total = list.iter().map(|(_, block)| block.size_bytes).sum();
            let blocks = || list.iter().map(|(_, block)| *block).collect();
            let time_ns = script.events().len() as u64 - 1;
            let top = best.entry(pool).or_insert_with(|| (0, 0, Vec::new()));
            if total > top.0 {
                *top = (total, time_ns, blocks());
            }
        }
        let found = peaks(&script);
        prop_assert_eq!(found.len(), best.len());
        for found in found {
            let (total, time_ns, blocks) = &best[&found.pool];
            prop_assert_eq!((found.peak_bytes, found.seen), (*total, live(blocks.len() as u64, *total)));
            if *total > 0 {
                prop_assert_eq!(found.time_ns, *time_ns);
            }
            let sum = |keep: &dyn Fn(&Block) -> bool| {
                let kept: Vec<u64> = blocks.iter().filter(|block| keep(block)).map(|it| it.size_bytes).collect();
                live(kept.len() as u64, kept.iter().sum())
            };
            let groups = &found.groups;
            for place in &groups.places {
                prop_assert_eq!(place.live, sum(&|block| block.stacks == place.stacks));
            }
            for size in &groups.sizes {
                let least = size.least_bytes;
                let is_of = |block: &Block| block.size_bytes >= least && block.size_bytes < (least * 2).max(1);
                prop_assert_eq!(size.live, sum(&is_of));
            }
            let mut classifier = Classifier::new(Arc::new(RuleSet::builtin()));
            let named: Vec<_> = blocks.iter().map(|block| (classifier.owner(block), block.size_bytes)).collect();
            for owner in &groups.owners {
                let of = named.iter().filter(|(name, _)| *name == owner.owner);
                prop_assert_eq!(owner.live.size_bytes, of.map(|(_, size)| size).sum::<u64>());
            }
            let all = |sums: Vec<LiveSum>| {
                live(sums.iter().map(|it| it.blocks).sum(), sums.iter().map(|it| it.size_bytes).sum())
            };
            prop_assert_eq!(all(groups.owners.iter().map(|it| it.live).collect()), found.seen);
            prop_assert_eq!(all(groups.sizes.iter().map(|it| it.live).collect()), found.seen);
            if blocks.iter().any(|block| !block.stacks.is_empty()) {
                prop_assert_eq!(all(groups.places.iter().map(|it| it.live).collect()), found.seen);
            } else {
                prop_assert!(groups.places.is_empty());
            }
        }
    }
}
