//! Driver blocks, the addresses that they are behind, and the pools' blocks there, of one process.
//!
//! Overlaps are impossible: a new block shows that an older one there has ended unseen, and it is forgotten.

use std::collections::BTreeMap;
use std::ops::Range;

use super::account::{Account, Accounts, PoolAccount, Sample};
use super::segment::{Plain, Plains, Segment, Span, Starts};
use super::sheets;
use super::shift::{PoolSpan, Shift};
use super::{Ledger, Moment};
use crate::hash::HashMap;
use crate::model::{
    AllocApi, Block, Device, DeviceUsage, Event, EventKind, Module, Pool, PoolLevel, Region, RegionKind, module_name,
};

/// Devices of one process; more only come from a broken program, and share one account.
const MAX_DEVICES: usize = 64;

/// Most pools of one process; a program can name any number, and blocks of further ones are in no ledger.
const MAX_POOLS: usize = 32;

/// Memory of one process.
#[derive(Debug, Default)]
pub(in crate::analyses) struct Memory {
    pid: u32,
    pub(super) time_ns: u64,
    /// The driver's last figures of each device.
    figures: BTreeMap<Device, Figures>,
    accounts: Accounts,
    /// Driver blocks by number, but for plain ones.
    segments: HashMap<u64, Segment>,
    plains: Plains,
    /// Addresses with a driver block behind them, by start.
    spans: BTreeMap<u64, Span>,
    reservations: BTreeMap<u64, Reservation>,
    /// Pools that were seen, in the order in which they claim memory.
    pools: Vec<Pool>,
    /// Blocks of pools.
    handed: BTreeMap<(Pool, u64), Handed>,
    /// Those of them that another pool has blocks in: its segments.
    borrowed: BTreeMap<(Pool, u64), Borrowed>,
    /// Driver blocks that were found at the attach, start and number, until the pool that has them is known by its blocks.
    found: BTreeMap<Device, Vec<(u64, u64)>>,
    /// Changes of the pools' memory, if an analysis follows it.
    shifts: Option<Vec<Shift>>,
}

/// The driver's figures of a device, and when they were taken.
pub(super) type Figures = (u64, DeviceUsage);

#[derive(Clone, Copy, Debug)]
struct Reservation {
    size_bytes: u64,
    owner: Option<Pool>,
}

/// A block of a pool.
#[derive(Clone, Copy, Debug)]
struct Handed {
    allocation_id: u64,
    device: Device,
    size_bytes: u64,
}

/// A pool's block that another pool has blocks in.
#[derive(Clone, Copy, Debug)]
struct Borrowed {
    /// That pool, and the device that it is on.
    by: (Device, Pool),
    size_bytes: u64,
    /// Bytes with driver memory behind them.
    backed: u128,
}

/// Whether a block is allocated or freed.
#[derive(Clone, Copy)]
enum Change {
    Comes,
    Goes,
}

impl Change {
    fn apply(self, sum: &mut u128, bytes: u128) {
        match self {
            Self::Comes => *sum += bytes,
            // Blocks of a lying dump may overlap, and then more goes than came.
            Self::Goes => *sum = sum.saturating_sub(bytes),
        }
    }
}

fn range(start: u64, size_bytes: u64) -> Range<u64> {
    start..start.saturating_add(size_bytes)
}

fn common(a: &Range<u64>, b: &Range<u64>) -> Range<u64> {
    a.start.max(b.start)..a.end.min(b.end)
}

impl Memory {
    /// For a new process.
    pub(super) fn new(pid: u32, figures: BTreeMap<Device, Figures>) -> Self {
        Self { pid, figures, ..Self::default() }
    }

    /// For a process with followed pools, see [`Self::take_shifts`].
    pub(in crate::analyses) fn followed() -> Self {
        Self { shifts: Some(Vec::new()), ..Self::default() }
    }

    /// Changes of the pools' memory since the last call, in order.
    pub(in crate::analyses) fn take_shifts(&mut self) -> Vec<Shift> {
        self.shifts.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Takes an event of the process.
    pub(in crate::analyses) fn observe(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Alloc(alloc) => {
                match alloc.block.pool.level() {
                    PoolLevel::Driver => self.driver_alloc(&alloc.block),
                    PoolLevel::Host => {}
                    _ => self.pool_alloc(&alloc.block),
                }
                if alloc.block.found && !alloc.restored {
                    self.found(&alloc.block);
                }
                self.reported_with(&alloc.block, alloc.used_bytes, alloc.total_bytes);
            }
            EventKind::Free(free) => {
                match free.block.pool.level() {
                    PoolLevel::Driver => self.driver_free(&free.block),
                    _ => self.pool_free(&free.block),
                }
                self.reported_with(&free.block, free.used_bytes, free.total_bytes);
            }
            EventKind::BlockReturned(returned) => {
                // Its figures are those after the free that comes next.
                self.shrinks();
                self.reported(event.device, returned.pool, (returned.used_bytes, returned.total_bytes));
            }
            EventKind::Region(region) => self.region(region),
            _ => {}
        }
        self.time_ns = event.time_ns;
    }

    fn reported_with(&mut self, block: &Block, used_bytes: u64, total_bytes: Option<u64>) {
        if let Some(reserved_bytes) = total_bytes {
            self.reported(block.device, block.pool, (used_bytes, reserved_bytes));
        }
    }

    fn region(&mut self, region: &Region) {
        let Region { kind, begins, addr, size_bytes, allocation_id, .. } = *region;
        match (kind, begins) {
            (RegionKind::Mapping, true) => self.mapped(addr, size_bytes, allocation_id),
            (RegionKind::Mapping, false) => self.unmapped(addr),
            (RegionKind::Reservation, true) => self.reserved(addr, size_bytes),
            (RegionKind::Reservation, false) => self.unreserved(addr),
            (RegionKind::Registration, _) => {}
        }
    }

    /// The driver gave memory.
    fn driver_alloc(&mut self, block: &Block) {
        let Block { allocation_id, addr, size_bytes, module_id, .. } = *block;
        self.driver_free(block);
        let (device, module) = (self.account_of(block.device), block.module_id);
        let account = self.account(device);
        account.hal += u128::from(size_bytes);
        account.modules.entry(module_name(module)).or_default().add(size_bytes);
        account.unpooled.entry(module).or_default().add(size_bytes);
        let plain = Plain { device, module_id };
        let place = range(addr, size_bytes);
        let number = self.plains.number(plain).filter(|_| block.api == AllocApi::Alloc && !place.is_empty());
        if let Some(number) = number {
            self.evict_spans(&place);
            self.spans.insert(addr, Span::plain(size_bytes, allocation_id, number));
            self.claim_or_fill(addr, size_bytes);
        } else {
            self.segments.insert(allocation_id, Segment::new(size_bytes, plain, Starts::None));
            if block.api == AllocApi::Alloc {
                self.add_span((addr, size_bytes), allocation_id, false);
            }
        }
        self.grown();
    }

    /// A block was there at the attach. Of the driver's blocks only segments of a pool are found, also those with no live block of the pool.
    fn found(&mut self, block: &Block) {
        let Block { pool, device, addr, allocation_id, .. } = *block;
        if pool.is_driver() {
            self.found.entry(device).or_default().push((addr, allocation_id));
        } else if self.knows(pool) {
            for (start, number) in self.found.remove(&device).unwrap_or_default() {
                if self.spans.get(&start).is_some_and(|span| span.block() == number) {
                    self.claim(start, pool);
                }
            }
        }
    }

    /// The driver has it back.
    fn driver_free(&mut self, block: &Block) {
        let Block { allocation_id, addr, .. } = *block;
        let span = self.spans.get(&addr).copied().filter(|span| span.block() == allocation_id);
        if let Some((span, plain)) = span.and_then(|span| Some((span, self.plains.get(span.plain_number())?))) {
            self.shrinks();
            self.spans.remove(&addr);
            return self.take_unpooled(plain.device, plain.module_id, span.size_bytes);
        }
        if !self.segments.contains_key(&allocation_id) {
            return;
        }
        self.shrinks();
        let spans = self.segments.get(&allocation_id).map(|segment| segment.spans.all()).unwrap_or_default();
        for start in spans {
            self.remove_span(start);
        }
        let Some(segment) = self.segments.remove(&allocation_id) else { return };
        let (device, module, size_bytes, owner) =
            (segment.device, segment.module(), segment.size_bytes, segment.owner());
        let Some(pool) = owner else { return self.take_unpooled(device, module, size_bytes) };
        let account = self.account(device);
        account.hal -= u128::from(size_bytes);
        account.modules.entry(module_name(module)).or_default().take(size_bytes);
        account.pool(pool).segments.take(size_bytes);
    }

    /// A block outside of pools was freed.
    fn take_unpooled(&mut self, device: Device, module: Option<Module>, size_bytes: u64) {
        let account = self.account(device);
        account.hal -= u128::from(size_bytes);
        account.modules.entry(module_name(module)).or_default().take(size_bytes);
        account.unpooled.entry(module).or_default().take(size_bytes);
    }

    /// The memory of a block is behind these addresses from here on.
    fn mapped(&mut self, addr: u64, size_bytes: u64, allocation_id: Option<u64>) {
        self.shrinks();
        self.evict_spans(&range(addr, size_bytes));
        if let Some(id) = allocation_id {
            self.add_span((addr, size_bytes), id, true);
        }
        self.grown();
    }

    /// No memory is mapped there any more.
    fn unmapped(&mut self, addr: u64) {
        self.shrinks();
        self.remove_span(addr);
    }

    /// Addresses are set apart.
    fn reserved(&mut self, addr: u64, size_bytes: u64) {
        self.reservations.insert(addr, Reservation { size_bytes, owner: None });
    }

    /// They are free again.
    fn unreserved(&mut self, addr: u64) {
        self.reservations.remove(&addr);
    }

    /// A pool hands a block out.
    fn pool_alloc(&mut self, block: &Block) {
        let Block { pool, allocation_id, addr, size_bytes, .. } = *block;
        let place = range(addr, size_bytes);
        if !self.knows(pool) {
            return;
        }
        self.shrinks();
        // An empty block overlaps no other, but takes the place of the one at its address.
        for start in std::iter::once(addr).chain(self.handed_at(pool, &place)) {
            self.remove_handed(pool, start);
        }
        let device = self.account_of(block.device);
        self.account(device).pool(pool).handed.add(size_bytes);
        self.handed.insert((pool, addr), Handed { allocation_id, device, size_bytes });
        let mut is_own = false;
        for start in self.spans_at(&place) {
            self.claim(start, pool);
            self.fill(start, (pool, addr), Change::Comes);
            is_own |= self.owner_at(start) == Some(pool);
        }
        if !is_own {
            self.borrow(device, pool, &place);
        }
        self.grown();
    }

    /// A pool hands out a place that no driver block of its own is behind: the block of another pool that holds it, the smallest
    /// of several, is its segment from here on.
    fn borrow(&mut self, device: Device, pool: Pool, place: &Range<u64>) {
        let holder = |other: &Pool| {
            let (key, handed) = self.handed.range((*other, 0)..=(*other, place.start)).next_back()?;
            (place.end <= range(key.1, handed.size_bytes).end).then_some((handed.size_bytes, *key))
        };
        let Some((size_bytes, key)) = self.pools.iter().filter(|other| **other != pool).filter_map(holder).min() else {
            return;
        };
        if self.borrowed.contains_key(&key) {
            return;
        }
        let block = range(key.1, size_bytes);
        let behind = |start: u64| {
            let part = common(&block, &range(start, self.spans.get(&start).map_or(0, |span| span.size_bytes)));
            u128::from(part.end.saturating_sub(part.start))
        };
        let backed = self.spans_at(&block).into_iter().map(behind).sum();
        self.borrowed.insert(key, Borrowed { by: (device, pool), size_bytes, backed });
        let account = self.account(device).pool(pool);
        account.borrowed.add(size_bytes);
        account.borrowed_backed += backed;
    }

    /// The pool that the memory behind a span belongs to.
    fn owner_at(&self, start: u64) -> Option<Pool> {
        self.segments.get(&self.spans.get(&start)?.block())?.owner()
    }

    /// The program gives it back.
    fn pool_free(&mut self, block: &Block) {
        let Block { pool, allocation_id, addr, .. } = *block;
        if self.handed.get(&(pool, addr)).is_some_and(|handed| handed.allocation_id == allocation_id) {
            self.shrinks();
            self.remove_handed(pool, addr);
        }
    }

    /// A pool's own figures: bytes handed out, and bytes held.
    fn reported(&mut self, device: Device, pool: Pool, reported: (u64, u64)) {
        if !self.knows(pool) {
            return;
        }
        let device = self.account_of(device);
        self.account(device).pool(pool).reported = Some(reported);
    }

    /// The driver's figure of the device's bytes in use.
    pub(super) fn sampled(&mut self, device: Device, figures: &Figures) {
        self.figures.insert(device, figures.clone());
        if let Some(account) = self.accounts.get_mut(&device) {
            account.sampled(Sample::of(self.pid, figures, account.hal));
        }
    }

    /// The process runs another program: its addresses have another meaning. Blocks are not reported one by one.
    pub(in crate::analyses) fn forget_addresses(&mut self) {
        let Self { pid, time_ns, figures, accounts, shifts, .. } = std::mem::take(self);
        let shifts = shifts.map(|_| Vec::new());
        *self = Self { pid, time_ns, figures, accounts, shifts, ..Self::default() };
        for account in self.accounts.values_mut() {
            account.hal = 0;
            account.modules.clear();
            account.unpooled.clear();
            account.pools.clear();
        }
    }

    /// Devices that the process has an account on.
    pub(super) fn devices(&self) -> impl Iterator<Item = Device> {
        self.accounts.keys().copied()
    }

    /// The ledger of a device as it is.
    pub(super) fn ledger(&self, device: Device, moment: Moment) -> Option<Ledger> {
        Some(sheets::ledger(device, moment, self.time_ns, self.accounts.get(&device)?))
    }

    /// Ledgers of the peaks, but not where a device is still at its peak.
    pub(super) fn peaks(&mut self) -> impl Iterator<Item = Ledger> {
        let fallen = self.accounts.values_mut().filter(|account| !account.is_at_top());
        fallen.filter_map(|account| account.peak.take()).map(|peak| *peak)
    }

    /// Sums of each pool on each device.
    pub(in crate::analyses) fn pools(&self) -> impl Iterator<Item = (Device, Pool, &PoolAccount)> {
        self.accounts
            .iter()
            .flat_map(|(device, account)| account.pools.iter().map(|(pool, sums)| (*device, *pool, sums)))
    }

    /// Whether a pool's block is where it was handed out: not, if a later one overlaps it.
    pub(in crate::analyses) fn is_handed(&self, pool: Pool, addr: u64, allocation_id: u64) -> bool {
        self.handed.get(&(pool, addr)).is_some_and(|handed| handed.allocation_id == allocation_id)
    }

    /// Whether a driver block is a pool's segment.
    pub(in crate::analyses) fn is_segment(&self, allocation_id: u64) -> bool {
        self.segments.get(&allocation_id).is_some_and(|segment| segment.owner().is_some())
    }

    /// Bytes of all pools' blocks: in their own segments, in those of others, elsewhere.
    #[cfg(test)]
    pub(super) fn pool_sums(&self) -> (u128, u128, u128) {
        let pools = || self.accounts.values().flat_map(|account| account.pools.values());
        let (inside, nested) = (pools().map(|pool| pool.inside).sum(), pools().map(|pool| pool.nested).sum());
        (inside, nested, pools().map(|pool| pool.handed.size_bytes).sum::<u128>() - inside - nested)
    }

    /// Whether each pool's block that another pool has blocks in is live, and its driver memory is counted right.
    #[cfg(test)]
    pub(super) fn borrowed_is_right(&self) -> bool {
        let is_right = |(key, borrowed): (&(Pool, u64), &Borrowed)| {
            let size_bytes = self.handed.get(key).map(|handed| handed.size_bytes);
            let is_backed =
                |at: &u64| self.spans.iter().any(|(start, span)| range(*start, span.size_bytes).contains(at));
            let backed = range(key.1, borrowed.size_bytes).filter(is_backed).count();
            size_bytes == Some(borrowed.size_bytes) && borrowed.backed == backed as u128
        };
        let sums = self.pools().map(|(.., sums)| (sums.borrowed.size_bytes, sums.borrowed_backed));
        let sums = sums.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let blocks = self.borrowed.values().map(|one| (u128::from(one.size_bytes), one.backed));
        self.borrowed.iter().all(is_right) && sums == blocks.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    fn account_of(&self, device: Device) -> Device {
        let known = self.accounts.len() < MAX_DEVICES || self.accounts.contains_key(&device);
        if known { device } else { Device::None }
    }

    /// The account of a device. A new one held nothing when the driver's figures were taken.
    fn account(&mut self, device: Device) -> &mut Account {
        let Self { accounts, figures, pid, .. } = self;
        let first = || figures.get(&device).map(|figures| Sample::of(*pid, figures, 0));
        accounts.entry(device).or_insert_with(|| Account::new(first()))
    }

    /// Call before a decrease: keeps the highest state.
    fn shrinks(&mut self) {
        let time_ns = self.time_ns;
        for (device, account) in &mut self.accounts {
            if account.leaves_top() {
                account.peak = Some(Box::new(sheets::ledger(*device, Moment::Peak, time_ns, account)));
            }
        }
    }

    fn grown(&mut self) {
        self.accounts.values_mut().for_each(Account::grown);
    }

    fn add_span(&mut self, (start, size_bytes): (u64, u64), block: u64, mapped: bool) {
        let place = range(start, size_bytes);
        if place.is_empty() {
            return;
        }
        self.evict_spans(&place);
        let Some(segment) = self.segments.get_mut(&block) else { return };
        segment.spans.push(start);
        let is_claimed = segment.owner().is_some();
        self.spans.insert(start, Span::new(size_bytes, block, mapped));
        if is_claimed {
            self.gains(start);
        }
        self.claim_or_fill(start, size_bytes);
    }

    /// A new span belongs to the pool of its reservation, or to the one that has handed out memory there.
    fn claim_or_fill(&mut self, start: u64, size_bytes: u64) {
        let handed = self.handed_of_all_at(&range(start, size_bytes));
        let owner = self.reservation_at(start).and_then(|(_, reservation)| reservation.owner);
        // Memory that comes back belongs again to the pool with the outer blocks.
        let first = handed.iter().find(|key| self.borrowed.contains_key(*key)).or(handed.first());
        if let Some(pool) = owner.or_else(|| first.map(|(pool, _)| *pool)) {
            self.claim(start, pool);
        }
        for key in handed {
            self.fill(start, key, Change::Comes);
        }
    }

    /// The block behind a span has a segment from here on.
    fn promote(&mut self, start: u64) {
        let Some(span) = self.spans.get_mut(&start) else { return };
        let Some(plain) = self.plains.get(span.plain_number()) else { return };
        span.has_segment();
        let segment = Segment::new(span.size_bytes, plain, Starts::One(start));
        self.segments.insert(span.block(), segment);
    }

    fn remove_span(&mut self, start: u64) {
        self.promote(start);
        let Some(span) = self.spans.get(&start).copied() else { return };
        for key in self.handed_of_all_at(&range(start, span.size_bytes)) {
            self.fill(start, key, Change::Goes);
        }
        self.spans.remove(&start);
        if let Some(segment) = self.segments.get_mut(&span.block()) {
            segment.spans.remove(start);
            if segment.owner().is_some() {
                self.shift(|| Shift::Loses(start));
            }
        }
    }

    fn evict_spans(&mut self, place: &Range<u64>) {
        for start in self.spans_at(place) {
            self.remove_span(start);
        }
    }

    fn remove_handed(&mut self, pool: Pool, addr: u64) {
        let Some(Handed { device, size_bytes, .. }) = self.handed.get(&(pool, addr)).copied() else { return };
        for start in self.spans_at(&range(addr, size_bytes)) {
            self.fill(start, (pool, addr), Change::Goes);
        }
        self.handed.remove(&(pool, addr));
        self.account(device).pool(pool).handed.take(size_bytes);
        if let Some(Borrowed { by: (device, pool), size_bytes, backed }) = self.borrowed.remove(&(pool, addr)) {
            let account = self.account(device).pool(pool);
            account.borrowed.take(size_bytes);
            Change::Goes.apply(&mut account.borrowed_backed, backed);
        }
    }

    /// Starts of the spans that overlap `place`.
    fn spans_at(&self, place: &Range<u64>) -> Vec<u64> {
        let before = self.spans.range(..place.start).next_back();
        let before = before.filter(|(start, span)| start.saturating_add(span.size_bytes) > place.start);
        before.into_iter().chain(self.spans.range(place.clone())).map(|(start, _)| *start).collect()
    }

    /// Starts of a pool's blocks that overlap `place`.
    fn handed_at(&self, pool: Pool, place: &Range<u64>) -> Vec<u64> {
        let before = self.handed.range((pool, 0)..(pool, place.start)).next_back();
        let before = before.filter(|((_, start), handed)| start.saturating_add(handed.size_bytes) > place.start);
        let within = self.handed.range((pool, place.start)..(pool, place.end));
        before.into_iter().chain(within).map(|((_, start), _)| *start).collect()
    }

    fn handed_of_all_at(&self, place: &Range<u64>) -> Vec<(Pool, u64)> {
        let of_pool =
            |pool: &Pool| self.handed_at(*pool, place).into_iter().map(|addr| (*pool, addr)).collect::<Vec<_>>();
        self.pools.iter().flat_map(of_pool).collect()
    }

    /// Whether a pool is followed; a new one is from here on, if there is room.
    fn knows(&mut self, pool: Pool) -> bool {
        if self.pools.contains(&pool) {
            return true;
        }
        let room = self.pools.len() < MAX_POOLS;
        if room {
            self.pools.push(pool);
            self.pools.sort_unstable();
        }
        room
    }

    fn reservation_at(&self, addr: u64) -> Option<(u64, Reservation)> {
        let (start, reservation) = self.reservations.range(..=addr).next_back()?;
        range(*start, reservation.size_bytes).contains(&addr).then_some((*start, *reservation))
    }

    /// Gives the block behind a span to the pool, unless it has an owner, and with it the whole reservation.
    fn claim(&mut self, start: u64, pool: Pool) {
        let mut found = vec![start];
        while let Some(start) = found.pop() {
            self.promote(start);
            let Some(block) = self.spans.get(&start).map(|span| span.block()) else { continue };
            let Some(segment) = self.segments.get_mut(&block).filter(|segment| segment.owner().is_none()) else {
                continue;
            };
            segment.claim(pool);
            let (device, module, size_bytes) = (segment.device, segment.module(), segment.size_bytes);
            let spans = segment.spans.all();
            let account = self.account(device);
            account.unpooled.entry(module).or_default().take(size_bytes);
            account.pool(pool).segments.add(size_bytes);
            for start in spans {
                self.gains(start);
                if let Some((at, reservation)) = self.reservation_at(start)
                    && reservation.owner.is_none()
                {
                    self.reservations.insert(at, Reservation { owner: Some(pool), ..reservation });
                    found.extend(self.spans_at(&range(at, reservation.size_bytes)));
                }
            }
        }
    }

    /// Records that a span belongs to its owner from here on.
    fn gains(&mut self, start: u64) {
        let Some(span) = self.spans.get(&start).copied() else { return };
        let Some(segment) = self.segments.get(&span.block()) else { return };
        let Some(pool) = segment.owner() else { return };
        let (place, device, mapped) = (range(start, span.size_bytes), segment.device, span.mapped());
        let reservation = self.reservation_at(start).map(|(start, _)| start);
        self.shift(|| Shift::Gains(PoolSpan { place, device, pool, mapped, reservation }));
    }

    fn shift(&mut self, shift: impl FnOnce() -> Shift) {
        if let Some(shifts) = &mut self.shifts {
            shifts.push(shift());
        }
    }

    /// A pool's block is allocated in the memory behind a span, or freed.
    fn fill(&mut self, start: u64, key: (Pool, u64), change: Change) {
        let (Some(span), Some(handed)) = (self.spans.get(&start).copied(), self.handed.get(&key)) else { return };
        let place = common(&range(start, span.size_bytes), &range(key.1, handed.size_bytes));
        let bytes = u128::from(place.end.saturating_sub(place.start));
        let (pool, device) = (key.0, handed.device);
        if let Some(Borrowed { by: (device, pool), backed, .. }) = self.borrowed.get_mut(&key) {
            change.apply(backed, bytes);
            let (device, pool) = (*device, *pool);
            change.apply(&mut self.account(device).pool(pool).borrowed_backed, bytes);
        }
        let Some(segment) = self.segments.get_mut(&span.block()) else { return };
        let (is_owned, size_bytes) = (segment.owner() == Some(pool), u128::from(segment.size_bytes));
        let Some(filled) = segment.filled().filter(|_| is_owned) else {
            change.apply(&mut self.account(device).pool(pool).nested, bytes);
            return;
        };
        let before = filled.saturating_sub(size_bytes);
        change.apply(filled, bytes);
        let after = filled.saturating_sub(size_bytes);
        let account = self.accounts.entry(segment.device).or_default().pool(pool);
        change.apply(&mut account.filled, bytes);
        account.shared = account.shared + after - before;
        change.apply(&mut self.account(device).pool(pool).inside, bytes);
        if !place.is_empty() {
            self.shift(|| match change {
                Change::Comes => Shift::HandsOut(place),
                Change::Goes => Shift::TakesBack(place),
            });
        }
    }
}
