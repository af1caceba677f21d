//! Work beside Python: on a thread of its own, so that the caller's holds no lock, hears Ctrl-C at once, and can report progress.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use memscope::input::{Progress, Stage};
use pyo3::{
    exceptions::{PyOSError, PyRuntimeError},
    prelude::*,
};

/// Between two looks at signals.
const INTERVAL: Duration = Duration::from_millis(50);

/// Shared by the worker and its caller.
#[derive(Debug, Default)]
struct State {
    is_unwanted: AtomicBool,
    at: Mutex<Option<Progress>>,
    /// Rows seen since the last look at `at`: it is locked for every few of them alone.
    calls: AtomicU64,
}

/// Passed by [`resume_unwind`], without a message: the worker ends where it is, and all it holds is given back.
struct Unwanted;

/// Takes how far the work is. Does not return after the caller has given up.
#[derive(Clone, Debug)]
pub(super) struct Watch(Arc<State>);

impl Watch {
    pub(super) fn at(&self, progress: Progress) {
        let Self(state) = self;
        if state.is_unwanted.load(Relaxed) {
            resume_unwind(Box::new(Unwanted));
        }
        let mut at = state.at.lock().unwrap_or_else(PoisonError::into_inner);
        *at = Some(progress);
    }

    /// The same, every few calls: for those that come with each row.
    pub(super) fn often(&self, progress: Progress) {
        const FEW: u64 = 64;
        let calls = self.0.calls.fetch_add(1, Relaxed);
        if calls.is_multiple_of(FEW) || progress.done >= progress.total {
            self.at(progress);
        }
    }
}

/// Does the work, calls `progress` (stage, done, total) several times a second, and raises what signals raise within a moment.
pub(super) fn run<T: Send + 'static>(
    py: Python<'_>,
    progress: Option<&Bound<'_, PyAny>>,
    work: impl FnOnce(&Watch) -> T + Send + 'static,
) -> PyResult<T> {
    let state = Arc::<State>::default();
    let watch = Watch(Arc::clone(&state));
    let (sender, receiver) = mpsc::channel();
    let worker = move || {
        // What it leaves behind half done is its own.
        let done = catch_unwind(AssertUnwindSafe(|| work(&watch)));
        let _ = sender.send(done.ok());
    };
    thread::Builder::new()
        .name("memscope-bpf".to_owned())
        .spawn(worker)
        .map_err(|error| PyOSError::new_err(format!("cannot start a thread for the analysis: {error}")))?;
    // Only this thread waits.
    let receiver = Mutex::new(receiver);
    let wait = |time| receiver.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(time);
    let failed = || PyRuntimeError::new_err("the analysis failed by an error of its own; please report it");
    loop {
        match py.detach(|| wait(INTERVAL)) {
            Ok(done) => {
                report(&state, progress)?;
                return done.ok_or_else(failed);
            }
            Err(RecvTimeoutError::Disconnected) => return Err(failed()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Err(raised) = py.check_signals().and_then(|()| report(&state, progress)) {
            state.is_unwanted.store(true, Relaxed);
            // What is written is either all there or not at all, and nothing happens to it any more afterwards. Readers are left to
            // end by themselves.
            let is_writing = is_at(&state).is_some_and(|at| at.stage == Stage::Marking);
            while is_writing && matches!(py.detach(|| wait(INTERVAL)), Err(RecvTimeoutError::Timeout)) {}
            return Err(raised);
        }
    }
}

fn is_at(state: &State) -> Option<Progress> {
    *state.at.lock().unwrap_or_else(PoisonError::into_inner)
}

fn report(shared: &State, progress: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    let (Some(progress), Some(Progress { stage, done, total })) = (progress, is_at(shared)) else { return Ok(()) };
    let stage = match stage {
        Stage::Looking => "looking",
        Stage::Reading => "reading",
        Stage::Sorting => "sorting",
        Stage::Analysing => "analysing",
        Stage::Comparing => "comparing",
        Stage::Marking => "marking",
    };
    progress.call1((stage, done.min(total), total)).map(drop)
}
