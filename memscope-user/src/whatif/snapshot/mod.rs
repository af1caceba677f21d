//! Memory snapshots of `PyTorch` and `torch_npu` (`torch.npu.memory._dump_snapshot`): their history has all requests.
//!
//! Histories hold the last events only: blocks and segments from before are not in them, and their memory counts as one
//! block.

mod pickle;

pub use self::pickle::BadPickle;

use self::pickle::{Pickle, Value, number};
use super::requests::{Lane, Op, Requests, Slots};
use crate::hash::HashMap;

/// First bytes of a pickle of the protocols that snapshots are written in.
const PROTOCOLS: std::ops::RangeInclusive<u8> = 2..=5;

/// Whether a file may be a snapshot, by its first bytes.
#[must_use]
pub fn is_snapshot(head: &[u8]) -> bool {
    matches!(head, [0x80, protocol, ..] if PROTOCOLS.contains(protocol))
}

/// The requests of a snapshot, of all of its devices.
///
/// # Errors
///
/// When the file is not a pickle of plain data with a history.
pub fn requests_of(bytes: &[u8]) -> Result<Requests, String> {
    let pickle = pickle::read(bytes).map_err(|bad| bad.to_string())?;
    let traces = pickle.get(pickle.root, "device_traces").and_then(|traces| pickle.list(traces));
    let traces = traces.ok_or("the snapshot has no `device_traces`")?;
    let mut requests = Requests::default();
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
        for (index, event) in events.iter().enumerate() {
            let Some(entry) = self.entry(*event) else { continue };
            // A block that comes back at once was used by no other stream.
            let next = events.get(index + 1).and_then(|next| self.entry(*next));
            let at_once = next.is_some_and(|next| next.action == "free_completed" && next.addr == entry.addr);
            self.event(&entry, at_once);
        }
        Ok(())
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
                // The history has the rounded size.
                self.requests.words.push(Op::Failed { lane, asked: entry.size.saturating_sub(32) });
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
        self.requests.frees += 1;
        if at_once {
            self.requests.words.push(Op::Free { slot });
            self.slots.give_back(slot);
        } else {
            self.requests.words.push(Op::FreeInUse { slot });
            self.requests.frees_in_use += 1;
            self.leaving.insert(entry.addr, slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;
    use crate::whatif::{Card, Gaps, Release, find_settings};

    /// A pickle of protocol 2 of these events of device 0: `action addr size stream`, and nothing of device 1.
    fn snapshot(events: &[(&str, u64, u64, u64)]) -> Vec<u8> {
        fn text(out: &mut Vec<u8>, text: &str) {
            out.push(b'X');
            out.extend((text.len() as u32).to_le_bytes());
            out.extend(text.as_bytes());
        }
        fn int(out: &mut Vec<u8>, number: u64) {
            out.extend([0x8a, 8]);
            out.extend(number.to_le_bytes());
        }
        let mut out = b"\x80\x02}".to_vec();
        text(&mut out, "device_traces");
        out.extend(b"](](");
        for (action, addr, size, stream) in events {
            out.extend(b"}(");
            text(&mut out, "action");
            text(&mut out, action);
            for (name, number) in [("addr", addr), ("size", size), ("stream", stream)] {
                text(&mut out, name);
                int(&mut out, *number);
            }
            out.push(b'u');
        }
        out.extend(b"e]es.");
        out
    }

    const MIB: u64 = 1 << 20;
    const BASE: u64 = 0x1200_0000_0000;

    /// The allocator's records of: 3 MiB, freed; 25 MiB, freed while a stream uses it, and returned; cache emptied.
    fn history() -> Vec<u8> {
        let second = BASE + (64 << 20);
        snapshot(&[
            ("segment_alloc", BASE, 20 * MIB, 5),
            ("alloc", BASE, 3 * MIB, 5),
            ("free_requested", BASE, 3 * MIB, 5),
            ("free_completed", BASE, 3 * MIB, 5),
            ("segment_alloc", second, 26 * MIB, 5),
            ("alloc", second, 25 * MIB, 5),
            ("free_requested", second, 25 * MIB, 5),
            ("alloc", BASE, MIB + 1, 5),
            ("free_completed", second, 25 * MIB, 5),
            ("free_requested", BASE, MIB + 1, 5),
            ("free_completed", BASE, MIB + 1, 5),
            ("segment_free", BASE, 20 * MIB, 5),
            ("segment_free", second, 26 * MIB, 5),
            ("segment_alloc", BASE, 2 * MIB, 5),
            ("alloc", BASE, 100, 5),
        ])
    }

    /// Requests, and their own self-check: the model agrees with the history.
    #[test]
    fn histories_are_requests() {
        let requests = requests_of(&history()).expect("requests");
        assert_eq!((requests.count, requests.frees, requests.frees_in_use), (4, 3, 1));
        let found = find_settings(&requests, Release::Next, &Card::default()).0;
        assert!(found.is_whole(), "{found:?}");
        // The emptied cache is followed by a new segment.
        assert_eq!(requests.gaps, Gaps { unclear_frees: 1, ..Gaps::default() });
        assert_eq!((found.settings.as_str(), found.events, found.places), ("", 7, true));
    }

    /// Another place of a block is noticed: the check can fail.
    #[test]
    fn histories_of_other_allocators_are_noticed() {
        let events = [("segment_alloc", BASE, 20 * MIB, 5), ("alloc", BASE + 512, 3 * MIB, 5)];
        let requests = requests_of(&snapshot(&events)).expect("requests");
        assert!(!find_settings(&requests, Release::Next, &Card::default()).0.is_whole());
    }

    #[test]
    fn what_is_no_snapshot_is_refused() {
        let mut text = String::new();
        for bytes in [&b"\x80\x04}."[..], b"\x80\x04N.", b"\x80\x04cos\nsystem\n.", b"", &snapshot(&[])] {
            let reason = requests_of(bytes).expect_err("refused");
            writeln!(text, "{reason}").expect("text");
        }
        assert!(
            text.contains("device_traces") && text.contains("plain data") && text.contains("_record_memory_history"),
            "{text}"
        );
        assert!(is_snapshot(b"\x80\x04") && !is_snapshot(b"\x80\x01") && !is_snapshot(b"ID,"));
    }
}
