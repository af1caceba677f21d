//! Reads of an ELF file only what attaching needs: machine, function symbols, file offsets, build-id, loader, soname.
//!
//! The file belongs to the traced program and is hostile input: no bytes cause a panic here, and memory stays bounded
//! by the number of requested names, whatever the tables in the file claim.

pub mod dynamic;

use std::collections::{HashMap, HashSet};

use object::LittleEndian as Le;
use object::elf::{self, Dyn64, FileHeader64, ProgramHeader64, SectionHeader64, Sym64};
use object::read::elf::{Dyn as _, FileHeader as _, GnuHashTable, HashTable, NoteIterator, ProgramHeader as _};
use object::read::elf::{SectionHeader as _, Sym as _};
use thiserror::Error;

/// Longest path, soname or symbol name that is read; strings beyond are never walked.
const MAX_STRING: usize = 4096;

/// Longest build-id, a SHA-512; a longer one counts as none.
const MAX_BUILD_ID: usize = 64;

/// Most addresses of one name. Versioned names (`memcpy@GLIBC_2.14` beside `@GLIBC_2.2.5`) have two or three; a file
/// with thousands would get thousands of breakpoints.
const MAX_PER_NAME: usize = 16;

/// Why a file could not be read.
#[derive(Debug, Error)]
pub enum ElfError {
    /// Too short, or without the magic number.
    #[error("not an ELF file ({len} bytes)")]
    NotElf {
        /// Given length.
        len: usize,
    },
    /// 32-bit or big-endian.
    #[error(
        "unsupported ELF class {class} with byte order {order}, expected class 2 (64 bits) with order 1 (little-endian)"
    )]
    Unsupported {
        /// `EI_CLASS`.
        class: u8,
        /// `EI_DATA`.
        order: u8,
    },
    /// A table lies outside the file or contradicts itself.
    #[error("malformed ELF {part}")]
    Malformed {
        /// Which part.
        part: &'static str,
        /// The reader's error.
        source: object::read::Error,
    },
    /// A string is too long, unterminated or no UTF-8.
    #[error("unusable ELF {part}: expected UTF-8 that ends within {MAX_STRING} bytes")]
    BadString {
        /// Which string.
        part: &'static str,
    },
}

fn malformed(part: &'static str) -> impl Fn(object::read::Error) -> ElfError {
    move |source| ElfError::Malformed { part, source }
}

/// The instruction set of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Machine {
    /// 64-bit x86.
    X86_64,
    /// 64-bit Arm.
    Aarch64,
    /// Any other, as its `e_machine` number.
    Other(u16),
}

/// Kinds of symbols, as far as probing needs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SymbolKind {
    /// A function called by this name.
    Function,
    /// A resolver that the loader runs once to choose an implementation (`STT_GNU_IFUNC`). Its address is the
    /// resolver's, so a probe there would see the loader and never a call: never probed.
    Ifunc,
    /// Data, sections, files, thread-local variables.
    Other,
}

/// One entry of `.dynsym` or `.symtab`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// As stored, without version; empty where the file's name does not end within bounds.
    pub name: &'a [u8],
    /// Virtual address as stated in the file, before relocation.
    pub vaddr: u64,
    /// Size in bytes; 0 where the file does not have it (hand-written assembler).
    pub size_bytes: u64,
    /// Its kind.
    pub kind: SymbolKind,
    /// False for imports.
    pub defined: bool,
    /// Other files cannot mean it.
    pub local: bool,
}

/// A function found by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The requested name.
    pub name: String,
    /// Virtual address as stated in the file.
    pub vaddr: u64,
    /// File offset of its first byte; the kernel wants this for a uprobe.
    pub file_offset: u64,
    /// Size in bytes; 0 where the file does not have it.
    pub size_bytes: u64,
    /// The nearest function symbol above `vaddr`, if any. Lies inside the function when that has a second entry.
    pub next_vaddr: Option<u64>,
}

/// Finds the functions called `names` in the ELF file `bytes`; see [`ElfFile::resolve`].
pub fn resolve(bytes: &[u8], names: &[&str]) -> Result<Vec<Resolved>, ElfError> {
    ElfFile::parse(bytes)?.resolve(names)
}

/// A parsed 64-bit little-endian ELF file.
#[derive(Clone, Copy, Debug)]
pub struct ElfFile<'a> {
    data: &'a [u8],
    header: &'a FileHeader64<Le>,
    segments: &'a [ProgramHeader64<Le>],
}

/// A symbol table and the strings that it names.
#[derive(Clone, Copy)]
struct Table<'a> {
    symbols: &'a [Sym64<Le>],
    strings: &'a [u8],
}

impl<'a> ElfFile<'a> {
    /// Reads header and segments. Sections may be missing or cut off; only what needs them then fails.
    pub fn parse(data: &'a [u8]) -> Result<Self, ElfError> {
        let (class, order) = match data {
            [0x7f, b'E', b'L', b'F', class, order, ..] => (*class, *order),
            _ => return Err(ElfError::NotElf { len: data.len() }),
        };
        if (class, order) != (2, 1) {
            return Err(ElfError::Unsupported { class, order });
        }
        let header = FileHeader64::<Le>::parse(data).map_err(malformed("header"))?;
        let segments = header.program_headers(Le, data).map_err(malformed("segments"))?;
        Ok(Self { data, header, segments })
    }

    /// Length of the file.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.data.len() as u64
    }

    /// The instruction set.
    #[must_use]
    pub fn machine(&self) -> Machine {
        match self.header.e_machine.get(Le) {
            elf::EM_X86_64 => Machine::X86_64,
            elf::EM_AARCH64 => Machine::Aarch64,
            other => Machine::Other(other.0),
        }
    }

    /// Where the byte at `vaddr` lies in the file, by `PT_LOAD`: sections are for linkers, and the kernel maps segments.
    #[must_use]
    pub fn file_offset(&self, vaddr: u64) -> Option<u64> {
        self.segment(vaddr).map(|(_, offset, _)| offset)
    }

    /// The bytes of the file from `vaddr` on, at most `max_len` and never past the end of the segment.
    #[must_use]
    pub fn bytes_at(&self, vaddr: u64, max_len: usize) -> Option<&'a [u8]> {
        let (_, offset, room) = self.segment(vaddr)?;
        let start = usize::try_from(offset).ok()?;
        let len = max_len.min(usize::try_from(room).unwrap_or(usize::MAX));
        let rest = self.data.get(start..)?;
        rest.get(..len.min(rest.len()))
    }

    /// The segment that maps `vaddr` from the file, the file offset, and the number of bytes after it.
    fn segment(&self, vaddr: u64) -> Option<(&'a ProgramHeader64<Le>, u64, u64)> {
        self.segments.iter().filter(|segment| segment.p_type(Le) == elf::PT_LOAD).find_map(|segment| {
            let into = vaddr.checked_sub(segment.p_vaddr(Le))?;
            let room = segment.p_filesz(Le).checked_sub(into).filter(|room| *room > 0)?;
            Some((segment, segment.p_offset(Le).checked_add(into)?, room))
        })
    }

    /// Offset in the file and address of every executable segment.
    #[must_use]
    pub fn executable_segments(&self) -> Vec<(u64, u64)> {
        let loaded = self.segments.iter().filter(|segment| segment.p_type(Le) == elf::PT_LOAD);
        let executable = loaded.filter(|segment| segment.p_flags(Le).contains(elf::PF_X));
        executable.map(|segment| (segment.p_offset(Le), segment.p_vaddr(Le))).collect()
    }

    /// Constants of the file: sections, or without these segments, that are mapped and neither code nor writable.
    pub fn constants(&self) -> Result<Vec<&'a [u8]>, ElfError> {
        let sections = self.header.section_headers(Le, self.data).map_err(malformed("sections"))?;
        let constant = |section: &&SectionHeader64<Le>| {
            let flags = section.sh_flags(Le);
            section.sh_type(Le) == elf::SHT_PROGBITS
                && flags.contains(elf::SHF_ALLOC)
                && !flags.contains(elf::SHF_WRITE)
                && !flags.contains(elf::SHF_EXECINSTR)
        };
        let found: Vec<_> =
            sections.iter().filter(constant).filter_map(|section| section.data(Le, self.data).ok()).collect();
        if !found.is_empty() {
            return Ok(found);
        }
        let loaded = self
            .segments
            .iter()
            .filter(|segment| segment.p_type(Le) == elf::PT_LOAD && !segment.p_flags(Le).contains(elf::PF_W));
        Ok(loaded.filter_map(|segment| segment.data(Le, self.data).ok()).collect())
    }

    /// The GNU build-id, from the note segments: they survive `strip` and are mapped at run time.
    #[must_use]
    pub fn build_id(&self) -> Option<&'a [u8]> {
        let notes = |segment: &'a ProgramHeader64<Le>| segment.notes(Le, self.data).ok().flatten();
        self.segments.iter().filter_map(notes).find_map(gnu_build_id)
    }

    /// Path of the dynamic loader (`PT_INTERP`), if the file names one.
    pub fn interpreter(&self) -> Result<Option<&'a str>, ElfError> {
        let Some(segment) = self.segments.iter().find(|segment| segment.p_type(Le) == elf::PT_INTERP) else {
            return Ok(None);
        };
        let bytes = segment.data(Le, self.data).map_err(|()| ElfError::BadString { part: "interpreter" })?;
        text(bytes, "interpreter").map(Some)
    }

    /// `DT_SONAME`, if the file has one.
    pub fn soname(&self) -> Result<Option<&'a str>, ElfError> {
        let Some(offset) = self.dynamic(elf::DT_SONAME)? else {
            return Ok(None);
        };
        let strings = self.dynamic_strings()?.unwrap_or_default();
        let tail = usize::try_from(offset).ok().and_then(|offset| strings.get(offset..)).unwrap_or_default();
        text(tail, "soname").map(Some)
    }

    /// All entries of `.dynsym`, then of `.symtab`.
    pub fn symbols(&self) -> Result<impl Iterator<Item = Symbol<'a>> + use<'a>, ElfError> {
        let entries = |table: Table<'a>| table.symbols.iter().map(move |entry| symbol(entry, table.strings));
        Ok(self.tables()?.into_iter().flatten().flat_map(entries))
    }

    /// Finds the functions called `names`: defined, mapped executable from the file, and no [`SymbolKind::Ifunc`].
    ///
    /// A name may have several addresses (symbol versions) or none; the order is that of the tables. Names are read in
    /// one pass, so thousands of them cost little more than one.
    pub fn resolve(&self, names: &[&str]) -> Result<Vec<Resolved>, ElfError> {
        self.resolve_such(names, |_| true)
    }

    /// The same for functions without linkage: `static` ones, in files that have not been stripped of them.
    pub fn resolve_local(&self, names: &[&str]) -> Result<Vec<Resolved>, ElfError> {
        self.resolve_such(names, |symbol| symbol.local)
    }

    fn resolve_such(&self, names: &[&str], such: impl Fn(&Symbol<'a>) -> bool) -> Result<Vec<Resolved>, ElfError> {
        let mut wanted: HashMap<&[u8], usize> = names.iter().map(|name| (name.as_bytes(), 0)).collect();
        let mut seen = HashSet::new();
        let mut found = Vec::new();
        let is_wanted = |symbol: &Symbol<'a>| symbol.defined && symbol.kind == SymbolKind::Function && such(symbol);
        for symbol in self.symbols()?.filter(is_wanted) {
            let Some((name, count)) = wanted.get_key_value(symbol.name).map(|(name, count)| (*name, *count)) else {
                continue;
            };
            let Some(resolved) = self.resolved(&symbol) else {
                continue;
            };
            if count < MAX_PER_NAME && seen.insert((name, symbol.vaddr)) {
                wanted.insert(name, count + 1);
                found.push(resolved);
            }
        }
        self.fill_next(&mut found)?;
        Ok(found)
    }

    fn resolved(&self, symbol: &Symbol<'a>) -> Option<Resolved> {
        let (segment, file_offset, _) = self.segment(symbol.vaddr)?;
        let executable = segment.p_flags(Le).contains(elf::PF_X) && (file_offset as usize) < self.data.len();
        executable.then(|| Resolved {
            name: String::from_utf8_lossy(symbol.name).into_owned(),
            vaddr: symbol.vaddr,
            file_offset,
            size_bytes: symbol.size_bytes,
            next_vaddr: None,
        })
    }

    /// A second pass without names, because the tables are not sorted by address.
    fn fill_next(&self, found: &mut [Resolved]) -> Result<(), ElfError> {
        let mut starts: Vec<u64> = found.iter().map(|resolved| resolved.vaddr).collect();
        starts.sort_unstable();
        starts.dedup();
        let mut nearest = vec![u64::MAX; starts.len()];
        for symbol in self.symbols()?.filter(|symbol| symbol.defined && symbol.kind != SymbolKind::Other) {
            let above = starts.partition_point(|start| *start < symbol.vaddr);
            if let Some(slot) = above.checked_sub(1).and_then(|below| nearest.get_mut(below)) {
                *slot = symbol.vaddr.min(*slot);
            }
        }
        for resolved in found {
            let index = starts.partition_point(|start| *start < resolved.vaddr);
            resolved.next_vaddr = nearest.get(index).copied().filter(|next| *next != u64::MAX);
        }
        Ok(())
    }

    fn tables(&self) -> Result<[Option<Table<'a>>; 2], ElfError> {
        let sections = self.header.section_headers(Le, self.data).map_err(malformed("sections"))?;
        let dynamic = match self.section_table(sections, elf::SHT_DYNSYM)? {
            Some(table) => Some(table),
            // Section headers are optional at run time, and some strippers remove them.
            None => self.loader_table()?,
        };
        Ok([dynamic, self.section_table(sections, elf::SHT_SYMTAB)?])
    }

    fn section_table(
        &self,
        sections: &'a [SectionHeader64<Le>],
        kind: elf::SectionType,
    ) -> Result<Option<Table<'a>>, ElfError> {
        let Some(section) = sections.iter().find(|section| section.sh_type(Le) == kind) else {
            return Ok(None);
        };
        let symbols = section.data_as_array(Le, self.data).map_err(malformed("symbol table"))?;
        let strings = match sections.get(section.sh_link(Le) as usize) {
            Some(strings) => strings.data(Le, self.data).map_err(malformed("symbol names"))?,
            None => &[],
        };
        Ok(Some(Table { symbols, strings }))
    }

    /// The dynamic symbols as the loader finds them, by `PT_DYNAMIC`. Only the hash table has their number.
    fn loader_table(&self) -> Result<Option<Table<'a>>, ElfError> {
        let (Some(vaddr), Some(strings)) = (self.dynamic(elf::DT_SYMTAB)?, self.dynamic_strings()?) else {
            return Ok(None);
        };
        let bytes = self.bytes_at(vaddr, usize::MAX).unwrap_or_default();
        let fitting = bytes.len() / size_of::<Sym64<Le>>();
        let count = self.hashed_symbols()?.min(fitting);
        let symbols = object::pod::slice_from_bytes(bytes, count).map_or(&[][..], |(symbols, _)| symbols);
        Ok(Some(Table { symbols, strings }))
    }

    fn hashed_symbols(&self) -> Result<usize, ElfError> {
        let table = |tag| -> Result<&'a [u8], ElfError> {
            Ok(self.dynamic(tag)?.and_then(|vaddr| self.bytes_at(vaddr, usize::MAX)).unwrap_or_default())
        };
        let gnu = GnuHashTable::<FileHeader64<Le>>::parse(Le, table(elf::DT_GNU_HASH)?);
        if let Some(count) = gnu.ok().and_then(|gnu| gnu.symbol_table_length(Le)) {
            return Ok(count as usize);
        }
        let old = HashTable::<FileHeader64<Le>>::parse(Le, table(elf::DT_HASH)?);
        Ok(old.map_or(0, |old| old.symbol_table_length() as usize))
    }

    /// File offset of code that only the loader runs, when it maps or unmaps the file (`DT_FINI`, `DT_INIT`).
    #[must_use]
    pub fn idle_code(&self) -> Option<u64> {
        let tags = [elf::DT_FINI, elf::DT_INIT];
        let vaddr = tags.into_iter().find_map(|tag| self.dynamic(tag).ok().flatten())?;
        let (segment, offset, _) = self.segment(vaddr)?;
        segment.p_flags(Le).contains(elf::PF_X).then_some(offset)
    }

    fn dynamic_strings(&self) -> Result<Option<&'a [u8]>, ElfError> {
        let size = self.dynamic(elf::DT_STRSZ)?.and_then(|size| usize::try_from(size).ok());
        let vaddr = self.dynamic(elf::DT_STRTAB)?;
        Ok(vaddr.and_then(|vaddr| self.bytes_at(vaddr, size.unwrap_or(usize::MAX))))
    }

    /// The value of the first entry `tag` in `PT_DYNAMIC`.
    fn dynamic(&self, tag: elf::DynamicTag) -> Result<Option<u64>, ElfError> {
        for segment in self.segments {
            if let Some(entries) = segment.dynamic(Le, self.data).map_err(malformed("dynamic segment"))? {
                return Ok(first_value(entries, tag));
            }
        }
        Ok(None)
    }
}

fn first_value(entries: &[Dyn64<Le>], tag: elf::DynamicTag) -> Option<u64> {
    let live = entries.iter().take_while(|entry| entry.tag(Le) != elf::DT_NULL);
    live.into_iter().find(|entry| entry.tag(Le) == tag).map(|entry| entry.val(Le))
}

fn gnu_build_id(mut notes: NoteIterator<'_, FileHeader64<Le>>) -> Option<&[u8]> {
    while let Ok(Some(note)) = notes.next() {
        let id = note.desc();
        if note.name() == elf::ELF_NOTE_GNU && note.n_type(Le) == elf::NT_GNU_BUILD_ID {
            return (1..=MAX_BUILD_ID).contains(&id.len()).then_some(id);
        }
    }
    None
}

fn symbol<'a>(entry: &Sym64<Le>, strings: &'a [u8]) -> Symbol<'a> {
    Symbol {
        name: strings.get(entry.st_name(Le) as usize..).and_then(terminated).unwrap_or_default(),
        vaddr: entry.st_value(Le),
        size_bytes: entry.st_size(Le),
        kind: match entry.st_type() {
            elf::STT_FUNC => SymbolKind::Function,
            elf::STT_GNU_IFUNC => SymbolKind::Ifunc,
            _ => SymbolKind::Other,
        },
        defined: entry.st_shndx(Le) != elf::SHN_UNDEF,
        local: entry.st_bind() == elf::STB_LOCAL,
    }
}

fn text<'a>(bytes: &'a [u8], part: &'static str) -> Result<&'a str, ElfError> {
    let bytes = terminated(bytes).filter(|bytes| !bytes.is_empty());
    bytes.and_then(|bytes| str::from_utf8(bytes).ok()).ok_or(ElfError::BadString { part })
}

/// The bytes before the first NUL. Bounded, or a table of symbols that all name one huge string would cost its square.
fn terminated(bytes: &[u8]) -> Option<&[u8]> {
    let head = bytes.get(..MAX_STRING).unwrap_or(bytes);
    head.iter().position(|byte| *byte == 0).map(|len| &head[..len])
}

#[cfg(test)]
mod tests;
