//! Stacks that rows refer to by number: in a file beside a CSV dump, or in a table of a database.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::csv;
use crate::dump_format::stack_cell::{Reference, parse, table_name};
use crate::error_chain;
use crate::hash::HashMap;
use crate::model::{Kept, Stack};

/// Most numbers kept; rows that refer to further ones have no stack, which is noted.
const MAX_STACKS: usize = 4 << 20;

/// The stacks of one dump. A file of them is read when the first row refers to one.
#[derive(Debug, Default)]
pub(super) struct StackTable {
    path: Option<PathBuf>,
    read: OnceLock<Stacks>,
}

/// The contents of a table, as far as readable.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    by_number: HashMap<u32, Option<Stack>>,
    fault: Option<String>,
}

impl StackTable {
    /// Of a CSV dump.
    pub(super) fn beside(dump: &Path) -> Self {
        let name = dump.file_name().map(|name| table_name(&name.to_string_lossy()));
        Self { path: name.map(|name| dump.with_file_name(name)), read: OnceLock::new() }
    }

    /// Of a table that was read.
    pub(super) fn of(stacks: Stacks) -> Self {
        Self { path: None, read: OnceLock::from(stacks) }
    }

    /// The stack that a row refers to, or why it is not known.
    pub(super) fn find(&self, Reference(number): Reference, kept: &Kept) -> Result<Option<Stack>, String> {
        let stacks =
            self.read.get_or_init(|| self.path.as_deref().map(|path| Stacks::read(path, kept)).unwrap_or_default());
        stacks.by_number.get(&number).copied().ok_or_else(|| match (&stacks.fault, &self.path) {
            (Some(fault), _) => fault.clone(),
            (None, Some(path)) => format!("`{}` has no #{number}", path.display()),
            (None, None) => format!("there is no #{number}"),
        })
    }
}

impl Stacks {
    fn read(path: &Path, kept: &Kept) -> Self {
        let mut stacks = Self::default();
        let read = csv::stacks(path, |key, cell| stacks.add(key, cell, kept));
        stacks.fault = read.err().map(|error| error_chain(&error));
        stacks
    }

    /// Takes a row of a table. The first of a number counts.
    pub(super) fn add(&mut self, key: &str, cell: &str, kept: &Kept) {
        let Some(Reference(number)) = Reference::parse(key) else { return };
        if self.by_number.len() < MAX_STACKS {
            self.by_number.entry(number).or_insert_with(|| parse(cell, kept));
        }
    }
}
