//! Call stacks between the ring and the writer: completes those that the kernel side had to truncate.
//!
//! Two threads between reader and writer, only if stacks are requested. `finish` replaces snapshots by whole stacks and
//! completes code objects, while the program goes on; `symbolize` puts the symbols of native stacks before the records
//! that need them, which may be slow: a library's symbols are read when the first of them is needed. So captures hold
//! all that the pipeline needs, and a replay needs no process.

mod backlog;
pub mod code;
mod finish;
pub mod mappings;
mod symbolize;
pub mod symbols;
pub mod unwind;

use std::{
    collections::HashMap,
    hash::Hash,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{self, Receiver},
    },
};

pub use self::symbols::SymbolOptions;
use self::{finish::Finish, mappings::Mappings, symbolize::Symbolize};
use crate::{crew::Crew, os::priority::Haste, ring::Batch};

/// Batches that wait for the next stage.
const BATCHES: usize = 4;

/// Finishes native stacks that the kernel side could not.
pub trait FinishStacks: Send {
    /// Takes the record of a snapshot, and returns that of the whole stack; `None`: it is dropped.
    fn finish(&mut self, snapshot: &[u8], mappings: &mut Mappings) -> Option<Vec<u8>>;

    /// Makes the missing rule of this record's stack, so that the next walk gets past it.
    fn learn(&mut self, stack: &[u8], mappings: &mut Mappings);
}

/// Completes a code object: gets its record, and gives another one for it, unless nothing is missing.
pub type CompleteCode = Box<dyn FnMut(&[u8]) -> Option<Vec<u8>> + Send>;

/// Mappings shared by several threads: this stage, and the thread that sees first that a process maps a file.
#[derive(Clone)]
pub struct SharedMappings(Arc<Mutex<Mappings>>);

impl SharedMappings {
    /// Shares mappings.
    #[must_use]
    pub fn new(mappings: Mappings) -> Self {
        Self(Arc::new(Mutex::new(mappings)))
    }

    /// A process has mapped a file, or is new.
    pub fn look_ahead(&self, pid: u32) {
        self.lock().look_ahead(pid);
    }

    /// To look into.
    pub fn lock(&self) -> MutexGuard<'_, Mappings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes the entries unused for the longest time, if there are more than `most`. `used` is the time of the last use.
fn make_room<K: Copy + Eq + Hash, V>(map: &mut HashMap<K, V>, most: usize, used: impl Fn(&V) -> u64) {
    if map.len() >= most
        && let Some(oldest) = map.iter().min_by_key(|(_, value)| used(value)).map(|(key, _)| *key)
    {
        map.remove(&oldest);
    }
}

/// The inputs of the stage.
pub struct Stage {
    /// The source of symbols; `None`: no native stacks are taken.
    pub mappings: Option<SharedMappings>,
    /// How.
    pub symbols: SymbolOptions,
    /// Completes stacks and code objects that the kernel side had to truncate.
    pub unfinished: Option<Box<dyn FinishStacks>>,
    /// Gets code objects.
    pub codes: Option<CompleteCode>,
}

/// Starts the stage behind `batches`. It ends when those do.
pub fn start(batches: Receiver<Batch>, stage: Stage, crew: &Crew) -> io::Result<Receiver<Batch>> {
    let Stage { mappings, symbols, unfinished, codes } = stage;
    let mut finish = Finish { mappings: mappings.clone(), unfinished, codes };
    let (sender, finished) = mpsc::sync_channel(BATCHES);
    crew.spawn("memscope-stacks", move |post| {
        backlog::hand_on(&batches, &sender, |bytes| {
            post.round();
            finish.process(bytes)
        });
    })?;
    let (sender, output) = mpsc::sync_channel(BATCHES);
    crew.spawn("memscope-symbols", move |post| {
        let mut symbolize = Symbolize::new(mappings, symbols);
        let mut haste = Haste::new();
        while let Ok(Batch { bytes, watermark_ns }) = backlog::next_of(&finished, &mut haste) {
            post.round();
            haste.busy(bytes.len());
            if sender.send(Batch { bytes: symbolize.process(bytes), watermark_ns }).is_err() {
                return;
            }
        }
    })?;
    Ok(output)
}

#[cfg(test)]
mod tests {
    use memscope_common::{Kind, StackEnd};

    use super::*;
    use crate::testing::{Who, at};
    use crate::{
        capture::Note,
        decode::{Body, Record, Records},
    };

    /// The records in short.
    fn brief(bytes: &[u8]) -> Vec<String> {
        let line = |record: Record<'_>| match record.body {
            Body::Note(json) => match Note::parse(json) {
                Ok(Note::Symbols { generation, symbols }) => {
                    let names: Vec<_> = symbols
                        .iter()
                        .map(|symbol| symbol.functions.last().map_or("-", |function| function.name.as_str()))
                        .collect();
                    format!("symbols {generation} {}", names.join(","))
                }
                other => format!("{other:?}"),
            },
            Body::Stack(stack) => format!("stack {}", stack.id),
            Body::Code(code) => format!("code {:x}", code.address),
            Body::Call(_) => "call".to_owned(),
            other => format!("{other:?}"),
        };
        Records::new(bytes).map(|record| record.map_or_else(|error| error.to_string(), line)).collect()
    }

    fn this_process(time_ns: u64) -> Who {
        at(time_ns, std::process::id(), 1)
    }

    /// The output of both threads.
    struct Work(Finish, Symbolize);

    impl Work {
        fn new(Stage { mappings, symbols, unfinished, codes }: Stage) -> Self {
            Self(Finish { mappings: mappings.clone(), unfinished, codes }, Symbolize::new(mappings, symbols))
        }

        fn process(&mut self, bytes: Vec<u8>) -> Vec<u8> {
            self.1.process(self.0.process(bytes))
        }
    }

    fn stage() -> Stage {
        let mappings = Some(SharedMappings::new(Mappings::new(Box::new(|_| Some(7)))));
        Stage { mappings, symbols: SymbolOptions::default(), unfinished: None, codes: None }
    }

    /// Finishes snapshots of one size.
    struct Finisher {
        qsort: u64,
        learnt: Vec<usize>,
    }

    impl FinishStacks for Finisher {
        fn finish(&mut self, snapshot: &[u8], _: &mut Mappings) -> Option<Vec<u8>> {
            let qsort = self.qsort;
            (snapshot.len() == 24 + 184).then(|| this_process(9).native(77, 7, &[qsort], StackEnd::Root))
        }

        fn learn(&mut self, stack: &[u8], _: &mut Mappings) {
            self.learnt.push(stack.len());
        }
    }

    fn address(function: *const ()) -> u64 {
        function.expose_provenance() as u64
    }

    /// Each address has its symbol once, before its first stack; records without stacks are unchanged.
    #[test]
    fn symbols_come_first_and_once() {
        let (one, other) = (address(libc::qsort as *const ()), address(libc::getenv as *const ()) + 1);
        let mut work = Work::new(stage());
        let records = [
            this_process(1).native(5, 7, &[one, other], StackEnd::Root),
            this_process(1).alloc(1, 2, 3),
            this_process(2).native(6, 7, &[other, one], StackEnd::Root),
            this_process(2).native(8, 9, &[one], StackEnd::Root),
        ];
        let out = brief(&work.process(records.concat()));
        assert_eq!(out, ["symbols 7 qsort,getenv", "stack 5", "call", "stack 6", "stack 8"]);
        let plain = this_process(3).alloc(1, 2, 3);
        assert_eq!(work.process(plain.clone()), plain);
    }

    /// A snapshot becomes its completed stack; one that cannot be completed is dropped.
    #[test]
    fn snapshots_are_replaced() {
        let qsort = address(libc::qsort as *const ());
        let mut work =
            Work::new(Stage { unfinished: Some(Box::new(Finisher { qsort, learnt: Vec::new() })), ..stage() });
        let snapshot = |len| this_process(1).record(Kind::Snapshot, 0, &vec![1; len]);
        let call = this_process(1).alloc(1, 2, 3);
        let out = brief(&work.process([snapshot(184), call.clone(), snapshot(8), call].concat()));
        assert_eq!(out, ["symbols 7 qsort", "stack 77", "call", "call"]);
    }

    #[test]
    fn codes_are_completed() {
        let complete: CompleteCode =
            Box::new(|raw| raw.ends_with(b"cut").then(|| this_process(1).code((0xffff, 1), "whole", "f", &[])));
        let mut work = Work::new(Stage { codes: Some(complete), ..stage() });
        let code = |address, lines: &[u8]| this_process(1).code((address, 1), "a.py", "f", lines);
        let out = brief(&work.process([code(1, b"cut"), code(2, b"")].concat()));
        assert_eq!(out, ["code ffff", "code 2"]);
    }

    /// Any bytes that are not for this stage pass through it.
    #[test]
    fn any_bytes_pass() {
        let mut random = crate::testing::Random(5);
        let mut work = Work::new(stage());
        for _ in 0..300 {
            let mut bytes = crate::testing::variety();
            random.mutate(&mut bytes);
            let snapshots = Records::new(&bytes)
                .flatten()
                .any(|record| matches!(record.body, Body::Unknown { kind } if kind == Kind::Snapshot as u16));
            let out = work.process(bytes.clone());
            assert!(snapshots || out.len() >= bytes.len());
        }
    }

    /// The thread ends with its input, and hands watermarks on.
    #[test]
    fn stage_runs_behind_a_reader() {
        let (sender, batches) = mpsc::channel();
        let output = start(batches, stage(), &Crew::new(None).0).expect("started");
        let qsort = address(libc::qsort as *const ());
        let bytes = this_process(1).native(5, 7, &[qsort], StackEnd::Root);
        sender.send(Batch { bytes, watermark_ns: 3 }).expect("taken");
        drop(sender);
        let batches: Vec<Batch> = output.iter().collect();
        assert_eq!(
            (brief(&batches[0].bytes), batches[0].watermark_ns, batches.len()),
            (vec!["symbols 7 qsort".to_owned(), "stack 5".to_owned()], 3, 1)
        );
    }
}
