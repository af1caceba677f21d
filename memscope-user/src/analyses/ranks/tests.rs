//! Ranks with memory that is worked out by hand.

use super::*;
use crate::analyses::Observer as _;
use crate::analyses::script::Script;
use crate::backend::ascend::pools;
use crate::model::{Device, Event, RunEnd};

const MIB: u64 = 1 << 20;
const SECOND_NS: u64 = 1_000_000_000;

fn run_of(events: &[Event]) -> Run {
    ranks_of(events, Part::Whole).remove(0).run
}

fn ranks_of(events: &[Event], part: Part) -> Vec<Recorded> {
    let (mut recorder, run) = Recorder::new(part);
    for event in events {
        recorder.observe(event);
    }
    recorder.finish(&RunEnd::default());
    run.try_recv().expect("a run")
}

/// A rank that holds 100 MiB, works with 10 MiB in each of its steps, and from a step on keeps this many bytes of each.
fn rank(number: u32, steps: u32, keeps: Option<(u32, u64)>) -> Run {
    let mut script = Script::new(100 + number, Device::Npu(number));
    script.stacks(&["train.py(1): load", "train.py(9): main"], &[]).alloc(pools::PTA, 0x1000, 100 * MIB);
    for step in 1..=steps {
        script.step_start(step);
        script.stacks(&["train.py(4): forward", "train.py(9): main"], &[]).alloc(pools::PTA, 0x2000, 10 * MIB);
        if let Some((from, bytes)) = keeps
            && step >= from
        {
            script.stacks(&["train.py(6): keep", "train.py(9): main"], &[]);
            script.alloc(pools::PTA, 0x100_0000 + u64::from(step), bytes);
        }
        script.free(pools::PTA, 0x2000).step_end(step);
    }
    run_of(script.events())
}

fn compared(runs: &[Run]) -> Ranks {
    let rank = |(at, run): (usize, &Run)| (format!("rank{at}"), Recorded { run: run.clone(), ..Recorded::default() });
    compare(runs.iter().enumerate().map(rank).collect())
}

fn top(difference: &RankDifference) -> Option<String> {
    difference.place?.best()?.frames().first().map(ToString::to_string)
}

/// Rank 2 keeps 3 MiB of each step from the fifth on. After ten steps that are 18 MiB, in the pool and at one place; it is more than 1 MiB at
/// once, and grows by 3 MiB a step.
#[test]
fn the_rank_that_keeps_more_is_named() {
    let runs: Vec<Run> = (0..4).map(|number| rank(number, 10, (number == 2).then_some((5, 3 * MIB)))).collect();
    let found = compared(&runs);
    assert_eq!((found.common_steps, found.last_step, found.places), (10, Some(10), true));
    assert_eq!(found.differences.len(), 2, "{:#?}", found.differences);
    let [whole, place] = &found.differences[..] else { panic!("two") };
    assert_eq!((whole.rank, whole.place, whole.bytes, whole.median_bytes), (2, None, 118 * MIB, 100 * MIB));
    assert_eq!((place.rank, top(place).as_deref()), (2, Some("train.py(6): keep")));
    for difference in [whole, place] {
        assert_eq!(difference.difference_bytes, 18 * MIB as i64);
        assert_eq!((difference.since_step, difference.growth_bytes_per_step), (Some(5), Some(3.0 * MIB as f64)));
    }
    let mut text = Vec::new();
    write_ranks(&found, &mut text).expect("written");
    let text = String::from_utf8(text).expect("UTF-8");
    let line = "Rank 2 holds 18.00 MiB more of Pytorch Caching memory pool in all: 118.00 MiB, the median 100.00 MiB; since step 5, +3.00 MiB a step.";
    assert!(text.contains(line), "{text}");
    assert!(text.contains("    train.py(6): keep\n    train.py(9): main\n"), "{text}");
}

/// One trace of a launcher, which has steps of its own and no memory, and four ranks, started in the reverse order of their devices: that on
/// npu:1 keeps 3 MiB of each step from the fifth on. Added up they are one rank.
#[test]
fn processes_of_one_trace_are_ranks() {
    let mut script = Script::new(100, Device::Npu(0));
    script.step_start(1).step_end(1);
    for device in (0..4).rev() {
        script.on(200 - device, Device::Npu(device)).stacks(&["train.py(1): load"], &[]).alloc(
            pools::PTA,
            0x1000,
            100 * MIB,
        );
    }
    for step in 1..=10 {
        for device in (0..4).rev() {
            script.on(200 - device, Device::Npu(device)).step_start(step);
            if device == 1 && step >= 5 {
                script.stacks(&["train.py(6): keep"], &[]);
                script.alloc(pools::PTA, 0x100_0000 + u64::from(step), 3 * MIB);
            }
            script.step_end(step);
        }
    }
    let ranks = ranks_of(script.events(), Part::Process);
    let found = compare(ranks.into_iter().map(|rank| ("run".to_owned(), rank)).collect());
    let names: Vec<_> = found.ranks.iter().map(|rank| (rank.pid, rank.devices.clone(), rank.steps)).collect();
    assert_eq!(names, [0, 1, 2, 3].map(|device| (Some(200 - device), vec![Device::Npu(device)], 10)));
    let differences: Vec<_> =
        found.differences.iter().map(|found| (found.rank, found.difference_bytes, found.since_step)).collect();
    assert_eq!(differences, [(1, 18 * MIB as i64, Some(5)); 2]);
    let mut text = Vec::new();
    write_ranks(&found, &mut text).expect("written");
    let text = String::from_utf8(text).expect("UTF-8");
    assert!(text.contains("  rank 1: run, process 199 on npu:1, 10 steps, clock"), "{text}");
    assert_eq!(ranks_of(script.events(), Part::Whole).len(), 1);
}

/// All keep the same: a leak, but no rank's.
#[test]
fn what_all_ranks_do_is_no_difference() {
    let runs: Vec<Run> = (0..4).map(|number| rank(number, 10, Some((5, 3 * MIB)))).collect();
    assert_eq!(compared(&runs).differences, []);
}

/// A rank that has a step more is compared where all are.
#[test]
fn steps_that_all_have_count() {
    let runs = [rank(0, 8, None), rank(1, 12, Some((9, 50 * MIB))), rank(2, 8, None)];
    let found = compared(&runs);
    assert_eq!((found.common_steps, found.last_step), (8, Some(8)));
    assert_eq!(found.differences, []);
    assert_eq!(found.ranks.iter().map(|rank| rank.steps).collect::<Vec<_>>(), [8, 12, 8]);
}

/// What differed and does so no more is no difference; it counts from the last time on.
#[test]
fn only_what_lasts_counts() {
    let with = |until: u32| {
        let mut run = rank(0, 10, None);
        let place = Place::all_of(pools::PTA);
        run.held
            .insert(place, vec![(1, 100 * MIB), (2, 150 * MIB), (4, 100 * MIB), (7, 150 * MIB), (until, 100 * MIB)]);
        run
    };
    let found = compared(&[rank(1, 10, None), rank(2, 10, None), with(11)]);
    assert_eq!(found.differences.len(), 1, "{:#?}", found.differences);
    assert_eq!((found.differences[0].since_step, found.differences[0].growth_bytes_per_step), (Some(7), None));
    assert_eq!(compared(&[rank(1, 10, None), rank(2, 10, None), with(9)]).differences, []);
}

/// Ranks that hold different parts of a model: 100, 110, … 170 MiB. None is an outlier; one with 500 MiB is. The median is 130 MiB, the
/// distances of the others are 0 to 40 MiB, so their median is 20 MiB and the limit 118.6 MiB.
#[test]
fn usual_distances_are_no_difference() {
    let with = |bytes: u64| {
        let mut run = rank(0, 2, None);
        run.held = [(Place::all_of(pools::HAL), vec![(1, bytes)])].into_iter().collect();
        run
    };
    let spread: Vec<Run> = (0..8).map(|number| with((100 + 10 * number) * MIB)).collect();
    assert_eq!(compared(&spread).differences, []);
    let mut odd = spread;
    odd[7] = with(500 * MIB);
    let found = compared(&odd);
    let ranks: Vec<_> = found.differences.iter().map(|found| (found.rank, found.difference_bytes)).collect();
    assert_eq!(ranks, [(7, 370 * MIB as i64)]);
}

/// Clocks: ends of steps of the second rank are 250 ms later, but for one that is 260 ms later.
#[test]
fn clocks_show_in_the_ends_of_steps() {
    let with = |offsets: [u64; 3]| {
        let mut run = rank(0, 3, None);
        let end = |(number, offset): (usize, u64)| {
            let step = number as u32 + 1;
            (step, u64::from(step) * SECOND_NS + offset)
        };
        run.ends = offsets.into_iter().enumerate().map(end).collect();
        run
    };
    let ms = 1_000_000;
    let found = compared(&[with([0; 3]), with([250 * ms, 260 * ms, 250 * ms]), with([0; 3])]);
    let clocks: Vec<_> = found.ranks.iter().map(|rank| (rank.clock_offset_ns, rank.clock_spread_ns)).collect();
    assert_eq!(clocks, [(Some(0), Some(0)), (Some(250 * ms as i64), Some(10 * ms)), (Some(0), Some(0))]);
}

/// Without steps ranks are compared at their ends, and places are sizes where there are no stacks.
#[test]
fn ranks_without_steps_are_compared_at_their_ends() {
    let with = |bytes: u64| {
        let mut script = Script::new(7, Device::Npu(0));
        script.alloc(pools::HAL, 0x1000, bytes).alloc(pools::HAL, 0x2000, 7);
        run_of(script.events())
    };
    let found = compared(&[with(5 * MIB), with(5 * MIB), with(9 * MIB)]);
    assert_eq!((found.common_steps, found.last_step), (0, None));
    assert!(found.differences.iter().all(|found| found.since_step.is_none()));
    let found: Vec<_> =
        found.differences.iter().map(|found| (found.rank, found.size_bytes, found.difference_bytes)).collect();
    assert_eq!(
        found,
        [(2, None, 4 * MIB as i64), (2, Some(9 * MIB), 9 * MIB as i64), (2, Some(5 * MIB), -5 * (MIB as i64))]
    );
}

/// A rank without call stacks among others: its places are not theirs.
#[test]
fn totals_alone_where_stacks_are_missing() {
    let mut bare = Script::new(7, Device::Npu(0));
    bare.alloc(pools::PTA, 0x1000, 150 * MIB);
    for step in 1..=2 {
        bare.step_start(step).step_end(step);
    }
    let found = compared(&[rank(0, 2, None), rank(1, 2, None), run_of(bare.events())]);
    assert!(!found.places);
    let found: Vec<_> = found.differences.iter().map(|found| (found.rank, found.place)).collect();
    assert_eq!(found, [(2, None)]);
}
