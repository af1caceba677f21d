//! Thunks that hold a copy of a probed function: calls through them pass by its probe.
//!
//! A virtual function that is called by a base class is entered by a thunk, which corrects `this` and jumps to the
//! function. If the function is short the compiler puts a copy of it into the thunk instead, and the function itself
//! may never run.

use super::site;
use crate::os::elf::{ElfFile, Symbol, SymbolKind};

/// Longer thunks hold a copy: those that jump take a few instructions. A copy may jump to code of its own, outside of it.
const MAX_JUMPING_BYTES: u64 = 32;

/// Names of the thunks of a function, by its mangled name and its place in the file, that do not lead to it.
pub(crate) fn copies(elf: &ElfFile<'_>, name: &str, file_offset: u64) -> Vec<String> {
    let Some(encoding) = name.strip_prefix("_Z").filter(|encoding| encoding.starts_with('N')) else {
        return Vec::new();
    };
    let thunks = || elf.symbols().into_iter().flatten().filter(|symbol| is_thunk(symbol, encoding));
    if thunks().next().is_none() {
        return Vec::new();
    }
    let functions: Vec<u64> =
        elf.symbols().into_iter().flatten().filter(is_function).map(|symbol| symbol.vaddr).collect();
    let leads_there = |thunk: &Symbol<'_>| {
        let bytes = elf.bytes_at(thunk.vaddr, thunk.size_bytes.min(MAX_JUMPING_BYTES) as usize).unwrap_or_default();
        let mut targets = site::jumps(elf.machine(), thunk.vaddr, bytes).into_iter();
        // A stub of the linker's stands for the function that it leads to; in a thunk there is no other.
        let is_stub = |target: u64| {
            let within = target.wrapping_sub(thunk.vaddr) < thunk.size_bytes;
            !within && !functions.contains(&target)
        };
        targets.any(|target| elf.file_offset(target) == Some(file_offset) || is_stub(target))
    };
    let mut found: Vec<String> = thunks()
        .filter(|thunk| thunk.size_bytes > MAX_JUMPING_BYTES || !leads_there(thunk))
        .map(|thunk| String::from_utf8_lossy(thunk.name).into_owned())
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn is_function(symbol: &Symbol<'_>) -> bool {
    symbol.defined && symbol.kind == SymbolKind::Function
}

/// `_ZThn16_…`, `_ZTv0_n64_…`, `_ZTc…` before the function's own name.
fn is_thunk(symbol: &Symbol<'_>, encoding: &str) -> bool {
    let offsets = symbol.name.strip_suffix(encoding.as_bytes());
    let is_one = |offsets: &[u8]| {
        let starts = [b"_ZTh".as_slice(), b"_ZTv", b"_ZTc"];
        starts.iter().any(|start| offsets.starts_with(start)) && offsets.ends_with(b"_")
    };
    is_function(symbol) && symbol.size_bytes != 0 && offsets.is_some_and(is_one)
}
