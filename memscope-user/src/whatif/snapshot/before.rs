//! What a pool held before its history begins: the segments of the snapshot, which are of its end, walked back event by event.

use std::collections::BTreeMap;

use super::Entry;
use super::pickle::{Pickle, Value, number};
use crate::whatif::MIB;
use crate::whatif::requests::{OldBlock, OldSegment};

/// Segments with small blocks have this size, and no others.
const SMALL_SEGMENT_BYTES: u64 = 2 * MIB;

/// No device has as much memory, and no address is as high.
const MOST_BYTES: u64 = 1 << 56;

/// A block that is not free.
#[derive(Clone, Copy)]
struct Used {
    asked: u64,
    /// Its size, of blocks that are there at the end.
    bytes: Option<u64>,
    /// The program has freed it, and a stream still uses it.
    pending: bool,
}

/// A segment without its blocks.
#[derive(Clone, Copy)]
struct Bare {
    bytes: u64,
    stream: u64,
}

/// A moment of a device's pool, by address.
#[derive(Default)]
struct Moment {
    segments: BTreeMap<u64, Bare>,
    used: BTreeMap<u64, Used>,
    /// Mapped bytes of expandable segments, less those that the history has mapped.
    expandable_bytes: i128,
}

/// The segments of a device before the first of these events, by address. `None`: the snapshot and its history do not fit together, or it
/// has private pools, or expandable segments from before, of which the reservation is not known.
pub(super) fn before(pickle: &Pickle<'_>, device: u32, events: &[Entry<'_>]) -> Option<Vec<OldSegment>> {
    let mut moment = at_the_end(pickle, device)?;
    for event in events.iter().rev() {
        moment.back(event)?;
    }
    if moment.expandable_bytes != 0 {
        return None;
    }
    with_blocks(&moment)
}

fn at_the_end(pickle: &Pickle<'_>, device: u32) -> Option<Moment> {
    let mut moment = Moment::default();
    let segments = pickle.list(pickle.get(pickle.root, "segments")?)?;
    for segment in segments {
        let field = |name: &str| pickle.get(*segment, name).and_then(number);
        if field("device")? != u64::from(device) {
            continue;
        }
        let pool = pickle.get(*segment, "segment_pool_id").and_then(|id| pickle.list(id)).unwrap_or(&[]);
        if pool.iter().any(|part| number(*part) != Some(0)) {
            return None;
        }
        let (start, bytes) = (field("address")?, field("total_size")?);
        if matches!(pickle.get(*segment, "is_expandable"), Some(Value::Bool(true))) {
            moment.expandable_bytes += i128::from(bytes);
        } else {
            moment.segments.insert(start, Bare { bytes, stream: field("stream")? });
        }
        let mut at = start;
        for block in pickle.list(pickle.get(*segment, "blocks")?)? {
            let field = |name: &str| pickle.get(*block, name);
            let state = pickle.text(field("state")?)?;
            let bytes = field("size").and_then(number)?;
            if state != "inactive" {
                let asked = field("requested_size").and_then(number)?;
                moment.used.insert(at, Used { asked, bytes: Some(bytes), pending: state != "active_allocated" });
            }
            at = at.checked_add(bytes)?;
        }
    }
    Some(moment)
}

impl Moment {
    /// The moment before an event. `None`: it cannot have led to this one.
    fn back(&mut self, event: &Entry<'_>) -> Option<()> {
        let Entry { addr, size, stream, .. } = *event;
        match event.action {
            "alloc" => drop(self.used.remove(&addr).filter(|used| !used.pending)?),
            "free_completed" => {
                let used = Used { asked: size, bytes: None, pending: true };
                if self.used.insert(addr, used).is_some() {
                    return None;
                }
            }
            "free_requested" => self.used.get_mut(&addr).filter(|used| used.pending)?.pending = false,
            "segment_alloc" => drop(self.segments.remove(&addr)?),
            "segment_free" => drop(self.segments.insert(addr, Bare { bytes: size, stream })),
            "segment_map" => self.expandable_bytes -= i128::from(size),
            "segment_unmap" => self.expandable_bytes += i128::from(size),
            _ => {}
        }
        Some(())
    }
}

/// Each used block in its segment. `None`: one lies in none, or segments overlap.
fn with_blocks(moment: &Moment) -> Option<Vec<OldSegment>> {
    let mut found: Vec<OldSegment> = Vec::new();
    let (mut behind, mut sum) = (0, 0_u64);
    for (addr, bare) in &moment.segments {
        let Bare { bytes, stream } = *bare;
        sum = sum.checked_add(bytes).filter(|sum| *sum < MOST_BYTES)?;
        if *addr < behind || *addr > MOST_BYTES {
            return None;
        }
        behind = *addr + bytes;
        let small = bytes == SMALL_SEGMENT_BYTES;
        found.push(OldSegment { addr: *addr, bytes, stream, small, blocks: Vec::new() });
    }
    for (addr, Used { asked, bytes, pending }) in &moment.used {
        let behind = found.partition_point(|segment| segment.addr <= *addr);
        let segment = found.get_mut(behind.checked_sub(1)?)?;
        let end = segment.addr + segment.bytes;
        if *addr >= end || *asked > end - *addr {
            return None;
        }
        segment.blocks.push(OldBlock { addr: *addr, asked: *asked, bytes: *bytes, pending: *pending });
    }
    Some(found)
}
