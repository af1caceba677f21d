//! One program for all targets: libFuzzer, which brings `main`, makes up bytes, and the target that `MEMSCOPE_FUZZ` names
//! reads them. What they are read by is counted in our crates alone (`fuzz/rustc`).

#![no_main]

use std::{env, ffi::c_int, panic, process, slice, sync::OnceLock};

use memscope::fuzzing::{TARGETS, Target};

/// Names the target.
const NAME: &str = "MEMSCOPE_FUZZ";

static TARGET: OnceLock<Target> = OnceLock::new();

/// What `MEMSCOPE_FUZZ` names. From here on a panic is an end, also where the library would go on without a thread.
fn chosen() -> Target {
    let name = env::var(NAME).unwrap_or_default();
    let found = TARGETS.iter().find(|(known, _)| *known == name);
    let Some((_, target)) = found else { panic!("{NAME} names no target: `{name}`") };
    let say = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        say(panic);
        process::abort();
    }));
    *target
}

/// Called by libFuzzer for each input.
///
/// # Safety
///
/// `bytes` points to `len` bytes that can be read.
#[expect(unsafe_code, reason = "libFuzzer knows it by this name")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn LLVMFuzzerTestOneInput(bytes: *const u8, len: usize) -> c_int {
    // SAFETY: libFuzzer says so; of no bytes it may give any pointer.
    let bytes = if len == 0 { &[][..] } else { unsafe { slice::from_raw_parts(bytes, len) } };
    TARGET.get_or_init(chosen)(bytes);
    0
}
