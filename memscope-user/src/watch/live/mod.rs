//! Reads watched blocks in running processes (mode S of the design): the kernel side sends a thread at an operator to a
//! handler of ours, which waits for the device, copies the block's bytes to shared memory, and continues. See
//! docs/watch.md.
//!
//! * `blob` is the handler, `shared` that memory, `target` the conditions on the process, `setup` the way of the
//!   handler into it, by signal `frames` that work without us; `seccomp` checks in advance whether it may, and `arch`
//!   has the differences of machines.
//! * `engine` is a thread of ours for each process: [`items`](super::items) chooses the looks,
//!   [`verdict`](super::verdict) draws the conclusions.

mod arch;
mod blob;
mod callers;
mod engine;
mod frames;
mod memory;
mod passed;
mod seccomp;
mod setup;
mod shared;
mod target;

use std::{
    collections::{HashMap, HashSet},
    fmt::Write as _,
    io,
    mem::offset_of,
    panic::Location,
    sync::{Arc, Mutex, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use memscope_common::Header;

use self::engine::{Common, Engine, Input, Seen};
use super::{
    items::{Block, Look},
    spec::WatchSpec,
    verdict::{BlockKey, BlockVerdict, Change, Freed},
};
use crate::{
    analyses::watched::{Conclusion, PassedOperator, PassedSides, Watched, WatchedBlock, WatchedFree},
    crew::{Crew, Post},
    kernel::{KernelError, WatchMaps},
    pipeline::calls::Calls,
    probes::{CallKind, LaunchCall, ProbeSpec},
    sinks::{SinkError, watch::WatchFiles},
};

/// Most processes watched at once.
const MAX_PROCESSES: usize = 1024;

/// Gives the files of a process.
pub type Outputs = Box<dyn Fn(u32) -> Result<WatchFiles, SinkError> + Send + Sync>;
/// Sends a message to the user.
pub type Notify = Box<dyn Fn(&Notice<'_>) + Send + Sync>;
/// Opens the kernel side's maps for one more thread.
pub type OpenMaps = Box<dyn Fn() -> Result<WatchMaps, KernelError> + Send>;

/// A message to the user.
#[derive(Clone, Copy, Debug)]
pub struct Notice<'a> {
    /// It is a warning.
    pub warns: bool,
    /// The line of the source that sends it.
    pub place: &'static Location<'static>,
    /// The text.
    pub text: &'a str,
}

/// The records that block watch has to see as soon as they come.
pub struct Tap {
    rows: HashSet<u16>,
    sender: mpsc::Sender<Message>,
}

enum Message {
    Record(Vec<u8>),
    /// Leave the processes alone; dropped when that is done.
    Leave(mpsc::Sender<()>),
    Finish,
}

impl Tap {
    /// Takes a record, if it is one of those.
    pub fn take(&self, record: &[u8]) {
        let row = record.get(offset_of!(Header, row)..).and_then(|rest| rest.first_chunk());
        if row.is_some_and(|row| self.rows.contains(&u16::from_le_bytes(*row))) {
            // The watch has ended.
            let _ = self.sender.send(Message::Record(record.to_vec()));
        }
    }
}

/// Watches blocks in all traced processes.
pub struct Watch {
    sender: mpsc::Sender<Message>,
    thread: JoinHandle<Vec<Seen>>,
}

/// Options of block watch.
pub struct WatchOptions {
    /// The block to watch.
    pub spec: WatchSpec,
    /// Rows by number, with their flags.
    pub rows: Vec<(u16, &'static ProbeSpec, u16)>,
    /// Where to write.
    pub outputs: Outputs,
    /// Sends messages to the user.
    pub notify: Notify,
}

impl Watch {
    /// Starts the thread that hands records to the processes' engines.
    pub fn start(options: WatchOptions, open_maps: OpenMaps, crew: &Crew) -> io::Result<(Self, Tap)> {
        let WatchOptions { spec, rows, outputs, notify } = options;
        let wanted = rows
            .iter()
            .filter(|(_, spec, flags)| *flags != 0 || spec.meaning == CallKind::Launch(LaunchCall::KernelName));
        let (sender, receiver) = mpsc::channel();
        let tap = Tap { rows: wanted.map(|(number, ..)| *number).collect(), sender: sender.clone() };
        let calls = Calls::new(rows.iter().map(|(number, spec, _)| (*number, spec.describe())));
        let rows = rows.into_iter().map(|(number, spec, flags)| (number, (spec, flags))).collect();
        let common = Arc::new(Common { spec, rows, calls, outputs, notify, memories: Mutex::default() });
        let hub = Hub { common, open_maps, crew: crew.clone(), engines: HashMap::new(), seen: Vec::new() };
        let thread = crew.spawn("memscope-watch", move |post| hub.run(&receiver, post))?;
        Ok((Self { sender, thread }, tap))
    }

    /// Takes the handlers out of the processes, where that can be done. Records may follow.
    pub fn leave(&self) {
        /// Each process takes some 300 ms at most, all at once.
        const PATIENCE: Duration = Duration::from_secs(5);
        let (done, left) = mpsc::channel();
        let _ = self.sender.send(Message::Leave(done));
        // Nothing is ever sent: it is closed by the last one.
        let _ = left.recv_timeout(PATIENCE);
    }

    /// Ends the watch; returns its findings, by process.
    #[must_use]
    pub fn finish(self) -> Vec<Watched> {
        let _ = self.sender.send(Message::Finish);
        let seen = self.thread.join().unwrap_or_default();
        seen.iter().map(watched).collect()
    }
}

struct Hub {
    common: Arc<Common>,
    open_maps: OpenMaps,
    crew: Crew,
    engines: HashMap<u32, (mpsc::Sender<Input>, JoinHandle<Seen>)>,
    seen: Vec<Seen>,
}

impl Hub {
    fn run(mut self, receiver: &mpsc::Receiver<Message>, post: &mut Post) -> Vec<Seen> {
        loop {
            post.round();
            match receiver.recv() {
                Ok(Message::Record(record)) => self.hand_on(record),
                Ok(Message::Leave(done)) => {
                    for (sender, _) in self.engines.values() {
                        let _ = sender.send(Input::Leave(done.clone()));
                    }
                }
                Ok(Message::Finish) | Err(_) => break,
            }
        }
        for (sender, _) in self.engines.values() {
            let _ = sender.send(Input::Finish);
        }
        let engines = std::mem::take(&mut self.engines);
        self.seen.extend(engines.into_values().filter_map(|(_, thread)| thread.join().ok()));
        self.seen.sort_by_key(|seen| seen.pid);
        self.seen
    }

    fn hand_on(&mut self, record: Vec<u8>) {
        let at = std::mem::offset_of!(Header, tgid);
        let Some(pid) = record.get(at..at + 4).and_then(<[u8]>::first_chunk).copied().map(u32::from_ne_bytes) else {
            return;
        };
        let mut input = Input::Record(record);
        for _ in 0..2 {
            if !self.engines.contains_key(&pid) && !self.begin(pid) {
                return;
            }
            let Some((sender, _)) = self.engines.get(&pid) else { return };
            match sender.send(input) {
                Ok(()) => return,
                // That process has ended, and this is another one of its number.
                Err(mpsc::SendError(unsent)) => {
                    input = unsent;
                    let ended = self.engines.remove(&pid).and_then(|(_, thread)| thread.join().ok());
                    self.seen.extend(ended);
                }
            }
        }
    }

    fn begin(&mut self, pid: u32) -> bool {
        // Records of one that has ended may still come.
        if self.engines.len() >= MAX_PROCESSES || crate::os::process::state(pid).is_none() {
            return false;
        }
        let maps = match (self.open_maps)() {
            Ok(maps) => maps,
            Err(error) => {
                self.common.say(true, &crate::error_chain(&error));
                return false;
            }
        };
        let (sender, inbox) = mpsc::channel();
        let engine = Engine::new(pid, Arc::clone(&self.common), maps, inbox);
        match self.crew.spawn("memscope-watch", move |_| engine.run()) {
            Ok(thread) => {
                self.engines.insert(pid, (sender, thread));
                true
            }
            Err(error) => {
                self.common.say(true, &format!("cannot watch process {pid}: {error}"));
                false
            }
        }
    }
}

/// A change, on one line.
fn change_text(look: &Look, change: &Change) -> String {
    let block = &look.block;
    let mut text = format!(
        "watched block `{}` output {} ({:#x}, {} bytes) changed",
        block.name.escape_debug(),
        block.index,
        block.range.addr,
        block.range.size_bytes
    );
    let _ = write!(text, " {}: {:016x}, then {:016x}", change.when(), change.from_sum, change.to_sum);
    if change.unread > 0 {
        let _ = write!(text, "; {} look(s) in between failed", change.unread);
    }
    if !change.others.is_empty() || change.more_others > 0 {
        let names: Vec<String> = change.others.iter().map(|name| format!("`{}`", name.escape_debug())).collect();
        let _ = write!(text, "; also launched meanwhile by other threads: {}", names.join(", "));
        if change.more_others > 0 {
            let _ = write!(text, " and {} more", change.more_others);
        }
    }
    text
}

/// The message that a block is no longer watched, on one line.
fn freed_text(block: &Block, freed: &Freed) -> String {
    let Block { name, index, range, .. } = block;
    format!(
        "watched block `{}` output {index} ({:#x}, {} bytes) was freed by {} (thread {}), and is watched no longer",
        name.escape_debug(),
        range.addr,
        range.size_bytes,
        freed.by,
        freed.tid
    )
}

/// What was found in a process.
fn watched(seen: &Seen) -> Watched {
    const MAX_NAMED: usize = 32;
    let Seen { pid, verdicts, skipped, late, merged, was_set_up, unsent, passed, unsent_since_ns } = seen;
    let block = |((name, index, addr, size_bytes, _), verdict): (&BlockKey, &BlockVerdict)| {
        let was_over = verdict.freed.as_ref().is_some_and(|freed| freed.time_ns < *unsent_since_ns);
        let missed = skipped + late + merged > 0 || (*unsent > 0 && !was_over);
        WatchedBlock {
            name: name.to_string(),
            output: *index,
            addr: *addr,
            size_bytes: *size_bytes,
            conclusion: conclusion(verdict, missed),
            looks: verdict.read,
            changes: verdict.changes,
            failed_looks: verdict.unread,
            failed_because: verdict.first_unread.as_ref().map(ToString::to_string),
            freed: verdict.freed.as_ref().map(|freed| WatchedFree { function: freed.by.to_string(), tid: freed.tid }),
        }
    };
    let reasons = [
        (skipped, "too many threads at once"),
        (late, "the thread was elsewhere by then"),
        (merged, "the thread blocked SIGURG"),
        (unsent, "the program had a handler of its own for SIGURG, or ignored it"),
    ];
    let sides = reasons.into_iter().filter(|(count, _)| **count > 0);
    let operators = passed.iter().take(MAX_NAMED);
    Watched {
        pid: *pid,
        was_set_up: *was_set_up,
        blocks: verdicts.blocks().map(block).collect(),
        quiet_blocks: verdicts.quiet(),
        passed: sides.map(|(sides, reason)| PassedSides { sides: *sides, reason }).collect(),
        operators: operators.map(|(name, calls)| PassedOperator { name: name.to_string(), calls: *calls }).collect(),
        operators_left_out: passed.len().saturating_sub(MAX_NAMED) as u64,
    }
}

/// The conclusion about a block. `missed`: sides of operators passed unseen while it was watched, or may have.
fn conclusion(verdict: &BlockVerdict, missed: bool) -> Conclusion {
    match (&verdict.first, verdict.read) {
        (Some(change), _) => Conclusion::Changed { when: change.when() },
        (None, 0) => Conclusion::NeverRead,
        (None, _) if missed => Conclusion::Undecided,
        (None, _) if verdict.unread > 0 => Conclusion::UnchangedWhereRead,
        (None, _) if verdict.freed.is_some() => Conclusion::UnchangedUntilFreed,
        (None, _) => Conclusion::Unchanged,
    }
}
