//! Tables of a run for engines that read Parquet: `DuckDB`, Polars, Spark, `PyArrow`.
//!
//! Layers nest, so sums are of one `layer` alone. Stacks are numbers within their folder; across folders, compare frames.

mod stacks;
#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    fs::File,
    io,
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender},
    },
};

use self::stacks::StackTable;
use crate::{
    analyses::{Finding, Named, Observer, decompose::RuleSet},
    hash::HashMap,
    model::{Alloc, Block, Device, Event, EventKind, Free, FreeCause, OutOfMemory, Pool, RunEnd},
    parquet_table::{Cell, Form, Table},
};

/// Frees whose blocks can still come back: the driver refuses a free right behind it.
const MAX_PENDING: usize = 4096;

const EVENTS: Form = Form {
    schema: "message events {
        REQUIRED INT64 time (TIMESTAMP(NANOS,true));
        REQUIRED INT32 pid (INTEGER(32,false));
        OPTIONAL INT32 device_id;
        REQUIRED BYTE_ARRAY kind (STRING);
        OPTIONAL BYTE_ARRAY layer (STRING);
        OPTIONAL INT64 allocation_id (INTEGER(64,false));
        OPTIONAL INT64 addr (INTEGER(64,false));
        OPTIONAL INT64 size_bytes (INTEGER(64,false));
        OPTIONAL INT64 used_bytes (INTEGER(64,false));
        OPTIONAL INT32 python_stack (INTEGER(32,false));
        OPTIONAL INT32 native_stack (INTEGER(32,false));
        REQUIRED INT32 tid (INTEGER(32,false));
        REQUIRED INT32 step (INTEGER(32,false));
    }",
    sorted_by: &[0],
    delta: &["time", "allocation_id"],
};
const BLOCKS: Form = Form {
    schema: "message blocks {
        REQUIRED INT32 pid (INTEGER(32,false));
        OPTIONAL INT32 device_id;
        REQUIRED BYTE_ARRAY layer (STRING);
        REQUIRED INT64 allocation_id (INTEGER(64,false));
        REQUIRED INT64 addr (INTEGER(64,false));
        REQUIRED INT64 size_bytes (INTEGER(64,false));
        OPTIONAL INT64 requested_bytes (INTEGER(64,false));
        REQUIRED INT64 alloc_time (TIMESTAMP(NANOS,true));
        OPTIONAL INT64 free_time (TIMESTAMP(NANOS,true));
        OPTIONAL BYTE_ARRAY owner (STRING);
        OPTIONAL INT32 python_stack (INTEGER(32,false));
        OPTIONAL INT32 native_stack (INTEGER(32,false));
        REQUIRED INT32 tid (INTEGER(32,false));
        REQUIRED INT32 step (INTEGER(32,false));
    }",
    sorted_by: &[],
    delta: &["allocation_id", "alloc_time", "free_time"],
};
const FINDINGS: Form = Form {
    schema: "message findings {
        REQUIRED BYTE_ARRAY finding (STRING);
        OPTIONAL INT32 pid (INTEGER(32,false));
        REQUIRED BYTE_ARRAY json (JSON);
    }",
    sorted_by: &[],
    delta: &[],
};

/// The open files of the tables.
#[derive(Debug)]
pub struct Files {
    /// Allocations, frees, failed requests, steps.
    pub events: File,
    /// Blocks with both their times.
    pub blocks: File,
    /// Python's call stacks.
    pub python: File,
    /// Native call stacks.
    pub native: File,
}

/// Names of the files in a folder.
pub const NAMES: [&str; 5] =
    ["events.parquet", "blocks.parquet", "stacks_python.parquet", "stacks_native.parquet", "findings.parquet"];

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Rows of `events`.
    pub events: u64,
    /// Rows of `blocks`.
    pub blocks: u64,
}

/// An observer, and the receiver of its result when the run has ended.
pub type Observed = (Box<dyn Observer>, Receiver<io::Result<Written>>);

/// An observer that writes the tables, with final owners of blocks by these rules. `about` is kept in each file.
///
/// # Errors
/// The files cannot be written.
pub fn observer(files: Files, rules: Arc<RuleSet>, about: &[(String, String)]) -> io::Result<Observed> {
    let (out, result) = mpsc::channel();
    let tables = Tables {
        events: Table::new(files.events, &EVENTS, about)?,
        blocks: Table::new(files.blocks, &BLOCKS, about)?,
        python: StackTable::new(files.python, about)?,
        native: StackTable::new(files.native, about)?,
        steps: HashMap::default(),
        pending: VecDeque::new(),
    };
    Ok((Box::new(Named::new(rules, Writing { tables: Some(tables), failed: None, out })), result))
}

/// Writes the table of findings: what each is, and its JSON.
///
/// # Errors
/// The file cannot be written.
pub fn write_findings(file: File, findings: &[Finding], about: &[(String, String)]) -> io::Result<()> {
    let mut table = Table::new(file, &FINDINGS, about)?;
    for finding in findings {
        let json = serde_json::to_value(finding).map_err(io::Error::other)?;
        let pid = json["pid"].as_u64();
        let name = json["finding"].as_str().unwrap_or_default();
        table.row([Cell::Text(name), Cell::optional(pid), Cell::Text(&json.to_string())])?;
    }
    table.finish().map(drop)
}

/// The tables until one cannot be written.
struct Writing {
    tables: Option<Tables>,
    failed: Option<io::Error>,
    out: Sender<io::Result<Written>>,
}

struct Tables {
    events: Table,
    blocks: Table,
    python: StackTable,
    native: StackTable,
    steps: HashMap<(u32, Device), u32>,
    /// Blocks that were freed, in the order of their frees.
    pending: VecDeque<(u32, Free, Option<u64>)>,
}

impl Observer for Writing {
    fn observe(&mut self, event: &Event) {
        let Some(tables) = &mut self.tables else { return };
        if let Err(error) = tables.take(event) {
            self.tables = None;
            self.failed = Some(error);
        }
    }

    fn finish(&mut self, end: &RunEnd) {
        let written = match (self.tables.take(), self.failed.take()) {
            (Some(tables), _) => tables.finish(end),
            (None, error) => Err(error.unwrap_or_else(|| io::Error::other("finished twice"))),
        };
        // The receiver may be gone.
        let _ = self.out.send(written);
    }
}

impl Tables {
    fn take(&mut self, event: &Event) -> io::Result<()> {
        match &event.kind {
            EventKind::Alloc(alloc) => self.allocated(event, alloc),
            EventKind::Free(free) => self.freed(event, free),
            EventKind::OutOfMemory(OutOfMemory::Trigger(failed)) => {
                let size = Some(failed.size_bytes);
                self.event(event, "out_of_memory", Row { size_bytes: size, ..Row::of(failed.pool) })
            }
            EventKind::StepStart { step } => {
                self.steps.insert((event.pid, event.device), *step);
                self.event(event, "step_start", Row::default())
            }
            EventKind::StepEnd { .. } => self.event(event, "step_end", Row::default()),
            EventKind::ProcessEnd => {
                self.steps.retain(|(pid, _), _| *pid != event.pid);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn allocated(&mut self, event: &Event, alloc: &Alloc) -> io::Result<()> {
        let is_call = alloc.is_call();
        let is_it = |(pid, free, _): &(u32, Free, _)| {
            *pid == event.pid && free.block.allocation_id == alloc.block.allocation_id
        };
        // Its free was refused: the block goes on.
        if let Some(at) = (!is_call).then(|| self.pending.iter().position(is_it)).flatten() {
            self.pending.remove(at);
        }
        self.event(event, if is_call { "alloc" } else { "restored" }, Row::block(&alloc.block, alloc.used_bytes))
    }

    fn freed(&mut self, event: &Event, free: &Free) -> io::Result<()> {
        let gave_back = free.cause.gave_back() || free.cause == FreeCause::Exit;
        if gave_back {
            self.event(event, "free", Row::block(&free.block, free.used_bytes))?;
        }
        let time_ns = gave_back.then_some(event.time_ns);
        self.pending.push_back((event.pid, *free, time_ns));
        if self.pending.len() > MAX_PENDING { self.oldest_pending() } else { Ok(()) }
    }

    fn oldest_pending(&mut self) -> io::Result<()> {
        let Some((pid, free, free_time_ns)) = self.pending.pop_front() else { return Ok(()) };
        let block = &free.block;
        let [python, native] =
            [self.python.number(block.stacks.python)?, self.native.number(block.stacks.native_or_mixed())?];
        let owner = free.owner.or(block.owner);
        self.blocks.row([
            Cell::unsigned(pid.into()),
            device(block.device),
            Cell::Text(block.pool.event_type()),
            Cell::unsigned(block.allocation_id),
            Cell::unsigned(block.addr),
            Cell::unsigned(block.size_bytes),
            Cell::optional(block.requested_bytes),
            Cell::unsigned(block.alloc_time_ns),
            Cell::optional(free_time_ns),
            owner.map_or(Cell::Null, |owner| Cell::Text(owner.as_str())),
            Cell::optional(python),
            Cell::optional(native),
            Cell::unsigned(block.tid.into()),
            Cell::unsigned(block.step.into()),
        ])
    }

    fn event(&mut self, event: &Event, kind: &str, row: Row) -> io::Result<()> {
        let step = self.steps.get(&(event.pid, event.device)).copied().unwrap_or(0);
        let stacks = event.stacks;
        let [python, native] = [self.python.number(stacks.python)?, self.native.number(stacks.native_or_mixed())?];
        self.events.row([
            Cell::unsigned(event.time_ns),
            Cell::unsigned(event.pid.into()),
            device(row.device.unwrap_or(event.device)),
            Cell::Text(kind),
            row.layer.map_or(Cell::Null, |layer| Cell::Text(layer.event_type())),
            Cell::optional(row.allocation_id),
            Cell::optional(row.addr),
            Cell::optional(row.size_bytes),
            Cell::optional(row.used_bytes),
            Cell::optional(python),
            Cell::optional(native),
            Cell::unsigned(event.tid.into()),
            Cell::unsigned(step.into()),
        ])
    }

    fn finish(mut self, end: &RunEnd) -> io::Result<Written> {
        while !self.pending.is_empty() {
            self.oldest_pending()?;
        }
        for table in [&mut self.events, &mut self.blocks] {
            table.note("memscope.lost", end.lost);
        }
        self.python.finish()?;
        self.native.finish()?;
        Ok(Written { events: self.events.finish()?, blocks: self.blocks.finish()? })
    }
}

/// Cells of an event that not every kind has.
#[derive(Clone, Copy, Default)]
struct Row {
    device: Option<Device>,
    layer: Option<Pool>,
    allocation_id: Option<u64>,
    addr: Option<u64>,
    size_bytes: Option<u64>,
    used_bytes: Option<u64>,
}

impl Row {
    fn of(layer: Pool) -> Self {
        Self { layer: Some(layer), ..Self::default() }
    }

    fn block(block: &Block, used_bytes: u64) -> Self {
        Self {
            device: Some(block.device),
            allocation_id: Some(block.allocation_id),
            addr: Some(block.addr),
            size_bytes: Some(block.size_bytes),
            used_bytes: Some(used_bytes),
            ..Self::of(block.pool)
        }
    }
}

/// Host memory has no number.
const fn device(device: Device) -> Cell<'static> {
    match device {
        Device::Npu(number) => Cell::Number(number as i64),
        Device::Cpu | Device::None => Cell::Null,
    }
}
