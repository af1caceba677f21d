//! Real `MindSpore` on the simulated libraries, and what it says of its pool.
//!
//! `MEMSCOPE_MINDSPORE` names the folder that `./x mindspore` made for a version; it runs these tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::harness::tracer::{Folder, Run, Target, Tracer, simulation};

/// A moment at which nothing was under way, as `mindspore/workloads/truth.py` writes it.
#[derive(Clone, Debug, Deserialize)]
pub struct Mark {
    /// The rows have a mark `truth NAME` at it.
    pub name: String,
    /// Process.
    pub pid: u32,
    /// Handed out.
    pub allocated_bytes: u64,
    /// Held from the runtime.
    pub reserved_bytes: u64,
    /// The most so far that was handed out.
    pub max_allocated_bytes: u64,
}

/// A block in `MindSpore`'s own list of them (`memory_tracker:True`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Number of the operation that took it, among all operations on blocks.
    pub start: u64,
    /// It was given back before the list was written.
    pub ended: bool,
    /// Address.
    pub addr: u64,
    /// Bytes.
    pub size_bytes: u64,
}

/// A program of `MindSpore`'s, to be run.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// Its script and arguments.
    pub line: &'a [&'a str],
    /// `MindSpore`'s settings of its pool.
    pub settings: &'a str,
}

impl Program<'_> {
    /// Runs it under the tracer.
    #[must_use]
    pub fn traced(&self, options: &[&str]) -> (Run, Vec<Mark>) {
        let arguments = self.arguments();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut tracer = Tracer::run_program(python(), &arguments).option("--json").options(options);
        let truth = tracer.folder().join("truth");
        std::fs::create_dir(&truth).expect("folder for the truth");
        for (key, value) in self.variables(&truth) {
            tracer = tracer.env(key, value);
        }
        (tracer.succeed(), marks(&truth))
    }

    /// Runs it by itself, up to where it waits for a tracer.
    #[must_use]
    pub fn waiting(&self) -> (Target, PathBuf) {
        let folder = Folder::new();
        let truth = folder.path().join("truth");
        std::fs::create_dir(&truth).expect("folder for the truth");
        let mut command = Command::new(python());
        command.args(self.arguments()).envs(self.variables(&truth)).current_dir(folder.path());
        (Target::start_patiently(command, folder, "waiting"), truth)
    }

    fn arguments(&self) -> Vec<String> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("mindspore/workloads").join(self.line[0]);
        let options = ["-B", "-W", "ignore"].map(str::to_owned);
        let arguments = self.line[1..].iter().map(|argument| (*argument).to_owned());
        options.into_iter().chain([script.display().to_string()]).chain(arguments).collect()
    }

    fn variables(&self, truth: &Path) -> Vec<(&'static str, String)> {
        let cann = version().join("cann/latest");
        let lib = version().join("venv/lib/python3.11/site-packages/mindspore/lib");
        let places = [
            cann.join("lib64"),
            lib.clone(),
            lib.join("plugin"),
            lib.join("plugin/ascend"),
            // Last: one of the simulated libraries has a name of MindSpore's.
            simulation().join("lib"),
        ];
        let text = |path: &Path| path.display().to_string();
        vec![
            ("LD_LIBRARY_PATH", places.each_ref().map(|place| text(place)).join(":")),
            ("ASCEND_HOME_PATH", text(&cann)),
            ("ASCEND_TOOLKIT_HOME", text(&cann)),
            ("ASCEND_OPP_PATH", text(&cann.join("opp"))),
            ("ASCEND_SIM_CONTENT", "1".to_owned()),
            ("ASCEND_SIM_DEVICES", "2".to_owned()),
            ("MS_ALLOC_CONF", self.settings.to_owned()),
            ("OMP_NUM_THREADS", "1".to_owned()),
            // Its complaints about missing parts of CANN, and about blocks unknown to its tracker, are irrelevant.
            ("GLOG_v", "4".to_owned()),
            ("TRUTH", text(truth)),
        ]
    }
}

fn python() -> PathBuf {
    version().join("venv/bin/python")
}

/// What a program has written at its marks.
#[must_use]
pub fn marks(truth: &Path) -> Vec<Mark> {
    let marks = std::fs::read_to_string(truth.join("marks.jsonl")).expect("marks");
    marks.lines().map(|line| serde_json::from_str(line).expect("a mark")).collect()
}

/// The end of a block that is live.
const LIVE: &str = "9223372036854775807";

/// The tracker's list, in the order in which blocks were taken.
#[must_use]
pub fn blocks(run: &Run) -> Vec<Block> {
    let path = ["memory_block.csv", "rank_0/memory_block.csv"].map(|name| run.folder.path().join(name));
    let path = path.iter().find(|path| path.is_file()).expect("MindSpore's list of blocks");
    let text = std::fs::read_to_string(path).expect("readable");
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().expect("a header").split(',').collect();
    let column = |name: &str| names.iter().position(|found| *found == name).unwrap_or_else(|| panic!("no {name}"));
    let columns = ["start_time_stamp", "end_time_stamp", "device_addr", "size"].map(column);
    let block = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        let [start, end, addr, size_bytes] = columns.map(|at| cells[at]);
        Block {
            start: start.parse().expect("a number"),
            ended: end != LIVE,
            addr: u64::from_str_radix(addr.trim_start_matches("0x"), 16).expect("an address"),
            size_bytes: size_bytes.parse().expect("a number"),
        }
    };
    let mut blocks: Vec<Block> = lines.map(block).collect();
    blocks.sort_by_key(|block| block.start);
    blocks
}

/// The version's folder.
#[must_use]
pub fn version() -> PathBuf {
    let folder = std::env::var_os("MEMSCOPE_MINDSPORE");
    folder.expect("MEMSCOPE_MINDSPORE does not say where MindSpore is: run these tests with `./x mindspore`").into()
}
