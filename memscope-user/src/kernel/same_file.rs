//! Files that are one and the same under several device and inode numbers.
//!
//! An overlay gives the files of its layers numbers of its own, and newer kernels print those in `maps` (6.18 does). Probes are
//! of the file below: two containers of one image have one libc between them, and probing it under both names would tell
//! every call twice. Nothing in `/proc` says which files those are, so the kernel is asked by an experiment: a file that is
//! mapped privately shows the breakpoints of its own probes, and none of another file's.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd as _, AsRawFd as _},
        unix::fs::FileExt as _,
    },
    ptr,
};

use super::object::Kernel;
use crate::os::{
    elf::ElfFile,
    memory::{Memory, page_size},
};

/// Bytes that are compared: the longest breakpoint, that of aarch64.
const BREAKPOINT_BYTES: usize = 4;

/// What files have in common that are the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Likeness {
    len_bytes: u64,
    build_id: Option<Vec<u8>>,
    /// Where probes go.
    offsets: Vec<u64>,
    /// Code that is next to never run.
    idle: Option<u64>,
}

impl Likeness {
    /// Of a file that gets probes at these places.
    pub(crate) fn new(elf: &ElfFile<'_>, mut offsets: Vec<u64>) -> Self {
        offsets.sort_unstable();
        offsets.dedup();
        let idle = elf.idle_code().filter(|offset| offsets.binary_search(offset).is_err());
        let build_id = elf.build_id().map(<[u8]>::to_vec);
        Self { len_bytes: elf.len_bytes(), build_id, offsets, idle }
    }

    /// Whether `other`, a file that looks the same as `known`, which is probed, is the same.
    pub(crate) fn is_same(&self, kernel: &mut Kernel, known: &File, other: &File) -> bool {
        let Some(first) = self.offsets.first() else { return false };
        // Nothing is there: another file, or a kernel whose probes do not show.
        if !is_changed(other, *first) {
            return false;
        }
        // Somebody probes it. That it is us shows where nobody else has a probe, unless there is no such place.
        let Some(idle) = self.idle.filter(|idle| !is_changed(other, *idle)) else { return true };
        kernel.with_probe(known.as_fd(), idle, || is_changed(other, idle)).unwrap_or(true)
    }
}

/// Whether a private mapping of the file has something else at this place than the file has.
fn is_changed(file: &File, offset: u64) -> bool {
    let (mut stored, mut mapped) = ([0; BREAKPOINT_BYTES], [0; BREAKPOINT_BYTES]);
    let window = Window::open(file, offset);
    let read = window.is_ok_and(|window| {
        file.read_exact_at(&mut stored, offset).is_ok() && window.read(offset, &mut mapped).is_some()
    });
    read && stored != mapped
}

/// A part of a file, mapped as programs map code.
struct Window {
    address: *mut libc::c_void,
    first: u64,
    len_bytes: usize,
}

impl Window {
    fn open(file: &File, offset: u64) -> io::Result<Self> {
        let page = u64::from(page_size());
        let (first, len_bytes) = (offset / page * page, 2 * page as usize);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len_bytes,
                libc::PROT_READ | libc::PROT_EXEC,
                libc::MAP_PRIVATE,
                file.as_raw_fd(),
                first as libc::off_t,
            )
        };
        if address == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(Self { address, first, len_bytes })
        }
    }

    /// Through the kernel: whoever has the file may cut it short at any time, and reading what is not there would end us.
    fn read(&self, offset: u64, to: &mut [u8]) -> Option<()> {
        let address = self.address.expose_provenance() as u64;
        Memory::open(std::process::id()).ok()?.read(address.checked_add(offset.checked_sub(self.first)?)?, to)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: our mapping, to which there are no references.
        unsafe { libc::munmap(self.address, self.len_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Make sure that reading what was cut off says so instead of ending the process.
    #[test]
    fn files_may_become_shorter() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(3 * u64::from(page_size())).expect("a size");
        let window = Window::open(&file, 5000).expect("mapped");
        let mut bytes = [1; 4];
        assert_eq!((window.read(5000, &mut bytes), bytes), (Some(()), [0; 4]));
        file.set_len(0).expect("a size");
        assert_eq!(window.read(5000, &mut bytes), None);
        assert!(!is_changed(&file, 5000));
    }
}
