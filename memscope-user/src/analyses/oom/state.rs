//! The memory of a process's pools, and its holders.

use std::{collections::BTreeMap, sync::Arc};

use super::super::{
    fragmentation::Space,
    groups::{Change, Groups, Room},
    returns::PoolFrees,
};
use super::PoolAtOom;
use crate::{
    hash::HashMap,
    model::{Alloc, Block, Device, Event, EventKind, Free, Name, Pool, Stacks},
};

/// Places reported of each pool, those with the most bytes first.
const MAX_PLACES: usize = 100;

/// Memory of one process.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pools: BTreeMap<(Device, Pool), Account>,
    /// Live blocks of the driver by number: whether one is a pool's segment shows later.
    driver: HashMap<u64, DriverBlock>,
    space: Space,
    /// A block that waits for streams is no free piece.
    frees: PoolFrees,
    /// The states as they are now; empty after a change.
    drawn: BTreeMap<Device, Arc<State>>,
}

/// One pool on one device.
#[derive(Debug, Default)]
struct Account {
    used_bytes: u64,
    reserved_bytes: Option<u64>,
    /// Of pools other than the driver.
    groups: Groups,
}

/// A live block of the driver.
#[derive(Clone, Copy, Debug)]
struct DriverBlock {
    device: Device,
    size_bytes: u64,
    stacks: Stacks,
    owner: Option<Name>,
}

/// State of a device's pools at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) pools: Vec<PoolAtOom>,
    /// Driver memory.
    pub(super) driver_bytes: u64,
}

impl Memory {
    /// Takes an event of the process; of a block with its owner.
    pub(super) fn observe(&mut self, event: &Event, owner: Option<Name>, room: &mut Room) {
        let due = self.frees.of(event);
        if let Some((event, _)) = &due.free {
            self.space.observe(event);
        }
        if !due.waits {
            self.space.observe(event);
        }
        match &event.kind {
            EventKind::Alloc(Alloc { block, used_bytes, total_bytes, .. }) => {
                self.change(block, owner, Change::Comes, room);
                self.totals(block.device, block.pool, *used_bytes, *total_bytes);
            }
            EventKind::Free(Free { block, used_bytes, total_bytes, .. }) => {
                self.change(block, owner, Change::Goes, room);
                self.totals(block.device, block.pool, *used_bytes, *total_bytes);
            }
            EventKind::BlockReturned(returned) => {
                self.totals(event.device, returned.pool, returned.used_bytes, Some(returned.total_bytes));
            }
            EventKind::Region(_) => self.drawn.clear(),
            _ => {}
        }
    }

    /// Gives back the room that its places took.
    pub(super) fn leave(self, room: &mut Room) {
        self.pools.values().for_each(|account| account.groups.leave(room));
    }

    /// The state of a device now.
    pub(super) fn state(&mut self, device: Device) -> Arc<State> {
        if let Some(state) = self.drawn.get(&device) {
            return Arc::clone(state);
        }
        let state = Arc::new(self.draw(device));
        self.drawn.insert(device, Arc::clone(&state));
        state
    }

    fn change(&mut self, block: &Block, owner: Option<Name>, change: Change, room: &mut Room) {
        let account = self.pools.entry((block.device, block.pool)).or_default();
        let Block { device, size_bytes, stacks, .. } = *block;
        match (block.pool.is_driver(), change) {
            (true, Change::Comes) => {
                self.driver.insert(block.allocation_id, DriverBlock { device, size_bytes, stacks, owner });
            }
            (true, Change::Goes) => {
                self.driver.remove(&block.allocation_id);
            }
            _ => account.groups.change(owner, block, change, room),
        }
    }

    fn totals(&mut self, device: Device, pool: Pool, used_bytes: u64, reserved_bytes: Option<u64>) {
        self.drawn.clear();
        let account = self.pools.entry((device, pool)).or_default();
        account.used_bytes = used_bytes;
        account.reserved_bytes = reserved_bytes.or(account.reserved_bytes);
    }

    fn draw(&mut self, device: Device) -> State {
        let mut outside = self.outside_of_pools(device);
        let of_device = self.pools.iter_mut().filter(|((on, _), _)| *on == device);
        let pools = of_device.map(|((_, pool), account)| {
            let groups = if pool.is_driver() { &mut outside } else { &mut account.groups };
            let largest_free_bytes = self.space.largest_bytes((device, *pool));
            let totals = (account.used_bytes, account.reserved_bytes);
            at_oom(*pool, totals, largest_free_bytes, groups)
        });
        let pools = pools.collect();
        let driver = self.pools.iter().filter(|((on, pool), _)| *on == device && pool.is_driver());
        let driver_bytes = driver.map(|(_, account)| account.used_bytes).fold(0, u64::saturating_add);
        State { pools, driver_bytes }
    }

    /// Driver blocks that are no segment of a pool.
    fn outside_of_pools(&self, device: Device) -> Groups {
        let (mut groups, mut room) = (Groups::default(), Room::default());
        for (&number, driver) in self.driver.iter().filter(|(_, driver)| driver.device == device) {
            if !self.space.is_segment(number) {
                groups.count(driver.owner, (driver.stacks, driver.size_bytes), Change::Comes, &mut room);
            }
        }
        groups
    }
}

fn at_oom(
    pool: Pool,
    (used_bytes, reserved_bytes): (u64, Option<u64>),
    largest_free_bytes: Option<u64>,
    groups: &mut Groups,
) -> PoolAtOom {
    groups.mark();
    let live = groups.sum();
    let (groups, places_left_out) = groups.largest(MAX_PLACES);
    PoolAtOom { pool, used_bytes, reserved_bytes, largest_free_bytes, groups, live, places_left_out }
}
