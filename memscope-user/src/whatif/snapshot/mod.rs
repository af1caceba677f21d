//! Memory snapshots of `PyTorch` and `torch_npu` (`torch.npu.memory._dump_snapshot`): their history has all requests.
//!
//! Histories hold the last events only. What was in the pool before follows from the snapshot's segments, which are of its end, and the
//! history (`before`); where it does not, its memory is unknown.

mod before;
mod family;
mod pickle;
#[cfg(test)]
mod tests;

pub use self::pickle::BadPickle;

use self::pickle::{Pickle, Value, number};
use super::requests::{Lane, OldSegment, Op, Requests, Slots};
use super::settings::{Family, Settings};
use crate::hash::HashMap;

/// First bytes of a pickle of the protocols that snapshots are written in.
const PROTOCOLS: std::ops::RangeInclusive<u8> = 2..=5;

/// Whether a file may be a snapshot, by its first bytes.
#[must_use]
pub fn is_snapshot(head: &[u8]) -> bool {
    matches!(head, [0x80, protocol, ..] if PROTOCOLS.contains(protocol))
}

/// The requests of a snapshot, of all of its devices. `family` is its allocator, if the user says so.
///
/// # Errors
///
/// When the file is not a pickle of plain data with a history.
pub fn requests_of(bytes: &[u8], family: Option<Family>) -> Result<Requests, String> {
    let pickle = pickle::read(bytes).map_err(|bad| bad.to_string())?;
    let traces = pickle.get(pickle.root, "device_traces").and_then(|traces| pickle.list(traces));
    let traces = traces.ok_or("the snapshot has no `device_traces`")?;
    let family = family.unwrap_or_else(|| family::family(&pickle));
    let configuration = family::configuration(&pickle);
    let mut requests = Requests::default();
    (requests.family, requests.configuration) = (family, configuration);
    let mut slots = Slots::default();
    for (device, trace) in traces.iter().enumerate() {
        let events = pickle.list(*trace).unwrap_or(&[]);
        if !events.is_empty() {
            History::new(&pickle, &mut requests, &mut slots, device as u32).read(events)?;
        }
    }
    if requests.count == 0 {
        return Err(
            "the snapshot has no history of requests: record it with `_record_memory_history(enabled=\"all\")`"
                .to_owned(),
        );
    }
    requests.shrink();
    Ok(requests)
}

/// An event of the history.
#[derive(Clone, Copy)]
struct Entry<'a> {
    action: &'a str,
    addr: u64,
    size: u64,
    stream: u64,
    time_us: u64,
}

/// One device.
struct History<'a, 'b> {
    pickle: &'a Pickle<'a>,
    requests: &'b mut Requests,
    slots: &'b mut Slots,
    number: u32,
    device: u8,
    lanes: HashMap<u64, u16>,
    live: HashMap<u64, u32>,
    /// Freed, not yet returned.
    leaving: HashMap<u64, u32>,
    reserved_bytes: u64,
    reported_bytes: Option<u64>,
    /// Segments freed since the last request.
    emptied: bool,
}

impl<'a, 'b> History<'a, 'b> {
    fn new(pickle: &'a Pickle<'a>, requests: &'b mut Requests, slots: &'b mut Slots, number: u32) -> Self {
        Self {
            pickle,
            requests,
            slots,
            number,
            device: 0,
            lanes: HashMap::default(),
            live: HashMap::default(),
            leaving: HashMap::default(),
            reserved_bytes: 0,
            reported_bytes: None,
            emptied: false,
        }
    }

    fn entry(&self, value: Value) -> Option<Entry<'a>> {
        let field = |name: &str| self.pickle.get(value, name);
        let action = field("action").and_then(|action| self.pickle.text(action))?;
        let addr = field("addr").or_else(|| field("device_free")).and_then(number).unwrap_or(0);
        let size = field("size").and_then(number)?;
        let stream = field("stream").and_then(number).unwrap_or(0);
        Some(Entry { action, addr, size, stream, time_us: field("time_us").and_then(number).unwrap_or(0) })
    }

    fn read(mut self, events: &[Value]) -> Result<(), String> {
        self.device = self.requests.device(self.number).ok_or("the snapshot has too many devices")?;
        let entries: Vec<Entry<'_>> = events.iter().filter_map(|event| self.entry(*event)).collect();
        if let Some(segments) = before::before(self.pickle, self.number, &entries) {
            self.begin_with(segments, entries.first().map_or(0, |entry| entry.time_us));
        }
        for (index, entry) in entries.iter().enumerate() {
            // A block that comes back at once was used by no other stream.
            let next = entries.get(index + 1);
            let at_once = next.is_some_and(|next| next.action == "free_completed" && next.addr == entry.addr);
            self.event(entry, at_once);
            let held_bytes = &mut self.requests.held_bytes[usize::from(self.device)];
            *held_bytes = (*held_bytes).max(self.reserved_bytes);
        }
        Ok(())
    }

    /// Requests the blocks from before the history.
    fn begin_with(&mut self, segments: Vec<OldSegment>, time_us: u64) {
        for block in segments.iter().flat_map(|segment| segment.blocks.iter().map(move |block| (segment.stream, block)))
        {
            let (stream, block) = block;
            let lane = self.lane(stream);
            self.requests.words.push(Op::Alloc { lane, asked: block.asked });
            self.requests.see_place(block.addr, time_us.saturating_mul(1000));
            let slot = self.slots.take();
            self.requests.before.events += 1;
            self.requests.gaps.before_bytes = self.requests.gaps.before_bytes.saturating_add(block.asked);
            if block.pending {
                self.leave(block.addr, slot);
                self.requests.before.events += 1;
            } else {
                self.live.insert(block.addr, slot);
            }
        }
        self.reserved_bytes = segments.iter().map(|segment| segment.bytes).sum();
        if !segments.is_empty() {
            self.requests.before.segments.insert(self.device, segments);
        }
    }

    /// A block is freed that streams still use.
    fn leave(&mut self, addr: u64, slot: u32) {
        self.requests.words.push(Op::FreeInUse { slot });
        self.requests.frees += 1;
        self.requests.frees_in_use += 1;
        self.leaving.insert(addr, slot);
    }

    fn event(&mut self, entry: &Entry<'_>, at_once: bool) {
        match entry.action {
            "alloc" => self.alloc(entry),
            "free_requested" => self.free(entry, at_once),
            "free_completed" => {
                if let Some(slot) = self.leaving.remove(&entry.addr) {
                    self.requests.words.push(Op::Returned { slot });
                    self.slots.give_back(slot);
                }
            }
            "oom" => {
                let lane = self.lane(entry.stream);
                // The history has the rounded size, and what the driver had left in the place of an address.
                let pad_bytes = Settings::of(self.requests.family).pad_bytes;
                self.requests.words.push(Op::Failed { lane, asked: entry.size.saturating_sub(pad_bytes) });
                let limit_bytes = self.reserved_bytes.saturating_add(entry.addr).saturating_add(1);
                let known = &mut self.requests.limit_bytes[usize::from(self.device)];
                *known = Some(known.map_or(limit_bytes, |known| known.min(limit_bytes)));
                (self.requests.failures, self.emptied) = (self.requests.failures + 1, false);
            }
            "segment_alloc" => {
                self.unclear();
                self.reserved_bytes = self.reserved_bytes.saturating_add(entry.size);
                self.requests.segments[usize::from(self.device)].push(entry.addr);
            }
            "segment_map" => {
                self.unclear();
                self.reserved_bytes = self.reserved_bytes.saturating_add(entry.size);
                self.requests.expandable = true;
            }
            "segment_free" | "segment_unmap" => {
                self.reserved_bytes = self.reserved_bytes.saturating_sub(entry.size);
                self.emptied = true;
            }
            _ => {}
        }
    }

    fn lane(&mut self, stream: u64) -> u16 {
        if let Some(lane) = self.lanes.get(&stream) {
            return *lane;
        }
        let number = self.requests.lanes.len();
        if number >= super::requests::MAX_LANES {
            return 0;
        }
        self.requests.lanes.push(Lane { device: self.device, stream, private: 0 });
        self.lanes.insert(stream, number as u16);
        number as u16
    }

    /// Segments freed before any event but a request for memory: the cache was emptied.
    fn settle(&mut self) {
        if std::mem::take(&mut self.emptied) {
            self.requests.words.push(Op::EmptyCache { device: self.device });
        }
    }

    /// The same just before a segment is made: a retry leaves the same history.
    fn unclear(&mut self) {
        self.requests.gaps.unclear_frees += u64::from(self.emptied);
        self.settle();
    }

    fn alloc(&mut self, entry: &Entry<'_>) {
        self.settle();
        let lane = self.lane(entry.stream);
        if self.reported_bytes != Some(self.reserved_bytes) {
            self.reported_bytes = Some(self.reserved_bytes);
            self.requests.words.push(Op::Reserved { device: self.device, bytes: self.reserved_bytes });
        }
        self.requests.words.push(Op::Alloc { lane, asked: entry.size });
        self.requests.see_place(entry.addr, entry.time_us.saturating_mul(1000));
        // Where one was live its free is not in the history: its slot stays taken.
        let replaced = self.live.insert(entry.addr, self.slots.take());
        self.requests.gaps.unseen_frees += u64::from(replaced.is_some());
    }

    fn free(&mut self, entry: &Entry<'_>, at_once: bool) {
        self.settle();
        let Some(slot) = self.live.remove(&entry.addr) else {
            // A block from before the history.
            let older_bytes = &mut self.requests.gaps.older_bytes;
            *older_bytes = older_bytes.saturating_add(entry.size);
            return;
        };
        if at_once {
            self.requests.frees += 1;
            self.requests.words.push(Op::Free { slot });
            self.slots.give_back(slot);
        } else {
            self.leave(entry.addr, slot);
        }
    }
}
