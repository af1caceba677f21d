//! The program's requests to its pool, in order: the input that no setting changes.

mod costs;
mod from_events;
mod graphs;
mod limits;
mod old;
mod process;
#[cfg(test)]
mod tests;
mod thread;
mod uses;
mod words;

pub use self::costs::{CallTime, CallTimes};
pub use self::from_events::{Recorder, Source};
pub(super) use self::old::{Before, OldBlock, OldSegment};
pub(super) use self::uses::{LastUse, LastUses};
pub(super) use self::words::{Iter, MAX_LANES, Op, Slots, Words};

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::device::Card;
use super::settings::Family;
use crate::model::{Fraction, OwnRules, Stack};

/// Requests between two kept times.
const TIME_EVERY: usize = 64;

/// A device, a stream and a private pool (0: the default one).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lane {
    /// Index among the devices of the list.
    pub device: u8,
    /// Value of the stream's pointer.
    pub stream: u64,
    /// Private pool.
    pub private: u16,
}

/// A named moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Its kind.
    pub what: MarkOf,
}

/// The kind of a named moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MarkOf {
    /// A step begins.
    Step(u32),
    /// The program named it.
    Text(Arc<str>),
}

/// Facts missing in the recording; each makes figures estimates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Gaps {
    /// Requests with an unknown requested size: the block's size replaces it.
    pub sizes_guessed: u64,
    /// Blocks without a seen free.
    pub unseen_frees: u64,
    /// Bytes that the pool held before the recording began.
    pub older_bytes: u64,
    /// Bytes of blocks from before the history, with known places: the recording is replayed from there. Under other settings and on other
    /// devices they are requested first.
    pub before_bytes: u64,
    /// Blocks with an unknown stream.
    pub without_stream: u64,
    /// Times that segments were freed just before one was made: the cache was emptied, or a request was retried.
    pub unclear_frees: u64,
    /// Records were lost.
    pub lost_records: bool,
    /// Requests that did not fit into the list.
    pub left_out: u64,
}

impl Gaps {
    /// Whether there are none that affect the pool.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// Recorded facts of a request beside the request itself.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// Bits 9 to 40 of the block's address.
    addrs: Vec<u32>,
    /// Bits 9 to 24 of its size.
    sizes: Vec<u16>,
    /// Number of the call stack, or 0.
    stacks: Vec<u32>,
    /// Time of each 64th request.
    times_ns: Vec<u64>,
}

/// Requests of one process.
#[derive(Clone, Debug, Default)]
pub struct Requests {
    /// Process.
    pub pid: u32,
    /// The allocator, as far as the recording shows it.
    pub family: Family,
    /// Devices, as physical numbers.
    pub devices: Vec<u32>,
    /// What lane numbers mean.
    pub lanes: Vec<Lane>,
    pub(super) words: Words,
    seen: Arc<Seen>,
    pub(super) marks: Vec<Mark>,
    /// Starts of the segments in the order in which they were made, by device.
    pub(super) segments: Vec<Vec<u64>>,
    /// Requests that got a block.
    pub count: u64,
    /// Frees.
    pub frees: u64,
    /// Frees of blocks that streams still used.
    pub frees_in_use: u64,
    /// Requests that failed.
    pub failures: u64,
    /// Times that the program emptied the cache, as far as that shows.
    pub empty_caches: u64,
    /// Driver memory of the process outside of the pool, at most, by device.
    pub others_peak_bytes: Vec<u64>,
    /// Less than this the process could have of a device: at that, the driver refused it memory.
    pub limit_bytes: Vec<Option<u64>>,
    /// Bytes of each device, where the program has asked for them.
    pub total_bytes: Vec<Option<u64>>,
    /// What the driver left of a device differed in time: [`Op::Limit`] has it.
    pub(super) limits_vary: bool,
    /// The most that the pool held, where that is known, by device: a device has no less.
    pub held_bytes: Vec<u64>,
    /// Settings of the pool that the program was started with.
    pub configuration: Option<String>,
    /// Settings that the script has set later, each once.
    pub script_settings: Vec<Arc<str>>,
    /// Parts of devices that the script has limited itself to: index of the device, and its last part.
    pub script_fractions: BTreeMap<u8, Fraction>,
    /// Reservations were made for segments: they are expandable.
    pub expandable: bool,
    /// Rules of pools of their own, by number.
    pub(super) own_rules: BTreeMap<u16, OwnRules>,
    /// What the pools held before.
    pub(super) before: Before,
    /// What driver calls took.
    pub call_times: CallTimes,
    /// When blocks are used last, if that was asked.
    pub(super) last_uses: Option<Arc<LastUses>>,
    /// Facts missing in the recording.
    pub gaps: Gaps,
    /// There were more than wanted, so there is none here.
    pub is_cut: bool,
}

impl Requests {
    /// Bytes of memory that the list takes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let Seen { addrs, sizes, stacks, times_ns } = &*self.seen;
        let uses = self.last_uses.as_ref().map_or(0, |uses| uses.bytes());
        self.words.bytes()
            + uses
            + 4 * (addrs.capacity() + stacks.capacity())
            + 2 * sizes.capacity()
            + 8 * times_ns.capacity()
    }

    /// Gives back memory that the list does not need.
    pub fn shrink(&mut self) {
        self.words.shrink();
        let Seen { addrs, sizes, stacks, times_ns } = Arc::make_mut(&mut self.seen);
        addrs.shrink_to_fit();
        sizes.shrink_to_fit();
        stacks.shrink_to_fit();
        times_ns.shrink_to_fit();
    }

    /// The same recording with other operations.
    pub(super) fn with_words(&self, words: Words) -> Self {
        Self { words, ..self.clone() }
    }

    /// Adds the recorded facts of a request.
    pub(super) fn see(&mut self, addr: u64, size_bytes: u64, stack: Option<Stack>, time_ns: u64) {
        let seen = Arc::make_mut(&mut self.seen);
        if seen.addrs.len().is_multiple_of(TIME_EVERY) {
            seen.times_ns.push(time_ns);
        }
        seen.addrs.push((addr >> 9) as u32);
        seen.sizes.push((size_bytes >> 9) as u16);
        seen.stacks.push(stack.map_or(0, Stack::number));
        self.count += 1;
    }

    /// Adds the recorded facts of a request without the block's size and call stack.
    pub(super) fn see_place(&mut self, addr: u64, time_ns: u64) {
        let seen = Arc::make_mut(&mut self.seen);
        if seen.addrs.len().is_multiple_of(TIME_EVERY) {
            seen.times_ns.push(time_ns);
        }
        seen.addrs.push((addr >> 9) as u32);
        self.count += 1;
    }

    /// Whether a request's block lay there and had this size, as far as that is kept; `None`: unknown.
    pub(super) fn agrees(&self, number: u64, addr: u64, size_bytes: u64) -> Option<bool> {
        let seen_addr = *self.seen.addrs.get(number as usize)?;
        Some(seen_addr == (addr >> 9) as u32 && self.agrees_in_size(number, size_bytes) != Some(false))
    }

    /// Whether its block had this size, as far as that is kept.
    pub(super) fn agrees_in_size(&self, number: u64, size_bytes: u64) -> Option<bool> {
        self.seen.sizes.get(number as usize).map(|size| *size == (size_bytes >> 9) as u16)
    }

    /// Whether sizes of blocks are known.
    pub(super) fn has_sizes(&self) -> bool {
        !self.seen.sizes.is_empty()
    }

    /// Where a request came from.
    pub(super) fn stack_of(&self, number: u64) -> Option<Stack> {
        Stack::of_number(*self.seen.stacks.get(number as usize)?)
    }

    /// About when a request was made.
    pub(super) fn time_of(&self, number: u64) -> Option<u64> {
        let last = self.seen.times_ns.last().copied();
        self.seen.times_ns.get(number as usize / TIME_EVERY).copied().or(last)
    }

    /// A device as in the recording: without the memory that the driver refused.
    pub(super) fn recorded_card(&self, device: u8, card: &Card) -> Card {
        let limit_bytes = self.limit_bytes.get(usize::from(device)).copied().flatten();
        let limit_bytes = limit_bytes.filter(|_| !self.limits_vary);
        let memory_bytes = limit_bytes.map_or(card.memory_bytes, |above| above.saturating_sub(1));
        let total_bytes = self.total_bytes.get(usize::from(device)).copied().flatten().unwrap_or(card.total_bytes);
        let held_bytes = self.held_bytes.get(usize::from(device)).copied().unwrap_or(0);
        Card { memory_bytes, total_bytes: total_bytes.max(held_bytes), ..card.clone() }
    }

    /// What the script sets, in words.
    pub(super) fn set_by_script(&self) -> Vec<String> {
        let settings = self.script_settings.iter().map(ToString::to_string);
        let fractions = self.script_fractions.iter().map(|(device, fraction)| {
            let percent = 100.0 * fraction.value();
            format!("at most {percent:.0} % of npu:{}", self.devices[usize::from(*device)])
        });
        settings.chain(fractions).collect()
    }

    /// Index of a device.
    pub(super) fn device(&mut self, number: u32) -> Option<u8> {
        if let Some(index) = self.devices.iter().position(|known| *known == number) {
            return Some(index as u8);
        }
        let index = u8::try_from(self.devices.len()).ok()?;
        self.devices.push(number);
        self.segments.push(Vec::new());
        self.others_peak_bytes.push(0);
        self.limit_bytes.push(None);
        self.total_bytes.push(None);
        self.held_bytes.push(0);
        Some(index)
    }
}
