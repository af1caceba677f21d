//! Live blocks as they are kept: 79 bytes each, however many there are.
//!
//! The common part of blocks of one place (pool, device, thread, stack, …) is kept once, under a number; the rest lies
//! in consecutive rows, and a table of numbers finds it by key.

use std::hash::BuildHasher as _;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use super::blocks::{Key, Live};
use super::labels::LabelIds;
use crate::model::{Block, Device, Module, Stacks};

/// Most unused kinds kept: they often come again.
const MAX_IDLE: usize = 1024;

/// Live blocks by key.
#[derive(Debug, Default)]
pub(super) struct Store {
    hasher: RandomState,
    /// Places in `kept`.
    index: HashTable<u32>,
    kept: Vec<Kept>,
    vacant: Vec<u32>,
    kinds: Kinds,
}

/// The part of a block that is its own.
#[derive(Clone, Copy, Debug)]
struct Kept {
    /// Number in its key; the rest of that its kind has.
    number: u64,
    allocation_id: u64,
    addr: u64,
    size_bytes: u64,
    /// 0 if its kind has none.
    requested_bytes: u64,
    alloc_time_ns: u64,
    alloc_id: u64,
    kernel_index: u64,
    step: u32,
    kind: u32,
}

/// The common part of blocks: a block and a key with 0 for the figures that are a block's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    key: Key,
    live: Live,
}

impl Store {
    /// The block under a key.
    pub(super) fn get(&self, key: Key) -> Option<Live> {
        let at = self.index.find(self.hasher.hash_one(key), |at| self.is_under(*at, key))?;
        Some(self.live(*at))
    }

    /// Adds a block; an older one under the key is dropped.
    pub(super) fn insert(&mut self, key: Key, live: &Live) {
        let hash = self.hasher.hash_one(key);
        let kept = Kept::of(key, live, self.kinds.take(Kind::of(key, live)));
        if let Some(at) = self.index.find(hash, |at| self.is_under(*at, key)) {
            let before = std::mem::replace(&mut self.kept[*at as usize], kept);
            return self.kinds.give(before.kind);
        }
        let at = self.vacant.pop().unwrap_or(self.kept.len() as u32);
        match self.kept.get_mut(at as usize) {
            Some(slot) => *slot = kept,
            None => self.kept.push(kept),
        }
        let Self { hasher, index, kept, kinds, .. } = self;
        index.insert_unique(hash, at, |at| hasher.hash_one(kinds.key(&kept[*at as usize])));
    }

    /// Removes the block under a key.
    pub(super) fn remove(&mut self, key: Key) -> Option<Live> {
        let hash = self.hasher.hash_one(key);
        let Self { index, kept, kinds, .. } = self;
        let entry = index.find_entry(hash, |at| kinds.key(&kept[*at as usize]) == key).ok()?;
        let (at, _) = entry.remove();
        let live = self.live(at);
        self.kinds.give(self.kept[at as usize].kind);
        self.vacant.push(at);
        Some(live)
    }

    /// Changes the block under a key; false if there is none.
    pub(super) fn change(&mut self, key: Key, change: impl FnOnce(&mut Live)) -> bool {
        let Some(mut live) = self.get(key) else { return false };
        change(&mut live);
        self.insert(key, &live);
        true
    }

    /// Changes the call stacks of all blocks.
    pub(super) fn change_stacks(&mut self, change: impl FnMut(Stacks) -> Stacks) {
        self.kinds.change_stacks(change);
    }

    /// All blocks, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, Live)> {
        self.index.iter().map(|at| (self.kinds.key(&self.kept[*at as usize]), self.live(*at)))
    }

    fn is_under(&self, at: u32, key: Key) -> bool {
        self.kinds.key(&self.kept[at as usize]) == key
    }

    fn live(&self, at: u32) -> Live {
        let kept = &self.kept[at as usize];
        kept.live(&self.kinds.of(kept).live)
    }
}

impl Kept {
    fn of(key: Key, live: &Live, kind: u32) -> Self {
        let Block { allocation_id, addr, size_bytes, requested_bytes, alloc_time_ns, alloc_id, .. } = live.block;
        let requested_bytes = requested_bytes.unwrap_or(0);
        let Block { kernel_index, step, .. } = live.block;
        Self {
            number: key.number(),
            allocation_id,
            addr,
            size_bytes,
            requested_bytes,
            alloc_time_ns,
            alloc_id,
            kernel_index,
            step,
            kind,
        }
    }

    fn live(&self, kind: &Live) -> Live {
        let Self { allocation_id, addr, size_bytes, alloc_time_ns, alloc_id, kernel_index, step, .. } = *self;
        let requested_bytes = kind.block.requested_bytes.map(|_| self.requested_bytes);
        let block = Block {
            allocation_id,
            addr,
            size_bytes,
            requested_bytes,
            alloc_time_ns,
            alloc_id,
            step,
            kernel_index,
            ..kind.block
        };
        Live { block, ..*kind }
    }
}

impl Kind {
    fn of(key: Key, live: &Live) -> Self {
        let block = Block {
            allocation_id: 0,
            addr: 0,
            size_bytes: 0,
            requested_bytes: live.block.requested_bytes.map(|_| 0),
            alloc_time_ns: 0,
            alloc_id: 0,
            kernel_index: 0,
            step: 0,
            ..live.block
        };
        Self { key: key.with_number(0), live: Live { block, ..*live } }
    }
}

/// The kinds there are.
#[derive(Debug, Default)]
struct Kinds {
    hasher: RandomState,
    /// Places in `kept`.
    index: HashTable<u32>,
    /// Each with the number of its blocks.
    kept: Vec<(Kind, u32)>,
    vacant: Vec<u32>,
    /// Kinds that no block is of.
    idle: usize,
    /// The kind taken last.
    last: u32,
}

impl Kinds {
    /// The kind of a block.
    fn of(&self, kept: &Kept) -> &Kind {
        &self.kept[kept.kind as usize].0
    }

    /// Key of a block.
    fn key(&self, kept: &Kept) -> Key {
        self.of(kept).key.with_number(kept.number)
    }

    /// Number of a kind, which has one block more.
    fn take(&mut self, kind: Kind) -> u32 {
        if !self.kept.get(self.last as usize).is_some_and(|(last, blocks)| *blocks > 0 && *last == kind) {
            self.last = self.number(kind);
        }
        let (_, blocks) = &mut self.kept[self.last as usize];
        self.idle -= usize::from(*blocks == 0);
        *blocks += 1;
        self.last
    }

    /// A block of this kind ends.
    fn give(&mut self, number: u32) {
        let (_, blocks) = &mut self.kept[number as usize];
        *blocks -= 1;
        self.idle += usize::from(*blocks == 0);
        // So the cost is spread over the unused ones.
        if self.idle > MAX_IDLE.max(self.index.len() / 2) {
            self.forget_idle();
        }
    }

    fn number(&mut self, kind: Kind) -> u32 {
        let hash = self.hasher.hash_one(distinction(&kind));
        if let Some(known) = self.index.find(hash, |at| self.kept[*at as usize].0 == kind) {
            return *known;
        }
        let at = self.vacant.pop().unwrap_or(self.kept.len() as u32);
        match self.kept.get_mut(at as usize) {
            Some(slot) => *slot = (kind, 0),
            None => self.kept.push((kind, 0)),
        }
        self.idle += 1;
        let Self { hasher, index, kept, .. } = self;
        index.insert_unique(hash, at, |at| hasher.hash_one(distinction(&kept[*at as usize].0)));
        at
    }

    /// Two kinds may become equal: then new blocks are of either, and none is lost.
    fn change_stacks(&mut self, mut change: impl FnMut(Stacks) -> Stacks) {
        self.forget_idle();
        for at in &self.index {
            let stacks = &mut self.kept[*at as usize].0.live.block.stacks;
            *stacks = change(*stacks);
        }
        let Self { hasher, index, kept, .. } = self;
        let all: Vec<u32> = index.drain().collect();
        for at in all {
            let hash = hasher.hash_one(distinction(&kept[at as usize].0));
            index.insert_unique(hash, at, |at| hasher.hash_one(distinction(&kept[*at as usize].0)));
        }
    }

    fn forget_idle(&mut self) {
        let Self { index, kept, vacant, .. } = self;
        index.retain(|at| {
            let is_idle = kept[*at as usize].1 == 0;
            if is_idle {
                vacant.push(*at);
            }
            !is_idle
        });
        self.idle = 0;
    }
}

/// The part in which kinds nearly always differ: hashing all of it takes longer than comparing two.
const fn distinction(kind: &Kind) -> (Stacks, u32, Device, Option<Module>, LabelIds) {
    let Block { stacks, tid, device, module_id, .. } = kind.live.block;
    (stacks, tid, device, module_id, kind.live.labels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::ascend::{modules, pools};
    use crate::hash::HashMap;
    use crate::model::{AllocApi, Name, PageType};
    use crate::testing::Random;

    fn any_live(random: &mut Random, kinds: u64) -> (Key, Live) {
        let addr = random.next() % 500;
        let kind = random.next() % kinds;
        let block = Block {
            allocation_id: random.next(),
            pool: pools::PTA,
            device: Device::Npu(kind as u32 % 3),
            addr,
            size_bytes: random.next(),
            requested_bytes: kind.is_multiple_of(2).then(|| random.next()),
            alloc_time_ns: random.next(),
            alloc_id: random.next(),
            tid: kind as u32,
            step: random.next() as u32,
            kernel_index: random.next(),
            module_id: Some(modules::of(3)),
            page: PageType::Huge,
            api: AllocApi::Create,
            caller: Some(Name::fixed(&"f")),
            stacks: Stacks::default(),
            owner: Some(Name::fixed(&"PTA")),
            found: kind.is_multiple_of(3),
            held_as: None,
        };
        let live =
            Live { block, returned: false, inside: true, noted: false, labels: LabelIds::default(), later_owner: None };
        (if kind.is_multiple_of(5) { Key::Driver(addr) } else { Key::Pool(pools::PTA, addr) }, live)
    }

    /// Entries come out as from an ordinary map, with few kinds and with many.
    #[test]
    fn blocks_survive() {
        for kinds in [1, 7, 100_000] {
            let (mut random, mut store, mut expected) = (Random(kinds), Store::default(), HashMap::default());
            for _ in 0..20_000 {
                let (key, live) = any_live(&mut random, kinds);
                match random.next() % 5 {
                    0 | 1 => {
                        store.insert(key, &live);
                        expected.insert(key, live);
                    }
                    2 | 3 => assert_eq!(store.remove(key), expected.remove(&key)),
                    _ => {
                        let known = expected.get_mut(&key).map(|live| live.noted = !live.noted).is_some();
                        assert_eq!(store.change(key, |live| live.noted = !live.noted), known);
                    }
                }
                assert_eq!(store.get(key), expected.get(&key).copied());
            }
            let found: HashMap<Key, Live> = store.iter().collect();
            assert_eq!(found, expected);
            assert!(store.kept.len() <= 1000 && store.kinds.kept.len() <= 2 * MAX_IDLE + 1000, "{kinds}");
        }
    }

    /// Blocks stay, with other stacks, and new ones of the same place are beside them.
    #[test]
    fn stacks_change() {
        let kept = crate::model::Kept::process();
        let stacks =
            |text| Stacks { native: Some(kept.stack([text], crate::model::StackEnd::Root)), ..Stacks::default() };
        let [before, after, other] = ["before", "after", "other"].map(stacks);
        let (mut random, mut store) = (Random(7), Store::default());
        let mut put = |store: &mut Store, addr, stacks| {
            let (_, mut live) = any_live(&mut random, 1);
            live.block.stacks = stacks;
            store.insert(Key::Driver(addr), &live);
            live
        };
        let blocks: Vec<Live> =
            (0..10).map(|addr| put(&mut store, addr, if addr < 5 { before } else { other })).collect();
        store.change_stacks(|stacks| if stacks == before { after } else { stacks });
        for (addr, live) in (0..).zip(blocks) {
            let stacks = if addr < 5 { after } else { other };
            let block = Block { stacks, ..live.block };
            assert_eq!(store.get(Key::Driver(addr)), Some(Live { block, ..live }));
        }
        let kinds = store.kinds.index.len();
        put(&mut store, 100, after);
        assert_eq!((kinds, store.kinds.index.len()), (2, 2));
        for addr in (0..10).chain([100]) {
            assert!(store.remove(Key::Driver(addr)).is_some());
        }
        assert_eq!(store.iter().count(), 0);
    }

    /// The documented memory of each block.
    #[test]
    fn blocks_are_small() {
        assert!(size_of::<Kept>() <= 72);
    }
}
