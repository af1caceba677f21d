//! Calls of a thread between two calls to the pool; the next one shows their purpose.
//!
//! Driver calls inside of a request are the pool's own: the model makes its own. Others are the program's: segments
//! freed outside of requests mean that the cache was emptied, allocated memory is others' memory.

use super::words::{Op, Words};

/// Distinguishes handles of physical memory from addresses.
pub(super) const HANDLE: u64 = 1 << 63;

/// Driver calls of one thread that wait for a decision; beyond that they count as not of the pool.
const MAX_WAITING: usize = 1 << 16;

/// A driver block of unknown use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grown {
    pub(super) time_ns: u64,
    /// Key of the driver block.
    pub(super) key: u64,
    pub(super) device: u8,
    pub(super) bytes: u64,
    /// Place of its operation.
    pub(super) at: usize,
}

impl Grown {
    /// It is a page of an expandable segment, not a plain segment.
    pub(super) const fn is_page(&self) -> bool {
        self.key & HANDLE != 0
    }
}

/// Reserved addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reserved {
    pub(super) time_ns: u64,
    pub(super) device: u8,
    pub(super) addr: u64,
}

/// Segments were freed, maybe because the cache was emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Emptied {
    time_ns: u64,
    at: usize,
    device: u8,
    /// The program has called for it, and no segment was freed yet.
    called: Option<Op>,
}

/// A thread.
#[derive(Debug, Default)]
pub(super) struct Thread {
    grown: Vec<Grown>,
    reserved: Vec<Reserved>,
    emptied: Vec<Emptied>,
    /// Place kept for a request that may have failed, and its device.
    failed: Option<(usize, u8)>,
    /// Slots of blocks that came back while the pool waited for the device, as its request had failed: the model's own retry brings
    /// them back, so they are given back behind the request.
    returned: Vec<u32>,
    /// Lane of its last request, by device.
    lanes: Vec<(u8, u16)>,
}

/// The purpose of driver calls inside of a request.
#[derive(Debug, Default)]
pub(super) struct OfPool {
    pub(super) segments: Vec<Grown>,
    pub(super) reservations: Vec<Reserved>,
    /// The request was not retried, and no segment was given back for it.
    pub(super) is_clean: bool,
}

impl OfPool {
    /// Whether the pool got memory or addresses for it.
    pub(super) const fn has_grown(&self) -> bool {
        !self.segments.is_empty() || !self.reservations.is_empty()
    }
}

impl Thread {
    pub(super) fn grown(&mut self, grown: Grown) {
        if self.grown.len() < MAX_WAITING {
            self.grown.push(grown);
        }
    }

    pub(super) fn reserved(&mut self, reserved: Reserved) {
        if self.reserved.len() < MAX_WAITING {
            self.reserved.push(reserved);
        }
    }

    /// The program has the pool give back memory, by `op`: segments freed next are part of that.
    pub(super) fn emptied(&mut self, time_ns: u64, device: u8, op: Op, words: &mut Words) {
        self.emptied.retain(|emptied| emptied.device != device);
        self.emptied.push(Emptied { time_ns, at: words.push(op), device, called: Some(op) });
    }

    /// Whether the program has the pool of a device give back memory, or a segment of it was freed, since the last call to the pool.
    pub(super) fn is_emptying(&self, device: u8) -> bool {
        self.emptied.iter().any(|emptied| emptied.device == device)
    }

    /// A segment was freed. The first one is when the pool gives memory back: other threads may have made requests since the call.
    pub(super) fn segment_freed(&mut self, time_ns: u64, device: u8, words: &mut Words) {
        match self.emptied.iter_mut().find(|emptied| emptied.device == device) {
            None => {
                let at = words.push(Op::EmptyCache { device });
                self.emptied.push(Emptied { time_ns, at, device, called: None });
            }
            Some(emptied) => {
                if let Some(op) = emptied.called.take() {
                    words.replace(emptied.at, Op::Nothing { words: 1 });
                    emptied.at = words.push(op);
                }
            }
        }
    }

    /// A driver call for memory failed: earlier frees were for it.
    pub(super) fn driver_failed(&mut self, device: u8, words: &mut Words) {
        for emptied in self.emptied.drain(..) {
            words.replace(emptied.at, Op::Nothing { words: 1 });
        }
        if self.failed.is_none() {
            self.failed = Some((words.push(Op::Nothing { words: 2 }), device));
        }
    }

    /// Whether a call for memory has failed since the last call to the pool.
    pub(super) const fn is_failing(&self) -> bool {
        self.failed.is_some()
    }

    /// A block came back, that streams had used. Whether it waits for the end of the request.
    pub(super) fn returned(&mut self, slot: u32) -> bool {
        let waits = self.is_failing() && self.returned.len() < MAX_WAITING;
        if waits {
            self.returned.push(slot);
        }
        waits
    }

    /// Blocks that waited for the end of the request.
    pub(super) fn take_returned(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.returned)
    }

    /// Takes a driver block out of the waiting ones.
    pub(super) fn take(&mut self, key: u64) -> Option<Grown> {
        let index = self.grown.iter().position(|grown| grown.key == key)?;
        Some(self.grown.swap_remove(index))
    }

    /// A request made at that time got its block.
    pub(super) fn got(&mut self, asked_ns: Option<u64>, words: &mut Words) -> OfPool {
        let failed = self.failed.take().is_some();
        let inside = self.inside(asked_ns, words, true);
        OfPool { is_clean: inside.is_clean && !failed, ..inside }
    }

    /// A request made at that time got none. Returns the place where it failed, if the driver had refused it, or had
    /// got segments back for it.
    pub(super) fn refused(&mut self, asked_ns: u64, words: &mut Words) -> (OfPool, Option<(usize, u8)>) {
        let failed = self.failed.take();
        let limited = self.emptied.iter().find(|emptied| emptied.time_ns >= asked_ns).map(|emptied| emptied.device);
        // It did not go on after its last failure: later frees are the program's.
        let of_pool = self.inside(Some(asked_ns), words, failed.is_none());
        let at = failed.or_else(|| limited.map(|device| (words.push(Op::Nothing { words: 2 }), device)));
        (of_pool, at)
    }

    /// No request was open.
    pub(super) fn idle(&mut self) {
        self.failed = None;
        self.grown.clear();
        self.reserved.clear();
        self.emptied.clear();
    }

    fn inside(&mut self, asked_ns: Option<u64>, words: &mut Words, frees_too: bool) -> OfPool {
        let Some(asked_ns) = asked_ns else {
            // Its time is unknown: allocations count as its own, frees as the program's.
            self.emptied.clear();
            let of_pool = OfPool { segments: std::mem::take(&mut self.grown), ..OfPool::default() };
            return OfPool { reservations: std::mem::take(&mut self.reserved), ..of_pool };
        };
        let mut is_clean = true;
        for emptied in self.emptied.drain(..) {
            if frees_too && emptied.time_ns >= asked_ns {
                is_clean = false;
                words.replace(emptied.at, Op::Nothing { words: 1 });
            }
        }
        let segments = self.grown.drain(..).filter(|grown| grown.time_ns >= asked_ns).collect();
        let reservations = self.reserved.drain(..).filter(|reserved| reserved.time_ns >= asked_ns).collect();
        OfPool { segments, reservations, is_clean }
    }

    pub(super) fn used_lane(&mut self, device: u8, lane: u16) {
        match self.lanes.iter_mut().find(|(known, _)| *known == device) {
            Some(known) => known.1 = lane,
            None => self.lanes.push((device, lane)),
        }
    }

    pub(super) fn lane(&self, device: u8) -> Option<u16> {
        self.lanes.iter().find(|(known, _)| *known == device).map(|(_, lane)| *lane)
    }
}
