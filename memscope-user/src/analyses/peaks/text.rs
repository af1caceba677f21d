//! Live memory at the peak, as text.

use std::io::{self, Write};

use super::Peak;
use crate::analyses::held_by::{self, HeldBy};
use crate::model::Confidence;
use crate::text::{
    DeviceName,
    clock::Clock,
    groups::write_groups,
    numbers::{counted, size},
};

/// Writes one finding.
pub(super) fn write(found: &Peak, held_by: &[&HeldBy], clock: Clock, out: &mut dyn Write) -> io::Result<()> {
    let Peak { pool, step, steps_from, peak_bytes, seen, unseen_bytes, groups, places_left_out, .. } = found;
    write!(out, "Peak of {} on device {}: {}", pool.display_name(), DeviceName(found.device), size(*peak_bytes))?;
    write!(out, " in {}, at {}", counted(seen.blocks, "block"), clock.exact(found.time_ns))?;
    match step {
        0 => writeln!(out)?,
        _ => writeln!(out, ", in step {step}{}", steps_from.note())?,
    }
    if *unseen_bytes > 0 {
        let why = if found.attached { "older than the trace" } else { "not seen" };
        writeln!(out, "  {} of it were allocated by calls {why}, and are in no group", size(*unseen_bytes))?;
    }
    let holders = |stacks| held_by::lines(held_by.iter().copied(), (found.device, *pool, stacks, None), false);
    write_groups("At peak", groups, *pool, *places_left_out, &holders, out)?;
    if found.confidence == Confidence::Doubtful {
        writeln!(out, "  Doubtful: events were lost, so blocks may be missing, or counted that had gone.")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyses::held_by::HeldPlace;
    use crate::backend::ascend::pools;
    use crate::model::{
        Device, HolderPath, LiveGroups, LiveSum, LookedAt, Name as OwnerName, OwnerSum, PlaceSum, SizeSum, Stack,
        StackEnd, Stacks, StepsFrom,
    };
    use crate::text::clock::without_wall;

    fn text(found: &Peak) -> String {
        let mut out = Vec::new();
        write(found, &[], Clock::since(1_000_000_000), &mut out).expect("memory takes everything");
        String::from_utf8(out).expect("the report is text")
    }

    fn peak() -> Peak {
        let live = |blocks, size_bytes| LiveSum { blocks, size_bytes };
        let native = Some(Stack::keep(["f", "main\u{1b}"], StackEnd::Root));
        let owners = vec![
            OwnerSum { owner: Some(OwnerName::fixed(&"PTA@weight")), live: live(2, 3 << 20) },
            OwnerSum { owner: None, live: live(1, 1) },
        ];
        let places = vec![PlaceSum { stacks: Stacks { native, ..Stacks::default() }, live: live(3, (3 << 20) + 1) }];
        let sizes = vec![
            SizeSum { least_bytes: 1, live: live(1, 1) },
            SizeSum { least_bytes: 1 << 20, live: live(2, 3 << 20) },
        ];
        Peak {
            pid: 7,
            device: Device::Npu(3),
            pool: pools::PTA,
            attached: true,
            start_ns: 1_000_000_000,
            time_ns: 3_500_000_000,
            step: 2,
            steps_from: StepsFrom::Marks,
            peak_bytes: 4 << 20,
            seen: live(3, (3 << 20) + 1),
            unseen_bytes: (1 << 20) - 1,
            groups: LiveGroups { owners, places, sizes, places_full: true },
            places_left_out: 2,
            confidence: Confidence::Doubtful,
        }
    }

    #[test]
    fn peak_is_listed_by_owner_size_and_stack() {
        let expected = "\
Peak of Pytorch Caching memory pool on device 3: 4.00 MiB (4194304 bytes) in 3 blocks, at 2.5s WALL, in step 2
  1024.00 KiB (1048575 bytes) of it were allocated by calls older than the trace, and are in no group
       At peak    Blocks  Owner
      3.00 MiB         2  PTA@weight
        1 byte         1  PTA
       At peak    Blocks  Size of each block
        1 byte         1  1 byte
      3.00 MiB         2  1.00 MiB to less than 2.00 MiB
  3.00 MiB (3145729 bytes) in 3 blocks, allocated at:
      f
      main\\u{1b}
  … and 2 more stacks (see --json)
  There were more call stacks than can be kept; the others count as none
  Doubtful: events were lost, so blocks may be missing, or counted that had gone.
";
        assert_eq!(without_wall(&text(&peak())), expected);
    }

    /// What holds the blocks of a place now is below it, where that was looked at.
    #[test]
    fn holders_of_places() {
        let peak = peak();
        let held = HeldPlace {
            pool: peak.pool,
            each_bytes: None,
            stacks: peak.groups.places[0].stacks,
            live: LiveSum { blocks: 3, size_bytes: 3 },
            looked_at_blocks: 3,
            holders: vec![HolderPath { path: "m.kept[*]".to_owned(), is_sure: true, blocks: 2 }],
            garbage_blocks: 0,
            unknown_blocks: 1,
            left_out: None,
        };
        let found = HeldBy {
            pid: peak.pid,
            device: peak.device,
            looked_at: LookedAt::End,
            time_ns: 1,
            process_end_ns: None,
            not_looked_for: None,
            places: vec![held],
        };
        let mut out = Vec::new();
        write(&peak, &[&found], Clock::since(0), &mut out).expect("memory takes everything");
        let text = String::from_utf8(out).expect("text");
        assert!(text.contains("      main\\u{1b}\n    still held by: m.kept[*]  (2 of 3 blocks)\n"), "{text}");
    }

    /// Without steps, stacks and old blocks there are no lines about them.
    #[test]
    fn absent_parts_have_no_lines() {
        let groups = LiveGroups { places: Vec::new(), places_full: false, ..peak().groups };
        let (step, unseen_bytes, places_left_out, confidence) = (0, 0, 0, Confidence::Certain);
        let text = without_wall(&text(&Peak { step, unseen_bytes, groups, places_left_out, confidence, ..peak() }));
        assert!(
            text.starts_with("Peak of Pytorch Caching memory pool on device 3: 4.00 MiB (4194304 bytes) in 3 blocks, ")
        );
        assert!(text.contains(", at 2.5s WALL\n"), "{text}");
        assert_eq!(text.lines().count(), 7, "{text}");
    }
}
