use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::capture::Note;
use crate::testing::{Random, at, device, main, row, variety};

/// An allocation comes back with every field.
#[test]
fn call_is_read() {
    let bytes = at(5, 7, 8).alloc(0x1000, 64, device(3));
    let record = decode(&bytes).expect("a record");
    assert_eq!((record.time_ns, record.pid, record.tid, record.row), (5, 7, 8, row("halMemAlloc")));
    let Body::Call(call) = record.body else { panic!("no call: {record:?}") };
    assert_eq!((call.phase, call.status, call.values.count()), (Phase::Return, 0, 3));
    assert_eq!([0, 1, 2, 3].map(|index| call.values.get(index)), [Some(0x1000), Some(64), Some(device(3)), None]);
}

/// A value that could not be read is not there, even though its bytes are.
#[test]
fn faulted_value_is_none() {
    let mut bytes = main(1).alloc(0x1000, 64, 0);
    bytes[33] = 1;
    let Ok(Record { body: Body::Call(call), .. }) = decode(&bytes) else { panic!("no call") };
    assert_eq!((call.values.get(0), call.values.get(1)), (None, Some(64)));
}

/// A negative status keeps its sign.
#[test]
fn status_is_signed() {
    let bytes = main(1).alloc_failed(-17, 64, 0);
    let Ok(Record { body: Body::Call(call), .. }) = decode(&bytes) else { panic!("no call") };
    assert_eq!(call.status, -17);
}

/// Each contradicting length has its kind of error.
#[test]
fn bad_lengths_are_errors() {
    let good = main(1).alloc(1, 2, 3);
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    assert_eq!(decode(&good[..10]), Err(DecodeError::Short { have: 10, need: 24 }));
    assert_eq!(decode(&good[..79]), Err(DecodeError::Short { have: 79, need: 80 }));
    assert_eq!(decode(&with(20, 8)), Err(DecodeError::Length { kind: 2, len: 8, need: 24 }));
    assert_eq!(decode(&with(20, 72)), Err(DecodeError::Length { kind: 2, len: 72, need: 80 }));
    assert_eq!(decode(&with(32, 9)), Err(DecodeError::Values { count: 9 }));
    assert_eq!(decode(&with(36, 200)), Err(DecodeError::Text { len: 200 }));
    assert_eq!(decode(&with(36, 1)), Err(DecodeError::Length { kind: 2, len: 80, need: 121 }));
}

/// A kind of the future is passed over by its length.
#[test]
fn unknown_kind_is_stepped_over() {
    let mut bytes = main(1).free(0x10);
    bytes[16] = 99;
    bytes.extend(main(2).free(0x20));
    let kinds: Vec<bool> = Records::new(&bytes)
        .map(|record| matches!(record, Ok(Record { body: Body::Unknown { kind: 99 }, .. })))
        .collect();
    assert_eq!(kinds, [true, false]);
}

/// After a broken record the next one is read; after a broken length nothing is.
#[test]
fn stepping_goes_on_where_it_can() {
    let mut bytes = [main(1).alloc(1, 2, 3), main(2).alloc(4, 5, 6)].concat();
    bytes[32] = 200;
    assert_eq!(Records::new(&bytes).map(|record| record.is_ok()).collect::<Vec<_>>(), [false, true]);
    bytes[20] = 3;
    assert_eq!(Records::new(&bytes).map(|record| record.is_ok()).collect::<Vec<_>>(), [false]);
}

/// Notes are found whatever is between them, up to a wrong length.
#[test]
fn notes_are_found() {
    let (first, last) = (main(1).note(&Note::UsageEnded), main(4).note(&Note::UsageEnded));
    let mut unknown = main(2).free(0x10);
    unknown[16] = 99;
    let bytes = [first.clone(), unknown, main(3).alloc(1, 2, 3), last.clone(), vec![7; 30]].concat();
    assert_eq!(notes(&bytes).collect::<Vec<_>>(), [&first[..], &last[..]]);
    assert_eq!(notes(&bytes[1..]).count(), 0);
}

/// Five seconds of broken streams: nothing panics, and every step makes progress.
#[test]
fn fuzz() {
    let (valid, mut random) = (variety(), Random(0x5eed));
    let end = Instant::now() + Duration::from_secs(5);
    while Instant::now() < end {
        let mut bytes = valid.clone();
        random.mutate(&mut bytes);
        assert!(Records::new(&bytes).count() <= bytes.len() / 24 + 1);
    }
}

proptest! {
    /// Any bytes are a record or an error.
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode(&bytes);
        prop_assert!(Records::new(&bytes).count() <= bytes.len() / 24 + 1);
    }

    /// A valid record with one byte changed is a record or an error.
    #[test]
    fn one_byte_changed(index in 0..168_usize, value: u8) {
        let mut bytes = main(1).mark(&"x".repeat(64));
        bytes[index] = value;
        let _ = decode(&bytes);
    }
}

/// Pieces are whole records up to the size, one that is longer by itself; bytes that are no record end the last piece.
#[test]
fn pieces_are_of_whole_records() {
    let records: Vec<Vec<u8>> = (1..=7).map(|time| main(time).free(time << 12)).collect();
    let len = records[0].len();
    let bytes = records.concat();
    let lens = |bytes: &[u8], most_bytes: usize| pieces(bytes, most_bytes).map(<[u8]>::len).collect::<Vec<_>>();
    assert_eq!(lens(&bytes, 3 * len + 1), [3 * len, 3 * len, len]);
    assert_eq!(lens(&bytes[..2 * len], len - 1), [len, len]);
    assert_eq!(lens(&bytes, bytes.len()), [bytes.len()]);
    assert_eq!(lens(&[], 100), [] as [usize; 0]);
    let broken = [&bytes[..2 * len], &[0; 50]].concat();
    assert_eq!(lens(&broken, 2 * len), [2 * len, 50]);
    assert_eq!(lens(&bytes[..2 * len - 1], 2 * len), [2 * len - 1]);
}
