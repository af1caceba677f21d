//! Where functions begin and end, by the unwinder's table: `.eh_frame_hdr` and the `.eh_frame` that it leads to.
//!
//! C++ needs it at run time, so no stripper takes it away.

use crate::os::elf::{ElfFile, dynamic::Mapping};

/// `DW_EH_PE_datarel | DW_EH_PE_sdata4`: the one encoding of the table that linkers write.
const TABLE_ENCODING: u8 = 0x3b;
/// `DW_EH_PE_pcrel`, in the upper half of an encoding.
const PC_RELATIVE: u8 = 0x10;
/// `DW_EH_PE_indirect`, which function addresses never are.
const INDIRECT: u8 = 0x80;

/// Bytes read of a function's description; real ones have some dozen before the needed part.
const MAX_ENTRY: usize = 256;

/// A function, or the part of one that the compiler moved away from the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Function {
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Function {
    pub(super) fn contains(self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }
}

/// The table.
#[derive(Clone, Copy)]
pub(super) struct Functions<'a> {
    elf: &'a ElfFile<'a>,
    header: Mapping<'a>,
    /// Address of a function, address of its description; both relative to the header.
    entries: &'a [[u8; 8]],
}

impl<'a> Functions<'a> {
    /// `None` where there is no such table, or one that no linker writes.
    pub(super) fn of(elf: &'a ElfFile<'a>) -> Option<Self> {
        let header = elf.unwind_table()?;
        let [1, frame_encoding, count_encoding, TABLE_ENCODING, rest @ ..] = header.bytes else {
            return None;
        };
        let mut rest = Bytes(rest);
        rest.skip(size_of_encoded(*frame_encoding)?)?;
        let count = match size_of_encoded(*count_encoding)? {
            4 => rest.word()? as usize,
            _ => return None,
        };
        let (entries, _) = rest.0.as_chunks::<8>();
        Some(Self { elf, header, entries: entries.get(..count)? })
    }

    /// The function that `address` lies in.
    pub(super) fn containing(&self, address: u64) -> Option<Function> {
        let after = self.entries.partition_point(|entry| self.start_of(*entry) <= address);
        let function = self.function(*self.entries.get(after.checked_sub(1)?)?)?;
        function.contains(address).then_some(function)
    }

    /// The function that begins at `address`.
    pub(super) fn starting(&self, address: u64) -> Option<Function> {
        self.containing(address).filter(|function| function.start == address)
    }

    fn start_of(&self, entry: [u8; 8]) -> u64 {
        let [a, b, c, d, ..] = entry;
        self.header.vaddr.wrapping_add_signed(i64::from(i32::from_le_bytes([a, b, c, d])))
    }

    /// Table and description must agree on where the function begins.
    fn function(&self, entry: [u8; 8]) -> Option<Function> {
        let [_, _, _, _, a, b, c, d] = entry;
        let place = self.header.vaddr.wrapping_add_signed(i64::from(i32::from_le_bytes([a, b, c, d])));
        let mut description = Bytes(self.elf.bytes_at(place, MAX_ENTRY)?);
        let length = description.word()?;
        let back = description.word()?;
        if length == 0 || length == u32::MAX || back == 0 {
            return None;
        }
        let encoding = self.encoding(place.wrapping_add(4).wrapping_sub(u64::from(back)))?;
        let start = description.pointer(encoding, place.wrapping_add(8))?;
        let size_bytes = description.pointer(encoding & 0x0f, 0)?;
        (start == self.start_of(entry)).then_some(Function { start, end: start.checked_add(size_bytes)? })
    }

    /// How the descriptions that share the common part at `place` write addresses.
    fn encoding(&self, place: u64) -> Option<u8> {
        let mut common = Bytes(self.elf.bytes_at(place, MAX_ENTRY)?);
        let (_length, id, version) = (common.word()?, common.word()?, common.byte()?);
        if id != 0 || !matches!(version, 1 | 3) {
            return None;
        }
        let augmentation = common.text()?;
        let [b'z', letters @ ..] = augmentation else {
            return augmentation.is_empty().then_some(0);
        };
        common.number()?; // code alignment
        common.number()?; // data alignment
        // The register of the return address.
        if version == 1 {
            common.skip(1)?;
        } else {
            common.number()?;
        }
        common.number()?; // length of what follows
        for letter in letters {
            match letter {
                b'R' => return common.byte().filter(|encoding| encoding & INDIRECT == 0),
                b'L' => common.skip(1)?,
                b'P' => {
                    let encoding = common.byte()?;
                    common.skip(size_of_encoded(encoding)?)?;
                }
                b'S' | b'B' | b'G' => {}
                _ => return None,
            }
        }
        Some(0)
    }
}

/// Bytes of a pointer of this encoding; `None` for a variable length.
fn size_of_encoded(encoding: u8) -> Option<usize> {
    match encoding & 0x0f {
        0x00 | 0x04 | 0x0c => Some(8),
        0x02 | 0x0a => Some(2),
        0x03 | 0x0b => Some(4),
        _ => None,
    }
}

/// Reads from the front.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn skip(&mut self, len: usize) -> Option<()> {
        self.take(len).map(drop)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn word(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    /// Up to a NUL.
    fn text(&mut self) -> Option<&'a [u8]> {
        let len = self.0.iter().position(|byte| *byte == 0)?;
        let text = self.take(len)?;
        self.skip(1)?;
        Some(text)
    }

    /// LEB128; only its length matters.
    fn number(&mut self) -> Option<usize> {
        let len = 1 + self.0.iter().take(10).position(|byte| byte & 0x80 == 0)?;
        self.skip(len)?;
        Some(len)
    }

    /// A pointer that stands at the virtual address `here`.
    fn pointer(&mut self, encoding: u8, here: u64) -> Option<u64> {
        let value = match (size_of_encoded(encoding)?, encoding & 0x08 != 0) {
            (4, true) => i64::from(self.word()?.cast_signed()).cast_unsigned(),
            (4, false) => u64::from(self.word()?),
            (8, _) => self.take(8)?.try_into().ok().map(u64::from_le_bytes)?,
            _ => return None,
        };
        match encoding & 0x70 {
            0 => Some(value),
            PC_RELATIVE => Some(here.wrapping_add(value)),
            _ => None,
        }
    }
}
