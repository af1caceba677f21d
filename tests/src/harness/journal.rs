//! The journal of the simulated libraries: what really happened (`ascend-sim/README.md`, *Journal*).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::OnceLock;

use super::tracer::monotonic_ns;

/// The functions' numbers, from the header that the libraries are compiled with.
const FUNCTIONS: &str = include_str!("../../ascend-sim/include/journal_funcs.h");

const SLOT: usize = 64;
const COMMITTED: u16 = 1;
const NULL_TEXT: u64 = u64::MAX;

/// A simulated library, innermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Library {
    /// The driver.
    Hal,
    /// The runtime.
    Runtime,
    /// The newer facade.
    AclRt,
    /// The umbrella above it.
    AscendCl,
    /// Marks.
    Mstx,
    /// The framework's allocators.
    TorchNpu,
    /// Another framework's.
    MindSpore,
    /// A pool that only the user knows of.
    MyPool,
    /// Operations.
    Atb,
}

/// A report of a `torch_npu` allocator about a block, in the words of its `MemoryUsage`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PtaReport {
    /// Number of the device.
    pub device: u8,
    /// 0 is the caching allocator, 1 the workspaces.
    pub component: u8,
    /// 0 malloc, 1 free, 2 block free.
    pub kind: u8,
    /// Address.
    pub addr: u64,
    /// Negative when it ends.
    pub size: i64,
    /// Bytes handed out.
    pub allocated: u64,
    /// Bytes held from the runtime.
    pub reserved: u64,
    /// Bytes handed out or waiting for a stream.
    pub active: u64,
}

/// One call.
#[derive(Clone, Debug)]
pub struct Entry {
    /// `CLOCK_MONOTONIC`: just before the return of what gives, at the entry of what takes and of marks.
    pub time_ns: u64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// The library of the journal.
    pub library: Library,
    /// Function.
    pub symbol: &'static str,
    /// What it returned; `None` if it never did.
    pub ret: Option<i64>,
    /// As the journal's table has them.
    pub args: [u64; 4],
    /// What it gave out.
    pub out: u64,
    /// The stored part of its text; `None` for a null pointer, and where there is none.
    pub text: Option<Box<[u8]>>,
}

/// A call by what it means to the tracer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call<'a> {
    /// The library was loaded: its earlier records belong to a program that an exec has replaced.
    Load,
    /// `halMemAlloc` that succeeded.
    Alloc {
        /// Bytes.
        size: u64,
        /// Flag word.
        flag: u64,
        /// Result.
        addr: u64,
    },
    /// `halMemAlloc` or `halMemCreate` that failed.
    AllocFailed,
    /// `halMemFree`; whether it succeeded, if it came back.
    Free {
        /// Argument.
        addr: u64,
        /// Outcome.
        ok: Option<bool>,
    },
    /// `halMemCreate` that succeeded.
    Create {
        /// Bytes.
        size: u64,
        /// 1 is the device.
        side: u32,
        /// Number of the device.
        device: u32,
        /// 0 normal, 1 huge, 2 giant.
        page: u32,
        /// Result.
        handle: u64,
    },
    /// `halMemRelease`; whether it succeeded, if it came back.
    Release {
        /// Argument.
        handle: u64,
        /// Outcome.
        ok: Option<bool>,
    },
    /// `halMemRetainAllocationHandle` that succeeded: one more reference to what is mapped there.
    Retain {
        /// Any address of the mapping.
        addr: u64,
        /// Result.
        handle: u64,
    },
    /// `halMemMap` that succeeded.
    Map {
        /// Where.
        addr: u64,
        /// What.
        handle: u64,
    },
    /// `halMemUnmap`; whether it succeeded, if it came back.
    Unmap {
        /// Argument.
        addr: u64,
        /// Outcome.
        ok: Option<bool>,
    },
    /// The thread chose a device.
    SetDevice(u32),
    /// A launch, at any level.
    Launch {
        /// Kernel handle; 0 if the call has none.
        handle: u64,
        /// Stream.
        stream: u64,
        /// Name that the call itself carries.
        name: Option<&'a [u8]>,
    },
    /// A kernel handle got a name.
    KernelName {
        /// Handle.
        handle: u64,
        /// Name.
        name: &'a [u8],
    },
    /// A stream's number became known to the program.
    StreamId {
        /// Stream.
        stream: u64,
        /// Number.
        id: u64,
    },
    /// `aclInit` that succeeded.
    AclInit,
    /// `aclFinalize`.
    AclFinalize,
    /// `mstxMarkA`: text and its true length.
    Mark(Option<(&'a [u8], u64)>),
    /// `mstxRangeStartA`: text and its true length, and the id returned.
    RangeStart(Option<(&'a [u8], u64)>, u64),
    /// `mstxRangeEnd` of this id.
    RangeEnd(u64),
    /// The same of a domain.
    DomainMark(Option<(&'a [u8], u64)>),
    /// The same of a domain.
    DomainRangeStart(Option<(&'a [u8], u64)>, u64),
    /// The same of a domain.
    DomainRangeEnd(u64),
    /// Of no interest to the tracer.
    Other,
}

impl Entry {
    /// The return addresses of an allocation, innermost first, the driver's own among them; with `ASCEND_SIM_STACKS` alone.
    #[must_use]
    pub fn stack(&self) -> Option<Vec<u64>> {
        let bytes = self.text.as_deref().filter(|bytes| self.symbol == "halMemAlloc" && !bytes.is_empty())?;
        Some(bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
    }

    /// The report that this is the record of.
    #[must_use]
    pub fn pta_report(&self) -> Option<PtaReport> {
        let bytes = self.text.as_deref().filter(|_| self.symbol == "reportMemoryDataToNpuProfiler")?;
        assert_eq!(bytes.len(), 56, "a `MemoryUsage`");
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        assert_eq!(bytes[0], 20, "device type of an NPU");
        Some(PtaReport {
            device: bytes[1],
            component: bytes[2],
            kind: bytes[3],
            addr: word(8),
            size: word(16).cast_signed(),
            allocated: word(24),
            reserved: word(32),
            active: word(40),
        })
    }

    /// What it means.
    #[must_use]
    pub fn call(&self) -> Call<'_> {
        let [first, second, third, length] = self.args;
        let ok = self.ret.map(|ret| ret == 0);
        let text = self.text.as_deref().map(|text| (text, length));
        let name = self.text.as_deref();
        match self.symbol {
            "load" => Call::Load,
            "halMemAlloc" | "halMemCreate" if ok == Some(false) => Call::AllocFailed,
            "halMemAlloc" => Call::Alloc { size: first, flag: second, addr: self.out },
            "halMemFree" => Call::Free { addr: first, ok },
            "halMemCreate" => Call::Create {
                size: first,
                side: second as u32,
                device: (second >> 32) as u32,
                page: (third >> 32) as u32,
                handle: self.out,
            },
            "halMemRelease" => Call::Release { handle: first, ok },
            "halMemRetainAllocationHandle" if ok == Some(true) => Call::Retain { addr: first, handle: self.out },
            "halMemMap" if ok == Some(true) => Call::Map { addr: first, handle: self.args[3] },
            "halMemUnmap" => Call::Unmap { addr: first, ok },
            "rtSetDevice" | "rtSetDeviceEx" if ok == Some(true) => Call::SetDevice(first as u32),
            "rtKernelLaunchFwk" | "rtAicpuKernelLaunchExWithArgs" => Call::Launch { handle: 0, stream: third, name },
            symbol if symbol.contains("LaunchKernel") || symbol.contains("KernelLaunch") => {
                Call::Launch { handle: first, stream: third, name: None }
            }
            "rtFunctionRegister" | "rtsFuncGetByName" | "rtBinaryGetFunctionByName" if ok == Some(true) => {
                Call::KernelName { handle: self.out, name: name.unwrap_or_default() }
            }
            "rtGetStreamId" | "aclrtStreamGetId" if ok == Some(true) => Call::StreamId { stream: first, id: self.out },
            "aclInit" if ok == Some(true) && self.library == Library::AclRt => Call::AclInit,
            "aclFinalize" if self.library == Library::AclRt => Call::AclFinalize,
            "mstxMarkA" => Call::Mark(text),
            "mstxRangeStartA" => Call::RangeStart(text, self.out),
            "mstxRangeEnd" => Call::RangeEnd(first),
            "mstxDomainMarkA" => Call::DomainMark(text),
            "mstxDomainRangeStartA" => Call::DomainRangeStart(text, self.out),
            "mstxDomainRangeEnd" => Call::DomainRangeEnd(second),
            _ => Call::Other,
        }
    }
}

/// All calls of a run, in the order of their times.
#[derive(Debug)]
pub struct Journal {
    /// The calls.
    pub entries: Vec<Entry>,
}

impl Journal {
    /// Reads a journal directory, up to this moment: the files of a program that still runs are read one after the other.
    #[must_use]
    pub fn read(directory: &Path) -> Self {
        let now_ns = monotonic_ns();
        let mut files: Vec<_> = std::fs::read_dir(directory)
            .unwrap_or_else(|error| panic!("no journal directory `{}`: {error}", directory.display()))
            .map(|entry| entry.expect("readable journal directory").path())
            .collect();
        files.sort();
        let mut entries = Vec::new();
        for path in files {
            let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("`{}`: {error}", path.display()));
            let name = path.file_name().expect("a file").to_string_lossy().into_owned();
            let (pid, library) = origin(&name).unwrap_or_else(|| panic!("file name of a journal: `{name}`"));
            read_file(&bytes, pid, library, &name, &mut entries);
        }
        entries.retain(|entry| entry.time_ns <= now_ns);
        entries.sort_by_key(|entry| entry.time_ns);
        Self { entries }
    }

    /// Gives processes and threads other numbers: those by which they are known outside of their pid namespace.
    pub fn renumber(&mut self, numbers: &HashMap<u32, u32>) {
        let number = |within: &mut u32| {
            *within = *numbers.get(within).unwrap_or_else(|| panic!("{within} is no number of {numbers:?}"));
        };
        for entry in &mut self.entries {
            number(&mut entry.pid);
            number(&mut entry.tid);
        }
    }

    /// The calls of one process.
    pub fn of(&self, pid: u32) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |entry| entry.pid == pid)
    }

    /// The calls by process.
    #[must_use]
    pub fn by_process(&self) -> BTreeMap<u32, Vec<&Entry>> {
        let mut processes: BTreeMap<u32, Vec<&Entry>> = BTreeMap::new();
        for entry in &self.entries {
            processes.entry(entry.pid).or_default().push(entry);
        }
        processes
    }

    /// Processes that wrote a journal.
    #[must_use]
    pub fn processes(&self) -> BTreeSet<u32> {
        self.entries.iter().map(|entry| entry.pid).collect()
    }

    /// Number of calls of a function in a library.
    #[must_use]
    pub fn count(&self, library: Library, symbol: &str) -> usize {
        self.entries.iter().filter(|entry| entry.library == library && entry.symbol == symbol).count()
    }
}

/// Launches that are not made by another launch: at the highest library that the program entered.
///
/// A call enters `libascendcl`, then `libacl_rt`, then the runtime, with the same kernel and stream. So a launch is
/// an inner one if the thread's launch just before it stood higher, and was of the same kernel.
#[must_use]
pub fn outermost_launches<'a>(entries: &[&'a Entry]) -> Vec<&'a Entry> {
    let mut last: BTreeMap<u32, (Library, u64, u64)> = BTreeMap::new();
    let mut outermost = Vec::new();
    for entry in entries {
        let Call::Launch { handle, stream, .. } = entry.call() else { continue };
        let this = (entry.library, handle, stream);
        let inner = last.insert(entry.tid, this).is_some_and(|(library, before_handle, before_stream)| {
            library > entry.library && (before_handle, before_stream) == (handle, stream)
        });
        if !inner {
            outermost.push(*entry);
        }
    }
    outermost
}

/// Process and library of `<pid>-<tid>-<lib>.journal`.
fn origin(name: &str) -> Option<(u32, Library)> {
    let mut parts = name.strip_suffix(".journal")?.splitn(3, '-');
    let pid = parts.next()?.parse().ok()?;
    let library = match parts.nth(1)? {
        "hal" => Library::Hal,
        "runtime" => Library::Runtime,
        "acl_rt" => Library::AclRt,
        "ascendcl" => Library::AscendCl,
        "mstx" => Library::Mstx,
        "torch_npu" => Library::TorchNpu,
        "mindspore" => Library::MindSpore,
        "mypool" => Library::MyPool,
        "atb" => Library::Atb,
        _ => return None,
    };
    Some((pid, library))
}

fn read_file(bytes: &[u8], pid: u32, library: Library, name: &str, entries: &mut Vec<Entry>) {
    let mut rest = bytes;
    while let Some((slot, after)) = rest.split_at_checked(SLOT) {
        let word = |at: usize| u64::from_le_bytes(slot[at..at + 8].try_into().expect("8 bytes"));
        let half = |at: usize| u16::from_le_bytes(slot[at..at + 2].try_into().expect("2 bytes"));
        let flags = half(14);
        if flags & COMMITTED == 0 {
            break;
        }
        let (stored, after) = after
            .split_at_checked(usize::from(flags >> 8) * SLOT)
            .unwrap_or_else(|| panic!("journal `{name}` ends within a text"));
        let args = [word(24), word(32), word(40), word(48)];
        let symbol = symbols().get(&half(12)).unwrap_or_else(|| panic!("journal `{name}` has function {}", half(12)));
        let text = has_text(symbol).then(|| match args[3] {
            NULL_TEXT => None,
            length => Some(stored[..stored.len().min(length as usize)].into()),
        });
        let returned = word(16).cast_signed();
        entries.push(Entry {
            time_ns: word(0),
            pid,
            tid: u32::from_le_bytes(slot[8..12].try_into().expect("4 bytes")),
            library,
            symbol,
            ret: (returned != i64::MIN).then_some(returned),
            args,
            out: word(56),
            text: text.flatten(),
        });
        rest = after;
    }
}

/// Whether `args[3]` is the length of a text. An empty one has no slots, so the flags do not show it.
fn has_text(symbol: &str) -> bool {
    const WITH_TEXT: [&str; 17] = [
        "halMemAlloc",
        "my_note",
        "tensor",
        "Execute",
        "Execute_end",
        "reportMemoryDataToNpuProfiler",
        "rtFunctionRegister",
        "rtsFuncGetByName",
        "rtBinaryGetFunctionByName",
        "aclrtBinaryGetFunction",
        "rtsBinaryLoadFromFile",
        "aclrtBinaryLoadFromFile",
        "rtAicpuKernelLaunchExWithArgs",
        "rtKernelLaunchFwk",
        "mstxMarkA",
        "mstxRangeStartA",
        "mstxDomainMarkA",
    ];
    WITH_TEXT.contains(&symbol) || symbol == "mstxDomainRangeStartA" || symbol == "mstxDomainCreateA"
}

/// Symbols by number, out of `X(number, library, symbol)`.
fn symbols() -> &'static BTreeMap<u16, &'static str> {
    static SYMBOLS: OnceLock<BTreeMap<u16, &'static str>> = OnceLock::new();
    SYMBOLS.get_or_init(|| {
        let rows = FUNCTIONS.lines().filter_map(|line| line.trim().strip_prefix("X(")?.split_once(')'));
        rows.filter_map(|(row, _)| {
            let mut parts = row.split(',').map(str::trim);
            Some((parts.next()?.parse().ok()?, parts.nth(1)?))
        })
        .collect()
    })
}

/// Blocks that `torch_npu`'s caching allocator has handed out in the end, by its reports: sizes by address.
#[must_use]
pub fn pool_blocks(entries: &[&Entry]) -> BTreeMap<u64, u64> {
    let mut blocks = BTreeMap::new();
    for report in entries.iter().filter_map(|entry| entry.pta_report()).filter(|report| report.component == 0) {
        match report.kind {
            0 => drop(blocks.insert(report.addr, report.size.unsigned_abs())),
            1 => drop(blocks.remove(&report.addr)),
            _ => {}
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header's table is read as it stands.
    #[test]
    fn header_is_understood() {
        assert_eq!(symbols()[&90], "load");
        assert_eq!(symbols()[&1], "halMemAlloc");
        assert_eq!(symbols()[&412], "mstxMemRegionsUnregister");
    }

    /// A file ends at the first slot that is not committed; texts stand behind their slot.
    #[test]
    fn slots_and_texts() {
        let mut bytes = vec![0_u8; 4 * SLOT];
        bytes[0..8].copy_from_slice(&7_u64.to_le_bytes());
        bytes[8..12].copy_from_slice(&9_u32.to_le_bytes());
        bytes[12..14].copy_from_slice(&400_u16.to_le_bytes());
        bytes[14..16].copy_from_slice(&0x101_u16.to_le_bytes());
        bytes[48..56].copy_from_slice(&5_u64.to_le_bytes());
        bytes[64..69].copy_from_slice(b"hello");
        let mut entries = Vec::new();
        read_file(&bytes, 8, Library::Mstx, "x", &mut entries);
        assert_eq!(entries.len(), 1);
        assert_eq!((entries[0].time_ns, entries[0].tid, entries[0].pid), (7, 9, 8));
        assert_eq!(entries[0].call(), Call::Mark(Some((b"hello", 5))));
    }
}
