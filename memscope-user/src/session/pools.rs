//! Reads the pools of processes that were running before: what they held when they were attached to. Once for each, after its probes are
//! placed, by a thread of its own with low priority; the process is not stopped.
//! Processes that join a running trace come by the hundred, to an agent under a budget: their memory is not passed over.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError, mpsc},
    time::Duration,
};

use super::{TraceError, heap, log::Speaker};
use crate::{
    capture::{Note, note_record},
    crew::{self, Crew, Post},
    error_chain,
    holders::{self, Books, BooksBudget, DeviceBooks, Effort, Framework, NotRead, PassBudget, Process, books},
    os::{clock::monotonic_ns, priority, process},
    ring::{self, Reader},
    text::numbers::counted,
};

/// No further reading begins later.
const PATIENCE: Duration = Duration::from_secs(6);
/// As for a look at who holds blocks.
const PASS: PassBudget = PassBudget {
    scan: Duration::from_secs(4),
    search: Duration::from_secs(1),
    longest: Duration::from_secs(10),
    pointers: 64 << 20,
};

/// Whether the purposes of blocks are looked for, by a pass over the process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purposes {
    /// No: a pool is read out of its own structures alone, in milliseconds.
    Never,
    /// Blocks are reported without; it takes longer than some of them live.
    Later,
    /// Blocks are reported with them: rows have owners.
    First,
}

/// Device of a process that was running before, as it counts them, where a framework with one device has chosen it.
pub(super) fn device(pid: u32) -> Option<u32> {
    // Memory of a process is hostile.
    crew::quietly(|| Process::open(pid).ok().and_then(|process| holders::device(&process))).flatten()
}

/// Has pools read.
pub(super) struct PoolReader {
    pids: mpsc::Sender<u32>,
    notes: ring::Notes,
    open: Open,
}

/// Processes with a pool that is still to be read.
#[derive(Clone, Default)]
struct Open(Arc<Mutex<BTreeSet<u32>>>);

impl Open {
    fn change<T>(&self, change: impl FnOnce(&mut BTreeSet<u32>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl PoolReader {
    /// The probes of a process are placed, which was running before: its pool is read.
    pub(super) fn read(&self, pid: u32) {
        self.notes.send(note_record(monotonic_ns(), 0, &Note::PoolAsked { pid }));
        self.open.change(|open| open.insert(pid));
        // A thread that has ended has reported why.
        let _ = self.pids.send(pid);
    }

    /// The trace ends: what is not read by now comes too late.
    pub(super) fn end(&self, speaker: &Speaker) {
        for pid in self.open.change(std::mem::take) {
            warn(pid, "the trace ended before it was read", speaker);
        }
    }
}

/// Starts the thread.
pub(super) fn start(
    purposes: Purposes,
    reader: &Reader,
    speaker: Speaker,
    crew: &Crew,
) -> Result<PoolReader, TraceError> {
    let (pids, asked) = mpsc::channel();
    let (notes, open) = (reader.notes(), Open::default());
    let still_open = open.clone();
    let work = move |post: &mut Post| {
        priority::give_way(priority::LOW);
        for pid in asked {
            read(pid, purposes, &notes, &speaker, &open);
            heap::give_back();
            post.round();
        }
    };
    crew.spawn("memscope-pool", work).map_err(TraceError::system("cannot start the thread that reads pools"))?;
    Ok(PoolReader { pids, notes: reader.notes(), open: still_open })
}

fn read(pid: u32, purposes: Purposes, notes: &ring::Notes, speaker: &Speaker, open: &Open) {
    let budget = BooksBudget { patience: PATIENCE, pass: (purposes != Purposes::Never).then_some(PASS) };
    let found = match books_of(pid, budget) {
        // The trace has ended meanwhile, and has said that nothing was read.
        _ if !open.change(|open| open.remove(&pid)) => None,
        Ok((process, books)) => {
            report(pid, &books, speaker);
            Some((process, books))
        }
        Err(why) => {
            why.say(pid, speaker);
            None
        }
    };
    let notes_of = |books: &Books| -> Vec<Note> {
        books.devices.iter().map(|device| found_note(pid, books.framework, device)).collect()
    };
    let of_pool = found.iter().flat_map(|(_, books)| notes_of(books)).chain([Note::PoolRead { pid }]);
    let held = || found.as_ref().into_iter().flat_map(|(process, books)| held_notes(pid, process, books, speaker));
    match purposes {
        Purposes::Never => send(notes, of_pool),
        Purposes::Later => {
            send(notes, of_pool);
            send(notes, held());
        }
        Purposes::First => send(notes, held().chain(of_pool)),
    }
}

/// All at one moment: between two of them no call may come.
fn send(notes: &ring::Notes, of_pool: impl Iterator<Item = Note>) {
    notes.send(records(of_pool));
}

/// A note may take a pass over the process's memory: its time is that of its end, as the stream has gone on.
fn records(notes: impl Iterator<Item = Note>) -> Vec<u8> {
    let notes: Vec<Note> = notes.collect();
    let time_ns = monotonic_ns();
    notes.iter().flat_map(|note| note_record(time_ns, 0, note)).collect()
}

/// Why there is nothing of a pool.
pub(super) enum Missing {
    /// There is none to read.
    NoPool(String),
    /// There is one.
    Unread(String),
}

impl Missing {
    pub(super) fn reason(self) -> String {
        match self {
            Self::NoPool(why) | Self::Unread(why) => why,
        }
    }

    fn say(&self, pid: u32, speaker: &Speaker) {
        match self {
            Self::NoPool(why) => speaker.debug(format_args!("the pool of process {pid} was not read: {why}")),
            Self::Unread(why) => warn(pid, why, speaker),
        }
    }
}

/// Reads the pool.
pub(super) fn books_of(pid: u32, budget: BooksBudget) -> Result<(Process, Books), Missing> {
    let process = Process::open(pid).map_err(|failure| Missing::NoPool(error_chain(&failure)))?;
    let parent = process::parent(pid).and_then(|parent| Process::open(parent).ok());
    // Memory of a process is hostile, and a trace without older blocks is better than none.
    match crew::quietly(|| books(&process, parent.as_ref(), budget)) {
        Some(Ok(books)) => Ok((process, books)),
        Some(Err(why @ (NotRead::NoPool | NotRead::OfParent | NotRead::Gone))) => Err(Missing::NoPool(why.to_string())),
        Some(Err(why)) => Err(Missing::Unread(why.to_string())),
        None => Err(Missing::Unread("its memory was not understood".to_owned())),
    }
}

/// Nothing if the process has ended, or its memory was not understood: its blocks are of no known purpose.
fn held_notes(pid: u32, process: &Process, books: &Books, speaker: &Speaker) -> Vec<Note> {
    let passed = || crew::quietly(|| holders::purposes(process, books, PASS))?.ok();
    let Some(purposes) = books.purposes.clone().or_else(passed) else { return Vec::new() };
    let known: usize = purposes.of_devices.iter().map(|(_, held_as)| held_as.len()).sum();
    let (known, cost) = (counted(known as u64, "block"), cost(purposes.effort));
    speaker.debug(format_args!("found the purposes of {known} of process {pid}; {cost}"));
    let held = |(device, blocks)| Note::PoolHeld { pid, pool: pool_name(books.framework), device, blocks };
    purposes.of_devices.into_iter().map(held).collect()
}

/// Event type of a framework's pool.
pub(super) fn pool_name(framework: Framework) -> Option<String> {
    match framework {
        Framework::Torch => None,
        Framework::MindSpore => Some("MINDSPORE".to_owned()),
    }
}

fn found_note(pid: u32, framework: Framework, books: &DeviceBooks) -> Note {
    let DeviceBooks { device, used_bytes, reserved_bytes, ref segments, ref blocks, .. } = *books;
    let blocks = blocks.iter().map(|block| (block.address, block.size_bytes, block.requested_bytes)).collect();
    let pool = pool_name(framework);
    Note::PoolFound { pid, pool, device, used_bytes, reserved_bytes, segments: segments.clone(), blocks }
}

fn report(pid: u32, books: &Books, speaker: &Speaker) {
    let blocks: usize = books.devices.iter().map(|device| device.blocks.len()).sum();
    let (blocks, cost) = (counted(blocks as u64, "block"), cost(books.effort));
    speaker.debug(format_args!("read the pool of process {pid}: {blocks} from before the attach; {cost}"));
    if !books.unsure.is_empty() {
        let devices: Vec<String> = books.unsure.iter().map(u32::to_string).collect();
        let disagrees = "it did not agree with its own sums (it changed all the while)";
        let why = books.cut.map_or_else(|| disagrees.to_owned(), |cut| cut.to_string());
        warn(pid, &format!("device {}: {why}", devices.join(", ")), speaker);
    }
}

fn cost(effort: Effort) -> String {
    let (took, mib) = (Duration::from_nanos(effort.time_ns), effort.scanned_bytes >> 20);
    format!("{took:.1?}, {mib} MiB of host memory")
}

fn warn(pid: u32, why: &str, speaker: &Speaker) {
    speaker.warn(format_args!(
        "what the pool of process {pid} held at the attach was not found: {why}; blocks from before are known by their sum alone"
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record that is older than what went out before is dropped by its reader, so the time comes last.
    #[test]
    fn notes_have_the_time_of_their_end() {
        let mut made_ns = 0;
        let records = records(std::iter::once_with(|| {
            made_ns = monotonic_ns();
            Note::PoolRead { pid: 7 }
        }));
        let time_ns = records.first_chunk().copied().map(u64::from_le_bytes).expect("a record");
        assert!(made_ns > 0 && time_ns >= made_ns, "{time_ns} {made_ns}");
    }
}
