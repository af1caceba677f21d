//! The thread behind the ring: captures, decodes, analyses and writes what the reader hands on.

use std::{
    sync::mpsc::{Receiver, RecvTimeoutError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tokio::sync::mpsc::UnboundedSender;

use super::outputs;
use crate::{
    capture::{self, Note, note_record},
    error_chain,
    model::Finding,
    pipeline::{Outcome, Pipeline},
    ring::{Batch, monotonic_ns},
};

/// Rows are on disk within this time.
const FLUSH: Duration = Duration::from_millis(250);
/// Watermarks are told for this long after the last record, so that the last records leave too, and a failed request is
/// known to have failed for good.
const AFTERGLOW: Duration = Duration::from_millis(1500);

/// What was written when the transport ended.
pub(super) struct Written {
    pub(super) outcome: Outcome,
    /// The capture could not be finished.
    pub(super) capture_error: Option<String>,
}

/// Asks the thread for something while it works.
#[derive(Clone, Debug)]
pub(super) enum Ask {
    /// Print the ledgers as they are.
    Ledgers,
    /// Send what the analyses can say so far.
    Now(UnboundedSender<Vec<Finding>>),
}

/// Starts the thread; `asks` are answered within [`FLUSH`]. Failing outputs are told through `errors`; a failing capture is given up,
/// the others go on.
pub(super) fn start(
    batches: Receiver<Batch>,
    pipeline: Pipeline,
    capture: Option<capture::Writer>,
    errors: UnboundedSender<String>,
    asks: Receiver<Ask>,
) -> std::io::Result<JoinHandle<Written>> {
    thread::Builder::new().name("memscope-write".to_owned()).spawn(move || {
        let mut writer = Writer { pipeline, capture, errors, capture_error: None };
        writer.run(&batches, &asks);
        writer.finish()
    })
}

struct Writer {
    pipeline: Pipeline,
    capture: Option<capture::Writer>,
    errors: UnboundedSender<String>,
    capture_error: Option<String>,
}

impl Writer {
    fn run(&mut self, batches: &Receiver<Batch>, asks: &Receiver<Ask>) {
        let mut flushed = Instant::now();
        let mut active = Instant::now();
        loop {
            match batches.recv_timeout(FLUSH) {
                Ok(mut batch) => {
                    if !batch.bytes.is_empty() {
                        active = Instant::now();
                    }
                    if batch.watermark_ns != 0 && active.elapsed() < AFTERGLOW {
                        let note = Note::Watermark { mono_ns: batch.watermark_ns };
                        batch.bytes.extend(note_record(monotonic_ns(), 0, &note));
                    }
                    self.take(&batch.bytes);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            for ask in asks.try_iter() {
                self.answer(&ask);
            }
            if flushed.elapsed() >= FLUSH {
                flushed = Instant::now();
                self.flush();
            }
        }
    }

    fn answer(&self, ask: &Ask) {
        let findings = self.pipeline.now();
        match ask {
            // Nobody reads our messages, so nobody misses them.
            Ask::Ledgers => drop(outputs::print_ledgers(&findings)),
            // The session ends.
            Ask::Now(to) => drop(to.send(findings)),
        }
    }

    fn take(&mut self, records: &[u8]) {
        if records.is_empty() {
            return;
        }
        let captured = self.capture.as_mut().map_or(Ok(()), |capture| capture.append(records));
        self.check_capture(captured);
        let fed = self.pipeline.feed(records);
        self.check(fed);
    }

    fn flush(&mut self) {
        let captured = self.capture.as_mut().map_or(Ok(()), capture::Writer::flush);
        self.check_capture(captured);
        let flushed = self.pipeline.flush();
        self.check(flushed);
    }

    fn check(&self, result: Result<(), crate::sinks::SinkError>) {
        if let Err(error) = result {
            let _ = self.errors.send(error_chain(&error));
        }
    }

    fn check_capture(&mut self, result: Result<(), capture::CaptureError>) {
        if let Err(error) = result {
            let text = error_chain(&error);
            self.capture = None;
            self.capture_error = Some(text.clone());
            let _ = self.errors.send(text);
        }
    }

    fn finish(mut self) -> Written {
        let finished = self.capture.take().map_or(Ok(()), capture::Writer::finish);
        self.check_capture(finished);
        Written { outcome: self.pipeline.finish(&[]), capture_error: self.capture_error }
    }
}
