//! A pool by hand: two blocks of 4 and 2 MiB, the first with buffers that are in use, free, awaited and without memory, the second free.

use super::{super::Framework, Missing, Pool, PoolBlock, UsedBy, find, state};
use crate::holders::{
    graph::Graph,
    heap::Heap,
    image::Image,
    memory::Memory,
    pointers::{Limits, Pointers},
    sample::Sample,
    source::{Backing, PAGE},
    symbols::{Symbol, Symbols},
};

const MANAGER: u64 = 0x7f20_0000_0000;
const CORE: u64 = 0x7f21_0000_0000;
const VARIABLE: u64 = 0x800;
const MIB: u64 = 1 << 20;
const FIRST: u64 = 0x12c1_0000_0000;
const SECOND: u64 = 0x12c2_0000_0000;
/// Words of the pool, by their offsets.
const ALLOCATORS: u64 = 0x18;
const TABLE: u64 = 0x40;
const SUMS: u64 = 0xb0;
/// Of an allocator.
const BLOCKS: u64 = 0x80;
const FREE: u64 = 0xb0;

struct Made {
    sample: Sample,
    pool: u64,
    sums: u64,
    /// Descriptions of buffers: in use, free, awaited, without memory; the free one of the second block.
    buffers: [u64; 5],
    allocator: u64,
    /// The node of the first buffer in the table.
    node: u64,
}

/// A library that exports one variable.
fn library(sample: &mut Sample, start: u64, (name, variable): (&str, &str), object: u64) {
    let path = format!("/usr/lib/{name}.so");
    sample.image.map(Image::plain(start, PAGE, Backing::File, &path));
    let objects = vec![Symbol { vaddr: VARIABLE, size_bytes: 8, name: variable.into() }];
    sample.image.set_symbols(&path, Symbols { objects, first_vaddr: 0, end_vaddr: PAGE });
    sample.image.put(start + VARIABLE, object);
}

impl Made {
    /// `since`: with the sums behind a pointer, as since 2.8, where 1 MiB of `all` was allocated by the program's own functions.
    fn new(since: bool) -> Self {
        let mut sample = Sample::new();
        let pool = sample.cpp("N9mindspore6device6ascend23DefaultAscendMemoryPoolE", &[0; 64]);
        library(&mut sample, MANAGER, super::INSTANCE, pool);
        let device = sample.block(64);
        sample.put_words(device, &[3 << 32 | 2, 0]);
        library(&mut sample, CORE, super::device::SET, device);
        let (allocator, first, second) = (sample.block(512), sample.block(40), sample.block(40));
        sample.put_words(first, &[4 * MIB, FIRST, 7]);
        sample.put_words(second, &[2 * MIB, SECOND, 7]);
        let buffers = [(); 5].map(|()| sample.block(96));
        let [used, idle, awaited, eager, alone] = buffers;
        let states = [state::USED, state::IDLE, state::USED_BY_EVENT, state::EAGER_FREE, state::IDLE].map(u64::from);
        let extents = [
            (0, used, idle, MIB, FIRST, first),
            (used, idle, awaited, 512, FIRST + MIB, first),
            (idle, awaited, eager, 1024, FIRST + MIB + 512, first),
            (awaited, eager, 0, 3 * MIB - 1536, FIRST + MIB + 1536, first),
            (0, alone, 0, 2 * MIB, SECOND, second),
        ];
        for ((before, at, behind, size, address, block), state) in extents.into_iter().zip(states) {
            // Behind 32 bits of a stream and of a state old contents.
            sample.put_words(at, &[0, 0, before, behind, size, address, 9 << 32 | 7, block, 5 << 32 | state]);
        }
        let nodes = [sample.block(40), sample.block(40)];
        sample.put_words(nodes[0], &[nodes[1], FIRST, used, allocator]);
        sample.put_words(nodes[1], &[0, FIRST + MIB + 512, awaited, allocator]);
        let buckets = sample.block(24);
        sample.put_words(buckets, &[pool + TABLE + 16, nodes[0], 0]);
        let load = 0x7777 << 32 | u64::from(1.0_f32.to_bits());
        sample.put_words(pool + TABLE, &[buckets, 3, nodes[0], 2, load, 3, 0]);
        let tree = sample.block(72);
        sample.put_words(tree, &[1, pool + ALLOCATORS, 0, 0, 7, allocator, 0]);
        sample.put_words(pool + ALLOCATORS, &[0x5555 << 32, tree, tree, tree, 1]);
        let items = [sample.block(32), sample.block(32)];
        let header = allocator + BLOCKS;
        sample.put_words(header, &[items[0], items[1]]);
        sample.put_words(items[0], &[items[1], header, first]);
        sample.put_words(items[1], &[header, items[0], second]);
        let free = [sample.block(40), sample.block(40)];
        sample.put_words(free[0], &[1, allocator + FREE, 0, free[1], idle]);
        sample.put_words(free[1], &[0, free[0], 0, 0, alone]);
        sample.put_words(allocator + FREE, &[0, free[0], free[0], free[1], 2]);
        let sums = if since { sample.block(80) } else { pool + SUMS };
        let [all, by_event, without] = [6 * MIB, 1024, 3 * MIB - 1536];
        if since {
            sample.image.put(pool + SUMS, sums);
            sample.put_words(sums, &[MIB, 2 * MIB, all - MIB, MIB, by_event, without]);
        } else {
            sample.put_words(sums, &[MIB, 2 * MIB, all, by_event, without, 0]);
        }
        Self { sample, pool, sums, buffers, allocator, node: nodes[0] }
    }

    fn read(&self) -> Result<Pool, Missing> {
        let memory = Memory::new(&self.sample.image);
        let pointers = Pointers::of(&self.sample.image, &[], Limits::default());
        let heap = Heap::new(&memory, &pointers, None);
        find(&Graph::new(&memory, &pointers, &heap, None))
    }

    fn unsure(&self) -> Result<Vec<u32>, Missing> {
        self.read().map(|pool| pool.unsure)
    }
}

fn row(address: u64, size_bytes: u64, used_by: UsedBy, segment: u64) -> PoolBlock {
    PoolBlock {
        address,
        size_bytes,
        requested_bytes: None,
        used_by,
        stream: 7,
        segment,
        is_expandable: true,
        is_small: false,
        private: (0, 0),
        device: 3,
    }
}

/// Buffers with memory, by address; one without a neighbour is in the tree of free ones alone.
#[test]
fn buffers_of_the_pool() {
    let expected = [
        row(FIRST, MIB, UsedBy::Program, FIRST),
        row(FIRST + MIB, 512, UsedBy::Pool, FIRST),
        row(FIRST + MIB + 512, 1024, UsedBy::Stream, FIRST),
        row(SECOND, 2 * MIB, UsedBy::Pool, SECOND),
    ];
    for since in [false, true] {
        let made = Made::new(since);
        let pool = made.read().expect("a pool");
        assert_eq!((&pool.blocks[..], &pool.unsure[..]), (&expected[..], &[][..]), "{since}");
        assert_eq!((pool.framework, pool.devices), (Framework::MindSpore, 1));
        let own = [made.pool, made.allocator, made.node].into_iter().chain(made.buffers);
        assert!(own.clone().all(|at| pool.own.contains(&at)), "{:x?} of {:x?}", pool.own, own.collect::<Vec<_>>());
    }
}

/// Each of these is no reading of one moment.
#[test]
fn what_does_not_agree_is_unsure() {
    type Change = fn(&Made) -> (u64, u64);
    let changes: [(&str, Change); 6] = [
        ("a sum of what is used", |made| (made.sums, MIB + 512)),
        ("a sum of all", |made| (made.sums + 16, 7 * MIB)),
        ("a gap", |made| (made.buffers[1] + 32, 1024)),
        ("a buffer at another address", |made| (made.node + 8, FIRST + 512)),
        ("a buffer that is in use and in no table", |made| (made.buffers[1] + 64, u64::from(state::USED))),
        ("a state that is none", |made| (made.buffers[2] + 64, 4)),
    ];
    for (what, change) in changes {
        let mut made = Made::new(false);
        let (at, word) = change(&made);
        made.sample.image.put(at, word);
        assert_eq!(made.unsure(), Ok(vec![3]), "{what}");
    }
}

/// Nothing to read, or nothing known.
#[test]
fn no_pool() {
    let with = |at: fn(&Made) -> u64, word: u64| {
        let mut made = Made::new(false);
        made.sample.image.put(at(&made), word);
        made.read().map(|pool| pool.blocks.len())
    };
    assert_eq!(with(|_| MANAGER + VARIABLE, 0), Err(Missing::Blocks), "it is not started");
    assert_eq!(with(|made| made.pool, CORE), Err(Missing::Sense), "another class");
    assert_eq!(with(|_| CORE + VARIABLE, 0), Err(Missing::Sense), "no device");
    assert_eq!(with(|made| made.pool + TABLE + 32, 0), Err(Missing::Sense), "another table");
}

/// Any word may be another one while the program changes it, or by intent: all of it ends.
#[test]
fn changed_words_end() {
    let made = Made::new(true);
    let objects = [made.pool, made.allocator, made.node, made.sums].into_iter().chain(made.buffers);
    let targets: Vec<u64> = objects.collect();
    for at in targets.iter().flat_map(|object| (0..26).map(move |word| object + word * 8)) {
        for word in [0, 1, u64::MAX, at, made.pool, made.allocator, made.buffers[0]] {
            let mut changed = Made::new(true);
            changed.sample.image.put(at, word);
            let _ = changed.read();
        }
    }
}
