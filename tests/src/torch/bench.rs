//! `torch_npu` on the simulated libraries.
//!
//! `MEMSCOPE_TORCH_NPU` names the folder that `./x npu` made for a version, or `./x servers` for a server; they run these tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::harness::journal::Journal;
use crate::harness::tracer::{Folder, Run, Target, Tracer, simulation};

use super::truth::Truth;

/// Programs of `torch_npu` alone; what all programs import is here, too.
const WORKLOADS: &str = "torch-npu/workloads";
/// Programs of servers and frameworks on it.
const SERVERS: &str = "servers/workloads";
/// Packages of Python that stand in for what servers import.
const STAND_INS: &str = "servers/python";
/// Memory of each of the two devices: little enough to run out of.
const CAPACITY_MB: &str = "2048";

/// A program of `torch_npu`'s, to be run.
#[derive(Clone, Debug)]
pub struct Program {
    /// Where its script is.
    scripts: &'static str,
    /// What Python gets before the script.
    options: Vec<String>,
    arguments: Vec<String>,
    env: Vec<(String, String)>,
}

impl Program {
    /// `train.py sgd 10 128`.
    #[must_use]
    pub fn new(line: &str) -> Self {
        Self::of(WORKLOADS, line)
    }

    /// A program of a server's: `trainer.py gpt2 5 clean`.
    #[must_use]
    pub fn server(line: &str) -> Self {
        let shared = format!("{}:{}", scripts(WORKLOADS).display(), scripts(STAND_INS).display());
        // Its processes start others, which get no options of Python's.
        let program = Self::of(SERVERS, line).env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONWARNINGS", "ignore");
        program.env("PYTHONPATH", &shared).env("HF_HUB_OFFLINE", "1")
    }

    fn of(scripts: &'static str, line: &str) -> Self {
        // No files are written into the repository, and torch's warnings about the stand-ins are irrelevant.
        let options = vec!["-B".to_owned(), "-W".to_owned(), "ignore".to_owned()];
        Self { scripts, options, arguments: words(line), env: Vec::new() }
    }

    /// Has a module of Python's start it: `torch.distributed.run --nproc_per_node 2`.
    #[must_use]
    pub fn started_by(mut self, module: &str) -> Self {
        self.options.push("-m".to_owned());
        self.options.extend(words(module));
        self
    }

    /// Sets a variable of `torch_npu`'s.
    #[must_use]
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.env.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Runs it under the tracer.
    #[must_use]
    pub fn traced(&self, options: &[&str]) -> (Run, Truth) {
        let (run, truth) = self.traced_with(options);
        let truth = Truth::read(&truth);
        (run, truth)
    }

    /// Runs it under the tracer, with findings as JSON; gives the folder where it wrote what it knows.
    #[must_use]
    pub fn traced_with(&self, options: &[&str]) -> (Run, PathBuf) {
        self.traced_as(&[&["--json"], options].concat())
    }

    /// The same with these options alone.
    #[must_use]
    pub fn traced_as(&self, options: &[&str]) -> (Run, PathBuf) {
        let arguments = self.command_line();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut tracer = Tracer::run_program(python(), &arguments).options(options);
        let truth = tracer.folder().join("truth");
        std::fs::create_dir(&truth).expect("folder for the truth");
        for (key, value) in self.variables(&truth) {
            tracer = tracer.env(&key, value);
        }
        if self.scripts == SERVERS {
            tracer = tracer.patiently();
        }
        (tracer.succeed(), truth)
    }

    /// Runs it by itself, up to where it waits for a tracer.
    #[must_use]
    pub fn waiting(&self) -> (Target, PathBuf) {
        let folder = Folder::new();
        let truth = folder.path().join("truth");
        std::fs::create_dir(&truth).expect("folder for the truth");
        let mut command = Command::new(python());
        command.args(self.command_line()).envs(self.variables(&truth)).current_dir(folder.path());
        let start = if self.scripts == SERVERS { Target::start_patiently } else { Target::start };
        (start(command, folder, "waiting"), truth)
    }

    /// Runs it by itself, to its end; gives its journal and the folder where it wrote what it knows.
    #[must_use]
    pub fn alone(&self) -> (Journal, PathBuf, Folder) {
        let folder = Folder::new();
        let mut command = Command::new("env");
        command.env("ASCEND_SIM_JOURNAL", folder.journal_path());
        let truth = self.run_below(command, &folder);
        (Journal::read(&folder.journal_path()), truth, folder)
    }

    /// Runs it to its end, below a command that takes a program and its arguments; gives the folder where it wrote what it
    /// knows.
    #[must_use]
    pub fn run_below(&self, command: Command, folder: &Folder) -> PathBuf {
        let truth = folder.path().join("truth");
        let _ = self.output_below(command, folder, &truth);
        truth
    }

    /// Runs it by itself, to its end; gives what it printed, as output and as messages.
    #[must_use]
    pub fn output(&self, folder: &Folder) -> [String; 2] {
        let output = self.output_below(Command::new("env"), folder, &folder.path().join("truth"));
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    fn output_below(&self, mut command: Command, folder: &Folder, truth: &Path) -> Output {
        std::fs::create_dir(truth).expect("folder for the truth");
        command.arg(python()).args(self.command_line()).envs(self.variables(truth)).current_dir(folder.path());
        let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output
    }

    fn command_line(&self) -> Vec<String> {
        let script = scripts(self.scripts).join(&self.arguments[0]).display().to_string();
        self.options.iter().cloned().chain([script]).chain(self.arguments[1..].iter().cloned()).collect()
    }

    fn variables(&self, truth: &Path) -> Vec<(String, String)> {
        let text = |path: PathBuf| path.display().to_string();
        let libraries = format!("{}:{}", text(version().join("lib")), text(simulation().join("lib")));
        let fixed = [
            ("LD_LIBRARY_PATH", libraries),
            ("ASCEND_HOME_PATH", text(version().join("cann"))),
            ("ASCEND_OPP_PATH", text(version().join("cann/opp"))),
            ("ASCEND_SIM_CONTENT", "1".to_owned()),
            ("ASCEND_SIM_DEVICES", "2".to_owned()),
            ("ASCEND_SIM_CAPACITY_MB", CAPACITY_MB.to_owned()),
            ("OMP_NUM_THREADS", "1".to_owned()),
            ("TRUTH", truth.display().to_string()),
        ];
        fixed.into_iter().map(|(key, value)| (key.to_owned(), value)).chain(self.env.iter().cloned()).collect()
    }
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn scripts(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)
}

/// Lets a program go on that waits for a tracer.
pub fn go_on(truth: &Path) {
    std::fs::write(truth.join("go"), "").expect("file that lets the program go on");
}

/// The version's folder.
#[must_use]
pub fn version() -> PathBuf {
    let folder = std::env::var_os("MEMSCOPE_TORCH_NPU");
    folder
        .expect("MEMSCOPE_TORCH_NPU does not say where torch_npu is: run these tests with `./x npu` or `./x servers`")
        .into()
}

fn python() -> String {
    version().join("venv/bin/python").display().to_string()
}
