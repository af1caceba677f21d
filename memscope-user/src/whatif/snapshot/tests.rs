//! Snapshots made up by hand.

use std::fmt::Write as _;

use super::*;
use crate::whatif::answers::{Question, Span, Sure, ask};
use crate::whatif::{Card, Gaps, Release, find_settings};

/// A pickle of protocol 2 of these events of device 0: `action addr size stream`, and nothing of device 1.
fn snapshot(events: &[(&str, u64, u64, u64)]) -> Vec<u8> {
    fn text(out: &mut Vec<u8>, text: &str) {
        out.push(b'X');
        out.extend((text.len() as u32).to_le_bytes());
        out.extend(text.as_bytes());
    }
    fn int(out: &mut Vec<u8>, number: u64) {
        out.extend([0x8a, 8]);
        out.extend(number.to_le_bytes());
    }
    let mut out = b"\x80\x02}".to_vec();
    text(&mut out, "device_traces");
    out.extend(b"](](");
    for (action, addr, size, stream) in events {
        out.extend(b"}(");
        text(&mut out, "action");
        text(&mut out, action);
        for (name, number) in [("addr", addr), ("size", size), ("stream", stream)] {
            text(&mut out, name);
            int(&mut out, *number);
        }
        out.push(b'u');
    }
    out.extend(b"e]es.");
    out
}

const MIB: u64 = 1 << 20;
const BASE: u64 = 0x1200_0000_0000;

/// The allocator's records of: 3 MiB, freed; 25 MiB, freed while a stream uses it, and returned; cache emptied.
fn history() -> Vec<u8> {
    let second = BASE + (64 << 20);
    snapshot(&[
        ("segment_alloc", BASE, 20 * MIB, 5),
        ("alloc", BASE, 3 * MIB, 5),
        ("free_requested", BASE, 3 * MIB, 5),
        ("free_completed", BASE, 3 * MIB, 5),
        ("segment_alloc", second, 26 * MIB, 5),
        ("alloc", second, 25 * MIB, 5),
        ("free_requested", second, 25 * MIB, 5),
        ("alloc", BASE, MIB + 1, 5),
        ("free_completed", second, 25 * MIB, 5),
        ("free_requested", BASE, MIB + 1, 5),
        ("free_completed", BASE, MIB + 1, 5),
        ("segment_free", BASE, 20 * MIB, 5),
        ("segment_free", second, 26 * MIB, 5),
        ("segment_alloc", BASE, 2 * MIB, 5),
        ("alloc", BASE, 100, 5),
    ])
}

/// Requests, and their own self-check: the model agrees with the history.
#[test]
fn histories_are_requests() {
    let requests = requests_of(&history(), None).expect("requests");
    assert_eq!((requests.count, requests.frees, requests.frees_in_use), (4, 3, 1));
    let found = find_settings(&requests, Release::Next, &Card::default()).0;
    assert!(found.is_whole(), "{found:?}");
    // The emptied cache is followed by a new segment.
    assert_eq!(requests.gaps, Gaps { unclear_frees: 1, ..Gaps::default() });
    assert_eq!((found.settings.as_str(), found.events, found.places), ("", 7, true));
}

/// Another place of a block is noticed: the check can fail.
#[test]
fn histories_of_other_allocators_are_noticed() {
    let events = [("segment_alloc", BASE, 20 * MIB, 5), ("alloc", BASE + 512, 3 * MIB, 5)];
    let requests = requests_of(&snapshot(&events), None).expect("requests");
    assert!(!find_settings(&requests, Release::Next, &Card::default()).0.is_whole());
}

#[test]
fn what_is_no_snapshot_is_refused() {
    let mut text = String::new();
    for bytes in [&b"\x80\x04}."[..], b"\x80\x04N.", b"\x80\x04cos\nsystem\n.", b"", &snapshot(&[])] {
        let reason = requests_of(bytes, None).expect_err("refused");
        writeln!(text, "{reason}").expect("text");
    }
    assert!(
        text.contains("device_traces") && text.contains("plain data") && text.contains("_record_memory_history"),
        "{text}"
    );
    assert!(is_snapshot(b"\x80\x04") && !is_snapshot(b"\x80\x01") && !is_snapshot(b"ID,"));
}

/// Values of a pickle.
enum Is<'a> {
    Int(u64),
    Text(&'a str),
    False,
    List(Vec<Is<'a>>),
    Dict(Vec<(&'a str, Is<'a>)>),
}

impl Is<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Is::Int(number) => {
                out.extend([0x8a, 8]);
                out.extend(number.to_le_bytes());
            }
            Is::Text(text) => {
                out.push(b'X');
                out.extend((text.len() as u32).to_le_bytes());
                out.extend(text.as_bytes());
            }
            Is::False => out.push(0x89),
            Is::List(items) => {
                out.extend(b"](");
                for item in items {
                    item.write(out);
                }
                out.push(b'e');
            }
            Is::Dict(entries) => {
                out.extend(b"}(");
                for (name, value) in entries {
                    Is::Text(name).write(out);
                    value.write(out);
                }
                out.push(b'u');
            }
        }
    }
}

/// Blocks of the end: bytes, bytes asked for (0: free).
type Blocks<'a> = &'a [(u64, u64)];

/// A snapshot as `torch.cuda.memory._snapshot` documents it: a segment at [`BASE`] with these blocks at the end, the history of its device,
/// and settings.
fn late(blocks: Blocks<'_>, events: &[(&str, u64, u64)], settings: Option<&str>) -> Vec<u8> {
    let block = |(size, asked): &(u64, u64)| {
        let state = if *asked == 0 { "inactive" } else { "active_allocated" };
        Is::Dict(vec![("size", Is::Int(*size)), ("requested_size", Is::Int(*asked)), ("state", Is::Text(state))])
    };
    let segment = Is::Dict(vec![
        ("device", Is::Int(0)),
        ("address", Is::Int(BASE)),
        ("total_size", Is::Int(blocks.iter().map(|(size, _)| size).sum())),
        ("stream", Is::Int(0)),
        ("segment_type", Is::Text("large")),
        ("segment_pool_id", Is::List(vec![Is::Int(0), Is::Int(0)])),
        ("is_expandable", Is::False),
        ("blocks", Is::List(blocks.iter().map(block).collect())),
    ]);
    let event = |(action, offset, size): &(&'static str, u64, u64)| {
        Is::Dict(vec![
            ("action", Is::Text(action)),
            ("addr", Is::Int(BASE + offset)),
            ("size", Is::Int(*size)),
            ("stream", Is::Int(0)),
        ])
    };
    let events: Vec<(&'static str, u64, u64)> = events.iter().map(|event| (known(event.0), event.1, event.2)).collect();
    let mut entries = vec![
        ("segments", Is::List(vec![segment])),
        ("device_traces", Is::List(vec![Is::List(events.iter().map(event).collect())])),
    ];
    let conf = settings.map(|text| Is::Dict(vec![("PYTORCH_CUDA_ALLOC_CONF", Is::Text(text))]));
    entries.extend(conf.map(|conf| ("allocator_settings", conf)));
    let mut out = b"\x80\x02".to_vec();
    Is::Dict(entries).write(&mut out);
    out.push(b'.');
    out
}

fn known(action: &str) -> &'static str {
    let actions = ["alloc", "free_requested", "free_completed", "segment_alloc"];
    actions.into_iter().find(|known| *known == action).expect("an action")
}

/// 3 and 5 MiB and 12 free ones were in a segment of 20. The 3 are freed. 2 get them all, as the rest of 1 MiB is not split off; 12 fit
/// exactly.
const LATE: [(&str, u64, u64); 4] = [
    ("free_requested", 0, 3 * MIB),
    ("free_completed", 0, 3 * MIB),
    ("alloc", 0, 2 * MIB),
    ("alloc", 8 * MIB, 12 * MIB),
];
const LATE_END: [(u64, u64); 3] = [(3 * MIB, 2 * MIB), (5 * MIB, 5 * MIB), (12 * MIB, 12 * MIB)];

/// A history that begins late is replayed from what was there, and reproduced: one free, two requests.
#[test]
fn late_histories_begin_with_what_was_there() {
    let requests = requests_of(&late(&LATE_END, &LATE, None), None).expect("requests");
    assert_eq!((requests.family, requests.gaps), (Family::Cuda, Gaps { before_bytes: 8 * MIB, ..Gaps::default() }));
    let found = find_settings(&requests, Release::TorchMain, &Card::default()).0;
    assert_eq!((found.is_whole(), found.events, found.agreeing, found.places), (true, 3, 3, true), "{found:?}");
    assert_eq!((found.allocator, found.settings.as_str(), found.settings_found), (Family::Cuda, "", true));
    // With torch_npu's pad the blocks cannot lie so, and what they would need is more.
    let requests = requests_of(&late(&LATE_END, &LATE, None), Some(Family::Npu)).expect("requests");
    assert!(!find_settings(&requests, Release::Next, &Card::default()).0.is_whole());
}

/// 3 MiB have a block of 4: its rest was too little to be split off. What lay behind was freed. 16 MiB are found there.
#[test]
fn unsplit_rests_stay_with_their_blocks() {
    let end = [(4 * MIB, 3 * MIB), (16 * MIB, 16 * MIB)];
    let requests = requests_of(&late(&end, &[("alloc", 4 * MIB, 16 * MIB)], None), None).expect("requests");
    let found = find_settings(&requests, Release::TorchMain, &Card::default()).0;
    assert_eq!((found.is_whole(), found.agreeing), (true, 1), "{found:?}");
}

/// A block elsewhere than the rules put it is noticed: 12 MiB behind the first free block, not in it.
#[test]
fn late_histories_can_differ() {
    let events = [("alloc", 6 * MIB, 2 * MIB)];
    let end = [(3 * MIB, 3 * MIB), (3 * MIB, 0), (2 * MIB, 2 * MIB), (12 * MIB, 0)];
    let requests = requests_of(&late(&end, &events, None), None).expect("requests");
    let found = find_settings(&requests, Release::TorchMain, &Card::default()).0;
    assert_eq!((found.is_whole(), found.events, found.agreeing), (false, 1, 0), "{found:?}");
}

/// A history that cannot have led to the snapshot's end says nothing about what was before.
#[test]
fn contradictions_are_no_beginning() {
    let events = [("alloc", 8 * MIB, 12 * MIB), ("free_requested", 0, 3 * MIB)];
    let requests = requests_of(&late(&[(20 * MIB, 0)], &events, None), None).expect("requests");
    assert_eq!((requests.gaps.before_bytes, requests.gaps.older_bytes, requests.family), (0, 3 * MIB, Family::Npu));
}

/// Settings of the snapshot are those of the recording, and only CUDA's snapshots have any.
#[test]
fn settings_are_in_the_snapshot() {
    let end = [(3 * MIB, 0), (17 * MIB, 0)];
    let events = [("segment_alloc", 0, 20 * MIB), ("alloc", 0, 3 * MIB), ("free_requested", 0, 3 * MIB)];
    let text = "max_split_size_mb:64";
    let requests = requests_of(&late(&end, &events, Some(text)), None).expect("requests");
    assert_eq!((requests.family, requests.configuration.as_deref()), (Family::Cuda, Some(text)));
    let found = find_settings(&requests, Release::TorchMain, &Card::default()).0;
    assert_eq!((found.settings.as_str(), found.settings_found), (text, false));
}

/// The recording itself is exact; on a smaller card it would have begun otherwise.
#[test]
fn a_late_recording_is_exact_as_it_was() {
    let requests = requests_of(&late(&LATE_END, &LATE, None), None).expect("requests");
    let question = Question { release: Release::TorchMain, limit_bytes: Some(64 * MIB), ..Question::default() };
    let found = ask(&requests, &requests, &question).expect("answers");
    assert_eq!((found.recorded.sure, found.answers[0].sure), (Sure::Exact, Sure::Estimate));
    assert_eq!(found.recorded.devices[0].reserved_peak_bytes, Span { least: 20 * MIB, most: 20 * MIB });
}
