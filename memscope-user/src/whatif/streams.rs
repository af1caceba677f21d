//! When blocks come back that streams use: earlier or later than in the recording.
//!
//! The lag of a block is the number of requests between its free and its return. It does not depend on settings, but differs between
//! runs: with how busy the machine is, and with what the trace itself costs. Replays with other lags show which figures depend on it.

use std::collections::BTreeMap;

use super::requests::{Op, Requests, Slots, Words};
use crate::hash::HashMap;

/// Lags of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lags {
    /// As multiples of the recorded ones; 0: blocks of streams come back with the next request.
    pub(super) times: u64,
    /// But at least these many requests.
    pub(super) least: u64,
}

impl Lags {
    const fn times(times: u64) -> Self {
        Self { times, least: 0 }
    }
}

/// Lags other than the recorded ones. They were chosen after a look at 108 real runs, of which their range holds 107. Where nearly all blocks of
/// a recording come back at once, multiples say nothing about a run in which they do not: hence the last.
pub(super) const OTHER_LAGS: [Lags; 7] = [
    Lags::times(0),
    Lags::times(2),
    Lags::times(4),
    Lags::times(8),
    Lags::times(16),
    Lags::times(32),
    Lags { times: 1, least: 32 },
];

/// The requests with other lags.
#[must_use]
pub(super) fn with_lags(requests: &Requests, other: Lags) -> Requests {
    let lags = lags_of(requests);
    let mut out = Rewriter::default();
    let (mut number, mut due) = (0_u64, BTreeMap::<u64, Vec<u64>>::new());
    for op in requests.words.iter() {
        match op {
            Op::Alloc { .. } => {
                while let Some(entry) = due.first_entry().filter(|entry| *entry.key() <= number) {
                    entry.remove().into_iter().for_each(|request| out.returned(request));
                }
                out.alloc(op, number);
                number += 1;
            }
            Op::Free { slot } => out.free(slot),
            Op::FreeInUse { slot } => {
                let request = out.free_in_use(slot);
                if let Some(lag) = lags.get(&request) {
                    due.entry(number + (lag * other.times).max(other.least)).or_default().push(request);
                }
            }
            Op::Returned { slot } => out.old.give_back(slot),
            _ => {
                out.words.push(op);
            }
        }
    }
    requests.with_words(out.words)
}

/// Requests between the free of a block that streams use and its return, by number of its own request.
fn lags_of(requests: &Requests) -> HashMap<u64, u64> {
    let (mut slots, mut by_slot) = (Slots::default(), Vec::<(u64, u64)>::new());
    let (mut number, mut lags) = (0, HashMap::default());
    for op in requests.words.iter() {
        match op {
            Op::Alloc { .. } => {
                let slot = slots.take() as usize;
                if slot >= by_slot.len() {
                    by_slot.resize(slot + 1, (0, 0));
                }
                by_slot[slot].0 = number;
                number += 1;
            }
            Op::Free { slot } => slots.give_back(slot),
            Op::FreeInUse { slot } => by_slot[slot as usize].1 = number,
            Op::Returned { slot } => {
                slots.give_back(slot);
                let (request, freed) = by_slot[slot as usize];
                lags.insert(request, number - freed);
            }
            _ => {}
        }
    }
    lags
}

/// Writes operations again: slots depend on the order of frees.
#[derive(Default)]
struct Rewriter {
    words: Words,
    old: Slots,
    new: Slots,
    /// Request and new slot, by old slot.
    live: Vec<(u64, u32)>,
    /// New slot of a block that streams use, by request.
    pending: HashMap<u64, u32>,
}

impl Rewriter {
    fn alloc(&mut self, op: Op, number: u64) {
        let old = self.old.take() as usize;
        if old >= self.live.len() {
            self.live.resize(old + 1, (0, 0));
        }
        self.live[old] = (number, self.new.take());
        self.words.push(op);
    }

    fn free(&mut self, old: u32) {
        self.old.give_back(old);
        let (_, slot) = self.live[old as usize];
        self.new.give_back(slot);
        self.words.push(Op::Free { slot });
    }

    /// Gives the number of the request.
    fn free_in_use(&mut self, old: u32) -> u64 {
        let (request, slot) = self.live[old as usize];
        self.pending.insert(request, slot);
        self.words.push(Op::FreeInUse { slot });
        request
    }

    fn returned(&mut self, request: u64) {
        if let Some(slot) = self.pending.remove(&request) {
            self.new.give_back(slot);
            self.words.push(Op::Returned { slot });
        }
    }
}
