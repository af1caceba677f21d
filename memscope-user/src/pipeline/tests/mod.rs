use std::fmt::Write;
use std::sync::mpsc::{self, Receiver, Sender};

use proptest::prelude::*;

use super::*;
use crate::analyses::{Analysis, Observer};
use crate::backend::ascend::pools;
use crate::capture::{CaptureHeader, Ending, Writer, WriterOptions};
use crate::hash::{HashMap, HashSet};
use crate::model::{
    Access, Alloc, AllocApi, AllocFailed, Asked, BlockReturned, Device, Event, EventKind, Free, HolderPath, Kept,
    Looked, Mark, Module, Name, Op, OutOfMemory, PageType, PlaceLook, Pool, PoolRefused, PoolSet, Region, RegionKind,
    StreamUse,
};
use crate::sinks::Sink;
use crate::testing::{HOST, Random, Who, at, device, main, rows, variety};

mod atb;
mod backend;
mod domains;
mod found;
mod looks;
mod memory;
mod oom;
mod ops;
mod pool;
mod reduced;
mod script;
mod stacks;

/// Sends all it sees.
struct Tap(Sender<Event>);

impl Observer for Tap {
    fn observe(&mut self, event: &Event) {
        self.0.send(event.clone()).expect("a listener");
    }
}

fn config() -> PipelineConfig {
    let kept = Some(Kept::process());
    PipelineConfig { rows: rows(), start_mono_ns: 0, start_real_ns: 1000, kept, ..PipelineConfig::default() }
}

/// A pipeline, what its analyses see, and what its sinks get.
fn tapped(config: PipelineConfig) -> (Pipeline, Receiver<Event>, Receiver<Event>) {
    let ((seen, seen_events), (written, written_events)) = (mpsc::channel(), mpsc::channel());
    let audience =
        Audience { readers: vec![Box::new(Tap(written))], observers: vec![Box::new(Tap(seen))], ..Audience::default() };
    (Pipeline::new(config, audience), seen_events, written_events)
}

/// All events that `records` lead to.
fn events(records: &[Vec<u8>]) -> Vec<Event> {
    let (mut pipeline, seen, _written) = tapped(config());
    pipeline.feed(&records.concat()).expect("fed");
    drop(pipeline.finish(&[]));
    seen.try_iter().collect()
}

/// An event in one line, without its id.
fn line(event: &Event) -> String {
    let device = match event.device {
        Device::Npu(number) => format!("npu{number}"),
        Device::Cpu => "cpu".to_owned(),
        Device::None => "-".to_owned(),
    };
    let mut line = format!("{} {} {device} ", event.time_ns - 1000, event.pid);
    match &event.kind {
        EventKind::Alloc(Alloc { block, used_bytes, restored, promoted, .. }) => write!(
            line,
            "{} {:x}+{} used {used_bytes} step {}",
            match (restored, promoted) {
                (true, _) => "restored",
                (_, true) => "promoted",
                _ if block.found => "found",
                _ => "alloc",
            },
            block.addr,
            block.size_bytes,
            block.step
        ),
        EventKind::Free(Free { block, used_bytes, cause, .. }) => {
            write!(line, "free {:x}+{} used {used_bytes} {cause:?}", block.addr, block.size_bytes)
        }
        EventKind::UnknownFree(free) if free.refused => write!(line, "unknown free {:x} refused", free.addr),
        EventKind::UnknownFree(free) => write!(line, "unknown free {:x} older {}", free.addr, free.maybe_older),
        EventKind::AllocFailed(AllocFailed { size_bytes, status, request, attempt, out_of_memory, caller, .. }) => {
            let what = if *out_of_memory { "oom" } else { "refused" };
            let caller = caller.map_or("-", Name::as_str);
            write!(line, "failed {size_bytes} status {status} {what} request {request}.{attempt} {caller}")
        }
        EventKind::AllocRecovered(recovered) => {
            write!(line, "recovered request {} after {}", recovered.request, recovered.failed_attempts)
        }
        EventKind::CacheEmptied => write!(line, "cache emptied"),
        EventKind::StreamUse(StreamUse { pool, allocation_id, addr }) => {
            write!(line, "stream uses {pool:?} {allocation_id} at {addr:#x}")
        }
        EventKind::UsesLeftOut => write!(line, "uses left out"),
        EventKind::DeviceMemory(memory) => write!(line, "device {} free {}", memory.total_bytes, memory.free_bytes),
        EventKind::PoolSet(PoolSet::Settings { text }) => write!(line, "settings {text}"),
        EventKind::PoolSet(PoolSet::Fraction(fraction)) => write!(line, "fraction {}", fraction.value()),
        EventKind::OwnPool(own) => write!(line, "own pool {own:?}"),
        EventKind::Graph(graph) => write!(line, "graph {:x} {:?}", graph.handle, graph.change),
        EventKind::PoolRefused(refused) => write!(line, "pool refused {}", refused.size_bytes),
        EventKind::BlockReturned(BlockReturned { addr, size_bytes, allocation_id, active_bytes, .. }) => {
            write!(line, "returned {addr:x}+{size_bytes} block {allocation_id:?} active {active_bytes}")
        }
        EventKind::Region(Region { kind, begins, addr, size_bytes, live_bytes, .. }) => {
            let change = if *begins { "begins" } else { "ends" };
            write!(line, "{kind:?} {change} {addr:x}+{size_bytes} live {live_bytes}")
        }
        EventKind::ProbeDisabled { symbol } => write!(line, "disabled {symbol}"),
        EventKind::Launch(launch) => {
            write!(line, "launch {} on {:?}", launch.name, launch.stream_id)
        }
        EventKind::Op(Op { phase, name, .. }) => write!(line, "op {phase:?} {name}"),
        EventKind::Access(Access { kind, op, allocation_id, addr, size_bytes, dtype, format, shape, .. }) => {
            let dtype = [Some(*dtype), *format].into_iter().flatten().collect::<Vec<_>>().join(" ");
            write!(line, "{kind:?} {op} block {allocation_id} {addr:x}+{size_bytes} {dtype} {shape:?}")
        }
        EventKind::Mark(mark) => write!(line, "{}", marked(mark)),
        EventKind::DomainMark { domain, mark } => write!(line, "{domain}: {}", marked(mark)),
        EventKind::AtbOp(op) => {
            let what = if op.begins { "begins" } else { "ends" };
            write!(line, "{} {what} workspace {:x}+{}", op.name, op.workspace_addr, op.workspace_bytes)
        }
        EventKind::StepStart { step } => write!(line, "step start {step}"),
        EventKind::StepEnd { step } => write!(line, "step end {step}"),
        EventKind::System(system) => write!(line, "{system:?}"),
        EventKind::Step { step } => write!(line, "step() {step}"),
        EventKind::Snapshot(snapshot) => write!(line, "{snapshot:?}"),
        EventKind::NamedRange { name, start_ns, .. } => write!(line, "range {name} since {start_ns:?}"),
        EventKind::StepsRefused => write!(line, "steps refused"),
        EventKind::Unmet(unmet) => write!(line, "unmet {} ({})", unmet.settings, unmet.options),
        EventKind::DeviceUsage(usage) => write!(line, "usage {} of {}", usage.used_bytes, usage.total_bytes),
        EventKind::ProcessStart(start) => write!(line, "process {}", start.command),
        EventKind::OutOfMemory(OutOfMemory::Trigger(failed)) => write!(line, "out of memory {}", failed.size_bytes),
        EventKind::OutOfMemory(OutOfMemory::Recent(block)) => {
            write!(line, "recent {:x}+{}", block.addr, block.size_bytes)
        }
        EventKind::OutOfMemory(OutOfMemory::Top(block)) => write!(line, "top {:x}+{}", block.addr, block.size_bytes),
        EventKind::Settings(settings) => write!(line, "settings {}", settings.len()),
        EventKind::Looked(look) => match &look.outcome {
            Looked::NotLooked(why) => write!(line, "not looked {} {:?}: {why}", look.number, look.at),
            Looked::Found(found) => write!(line, "purposes of {} found", found.blocks.len()),
            Looked::Place(place) => write!(line, "looked {} {:?} {}", look.number, look.at, looked(place)),
        },
        EventKind::PoolsLeftOut => write!(line, "pools left out"),
        EventKind::ProcessEnd => write!(line, "process end"),
    }
    .expect("written");
    line
}

fn marked(mark: &Mark) -> String {
    let text = |text: &Option<Arc<str>>| text.as_deref().unwrap_or("null").to_owned();
    match mark {
        Mark::Point { text: name } => format!("mark {}", text(name)),
        Mark::RangeStart { text: name, range_id } => format!("start {} {range_id}", text(name)),
        Mark::RangeEnd { range_id, .. } => format!("end {range_id:?}"),
    }
}

fn looked(place: &PlaceLook) -> String {
    let PlaceLook { block, looked_at_blocks, holders, garbage_blocks, unknown_blocks, .. } = place;
    let of =
        |holder: &HolderPath| format!("{}{}×{}", if holder.is_sure { "" } else { "?" }, holder.path, holder.blocks);
    let holders = holders.iter().map(of).collect::<Vec<_>>().join(", ");
    format!("{:x}: {holders}; ring {garbage_blocks} none {unknown_blocks} of {looked_at_blocks}", block.addr)
}

/// Without what is said of failed requests, which tests of their own look at (`oom`).
fn lines(records: &[Vec<u8>]) -> Vec<String> {
    let all = events(records);
    all.iter().filter(|event| !matches!(event.kind, EventKind::OutOfMemory(_))).map(line).collect()
}

/// Checks the events of `records`, line by line.
#[track_caller]
fn check(records: &[Vec<u8>], expected: &[&str]) {
    assert_eq!(lines(records), expected);
}

/// The same, without the blocks that the end of the trace ends.
#[track_caller]
fn check_before_end(records: &[Vec<u8>], expected: &[&str]) {
    let mut lines = lines(records);
    lines.retain(|line| !line.ends_with("TraceEnd"));
    assert_eq!(lines, expected);
}

const NPU: u64 = device(0);

/// A block lives from its allocation to its free, and pools add up apart.
#[test]
fn blocks_live_and_die() {
    check(
        &[
            main(1).alloc(0x10, 64, device(3)),
            main(2).alloc(0x20, 32, device(3)),
            main(3).alloc(0x30, 8, HOST),
            main(4).free(0x10),
            main(5).free(0x30),
            main(6).free(0x20),
        ],
        &[
            "1 7 npu3 alloc 10+64 used 64 step 0",
            "2 7 npu3 alloc 20+32 used 96 step 0",
            "3 7 cpu alloc 30+8 used 8 step 0",
            "4 7 npu3 free 10+64 used 32 Program",
            "5 7 cpu free 30+8 used 0 Program",
            "6 7 npu3 free 20+32 used 0 Program",
        ],
    );
}

/// The flag word and the properties of a handle have the place, the user and the page size.
#[test]
fn flags_and_properties_are_read() {
    let events = events(&[
        main(1).alloc(0x10, 64, 3 << 56 | 1 << 17 | 1 << 10 | 5),
        main(2).alloc(0x20, 64, 7 << 56 | 1 << 31 | 1023),
        main(3).create(0x30, 64, (1, 6), (33, 2)),
        main(4).create(0x40, 64, (2, 1), (999, 1)),
    ]);
    let blocks: Vec<_> = events
        .iter()
        .filter_map(|event| match event.kind {
            EventKind::Alloc(Alloc { block: b, .. }) => {
                Some((b.pool, b.device, b.module_id.map(Module::id), b.page, b.api, b.allocation_id, b.alloc_id))
            }
            _ => None,
        })
        .collect();
    assert_eq!(
        blocks,
        [
            (pools::HAL, Device::Npu(5), Some(3), PageType::Huge, AllocApi::Alloc, 1, 0),
            (pools::HAL, Device::Npu(1023), Some(7), PageType::Giant, AllocApi::Alloc, 2, 1),
            (pools::HAL, Device::Npu(6), Some(33), PageType::Giant, AllocApi::Create, 3, 2),
            (pools::HOST, Device::Cpu, None, PageType::Huge, AllocApi::Create, 4, 3),
        ]
    );
}

/// Spaces of the flag word (ascend-abi §2.1): SVM, device and DVPP are memory of the NPU, three are the host's; those
/// that only take addresses, and those without a meaning, are no memory, and their frees are not unknown ones.
#[test]
fn spaces_that_are_no_memory_are_no_blocks() {
    const APP: u64 = 33 << 56;
    let records: Vec<Vec<u8>> = (0..16)
        .flat_map(|space| {
            let (who, addr) = (main(10 * space + 1), 0x1000 * (space + 1));
            [who.alloc(addr, 64, APP | space << 10 | 5), main(10 * space + 2).free(addr)]
        })
        .collect();
    let events = events(&records);
    let mut blocks = [(Device::None, 0); 16];
    for event in &events {
        match &event.kind {
            EventKind::Alloc(alloc) => blocks[(alloc.block.addr / 0x1000 - 1) as usize].0 = alloc.block.device,
            EventKind::Free(free) => blocks[(free.block.addr / 0x1000 - 1) as usize].1 += 1,
            EventKind::Region(region) => assert_eq!((region.kind, region.size_bytes), (RegionKind::Reservation, 64)),
            EventKind::UnknownFree(free) => panic!("{free:?}"),
            _ => {}
        }
    }
    let (npu, cpu, none) = ((Device::Npu(5), 1), (Device::Cpu, 1), (Device::None, 0));
    assert_eq!(blocks[..8], [npu, npu, cpu, npu, cpu, none, cpu, none]);
    assert_eq!(blocks[8..], [none; 8]);
    let last = events.iter().rev().find_map(|event| match &event.kind {
        EventKind::Region(region) => Some((region.begins, region.live_bytes)),
        _ => None,
    });
    assert_eq!(last, Some((false, 0)));
}

/// If the level is not `kernel`, blocks are of kernel 0, as in msMemScope's leak lines, whatever launches are seen;
/// else they have the number of launches before them.
#[test]
fn launches_are_counted_at_the_level_of_kernels() {
    for (uncounted_launches, expected) in [(false, [0, 2]), (true, [0, 0])] {
        let (mut pipeline, seen, _written) = tapped(PipelineConfig { uncounted_launches, ..config() });
        let records =
            [main(1).alloc(0x10, 1, NPU), main(2).launch(5, 6), main(3).launch(5, 6), main(4).alloc(0x20, 1, NPU)];
        pipeline.feed(&records.concat()).expect("written");
        drop(pipeline.finish(&[]));
        let found: Vec<u64> = seen
            .try_iter()
            .filter_map(|event| match event.kind {
                EventKind::Alloc(alloc) => Some(alloc.block.kernel_index),
                _ => None,
            })
            .collect();
        assert_eq!(found, expected, "{uncounted_launches}");
    }
}

/// The same address again without a free in between: the old block ends first, and its bytes with it.
#[test]
fn reused_address_replaces() {
    check(
        &[main(1).alloc(0x10, 64, NPU), main(2).alloc(0x10, 8, NPU), main(3).free(0x10)],
        &[
            "1 7 npu0 alloc 10+64 used 64 step 0",
            "2 7 npu0 free 10+64 used 0 Replaced",
            "2 7 npu0 alloc 10+8 used 8 step 0",
            "3 7 npu0 free 10+8 used 0 Program",
        ],
    );
}

/// An address that one thread frees and another gets at once stays in order, in whichever order their records come.
#[test]
fn reuse_across_threads() {
    check(
        &[
            at(1, 7, 1).alloc(0x10, 64, NPU),
            at(3, 7, 2).alloc(0x10, 8, NPU),
            at(2, 7, 1).free(0x10),
            at(4, 7, 2).free(0x10),
        ],
        &[
            "1 7 npu0 alloc 10+64 used 64 step 0",
            "2 7 npu0 free 10+64 used 0 Program",
            "3 7 npu0 alloc 10+8 used 8 step 0",
            "4 7 npu0 free 10+8 used 0 Program",
        ],
    );
}

/// A free that fails while it is held has not happened.
#[test]
fn failing_free_in_the_window() {
    check(
        &[main(1).alloc(0x10, 64, NPU), main(2).free(0x10), main(3).free_failed(0x10), main(9).free(0x10)],
        &["1 7 npu0 alloc 10+64 used 64 step 0", "9 7 npu0 free 10+64 used 0 Program"],
    );
}

/// A free that fails after it has left is undone, with the same block.
#[test]
fn failing_free_after_the_window() {
    let watermark = |mono_ns| main(0).note(&Note::Watermark { mono_ns });
    check(
        &[
            main(1).alloc(0x10, 64, NPU),
            main(2).free(0x10),
            watermark(HOLD_NS + 3),
            main(HOLD_NS + 10).free_failed(0x10),
            main(HOLD_NS + 11).free(0x10),
        ],
        &[
            "1 7 npu0 alloc 10+64 used 64 step 0",
            "2 7 npu0 free 10+64 used 0 Program",
            "5000010 7 npu0 restored 10+64 used 64 step 0",
            "5000011 7 npu0 free 10+64 used 0 Program",
        ],
    );
}

/// A free of an unknown block that fails after it has left, as of a thread that had to wait for its processor, is
/// undone, too; once.
#[test]
fn failing_unknown_free_after_the_window() {
    let watermark = |mono_ns| main(0).note(&Note::Watermark { mono_ns });
    check(
        &[
            main(2).free(0x10),
            watermark(HOLD_NS + 3),
            main(HOLD_NS + 10).free_failed(0x10),
            main(HOLD_NS + 11).free_failed(0x10),
        ],
        &["2 7 - unknown free 10 older false", "5000010 7 - unknown free 10 refused"],
    );
}

/// Freeing a null pointer is nothing, and its refusal undoes nothing.
#[test]
fn null_is_no_block() {
    check(
        &[main(1).alloc(0x10, 64, NPU), main(2).free(0x10), main(3).free(0), main(4).free_failed(0)],
        &["1 7 npu0 alloc 10+64 used 64 step 0", "2 7 npu0 free 10+64 used 0 Program"],
    );
}

/// Frees of unknown blocks, and failed allocations.
#[test]
fn odd_ends() {
    check(
        &[
            main(1).free(0x99),
            at(2, 8, 8).start(true, None),
            at(3, 8, 8).free(0x99),
            main(4).alloc_failed(6, 64, device(2)),
        ],
        &[
            "1 7 - unknown free 99 older false",
            "2 8 - process prog",
            "3 8 - unknown free 99 older true",
            "4 7 npu2 failed 64 status 6 oom request 1.1 halMemAlloc",
        ],
    );
}

/// Blocks live when a process ends are freed in the order of allocation, then the process ends.
#[test]
fn process_end_frees() {
    check(
        &[main(1).alloc(0x30, 1, NPU), main(2).alloc(0x10, 2, NPU), main(3).alloc(0x20, 4, NPU), main(4).end()],
        &[
            "1 7 npu0 alloc 30+1 used 1 step 0",
            "2 7 npu0 alloc 10+2 used 3 step 0",
            "3 7 npu0 alloc 20+4 used 7 step 0",
            "4 7 npu0 free 30+1 used 6 ProcessEnd",
            "4 7 npu0 free 10+2 used 4 ProcessEnd",
            "4 7 npu0 free 20+4 used 0 ProcessEnd",
            "4 7 - process end",
        ],
    );
}

/// Blocks live when the trace ends are freed process by process.
#[test]
fn trace_end_frees() {
    check(
        &[
            at(1, 9, 9).alloc(0x30, 1, NPU),
            at(2, 7, 7).alloc(0x30, 2, NPU),
            main(5).note(&Note::End { reason: String::new() }),
        ],
        &[
            "1 9 npu0 alloc 30+1 used 1 step 0",
            "2 7 npu0 alloc 30+2 used 2 step 0",
            "5 7 npu0 free 30+2 used 0 TraceEnd",
            "5 9 npu0 free 30+1 used 0 TraceEnd",
        ],
    );
}

/// Ranges nest, with and without ids; our own ids follow the order of starts.
#[test]
fn ranges_match() {
    check(
        &[
            main(1).range_start("a"),
            main(2).range_start("b"),
            main(3).range_id(900),
            main(4).range_start("c"),
            main(5).range_end(0),
            at(6, 7, 8).range_end(900),
            main(7).range_end(0),
            main(8).range_end(0),
            main(9).range_end(5),
            main(10).null_mark(),
        ],
        &[
            "1 7 - start a 1",
            "2 7 - start b 2",
            "4 7 - start c 3",
            "5 7 - end Some(3)",
            "6 7 - end Some(2)",
            "7 7 - end Some(1)",
            "8 7 - end None",
            "9 7 - end None",
            "10 7 - mark null",
        ],
    );
}

/// A step ends with its own range, whatever ranges end inside of it.
#[test]
fn steps_with_nested_ranges() {
    check(
        &[
            main(1).set_device(0),
            main(2).range_start("step start"),
            main(3).range_start("forward"),
            main(4).alloc(0x10, 1, NPU),
            main(5).range_end(0),
            main(6).alloc(0x20, 1, NPU),
            main(7).range_end(0),
            main(8).alloc(0x30, 1, NPU),
            main(9).range_start("step start"),
            main(10).alloc(0x40, 1, NPU),
            main(11).alloc(0x50, 1, device(1)),
        ][..11],
        &[
            "2 7 npu0 start step start 1",
            "2 7 npu0 step start 1",
            "3 7 npu0 start forward 2",
            "4 7 npu0 alloc 10+1 used 1 step 1",
            "5 7 npu0 end Some(2)",
            "6 7 npu0 alloc 20+1 used 2 step 1",
            "7 7 npu0 end Some(1)",
            "7 7 npu0 step end 1",
            "8 7 npu0 alloc 30+1 used 3 step 1",
            "9 7 npu0 start step start 3",
            "9 7 npu0 step start 2",
            "10 7 npu0 alloc 40+1 used 4 step 2",
            "11 7 npu1 alloc 50+1 used 1 step 0",
            "11 7 npu0 free 10+1 used 3 TraceEnd",
            "11 7 npu0 free 20+1 used 2 TraceEnd",
            "11 7 npu0 free 30+1 used 1 TraceEnd",
            "11 7 npu0 free 40+1 used 0 TraceEnd",
            "11 7 npu1 free 50+1 used 0 TraceEnd",
        ],
    );
}

/// A step of a thread without a device is a step of every device with blocks.
#[test]
fn step_without_device() {
    check(
        &[
            main(1).alloc(0x10, 1, device(1)),
            main(2).range_start("step start"),
            main(3).alloc(0x20, 1, device(0)),
            main(4).range_end(0),
            main(5).end(),
        ],
        &[
            "1 7 npu1 alloc 10+1 used 1 step 0",
            "2 7 - start step start 1",
            "2 7 npu1 step start 1",
            "3 7 npu0 alloc 20+1 used 1 step 1",
            "4 7 - end Some(1)",
            "4 7 npu0 step end 1",
            "4 7 npu1 step end 1",
            "5 7 npu1 free 10+1 used 0 ProcessEnd",
            "5 7 npu0 free 20+1 used 0 ProcessEnd",
            "5 7 - process end",
        ],
    );
}

/// A forked child has no device memory, but knows the kernels.
#[test]
fn fork_starts_empty() {
    check(
        &[
            main(1).alloc(0x10, 1, NPU),
            main(2).kernel_name(0x77, "add"),
            main(3).fork(9),
            at(4, 9, 9).launch(0x77, 0),
            at(5, 9, 9).free(0x10),
            at(6, 9, 9).kernel_name(0x78, "mul"),
            main(7).launch(0x78, 0),
            main(8).free(0x10),
        ],
        &[
            "1 7 npu0 alloc 10+1 used 1 step 0",
            "4 9 - launch add on None",
            "5 9 - unknown free 10 older false",
            "7 7 - launch 0x78 on None",
            "8 7 npu0 free 10+1 used 0 Program",
        ],
    );
}

/// Another program has no blocks and no names; the numbers of its events continue.
#[test]
fn exec_resets() {
    let records = [
        main(1).kernel_name(0x77, "add"),
        main(2).alloc(0x10, 1, NPU),
        main(3).exec(),
        main(4).launch(0x77, 0),
        main(5).alloc(0x10, 2, NPU),
    ];
    check(
        &records,
        &[
            "2 7 npu0 alloc 10+1 used 1 step 0",
            "3 7 npu0 free 10+1 used 0 ProcessEnd",
            "4 7 - launch 0x77 on None",
            "5 7 npu0 alloc 10+2 used 2 step 0",
            "5 7 npu0 free 10+2 used 0 TraceEnd",
        ],
    );
    assert_eq!(events(&records).iter().map(|event| event.id).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
}

/// The program's numbers of devices go through its list, the driver's do not.
#[test]
fn visible_devices() {
    check(
        &[
            main(1).start(false, Some("4,5")),
            main(2).set_device(1),
            main(3).launch(1, 0),
            main(4).alloc(0x10, 1, device(1)),
            main(5).free(0x10),
            at(6, 8, 8).start(false, Some("4, 5")),
            at(7, 8, 8).set_device(1),
            at(8, 8, 8).launch(1, 0),
        ],
        &[
            "1 7 - process prog",
            "3 7 npu5 launch 0x1 on None",
            "4 7 npu1 alloc 10+1 used 1 step 0",
            "5 7 npu1 free 10+1 used 0 Program",
            "6 8 - process prog",
            "8 8 npu1 launch 0x1 on None",
        ],
    );
}

/// In a process that was running before, a thread without a device has the process's only one.
#[test]
fn only_device_of_an_older_process() {
    check(
        &[
            main(1).start(true, None),
            main(2).launch(1, 0),
            main(3).alloc(0x10, 1, device(2)),
            main(4).launch(1, 0),
            at(5, 7, 8).set_device(3),
            main(6).launch(1, 0),
            at(7, 7, 8).launch(1, 0),
            main(8).free(0x10),
        ],
        &[
            "1 7 - process prog",
            "2 7 - launch 0x1 on None",
            "3 7 npu2 alloc 10+1 used 1 step 0",
            "4 7 npu2 launch 0x1 on None",
            "6 7 - launch 0x1 on None",
            "7 7 npu3 launch 0x1 on None",
            "8 7 npu2 free 10+1 used 0 Program",
        ],
    );
}

/// Stream numbers and names in the call itself; ACL's life; a failed call has no effect.
#[test]
fn names_streams_and_system() {
    check(
        &[
            main(1).returned("aclInit", 0, &[]),
            main(2).returned("rtGetStreamId", 0, &[0xabc, 12]),
            main(3).launch(0x77, 0xabc),
            main(4).call(memscope_common::Kind::Enter, "rtKernelLaunchFwk", 0, &[], Some(b"topk")),
            main(5).returned("aclrtSetDevice", 5, &[1]),
            main(6).launch(0x77, 0),
            main(7).entered("aclFinalize", &[]),
        ],
        &[
            "1 7 - AclInit",
            "3 7 - launch 0x77 on Some(12)",
            "4 7 - launch topk on None",
            "6 7 - launch 0x77 on None",
            "7 7 - AclFinalize",
        ],
    );
}

/// A text with a lost end keeps its place, and is marked as cut.
#[test]
fn lost_text_part() {
    let long = main(1).mark(&"x".repeat(130));
    let cut = long[..long.len() - 35].to_vec();
    check(&[cut, main(2).mark("b")], &[&format!("1 7 - mark {}…", "x".repeat(127)), "2 7 - mark b"]);
}

/// Per-CPU streams, fed in turn, give the same events as one ordered stream.
#[test]
fn per_cpu_streams() {
    let ordered: Vec<_> = (0..300_u64)
        .map(|n| {
            if n % 2 == 0 {
                at(n, 7, 1).alloc(0x1000 + n / 2 % 7, 1, NPU)
            } else {
                at(n, 7, 1).free(0x1000 + n / 2 % 7)
            }
        })
        .collect();
    let streams: Vec<_> = (0..3).flat_map(|cpu| ordered.iter().skip(cpu).step_by(3).cloned()).collect();
    assert_eq!(events(&streams), events(&ordered));
}

/// A wall clock that is set back does not turn time around; a late record does not either.
#[test]
fn time_never_runs_backwards() {
    let clock = |mono_ns, real_ns| main(mono_ns).note(&Note::Clock { mono_ns, real_ns });
    let watermark = |mono_ns| main(0).note(&Note::Watermark { mono_ns });
    let times: Vec<_> = events(&[
        main(10).launch(1, 0),
        clock(20, 1500),
        main(30).launch(1, 0),
        clock(40, 600),
        main(50).launch(1, 0),
        watermark(HOLD_NS + 60),
        main(45).launch(1, 0),
    ])
    .iter()
    .map(|event| event.time_ns)
    .collect();
    assert_eq!(times, [1010, 1510, 1530, 1530]);
}

/// Counters of both sides become lines.
#[test]
fn losses_are_reported() {
    let (mut pipeline, _seen, _written) = tapped(config());
    let mut unknown = main(1).free(1);
    unknown[16] = 99;
    let mut faulted = main(1).alloc(0x10, 64, NPU);
    faulted[33] = 1;
    let row = crate::testing::row("halMemAlloc");
    let losses = Note::Losses { by: vec![LossCount { row, reason: 0, count: 3 }] };
    let records = [unknown, faulted, main(2).note(&losses), vec![1, 2, 3]].concat();
    pipeline.feed(&records).expect("fed");
    let outcome = pipeline.finish(&[]);
    let lines: Vec<_> = outcome.end.losses.iter().map(|line| (line.reason.as_str(), line.count)).collect();
    assert_eq!(lines, [("ring full", 3), ("not decodable", 1), ("unknown kind", 1), ("arguments not usable", 1)]);
    assert_eq!((outcome.end.lost, outcome.records), (3, 3));
}

/// Notes alone give losses and the end of a trace; its calls are not reported.
#[test]
fn notes_alone_tell_losses_and_the_end() {
    let (mut pipeline, seen, written) = tapped(config());
    let row = crate::testing::row("halMemAlloc");
    let losses = Note::Losses { by: vec![LossCount { row, reason: 0, count: 3 }] };
    let mut unknown = main(1).free(1);
    unknown[16] = 99;
    let records = [
        unknown,
        main(1).alloc(0x10, 64, NPU),
        main(2).note(&losses),
        main(3).note(&Note::End { reason: "over".into() }),
    ];
    pipeline.feed_notes(&records.concat()).expect("fed");
    let outcome = pipeline.finish(&[]);
    let lines: Vec<_> = outcome.end.losses.iter().map(|line| (line.reason.as_str(), line.count)).collect();
    assert_eq!((lines, outcome.end.lost, outcome.end_reason.as_deref()), (vec![("ring full", 3)], 3, Some("over")));
    assert_eq!(seen.iter().count() + written.iter().count(), 0);
}

/// Only requested events are written; a block's end goes with its beginning.
#[test]
fn filter() {
    let records = [
        main(1).set_device(0),
        main(2).alloc(0x10, 1, NPU),
        main(3).range_start("step start"),
        main(4).alloc(0x20, 1, NPU),
        main(5).alloc(0x30, 1, device(1)),
        main(6).alloc(0x40, 1, HOST),
        main(7).free(0x10),
        main(8).launch(1, 0),
        main(9).range_end(0),
        main(10).mark("out"),
        main(11).free(0x20),
    ]
    .concat();
    let written = |dump: DumpFilter| {
        let (mut pipeline, _seen, written) = tapped(PipelineConfig { dump, ..config() });
        pipeline.feed(&records).expect("fed");
        drop(pipeline.finish(&[]));
        written.try_iter().map(|event| event.time_ns - 1000).collect::<Vec<_>>()
    };
    let only = |numbers: &[u32], cpu| DeviceFilter { npus: Npus::Only(numbers.to_vec()), cpu };
    let all =
        DumpFilter { launch: true, devices: DeviceFilter { npus: Npus::All, cpu: true }, ..DumpFilter::default() };
    assert_eq!(written(all.clone()), [2, 3, 3, 4, 5, 6, 7, 8, 9, 9, 10, 11, 11, 11]);
    assert_eq!(written(DumpFilter::default()), [2, 3, 3, 4, 5, 7, 9, 9, 10, 11, 11]);
    assert_eq!(written(DumpFilter { alloc: false, ..all.clone() }), [3, 3, 7, 8, 9, 9, 10, 11, 11, 11]);
    assert_eq!(written(DumpFilter { free: false, ..all.clone() }), [2, 3, 3, 4, 5, 6, 8, 9, 9, 10]);
    assert_eq!(written(DumpFilter { devices: only(&[1], false), ..all.clone() }), [5, 11]);
    assert_eq!(written(DumpFilter { devices: only(&[], true), ..all.clone() }), [6, 11]);
    assert_eq!(written(DumpFilter { steps: vec![1], ..all.clone() }), [3, 3, 4, 5, 6, 8, 9, 9, 11, 11, 11]);
    assert_eq!(written(DumpFilter { steps: vec![2], ..all }), [0; 0]);
}

/// A failing sink is reported once per cause, and its rows are counted; the others continue.
#[test]
fn failing_sink_is_reported() {
    struct Full;
    impl Sink for Full {
        fn write(&mut self, _: &Event) -> Result<(), SinkError> {
            Err(SinkError::Io { path: "x".into(), source: std::io::ErrorKind::StorageFull.into() })
        }
        fn flush(&mut self) -> Result<(), SinkError> {
            Ok(())
        }
        fn finish(&mut self) -> Result<(), SinkError> {
            Ok(())
        }
        fn lost_rows(&self) -> u64 {
            2
        }
    }
    let (sender, written) = mpsc::channel();
    let readers: Vec<Box<dyn Observer>> = vec![Box::new(Tap(sender))];
    let mut pipeline =
        Pipeline::new(config(), Audience { sinks: vec![Box::new(Full)], readers, ..Audience::default() });
    pipeline.feed(&[main(1).mark("a"), main(2).mark("b")].concat()).expect("held");
    let error = pipeline.advance(u64::MAX).expect_err("full");
    assert!(error.to_string().starts_with("cannot write `x`"));
    pipeline.flush().expect("reported already");
    let outcome = pipeline.finish(&[]);
    assert!(outcome.errors.is_empty());
    assert_eq!(
        outcome.end.losses.iter().map(|line| (line.reason.as_str(), line.count)).collect::<Vec<_>>(),
        [("not written", 2)]
    );
    assert_eq!(written.try_iter().count(), 2);
}

/// Replay of `records`, written chunk by chunk and cut to `keep` of 1000 parts of the file's length.
fn replayed(records: &[Vec<u8>], keep: u64) -> (Vec<Event>, ReplayReport) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("capture");
    let header = CaptureHeader { rows: rows(), start_real_ns: 1000, ..CaptureHeader::default() };
    let mut writer = Writer::create(&path, &header, WriterOptions::default()).expect("created");
    for record in records {
        writer.append(record).and_then(|()| writer.flush()).expect("written");
    }
    writer.finish().expect("finished");
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("opened");
    file.set_len(file.metadata().expect("metadata").len() * keep / 1000).expect("cut");
    let (sender, seen) = mpsc::channel();
    let audience = Audience { observers: vec![Box::new(Tap(sender))], ..Audience::default() };
    let config = PipelineConfig { kept: Some(Kept::process()), ..PipelineConfig::default() };
    let report = replay(&path, config, audience, &mut |_| {}).expect("replayed");
    (seen.try_iter().collect(), report)
}

/// A replay has the same events as the live run, however the records were split.
#[test]
fn replay_equals_live() {
    let records =
        vec![variety(), main(30).mark("x"), main(29).note(&Note::Watermark { mono_ns: 31 }), main(20).mark("late")];
    let (seen, report) = replayed(&records, 1000);
    assert_eq!(seen, events(&records));
    assert!(report.is_complete());
    assert_eq!(report.outcome.end_reason.as_deref(), Some("done"));
}

/// A torn capture gives everything before the tear, and its place.
#[test]
fn recover_from_a_torn_capture() {
    let records: Vec<_> = (1..200).map(|n| main(n).alloc(n << 12, 1, NPU)).collect();
    let (seen, report) = replayed(&records, 900);
    let Ending::Truncated { good_chunks, .. } = report.ending else { panic!("{:?}", report.ending) };
    let kept = good_chunks as usize;
    assert!(kept > 100 && kept < 199 && !report.is_complete());
    assert_eq!(seen, events(&records[..kept]));
}

/// A random record for the property tests, at one of few addresses by one of few threads.
fn random_record(random: &mut Random, time: u64) -> Vec<u8> {
    let pid = 7 + random.below(2) as u32;
    let who = at(time, pid, pid * 10 + random.below(2) as u32);
    let addr = 0x10 + random.below(6) as u64;
    let size = 1 + random.below(100) as u64;
    match random.below(40) {
        0..16 => who.alloc(addr, size, if random.below(4) == 0 { HOST } else { device(random.below(2) as u64) }),
        16..28 => who.free(addr),
        28..30 => who.free_failed(addr),
        30 => who.create(addr, size, (1, 0), (3, 1)),
        31 => who.release(addr),
        32 => who.free(0),
        33 => who.exec(),
        34 => who.end(),
        35 => who.fork(pid ^ 15),
        36 => who.range_start("step start"),
        37 => who.range_end(0),
        38 => who.note(&Note::Watermark { mono_ns: time.saturating_sub(random.below(20) as u64) }),
        _ => who.set_device(random.below(2) as u64),
    }
}

/// Checks every promise that `used_bytes`, ids and times make, against a second book.
fn audit(events: &[Event]) {
    let mut live: HashMap<(u32, u64), (Pool, Device, u64)> = HashMap::default();
    let mut restorable = HashSet::default();
    let mut last = 0;
    let used = |live: &HashMap<(u32, u64), (Pool, Device, u64)>, pid, pool, device| -> u64 {
        live.iter().filter(|((p, _), (q, d, _))| (*p, *q, *d) == (pid, pool, device)).map(|(_, (.., size))| size).sum()
    };
    for event in events {
        assert!(event.time_ns >= last);
        last = event.time_ns;
        match event.kind {
            EventKind::Alloc(Alloc { block, used_bytes, restored, .. }) => {
                let key = (event.pid, block.allocation_id);
                assert_eq!(restored, restorable.remove(&key));
                assert!(live.insert(key, (block.pool, block.device, block.size_bytes)).is_none());
                assert_eq!(used_bytes, used(&live, event.pid, block.pool, block.device));
            }
            EventKind::Free(Free { block, used_bytes, .. }) => {
                let key = (event.pid, block.allocation_id);
                assert!(live.remove(&key).is_some(), "freed twice");
                restorable.insert(key);
                assert_eq!(used_bytes, used(&live, event.pid, block.pool, block.device));
            }
            // A process of the same number starts afresh.
            EventKind::ProcessEnd => {
                assert!(live.keys().all(|(pid, _)| *pid != event.pid));
                restorable.retain(|(pid, _)| *pid != event.pid);
            }
            _ => {}
        }
    }
    assert!(live.is_empty(), "not ended");
}

proptest! {
    /// Any interleaving: bytes add up at each instant, each block ends once, time never runs backwards.
    #[test]
    fn books_are_kept(seed in 1..u64::MAX, disorder in 0..30_usize) {
        let mut random = Random(seed);
        let records: Vec<_> = (100..400)
            .map(|time| {
                let time = time - random.below(disorder + 1) as u64;
                random_record(&mut random, time * (HOLD_NS / 10))
            })
            .collect();
        audit(&events(&records));
    }

    /// Broken streams do no harm.
    #[test]
    fn broken_streams(seed in 1..u64::MAX) {
        let (mut bytes, mut random) = (variety(), Random(seed));
        random.mutate(&mut bytes);
        events(&[bytes]);
    }
}
