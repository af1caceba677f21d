//! The cells of a dump's row, of any tool: checked, and reduced to a [`DumpRow`].

use std::sync::Arc;

use super::Notes;
use super::attr::{Attr, Key};
use super::cell::{Digits, Fault, NOT_AVAILABLE, address, device, pointer, process_number};
use super::stack_table::StackTable;
use crate::backend::Backend;
use crate::dump_format::row::{DumpRow, Kind, Texts};
use crate::dump_format::stack_cell::{Parser, Reference};
use crate::dump_format::text::unescaped;
use crate::hash::HashMap;
use crate::model::{AccessKind, AllocApi, Kept, Module, Name, OpPhase, PageType, Pool, PoolOperators, Stack, Stacks};

/// References to stacks that are in no table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MissingStacks {
    /// Their number.
    pub(super) count: u64,
    /// Why the first one is not known.
    pub(super) why: String,
}

impl MissingStacks {
    /// Adds others.
    pub(super) fn add(&mut self, other: Self) {
        if self.count == 0 {
            self.why = other.why;
        }
        self.count += other.count;
    }
}

/// Values of earlier rows, so that they are made once.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Knows pools and modules by their names.
    backend: &'static dyn Backend,
    /// Keeps the stacks; readers of one file share it.
    pub(super) kept: Kept,
    stacks: Parser,
    table: Arc<StackTable>,
    missing: MissingStacks,
    owners: HashMap<Box<str>, Name>,
}

impl Known {
    /// Most different owners; further names become one.
    const MAX_OWNERS: usize = 4096;

    /// For rows that may refer to these stacks.
    pub(super) fn with(table: Arc<StackTable>) -> Self {
        Self { table, ..Self::default() }
    }

    /// The same for other rows of the file.
    pub(super) fn for_others(&self) -> Self {
        Self { kept: self.kept.clone(), ..Self::with(Arc::clone(&self.table)) }
    }

    /// The stack of a cell.
    fn stack(&mut self, cell: &str) -> Option<Stack> {
        let Some(reference) = Reference::parse(cell) else { return self.stacks.parse(cell, &self.kept) };
        match self.table.find(reference, &self.kept) {
            Ok(stack) => stack,
            Err(why) => {
                self.missing.add(MissingStacks { count: 1, why });
                None
            }
        }
    }

    /// Notes the stacks missing since the last call.
    pub(super) fn note(&mut self, notes: &mut Notes) {
        if self.missing.count > 0 {
            notes.missing_stacks.add(std::mem::take(&mut self.missing));
        }
    }

    fn owner(&mut self, text: &str) -> Option<Name> {
        if text.is_empty() {
            return None;
        }
        let known = self.owners.get(text).copied();
        Some(known.unwrap_or_else(|| {
            let name = Name::keep(text);
            if self.owners.len() < Self::MAX_OWNERS {
                self.owners.insert(text.into(), name);
            }
            name
        }))
    }
}

/// The cells of a row as text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cells<'a> {
    pub(super) id: Digits<'a>,
    pub(super) event: &'a str,
    pub(super) event_type: &'a str,
    pub(super) name: &'a str,
    pub(super) time: Digits<'a>,
    pub(super) pid: Digits<'a>,
    pub(super) tid: Digits<'a>,
    pub(super) device: Digits<'a>,
    pub(super) ptr: &'a str,
    pub(super) python: &'a str,
    pub(super) native: &'a str,
}

impl Cells<'_> {
    fn stacks(&self, known: &mut Known) -> Stacks {
        Stacks { native: known.stack(self.native), python: known.stack(self.python), mixed: None }
    }
}

/// An understood row: a row, or a kind of row that is not needed here (its name).
#[derive(Debug)]
pub(super) enum Understood {
    Row(DumpRow),
    Unused(String),
}

/// Longest name, in bytes.
const MAX_NAME: usize = 64 << 10;

/// Makes a row of cells. `place` is its file and line.
pub(super) fn understand(
    cells: &Cells<'_>,
    attr: &Attr<'_>,
    place: (u32, u64),
    known: &mut Known,
) -> Result<Understood, Fault> {
    // Numbers first, so that a damaged row is found even where its kind does not matter.
    let id = cells.id.number("ID")?;
    let time_ns = cells.time.number("Timestamp(ns)")?;
    let pid = process_number("Process Id", cells.pid)?;
    let tid = process_number("Thread Id", cells.tid)?;
    let device = device(cells.device)?;
    let ptr = pointer(cells.ptr)?;
    let owner = attr.get(Key::Owner);
    let Some(kind) = kind(cells.event, cells.event_type, owner, known.backend) else {
        let mut name = format!("{} {}", cells.event, cells.event_type);
        name.truncate(name.floor_char_boundary(64));
        return Ok(Understood::Unused(name));
    };
    let backend = known.backend;
    let mut row = DumpRow {
        kind,
        id,
        time_ns,
        pid,
        tid,
        device,
        file: place.0,
        line: place.1,
        ptr: ptr.or(attr.address(Key::Addr)?),
        allocation_id: attr.number(Key::AllocationId)?,
        size_bytes: attr.number(Key::Size)?,
        used_bytes: attr.number(Key::Used)?,
        total_bytes: attr.number(Key::Total)?,
        number: attr.number(Key::Active)?,
        shadow: attr.get(Key::Shadow) == Some("true"),
        found: attr.get(Key::Found) == Some("true"),
        page: match attr.get(Key::PageType) {
            Some("huge") => PageType::Huge,
            Some("giant") => PageType::Giant,
            _ => PageType::Normal,
        },
        api: if attr.get(Key::AllocType) == Some("create") { AllocApi::Create } else { AllocApi::Alloc },
        module_id: owner.and_then(|owner| module(owner, backend)),
        owner: owner.and_then(|owner| known.owner(owner)),
        pool: attr.get(Key::Type).and_then(|text| pool(text, backend)).unwrap_or_else(|| tensor_pool(backend)),
        texts: None,
        stacks: cells.stacks(known),
    };
    complete(&mut row, cells, attr)?;
    Ok(Understood::Row(row))
}

/// What rows of its kind have besides, and must have.
fn complete(row: &mut DumpRow, cells: &Cells<'_>, attr: &Attr<'_>) -> Result<(), Fault> {
    let text = |key| attr.get(key).unwrap_or_default().to_owned();
    let (kind, mut texts) = (row.kind, Texts::default());
    match kind {
        Kind::Malloc(_) | Kind::Free(_) | Kind::Returned(_) if row.ptr.is_none() => {
            return Err(Fault { column: "Ptr", what: format!("a {} row needs an address", cells.event) });
        }
        Kind::Malloc(_) if row.size_bytes.is_none() => {
            return Err(Fault { column: "Attr", what: "a MALLOC row needs a `size`".to_owned() });
        }
        Kind::Launch => row.number = attr.signed(Key::StreamId).map(|id| id as u64),
        Kind::Mark | Kind::RangeStart | Kind::RangeEnd => {
            texts.word = text(Key::Domain);
        }
        Kind::Access(_) => {
            (texts.word, texts.format, texts.shape) = (text(Key::Dtype), text(Key::Format), text(Key::Shape));
        }
        Kind::AtbOp(_) => {
            row.ptr = attr.get(Key::WorkspacePtr).and_then(|ptr| address("Attr", ptr).ok());
            row.size_bytes = attr.get(Key::WorkspaceSize).and_then(|size| size.parse().ok());
        }
        Kind::OutOfMemory => {
            row.size_bytes = attr.number(Key::ReqSize)?;
            row.number = attr.number(Key::Flag)?;
            texts.word = text(Key::Func);
        }
        _ => {}
    }
    if !matches!(kind, Kind::Malloc(_) | Kind::Free(_) | Kind::Returned(_)) && cells.name != NOT_AVAILABLE {
        texts.name = unescaped(&cells.name[..cells.name.floor_char_boundary(MAX_NAME)]);
    }
    if texts != Texts::default() {
        row.texts = Some(Box::new(texts));
    }
    Ok(())
}

fn kind(event: &str, event_type: &str, owner: Option<&str>, backend: &dyn Backend) -> Option<Kind> {
    // msMemScope writes workspaces as PTA; the owner distinguishes them, where it is known.
    let pool = |text| {
        let is_it = |pool: &&Pool| {
            pool.also_written() == Some(text) && owner.is_some_and(|owner| owner.starts_with(pool.owner()))
        };
        backend.pools().iter().find(is_it).copied().or_else(|| pool(text, backend))
    };
    Some(match (event, event_type) {
        ("MALLOC", pool_name) => Kind::Malloc(pool(pool_name)?),
        ("FREE", pool_name) => Kind::Free(pool(pool_name)?),
        ("BLOCK_FREE", pool_name) => Kind::Returned(pool(pool_name)?),
        ("ACCESS", "READ") => Kind::Access(AccessKind::Read),
        ("ACCESS", "WRITE") => Kind::Access(AccessKind::Write),
        ("ACCESS", "UNKNOWN") => Kind::Access(AccessKind::Unknown),
        ("OP_LAUNCH", "ATEN_START") => Kind::Op(OpPhase::Start),
        ("OP_LAUNCH", "ATEN_END") => Kind::Op(OpPhase::End),
        ("OP_LAUNCH", "NPU_SUBMIT") => Kind::Op(OpPhase::Submit),
        ("OP_LAUNCH", "ATB_START") => Kind::AtbOp(true),
        ("OP_LAUNCH", "ATB_END") => Kind::AtbOp(false),
        ("KERNEL_LAUNCH", "KERNEL_LAUNCH") => Kind::Launch,
        ("MSTX", "Mark") => Kind::Mark,
        ("MSTX", "Range_start") => Kind::RangeStart,
        ("MSTX", "Range_end") => Kind::RangeEnd,
        ("SYSTEM", "ACL_INIT") => Kind::AclInit,
        ("SYSTEM", "ACL_FINI") => Kind::AclFinalize,
        ("SYSTEM", "STEP") => Kind::Step,
        ("OOM_DETAIL", "OOM_TRIGGER") => Kind::OutOfMemory,
        _ => return None,
    })
}

/// The pool of an Event Type. Unknown ones were named by a program.
fn pool(text: &str, backend: &dyn Backend) -> Option<Pool> {
    match text {
        NOT_AVAILABLE | "" => None,
        text => backend.pool_of_event_type(text).or_else(|| Some(backend.custom_pool(text))),
    }
}

/// The pool of tensors without one in the row.
fn tensor_pool(backend: &dyn Backend) -> Pool {
    backend.pool_of_operators(PoolOperators::Torch).unwrap_or_else(|| backend.driver_pool())
}

/// The driver's module in an owner.
fn module(owner: &str, backend: &dyn Backend) -> Option<Module> {
    let rest = owner.strip_prefix(backend.driver_pool().owner())?.strip_prefix('@')?;
    backend.module_named(rest.split('@').next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_as_the_program_gave_them() {
        let cases = [
            ("plain", "plain"),
            (r"a\\b\n\u{1b}[0m", "a\\b\n\u{1b}[0m"),
            (r"\\n", r"\n"),
            ("'=1+1", "=1+1"),
            ("''@x", "'@x"),
            ("'quoted'", "'quoted'"),
            // Not made by us: as it is.
            (r"C:\dir", r"C:\dir"),
            (r"end\", r"end\"),
            (r"\u{110000}", r"\u{110000}"),
        ];
        for (cell, text) in cases {
            assert_eq!(unescaped(cell), text, "{cell}");
        }
    }
}
