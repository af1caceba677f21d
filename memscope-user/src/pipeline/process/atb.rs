//! ATB's operations: the memory that they work in, and their tensors.

use super::super::atb::AtbTensors;
use super::super::blocks::Key;
use super::super::item::{Request, Workspace};
use super::memory::New;
use super::{At, Process, Shared};
use crate::model::{AllocApi, Device, EventKind, FreeCause, PageType, Pool};

impl Process {
    /// An operation is called with a workspace, or returns. To msMemScope that is a heap of ATB's pool, with blocks that come
    /// and go within it; those are told to a tool alone. So the whole is the block.
    ///
    /// Whoever calls ATB has allocated it: nothing is learnt from it of requests to a pool.
    pub(super) fn atb_workspace(&mut self, at: At, workspace: Workspace, shared: &mut Shared) {
        let Workspace { begins, addr, size_bytes } = workspace;
        if begins {
            // One that is open was left by an exception, or is inside of a plugin that calls ATB again.
            if let Some(left) = self.workspaces.remove(&at.tid) {
                self.workspace_ends(at, left, FreeCause::Replaced, shared);
            }
            if addr != 0 && size_bytes != 0 {
                self.workspaces.insert(at.tid, addr);
                self.workspace_begins(at, addr, size_bytes, shared);
            }
        } else if self.workspaces.get(&at.tid) == Some(&addr) {
            self.workspaces.remove(&at.tid);
            self.workspace_ends(at, addr, FreeCause::Program, shared);
        }
    }

    fn workspace_begins(&mut self, at: At, addr: u64, size_bytes: u64, shared: &mut Shared) {
        let pool = Pool::Atb;
        if !self.told_by_function.contains(&pool) {
            self.told_by_function.push(pool);
        }
        let key = Key::Pool(pool, addr);
        let device = self.device_of(at.tid);
        self.domains.heap_registered(pool, addr, addr, device, size_bytes);
        let totals = self.mstx_totals(pool, device);
        let request = Request {
            addr,
            size_bytes,
            flags: 0,
            pool,
            device,
            module_id: None,
            page: PageType::Normal,
            api: AllocApi::Alloc,
            caller: None,
        };
        self.hand_out(at, New { key, request, requested_bytes: None, totals }, shared);
    }

    fn workspace_ends(&mut self, at: At, addr: u64, cause: FreeCause, shared: &mut Shared) {
        let pool = Pool::Atb;
        let key = Key::Pool(pool, addr);
        let device = self.blocks.get(key).map_or(Device::None, |live| live.block.device);
        self.domains.heap_unregistered(pool, addr);
        let totals = self.mstx_totals(pool, device);
        // Another thread that was given the same memory may have ended it.
        let _ = self.free(at, key, cause, totals, shared);
    }

    /// An operation uses tensors.
    pub(super) fn atb_tensors(&mut self, at: At, op: &AtbTensors, shared: &mut Shared) {
        let device = self.device_of(at.tid);
        let open = self.workspaces.get(&at.tid).map(|addr| Key::Pool(Pool::Atb, *addr));
        let workspace = open.and_then(|key| self.blocks.get(key)).map(|live| live.block);
        for tensor in &op.tensors {
            let inside = |addr: u64, size_bytes: u64| tensor.addr.checked_sub(addr).is_some_and(|at| at < size_bytes);
            let block = workspace.filter(|block| inside(block.addr, block.size_bytes));
            let access = op.access(tensor, block.map_or(0, |block| block.allocation_id));
            self.emit(at, device, EventKind::Access(access), self.steps.inside(), shared);
        }
    }
}
