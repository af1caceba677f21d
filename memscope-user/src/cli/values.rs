//! Values of the collection options (contract §1): parsing and limits, nothing else.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::str::FromStr;

use crate::{
    analyses::{Question, diff::At, inefficient::InefficientKind, select::When as Moment},
    locate::ops::OpsChoice,
    overview::Gate,
    session::{
        Analyses as Chosen, CallStacks, DEFAULT_BLOCKS, DEFAULT_STACK_FRAMES, Devices, Events as Rows, RowLevel,
    },
};

/// 365 days.
const LONGEST_SECONDS: f64 = 8760.0 * 3600.0;
/// Message for longer times.
pub(super) const LONGEST: &str = "too long: a year (8760h) is the longest time";

/// Splits at `,` and at the full-width comma; empty items are skipped.
pub(super) fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split([',', '，']).map(str::trim).filter(|item| !item.is_empty())
}

/// The same of paths, which may hold any bytes.
pub(super) fn paths(text: &OsStr) -> Vec<PathBuf> {
    const WIDE_COMMA: &[u8] = "，".as_bytes();
    let (mut found, mut path, mut rest) = (Vec::new(), Vec::new(), text.as_bytes());
    while let [first, behind @ ..] = rest {
        let wide = rest.strip_prefix(WIDE_COMMA);
        if *first == b',' || wide.is_some() {
            found.push(std::mem::take(&mut path));
            rest = wide.unwrap_or(behind);
        } else {
            path.push(*first);
            rest = behind;
        }
    }
    found.push(path);
    let whole = found.iter().map(|path| path.trim_ascii()).filter(|path| !path.is_empty());
    whole.map(|path| PathBuf::from(OsStr::from_bytes(path))).collect()
}

/// `--events`: which rows are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Events {
    /// The rows.
    pub rows: Rows,
    /// `none` stood beside other words.
    pub cleared: bool,
    /// `traceback` was asked for, which only a script can start.
    pub traceback: bool,
}

impl FromStr for Events {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let nothing = Self { rows: Rows::NONE, cleared: false, traceback: false };
        let (mut events, mut none) = (nothing, false);
        for item in items(text) {
            match item {
                "alloc" => events.rows.alloc = true,
                "free" => events.rows.free = true,
                "launch" => events.rows.launch = true,
                "access" => events.rows.access = true,
                "block_free" => events.rows.block_free = true,
                "none" => none = true,
                "traceback" => events.traceback = true,
                other => return Err(format!("`{other}` is not one of alloc, free, launch, access, block_free, none")),
            }
        }
        if none {
            events = Self { cleared: events != nothing, ..nothing };
        }
        Ok(events)
    }
}

/// `--ops`: which operators are traced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ops(pub OpsChoice);

impl FromStr for Ops {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const MOST: usize = 1024;
        let names: Vec<&str> = items(text).collect();
        let choice = match names.as_slice() {
            ["none"] => OpsChoice::None,
            ["npu"] => OpsChoice::Npu,
            ["all"] => OpsChoice::All,
            [] => return Err("name operators, or all, npu or none".to_owned()),
            names if names.len() > MOST => return Err(format!("at most {MOST} operators can be named")),
            names => {
                let odd = |name: &&&str| {
                    let letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b':');
                    !name.bytes().all(letter) || matches!(**name, "none" | "npu" | "all")
                };
                if let Some(name) = names.iter().find(odd) {
                    return Err(format!("`{name}` is no operator such as add, add.Tensor or aten.add.Tensor"));
                }
                OpsChoice::Named(names.iter().map(|name| (*name).to_owned()).collect())
            }
        };
        Ok(Self(choice))
    }
}

/// `--level`.
impl FromStr for RowLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut level = Self { op: false, kernel: false };
        for item in items(text) {
            match item {
                "op" | "0" => level.op = true,
                "kernel" | "1" => level.kernel = true,
                other => return Err(format!("`{other}` is not one of op, kernel")),
            }
        }
        Ok(level)
    }
}

/// `--device`.
impl FromStr for Devices {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut devices = Self { all_npu: false, slots: 0, cpu: false };
        for item in items(text) {
            match item.strip_prefix("npu:") {
                Some(id) => devices.slots |= slot(item, id)?,
                // As other tools have it.
                None if item.starts_with(|letter: char| letter.is_ascii_digit()) => devices.slots |= slot(item, item)?,
                None if item == "npu" => devices.all_npu = true,
                None if item == "cpu" => devices.cpu = true,
                None => return Err(format!("`{item}` is not one of npu, npu:<0..31>, cpu")),
            }
        }
        if devices == (Self { all_npu: false, slots: 0, cpu: false }) {
            return Err("name at least one device: npu, npu:<0..31> or cpu".to_owned());
        }
        Ok(devices)
    }
}

/// The bit of an NPU.
fn slot(item: &str, number: &str) -> Result<u32, String> {
    match number.parse::<u32>() {
        Ok(number @ 0..=31) => Ok(1 << number),
        _ => Err(format!("`{item}`: the NPU number must be 0 to 31")),
    }
}

/// `--steps`: one to five step numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Steps(pub Vec<u32>);

impl FromStr for Steps {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const MOST: usize = 5;
        let mut steps = Vec::new();
        for item in items(text) {
            let plain = item.bytes().all(|byte| byte.is_ascii_digit()) && !item.starts_with('0');
            match item.parse() {
                Ok(step) if plain => steps.push(step),
                _ => return Err(format!("`{item}` is not a step number (1 to 4294967295, no leading zero)")),
            }
        }
        if steps.is_empty() || steps.len() > MOST {
            return Err(format!("1 to {MOST} step numbers are accepted, not {}", steps.len()));
        }
        Ok(Self(steps))
    }
}

/// `--analysis`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Analyses {
    /// The analyses.
    pub chosen: Chosen,
    /// `none` stood beside other words.
    pub cleared: bool,
}

impl FromStr for Analyses {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut found = Chosen::NONE;
        let mut none = false;
        for item in items(text) {
            match item {
                "auto" => found = Chosen { cheap: true, ..found.with("leaks") },
                "none" => none = true,
                word if found.questions.add(word) => {
                    if takes_count(word) {
                        found.oom_blocks = DEFAULT_BLOCKS;
                    }
                }
                other => match other.split_once(':').filter(|(word, _)| takes_count(word)) {
                    Some((word, count)) => match count.parse() {
                        Ok(blocks @ 1..=1000) => found = Chosen { oom_blocks: blocks, ..found.with(word) },
                        _ => return Err(format!("`{other}`: the number of blocks must be in [1, 1000]")),
                    },
                    None => return Err(format!("`{other}` is not one of {}", words_of_analyses())),
                },
            }
        }
        let cleared = none && found != Chosen::NONE;
        Ok(Self { chosen: if none { Chosen::NONE } else { found }, cleared })
    }
}

/// Whether a number of blocks may follow the word.
fn takes_count(word: &str) -> bool {
    Question::of(word).is_some_and(|question| !question.parameter.is_empty())
}

/// The words of `--analysis`.
pub(super) fn words_of_analyses() -> String {
    const AUTO: &str = "auto (leaks; oom and fragmentation as far as they cost no probe)";
    let word = |question: &Question| format!("{}{}", question.word, question.parameter);
    let words = Question::all_for_users().into_iter().map(word);
    [AUTO.to_owned()].into_iter().chain(words).chain(["none".to_owned()]).collect::<Vec<_>>().join(", ")
}

/// `--call-stack`: depths, where asked for.
impl FromStr for CallStacks {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut stacks = Self::default();
        for item in items(text) {
            let (name, depth) = match item.split_once(':') {
                Some((name, depth)) => match depth.parse() {
                    Ok(depth @ 0..=1000) => (name, depth),
                    _ => return Err(format!("`{item}`: the depth must be 0 to 1000")),
                },
                None => (item, DEFAULT_STACK_FRAMES),
            };
            match name {
                "c" => stacks.c = Some(depth),
                "python" => stacks.python = Some(depth),
                "mixed" => stacks = Self { c: Some(depth), python: Some(depth), mixed: true, automatic: false },
                other => return Err(format!("`{other}` is not one of c[:depth], python[:depth], mixed[:depth]")),
            }
        }
        Ok(stacks)
    }
}

/// A condition of `--fail-on`: leak, growth, oom, `peak>SIZE`.
pub(super) fn gate(text: &str) -> Result<Gate, String> {
    match text {
        "leak" => Ok(Gate::Leak),
        "growth" => Ok(Gate::Growth),
        "oom" => Ok(Gate::OutOfMemory),
        _ => match text.strip_prefix("peak>") {
            Some(bytes) => size(bytes).map(Gate::Peak),
            None => Err(format!("`{text}` is not one of leak, growth, oom, peak>SIZE such as 'peak>60G'")),
        },
    }
}

/// `--type` of `inefficient`: which kinds, in the order of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InefficientKinds(pub [bool; 3]);

impl Default for InefficientKinds {
    fn default() -> Self {
        Self([true; 3])
    }
}

impl FromStr for InefficientKinds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut kinds = [false; 3];
        for item in items(text) {
            let Some(at) = InefficientKind::ALL.iter().position(|kind| kind.as_str() == item) else {
                let all = InefficientKind::ALL.map(InefficientKind::as_str).join(", ");
                return Err(format!("`{item}` is not one of {all}"));
            };
            kinds[at] = true;
        }
        if kinds == [false; 3] { Err("at least one kind is needed".to_owned()) } else { Ok(Self(kinds)) }
    }
}

/// `--from` and `--to` of `diff`: a moment of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct When(pub At);

impl Default for When {
    fn default() -> Self {
        Self(At::End)
    }
}

impl FromStr for When {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "end" => Ok(Self(At::End)),
            "peak" => Ok(Self(At::Peak)),
            time if time.starts_with(|c: char| c.is_ascii_digit()) => {
                super::select::when(time).map(|when| Self(At::When(when)))
            }
            other => Err(format!("`{other}` is not one of end, peak, or a time like 30s, 5m or 500ms")),
        }
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            At::End => f.write_str("end"),
            At::Peak => f.write_str("peak"),
            At::When(Moment::After(after)) => write!(f, "{}s", after.as_secs_f64()),
            At::When(Moment::At(time_ns)) => match jiff::Timestamp::from_nanosecond(time_ns.into()) {
                Ok(time) => write!(f, "{time}"),
                Err(_) => write!(f, "{time_ns} ns"),
            },
        }
    }
}

/// A size of any number of bytes: `4096`, `64K`, `2M`, `1G`.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => Some(1),
        "k" | "kb" | "kib" => Some(1 << 10),
        "m" | "mb" | "mib" => Some(1 << 20),
        "g" | "gb" | "gib" => Some(1 << 30),
        _ => None,
    };
    let number = number.parse::<u64>().ok();
    number
        .zip(factor)
        .and_then(|(number, factor)| number.checked_mul(factor))
        .ok_or_else(|| format!("`{text}` is not a size like 4096, 64K or 2M"))
}

/// A block of a device: its address, and its size behind a colon if wanted.
pub(super) fn device_block(text: &str) -> Result<(u64, Option<u64>), String> {
    let (address, size_text) = text.split_once(':').map_or((text, None), |(address, size)| (address, Some(size)));
    let number = match address.strip_prefix("0x").or_else(|| address.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok().filter(|_| !hex.starts_with('+')),
        None => address.bytes().all(|byte| byte.is_ascii_digit()).then(|| address.parse().ok()).flatten(),
    };
    let number = number.filter(|number| *number != 0);
    let number = number.ok_or_else(|| format!("`{address}` is not an address like 0x12c100400000"))?;
    Ok((number, size_text.map(size_limit).transpose()?))
}

/// A size that is not zero.
pub(super) fn size_limit(text: &str) -> Result<u64, String> {
    match size(text)? {
        0 => Err(format!("`{text}` is no room for anything; leave the option out for no limit")),
        bytes => Ok(bytes),
    }
}

/// A duration: `30`, `30s`, `5m`, `2h`, `500ms`.
pub(super) fn duration(text: &str) -> Result<std::time::Duration, String> {
    match interval(text)? {
        duration if !duration.is_zero() => Ok(duration),
        _ => Err(format!("`{text}` is not a duration greater than zero")),
    }
}

/// Time between samples of `stat`: shorter ones would show no newer figures.
pub(super) fn sample_interval(text: &str) -> Result<std::time::Duration, String> {
    const LEAST: std::time::Duration = std::time::Duration::from_millis(100);
    match interval(text)? {
        time if time >= LEAST => Ok(time),
        _ => Err(format!("`{text}` is shorter than 100ms")),
    }
}

/// The same, or `0`. A time above a year is a typing error.
pub(super) fn interval(text: &str) -> Result<std::time::Duration, String> {
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().map_err(|_| format!("`{text}` is not a duration like 30s, 5m or 500ms"))?;
    let seconds = match unit {
        "" | "s" => number,
        "ms" => number / 1000.0,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        other => return Err(format!("`{other}` is not one of ms, s, m, h")),
    };
    if seconds > LONGEST_SECONDS {
        return Err(format!("`{text}` is {LONGEST}"));
    }
    std::time::Duration::try_from_secs_f64(seconds).map_err(|_| format!("`{text}` is not a time of zero or more"))
}

/// Bytes: `65536`, `64K`, `64M`, `1G`.
pub(super) fn bytes(text: &str) -> Result<u32, String> {
    let (number, factor) = match text.char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 1 << 10),
        Some((at, 'M' | 'm')) => (&text[..at], 1 << 20),
        Some((at, 'G' | 'g')) => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    match bytes.and_then(|bytes| u32::try_from(bytes).ok()) {
        Some(bytes) if (4096..=1 << 30).contains(&bytes) => Ok(bytes),
        _ => Err(format!("`{text}` is not a size from 4K to 1G")),
    }
}

/// Process ids, comma-separated.
pub(super) fn pid(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(pid @ 1..=0x7fff_ffff) => Ok(pid),
        _ => Err(format!("`{text}` is not a process id")),
    }
}

#[cfg(test)]
mod tests;
