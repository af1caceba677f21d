//! The blocks to compare when an operator begins and ends (contract §8.10), and the names of those comparisons, called
//! looks (§5.3).
//!
//! One of these for each process. Operators of a thread nest; those of different threads are independent.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use super::{
    Phase, Range,
    spec::{WatchSpec, cut},
};

/// Most watched blocks; more are refused.
const MAX_BLOCKS: usize = 256;
/// Most nested operators of a thread; at deeper ones blocks are not compared.
const MAX_OPEN: usize = 64;
/// Most known threads and operators; beyond, they are forgotten, and counted from 1 again.
const MAX_KNOWN: usize = 65_536;

/// A watched block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The operator with this output, or the script's name.
    pub name: Arc<str>,
    /// Number of the output; 0 for blocks of the script.
    pub index: u32,
    /// Its bytes.
    pub range: Range,
    /// Number of watched blocks of the process that were freed before: distinguishes it from an earlier block at the
    /// address.
    pub freed_before: u64,
    /// When it began to be watched: `CLOCK_MONOTONIC`, in nanoseconds.
    pub since_ns: u64,
}

/// A block to compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// Which.
    pub block: Block,
    /// The operator.
    pub item: Arc<str>,
    /// Its how manyth call, from 1.
    pub call: u64,
    /// The side of it.
    pub phase: Phase,
    /// The operator's thread may hand it to another, which launches it some time.
    pub queued: bool,
}

impl Look {
    /// Its file name without extension: `<dev>_<tid>/<item>_<n>-<watched>_<idx>_<before|after>`.
    #[must_use]
    pub fn stem(&self, device: u32, tid: u32) -> String {
        let Self { block, item, call, phase, .. } = self;
        format!("{device}_{tid}/{item}_{call}-{}_{}_{}", block.name, block.index, phase.name())
    }
}

/// A block that the script has named.
#[derive(Debug)]
struct Named {
    block: Block,
    /// Remaining looks; `None`: no limit.
    left: Option<u64>,
}

/// Watched blocks of a process.
#[derive(Debug, Default)]
pub struct Items {
    spec: Option<WatchSpec>,
    /// Outputs of the start operator; empty until it has ended.
    outputs: Vec<Block>,
    /// Watching has begun at the start operator's end.
    armed: bool,
    named: Vec<Named>,
    /// Blocks watched last, each with the end of its window: a free inside of the window may be known only after it.
    closed: VecDeque<(Block, u64)>,
    /// Calls of the start operator that watching began with.
    starts: u64,
    /// Watched blocks that were freed.
    freed: u64,
    calls: HashMap<Arc<str>, u64>,
    open: HashMap<u32, Vec<(Arc<str>, u64)>>,
}

impl Items {
    /// Without any watched block.
    #[must_use]
    pub fn new(spec: Option<WatchSpec>) -> Self {
        Self { spec, ..Self::default() }
    }

    /// Whether a block is watched now.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.armed || !self.named.is_empty()
    }

    /// Whether watching begins, for the first time or again, when this operator ends. One that is `END` too ends the
    /// window it is in.
    #[must_use]
    pub fn begins_with(&self, item: &str) -> bool {
        let is_start = |spec: &WatchSpec| !spec.start.is_empty() && spec.start == cut(item);
        self.spec.as_ref().is_some_and(|spec| is_start(spec) && !(self.armed && spec.end == cut(item)))
    }

    /// The script wants a block watched from now on, for this many looks. Returns whether there is room.
    pub fn watch(&mut self, name: &str, range: Range, looks: Option<u64>, now_ns: u64) -> bool {
        self.forget(range.addr, now_ns);
        if self.named.len() >= MAX_BLOCKS {
            return false;
        }
        let block = Block { name: name.into(), index: 0, range, freed_before: self.freed, since_ns: now_ns };
        self.named.push(Named { block, left: looks });
        true
    }

    /// Memory was freed at that time: ends the watch of blocks in it. Returns those.
    pub fn free(&mut self, range: Range, time_ns: u64) -> Vec<Block> {
        let is_in = |block: &Block| block.range.overlaps(range) && block.since_ns < time_ns;
        let had_outputs = !self.outputs.is_empty();
        let mut freed: Vec<Block> = self.outputs.extract_if(.., |block| is_in(block)).collect();
        freed.extend(self.named.extract_if(.., |named| is_in(&named.block)).map(|named| named.block));
        self.closed.retain(|(block, until_ns)| {
            let ends = is_in(block) && time_ns < *until_ns;
            freed.extend(ends.then(|| block.clone()));
            !ends
        });
        if had_outputs && self.outputs.is_empty() {
            self.armed = false;
        }
        self.freed += freed.len() as u64;
        freed
    }

    /// The script ends the watch of the block at an address, from that time on. Returns whether it was watched.
    pub fn forget(&mut self, addr: u64, now_ns: u64) -> bool {
        let forgotten: Vec<_> = self.named.extract_if(.., |named| named.block.range.addr == addr).collect();
        let was_watched = !forgotten.is_empty();
        self.close(forgotten.into_iter().map(|named| named.block), now_ns);
        was_watched
    }

    /// The process runs another program since that time: blocks and open calls are gone. Counts continue, so that each
    /// look has a unique name.
    pub fn another_program(&mut self, now_ns: u64) {
        self.armed = false;
        self.open.clear();
        self.end_windows(now_ns);
    }

    /// All windows end.
    fn end_windows(&mut self, now_ns: u64) {
        let outputs = std::mem::take(&mut self.outputs);
        let named = std::mem::take(&mut self.named);
        self.close(outputs.into_iter().chain(named.into_iter().map(|named| named.block)), now_ns);
    }

    /// The windows of these blocks end.
    fn close(&mut self, blocks: impl IntoIterator<Item = Block>, until_ns: u64) {
        self.closed.extend(blocks.into_iter().map(|block| (block, until_ns)));
        let excess = self.closed.len().saturating_sub(MAX_BLOCKS);
        self.closed.drain(..excess);
    }

    /// An operator begins on a thread.
    pub fn begins(&mut self, tid: u32, item: &str) -> Vec<Look> {
        let item: Arc<str> = cut(item).into();
        let call = if self.is_active() { self.count(&item) } else { 0 };
        if self.open.len() >= MAX_KNOWN {
            self.open.clear();
        }
        let open = self.open.entry(tid).or_default();
        if open.len() < MAX_OPEN {
            open.push((Arc::clone(&item), call));
        }
        if call == 0 { Vec::new() } else { self.looks(&item, call, Phase::Before) }
    }

    /// An operator has ended on a thread, just now; `outputs` are asked for only if watching begins with it.
    pub fn ends(&mut self, tid: u32, item: &str, now_ns: u64, outputs: impl FnOnce() -> Vec<Range>) -> Vec<Look> {
        let item: Arc<str> = cut(item).into();
        let begun = self.leave(tid, &item);
        if self.begins_with(&item) {
            return self.start(&item, now_ns, outputs());
        }
        if !self.is_active() {
            return Vec::new();
        }
        // It began before any block was watched, or its start was not seen.
        let call = begun.filter(|call| *call > 0).unwrap_or_else(|| self.count(&item));
        let looks = self.looks(&item, call, Phase::After);
        if self.spec.as_ref().is_some_and(|spec| *spec.end == *item) {
            self.armed = false;
            self.end_windows(now_ns);
        }
        looks
    }

    fn start(&mut self, item: &Arc<str>, now_ns: u64, outputs: Vec<Range>) -> Vec<Look> {
        let chosen = self.spec.as_ref().and_then(|spec| spec.output_id);
        let freed_before = self.freed;
        // A number that is too large selects all of them.
        let only = chosen.filter(|id| (*id as usize) < outputs.len());
        let before = std::mem::take(&mut self.outputs);
        self.close(before, now_ns);
        self.outputs = (0..)
            .zip(outputs)
            .filter(|(index, _)| only.is_none_or(|id| id == *index))
            .take(MAX_BLOCKS)
            .map(|(index, range)| Block { name: Arc::clone(item), index, range, freed_before, since_ns: now_ns })
            .collect();
        self.armed = !self.outputs.is_empty();
        self.starts += 1;
        self.looks(item, self.starts, Phase::After)
    }

    fn count(&mut self, item: &Arc<str>) -> u64 {
        if self.calls.len() >= MAX_KNOWN {
            self.calls.clear();
        }
        let count = self.calls.entry(Arc::clone(item)).or_default();
        *count += 1;
        *count
    }

    /// Closes the innermost open call of that name, and calls inside of it that an exception has left.
    fn leave(&mut self, tid: u32, item: &str) -> Option<u64> {
        let open = self.open.get_mut(&tid)?;
        let at = open.iter().rposition(|(name, _)| **name == *item)?;
        let call = open[at].1;
        open.truncate(at);
        if open.is_empty() {
            self.open.remove(&tid);
        }
        Some(call)
    }

    fn looks(&mut self, item: &Arc<str>, call: u64, phase: Phase) -> Vec<Look> {
        let look = |block: &Block| Look { block: block.clone(), item: Arc::clone(item), call, phase, queued: false };
        let mut looks: Vec<Look> = self.outputs.iter().map(look).collect();
        for named in &mut self.named {
            looks.push(look(&named.block));
            named.left = named.left.map(|left| left.saturating_sub(1));
        }
        self.named.retain(|named| named.left != Some(0));
        looks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Range = Range { addr: 0x1000, size_bytes: 16 };
    const B: Range = Range { addr: 0x2000, size_bytes: 32 };

    fn items(spec: &str) -> Items {
        Items::new(Some(spec.parse().expect("valid")))
    }

    fn stems(looks: &[Look]) -> Vec<String> {
        looks.iter().map(|look| look.stem(3, 77)).collect()
    }

    fn call(items: &mut Items, item: &str, outputs: &[Range]) -> Vec<String> {
        let mut looks = items.begins(77, item);
        looks.extend(items.ends(77, item, 1, || outputs.to_vec()));
        stems(&looks)
    }

    /// From the start operator's end to the end operator's, and again.
    #[test]
    fn from_start_to_end() {
        let mut items = items("start,end");
        assert_eq!(call(&mut items, "other", &[B]), [""; 0]);
        assert_eq!(call(&mut items, "start", &[A, B]), ["3_77/start_1-start_0_after", "3_77/start_1-start_1_after"]);
        let other = ["before", "after"].map(|phase| [0, 1].map(|index| format!("3_77/other_1-start_{index}_{phase}")));
        assert_eq!(call(&mut items, "other", &[B]), other.concat());
        assert_eq!(call(&mut items, "other", &[B])[0], "3_77/other_2-start_0_before");
        // Its begin is the last look at the old outputs; its end the first look at the new ones.
        let again = ["3_77/start_1-start_0_before", "3_77/start_1-start_1_before", "3_77/start_2-start_0_after"];
        assert_eq!(call(&mut items, "start", &[A]), again);
        assert_eq!(call(&mut items, "end", &[]).len(), 2);
        assert!(!items.is_active());
        assert_eq!(call(&mut items, "other", &[]), [""; 0]);
        assert_eq!(call(&mut items, "start", &[B]), ["3_77/start_3-start_0_after"]);
    }

    /// In another program the blocks of the one before are not compared, and its looks have unique names.
    #[test]
    fn another_program_has_no_blocks_yet() {
        let mut items = items("start,end");
        call(&mut items, "start", &[A]);
        call(&mut items, "other", &[]);
        items.watch("named", B, None, 1);
        let _ = items.begins(77, "other");
        items.another_program(5);
        assert!(!items.is_active());
        assert_eq!(call(&mut items, "other", &[]), [""; 0]);
        assert_eq!(call(&mut items, "start", &[B]), ["3_77/start_2-start_0_after"]);
        assert_eq!(call(&mut items, "other", &[])[0], "3_77/other_3-start_0_before");
    }

    #[test]
    fn chosen_outputs() {
        assert_eq!(call(&mut items("start:1,end"), "start", &[A, B]), ["3_77/start_1-start_1_after"]);
        assert_eq!(call(&mut items("start:2,end"), "start", &[A, B]).len(), 2);
        let mut none = items("start,end");
        assert_eq!(call(&mut none, "start", &[]), [""; 0]);
        assert!(!none.is_active(), "an operator without outputs watches nothing");
    }

    /// Watching that begins and ends with the same operator lasts from one call of it to the next.
    #[test]
    fn start_that_is_the_end() {
        let mut items = items("op,op");
        assert_eq!(call(&mut items, "op", &[A]), ["3_77/op_1-op_0_after"]);
        assert_eq!(call(&mut items, "op", &[A]), ["3_77/op_1-op_0_before", "3_77/op_1-op_0_after"]);
        assert_eq!(call(&mut items, "op", &[A]), ["3_77/op_2-op_0_after"]);
    }

    /// A range that ran out does not block others, as it does in the reference.
    #[test]
    fn blocks_of_the_script() {
        let mut items = Items::new(None);
        assert!(items.watch("first", A, Some(3), 1) && items.watch("second", B, None, 1));
        assert_eq!(call(&mut items, "op", &[]).len(), 4);
        let second = ["3_77/op_2-first_0_before", "3_77/op_2-second_0_before", "3_77/op_2-second_0_after"];
        assert_eq!(call(&mut items, "op", &[]), second);
        assert!(items.forget(B.addr, 2) && !items.forget(B.addr, 2) && !items.is_active());
    }

    /// Make sure that the same address is watched once, and that there is a bound.
    #[test]
    fn blocks_are_bounded() {
        let mut items = Items::new(None);
        let at = |addr| Range { addr, size_bytes: 1 };
        for addr in 0..MAX_BLOCKS as u64 {
            assert!(items.watch("a", at(addr), None, 1));
        }
        assert!(!items.watch("a", at(u64::MAX), None, 1));
        assert!(items.watch("b", at(7), None, 1));
        assert_eq!(items.begins(1, "op").len(), MAX_BLOCKS);
    }

    /// Operators nest; calls left by an exception are closed by the call that caught it.
    #[test]
    fn nested_and_thrown() {
        let mut items = Items::new(None);
        items.watch("w", A, None, 1);
        for item in ["outer", "inner", "thrown"] {
            items.begins(1, item);
        }
        assert_eq!(stems(&items.begins(2, "inner")), ["3_77/inner_2-w_0_before"]);
        assert_eq!(stems(&items.ends(1, "inner", 1, Vec::new)), ["3_77/inner_1-w_0_after"]);
        assert_eq!(stems(&items.ends(1, "outer", 1, Vec::new)), ["3_77/outer_1-w_0_after"]);
        assert_eq!(stems(&items.ends(2, "inner", 1, Vec::new)), ["3_77/inner_2-w_0_after"]);
        assert!(items.open.is_empty());
    }

    /// A block is watched until its memory is freed, wherever in it the block lies; the next `START` watches again.
    #[test]
    fn freed_blocks_are_watched_no_longer() {
        let mut items = items("start,end");
        call(&mut items, "start", &[A, B]);
        items.watch("named", Range { addr: 0x1008, size_bytes: 4 }, None, 5);
        let names = |blocks: Vec<Block>| blocks.iter().map(|b| format!("{} {}", b.name, b.index)).collect::<Vec<_>>();
        // Freed before it was watched: that was another block.
        assert_eq!(names(items.free(Range { addr: 0x1000, size_bytes: 0x800 }, 5)), ["start 0"]);
        assert_eq!(call(&mut items, "op", &[])[..2], ["3_77/op_1-start_1_before", "3_77/op_1-named_0_before"]);
        assert_eq!(names(items.free(Range { addr: 0x1000, size_bytes: 0x800 }, 6)), ["named 0"]);
        assert_eq!(names(items.free(Range { addr: 0x2010, size_bytes: 1 }, 7)), ["start 1"]);
        assert!(!items.is_active());
        assert_eq!(call(&mut items, "op", &[]), [""; 0]);
        assert_eq!(call(&mut items, "start", &[A]), ["3_77/start_2-start_0_after"]);
        assert_eq!(items.outputs[0].freed_before, 3);
        // A free in the window that is known after its end; one after the window ends nothing.
        let end = |items: &mut Items, time_ns| {
            items.begins(77, "end");
            items.ends(77, "end", time_ns, Vec::new);
        };
        end(&mut items, 20);
        assert_eq!(names(items.free(A, 20)), [""; 0]);
        assert_eq!(names(items.free(A, 19)), ["start 0"]);
        assert_eq!(names(items.free(A, 19)), [""; 0]);
    }
}
