//! In what pieces memory is free.

use std::io::{self, Write};

use super::{Fragmentation, FreeSpace, FreeSpaceMoment, FreeSpaceSample, PiecesVerdict, Pinning};
use crate::model::{Confidence, Pool};
use crate::text::clock::Clock;
use crate::text::numbers::{counted, rounded, seconds, size};
use crate::text::{DeviceName, stacks};

/// Moments written.
const TIME_LINES: usize = 12;
/// Places of pinning blocks written for each moment.
const PLACE_LINES: usize = 5;

/// Writes one finding: its end, its worst moment, and the time between.
pub(super) fn write(found: &Fragmentation, clock: Clock, out: &mut dyn Write) -> io::Result<()> {
    let Fragmentation { pool, attached, end, worst, series, .. } = found;
    writeln!(out, "Free memory of {} on device {}:", pool.display_name(), DeviceName(found.device))?;
    if found.verdict == PiecesVerdict::Found {
        writeln!(
            out,
            "  Fragmented: at the worst moment {} was free beside live blocks, without the largest piece",
            size(found.judged().space.scattered_bytes)
        )?;
    }
    write_unknown(end, *attached, out)?;
    if end.segments > 0 || worst.is_some() {
        writeln!(out, "  {:>15}  {:>12}  {:>12}  {:>12}  {:>6}", "Time", "Segments", "Free", "Largest", "Ratio")?;
        for sample in chosen(series) {
            write_figures(&clock.since_start(sample.time_ns), &sample.worst, out)?;
        }
        for (name, moment) in [("the worst moment", worst.as_ref()), ("the end", Some(end))] {
            if let Some(moment) = moment {
                write_moment(name, moment, *pool, clock, out)?;
            }
        }
    }
    if found.confidence == Confidence::Doubtful {
        writeln!(
            out,
            "  Doubtful: events were lost, so blocks and segments may be missing, or counted that had gone."
        )?;
    }
    Ok(())
}

/// Writes the bytes in no figure.
fn write_unknown(end: &FreeSpaceMoment, attached: bool, out: &mut dyn Write) -> io::Result<()> {
    let why = if attached { "older than the trace, or not in the input" } else { "not in the input" };
    if end.unknown_bytes > 0 {
        writeln!(out, "  The pool holds {} in segments that are unknown: {why}", size(end.unknown_bytes))?;
    }
    if end.outside_bytes > 0 {
        writeln!(out, "  {} of its blocks are in no known segment, and in no figure below", size(end.outside_bytes))?;
    }
    Ok(())
}

fn write_figures(name: &str, space: &FreeSpace, out: &mut dyn Write) -> io::Result<()> {
    let FreeSpace { total_bytes, free_bytes, largest_free_bytes, ratio, .. } = *space;
    let [total, free, largest] = [total_bytes, free_bytes, largest_free_bytes].map(|bytes| rounded(bytes.into()));
    writeln!(out, "  {name:>15}  {total:>12}  {free:>12}  {largest:>12}  {ratio:>6.3}")
}

/// Evenly spaced samples, the last one among them.
fn chosen(series: &[FreeSpaceSample]) -> impl Iterator<Item = &FreeSpaceSample> {
    let step = series.len().div_ceil(TIME_LINES).max(1);
    series.iter().rev().step_by(step).collect::<Vec<_>>().into_iter().rev()
}

fn write_moment(name: &str, moment: &FreeSpaceMoment, pool: Pool, clock: Clock, out: &mut dyn Write) -> io::Result<()> {
    let FreeSpaceMoment { time_ns, space, segments, pinned_left_out, .. } = moment;
    let FreeSpace { free_bytes, largest_free_bytes, returnable_bytes, .. } = *space;
    write!(
        out,
        "  At {name}, {}: {} free in {}, the largest piece {}",
        clock.exact(*time_ns),
        size(free_bytes),
        counted(*segments, "segment"),
        size(largest_free_bytes),
    )?;
    match returnable_bytes {
        0 => writeln!(out)?,
        bytes => writeln!(
            out,
            "; {} in segments without a block: the pool gives these back when a request needs it",
            size(bytes)
        )?,
    }
    let places = moment.pinning();
    for place in places.iter().take(PLACE_LINES) {
        write_place(place, pool, out)?;
    }
    let more = places.len().saturating_sub(PLACE_LINES) as u64;
    if more > 0 {
        writeln!(out, "    … and {} (see --json)", counted(more, "more place"))?;
    }
    if *pinned_left_out > 0 {
        writeln!(out, "    … and {}", counted(*pinned_left_out, "more mostly empty segment"))?;
    }
    Ok(())
}

fn write_place(place: &Pinning, pool: Pool, out: &mut dyn Write) -> io::Result<()> {
    let Pinning { stacks, owner, blocks, size_bytes, age_ns, segments, free_bytes } = *place;
    let owner = owner.map_or(pool.event_type(), |owner| owner.as_str());
    let held = rounded(size_bytes.into());
    let blocks = counted(blocks, "block");
    if segments > 0 {
        let (free, segments) = (rounded(free_bytes.into()), counted(segments, "mostly empty segment"));
        write!(out, "    {free} free in {segments}, pinned by {blocks} ({held})")?;
    } else {
        write!(out, "    Beside larger ones: {blocks} ({held})")?;
    }
    writeln!(out, " of {owner}, up to {} old", seconds(age_ns))?;
    stacks::write_place("      allocated at:", stacks, out)
}

#[cfg(test)]
mod tests {
    use super::super::{Pin, PinnedSegment};
    use super::*;
    use crate::backend::ascend::pools;
    use crate::model::{Device, Name as OwnerName, Stack, StackEnd, Stacks};
    use crate::text::clock::without_wall;

    fn text(found: &Fragmentation) -> String {
        let mut out = Vec::new();
        write(found, Clock::since(1_000_000_000), &mut out).expect("memory takes everything");
        String::from_utf8(out).expect("the report is text")
    }

    fn fragmentation() -> Fragmentation {
        let space = FreeSpace {
            total_bytes: 8 << 20,
            used_bytes: 2 << 20,
            free_bytes: 6 << 20,
            largest_free_bytes: 3 << 20,
            returnable_bytes: 1 << 20,
            scattered_bytes: 2 << 20,
            ratio: 1.0 / 3.0,
        };
        let stacks = Stacks { native: Some(Stack::keep(["f\u{1b}"], StackEnd::Root)), ..Stacks::default() };
        let pin = |addr, owner| Pin { addr, size_bytes: 512, allocation_id: 1, owner, age_ns: 2_000_000_000, stacks };
        let pin = |addr, owner, stacks| Pin { stacks, ..pin(addr, owner) };
        let owner = Some(OwnerName::fixed(&"PTA@mine"));
        let mut blocks = vec![pin(0x1000, owner, stacks), pin(0x1200, None, Stacks::default())];
        blocks.extend([0x1400, 0x1600].map(|addr| pin(addr, None, Stacks::default())));
        let segment = PinnedSegment { addr: 0x1000, size_bytes: 4 << 20, used_bytes: 2048, blocks, blocks_left_out: 1 };
        let time_ns = 3_000_000_000;
        let (pinned, pinned_left_out) = (vec![segment], 3);
        let (unknown_bytes, outside_bytes) = (4096, 512);
        let end =
            FreeSpaceMoment { time_ns, space, segments: 2, pinned, pinned_left_out, unknown_bytes, outside_bytes };
        Fragmentation {
            pid: 7,
            device: Device::Npu(3),
            pool: pools::PTA,
            attached: true,
            verdict: PiecesVerdict::NotFound,
            start_ns: 1_000_000_000,
            end,
            worst: None,
            series: vec![FreeSpaceSample { time_ns, last: FreeSpace::default(), worst: space }],
            confidence: Confidence::Doubtful,
        }
    }

    #[test]
    fn pieces_are_listed_with_their_pins() {
        let expected = "\
Free memory of Pytorch Caching memory pool on device 3:
  The pool holds 4.00 KiB (4096 bytes) in segments that are unknown: older than the trace, or not in the input
  512 bytes of its blocks are in no known segment, and in no figure below
             Time      Segments          Free       Largest   Ratio
               2s      8.00 MiB      6.00 MiB      3.00 MiB   0.333
  At the end, 2s WALL: 6.00 MiB (6291456 bytes) free in 2 segments, the largest piece 3.00 MiB (3145728 bytes); 1.00 MiB (1048576 bytes) in segments without a block: the pool gives these back when a request needs it
    4.00 MiB free in 1 mostly empty segment, pinned by 3 blocks (1.50 KiB) of PTA, up to 2.000 s old
    Beside larger ones: 1 block (512 bytes) of PTA@mine, up to 2.000 s old
      allocated at:
      f\\u{1b}
    … and 3 more mostly empty segments
  Doubtful: events were lost, so blocks and segments may be missing, or counted that had gone.
";
        assert_eq!(without_wall(&text(&fragmentation())), expected);
    }

    /// The verdict is a line of its own, if there is one.
    #[test]
    fn fragmentation_is_said() {
        let found = text(&Fragmentation { verdict: PiecesVerdict::Found, ..fragmentation() });
        let expected = "\n  Fragmented: at the worst moment 2.00 MiB (2097152 bytes) was free beside live blocks, without the largest piece\n";
        assert!(found.contains(expected), "{found}");
    }

    /// Nothing is known of the segments: then there are no figures.
    #[test]
    fn unknown_segments_have_no_figures() {
        let end = FreeSpaceMoment { outside_bytes: 512, ..FreeSpaceMoment::default() };
        let found = Fragmentation { attached: false, end, confidence: Confidence::Certain, ..fragmentation() };
        assert_eq!(text(&found).lines().count(), 2);
        let worst = Some(fragmentation().end);
        assert!(
            without_wall(&text(&Fragmentation { worst, ..found }))
                .contains("\n  At the worst moment, 2s WALL: 6.00 MiB")
        );
    }

    /// Of many samples twelve are listed, the last one among them.
    #[test]
    fn samples_are_chosen() {
        let sample = |time_ns| FreeSpaceSample { time_ns, last: FreeSpace::default(), worst: FreeSpace::default() };
        let series: Vec<FreeSpaceSample> = (0..256).map(sample).collect();
        let times: Vec<u64> = chosen(&series).map(|sample| sample.time_ns).collect();
        assert_eq!(times, [13, 35, 57, 79, 101, 123, 145, 167, 189, 211, 233, 255]);
        assert_eq!(chosen(&[]).count(), 0);
    }
}
