//! Who holds a block, by programs that say it themselves: each `CPython` that is at hand, also while it works, and what is refused.

use std::fs;
use std::path::Path;
use std::process::Command;

use memscope_tests::harness::holders::{ask, blocks, cases, said, wrong};
use memscope_tests::harness::pythons::{Python, interpreters};
use memscope_tests::harness::tracer::{Folder, Target, state_of, tracer_path};

const WORKLOAD: &str = include_str!("../../workloads/holders.py");

fn start(python: &Path, arguments: &[&str]) -> Target {
    let folder = Folder::new();
    let script = folder.path().join("holders.py");
    fs::write(&script, WORKLOAD).expect("the workload");
    let mut command = Command::new(python);
    command.arg("-B").arg(script).args(arguments);
    Target::start(command, folder, "ready")
}

/// Asks for all cases of one interpreter; gives what is wrong.
fn wrong_of(Python { path, version: (_, minor), .. }: &Python) -> Vec<String> {
    let target = start(path, &[]);
    let cases = cases(&target.stdout());
    let found = ask(target.pid(), &[&blocks(&cases)]);
    assert_eq!(found["python"], format!("CPython 3.{minor}"));
    assert_eq!(found["notes"], serde_json::json!([]));
    wrong(&cases, &said(&found)).into_iter().map(|text| format!("3.{minor}: {text}")).collect()
}

/// Makes sure that each way to hold a block is named as the program names it, by each version of Python.
#[test]
fn every_holder_by_its_path() {
    let wrong: Vec<String> = interpreters().iter().flat_map(wrong_of).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Makes sure that a program that allocates and frees all the while is answered right, and is not stopped for that.
#[test]
fn a_program_that_works_meanwhile() {
    let newest = interpreters().pop().expect("an interpreter");
    let target = start(&newest.path, &["busy"]);
    let cases = cases(&target.stdout());
    for _ in 0..3 {
        let wrong = wrong(&cases, &said(&ask(target.pid(), &[&blocks(&cases)])));
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(matches!(state_of(target.pid()), Some('R' | 'S')));
    }
}

/// Makes sure that a second holder is named as well, that keys can be left out, and that no key reaches the terminal as it is.
#[test]
fn second_holders_and_keys() {
    let newest = interpreters().pop().expect("an interpreter");
    let target = start(&newest.path, &[]);
    let cases = cases(&target.stdout());
    let of = |name: &str| cases.iter().find(|case| case.name == name).expect("a case").clone();
    let both = of("two holders");
    let found = said(&ask(target.pid(), &[&blocks(std::slice::from_ref(&both))]));
    assert_eq!(found[&both.address], ["__main__.both[0]", "__main__.also['second']['deeper']"]);
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
    assert!(no_pool.contains("no pool of torch_npu was found") && no_pool.contains("--block"), "{no_pool}");
    let none = text(0x3fff_ffff, &["--block=0x1000"]);
    assert!(none.contains("no process 1073741823"), "{none}");
}
