//! Sums of one process on one device.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Ledger;
use super::memory::Figures;
use crate::model::{Device, Module, Pool, ProcessUsage};

/// Blocks and their bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::analyses) struct Sum {
    pub(in crate::analyses) blocks: u64,
    pub(in crate::analyses) size_bytes: u128,
}

impl Sum {
    pub(in crate::analyses) fn add(&mut self, size_bytes: u64) {
        self.blocks += 1;
        self.size_bytes += u128::from(size_bytes);
    }

    pub(in crate::analyses) fn take(&mut self, size_bytes: u64) {
        self.blocks -= 1;
        self.size_bytes -= u128::from(size_bytes);
    }
}

/// Sums of one pool. A pool's blocks and its segments can differ in their device, so each is counted on its own.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::analyses) struct PoolAccount {
    /// Driver blocks that are segments of this pool.
    pub(in crate::analyses) segments: Sum,
    /// Bytes of this pool's blocks in those segments.
    pub(in crate::analyses) filled: u128,
    /// Excess of blocks over the size of their segment, summed over segments.
    pub(in crate::analyses) shared: u128,
    /// Bytes of this device's blocks in segments of the pool, of other pools, and in all.
    pub(in crate::analyses) inside: u128,
    pub(in crate::analyses) nested: u128,
    pub(in crate::analyses) handed: Sum,
    /// Blocks of other pools that hold this pool's blocks, and how much of them has driver memory behind it.
    pub(in crate::analyses) borrowed: Sum,
    pub(in crate::analyses) borrowed_backed: u128,
    /// The pool's last figures: handed out, reserved.
    pub(in crate::analyses) reported: Option<(u64, u64)>,
}

/// The driver's figures, and the state of the process at that moment.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) pid: u32,
    pub(super) time_ns: u64,
    pub(super) used_bytes: u64,
    pub(super) total_bytes: u64,
    /// The process's own figure, if the driver lists it.
    pub(super) process_bytes: Option<u64>,
    pub(super) processes: Option<Arc<[ProcessUsage]>>,
    /// Its driver blocks.
    pub(super) hal_bytes: u128,
}

impl Sample {
    /// The driver's figures for a process that holds `hal_bytes`.
    pub(super) fn of(pid: u32, (time_ns, usage): &Figures, hal_bytes: u128) -> Self {
        let own = |list: &[ProcessUsage]| list.iter().find(|process| process.pid == pid).copied();
        Self {
            pid,
            time_ns: *time_ns,
            used_bytes: usage.used_bytes,
            total_bytes: usage.total_bytes,
            process_bytes: usage.processes.as_deref().and_then(own).map(|process| process.used_bytes),
            processes: usage.processes.clone(),
            hal_bytes,
        }
    }
}

/// Sums of one process on one device.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// Driver blocks.
    pub(super) hal: u128,
    /// All of them by module.
    pub(super) modules: BTreeMap<&'static str, Sum>,
    /// Those outside of segments, by module.
    pub(super) unpooled: BTreeMap<Option<Module>, Sum>,
    pub(super) pools: BTreeMap<Pool, PoolAccount>,
    pub(super) sample: Option<Sample>,
    /// Most driver memory so far, and the most of it that pools had handed out.
    top: (u128, u128),
    at_top: bool,
    pub(super) peak: Option<Box<Ledger>>,
}

impl Account {
    /// An empty one.
    pub(super) fn new(sample: Option<Sample>) -> Self {
        Self { sample, ..Self::default() }
    }

    pub(super) fn pool(&mut self, pool: Pool) -> &mut PoolAccount {
        self.pools.entry(pool).or_default()
    }

    /// Whether this is the highest so far. Call before a decrease; the answer is yes once for each top.
    pub(super) fn leaves_top(&mut self) -> bool {
        std::mem::take(&mut self.at_top)
    }

    /// A figure may have grown.
    pub(super) fn grown(&mut self) {
        let height = (self.hal, self.pools.values().map(|pool| pool.filled).sum());
        if height > self.top {
            self.top = height;
            self.at_top = true;
        }
    }

    /// The process has not shrunk since its peak.
    pub(super) const fn is_at_top(&self) -> bool {
        self.at_top
    }

    /// New figures of the driver. A process that it does not list holds nothing there, or is hidden from us: then the
    /// last figures that list it are better.
    pub(super) fn sampled(&mut self, sample: Sample) {
        let listed = |sample: &Sample| sample.process_bytes.is_some();
        if listed(&sample) || !self.sample.as_ref().is_some_and(listed) {
            self.sample = Some(sample);
        }
    }
}

/// Devices are few: a process has as many accounts.
pub(super) type Accounts = BTreeMap<Device, Account>;
