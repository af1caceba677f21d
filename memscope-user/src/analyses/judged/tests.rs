use std::sync::Arc;

use super::*;
use crate::analyses::growth::Growth;
use crate::analyses::judged_leaks;
use crate::analyses::script::{Script, run};
use crate::analyses::select::{Condition, Filter, Selected, Selection, Test};
use crate::analyses::step_leaks::StepLeaks;
use crate::backend::ascend::pools;
use crate::model::{
    AllocFailed, Device, DeviceUsage, FreeCause, LiveSum, Look, Looked, LookedAt, OutOfMemory, ProcessStart, Stack,
    StackEnd, Stacks, System,
};

const PID: u32 = 7;
const NPU0: Device = Device::Npu(0);
const SECOND: u64 = 1_000_000_000;
const MIB: u64 = 1 << 20;

fn place(name: &str) -> Stacks {
    Stacks { python: Some(Stack::keep([name, "train.py(9): main"], StackEnd::Root)), ..Stacks::default() }
}

/// The findings of a run with events at this distance.
#[derive(Default)]
struct Found {
    span: Option<Span>,
    steps: Option<StepLeaks>,
    growth: Option<Growth>,
}

fn judge(script: &Script, apart_ns: u64) -> Found {
    judge_by(judged_leaks(), script, apart_ns)
}

/// The same of blocks larger than this.
fn judge_above(size_bytes: u64, script: &Script, apart_ns: u64) -> Found {
    let conditions = vec![Condition { test: Test::Above(size_bytes), wanted: true }];
    let selection = Selection { filter: Filter { conditions, rules: None }, ..Selection::default() };
    let (selected, _) = Selected::new(&selection, vec![Box::new(judged_leaks())], Vec::new());
    judge_by(selected, script, apart_ns)
}

fn judge_by(analysis: impl Analysis, script: &Script, apart_ns: u64) -> Found {
    let mut events = script.events().to_vec();
    for event in &mut events {
        event.time_ns *= apart_ns;
        match &mut event.kind {
            EventKind::Alloc(alloc) => alloc.block.alloc_time_ns *= apart_ns,
            EventKind::Free(free) => free.block.alloc_time_ns *= apart_ns,
            _ => {}
        }
    }
    let end = RunEnd { time_ns: events.last().map_or(0, |event| event.time_ns), ..RunEnd::default() };
    let mut found = Found::default();
    for finding in run(analysis, &events, &end) {
        match finding {
            Finding::Span(span) => found.span = Some(span),
            Finding::StepLeaks(leaks) => found.steps = Some(leaks),
            Finding::Growth(growth) => found.growth = Some(growth),
            other => panic!("not of leaks: {other:?}"),
        }
    }
    found
}

/// Weights; then steps, each with a temporary block and a `loss`; `kept` is the number of losses live at a time.
fn training(steps: u32, kept: usize) -> (Script, Vec<u64>) {
    let mut script = Script::new(PID, NPU0);
    script.at(place("model.py(3): weights")).alloc(pools::PTA, 0x10_0000, 100 * MIB);
    let mut losses = Vec::new();
    for step in 1..=steps {
        script.step_start(step).at(place("model.py(20): forward")).alloc(pools::PTA, 0x20_0000, MIB);
        let loss = 0x100_0000 + u64::from(step) * 0x1000;
        script.at(place("train.py(7): loss")).alloc(pools::PTA, loss, 512);
        losses.push(loss);
        if losses.len() > kept {
            script.free(pools::PTA, losses.remove(0));
        }
        script.free(pools::PTA, 0x20_0000).step_end(step);
    }
    (script, losses)
}

/// Python empties its modules: everything is freed, at once, then the process ends.
fn exit_in_order(script: &mut Script, losses: &[u64], finalize: bool) {
    if finalize {
        script.event(EventKind::System(System::AclFinalize));
    }
    for loss in losses {
        script.free(pools::PTA, *loss);
    }
    script.free(pools::PTA, 0x10_0000).process_end();
}

/// A server keeps one block each second and lets a large cache expire meanwhile: it works up to its last allocation, however much it frees. It was
/// taken for an exit from the middle on, with half of the blocks.
#[test]
fn a_cache_that_expires_is_no_exit() {
    let mut script = Script::new(PID, NPU0);
    for entry in 0..300 {
        script.at(place("cache.py(4): put")).alloc(pools::PTA, 0x1000_0000 + entry * 0x1000, 4096);
    }
    let mut kept = Vec::new();
    for second in 0..30 {
        let block = 0x100_0000 + second * 0x1000;
        script.at(place("serve.py(9): remember")).alloc(pools::PTA, block, 2048);
        kept.push(block);
        for entry in 0..9 {
            script.free(pools::PTA, 0x1000_0000 + (second * 9 + entry) * 0x1000);
        }
    }
    let last_ns = script.now();
    script.event(EventKind::System(System::PythonEnds));
    for block in kept {
        script.free(pools::PTA, block);
    }
    script.process_end();
    // Ten events a second: the last two seconds, and the frees before them, may belong to the exit.
    let span = judge(&script, 100_000_000).span.expect("an exit");
    assert!(span.until_ns > (last_ns - 30) * 100_000_000, "{span:?}");
    assert!(span.exit.freed_blocks >= 30, "{span:?}");
}

/// A list keeps the loss of each step; Python frees it at its exit. Step 1 is skipped, no step judges the last.
#[test]
fn a_list_that_the_exit_frees_leaks() {
    for finalize in [false, true] {
        let (mut script, losses) = training(40, usize::MAX);
        exit_in_order(&mut script, &losses, finalize);
        let found = judge(&script, 1_000_000);
        let steps = found.steps.expect("steps ended");
        assert_eq!((steps.leaks.len(), steps.unjudged.len(), steps.kept.blocks), (38, 1, 0));
        assert!(steps.leaks.iter().all(|leak| leak.stacks == place("train.py(7): loss") && leak.size_bytes == 512));
        let (blocks, size_bytes) = (41, 100 * MIB + 40 * 512);
        let exit =
            Exit { finalized: finalize, called: None, ended: true, freed_blocks: blocks, freed_bytes: size_bytes };
        let span = found.span.expect("an exit");
        let freed = [ExitFreed { device: NPU0, pool: pools::PTA, blocks, size_bytes, segments: LiveSum::default() }];
        assert_eq!((span.exit, &span.freed[..]), (exit, &freed[..]));
    }
}

/// A handler at the exit copies something: it allocates and frees a block amid Python's frees. The list leaks all the
/// same, and the handler's block is not part of the held memory.
#[test]
fn an_exit_may_allocate_a_little() {
    let (mut script, losses) = training(40, usize::MAX);
    let (first, last) = losses.split_at(20);
    for loss in first {
        script.free(pools::PTA, *loss);
    }
    script.alloc(pools::PTA, 0x30_0000, MIB).free(pools::PTA, 0x30_0000);
    exit_in_order(&mut script, last, false);
    let found = judge(&script, 1_000_000);
    let steps = found.steps.expect("steps ended");
    assert_eq!((steps.leaks.len(), steps.unjudged.len(), steps.kept.blocks), (38, 1, 0));
    let span = found.span.expect("an exit");
    assert_eq!((span.exit.freed_blocks, span.exit.freed_bytes), (41, 100 * MIB + 40 * 512));
    assert_eq!(span.freed.iter().map(|freed| freed.blocks).collect::<Vec<_>>(), [41]);
}

/// A program ends because a request failed: that it failed for good is certain amid the frees of the exit, and is no work.
#[test]
fn a_failure_that_is_certain_late_is_no_work() {
    let (mut script, losses) = training(40, usize::MAX);
    let (first, last) = losses.split_at(20);
    let failed = AllocFailed {
        pool: pools::HAL,
        size_bytes: MIB,
        status: 207_001,
        flags: 0,
        caller: None,
        out_of_memory: true,
        request: 1,
        attempt: 1,
    };
    script.event(EventKind::AllocFailed(failed));
    for loss in first {
        script.free(pools::PTA, *loss);
    }
    script.event(EventKind::OutOfMemory(OutOfMemory::Trigger(failed)));
    exit_in_order(&mut script, last, false);
    let found = judge(&script, 1_000_000);
    assert_eq!(found.steps.expect("steps ended").leaks.len(), 38);
    assert_eq!(found.span.expect("an exit").exit.freed_blocks, 41);
}

/// The tracer came late: most memory freed by the exit is older than the trace. These frees belong to the exit and
/// replace nothing, so the gain of a place until then is a leak; and where they come first, the exit begins with them.
#[test]
fn frees_of_older_blocks_belong_to_the_exit() {
    for older_first in [false, true] {
        let mut script = Script::new(PID, NPU0);
        for number in 0..60_u64 {
            script.at(place("train.py(7): loss")).alloc(pools::PTA, 0x100_0000 + number * 0x1000, 512);
        }
        let older = |script: &mut Script| {
            for number in 0..200 {
                script.unknown_free(pools::PTA, 0x900_0000 + number, true);
            }
        };
        if older_first {
            older(&mut script);
        }
        for number in 0..60_u64 {
            script.free(pools::PTA, 0x100_0000 + number * 0x1000);
        }
        if !older_first {
            older(&mut script);
        }
        script.process_end();
        let found = judge(&script, SECOND);
        let span = found.span.expect("an exit");
        assert_eq!((span.exit.freed_blocks, (span.until_ns - span.start_ns) / SECOND), (60, 60));
        let sites = found.growth.expect("a verdict").sites;
        assert_eq!(sites.iter().map(|site| site.blocks).collect::<Vec<_>>(), [60], "older first: {older_first}");
    }
}

/// A short program is over when the tracer notes its start: that is no work.
#[test]
fn a_start_and_settings_that_are_noted_late_are_no_work() {
    let (mut script, losses) = training(40, usize::MAX);
    for loss in losses {
        script.free(pools::PTA, loss);
    }
    let start = ProcessStart { parent: 1, attached: false, command: "train".into(), pid_within: None };
    script.free(pools::PTA, 0x10_0000).event(EventKind::ProcessStart(start));
    script.event(EventKind::Settings(Arc::from([]))).process_end();
    let found = judge(&script, 1_000);
    assert_eq!(found.span.map(|span| span.exit.freed_blocks), Some(41));
    assert_eq!(found.steps.map(|steps| steps.leaks.len()), Some(38));
}

/// A variable keeps the last loss, or a queue the last two: none of it leaks.
#[test]
fn what_is_replaced_in_each_step_is_kept() {
    for (kept, held) in [(1, 1), (2, 2)] {
        let (mut script, losses) = training(40, kept);
        exit_in_order(&mut script, &losses, false);
        let steps = judge(&script, 1_000_000).steps.expect("steps ended");
        assert_eq!((steps.leaks.len(), steps.unjudged.len()), (0, 0), "{kept}");
        assert_eq!((steps.kept.blocks, steps.kept.size_bytes), (held, held * 512));
    }
}

/// Memory that a program frees before it works on is freed, however much it is.
#[test]
fn a_pool_that_is_emptied_between_epochs_is_no_exit() {
    let (mut script, losses) = training(40, usize::MAX);
    for loss in losses {
        script.free(pools::PTA, loss);
    }
    script.free(pools::PTA, 0x10_0000).alloc(pools::PTA, 0x30_0000, MIB).free(pools::PTA, 0x30_0000).process_end();
    let found = judge(&script, 1_000_000);
    let steps = found.steps.expect("steps ended");
    assert_eq!((steps.leaks.len(), steps.unjudged.len(), steps.kept.blocks), (0, 0, 1));
    assert_eq!(found.span.map(|span| span.exit.freed_blocks), Some(1), "what came last");
}

/// Frees long before the end belong to the work: the server only waited before it was stopped.
#[test]
fn frees_long_before_the_end_are_none_of_the_exit() {
    for (pause, has_exit) in [(1, true), (11, false)] {
        let mut script = Script::new(PID, NPU0);
        script.alloc(pools::PTA, 0x1000, 64).free(pools::PTA, 0x1000);
        for _ in 1..pause {
            script.unknown_free(pools::PTA, 0x9000, false);
        }
        script.process_end();
        assert_eq!(judge(&script, SECOND).span.is_some(), has_exit, "{pause} s");
    }
}

/// The last request's block is freed, then the program is killed with all it holds.
#[test]
fn a_killed_program_has_no_exit() {
    let (mut script, losses) = training(10, usize::MAX);
    script.alloc(pools::PTA, 0x30_0000, MIB).free(pools::PTA, 0x30_0000);
    for loss in &losses {
        script.end(FreeCause::ProcessEnd, pools::PTA, *loss);
    }
    script.end(FreeCause::ProcessEnd, pools::PTA, 0x10_0000).process_end();
    let found = judge(&script, 1_000_000);
    assert!(found.span.is_none());
    assert_eq!(found.steps.expect("steps ended").leaks.len(), 8);
}

/// Where the end is not seen, `aclFinalize` shows the exit; a program that begins again afterwards has not ended.
#[test]
fn finalize_is_enough_unless_the_program_works_on() {
    for works_on in [false, true] {
        let (mut script, losses) = training(10, usize::MAX);
        script.event(EventKind::System(System::AclFinalize));
        for loss in &losses {
            script.free(pools::PTA, *loss);
        }
        if works_on {
            script.event(EventKind::System(System::AclInit)).alloc(pools::PTA, 0x30_0000, MIB);
        }
        let found = judge(&script, 1_000_000);
        assert_eq!(found.span.is_none(), works_on);
        assert_eq!(found.steps.expect("steps ended").leaks.len(), if works_on { 0 } else { 8 });
    }
}

/// A server leaks a block with each request, and frees all in order when it ends.
#[test]
fn a_server_that_ends_in_order_has_grown() {
    let mut script = Script::new(PID, NPU0);
    let mut held = Vec::new();
    for request in 0..200 {
        let leak = 0x100_0000 + request * 0x1000;
        script.at(place("serve.py(5): remember")).alloc(pools::PTA, leak, 4096);
        script.at(place("serve.py(6): answer")).alloc(pools::PTA, 0x20_0000, MIB).free(pools::PTA, 0x20_0000);
        held.push(leak);
    }
    for leak in &held {
        script.free(pools::PTA, *leak);
    }
    script.process_end();
    let found = judge(&script, SECOND / 10);
    let span = found.span.expect("an exit");
    assert_eq!(span.until_ns - span.start_ns, 599 * SECOND / 10, "three events of each request, then the exit");
    let growth = found.growth.expect("judged");
    assert_eq!(growth.span_ns, 599 * SECOND / 10);
    let [site] = &growth.sites[..] else { panic!("{growth:#?}") };
    assert_eq!(site.site.expect("a place").stacks, place("serve.py(5): remember"));
    // The free of the last request's block belongs to the exit too: nothing came between.
    assert_eq!((site.blocks, site.allocations), (200, 200));
}

/// Driver blocks of a pool count once: as the blocks that the pool hands out of them.
#[test]
fn segments_count_once() {
    let mut script = Script::new(PID, NPU0);
    for request in 0..200 {
        let segment = 0x100_0000 + request * 0x10_0000;
        script.at(place("serve.py(5): remember")).alloc(pools::HAL, segment, 0x10_0000);
        script.alloc(pools::PTA, segment, 0x8_0000);
    }
    let growth = judge(&script, SECOND / 10).growth.expect("judged");
    let sites: Vec<_> = growth.sites.iter().map(|site| (site.pool, site.blocks)).collect();
    assert_eq!(sites, [(pools::PTA, 200)]);
}

/// A filter keeps the segments and leaves out the blocks in them: these are still known as segments. The program's own
/// driver blocks are still found.
#[test]
fn segments_are_known_where_a_filter_leaves_out_their_blocks() {
    let mut script = Script::new(PID, NPU0);
    for request in 0..200 {
        let segment = 0x100_0000 + request * 0x10_0000;
        script.at(place("pool")).alloc(pools::HAL, segment, 0x10_0000).alloc(pools::PTA, segment, 0x1000);
        script.at(place("own.c")).alloc(pools::HAL, 0x9000_0000_0000 + segment, 0x8_0000);
    }
    let growth = judge_above(0x4_0000, &script, SECOND / 10).growth.expect("judged");
    let sites: Vec<_> = growth.sites.iter().map(|site| (site.site.expect("a place").stacks, site.blocks)).collect();
    assert_eq!(sites, [(place("own.c"), 200)]);
}

/// Of the blocks that a filter leaves out, the exit is known, but nothing is reported: of 41 blocks 100 MiB of weights
/// are chosen, or nothing.
#[test]
fn exits_are_known_where_a_filter_leaves_out_their_blocks() {
    for (above, chosen) in [(512, vec![(1, 100 * MIB)]), (100 * MIB, Vec::new())] {
        let (mut script, losses) = training(40, usize::MAX);
        exit_in_order(&mut script, &losses, false);
        let found = judge_above(above, &script, 1_000_000);
        assert_eq!(found.steps.expect("steps ended").leaks, []);
        let span = found.span.expect("an exit");
        let freed: Vec<_> = span.freed.iter().map(|freed| (freed.blocks, freed.size_bytes)).collect();
        let of_exit = (span.exit.freed_blocks, span.exit.freed_bytes);
        assert_eq!((of_exit, freed), (chosen.first().copied().unwrap_or_default(), chosen));
    }
}

/// A segment of before the attach is the pool's own, also without a block in it: the exit frees it as such.
#[test]
fn found_segments_are_the_pools_own() {
    let (mut script, losses) = training(40, usize::MAX);
    script.older(pools::HAL, 0x9000_0000, MIB).step(41);
    let (first, last) = losses.split_at(20);
    for loss in first {
        script.free(pools::PTA, *loss);
    }
    script.free(pools::HAL, 0x9000_0000);
    exit_in_order(&mut script, last, false);
    let span = judge(&script, 1_000_000).span.expect("an exit");
    let of_driver = span.freed.iter().find(|freed| freed.pool == pools::HAL).expect("the driver's");
    assert_eq!((of_driver.blocks, of_driver.segments), (0, LiveSum { blocks: 1, size_bytes: MIB }));
    assert_eq!(span.exit.freed_blocks, 41);
}

/// What the exit frees of the host's memory is a sum of its own; the exit is that of the device's blocks.
#[test]
fn memory_of_the_host_that_the_exit_frees_is_counted() {
    let (mut script, losses) = training(40, usize::MAX);
    script.alloc(pools::HOST, 0x7000_0000, 64);
    script.step(41);
    let (first, last) = losses.split_at(20);
    for loss in first {
        script.free(pools::PTA, *loss);
    }
    script.free(pools::HOST, 0x7000_0000);
    exit_in_order(&mut script, last, false);
    let span = judge(&script, 1_000_000).span.expect("an exit");
    let mut freed: Vec<_> = span.freed.iter().map(|freed| (freed.pool, freed.blocks, freed.size_bytes)).collect();
    freed.sort_unstable();
    let mut expected = [(pools::HOST, 1, 64), (pools::PTA, 41, 100 * MIB + 40 * 512)];
    expected.sort_unstable();
    assert_eq!((span.exit.freed_blocks, &freed[..]), (41, &expected[..]));
}

/// Physical memory behind handles is a segment where it is mapped; the program's own is none.
#[test]
fn mapped_segments_count_once() {
    let mut script = Script::new(PID, NPU0);
    for request in 0..200 {
        let (handle, addr) = (request + 1, 0x100_0000 + request * 0x10_0000);
        script.at(place("pool")).create(handle, 0x10_0000).map(addr, 0x10_0000, handle);
        script.alloc(pools::PTA, addr, 0x1000);
        script.at(place("own.c")).alloc(pools::HAL, 0x9000_0000_0000 + addr, 64);
    }
    let growth = judge(&script, SECOND / 10).growth.expect("judged");
    let mut sites: Vec<_> = growth.sites.iter().map(|site| (site.pool, site.blocks)).collect();
    sites.sort_unstable();
    assert_eq!(sites, [(pools::HAL, 200), (pools::PTA, 200)]);
    assert!(growth.sites.iter().any(|site| site.site.expect("a place").stacks == place("own.c")));
}

/// A segment's own end changes nothing any more.
#[test]
fn ends_of_segments_are_not_passed_on() {
    let mut script = Script::new(PID, NPU0);
    script.step(1).step_start(2).alloc(pools::HAL, 0x10_0000, MIB).alloc(pools::PTA, 0x10_0000, 512);
    script.free(pools::PTA, 0x10_0000).free(pools::HAL, 0x10_0000).step_end(2).step(3);
    script.alloc(pools::HAL, 0x10_0000, MIB).step(4).step(5);
    let steps = judge(&script, 1_000_000).steps.expect("steps ended");
    let leaks: Vec<_> = steps.leaks.iter().map(|leak| (leak.pool, leak.step)).collect();
    assert_eq!(leaks, [(pools::HAL, 3)], "the second one is the program's own");
}

/// `exit` is called, and handlers free a third of the held memory, pauses of 5 s apart; the system has the rest. All of
/// it was held. Without the call the third would be freed by work, and 5 s before the call is work as well.
#[test]
fn what_is_freed_behind_the_call_of_exit_was_held() {
    let calls = [(System::Exit, ExitCall::Exit), (System::PythonEnds, ExitCall::PyFinalize)];
    for call in std::iter::once(None).chain(calls.map(Some)) {
        let mut script = Script::new(PID, NPU0);
        for number in 0..60_u64 {
            script.at(place("train.py(7): loss")).alloc(pools::PTA, 0x100_0000 + number * 0x1000, 512);
        }
        script.alloc(pools::PTA, 0x10_0000, MIB).free(pools::PTA, 0x10_0000);
        for _ in 0..3 {
            script.event(EventKind::DeviceUsage(DeviceUsage { total_bytes: 0, used_bytes: 0, processes: None }));
        }
        if let Some((call, _)) = call {
            script.event(EventKind::System(call));
        }
        // What the tracer does itself is no work of the program.
        let outcome = Looked::NotLooked("it exits".into());
        script.event(EventKind::Looked(Arc::new(Look { number: 1, at: LookedAt::Exit, outcome })));
        for number in (0..60_u64).step_by(3) {
            script.free(pools::PTA, 0x100_0000 + number * 0x1000);
        }
        for number in (0..60_u64).filter(|number| number % 3 > 0) {
            script.end(FreeCause::ProcessEnd, pools::PTA, 0x100_0000 + number * 0x1000);
        }
        script.process_end();
        let found = judge(&script, 5 * SECOND);
        let blocks: u64 = found.growth.expect("a verdict").sites.iter().map(|site| site.blocks).sum();
        let Some((_, called)) = call else {
            assert_eq!((found.span, blocks), (None, 0));
            continue;
        };
        let span = found.span.expect("an exit");
        assert_eq!(span.exit.called, Some(called));
        // 62 allocations and frees, three looks at the device.
        assert_eq!((span.exit.freed_blocks, (span.until_ns - span.start_ns) / (5 * SECOND)), (20, 65));
        assert_eq!(blocks, 60);
    }
}

/// Python waits for its threads, which work on: the call does not count then.
#[test]
fn work_behind_the_call_takes_it_back() {
    let mut script = Script::new(PID, NPU0);
    script.alloc(pools::PTA, 0x1000, 64).event(EventKind::System(System::PythonEnds));
    script.alloc(pools::PTA, 0x2000, 64).free(pools::PTA, 0x2000);
    script.end(FreeCause::ProcessEnd, pools::PTA, 0x1000).process_end();
    let span = judge(&script, SECOND).span.expect("it frees as many blocks as it leaves");
    assert_eq!(span.exit.called, None);
}

/// A script deletes what it has and then ends its collection: it still runs, and has freed that itself. In a handler of the exit it does not.
#[test]
fn a_script_that_ends_its_collection_runs() {
    let judged = |in_a_handler: bool| {
        let mut script = Script::new(PID, NPU0);
        script.alloc(pools::PTA, 0x1000, 64);
        if in_a_handler {
            script.event(EventKind::System(System::PythonEnds));
        }
        script.free(pools::PTA, 0x1000).event(EventKind::System(System::TraceStop));
        if !in_a_handler {
            script.event(EventKind::System(System::PythonEnds));
        }
        judge(script.process_end(), 1000).span.map(|span| (span.exit.freed_blocks, span.exit.freed_bytes))
    };
    assert_eq!((judged(false), judged(true)), (None, Some((1, 64))));
}
