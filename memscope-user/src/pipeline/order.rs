//! Time order. Records come nearly ordered (a ring), or as several ordered streams in turn (one perf buffer per CPU).
//!
//! Items in order go to a queue, the rest to a heap; both are merged on the way out. Equal times leave in the order of
//! arrival. A record older than one that has left is *late*: it gets the time of the last that left. When the window is
//! full the oldest leaves at once, whatever the watermark.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

use super::item::Item;
use crate::calm;

/// Items that wait at most.
pub(super) const WINDOW: usize = 256 << 10;

/// The window in which items are put in time order.
#[derive(Debug)]
pub(super) struct Order {
    run: VecDeque<Item>,
    stragglers: BinaryHeap<Oldest>,
    limit: usize,
    left_ns: u64,
    /// Items that came after a younger one had left.
    pub(super) late: u64,
    /// Items that left before their time because the window was full.
    pub(super) overfull: u64,
}

/// The heap gives the greatest: the oldest.
#[derive(Debug)]
struct Oldest(Item);

fn key(item: &Item) -> (u64, u64) {
    (item.head.time_ns, item.head.seq)
}

impl PartialEq for Oldest {
    fn eq(&self, other: &Self) -> bool {
        key(&self.0) == key(&other.0)
    }
}

impl Eq for Oldest {}

impl PartialOrd for Oldest {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Oldest {
    fn cmp(&self, other: &Self) -> Ordering {
        key(&other.0).cmp(&key(&self.0))
    }
}

impl Order {
    /// A window of at most `limit` items.
    pub(super) const fn new(limit: usize) -> Self {
        Self { run: VecDeque::new(), stragglers: BinaryHeap::new(), limit, left_ns: 0, late: 0, overfull: 0 }
    }

    /// Takes an item; returns the oldest one when there is no room for both.
    pub(super) fn push(&mut self, mut item: Item) -> Option<Item> {
        if item.head.time_ns < self.left_ns {
            item.head.time_ns = self.left_ns;
            self.late += 1;
        }
        if self.run.back().is_none_or(|last| key(last) < key(&item)) {
            self.run.push_back(item);
        } else {
            self.stragglers.push(Oldest(item));
        }
        if self.run.len() + self.stragglers.len() <= self.limit {
            return None;
        }
        self.overfull += 1;
        self.pop(None)
    }

    /// The oldest item, if it is older than `before`, if given.
    pub(super) fn pop(&mut self, before: Option<u64>) -> Option<Item> {
        let (run, straggler) = (self.run.front().map(key), self.stragglers.peek().map(|oldest| key(&oldest.0)));
        let oldest = [run, straggler].into_iter().flatten().min()?;
        if before.is_some_and(|before| oldest.0 >= before) {
            return None;
        }
        self.left_ns = oldest.0;
        if run == Some(oldest) { self.run.pop_front() } else { self.stragglers.pop().map(|oldest| oldest.0) }
    }

    /// All that wait, in no order.
    #[cfg(feature = "trace")]
    pub(super) fn items(&self) -> impl Iterator<Item = &Item> {
        self.run.iter().chain(self.stragglers.iter().map(|Oldest(item)| item))
    }

    /// Call on every flush.
    pub(super) fn calm(&mut self) {
        calm::queue(&mut self.run);
    }
}

#[cfg(test)]
mod tests {
    use super::super::domains::Effect;
    use super::super::item::{Head, StackIds};
    use super::*;
    use proptest::prelude::*;

    fn item(time_ns: u64, seq: u64) -> Item {
        Item {
            head: Head { time_ns, seq, pid: 0, tid: 0, row: 0, outer: 0, stacks: StackIds::default() },
            effect: Effect::Exec,
        }
    }

    fn drain(order: &mut Order, before: Option<u64>) -> Vec<(u64, u64)> {
        std::iter::from_fn(|| order.pop(before)).map(|item| key(&item)).collect()
    }

    fn filled(times: &[u64]) -> Order {
        let mut order = Order::new(100);
        for (seq, time) in times.iter().enumerate() {
            assert!(order.push(item(*time, seq as u64)).is_none());
        }
        order
    }

    /// Three per-CPU streams in turn become one.
    #[test]
    fn streams_are_merged() {
        let mut order = filled(&[1, 4, 7, 2, 5, 8, 3, 6, 9]);
        let times: Vec<u64> = drain(&mut order, None).into_iter().map(|(time, _)| time).collect();
        assert_eq!(times, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!((order.late, order.overfull), (0, 0));
    }

    /// Equal times leave in their order of arrival, even if some of them came out of order.
    #[test]
    fn equal_times_are_stable() {
        assert_eq!(drain(&mut filled(&[5, 9, 5, 5, 9]), None), [(5, 0), (5, 2), (5, 3), (9, 1), (9, 4)]);
    }

    /// Only items older than the watermark leave.
    #[test]
    fn watermark_holds_back() {
        let mut order = filled(&[1, 3, 2]);
        assert_eq!(drain(&mut order, Some(3)), [(1, 0), (2, 2)]);
        assert_eq!(drain(&mut order, Some(4)), [(3, 1)]);
    }

    /// A late item leaves with the time of the last that left.
    #[test]
    fn late_item_is_clamped() {
        let mut order = filled(&[10, 20]);
        drain(&mut order, Some(11));
        order.push(item(4, 2));
        assert_eq!(drain(&mut order, None), [(10, 2), (20, 1)]);
        assert_eq!(order.late, 1);
    }

    /// A full window lets the oldest go.
    #[test]
    fn full_window_lets_the_oldest_go() {
        let mut order = Order::new(2);
        assert!(order.push(item(5, 0)).is_none() && order.push(item(3, 1)).is_none());
        assert_eq!(order.push(item(9, 2)).map(|item| key(&item)), Some((3, 1)));
        assert_eq!(order.overfull, 1);
    }

    /// The memory of a burst is freed, and no waiting item is lost.
    #[test]
    fn bursts_leave_no_memory_behind() {
        let mut order = Order::new(1 << 20);
        for time in 0..100_000 {
            order.push(item(time, time));
        }
        while order.pop(Some(99_990)).is_some() {}
        order.calm();
        assert!(order.run.capacity() <= 1024, "{}", order.run.capacity());
        let left: Vec<u64> = drain(&mut order, None).into_iter().map(|(time, _)| time).collect();
        assert_eq!(left, (99_990..100_000).collect::<Vec<u64>>());
    }

    proptest! {
        /// Every item that comes in leaves, and times never decrease, however small the window.
        #[test]
        fn never_backwards(times in prop::collection::vec(0..50_u64, 0..200), limit in 1..20_usize) {
            let mut order = Order::new(limit);
            let mut out = Vec::new();
            for (seq, time) in times.iter().enumerate() {
                out.extend(order.push(item(*time, seq as u64)).map(|item| key(&item)));
            }
            out.extend(drain(&mut order, None));
            prop_assert!(out.is_sorted_by_key(|(time, _)| *time));
            let mut seqs: Vec<_> = out.iter().map(|(_, seq)| *seq).collect();
            seqs.sort_unstable();
            prop_assert_eq!(seqs, (0..times.len() as u64).collect::<Vec<_>>());
        }
    }
}
