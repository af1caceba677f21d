//! The caching allocator of one device, a rule at a time.
//!
//! Rules are those of `NPUCachingAllocator.cpp`: the free block for a request (`find`), requests to the driver (`grow`,
//! `expandable`), memory given back to it (`release`, `collect`), and splitting and joining of blocks (here). There is
//! no clock and no random order: the same requests under the same settings give the same pool.

mod block;
mod collect;
mod expandable;
mod figures;
mod find;
mod grow;
mod list;
mod rack;
mod release;
mod seed;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_of_cuda;

pub(super) use self::block::Id;
pub use self::figures::Figures;

use std::collections::BTreeMap;

use self::block::{Block, Blocks, NONE, State};
use self::expandable::Reservation;
use self::grow::Rejected;
use self::rack::Racks;
use super::device::{Calls, Card, Device};
use super::settings::Settings;
use super::{MIB, SMALLEST_BYTES};
use crate::model::OwnRules;

/// Blocks that streams use, beyond which lazy reclaiming looks at them before it searches.
const LAZY_PENDING: usize = 512;

/// Number of a block that streams use, in the order of the frees.
pub(super) type Ticket = u32;

/// Free memory in the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeMemory {
    /// All of it.
    pub bytes: u64,
    /// The largest piece.
    pub largest_bytes: u64,
    /// Pieces.
    pub pieces: u64,
}

/// What happened, in the terms of the allocator's own history.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Alloc,
    FreeRequested,
    FreeCompleted,
    SegmentAlloc,
    SegmentFree,
    SegmentMap,
    SegmentUnmap,
    Oom,
}

/// The pool of one device.
#[derive(Debug)]
pub(super) struct Pool {
    settings: Settings,
    card: Card,
    with_script: bool,
    with_limits: bool,
    allowed_bytes: Option<u64>,
    device: Device,
    blocks: Blocks,
    racks: Racks,
    reservations: Vec<Option<Reservation>>,
    /// Blocks that streams still use, in the order of their frees.
    pending: BTreeMap<Ticket, Id>,
    tickets: Ticket,
    /// Those of them that streams have finished with; only lazy reclaiming lets them wait.
    ready: Vec<Ticket>,
    /// Private pools that no graph uses any more.
    released: Vec<u16>,
    /// Rules of private pools that have some.
    own_rules: BTreeMap<u16, OwnRules>,
    figures: Figures,
    #[cfg(test)]
    pub(super) history: Option<Vec<(What, u64, u64)>>,
}

impl Pool {
    pub(super) fn new(settings: Settings, card: Card) -> Self {
        Self {
            allowed_bytes: card.allowed_bytes(&settings),
            device: Device::new(&card),
            settings,
            card,
            with_script: false,
            with_limits: false,
            blocks: Blocks::default(),
            racks: Racks::default(),
            reservations: Vec::new(),
            pending: BTreeMap::new(),
            tickets: 0,
            ready: Vec::new(),
            released: Vec::new(),
            own_rules: BTreeMap::new(),
            figures: Figures::default(),
            #[cfg(test)]
            history: None,
        }
    }

    /// Whether what the script sets applies.
    pub(super) fn with_script(self, with_script: bool) -> Self {
        Self { with_script, ..self }
    }

    /// Whether what other processes leave of the device applies.
    pub(super) fn with_limits(self, with_limits: bool) -> Self {
        Self { with_limits, ..self }
    }

    /// Other processes leave these many bytes of the device.
    pub(super) const fn leave(&mut self, bytes: u64) {
        if self.with_limits {
            self.device.leave(bytes);
        }
    }

    /// With the rules of private pools, by their numbers.
    pub(super) fn with_own_rules(self, own_rules: BTreeMap<u16, OwnRules>) -> Self {
        Self { own_rules, ..self }
    }

    /// The script sets other settings. Refused ones change nothing: there the script got an error.
    pub(super) fn script_sets(&mut self, text: &str) {
        if let (true, Ok(settings)) = (self.with_script, self.settings.changed(text)) {
            self.settings = settings;
        }
    }

    /// The script limits the process to a part of the device; what the user has asked about goes first.
    pub(super) fn limit_to(&mut self, fraction: f64) {
        if self.card.fraction.is_none() {
            self.allowed_bytes = Card { fraction: Some(fraction), ..self.card.clone() }.allowed_bytes(&self.settings);
        }
    }

    #[cfg(test)]
    fn note(&mut self, what: What, addr: u64, size: u64) {
        if let Some(history) = &mut self.history {
            history.push((what, addr, size));
        }
    }

    /// Number for the requests of a stream from the default pool (0) or a private one.
    pub(super) fn lane(&mut self, stream: u64, private: u16) -> Option<u16> {
        self.racks.lane(stream, private)
    }

    pub(super) const fn figures(&self) -> &Figures {
        &self.figures
    }

    pub(super) const fn calls(&self) -> Calls {
        self.device.calls
    }

    pub(super) const fn device_peak_bytes(&self) -> u64 {
        self.device.peak_bytes()
    }

    pub(super) const fn device_free_bytes(&self) -> u64 {
        self.device.free_bytes()
    }

    /// Start and size of a block.
    pub(super) fn place(&self, id: Id) -> (u64, u64) {
        let block = self.blocks.get(id);
        (block.addr, block.size)
    }

    /// Driver memory of the process outside of the pool.
    pub(super) fn others(&mut self, bytes: i64) {
        self.device.others(bytes);
    }

    /// A block for a request; `None`: memory is out.
    pub(super) fn malloc(&mut self, asked: u64, lane: u16) -> Option<Id> {
        let size = self.settings.round(asked);
        let rack = 2 * lane + u16::from(size > MIB);
        let peak_bytes = self.figures.reserved_peak_bytes;
        let Some(id) = self.obtain(rack, size) else {
            self.figures.failures += 1;
            #[cfg(test)]
            self.note(What::Oom, self.device.free_bytes(), size);
            return None;
        };
        let id = self.align(id, size);
        let id = self.split(id, size);
        let block = self.blocks.at(id);
        (block.state, block.asked) = (State::Allocated, asked);
        let bytes = block.size;
        self.figures.hand_out(bytes, asked);
        if self.figures.reserved_peak_bytes > peak_bytes {
            self.figures.allocated_at_peak_bytes = self.figures.allocated_bytes;
        }
        #[cfg(test)]
        self.note(What::Alloc, self.blocks.get(id).addr, asked);
        Some(id)
    }

    /// A free block of at least `size`, out of its rack: found, or made by the driver.
    fn obtain(&mut self, rack: u16, size: u64) -> Option<Id> {
        // A request of a private pool is made while a graph is captured: then streams are not asked.
        let lazy = self.settings.lazy_reclaim && self.racks.private(rack) == 0;
        let reclaimed = lazy && self.pending.len() > LAZY_PENDING;
        if reclaimed {
            self.reclaim();
        }
        let mut found = self.find(rack, size);
        if found.is_none() && lazy && !reclaimed {
            self.reclaim();
            found = self.find(rack, size);
        }
        found.or_else(|| self.make_room(rack, size).unwrap_or_default())
    }

    /// Asks the driver, and gives back more and more of the cache until the request succeeds.
    fn make_room(&mut self, rack: u16, size: u64) -> Result<Option<Id>, Rejected> {
        if self.collects() {
            self.collect();
        }
        if let Some(id) = self.grow(rack, size)? {
            return Ok(Some(id));
        }
        if self.release_oversize(rack, size)
            && let Some(id) = self.grow(rack, size)?
        {
            return Ok(Some(id));
        }
        let private = self.racks.private(rack);
        if private == 0 {
            if let Some(id) = self.spare(rack, size) {
                return Ok(Some(id));
            }
        } else if !self.own_rules.get(&private).is_some_and(|rules| rules.of_thread) {
            // A graph is being captured, or, before 2.13, a pool of the program's own is in use: the device is not synchronised, the request fails.
            return Ok(None);
        }
        self.device.calls.synchronize += 1;
        self.release_cached();
        self.figures.retries += 1;
        self.grow(rack, size)
    }

    /// A free block of a private pool that is there for requests that would fail, of the same stream. `torch_npu` 2.14 asks before it gives back
    /// its cache.
    fn spare(&mut self, rack: u16, size: u64) -> Option<Id> {
        let willing = self.own_rules.iter().filter(|(_, rules)| rules.on_oom);
        let racks: Vec<u16> = willing.filter_map(|(private, _)| self.racks.alike(rack, *private)).collect();
        racks.into_iter().find_map(|rack| self.find(rack, size))
    }

    /// In expandable segments a large block begins at a multiple of the alignment, if the rest is still large enough.
    fn align(&mut self, id: Id, size: u64) -> Id {
        let align = self.settings.align_bytes;
        if !self.settings.expandable || size < 2 * MIB || align == 0 {
            return id;
        }
        let block = *self.blocks.get(id);
        let skip = block.addr.next_multiple_of(align) - block.addr;
        if skip == 0 || skip + size > block.size {
            return id;
        }
        let rest = Block { addr: block.addr + skip, size: block.size - skip, ..block };
        let aligned = self.blocks.add_behind(id, rest);
        self.blocks.at(id).size = skip;
        self.put(id);
        aligned
    }

    /// Frees the rest, if it is enough to be a block of its own; the front part is the block.
    fn split(&mut self, id: Id, size: u64) -> Id {
        let block = *self.blocks.get(id);
        let rest = block.size - size;
        let is_whole = self.own_rules.get(&self.racks.private(block.rack)).is_some_and(|rules| rules.no_split);
        let splits = if is_whole {
            false
        } else if self.racks.is_small(block.rack) || self.settings.expandable {
            rest >= SMALLEST_BYTES
        } else {
            size < self.settings.max_split_bytes && rest > MIB
        };
        if block.is_plain() && !block.is_whole() {
            self.figures.inactive_split_bytes -= block.size;
        }
        if !splits {
            return id;
        }
        let front = self.blocks.add_before(id, Block { size, ..block });
        let behind = self.blocks.at(id);
        (behind.addr, behind.size) = (behind.addr + size, rest);
        self.put(id);
        if block.is_plain() {
            self.figures.inactive_split_bytes += rest;
        }
        front
    }

    /// Puts a free block into its rack; its age begins.
    fn put(&mut self, id: Id) {
        let rack = self.blocks.get(id).rack;
        let searches = self.racks.class_of(rack).searches;
        let block = self.blocks.at(id);
        (block.tick, block.state) = (searches, State::Free);
        self.racks.of(rack).blocks.insert((block.size, block.addr), id);
    }

    /// Takes a free block out of its rack.
    fn take(&mut self, id: Id) {
        let Block { rack, size, addr, .. } = *self.blocks.get(id);
        let taken = self.racks.of(rack).blocks.remove(&(size, addr));
        debug_assert_eq!(taken, Some(id), "a free block is in its rack");
    }

    /// The program gives a block back.
    pub(super) fn free(&mut self, id: Id) {
        self.give_up(id);
        self.complete(id);
    }

    /// The program gives a block back that streams still use: it stays out until [`Pool::returned`] with this ticket.
    pub(super) fn free_in_use(&mut self, id: Id) -> Ticket {
        self.give_up(id);
        self.tickets = self.tickets.wrapping_add(1);
        self.blocks.at(id).state = State::Pending;
        self.pending.insert(self.tickets, id);
        self.tickets
    }

    fn give_up(&mut self, id: Id) {
        let block = *self.blocks.get(id);
        self.figures.allocated_bytes -= block.size;
        #[cfg(test)]
        self.note(What::FreeRequested, block.addr, block.asked);
    }

    /// Streams have done with a block. It may have come back with the synchronisation of a retry: then nothing happens.
    pub(super) fn returned(&mut self, ticket: Ticket) {
        if self.settings.lazy_reclaim { self.ready.push(ticket) } else { self.finish(ticket) }
    }

    fn reclaim(&mut self) {
        for ticket in std::mem::take(&mut self.ready) {
            self.finish(ticket);
        }
    }

    fn finish(&mut self, ticket: Ticket) {
        if let Some(id) = self.pending.remove(&ticket) {
            self.complete(id);
        }
    }

    /// A block is free for good: it joins its free neighbours.
    fn complete(&mut self, id: Id) {
        let Block { size, asked, prev, next, .. } = *self.blocks.get(id);
        #[cfg(test)]
        self.note(What::FreeCompleted, self.blocks.get(id).addr, asked);
        self.blocks.at(id).state = State::Free;
        let joined = self.join(id, prev) + self.join(id, next);
        self.put(id);
        let block = self.blocks.get(id);
        if block.is_plain() {
            self.figures.inactive_split_bytes -= joined;
            if !block.is_whole() {
                self.figures.inactive_split_bytes += block.size;
            }
        }
        self.figures.active_bytes -= size;
        self.figures.requested_bytes -= asked;
    }

    /// Makes a neighbour a part of `into`, if it is free, or without memory, as that one is; gives its size, or 0.
    fn join(&mut self, into: Id, from: Id) -> u64 {
        if from == NONE {
            return 0;
        }
        let Block { state, size, rack, addr, .. } = *self.blocks.get(from);
        match state {
            State::Free if self.blocks.get(into).state == State::Free => self.take(from),
            State::Unmapped if self.blocks.get(into).state == State::Unmapped => {
                self.racks.of(rack).unmapped.remove(&addr);
            }
            _ => return 0,
        }
        self.blocks.join(into, from);
        size
    }

    /// Free memory as it is now.
    pub(super) fn free_memory(&self) -> FreeMemory {
        let mut free = FreeMemory::default();
        for (bytes, _) in self.racks.all.iter().flat_map(|rack| rack.blocks.from(0)) {
            free.bytes += bytes;
            free.largest_bytes = free.largest_bytes.max(bytes);
            free.pieces += 1;
        }
        free
    }
}
