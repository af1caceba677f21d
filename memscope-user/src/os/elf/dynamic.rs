//! Data for the loader and the unwinder: code, relocations, imports, the table of functions.
//!
//! All by program headers and `PT_DYNAMIC`. Sections are not mapped, unused at run time, and strippers remove or keep
//! them at will.

use object::LittleEndian as Le;
use object::elf::{self, Rela64, Sym64};
use object::read::elf::{ProgramHeader as _, Rela as _};

use super::{ElfError, ElfFile, Machine};

/// Bytes of the file and the virtual address that they are mapped at.
#[derive(Clone, Copy, Debug)]
pub struct Mapping<'a> {
    /// Virtual address of the first byte.
    pub vaddr: u64,
    /// The bytes.
    pub bytes: &'a [u8],
}

impl<'a> Mapping<'a> {
    /// The bytes at the virtual addresses from `start` to before `end`, if the file has all of them.
    #[must_use]
    pub fn between(&self, start: u64, end: u64) -> Option<&'a [u8]> {
        let from = usize::try_from(start.checked_sub(self.vaddr)?).ok()?;
        let to = usize::try_from(end.checked_sub(self.vaddr)?).ok()?;
        self.bytes.get(from..to)
    }
}

/// A pointer that the loader fills in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pointer<'a> {
    /// To an address in this file.
    Local(u64),
    /// To a symbol of another file.
    Foreign,
    /// Entry of the global offset table for the symbol of this name, in any file.
    Offset(Name<'a>),
}

/// The name of a symbol.
///
/// Only for comparison: a table in which all entries name one huge string would make it slow to find the end of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name<'a> {
    /// To the end of the table.
    from_start: &'a [u8],
}

impl Name<'_> {
    /// Whether it is this one.
    #[must_use]
    pub fn is(&self, name: &str) -> bool {
        self.from_start.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
    }
}

/// Where the loader writes, and what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relocation<'a> {
    /// Virtual address of the pointer.
    pub slot: u64,
    /// Its target.
    pub pointer: Pointer<'a>,
}

impl<'a> ElfFile<'a> {
    /// Parts of the file that are mapped with exactly these rights: executable, or not. `None` where segments overlap
    /// so much that they have more bytes than the file: no linker does that.
    #[must_use]
    pub fn mappings(&self, executable: bool) -> Option<Vec<Mapping<'a>>> {
        let mut room = self.data.len();
        let mut found = Vec::new();
        for segment in self.segments.iter().filter(|segment| segment.p_type(Le) == elf::PT_LOAD) {
            if segment.p_flags(Le).contains(elf::PF_X) != executable {
                continue;
            }
            let Some(start) = usize::try_from(segment.p_offset(Le)).ok().filter(|start| *start < self.data.len())
            else {
                continue;
            };
            let rest = self.data.get(start..)?;
            let len = usize::try_from(segment.p_filesz(Le)).unwrap_or(usize::MAX).min(rest.len());
            room = room.checked_sub(len)?;
            found.push(Mapping { vaddr: segment.p_vaddr(Le), bytes: rest.get(..len)? });
        }
        Some(found)
    }

    /// The relocations of data that point into this file, and those of the global offset table, functions included.
    ///
    /// Packed ones (`DT_RELR`) are not read; libraries that must run on old systems have none.
    pub fn relocations(&self) -> Result<impl Iterator<Item = Relocation<'a>> + use<'a>, ElfError> {
        let (symbols, strings) = (self.symbol_array()?, self.dynamic_strings()?);
        let data = self.relocation_table(elf::DT_RELA, elf::DT_RELASZ)?;
        let calls = self.relocation_table(elf::DT_JMPREL, elf::DT_PLTRELSZ)?;
        let machine = self.machine();
        let name = move |index: u32| {
            let symbol = symbols.get(index as usize)?;
            Some(Name { from_start: strings?.get(symbol.st_name.get(Le) as usize..)? })
        };
        let symbolic = move |index: u32, addend: i64| {
            let symbol = symbols.get(index as usize)?;
            Some(match symbol.st_shndx.get(Le) {
                elf::SHN_UNDEF => Pointer::Foreign,
                _ => Pointer::Local(symbol.st_value.get(Le).wrapping_add_signed(addend)),
            })
        };
        Ok(data.iter().chain(calls).filter_map(move |entry| {
            let (index, addend) = (entry.r_sym(Le, false), entry.r_addend(Le));
            let pointer = match Kind::of(machine, entry.r_type(Le, false))? {
                Kind::Relative => Pointer::Local(addend.cast_unsigned()),
                Kind::Symbolic => symbolic(index, addend)?,
                Kind::Slot => Pointer::Offset(name(index)?),
            };
            Some(Relocation { slot: entry.r_offset(Le), pointer })
        }))
    }

    /// `PT_GNU_EH_FRAME`: the unwinder's table of functions, sorted by address.
    #[must_use]
    pub fn unwind_table(&self) -> Option<Mapping<'a>> {
        let segment = self.segments.iter().find(|segment| segment.p_type(Le) == elf::PT_GNU_EH_FRAME)?;
        let vaddr = segment.p_vaddr(Le);
        let len = usize::try_from(segment.p_memsz(Le)).unwrap_or(usize::MAX);
        Some(Mapping { vaddr, bytes: self.bytes_at(vaddr, len)? })
    }

    fn relocation_table(&self, start: elf::DynamicTag, size: elf::DynamicTag) -> Result<&'a [Rela64<Le>], ElfError> {
        let (Some(vaddr), Some(size)) = (self.dynamic(start)?, self.dynamic(size)?) else {
            return Ok(&[]);
        };
        let bytes = self.bytes_at(vaddr, usize::try_from(size).unwrap_or(usize::MAX)).unwrap_or_default();
        Ok(whole(bytes))
    }

    /// From the start of `.dynsym` to the end of its segment: the number of symbols among the entries does not matter
    /// here.
    fn symbol_array(&self) -> Result<&'a [Sym64<Le>], ElfError> {
        let vaddr = self.dynamic(elf::DT_SYMTAB)?;
        Ok(whole(vaddr.and_then(|vaddr| self.bytes_at(vaddr, usize::MAX)).unwrap_or_default()))
    }
}

/// All whole entries in `bytes`.
fn whole<T: object::pod::Pod>(bytes: &[u8]) -> &[T] {
    object::pod::slice_from_bytes(bytes, bytes.len() / size_of::<T>()).map_or(&[][..], |(entries, _)| entries)
}

enum Kind {
    Relative,
    Symbolic,
    Slot,
}

impl Kind {
    fn of(machine: Machine, kind: elf::RelocationType) -> Option<Self> {
        match (machine, kind) {
            (Machine::X86_64, elf::R_X86_64_RELATIVE) | (Machine::Aarch64, elf::R_AARCH64_RELATIVE) => {
                Some(Self::Relative)
            }
            (Machine::X86_64, elf::R_X86_64_64) | (Machine::Aarch64, elf::R_AARCH64_ABS64) => Some(Self::Symbolic),
            (Machine::X86_64, elf::R_X86_64_GLOB_DAT | elf::R_X86_64_JUMP_SLOT)
            | (Machine::Aarch64, elf::R_AARCH64_GLOB_DAT | elf::R_AARCH64_JUMP_SLOT) => Some(Self::Slot),
            _ => None,
        }
    }
}
