//! One effect's turn: the moment, and the state that the domains of a process share.

use super::blocks::{Blocks, Key, Live, NewBlock, PoolTotals};
use super::domains::runtime::Devices;
use super::domains::script::Collection;
use super::found::Meanwhile;
use super::item::Head;
use super::labels::LabelIds;
use super::output::Output;
use super::steps::Steps;
use super::usage::Usage;
use super::wishes::Wishes;
use crate::analyses::decompose::Classifier;
use crate::backend::Backend;
use crate::model::{Alloc, Asked, Block, Device, Event, EventKind, Free, FreeCause, HeldAs, Pool, Stacks, UnknownFree};

/// Most live blocks of all processes; later ones are counted and not reported.
const MAX_LIVE_BLOCKS: usize = 16 << 20;

/// State that the processes share.
pub(super) struct Shared {
    /// The meaning of calls' values.
    pub(super) backend: &'static dyn Backend,
    pub(super) out: Output,
    pub(super) live: usize,
    pub(super) blocks_full: u64,
    pub(super) mislocated: u64,
    /// Number of newest and of largest blocks in rows when memory is out, if there are such rows.
    pub(super) oom_blocks: Option<usize>,
    /// Requests of all processes that may have failed for good.
    pub(super) oom_pending: usize,
    pub(super) usage: Usage,
    /// Names owners of blocks, if requested.
    pub(super) owners: Option<Classifier>,
    /// Blocks do not carry the number of launches before them.
    pub(super) uncounted_launches: bool,
    /// It is requested for all processes, not only for those with scripts that ask for it.
    pub(super) owned_by_options: bool,
    /// What scripts can have.
    pub(super) wishes: Wishes,
    /// Events are of a dump's rows: some ends have none there.
    pub(super) of_rows: bool,
}

impl Shared {
    /// Of a run of which nothing more is known.
    pub(super) fn new(backend: &'static dyn Backend, out: Output) -> Self {
        Self {
            backend,
            out,
            live: 0,
            blocks_full: 0,
            mislocated: 0,
            oom_blocks: None,
            oom_pending: 0,
            usage: Usage::default(),
            owners: None,
            uncounted_launches: false,
            owned_by_options: false,
            wishes: Wishes::new(None, false, None),
            of_rows: false,
        }
    }
}

/// State that the domains of one process share.
pub(super) struct Home {
    pub(super) pid: u32,
    next_event: u64,
    /// It was running before the trace began.
    pub(super) attached: bool,
    pub(super) devices: Devices,
    pub(super) steps: Steps,
    pub(super) blocks: Blocks,
    /// Kernel launches so far.
    pub(super) launches: u64,
    /// What its script has collected.
    pub(super) collection: Collection,
    /// What calls say while the books of its pool are read.
    pub(super) meanwhile: Option<Box<Meanwhile>>,
}

impl Home {
    /// For a new process with these visible devices and this collection.
    pub(super) fn new(pid: u32, steps: Steps, visible: Vec<u32>, collection: Collection) -> Self {
        let (devices, blocks) = (Devices::new(visible), Blocks::default());
        let meanwhile = None;
        Self { pid, next_event: 0, attached: false, devices, steps, blocks, launches: 0, collection, meanwhile }
    }

    /// Another program replaces this one: counters and visible devices stay.
    pub(super) fn exec(&mut self) {
        self.attached = false;
        self.meanwhile = None;
        self.devices = Devices::new(self.devices.visible().to_vec());
        self.collection = self.collection.after_exec();
        self.steps.reset();
    }
}

/// Moment, thread and place of an event.
#[derive(Clone, Copy)]
pub(super) struct At {
    pub(super) time_ns: u64,
    pub(super) tid: u32,
    /// Where the call was made.
    pub(super) stacks: Stacks,
}

impl At {
    /// Of no call.
    pub(super) fn new(time_ns: u64, tid: u32) -> Self {
        Self { time_ns, tid, stacks: Stacks::default() }
    }

    /// Without the call: the following events are not its own.
    pub(super) fn made_up(self) -> Self {
        Self::new(self.time_ns, self.tid)
    }
}

/// What an effect is of.
#[derive(Clone, Copy)]
pub(super) enum Origin<'a> {
    /// A call: its probe row, and the moment by the records' clock.
    Call { row: u16, mono_ns: u64 },
    /// A row of a dump.
    Row(&'a Given),
}

impl From<&Head> for Origin<'_> {
    fn from(head: &Head) -> Self {
        Self::Call { row: head.row, mono_ns: head.time_ns }
    }
}

/// What a row of a dump says of its event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    /// Number of the event.
    pub(super) id: u64,
    pub(super) device: Device,
    /// The row is of a block's end.
    pub(super) is_free: bool,
}

/// One effect's turn.
pub(super) struct Turn<'a> {
    pub(super) at: At,
    /// Row of the call; 0 is none.
    pub(super) row: u16,
    /// The moment by the records' clock.
    pub(super) mono_ns: u64,
    /// The dump's row that the effect is of.
    pub(super) given: Option<&'a Given>,
    pub(super) home: &'a mut Home,
    pub(super) shared: &'a mut Shared,
}

impl<'a> Turn<'a> {
    /// For a call, or a row of a dump.
    pub(super) fn new(at: At, origin: Origin<'a>, home: &'a mut Home, shared: &'a mut Shared) -> Self {
        match origin {
            Origin::Call { row, mono_ns } => Self { at, row, mono_ns, given: None, home, shared },
            Origin::Row(given) => Self { at, row: 0, mono_ns: 0, given: Some(given), home, shared },
        }
    }

    /// Without a call.
    pub(super) fn of_no_call(at: At, home: &'a mut Home, shared: &'a mut Shared) -> Self {
        Self { at, row: 0, mono_ns: 0, given: None, home, shared }
    }

    /// The same with another moment, thread or place.
    pub(super) fn with(&mut self, at: At) -> Turn<'_> {
        let Self { row, mono_ns, given, .. } = *self;
        Turn { at, row, mono_ns, given, home: self.home, shared: self.shared }
    }

    /// The same without the call: the following events are not its own.
    pub(super) fn made_up(&mut self) -> Turn<'_> {
        self.with(self.at.made_up())
    }

    /// The meaning of calls' values.
    pub(super) fn backend(&self) -> &'static dyn Backend {
        self.shared.backend
    }

    /// Device of the thread, or that of the row.
    pub(super) fn device(&self) -> Device {
        let of_thread = || self.home.devices.of(self.at.tid, self.home.attached);
        self.given.map_or_else(of_thread, |given| given.device)
    }

    /// The NPU that the program numbers `device`; without a number, that of the thread.
    pub(super) fn device_or_own(&self, device: Option<u32>) -> Device {
        device.map_or_else(|| self.device(), |device| self.home.devices.physical(device))
    }

    /// Reports an event, if events are collected now; it is written if current events are.
    pub(super) fn emit(&mut self, device: Device, kind: EventKind) {
        self.emit_if(device, kind, self.home.steps.inside());
    }

    /// The same; it is written if `inside`.
    pub(super) fn emit_if(&mut self, device: Device, kind: EventKind, inside: bool) {
        if self.home.collection.is_on() {
            self.report(device, kind, inside);
        }
    }

    /// Reports an event, whether or not the script collects.
    pub(super) fn report(&mut self, device: Device, kind: EventKind, inside: bool) {
        let id = self.next_event();
        let home = &mut *self.home;
        // An event without a row takes no number from those with one.
        let is_rowless = match kind {
            EventKind::PoolRefused(_)
            | EventKind::CacheEmptied
            | EventKind::StreamUse(_)
            | EventKind::UsesLeftOut
            | EventKind::DeviceMemory(_)
            | EventKind::PoolSet(_)
            | EventKind::Graph(_)
            | EventKind::OwnPool(_) => true,
            EventKind::OutOfMemory(_) => !inside,
            _ => false,
        };
        home.next_event = id.saturating_add(u64::from(!is_rowless));
        let At { time_ns, tid, stacks } = self.at;
        let event = Event { id, time_ns, pid: home.pid, tid, device, stacks, kind };
        let (wanted, of_options) = home.collection.wants(&event);
        self.shared.out.event(&event, inside && wanted, of_options);
    }

    /// Kernel that a block of now is of (contract §8.2).
    pub(super) const fn kernel_index(&self) -> u64 {
        if self.shared.uncounted_launches { 0 } else { self.home.launches }
    }

    /// Number that the next event has: of a row, all have the row's.
    pub(super) const fn next_event(&self) -> u64 {
        match self.given {
            Some(given) => given.id,
            None => self.home.next_event,
        }
    }

    /// Whether there is no room for a further block.
    pub(super) const fn is_full(&self) -> bool {
        self.shared.live >= MAX_LIVE_BLOCKS
    }

    /// A block is handed out. One that lives under the same key was freed unseen.
    pub(super) fn hand_out(&mut self, key: Key, new: &NewBlock, totals: Option<PoolTotals>) {
        self.home.devices.know(new.device);
        self.home.named(key);
        self.free(key, FreeCause::Replaced, None);
        if self.is_full() {
            self.shared.blocks_full += 1;
            return;
        }
        let number = self.home.blocks.next_id();
        let mut block = self.block(number, new);
        let labels = self.home.collection.labels_of(self.at.tid);
        block.owner = self.owner_of(&block, labels);
        let (noted, inside) = (!self.home.collection.is_on(), self.home.steps.inside());
        self.put_asked(key, &Live { inside, noted, labels, ..Live::new(block) }, totals, false, new.asked);
    }

    /// A block is found that is older than the trace. No call was made, and nothing is known of the one that made it.
    pub(super) fn put_found(&mut self, key: Key, new: &NewBlock, totals: Option<PoolTotals>, held_as: Option<HeldAs>) {
        self.home.devices.know(new.device);
        if self.is_full() {
            self.shared.blocks_full += 1;
            return;
        }
        let number = self.home.blocks.next_id();
        let mut block = Block { found: true, held_as, ..self.made_up().block(number, new) };
        block.owner = self.owner_of(&block, LabelIds::default());
        let (noted, inside) = (!self.home.collection.is_on(), self.home.steps.inside());
        self.put(key, &Live { inside, noted, ..Live::new(block) }, totals, false);
    }

    /// A block that is handed out now, without an owner.
    pub(super) fn block(&self, allocation_id: u64, new: &NewBlock) -> Block {
        let NewBlock { addr, size_bytes, requested_bytes, pool, device, module_id, page, api, caller, .. } = *new;
        let At { time_ns, tid, stacks } = self.at;
        Block {
            allocation_id,
            pool,
            device,
            addr,
            size_bytes,
            requested_bytes,
            alloc_time_ns: time_ns,
            alloc_id: self.next_event(),
            tid,
            step: self.home.steps.of_device(device),
            kernel_index: self.kernel_index(),
            module_id,
            page,
            api,
            caller,
            stacks,
            owner: None,
            found: false,
            held_as: None,
        }
    }

    /// A block is live; `promoted` if it was already when collection began.
    pub(super) fn put(&mut self, key: Key, live: &Live, totals: Option<PoolTotals>, promoted: bool) {
        self.put_asked(key, live, totals, promoted, Asked::default());
    }

    fn put_asked(&mut self, key: Key, live: &Live, totals: Option<PoolTotals>, promoted: bool, asked: Asked) {
        let own_bytes = self.home.blocks.put(key, live);
        self.shared.live += 1;
        if live.noted {
            return;
        }
        let alloc = Alloc {
            block: live.block,
            used_bytes: totals.and_then(|totals| totals.used_bytes).unwrap_or(own_bytes),
            total_bytes: totals.and_then(|totals| totals.reserved_bytes),
            driver: self.shared.usage.of(self.home.pid, live.block.device),
            restored: live.block.alloc_id != self.next_event(),
            promoted,
            asked,
        };
        let at = if alloc.restored || promoted { self.at.made_up() } else { self.at };
        self.with(at).emit_if(live.block.device, EventKind::Alloc(alloc), live.inside);
    }

    /// A block with a reported end lives on.
    pub(super) fn put_back(&mut self, key: Key, live: &Live) {
        let reported = !live.noted && (self.did_not_end(live.block.allocation_id) || self.home.collection.is_on());
        self.put(key, &Live { noted: !reported, ..*live }, None, false);
    }

    /// Ends the block under `key`, if there is one. Its row is written if that of its allocation is.
    pub(super) fn free(&mut self, key: Key, cause: FreeCause, totals: Option<PoolTotals>) -> Option<Live> {
        self.home.named(key);
        let (live, own_bytes) = self.home.blocks.take(key)?;
        self.shared.live = self.shared.live.saturating_sub(1);
        if live.noted {
            return Some(live);
        }
        let row_time_ns = self.home.collection.time_behind_stop();
        if row_time_ns.is_some() && cause.gave_back() {
            self.ended_unwatched(live);
            return Some(live);
        }
        // The call that showed that a block had ended did not end it.
        let at = if cause == FreeCause::Program { self.at } else { self.at.made_up() };
        let free = Free {
            block: live.block,
            used_bytes: totals.and_then(|totals| totals.used_bytes).unwrap_or(own_bytes),
            total_bytes: totals.and_then(|totals| totals.reserved_bytes),
            driver: self.shared.usage.of(self.home.pid, live.block.device),
            cause,
            owner: live.later_owner,
            row_time_ns,
            without_row: self.shared.of_rows && !self.given.is_some_and(|given| given.is_free),
        };
        self.with(at).report(live.block.device, EventKind::Free(free), live.inside);
        Some(live)
    }

    /// Ends every live block, in the order of their allocation.
    pub(super) fn free_all(&mut self, cause: FreeCause) {
        let behind_stop = self.home.collection.time_behind_stop();
        self.made_up().report_ended(behind_stop);
        for key in self.home.blocks.in_order() {
            self.free(key, cause, None);
        }
    }

    /// Ends the blocks that pools have handed out, as far as the trace goes.
    pub(super) fn let_go_of_pools(&mut self) {
        let of_pools = |key: &Key| matches!(key, Key::Pool(..));
        for key in self.home.blocks.in_order().into_iter().filter(of_pools) {
            self.free(key, FreeCause::TraceEnd, None);
        }
    }

    /// A free of an unknown block, or its refusal. Freeing a null pointer is no free.
    pub(super) fn unknown_free(&mut self, pool: Pool, addr: u64, refused: bool) {
        if addr == 0 {
            return;
        }
        let free = UnknownFree { pool, addr, size_bytes: None, maybe_older: self.home.attached, refused };
        self.emit(self.device(), EventKind::UnknownFree(free));
    }
}
