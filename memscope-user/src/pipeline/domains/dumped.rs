//! Blocks as a dump lists them.
//!
//! A dump states what the pipeline finds out of calls: number and device of a block, whether a call ended it, the sums
//! of its pool. So these blocks have keys of their own, with the device in them, as in msMemScope (contract §7.1), and
//! an end is matched by its number.

use super::super::blocks::{Key, Live, NewBlock, PoolTotals};
use super::super::recent::Recent;
use super::super::turn::Turn;
use crate::hash::HashMap;
use crate::model::{
    AllocApi, Block, BlockReturned, Device, EventKind, FreeCause, Module, Name, PageType, Pool, UnknownFree,
};

/// Fewest freed blocks kept per process, in case their free has failed.
const MAX_FREED: usize = 4096;
/// Numbers from here on are no tool's. Few of them are used: a file has less than 2^63 rows.
const FIRST_RENUMBERED: u64 = 1 << 63;

/// The effect of a row about a block.
#[derive(Clone, Copy, Debug)]
pub(in crate::pipeline) enum Effect {
    /// It is handed out.
    Alloc(Listed),
    /// It ends.
    End { listed: Listed, cause: FreeCause },
    /// Its pool has it back.
    Returned(BlockReturned),
}

/// A block as its row lists it.
#[derive(Clone, Copy, Debug)]
pub(in crate::pipeline) struct Listed {
    pub(in crate::pipeline) pool: Pool,
    pub(in crate::pipeline) device: Device,
    pub(in crate::pipeline) addr: u64,
    pub(in crate::pipeline) size_bytes: Option<u64>,
    /// Number of the block, if the row has one.
    pub(in crate::pipeline) number: Option<u64>,
    pub(in crate::pipeline) page: PageType,
    pub(in crate::pipeline) api: AllocApi,
    pub(in crate::pipeline) module_id: Option<Module>,
    pub(in crate::pipeline) owner: Option<Name>,
    /// The pool's own figures, where the row has them.
    pub(in crate::pipeline) totals: Option<PoolTotals>,
    /// No call of the program stands behind the row.
    pub(in crate::pipeline) shadow: bool,
    /// It is older than the trace.
    pub(in crate::pipeline) found: bool,
}

impl Listed {
    const fn key(&self) -> Key {
        let is_handle = matches!(self.api, AllocApi::Create);
        Key::Listed { pool: self.pool, device: self.device, is_handle, addr: self.addr }
    }
}

/// Rows that contradict others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Doubts {
    /// Blocks with the number of a live one, or beyond the most live blocks.
    pub(crate) contradictions: u64,
    /// Frees of blocks without a row.
    pub(crate) unmatched_frees: u64,
}

/// Listed blocks of one process.
#[derive(Debug)]
pub(in crate::pipeline) struct Dumped {
    /// Keys of live blocks by number.
    keys: HashMap<u64, Key>,
    /// Blocks that the program freed, by number.
    freed: Recent<u64, Live>,
    /// Largest number of a block so far; blocks without one get higher ones.
    numbered: u64,
    /// Blocks with a new number, since another live block has theirs.
    renumbered: u64,
    pub(in crate::pipeline) doubts: Doubts,
}

impl Default for Dumped {
    fn default() -> Self {
        let (keys, freed) = (HashMap::default(), Recent::new(MAX_FREED));
        Self { keys, freed, numbered: 0, renumbered: 0, doubts: Doubts::default() }
    }
}

impl Dumped {
    pub(in crate::pipeline) fn apply(&mut self, effect: &Effect, turn: &mut Turn<'_>) {
        match effect {
            Effect::Alloc(listed) => self.handed_out(listed, turn),
            Effect::End { listed, cause } => self.ends(listed, *cause, turn),
            Effect::Returned(returned) => turn.emit(turn.device(), EventKind::BlockReturned(*returned)),
        }
    }

    fn handed_out(&mut self, listed: &Listed, turn: &mut Turn<'_>) {
        let key = listed.key();
        let restored = if listed.shadow { self.take_freed(listed) } else { None };
        let number = listed.number.unwrap_or(self.numbered.saturating_add(1));
        let (known, is_full) = (self.keys.get(&number).copied(), turn.is_full());
        self.doubts.contradictions += u64::from(known.is_some() || is_full);
        if known == Some(key) || is_full {
            return;
        }
        let number = if known.is_some() {
            self.unused_number()
        } else {
            self.numbered = self.numbered.max(number);
            number
        };
        self.end(key, FreeCause::Replaced, listed.totals, turn);
        let Listed { pool, device, addr, size_bytes, page, api, module_id, owner, totals, .. } = *listed;
        let new = NewBlock { module_id, page, api, ..NewBlock::of_pool(pool, device, addr, size_bytes.unwrap_or(0)) };
        let live = match restored {
            Some(live) => Live { block: Block { allocation_id: number, ..live.block }, ..live },
            None => Live::new(Block { owner, found: listed.found, ..turn.block(number, &new) }),
        };
        turn.put(key, &live, totals, listed.shadow && restored.is_none());
        self.keys.insert(number, key);
        note_used(pool, device, totals, turn);
    }

    /// A number that no live block has. A hostile dump lists such numbers too.
    fn unused_number(&mut self) -> u64 {
        let after = FIRST_RENUMBERED + self.renumbered;
        let number = (after + 1..=u64::MAX).find(|number| !self.keys.contains_key(number)).unwrap_or(after);
        self.renumbered = number - FIRST_RENUMBERED;
        number
    }

    /// The block of a failed free.
    fn take_freed(&mut self, listed: &Listed) -> Option<Live> {
        let number = listed.number?;
        let Block { device, addr, .. } = self.freed.get(&number)?.block;
        if (device, addr) == (listed.device, listed.addr) { self.freed.remove(&number) } else { None }
    }

    fn ends(&mut self, listed: &Listed, cause: FreeCause, turn: &mut Turn<'_>) {
        let Some(key) = self.find(listed, turn) else {
            // msMemScope writes a further end of a block that has ended.
            if !listed.shadow {
                self.doubts.unmatched_frees += 1;
                let Listed { pool, addr, size_bytes, .. } = *listed;
                let free = UnknownFree { pool, addr, size_bytes, maybe_older: true, refused: false };
                turn.emit(turn.device(), EventKind::UnknownFree(free));
            }
            return;
        };
        if listed.owner.is_some() {
            turn.home.blocks.change(key, |live| live.later_owner = listed.owner);
        }
        self.end(key, cause, listed.totals, turn);
    }

    /// Key of the live block of a free: one that starts at its address, on its device. An address inside of a block
    /// frees nothing, neither in a running program nor in msMemScope, where such a row leaves the block live.
    fn find(&self, listed: &Listed, turn: &Turn<'_>) -> Option<Key> {
        let is_it = |key: &Key| {
            let Key::Listed { pool, device, addr, .. } = *key else { return false };
            // msMemScope calls workspaces PTA; only the owner on their MALLOC row distinguishes them.
            let is_pool = pool == listed.pool || pool.also_written() == Some(listed.pool.event_type());
            let is_device = listed.device == Device::None || [listed.device, Device::None].contains(&device);
            is_pool && is_device && addr == listed.addr
        };
        if let Some(key) = listed.number.and_then(|number| self.keys.get(&number)).filter(|key| is_it(key)) {
            return Some(*key);
        }
        // A dump without numbers, or one of a tool that gives frees numbers of their own.
        if listed.shadow && listed.number.is_some() {
            return None;
        }
        let devices = if listed.device == Device::None {
            let known = turn.home.blocks.devices();
            [Device::None, Device::Cpu].into_iter().chain(known).collect()
        } else {
            vec![listed.device]
        };
        let Listed { pool, addr, .. } = *listed;
        let key = |device, is_handle| Key::Listed { pool, device, is_handle, addr };
        let mut keys = devices.iter().flat_map(|device| [key(*device, true), key(*device, false)]);
        keys.find(|key| turn.home.blocks.contains(*key))
    }

    fn end(&mut self, key: Key, cause: FreeCause, totals: Option<PoolTotals>, turn: &mut Turn<'_>) {
        let Some(live) = turn.free(key, cause, totals) else { return };
        let Block { allocation_id, pool, device, .. } = live.block;
        self.keys.remove(&allocation_id);
        note_used(pool, device, totals, turn);
        if cause == FreeCause::Program {
            self.freed.insert(allocation_id, live);
        }
    }
}

/// A pool's own figure counts from here on: it includes memory handed out before the trace. The driver has no such
/// figure (msMemScope does not subtract replaced blocks).
fn note_used(pool: Pool, device: Device, totals: Option<PoolTotals>, turn: &mut Turn<'_>) {
    if let Some(used_bytes) = totals.and_then(|totals| totals.used_bytes) {
        turn.home.blocks.set_used(pool, device, used_bytes);
    }
}
