//! Offline is online: findings from a capture, or from dumps, of a trace equal those of the live trace.

use std::path::Path;

use memscope_common::Kind;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::*;
use crate::analyses::decompose::RuleSet;
use crate::analyses::fragmentation::Fragmentation;
use crate::analyses::held::Held;
use crate::analyses::peaks::Peak;
use crate::analyses::{
    ByStackAnalysis, DecomposeAnalysis, FluctuationAnalysis, FragmentationAnalysis, GrowthAnalysis, HeldAnalysis,
    InefficientAnalysis, InefficientRules, MarkLeaksAnalysis, OomAnalysis, PeaksAnalysis, StepLeaksAnalysis,
};
use crate::capture::{CaptureHeader, Writer, WriterOptions};
use crate::model::{Block, Device, Mark};
use crate::pipeline::{DeviceFilter, DumpFilter, Npus};
use crate::sinks::row::Row;
use crate::sinks::{DumpOptions, DumpSink, StackCells};
use crate::testing::ops::{self, Copied};
use crate::testing::{HOST, Who};

/// Time between two calls.
const PAUSE_NS: u64 = 200_000_000;
/// Stacks of Python: a forward pass, a backward pass, a step of an optimizer, and one that no rule knows.
const STACKS: [&[(&str, &str)]; 4] = [
    &[("model.py", "forward"), ("torch/nn/modules/module.py", "Module._call_impl"), ("train.py", "<module>")],
    &[("torch/autograd/__init__.py", "backward"), ("train.py", "<module>")],
    &[("torch/optim/adamw.py", "AdamW.step"), ("train.py", "<module>")],
    &[("other.py", "f")],
];

/// All analyses that files and traces have.
fn analyses() -> Vec<Box<dyn Analysis>> {
    vec![
        Box::new(StepLeaksAnalysis::default()),
        Box::new(FluctuationAnalysis::default()),
        Box::new(HeldAnalysis::default()),
        Box::new(PeaksAnalysis::default()),
        Box::new(FragmentationAnalysis::default()),
        Box::new(GrowthAnalysis::default()),
        Box::new(DecomposeAnalysis::default()),
        Box::new(InefficientAnalysis::new(InefficientRules { idle_threshold: 2, ..InefficientRules::default() })),
        Box::new(MarkLeaksAnalysis::new("mark".to_owned(), 0)),
        Box::new(ByStackAnalysis::default()),
        Box::new(OomAnalysis::default()),
    ]
}

/// Runs records through the pipeline into dumps of a format; gives the findings and the folder.
pub(super) fn trace(
    records: &[u8],
    format: sinks::Format,
    analyses: Vec<Box<dyn Analysis>>,
) -> (Vec<Finding>, tempfile::TempDir) {
    trace_into(records, (format, StackCells::Inline), analyses)
}

fn trace_into(
    records: &[u8],
    (format, stacks): (sinks::Format, StackCells),
    analyses: Vec<Box<dyn Analysis>>,
) -> (Vec<Finding>, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("folder");
    let options = DumpOptions { out_dir: folder.path().join("out"), format, stacks, ..DumpOptions::default() };
    let sink = DumpSink::new(&options, |_| {}).expect("folder");
    let devices = DeviceFilter { npus: Npus::All, cpu: true };
    let oom_blocks = Some(3);
    let dump = DumpFilter {
        launch: true,
        op: true,
        access: true,
        block_free: true,
        oom_blocks,
        devices,
        ..DumpFilter::default()
    };
    let owners = Some(Arc::new(RuleSet::builtin()));
    let config = PipelineConfig {
        rows: crate::testing::rows(),
        dump,
        owners,
        kept: Some(Kept::process()),
        ..PipelineConfig::default()
    };
    let mut pipeline = Pipeline::new(config, Audience { sinks: vec![Box::new(sink)], ..Audience::of(analyses) });
    pipeline.feed(records).expect("written");
    let outcome = pipeline.finish(&[]);
    assert!(outcome.errors.is_empty());
    (outcome.findings, folder)
}

/// The findings of a trace's capture.
fn of_capture(records: &[u8]) -> Vec<Finding> {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("x.capture");
    let header = CaptureHeader { rows: crate::testing::rows(), ..CaptureHeader::default() };
    let mut writer = Writer::create(&path, &header, WriterOptions::default()).expect("created");
    writer.append(records).expect("written");
    writer.finish().expect("written");
    let dump = DumpFilter { oom_blocks: Some(3), ..DumpFilter::default() };
    let owners = Some(Arc::new(RuleSet::builtin()));
    let pipeline = PipelineConfig { dump, owners, kept: Some(Kept::process()), ..PipelineConfig::default() };
    run_with(&[path], Options { pipeline, ..Options::default() }, analyses()).expect("readable").findings
}

/// Without what rows lack: whether the process was attached to, requests that failed, frees of unknown blocks; and why there was
/// no memory.
fn known_by_rows(findings: Vec<Finding>) -> Vec<Finding> {
    findings
        .into_iter()
        .filter_map(|finding| match finding {
            Finding::Held(held) if held.allocations == 0 => None,
            Finding::Held(held) => Some(Finding::Held(Held {
                attached: false,
                replaced: held.replaced,
                older_frees: 0,
                unknown_frees: 0,
                failed: 0,
                recovered: 0,
                ..held
            })),
            Finding::Peak(peak) => Some(Finding::Peak(Peak { attached: false, ..peak })),
            Finding::Fragmentation(found) => Some(Finding::Fragmentation(Fragmentation { attached: false, ..found })),
            // Neither the driver's module nor its caller.
            Finding::Growth(mut growth) => {
                let increases = growth.increases.iter_mut().map(|increase| &mut increase.site);
                let sites = growth.sites.iter_mut().filter_map(|growing| growing.site.as_mut());
                increases.chain(sites).for_each(|site| (site.module_id, site.caller) = (None, None));
                Some(Finding::Growth(growth))
            }
            Finding::Oom(_) => None,
            // A step without any block leaves findings only where rows of its device are.
            Finding::Fluctuation(gap) if gap.device == Device::None => None,
            other => Some(other),
        })
        .collect()
}

fn of_dumps(folder: &Path) -> Vec<Finding> {
    match run(&[folder.join("out")], analyses()) {
        Ok(outcome) => outcome.findings,
        // No row was written.
        Err(InputError::Foreign { .. }) => Vec::new(),
        Err(error) => panic!("{error}"),
    }
}

/// Stacks and operators, first of all.
fn preamble() -> Vec<u8> {
    let mut records = ops::notes();
    for pid in [10, 20] {
        let who = at(1, pid, pid);
        for (id, frames) in (1..).zip(STACKS) {
            let frames: Vec<(u64, u32, u32)> = (0..)
                .zip(frames)
                .map(|(number, (file, name))| {
                    let code = (id * 0x1000 + number * 0x10, 3);
                    records.extend(who.code(code, file, name, &[]));
                    (code.0, 0, code.1)
                })
                .collect();
            records.extend(who.python(id, 1, &frames, StackEnd::Root));
        }
    }
    records
}

/// One call of process `pid`. Not `exec`, which ends the open steps: it has no row.
fn act(time: u64, pid: u32, what: u8, slot: u64) -> Vec<u8> {
    let who = at(time, pid, pid + (slot as u32 & 1));
    let addr = 0x1000 * (1 + slot);
    let python = 1 + slot % STACKS.len() as u64;
    match what {
        0 | 1 => Who::stacked(who.alloc(addr, 64 + slot, device(slot & 1)), 0, python),
        2 => who.alloc(addr, 64, HOST),
        3 | 4 => Who::stacked(who.free(addr), 0, python),
        5 => [who.free(addr), at(time + 20_000_000, pid, pid + (slot as u32 & 1)).free_failed(addr)].concat(),
        6 | 7 => Who::stacked(who.pta((0, 0), addr, 512, [512 * (slot + 1), 4096, 512]), 0, python),
        8 | 9 => Who::stacked(who.pta((0, 1), addr, -512, [512 * slot, 4096, 0]), 0, 1 + u64::from(time as u32 % 3)),
        10 => [who.range_start("step start"), who.range_id(1000 + time as i64)].concat(),
        11 => who.range_start("step start"),
        12 => who.range_end(0),
        13 => who.launch(0x77, 0),
        14 => who.mark("say \"hi\", \n =1"),
        15 => who.mark("mark"),
        16 => who.set_device(slot & 1),
        17 => who.alloc_failed(6, 1 << 30, device(slot & 1)),
        18 | 19 => who.passed(ops::ENTER, 5, &[(0, Copied::of(addr, &[512]))]),
        20 => who.passed(ops::LEAVE, 5, &[(0, Copied::of(addr, &[512]))]),
        _ => act_rarely(who, what, slot),
    }
}

/// Calls of further domains.
fn act_rarely(who: Who, what: u8, slot: u64) -> Vec<u8> {
    let addr = 0x1000 * (1 + slot);
    let of_domain = |symbol: &str, text: &str| who.call(Kind::Enter, symbol, 0, &[0], Some(text.as_bytes()));
    match what {
        21 => who.create(slot + 1, 2 << 20, (slot & 1, 0), (0, 0)),
        22 => who.release(slot + 1),
        23 => who.entered("memscope_mark_step", &[]),
        24 => who.call(Kind::Return, "mstxDomainCreateA", 0, &[], Some(b"comm")),
        25 => of_domain("mstxDomainRangeStartA", "step start"),
        26 => who.entered("mstxDomainRangeEnd", &[0, 0]),
        27 => of_domain("mstxDomainMarkA", "in a domain"),
        28 => who.kernel_name(0x77, "matmul"),
        29 => who.pta((1, 0), addr, 512, [512 * (slot + 1), 4096, 512]),
        30 => who.pta((1, 1), addr, -512, [512 * slot, 4096, 0]),
        31 => who.returned("aclInit", 0, &[]),
        _ => who.entered("aclFinalize", &[]),
    }
}

/// All calls, and a mark of both processes at the end.
fn records(acts: &[(u32, u8, u64)], leaks: bool) -> Vec<u8> {
    let mut all = preamble();
    let mut time_ns = PAUSE_NS;
    for (n, &(pid, what, slot)) in (0_u64..).zip(acts) {
        time_ns += PAUSE_NS;
        all.extend(act(time_ns, pid * 10, what, slot));
        if leaks {
            let who = at(time_ns + 1000, 10, 10);
            all.extend(Who::stacked(who.pta((0, 0), 0x100_0000 + n * 0x1000, 4096, [1 << 30, 2 << 30, 512]), 0, 4));
        }
    }
    for pid in [10, 20] {
        all.extend(at(time_ns + 2 * PAUSE_NS, pid, pid).mark("end"));
    }
    all
}

/// Asserts it of one trace; returns the findings.
fn assert_same(records: &[u8], format: (sinks::Format, StackCells)) -> Result<Vec<Finding>, TestCaseError> {
    let (live, folder) = trace_into(records, format, analyses());
    prop_assert_eq!(&of_capture(records), &live);
    prop_assert_eq!(known_by_rows(of_dumps(folder.path())), known_by_rows(live.clone()));
    Ok(live)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever two processes do, the dumps and the capture give the findings of the live trace, and no figure is
    /// negative.
    #[test]
    fn offline_is_online(
        acts in prop::collection::vec((1..3_u32, 0..33_u8, 0..4_u64), 1..80),
        leaks in any::<bool>(),
        db in any::<bool>(),
        table in any::<bool>(),
    ) {
        let stacks = if table { StackCells::Table } else { StackCells::Inline };
        assert_same(&records(&acts, leaks), (if db { sinks::Format::Db } else { sinks::Format::Csv }, stacks))?;
    }
}

/// The rows of events, by process and number. An event made from a row about no memory has no row itself.
fn rows_of(recorder: &Recorder) -> Vec<String> {
    let events = recorder.0.lock().expect("lock");
    let of_rows = events.iter().filter(|event| !matches!(event.kind, EventKind::OutOfMemory(_)));
    let mut rows: Vec<(u32, u64, String)> = of_rows
        .filter_map(|event| {
            let mut row = Vec::new();
            Row::of(event)?.write_csv(&mut row);
            Some((event.pid, event.id, String::from_utf8_lossy(&row).into_owned()))
        })
        .collect();
    rows.sort();
    rows.into_iter().map(|(.., row)| row).collect()
}

/// What no cell of an event's row says, by process and order: steps, and of blocks their numbers, steps, kernels, sums
/// and causes of their end.
fn facts_of(recorder: &Recorder) -> Vec<String> {
    let of_block = |block: &Block, used_bytes: u64| {
        let Block { allocation_id, step, kernel_index, alloc_time_ns, tid, page, api, .. } = block;
        let Block { pool, device, addr, size_bytes, .. } = block;
        // Rows of host memory have neither.
        let made = if pool.is_host() { String::new() } else { format!("{page:?} {api:?} ") };
        format!(
            "{allocation_id} {} {device:?} {addr:x}+{size_bytes} step {step} kernel {kernel_index} {alloc_time_ns} {tid} \
             {made}used {used_bytes}",
            pool.event_type()
        )
    };
    let fact = |event: &Event| {
        let fact = match &event.kind {
            EventKind::Alloc(alloc) => {
                let block = of_block(&alloc.block, alloc.used_bytes);
                format!("alloc {block} {:?} restored {}", alloc.total_bytes, alloc.restored)
            }
            EventKind::Free(free) => {
                let is_end = matches!(free.cause, FreeCause::ProcessEnd | FreeCause::TraceEnd);
                let cause = if is_end { FreeCause::ProcessEnd } else { free.cause };
                // Their rows have no sum: a reader counts on from the last one.
                let used_bytes = if cause == FreeCause::Program { free.used_bytes } else { 0 };
                format!("free {} {cause:?}", of_block(&free.block, used_bytes))
            }
            EventKind::StepStart { step } => format!("step {step} starts on {:?}", event.device),
            EventKind::StepEnd { step } => format!("step {step} ends on {:?}", event.device),
            EventKind::Mark(Mark::RangeEnd { range_id, passed_id })
            | EventKind::DomainMark { mark: Mark::RangeEnd { range_id, passed_id }, .. } => {
                format!("range {} ends, open {}", range_id.unwrap_or(*passed_id), range_id.is_some())
            }
            EventKind::Mark(mark) | EventKind::DomainMark { mark, .. } => format!("{mark:?}"),
            // A row has one number: the stream's where known, else its pointer.
            EventKind::Launch(launch) => {
                format!("launch {} {}", launch.name, launch.stream_id.unwrap_or(launch.stream.cast_signed()))
            }
            EventKind::BlockReturned(returned) => format!("{returned:?}"),
            _ => return None,
        };
        Some((event.pid, format!("{} {} {fact}", event.time_ns, event.tid)))
    };
    let events = recorder.0.lock().expect("lock");
    let mut facts: Vec<(u32, String)> = events.iter().filter_map(fact).collect();
    facts.sort_by_key(|(pid, _)| *pid);
    facts.into_iter().map(|(pid, fact)| format!("{pid} {fact}")).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// The events of a trace and those of its own dump are equal, as far as rows carry them: they have the same rows,
    /// and what the pipeline concludes from calls it concludes from rows.
    #[test]
    fn events_are_those_of_the_dump(
        acts in prop::collection::vec((1..3_u32, 0..33_u8, 0..4_u64), 1..80),
        db in any::<bool>(),
    ) {
        let (live, read) = (Recorder::default(), Recorder::default());
        let format = if db { sinks::Format::Db } else { sinks::Format::Csv };
        let folder = trace(&records(&acts, false), format, vec![Box::new(live.clone())]).1;
        run(&[folder.path().join("out")], vec![Box::new(read.clone())]).expect("readable");
        prop_assert_eq!(rows_of(&read), rows_of(&live));
        prop_assert_eq!(facts_of(&read), facts_of(&live));
    }
}

/// Two rounds of a program with findings of every analysis: so that a difference can show.
#[test]
fn there_is_something_to_find() {
    let round = [
        (1, 15, 0),
        (1, 11, 0),
        (1, 6, 0),
        (1, 6, 1),
        (1, 0, 0),
        (1, 8, 1),
        (1, 18, 0),
        (1, 20, 0),
        (1, 13, 0),
        (1, 18, 0),
        (1, 6, 1),
        (1, 6, 2),
        (1, 8, 0),
        (1, 12, 0),
        (1, 17, 1),
        (1, 14, 0),
    ];
    let acts: Vec<(u32, u8, u64)> = round.iter().copied().cycle().take(8 * round.len()).collect();
    let formats = [sinks::Format::Csv, sinks::Format::Db];
    let ways = formats.iter().flat_map(|&format| [(format, StackCells::Inline), (format, StackCells::Table)]);
    for (format, stacks) in ways {
        let found = assert_same(&records(&acts, true), (format, stacks)).expect("the same");
        let has = |which: fn(&Finding) -> bool| found.iter().any(which);
        assert!(has(|it| matches!(it, Finding::StepLeaks(leaks) if !leaks.leaks.is_empty())), "{found:#?}");
        assert!(has(|it| matches!(it, Finding::MarkLeaks(leaks) if !leaks.leaks.is_empty())), "{found:#?}");
        assert!(has(|it| matches!(it, Finding::Growth(growth) if !growth.sites.is_empty())), "{found:#?}");
        assert!(has(|it| matches!(it, Finding::Inefficient(_))), "{found:#?}");
        assert!(has(|it| matches!(it, Finding::Oom(oom) if !oom.top.is_empty())), "{found:#?}");
        assert!(has(|it| matches!(it, Finding::ByStack(_))), "{found:#?}");
        assert!(has(|it| matches!(it, Finding::Peak(_))) && has(|it| matches!(it, Finding::Fragmentation(_))));
        let components: Vec<&str> = found
            .iter()
            .filter_map(|it| if let Finding::Decompose(found) = it { Some(found) } else { None })
            .flat_map(|found| found.parts.iter().map(|part| part.component.as_str()))
            .collect();
        assert!(components.contains(&"activation") && components.contains(&"unknown"), "{components:?}");
        // Rows do not contain why memory was out: no cause is made up.
        let folder = trace(&records(&acts, true), format, Vec::new()).1;
        assert!(of_dumps(folder.path()).iter().all(|it| !matches!(it, Finding::Oom(_))));
    }
}

/// A documented difference: rows do not name the function of ACL or the runtime that called the driver.
#[test]
fn callers_are_not_in_rows() {
    let records = Who::within("aclrtMallocAlign32", at(2, 7, 7).alloc(0x10, 64, device(0)));
    let callers = |recorder: &Recorder| -> Vec<Option<String>> {
        let events = recorder.0.lock().expect("lock");
        let caller = |event: &Event| match &event.kind {
            EventKind::Alloc(alloc) => Some(alloc.block.caller.map(|name| name.as_str().to_owned())),
            _ => None,
        };
        events.iter().filter_map(caller).collect()
    };
    let (live, read) = (Recorder::default(), Recorder::default());
    let folder = trace(&records, sinks::Format::Csv, vec![Box::new(live.clone())]).1;
    run(&[folder.path().join("out")], vec![Box::new(read.clone())]).expect("readable");
    assert_eq!(callers(&live), [Some("aclrtMallocAlign32".to_owned())]);
    assert_eq!(callers(&read), [None]);
}
