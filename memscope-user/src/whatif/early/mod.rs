//! Requests of a program that frees blocks right behind their last use.

#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::Serialize;

use super::requests::{LastUse, LastUses, Op, Requests, Slots, Words};

/// What became of the blocks that match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct FreedEarly {
    /// Uses that were seen, of any blocks.
    pub uses: u64,
    /// Blocks that match.
    pub blocks: u64,
    /// Those of them that are freed earlier than in the recording.
    pub moved: u64,
    /// Those without a known last use, which stay: no operator was seen to use them, or the recording ends before the process does.
    pub without_use: u64,
    /// Those that streams still used when they were freed, or of captured graphs, which are replayed without operators: they stay.
    pub kept: u64,
    /// Operators that used more blocks than were recorded: no block is freed before one of these.
    pub left_out: u64,
    /// Records of operators were lost: blocks may be freed too early here.
    pub uses_lost: bool,
}

/// A live block.
#[derive(Clone, Copy, Debug)]
struct Live {
    last_use: LastUse,
    /// Its free is not moved: it is of a captured graph, or streams still use it.
    stays: bool,
}

/// A block is freed before the operation of this place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    place: usize,
    slot: u32,
}

/// The requests with the frees of matching blocks right behind their last uses. `None`: last uses were not asked for.
#[must_use]
pub fn freed_early(requests: &Requests) -> Option<(Requests, FreedEarly)> {
    let uses = requests.last_uses.as_deref()?;
    let (due, found) = due_of(requests, uses);
    Some((requests.with_words(with_frees(&requests.words, &due)), found))
}

/// Frees that come earlier, in their order.
fn due_of(requests: &Requests, uses: &LastUses) -> (Vec<Due>, FreedEarly) {
    let mut found =
        FreedEarly { uses: uses.seen, left_out: uses.left_out, uses_lost: uses.lost, ..FreedEarly::default() };
    let (mut slots, mut live) = (Slots::default(), Vec::<Option<Live>>::new());
    let (mut due, mut number) = (Vec::new(), 0);
    for (at, op) in requests.words.placed() {
        match op {
            Op::Alloc { lane, .. } => {
                let slot = slots.take() as usize;
                if slot >= live.len() {
                    live.resize(slot + 1, None);
                }
                let stays = requests.lanes.get(usize::from(lane)).is_some_and(|lane| lane.private != 0);
                let block = Live { last_use: uses.of(number), stays };
                live[slot] = Some(block).filter(|block| block.last_use != LastUse::NotAsked);
                number += 1;
            }
            Op::Free { slot } => {
                slots.give_back(slot);
                let block = live.get_mut(slot as usize).and_then(Option::take);
                due.extend(found.add(block, at).map(|place| Due { place, slot }));
            }
            Op::FreeInUse { slot } => {
                let block = live.get_mut(slot as usize).and_then(Option::take);
                found.add(block.map(|block| Live { stays: true, ..block }), at);
            }
            Op::Returned { slot } => slots.give_back(slot),
            _ => {}
        }
    }
    for (slot, block) in (0..).zip(live) {
        // They live on, and may be used later.
        let unknown = |block: Live| Live { last_use: LastUse::Unknown, ..block };
        let block = if uses.ended { block } else { block.map(unknown) };
        due.extend(found.add(block, usize::MAX).map(|place| Due { place, slot }));
    }
    due.sort_unstable();
    (due, found)
}

impl FreedEarly {
    /// Counts a block that is freed at that place in the recording; gives its new place, if that is an earlier one.
    fn add(&mut self, block: Option<Live>, at: usize) -> Option<usize> {
        let Live { last_use, stays } = block?;
        self.blocks += 1;
        match last_use {
            _ if stays => self.kept += 1,
            LastUse::Before(place) if place < at => {
                self.moved += 1;
                return Some(place);
            }
            LastUse::Before(_) => {}
            LastUse::Unknown | LastUse::NotAsked => self.without_use += 1,
        }
        None
    }
}

/// Writes operations again: slots depend on the order of frees.
fn with_frees(old: &Words, due: &[Due]) -> Words {
    let (mut words, mut due) = (Words::default(), due.iter().peekable());
    let (mut old_slots, mut new_slots) = (Slots::default(), Slots::default());
    // New slot by old one, as long as the block is not freed.
    let mut live: Vec<Option<u32>> = Vec::new();
    let taken = |live: &mut Vec<Option<u32>>, slot: u32| live.get_mut(slot as usize).and_then(Option::take);
    for (at, op) in old.placed() {
        while let Some(Due { slot, .. }) = due.next_if(|due| due.place <= at) {
            free(taken(&mut live, *slot), &mut new_slots, &mut words);
        }
        match op {
            Op::Alloc { .. } => {
                let slot = old_slots.take() as usize;
                if slot >= live.len() {
                    live.resize(slot + 1, None);
                }
                live[slot] = Some(new_slots.take());
                words.push(op);
            }
            Op::Free { slot } => {
                old_slots.give_back(slot);
                // None: freed already.
                free(taken(&mut live, slot), &mut new_slots, &mut words);
            }
            Op::FreeInUse { slot } => {
                if let Some(Some(slot)) = live.get(slot as usize) {
                    words.push(Op::FreeInUse { slot: *slot });
                }
            }
            Op::Returned { slot } => {
                old_slots.give_back(slot);
                if let Some(slot) = taken(&mut live, slot) {
                    new_slots.give_back(slot);
                    words.push(Op::Returned { slot });
                }
            }
            _ => {
                words.push(op);
            }
        }
    }
    for Due { slot, .. } in due {
        free(taken(&mut live, *slot), &mut new_slots, &mut words);
    }
    words
}

fn free(slot: Option<u32>, slots: &mut Slots, words: &mut Words) {
    if let Some(slot) = slot {
        slots.give_back(slot);
        words.push(Op::Free { slot });
    }
}
