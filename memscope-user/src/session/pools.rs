//! Reads the pools of processes that were running before: what they held when they were attached to. Once for each, after its probes are
//! placed, by a thread of its own with low priority; the process is not stopped.
//! Processes that join a running trace come by the hundred, to an agent under a budget: their memory is not passed over.

use std::{sync::mpsc, time::Duration};

use super::{TraceError, heap, log::Speaker};
use crate::{
    capture::{Note, note_record},
    crew::{self, Crew, Post},
    error_chain,
    holders::{Books, BooksBudget, DeviceBooks, NotRead, PassBudget, Process, books},
    os::{clock::monotonic_ns, priority, process},
    ring::{self, Reader},
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

/// Has pools read.
pub(super) struct PoolReader {
    pids: mpsc::Sender<u32>,
    notes: ring::Notes,
}

impl PoolReader {
    /// The probes of a process are placed, which was running before: its pool is read.
    pub(super) fn read(&self, pid: u32) {
        self.notes.send(note_record(monotonic_ns(), 0, &Note::PoolAsked { pid }));
        // A thread that has ended has reported why.
        let _ = self.pids.send(pid);
    }
}

/// Starts the thread. `passes`: a process's memory may be passed over, which shows the purposes of blocks; without, a pool is read out of its
/// own structures alone, in milliseconds.
pub(super) fn start(passes: bool, reader: &Reader, speaker: Speaker, crew: &Crew) -> Result<PoolReader, TraceError> {
    let (pids, asked) = mpsc::channel();
    let notes = reader.notes();
    let budget = BooksBudget { patience: PATIENCE, pass: passes.then_some(PASS) };
    let work = move |post: &mut Post| {
        priority::give_way(priority::LOW);
        for pid in asked {
            read(pid, budget, &notes, &speaker);
            heap::give_back();
            post.round();
        }
    };
    crew.spawn("memscope-pool", work).map_err(TraceError::system("cannot start the thread that reads pools"))?;
    Ok(PoolReader { pids, notes: reader.notes() })
}

fn read(pid: u32, budget: BooksBudget, notes: &ring::Notes, speaker: &Speaker) {
    // Memory of a process is hostile, and a trace without older blocks is better than none.
    let parent = process::parent(pid).and_then(|parent| Process::open(parent).ok());
    let found = Process::open(pid).map(|process| crew::quietly(|| books(&process, parent.as_ref(), budget)));
    // All at one moment: between two of them no call may come.
    let time_ns = monotonic_ns();
    let mut records = Vec::new();
    match found {
        Ok(Some(Ok(books))) => {
            report(pid, &books, speaker);
            let notes = books.devices.into_iter().flat_map(|device| notes_of(pid, device));
            records.extend(notes.flat_map(|note| note_record(time_ns, 0, &note)));
        }
        Ok(Some(Err(why @ (NotRead::NoPool | NotRead::OfParent | NotRead::Gone)))) => {
            speaker.debug(format_args!("the pool of process {pid} was not read: {why}"));
        }
        Ok(Some(Err(why))) => warn(pid, &why.to_string(), speaker),
        Ok(None) => warn(pid, "its memory was not understood", speaker),
        Err(failure) => {
            speaker.debug(format_args!("the pool of process {pid} was not read: {}", error_chain(&failure)));
        }
    }
    records.extend(note_record(time_ns, 0, &Note::PoolRead { pid }));
    notes.send(records);
}

/// Purposes come before the blocks that they are of.
fn notes_of(pid: u32, books: DeviceBooks) -> [Note; 2] {
    let DeviceBooks { device, used_bytes, reserved_bytes, segments, blocks, held_as } = books;
    let blocks = blocks.into_iter().map(|block| (block.address, block.size_bytes, block.requested_bytes)).collect();
    let held = Note::PoolHeld { pid, device, blocks: held_as };
    [held, Note::PoolFound { pid, device, used_bytes, reserved_bytes, segments, blocks }]
}

fn report(pid: u32, books: &Books, speaker: &Speaker) {
    let (took, mib) = (Duration::from_nanos(books.effort.time_ns), books.effort.scanned_bytes >> 20);
    let blocks: usize = books.devices.iter().map(|device| device.blocks.len()).sum();
    speaker.debug(format_args!(
        "read the pool of process {pid}: {blocks} block(s) from before the attach; {took:.1?}, {mib} MiB of host memory"
    ));
    if !books.unsure.is_empty() {
        let devices: Vec<String> = books.unsure.iter().map(u32::to_string).collect();
        let disagrees = "it did not agree with its own sums (it changed all the while)";
        let why = books.cut.map_or_else(|| disagrees.to_owned(), |cut| cut.to_string());
        warn(pid, &format!("device {}: {why}", devices.join(", ")), speaker);
    }
}

fn warn(pid: u32, why: &str, speaker: &Speaker) {
    speaker.warn(format_args!(
        "what the pool of process {pid} held at the attach was not found: {why}; blocks from before are known by their sum alone"
    ));
}
