//! Call stacks and the places that they stand for.

use std::io::{self, Write};

use super::DeviceName;
use super::numbers::{counted, size};
use crate::dump_format::{stack_cell::last_line, text::push_text};
use crate::hash::HashMap;
use crate::model::{CutStacks, Device, Stack, Stacks};

/// Stacks written; all of them are in the JSON.
pub(crate) const MAX_STACKS: usize = 5;
/// Frames written of a stack.
const MAX_FRAMES: usize = 16;

/// Writes from where the blocks of a list were allocated; nothing if no stack is known.
pub(crate) fn write_blocks(
    title: &str,
    device: Device,
    blocks: impl Iterator<Item = (Stacks, u64)>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut sums: HashMap<Stacks, (u64, u64)> = HashMap::default();
    for (stacks, size_bytes) in blocks {
        let (bytes, count) = sums.entry(stacks).or_default();
        *bytes = bytes.saturating_add(size_bytes);
        *count += 1;
    }
    if sums.keys().all(Stacks::is_empty) {
        return Ok(());
    }
    let mut sums: Vec<(Stacks, (u64, u64))> = sums.into_iter().collect();
    sums.sort_unstable_by_key(|(stacks, sum)| std::cmp::Reverse((*sum, *stacks)));
    writeln!(out, "{title} {}, by call stack:", DeviceName(device))?;
    for (stacks, (bytes, count)) in sums.iter().take(MAX_STACKS) {
        write_sum(*stacks, *bytes, *count, out)?;
    }
    let more = sums.len().saturating_sub(MAX_STACKS) as u64;
    if more > 0 { writeln!(out, "  … and {} (see --json)", counted(more, "more stack")) } else { Ok(()) }
}

/// Writes the number of calls with stacks that end early, if any.
pub(crate) fn write_cut(cut: &[CutStacks], out: &mut dyn Write) -> io::Result<()> {
    if cut.is_empty() {
        return Ok(());
    }
    let each =
        |CutStacks { kind, reason, count }: &CutStacks| format!("{kind} of {} ({reason})", counted(*count, "call"));
    writeln!(out, "Stacks that end early: {}", cut.iter().map(each).collect::<Vec<_>>().join(", "))
}

/// Writes a place with its live memory.
pub(crate) fn write_sum(stacks: Stacks, bytes: u64, count: u64, out: &mut dyn Write) -> io::Result<()> {
    let blocks = counted(count, "block");
    write_place(&format!("  {} in {blocks}, allocated at:", size(bytes)), stacks, out)?;
    if stacks.is_empty() { writeln!(out, "  {} in {blocks} without a call stack", size(bytes)) } else { Ok(()) }
}

/// Writes one place, if there is one.
pub(crate) fn write_place(title: &str, stacks: Stacks, out: &mut dyn Write) -> io::Result<()> {
    let Some(stack) = stacks.best() else { return Ok(()) };
    writeln!(out, "{title}")?;
    write_frames(stack, out)
}

/// Writes all stacks of a place: the mixed one, or Python's and the native one.
pub(crate) fn write_each(stacks: Stacks, out: &mut dyn Write) -> io::Result<()> {
    let each = if stacks.mixed.is_some() { [stacks.mixed, None] } else { [stacks.python, stacks.native] };
    each.into_iter().flatten().try_for_each(|stack| write_frames(stack, out))
}

/// Writes a stack from the inside on, and why it ends if it is not whole.
fn write_frames(stack: Stack, out: &mut dyn Write) -> io::Result<()> {
    let frames = stack.frames();
    let mut line = Vec::new();
    for frame in frames.iter().take(MAX_FRAMES) {
        line.clear();
        push_text(&mut line, frame, false);
        line.push(b'\n');
        out.write_all(b"      ")?;
        out.write_all(&line)?;
    }
    let more = frames.len().saturating_sub(MAX_FRAMES) as u64;
    match last_line(stack.end()) {
        _ if more > 0 => writeln!(out, "      … and {}", counted(more, "more frame")),
        Some(why) => writeln!(out, "      {why}"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::StackEnd;

    fn native(frames: &[&'static str], end: StackEnd) -> Stacks {
        Stacks { native: Some(Stack::keep(frames.iter().copied(), end)), ..Stacks::default() }
    }

    #[test]
    fn stacks_that_end_early_are_counted() {
        let text = |cut: &[CutStacks]| {
            let mut text = Vec::new();
            write_cut(cut, &mut text).expect("written");
            String::from_utf8(text).expect("text")
        };
        let cut = |kind, reason, count| CutStacks { kind, reason, count };
        assert_eq!(text(&[]), "");
        assert_eq!(
            text(&[cut("C", "no unwind rule at hand", 1), cut("Python", "too many stacks at a time", 20)]),
            "Stacks that end early: C of 1 call (no unwind rule at hand), Python of 20 calls (too many stacks at a time)\n"
        );
    }

    /// Without stacks there is no text; long ones are cut.
    #[test]
    fn blocks_are_summed_up() {
        let text = |blocks: &[(Stacks, u64)]| {
            let mut text = Vec::new();
            write_blocks("Leaked on device", Device::Cpu, blocks.iter().copied(), &mut text).expect("written");
            String::from_utf8(text).expect("text")
        };
        assert_eq!(text(&[(Stacks::default(), 5)]), "");
        let deep = native(&["f"; 20], StackEnd::Root);
        let expected = format!(
            "Leaked on device host, by call stack:\n  12 bytes in 2 blocks, allocated at:\n{}      … and 4 more frames\n",
            "      f\n".repeat(16)
        );
        assert_eq!(text(&[(deep, 5), (deep, 7)]), expected);
    }
}
