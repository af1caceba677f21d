//! Packets of a Perfetto trace (`perfetto/trace/trace.proto`), as far as memory needs them.

use super::super::protobuf::Message;
use super::super::{Frames, clean};
use crate::hash::HashMap;
use crate::model::Stacks;
use crate::report::Rec;

/// `TrackEvent.Type`, in the order of events of one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    End,
    Begin,
    Instant,
    Counter,
}

impl Kind {
    const fn number(self) -> u64 {
        match self {
            Self::Begin => 1,
            Self::End => 2,
            Self::Instant => 3,
            Self::Counter => 4,
        }
    }
}

/// A track that was described.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Track(u64);

// Fields of `TracePacket`, and of the messages inside of it.
const PACKET: u32 = 1;
const SEQUENCE: u32 = 10;
const CLOCK_SNAPSHOT: u32 = 6;
const CLEARED: u32 = 41;
const FLAGS: u32 = 13;
const DEFAULTS: u32 = 59;
const TRACK: u32 = 60;
const TIMESTAMP: u32 = 8;
const EVENT: u32 = 11;
const INTERNED: u32 = 12;

const STATE_CLEARED: u64 = 1;
const NEEDS_STATE: u64 = 2;
const REALTIME: u64 = 1;
const BOOTTIME: u64 = 6;
/// `TrackDescriptor.child_ordering`: by rank.
const EXPLICIT: u64 = 3;
/// `CounterDescriptor.unit`.
const SIZE_BYTES: u64 = 3;

/// Writes packets of one sequence.
#[derive(Debug)]
pub(super) struct Packets {
    out: Message,
    tracks: u64,
    names: HashMap<String, u64>,
    frames: Frames,
    /// Frames with a name in the trace.
    named: usize,
    stacks: HashMap<Stacks, u64>,
}

impl Packets {
    pub(super) fn new(start_ns: u64) -> Self {
        let (names, stacks) = (HashMap::default(), HashMap::default());
        let mut packets =
            Self { out: Message::default(), tracks: 0, names, frames: Frames::default(), named: 0, stacks };
        let mut clocks = Message::default();
        for clock in [BOOTTIME, REALTIME] {
            let mut both = Message::default();
            both.number(1, clock).number(2, start_ns);
            clocks.message(1, &both);
        }
        packets.packet(|packet| _ = packet.message(CLOCK_SNAPSHOT, &clocks));
        let mut defaults = Message::default();
        defaults.number(58, REALTIME);
        packets.packet(|packet| {
            packet.number(CLEARED, 1).number(FLAGS, STATE_CLEARED).message(DEFAULTS, &defaults);
        });
        packets
    }

    fn packet(&mut self, fill: impl FnOnce(&mut Message)) {
        let mut packet = Message::default();
        packet.number(SEQUENCE, 1);
        fill(&mut packet);
        self.out.message(PACKET, &packet);
    }

    /// The track of a process and device.
    pub(super) fn process(&mut self, pid: u32, name: &str) -> Track {
        let mut process = Message::default();
        process.number(1, u64::from(pid)).bytes(6, clean(name).as_bytes());
        self.track(|track| _ = track.message(3, &process).number(11, EXPLICIT))
    }

    /// A track below another one.
    pub(super) fn group(&mut self, parent: Track, name: &str, rank: u64) -> Track {
        self.track(|track| {
            track.bytes(2, clean(name).as_bytes()).number(5, parent.0).number(11, EXPLICIT).number(12, rank);
        })
    }

    /// A counter of bytes below a track.
    pub(super) fn counter(&mut self, parent: Track, name: &str, rank: u64) -> Track {
        let mut counter = Message::default();
        counter.number(3, SIZE_BYTES);
        self.track(|track| {
            track.bytes(2, clean(name).as_bytes()).number(5, parent.0).message(8, &counter).number(12, rank);
        })
    }

    fn track(&mut self, fill: impl FnOnce(&mut Message)) -> Track {
        self.tracks += 1;
        let mut track = Message::default();
        track.number(1, self.tracks);
        fill(&mut track);
        self.packet(|packet| _ = packet.message(TRACK, &track));
        Track(self.tracks)
    }

    /// The value of a counter from this time on.
    pub(super) fn value(&mut self, time_ns: u64, track: Track, value: u64) {
        let mut event = Message::default();
        // The value counts as given only if its field is there, also for 0.
        event.number(9, Kind::Counter.number()).number(11, track.0).present(30, value);
        self.packet(|packet| _ = packet.number(TIMESTAMP, time_ns).message(EVENT, &event).number(FLAGS, NEEDS_STATE));
    }

    /// A slice begins or ends, or something happens.
    pub(super) fn event(&mut self, time_ns: u64, kind: Kind, track: Track, name: Option<&str>, rec: Option<&Rec>) {
        let mut interned = Message::default();
        let mut event = Message::default();
        event.number(9, kind.number()).number(11, track.0);
        if let Some(name) = name {
            event.number(10, self.name(name, &mut interned));
        }
        if let Some(rec) = rec {
            if let Some(stack) = self.stack(rec.stacks, &mut interned) {
                event.number(56, stack);
            }
            for (key, value) in [("size_bytes", rec.size_bytes), ("allocation_id", rec.allocation_id)] {
                event.message(4, argument(key).present(3, value));
            }
            event.message(4, argument("addr").bytes(6, format!("{:#x}", rec.addr).as_bytes()));
        }
        let interned = interned.into_bytes();
        self.packet(|packet| {
            packet.number(TIMESTAMP, time_ns).message(EVENT, &event).number(FLAGS, NEEDS_STATE);
            if !interned.is_empty() {
                packet.bytes(INTERNED, &interned);
            }
        });
    }

    fn name(&mut self, name: &str, interned: &mut Message) -> u64 {
        if let Some(&number) = self.names.get(name) {
            return number;
        }
        let number = self.names.len() as u64 + 1;
        self.names.insert(name.to_owned(), number);
        interned.message(2, &named(number, name));
        number
    }

    /// Outermost frame first.
    fn stack(&mut self, stacks: Stacks, interned: &mut Message) -> Option<u64> {
        stacks.best()?;
        if let Some(&number) = self.stacks.get(&stacks) {
            return Some(number);
        }
        let number = self.stacks.len() as u64 + 1;
        self.stacks.insert(stacks, number);
        let frames = self.frames.of(stacks);
        for (at, frame) in (self.named as u64 + 1..).zip(&self.frames.frames[self.named..]) {
            let place = if frame.line > 0 { format!(":{}", frame.line) } else { String::new() };
            let file = frame.file.rsplit('/').next().unwrap_or_default();
            let function =
                if file.is_empty() { frame.name.to_string() } else { format!("{} {file}{place}", frame.name) };
            interned.message(5, &named(at, &function));
            let mut numbers = Message::default();
            numbers.number(1, at).number(2, at);
            interned.message(6, &numbers);
        }
        self.named = self.frames.frames.len();
        let mut stack = Message::default();
        stack.number(1, number);
        for frame in frames.iter().rev() {
            stack.number(2, u64::from(*frame) + 1);
        }
        interned.message(7, &stack);
        Some(number)
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.out.into_bytes()
    }
}

/// A text with its number.
fn named(number: u64, text: &str) -> Message {
    let mut named = Message::default();
    named.number(1, number).bytes(2, clean(text).as_bytes());
    named
}

/// `DebugAnnotation` with this name.
fn argument(key: &str) -> Message {
    let mut argument = Message::default();
    argument.bytes(10, key.as_bytes());
    argument
}
