//! The node agent, and programs that no other test has.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::tracer::{Folder, Process, Target, simulation, tracer_path, workload_path};
use crate::checkers::page::{self, Page};

/// More than any program has in a second.
const MANY_EVENTS: u32 = 1_000_000_000;
/// Names come from nowhere.
const NO_NAMES: &str = "container_logs = \"\"";

/// An agent that traces the programs of one name.
#[derive(Debug)]
pub struct Agent {
    process: Process,
    /// Its folder.
    pub folder: Folder,
}

impl Agent {
    /// Starts it, and waits until it runs.
    #[must_use]
    pub fn start(name: &str) -> Self {
        Self::start_with(name, "")
    }

    /// The same with further settings.
    #[must_use]
    pub fn start_with(name: &str, further: &str) -> Self {
        Self::start_of(name, MANY_EVENTS, further)
    }

    /// The same; a process with more events in a second than these loses its pools, or leaves.
    #[must_use]
    pub fn start_for(name: &str, events_per_process: u32) -> Self {
        Self::start_of(name, events_per_process, "")
    }

    fn start_of(name: &str, events_per_process: u32, further: &str) -> Self {
        Self::start_by(&rules_of(name), NO_NAMES, (events_per_process, further), &[])
    }

    /// The same with further settings and variables.
    #[must_use]
    pub fn start_in(name: &str, further: &str, variables: &[(&str, &str)]) -> Self {
        Self::start_by(&rules_of(name), NO_NAMES, (MANY_EVENTS, further), variables)
    }

    /// The same that traces by these rules, and knows names by these settings.
    #[must_use]
    pub fn start_by_names(rules: &str, names: &str) -> Self {
        Self::start_by(rules, names, (MANY_EVENTS, ""), &[])
    }

    fn start_by(
        rules: &str,
        names: &str,
        (events_per_process, further): (u32, &str),
        variables: &[(&str, &str)],
    ) -> Self {
        let folder = Folder::new();
        let config = settings(&folder, (rules, names), events_per_process, further);
        let mut command = Command::new(tracer_path());
        command.arg("agent").arg("--config").arg(config).current_dir(folder.path()).envs(variables.iter().copied());
        let process = Process::spawn(&mut command, folder.path(), "agent");
        let agent = Self { process, folder };
        agent.wait_for("the agent runs");
        agent
    }

    /// Waits until it has said something.
    pub fn wait_for(&self, text: &str) {
        self.process.wait_for(text, || self.process.stderr().contains(text));
        assert!(self.process.stderr().contains(text), "{}", self.process.stderr());
    }

    /// What it has said.
    #[must_use]
    pub fn said(&self) -> String {
        self.process.stderr()
    }

    /// Where it can be asked.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("agent.sock")
    }

    /// Host and port of its page.
    #[must_use]
    pub fn address(&self) -> String {
        let said = self.process.stderr();
        said.split("http://").nth(1).and_then(|rest| rest.split('/').next()).expect("an address").to_owned()
    }

    /// The page as it is served, which has to be right in both formats.
    #[must_use]
    pub fn page(&self) -> Page {
        let address = self.address();
        let ask = |accept: &str| get(&address, "/metrics", accept).expect("an answer");
        let open = ask("application/openmetrics-text;version=1.0.0");
        if open.starts_with('#') {
            page::read(&open, true).unwrap_or_else(|why| panic!("{why}"));
        }
        let text = ask("text/plain");
        // None is made yet.
        if text.starts_with("no page") {
            Page::default()
        } else {
            page::read(&text, false).unwrap_or_else(|why| panic!("{why}"))
        }
    }

    /// Waits until the page is as it should be.
    #[must_use]
    pub fn wait_for_page(&self, what: &str, is_right: impl Fn(&Page) -> bool) -> Page {
        self.process.wait_for(what, || is_right(&self.page()));
        let page = self.page();
        assert!(is_right(&page), "{what}: {page:#?}\n{}", self.process.stderr());
        page
    }

    /// Waits until it traces this many processes.
    #[must_use]
    pub fn wait_for_processes(&self, count: u64) -> Page {
        let traced = |page: &Page| page.count("memscope_process_info", &[]) == (count > 0).then_some(count);
        self.wait_for_page("processes", traced)
    }

    /// A program of this name that allocates and frees until SIGTERM, when it has a hundred allocations from its pool.
    #[must_use]
    pub fn target_at_work(&self, name: &str) -> Target {
        let target = waiting(name, "pool", &["--serve", "--hold", "3", "--size", "1000000", "--leaks", "0"]);
        let _ = self.wait_for_processes(1);
        fs::write(target.folder.path().join("go"), "\n").expect("it reads");
        let _ = self.wait_for_page("its calls", |page| {
            page.count("memscope_allocations_total", &[("layer", "pool")]).is_some_and(|count| count > 100)
        });
        target
    }

    /// Its one bundle, once it is written.
    #[must_use]
    pub fn bundle(&self) -> PathBuf {
        self.wait_for("ran out of memory");
        let files = fs::read_dir(self.folder.path().join("bundles")).expect("bundles");
        let mut files: Vec<PathBuf> = files.flatten().map(|file| file.path()).collect();
        assert_eq!(files.len(), 1, "{files:?}");
        files.remove(0)
    }

    /// Asks it.
    #[must_use]
    pub fn ask(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(tracer_path());
        command.arg("agent").args(arguments).arg("--socket").arg(self.socket());
        command.output().expect("it runs")
    }

    /// The files that it has open in a folder.
    #[must_use]
    pub fn open_files(&self, folder: &Path) -> Vec<PathBuf> {
        self.open().into_iter().filter(|link| link.starts_with(folder)).collect()
    }

    /// Links of its probes.
    #[must_use]
    pub fn links(&self) -> usize {
        self.open().iter().filter(|link| link.as_os_str() == "anon_inode:bpf_link").count()
    }

    /// Waits until it has no more links than these, and no file in a folder open.
    pub fn wait_until_given_back(&self, links: usize, folder: &Path) {
        let left = || (self.links().saturating_sub(links), self.open_files(folder));
        let is_done = || left() == (0, Vec::new());
        self.process.wait_for("what it gives back", is_done);
        assert!(is_done(), "{:?}", left());
    }

    fn open(&self) -> Vec<PathBuf> {
        let open = fs::read_dir(format!("/proc/{}/fd", self.process.pid())).expect("it lives");
        open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok()).collect()
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.process.signal(Signal::SIGKILL);
        assert!(!self.process.wait().success());
    }

    /// Ends it, in order.
    pub fn end(self) {
        let _ = self.end_saying();
    }

    /// The same. Gives all that it has said.
    #[must_use]
    pub fn end_saying(mut self) -> String {
        self.process.signal(Signal::SIGTERM);
        let status = self.process.wait();
        assert!(status.success(), "{}", self.process.stderr());
        assert!(!self.socket().exists());
        self.said()
    }
}

/// What a server answers; not in pieces, as HTTP 1.0 knows none.
///
/// # Errors
///
/// When it does not listen, or says nothing.
pub fn get(address: &str, path: &str, accept: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(100)))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: x\r\nAccept: {accept}\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (_, body) = answer.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::InvalidData)?;
    Ok(body.to_owned())
}

/// That the programs of one name are traced.
fn rules_of(name: &str) -> String {
    format!("[[rules.list]]\ncommand = \"{name}\"\n")
}

fn settings(folder: &Folder, (rules, names): (&str, &str), events_per_process: u32, further: &str) -> PathBuf {
    let config = folder.path().join("agent.toml");
    let socket = folder.path().join("agent.sock");
    let bundles = folder.path().join("bundles");
    let text = format!(
        "[rules]\notherwise = \"exclude\"\n{rules}\
         [discovery]\ninterval_seconds = 0.1\nlongest_seconds = 0.1\nforget_seconds = 0.3\n\
         [metrics]\nlisten = \"127.0.0.1:0\"\ninterval_seconds = 0.3\n\
         [budget]\ncores = 1000.0\nevents_per_process = {events_per_process}\n\
         [names]\n{names}\n\
         [bundles]\ndirectory = \"{}\"\n\
         [control]\nsocket = \"{}\"\n{further}",
        bundles.display(),
        socket.display()
    );
    fs::write(&config, text).expect("written settings");
    config
}

/// A name that no other program has at the moment.
#[must_use]
pub fn own_name(word: &str) -> String {
    format!("{word}{}", std::process::id())
}

/// A program under a name of its own, with the simulated libraries.
#[must_use]
pub fn named(program: &Path, name: &str, folder: &Folder) -> Command {
    let copy = folder.path().join(name);
    fs::copy(program, &copy).expect("a copy");
    let mut command = Command::new(copy);
    command.env("LD_LIBRARY_PATH", simulation().join("lib")).current_dir(folder.path());
    command
}

/// A workload that begins when its pipe is written to; until then it is a shell of this name, which maps the libraries.
#[must_use]
pub fn waiting(name: &str, workload: &str, arguments: &[&str]) -> Target {
    waiting_with(name, workload, arguments, &[])
}

/// The same with variables of the environment, which the shell has, too.
#[must_use]
pub fn waiting_with(name: &str, workload: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Target {
    let folder = Folder::new();
    mkfifo(&folder.path().join("go"), Mode::S_IRWXU).expect("a pipe");
    let libraries = ["libascend_hal.so", "libruntime.so", "libascendcl.so", "libms_tools_ext.so", "libtorch_npu.so"];
    let mut command = named(Path::new("/bin/bash"), name, &folder);
    command.env("LD_PRELOAD", libraries.join(" ")).envs(variables.iter().copied());
    command
        .args(["-c", "echo ready $$; read go < go; exec \"$@\"", "bash"])
        .arg(workload_path(workload))
        .args(arguments);
    Target::start(command, folder, "ready ")
}
