//! Operators of CANN's library by the address that calls what runs them: it lies in the function of the operator's name.

use std::{
    collections::HashMap,
    ffi::OsStr,
    fs::File,
    io::{self, Read as _},
    os::unix::ffi::OsStrExt as _,
    path::Path,
};

use crate::os::{
    elf::{ElfFile, SymbolKind},
    mapped,
    maps::{self, FileId},
};

/// Most known callers; further ones are not kept.
const MAX_KNOWN: usize = 65_536;
/// Most files read.
const MAX_FILES: usize = 256;
/// Larger files are not read.
const MAX_FILE_BYTES: u64 = 1 << 30;
/// Bytes read before the next sign of life.
const STEP_BYTES: u64 = 16 << 20;
/// What operators are called.
const PREFIX: &[u8] = b"aclnn";

/// An operator's function: where in the file it begins, its bytes, its name.
type Function = (u64, u64, String);

/// Operators of a process.
#[derive(Default)]
pub(super) struct Callers {
    known: HashMap<u64, Option<String>>,
    /// They stay open, so that no later file gets the inode of one.
    files: HashMap<FileId, (File, Vec<Function>)>,
}

impl Callers {
    /// The operator that calls from the instruction before this address. `live` is called now and then while files are
    /// read.
    pub(super) fn name(&mut self, pid: u32, caller: u64, live: &mut dyn FnMut()) -> Option<String> {
        if let Some(name) = self.known.get(&caller) {
            return name.clone();
        }
        let name = match self.find(pid, caller.checked_sub(1)?, live) {
            // The mapping changed after its line was read: the next time is another one.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            found => found.unwrap_or_default(),
        };
        if self.known.len() < MAX_KNOWN {
            self.known.insert(caller, name.clone());
        }
        name
    }

    fn find(&mut self, pid: u32, address: u64, live: &mut dyn FnMut()) -> io::Result<Option<String>> {
        let text = maps::read(pid)?;
        let lines = maps::lines(&text);
        let found = lines.into_iter().find(|found| found.executable && (found.start..found.end).contains(&address));
        let Some(found) = found.filter(|found| found.id.inode != 0) else { return Ok(None) };
        if !self.files.contains_key(&found.id) {
            if self.files.len() >= MAX_FILES {
                return Ok(None);
            }
            let path = Path::new(OsStr::from_bytes(found.name));
            let file = mapped::open(pid, &maps::plain_range(found.range), path, found.id)?;
            let bytes = read(&file, live)?;
            self.files.insert(found.id, (file, functions(&bytes)));
        }
        let offset = address - found.start + found.file_offset;
        Ok(self.files.get(&found.id).and_then(|(_, functions)| function_at(functions, offset)))
    }
}

fn read(file: &File, live: &mut dyn FnMut()) -> io::Result<Vec<u8>> {
    if file.metadata()?.len() > MAX_FILE_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut bytes = Vec::new();
    while file.take(STEP_BYTES).read_to_end(&mut bytes)? > 0 && bytes.len() as u64 <= MAX_FILE_BYTES {
        live();
    }
    Ok(bytes)
}

/// Operators in a file, by where they begin.
fn functions(bytes: &[u8]) -> Vec<Function> {
    let Ok(elf) = ElfFile::parse(bytes) else { return Vec::new() };
    let Ok(symbols) = elf.symbols() else { return Vec::new() };
    let operators = symbols
        .filter(|symbol| symbol.defined && symbol.kind == SymbolKind::Function && symbol.name.starts_with(PREFIX));
    let mut functions: Vec<Function> = operators
        .filter_map(|symbol| {
            let name = String::from_utf8(symbol.name.to_vec()).ok()?;
            Some((elf.file_offset(symbol.vaddr)?, symbol.size_bytes, name))
        })
        .collect();
    functions.sort();
    functions
}

fn function_at(functions: &[Function], offset: u64) -> Option<String> {
    let above = functions.partition_point(|(start, ..)| *start <= offset);
    let (start, size_bytes, name) = functions.get(above.checked_sub(1)?)?;
    (offset - start < *size_bytes).then(|| name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_belong_to_functions() {
        let functions = [(0x100, 0x40, "aclnnAdd".to_owned()), (0x200, 0x10, "aclnnMul".to_owned())];
        let at = |offset| function_at(&functions, offset);
        assert_eq!(at(0xff), None);
        assert_eq!(at(0x100).as_deref(), Some("aclnnAdd"));
        assert_eq!(at(0x13f).as_deref(), Some("aclnnAdd"));
        assert_eq!(at(0x140), None, "between two functions");
        assert_eq!(at(0x20f).as_deref(), Some("aclnnMul"));
        assert_eq!(at(0x210), None);
    }

    /// Functions mapped in this process are found; addresses without code are not.
    #[test]
    fn operators_of_a_process() {
        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn aclnnOfThisTest() -> u64 {
            std::hint::black_box(7)
        }
        let mut callers = Callers::default();
        let mut lives = 0;
        let inside = (aclnnOfThisTest as *const ()).addr() as u64 + 1;
        assert_eq!(aclnnOfThisTest(), 7);
        let found = callers.name(std::process::id(), inside, &mut || lives += 1);
        assert_eq!(found.as_deref(), Some("aclnnOfThisTest"));
        assert!(lives > 0);
        assert_eq!(callers.name(std::process::id(), (&raw const lives).addr() as u64, &mut || ()), None);
        assert_eq!(callers.name(std::process::id(), 0, &mut || ()), None);
    }
}
