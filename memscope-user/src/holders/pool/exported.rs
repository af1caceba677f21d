//! Variables that libraries export.

use crate::holders::source::{Mapping, Source};

/// How the name of a library's file begins, and the variable in it.
pub(super) type Exported = (&'static str, &'static str);

/// The first mappings of libraries that may have one of these.
pub(super) fn libraries<'a>(source: &'a dyn Source, variables: &'a [Exported]) -> impl Iterator<Item = &'a Mapping> {
    let files = source.mappings().iter().filter(|mapping| mapping.is_file() && mapping.file_offset == 0);
    files.filter(|mapping| variables.iter().any(|(library, _)| mapping.file_name().starts_with(library)))
}

/// The address of the first one that is there.
pub(super) fn variable(source: &dyn Source, variables: &[Exported]) -> Option<u64> {
    let mut found = libraries(source, variables).filter_map(|mapping| {
        let symbols = source.symbols(mapping)?;
        let vaddr = variables.iter().find_map(|(_, variable)| symbols.vaddr_of(variable))?;
        Some(mapping.start.wrapping_sub(symbols.first_vaddr).wrapping_add(vaddr))
    });
    found.next()
}
