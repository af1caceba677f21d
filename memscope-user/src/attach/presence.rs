//! Tells scripts that a tracer is there: a probe that only counts.
//!
//! The Python package reads a number of its own that the kernel raises for as long as a probe with that reference counter is there (Linux
//! 4.20). aya passes no reference counters, so this is one perf event, without a program; it goes with its descriptor, however
//! the tracer ends.

use std::{
    fs::{self, File},
    io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
};

use super::elf::ElfFile;
use crate::probes::{PRESENCE, SEMAPHORE};

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

/// Where in a file the marker and its counter are, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    marker: u64,
    counter: u32,
}

impl Place {
    /// In the native module of the package; `None` in other files.
    pub(super) fn of(elf: &ElfFile<'_>) -> Option<Self> {
        let offset_of = |name: &str| {
            let found = elf.symbols().ok()?.find(|symbol| symbol.defined && symbol.name == name.as_bytes())?;
            elf.file_offset(found.vaddr)
        };
        Some(Self { marker: offset_of(PRESENCE)?, counter: offset_of(SEMAPHORE)?.try_into().ok()? })
    }

    /// Makes the package in this file see a tracer for as long as the descriptor is open.
    pub(super) fn announce(self, file: &File) -> io::Result<OwnedFd> {
        let text = fs::read_to_string(format!("{SOURCE}/type"))?;
        let kind = text.trim().parse().map_err(io::Error::other)?;
        let path = format!("/proc/self/fd/{}\0", file.as_raw_fd());
        let attributes = Attributes {
            kind,
            size_bytes: size_of::<Attributes>() as u32,
            // `format/ref_ctr_offset` is config:32-63 in all kernels that have it.
            config: u64::from(self.counter) << 32,
            path: path.as_ptr() as u64,
            file_offset: self.marker,
            ..Attributes::default()
        };
        // SAFETY: the kernel reads the attributes, whose size they say, and the path, which ends in NUL; both live until it returns.
        let fd = unsafe {
            libc::syscall(libc::SYS_perf_event_open, &raw const attributes, ANY_PROCESS, CPU, NO_GROUP, CLOSE_ON_EXEC)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor of ours.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
    }
}
