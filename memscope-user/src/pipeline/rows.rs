//! The probe rows, and calls with the row that names their values.

use memscope_common::row::MAX_ROWS;

use super::domains::{self, Interpreted};
use super::item::Called;
use crate::backend::Backend;
use crate::model::Name;
use crate::probes::{CallKind, Field, RowInfo};

/// The probe rows, by number.
#[derive(Debug, Default)]
pub(super) struct Rows {
    backend: &'static dyn Backend,
    rows: Vec<Option<Probe>>,
}

/// One row.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) info: RowInfo,
    /// Name of its function.
    pub(super) symbol: Name,
    has_text: bool,
}

/// A call of an unknown row, or one with unreadable arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unusable;

/// A call, and the row that it is of.
pub(super) struct RawCall<'a> {
    pub(super) backend: &'static dyn Backend,
    pub(super) probe: &'a Probe,
    pub(super) called: Called,
    /// The outermost function of ACL or the runtime that the thread is inside of.
    pub(super) outer: Option<Name>,
}

impl Rows {
    /// Rows 1 and following.
    pub(super) fn new(backend: &'static dyn Backend, rows: Vec<RowInfo>) -> Self {
        Self { backend, rows: rows.into_iter().map(|row| Some(Probe::new(row))).collect() }
    }

    pub(super) fn get(&self, number: u16) -> Option<&Probe> {
        self.rows.get(usize::from(number).checked_sub(1)?)?.as_ref()
    }

    /// Whether calls of this kind are probed.
    pub(super) fn have(&self, kind: CallKind) -> bool {
        self.rows.iter().flatten().any(|probe| probe.info.meaning == kind)
    }

    /// Name of the row's function.
    pub(super) fn symbol(&self, number: u16) -> Option<Name> {
        self.get(number).map(|probe| probe.symbol)
    }

    /// Adds rows. Those of dynamic loaders are never described, so there may be gaps.
    pub(super) fn extend(&mut self, first: u16, rows: Vec<RowInfo>) {
        for (row, index) in rows.into_iter().zip(usize::from(first).saturating_sub(1)..MAX_ROWS as usize) {
            if index >= self.rows.len() {
                self.rows.resize_with(index + 1, || None);
            }
            if let Some(slot) = self.rows.get_mut(index) {
                *slot = Some(Probe::new(row));
            }
        }
    }

    /// Whether the text of the row's calls is used.
    pub(super) fn has_text(&self, number: u16) -> bool {
        self.get(number).is_some_and(|probe| probe.has_text)
    }

    /// The effect of a call; `Ok(None)` without one, an error when it is unknown.
    pub(super) fn interpret(&self, called: Called) -> Interpreted {
        let call = self.raw(called)?;
        domains::interpret(call.probe.info.meaning, call)
    }

    /// A call with its row; an error when that is unknown.
    pub(super) fn raw(&self, called: Called) -> Result<RawCall<'_>, Unusable> {
        let probe = self.get(called.head.row).ok_or(Unusable)?;
        let outer = self.symbol(called.head.outer);
        Ok(RawCall { backend: self.backend, probe, called, outer })
    }
}

impl Probe {
    fn new(info: RowInfo) -> Self {
        let (symbol, has_text) = (Name::keep(&info.symbol), domains::has_text(info.meaning));
        Self { info, symbol, has_text }
    }
}

impl RawCall<'_> {
    /// A value by its name.
    pub(super) fn field(&self, field: Field) -> Result<u64, Unusable> {
        let index = self.probe.info.fields.iter().position(|name| *name == field);
        index.and_then(|index| self.called.values.get(index)).ok_or(Unusable)
    }

    /// The lower half of a value.
    pub(super) fn half(&self, field: Field) -> Result<u32, Unusable> {
        self.field(field).map(|value| value as u32)
    }

    /// The returned value as a code: 0 is success.
    pub(super) const fn code(&self) -> i32 {
        self.called.status as i32
    }
}
