//! Blocks that outlived their steps, by place.

use std::io::{self, Write};

use super::total_bytes;
use crate::model::{Confidence, StepLeakPlace, StepLeaks, StepVerdict};
use crate::text::{
    DeviceName,
    numbers::{counted, size},
    stacks,
};

/// Writes the places that leak, those that are undecided, and what was not judged.
pub(super) fn write(found: &StepLeaks, lines: usize, out: &mut dyn Write) -> io::Result<()> {
    let StepLeaks { places, unjudged, kept, steps_ended, steps_from, confidence, .. } = found;
    let (device, steps, from) = (DeviceName(found.device), counted(u64::from(*steps_ended), "step"), steps_from.note());
    let (leaks, undecided): (Vec<_>, Vec<_>) = places.iter().partition(|place| place.verdict == StepVerdict::Leak);
    if leaks.is_empty() && *steps_ended > 0 {
        writeln!(out, "No memory leaks detected on device {device} ({steps} ended{from}).")?;
    }
    if !leaks.is_empty() {
        let steps = if from.is_empty() { String::new() } else { format!(" ({steps}{from})") };
        writeln!(out, "Leaks of steps on device {device}{steps}: {}", sum(&leaks))?;
        write_places(&leaks, lines, out)?;
    }
    if !undecided.is_empty() {
        writeln!(out, "Undecided on device {device}: {} outlived their steps", sum(&undecided))?;
        write_places(&undecided, lines, out)?;
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

fn write_places(places: &[&StepLeakPlace], lines: usize, out: &mut dyn Write) -> io::Result<()> {
    for place in places.iter().take(lines) {
        write_place(place, out)?;
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
