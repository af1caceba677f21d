//! Announces the tracer to scripts: a probe that only counts.
//!
//! The Python package reads a number of its own that the kernel raises while a probe with that reference counter exists
//! (Linux 4.20). aya passes no reference counters, so this is a link of our own, or one perf event without a program; it
//! ends with its descriptor, however the tracer ends. A link is better: a perf event takes the kernel's lock of trace events,
//! which another tracer keeps while it waits for threads that we hold.

use std::{
    ffi::CString,
    fs::File,
    io,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
};

use aya::programs::UProbe;

use super::{features::LinkMode, object::Kernel, programs::Programs};
use crate::{
    os::{elf::ElfFile, perf_event, uprobe_multi},
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
        perf_event::count(&path_of(file)?, self.marker, self.counter)
    }
}

impl Kernel {
    /// The same by a link; `None` where links are perf events. The marker is never called: the probe has no row.
    pub(crate) fn announce(&mut self, place: Place, file: &File) -> Option<io::Result<OwnedFd>> {
        let enter = Programs::of(self.mode).filter(|_| self.mode == LinkMode::Multi)?.enter;
        let program: &mut UProbe = self.program(enter).ok()?;
        let program = program.fd().ok()?.as_fd();
        Some(path_of(file).and_then(|path| uprobe_multi::count(program, &path, place.marker, place.counter)))
    }
}

fn path_of(file: &File) -> io::Result<CString> {
    Ok(CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?)
}
