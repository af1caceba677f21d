//! Native stacks through Python, libtorch and `torch_npu` down to the driver, against the compiler's own unwinder.
//!
//! A program that does the same each time runs twice: by itself, where the simulated driver asks glibc's `backtrace` at each
//! allocation, and traced. Frames are compared by file and offset. While it is traced it cannot be asked: return probes
//! stand in the way of unwinders.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use memscope::capture::{Note, Reader};
use memscope::decode::{Body, Records};
use memscope::model::StackEnd;
use memscope_tests::harness::journal::Journal;
use memscope_tests::torch::bench::Program;

use super::version_name;

/// Frames that are asked for; the simulated driver keeps as many.
pub(super) const DEPTH: usize = 256;

/// File name, and bytes from the start of its first mapping.
pub(super) type Place = (String, u64);

/// An allocation: its size and where it was made, innermost first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Made {
    pub(super) size: u64,
    pub(super) places: Vec<Place>,
    pub(super) end: StackEnd,
}

/// Allocations of each thread in order, the thread that began first first.
pub(super) type ByThread = Vec<Vec<Made>>;

pub(super) fn in_order(threads: BTreeMap<u32, (u64, Vec<Made>)>) -> ByThread {
    let mut threads: Vec<(u64, Vec<Made>)> = threads.into_values().collect();
    threads.sort_by_key(|(first_ns, _)| *first_ns);
    threads.into_iter().map(|(_, made)| made).collect()
}

/// Mappings of a process: where they begin, where they end, and the file's name.
fn mappings(maps: &Path) -> Vec<(u64, u64, String)> {
    let text = fs::read_to_string(maps).expect("the program's mappings");
    let line = |line: &str| {
        let mut fields = line.split_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let name = fields.nth(4).map_or("", |path| path.rsplit('/').next().unwrap_or(path));
        Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?, name.to_owned()))
    };
    text.lines().filter_map(line).collect()
}

/// What the unwinder said, without the driver's own frames.
fn by_the_unwinder(journal: &Journal, maps: &Path) -> ByThread {
    let mappings = mappings(maps);
    let place = |address: &u64| {
        let (_, _, name) = mappings.iter().find(|(start, end, _)| (start..end).contains(&address))?;
        let first = mappings.iter().find(|(.., other)| other == name).map(|(start, ..)| *start)?;
        Some((name.clone(), address - first))
    };
    let mut threads: BTreeMap<u32, (u64, Vec<Made>)> = BTreeMap::new();
    for entry in &journal.entries {
        let Some(stack) = entry.stack() else { continue };
        let places = stack.iter().map(|address| place(address).expect("code that is still mapped"));
        let places = places.skip_while(|(file, _)| file == "libascend_hal.so").collect();
        let thread = threads.entry(entry.tid).or_insert_with(|| (entry.time_ns, Vec::new()));
        thread.1.push(Made { size: entry.args[0], places, end: StackEnd::Root });
    }
    in_order(threads)
}

/// Calls of a function in the trace, with the block's size as this value in its records.
pub(super) fn by_the_trace(capture: &Path, symbol: &str, size_at: usize) -> ByThread {
    let mut reader = Reader::open(capture).expect("a capture");
    let row = reader.header().rows.iter().position(|row| row.symbol == symbol).expect("the row") + 1;
    let mut bytes = Vec::new();
    while let Some(chunk) = reader.next_chunk().expect("readable") {
        bytes.extend_from_slice(chunk);
    }
    let mut symbols: HashMap<(u64, u64), Place> = HashMap::new();
    let mut stacks: HashMap<u64, (Vec<Place>, StackEnd)> = HashMap::new();
    let mut threads: BTreeMap<u32, (u64, Vec<Made>)> = BTreeMap::new();
    for record in Records::new(&bytes).map(|record| record.expect("a valid record")) {
        match record.body {
            Body::Note(json) => {
                if let Ok(Note::Symbols { generation, symbols: new }) = Note::parse(json) {
                    let place = |symbol: memscope::capture::Symbol| (symbol.module, symbol.module_offset);
                    symbols.extend(new.into_iter().map(|symbol| ((generation, symbol.address), place(symbol))));
                }
            }
            Body::Stack(stack) => {
                let place = |address| symbols.get(&(stack.generation, address)).cloned().unwrap_or_default();
                stacks.insert(stack.id.get(), (stack.frames.addresses().map(place).collect(), stack.end));
            }
            Body::Call(call) if usize::from(record.row) == row => {
                let Some(id) = call.native_stack else { continue };
                let (places, end) = stacks.get(&id.get()).expect("sent before").clone();
                let thread = threads.entry(record.tid).or_insert_with(|| (record.time_ns, Vec::new()));
                thread.1.push(Made { size: call.values.get(size_at).expect("a size"), places, end });
            }
            _ => {}
        }
    }
    in_order(threads)
}

fn compare(line: &str) {
    // Without its cache, the pool asks the driver for each block.
    let program = Program::new(line).env("PYTHONHASHSEED", "0").env("PYTORCH_NO_NPU_MEMORY_CACHING", "1");
    let (journal, folder, _folder) = program.clone().env("ASCEND_SIM_STACKS", "1").alone();
    let truth = by_the_unwinder(&journal, &folder.join("maps"));
    let (run, _) = program.traced(&[&format!("--call-stack=c:{DEPTH}")]);
    assert_same(line, &by_the_trace(&run.folder.capture(), "halMemAlloc", 1), &truth);
}

/// Every frame is that of the unwinder; nearly all stacks are whole, and all of them once their rules are known.
pub(super) fn assert_same(line: &str, found: &ByThread, truth: &ByThread) {
    assert_eq!(found.len(), truth.len(), "threads that allocate");
    let (mut whole, mut frames, mut deepest, mut short) = (0, 0, 0, Vec::new());
    for (number, (found, truth)) in found.iter().zip(truth).enumerate() {
        let sizes = |made: &[Made]| made.iter().map(|made| made.size).collect::<Vec<_>>();
        assert_eq!(sizes(found), sizes(truth), "the program did not do the same twice, in thread {number}");
        for (at, (found, truth)) in found.iter().zip(truth).enumerate() {
            let what = format!("thread {number}, allocation {at}: {:?}\n{found:?}\n{truth:?}", found.end);
            assert_eq!(found.places[..], truth.places[..found.places.len().min(truth.places.len())], "{what}");
            frames += found.places.len();
            deepest = deepest.max(found.places.len());
            if found.end == StackEnd::Root {
                assert_eq!(found.places.len(), truth.places.len(), "{what}");
                whole += 1;
            } else {
                assert_eq!(found.end, StackEnd::NoRule, "{what}");
                short.push(at);
            }
        }
    }
    let all = whole + short.len();
    println!("{line}, torch_npu {}: {whole} of {all} stacks whole, {frames} frames, {deepest} at most", version_name());
    println!("not whole, by their numbers: {short:?}");
    assert!(all > 20 && short.len() * 10 <= all, "{} of {all} stacks are not whole", short.len());
    let files = |name: &str| truth.iter().flatten().any(|made| made.places.iter().any(|(file, _)| file == name));
    assert!(["libtorch_cpu.so", "libtorch_npu.so", "libtorch_python.so"].into_iter().all(files), "not through torch");
}

#[test]
fn native_stacks_of_training() {
    compare("train.py adamw 5 256");
}

#[test]
fn native_stacks_of_churn() {
    compare("churn.py 1000");
}
