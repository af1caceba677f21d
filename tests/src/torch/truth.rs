//! `torch_npu`'s own account of its memory, as `torch-npu/workloads/truth.py` writes it.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

/// A moment at which nothing was under way.
#[derive(Clone, Debug, Deserialize)]
pub struct Mark {
    /// The rows have a mark `truth NAME` at it.
    pub name: String,
    /// Process.
    pub pid: u32,
    /// Figures of `memory_stats`, by device.
    pub devices: BTreeMap<u32, BTreeMap<String, u64>>,
    /// Operations in each device's history so far.
    pub history: Vec<usize>,
    /// Workspaces of each device: their bytes, by address.
    pub workspaces: Vec<BTreeMap<u64, u64>>,
}

impl Mark {
    /// A figure of a device; 0 of a device that was never used, which has none.
    #[must_use]
    pub fn stat(&self, device: u32, key: &str) -> u64 {
        let Some(stats) = self.devices.get(&device).filter(|stats| !stats.is_empty()) else { return 0 };
        *stats.get(key).unwrap_or_else(|| panic!("memory_stats at mark `{}` has no `{key}`", self.name))
    }
}

/// What happened, in torch's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// A block was handed out.
    Alloc,
    /// The program gave it back.
    FreeRequested,
    /// It can be handed out again.
    FreeCompleted,
    /// Memory was taken from the device.
    SegmentAlloc,
    /// Memory was given back to the device.
    SegmentFree,
    /// The same in an expandable segment.
    SegmentMap,
    /// The same in an expandable segment.
    SegmentUnmap,
    /// An allocation failed for good.
    Oom,
}

/// An operation of the allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Operation {
    /// What.
    pub action: Action,
    /// Address; none for [`Action::Oom`].
    #[serde(default)]
    pub addr: u64,
    /// Bytes: of a block those that were asked for, of a segment all.
    pub size: u64,
}

/// All of it.
#[derive(Clone, Debug)]
pub struct Truth {
    /// In order; the first is where the history begins.
    pub marks: Vec<Mark>,
    /// Operations on each device, in order.
    pub history: Vec<Vec<Operation>>,
}

impl Truth {
    /// Reads the folder that a program wrote to.
    #[must_use]
    pub fn read(folder: &Path) -> Self {
        let read = |name: &str| {
            let path = folder.join(name);
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("`{}`: {error}", path.display()))
        };
        let mark = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("mark `{line}`: {error}"));
        let marks: Vec<Mark> = read("marks.jsonl").lines().map(mark).collect();
        let history = serde_json::from_str(&read("history.json")).unwrap_or_else(|error| panic!("history: {error}"));
        assert!(marks.last().is_some_and(|mark| mark.name == "end"), "the program did not come to its end");
        Self { marks, history }
    }

    /// The process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.marks[0].pid
    }

    /// What happened on a device after a mark, up to the last one.
    #[must_use]
    pub fn operations(&self, device: u32, after: &Mark) -> &[Operation] {
        let at = device as usize;
        let last = self.marks.last().map_or(0, |mark| mark.history[at]);
        &self.history[at][after.history[at]..last]
    }
}
