//! Files in, findings out: the same as live, in any order of the rows.

mod hostile;
mod online;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use rusqlite::Connection;

use self::online::trace;
use super::*;
use crate::analyses::{StepLeaksAnalysis, compare};
use crate::model::{Access, Device, Event, EventKind, FreeCause, Stack, StackEnd, Stacks};
use crate::pipeline::Pipeline;
use crate::sinks;
use crate::testing::{Who, at, device};

const HEADER: &str =
    "ID,Event,Event Type,Name,Timestamp(ns),Process Id,Thread Id,Device Id,Ptr,Attr,Call Stack(Python),Call Stack(C)\n";

/// Keeps the events it sees.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<Event>>>);

impl Analysis for Recorder {
    fn observe(&mut self, event: &Event) {
        self.0.lock().expect("lock").push(event.clone());
    }

    fn finish(&mut self, _: &RunEnd) -> Vec<Finding> {
        Vec::new()
    }
}

/// The events of the rows that `read` gives, and its notes.
fn events_of_rows(
    read: impl FnOnce(&mut dyn FnMut(DumpRow)) -> Result<Notes, InputError>,
) -> (Vec<Event>, Result<Notes, InputError>) {
    let recorder = Recorder::default();
    let mut dumped = Dumped::new(Audience::of(vec![Box::new(recorder.clone())]));
    let notes = read(&mut |row| dumped.row(row));
    dumped.finish();
    let events = std::mem::take(&mut *recorder.0.lock().expect("lock"));
    (events, notes)
}

/// As [`super::run`], with stacks that outlive it.
fn run(paths: &[PathBuf], analyses: Vec<Box<dyn Analysis>>) -> Result<Outcome, InputError> {
    let pipeline = PipelineConfig { kept: Some(Kept::process()), ..PipelineConfig::default() };
    run_with(paths, Options { pipeline, ..Options::default() }, analyses)
}

/// The events of a dump's text, and the notes.
fn events_of(text: &str) -> (Vec<Event>, Notes) {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("dump.csv");
    fs::write(&path, format!("{HEADER}{text}")).expect("written");
    let recorder = Recorder::default();
    let outcome = run(&[path], vec![Box::new(recorder.clone())]).expect("readable");
    let events = recorder.0.lock().expect("lock").clone();
    (events, outcome.notes)
}

/// The smallest valid row: `MALLOC`, `FREE` of `PTA` on device 0, of block `number` at `number << 12`.
fn block_row(id: u64, event: &str, time: u64, number: u64, more: &str) -> String {
    format!(
        "{id},{event},PTA,N/A,{time},5,5,0,0x{:016x},\"{{allocation_id:{number},addr:0x{:016x},size:64{more}}}\",,\n",
        number << 12,
        number << 12
    )
}

/// Kind, id and time of the events of blocks.
fn brief(events: &[Event]) -> Vec<(&'static str, u64, u64)> {
    let kind = |event: &Event| match event.kind {
        EventKind::Alloc(_) => Some("alloc"),
        EventKind::Free(_) => Some("free"),
        EventKind::UnknownFree(_) => Some("unknown"),
        _ => None,
    };
    events.iter().filter_map(|event| Some((kind(event)?, event.id, event.time_ns))).collect()
}

/// Rows in any order, some of them twice, are events in the order of their IDs, each once.
#[test]
fn order_and_repetition_do_not_matter() {
    let row = |id, event, number| block_row(id, event, 100 + id, number, "");
    let rows = [row(3, "FREE", 1), row(1, "MALLOC", 1), row(2, "MALLOC", 2), row(2, "MALLOC", 2), row(1, "MALLOC", 1)];
    let (events, notes) = events_of(&rows.concat());
    assert_eq!(brief(&events), [("alloc", 1, 101), ("alloc", 2, 102), ("free", 3, 103), ("free", 4, 103)]);
    assert_eq!((notes.rows, notes.duplicates, notes.contradictions), (3, 2, 0));
}

/// A clock that was set back does not swap a free and its allocation.
#[test]
fn clock_running_backwards_is_repaired() {
    let rows =
        [block_row(1, "MALLOC", 500, 1, ""), block_row(2, "FREE", 400, 1, ""), block_row(3, "MALLOC", 600, 2, "")];
    let (events, notes) = events_of(&rows.concat());
    assert_eq!(brief(&events)[..3], [("alloc", 1, 500), ("free", 2, 500), ("alloc", 3, 600)]);
    assert_eq!((notes.clock_back, notes.clock_back_ns), (1, 100));
}

/// Fault of the reference: the made-up free of a replaced block did not lower the total of the
/// driver's memory.
#[test]
fn replaced_blocks_are_taken_off() {
    let hal = |row: String| row.replace("PTA", "HAL").replace("0x0000000000002000", "0x0000000000001000");
    let rows = [
        hal(block_row(1, "MALLOC", 1, 1, ",used:64")),
        hal(block_row(2, "MALLOC", 2, 2, ",used:128")),
        hal(block_row(3, "FREE", 2, 1, ",shadow:true")),
    ];
    let (events, _) = events_of(&rows.concat());
    let used: Vec<u64> = events
        .iter()
        .filter_map(|event| match event.kind {
            EventKind::Alloc(alloc) => Some(alloc.used_bytes),
            EventKind::Free(free) => Some(free.used_bytes),
            _ => None,
        })
        .collect();
    assert_eq!(used, [64, 0, 64, 0]);
}

/// A block from before the attach comes back as one; its pool's figure has it already.
#[test]
fn found_blocks_are_read() {
    let rows = [
        block_row(1, "MALLOC", 1, 1, ",used:640,total:2048"),
        block_row(2, "MALLOC", 2, 2, ",used:640,total:2048,found:true"),
        block_row(3, "FREE", 3, 1, ",used:576,total:2048"),
        block_row(4, "FREE", 4, 2, ",used:512,total:2048"),
    ];
    let (events, _) = events_of(&rows.concat());
    let of: Vec<(u64, bool)> = events
        .iter()
        .filter_map(|event| match event.kind {
            EventKind::Alloc(alloc) if !alloc.restored && !alloc.promoted => {
                Some((alloc.used_bytes, alloc.block.found))
            }
            EventKind::Free(free) => Some((free.used_bytes, free.block.found)),
            _ => None,
        })
        .collect();
    assert_eq!(of, [(640, false), (640, true), (576, false), (512, true)]);
}

/// A free at an address inside of a block ends nothing, whether it has the block's number or none: as live, and in
/// msMemScope.
#[test]
fn free_inside_of_a_block_ends_nothing() {
    for number in ["allocation_id:1,", ""] {
        let free = block_row(2, "FREE", 2, 1, "")
            .replace("allocation_id:1,", number)
            .replace("0x0000000000001000", "0x0000000000001010");
        let (events, notes) = events_of(&[block_row(1, "MALLOC", 1, 1, ""), free].concat());
        assert_eq!(brief(&events), [("alloc", 1, 1), ("unknown", 2, 2), ("free", 3, 2)]);
        let last = events.iter().rev().find_map(|event| match event.kind {
            EventKind::Free(free) => Some(free.cause),
            _ => None,
        });
        assert_eq!((notes.unmatched_frees, last), (1, Some(FreeCause::TraceEnd)));
    }
    // Live: the records of the same calls.
    let live = Recorder::default();
    let config = PipelineConfig { rows: crate::testing::rows(), ..PipelineConfig::default() };
    let mut pipeline = Pipeline::new(config, Audience::of(vec![Box::new(live.clone())]));
    pipeline.feed(&[at(1, 5, 5).alloc(0x1000, 64, device(0)), at(2, 5, 5).free(0x1010)].concat()).expect("fed");
    drop(pipeline.finish(&[]));
    let kinds: Vec<&str> = brief(&live.0.lock().expect("lock")).iter().map(|(kind, ..)| *kind).collect();
    assert_eq!(kinds, ["alloc", "unknown", "free"]);
}

/// Leaks of the steps of these files: process, device, address and step of each.
fn step_leaks(paths: &[PathBuf]) -> (Vec<(u32, Device, u64, u32)>, Notes) {
    let outcome = run(paths, vec![Box::new(StepLeaksAnalysis::default())]).expect("readable");
    let leaks = outcome.findings.iter().flat_map(|finding| match finding {
        Finding::StepLeaks(found) => {
            found.leaks.iter().map(|leak| (found.pid, found.device, leak.addr, leak.step)).collect()
        }
        _ => Vec::new(),
    });
    (leaks.collect(), outcome.notes)
}

/// Four steps of a rank of process 5 on a device, with a block of 64 bytes in each; that of `leaking` is never freed.
fn rank(device: u32, start_ns: u64, leaking: u64) -> String {
    let row = |row: String| row.replace(",5,5,0,", &format!(",5,5,{device},"));
    let mut text = format!("0,SYSTEM,ACL_INIT,N/A,{start_ns},5,5,N/A,N/A,,,\n");
    for step in 1..=4 {
        let (id, time) = (10 * step, start_ns + 100 * step);
        text += &row(format!("{id},MSTX,Range_start,\"step start\",{time},5,5,0,N/A,,,\n"));
        text += &row(block_row(id + 1, "MALLOC", time + 1, step, ""));
        if step != leaking {
            text += &row(block_row(id + 2, "FREE", time + 2, step, ""));
        }
        text += &row(format!("{},MSTX,Range_end,\"Range end from id {step}\",{},5,5,0,N/A,,,\n", id + 3, time + 3));
    }
    text
}

/// Ranks in containers have equal process numbers, event numbers, block numbers and addresses, on devices of their own.
/// The leak of each is found, in any order of files and rows, and files of one process stay together.
#[test]
fn ranks_of_one_number_are_two_processes() {
    let folder = tempfile::tempdir().expect("folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(&path, format!("{HEADER}{text}")).expect("written");
        path
    };
    let reversed = |text: &str| text.lines().rev().collect::<Vec<_>>().join("\n") + "\n";
    let (first, second) = (rank(0, 1000, 2), rank(1, 1050, 3));
    let expected = [(5, Device::Npu(0), 0x2000, 2), (20_000_005, Device::Npu(1), 0x3000, 3)];
    let sorted = [write("a.csv", &first), write("b.csv", &second)];
    // Rows in no order are sorted; a shared folder where both made the same one in the same second.
    let unsorted = [write("c.csv", &reversed(&first)), write("d.csv", &reversed(&second))];
    let shared = "one/msmemscope_5_20261121000441_ascend";
    write(&format!("{shared}/device_0/dump/memscope_dump_1.csv"), &first);
    write(&format!("{shared}/device_1/dump/memscope_dump_1.csv"), &second);
    for paths in [sorted.to_vec(), unsorted.to_vec(), vec![folder.path().join("one")]] {
        let (leaks, notes) = step_leaks(&paths);
        assert_eq!(leaks, expected, "{paths:?}");
        let renamed: Vec<_> = notes.renamed.iter().map(|it| (it.pid, it.shown)).collect();
        assert_eq!(renamed, [(5, 20_000_005)]);
        assert_eq!((notes.contradictions, notes.duplicates, notes.bad_rows, notes.rows), (0, 0, 0, 32));
        let lines = notes.lines();
        assert!(lines.len() == 1 && lines[0].ends_with("it is shown as 20000005"), "{lines:?}");
    }
    // One process with two devices has a number for each event, and its ACL_INIT in both files.
    let other: Vec<String> = second.lines().skip(1).map(|line| format!("1{line}\n")).collect();
    let init = "0,SYSTEM,ACL_INIT,N/A,1000,5,5,N/A,N/A,,,\n";
    let (leaks, notes) = step_leaks(&[sorted[0].clone(), write("e.csv", &(init.to_owned() + &other.concat()))]);
    assert_eq!(notes.renamed, []);
    assert!(leaks.iter().all(|leak| leak.0 == 5), "{leaks:?}");
}

/// A block with the number of a live one gets an unused one, also where a file has numbers as high as those.
#[test]
fn given_numbers_are_unused() {
    const HIGH: u64 = (1 << 63) + 1;
    let on = |device: u32, row: String| row.replace(",5,5,0,", &format!(",5,5,{device},"));
    let rows = [
        block_row(1, "MALLOC", 1, 7, ""),
        block_row(2, "MALLOC", 2, 1, "").replace("allocation_id:1", &format!("allocation_id:{HIGH}")),
        on(1, block_row(3, "MALLOC", 3, 7, "")),
        on(2, block_row(4, "MALLOC", 4, 7, "")),
    ];
    let (events, notes) = events_of(&rows.concat());
    let numbers: Vec<u64> = events
        .iter()
        .filter_map(|event| match event.kind {
            EventKind::Alloc(alloc) => Some(alloc.block.allocation_id),
            _ => None,
        })
        .collect();
    assert_eq!(numbers, [7, HIGH, HIGH + 1, HIGH + 2]);
    assert_eq!(notes.contradictions, 2);
}

/// Blocks of one number and address on two devices in one file are two blocks, and both leaks are found.
#[test]
fn devices_of_one_file_are_apart() {
    let on = |device: u32, row: String| row.replace(",5,5,0,", &format!(",5,5,{device},"));
    let rows = [
        on(0, block_row(1, "MALLOC", 1, 1, "")),
        on(1, block_row(2, "MALLOC", 2, 1, "")),
        on(1, block_row(3, "FREE", 3, 1, "")),
    ];
    let (events, notes) = events_of(&rows.concat());
    assert_eq!(brief(&events), [("alloc", 1, 1), ("alloc", 2, 2), ("free", 3, 3), ("free", 4, 3)]);
    let frees: Vec<_> = events
        .iter()
        .filter_map(|event| match event.kind {
            EventKind::Free(free) => Some((free.block.device, free.cause)),
            _ => None,
        })
        .collect();
    assert_eq!(frees, [(Device::Npu(1), FreeCause::Program), (Device::Npu(0), FreeCause::TraceEnd)]);
    assert_eq!((notes.contradictions, notes.unmatched_frees), (1, 0));
    // Without numbers the address and the device are all there is.
    let rows = rows.map(|row| row.replace("allocation_id:1,", ""));
    let (events, notes) = events_of(&rows.concat());
    assert_eq!(brief(&events), [("alloc", 1, 1), ("alloc", 2, 2), ("free", 3, 3), ("free", 4, 3)]);
    assert_eq!((notes.contradictions, notes.unmatched_frees), (0, 0));
}

/// Addresses are hexadecimal or decimal, also mixed: the free finds its block.
#[test]
fn decimal_addresses_are_read() {
    // 0x12c041400000
    let decimal = |row: String| row.replace("0x0000000000001000", "20616937734144").replace("allocation_id:1,", "");
    let hexadecimal =
        |row: String| row.replace("0x0000000000001000", "0x000012c041400000").replace("allocation_id:1,", "");
    let rows = [
        decimal(block_row(1, "MALLOC", 1, 1, "")),
        hexadecimal(block_row(2, "FREE", 2, 1, "")),
        hexadecimal(block_row(3, "MALLOC", 3, 1, "")),
        decimal(block_row(4, "FREE", 4, 1, "")),
    ];
    let (events, notes) = events_of(&rows.concat());
    assert_eq!(brief(&events), [("alloc", 1, 1), ("free", 2, 2), ("alloc", 3, 3), ("free", 4, 4)]);
    assert_eq!(notes.unmatched_frees, 0);
}

/// One bad row costs that row, in text and in databases, and is reported with its place; a file without any good row is refused.
#[test]
fn bad_rows_are_left_out() {
    let folder = tempfile::tempdir().expect("folder");
    let text = |rows: &[&str]| {
        let path = folder.path().join("x.csv");
        fs::write(&path, format!("{HEADER}{}", rows.concat())).expect("written");
        path
    };
    let database = |rows: &[[&str; 3]]| {
        let path = folder.path().join("x.db");
        drop(fs::remove_file(&path));
        let writer = Connection::open(&path).expect("database");
        let columns: Vec<String> = sinks::row::COLUMNS.iter().map(|name| format!("\"{name}\" TEXT")).collect();
        writer.execute_batch(&format!("CREATE TABLE memscope_dump ({})", columns.join(","))).expect("made");
        for [id, ptr, attr] in rows {
            let row = format!("'{id}','MALLOC','PTA','N/A',5,5,7,'0','{ptr}','{attr}','',''");
            writer.execute_batch(&format!("INSERT INTO memscope_dump VALUES ({row})")).expect("written");
        }
        path
    };
    let good: Vec<String> = (1..=3).map(|id| block_row(id, "MALLOC", id, id, "")).collect();
    let bad = good[1].replace("0x0000000000002000", "?");
    let broken = good[1].replace(",5,5,", ",,");
    let attr = r#"{"size":"64"}"#;
    let check = |path: PathBuf, place: &str| {
        let notes = run(std::slice::from_ref(&path), Vec::new()).expect("readable").notes;
        assert_eq!((notes.rows, notes.bad_rows), (2, 1), "{place}");
        let line = format!("1 row(s) cannot be understood and were left out: `{}` {place}", path.display());
        assert_eq!(notes.lines(), [line]);
    };
    check(text(&[&good[0], &bad, &good[2]]), "line 3, column Ptr: `?` is not an address");
    check(text(&[&good[0], &broken, &good[2]]), "line 3, column ID: the row has 11 cells, the header 12");
    check(
        database(&[["1", "0x10", attr], ["2", "?", attr], ["3", "0x30", attr]]),
        "row 2, column Ptr: `?` is not an address",
    );
    let message = "row 2, column ID: `x` is not a decimal number";
    check(database(&[["1", "0x10", attr], ["x", "0x20", attr], ["3", "0x30", attr]]), message);

    let refused = |path: PathBuf| run(&[path], Vec::new()).expect_err("refused").to_string();
    let end = "`?` is not an address; no row of the file can be understood";
    assert!(refused(text(&[&bad, &bad])).ends_with(&format!("x.csv` line 2, column Ptr: {end}")));
    assert!(refused(database(&[["1", "?", attr]])).ends_with(&format!("x.db` row 1, column Ptr: {end}")));
    // Of hundreds the first few are reported.
    let many: Vec<&str> = std::iter::repeat_n(bad.as_str(), 300).chain([good[0].as_str()]).collect();
    let notes = run(&[text(&many)], Vec::new()).expect("readable").notes;
    assert_eq!((notes.rows, notes.bad_rows, notes.bad_examples.len()), (1, 300, 4));
    assert!(notes.lines()[0].starts_with("300 row(s)") && notes.lines()[0].ends_with("; …"));
}

/// The comparison's figures are those of the reference, from rows alone: a free without an allocation row is the next
/// row of the kernel before it; a block live at the end of the file has no such row, and a replaced one neither. By
/// hand.
#[test]
fn comparison_counts_rows() {
    let kernel = |id: u64, name: &str| format!("{id},KERNEL_LAUNCH,KERNEL_LAUNCH,{name},{id},5,5,0,N/A,,,\n");
    let free = block_row(2, "FREE", 2, 7, "").replace("size:64", "size:4096");
    let first = block_row(4, "MALLOC", 4, 1, "").replace("size:64", "size:100");
    let again = block_row(6, "MALLOC", 6, 2, "").replace("size:64", "size:30").replace("2000", "1000");
    let rows =
        [kernel(1, "k1"), free, kernel(3, "k2"), first, kernel(5, "k3"), again, kernel(7, "k4"), kernel(8, "0x7f10")];
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("x.csv");
    fs::write(&path, format!("{HEADER}{}", rows.concat())).expect("written");
    let which = compare::Which { op: false, kernel: true };
    let (recorder, taken) = compare::Recorder::new(which, compare::Names::default());
    let options = Options { observers: vec![Box::new(recorder)], ..Options::default() };
    run_with(&[path], options, Vec::new()).expect("readable");
    let compare::Recorded { sequences, names } = taken.recv().expect("a recording");
    let mut found = Vec::new();
    let out = |row: &compare::ComparedRow| {
        let bytes = |figures: Option<compare::Figures>| figures.map(|figures| figures.next_bytes);
        found.push((row.name.to_string(), bytes(row.base), bytes(row.compare)));
    };
    compare::compare(&sequences, &sequences, &names, out, |_, _| {});
    let kernel = |name: &str, base, other| (name.to_owned(), base, other);
    let both =
        [("k1", 4096), ("k2", 100), ("k3", 30), ("k4", 0)].map(|(name, size)| kernel(name, Some(size), Some(size)));
    assert_eq!(found[..4], both);
    // An address is no name, not even in the same run.
    assert_eq!(found[4..], [kernel("0x7f10", Some(0), None), kernel("0x7f10", None, Some(0))]);
}

/// Frees that match nothing are reported, and end nothing.
#[test]
fn unmatched_frees_are_counted() {
    let (events, notes) = events_of(&[block_row(1, "FREE", 1, 9, ""), block_row(2, "FREE", 1, 9, "")].concat());
    assert_eq!(brief(&events), [("unknown", 1, 1), ("unknown", 2, 1)]);
    assert_eq!(notes.unmatched_frees, 2);
}

/// Steps by calls of `step()`: the k-th ends step k and begins the next.
#[test]
fn steps_by_calls() {
    let step = |id, number: u64| format!("{id},SYSTEM,STEP,{number},{id},5,5,0,N/A,,,\n");
    let rows = [
        block_row(1, "MALLOC", 1, 1, ""),
        step(2, 1),
        block_row(3, "MALLOC", 3, 2, ""),
        step(4, 2),
        block_row(5, "MALLOC", 5, 3, ""),
        step(6, 3),
    ];
    let (events, _) = events_of(&rows.concat());
    let steps: Vec<u32> = events
        .iter()
        .filter_map(|event| match event.kind {
            EventKind::Alloc(alloc) => Some(alloc.block.step),
            EventKind::StepEnd { step } => Some(100 + step),
            EventKind::StepStart { step } => Some(200 + step),
            _ => None,
        })
        .collect();
    assert_eq!(steps, [0, 101, 202, 2, 102, 203, 3, 103, 204]);
}

/// Sorting through files gives the same events.
#[test]
fn small_memory_gives_the_same_events() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("dump.csv");
    let rows: Vec<String> = (0..2000_u64)
        .rev()
        .map(|id| {
            let event = if id % 2 == 0 { "MALLOC" } else { "FREE" };
            block_row(id, event, 1000 + id, 1 + id / 2, "")
                .replace(",5,5,0,", if id % 4 < 2 { ",6,6,0," } else { ",5,5,0," })
        })
        .collect();
    fs::write(&path, format!("{HEADER}{}", rows.concat())).expect("written");
    let paths = [path];
    let mut watcher: Watcher = Box::new(|_| {});
    let (dumps, identities) = ((paths.as_slice(), [Format::Csv].as_slice()), Identities::default());
    let (large, notes) = events_of_rows(|take| {
        each_row_in_order(dumps, &Kept::process(), (&identities, Sorter::default), &mut watcher, take)
    });
    notes.expect("read");
    let (small, notes) = events_of_rows(|take| {
        each_row_in_order(dumps, &Kept::process(), (&identities, || Sorter::new(4000)), &mut watcher, take)
    });
    notes.expect("read");
    assert_eq!(brief(&large).len(), 2000);
    assert_eq!(large, small);
}

/// A free that failed is taken back however many others came before it.
#[test]
fn late_failure_restores_its_block() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("dump.csv");
    let mut rows = HEADER.to_owned();
    let last = 70_000;
    for number in 1..=last {
        rows += &block_row(2 * number, "MALLOC", 1000 + 2 * number, number, "");
        rows += &block_row(2 * number + 1, "FREE", 1001 + 2 * number, number, "");
    }
    rows += &block_row(2 * last + 2, "MALLOC", 1002 + 2 * last, last, ",shadow:true");
    fs::write(&path, rows).expect("written");
    let recorder = Recorder::default();
    run(&[path], vec![Box::new(recorder.clone())]).expect("read");
    let events = recorder.0.lock().expect("lock");
    let restored: Vec<(u64, u64, bool)> = events
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::Alloc(alloc) if alloc.restored => {
                Some((alloc.block.allocation_id, alloc.block.alloc_time_ns, alloc.promoted))
            }
            _ => None,
        })
        .collect();
    assert_eq!(restored, [(last, 1000 + 2 * last, false)]);
}

/// Stages of unordered rows: each row begins a run.
#[test]
fn progress_of_sorting_is_reported() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("dump.csv");
    let rows: Vec<String> = (1..=1000_u64)
        .rev()
        .map(|id| block_row(id, "MALLOC", id, id, "").replace(",5,5,0,", &format!(",{},5,0,", 5 + id % 2)))
        .collect();
    fs::write(&path, format!("{HEADER}{}", rows.concat())).expect("written");
    let size_bytes = fs::metadata(&path).expect("file").len();
    let reported = Arc::new(Mutex::new(Vec::new()));
    let teller = Arc::clone(&reported);
    let watcher: Watcher = Box::new(move |progress| teller.lock().expect("lock").push(progress));
    run_with(&[path], Options { watcher: Some(watcher), ..Options::default() }, Vec::new()).expect("readable");
    let reported: Vec<Progress> = std::mem::take(&mut *reported.lock().expect("lock"));
    let last = |stage| reported.iter().rfind(|it| it.stage == stage).map(|it| (it.done, it.total));
    assert!(last(Stage::Looking).is_some_and(|(done, total)| done < total && total == size_bytes));
    assert_eq!(last(Stage::Reading), Some((size_bytes, size_bytes)));
    assert_eq!((last(Stage::Sorting), last(Stage::Analysing)), (Some((1000, 1000)), Some((1000, 1000))));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Rows merged in place give the events, and the repairs, of sorted rows: in any order, with any times, and in
    /// either of two files of two processes.
    #[test]
    fn merging_is_sorting(
        rows in prop::collection::vec((0..2_usize, 5..7_u32, 1..20_u64, 1..8_u64, 1..6_u64, any::<bool>()), 0..60),
        cut in 0..3_usize,
    ) {
        let folder = tempfile::tempdir().expect("folder");
        let mut texts = [HEADER.to_owned(), HEADER.to_owned()];
        for (file, pid, id, time, number, is_free) in rows {
            let event = if is_free { "FREE" } else { "MALLOC" };
            texts[file] += &block_row(id, event, time, number, "").replace(",5,5,0,", &format!(",{pid},5,0,"));
        }
        // The end of a file may be torn.
        texts[0].truncate((texts[0].len() - 10 * cut).max(HEADER.len()));
        let paths: Vec<PathBuf> = ["a.csv", "b.csv"].into_iter().map(|name| folder.path().join(name)).collect();
        for (path, text) in paths.iter().zip(&texts) {
            fs::write(path, text).expect("written");
        }
        let formats = [Format::Csv; 2];
        let mut watcher: Watcher = Box::new(|_| {});
        let (found, identities) = Merged::find(&paths, &formats, &Kept::process(), &mut watcher).expect("readable");
        let found = found.expect("few runs");
        let sorter = (&identities, Sorter::default);
        let dumps = (paths.as_slice(), formats.as_slice());
        let (sorted, expected) =
            events_of_rows(|take| each_row_in_order(dumps, &Kept::process(), sorter, &mut watcher, take));
        let (merged, notes) = events_of_rows(|take| each_row_as_it_lies(found, &mut watcher, take));
        prop_assert_eq!(notes.expect("read"), expected.expect("read"));
        prop_assert_eq!(merged, sorted);
    }
}

/// Every stage is reported from its start to its end, in bytes of all files and in rows of all files.
#[test]
fn progress_is_reported() {
    let stages_of = |pids: [&str; 2], format: sinks::Format| {
        let folder = tempfile::tempdir().expect("folder");
        let row = |id: u64, pid: &str| block_row(id, "MALLOC", id, id, "").replace(",5,5,0,", &format!(",{pid},5,0,"));
        let mut paths = Vec::new();
        for (name, pid) in ["1", "2"].into_iter().zip(pids) {
            let path = folder.path().join(format!("memscope_dump_{name}"));
            if format == sinks::Format::Csv {
                fs::write(&path, format!("{HEADER}{}{}", row(1, pid), row(name.parse().expect("number"), pid)))
                    .expect("written");
            } else {
                let writer = Connection::open(&path).expect("database");
                let columns: Vec<String> = sinks::row::COLUMNS.iter().map(|name| format!("\"{name}\" TEXT")).collect();
                writer.execute_batch(&format!("CREATE TABLE memscope_dump ({})", columns.join(","))).expect("made");
                for id in 1..=2 {
                    let attr = format!("{{\"allocation_id\":\"{id}\",\"size\":\"64\"}}");
                    let row = format!("{id}{name},'MALLOC','PTA','N/A',5,{pid},7,'0','0x1{id}{name}','{attr}','',''");
                    writer.execute_batch(&format!("INSERT INTO memscope_dump VALUES ({row})")).expect("written");
                }
            }
            paths.push(path);
        }
        let size_bytes: u64 = paths.iter().map(|path| fs::metadata(path).expect("file").len()).sum();
        let reported = Arc::new(Mutex::new(Vec::new()));
        let teller = Arc::clone(&reported);
        let watcher: Watcher = Box::new(move |progress| teller.lock().expect("lock").push(progress));
        run_with(&paths, Options { watcher: Some(watcher), ..Options::default() }, Vec::new()).expect("readable");
        let reported: Vec<Progress> = std::mem::take(&mut *reported.lock().expect("lock"));
        assert!(
            reported.windows(2).all(|pair| pair[0].stage != pair[1].stage || pair[0].done <= pair[1].done),
            "{reported:?}"
        );
        let last = reported
            .iter()
            .enumerate()
            .filter(|(at, it)| reported.get(at + 1).is_none_or(|next| next.stage != it.stage));
        let last: Vec<_> = last.map(|(_, it)| (it.stage, it.done, it.total)).collect();
        (size_bytes, last)
    };
    for format in [sinks::Format::Csv, sinks::Format::Db] {
        let (size_bytes, stages) = stages_of(["5", "6"], format);
        let rows = if format == sinks::Format::Csv { 3 } else { 4 };
        // One row is in the first file twice: it is read, and not used.
        assert_eq!(stages, [(Stage::Looking, size_bytes, size_bytes), (Stage::Analysing, rows, 4)]);
    }
    let (size_bytes, stages) = stages_of(["5", "5"], sinks::Format::Db);
    assert_eq!(stages, [(Stage::Looking, size_bytes, size_bytes), (Stage::Analysing, 4, 4)]);
}

/// Folders mean the dumps in them; other files are refused by name.
#[test]
fn folders_and_foreign_files() {
    let folder = tempfile::tempdir().expect("folder");
    let dump = folder.path().join("msmemscope_5_2026_ascend/device_0/dump");
    fs::create_dir_all(&dump).expect("made");
    let message = |path: &Path| run(&[path.to_owned()], Vec::new()).expect_err("refused").to_string();
    assert!(message(folder.path()).ends_with("is a folder without dumps (memscope_dump_*.csv or .db)"));
    fs::write(dump.join("memscope_dump_1.csv"), format!("{HEADER}{}", block_row(1, "MALLOC", 1, 1, "")))
        .expect("written");
    fs::write(dump.join("python_trace_1.csv"), "x").expect("written");
    assert_eq!(run(&[folder.path().to_owned()], Vec::new()).expect("read").notes.rows, 1);
    let device = run(&[PathBuf::from("/dev/zero")], Vec::new()).expect_err("a device");
    assert!(crate::error_chain(&device).ends_with("it is a device, and a regular file is needed"), "{device}");
    assert!(message(&folder.path().join("none")).starts_with("cannot read"));
    let empty = folder.path().join("empty.db");
    Connection::open(&empty).expect("database").execute_batch("CREATE TABLE x (a)").expect("made");
    assert!(message(&empty).ends_with("is no dump: it has no table `memscope_dump`"));
    fs::write(&empty, [b"SQLite format 3\0".as_slice(), &[7; 5000]].concat()).expect("written");
    assert!(message(&empty).starts_with("cannot read database"));
}

/// A view that gives rows without end is not taken for a table.
#[test]
fn views_are_refused() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("view.db");
    let sql =
        "CREATE VIEW memscope_dump AS WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x) SELECT n FROM x";
    Connection::open(&path).expect("database").execute_batch(sql).expect("made");
    let message = run(&[path], Vec::new()).expect_err("refused").to_string();
    assert!(message.ends_with("is no dump: it has no table `memscope_dump`"), "{message}");
}

/// A database that was never closed: its rows are still in the log beside it. They are read, and the files are
/// unchanged.
#[test]
fn database_of_a_killed_tracer() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("memscope_dump_1.db");
    let writer = Connection::open(&path).expect("database");
    let columns: Vec<String> = sinks::row::COLUMNS.iter().map(|name| format!("\"{name}\" TEXT")).collect();
    writer.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).expect("set");
    writer.execute_batch(&format!("CREATE TABLE memscope_dump ({})", columns.join(","))).expect("made");
    let row = "1,'MALLOC','PTA','N/A',5,7,7,'0','0x10','{\"allocation_id\":\"1\",\"size\":\"64\"}','',''";
    writer.execute_batch(&format!("INSERT INTO memscope_dump VALUES ({row})")).expect("written");
    let list = || -> Vec<(PathBuf, Vec<u8>)> {
        let mut files: Vec<PathBuf> =
            fs::read_dir(folder.path()).expect("folder").map(|entry| entry.expect("entry").path()).collect();
        files.sort();
        files
            .into_iter()
            .filter(|path| !path.ends_with("memscope_dump_1.db-shm"))
            .map(|path| (path.clone(), fs::read(path).expect("read")))
            .collect()
    };
    let before = list();
    assert!(before.len() == 2 && before[1].1.len() > 100);
    assert_eq!(run(&[path], Vec::new()).expect("read").notes.rows, 1);
    assert_eq!(list(), before);
}

/// Resident bytes of this process.
fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("readable");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// A process that reads one run after the other gives the call stacks of each back: here a thousand runs, each with 64 KiB of
/// texts that no other has, in a few MiB. Kept for good they would take 60 MiB.
#[test]
fn a_thousand_runs_take_the_memory_of_few() {
    const ROWS: u64 = 64;
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("dump.csv");
    let filling = "f".repeat(960);
    let mut after_first = 0;
    for run_number in 0..1000 {
        let frame = |row: u64| format!("libx.so({filling}_{run_number}_{row}+0x1) [0x1]");
        let rows: String = (1..=ROWS)
            .map(|row| {
                block_row(row, "MALLOC", row * 10, row, "").replace(",,\n", &format!(",,\"{}\n\"\n", frame(row)))
            })
            .collect();
        fs::write(&path, format!("{HEADER}{rows}")).expect("written");
        let recorder = Recorder::default();
        let outcome = super::run(std::slice::from_ref(&path), vec![Box::new(recorder.clone())]).expect("readable");
        let stack = recorder.0.lock().expect("lock")[ROWS as usize - 1].stacks.native.expect("a stack");
        assert_eq!(stack.frames(), [frame(ROWS).as_str()]);
        drop(outcome);
        assert!(stack.is_empty());
        if run_number == 100 {
            after_first = resident_bytes();
        }
    }
    let grown = resident_bytes().saturating_sub(after_first);
    assert!(grown < 16 << 20, "{grown} bytes more");
}

/// Frames that a program makes up, cells of many lines, threads without Python, made-up frees: what was written is read
/// again, from both kinds of dumps.
#[test]
fn stacks_survive() {
    let frames = ["=libx.so(f<a, \"b\">+0x1) [0x2]", "line\nbreak\u{202e}\\", "\"", ",\"\",", "main\""];
    let symbols = (1..).zip(frames).map(|(address, name)| (address, name, 0, "", 0)).collect::<Vec<_>>();
    let main = |time| at(time, 7, 7);
    let records = [
        main(1).symbols(1, &symbols),
        main(1).native(5, 1, &[1, 2, 3, 4, 5], StackEnd::Depth),
        main(1).python(6, 1, &[(0xc0, 2, 3)], StackEnd::Root),
        main(1).code((0xc0, 3), "a \"b\",.py", "f\n", &[]),
        main(1).python(7, 1, &[], StackEnd::NotPython),
        Who::stacked(main(2).alloc(0x10, 1, device(0)), 5, 6),
        Who::stacked(main(3).alloc(0x20, 1, device(0)), 0, 7),
        Who::stacked(main(4).free(0x10), 5, 99),
        main(5).alloc(0x30, 1, device(0)),
    ];
    let stacks_of = |event: &Event| {
        let of_block = match &event.kind {
            EventKind::Alloc(alloc) => alloc.block.stacks,
            EventKind::Free(free) => free.block.stacks,
            _ => Stacks::default(),
        };
        (event.id, event.stacks, of_block)
    };
    for format in [sinks::Format::Csv, sinks::Format::Db] {
        let folder = trace(&records.concat(), format, Vec::new()).1;
        let (live, read) = (Recorder::default(), Recorder::default());
        let kept = Some(Kept::process());
        let config = PipelineConfig { rows: crate::testing::rows(), kept, ..PipelineConfig::default() };
        let mut pipeline = Pipeline::new(config, Audience::of(vec![Box::new(live.clone())]));
        pipeline.feed(&records.concat()).expect("fed");
        drop(pipeline.finish(&[]));
        run(&[folder.path().join("out")], vec![Box::new(read.clone())]).expect("readable");
        let of_blocks = |recorder: &Recorder| -> Vec<_> {
            let events = recorder.0.lock().expect("lock");
            let blocks = events.iter().filter(|event| matches!(event.kind, EventKind::Alloc(_) | EventKind::Free(_)));
            blocks.map(stacks_of).collect()
        };
        assert_eq!(of_blocks(&read), of_blocks(&live));
        let first = of_blocks(&read)[0].1;
        assert_eq!(first.python.map(Stack::texts), Some(vec!["a \"b\",.py(?): f\n"]));
        let native = first.native.expect("a stack");
        assert_eq!((native.texts()[0], native.end()), ("halMemAlloc", StackEnd::Depth));
        assert_eq!(native.texts()[2], "line\nbreak\u{202e}\\(+0x0) [0x2]");
    }
}

/// Pools with custom names, marks and ranges of domains, and operations of ATB come back as such; no range of a domain
/// is a step, though its number counts.
#[test]
fn names_of_the_programs_own() {
    let mstx =
        |id: u64, what: &str, name: &str, attr: &str| format!("{id},MSTX,{what},\"{name}\",{id},5,5,0,N/A,{attr},,\n");
    let rows = [
        block_row(1, "MALLOC", 1, 1, "").replace("PTA", "mine"),
        mstx(2, "Range_start", "step start", "\"{domain:d}\""),
        mstx(3, "Mark", "x", "\"{domain:d}\""),
        mstx(4, "Range_end", "Range end from id 1", "\"{domain:d}\""),
        mstx(5, "Range_start", "step start", ""),
        mstx(6, "Range_end", "Range end from id 2", ""),
        "7,OP_LAUNCH,ATB_START,add,7,5,5,0,N/A,\"{path:N/A,workspace_ptr:0x0000000000000010,workspace_size:64}\",,\n"
            .to_owned(),
        "8,ACCESS,UNKNOWN,add,8,5,5,0,0x0000000000000020,\"{allocation_id:3,addr:0x0000000000000020,size:10,type:ATB,dtype:ACL_INT8,\
         format:ACL_FORMAT_ND,shape:[2,5,]}\",,\n"
            .to_owned(),
    ];
    let (events, notes) = events_of(&rows.concat());
    let words: Vec<String> = events
        .iter()
        .map(|event| match &event.kind {
            EventKind::Alloc(alloc) => alloc.block.pool.event_type().to_owned(),
            EventKind::DomainMark { domain, .. } => format!("domain {domain}"),
            EventKind::Mark(_) => "mark".to_owned(),
            EventKind::StepStart { step } => format!("start {step}"),
            EventKind::StepEnd { step } => format!("end {step}"),
            EventKind::AtbOp(op) => {
                format!("{} {} {:#x}+{}", op.name, op.begins, op.workspace_addr, op.workspace_bytes)
            }
            EventKind::Access(Access { kind, op, allocation_id, pool, addr, size_bytes, dtype, format, shape }) => {
                let tensor = format!("{addr:#x}+{size_bytes} of {allocation_id} {dtype} {format:?} {shape:?}");
                format!("{op} {kind:?} {} {tensor}", pool.event_type())
            }
            EventKind::Free(_) | EventKind::ProcessEnd => "end of all".to_owned(),
            other => panic!("{other:?}"),
        })
        .collect();
    let domain = "domain d";
    let steps = ["mark", "start 1", "mark", "end 1"];
    assert_eq!(words[..4], ["mine", domain, domain, domain]);
    assert_eq!(words[4..8], steps);
    let access = "add Unknown ATB 0x20+10 of 3 ACL_INT8 Some(\"ACL_FORMAT_ND\") [2, 5]";
    assert_eq!(words[8..], ["add true 0x10+64", access, "end of all", "end of all"]);
    assert!(notes.unused.is_empty());
}

/// Rows refer to stacks beside them: a missing one counts as none, and their number and reason are noted. A table among
/// the files is read with its rows; damaged lines of it do not affect others.
#[test]
fn missing_stacks_are_noted() {
    let folder = tempfile::tempdir().expect("folder");
    let dump = folder.path().join("memscope_dump_7.csv");
    let row = |id: u64, python: &str, native: &str| {
        format!(
            "{id},MALLOC,PTA,N/A,{id},5,6,1,0x0000000000003039,\"{{allocation_id:{id},size:10}}\",{python},{native}\n"
        )
    };
    let rows = [row(1, "\"NA\"", "#1"), row(2, "#2", "#3"), row(3, "", "#4"), row(4, "", "\"#1\n\"")].concat();
    fs::write(&dump, format!("{HEADER}{rows}")).expect("written");
    let read = |paths: &[PathBuf]| {
        let recorder = Recorder::default();
        let outcome = run(paths, vec![Box::new(recorder.clone())]).expect("readable");
        let frames = |stack: Option<Stack>| stack.map(|stack| stack.texts().join(" "));
        let events = recorder.0.lock().expect("lock");
        let stacks: Vec<_> = events
            .iter()
            .filter(|event| matches!(event.kind, EventKind::Alloc(_)))
            .map(|event| (frames(event.stacks.python), frames(event.stacks.native)))
            .collect();
        (stacks, outcome.notes.lines())
    };
    let some = |text: &str| Some(text.to_owned());
    let (stacks, notes) = read(std::slice::from_ref(&dump));
    assert_eq!(stacks, [(some(""), None), (None, None), (None, None), (None, some("#1"))]);
    let table = folder.path().join("memscope_stacks_7.csv");
    let text = "4 call stack(s) that rows refer to are in no table and count as none: cannot read ";
    assert_eq!(notes, [format!("{text}`{}`: No such file or directory (os error 2)", table.display())]);

    fs::write(&table, "Stack,Call Stack\n#1,\"f \"\"\"\"\nmain\n\"\nrubbish\n#2,\"a.py(1): g\n\"\n#3,\"torn")
        .expect("written");
    for paths in [vec![dump.clone()], vec![dump.clone(), table.clone()], vec![folder.path().to_owned()]] {
        let (stacks, notes) = read(&paths);
        let wanted = [(some(""), some("f \"\" main")), (some("a.py(1): g"), None), (None, None), (None, some("#1"))];
        assert_eq!(stacks, wanted);
        let text = "2 call stack(s) that rows refer to are in no table and count as none:";
        assert_eq!(notes, [format!("{text} `{}` has no #3", table.display())]);
    }
    fs::write(&table, "Stack;Call Stack\n").expect("written");
    let foreign = "is no table of stacks: line 1 is not `Stack,Call Stack`";
    assert!(read(&[dump]).1[0].ends_with(foreign), "another file");
}
