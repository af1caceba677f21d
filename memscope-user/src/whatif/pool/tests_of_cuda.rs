//! CUDA's allocator: values worked out by hand from the constants of `CUDACachingAllocator.cpp`.

use super::*;
use crate::whatif::device::Addresses;
use crate::whatif::settings::Release;

fn pool_on(text: &str, card: &Card) -> Pool {
    let settings = Settings::parse(text, Release::TorchMain).expect("settings");
    let mut pool = Pool::new(settings, Card { addresses: Addresses::Up, limits_whole_fraction: false, ..card.clone() });
    assert_eq!(pool.lane(0, 0), Some(0));
    pool
}

fn pool(text: &str, mib: u64) -> Pool {
    pool_on(text, &Card { memory_bytes: mib * MIB, total_bytes: mib * MIB, ..Card::default() })
}

fn get(pool: &mut Pool, mib: u64) -> Id {
    pool.malloc(mib * MIB, 0).expect("memory")
}

/// Offset from the first block's, and size, in MiB.
fn place(pool: &Pool, first: u64, id: Id) -> (u64, u64) {
    let (addr, size) = pool.place(id);
    assert!(addr % MIB == 0 && size % MIB == 0);
    ((addr - first) / MIB, size / MIB)
}

/// A segment of 20 MiB: 3, 5 and 12 MiB fill it, without a pad. 25 MiB get 26, as the rest of 1 MiB is not more than 1 MiB.
/// Freed, 3 and 5 are one block of 8, the smallest for 6; its rest of 2 is split off and taken.
#[test]
fn blocks_are_split_joined_and_found_again() {
    let mut pool = pool("", 1024);
    let blocks = [3, 5, 12].map(|mib| get(&mut pool, mib));
    let first = pool.place(blocks[0]).0;
    assert_eq!(blocks.map(|id| place(&pool, first, id)), [(0, 3), (3, 5), (8, 12)]);
    assert_eq!((pool.figures.reserved_bytes, pool.figures.segments), (20 * MIB, 1));
    let odd = get(&mut pool, 25);
    assert_eq!(pool.place(odd).1, 26 * MIB);
    pool.free(blocks[0]);
    pool.free(blocks[1]);
    assert_eq!(pool.free_memory(), FreeMemory { bytes: 8 * MIB, largest_bytes: 8 * MIB, pieces: 1 });
    let again = [6, 2].map(|mib| get(&mut pool, mib));
    assert_eq!(again.map(|id| place(&pool, first, id)), [(0, 6), (6, 2)]);
    assert_eq!((pool.figures.reserved_bytes, pool.figures.inactive_split_bytes), (46 * MIB, 0));
    for id in [blocks[2], odd].into_iter().chain(again) {
        pool.free(id);
    }
    pool.empty_cache();
    assert_eq!((pool.figures.reserved_bytes, pool.figures.segments, pool.calls().free), (0, 0, 2));
}

/// Three blocks of 512 bytes in a segment of 2 MiB: the freed one in the middle is a better fit than the rest behind. 1 MiB is a small
/// block, too.
#[test]
fn small_blocks_share_a_segment() {
    let mut pool = pool("", 1024);
    let blocks = [100, 512, 1].map(|bytes| pool.malloc(bytes, 0).expect("memory"));
    let middle = pool.place(blocks[1]).0;
    assert_eq!(blocks.map(|id| pool.place(id)), [-512, 0, 512].map(|by| (middle.wrapping_add_signed(by), 512)));
    pool.free(blocks[1]);
    let again = pool.malloc(300, 0).expect("memory");
    assert_eq!(pool.place(again), (middle, 512));
    let one = get(&mut pool, 1);
    assert_eq!(pool.place(one), (middle + 1024, MIB));
    assert_eq!(pool.figures.reserved_bytes, 2 * MIB);
}

/// Of two blocks of one size the one at the lower address; of another stream none.
#[test]
fn equal_blocks_go_by_address() {
    let mut pool = pool("", 1024);
    let [one, two, three] = [30, 30, 30].map(|mib| get(&mut pool, mib));
    let lowest = [one, two, three].map(|id| pool.place(id).0).into_iter().min().expect("blocks");
    for id in [three, one, two] {
        pool.free(id);
    }
    let again = get(&mut pool, 30);
    assert_eq!(pool.place(again).0, lowest);
    let lane = pool.lane(7, 0).expect("a lane");
    pool.malloc(30 * MIB, lane).expect("memory");
    assert_eq!(pool.figures.segments, 4);
}

/// With 32 MiB, the free block of 100 is not lent to 20; not to 70, as 100 is not below 70 + 20; to 81 it is, unsplit.
#[test]
fn oversize_blocks() {
    let mut pool = pool("max_split_size_mb:32", 1024);
    let one = get(&mut pool, 100);
    pool.free(one);
    get(&mut pool, 20);
    get(&mut pool, 70);
    let taken = get(&mut pool, 81);
    assert_eq!(pool.place(taken).1, 100 * MIB);
    assert_eq!((pool.figures.reserved_bytes, pool.figures.inactive_split_bytes), (190 * MIB, 0));
}

/// 220 of 256 MiB are cached. For 130 neither 100 nor 120 is enough: the larger goes, then the other, without a retry and without
/// waiting for the device.
#[test]
fn oversize_blocks_go_before_a_retry() {
    let mut pool = pool("max_split_size_mb:32", 256);
    let [a, b] = [100, 120].map(|mib| get(&mut pool, mib));
    pool.free(a);
    pool.free(b);
    get(&mut pool, 130);
    assert_eq!((pool.figures.reserved_bytes, pool.figures.retries), (130 * MIB, 0));
    assert_eq!((pool.calls().free, pool.calls().failed, pool.calls().synchronize), (2, 1, 0));
}

/// 90 of 200 MiB are cached, 80 is the threshold, so 10 have to go: all three are of one age, and all that is of the mean age goes. A
/// fraction of the whole is no limit, so nothing is collected.
#[test]
fn garbage_goes_above_the_threshold() {
    for (fraction, freed) in [("0.999", 3), ("1.0", 0)] {
        let text = format!("garbage_collection_threshold:0.4,per_process_memory_fraction:{fraction}");
        let mut pool = pool(&text, 200);
        let blocks = [20, 30, 40].map(|mib| get(&mut pool, mib));
        for id in blocks {
            pool.free(id);
        }
        get(&mut pool, 60);
        assert_eq!((pool.figures.segments_freed, pool.calls().synchronize), (freed, 0), "{fraction}");
    }
}

/// Pages of 20 MiB: 30 take two, 3 more lie right behind them, unaligned. 8 do not fit into the 7 that are left: one page more, and the
/// block grows over the border. Emptied, only whole pages go: the one with the 3 MiB stays.
#[test]
fn expandable_segments_grow_and_shrink() {
    let mut pool = pool("expandable_segments:True,max_split_size_mb:64", 1024);
    let [one, two] = [30, 3].map(|mib| get(&mut pool, mib));
    let first = pool.place(one).0;
    assert_eq!((place(&pool, first, two), pool.figures.reserved_bytes), ((30, 3), 40 * MIB));
    let three = get(&mut pool, 8);
    assert_eq!((place(&pool, first, three), pool.figures.reserved_bytes), ((33, 8), 60 * MIB));
    pool.free(one);
    pool.free(three);
    pool.empty_cache();
    // 0 to 20 and 40 to 60 are whole; 20 to 30 and 33 to 40 stay.
    assert_eq!((pool.figures.reserved_bytes, pool.calls().unmap), (20 * MIB, 2));
    // 20 MiB go to the lowest addresses where they fit: the first page is mapped again.
    let four = get(&mut pool, 20);
    assert_eq!((place(&pool, first, four), pool.figures.reserved_bytes), ((0, 20), 40 * MIB));
}

/// 9/8 of 1024 MiB are 1152, in pages of 20: 58, which are 1160 MiB. Behind 1100 there is no room for 100: another range.
#[test]
fn a_reservation_is_nine_eighths_of_the_device() {
    let card = Card { memory_bytes: 4096 * MIB, total_bytes: 1024 * MIB, ..Card::default() };
    let mut pool = pool_on("expandable_segments:True", &card);
    get(&mut pool, 1100);
    get(&mut pool, 60);
    assert_eq!((pool.calls().reserve, pool.figures.reserved_bytes), (1, 1160 * MIB));
    get(&mut pool, 100);
    assert_eq!((pool.calls().reserve, pool.figures.reserved_bytes), (2, 1260 * MIB));
}

/// Half of 100 MiB: 40 and 20 are too much, and the driver is not asked. `throw_on_cudamalloc_oom` makes the whole a limit, too, where
/// a driver with more memory would give it.
#[test]
fn fractions_of_the_settings() {
    let mut half = pool("per_process_memory_fraction:0.5", 100);
    get(&mut half, 40);
    assert!(half.malloc(20 * MIB, 0).is_none());
    assert_eq!((half.calls().failed, half.figures.failures), (0, 1));
    let card = Card { memory_bytes: 200 * MIB, total_bytes: 100 * MIB, ..Card::default() };
    for (text, mib) in [("per_process_memory_fraction:1.0", 160), ("throw_on_cudamalloc_oom:True", 80)] {
        let mut pool = pool_on(text, &card);
        get(&mut pool, 80);
        let more = pool.malloc(80 * MIB, 0).is_some();
        assert_eq!((pool.figures.reserved_bytes, more), (mib * MIB, mib == 160), "{text}");
    }
}

/// Segments of 32 MiB for 3 MiB, and pages of it.
#[test]
fn larger_segments() {
    let mut plain = pool("large_segment_size_mb:32", 1024);
    get(&mut plain, 3);
    let mut expandable = pool("large_segment_size_mb:32,expandable_segments:True", 1024);
    get(&mut expandable, 33);
    assert_eq!((plain.figures.reserved_bytes, expandable.figures.reserved_bytes), (32 * MIB, 64 * MIB));
}
