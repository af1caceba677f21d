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
    /// Free pieces, by start. Neighbours that the pool can hand out together are one piece.
    pieces: BTreeMap<u64, Piece>,
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

    /// The pool gives it back before a request fails.
    const fn is_returnable(&self) -> bool {
        self.used_bytes == 0 && self.span.pool.gives_back()
    }

    /// Its size if the pool gives it back.
    const fn returnable_bytes(&self) -> u128 {
        if self.is_returnable() { self.size_bytes() as u128 } else { 0 }
    }

    /// Not handed out. Blocks of a damaged input lie on each other, and have more bytes than there are.
    pub(super) const fn free_bytes(&self) -> u64 {
        self.size_bytes().saturating_sub(self.used_bytes)
    }
}

/// A free piece.
#[derive(Clone, Copy, Debug)]
struct Piece {
    end: u64,
    /// Without what of it lies in returnable segments.
    kept_bytes: u64,
}

/// Sums of one pool.
#[derive(Debug, Default)]
struct Tally {
    total_bytes: u128,
    used_bytes: u128,
    /// Of returnable segments.
    returnable_bytes: u128,
    /// Of all free pieces.
    sizes: Sizes,
    /// Of their parts outside of returnable segments.
    kept_sizes: Sizes,
}

/// Number of pieces of each size.
#[derive(Debug, Default)]
struct Sizes(BTreeMap<u64, u64>);

impl Sizes {
    fn add(&mut self, size_bytes: u64) {
        *self.0.entry(size_bytes).or_default() += 1;
    }

    fn remove(&mut self, size_bytes: u64) {
        let Some(count) = self.0.get_mut(&size_bytes) else { return };
        *count -= 1;
        if *count == 0 {
            self.0.remove(&size_bytes);
        }
    }

    fn largest(&self) -> u64 {
        self.0.last_key_value().map_or(0, |(size_bytes, _)| *size_bytes)
    }
}

/// Free part of a pool's memory.
#[expect(clippy::struct_field_names, reason = "units end names")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) total_bytes: u64,
    pub(super) free_bytes: u64,
    pub(super) largest_bytes: u64,
    /// Of segments without any block, which the pool gives back before a request fails.
    pub(super) returnable_bytes: u64,
    /// The largest piece outside of these.
    pub(super) largest_kept_bytes: u64,
}

impl Figures {
    /// Free bytes of segments with blocks, outside of the largest piece.
    pub(super) const fn scattered_bytes(self) -> u64 {
        self.free_bytes.saturating_sub(self.returnable_bytes).saturating_sub(self.largest_kept_bytes)
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
        let Some(tally) = self.pools.get(&place) else { return Figures::default() };
        let Tally { total_bytes, used_bytes, returnable_bytes, sizes, kept_sizes } = tally;
        let clamped = |bytes: u128| u64::try_from(bytes).unwrap_or(u64::MAX);
        Figures {
            total_bytes: clamped(*total_bytes),
            free_bytes: clamped(total_bytes.saturating_sub(*used_bytes)),
            largest_bytes: sizes.largest(),
            returnable_bytes: clamped(*returnable_bytes),
            largest_kept_bytes: kept_sizes.largest(),
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
        let tally = self.pools.entry(of).or_default();
        tally.total_bytes += u128::from(held.size_bytes());
        tally.returnable_bytes += held.returnable_bytes();
        self.spans.insert(place.start, held);
        self.add_free(place);
        of
    }

    fn lose(&mut self, start: u64) -> Option<Place> {
        let held = self.spans.get(&start)?.clone();
        let of = (held.span.device, held.span.pool);
        self.remove_free(&held.span.place);
        self.spans.remove(&start);
        let tally = self.pools.entry(of).or_default();
        tally.total_bytes -= u128::from(held.size_bytes());
        tally.returnable_bytes -= held.returnable_bytes();
        Some(of)
    }

    fn hand_out(&mut self, place: Range<u64>) -> Option<Place> {
        let size_bytes = place.end - place.start;
        let held = self.spans.range_mut(..=place.start).next_back()?.1;
        let returnable_before = held.returnable_bytes();
        held.used_bytes = held.used_bytes.saturating_add(size_bytes);
        let of = (held.span.device, held.span.pool);
        let tally = self.pools.entry(of).or_default();
        tally.used_bytes += u128::from(size_bytes);
        tally.returnable_bytes -= returnable_before - held.returnable_bytes();
        self.remove_free(&place);
        Some(of)
    }

    fn take_back(&mut self, place: Range<u64>) -> Option<Place> {
        let size_bytes = place.end - place.start;
        let held = self.spans.range_mut(..=place.start).next_back()?.1;
        let returnable_before = held.returnable_bytes();
        held.used_bytes = held.used_bytes.saturating_sub(size_bytes);
        let of = (held.span.device, held.span.pool);
        let tally = self.pools.entry(of).or_default();
        tally.used_bytes -= u128::from(size_bytes);
        tally.returnable_bytes += held.returnable_bytes() - returnable_before;
        self.add_free(place);
        Some(of)
    }

    fn add_free(&mut self, place: Range<u64>) {
        let Range { mut start, mut end } = place;
        let before = self.pieces.range(..start).next_back().filter(|(_, piece)| piece.end == start);
        if let Some(before) = before.map(|(start, _)| *start).filter(|_| self.goes_on(start)) {
            self.remove_piece(before);
            start = before;
        }
        if let Some(behind) = self.pieces.get(&end).copied().filter(|_| self.goes_on(end)) {
            self.remove_piece(end);
            end = behind.end;
        }
        self.add_piece(start..end);
    }

    /// All of `place` is free, so it lies within one piece.
    fn remove_free(&mut self, place: &Range<u64>) {
        let piece = self.pieces.range(..=place.start).next_back().map(|(start, piece)| (*start, piece.end));
        let Some((start, end)) = piece else { return };
        self.remove_piece(start);
        self.add_piece(start..place.start);
        self.add_piece(place.end..end);
    }

    fn add_piece(&mut self, place: Range<u64>) {
        if place.is_empty() {
            return;
        }
        let piece = Piece { end: place.end, kept_bytes: self.kept_bytes(&place) };
        self.pieces.insert(place.start, piece);
        if let Some(tally) = self.tally_at(place.start) {
            tally.sizes.add(place.end - place.start);
            tally.kept_sizes.add(piece.kept_bytes);
        }
    }

    fn remove_piece(&mut self, start: u64) {
        let Some(Piece { end, kept_bytes }) = self.pieces.remove(&start) else { return };
        let Some(tally) = self.tally_at(start) else { return };
        tally.sizes.remove(end - start);
        tally.kept_sizes.remove(kept_bytes);
    }

    /// Bytes of a free piece outside of returnable segments. Only its first and its last segment can have blocks: the piece is
    /// all of each other one.
    fn kept_bytes(&self, piece: &Range<u64>) -> u64 {
        let segment = |addr: u64| self.spans.range(..=addr).next_back().map(|(_, held)| held);
        let (Some(first), Some(last)) = (segment(piece.start), segment(piece.end - 1)) else { return 0 };
        if !first.span.pool.gives_back() {
            return piece.end - piece.start;
        }
        let kept = |held: &Held| {
            let Range { start, end } = held.span.place;
            if held.is_returnable() { 0 } else { end.min(piece.end).saturating_sub(start.max(piece.start)) }
        };
        kept(first) + if first.span.place.start == last.span.place.start { 0 } else { kept(last) }
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
