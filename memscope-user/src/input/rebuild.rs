//! Turns rows into the events that the pipeline would have made of the same program.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Notes;
use crate::backend::Backend;
use crate::dump_format::row::{DumpRow, Kind};
use crate::hash::HashMap;
use crate::model::{
    Access, Alloc, AllocApi, AllocFailed, Asked, AtbOp, Block, BlockReturned, Device, DriverFigures, Event, EventKind,
    Free, FreeCause, Launch, Mark, Name, Op, Pool, Stacks, System, UnknownFree,
};
use crate::pipeline::steps::{STEP_START, Steps};

/// Most live blocks of one process.
const MAX_LIVE: usize = 16 << 20;
/// Most blocks of one process with a free that may have failed, and most open ranges.
const MAX_REMEMBERED: usize = 64 << 10;
/// A made-up free that an allocation of the same address follows within this time is of a replaced block; a program that
/// executes another one takes longer.
const SAME_MOMENT_NS: u64 = 100_000;
/// Numbers from here on are no tool's.
const FIRST_RENUMBERED: u64 = 1 << 63;
const MAX_DIMENSIONS: usize = 64;

/// A made-up free: the next row of the process shows its cause.
#[derive(Clone, Debug)]
struct MadeUp {
    allocation_id: u64,
    time_ns: u64,
    row: DumpRow,
}

/// Key of a block, as in msMemScope (contract §7.1): pool, device, whether the address is a handle, and address.
type Key = (Pool, Device, bool, u64);

/// One process of a dump.
#[derive(Debug, Default)]
struct Process {
    /// Live blocks by number.
    live: BTreeMap<u64, Block>,
    by_addr: HashMap<Key, u64>,
    used: HashMap<(Pool, Device), u64>,
    freed: HashMap<u64, Block>,
    made_up: Option<MadeUp>,
    steps: Steps,
    /// Steps are marked by calls of `step()`, not by ranges: by the kind that marked the first one.
    called_steps: Option<bool>,
    step_calls: u32,
    /// Number of ranges that have begun.
    ranges: u64,
    open_ranges: BTreeSet<u64>,
    launches: u64,
    /// Largest number of a block so far; blocks without one get higher ones.
    numbered: u64,
    /// Blocks that got a new number, since another live block has theirs.
    renumbered: u64,
    failures: u64,
    devices: Vec<Device>,
    last: (u64, u64),
}

/// Makes events of rows that come in order.
#[derive(Debug, Default)]
pub(super) struct Rebuild {
    processes: BTreeMap<u32, Process>,
    names: HashMap<String, Arc<str>>,
    time_ns: u64,
}

impl Rebuild {
    /// Takes a row; gives its events to `out`.
    pub(super) fn row(&mut self, row: DumpRow, notes: &mut Notes, out: &mut dyn FnMut(&Event)) {
        self.time_ns = self.time_ns.max(row.time_ns);
        let time_ns = self.time_ns;
        let process = self.processes.entry(row.pid).or_default();
        process.last = (row.id, time_ns);
        if let Some(made_up) = process.made_up.take() {
            let replaced = row.ptr == made_up.row.ptr
                && time_ns - made_up.time_ns < SAME_MOMENT_NS
                && matches!(row.kind, Kind::Malloc(pool) if is_one_space(pool, pool_of(&made_up.row)));
            process.end_made_up(&made_up, replaced.then_some(&row), out);
        }
        if row.device != Device::None && matches!(row.kind, Kind::Malloc(_)) && !process.devices.contains(&row.device) {
            process.devices.push(row.device);
            process.devices.sort_unstable();
        }
        match row.kind {
            Kind::Malloc(pool) => process.malloc(&row, pool, time_ns, notes, out),
            Kind::Free(pool) => process.free(row, pool, time_ns, notes, out),
            kind => {
                let given = &row.texts().name;
                let name = self.names.get(given).cloned().unwrap_or_else(|| {
                    let name: Arc<str> = given.as_str().into();
                    if self.names.len() < MAX_REMEMBERED {
                        self.names.insert(given.clone(), Arc::clone(&name));
                    }
                    name
                });
                process.other(&row, kind, name, time_ns, out);
            }
        }
    }

    /// Ends all processes: live blocks have been held to the end.
    pub(super) fn finish(&mut self, out: &mut dyn FnMut(&Event)) {
        for (pid, mut process) in std::mem::take(&mut self.processes) {
            if let Some(made_up) = process.made_up.take() {
                process.end_made_up(&made_up, None, out);
            }
            let (mut id, time_ns) = process.last;
            for number in process.live.keys().copied().collect::<Vec<_>>() {
                id = id.saturating_add(1);
                let Some(block) = process.take(number) else { continue };
                let (used_bytes, cause) = (process.used_by(&block), FreeCause::TraceEnd);
                let free = Free {
                    block,
                    used_bytes,
                    total_bytes: None,
                    driver: DriverFigures::default(),
                    cause,
                    owner: None,
                    row_time_ns: None,
                    without_row: true,
                };
                let device = block.device;
                let (time_ns, stacks) = (time_ns.max(self.time_ns), Stacks::default());
                out(&Event { id, time_ns, pid, tid: pid, device, stacks, kind: EventKind::Free(free) });
            }
            let (id, time_ns, device) = (id.saturating_add(1), time_ns.max(self.time_ns), Device::None);
            let stacks = Stacks::default();
            out(&Event { id, time_ns, pid, tid: pid, device, stacks, kind: EventKind::ProcessEnd });
        }
    }
}

fn pool_of(row: &DumpRow) -> Pool {
    match row.kind {
        Kind::Malloc(pool) | Kind::Free(pool) | Kind::Returned(pool) => pool,
        _ => row.pool,
    }
}

fn emit(row: &DumpRow, time_ns: u64, device: Device, kind: EventKind, out: &mut dyn FnMut(&Event)) {
    let stacks = if row.shadow { Stacks::default() } else { row.stacks };
    out(&Event { id: row.id, time_ns, pid: row.pid, tid: row.tid, device, stacks, kind });
}

impl Process {
    fn malloc(&mut self, row: &DumpRow, pool: Pool, time_ns: u64, notes: &mut Notes, out: &mut dyn FnMut(&Event)) {
        let (addr, size_bytes) = (row.ptr.unwrap_or(0), row.size_bytes.unwrap_or(0));
        let restored = row.shadow.then(|| self.take_freed(row)).flatten();
        let key = (pool, row.device, row.api == AllocApi::Create, addr);
        let number = row.allocation_id.filter(|number| *number != 0).unwrap_or(self.numbered.saturating_add(1));
        let same_number = self.live.get(&number);
        let is_full = self.live.len() >= MAX_LIVE;
        notes.contradictions += u64::from(same_number.is_some() || is_full);
        if same_number.is_some_and(|live| key_of(live) == key) || is_full {
            return;
        }
        let number = if same_number.is_some() {
            self.renumbered += 1;
            FIRST_RENUMBERED + self.renumbered
        } else {
            self.numbered = self.numbered.max(number);
            number
        };
        if let Some(old) = self.by_addr.get(&key).copied() {
            self.emit_free(row, time_ns, old, FreeCause::Replaced, used_bytes(row), out);
        }
        let block = restored.unwrap_or(Block {
            allocation_id: number,
            pool,
            device: row.device,
            addr,
            size_bytes,
            requested_bytes: None,
            alloc_time_ns: time_ns,
            alloc_id: row.id,
            tid: row.tid,
            step: self.steps.of_device(row.device),
            kernel_index: self.launches,
            module_id: row.module_id,
            page: row.page,
            api: row.api,
            caller: None,
            stacks: row.stacks,
            owner: row.owner,
        });
        self.live.insert(number, block);
        self.by_addr.insert(key, number);
        let used = self.used.entry((pool, row.device)).or_default();
        // A pool's own figure includes memory handed out before the trace. The driver has no such figure (msMemScope
        // does not subtract replaced blocks).
        *used = used_bytes(row).unwrap_or_else(|| used.saturating_add(size_bytes));
        let alloc = Alloc {
            block,
            used_bytes: *used,
            total_bytes: row.total_bytes,
            driver: DriverFigures::default(),
            restored: restored.is_some(),
            promoted: row.shadow && restored.is_none(),
            asked: Asked::default(),
        };
        emit(row, time_ns, block.device, EventKind::Alloc(alloc), out);
    }

    fn free(&mut self, row: DumpRow, pool: Pool, time_ns: u64, notes: &mut Notes, out: &mut dyn FnMut(&Event)) {
        let Some(number) = self.find(&row, pool) else {
            if row.shadow {
                // The end of a block that ended before: msMemScope writes both.
                return;
            }
            notes.unmatched_frees += 1;
            let free = UnknownFree {
                pool,
                addr: row.ptr.unwrap_or(0),
                size_bytes: row.size_bytes,
                maybe_older: true,
                refused: false,
            };
            return emit(&row, time_ns, row.device, EventKind::UnknownFree(free), out);
        };
        if row.shadow {
            self.made_up = Some(MadeUp { allocation_id: number, time_ns, row });
            return;
        }
        let used_bytes = used_bytes(&row);
        self.emit_free(&row, time_ns, number, FreeCause::Program, used_bytes, out);
    }

    /// The live block of a free: one that starts at its address, on its device. An address inside of a block frees
    /// nothing, neither in a running program nor in msMemScope, where such a row leaves the block live.
    fn find(&self, row: &DumpRow, pool: Pool) -> Option<u64> {
        // msMemScope calls workspaces PTA; only the owner on their MALLOC row distinguishes them.
        let is_pool = |block: &Block| block.pool == pool || block.pool.also_written() == Some(pool.event_type());
        let is_device =
            |block: &Block| row.device == Device::None || [row.device, Device::None].contains(&block.device);
        let is_of = |number: &u64| {
            self.live.get(number).is_some_and(|block| is_pool(block) && is_device(block) && row.ptr == Some(block.addr))
        };
        if let Some(number) = row.allocation_id.filter(is_of) {
            return Some(number);
        }
        // A dump without numbers, or one of a tool that gives frees numbers of their own.
        let addr = row.ptr?;
        if row.allocation_id.is_some_and(|number| number != 0) && row.shadow {
            return None;
        }
        let any = [Device::None, Device::Cpu].into_iter().chain(self.devices.iter().copied());
        let devices: Vec<Device> = if row.device == Device::None { any.collect() } else { vec![row.device] };
        let mut keys = devices.iter().flat_map(|device| [(pool, *device, true, addr), (pool, *device, false, addr)]);
        keys.find_map(|key| self.by_addr.get(&key)).copied()
    }

    /// The block whose free had failed.
    fn take_freed(&mut self, row: &DumpRow) -> Option<Block> {
        let number = row.allocation_id?;
        let is_it =
            self.freed.get(&number).is_some_and(|block| (block.device, Some(block.addr)) == (row.device, row.ptr));
        if is_it { self.freed.remove(&number) } else { None }
    }

    /// `successor` is the allocation that the block was replaced by.
    fn end_made_up(&mut self, made_up: &MadeUp, successor: Option<&DumpRow>, out: &mut dyn FnMut(&Event)) {
        let cause = if successor.is_some() { FreeCause::Replaced } else { FreeCause::ProcessEnd };
        let used = successor.and_then(used_bytes);
        self.emit_free(&made_up.row, made_up.time_ns, made_up.allocation_id, cause, used, out);
    }

    fn emit_free(
        &mut self,
        row: &DumpRow,
        time_ns: u64,
        number: u64,
        cause: FreeCause,
        used_bytes: Option<u64>,
        out: &mut dyn FnMut(&Event),
    ) {
        let Some(block) = self.take(number) else { return };
        if let Some(used_bytes) = used_bytes {
            self.used.insert((block.pool, block.device), used_bytes);
        }
        if cause == FreeCause::Program && self.freed.len() < MAX_REMEMBERED {
            self.freed.insert(number, block);
        }
        let free = Free {
            block,
            used_bytes: self.used_by(&block),
            total_bytes: row.total_bytes,
            driver: DriverFigures::default(),
            cause,
            owner: row.owner,
            row_time_ns: None,
            // The row is of another block's allocation.
            without_row: matches!(row.kind, Kind::Malloc(_)),
        };
        emit(row, time_ns, block.device, EventKind::Free(free), out);
    }

    fn take(&mut self, number: u64) -> Option<Block> {
        let block = self.live.remove(&number)?;
        let Block { pool, device, size_bytes, .. } = block;
        let key = key_of(&block);
        if self.by_addr.get(&key) == Some(&number) {
            self.by_addr.remove(&key);
        }
        let used = self.used.entry((pool, device)).or_default();
        *used = used.saturating_sub(size_bytes);
        Some(block)
    }

    fn used_by(&self, block: &Block) -> u64 {
        self.used.get(&(block.pool, block.device)).copied().unwrap_or(0)
    }

    fn other(&mut self, row: &DumpRow, kind: Kind, name: Arc<str>, time_ns: u64, out: &mut dyn FnMut(&Event)) {
        let given = (!name.is_empty()).then(|| Arc::clone(&name));
        let event = match kind {
            Kind::Malloc(_) | Kind::Free(_) => return,
            Kind::Returned(pool) => EventKind::BlockReturned(BlockReturned {
                pool,
                allocation_id: row.allocation_id.filter(|number| *number != 0),
                addr: row.ptr.unwrap_or(0),
                size_bytes: row.size_bytes.unwrap_or(0),
                used_bytes: row.used_bytes.unwrap_or(0),
                total_bytes: row.total_bytes.unwrap_or(0),
                active_bytes: row.number.unwrap_or(0),
            }),
            Kind::Access(access) => EventKind::Access(Access {
                kind: access,
                op: name,
                allocation_id: row.allocation_id.unwrap_or(0),
                pool: row.pool,
                addr: row.ptr.unwrap_or(0),
                size_bytes: row.size_bytes.unwrap_or(0),
                dtype: Name::keep(&row.texts().word).as_str(),
                format: (!row.texts().format.is_empty()).then(|| Name::keep(&row.texts().format).as_str()),
                shape: shape(&row.texts().shape),
            }),
            Kind::Op(phase) => EventKind::Op(Op { phase, name }),
            Kind::AtbOp(begins) => EventKind::AtbOp(AtbOp {
                begins,
                name,
                workspace_addr: row.ptr.unwrap_or(0),
                workspace_bytes: row.size_bytes.unwrap_or(0),
            }),
            Kind::Launch => {
                self.launches += 1;
                let stream = row.number.unwrap_or(0);
                EventKind::Launch(Launch { name, stream, stream_id: row.number.map(|id| id as i64) })
            }
            Kind::Mark => mark(row, Mark::Point { text: given }),
            Kind::RangeStart => return self.range_start(row, given, time_ns, out),
            Kind::RangeEnd => return self.range_end(row, &name, time_ns, out),
            Kind::Step => return self.step(row, time_ns, out),
            Kind::AclInit => EventKind::System(System::AclInit),
            Kind::AclFinalize => EventKind::System(System::AclFinalize),
            Kind::OutOfMemory => {
                self.failures += 1;
                EventKind::AllocFailed(AllocFailed {
                    pool: <&dyn Backend>::default().driver_pool(),
                    size_bytes: row.size_bytes.unwrap_or(0),
                    status: 0,
                    flags: row.number.unwrap_or(0),
                    caller: (!row.texts().word.is_empty()).then(|| Name::keep(&row.texts().word)),
                    out_of_memory: true,
                    request: self.failures,
                    attempt: 1,
                })
            }
        };
        emit(row, time_ns, row.device, event, out);
    }

    fn range_start(&mut self, row: &DumpRow, text: Option<Arc<str>>, time_ns: u64, out: &mut dyn FnMut(&Event)) {
        // Both tools number the ranges of a process from 1.
        self.ranges += 1;
        let range_id = self.ranges;
        if self.open_ranges.len() >= MAX_REMEMBERED {
            self.open_ranges.pop_first();
        }
        self.open_ranges.insert(range_id);
        // No range of a domain is a step.
        let is_step = row.texts().word.is_empty()
            && text.as_deref() == Some(STEP_START)
            && !*self.called_steps.get_or_insert(false);
        emit(row, time_ns, row.device, mark(row, Mark::RangeStart { text, range_id }), out);
        if is_step {
            let devices = if row.device == Device::None { self.devices.clone() } else { vec![row.device] };
            let step = self.steps.start(range_id, row.device, devices.clone());
            for device in devices {
                emit(row, time_ns, device, EventKind::StepStart { step }, out);
            }
        }
    }

    /// A range's end is matched by its number.
    fn range_end(&mut self, row: &DumpRow, name: &str, time_ns: u64, out: &mut dyn FnMut(&Event)) {
        let number = name.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0);
        let range_id = Some(number).filter(|range| self.open_ranges.remove(range));
        emit(row, time_ns, row.device, mark(row, Mark::RangeEnd { range_id, passed_id: number }), out);
        let Some(range) = range_id else { return };
        let Some(open) = self.steps.of_range(range) else { return };
        let mut devices = open.devices;
        if open.device == Device::None {
            devices.extend(&self.devices);
            devices.sort_unstable();
            devices.dedup();
        }
        for device in devices {
            emit(row, time_ns, device, EventKind::StepEnd { step: open.step }, out);
        }
        self.steps.end(range);
    }

    /// Call *k* of `step()` ends step *k* and begins the next. The start of the first one is unknown.
    fn step(&mut self, row: &DumpRow, time_ns: u64, out: &mut dyn FnMut(&Event)) {
        if !*self.called_steps.get_or_insert(true) {
            return;
        }
        let devices = if row.device == Device::None { self.devices.clone() } else { vec![row.device] };
        self.step_calls += 1;
        if self.step_calls == 1 {
            self.steps.start(0, row.device, Vec::new());
        }
        let step = self.steps.start(0, row.device, Vec::new());
        for device in &devices {
            emit(row, time_ns, *device, EventKind::StepEnd { step: self.step_calls }, out);
        }
        for device in devices {
            emit(row, time_ns, device, EventKind::StepStart { step }, out);
        }
    }
}

const fn key_of(block: &Block) -> Key {
    (block.pool, block.device, matches!(block.api, AllocApi::Create), block.addr)
}

/// A mark, or one of a domain.
fn mark(row: &DumpRow, mark: Mark) -> EventKind {
    match row.texts().word.as_str() {
        "" => EventKind::Mark(mark),
        domain => EventKind::DomainMark { domain: Name::keep(domain), mark },
    }
}

/// Whether an address of one pool cannot be live in the other. The driver hands out host memory, too.
fn is_one_space(one: Pool, other: Pool) -> bool {
    one == other || [one, other].iter().all(|pool| pool.is_base())
}

/// A pool's own figure of used bytes, if it is taken.
fn used_bytes(row: &DumpRow) -> Option<u64> {
    row.used_bytes.filter(|_| !pool_of(row).is_base())
}

/// `torch.Size([2, 3])` or `[1,5,]`.
fn shape(text: &str) -> Arc<[i64]> {
    let inner = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or("", |(inner, _)| inner);
    inner.split(',').filter_map(|size| size.trim().parse().ok()).take(MAX_DIMENSIONS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_of_both_spellings() {
        assert_eq!(&*shape("torch.Size([2, 3])"), [2, 3]);
        assert_eq!(&*shape("[1,5,]"), [1, 5]);
        assert_eq!(&*shape("torch.Size([])"), [0_i64; 0]);
        assert_eq!(&*shape("x"), [0_i64; 0]);
    }
}
