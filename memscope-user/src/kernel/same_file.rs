//! Recognises one file under several device and inode numbers.
//!
//! An overlay gives the files of its layers its own numbers, and newer kernels print those in `maps` (6.18 does).
//! Probes go into the file below: two containers of one image share one libc, and probing it under both names would
//! report every call twice. `/proc` does not show which files are the same, so the kernel is asked by an experiment: a
//! private mapping of a file shows the breakpoints of its own probes, and none of another file's.

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

/// Bytes compared: the longest breakpoint, that of aarch64.
const BREAKPOINT_BYTES: usize = 4;

/// Properties that names of one file share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Likeness {
    len_bytes: u64,
    build_id: Option<Vec<u8>>,
    /// Where probes go.
    offsets: Vec<u64>,
    /// Code that hardly ever runs.
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
        // No breakpoint: another file, or a kernel that does not show its probes.
        if !is_changed(other, *first) {
            return false;
        }
        // The breakpoint may be another tracer's. Ours is certain at a place where no other tracer has a probe, if
        // there is such a place.
        let Some(idle) = self.idle.filter(|idle| !is_changed(other, *idle)) else { return true };
        kernel.with_probe(known.as_fd(), idle, || is_changed(other, idle)).unwrap_or(true)
    }
}

/// Whether a private mapping of the file differs from the file here.
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

    /// By a system call: the file can be truncated at any time, and reading a mapping beyond its end would kill this
    /// process.
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

    /// Reading a truncated part is an error and does not end the process.
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
