//! Who holds a block, by programs that say it themselves: each `CPython` that is at hand, also while it works, and what is refused.

use std::fs;
use std::path::Path;
use std::process::Command;

use memscope_tests::harness::agent::{Agent, named, own_name};
use memscope_tests::harness::holders::{ALLOCATORS, allocator, ask, blocks, cases, said, wrong};
use memscope_tests::harness::pythons::{Python, interpreters};
use memscope_tests::harness::tracer::{Folder, Run, Target, Tracer, simulation, state_of, tracer_path};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::Value;

use super::stat::samples;

const WORKLOAD: &str = include_str!("../../workloads/holders.py");

fn start(python: &Path, arguments: &[&str]) -> Target {
    start_with(python, arguments, &[])
}

fn start_with(python: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Target {
    let folder = Folder::new();
    let script = folder.path().join("holders.py");
    fs::write(&script, WORKLOAD).expect("the workload");
    let mut command = Command::new(python);
    command.arg("-B").arg(script).args(arguments).envs(variables.iter().copied());
    Target::start(command, folder, "ready")
}

/// Asks for all cases of one interpreter; gives what is wrong.
fn wrong_of(Python { path, version: (_, minor), .. }: &Python, variables: &[(&str, &str)]) -> Vec<String> {
    let target = start_with(path, &[], variables);
    let cases = cases(&target.stdout());
    let found = ask(target.pid(), &[&blocks(&cases)]);
    assert_eq!(found["python"], format!("CPython 3.{minor}"));
    assert_eq!(found["notes"], serde_json::json!([]));
    wrong(&cases, &said(&found)).into_iter().map(|text| format!("3.{minor}: {text}")).collect()
}

/// Makes sure that each way to hold a block is named as the program names it, by each version of Python.
#[test]
fn every_holder_by_its_path() {
    let wrong: Vec<String> = interpreters().iter().flat_map(|python| wrong_of(python, &[])).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Makes sure that the same is said where threads have no caches of freed blocks, as before glibc 2.26: these lie in the bins alone.
#[test]
fn every_holder_without_caches_of_threads() {
    const NO_CACHES: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0");
    let pythons = interpreters();
    let mut wrong: Vec<String> = pythons.iter().flat_map(|python| wrong_of(python, &[NO_CACHES])).collect();
    let newest = pythons.last().expect("an interpreter");
    wrong.extend(wrong_of(newest, &[NO_CACHES, ("PYTHONMALLOC", "malloc")]));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Makes sure that the same is said where another allocator is preloaded, also if all of Python's objects are its blocks.
#[test]
fn every_holder_with_other_allocators() {
    let pythons = interpreters();
    for library in ALLOCATORS {
        let preload = ("LD_PRELOAD", &*allocator(library));
        let mut wrong: Vec<String> = pythons.iter().flat_map(|python| wrong_of(python, &[preload])).collect();
        let newest = pythons.last().expect("an interpreter");
        wrong.extend(wrong_of(newest, &[preload, ("PYTHONMALLOC", "malloc")]));
        assert!(wrong.is_empty(), "{library}: {}", wrong.join("\n"));
    }
}

/// Makes sure that a program that allocates and frees all the while is answered right, and is not stopped for that.
#[test]
fn a_program_that_works_meanwhile() {
    works_meanwhile(&[]);
}

/// The same where another allocator is preloaded: pieces go through the caches of its threads all the while.
#[test]
fn a_program_that_works_with_another_allocator() {
    for library in ALLOCATORS {
        works_meanwhile(&[("LD_PRELOAD", &allocator(library))]);
    }
}

fn works_meanwhile(variables: &[(&str, &str)]) {
    let newest = interpreters().pop().expect("an interpreter");
    let target = start_with(&newest.path, &["busy"], variables);
    let cases = cases(&target.stdout());
    for _ in 0..3 {
        let wrong = wrong(&cases, &said(&ask(target.pid(), &[&blocks(&cases)])));
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(matches!(state_of(target.pid()), Some('R' | 'S')));
    }
}

/// Makes sure that a second holder is named as well and a left-over is not, that keys can be left out, and that no key reaches the terminal as it is.
#[test]
fn second_holders_and_keys() {
    let newest = interpreters().pop().expect("an interpreter");
    let target = start(&newest.path, &[]);
    let cases = cases(&target.stdout());
    let of = |name: &str| cases.iter().find(|case| case.name == name).expect("a case").clone();
    let both = of("two holders");
    let found = said(&ask(target.pid(), &[&blocks(std::slice::from_ref(&both))]));
    assert_eq!(found[&both.address], ["__main__.both[0]", "__main__.also['second']['deeper']"]);
    let beside = of("a left-over beside it");
    let found = said(&ask(target.pid(), &[&blocks(std::slice::from_ref(&beside))]));
    assert_eq!(found[&beside.address], [beside.path]);
    let keyed = of("dict in a dict");
    let found = said(&ask(target.pid(), &[&blocks(std::slice::from_ref(&keyed)), "--no-keys"]));
    assert_eq!(found[&keyed.address], ["__main__.cache[…][…]"]);
    let hostile = of("control in a key");
    let text = text(target.pid(), &[&blocks(&[hostile])]);
    assert!(text.contains(r"still held by   __main__.quote['esc\x1b[31m']") && !text.contains('\x1b'), "{text}");
}

fn text(pid: u32, options: &[&str]) -> String {
    let mut command = Command::new(tracer_path());
    let output = command.args(["holders", &pid.to_string()]).args(options).output().expect("the program");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

/// Makes sure that what cannot be answered is said, with what to do.
#[test]
fn refusals() {
    let newest = interpreters().pop().expect("an interpreter");
    let target = start(&newest.path, &[]);
    let no_pool = text(target.pid(), &[]);
    assert!(
        no_pool.contains("no pool of torch_npu or MindSpore and no tensor on a device was found")
            && no_pool.contains("--block"),
        "{no_pool}"
    );
    let none = text(0x3fff_ffff, &["--block=0x1000"]);
    assert!(none.contains("no process 1073741823"), "{none}");
    let server = server("list");
    let none = text(server.pid(), &["--place", "no such line", "--for", "1s"]);
    let expected = format!(
        "no block that process {} allocated in 1 s and holds has `no such line` in its call stack; --for 5m watches longer",
        server.pid()
    );
    assert!(none.contains(&expected), "{none}");
}

/// `holds.py` with the newest interpreter.
fn server(mode: &str) -> Target {
    let newest = interpreters().pop().expect("an interpreter");
    let mut command = Command::new(newest.path);
    command.args(["-B", HOLDS, mode, "600"]);
    command.env("LD_LIBRARY_PATH", simulation().join("lib"));
    // The others keep 20 MiB a second, for longer than a small device has room.
    command.env("ASCEND_SIM_CAPACITY_MB", if mode == "fails" { "256" } else { "16384" });
    Target::start(command, Folder::new(), "ready")
}

const HOLDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/workloads/holds.py");
/// The lists that `holds.py` keeps its blocks in.
const OF_ENGINE: &str = "__main__.engine._cache['history'][*]";
const OF_LOCAL: &str = "local `batch`['requests'][*] of serve_locally() holds.py:";

/// Lines with a holder, without what is around it.
fn held_by(text: &str) -> Vec<&str> {
    text.lines().map(str::trim_start).filter(|line| line.starts_with("still held by: ")).collect()
}

fn lives(target: &Target) {
    assert!(matches!(state_of(target.pid()), Some('R' | 'S')));
}

/// What a capture says again, as JSON: the places with holders.
fn replayed(run: &Run) -> Vec<Value> {
    let replay = Tracer::replay(&run.folder.capture()).options(&["--json", "--analysis=leaks,oom"]).succeed();
    let found = replay.json();
    let of_kind = found["findings"].as_array().expect("findings").iter().filter(|it| it["finding"] == "held_by");
    of_kind.cloned().collect()
}

/// Makes sure that growth is reported with the list that keeps its blocks, beside the place of their allocation: on the first screen, in
/// the details, and by a replay. The blocks are 1 MiB each, twenty a second; the server is not stopped.
#[test]
fn growth_with_its_holder() {
    let target = server("list");
    let run = Tracer::attach(&[&target]).options(&["--report=full", "-d", "12s", "--call-stack=python"]).finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    lives(&target);
    let (screen, details) = run.stdout.split_once("Keeps growing").unwrap_or_else(|| panic!("{}", run.said()));
    assert!(screen.contains("GROWING") && screen.contains("handle"), "{}", run.said());
    let expected = format!("still held by: {OF_ENGINE}  (40 of the 40 blocks looked at)");
    assert_eq!(held_by(screen), [format!("still held by: {OF_ENGINE}  (40 of 40)")], "{}", run.said());
    // Below the place, and in the section of holders.
    assert_eq!(held_by(details), [expected.as_str(); 2], "{}", run.said());
    let found = replayed(&run);
    let [found] = found.as_slice() else { panic!("{found:#?}") };
    assert_eq!(found["looked_at"], "end", "{found:#}");
    let holder = serde_json::json!({ "path": OF_ENGINE, "is_sure": true, "blocks": 40 });
    assert_eq!(found["places"][0]["holders"], serde_json::json!([holder]), "{found:#}");
}

/// Makes sure that a process with more host memory than one list has numbers for (32 GiB) is read as a whole: in slices.
#[test]
fn a_process_with_much_memory() {
    const GIB: u64 = 36;
    let newest = interpreters().pop().expect("an interpreter");
    let folder = Folder::new();
    let script = folder.path().join("large.py");
    fs::write(&script, include_str!("../../workloads/large.py")).expect("the workload");
    let mut command = Command::new(&newest.path);
    command.arg("-B").arg(script).arg(GIB.to_string());
    let target = Target::start(command, folder, "ready");
    let found = ask(target.pid(), &["--block=0x12c100000000,0x12c100400000"]);
    let read_bytes = found["effort"]["scanned_bytes"].as_u64().expect("bytes");
    assert!(read_bytes > GIB << 30, "{found:#}");
    assert_eq!(found["notes"], serde_json::json!([]), "{found:#}");
    let said = said(&found);
    assert_eq!(said[&0x12c1_0000_0000], ["__main__.cache['before'][0]"]);
    assert_eq!(said[&0x12c1_0040_0000], ["__main__.cache['behind'][77777][1]"]);
}

/// Makes sure that the live screen names the holder of a place that grows, while the program works, and ends without a further look.
#[test]
fn growth_on_the_live_screen() {
    let target = server("list");
    let options = ["--json", "--interval", "1s", "--count", "20"];
    let run = Tracer::top(target.pid()).options(&options).start().finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    lives(&target);
    let held = |sample: &Value| {
        let places = sample["places"].as_array().expect("places").iter();
        places.filter_map(|place| Some(place["held_by"].as_object()?.clone())).collect::<Vec<_>>()
    };
    let found: Vec<_> = samples(&run).iter().flat_map(held).collect();
    let last = found.last().unwrap_or_else(|| panic!("no holders: {}", run.said()));
    let holder = serde_json::json!({ "path": OF_ENGINE, "is_sure": true, "blocks": last["looked_at_blocks"] });
    assert_eq!(last["holders"], serde_json::json!([holder]), "{last:#?}");
    let blocks = &last["looked_at_blocks"];
    assert_eq!(last["lines"], serde_json::json!([format!("still held by: {OF_ENGINE}  ({blocks} of {blocks})")]));
    let run = Tracer::top(target.pid())
        .options(&["--json", "--interval", "1s", "--count", "13", "--no-holders"])
        .start()
        .finish();
    assert!(samples(&run).iter().all(|sample| held(sample).is_empty()), "{}", run.said());
}

/// Makes sure that a local variable is named as well, that keys can be left out, and that nothing is read if that is not wanted.
#[test]
fn growth_with_a_local_holder() {
    let target = server("local");
    let attach = |options: &[&str]| {
        let tracer = Tracer::attach(&[&target]).options(&["--report=full", "--call-stack=python"]).options(options);
        let run = tracer.finish();
        assert_eq!(run.code(), 0, "{}", run.said());
        run
    };
    let run = attach(&["-d", "12s"]);
    let found = held_by(&run.stdout);
    let expected = format!("still held by: {OF_LOCAL}");
    assert!(found.len() == 3 && found.iter().all(|line| line.starts_with(&expected)), "{found:?}: {}", run.said());
    let run = attach(&["-d", "1s", "--no-keys"]);
    let expected = "still held by: local `batch`[…][*] of serve_locally() holds.py:";
    let found = held_by(&run.stdout);
    assert!(!found.is_empty() && found.iter().all(|line| line.starts_with(expected)), "{found:?}: {}", run.said());
    let run = attach(&["-d", "1s", "--no-holders"]);
    assert_eq!((held_by(&run.stdout).len(), replayed(&run).len()), (0, 0), "{}", run.said());
    lives(&target);
}

/// Makes sure that an agent reads what held the memory when a request of a program failed: it is in the bundle, below its place.
#[test]
fn a_bundle_with_its_holders() {
    let newest = interpreters().pop().expect("an interpreter");
    let folder = Folder::new();
    let (name, script) = (own_name("bndl"), folder.path().join("holds.py"));
    fs::copy(HOLDS, &script).expect("a copy");
    let agent = Agent::start(&name);
    // The program waits until the agent has it.
    mkfifo(&folder.path().join("go"), Mode::S_IRWXU).expect("a pipe");
    let mut command = named(Path::new("/bin/bash"), &name, &folder);
    command.env("LD_PRELOAD", "libascend_hal.so libascendcl.so").env("ASCEND_SIM_CAPACITY_MB", "64");
    command
        .args(["-c", "echo ready; read go < go; exec \"$@\"", "bash"])
        .arg(&newest.path)
        .arg("-B")
        .arg(script)
        .args(["fails", "30"]);
    let go = folder.path().join("go");
    let target = Target::start(command, folder, "ready");
    let _ = agent.wait_for_processes(1);
    fs::write(go, "\n").expect("it reads");
    let bundle: Value = serde_json::from_slice(&fs::read(agent.bundle()).expect("a bundle")).expect("JSON");
    assert!(bundle["not_looked_for"].is_null(), "{bundle:#}");
    let places = bundle["pools"][0]["places"].as_array().expect("places");
    // The largest place; the runtime has the other one.
    let held_by = &places[0]["held_by"];
    let holder = serde_json::json!({ "path": OF_ENGINE, "is_sure": true, "blocks": 40 });
    assert_eq!(
        (&held_by["looked_at_blocks"], &held_by["holders"]),
        (&40.into(), &serde_json::json!([holder])),
        "{bundle:#}"
    );
    drop(target);
    agent.end();
}

/// Makes sure that what held the memory when a request failed is read when that is seen, and not at the end.
#[test]
fn a_failed_request_with_its_holders() {
    let newest = interpreters().pop().expect("an interpreter");
    let path = newest.path.to_str().expect("a plain path").to_owned();
    let tracer = Tracer::run_program(path, &["-B", HOLDS, "fails", "4"]).env("ASCEND_SIM_CAPACITY_MB", "64");
    let run = tracer.options(&["--analysis=leaks,oom", "--call-stack=python", "--report=full"]).finish();
    assert!(run.stdout.contains("failed\n"), "{}", run.said());
    let found = replayed(&run);
    let at_failure = found.iter().find(|found| found["looked_at"] == "failed_request");
    let at_failure = at_failure.unwrap_or_else(|| panic!("{found:#?}: {}", run.said()));
    assert_eq!(at_failure["places"][0]["holders"][0]["path"], OF_ENGINE, "{at_failure:#}");
    let before_ns = at_failure["process_end_ns"].as_u64().zip(at_failure["time_ns"].as_u64());
    assert!(before_ns.is_some_and(|(end_ns, at_ns)| end_ns - at_ns > 2_000_000_000), "{at_failure:#}");
    assert!(run.stdout.contains("Held when the request had failed on device 0"), "{}", run.said());
}

/// Makes sure that a look while a started program worked is reported after its end, with the time of it.
#[test]
fn a_program_that_has_ended() {
    let newest = interpreters().pop().expect("an interpreter");
    let path = newest.path.to_str().expect("a plain path").to_owned();
    let tracer = Tracer::run_program(path, &["-B", HOLDS, "list", "13"]).option("--call-stack=python");
    let run = tracer.options(&["--report=full", "--holders"]).succeed();
    let found = held_by(&run.stdout);
    let expected = format!("still held by: {OF_ENGINE}  (40 of the 40 blocks looked at, ");
    let of_place =
        found.iter().filter(|line| line.starts_with(&expected) && line.contains(" s before the process ended"));
    assert!(of_place.count() >= 1, "{found:?}: {}", run.said());
}

/// Makes sure that of a program that is not Python, or that has ended, it is said why holders were not looked for; and nothing of them
/// where they were not wanted.
#[test]
fn where_holders_are_not_looked_for() {
    let tracer = |workload: &str, arguments: &[&str]| Tracer::run(workload, arguments).option("--report=full");
    let run = tracer("scenes", &["bursts"]).options(&["--call-stack=c", "-d", "11s"]).finish();
    let expected = "still held by: not looked for: not CPython";
    assert_eq!(held_by(&run.stdout), [expected], "{}", run.said());
    assert!(run.stdout.contains("\n     holders not looked for: not CPython\n"), "{}", run.said());
    let run = tracer("steps", &["--steps", "6"]).succeed();
    let found = held_by(&run.stdout);
    assert!(!found.is_empty() && found.iter().all(|line| line.contains("not looked for: ")), "{}", run.said());
    let run = tracer("steps", &["--steps", "6"]).option("--no-holders").succeed();
    assert_eq!(held_by(&run.stdout), [""; 0], "{}", run.said());
}
