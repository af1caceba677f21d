//! Requests that fail, by events, counted up to each mark of the program.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use memscope::analyses::{Analysis, Finding};
use memscope::input;
use memscope::model::{Device, Event, EventKind, Mark, RunEnd};

/// Requests of one device so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Requests {
    /// Failed at their first attempt.
    pub(crate) tried_again: u64,
    /// Of those, succeeded after all.
    pub(crate) recovered: u64,
}

impl Requests {
    /// Failed for good.
    #[must_use]
    pub(crate) const fn failed(self) -> u64 {
        self.tried_again - self.recovered
    }
}

/// Requests by device.
pub(crate) type ByDevice = BTreeMap<u32, Requests>;

#[derive(Debug)]
struct Counter {
    pid: u32,
    now: ByDevice,
    marks: Arc<Mutex<Vec<(String, ByDevice)>>>,
}

impl Analysis for Counter {
    fn observe(&mut self, event: &Event) {
        if event.pid != self.pid {
            return;
        }
        if let EventKind::Mark(Mark::Point { text: Some(text) }) = &event.kind {
            if let Some(name) = text.strip_prefix("truth ") {
                self.marks.lock().expect("no panic").push((name.to_owned(), self.now.clone()));
            }
        } else if let Device::Npu(device) = event.device {
            let now = self.now.entry(device).or_default();
            match &event.kind {
                EventKind::AllocFailed(failed) if failed.attempt == 1 => now.tried_again += 1,
                EventKind::AllocRecovered(_) => now.recovered += 1,
                _ => {}
            }
        }
    }

    fn finish(&mut self, _: &RunEnd) -> Vec<Finding> {
        Vec::new()
    }
}

/// Requests of a process up to each of its marks `truth NAME`, by a replay.
#[must_use]
pub(crate) fn at_marks(capture: &Path, pid: u32) -> Vec<(String, ByDevice)> {
    let marks = Arc::default();
    let counter = Counter { pid, now: ByDevice::new(), marks: Arc::clone(&marks) };
    input::run(&[capture.to_owned()], vec![Box::new(counter)]).expect("a capture");
    Arc::into_inner(marks).expect("not shared").into_inner().expect("no panic")
}
