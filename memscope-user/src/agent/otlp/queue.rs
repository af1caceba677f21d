//! What waits to be sent, bounded in bytes. Pure.

use std::collections::VecDeque;

use hyper::body::Bytes;

/// What a waiting message takes beside its body.
const OVERHEAD_BYTES: usize = 64;

/// What a message has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Signal {
    Metrics,
    Logs,
}

impl Signal {
    /// Behind the endpoint's path.
    pub(super) const fn path(self) -> &'static str {
        match self {
            Self::Metrics => "/v1/metrics",
            Self::Logs => "/v1/logs",
        }
    }

    /// In messages.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Metrics => "metrics",
            Self::Logs => "logs",
        }
    }
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    pub(super) signal: Signal,
    pub(super) body: Bytes,
    /// Data points or log records in it.
    pub(super) records: u64,
}

impl Batch {
    fn bytes(&self) -> usize {
        self.body.len().saturating_add(OVERHEAD_BYTES)
    }
}

/// Messages in the order in which they were made. One of them may be under way: it counts, and stays the oldest.
#[derive(Debug)]
pub(super) struct Queue {
    waiting: VecDeque<Batch>,
    /// Bytes and records of the one that is under way.
    under_way: Option<(usize, u64)>,
    bytes: usize,
    max_bytes: usize,
}

impl Queue {
    pub(super) const fn new(max_bytes: usize) -> Self {
        Self { waiting: VecDeque::new(), under_way: None, bytes: 0, max_bytes }
    }

    /// Takes a message in. Gives the number of records that were dropped for it: the oldest messages go first; one that finds no room
    /// even so goes itself.
    pub(super) fn push(&mut self, batch: Batch) -> u64 {
        let mut dropped = 0;
        let size = batch.bytes();
        let fixed = self.under_way.map_or(0, |(bytes, _)| bytes);
        if fixed.saturating_add(size) > self.max_bytes {
            return batch.records;
        }
        while self.bytes.saturating_add(size) > self.max_bytes {
            let Some(oldest) = self.waiting.pop_front() else { break };
            self.bytes -= oldest.bytes();
            dropped += oldest.records;
        }
        self.bytes += size;
        self.waiting.push_back(batch);
        dropped
    }

    /// The oldest message, which is under way from here on.
    pub(super) fn take(&mut self) -> Option<Batch> {
        let batch = self.waiting.pop_front()?;
        self.under_way = Some((batch.bytes(), batch.records));
        Some(batch)
    }

    /// The message that is under way has arrived, or is given up.
    pub(super) fn done(&mut self) {
        self.bytes -= self.under_way.take().map_or(0, |(bytes, _)| bytes);
    }

    /// The message that is under way has to be sent again: it is the next one.
    pub(super) fn give_back(&mut self, batch: Batch) {
        self.under_way = None;
        self.waiting.push_front(batch);
    }

    /// Records in the queue and under way.
    pub(super) fn records(&self) -> u64 {
        let waiting: u64 = self.waiting.iter().map(|batch| batch.records).sum();
        waiting + self.under_way.map_or(0, |(_, records)| records)
    }

    /// Bytes in the queue and under way.
    #[cfg(test)]
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(records: u64, bytes: usize) -> Batch {
        Batch { signal: Signal::Metrics, body: vec![0; bytes - OVERHEAD_BYTES].into(), records }
    }

    /// The oldest go, as far as the new one needs.
    #[test]
    fn oldest_are_dropped() {
        let mut queue = Queue::new(1000);
        assert_eq!([300, 300, 300].map(|bytes| queue.push(batch(bytes as u64, bytes))), [0, 0, 0]);
        assert_eq!(queue.push(batch(4, 400)), 300);
        assert_eq!((queue.bytes(), queue.records()), (1000, 604));
        assert_eq!(queue.push(batch(5, 1000)), 604);
        assert_eq!(queue.push(batch(6, 1001)), 6, "what never fits is dropped, and nothing else");
        assert_eq!((queue.bytes(), queue.records()), (1000, 5));
    }

    /// What is under way stays counted until it is done, and cannot be dropped.
    #[test]
    fn message_under_way_keeps_its_room() {
        let mut queue = Queue::new(1000);
        queue.push(batch(1, 600));
        queue.push(batch(2, 200));
        let taken = queue.take().expect("a message");
        assert_eq!(queue.push(batch(3, 300)), 2);
        assert_eq!(queue.push(batch(4, 500)), 4, "no room beside the one that is under way");
        assert_eq!((queue.bytes(), queue.records()), (900, 4));
        queue.give_back(taken.clone());
        assert_eq!(queue.take(), Some(taken));
        queue.done();
        assert_eq!((queue.bytes(), queue.records()), (300, 3));
        queue.take();
        queue.done();
        assert_eq!((queue.bytes(), queue.records(), queue.take()), (0, 0, None));
    }
}
