//! Events as the records that a trace would have of them, in a capture.

use std::collections::HashSet;
use std::path::Path;

use anyhow::Result;
use memscope::analyses::{Analysis, Finding};
use memscope::backend::ascend::pools;
use memscope::backend::builtin;
use memscope::capture::{CaptureHeader, Note, Writer, WriterOptions, note_record};
use memscope::model::{Event, EventKind, Mark, RunEnd, Stack};
use memscope::probes::ProbeSpec;
use memscope_common::record::{CALL_TEXT_AT, CALL_VALUES_AT};
use memscope_common::stack::{FRAME_ENTRY, STACK_PYTHON};
use memscope_common::{Kind, StackEnd};

/// Records between two notes of how far the time is.
const WATERMARK_RECORDS: u64 = 1000;
/// Flag word of a driver block on device 0, asked for by a program (module `APP`).
const HAL_FLAGS: u64 = 33 << 56 | 1 << 10;
/// What `torch_npu` says of a block: kind of device (`PrivateUse1`) and its number, component, what happened to the block.
const PTA_DEVICE: [u8; 2] = [20, 0];
const PTA_ALLOC: u8 = 0;
const PTA_FREE: u8 = 1;
/// A line table (`CPython` 3.11): one entry, with all its code in the first line.
const LINES: [u8; 2] = [0xe8, 0];

/// Writes a capture.
pub(crate) struct ToCapture {
    writer: Writer,
    reported: HashSet<Stack>,
    records: u64,
}

impl ToCapture {
    pub(crate) fn create(path: &Path, start_ns: u64) -> Result<Self> {
        let header = CaptureHeader {
            start_mono_ns: start_ns,
            start_real_ns: start_ns,
            rows: builtin().map(ProbeSpec::describe).collect(),
            ..CaptureHeader::default()
        };
        let writer = Writer::create(path, &header, WriterOptions::default())?;
        Ok(Self { writer, reported: HashSet::new(), records: 0 })
    }

    fn put(&mut self, record: &[u8]) {
        self.writer.append(record).expect("room on the disk");
    }

    /// A call, with at most one text.
    fn call(&mut self, event: &Event, (kind, symbol): (Kind, &str), status: i64, values: &[u64], text: &str) {
        let python = event.stacks.python.map_or(0, |stack| self.report(event, stack));
        let mut body = status.to_le_bytes().to_vec();
        body.extend([values.len() as u8, 0, 0, 0]);
        body.extend((text.len() as u32).to_le_bytes());
        body.extend([0_u64, python].iter().flat_map(|id| id.to_le_bytes()));
        debug_assert_eq!(body.len() + 24, CALL_VALUES_AT);
        body.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        if !text.is_empty() {
            body.resize(CALL_TEXT_AT - 24, 0);
            body.extend(text.bytes());
        }
        let row = builtin().position(|row| row.symbol == symbol).expect("a built-in row") + 1;
        self.put(&record(event, kind, row as u16, &body));
        self.records += 1;
        if self.records.is_multiple_of(WATERMARK_RECORDS) {
            self.put(&note_record(event.time_ns, 0, &Note::Watermark { mono_ns: event.time_ns }));
        }
    }

    /// What a stack's id stands for, once: its id.
    fn report(&mut self, event: &Event, stack: Stack) -> u64 {
        let frames = stack.frames();
        let codes: Vec<u64> = frames.iter().map(|frame| address(frame)).collect();
        let id = codes.iter().fold(1, |id: u64, code| id.rotate_left(7) ^ code) | 1;
        if self.reported.insert(stack) {
            for (frame, code) in frames.iter().zip(&codes) {
                self.put(&code_record(event, frame, *code));
            }
            let mut body = [id, 1].iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
            body.extend((codes.len() as u16).to_le_bytes());
            body.extend([StackEnd::Root as u8, STACK_PYTHON, 0, 0, 0, 0]);
            for code in codes {
                body.extend((code | FRAME_ENTRY).to_le_bytes());
                body.extend([0_u8, 0, 0, 0, 1, 0, 0, 0]);
            }
            self.put(&record(event, Kind::Stack, 0, &body));
        }
        id
    }
}

impl Analysis for ToCapture {
    fn observe(&mut self, event: &Event) {
        let pta = |what: u8| u64::from_le_bytes([PTA_DEVICE[0], PTA_DEVICE[1], 0, what, 0, 0, 0, 0]);
        match &event.kind {
            EventKind::Alloc(alloc) if alloc.block.pool == pools::HAL => {
                let values = [alloc.block.addr, alloc.block.size_bytes, HAL_FLAGS];
                self.call(event, (Kind::Return, "halMemAlloc"), 0, &values, "");
            }
            EventKind::Alloc(alloc) => {
                let (block, used) = (&alloc.block, alloc.used_bytes);
                let total = alloc.total_bytes.unwrap_or_default();
                let values = [pta(PTA_ALLOC), block.addr, block.size_bytes, used, total, used, 0];
                self.call(event, (Kind::Enter, "reportMemoryDataToNpuProfiler"), 0, &values, "");
            }
            // Blocks that are live at the end have no call.
            EventKind::Free(free) if !free.cause.gave_back() => {}
            EventKind::Free(free) if free.block.pool == pools::HAL => {
                self.call(event, (Kind::Enter, "halMemFree"), 0, &[free.block.addr], "");
            }
            EventKind::Free(free) => {
                let (block, used) = (&free.block, free.used_bytes);
                let (size, total) = (block.size_bytes.wrapping_neg(), free.total_bytes.unwrap_or_default());
                let values = [pta(PTA_FREE), block.addr, size, used, total, used, 0];
                self.call(event, (Kind::Enter, "reportMemoryDataToNpuProfiler"), 0, &values, "");
            }
            EventKind::Mark(Mark::RangeStart { text, range_id }) => {
                let text = text.as_deref().unwrap_or_default();
                self.call(event, (Kind::Enter, "mstxRangeStartA"), 0, &[], text);
                self.call(event, (Kind::Return, "mstxRangeStartA"), *range_id as i64, &[], "");
            }
            EventKind::Mark(Mark::RangeEnd { passed_id, .. }) => {
                self.call(event, (Kind::Enter, "mstxRangeEnd"), 0, &[*passed_id], "");
            }
            _ => {}
        }
    }

    fn finish(&mut self, end: &RunEnd) -> Vec<Finding> {
        self.put(&note_record(end.time_ns, 0, &Note::End { reason: "done".to_owned() }));
        self.writer.flush().expect("room on the disk");
        Vec::new()
    }
}

fn record(event: &Event, kind: Kind, row: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = event.time_ns.to_le_bytes().to_vec();
    bytes.extend([event.pid, event.tid].iter().flat_map(|number| number.to_le_bytes()));
    bytes.extend([kind as u16, row, 24 + body.len() as u16, 0].iter().flat_map(|number| number.to_le_bytes()));
    bytes.extend(body);
    bytes
}

/// The code object of a frame such as `file.py(12): name`.
fn code_record(event: &Event, frame: &str, address: u64) -> Vec<u8> {
    let (place, name) = frame.split_once("): ").expect("a frame of Python");
    let (file, line) = place.split_once('(').expect("a frame of Python");
    let line: u32 = line.parse().expect("a line");
    let mut body = address.to_le_bytes().to_vec();
    body.extend([1, line].iter().flat_map(|number| number.to_le_bytes()));
    body.extend([11, 1, 1, 0]);
    let lengths = [name.len(), file.len(), LINES.len()];
    body.extend(lengths.iter().flat_map(|length| (*length as u16).to_le_bytes()));
    body.extend([0; 6]);
    body.extend([name.as_bytes(), file.as_bytes(), &LINES].concat());
    record(event, Kind::Code, 0, &body)
}

/// A made-up address of a frame's code, the same each time (FNV-1a).
fn address(frame: &str) -> u64 {
    let hash = frame
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    hash >> 20 << 4
}
