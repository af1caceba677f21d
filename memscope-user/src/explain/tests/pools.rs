//! What pools hold.

use super::*;
use crate::analyses::fragmentation::{
    Fragmentation, FreeSpace, FreeSpaceMoment, FreeSpaceSample, PiecesVerdict, Pin, PinnedSegment,
};
use crate::analyses::inefficient::Inefficient;
use crate::analyses::judged::{Exit, Span};
use crate::analyses::waits::{PlaceWaits, WaitSum, Waits};

/// Of 1000 MiB 300 MiB are 30 %; a byte less is not, and there is no card if a request failed, or below 64 MiB.
#[test]
fn a_pool_that_keeps_much() {
    let of = |in_use: u64, reserved: u64| -> Finding {
        Ledger { pools: vec![pool_sheets(in_use, reserved)], ..ledger(2 * GIB, &[]) }.into()
    };
    let found = card(Rule::CachedHigh, &[of(700 * MIB, 1000 * MIB)]).expect("a card");
    assert_eq!((found.level, found.size_bytes), (Level::Info, 300 * MIB));
    let text = "300.00 MiB of the 1000.00 MiB that the PyTorch pool held (30 %) was not handed out, at the peak of the driver's \
        memory: kept for reuse, not leaked.";
    assert_eq!(found.text, text);
    assert_eq!(rules(&[of(700 * MIB + 1, 1000 * MIB)]), []);
    assert_eq!(rules(&[of(0, 64 * MIB - 1)]), []);
    assert_eq!(rules(&[of(700 * MIB, 1000 * MIB), Held { failed: 1, ..held(GIB) }.into()]), []);
}

/// A pool without figures of its own: the driver's memory that it was seen to hold.
#[test]
fn a_pool_without_figures_of_its_own() {
    let pool = PTA;
    let of = |cached: u64| -> Finding {
        ledger(2 * GIB, &[(Item::PoolAllocated { pool }, 700 * MIB), (Item::PoolCached { pool }, cached)]).into()
    };
    assert_eq!(rules(&[of(300 * MIB)]), [Rule::CachedHigh]);
    assert_eq!(rules(&[of(300 * MIB - 1)]), []);
}

/// A run of ten intervals, 100 MiB of 200 MiB free in the last ones.
fn pieces(high: usize) -> Finding {
    let space = |free_bytes| FreeSpace { total_bytes: 200 * MIB, free_bytes, ..FreeSpace::default() };
    let sample = |at: usize| {
        let last = space(if at >= 10 - high { 100 * MIB } else { 0 });
        FreeSpaceSample { time_ns: SECOND_NS * (11 + 10 * at as u64), last, worst: last }
    };
    Fragmentation {
        pid: PID,
        device: NPU0,
        pool: PTA,
        attached: false,
        verdict: PiecesVerdict::NotFound,
        start_ns: SECOND_NS,
        end: FreeSpaceMoment::default(),
        worst: None,
        series: (0..10).map(sample).collect(),
        confidence: Confidence::Certain,
    }
    .into()
}

/// Half of the time is enough, less is not. Memory that is free while the program ends does not count.
#[test]
fn a_pool_that_keeps_much_for_long() {
    let found = card(Rule::CachedHigh, &[pieces(5)]).expect("a card");
    assert_eq!(found.size_bytes, 100 * MIB);
    assert!(found.text.contains("(50 %) was not handed out, for at least half of the time"), "{}", found.text);
    assert_eq!(rules(&[pieces(4)]), []);
    let exit = Exit { finalized: true, called: None, ended: true, freed_blocks: 1, freed_bytes: 1 };
    let span = Span { pid: PID, start_ns: SECOND_NS, until_ns: 91 * SECOND_NS, exit, freed: Vec::new() };
    assert_eq!(rules(&[pieces(5), span.into()]), []);
}

/// 160 MiB of 290 MiB free beside live blocks, the largest piece 60 MiB: 100 MiB outside of it; a segment of 90 MiB has no block. Two segments of 80 MiB are kept by a block of
/// one place each, one of them by a smaller block of the other place, too. A request that failed has a card of its own.
#[test]
fn a_pool_in_small_pieces() {
    let stacks = |line: &str| Stacks { python: Some(Stack::keep([line], StackEnd::Root)), ..Stacks::default() };
    let pin = |addr, size_bytes, line| Pin {
        addr,
        size_bytes,
        allocation_id: addr,
        owner: None,
        age_ns: SECOND_NS,
        stacks: stacks(line),
    };
    let (keep, cache) = ("keep.py(3): keep", "cache.py(9): put");
    let segment =
        |addr, used_bytes, blocks| PinnedSegment { addr, size_bytes: 80 * MIB, used_bytes, blocks, blocks_left_out: 0 };
    let pinned = vec![
        segment(MIB, MIB, vec![pin(MIB, MIB, keep)]),
        segment(100 * MIB, 3 * MIB, vec![pin(100 * MIB, 2 * MIB, cache), pin(120 * MIB, MIB, keep)]),
    ];
    let of = |verdict| -> Fragmentation {
        let space = FreeSpace {
            total_bytes: 290 * MIB,
            used_bytes: 40 * MIB,
            free_bytes: 250 * MIB,
            largest_free_bytes: 90 * MIB,
            returnable_bytes: 90 * MIB,
            scattered_bytes: 100 * MIB,
            ratio: 0.4,
        };
        let end = FreeSpaceMoment { space, segments: 3, pinned: pinned.clone(), ..FreeSpaceMoment::default() };
        let Finding::Fragmentation(found) = pieces(0) else { panic!("pieces") };
        Fragmentation { verdict, end, ..found }
    };
    let found = card(Rule::InPieces, &[of(PiecesVerdict::Found).into()]).expect("a card");
    assert_eq!((found.level, found.size_bytes), (Level::Warning, 100 * MIB));
    let text = "160.00 MiB of the 290.00 MiB that the PyTorch pool held was free beside live blocks, in pieces of at most 60.00 MiB: \
        a larger request takes more of the device.";
    assert_eq!(found.text, text);
    let evidence = [
        "79.00 MiB free in mostly empty segments, kept by 2 blocks (2.00 MiB): keep.py:3 keep",
        "77.00 MiB free in mostly empty segments, kept by 1 block (2.00 MiB): cache.py:9 put",
    ];
    assert_eq!(found.evidence, evidence);
    assert!(advice(&found)[0].ends_with("PYTORCH_NPU_ALLOC_CONF=expandable_segments:True, unless in force"));
    assert_eq!(rules(&[of(PiecesVerdict::NotFound).into()]), []);
    assert_eq!(rules(&[of(PiecesVerdict::Found).into(), Held { failed: 1, ..held(GIB) }.into()]), []);
}

/// Of 1280 MiB 64 MiB are a twentieth. What waits is not handed out, and has this card alone.
#[test]
fn memory_that_waits_for_streams() {
    let of = |bytes: u64| -> Finding {
        let sum =
            |blocks, bytes| WaitSum { blocks, pool_peak_blocks: blocks, pool_peak_bytes: bytes, ..WaitSum::default() };
        let gather = PlaceWaits {
            stacks: python(&["fsdp.py(9): gather"]),
            record_stream: python(&["fsdp.py(20): reduce"]),
            sum: sum(2, bytes - MIB),
        };
        let ahead = PlaceWaits { stacks: python(&["copy.py(3): ahead"]), sum: sum(1, MIB), ..PlaceWaits::default() };
        Waits {
            pid: PID,
            device: NPU0,
            pool: PTA,
            reserved_peak_bytes: 1280 * MIB,
            reserved_peak_time_ns: 2 * SECOND_NS,
            all: sum(3, bytes),
            places: vec![gather, ahead],
            places_left_out: 0,
            places_full: false,
            confidence: Confidence::Certain,
        }
        .into()
    };
    let cached: Finding = Ledger { pools: vec![pool_sheets(700 * MIB, 1280 * MIB)], ..ledger(2 * GIB, &[]) }.into();
    let found = card(Rule::StreamWaits, &[of(64 * MIB), cached.clone()]).expect("a card");
    assert_eq!((found.level, found.size_bytes), (Level::Warning, 64 * MIB));
    let text = "64.00 MiB of the 1.25 GiB that the PyTorch pool held at its peak (5 %) was freed, and waited for other streams: the \
        pool took more instead.";
    assert_eq!(found.text, text);
    let evidence = [
        "63.00 MiB in 2 blocks of fsdp.py:9 gather, record_stream at fsdp.py:20 reduce",
        "1.00 MiB in 1 block of copy.py:3 ahead",
    ];
    assert_eq!(found.evidence, evidence);
    assert!(advice(&found)[0].contains("record_stream"));
    assert_eq!(rules(&[of(64 * MIB), cached]), [Rule::StreamWaits]);
    assert_eq!(rules(&[of(64 * MIB - 1)]), []);
    assert_eq!(rules(&[of(64 * MIB), Held { failed: 1, ..held(GIB) }.into()]), []);
}

/// 100 MiB of 1000 MiB are a tenth, first in step 4; the third step is not late enough.
#[test]
fn a_workspace_that_becomes_larger() {
    let of = |bytes, step| [peak(HAL, 1000 * MIB, 1), peak(WORKSPACE, bytes, step)];
    let unknown = card(Rule::WorkspaceGrowth, &of(100 * MIB, 4)).expect("a card");
    assert_eq!(unknown.size_bytes, 100 * MIB);
    assert!(
        unknown.text.starts_with("100.00 MiB in workspaces, 10 % of the driver's peak; the most was first in step 4.")
    );
    assert_eq!(advice(&unknown).len(), 2);
    let known = |value| {
        let [all, workspaces] = of(100 * MIB, 4);
        let found = card(Rule::WorkspaceGrowth, &[all, workspaces, settings(&[("TASK_QUEUE_ENABLE", value)])]);
        advice(&found.expect("a card")).len()
    };
    assert_eq!(["1", "2"].map(known), [1, 2]);
    assert_eq!(rules(&of(100 * MIB, 3)), []);
    assert_eq!(rules(&of(100 * MIB - 1, 4)), []);
}

/// In 100 s 6400 MiB·s are 64 MiB on average, which is 5 % of 1280 MiB and less of more. Without uses nothing is judged.
#[test]
fn blocks_that_are_freed_late() {
    let of = |mib_seconds: u64, peak_bytes: u64| -> [Finding; 2] {
        let mut uses = Inefficient { judged: true, ..Inefficient::new(PID, NPU0) };
        uses.kinds[1].blocks = 3;
        uses.kinds[1].wasted_byte_seconds = (mib_seconds * MIB) as f64;
        uses.looked_at = LiveSum { blocks: 10, size_bytes: GIB };
        [uses.into(), held(peak_bytes).into()]
    };
    let found = card(Rule::LateFree, &of(6400, 1280 * MIB)).expect("a card");
    let text = "64.00 MiB on average in blocks after their last use (5 % of the peak): 3 of 10 blocks were freed late.";
    assert_eq!(found.text, text);
    assert_eq!(rules(&of(6400, 1280 * MIB + 20)), []);
    assert_eq!(rules(&of(6399, 1280 * MIB)), []);
    let explained = explain(&[Inefficient::new(PID, NPU0).into(), held(GIB).into()], &end());
    assert!(explained.not_judged.iter().any(|it| it.rule == Rule::LateFree), "{explained:?}");
}
