//! Blocks held longer than they were used.

use std::io::{self, Write};

use super::Name;
use super::numbers::{counted, size};
use crate::model::{Inefficient, InefficientBlock, Waste};

/// Bytes held for one second, in the report's unit.
const GIB_SECOND: f64 = (1_u64 << 30) as f64;

/// Writes one finding; at most `lines` blocks one by one, the most wasteful first.
pub(super) fn write(found: &Inefficient, lines: usize, out: &mut impl Write) -> io::Result<()> {
    let device = Name(found.device);
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
    let mut blocks: Vec<&InefficientBlock> = found.blocks.iter().collect();
    blocks.sort_by(|one, other| other.wasted_byte_seconds.total_cmp(&one.wasted_byte_seconds));
    for block in blocks.iter().take(lines) {
        let kinds: Vec<&str> = block.kinds.iter().map(|kind| kind.as_str()).collect();
        writeln!(
            out,
            "  {} at {:#x} in Index {}: {}, {} ({:.6} GiB·s)",
            block.pool.event_type(),
            block.addr,
            block.event_id,
            size(block.size_bytes),
            kinds.join(","),
            block.wasted_byte_seconds / GIB_SECOND
        )?;
    }
    if let Some(more) = blocks.len().checked_sub(lines).filter(|&more| more > 0) {
        writeln!(out, "  … and {more} more (see --json)")?;
    }
    Ok(())
}
