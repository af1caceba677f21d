//! Numbers of stacks in the table of one file: rows then refer to a stack, which the table has once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::dump_format::stack_cell::{self, Reference};
use crate::hash::HashMap;
use crate::model::{Stack, StackEnd};

/// Stacks that all files of a trace remember together, at about 16 bytes each. Further ones stand in their rows in full.
const MAX_STACKS: usize = 4 << 20;

/// How call stacks stand in rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StackCells {
    /// In full, as msMemScope has it.
    #[default]
    Inline,
    /// By their number in a table beside the rows.
    Table,
    /// Not at all: only answers use them.
    Absent,
}

/// Remaining room for the files of a trace.
#[derive(Clone, Debug)]
pub(super) struct Room(Arc<AtomicUsize>);

impl Default for Room {
    fn default() -> Self {
        Self::of(MAX_STACKS)
    }
}

impl Room {
    pub(super) fn of(stacks: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(stacks)))
    }

    fn take(&self) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }
}

/// The stacks that a file's table has.
#[derive(Debug)]
pub(super) struct StackIds {
    ids: HashMap<Stack, u32>,
    /// The last number.
    last: u32,
    room: Room,
}

impl StackIds {
    pub(super) fn new(room: Room) -> Self {
        Self { ids: HashMap::default(), last: 0, room }
    }

    /// The table could not be written: stacks are put into it once more, with other numbers.
    pub(super) fn forget(&mut self) {
        self.room.0.fetch_add(self.ids.len(), Ordering::Relaxed);
        self.ids.clear();
    }

    /// Appends the cell of a stack. `add` puts it into the table if it is new.
    pub(super) fn write(
        &mut self,
        out: &mut Vec<u8>,
        stack: Option<Stack>,
        double_quotes: bool,
        add: impl FnOnce(Reference, Stack),
    ) {
        match stack.and_then(|stack| self.number(stack, add)) {
            Some(number) => number.write(out),
            None => stack_cell::write(out, stack, double_quotes),
        }
    }

    fn number(&mut self, stack: Stack, add: impl FnOnce(Reference, Stack)) -> Option<Reference> {
        if let Some(known) = self.ids.get(&stack) {
            return Some(Reference(*known));
        }
        if !is_long(stack) || !self.room.take() {
            return None;
        }
        self.last = self.last.checked_add(1)?;
        self.ids.insert(stack, self.last);
        add(Reference(self.last), stack);
        Some(Reference(self.last))
    }
}

impl Drop for StackIds {
    fn drop(&mut self) {
        self.forget();
    }
}

/// Whether the full cell is longer than a number: that of a thread without Python is not.
fn is_long(stack: Stack) -> bool {
    !matches!(stack.end(), StackEnd::NotPython | StackEnd::NoInterpreter) || !stack.frames().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(ids: &mut StackIds, stack: Stack, added: &mut Vec<(u32, Stack)>) -> String {
        let mut out = Vec::new();
        ids.write(&mut out, Some(stack), true, |number, stack| added.push((number.0, stack)));
        String::from_utf8(out).expect("text")
    }

    /// A stack is put into the table once, in the order in which rows need them; a cell no longer than a number stays
    /// in its row.
    #[test]
    fn stacks_are_numbered_once() {
        let (mut ids, mut added) = (StackIds::new(Room::default()), Vec::new());
        let (first, second) =
            (Stack::keep(["f", "main"], StackEnd::Root), Stack::keep(["g\"", "main"], StackEnd::Root));
        let no_python = Stack::keep([], StackEnd::NotPython);
        let cells: Vec<String> =
            [second, first, second, no_python].map(|stack| cell(&mut ids, stack, &mut added)).into();
        assert_eq!(cells, ["#1", "#2", "#1", "\"NA\""]);
        assert_eq!(added, [(1, second), (2, first)]);
    }

    /// Stacks beyond the limit are in full in their rows; a file that is closed for good frees its room.
    #[test]
    fn beyond_the_room_rows_have_the_stack() {
        let room = Room::of(1);
        let (mut ids, mut added) = (StackIds::new(room.clone()), Vec::new());
        let (first, second) = (Stack::keep(["f"], StackEnd::Root), Stack::keep(["g"], StackEnd::Root));
        assert_eq!(cell(&mut ids, first, &mut added), "#1");
        assert_eq!(cell(&mut ids, second, &mut added), "\"g\n\"");
        assert_eq!(cell(&mut ids, first, &mut added), "#1");
        ids.forget();
        assert_eq!(cell(&mut ids, second, &mut added), "#2");
        drop(ids);
        assert_eq!(cell(&mut StackIds::new(room), second, &mut added), "#1");
        assert_eq!(added, [(1, first), (2, second), (1, second)]);
    }
}
