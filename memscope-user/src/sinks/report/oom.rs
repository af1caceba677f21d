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
    for PoolAtOom { pool, used_bytes, reserved_bytes, largest_free_bytes } in &found.pools {
        write!(out, "  {}: {} used", pool.display_name(), size(*used_bytes))?;
        if let Some(reserved) = reserved_bytes {
            write!(out, " of {} reserved", size(*reserved))?;
        }
        if let Some(largest) = largest_free_bytes {
            write!(out, ", largest free piece {}", size(*largest))?;
        }
        writeln!(out)?;
    }
    if found.pools.iter().any(|pool| pool.largest_free_bytes.is_some_and(|largest| largest >= found.size_bytes)) {
        writeln!(
            out,
            "A free piece was large enough, but not given: pools keep pieces apart, by stream and by size for instance."
        )?;
    } else if found.missing_bytes == 0 {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Device, Pool, Stacks};

    fn text(size_bytes: u64, largest_free_bytes: Option<u64>) -> String {
        let pool = PoolAtOom { pool: Pool::Pta, used_bytes: 600, reserved_bytes: Some(1000), largest_free_bytes };
        let found = Oom {
            pid: 1,
            tid: 2,
            device: Device::Npu(0),
            time_ns: 3,
            function: None,
            size_bytes,
            stacks: Stacks::default(),
            attempts: 1,
            pools: vec![pool],
            unused_bytes: 400,
            missing_bytes: size_bytes.saturating_sub(400),
            recent: Vec::new(),
            top: Vec::new(),
            last_events: Vec::new(),
        };
        let mut out = Vec::new();
        write(&found, &mut out).expect("memory takes everything");
        String::from_utf8(out).expect("the report is text")
    }

    /// Fragmented, short, or there and not given.
    #[test]
    fn verdict_is_told() {
        let fragmented = text(400, Some(300));
        assert!(fragmented.contains("600 bytes used of 1000 bytes reserved, largest free piece 300 bytes\n"));
        assert!(fragmented.contains("memory is fragmented."), "{fragmented}");
        assert!(text(401, Some(300)).contains("would lack up to 1 byte."));
        assert!(text(300, Some(300)).contains("A free piece was large enough, but not given"));
        let unknown = text(400, None);
        assert!(unknown.contains("of 1000 bytes reserved\n") && unknown.contains("memory is fragmented."), "{unknown}");
    }
}
