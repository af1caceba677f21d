//! Blocks held longer than they were used.

use std::io::{self, Write};

use super::{Inefficient, InefficientBlock, InefficientKind, InefficientPlace, Waste};
use crate::analyses::Report;
use crate::model::{Confidence, LiveSum};
use crate::text::{
    DeviceName,
    numbers::{counted, size},
    stacks,
};

/// Bytes held for one second, in the report's unit.
const GIB_SECOND: f64 = (1_u64 << 30) as f64;

/// Writes one finding: sums by kind, places, and blocks one by one where that is wanted; the most wasteful first.
pub(super) fn write(found: &Inefficient, report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let device = DeviceName(found.device);
    let looked_at = counted(found.looked_at.blocks, "block");
    if !found.judged {
        return writeln!(
            out,
            "Inefficient use on device {device} was not judged: of {looked_at} no use was recorded \
             (`--events=alloc,free,access` records them)."
        );
    }
    if found.kinds.iter().all(|waste| waste.blocks == 0) {
        let uses = counted(found.accesses, "use");
        writeln!(out, "No inefficient use of memory was found on device {device}: {looked_at} with {uses}.")?;
    }
    for Waste { kind, blocks, size_bytes, wasted_byte_seconds } in found.kinds.iter().filter(|waste| waste.blocks > 0) {
        writeln!(
            out,
            "Inefficient use on device {device}: {} in {} of {}, {:.6} GiB·s wasted",
            kind.as_str(),
            counted(*blocks, "block"),
            size(*size_bytes),
            wasted_byte_seconds / GIB_SECOND
        )?;
    }
    let LiveSum { blocks, size_bytes } = found.idle_at_peak;
    if blocks > 0 {
        let (blocks, bytes) = (counted(blocks, "block"), size(size_bytes));
        writeln!(
            out,
            "Idle at the peak on device {device}: {bytes} in {blocks}: held only while in use, the peak is lower by as much"
        )?;
    }
    write_places(found, report.place_lines, out)?;
    let LiveSum { blocks, size_bytes } = found.late_at_exit;
    if blocks > 0 {
        let (blocks, bytes) = (counted(blocks, "block"), size(size_bytes));
        writeln!(
            out,
            "Not counted on device {device}: {blocks} of {bytes}, freed by the exit some time after the last use"
        )?;
    }
    if report.leak_blocks {
        write_blocks(found, report.leak_lines, out)?;
    }
    if found.confidence == Confidence::Doubtful {
        writeln!(out, "  Doubtful: events were lost, so uses may be missing.")?;
    }
    Ok(())
}

fn write_places(found: &Inefficient, lines: usize, out: &mut dyn Write) -> io::Result<()> {
    for InefficientPlace { pool, kinds, blocks, size_bytes, each_bytes, wasted_byte_seconds, stacks } in
        found.places.iter().take(lines)
    {
        let each = each_bytes.map_or_else(String::new, |each| format!(" of {each} bytes"));
        writeln!(
            out,
            "  {}: {} in {}{each}, {} ({:.6} GiB·s)",
            pool.display_name(),
            size(*size_bytes),
            counted(*blocks, "block"),
            words(kinds),
            wasted_byte_seconds / GIB_SECOND
        )?;
        stacks::write_each(*stacks, out)?;
    }
    let more = found.places.len().saturating_sub(lines) as u64;
    if more > 0 { writeln!(out, "  … and {} (see --json)", counted(more, "more place")) } else { Ok(()) }
}

fn words(kinds: &[InefficientKind]) -> String {
    kinds.iter().map(|kind| kind.as_str()).collect::<Vec<_>>().join(",")
}

fn write_blocks(found: &Inefficient, lines: usize, out: &mut dyn Write) -> io::Result<()> {
    let mut blocks: Vec<&InefficientBlock> = found.blocks.iter().filter(|block| !block.kinds.is_empty()).collect();
    blocks.sort_by(|one, other| other.wasted_byte_seconds.total_cmp(&one.wasted_byte_seconds));
    for block in blocks.iter().take(lines) {
        writeln!(
            out,
            "  {} at {:#x} in Index {}: {}, {} ({:.6} GiB·s)",
            block.pool.event_type(),
            block.addr,
            block.event_id,
            size(block.size_bytes),
            words(&block.kinds),
            block.wasted_byte_seconds / GIB_SECOND
        )?;
    }
    if let Some(more) = blocks.len().checked_sub(lines).filter(|&more| more > 0) {
        writeln!(out, "  … and {more} more (see --json)")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::ascend::pools;
    use crate::model::{Device, Stacks};

    fn text(found: &Inefficient) -> String {
        let mut out = Vec::new();
        let report = Report { leak_blocks: true, ..Report::DEFAULT };
        write(found, &report, &mut out).expect("memory takes everything");
        String::from_utf8(out).expect("the report is text")
    }

    /// Found, not found, not judged: never silence.
    #[test]
    fn verdicts_have_three_values() {
        let looked_at = LiveSum { blocks: 2, size_bytes: 7 };
        let mut found = Inefficient { looked_at, ..Inefficient::new(1, Device::Npu(3)) };
        let expected = "Inefficient use on device 3 was not judged: of 2 blocks no use was recorded \
                        (`--events=alloc,free,access` records them).\n";
        assert_eq!(text(&found), expected);
        (found.judged, found.accesses, found.confidence) = (true, 1, Confidence::Doubtful);
        let expected = "No inefficient use of memory was found on device 3: 2 blocks with 1 use.\n  \
                        Doubtful: events were lost, so uses may be missing.\n";
        assert_eq!(text(&found), expected);
        found.confidence = Confidence::Certain;
        let wasted_byte_seconds = GIB_SECOND / 2.0;
        found.kinds[0] =
            Waste { kind: InefficientKind::EarlyAllocation, blocks: 1, size_bytes: 64, wasted_byte_seconds };
        found.blocks.push(InefficientBlock {
            pool: pools::PTA,
            addr: 0x10,
            size_bytes: 64,
            allocation_id: 4,
            event_id: 5,
            kinds: vec![InefficientKind::EarlyAllocation],
            late_at_exit: false,
            wasted_byte_seconds,
        });
        found.idle_at_peak = LiveSum { blocks: 1, size_bytes: 64 };
        found.places.push(InefficientPlace {
            pool: pools::PTA,
            kinds: vec![InefficientKind::EarlyAllocation],
            blocks: 1,
            size_bytes: 64,
            each_bytes: Some(64),
            wasted_byte_seconds,
            stacks: Stacks::default(),
        });
        let expected = "\
Inefficient use on device 3: early_allocation in 1 block of 64 bytes, 0.500000 GiB·s wasted
Idle at the peak on device 3: 64 bytes in 1 block: held only while in use, the peak is lower by as much
  Pytorch Caching memory pool: 64 bytes in 1 block of 64 bytes, early_allocation (0.500000 GiB·s)
  PTA at 0x10 in Index 5: 64 bytes, early_allocation (0.500000 GiB·s)
";
        assert_eq!(text(&found), expected);
    }
}
