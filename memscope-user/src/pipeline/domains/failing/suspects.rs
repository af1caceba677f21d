//! Blocks that are named when memory is out.

use std::collections::BinaryHeap;

use crate::hash::HashMap;
use crate::model::Block;

/// Blocks live at an attempt.
#[derive(Debug)]
pub(super) struct Suspects {
    pub(super) newest: Vec<Block>,
    pub(super) largest: Vec<Block>,
}

impl Suspects {
    /// The `count` newest and the `count` largest of blocks.
    pub(super) fn among<T: Iterator<Item = Block>>(blocks: impl Fn() -> T, count: usize) -> Self {
        let newest = largest_by(blocks(), count, |block| block.allocation_id);
        Self { newest, largest: largest_by(blocks(), count, |block| block.size_bytes) }
    }
}

/// The `count` blocks with the highest keys, highest first; of equals the older first.
fn largest_by(blocks: impl Iterator<Item = Block>, count: usize, key: impl Fn(&Block) -> u64) -> Vec<Block> {
    use std::cmp::Reverse;

    let mut kept = BinaryHeap::with_capacity(count + 1);
    let mut found: HashMap<u64, Block> = HashMap::default();
    for block in blocks {
        let number = block.allocation_id;
        kept.push(Reverse((key(&block), Reverse(number))));
        found.insert(number, block);
        if kept.len() > count
            && let Some(Reverse((_, Reverse(least)))) = kept.pop()
        {
            found.remove(&least);
        }
    }
    let mut kept: Vec<_> = kept.into_iter().map(|Reverse(kept)| kept).collect();
    kept.sort_unstable_by(|one, other| other.cmp(one));
    kept.into_iter().filter_map(|(_, Reverse(number))| found.remove(&number)).collect()
}
