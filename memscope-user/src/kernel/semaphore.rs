//! Announces the tracer to scripts: a probe that only counts.
//!
//! The Python package reads a number of its own that the kernel raises while a probe with that reference counter exists
//! (Linux 4.20). aya passes no reference counters, so this is one perf event, without a program; it ends with its
//! descriptor, however the tracer ends.

use std::{
    ffi::CString,
    fs::File,
    io,
    os::fd::{AsRawFd as _, OwnedFd},
};

use crate::{
    os::{elf::ElfFile, perf_event},
    probes::{PRESENCE, SEMAPHORE},
};

/// Where in a file the marker and its counter are, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    marker: u64,
    counter: u32,
}

impl Place {
    /// In the native module of the package; `None` in other files.
    pub(crate) fn of(elf: &ElfFile<'_>) -> Option<Self> {
        let offset_of = |name: &str| {
            let found = elf.symbols().ok()?.find(|symbol| symbol.defined && symbol.name == name.as_bytes())?;
            elf.file_offset(found.vaddr)
        };
        Some(Self { marker: offset_of(PRESENCE)?, counter: offset_of(SEMAPHORE)?.try_into().ok()? })
    }

    /// Shows the package in this file a tracer while the descriptor is open.
    pub(crate) fn announce(self, file: &File) -> io::Result<OwnedFd> {
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        perf_event::count(&path, self.marker, self.counter)
    }
}
