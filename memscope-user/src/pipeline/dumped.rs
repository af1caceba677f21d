//! Dump rows in, events out: rows become the effects that calls become, and the same processes take them.
//!
//! Rows come in order, so nothing is ordered or held here, but for one row: that of an end without a call, since the
//! next row of its process shows the cause.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::blocks::PoolTotals;
use super::domains::dumped::{self, Doubts, Listed};
use super::domains::failing::{self, Failure};
use super::domains::mstx::{self, Domain};
use super::domains::{Effect, atb, launches, runtime, script, torch};
use super::output::{Audience, DumpFilter, Output};
use super::process::Process;
use super::turn::{At, Given, Origin, Shared};
use crate::analyses::Finding;
use crate::backend::Backend;
use crate::dump_format::row::{DumpRow, Kind};
use crate::hash::HashMap;
use crate::model::{Access, AccessKind, AtbOp, BlockReturned, FreeCause, Name, Op, Pool, RunEnd, Stacks, System};

/// Most names of which a copy is shared.
const MAX_NAMES: usize = 64 << 10;
/// An end without a call that an allocation of the same address follows within this time is of a replaced block; a
/// program that executes another one takes longer.
const SAME_MOMENT_NS: u64 = 100_000;
const MAX_DIMENSIONS: usize = 64;

/// The results of the rows of a run.
pub(crate) struct DumpedOutcome {
    /// Conclusions of the analyses, in their order.
    pub(crate) findings: Vec<Finding>,
    /// Where the events end.
    pub(crate) end: RunEnd,
    /// Rows that contradict others.
    pub(crate) doubts: Doubts,
}

/// Makes events of the rows of dumps.
pub(crate) struct Dumped {
    processes: BTreeMap<u32, Traced>,
    shared: Shared,
    names: HashMap<String, Arc<str>>,
    time_ns: u64,
}

/// One process of a dump.
struct Traced {
    process: Process,
    /// An end without a call, and its time.
    open: Option<(DumpRow, u64)>,
}

impl Dumped {
    /// Gives the events to these.
    pub(crate) fn new(audience: Audience) -> Self {
        let out = Output::new(DumpFilter::default(), audience, None);
        let shared = Shared { of_rows: true, ..Shared::new(<&dyn Backend>::default(), out) };
        Self { processes: BTreeMap::new(), shared, names: HashMap::default(), time_ns: 0 }
    }

    /// Takes a row. Those of a process come in order.
    pub(crate) fn row(&mut self, row: DumpRow) {
        self.time_ns = self.time_ns.max(row.time_ns);
        let time_ns = self.time_ns;
        let pid = row.pid;
        let traced = self.processes.entry(pid).or_insert_with(|| {
            let process = Process::new(pid, Arc::default(), false);
            Traced { process, open: None }
        });
        let shared = &mut self.shared;
        if let Some(open) = traced.open.take() {
            traced.end(open, Some((&row, time_ns)), shared);
        }
        if row.shadow && matches!(row.kind, Kind::Free(_)) {
            traced.open = Some((row, time_ns));
            return;
        }
        let effect = effect(&row, shared_copy(&mut self.names, &row.texts().name));
        traced.apply(&row, time_ns, effect, shared);
    }

    /// Ends all processes: live blocks have been held to the end.
    pub(crate) fn finish(mut self) -> DumpedOutcome {
        let mut doubts = Doubts::default();
        for (pid, mut traced) in std::mem::take(&mut self.processes) {
            if let Some(open) = traced.open.take() {
                traced.end(open, None, &mut self.shared);
            }
            let at = At::new(self.time_ns, pid);
            traced.process.is_over(at, FreeCause::TraceEnd, &mut self.shared);
            traced.process.end(at, &mut self.shared);
            let Doubts { contradictions, unmatched_frees } = traced.process.doubts();
            doubts.contradictions += contradictions;
            doubts.unmatched_frees += unmatched_frees;
        }
        let end = RunEnd { start_ns: self.shared.out.start_ns(), time_ns: self.time_ns, ..RunEnd::default() };
        DumpedOutcome { findings: self.shared.out.conclude(&end), end, doubts }
    }
}

impl Traced {
    /// Ends the block of a row without a call. `next` is the next row of the process, and its time.
    fn end(&mut self, (row, time_ns): (DumpRow, u64), next: Option<(&DumpRow, u64)>, shared: &mut Shared) {
        let pool = pool_of(&row);
        let successor = next.filter(|(next, next_ns)| {
            let of_space = matches!(next.kind, Kind::Malloc(other) if is_one_space(other, pool));
            of_space && next.ptr == row.ptr && next_ns - time_ns < SAME_MOMENT_NS
        });
        let cause = if successor.is_some() { FreeCause::Replaced } else { FreeCause::ProcessEnd };
        let used_bytes = successor.and_then(|(next, _)| used_bytes(next));
        let listed = Listed { totals: totals(used_bytes, row.total_bytes), ..listed(&row, pool) };
        self.apply(&row, time_ns, Effect::Dumped(dumped::Effect::End { listed, cause }), shared);
    }

    fn apply(&mut self, row: &DumpRow, time_ns: u64, effect: Effect, shared: &mut Shared) {
        let given = Given { id: row.id, device: row.device, is_free: matches!(row.kind, Kind::Free(_)) };
        // No call was made at the place of a row without one, but a block of it was.
        let has_place = !row.shadow || matches!(row.kind, Kind::Malloc(_));
        let stacks = if has_place { row.stacks } else { Stacks::default() };
        self.process.apply(At { stacks, ..At::new(time_ns, row.tid) }, Origin::Row(&given), effect, shared);
    }
}

/// A copy of a row's text that rows with the same text share.
fn shared_copy(names: &mut HashMap<String, Arc<str>>, text: &str) -> Arc<str> {
    if text.is_empty() {
        return Arc::default();
    }
    if let Some(known) = names.get(text) {
        return Arc::clone(known);
    }
    let name: Arc<str> = text.into();
    if names.len() < MAX_NAMES {
        names.insert(text.to_owned(), Arc::clone(&name));
    }
    name
}

fn listed(row: &DumpRow, pool: Pool) -> Listed {
    Listed {
        pool,
        device: row.device,
        addr: row.ptr.unwrap_or(0),
        size_bytes: row.size_bytes,
        number: row.allocation_id.filter(|number| *number != 0),
        page: row.page,
        api: row.api,
        module_id: row.module_id,
        owner: row.owner,
        totals: totals(used_bytes(row), row.total_bytes),
        shadow: row.shadow,
        found: row.found,
    }
}

/// The effect of a row. An empty `name` stands for none.
fn effect(row: &DumpRow, name: Arc<str>) -> Effect {
    let word = row.texts().word.as_str();
    let text = (!name.is_empty()).then(|| Arc::clone(&name));
    let domain = (!word.is_empty()).then(|| Domain::Named(Name::keep(word)));
    match row.kind {
        Kind::Malloc(pool) => Effect::Dumped(dumped::Effect::Alloc(listed(row, pool))),
        Kind::Free(pool) => {
            let (listed, cause) = (listed(row, pool), FreeCause::Program);
            Effect::Dumped(dumped::Effect::End { listed, cause })
        }
        Kind::Returned(pool) => Effect::Dumped(dumped::Effect::Returned(BlockReturned {
            pool,
            allocation_id: row.allocation_id.filter(|number| *number != 0),
            addr: row.ptr.unwrap_or(0),
            size_bytes: row.size_bytes.unwrap_or(0),
            used_bytes: row.used_bytes.unwrap_or(0),
            total_bytes: row.total_bytes.unwrap_or(0),
            active_bytes: row.number.unwrap_or(0),
        })),
        Kind::Access(kind) => Effect::Torch(torch::Effect::Access(Box::new(access(row, kind, name)))),
        Kind::Op(phase) => Effect::Torch(torch::Effect::Op(Op { phase, name })),
        Kind::AtbOp(begins) => Effect::Atb(atb::Effect::Op(AtbOp {
            begins,
            name,
            workspace_addr: row.ptr.unwrap_or(0),
            workspace_bytes: row.size_bytes.unwrap_or(0),
        })),
        Kind::Launch => {
            let (stream, stream_id) = (row.number.unwrap_or(0), row.number.map(u64::cast_signed));
            Effect::Launch(launches::Effect::Launch { handle: 0, stream, stream_id, name: Some(name) })
        }
        Kind::Mark => Effect::Mstx(mstx::Effect::Mark { text, domain }),
        Kind::RangeStart => Effect::Mstx(mstx::Effect::RangeStart { text, domain }),
        Kind::RangeEnd => {
            // Both tools name a range by its number.
            let id = name.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0);
            Effect::Mstx(mstx::Effect::RangeEnd { id, domain })
        }
        Kind::Step => Effect::Script(script::Effect::Step),
        Kind::AclInit => Effect::Runtime(runtime::Effect::System(System::AclInit)),
        Kind::AclFinalize => Effect::Runtime(runtime::Effect::System(System::AclFinalize)),
        Kind::OutOfMemory => Effect::Failing(failing::Effect::FailedForGood(Failure {
            pool: <&dyn Backend>::default().driver_pool(),
            device: Some(row.device),
            size_bytes: row.size_bytes.unwrap_or(0),
            flags: row.number.unwrap_or(0),
            status: 0,
            caller: (!word.is_empty()).then(|| Name::keep(word)),
            huge: false,
        })),
    }
}

fn access(row: &DumpRow, kind: AccessKind, op: Arc<str>) -> Access {
    let texts = row.texts();
    Access {
        kind,
        op,
        allocation_id: row.allocation_id.unwrap_or(0),
        pool: row.pool,
        addr: row.ptr.unwrap_or(0),
        size_bytes: row.size_bytes.unwrap_or(0),
        dtype: Name::keep(&texts.word).as_str(),
        format: (!texts.format.is_empty()).then(|| Name::keep(&texts.format).as_str()),
        shape: shape(&texts.shape),
    }
}

fn pool_of(row: &DumpRow) -> Pool {
    match row.kind {
        Kind::Malloc(pool) | Kind::Free(pool) | Kind::Returned(pool) => pool,
        _ => row.pool,
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

fn totals(used_bytes: Option<u64>, reserved_bytes: Option<u64>) -> Option<PoolTotals> {
    let is_any = used_bytes.is_some() || reserved_bytes.is_some();
    is_any.then_some(PoolTotals { used_bytes, reserved_bytes, active_bytes: 0 })
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
