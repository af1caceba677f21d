//! Lifetimes as a table: a column for each bar, a row for each size class, then the places.

use std::io::{self, Write};

use super::{Histogram, Lifetimes, PlaceLifetimes, SizeLifetimes};
use crate::model::{Confidence, LiveSum, SizeSum};
use crate::text::{
    DeviceName,
    groups::size_class,
    numbers::counted,
    stacks::{MAX_STACKS, write_place},
};

/// Heads of the bars.
const BARS: [&str; 9] = ["<10us", "<100us", "<1ms", "<10ms", "<100ms", "<1s", "<10s", "<100s", "longer"];

/// Writes one finding.
pub(super) fn write(found: &Lifetimes, out: &mut dyn Write) -> io::Result<()> {
    let Lifetimes { pool, all, sizes, places, places_left_out, .. } = found;
    let older = if found.attached { "; blocks from before the attach are not counted" } else { "" };
    writeln!(
        out,
        "Lifetimes of blocks of {} on device {}: {}, {} live at the end{older}",
        pool.display_name(),
        DeviceName(found.device),
        counted(all.blocks, "block"),
        all.live_blocks
    )?;
    write!(out, "  ")?;
    BARS.iter().try_for_each(|bar| write!(out, "{bar:>8}"))?;
    writeln!(out, "{:>8}  Size of each block", "Live")?;
    for SizeLifetimes { least_bytes, histogram } in sizes {
        write_bars(histogram, out)?;
        let class = SizeSum { least_bytes: *least_bytes, live: LiveSum::default() };
        writeln!(out, "  {}", size_class(&class))?;
    }
    for PlaceLifetimes { stacks, histogram } in places.iter().take(MAX_STACKS) {
        write_bars(histogram, out)?;
        if stacks.is_empty() {
            writeln!(out, "  without a call stack")?;
        } else {
            write_place("  allocated at:", *stacks, out)?;
        }
    }
    let more = places.len().saturating_sub(MAX_STACKS) as u64 + places_left_out;
    if more > 0 {
        writeln!(out, "  … and {} (see --json)", counted(more, "more stack"))?;
    }
    if found.places_full {
        writeln!(out, "  There were more call stacks than can be kept; the others count as none")?;
    }
    if all.unseen_ends > 0 {
        writeln!(out, "  In no column: {} ended without a free that was seen", counted(all.unseen_ends, "block"))?;
    }
    if found.confidence == Confidence::Doubtful {
        writeln!(out, "  Doubtful: events were lost, so blocks may be missing, or counted as live that had gone.")?;
    }
    Ok(())
}

fn write_bars(histogram: &Histogram, out: &mut dyn Write) -> io::Result<()> {
    write!(out, "  ")?;
    histogram.freed.iter().chain([&histogram.live_blocks]).try_for_each(|blocks| write!(out, "{blocks:>8}"))
}
