//! Delays frees, unmappings and the like until a refusal can have come. They are reported at entry; only a failed one
//! reports its return.
//!
//! Items, in time order, stay here for a moment. A failed return takes its free (the last one of the same thread and
//! row) out of the queue, and neither leaves. If the free has left already, the failed return leaves, too, and the
//! block is restored.

use std::collections::VecDeque;

use super::blocks::NewBlock;
use super::domains::failing::{self, Failure};
use super::domains::{Effect, memory};
use super::item::Item;
use crate::calm;
use crate::hash::HashMap;
use crate::model::PageType;

/// The delay of an item. A driver refuses a free within microseconds; a slow refusal only costs a pair of rows.
pub(super) const HOLD_NS: u64 = 5_000_000;

/// Sizes of one request for huge and for normal pages differ by less than a huge page.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// The queue of held items.
#[derive(Debug)]
pub(super) struct Hold {
    queue: VecDeque<Slot>,
    /// Position of the first slot since the start.
    base: u64,
    /// Position of the last free by thread and row.
    frees: HashMap<(u32, u16), u64>,
    /// Position of the last allocation by thread, if it failed for want of huge pages.
    halves: HashMap<u32, u64>,
    limit: usize,
    /// Frees that failed while they were held.
    pub(super) cancelled: u64,
}

#[derive(Debug)]
struct Slot {
    time_ns: u64,
    item: Option<Item>,
}

impl Hold {
    /// A queue of at most `limit` items.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            queue: VecDeque::new(),
            base: 0,
            frees: HashMap::default(),
            halves: HashMap::default(),
            limit,
            cancelled: 0,
        }
    }

    /// All that wait, in time order.
    #[cfg(feature = "trace")]
    pub(super) fn items(&self) -> impl Iterator<Item = &Item> {
        self.queue.iter().filter_map(|slot| slot.item.as_ref())
    }

    /// Takes an item; returns the oldest one when there is no room for both.
    pub(super) fn push(&mut self, item: Item) -> Option<Item> {
        let key = (item.head.tid, item.head.row);
        match item.effect {
            Effect::Memory(memory::Effect::End(_)) => {
                self.frees.insert(key, self.base + self.queue.len() as u64);
            }
            Effect::Memory(memory::Effect::EndFailed { addr }) if self.cancel(key, item.head.pid, addr) => {
                self.cancelled += 1;
                return None;
            }
            Effect::Memory(memory::Effect::Alloc(_)) | Effect::Failing(failing::Effect::Failed(_)) => {
                self.finish_half(&item);
            }
            _ => {}
        }
        self.queue.push_back(Slot { time_ns: item.head.time_ns, item: Some(item) });
        while self.queue.len() > self.limit {
            if let Some(item) = self.pop_front() {
                return Some(item);
            }
        }
        None
    }

    /// The oldest item, if it is older than `before`, if given.
    pub(super) fn pop(&mut self, before: Option<u64>) -> Option<Item> {
        while self.queue.front().is_some_and(|slot| before.is_none_or(|before| slot.time_ns < before)) {
            if let Some(item) = self.pop_front() {
                return Some(item);
            }
        }
        None
    }

    /// Call on every flush.
    pub(super) fn calm(&mut self) {
        calm::queue(&mut self.queue);
    }

    fn pop_front(&mut self) -> Option<Item> {
        let slot = self.queue.pop_front()?;
        self.base += 1;
        let item = slot.item?;
        if matches!(item.effect, Effect::Memory(memory::Effect::End(_))) {
            let key = (item.head.tid, item.head.row);
            if self.frees.get(&key).is_some_and(|position| *position < self.base) {
                self.frees.remove(&key);
            }
        }
        if matches!(item.effect, Effect::Failing(failing::Effect::Failed(_)))
            && self.halves.get(&item.head.tid).is_some_and(|position| *position < self.base)
        {
            self.halves.remove(&item.head.tid);
        }
        Some(item)
    }

    /// A thread has asked the driver for memory: takes out its call before, if this is the second half of the same request.
    fn finish_half(&mut self, item: &Item) {
        let tid = item.head.tid;
        let half = self.halves.remove(&tid).and_then(|position| position.checked_sub(self.base));
        if let Some(slot) = half.and_then(|index| self.queue.get_mut(index as usize))
            && slot.item.as_ref().is_some_and(|half| is_second_half(half, item))
        {
            slot.item = None;
        }
        if matches!(item.effect, Effect::Failing(failing::Effect::Failed(Failure { huge: true, .. }))) {
            self.halves.insert(tid, self.base + self.queue.len() as u64);
        }
    }

    /// Takes out the last free of this thread and row, if it is held and may be the one meant.
    fn cancel(&mut self, key: (u32, u16), pid: u32, failed: Option<u64>) -> bool {
        let Some(position) = self.frees.get(&key) else {
            return false;
        };
        let index = position.checked_sub(self.base).map(|index| index as usize);
        let Some(slot) = index.and_then(|index| self.queue.get_mut(index)) else {
            return false;
        };
        let meant = slot.item.as_ref().is_some_and(|item| match item.effect {
            Effect::Memory(memory::Effect::End(ending)) => {
                item.head.pid == pid && failed.is_none_or(|failed| failed == ending.addr())
            }
            _ => false,
        });
        if meant {
            slot.item = None;
            self.frees.remove(&key);
        }
        meant
    }
}

/// Whether two calls of one thread for memory are one request: first for huge pages, then for normal ones.
fn is_second_half(first: &Item, second: &Item) -> bool {
    let Effect::Failing(failing::Effect::Failed(Failure { huge: true, pool, device, size_bytes, .. })) = first.effect
    else {
        return false;
    };
    let (also, on, bytes) = match second.effect {
        Effect::Failing(failing::Effect::Failed(Failure { huge: false, pool, device, size_bytes, .. })) => {
            (pool, device, size_bytes)
        }
        Effect::Memory(memory::Effect::Alloc(NewBlock {
            page: PageType::Normal, pool, device, size_bytes, ..
        })) => (pool, Some(device), size_bytes),
        _ => return false,
    };
    first.head.pid == second.head.pid && (pool, device) == (also, on) && size_bytes.abs_diff(bytes) < HUGE_PAGE_BYTES
}

#[cfg(test)]
mod tests {
    use super::super::domains::memory::Ending;
    use super::super::item::Head;
    use super::*;
    use crate::backend::ascend::pools;
    use crate::model::{AllocApi, Device};

    fn free(time_ns: u64, tid: u32, addr: u64) -> Item {
        let head =
            Head { time_ns, seq: 0, pid: 7, tid, row: 2, outer: 0, stacks: super::super::item::StackIds::default() };
        Item { head, effect: Effect::Memory(memory::Effect::End(Ending::Block { api: AllocApi::Alloc, addr })) }
    }

    fn failed(time_ns: u64, tid: u32, addr: Option<u64>) -> Item {
        Item { effect: Effect::Memory(memory::Effect::EndFailed { addr }), ..free(time_ns, tid, 0) }
    }

    fn times(hold: &mut Hold) -> Vec<u64> {
        std::iter::from_fn(|| hold.pop(None)).map(|item| item.head.time_ns).collect()
    }

    fn held(items: Vec<Item>) -> Hold {
        let mut hold = Hold::new(100);
        for item in items {
            assert!(hold.push(item).is_none());
        }
        hold
    }

    /// Only the last free of the failing thread goes.
    #[test]
    fn failed_free_never_leaves() {
        let mut hold = held(vec![free(1, 1, 0xa), free(2, 1, 0xb), free(3, 2, 0xc), failed(4, 1, None)]);
        assert_eq!(times(&mut hold), [1, 3]);
        assert_eq!((hold.cancelled, hold.frees.len()), (1, 0));
    }

    /// A failure with a lost free does not undo the free before it.
    #[test]
    fn address_must_agree() {
        let mut hold = held(vec![free(1, 1, 0xa), failed(2, 1, Some(0xb))]);
        assert_eq!(times(&mut hold), [1, 2]);
    }

    /// A free that has left cannot be taken back here.
    #[test]
    fn failure_after_the_window_goes_on() {
        let mut hold = held(vec![free(1, 1, 0xa)]);
        assert_eq!(hold.pop(Some(2)).map(|item| item.head.time_ns), Some(1));
        hold.push(failed(9, 1, Some(0xa)));
        assert_eq!(times(&mut hold), [9]);
    }

    const MIB: u64 = 1 << 20;

    fn refused(time_ns: u64, tid: u32, size_bytes: u64, huge: bool) -> Item {
        let (pool, device) = (pools::HAL, Some(Device::Npu(1)));
        let failure = Failure { pool, device, size_bytes, flags: 0, status: 6, caller: None, huge };
        Item { effect: Effect::Failing(failing::Effect::Failed(failure)), ..free(time_ns, tid, 0) }
    }

    fn given(time_ns: u64, tid: u32, size_bytes: u64, page: PageType) -> Item {
        let new = NewBlock { page, ..NewBlock::of_pool(pools::HAL, Device::Npu(1), 0x10, size_bytes) };
        Item { effect: Effect::Memory(memory::Effect::Alloc(new)), ..free(time_ns, tid, 0) }
    }

    /// Makes sure that a request which first asks for huge pages is one attempt, whether or not the normal pages are there.
    #[test]
    fn normal_pages_are_asked_for_by_the_same_request() {
        let got = held(vec![refused(1, 1, 5 * MIB, true), given(2, 1, 5 * MIB, PageType::Normal)]);
        let not = held(vec![refused(1, 1, 6 * MIB, true), refused(2, 1, 5 * MIB, false), refused(3, 1, MIB, true)]);
        for (mut hold, left) in [(got, vec![2]), (not, vec![2, 3])] {
            assert_eq!(times(&mut hold), left);
            assert_eq!(hold.halves.len(), 0);
        }
    }

    /// Makes sure that what only looks like the second half takes no failure away: of another thread, another size, with huge pages
    /// again, or not the next call.
    #[test]
    fn other_requests_take_no_failure_away() {
        let first = || refused(1, 1, 5 * MIB, true);
        for second in [
            given(2, 2, 5 * MIB, PageType::Normal),
            given(2, 1, 7 * MIB, PageType::Normal),
            given(2, 1, 5 * MIB, PageType::Huge),
            refused(2, 1, 5 * MIB, true),
        ] {
            assert_eq!(times(&mut held(vec![first(), second])), [1, 2]);
        }
        let between = given(2, 1, 64 * MIB, PageType::Normal);
        assert_eq!(times(&mut held(vec![first(), between, given(3, 1, 5 * MIB, PageType::Normal)])), [1, 2, 3]);
    }

    /// A full queue lets the oldest go.
    #[test]
    fn full_queue_lets_the_oldest_go() {
        let mut hold = Hold::new(1);
        assert!(hold.push(free(1, 1, 0xa)).is_none());
        assert_eq!(hold.push(free(2, 1, 0xb)).map(|item| item.head.time_ns), Some(1));
    }
}
