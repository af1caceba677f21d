//! Functions that Python calls in a library: tables of methods, `PyMethodDef { name, function, flags, text }`, with pointers that the loader
//! fills in. They stay in a stripped library.

use memchr::memmem;

use super::{
    Evidence, NotLocated,
    functions::{Function, Functions},
};
use crate::os::elf::{ElfFile, dynamic::Pointer};

/// Layout of `PyMethodDef`, the same in all versions of Python.
pub(super) const ENTRY_BYTES: u64 = 32;
const FUNCTION_AT: u64 = 8;
const FLAGS_AT: u64 = 16;
/// `METH_VARARGS | METH_KEYWORDS`.
pub(super) const WITH_KEYWORDS: [u8; 4] = [3, 0, 0, 0];
/// `METH_VARARGS`.
const WITH_ARGUMENTS: [u8; 4] = [1, 0, 0, 0];
/// `METH_NOARGS`.
const WITHOUT_ARGUMENTS: [u8; 4] = [4, 0, 0, 0];
/// Most places of a text, or of pointers to it, that are tried.
const MAX_PLACES: usize = 256;

/// The tables of a library.
pub(super) struct Tables<'a> {
    elf: &'a ElfFile<'a>,
    pub(super) functions: Functions<'a>,
}

impl<'a> Tables<'a> {
    pub(super) fn of(elf: &'a ElfFile<'a>) -> Result<Self, NotLocated> {
        let functions = Functions::of(elf).ok_or(NotLocated::NoFunctions)?;
        Ok(Self { elf, functions })
    }

    /// The function of the only entry for a method, with a tuple of arguments or without.
    pub(super) fn only(&self, name: &'static str, has_arguments: bool) -> Result<(Function, Evidence), NotLocated> {
        let entries = self.entries(name, if has_arguments { WITH_ARGUMENTS } else { WITHOUT_ARGUMENTS })?;
        let &[(_, function)] = &entries[..] else {
            return Err(NotLocated::Method { method: name, found: entries.len() });
        };
        Ok((function, Evidence::METHOD))
    }

    /// Entries of tables of methods for this name: their addresses and functions.
    pub(super) fn entries(&self, name: &'static str, flags: [u8; 4]) -> Result<Vec<(u64, Function)>, NotLocated> {
        let too_many = || NotLocated::Method { method: name, found: MAX_PLACES };
        let texts = self.places_of(name);
        let named = self.elf.relocations()?.filter(|relocation| match relocation.pointer {
            Pointer::Local(address) => texts.binary_search(&address).is_ok(),
            _ => false,
        });
        let mut candidates: Vec<u64> = named.map(|relocation| relocation.slot).take(MAX_PLACES).collect();
        if candidates.len() == MAX_PLACES || texts.len() == MAX_PLACES {
            return Err(too_many());
        }
        candidates.sort_unstable();
        candidates.dedup();
        let entry = |slot: u64, function: u64| {
            let entry = slot.checked_sub(FUNCTION_AT)?;
            candidates.binary_search(&entry).ok()?;
            let found = self.elf.bytes_at(entry.checked_add(FLAGS_AT)?, flags.len())?;
            (found == flags).then_some((entry, self.functions.starting(function)?))
        };
        let pointers = self.elf.relocations()?.filter_map(|relocation| match relocation.pointer {
            Pointer::Local(address) => entry(relocation.slot, address),
            _ => None,
        });
        Ok(pointers.take(MAX_PLACES).collect())
    }

    /// Virtual addresses of the text `name`, sorted; linkers also use the ends of longer texts.
    fn places_of(&self, name: &str) -> Vec<u64> {
        let text = [name.as_bytes(), b"\0"].concat();
        let finder = memmem::Finder::new(&text);
        let mappings = [false, true].into_iter().filter_map(|executable| self.elf.mappings(executable)).flatten();
        let places = mappings.flat_map(|mapping| {
            let hits = finder.find_iter(mapping.bytes).take(MAX_PLACES);
            hits.map(|at| mapping.vaddr.wrapping_add(at as u64)).collect::<Vec<_>>()
        });
        let mut places: Vec<u64> = places.take(MAX_PLACES).collect();
        places.sort_unstable();
        places
    }
}
