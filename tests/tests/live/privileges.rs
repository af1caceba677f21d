//! An ordinary user traces with four capabilities of the tracer's file, without root, sudo, or tracefs.

use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Arc;

use memscope_tests::harness::expect::assert_equal;
use memscope_tests::harness::tracer::{Folder, Target, Tracer, workload_path};
use memscope_tests::harness::user::User;
use nix::sys::signal::Signal;

use super::shared::{DEFAULT, assert_nothing_lost};

/// The program finds its libraries, though the C library hides `LD_LIBRARY_PATH` from programs that have capabilities.
#[test]
fn user_runs_a_program() {
    let user = Arc::new(User::new());
    let program = user.workload("steps", 0o755);
    let tracer = Tracer::run_program(program, &["--steps", "3"]).by(&user);
    let run = tracer.options(&["--call-stack=c", "--json"]).succeed();
    assert_nothing_lost(&run);
    assert_equal(&run.journal(), &run.rows(), DEFAULT);
    let owner = run.folder.capture().metadata().expect("a capture").uid();
    assert_eq!(owner, User::ID);
}

#[test]
fn user_attaches_to_a_program() {
    let user = Arc::new(User::new());
    let mut target = Target::serve_of(&user, &["--rate", "1000"]);
    let tracer = Tracer::attach(&[&target]).by(&user).start();
    tracer.wait_for_rows();
    tracer.signal(Signal::SIGINT);
    let run = tracer.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    assert!(run.rows().count("MALLOC") > 0, "{}", run.said());
    target.assert_unharmed();
    target.stop();
}

/// What becomes another user is traced, but not stopped, since it could not be made to go on.
#[test]
fn other_users_are_not_stopped() {
    let user = Arc::new(User::new());
    let (become_other, steps) = (user.workload("become", 0o4755), user.workload("steps", 0o755));
    let script = format!("LD_LIBRARY_PATH={} exec {}", user.libraries().display(), steps.display());
    let other = (User::ID + 1).to_string();
    let tracer = Tracer::run_program(become_other, &[&other, "/bin/sh", "-c", &script]).by(&user);
    let run = tracer.env("ASCEND_SIM_JOURNAL", "").finish();
    assert_eq!(run.code(), 0, "{}", run.said());
}

/// Without capabilities it is said what is missing, and how to get it.
#[test]
fn user_without_capabilities() {
    let user = Arc::new(User::new());
    // A copy does not have them.
    let plain = user.tracer().with_file_name("plain");
    std::fs::copy(user.tracer(), &plain).expect("a copy");
    let folder = Folder::new();
    user.take(folder.path());
    let output = Command::new(&plain)
        .uid(User::ID)
        .current_dir(folder.path())
        .args(["run", "--", "/bin/true"])
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("CAP_BPF") && said.contains("sudo setcap cap_bpf,cap_perfmon,"), "{said}");
}

/// Kernels that do not describe their types tell of processes through tracefs.
#[test]
fn processes_are_followed_through_tracefs() {
    for forktree in [&["--leak", "--children", "3"][..], &["--leak", "--exec"]] {
        let devices = workload_path("devices");
        let program = devices.to_str().filter(|_| forktree.contains(&"--exec"));
        let arguments: Vec<&str> = forktree.iter().copied().chain(program).collect();
        let run = Tracer::run("forktree", &arguments).options(&["--tracefs", "--json"]).succeed();
        assert_nothing_lost(&run);
        assert_equal(&run.journal(), &run.rows(), DEFAULT);
        assert!(run.rows().processes.len() > 3, "{}", run.said());
    }
}
