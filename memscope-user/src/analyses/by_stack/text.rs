//! From where memory was allocated.

use std::io::{self, Write};

use super::{ByStack, StackSum};
use crate::text::{
    DeviceName,
    numbers::counted,
    stacks::{MAX_STACKS, write_sum},
};

/// Writes one finding.
pub(super) fn write(found: &ByStack, out: &mut dyn Write) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::ascend::pools;
    use crate::model::{Device, Stack, StackEnd, Stacks};

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
        let found = ByStack { pid: 1, device: Device::Npu(0), pool: pools::HAL, sums, found: Vec::new(), left_out: 3 };
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
}
