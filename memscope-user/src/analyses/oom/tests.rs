//! Requests that fail, worked out by hand.

use super::*;
use crate::analyses::script::{Script, run};
use crate::backend::ascend::pools;
use crate::model::{Device, Name, Pool, Stacks};

fn failed(size_bytes: u64, (request, attempt): (u64, u32)) -> AllocFailed {
    let caller = Some(Name::fixed(&"aclrtMalloc"));
    let (pool, status, flags, out_of_memory) = (pools::HAL, 207_001, 0, true);
    AllocFailed { pool, size_bytes, status, flags, caller, out_of_memory, request, attempt }
}

fn attempt(size_bytes: u64, number: (u64, u32)) -> EventKind {
    EventKind::AllocFailed(failed(size_bytes, number))
}

fn for_good(size_bytes: u64, number: (u64, u32)) -> EventKind {
    EventKind::OutOfMemory(OutOfMemory::Trigger(failed(size_bytes, number)))
}

/// A request that failed at once.
fn trigger(size_bytes: u64) -> EventKind {
    for_good(size_bytes, (1, 2))
}

fn find(script: &Script) -> Vec<Oom> {
    run(OomAnalysis::default(), script.events(), &RunEnd::default())
        .into_iter()
        .map(|finding| match finding {
            Finding::Oom(oom) => oom,
            other => panic!("not out of memory: {other:?}"),
        })
        .collect()
}

/// 1000 reserved, 600 of them handed out: a request of 400 would fit, one of 401 lacks a byte. Blocks of another device
/// and of the driver, which reserves nothing, do not count.
#[test]
fn verdict_compares_with_what_pools_hold() {
    for (size_bytes, missing_bytes) in [(400, 0), (401, 1)] {
        let mut script = Script::new(1, Device::Npu(0));
        script.alloc(pools::HAL, 0x9000, 5000).pool_alloc(pools::PTA, 0x1000, 600, 1000);
        script.on(1, Device::Npu(1)).pool_alloc(pools::PTA, 0x1000, 1, 9999).on(1, Device::Npu(0));
        script.event(trigger(size_bytes));
        let found = find(&script);
        assert_eq!((found[0].unused_bytes, found[0].missing_bytes, found[0].attempts), (400, missing_bytes, 2));
        let pools: Vec<_> =
            found[0].pools.iter().map(|pool| (pool.pool, pool.used_bytes, pool.reserved_bytes)).collect();
        assert_eq!(pools, [(pools::HAL, 5000, None), (pools::PTA, 600, Some(1000))]);
    }
}

/// Of 1000 bytes 500 are free, in pieces of 300 and 200. Of the second failure's segments nothing is known.
#[test]
fn largest_free_piece_is_reported() {
    let mut script = Script::new(1, Device::Npu(0));
    script.alloc(pools::HAL, 0x1000, 1000).pool_alloc(pools::PTA, 0x1000, 300, 1000);
    script.pool_alloc(pools::PTA, 0x1000 + 300, 500, 1000).free(pools::PTA, 0x1000).event(trigger(400));
    script.on(2, Device::Npu(0)).pool_alloc(pools::PTA, 0x1000, 300, 1000).event(trigger(400));
    let largest = |oom: &Oom| oom.pools.last().map(|pool| (pool.pool, pool.largest_free_bytes));
    let found: Vec<_> = find(&script).iter().map(largest).collect();
    assert_eq!(found, [Some((pools::PTA, Some(300))), Some((pools::PTA, None))]);
}

/// A freed block that waits for a stream, as while a graph is captured, is no free piece: the pool has it back behind the first request. Of the
/// block beside it, which is free at once, a hundred bytes are left.
#[test]
fn pieces_that_wait_are_not_free() {
    let mut script = Script::new(1, Device::Npu(0));
    script.alloc(pools::HAL, 0x1000, 1000);
    for (addr, size_bytes) in [(0x1000, 300), (0x1000 + 300, 500), (0x1000 + 800, 200)] {
        script.pool_alloc(pools::PTA, addr, size_bytes, 1000);
    }
    script.returned(pools::PTA, 0x1000 + 800).free(pools::PTA, 0x1000 + 800).free(pools::PTA, 0x1000);
    script.pool_alloc(pools::PTA, 0x1000 + 800, 100, 1000).event(trigger(250));
    script.returned(pools::PTA, 0x1000).event(trigger(250));
    let causes: Vec<_> = find(&script).iter().map(|oom| oom.cause).collect();
    let fragmented = Cause::Fragmented { unused_bytes: 400, largest_bytes: Some(100) };
    assert_eq!(causes, [fragmented, Cause::NotGiven { largest_bytes: 300 }]);
}

/// The last events are kept, the oldest of them dropped; those of another process are not.
#[test]
fn flight_recorder_keeps_the_last_events() {
    let mut script = Script::new(2, Device::Npu(0));
    script.launch().on(1, Device::Npu(0));
    for number in 0..100 {
        script.alloc(pools::HAL, 0x1000 + number, 8);
    }
    script.event(trigger(1));
    let found = find(&script);
    assert_eq!(found[0].last_events.len(), FLIGHT_RECORDER);
    assert_eq!(found[0].last_events[0], "37 1: HAL alloc 0x1024 8 bytes, used 296");
    assert_eq!(found[0].last_events[63], "100 1: HAL alloc 0x1063 8 bytes, used 800");
}

/// Used bytes of each pool.
fn used(oom: &Oom) -> Vec<(Pool, u64)> {
    oom.pools.iter().map(|pool| (pool.pool, pool.used_bytes)).collect()
}

/// A request fails with 900 bytes live, its program gives 700 of them back and fails once more within the second after
/// which the first failure is certain: each is reported with its own state.
#[test]
fn each_failure_has_its_own_moment() {
    let mut script = Script::new(1, Device::Npu(0));
    script.alloc(pools::HAL, 0x1000, 200).alloc(pools::HAL, 0x2000, 700).event(attempt(300, (1, 1)));
    script.free(pools::HAL, 0x2000).event(attempt(900, (2, 1))).event(for_good(300, (1, 1)));
    script.alloc(pools::HAL, 0x3000, 50).event(for_good(900, (2, 1)));
    let found = find(&script);
    assert_eq!(found.iter().map(used).collect::<Vec<_>>(), [[(pools::HAL, 900)], [(pools::HAL, 200)]]);
    assert_eq!(found.iter().map(|oom| oom.late).collect::<Vec<_>>(), [false, false]);
    // The script's clock counts events from 1: the attempts are the third and the fifth.
    let times: Vec<_> = found.iter().map(|oom| (oom.time_ns, oom.last_events.len())).collect();
    let events = script.events();
    assert_eq!(times, [(events[2].time_ns, 2), (events[4].time_ns, 4)]);
    assert!(found[1].last_events[3].ends_with("HAL free 0x2000 700 bytes, used 200"), "{:?}", found[1].last_events);
}

/// Two threads fail at the same time, on two devices.
#[test]
fn threads_and_devices_are_apart() {
    let mut script = Script::new(1, Device::Npu(0));
    script.alloc(pools::HAL, 0x1000, 100).thread(11).event(attempt(1, (1, 1)));
    script.on(1, Device::Npu(1)).thread(12).alloc(pools::HAL, 0x2000, 200).event(attempt(2, (2, 1)));
    script.on(1, Device::Npu(0)).thread(11).event(for_good(1, (1, 1)));
    script.on(1, Device::Npu(1)).thread(12).event(for_good(2, (2, 1)));
    let found = find(&script);
    let reported: Vec<_> = found.iter().map(|oom| (oom.device, oom.size_bytes, used(oom))).collect();
    let expected = [(Device::Npu(0), 1, vec![(pools::HAL, 100)]), (Device::Npu(1), 2, vec![(pools::HAL, 200)])];
    assert_eq!(reported, expected);
}

/// A driver block of 1000 bytes is a segment of the pool, in which two places hold 300 and 500; another one of 64
/// belongs to no pool. Each byte has one holder.
#[test]
fn holders_count_bytes_once() {
    let mut script = Script::new(1, Device::Npu(0));
    script.stacks(&["allocator.py(1): grow"], &[]).alloc(pools::HAL, 0x1000, 1000);
    script.stacks(&["hccl.py(2): init"], &[]).alloc(pools::HAL, 0x9000, 64);
    script.stacks(&["cache.py(3): fill"], &[]).pool_alloc(pools::PTA, 0x1000, 500, 1000);
    script.stacks(&["model.py(4): forward"], &[]);
    script.pool_alloc(pools::PTA, 0x1000 + 500, 200, 1000).pool_alloc(pools::PTA, 0x1000 + 700, 100, 1000);
    script.event(attempt(400, (1, 1))).event(for_good(400, (1, 1)));
    let found = find(&script);
    let first = |stacks: Stacks| stacks.python.map_or("", |stack| stack.texts()[0]);
    let holders = |pool: &PoolAtOom| {
        let places = pool.groups.places.iter();
        let places: Vec<_> = places.map(|sum| (first(sum.stacks), sum.live.blocks, sum.live.size_bytes)).collect();
        (pool.pool, pool.live.size_bytes, places)
    };
    let reported: Vec<_> = found[0].pools.iter().map(holders).collect();
    let expected = [
        (pools::HAL, 64, vec![("hccl.py(2): init", 1, 64)]),
        (pools::PTA, 800, vec![("cache.py(3): fill", 1, 500), ("model.py(4): forward", 2, 300)]),
    ];
    assert_eq!(reported, expected);
}

/// The pool gives 600 bytes back before its second attempt, and nothing before its third.
#[test]
fn retries_report_what_was_given_back() {
    let mut script = Script::new(1, Device::Npu(0));
    script.alloc(pools::HAL, 0x1000, 600).alloc(pools::HAL, 0x2000, 100).event(attempt(900, (1, 1)));
    script
        .free(pools::HAL, 0x1000)
        .event(attempt(900, (1, 2)))
        .event(attempt(900, (1, 3)))
        .event(for_good(900, (1, 3)));
    let found = find(&script);
    assert_eq!(found[0].retries.iter().map(|retry| retry.given_back_bytes).collect::<Vec<_>>(), [600, 0]);
    assert_eq!(used(&found[0]), [(pools::HAL, 100)]);
}

/// A request that recovers leaves nothing behind; of requests beyond the limit the state is that of the certainty, and
/// marked so.
#[test]
fn requests_that_are_followed_are_bounded() {
    let mut script = Script::new(1, Device::Npu(0));
    script.alloc(pools::HAL, 0x1000, 10);
    for request in 0..MAX_FAILING as u64 {
        script.thread(100 + request as u32).event(attempt(5, (request, 1)));
    }
    script.thread(7).event(attempt(5, (9999, 1))).alloc(pools::HAL, 0x2000, 20).event(for_good(5, (9999, 1)));
    script.thread(100).alloc_recovered(pools::HAL, 5, 0).thread(7).event(attempt(6, (10_000, 1)));
    script.free(pools::HAL, 0x2000).event(for_good(6, (10_000, 1)));
    let found = find(&script);
    let reported: Vec<_> = found.iter().map(|oom| (oom.late, used(oom))).collect();
    assert_eq!(reported, [(true, vec![(pools::HAL, 30)]), (false, vec![(pools::HAL, 30)])]);
}

/// A thread that waits for the device is silent for long, and its request is taken for failed; it succeeds after all, and nothing is reported.
/// Requests of other threads and other numbers stay.
#[test]
fn a_request_that_succeeds_after_all_is_none() {
    let mut script = Script::new(1, Device::Npu(0));
    script.alloc(pools::HAL, 0x1000, 10);
    for (thread, request) in [(7, 1), (7, 2), (8, 3)] {
        script.thread(thread).event(attempt(5, (request, 1))).event(for_good(5, (request, 1)));
    }
    script.thread(7).alloc_recovered(pools::HAL, 5, 2).thread(8).alloc_recovered(pools::HAL, 5, 1);
    let found: Vec<_> = find(&script).iter().map(|oom| oom.tid).collect();
    assert_eq!(found, [7, 8]);
}
