//! Live blocks in groups: tables by owner and size, and the places with the most bytes.

use std::io::{self, Write};

use super::numbers::{counted, rounded};
use super::stacks;
use crate::model::{LiveGroups, LiveSum, OwnerSum, Pool, SizeSum, Stacks};

/// Lines of each table.
const TABLE_LINES: usize = 20;

/// Writes tables by owner and size, and the places with the most bytes; `column` heads the bytes. `holders`: lines about a place.
pub(crate) fn write_groups(
    column: &str,
    groups: &LiveGroups,
    pool: Pool,
    places_left_out: u64,
    holders: &dyn Fn(Stacks) -> Vec<String>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let LiveGroups { owners, places, sizes, places_full } = groups;
    let owner = |sum: &OwnerSum| (sum.owner.map_or(pool.event_type(), |name| name.as_str()).to_owned(), sum.live);
    write_table(column, "Owner", owners.iter().map(owner), out)?;
    write_table(column, "Size of each block", sizes.iter().map(|sum| (size_class(sum), sum.live)), out)?;
    for sum in places.iter().take(stacks::MAX_STACKS) {
        stacks::write_sum(sum.stacks, sum.live.size_bytes, sum.live.blocks, out)?;
        holders(sum.stacks).iter().try_for_each(|line| writeln!(out, "    {line}"))?;
    }
    let more = places.len().saturating_sub(stacks::MAX_STACKS) as u64 + places_left_out;
    if more > 0 {
        writeln!(out, "  … and {} (see --json)", counted(more, "more stack"))?;
    }
    if *places_full {
        writeln!(out, "  There were more call stacks than can be kept; the others count as none")?;
    }
    Ok(())
}

fn write_table(
    column: &str,
    title: &str,
    rows: impl Iterator<Item = (String, LiveSum)>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let rows: Vec<(String, LiveSum)> = rows.collect();
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(out, "  {column:>12}  {:>8}  {title}", "Blocks")?;
    for (name, live) in rows.iter().take(TABLE_LINES) {
        writeln!(out, "  {:>12}  {:>8}  {name}", rounded(live.size_bytes.into()), live.blocks)?;
    }
    let more = rows.len().saturating_sub(TABLE_LINES);
    if more > 0 { writeln!(out, "  … and {more} more (see --json)") } else { Ok(()) }
}

/// The sizes of a class, as a range.
pub(crate) fn size_class(SizeSum { least_bytes, .. }: &SizeSum) -> String {
    let least = u128::from(*least_bytes);
    match least_bytes {
        0 | 1 => counted(*least_bytes, "byte"),
        _ => format!("{} to less than {}", rounded(least), rounded(2 * least)),
    }
}
