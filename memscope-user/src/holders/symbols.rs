//! Data symbols of a mapped file: what globals are called. Reads headers and symbol tables alone, since libraries have
//! hundreds of MiB.

use std::io::{Read, Seek};

use object::{
    LittleEndian as Le, elf,
    elf::{FileHeader64, SectionHeader64, Sym64},
    read::{
        ReadCache, ReadRef,
        elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _, Sym as _},
    },
};

use super::source::PAGE;

/// Larger tables are not read.
const MAX_TABLE_BYTES: u64 = 256 << 20;
/// More symbols of a file are not kept.
const MAX_SYMBOLS: usize = 1 << 20;
/// Longer names are cut.
const MAX_NAME: usize = 1024;

/// Functions that are kept as well: that of debug builds of `CPython`.
const FUNCTIONS: [&str; 1] = [DEBUG_PYTHON];
pub(super) const DEBUG_PYTHON: &str = "_Py_NegativeRefcount";

/// A variable.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Symbol {
    /// As the file states it.
    pub(super) vaddr: u64,
    pub(super) size_bytes: u64,
    pub(super) name: Box<str>,
}

/// A file's description of its data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Symbols {
    /// By address.
    pub(super) objects: Vec<Symbol>,
    /// Address of its first page, as the file states it.
    pub(super) first_vaddr: u64,
    /// Behind its last byte, data that starts as zeros included.
    pub(super) end_vaddr: u64,
}

impl Symbols {
    /// Reads a file.
    pub(super) fn of_file(file: impl Read + Seek) -> Option<Self> {
        let cache = ReadCache::new(file);
        let header = FileHeader64::<Le>::parse(&cache).ok()?;
        if header.e_ident().data != elf::ELFDATA2LSB {
            return None;
        }
        let segments = header.program_headers(Le, &cache).ok()?;
        let loaded = || segments.iter().filter(|segment| segment.p_type(Le) == elf::PT_LOAD);
        let first_vaddr = loaded().next()?.p_vaddr(Le) & !(PAGE - 1);
        let end_vaddr = loaded().map(|segment| segment.p_vaddr(Le).saturating_add(segment.p_memsz(Le))).max()?;
        let mut objects = Vec::new();
        if let Ok(sections) = header.section_headers(Le, &cache) {
            for section in sections {
                if matches!(section.sh_type(Le), elf::SHT_DYNSYM | elf::SHT_SYMTAB) {
                    read_table(&cache, sections, section, &mut objects);
                }
            }
        }
        objects.sort_unstable();
        objects.dedup();
        Some(Self { objects, first_vaddr, end_vaddr })
    }

    /// The address of a variable, as the file states it.
    pub(super) fn vaddr_of(&self, name: &str) -> Option<u64> {
        self.objects.iter().find(|symbol| &*symbol.name == name).map(|symbol| symbol.vaddr)
    }

    /// The variable at an address, and the offset in it.
    pub(super) fn at(&self, vaddr: u64) -> Option<(&Symbol, u64)> {
        let behind = self.objects.partition_point(|symbol| symbol.vaddr <= vaddr);
        let symbol = self.objects.get(behind.checked_sub(1)?)?;
        let into = vaddr - symbol.vaddr;
        (into < symbol.size_bytes.max(8)).then_some((symbol, into))
    }
}

fn read_table<'a, R: ReadRef<'a>>(
    file: R,
    sections: &'a [SectionHeader64<Le>],
    section: &'a SectionHeader64<Le>,
    objects: &mut Vec<Symbol>,
) {
    let Some(strings) = sections.get(section.sh_link(Le) as usize) else { return };
    if section.sh_size(Le) > MAX_TABLE_BYTES || strings.sh_size(Le) > MAX_TABLE_BYTES {
        return;
    }
    let symbols: Result<&[Sym64<Le>], _> = section.data_as_array(Le, file);
    let (Ok(symbols), Ok(strings)) = (symbols, strings.data(Le, file)) else { return };
    let defined = symbols.iter().filter(|symbol| symbol.st_shndx(Le) != elf::SHN_UNDEF);
    let wanted = defined.filter(|symbol| matches!(symbol.st_type(), elf::STT_OBJECT | elf::STT_FUNC));
    let named = wanted.filter_map(|symbol| {
        let name = name(strings, symbol.st_name(Le) as usize)?;
        let is_kept = if symbol.st_type() == elf::STT_FUNC { FUNCTIONS.contains(&name) } else { !is_of_compiler(name) };
        if !is_kept {
            return None;
        }
        Some(Symbol { vaddr: symbol.st_value(Le), size_bytes: symbol.st_size(Le), name: name.into() })
    });
    let room = MAX_SYMBOLS.saturating_sub(objects.len());
    objects.extend(named.take(room));
}

fn name(strings: &[u8], at: usize) -> Option<&str> {
    let rest = strings.get(at..)?;
    let rest = rest.get(..MAX_NAME).unwrap_or(rest);
    let end = rest.iter().position(|byte| *byte == 0)?;
    str::from_utf8(&rest[..end]).ok().filter(|name| !name.is_empty())
}

/// Tables of virtual functions and descriptions of types: no variables of the program.
fn is_of_compiler(name: &str) -> bool {
    name.starts_with("_ZT")
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Cursor};

    use super::*;

    /// A library's variables are found by name and by address, and the bytes in between belong to none of them.
    #[test]
    fn variables_of_libc() {
        let paths = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib/aarch64-linux-gnu/libc.so.6", "/lib64/libc.so.6"];
        let file = paths.iter().find_map(|path| File::open(path).ok()).expect("a C library");
        let symbols = Symbols::of_file(file).expect("an ELF file");
        // Both are words, as their manual pages document.
        for name in ["stdin", "environ"] {
            let vaddr = symbols.vaddr_of(name).expect(name);
            assert!(symbols.first_vaddr < vaddr && vaddr + 8 <= symbols.end_vaddr);
            let (symbol, into) = symbols.at(vaddr + 7).expect(name);
            assert_eq!((symbol.vaddr, symbol.size_bytes, into), (vaddr, 8, 7));
        }
        assert_eq!(symbols.vaddr_of("no such variable"), None);
        assert_eq!(symbols.at(symbols.end_vaddr + 4096), None);
    }

    #[test]
    fn other_bytes_are_no_file() {
        for bytes in [&b""[..], b"\x7fELF", &[0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0]] {
            assert_eq!(Symbols::of_file(Cursor::new(bytes)), None);
        }
    }
}
