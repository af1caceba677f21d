//! What goes wrong while stacks are taken: frames are right or absent, a stack that is not whole says so, and the report
//! counts it.
//!
//! Tables of the kernel side are filled, or made wrong, from outside: the programs there cannot notice that.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Write as _;
use std::mem::offset_of;
use std::time::{Duration, Instant};

use aya::maps::{Array, HashMap as BpfHashMap, Map, MapData, MapInfo};
use memscope::capture::Reader;
use memscope::decode::{Body, Records};
use memscope::model::end_text;
use memscope_common::unwind::RULES;
use memscope_common::{PythonLayout, StackEnd, python::LAYOUT_FREES};
use memscope_tests::harness::pythons::{Python, interpreters};
use memscope_tests::harness::tracer::{Run, Running, Tracer, in_vm};
use nix::sys::signal::Signal;
use nix::unistd::{SysconfVar, sysconf};

use crate::native_stacks::{ByBlock, is_same_function, truths, walks};
use crate::python_stacks::{self, Found, FrameText, LOST_FRAME};
use crate::stack_witness::pipe;

/// A map of the tracer. Others may run.
fn map(running: &Running, name: &str) -> Map {
    let descriptors = fs::read_dir(format!("/proc/{}/fdinfo", running.pid())).expect("descriptors");
    let texts = descriptors.filter_map(|file| fs::read_to_string(file.expect("a descriptor").path()).ok());
    let ids = texts.filter_map(|text| text.lines().find_map(|line| line.strip_prefix("map_id:")?.trim().parse().ok()));
    let is_it = |id: &u32| MapInfo::from_id(*id).expect("a map").name_as_str() == Some(name);
    let id = ids.into_iter().find(is_it).unwrap_or_else(|| panic!("no map `{name}`"));
    Map::from_map_data(MapData::from_id(id).expect("a map")).expect("a map of a known kind")
}

/// These are never released. Kernels without compare-and-exchange have them in a map of locked ones.
fn take_all_slots(running: &Running, locks: &str, locked: &str) {
    let mut slots: Array<MapData, [u64; 8]> = map(running, locks).try_into().expect("an array");
    (0..slots.len()).for_each(|slot| slots.set(slot, &[1, 0, 0, 0, 0, 0, 0, 0], 0).expect("a slot"));
    let mut locked_slots: BpfHashMap<MapData, u32, u32> = map(running, locked).try_into().expect("a hash map");
    let taken = (0..1 << 16).take_while(|slot| locked_slots.insert(slot, &1, 0).is_ok()).count();
    assert!(taken as u32 == slots.len() && taken > 0, "{taken} {}", slots.len());
}

/// The stack of one call: `None` if its frames were lost.
type Reported = Option<(Vec<u64>, StackEnd)>;

/// What the capture says of all calls.
#[derive(Default)]
struct Calls {
    /// Native stacks of allocations, with process and size.
    allocations: Vec<((u32, u64), Reported)>,
    /// Calls by kind and end of their stack.
    ends: BTreeMap<(&'static str, StackEnd), u64>,
    /// Calls with lost frames.
    lost: u64,
    /// Calls with frames lost with an earlier call, and sent with a later one.
    late: u64,
}

impl Calls {
    fn of(run: &Run) -> Self {
        let mut reader = Reader::open(&run.folder.capture()).expect("a capture");
        let row = reader.header().rows.iter().position(|row| row.symbol == "halMemAlloc").expect("the row") + 1;
        let mut bytes = Vec::new();
        while let Some(chunk) = reader.next_chunk().expect("readable") {
            bytes.extend_from_slice(chunk);
        }
        let (mut stacks, mut calls) = (HashMap::new(), Self::default());
        for (at, record) in Records::new(&bytes).map(|record| record.expect("decodable")).enumerate() {
            if let Body::Stack(stack) = record.body {
                let frames: Vec<u64> = stack.frames.addresses().collect();
                stacks.entry(stack.id).or_insert((at, (frames, stack.end)));
            }
        }
        for (at, record) in Records::new(&bytes).map(|record| record.expect("decodable")).enumerate() {
            let Body::Call(call) = record.body else { continue };
            for (kind, id) in [("C", call.native_stack), ("Python", call.python_stack)] {
                match id.map(|id| stacks.get(&id)) {
                    Some(Some((reported, (_, end)))) => {
                        *calls.ends.entry((kind, *end)).or_default() += 1;
                        calls.late += u64::from(*reported > at);
                    }
                    Some(None) => calls.lost += 1,
                    None => {}
                }
            }
            if let (true, Some(id)) = (usize::from(record.row) == row, call.native_stack) {
                let size_bytes = call.values.get(1).expect("a size");
                calls.allocations.push(((record.pid, size_bytes), stacks.get(&id).map(|(_, stack)| stack.clone())));
            }
        }
        calls
    }

    /// Whether a call is among those.
    fn have(&self, kind: &'static str, end: StackEnd) -> bool {
        self.ends.contains_key(&(kind, end))
    }
}

/// Holds what was taken against what the program says of itself, and against what the report counts. Gives the end of each
/// allocation's stack, and how many frames are missing.
fn hold(run: &Run) -> (Calls, ByBlock<(StackEnd, usize)>) {
    let (calls, truths) = (Calls::of(run), truths(&run.stdout));
    let mut held = ByBlock::new();
    for (block, reported) in &calls.allocations {
        let truth = truths.get(block).unwrap_or_else(|| panic!("the program knows no {block:?}"));
        let Some((frames, end)) = reported else { continue };
        let what = format!("{block:?} {}\n  truth {:x?}\n  taken {frames:x?}", truth.case, truth.frames);
        assert!(is_same_function(frames[0], truth.frames[0]) && frames.len() <= truth.frames.len(), "{what}");
        assert_eq!(frames[1..], truth.frames[1..frames.len()], "{what}");
        let missing = truth.frames.len() - frames.len();
        // That the outermost frame is the last has to be known, too.
        assert!(*end != StackEnd::Root || missing == 0, "{what}: {end:?}");
        held.insert(*block, (*end, missing));
    }
    assert_counted(run, &calls);
    (calls, held)
}

/// The report counts what the capture has.
fn assert_counted(run: &Run, calls: &Calls) {
    const NO_FAULT: [StackEnd; 4] = [StackEnd::Root, StackEnd::Depth, StackEnd::NotPython, StackEnd::OneOfSeveral];
    let end = &run.json()["end"];
    let cut = end["cut_stacks"].as_array().expect("a list").iter().map(|cut| {
        let text = |key: &str| cut[key].as_str().expect("text").to_owned();
        ((text("kind"), text("reason")), cut["count"].as_u64().expect("a number"))
    });
    let faults = calls
        .ends
        .iter()
        .filter(|((_, end), _)| !NO_FAULT.contains(end))
        .map(|((kind, end), count)| (((*kind).to_owned(), end_text(*end).expect("a reason").to_owned()), *count));
    let (cut, faults): (BTreeMap<_, _>, BTreeMap<_, _>) = (cut.collect(), faults.collect());
    assert!(cut == faults || calls.late > 0, "{cut:?} {faults:?} {}", run.said());
    // Frames that come too late are of use to some.
    let lost = lost(run, "stack without its frames");
    assert!(
        (calls.lost..=calls.lost + calls.late).contains(&lost),
        "{lost} {}, {} {}",
        calls.lost,
        calls.late,
        run.said()
    );
}

/// What the report counts as lost for a reason.
fn lost(run: &Run, reason: &str) -> u64 {
    let end = &run.json()["end"];
    let losses = end["losses"].as_array().expect("a list").iter().filter(|loss| loss["reason"] == reason);
    losses.filter_map(|loss| loss["count"].as_u64()).sum()
}

fn tracer(cases: &[&str]) -> Tracer {
    Tracer::run("chains-O2", cases).options(&["--json", "--call-stack=c:150"])
}

/// Runs a program that waits until something was done about the tracer.
fn interfered(cases: &[&str], options: &[&str], interfere: impl FnOnce(&Running)) -> Run {
    let tracer = tracer(&[&["wait"], cases].concat()).options(options);
    let mut go = pipe(&tracer);
    let running = tracer.start();
    running.wait_for_output("waits\n");
    interfere(&running);
    go.write_all(b"g").expect("written");
    let run = running.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    run
}

/// Where the call was made is known all the same.
#[test]
fn stacks_for_which_there_is_no_slot_are_one_frame() {
    let run = interfered(&["recurse"], &[], |running| take_all_slots(running, "STACK_LOCKS", "STACK_LOCKED"));
    let (_, held) = hold(&run);
    let frames_missing = truths(&run.stdout).into_iter().map(|(block, truth)| (block, truth.frames.len() - 1));
    assert_eq!(held, frames_missing.map(|(block, missing)| (block, (StackEnd::Busy, missing))).collect());
    // Three allocations and as many frees.
    assert_eq!(lost(&run, "call stack of one frame: too many at once"), 6, "{}", run.said());
}

/// Rules that find no room are not learnt: stacks are finished outside, as often as that may be asked for. In the first 0.1 s that is 1024
/// times by the ring, more than there are calls, and 32 times by perf buffers.
#[test]
fn stacks_without_room_for_rules_are_finished_outside_or_cut() {
    for (options, is_bounded) in [(&[][..], false), (&["--transport=perf"], true)] {
        let run = interfered(&["repeat"], options, |running| {
            let mut rules: Array<MapData, [u64; 4]> = map(running, "UNWIND_RULES").try_into().expect("an array");
            (0..RULES).for_each(|place| rules.set(place, &[u64::MAX - u64::from(place), 1, 0, 0], 0).expect("a place"));
        });
        let (calls, held) = hold(&run);
        assert_eq!(held.len(), 200, "{}", run.said());
        assert!(calls.have("C", StackEnd::Root), "{:?}", calls.ends);
        // In an emulated machine there may be time enough to ask for each.
        assert!(!is_bounded || calls.have("C", StackEnd::NoRule) || in_vm() || !walks(), "{:?}", calls.ends);
    }
}

/// Records that find no room are lost, never mixed up.
#[test]
fn stacks_that_find_no_room_in_the_ring_are_lost() {
    for options in [&[][..], &["--transport=perf"]] {
        let run = tracer(&["burst"]).option("--ring-size=4K").options(options).succeed();
        let (calls, held) = hold(&run);
        assert!(!held.is_empty(), "{}", run.said());
        // An emulated program can be too slow to fill it.
        assert!(lost(&run, "ring full") > 0 || in_vm(), "{:?}", calls.ends);
    }
}

/// A tracer that stands still while the program calls loses no call: beyond half of the ring frees bring no stacks, beyond three
/// quarters no call does, which a message and the report say. Once it has caught up, stacks are back.
#[test]
fn a_tracer_that_is_behind_leaves_out_stacks() {
    // 16384 pairs of calls without a stack are some 2.6 MB. Stacks that are copied to be walked outside take up to a quarter of the ring.
    let tracer = tracer(&["wait", "burst", "wait", "recurse"]).options(&["--ring-size", "4M"]);
    let mut go = pipe(&tracer);
    let running = tracer.start();
    running.wait_for_output("waits\n");
    running.signal(Signal::SIGSTOP);
    go.write_all(b"g").expect("written");
    running.wait_for_output_times("waits\n", 2);
    running.signal(Signal::SIGCONT);
    running.wait_for_rows_of(",FREE,", 16384);
    running.wait_for_message("Warning: the tracer is behind", 1);
    go.write_all(b"g").expect("written");
    let run = running.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    assert_eq!(run.json()["end"]["lost"], 0, "{}", run.said());

    let left_out = |symbol: &str| {
        let losses = run.json()["end"]["losses"].as_array().expect("a list").clone();
        let reason = "no call stack: the tracer was behind";
        let of = losses.iter().find(|loss| loss["symbol"] == symbol && loss["reason"] == reason);
        of.and_then(|loss| loss["count"].as_u64()).unwrap_or_else(|| panic!("{symbol}: {}", run.said()))
    };
    let (of_allocations, of_frees) = (left_out("halMemAlloc"), left_out("halMemFree"));
    // The n-th of 4096 paths asks for n pages, four times over; what comes later goes on counting. Stacks have the first of them, not the
    // last, and the three behind.
    let pages = (0..16384 - of_allocations).map(|call| call % 4096 + 1).chain(4097..=4099);
    let taken = Calls::of(&run).allocations.into_iter().map(|((_, size_bytes), stack)| {
        assert!(stack.is_some(), "{size_bytes}: {}", run.said());
        size_bytes / 4096
    });
    assert!(taken.eq(pages), "{}", run.said());
    // What fills the third quarter is more than what the last one took, of smaller records.
    assert!(of_allocations > 0 && of_allocations < of_frees - of_allocations, "{}", run.said());
    assert_eq!(run.stderr.matches("the tracer is behind").count(), 1, "{}", run.said());
}

/// A page of the stack that cannot be read ends it, as long as it cannot be.
#[test]
fn stacks_end_where_a_page_is_gone() {
    let (_, held) = hold(&tracer(&["pause", "gone"]).succeed());
    let ends: Vec<StackEnd> = held.into_values().map(|(end, _)| end).collect();
    let (gone, back) = ends.split_at(3);
    assert_eq!(gone, [StackEnd::Fault; 3]);
    // Larger pages take a larger stack. No copy reaches to its first functions: each stack then has one frame more.
    let large = sysconf(SysconfVar::PAGE_SIZE).expect("a size").is_some_and(|bytes| bytes > 4096);
    let cut = if large { back.iter().take_while(|end| **end == StackEnd::NoRule).count() } else { 0 };
    assert!(cut < 6 && back[cut..].iter().all(|end| *end == StackEnd::Root) && back.len() == 6, "{back:?}");
}

/// Processes that are killed while they call leave nothing behind that others would need.
#[test]
fn stacks_of_processes_that_are_killed() {
    let run = tracer(&["killed", "pause", "recurse"]).succeed();
    let (calls, held) = hold(&run);
    // Ten of the processes had made their 16 calls before.
    assert!(held.len() > 160 && !calls.have("C", StackEnd::Busy), "{:?}", calls.ends);
    let parent = truths(&run.stdout).into_iter().filter(|(_, truth)| truth.case == "recurse").map(|(block, _)| block);
    let ends: Vec<_> = parent.map(|block| held.get(&block).copied()).collect();
    assert_eq!(ends, [Some((StackEnd::Root, 0)); 3], "{}", run.said());
}

/// Python code that waits in a scenario, when it does.
fn python_waits(python: &Python, scenarios: &[&str], options: &[&str]) -> Running {
    let place = tempfile::tempdir().expect("a folder");
    let script = python_stacks::workload(place.path());
    let arguments = [&["-I", script.to_str().expect("a plain path")], scenarios].concat();
    let tracer = Tracer::run_program(python.path.as_os_str(), &arguments);
    let running = tracer.options(&["--json", "--call-stack=python:100"]).options(options).start();
    running.wait_for_output("ready ");
    running
}

/// The process that says so.
fn pid_of(running: &Running) -> u32 {
    running.stdout().split_whitespace().nth(1).and_then(|pid| pid.parse().ok()).expect("a process")
}

/// Lets it go on.
fn go(running: &Running) {
    fs::write(running.folder.path().join("go"), "").expect("a file");
}

/// Runs Python code that waits until something was done about the tracer.
fn python_interfered(python: &Python, interfere: impl FnOnce(&Running, u32)) -> Run {
    let running = python_waits(python, &["wait", "plain"], &[]);
    interfere(&running, pid_of(&running));
    go(&running);
    let run = running.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    run
}

/// Stacks of allocations, each after checking it against the program's own.
fn hold_python(python: &Python, run: &Run) -> Vec<Found> {
    let found = python_stacks::stacks(&run.folder.capture(), "halMemAlloc");
    let truths = python_stacks::truths(&run.stdout);
    let is_right = |(taken, truth): (&FrameText, &FrameText)| taken == truth || taken.0 == LOST_FRAME;
    // Calls may be missing, but do not change places.
    let mut rest = truths.iter();
    for stack in &found {
        let fits = |truth: &python_stacks::Truth| {
            let len = stack.frames.len();
            let whole = stack.frames.iter().any(|frame| frame.0 == LOST_FRAME) || len == truth.frames.len();
            (stack.pid, stack.tid) == (truth.pid, truth.tid)
                && len <= truth.frames.len()
                && stack.frames.iter().zip(&truth.frames).all(is_right)
                && (stack.end != StackEnd::Root || whole || len == 0)
        };
        assert!(rest.any(fits), "{python:?}: {stack:?} is no stack of the program's\n{}", run.said());
    }
    assert_counted(run, &Calls::of(run));
    found
}

#[test]
fn python_stacks_for_which_there_is_no_slot_are_empty() {
    for python in interpreters() {
        let run = python_interfered(&python, |running, _| take_all_slots(running, "PYTHON_LOCKS", "PYTHON_LOCKED"));
        let found = hold_python(&python, &run);
        let busy = |found: &Found| (found.end, found.frames.len()) == (StackEnd::Busy, 0);
        assert!(found.len() == 6 && found.iter().all(busy), "{python:?}: {found:?}");
    }
}

/// Fields of the interpreter's structs that lie elsewhere: what is found there is none of what is looked for.
#[test]
fn python_stacks_by_wrong_offsets_are_none_or_cut() {
    const FIELDS: [usize; 4] = [
        offset_of!(PythonLayout, thread_id),
        offset_of!(PythonLayout, frame),
        offset_of!(PythonLayout, back),
        offset_of!(PythonLayout, code),
    ];
    for python in interpreters() {
        for field in FIELDS {
            let run = python_interfered(&python, |running, pid| move_field(running, pid, field));
            let found = hold_python(&python, &run);
            let is_cut = |found: &Found| found.frames.is_empty() || found.end != StackEnd::Root;
            assert!(found.len() == 6 && found.iter().all(is_cut), "{python:?} field at {field}: {found:?}");
        }
    }
}

/// Where a process's interpreter has what, as the kernel side sees it.
type Layouts = BpfHashMap<MapData, u32, [u8; size_of::<PythonLayout>()]>;

fn layouts(running: &Running) -> Layouts {
    map(running, "PYTHON").try_into().expect("a hash map")
}

/// The layout of a process, as soon as it exists.
fn layout_of(layouts: &Layouts, pid: u32) -> [u8; size_of::<PythonLayout>()] {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match layouts.get(&pid, 0) {
            Ok(layout) => return layout,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Makes the kernel side believe that a field lies eight bytes further on.
fn move_field(running: &Running, pid: u32, field: usize) {
    let mut layouts = layouts(running);
    let mut layout = layout_of(&layouts, pid);
    let at = u16::from_le_bytes([layout[field], layout[field + 1]]) + 8;
    layout[field..field + 2].copy_from_slice(&at.to_le_bytes());
    layouts.insert(&pid, &layout, 0).expect("a layout");
}

/// What is known of code holds until code is freed; in each interpreter that is seen.
#[test]
fn python_stacks_know_of_freed_code() {
    for python in interpreters() {
        let running = python_waits(&python, &["wait", "plain", "wait", "churn", "wait"], &[]);
        let pid = pid_of(&running);
        let layouts = layouts(&running);
        let freed_ns = || {
            let layout = layout_of(&layouts, pid);
            assert_ne!(layout[offset_of!(PythonLayout, flags)] & LAYOUT_FREES, 0, "{python:?}");
            let at = offset_of!(PythonLayout, freed_ns);
            u64::from_le_bytes(layout[at..at + 8].try_into().expect("eight bytes"))
        };
        let mut seen = Vec::new();
        for round in 1..=3 {
            running.wait_for_output_times("ready ", round);
            seen.push(freed_ns());
            go(&running);
        }
        let run = running.finish();
        assert_eq!(run.code(), 0, "{}", run.said());
        // What `churn` defines lives for one call each; what `plain` calls was there before.
        assert!(seen[2] > seen[1], "{python:?}: {seen:?}");
    }
}

/// What there is no room for is lost: whole stacks, and names of single frames.
#[test]
fn python_stacks_that_find_no_room_in_the_ring_are_lost() {
    // 900 calls, each by code of its own.
    const CALLS: usize = 900;
    for python in interpreters() {
        let running = python_waits(&python, &["wait", "churn"], &["--ring-size=4K"]);
        // The ring is not emptied meanwhile.
        running.signal(Signal::SIGSTOP);
        go(&running);
        running.wait_for_output_times("TRUTH ", CALLS);
        running.signal(Signal::SIGCONT);
        let run = running.finish();
        assert_eq!(run.code(), 0, "{}", run.said());
        let found = hold_python(&python, &run).len();
        assert!((1..CALLS).contains(&found), "{python:?}: {found}");
        assert!(lost(&run, "ring full") > 0, "{python:?}: {}", run.said());
    }
}
