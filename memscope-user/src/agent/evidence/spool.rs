//! Rows wait in memory until their part of an hour is over, or they are many; then a thread of its own writes them, one file at a time. A
//! disk that hangs or is full takes no time of the agent: rows wait, up to a bound, and the oldest go.

use std::{
    collections::VecDeque,
    io,
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError},
    time::{Duration, Instant},
};

use super::{
    rows::{Row, Table},
    store::Stored,
};

/// What all rows may take in memory; at it the oldest part is dropped, and counted.
const MAX_BYTES: usize = 64 << 20;
/// Rows of a table are written as a part when they take this much.
const PART_BYTES: usize = 8 << 20;
/// Rows of a minute come with the next page, failed requests a minute later: a file waits for them.
const LATE_MINUTES: u32 = 2;
/// From a file that could not be written to the next attempt.
const PAUSE: Duration = Duration::from_secs(60);

/// Rows of one table and one part of an hour.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) table: Table,
    /// Number of the interval since the Unix epoch.
    window: u32,
    pub(super) rows: Vec<Row>,
    bytes: usize,
}

/// What came of a part.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) part: Part,
    pub(super) result: io::Result<Stored>,
}

/// The thread that writes.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) parts: SyncSender<Part>,
    pub(super) done: Receiver<Done>,
}

/// What came of all parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) files: u64,
    pub(super) failed_files: u64,
    pub(super) removed_files: u64,
    pub(super) rows: u64,
    pub(super) dropped_rows: u64,
}

/// Rows that wait.
#[derive(Debug)]
pub(super) struct Spool {
    interval_minutes: u32,
    max_bytes: usize,
    waiting: VecDeque<Part>,
    /// Of those that wait, and of the part that is being written.
    bytes: usize,
    /// Rows and bytes of the part that is being written.
    writing: Option<(u64, usize)>,
    not_before: Option<Instant>,
    writer: Writer,
    pub(super) counts: Counts,
}

impl Spool {
    pub(super) const fn new(interval_minutes: u32, writer: Writer) -> Self {
        Self {
            interval_minutes,
            max_bytes: MAX_BYTES,
            waiting: VecDeque::new(),
            bytes: 0,
            writing: None,
            not_before: None,
            writer,
            counts: Counts { files: 0, failed_files: 0, removed_files: 0, rows: 0, dropped_rows: 0 },
        }
    }

    const fn window_of(&self, minute: u32) -> u32 {
        minute / self.interval_minutes
    }

    /// Takes a row. Says whether others were dropped for it.
    pub(super) fn add(&mut self, row: Row) -> bool {
        let (table, bytes) = (row.table(), row.bytes());
        let window = self.window_of(row.epoch_minute().cast_unsigned());
        let is_open = |part: &&mut Part| part.table == table && part.window == window && part.bytes < PART_BYTES;
        let part = match self.waiting.iter_mut().rfind(is_open) {
            Some(part) => part,
            None => self.waiting.push_back_mut(Part { table, window, rows: Vec::new(), bytes: 0 }),
        };
        part.rows.push(row);
        part.bytes += bytes;
        self.bytes += bytes;
        let mut has_dropped = false;
        while self.bytes > self.max_bytes
            && let Some(oldest) = self.waiting.pop_front()
        {
            self.drop_part(&oldest);
            has_dropped = true;
        }
        has_dropped
    }

    fn drop_part(&mut self, part: &Part) {
        self.bytes -= part.bytes;
        self.counts.dropped_rows += part.rows.len() as u64;
    }

    /// Has a part written that is due, if none is being written. Gives the results since the last time.
    pub(super) fn work(&mut self, now_minute: u32, now: Instant) -> Vec<io::Result<Stored>> {
        let mut results = Vec::new();
        if self.writing.is_some() {
            match self.writer.done.try_recv() {
                Ok(done) => results.push(self.take(done, now)),
                Err(TryRecvError::Empty) => return results,
                Err(TryRecvError::Disconnected) => return vec![Err(self.writer_is_gone(now))],
            }
        }
        let first_open = self.window_of(now_minute.saturating_sub(LATE_MINUTES));
        // A later window is of a clock that was set back since: nothing more is added to it.
        let last_open = self.window_of(now_minute) + 1;
        let is_over = |part: &Part| !(first_open..=last_open).contains(&part.window);
        let due = self.waiting.iter().position(|part| part.bytes >= PART_BYTES || is_over(part));
        if let Some(at) = due.filter(|_| self.not_before.is_none_or(|time| now >= time)) {
            results.extend(self.send(at, now));
        }
        results
    }

    fn send(&mut self, at: usize, now: Instant) -> Option<io::Result<Stored>> {
        let part = self.waiting.remove(at)?;
        let size = (part.rows.len() as u64, part.bytes);
        match self.writer.parts.try_send(part) {
            Ok(()) => {
                self.writing = Some(size);
                None
            }
            Err(TrySendError::Full(part) | TrySendError::Disconnected(part)) => {
                self.waiting.push_front(part);
                Some(Err(self.writer_is_gone(now)))
            }
        }
    }

    fn take(&mut self, Done { part, result }: Done, now: Instant) -> io::Result<Stored> {
        self.writing = None;
        match result {
            Ok(stored) => {
                self.not_before = None;
                self.bytes -= part.bytes;
                self.counts.files += 1;
                self.counts.rows += stored.rows;
                self.counts.removed_files += stored.removed_files;
                Ok(stored)
            }
            Err(error) => {
                self.not_before = Some(now + PAUSE);
                self.counts.failed_files += 1;
                self.waiting.push_front(part);
                Err(error)
            }
        }
    }

    /// The thread has failed: the part that it had is lost with it, and rows wait until they are dropped.
    fn writer_is_gone(&mut self, now: Instant) -> io::Error {
        self.give_up();
        self.not_before = Some(now + PAUSE);
        self.counts.failed_files += 1;
        io::Error::other("the thread that writes them has failed")
    }

    /// The part that is being written does not count any more.
    fn give_up(&mut self) {
        if let Some((rows, bytes)) = self.writing.take() {
            self.bytes -= bytes;
            self.counts.dropped_rows += rows;
        }
    }

    /// Writes all rows within this time. Rows that are not written are dropped.
    pub(super) fn finish(&mut self, longest: Duration) -> Option<io::Error> {
        let end = Instant::now() + longest;
        let mut last = None;
        while self.writing.is_some() || !self.waiting.is_empty() {
            let now = Instant::now();
            if self.writing.is_none()
                && let Some(Err(error)) = self.send(0, now)
            {
                last = Some(error);
                break;
            }
            match self.writer.done.recv_timeout(end.saturating_duration_since(now)) {
                Ok(done) => last = self.take(done, now).err(),
                Err(RecvTimeoutError::Timeout) => last = Some(io::Error::other("the disk takes too long")),
                Err(RecvTimeoutError::Disconnected) => last = Some(self.writer_is_gone(now)),
            }
            if last.is_some() {
                break;
            }
        }
        self.give_up();
        for part in std::mem::take(&mut self.waiting) {
            self.drop_part(&part);
        }
        last
    }
}

#[cfg(test)]
mod tests;
