//! Native half of the Python package: marker functions, the state behind owner labels, the Python trace, and the analyses of files. What the arguments may be
//! is checked in Python; but for the analyses, nothing here writes, waits or takes samples.

mod chunk;
mod labels;
mod markers;
mod offline;
mod trace;

use std::{
    cell::RefCell,
    ffi::CString,
    sync::{
        OnceLock,
        atomic::{AtomicU16, Ordering::Relaxed},
    },
};

use pyo3::{
    prelude::*,
    types::{PyDict, PyTuple},
};

use self::markers::Snapshot;

#[pymodule]
mod _memscope_bpf {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::offline::{Found, ask, comparison, difference, inefficient, leaks};
    #[pymodule_export]
    use super::trace::{
        trace_begin, trace_end, trace_forked, trace_hand_over, trace_named, trace_profile, trace_profile_end,
        trace_thread,
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::trace::add_to(module)
    }
    #[pymodule_export]
    use super::{
        LabelRange, NamedRange, config, current_labels, describe_addr, listening, pop_label, push_label, settings,
        snapshot, start, step, stop, unwatch, watch,
    };
}

/// Whether a tracer is there.
#[pyfunction]
fn listening() -> bool {
    markers::has_listener()
}

/// What is wanted, see the marker.
#[pyfunction]
fn config(events: u64, levels: u64, devices: u64) {
    markers::config(events, levels, devices);
}

/// What is wanted besides rows, see the marker.
#[pyfunction]
fn settings(analyses: u64, stack_depths: u64, named: u64) {
    markers::settings(analyses, stack_depths, named);
}

/// Collection begins.
#[pyfunction]
fn start() {
    labels::tell_all();
    labels::report();
    markers::start();
}

/// Collection ends.
#[pyfunction]
fn stop() {
    markers::stop();
}

/// A step ends.
#[pyfunction]
fn step() {
    markers::step();
}

/// A label of a level for this thread; of levels 5 to 7 nothing happens.
#[pyfunction]
fn push_label(text: &str, level: usize) {
    labels::push(labels::id(text), level);
}

/// Takes it back.
#[pyfunction]
fn pop_label(text: &str, level: usize) {
    labels::pop(labels::id(text), level);
}

/// Labels of a live block, by level; further ones are passed over.
#[pyfunction]
fn describe_addr(addr: u64, texts: Vec<(String, usize)>) {
    let mut ids = [0; labels::LEVELS];
    for (text, level) in texts {
        if let Some(slot) = ids.get_mut(level) {
            *slot = labels::id(&text);
        }
    }
    let (low, high) = labels::packed(ids);
    markers::label_addr(addr, low, high);
}

/// Labels of this thread by level, `None` where there is none.
#[pyfunction]
fn current_labels() -> Vec<Option<String>> {
    labels::texts().to_vec()
}

/// What a pool and its device hold, in bytes.
#[pyfunction]
#[pyo3(signature = (name, device, *, reserved, max_reserved, allocated, max_allocated, total, free))]
#[expect(clippy::too_many_arguments, reason = "a record, field by field")]
fn snapshot(
    name: &str,
    device: u64,
    reserved: u64,
    max_reserved: u64,
    allocated: u64,
    max_allocated: u64,
    total: u64,
    free: u64,
) {
    let record = Snapshot { device, reserved, max_reserved, allocated, max_allocated, total, free };
    markers::snapshot(&labels::printable(name), &record);
}

/// The bytes at an address are to be watched.
#[pyfunction]
fn watch(name: &str, addr: u64, size: u64, looks: u64) {
    markers::watch(&labels::printable(name), addr, size, looks);
}

/// They are not, any more.
#[pyfunction]
fn unwatch(addr: u64) {
    markers::unwatch(addr);
}

/// A label of the user's, for as long as the context lasts.
#[pyclass(frozen, subclass, module = "memscope_bpf._memscope_bpf")]
#[derive(Default)]
struct LabelRange {
    id: AtomicU16,
}

#[pymethods]
impl LabelRange {
    /// Takes whatever the arguments of a subclass are.
    #[new]
    #[pyo3(signature = (*_arguments, **_keywords))]
    fn new(_arguments: &Bound<'_, PyTuple>, _keywords: Option<&Bound<'_, PyDict>>) -> Self {
        Self::default()
    }

    /// Which label it is.
    fn set_label(&self, text: &str) {
        self.id.store(labels::id(text), Relaxed);
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        labels::push_user(slf.get().id.load(Relaxed));
        slf
    }

    #[pyo3(signature = (*_exception))]
    #[expect(clippy::unused_self, reason = "Python calls it as a method")]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) {
        labels::pop_user();
    }
}

// When the thread's open ranges began, the innermost last; 0 without a listener.
thread_local!(static STARTS: RefCell<Vec<u64>> = RefCell::default());

/// A range of the Python trace.
#[pyclass(frozen, subclass, module = "memscope_bpf._memscope_bpf")]
#[derive(Default)]
struct NamedRange {
    name: OnceLock<CString>,
}

#[pymethods]
impl NamedRange {
    /// Takes whatever the arguments of a subclass are.
    #[new]
    #[pyo3(signature = (*_arguments, **_keywords))]
    fn new(_arguments: &Bound<'_, PyTuple>, _keywords: Option<&Bound<'_, PyDict>>) -> Self {
        Self::default()
    }

    /// What it is called; the first one counts.
    fn set_name(&self, text: &str) {
        let _ = self.name.set(labels::printable(text));
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        let start_ns = if markers::has_listener() { monotonic_ns() } else { 0 };
        // Not while the thread ends.
        let _ = STARTS.try_with(|starts| starts.borrow_mut().push(start_ns));
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) {
        let start_ns = STARTS.try_with(|starts| starts.borrow_mut().pop()).ok().flatten().unwrap_or(0);
        if let Some(name) = self.name.get().filter(|_| start_ns != 0) {
            markers::range(name, start_ns);
        }
    }
}

fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes to `now` alone.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
