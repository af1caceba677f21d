//! What one row holds, and how its cells are spelt (contract §3, §6.1, §6.2).
//!
//! A [`Row`] borrows from its event and is written straight into a buffer: nothing is allocated per row.
//!
//! # Texts of the traced program
//!
//! The Name column and the frames of call stacks carry text that the program chose. Texts made of
//! printable characters are written as they are, byte for byte like msMemScope. Otherwise, in csv and db alike:
//!
//! - A backslash becomes `\\`; newline, carriage return and tab become `\n`, `\r`, `\t`; every other control
//!   character (C0, DEL, C1), line separator (U+2028, U+2029) and bidirectional control becomes `\u{…}` with
//!   its code in hex. So a row is one line, a terminal is safe, and the text can be recovered exactly.
//! - A text that a spreadsheet would take for a formula, that is any number of `'` (none included) followed by
//!   `=`, `+`, `-` or `@`, gets one `'` in front. A reader that finds one or more `'` followed by one of those
//!   takes one off. (msMemScope blanks such texts.)
//!
//! In CSV a `"` inside the cell is then doubled (RFC 4180); msMemScope writes it bare, which no reader can undo.
//! Names of marks are always in quotes; a kernel name only if it holds a comma or a quote. In the database, names
//! of marks keep their surrounding quotes, and nothing is doubled.
//!
//! # Attr
//!
//! All keys and values are numbers or words without `:`, `,` and `"`, and the JSON
//! form needs no escaping. `streamId` is the runtime's number of the stream where the program asked for it,
//! else the stream pointer as a decimal number, 0 for the default stream (readers take a number there; a pointer
//! is far above any stream number). `taskId` is `N/A`: no argument of a launch carries it.

use super::stacks;
use crate::model::{
    Access, AccessKind, Alloc, AllocApi, AllocFailed, Block, BlockReturned, Device, DriverFigures, Event, EventKind,
    Free, FreeCause, Launch, Mark, OpPhase, OutOfMemory, PageType, Pool, Snapshot, Stack, Stacks, System,
};

/// Columns of a row; the CSV header and the database column names.
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

const NOT_AVAILABLE: &str = "N/A";

/// Text of the Name column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name<'a> {
    /// `N/A`.
    None,
    /// As it is, quoted only where CSV needs it.
    Plain(&'a str),
    /// Always in quotes: the text of a mark.
    Quoted(&'a str),
    /// `"Range end from id <n>"`.
    RangeEnd(u64),
    /// Decimal.
    Number(u64),
}

/// Value in the Attr column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// Decimal.
    Number(u64),
    /// Decimal, with a sign.
    Signed(i64),
    /// `0x` and 16 digits.
    Address(u64),
    /// A word without `:`, `,` and `"`.
    Word(&'static str),
    /// `torch.Size([2, 3])`: this and the next are the only values that have commas, as in msMemScope; readers part at keys.
    Shape(&'a [i64]),
    /// `[2,3,]`: the same of a tensor of ATB.
    Sizes(&'a [i64]),
    /// The first as a part of the second in hundredths, with 6 decimals; 0 of nothing.
    Percent(u64, u64),
}

/// Longest Attr: `MALLOC` of `HAL`, or of a pool.
const MAX_PAIRS: usize = 9;

/// The pairs of the Attr column, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr<'a> {
    pairs: [(&'static str, Value<'a>); MAX_PAIRS],
    len: usize,
}

/// One row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<'a> {
    /// Number of the event in its process.
    pub id: u64,
    /// Event column.
    pub event: &'static str,
    /// Event Type column.
    pub event_type: &'static str,
    /// Name column.
    pub name: Name<'a>,
    /// Nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Device: of the memory for blocks, else of the thread.
    pub device: Device,
    /// Ptr column.
    pub ptr: Option<u64>,
    /// Attr column.
    pub attr: Attr<'a>,
    /// Call stack columns.
    pub stacks: Stacks,
}

impl<'a> Row<'a> {
    /// The row of an event; `None` for kinds that have none.
    #[must_use]
    pub fn of(event: &'a Event) -> Option<Self> {
        let row = Self::blank(event);
        match &event.kind {
            EventKind::Alloc(alloc) => Some(row.block("MALLOC", &alloc.block, &Attr::of_alloc(alloc))),
            EventKind::Free(free) => Some(Self {
                time_ns: free.row_time_ns.unwrap_or(row.time_ns),
                ..row.block("FREE", &free.block, &Attr::of_free(free))
            }),
            EventKind::Launch(launch) => Some(Self {
                event: "KERNEL_LAUNCH",
                event_type: "KERNEL_LAUNCH",
                name: if launch.name.is_empty() { Name::None } else { Name::Plain(&launch.name) },
                attr: Attr::of_launch(launch),
                ..row
            }),
            EventKind::Op(op) => Some(Self {
                event: "OP_LAUNCH",
                event_type: match op.phase {
                    OpPhase::Start => "ATEN_START",
                    OpPhase::End => "ATEN_END",
                    OpPhase::Submit => "NPU_SUBMIT",
                },
                name: Name::Plain(&op.name),
                ..row
            }),
            EventKind::Access(access) => Some(Self {
                event: "ACCESS",
                event_type: match access.kind {
                    AccessKind::Read => "READ",
                    AccessKind::Write => "WRITE",
                    AccessKind::Unknown => "UNKNOWN",
                },
                name: Name::Plain(&access.op),
                ptr: Some(access.addr),
                attr: Attr::of_access(access),
                ..row
            }),
            EventKind::AtbOp(op) => Some(Self {
                event: "OP_LAUNCH",
                event_type: if op.begins { "ATB_START" } else { "ATB_END" },
                name: if op.name.is_empty() { Name::None } else { Name::Plain(&op.name) },
                // The path is only set while ATB saves tensors.
                attr: Attr::of([
                    ("path", Value::Word(NOT_AVAILABLE)),
                    ("workspace_ptr", Value::Address(op.workspace_addr)),
                    ("workspace_size", Value::Number(op.workspace_bytes)),
                ]),
                ..row
            }),
            EventKind::Mark(mark) => Some(row.mark(mark)),
            // Ours alone: msMemScope does not tell of them.
            EventKind::DomainMark { domain, mark } => {
                let attr = Attr::of([("domain", Value::Word(domain.as_str()))]);
                Some(Self { attr, ..row.mark(mark) })
            }
            EventKind::System(system) => Some(Self {
                event: "SYSTEM",
                event_type: match system {
                    System::AclInit => "ACL_INIT",
                    System::AclFinalize => "ACL_FINI",
                    System::TraceStart { .. } => "START_TRACE",
                    System::TraceStop => "STOP_TRACE",
                },
                attr: match system {
                    System::TraceStart { free_and_total_bytes: Some((free, total)) } => {
                        Attr::of([("free", Value::Number(*free)), ("total", Value::Number(*total))])
                    }
                    _ => Attr::EMPTY,
                },
                ..row
            }),
            EventKind::Step { step } => {
                Some(Self { event: "SYSTEM", event_type: "STEP", name: Name::Number(u64::from(*step)), ..row })
            }
            EventKind::Snapshot(snapshot) => Some(Self {
                event: "SNAPSHOT",
                event_type: "SNAPSHOT",
                name: Name::Plain(&snapshot.name),
                attr: Attr::of_snapshot(snapshot),
                ..row
            }),
            EventKind::BlockReturned(returned) => Some(Self {
                event: "BLOCK_FREE",
                event_type: returned.pool.event_type(),
                ptr: Some(returned.addr),
                attr: Attr::of_returned(returned),
                ..row
            }),
            EventKind::OutOfMemory(out_of_memory) => Some(row.out_of_memory(out_of_memory)),
            EventKind::UnknownFree(_)
            | EventKind::AllocFailed(_)
            | EventKind::AllocRecovered(_)
            | EventKind::Region(_)
            | EventKind::ProbeDisabled { .. }
            | EventKind::StepStart { .. }
            | EventKind::StepEnd { .. }
            | EventKind::StepsRefused
            | EventKind::Unmet(_)
            | EventKind::NamedRange { .. }
            | EventKind::DeviceUsage(_)
            | EventKind::ProcessStart(_)
            | EventKind::ProcessEnd => None,
        }
    }

    fn blank(event: &Event) -> Self {
        Self {
            id: event.id,
            event: NOT_AVAILABLE,
            event_type: NOT_AVAILABLE,
            name: Name::None,
            time_ns: event.time_ns,
            pid: event.pid,
            tid: event.tid,
            device: event.device,
            ptr: None,
            attr: Attr::EMPTY,
            stacks: event.stacks,
        }
    }

    fn block(self, event: &'static str, block: &Block, attr: &Attr<'a>) -> Self {
        let device = if block.device == Device::None { self.device } else { block.device };
        Self { event, event_type: block.pool.event_type(), device, ptr: Some(block.addr), attr: *attr, ..self }
    }

    fn out_of_memory(self, out_of_memory: &OutOfMemory) -> Self {
        let (event_type, name, attr) = match out_of_memory {
            OutOfMemory::Trigger(failed) => ("OOM_TRIGGER", "OOM_Trigger", Attr::of_failed(failed)),
            OutOfMemory::Recent(block) => ("OOM_RECENT_ALLOC", "OOM_RecentAlloc", Attr::of_suspect(block)),
            OutOfMemory::Top(block) => ("OOM_TOP_ALLOC", "OOM_TopAlloc", Attr::of_suspect(block)),
        };
        Self { event: "OOM_DETAIL", event_type, name: Name::Plain(name), attr, ..self }
    }

    fn mark(self, mark: &'a Mark) -> Self {
        let (event_type, name) = match mark {
            Mark::Point { text } => ("Mark", text.as_deref().map_or(Name::None, Name::Quoted)),
            Mark::RangeStart { text, .. } => ("Range_start", text.as_deref().map_or(Name::None, Name::Quoted)),
            Mark::RangeEnd { range_id, passed_id } => ("Range_end", Name::RangeEnd(range_id.unwrap_or(*passed_id))),
        };
        Self { event: "MSTX", event_type, name, ..self }
    }

    /// Appends the row as one CSV line, newline included.
    pub fn write_csv(&self, out: &mut Vec<u8>) {
        self.write_csv_with(out, |out, stack| stacks::write(out, stack, true));
    }

    /// The same, with cells of stacks that `write_stack` appends.
    pub(super) fn write_csv_with(&self, out: &mut Vec<u8>, mut write_stack: impl FnMut(&mut Vec<u8>, Option<Stack>)) {
        push_decimal(out, self.id);
        push_cell(out, self.event);
        push_cell(out, self.event_type);
        out.push(b',');
        self.name.write_csv(out);
        out.push(b',');
        push_decimal(out, self.time_ns);
        out.push(b',');
        push_decimal(out, u64::from(self.pid));
        out.push(b',');
        push_decimal(out, u64::from(self.tid));
        out.push(b',');
        push_device(out, self.device);
        out.push(b',');
        self.write_ptr(out);
        out.push(b',');
        self.attr.write_csv(out);
        out.push(b',');
        write_stack(out, self.stacks.python);
        out.push(b',');
        write_stack(out, self.stacks.native_or_mixed());
        out.push(b'\n');
    }

    /// Appends the Ptr cell.
    pub fn write_ptr(&self, out: &mut Vec<u8>) {
        match self.ptr {
            Some(ptr) => push_address(out, ptr),
            None => out.extend_from_slice(NOT_AVAILABLE.as_bytes()),
        }
    }
}

impl Name<'_> {
    /// Appends the CSV cell.
    pub fn write_csv(self, out: &mut Vec<u8>) {
        match self {
            Self::Plain(text) if !text.contains([',', '"']) => push_text(out, text, false),
            Self::Plain(text) | Self::Quoted(text) => {
                out.push(b'"');
                push_text(out, text, true);
                out.push(b'"');
            }
            Self::None | Self::RangeEnd(_) | Self::Number(_) => self.write_db(out),
        }
    }

    /// Appends the text for the database.
    pub fn write_db(self, out: &mut Vec<u8>) {
        match self {
            Self::None => out.extend_from_slice(NOT_AVAILABLE.as_bytes()),
            Self::Number(number) => push_decimal(out, number),
            Self::Plain(text) => push_text(out, text, false),
            Self::Quoted(text) => {
                out.push(b'"');
                push_text(out, text, false);
                out.push(b'"');
            }
            Self::RangeEnd(id) => {
                out.extend_from_slice(b"\"Range end from id ");
                push_decimal(out, id);
                out.push(b'"');
            }
        }
    }
}

impl<'a> Attr<'a> {
    const EMPTY: Self = Self { pairs: [("", Value::Number(0)); MAX_PAIRS], len: 0 };

    /// Of these pairs.
    fn of<const N: usize>(pairs: [(&'static str, Value<'a>); N]) -> Self {
        let mut attr = Self::EMPTY;
        for (key, value) in pairs {
            attr.put(key, value);
        }
        attr
    }

    /// Adds a pair. In place: it is large, and made for every row.
    fn put(&mut self, key: &'static str, value: Value<'a>) -> &mut Self {
        debug_assert!(self.len < MAX_PAIRS, "no room for {key}");
        if let Some(pair) = self.pairs.get_mut(self.len) {
            *pair = (key, value);
            self.len += 1;
        }
        self
    }

    fn put_option(&mut self, key: &'static str, value: Option<u64>) -> &mut Self {
        match value {
            Some(value) => self.put(key, Value::Number(value)),
            None => self,
        }
    }

    fn of_block(block: &Block) -> Self {
        Self::of([
            ("allocation_id", Value::Number(block.allocation_id)),
            ("addr", Value::Address(block.addr)),
            ("size", Value::Number(block.size_bytes)),
        ])
    }

    /// `made_up`: no call of the program stands behind the row, so it has no totals (contract §6.2, §7.3, §7.4).
    fn of_event(
        block: &Block,
        made_up: bool,
        (used_bytes, total_bytes): (u64, Option<u64>),
        driver: DriverFigures,
    ) -> Self {
        let mut attr = Self::of_block(block);
        if made_up {
            attr.put("shadow", Value::Word("true"));
            return attr;
        }
        if block.pool == Pool::Host {
            attr.put("pinned", Value::Word("true")).put("used", Value::Number(used_bytes));
            return attr;
        }
        attr.put("used", Value::Number(used_bytes));
        if block.pool != Pool::Hal {
            attr.put_option("total", total_bytes);
        }
        let DriverFigures { process_used_bytes, device_used_bytes } = driver;
        attr.put_option("process_used", process_used_bytes).put_option("device_used", device_used_bytes);
        attr
    }

    fn of_alloc(alloc: &Alloc) -> Self {
        let made_up = alloc.restored || alloc.promoted;
        let mut attr = Self::of_event(&alloc.block, made_up, (alloc.used_bytes, alloc.total_bytes), alloc.driver);
        // A name has nothing in it that separates values. Made-up rows have no owner (contract §7.3).
        if let Some(owner) = alloc.block.owner.filter(|_| !made_up) {
            attr.put("owner", Value::Word(owner.as_str()));
        }
        if alloc.block.pool != Pool::Hal {
            // Ours alone: msMemScope does not tell what the program asked the pool for.
            attr.put_option("requested", alloc.block.requested_bytes);
            return attr;
        }
        let page = match alloc.block.page {
            PageType::Normal => "normal",
            PageType::Huge => "huge",
            PageType::Giant => "giant",
        };
        let api = match alloc.block.api {
            AllocApi::Alloc | AllocApi::Register => "alloc",
            AllocApi::Create => "create",
        };
        attr.put("page_type", Value::Word(page)).put("alloc_type", Value::Word(api));
        attr
    }

    fn of_free(free: &Free) -> Self {
        let made_up = free.cause != FreeCause::Program;
        let mut attr = Self::of_event(&free.block, made_up, (free.used_bytes, free.total_bytes), free.driver);
        // Ours alone: the row of the allocation was written before the label was known.
        if let Some(owner) = free.owner {
            attr.put("owner", Value::Word(owner.as_str()));
        }
        attr
    }

    fn of_snapshot(snapshot: &Snapshot) -> Self {
        let Snapshot { reserved_bytes, allocated_bytes, total_bytes, free_bytes, .. } = *snapshot;
        Self::of([
            ("reserved", Value::Number(reserved_bytes)),
            ("max_reserved", Value::Number(snapshot.max_reserved_bytes)),
            ("allocated", Value::Number(allocated_bytes)),
            ("max_allocated", Value::Number(snapshot.max_allocated_bytes)),
            ("total", Value::Number(total_bytes)),
            ("free", Value::Number(free_bytes)),
            ("device_rate", Value::Percent(total_bytes.saturating_sub(free_bytes), total_bytes)),
            ("reserved_rate", Value::Percent(allocated_bytes, reserved_bytes)),
        ])
    }

    /// Ours alone: msMemScope does not tell of it.
    fn of_returned(returned: &BlockReturned) -> Self {
        Self::of([
            ("allocation_id", Value::Number(returned.allocation_id.unwrap_or(0))),
            ("addr", Value::Address(returned.addr)),
            ("size", Value::Number(returned.size_bytes)),
            ("used", Value::Number(returned.used_bytes)),
            ("total", Value::Number(returned.total_bytes)),
            ("active", Value::Number(returned.active_bytes)),
        ])
    }

    fn of_failed(failed: &AllocFailed) -> Self {
        Self::of([
            ("func", Value::Word(failed.caller.map_or(NOT_AVAILABLE, crate::model::Name::as_str))),
            ("req_size", Value::Number(failed.size_bytes)),
            ("flag", Value::Number(failed.flags)),
        ])
    }

    fn of_suspect(block: &Block) -> Self {
        Self::of([
            ("pool", Value::Word(block.pool.event_type())),
            ("ptr", Value::Address(block.addr)),
            ("size", Value::Number(block.size_bytes)),
            ("timestamp", Value::Number(block.alloc_time_ns)),
        ])
    }

    fn of_launch(launch: &Launch) -> Self {
        let stream = launch.stream_id.map_or(Value::Number(launch.stream), Value::Signed);
        Self::of([("streamId", stream), ("taskId", Value::Word(NOT_AVAILABLE))])
    }

    fn of_access(access: &'a Access) -> Self {
        let mut attr = Self::of([
            ("allocation_id", Value::Number(access.allocation_id)),
            ("addr", Value::Address(access.addr)),
            ("size", Value::Number(access.size_bytes)),
            ("type", Value::Word(access.pool.event_type())),
            ("dtype", Value::Word(access.dtype)),
        ]);
        match access.format {
            Some(format) => attr.put("format", Value::Word(format)).put("shape", Value::Sizes(&access.shape)),
            None => attr.put("shape", Value::Shape(&access.shape)),
        };
        attr
    }

    fn pairs(&self) -> &[(&'static str, Value<'a>)] {
        &self.pairs[..self.len]
    }

    /// Appends the CSV cell: nothing, or `"{key:value,…}"`.
    pub fn write_csv(&self, out: &mut Vec<u8>) {
        if self.len == 0 {
            return;
        }
        let mut lead: &[u8] = b"\"{";
        for (key, value) in self.pairs() {
            out.extend_from_slice(lead);
            out.extend_from_slice(key.as_bytes());
            out.push(b':');
            value.write(out);
            lead = b",";
        }
        out.extend_from_slice(b"}\"");
    }

    /// Appends the JSON object, whose values are all strings (Insight reads no others).
    pub fn write_json(&self, out: &mut Vec<u8>) {
        let mut lead: &[u8] = b"{\"";
        for (key, value) in self.pairs() {
            out.extend_from_slice(lead);
            out.extend_from_slice(key.as_bytes());
            out.extend_from_slice(b"\":\"");
            value.write(out);
            out.push(b'"');
            lead = b",\"";
        }
        out.extend_from_slice(if self.len == 0 { b"{}" } else { b"}" });
    }
}

impl Value<'_> {
    fn write(self, out: &mut Vec<u8>) {
        match self {
            Self::Number(number) => push_decimal(out, number),
            Self::Signed(number) => push_signed(out, number),
            Self::Address(address) => push_address(out, address),
            Self::Word(word) => out.extend_from_slice(word.as_bytes()),
            Self::Shape(sizes) => push_shape(out, sizes),
            Self::Sizes(sizes) => push_sizes(out, sizes),
            Self::Percent(_, 0) => out.extend_from_slice(b"0.000000"),
            Self::Percent(part, whole) => {
                out.extend_from_slice(format!("{:.6}", part as f64 / whole as f64 * 100.0).as_bytes());
            }
        }
    }
}

fn push_signed(out: &mut Vec<u8>, number: i64) {
    if number < 0 {
        out.push(b'-');
    }
    push_decimal(out, number.unsigned_abs());
}

fn push_shape(out: &mut Vec<u8>, sizes: &[i64]) {
    let mut lead: &[u8] = b"torch.Size([";
    for size in sizes {
        out.extend_from_slice(lead);
        push_signed(out, *size);
        lead = b", ";
    }
    out.extend_from_slice(if sizes.is_empty() { b"torch.Size([])" } else { b"])" });
}

fn push_sizes(out: &mut Vec<u8>, sizes: &[i64]) {
    out.push(b'[');
    for size in sizes {
        push_signed(out, *size);
        out.push(b',');
    }
    out.push(b']');
}

/// Appends the Device Id cell.
pub fn push_device(out: &mut Vec<u8>, device: Device) {
    match device {
        Device::Npu(number) => push_decimal(out, u64::from(number)),
        Device::Cpu => out.extend_from_slice(b"cpu"),
        Device::None => out.extend_from_slice(NOT_AVAILABLE.as_bytes()),
    }
}

fn push_cell(out: &mut Vec<u8>, text: &str) {
    out.push(b',');
    out.extend_from_slice(text.as_bytes());
}

pub(super) fn push_decimal(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

fn push_address(out: &mut Vec<u8>, address: u64) {
    let mut text = *b"0x0000000000000000";
    for (index, digit) in text[2..].iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(address >> (60 - 4 * index) & 15) as usize];
    }
    out.extend_from_slice(&text);
}

/// Appends text of the traced program by the rules in the module's documentation.
pub(super) fn push_text(out: &mut Vec<u8>, text: &str, double_quotes: bool) {
    if text.trim_start_matches('\'').starts_with(['=', '+', '-', '@']) {
        out.push(b'\'');
    }
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'\\' && byte != b'"') {
        return out.extend_from_slice(text.as_bytes());
    }
    for character in text.chars() {
        push_char(out, character, double_quotes);
    }
}

fn push_char(out: &mut Vec<u8>, character: char, double_quotes: bool) {
    match character {
        '\\' => out.extend_from_slice(br"\\"),
        '\n' => out.extend_from_slice(br"\n"),
        '\r' => out.extend_from_slice(br"\r"),
        '\t' => out.extend_from_slice(br"\t"),
        '"' if double_quotes => out.extend_from_slice(b"\"\""),
        _ if is_hidden(character) => {
            out.extend_from_slice(character.escape_unicode().to_string().as_bytes());
        }
        _ => out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
    }
}

/// Control characters, line separators, and what turns the direction of text.
fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Takes back what our own outputs do to names (see `sinks::row`). A text that is not made like that is left as it is.
pub(crate) fn unescaped(text: &str) -> String {
    let unguarded = match text.strip_prefix('\'') {
        Some(rest) if rest.trim_start_matches('\'').starts_with(['=', '+', '-', '@']) => rest,
        _ => text,
    };
    if !unguarded.contains('\\') {
        return unguarded.to_owned();
    }
    unescape(unguarded).unwrap_or_else(|| unguarded.to_owned())
}

fn unescape(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut parts = text.split('\\');
    out.push_str(parts.next()?);
    while let Some(part) = parts.next() {
        let mut rest = part.chars();
        match rest.next() {
            // Two backslashes: the text between them is empty, and the next part follows as it is.
            None => {
                out.push('\\');
                out.push_str(parts.next()?);
                continue;
            }
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('t') => out.push('\t'),
            Some('u') => {
                let (code, after) = rest.as_str().strip_prefix('{')?.split_once('}')?;
                out.push(char::from_u32(u32::from_str_radix(code, 16).ok()?)?);
                out.push_str(after);
                continue;
            }
            Some(_) => return None,
        }
        out.push_str(rest.as_str());
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::{DriverFigures, Name as SymbolName, Op, UnknownFree};
    use crate::sinks::fixtures::{alloc, at, block, event, free};

    fn csv(event: &Event) -> String {
        let mut out = Vec::new();
        Row::of(event).expect("a row").write_csv(&mut out);
        String::from_utf8(out).expect("text")
    }

    /// Spelt as msMemScope does, in a file that it wrote.
    #[test]
    fn operators_and_accesses() {
        let name: std::sync::Arc<str> = "torch._ops.aten.mul.Tensor".into();
        let op = |phase| csv(&event(EventKind::Op(Op { phase, name: std::sync::Arc::clone(&name) })));
        assert_eq!(op(OpPhase::Start), "5,OP_LAUNCH,ATEN_START,torch._ops.aten.mul.Tensor,1000,12,34,0,N/A,,,\n");
        assert_eq!(op(OpPhase::End), "5,OP_LAUNCH,ATEN_END,torch._ops.aten.mul.Tensor,1000,12,34,0,N/A,,,\n");
        let access = |shape: &[i64]| Access {
            kind: AccessKind::Write,
            op: std::sync::Arc::clone(&name),
            allocation_id: 75,
            pool: Pool::Pta,
            addr: 0x1680_0903_2000,
            size_bytes: 59756,
            dtype: "torch.uint8",
            format: None,
            shape: shape.into(),
        };
        assert_eq!(
            csv(&event(EventKind::Access(access(&[59756])))),
            "5,ACCESS,WRITE,torch._ops.aten.mul.Tensor,1000,12,34,0,0x0000168009032000,\"{allocation_id:75,addr:\
             0x0000168009032000,size:59756,type:PTA,dtype:torch.uint8,shape:torch.Size([59756])}\",,\n"
        );
        for (shape, text) in [(&[][..], "([])"), (&[2, 3], "([2, 3])")] {
            assert!(csv(&event(EventKind::Access(access(shape)))).contains(&format!("shape:torch.Size{text}}}")));
        }
        let atb = |shape: &[i64]| {
            let format = Some("ACL_FORMAT_ND");
            csv(&event(EventKind::Access(Access { pool: Pool::Atb, dtype: "ACL_BF16", format, ..access(shape) })))
        };
        assert!(
            atb(&[1, 5]).contains("type:ATB,dtype:ACL_BF16,format:ACL_FORMAT_ND,shape:[1,5,]}\""),
            "{}",
            atb(&[1, 5])
        );
        assert!(atb(&[]).contains("format:ACL_FORMAT_ND,shape:[]}\""));
    }

    fn name_db(text: &str) -> String {
        let mut out = Vec::new();
        Name::Plain(text).write_db(&mut out);
        String::from_utf8(out).expect("text")
    }

    fn mark(text: &str) -> EventKind {
        EventKind::Mark(Mark::Point { text: Some(text.into()) })
    }

    fn mark_row(cell: &str) -> String {
        format!("5,MSTX,Mark,{cell},1000,12,34,0,N/A,,,\n")
    }

    /// Driver blocks: the free says less than the allocation.
    #[test]
    fn driver_rows() {
        assert_eq!(
            csv(&at(3, Device::Npu(7), alloc(Pool::Hal, 0x3039, 1))),
            "3,MALLOC,HAL,N/A,3000,12,34,7,0x0000000000003039,\
             \"{allocation_id:1,addr:0x0000000000003039,size:10,used:10,page_type:normal,alloc_type:alloc}\",,\n"
        );
        let kind = EventKind::Alloc(Alloc {
            block: Block { page: PageType::Giant, api: AllocApi::Create, ..block(Pool::Hal, u64::MAX, 2) },
            used_bytes: u64::MAX,
            total_bytes: None,
            driver: DriverFigures::default(),
            restored: false,
            promoted: false,
        });
        assert_eq!(
            csv(&event(kind)),
            "5,MALLOC,HAL,N/A,1000,12,34,0,0xffffffffffffffff,\"{allocation_id:2,addr:0xffffffffffffffff,size:10,\
             used:18446744073709551615,page_type:giant,alloc_type:create}\",,\n"
        );
        assert_eq!(
            csv(&event(free(Pool::Hal, 0x3039, 1, FreeCause::Program))),
            "5,FREE,HAL,N/A,1000,12,34,0,0x0000000000003039,\
             \"{allocation_id:1,addr:0x0000000000003039,size:10,used:0}\",,\n"
        );
    }

    /// Pools say what they hold reserved, if they know; pinned host memory says that it is.
    #[test]
    fn pool_and_host_rows() {
        assert_eq!(
            csv(&event(alloc(Pool::Pta, 0x10, 1))),
            "5,MALLOC,PTA,N/A,1000,12,34,0,0x0000000000000010,\
             \"{allocation_id:1,addr:0x0000000000000010,size:10,used:10,total:2000}\",,\n"
        );
        let EventKind::Alloc(known) = alloc(Pool::Pta, 0x10, 1) else { panic!("not an allocation") };
        let asked = Alloc { block: Block { requested_bytes: Some(7), ..known.block }, ..known };
        assert_eq!(
            csv(&event(EventKind::Alloc(asked))),
            "5,MALLOC,PTA,N/A,1000,12,34,0,0x0000000000000010,\
             \"{allocation_id:1,addr:0x0000000000000010,size:10,used:10,total:2000,requested:7}\",,\n"
        );
        let without_total = EventKind::Free(Free {
            block: block(Pool::Atb, 0x10, 1),
            used_bytes: 0,
            total_bytes: None,
            driver: DriverFigures::default(),
            cause: FreeCause::Program,
            owner: None,
            row_time_ns: None,
            without_row: false,
        });
        assert_eq!(
            csv(&event(without_total)),
            "5,FREE,ATB,N/A,1000,12,34,0,0x0000000000000010,\
             \"{allocation_id:1,addr:0x0000000000000010,size:10,used:0}\",,\n"
        );
        assert_eq!(
            csv(&at(5, Device::Cpu, alloc(Pool::Host, 0x10, 1))),
            "5,MALLOC,HOST,N/A,5000,12,34,cpu,0x0000000000000010,\
             \"{allocation_id:1,addr:0x0000000000000010,size:10,pinned:true,used:10}\",,\n"
        );
    }

    /// The driver's figures stand behind the pool's; host memory and made-up rows have none (contract §6.2).
    #[test]
    fn rows_have_the_drivers_figures() {
        let driver = DriverFigures { process_used_bytes: Some(7), device_used_bytes: Some(9) };
        let row = |pool, restored| {
            let block = block(pool, 0x10, 1);
            let (used_bytes, total_bytes, promoted) = (1, Some(2), false);
            csv(&event(EventKind::Alloc(Alloc { block, used_bytes, total_bytes, driver, restored, promoted })))
        };
        assert!(
            row(Pool::Hal, false).contains(",size:10,used:1,process_used:7,device_used:9,page_type:normal,alloc_type:")
        );
        assert!(row(Pool::Pta, false).contains(",size:10,used:1,total:2,process_used:7,device_used:9"));
        assert!(row(Pool::Host, false).ends_with(",size:10,pinned:true,used:1}\",,\n"));
        assert!(row(Pool::Pta, true).ends_with(",size:10,shadow:true}\",,\n"));
        let unlisted = DriverFigures { process_used_bytes: None, ..driver };
        let kind = EventKind::Free(Free {
            block: block(Pool::Hal, 0x10, 1),
            used_bytes: 1,
            total_bytes: None,
            driver: unlisted,
            cause: FreeCause::Program,
            owner: None,
            row_time_ns: None,
            without_row: false,
        });
        assert!(csv(&event(kind)).ends_with(",size:10,used:1,device_used:9}\",,\n"));
    }

    /// Whose a block is stands behind the figures (contract §6.2), on its MALLOC row alone.
    #[test]
    fn rows_have_owners() {
        const FIGURES: &str = "process_used:7,device_used:9,owner:PTA@weight";
        let driver = DriverFigures { process_used_bytes: Some(7), device_used_bytes: Some(9) };
        let row = |pool, restored| {
            let (owner, requested_bytes) = (Some(SymbolName::keep("PTA@weight")), Some(3));
            let block = Block { requested_bytes, owner, ..block(pool, 0x10, 1) };
            let (used_bytes, total_bytes, promoted) = (1, Some(2), false);
            csv(&event(EventKind::Alloc(Alloc { block, used_bytes, total_bytes, driver, restored, promoted })))
        };
        assert!(row(Pool::Hal, false).contains(&format!(",used:1,{FIGURES},page_type:normal,alloc_type:alloc}}")));
        assert!(row(Pool::Pta, false).contains(&format!(",used:1,total:2,{FIGURES},requested:3}}")));
        assert!(row(Pool::Host, false).contains(",used:1,owner:PTA@weight,requested:3}"));
        assert!(!row(Pool::Pta, true).contains("owner"));
        let EventKind::Free(free) = free(Pool::Pta, 0x10, 1, FreeCause::Program) else { panic!("not a free") };
        let owned = Free { block: Block { owner: Some(SymbolName::keep("PTA")), ..free.block }, ..free };
        assert!(!csv(&event(EventKind::Free(owned))).contains("owner"));
    }

    /// Rows that no call of the program stands behind have no totals, and say so.
    #[test]
    fn made_up_rows_have_a_shadow() {
        const TAIL: &str = ",\"{allocation_id:1,addr:0x0000000000000010,size:10,shadow:true}\",,\n";
        for pool in [Pool::Hal, Pool::Host, Pool::PtaWorkspace] {
            for cause in [FreeCause::ProcessEnd, FreeCause::Replaced, FreeCause::TraceEnd] {
                let text = csv(&event(free(pool, 0x10, 1, cause)));
                assert!(text.ends_with(TAIL), "{text}");
            }
        }
        let restored = |pool| {
            let block = block(pool, 0x10, 1);
            csv(&event(EventKind::Alloc(Alloc {
                block,
                used_bytes: 1,
                total_bytes: Some(2),
                driver: DriverFigures::default(),
                restored: true,
                promoted: false,
            })))
        };
        assert!(restored(Pool::MindSpore).ends_with(TAIL));
        // As msMemScope's promoted blocks (contract §7.3): the block is what it is.
        assert!(restored(Pool::Hal).ends_with(",size:10,shadow:true,page_type:normal,alloc_type:alloc}\",,\n"));
    }

    /// The stream is its number where known, else its pointer.
    #[test]
    fn launch_rows() {
        let launch = |name: &str, stream, stream_id| {
            csv(&event(EventKind::Launch(Launch { name: name.into(), stream, stream_id })))
        };
        assert_eq!(
            launch("Add_fp16", 0xffff, Some(2)),
            "5,KERNEL_LAUNCH,KERNEL_LAUNCH,Add_fp16,1000,12,34,0,N/A,\"{streamId:2,taskId:N/A}\",,\n"
        );
        assert!(launch("a", 0xffff, Some(-1)).contains("{streamId:-1,"));
        assert!(launch("a", 0xffff, None).contains("{streamId:65535,"));
        assert!(launch("a", 0, None).contains("{streamId:0,"));
        assert!(launch("", 0, None).contains(",N/A,1000,"));
        assert!(launch("f<a, b>", 0, None).contains(",\"f<a, b>\",1000,"));
        assert!(launch("f\"x", 0, None).contains(",\"f\"\"x\",1000,"));
    }

    /// Marks are quoted once; the end of a range names it by the id that pairs it.
    #[test]
    fn mark_rows() {
        let start = Mark::RangeStart { text: Some("step start".into()), range_id: 4 };
        assert_eq!(csv(&event(EventKind::Mark(start))), "5,MSTX,Range_start,\"step start\",1000,12,34,0,N/A,,,\n");
        let end = |range_id| csv(&event(EventKind::Mark(Mark::RangeEnd { range_id, passed_id: 9 })));
        assert_eq!(end(Some(4)), "5,MSTX,Range_end,\"Range end from id 4\",1000,12,34,0,N/A,,,\n");
        assert_eq!(end(None), "5,MSTX,Range_end,\"Range end from id 9\",1000,12,34,0,N/A,,,\n");
        assert_eq!(csv(&event(EventKind::Mark(Mark::Point { text: None }))), mark_row("N/A"));
        assert_eq!(csv(&event(mark(""))), mark_row("\"\""));
    }

    /// ACL rows.
    #[test]
    fn system_rows() {
        let row = |system| csv(&Event { device: Device::None, ..event(EventKind::System(system)) });
        assert_eq!(row(System::AclInit), "5,SYSTEM,ACL_INIT,N/A,1000,12,34,N/A,N/A,,,\n");
        assert_eq!(row(System::AclFinalize), "5,SYSTEM,ACL_FINI,N/A,1000,12,34,N/A,N/A,,,\n");
    }

    /// Kinds that only analyses look at have no row.
    #[test]
    fn other_kinds_have_no_row() {
        let kinds = [
            EventKind::StepStart { step: 1 },
            EventKind::StepEnd { step: 1 },
            EventKind::ProcessEnd,
            EventKind::UnknownFree(UnknownFree {
                pool: Pool::Hal,
                addr: 1,
                size_bytes: None,
                maybe_older: false,
                refused: false,
            }),
            EventKind::ProbeDisabled { symbol: SymbolName::fixed(&"f") },
        ];
        for kind in kinds {
            assert_eq!(Row::of(&event(kind)), None);
        }
    }

    /// When a pool has a block back for good; a row of ours.
    #[test]
    fn block_free_row() {
        let returned = BlockReturned {
            pool: Pool::Pta,
            allocation_id: Some(9),
            addr: 0x1000,
            size_bytes: 512,
            used_bytes: 10,
            total_bytes: 2048,
            active_bytes: 20,
        };
        let expected = "5,BLOCK_FREE,PTA,N/A,1000,12,34,0,0x0000000000001000,\"{allocation_id:9,addr:0x0000000000001000,\
                        size:512,used:10,total:2048,active:20}\",,\n";
        assert_eq!(csv(&event(EventKind::BlockReturned(returned))), expected);
    }

    /// Texts made to break a reader, a terminal or a spreadsheet do neither.
    #[test]
    fn hostile_texts() {
        let cases = [
            ("a\",\"b", r#"a"",""b"#),
            ("two\nlines\r\n", r"two\nlines\r\n"),
            ("tab\there", r"tab\there"),
            (r"not\n", r"not\\n"),
            ("\x1b[31mred\x07\x7f", r"\u{1b}[31mred\u{7}\u{7f}"),
            ("\u{9b}31m", r"\u{9b}31m"),
            ("abc\u{202e}cba\u{2069}", r"abc\u{202e}cba\u{2069}"),
            ("中文，mark", "中文，mark"),
            ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
            ("+1", "'+1"),
            ("-1", "'-1"),
            ("@x", "'@x"),
            ("''=x", "'''=x"),
            ("'quoted'", "'quoted'"),
            ("a=b+c-d@e:{f}", "a=b+c-d@e:{f}"),
        ];
        for (text, cell) in cases {
            assert_eq!(csv(&event(mark(text))), mark_row(&format!("\"{cell}\"")), "{text:?}");
        }
    }

    /// Undoes the rules of the module's documentation, as a reader would.
    fn recover(text: &str) -> String {
        let formula = text.starts_with('\'') && text.trim_start_matches('\'').starts_with(['=', '+', '-', '@']);
        let mut rest = if formula { &text[1..] } else { text };
        let mut out = String::new();
        while let Some((before, escape)) = rest.split_once('\\') {
            out.push_str(before);
            let (kind, tail) = escape.split_at(1);
            rest = tail;
            match kind {
                "n" => out.push('\n'),
                "r" => out.push('\r'),
                "t" => out.push('\t'),
                "u" => {
                    let (code, tail) = rest[1..].split_once('}').expect("closed");
                    out.extend(char::from_u32(u32::from_str_radix(code, 16).expect("hex")));
                    rest = tail;
                }
                other => out.push_str(other),
            }
        }
        out + rest
    }

    proptest! {
        /// Any text can be recovered, and holds no control characters on the way.
        #[test]
        fn texts_can_be_recovered(
            head in proptest::collection::vec(proptest::sample::select(vec!['\'', '=', '+']), 0..3),
            tail in proptest::collection::vec(prop_oneof![
                any::<char>(),
                proptest::sample::select(vec!['\\', 'n', 'u', '{', '}', '\n', '\t', '"', '\u{202e}', '\x1b']),
            ], 0..20),
        ) {
            let text: String = head.into_iter().chain(tail).collect();
            let written = name_db(&text);
            prop_assert!(!written.chars().any(is_hidden));
            prop_assert_eq!(recover(&written), text);
        }

        /// A cell is one cell: quotes inside are doubled, and there is one line.
        #[test]
        fn cells_are_one_cell(text in any::<String>()) {
            let row = csv(&event(mark(&text)));
            prop_assert_eq!(row.matches('\n').count(), 1);
            let cell = row.strip_prefix("5,MSTX,Mark,\"").and_then(|rest| rest.strip_suffix("\",1000,12,34,0,N/A,,,\n"));
            prop_assert!(!cell.expect("quoted").replace("\"\"", "").contains('"'));
        }

        /// Own number writers agree with the library's.
        #[test]
        fn numbers(number in any::<u64>()) {
            let mut out = Vec::new();
            push_decimal(&mut out, number);
            out.push(b' ');
            push_address(&mut out, number);
            prop_assert_eq!(String::from_utf8(out).expect("text"), format!("{number} 0x{number:016x}"));
        }
    }
}
