//! Memory that waits for streams as text.

use std::io::{self, Write};

use super::{PlaceWaits, WaitSum, Waits};
use crate::model::Confidence;
use crate::text::clock::Clock;
use crate::text::numbers::{counted, rounded};
use crate::text::{
    DeviceName,
    stacks::{MAX_STACKS, write_place},
};

/// Writes one finding.
pub(super) fn write(found: &Waits, clock: Clock, out: &mut dyn Write) -> io::Result<()> {
    let Waits { pool, all, places, reserved_peak_bytes, .. } = found;
    let blocks = counted(all.blocks, "block");
    let (pool, device) = (pool.display_name(), DeviceName(found.device));
    writeln!(out, "Memory of {pool} on device {device} that waits for streams after its free: {blocks}")?;
    let percent = 100 * u128::from(all.pool_peak_bytes) / u128::from((*reserved_peak_bytes).max(1));
    writeln!(
        out,
        "  At the pool's peak ({}, at {}): {} in {}, {percent} % of it",
        rounded((*reserved_peak_bytes).into()),
        clock.since_start(found.reserved_peak_time_ns),
        rounded(all.pool_peak_bytes.into()),
        counted(all.pool_peak_blocks, "block"),
    )?;
    writeln!(
        out,
        "  At most {} at once; the longest wait {}{}",
        rounded(all.most_bytes.into()),
        milliseconds(all.longest_ns),
        open(all)
    )?;
    for PlaceWaits { stacks, record_stream, sum } in places.iter().take(MAX_STACKS) {
        let (peak, most, blocks) =
            (rounded(sum.pool_peak_bytes.into()), rounded(sum.most_bytes.into()), counted(sum.blocks, "block"));
        let title = format!("  {peak} at the pool's peak, {most} at most, {blocks}");
        if stacks.is_empty() {
            writeln!(out, "{title} without a call stack")?;
        } else {
            write_place(&format!("{title}, allocated at:"), *stacks, out)?;
        }
        write_place("    used by another stream since record_stream at:", *record_stream, out)?;
    }
    let more = places.len().saturating_sub(MAX_STACKS) as u64 + found.places_left_out;
    if more > 0 {
        writeln!(out, "  … and {} (see --json)", counted(more, "more stack"))?;
    }
    if found.places_full {
        writeln!(
            out,
            "  There were more blocks or call stacks than can be kept: the places have less than all blocks"
        )?;
    }
    if found.is_large() {
        writeln!(out, "  Let the program wait for the other stream before it frees, or look for record_stream")?;
    }
    if found.confidence == Confidence::Doubtful {
        writeln!(out, "  Doubtful: events were lost, so blocks may be missing, or wait that are back.")?;
    }
    Ok(())
}

fn open(all: &WaitSum) -> String {
    if all.open_blocks == 0 { String::new() } else { format!("; {} at the end", counted(all.open_blocks, "block")) }
}

fn milliseconds(time_ns: u64) -> String {
    format!("{:.3} ms", time_ns as f64 / 1e6)
}
