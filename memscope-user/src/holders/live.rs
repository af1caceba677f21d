//! A living process. It is read from outside and never stopped.

use std::{
    fs::{self, File},
    io::{self, IoSliceMut},
    os::unix::fs::FileExt as _,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

use nix::{
    sys::uio::{RemoteIoVec, process_vm_readv},
    unistd::{Pid, Uid},
};
use thiserror::Error;

use super::{
    source::{ADDRESS_END, Backing, Mapping, PAGE, Source, Thread},
    symbols::Symbols,
};
use crate::os::{
    mapped,
    maps::{self, FileId, Line},
    process, rights,
};

/// Most mappings read: more than `vm.max_map_count` allows by default.
const MAX_MAPPINGS: usize = 200_000;
/// Most threads read.
const MAX_THREADS: usize = 8192;
/// Pages looked up in all: 1 TiB of address space.
const MAX_STATES: u64 = 1 << 28;
/// States that are read at once.
const STATES: u64 = 1 << 16;
/// The kernel's limit of one call.
const MAX_PIECES: usize = 1000;
/// Of an entry of `/proc/<pid>/pagemap`: the page is in memory.
const PRESENT: u64 = 1 << 63;

/// Why a process cannot be read.
#[derive(Debug, Error)]
pub enum OpenError {
    /// There is none.
    #[error("no process {pid}")]
    NoProcess {
        /// Its number.
        pid: u32,
    },
    /// It may not be looked into.
    #[error(
        "process {pid} may not be read: it is {}; {}",
        if *is_others { "another user's" } else { "protected (set-uid, capabilities, or `kernel.yama.ptrace_scope`)" },
        if *is_root { "this root lacks CAP_SYS_PTRACE: add it to its container" } else { "run with sudo, or give the program CAP_SYS_PTRACE" }
    )]
    NotAllowed {
        /// Its number.
        pid: u32,
        /// Another user's.
        is_others: bool,
        /// This process is root's.
        is_root: bool,
    },
    /// Any other error.
    #[error("failed to read process {pid}")]
    Other {
        /// Its number.
        pid: u32,
        /// The system's error.
        source: io::Error,
    },
}

/// A process to read.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    started: Option<u64>,
    mappings: Vec<Mapping>,
    /// The files behind them.
    files: Vec<FileId>,
    /// Memory as it was when this was opened: after an `exec` nothing can be read through it any more.
    memory: Option<File>,
    page_states: Option<File>,
    states_read: AtomicU64,
}

impl Process {
    /// Opens a process.
    ///
    /// # Errors
    ///
    /// If there is none, or reading is not permitted.
    pub fn open(pid: u32) -> Result<Self, OpenError> {
        let started = process::start_ticks(pid).ok_or(OpenError::NoProcess { pid })?;
        let text = maps::read(pid).map_err(|error| refusal(pid, error))?;
        let lines = maps::lines(&text).filter(|line| line.start < line.end && line.end <= ADDRESS_END);
        let mut mappings: Vec<Mapping> = Vec::new();
        let mut files: Vec<FileId> = Vec::new();
        for line in lines.take(MAX_MAPPINGS) {
            let mapping = mapping(&line);
            if let Some(last) = mappings.last_mut().filter(|last| last.goes_on_in(&mapping)) {
                last.end = mapping.end;
            } else {
                mappings.push(mapping);
                files.push(line.id);
            }
        }
        let open = |what: &str| File::open(format!("/proc/{pid}/{what}")).ok();
        let process = Self {
            pid,
            started: Some(started),
            mappings,
            files,
            memory: open("mem"),
            page_states: open("pagemap"),
            states_read: AtomicU64::new(0),
        };
        process.try_read()?;
        Ok(process)
    }

    /// Its number.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Reads a byte: nothing else shows the right to do so.
    fn try_read(&self) -> Result<(), OpenError> {
        let Some(readable) = self.mappings.iter().find(|mapping| mapping.readable && mapping.private) else {
            // A process that ends has no memory, and neither have threads of the kernel.
            return Err(OpenError::NoProcess { pid: self.pid });
        };
        let remote = [RemoteIoVec { base: readable.start as usize, len: 1 }];
        let mut byte = [0];
        match process_vm_readv(self.process(), &mut [IoSliceMut::new(&mut byte)], &remote) {
            Ok(_) => Ok(()),
            Err(error) => Err(refusal(self.pid, error.into())),
        }
    }

    const fn process(&self) -> Pid {
        Pid::from_raw(self.pid as i32)
    }
}

fn refusal(pid: u32, error: io::Error) -> OpenError {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            let own = Uid::effective();
            let is_others = rights::has_other_rights(pid, own.as_raw());
            OpenError::NotAllowed { pid, is_others, is_root: own.is_root() }
        }
        io::ErrorKind::NotFound => OpenError::NoProcess { pid },
        // Its memory goes before its number does.
        _ if matches!(error.raw_os_error(), Some(libc::ESRCH | libc::EFAULT)) => OpenError::NoProcess { pid },
        _ => OpenError::Other { pid, source: error },
    }
}

fn mapping(line: &Line<'_>) -> Mapping {
    let name = String::from_utf8_lossy(line.name).into_owned();
    let backing = match name.as_str() {
        "" => Backing::Anonymous,
        "[heap]" => Backing::Heap,
        "[stack]" => Backing::Stack,
        name if name.starts_with("[anon") => Backing::Anonymous,
        name if name.starts_with('/') && !name.starts_with("/dev/") => Backing::File,
        _ => Backing::Other,
    };
    Mapping {
        start: line.start,
        end: line.end,
        readable: line.readable,
        writable: line.writable,
        executable: line.executable,
        private: line.private,
        file_offset: line.file_offset,
        backing,
        name,
    }
}

impl Source for Process {
    fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    fn read(&self, address: u64, to: &mut [u8]) -> usize {
        let Ok(base) = usize::try_from(address) else { return 0 };
        let remote = [RemoteIoVec { base, len: to.len() }];
        process_vm_readv(self.process(), &mut [IoSliceMut::new(to)], &remote).unwrap_or(0)
    }

    fn read_pieces(&self, addresses: &[u64], len: usize) -> Vec<u8> {
        let mut bytes = vec![0; addresses.len() * len];
        if len == 0 {
            return bytes;
        }
        for (addresses, to) in addresses.chunks(MAX_PIECES).zip(bytes.chunks_mut(MAX_PIECES * len)) {
            let remote: Vec<RemoteIoVec> =
                addresses.iter().map(|address| RemoteIoVec { base: *address as usize, len }).collect();
            let got = process_vm_readv(self.process(), &mut [IoSliceMut::new(to)], &remote).unwrap_or(0);
            // The call ends at the first unreadable piece.
            let whole = got / len;
            for (address, to) in addresses.iter().zip(to.chunks_mut(len)).skip(whole) {
                let got = self.read(*address, to);
                to[got..].fill(0);
            }
        }
        bytes
    }

    fn present(&self, mapping: &Mapping) -> Vec<(u64, u64)> {
        let mut runs = Vec::new();
        let pages = (mapping.end - mapping.start) / PAGE;
        let Some(states) = &self.page_states else { return runs };
        if self.states_read.fetch_add(pages, Ordering::Relaxed) + pages > MAX_STATES {
            return runs;
        }
        let page_size = u64::from(crate::os::memory::page_size());
        let mut address = mapping.start;
        let mut bytes = Vec::new();
        while address < mapping.end {
            let count = ((mapping.end - address).div_ceil(page_size)).min(STATES);
            bytes.resize(count as usize * 8, 0);
            if states.read_exact_at(&mut bytes, address / page_size * 8).is_err() {
                break;
            }
            for (page, state) in (0..).zip(bytes.as_chunks().0) {
                let start = address + page * page_size;
                if u64::from_le_bytes(*state) & PRESENT != 0 {
                    add_page(&mut runs, start, (start + page_size).min(mapping.end));
                }
            }
            address += count * page_size;
        }
        runs
    }

    /// By the kernel's counter: pages of guards and those that are being moved are marked as swapped out, too.
    fn swapped_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        process::status_bytes(&status, "VmSwap").unwrap_or_default()
    }

    fn symbols(&self, mapping: &Mapping) -> Option<Symbols> {
        let at = self.mappings.partition_point(|other| other.start < mapping.start);
        let id = *self.files.get(at)?;
        let range = format!("{:x}-{:x}", mapping.start, mapping.end);
        let file = mapped::open(self.pid, &range, Path::new(&mapping.name), id).ok()?;
        Symbols::of_file(file)
    }

    fn threads(&self) -> Vec<Thread> {
        let folder = fs::read_dir(format!("/proc/{}/task", self.pid));
        let entries = folder.into_iter().flatten().flatten().take(MAX_THREADS);
        let threads = entries.filter_map(|entry| {
            let tid = entry.file_name().to_str()?.parse().ok()?;
            let text = fs::read_to_string(entry.path().join("syscall")).unwrap_or_default();
            Some(Thread { tid, stack_pointer: stack_pointer(&text) })
        });
        threads.collect()
    }

    fn is_same(&self) -> bool {
        let first = self.mappings.iter().find(|mapping| mapping.is_file() && mapping.readable);
        let is_readable = self.memory.as_ref().zip(first).is_none_or(|(memory, mapping)| {
            let mut byte = [0];
            memory.read_at(&mut byte, mapping.start).is_ok_and(|got| got == 1)
        });
        is_readable && process::is_alive(self.pid) && process::start_ticks(self.pid) == self.started
    }

    fn renewed(&self) -> Option<Box<dyn Source>> {
        let now = Self::open(self.pid).ok().filter(|now| now.started == self.started)?;
        Some(Box::new(now))
    }
}

fn add_page(runs: &mut Vec<(u64, u64)>, start: u64, end: u64) {
    match runs.last_mut() {
        Some((_, last)) if *last == start => *last = end,
        _ => runs.push((start, end)),
    }
}

/// `number arguments… stack_pointer instruction`, or `running`.
fn stack_pointer(text: &str) -> Option<u64> {
    let field = text.split_ascii_whitespace().rev().nth(1)?;
    u64::from_str_radix(field.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Our own memory is read in each way, and unmapped memory gives no bytes, or zeros.
    #[test]
    fn our_own_memory() {
        let process = Process::open(std::process::id()).expect("ours");
        let texts: [Box<[u8; 16]>; 3] =
            [b"first of the lot", b"the second one ;", b"a third, of such"].map(|t| Box::new(*t));
        let addresses: Vec<u64> = texts.iter().map(|text| text.as_ptr().expose_provenance() as u64).collect();
        let mut bytes = [0; 16];
        assert_eq!((process.read(addresses[0], &mut bytes), bytes), (16, *texts[0]));
        assert_eq!(process.read(8, &mut bytes), 0);
        let pieces = process.read_pieces(&[addresses[0], 8, addresses[1], addresses[2]], 16);
        assert_eq!(pieces, [&texts[0][..], &[0; 16], &texts[1][..], &texts[2][..]].concat());
        assert!(process.is_same() && process.threads().iter().any(|thread| thread.tid == process.pid()));
        let mapping = process.mappings().iter().find(|mapping| mapping.contains(addresses[0])).expect("mapped");
        let present = process.present(mapping);
        assert!(present.iter().any(|(start, end)| (*start..*end).contains(&addresses[0])), "{present:?}");
    }

    #[test]
    fn a_process_that_is_none() {
        assert!(matches!(Process::open(0x3fff_ffff), Err(OpenError::NoProcess { pid: 0x3fff_ffff })));
    }

    #[test]
    fn stack_pointers() {
        assert_eq!(stack_pointer("202 0x1 0x80 0x0 0x0 0x0 0x0 0x7ffc1230 0x7f00\n"), Some(0x7ffc_1230));
        assert_eq!(stack_pointer("-1 0x7ffc1230 0x7f00\n"), Some(0x7ffc_1230));
        assert_eq!((stack_pointer("running\n"), stack_pointer("")), (None, None));
    }
}
