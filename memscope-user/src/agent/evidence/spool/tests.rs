use std::sync::{Arc, mpsc};

use super::*;
use crate::{
    agent::evidence::{
        key::PlaceText,
        minutes::Changes,
        rows::{Head, PlaceRow, TextRow, Who},
    },
    backend::ascend::pools,
};

/// The other ends of a writer that the test is.
struct Ends {
    parts: Receiver<Part>,
    done: mpsc::Sender<Done>,
}

fn spool(interval_minutes: u32) -> (Spool, Ends) {
    let (parts, to_write) = mpsc::sync_channel(1);
    let (results, done) = mpsc::channel();
    (Spool::new(interval_minutes, Writer { parts, done }), Ends { parts: to_write, done: results })
}

fn row(epoch_minute: i32) -> Row {
    let head = Head { epoch_minute, who: Arc::new(Who::default()), pid: 7, device_id: 0, pool: pools::HAL };
    let changes = Changes::default();
    Row::Place(PlaceRow { head, place_key: 1, live_bytes: 1, live_blocks: 1, changes, level: 0 })
}

fn text(bytes: usize) -> Row {
    let text = PlaceText { key: 1, kind: "native", place: String::new(), frames: "x".repeat(bytes) };
    Row::Text(TextRow { epoch_minute: 60, text })
}

fn stored(part: Part) -> Done {
    let rows = part.rows.len() as u64;
    Done { part, result: Ok(Stored { rows, removed_files: 0 }) }
}

fn minutes(part: &Part) -> Vec<i32> {
    part.rows.iter().map(Row::epoch_minute).collect()
}

/// A file is of one hour, and is written when the hour has been over for two minutes: then no row of it comes any more.
#[test]
fn files_are_of_one_hour() {
    let (mut spool, ends) = spool(60);
    for minute in [118, 119, 120] {
        spool.add(row(minute));
    }
    let now = Instant::now();
    assert!(spool.work(121, now).is_empty());
    assert!(ends.parts.try_recv().is_err());
    assert!(spool.work(122, now).is_empty());
    let part = ends.parts.try_recv().expect("a part");
    assert_eq!((part.table, minutes(&part)), (Table::PlaceMinute, vec![118, 119]));
    // One at a time.
    spool.work(200, now);
    assert!(ends.parts.try_recv().is_err());
    ends.done.send(stored(part)).expect("it waits");
    assert_eq!(spool.work(200, now).len(), 1);
    assert_eq!(minutes(&ends.parts.try_recv().expect("the next hour")), [120]);
    assert_eq!((spool.counts.files, spool.counts.rows, spool.counts.dropped_rows), (1, 2, 0));
}

/// Rows of a clock that was ahead do not wait until that time has come.
#[test]
fn files_of_a_clock_that_was_ahead() {
    let (mut spool, ends) = spool(60);
    for minute in [600, 130, 118] {
        spool.add(row(minute));
    }
    spool.work(119, Instant::now());
    assert_eq!(minutes(&ends.parts.try_recv().expect("a part")), [600]);
    spool.work(119, Instant::now());
    assert!(ends.parts.try_recv().is_err(), "the next hour may be a minute away");
}

/// Shorter intervals make more files.
#[test]
fn files_are_of_one_interval() {
    let (mut spool, ends) = spool(5);
    for minute in [60, 64, 65] {
        spool.add(row(minute));
    }
    spool.work(67, Instant::now());
    assert_eq!(minutes(&ends.parts.try_recv().expect("a part")), [60, 64]);
}

/// Many rows are written before their hour is over; further ones make a further file.
#[test]
fn many_rows_are_a_part() {
    let (mut spool, ends) = spool(60);
    for _ in 0..9 {
        spool.add(text(1 << 20));
    }
    spool.work(60, Instant::now());
    assert_eq!(ends.parts.try_recv().expect("a part").rows.len(), 8);
    assert_eq!(spool.waiting.len(), 1);
}

/// A part that could not be written waits a minute, and stays first.
#[test]
fn failed_parts_are_tried_again() {
    let (mut spool, ends) = spool(60);
    spool.add(row(60));
    let now = Instant::now();
    spool.work(200, now);
    let part = ends.parts.try_recv().expect("a part");
    let result = Err(io::Error::from_raw_os_error(libc::ENOSPC));
    ends.done.send(Done { part, result }).expect("it waits");
    let results = spool.work(200, now);
    assert_eq!(results[0].as_ref().err().and_then(io::Error::raw_os_error), Some(libc::ENOSPC));
    assert!(ends.parts.try_recv().is_err(), "not at once");
    spool.work(201, now + PAUSE);
    let part = ends.parts.try_recv().expect("the part again");
    ends.done.send(stored(part)).expect("it waits");
    spool.work(201, now + PAUSE);
    assert_eq!((spool.counts.failed_files, spool.counts.files, spool.counts.rows), (1, 1, 1));
    assert_eq!(spool.bytes, 0);
}

/// At the bound the oldest rows go, and are counted.
#[test]
fn waiting_rows_are_bounded() {
    let (mut spool, ends) = spool(60);
    spool.max_bytes = 20 << 20;
    let mut dropped = 0;
    for _ in 0..30 {
        dropped += u32::from(spool.add(text(1 << 20)));
        assert!(spool.bytes <= spool.max_bytes);
    }
    // Parts have eight rows of 1 MiB: with the twentieth and with the twenty-eighth row the first one goes.
    assert_eq!((dropped, spool.counts.dropped_rows, spool.waiting.len()), (2, 16, 2));
    // What is being written cannot be dropped, and counts.
    spool.work(200, Instant::now());
    let writing = ends.parts.try_recv().expect("a part");
    for _ in 0..30 {
        spool.add(text(1 << 20));
        assert!(spool.bytes <= spool.max_bytes);
    }
    ends.done.send(stored(writing)).expect("it waits");
    spool.work(60, Instant::now());
    assert_eq!(spool.bytes, spool.waiting.iter().map(|part| part.bytes).sum::<usize>());
}

/// A thread that fails takes its part with it; rows are dropped at the end, and counted.
#[test]
fn failed_thread_is_an_error() {
    let (mut spool, ends) = spool(60);
    spool.add(row(60));
    spool.work(200, Instant::now());
    spool.add(row(130));
    drop(ends);
    assert!(spool.work(200, Instant::now())[0].is_err());
    assert!(spool.finish(Duration::from_secs(1)).is_some());
    assert_eq!((spool.counts.dropped_rows, spool.bytes), (2, 0));
}

/// A disk that hangs does not hold the agent's end.
#[test]
fn end_does_not_wait_for_ever() {
    let (mut spool, _ends) = spool(60);
    spool.add(row(60));
    spool.add(text(1));
    assert!(spool.finish(Duration::from_millis(1)).is_some());
    assert_eq!((spool.counts.dropped_rows, spool.bytes), (2, 0));
}
