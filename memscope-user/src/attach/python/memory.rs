//! Reading the memory of a process that goes on running.

use std::{fs::File, io, os::unix::fs::FileExt as _};

/// The memory of one process, as it was when this was opened: after an `exec` nothing can be read any more.
#[derive(Debug)]
pub struct Memory(File);

impl Memory {
    /// Opens it.
    pub fn open(pid: u32) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/mem")).map(Self)
    }

    /// Fills `to` from `address` on.
    #[must_use]
    pub fn read(&self, address: u64, to: &mut [u8]) -> Option<()> {
        self.0.read_exact_at(to, address).ok()
    }

    /// Eight bytes.
    #[must_use]
    pub fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes).map(|()| u64::from_le_bytes(bytes))
    }
}
