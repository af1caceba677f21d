//! What events become, worked out by hand.

use super::*;
use crate::analyses::script::{Script, observe};
use crate::analyses::select::{Condition, Filter, Test};
use crate::backend::ascend::pools;
use crate::model::{
    Device, DeviceMemory, EventKind, Fraction, Graph, GraphChange, Mark as Marked, OwnPool, OwnRules, PoolRefused,
    PoolSet, RunEnd, Setting,
};

const MIB: u64 = 1 << 20;
const NPU: Device = Device::Npu(3);
const SEGMENT: u64 = 0x1200_0000_0000;

fn script() -> Script {
    Script::new(7, NPU)
}

fn requests_of(script: &Script, source: Source, without: Filter) -> Requests {
    let (recorder, made) = Recorder::new(source);
    observe(recorder.without(without), script.events(), &RunEnd::default());
    let mut all = made.try_recv().expect("a run");
    assert_eq!(all.len(), 1);
    all.remove(0)
}

fn requests(script: &Script) -> Requests {
    requests_of(script, Source::Capture, Filter::default())
}

/// Operations, without those that turned out to be none.
fn ops(requests: &Requests) -> Vec<Op> {
    requests.words.iter().filter(|op| !matches!(op, Op::Nothing { .. })).collect()
}

/// The same without the pool's own figure of its memory.
fn asked_and_freed(requests: &Requests) -> Vec<Op> {
    ops(requests).into_iter().filter(|op| !matches!(op, Op::Reserved { .. })).collect()
}

/// Asks the pool: gets a block of `bytes` rounded to 512; the driver gives a segment for it if one is named.
fn ask(script: &mut Script, addr: u64, bytes: u64, segment: Option<(u64, u64)>) {
    let asked_ns = script.now();
    if let Some((addr, bytes)) = segment {
        script.alloc(pools::HAL, addr, bytes);
    }
    script.pool_alloc(pools::PTA, addr, (bytes + 32).next_multiple_of(512), 20 * MIB).asked(asked_ns, 5, bytes);
}

fn refused(script: &mut Script, asked_ns: u64, size_bytes: u64) {
    script.event(EventKind::PoolRefused(PoolRefused { size_bytes, asked_ns }));
}

/// Frees a block at once.
fn free(script: &mut Script, addr: u64) {
    script.returned(pools::PTA, addr).free(pools::PTA, addr);
}

/// Driver memory taken during a request is its segment; driver memory from before is others'.
#[test]
fn segments_are_of_the_pool_and_the_rest_of_others() {
    let mut script = script();
    script.alloc(pools::HAL, 0x100, 4 * MIB);
    ask(&mut script, SEGMENT, 3 * MIB, Some((SEGMENT, 20 * MIB)));
    free(&mut script, SEGMENT);
    script.free(pools::HAL, 0x100);
    let found = requests(&script);
    let others = |bytes| Op::Others { device: 0, bytes };
    assert_eq!(
        ops(&found),
        [
            others(4 << 20),
            Op::Reserved { device: 0, bytes: 20 * MIB },
            Op::Alloc { lane: 0, asked: 3 * MIB },
            Op::Free { slot: 0 },
            others(-(4 << 20)),
        ]
    );
    assert_eq!(found.lanes, [Lane { device: 0, stream: 5, private: 0 }]);
    assert_eq!((found.devices.as_slice(), &found.segments, found.pid), (&[3][..], &vec![vec![SEGMENT]], 7));
    assert_eq!((found.count, found.frees, found.frees_in_use, &found.others_peak_bytes), (1, 1, 0, &vec![4 * MIB]));
    assert!(found.gaps.is_none());
}

/// Segments freed outside of requests: the cache was emptied. Those freed within one are part of it.
#[test]
fn emptied_caches_are_no_collections() {
    let mut script = script();
    ask(&mut script, SEGMENT, 3 * MIB, Some((SEGMENT, 20 * MIB)));
    free(&mut script, SEGMENT);
    script.free(pools::HAL, SEGMENT);
    let second = SEGMENT + (64 << 20);
    ask(&mut script, second, 3 * MIB, Some((second, 20 * MIB)));
    free(&mut script, second);
    let asked_ns = script.now();
    script.free(pools::HAL, second).alloc(pools::HAL, SEGMENT, 32 * MIB);
    script.pool_alloc(pools::PTA, SEGMENT, 30 * MIB + 512, 32 * MIB).asked(asked_ns, 5, 30 * MIB);
    let kinds = asked_and_freed(&requests(&script));
    assert_eq!(
        kinds,
        [
            Op::Alloc { lane: 0, asked: 3 * MIB },
            Op::Free { slot: 0 },
            Op::EmptyCache { device: 0 },
            Op::Alloc { lane: 0, asked: 3 * MIB },
            Op::Free { slot: 0 },
            Op::Alloc { lane: 0, asked: 30 * MIB },
        ]
    );
}

/// What is requested while a graph is captured is of a lane of its own; the pool is released with its graph.
#[test]
fn captured_graphs_have_pools() {
    let mut script = script();
    let graph = |change| EventKind::Graph(Graph { handle: 9, change });
    let place = |number: u64| SEGMENT + number * (64 << 20);
    ask(&mut script, place(0), 3 * MIB, Some((place(0), 20 * MIB)));
    script.event(graph(GraphChange::Begins { pool: (0, 0) }));
    ask(&mut script, place(1), 3 * MIB, Some((place(1), 20 * MIB)));
    script.event(graph(GraphChange::Ends));
    ask(&mut script, place(0) + 4 * MIB, 3 * MIB, None);
    script.event(graph(GraphChange::Reset)).event(graph(GraphChange::Reset));
    let found = requests(&script);
    let kinds = asked_and_freed(&found);
    let alloc = |lane| Op::Alloc { lane, asked: 3 * MIB };
    assert_eq!(kinds, [alloc(0), alloc(1), alloc(0), Op::PoolReleased { device: 0, private: 1 }]);
    assert_eq!(found.lanes.iter().map(|lane| (lane.stream, lane.private)).collect::<Vec<_>>(), [(5, 0), (5, 1)]);
}

/// A pool that a program makes itself is emptied when its object goes: its segments, not the cache.
#[test]
fn pools_of_objects_are_emptied() {
    let mut script = script();
    let pool = (0, 1);
    let place = |number: u64| SEGMENT + number * (64 << 20);
    ask(&mut script, place(0), 3 * MIB, Some((place(0), 20 * MIB)));
    free(&mut script, place(0));
    for own in [
        OwnPool::Made { handle: 9, pool, rules: OwnRules { of_thread: true, ..OwnRules::default() } },
        OwnPool::Begins { pool },
    ] {
        script.event(EventKind::OwnPool(own));
    }
    ask(&mut script, place(1), 3 * MIB, Some((place(1), 20 * MIB)));
    for own in [OwnPool::Ends { pool }, OwnPool::Released { pool }] {
        script.event(EventKind::OwnPool(own));
    }
    free(&mut script, place(1));
    script.event(EventKind::OwnPool(OwnPool::Gone { handle: 9 })).free(pools::HAL, place(1));
    ask(&mut script, place(0), 2 * MIB, None);
    let found = requests(&script);
    let kinds = asked_and_freed(&found);
    let alloc = |lane, mib| Op::Alloc { lane, asked: mib * MIB };
    let private = 1;
    assert_eq!(
        kinds,
        [
            alloc(0, 3),
            Op::Free { slot: 0 },
            alloc(1, 3),
            Op::Free { slot: 0 },
            Op::PoolReleased { device: 0, private },
            Op::PoolEmptied { device: 0, private },
            alloc(0, 2),
        ]
    );
}

/// An allocator of the program's own takes the memory of a segment away and gives it back, as vLLM's sleep mode does: the cache is not emptied,
/// nothing is expandable, and the memory is not others' on top.
#[test]
fn segments_that_sleep() {
    let mut script = script();
    let (pool, place) = ((0, 1), SEGMENT + (64 << 20));
    ask(&mut script, SEGMENT, 3 * MIB, Some((SEGMENT, 20 * MIB)));
    for own in [OwnPool::Made { handle: 9, pool, rules: OwnRules::default() }, OwnPool::Begins { pool }] {
        script.event(EventKind::OwnPool(own));
    }
    let asked_ns = script.now();
    script.reserve(place, 20 * MIB).create(0x77, 20 * MIB).map(place, 20 * MIB, 0x77);
    script.pool_alloc(pools::PTA, place, 3 * MIB + 512, 40 * MIB).asked(asked_ns, 5, 3 * MIB);
    for own in [OwnPool::Ends { pool }, OwnPool::Released { pool }] {
        script.event(EventKind::OwnPool(own));
    }
    script.unmap(place).free(pools::HAL, 0x77).create(0x78, 20 * MIB).map(place, 20 * MIB, 0x78);
    ask(&mut script, SEGMENT + 4 * MIB, 2 * MIB, None);
    let found = requests(&script);
    let kinds = asked_and_freed(&found);
    let alloc = |lane, mib| Op::Alloc { lane, asked: mib * MIB };
    let others = |bytes| Op::Others { device: 0, bytes };
    assert_eq!(kinds, [alloc(0, 3), alloc(1, 3), others(-(20 << 20)), others(20 << 20), alloc(0, 2)]);
    assert_eq!((found.expandable, &found.others_peak_bytes), (false, &vec![0]));
    assert_eq!(found.segments, [[SEGMENT, place]]);
}

/// What a script sets is kept in its order, each text once; a device's bytes are those of the last answer.
#[test]
fn scripts_set_rules() {
    let mut script = script();
    let settings = |text: &str| EventKind::PoolSet(PoolSet::Settings { text: text.into() });
    let half = Fraction::of(0.5);
    script.event(settings("a:1")).event(EventKind::PoolSet(PoolSet::Fraction(half)));
    script.event(EventKind::DeviceMemory(DeviceMemory { total_bytes: 64 * MIB, free_bytes: MIB }));
    ask(&mut script, SEGMENT, 3 * MIB, Some((SEGMENT, 20 * MIB)));
    script.event(settings("b:2")).event(settings("a:1"));
    let found = requests(&script);
    let kinds = asked_and_freed(&found);
    let settings = |index| Op::Settings { index };
    let limited = Op::Fraction { device: 0, fraction: half };
    assert_eq!(kinds, [settings(0), limited, Op::Alloc { lane: 0, asked: 3 * MIB }, settings(1), settings(0)]);
    assert_eq!(found.set_by_script(), ["a:1", "b:2", "at most 50 % of npu:3"]);
    assert_eq!(found.total_bytes, [Some(64 * MIB)]);
}

/// Calls that empty the cache count each, whether segments are freed in them or not, and those are no further ones.
#[test]
fn calls_that_empty_the_cache() {
    let mut script = script();
    script.event(EventKind::CacheEmptied);
    ask(&mut script, SEGMENT, 3 * MIB, Some((SEGMENT, 20 * MIB)));
    script.event(EventKind::CacheEmptied);
    free(&mut script, SEGMENT);
    script.event(EventKind::CacheEmptied).free(pools::HAL, SEGMENT).event(EventKind::CacheEmptied);
    let second = SEGMENT + (64 << 20);
    ask(&mut script, second, 3 * MIB, Some((second, 20 * MIB)));
    let kinds = asked_and_freed(&requests(&script));
    // The first one came before the pool had anything.
    assert_eq!(
        kinds,
        [
            Op::Alloc { lane: 0, asked: 3 * MIB },
            Op::EmptyCache { device: 0 },
            Op::Free { slot: 0 },
            Op::EmptyCache { device: 0 },
            Op::EmptyCache { device: 0 },
            Op::Alloc { lane: 0, asked: 3 * MIB },
        ]
    );
}

/// A request that the driver refuses, also behind its retry, and that gets no block has failed. Later frees are the
/// program's. The process could not have the sum of its held and refused memory.
#[test]
fn failed_requests() {
    let mut script = script();
    ask(&mut script, SEGMENT, 3 * MIB, Some((SEGMENT, 20 * MIB)));
    free(&mut script, SEGMENT);
    let asked_ns = script.now();
    script.alloc_failed(pools::HAL, 30 * MIB, (1, 1)).free(pools::HAL, SEGMENT).alloc_failed(
        pools::HAL,
        30 * MIB,
        (1, 2),
    );
    refused(&mut script, asked_ns, 29 * MIB);
    // One without a call of the driver: it is unknown.
    let asked_ns = script.now();
    refused(&mut script, asked_ns, 1);
    let found = requests(&script);
    assert_eq!(ops(&found)[3..], [Op::Failed { lane: 0, asked: 29 * MIB }]);
    assert_eq!((found.failures, found.limit_bytes.as_slice()), (1, &[Some(30 * MIB)][..]));
}

/// Others hold a part of the device: 20 MiB and 30 more are refused, and later there are 52. The limit is that of its time, and the model fails
/// where the program did.
#[test]
fn others_give_memory_back() {
    let mut script = script();
    let second = SEGMENT + (64 << 20);
    ask(&mut script, SEGMENT, 3 * MIB, Some((SEGMENT, 20 * MIB)));
    let asked_ns = script.now();
    script.alloc_failed(pools::HAL, 30 * MIB, (1, 1));
    refused(&mut script, asked_ns, 29 * MIB);
    ask(&mut script, second, 31 * MIB, Some((second, 32 * MIB)));
    let found = requests(&script);
    let kinds = asked_and_freed(&found);
    let alloc = |mib| Op::Alloc { lane: 0, asked: mib * MIB };
    let limit = |bytes| Op::Limit { device: 0, bytes };
    assert_eq!(
        kinds,
        [alloc(3), limit(50 * MIB - 1), Op::Failed { lane: 0, asked: 29 * MIB }, limit(u64::MAX), alloc(31)]
    );
    let card = found.recorded_card(0, &Card::default());
    assert_eq!(card.memory_bytes, u64::MAX);
}

/// The order matters: first the failure, then the cache that the program empties because of it.
#[test]
fn a_cache_emptied_behind_a_failure() {
    let mut script = script();
    ask(&mut script, SEGMENT, 3 * MIB, Some((SEGMENT, 20 * MIB)));
    free(&mut script, SEGMENT);
    let asked_ns = script.now();
    script.alloc_failed(pools::HAL, 30 * MIB, (1, 1)).free(pools::HAL, SEGMENT);
    refused(&mut script, asked_ns, 29 * MIB);
    assert_eq!(ops(&requests(&script))[3..], [Op::Failed { lane: 0, asked: 29 * MIB }, Op::EmptyCache { device: 0 }]);
}

/// A request that succeeds at its retry has not failed, and its frees are part of it.
#[test]
fn a_retry_is_not_of_the_program() {
    let mut script = script();
    ask(&mut script, SEGMENT, 3 * MIB, Some((SEGMENT, 20 * MIB)));
    free(&mut script, SEGMENT);
    let asked_ns = script.now();
    script.alloc_failed(pools::HAL, 30 * MIB, (1, 1)).free(pools::HAL, SEGMENT).alloc(pools::HAL, SEGMENT, 32 * MIB);
    script.pool_alloc(pools::PTA, SEGMENT, 30 * MIB + 512, 32 * MIB).asked(asked_ns, 5, 30 * MIB);
    let found = requests(&script);
    assert_eq!(ops(&found).last(), Some(&Op::Alloc { lane: 0, asked: 30 * MIB }));
    assert_eq!((found.failures, found.count), (0, 2));
    assert!(!ops(&found).iter().any(|op| matches!(op, Op::EmptyCache { .. } | Op::Failed { .. })));
}

/// A thread empties the cache and waits for the pool, where another thread gets a block of it first: segments are freed behind that.
#[test]
fn caches_emptied_beside_requests() {
    let mut script = script();
    let second = SEGMENT + (64 << 20);
    for addr in [SEGMENT, second] {
        ask(&mut script, addr, 15 * MIB, Some((addr, 16 * MIB)));
    }
    free(&mut script, SEGMENT);
    free(&mut script, second);
    script.thread(8).event(EventKind::CacheEmptied).thread(9);
    ask(&mut script, SEGMENT, 14 * MIB, None);
    script.thread(8).free(pools::HAL, second).thread(9);
    ask(&mut script, SEGMENT + 15 * MIB, MIB / 2, None);
    let kinds = asked_and_freed(&requests(&script));
    let alloc = |asked| Op::Alloc { lane: 0, asked };
    assert_eq!(kinds[4..], [alloc(14 * MIB), Op::EmptyCache { device: 0 }, alloc(MIB / 2)]);
}

/// A block that the pool reports as returned later was used by a stream until then.
#[test]
fn blocks_that_streams_use() {
    let mut script = script();
    ask(&mut script, SEGMENT, 3 * MIB, Some((SEGMENT, 20 * MIB)));
    script.free(pools::PTA, SEGMENT);
    ask(&mut script, SEGMENT + 4 * MIB, MIB, None);
    script.returned(pools::PTA, SEGMENT);
    ask(&mut script, SEGMENT, 2 * MIB, None);
    let found = requests(&script);
    assert_eq!(
        ops(&found)[1..],
        [
            Op::Alloc { lane: 0, asked: 3 * MIB },
            Op::FreeInUse { slot: 0 },
            Op::Alloc { lane: 0, asked: MIB },
            Op::Returned { slot: 0 },
            Op::Alloc { lane: 0, asked: 2 * MIB },
        ]
    );
    assert_eq!(found.frees_in_use, 1);
}

/// A request for which memory is out waits for the device: what comes back then is the retry's doing, in the model, too, and stands behind
/// it. What came back before that stands before it.
#[test]
fn blocks_that_come_back_for_a_retry() {
    let mut script = script();
    let place = |number: u64| SEGMENT + number * (64 << 20);
    for number in 0..2 {
        ask(&mut script, place(number), 30 * MIB, Some((place(number), 32 * MIB)));
        script.free(pools::PTA, place(number));
    }
    let asked_ns = script.now();
    script.returned(pools::PTA, place(0)).alloc_failed(pools::HAL, 52 * MIB, (1, 1)).returned(pools::PTA, place(1));
    script.free(pools::HAL, place(0)).free(pools::HAL, place(1)).alloc(pools::HAL, place(2), 52 * MIB);
    script.pool_alloc(pools::PTA, place(2), 50 * MIB + 512, 52 * MIB).asked(asked_ns, 5, 50 * MIB);
    let found = requests(&script);
    let kinds = asked_and_freed(&found);
    let alloc = |mib| Op::Alloc { lane: 0, asked: mib * MIB };
    assert_eq!(
        kinds,
        [
            alloc(30),
            Op::FreeInUse { slot: 0 },
            alloc(30),
            Op::FreeInUse { slot: 1 },
            Op::Returned { slot: 0 },
            alloc(50),
            Op::Returned { slot: 1 },
        ]
    );
}

/// Rows without returns of blocks have no streams: a free is a free.
#[test]
fn dumps_without_returns() {
    let mut script = script();
    script.alloc(pools::PTA, SEGMENT, MIB).free(pools::PTA, SEGMENT);
    let found = requests_of(&script, Source::Dump, Filter::default());
    assert_eq!(ops(&found), [Op::Alloc { lane: 0, asked: MIB - 32 }, Op::Free { slot: 0 }]);
    assert_eq!((found.gaps.sizes_guessed, found.gaps.without_stream), (1, 1));
    assert!(!found.gaps.is_none());
}

/// The pool's memory from before the first report is memory that stays.
#[test]
fn older_memory_counts_as_one_block() {
    let mut script = script();
    script.reported(Some((50 * MIB, 60 * MIB)));
    script.alloc(pools::PTA, SEGMENT, MIB).asked(0, 5, MIB - 32);
    let found = requests(&script);
    assert_eq!((found.gaps.older_bytes, ops(&found)[0]), (60 * MIB, Op::Others { device: 0, bytes: 60 << 20 }));
}

/// Without some blocks: their requests and frees are not there, their segments are no memory of others.
#[test]
fn requests_without_a_kind_of_blocks() {
    let mut script = script();
    ask(&mut script, SEGMENT, 3 * MIB, Some((SEGMENT, 20 * MIB)));
    ask(&mut script, SEGMENT + 4 * MIB, 100, None);
    free(&mut script, SEGMENT);
    free(&mut script, SEGMENT + 4 * MIB);
    let large = Condition { test: Test::Above(MIB), wanted: true };
    let filter = Filter { conditions: vec![large], rules: None };
    let found = requests_of(&script, Source::Capture, filter);
    assert_eq!(ops(&found)[1..], [Op::Alloc { lane: 0, asked: 100 }, Op::Free { slot: 0 }]);
    assert_eq!((found.count, found.others_peak_bytes[0]), (1, 0));
}

/// The settings that the program was started with are kept, and others are not.
#[test]
fn settings_that_a_program_was_started_with() {
    let mut script = script();
    let setting = |name, value: &str| Setting { name, value: value.to_owned() };
    let settings = [setting("TASK_QUEUE_ENABLE", "2"), setting("PYTORCH_NPU_ALLOC_CONF", "max_split_size_mb:64")];
    script.event(EventKind::Settings(settings.to_vec().into()));
    ask(&mut script, SEGMENT, 100, None);
    assert_eq!(requests(&script).configuration.as_deref(), Some("max_split_size_mb:64"));
}

/// Steps and marks are kept with their kinds.
#[test]
fn moments_have_names() {
    let mut script = script();
    ask(&mut script, SEGMENT, 100, None);
    script.step_start(4).event(EventKind::Mark(Marked::Point { text: Some(Arc::from("load")) }));
    let found = requests(&script);
    let what: Vec<&MarkOf> = found.marks.iter().map(|mark| &mark.what).collect();
    assert_eq!(what, [&MarkOf::Step(4), &MarkOf::Text(Arc::from("load"))]);
    assert_eq!(ops(&found)[2..], [Op::Mark { index: 0 }, Op::Mark { index: 1 }]);
}

/// At most 24 bytes a request, with all its kept facts.
#[test]
fn requests_are_small() {
    let mut requests = Requests::default();
    let mut slots = Slots::default();
    for number in 0..100_000 {
        let slot = slots.take();
        requests.words.push(Op::Alloc { lane: 0, asked: number });
        requests.see(number << 9, 512, None, number);
        requests.words.push(Op::Free { slot });
        slots.give_back(slot);
    }
    requests.shrink();
    assert!(requests.memory_bytes() <= 24 * 100_000, "{}", requests.memory_bytes());
    assert_eq!((requests.time_of(130), requests.agrees(5, 5 << 9, 512)), (Some(128), Some(true)));
    assert_eq!(requests.agrees(5, 6 << 9, 512), Some(false));
}
