//! Blocks from before the attach: what is in the books of the pool, and what calls say meanwhile.

use super::*;
use crate::backend::ascend::pools;
use crate::capture::note_record;
use crate::model::{FoundHeld, FoundPurpose, HeldAs, Looked};

const MALLOC: (u8, u8) = (0, 0);
const FREE: (u8, u8) = (0, 1);
/// The pool's figures in the books.
const USED: u64 = 4096;
const RESERVED: u64 = 1 << 20;

fn asked(time_ns: u64) -> Vec<u8> {
    note_record(time_ns, 0, &Note::PoolAsked { pid: 7 })
}

fn is_read(time_ns: u64) -> Vec<u8> {
    note_record(time_ns, 0, &Note::PoolRead { pid: 7 })
}

fn found(time_ns: u64, segments: &[(u64, u64)], blocks: &[(u64, u64)]) -> Vec<u8> {
    let note = Note::PoolFound {
        pid: 7,
        pool: None,
        device: 1,
        used_bytes: USED,
        reserved_bytes: RESERVED,
        segments: segments.to_vec(),
        blocks: blocks.iter().map(|(addr, size)| (*addr, *size, Some(size - 12))).collect(),
    };
    [note_record(time_ns, 0, &note), is_read(time_ns)].concat()
}

fn start(time_ns: u64) -> Vec<u8> {
    main(time_ns).start(true, Some("4,5"))
}

fn malloc(time_ns: u64, addr: u64, used: u64) -> Vec<u8> {
    main(time_ns).pta(MALLOC, addr, 512, [used, RESERVED, used])
}

fn free(time_ns: u64, addr: u64, used: u64) -> Vec<u8> {
    main(time_ns).pta(FREE, addr, -512, [used, RESERVED, used])
}

/// The process begins, and ends with the trace: lines between.
#[track_caller]
fn check_between(records: &[Vec<u8>], expected: &[&str]) {
    check_before_end(&[&[start(1)], records].concat(), &[&["1 7 - process prog"], expected].concat());
}

/// What is found is live from there on, on the program's second device; its free has its size, and pairs.
#[test]
fn found_blocks_end_as_others_do() {
    let records =
        [asked(2), found(10, &[], &[(0x1000, 512), (0x2000, 3584)]), free(20, 0x1000, 3584), free(21, 0x9000, 3072)];
    check_between(
        &records,
        &[
            "10 7 npu5 found 1000+512 used 4096 step 0",
            "10 7 npu5 found 2000+3584 used 4096 step 0",
            "20 7 npu5 free 1000+512 used 3584 Program",
            "21 7 npu5 unknown free 9000 older true",
        ],
    );
    let all = events(&[&[start(1)], &records[..]].concat());
    let first = all.iter().find_map(|event| if let EventKind::Alloc(alloc) = event.kind { Some(alloc) } else { None });
    let Some(Alloc { block, total_bytes, restored, promoted, .. }) = first else { panic!("a block") };
    assert_eq!((block.requested_bytes, total_bytes, block.found), (Some(500), Some(RESERVED), true));
    assert!(!restored && !promoted && block.stacks.is_empty() && block.pool == pools::PTA);
    assert!(all.iter().any(|event| matches!(event.kind, EventKind::Free(Free { block: of, .. }) if of == block)));
}

/// A purpose goes to the block that is found at its address on its device, and to no other.
#[test]
fn purposes_of_found_blocks() {
    let held = |device, blocks: &[(u64, HeldAs)]| {
        note_record(4, 0, &Note::PoolHeld { pid: 7, pool: None, device, blocks: blocks.to_vec() })
    };
    let records = [
        start(1),
        asked(2),
        malloc(3, 0x3000, 600),
        held(1, &[(0x1000, HeldAs::Weight), (0x3000, HeldAs::Gradient), (0x4000, HeldAs::Gradient)]),
        held(0, &[(0x2000, HeldAs::Weight)]),
        found(4, &[(0x1000, 8192)], &[(0x1000, 512), (0x2000, 512), (0x3000, 512)]),
    ];
    let blocks: Vec<(u64, Pool, Option<HeldAs>)> = events(&records)
        .iter()
        .filter_map(|event| match event.kind {
            EventKind::Alloc(Alloc { block, .. }) => Some((block.addr, block.pool, block.held_as)),
            _ => None,
        })
        .collect();
    let expected = [
        (0x3000, pools::PTA, None),
        (0x1000, pools::HAL, None),
        (0x1000, pools::PTA, Some(HeldAs::Weight)),
        (0x2000, pools::PTA, None),
    ];
    assert_eq!(blocks, expected);
    // Many purposes are several records, and each is there.
    let many: Vec<(u64, HeldAs)> = (1..=5000).map(|at| (at << 20, HeldAs::OptimizerState)).collect();
    let blocks: Vec<(u64, u64)> = many.iter().map(|(addr, _)| (*addr, 512)).collect();
    let held = held(1, &many);
    assert!(held.len() > 2 << 16);
    let all = events(&[start(1), asked(2), held, found(4, &[], &blocks)]);
    let of = |event: &&Event| matches!(event.kind, EventKind::Alloc(Alloc { block, .. }) if block.held_as == Some(HeldAs::OptimizerState));
    assert_eq!(all.iter().filter(of).count(), 5000);
}

/// Purposes are known later than the blocks: each goes to the block that is still the one that was found.
#[test]
fn purposes_come_later() {
    let held = |time_ns, blocks: &[(u64, HeldAs)]| {
        note_record(time_ns, 0, &Note::PoolHeld { pid: 7, pool: None, device: 1, blocks: blocks.to_vec() })
    };
    let all = [0x1000, 0x2000, 0x3000, 0x4000].map(|addr| (addr, HeldAs::KvCache));
    let records = [
        start(1),
        asked(2),
        found(3, &[], &[(0x1000, 512), (0x2000, 1024), (0x3000, 512)]),
        // Freed; freed and handed out again; never found.
        free(4, 0x1000, 3584),
        free(5, 0x3000, 3072),
        malloc(6, 0x3000, 3584),
        malloc(7, 0x4000, 4096),
        held(8, &all),
        // Known already.
        held(9, &all),
        free(10, 0x2000, 3072),
    ];
    let all = events(&records);
    let purposes: Vec<(u64, FoundHeld)> = all
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::Looked(look) => match &look.outcome {
                Looked::Found(found) => Some((event.time_ns, found.clone())),
                _ => None,
            },
            _ => None,
        })
        .collect();
    let one = FoundPurpose { number: 2, size_bytes: 1024, held_as: HeldAs::KvCache };
    assert_eq!(purposes, [(1008, FoundHeld { pool: pools::PTA, device: Device::Npu(5), blocks: vec![one] })]);
    let purpose_at_end = |event: &Event| match event.kind {
        EventKind::Free(Free { block, .. }) if block.addr == 0x2000 => Some(block.held_as),
        _ => None,
    };
    assert_eq!(all.iter().filter_map(purpose_at_end).collect::<Vec<_>>(), [Some(HeldAs::KvCache)]);
}

/// Whatever the order of the call and the reading: the call decides. The figures are those of the pool's last report.
#[test]
fn calls_count_more_than_the_books() {
    // Handed out since the reading began, and in the books: once, and not found.
    check_between(
        &[asked(2), malloc(3, 0x1000, 600), found(4, &[], &[(0x1000, 512), (0x2000, 512)])],
        &["3 7 npu5 alloc 1000+512 used 600 step 0", "4 7 npu5 found 2000+512 used 600 step 0"],
    );
    // The same before it began.
    check_between(
        &[malloc(2, 0x1000, 600), asked(3), found(4, &[], &[(0x1000, 512)])],
        &["2 7 npu5 alloc 1000+512 used 600 step 0"],
    );
    // An older block that is freed after the books were read, and before they are here.
    check_between(
        &[asked(2), free(3, 0x1000, 600), found(4, &[], &[(0x1000, 512)])],
        &["3 7 - unknown free 1000 older true"],
    );
    // One that was seen, and is freed meanwhile.
    check_between(
        &[malloc(2, 0x1000, 600), asked(3), free(4, 0x1000, 88), found(5, &[], &[(0x1000, 512)])],
        &["2 7 npu5 alloc 1000+512 used 600 step 0", "4 7 npu5 free 1000+512 used 88 Program"],
    );
    // Freed and handed out again.
    check_between(
        &[asked(2), free(3, 0x1000, 88), malloc(4, 0x1000, 600), found(5, &[], &[(0x1000, 512)])],
        &["3 7 - unknown free 1000 older true", "4 7 npu5 alloc 1000+512 used 600 step 0"],
    );
    // The pool had handed it out already when the books were read, and its report comes later.
    check_between(
        &[asked(2), found(3, &[], &[(0x1000, 512)]), malloc(4, 0x1000, 600)],
        &[
            "3 7 npu5 found 1000+512 used 4096 step 0",
            "4 7 npu5 free 1000+512 used 0 Replaced",
            "4 7 npu5 alloc 1000+512 used 600 step 0",
        ],
    );
    // The record of the call comes later than the note, and is older.
    check_between(
        &[asked(2), found(4, &[], &[(0x1000, 512)]), free(3, 0x1000, 600)],
        &["3 7 - unknown free 1000 older true"],
    );
}

/// Segments are the driver's blocks, and come first; one that was seen, or was given back meanwhile, is not found.
#[test]
fn segments_are_the_drivers() {
    check_between(
        &[
            main(2).alloc(0x10_0000, 4096, device(5)),
            asked(3),
            main(4).free(0x30_0000),
            found(10_000_000, &[(0x10_0000, 4096), (0x20_0000, 8192), (0x30_0000, 4096)], &[(0x20_0000, 512)]),
            main(11_000_000).free(0x20_0000),
        ],
        &[
            "2 7 npu5 alloc 100000+4096 used 4096 step 0",
            "4 7 npu5 unknown free 300000 older true",
            "10000000 7 npu5 found 200000+8192 used 12288 step 0",
            "10000000 7 npu5 found 200000+512 used 4096 step 0",
            "11000000 7 npu5 free 200000+8192 used 4096 Program",
        ],
    );
}

/// Notes of books without a request, of a program that is another by now, of a pool that is not followed: nothing is found.
#[test]
fn nothing_is_found() {
    let books = |time_ns| found(time_ns, &[(0x20_0000, 8192)], &[(0x1000, 512)]);
    check_between(&[books(2)], &[]);
    check_between(&[asked(2), is_read(3), books(4)], &[]);
    check_between(&[asked(2), main(3).exec(), books(4)], &[]);
    // No address and no size.
    check_between(&[asked(2), found(4, &[(0, 5), (5, 0)], &[(0, 512)])], &[]);
    let other = note_record(3, 0, &Note::PoolAsked { pid: 8 });
    check_between(&[other, books(4)], &[]);
}

/// Books of more blocks than fit one record: each of them, once, in order, at one moment.
#[test]
fn large_books_are_whole() {
    const BLOCKS: u64 = 10_000;
    let blocks: Vec<(u64, u64)> = (1..=BLOCKS).map(|at| (at << 20, 512 * at)).collect();
    let segments: Vec<(u64, u64)> = (1..=5000).map(|at| (at << 40, 1 << 30)).collect();
    let note = found(5, &segments, &blocks);
    assert!(note.len() > 4 << 16);
    let found: Vec<(u64, u64)> = events(&[start(1), asked(2), note])
        .iter()
        .filter_map(|event| match event.kind {
            EventKind::Alloc(Alloc { block, .. }) if event.time_ns == 1005 => Some((block.addr, block.size_bytes)),
            _ => None,
        })
        .collect();
    assert_eq!(found, [segments, blocks].concat());
}

/// A program with blocks at a few addresses, its own books, and a pool that reports by calls.
struct Program {
    /// Sizes of live blocks.
    live: Vec<Option<u64>>,
    random: Random,
}

impl Program {
    const PLACES: usize = 12;

    fn new(seed: u64) -> Self {
        Self { live: vec![None; Self::PLACES], random: Random(seed) }
    }

    const fn addr(place: usize) -> u64 {
        0x1000 * (place as u64 + 1)
    }

    fn used(&self) -> u64 {
        self.live.iter().flatten().sum()
    }

    /// Hands a block out, or takes one back; the report.
    fn act(&mut self, time_ns: u64) -> Vec<u8> {
        let place = self.random.below(Self::PLACES);
        let (kind, size) = if let Some(size) = self.live[place].take() {
            (FREE, -size.cast_signed())
        } else {
            let size = 512 * (1 + self.random.below(100) as u64);
            self.live[place] = Some(size);
            (MALLOC, size.cast_signed())
        };
        main(time_ns).pta(kind, Self::addr(place), size, [self.used(), RESERVED, self.used()])
    }

    fn books(&self) -> Vec<(u64, u64)> {
        let blocks = self.live.iter().enumerate();
        blocks.filter_map(|(place, size)| Some((Self::addr(place), (*size)?))).collect()
    }
}

/// A trace that attaches at some moment of a program: calls before it, until the books are read, until that is known, and behind.
/// `torn`: the books have the effect of a call whose report comes behind them.
fn attached(seed: u64, [before, meanwhile, late, behind]: [u64; 4], torn: bool) -> (Vec<Vec<u8>>, Program) {
    let mut program = Program::new(seed);
    (0..before).for_each(|_| drop(program.act(0)));
    let mut records = vec![start(1), asked(2)];
    records.extend((0..meanwhile).map(|at| program.act(10 + at)));
    let torn = torn.then(|| program.act(300));
    let books = program.books();
    if torn.is_none() {
        records.extend((0..late).map(|at| program.act(100 + at)));
    }
    records.push(found(200, &[], &books));
    records.extend(torn);
    records.extend((0..behind).map(|at| program.act(400 + at)));
    (records, program)
}

/// Live blocks at the end, and frees of unknown blocks after the books were read.
fn live_at_the_end(records: &[Vec<u8>]) -> (Vec<(u64, u64)>, usize) {
    let (mut live, mut unknown, mut is_read) = (HashMap::default(), 0, false);
    for event in events(records) {
        match event.kind {
            EventKind::Alloc(Alloc { block, .. }) => {
                is_read |= block.found;
                let before = live.insert(block.addr, block.size_bytes);
                assert_eq!(before, None, "{:x} twice", block.addr);
            }
            EventKind::Free(Free { block, cause, .. }) if cause.gave_back() => {
                assert_eq!(live.remove(&block.addr), Some(block.size_bytes), "{:x}", block.addr);
            }
            EventKind::UnknownFree(_) => unknown += usize::from(is_read),
            _ => {}
        }
    }
    let mut live: Vec<(u64, u64)> = live.into_iter().collect();
    live.sort_unstable();
    (live, unknown)
}

proptest! {
    /// Attached at any moment, with books read at any moment after that and known at any later one: the live blocks are the program's own,
    /// and each later free is one of them. Of a call that is just being reported, the free may be of an unknown block.
    #[test]
    fn live_blocks_are_the_programs(
        seed in 1..u64::MAX,
        calls in [0..40_u64, 0..10, 0..10, 0..60],
        torn in any::<bool>(),
    ) {
        let (records, program) = attached(seed, calls, torn);
        let (live, unknown) = live_at_the_end(&records);
        prop_assert_eq!(live, program.books());
        prop_assert!(unknown <= usize::from(torn), "{unknown}");
    }
}

/// A pool that reports no sums has those of its known blocks, and its purposes go to its own blocks.
#[test]
fn pools_without_reports() {
    let pool = || Some("MINDSPORE".to_owned());
    let blocks = vec![(0x1000, 512, None), (0x2000, 1024, None)];
    let found = Note::PoolFound {
        pid: 7,
        pool: pool(),
        device: 1,
        used_bytes: 99,
        reserved_bytes: 9999,
        segments: vec![],
        blocks,
    };
    let held = Note::PoolHeld { pid: 7, pool: pool(), device: 1, blocks: vec![(0x2000, HeldAs::Weight)] };
    let records =
        [start(1), asked(2), malloc(3, 0x1000, 600), note_record(4, 0, &found), is_read(4), note_record(5, 0, &held)];
    let all = events(&records);
    let lines: Vec<String> = all
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::Alloc(Alloc { block, total_bytes, .. }) => {
                Some(format!("{} {total_bytes:?} {}", block.pool.event_type(), line(event)))
            }
            EventKind::Looked(look) => match &look.outcome {
                Looked::Found(found) => Some(format!("{} {:?}", found.pool.event_type(), found.blocks)),
                _ => None,
            },
            _ => None,
        })
        .collect();
    assert_eq!(
        lines,
        [
            "PTA Some(1048576) 3 7 npu5 alloc 1000+512 used 600 step 0",
            "MINDSPORE None 4 7 npu5 found 1000+512 used 1536 step 0",
            "MINDSPORE None 4 7 npu5 found 2000+1024 used 1536 step 0",
            "MINDSPORE [FoundPurpose { number: 3, size_bytes: 1024, held_as: Weight }]",
        ]
    );
}

/// A segment from before that the program had mapped itself, as vLLM does: asleep its memory is gone, and awake it is back, once. An unmapping that the
/// driver refuses leaves it where it was.
#[test]
fn segments_that_are_unmapped() {
    const MIB: u64 = 1 << 20;
    const AT: u64 = 0x7000_0000;
    check_between(
        &[
            asked(2),
            found(10, &[(AT, 2 * MIB)], &[]),
            main(11).entered("halMemUnmap", &[AT]),
            main(12).returned("halMemUnmap", 3, &[]),
            main(20).entered("halMemUnmap", &[AT]),
            main(21).returned("halMemUnmap", 0, &[]),
            main(22).entered("halMemUnmap", &[AT]),
            main(30).create(0xa0, 2 * MIB, (1, 1), (33, 1)),
            main(31).returned("halMemMap", 0, &[AT, 2 * MIB, 0xa0]),
        ],
        &[
            "10 7 npu5 found 70000000+2097152 used 2097152 step 0",
            "20 7 npu5 free 70000000+2097152 used 0 Program",
            "30 7 npu1 alloc a0+2097152 used 2097152 step 0",
            "31 7 - Mapping begins 70000000+2097152 live 2097152",
        ],
    );
}
