//! Counts the part of a file's unwind information that becomes rules of the kernel side.

use std::{io, path::Path, sync::Arc};

use gimli::{CieOrFde, EhFrame, UnwindContext, UnwindSection as _};
use memscope_common::unwind::RULE_USER;
use serde::Serialize;

use super::{
    image::Image,
    row::{Row, Saved},
};
use crate::{regular, stacks::mappings::Content};

/// Rows of a file's unwind information: each leads to the caller from some addresses of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Survey {
    /// Entries, one for each function or part of one.
    pub entries: u64,
    /// Entries that make no sense.
    pub broken_entries: u64,
    /// Rows of the others.
    pub rows: u64,
    /// Of those, rows without a rule: user space completes stacks through them.
    pub rows_outside: u64,
    /// Rows in an unknown form: stacks end there.
    pub rows_not_understood: u64,
}

impl Survey {
    /// Reads a file. `None`: it has no unwind information in a known form.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub fn of(path: &Path) -> io::Result<Option<Self>> {
        let file = regular::open(path)?;
        // Open until it is read.
        let content = Content::File(Arc::new(file));
        Ok(Image::open(&content).and_then(|image| Self::of_image(&image)))
    }

    pub(super) fn of_image(image: &Image) -> Option<Self> {
        let (vaddr, section) = image.eh_frame()?;
        let (frames, bases) = image.section(&section, vaddr);
        let mut survey = Self::default();
        let mut context = UnwindContext::new();
        let mut units = frames.entries(&bases);
        while let Ok(Some(unit)) = units.next() {
            let CieOrFde::Fde(partial) = unit else { continue };
            survey.entries += 1;
            let Ok(entry) = partial.parse(EhFrame::cie_from_offset) else {
                survey.broken_entries += 1;
                continue;
            };
            let Ok(mut rows) = entry.rows(&frames, &bases, &mut context) else {
                survey.broken_entries += 1;
                continue;
            };
            loop {
                match rows.next_row() {
                    Ok(Some(row)) => survey.count(&Row::of(image.arch(), &frames, &entry, row, row.start_address())),
                    Ok(None) => break,
                    Err(_) => {
                        survey.broken_entries += 1;
                        break;
                    }
                }
            }
        }
        Some(survey)
    }

    fn count(&mut self, row: &Row) {
        self.rows += 1;
        if row.rule().kind != RULE_USER {
            return;
        }
        let returns = row.saved(row.arch.return_address());
        if row.cfa.is_none() || returns == Some(Saved::Unknown) {
            self.rows_not_understood += 1;
        } else {
            self.rows_outside += 1;
        }
    }
}
