//! Requests through the model, under other settings.

use std::collections::VecDeque;

use super::device::{Calls, Card};
use super::pool::{Figures, FreeMemory, Id, Pool, Ticket};
use super::requests::{Op, Requests, Slots};
use super::settings::Settings;

/// No block: its request failed.
const NOTHING: u32 = u32::MAX;

/// Settings and device of a replay.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// The pool's settings.
    pub settings: Settings,
    /// Each of the devices.
    pub card: Card,
    /// Settings that the script sets later apply, too.
    pub with_script: bool,
    /// What other processes leave of the device applies, as the recording has it.
    pub with_limits: bool,
}

/// End of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Until {
    /// At the first request that fails here and not there, or the reverse: behind it the program would have behaved
    /// differently.
    #[default]
    Divergence,
    /// To the end.
    End,
}

/// A request at which the replay parts from the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parting {
    /// Requests before it that got a block.
    pub number: u64,
    /// Index of its device.
    pub device: u8,
    /// Bytes asked for.
    pub asked_bytes: u64,
    /// It fails here; otherwise it failed in the recording.
    pub fails: bool,
    /// Free memory in the pool then.
    pub free: FreeMemory,
    /// Free memory of the device.
    pub device_free_bytes: u64,
    /// Memory that the pool holds.
    pub reserved_bytes: u64,
    /// The program's part of it.
    pub allocated_bytes: u64,
    /// Marks before it.
    pub marks: u32,
}

/// Results of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OfDevice {
    /// The pool's figures.
    pub figures: Figures,
    /// Calls of the driver.
    pub calls: Calls,
    /// Peak use of the device, with memory of others in the process.
    pub device_peak_bytes: u64,
}

/// Results of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// By device of the list.
    pub devices: Vec<OfDevice>,
    /// Where it parted first.
    pub parting: Option<Parting>,
    /// Replayed requests and frees.
    pub events: u64,
}

impl Outcome {
    /// Whether memory sufficed.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.parting.is_none_or(|parting| !parting.fails)
    }
}

/// Looks on while requests are replayed.
pub(super) trait Look {
    /// A request got a block there; returns whether to go on.
    fn allocated(&mut self, _device: u8, _pool: &Pool, _block: Id) -> bool {
        true
    }

    /// A block was freed; returns whether to go on.
    fn freed(&mut self, _device: u8, _pool: &Pool) -> bool {
        true
    }

    /// The recorded pool's figure of the memory it holds.
    fn reserved(&mut self, _device: u8, _bytes: u64) {}

    /// A mark.
    fn mark(&mut self, _index: u32, _pools: &[Pool]) {}
}

/// Only the figures.
pub(super) struct Blind;

impl Look for Blind {}

/// A replay under way.
pub(super) struct Replay<'a> {
    requests: &'a Requests,
    pub(super) pools: Vec<Pool>,
    /// Pool and its own lane, by lane of the list.
    lanes: Vec<(u8, u16)>,
    slots: Slots,
    /// Device and block of a slot, or its ticket while streams use it.
    blocks: Vec<(u8, u32)>,
    /// Blocks from before the recording, by device: its first requests have them already.
    old: Vec<VecDeque<Id>>,
    until: Until,
    parting: Option<Parting>,
    number: u64,
    marks: u32,
    events: u64,
}

/// Replays requests.
#[must_use]
pub fn replay(requests: &Requests, setup: &Setup, until: Until) -> Outcome {
    Replay::new(requests, |_| setup.clone(), until).run(&mut Blind).0
}

impl<'a> Replay<'a> {
    /// `setup` gives what each device has.
    pub(super) fn new(requests: &'a Requests, setup: impl Fn(u8) -> Setup, until: Until) -> Self {
        let count = requests.devices.len() as u8;
        let pool = |Setup { settings, card, with_script, with_limits }| {
            let pool = Pool::new(settings, card).with_script(with_script).with_limits(with_limits);
            pool.with_own_rules(requests.own_rules.clone())
        };
        let mut pools: Vec<Pool> = (0..count).map(|device| pool(setup(device))).collect();
        let lane = |lane: &super::requests::Lane| {
            let own = pools[usize::from(lane.device)].lane(lane.stream, lane.private);
            (lane.device, own.unwrap_or(0))
        };
        let lanes = requests.lanes.iter().map(lane).collect();
        Self {
            requests,
            pools,
            lanes,
            slots: Slots::default(),
            blocks: Vec::new(),
            old: Vec::new(),
            until,
            parting: None,
            number: 0,
            marks: 0,
            events: 0,
        }
    }

    /// The same, from what the pools held when the recording began. Where that cannot be under these settings, the blocks are requested.
    pub(super) fn from_before(requests: &'a Requests, setup: impl Fn(u8) -> Setup, until: Until) -> Self {
        let mut replay = Self::new(requests, &setup, until);
        let seed = |(device, pool): (usize, &mut Pool)| match requests.before.segments.get(&(device as u8)) {
            Some(segments) => pool.begin_with(segments).map(VecDeque::from),
            None => Some(VecDeque::new()),
        };
        let old: Option<Vec<_>> = replay.pools.iter_mut().enumerate().map(seed).collect();
        let Some(old) = old else { return Self::new(requests, setup, until) };
        replay.old = old;
        replay
    }

    /// Replays, as far as `look` wants.
    pub(super) fn run<L: Look>(mut self, look: &mut L) -> (Outcome, Vec<Pool>) {
        for op in self.requests.words.iter() {
            if !self.step(op, look) {
                break;
            }
        }
        let of_device = |pool: &Pool| OfDevice {
            figures: *pool.figures(),
            calls: pool.calls(),
            device_peak_bytes: pool.device_peak_bytes(),
        };
        let devices = self.pools.iter().map(of_device).collect();
        (Outcome { devices, parting: self.parting, events: self.events }, self.pools)
    }

    /// Whether to go on.
    fn step<L: Look>(&mut self, op: Op, look: &mut L) -> bool {
        match op {
            Op::Alloc { lane, asked } => return self.alloc(lane, asked, look),
            Op::Free { slot } => return self.free(slot, look),
            Op::FreeInUse { slot } => return self.free_in_use(slot, look),
            Op::Returned { slot } => self.returned(slot),
            Op::Failed { lane, asked } => return self.failed(lane, asked),
            Op::EmptyCache { device } => self.pools[usize::from(device)].empty_cache(),
            Op::Others { device, bytes } => self.pools[usize::from(device)].others(bytes),
            Op::Reserved { device, bytes } => look.reserved(device, bytes),
            Op::Mark { index } => {
                self.marks = index + 1;
                look.mark(index, &self.pools);
            }
            Op::PoolReleased { device, private } => self.pools[usize::from(device)].released(private),
            Op::PoolEmptied { device, private } => self.pools[usize::from(device)].empty_private(private),
            Op::Limit { device, bytes } => self.pools[usize::from(device)].leave(bytes),
            Op::Settings { index } => self.set(index),
            Op::Fraction { device, fraction } => self.pools[usize::from(device)].limit_to(fraction.value()),
            Op::Nothing { .. } => {}
        }
        true
    }

    fn set(&mut self, index: u32) {
        if let Some(text) = self.requests.script_settings.get(index as usize) {
            self.pools.iter_mut().for_each(|pool| pool.script_sets(text));
        }
    }

    fn alloc<L: Look>(&mut self, lane: u16, asked: u64, look: &mut L) -> bool {
        let (device, own) = self.lanes[usize::from(lane)];
        let pool = &mut self.pools[usize::from(device)];
        let old = self.old.get_mut(usize::from(device)).and_then(VecDeque::pop_front);
        let block = old.or_else(|| pool.malloc(asked, own));
        let slot = self.slots.take() as usize;
        if slot >= self.blocks.len() {
            self.blocks.resize(slot + 1, (0, NOTHING));
        }
        self.blocks[slot] = (device, block.unwrap_or(NOTHING));
        let go_on = match block {
            Some(id) => look.allocated(device, pool, id),
            None => self.part(device, asked, true),
        };
        self.number += 1;
        self.events += 1;
        go_on
    }

    fn failed(&mut self, lane: u16, asked: u64) -> bool {
        let (device, own) = self.lanes[usize::from(lane)];
        let Some(id) = self.pools[usize::from(device)].malloc(asked, own) else { return true };
        let go_on = self.part(device, asked, false);
        self.pools[usize::from(device)].free(id);
        go_on
    }

    /// The program would behave differently from here on; returns whether to go on nevertheless.
    fn part(&mut self, device: u8, asked_bytes: u64, fails: bool) -> bool {
        let pool = &self.pools[usize::from(device)];
        let figures = pool.figures();
        self.parting.get_or_insert_with(|| Parting {
            number: self.number,
            device,
            asked_bytes,
            fails,
            free: pool.free_memory(),
            device_free_bytes: pool.device_free_bytes(),
            reserved_bytes: figures.reserved_bytes,
            allocated_bytes: figures.allocated_bytes,
            marks: self.marks,
        });
        self.until == Until::End
    }

    fn slot(&self, slot: u32) -> (usize, u32) {
        let (device, block) = self.blocks.get(slot as usize).copied().unwrap_or((0, NOTHING));
        (usize::from(device), block)
    }

    fn free<L: Look>(&mut self, slot: u32, look: &mut L) -> bool {
        let (device, block) = self.slot(slot);
        self.slots.give_back(slot);
        self.events += 1;
        if block == NOTHING {
            return true;
        }
        self.pools[device].free(block);
        look.freed(device as u8, &self.pools[device])
    }

    fn free_in_use<L: Look>(&mut self, slot: u32, look: &mut L) -> bool {
        let (device, block) = self.slot(slot);
        self.events += 1;
        if block == NOTHING {
            return true;
        }
        let ticket: Ticket = self.pools[device].free_in_use(block);
        self.blocks[slot as usize].1 = ticket;
        look.freed(device as u8, &self.pools[device])
    }

    fn returned(&mut self, slot: u32) {
        let (device, ticket) = self.slot(slot);
        self.slots.give_back(slot);
        if ticket != NOTHING {
            self.pools[device].returned(ticket);
        }
    }
}
