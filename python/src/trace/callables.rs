//! What is called: its text, once, and whether it has rows.
//!
//! Code objects and types stay alive once they are known, so nothing else can take their place in memory.

use std::{
    hash::{BuildHasherDefault, Hasher},
    ptr,
};

use pyo3::{ffi, prelude::*};

use super::{MAX_TEXTS, SHARED, What, locked};

/// A code object and 0; or the definition of a C function and the type of what it is bound to.
pub(super) type Key = (usize, usize);

/// Keys are addresses that the script itself controls, so one multiplication is hash enough.
#[derive(Debug, Default)]
pub(super) struct AddressHasher(u64);

pub(super) type ByAddress = BuildHasherDefault<AddressHasher>;

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_usize((*byte).into());
        }
    }

    fn write_usize(&mut self, number: usize) {
        // 2^64 over the golden ratio. The upper bits are the best mixed ones.
        self.0 = (self.0.rotate_left(32) ^ number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}

/// Where objects of `builtin_function_or_method` and of `method_descriptor` have the pointer to their definition, as all of `CPython` from
/// 3.8 on has it, but for builds without a lock, which cannot load this module.
const FUNCTION_DEFINITION: usize = 2;
const DESCRIPTOR_DEFINITION: usize = 5;

/// What a code object is.
///
/// # Safety
///
/// Python's lock is held, and it is a code object.
pub(super) unsafe fn code(py: Python<'_>, code: *mut ffi::PyObject) -> What {
    let key = (code as usize, 0);
    if let Some(what) = locked(&SHARED).known.get(&key) {
        return *what;
    }
    // SAFETY: as the caller says.
    let code = unsafe { Bound::from_borrowed_ptr(py, code) };
    let text = |name| -> String {
        let value = code.getattr(name).and_then(|value| value.extract::<String>());
        value.unwrap_or_else(|_| "?".to_owned())
    };
    let (file, name) = (text("co_filename"), text("co_name"));
    let line = code.getattr("co_firstlineno").and_then(|line| line.extract::<u32>()).unwrap_or(0);
    let is_ours = locked(&SHARED).our_folders.iter().any(|folder| file.starts_with(folder));
    let what = if is_ours || (name == "__exit__" && file.ends_with("/contextlib.py")) {
        What::Ignored
    } else {
        let id = locked(&SHARED).id(&format!("{file}({line}): {name}"));
        if name == "__torch_dispatch__" { What::Opaque(id) } else { What::Shown(id) }
    };
    remember(key, what, code)
}

/// What a C function is; `None` if it is none, as a class that is called. `bound_to` is the first argument, for methods that are called
/// by their descriptors.
///
/// # Safety
///
/// Python's lock is held, and these are objects, or null.
pub(super) unsafe fn function(
    py: Python<'_>,
    callable: *mut ffi::PyObject,
    bound_to: *mut ffi::PyObject,
) -> Option<What> {
    // SAFETY: as the caller says; the layout is as said above.
    let (definition, this) = unsafe {
        let word = |index: usize| *callable.cast::<usize>().add(index);
        if ffi::PyCFunction_Check(callable) != 0 {
            (word(FUNCTION_DEFINITION), ffi::PyCFunction_GetSelf(callable))
        } else if ffi::Py_TYPE(callable) == &raw mut ffi::PyMethodDescr_Type {
            (word(DESCRIPTOR_DEFINITION), bound_to)
        } else {
            return None;
        }
    };
    // SAFETY: as above.
    let of_module = this.is_null() || unsafe { ffi::PyModule_Check(this) } != 0;
    // SAFETY: as above.
    let kind = if of_module { ptr::null_mut() } else { unsafe { ffi::Py_TYPE(this) } };
    // Functions of modules are as good as their definitions.
    let key = (definition, kind as usize);
    if let Some(what) = locked(&SHARED).known.get(&key) {
        return Some(*what);
    }
    // SAFETY: as above.
    let callable = unsafe { Bound::from_borrowed_ptr(py, callable) };
    let text = |of: &Bound<'_, PyAny>, name: &str| -> String {
        of.getattr(name).and_then(|value| value.extract::<String>()).unwrap_or_default()
    };
    let name = text(&callable, "__name__");
    if of_module {
        // Those of this module are bound to nothing: the module is no more than named.
        let what = if text(&callable, "__module__").starts_with("memscope_bpf.") {
            What::Ignored
        } else {
            What::Shown(locked(&SHARED).id(&format!("<built-in function {name}>")))
        };
        return Some(remember(key, what, callable));
    }
    // SAFETY: a type is an object.
    let kind = unsafe { Bound::from_borrowed_ptr(py, kind.cast()) };
    let mut package = text(&kind, "__module__");
    package.truncate("memscope_bpf".len());
    let what = if package == "memscope_bpf" {
        What::Ignored
    } else {
        What::Shown(locked(&SHARED).id(&format!("<built-in method {name} of {} object>", text(&kind, "__name__"))))
    };
    Some(remember(key, what, kind))
}

/// Keeps it, and the object that makes the key what it is. Beyond the bound nothing is kept.
fn remember(key: Key, what: What, of: Bound<'_, PyAny>) -> What {
    let mut shared = locked(&SHARED);
    if shared.known.len() < MAX_TEXTS {
        shared.known.insert(key, what);
        std::mem::forget(of);
    }
    what
}
