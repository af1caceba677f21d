//! What user space adds to the stream of records.

use memscope_common::{Header, Kind};
use serde::{Deserialize, Serialize};

use crate::model::HeldAs;
use crate::probes::RowInfo;
use crate::probes::ops::{OpInfo, TensorLayout};
use crate::settings;

/// Longest text in a note, in bytes: every note fits a record, however much has to be escaped.
const MAX_NOTE_TEXT: usize = 4096;
/// Processes of a device; the driver lists 64.
const MAX_PROCESSES: usize = 1024;
/// Longest text of a symbol: names of templates have no bound. One symbol has to fit a record with all its texts
/// escaped.
const MAX_SYMBOL_TEXT: usize = 1024;
/// Most functions kept at one address.
const MAX_INLINED: usize = 4;
/// Holders of a place that are kept, and the longest of their texts: keys of dicts have no bound.
const MAX_HOLDERS: usize = 8;
const MAX_HOLDER_TEXT: usize = 1024;
/// Blocks of a place that are kept.
const MAX_LOOK_BLOCKS: usize = 256;
/// Longest JSON in a record.
const MAX_JSON: usize = u16::MAX as usize - size_of::<Header>();

/// What user space adds to the stream of records: the facts that a replay needs and the ring does not carry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "note", rename_all = "snake_case")]
pub enum Note {
    /// A process joined the trace, or became known better (after an exec).
    ProcessStart {
        /// The process.
        pid: u32,
        /// Process that forked it; 0 for those named by the user.
        parent: u32,
        /// It was running before the trace began.
        attached: bool,
        /// Short name of the program, made printable.
        command: String,
        /// Its `ASCEND_RT_VISIBLE_DEVICES`.
        visible_devices: Option<String>,
        /// Its number in its own pid namespace (`NSpid`), if different from that in the tracer's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid_within: Option<u32>,
        /// The device that it uses, as it counts them, if that was chosen before the trace and can be read.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device: Option<u32>,
    },
    /// Settings of the process's program; only those that the tracer knows by name are kept.
    Settings {
        /// The process.
        pid: u32,
        /// Names and values that are set.
        settings: Vec<(String, String)>,
    },
    /// A process ended.
    ProcessEnd {
        /// The process.
        pid: u32,
    },
    /// Both clocks at one moment.
    Clock {
        /// `CLOCK_MONOTONIC`, in nanoseconds.
        mono_ns: u64,
        /// Nanoseconds since the Unix epoch.
        real_ns: u64,
    },
    /// No record older than this is expected any more.
    Watermark {
        /// `CLOCK_MONOTONIC`, in nanoseconds.
        mono_ns: u64,
    },
    /// Probe rows that came after the header was written.
    Rows {
        /// Number of the first of them.
        first: u16,
        /// The rows.
        rows: Vec<RowInfo>,
    },
    /// Operators: the meaning of the details in records with objects.
    Operators {
        /// Number of the first of them.
        first: u32,
        /// Layout of their tensors; `None` when unknown.
        layout: Option<TensorLayout>,
        /// The operators.
        operators: Vec<OpInfo>,
    },
    /// Counts of misses of the kernel side so far.
    Losses {
        /// Totals since the start; those not named are as they were.
        by: Vec<LossCount>,
    },
    /// The driver's figures of a device.
    Usage {
        /// Logical number of the device.
        device: u32,
        /// Bytes in use.
        used_bytes: u64,
        /// Bytes that there are.
        total_bytes: u64,
        /// Processes and their bytes; `None` when the driver does not report it.
        processes: Option<Vec<(u32, u64)>>,
    },
    /// Symbols at addresses of native stacks.
    Symbols {
        /// Which mappings the addresses belong to, see [`Stack`](crate::decode::Stack).
        generation: u64,
        /// The addresses, each once in its generation.
        symbols: Vec<Symbol>,
    },
    /// A process went on before its new libraries were probed: their calls may be missing.
    Late {
        /// Probe rows of the functions in these libraries.
        rows: Vec<u16>,
        /// They have operators, too.
        operators: bool,
        /// The process, if it ended before it was examined: its libraries are unknown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gone: Option<u32>,
    },
    /// There are no figures of the driver from here on.
    UsageEnded,
    /// Holders of these blocks are looked for from here on. Acts at once, not in time order: it names blocks that are live at this place
    /// of the stream.
    LookBegins {
        /// Number of the look.
        look: u32,
        /// The process.
        pid: u32,
        /// When.
        at: LookMoment,
        /// Places of the blocks; those of a further note with the same numbers follow.
        places: Vec<LookPlace>,
    },
    /// Holders of the blocks of one place, each read at the time of the record.
    LookEnds {
        /// Number of the look.
        look: u32,
        /// The process.
        pid: u32,
        /// Place, counted from 0.
        place: u32,
        /// Paths, and whether each is sure.
        holders: Vec<(String, bool)>,
        /// The blocks.
        blocks: Vec<LookBlock>,
        /// Why memory of the process was left out, if some was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        left_out: Option<String>,
    },
    /// Holders were not looked for.
    NoLook {
        /// Number of the look; 0 without one.
        look: u32,
        /// The process; 0: each process without a look.
        pid: u32,
        /// When.
        at: LookMoment,
        /// Why.
        reason: String,
    },
    /// The pool of a running process is about to be read. What calls say of an address from here on counts more than what is read.
    PoolAsked {
        /// The process.
        pid: u32,
    },
    /// What the framework's pool of a process holds on a device, read out of its memory.
    PoolFound {
        /// The process.
        pid: u32,
        /// Event type of the pool; absent, that of `PyTorch`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pool: Option<String>,
        /// Number of the device, as the program counts them.
        device: u32,
        /// Bytes handed out, by the pool's own figure.
        used_bytes: u64,
        /// Bytes that it holds, by its own figure.
        reserved_bytes: u64,
        /// Address and size of the driver's blocks that it has; without those that are mapped piece by piece.
        segments: Vec<(u64, u64)>,
        /// Address and size of the blocks that are handed out, and the size that was asked for, where the pool keeps it.
        blocks: Vec<(u64, u64, Option<u64>)>,
    },
    /// Purposes of blocks in the pool, by the objects that hold them. Comes behind the note of the pool; in earlier captures before it.
    PoolHeld {
        /// The process.
        pid: u32,
        /// Event type of the pool; absent, that of `PyTorch`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pool: Option<String>,
        /// Number of the device, as the program counts them.
        device: u32,
        /// Addresses of blocks.
        blocks: Vec<(u64, HeldAs)>,
    },
    /// The pool was read, or could not be.
    PoolRead {
        /// The process.
        pid: u32,
    },
    /// The calls about single blocks of a process's pools are passed over from here on, or are traced again.
    PoolBlocks {
        /// The process.
        pid: u32,
        /// They are traced.
        traced: bool,
    },
    /// The trace ended.
    End {
        /// Why.
        reason: String,
    },
    /// Written by a later version.
    #[serde(other)]
    Unknown,
}

/// When holders are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LookMoment {
    /// A request has just failed.
    FailedRequest,
    /// While the program works.
    Running,
    /// The program begins to exit.
    Exit,
    /// The trace is about to end.
    End,
}

/// Blocks of one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LookPlace {
    /// Event type of their pool.
    pub pool: String,
    /// Live blocks of the place.
    pub live_blocks: u64,
    /// Their bytes.
    pub live_bytes: u64,
    /// Address and size of those that are looked at.
    pub blocks: Vec<(u64, u64)>,
}

/// A block that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LookBlock {
    /// Its address.
    pub addr: u64,
    /// Its holders, as indexes.
    pub by: Vec<u8>,
    /// Without a holder: only objects of Python that refer to each other refer to it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub garbage: bool,
    /// Its purpose, if a holder shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_as: Option<HeldAs>,
}

/// The symbol at an address of a native stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Symbol {
    /// The address, as in the stack.
    pub address: u64,
    /// File name of the library or program, or the name of the mapping; empty when nothing is mapped there.
    pub module: String,
    /// Bytes from the start of the module's first mapping, so that other tools find it.
    pub module_offset: u64,
    /// Functions, those inlined into the next first; empty when it is not certain which one it is.
    pub functions: Vec<Function>,
}

/// A function at an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// Demangled name.
    pub name: String,
    /// Bytes from its start; of inlined ones from the start of the function around them.
    pub offset: u64,
    /// Source file and line, where known.
    pub source: Option<(String, u32)>,
    /// It is inlined into the next one.
    pub inlined: bool,
}

/// Calls seen and not reported, for one row and reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossCount {
    /// Probe row; 0 is none.
    pub row: u16,
    /// A [`Miss`](memscope_common::Miss) as a number.
    pub reason: u32,
    /// Count since the start.
    pub count: u64,
}

/// The first half of these, and the rest.
fn in_half<T: Clone>(all: &[T]) -> (Vec<T>, Vec<T>) {
    let (front, back) = all.split_at(all.len() / 2);
    (front.to_vec(), back.to_vec())
}

impl Note {
    /// Reads the JSON of a note record.
    pub fn parse(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }

    /// The note in two parts, if it can be parted.
    fn halves(&self) -> Option<(Self, Self)> {
        match self {
            Self::Rows { first, rows } if rows.len() > 1 => {
                let (front, back) = in_half(rows);
                let second = first.saturating_add(front.len() as u16);
                Some((Self::Rows { first: *first, rows: front }, Self::Rows { first: second, rows: back }))
            }
            Self::Operators { first, layout, operators } if operators.len() > 1 => {
                let (front, back) = in_half(operators);
                let second = first.saturating_add(front.len() as u32);
                let part = |first, operators| Self::Operators { first, layout: *layout, operators };
                Some((part(*first, front), part(second, back)))
            }
            Self::Symbols { generation, symbols } if symbols.len() > 1 => {
                let (front, back) = in_half(symbols);
                let part = |symbols| Self::Symbols { generation: *generation, symbols };
                Some((part(front), part(back)))
            }
            Self::LookBegins { look, pid, at, places } if places.len() > 1 => {
                let (front, back) = in_half(places);
                let part = |places| Self::LookBegins { look: *look, pid: *pid, at: *at, places };
                Some((part(front), part(back)))
            }
            Self::PoolFound { pid, pool, device, used_bytes, reserved_bytes, segments, blocks }
                if segments.len().max(blocks.len()) > 1 =>
            {
                let part = |segments, blocks| Self::PoolFound {
                    pid: *pid,
                    pool: pool.clone(),
                    device: *device,
                    used_bytes: *used_bytes,
                    reserved_bytes: *reserved_bytes,
                    segments,
                    blocks,
                };
                // Segments come first: what lies in them is the pool's.
                if segments.len() > 1 {
                    let (front, back) = in_half(segments);
                    Some((part(front, Vec::new()), part(back, blocks.clone())))
                } else {
                    let (front, back) = in_half(blocks);
                    Some((part(segments.clone(), front), part(Vec::new(), back)))
                }
            }
            Self::PoolHeld { pid, pool, device, blocks } if blocks.len() > 1 => {
                let (front, back) = in_half(blocks);
                let part = |blocks| Self::PoolHeld { pid: *pid, pool: pool.clone(), device: *device, blocks };
                Some((part(front), part(back)))
            }
            Self::Losses { by } if by.len() > 1 => {
                let (front, back) = in_half(by);
                Some((Self::Losses { by: front }, Self::Losses { by: back }))
            }
            _ => None,
        }
    }

    /// The note with its texts cut to what fits a record.
    fn cut(&self) -> Self {
        let mut note = self.clone();
        match &mut note {
            Self::ProcessStart { command, visible_devices, .. } => {
                cut(command);
                visible_devices.iter_mut().for_each(cut);
            }
            Self::Symbols { symbols, .. } => {
                for symbol in symbols {
                    symbol.cut();
                }
            }
            Self::Settings { settings, .. } => settings.truncate(settings::NAMES.len()),
            Self::End { reason } | Self::NoLook { reason, .. } => cut(reason),
            Self::LookEnds { holders, blocks, left_out, .. } => {
                if let Some(left_out) = left_out {
                    cut_to(left_out, MAX_HOLDER_TEXT);
                }
                holders.truncate(MAX_HOLDERS);
                for (path, _) in holders.iter_mut() {
                    cut_to(path, MAX_HOLDER_TEXT);
                }
                blocks.truncate(MAX_LOOK_BLOCKS);
            }
            Self::Usage { processes: Some(processes), .. } => processes.truncate(MAX_PROCESSES),
            _ => {}
        }
        note
    }
}

fn cut(text: &mut String) {
    cut_to(text, MAX_NOTE_TEXT);
}

fn cut_to(text: &mut String, max_bytes: usize) {
    text.truncate(text.floor_char_boundary(max_bytes));
}

impl Symbol {
    fn cut(&mut self) {
        cut_to(&mut self.module, MAX_SYMBOL_TEXT);
        self.functions.truncate(MAX_INLINED);
        for function in &mut self.functions {
            cut_to(&mut function.name, MAX_SYMBOL_TEXT);
            if let Some((file, _)) = &mut function.source {
                cut_to(file, MAX_SYMBOL_TEXT);
            }
        }
    }
}

/// The note as a record at `mono_ns`, for the capture and the pipeline, as those of the ring.
///
/// Lists that do not fit into one record become several in a row.
#[must_use]
pub fn note_record(mono_ns: u64, pid: u32, note: &Note) -> Vec<u8> {
    // Serializing integers, strings and lists of them into memory cannot fail.
    let json = serde_json::to_vec(&note.cut()).unwrap_or_default();
    if json.len() <= MAX_JSON {
        return record(mono_ns, pid, &json);
    }
    let Some((mut front, back)) = note.halves().map(|(a, b)| (note_record(mono_ns, pid, &a), b)) else {
        // One probe row with names of tens of kilobytes: it goes on as an unknown row.
        return Vec::new();
    };
    front.extend(note_record(mono_ns, pid, &back));
    front
}

fn record(mono_ns: u64, pid: u32, json: &[u8]) -> Vec<u8> {
    let len = size_of::<Header>() + json.len();
    let mut bytes = Vec::with_capacity(len);
    bytes.extend(mono_ns.to_le_bytes());
    bytes.extend(pid.to_le_bytes());
    bytes.extend(0_u32.to_le_bytes());
    bytes.extend((Kind::Note as u16).to_le_bytes());
    bytes.extend(0_u16.to_le_bytes());
    bytes.extend((len as u16).to_le_bytes());
    bytes.extend(0_u16.to_le_bytes());
    bytes.extend(json);
    bytes
}
