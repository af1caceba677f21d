//! Blocks of the frameworks' pools, as the pools report them; and the heaps that their memory is from.

mod heaps;

use std::sync::Arc;

use self::heaps::Heaps;
use super::super::blocks::{Key, NewBlock, PoolTotals};
use super::super::recent::Recent;
use super::super::rows::{RawCall, Unusable};
use super::super::turn::{At, Turn};
use super::Interpreted;
use super::failing::Failing;
use crate::backend::{Backend, PoolChange, PoolWord};
use crate::decode::Phase;
use crate::model::{
    Asked, BlockReturned, Device, EventKind, Figures, Fraction, FreeCause, Graph, GraphChange, Name, OwnPool, OwnRules,
    Pool, PoolRefused, PoolSet, Stacks, StreamUse,
};
use crate::probes::{Field, PoolCall, RowInfo};

/// Fewest threads per process with a kept last request to a pool.
const MAX_THREADS: usize = 32 << 10;
/// Blocks that a stream still uses after the program gave them back, per process.
const MAX_LEAVING: usize = 1 << 20;

/// The effect of a call of a pool's own functions.
#[derive(Clone, Debug)]
pub(in crate::pipeline) enum Effect {
    /// A pool reports a block.
    Report(PoolReport),
    /// The thread requests a block from a pool.
    Request(PoolRequest),
    /// The program has another stream use a block.
    StreamUse { pool: Pool, addr: u64 },
    /// The program has the pool give unused memory back.
    EmptyCache,
    /// The program changes settings.
    Settings { text: Arc<str> },
    /// It limits itself to a part of a device.
    Fraction { device: u32, fraction: Fraction },
    /// A graph changes.
    Graph(Graph),
    /// A pool of its own changes, on one device or on all.
    OwnPool { device: Option<u32>, own: OwnPool },
    /// The wrong function was located: all its reports are ignored.
    Mislocated { symbol: Name },
}

/// A request to a pool.
#[derive(Clone, Copy, Debug)]
pub(in crate::pipeline) struct PoolRequest {
    pub(in crate::pipeline) pool: Pool,
    pub(in crate::pipeline) caller: Name,
    pub(in crate::pipeline) size_bytes: u64,
}

/// A pool's report of one of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pipeline) struct PoolReport {
    pub(in crate::pipeline) pool: Pool,
    pub(in crate::pipeline) change: PoolChange,
    /// In the program's numbering; `None`: that of the thread.
    pub(in crate::pipeline) device: Option<u32>,
    pub(in crate::pipeline) addr: u64,
    /// `None` where only the address is known.
    pub(in crate::pipeline) size_bytes: Option<u64>,
    pub(in crate::pipeline) totals: Option<PoolTotals>,
    /// Pointer of the stream that it belongs to.
    pub(in crate::pipeline) stream: Option<u64>,
}

pub(super) const fn figures(kind: PoolCall) -> &'static [Figures] {
    match kind {
        PoolCall::Alloc | PoolCall::Free | PoolCall::Report => &[Figures::Memory],
        PoolCall::Request => &[Figures::Failures],
        PoolCall::RecordStream
        | PoolCall::EmptyCache
        | PoolCall::Settings
        | PoolCall::Fraction
        | PoolCall::GraphBegin
        | PoolCall::GraphEnd
        | PoolCall::GraphReset
        | PoolCall::MemPoolMade
        | PoolCall::MemPoolOfAllMade
        | PoolCall::MemPoolGone
        | PoolCall::OwnPoolBegin
        | PoolCall::OwnPoolEnd
        | PoolCall::OwnPoolRelease => &[],
    }
}

pub(super) const fn has_text(kind: PoolCall) -> bool {
    matches!(kind, PoolCall::Settings)
}

pub(super) fn interpret(kind: PoolCall, call: &RawCall<'_>) -> Interpreted {
    let effect = match (kind, call.called.phase) {
        (PoolCall::Alloc, Phase::Return) => return handed_out(call),
        (PoolCall::Free, Phase::Enter) => Effect::Report(PoolReport {
            pool: pool_of(call.backend, &call.probe.info),
            change: PoolChange::Free,
            device: None,
            addr: call.field(Field::Addr)?,
            size_bytes: None,
            totals: None,
            stream: None,
        }),
        (PoolCall::Report, _) => pool_report(call)?,
        (PoolCall::Request, _) => Effect::Request(PoolRequest {
            pool: call.backend.pool_of_framework(call.probe.info.pool.as_deref()).ok_or(Unusable)?,
            caller: call.probe.symbol,
            size_bytes: call.field(Field::Size)?,
        }),
        (PoolCall::RecordStream, _) => Effect::StreamUse {
            pool: call.backend.pool_of_framework(call.probe.info.pool.as_deref()).ok_or(Unusable)?,
            addr: call.field(Field::Addr)?,
        },
        // Of one pool of its own, which gives back what the program does not use any more: no blocks of others.
        (PoolCall::EmptyCache, _) if own_pool(call).is_ok_and(|pool| pool != ALL_POOLS) => return Ok(None),
        (PoolCall::EmptyCache, _) => Effect::EmptyCache,
        (PoolCall::Settings, _) => Effect::Settings { text: call.called.text.as_deref().ok_or(Unusable)?.into() },
        (PoolCall::Fraction, _) => {
            Effect::Fraction { device: call.half(Field::Device)?, fraction: fraction(call.field(Field::Fraction)?)? }
        }
        (PoolCall::GraphBegin, _) => graph(call, GraphChange::Begins { pool: own_pool(call)? })?,
        (PoolCall::GraphEnd, _) => graph(call, GraphChange::Ends)?,
        (PoolCall::GraphReset, _) => graph(call, GraphChange::Reset)?,
        (PoolCall::MemPoolMade, _) => made(call, rules(call))?,
        (PoolCall::MemPoolOfAllMade, _) => made(call, OwnRules::default())?,
        (PoolCall::MemPoolGone, _) => {
            Effect::OwnPool { device: None, own: OwnPool::Gone { handle: call.field(Field::Handle)? } }
        }
        (PoolCall::OwnPoolBegin, _) => of_device(call, OwnPool::Begins { pool: own_pool(call)? })?,
        (PoolCall::OwnPoolEnd, _) => of_device(call, OwnPool::Ends { pool: own_pool(call)? })?,
        (PoolCall::OwnPoolRelease, _) => of_device(call, OwnPool::Released { pool: own_pool(call)? })?,
        _ => return Ok(None),
    };
    Ok(Some(super::Effect::Pool(effect)))
}

/// A part that `torch_npu` accepts.
fn fraction(bits: u64) -> Result<Fraction, Unusable> {
    let value = f64::from_bits(bits);
    (0.0..=1.0).contains(&value).then(|| Fraction::of(value)).ok_or(Unusable)
}

fn graph(call: &RawCall<'_>, change: GraphChange) -> Result<Effect, Unusable> {
    Ok(Effect::Graph(Graph { handle: call.field(Field::Handle)?, change }))
}

/// The number of no pool of its own (`MempoolId_t`'s default).
const ALL_POOLS: (u64, u64) = (0, 0);

/// The number of a pool of its own.
fn own_pool(call: &RawCall<'_>) -> Result<(u64, u64), Unusable> {
    Ok((call.field(Field::PoolFirst)?, call.field(Field::PoolSecond)?))
}

fn made(call: &RawCall<'_>, rules: OwnRules) -> Result<Effect, Unusable> {
    let own = OwnPool::Made { handle: call.field(Field::Handle)?, pool: own_pool(call)?, rules };
    Ok(Effect::OwnPool { device: None, own })
}

/// Captures of earlier versions do not say; the rest of a truth value's register is undefined.
fn rules(call: &RawCall<'_>) -> OwnRules {
    let is_so = |field| call.field(field).is_ok_and(|value| value as u8 != 0);
    OwnRules { of_thread: true, on_oom: is_so(Field::PoolOnOom), no_split: is_so(Field::PoolNoSplit) }
}

/// A number of a device is one byte, and the rest of its register is undefined.
fn of_device(call: &RawCall<'_>, own: OwnPool) -> Result<Effect, Unusable> {
    let device = call.field(Field::Device)? as u8;
    Ok(Effect::OwnPool { device: Some(device.into()), own })
}

/// Another stream uses a block. Memory of other allocators is passed to the function, too, which ignores it.
fn stream_uses(pool: Pool, addr: u64, turn: &mut Turn<'_>) {
    let Some(block) = turn.home.blocks.get(Key::Pool(pool, addr)).map(|live| live.block) else { return };
    let used = StreamUse { pool, allocation_id: block.allocation_id, addr };
    turn.emit(block.device, EventKind::StreamUse(used));
}

fn pool_of(backend: &dyn Backend, row: &RowInfo) -> Pool {
    backend.framework_or_custom_pool(row.pool.as_deref().unwrap_or_default())
}

/// A pool has handed out a block, or has none left.
fn handed_out(call: &RawCall<'_>) -> Interpreted {
    let size_bytes = call.field(Field::Size)?.saturating_mul(call.field(Field::Count).unwrap_or(1));
    // An address that a failed call did not give is 0.
    let returned = call.called.status.cast_unsigned();
    let addr = if call.probe.info.fields.contains(&Field::Addr) { call.field(Field::Addr)? } else { returned };
    let device = call.half(Field::Device).ok();
    let pool = pool_of(call.backend, &call.probe.info);
    let (change, size_bytes) = (PoolChange::Alloc, Some(size_bytes));
    let report = PoolReport { pool, change, device, addr, size_bytes, totals: None, stream: None };
    Ok((addr != 0).then_some(super::Effect::Pool(Effect::Report(report))))
}

/// A pool's report by its one function for all changes. Its first word shows whether the right function was located.
fn pool_report(call: &RawCall<'_>) -> Result<Effect, Unusable> {
    let size = call.field(Field::Size)?.cast_signed();
    let Some(PoolWord { pool, change, device }) = call.backend.pool_report(call.field(Field::PtaKind)?, size) else {
        return Ok(Effect::Mislocated { symbol: call.probe.symbol });
    };
    let totals = PoolTotals {
        used_bytes: Some(call.field(Field::PoolAllocated)?),
        reserved_bytes: Some(call.field(Field::PoolReserved)?),
        active_bytes: call.field(Field::PoolActive)?,
    };
    Ok(Effect::Report(PoolReport {
        pool,
        change,
        device: Some(device),
        addr: call.field(Field::Addr)?,
        size_bytes: Some(size.unsigned_abs()),
        totals: Some(totals),
        stream: call.field(Field::Stream).ok(),
    }))
}

/// A request to a pool without an answer yet.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    request: PoolRequest,
    time_ns: u64,
    /// Failures of the process before it.
    failures: u64,
    /// Where the thread then queried the free memory: for an expandable segment, or for the message of its error.
    queried: Option<Stacks>,
}

/// Pools of one process.
#[derive(Debug)]
pub(in crate::pipeline) struct Pools {
    /// What each thread asks a pool for.
    wanted: Recent<u32, Wanted>,
    /// Blocks that the program gave back and the pool has not got yet: their numbers.
    leaving: Recent<Key, u64>,
    /// Requests are seen.
    has_requests: bool,
    /// Set once the located function turned out to be the wrong one.
    mislocated: bool,
    /// Calls about blocks are passed over.
    left_out: bool,
    /// Pools reported by functions of their own; reports of mstx about those are duplicates.
    by_function: Vec<Pool>,
    pub(super) heaps: Heaps,
}

impl Default for Pools {
    fn default() -> Self {
        Self {
            wanted: Recent::new(MAX_THREADS),
            leaving: Recent::new(MAX_LEAVING),
            has_requests: false,
            mislocated: false,
            left_out: false,
            by_function: Vec::new(),
            heaps: Heaps::default(),
        }
    }
}

impl Pools {
    pub(in crate::pipeline) fn apply(&mut self, effect: &Effect, turn: &mut Turn<'_>, failing: &mut Failing) {
        match *effect {
            Effect::Report(_) | Effect::Request(_) | Effect::StreamUse { .. } if self.left_out => {}
            Effect::Report(ref report) => self.function_reported(report, turn, failing),
            Effect::Request(request) => self.asked(request, turn, failing),
            Effect::StreamUse { pool, addr } if !self.ignores(pool) => stream_uses(pool, addr, turn),
            Effect::StreamUse { .. } => {}
            Effect::EmptyCache => {
                self.refused(turn, failing);
                turn.emit(Device::None, EventKind::CacheEmptied);
            }
            Effect::Settings { ref text } => {
                turn.emit(Device::None, EventKind::PoolSet(PoolSet::Settings { text: Arc::clone(text) }));
            }
            Effect::Fraction { device, fraction } => {
                let device = turn.device_or_own(Some(device));
                turn.emit(device, EventKind::PoolSet(PoolSet::Fraction(fraction)));
            }
            Effect::Graph(graph) => turn.emit(Device::None, EventKind::Graph(graph)),
            Effect::OwnPool { device, own } => {
                let device = device.map_or(Device::None, |device| turn.device_or_own(Some(device)));
                turn.emit(device, EventKind::OwnPool(own));
            }
            Effect::Mislocated { symbol } => self.is_mislocated(symbol, turn),
        }
    }

    /// The thread requests a block. An earlier request of it without an answer has failed.
    fn asked(&mut self, request: PoolRequest, turn: &mut Turn<'_>, failing: &mut Failing) {
        self.refused(turn, failing);
        self.has_requests = true;
        let (time_ns, failures) = (turn.at.time_ns, failing.count());
        self.wanted.insert(turn.at.tid, Wanted { request, time_ns, failures, queried: None });
    }

    /// Whether the thread asks no pool for memory now, as far as that is known.
    pub(super) fn are_passed_by(&self, tid: u32) -> bool {
        self.has_requests && !self.left_out && self.wanted.get(&tid).is_none()
    }

    /// The thread queries the free memory of its device.
    pub(super) fn memory_queried(&mut self, turn: &Turn<'_>) {
        if let Some(wanted) = self.wanted.remove(&turn.at.tid) {
            // The program may query it later, too.
            let queried = wanted.queried.or(Some(turn.at.stacks));
            self.wanted.insert(turn.at.tid, Wanted { queried, ..wanted });
        }
    }

    /// The thread's open request has ended without a block. Nothing is reported of one for no bytes.
    fn refused(&mut self, turn: &mut Turn<'_>, failing: &mut Failing) {
        if let Some(wanted) = self.wanted.remove(&turn.at.tid) {
            self.refuse(wanted, turn, failing);
        }
    }

    fn refuse(&self, wanted: Wanted, turn: &mut Turn<'_>, failing: &mut Failing) {
        let Wanted { request, time_ns, failures, queried } = wanted;
        if request.size_bytes == 0 {
            return;
        }
        let refused = PoolRefused { size_bytes: request.size_bytes, asked_ns: time_ns };
        turn.emit(turn.device(), EventKind::PoolRefused(refused));
        // The pool did not ask the driver. The query is for the text of its error; without one the thread may have been killed.
        let is_own = failures == failing.count() && !self.ignores(request.pool);
        if let Some(stacks) = queried.filter(|_| is_own) {
            failing.refused_by_pool(request, stacks, turn);
        }
    }

    /// All open requests have ended: the process has.
    pub(in crate::pipeline) fn all_refused(&mut self, turn: &mut Turn<'_>, failing: &mut Failing) {
        for (tid, wanted) in self.wanted.take_all() {
            let at = At::new(turn.at.time_ns, tid);
            self.refuse(wanted, &mut turn.with(at), failing);
        }
    }

    /// Calls about blocks are passed over from here on, or are traced again; gives whether they were traced. Of the first kind, the last may
    /// come behind the note.
    pub(in crate::pipeline) fn trace_blocks(&mut self, traced: bool) -> bool {
        if !traced {
            (self.wanted, self.leaving) = (Recent::new(MAX_THREADS), Recent::new(MAX_LEAVING));
        }
        !std::mem::replace(&mut self.left_out, !traced)
    }

    /// Those of another program that replaces this one.
    pub(in crate::pipeline) fn exec(&self) -> Self {
        Self { left_out: self.left_out, ..Self::default() }
    }

    /// Whether they are.
    #[cfg(feature = "trace")]
    pub(in crate::pipeline) const fn are_left_out(&self) -> bool {
        self.left_out
    }

    /// Whether reports of this pool are not taken: a wrong function was located.
    pub(in crate::pipeline) const fn ignores(&self, pool: Pool) -> bool {
        self.mislocated && pool.is_located()
    }

    /// A pool reports one of its blocks, by a function of its own.
    fn function_reported(&mut self, report: &PoolReport, turn: &mut Turn<'_>, failing: &mut Failing) {
        let PoolReport { pool, change, addr, size_bytes, .. } = *report;
        if self.ignores(pool) {
            turn.shared.mislocated += 1;
            return;
        }
        if self.reports_itself(pool) {
            // Through mstx it may have reported this very block already; from now on only the function counts. One that was found in
            // its books has not been reported.
            let live = turn.home.blocks.get(Key::Pool(pool, addr)).filter(|live| !live.block.found);
            if change == PoolChange::Alloc && live.is_some_and(|live| Some(live.block.size_bytes) == size_bytes) {
                return;
            }
        }
        self.reported(report, turn, failing);
    }

    /// A function of its own reports this pool; true the first time.
    pub(super) fn reports_itself(&mut self, pool: Pool) -> bool {
        let is_first = !self.by_function.contains(&pool);
        if is_first {
            self.by_function.push(pool);
        }
        is_first
    }

    /// A user of mstx reports a block. Ignored if a function of the pool itself reports it.
    pub(super) fn mstx_reported(&mut self, report: &PoolReport, turn: &mut Turn<'_>, failing: &mut Failing) {
        if !self.left_out && !self.by_function.contains(&report.pool) {
            self.reported(report, turn, failing);
        }
    }

    fn reported(&mut self, report: &PoolReport, turn: &mut Turn<'_>, failing: &mut Failing) {
        // Such a pool gets its memory from ACL: after a refusal, it reports itself whether its request succeeded.
        if report.pool.is_known_framework() {
            failing.pool_reports();
        }
        let key = Key::Pool(report.pool, report.addr);
        if let Some(totals) = report.totals {
            let device = turn.device_or_own(report.device);
            if let Some(meanwhile) = &mut turn.home.meanwhile {
                meanwhile.reported(report.pool, device, totals);
            }
        }
        match report.change {
            PoolChange::Alloc => self.allocated(key, report, turn, failing),
            PoolChange::Free => self.freed(key, report, turn, failing),
            PoolChange::Returned => self.returned(key, report, turn),
        }
    }

    fn allocated(&mut self, key: Key, report: &PoolReport, turn: &mut Turn<'_>, failing: &mut Failing) {
        let PoolReport { pool, device, addr, size_bytes, totals, stream, .. } = *report;
        let (Some(size_bytes), true) = (size_bytes, addr != 0) else { return };
        if pool.is_known_framework() {
            failing.pool_gave(self.wanted.get(&turn.at.tid).map(|wanted| wanted.time_ns), turn);
        }
        // Both records of a workspace that grows are of one block (ascend-abi §6.2).
        let live = || turn.home.blocks.get(key);
        if pool.grows_in_place() && live().is_some_and(|live| live.block.size_bytes == size_bytes) {
            return;
        }
        let wanted = if pool.is_known_framework() { self.wanted.remove(&turn.at.tid) } else { None };
        let wanted = wanted.filter(|wanted| wanted.request.size_bytes <= size_bytes);
        let requested_bytes = wanted.map(|wanted| wanted.request.size_bytes);
        let asked = Asked { time_ns: wanted.map(|wanted| wanted.time_ns), stream };
        let new = NewBlock::of_pool(pool, turn.device_or_own(device), addr, size_bytes);
        turn.hand_out(key, &NewBlock { requested_bytes, asked, ..new }, totals);
    }

    fn freed(&mut self, key: Key, report: &PoolReport, turn: &mut Turn<'_>, failing: &mut Failing) {
        // Workspaces may go for the sake of the request itself.
        if report.pool.is_framework() {
            self.refused(turn, failing);
        }
        match turn.free(key, FreeCause::Program, report.totals) {
            Some(live) if !live.returned => self.leaving.insert(key, live.block.allocation_id),
            Some(_) => {}
            None => turn.unknown_free(report.pool, report.addr, false),
        }
    }

    /// The pool has the block back: just before the program's free is reported, or later if a stream still used it.
    fn returned(&mut self, key: Key, report: &PoolReport, turn: &mut Turn<'_>) {
        let PoolReport { pool, device, addr, size_bytes, totals, .. } = *report;
        let allocation_id = if turn.home.blocks.change(key, |live| live.returned = true) {
            turn.home.blocks.number(key)
        } else {
            self.leaving.remove(&key)
        };
        let Some(totals) = totals else { return };
        let returned = BlockReturned {
            pool,
            allocation_id,
            addr,
            size_bytes: size_bytes.unwrap_or(0),
            used_bytes: totals.used_bytes.unwrap_or(0),
            total_bytes: totals.reserved_bytes.unwrap_or(0),
            active_bytes: totals.active_bytes,
        };
        turn.emit(turn.device_or_own(device), EventKind::BlockReturned(returned));
    }

    /// The wrong function was located: its reports are ignored from here on, and the user is warned.
    fn is_mislocated(&mut self, symbol: Name, turn: &mut Turn<'_>) {
        turn.shared.mislocated += 1;
        if !std::mem::replace(&mut self.mislocated, true) {
            turn.emit_if(turn.device(), EventKind::ProbeDisabled { symbol }, true);
        }
    }
}
