//! Ledgers as text: one line for each figure, in columns, each with its source.

use std::io::{self, Write};

use super::{Entry, Item, Ledger, Moment, Sheet, Sign};
use crate::analyses::{Finding, answer::Kind as _};
use crate::model::Confidence;
use crate::text::{DeviceName, numbers::rounded};

/// A line before its columns are aligned.
struct Line {
    sign: char,
    name: String,
    size_bytes: String,
    rounded: String,
    source: &'static str,
}

/// Writes the ledgers among the findings, and nothing else.
#[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "the command line prints ledgers of running traces"))]
pub(crate) fn write_all(findings: &[Finding], out: &mut dyn Write) -> io::Result<()> {
    findings.iter().filter_map(Ledger::of).try_for_each(|found| write(found, out))
}

/// Writes a ledger; a requested one also if it is empty.
pub(super) fn write(ledger: &Ledger, out: &mut dyn Write) -> io::Result<()> {
    let Ledger { pid, device, moment, used, hal, pools, .. } = ledger;
    let is_empty = used.is_none() && hal.total.size_bytes == 0 && pools.is_empty();
    if is_empty && *moment != Moment::Now {
        return Ok(());
    }
    let moment = match moment {
        Moment::Peak => "at its peak",
        Moment::End => "at the end",
        Moment::Now => "now",
    };
    write!(out, "Ledger of process {pid} on device {} {moment}; {}", DeviceName(*device), figures(ledger))?;
    if ledger.attached {
        write!(out, "; blocks older than the trace are in the driver's and the pools' own figures alone")?;
    }
    writeln!(out)?;
    let mut lines: Vec<Line> = Vec::new();
    lines.extend(used.iter().flat_map(lines_of));
    lines.extend(lines_of(hal));
    // A pool with its own figure equal to the seen memory adds no line.
    let has_difference = |sheet: &&Sheet| sheet.parts.len() > 1;
    let sheets = pools.iter().flat_map(|pool| [&pool.allocated, &pool.reserved]);
    lines.extend(sheets.filter(has_difference).flat_map(lines_of));
    write_lines(&lines, out)?;
    if ledger.confidence == Confidence::Doubtful {
        writeln!(out, "  Doubtful: events were lost, so parts may be missing or too many.")?;
    }
    Ok(())
}

/// State of the device's own figures.
fn figures(ledger: &Ledger) -> String {
    let (Some(time_ns), Some(capacity_bytes)) = (ledger.used_time_ns, ledger.capacity_bytes) else {
        return "the driver's figures of the device (DCMI) are not known".to_owned();
    };
    let (before, after) = (ledger.time_ns.saturating_sub(time_ns), time_ns.saturating_sub(ledger.time_ns));
    let distance = before.max(after) as f64 / 1e9;
    let side = if after > 0 { "after" } else { "before" };
    let capacity = rounded(capacity_bytes.into());
    format!("the driver's figures of the device, which has {capacity}, were taken {distance:.3} s {side}")
}

fn lines_of(sheet: &Sheet) -> Vec<Line> {
    let total = line('=', &sheet.total);
    let part = |entry: &Entry| line(if entry.sign == Sign::Plus { '+' } else { '-' }, entry);
    std::iter::once(total).chain(sheet.parts.iter().map(part)).collect()
}

fn line(sign: char, entry: &Entry) -> Line {
    Line {
        sign,
        name: name(entry.item),
        size_bytes: entry.size_bytes.to_string(),
        rounded: rounded(entry.size_bytes),
        source: entry.source,
    }
}

fn name(item: Item) -> String {
    let of_pool = |pool: crate::model::Pool, what: &str| format!("{} {what}", pool.event_type());
    match item {
        Item::DeviceUsed => "Device in use".to_owned(),
        Item::Module { module } => format!("HAL of module {module}"),
        Item::GivenBackSince => "HAL given back since".to_owned(),
        Item::AllocatedSince => "HAL allocated since".to_owned(),
        Item::BeyondHal => "Process beyond HAL".to_owned(),
        Item::NotInProcess => "HAL beyond the process".to_owned(),
        Item::OtherProcess { pid } => format!("Process {pid}"),
        Item::Unexplained => "Unexplained".to_owned(),
        Item::Overexplained => "Counted more than once".to_owned(),
        Item::Hal => "HAL".to_owned(),
        Item::PoolAllocated { pool } => of_pool(pool, "allocated"),
        Item::PoolCached { pool } => of_pool(pool, "cached"),
        Item::PoolShared { pool } => of_pool(pool, "mapped more than once"),
        Item::Runtime => "Runtime".to_owned(),
        Item::Hccl => "HCCL".to_owned(),
        Item::Rest => "Rest".to_owned(),
        Item::PoolOwnAllocated { pool } => of_pool(pool, "says allocated"),
        Item::PoolNested { pool } => of_pool(pool, "in another pool"),
        Item::PoolElsewhere { pool } => of_pool(pool, "without HAL"),
        Item::PoolOlder { pool } => of_pool(pool, "not seen"),
        Item::PoolNotCounted { pool } => of_pool(pool, "not counted"),
        Item::PoolOwnReserved { pool } => of_pool(pool, "says reserved"),
        Item::PoolSegments { pool } => of_pool(pool, "segments"),
        Item::SegmentsNested { pool } => of_pool(pool, "segments in another pool"),
        Item::SegmentsElsewhere { pool } => of_pool(pool, "segments without HAL"),
        Item::SegmentsOlder { pool } => of_pool(pool, "segments not seen"),
        Item::SegmentsNewer { pool } => of_pool(pool, "segments not reported"),
    }
}

fn write_lines(lines: &[Line], out: &mut dyn Write) -> io::Result<()> {
    let width = |column: fn(&Line) -> &str| lines.iter().map(|line| column(line).len()).max().unwrap_or(0);
    let (name_width, size_width) = (width(|line| &line.name), width(|line| &line.size_bytes));
    let rounded_width = width(|line| &line.rounded);
    for Line { sign, name, size_bytes, rounded, source } in lines {
        writeln!(
            out,
            "  {sign} {name:<name_width$}  {size_bytes:>size_width$} bytes  {rounded:>rounded_width$}  {source}"
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyses::script::{Script, run};
    use crate::analyses::{Finding, LedgerAnalysis};
    use crate::backend::ascend::pools;
    use crate::model::{Device, RunEnd};

    fn text(script: &Script, end: &RunEnd) -> String {
        let mut out = Vec::new();
        for finding in run(LedgerAnalysis::default(), script.events(), end) {
            let Finding::Ledger(ledger) = finding else { panic!("no ledger") };
            write(&ledger, &mut out).expect("memory takes everything");
        }
        String::from_utf8(out).expect("text")
    }

    /// Every figure with its sign, exact and readable, and its source, in columns.
    #[test]
    fn ledgers_are_columns() {
        let mut script = Script::new(7, Device::Npu(3));
        script.module(Some(33)).alloc(pools::HAL, 0x10_0000, 1 << 20).reported(Some((800, 1 << 20)));
        script.alloc(pools::PTA, 0x10_0000, 512).usage(3 << 20, Some(&[(7, 2 << 20), (9, 1000)]));
        let expected = "\
Ledger of process 7 on device 3 at the end; the driver's figures of the device, which has 64.00 GiB, were taken 0.000 s \
after
  = Device in use       3145728 bytes     3.00 MiB  the driver's figure of the device (DCMI)
  + HAL of module APP   1048576 bytes     1.00 MiB  live blocks of halMemAlloc and halMemCreate by their module
  + Process beyond HAL  1048576 bytes     1.00 MiB  the driver's figure of the process (DCMI) less its blocks: blocks \
older than the trace, rounding, overhead
  + Process 9              1000 bytes   1000 bytes  the driver's figure of that process (DCMI)
  + Unexplained         1047576 bytes  1023.02 KiB  the driver's figure of the device less all other lines
  = HAL                 1048576 bytes     1.00 MiB  live blocks of halMemAlloc and halMemCreate
  + PTA allocated           512 bytes    512 bytes  the pool's reports of blocks, in blocks of the driver
  + PTA cached          1048064 bytes  1023.50 KiB  blocks of the driver that the pool holds, less what it handed out
  + Runtime                   0 bytes      0 bytes  blocks of driver module RUNTIME outside of pools
  + HCCL                      0 bytes      0 bytes  blocks of driver module HCCL outside of pools
  + Rest                      0 bytes      0 bytes  blocks of other driver modules outside of pools
  = PTA says allocated      800 bytes    800 bytes  the pool's own figure in its last report, or the sum of its blocks \
where it has none
  + PTA allocated           512 bytes    512 bytes  the pool's reports of blocks, in blocks of the driver
  + PTA not seen            288 bytes    288 bytes  that figure less the blocks here: handed out before the trace, or \
ended unseen
";
        assert_eq!(text(&script, &RunEnd::default()), expected);
        let doubtful = text(&script, &RunEnd { lost: 1, ..RunEnd::default() });
        assert!(
            doubtful.ends_with("  Doubtful: events were lost, so parts may be missing or too many.\n"),
            "{doubtful}"
        );
    }

    /// An empty ledger writes nothing.
    #[test]
    fn empty_ledgers_say_nothing() {
        let mut script = Script::new(7, Device::Npu(0));
        script.alloc(pools::HAL, 0x1000, 5).free(pools::HAL, 0x1000);
        let text = text(&script, &RunEnd::default());
        let heads: Vec<&str> = text.lines().filter(|line| line.starts_with("Ledger")).collect();
        assert_eq!(
            heads,
            ["Ledger of process 7 on device 0 at its peak; the driver's figures of the device (DCMI) are not known"]
        );
    }
}
