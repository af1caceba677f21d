//! Ranks as text.

use std::io::{self, Write};

use super::{Rank, RankDifference, Ranks};
use crate::model::{Stack, StepsFrom};
use crate::text::numbers::rounded;

/// Frames shown of a place.
const FRAMES: usize = 4;

/// Writes what was found.
pub fn write_ranks(found: &Ranks, out: &mut dyn Write) -> io::Result<()> {
    let Ranks { ranks, common_steps, last_step, places, differences, left_out } = found;
    match last_step {
        Some(last) => writeln!(out, "{} ranks, compared at {common_steps} steps, up to step {last}.", ranks.len())?,
        None => writeln!(out, "{} ranks, compared at their ends: they have no step in common.", ranks.len())?,
    }
    for (number, rank) in ranks.iter().enumerate() {
        write_rank(number, rank, out)?;
    }
    if !places {
        writeln!(out, "Some ranks have call stacks and some have none: totals of pools alone are compared.")?;
    }
    if differences.is_empty() {
        return writeln!(out, "No rank differs from the median by more than is usual among them, and 1 MiB.");
    }
    for difference in differences {
        write_difference(difference, out)?;
    }
    if *left_out > 0 {
        writeln!(out, "{left_out} further differences are smaller.")?;
    }
    Ok(())
}

fn write_rank(number: usize, rank: &Rank, out: &mut dyn Write) -> io::Result<()> {
    let Rank { input, pid, devices, steps, steps_from, clock_offset_ns, clock_spread_ns, cut } = rank;
    let from = if *steps > 0 && *steps_from != StepsFrom::Marks { steps_from.note() } else { "" };
    write!(out, "  rank {number}: {input}")?;
    if let Some(pid) = pid {
        let devices: Vec<String> = devices.iter().map(|device| device.name_or("-")).collect();
        write!(out, ", process {pid} on {}", devices.join(" "))?;
    }
    write!(out, ", {steps} steps{from}")?;
    if let (Some(offset), Some(spread)) = (clock_offset_ns, clock_spread_ns) {
        let [offset, spread] = [*offset as f64 / 1e6, *spread as f64 / 1e6];
        write!(out, ", clock {offset:+.1} ms (±{spread:.1} ms)")?;
    }
    writeln!(out, "{}", if *cut { "; too many changes: its end is not compared" } else { "" })
}

fn write_difference(difference: &RankDifference, out: &mut dyn Write) -> io::Result<()> {
    let RankDifference { rank, pool, place, size_bytes, since_step, bytes, median_bytes, .. } = difference;
    let more = if difference.difference_bytes < 0 { "less" } else { "more" };
    let of = match (place, size_bytes) {
        (Some(_), _) => "at one place".to_owned(),
        (None, Some(size_bytes)) => format!("in blocks of {}", rounded((*size_bytes).into())),
        (None, None) => "in all".to_owned(),
    };
    write!(
        out,
        "Rank {rank} holds {} {more} of {} {of}: {}, the median {}",
        rounded(difference.difference_bytes.unsigned_abs().into()),
        pool.display_name(),
        rounded((*bytes).into()),
        rounded((*median_bytes).into())
    )?;
    if let Some(step) = since_step {
        write!(out, "; since step {step}")?;
    }
    if let Some(growth) = difference.growth_bytes_per_step {
        let sign = if growth < 0.0 { "-" } else { "+" };
        write!(out, ", {sign}{} a step", rounded(growth.abs() as u128))?;
    }
    writeln!(out, ".")?;
    let frames = place.and_then(|stacks| stacks.best()).map(Stack::frames).unwrap_or_default();
    frames.iter().take(FRAMES).try_for_each(|frame| writeln!(out, "    {frame}"))
}
