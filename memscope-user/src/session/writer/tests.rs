use std::{
    fs::File,
    path::Path,
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender},
    },
};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::*;
use crate::{
    analyses::Observer,
    capture::{CaptureHeader, WriterOptions},
    model::{Event, EventKind},
    pipeline::{Audience, PipelineConfig},
    session::Listener,
    testing::{device, main, rows},
};

/// Sends the addresses that were allocated.
struct Tap(Sender<u64>);

impl Observer for Tap {
    fn observe(&mut self, event: &Event) {
        if let EventKind::Alloc(alloc) = &event.kind {
            self.0.send(alloc.block.addr).expect("a listener");
        }
    }
}

struct Deaf;

impl Listener for Deaf {}

fn writer(capture: capture::Writer) -> (Writer, Receiver<u64>, UnboundedReceiver<String>) {
    let (seen, addresses) = mpsc::channel();
    let config = PipelineConfig { rows: rows(), ..PipelineConfig::default() };
    let pipeline = Pipeline::new(config, Audience { observers: vec![Box::new(Tap(seen))], ..Audience::default() });
    let (errors, said) = unbounded_channel();
    let work = Work {
        pipeline: Some(pipeline),
        capture: Some(capture),
        recorded: None,
        spent: Spent::nowhere(),
        looker: None,
        speaker: Speaker::new(Arc::new(Deaf)),
        errors,
        captured: None,
        waiting: Waiting::default(),
    };
    (Writer::new(work), addresses, said)
}

/// Allocations at these addresses, and a watermark that lets them go.
fn allocated(addresses: std::ops::Range<u64>) -> Vec<u8> {
    let last = addresses.end;
    let records = addresses.flat_map(|number| main(number).alloc(number << 12, 512, device(0)));
    records.chain(main(last).note(&Note::Watermark { mono_ns: last + 1_000_000_000 })).collect()
}

fn of(numbers: std::ops::Range<u64>) -> Vec<u64> {
    numbers.map(|number| number << 12).collect()
}

fn seen(addresses: &Receiver<u64>) -> Vec<u64> {
    addresses.try_iter().collect()
}

/// Records that come while others wait go to the capture, and come from there, each once and in order.
#[test]
fn what_waits_comes_from_the_capture() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.capture");
    let header = CaptureHeader { rows: rows(), ..CaptureHeader::default() };
    let capture = capture::Writer::create(&path, &header, WriterOptions::default()).expect("created");
    let (mut writer, addresses, mut said) = writer(capture);
    writer.take(&allocated(1..10));
    assert_eq!(seen(&addresses), of(1..10));
    writer.waited_bytes = BEHIND_BYTES;
    writer.fall_behind();
    assert!(writer.behind.is_none());
    writer.waited_bytes += 1;
    writer.fall_behind();
    // More than two chunks.
    let waiting: Vec<_> = (10..9010).step_by(100).map(|number| number..number + 100).collect();
    for numbers in &waiting {
        writer.take(&allocated(numbers.clone()));
    }
    assert_eq!(seen(&addresses), Vec::<u64>::new());
    assert!(writer.catch_up());
    let first = seen(&addresses);
    assert!(!first.is_empty() && first.len() < 8000, "{}", first.len());
    writer.take(&allocated(9010..9020));
    assert_eq!(seen(&addresses), Vec::<u64>::new());
    while writer.catch_up() {}
    assert_eq!([first, seen(&addresses)].concat(), of(10..9020));
    // Nothing waits any more.
    writer.take(&allocated(9020..9030));
    assert_eq!(seen(&addresses), of(9020..9030));
    // The trace ends while something waits.
    writer.fall_behind();
    writer.take(&allocated(9030..9040));
    assert_eq!(seen(&addresses), Vec::<u64>::new());
    let (crew, _faults) = Crew::new(None);
    let thread = crew.spawn("writer", move |post| writer.finish(post)).expect("started");
    let written = thread.join().expect("it does not fail");
    assert!(written.outcome.is_some() && written.capture_error.is_none() && said.try_recv().is_err());
    assert_eq!(seen(&addresses), of(9030..9040));
    // The capture has each once, too.
    let mut reader = capture::Reader::open(&path).expect("opened");
    let mut all = Vec::new();
    while let Some(chunk) = reader.next_chunk().expect("read") {
        all.extend_from_slice(chunk);
    }
    let rest = [9010..9020, 9020..9030, 9030..9040];
    let taken: Vec<u8> = std::iter::once(1..10).chain(waiting).chain(rest).flat_map(allocated).collect();
    assert!(all == taken, "{} bytes, {} taken", all.len(), taken.len());
}

/// The disk is full while records wait: the pipeline gets them all, from memory.
#[test]
fn what_waits_survives_a_full_disk() {
    let full = || {
        let file = File::options().write(true).open("/dev/full").expect("the device");
        writer(capture::Writer::over(file, Path::new("x")))
    };
    let (mut behind, addresses, mut said) = full();
    behind.waited_bytes = BEHIND_BYTES + 1;
    behind.fall_behind();
    assert!(behind.behind.is_some());
    behind.take(&allocated(1..10));
    // Larger than a chunk.
    behind.take(&allocated(10..9000));
    assert_eq!(seen(&addresses), of(1..9000));
    assert!(said.try_recv().expect("an error").contains("cannot write `x`"));
    assert!(behind.behind.is_none() && behind.work.capture.is_none());
    behind.take(&allocated(9000..9010));
    assert_eq!(seen(&addresses), of(9000..9010));
    // It is seen while rows are written.
    let (mut behind, addresses, mut said) = full();
    behind.waited_bytes = BEHIND_BYTES + 1;
    behind.fall_behind();
    behind.take(&allocated(1..10));
    behind.flush();
    assert_eq!(seen(&addresses), of(1..10));
    assert!(said.try_recv().is_ok());
}
