//! The functions of the Python module `mstx`.
//!
//! The module uses mstx's headers (ascend-abi §5.2): none of the functions that it calls for a mark has a name, and it
//! is stripped. The data for the interpreter stays: a table of its methods, `PyMethodDef { name, function, flags, text
//! }`, with pointers that the loader fills in. It leads to the functions that Python calls.
//!
//! Their arguments are Python objects of the interpreter's version. But first each of them lets
//! `PyArg_ParseTupleAndKeywords(args, keywords, "|sO", names, &message, &stream)` turn them into C, whatever the form
//! of the call. So a text is read there: before that call is the address of the variable for it, behind it the text. In
//! builds without optimisation the call is in a function of its own, `parse(args, keywords, &message, &stream)`.
//!
//! The probe sits on the last instruction before the call, and not on the call: kernels before 2026 that emulate it do
//! not update a user shadow stack. After the call, it sits on the first instruction that is no call.

use super::{
    CallSite, Evidence, NotLocated,
    code::Code,
    functions::Function,
    methods::{ENTRY_BYTES, Tables, WITH_KEYWORDS},
    op::{Flow, Op},
};
use crate::os::elf::{ElfFile, dynamic::Pointer};

/// What turns Python objects into C.
const PARSE: &str = "PyArg_ParseTupleAndKeywords";
/// C argument of it that points to the variable for the text, and of a function of the module's own that leads to it.
const PARSE_PLACE: u8 = 4;
const OWN_PARSE_PLACE: u8 = 2;

/// Methods that the module must have, in one table: they identify it.
const METHODS: [&str; 3] = ["mark", "range_start", "range_end"];
/// More entries than any table has.
const MAX_ENTRIES: u64 = 64;
/// Size of the stub for a call through the linker's table.
const STUB_BYTES: u64 = 16;

/// A module with the tables that the search needs.
pub(super) struct Module<'a> {
    elf: &'a ElfFile<'a>,
    code: Code<'a>,
    tables: Tables<'a>,
}

impl<'a> Module<'a> {
    pub(super) fn of(elf: &'a ElfFile<'a>) -> Result<Self, NotLocated> {
        let code = Code::of(elf).ok_or(NotLocated::NoCode)?;
        Ok(Self { elf, code, tables: Tables::of(elf)? })
    }

    /// The function that Python calls for `method`.
    pub(super) fn method(&self, method: &'static str) -> Result<(Function, Evidence), NotLocated> {
        let mut found = Vec::with_capacity(METHODS.len());
        for name in METHODS {
            let entries = self.tables.entries(name, WITH_KEYWORDS)?;
            let &[entry] = &entries[..] else {
                return Err(NotLocated::Method { method: name, found: entries.len() });
            };
            found.push((name, entry));
        }
        let first = found.iter().map(|(_, (entry, _))| *entry).min().unwrap_or_default();
        let in_table =
            |entry: u64| entry - first < ENTRY_BYTES * MAX_ENTRIES && (entry - first).is_multiple_of(ENTRY_BYTES);
        if !found.iter().all(|(_, (entry, _))| in_table(*entry)) {
            return Err(NotLocated::Method { method, found: 0 });
        }
        let wanted = found.into_iter().find(|(name, _)| *name == method);
        let (_, (_, function)) = wanted.ok_or(NotLocated::Method { method, found: 0 })?;
        Ok((function, Evidence::METHOD))
    }

    /// The call in `function` that writes the text's address through C argument `place`. `None` if it is made in the
    /// other form.
    pub(super) fn parse_call(&self, function: Function, place: u8) -> Result<Option<CallSite>, NotLocated> {
        let unusual = || NotLocated::Parsing { vaddr: function.start };
        let ops = self.code.ops(function);
        let at = ops.iter().position(|op| matches!(op.flow, Flow::Call(_))).ok_or_else(unusual)?;
        let call = ops.get(at).ok_or_else(unusual)?;
        let Flow::Call(Some(target)) = call.flow else { return Err(unusual()) };
        let slot = self.parse_slot()?;
        let form = if self.is_stub(target, slot) {
            PARSE_PLACE
        } else {
            let own = self.tables.functions.starting(target).ok_or_else(unusual)?;
            let parses = |op: &Op| match op.flow {
                Flow::Call(Some(target)) | Flow::Jump(target) => self.is_stub(target, slot),
                _ => false,
            };
            if !self.code.ops(own).iter().any(parses) {
                return Err(unusual());
            }
            OWN_PARSE_PLACE
        };
        if form != place {
            return Ok(None);
        }
        let before = at.checked_sub(1).and_then(|before| ops.get(before)).ok_or_else(unusual)?;
        let behind = ops.iter().enumerate().skip(at + 1).find(|(_, op)| !matches!(op.flow, Flow::Call(_)));
        let (end, after) = behind.ok_or_else(unusual)?;
        let next = ops.get(end + 1).map_or(function.end, |op| op.address);
        // Every path to the call, or behind it, must pass the instruction before it.
        let between = call.address..=after.address;
        let enters = |op: &Op| matches!(op.flow, Flow::Branch(to) | Flow::Jump(to) if between.contains(&to));
        let changed = 1 << self.code.argument(place) | 1 << self.code.stack_pointer();
        if before.flow != Flow::Next || before.clobbers & changed != 0 || ops.iter().any(enters) {
            return Err(unusual());
        }
        let before = Function { start: before.address, end: call.address };
        Ok(Some(CallSite { before, after: Function { start: after.address, end: next } }))
    }

    /// Where the loader puts the address of [`PARSE`].
    fn parse_slot(&self) -> Result<u64, NotLocated> {
        let mut slots = self.elf.relocations()?.filter_map(|relocation| match relocation.pointer {
            Pointer::Offset(name) if name.is(PARSE) => Some(relocation.slot),
            _ => None,
        });
        match (slots.next(), slots.next()) {
            (Some(slot), None) => Ok(slot),
            (None, _) => Err(NotLocated::NoImport { symbol: PARSE }),
            (Some(_), Some(_)) => Err(NotLocated::Imports { symbol: PARSE }),
        }
    }

    /// Whether the code at `target` continues at the address in `slot`.
    fn is_stub(&self, target: u64, slot: u64) -> bool {
        let end = target.saturating_add(STUB_BYTES);
        self.code.loads(Function { start: target, end }, slot)
    }
}
