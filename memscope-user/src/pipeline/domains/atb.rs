//! ATB's operations: the memory that they work in, and their tensors.

mod tensors;

use self::tensors::AtbTensors;
use super::super::blocks::{Key, NewBlock};
use super::super::recent::Recent;
use super::super::rows::{Probe, RawCall, Unusable};
use super::super::turn::Turn;
use super::Interpreted;
use super::pools::Pools;
use crate::backend::Backend;
use crate::decode::{Objects, Phase};
use crate::model::{AtbOp, Device, EventKind, Figures, FreeCause, Pool, PoolOperators};
use crate::probes::{AtbCall, Field};

/// Fewest threads per process with a kept operation.
const MAX_THREADS: usize = 32 << 10;

/// The effect of a call of ATB.
#[derive(Debug)]
pub(in crate::pipeline) enum Effect {
    Op(AtbOp),
    Tensors(Box<AtbTensors>),
    /// An operation is called with memory to work in, or that call returns.
    Workspace {
        begins: bool,
        addr: u64,
        size_bytes: u64,
    },
}

pub(super) const fn has_text(kind: AtbCall) -> bool {
    matches!(kind, AtbCall::Start | AtbCall::End)
}

pub(super) const fn figures(kind: AtbCall) -> &'static [Figures] {
    match kind {
        AtbCall::Start | AtbCall::End | AtbCall::WorkspaceBegin | AtbCall::WorkspaceEnd => {
            &[Figures::Memory, Figures::Operators]
        }
        AtbCall::Tensors => &[Figures::Operators],
    }
}

pub(super) fn interpret(kind: AtbCall, call: RawCall<'_>) -> Interpreted {
    let effect = match (kind, call.called.phase) {
        (AtbCall::Start, Phase::Enter) | (AtbCall::End, Phase::Return) => {
            let size = |name| call.field(name).unwrap_or(0);
            Effect::Op(AtbOp {
                begins: kind == AtbCall::Start,
                workspace_addr: size(Field::WorkspaceAddr),
                workspace_bytes: size(Field::WorkspaceSize).saturating_add(size(Field::IntermediateSize)),
                name: call.called.text.unwrap_or_default().into(),
            })
        }
        (AtbCall::WorkspaceBegin, Phase::Enter) | (AtbCall::WorkspaceEnd, Phase::Return) => Effect::Workspace {
            begins: kind == AtbCall::WorkspaceBegin,
            addr: call.field(Field::Addr)?,
            size_bytes: call.field(Field::Size)?,
        },
        _ => return Ok(None),
    };
    Ok(Some(super::Effect::Atb(effect)))
}

/// The tensors of an operation that begins; also returns the number left out.
pub(super) fn interpret_objects(
    kind: AtbCall,
    backend: &dyn Backend,
    probe: Option<&Probe>,
    objects: &Objects<'_>,
) -> Result<(super::Effect, u64), Unusable> {
    let probe = probe.filter(|_| kind == AtbCall::Tensors).ok_or(Unusable)?;
    let tensors = AtbTensors::of(backend, &probe.info, objects)?;
    let left_out = tensors.left_out;
    Ok((super::Effect::Atb(Effect::Tensors(Box::new(tensors))), left_out))
}

/// Operations of one process.
#[derive(Debug)]
pub(in crate::pipeline) struct Atb {
    /// Where the workspace of each thread's operation begins.
    workspaces: Recent<u32, u64>,
}

impl Default for Atb {
    fn default() -> Self {
        Self { workspaces: Recent::new(MAX_THREADS) }
    }
}

impl Atb {
    pub(in crate::pipeline) fn apply(&mut self, effect: Effect, turn: &mut Turn<'_>, pools: &mut Pools) {
        match effect {
            Effect::Op(op) => turn.emit(turn.device(), EventKind::AtbOp(op)),
            Effect::Tensors(op) => self.tensors(&op, turn),
            Effect::Workspace { begins, addr, size_bytes } => self.workspace(begins, addr, size_bytes, turn, pools),
        }
    }

    /// An operation is called with a workspace, or returns. To msMemScope that is a heap of ATB's pool, with blocks
    /// inside; those are reported only to a tool. So the whole workspace is the block.
    ///
    /// The caller of ATB has allocated it: nothing is learnt from it of requests to a pool.
    fn workspace(&mut self, begins: bool, addr: u64, size_bytes: u64, turn: &mut Turn<'_>, pools: &mut Pools) {
        let tid = turn.at.tid;
        if begins {
            // An open one was left by an exception, or is inside of a plugin that calls ATB again.
            if let Some(left) = self.workspaces.remove(&tid) {
                workspace_ends(left, FreeCause::Replaced, turn, pools);
            }
            if addr != 0 && size_bytes != 0 {
                self.workspaces.insert(tid, addr);
                workspace_begins(addr, size_bytes, turn, pools);
            }
        } else if self.workspaces.get(&tid) == Some(&addr) {
            self.workspaces.remove(&tid);
            workspace_ends(addr, FreeCause::Program, turn, pools);
        }
    }

    /// An operation uses tensors.
    fn tensors(&self, op: &AtbTensors, turn: &mut Turn<'_>) {
        let device = turn.device();
        let pool = pool_of(turn);
        let open = self.workspaces.get(&turn.at.tid).map(|addr| Key::Pool(pool, *addr));
        let workspace = open.and_then(|key| turn.home.blocks.get(key)).map(|live| live.block);
        for tensor in &op.tensors {
            let inside = |addr: u64, size_bytes: u64| tensor.1.addr.checked_sub(addr).is_some_and(|at| at < size_bytes);
            let block = workspace.filter(|block| inside(block.addr, block.size_bytes));
            let access = op.access(tensor, pool, block.map_or(0, |block| block.allocation_id));
            turn.emit(device, EventKind::Access(access));
        }
        if op.left_out > 0 {
            turn.emit(device, EventKind::UsesLeftOut);
        }
    }
}

/// The pool that workspaces of operations are of.
fn pool_of(turn: &Turn<'_>) -> Pool {
    let backend = turn.backend();
    backend.pool_of_operators(PoolOperators::Atb).unwrap_or_else(|| backend.custom_pool("operations"))
}

fn workspace_begins(addr: u64, size_bytes: u64, turn: &mut Turn<'_>, pools: &mut Pools) {
    let (pool, device) = (pool_of(turn), turn.device());
    pools.reports_itself(pool);
    pools.heaps.registered(pool, addr, addr, device, size_bytes);
    let totals = pools.heaps.totals(pool, device);
    turn.hand_out(Key::Pool(pool, addr), &NewBlock::of_pool(pool, device, addr, size_bytes), totals);
}

fn workspace_ends(addr: u64, cause: FreeCause, turn: &mut Turn<'_>, pools: &mut Pools) {
    let pool = pool_of(turn);
    let key = Key::Pool(pool, addr);
    let device = turn.home.blocks.get(key).map_or(Device::None, |live| live.block.device);
    pools.heaps.unregistered(pool, addr);
    let totals = pools.heaps.totals(pool, device);
    // Another thread with the same memory may have ended it.
    turn.free(key, cause, totals);
}
