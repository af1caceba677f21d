//! The operator that changed a watched block: conclusions from its checksums.
//!
//! Only successful readings count. Between two readings that differ the block was changed, whatever was unreadable in
//! between; if they are the two sides of one call, that call is named, with operators that other threads launched
//! meanwhile.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::{
    Phase,
    items::{Block, Look},
};

/// Most operators of other threads named in a verdict.
const MAX_OTHERS: usize = 16;
/// Most starts of operators kept, to name those launched meanwhile.
const MAX_BEGINNINGS: usize = 4096;
/// Looks at a block that can be taken back.
const MAX_RECENT: usize = 4096;
/// Most freed and unchanged blocks kept.
const MAX_QUIET: usize = 16;

/// The result of a look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// The block's checksum.
    Sum(u64),
    /// Why it was unreadable. That shows nothing about its bytes.
    Unread(Arc<str>),
}

/// A side of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    /// The operator.
    pub item: Arc<str>,
    /// Its how manyth call.
    pub call: u64,
    /// Which side.
    pub phase: Phase,
    /// On which thread.
    pub tid: u32,
    /// See [`Look::queued`].
    pub queued: bool,
}

impl Side {
    fn of(look: &Look, tid: u32) -> Self {
        Self { item: Arc::clone(&look.item), call: look.call, phase: look.phase, tid, queued: look.queued }
    }

    fn is_same_call(&self, other: &Self) -> bool {
        (&self.item, self.call, self.tid) == (&other.item, other.call, other.tid)
    }
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} `{}` (call {}, thread {})", self.phase.name(), self.item.escape_debug(), self.call, self.tid)
    }
}

/// A block was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The last reading before.
    pub from: Side,
    /// Its checksum.
    pub from_sum: u64,
    /// The first reading after.
    pub to: Side,
    /// Its checksum.
    pub to_sum: u64,
    /// Failed looks in between.
    pub unread: u64,
    /// Operators that other threads began in between, the first of them.
    pub others: Vec<Arc<str>>,
    /// Number of further ones.
    pub more_others: u64,
}

impl Change {
    /// The call that made it, if nothing else was seen that could have.
    #[must_use]
    pub fn operator(&self) -> Option<&Side> {
        let one_call = self.from.is_same_call(&self.to) && self.from.phase == Phase::Before;
        (one_call && self.to.phase == Phase::After && !self.to.queued).then_some(&self.to)
    }

    /// When it was made, as it stands behind "changed".
    #[must_use]
    pub fn when(&self) -> String {
        if let Some(side) = self.operator() {
            return format!("during {}", side.to_string().trim_start_matches("after "));
        }
        let queued = if self.to.queued { " (which a queue may launch at another time)" } else { "" };
        format!("between {} and {}{queued}", self.from, self.to)
    }
}

/// A watched block's memory was freed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Freed {
    /// The function that freed it.
    pub by: Arc<str>,
    /// On which thread.
    pub tid: u32,
    /// When: `CLOCK_MONOTONIC`, in nanoseconds.
    pub time_ns: u64,
}

/// The facts about one block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockVerdict {
    /// Looks that succeeded.
    pub read: u64,
    /// Looks that failed.
    pub unread: u64,
    /// The reason of the first of those.
    pub first_unread: Option<Arc<str>>,
    /// Changes.
    pub changes: u64,
    /// The first of them.
    pub first: Option<Change>,
    /// It was freed: later looks are in none of these figures.
    pub freed: Option<Freed>,
}

#[derive(Debug, Default)]
struct State {
    verdict: BlockVerdict,
    last: Option<Last>,
    unread: u64,
    /// The last looks, with their times and results: a free is known some time after it was made.
    recent: VecDeque<(u64, Outcome)>,
    /// Time of the look that showed the first change.
    first_ns: u64,
    /// When the block's last window began, and the first change in it, with its time.
    window_ns: u64,
    window_first: Option<(u64, Change)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Same,
    Changed,
    Unread,
}

impl State {
    fn note(&mut self, time_ns: u64, outcome: Outcome) {
        if self.recent.len() >= MAX_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((time_ns, outcome));
    }

    /// Undoes readings from after the free. Returns whether the block ends with it: a later window is of memory handed
    /// out since.
    fn free(&mut self, freed: &Freed) -> bool {
        let is_over = self.window_ns <= freed.time_ns;
        let until_ns = if is_over { u64::MAX } else { self.window_ns };
        let (verdict, seen) = (&mut self.verdict, freed.time_ns..until_ns);
        self.recent.retain(|(time_ns, outcome)| {
            let is_after = seen.contains(time_ns);
            if is_after {
                let count = if *outcome == Outcome::Unread { &mut verdict.unread } else { &mut verdict.read };
                *count = count.saturating_sub(1);
                verdict.changes -= u64::from(*outcome == Outcome::Changed);
            }
            !is_after
        });
        if seen.contains(&self.first_ns) {
            let later = self.window_first.take().filter(|(time_ns, _)| !seen.contains(time_ns));
            (self.first_ns, verdict.first) = later.map_or((0, None), |(time_ns, change)| (time_ns, Some(change)));
        }
        if verdict.unread == 0 {
            verdict.first_unread = None;
        }
        if is_over {
            verdict.freed = Some(freed.clone());
            self.recent = VecDeque::new();
        }
        is_over
    }
}

/// The last reading of a block.
#[derive(Debug)]
struct Last {
    side: Side,
    sum: u64,
    /// Number of operators that had begun by then.
    since: u64,
    /// Operators begun on threads without a look at an end since: they may still be at work.
    at_work: Vec<(u32, Arc<str>)>,
}

/// Identity of a block: name, output, address, size, [`Block::freed_before`].
pub type BlockKey = (Arc<str>, u32, u64, u64, u64);

fn key_of(block: &Block) -> BlockKey {
    (Arc::clone(&block.name), block.index, block.range.addr, block.range.size_bytes, block.freed_before)
}

fn state_of<'a>(blocks: &'a mut HashMap<BlockKey, State>, order: &mut Vec<BlockKey>, block: &Block) -> &'a mut State {
    let key = key_of(block);
    blocks.entry(key.clone()).or_insert_with(|| {
        order.push(key);
        State::default()
    })
}

/// Takes readings in the order in which they were made.
#[derive(Debug, Default)]
pub struct Verdicts {
    blocks: HashMap<BlockKey, State>,
    order: Vec<BlockKey>,
    beginnings: VecDeque<(u32, Arc<str>)>,
    /// Number of the first of them.
    first_beginning: u64,
    /// The last operator begun by each thread, until it has a look at an end.
    at_work: HashMap<u32, Arc<str>>,
    /// Freed blocks without a finding, beyond those that are kept.
    quiet: u64,
    /// Number of kept ones.
    quiet_kept: usize,
}

impl Verdicts {
    /// An operator begins on a thread.
    pub fn begins(&mut self, tid: u32, item: &str) {
        if self.beginnings.len() >= MAX_BEGINNINGS {
            self.beginnings.pop_front();
            self.first_beginning += 1;
        }
        let item: Arc<str> = item.into();
        if self.at_work.len() >= MAX_BEGINNINGS {
            self.at_work.clear();
        }
        self.at_work.insert(tid, Arc::clone(&item));
        self.beginnings.push_back((tid, item));
    }

    /// A block's memory was freed: its watch ends there, whatever was read later. Returns whether it has looks.
    pub fn free(&mut self, block: &Block, freed: &Freed) -> bool {
        let key = key_of(block);
        let Some(state) = self.blocks.get_mut(&key).filter(|state| state.verdict.freed.is_none()) else { return false };
        if !state.free(freed) {
            return false;
        }
        if state.verdict.changes == 0 && state.verdict.unread == 0 {
            if self.quiet_kept < MAX_QUIET {
                self.quiet_kept += 1;
            } else {
                self.quiet += 1;
                self.blocks.remove(&key);
                self.order.retain(|other| *other != key);
            }
        }
        true
    }

    /// Blocks that are not in [`blocks`](Self::blocks) because they were unchanged until they were freed.
    #[must_use]
    pub const fn quiet(&self) -> u64 {
        self.quiet
    }

    /// A block's window begins. It has a verdict from here on, even if no look succeeds. A difference to an earlier
    /// window is no change: `START` itself has written the bytes.
    pub fn window(&mut self, block: &Block) {
        let state = state_of(&mut self.blocks, &mut self.order, block);
        state.last = None;
        state.unread = 0;
        state.window_ns = block.since_ns;
        state.window_first = None;
    }

    /// A look at a block by a thread that arrived at that time. Returns the change that this reading shows.
    pub fn take(&mut self, look: &Look, tid: u32, time_ns: u64, reading: &Reading) -> Option<Change> {
        let now = self.first_beginning + self.beginnings.len() as u64;
        let state = state_of(&mut self.blocks, &mut self.order, &look.block);
        if state.verdict.freed.is_some() {
            return None;
        }
        let sum = match reading {
            Reading::Sum(sum) => *sum,
            Reading::Unread(why) => {
                state.note(time_ns, Outcome::Unread);
                state.verdict.unread += 1;
                state.unread += 1;
                state.verdict.first_unread.get_or_insert_with(|| Arc::clone(why));
                return None;
            }
        };
        state.verdict.read += 1;
        let unread = std::mem::take(&mut state.unread);
        let side = Side::of(look, tid);
        if look.phase == Phase::After {
            self.at_work.remove(&tid);
        }
        let at_work = self.at_work.iter().map(|(tid, item)| (*tid, Arc::clone(item))).collect();
        let last = state.last.replace(Last { side: side.clone(), sum, since: now, at_work });
        let last = last.filter(|last| last.sum != sum);
        state.note(time_ns, if last.is_some() { Outcome::Changed } else { Outcome::Same });
        let Last { side: from, sum: from_sum, since, at_work } = last?;
        let skipped = since.saturating_sub(self.first_beginning) as usize;
        let forgotten = self.first_beginning.saturating_sub(since);
        let begun = self.beginnings.iter().skip(skipped);
        let mut others = at_work.iter().chain(begun).filter(|(other, _)| *other != tid);
        let named: Vec<_> = others.by_ref().take(MAX_OTHERS).map(|(_, item)| Arc::clone(item)).collect();
        let more_others = others.count() as u64 + forgotten;
        let change = Change { from, from_sum, to: side, to_sum: sum, unread, others: named, more_others };
        state.verdict.changes += 1;
        if state.verdict.first.is_none() {
            state.first_ns = time_ns;
        }
        state.verdict.first.get_or_insert_with(|| change.clone());
        state.window_first.get_or_insert_with(|| (time_ns, change.clone()));
        Some(change)
    }

    /// Blocks and their verdicts, in the order in which their windows began.
    pub fn blocks(&self) -> impl Iterator<Item = (&BlockKey, &BlockVerdict)> {
        self.order.iter().filter_map(|key| Some((key, &self.blocks.get(key)?.verdict)))
    }
}

#[cfg(test)]
mod tests;
