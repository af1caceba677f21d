//! Live blocks of one process, and the bytes that they add up to.

use super::domains::memory::PhysicalId;
use super::labels::LabelIds;
use super::store::Store;
use crate::hash::HashMap;
use crate::model::{AllocApi, Asked, Block, Device, Module, Name, PageType, Pool, Stacks};

/// Key of a block. Addresses of the driver, physical memory and every pool are separate name spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Key {
    /// Address that the driver gave.
    Driver(u64),
    /// Memory behind a handle.
    Physical(PhysicalId),
    /// Pinned memory of the program.
    Pinned(u64),
    /// Address that a pool gave.
    Pool(Pool, u64),
    /// A block that a dump lists.
    Listed {
        pool: Pool,
        device: Device,
        /// Memory behind a handle.
        is_handle: bool,
        addr: u64,
    },
}

impl Key {
    /// The number in it.
    pub(super) const fn number(self) -> u64 {
        match self {
            Self::Physical(id) => id.0,
            Self::Driver(number) | Self::Pinned(number) | Self::Pool(_, number) | Self::Listed { addr: number, .. } => {
                number
            }
        }
    }

    /// One of the same name space.
    pub(super) const fn with_number(self, number: u64) -> Self {
        match self {
            Self::Driver(_) => Self::Driver(number),
            Self::Physical(_) => Self::Physical(PhysicalId(number)),
            Self::Pinned(_) => Self::Pinned(number),
            Self::Pool(pool, _) => Self::Pool(pool, number),
            Self::Listed { pool, device, is_handle, .. } => Self::Listed { pool, device, is_handle, addr: number },
        }
    }
}

/// The facts about a block when it is handed out, besides the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NewBlock {
    pub(super) addr: u64,
    pub(super) size_bytes: u64,
    /// Bytes requested from its pool, where known.
    pub(super) requested_bytes: Option<u64>,
    pub(super) pool: Pool,
    pub(super) device: Device,
    pub(super) module_id: Option<Module>,
    pub(super) page: PageType,
    pub(super) api: AllocApi,
    pub(super) caller: Option<Name>,
    /// The request to its pool.
    pub(super) asked: Asked,
}

impl NewBlock {
    /// One that a pool hands out.
    pub(super) const fn of_pool(pool: Pool, device: Device, addr: u64, size_bytes: u64) -> Self {
        Self {
            addr,
            size_bytes,
            requested_bytes: None,
            pool,
            device,
            module_id: None,
            page: PageType::Normal,
            api: AllocApi::Alloc,
            caller: None,
            asked: Asked { time_ns: None, stream: None },
        }
    }
}

/// A pool's own sums after the event.
#[expect(clippy::struct_field_names, reason = "units end names")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PoolTotals {
    /// `None` where it reports none.
    pub(super) used_bytes: Option<u64>,
    /// The same.
    pub(super) reserved_bytes: Option<u64>,
    pub(super) active_bytes: u64,
}

/// A live block, and state for its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Live {
    pub(super) block: Block,
    /// The pool has already reported that it has the block back; the free comes next.
    pub(super) returned: bool,
    /// Its allocation was within the steps to write, so its end is, too.
    pub(super) inside: bool,
    /// Not reported yet: its script was not collecting.
    pub(super) noted: bool,
    /// Its labels, by level.
    pub(super) labels: LabelIds,
    /// The owner, if labels have named it after its allocation.
    pub(super) later_owner: Option<Name>,
}

impl Live {
    /// A block that is reported, without labels.
    pub(super) fn new(block: Block) -> Self {
        let labels = LabelIds::default();
        Self { block, returned: false, inside: true, noted: false, labels, later_owner: None }
    }
}

/// Live blocks of one process.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    live: Store,
    used: HashMap<(Pool, Device), u128>,
    allocations: u64,
}

impl Blocks {
    /// Number of the next block.
    pub(super) fn next_id(&mut self) -> u64 {
        self.allocations += 1;
        self.allocations
    }

    /// Adds a block under a vacant key; returns the bytes in use after that.
    pub(super) fn put(&mut self, key: Key, live: &Live) -> u64 {
        self.live.insert(key, live);
        let used = self.used.entry((live.block.pool, live.block.device)).or_default();
        *used += u128::from(live.block.size_bytes);
        clamped(*used)
    }

    /// The live block under `key`.
    pub(super) fn get(&self, key: Key) -> Option<Live> {
        self.live.get(key)
    }

    /// Changes the live block under `key`, but not its key, size, pool and device; false if there is none.
    pub(super) fn change(&mut self, key: Key, change: impl FnOnce(&mut Live)) -> bool {
        self.live.change(key, change)
    }

    /// Changes the call stacks of all live blocks.
    pub(super) fn change_stacks(&mut self, change: impl FnMut(Stacks) -> Stacks) {
        self.live.change_stacks(change);
    }

    /// Number of the live block under `key`.
    pub(super) fn number(&self, key: Key) -> Option<u64> {
        self.live.get(key).map(|live| live.block.allocation_id)
    }

    /// Whether a block is live under `key`.
    pub(super) fn contains(&self, key: Key) -> bool {
        self.live.get(key).is_some()
    }

    /// Removes the live block under `key`; also returns the bytes in use after that.
    pub(super) fn take(&mut self, key: Key) -> Option<(Live, u64)> {
        let live = self.live.remove(key)?;
        let used = self.used.entry((live.block.pool, live.block.device)).or_default();
        *used = used.saturating_sub(live.block.size_bytes.into());
        Some((live, clamped(*used)))
    }

    /// Bytes of the live blocks of a pool on a device.
    pub(super) fn used_bytes(&self, pool: Pool, device: Device) -> u64 {
        self.used.get(&(pool, device)).map_or(0, |used| clamped(*used))
    }

    /// The pool's own figure: the sum continues from there.
    pub(super) fn set_used(&mut self, pool: Pool, device: Device, used_bytes: u64) {
        self.used.insert((pool, device), used_bytes.into());
    }

    /// The live block at an address of the pool with this event type.
    pub(super) fn at(&self, pool: &str, addr: u64) -> Option<Block> {
        let (pool, _) = self.used.keys().find(|(of, _)| of.event_type() == pool)?;
        let key = if pool.is_driver() { Key::Driver(addr) } else { Key::Pool(*pool, addr) };
        self.get(key).map(|live| live.block)
    }

    /// All live blocks, in no order.
    pub(super) fn all(&self) -> impl Iterator<Item = Block> {
        self.live.iter().map(|(_, live)| live.block)
    }

    /// All live blocks, in the order of their allocation.
    pub(super) fn in_order(&self) -> Vec<Key> {
        let mut blocks: Vec<(u64, Key)> = self.live.iter().map(|(key, live)| (live.block.allocation_id, key)).collect();
        blocks.sort_unstable();
        blocks.into_iter().map(|(_, key)| key).collect()
    }

    /// Devices that have, or had, blocks.
    pub(super) fn devices(&self) -> Vec<Device> {
        let mut devices: Vec<Device> =
            self.used.keys().map(|(_, device)| *device).filter(|device| *device != Device::None).collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }
}

fn clamped(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::ascend::pools;
    use crate::testing;

    fn live(allocation_id: u64, size_bytes: u64) -> Live {
        Live::new(Block { allocation_id, ..testing::block(pools::HAL, 8, size_bytes) })
    }

    /// A pinned and a driver's address of the same value are two blocks.
    #[test]
    fn name_spaces_are_apart() {
        let mut blocks = Blocks::default();
        assert_eq!(blocks.put(Key::Driver(8), &live(1, 10)), 10);
        assert_eq!(blocks.put(Key::Pinned(8), &live(2, 5)), 15);
        assert_eq!(blocks.take(Key::Driver(8)).map(|(live, used)| (live.block.allocation_id, used)), Some((1, 5)));
        assert_eq!(blocks.in_order(), [Key::Pinned(8)]);
    }

    /// Sizes that only a liar can have do not break the sum for the others.
    #[test]
    fn huge_sizes_do_not_overflow() {
        let mut blocks = Blocks::default();
        blocks.put(Key::Driver(1), &live(1, u64::MAX));
        assert_eq!(blocks.put(Key::Driver(2), &live(2, 7)), u64::MAX);
        assert_eq!(blocks.take(Key::Driver(1)).map(|(_, used)| used), Some(7));
    }
}
