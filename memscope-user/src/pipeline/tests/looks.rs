//! Looks at the holders of blocks: what is found is of the blocks that were live when the look began and were live still when it was read.

use super::*;
use crate::capture::{LookBlock, LookMoment, LookPlace};
use crate::model::HeldAs;

/// The order of events holds records back for this long.
const LATER_NS: u64 = 20_000_000;

fn begins(look: u32, addresses: &[u64]) -> Note {
    let blocks = addresses.iter().map(|addr| (*addr, 512)).collect();
    let place = LookPlace { pool: "HAL".to_owned(), live_blocks: 9, live_bytes: 9 * 512, blocks };
    Note::LookBegins { look, pid: 7, at: LookMoment::End, places: vec![place] }
}

fn ends(look: u32, place: u32, blocks: &[(u64, &[u8], bool)]) -> Note {
    let block = |(addr, by, garbage): &(u64, &[u8], bool)| LookBlock {
        addr: *addr,
        by: by.to_vec(),
        garbage: *garbage,
        held_as: None,
    };
    let holders = vec![("m.b".to_owned(), false), ("m.a[*]".to_owned(), true), ("m.nothing".to_owned(), true)];
    Note::LookEnds { look, pid: 7, place, holders, blocks: blocks.iter().map(block).collect(), left_out: None }
}

/// A look at three blocks, and this outcome: meanwhile the second is freed, and its address handed out again.
fn reused(ends: &Note) -> [Vec<u8>; 8] {
    [
        main(1).alloc(0x1000, 512, device(0)),
        main(2).alloc(0x2000, 512, device(0)),
        main(3).alloc(0x3000, 512, device(0)),
        at(4, 0, 0).note(&Note::Watermark { mono_ns: LATER_NS - 1 }),
        at(5, 0, 0).note(&begins(3, &[0x1000, 0x2000, 0x3000])),
        main(LATER_NS).free(0x2000),
        main(LATER_NS + 1).alloc(0x2000, 512, device(0)),
        at(LATER_NS + 2, 0, 0).note(ends),
    ]
}

/// Three blocks; the address of the second is another's when it is read, and says nothing of the first.
#[test]
fn what_is_read_is_of_the_same_blocks() {
    let found =
        ends(3, 0, &[(0x1000, &[1, 0], false), (0x2000, &[1], false), (0x3000, &[], true), (0x4000, &[9], false)]);
    let why = || Note::NoLook { look: 0, pid: 0, at: LookMoment::End, reason: "it ended".to_owned() };
    let records = [&reused(&found)[..], &[at(LATER_NS + 3, 0, 0).note(&why())]].concat();
    check_before_end(
        &records,
        &[
            "1 7 npu0 alloc 1000+512 used 512 step 0",
            "2 7 npu0 alloc 2000+512 used 1024 step 0",
            "3 7 npu0 alloc 3000+512 used 1536 step 0",
            "20000000 7 npu0 free 2000+512 used 1024 Program",
            "20000001 7 npu0 alloc 2000+512 used 1536 step 0",
            "20000002 7 npu0 looked 3 End 1000: m.a[*]×1, ?m.b×1; ring 1 none 0 of 2",
            "20000003 0 - not looked 0 End: it ended",
        ],
    );
}

/// Purposes are those of blocks that are live still, by their numbers.
#[test]
fn purposes_of_live_blocks() {
    let found = |addr, held_as| LookBlock { addr, by: vec![0], garbage: false, held_as };
    let blocks = vec![found(0x1000, Some(HeldAs::Gradient)), found(0x2000, Some(HeldAs::Weight)), found(0x3000, None)];
    let ends =
        Note::LookEnds { look: 3, pid: 7, place: 0, holders: vec![("m.a".to_owned(), true)], blocks, left_out: None };
    let purposes: Vec<Vec<(u64, HeldAs)>> = events(&reused(&ends))
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::Looked(look) => match &look.outcome {
                Looked::Place(place) => Some(place.held_as.clone()),
                Looked::Found(..) | Looked::NotLooked(_) => None,
            },
            _ => None,
        })
        .collect();
    assert_eq!(purposes, [vec![(1, HeldAs::Gradient)]]);
}

/// A look at blocks that are not live yet, one that never began, and a place that it does not have: nothing is reported.
#[test]
fn looks_at_nothing() {
    check_before_end(
        &[
            main(1).alloc(0x1000, 512, device(0)),
            at(2, 0, 0).note(&begins(1, &[0x1000])),
            at(3, 0, 0).note(&Note::Watermark { mono_ns: LATER_NS - 1 }),
            at(4, 0, 0).note(&begins(2, &[0x1000])),
            at(LATER_NS, 0, 0).note(&ends(1, 0, &[(0x1000, &[1], false)])),
            at(LATER_NS + 1, 0, 0).note(&ends(2, 1, &[(0x1000, &[1], false)])),
            at(LATER_NS + 2, 0, 0).note(&ends(9, 0, &[(0x1000, &[1], false)])),
            at(LATER_NS + 3, 0, 0).note(&ends(2, 0, &[(0x9000, &[1], false)])),
        ],
        &["1 7 npu0 alloc 1000+512 used 512 step 0"],
    );
}

/// A look at more places than fit into one record is one look.
#[test]
fn a_look_in_parts() {
    let place = |pool: &str, addr: u64| LookPlace {
        pool: pool.to_owned(),
        live_blocks: 1,
        live_bytes: 512,
        blocks: vec![(addr, 512)],
    };
    let part = |addr| Note::LookBegins { look: 1, pid: 7, at: LookMoment::Running, places: vec![place("HAL", addr)] };
    check_before_end(
        &[
            main(1).alloc(0x1000, 512, device(0)),
            main(2).alloc(0x2000, 512, device(0)),
            at(3, 0, 0).note(&Note::Watermark { mono_ns: LATER_NS - 1 }),
            at(4, 0, 0).note(&part(0x1000)),
            at(5, 0, 0).note(&part(0x2000)),
            at(LATER_NS, 0, 0).note(&ends(1, 1, &[(0x2000, &[], false)])),
        ],
        &[
            "1 7 npu0 alloc 1000+512 used 512 step 0",
            "2 7 npu0 alloc 2000+512 used 1024 step 0",
            "20000000 7 npu0 looked 1 Running 2000: ; ring 0 none 1 of 1",
        ],
    );
    let many: Vec<LookPlace> = (0..3000).map(|at| place("PTA", u64::MAX - at)).collect();
    let note = Note::LookBegins { look: 1, pid: 7, at: LookMoment::Running, places: many };
    let mut addresses = Vec::new();
    let records = at(1, 0, 0).note(&note);
    for record in Records::new(&records) {
        let Ok(Record { body: Body::Note(json), .. }) = record else { panic!("a note") };
        let Ok(Note::LookBegins { places, .. }) = Note::parse(json) else { panic!("a look") };
        addresses.extend(places.iter().map(|place| u64::MAX - place.blocks[0].0));
    }
    assert_eq!(addresses, (0..3000).collect::<Vec<u64>>());
}

/// Whether most blocks of a process wait for their turn: not those of another process, and not once they are in order.
#[test]
fn blocks_that_wait_for_their_turn() {
    let (mut pipeline, _seen, _written) = tapped(config());
    let mut behind = |records: &[Vec<u8>], pid| {
        pipeline.feed(&records.concat()).expect("fed");
        pipeline.is_behind(pid)
    };
    assert!(!behind(&[], 7));
    assert!(behind(&[main(1).alloc(0x1000, 512, device(0)), main(2).alloc(0x2000, 512, device(0))], 7));
    assert!(!behind(&[], 8));
    assert!(!behind(&[at(3, 0, 0).note(&Note::Watermark { mono_ns: LATER_NS - 1 })], 7));
    // Two are known, and as many wait; then three.
    let later = |at, addr| main(LATER_NS + at).alloc(addr, 512, device(0));
    assert!(!behind(&[later(0, 0x3000), later(1, 0x4000)], 7));
    assert!(behind(&[later(2, 0x5000)], 7));
}
