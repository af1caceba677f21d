//! Failures are reported in one sentence and a status, and do no harm.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use memscope_tests::harness::disk::SmallDisk;
use memscope_tests::harness::rows::Rows;
use memscope_tests::harness::tracer::{Tracer, assert_runs, simulation, tracer_path, workload_path};
use tempfile::TempDir;

/// A user without any privilege.
const NOBODY: u32 = 65534;

struct Said {
    status: i32,
    stdout: String,
    stderr: String,
}

impl Said {
    fn new(output: &Output) -> Self {
        Self {
            status: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// One line of error with this status that holds all these words.
    fn assert_error(&self, status: i32, words: &[&str]) {
        assert_eq!(self.status, status, "{}{}", self.stdout, self.stderr);
        let errors: Vec<&str> = self.stderr.lines().filter(|line| line.to_lowercase().contains("error:")).collect();
        assert_eq!(errors.len(), 1, "not one error line: {}", self.stderr);
        for word in words {
            assert!(errors[0].contains(word), "`{word}` is not in: {}", errors[0]);
        }
    }
}

fn tracer(arguments: &[&str], folder: &Path) -> Said {
    let mut command = Command::new(tracer_path());
    Said::new(&command.args(arguments).current_dir(folder).stdin(Stdio::null()).output().expect("started tracer"))
}

fn folder() -> TempDir {
    TempDir::new().expect("temporary folder")
}

/// Killed when dropped.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Self {
        Self(Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().expect("started sleep"))
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Without privileges the missing capabilities and the fix are named, and the program is not started.
#[test]
fn no_privileges() {
    let folder = folder();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("open folder");
    let program = folder.path().join("memscope-bpf");
    fs::copy(tracer_path(), &program).expect("copied tracer");
    let mut command = Command::new(&program);
    command.args(["run", "--", "touch", "started"]).current_dir(folder.path()).uid(NOBODY).gid(NOBODY);
    let said = Said::new(&command.output().expect("started tracer"));
    said.assert_error(125, &["CAP_BPF", "CAP_PERFMON", "run with sudo", "setcap"]);
    assert!(!folder.path().join("started").exists(), "the program was started");
}

/// Processes that cannot be attached to have distinct messages.
#[test]
fn wrong_process() {
    let folder = folder();
    tracer(&["--pid", "4194303"], folder.path()).assert_error(1, &["no process 4194303"]);
    tracer(&["--pid", "x"], folder.path()).assert_error(2, &["`x` is not a process id"]);
    tracer(&["--pid", "0"], folder.path()).assert_error(2, &["`0` is not a process id"]);
    // A child that has ended and that its parent, this test, has not waited for.
    let mut zombie = Command::new("true").spawn().expect("started true");
    let stat = format!("/proc/{}/stat", zombie.id());
    while !fs::read_to_string(&stat).expect("zombie").contains(") Z ") {
        std::thread::yield_now();
    }
    tracer(&["--pid", &zombie.id().to_string()], folder.path()).assert_error(1, &["has ended"]);
    zombie.wait().expect("ended");
    // A thread of this test is no process.
    let own = std::process::id().to_string();
    let mut tasks = fs::read_dir("/proc/self/task").expect("tasks").map(|task| task.expect("task").file_name());
    let thread = tasks.find(|task| task != own.as_str()).expect("a test runs in a thread of its own");
    let said = tracer(&["--pid", thread.to_str().expect("number")], folder.path());
    said.assert_error(1, &["is a thread of process", &own]);
}

/// Programs that cannot be started end like in a shell, and leave no report behind.
#[test]
fn wrong_program() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    fs::write(path("plain"), "text").expect("file");
    fs::write(path("bad"), "#!/no/such/interpreter\n").expect("file");
    fs::set_permissions(path("bad"), fs::Permissions::from_mode(0o755)).expect("executable");
    let run = |program: &str| tracer(&["run", "--", program], folder.path());
    run("/no/such/program").assert_error(127, &["program not found", "/no/such/program"]);
    run("no-such-program").assert_error(127, &["program not found", "PATH"]);
    run(&path("plain")).assert_error(126, &["cannot execute", "no execute permission"]);
    run(folder.path().to_str().expect("UTF-8")).assert_error(126, &["cannot execute", "directory"]);
    run(&path("bad")).assert_error(126, &["cannot execute", "No such file"]);
    tracer(&["run", "--user", "no-such-user", "--", "true"], folder.path()).assert_error(125, &["no such user"]);
}

/// A process without an Ascend library is waited for, and what was searched is said.
#[test]
fn nothing_to_trace() {
    let folder = folder();
    let sleeper = Sleeper::start();
    let said = tracer(&["-v", "--pid", &sleeper.pid(), "--duration", "300ms"], folder.path());
    assert_eq!(said.status, 0, "{}", said.stderr);
    assert!(said.stderr.contains("no Ascend library is mapped by process"), "{}", said.stderr);
    assert!(said.stderr.contains("libascend_hal.so") && said.stderr.contains("waiting for one"), "{}", said.stderr);
    assert_runs(sleeper.0.id());
    // Libraries that could be found, and are probed before the program starts, are not loaded by it for that.
    for library_path in [PathBuf::new(), simulation().join("lib")] {
        let mut command = Command::new(tracer_path());
        command
            .args(["run", "--", "sh", "-c", "exit 3"])
            .current_dir(folder.path())
            .env("LD_LIBRARY_PATH", library_path);
        let said = Said::new(&command.output().expect("started tracer"));
        assert_eq!(said.status, 3, "{}", said.stderr);
        let reported = said.stderr.matches("nothing was traced: no traced process loaded an Ascend library").count();
        assert_eq!(reported, 1, "{}", said.stderr);
        assert!(!said.stdout.contains("step"), "advice on steps: {}", said.stdout);
    }
}

/// Makes sure that `--max-size` ends the trace with a word and not the program: it makes all of its allocations, and fewer
/// of them have rows. A row has at least 100 bytes, so 16 KiB are full long before the end; outputs are whole.
#[test]
fn files_have_a_largest_size() {
    let folder = folder();
    let mut command = Command::new(tracer_path());
    command
        .args(["run", "--max-size", "16K", "-o", "out", "--"])
        .arg(workload_path("steps"))
        .args(["--steps", "100000", "--leaks", "0"]);
    command.current_dir(folder.path()).env("LD_LIBRARY_PATH", simulation().join("lib"));
    let said = Said::new(&command.output().expect("started tracer"));
    assert_eq!(said.status, 0, "{}", said.stderr);
    assert!(
        said.stderr.contains("Warning: the files have the size of --max-size: tracing ends here"),
        "{}",
        said.stderr
    );
    // A step has eight blocks.
    assert!(said.stdout.contains("\"steps\":100000,\"allocs\":800000,\"frees\":800000"), "{}", said.stdout);
    let rows = Rows::read(&folder.path().join("out"));
    assert!((100..800_000).contains(&rows.count("MALLOC")), "{} rows", rows.count("MALLOC"));
    assert!(said.stdout.contains("lost: 0 (ring full)"), "{}", said.stdout);
}

/// Makes sure that bytes that are no UTF-8 reach the program and name the outputs, and that the capture can be read again.
#[test]
fn arguments_that_are_no_text() {
    let folder = folder();
    let (file, output) = (OsStr::from_bytes(b"x\xff"), OsStr::from_bytes(b"out\xff"));
    let mut command = Command::new(tracer_path());
    command.args(["run", "-o"]).arg(output).args(["--", "touch"]).arg(file).current_dir(folder.path());
    let said = Said::new(&command.output().expect("started tracer"));
    assert_eq!(said.status, 0, "{}", said.stderr);
    assert!(folder.path().join(file).exists(), "the program was not started");
    let mut command = Command::new(tracer_path());
    command.arg("recover").arg(output).current_dir(folder.path());
    let said = Said::new(&command.output().expect("started"));
    assert_eq!(said.status, 0, "{}", said.stderr);
    assert!(folder.path().join(output).join("recovered").exists(), "{}", said.stderr);
}

/// Outputs that cannot be made are refused before anything starts.
#[test]
fn unwritable_output() {
    let folder = folder();
    let file = folder.path().join("file");
    fs::write(&file, "").expect("file");
    for output in [PathBuf::from("/proc/none"), file.clone(), file.join("below")] {
        let output = output.to_str().expect("UTF-8");
        let said = tracer(&["run", "-o", output, "--", "touch", "started"], folder.path());
        said.assert_error(125, &["cannot write", output]);
        tracer(&["--pid", &std::process::id().to_string(), "-o", output], folder.path())
            .assert_error(1, &["cannot write", output]);
    }
    assert!(!folder.path().join("started").exists(), "the program was started");
}

/// A full disk ends the trace with one error; the program runs to its end as if nothing had been.
#[test]
fn full_output() {
    for format in ["csv", "db"] {
        let tiny = folder();
        let _disk = SmallDisk::mount(tiny.path(), 1);
        let journal = folder();
        let mut command = Command::new(tracer_path());
        command.args(["run", "--format", format, "-o"]).arg(tiny.path()).arg("--");
        // Long enough to be still at it when the disk is full.
        command.arg(workload_path("pairs")).args(["--pairs", "3000000", "--hal"]);
        command.env("LD_LIBRARY_PATH", simulation().join("lib")).env("ASCEND_SIM_JOURNAL", journal.path());
        let said = Said::new(&command.output().expect("started tracer"));
        assert_eq!(said.status, 125, "{}", said.stderr);
        assert!(said.stderr.contains("tracing ends here, the traced program goes on"), "{}", said.stderr);
        assert!(said.stderr.contains("full") || said.stderr.contains("No space left"), "{}", said.stderr);
        assert!(said.stdout.contains("\"allocs\":3000000,\"frees\":3000000"), "{}", said.stdout);
    }
}

/// Values outside of the contract's ranges (§1) are refused with the option, the value and the range.
#[test]
fn wrong_values() {
    let folder = folder();
    let cases: &[(&[&str], &[&str])] = &[
        (&["--device", "npu:32"], &["--device", "npu:32", "0 to 31"]),
        (&["--device", "npu:xx"], &["--device", "0 to 31"]),
        (&["--device", "gpu"], &["--device", "`gpu`"]),
        (&["--device", ""], &["--device"]),
        (&["--steps", "0"], &["--steps", "1 to 4294967295"]),
        (&["--steps", "01"], &["--steps", "no leading zero"]),
        (&["--steps", "1,2,3,4,5,6"], &["--steps", "1 to 5"]),
        (&["--steps", "4294967296"], &["--steps"]),
        (&["--level", "2"], &["--level", "op, kernel"]),
        (&["--events", "malloc"], &["--events", "`malloc`"]),
        (&["--analysis", "oom:0"], &["--analysis", "[1, 1000]"]),
        (&["--analysis", "oom:1001"], &["--analysis", "[1, 1000]"]),
        (&["--analysis", "oom:abc"], &["--analysis", "[1, 1000]"]),
        (&["--analysis", "oomfoo"], &["--analysis", "`oomfoo`"]),
        (&["--call-stack", "c:1001"], &["--call-stack", "0 to 1000"]),
        (&["--call-stack", "java"], &["--call-stack", "`java`"]),
        (&["--format", "xml"], &["--format", "xml"]),
        (&["--log-level", "loud"], &["--log-level", "loud"]),
        (&["--collect-mode", "late"], &["--collect-mode", "late"]),
        (&["--duration", "0"], &["--duration"]),
        (&["--ring-size", "1"], &["--ring-size", "4K to 1G"]),
        (&["--no-such-option"], &["--no-such-option"]),
    ];
    for (options, words) in cases {
        let arguments: Vec<&str> = [&["run"], *options, &["--", "touch", "started"]].concat();
        tracer(&arguments, folder.path()).assert_error(2, words);
    }
    tracer(&[], folder.path()).assert_error(2, &["what to trace?"]);
    tracer(&["--pid", "1", "true"], folder.path()).assert_error(2, &["--pid"]);
    assert!(!folder.path().join("started").exists(), "the program was started");
}

/// What cannot be watched is refused before the program starts.
#[test]
fn watch_options() {
    let folder = folder();
    for (options, words) in [
        (&["--watch=end"][..], &["[START[:OUTPUT]],END[,full-content]"][..]),
        (&["--watch=start:01,end"], &["`01` is not the number of an output"]),
        (&["--watch=start,end,all"], &["`all` is not full-content"]),
        (&["--watch=start,end", "--level="], &["--watch needs --level"]),
    ] {
        let arguments = [&["run"], options, &["--", "touch", "started"]].concat();
        tracer(&arguments, folder.path()).assert_error(2, words);
    }
    assert!(!folder.path().join("started").exists(), "the program was started");
}

/// Old spellings work, each with the reference's line; new ones say nothing.
#[test]
fn deprecated_spellings() {
    let folder = folder();
    let said =
        tracer(&["--output=old", "--data-format=db", "--level=1", "--log-level=warn", "--", "true"], folder.path());
    assert_eq!(said.status, 0, "{}", said.stderr);
    let lines: Vec<&str> = said.stderr.lines().filter(|line| line.contains("Deprecation")).collect();
    assert_eq!(
        lines,
        [
            "[msmemscope] Deprecation: '--output' is deprecated, use '--output-path' instead.",
            "[msmemscope] Deprecation: '--data-format' is deprecated, use '--format' instead.",
            "[msmemscope] Deprecation: '--level=1' is deprecated, use '--level=kernel' instead.",
            "[msmemscope] Deprecation: '--log-level=warn' is deprecated, use '--log-level=warning' instead.",
        ]
    );
    assert!(folder.path().join("old").is_dir());
    let said = tracer(&["--output-path=new", "--format=db", "--level=kernel", "--", "true"], folder.path());
    assert!(!said.stderr.contains("Deprecation"), "{}", said.stderr);
}

/// Captures that are none, or damaged, are reported; their good part is used.
#[test]
fn wrong_captures() {
    let folder = folder();
    let path = folder.path().join("x.capture");
    let replay = || tracer(&["replay", path.to_str().expect("UTF-8")], folder.path());
    replay().assert_error(1, &["cannot replay", "No such file"]);
    fs::write(&path, "").expect("file");
    replay().assert_error(1, &["cannot replay"]);
    fs::write(&path, "neither").expect("file");
    replay().assert_error(1, &["cannot replay"]);
    tracer(&["recover", "/no/such/folder"], folder.path()).assert_error(1, &["cannot read directory"]);
    tracer(&["recover", "."], folder.path()).assert_error(1, &["cannot replay"]);
    fs::remove_file(&path).expect("removed");
    tracer(&["recover", "."], folder.path()).assert_error(1, &["no capture"]);
    let run = Tracer::run("steps", &[]).succeed();
    let good = fs::read(run.folder.capture()).expect("capture");
    fs::write(&path, &good[..good.len() - 3]).expect("file");
    let said = replay();
    assert_eq!(said.status, 0, "{}", said.stderr);
    assert!(said.stderr.contains("torn at byte"), "{}", said.stderr);
}

/// Modes and owners of the outputs do not depend on the caller's mask, and belong to the user behind sudo.
#[test]
fn outputs_belong_to_the_caller() {
    use std::os::unix::fs::MetadataExt as _;
    let run =
        Tracer::run("steps", &[]).env("SUDO_UID", "12345").env("SUDO_GID", "54321").option("--user").option("root");
    let run = run.succeed();
    let mut waiting = vec![run.folder.output_path()];
    let mut seen = 0;
    while let Some(path) = waiting.pop() {
        let metadata = fs::symlink_metadata(&path).expect("output");
        assert_eq!((metadata.uid(), metadata.gid()), (12345, 54321), "{}", path.display());
        let mode = metadata.mode() & 0o7777;
        let expected = match path.extension().and_then(OsStr::to_str) {
            _ if metadata.is_dir() => 0o750,
            Some("json") => 0o640,
            _ => 0o600,
        };
        assert_eq!(mode, expected, "{}", path.display());
        if metadata.is_dir() {
            waiting.extend(fs::read_dir(&path).expect("folder").map(|entry| entry.expect("entry").path()));
        }
        seen += 1;
    }
    assert!(seen > 8, "only {seen} outputs");
}

/// Whoever reads has seen enough before all is printed: no panic, no message.
#[test]
fn a_reader_who_goes_away_is_no_failure() {
    for arguments in [&["doctor"][..], &["doctor", "--json"], &["decompose", "--print-rules"], &["completions", "bash"]]
    {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = Command::new(tracer_path()).args(arguments).stdout(writer).output().expect("the tracer runs");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{arguments:?}");
    }
}
