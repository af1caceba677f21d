//! `config.json` (contract §2.3): the settings of a run, for readers of msMemScope's.

use std::io::Write;
use std::path::PathBuf;

use serde::Serialize;
use serde::ser::Serializer as _;
use serde_json::ser::{PrettyFormatter, Serializer};

use super::SinkError;
use super::tree::{CONFIG_MODE, OutputTree, ProcessDir};

/// `outputId` when none is set.
pub const NO_OUTPUT_ID: u32 = u32::MAX;

/// Settings. The order of the fields is the order in the file: keys by their bytes.
#[expect(clippy::struct_excessive_bools, reason = "one field per key of the file")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DumpConfig {
    /// `--steps`.
    #[serde(rename = "SelectedStepList")]
    pub selected_steps: StepList,
    /// Bits: leaks 1, decompose 2, inefficient 4, oom 8.
    pub analysis_type: u32,
    /// Frames of C stacks.
    pub c_stack_depth: u32,
    /// All NPUs are traced.
    pub collect_all_npu: bool,
    /// Host memory is traced.
    pub collect_cpu: bool,
    /// 0 immediate, 1 deferred.
    pub collect_mode: u32,
    /// 0 csv, 1 db.
    pub data_format: u32,
    /// Written events; bits: alloc 1, free 2, launch 4, access 8.
    pub dump_event_type: u32,
    /// C stacks are taken.
    #[serde(rename = "enableCStack")]
    pub enable_c_stack: bool,
    /// The run compares two files.
    pub enable_compare: bool,
    /// Python stacks are taken.
    pub enable_py_stack: bool,
    /// Collected events; same bits.
    pub event_type: u32,
    /// A configuration was applied.
    pub is_effective: bool,
    /// Bits: op 1, kernel 2.
    pub level_type: u32,
    /// 0 debug, 1 info, 2 warning, 3 error.
    pub log_level: u32,
    /// Set of NPUs.
    pub npu_slots: u32,
    /// `--analysis=oom:K`.
    pub oom_top_k: u32,
    /// Output directory, absolute.
    pub output_dir: String,
    /// Frames of Python stacks.
    pub py_stack_depth: u32,
    /// `--watch`.
    pub watch_config: WatchConfig,
}

/// Chosen steps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StepList {
    /// Number of valid entries that follow.
    pub step_count: u32,
    /// Step numbers.
    pub step_id_list: [u32; 5],
}

/// The watched block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchConfig {
    /// Last operator.
    pub end: String,
    /// Whole contents, not checksums.
    pub full_content: bool,
    /// A block is watched.
    pub is_watched: bool,
    /// Output of the operator; [`NO_OUTPUT_ID`] for all.
    pub output_id: u32,
    /// First operator.
    pub start: String,
}

impl Default for DumpConfig {
    /// The command line without options.
    fn default() -> Self {
        Self {
            selected_steps: StepList::default(),
            analysis_type: 1,
            c_stack_depth: 0,
            collect_all_npu: true,
            collect_cpu: false,
            collect_mode: 0,
            data_format: 0,
            dump_event_type: 7,
            enable_c_stack: false,
            enable_compare: false,
            enable_py_stack: false,
            event_type: 7,
            is_effective: true,
            level_type: 1,
            log_level: 1,
            npu_slots: 0,
            oom_top_k: 10,
            output_dir: String::new(),
            py_stack_depth: 0,
            watch_config: WatchConfig::default(),
        }
    }
}

impl Default for WatchConfig {
    fn default() -> Self {
        Self {
            end: String::new(),
            full_content: false,
            is_watched: false,
            output_id: NO_OUTPUT_ID,
            start: String::new(),
        }
    }
}

impl DumpConfig {
    /// The text of the file: 4 blanks of indent, no newline at the end.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut out = Vec::new();
        let mut writer = Serializer::with_formatter(&mut out, PrettyFormatter::with_indent(b"    "));
        let serialized = (&mut writer).serialize_newtype_struct("DumpConfig", self);
        debug_assert!(serialized.is_ok(), "plain data into memory");
        String::from_utf8_lossy(&out).into_owned()
    }

    /// Writes `config.json` into the directory of a process, and returns its path.
    pub fn write(&self, tree: &OutputTree, process: &ProcessDir) -> Result<PathBuf, SinkError> {
        let (mut file, place) = tree.create(process, &[], "config.json", CONFIG_MODE)?;
        file.write_all(self.to_json().as_bytes()).map_err(SinkError::io(place.path()))?;
        Ok(place.path().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// As written by msMemScope for a run without options.
    const REFERENCE: &str = r#"{
    "SelectedStepList": {
        "stepCount": 0,
        "stepIdList": [
            0,
            0,
            0,
            0,
            0
        ]
    },
    "analysisType": 1,
    "cStackDepth": 0,
    "collectAllNpu": true,
    "collectCpu": false,
    "collectMode": 0,
    "dataFormat": 0,
    "dumpEventType": 7,
    "enableCStack": false,
    "enableCompare": false,
    "enablePyStack": false,
    "eventType": 7,
    "isEffective": true,
    "levelType": 1,
    "logLevel": 1,
    "npuSlots": 0,
    "oomTopK": 10,
    "outputDir": "/tmp/a \"b\"",
    "pyStackDepth": 0,
    "watchConfig": {
        "end": "",
        "fullContent": false,
        "isWatched": false,
        "outputId": 4294967295,
        "start": ""
    }
}"#;

    /// Keys, their order, indents and the missing newline at the end are the reference's.
    #[test]
    fn defaults_give_the_reference_text() {
        let config = DumpConfig { output_dir: "/tmp/a \"b\"".into(), ..DumpConfig::default() };
        assert_eq!(config.to_json(), REFERENCE);
    }

    /// The file is readable by the group, unlike the dumps.
    #[test]
    fn file_has_its_mode() {
        let root = tempfile::tempdir().expect("temporary directory");
        let tree = OutputTree::open(root.path(), None).expect("directory");
        let dir = tree.make_process_dir(7).expect("directory");
        let path = DumpConfig::default().write(&tree, &dir).expect("writable");
        assert_eq!(path, dir.path().join("config.json"));
        assert_eq!(path.metadata().expect("exists").mode() & 0o7777, 0o640);
    }
}
