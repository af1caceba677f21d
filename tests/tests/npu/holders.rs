//! Who holds a tensor, and the pool as it is, against what the program and its allocator say themselves.

use memscope_tests::harness::holders::{ALLOCATORS, allocator, ask, blocks, cases, listed, said, take_absent, wrong};
use memscope_tests::torch::bench::{Program, go_on, version};
use memscope_tests::torch::lookups::{look_up, unsure};
use memscope_tests::torch::truth::Truth;
use serde_json::{Value, json};

/// What segments of the allocator's snapshot have of blocks with a state: how many, and their bytes.
fn sum<'a>(segments: impl IntoIterator<Item = &'a Value>, such: impl Fn(&str) -> bool) -> (u64, u64) {
    let all = segments.into_iter().flat_map(|segment| segment["blocks"].as_array().expect("blocks"));
    let chosen = all.filter(|block| such(block["state"].as_str().expect("a state")));
    chosen.fold((0, 0), |(count, bytes), block| (count + 1, bytes + block["size"].as_u64().expect("a size")))
}

/// Makes sure that each holder of a tensor is named as the program names it, and that the pool is the allocator's own.
#[test]
fn holders_of_tensors() {
    are_named(&Program::new("holders.py"));
}

/// Makes sure that the same is so where another allocator is preloaded, as in images of servers.
#[test]
fn holders_of_tensors_with_other_allocators() {
    for library in ALLOCATORS {
        are_named(&Program::new("holders.py").env("LD_PRELOAD", &allocator(library)));
    }
}

fn are_named(program: &Program) {
    let (target, _) = program.waiting();
    let stdout = target.stdout();
    let cases = cases(&stdout);
    let found = ask(target.pid(), &[&blocks(&cases)]);
    let mut wrong = wrong(&cases, &said(&found));
    // What only holds itself is not always recognised as garbage here; then nothing is said of it.
    let absent = take_absent(&mut wrong);
    assert!(absent.iter().all(|text| text.starts_with("ring: ")), "{}", absent.join("\n"));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let pool = &found["pool"];
    same_sums(pool, &snapshot(&stdout));
    assert_eq!((&pool["unsure_devices"], &pool["private"]), (&json!([]), &Value::Null));
    all_blocks(target.pid(), pool);
}

/// What torch puts around tensors: hooks, graphs, compilers, scripts, models over ranks. Each path that Python can follow is followed by the program, and those of
/// the cases are as it names them. No way leads from a variable to the dispatcher's functions or to a constant of a script's graph, and
/// now and then no sure one to a slot of a script or to what C++ alone holds: four at most of some hundred.
#[test]
fn holders_that_torch_makes() {
    const HIDDEN: [&str; 1] = ["implementation of an operator"];
    let (target, truth) = Program::new("wrappers.py").waiting();
    let all = cases(&target.stdout());
    let found = ask(target.pid(), &[&blocks(&all)]);
    let unsure = unsure(&found);
    let (named, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|case| !case.path.is_empty());
    let is_open = |name: &str| others.iter().any(|case| case.name == name && unsure.contains(&case.address));
    assert!(HIDDEN.into_iter().all(is_open), "{unsure:x?}");
    let open: Vec<&str> =
        others.iter().filter(|case| unsure.contains(&case.address)).map(|case| case.name.as_str()).collect();
    println!("without a path, which is sure: {open:?}");
    assert!(open.len() <= HIDDEN.len() + 4, "{open:?}");
    let looked_up = look_up(&target, &truth, &found);
    println!("{} cases, {} paths followed, {} not", named.len(), looked_up.right, looked_up.unreadable);
    assert_eq!(looked_up.wrong, []);
    assert!(looked_up.right > 50, "{looked_up:?}");
    let wrong = wrong(&named, &said(&found));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Tensors of another process are in none of the pools of the one that uses them. Each process names its own holders of the same memory.
#[test]
fn tensors_that_processes_share() {
    let (target, _) = Program::new("shared.py").waiting();
    let stdout = target.stdout();
    if stdout.contains("UNSHARED") {
        return assert!(version().ends_with("2.5.1.post1"), "{}", version().display());
    }
    let user = stdout.lines().find_map(|line| line.strip_prefix("USER ")?.split_once(' ')).expect("the other process");
    let user_pid = user.0.parse().expect("a number");
    // It has no pool: its storages are what it has. Tensors of 1.2 MB and of 2, 3 and 4 MiB.
    let all = ask(user_pid, &[]);
    let bytes = (300 << 12) + (9 << 20);
    assert_eq!((&all["asked"]["blocks"], &all["asked"]["size_bytes"]), (&json!(4), &json!(bytes)), "{all:#}");
    assert!(all["pool"].is_null() && all["notes"][0].as_str().is_some_and(|note| note.contains("storages")), "{all:#}");
    for (pid, cases) in [(target.pid(), cases(&stdout)), (user_pid, listed(user.1))] {
        assert_eq!(cases.len(), 4);
        let wrong = wrong(&cases, &said(&ask(pid, &[&blocks(&cases)])));
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

/// The allocator's own list of its segments.
fn snapshot(stdout: &str) -> Vec<Value> {
    let line = stdout.lines().find_map(|line| line.strip_prefix("SNAPSHOT ")).expect("a snapshot");
    serde_json::from_str(line).expect("a snapshot")
}

fn same_sums<'a>(found: &Value, segments: impl IntoIterator<Item = &'a Value>) {
    let segments: Vec<&Value> = segments.into_iter().collect();
    let of = |what: &Value| (what["blocks"].as_u64().expect("blocks"), what["size_bytes"].as_u64().expect("bytes"));
    let bytes: u64 = segments.iter().map(|segment| segment["total_size"].as_u64().expect("a size")).sum();
    assert_eq!((found["segments"].as_u64(), found["size_bytes"].as_u64()), (Some(segments.len() as u64), Some(bytes)));
    assert_eq!(of(&found["live"]), sum(segments.iter().copied(), |state| state == "active_allocated"));
    // Freed, and in use by another stream.
    assert!(found["waiting"].is_null());
    assert_eq!(of(&found["free"]), sum(segments.iter().copied(), |state| state == "inactive"));
}

/// Freed blocks that another stream still uses are neither live nor free: the allocator counts them as active alone.
#[test]
fn blocks_that_wait_for_a_stream() {
    let mut waited = 0;
    for line in ["churn.py 1800 1650", "churn.py 2300 2100"] {
        let (mut target, folder) = Program::new(line).waiting();
        let pool = ask(target.pid(), &[])["pool"].clone();
        go_on(&folder);
        assert!(target.wait().success());
        let truth = Truth::read(&folder);
        let mark = truth.marks.iter().find(|mark| mark.name == "attached").expect("the moment");
        let said = |key: &str| mark.devices.keys().map(|device| mark.stat(*device, key)).sum::<u64>();
        let [live, active, reserved] =
            ["allocated", "active", "reserved"].map(|of| said(&format!("{of}_bytes.all.current")));
        let bytes = |of: &str| pool[of]["size_bytes"].as_u64().unwrap_or_default();
        assert_eq!(
            [bytes("live"), bytes("waiting"), bytes("free")],
            [live, active - live, reserved - active],
            "{pool}"
        );
        waited += bytes("waiting");
    }
    assert!(waited > 0);
}

/// Makes sure that the pools of captured graphs are the allocator's own, each by its number.
#[test]
fn pools_of_graphs() {
    for configuration in ["", "expandable_segments:True"] {
        let (target, _) = Program::new("graphs.py 20 12").env("PYTORCH_NPU_ALLOC_CONF", configuration).waiting();
        let pool = &ask(target.pid(), &[])["pool"];
        let snapshot = snapshot(&target.stdout());
        same_sums(pool, &snapshot);
        assert_eq!(pool["unsure_devices"], json!([]));
        let private = pool["private"].as_array().expect("pools");
        println!("{} pools of their own", private.len());
        assert!(private.len() > 2, "{pool}");
        if snapshot[0]["segment_pool_id"].is_null() {
            // An older allocator's list does not say which pool a segment is of.
            assert!(version().ends_with("2.5.1.post1"), "{}", version().display());
            continue;
        }
        for own in private {
            same_sums(own, snapshot.iter().filter(|segment| segment["segment_pool_id"] == own["number"]));
        }
        let mut numbers: Vec<&Value> = snapshot.iter().map(|segment| &segment["segment_pool_id"]).collect();
        numbers.sort_by_key(ToString::to_string);
        numbers.dedup();
        // The default pool has number 0 and 0.
        assert_eq!(private.len() + 1, numbers.len(), "{pool}");
    }
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

/// One command, without a capture: the server keeps 20 blocks of 256 KiB in each second, in a list, and others in none.
#[test]
fn holders_of_what_grows() {
    let (mut target, folder) = Program::new("server.py grows 20 900 1").waiting();
    go_on(&folder);
    let found = ask(target.pid(), &["--growing", "--for=12s"]);
    let [group] = found["groups"].as_array().expect("groups").as_slice() else { panic!("{found:#}") };
    let holder = &group["held_by"][0];
    assert_eq!((&holder["path"], &holder["is_sure"]), (&json!("__main__.kept[deque item]"), &json!(true)), "{found:#}");
    let [blocks, bytes] = ["blocks", "size_bytes"].map(|key| group[key].as_u64().expect("a number"));
    assert!(blocks > 40 && blocks < 900, "{blocks} blocks");
    assert!(bytes >= blocks << 18 && bytes <= blocks * ((256 << 10) + 1024), "{bytes} bytes in {blocks} blocks");
    target.assert_unharmed();
    let _ = target.wait();
}
