use super::*;
use crate::backend::ascend::pools;

const SECOND: u64 = 1_000_000_000;

const fn wish(size_bytes: u64) -> Wish {
    Wish { pool: pools::HAL, device: Device::Npu(0), size_bytes }
}

fn numbers(failing: &mut Failing, failures: &[(u32, u64, u64)]) -> Vec<(u64, u32)> {
    let number = |&(tid, time_ns, size)| {
        let request = failing.attempt(tid, time_ns, wish(size), false);
        (request.number, request.attempts)
    };
    failures.iter().map(number).collect()
}

/// Two attempts of one thread are one request; those of another thread, of another size, and after a long time are
/// not.
#[test]
fn attempts_are_not_requests() {
    let mut failing = Failing::default();
    let failures = [(1, 0, 100), (2, 1, 100), (1, 2, 100), (1, 3, 200), (1, 100 * SECOND, 200)];
    assert_eq!(numbers(&mut failing, &failures), [(1, 1), (2, 1), (1, 2), (3, 1), (4, 1)]);
}

/// A query of the free memory means giving up: the next failure of that size is another request.
#[test]
fn giving_up_ends_a_request() {
    let mut failing = Failing::default();
    assert_eq!(numbers(&mut failing, &[(1, 0, 100)]), [(1, 1)]);
    failing.ask(1);
    assert_eq!(failing.succeeded(1, 1), None);
    assert_eq!(numbers(&mut failing, &[(1, 1, 100)]), [(2, 1)]);
    failing.ask(1);
    assert_eq!(numbers(&mut failing, &[(1, 2, 100)]), [(3, 1)]);
}

/// A query followed by a reservation of addresses makes a segment. After one query more before it, the thread has
/// given up, and makes a segment for another request.
#[test]
fn making_a_segment_is_no_giving_up() {
    let mut failing = Failing::default();
    assert_eq!(numbers(&mut failing, &[(1, 0, 100)]), [(1, 1)]);
    failing.ask(1);
    failing.reserved(1);
    assert_eq!(numbers(&mut failing, &[(1, 1, 100)]), [(1, 2)]);
    failing.ask(1);
    failing.ask(1);
    failing.reserved(1);
    assert_eq!(failing.succeeded(1, 1), None);
    assert_eq!(numbers(&mut failing, &[(1, 2, 100)]), [(2, 1)]);
}

/// The driver's size is padded; another size is another allocation.
#[test]
fn driver_sizes_are_padded() {
    let mut failing = Failing::default();
    failing.attempt(1, 0, wish(1000), false);
    assert_eq!(failing.granted(1, 1, 999, 4096), None);
    assert_eq!(failing.granted(2, 1, 1000, 4096), None);
    assert_eq!(failing.granted(1, 1, 1056, 4096).map(|request| request.attempts), Some(1));
    assert_eq!(failing.granted(1, 1, 1056, 4096), None);
}

/// What is asked for minutes later is another request.
#[test]
fn a_request_does_not_last_for_ever() {
    let mut failing = Failing::default();
    failing.attempt(1, 0, wish(1000), false);
    assert_eq!(failing.granted(1, 61 * SECOND, 1000, 4096), None);
    assert!(failing.granted(1, 59 * SECOND, 1000, 4096).is_some());
}

/// A clock that is set back by an hour ends it, too.
#[test]
fn a_clock_that_is_set_back() {
    let mut failing = Failing::default();
    assert_eq!(numbers(&mut failing, &[(1, 7200 * SECOND, 100), (1, 3600 * SECOND, 100)]), [(1, 1), (2, 1)]);
}

/// Many threads that fail cost a bounded amount of memory, and the newest is followed.
#[test]
fn threads_are_bounded() {
    let mut failing = Failing::default();
    for tid in 0..3 * MAX_THREADS as u32 {
        failing.attempt(tid, 0, wish(1), false);
    }
    assert!(failing.threads.len() <= MAX_THREADS);
    assert_eq!(numbers(&mut failing, &[(3 * MAX_THREADS as u32 - 1, 1, 1)]), [(3 * MAX_THREADS as u64, 2)]);
}
