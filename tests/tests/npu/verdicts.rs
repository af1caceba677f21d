//! What the report concludes of programs that know what they keep, and of requests that fail.

use memscope_tests::torch::bench::Program;
use serde_json::Value;

use super::version_name;

/// The pool's blocks are multiples of it, ...
const ROUND: u64 = 512;
/// ... with room for what operators may read behind a tensor.
const BEHIND: u64 = 32;
const STEPS: u64 = 40;

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("no {key}: {value:#}"))
}

fn of_kind<'a>(json: &'a Value, kind: &str) -> Vec<&'a Value> {
    json["findings"].as_array().expect("findings").iter().filter(|found| found["finding"] == kind).collect()
}

/// What the lists keep is found, and nothing else, although Python frees it at its end. Of the first step nothing is judged, and the last one that
/// has ended judges none of its own; the copy of the weights is of one step. Nothing shows that the last step of the optimizer has ended.
fn assert_kept(marked: bool) {
    let program = Program::new(&format!("keeps.py {} {STEPS}", if marked { "marked" } else { "plain" }));
    let (run, _) = program.traced_with(&["--analysis=leaks", "--call-stack=python"]);
    let line = run.stdout.lines().find_map(|line| line.strip_prefix("kept ")).expect("the program's books").to_owned();
    let [losses, loss_bytes, outputs, out_bytes] =
        line.split(' ').map(|word| word.parse().expect("a number")).collect::<Vec<u64>>()[..]
    else {
        panic!("{line}")
    };
    assert_eq!((losses, outputs), (STEPS, 3 * STEPS));
    let json = run.json();
    let leaks = of_kind(&json, "step_leaks");
    let [leaks] = leaks[..] else { panic!("not one: {leaks:#?}") };
    let ended = if marked { STEPS } else { STEPS - 1 };
    let from = if marked { "marks" } else { "optimizer" };
    assert_eq!((number(leaks, "steps_ended"), &leaks["steps_from"]), (ended, &from.into()));
    let places = leaks["places"].as_array().expect("places").iter().filter(|place| place["verdict"] == "leak");
    let mut found: Vec<_> = places.map(|place| ["blocks", "size_bytes"].map(|key| number(place, key))).collect();
    found.sort_unstable();
    let blocks = |each: u64, bytes: u64| {
        let blocks = each * (ended - 2);
        [blocks, blocks * (bytes + BEHIND).next_multiple_of(ROUND)]
    };
    assert_eq!(found, [blocks(1, loss_bytes), blocks(3, out_bytes)], "{leaks:#}");
    let span = of_kind(&json, "span");
    assert_eq!(span.first().map(|span| &span["exit"]["called"]), Some(&"py_finalize".into()), "{span:#?}");
    println!("kept in lists, marked: {marked}, torch_npu {}: {found:?}", version_name());
}

/// Requests beyond the memory fraction fail without a call of the driver: each is found, and no other; the query of the free memory between them is none.
#[test]
fn requests_beyond_the_fraction_are_found() {
    let run = Program::new("limited.py").traced_with(&["--analysis=auto", "--json"]).0;
    let refused: Vec<u64> = run.stdout.lines().filter_map(|line| line.strip_prefix("refused ")?.parse().ok()).collect();
    assert_eq!(refused, [800, 900, 2000].map(|mib: u64| mib << 20), "{}", run.stdout);
    let document = run.json();
    let failed = of_kind(&document, "oom");
    let said: Vec<u64> = failed.iter().filter_map(|found| found["size_bytes"].as_u64()).collect();
    assert_eq!(said, refused, "{failed:#?}");
    for found in failed {
        assert_eq!(found["cause"]["kind"], "limit", "{found:#}");
        assert!(found["stacks"].to_string().contains("limited.py(12): tensor"), "{found:#}");
    }
}

#[test]
fn lists_are_found_by_marked_steps() {
    assert_kept(true);
}

#[test]
fn lists_are_found_by_inferred_steps() {
    assert_kept(false);
}

/// Six requests fail. What torch says is handed out at the mark behind each is what the report says, and its blocks add up to it.
#[test]
fn failures_by_the_books() {
    let (run, truth) = Program::new("oom.py").traced(&["--analysis=oom", "--level=op,kernel"]);
    let json = run.json();
    let mut failures = of_kind(&json, "oom");
    failures.sort_by_key(|oom| number(oom, "time_ns"));
    let failed = |name: &str| name.ends_with(": out of memory") || name.ends_with(": too large");
    let marks: Vec<_> = truth.marks.iter().filter(|mark| failed(&mark.name)).collect();
    assert_eq!((failures.len(), marks.len()), (6, 6));
    for (oom, mark) in failures.into_iter().zip(marks) {
        let pools = oom["pools"].as_array().expect("pools");
        let pool = pools.iter().find(|pool| pool["pool"] == "PTA").expect("torch_npu's pool");
        let allocated = mark.stat(0, "allocated_bytes.all.current");
        let found = (number(pool, "used_bytes"), number(&pool["live"], "size_bytes"), oom["late"] == true);
        assert_eq!(found, (allocated, allocated, false), "{}: {oom:#}", mark.name);
        let places = pool["groups"]["owners"].as_array().expect("owners");
        assert_eq!(places.iter().map(|owner| number(owner, "size_bytes")).sum::<u64>(), allocated, "{}", mark.name);
    }
}
