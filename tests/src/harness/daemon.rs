//! The daemon, and scripts that it traces.

use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::pythons::{Python, interpreters};
use super::tracer::{Folder, Process, Target, python_package, simulation, tracer_path};
use super::user::User;

const WORKLOAD: &str = include_str!("../../workloads/daemon.py");
/// How long an answer may take before the test is given up.
const TIMEOUT: Duration = Duration::from_secs(100);

/// A daemon with a socket of its own. Dropped, it is killed.
#[derive(Debug)]
pub struct Daemon {
    process: Process,
    folder: Folder,
}

impl Daemon {
    /// Starts it with these options, and waits until it listens.
    #[must_use]
    pub fn start(options: &[&str]) -> Self {
        let folder = Folder::new();
        // For users.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("changed rights");
        let mut command = Command::new(tracer_path());
        command.arg("daemon").arg("--socket").arg(folder.path().join("socket")).args(options);
        // It reaches no user's outputs.
        command.env("SUDO_UID", "1").env("SUDO_GID", "1").current_dir(folder.path());
        let process = Process::spawn(&mut command, folder.path(), "daemon");
        let daemon = Self { process, folder };
        daemon.wait_for("listening on ", 1);
        daemon
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// What it has said.
    #[must_use]
    pub fn messages(&self) -> String {
        self.process.stderr()
    }

    /// Waits until its messages hold a text this many times.
    pub fn wait_for(&self, text: &str, times: usize) {
        self.process.wait_for("messages", || self.messages().matches(text).count() >= times);
        assert!(self.messages().matches(text).count() >= times, "it ended: {}", self.messages());
    }

    /// Waits until the tracer of a process has written all.
    pub fn wait_for_end_of(&self, pid: u32) {
        self.wait_for(&format!("the tracer of process {pid} of user "), 1);
    }

    /// Sends it a signal, and waits for its end.
    pub fn end(&mut self, signal: Signal) -> ExitStatus {
        self.process.signal(signal);
        self.process.wait()
    }

    /// Connects to it.
    #[must_use]
    pub fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.socket()).expect("it listens");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a time limit");
        stream.set_write_timeout(Some(TIMEOUT)).expect("a time limit");
        stream
    }

    /// What it answers to these bytes, behind which nothing comes.
    #[must_use]
    pub fn answer(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        // It may refuse before it has read all.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }
}

/// A script to be run.
#[derive(Debug)]
pub struct Script<'a> {
    python: Python,
    scenario: &'a str,
    settings: Vec<String>,
    socket: PathBuf,
    user: Option<&'a User>,
    around: Vec<String>,
}

impl<'a> Script<'a> {
    /// By root, with this daemon.
    #[must_use]
    pub fn new(scenario: &'a str, socket: &Path) -> Self {
        let python = interpreters().pop().expect("an interpreter");
        Self { python, scenario, settings: Vec::new(), socket: socket.to_owned(), user: None, around: Vec::new() }
    }

    /// Sets something by `config()`, `KEY=VALUE`.
    #[must_use]
    pub fn set(mut self, setting: impl Into<String>) -> Self {
        self.settings.push(setting.into());
        self
    }

    /// By this interpreter.
    #[must_use]
    pub fn with(mut self, python: &Python) -> Self {
        self.python = python.clone();
        self
    }

    /// By an ordinary user, with an interpreter that this one may use.
    #[must_use]
    pub fn by(mut self, user: &'a User) -> Self {
        let works = |python: &Python| {
            let status =
                Command::new(&python.path).args(["-I", "-c", ""]).uid(User::ID).gid(User::ID).current_dir("/").status();
            status.is_ok_and(|status| status.success())
        };
        let found = interpreters().into_iter().rev().find(works);
        self.python = found.expect("an interpreter that every user may start: python3 in /usr/bin");
        self.user = Some(user);
        self
    }

    /// The interpreter.
    #[must_use]
    pub fn python(&self) -> &Path {
        &self.python.path
    }

    /// By this program with these arguments, in front of the interpreter.
    #[must_use]
    pub fn below(mut self, program: &Path, arguments: &[&str]) -> Self {
        self.around = vec![program.to_str().expect("a plain path").to_owned()];
        self.around.extend(arguments.iter().map(ToString::to_string));
        self
    }

    /// Starts it in a folder, and waits until it has printed a text.
    #[must_use]
    pub fn start_in(self, folder: Folder, ready: &str) -> Target {
        let script = folder.path().join("daemon.py");
        fs::write(&script, WORKLOAD).expect("the workload");
        let mut words = self.around.clone();
        words.push(self.python.path.to_str().expect("a plain path").to_owned());
        words.extend(["-B".to_owned(), script.to_str().expect("a plain path").to_owned(), self.scenario.to_owned()]);
        words.extend(self.settings);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(folder.path()).env("MEMSCOPE_BPF_SOCKET", &self.socket);
        match self.user {
            Some(user) => {
                command.env("PYTHONPATH", user.python_package()).env("LD_LIBRARY_PATH", user.libraries());
                user.take(folder.path());
                command.uid(User::ID).gid(User::ID);
            }
            None => {
                command.env("PYTHONPATH", python_package()).env("LD_LIBRARY_PATH", simulation().join("lib"));
            }
        }
        Target::start(command, folder, ready)
    }

    /// The same, in a folder of its own.
    #[must_use]
    pub fn start(self, ready: &str) -> Target {
        self.start_in(Folder::new(), ready)
    }

    /// Runs it to its end, which has to be a good one.
    #[must_use]
    pub fn finish(self) -> Target {
        let mut target = self.start("end\n");
        let status = target.wait();
        assert!(status.success(), "{status}: {}", target.stderr());
        target
    }
}
