//! Bytes count once: the sums of all answers, against each other and against the journal.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use memscope_tests::harness::document::{document, npu};
use memscope_tests::harness::expect::{Block, Memory, truth};
use memscope_tests::harness::journal::{Call, Entry};
use memscope_tests::harness::tracer::{Run, Tracer, tracer_path};
use serde_json::Value;

use super::ledger::{ledger, part};
use super::peaks::offline;
use super::shared::{assert_nothing_lost, pool_blocks};

/// Blocks and bytes.
type Sum = (u64, u64);

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("no {key}: {value:#}"))
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().unwrap_or_else(|| panic!("no {key}: {value:#}"))
}

fn sum(sums: &[Value]) -> Sum {
    let one = |at: &Value| (number(at, "blocks"), number(at, "size_bytes"));
    sums.iter().map(one).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

/// Each list of groups adds up to the whole.
fn assert_groups(groups: &Value, whole: &Value, places_left_out: u64) {
    let whole = (number(whole, "blocks"), number(whole, "size_bytes"));
    assert_eq!((sum(list(groups, "owners")), sum(list(groups, "sizes"))), (whole, whole), "{groups:#}");
    if places_left_out == 0 && !list(groups, "places").is_empty() {
        assert_eq!(sum(list(groups, "places")), whole, "{groups:#}");
    }
}

fn findings(document: &Value, kind: &str) -> Vec<Value> {
    list(document, "findings").iter().filter(|found| found["finding"] == kind).cloned().collect()
}

/// By process, device and pool.
fn place(found: &Value) -> String {
    format!("{} {} {}", found["pid"], found["device"], found["pool"])
}

/// Bytes by owner, those without any left out.
fn owners(sums: &[Value], bytes: &str) -> BTreeMap<String, u64> {
    let mut owners = BTreeMap::new();
    for one in sums {
        *owners.entry(one["owner"].to_string()).or_default() += number(one, bytes);
    }
    owners.retain(|_, bytes| *bytes > 0);
    owners
}

fn assert_decompositions(document: &Value) -> BTreeMap<String, Value> {
    let found = findings(document, "decompose");
    for found in &found {
        for (of_parts, whole) in [("peak_bytes", "peak_bytes"), ("end_bytes", "end_bytes")] {
            let parts: u64 = list(found, "parts").iter().map(|part| number(part, of_parts)).sum();
            let tree: u64 = list(found, "tree").iter().map(|node| number(node, of_parts)).sum();
            assert_eq!((parts, tree), (number(found, whole), number(found, whole)), "{found:#}");
        }
    }
    found.into_iter().map(|found| (place(&found), found)).collect()
}

/// Owners by device and pool at a moment of a capture, as `diff` has them: all that came since the beginning.
fn diffed(capture: &Path, to: &str) -> BTreeMap<String, BTreeMap<String, u64>> {
    let output =
        Command::new(tracer_path()).arg("diff").arg(capture).args(["--from", "0", "--to", to, "--json"]).output();
    let output = output.expect("runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let document = document(&output.stdout);
    let of = |pool: &Value| {
        let grown: Vec<Value> = list(pool, "owners")
            .iter()
            .map(|one| serde_json::json!({"owner": one["owner"], "size_bytes": one["to"]["size_bytes"]}))
            .collect();
        (format!("{} {}", pool["device"], pool["pool"]), owners(&grown, "size_bytes"))
    };
    list(&document, "pools").iter().map(of).filter(|(_, owners)| !owners.is_empty()).collect()
}

/// The calls up to the last work: what follows are frees of the exit, if the report says that there was one.
pub(crate) fn judged<'a>(entries: &[&'a Entry], document: &Value) -> Vec<&'a Entry> {
    let freed = findings(document, "span").iter().any(|span| number(&span["exit"], "freed_blocks") > 0);
    let works = |entry: &&Entry| {
        let allocates = entry.pta_report().is_some_and(|report| report.kind == 0);
        allocates
            || matches!(
                entry.call(),
                Call::Alloc { .. }
                    | Call::Create { .. }
                    | Call::Launch { .. }
                    | Call::Mark(_)
                    | Call::RangeStart(..)
                    | Call::RangeEnd(_)
            )
    };
    let last = entries.iter().rposition(works).filter(|_| freed).map_or(entries.len(), |last| last + 1);
    entries[..last].to_vec()
}

/// Bytes that these calls leave, by device.
fn held(entries: &[&Entry]) -> BTreeMap<String, u64> {
    let mut held = BTreeMap::new();
    for block in truth(entries, false).held {
        *held.entry(block.device).or_default() += block.size;
    }
    held
}

/// Towers of an export, by pool and device: the weights of its lines.
fn exported(capture: &Path, options: &[&str]) -> BTreeMap<String, u64> {
    let output = Command::new(tracer_path()).arg("export").arg(capture).args(options).output().expect("runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut towers = BTreeMap::new();
    for line in String::from_utf8(output.stdout).expect("text").lines() {
        let (stack, weight) = line.rsplit_once(' ').expect("a weight");
        let tower = stack.split(';').next().unwrap_or_default().to_owned();
        *towers.entry(tower).or_default() += weight.parse::<u64>().expect("a number");
    }
    towers
}

/// Driver blocks that a pool handed out memory from while they lived: the places of their allocations among the calls.
fn segments(entries: &[&Entry], calls: &[Memory]) -> BTreeSet<usize> {
    let mut segments = BTreeSet::new();
    for (time_ns, addr) in entries.iter().filter_map(|entry| {
        entry.pta_report().filter(|report| report.kind == 0).map(|report| (entry.time_ns, report.addr))
    }) {
        let mut live = BTreeMap::new();
        for (number, call) in calls.iter().enumerate().filter(|(_, call)| call.time_ns <= time_ns) {
            if call.is_alloc {
                live.insert(call.block.addr, number)
            } else {
                live.remove(&call.block.addr)
            };
        }
        let behind = live.range(..=addr).next_back().map(|(_, number)| *number);
        segments.extend(behind.filter(|number| addr < calls[*number].block.addr + calls[*number].block.size));
    }
    segments
}

/// Exports weigh what the journal has, each byte once: allocations and live blocks of the driver by device, without segments of the pool,
/// and what the pool handed out and had not got back when the program stopped working.
fn assert_exports(run: &Run, document: &Value) {
    let (journal, capture) = (run.journal(), run.folder.capture());
    let (_, entries) = journal.by_process().pop_first().expect("a process");
    let judged = judged(&entries, document);
    let (held, truth) = (truth(&judged, false).held, truth(&entries, false));
    let device_of = |device: &str| format!("Hal memory, npu {device}");
    let mut wanted: [BTreeMap<String, u64>; 4] = Default::default();
    let segments = segments(&entries, &truth.calls);
    // Of each address the last allocation is the one that is held.
    let last = |addr: u64| truth.calls.iter().rposition(|call| call.is_alloc && call.block.addr == addr);
    let own = |block: &&Block| last(block.addr).is_some_and(|number| !segments.contains(&number));
    for (_, call) in truth.calls.iter().enumerate().filter(|(number, call)| call.is_alloc && !segments.contains(number))
    {
        *wanted[0].entry(device_of(&call.block.device)).or_default() += call.block.size;
        *wanted[1].entry(device_of(&call.block.device)).or_default() += 1;
    }
    for block in held.iter().filter(own) {
        *wanted[2].entry(device_of(&block.device)).or_default() += block.size;
        *wanted[3].entry(device_of(&block.device)).or_default() += 1;
    }
    for report in entries.iter().filter_map(|entry| entry.pta_report()).filter(|it| it.component == 0 && it.kind == 0) {
        let tower = format!("Pytorch Caching memory pool, npu {}", report.device);
        *wanted[0].entry(tower.clone()).or_default() += report.size.unsigned_abs();
        *wanted[1].entry(tower).or_default() += 1;
    }
    let live = pool_blocks(&judged);
    if !live.is_empty() {
        let tower = "Pytorch Caching memory pool, npu 0".to_owned();
        wanted[2].insert(tower.clone(), live.values().sum());
        wanted[3].insert(tower, live.len() as u64);
    }
    let kinds = [("allocated", "bytes"), ("allocated", "count"), ("live", "bytes"), ("live", "count")];
    for ((what, weight), wanted) in kinds.into_iter().zip(wanted) {
        let mut found = exported(&capture, &["--what", what, "--weight", weight]);
        found.retain(|tower, _| tower.starts_with("Hal ") || tower.starts_with("Pytorch Caching"));
        assert_eq!(found, wanted, "{what} {weight}");
    }
}

/// The report in words, of everything at once, adds up as its JSON does.
fn assert_words(run: &Run) {
    let options = ["--analysis=decompose,peaks,leaks,fragmentation,oom"];
    let words = Tracer::replay(&run.folder.capture()).options(&options).succeed().stdout;
    assert!(words.contains("Ledger of ") && words.contains("Peak of "), "{words}");
    let _ = Tracer::replay(&run.folder.capture()).options(&options).option("--json").succeed().json();
}

/// One process: everything that its run says adds up, live and from the capture.
fn assert_sums(run: &Run) {
    assert_nothing_lost(run);
    let (document, capture) = (run.json(), run.folder.capture());
    let parts = assert_decompositions(&document);
    assert!(!parts.is_empty());
    assert_eq!(assert_decompositions(&offline("decompose", &capture)).len(), parts.len());
    let (at_peak, at_end) = (diffed(&capture, "peak"), diffed(&capture, "end"));
    for peak in findings(&document, "peak").into_iter().chain(findings(&offline("peaks", &capture), "peak")) {
        assert_groups(&peak["groups"], &peak["seen"], number(&peak, "places_left_out"));
        let decomposed = &parts[&place(&peak)];
        assert_eq!(number(&peak["seen"], "size_bytes"), number(decomposed, "peak_bytes"), "{peak:#}");
        let names = owners(list(decomposed, "parts"), "peak_bytes");
        assert_eq!(names, owners(list(&peak["groups"], "owners"), "size_bytes"), "{peak:#}");
        let key = format!("{} {}", peak["device"], peak["pool"]);
        assert_eq!(Some(&names), at_peak.get(&key), "{key}");
        let names = owners(list(decomposed, "parts"), "end_bytes");
        assert_eq!(names, at_end.get(&key).cloned().unwrap_or_default(), "{key}");
    }
    assert_ledgers(run, &document, &parts);
    assert_exports(run, &document);
    assert_profiles(run, &parts);
    assert_words(run);
}

/// The ledger of each device is what the journal has live at the end, and what decompose says of the driver and of each pool without what the
/// exit freed.
fn assert_ledgers(run: &Run, document: &Value, parts: &BTreeMap<String, Value>) {
    let journal = run.journal();
    let (_, entries) = journal.by_process().pop_first().expect("a process");
    let (at_exit, at_end) = (held(&judged(&entries, document)), held(&entries));
    let freed = |of: &Value, pool: &Value| {
        let spans = findings(document, "span");
        let freed = spans.iter().flat_map(|span| list(span, "freed"));
        let freed = freed.filter(|freed| (&freed["device"], &freed["pool"]) == (&of["device"], pool));
        freed.map(|freed| number(freed, "size_bytes") + number(&freed["segments"], "size_bytes")).sum::<u64>()
    };
    for found in parts.values().filter(|found| found["pool"] == "HAL" && npu(found).is_some()) {
        let (pid, device) = (number(found, "pid"), npu(found).expect("a device"));
        let live = |at: &BTreeMap<String, u64>| at.get(&device.to_string()).copied().unwrap_or(0);
        assert_eq!(number(found, "end_bytes"), live(&at_exit), "{found:#}");
        assert_eq!(freed(found, &found["pool"]), live(&at_exit) - live(&at_end), "{found:#}");
        let pid = u32::try_from(pid).expect("a process");
        let device = u32::try_from(device).expect("a device");
        let Some(ledger) = ledger(run, pid, device, "end") else { panic!("no ledger of device {device}") };
        assert_eq!(number(&ledger["hal"]["total"], "size_bytes"), live(&at_end), "{ledger:#}");
        for pool in list(&ledger, "pools") {
            let key = format!("{pid} {} {}", found["device"], pool["pool"]);
            let handed = number(&pool["allocated"]["total"], "size_bytes");
            let end = parts.get(&key).map_or(0, |at| number(at, "end_bytes") + number(at, "end_untracked_bytes"));
            assert_eq!(handed + freed(found, &pool["pool"]), end, "{key}: {pool:#}");
            let seen = part(&pool["allocated"], "pool_allocated");
            assert!(seen <= handed, "{pool:#}");
        }
    }
}

/// Speedscope's profiles weigh what decompose has at the peak.
fn assert_profiles(run: &Run, parts: &BTreeMap<String, Value>) {
    let capture = run.folder.capture();
    let output = Command::new(tracer_path()).arg("export").arg(&capture).args(["--format", "speedscope"]).output();
    let output = output.expect("runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let file: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let mut seen = 0;
    for profile in list(&file, "profiles") {
        let name = profile["name"].as_str().expect("a name");
        let Some((pool, rest)) = name.split_once(" of process ").filter(|_| name.ends_with(", at the peak")) else {
            continue;
        };
        let (pid, rest) = rest.split_once(" on ").expect("a device");
        let device = rest.split(',').next().unwrap_or_default().replace("NPU ", "npu:");
        let weights: u64 = list(profile, "weights").iter().filter_map(Value::as_u64).sum();
        let key = format!("{pid} {} {}", Value::from(device), Value::from(pool));
        assert_eq!(weights, number(&parts[&key], "peak_bytes"), "{name}");
        seen += 1;
    }
    assert!(seen > 0, "no profile of a peak");
}

#[test]
fn sums_of_all_answers_agree() {
    let programs: [(&str, &[&str]); 7] = [
        ("steps", &["--steps", "12", "--leaks", "3", "--free-at-exit"]),
        ("physical", &["--leak", "--blocks", "4"]),
        ("exits", &["--how", "_exit"]),
        ("pool", &["--rounds", "3", "--leaks", "2", "--leak-size", "3000000"]),
        ("pool", &["--rounds", "2", "--threads", "2", "--workspaces", "4"]),
        ("steps", &["--leaks", "2"]),
        ("devices", &["--blocks", "20", "--leak"]),
    ];
    for (program, arguments) in programs {
        let options = ["--analysis=decompose,peaks,leaks", "--call-stack=c", "--json"];
        assert_sums(&Tracer::run(program, arguments).options(&options).succeed());
    }
}

/// Four requests fail on two devices within a moment: each has the memory of its own device as it was, whatever follows. The
/// device of 256 MiB holds blocks of 4 MiB, the other one of 5 MiB; three are given back before the second request.
#[test]
fn failures_have_their_own_state() {
    let tracer = Tracer::run("ooms", &[]).options(&["--analysis=oom", "--call-stack=c", "--json"]);
    let run = tracer.env("ASCEND_SIM_CAPACITY_MB", "256").succeed();
    assert_nothing_lost(&run);
    let found = findings(&run.json(), "oom");
    assert_eq!(found.len(), 4, "{found:#?}");
    let journal = run.journal();
    let (_, entries) = journal.by_process().pop_first().expect("a process");
    let calls = truth(&entries, false).calls;
    for device in [0_u64, 1] {
        // By hand: the state of the first failure is that of the last allocation, of the second that of three frees later.
        let own: Vec<_> = calls.iter().filter(|call| call.block.device == device.to_string()).collect();
        let full = own.iter().rposition(|call| call.is_alloc).expect("an allocation") + 1;
        let live = |until: usize| {
            let change = |call: &&Memory| {
                let (blocks, bytes) = (1_i64, call.block.size.cast_signed());
                if call.is_alloc { (blocks, bytes) } else { (-blocks, -bytes) }
            };
            let sum = own[..until].iter().map(change).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            (sum.0.cast_unsigned(), sum.1.cast_unsigned())
        };
        let size = (4 + device) << 20;
        for (asked, state) in [(size, live(full)), (8 * size, live(full + 3))] {
            let is_meant = |oom: &&Value| npu(oom) == Some(device) && number(oom, "size_bytes") == asked;
            let oom = found.iter().find(is_meant).unwrap_or_else(|| panic!("none of {asked}: {found:#?}"));
            let [hal] = list(oom, "pools") else { panic!("{oom:#}") };
            assert_eq!((number(&hal["live"], "blocks"), number(&hal["live"], "size_bytes")), state, "{oom:#}");
            assert_eq!(number(hal, "used_bytes"), state.1, "{oom:#}");
            assert_groups(&hal["groups"], &hal["live"], number(hal, "places_left_out"));
        }
    }
}
