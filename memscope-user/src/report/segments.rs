//! Segments: driver memory in which pools hand out blocks.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::model::{Alloc, AllocApi, Event, EventKind, Free, Pool, Region, RegionKind};

/// Most segments kept, those with the most bytes × time.
const MAX_SEGMENTS: usize = 4096;
/// Most driver blocks followed at a time.
const MAX_LIVE: usize = 1 << 17;

/// A segment of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The pool that first handed out a block of it.
    pub pool: Pool,
    /// Its start.
    pub addr: u64,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// When it came, nanoseconds since the Unix epoch.
    pub start_ns: u64,
    /// When it went, nanoseconds since the Unix epoch.
    pub end_ns: u64,
    /// Nothing gave it back.
    pub held: bool,
}

#[derive(Clone, Copy, Debug)]
struct Live {
    size_bytes: u64,
    start_ns: u64,
    pool: Option<Pool>,
}

/// The segments of a process on a device.
#[derive(Debug, Default)]
pub(super) struct Segments {
    live: BTreeMap<u64, Live>,
    ended: Vec<Segment>,
    /// Segments that were left out.
    left_out: u64,
}

impl Segments {
    pub(super) fn observe(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Alloc(Alloc { block, .. }) if block.pool.is_driver() => {
                if block.api == AllocApi::Alloc {
                    self.begin(block.addr, block.size_bytes, event.time_ns);
                }
            }
            EventKind::Alloc(Alloc { block, .. }) if !block.pool.is_host() => self.used(block.addr, block.pool),
            EventKind::Free(Free { block, cause, .. }) if block.pool.is_driver() => {
                if block.api == AllocApi::Alloc {
                    self.end(block.addr, event.time_ns, !cause.gave_back());
                }
            }
            EventKind::Region(Region { kind: RegionKind::Mapping, begins, addr, size_bytes, .. }) => {
                if *begins {
                    self.begin(*addr, *size_bytes, event.time_ns);
                } else {
                    self.end(*addr, event.time_ns, false);
                }
            }
            _ => {}
        }
    }

    fn begin(&mut self, addr: u64, size_bytes: u64, start_ns: u64) {
        if self.live.len() < MAX_LIVE {
            self.live.insert(addr, Live { size_bytes, start_ns, pool: None });
        }
    }

    fn used(&mut self, addr: u64, pool: Pool) {
        if let Some((start, live)) = self.live.range_mut(..=addr).next_back()
            && addr - start < live.size_bytes
        {
            live.pool.get_or_insert(pool);
        }
    }

    fn end(&mut self, addr: u64, end_ns: u64, held: bool) {
        let Some(Live { size_bytes, start_ns, pool: Some(pool) }) = self.live.remove(&addr) else { return };
        self.ended.push(Segment { pool, addr, size_bytes, start_ns, end_ns: end_ns.max(start_ns), held });
        if self.ended.len() > 2 * MAX_SEGMENTS {
            self.cut();
        }
    }

    fn cut(&mut self) {
        if self.ended.len() > MAX_SEGMENTS {
            let rank = |it: &Segment| {
                let area = u128::from(it.size_bytes) * u128::from((it.end_ns - it.start_ns).max(1));
                (Reverse(area), it.start_ns, it.addr)
            };
            self.ended.select_nth_unstable_by_key(MAX_SEGMENTS - 1, rank);
            self.left_out += (self.ended.len() - MAX_SEGMENTS) as u64;
            self.ended.truncate(MAX_SEGMENTS);
        }
    }

    /// The segments in order of address and time, and the number left out.
    pub(super) fn close(mut self, end_ns: u64) -> (Vec<Segment>, u64) {
        for addr in self.live.keys().copied().collect::<Vec<_>>() {
            self.end(addr, end_ns, true);
        }
        self.cut();
        self.ended.sort_unstable_by_key(|it| (it.addr, it.start_ns));
        (self.ended, self.left_out)
    }
}
