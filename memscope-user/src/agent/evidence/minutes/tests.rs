use std::collections::BTreeMap;

use super::*;
use crate::{
    agent::books::Books,
    analyses::script::Script,
    backend::ascend::pools,
    model::{Device, EventKind, FreeCause, Kept, ProcessStart, Stack},
};

const PID: u32 = 7;

fn script() -> Script {
    Script::new(PID, Device::Npu(0))
}

/// Events of a script in these minutes, after the start of their process.
fn observe(books: &mut Books, script: &Script, minutes: &[u32]) {
    assert_eq!(script.events().len(), minutes.len(), "a minute for each event");
    for (event, minute) in script.events().iter().zip(minutes) {
        books.observe(&Event { time_ns: u64::from(*minute) * MINUTE_NS + 30_000_000_000, ..event.clone() });
    }
}

fn start(books: &mut Books, minute: u32) {
    let mut any = script();
    any.process_end();
    let start = ProcessStart { parent: 0, attached: false, command: "a".into(), pid_within: None };
    let time_ns = u64::from(minute) * MINUTE_NS;
    books.observe(&Event { time_ns, kind: EventKind::ProcessStart(start), ..any.events()[0].clone() });
}

/// Books of a process that has started in minute 100.
fn books() -> Books {
    let mut books = Books::by_minute();
    books.minute(100);
    start(&mut books, 100);
    books
}

fn changes(allocations: (i64, i64), frees: (i64, i64)) -> Changes {
    Changes { allocations: allocations.0, allocated_bytes: allocations.1, frees: frees.0, freed_bytes: frees.1 }
}

/// Live bytes and blocks with the changes, by the size that a place is.
fn places(minute: &Minute) -> BTreeMap<u64, (u64, u64, Changes)> {
    let rows = minute.places.iter();
    rows.map(|row| (row.place.size_bytes, (row.live_bytes, row.live_blocks, row.changes))).collect()
}

fn pools_of(minute: &Minute) -> Vec<(u64, u64, Changes)> {
    minute.pools.iter().map(|row| (row.live_bytes, row.live_blocks, row.changes)).collect()
}

/// Worked out by hand: two blocks come and one goes, then one comes, then nothing happens. A place without blocks has a row for its
/// changes.
#[test]
fn minutes_have_what_is_live_and_what_has_changed() {
    let mut script = script();
    script.alloc(pools::HAL, 0x1000, 100).alloc(pools::HAL, 0x2000, 50).free(pools::HAL, 0x2000);
    script.alloc(pools::HAL, 0x3000, 100);
    let mut books = books();
    observe(&mut books, &script, &[100, 100, 100, 101]);
    let first = books.take().minutes.ready;
    books.minute(102);
    books.minute(103);
    let later = books.take().minutes.ready;
    assert_eq!((first.len(), later.len()), (1, 2));
    assert_eq!((first[0].minute, first[0].is_over), (100, true));
    assert_eq!(pools_of(&first[0]), [(100, 1, changes((2, 150), (1, 50)))]);
    let expected = [(50, (0, 0, changes((1, 50), (1, 50)))), (100, (100, 1, changes((1, 100), (0, 0))))];
    assert_eq!(places(&first[0]), expected.into());
    assert_eq!((later[0].minute, pools_of(&later[0])), (101, vec![(200, 2, changes((1, 100), (0, 0)))]));
    assert_eq!(places(&later[0]), [(100, (200, 2, changes((1, 100), (0, 0))))].into());
    assert_eq!((later[1].minute, places(&later[1])), (102, [(100, (200, 2, Changes::default()))].into()));
}

/// A free that the driver refuses a minute later is taken back there: sums over minutes are what is live.
#[test]
fn refused_frees_are_taken_back() {
    let mut script = script();
    script.alloc(pools::HAL, 0x1000, 64).free(pools::HAL, 0x1000).restore(pools::HAL, 0x1000);
    let mut books = books();
    observe(&mut books, &script, &[100, 100, 101]);
    books.minute(102);
    let minutes = books.take().minutes.ready;
    assert_eq!(places(&minutes[0])[&64], (0, 0, changes((1, 64), (1, 64))));
    assert_eq!(places(&minutes[1])[&64], (64, 1, changes((0, 0), (-1, -64))));
}

/// A process that ends has its last rows once: at once, or with the minute if that ends first. The next process of its number begins at
/// zero.
#[test]
fn ended_processes_have_their_last_rows_once() {
    let mut script = script();
    script.alloc(pools::HAL, 0x1000, 64).end(FreeCause::ProcessEnd, pools::HAL, 0x1000).process_end();
    let mut books = books();
    observe(&mut books, &script, &[100, 100, 100]);
    let last = books.take().minutes.ready;
    assert_eq!((last.len(), last[0].is_over, places(&last[0])[&64].0), (1, false, 64));
    books.minute(101);
    assert_eq!(books.take().minutes.ready, [Minute { minute: 100, is_over: true, ..Minute::default() }]);

    start(&mut books, 101);
    observe(&mut books, &script, &[101, 101, 101]);
    books.minute(102);
    let minutes = books.take().minutes.ready;
    assert_eq!(minutes.iter().map(|minute| minute.pools.len()).collect::<Vec<_>>(), [1]);
    books.minute(103);
    assert_eq!(books.take().minutes.ready.iter().map(|minute| minute.pools.len()).collect::<Vec<_>>(), [0]);

    start(&mut books, 103);
    observe(&mut books, &script, &[103, 103, 103]);
    start(&mut books, 103);
    observe(&mut books, &script, &[103, 103, 103]);
    let minutes = books.take().minutes.ready;
    let sums: Vec<_> = minutes.iter().map(|minute| (minute.is_over, pools_of(minute))).collect();
    let one = (false, vec![(64, 1, changes((1, 64), (0, 0)))]);
    assert_eq!(sums, [one.clone(), one]);
}

/// Attempts of one request are one row, which waits a minute for a late success; the count is in its own minute.
#[test]
fn failed_requests_wait_for_their_success() {
    let mut script = script();
    script.alloc_failed(pools::HAL, 1 << 40, (1, 1)).alloc_failed(pools::HAL, 1 << 40, (1, 2));
    script.alloc_recovered(pools::HAL, 1 << 40, 1).alloc_failed(pools::HAL, 1 << 30, (2, 1));
    let mut books = books();
    observe(&mut books, &script, &[100, 100, 101, 101]);
    let first = books.take().minutes.ready;
    assert_eq!((first.len(), first[0].pools[0].failures, first[0].failures.len()), (1, 1, 0));
    books.minute(102);
    let second = books.take().minutes.ready;
    let of = |failure: &Failure| (failure.minute, failure.requested_bytes, failure.request, failure.recovered);
    assert_eq!(second[0].failures.iter().map(of).collect::<Vec<_>>(), [(100, 1 << 40, 1, true)]);
    assert_eq!(second[0].failures[0].place.size_bytes, 1 << 40);
    books.end_minute();
    let last = books.take().minutes.ready;
    assert_eq!(last[0].failures.iter().map(of).collect::<Vec<_>>(), [(101, 1 << 30, 2, false)]);
    books.minute(110);
    assert_eq!(books.take().minutes.ready, [], "it was the last minute");
}

/// First calls of a child come before its start; that they wait over the end of a minute loses none of them.
#[test]
fn calls_before_the_start_are_counted_later() {
    let mut script = script();
    script.alloc(pools::HAL, 0x1000, 64).alloc(pools::HAL, 0x2000, 32);
    let mut books = Books::by_minute();
    books.minute(100);
    books.observe(&Event { time_ns: 100 * MINUTE_NS, ..script.events()[0].clone() });
    books.minute(101);
    start(&mut books, 101);
    books.observe(&Event { time_ns: 101 * MINUTE_NS, ..script.events()[1].clone() });
    books.minute(102);
    let minutes = books.take().minutes.ready;
    let sums: Vec<_> = minutes.iter().map(pools_of).collect();
    assert_eq!(sums, [vec![], vec![(96, 2, changes((2, 96), (0, 0)))]]);
    assert_eq!(places(&minutes[1]).len(), 2);
}

/// More places than are kept come and go in one minute: totals are whole, and what is in no row is counted.
#[test]
fn changes_are_bounded() {
    let mut script = script();
    let more = 10;
    for size in 1..=(MAX_CHANGED as u64 + more) {
        script.alloc(pools::HAL, 0x1000, size).free(pools::HAL, 0x1000);
    }
    let mut books = books();
    observe(&mut books, &script, &vec![100; script.events().len()]);
    books.minute(101);
    let minutes = books.take().minutes;
    assert_eq!((minutes.ready[0].places.len(), minutes.dropped_rows), (MAX_CHANGED, 2 * more));
    assert_eq!(minutes.ready[0].pools[0].changes.allocations, MAX_CHANGED as i64 + more as i64);
}

/// No one takes minutes: the oldest go, and are counted.
#[test]
fn waiting_minutes_are_bounded() {
    let mut script = script();
    for number in 1..=1000 {
        script.alloc(pools::HAL, 0x1000 * number, number);
    }
    let mut books = books();
    observe(&mut books, &script, &[100; 1000]);
    (101..=300).for_each(|minute| books.minute(minute));
    let minutes = books.take().minutes;
    let rows: usize = minutes.ready.iter().map(Minute::rows).sum();
    assert!(rows <= MAX_READY_ROWS && rows > MAX_READY_ROWS - 2000, "{rows}");
    assert_eq!(rows as u64 + minutes.dropped_rows, 200 * 1001);
    assert_eq!(minutes.ready.last().map(|minute| minute.minute), Some(299));
}

/// A clock that was set far ahead and back: minutes go on by the clock.
#[test]
fn clocks_may_be_set() {
    let mut script = script();
    script.alloc(pools::HAL, 0x1000, 64).alloc(pools::HAL, 0x2000, 64);
    let mut books = books();
    observe(&mut books, &script, &[5000, 100]);
    books.minute(101);
    books.minute(102);
    let minutes: Vec<u32> = books.take().minutes.ready.iter().map(|minute| minute.minute).collect();
    assert_eq!(minutes, [100, 5000, 101]);
}

/// Pools that are left out have their last rows, with the changes up to then; the driver's have theirs when the minute ends.
#[test]
fn pools_that_are_left_out_have_last_rows() {
    let mut script = script();
    script.alloc(pools::HAL, 0x1000, 100).alloc(pools::PTA, 0x1000, 30).alloc(pools::PTA, 0x1100, 20);
    script.free(pools::PTA, 0x1100).event(EventKind::PoolsLeftOut).alloc(pools::HAL, 0x9000, 8);
    let mut books = books();
    observe(&mut books, &script, &[100; 6]);
    books.minute(101);
    books.minute(102);
    let minutes = books.take().minutes.ready;
    let of = |minute: &Minute| (minute.minute, minute.is_over, pools_of(minute));
    let hal = |changes| vec![(108, 2, changes)];
    assert_eq!(
        minutes.iter().map(of).collect::<Vec<_>>(),
        [
            (100, false, vec![(30, 1, changes((2, 50), (1, 20)))]),
            (100, true, hal(changes((2, 108), (0, 0)))),
            (101, true, hal(changes((0, 0), (0, 0)))),
        ]
    );
    assert_eq!(minutes[0].places.len(), 2);
}

/// Within a minute the trace moves its stacks to a further run, and gives the first one back: the place goes on as one, to the byte, with its
/// frames. So does an event of the first run that comes late.
#[test]
fn places_move_with_their_stacks() {
    let first = Kept::of_few(10);
    let next = first.next().expect("a further run");
    let mut script = script();
    script.stacks(&["a.py(1): f", "a.py(9): main"], &[]);
    script.alloc(pools::HAL, 0x1000, 100).alloc(pools::HAL, 0x2000, 50).free(pools::HAL, 0x2000);
    script.alloc(pools::HAL, 0x3000, 7).alloc(pools::HAL, 0x4000, 1);
    let mut books = books();
    for (event, kept) in script.events().iter().zip([&first, &first, &next, &first, &next]) {
        let mut event = Event { time_ns: 100 * MINUTE_NS, ..event.clone() };
        let (EventKind::Alloc(Alloc { block, .. }) | EventKind::Free(Free { block, .. })) = &mut event.kind else {
            panic!("{event:?}");
        };
        block.stacks = block.stacks.map(|stack| stack.moved_to(kept));
        books.observe(&event);
    }
    drop(first);
    books.minute(101);
    let account = books.take();
    let [row] = &account.minutes.ready[0].places[..] else { panic!("{:?}", account.minutes) };
    assert_eq!((row.live_bytes, row.live_blocks, row.changes), (108, 3, changes((4, 158), (1, 50))));
    assert_eq!(row.place.stacks.python.map(Stack::texts), Some(vec!["a.py(1): f", "a.py(9): main"]));
    assert_eq!((account.places, account.series[0].1.largest_place()), (1, Some((row.place, 108))));
    // One stack, and the one that stands for all others.
    assert!((account.stacks_fill - 0.2).abs() < 1e-9, "{}", account.stacks_fill);
}
