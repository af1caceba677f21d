//! An ordinary user traces with capabilities of the tracer's file, without root, sudo, or tracefs.

use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use memscope_tests::harness::expect::assert_equal;
use memscope_tests::harness::kernel;
use memscope_tests::harness::tracer::{Folder, Target, Tracer, children, simulation, tracer_path, workload_path};
use memscope_tests::harness::user::{FIVE, FOUR, User};
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

/// A process of root's, with libraries that the user may read.
fn roots_process(user: &User) -> Target {
    let mut command = Command::new(user.workload("serve", 0o755));
    command.args(["--rate", "1000"]).env("LD_LIBRARY_PATH", user.libraries());
    Target::start(command, Folder::new(), "ready ")
}

/// Makes sure that a user with the documented capabilities sees the calls of another user's process: its libraries are opened by their
/// paths, since only root may open what it has mapped.
#[test]
fn user_attaches_to_another_users_program() {
    let user = Arc::new(User::new());
    let mut target = roots_process(&user);
    let tracer = Tracer::attach(&[&target]).by(&user).options(&["--call-stack=c", "--json"]).start();
    tracer.wait_for_rows();
    tracer.signal(Signal::SIGINT);
    let run = tracer.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    assert_nothing_lost(&run);
    assert!(run.rows().count("MALLOC") > 0, "{}", run.said());
    target.assert_unharmed();
    target.stop();
}

/// Makes sure that a trace which cannot open the libraries of its process is refused, with the file and the way out: it would see nothing.
#[test]
fn libraries_that_may_not_be_opened() {
    let user = Arc::new(User::new());
    let mut target = roots_process(&user);
    std::fs::remove_file(user.libraries().join("libascend_hal.so")).expect("removed");
    let run = Tracer::attach(&[&target]).by(&user).finish();
    assert_eq!(run.code(), 1, "{}", run.said());
    for words in ["cannot attach to process", "libascend_hal.so", "only root may open", "run with sudo"] {
        assert!(run.stderr.contains(words), "`{words}` is not in: {}", run.said());
    }
    assert!(!run.stderr.contains("lost: 0"), "{}", run.said());
    assert!(!run.folder.output_path().exists());
    target.assert_unharmed();
    target.stop();
}

/// Makes sure that a library which `run` finds too late, and may not open, is in the report and in the exit status: it is of a user that the
/// program has become, who alone may read it.
#[test]
fn late_library_that_may_not_be_opened() {
    let user = Arc::new(User::new());
    let (become_other, steps) = (user.workload("become", 0o4755), user.workload("steps", 0o755));
    let other = User::ID + 1;
    let hal = user.libraries().join("libascend_hal.so");
    std::os::unix::fs::chown(&hal, Some(other), Some(other)).expect("given away");
    std::fs::set_permissions(&hal, std::fs::Permissions::from_mode(0o500)).expect("changed rights");
    let script = format!("LD_LIBRARY_PATH={} exec {}", user.libraries().display(), steps.display());
    let tracer = Tracer::run_program(become_other, &[&other.to_string(), "/bin/sh", "-c", &script]).by(&user);
    let run = tracer.env("ASCEND_SIM_JOURNAL", "").finish();
    assert_eq!(run.code(), 125, "{}", run.said());
    assert!(
        run.stdout.contains("libascend_hal.so may not be opened, so all calls in it are missing"),
        "{}",
        run.said()
    );
    assert!(!run.stdout.contains("lost: 0"), "{}", run.said());
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

/// Before Linux 5.11 a user may not lock as much memory as maps and programs take, and gets a message.
#[test]
fn user_without_locked_memory() {
    let user = Arc::new(User::new());
    let script = format!("ulimit -l 64 && exec {} run --no-progress -- /bin/true", user.tracer().display());
    let folder = Folder::new();
    user.take(folder.path());
    let output = Command::new("/bin/bash").uid(User::ID).current_dir(folder.path()).args(["-c", &script]).output();
    let output = output.expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    if kernel::version() >= (5, 11) {
        assert_eq!(output.status.code(), Some(0), "{said}");
    } else {
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.contains("may have 64 KiB") && said.contains("ulimit -l unlimited"), "{said}");
    }
}

/// What `doctor` says is the line that helps, for this very file.
#[test]
fn doctor_says_what_to_type() {
    let user = Arc::new(User::new());
    let plain = user.tracer().with_file_name("plain");
    std::fs::copy(user.tracer(), &plain).expect("a copy");
    let said = doctor(&plain, &[]);
    assert!(said.contains(&setcap_line(&plain, User::needed())), "{said}");
    // The kernel does not show such a user its features, so there is no message about them.
    assert!(said.contains("unknown   kernel ") && !said.contains("lacks"), "{said}");
    // With a way that takes more, more.
    let said = doctor(&plain, &["--link=slots"]);
    assert!(said.contains(&setcap_line(&plain, FIVE)), "{said}");
}

/// What `doctor` says to an ordinary user, who may not trace.
fn doctor(tracer: &Path, options: &[&str]) -> String {
    let output = Command::new(tracer).uid(User::ID).arg("doctor").args(options).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!output.status.success(), "{said}");
    said
}

/// The line that gives a file these capabilities.
fn setcap_line(tracer: &Path, capabilities: u64) -> String {
    let more = if capabilities == FIVE { ",cap_sys_admin" } else { "" };
    let tracer = tracer.canonicalize().expect("it is there");
    format!("sudo setcap cap_bpf,cap_perfmon,cap_sys_ptrace,cap_checkpoint_restore{more}=ep {}\n", tracer.display())
}

/// If probes are linked one by one the four are not enough; a user without more gets a message, and with its advice it
/// works. Kernels that lack a fix of 2025 accept four: then all is traced.
#[test]
fn single_links_take_one_more() {
    const FIXED: (u32, u32) = (6, 17);
    let options = if kernel::has_multi_links() { &["--link=cookie"][..] } else { &[] };
    let user = Arc::new(User::with(FOUR));
    let tracer = Tracer::run_program(user.workload("steps", 0o755), &["--steps", "3"]).by(&user);
    let run = tracer.options(options).finish();
    if run.code() == 0 && kernel::version() < FIXED {
        assert_equal(&run.journal(), &run.rows(), DEFAULT);
    } else {
        assert_eq!(run.code(), 125, "{}", run.said());
        let line = setcap_line(&user.tracer(), FIVE);
        assert!(run.stderr.contains("not permitted to trace: CAP_SYS_ADMIN missing; "), "{}", run.said());
        assert!(run.stderr.contains(&line), "{}", run.said());
        let said = doctor(&user.tracer(), options);
        assert!(said.contains("missing CAP_SYS_ADMIN (to attach probes one by one"), "{said}");
        assert!(said.contains(&line) && said.contains("degraded  scripts "), "{said}");
    }
    let user = Arc::new(User::with(FIVE));
    let tracer = Tracer::run_program(user.workload("steps", 0o755), &["--steps", "3"]).by(&user);
    let run = tracer.options(options).option("--json").succeed();
    assert_nothing_lost(&run);
    assert_equal(&run.journal(), &run.rows(), DEFAULT);
}

/// Permitted and effective capabilities of each thread of a process.
fn capabilities(pid: u32) -> BTreeSet<(u64, u64)> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
    let of = |status: &str, name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("capabilities");
        u64::from_str_radix(line.trim(), 16).expect("a number")
    };
    let texts = threads.map(|thread| thread.expect("a thread").path().join("status"));
    let texts = texts.filter_map(|status| std::fs::read_to_string(status).ok());
    texts.map(|text| (of(&text, "CapPrm:"), of(&text, "CapEff:"))).collect()
}

/// Children that are threads or helpers of the tracer, by their names.
fn child(pid: u32, name: &str) -> u32 {
    let is_it =
        |child: &u32| std::fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|comm| comm.trim() == name);
    children(pid).into_iter().find(is_it).expect("the child")
}

/// Once its probes are placed, the tracer has no more rights than it needs, in any thread; an ordinary user's has those
/// that it came with. No other process loses any.
#[test]
fn rights_are_given_up() {
    // CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER, CAP_KILL, CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON, CAP_BPF and
    // CAP_CHECKPOINT_RESTORE (`capability.h`).
    const NEEDED: u64 = 0b10_1111 | 1 << 19 | 1 << 21 | 1 << 38 | 1 << 39 | 1 << 40;
    // CAP_SYS_NICE, of the threads that records go through.
    const HURRIES: u64 = NEEDED | 1 << 23;
    let own = capabilities(std::process::id());
    let mut target = Target::serve(&["--rate", "1000"]);
    let tracer = Tracer::attach(&[&target]).start();
    tracer.wait_for_rows();
    assert_eq!(capabilities(tracer.pid()), BTreeSet::from([(NEEDED, NEEDED), (HURRIES, HURRIES)]));
    // It reads maps through descriptors that it has, for which kernels that forbid `bpf()` to ordinary users want CAP_BPF before 5.19.
    let forbids =
        std::fs::read_to_string("/proc/sys/kernel/unprivileged_bpf_disabled").is_ok_and(|text| text.trim() != "0");
    let guards = if forbids && kernel::version() < (5, 19) { 1 << 5 | 1 << 39 } else { 1 << 5 };
    assert_eq!(capabilities(child(tracer.pid(), "memscope-guard")), BTreeSet::from([(guards, guards)]));
    assert_eq!(capabilities(target.pid()), own);
    tracer.signal(Signal::SIGINT);
    assert_eq!(tracer.finish().code(), 0);
    target.stop();

    let user = Arc::new(User::new());
    let mut target = Target::serve_of(&user, &["--rate", "1000"]);
    let tracer = Tracer::attach(&[&target]).by(&user).start();
    tracer.wait_for_rows();
    assert_eq!(capabilities(tracer.pid()), BTreeSet::from([(User::needed(), User::needed())]));
    tracer.signal(Signal::SIGINT);
    assert_eq!(tracer.finish().code(), 0);
    target.stop();

    let tracer = Tracer::run("serve", &["--duration-ms", "3000"]).start();
    tracer.wait_for_output("ready ");
    assert_eq!(capabilities(child(tracer.pid(), "serve")), own);
    assert_eq!(tracer.finish().code(), 0);
}

/// Under sudo all files written belong to the calling user, readable by no other, and existing ones are left alone.
#[test]
fn outputs_under_sudo() {
    let id = User::ID.to_string();
    let tracer = Tracer::run("steps", &["--steps", "2"]).env("SUDO_UID", &id).env("SUDO_GID", &id);
    let tracer = tracer.options(&["--user", "root"]);
    let run = tracer.succeed();
    let mut files = 0;
    let mut folders = vec![run.folder.output_path()];
    while let Some(folder) = folders.pop() {
        let about = folder.metadata().expect("a folder");
        assert_eq!(
            (about.uid(), about.gid(), about.mode() & 0o7777),
            (User::ID, User::ID, 0o750),
            "{}",
            folder.display()
        );
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let about = path.symlink_metadata().expect("metadata");
            if about.is_dir() {
                folders.push(path);
                continue;
            }
            files += 1;
            let mode = if path.ends_with("config.json") { 0o640 } else { 0o600 };
            let found = (about.is_file(), about.uid(), about.gid(), about.mode() & 0o7777);
            assert_eq!(found, (true, User::ID, User::ID, mode), "{}", path.display());
        }
    }
    // The dump, its settings, the log and the capture.
    assert!(files >= 4, "only {files} files");
}

/// A root shell with sudo's variables, in which the tracer runs a script that says what it is.
fn under_sudo(folder: &Folder, variables: &[(&str, &str)], options: &[&str]) -> Output {
    const WHO: &str = "echo $(id -u) $(id -g) $(id -G) $HOME $USER $LOGNAME";
    let mut command = Command::new(tracer_path());
    command.arg("run").args(options).arg("-o").arg(folder.output_path()).args(["--", "/bin/sh", "-c", WHO]);
    for name in ["SUDO_UID", "SUDO_GID", "SUDO_USER"] {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied()).current_dir("/").output().expect("the tracer runs")
}

/// Makes sure that a user behind sudo without an entry in the user database gets the numbers, and no right of root.
#[test]
fn sudo_by_an_unknown_user() {
    let folder = Folder::new();
    let output = under_sudo(&folder, &[("SUDO_UID", "54321"), ("SUDO_GID", "54322")], &[]);
    let (said, warned) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{warned}");
    assert!(said.starts_with("54321 54322 54322 / 54321 54321\n"), "{said}");
    assert!(warned.contains("the user database does not know user 54321"), "{warned}");
    let owner = folder.output_path().metadata().expect("outputs");
    assert_eq!((owner.uid(), owner.gid()), (54321, 54322));
}

/// Makes sure that sudo's variables which name no user are refused, with `--user` too: nothing starts, nothing is left.
#[test]
fn sudo_by_nobody_in_particular() {
    let folder = Folder::new();
    for variables in [&[("SUDO_UID", "eve"), ("SUDO_GID", "1")][..], &[("SUDO_UID", "1")], &[("SUDO_GID", "1")]] {
        for options in [&[][..], &["--user", "root"]] {
            let output = under_sudo(&folder, variables, options);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(125), "{variables:?}: {said}");
            assert!(said.contains("unset SUDO_UID"), "{said}");
            assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
        }
        assert!(!folder.output_path().exists());
    }
    let output = under_sudo(&folder, &[("SUDO_UID", "0"), ("SUDO_GID", "0"), ("SUDO_USER", "root")], &[]);
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("0 0 "), "root calls sudo");
}

/// The tracer opens as many files as it may, so a shell's small limit does not end a trace; the program has the shell's.
#[test]
fn few_open_files() {
    const LIMITED: &str = "ulimit -S -n 32; exec \"$@\"";
    let folder = Folder::new();
    let mut command = Command::new("sh");
    command
        .args(["-c", LIMITED, "sh"])
        .arg(tracer_path())
        .args(["run", "--no-progress", "-o"])
        .arg(folder.output_path());
    command.args(["--", "sh", "-c", "ulimit -S -n; exec \"$0\" --steps 3"]).arg(workload_path("steps"));
    command.env("LD_LIBRARY_PATH", simulation().join("lib")).env("ASCEND_SIM_JOURNAL", folder.journal_path());
    let output = command.current_dir(folder.path()).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.starts_with("32\n"), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert_equal(&folder.journal(), &folder.rows(), DEFAULT);
}

/// On kernels without descriptions of their types, processes are followed through tracefs.
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
