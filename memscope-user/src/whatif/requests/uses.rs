//! When blocks are used last, as operators show it.
//!
//! A block that an operator reads is in use until the operator ends: it asks for its results in between.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::hash::HashMap;
use crate::model::Block;

/// The last use of a request that is not asked about.
const NOT_ASKED: u32 = u32::MAX;
/// It has one that is not known.
const LOST: u32 = u32::MAX - 1;
/// None was seen: before all operations there is no block.
const UNSEEN: u32 = 0;
/// Blocks in use by one thread, beyond which the oldest count as used at a time that is not known.
const MAX_USED: usize = 1 << 12;
/// Operators inside of each other.
const MAX_DEPTH: usize = 256;

/// What is known of the last use of a request's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::whatif) enum LastUse {
    /// It is not asked about.
    NotAsked,
    /// None was seen, or it is not known when the last one was.
    Unknown,
    /// Behind it is this place among the operations.
    Before(usize),
}

/// Last uses of the blocks that are asked about.
#[derive(Clone, Debug, Default)]
pub(in crate::whatif) struct LastUses {
    /// By request.
    places: Vec<u32>,
    /// Uses that were seen, of any blocks.
    pub(in crate::whatif) seen: u64,
    /// Operators that used more than that.
    pub(in crate::whatif) left_out: u64,
    /// Records of operators were lost.
    pub(in crate::whatif) lost: bool,
    /// The recording has the end of the process: there are no later uses.
    pub(in crate::whatif) ended: bool,
}

impl LastUses {
    pub(in crate::whatif) fn of(&self, number: u64) -> LastUse {
        match self.places.get(number as usize).copied() {
            None | Some(NOT_ASKED) => LastUse::NotAsked,
            Some(UNSEEN | LOST) => LastUse::Unknown,
            Some(place) => LastUse::Before(place as usize),
        }
    }

    pub(in crate::whatif) const fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<u32>()
    }
}

/// Operators of a thread, and the requests of the blocks that they use.
#[derive(Debug, Default)]
struct Open {
    operators: Vec<Arc<str>>,
    used: Vec<u32>,
    /// Not all of them are known.
    left_out: bool,
}

/// A live block.
#[derive(Debug)]
struct Live {
    bytes: u64,
    number: u32,
    /// Place of its request.
    since: usize,
}

/// Follows the uses of a process.
#[derive(Debug, Default)]
pub(super) struct Uses {
    found: LastUses,
    /// Live blocks that are asked about, by index of the device and start.
    live: BTreeMap<(u8, u64), Live>,
    threads: HashMap<u32, Open>,
    /// Place behind the last operator with uses that are not known: it may have used any block.
    left_out: usize,
}

impl Uses {
    /// The next request got a block; its operation is at the place `since`.
    pub(super) fn allocated(&mut self, device: u8, block: &Block, is_asked: bool, since: usize) {
        let number = self.found.places.len() as u32;
        self.found.places.push(if is_asked { UNSEEN } else { NOT_ASKED });
        if is_asked {
            self.live.insert((device, block.addr), Live { bytes: block.size_bytes, number, since });
        }
    }

    pub(super) fn freed(&mut self, device: u8, addr: u64) {
        if let Some(live) = self.live.remove(&(device, addr)) {
            self.ended(&live);
        }
    }

    /// An operator of a thread uses what lies there. `at` is the place of the next operation.
    pub(super) fn used(&mut self, tid: u32, device: u8, addr: u64, at: usize) {
        self.found.seen += 1;
        let Some((&(of, start), &Live { bytes, number, .. })) = self.live.range(..=(device, addr)).next_back() else {
            return;
        };
        if of != device || addr - start >= bytes {
            return;
        }
        let open = self.threads.entry(tid).or_default();
        if open.operators.is_empty() {
            // What it returns is reported with its end.
            self.found.is_used(number, at);
            return;
        }
        if open.used.len() >= MAX_USED {
            self.found.places[open.used.remove(0) as usize] = LOST;
        }
        open.used.push(number);
    }

    /// An operator begins. One of torch's is inside of no other one: what was open has been left by an exception.
    pub(super) fn begins(&mut self, tid: u32, name: &Arc<str>, is_outermost: bool, at: usize) {
        if is_outermost {
            self.left(tid, at);
        }
        let operators = &mut self.threads.entry(tid).or_default().operators;
        if operators.len() < MAX_DEPTH {
            operators.push(Arc::clone(name));
        }
    }

    /// The innermost operator of this name has ended, with all inside of it.
    pub(super) fn ends(&mut self, tid: u32, name: &str, at: usize) {
        let Some(open) = self.threads.get_mut(&tid) else { return };
        let index = open.operators.iter().rposition(|open| **open == *name).unwrap_or(0);
        open.operators.truncate(index);
        if index == 0 {
            self.left(tid, at);
        }
    }

    /// No operator of the thread is open any more.
    fn left(&mut self, tid: u32, at: usize) {
        let open = self.threads.remove(&tid).unwrap_or_default();
        for number in open.used {
            self.found.is_used(number, at);
        }
        if open.left_out {
            self.left_out = at;
        }
    }

    /// The operator of this thread uses more than is known.
    pub(super) fn left_out(&mut self, tid: u32, at: usize) {
        self.found.left_out += 1;
        self.left_out = at;
        if let Some(open) = self.threads.get_mut(&tid) {
            open.left_out = true;
        }
    }

    /// A block is freed, or the recording ends: what may have used it counts.
    fn ended(&mut self, live: &Live) {
        let known = self.found.places[live.number as usize];
        if self.left_out >= live.since && known != UNSEEN && (known as usize) < self.left_out {
            self.found.is_used(live.number, self.left_out);
        }
    }

    /// `ended`: with the process.
    pub(super) fn conclude(mut self, ended: bool, at: usize) -> LastUses {
        for tid in self.threads.keys().copied().collect::<Vec<_>>() {
            self.left(tid, at);
        }
        for live in std::mem::take(&mut self.live).into_values() {
            self.ended(&live);
        }
        self.found.places.shrink_to_fit();
        LastUses { ended, ..self.found }
    }
}

impl LastUses {
    fn is_used(&mut self, number: u32, at: usize) {
        let place = &mut self.places[number as usize];
        if *place != LOST {
            *place = u32::try_from(at).unwrap_or(LOST).min(LOST);
        }
    }
}
