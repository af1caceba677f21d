//! From where was memory allocated? Live at the end and handed out in all, by call stack.
//!
//! As in `held`, blocks that end with their process or with the trace count as live. Blocks without a stack are summed
//! up too, so that the sums agree with those of `held`; a run without any stack has no finding.

mod finding;
mod text;

pub use self::finding::{ByStack, FoundSum, StackSum};

use std::collections::BTreeMap;

use super::{Analysis, Finding, concluded::Concluded, judged::is_moved, per_device::PerDevice};
use crate::hash::HashMap;
use crate::model::{
    Alloc, Block, Device, Event, EventKind, FoundHeld, FoundPurpose, Free, HeldAs, LiveSum, Look, Looked, Pool, RunEnd,
    Stacks,
};

/// Most different stacks, of all pools of all processes; further ones count as without a stack.
const MAX_SUMS: usize = 4 << 20;

/// Keeps account of every stack.
#[derive(Debug)]
pub struct ByStackAnalysis {
    /// Stacks listed of each pool, the largest first.
    limit: usize,
    running: PerDevice<BTreeMap<Pool, Sums>>,
    sums: usize,
    concluded: Concluded<ByStack>,
}

/// Of one pool.
#[derive(Debug, Default)]
struct Sums {
    places: HashMap<Stacks, StackSum>,
    /// Blocks from before the attach, also in those without a stack.
    found: BTreeMap<Option<HeldAs>, LiveSum>,
}

impl Default for ByStackAnalysis {
    /// Lists enough for a reader.
    fn default() -> Self {
        Self::new(100)
    }
}

impl ByStackAnalysis {
    /// Lists at most `limit` stacks of each pool of each process on each device.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { limit, running: PerDevice::default(), sums: 0, concluded: Concluded::default() }
    }

    fn sum(&mut self, pid: u32, block: &Block) -> &mut StackSum {
        let sums = &mut self.running.at(pid, block.device).entry(block.pool).or_default().places;
        let mut stacks = block.stacks;
        if self.sums >= MAX_SUMS && !sums.contains_key(&stacks) {
            stacks = Stacks::default();
        }
        sums.entry(stacks).or_insert_with(|| {
            self.sums += 1;
            StackSum { stacks, ..StackSum::default() }
        })
    }

    /// Of the blocks from before the attach with the purpose of this one.
    fn found(&mut self, pid: u32, block: &Block) -> &mut LiveSum {
        let sums = self.running.at(pid, block.device).entry(block.pool).or_default();
        sums.found.entry(block.held_as).or_default()
    }

    /// Purposes of those are known now.
    fn held(&mut self, event: &Event, look: &Look) {
        let Looked::Found(FoundHeld { pool, device, blocks }) = &look.outcome else { return };
        let found = &mut self.running.at(event.pid, *device).entry(*pool).or_default().found;
        for FoundPurpose { size_bytes, held_as, .. } in blocks {
            found.entry(None).or_default().remove(*size_bytes);
            found.entry(Some(*held_as)).or_default().add(*size_bytes);
        }
    }

    fn alloc(&mut self, pid: u32, alloc: &Alloc) {
        let (size_bytes, is_new) = (alloc.block.size_bytes, !alloc.restored && !alloc.block.found);
        if alloc.block.found {
            self.found(pid, &alloc.block).add(size_bytes);
        }
        let sum = self.sum(pid, &alloc.block);
        sum.live_blocks += 1;
        sum.live_bytes = sum.live_bytes.saturating_add(size_bytes);
        if is_new {
            sum.allocations += 1;
            sum.allocated_bytes = sum.allocated_bytes.saturating_add(size_bytes);
        }
    }

    fn free(&mut self, pid: u32, free: &Free) {
        if free.cause.gave_back() {
            let sum = self.sum(pid, &free.block);
            sum.live_blocks = sum.live_blocks.saturating_sub(1);
            sum.live_bytes = sum.live_bytes.saturating_sub(free.block.size_bytes);
            if free.block.found {
                self.found(pid, &free.block).remove(free.block.size_bytes);
            }
        }
        if is_moved(free) {
            let sum = self.sum(pid, &free.block);
            sum.allocations = sum.allocations.saturating_sub(1);
            sum.allocated_bytes = sum.allocated_bytes.saturating_sub(free.block.size_bytes);
        }
    }

    fn conclude(&mut self, pid: u32) {
        for (device, pools) in self.running.take_process(pid) {
            self.sums = self.sums.saturating_sub(pools.values().map(|sums| sums.places.len()).sum());
            for (pool, sums) in pools {
                self.concluded.extend(close((pid, device, pool), sums, self.limit));
            }
        }
    }
}

/// The largest first; `None` without any stack.
fn close((pid, device, pool): (u32, Device, Pool), Sums { places, found }: Sums, limit: usize) -> Option<ByStack> {
    let mut sums: Vec<StackSum> = places.into_values().collect();
    if sums.iter().all(|sum| sum.stacks.is_empty()) {
        return None;
    }
    sums.sort_unstable_by_key(|sum| std::cmp::Reverse((sum.live_bytes, sum.allocated_bytes, sum.stacks)));
    let left_out = sums.len().saturating_sub(limit) as u64;
    sums.truncate(limit);
    let found = found.into_iter().filter(|(_, live)| live.blocks > 0);
    let mut found: Vec<FoundSum> = found.map(|(held_as, live)| FoundSum { held_as, live }).collect();
    found.sort_by_key(|sum| std::cmp::Reverse(sum.live.size_bytes));
    Some(ByStack { pid, device, pool, sums, found, left_out })
}

impl Analysis for ByStackAnalysis {
    fn observe(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Alloc(alloc) => self.alloc(event.pid, alloc),
            EventKind::Free(free) => self.free(event.pid, free),
            EventKind::Looked(look) => self.held(event, look),
            EventKind::ProcessEnd => self.conclude(event.pid),
            _ => {}
        }
    }

    fn finish(&mut self, _: &RunEnd) -> Vec<Finding> {
        for pid in self.running.processes() {
            self.conclude(pid);
        }
        self.concluded.take(|found| (found.pid, found.device, found.pool), Finding::ByStack)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyses::script::{Script, run};
    use crate::backend::ascend::pools;
    use crate::model::{Stack, StackEnd};

    const NPU0: Device = Device::Npu(0);

    fn stacks(function: &str) -> Stacks {
        Stacks { native: Some(Stack::keep([function, "main"], StackEnd::Root)), ..Stacks::default() }
    }

    fn found(script: &Script, limit: usize) -> Vec<ByStack> {
        let found = run(ByStackAnalysis::new(limit), script.events(), &RunEnd::default());
        found.into_iter().map(|finding| if let Finding::ByStack(found) = finding { found } else { panic!() }).collect()
    }

    /// Function, live blocks and bytes, allocations and their bytes.
    fn brief(found: &ByStack) -> Vec<(Option<&'static str>, [u64; 4])> {
        let line = |sum: &StackSum| {
            let function = sum.stacks.native.map(|stack| stack.texts()[0]);
            (function, [sum.live_blocks, sum.live_bytes, sum.allocations, sum.allocated_bytes])
        };
        found.sums.iter().map(line).collect()
    }

    #[test]
    fn blocks_are_summed_up_by_stack() {
        let mut script = Script::new(7, NPU0);
        script.at(stacks("f")).alloc(pools::HAL, 0x10, 100).alloc(pools::HAL, 0x20, 50);
        script.at(stacks("g")).alloc(pools::HAL, 0x30, 70).alloc(pools::PTA, 0x30, 9);
        script.at(Stacks::default()).alloc(pools::HAL, 0x40, 60).free(pools::HAL, 0x10).free(pools::HAL, 0x40);
        let found = found(&script, 10);
        assert_eq!(found.iter().map(|found| found.pool).collect::<Vec<_>>(), [pools::HAL, pools::PTA]);
        assert_eq!(
            brief(&found[0]),
            [(Some("g"), [1, 70, 1, 70]), (Some("f"), [1, 50, 2, 150]), (None, [0, 0, 1, 60])]
        );
        assert_eq!(brief(&found[1]), [(Some("g"), [1, 9, 1, 9])]);
        assert_eq!(found[0].left_out, 0);
    }

    #[test]
    fn only_the_largest_are_listed() {
        let mut script = Script::new(7, NPU0);
        for (index, function) in ["a", "b", "c"].into_iter().enumerate() {
            script.at(stacks(function)).alloc(pools::HAL, 0x10 * (1 + index as u64), 10 + index as u64);
        }
        let found = found(&script, 2);
        assert_eq!(brief(&found[0]), [(Some("c"), [1, 12, 1, 12]), (Some("b"), [1, 11, 1, 11])]);
        assert_eq!(found[0].left_out, 1);
    }

    /// Blocks from before the attach are in their sums by purpose until they are freed, and in the sum without a stack.
    #[test]
    fn found_blocks_are_summed_up_by_purpose() {
        let mut script = Script::new(7, NPU0);
        script.older_held(pools::PTA, 0x10, 1000, HeldAs::KvCache).older_held(pools::PTA, 0x20, 300, HeldAs::Weight);
        script.older(pools::PTA, 0x30, 40).older_held(pools::PTA, 0x40, 2, HeldAs::Weight).free(pools::PTA, 0x20);
        script.at(stacks("f")).alloc(pools::PTA, 0x50, 5);
        let found = found(&script, 10);
        let brief_found: Vec<_> =
            found[0].found.iter().map(|sum| (sum.held_as, sum.live.blocks, sum.live.size_bytes)).collect();
        assert_eq!(brief_found, [(Some(HeldAs::KvCache), 1, 1000), (None, 1, 40), (Some(HeldAs::Weight), 1, 2)]);
        assert_eq!(brief(&found[0]), [(None, [3, 1042, 0, 0]), (Some("f"), [1, 5, 1, 5])]);
    }

    /// Purposes that are known later move the blocks' bytes, and a free of one is one of its purpose: 40 + 300 - 300, and 1000.
    #[test]
    fn purposes_that_come_later() {
        let mut script = Script::new(7, NPU0);
        script.older(pools::PTA, 0x10, 1000).older(pools::PTA, 0x20, 300).older(pools::PTA, 0x30, 40);
        script.at(stacks("f")).alloc(pools::PTA, 0x50, 5);
        script.found_held(pools::PTA, &[(0x10, HeldAs::KvCache), (0x20, HeldAs::Weight)]).free(pools::PTA, 0x20);
        let found = found(&script, 10);
        let sums = found[0].found.iter().map(|sum| (sum.held_as, sum.live.blocks, sum.live.size_bytes));
        assert_eq!(sums.collect::<Vec<_>>(), [(Some(HeldAs::KvCache), 1, 1000), (None, 1, 40)]);
        assert_eq!(brief(&found[0])[0], (None, [2, 1040, 0, 0]));
    }

    /// A trace without stacks has no finding.
    #[test]
    fn nothing_without_stacks() {
        let mut script = Script::new(7, NPU0);
        script.alloc(pools::HAL, 0x10, 100);
        assert_eq!(found(&script, 10), []);
    }
}
