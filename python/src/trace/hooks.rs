//! How calls are heard: `sys.monitoring` from `CPython` 3.12 on, `PyEval_SetProfile` from 3.9 on.
//!
//! Callbacks are bare C functions: through `PyO3` each would cost several times as much. None of them fails or panics.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
};

use pyo3::{ffi, prelude::*};

use super::{What, callables, is_active, with};
use crate::monotonic_ns;

type Object = *mut ffi::PyObject;
type Fast = unsafe extern "C" fn(Object, *const Object, ffi::Py_ssize_t) -> Object;
type Profiler = unsafe extern "C" fn(Object, Object, c_int, Object) -> c_int;

/// `METH_FASTCALL`. In the stable ABI from 3.10 on; flag and calling convention have been the same since 3.7.
const FAST: c_int = 0x80;

/// `PyTrace_*`.
const CALL: c_int = 0;
const RETURN: c_int = 3;
const C_CALL: c_int = 4;
const C_EXCEPTION: c_int = 5;
const C_RETURN: c_int = 6;

/// What is called, by the arguments of a callback of `sys.monitoring`.
type Convert = unsafe fn(Python<'_>, &[Object]) -> Option<What>;

/// Reports a begin or an end; gives None.
unsafe fn report(arguments: *const Object, count: ffi::Py_ssize_t, convert: Convert, begins: bool) -> Object {
    if is_active() && count > 0 {
        let _ = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: the interpreter calls with its lock held, and with that many arguments.
            let (py, arguments) =
                unsafe { (Python::assume_attached(), std::slice::from_raw_parts(arguments, count as usize)) };
            // SAFETY: they are those of the event that the callback is for.
            let Some(what) = (unsafe { convert(py, arguments) }) else { return };
            pass(what, begins);
        }));
    }
    // SAFETY: the lock is held.
    unsafe {
        let none = ffi::Py_None();
        ffi::Py_INCREF(none);
        none
    }
}

fn pass(what: What, begins: bool) {
    let now_ns = monotonic_ns();
    with(|thread| if begins { thread.enter(what, now_ns) } else { thread.leave(what, now_ns) });
}

/// `(code, offset, …)`.
unsafe fn of_code(py: Python<'_>, arguments: &[Object]) -> Option<What> {
    // SAFETY: the caller's.
    Some(unsafe { callables::code(py, *arguments.first()?) })
}

/// `(code, offset, callable, first argument)`; there may be no such argument, which is then an object of its own.
unsafe fn of_function(py: Python<'_>, arguments: &[Object]) -> Option<What> {
    let [_, _, callable, first] = *arguments else { return None };
    // SAFETY: the caller's.
    unsafe { callables::function(py, callable, first) }
}

unsafe extern "C" fn trace_enter(_: Object, arguments: *const Object, count: ffi::Py_ssize_t) -> Object {
    // SAFETY: as the interpreter calls.
    unsafe { report(arguments, count, of_code, true) }
}

unsafe extern "C" fn trace_leave(_: Object, arguments: *const Object, count: ffi::Py_ssize_t) -> Object {
    // SAFETY: as above.
    unsafe { report(arguments, count, of_code, false) }
}

unsafe extern "C" fn trace_call(_: Object, arguments: *const Object, count: ffi::Py_ssize_t) -> Object {
    // SAFETY: as above.
    unsafe { report(arguments, count, of_function, true) }
}

unsafe extern "C" fn trace_call_end(_: Object, arguments: *const Object, count: ffi::Py_ssize_t) -> Object {
    // SAFETY: as above.
    unsafe { report(arguments, count, of_function, false) }
}

/// Definitions of the callbacks, which live as long as the module.
struct Definitions([ffi::PyMethodDef; 4]);

// SAFETY: never changed.
unsafe impl Sync for Definitions {}

static DEFINITIONS: Definitions = Definitions([
    definition(c"trace_enter", trace_enter),
    definition(c"trace_leave", trace_leave),
    definition(c"trace_call", trace_call),
    definition(c"trace_call_end", trace_call_end),
]);

const fn definition(name: &'static CStr, function: Fast) -> ffi::PyMethodDef {
    ffi::PyMethodDef {
        ml_name: name.as_ptr(),
        ml_meth: ffi::PyMethodDefPointer {
            // SAFETY: the flag says which type it really has.
            PyCFunction: unsafe { std::mem::transmute::<Fast, ffi::PyCFunction>(function) },
        },
        ml_flags: FAST,
        ml_doc: ptr::null(),
    }
}

pub(super) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    for definition in &DEFINITIONS.0 {
        let definition = ptr::from_ref(definition).cast_mut();
        // SAFETY: the definition lives as long as the module.
        let (function, name) = unsafe {
            let function = ffi::PyCFunction_NewEx(definition, ptr::null_mut(), ptr::null_mut());
            (Bound::from_owned_ptr_or_err(module.py(), function)?, CStr::from_ptr((*definition).ml_name))
        };
        module.add(name.to_str().unwrap_or_default(), function)?;
    }
    Ok(())
}

/// A function of the interpreter that the stable ABI of 3.8 does not have.
fn of_interpreter(name: &'static CStr) -> Option<*mut c_void> {
    // SAFETY: looks for a symbol in what is loaded.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr().cast::<c_char>()) };
    (!found.is_null()).then_some(found)
}

macro_rules! function {
    ($name:literal, $type:ty) => {
        // SAFETY: the interpreter's function of that name has this type in all versions that are asked.
        of_interpreter($name).map(|found| unsafe { std::mem::transmute::<*mut c_void, $type>(found) })
    };
}

type SetProfile = unsafe extern "C" fn(Option<Profiler>, Object);
type SetProfileOf = unsafe extern "C" fn(*mut c_void, Option<Profiler>, Object) -> c_int;
type CodeOf = unsafe extern "C" fn(Object) -> Object;
type NoArguments = unsafe extern "C" fn() -> *mut c_void;
type Following = unsafe extern "C" fn(*mut c_void) -> *mut c_void;

/// `PyFrame_GetCode`; its result has to be given back.
fn code_of() -> Option<CodeOf> {
    use std::sync::OnceLock;
    static FOUND: OnceLock<Option<CodeOf>> = OnceLock::new();
    *FOUND.get_or_init(|| function!(c"PyFrame_GetCode", CodeOf))
}

/// The interpreter calls it at every call and return of its thread. Once nothing is traced it removes itself.
unsafe extern "C" fn profile(_: Object, frame: Object, what: c_int, argument: Object) -> c_int {
    if !is_active() {
        stop_profile();
        return 0;
    }
    let _ = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the interpreter calls with its lock held.
        let py = unsafe { Python::assume_attached() };
        // SAFETY: as the interpreter calls, arguments are what the event says.
        let what_ran = unsafe {
            match what {
                CALL | RETURN => code_of_frame(py, frame),
                C_CALL | C_RETURN | C_EXCEPTION if !argument.is_null() => {
                    callables::function(py, argument, ptr::null_mut())
                }
                _ => None,
            }
        };
        if let Some(what_ran) = what_ran {
            pass(what_ran, matches!(what, CALL | C_CALL));
        }
    }));
    0
}

unsafe fn code_of_frame(py: Python<'_>, frame: Object) -> Option<What> {
    // SAFETY: the caller's.
    unsafe {
        let code = code_of()?(frame);
        if code.is_null() {
            return None;
        }
        let what = callables::code(py, code);
        ffi::Py_DECREF(code);
        Some(what)
    }
}

fn stop_profile() {
    if let Some(set) = function!(c"PyEval_SetProfile", SetProfile) {
        // SAFETY: the lock is held.
        unsafe { set(None, ptr::null_mut()) };
    }
}

/// Starts reports of this thread's calls; `others`: of all existing threads. False if the interpreter cannot do it.
#[pyfunction]
pub(crate) fn trace_profile(_py: Python<'_>, others: bool) -> bool {
    let (Some(set), Some(_)) = (function!(c"PyEval_SetProfile", SetProfile), code_of()) else { return false };
    if others
        && let (Some(set), Some(interpreter), Some(first), Some(next)) = (
            function!(c"_PyEval_SetProfile", SetProfileOf),
            function!(c"PyInterpreterState_Get", NoArguments),
            function!(c"PyInterpreterState_ThreadHead", Following),
            function!(c"PyThreadState_Next", Following),
        )
    {
        // SAFETY: the lock is held, so threads neither come nor go.
        unsafe {
            let mut thread = first(interpreter());
            while !thread.is_null() {
                set(thread, Some(profile), ptr::null_mut());
                thread = next(thread);
            }
        }
    }
    // SAFETY: the lock is held.
    unsafe { set(Some(profile), ptr::null_mut()) };
    true
}

/// A thread that begins is heard from here on; Python has reported its first call, of this frame, already.
#[pyfunction]
pub(crate) fn trace_thread(py: Python<'_>, frame: &Bound<'_, PyAny>) {
    if is_active() && trace_profile(py, false) {
        // SAFETY: the lock is held, and it is a frame.
        if let Some(what) = unsafe { code_of_frame(py, frame.as_ptr()) } {
            pass(what, true);
        }
    }
}

/// This thread's calls are heard no more.
#[pyfunction]
pub(crate) fn trace_profile_end(_py: Python<'_>) {
    stop_profile();
}
