//! The thread behind the ring: captures, decodes, analyses and writes the reader's records.

use std::{
    sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use tokio::sync::{mpsc::UnboundedSender, oneshot};

use super::{behind::Behind, disk::Waiting, heap, log::Speaker, looks::Looker};
use crate::{
    analyses::Finding,
    capture::{self, LookMoment, Note, note_record},
    crew::{Crew, Post},
    error_chain,
    os::{clock::monotonic_ns, priority::Haste},
    pipeline::{Outcome, Pipeline, ToLookAt},
    ring::{Batch, Spent},
    usage::Trigger,
};

#[cfg(test)]
mod tests;

/// Longest wait for the blocks of a process with a failed request.
const IN_ORDER: Duration = Duration::from_secs(1);
/// Interval of writing rows to the disk; batches come less often while few records come.
const FLUSH: Duration = Duration::from_millis(150);
/// Longest wait of a request while no records come.
const ANSWER: Duration = Duration::from_millis(250);
/// More than this between two flushes is a burst; its memory is freed some time after it.
const MUCH_BYTES: usize = 64 << 10;
const CALM: Duration = Duration::from_secs(1);
/// Records in a row, each there before the one before was done, that make a trace one that is behind. A part of what
/// may wait in memory.
const BEHIND_BYTES: usize = 4 << 20;
/// The same where they took so much time: other programs leave this thread little, and no one knows how much waits.
const BEHIND_TIME: Duration = Duration::from_millis(500);

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
    /// Notified once all is in the capture and much is left to analyse.
    pub(super) captured: Option<mpsc::Sender<()>>,
    /// Gets the size of what waits in the capture.
    pub(super) waiting: Waiting,
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
        let mut writer = Writer::new(work);
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
    /// Taken since no record waited, what is being taken included.
    waited_bytes: usize,
    /// When the first of that came.
    began: Instant,
    /// While records go to the capture alone.
    haste: Haste,
    /// The pipeline reads from the capture what came while it was at work.
    behind: Option<Behind>,
    /// The user knows of it.
    informed: bool,
    /// Time of the last burst, until its memory is freed.
    much: Option<Instant>,
    /// A request of this process has failed, at this time, and its blocks are not in time order yet.
    failed: Option<(u32, Instant)>,
}

impl Writer {
    fn new(work: Work) -> Self {
        Self {
            work,
            capture_error: None,
            unflushed_bytes: 0,
            waited_bytes: 0,
            began: Instant::now(),
            haste: Haste::new(),
            behind: None,
            informed: false,
            much: None,
            failed: None,
        }
    }

    fn run(&mut self, batches: &Receiver<Batch>, asks: &Receiver<Ask>, post: &mut Post) {
        let mut flushed = Instant::now();
        loop {
            match self.next(batches) {
                Ok(mut batch) => {
                    if batch.watermark_ns != 0 {
                        let note = Note::Watermark { mono_ns: batch.watermark_ns };
                        batch.bytes.extend(note_record(monotonic_ns(), 0, &note));
                    }
                    self.waited_bytes += batch.bytes.len();
                    self.fall_behind();
                    self.hurry(batch.bytes.len());
                    self.take(&batch.bytes);
                    post.round();
                    self.work.spent.give(batch.bytes);
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.rest();
                    self.catch_up();
                }
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

    /// The next batch, if one is there soon.
    fn next(&mut self, batches: &Receiver<Batch>) -> Result<Batch, RecvTimeoutError> {
        match batches.try_recv() {
            Ok(batch) => Ok(batch),
            Err(TryRecvError::Disconnected) => Err(RecvTimeoutError::Disconnected),
            Err(TryRecvError::Empty) if self.behind.is_some() => Err(RecvTimeoutError::Timeout),
            Err(TryRecvError::Empty) => {
                self.rest();
                let batch = batches.recv_timeout(ANSWER);
                self.began = Instant::now();
                batch
            }
        }
    }

    /// No record waits.
    fn rest(&mut self) {
        self.waited_bytes = 0;
        if self.work.recorded.is_some() {
            self.haste.rest();
        } else {
            // What comes next may be analysed.
            self.haste.calm();
        }
    }

    /// What goes to the capture and no further is done soon; analysing has time.
    fn hurry(&mut self, bytes: usize) {
        if self.behind.is_some() {
            self.haste.hurry();
        } else if self.work.recorded.is_some() {
            self.haste.busy(bytes);
        }
    }

    /// If the pipeline is slower than the program, records go to the capture alone from here on: it takes them several times
    /// as fast.
    fn fall_behind(&mut self) {
        let Work { pipeline, capture, recorded, .. } = &mut self.work;
        let (Some(_), Some(capture), None, None) = (pipeline, capture, recorded, &self.behind) else { return };
        if self.waited_bytes > BEHIND_BYTES || self.began.elapsed() > BEHIND_TIME {
            match capture.tail() {
                Ok(tail) => self.behind = Some(Behind::new(tail, self.work.waiting.clone())),
                Err(error) => self.capture_failed(&error),
            }
        }
    }

    /// Feeds the next records that the capture has and the pipeline has not; returns whether there were any.
    fn catch_up(&mut self) -> bool {
        let Self { work, behind, informed, .. } = self;
        let Some(waiting) = behind else { return false };
        let Some(pipeline) = &mut work.pipeline else {
            *behind = None;
            return false;
        };
        if !*informed && waiting.is_long() {
            *informed = true;
            work.speaker.info(format_args!(
                "more events come than are analysed at once: they wait in the capture, and none is lost; rows and \
                 findings come later"
            ));
        }
        match waiting.next(work.capture.as_ref()) {
            Ok(Some(records)) => {
                let fed = pipeline.feed(records);
                self.check(fed);
            }
            Ok(None) => match &work.capture {
                Some(capture) if !capture.unwritten().is_empty() => self.flush_capture(),
                _ => *behind = None,
            },
            // What follows is in no figure, so none is right.
            Err(error) => {
                let _ = work.errors.send(error_chain(&error));
                work.pipeline = None;
                *behind = None;
            }
        }
        true
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
        let Some(capture) = &mut self.work.capture else { return self.feed(records) };
        let taken = capture.taken_bytes();
        match capture.append(records) {
            // In its turn, from there.
            Ok(()) if self.behind.is_some() => {}
            Ok(()) => self.feed(records),
            Err(error) => {
                // These come with what waits.
                let in_capture = if self.behind.is_some() { capture.taken_bytes() - taken } else { 0 };
                self.capture_failed(&error);
                let in_capture = usize::try_from(in_capture).unwrap_or(usize::MAX);
                self.feed(records.get(in_capture..).unwrap_or_default());
            }
        }
    }

    fn feed(&mut self, records: &[u8]) {
        let Work { pipeline, recorded, .. } = &mut self.work;
        let fed = match (pipeline, recorded) {
            (None, _) => Ok(()),
            (Some(pipeline), None) => pipeline.feed(records),
            (Some(pipeline), Some(trigger)) => {
                trigger.pull();
                pipeline.feed_notes(records)
            }
        };
        self.check(fed);
    }

    /// Goes on without a capture. The pipeline gets what waits for it there, on the disk and in memory.
    fn capture_failed(&mut self, error: &capture::CaptureError) {
        self.report(error);
        let capture = self.work.capture.take();
        if self.behind.is_some() {
            while self.catch_up() {}
            self.feed(capture.as_ref().map_or(&[], |capture| capture.unwritten()));
        }
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

    fn flush_capture(&mut self) {
        if let Some(Err(error)) = self.work.capture.as_mut().map(capture::Writer::flush) {
            self.capture_failed(&error);
        }
    }

    fn flush(&mut self) {
        self.flush_capture();
        if let (Some(behind), Some(capture)) = (&mut self.behind, &self.work.capture) {
            behind.reaches(capture);
        }
        let flushed = self.work.pipeline.as_mut().map_or(Ok(()), Pipeline::flush);
        self.check(flushed);
    }

    fn check(&self, result: Result<(), crate::sinks::SinkError>) {
        if let Err(error) = result {
            let _ = self.work.errors.send(error_chain(&error));
        }
    }

    fn finish(mut self, post: &mut Post) -> Written {
        let captured = self.work.captured.take();
        let left = post.part(|_| self.complete_capture());
        if let (Some(true), Some(captured)) = (left, captured) {
            // Without a session no one waits for it.
            let _ = captured.send(());
        }
        let caught_up = post.part(|post| {
            while self.catch_up() {
                post.round();
            }
        });
        if left.is_none() || caught_up.is_none() {
            post.part(|_| drop(self.work.pipeline.take()));
        }
        let outcome = self.work.pipeline.take().and_then(|pipeline| post.part(|_| pipeline.finish(&[])));
        Written { outcome, capture_error: self.capture_error }
    }

    /// Returns whether much of it is left to analyse.
    fn complete_capture(&mut self) -> bool {
        self.flush_capture();
        let Some(capture) = self.work.capture.take() else { return false };
        let much_left = self.behind.as_mut().is_some_and(|behind| behind.ends(&capture, &self.work.speaker));
        self.informed |= much_left;
        if let Err(error) = capture.finish() {
            self.report(&error);
        }
        much_left
    }

    fn report(&mut self, error: &capture::CaptureError) {
        let text = error_chain(error);
        self.capture_error = Some(text.clone());
        let _ = self.work.errors.send(text);
    }
}
