//! Requests that failed for want of memory.

use std::io::{self, Write};

use super::{Cause, Oom, PoolAtOom, Suspect};
use crate::analyses::held_by::{self, HeldBy};
use crate::model::Device;
use crate::text::clock::Clock;
use crate::text::groups::write_groups;
use crate::text::numbers::{counted, size};
use crate::text::{DeviceName, stacks};

/// Writes one finding.
pub(super) fn write(found: &Oom, held_by: &[&HeldBy], clock: Clock, out: &mut dyn Write) -> io::Result<()> {
    let function = found.function.map_or("the driver", |name| name.as_str());
    let device = DeviceName(found.device);
    writeln!(out, "====== ERROR: Out of memory on device {device} ======")?;
    writeln!(
        out,
        "Thread {} asked {function} for {}; the last of {} failed at {}.",
        found.tid,
        size(found.size_bytes),
        counted(u64::from(found.attempts), "attempt"),
        clock.exact(found.time_ns),
    )?;
    write_retries(found, out)?;
    write_pools(&found.pools, out)?;
    write_cause(found.cause, out)?;
    if found.late {
        writeln!(
            out,
            "  These figures are of the moment at which the failure was certain: too many requests failed at once."
        )?;
    }
    stacks::write_place("  Asked for at:", found.stacks, out)?;
    for pool in &found.pools {
        write_holders(pool, (found.device, held_by), out)?;
    }
    write_blocks(found, clock, out)?;
    if !found.last_events.is_empty() {
        writeln!(out, "  Last events before it (ns, thread):")?;
    }
    for line in &found.last_events {
        writeln!(out, "    {line}")?;
    }
    Ok(())
}

/// Writes what each pool held at that moment.
fn write_pools(pools: &[PoolAtOom], out: &mut dyn Write) -> io::Result<()> {
    for PoolAtOom { pool, used_bytes, reserved_bytes, largest_free_bytes, .. } in pools {
        write!(out, "  {}: {} used", pool.display_name(), size(*used_bytes))?;
        if let Some(reserved) = reserved_bytes {
            write!(out, " of {} reserved", size(*reserved))?;
        }
        if let Some(largest) = largest_free_bytes {
            write!(out, ", largest free piece {}", size(*largest))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Why there was no memory; nothing where no pool has unused memory.
fn write_cause(cause: Cause, out: &mut dyn Write) -> io::Result<()> {
    match cause {
        Cause::NotGiven { .. } => writeln!(
            out,
            "A free piece was large enough, but not given: pools keep pieces apart, by stream and by size for instance."
        ),
        Cause::Fragmented { unused_bytes, .. } => writeln!(
            out,
            "The request would fit into what the pools hold and do not use ({}), were that in one piece: memory is fragmented.",
            size(unused_bytes)
        ),
        Cause::Limit { unused_bytes } => writeln!(
            out,
            "The pool did not ask the driver: the request is beyond its own limit, a memory fraction for instance. {} in pools was unused.",
            size(unused_bytes)
        ),
        Cause::Full { unused_bytes: 0, .. } => Ok(()),
        Cause::Full { missing_bytes, unused_bytes } => writeln!(
            out,
            "Even if the pools gave back all that they do not use ({}), the request would lack up to {}.",
            size(unused_bytes),
            size(missing_bytes)
        ),
    }
}

/// Writes the memory given back between the attempts.
fn write_retries(found: &Oom, out: &mut dyn Write) -> io::Result<()> {
    let first = u64::from(found.attempts).saturating_sub(found.retries.len() as u64) + 1;
    for (attempt, retry) in (first..).zip(&found.retries) {
        writeln!(out, "  Before attempt {attempt}: {} given back to the driver", size(retry.given_back_bytes))?;
    }
    Ok(())
}

/// Writes the holders of a pool's memory.
fn write_holders(pool: &PoolAtOom, (device, held_by): (Device, &[&HeldBy]), out: &mut dyn Write) -> io::Result<()> {
    let PoolAtOom { groups, live, places_left_out, .. } = pool;
    if live.blocks == 0 {
        return Ok(());
    }
    let outside = if pool.pool.is_driver() { ", outside of pools" } else { "" };
    writeln!(
        out,
        "Held in {}{outside}: {} in {}",
        pool.pool.display_name(),
        size(live.size_bytes),
        counted(live.blocks, "block")
    )?;
    let unseen_bytes = pool.used_bytes.saturating_sub(live.size_bytes);
    if unseen_bytes > 0 && !pool.pool.is_driver() {
        writeln!(out, "  {} more from before the attach, or not seen", size(unseen_bytes))?;
    }
    let holders = |stacks| held_by::lines(held_by.iter().copied(), (device, pool.pool, stacks, None), true);
    write_groups("Held", groups, pool.pool, *places_left_out, &holders, out)
}

/// Single blocks, as in the rows.
fn write_blocks(found: &Oom, clock: Clock, out: &mut dyn Write) -> io::Result<()> {
    for (title, blocks) in [("Largest", &found.top), ("Newest", &found.recent)] {
        for Suspect { pool, addr, size_bytes, alloc_time_ns, .. } in blocks {
            writeln!(
                out,
                "  {title}: {} {addr:#x} {}, allocated at {}",
                pool.event_type(),
                size(*size_bytes),
                clock.exact(*alloc_time_ns)
            )?;
        }
    }
    if found.top.is_empty() && found.recent.is_empty() && found.pools.iter().any(|pool| pool.live.blocks > 0) {
        writeln!(out, "  Single blocks are not listed: within 2 s of a failure that lists them.")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyses::oom::Retry;
    use crate::backend::ascend::pools;
    use crate::model::{Device, LiveGroups, LiveSum, PlaceSum, Stack, StackEnd, Stacks};
    use crate::text::clock::without_wall;

    fn oom(size_bytes: u64, largest_free_bytes: Option<u64>) -> Oom {
        let native = Some(Stack::keep(["model.py(7): forward"], StackEnd::Root));
        let live = LiveSum { blocks: 2, size_bytes: 500 };
        let place = PlaceSum { stacks: Stacks { native, ..Stacks::default() }, live };
        let pool = PoolAtOom {
            pool: pools::PTA,
            used_bytes: 600,
            reserved_bytes: Some(1000),
            largest_free_bytes,
            groups: LiveGroups { places: vec![place], ..LiveGroups::default() },
            live,
            places_left_out: 0,
        };
        Oom {
            pid: 1,
            tid: 2,
            device: Device::Npu(0),
            time_ns: 3,
            function: None,
            size_bytes,
            stacks: Stacks::default(),
            attempts: 2,
            retries: vec![Retry { time_ns: 3, given_back_bytes: 64 << 20 }],
            cause: Cause::of(pools::HAL, size_bytes, std::slice::from_ref(&pool)),
            pools: vec![pool],
            unused_bytes: 400,
            missing_bytes: size_bytes.saturating_sub(400),
            late: false,
            recent: Vec::new(),
            top: Vec::new(),
            last_events: Vec::new(),
        }
    }

    fn text(size_bytes: u64, largest_free_bytes: Option<u64>) -> String {
        let mut out = Vec::new();
        write(&oom(size_bytes, largest_free_bytes), &[], Clock::since(0), &mut out).expect("memory takes everything");
        String::from_utf8(out).expect("the report is text")
    }

    /// Fragmented, short, or free and not used.
    #[test]
    fn verdict_is_reported() {
        let fragmented = text(400, Some(300));
        assert!(fragmented.contains("600 bytes used of 1000 bytes reserved, largest free piece 300 bytes\n"));
        assert!(fragmented.contains("memory is fragmented."), "{fragmented}");
        assert!(text(401, Some(300)).contains("would lack up to 1 byte."));
        assert!(text(300, Some(300)).contains("A free piece was large enough, but not given"));
        let unknown = text(400, None);
        assert!(unknown.contains("of 1000 bytes reserved\n") && unknown.contains("memory is fragmented."), "{unknown}");
    }

    /// The holders, the unseen memory, the memory that a retry gave back, and why no single block is listed.
    #[test]
    fn holders_are_reported() {
        let text = without_wall(&text(400, None));
        for line in [
            "the last of 2 attempts failed at 0.000000003s WALL.\n  Before attempt 2: 64.00 MiB (67108864 bytes) given back to the driver\n",
            "Held in Pytorch Caching memory pool: 500 bytes in 2 blocks\n  100 bytes more from before the attach, or not seen\n",
            "model.py(7): forward\n",
            "Single blocks are not listed: within 2 s of a failure that lists them.\n",
        ] {
            assert!(text.contains(line), "{line:?} in {text}");
        }
    }
}
