//! A probe with a reference counter by a link of its own, which aya does not make.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
};

/// `BPF_LINK_CREATE`, `BPF_TRACE_UPROBE_MULTI` (`linux/bpf.h`; Linux 6.6).
const LINK_CREATE: libc::c_long = 28;
const TRACE_UPROBE_MULTI: u32 = 48;

/// The part of `union bpf_attr` that such a link needs: `link_create` with `uprobe_multi`.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    /// Addresses of the path, and of arrays with an element for each probe.
    path: u64,
    offsets: u64,
    counters: u64,
    cookies: u64,
    count: u32,
    multi_flags: u32,
    /// 0: any process.
    pid: u32,
    unused: u32,
}

/// Runs a program at a place in a file, with cookie 0; the kernel raises the counter there in the file while the descriptor is
/// open.
pub(crate) fn count(program: BorrowedFd<'_>, path: &CStr, file_offset: u64, counter: u32) -> io::Result<OwnedFd> {
    let (offsets, counters) = ([file_offset], [u64::from(counter)]);
    let attributes = Attributes {
        program: program.as_raw_fd().cast_unsigned(),
        attach_type: TRACE_UPROBE_MULTI,
        path: path.as_ptr() as u64,
        offsets: offsets.as_ptr() as u64,
        counters: counters.as_ptr() as u64,
        count: 1,
        ..Attributes::default()
    };
    // SAFETY: the kernel reads the attributes by their size, the path up to its NUL, and one element of each array; all
    // live until it returns.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, LINK_CREATE, &raw const attributes, size_of::<Attributes>()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor of ours, which the kernel closes on exec.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
