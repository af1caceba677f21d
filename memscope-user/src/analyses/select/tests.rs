use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::analyses::script::Script;
use crate::backend::ascend::pools;
use crate::model::{Access, AccessKind, Block, Device, Free, FreeCause, OutOfMemory, Pool};

const NPU0: Device = Device::Npu(0);
const NPU1: Device = Device::Npu(1);

/// Keeps the events it sees.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<(Vec<Event>, RunEnd)>>);

impl Analysis for Seen {
    fn observe(&mut self, event: &Event) {
        self.0.lock().expect("lock").0.push(event.clone());
    }

    fn finish(&mut self, end: &RunEnd) -> Vec<Finding> {
        self.0.lock().expect("lock").1 = end.clone();
        Vec::new()
    }
}

fn select(events: &[Event], selection: &Selection) -> (Vec<Event>, RunEnd) {
    let seen = Seen::default();
    let (mut selected, any) = Selected::new(selection, vec![Box::new(seen.clone())], Vec::new());
    for event in events {
        selected.observe(event);
    }
    let time_ns = events.last().map_or(0, |event| event.time_ns);
    drop(selected.finish(&RunEnd { time_ns, ..RunEnd::default() }));
    let (events, end) = std::mem::take(&mut *seen.0.lock().expect("lock"));
    assert_eq!(any.was_seen(), events.iter().any(|event| matches!(event.kind, EventKind::Alloc(_))));
    (events, end)
}

fn filtered(script: &Script, conditions: &[Condition]) -> Vec<String> {
    let selection = Selection { filter: only(conditions), window: Window::default() };
    brief(&select(script.events(), &selection).0)
}

fn windowed(script: &Script, since: Option<u64>, until: Option<u64>) -> (Vec<String>, RunEnd) {
    let window = Window { since: since.map(When::At), until: until.map(When::At) };
    let (events, end) = select(script.events(), &Selection { window, filter: Filter::default() });
    (brief(&events), end)
}

fn only(conditions: &[Condition]) -> Filter {
    Filter { conditions: conditions.to_vec(), rules: None }
}

const fn is(test: Test) -> Condition {
    Condition { test, wanted: true }
}

const fn not(test: Test) -> Condition {
    Condition { test, wanted: false }
}

/// Time, what, address, bytes used after it.
fn brief(events: &[Event]) -> Vec<String> {
    let line = |event: &Event| {
        let text = match &event.kind {
            EventKind::Alloc(alloc) => {
                let what = if alloc.restored { "back" } else { "alloc" };
                format!("{what} {:x} used {}", alloc.block.addr, alloc.used_bytes)
            }
            EventKind::Free(free) => format!("{:?} {:x} used {}", free.cause, free.block.addr, free.used_bytes),
            EventKind::StepStart { step } => format!("step {step}"),
            EventKind::StepEnd { step } => format!("step {step} ends"),
            EventKind::Access(access) => format!("access {:x}", access.addr),
            EventKind::AllocFailed(_) => "failed".to_owned(),
            EventKind::AllocRecovered(_) => "recovered".to_owned(),
            EventKind::UnknownFree(_) => "unknown free".to_owned(),
            EventKind::OutOfMemory(OutOfMemory::Top(block)) => format!("top {:x}", block.addr),
            EventKind::Launch(_) => "launch".to_owned(),
            EventKind::DeviceUsage(usage) => format!("usage {}", usage.used_bytes),
            EventKind::ProcessEnd => "end".to_owned(),
            other => format!("{other:?}"),
        };
        format!("{}: {text}", event.time_ns)
    };
    events.iter().map(line).collect()
}

fn access(script: &mut Script, pool: Pool, addr: u64) {
    let allocation_id = script.number_of(pool, addr);
    accessed(script, pool, addr, allocation_id);
}

fn accessed(script: &mut Script, pool: Pool, addr: u64, allocation_id: u64) {
    let (kind, op, shape) = (AccessKind::Read, "op".into(), Arc::from([]));
    let access = Access { kind, op, allocation_id, pool, addr, size_bytes: 1, dtype: "", format: None, shape };
    script.event(EventKind::Access(access));
}

/// One of two blocks is selected: its allocation, access, failed free, and end; and events of no block.
#[test]
fn events_go_with_their_blocks() {
    let mut script = Script::new(1, NPU0);
    script.step_start(1).pool_alloc(pools::PTA, 0xa, 100, 4096).pool_alloc(pools::PTA, 0xb, 7, 4096);
    access(&mut script, pools::PTA, 0xa);
    access(&mut script, pools::PTA, 0xb);
    script.free(pools::PTA, 0xa).restore(pools::PTA, 0xa).launch().free(pools::PTA, 0xb).step_end(1);
    script.end(FreeCause::TraceEnd, pools::PTA, 0xa).process_end();
    let common = ["0: step 1", "7: launch", "9: step 1 ends", "11: end"];
    let of_a = [
        common[0],
        "1: alloc a used 100",
        "3: access a",
        "5: Program a used 0",
        "6: back a used 100",
        common[1],
        common[2],
        "10: TraceEnd a used 0",
        common[3],
    ];
    assert_eq!(filtered(&script, &[is(Test::Above(99))]), of_a);
    let of_b = [common[0], "2: alloc b used 7", "4: access b", common[1], "8: Program b used 0", common[2], common[3]];
    assert_eq!(filtered(&script, &[not(Test::Above(99))]), of_b);
    assert_eq!(filtered(&script, &[is(Test::Above(7)), is(Test::Below(100))]), common);
}

/// Each condition, on blocks that differ in one property each.
#[test]
fn conditions() {
    let mut script = Script::new(1, NPU0);
    script.alloc(pools::PTA, 0xa, 64).owned("PTA@kv_cache");
    script.thread(2).stacks(&["m.py(3): forward"], &[]).alloc(pools::PTA, 0xb, 65);
    script.on(3, NPU1).stacks(&[], &["libx.so(forward_impl+0x1) [0x2]"]).alloc(pools::HAL, 0xc, 64).owned("CANN@HCCL");
    let of = |condition: Condition| -> String {
        let lines = filtered(&script, &[condition]);
        lines.iter().filter_map(|line| line.split(' ').nth(2)).collect()
    };
    let text = str::to_owned;
    for (test, selected) in [
        (Test::Size(64), "ac"),
        (Test::Below(65), "ac"),
        (Test::Above(64), "b"),
        (Test::Owner(text("PTA@kv_cache")), "a"),
        (Test::Owner(text("PTA")), "b"),
        (Test::OwnerHas(text("kv")), "a"),
        (Test::Layer(text("pta")), "ab"),
        (Test::Tid(2), "b"),
        (Test::Pid(3), "c"),
        (Test::Device(NPU1), "c"),
        (Test::StackHas(text("forward")), "bc"),
        (Test::StackHas(text("forward_impl")), "c"),
    ] {
        assert_eq!(of(is(test.clone())), selected, "{test:?}");
        let others: String = "abc".chars().filter(|c| !selected.contains(*c)).collect();
        assert_eq!(of(not(test.clone())), others, "not {test:?}");
    }
    assert_eq!(filtered(&script, &[]).len(), 3);
}

/// An unknown property of a block satisfies no condition, nor its opposite; a known one counts.
#[test]
fn blocks_that_were_not_seen() {
    let mut script = Script::new(1, NPU0);
    script.unknown_free(pools::PTA, 0x1, true).alloc_failed(pools::HAL, 500, (1, 1)).alloc_recovered(
        pools::HAL,
        500,
        1,
    );
    accessed(&mut script, pools::PTA, 0x5, 0);
    script.alloc(pools::HAL, 0xa, 10);
    let EventKind::Alloc(alloc) = script.events()[4].kind else { panic!("an allocation") };
    script.event(EventKind::OutOfMemory(OutOfMemory::Top(alloc.block)));
    let small = ["4: alloc a used 10", "5: top a"];
    assert_eq!(filtered(&script, &[is(Test::Below(11))]), small);
    let large = ["1: failed", "2: recovered"];
    assert_eq!(filtered(&script, &[not(Test::Below(11))]), large);
    assert_eq!(filtered(&script, &[is(Test::Layer("HAL".to_owned()))]), [large, small].concat());
    assert_eq!(filtered(&script, &[is(Test::Layer("PTA".to_owned()))]), ["0: unknown free", "3: access 5"]);
}

/// Filters that name a process or a device exclude those of others; the driver's figures belong to no process.
#[test]
fn other_processes_are_left_out() {
    let mut script = Script::new(1, NPU0);
    script.step(1).usage(9, None).on(2, NPU1).step_start(1).launch();
    assert_eq!(filtered(&script, &[is(Test::Pid(2))]), ["2: usage 9", "3: step 1", "4: launch"]);
    assert_eq!(filtered(&script, &[is(Test::Device(NPU0))]), ["0: step 1", "1: step 1 ends", "2: usage 9"]);
    assert_eq!(filtered(&script, &[not(Test::Device(NPU0))]), ["3: step 1", "4: launch"]);
}

/// A pool's own figures stay with the pool: where all its blocks are selected, and nowhere else.
#[test]
fn figures_of_pools() {
    let mut script = Script::new(1, NPU0);
    script.reported(Some((1000, 4096))).alloc(pools::PTA, 0xa, 100).alloc(pools::PTA, 0xb, 7);
    let figures = |condition: Condition| {
        let selection = Selection { filter: only(&[condition]), window: Window::default() };
        let (events, _) = select(script.events(), &selection);
        let EventKind::Alloc(alloc) = events[0].kind else { panic!("an allocation") };
        (events.len(), alloc.used_bytes, alloc.total_bytes)
    };
    assert_eq!(figures(is(Test::Layer("PTA".to_owned()))), (2, 1000, Some(4096)));
    assert_eq!(figures(is(Test::Below(8))), (1, 7, None));
}

/// Steps 1 and 2; a is freed in between, b and c live on. Seen from 8 to 12, both included.
fn two_steps() -> Script {
    let mut script = Script::new(1, NPU0);
    script.step_start(1).alloc(pools::PTA, 0xa, 100).alloc(pools::PTA, 0xb, 10).usage(5, None).step_end(1);
    script.usage(6, None).step_start(2).alloc(pools::PTA, 0xc, 1).free(pools::PTA, 0xa).launch();
    script.alloc(pools::PTA, 0xd, 1000).free(pools::PTA, 0xb).step_end(2).free(pools::PTA, 0xc).launch();
    script.end(FreeCause::TraceEnd, pools::PTA, 0xd).process_end();
    script
}

/// Before its start, only open steps and live blocks. At its end, the trace ends: nothing is freed later.
#[test]
fn window_in_the_middle() {
    let (seen, end) = windowed(&two_steps(), Some(9), Some(12));
    let expected = [
        "9: back b used 10",
        "9: usage 6",
        "9: step 2",
        "9: back c used 11",
        "9: launch",
        "10: alloc d used 1011",
        "11: Program b used 1001",
        "12: step 2 ends",
        "12: TraceEnd c used 1000",
        "12: TraceEnd d used 0",
    ];
    assert_eq!((seen.as_slice(), end.time_ns), (expected.map(str::to_owned).as_slice(), 12));
}

#[test]
fn windows_with_one_end() {
    let all = brief(two_steps().events());
    assert_eq!(windowed(&two_steps(), Some(0), None).0, all);
    assert_eq!(windowed(&two_steps(), None, Some(100)), (all.clone(), RunEnd { time_ns: 16, ..RunEnd::default() }));
    let (until, end) = windowed(&two_steps(), None, Some(2));
    let expected = [&all[..3], &["2: TraceEnd a used 10".to_owned(), "2: TraceEnd b used 0".to_owned()]].concat();
    assert_eq!((until, end.time_ns), (expected, 2));
    let since = windowed(&two_steps(), Some(14), None).0;
    assert_eq!(since, ["14: usage 6", "14: back d used 1000", "14: launch", "15: TraceEnd d used 0", "16: end"]);
    // After the run there is nothing: the trace's end is the end of every block.
    assert_eq!(windowed(&two_steps(), Some(17), None).0, [""; 0]);
    assert_eq!(windowed(&two_steps(), Some(9), Some(3)).0, [""; 0]);
}

/// The driver's figures before the first event do not begin the run, and are seen in it.
#[test]
fn figures_of_devices_come_first() {
    let mut script = Script::new(1, NPU0);
    script.usage(7, None).launch().launch().launch();
    let window = Window { since: None, until: Some(When::After(Duration::from_nanos(1))) };
    let (events, _) = select(script.events(), &Selection { window, filter: Filter::default() });
    assert_eq!(brief(&events), ["0: usage 7", "1: launch", "2: launch"]);
}

/// Relative times count from the first event of the run, even if the filter leaves that out.
#[test]
fn times_from_the_start() {
    let mut script = Script::new(1, NPU0);
    script.launch().on(2, NPU0).launch().launch().launch();
    let events: Vec<Event> =
        script.events().iter().map(|event| Event { time_ns: event.time_ns + 1000, ..event.clone() }).collect();
    let after = |nanos| Some(When::After(Duration::from_nanos(nanos)));
    let selection =
        Selection { window: Window { since: after(2), until: after(2) }, filter: only(&[is(Test::Pid(2))]) };
    assert_eq!(brief(&select(&events, &selection).0), ["1002: launch"]);
}

/// A free turns out to have failed only after the end of the window: in it, the block was freed, and is not ended twice.
#[test]
fn frees_that_fail_later() {
    let mut script = Script::new(1, NPU0);
    script.alloc(pools::HAL, 0xa, 1).free(pools::HAL, 0xa).restore(pools::HAL, 0xa);
    script.end(FreeCause::TraceEnd, pools::HAL, 0xa);
    assert_eq!(windowed(&script, None, Some(1)).0, ["0: alloc a used 1", "1: Program a used 0"]);
}

/// A process that ends before the window leaves nothing in it; one that takes its number starts from nothing.
#[test]
fn numbers_of_processes_come_back() {
    let mut script = Script::new(1, NPU0);
    script.step_start(1).alloc(pools::HAL, 0xa, 1).end(FreeCause::ProcessEnd, pools::HAL, 0xa).process_end();
    script.alloc(pools::HAL, 0xb, 2).launch();
    assert_eq!(windowed(&script, Some(5), None).0, ["5: back b used 2", "5: launch"]);
    let until = windowed(&script, None, Some(1)).0;
    assert_eq!(until, ["0: step 1", "1: alloc a used 1", "1: TraceEnd a used 0"]);
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Alloc(u64, u64),
    Free(u64),
    Restore(u64),
    Use(u64),
    Step,
    ProcessEnd,
}

fn acts() -> impl Strategy<Value = Vec<(u32, u32, Act)>> {
    let act = prop_oneof![
        4 => (0..4_u64, 1..6_u64).prop_map(|(slot, size)| Act::Alloc(slot, size)),
        3 => (0..4_u64).prop_map(Act::Free),
        1 => (0..4_u64).prop_map(Act::Restore),
        2 => (0..4_u64).prop_map(Act::Use),
        1 => Just(Act::Step),
        1 => Just(Act::ProcessEnd),
    ];
    prop::collection::vec((1..3_u32, 1..3_u32, act), 1..80)
}

/// What two processes do, then the end of the trace.
fn script_of(acts: &[(u32, u32, Act)]) -> Script {
    let mut script = Script::new(1, NPU0);
    let addr = |slot: u64| 0x10 * (slot + 1);
    let end_all = |script: &mut Script, cause| {
        for slot in (0..4).filter(|slot| script.is_live(pools::PTA, addr(*slot))).collect::<Vec<_>>() {
            script.end(cause, pools::PTA, addr(slot));
        }
    };
    let mut steps = 0;
    for &(pid, tid, act) in acts {
        script.on(pid, NPU0).thread(pid * 10 + tid);
        match act {
            Act::Alloc(slot, size) if !script.is_live(pools::PTA, addr(slot)) => {
                script.alloc(pools::PTA, addr(slot), size);
            }
            Act::Free(slot) if script.is_live(pools::PTA, addr(slot)) => drop(script.free(pools::PTA, addr(slot))),
            Act::Restore(slot)
                if !script.is_live(pools::PTA, addr(slot)) && script.was_freed(pools::PTA, addr(slot)) =>
            {
                script.restore(pools::PTA, addr(slot));
            }
            Act::Use(slot) if script.is_live(pools::PTA, addr(slot)) => access(&mut script, pools::PTA, addr(slot)),
            Act::Step => {
                steps += 1;
                script.step(steps);
            }
            Act::ProcessEnd => {
                end_all(&mut script, FreeCause::ProcessEnd);
                script.process_end();
            }
            _ => {}
        }
    }
    for pid in 1..3 {
        script.on(pid, NPU0);
        end_all(&mut script, FreeCause::TraceEnd);
    }
    script
}

/// The block of an event, by process and number.
fn block_of(event: &Event) -> Option<(u32, u64)> {
    let number = match &event.kind {
        EventKind::Alloc(alloc) => alloc.block.allocation_id,
        EventKind::Free(free) => free.block.allocation_id,
        EventKind::Access(access) => access.allocation_id,
        _ => return None,
    };
    Some((event.pid, number))
}

/// Number of the event, and its figure of bytes.
fn sums(events: &[Event]) -> Vec<(u64, Option<u64>)> {
    let used = |event: &Event| match &event.kind {
        EventKind::Alloc(alloc) => Some(alloc.used_bytes),
        EventKind::Free(free) => Some(free.used_bytes),
        _ => None,
    };
    events.iter().map(|event| (event.id, used(event))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// A stream filtered event by event equals one filtered with all blocks known, and its sums are those of a walk
    /// over the rest.
    #[test]
    fn filtering_is_filtering_with_all_blocks_known(acts in acts(), limit in 1..6_u64, tid in 10..30_u32) {
        let script = script_of(&acts);
        let events = script.events();
        // The first event of a block is its allocation.
        let chosen: Vec<(u32, u64)> = events
            .iter()
            .filter_map(|event| match &event.kind {
                EventKind::Alloc(alloc) if !alloc.restored => Some((event, alloc.block)),
                _ => None,
            })
            .filter(|(event, block)| block.size_bytes >= limit && event.tid != tid)
            .map(|(event, block): (&Event, Block)| (event.pid, block.allocation_id))
            .collect();
        let mut used = std::collections::HashMap::<u32, u64>::new();
        let mut expected = Vec::new();
        for event in events.iter().filter(|event| block_of(event).is_none_or(|block| chosen.contains(&block))) {
            let used = used.entry(event.pid).or_default();
            let reported = match &event.kind {
                EventKind::Alloc(alloc) => { *used += alloc.block.size_bytes; Some(*used) }
                EventKind::Free(free) => { *used -= free.block.size_bytes; Some(*used) }
                _ => None,
            };
            expected.push((event.id, reported));
        }
        let filter = only(&[not(Test::Below(limit)), not(Test::Tid(tid))]);
        let mut sieve = Sieve::new(filter);
        let mut seen = Vec::new();
        for event in events {
            sieve.pass(event, &mut |event| seen.push(event.clone()));
        }
        prop_assert_eq!(sums(&seen), expected);
        // All blocks have ended, so nothing is remembered of any.
        prop_assert_eq!(sieve.remembered(), 0);
    }

    /// A window shows the blocks that a walk over the whole run finds live at its beginning, then what happens, and ends every
    /// block once.
    #[test]
    fn windows_are_windows_with_all_known(acts in acts(), since in 0..100_u64, length in 0..100_u64) {
        let script = script_of(&acts);
        let until = since + length;
        let live_at = |time_ns: u64| -> Vec<(u32, u64)> {
            let mut live = Vec::new();
            for event in script.events().iter().filter(|event| event.time_ns < time_ns) {
                match event.kind {
                    EventKind::Alloc(_) => live.extend(block_of(event)),
                    EventKind::Free(_) => live.retain(|block| Some(*block) != block_of(event)),
                    _ => {}
                }
            }
            live
        };
        // Blocks of a process that has ended were ended before; if the run ends before the window, so does everything.
        let window = Window { since: Some(When::At(since)), until: Some(When::At(until)) };
        let (seen, _) = select(script.events(), &Selection { window, filter: Filter::default() });
        let is_held = |event: &&Event| event.time_ns == since && matches!(&event.kind, EventKind::Alloc(alloc) if alloc.restored && alloc.block.alloc_time_ns < since);
        let last = script.events().last().map_or(0, |event| event.time_ns);
        let at_since = script.events().iter().find(|event| event.time_ns == since);
        let restored_now = at_since.filter(|event| matches!(&event.kind, EventKind::Alloc(alloc) if alloc.restored)).and_then(block_of);
        let held: Vec<_> = seen.iter().filter(is_held).filter_map(block_of).filter(|block| Some(*block) != restored_now).collect();
        prop_assert_eq!(held, if since > last { Vec::new() } else { live_at(since) });
        let inside = |event: &&Event| (since..=until).contains(&event.time_ns);
        let expected: Vec<u64> = script.events().iter().filter(inside).map(|event| event.id).collect();
        let of_window = |event: &&Event| script.events()[event.id as usize].time_ns == event.time_ns;
        let really: Vec<u64> = seen.iter().filter(of_window).map(|event| event.id).collect();
        prop_assert_eq!(really, expected);
        let mut live = Vec::new();
        for event in &seen {
            match event.kind {
                EventKind::Alloc(_) => live.extend(block_of(event)),
                EventKind::Free(Free { .. }) => {
                    prop_assert!(live.contains(&block_of(event).expect("a block")));
                    live.retain(|block| Some(*block) != block_of(event));
                }
                _ => {}
            }
        }
        prop_assert!(live.is_empty());
    }
}
