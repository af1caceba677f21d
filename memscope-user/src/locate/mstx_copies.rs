//! Copies of mstx: programs and libraries that use its headers alone have its functions in them (ascend-abi §5.2).
//!
//! The functions are `static`. If the compiler left them out of line and the file is not stripped, they are local
//! symbols, with the prototypes of the exports. If they are inlined or stripped nothing is left to probe: then `run
//! --mstx-injection` is needed. A clone that the compiler made (`mstxMarkA.constprop.0`) may take other arguments: it
//! is another name, and not probed.

use std::{
    fs::File,
    os::unix::fs::{FileExt as _, MetadataExt as _},
};

use memchr::memmem;

use crate::{
    os::elf::ElfFile,
    probes::{MSTX_TOOL, ProbeSpec},
};

/// Longer tables of names are not searched: those of whole frameworks with debug information, none of which has a copy.
/// Bounds the reading of a mapped file.
const MAX_NAMES_BYTES: u64 = 32 << 20;
/// `e_shoff`, `e_shentsize`, `e_shnum` in a header of 64 bytes.
const SECTIONS_AT: usize = 40;
const SECTION_COUNT_AT: usize = 60;
const SECTION_BYTES: usize = 64;
/// `SHT_SYMTAB`.
const SYMBOL_TABLE: u32 = 2;
/// How each name of mstx begins, as an entry of the table.
const PREFIX: &[u8] = b"\0mstx";
/// What each copy asks the loader for, stripped or not.
const TOOL_ENTRY: &[u8] = b"InitInjectionMstx\0";

/// Whether the row also serves copies.
pub(crate) fn serves(spec: &ProbeSpec) -> bool {
    spec.libraries.contains(&MSTX_TOOL)
}

/// Whether the file may have a copy with symbols. Reads the table of their names alone, and that only if it is there.
pub(crate) fn may_be_in(file: &File) -> bool {
    names(file).is_some_and(|names| memmem::find(&names, PREFIX).is_some())
}

/// Names of the symbols that a stripped file does not have.
fn names(file: &File) -> Option<Vec<u8>> {
    let metadata = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let mut header = [0; 64];
    file.read_exact_at(&mut header, 0).ok()?;
    header.starts_with(b"\x7fELF\x02\x01").then_some(())?;
    let count = usize::from(u16::from_le_bytes(*header.get(SECTION_COUNT_AT..)?.first_chunk()?));
    let mut sections = vec![0; SECTION_BYTES * count];
    file.read_exact_at(&mut sections, long(&header, SECTIONS_AT)?).ok()?;
    let (sections, _) = sections.as_chunks::<SECTION_BYTES>();
    let symbols = sections.iter().find(|section| word(*section, 4) == Some(SYMBOL_TABLE))?;
    let strings = sections.get(word(symbols, 40)? as usize)?;
    let (from, len) = (long(strings, 24)?, long(strings, 32)?);
    (len <= MAX_NAMES_BYTES.min(metadata.size())).then_some(())?;
    let mut names = vec![0; len as usize];
    file.read_exact_at(&mut names, from).ok()?;
    Some(names)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// Whether the file has a copy in any form, by a text that each one contains.
pub(crate) fn is_in(elf: &ElfFile<'_>) -> bool {
    let constants = elf.constants().unwrap_or_default();
    constants.iter().any(|bytes| memmem::find(bytes, TOOL_ENTRY).is_some())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// A header, then the sections: none, symbols that name the third, and that one.
    fn file(names: &[u8]) -> Vec<u8> {
        const AT: u64 = 64 + 3 * 64;
        let mut bytes = vec![0; AT as usize];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[SECTIONS_AT] = 64;
        bytes[SECTION_COUNT_AT] = 3;
        bytes[64 + 64 + 4] = 2; // sh_type
        bytes[64 + 64 + 40] = 2; // sh_link
        bytes[64 + 128 + 24..][..8].copy_from_slice(&AT.to_le_bytes()); // sh_offset
        bytes[64 + 128 + 32..][..8].copy_from_slice(&(names.len() as u64).to_le_bytes()); // sh_size
        bytes.extend(names);
        bytes
    }

    fn may(bytes: &[u8]) -> bool {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(bytes).expect("written");
        may_be_in(&file)
    }

    #[test]
    fn names_of_mstx_are_found() {
        assert!(may(&file(b"\0main\0mstxMarkA\0")));
        assert!(!may(&file(b"\0main\0xmstxMarkA\0")));
        assert!(!may(&file(b"")));
    }

    /// A stripped, truncated or malformed file has none, and reading it ends.
    #[test]
    fn broken_files_have_none() {
        let good = file(b"\0mstxMarkA\0");
        for len in 0..good.len() {
            assert!(!may(&good[..len]), "{len} bytes");
        }
        let with = |at: usize, value: &[u8]| {
            let mut bytes = good.clone();
            bytes[at..at + value.len()].copy_from_slice(value);
            may(&bytes)
        };
        assert!(with(0, b"\x7fELF"));
        assert!(!with(0, b"\x7fELG"));
        assert!(!with(SECTIONS_AT, &[0xff; 8]));
        assert!(!with(SECTION_COUNT_AT, &[0xff; 2]));
        assert!(!with(64 + 64 + 4, &[11])); // SHT_DYNSYM
        assert!(!with(64 + 64 + 40, &[9]));
        assert!(!with(64 + 128 + 24, &[0xff; 8]));
        assert!(!with(64 + 128 + 32, &[0xff; 8]));
        assert!(!may_be_in(&File::open("/").expect("a folder")));
    }

    #[test]
    fn every_row_of_the_library_serves_copies() {
        let served: Vec<&str> = crate::backend::builtin().filter(|spec| serves(spec)).map(|spec| spec.symbol).collect();
        assert_eq!(served.len(), 12);
        assert!(served.contains(&"mstxMarkA") && !served.contains(&"mstx.mark"));
    }
}
