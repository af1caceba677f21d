//! Requests that failed for want of memory.

use std::io::{self, Write};

use super::numbers::{counted, size};
use super::{Name, stacks};
use crate::model::{Oom, PoolAtOom, Suspect};

/// Writes one finding.
pub(super) fn write(found: &Oom, out: &mut impl Write) -> io::Result<()> {
    let function = found.function.map_or("the driver", |name| name.as_str());
    let device = Name(found.device);
    writeln!(out, "====== ERROR: Out of memory on device {device} ======")?;
    writeln!(
        out,
        "Thread {} asked {function} for {} at {} ns; it failed after {}.",
        found.tid,
        size(found.size_bytes),
        found.time_ns,
        counted(u64::from(found.attempts), "attempt")
    )?;
    for PoolAtOom { pool, used_bytes, reserved_bytes } in &found.pools {
        write!(out, "  {}: {} used", pool.display_name(), size(*used_bytes))?;
        match reserved_bytes {
            Some(reserved) => writeln!(out, " of {} reserved", size(*reserved))?,
            None => writeln!(out)?,
        }
    }
    if found.missing_bytes == 0 {
        writeln!(
            out,
            "The request would fit into what the pools hold and do not use ({}), were that in one piece: memory is fragmented.",
            size(found.unused_bytes)
        )?;
    } else if found.unused_bytes > 0 {
        writeln!(
            out,
            "Even if the pools gave back all that they do not use ({}), the request would lack up to {}.",
            size(found.unused_bytes),
            size(found.missing_bytes)
        )?;
    }
    for (title, blocks) in [("Largest", &found.top), ("Newest", &found.recent)] {
        for Suspect { pool, addr, size_bytes, alloc_time_ns, .. } in blocks {
            writeln!(
                out,
                "  {title}: {} {addr:#x} {}, allocated at {alloc_time_ns} ns",
                pool.event_type(),
                size(*size_bytes)
            )?;
        }
    }
    stacks::write_place("  Asked for at:", found.stacks, out)?;
    let blocks = found.top.iter().map(|block| (block.stacks, block.size_bytes));
    stacks::write_blocks("Of the largest blocks on device", found.device, blocks, out)?;
    if !found.last_events.is_empty() {
        writeln!(out, "  Last events (ns, thread):")?;
    }
    for line in &found.last_events {
        writeln!(out, "    {line}")?;
    }
    Ok(())
}
