//! Reads the memory of a running process.

use std::{
    fs::File,
    io::{self, IoSliceMut},
    os::unix::fs::FileExt as _,
};

use nix::{
    sys::uio::{RemoteIoVec, process_vm_readv},
    unistd::Pid,
};

/// The memory of one process.
#[derive(Debug)]
pub enum Memory {
    /// As it was when this was opened: after an `exec` nothing can be read any more.
    File(File),
    /// Of another user's process, which `CAP_SYS_PTRACE` lets us read, but not open as a file (`CAP_DAC_OVERRIDE`).
    Process(Pid),
}

impl Memory {
    /// Opens it.
    pub fn open(pid: u32) -> io::Result<Self> {
        match File::open(format!("/proc/{pid}/mem")) {
            Ok(file) => Ok(Self::File(file)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Ok(Self::Process(Pid::from_raw(pid as i32)))
            }
            Err(error) => Err(error),
        }
    }

    /// Reads from `address` on, as many bytes as are readable and fit into `to`. Returns their number.
    pub fn read_some(&self, address: u64, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.read_at(to, address),
            Self::Process(pid) => {
                let base = usize::try_from(address).map_err(io::Error::other)?;
                let remote = [RemoteIoVec { base, len: to.len() }];
                Ok(process_vm_readv(*pid, &mut [IoSliceMut::new(to)], &remote)?)
            }
        }
    }

    /// Fills `to` from `address` on.
    #[must_use]
    pub fn read(&self, address: u64, to: &mut [u8]) -> Option<()> {
        match self {
            Self::File(file) => file.read_exact_at(to, address).ok(),
            // All readable bytes come in one call.
            Self::Process(_) => (self.read_some(address, to).ok()? == to.len()).then_some(()),
        }
    }

    /// Eight bytes.
    #[must_use]
    pub fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes).map(|()| u64::from_le_bytes(bytes))
    }
}

/// Size of a memory page.
#[must_use]
pub fn page_size() -> u32 {
    // SAFETY: no pointers involved.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u32::try_from(size).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ways read the same bytes, and unmapped memory is an error.
    #[test]
    fn both_ways_read_the_same() {
        let text = *b"some text of ours";
        let own = std::process::id();
        for memory in [Memory::open(own).expect("ours"), Memory::Process(Pid::from_raw(own as i32))] {
            let mut bytes = [0; 17];
            memory.read(text.as_ptr().expose_provenance() as u64, &mut bytes).expect("readable");
            assert_eq!(bytes, text);
            assert_eq!(memory.read(8, &mut bytes), None);
            assert!(memory.read_some(8, &mut bytes).is_err());
        }
    }
}
