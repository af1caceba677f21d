use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::analyses::decompose::RuleSet;
use crate::analyses::script::{Script, observe};
use crate::analyses::select::When;
use crate::backend::ascend::pools;
use crate::model::{Confidence, EventKind, FreeCause, Name, ProcessStart, RunEnd};

const NPU0: Device = Device::Npu(0);
const NPU1: Device = Device::Npu(1);
const HCCL: Option<u8> = Some(3);

fn snapshot(script: &Script, at: At) -> Snapshot {
    let (recorder, snapshot) = Recorder::new(at, Arc::new(RuleSet::builtin()));
    observe(recorder, script.events(), &RunEnd::default());
    snapshot.recv().expect("a snapshot")
}

/// A number of nanoseconds after the first event.
fn since_start(time_ns: u64) -> At {
    At::When(When::After(Duration::from_nanos(time_ns)))
}

/// From and to, in blocks and bytes.
fn brief(change: LiveChange) -> [u64; 4] {
    [change.from.blocks, change.from.size_bytes, change.to.blocks, change.to.size_bytes]
}

fn owners(change: &PoolDiff) -> Vec<(&'static str, [u64; 4])> {
    change.owners.iter().map(|it| (it.owner.map_or("", Name::as_str), brief(it.change))).collect()
}

fn places(change: &PoolDiff) -> Vec<(Option<&'static str>, [u64; 4])> {
    let function = |it: &PlaceDiff| (it.stacks.native.map(|stack| stack.texts()[0]), brief(it.change));
    change.places.iter().map(function).collect()
}

/// Two runs of two processes, at other addresses. By hand: f grew by 300 bytes and a block, g shrank by 40, h stayed.
#[test]
fn runs_are_compared() {
    let mut one = Script::new(7, NPU0);
    one.stacks(&[], &["x(f+0x1) [0x10]"]).alloc(pools::HAL, 1, 100).stacks(&[], &["g"]).alloc(pools::HAL, 2, 40);
    one.stacks(&[], &["h"]).alloc(pools::HAL, 3, 7).alloc(pools::HAL, 4, 5).free(pools::HAL, 4);
    let mut two = Script::new(8, NPU0);
    two.stacks(&[], &["x(f+0x1) [0x20]"]).module(HCCL).alloc(pools::HAL, 1, 300);
    two.on(9, NPU0).module(None).alloc(pools::HAL, 1, 100).stacks(&[], &["h"]).alloc(pools::HAL, 3, 7);
    two.on(9, NPU1).alloc(pools::PTA, 1, 1);
    let found = diff(&snapshot(&one, At::End), &snapshot(&two, At::End));
    assert_eq!(
        found.iter().map(|it| (it.device, it.pool)).collect::<Vec<_>>(),
        [(NPU0, pools::HAL), (NPU1, pools::PTA)]
    );
    assert_eq!(brief(found[0].change), [3, 147, 3, 407]);
    assert_eq!((found[0].change.grown_bytes, found[0].change.grown_blocks), (260, 0));
    assert_eq!(owners(&found[0]), [("CANN@HCCL", [0, 0, 1, 300]), ("CANN@UNKNOWN", [3, 147, 2, 107])]);
    assert_eq!(places(&found[0]), [(Some("x(f+0x1)"), [1, 100, 2, 400]), (Some("g"), [1, 40, 0, 0])]);
    let sizes: Vec<_> = found[0].sizes.iter().map(|it| (it.least_bytes, brief(it.change))).collect();
    assert_eq!(sizes, [(256, [0, 0, 1, 300]), (32, [1, 40, 0, 0])]);
    assert_eq!(brief(found[1].change), [0, 0, 1, 1]);
}

/// Only one run has stacks: totals and sizes are compared, owners and places are not judged. A pool that one of them
/// lacks has grown from nothing, and moments of one run have the stacks of that run.
#[test]
fn runs_with_and_without_stacks() {
    let (mut one, mut two) = (Script::new(7, NPU0), Script::new(8, NPU0));
    one.alloc(pools::HAL, 1, 300);
    two.alloc(pools::HAL, 1, 200).stacks(&[], &["f"]).alloc(pools::HAL, 2, 150).alloc(pools::PTA, 3, 8);
    for (one, two, sign) in [(&one, &two, 1), (&two, &one, -1)] {
        let found = diff(&snapshot(one, At::End), &snapshot(two, At::End));
        assert_eq!((found[0].judged, found[0].change.grown_bytes), (false, sign * 50));
        assert_eq!((owners(&found[0]), places(&found[0]), found[0].places_left_out), (vec![], vec![], 0));
        assert_eq!(found[0].sizes.iter().map(|it| it.change.grown_bytes).sum::<i128>(), sign * 50);
        assert_eq!((found[1].judged, found[1].places.len()), (true, 1));
    }
    let moments = diff(&snapshot(&two, since_start(0)), &snapshot(&two, At::End));
    assert_eq!((moments[0].judged, places(&moments[0])), (true, vec![(Some("f"), [0, 0, 1, 150])]));
}

/// Moments of one run, each with all that happens at its time; event *k* of a script is at *k* ns.
#[test]
fn moments_of_a_run() {
    let mut script = Script::new(7, NPU0);
    script.alloc(pools::HAL, 1, 10).alloc(pools::HAL, 2, 200).alloc(pools::HAL, 3, 3000).free(pools::HAL, 2);
    script.alloc(pools::HAL, 4, 100).free(pools::HAL, 3).end(FreeCause::ProcessEnd, pools::HAL, 1).process_end();
    let live = |at| snapshot(&script, at).pools[&(NPU0, pools::HAL)].0;
    let bytes: Vec<u64> = (0..8).map(|after| live(since_start(after)).size_bytes).collect();
    assert_eq!(bytes, [10, 210, 3210, 3010, 3110, 110, 100, 100]);
    assert_eq!((live(At::Peak).size_bytes, live(At::Peak).blocks), (3210, 3));
    // The end is before the process's memory was taken.
    assert_eq!((live(At::End).size_bytes, snapshot(&script, At::End).length_ns), (110, 7));
    let found = diff(&snapshot(&script, since_start(1)), &snapshot(&script, At::Peak));
    assert_eq!(brief(found[0].change), [2, 210, 3, 3210]);
}

/// The peak is that of all processes together.
#[test]
fn processes_are_added_up() {
    let mut script = Script::new(7, NPU0);
    script.alloc(pools::HAL, 1, 100).free(pools::HAL, 1).alloc(pools::HAL, 2, 60).on(8, NPU0).alloc(pools::HAL, 1, 50);
    assert_eq!(snapshot(&script, At::Peak).pools[&(NPU0, pools::HAL)].0, LiveSum { blocks: 2, size_bytes: 110 });
}

/// Unchanged groups are not listed; without stacks there are no places.
#[test]
fn nothing_changed() {
    let mut script = Script::new(7, NPU0);
    script.alloc(pools::HAL, 1, 100);
    let end = snapshot(&script, At::End);
    let found = diff(&end, &end);
    assert_eq!((found.len(), brief(found[0].change)), (1, [1, 100, 1, 100]));
    assert!(found[0].owners.is_empty() && found[0].places.is_empty() && found[0].sizes.is_empty());
    assert_eq!(places(&diff(&end, &snapshot(&Script::new(7, NPU0), At::End))[0]), []);
}

#[test]
fn attached_and_lossy_runs_say_so() {
    let mut script = Script::new(7, NPU0);
    script.event(EventKind::ProcessStart(ProcessStart {
        parent: 0,
        attached: true,
        command: "server".into(),
        pid_within: None,
    }));
    let found = snapshot(&script, At::End);
    assert_eq!((found.attached, found.confidence), (true, Confidence::Certain));
    let (recorder, snapshot) = Recorder::new(At::End, Arc::new(RuleSet::builtin()));
    observe(recorder, script.events(), &RunEnd { lost: 1, ..RunEnd::default() });
    let found = snapshot.recv().expect("a snapshot");
    assert_eq!(found.confidence, Confidence::Doubtful);
}

/// A bounded number of places is listed, those with the largest increase.
#[test]
fn places_are_bounded() {
    let mut script = Script::new(7, NPU0);
    for number in 1..=102_u64 {
        script.stacks(&[], &[&format!("f{number}")]).alloc(pools::HAL, number, number);
    }
    let found = diff(&snapshot(&Script::new(7, NPU0), At::End), &snapshot(&script, At::End));
    assert_eq!((found[0].places.len(), found[0].places_left_out), (100, 2));
    assert_eq!(places(&found[0])[0], (Some("f102"), [0, 0, 1, 102]));
    assert_eq!(places(&found[0])[99], (Some("f3"), [0, 0, 1, 3]));
}

fn made_up(calls: &[(u64, usize, u8, u64)]) -> Script {
    let mut script = Script::new(7, NPU0);
    for &(addr, place, module, size) in calls {
        if script.is_live(pools::HAL, addr) {
            script.free(pools::HAL, addr);
        } else {
            let stack: &[&str] = [&[][..], &["f"], &["g"]][place];
            script.stacks(&[], stack).module(Some(module)).alloc(pools::HAL, addr, size);
        }
    }
    script
}

proptest! {
    /// Every list adds up to the change of the whole, is in order, and going back is the opposite of going forth.
    #[test]
    fn lists_add_up(
        one in prop::collection::vec((0..20_u64, 0..3_usize, 0..3_u8, 0..5000_u64), 0..80),
        two in prop::collection::vec((0..20_u64, 0..3_usize, 0..3_u8, 0..5000_u64), 0..80),
        after in 0..80_u64,
    ) {
        let (one, two) = (snapshot(&made_up(&one), since_start(after)), snapshot(&made_up(&two), At::Peak));
        let (forth, back) = (diff(&one, &two), diff(&two, &one));
        prop_assert_eq!(forth.len(), back.len());
        for (forth, back) in forth.iter().zip(&back) {
            let lists = |it: &PoolDiff| {
                let owners: Vec<LiveChange> = it.owners.iter().map(|it| it.change).collect();
                let places: Vec<LiveChange> = it.places.iter().map(|it| it.change).collect();
                [owners, places, it.sizes.iter().map(|it| it.change).collect()]
            };
            for (at, (list, reverse)) in lists(forth).into_iter().zip(lists(back)).enumerate() {
                prop_assert!(list.is_sorted_by_key(|it| Reverse(it.grown_bytes)));
                let grown = |list: &[LiveChange]| -> (i128, i128) {
                    (list.iter().map(|it| it.grown_bytes).sum(), list.iter().map(|it| it.grown_blocks).sum())
                };
                // Without stacks there are no places; with stacks on one side, no owners either.
                if [forth.judged, !list.is_empty(), true][at] {
                    prop_assert_eq!(grown(&list), (forth.change.grown_bytes, forth.change.grown_blocks));
                }
                let (bytes, blocks) = grown(&list);
                prop_assert_eq!(grown(&reverse), (-bytes, -blocks));
            }
        }
    }
}
