//! The Name column.
//!
//! Names of marks are always in quotes; a kernel name only if it holds a comma or a quote. In the database, names of
//! marks keep their surrounding quotes, and nothing is doubled.

use super::NOT_AVAILABLE;
use crate::dump_format::{number::push_decimal, text::push_text};

/// Text of the Name column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name<'a> {
    /// `N/A`.
    None,
    /// As it is, quoted only where CSV needs it.
    Plain(&'a str),
    /// Always in quotes: the text of a mark.
    Quoted(&'a str),
    /// `"Range end from id <n>"`.
    RangeEnd(u64),
    /// Decimal.
    Number(u64),
}

impl Name<'_> {
    /// Appends the CSV cell.
    pub fn write_csv(self, out: &mut Vec<u8>) {
        match self {
            Self::Plain(text) if !text.contains([',', '"']) => push_text(out, text, false),
            Self::Plain(text) | Self::Quoted(text) => {
                out.push(b'"');
                push_text(out, text, true);
                out.push(b'"');
            }
            Self::None | Self::RangeEnd(_) | Self::Number(_) => self.write_db(out),
        }
    }

    /// Appends the text for the database.
    pub fn write_db(self, out: &mut Vec<u8>) {
        match self {
            Self::None => out.extend_from_slice(NOT_AVAILABLE.as_bytes()),
            Self::Number(number) => push_decimal(out, number),
            Self::Plain(text) => push_text(out, text, false),
            Self::Quoted(text) => {
                out.push(b'"');
                push_text(out, text, false);
                out.push(b'"');
            }
            Self::RangeEnd(id) => {
                out.extend_from_slice(b"\"Range end from id ");
                push_decimal(out, id);
                out.push(b'"');
            }
        }
    }
}
