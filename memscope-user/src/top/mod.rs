//! The live screen: how full, by whom, what grows and where.
//!
//! ```text
//! events ─▶ LiveUse ─┐
//! samples ───────────┴▶ Moment ─▶ State ┐
//! keys ─▶ View ─────────────────────────┴▶ draw ─▶ cells
//! ```
//!
//! Pure: no terminal, clock or trace. Every text of a traced program is escaped before it becomes cells.

mod csv;
mod head;
mod lists;
mod recent;
mod screen;
mod state;
#[cfg(test)]
mod tests;
mod view;
mod words;

pub(crate) use self::csv::{CSV_HEADER, write_csv};
pub(crate) use self::recent::Recent;
pub(crate) use self::screen::{draw, text};
pub(crate) use self::state::State;
pub(crate) use self::view::{Action, Input, View};

/// Process, name and description of the place that is chosen; `None` where there is none.
pub(crate) fn chosen(state: &State, view: &View) -> Option<(u32, String, Vec<String>)> {
    lists::chosen(state, view)
}
