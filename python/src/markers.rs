//! Marker functions: the tracer's probes sit on them; without a tracer they return at once.
//!
//! Each is `nop`, on x86-64 a 5-byte `nop` that kernels can turn into something cheaper than a trap, and `ret`. Naked, so no prologue moves
//! an argument: all arguments are in registers, as a C function of that signature has them. What pointers lead to stays valid during the call.
//! A note of each (`.note.stapsdt`, provider `msmemscope`) shows bpftrace, perf and others its address.
//!
//! What the tracer knows of them is in `memscope-user/src/probes/script.rs`.

use core::{
    arch::naked_asm,
    ffi::{CStr, c_char},
};

use crate::chunk::Chunk;

/// Of how many listeners the kernel knows (a semaphore of USDT), see [`memscope_marks_1`]. Zero or not is all that can be relied
/// on: processes that map the file after a listener came count it once more.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".probes")]
static mut memscope_semaphore: u16 = 0;

#[cfg(target_arch = "x86_64")]
macro_rules! body {
    () => {
        ".byte 0x90, 0x0f, 0x1f, 0x44, 0x00, 0x00\nret\n.balign 16, 0xcc"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! body {
    () => {
        "nop\nret\n.balign 16"
    };
}

/// Where the arguments are, as notes say it.
#[cfg(target_arch = "x86_64")]
macro_rules! places {
    (0) => {
        ""
    };
    (1) => {
        "8@%rdi"
    };
    (2) => {
        "8@%rdi 8@%rsi"
    };
    (3) => {
        "8@%rdi 8@%rsi 8@%rdx"
    };
    (4) => {
        "8@%rdi 8@%rsi 8@%rdx 8@%rcx"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! places {
    (0) => {
        ""
    };
    (1) => {
        "8@x0"
    };
    (2) => {
        "8@x0 8@x1"
    };
    (3) => {
        "8@x0 8@x1 8@x2"
    };
    (4) => {
        "8@x0 8@x1 8@x2 8@x3"
    };
}

macro_rules! semaphore {
    () => {
        ".8byte 0"
    };
    ($semaphore:ident) => {
        ".8byte {semaphore}"
    };
}

macro_rules! marker {
    ($(#[$doc:meta])* $symbol:ident = $note:literal, ($($argument:ident: $type:ty),*) $count:tt $(, $semaphore:ident)?) => {
        $(#[$doc])*
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        extern "C" fn $symbol($($argument: $type),*) {
            naked_asm!(
                body!(),
                // "?": in the function's own group, so that the linker keeps or drops both.
                ".pushsection .note.stapsdt, \"?\", \"note\"",
                ".balign 4",
                ".4byte 992f-991f, 994f-993f, 3",
                "991: .asciz \"stapsdt\"",
                "992: .balign 4",
                "993: .8byte {marker}",
                ".8byte 0",
                semaphore!($($semaphore)?),
                ".asciz \"msmemscope\"",
                concat!(".asciz \"", $note, "\""),
                concat!(".asciz \"", places!($count), "\""),
                "994: .balign 4",
                ".popsection",
                marker = sym $symbol,
                $(semaphore = sym $semaphore,)?
            )
        }
    };
}

marker!(
    /// Never called: a listener holds a probe here, and by it the semaphore, for as long as it lives. Its name has the version of
    /// all markers, so that a tracer that knows another leaves them alone.
    // The other notes name no semaphore: kernels refuse two probes of one place that name different ones.
    memscope_marks_1 = "presence", () 0, memscope_semaphore);
marker!(
    /// What is wanted from here on: bits of events and levels (contract §1.5), NPUs (bit 32: all of them, bit 33: the host).
    memscope_mark_config = "config", (events: u64, levels: u64, devices: u64) 3);
marker!(
    /// What is wanted besides rows, just before [`memscope_mark_config`]: bits of analyses (leaks 1, decompose 2, inefficient 4, oom 8, peaks
    /// 16, fragmentation 32; from bit 16 on the number of blocks for oom), frames of call stacks and one more (C from bit 0, Python from
    /// bit 16; bit 32: mixed), and bits of the settings that were named (events, level, device, watch, format csv, format db, output path).
    memscope_mark_settings = "settings", (analyses: u64, stack_depths: u64, named: u64) 3);
marker!(
    /// Collection begins.
    memscope_mark_start = "start", () 0);
marker!(
    /// Collection ends.
    memscope_mark_stop = "stop", () 0);
marker!(
    /// A step ends, and the next begins.
    memscope_mark_step = "step", () 0);
marker!(
    /// Labels of the calling thread from here on: ids of 16 bits, level 0 in the lowest of `low`, level 4 in the lowest of `high`.
    memscope_mark_labels = "labels", (low: u64, high: u64) 2);
marker!(
    /// Text of the label `id`.
    memscope_mark_label_text = "label_text", (id: u64, text: *const c_char) 2);
marker!(
    /// Labels of the live block that begins at `addr`; 0 leaves a level as it is.
    memscope_mark_label_addr = "label_addr", (addr: u64, low: u64, high: u64) 3);
marker!(
    /// What a pool and its device hold.
    memscope_mark_snapshot = "snapshot", (name: *const c_char, record: *const Snapshot) 2);
marker!(
    /// A range of the calling thread that began at `start_ns` (`CLOCK_MONOTONIC`) ends.
    memscope_mark_range = "range", (name: *const c_char, start_ns: u64) 2);
marker!(
    /// Text of the callable `id` of the Python trace.
    memscope_mark_trace_text = "trace_text", (id: u64, text: *const c_char) 2);
marker!(
    /// Rows of the Python trace.
    memscope_mark_trace = "trace", (chunk: *const Chunk) 1);
marker!(
    /// The bytes at `addr` are to be watched, for this number of looks; the largest number is no limit.
    memscope_mark_watch = "watch", (name: *const c_char, addr: u64, size: u64, looks: u64) 4);
marker!(
    /// The bytes at `addr` are not to be watched any more.
    memscope_mark_unwatch = "unwatch", (addr: u64) 1);

/// Figures of [`snapshot`]; bytes but for `device`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Snapshot {
    pub(crate) device: u64,
    pub(crate) reserved: u64,
    pub(crate) max_reserved: u64,
    pub(crate) allocated: u64,
    pub(crate) max_allocated: u64,
    pub(crate) total: u64,
    pub(crate) free: u64,
}

/// Whether a tracer has probes on the markers.
#[inline]
pub(crate) fn has_listener() -> bool {
    // SAFETY: a number of this module that the kernel alone changes, from any thread at any time.
    unsafe { (&raw const memscope_semaphore).read_volatile() != 0 }
}

pub(crate) fn settings(analyses: u64, stack_depths: u64, named: u64) {
    memscope_mark_settings(analyses, stack_depths, named);
}

pub(crate) fn config(events: u64, levels: u64, devices: u64) {
    memscope_mark_config(events, levels, devices);
}

pub(crate) fn start() {
    memscope_mark_start();
}

pub(crate) fn stop() {
    memscope_mark_stop();
}

pub(crate) fn step() {
    memscope_mark_step();
}

pub(crate) fn labels(low: u64, high: u64) {
    memscope_mark_labels(low, high);
}

pub(crate) fn label_text(id: u16, text: &CStr) {
    memscope_mark_label_text(id.into(), text.as_ptr());
}

pub(crate) fn label_addr(addr: u64, low: u64, high: u64) {
    memscope_mark_label_addr(addr, low, high);
}

pub(crate) fn snapshot(name: &CStr, record: &Snapshot) {
    memscope_mark_snapshot(name.as_ptr(), record);
}

pub(crate) fn trace_text(id: u32, text: &CStr) {
    memscope_mark_trace_text(id.into(), text.as_ptr());
}

pub(crate) fn trace(chunk: &Chunk) {
    memscope_mark_trace(chunk);
}

pub(crate) fn range(name: &CStr, start_ns: u64) {
    memscope_mark_range(name.as_ptr(), start_ns);
}

pub(crate) fn watch(name: &CStr, addr: u64, size: u64, looks: u64) {
    memscope_mark_watch(name.as_ptr(), addr, size, looks);
}

pub(crate) fn unwatch(addr: u64) {
    memscope_mark_unwatch(addr);
}
