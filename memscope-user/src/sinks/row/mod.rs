//! The cells of a row, and their spelling (contract §3, §6.1, §6.2).
//!
//! A [`Row`] borrows from its event and is written straight into a buffer: nothing is allocated per row.

mod attr;
mod name;
#[cfg(test)]
mod tests;

pub use self::{
    attr::{Attr, Value},
    name::Name,
};
pub use crate::dump_format::COLUMNS;

use crate::dump_format::number::{push_address, push_decimal};
use crate::dump_format::stack_cell;
use crate::model::{
    Access, AccessKind, AtbOp, Block, BlockReturned, Device, Event, EventKind, Launch, Mark, Op, OpPhase, OutOfMemory,
    Snapshot, Stack, Stacks, System,
};

const NOT_AVAILABLE: &str = "N/A";

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
    /// The row of an event; `None` for kinds without one.
    #[must_use]
    pub fn of(event: &'a Event) -> Option<Self> {
        let row = Self::blank(event);
        match &event.kind {
            EventKind::Alloc(alloc) => Some(row.block("MALLOC", &alloc.block, &Attr::of_alloc(alloc))),
            EventKind::Free(free) => Some(Self {
                time_ns: free.row_time_ns.unwrap_or(row.time_ns),
                ..row.block("FREE", &free.block, &Attr::of_free(free))
            }),
            EventKind::Launch(launch) => Some(row.launch(launch)),
            EventKind::Op(op) => Some(row.op(op)),
            EventKind::Access(access) => Some(row.access(access)),
            EventKind::AtbOp(op) => Some(row.atb_op(op)),
            EventKind::Mark(mark) => Some(row.mark(mark)),
            // Ours alone: msMemScope does not record them.
            EventKind::DomainMark { domain, mark } => {
                let attr = Attr::of([("domain", Value::Word(domain.as_str()))]);
                Some(Self { attr, ..row.mark(mark) })
            }
            EventKind::System(system) => row.system(system),
            EventKind::Step { step } => {
                Some(Self { event: "SYSTEM", event_type: "STEP", name: Name::Number(u64::from(*step)), ..row })
            }
            EventKind::Snapshot(snapshot) => Some(row.snapshot(snapshot)),
            EventKind::BlockReturned(returned) => Some(row.returned(returned)),
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
            | EventKind::Settings(_)
            | EventKind::Looked(_)
            | EventKind::PoolRefused(_)
            | EventKind::CacheEmptied
            | EventKind::StreamUse(_)
            | EventKind::UsesLeftOut
            | EventKind::DeviceMemory(_)
            | EventKind::PoolSet(_)
            | EventKind::Graph(_)
            | EventKind::OwnPool(_)
            | EventKind::PoolsLeftOut
            | EventKind::ProcessEnd => None,
        }
    }

    fn snapshot(self, snapshot: &'a Snapshot) -> Self {
        let (name, attr) = (Name::Plain(&snapshot.name), Attr::of_snapshot(snapshot));
        Self { event: "SNAPSHOT", event_type: "SNAPSHOT", name, attr, ..self }
    }

    fn returned(self, returned: &BlockReturned) -> Self {
        let (event_type, attr) = (returned.pool.event_type(), Attr::of_returned(returned));
        Self { event: "BLOCK_FREE", event_type, ptr: Some(returned.addr), attr, ..self }
    }

    fn launch(self, launch: &'a Launch) -> Self {
        Self {
            event: "KERNEL_LAUNCH",
            event_type: "KERNEL_LAUNCH",
            name: if launch.name.is_empty() { Name::None } else { Name::Plain(&launch.name) },
            attr: Attr::of_launch(launch),
            ..self
        }
    }

    fn op(self, op: &'a Op) -> Self {
        let event_type = match op.phase {
            OpPhase::Start => "ATEN_START",
            OpPhase::End => "ATEN_END",
            OpPhase::Submit => "NPU_SUBMIT",
        };
        Self { event: "OP_LAUNCH", event_type, name: Name::Plain(&op.name), ..self }
    }

    fn access(self, access: &'a Access) -> Self {
        Self {
            event: "ACCESS",
            event_type: match access.kind {
                AccessKind::Read => "READ",
                AccessKind::Write => "WRITE",
                AccessKind::Unknown => "UNKNOWN",
            },
            name: Name::Plain(&access.op),
            ptr: Some(access.addr),
            attr: Attr::of_access(access),
            ..self
        }
    }

    fn atb_op(self, op: &'a AtbOp) -> Self {
        Self {
            event: "OP_LAUNCH",
            event_type: if op.begins { "ATB_START" } else { "ATB_END" },
            name: if op.name.is_empty() { Name::None } else { Name::Plain(&op.name) },
            // The path is only set while ATB saves tensors.
            attr: Attr::of([
                ("path", Value::Word(NOT_AVAILABLE)),
                ("workspace_ptr", Value::Address(op.workspace_addr)),
                ("workspace_size", Value::Number(op.workspace_bytes)),
            ]),
            ..self
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

    fn system(self, system: &System) -> Option<Self> {
        let event_type = match system {
            System::AclInit => "ACL_INIT",
            System::AclFinalize => "ACL_FINI",
            System::TraceStart { .. } => "START_TRACE",
            System::TraceStop => "STOP_TRACE",
            // Ours alone.
            System::Exit | System::PythonEnds => return None,
        };
        let attr = match system {
            System::TraceStart { free_and_total_bytes: Some((free, total)) } => {
                Attr::of([("free", Value::Number(*free)), ("total", Value::Number(*total))])
            }
            _ => Attr::EMPTY,
        };
        Some(Self { event: "SYSTEM", event_type, attr, ..self })
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
        self.write_csv_with(out, |out, stack| stack_cell::write(out, stack, true));
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
