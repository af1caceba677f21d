//! What users of mstx tell: domains, and blocks of their pools.

use std::sync::Arc;

use super::super::blocks::Key;
use super::super::domains::{MstxCall, Range};
use super::super::item::{PoolChange, PoolReport, PoolTotals};
use super::{At, Process, Shared};
use crate::model::{Device, EventKind, Mark, Name, Pool};

/// A domain of which no name is known.
const UNKNOWN: Name = Name::fixed(&"unknown");

impl Process {
    /// A call of mstx.
    pub(super) fn mstx(&mut self, at: At, call: MstxCall, shared: &mut Shared) {
        match call {
            MstxCall::DomainCreated { handle, name } => {
                self.domains.created(at.tid, handle, name.as_deref().unwrap_or_default());
            }
            MstxCall::DomainDestroyed { handle } => self.domains.destroyed(handle),
            MstxCall::HeapRegistered { domain, handle, range } => {
                let pool = self.domains.pool(at.tid, domain);
                let device = Device::Npu(self.physical_device(range.device));
                self.domains.heap_registered(pool, handle, range.addr, device, range.size_bytes);
            }
            MstxCall::HeapUnregistered { domain, handle } => {
                let pool = self.domains.pool(at.tid, domain);
                self.domains.heap_unregistered(pool, handle);
            }
            MstxCall::RegionRegistered { domain, handle, range } => {
                let pool = self.domains.pool(at.tid, domain);
                self.domains.region_registered(pool, handle, range.addr);
                let device = Device::Npu(self.physical_device(range.device));
                let totals = self.mstx_totals(pool, device);
                let Range { device, addr, size_bytes } = range;
                let (change, device, size_bytes) = (PoolChange::Alloc, Some(device), Some(size_bytes));
                self.mstx_told(at, &PoolReport { pool, change, device, addr, size_bytes, totals }, shared);
            }
            MstxCall::RegionUnregistered { domain, reference } => {
                let pool = self.domains.pool(at.tid, domain);
                let Some(addr) = self.domains.region_unregistered(pool, reference) else { return };
                let device = self.blocks.get(Key::Pool(pool, addr)).map(|live| live.block.device);
                let totals = device.and_then(|device| self.mstx_totals(pool, device));
                let change = PoolChange::Free;
                let report = PoolReport { pool, change, device: None, addr, size_bytes: None, totals };
                self.mstx_told(at, &report, shared);
            }
        }
    }

    /// A pool that one of its own functions tells of is not believed a second time.
    fn mstx_told(&mut self, at: At, report: &PoolReport, shared: &mut Shared) {
        if !self.told_by_function.contains(&report.pool) {
            self.pool_reported(at, report, shared);
        }
    }

    /// What a pool holds, by its heaps.
    pub(super) fn mstx_totals(&self, pool: Pool, device: Device) -> Option<PoolTotals> {
        let reserved_bytes = self.domains.reserved_bytes(pool, device)?;
        Some(PoolTotals { used_bytes: None, reserved_bytes, active_bytes: 0 })
    }

    /// A mark of a domain. None of them is a step.
    pub(super) fn domain_mark(&mut self, at: At, domain: u64, mark: Mark, shared: &mut Shared) {
        let domain = self.domains.name(at.tid, domain).unwrap_or(UNKNOWN);
        let device = self.device_of(at.tid);
        self.emit(at, device, EventKind::DomainMark { domain, mark }, self.steps.inside(), shared);
    }

    /// A range of a domain begins.
    pub(super) fn domain_range_start(&mut self, at: At, domain: u64, text: Option<Arc<str>>, shared: &mut Shared) {
        let range_id = self.ranges.start(at.tid, Some(domain));
        self.domain_mark(at, domain, Mark::RangeStart { text, range_id }, shared);
    }

    /// A range of a domain ends.
    pub(super) fn domain_range_end(&mut self, at: At, domain: u64, passed_id: u64, shared: &mut Shared) {
        let range_id = self.ranges.end(at.tid, Some(domain), passed_id);
        self.domain_mark(at, domain, Mark::RangeEnd { range_id, passed_id }, shared);
    }
}
