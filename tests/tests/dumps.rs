//! What memscope-user writes, read by the checkers that know nothing of it.

use std::path::PathBuf;
use std::sync::mpsc;

use memscope::backend::ascend::pools;
use memscope::model::{
    Alloc, AllocApi, Asked, Block, Device, DriverFigures, Event, EventKind, Free, FreeCause, Launch, Mark, Name,
    PageType, Pool, Stack, StackEnd, Stacks, System,
};
use memscope::sinks::{DumpOptions, DumpSink, FileChange, Format, Sink};
use memscope_tests::checkers::csv::CsvRules;
use memscope_tests::checkers::db::DbRules;
use memscope_tests::checkers::{csv, db};

const POOLS: [Pool; 6] = [pools::HAL, pools::HOST, pools::PTA, pools::PTA_WORKSPACE, pools::ATB, pools::MIND_SPORE];
const TEXTS: [&str; 8] = ["step start", "a,\"b\"", "=1+1", "x\ny\r", "\x1b[0m", "中文", "\u{202e}", ""];

/// Every kind of event, with every pool and with texts of every sort.
fn events() -> Vec<Event> {
    let system = |system| (Device::None, EventKind::System(system));
    let mut kinds = vec![system(System::AclInit)];
    for (index, pool) in POOLS.into_iter().enumerate() {
        let device = if pool == pools::HOST { Device::Cpu } else { Device::Npu(0) };
        for (cause, page, api) in [
            (FreeCause::Program, PageType::Normal, AllocApi::Alloc),
            (FreeCause::ProcessEnd, PageType::Giant, AllocApi::Create),
        ] {
            let made_up = cause != FreeCause::Program;
            let block = block(pool, device, (index * 2 + usize::from(made_up) + 1) as u64, page, api);
            let (used_bytes, total_bytes) = (64, made_up.then_some(4096));
            let driver = DriverFigures { process_used_bytes: Some(7), device_used_bytes: Some(8) };
            kinds.push((
                device,
                EventKind::Alloc(Alloc {
                    block,
                    used_bytes,
                    total_bytes,
                    driver,
                    restored: made_up,
                    promoted: false,
                    asked: Asked::default(),
                }),
            ));
            kinds.push((
                device,
                EventKind::Free(Free {
                    block,
                    used_bytes: 0,
                    total_bytes,
                    driver,
                    cause,
                    owner: None,
                    row_time_ns: None,
                    without_row: false,
                }),
            ));
        }
    }
    for (stream, text) in TEXTS.into_iter().enumerate() {
        let point = Mark::Point { text: Some(text.into()) };
        let start = Mark::RangeStart { text: Some(text.into()), range_id: 1 };
        kinds.extend([point, start].map(|mark| (Device::Npu(0), EventKind::Mark(mark))));
        let launch = Launch { name: text.into(), stream: stream as u64, stream_id: None };
        kinds.push((Device::Npu(0), EventKind::Launch(launch)));
    }
    kinds.push((Device::Cpu, EventKind::Mark(Mark::RangeEnd { range_id: None, passed_id: 0 })));
    kinds.push((Device::None, EventKind::Mark(Mark::Point { text: None })));
    kinds.push(system(System::AclFinalize));
    kinds.push((Device::None, EventKind::ProcessEnd));
    let event = |(id, (device, kind))| {
        let (time_ns, stacks) = (1_795_219_483_512_246_767 + id, stacks(id));
        Event { id, time_ns, pid: 7, tid: 8, device, stacks, kind }
    };
    (0..).zip(kinds).map(event).collect()
}

/// Every third event has none; frames are as hostile as the other texts.
fn stacks(id: u64) -> Stacks {
    let frames = |skip| Stack::keep(TEXTS.into_iter().skip(skip), StackEnd::Depth);
    match id % 3 {
        0 => Stacks::default(),
        1 => Stacks { native: Some(frames(0)), python: Some(Stack::keep([], StackEnd::NotPython)), mixed: None },
        _ => Stacks {
            native: Some(Stack::keep(["libc.so.6(f+0x1) [0x2]"], StackEnd::Root)),
            python: Some(frames(3)),
            mixed: None,
        },
    }
}

fn block(pool: Pool, device: Device, allocation_id: u64, page: PageType, api: AllocApi) -> Block {
    Block {
        requested_bytes: None,
        // For host memory the user is unknown.
        owner: (pool != pools::HOST).then_some(Name::fixed(&"PTA@weight")),
        found: false,
        held_as: None,
        caller: None,
        stacks: Stacks::default(),
        allocation_id,
        pool,
        device,
        addr: allocation_id << 12,
        size_bytes: 64,
        alloc_time_ns: 1,
        alloc_id: 1,
        tid: 1,
        step: 0,
        kernel_index: 0,
        module_id: None,
        page,
        api,
    }
}

fn write(format: Format, out_dir: PathBuf) -> Vec<PathBuf> {
    let (sender, created) = mpsc::channel();
    let options = DumpOptions { out_dir, format, ..DumpOptions::default() };
    let announce = move |change: FileChange<'_>| match change {
        FileChange::Made(path) => sender.send(path.to_owned()).expect("received"),
        FileChange::Removed(path) => panic!("`{}` is removed without parts", path.display()),
    };
    let mut sink = DumpSink::new(&options, announce).expect("output directory");
    for event in events() {
        sink.write(&event).expect("written");
    }
    sink.finish().expect("written");
    assert_eq!(sink.lost_rows(), 0);
    created.try_iter().collect()
}

/// CSV files of the device and of the host pass, in time order.
#[test]
fn csv_files_pass() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let created = write(Format::Csv, folder.path().to_owned());
    assert_eq!(created.len(), 2);
    for path in created {
        let bytes = std::fs::read(&path).expect("readable");
        let rules = CsvRules { time_ordered: true, ..CsvRules::default() };
        assert_eq!(csv::check(&bytes, rules), [], "{}", path.display());
    }
}

/// So do databases, as files that stand alone.
#[test]
fn databases_pass() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let created = write(Format::Db, folder.path().to_owned());
    assert_eq!(created.len(), 2);
    for path in created {
        assert_eq!(db::check(&path, DbRules { time_ordered: true }), [], "{}", path.display());
    }
}
