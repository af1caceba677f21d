//! Unwind information of one file: found by the address of the code, read in small pieces. Hostile input: malformed
//! information counts as absent, and reads are bounded.

use std::{
    fs::File,
    os::unix::fs::FileExt as _,
    sync::{Arc, Weak},
};

use gimli::{BaseAddresses, CieOrFde, EhFrame, EhFrameOffset, EndianSlice, LittleEndian, UnwindSection as _};
use object::elf;

use super::row::{Arch, Row};
use crate::stacks::mappings::{Content, Module};

/// Most segments of a file.
const MAX_SEGMENTS: usize = 128;
const MAX_SECTIONS: usize = 1 << 16;
/// Longer entries do not occur: they are a function's.
const MAX_ENTRY_BYTES: usize = 1 << 16;
/// Largest unwind information without an index, which has to be read as a whole.
const MAX_UNINDEXED_BYTES: u64 = 64 << 20;
const MAX_ENTRIES: usize = 1 << 20;

/// Where the bytes are.
enum Bytes {
    /// The mappings keep it open, as long as a process has mapped it.
    File(Weak<File>),
    Memory(Arc<[u8]>),
}

impl Bytes {
    /// Fills `to`, or as much of it as the file has; returns the number of bytes.
    fn read(&self, offset: u64, to: &mut [u8]) -> usize {
        match self {
            Self::File(file) => {
                let Some(file) = file.upgrade() else { return 0 };
                let mut done = 0;
                while done < to.len() {
                    match file.read_at(&mut to[done..], offset.saturating_add(done as u64)) {
                        Ok(0) => break,
                        Ok(more) => done += more,
                        Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                        Err(_) => break,
                    }
                }
                done
            }
            Self::Memory(bytes) => {
                let rest = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..)).unwrap_or_default();
                let len = rest.len().min(to.len());
                to[..len].copy_from_slice(&rest[..len]);
                len
            }
        }
    }

    fn array<const N: usize>(&self, offset: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        (self.read(offset, &mut bytes) == N).then_some(bytes)
    }

    fn vec(&self, offset: u64, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        (self.read(offset, &mut bytes) == len).then_some(bytes)
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// A mapped segment.
#[derive(Clone, Copy, Debug)]
struct Segment {
    vaddr: u64,
    offset: u64,
    size: u64,
    executable: bool,
}

/// How an entry is found.
enum Index {
    /// `.eh_frame_hdr` has a table: its address, the file offset of its entries, and their number.
    Table { vaddr: u64, offset: u64, entries: u64 },
    /// Made here: start, length and offset in `section`, by start; with `section` and its address.
    Own { entries: Vec<(u64, u64, usize)>, section: Vec<u8>, vaddr: u64 },
}

/// The unwind information of a file.
pub(super) struct Image {
    bytes: Bytes,
    arch: Arch,
    segments: Vec<Segment>,
    index: Index,
}

impl Image {
    /// `None`: without unwind information in a known form.
    pub(super) fn open(content: &Content) -> Option<Self> {
        let bytes = match content {
            Content::File(file) => Bytes::File(Arc::downgrade(file)),
            Content::Memory(bytes) => Bytes::Memory(Arc::clone(bytes)),
            Content::None => return None,
        };
        let header: [u8; 64] = bytes.array(0)?;
        if header[..6] != [0x7f, b'E', b'L', b'F', 2, 1] {
            return None;
        }
        let arch = Arch::of(u16_at(&header, 18)?)?;
        let (at, entry, count) = (u64_at(&header, 32)?, u16_at(&header, 54)?, u16_at(&header, 56)?);
        let count = usize::from(count).min(MAX_SEGMENTS);
        if entry != 56 {
            return None;
        }
        let table = bytes.vec(at, count * 56)?;
        let mut segments = Vec::new();
        let mut index = None;
        for header in table.as_chunks::<56>().0 {
            let (kind, flags) = (u32_at(header, 0)?, u32_at(header, 4)?);
            let (offset, vaddr, size) = (u64_at(header, 8)?, u64_at(header, 16)?, u64_at(header, 32)?);
            if kind == elf::PT_LOAD.0 {
                segments.push(Segment { vaddr, offset, size, executable: flags & elf::PF_X.0 != 0 });
            } else if kind == elf::PT_GNU_EH_FRAME.0 {
                index = search_table(&bytes, vaddr, offset, size);
            }
        }
        let index = index.or_else(|| own_index(&bytes, &header));
        // The kernel's own code has none, except for code that signal handlers return to.
        let nothing = || (arch == Arch::Aarch64).then(|| Index::Own { entries: vec![], section: vec![], vaddr: 0 });
        let index = index.or_else(nothing)?;
        Some(Self { bytes, arch, segments, index })
    }

    /// Its address and all its bytes.
    pub(super) fn eh_frame(&self) -> Option<(u64, Vec<u8>)> {
        eh_frame(&self.bytes, &self.bytes.array(0)?)
    }

    /// The machine that it is for.
    pub(super) const fn arch(&self) -> Arch {
        self.arch
    }

    /// The row for the code at `address` of `module`, which is this file. `None`: it has none.
    pub(super) fn row(&self, module: &Module, address: u64) -> Option<Row> {
        let offset = module.offset_of(address);
        let code = self.segments.iter().find(|segment| {
            segment.executable && offset.checked_sub(segment.offset).is_some_and(|into| into < segment.size)
        })?;
        if self.arch == Arch::Aarch64 && self.returns_from_signal(offset) {
            return Some(Row::of_signal_return());
        }
        let vaddr = offset.wrapping_sub(code.offset).wrapping_add(code.vaddr);
        self.row_at(vaddr, address)
    }

    /// Whether a signal handler returns by the instructions here, on aarch64: unwinders recognise them, since kernels
    /// no longer have unwind information for them. `offset` is that of an instruction, or one less.
    fn returns_from_signal(&self, offset: u64) -> bool {
        /// `mov x8, #139` (`rt_sigreturn`) and `svc #0`.
        const CODE: [u8; 8] = [0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4];
        let first = offset.next_multiple_of(4);
        let is_at = |offset| self.bytes.array(offset) == Some(CODE);
        is_at(first) || first.checked_sub(4).is_some_and(is_at)
    }

    /// The row for a virtual address of the file, which is at `address` in the process.
    pub(super) fn row_at(&self, vaddr: u64, address: u64) -> Option<Row> {
        let found = match &self.index {
            Index::Table { vaddr: table, offset, entries } => {
                let entry = self.search(*table, *offset, *entries, vaddr)?;
                self.entry(entry)?
            }
            Index::Own { entries, section, vaddr: start } => {
                let behind = entries.partition_point(|(start, ..)| *start <= vaddr);
                let (_, _, offset) = entries.get(behind.checked_sub(1)?)?;
                return self.evaluate(section, *start, *offset, vaddr, address);
            }
        };
        self.evaluate(&found.bytes, found.start, found.at, vaddr, address)
    }

    /// The address of the entry of the last function that starts at or before `vaddr`.
    fn search(&self, table: u64, offset: u64, entries: u64, vaddr: u64) -> Option<u64> {
        const ENTRY: u64 = 8;
        let wanted = vaddr.wrapping_sub(table).cast_signed();
        let entry = |number: u64| -> Option<(i64, i64)> {
            let bytes: [u8; 8] = self.bytes.array(offset.checked_add(number.checked_mul(ENTRY)?)?)?;
            let word = |at| u32_at(&bytes, at).map(|word| i64::from(word.cast_signed()));
            Some((word(0)?, word(4)?))
        };
        let (mut low, mut high) = (0, entries);
        while low < high {
            let middle = u64::midpoint(low, high);
            if entry(middle)?.0 <= wanted { low = middle + 1 } else { high = middle }
        }
        let (_, to) = entry(low.checked_sub(1)?)?;
        Some(table.wrapping_add_signed(to))
    }

    fn file_offset(&self, vaddr: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let into = vaddr.checked_sub(segment.vaddr).filter(|into| *into < segment.size)?;
            segment.offset.checked_add(into)
        })
    }

    /// The entry and its common part, as if they were a section of their own.
    fn entry(&self, vaddr: u64) -> Option<Entry> {
        let offset = self.file_offset(vaddr)?;
        let own = self.unit(offset)?;
        // The distance from this field back to the common entry.
        let back = u64::from(u32_at(&own, 4)?);
        let common = self.unit(offset.checked_add(4)?.checked_sub(back)?)?;
        let at = common.len();
        let mut bytes = common;
        bytes.extend_from_slice(&own);
        bytes.get_mut(at + 4..at + 8)?.copy_from_slice(&u32::try_from(at + 4).ok()?.to_le_bytes());
        Some(Entry { start: vaddr.checked_sub(at as u64)?, at, bytes })
    }

    /// One entry of either kind, with its length. The long form is for more than 4 GiB.
    fn unit(&self, offset: u64) -> Option<Vec<u8>> {
        let len = u32::from_le_bytes(self.bytes.array(offset)?) as usize;
        if !(8..=MAX_ENTRY_BYTES).contains(&len) {
            return None;
        }
        self.bytes.vec(offset, 4 + len)
    }

    fn evaluate(&self, section: &[u8], start: u64, at: usize, vaddr: u64, address: u64) -> Option<Row> {
        let (frames, bases) = self.section(section, start);
        let entry = frames.fde_from_offset(&bases, EhFrameOffset(at), EhFrame::cie_from_offset).ok()?;
        Row::new(self.arch, &frames, &bases, &entry, vaddr, address)
    }

    /// All of it or a piece that begins at address `start`.
    pub(super) fn section<'a>(
        &self,
        section: &'a [u8],
        start: u64,
    ) -> (EhFrame<EndianSlice<'a, LittleEndian>>, BaseAddresses) {
        let mut frames = EhFrame::new(section, LittleEndian);
        frames.set_address_size(8);
        if self.arch == Arch::Aarch64 {
            frames.set_vendor(gimli::Vendor::AArch64);
        }
        (frames, BaseAddresses::default().set_eh_frame(start))
    }
}

/// A piece of `.eh_frame`.
struct Entry {
    /// Virtual address that makes the entry's own addresses right.
    start: u64,
    /// Where in `bytes` it begins.
    at: usize,
    bytes: Vec<u8>,
}

/// The table of `.eh_frame_hdr`, if it is in the form that all linkers write.
fn search_table(bytes: &Bytes, vaddr: u64, offset: u64, size: u64) -> Option<Index> {
    const HEAD: u64 = 12;
    /// Version 1; four bytes from here, a count of four bytes, pairs of four bytes from the start of the table.
    const FORM: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
    let head: [u8; HEAD as usize] = bytes.array(offset)?;
    if head[..4] != FORM {
        return None;
    }
    let entries = u64::from(u32_at(&head, 8)?);
    let fits = size.checked_sub(HEAD)? / 8;
    Some(Index::Table { vaddr, offset: offset.checked_add(HEAD)?, entries: entries.min(fits) })
}

/// An index of `.eh_frame`, for files without one: statically linked programs.
fn own_index(bytes: &Bytes, header: &[u8; 64]) -> Option<Index> {
    let (vaddr, section) = eh_frame(bytes, header)?;
    let frames = EhFrame::new(&section, LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(vaddr);
    let mut entries = Vec::new();
    let mut units = frames.entries(&bases);
    while let Ok(Some(unit)) = units.next() {
        if let CieOrFde::Fde(partial) = unit
            && let Ok(entry) = partial.parse(EhFrame::cie_from_offset)
        {
            entries.push((entry.initial_address(), entry.len(), entry.offset()));
        }
        if entries.len() >= MAX_ENTRIES {
            return None;
        }
    }
    entries.sort_unstable();
    Some(Index::Own { entries, section, vaddr })
}

/// Address and bytes of the section `.eh_frame`.
fn eh_frame(bytes: &Bytes, header: &[u8; 64]) -> Option<(u64, Vec<u8>)> {
    const NAME: &[u8] = b".eh_frame\0";
    let (at, entry) = (u64_at(header, 40)?, u16_at(header, 58)?);
    let (count, names) = (u16_at(header, 60)?, u16_at(header, 62)?);
    if entry != 64 || usize::from(count) > MAX_SECTIONS {
        return None;
    }
    let table = bytes.vec(at, usize::from(count) * 64)?;
    let (headers, _) = table.as_chunks::<64>();
    let names_at = u64_at(headers.get(usize::from(names))?, 24)?;
    headers.iter().find_map(|header| {
        let name: [u8; NAME.len()] = bytes.array(names_at.checked_add(u32_at(header, 0)?.into())?)?;
        let (vaddr, offset, size) = (u64_at(header, 16)?, u64_at(header, 24)?, u64_at(header, 32)?);
        if name != NAME || size > MAX_UNINDEXED_BYTES {
            return None;
        }
        Some((vaddr, bytes.vec(offset, usize::try_from(size).ok()?)?))
    })
}
