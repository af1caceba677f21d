//! Who holds a tensor, and the pool as it is, against what the program and its allocator say themselves.

use memscope_tests::harness::holders::{ask, blocks, cases, said, wrong};
use memscope_tests::torch::bench::Program;
use serde_json::Value;

/// What the allocator's snapshot has of blocks with a state: how many, and their bytes.
fn sum(snapshot: &[Value], such: impl Fn(&str) -> bool) -> (u64, u64) {
    let all = snapshot.iter().flat_map(|segment| segment["blocks"].as_array().expect("blocks"));
    let chosen = all.filter(|block| such(block["state"].as_str().expect("a state")));
    chosen.fold((0, 0), |(count, bytes), block| (count + 1, bytes + block["size"].as_u64().expect("a size")))
}

/// Makes sure that each holder of a tensor is named as the program names it, and that the pool is the allocator's own.
#[test]
fn holders_of_tensors() {
    let (target, _) = Program::new("holders.py").waiting();
    let stdout = target.stdout();
    let cases = cases(&stdout);
    let found = ask(target.pid(), &[&blocks(&cases)]);
    let wrong = wrong(&cases, &said(&found));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let line = stdout.lines().find_map(|line| line.strip_prefix("SNAPSHOT ")).expect("a snapshot");
    let snapshot: Vec<Value> = serde_json::from_str(line).expect("a snapshot");
    let pool = &found["pool"];
    let of = |what: &Value| (what["blocks"].as_u64().expect("blocks"), what["size_bytes"].as_u64().expect("bytes"));
    assert_eq!(pool["segments"].as_u64(), Some(snapshot.len() as u64));
    assert_eq!(of(&pool["live"]), sum(&snapshot, |state| state == "active_allocated"));
    assert_eq!(of(&pool["free"]), sum(&snapshot, |state| state != "active_allocated"));
    assert_eq!(pool["unsure_devices"], serde_json::json!([]));
    all_blocks(target.pid(), pool);
}

/// All live blocks at once: the tree has those that are held, and no byte twice.
fn all_blocks(pid: u32, pool: &Value) {
    let found = ask(pid, &[]);
    assert_eq!(found["asked"], pool["live"]);
    let held = found["groups"].as_array().expect("groups").iter();
    let held = held
        .filter(|group| group["held_by"].as_array().is_some_and(|all| all.iter().any(|one| one["is_sure"] == true)));
    let held: u64 = held.map(|group| group["size_bytes"].as_u64().expect("bytes")).sum();
    let tree: u64 = found["tree"]
        .as_array()
        .expect("a tree")
        .iter()
        .map(|branch| branch["size_bytes"].as_u64().expect("bytes"))
        .sum();
    // Branches of less than half a percent are left out.
    assert!(tree <= held && held - tree < held / 20, "{tree} of {held}");
}

/// Makes sure that holders are right while the program trains, without a stop.
#[test]
fn holders_while_it_trains() {
    let (target, _) = Program::new("holders.py train").waiting();
    let cases = cases(&target.stdout());
    for _ in 0..3 {
        let wrong = wrong(&cases, &said(&ask(target.pid(), &[&blocks(&cases)])));
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
