//! Reads dumps as a strict reader would, and says what is wrong with them (contract §3, §4.2, §6).
//!
//! Written from the contract alone and sharing no code with memscope-user, so that a mistake there cannot hide
//! here. [`csv::check`] and [`db::check`] bring rows into one shape; the rules for rows are in this file.

pub mod answers;
pub mod csv;
pub mod db;
pub mod page;

use std::collections::{HashMap, HashSet};
use std::fmt;

/// The columns, in order.
pub const COLUMNS: [&str; 12] = [
    "ID",
    "Event",
    "Event Type",
    "Name",
    "Timestamp(ns)",
    "Process Id",
    "Thread Id",
    "Device Id",
    "Ptr",
    "Attr",
    "Call Stack(Python)",
    "Call Stack(C)",
];

/// Something that a file must not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Line of a CSV file (from 1, where the row begins) or `rowid` of a database; 0 for the file as a whole.
    pub place: u64,
    /// The broken rule, first word(s) constant, then what was found.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.text)
    }
}

/// One row, cells without the quotes of its format.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cells {
    pub(crate) place: u64,
    pub(crate) id: String,
    pub(crate) event: String,
    pub(crate) event_type: String,
    /// Name without quotes of its own.
    pub(crate) name: String,
    /// The name stood in quotes.
    pub(crate) name_quoted: bool,
    pub(crate) time: String,
    pub(crate) pid: String,
    pub(crate) tid: String,
    pub(crate) device: String,
    pub(crate) ptr: String,
    pub(crate) attr: Vec<(String, String)>,
    /// Both call stacks: empty, or the text in its quotes.
    pub(crate) stacks: [String; 2],
}

/// A key that a kind of row may have: its name, whether it may be left out, and what its value looks like.
type Key = (&'static str, bool, Shape);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Number,
    /// A number, or `N/A`.
    NumberOrNone,
    Address,
    True,
    Word,
    OneOf(&'static [&'static str]),
}

const PAGES: Shape = Shape::OneOf(&["normal", "huge", "giant"]);
const APIS: Shape = Shape::OneOf(&["alloc", "create"]);

const BLOCK: [Key; 3] =
    [("allocation_id", false, Shape::Number), ("addr", false, Shape::Address), ("size", false, Shape::Number)];

/// Event and Event Type that belong together (contract §6.1).
const KINDS: &[(&str, &[&str])] = &[
    ("MALLOC", &["HAL", "PTA", "PTA_WORKSPACE", "ATB", "MINDSPORE", "HOST", "HOST_PINNED"]),
    ("FREE", &["HAL", "PTA", "PTA_WORKSPACE", "ATB", "MINDSPORE", "HOST", "HOST_PINNED"]),
    // Ours alone: the pool has the block back.
    ("BLOCK_FREE", &["PTA", "PTA_WORKSPACE", "ATB", "MINDSPORE"]),
    ("ACCESS", &["READ", "WRITE", "UNKNOWN"]),
    ("OP_LAUNCH", &["ATEN_START", "ATEN_END", "ATB_START", "ATB_END"]),
    ("KERNEL_LAUNCH", &["KERNEL_LAUNCH", "KERNEL_EXECUTE_START", "KERNEL_EXECUTE_END", "KERNEL_START", "KERNEL_END"]),
    ("MSTX", &["Mark", "Range_start", "Range_end"]),
    ("SYSTEM", &["ACL_INIT", "ACL_FINI", "START_TRACE", "STOP_TRACE", "STEP"]),
    ("SNAPSHOT", &["SNAPSHOT"]),
    ("OOM_DETAIL", &["OOM_TRIGGER", "OOM_RECENT_ALLOC", "OOM_TOP_ALLOC"]),
];

/// Takes rows one by one, and gathers what is wrong with them.
#[derive(Debug, Default)]
pub(crate) struct RowChecker {
    pub(crate) violations: Vec<Violation>,
    /// Time of rows with a device must not decrease.
    pub(crate) time_ordered: bool,
    /// Further Event Types of blocks.
    pub(crate) pools: &'static [&'static str],
    last_time: u64,
    ids: HashSet<(String, String)>,
    blocks: HashMap<(String, String), Block>,
}

/// What is known of one (process, allocation id).
#[derive(Debug, Default)]
struct Block {
    malloc: Option<(String, String, String)>,
    free: Option<(String, String, String)>,
}

impl RowChecker {
    pub(crate) fn complain(&mut self, place: u64, text: impl Into<String>) {
        self.violations.push(Violation { place, text: text.into() });
    }

    fn require(&mut self, row: &Cells, holds: bool, rule: &str, found: &str) {
        if !holds {
            self.complain(row.place, format!("{rule}: `{found}`"));
        }
    }

    pub(crate) fn row(&mut self, row: &Cells) {
        self.kind(row);
        self.numbers(row);
        self.name(row);
        self.device_and_ptr(row);
        self.attr(row);
        self.stacks(row);
        self.block(row);
    }

    fn kind(&mut self, row: &Cells) {
        let types = KINDS.iter().find(|(event, _)| *event == row.event).map(|(_, types)| *types);
        self.require(row, types.is_some(), "unknown Event", &row.event);
        if let Some(types) = types {
            let event_type = row.event_type.as_str();
            let custom = matches!(row.event.as_str(), "MALLOC" | "FREE") && self.pools.contains(&event_type);
            self.require(row, custom || types.contains(&event_type), "unknown Event Type", event_type);
        }
    }

    fn numbers(&mut self, row: &Cells) {
        self.require(row, number(&row.id).is_some(), "ID is no number", &row.id);
        let fresh = self.ids.insert((row.id.clone(), row.pid.clone()));
        self.require(row, fresh, "ID used twice in its process", &row.id);
        for (rule, cell) in [("Process Id is no number", &row.pid), ("Thread Id is no number", &row.tid)] {
            self.require(row, cell == "N/A" || number(cell).is_some(), rule, cell);
        }
        let time = number(&row.time).filter(|&time| time > 0 && i64::try_from(time).is_ok());
        self.require(row, time.is_some(), "Timestamp is no positive 64-bit number", &row.time);
        // Rows without a device are appended at the end.
        if let Some(time) = time.filter(|_| self.time_ordered && row.device != "N/A") {
            self.require(row, time >= self.last_time, "Timestamp runs backwards", &row.time);
            self.last_time = time;
        }
    }

    fn name(&mut self, row: &Cells) {
        self.require(row, !row.name.contains(char::is_control), "Name has control characters", &row.name);
        match row.event.as_str() {
            "MSTX" => {
                let quoted = row.name_quoted || row.name == "N/A";
                self.require(row, quoted, "Name of a mark is not quoted", &row.name);
            }
            "MALLOC" | "FREE" | "BLOCK_FREE" => self.require(row, row.name == "N/A", "Name of a block", &row.name),
            "SYSTEM" if row.event_type != "STEP" => {
                self.require(row, row.name == "N/A", "Name of a system row", &row.name);
            }
            _ => self.require(row, !row.name.is_empty(), "Name is empty", &row.name),
        }
        if row.event_type == "Range_end" {
            let id = row.name.strip_prefix("Range end from id ").and_then(number);
            self.require(row, id.is_some(), "Name of a range end", &row.name);
        }
    }

    fn device_and_ptr(&mut self, row: &Cells) {
        let npu = number(&row.device).is_some();
        let holds = match (row.event.as_str(), row.event_type.as_str()) {
            ("MALLOC" | "FREE", "HOST" | "HOST_PINNED") => row.device == "cpu",
            ("MALLOC" | "FREE" | "BLOCK_FREE" | "ACCESS", _) => npu,
            _ => npu || row.device == "cpu" || row.device == "N/A",
        };
        self.require(row, holds, "Device Id", &row.device);
        let holds = match row.event.as_str() {
            "MALLOC" | "FREE" | "BLOCK_FREE" | "ACCESS" => is_address(&row.ptr),
            _ => row.ptr == "N/A",
        };
        self.require(row, holds, "Ptr", &row.ptr);
    }

    fn attr(&mut self, row: &Cells) {
        let mut rest = row.attr.as_slice();
        for (key, optional, shape) in keys_of(row) {
            match rest.split_first() {
                Some(((found, value), tail)) if *found == key => {
                    rest = tail;
                    let rule = format!("Attr value of `{key}`");
                    self.require(row, shape.fits(value), &rule, value);
                }
                _ => self.require(row, optional, "Attr misses a key, or has it elsewhere", key),
            }
        }
        if let Some((key, _)) = rest.first() {
            self.complain(row.place, format!("Attr has a key too many: `{key}`"));
        }
        for (_, value) in &row.attr {
            self.require(row, !value.contains([':', '"']), "Attr value has a colon or a quote", value);
        }
        if matches!(row.event.as_str(), "MALLOC" | "FREE" | "BLOCK_FREE")
            && let Some(addr) = value_of(row, "addr")
        {
            self.require(row, addr == row.ptr, "Attr addr is not Ptr", addr);
        }
    }

    fn stacks(&mut self, row: &Cells) {
        for stack in &row.stacks {
            let inner = stack.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
            let holds = match inner {
                Some(frames) => frames.is_empty() || frames == "NA" || frames.ends_with('\n'),
                None => stack.is_empty(),
            };
            self.require(row, holds, "Call Stack", stack);
        }
    }

    /// One allocation and one free per block, which agree.
    fn block(&mut self, row: &Cells) {
        let (Some(id), Some(size)) = (value_of(row, "allocation_id"), value_of(row, "size")) else { return };
        let block = self.blocks.entry((row.pid.clone(), id.to_owned())).or_default();
        let slot = match row.event.as_str() {
            "MALLOC" => &mut block.malloc,
            "FREE" => &mut block.free,
            _ => return,
        };
        let twice = slot.replace((row.event_type.clone(), row.ptr.clone(), size.to_owned())).is_some();
        let agree = block.malloc.is_none() || block.free.is_none() || block.malloc == block.free;
        self.require(row, !twice, "block has two rows of this kind", id);
        self.require(row, agree, "MALLOC and FREE of a block differ", id);
    }
}

impl Shape {
    fn fits(self, value: &str) -> bool {
        match self {
            Self::Number => number(value).is_some(),
            Self::NumberOrNone => value == "N/A" || number(value).is_some(),
            Self::Address => is_address(value),
            Self::True => value == "true",
            Self::Word => !value.is_empty(),
            Self::OneOf(words) => words.contains(&value),
        }
    }
}

/// Keys of a row in order (contract §6.2).
fn keys_of(row: &Cells) -> Vec<Key> {
    let (event, event_type) = (row.event.as_str(), row.event_type.as_str());
    match (event, event_type) {
        ("MALLOC" | "FREE", _) => keys_of_block(row),
        ("BLOCK_FREE", _) => [&BLOCK[..], &["used", "total", "active"].map(|key| (key, false, Shape::Number))].concat(),
        ("ACCESS", _) => [
            &BLOCK[..],
            &[("type", false, Shape::OneOf(&["PTA", "ATB"])), ("dtype", false, Shape::Word)],
            &[("format", true, Shape::Word), ("shape", false, Shape::Word)],
        ]
        .concat(),
        ("OP_LAUNCH", "ATB_START" | "ATB_END") => vec![
            ("path", false, Shape::Word),
            ("workspace_ptr", false, Shape::Word),
            ("workspace_size", false, Shape::Number),
        ],
        ("KERNEL_LAUNCH", "KERNEL_START" | "KERNEL_END") => vec![("path", false, Shape::Word)],
        ("KERNEL_LAUNCH", _) => vec![("streamId", false, Shape::Number), ("taskId", false, Shape::NumberOrNone)],
        // Ours alone: marks of domains.
        ("MSTX", _) => vec![("domain", true, Shape::Word)],
        ("SYSTEM", "START_TRACE") => vec![("free", true, Shape::Number), ("total", true, Shape::Number)],
        ("SNAPSHOT", _) => {
            ["reserved", "max_reserved", "allocated", "max_allocated", "total", "free", "device_rate", "reserved_rate"]
                .map(|key| (key, false, if key.ends_with("_rate") { Shape::Word } else { Shape::Number }))
                .to_vec()
        }
        ("OOM_DETAIL", "OOM_TRIGGER") => {
            vec![("func", false, Shape::Word), ("req_size", false, Shape::Number), ("flag", false, Shape::Number)]
        }
        ("OOM_DETAIL", _) => vec![
            ("pool", false, Shape::Word),
            ("ptr", false, Shape::Address),
            ("size", false, Shape::Number),
            ("timestamp", false, Shape::Number),
        ],
        _ => Vec::new(),
    }
}

fn keys_of_block(row: &Cells) -> Vec<Key> {
    let is_malloc = row.event == "MALLOC";
    let hal = row.event_type == "HAL";
    let host = row.event_type.starts_with("HOST");
    let mut keys = BLOCK.to_vec();
    if value_of(row, "shadow").is_some() {
        keys.push(("shadow", false, Shape::True));
    } else if host && value_of(row, "pinned").is_none() {
        keys.push(("total", false, Shape::Number));
    } else {
        if host {
            keys.push(("pinned", false, Shape::True));
        }
        keys.push(("used", false, Shape::Number));
        if !hal && !host {
            // Ours leaves it out if the pool does not report it.
            keys.push(("total", true, Shape::Number));
        }
        keys.push(("process_used", true, Shape::Number));
        if !host {
            keys.push(("device_used", true, Shape::Number));
        }
    }
    if is_malloc && !host {
        // Ours alone: a block from before the attach.
        keys.push(("found", true, Shape::True));
    }
    if is_malloc {
        keys.push(("owner", true, Shape::Word));
        keys.push(("inefficient_type", true, Shape::Word));
    }
    if is_malloc && !hal && !host {
        // Ours alone: what the program asked the pool for.
        keys.push(("requested", true, Shape::Number));
    }
    if is_malloc && hal {
        keys.extend([("page_type", false, PAGES), ("alloc_type", false, APIS)]);
    }
    keys
}

fn value_of<'a>(row: &'a Cells, key: &str) -> Option<&'a str> {
    row.attr.iter().find(|(found, _)| found == key).map(|(_, value)| value.as_str())
}

/// A decimal number without sign and leading zeros.
fn number(text: &str) -> Option<u64> {
    let value: u64 = text.parse().ok()?;
    (value.to_string() == text).then_some(value)
}

/// `0x` and 16 lower-case digits.
fn is_address(text: &str) -> bool {
    let digits = text.strip_prefix("0x").unwrap_or_default();
    digits.len() == 16 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
