//! The writer's thread, its messages, and its files.

use std::{
    mem,
    sync::mpsc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use tokio::sync::{
    mpsc::{UnboundedReceiver, UnboundedSender},
    oneshot,
};

use super::{
    disk::{Disk, DiskUse, Room},
    gauge::Gauge,
    listener::FilesWritten,
    log::Speaker,
    outputs::Selecting,
    text,
    writer::{Ask, Written},
};
use crate::{analyses::Finding, capture::LookMoment, sinks::tree::OutputTree};

/// The writer and its files.
pub(super) struct Work {
    pub(super) writer: Option<JoinHandle<Written>>,
    pub(super) is_captured: mpsc::Receiver<()>,
    pub(super) asks: mpsc::Sender<Ask>,
    pub(super) answer: UnboundedSender<Vec<Finding>>,
    pub(super) answers: UnboundedReceiver<Vec<Finding>>,
    pub(super) output_errors: UnboundedReceiver<String>,
    pub(super) selected: Selecting,
    pub(super) gauge: Gauge,
    pub(super) disk: Disk,
    pub(super) tree: Option<OutputTree>,
    /// Bytes that the files may have.
    pub(super) max_bytes: Option<u64>,
    /// The oldest rows are removed then, else the trace ends.
    pub(super) rotates: bool,
}

impl Work {
    /// Sends the findings so far to the listener.
    pub(super) fn ask_for_listener(&self) {
        // A writer that has ended has reported everything.
        let _ = self.asks.send(Ask::Listener);
    }

    /// Asks for a sample; it comes among the answers.
    pub(super) fn ask_for_sample(&self) {
        // A writer that has ended has reported why.
        let _ = self.asks.send(Ask::Now(self.answer.clone()));
    }

    /// Asks for a look at who holds blocks. The answer comes when it was taken, or none was worth its cost.
    pub(super) fn ask_for_look(&self, at: LookMoment) -> oneshot::Receiver<()> {
        let (done, was_taken) = oneshot::channel();
        // As above.
        let _ = self.asks.send(Ask::Look(at, done));
        was_taken
    }

    /// Waits until everything is in the capture; returns whether much of it is left to analyse.
    pub(super) fn is_left_to_analyse(&self) -> bool {
        // The other end is dropped if there is nothing to wait for.
        self.is_captured.recv().is_ok()
    }

    /// Waits until everything is written.
    pub(super) fn join(&mut self) -> Written {
        let written = self.writer.take().and_then(|writer| writer.join().ok());
        let mut written = written.unwrap_or(Written { outcome: None, capture_error: None });
        if let Some(outcome) = &mut written.outcome {
            outcome.end.nothing_selected = mem::replace(&mut self.selected, Selecting::ALL).selected_none();
        }
        written
    }

    /// Looks at the files, and warns once when the disk is about to be full.
    pub(super) fn look_at_disk(&mut self, speaker: &Speaker) -> DiskUse {
        let free_bytes = self.tree.as_ref().and_then(|tree| tree.free_bytes().ok());
        let disk = self.disk.look(Instant::now(), Room { free_bytes, max_bytes: self.max_bytes });
        if let Some(left) = self.disk.warning(disk) {
            let free = text::size(free_bytes.unwrap_or(0));
            let text = format_args!(
                "the disk is full in {} at this rate ({free} free): --max-size ends the trace before, --stacks=table and \
                 --capture-only write less",
                text::time(left)
            );
            speaker.warn(text);
        }
        disk
    }

    /// Whether the files are as large as they may be, with what waits for them.
    pub(super) fn is_full(&self, disk: DiskUse) -> bool {
        !self.rotates && self.max_bytes.is_some_and(|most| disk.size_bytes.saturating_add(disk.waiting_bytes) >= most)
    }

    /// The contents of the files at the end.
    pub(super) fn files(&mut self, took: Duration) -> Option<FilesWritten> {
        let tree = self.tree.as_ref()?;
        let disk = self.disk.look(Instant::now(), Room::default());
        let took = (!self.rotates).then_some(took);
        Some(FilesWritten { disk, took, free_bytes: tree.free_bytes().ok() })
    }
}
