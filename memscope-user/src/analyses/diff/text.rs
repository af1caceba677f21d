//! Increases and decreases between two moments, as text.

use std::io::{self, Write};

use super::{Diff, DiffSide, LiveChange, OwnerDiff, PlaceDiff, PoolDiff};
use crate::dump_format::text::push_text;
use crate::model::{Confidence, SizeSum};
use crate::text::groups::size_class;
use crate::text::numbers::{rounded, seconds};
use crate::text::{DeviceName, stacks};

/// Lines of each table.
const TABLE_LINES: usize = 20;

/// Writes the changes pool by pool, the largest increase first.
pub fn write_diff(found: &Diff, out: &mut dyn Write) -> io::Result<()> {
    for (word, side) in [("From", &found.from), ("To", &found.to)] {
        write_side(word, side, out)?;
    }
    if found.pools.is_empty() {
        return writeln!(out, "No blocks were seen at either moment.");
    }
    found.pools.iter().try_for_each(|pool| write_pool(pool, out))
}

fn write_side(word: &str, side: &DiffSide, out: &mut dyn Write) -> io::Result<()> {
    let mut input = Vec::new();
    push_text(&mut input, &side.input, false);
    write!(out, "{word} ")?;
    out.write_all(&input)?;
    let when = match side.at.as_str() {
        "end" => "at the end".to_owned(),
        "peak" => "at the peak".to_owned(),
        after => format!("after {after}"),
    };
    write!(out, ", {when} (of {})", seconds(side.length_ns))?;
    if side.attached {
        write!(out, "; blocks older than the trace are not counted")?;
    }
    if side.confidence == Confidence::Doubtful {
        write!(out, "; doubtful: events were lost")?;
    }
    writeln!(out)
}

fn write_pool(found: &PoolDiff, out: &mut dyn Write) -> io::Result<()> {
    let PoolDiff { device, pool, judged, change, owners, places, places_left_out, sizes, places_full } = found;
    write!(out, "{} on device {}: ", pool.display_name(), DeviceName(*device))?;
    write_change(*change, out)?;
    if !judged {
        writeln!(out, "  Owners and places were not judged: one of the two inputs has no call stacks")?;
    }
    let owner = |it: &OwnerDiff| (it.owner.map_or(pool.event_type(), |name| name.as_str()).to_owned(), it.change);
    write_table("Owner", owners.iter().map(owner), out)?;
    let size = |least_bytes: u64| size_class(&SizeSum { least_bytes, live: crate::model::LiveSum::default() });
    write_table("Size of each block", sizes.iter().map(|it| (size(it.least_bytes), it.change)), out)?;
    let grown = places.iter().filter(|place| place.change.grown_bytes > 0).count();
    for PlaceDiff { stacks: at, change } in places.iter().take(stacks::MAX_STACKS.min(grown)) {
        write!(out, "  ")?;
        write_change(*change, out)?;
        stacks::write_place("  allocated at:", *at, out)?;
        if at.is_empty() {
            writeln!(out, "  without a call stack")?;
        }
    }
    let more = places.len().saturating_sub(stacks::MAX_STACKS.min(grown)) as u64 + places_left_out;
    if more > 0 {
        writeln!(out, "  … and {more} more places that grew less or shrank (see --json)")?;
    }
    if *places_full {
        writeln!(out, "  There were more call stacks than can be kept; the others count as none")?;
    }
    Ok(())
}

/// One line: the change, and both values.
fn write_change(change: LiveChange, out: &mut dyn Write) -> io::Result<()> {
    let LiveChange { from, to, grown_bytes, grown_blocks } = change;
    let [before, after] = [from, to].map(|live| rounded(live.size_bytes.into()));
    let blocks = format!("{} to {} blocks ({grown_blocks:+})", from.blocks, to.blocks);
    writeln!(out, "{}, {before} to {after}; {blocks}", signed(grown_bytes))
}

fn write_table(title: &str, rows: impl Iterator<Item = (String, LiveChange)>, out: &mut dyn Write) -> io::Result<()> {
    let rows: Vec<(String, LiveChange)> = rows.collect();
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(out, "  {:>12}  {:>12}  {:>12}  {:>8}  {title}", "Growth", "From", "To", "Blocks")?;
    for (name, change) in rows.iter().take(TABLE_LINES) {
        let [from, to] = [change.from, change.to].map(|live| rounded(live.size_bytes.into()));
        writeln!(
            out,
            "  {:>12}  {from:>12}  {to:>12}  {:>+8}  {name}",
            signed(change.grown_bytes),
            change.grown_blocks
        )?;
    }
    let more = rows.len().saturating_sub(TABLE_LINES);
    if more > 0 { writeln!(out, "  … and {more} more (see --json)") } else { Ok(()) }
}

/// `+2.00 MiB`.
fn signed(bytes: i128) -> String {
    let sign = if bytes < 0 { '-' } else { '+' };
    format!("{sign}{}", rounded(bytes.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyses::diff::SizeDiff;
    use crate::backend::ascend::pools;
    use crate::model::{Device, LiveSum, Name as OwnerName, Stack, StackEnd, Stacks};

    fn change(from: (u64, u64), to: (u64, u64)) -> LiveChange {
        let live = |(blocks, size_bytes)| LiveSum { blocks, size_bytes };
        LiveChange::new(live(from), live(to))
    }

    fn side(at: &str, attached: bool, confidence: Confidence) -> DiffSide {
        DiffSide { input: "a\u{1b}.csv".to_owned(), at: at.to_owned(), length_ns: 2_500_000_000, attached, confidence }
    }

    fn text(found: &Diff) -> String {
        let mut out = Vec::new();
        write_diff(found, &mut out).expect("memory takes everything");
        String::from_utf8(out).expect("the report is text")
    }

    #[test]
    fn changes_are_listed_by_owner_size_and_stack() {
        let mine = Some(OwnerName::fixed(&"PTA@mine"));
        let native = Some(Stack::keep(["f\u{1b}"], StackEnd::Root));
        let pool = PoolDiff {
            device: Device::Npu(3),
            pool: pools::PTA,
            judged: true,
            change: change((3, 1 << 20), (7, 3 << 20)),
            owners: vec![
                OwnerDiff { owner: mine, change: change((1, 0), (6, 3 << 20)) },
                OwnerDiff { owner: None, change: change((2, 1 << 20), (1, 0)) },
            ],
            places: vec![
                PlaceDiff { stacks: Stacks { native, ..Stacks::default() }, change: change((0, 0), (4, 3 << 20)) },
                PlaceDiff { stacks: Stacks::default(), change: change((3, 10), (3, 20)) },
                PlaceDiff { stacks: Stacks { native, ..Stacks::default() }, change: change((3, 20), (3, 10)) },
            ],
            places_left_out: 1,
            sizes: vec![SizeDiff { least_bytes: 512, change: change((1, 512), (2, 1024)) }],
            places_full: true,
        };
        let from = side("end", true, Confidence::Doubtful);
        let found = Diff { from, to: side("1.500s", false, Confidence::Certain), pools: vec![pool] };
        let expected = "\
From a\\u{1b}.csv, at the end (of 2.500 s); blocks older than the trace are not counted; doubtful: events were lost
To a\\u{1b}.csv, after 1.500s (of 2.500 s)
Pytorch Caching memory pool on device 3: +2.00 MiB, 1.00 MiB to 3.00 MiB; 3 to 7 blocks (+4)
        Growth          From            To    Blocks  Owner
     +3.00 MiB       0 bytes      3.00 MiB        +5  PTA@mine
     -1.00 MiB      1.00 MiB       0 bytes        -1  PTA
        Growth          From            To    Blocks  Size of each block
    +512 bytes     512 bytes      1.00 KiB        +1  512 bytes to less than 1.00 KiB
  +3.00 MiB, 0 bytes to 3.00 MiB; 0 to 4 blocks (+4)
  allocated at:
      f\\u{1b}
  +10 bytes, 10 bytes to 20 bytes; 3 to 3 blocks (+0)
  without a call stack
  … and 2 more places that grew less or shrank (see --json)
  There were more call stacks than can be kept; the others count as none
";
        assert_eq!(text(&found), expected);
    }

    /// Totals and sizes remain where one side has no stacks.
    #[test]
    fn what_cannot_be_compared_is_said() {
        let pool = PoolDiff {
            device: Device::Npu(0),
            pool: pools::HAL,
            judged: false,
            change: change((1, 512), (2, 1024)),
            owners: Vec::new(),
            places: Vec::new(),
            places_left_out: 0,
            sizes: vec![SizeDiff { least_bytes: 512, change: change((1, 512), (2, 1024)) }],
            places_full: false,
        };
        let side = side("end", false, Confidence::Certain);
        let found = text(&Diff { from: side.clone(), to: side, pools: vec![pool] });
        let expected = "+512 bytes, 512 bytes to 1.00 KiB; 1 to 2 blocks (+1)
  Owners and places were not judged: one of the two inputs has no call stacks
        Growth          From            To    Blocks  Size of each block\n";
        assert!(found.contains(expected), "{found}");
    }

    #[test]
    fn nothing_at_all() {
        let side = side("peak", false, Confidence::Certain);
        let found = Diff { from: side.clone(), to: side, pools: Vec::new() };
        assert!(text(&found).ends_with(", at the peak (of 2.500 s)\nNo blocks were seen at either moment.\n"));
    }
}
