use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use super::{Entry, Item, Sheet, Sign};
use crate::analyses::script::{Script, run};
use crate::backend::ascend::pools;
use crate::model::{Block, Pool, Region, RegionKind};

const PID: u32 = 7;
const OTHER: u32 = 8;
const NPU0: Device = Device::Npu(0);
const NPU1: Device = Device::Npu(1);
const RUNTIME: Option<u8> = Some(7);
const HCCL: Option<u8> = Some(3);
const APP: Option<u8> = Some(33);
const PTA: Pool = pools::PTA;

fn script() -> Script {
    let mut script = Script::new(PID, NPU0);
    script.module(APP);
    script
}

/// All ledgers of a run. In every run their sums agree.
fn ledgers(events: &[Event]) -> Vec<Ledger> {
    let found = run(LedgerAnalysis::default(), events, &RunEnd::default());
    let ledgers: Vec<Ledger> = found
        .into_iter()
        .map(|finding| match finding {
            Finding::Ledger(ledger) => ledger,
            other => panic!("no ledger: {other:?}"),
        })
        .collect();
    for ledger in &ledgers {
        assert!(sheets(ledger).all(Sheet::agrees), "{ledger:#?}");
    }
    ledgers
}

fn sheets(ledger: &Ledger) -> impl Iterator<Item = &Sheet> {
    let own = ledger.pools.iter().flat_map(|pool| [&pool.allocated, &pool.reserved]);
    ledger.used.iter().chain([&ledger.hal]).chain(own)
}

fn of(script: &Script, moment: Moment) -> Ledger {
    let mut ledgers = ledgers(script.events());
    ledgers.retain(|ledger| ledger.moment == moment);
    assert_eq!(ledgers.len(), 1, "{ledgers:#?}");
    ledgers.remove(0)
}

fn end(script: &Script) -> Ledger {
    of(script, Moment::End)
}

/// Signed parts that are not zero.
fn parts(sheet: &Sheet) -> Vec<(Item, i128)> {
    let part = |entry: &Entry| {
        let bytes = i128::try_from(entry.size_bytes).expect("small");
        (entry.item, if entry.sign == Sign::Plus { bytes } else { -bytes })
    };
    sheet.parts.iter().map(part).filter(|(_, bytes)| *bytes != 0).collect()
}

fn allocated(pool: Pool) -> Item {
    Item::PoolAllocated { pool }
}

fn cached(pool: Pool) -> Item {
    Item::PoolCached { pool }
}

/// Pools take the blocks in their segments, the rest goes by module, and each byte counts once.
#[test]
fn driver_memory_has_one_place() {
    let mut script = script();
    script.alloc(pools::HAL, 0x1000, 100).alloc(pools::HAL, 0x2000, 50).alloc(pools::HAL, 0x3000, 7);
    script.module(RUNTIME).alloc(pools::HAL, 0x4000, 10).module(HCCL).alloc(pools::HAL, 0x5000, 20);
    script.alloc(PTA, 0x1000, 30).alloc(PTA, 0x1020, 40).alloc(PTA, 0x2000, 50).free(PTA, 0x2000);
    script.alloc(pools::PTA_WORKSPACE, 0x5000, 6);
    let ledger = end(&script);
    assert_eq!(ledger.hal.total.size_bytes, 187);
    let expected = [
        (allocated(PTA), 70),
        (cached(PTA), 80),
        (allocated(pools::PTA_WORKSPACE), 6),
        (cached(pools::PTA_WORKSPACE), 14),
        (Item::Runtime, 10),
        (Item::Rest, 7),
    ];
    assert_eq!(parts(&ledger.hal), expected);
    assert_eq!((ledger.used, ledger.attached, ledger.device), (None, false, NPU0));
}

/// Of the driver's blocks only segments of the pool are found at an attach: one without a live block of the pool is cached memory. It was the
/// driver's rest, and the pool's segments were not seen.
#[test]
fn found_segments_are_the_pools() {
    let mut script = script();
    script.older(pools::HAL, 0x1000, 100).older(pools::HAL, 0x2000, 50).older(PTA, 0x1000, 30);
    script.alloc(pools::HAL, 0x3000, 7);
    let expected = [(allocated(PTA), 30), (cached(PTA), 120), (Item::Rest, 7)];
    assert_eq!(parts(&end(&script).hal), expected);
    // The pool gives it back.
    script.free(pools::HAL, 0x2000);
    assert_eq!(parts(&end(&script).hal), [(allocated(PTA), 30), (cached(PTA), 70), (Item::Rest, 7)]);
}

/// An expandable segment: chunks of physical memory in one reservation, blocks across chunks.
#[test]
fn expandable_segments_are_their_mappings() {
    let mut script = script();
    script.reserve(0x1_0000, 0x1000).create(0xa, 0x100).map(0x1_0000, 0x100, 0xa).create(0xb, 0x100);
    script.map(0x1_0100, 0x100, 0xb).alloc(PTA, 0x1_0080, 0x100);
    let expected = [(allocated(PTA), 0x100), (cached(PTA), 0x100)];
    assert_eq!(parts(&end(&script).hal), expected);
    // The pool owns the next chunk at once, though all of it is free.
    script.create(0xc, 0x100).map(0x1_0200, 0x100, 0xc);
    let expected = [(allocated(PTA), 0x100), (cached(PTA), 0x200)];
    assert_eq!(parts(&end(&script).hal), expected);
    // Physical memory that is not mapped, or in another reservation, has no owner.
    script.create(0xd, 0x10).reserve(0x5_0000, 0x1000).create(0xe, 0x20).map(0x5_0000, 0x20, 0xe);
    let expected = [(allocated(PTA), 0x100), (cached(PTA), 0x200), (Item::Rest, 0x30)];
    assert_eq!(parts(&end(&script).hal), expected);
}

/// Sleep: the tensors stay handed out, and their memory is gone. Wake: it is there again, at the same addresses.
#[test]
fn sleep_and_wake_move_physical_memory() {
    let mut script = script();
    script.reported(Some((0x60, 0x200)));
    script.reserve(0x1_0000, 0x200).create(0xa, 0x100).map(0x1_0000, 0x100, 0xa);
    script.create(0xb, 0x100).map(0x1_0100, 0x100, 0xb).alloc(PTA, 0x1_0000, 0x60);
    let awake = [(allocated(PTA), 0x60), (cached(PTA), 0x1a0)];
    assert_eq!(parts(&end(&script).hal), awake);
    script.unmap(0x1_0000).free(pools::HAL, 0xa).unmap(0x1_0100).free(pools::HAL, 0xb);
    let asleep = end(&script);
    assert_eq!((asleep.hal.total.size_bytes, parts(&asleep.hal)), (0, vec![]));
    assert_eq!(parts(&of(&script, Moment::Peak).hal), awake);
    assert_eq!(parts(&asleep.pools[0].allocated), [(Item::PoolElsewhere { pool: PTA }, 0x60)]);
    assert_eq!(parts(&asleep.pools[0].reserved), [(Item::SegmentsOlder { pool: PTA }, 0x200)]);
    // In the driver's form the mapping ends with the memory, and the handle's value comes back.
    script.create(0xa, 0x100).map(0x1_0100, 0x100, 0xa);
    assert_eq!(parts(&end(&script).hal), [(cached(PTA), 0x100)]);
    script.create(0xb, 0x100).map(0x1_0000, 0x100, 0xb);
    assert_eq!(parts(&end(&script).hal), awake);
}

/// Attached late: the pool's own figures include unseen memory, under separate names.
#[test]
fn what_a_pool_holds_beyond_what_was_seen_is_named() {
    let mut script = script();
    script.reported(Some((1000, 4096))).alloc(PTA, 0x9000, 100).alloc(pools::HAL, 0x1000, 512).alloc(PTA, 0x1000, 64);
    let ledger = end(&script);
    assert_eq!(parts(&ledger.hal), [(allocated(PTA), 64), (cached(PTA), 448)]);
    let own = &ledger.pools[0];
    assert_eq!((own.allocated.total.size_bytes, own.reserved.total.size_bytes), (1000, 4096));
    let expected =
        [(allocated(PTA), 64), (Item::PoolElsewhere { pool: PTA }, 100), (Item::PoolOlder { pool: PTA }, 836)];
    assert_eq!(parts(&own.allocated), expected);
    let expected = [(Item::PoolSegments { pool: PTA }, 512), (Item::SegmentsOlder { pool: PTA }, 3584)];
    assert_eq!(parts(&own.reserved), expected);
}

/// A pool's figure is as old as its last report, and frees can be lost: then it is below the seen memory.
#[test]
fn what_was_seen_beyond_a_pools_figures_is_named() {
    let mut script = script();
    script
        .reported(Some((10, 100)))
        .alloc(pools::HAL, 0x1000, 100)
        .alloc(pools::HAL, 0x2000, 300)
        .alloc(PTA, 0x1000, 40);
    script.alloc(PTA, 0x2000, 1);
    let own = &end(&script).pools[0];
    assert_eq!(parts(&own.allocated), [(allocated(PTA), 41), (Item::PoolNotCounted { pool: PTA }, -31)]);
    let newer = Item::SegmentsNewer { pool: PTA };
    assert_eq!(parts(&own.reserved), [(Item::PoolSegments { pool: PTA }, 400), (newer, -300)]);
}

/// A pool that takes its memory from another pool's blocks does not count it again.
#[test]
fn nested_pools_count_once() {
    let mut script = script();
    script.reported(Some((60, 100))).alloc(pools::HAL, 0x1000, 100).alloc(PTA, 0x1000, 60);
    script.reported(Some((40, 40))).alloc(pools::ATB, 0x1000, 40);
    let ledger = end(&script);
    assert_eq!(parts(&ledger.hal), [(allocated(PTA), 60), (cached(PTA), 40)]);
    let atb = ledger.pools.iter().find(|pool| pool.pool == pools::ATB).expect("ATB");
    assert_eq!(parts(&atb.allocated), [(Item::PoolNested { pool: pools::ATB }, 40)]);
    // It says that it holds 40, of a block of 60.
    assert_eq!(parts(&atb.reserved), [(Item::SegmentsNested { pool: pools::ATB }, 40)]);
}

/// An empty block ends the one at its address: its bytes are in no sum from there on.
#[test]
fn empty_block_takes_a_place() {
    let mut script = script();
    script.alloc(pools::HAL, 0x1000, 100).alloc(PTA, 0x1000, 40);
    script.on(PID, NPU1).alloc(PTA, 0x1000, 0);
    let ledgers = ledgers(script.events());
    let ledger = ledgers.iter().find(|ledger| (ledger.device, ledger.moment) == (NPU0, Moment::End)).expect("a ledger");
    assert_eq!(parts(&ledger.hal), [(cached(PTA), 100)]);
}

/// vLLM's sleep mode: `torch_npu`'s segments are blocks of vLLM's pool, which stay while their memory is gone.
#[test]
fn segments_in_another_pool_were_seen() {
    let vllm = Pool::custom("vllm");
    let mut script = script();
    // A block of its own, in a segment of its own.
    script.alloc(pools::HAL, 0x1000, 0x40).reported(Some((0x30, 0x40))).alloc(PTA, 0x1000, 0x30).reported(None);
    // Two blocks of vLLM's, each with its memory. PTA has three blocks in the first, and none in the second yet.
    script.create(0xa, 0x100).map(0x1_0000, 0x100, 0xa).alloc(vllm, 0x1_0000, 0x100);
    script.create(0xb, 0x80).map(0x2_0000, 0x80, 0xb).alloc(vllm, 0x2_0000, 0x80);
    script
        .reported(Some((0x90, 0x1c0)))
        .alloc(PTA, 0x1_0000, 0x20)
        .alloc(PTA, 0x1_0020, 0x20)
        .alloc(PTA, 0x1_0040, 0x20);
    let reserved = |script: &Script| {
        let ledger = end(script);
        parts(&ledger.pools.iter().find(|sheets| sheets.pool == PTA).expect("PTA").reserved)
    };
    let (own, nested) = (Item::PoolSegments { pool: PTA }, Item::SegmentsNested { pool: PTA });
    let (elsewhere, older) = (Item::SegmentsElsewhere { pool: PTA }, Item::SegmentsOlder { pool: PTA });
    assert_eq!(reserved(&script), [(own, 0x40), (nested, 0x100), (older, 0x80)]);
    script.alloc(PTA, 0x2_0000, 0x10);
    assert_eq!(reserved(&script), [(own, 0x40), (nested, 0x180)]);
    // Asleep: the first one's memory is gone, then the second one's.
    script.unmap(0x1_0000).free(pools::HAL, 0xa);
    assert_eq!(reserved(&script), [(own, 0x40), (nested, 0x80), (elsewhere, 0x100)]);
    script.unmap(0x2_0000).free(pools::HAL, 0xb);
    assert_eq!(reserved(&script), [(own, 0x40), (elsewhere, 0x180)]);
    // Awake.
    script.create(0xa, 0x100).map(0x1_0000, 0x100, 0xa).create(0xb, 0x80).map(0x2_0000, 0x80, 0xb);
    assert_eq!(reserved(&script), [(own, 0x40), (nested, 0x180)]);
    // PTA gives all of the second block back; it stays a segment up to its end, which is the end of the segment.
    script.free(PTA, 0x2_0000);
    assert_eq!(reserved(&script), [(own, 0x40), (nested, 0x180)]);
    script.reported(None).free(vllm, 0x2_0000).reported(Some((0x90, 0x140))).alloc(PTA, 0x1_0060, 0x10);
    assert_eq!(reserved(&script), [(own, 0x40), (nested, 0x100)]);
}

/// Pools of the user's own are as good as the frameworks', and a program that names too many is no danger.
#[test]
fn named_pools_have_their_segments() {
    let mine = Pool::custom("mine");
    let mut script = script();
    script.alloc(mine, 0x1000, 30).alloc(pools::HAL, 0x1000, 100).free(pools::HAL, 0x1000).free(mine, 0x1000);
    script.alloc(mine, 0x1000, 30).alloc(pools::HAL, 0x1000, 100);
    assert_eq!(parts(&end(&script).hal), [(allocated(mine), 30), (cached(mine), 70)]);
    for number in 0..100 {
        script.reported(Some((1, 1))).alloc(Pool::custom(&number.to_string()), 0x9000, 5);
    }
    let ledger = end(&script);
    assert_eq!((ledger.pools.len(), parts(&ledger.hal).len()), (31, 2));
}

/// Memory mapped twice can hold more than its size; the excess is subtracted again.
#[test]
fn memory_mapped_twice_is_there_once() {
    let mut script = script();
    script.create(0xa, 100).map(0x1000, 100, 0xa).map(0x2000, 100, 0xa).alloc(PTA, 0x1000, 80).alloc(PTA, 0x2000, 90);
    let shared = Item::PoolShared { pool: PTA };
    assert_eq!(parts(&end(&script).hal), [(allocated(PTA), 170), (shared, -70)]);
    script.free(PTA, 0x1000);
    assert_eq!(parts(&end(&script).hal), [(allocated(PTA), 90), (cached(PTA), 10)]);
}

/// The device's figure: the process by module, the driver's further bytes for it, others, and the rest.
#[test]
fn device_is_accounted_for() {
    let mut script = script();
    script.alloc(pools::HAL, 0x1000, 100).module(RUNTIME).alloc(pools::HAL, 0x2000, 10);
    script.usage(1000, Some(&[(OTHER, 300), (PID, 150), (9, 400)]));
    let ledger = end(&script);
    let module = |module| Item::Module { module };
    let others = [(Item::OtherProcess { pid: 9 }, 400), (Item::OtherProcess { pid: OTHER }, 300)];
    let used = ledger.used.expect("figures");
    let expected = [(module("APP"), 100), (module("RUNTIME"), 10), (Item::BeyondHal, 40), others[0], others[1]];
    assert_eq!(parts(&used)[..5], expected);
    assert_eq!(parts(&used)[5..], [(Item::Unexplained, 150)]);
    assert_eq!((ledger.used_time_ns, ledger.capacity_bytes), (Some(2), Some(1 << 36)));

    // More came and went after the figures were taken.
    script.alloc(pools::HAL, 0x3000, 7);
    let used = end(&script).used.expect("figures");
    let expected = [(module("APP"), 100), (module("RUNTIME"), 17), (Item::AllocatedSince, -7), (Item::BeyondHal, 40)];
    assert_eq!(parts(&used)[..4], expected);
    script.free(pools::HAL, 0x1000);
    let used = end(&script).used.expect("figures");
    assert_eq!(parts(&used)[..3], [(module("RUNTIME"), 17), (Item::GivenBackSince, 93), (Item::BeyondHal, 40)]);
}

/// Figures that contradict each other come out as lines to take off.
#[test]
fn contradicting_figures_are_named() {
    let mut script = script();
    script.alloc(pools::HAL, 0x1000, 100).usage(120, Some(&[(PID, 90), (OTHER, 50)]));
    let used = end(&script).used.expect("figures");
    let expected = [
        (Item::Module { module: "APP" }, 100),
        (Item::NotInProcess, -10),
        (Item::OtherProcess { pid: OTHER }, 50),
        (Item::Overexplained, -20),
    ];
    assert_eq!(parts(&used), expected);
}

/// In a container the driver lists no process, or not ours; then the seen memory stands for the process.
#[test]
fn unlisted_processes_are_what_was_seen() {
    for processes in [None, Some(&[][..])] {
        let mut script = script();
        script.alloc(pools::HAL, 0x1000, 100).usage(300, processes);
        let used = end(&script).used.expect("figures");
        assert_eq!(parts(&used), [(Item::Module { module: "APP" }, 100), (Item::Unexplained, 200)]);
    }
    // Figures that list the process are better than younger ones that do not: it may be ending.
    let mut script = script();
    script.alloc(pools::HAL, 0x1000, 100).usage(300, Some(&[(PID, 120)])).usage(10, Some(&[]));
    assert_eq!(end(&script).used.expect("figures").total.size_bytes, 300);
}

/// Figures from before the process's first memory count, too.
#[test]
fn figures_older_than_the_account() {
    let mut script = script();
    script.usage(50, None).alloc(pools::HAL, 0x1000, 100);
    let used = end(&script).used.expect("figures");
    let expected = [(Item::Module { module: "APP" }, 100), (Item::AllocatedSince, -100), (Item::Unexplained, 50)];
    assert_eq!(parts(&used), expected);
}

/// The peak is the moment of the most driver memory; of several, that with the most handed out.
#[test]
fn peak_is_kept() {
    let mut script = script();
    script.alloc(pools::HAL, 0x1000, 100).alloc(PTA, 0x1000, 20).free(PTA, 0x1000).alloc(PTA, 0x1000, 90);
    script.free(PTA, 0x1000).alloc(PTA, 0x1000, 50).free(PTA, 0x1000).free(pools::HAL, 0x1000);
    script.alloc(pools::HAL, 0x1000, 99).alloc(PTA, 0x1000, 99);
    let peak = of(&script, Moment::Peak);
    assert_eq!(parts(&peak.hal), [(allocated(PTA), 90), (cached(PTA), 10)]);
    assert_eq!((peak.time_ns, peak.pid), (3, PID));
    // Still at its peak: the ledger of the end has it all.
    script.free(PTA, 0x1000).alloc(pools::HAL, 0x2000, 2);
    let moments: Vec<Moment> = ledgers(script.events()).iter().map(|ledger| ledger.moment).collect();
    assert_eq!(moments, [Moment::End]);
}

/// Blocks that their process or the trace ended with are in the ledger of the end; those of a program that the process
/// ran before are not.
#[test]
fn ends_of_processes_and_programs() {
    for cause in [FreeCause::ProcessEnd, FreeCause::TraceEnd] {
        let mut script = script();
        script
            .alloc(pools::HAL, 0x1000, 100)
            .alloc(PTA, 0x1000, 60)
            .end(cause, pools::HAL, 0x1000)
            .end(cause, PTA, 0x1000);
        let moments: Vec<Moment> = ledgers(script.events()).iter().map(|ledger| ledger.moment).collect();
        assert_eq!(moments, [Moment::End]);
        assert_eq!(parts(&end(&script).hal), [(allocated(PTA), 60), (cached(PTA), 40)]);
        // It goes on: that was an exec.
        script.alloc(pools::HAL, 0x1000, 30);
        assert_eq!(parts(&end(&script).hal), [(Item::Rest, 30)]);
        assert_eq!(parts(&of(&script, Moment::Peak).hal), [(allocated(PTA), 60), (cached(PTA), 40)]);
    }
}

/// Every process and device has its own; a process number can come back.
#[test]
fn accounts_are_separate() {
    let mut script = script();
    script.alloc(pools::HAL, 0x1000, 1).on(PID, NPU1).alloc(pools::HAL, 0x2000, 2);
    script.on(OTHER, NPU0).alloc(pools::HAL, 0x1000, 4).on(OTHER, Device::Cpu).alloc(pools::HOST, 0x9000, 99);
    script.process_end().on(OTHER, NPU0).alloc(pools::HAL, 0x1000, 8);
    let totals = |ledger: &Ledger| (ledger.pid, ledger.device, ledger.hal.total.size_bytes);
    let totals: Vec<_> = ledgers(script.events()).iter().map(totals).collect();
    assert_eq!(totals, [(PID, NPU0, 1), (PID, NPU1, 2), (OTHER, NPU0, 4), (OTHER, NPU0, 8)]);
}

/// A free that failed late leaves the block where it was.
#[test]
fn restored_block_is_back() {
    let mut script = script();
    script.alloc(pools::HAL, 0x1000, 100).alloc(PTA, 0x1000, 60).free(pools::HAL, 0x1000).restore(pools::HAL, 0x1000);
    assert_eq!(parts(&end(&script).hal), [(allocated(PTA), 60), (cached(PTA), 40)]);
}

/// Ledgers can be read during the run, and that changes nothing.
#[test]
fn ledgers_on_demand() {
    let mut script = script();
    script.alloc(pools::HAL, 0x1000, 100).alloc(PTA, 0x1000, 60).alloc(pools::HAL, 0x2000, 5);
    let mut analysis = LedgerAnalysis::default();
    let mut totals = Vec::new();
    for event in script.events() {
        analysis.observe(event);
        totals.extend(analysis.now().iter().map(|finding| match finding {
            Finding::Ledger(ledger) => (ledger.moment, ledger.hal.total.size_bytes),
            other => panic!("no ledger: {other:?}"),
        }));
    }
    assert_eq!(totals, [(Moment::Now, 100), (Moment::Now, 100), (Moment::Now, 105)]);
    assert_eq!(
        analysis.finish(&RunEnd::default()),
        run(LedgerAnalysis::default(), script.events(), &RunEnd::default())
    );
}

/// Losses make it doubtful.
#[test]
fn losses_make_doubtful() {
    let mut script = script();
    script.alloc(pools::HAL, 0x1000, 100);
    let found = run(LedgerAnalysis::default(), script.events(), &RunEnd { lost: 1, ..RunEnd::default() });
    assert!(matches!(&found[..], [Finding::Ledger(Ledger { confidence: Confidence::Doubtful, .. })]), "{found:?}");
}

/// Sizes that only a liar can have add up all the same.
#[test]
fn huge_sizes_add_up() {
    let mut script = script();
    script.alloc(pools::HAL, u64::MAX - 1, u64::MAX - 20).alloc(PTA, u64::MAX - 1, 9).create(0xa, 19);
    script.map(u64::MAX, u64::MAX, 0xa).reported(Some((u64::MAX, u64::MAX))).alloc(pools::ATB, u64::MAX, 1);
    let ledger = end(&script);
    assert_eq!(ledger.hal.total.size_bytes, u128::from(u64::MAX) - 1);
    assert_eq!(parts(&ledger.hal)[0], (allocated(PTA), 1));
}

/// A made-up call.
#[derive(Clone, Copy, Debug)]
enum Call {
    Alloc(Pool, u64, u64),
    Free(Pool, u64),
    Create(u64, u64),
    Map(u64, u64, u64),
    Unmap(u64),
    Reserve(u64, u64),
    Reported(u64, u64),
    Usage(u64, Option<u64>),
    Device(u32),
}

fn call() -> impl Strategy<Value = Call> {
    let pool = prop::sample::select(vec![pools::HAL, PTA, PTA, pools::ATB, pools::PTA_WORKSPACE, Pool::custom("mine")]);
    let (addr, size, handle) = (0..200_u64, 1..40_u64, 1000..1006_u64);
    prop_oneof![
        6 => (pool.clone(), addr.clone(), size.clone()).prop_map(|(pool, addr, size)| Call::Alloc(pool, addr, size)),
        4 => (pool, addr.clone()).prop_map(|(pool, addr)| Call::Free(pool, addr)),
        2 => (handle.clone(), size.clone()).prop_map(|(handle, size)| Call::Create(handle, size)),
        3 => (addr.clone(), size.clone(), handle.clone()).prop_map(|(addr, size, handle)| Call::Map(addr, size, handle)),
        1 => handle.prop_map(|handle| Call::Free(pools::HAL, handle)),
        2 => addr.clone().prop_map(Call::Unmap),
        1 => (addr.clone(), size.clone()).prop_map(|(addr, size)| Call::Reserve(addr, size * 4)),
        1 => (0..200_u64, 0..400_u64).prop_map(|(used, reserved)| Call::Reported(used, reserved)),
        1 => (0..400_u64, prop::option::of(0..400_u64)).prop_map(|(used, own)| Call::Usage(used, own)),
        1 => (0..2_u32).prop_map(Call::Device),
    ]
}

/// The same kept as lists, and counted address by address: driver blocks, mapped memory, pools' blocks.
#[derive(Default)]
struct Naive {
    driver: BTreeMap<u64, (Device, u64)>,
    behind: Vec<(u64, u64, u64)>,
    handed: Vec<(Pool, u64, u64)>,
}

fn overlap(a: (u64, u64), b: (u64, u64)) -> bool {
    a.0 < b.0 + b.1 && b.0 < a.0 + a.1
}

impl Naive {
    fn observe(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Alloc(alloc) => {
                let Block { pool, addr, size_bytes, allocation_id, device, api, .. } = alloc.block;
                if pool != pools::HAL {
                    self.handed.retain(|other| other.0 != pool || !overlap((other.1, other.2), (addr, size_bytes)));
                    return self.handed.push((pool, addr, size_bytes));
                }
                self.driver.insert(allocation_id, (device, size_bytes));
                if api == crate::model::AllocApi::Alloc {
                    self.put(addr, size_bytes, Some(allocation_id));
                }
            }
            EventKind::Free(free) if free.block.pool == pools::HAL => {
                self.driver.remove(&free.block.allocation_id);
                self.behind.retain(|(.., id)| *id != free.block.allocation_id);
            }
            EventKind::Free(free) => {
                let Block { pool, addr, size_bytes, .. } = free.block;
                self.handed.retain(|handed| *handed != (pool, addr, size_bytes));
            }
            EventKind::Region(Region {
                kind: RegionKind::Mapping, begins, addr, size_bytes, allocation_id, ..
            }) => {
                if *begins {
                    self.put(*addr, *size_bytes, *allocation_id);
                } else {
                    self.behind.retain(|(start, ..)| start != addr);
                }
            }
            _ => {}
        }
    }

    fn put(&mut self, addr: u64, size: u64, id: Option<u64>) {
        self.behind.retain(|(start, size_bytes, _)| !overlap((*start, *size_bytes), (addr, size)));
        self.behind.extend(id.map(|id| (addr, size, id)));
    }

    /// Addresses of pools' blocks with memory behind them, and without.
    fn addresses(&self) -> (u128, u128) {
        let places = self.handed.iter().flat_map(|(_, start, size)| *start..start + size);
        let backed = |addr: u64| self.behind.iter().any(|(start, size, _)| (*start..start + size).contains(&addr));
        let (with, without): (Vec<u64>, Vec<u64>) = places.partition(|addr| backed(*addr));
        (with.len() as u128, without.len() as u128)
    }
}

proptest! {
    /// For every program and every start of the trace: all sums agree, driver memory equals the live blocks, and each
    /// byte of a pool's block is in one place.
    #[test]
    fn sums_agree(calls in prop::collection::vec(call(), 0..120)) {
        let mut script = script();
        // One pool each, so that frees of evicted blocks, and double frees, come up by themselves.
        for call in calls {
            match call {
                Call::Alloc(pool, addr, size) if !script.is_live_on_any_device(pool, addr) => {
                    script.alloc(pool, addr, size);
                }
                Call::Free(pool, addr) if script.is_live(pool, addr) => {
                    script.free(pool, addr);
                }
                Call::Create(handle, size) if !script.is_live_on_any_device(pools::HAL, handle) => {
                    script.create(handle, size);
                }
                Call::Map(addr, size, handle) => {
                    script.map(addr, size, handle);
                }
                Call::Unmap(addr) => {
                    script.unmap(addr);
                }
                Call::Reserve(addr, size) => {
                    script.reserve(addr, size);
                }
                Call::Reported(used, reserved) => {
                    script.reported(Some((used, reserved)));
                }
                Call::Usage(used, own) => {
                    let list = own.map(|own| vec![(PID, own), (OTHER, 30)]);
                    script.usage(used, list.as_deref());
                }
                Call::Device(number) => {
                    script.on(PID, Device::Npu(number));
                }
                Call::Alloc(..) | Call::Free(..) | Call::Create(..) => {}
            }
        }
        let mut naive = Naive::default();
        script.events().iter().for_each(|event| naive.observe(event));
        let mut analysis = LedgerAnalysis::default();
        script.events().iter().for_each(|event| analysis.observe(event));
        let mut inside = 0;
        let mut ends = analysis.now();
        for finding in &ends {
            let Finding::Ledger(ledger) = finding else { panic!("no ledger") };
            prop_assert!(sheets(ledger).all(Sheet::agrees), "{:#?}", ledger);
            let live = naive.driver.values().filter(|(device, _)| *device == ledger.device);
            prop_assert_eq!(ledger.hal.total.size_bytes, live.map(|(_, size)| u128::from(*size)).sum::<u128>());
            let filled = |part: &&Entry| matches!(part.item, Item::PoolAllocated { .. });
            inside += ledger.hal.parts.iter().filter(filled).map(|part| part.size_bytes).sum::<u128>();
        }
        let sums = analysis.processes.get(&PID).map(|process| process.memory.pool_sums()).unwrap_or_default();
        let (with, without) = naive.addresses();
        prop_assert_eq!((sums.0, sums.0 + sums.1, sums.2), (inside, with, without));
        prop_assert!(analysis.processes.get(&PID).is_none_or(|process| process.memory.borrowed_is_right()));
        ends.clear();
        drop(ledgers(script.events()));
    }
}
