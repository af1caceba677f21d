//! The traced program does what it does without us: no stops that others see, no signals, nothing inherited from us.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use memscope_tests::harness::tracer::{
    Folder, Running, Tracer, children, in_vm, simulation, state_of, tracer_path, workload_path,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn signal(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid.cast_signed()), signal).expect("a process to signal");
}

fn sleep_ms(time: u64) {
    std::thread::sleep(Duration::from_millis(time));
}

fn text_of(path: &str) -> &str {
    assert!(!path.contains('\''));
    path
}

/// The program of this name that a tracer has started, once it runs.
fn program_of(running: &Running, name: &str) -> u32 {
    let tracer = running.pid();
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        let is_it =
            |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_end() == name);
        if let Some(pid) = children(tracer).into_iter().find(is_it) {
            return pid;
        }
        sleep_ms(2);
    }
    panic!("the tracer has not started {name}");
}

/// Waits until a process is in this state, or gone if `None`.
fn wait_for_state(pid: u32, state: Option<char>) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while state_of(pid).filter(|now| *now != 'Z' || state.is_some()) != state {
        assert!(Instant::now() < deadline, "process {pid} is in state {:?}, not {state:?}", state_of(pid));
        sleep_ms(2);
    }
}

/// A shell script that runs programs as jobs: dynamic ones, one without a loader, one that loads libraries.
fn jobs() -> String {
    let bin = simulation().join("bin");
    let bin = bin.to_str().map(text_of).expect("a path");
    format!(
        "set -m\n/bin/true; echo true $?\n'{bin}/chains-static' > chains; echo static $?\n\
         '{bin}/latedl' --delay-ms 0 > late; echo late $?\n\
         sleep 0.1 & wait $!; echo sleep $?\nsh -c 'exit 3' | cat; echo sh $? ${{PIPESTATUS[0]}}\njobs\nexit 9\n"
    )
}

/// Make sure that a shell with job control on a terminal sees its jobs end, as it does untraced, and none of them stop.
#[test]
fn jobs_of_a_shell_on_a_terminal() {
    let shell = ["-qec", "bash --norc jobs.sh", "/dev/null"];
    let tracer = Tracer::run_program("script", &shell);
    fs::write(tracer.folder().join("jobs.sh"), jobs()).expect("written");
    let mut command = Command::new("script");
    command.args(shell).current_dir(tracer.folder()).stdin(std::process::Stdio::null());
    let untraced = command.env("LD_LIBRARY_PATH", simulation().join("lib")).output().expect("a shell");
    let expected = String::from_utf8_lossy(&untraced.stdout).into_owned();
    assert!(expected.contains("true 0") && expected.contains("static 0") && expected.contains("late 0"), "{expected}");
    let run = tracer.finish();
    assert!(run.said().contains(&expected), "expected:\n{expected}\n{}", run.said());
    assert_eq!(run.code(), 9, "{}", run.said());
}

/// Make sure that a debugger under `run` runs its program, and sees no signal of ours.
#[test]
fn debugger() {
    if in_vm() || Command::new("gdb").arg("--version").output().is_err() {
        return;
    }
    let program = workload_path("latedl");
    let program = program.to_str().expect("a path");
    let gdb = ["-batch", "-nx", "-ex", "run", "--args", program, "--delay-ms", "0"];
    let run = Tracer::run_program("gdb", &gdb).succeed();
    let said = run.said();
    assert!(said.contains("exited normally") && !said.contains("SIG"), "{said}");
    assert_eq!(run.counted("allocs"), 10, "{said}");
}

/// Runs of the program that does what a tracer could get in the way of. `MEMSCOPE_CONDUCT_RUNS` has it run more often.
fn runs() -> usize {
    std::env::var("MEMSCOPE_CONDUCT_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(16)
}

fn assert_same_lines(found: &str, expected: &str, context: &str) {
    let differ = found.lines().zip(expected.lines()).filter(|(found, expected)| found != expected);
    assert_eq!(differ.collect::<Vec<_>>(), [], "{context}");
    assert_eq!(found.lines().count(), expected.lines().count(), "{context}");
}

/// A script that runs the program some times and keeps what each run writes.
fn conduct_script(folder: &Path, name: &str, times: usize) -> String {
    let program = workload_path("conduct");
    let script = format!(
        "for i in $(seq {times}); do '{}' {name}.$i --loads 50; test $? = 7 || echo \"$i ended with $?\" >> {name}.$i; done",
        program.to_str().map(text_of).expect("a path")
    );
    let path = folder.join(format!("{name}.sh"));
    fs::write(&path, script).expect("written");
    path.to_str().expect("a path").to_owned()
}

/// Make sure that a program which throws, jumps, forks, stops itself, and loads libraries ends with the same status, sees the same signals
/// and interruptions, and has the same open files and `/proc/self/status` as untraced, whatever is traced.
#[test]
fn conduct_is_that_of_an_untraced_program() {
    /// Of one tracer.
    const AT_ONCE: usize = 20;
    // A shell takes SIGCHLD, so that stops are withheld from its children.
    const OPTIONS: [&[&str]; 8] = [
        &[],
        &["--call-stack=c,python"],
        &["--level=op,kernel"],
        &["--capture-only"],
        &["--transport=perf"],
        &["--link=cookie"],
        &["--late-libraries=notify"],
        &["--late-libraries=stop"],
    ];
    let untraced = Folder::new();
    let script = conduct_script(untraced.path(), "plain", 2);
    let mut command = Command::new("sh");
    command.arg(script).current_dir(untraced.path()).env("LD_LIBRARY_PATH", simulation().join("lib"));
    command.env("ASCEND_SIM_JOURNAL", untraced.journal_path()).stdin(fs::File::open("/dev/null").expect("open"));
    assert!(command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).output().is_ok());
    let read = |path: &Path| fs::read_to_string(path).expect("what the program wrote");
    let expected = read(&untraced.path().join("plain.1"));
    assert_same_lines(&read(&untraced.path().join("plain.2")), &expected, "untraced");
    assert!(expected.contains("stopped 5") && expected.contains("interrupted by loading 0 0 0"), "{expected}");
    for (kind, options) in OPTIONS.iter().enumerate() {
        let mut left = runs().div_ceil(OPTIONS.len());
        while left > 0 {
            let times = left.min(AT_ONCE);
            left -= times;
            let name = format!("traced{kind}");
            let script = conduct_script(untraced.path(), &name, times);
            let run = Tracer::run_program("sh", &[&script]).options(options).succeed();
            for time in 1..=times {
                let written = read(&run.folder.path().join(format!("{name}.{time}")));
                assert_same_lines(&written, &expected, &format!("{options:?}, run {time}: {}", run.said()));
            }
        }
    }
}

/// Make sure that where the user asks for stops, nothing but these shows, as interruptions and SIGCONT, and that the program's own stop
/// lasts until its child ends it.
#[test]
fn conduct_with_stops_asked_for() {
    let written = |how: &str| {
        let run = Tracer::run("conduct", &["out", "--loads", "50"]).options(&["--late-libraries", how]).finish();
        assert_eq!(run.code(), 7, "{}", run.said());
        let text = fs::read_to_string(run.folder.path().join("out")).expect("what the program wrote");
        let shows_stops = |line: &&str| ["interrupted", "signal 18: "].iter().any(|start| line.starts_with(start));
        let (stops, rest): (Vec<_>, Vec<_>) = text.lines().partition(shows_stops);
        (stops.join("\n"), rest.join("\n"), run.said())
    };
    let (plain_stops, plain_rest, said) = written("notify");
    assert!(plain_rest.contains("stopped 5\n"), "{said}");
    // What ends its own stop is the one SIGCONT.
    assert!(plain_stops.contains("interrupted by loading 0 0 0\nsignal 18: 1\n"), "{said}");
    for time in 0..runs().div_ceil(8) {
        let (stops, rest, said) = written("stop");
        assert_same_lines(&rest, &plain_rest, &format!("run {time}: {said}"));
        assert!(!stops.contains("interrupted by loading 0 0 0"), "{stops}");
    }
}

/// Make sure that where no thread can be held nothing is stopped unless the user asks for it, and that this is said once.
#[test]
fn without_holds_nothing_is_stopped() {
    let run =
        Tracer::run("conduct", &["out", "--no-stop"]).options(&["--link=slots", "--late-libraries=hold"]).finish();
    assert_eq!(run.code(), 7, "{}", run.said());
    assert_eq!(run.stderr.matches("cannot hold a thread").count(), 1, "{}", run.said());
    let text = fs::read_to_string(run.folder.path().join("out")).expect("what the program wrote");
    assert!(text.contains("interrupted by loading 0 0 0"), "{text}");
}

/// Make sure that a program with an unknown loader is not stopped where its parent takes SIGCHLD, by a handler or as it waits for it,
/// and that this is said; the parent gets one SIGCHLD, of the program's end.
#[test]
fn parents_that_take_sigchld() {
    const PARENT: &str = "\
import os, signal, subprocess, sys
got = []
if sys.argv[1] == 'handler':
    signal.signal(signal.SIGCHLD, lambda *_: got.append(1))
else:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
program = subprocess.Popen([sys.argv[2]], stdout=subprocess.DEVNULL)
if sys.argv[1] != 'handler':
    info = signal.sigwaitinfo([signal.SIGCHLD])
    assert info.si_code == 1, info
assert program.wait() == 0
assert sys.argv[1] != 'handler' or len(got) == 1, got
";
    let program = simulation().join("bin/chains-static");
    let program = program.to_str().expect("a path");
    for how in ["handler", "waiting"] {
        let run = Tracer::run_program("python3", &["-SEsc", PARENT, how, program]).succeed();
        let said = |line: &&str| line.contains("did not wait until") && line.contains("its parent asks for SIGCHLD");
        assert_eq!(run.stderr.lines().filter(said).count(), 1, "{how}: {}", run.said());
    }
}

/// A program that loads and unloads libraries for long, traced, and its process.
fn storm(how: &str) -> (Running, u32) {
    let running =
        Tracer::run("conduct", &["out", "--no-stop", "--loads", "300"]).options(&["--late-libraries", how]).start();
    let pid = program_of(&running, "conduct");
    sleep_ms(100);
    (running, pid)
}

/// A program that the user stops while it loads libraries stays stopped.
#[test]
fn a_stop_by_the_user_stays() {
    for how in ["hold", "stop"] {
        let (running, pid) = storm(how);
        for _ in 0..5 {
            signal(pid, Signal::SIGSTOP);
            wait_for_state(pid, Some('T'));
            // Where ours may come between, too, it is theirs once it lasts.
            let patience = if how == "stop" { 20 } else { 0 };
            for look in 0..70 {
                assert!(look < patience || state_of(pid) == Some('T'), "{how}, look {look}: {:?}", state_of(pid));
                sleep_ms(2);
            }
            signal(pid, Signal::SIGCONT);
            sleep_ms(7);
        }
        let run = running.finish();
        assert_eq!(run.code(), 7, "{how}: {}", run.said());
    }
}

/// No process waits for a tracer that was killed, and its guard continues none that the user has stopped.
#[test]
fn a_stop_by_the_user_outlives_the_tracer() {
    for (how, stopped_by_user) in [("hold", false), ("hold", true), ("stop", false), ("stop", true)] {
        let (running, pid) = storm(how);
        if stopped_by_user {
            signal(pid, Signal::SIGSTOP);
            wait_for_state(pid, Some('T'));
        }
        // It no longer answers, so that a process waits for it when it dies.
        running.signal(Signal::SIGSTOP);
        sleep_ms(20);
        running.signal(Signal::SIGKILL);
        let run = running.finish();
        if stopped_by_user {
            for _ in 0..100 {
                assert_eq!(state_of(pid), Some('T'));
                sleep_ms(10);
            }
            signal(pid, Signal::SIGCONT);
        }
        wait_for_state(pid, None);
        let written = fs::read_to_string(run.folder.path().join("out")).expect("what the program wrote");
        assert!(written.contains("loaded 300 of 300"), "{written}");
    }
}

/// Make sure that a program goes on to its end when its tracer hangs: a thread waits once, and not again while there is no answer.
#[test]
fn a_tracer_that_hangs_holds_nobody_for_long() {
    let (running, pid) = storm("hold");
    running.signal(Signal::SIGSTOP);
    // A zombie is one that has ended.
    wait_for_state(pid, Some('Z'));
    running.signal(Signal::SIGCONT);
    let run = running.finish();
    assert_eq!(run.code(), 7, "{}", run.said());
    let written = fs::read_to_string(run.folder.path().join("out")).expect("what the program wrote");
    assert!(written.contains("loaded 300 of 300"), "{written}");
}

/// Starts a program with signals ignored and blocked.
const STARTER: &str = "\
import os, signal, sys
ignored = [signal.SIGCHLD, signal.SIGPIPE, signal.SIGUSR2, signal.SIGHUP]
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
if sys.argv[1] == 'ignoring':
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTERM, signal.SIGALRM])
if sys.argv[1] == 'closed':
    os.close(0)
os.umask(0o137)
os.execvp(sys.argv[2], sys.argv[2:])
";

/// Make sure that a tracer which was started with SIGCHLD ignored passes signals on and ends with the status of the program, which each of
/// them ends; another one ends by itself.
#[test]
fn signals_under_an_ignored_sigchld() {
    const IGNORING: &str =
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execvp(sys.argv[1], sys.argv[1:])";
    for ending in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT] {
        let folder = Folder::new();
        let mut command = Command::new("python3");
        command
            .args(["-SEsc", IGNORING])
            .arg(tracer_path())
            .args(["run", "--no-progress", "-o"])
            .arg(folder.output_path());
        // A core file would be the program's.
        command.args(["--", "sh", "-c", "ulimit -c 0; echo ready > ready; exec sleep 60"]).current_dir(folder.path());
        let mut tracer =
            command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().expect("started");
        let deadline = Instant::now() + Duration::from_secs(60);
        while !folder.path().join("ready").exists() {
            assert!(Instant::now() < deadline, "the program does not start");
            sleep_ms(5);
        }
        signal(tracer.id(), ending);
        while tracer.try_wait().expect("a child").is_none() {
            if Instant::now() >= deadline {
                tracer.kill().expect("killed");
                panic!("{ending} does not end it");
            }
            sleep_ms(5);
        }
        let status = tracer.wait().expect("a child");
        assert_eq!(status.code(), Some(128 + ending as i32), "{ending}: {status}");
    }
}

/// What `/proc/self/status` says of signals and more, of a program that was started so; the program's exit status.
fn started(how: &str, folder: &Folder, tracer: bool) -> (String, ExitStatus) {
    const SHOW: &str = "import os; open('shown', 'w').write(''.join(line for line in open('/proc/self/status') if \
        line.startswith(('Sig', 'Shd', 'Umask', 'Cap', 'NoNew')) and not line.startswith('SigQ')) + str(os.path.exists('/proc/self/fd/0')))\n\
        os._exit(5)";
    let mut command = Command::new("timeout");
    // A hang is what this is about.
    command.args(["-s", "KILL", "60", "python3", "-c", STARTER, how]).current_dir(folder.path());
    if tracer {
        command.arg(tracer_path()).args(["run", "--no-progress", "-o"]).arg(folder.output_path()).arg("--");
    }
    command.args(["python3", "-SEs", "-c", SHOW]);
    let status = command.output().expect("started").status;
    (fs::read_to_string(folder.path().join("shown")).unwrap_or_default(), status)
}

/// Make sure that a tracer which was started with SIGCHLD ignored, as some supervisors do, ends with the program's status, and that a
/// program has the ignored and blocked signals, the mask for files, and the closed streams that it would have had without a tracer.
#[test]
fn the_program_has_what_it_would_have_had() {
    for how in ["plain", "ignoring", "closed"] {
        let (expected, status) = started(how, &Folder::new(), false);
        assert!(expected.contains("SigBlk") && status.code() == Some(5), "{how}: {expected}");
        let (shown, status) = started(how, &Folder::new(), true);
        assert_eq!(status.code(), Some(5), "{how}");
        assert_eq!(shown, expected, "{how}");
    }
}
