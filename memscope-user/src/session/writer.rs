//! The thread behind the ring: captures, decodes, analyses and writes the reader's records.

use std::{
    sync::mpsc::{Receiver, RecvTimeoutError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use tokio::sync::{mpsc::UnboundedSender, oneshot};

use super::{heap, log::Speaker, looks::Looker};
use crate::{
    analyses::Finding,
    capture::{self, LookMoment, Note, note_record},
    crew::{Crew, Post},
    error_chain,
    os::clock::monotonic_ns,
    pipeline::{Outcome, Pipeline, ToLookAt},
    ring::{Batch, Spent},
    usage::Trigger,
};

/// Longest wait for the blocks of a process with a failed request.
const IN_ORDER: Duration = Duration::from_secs(1);
/// Interval of writing rows to the disk; batches come less often while few records come.
const FLUSH: Duration = Duration::from_millis(150);
/// Longest wait of a request while no records come.
const ANSWER: Duration = Duration::from_millis(250);
/// More than this between two flushes is a burst; its memory is freed some time after it.
const MUCH_BYTES: usize = 64 << 10;
const CALM: Duration = Duration::from_secs(1);

/// The results when the transport ended.
pub(super) struct Written {
    /// `None` if the pipeline has failed.
    pub(super) outcome: Option<Outcome>,
    /// The capture could not be finished.
    pub(super) capture_error: Option<String>,
}

/// A request to the thread while it works.
#[derive(Debug)]
pub(super) enum Ask {
    /// Send the findings so far to the listener.
    Listener,
    /// Send the findings so far.
    Now(UnboundedSender<Vec<Finding>>),
    /// Take a look at who holds blocks. The sender is dropped when that is over.
    Look(LookMoment, oneshot::Sender<()>),
}

/// The inputs of the thread.
pub(super) struct Work {
    /// `None` once it has failed.
    pub(super) pipeline: Option<Pipeline>,
    pub(super) capture: Option<capture::Writer>,
    /// Notified that memory may have changed, if only the capture is written.
    pub(super) recorded: Option<Trigger>,
    /// Gets the buffers of batches.
    pub(super) spent: Spent,
    /// Takes looks at who holds blocks, if they are wanted.
    pub(super) looker: Option<Looker>,
    /// The speaker with the listener for answers.
    pub(super) speaker: Speaker,
    /// Gets errors of outputs.
    pub(super) errors: UnboundedSender<String>,
}

/// Starts the thread; requests in `asks` are answered within [`ANSWER`]. A failing capture is abandoned, the others
/// continue. After a panic of the rest, the capture alone continues: a replay makes the rest of it.
pub(super) fn start(
    crew: &Crew,
    batches: Receiver<Batch>,
    work: Work,
    asks: Receiver<Ask>,
) -> std::io::Result<JoinHandle<Written>> {
    crew.spawn("memscope-write", move |post| {
        let mut writer = Writer { work, capture_error: None, unflushed_bytes: 0, much: None, failed: None };
        if post.part(|post| writer.run(&batches, &asks, post)).is_none() {
            // Its files keep their rows; its findings are unreliable.
            post.part(|_| drop(writer.work.pipeline.take()));
            post.part(|post| writer.run(&batches, &asks, post));
        }
        writer.finish(post)
    })
}

struct Writer {
    work: Work,
    capture_error: Option<String>,
    /// Taken since the last flush.
    unflushed_bytes: usize,
    /// Time of the last burst, until its memory is freed.
    much: Option<Instant>,
    /// A request of this process has failed, at this time, and its blocks are not in time order yet.
    failed: Option<(u32, Instant)>,
}

impl Writer {
    fn run(&mut self, batches: &Receiver<Batch>, asks: &Receiver<Ask>, post: &mut Post) {
        let mut flushed = Instant::now();
        loop {
            match batches.recv_timeout(ANSWER) {
                Ok(mut batch) => {
                    if batch.watermark_ns != 0 {
                        let note = Note::Watermark { mono_ns: batch.watermark_ns };
                        batch.bytes.extend(note_record(monotonic_ns(), 0, &note));
                    }
                    self.take(&batch.bytes);
                    post.round();
                    self.work.spent.give(batch.bytes);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.look_if_urgent();
            for ask in asks.try_iter() {
                self.answer(ask);
            }
            if flushed.elapsed() >= FLUSH {
                flushed = Instant::now();
                self.flush();
                self.calm();
            }
        }
    }

    fn answer(&mut self, ask: Ask) {
        let Some(pipeline) = &self.work.pipeline else { return };
        match ask {
            Ask::Listener => self.work.speaker.listener().findings_so_far(&pipeline.now()),
            // The session ends.
            Ask::Now(to) => drop(to.send(pipeline.now())),
            Ask::Look(at, done) => self.look(at, None, Some(done)),
        }
    }

    /// Takes a look at who holds blocks, as soon as what calls for one is in the stream.
    fn look_if_urgent(&mut self) {
        let (Some(pipeline), Some(looker)) = (&mut self.work.pipeline, &self.work.looker) else { return };
        let urgent = pipeline.take_urgent();
        if let Some(pid) = urgent.failed
            && self.failed.is_none()
            && looker.begins(LookMoment::FailedRequest)
        {
            self.failed = Some((pid, Instant::now()));
        }
        if let Some((pid, since)) = self.failed {
            if !pipeline.is_behind(pid) || since.elapsed() >= IN_ORDER {
                self.failed = None;
                self.look(LookMoment::FailedRequest, Some(pid), None);
            }
        } else if urgent.exits && looker.begins(LookMoment::Exit) {
            self.look(LookMoment::Exit, None, None);
        }
    }

    /// Chooses blocks; `failed`: a request of this process has failed. What is looked at is in the stream, so that a replay has the same blocks in mind.
    fn look(&mut self, at: LookMoment, failed: Option<u32>, done: Option<oneshot::Sender<()>>) {
        let (Some(pipeline), Some(looker)) = (&mut self.work.pipeline, self.work.looker.clone()) else { return };
        let processes = looker.worth(at, failed, pipeline.choose_blocks());
        if processes.is_empty() {
            if let Some(pid) = failed {
                let is_reduced = pipeline.is_reduced(pid);
                let reason =
                    if is_reduced { "its pools are not traced" } else { "no live block of the process is known" }
                        .to_owned();
                self.take(&note_record(monotonic_ns(), 0, &Note::NoLook { look: 0, pid, at, reason }));
            }
            return;
        }
        let look = looker.number();
        for ToLookAt { pid, places, .. } in &processes {
            let note = Note::LookBegins { look, pid: *pid, at, places: places.clone() };
            self.take(&note_record(monotonic_ns(), 0, &note));
        }
        looker.look(look, at, processes, done);
    }

    fn take(&mut self, records: &[u8]) {
        if records.is_empty() {
            return;
        }
        self.unflushed_bytes += records.len();
        let Work { pipeline, capture, recorded, .. } = &mut self.work;
        let captured = capture.as_mut().map_or(Ok(()), |capture| capture.append(records));
        let fed = match (pipeline, recorded) {
            (None, _) => Ok(()),
            (Some(pipeline), None) => pipeline.feed(records),
            (Some(pipeline), Some(trigger)) => {
                trigger.pull();
                pipeline.feed_notes(records)
            }
        };
        self.check_capture(captured);
        self.check(fed);
    }

    /// Gives memory back once a burst is over.
    fn calm(&mut self) {
        if std::mem::take(&mut self.unflushed_bytes) > MUCH_BYTES {
            self.much = Some(Instant::now());
        } else if self.much.is_some_and(|last| last.elapsed() >= CALM) {
            self.much = None;
            heap::give_back();
        }
    }

    fn flush(&mut self) {
        let captured = self.work.capture.as_mut().map_or(Ok(()), capture::Writer::flush);
        self.check_capture(captured);
        let flushed = self.work.pipeline.as_mut().map_or(Ok(()), Pipeline::flush);
        self.check(flushed);
    }

    fn check(&self, result: Result<(), crate::sinks::SinkError>) {
        if let Err(error) = result {
            let _ = self.work.errors.send(error_chain(&error));
        }
    }

    fn check_capture(&mut self, result: Result<(), capture::CaptureError>) {
        if let Err(error) = result {
            let text = error_chain(&error);
            self.work.capture = None;
            self.capture_error = Some(text.clone());
            let _ = self.work.errors.send(text);
        }
    }

    fn finish(mut self, post: &mut Post) -> Written {
        let finished = self.work.capture.take().map_or(Ok(()), capture::Writer::finish);
        self.check_capture(finished);
        let outcome = self.work.pipeline.take().and_then(|pipeline| post.part(|_| pipeline.finish(&[])));
        Written { outcome, capture_error: self.capture_error }
    }
}
