//! Driver blocks, the addresses that they are behind, and the pools' blocks there, of one process.
//!
//! What overlaps cannot be: where something new begins, what was there before has ended unseen, and is forgotten here.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::account::{Account, Accounts, Sample};
use super::sheets;
use crate::model::{AllocApi, Block, Device, DeviceUsage, Ledger, Moment, Pool, module_name};

/// Devices of one process; more only come from a broken program, and share one account.
const MAX_DEVICES: usize = 64;

/// Pools of one process; a program can name as many as it likes, and blocks of further ones are in no ledger.
const MAX_POOLS: usize = 32;

/// Memory of one process.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pid: u32,
    pub(super) time_ns: u64,
    /// The driver's last figures of each device.
    figures: BTreeMap<Device, Figures>,
    accounts: Accounts,
    /// Driver blocks by number.
    segments: HashMap<u64, Segment>,
    /// Addresses with a driver block behind them, by start.
    spans: BTreeMap<u64, Span>,
    reservations: BTreeMap<u64, Reservation>,
    /// Pools that were seen, in the order in which they claim memory.
    pools: Vec<Pool>,
    /// Blocks of pools.
    handed: BTreeMap<(Pool, u64), Handed>,
}

/// The driver's figures of a device, and when they were taken.
pub(super) type Figures = (u64, DeviceUsage);

/// A driver block.
#[derive(Debug)]
struct Segment {
    device: Device,
    module: &'static str,
    size_bytes: u64,
    owner: Option<Pool>,
    /// Bytes of its owner's blocks in it.
    filled: u128,
    /// Where it is.
    spans: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    size_bytes: u64,
    block: u64,
}

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

/// Whether something comes or goes.
#[derive(Clone, Copy)]
enum Change {
    Comes,
    Goes,
}

impl Change {
    fn apply(self, sum: &mut u128, bytes: u128) {
        match self {
            Self::Comes => *sum += bytes,
            Self::Goes => *sum -= bytes,
        }
    }
}

fn range(start: u64, size_bytes: u64) -> Range<u64> {
    start..start.saturating_add(size_bytes)
}

fn common(a: &Range<u64>, b: &Range<u64>) -> u64 {
    a.end.min(b.end).saturating_sub(a.start.max(b.start))
}

impl Memory {
    /// Of a process that is new to us.
    pub(super) fn new(pid: u32, figures: BTreeMap<Device, Figures>) -> Self {
        Self { pid, figures, ..Self::default() }
    }

    /// The driver gave memory.
    pub(super) fn driver_alloc(&mut self, block: &Block) {
        let Block { allocation_id, addr, size_bytes, .. } = *block;
        self.driver_free(allocation_id);
        let (device, module) = (self.account_of(block.device), module_name(block.module_id));
        let account = self.account(device);
        account.hal += u128::from(size_bytes);
        account.modules.entry(module).or_default().add(size_bytes);
        account.unpooled.entry(module).or_default().add(size_bytes);
        let segment = Segment { device, module, size_bytes, owner: None, filled: 0, spans: Vec::new() };
        self.segments.insert(allocation_id, segment);
        if block.api == AllocApi::Alloc {
            self.add_span(addr, size_bytes, allocation_id);
        }
        self.grown();
    }

    /// The driver has it back.
    pub(super) fn driver_free(&mut self, allocation_id: u64) {
        if !self.segments.contains_key(&allocation_id) {
            return;
        }
        self.shrinks();
        let spans = self.segments.get(&allocation_id).map(|segment| segment.spans.clone()).unwrap_or_default();
        for start in spans {
            self.remove_span(start);
        }
        let Some(Segment { device, module, size_bytes, owner, .. }) = self.segments.remove(&allocation_id) else {
            return;
        };
        let account = self.account(device);
        account.hal -= u128::from(size_bytes);
        account.modules.entry(module).or_default().take(size_bytes);
        match owner {
            Some(pool) => account.pool(pool).segments.take(size_bytes),
            None => account.unpooled.entry(module).or_default().take(size_bytes),
        }
    }

    /// The memory of a block is behind these addresses from here on.
    pub(super) fn mapped(&mut self, addr: u64, size_bytes: u64, allocation_id: Option<u64>) {
        self.shrinks();
        self.evict_spans(&range(addr, size_bytes));
        if let Some(id) = allocation_id {
            self.add_span(addr, size_bytes, id);
        }
        self.grown();
    }

    /// No memory is mapped there any more.
    pub(super) fn unmapped(&mut self, addr: u64) {
        self.shrinks();
        self.remove_span(addr);
    }

    /// Addresses are set apart.
    pub(super) fn reserved(&mut self, addr: u64, size_bytes: u64) {
        self.reservations.insert(addr, Reservation { size_bytes, owner: None });
    }

    /// They are free again.
    pub(super) fn unreserved(&mut self, addr: u64) {
        self.reservations.remove(&addr);
    }

    /// A pool hands a block out.
    pub(super) fn pool_alloc(&mut self, block: &Block) {
        let Block { pool, allocation_id, addr, size_bytes, .. } = *block;
        let place = range(addr, size_bytes);
        if !self.knows(pool) {
            return;
        }
        self.shrinks();
        for start in self.handed_at(pool, &place) {
            self.remove_handed(pool, start);
        }
        let device = self.account_of(block.device);
        self.account(device).pool(pool).handed.add(size_bytes);
        self.handed.insert((pool, addr), Handed { allocation_id, device, size_bytes });
        for start in self.spans_at(&place) {
            self.claim(start, pool);
            self.fill(start, (pool, addr), Change::Comes);
        }
        self.grown();
    }

    /// The program gives it back.
    pub(super) fn pool_free(&mut self, block: &Block) {
        let Block { pool, allocation_id, addr, .. } = *block;
        if self.handed.get(&(pool, addr)).is_some_and(|handed| handed.allocation_id == allocation_id) {
            self.shrinks();
            self.remove_handed(pool, addr);
        }
    }

    /// A pool says how much it has handed out, and how much it holds.
    pub(super) fn told(&mut self, device: Device, pool: Pool, told: (u64, u64)) {
        if !self.knows(pool) {
            return;
        }
        let device = self.account_of(device);
        self.account(device).pool(pool).told = Some(told);
    }

    /// The driver says how much of the device is in use.
    pub(super) fn sampled(&mut self, device: Device, figures: &Figures) {
        self.figures.insert(device, figures.clone());
        if let Some(account) = self.accounts.get_mut(&device) {
            account.sampled(Sample::of(self.pid, figures, account.hal));
        }
    }

    /// The process is another program: its addresses mean something else now.
    pub(super) fn forget_addresses(&mut self) {
        let Self { pid, time_ns, figures, accounts, .. } = std::mem::take(self);
        *self = Self { pid, time_ns, figures, accounts, ..Self::default() };
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

    /// Bytes of all pools' blocks: in their own segments, in those of others, elsewhere.
    #[cfg(test)]
    pub(super) fn pool_sums(&self) -> (u128, u128, u128) {
        let pools = || self.accounts.values().flat_map(|account| account.pools.values());
        let (inside, nested) = (pools().map(|pool| pool.inside).sum(), pools().map(|pool| pool.nested).sum());
        (inside, nested, pools().map(|pool| pool.handed.size_bytes).sum::<u128>() - inside - nested)
    }

    fn account_of(&self, device: Device) -> Device {
        let known = self.accounts.len() < MAX_DEVICES || self.accounts.contains_key(&device);
        if known { device } else { Device::None }
    }

    /// The account of a device. One that is new held nothing when the driver's figures were taken.
    fn account(&mut self, device: Device) -> &mut Account {
        let Self { accounts, figures, pid, .. } = self;
        let first = || figures.get(&device).map(|figures| Sample::of(*pid, figures, 0));
        accounts.entry(device).or_insert_with(|| Account::new(first()))
    }

    /// To be called before anything shrinks: keeps what was highest.
    pub(super) fn shrinks(&mut self) {
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

    fn add_span(&mut self, start: u64, size_bytes: u64, block: u64) {
        let place = range(start, size_bytes);
        self.evict_spans(&place);
        let Some(segment) = self.segments.get_mut(&block) else { return };
        segment.spans.push(start);
        self.spans.insert(start, Span { size_bytes, block });
        let handed = self.handed_of_all_at(&place);
        let owner = self.reservation_at(start).and_then(|(_, reservation)| reservation.owner);
        if let Some(pool) = owner.or_else(|| handed.first().map(|(pool, _)| *pool)) {
            self.claim(start, pool);
        }
        for key in handed {
            self.fill(start, key, Change::Comes);
        }
    }

    fn remove_span(&mut self, start: u64) {
        let Some(span) = self.spans.get(&start).copied() else { return };
        for key in self.handed_of_all_at(&range(start, span.size_bytes)) {
            self.fill(start, key, Change::Goes);
        }
        self.spans.remove(&start);
        if let Some(segment) = self.segments.get_mut(&span.block) {
            segment.spans.retain(|other| *other != start);
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
    }

    /// Starts of the spans that have an address of `place`.
    fn spans_at(&self, place: &Range<u64>) -> Vec<u64> {
        let before = self.spans.range(..place.start).next_back();
        let before = before.filter(|(start, span)| start.saturating_add(span.size_bytes) > place.start);
        before.into_iter().chain(self.spans.range(place.clone())).map(|(start, _)| *start).collect()
    }

    /// Starts of a pool's blocks that have an address of `place`.
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

    /// The block behind a span is the pool's, if it is nobody's yet, and so is everything in the same reservation.
    fn claim(&mut self, start: u64, pool: Pool) {
        let mut found = vec![start];
        while let Some(start) = found.pop() {
            let Some(block) = self.spans.get(&start).map(|span| span.block) else { continue };
            let Some(segment) = self.segments.get_mut(&block).filter(|segment| segment.owner.is_none()) else {
                continue;
            };
            segment.owner = Some(pool);
            let (device, module, size_bytes) = (segment.device, segment.module, segment.size_bytes);
            let spans = segment.spans.clone();
            let account = self.account(device);
            account.unpooled.entry(module).or_default().take(size_bytes);
            account.pool(pool).segments.add(size_bytes);
            for start in spans {
                if let Some((at, reservation)) = self.reservation_at(start)
                    && reservation.owner.is_none()
                {
                    self.reservations.insert(at, Reservation { owner: Some(pool), ..reservation });
                    found.extend(self.spans_at(&range(at, reservation.size_bytes)));
                }
            }
        }
    }

    /// A pool's block comes to, or goes from, the memory behind a span.
    fn fill(&mut self, start: u64, key: (Pool, u64), change: Change) {
        let (Some(span), Some(handed)) = (self.spans.get(&start), self.handed.get(&key)) else { return };
        let bytes = u128::from(common(&range(start, span.size_bytes), &range(key.1, handed.size_bytes)));
        let (pool, device) = (key.0, handed.device);
        let Some(segment) = self.segments.get_mut(&span.block) else { return };
        if segment.owner != Some(pool) {
            change.apply(&mut self.account(device).pool(pool).nested, bytes);
            return;
        }
        let size_bytes = u128::from(segment.size_bytes);
        let before = segment.filled.saturating_sub(size_bytes);
        change.apply(&mut segment.filled, bytes);
        let after = segment.filled.saturating_sub(size_bytes);
        let account = self.accounts.entry(segment.device).or_default().pool(pool);
        change.apply(&mut account.filled, bytes);
        account.shared = account.shared + after - before;
        change.apply(&mut self.account(device).pool(pool).inside, bytes);
    }
}
