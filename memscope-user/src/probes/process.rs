//! A process begins to end: functions of the C library and of Python, not of the Ascend stack. A process that calls one
//! of them has finished its work, unless work follows.
//!
//! `exit` runs the handlers of the end; the return of `main` calls it, too. Before it, `Py_FinalizeEx` empties Python's
//! modules. A process calls each of them once, so these probes cost nothing during its work.

use memscope_common::When;

use super::{CallKind, Layer, ProbeSpec, RuntimeCall};

const PROCESS: ProbeSpec =
    ProbeSpec { layer: Layer::Process, when: When::Entry, returns_int: false, ..ProbeSpec::BASE };

/// Programs with the interpreter in them, and its library.
const PYTHON: ProbeSpec = ProbeSpec {
    libraries: &["python3*", "libpython3*.so"],
    meaning: CallKind::Runtime(RuntimeCall::PythonEnds),
    ..PROCESS
};

pub(super) const ROWS: &[ProbeSpec] = &[
    // void exit(int status)
    ProbeSpec {
        symbol: "exit",
        libraries: &["libc.so", "libc-2.*.so"],
        meaning: CallKind::Runtime(RuntimeCall::Exit),
        ..PROCESS
    },
    // int Py_FinalizeEx(void)
    ProbeSpec { symbol: "Py_FinalizeEx", ..PYTHON },
    // void Py_Finalize(void): calls the former, or contains a copy of it.
    ProbeSpec { symbol: "Py_Finalize", ..PYTHON },
];
