//! From where memory was allocated.

use std::io::{self, Write};

use super::DeviceName;
use super::numbers::{counted, size};
use crate::dump_format::{stack_cell::last_line, text::push_text};
use crate::hash::HashMap;
use crate::model::{ByStack, CutStacks, Device, Stack, StackSum, Stacks};

/// Stacks that are written; all of them are in the JSON.
pub(crate) const MAX_STACKS: usize = 5;
/// Frames of a stack that are written.
const MAX_FRAMES: usize = 16;

/// Writes one finding.
pub(crate) fn write(found: &ByStack, out: &mut dyn Write) -> io::Result<()> {
    let ByStack { device, pool, sums, left_out, .. } = found;
    let live: Vec<&StackSum> = sums.iter().filter(|sum| sum.live_blocks > 0).collect();
    if live.is_empty() {
        return Ok(());
    }
    writeln!(out, "{} held at the end on device {}, by call stack:", pool.display_name(), DeviceName(*device))?;
    for sum in live.iter().take(MAX_STACKS) {
        write_sum(sum.stacks, sum.live_bytes, sum.live_blocks, out)?;
    }
    let more = live.len().saturating_sub(MAX_STACKS) as u64 + left_out;
    if more > 0 { writeln!(out, "  … and {} (see --json)", counted(more, "more stack")) } else { Ok(()) }
}

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

/// Writes how many calls have stacks that end early, if any.
pub(crate) fn write_cut(cut: &[CutStacks], out: &mut dyn Write) -> io::Result<()> {
    if cut.is_empty() {
        return Ok(());
    }
    let each =
        |CutStacks { kind, reason, count }: &CutStacks| format!("{kind} of {} ({reason})", counted(*count, "call"));
    writeln!(out, "Stacks that end early: {}", cut.iter().map(each).collect::<Vec<_>>().join(", "))
}

/// Writes a place with what is live of it.
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
    use crate::model::Pool;

    fn native(frames: &[&'static str], end: StackEnd) -> Stacks {
        Stacks { native: Some(Stack::keep(frames.iter().copied(), end)), ..Stacks::default() }
    }

    fn sum(stacks: Stacks, live_blocks: u64, live_bytes: u64) -> StackSum {
        StackSum { stacks, live_blocks, live_bytes, allocations: live_blocks, allocated_bytes: live_bytes }
    }

    #[test]
    fn largest_places_are_written() {
        let python = Some(Stack::keep(["a.py(3): f"], StackEnd::Root));
        let both = Stacks { python, ..native(&["g"], StackEnd::Root) };
        let mut sums = vec![
            sum(both, 2, 4096),
            sum(native(&["h\u{1b}", "main"], StackEnd::Depth), 1, 100),
            sum(Stacks::default(), 1, 50),
        ];
        sums.extend((0..4).map(|_| sum(native(&["small"], StackEnd::Root), 1, 1)));
        sums.push(sum(native(&["gone"], StackEnd::Root), 0, 0));
        let found = ByStack { pid: 1, device: Device::Npu(0), pool: Pool::Hal, sums, left_out: 3 };
        let mut text = Vec::new();
        write(&found, &mut text).expect("written");
        let small = "  1 byte in 1 block, allocated at:\n      small\n";
        assert_eq!(
            String::from_utf8(text).expect("text"),
            format!(
                "Hal memory held at the end on device 0, by call stack:\n  4.00 KiB (4096 bytes) in 2 blocks, allocated at:\n      \
                 a.py(3): f\n  100 bytes in 1 block, allocated at:\n      h\\u{{1b}}\n      main\n      ... [truncated: as deep \
                 as was asked for]\n  50 bytes in 1 block without a call stack\n{small}{small}  … and 5 more stacks (see \
                 --json)\n"
            )
        );
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

    /// Without stacks there is nothing to say; long ones are cut.
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
