//! What pprof and torch's viewers read from a file of `export`, against the journal: read by Python, and added up there.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use memscope_tests::harness::expect::truth;
use memscope_tests::harness::journal::{Call, Entry};
use memscope_tests::harness::tracer::{Run, Tracer, tracer_path};
use serde_json::Value;

use super::shared::{assert_nothing_lost, pool_blocks};

/// Sums of the four values by layer and device: fields of `profile.proto` by their numbers.
const PPROF: &str = r"
import collections, gzip, json, sys
def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128: return value, at
def varints(data):
    at, values = 0, []
    while at < len(data):
        value, at = varint(data, at); values.append(value)
    return values
def fields(data):
    at, out = 0, collections.defaultdict(list)
    while at < len(data):
        key, at = varint(data, at)
        value, at = varint(data, at)
        if key & 7 == 2: value, at = data[at:at + value], at + value
        elif key & 7 != 0: raise ValueError(key)
        out[key >> 3].append(value)
    return out
profile = fields(gzip.open(sys.argv[1]).read())
texts = [text.decode() for text in profile[6]]
sums = collections.defaultdict(lambda: [0, 0, 0, 0])
for sample in map(fields, profile[2]):
    labels = {texts[label[1][0]]: texts[label[2][0]] for label in map(fields, sample[3]) if label[2]}
    place = sums[labels['layer'] + ' ' + labels.get('device', '')]
    for at, value in enumerate(varints(b''.join(sample[2]))): place[at] += value
print(json.dumps(sums))
";

/// Live blocks of a snapshot by address; what its own trace leaves; blocks and bytes of all allocations.
const SNAPSHOT: &str = "
import json, pickle, sys
snapshot = pickle.load(open(sys.argv[1], 'rb'))
trace = [entry for of in snapshot['device_traces'] for entry in of]
live, of_trace, all = {}, {}, [0, 0]
for segment in snapshot['segments']:
    at = segment['address']
    for block in segment['blocks']:
        assert block.get('address', at) == at, block
        if block['state'] == 'active_allocated': live[at] = block['size']
        at += block['size']
    assert at == segment['address'] + segment['total_size'], segment
for entry in trace:
    if entry['action'] == 'alloc':
        of_trace[entry['addr']] = entry['size']; all[0] += 1; all[1] += entry['size']
    elif entry['action'] == 'free_completed': del of_trace[entry['addr']]
print(json.dumps([live, of_trace, all]))
";

fn read(run: &Run, script: &str, options: &[&str]) -> Value {
    let file: PathBuf = run.folder.path().join("exported");
    let mut export = Command::new(tracer_path());
    let made = export.arg("export").arg(run.folder.capture()).args(options).arg("-o").arg(&file).output();
    let made = made.expect("runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let read = Command::new("python3").args(["-c", script]).arg(&file).output().expect("python3");
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    std::fs::remove_file(file).expect("a file");
    serde_json::from_slice(&read.stdout).expect("JSON")
}

/// The program's own books of its pool.
struct Books {
    at_peak: [u64; 2],
    at_end: BTreeMap<u64, u64>,
    all: [u64; 2],
    /// Bytes that were asked for: of the blocks at the end by address, and in all.
    asked_at_end: BTreeMap<u64, u64>,
    asked_bytes: u64,
}

/// What the program did with its pool: at its peak, when the last step ended or the last block was allocated, and in all.
fn books(entries: &[&Entry]) -> Books {
    let allocates = |entry: &Entry| entry.pta_report().is_some_and(|it| it.component == 0 && it.kind == 0);
    let sum = |blocks: &BTreeMap<u64, u64>| [blocks.len() as u64, blocks.values().sum()];
    let (mut at_peak, mut all) = ([0; 2], [0; 2]);
    for at in (0..entries.len()).filter(|at| allocates(entries[*at])) {
        let live = sum(&pool_blocks(&entries[..=at]));
        if live[1] > at_peak[1] {
            at_peak = live;
        }
        let size = entries[at].pta_report().map_or(0, |report| report.size.unsigned_abs());
        all = [all[0] + 1, all[1] + size];
    }
    let ended = entries.iter().rposition(|entry| matches!(entry.call(), Call::RangeEnd(_)));
    let end = ended.or_else(|| entries.iter().rposition(|entry| allocates(entry))).expect("an allocation");
    let at_end = pool_blocks(&entries[..=end]);
    // The journal has a request behind the report of its block.
    let requests = || entries.iter().filter(|entry| entry.symbol == "simpta_malloc" && entry.ret == Some(0));
    let last = requests().map(|entry| (entry.out, entry.args[0]));
    let asked_at_end = last.filter(|(addr, _)| at_end.contains_key(addr)).collect();
    Books { at_peak, at_end, all, asked_at_end, asked_bytes: requests().map(|entry| entry.args[0]).sum() }
}

fn by_address(blocks: &Value) -> BTreeMap<u64, u64> {
    let blocks = blocks.as_object().expect("blocks").iter();
    blocks.map(|(at, size)| (at.parse().expect("an address"), size.as_u64().expect("a size"))).collect()
}

#[test]
fn profiles_of_a_pool_are_the_journals() {
    let programs: [&[&str]; 3] = [
        &["--rounds", "3", "--leaks", "2", "--leak-size", "3000000"],
        &["--rounds", "4", "--leaks", "0"],
        &["--rounds", "2", "--leaks", "7", "--leak-size", "512"],
    ];
    for arguments in programs {
        let run = Tracer::run("pool", arguments).options(&["--call-stack=c"]).succeed();
        assert_nothing_lost(&run);
        let journal = run.journal();
        let (_, entries) = journal.by_process().pop_first().expect("a process");
        let books = books(&entries);
        let (peak, end) = (&books.at_peak, [books.at_end.len() as u64, books.at_end.values().sum()]);
        for (at, live) in [("peak", *peak), ("end", end)] {
            let sums = read(&run, PPROF, &["--format", "pprof", "--at", at]);
            let wanted = [live[0], live[1], books.all[0], books.all[1]];
            assert_eq!(sums["PTA npu:0"], serde_json::json!(wanted), "{arguments:?} at {at}: {sums:#}");
        }
        let snapshot = read(&run, SNAPSHOT, &["--format", "snapshot", "--at", "end"]);
        assert_eq!(by_address(&snapshot[0]), books.at_end, "{arguments:?}");
        // As torch does it: the trace has the bytes that were asked for.
        assert_eq!(by_address(&snapshot[1]), books.asked_at_end, "{arguments:?}");
        assert_eq!(snapshot[2], serde_json::json!([books.all[0], books.asked_bytes]), "{arguments:?}");
        let rounded = |(addr, asked): (&u64, &u64)| asked.div_ceil(512) * 512 == books.at_end[addr];
        assert!(books.asked_at_end.iter().all(rounded) && books.asked_bytes < books.all[1], "{arguments:?}");
    }
}

/// Without a pool the driver's blocks are what is in use.
#[test]
fn profiles_of_the_driver_are_the_journals() {
    let run = Tracer::run("devices", &["--blocks", "20", "--leak"]).options(&["--call-stack=c"]).succeed();
    assert_nothing_lost(&run);
    let journal = run.journal();
    let (_, entries) = journal.by_process().pop_first().expect("a process");
    let calls = truth(&entries, false).calls;
    let sums = read(&run, PPROF, &["--format", "pprof"]);
    let mut wanted: BTreeMap<String, [u64; 4]> = BTreeMap::new();
    let mut live: BTreeMap<String, [u64; 2]> = BTreeMap::new();
    for call in calls {
        let device = format!("HAL npu:{}", call.block.device);
        let (at, of) = (live.entry(device.clone()).or_default(), wanted.entry(device).or_default());
        if call.is_alloc {
            (at[0], at[1], of[2], of[3]) = (at[0] + 1, at[1] + call.block.size, of[2] + 1, of[3] + call.block.size);
        } else {
            (at[0], at[1]) = (at[0] - 1, at[1] - call.block.size);
        }
        if at[1] > of[1] {
            (of[0], of[1]) = (at[0], at[1]);
        }
    }
    wanted.retain(|device, _| device != "HAL cpu");
    assert!(!wanted.is_empty());
    for (device, wanted) in wanted {
        assert_eq!(sums[&device], serde_json::json!(wanted), "{device}: {sums:#}");
    }
}
