//! mstx: marks, ranges and steps of the user, domains, and blocks of pools that their users report.

mod names;

use std::sync::Arc;

use self::names::{Names, Reference};
use super::super::blocks::Key;
use super::super::rows::{RawCall, Unusable};
use super::super::steps::{OpenStep, Ranges, STEP_START};
use super::super::turn::Turn;
use super::failing::Failing;
use super::pools::{PoolReport, Pools};
use super::{Interpreted, torch};
use crate::backend::PoolChange;
use crate::decode::Phase;
use crate::model::{Device, EventKind, Figures, Mark, Name};
use crate::probes::{Field, MstxCall};

/// A domain without a known name.
const UNKNOWN: Name = Name::fixed(&"unknown");

/// A domain of the user's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pipeline) enum Domain {
    /// The handle in a call.
    Handle(u64),
    /// The name in a dump's row.
    Named(Name),
}

impl Domain {
    /// Its handle; ranges of rows have numbers, and need none.
    const fn handle(self) -> Option<u64> {
        match self {
            Self::Handle(handle) => Some(handle),
            Self::Named(_) => None,
        }
    }
}

/// The effect of a call of mstx. `domain`: if the call is of one.
#[derive(Debug)]
pub(in crate::pipeline) enum Effect {
    Mark {
        text: Option<Arc<str>>,
        domain: Option<Domain>,
    },
    RangeStart {
        text: Option<Arc<str>>,
        domain: Option<Domain>,
    },
    /// The program's own id of the range that the thread has just started.
    RangeId {
        id: u64,
    },
    RangeEnd {
        id: u64,
        domain: Option<Domain>,
    },
    /// A domain of this name has this handle.
    DomainCreated {
        handle: u64,
        name: Option<String>,
    },
    /// The domain is destroyed.
    DomainDestroyed {
        handle: u64,
    },
    /// A heap.
    HeapRegistered {
        domain: u64,
        handle: u64,
        range: Range,
    },
    /// The heap is unregistered.
    HeapUnregistered {
        domain: u64,
        handle: u64,
    },
    /// A block.
    RegionRegistered {
        domain: u64,
        handle: u64,
        range: Range,
    },
    /// The block is unregistered.
    RegionUnregistered {
        domain: u64,
        reference: Reference,
    },
}

/// Memory as the program describes it.
#[derive(Clone, Copy, Debug)]
pub(in crate::pipeline) struct Range {
    /// As the program numbers it.
    device: u32,
    addr: u64,
    size_bytes: u64,
}

pub(super) const fn has_text(kind: MstxCall) -> bool {
    matches!(kind, MstxCall::Mark | MstxCall::RangeStart | MstxCall::DomainCreate)
}

pub(super) const fn figures(kind: MstxCall) -> &'static [Figures] {
    match kind {
        MstxCall::Mark | MstxCall::RangeStart | MstxCall::RangeEnd => &[Figures::Marks],
        // A mark has its domain's name, and a pool's block may be of it.
        MstxCall::DomainCreate | MstxCall::DomainDestroy => &[Figures::Memory, Figures::Marks],
        MstxCall::HeapRegister | MstxCall::HeapUnregister | MstxCall::RegionRegister | MstxCall::RegionUnregister => {
            &[Figures::Memory]
        }
    }
}

pub(super) fn interpret(kind: MstxCall, call: RawCall<'_>) -> Interpreted {
    use MstxCall as Call;
    let entered = match (kind, call.called.phase) {
        (_, Phase::Enter) => true,
        // At its return its text is available.
        (Call::Mark | Call::RangeStart, Phase::Return) => call.probe.info.own_return,
        (_, Phase::Return) => false,
    };
    let handle = call.called.status.cast_unsigned();
    let domain = || call.field(Field::Domain);
    let of = || domain().ok().map(Domain::Handle);
    let effect = match (kind, entered) {
        (Call::Mark, true) => Effect::Mark { domain: of(), text: call.called.text.map(Arc::from) },
        (Call::RangeStart, true) => Effect::RangeStart { domain: of(), text: call.called.text.map(Arc::from) },
        (Call::RangeStart, false) if call.code() != 0 => Effect::RangeId { id: handle },
        // A function of the user's choice passes no id.
        (Call::RangeEnd, true) => Effect::RangeEnd { id: call.field(Field::RangeId).unwrap_or(0), domain: of() },
        (Call::DomainCreate, false) => Effect::DomainCreated { handle, name: call.called.text },
        (Call::DomainDestroy, true) => Effect::DomainDestroyed { handle: domain()? },
        (Call::HeapRegister, false) => Effect::HeapRegistered { domain: domain()?, handle, range: range(&call)? },
        (Call::HeapUnregister, true) => {
            Effect::HeapUnregistered { domain: domain()?, handle: call.field(Field::Handle)? }
        }
        (Call::RegionRegister, false) => {
            let handle = call.field(Field::Handle).unwrap_or(0);
            Effect::RegionRegistered { domain: domain()?, handle, range: range(&call)? }
        }
        (Call::RegionUnregister, true) => {
            Effect::RegionUnregistered { domain: domain()?, reference: reference(&call)? }
        }
        _ => return Ok(None),
    };
    Ok(Some(super::Effect::Mstx(effect)))
}

fn range(call: &RawCall<'_>) -> Result<Range, Unusable> {
    let (addr, size_bytes) = (call.field(Field::Addr)?, call.field(Field::Size)?);
    Ok(Range { device: call.half(Field::Device)?, addr, size_bytes })
}

fn reference(call: &RawCall<'_>) -> Result<Reference, Unusable> {
    /// `mstxMemRegionRef_t::refType`.
    const HANDLE: u32 = 1;
    let value = call.field(Field::Addr)?;
    let by_handle = call.half(Field::ReferenceKind)? == HANDLE;
    Ok(if by_handle { Reference::Handle(value) } else { Reference::Addr(value) })
}

/// Domains and ranges of one process.
#[derive(Debug, Default)]
pub(in crate::pipeline) struct Mstx {
    names: Names,
    ranges: Ranges,
}

impl Mstx {
    /// Another program replaces this one: open ranges are forgotten, their numbers continue.
    pub(in crate::pipeline) fn exec(&mut self) {
        self.names = Names::default();
        self.ranges.reset();
    }

    pub(in crate::pipeline) fn apply(
        &mut self,
        effect: Effect,
        turn: &mut Turn<'_>,
        pools: &mut Pools,
        failing: &mut Failing,
    ) {
        let tid = turn.at.tid;
        match effect {
            // A dump has the accesses themselves.
            Effect::Mark { text, domain: None } if turn.given.is_none() && torch::sanitized(text.as_deref(), turn) => {}
            Effect::Mark { text, domain } => self.mark(domain, Mark::Point { text }, turn),
            Effect::RangeStart { text, domain } => self.range_start(text, domain, turn),
            Effect::RangeEnd { id, domain } => self.range_end(id, domain, turn),
            Effect::RangeId { id } => self.ranges.named(tid, id),
            Effect::DomainCreated { handle, name } => {
                self.names.created(tid, handle, name.as_deref().unwrap_or_default());
            }
            Effect::DomainDestroyed { handle } => self.names.destroyed(handle),
            Effect::HeapRegistered { domain, handle, range } => {
                let device = turn.home.devices.physical(range.device);
                let pool = self.names.pool(tid, domain, turn.backend());
                pools.heaps.registered(pool, handle, range.addr, device, range.size_bytes);
            }
            Effect::HeapUnregistered { domain, handle } => {
                pools.heaps.unregistered(self.names.pool(tid, domain, turn.backend()), handle);
            }
            Effect::RegionRegistered { domain, handle, range } => {
                let pool = self.names.pool(tid, domain, turn.backend());
                self.names.region_registered(pool, handle, range.addr);
                let totals = pools.heaps.totals(pool, turn.home.devices.physical(range.device));
                let Range { device, addr, size_bytes } = range;
                let (change, device, size_bytes) = (PoolChange::Alloc, Some(device), Some(size_bytes));
                let report = PoolReport { pool, change, device, addr, size_bytes, totals, stream: None };
                pools.mstx_reported(&report, turn, failing);
            }
            Effect::RegionUnregistered { domain, reference } => {
                let pool = self.names.pool(tid, domain, turn.backend());
                let Some(addr) = self.names.region_unregistered(pool, reference) else { return };
                let device = turn.home.blocks.get(Key::Pool(pool, addr)).map(|live| live.block.device);
                let totals = device.and_then(|device| pools.heaps.totals(pool, device));
                let change = PoolChange::Free;
                let report = PoolReport { pool, change, device: None, addr, size_bytes: None, totals, stream: None };
                pools.mstx_reported(&report, turn, failing);
            }
        }
    }

    /// A mark; `domain` is its domain, if it has one.
    fn mark(&self, domain: Option<Domain>, mark: Mark, turn: &mut Turn<'_>) {
        let kind = match domain {
            None => EventKind::Mark(mark),
            Some(Domain::Named(domain)) => EventKind::DomainMark { domain, mark },
            Some(Domain::Handle(handle)) => {
                EventKind::DomainMark { domain: self.names.name(turn.at.tid, handle).unwrap_or(UNKNOWN), mark }
            }
        };
        turn.emit(turn.device(), kind);
    }

    /// A range begins; with the right text it is a step, unless it is of a domain.
    fn range_start(&mut self, text: Option<Arc<str>>, domain: Option<Domain>, turn: &mut Turn<'_>) {
        let tid = turn.at.tid;
        let range_id = self.ranges.start(tid, domain.and_then(Domain::handle));
        if turn.given.is_some() {
            // Rows name a range by our own id.
            self.ranges.named(tid, range_id);
        }
        let is_step = domain.is_none() && text.as_deref() == Some(STEP_START) && turn.steps_count(false);
        let mark = Mark::RangeStart { text, range_id };
        if !is_step {
            return self.mark(domain, mark, turn);
        }
        let device = turn.device();
        let devices = turn.devices_of_step(device);
        let step = turn.home.steps.start(range_id, device, devices.clone());
        self.mark(domain, mark, turn);
        for device in devices {
            turn.emit(device, EventKind::StepStart { step });
        }
    }

    fn range_end(&mut self, passed_id: u64, domain: Option<Domain>, turn: &mut Turn<'_>) {
        let range_id = self.ranges.end(turn.at.tid, domain.and_then(Domain::handle), passed_id);
        self.mark(domain, Mark::RangeEnd { range_id, passed_id }, turn);
        let Some(range) = range_id.filter(|_| domain.is_none()) else { return };
        let Some(OpenStep { step, device, mut devices }) = turn.home.steps.of_range(range) else {
            return;
        };
        if device == Device::None {
            // Devices that got their first block within the step have its end reported, too.
            devices.extend(turn.home.blocks.devices());
            devices.sort_unstable();
            devices.dedup();
        }
        for device in devices {
            turn.emit(device, EventKind::StepEnd { step });
        }
        turn.home.steps.end(range);
    }
}
