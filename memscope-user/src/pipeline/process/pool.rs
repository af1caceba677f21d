//! Blocks of the frameworks' pools, as the pools report them.

use super::super::blocks::Key;
use super::super::item::{PoolChange, PoolReport, Request};
use super::memory::New;
use super::{At, Process, Shared};
use crate::model::{AllocApi, BlockReturned, EventKind, FreeCause, Name, PageType, Pool};

impl Process {
    /// A pool tells of one of its blocks, by a function of its own.
    pub(super) fn pool_function_reported(&mut self, at: At, report: &PoolReport, shared: &mut Shared) {
        let PoolReport { pool, change, addr, size_bytes, .. } = *report;
        if self.mislocated && matches!(pool, Pool::Pta | Pool::PtaWorkspace) {
            shared.mislocated += 1;
            return;
        }
        if !self.told_by_function.contains(&pool) {
            self.told_by_function.push(pool);
            // Through mstx it may have told of this very block already; from now on only the function counts.
            let live = self.blocks.get(Key::Pool(pool, addr));
            if change == PoolChange::Alloc && live.is_some_and(|live| Some(live.block.size_bytes) == size_bytes) {
                return;
            }
        }
        self.pool_reported(at, report, shared);
    }

    /// A pool tells of one of its blocks.
    pub(super) fn pool_reported(&mut self, at: At, report: &PoolReport, shared: &mut Shared) {
        self.has_pool |= is_framework(report.pool);
        let key = Key::Pool(report.pool, report.addr);
        match report.change {
            PoolChange::Alloc => self.pool_allocated(at, key, report, shared),
            PoolChange::Free => self.pool_freed(at, key, report, shared),
            PoolChange::Returned => self.pool_returned(at, key, report, shared),
        }
    }

    fn pool_allocated(&mut self, at: At, key: Key, report: &PoolReport, shared: &mut Shared) {
        let PoolReport { pool, device, addr, size_bytes, totals, .. } = *report;
        let (Some(size_bytes), true) = (size_bytes, addr != 0) else { return };
        if is_framework(pool)
            && let Some(request) = self.requests.succeeded(at.tid)
        {
            self.recovered(at, request, shared);
        }
        // Both records of a workspace that grows tell of one block (ascend-abi §6.2).
        if pool == Pool::PtaWorkspace && self.blocks.get(key).is_some_and(|live| live.block.size_bytes == size_bytes) {
            return;
        }
        let wanted = if is_framework(pool) { self.wanted_bytes.remove(&at.tid) } else { None };
        let requested_bytes = wanted.filter(|wanted| *wanted <= size_bytes);
        let request = Request {
            addr,
            size_bytes,
            flags: 0,
            pool,
            device: self.pool_device(at, device),
            module_id: None,
            page: PageType::Normal,
            api: AllocApi::Alloc,
            caller: None,
        };
        self.hand_out(at, New { key, request, requested_bytes, totals }, shared);
    }

    fn pool_freed(&mut self, at: At, key: Key, report: &PoolReport, shared: &mut Shared) {
        match self.free(at, key, FreeCause::Program, report.totals, shared) {
            Some(live) if !live.returned => self.leaving.insert(key, live.block.allocation_id),
            Some(_) => {}
            None => self.unknown_free(at, report.pool, report.addr, false, shared),
        }
    }

    /// The pool has the block back: just before the program's free is told, or later if a stream still used it.
    fn pool_returned(&mut self, at: At, key: Key, report: &PoolReport, shared: &mut Shared) {
        let PoolReport { pool, device, addr, size_bytes, totals, .. } = *report;
        let allocation_id = if self.blocks.change(key, |live| live.returned = true) {
            self.blocks.number(key)
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
            total_bytes: totals.reserved_bytes,
            active_bytes: totals.active_bytes,
        };
        let device = self.pool_device(at, device);
        self.emit(at, device, EventKind::BlockReturned(returned), self.steps.inside(), shared);
    }

    /// The wrong function was found: nothing that it says counts from here on, and everybody is told.
    pub(super) fn mislocated(&mut self, at: At, symbol: Name, shared: &mut Shared) {
        shared.mislocated += 1;
        if !std::mem::replace(&mut self.mislocated, true) {
            let device = self.device_of(at.tid);
            self.emit(at, device, EventKind::ProbeDisabled { symbol }, true, shared);
        }
    }
}

/// A pool that gets its memory from ACL: if that was refused, it tells itself whether it got what it wanted.
const fn is_framework(pool: Pool) -> bool {
    !matches!(pool, Pool::Named(_))
}
