//! Blocks that outlived their steps, by place.

use std::io::{self, Write};

use super::{Leak, StepLeakPlace, StepLeaks, StepVerdict};
use crate::analyses::held_by::{HeldBy, write_lines};
use crate::model::{Confidence, Device};
use crate::text::{
    DeviceName,
    numbers::{counted, general, mega, size},
    stacks,
};

/// Writes the leaking places, the undecided ones, and the blocks that were not judged.
pub(super) fn write(found: &StepLeaks, held_by: &[&HeldBy], lines: usize, out: &mut dyn Write) -> io::Result<()> {
    let StepLeaks { places, unjudged, kept, steps_ended, steps_from, confidence, .. } = found;
    let (device, steps, from) = (DeviceName(found.device), counted(u64::from(*steps_ended), "step"), steps_from.note());
    let (leaks, undecided): (Vec<_>, Vec<_>) = places.iter().partition(|place| place.verdict == StepVerdict::Leak);
    if leaks.is_empty() && *steps_ended > 0 {
        writeln!(out, "No memory leaks detected on device {device} ({steps} ended{from}).")?;
    }
    if !leaks.is_empty() {
        let steps = if from.is_empty() { String::new() } else { format!(" ({steps}{from})") };
        writeln!(out, "Leaks of steps on device {device}{steps}: {}", sum(&leaks))?;
        write_places(&leaks, (found.device, held_by), lines, out)?;
    }
    if !undecided.is_empty() {
        writeln!(out, "Undecided on device {device}: {} outlived their steps", sum(&undecided))?;
        write_places(&undecided, (found.device, held_by), lines, out)?;
    }
    if !unjudged.is_empty() {
        let (blocks, bytes) = (counted(unjudged.len() as u64, "block"), size(total_bytes(unjudged)));
        writeln!(
            out,
            "Not judged on device {device}: {blocks}, {bytes}, live at the end. No step after their own ended, so \
             whether they leak is open."
        )?;
    }
    if kept.blocks > 0 {
        writeln!(
            out,
            "Kept on device {device}: {}, {}, of steps were held until the exit, at places that do not grow from step to step: no leak.",
            counted(kept.blocks, "block"),
            size(kept.size_bytes)
        )?;
    }
    if *confidence == Confidence::Doubtful {
        writeln!(out, "Doubtful on device {device}: events were lost, so leaks may be missing or wrong.")?;
    }
    Ok(())
}

fn sum(places: &[&StepLeakPlace]) -> String {
    let bytes = places.iter().map(|place| place.size_bytes).fold(0, u64::saturating_add);
    let blocks = places.iter().map(|place| place.blocks).sum();
    format!("{} in {} of {}", size(bytes), counted(blocks, "block"), counted(places.len() as u64, "place"))
}

fn write_places(
    places: &[&StepLeakPlace],
    (device, held_by): (Device, &[&HeldBy]),
    lines: usize,
    out: &mut dyn Write,
) -> io::Result<()> {
    for place in places.iter().take(lines) {
        write_place(place, out)?;
        write_lines(held_by, (device, place.pool, place.stacks, place.each_bytes), out)?;
    }
    let more = places.len().saturating_sub(lines) as u64;
    if more > 0 { writeln!(out, "  … and {} (see --json)", counted(more, "more place")) } else { Ok(()) }
}

fn write_place(place: &StepLeakPlace, out: &mut dyn Write) -> io::Result<()> {
    let StepLeakPlace { pool, verdict, blocks, size_bytes, steps, step_range: [first, last], each_bytes, stacks } =
        place;
    let each = each_bytes.map_or_else(String::new, |each| format!(" of {each} bytes"));
    let range = if first == last { format!("step {first}") } else { format!("{steps} steps, {first} to {last}") };
    let why = if *verdict == StepVerdict::Leak { String::new() } else { format!(": {}", verdict.reason()) };
    let (bytes, blocks) = (size(*size_bytes), counted(*blocks, "block"));
    writeln!(out, "  {}: {bytes} in {blocks}{each}, of {range}{why}", pool.display_name())?;
    stacks::write_each(*stacks, out)
}

/// Lists the blocks in the lines of the reference (contract §8.2).
pub(super) fn write_blocks(found: &StepLeaks, lines: usize, out: &mut dyn Write) -> io::Result<()> {
    let StepLeaks { device, leaks, .. } = found;
    if leaks.is_empty() {
        return Ok(());
    }
    writeln!(out, "====== ERROR: Detected memory leaks on device {} ======", DeviceName(*device))?;
    for Leak { pool, addr, size_bytes, step, kernel_index, .. } in leaks.iter().take(lines) {
        let (pool, mb) = (pool.display_name(), mega(*size_bytes));
        writeln!(out, "Direct {pool} leak of {mb:.6} Mb(s) at {addr:#x} in kernel_{kernel_index} at step {step}.")?;
    }
    if let Some(more) = leaks.len().checked_sub(lines).filter(|&more| more > 0) {
        writeln!(out, "… and {more} more (see --json)")?;
    }
    let (total, count) = (general(mega(total_bytes(leaks))), leaks.len());
    writeln!(out, "====== SUMMARY: {total} Mb(s) leaked in {count} allocation(s) ======")
}

/// Writes how steps are marked, if none was.
pub(super) fn write_hint(out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "No steps were marked, so leaks of steps are not judged. Call `msmemscope.step()` after each step, or mark it with \
         an mstx range named `step start`. torch_npu's own `mstx` module makes no call while no profiler runs: its ranges \
         mark no steps. With `--call-stack=python` steps of training are inferred from the optimizer."
    )
}

fn total_bytes(leaks: &[Leak]) -> u64 {
    leaks.iter().map(|leak| leak.size_bytes).fold(0, u64::saturating_add)
}
