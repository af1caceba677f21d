//! Findings as tables: the members of a list in a finding are rows, for programs that take columns.

use serde::Serialize;

use crate::model::{Device, Stack};

/// Type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// Numbers from 0 to 2⁶⁴ - 1.
    Unsigned,
    /// Numbers that may be negative.
    Signed,
    /// Fractions.
    Float,
    /// Yes or no.
    Flag,
    /// Text.
    Text,
}

/// A value in a column.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// No value.
    Missing,
    /// Of [`Type::Unsigned`].
    Unsigned(u64),
    /// Of [`Type::Signed`].
    Signed(i64),
    /// Of [`Type::Float`].
    Float(f64),
    /// Of [`Type::Flag`].
    Flag(bool),
    /// Of [`Type::Text`].
    Text(String),
}

impl Cell {
    /// A text.
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// The word that JSON has for the value; missing if JSON has no text for it.
    pub(super) fn word(value: impl Serialize) -> Self {
        match serde_json::to_value(value) {
            Ok(serde_json::Value::String(word)) => Self::Text(word),
            _ => Self::Missing,
        }
    }

    /// The number of an NPU as text, or `host`.
    pub(super) fn device(device: Device) -> Self {
        match device {
            Device::Npu(number) => Self::Text(number.to_string()),
            Device::Cpu => Self::text("host"),
            Device::None => Self::Missing,
        }
    }

    /// Frames, one a line, innermost first.
    pub(super) fn frames(stack: Option<Stack>) -> Self {
        stack.map_or(Self::Missing, |stack| Self::Text(stack.frames().join("\n")))
    }

    /// A number that may be too large for a column.
    pub(super) fn signed(number: i128) -> Self {
        i64::try_from(number).map_or(Self::Missing, Self::Signed)
    }
}

impl From<u64> for Cell {
    fn from(number: u64) -> Self {
        Self::Unsigned(number)
    }
}

impl From<u32> for Cell {
    fn from(number: u32) -> Self {
        Self::Unsigned(number.into())
    }
}

impl From<f64> for Cell {
    fn from(number: f64) -> Self {
        if number.is_finite() { Self::Float(number) } else { Self::Missing }
    }
}

impl From<bool> for Cell {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl<T: Into<Self>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Missing, Into::into)
    }
}

/// A column: how its cells come from a finding `F` and a member `M` of a list in it.
pub(super) struct Column<F, M> {
    name: &'static str,
    holds: Type,
    cell: fn(&F, &M) -> Cell,
}

/// A column of this name and type.
pub(super) const fn column<F, M>(name: &'static str, holds: Type, cell: fn(&F, &M) -> Cell) -> Column<F, M> {
    Column { name, holds, cell }
}

/// Takes a finding and a member of a list in it.
type TakeRow<'a, F, M> = dyn FnMut(&F, &M) + 'a;

/// Columns, and a function that gives each member of the lists in a source its row.
pub(super) struct Rows<S, F: 'static, M: 'static> {
    pub(super) columns: &'static [Column<F, M>],
    pub(super) each: fn(&S, &mut TakeRow<'_, F, M>),
}

/// The table of a question; `S` is what rows are made of: a finding, or the whole answer.
pub trait Table<S>: Sync {
    /// Names and types, in order. They are there without rows, too.
    fn columns(&self) -> Vec<(&'static str, Type)>;

    /// Gives the cells of all rows of `source`: the number of the column, and the cell.
    fn fill(&self, source: &S, cell: &mut dyn FnMut(usize, Cell));
}

impl<S, F, M> Table<S> for Rows<S, F, M> {
    fn columns(&self) -> Vec<(&'static str, Type)> {
        self.columns.iter().map(|column| (column.name, column.holds)).collect()
    }

    fn fill(&self, source: &S, cell: &mut dyn FnMut(usize, Cell)) {
        (self.each)(source, &mut |finding, member| {
            for (number, column) in self.columns.iter().enumerate() {
                cell(number, (column.cell)(finding, member));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::ascend::pools;
    use crate::model::{Pool, StackEnd};

    /// Words are those of the JSON; a value without one, or out of range, is missing.
    #[test]
    fn cells_are_spelt_as_json() {
        assert_eq!(Cell::word(pools::HAL), Cell::text("HAL"));
        assert_eq!(Cell::word(Pool::custom("mine")), Cell::text("mine"));
        assert_eq!(Cell::word(7), Cell::Missing);
        let devices = [Device::Npu(3), Device::Cpu, Device::None].map(Cell::device);
        assert_eq!(devices, [Cell::text("3"), Cell::text("host"), Cell::Missing]);
        assert_eq!([-1, 1 << 63].map(Cell::signed), [Cell::Signed(-1), Cell::Missing]);
        assert_eq!([0.5, f64::NAN].map(Cell::from), [Cell::Float(0.5), Cell::Missing]);
        assert_eq!(Cell::from(None::<u32>), Cell::Missing);
        let stack = Stack::keep(["f", "main"], StackEnd::Root);
        assert_eq!([Some(stack), None].map(Cell::frames), [Cell::text("f\nmain"), Cell::Missing]);
    }
}
