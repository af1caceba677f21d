//! Leaks between marks, with the lines of the reference (contract §8.7).

use std::io::{self, Write};

use super::{MarkLeak, MarkLeaks};
use crate::model::Confidence;
use crate::text::DeviceName;
use crate::text::numbers::{counted, mega, shortest, size};

/// Writes one finding; at most `lines` leaks one by one.
pub(super) fn write(found: &MarkLeaks, lines: usize, out: &mut dyn Write) -> io::Result<()> {
    let MarkLeaks { text, start_index, marks, leaks, .. } = found;
    let device = DeviceName(found.device);
    if !found.judged {
        let last = start_index.saturating_add(2);
        return writeln!(
            out,
            "Not judged on device {device}: {} with the text `{}`, and those with the numbers {start_index} to {last} \
             (from 0) are needed.",
            counted(*marks, "mark"),
            text.escape_debug()
        );
    }
    if leaks.is_empty() {
        writeln!(out, "No memory leaks detected between the marks on device {device}.")?;
    } else {
        writeln!(out, "====== ERROR: Detected memory leaks on device {device} ======")?;
    }
    for MarkLeak { pool, addr, size_bytes, event_id, .. } in leaks.iter().take(lines) {
        let (pool, mb) = (pool.display_name(), shortest(mega(*size_bytes)));
        writeln!(out, "Direct {pool} leak of {mb} Mb(s) at 0x{addr:016x} in Index {event_id}.")?;
    }
    if let Some(more) = leaks.len().checked_sub(lines).filter(|&more| more > 0) {
        writeln!(out, "… and {more} more (see --json)")?;
    }
    let later = leaks.iter().filter(|leak| leak.freed_later).count() as u64;
    if later > 0 {
        writeln!(
            out,
            "Of these, {} freed after the third mark.",
            counted(later, "block") + if later == 1 { " was" } else { " were" }
        )?;
    }
    if !leaks.is_empty() {
        let total = leaks.iter().map(|leak| leak.size_bytes).fold(0, u64::saturating_add);
        writeln!(out, "In all {} in {}.", size(total), counted(leaks.len() as u64, "block"))?;
    }
    if found.confidence == Confidence::Doubtful {
        writeln!(out, "Doubtful on device {device}: events were lost, so leaks may be missing or wrong.")?;
    }
    Ok(())
}
