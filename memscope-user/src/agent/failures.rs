//! Requests that failed for want of memory: what the process held at that moment, made outside of it, so that it is whole although
//! the process is killed.

use serde::Serialize;

use super::series::{Series, SeriesKey};
use crate::{
    hash::HashMap,
    model::{AllocFailed, Device, Event, Pool, Stacks},
};

/// Places of a bundle.
const MAX_PLACES: usize = 50;
/// Bundles that wait to be written.
const MAX_WAITING: usize = 16;
/// One bundle of a process in this time.
const PAUSE_NS: u64 = 60_000_000_000;
/// Processes of which the last bundle is remembered.
const MAX_REMEMBERED: usize = 16_384;

/// A place in a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BundlePlace {
    /// Where.
    pub stacks: Stacks,
    /// Size of its blocks, where there is no stack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Live blocks.
    pub live_blocks: u64,
    /// Their bytes.
    pub live_bytes: u64,
}

/// A pool in a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BundlePool {
    /// Device.
    pub device: Device,
    /// Pool.
    pub pool: Pool,
    /// Live blocks.
    pub live_blocks: u64,
    /// Their bytes.
    pub live_bytes: u64,
    /// What the pool says it has handed out.
    pub used_bytes: Option<u64>,
    /// What the pool says it holds.
    pub reserved_bytes: Option<u64>,
    /// Bytes that are in no place.
    pub untracked_bytes: u64,
    /// The places that hold most.
    pub places: Vec<BundlePlace>,
}

/// What was there when a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bundle {
    /// When, nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Process.
    pub pid: u32,
    /// Device.
    pub device: Device,
    /// The pool that was asked.
    pub pool: Pool,
    /// How much.
    pub requested_bytes: u64,
    /// Code that the request returned.
    pub status: i32,
    /// Where it was asked for.
    pub stacks: Stacks,
    /// It succeeded at a further attempt.
    pub recovered: bool,
    /// Number of the request in its process.
    pub request: u64,
    /// The process's pools.
    pub pools: Vec<BundlePool>,
}

/// Makes bundles.
#[derive(Debug, Default)]
pub(super) struct Failures {
    waiting: Vec<Bundle>,
    last_ns: HashMap<u32, u64>,
}

impl Failures {
    /// A request has failed. `sheets`: all pools of the process.
    pub(super) fn failed(&mut self, event: &Event, failed: &AllocFailed, sheets: Vec<(SeriesKey, &Series)>) {
        let is_soon = self.last_ns.get(&event.pid).is_some_and(|last| event.time_ns.saturating_sub(*last) < PAUSE_NS);
        let is_full = self.waiting.len() >= MAX_WAITING
            || self.last_ns.len() >= MAX_REMEMBERED && !self.last_ns.contains_key(&event.pid);
        if is_soon || is_full {
            return;
        }
        self.last_ns.insert(event.pid, event.time_ns);
        let mut pools: Vec<BundlePool> = sheets.into_iter().map(|(key, series)| pool(key, series)).collect();
        pools.sort_by_key(|pool| (pool.device, pool.pool));
        self.waiting.push(Bundle {
            time_ns: event.time_ns,
            pid: event.pid,
            device: event.device,
            pool: failed.pool,
            requested_bytes: failed.size_bytes,
            status: failed.status,
            stacks: event.stacks,
            recovered: false,
            request: failed.request,
            pools,
        });
    }

    /// A request has succeeded after all.
    pub(super) fn recovered(&mut self, pid: u32, request: u64) {
        let of_request = self.waiting.iter_mut().filter(|bundle| (bundle.pid, bundle.request) == (pid, request));
        of_request.for_each(|bundle| bundle.recovered = true);
    }

    pub(super) fn ended(&mut self, pid: u32) {
        self.last_ns.remove(&pid);
    }

    pub(super) fn take(&mut self) -> Vec<Bundle> {
        std::mem::take(&mut self.waiting)
    }
}

fn pool(key: SeriesKey, series: &Series) -> BundlePool {
    let places = series.largest_places(MAX_PLACES).into_iter().map(|(place, sum)| BundlePlace {
        stacks: place.stacks,
        size_bytes: place.stacks.is_empty().then_some(place.size_bytes),
        live_blocks: sum.live_blocks,
        live_bytes: sum.live_bytes,
    });
    BundlePool {
        device: key.device,
        pool: key.pool,
        live_blocks: series.live_blocks,
        live_bytes: series.live_bytes,
        used_bytes: series.used_bytes,
        reserved_bytes: series.reserved_bytes,
        untracked_bytes: series.untracked_bytes(),
        places: places.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{agent::books::Books, analyses::script::Script, backend::ascend::pools};

    /// The bundle has the request, and each pool with its places, the largest first; a second failure within a minute makes none.
    #[test]
    fn bundle_of_a_failed_request() {
        let mut script = Script::new(7, Device::Npu(1));
        script.alloc(pools::HAL, 0x1000, 100).alloc(pools::HAL, 0x2000, 300).alloc(pools::PTA, 0x1000, 60);
        script.alloc_failed(pools::HAL, 1 << 30, (1, 1)).alloc_failed(pools::HAL, 1 << 29, (2, 1));
        script.alloc_recovered(pools::HAL, 1 << 30, 1);
        let mut books = Books::default();
        script.events().iter().for_each(|event| books.observe(event));
        let bundles = books.take().bundles;
        assert_eq!(bundles.len(), 1, "{bundles:#?}");
        let bundle = &bundles[0];
        assert_eq!((bundle.pid, bundle.device, bundle.requested_bytes), (7, Device::Npu(1), 1 << 30));
        assert!(bundle.recovered);
        let sums: Vec<_> = bundle.pools.iter().map(|pool| (pool.pool, pool.live_bytes, pool.places.len())).collect();
        assert_eq!(sums, [(pools::HAL, 400, 2), (pools::PTA, 60, 1)]);
        assert_eq!((bundle.pools[0].places[0].size_bytes, bundle.pools[0].places[0].live_bytes), (Some(300), 300));
        assert!(books.take().bundles.is_empty());
    }
}
