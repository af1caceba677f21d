use std::collections::BTreeSet;

use proptest::prelude::*;

use super::FreeSpace;
use super::space::Figures;
use super::*;
use crate::analyses::script::{Script, run};
use crate::backend::ascend::pools;
use crate::model::{AllocApi, Device, FreeCause, Region, RegionKind};

const PID: u32 = 7;
const NPU0: Device = Device::Npu(0);
const PTA: Pool = pools::PTA;

fn script() -> Script {
    Script::new(PID, NPU0)
}

fn found(script: &Script) -> Vec<Fragmentation> {
    let found = run(FragmentationAnalysis::default(), script.events(), &RunEnd { time_ns: 1000, ..RunEnd::default() });
    found.into_iter().map(|it| if let Finding::Fragmentation(found) = it { found } else { panic!() }).collect()
}

fn one(script: &Script) -> Fragmentation {
    let mut found = found(script);
    assert_eq!(found.len(), 1, "{found:#?}");
    found.remove(0)
}

/// Total, used, free, largest free piece.
fn brief(space: &FreeSpace) -> [u64; 4] {
    [space.total_bytes, space.used_bytes, space.free_bytes, space.largest_free_bytes]
}

/// Start, size and used bytes of pinned segments, and starts of the blocks.
fn pinned(moment: &FreeSpaceMoment) -> Vec<(u64, u64, u64, Vec<u64>)> {
    let segment =
        |it: &PinnedSegment| (it.addr, it.size_bytes, it.used_bytes, it.blocks.iter().map(|pin| pin.addr).collect());
    moment.pinned.iter().map(segment).collect()
}

/// Two segments of 100 and 60. By hand: free pieces of 30 and 50 in the first, and of 60 in the second.
#[test]
fn free_pieces_are_listed() {
    let mut script = script();
    script.alloc(pools::HAL, 1000, 100).alloc(PTA, 1000, 10).alloc(PTA, 1010, 30).alloc(PTA, 1040, 10);
    script.alloc(pools::HAL, 2000, 60).alloc(PTA, 2000, 60).free(PTA, 1010).free(PTA, 2000);
    let found = one(&script);
    assert_eq!((found.device, found.pool, found.start_ns, found.end.segments), (NPU0, PTA, 1, 2));
    assert_eq!(brief(&found.end.space), [160, 20, 140, 60]);
    // The second segment holds nothing: nothing pins it, and the pool gives it back. 20 of 100 are used.
    let FreeSpace { returnable_bytes, scattered_bytes, ratio, .. } = found.end.space;
    assert_eq!((returnable_bytes, scattered_bytes), (60, 30));
    assert!((ratio - 30.0 / 140.0).abs() < 1e-12, "{found:#?}");
    assert_eq!(pinned(&found.end), [(1000, 100, 20, vec![1000, 1040])]);
    assert_eq!((found.end.unknown_bytes, found.end.outside_bytes, found.end.pinned_left_out), (0, 0, 0));
    let last = found.series.last().expect("a sample");
    assert_eq!((last.time_ns, brief(&last.last)), (1000, [160, 20, 140, 60]));
}

/// Eight segments of 100 MiB lose their blocks one after the other: none is an obstacle to a larger request, as the pool gives
/// them back before it fails. Not so `MindSpore`'s, and not those that a small block pins.
#[test]
fn segments_without_a_block_are_no_pieces() {
    const MIB: u64 = 1 << 20;
    let end = |pool: Pool, pinned: bool| {
        let mut script = script();
        for at in 1..=8 {
            script.alloc(pools::HAL, at * 200 * MIB, 100 * MIB).alloc(pool, at * 200 * MIB, 90 * MIB);
            script.alloc(pool, at * 200 * MIB + 95 * MIB, if pinned { MIB } else { 5 * MIB });
        }
        for at in 1..=8 {
            script.free(pool, at * 200 * MIB);
            if !pinned {
                script.free(pool, at * 200 * MIB + 95 * MIB);
            }
        }
        let found = one(script.launch());
        let FreeSpace { free_bytes, returnable_bytes, scattered_bytes, .. } = found.end.space;
        (found.verdict, [free_bytes, returnable_bytes, scattered_bytes].map(|bytes| bytes / MIB))
    };
    assert_eq!(end(PTA, false), (PiecesVerdict::NotFound, [800, 800, 0]));
    assert_eq!(end(pools::MIND_SPORE, false), (PiecesVerdict::Found, [800, 0, 700]));
    // 95 and 4 are free in each: all but one of 95.
    assert_eq!(end(PTA, true), (PiecesVerdict::Found, [792, 0, 697]));
}

/// A free piece goes on over mappings without a block; these are given back. By hand: 10, 40 of 100 and all of another 100, with
/// a block of 50 and one of 60 around.
#[test]
fn mappings_without_a_block_are_no_pieces() {
    let mut script = script();
    script.reserve(4000, 400).create(0xa, 100).create(0xb, 100).create(0xc, 100).create(0xd, 100);
    script.map(4000, 100, 0xa).alloc(PTA, 4010, 50).map(4100, 100, 0xb).map(4200, 100, 0xc).alloc(PTA, 4220, 60);
    let figures = |script: &Script| {
        let FreeSpace { free_bytes, largest_free_bytes, returnable_bytes, scattered_bytes, .. } = one(script).end.space;
        [free_bytes, largest_free_bytes, returnable_bytes, scattered_bytes]
    };
    // Pieces of 10, of 40 + 100 + 20 and of 20; without the middle mapping of 10, 60 and 20.
    assert_eq!(figures(&script), [190, 160, 100, 30]);
    // The piece at the end goes on: 20 + 100.
    script.map(4300, 100, 0xd);
    assert_eq!(figures(&script), [290, 160, 200, 30]);
    // A block in the middle of the empty one: pieces of 10, 40 + 50, 40 + 20 and 20 + 100.
    script.alloc(PTA, 4150, 10);
    assert_eq!(figures(&script), [280, 120, 100, 90]);
    script.free(PTA, 4150).unmap(4100);
    // Pieces of 10, 40, 20 and 20 + 100.
    assert_eq!(figures(&script), [190, 120, 100, 50]);
}

/// One segment of 100 with blocks of 10, 30 and 10. The last one is back before its free, so the pool says returns. The one of 30, which waits for a stream, takes
/// its place until it is back, or until its place is handed out again.
#[test]
fn what_waits_for_a_stream_is_not_free() {
    let waiting = || {
        let mut script = script();
        script.alloc(pools::HAL, 1000, 100).alloc(PTA, 1000, 10).alloc(PTA, 1010, 30).alloc(PTA, 1040, 10);
        script.returned(PTA, 1040).free(PTA, 1040).free(PTA, 1010);
        script
    };
    assert_eq!(brief(&one(&waiting()).end.space), [100, 40, 60, 60]);
    assert_eq!(brief(&one(waiting().returned(PTA, 1010)).end.space), [100, 10, 90, 90]);
    assert_eq!(brief(&one(waiting().alloc(PTA, 1010, 20)).end.space), [100, 30, 70, 70]);
    // Two pieces of 20 and 50 then.
    assert_eq!(brief(&one(waiting().returned(PTA, 1010).alloc(PTA, 1030, 20)).end.space), [100, 30, 70, 50]);
}

/// A report of a running program equals that of an end now.
#[test]
fn pieces_so_far() {
    let mut script = script();
    script.alloc(pools::HAL, 1000, 100).alloc(PTA, 1000, 10).alloc(PTA, 1010, 30).free(PTA, 1000);
    let mut analysis = FragmentationAnalysis::default();
    for event in script.events() {
        analysis.observe(event);
    }
    let now = analysis.now();
    let [Finding::Fragmentation(found)] = now.as_slice() else { panic!("{now:?}") };
    // Pieces of 10 and of 60 are free, as of the last event.
    assert_eq!((found.end.time_ns, brief(&found.end.space)), (3, [100, 30, 70, 60]));
    assert_eq!(analysis.finish(&RunEnd { time_ns: 3, ..RunEnd::default() }), now);
}

/// Half used is not mostly empty; a block across two mappings pins both; the emptiest comes first.
#[test]
fn pins_are_listed() {
    let mut script = script();
    script.alloc(pools::HAL, 1000, 100).alloc(PTA, 1000, 50);
    script.reserve(4000, 1000).create(0xa, 100).map(4000, 100, 0xa).create(0xb, 100).map(4100, 100, 0xb);
    script.stacks(&[], &["keep"]).alloc(PTA, 4090, 20).owned("PTA@mine");
    let found = one(&script);
    assert_eq!(pinned(&found.end), [(4000, 100, 10, vec![4090]), (4100, 100, 10, vec![4090])]);
    let pin = &found.end.pinned[1].blocks[0];
    assert_eq!((pin.size_bytes, pin.owner.map(Name::as_str), pin.age_ns), (20, Some("PTA@mine"), 1000 - 7));
    assert_eq!(pin.stacks.native.map(crate::model::Stack::texts), Some(vec!["keep"]));
}

/// Of many blocks and segments those beyond the limit are counted.
#[test]
fn lists_are_bounded() {
    let mut script = script();
    for segment in 1..=102 {
        let at = segment * 10_000;
        script.alloc(pools::HAL, at, 5000);
        for block in 0..12 {
            script.alloc(PTA, at + block * 10, 10);
        }
    }
    let end = one(&script).end;
    assert_eq!((end.pinned.len(), end.pinned_left_out, end.segments), (100, 2, 102));
    assert!(end.pinned.iter().all(|it| (it.blocks.len(), it.blocks_left_out) == (10, 2)));
}

/// Free memory continues from one mapping to the next of a reservation, but not from one driver block to the next, nor
/// to another reservation.
#[test]
fn mappings_are_one_piece() {
    let mut script = script();
    script.reserve(4000, 200).reserve(4200, 100).create(0xa, 100).create(0xb, 100).create(0xc, 100);
    script.map(4000, 100, 0xa).alloc(PTA, 4000, 10);
    assert_eq!(brief(&one(&script).end.space), [100, 10, 90, 90]);
    // The pool owns it at once, as it owns the reservation.
    script.map(4100, 100, 0xb);
    assert_eq!(brief(&one(&script).end.space), [200, 10, 190, 190]);
    script.map(4200, 100, 0xc).alloc(PTA, 4290, 10);
    assert_eq!(brief(&one(&script).end.space), [300, 20, 280, 190]);
    script.unmap(4100);
    assert_eq!(brief(&one(&script).end.space), [200, 20, 180, 90]);

    let mut script = self::script();
    script.alloc(pools::HAL, 1000, 100).alloc(pools::HAL, 1100, 100).alloc(PTA, 1000, 10).alloc(PTA, 1190, 10);
    assert_eq!(brief(&one(&script).end.space), [200, 20, 180, 90]);
}

/// Attached late: of unseen segments only the size is reported, by the pool's own figure.
#[test]
fn older_segments_are_unknown() {
    let mut script = script();
    script.event(EventKind::ProcessStart(ProcessStart {
        parent: 0,
        attached: true,
        command: "server".into(),
        pid_within: None,
    }));
    script.reported(Some((40, 500))).alloc(PTA, 9000, 40).alloc(pools::HAL, 1000, 100);
    script.reported(Some((50, 600))).alloc(PTA, 1000, 10);
    let end = one(&script).end;
    assert_eq!((brief(&end.space), end.unknown_bytes, end.outside_bytes), ([100, 10, 90, 90], 500, 40));
    // A segment given back leaves as much unknown, though the pool has reported no figure since.
    script.free(PTA, 1000).free(pools::HAL, 1000);
    let found = one(&script);
    assert!(found.attached);
    assert_eq!((brief(&found.end.space), found.end.unknown_bytes, found.end.segments), ([0; 4], 500, 0));
}

/// Blocks held at the end of the process count; those from before an exec do not.
#[test]
fn ends_of_processes_and_programs() {
    for cause in [FreeCause::ProcessEnd, FreeCause::TraceEnd] {
        let mut script = script();
        script.alloc(pools::HAL, 1000, 100).alloc(PTA, 1040, 20).end(cause, PTA, 1040).end(cause, pools::HAL, 1000);
        let found = one(&script);
        assert_eq!((brief(&found.end.space), found.end.time_ns), ([100, 20, 80, 40], 2));
        assert_eq!(pinned(&found.end), [(1000, 100, 20, vec![1040])]);
        script.alloc(pools::HAL, 1000, 30).alloc(PTA, 1000, 30);
        assert_eq!(brief(&one(&script).end.space), [30, 30, 0, 0]);
    }
}

/// A program that gives back every second block and ends was not fragmented while it worked: 100 of 1000 bytes were scattered
/// then, and 500 in the tear-down.
#[test]
fn a_tear_down_is_not_the_worst_moment() {
    let mut script = script();
    script.alloc(pools::HAL, 1000, 1000);
    for number in 0..10 {
        script.alloc(PTA, 1000 + 100 * number, 100);
    }
    script.free(PTA, 1200).free(PTA, 1500).alloc(PTA, 1500, 40);
    for number in [1, 3, 7, 9] {
        script.free(PTA, 1000 + 100 * number);
    }
    let one = |script: &Script| found(script)[0].worst.clone().expect("a worst moment").space;
    assert_eq!((one(&script).free_bytes, one(&script).largest_free_bytes), (200, 100));
    // With one more allocation it was no tear-down: 300, 60, 100 and 100 were free.
    script.alloc(PTA, 1900, 1);
    assert_eq!((one(&script).free_bytes, one(&script).largest_free_bytes), (560, 300));
}

/// The worst moment is reported with its pins, though they have gone; a slightly worse one does not replace it.
#[test]
fn worst_moment_is_reported() {
    let mut script = script();
    script.alloc(pools::HAL, 1000, 1000).alloc(PTA, 1000, 400).alloc(PTA, 1400, 100).alloc(PTA, 1500, 500);
    // Pieces of 400, then 400 and 500 with a block of 100 between.
    script.free(PTA, 1000).free(PTA, 1500);
    // 410 outside of the largest: not a sixteenth more.
    script.alloc(PTA, 1990, 10).alloc(PTA, 1980, 10).free(PTA, 1990).free(PTA, 1980).free(PTA, 1400);
    let found = one(&script);
    let worst = found.worst.expect("a worst moment");
    assert_eq!((brief(&worst.space), worst.time_ns), ([1000, 100, 900, 500], 5));
    assert_eq!(pinned(&worst), [(1000, 1000, 100, vec![1400])]);
    assert_eq!(brief(&found.end.space), [1000, 0, 1000, 1000]);
}

/// A process without pools, and memory of other pools, give no finding.
#[test]
fn nothing_without_segments() {
    let mut script = script();
    script.alloc(pools::HAL, 1000, 100);
    assert_eq!(found(&script), []);
    script.alloc(PTA, 1000, 50).alloc(Pool::custom("mine"), 1000, 10);
    assert_eq!(found(&script).iter().map(|it| it.pool).collect::<Vec<_>>(), [PTA]);
}

#[test]
fn losses_make_doubtful() {
    let mut script = script();
    script.alloc(pools::HAL, 1000, 100).alloc(PTA, 1000, 50);
    let found = run(FragmentationAnalysis::default(), script.events(), &RunEnd { lost: 1, ..RunEnd::default() });
    let [Finding::Fragmentation(found)] = &found[..] else { panic!("{found:?}") };
    assert_eq!(found.confidence, Confidence::Doubtful);
}

/// A made-up call of a process that has one pool, driver blocks below 128, and one reservation of the 128 above.
#[derive(Clone, Copy, Debug)]
enum Call {
    Driver(u64, u64),
    Create(u64, u64),
    FreeDriver(u64),
    Map(u64, u64, u64),
    Unmap(u64),
    Pool(u64, u64),
    FreePool(u64),
}

const RESERVED: u64 = 128;
const LIMIT: u64 = 256;

fn call() -> impl Strategy<Value = Call> {
    let (low, high, all) = (0..RESERVED - 40, RESERVED..LIMIT - 40, 0..LIMIT - 40);
    let (size, handle) = (1..40_u64, 1000..1005_u64);
    prop_oneof![
        4 => (low.clone(), 0..40_u64).prop_map(|(addr, size)| Call::Driver(addr, size)),
        2 => (handle.clone(), size.clone()).prop_map(|(handle, size)| Call::Create(handle, size)),
        2 => prop_oneof![low, handle.clone()].prop_map(Call::FreeDriver),
        3 => (high.clone(), size.clone(), handle).prop_map(|(addr, size, handle)| Call::Map(addr, size, handle)),
        1 => high.prop_map(Call::Unmap),
        8 => (all.clone(), 1..20_u64).prop_map(|(addr, size)| Call::Pool(addr, size)),
        6 => all.prop_map(Call::FreePool),
    ]
}

/// The same kept as lists, and counted address by address.
#[derive(Default)]
struct Naive {
    /// Start, end and number of the driver block.
    spans: Vec<(u64, u64, u64)>,
    handed: Vec<(u64, u64)>,
    /// Driver blocks that the pool owns.
    owned: BTreeSet<u64>,
    reservation_owned: bool,
}

fn overlap(a: (u64, u64), b: (u64, u64)) -> bool {
    a.0 < b.1 && b.0 < a.1
}

impl Naive {
    fn observe(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Alloc(alloc) => {
                let Block { pool, addr, size_bytes, allocation_id, api, .. } = alloc.block;
                let place = (addr, addr + size_bytes);
                if pool == PTA {
                    self.handed.retain(|other| !overlap(*other, place));
                    self.handed.push(place);
                } else if api == AllocApi::Alloc {
                    self.put(place, allocation_id);
                }
            }
            EventKind::Free(free) if free.block.pool == PTA => self.handed.retain(|(at, _)| *at != free.block.addr),
            EventKind::Free(free) => {
                let id = free.block.allocation_id;
                self.spans.retain(|span| span.2 != id);
                self.owned.remove(&id);
            }
            EventKind::Region(Region {
                kind: RegionKind::Mapping, begins, addr, size_bytes, allocation_id, ..
            }) => match (begins, allocation_id) {
                (true, Some(id)) => self.put((*addr, addr + size_bytes), *id),
                (true, None) => self.spans.retain(|span| !overlap((span.0, span.1), (*addr, addr + size_bytes))),
                (false, _) => self.spans.retain(|span| span.0 != *addr),
            },
            _ => {}
        }
        // The pool of a block owns its segment; in the reservation it then owns all.
        for (start, end, id) in &self.spans {
            if self.handed.iter().any(|handed| overlap(*handed, (*start, *end))) {
                self.owned.insert(*id);
            }
        }
        let is_high = |span: &&(u64, u64, u64)| span.0 >= RESERVED;
        self.reservation_owned |= self.spans.iter().filter(is_high).any(|span| self.owned.contains(&span.2));
        if self.reservation_owned {
            self.owned.extend(self.spans.iter().filter(is_high).map(|span| span.2));
        }
    }

    fn put(&mut self, place: (u64, u64), id: u64) {
        if place.0 < place.1 {
            self.spans.retain(|span| !overlap((span.0, span.1), place));
            self.spans.push((place.0, place.1, id));
        }
    }

    /// Figures, and start, used and size of each span.
    fn figures(&self) -> (Figures, Vec<(u64, u64, u64)>) {
        let span_at =
            |addr: u64| self.spans.iter().find(|span| (span.0..span.1).contains(&addr) && self.owned.contains(&span.2));
        let is_used = |addr: u64| self.handed.iter().any(|handed| (handed.0..handed.1).contains(&addr));
        let holds = |span: &(u64, u64, u64)| (span.0..span.1).any(is_used);
        let (mut total_bytes, mut free_bytes, mut largest_bytes, mut piece) = (0, 0, 0, 0);
        let (mut returnable_bytes, mut largest_kept_bytes, mut kept) = (0, 0, 0);
        let mut before = None;
        for addr in 0..LIMIT {
            let span = span_at(addr);
            total_bytes += u64::from(span.is_some());
            let same = span == before || (span.is_some() && before.is_some() && addr > RESERVED);
            before = span;
            match span {
                Some(_) if !is_used(addr) => {
                    free_bytes += 1;
                    (piece, kept) = if same { (piece, kept) } else { (0, 0) };
                    piece += 1;
                    let is_kept = span.is_some_and(holds);
                    kept += u64::from(is_kept);
                    returnable_bytes += u64::from(!is_kept);
                }
                _ => (piece, kept) = (0, 0),
            }
            (largest_bytes, largest_kept_bytes) = (largest_bytes.max(piece), largest_kept_bytes.max(kept));
        }
        let owned = self.spans.iter().filter(|span| self.owned.contains(&span.2));
        let used = |span: &(u64, u64, u64)| (span.0..span.1).filter(|addr| is_used(*addr)).count() as u64;
        let mut spans: Vec<_> = owned.map(|span| (span.0, used(span), span.1 - span.0)).collect();
        spans.sort_unstable();
        (Figures { total_bytes, free_bytes, largest_bytes, returnable_bytes, largest_kept_bytes }, spans)
    }
}

fn scripted(calls: &[Call]) -> Script {
    let mut script = script();
    script.reserve(RESERVED, LIMIT - RESERVED);
    for call in calls {
        match *call {
            Call::Driver(addr, size) if !script.is_live(pools::HAL, addr) => {
                script.alloc(pools::HAL, addr, size);
            }
            Call::Create(handle, size) if !script.is_live(pools::HAL, handle) => {
                script.create(handle, size);
            }
            Call::FreeDriver(addr) if script.is_live(pools::HAL, addr) => {
                script.free(pools::HAL, addr);
            }
            Call::Map(addr, size, handle) => {
                script.map(addr, size, handle);
            }
            Call::Unmap(addr) => {
                script.unmap(addr);
            }
            Call::Pool(addr, size) if !script.is_live(PTA, addr) => {
                script.alloc(PTA, addr, size);
            }
            Call::FreePool(addr) if script.is_live(PTA, addr) => {
                script.free(PTA, addr);
            }
            Call::Driver(..) | Call::Create(..) | Call::FreeDriver(_) | Call::Pool(..) | Call::FreePool(_) => {}
        }
    }
    script
}

proptest! {
    /// After every event the figures and the fill of every segment are those of a map of single bytes; and the worst
    /// moment of the report is within a sixteenth of the worst up to the last allocation.
    #[test]
    fn figures_are_those_of_a_byte_map(calls in prop::collection::vec(call(), 0..150)) {
        let script = scripted(&calls);
        let (mut space, mut naive, mut worst, mut worked) = (Space::default(), Naive::default(), 0, 0);
        for event in script.events() {
            space.observe(event);
            naive.observe(event);
            let (figures, spans) = naive.figures();
            prop_assert_eq!(space.figures((NPU0, PTA)), figures, "{:?}", event);
            let found: Vec<_> =
                space.spans((NPU0, PTA)).map(|it| (it.span.place.start, it.used_bytes, it.size_bytes())).collect();
            prop_assert_eq!(found, spans, "{:?}", event);
            worst = worst.max(figures.scattered_bytes());
            if matches!(event.kind, EventKind::Alloc(_)) {
                worked = worst;
            }
        }
        let (worst, found) = (worked, found(&script));
        let reported = found.first().and_then(|found| found.worst.as_ref()).map_or(0, |moment| {
            moment.space.scattered_bytes
        });
        prop_assert!(reported <= worst && worst <= reported + reported / PART, "{} {}", reported, worst);
    }
}
