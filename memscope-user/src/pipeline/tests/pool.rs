//! Blocks of `torch_npu`'s pool, by what its hidden function is called with.

use super::*;
use crate::analyses::ledger::Item;
use crate::backend::ascend::pools;

const CACHING: u8 = 0;
const WORKSPACE: u8 = 1;
const MALLOC: u8 = 0;
const FREE: u8 = 1;
const BLOCK_FREE: u8 = 2;

fn totals_of(records: &[Vec<u8>]) -> Vec<(u64, Option<u64>)> {
    let totals = |event: Event| match event.kind {
        EventKind::Alloc(alloc) => Some((alloc.used_bytes, alloc.total_bytes)),
        EventKind::Free(free) => Some((free.used_bytes, free.total_bytes)),
        _ => None,
    };
    events(records).into_iter().filter_map(totals).collect()
}

/// The pool's own sums are what counts, so a late attach is right from the first event on.
#[test]
fn totals_are_the_pools_own() {
    let records = [
        main(1).start(true, Some("4,5")),
        main(2).pta((CACHING, MALLOC), 0x100, 512, [10_512, 20_000, 10_512]),
        main(3).pta((CACHING, BLOCK_FREE), 0x100, -512, [10_512, 20_000, 10_000]),
        main(4).pta((CACHING, FREE), 0x100, -512, [10_000, 20_000, 10_000]),
        main(5).pta((CACHING, FREE), 0x900, -512, [9_488, 20_000, 10_000]),
    ];
    check_before_end(
        &records,
        &[
            "1 7 - process prog",
            "2 7 npu5 alloc 100+512 used 10512 step 0",
            "3 7 npu5 returned 100+512 block Some(1) active 10000",
            "4 7 npu5 free 100+512 used 10000 Program",
            "5 7 npu5 unknown free 900 older true",
        ],
    );
    assert_eq!(totals_of(&records), [(10_512, Some(20_000)), (10_000, Some(20_000))]);
}

/// A block that another stream uses is given back first and returns to the pool later; then it is handed out again.
#[test]
fn block_returns_after_its_free() {
    check_before_end(
        &[
            main(1).pta((CACHING, MALLOC), 0x100, 512, [512, 2048, 512]),
            main(2).pta((CACHING, FREE), 0x100, -512, [0, 2048, 512]),
            main(3).pta((CACHING, BLOCK_FREE), 0x100, -512, [0, 2048, 0]),
            main(4).pta((CACHING, MALLOC), 0x100, 512, [512, 2048, 512]),
            main(5).pta((CACHING, BLOCK_FREE), 0x700, -512, [512, 2048, 512]),
        ],
        &[
            "1 7 npu1 alloc 100+512 used 512 step 0",
            "2 7 npu1 free 100+512 used 0 Program",
            "3 7 npu1 returned 100+512 block Some(1) active 0",
            "4 7 npu1 alloc 100+512 used 512 step 0",
            "5 7 npu1 returned 700+512 block None active 512",
        ],
    );
}

/// A workspace that grows reports one block twice; both allocators may use one address.
#[test]
fn workspaces_are_a_pool_of_their_own() {
    check_before_end(
        &[
            main(1).pta((CACHING, MALLOC), 0x100, 512, [512, 2048, 512]),
            main(2).pta((WORKSPACE, MALLOC), 0x100, 64, [64, 64, 64]),
            main(3).pta((WORKSPACE, MALLOC), 0x100, 64, [64, 64, 64]),
            main(4).pta((WORKSPACE, FREE), 0x100, -64, [0, 64, 0]),
            main(5).pta((CACHING, FREE), 0x100, -512, [0, 2048, 0]),
        ],
        &[
            "1 7 npu1 alloc 100+512 used 512 step 0",
            "2 7 npu1 alloc 100+64 used 64 step 0",
            "4 7 npu1 free 100+64 used 0 Program",
            "5 7 npu1 free 100+512 used 0 Program",
        ],
    );
}

/// A pool that is refused memory and asks again: one request. Where a pool reports, its report decides the outcome,
/// because a segment in parts can get its first part and fail at the next.
#[test]
fn pool_tells_whether_a_request_succeeded() {
    check_before_end(
        &[
            main(1).set_device(1),
            main(2).pta((CACHING, MALLOC), 0x100, 512, [512, 2048, 512]),
            main(3).returned("aclrtMallocPhysical", 207_001, &[1000]),
            Who::within("aclrtMallocPhysical", main(4).create(0xa0, 1000, (1, 1), (33, 1))),
            main(5).returned("aclrtMallocPhysical", 207_001, &[1000]),
            main(6).entered("aclrtGetMemInfo", &[]),
            main(7).returned("aclrtMallocPhysical", 207_001, &[1000]),
            main(8).pta((CACHING, MALLOC), 0x200, 900, [1412, 2048, 1412]),
        ],
        &[
            "2 7 npu1 alloc 100+512 used 512 step 0",
            "3 7 npu1 failed 1000 status 207001 oom request 1.1 aclrtMallocPhysical",
            "4 7 npu1 alloc a0+1000 used 1000 step 0",
            "5 7 npu1 failed 1000 status 207001 oom request 1.2 aclrtMallocPhysical",
            "7 7 npu1 failed 1000 status 207001 oom request 2.1 aclrtMallocPhysical",
            "8 7 npu1 recovered request 2 after 1",
            "8 7 npu1 alloc 200+900 used 1412 step 0",
        ],
    );
}

/// An expandable segment with a failing first attempt, as in `torch_npu` 2.9: it gives its cache back, queries the free
/// memory to reserve addresses for a new segment, and gets only a part of that. One request. After its error it queries
/// again, so the next segment is another request.
#[test]
fn expandable_segment_fails_in_parts() {
    let segment = |time_ns, addr| {
        [
            main(time_ns).entered("aclrtGetMemInfo", &[]),
            main(time_ns + 1).returned("halMemAddressReserve", 0, &[addr, 9]),
        ]
        .concat()
    };
    check_before_end(
        &[
            main(1).set_device(1),
            main(2).pta((CACHING, MALLOC), 0x100, 512, [512, 2048, 512]),
            main(3).returned("aclrtMallocPhysical", 207_001, &[1000]),
            segment(4, 0x7000),
            main(6).create(0xa0, 1000, (1, 1), (33, 1)),
            main(7).returned("aclrtMallocPhysical", 207_001, &[1000]),
            main(8).entered("aclrtGetMemInfo", &[]),
            segment(9, 0x8000),
            main(11).pta((CACHING, MALLOC), 0x200, 900, [1412, 2048, 1412]),
        ],
        &[
            "2 7 npu1 alloc 100+512 used 512 step 0",
            "3 7 npu1 failed 1000 status 207001 oom request 1.1 aclrtMallocPhysical",
            "5 7 npu1 Reservation begins 7000+9 live 9",
            "6 7 npu1 alloc a0+1000 used 1000 step 0",
            "7 7 npu1 failed 1000 status 207001 oom request 1.2 aclrtMallocPhysical",
            "10 7 npu1 Reservation begins 8000+9 live 18",
            "11 7 npu1 alloc 200+900 used 1412 step 0",
        ],
    );
}

/// Arguments of the wrong function make no sense: that is reported once, and its calls are ignored from then on.
#[test]
fn wrong_function_disables_itself() {
    let wrong = |time, kind: [u8; 8]| {
        main(time).entered("reportMemoryDataToNpuProfiler", &[u64::from_le_bytes(kind), 0x100, 512, 1, 2, 3, 0])
    };
    let records = [
        main(1).pta((CACHING, MALLOC), 0x100, 512, [512, 2048, 512]),
        wrong(2, [19, 1, 0, 0, 0, 0, 0, 0]),
        wrong(3, [20, 1, 0, 7, 0, 0, 0, 0]),
        main(4).pta((CACHING, FREE), 0x100, -512, [0, 2048, 0]),
    ];
    check_before_end(
        &records,
        &["1 7 npu1 alloc 100+512 used 512 step 0", "2 7 - disabled reportMemoryDataToNpuProfiler"],
    );
    let (mut pipeline, _seen, _written) = tapped(config());
    pipeline.feed(&records.concat()).expect("fed");
    let losses = pipeline.finish(&[]).end.losses;
    let lines: Vec<_> = losses.iter().map(|line| (line.reason.as_str(), line.count)).collect();
    assert_eq!(lines, [("from a function that was located wrongly", 3)]);
}

/// A block of 2 MiB from the pool's point of view: a segment by ACL, the runtime and the driver, then the pool's
/// report. Thread `n` of four does it at its own addresses.
fn nested(n: u64) -> Vec<Vec<u8>> {
    let who = |step: u64| at(10 * step + n, 7, 100 + n as u32);
    let (segment, size) = ((n + 1) << 32, 20 * MIB);
    // What all four have handed out after this report: step by step, thread by thread.
    let steps = [(2, 0, 5), (3, 20, 6), (4, 44, -5), (6, 24, 4)];
    let allocated = |step: u64| match steps.iter().find(|(number, ..)| *number == step) {
        Some((_, before, each)) => (before + (n.cast_signed() + 1) * each).cast_unsigned() * MIB,
        None => (44 - 4 * 5) * MIB,
    };
    let report = |step: u64, change, at: u64, bytes: i64| {
        who(step).pta((CACHING, change), segment + at, bytes, [allocated(step), 80 * MIB, 44 * MIB])
    };
    vec![
        Who::within("aclrtMallocAlign32", who(1).alloc(segment, size, device(1))),
        report(2, MALLOC, 0, 5 * MIB.cast_signed()),
        report(3, MALLOC, 5 * MIB, 6 * MIB.cast_signed()),
        report(4, BLOCK_FREE, 0, -5 * MIB.cast_signed()),
        report(5, FREE, 0, -5 * MIB.cast_signed()),
        report(6, MALLOC, 0, 4 * MIB.cast_signed()),
    ]
}

const MIB: u64 = 1 << 20;

/// Pool, ACL, runtime and driver on four threads: every byte is counted once, by the driver, and split by the pool.
#[test]
fn nested_layers_count_once() {
    let records: Vec<Vec<u8>> = (0..4).flat_map(nested).collect();
    let analyses: Vec<Box<dyn Analysis>> = vec![Box::new(crate::analyses::LedgerAnalysis::default())];
    let mut pipeline = Pipeline::new(config(), Audience::of(analyses));
    pipeline.feed(&records.concat()).expect("fed");
    let found = pipeline.finish(&[]).findings;
    let [Finding::Ledger(peak), Finding::Ledger(ledger)] = &found[..] else { panic!("not two ledgers: {found:#?}") };
    // When the first of them gives a block back, all four have handed out two.
    assert_eq!(peak.hal.bytes(Item::PoolAllocated { pool: pools::PTA }), 44 << 20);
    // The pool reports the returned block before the program's free; its figure is of after that.
    assert_eq!(peak.pools[0].allocated.total.size_bytes, 44 << 20);
    let parts: Vec<_> = ledger.hal.parts.iter().map(|part| (part.item, part.size_bytes / u128::from(MIB))).collect();
    let (pool, hal) = (pools::PTA, ledger.hal.total.size_bytes);
    let expected = [
        (Item::PoolAllocated { pool }, 4 * (6 + 4)),
        (Item::PoolCached { pool }, 4 * (20 - 10)),
        (Item::Runtime, 0),
        (Item::Hccl, 0),
        (Item::Rest, 0),
    ];
    assert_eq!((hal, ledger.device), (80 << 20, Device::Npu(1)));
    assert_eq!(parts, expected);
    // The pool's own figures are the same, so its own sheets add nothing.
    let own = &ledger.pools[0];
    assert!(own.allocated.parts.len() == 1 && own.reserved.parts.len() == 1, "{own:#?}");
    assert!(own.allocated.agrees() && own.reserved.agrees() && ledger.hal.agrees());
}

/// A block has the time of its request, and its stream. A request has no answer if its thread asks again, or gives a
/// block back, or ends: that takes no number from the events that have rows. One for zero bytes has none either, and is
/// not reported.
#[test]
fn requests_without_an_answer() {
    const ASK: &str = "NpuCachingAllocator::allocate";
    let records = [
        main(1).entered(ASK, &[300]),
        main(2).pta((CACHING, MALLOC), 0x100, 512, [512, 2048, 512]),
        main(3).entered(ASK, &[700]),
        main(4).entered(ASK, &[0]),
        main(5).entered(ASK, &[900]),
        main(6).pta((CACHING, BLOCK_FREE), 0x100, -512, [512, 2048, 0]),
        main(7).pta((CACHING, FREE), 0x100, -512, [0, 2048, 0]),
        main(8).entered(ASK, &[1000]),
    ];
    let mut refused = Vec::new();
    let mut numbers = Vec::new();
    for event in events(&records) {
        match event.kind {
            EventKind::PoolRefused(PoolRefused { size_bytes, asked_ns }) => {
                refused.push((event.time_ns - 1000, size_bytes, asked_ns - 1000));
            }
            EventKind::Alloc(alloc) => {
                let asked = Asked { time_ns: Some(1001), stream: Some(0) };
                assert_eq!((alloc.asked, alloc.block.requested_bytes), (asked, Some(300)));
                numbers.push(event.id);
            }
            _ => numbers.push(event.id),
        }
    }
    assert_eq!(refused[..2], [(4, 700, 3), (7, 900, 5)]);
    assert_eq!((refused.len(), refused[2].1), (3, 1000));
    numbers.dedup();
    assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{numbers:?}");
}

/// A request without an answer has failed for good if its thread then queried the free memory, for the text of its error, and the driver refused
/// nothing meanwhile: of 700 and, at the end, of 600. Not so one without a query (900), one for zero bytes, and one that the driver refused (500).
#[test]
fn requests_that_the_pool_refuses() {
    const ASK: &str = "NpuCachingAllocator::allocate";
    let query = |time_ns| main(time_ns).entered("aclrtGetMemInfo", &[]);
    let records = [
        main(1).entered(ASK, &[700]),
        query(2),
        query(3),
        main(4).entered(ASK, &[300]),
        main(5).pta((CACHING, MALLOC), 0x100, 512, [512, 2048, 512]),
        main(6).entered(ASK, &[0]),
        query(7),
        main(8).entered(ASK, &[900]),
        main(9).entered(ASK, &[500]),
        main(10).returned("aclrtMallocPhysical", 207_001, &[500]),
        query(11),
        query(12),
        main(13).entered(ASK, &[600]),
        query(14),
    ];
    let (mut of_pool, mut for_good) = (Vec::new(), Vec::new());
    for event in events(&records) {
        match event.kind {
            EventKind::AllocFailed(failed) if !failed.pool.is_base() => {
                let caller = failed.caller.map(Name::as_str);
                of_pool.push((failed.pool, failed.size_bytes, failed.attempt, caller));
            }
            EventKind::OutOfMemory(OutOfMemory::Trigger(failed)) => for_good.push((failed.size_bytes, failed.request)),
            _ => {}
        }
    }
    assert_eq!(of_pool, [700, 600].map(|size| (pools::PTA, size, 1, Some("NpuCachingAllocator__allocate"))));
    assert_eq!(for_good, [(700, 1), (500, 2), (600, 3)]);
}

/// Requests that succeeded after a failure, and the sizes of those that failed for good.
fn outcomes(records: &[Vec<u8>]) -> (Vec<(u64, u32)>, Vec<u64>) {
    let (mut recovered, mut for_good) = (Vec::new(), Vec::new());
    for event in events(records) {
        match event.kind {
            EventKind::AllocRecovered(done) => recovered.push((done.size_bytes, done.failed_attempts)),
            EventKind::OutOfMemory(OutOfMemory::Trigger(failed)) => for_good.push(failed.size_bytes),
            _ => {}
        }
    }
    (recovered, for_good)
}

/// A library asks the driver by itself and is refused; a block that the pool gives later is the answer to another request. The library's own
/// second attempt, and the pool's, are of their request.
#[test]
fn blocks_answer_the_request_that_they_are_for() {
    const ASK: &str = "NpuCachingAllocator::allocate";
    let refused = |time_ns, size| main(time_ns).returned("aclrtMallocAlign32", 207_001, &[size, 0]);
    let gave = |time_ns, addr| main(time_ns).pta((CACHING, MALLOC), addr, 512, [512, 2048, 512]);
    let begin = [main(1).entered(ASK, &[300]), gave(2, 0x100)];
    let of_library = [refused(3, 5000), main(4).entered(ASK, &[300]), gave(5, 0x300)];
    assert_eq!(outcomes(&[&begin[..], &of_library].concat()), (vec![], vec![5000]));
    let again = [refused(3, 5000), refused(4, 5000), main(5).alloc(0x9000, 5000, device(1)), main(6).mark("x")];
    assert_eq!(outcomes(&[&begin[..], &again].concat()), (vec![(5000, 2)], vec![]));
    let of_pool = [main(3).entered(ASK, &[300]), refused(4, 5000), gave(5, 0x300), main(6).mark("x")];
    assert_eq!(outcomes(&[&begin[..], &of_pool].concat()), (vec![(5000, 1)], vec![]));
}

/// Where a pool's requests are not seen, a launch in between shows that the thread has given up.
#[test]
fn a_launch_ends_a_request() {
    let refused = main(3).returned("aclrtMallocAlign32", 207_001, &[5000, 0]);
    let gave = |time_ns, addr| main(time_ns).pta((CACHING, MALLOC), addr, 512, [512, 2048, 512]);
    let records = [main(1).set_device(1), gave(2, 0x100), refused, main(4).launch(0x77, 0), gave(5, 0x300)];
    assert_eq!(outcomes(&records), (vec![], vec![5000]));
}
