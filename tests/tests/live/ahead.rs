//! Libraries that are probed before the program maps them: no thread waits, and no call is missed.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use memscope_tests::harness::tracer::{Folder, Run, Tracer, in_vm, simulation, tracer_path, workload_path};

use super::shared::libraries_with;

/// How often threads were held, and processes stopped.
fn waits(stderr: &str) -> (u64, u64) {
    let line = stderr.lines().find_map(|line| line.split_once("late libraries: ")).map(|(_, counts)| counts);
    let line = line.unwrap_or_else(|| panic!("no count of waits\n{stderr}"));
    let mut counts = line.split_whitespace().filter_map(|word| word.parse().ok());
    (counts.next().expect("holds"), counts.next().expect("stops"))
}

/// What `latedl` does: ten blocks of its own, three of the runtime's, which stay.
const REPORT: &str = "13 allocations, 10 frees";

fn assert_ahead(run: &Run) {
    assert_eq!(waits(&run.stderr), (0, 0), "{}", run.said());
    assert!(run.stdout.contains(REPORT), "{}", run.said());
}

/// Make sure that a library has its first calls traced, and that no thread waits for it, wherever the loader finds it: by a variable, by
/// what the program says (for all libraries), by what the program and each library say (`$ORIGIN`).
#[test]
fn places_of_the_loader() {
    let libraries = simulation().join("lib");
    for (program, variable) in
        [("latedl", libraries.as_path()), ("latedl-rpath", Path::new("")), ("latedl-runpath", Path::new(""))]
    {
        for how in ["hold", "notify"] {
            let tracer =
                Tracer::run_program(workload_path(program), &["--delay-ms", "0"]).env("LD_LIBRARY_PATH", variable);
            let run = tracer.options(&["--log-level=debug", "--late-libraries", how]).succeed();
            assert_ahead(&run);
        }
    }
}

/// Make sure that a library is found under a name with a version, which only a folder has, and in a folder for newer processors.
#[test]
fn names_and_folders_of_the_loader() {
    // Every processor that this runs on is one; glibc has none such for aarch64.
    let newer = ("glibc-hwcaps/x86-64-v2/libascendcl.so", "libascendcl.so");
    let newer = (cfg!(target_arch = "x86_64") && !in_vm()).then_some(newer);
    for (file, name) in [("libascendcl.so.1.2", "libascendcl.so.1.2")].into_iter().chain(newer) {
        let folder = libraries_with(file);
        let tracer = Tracer::run_program(workload_path("latedl"), &["--delay-ms", "0", "--library", name])
            .env("LD_LIBRARY_PATH", folder.path());
        assert_ahead(&tracer.options(&["--log-level=debug", "--late-libraries=notify"]).succeed());
    }
}

/// Make sure that the same holds of the system's cache: one of its own, which a mount namespace has in place of the system's.
#[test]
fn cache_of_the_loader() {
    let folder = Folder::new();
    let (cache, configuration) = (folder.path().join("cache"), folder.path().join("conf"));
    fs::write(&configuration, format!("{}\n", simulation().join("lib").display())).expect("written");
    let made = Command::new("ldconfig").arg("-X").arg("-C").arg(&cache).arg("-f").arg(&configuration).status();
    assert!(made.expect("ldconfig").success());
    for how in ["hold", "notify"] {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", "mount --bind \"$0\" /etc/ld.so.cache && exec \"$@\""]).arg(&cache);
        command.arg(tracer_path()).args(["run", "--no-progress", "--log-level=debug", "--late-libraries", how, "-o"]);
        command.arg(folder.output_path()).arg("--").arg(workload_path("latedl")).args(["--delay-ms", "0"]);
        let output = command.env_remove("LD_LIBRARY_PATH").env("ASCEND_SIM_JOURNAL", folder.journal_path()).output();
        let output = output.expect("a tracer");
        let [stdout, stderr] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert_eq!(waits(&stderr), (0, 0), "{stderr}");
        assert!(stdout.contains(REPORT), "{stdout}{stderr}");
    }
}

/// Make sure that what was looked at once is known: a program that is started again and again has no thread wait, but for the first time.
#[test]
fn programs_are_known_after_the_first_time() {
    let run_times = |times: usize| {
        let program = workload_path("latedl");
        let script = format!("for ((i = 0; i < {times}; i++)); do '{}' --delay-ms 0; done", program.display());
        let run = Tracer::run_program("bash", &["-c", &script]).option("--log-level=debug").succeed();
        let (held, stopped) = waits(&run.stderr);
        assert!(stopped == 0 && run.counted("allocs") == 10 * times as u64, "{}", run.said());
        held
    };
    // `latedl` itself; `bash` was looked at before.
    assert!(run_times(20) <= 1);
}

/// Make sure that a stop which is withheld is said once of each process, with its reason and consequence, and counted.
#[test]
fn withheld_stops_are_said() {
    let program = simulation().join("bin/chains-static");
    let script = format!("set -m; '{0}' > /dev/null; '{0}' > /dev/null", program.display());
    let run = Tracer::run_program("bash", &["-c", &script]).succeed();
    let said: Vec<&str> = run.stderr.lines().filter(|line| line.contains("did not wait until")).collect();
    assert_eq!(said.len(), 2, "{}", run.said());
    for line in said {
        assert!(line.contains("job control"), "{line}");
        assert!(line.contains("first calls may be missed"), "{line}");
    }
    assert!(run.stdout.contains("trace processes: 2 (process not stopped"), "{}", run.said());
}

/// Make sure that a hold which is given up is said, with its consequence, and counted: the tracer does not react while the program loads.
#[test]
fn holds_given_up_are_said() {
    use nix::sys::signal::Signal;
    if in_vm() {
        // Kernels before 6.0 have no holds.
        return;
    }
    // With stacks, each load is held. The program is asked for it once the tracer is stopped.
    let script = format!(
        "echo ready; while [ ! -e go ]; do sleep 0.01; done; exec '{}' --delay-ms 0",
        workload_path("latedl").display()
    );
    let running = Tracer::run_program("sh", &["-c", &script]).option("--call-stack=c").start();
    running.wait_for_output("ready");
    running.signal(Signal::SIGSTOP);
    fs::write(running.folder.path().join("go"), "").expect("written");
    // It ends while the tracer is stopped, as it goes on after a second each time, and after three where the tracer looks at it.
    let deadline = Instant::now() + Duration::from_secs(60);
    while !running.stdout().contains("allocs") {
        assert!(Instant::now() < deadline, "the program waits for a tracer that is stopped: {}", running.stdout());
        std::thread::sleep(Duration::from_millis(10));
    }
    running.signal(Signal::SIGCONT);
    let run = running.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    assert!(run.stdout.contains("(process went on before new libraries were probed"), "{}", run.said());
    // The first hold took too long, and none follows. Reports of two processors come in either order, and the first one counts.
    let reasons = ["the tracer took too long", "the tracer has not answered the last time"];
    let is_said = |line: &&str| reasons.iter().any(|reason| line.contains(reason));
    let said: Vec<&str> = run.stderr.lines().filter(is_said).collect();
    // `sleep` may have been held when the tracer was stopped.
    assert!((1..=2).contains(&said.len()), "{}", run.said());
    for line in said {
        assert!(line.contains("first calls may be missed"), "{line}");
    }
    let line = run.stdout.lines().find(|line| line.contains("went on before")).unwrap_or_default();
    assert!(line.trim_start().starts_with("trace processes: "), "{line}");
}

/// Make sure that a thread is held although others run our program on its processor while it sleeps in it: kernels may give all of them
/// one stack. Its calls are all seen, or it is said why not.
#[test]
fn holds_outlast_other_programs() {
    use nix::sys::signal::Signal;
    const PROCESSOR: &str = "0";
    if in_vm() {
        // Kernels before 6.0 have no holds.
        return;
    }
    // It loads what nothing names, one and a half seconds after its start.
    let (program, library) = (workload_path("latedl"), simulation().join("runpath/libascendcl.so"));
    let script = format!("echo ready; exec '{}' --delay-ms 1500 --library '{}'", program.display(), library.display());
    let tracer = Tracer::run_program("taskset", &["-c", PROCESSOR, "sh", "-c", &script]).env("LD_LIBRARY_PATH", "");
    let running = tracer.start();
    running.wait_for_output("ready");
    std::thread::sleep(Duration::from_millis(800));
    running.signal(Signal::SIGSTOP);
    // Half a second longer than the program sleeps: a thread waits for a second where the tracer does nothing.
    let until = Instant::now() + Duration::from_millis(1200);
    let mut others = 0;
    while Instant::now() < until {
        others +=
            u32::from(Command::new("taskset").args(["-c", PROCESSOR, "true"]).status().is_ok_and(|it| it.success()));
    }
    running.signal(Signal::SIGCONT);
    let run = running.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    assert!(others > 0);
    let is_said = run.stderr.contains("first calls may be missed");
    assert!(is_said || run.stdout.contains(REPORT), "{}", run.said());
}
