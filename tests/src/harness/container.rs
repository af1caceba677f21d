//! Programs in namespaces of their own, with another root and copies of all they need.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::journal::Journal;
use super::tracer::{Folder, Target, simulation, workload_path};

/// What containers are made from: a folder that can be the root of a simulated workload.
#[derive(Debug)]
pub struct Image(Folder);

impl Image {
    /// Copies of the workloads and of all libraries that are mapped in them.
    #[must_use]
    pub fn new(workloads: &[&str]) -> Self {
        let image = Self(Folder::new());
        for folder in ["bin", "sim", "lib", "lib64", "tmp", "proc", "root"] {
            fs::create_dir_all(image.root().join(folder)).expect("a folder");
        }
        for name in workloads {
            copy(&workload_path(name), &image.root().join("bin").join(name));
        }
        for library in fs::read_dir(simulation().join("lib")).expect("libraries") {
            let library = library.expect("a library");
            if library.path().is_file() {
                copy(&library.path(), &image.root().join("sim").join(library.file_name()));
            }
        }
        for path in system_libraries() {
            let name = path.file_name().expect("a name");
            copy(&path, &image.root().join("lib").join(name));
            // x86-64 has the loader there.
            copy(&path, &image.root().join("lib64").join(name));
        }
        fs::create_dir(image.root().with_file_name("changes")).expect("a folder");
        image
    }

    /// The folder.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.0.path().join("image")
    }

    /// Arguments of `contain` that make this the root of a program.
    #[must_use]
    pub fn as_root(&self) -> Vec<String> {
        vec!["--root".to_owned(), text(&self.root())]
    }

    /// The same, by an overlay: changes stay with the one container.
    #[must_use]
    pub fn below_overlay(&self) -> Vec<String> {
        let place = self.root().with_file_name("changes");
        vec!["--overlay".to_owned(), text(&self.root()), "--root".to_owned(), text(&place)]
    }
}

fn copy(from: &Path, to: &Path) {
    fs::copy(from, to).unwrap_or_else(|error| panic!("{} to {}: {error}", from.display(), to.display()));
}

fn text(path: &Path) -> String {
    path.to_str().expect("a plain path").to_owned()
}

/// What a workload has mapped besides the simulation.
fn system_libraries() -> Vec<PathBuf> {
    let target = Target::workload("serve", &[]);
    let maps = fs::read_to_string(format!("/proc/{}/maps", target.pid())).expect("mappings");
    let paths = maps.lines().filter_map(|line| Some(PathBuf::from(line.split_whitespace().nth(5)?)));
    let is_library = |path: &PathBuf| text(path).contains(".so") && !path.starts_with(simulation());
    let mut found: Vec<PathBuf> = paths.filter(is_library).collect();
    // What programs in C++ and ends of threads need besides.
    let folders: Vec<PathBuf> = found.iter().filter_map(|path| Some(path.parent()?.to_path_buf())).collect();
    let more = ["libstdc++.so.6", "libm.so.6", "libgcc_s.so.1"]
        .into_iter()
        .filter_map(|name| folders.iter().map(|folder| folder.join(name)).find(|path| path.exists()));
    found.extend(more.collect::<Vec<_>>());
    found.sort();
    found.dedup();
    found
}

/// Variables for programs in an image as root.
pub const LIBRARIES: &str = "/sim:/lib";

/// A program in a container, and what it is called in there and out here.
#[derive(Debug)]
pub struct Contained {
    /// Its keeper, the parent process.
    pub target: Target,
    /// As everybody else sees it.
    pub pid: u32,
}

impl Contained {
    /// Starts a program with these arguments of `contain`, and waits until it has printed a text.
    #[must_use]
    pub fn start(how: &[String], program: &[&str], ready: &str) -> Self {
        let folder = Folder::new();
        let mut command = Command::new(workload_path("contain"));
        command.args(how).arg("--bind").arg(folder.journal_path()).args(program);
        command.env("LD_LIBRARY_PATH", LIBRARIES);
        let target = Target::start(command, folder, ready);
        let children = format!("/proc/{0}/task/{0}/children", target.pid());
        let children = fs::read_to_string(children).expect("the kernel lists children");
        let pid = children.trim().parse().expect("one child");
        Self { target, pid }
    }

    /// What it did, by the numbers that others know it and its threads by; while it lives.
    #[must_use]
    pub fn numbers(&self) -> HashMap<u32, u32> {
        numbers_of(self.pid)
    }

    /// The journal with the numbers that are known out here.
    #[must_use]
    pub fn journal(&self, numbers: &HashMap<u32, u32>) -> Journal {
        let mut journal = self.target.folder.journal();
        journal.renumber(numbers);
        journal
    }

    /// Ends it in order.
    pub fn stop(&mut self) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.pid.cast_signed()), nix::sys::signal::Signal::SIGTERM)
            .expect("it lives");
        assert!(self.target.wait().success(), "{}", self.target.stdout());
    }
}

/// Numbers of a process and its threads out here, by those in their own pid namespace.
fn numbers_of(pid: u32) -> HashMap<u32, u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
    let status = |thread: std::io::Result<fs::DirEntry>| {
        let status = fs::read_to_string(thread.expect("a thread").path().join("status")).ok()?;
        let fields: BTreeMap<_, _> = status.lines().filter_map(|line| line.split_once(':')).collect();
        let numbers: Vec<u32> = fields["NSpid"].split_whitespace().map(|n| n.parse().expect("a number")).collect();
        Some((*numbers.last()?, numbers[0]))
    };
    threads.filter_map(status).collect()
}
