//! Uprobes by `perf_event_open`, one by one.

use std::{
    ffi::CStr,
    fs, io,
    os::fd::{FromRawFd as _, OwnedFd},
    ptr,
};

/// The perf events of uprobes.
const SOURCE: &str = "/sys/bus/event_source/devices/uprobe";

/// Arguments of `perf_event_open`.
const ANY_PROCESS: i32 = -1;
const CPU: i32 = 0;
const NO_GROUP: i32 = -1;
const CLOSE_ON_EXEC: u64 = 8;

/// The part of `struct perf_event_attr` that a uprobe needs (`linux/perf_event.h`, version 1).
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size_bytes: u32,
    config: u64,
    unused: [u64; 5],
    /// Address of the path.
    path: u64,
    file_offset: u64,
}

/// Probes a place in a file, without a program: the kernel raises the counter there in the file while the descriptor is
/// open.
pub(crate) fn count(path: &CStr, file_offset: u64, counter: u32) -> io::Result<OwnedFd> {
    open(path.as_ptr(), file_offset, counter)
}

/// Whether this process may make probes one by one. `CAP_PERFMON` is enough from Linux 5.8 on, but not with fixes of
/// 2025 that maintained kernels have; versions do not show that, so this asks the kernel for a probe in no file.
pub(crate) fn is_permitted() -> bool {
    match open(ptr::null(), 0, 0) {
        // The kernel checks permissions before it reads the attributes.
        Err(error) => error.raw_os_error() == Some(libc::EINVAL),
        Ok(_) => true,
    }
}

fn open(path: *const libc::c_char, file_offset: u64, counter: u32) -> io::Result<OwnedFd> {
    let text = fs::read_to_string(format!("{SOURCE}/type"))?;
    let kind = text.trim().parse().map_err(io::Error::other)?;
    let attributes = Attributes {
        kind,
        size_bytes: size_of::<Attributes>() as u32,
        // `format/ref_ctr_offset` is config:32-63 in all kernels that have it.
        config: u64::from(counter) << 32,
        path: path as u64,
        file_offset,
        ..Attributes::default()
    };
    // SAFETY: the kernel reads the attributes, which contain their size, and the path, which ends in NUL or is null; both live until it
    // returns.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const attributes, ANY_PROCESS, CPU, NO_GROUP, CLOSE_ON_EXEC)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor of ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
