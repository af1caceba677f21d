//! Owners of the blocks of a failure, once they are known for good.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::super::decompose::{Came, Lives, Went};
use super::PoolAtOom;
use crate::model::{Device, LiveSum, Name, OwnerSum, Pool};

/// From one owner to another, in a pool.
type Move = (Pool, Option<Name>, Option<Name>);

/// Changes of owners in a state that was taken at a moment.
#[derive(Clone, Debug)]
pub(super) struct Names {
    pid: u32,
    device: Device,
    /// The state's place among all allocations and frees.
    moment: u64,
    moves: BTreeMap<Move, LiveSum>,
}

impl Names {
    /// For a state that is taken now.
    pub(super) const fn new(pid: u32, device: Device, moment: u64) -> Self {
        Self { pid, device, moment, moves: BTreeMap::new() }
    }

    /// A block has its final name.
    pub(super) fn went(&mut self, (pid, device): (u32, Device), went: &Went, lives: &Lives) {
        let live = &went.live;
        let concerned = (pid, device) == (self.pid, self.device) && live.moment <= self.moment;
        // Driver memory may have been a pool's segment then: it keeps the name that it had.
        if let Some((from, to)) = lives.renamed(went).filter(|_| concerned && !live.pool.is_driver()) {
            let moved = self.moves.entry((live.pool, from, to)).or_default();
            moved.blocks += 1;
            moved.size_bytes = moved.size_bytes.saturating_add(live.size_bytes);
        }
    }

    /// A block had not ended after all.
    pub(super) fn came(&mut self, (pid, device): (u32, Device), came: &Came, lives: &Lives) {
        let Some(back) = &came.back else { return };
        let live = &came.live;
        let concerned = (pid, device) == (self.pid, self.device) && live.moment <= self.moment;
        let Some((to, from)) = lives.named_back(live, back).filter(|_| concerned && back.moment > self.moment) else {
            return;
        };
        if let Some(moved) = self.moves.get_mut(&(live.pool, from, to)) {
            moved.blocks = moved.blocks.saturating_sub(1);
            moved.size_bytes = moved.size_bytes.saturating_sub(live.size_bytes);
        }
    }

    /// Gives the owners of the state their final names.
    pub(super) fn settle(self, pools: &mut [PoolAtOom]) {
        for ((pool, from, to), moved) in self.moves {
            if let Some(at) = pools.iter_mut().find(|at| at.pool == pool) {
                settle(&mut at.groups.owners, (from, to), moved);
            }
        }
    }
}

/// Moves blocks between owners, as far as the first one has them.
fn settle(owners: &mut Vec<OwnerSum>, (from, to): (Option<Name>, Option<Name>), moved: LiveSum) {
    let Some(first) = owners.iter_mut().find(|sum| sum.owner == from) else { return };
    let blocks = moved.blocks.min(first.live.blocks);
    let size_bytes = moved.size_bytes.min(first.live.size_bytes);
    first.live.blocks -= blocks;
    first.live.size_bytes -= size_bytes;
    match owners.iter_mut().find(|sum| sum.owner == to) {
        Some(second) => {
            second.live.blocks += blocks;
            second.live.size_bytes += size_bytes;
        }
        None => owners.push(OwnerSum { owner: to, live: LiveSum { blocks, size_bytes } }),
    }
    owners.retain(|sum| sum.live.blocks > 0);
    owners.sort_unstable_by_key(|sum| (Reverse((sum.live.size_bytes, sum.live.blocks)), sum.owner));
}
