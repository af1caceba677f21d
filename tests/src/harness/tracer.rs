//! Runs the tracer, and programs for it to attach to.
//!
//! Paths come from the environment when a test runs, because the tests also run in virtual machines without a source
//! tree: `MEMSCOPE_BIN` (the tracer), `MEMSCOPE_SIM_DIR` (`lib` and `bin` of the simulation) and `MEMSCOPE_PYTHON_DIR`
//! (the Python package).

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::process::{CommandExt as _, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::document::document;
use super::journal::Journal;
use super::kernel;
use super::rows::Rows;
use super::user::{User, copy_folder};

/// How long a program may take before the test is given up.
const TIMEOUT: Duration = Duration::from_secs(100);
/// The same of a server, which imports thousands of files.
const PATIENCE: Duration = Duration::from_secs(500);
const POLL: Duration = Duration::from_millis(5);

/// [`TIMEOUT`]; interpreted processors may need longer for the same.
fn timeout() -> Duration {
    if in_vm() { 3 * TIMEOUT } else { TIMEOUT }
}

/// Whether this is a virtual machine, maybe an emulated one: smaller numbers will do.
#[must_use]
pub fn in_vm() -> bool {
    std::env::var_os("MEMSCOPE_VM").is_some()
}

/// Whether much else runs on this machine, as beside a fault campaign: a thread may wait long for a processor.
#[must_use]
pub fn is_busy() -> bool {
    std::env::var_os("MEMSCOPE_BUSY").is_some()
}

/// The tracer.
#[must_use]
pub fn tracer_path() -> PathBuf {
    place("MEMSCOPE_BIN", "the tracer")
}

/// A simulated workload.
#[must_use]
pub fn workload_path(name: &str) -> PathBuf {
    let path = simulation().join("bin").join(name);
    assert!(path.exists(), "no workload `{}`: `./x test` builds it", path.display());
    path
}

/// Folder of the simulation. A copy for each process of tests: a return probe of another test's tracer is an address on the stack that this
/// one's tracer knows nothing of, so call stacks would end there.
#[must_use]
pub fn simulation() -> PathBuf {
    static COPY: OnceLock<PathBuf> = OnceLock::new();
    COPY.get_or_init(|| own_copy(&place("MEMSCOPE_SIM_DIR", "the simulated Ascend libraries"), "memscope-simulated-"))
        .clone()
}

/// Folder of the simulated libraries, for this user.
fn libraries(user: Option<&User>) -> PathBuf {
    user.map_or_else(|| simulation().join("lib"), User::libraries)
}

/// Folder of the Python package: what goes into `PYTHONPATH`. A copy for each process of tests: a script sees by the code of its module
/// whether a tracer listens, so it must not be one that another test's tracer has probes in.
#[must_use]
pub fn python_package() -> PathBuf {
    static COPY: OnceLock<PathBuf> = OnceLock::new();
    COPY.get_or_init(|| own_copy(&place("MEMSCOPE_PYTHON_DIR", "the Python package"), "memscope-package-")).clone()
}

/// A copy that is named by this process; removes those of processes that are gone.
fn own_copy(of: &Path, prefix: &str) -> PathBuf {
    let folder = std::env::temp_dir();
    for entry in fs::read_dir(&folder).expect("a folder for temporary files").flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(prefix)?.parse::<u32>().ok());
        if owner.is_some_and(|owner| !Path::new(&format!("/proc/{owner}")).exists()) {
            // Another process may be at it, too.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let copy = folder.join(format!("{prefix}{}", std::process::id()));
    copy_folder(of, &copy);
    copy
}

fn place(variable: &str, what: &str) -> PathBuf {
    let path = std::env::var_os(variable)
        .unwrap_or_else(|| panic!("{variable} does not say where {what} is: run the live tests with `./x test`"));
    PathBuf::from(path)
}

/// The BPF object inside of the tracer: libraries of tests are built without one.
#[must_use]
pub fn bpf_object() -> &'static [u8] {
    const MAGIC: &[u8] = b"\x7fELF\x02\x01\x01";
    const BPF: u16 = 247;
    let program = fs::read(tracer_path()).expect("the tracer");
    let starts = (8..program.len() - 64).step_by(8).filter(|at| program[*at..].starts_with(MAGIC));
    for at in starts {
        let object = &program[at..];
        let half = |from: usize| u16::from_le_bytes([object[from], object[from + 1]]);
        if half(18) == BPF {
            // Section headers are last: their offset, size and number.
            let offset = u64::from_le_bytes(object[40..48].try_into().expect("8 bytes")) as usize;
            let end = offset + usize::from(half(58)) * usize::from(half(60));
            return Box::leak(Box::from(&object[..end]));
        }
    }
    panic!("the tracer has no BPF object")
}

/// Children of all threads of a process.
#[must_use]
pub fn children(pid: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = threads.flatten().map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

/// A fresh folder with room for outputs and a journal.
#[derive(Debug)]
pub struct Folder(TempDir);

impl Default for Folder {
    fn default() -> Self {
        Self::new()
    }
}

impl Folder {
    /// Makes one in the system's temporary directory.
    #[must_use]
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("memscope-live-").tempdir().expect("temporary directory");
        fs::create_dir(folder.path().join("journal")).expect("journal directory");
        Self(folder)
    }

    /// The folder itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Where the simulated libraries write.
    #[must_use]
    pub fn journal_path(&self) -> PathBuf {
        self.path().join("journal")
    }

    /// Where the tracer writes.
    #[must_use]
    pub fn output_path(&self) -> PathBuf {
        self.path().join("output")
    }

    /// What the programs did.
    #[must_use]
    pub fn journal(&self) -> Journal {
        Journal::read(&self.journal_path())
    }

    /// What the tracer wrote.
    #[must_use]
    pub fn rows(&self) -> Rows {
        Rows::read(&self.output_path())
    }

    /// The one capture.
    #[must_use]
    pub fn capture(&self) -> PathBuf {
        let files = fs::read_dir(self.output_path()).expect("output directory");
        let mut captures: Vec<PathBuf> = files
            .map(|entry| entry.expect("readable output directory").path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "capture"))
            .collect();
        assert_eq!(captures.len(), 1, "not one capture: {captures:?}");
        captures.remove(0)
    }
}

/// A run of the tracer, to be set up.
#[derive(Debug)]
pub struct Tracer {
    verb: &'static str,
    options: Vec<OsString>,
    program: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    stdin: Option<Vec<u8>>,
    journal: Option<PathBuf>,
    user: Option<Arc<User>>,
    timeout: Duration,
    folder: Folder,
}

impl Tracer {
    fn new(verb: &'static str) -> Self {
        Self {
            verb,
            options: Vec::new(),
            program: Vec::new(),
            env: Vec::new(),
            stdin: None,
            journal: None,
            user: None,
            timeout: timeout(),
            folder: Folder::new(),
        }
    }

    /// Waits longer than for other programs: it is a server.
    #[must_use]
    pub fn patiently(mut self) -> Self {
        self.timeout = PATIENCE;
        self
    }

    /// Has an ordinary user run it.
    #[must_use]
    pub fn by(mut self, user: &Arc<User>) -> Self {
        self.user = Some(Arc::clone(user));
        self
    }

    /// Traces a simulated workload from its start.
    #[must_use]
    pub fn run(workload: &str, arguments: &[&str]) -> Self {
        Self::run_program(workload_path(workload), arguments)
    }

    /// Traces any program from its start.
    #[must_use]
    pub fn run_program(program: impl Into<OsString>, arguments: &[&str]) -> Self {
        let mut tracer = Self::new("run");
        tracer.program = vec![program.into()];
        tracer.program.extend(arguments.iter().map(OsString::from));
        tracer
    }

    /// Attaches to running processes.
    #[must_use]
    pub fn attach(targets: &[&Target]) -> Self {
        let pids: Vec<String> = targets.iter().map(|target| target.pid().to_string()).collect();
        Self::attach_to(&pids.join(","))
    }

    /// The same, by a list of numbers.
    #[must_use]
    pub fn attach_to(pids: &str) -> Self {
        Self::new("attach").option("--pid").option(pids)
    }

    /// Shows how running processes use memory.
    #[must_use]
    pub fn stat(pid: u32) -> Self {
        Self::new("stat").option("--pid").option(pid.to_string())
    }

    /// The live screen of a running process.
    #[must_use]
    pub fn top(pid: u32) -> Self {
        Self::new("top").option("--pid").option(pid.to_string())
    }

    /// When the memory of a running process will be full.
    #[must_use]
    pub fn forecast(pid: u32) -> Self {
        Self::new("forecast").option("--pid").option(pid.to_string())
    }

    /// Writes the outputs of a capture again.
    #[must_use]
    pub fn replay(capture: &Path) -> Self {
        Self::new("replay").option(capture)
    }

    /// Rebuilds the outputs of a tracer that was killed.
    #[must_use]
    pub fn recover(directory: &Path) -> Self {
        Self::new("recover").option(directory)
    }

    /// Adds an option of the tracer.
    #[must_use]
    pub fn option(mut self, option: impl AsRef<OsStr>) -> Self {
        self.options.push(option.as_ref().to_owned());
        self
    }

    /// Adds options of the tracer.
    #[must_use]
    pub fn options(mut self, options: &[&str]) -> Self {
        self.options.extend(options.iter().map(OsString::from));
        self
    }

    /// Sets a variable for the tracer and the program.
    #[must_use]
    pub fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.env.push((key.into(), value.as_ref().to_owned()));
        self
    }

    /// What the program reads.
    #[must_use]
    pub fn stdin(mut self, text: &[u8]) -> Self {
        self.stdin = Some(text.to_vec());
        self
    }

    /// Its folder, which exists already.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts it.
    #[must_use]
    pub fn start(self) -> Running {
        let Self { verb, options, program, env, stdin, journal, user, timeout, folder } = self;
        let mut command = Command::new(user.as_ref().map_or_else(tracer_path, |user| user.tracer()));
        command.arg(verb);
        // Such tests compare from the first event on. An option of the test's own comes later and wins.
        if verb == "run" && !holds_threads(&options) {
            command.arg("--late-libraries=stop");
        }
        command.args(&options);
        if !matches!(verb, "stat" | "top" | "forecast") {
            command.arg("-o").arg(folder.output_path());
        }
        if matches!(verb, "run" | "attach") {
            command.arg("--no-progress");
        }
        if !program.is_empty() {
            command.arg("--").args(&program);
        }
        command.env("LD_LIBRARY_PATH", libraries(user.as_deref()));
        command.env("ASCEND_SIM_JOURNAL", journal.unwrap_or_else(|| folder.journal_path()));
        command.envs(env).current_dir(folder.path());
        let input = folder.path().join("stdin");
        fs::write(&input, stdin.unwrap_or_default()).expect("written input");
        command.stdin(File::open(&input).expect("input"));
        if let Some(user) = &user {
            user.take(folder.path());
            command.uid(User::ID).gid(User::ID);
        }
        let process = Process::spawn(&mut command, folder.path(), "tracer").within(timeout);
        Running { process, folder }
    }

    /// Runs it to its end.
    #[must_use]
    pub fn finish(self) -> Run {
        self.start().finish()
    }

    /// Runs it to its end, which has to be a good one, with a report that adds up.
    #[must_use]
    pub fn succeed(self) -> Run {
        let run = self.finish();
        assert!(run.status.success(), "the tracer ended with {}\n{}", run.status, run.said());
        let wrong = crate::checkers::answers::check_text(&run.stdout);
        assert!(wrong.is_empty(), "{wrong:#?}");
        run
    }
}

/// Whether the tracer can hold a thread that loads a library until it is probed: not without links that have cookies.
fn holds_threads(options: &[OsString]) -> bool {
    let slots = |option: &OsString| option == "slots" || option == "--link=slots";
    kernel::has_sleepable_probes() && !options.iter().any(slots)
}

/// A tracer at work. Dropped, it is killed.
#[derive(Debug)]
pub struct Running {
    process: Process,
    /// Its folder.
    pub folder: Folder,
}

impl Running {
    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Waits until its messages hold a text this many times.
    pub fn wait_for_message(&self, text: &str, times: usize) {
        self.process.wait_for("messages", || self.process.stderr().matches(text).count() >= times);
    }

    /// Waits until it has written a dump.
    pub fn wait_for_rows(&self) {
        self.wait_for_dumps(|dumps| {
            dumps.iter().any(|path| fs::metadata(path).is_ok_and(|metadata| metadata.len() > 200))
        });
    }

    /// Waits until its dumps hold a text this many times.
    pub fn wait_for_rows_of(&self, text: &str, times: usize) {
        let count = |path: &PathBuf| fs::read_to_string(path).map_or(0, |rows| rows.matches(text).count());
        self.wait_for_dumps(|dumps| dumps.iter().map(count).sum::<usize>() >= times);
    }

    fn wait_for_dumps(&self, enough: impl Fn(&[PathBuf]) -> bool) {
        let output = self.folder.output_path();
        self.process.wait_for("rows", || output.exists() && enough(&super::rows::dump_files(&output)));
    }

    /// What the program printed so far.
    #[must_use]
    pub fn stdout(&self) -> String {
        self.process.stdout()
    }

    /// Its messages so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.process.stderr()
    }

    /// Waits until the traced program has printed a text.
    pub fn wait_for_output(&self, text: &str) {
        self.wait_for_output_times(text, 1);
    }

    /// Waits until it, or the tracer itself, has printed a text this many times.
    pub fn wait_for_output_times(&self, text: &str, times: usize) {
        self.process.wait_for("output", || self.process.stdout().matches(text).count() >= times);
    }

    /// Waits for its end.
    #[must_use]
    pub fn finish(mut self) -> Run {
        let status = self.process.wait();
        Run { status, stdout: self.process.stdout(), stderr: self.process.stderr(), folder: self.folder }
    }
}

/// A tracer that has ended.
#[derive(Debug)]
pub struct Run {
    /// How.
    pub status: ExitStatus,
    /// What it, and the program, printed.
    pub stdout: String,
    /// Messages.
    pub stderr: String,
    /// Its folder.
    pub folder: Folder,
}

impl Run {
    /// Its exit status; -1 if a signal ended it.
    #[must_use]
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or(-1)
    }

    /// What the programs did.
    #[must_use]
    pub fn journal(&self) -> Journal {
        self.folder.journal()
    }

    /// What the tracer wrote.
    #[must_use]
    pub fn rows(&self) -> Rows {
        self.folder.rows()
    }

    /// The findings of `--json`: the last line that holds them, held to the published schema. They add up.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        let line = self.stdout.lines().rev().find(|line| line.starts_with("{\"schema\""));
        let line = line.unwrap_or_else(|| panic!("no findings\n{}", self.said()));
        let document = document(line.as_bytes());
        let wrong = crate::checkers::answers::check(&document);
        assert!(wrong.is_empty(), "{wrong:#?}");
        document
    }

    /// Whether the report, or the JSON, is there and has no loss, but for calls that were entered before the attach.
    #[must_use]
    pub fn lost_nothing_since_attach(&self) -> bool {
        const OLDER: &str = "entered before attach";
        if self.stdout.contains("{\"schema\"") {
            let json = self.json();
            let losses = json["end"]["losses"].as_array().expect("losses");
            return losses.iter().all(|loss| loss["reason"] == OLDER);
        }
        let report: Vec<&str> =
            self.stdout.lines().skip_while(|line| !line.starts_with("lost: 0 (ring full)")).collect();
        let lines: Vec<&&str> = report.iter().skip(1).filter(|line| line.starts_with("  ")).collect();
        !report.is_empty() && lines.iter().all(|line| line.contains(OLDER))
    }

    /// The counts in the workloads' closing lines, added up.
    #[must_use]
    pub fn counted(&self, key: &str) -> u64 {
        let lines = self.stdout.lines().filter(|line| line.starts_with("{\"pid\""));
        let values = lines.map(|line| serde_json::from_str::<serde_json::Value>(line).expect("a workload's line"));
        values.filter_map(|value| value[key].as_u64()).sum()
    }

    /// Everything that was printed, for messages.
    #[must_use]
    pub fn said(&self) -> String {
        format!("--- stdout\n{}--- stderr\n{}---", self.stdout, self.stderr)
    }
}

/// A workload that runs by itself, to be attached to. Dropped, it is killed.
#[derive(Debug)]
pub struct Target {
    process: Process,
    /// Its folder.
    pub folder: Folder,
}

impl Target {
    /// Starts `serve`, and waits until it is ready.
    #[must_use]
    pub fn serve(arguments: &[&str]) -> Self {
        Self::workload("serve", arguments)
    }

    /// Starts a workload that prints `ready` like `serve`, and waits for that.
    #[must_use]
    pub fn workload(name: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(workload_path(name));
        command.args(arguments).env("LD_LIBRARY_PATH", simulation().join("lib"));
        Self::start(command, Folder::new(), "ready ")
    }

    /// The same, of an ordinary user.
    #[must_use]
    pub fn serve_of(user: &User, arguments: &[&str]) -> Self {
        let mut command = Command::new(user.workload("serve", 0o755));
        command.args(arguments).env("LD_LIBRARY_PATH", user.libraries()).uid(User::ID).gid(User::ID);
        let folder = Folder::new();
        user.take(folder.path());
        Self::start(command, folder, "ready ")
    }

    /// Starts any program, and waits until it has printed a text.
    #[must_use]
    pub fn start(command: Command, folder: Folder, ready: &str) -> Self {
        Self::start_within(timeout(), command, folder, ready)
    }

    /// The same of a program that takes long.
    #[must_use]
    pub fn start_patiently(command: Command, folder: Folder, ready: &str) -> Self {
        Self::start_within(PATIENCE, command, folder, ready)
    }

    fn start_within(timeout: Duration, mut command: Command, folder: Folder, ready: &str) -> Self {
        command.env("ASCEND_SIM_JOURNAL", folder.journal_path()).stdin(Stdio::null());
        let process = Process::spawn(&mut command, folder.path(), "target").within(timeout);
        process.wait_for("ready", || process.stdout().contains(ready));
        assert!(process.stdout().contains(ready), "the target ended: {}", process.stderr());
        Self { process, folder }
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Waits until this many processes have reported that they are ready; returns them.
    #[must_use]
    pub fn ready(&self, count: usize) -> Vec<u32> {
        let pids = || -> Vec<u32> {
            let output = self.process.stdout();
            output.lines().filter_map(|line| line.strip_prefix("ready ")?.parse().ok()).collect()
        };
        self.process.wait_for("children", || pids().len() >= count);
        pids()
    }

    /// Waits until it has printed a text.
    pub fn wait_for_output(&self, text: &str) {
        self.process.wait_for("output", || self.process.stdout().contains(text));
    }

    /// What it printed so far.
    #[must_use]
    pub fn stdout(&self) -> String {
        self.process.stdout()
    }

    /// Its messages so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.process.stderr()
    }

    /// Ends it in order.
    pub fn stop(&mut self) {
        self.signal(Signal::SIGTERM);
        let status = self.process.wait();
        assert!(status.success(), "the target ended with {status}: {}", self.process.stderr());
    }

    /// Waits for its end, whatever that is.
    pub fn wait(&mut self) -> ExitStatus {
        self.process.wait()
    }

    /// Sees to it that it lives, is not stopped, and still works.
    pub fn assert_unharmed(&self) {
        assert_runs(self.pid());
        let calls = || self.folder.journal().entries.len();
        let before = calls();
        self.process.wait_for("life signs", || calls() > before);
    }
}

/// The state letter of a process in `/proc`; `None` if there is no such process.
#[must_use]
pub fn state_of(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Panics unless the process, and each of its threads, is neither stopped nor gone. One may be in a group stop for a
/// moment while probes are placed, so it is asked for a while.
pub fn assert_runs(pid: u32) {
    let stopped = || state_of(pid).is_none_or(|state| matches!(state, 'T' | 't' | 'Z' | 'X'));
    let deadline = Instant::now() + Duration::from_secs(2);
    while stopped() && Instant::now() < deadline {
        std::thread::sleep(POLL);
    }
    assert!(!stopped(), "process {pid} does not run: its state is {:?}", state_of(pid));
}

/// Processes with the folder in their environment.
fn processes_of(folder: &Path) -> Vec<u32> {
    let folder = folder.to_str().expect("a path").as_bytes();
    let pids = fs::read_dir("/proc").expect("/proc").filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let belongs = |pid: &u32| {
        fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|environment| environment.windows(folder.len()).any(|part| part == folder))
    };
    pids.filter(belongs).collect()
}

/// Panics if some process of a run does not end by itself.
pub fn assert_nobody_is_left(folder: &Path, when: &str) {
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut left = processes_of(folder);
    while !left.is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
        left = processes_of(folder);
    }
    let describe = |pid: &u32| {
        let command = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        format!("{pid} {} in state {:?}", command.trim_end(), state_of(*pid))
    };
    let described: Vec<String> = left.iter().map(describe).collect();
    for pid in &left {
        let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
    }
    assert!(left.is_empty(), "{when}: left behind: {described:?}");
}

/// `CLOCK_MONOTONIC` now.
#[must_use]
pub fn monotonic_ns() -> u64 {
    nanoseconds(ClockId::CLOCK_MONOTONIC)
}

/// What to add to monotonic times to get those of the outputs.
#[must_use]
pub fn unix_offset_ns() -> u64 {
    nanoseconds(ClockId::CLOCK_REALTIME) - monotonic_ns()
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock).expect("a clock");
    time.tv_sec().cast_unsigned() * 1_000_000_000 + time.tv_nsec().cast_unsigned()
}

/// A child with its outputs in files: pipes would fill up, or be held open by grandchildren.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    name: &'static str,
    stdout: PathBuf,
    stderr: PathBuf,
    timeout: Duration,
    ended: bool,
}

impl Process {
    pub(super) fn spawn(command: &mut Command, folder: &Path, name: &'static str) -> Self {
        let stdout = folder.join(format!("{name}.stdout"));
        let stderr = folder.join(format!("{name}.stderr"));
        command.stdout(File::create(&stdout).expect("file for output"));
        command.stderr(File::create(&stderr).expect("file for messages"));
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        Self { child, name, stdout, stderr, timeout: timeout(), ended: false }
    }

    fn within(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid().cast_signed()), signal)
            .unwrap_or_else(|error| panic!("cannot send {signal} to {}: {error}", self.name));
    }

    fn stdout(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.stdout).expect("output")).into_owned()
    }

    pub(super) fn stderr(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.stderr).expect("messages")).into_owned()
    }

    /// Waits for something to come, or for the end of the process, which the test will notice.
    pub(super) fn wait_for(&self, what: &str, mut come: impl FnMut() -> bool) {
        let deadline = Instant::now() + self.timeout;
        while !come() && state_of(self.pid()) != Some('Z') {
            assert!(
                Instant::now() < deadline,
                "waited {:?} for {what} of {}\n--- stdout\n{}--- stderr\n{}---",
                self.timeout,
                self.name,
                self.stdout(),
                self.stderr()
            );
            std::thread::sleep(POLL);
        }
    }

    pub(super) fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + self.timeout;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child to wait for") {
                self.ended = true;
                return status;
            }
            if Instant::now() > deadline {
                self.end();
                let timeout = self.timeout;
                panic!("{} took more than {timeout:?}\n{}\n{}", self.name, self.stdout(), self.stderr());
            }
            std::thread::sleep(POLL);
        }
    }

    fn end(&mut self) {
        self.ended = true;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.ended {
            self.end();
        }
    }
}

/// The signal that ended a program.
#[must_use]
pub fn signal_of(status: ExitStatus) -> Option<i32> {
    status.signal()
}
