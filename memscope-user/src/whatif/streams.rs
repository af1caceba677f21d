//! When blocks come back that streams use: earlier or later than in the recording.
//!
//! The lag of a block is the number of requests between its free and its return. The duration of work on streams does
//! not depend on settings, but differs between runs; replays with other lags show which figures depend on it.

use std::collections::BTreeMap;

use super::requests::{Op, Requests, Slots, Words};
use crate::hash::HashMap;

/// Lags of a replay, as multiples of the recorded ones.
pub(super) const LAGS: [u64; 6] = [0, 1, 2, 4, 8, 16];

/// The requests with lags `times` as long; 0: blocks of streams come back with the next request.
#[must_use]
pub(super) fn with_lags(requests: &Requests, times: u64) -> Requests {
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
                    due.entry(number + lag * times).or_default().push(request);
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
