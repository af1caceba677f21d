//! `report`: a run as one page that a browser opens, without a network and without help from elsewhere.
//!
//! ```text
//! events ─▶ reduce (bounded) ─▶ data ─▶ pack (columns) ─▶ page (one HTML file)
//! findings, what if ───────────┘
//! ```
//!
//! Pure: events and findings in, bytes out; the same input gives the same bytes, independent of the clock, the machine
//! or the environment. Data of the traced program reach the page as JSON of printable ASCII inside of base64, and its
//! script shows them only as text.

mod blocks;
mod checks;
mod curve;
mod data;
pub mod export;
mod layer;
mod pack;
mod page;
mod reduce;
mod segments;
#[cfg(test)]
mod tests;
mod trie;
mod view;
mod what_if;

pub use self::blocks::Rec;
pub use self::layer::{Layer, Moment, StackWeight};
pub use self::page::{PAGE_START, write};
pub use self::reduce::{Reduced, Reducer};
pub use self::segments::Segment;
pub use self::view::{Failed, MarkAt, View};
pub use self::what_if::WhatIf;

/// Inputs of a page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// Title, in place of the one that names processes and devices.
    pub title: Option<String>,
    /// The options that chose a part of the run, if only a part was used.
    pub part: Option<String>,
    /// The input has failed requests; dumps may not.
    pub tells_failures: bool,
    /// What other settings of `PyTorch`'s pool would give.
    pub what_if: WhatIf,
}
