//! Calls of a class's virtual functions, found by the type information that C++ needs at run time.
//!
//! A class is found by its name: the name is text in the file, the type information has a pointer to it at its second
//! word, and the table of virtual functions a pointer to the type information just before its first function.

use std::collections::{BTreeMap, HashSet};

use memchr::memmem;

use super::{
    code::Code,
    functions::{Function, Functions},
    op::Flow,
};
use crate::os::elf::{ElfFile, dynamic::Pointer};

/// More virtual functions than any class of interest has.
const MAX_SLOTS: u64 = 64;
/// Most code decoded on the way down: some thirty times the observed amount.
const MAX_DECODED: u64 = 16 << 20;
/// Most same-named types and tables that are tried; a class has one of each.
const MAX_PLACES: usize = 8;

/// The table of the class called `name`, as C++ mangles it, entry by entry; `None` for functions of other files. Empty where
/// there is no such class.
pub(super) fn table(elf: &ElfFile<'_>, functions: &Functions<'_>, name: &str) -> Vec<Option<Function>> {
    let texts = places_of(elf, name);
    let types: Vec<u64> = pointers_to(elf, &texts).map(|slot| slot.wrapping_sub(8)).collect();
    let tables: Vec<u64> = pointers_to(elf, &types).map(|slot| slot.wrapping_add(8)).collect();
    tables.into_iter().map(|table| slots(elf, functions, table)).max_by_key(Vec::len).unwrap_or_default()
}

/// All functions that `roots` lead to by direct calls, in at most `depth` steps; `None` beyond the limit.
pub(super) fn reached(
    code: &Code<'_>,
    functions: &Functions<'_>,
    roots: &[Function],
    depth: usize,
) -> Option<HashSet<Function>> {
    let mut seen: HashSet<Function> = roots.iter().copied().collect();
    let mut edge: Vec<Function> = seen.iter().copied().collect();
    let mut room = MAX_DECODED;
    for _ in 0..depth {
        let mut next = Vec::new();
        for function in edge {
            room = room.checked_sub(function.end - function.start)?;
            next.extend(callees(code, functions, function).into_iter().filter(|callee| seen.insert(*callee)));
        }
        edge = next;
    }
    Some(seen)
}

/// Calls, and jumps out of the function: tail calls and the parts that the compiler moved away.
fn callees(code: &Code<'_>, functions: &Functions<'_>, function: Function) -> Vec<Function> {
    let ops = code.ops(function);
    let targets = ops.iter().filter_map(|op| match op.flow {
        Flow::Call(target) => target,
        Flow::Jump(target) | Flow::Branch(target) => Some(target),
        Flow::Next | Flow::Leave => None,
    });
    let outside: HashSet<u64> = targets.filter(|target| !function.contains(*target)).collect();
    outside.into_iter().filter_map(|target| functions.containing(target)).collect()
}

/// Up to the first word that is no pointer to a function: the next object begins there.
fn slots(elf: &ElfFile<'_>, functions: &Functions<'_>, table: u64) -> Vec<Option<Function>> {
    let near = elf.relocations().ok().into_iter().flatten().filter_map(|relocation| {
        let at = relocation.slot.checked_sub(table).filter(|at| *at < 8 * MAX_SLOTS)?;
        Some((at, relocation.pointer))
    });
    let pointers: BTreeMap<u64, Pointer<'_>> = near.collect();
    let entries = (0..8 * MAX_SLOTS).step_by(8).map_while(|at| match pointers.get(&at)? {
        Pointer::Local(address) => functions.starting(*address).map(Some),
        Pointer::Foreign => Some(None),
        Pointer::Offset(_) => None,
    });
    entries.collect()
}

/// Where pointers to one of `targets` are.
fn pointers_to(elf: &ElfFile<'_>, targets: &[u64]) -> impl Iterator<Item = u64> {
    let relocations = elf.relocations().ok().into_iter().flatten();
    let hits = relocations
        .filter(|relocation| matches!(relocation.pointer, Pointer::Local(address) if targets.contains(&address)));
    hits.map(|relocation| relocation.slot).take(MAX_PLACES)
}

/// Virtual addresses of the text `name`, whole.
fn places_of(elf: &ElfFile<'_>, name: &str) -> Vec<u64> {
    let text = [b"\0", name.as_bytes(), b"\0"].concat();
    let finder = memmem::Finder::new(&text);
    let mappings = [false, true].into_iter().filter_map(|executable| elf.mappings(executable)).flatten();
    let places = mappings.flat_map(|mapping| {
        let hits = finder.find_iter(mapping.bytes).take(MAX_PLACES);
        hits.map(|at| mapping.vaddr.wrapping_add(at as u64 + 1)).collect::<Vec<_>>()
    });
    places.take(MAX_PLACES).collect()
}
