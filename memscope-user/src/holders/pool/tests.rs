//! Pools of their own. What they hold is worked out by hand.

use super::{
    Pool, PoolBlock, UsedBy,
    made::{FIGURES, LARGE, LARGE_POOL, MIB, Made, SMALL_POOL},
};
use crate::holders::{
    graph::Graph,
    heap::Heap,
    memory::Memory,
    pointers::{Limits, Pointers},
};

const LIVE: u64 = 1 << 8 | 1;
const FREE: u64 = 1 << 8;
const GRAPHS: u64 = 0x12c3_0000_0000;
const NUMBER: (u64, u64) = (0, 7);

fn read(made: &Made) -> Pool {
    let memory = Memory::new(&made.sample.image);
    let pointers = Pointers::of(&made.sample.image, &[], Limits::default());
    let heap = Heap::new(&memory, &pointers, None);
    super::find(&Graph::new(&memory, &pointers, &heap, None)).expect("a pool")
}

/// The blocks of [`Made::whole`]; and a pool of its own with a segment of small blocks, one of them free, and one of 20 MiB that is free.
fn with_graphs() -> Made {
    let mut made = Made::whole();
    made.put(made.device + SMALL_POOL + 0x60, &[1]);
    let (large, small) = made.private(5, NUMBER);
    let blocks = [
        made.describe(small, (GRAPHS, 4096, 4000), LIVE),
        // It keeps the size that was asked for before it was split.
        made.describe(small, (GRAPHS + 4096, 2 * MIB - 4096, 2 * MIB), FREE),
    ];
    made.chain(&blocks);
    let whole = made.describe(large, (GRAPHS + 4 * MIB, 20 * MIB, 0), FREE);
    made.tree(small + 8, &blocks[1..]);
    made.tree(large + 8, &[whole]);
    made.put(made.device + FIGURES, &[20 * MIB + 3072 + 4096, 44 * MIB]);
    made
}

/// The address of the pool of its own.
fn graphs_pool(made: &Made) -> u64 {
    Memory::new(&made.sample.image).word_or_0(made.table + 5 * 32 + 24)
}

fn graphs(pool: &Pool) -> Vec<PoolBlock> {
    pool.blocks.iter().filter(|block| block.private != (0, 0)).copied().collect()
}

/// Blocks of a pool of its own are found with all others, with its number.
#[test]
fn pools_of_their_own() {
    let pool = read(&with_graphs());
    let block = |offset: u64, size_bytes, requested, is_live, is_small| PoolBlock {
        address: GRAPHS + offset,
        size_bytes,
        requested_bytes: Some(requested),
        used_by: if is_live { UsedBy::Program } else { UsedBy::Pool },
        stream: 0x5151,
        segment: if is_small { GRAPHS } else { GRAPHS + offset },
        is_expandable: false,
        is_small,
        private: NUMBER,
        device: 0,
    };
    let expected = [
        block(0, 4096, 4000, true, true),
        block(4096, 2 * MIB - 4096, 2 * MIB, false, true),
        block(4 * MIB, 20 * MIB, 0, false, false),
    ];
    assert_eq!((graphs(&pool), &pool.unsure[..]), (expected.to_vec(), &[][..]));
    let others: Vec<(u64, bool)> = pool
        .blocks
        .iter()
        .filter(|block| block.private == (0, 0))
        .map(|block| (block.size_bytes, block.is_small))
        .collect();
    let small = [1024, 512, 2048, 2 * MIB - 3584].map(|size| (size, true));
    assert_eq!(others, [&small[..], &[(20 * MIB, false)]].concat());
}

/// All blocks may be in such pools: the server has given back the others.
#[test]
fn pools_of_their_own_alone() {
    let mut made = Made::new();
    made.tree(SMALL_POOL, &[]);
    made.tree(LARGE_POOL, &[]);
    let (large, _) = made.private(0, (3, 0));
    let blocks = [
        made.describe(large, (GRAPHS, 12 * MIB, 12 * MIB - 32), LIVE),
        made.describe(large, (GRAPHS + 12 * MIB, 8 * MIB, 0), FREE),
    ];
    made.chain(&blocks);
    made.tree(large + 8, &blocks[1..]);
    made.put(made.device + FIGURES, &[12 * MIB, 20 * MIB]);
    let pool = read(&made);
    let found: Vec<_> =
        pool.blocks.iter().map(|block| (block.address, block.used_by == UsedBy::Program, block.private)).collect();
    assert_eq!(found, [(GRAPHS, true, (3, 0)), (GRAPHS + 12 * MIB, false, (3, 0))]);
    assert!(pool.unsure.is_empty());
}

/// A slot that was given up may still name the pool, by another number.
#[test]
fn slots_given_up() {
    let mut made = with_graphs();
    let (table, pool) = (made.table, graphs_pool(&made));
    made.put(table, &[0xff, 0, 6, pool]);
    assert!(graphs(&read(&made)).iter().all(|block| block.private == NUMBER));
    assert_eq!(graphs(&read(&made)).len(), 3);
}

/// What does not name itself twice is no pool; then the sums are others, and it is said.
#[test]
fn what_is_no_pool() {
    let mut made = with_graphs();
    let (table, pool) = (made.table, graphs_pool(&made));
    made.put(pool + 0x18 + 0x68, &[0]);
    let found = read(&made);
    assert_eq!((graphs(&found), found.unsure), (vec![], vec![0]));
    // A table that leads to itself, to the allocator, and out of all memory.
    let words = [table, made.device, u64::MAX, LARGE].map(|address| [0, 0, 9, address]).concat();
    made.put(table, &words);
    assert_eq!(read(&made).unsure, [0]);
}

/// A freed block that another stream still uses is in no tree; the allocator counts it as active. It is not live. Without its number of events, or
/// where the sum is another, nothing is proved.
#[test]
fn blocks_that_wait_for_a_stream() {
    const WAITING: u64 = GRAPHS;
    let made = |events: u64, active: u64| {
        let mut made = Made::whole();
        let waiting = made.describe(LARGE_POOL, (WAITING, 4 * MIB, 4 * MIB), FREE);
        made.put(waiting + 0x68, &[events]);
        made.put(made.device + FIGURES, &[20 * MIB + 3072, 26 * MIB, active]);
        read(&made)
    };
    let pool = made(1, 24 * MIB + 3072);
    assert!(pool.unsure.is_empty());
    let of = |used_by: UsedBy| pool.blocks.iter().filter(move |block| block.used_by == used_by);
    assert_eq!(
        of(UsedBy::Stream).map(|block| (block.address, block.size_bytes)).collect::<Vec<_>>(),
        [(WAITING, 4 * MIB)]
    );
    assert_eq!(of(UsedBy::Program).count(), 3);
    assert_eq!([made(0, 24 * MIB + 3072), made(1, 24 * MIB)].map(|pool| pool.unsure), [vec![0], vec![0]]);
}

/// A device with one block does not show where blocks have what: the other one does. Behind it or in front of it in the list.
#[test]
fn a_device_with_one_block() {
    for in_front in [false, true] {
        let mut made = Made::whole();
        made.another_device(in_front);
        let only = made.describe(LARGE_POOL, (GRAPHS, 4 * MIB, 3 * MIB), LIVE);
        made.put(made.device + 0x680, &[only]);
        made.put(made.device + FIGURES, &[4 * MIB, 4 * MIB]);
        let pool = read(&made);
        let number = u32::from(!in_front);
        let of_device = pool.blocks.iter().filter(|block| block.device == number);
        let found: Vec<_> = of_device.map(|block| (block.address, block.size_bytes, block.requested_bytes)).collect();
        assert_eq!((found, pool.blocks.len(), pool.unsure), (vec![(GRAPHS, 4 * MIB, Some(3 * MIB))], 6, vec![]));
    }
}

/// A device without any block is unused if it says so itself.
#[test]
fn a_device_without_blocks() {
    for (figures, unsure) in [([0, 0], vec![]), ([0, 2 * MIB], vec![1]), ([512, 2 * MIB], vec![1])] {
        let mut made = Made::whole();
        made.another_device(false);
        made.put(made.device + FIGURES, &figures);
        let pool = read(&made);
        assert_eq!((pool.blocks.len(), pool.devices, &pool.unsure), (5, 1, &unsure), "{figures:?}");
        // In front of the one that shows it.
        let mut made = Made::whole();
        made.another_device(true);
        made.put(made.device + FIGURES, &figures);
        let unsure: Vec<u32> = unsure.iter().map(|_| 0).collect();
        assert_eq!(read(&made).unsure, unsure, "{figures:?}");
    }
}
