//! Tests of `verdict`.

use super::*;
use crate::watch::Range;

fn look(item: &str, call: u64, phase: Phase) -> Look {
    let range = Range { addr: 0x1000, size_bytes: 16 };
    let block = Block { name: "w".into(), index: 0, range, freed_before: 0, since_ns: 0 };
    Look { block, item: item.into(), call, phase, queued: false }
}

fn side(item: &str, call: u64, phase: Phase, tid: u32) -> Side {
    Side { item: item.into(), call, phase, tid, queued: false }
}

/// A sequence of readings on thread 1: 0 is unread. Gives the first change.
fn first(readings: &[(&str, u64, Phase, u64)]) -> Option<Change> {
    let mut verdicts = Verdicts::default();
    for &(item, call, phase, sum) in readings {
        let reading = if sum == 0 { Reading::Unread("error 7".into()) } else { Reading::Sum(sum) };
        verdicts.take(&look(item, call, phase), 1, 0, &reading);
    }
    let verdict = verdicts.blocks().next().map(|(_, verdict)| verdict.clone());
    verdict.and_then(|verdict| verdict.first)
}

use Phase::{After, Before};

/// `START` writes its output again in each step: that is no change. The culprit of the second step is one.
#[test]
fn windows_are_judged_one_by_one() {
    let mut verdicts = Verdicts::default();
    let block = look("start", 1, After).block;
    let mut take = |item, call, phase, sum| {
        if item == "start" && phase == After {
            verdicts.window(&block);
        }
        verdicts.take(&look(item, call, phase), 1, 0, &Reading::Sum(sum))
    };
    assert_eq!(take("start", 1, After, 5), None);
    assert_eq!(take("start", 1, Before, 5), None);
    assert_eq!(take("start", 2, After, 6), None, "another output");
    assert_eq!(take("op", 1, Before, 6), None);
    assert_eq!(take("op", 1, After, 7).expect("a change").when(), "during `op` (call 1, thread 1)");
}

/// A block that no look has reached has a verdict that shows it.
#[test]
fn window_without_a_look() {
    let mut verdicts = Verdicts::default();
    verdicts.window(&look("start", 1, After).block);
    let all: Vec<_> = verdicts.blocks().map(|(_, verdict)| (verdict.read, verdict.changes)).collect();
    assert_eq!(all, [(0, 0)]);
}

#[test]
fn operator_between_whose_sides_it_changed() {
    let found =
        first(&[("a", 1, Before, 5), ("a", 1, After, 5), ("b", 1, Before, 5), ("b", 1, After, 6), ("c", 1, After, 7)]);
    let found = found.expect("a change");
    assert_eq!((found.from_sum, found.to_sum), (5, 6));
    assert_eq!(found.operator(), Some(&side("b", 1, After, 1)));
    assert_eq!(first(&[("a", 1, Before, 5), ("a", 1, After, 5)]), None);
}

/// An operator that its thread may only have put into a queue is not blamed.
#[test]
fn queued_operators_are_not_blamed() {
    let mut verdicts = Verdicts::default();
    let mut take = |phase, sum| {
        let look = Look { queued: true, ..look("op", 1, phase) };
        verdicts.take(&look, 1, 0, &Reading::Sum(sum))
    };
    assert_eq!(take(Before, 5), None);
    let found = take(After, 6).expect("a change");
    assert_eq!(found.operator(), None);
    let sides = "before `op` (call 1, thread 1) and after `op` (call 1, thread 1)";
    assert_eq!(found.when(), format!("between {sides} (which a queue may launch at another time)"));
}

/// A block that changes between operators is no operator's doing.
#[test]
fn change_between_operators() {
    let found = first(&[("a", 1, After, 5), ("b", 1, Before, 6)]).expect("a change");
    assert_eq!(found.operator(), None);
    assert_eq!((found.from, found.to), (side("a", 1, After, 1), side("b", 1, Before, 1)));
}

/// What could not be read is neither unchanged nor changed: the change lies anywhere between the readings.
#[test]
fn unread_widens_the_verdict() {
    let found =
        first(&[("a", 1, Before, 5), ("a", 1, After, 0), ("b", 1, Before, 0), ("b", 1, After, 6)]).expect("a change");
    assert_eq!((found.operator(), found.unread), (None, 2));
    assert_eq!((found.from, found.to), (side("a", 1, Before, 1), side("b", 1, After, 1)));
    let mut verdicts = Verdicts::default();
    verdicts.take(&look("a", 1, Before), 1, 0, &Reading::Unread("error 7".into()));
    let expected = BlockVerdict { unread: 1, first_unread: Some("error 7".into()), ..BlockVerdict::default() };
    assert_eq!(verdicts.blocks().next().map(|(_, verdict)| verdict), Some(&expected));
}

/// Two calls of one operator are not one call.
#[test]
fn calls_are_distinguished() {
    assert_eq!(first(&[("a", 1, Before, 5), ("a", 2, After, 6)]).expect("a change").operator(), None);
}

/// Operators that other threads began since the last reading are named, up to a readable number.
#[test]
fn launched_meanwhile() {
    let mut verdicts = Verdicts::default();
    verdicts.begins(2, "early");
    verdicts.take(&look("a", 1, Before), 1, 0, &Reading::Sum(5));
    for _ in 0..20 {
        verdicts.begins(2, "x");
    }
    verdicts.begins(1, "own");
    let found = verdicts.take(&look("a", 1, After), 1, 0, &Reading::Sum(6)).expect("a change");
    // Of the earlier ones, the end has no look.
    assert_eq!(*found.others[0], *"early");
    assert_eq!(found.others[1..], vec![Arc::from("x"); MAX_OTHERS - 1]);
    assert_eq!(found.more_others, 5);
    assert_eq!(found.operator(), Some(&side("a", 1, After, 1)));
}

/// Forgotten starts are counted.
#[test]
fn beginnings_are_bounded() {
    let mut verdicts = Verdicts::default();
    verdicts.take(&look("a", 1, Before), 1, 0, &Reading::Sum(5));
    for _ in 0..MAX_BEGINNINGS + 10 {
        verdicts.begins(2, "x");
    }
    let found = verdicts.take(&look("a", 1, After), 1, 0, &Reading::Sum(6)).expect("a change");
    assert_eq!(found.others.len() as u64 + found.more_others, MAX_BEGINNINGS as u64 + 10);
}

/// Readings in freed memory are not reported for the block that was there, though the free is known later.
#[test]
fn freed_blocks_do_not_change() {
    let mut verdicts = Verdicts::default();
    let mut take = |call, phase, time_ns, reading| verdicts.take(&look("a", call, phase), 1, time_ns, &reading);
    assert_eq!(take(1, Before, 10, Reading::Sum(5)), None);
    assert_eq!(take(1, After, 20, Reading::Sum(5)), None);
    assert!(take(2, Before, 30, Reading::Sum(6)).is_some());
    take(2, After, 40, Reading::Unread("error 7".into()));
    let block = look("a", 1, Before).block;
    let freed = Freed { by: "halMemFree".into(), tid: 9, time_ns: 30 };
    assert!(verdicts.free(&block, &freed));
    assert_eq!(verdicts.take(&look("a", 3, Before), 1, 50, &Reading::Sum(7)), None);
    let expected = BlockVerdict { read: 2, freed: Some(freed.clone()), ..BlockVerdict::default() };
    assert_eq!(verdicts.blocks().next().map(|(_, verdict)| verdict), Some(&expected));
    assert!(!verdicts.free(&block, &freed), "once");
    // Another block at its place.
    let next = Look { block: Block { freed_before: 1, ..block }, ..look("a", 4, Before) };
    verdicts.take(&next, 1, 60, &Reading::Sum(8));
    assert_eq!(verdicts.blocks().count(), 2);
}

/// A free in an earlier window, known in a later one, undoes the readings between, and ends nothing.
#[test]
fn frees_of_earlier_windows() {
    let mut verdicts = Verdicts::default();
    let block_since = |since_ns| Block { since_ns, ..look("a", 1, Before).block };
    verdicts.window(&block_since(5));
    for (time_ns, sum) in [(10, 5), (20, 6), (30, 7)] {
        verdicts.take(&look("a", time_ns, Before), 1, time_ns, &Reading::Sum(sum));
    }
    verdicts.window(&block_since(40));
    for (time_ns, sum) in [(40, 8), (50, 8), (60, 9)] {
        verdicts.take(&look("a", time_ns, Before), 1, time_ns, &Reading::Sum(sum));
    }
    let free_at = |time_ns| Freed { by: "f".into(), tid: 1, time_ns };
    assert!(!verdicts.free(&block_since(5), &free_at(15)));
    let verdict = verdicts.blocks().next().expect("a block").1.clone();
    assert_eq!((verdict.read, verdict.changes, verdict.freed), (4, 1, None));
    assert_eq!(verdict.first.map(|change| change.to_sum), Some(9));
    assert!(verdicts.free(&block_since(40), &free_at(55)));
    let verdict = verdicts.blocks().next().expect("a block").1.clone();
    assert_eq!((verdict.read, verdict.changes, verdict.freed), (3, 0, Some(free_at(55))));
    assert_eq!(verdict.first, None);
}

/// Make sure that a change from before the free stays.
#[test]
fn changes_before_the_free_are_reported() {
    let mut verdicts = Verdicts::default();
    for (time_ns, sum) in [(10, 5), (20, 6), (30, 7)] {
        verdicts.take(&look("a", time_ns, Before), 1, time_ns, &Reading::Sum(sum));
    }
    verdicts.free(&look("a", 1, Before).block, &Freed { by: "f".into(), tid: 1, time_ns: 21 });
    let (_, verdict) = verdicts.blocks().next().expect("a block");
    assert_eq!((verdict.read, verdict.changes), (2, 1));
    assert_eq!(verdict.first.as_ref().map(|change| change.to_sum), Some(6));
}

/// A program that frees its watched block again and again does not take ever more memory.
#[test]
fn quiet_blocks_are_counted() {
    let mut verdicts = Verdicts::default();
    for freed_before in 0..100 {
        let mut look = look("a", 1, Before);
        look.block.freed_before = freed_before;
        verdicts.take(&look, 1, 10, &Reading::Sum(5));
        verdicts.free(&look.block, &Freed { by: "f".into(), tid: 1, time_ns: 20 });
    }
    assert_eq!((verdicts.blocks().count(), verdicts.quiet()), (MAX_QUIET, 100 - MAX_QUIET as u64));
}
