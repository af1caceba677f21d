//! Progress of a command on files, on the terminal of the messages.

use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::terminal;
use crate::input::{Progress, Stage, Watcher};

/// Commands that take less are left alone.
const QUIET: Duration = Duration::from_secs(1);
/// Time between two lines.
const INTERVAL: Duration = Duration::from_millis(200);
/// At most this part of a stage is done between two looks at the clock.
const PARTS: u64 = 1000;

/// Shows progress, if stderr is a terminal.
pub(super) fn watcher() -> Option<Watcher> {
    terminal::shows_messages().then(|| {
        let mut bar = Bar::new();
        Box::new(move |progress| bar.show(progress)) as Watcher
    })
}

/// Shows the progress of one stage. The returned closure takes the work done, and the work in all.
pub(super) fn of_stage(stage: Stage) -> impl FnMut(u64, u64) {
    let mut watcher = watcher();
    move |done, total| {
        if let Some(watcher) = &mut watcher {
            watcher(Progress { stage, done, total });
        }
    }
}

/// Shows that work goes on, and its duration, where the amount is unknown; until it is dropped.
pub(super) struct Spinner {
    working: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Spinner {
    /// Begins, if there is a terminal to show it on.
    pub(super) fn start(what: &'static str) -> Self {
        if !terminal::shows_messages() {
            return Self { working: None, thread: None };
        }
        let began = Instant::now();
        let (working, ended) = sync_channel::<()>(0);
        let show = move || {
            let mut wait = QUIET;
            // Nothing is sent: the other end goes when the work ends, in any way.
            while ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                terminal::show_status(format_args!("{what}: {} s", began.elapsed().as_secs()));
                wait = INTERVAL;
            }
            terminal::clear_status();
        };
        // Without a thread for it nothing is shown.
        Self { working: Some(working), thread: thread::Builder::new().spawn(show).ok() }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.working = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Shows it during this work.
pub(super) fn during<T>(what: &'static str, work: impl FnOnce() -> T) -> T {
    let _shown = Spinner::start(what);
    work()
}

struct Bar {
    started: Instant,
    stage: Option<(Stage, Instant)>,
    /// The clock is not read before this much of the stage is done.
    next: u64,
    drawn: Option<Instant>,
}

impl Bar {
    fn new() -> Self {
        Self { started: Instant::now(), stage: None, next: 0, drawn: None }
    }

    fn show(&mut self, progress: Progress) {
        let is_new = self.stage.is_none_or(|(stage, _)| stage != progress.stage);
        if !is_new && progress.done < self.next {
            return;
        }
        self.next = progress.done + progress.total / PARTS;
        let now = Instant::now();
        if is_new {
            self.stage = Some((progress.stage, now));
        }
        let Some((_, began)) = self.stage else { return };
        let is_due = self.drawn.is_none_or(|drawn| now - drawn >= INTERVAL);
        if now - self.started >= QUIET && is_due {
            self.drawn = Some(now);
            terminal::show_status(line(progress, now - began));
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        terminal::clear_status();
    }
}

/// Share, rate, and estimated time of the stage.
#[expect(clippy::cast_precision_loss, reason = "estimates")]
fn line(progress: Progress, elapsed: Duration) -> String {
    let Progress { stage, done, total } = progress;
    let (what, unit, scale) = match stage {
        Stage::Looking => ("looking through", "MB/s", 1e6),
        Stage::Reading => ("reading", "MB/s", 1e6),
        Stage::Sorting => ("sorting", "thousand rows/s", 1e3),
        Stage::Analysing => ("analysing", "thousand rows/s", 1e3),
        Stage::Marking => ("marking", "million/s", 1e6),
        Stage::Comparing => ("comparing", "thousand entries/s", 1e3),
    };
    // A file may grow while it is read.
    let done = done.min(total);
    let share = done as f64 / total.max(1) as f64;
    let seconds = elapsed.as_secs_f64();
    if done == 0 || seconds <= 0.0 {
        return format!("{what}: {:.0} %", share * 100.0);
    }
    let rate = done as f64 / seconds;
    let left = (total - done) as f64 / rate;
    format!("{what}: {:.0} %, {:.1} {unit}, {left:.0} s left", share * 100.0, rate / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_estimates() {
        let line = |stage, done, total, seconds| line(Progress { stage, done, total }, Duration::from_secs(seconds));
        // 50 MB in 4 s is 12.5 MB/s; the other 150 MB take 12 s.
        assert_eq!(line(Stage::Reading, 50_000_000, 200_000_000, 4), "reading: 25 %, 12.5 MB/s, 12 s left");
        assert_eq!(line(Stage::Sorting, 3000, 4000, 3), "sorting: 75 %, 1.0 thousand rows/s, 1 s left");
        assert_eq!(line(Stage::Analysing, 0, 10, 3), "analysing: 0 %");
        // Nothing to do, nothing done yet, and more done than expected.
        assert_eq!(line(Stage::Analysing, 0, 0, 0), "analysing: 0 %");
        assert_eq!(line(Stage::Reading, 30, 20, 1), "reading: 100 %, 0.0 MB/s, 0 s left");
    }
}
