use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::decode::{Body, Records, decode};
use crate::probes::{CallKind, Layer, MstxCall, RowInfo};
use crate::testing::{Random, at, device, main, rows, variety};

fn header() -> CaptureHeader {
    CaptureHeader { tool_version: "0.1.0".to_owned(), rows: rows(), ..CaptureHeader::default() }
}

/// A capture with these chunks.
fn capture(parts: &[Vec<u8>]) -> Vec<u8> {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("x.msbpf");
    let mut writer = Writer::create(&path, &header(), WriterOptions::default()).expect("created");
    for part in parts {
        writer.append(part).expect("appended");
        writer.flush().expect("flushed");
    }
    let written = writer.written_bytes();
    writer.finish().expect("finished");
    let bytes = fs::read(&path).expect("read");
    assert_eq!(written, bytes.len() as u64);
    bytes
}

fn read(bytes: &[u8]) -> Result<(Vec<u8>, Ending), CaptureError> {
    let mut reader = Reader::new(bytes, Path::new("x"))?;
    let mut all = Vec::new();
    while let Some(chunk) = reader.next_chunk()? {
        all.extend_from_slice(chunk);
    }
    Ok((all, reader.ending().expect("an ending")))
}

/// Records and header come back unchanged.
#[test]
fn round_trip() {
    let bytes = capture(&[variety(), main(1).free(1)]);
    assert_eq!(Reader::new(&bytes[..], Path::new("x")).expect("opened").header(), &header());
    let (all, ending) = read(&bytes).expect("read");
    assert_eq!(all, [variety(), main(1).free(1)].concat());
    assert_eq!(ending, Ending::Complete { good_chunks: 2 });
}

/// What is written is read back while more is written, from where one began to; what is not on the disk yet is not.
#[cfg(feature = "trace")]
#[test]
fn tail() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("x.capture");
    let mut writer = Writer::create(&path, &header(), WriterOptions::default()).expect("created");
    let parts = [variety(), main(1).free(1), main(2).free(2), main(3).free(3)];
    writer.append(&parts[0]).expect("appended");
    let mut tail = writer.tail().expect("read back");
    let mut next = |writer: &Writer| tail.next_chunk(writer.written_bytes()).map(|chunk| chunk.map(<[u8]>::to_vec));
    assert_eq!(next(&writer).expect("read"), None);
    writer.append(&parts[1]).expect("appended");
    assert_eq!((next(&writer).expect("read"), writer.unwritten()), (None, parts[1].as_slice()));
    writer.flush().expect("flushed");
    writer.append(&parts[2]).and_then(|()| writer.flush()).expect("written");
    assert_eq!(next(&writer).expect("read").as_ref(), Some(&parts[1]));
    assert_eq!(next(&writer).expect("read").as_ref(), Some(&parts[2]));
    assert_eq!(next(&writer).expect("read"), None);
    // Another program cuts the file off.
    writer.append(&parts[3]).and_then(|()| writer.flush()).expect("written");
    fs::OpenOptions::new().write(true).open(&path).expect("opened").set_len(100).expect("cut");
    let error = next(&writer).expect_err("it is not there");
    assert!(error.to_string().contains("cannot read"), "{error}");
}

/// A batch larger than a chunk is cut between records.
#[test]
fn large_batch_is_split_between_records() {
    let batch: Vec<u8> = (0..9000).flat_map(|time| main(time).alloc(time << 9, 512, device(0))).collect();
    let bytes = capture(std::slice::from_ref(&batch));
    let mut reader = Reader::new(&bytes[..], Path::new("x")).expect("opened");
    let (mut all, mut chunks) = (Vec::new(), 0);
    while let Some(chunk) = reader.next_chunk().expect("read") {
        assert!(Records::new(chunk).all(|record| record.is_ok()));
        all.extend_from_slice(chunk);
        chunks += 1;
    }
    assert_eq!(all, batch);
    assert_eq!(chunks, 3);
}

/// A file cut anywhere gives all whole chunks, and the place of the cut.
#[test]
fn torn_at_every_offset() {
    let (first, second) = (variety(), main(1).alloc(0x1000, 5, 0));
    let head = capture(&[]).len();
    let one = capture(std::slice::from_ref(&first)).len();
    let bytes = capture(&[first.clone(), second]);
    for len in 0..bytes.len() {
        match read(&bytes[..len]) {
            Err(CaptureError::NoCapture { .. }) => assert!(len < 8),
            Err(CaptureError::Header { .. }) => assert!((8..head).contains(&len)),
            Ok((all, ending)) if len == head => {
                assert_eq!((all.len(), ending), (0, Ending::Complete { good_chunks: 0 }));
            }
            Ok((all, ending)) if len == one => {
                assert_eq!((all, ending), (first.clone(), Ending::Complete { good_chunks: 1 }));
            }
            Ok((all, ending)) => {
                let (at, chunks, good) = if len < one { (head, 0, &[][..]) } else { (one, 1, &first[..]) };
                assert_eq!(ending, Ending::Truncated { at_offset: at as u64, good_chunks: chunks });
                assert_eq!(all, good);
            }
            Err(error) => panic!("at {len}: {error}"),
        }
    }
}

/// A file system may leave zeros after a crash: that is a torn tail, too.
#[test]
fn zeros_at_the_end_are_a_torn_tail() {
    let mut bytes = capture(&[variety()]);
    let at_offset = bytes.len() as u64;
    bytes.extend([0; 5000]);
    assert_eq!(read(&bytes).expect("read").1, Ending::Truncated { at_offset, good_chunks: 1 });
}

/// A damaged chunk in the middle is no torn tail; the chunks before it are good.
#[test]
fn damage_in_the_middle_is_reported() {
    let one = capture(&[variety()]).len();
    let mut bytes = capture(&[variety(), variety(), variety()]);
    bytes[one + 20] ^= 1;
    let (all, ending) = read(&bytes).expect("read");
    assert_eq!(all, variety());
    assert_eq!(ending, Ending::Corrupt { at_offset: one as u64, good_chunks: 1, what: "wrong checksum" });
}

/// A capture of a later version is refused by its number.
#[test]
fn newer_version_is_refused() {
    let mut bytes = capture(&[]);
    bytes[8] = 2;
    let error = read(&bytes).expect_err("refused");
    assert_eq!(error.to_string(), "`x` has capture format 2, this program reads up to 1");
}

/// Only the owner can read the file, and an existing file is never overwritten, not even through a link.
#[test]
fn file_is_private_and_new() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, link) = (dir.path().join("a"), dir.path().join("b"));
    std::os::unix::fs::symlink(dir.path().join("c"), &link).expect("a link");
    Writer::create(&path, &header(), WriterOptions::default()).expect("created");
    assert_eq!(fs::metadata(&path).expect("metadata").permissions().mode() & 0o777, 0o600);
    for path in [path, link] {
        let error = Writer::create(&path, &header(), WriterOptions::default()).expect_err("refused");
        assert!(error.to_string().starts_with(&format!("cannot create `{}`", path.display())), "{error}");
    }
}

/// A full disk is an error that names the file.
#[test]
fn full_disk_is_reported() {
    let Ok(file) = fs::OpenOptions::new().write(true).open("/dev/full") else {
        return;
    };
    let mut writer = Writer::over(file, Path::new("/dev/full"));
    writer.append(&variety()).expect("taken");
    let error = writer.flush().expect_err("full");
    assert!(crate::error_chain(&error).starts_with("cannot write `/dev/full`: No space left"), "{error}");
}

/// Every note comes back; long lists become several records, long texts are cut.
#[test]
fn notes_round_trip() {
    let note = Note::Clock { mono_ns: 1, real_ns: u64::MAX };
    let bytes = note_record(9, 3, &note);
    let record = decode(&bytes).expect("a record");
    let Body::Note(json) = record.body else { panic!("no note") };
    assert_eq!((record.time_ns, record.pid, Note::parse(json).expect("a note")), (9, 3, note));

    let counts: Vec<_> =
        (0..5120).map(|n| LossCount { row: n / 10, reason: u32::from(n % 10), count: u64::MAX }).collect();
    let bytes = note_record(1, 0, &Note::Losses { by: counts.clone() });
    let mut back = Vec::new();
    for record in Records::new(&bytes) {
        let Ok(Body::Note(json)) = record.map(|record| record.body) else { panic!("no note") };
        let Ok(Note::Losses { by }) = Note::parse(json) else { panic!("no losses") };
        back.extend(by);
    }
    assert_eq!(back, counts);

    let bytes = note_record(1, 0, &Note::End { reason: "\u{1}€".repeat(100_000) });
    assert_eq!(Records::new(&bytes).flatten().count(), 1);
}

/// Rows added during a trace keep their numbers when their list is split.
#[test]
fn parted_rows_keep_their_numbers() {
    let row = |n: usize| RowInfo {
        layer: Layer::Hal,
        symbol: format!("{n:0>900}"),
        meaning: CallKind::Mstx(MstxCall::Mark),
        fields: vec![],
        pool: None,
        own_return: false,
    };
    let bytes = note_record(1, 0, &Note::Rows { first: 50, rows: (50..200).map(row).collect() });
    let mut next = 50;
    for record in Records::new(&bytes) {
        let Ok(Body::Note(json)) = record.map(|record| record.body) else { panic!("no note") };
        let Ok(Note::Rows { first, rows }) = Note::parse(json) else { panic!("no rows") };
        assert_eq!(usize::from(first), next);
        assert_eq!(rows[0].symbol, format!("{next:0>900}"));
        next += rows.len();
    }
    assert_eq!(next, 200);
}

/// A note of a later version is a note.
#[test]
fn unknown_note_is_known_as_such() {
    assert_eq!(Note::parse(br#"{"note":"later","x":1}"#).expect("a note"), Note::Unknown);
}

/// Typical traffic takes at most 40 bytes per event on disk.
#[test]
fn size_on_disk() {
    let mut random = Random(7);
    let mut live = Vec::new();
    let (mut raw, mut time) = (Vec::new(), 1_000_000_000_000_u64);
    for _ in 0..100_000 {
        time += 800 + random.next() % 20_000;
        let tid = 4000 + random.below(6) as u32;
        if live.len() < 500 || random.below(2) == 0 {
            let (addr, size) = (0x12c0_0000_0000 + (random.next() % (1 << 26)) * 512, 512 * (1 + random.next() % 4096));
            live.push(addr);
            raw.extend(at(time, 4000, tid).alloc(addr, size, device(0)));
        } else {
            raw.extend(at(time, 4000, tid).free(live.swap_remove(random.below(live.len()))));
        }
    }
    let parts: Vec<_> = vec![raw];
    let per_event = capture(&parts).len() as f64 / 100_000.0;
    println!("{per_event:.1} bytes per event");
    assert!(per_event < 40.0, "{per_event}");
}

/// Five seconds of broken captures: nothing panics.
#[test]
fn fuzz() {
    let (valid, mut random) = (capture(&[variety(), variety()]), Random(0xfeed));
    let chunks = capture(&[]).len();
    let end = Instant::now() + Duration::from_secs(5);
    while Instant::now() < end {
        // Most of the damage goes to the chunks: a broken header ends it all.
        let mut tail = valid[chunks..].to_vec();
        random.mutate(&mut tail);
        let _ = read(&[&valid[..chunks], &tail].concat());
        let mut bytes = valid.clone();
        random.mutate(&mut bytes);
        let _ = read(&bytes);
    }
}

proptest! {
    /// Any bytes are a capture or an error.
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200), with_magic: bool) {
        let start: &[u8] = if with_magic { b"MSBPFCAP\x01\0\0\0" } else { b"" };
        let _ = read(&[start, &bytes].concat());
    }
}
