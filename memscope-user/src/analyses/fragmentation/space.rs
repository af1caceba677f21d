//! The free pieces of the pools' memory of one process.
//!
//! Every event costs O(log n) for each piece and span that it touches.

use std::collections::BTreeMap;
use std::ops::Range;

use super::super::ledger::memory::Memory;
use super::super::ledger::shift::{PoolSpan, Shift};
use crate::model::{Device, Event, Pool};

/// A pool of a device.
pub(in crate::analyses) type Place = (Device, Pool);

/// Free pieces of the pools of one process.
#[derive(Debug)]
pub(in crate::analyses) struct Space {
    pub(super) memory: Memory,
    /// Spans of pools, by start.
    spans: BTreeMap<u64, Held>,
    /// Free pieces: their ends, by start. Neighbours that the pool can hand out together are one piece.
    pieces: BTreeMap<u64, u64>,
    pools: BTreeMap<Place, Tally>,
}

/// Memory of a pool in one piece: one block of the driver, or one mapping.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) span: PoolSpan,
    pub(super) used_bytes: u64,
}

impl Held {
    pub(super) const fn size_bytes(&self) -> u64 {
        self.span.place.end - self.span.place.start
    }

    /// Not handed out. Blocks of a damaged input lie on each other, and have more bytes than there are.
    pub(super) const fn free_bytes(&self) -> u64 {
        self.size_bytes().saturating_sub(self.used_bytes)
    }
}

/// Sums of one pool.
#[derive(Debug, Default)]
struct Tally {
    total_bytes: u128,
    used_bytes: u128,
    /// Number of free pieces of each size.
    sizes: BTreeMap<u64, u64>,
}

/// Free part of a pool's memory.
#[expect(clippy::struct_field_names, reason = "units end names")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) total_bytes: u64,
    pub(super) free_bytes: u64,
    pub(super) largest_bytes: u64,
}

impl Figures {
    /// Free bytes outside of the largest piece.
    pub(super) const fn scattered_bytes(self) -> u64 {
        self.free_bytes.saturating_sub(self.largest_bytes)
    }
}

impl Default for Space {
    fn default() -> Self {
        let memory = Memory::followed();
        Self { memory, spans: BTreeMap::new(), pieces: BTreeMap::new(), pools: BTreeMap::new() }
    }
}

impl Space {
    /// Takes an event of the process. Returns the pools with changed memory.
    pub(in crate::analyses) fn observe(&mut self, event: &Event) -> Vec<Place> {
        self.memory.observe(event);
        let mut changed: Vec<Place> = self.memory.take_shifts().into_iter().filter_map(|it| self.shift(it)).collect();
        changed.sort_unstable();
        changed.dedup();
        changed
    }

    /// The process is another program.
    pub(super) fn forget(&mut self) {
        self.memory.forget_addresses();
        self.spans.clear();
        self.pieces.clear();
        self.pools.clear();
    }

    /// Free part of a pool; zero where no memory of it is known.
    pub(super) fn figures(&self, place: Place) -> Figures {
        let Some(Tally { total_bytes, used_bytes, sizes }) = self.pools.get(&place) else { return Figures::default() };
        let clamped = |bytes: u128| u64::try_from(bytes).unwrap_or(u64::MAX);
        Figures {
            total_bytes: clamped(*total_bytes),
            free_bytes: clamped(total_bytes.saturating_sub(*used_bytes)),
            largest_bytes: sizes.last_key_value().map_or(0, |(size, _)| *size),
        }
    }

    /// The largest free piece; `None` where no memory of the pool is known.
    pub(in crate::analyses) fn largest_bytes(&self, place: Place) -> Option<u64> {
        Some(self.figures(place)).filter(|figures| figures.total_bytes > 0).map(|figures| figures.largest_bytes)
    }

    /// Whether a driver block is a pool's segment.
    pub(in crate::analyses) fn is_segment(&self, allocation_id: u64) -> bool {
        self.memory.is_segment(allocation_id)
    }

    /// Memory of a pool, in the order of its addresses.
    pub(super) fn spans(&self, place: Place) -> impl Iterator<Item = &Held> {
        self.spans.values().filter(move |held| (held.span.device, held.span.pool) == place)
    }

    fn shift(&mut self, shift: Shift) -> Option<Place> {
        match shift {
            Shift::Gains(span) => Some(self.gain(span)),
            Shift::Loses(start) => self.lose(start),
            Shift::HandsOut(place) => self.hand_out(place),
            Shift::TakesBack(place) => self.take_back(place),
        }
    }

    fn gain(&mut self, span: PoolSpan) -> Place {
        let (place, of) = (span.place.clone(), (span.device, span.pool));
        let held = Held { span, used_bytes: 0 };
        self.pools.entry(of).or_default().total_bytes += u128::from(held.size_bytes());
        self.spans.insert(place.start, held);
        self.add_free(place);
        of
    }

    fn lose(&mut self, start: u64) -> Option<Place> {
        let held = self.spans.get(&start)?.clone();
        let of = (held.span.device, held.span.pool);
        self.remove_free(&held.span.place);
        self.spans.remove(&start);
        self.pools.entry(of).or_default().total_bytes -= u128::from(held.size_bytes());
        Some(of)
    }

    fn hand_out(&mut self, place: Range<u64>) -> Option<Place> {
        let held = self.spans.range_mut(..=place.start).next_back()?.1;
        held.used_bytes = held.used_bytes.saturating_add(place.end - place.start);
        let of = (held.span.device, held.span.pool);
        self.pools.entry(of).or_default().used_bytes += u128::from(place.end - place.start);
        self.remove_free(&place);
        Some(of)
    }

    fn take_back(&mut self, place: Range<u64>) -> Option<Place> {
        let held = self.spans.range_mut(..=place.start).next_back()?.1;
        held.used_bytes = held.used_bytes.saturating_sub(place.end - place.start);
        let of = (held.span.device, held.span.pool);
        self.pools.entry(of).or_default().used_bytes -= u128::from(place.end - place.start);
        self.add_free(place);
        Some(of)
    }

    fn add_free(&mut self, place: Range<u64>) {
        let Range { mut start, mut end } = place;
        let before = self.pieces.range(..start).next_back().filter(|(_, end)| **end == start);
        if let Some((before, _)) = before.map(|(start, end)| (*start, *end)).filter(|_| self.goes_on(start)) {
            self.remove_piece(before);
            start = before;
        }
        if let Some(behind) = self.pieces.get(&end).copied().filter(|_| self.goes_on(end)) {
            self.remove_piece(end);
            end = behind;
        }
        self.add_piece(start..end);
    }

    /// All of `place` is free, so it lies within one piece.
    fn remove_free(&mut self, place: &Range<u64>) {
        let Some((start, end)) = self.pieces.range(..=place.start).next_back().map(|(start, end)| (*start, *end))
        else {
            return;
        };
        self.remove_piece(start);
        self.add_piece(start..place.start);
        self.add_piece(place.end..end);
    }

    fn add_piece(&mut self, place: Range<u64>) {
        if place.is_empty() {
            return;
        }
        self.pieces.insert(place.start, place.end);
        if let Some(tally) = self.tally_at(place.start) {
            *tally.sizes.entry(place.end - place.start).or_default() += 1;
        }
    }

    fn remove_piece(&mut self, start: u64) {
        let Some(end) = self.pieces.remove(&start) else { return };
        let Some(tally) = self.tally_at(start) else { return };
        if let Some(count) = tally.sizes.get_mut(&(end - start)) {
            *count -= 1;
            if *count == 0 {
                tally.sizes.remove(&(end - start));
            }
        }
    }

    fn tally_at(&mut self, addr: u64) -> Option<&mut Tally> {
        let span = &self.spans.range(..=addr).next_back()?.1.span;
        self.pools.get_mut(&(span.device, span.pool))
    }

    /// Whether the addresses before and from `addr` on are one piece to their pool.
    fn goes_on(&self, addr: u64) -> bool {
        let Some(before) = self.spans.range(..addr).next_back().map(|(_, held)| &held.span) else { return false };
        if before.place.end > addr {
            return true;
        }
        let of = |span: &PoolSpan| (span.device, span.pool, span.mapped, span.reservation);
        before.mapped
            && before.place.end == addr
            && self.spans.get(&addr).is_some_and(|behind| of(&behind.span) == of(before))
    }
}
