//! Finds functions that a library neither exports nor names, by structure that a compiler cannot leave out.
//!
//! One file per library (`pta`, `mstx`); the others are the tools: `functions` (starts and ends of functions),
//! `methods` (functions that Python calls), `code` with `x86` and `arm` (references), `paths` (what registers hold), `argument`
//! (reads of a function's argument), `vtable` (tables of virtual functions), `object` (their use by a function), `cache` (earlier results).
//!
//! The library belongs to the traced program and is hostile input. No contents cause a panic here, memory stays
//! bounded, and if the answer is not unique there is none: a probe in the wrong function would report nonsense.

mod argument;
mod arm;
mod cache;
mod code;
mod functions;
mod methods;
mod mstx;
mod object;
mod op;
mod paths;
mod pta;
mod vtable;
mod x86;

use std::{cell::OnceCell, fmt};

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use self::cache::Cache;
use self::functions::Function;
use crate::{
    os::elf::{ElfError, ElfFile, Resolved},
    probes::Locator,
};

/// Raised whenever a file could get another answer, so that older ones in the cache are not used.
const VERSION: u32 = 1;

/// Why a function was not found.
#[derive(Debug, Error)]
pub enum NotLocated {
    /// The file's tables are unreadable.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// Another machine, or segments that overlap.
    #[error("no executable segments of x86-64 or aarch64 that could be searched")]
    NoCode,
    /// Not linked with the library that it must use.
    #[error("the library does not import `{symbol}`")]
    NoImport {
        /// The symbol.
        symbol: &'static str,
    },
    /// Linkers make one entry for each symbol.
    #[error("the library imports `{symbol}` more than once")]
    Imports {
        /// The symbol.
        symbol: &'static str,
    },
    /// Without it the starts of functions are unknown.
    #[error("the library has no unwinder's table of functions (PT_GNU_EH_FRAME), or an unusual one")]
    NoFunctions,
    /// Another number of candidates than in all known versions.
    #[error("{found} function(s) refer to the vtable of its data, expected {expected}")]
    References {
        /// Their number.
        found: usize,
        /// In known versions.
        expected: usize,
    },
    /// None or several of the candidates match.
    #[error("its candidates have {found:?} direct callers, expected callers for one and none for the other")]
    Callers {
        /// Of each candidate.
        found: Vec<usize>,
    },
    /// Fewer than the kinds of reports.
    #[error("the candidate has {found} direct caller(s), expected at least {expected}")]
    FewCallers {
        /// Their number.
        found: usize,
        /// At least.
        expected: usize,
    },
    /// The function reads other parts of its argument than it should.
    #[error("cross-check contradicts: {vaddr:#x} reads bytes {} of its argument, expected {}", Bits(*.read), Bits(*.expected))]
    Argument {
        /// The candidate.
        vaddr: u64,
        /// By bit.
        read: u64,
        /// By bit; one more may be read.
        expected: u64,
    },
    /// The class's table is shorter than in all known versions, or has another library's function there.
    #[error("the allocator's table of virtual functions has no function of this library at entry {entry}")]
    NoEntry {
        /// The entry.
        entry: usize,
    },
    /// Nothing in it captures graphs.
    #[error("the library has no functions that capture graphs")]
    NoGraphs,
    /// No entries, or others than in all known versions.
    #[error("graphs use entries {found:?} of the allocator's table for pools of their own, expected three in a row")]
    PoolEntries {
        /// Where a capture begins, where it ends, where a graph is given up.
        found: [Vec<usize>; 3],
    },
    /// No three virtual functions in a row lead to the report of blocks.
    #[error("no three entries in a row of the allocator's table of virtual functions lead to the block report")]
    NoThree,
    /// No two virtual functions in a row read the address of a block and the function that frees it, or several do.
    #[error(
        "{found} pair(s) of entries of the allocator's table of virtual functions take blocks of streams, expected 1"
    )]
    StreamPairs {
        /// Their number.
        found: usize,
    },
    /// The entry is another function.
    #[error(
        "cross-check contradicts: entry {entry} of the allocator's table of virtual functions does not lead to the block report"
    )]
    NotAllocating {
        /// The entry.
        entry: usize,
    },
    /// No table of methods, or several that could be it.
    #[error("{found} entries of the module's table of methods could be `{method}`, expected 1")]
    Method {
        /// The method.
        method: &'static str,
        /// Their number.
        found: usize,
    },
    /// The method begins otherwise than all known ones.
    #[error(
        "the method at {vaddr:#x} does not begin with a call that parses its arguments, or not in a known form; `run --mstx-injection` sees it"
    )]
    Parsing {
        /// The method.
        vaddr: u64,
    },
    /// The function does not belong to what should call it.
    #[error("cross-check contradicts: the allocator's virtual functions do not lead to {vaddr:#x}")]
    Allocator {
        /// The candidate.
        vaddr: u64,
    },
}

/// Bytes by bit, as ranges.
struct Bits(u64);

impl fmt::Display for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = |bit: u32| bit < 64 && self.0 >> bit & 1 == 1;
        let starts: Vec<u32> = (0..64).filter(|bit| set(*bit) && (*bit == 0 || !set(bit - 1))).collect();
        if starts.is_empty() {
            return f.write_str("none");
        }
        for (index, start) in starts.into_iter().enumerate() {
            let end = (start..64).find(|bit| !set(bit + 1)).unwrap_or(start);
            write!(f, "{}{start}-{end}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// Outcome of a cross-check that does not contradict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Checked {
    /// Confirms it.
    Agrees,
    /// The file lacks the data for it.
    NotPossible,
}

/// How a function was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// Found as this entry of the allocator's table of virtual functions; otherwise as the maker of a `MemoryData` that
    /// is called directly.
    pub entry: Option<usize>,
    /// Direct calls of it.
    pub callers: usize,
    /// Whether the allocator's virtual functions lead to it.
    pub allocator: Checked,
    /// Found in an earlier run; the cheap checks were done again.
    pub cached: bool,
    /// What it was found by, if not by the report of blocks.
    pub by: Option<FoundBy>,
}

/// What a function was found by, other than the report of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundBy {
    /// A Python module's table of methods.
    Methods,
    /// Graphs use this entry of the allocator's table.
    Graphs,
    /// What it and the next entry of the allocator's table read of their argument.
    Argument,
}

impl Evidence {
    const NONE: Self = Self { entry: None, callers: 0, allocator: Checked::NotPossible, cached: false, by: None };
    const METHOD: Self = Self { by: Some(FoundBy::Methods), ..Self::NONE };

    /// An entry of the allocator's table.
    const fn entry(entry: usize, by: Option<FoundBy>) -> Self {
        Self { entry: Some(entry), allocator: Checked::Agrees, by, ..Self::NONE }
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.by == Some(FoundBy::Methods) {
            return f.write_str("by the module's table of methods");
        }
        if let Some(entry) = self.entry {
            let agrees = match self.by {
                Some(FoundBy::Graphs) => "graphs use it",
                Some(FoundBy::Argument) => "argument layout; the next entry leads to the block report",
                _ => "leads to the block report",
            };
            return write!(f, "entry {entry} of the allocator's vtable; cross-check: agrees ({agrees})");
        }
        let allocator = match self.allocator {
            Checked::Agrees => "argument layout, allocator's vtable",
            Checked::NotPossible => "argument layout; no allocator's vtable to ask",
        };
        let cached = if self.cached { "; from the cache" } else { "" };
        write!(f, "vtable reference, {} callers; cross-check: agrees ({allocator}){cached}", self.callers)
    }
}

/// A located function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// Where it is.
    pub function: Resolved,
    /// The evidence for it.
    pub evidence: Evidence,
    /// Not the function is to be probed, but this call in it.
    pub call: Option<CallSite>,
}

/// A call inside of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallSite {
    before: Function,
    after: Function,
}

impl CallSite {
    /// Virtual addresses of the instruction before it, with the call's arguments: its start and its end.
    #[must_use]
    pub const fn before(&self) -> (u64, u64) {
        (self.before.start, self.before.end)
    }

    /// The same of an instruction behind it, which the stack pointer is the same at.
    #[must_use]
    pub const fn after(&self) -> (u64, u64) {
        (self.after.start, self.after.end)
    }
}

/// Finds the function of `locator`, known as `symbol`. `None` if this build has it in a form that another row is for.
pub fn locate(
    locator: Locator,
    symbol: &str,
    elf: &ElfFile<'_>,
    cache: Option<&Cache>,
) -> Result<Option<Located>, NotLocated> {
    Library::new(elf, cache).locate(locator, symbol)
}

/// A file in which several functions are looked for: what their searches share is read once.
pub struct Library<'a> {
    elf: &'a ElfFile<'a>,
    cache: Option<&'a Cache>,
    pta: OnceCell<pta::Search<'a>>,
}

impl<'a> Library<'a> {
    /// Reads nothing yet.
    #[must_use]
    pub const fn new(elf: &'a ElfFile<'a>, cache: Option<&'a Cache>) -> Self {
        Self { elf, cache, pta: OnceCell::new() }
    }

    /// As [`locate`].
    pub fn locate(&self, locator: Locator, symbol: &str) -> Result<Option<Located>, NotLocated> {
        let elf = self.elf;
        let mut call = None;
        let virtual_function = |which| self.pta()?.virtual_function(which);
        let (function, evidence) = match locator {
            Locator::PtaReport => report(locator, self.pta()?, elf, self.cache)?,
            Locator::PtaAllocate => virtual_function(pta::Virtual::Allocate)?,
            Locator::PtaRawAlloc => virtual_function(pta::Virtual::RawAlloc)?,
            Locator::PtaRawAllocWithStream => virtual_function(pta::Virtual::RawAllocWithStream)?,
            Locator::PtaEmptyCache => match self.pta()?.empty_cache()? {
                Some(found) => found,
                None => return Ok(None),
            },
            Locator::PtaRecordStream => self.pta()?.record_stream()?,
            Locator::PtaPool(which) => self.pta()?.of_own_pools(which)?,
            Locator::PtaMethod { name, has_arguments } => methods::Tables::of(elf)?.only(name, has_arguments)?,
            Locator::MstxMethod(method) => mstx::Module::of(elf)?.method(method)?,
            Locator::MstxParse { method, place } => {
                let module = mstx::Module::of(elf)?;
                let found = module.method(method)?;
                call = module.parse_call(found.0, place)?;
                if call.is_none() {
                    return Ok(None);
                }
                found
            }
        };
        let file_offset = elf.file_offset(function.start).ok_or(NotLocated::NoCode)?;
        let resolved = Resolved {
            name: symbol.to_owned(),
            vaddr: function.start,
            file_offset,
            size_bytes: function.end - function.start,
            next_vaddr: None,
        };
        Ok(Some(Located { function: resolved, evidence, call }))
    }

    fn pta(&self) -> Result<&pta::Search<'a>, NotLocated> {
        once(&self.pta, || pta::Search::of(self.elf))
    }
}

/// The value of the cell, which is made if there is none.
fn once<T, E>(cell: &OnceCell<T>, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
    if let Some(known) = cell.get() {
        return Ok(known);
    }
    let value = make()?;
    Ok(cell.get_or_init(|| value))
}

/// The report, from the cache if it is there and still true.
fn report(
    locator: Locator,
    search: &pta::Search<'_>,
    elf: &ElfFile<'_>,
    cache: Option<&Cache>,
) -> Result<(Function, Evidence), NotLocated> {
    let key = cache.and_then(|cache| cache.key(locator, elf));
    let known = key.as_ref().and_then(|key| {
        let entry = key.read()?;
        Some((search.recheck(entry.vaddr)?, entry.evidence()))
    });
    if let Some(known) = known {
        return Ok(known);
    }
    let found = search.run()?;
    if let Some(key) = key {
        key.write(found.0.start, found.1);
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
