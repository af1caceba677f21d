//! Reads watched blocks in running processes (mode S of the design): the kernel side sends a thread that is at an operator to a handler
//! of ours, which waits for the device, copies the block's bytes to memory that we share, and goes on. See docs/watch.md.
//!
//! * `blob` is the handler, `shared` that memory, `target` what the process must be, `setup` how the handler gets there, by signal
//!   `frames` that need nobody of us; `seccomp` says beforehand whether it may, and `arch` has what machines do not have in common.
//! * `engine` is a thread of ours for each process: what is looked at is [`items`](super::items)' business, what follows from it
//!   [`verdict`](super::verdict)'s.

mod arch;
mod blob;
mod callers;
mod engine;
mod frames;
mod memory;
mod seccomp;
mod setup;
mod shared;
mod target;

use std::{
    collections::{HashMap, HashSet},
    fmt::Write as _,
    io,
    sync::{Arc, Mutex, mpsc},
    thread::{self, JoinHandle},
};

use memscope_common::Header;

use self::engine::{Common, Engine, Input, Seen};
use super::{items::Look, spec::WatchSpec, verdict::Change};
use crate::{
    attach::kernel::{KernelError, WatchMaps},
    probes::{Meaning, ProbeSpec},
    sinks::{SinkError, watch::WatchFiles},
};

/// Processes that are watched at once.
const MAX_PROCESSES: usize = 1024;

/// Gives the files of a process.
pub type Outputs = Box<dyn Fn(u32) -> Result<WatchFiles, SinkError> + Send + Sync>;
/// Tells the user: whether it is a warning, and the text.
pub type Tell = Box<dyn Fn(bool, &str) + Send + Sync>;
/// Opens the kernel side's maps for one more thread.
pub type OpenMaps = Box<dyn Fn() -> Result<WatchMaps, KernelError> + Send>;

/// Records that block watch has to see as soon as they come.
pub struct Tap {
    rows: HashSet<u16>,
    sender: mpsc::Sender<Message>,
}

enum Message {
    Record(Vec<u8>),
    Finish,
}

impl Tap {
    /// Takes a record, if it is one of those.
    pub fn take(&self, row: u16, record: &[u8]) {
        if self.rows.contains(&row) {
            // Nobody watches any more.
            let _ = self.sender.send(Message::Record(record.to_vec()));
        }
    }
}

/// Watches blocks in all traced processes.
pub struct Watch {
    sender: mpsc::Sender<Message>,
    thread: JoinHandle<Vec<Seen>>,
}

/// What is needed for it.
pub struct WatchOptions {
    /// What is watched.
    pub spec: WatchSpec,
    /// Rows by number, with their flags.
    pub rows: Vec<(u16, &'static ProbeSpec, u8)>,
    /// Where to write.
    pub outputs: Outputs,
    /// Whom to tell.
    pub tell: Tell,
}

impl Watch {
    /// Starts the thread that hands records to those of the processes.
    pub fn start(options: WatchOptions, open_maps: OpenMaps) -> io::Result<(Self, Tap)> {
        let WatchOptions { spec, rows, outputs, tell } = options;
        let wanted = rows.iter().filter(|(_, spec, flags)| *flags != 0 || spec.meaning == Meaning::KernelName);
        let (sender, receiver) = mpsc::channel();
        let tap = Tap { rows: wanted.map(|(number, ..)| *number).collect(), sender: sender.clone() };
        let rows = rows.into_iter().map(|(number, spec, flags)| (number, (spec, flags))).collect();
        let common = Arc::new(Common { spec, rows, outputs, tell, memories: Mutex::default() });
        let hub = Hub { common, open_maps, engines: HashMap::new(), seen: Vec::new() };
        let thread = thread::Builder::new().name("memscope-watch".to_owned()).spawn(move || hub.run(&receiver))?;
        Ok((Self { sender, thread }, tap))
    }

    /// Ends it, handlers taken out where that can be done; gives what was found, as text.
    #[must_use]
    pub fn finish(self) -> String {
        let _ = self.sender.send(Message::Finish);
        let seen = self.thread.join().unwrap_or_default();
        verdict_text(&seen)
    }
}

struct Hub {
    common: Arc<Common>,
    open_maps: OpenMaps,
    engines: HashMap<u32, (mpsc::Sender<Input>, JoinHandle<Seen>)>,
    seen: Vec<Seen>,
}

impl Hub {
    fn run(mut self, receiver: &mpsc::Receiver<Message>) -> Vec<Seen> {
        while let Ok(Message::Record(record)) = receiver.recv() {
            self.hand_on(record);
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
        // Of one that has ended, records may still come.
        if self.engines.len() >= MAX_PROCESSES || crate::attach::guard::state(pid).is_none() {
            return false;
        }
        let maps = match (self.open_maps)() {
            Ok(maps) => maps,
            Err(error) => {
                (self.common.tell)(true, &crate::error_chain(&error));
                return false;
            }
        };
        let (sender, inbox) = mpsc::channel();
        let engine = Engine::new(pid, Arc::clone(&self.common), maps, inbox);
        match thread::Builder::new().name("memscope-watch".to_owned()).spawn(move || engine.run()) {
            Ok(thread) => {
                self.engines.insert(pid, (sender, thread));
                true
            }
            Err(error) => {
                (self.common.tell)(true, &format!("cannot watch process {pid}: {error}"));
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

/// What is known of each block in the end.
fn verdict_text(seen: &[Seen]) -> String {
    let mut text = String::new();
    for Seen { pid, verdicts, skipped, late, merged, was_set_up } in seen {
        if !was_set_up {
            let _ = writeln!(text, "process {pid}: no block was watched");
            continue;
        }
        let mut any = false;
        for ((name, index, addr, size_bytes), verdict) in verdicts.blocks() {
            any = true;
            let name = name.escape_debug();
            let _ = write!(text, "process {pid}: block `{name}` output {index} ({addr:#x}, {size_bytes} bytes): ");
            let _ = match (&verdict.first, verdict.read) {
                (Some(change), _) => write!(text, "first changed {}", change.when()),
                (None, 0) => write!(text, "never read, so nothing is known of it"),
                (None, _) if verdict.unread > 0 => write!(text, "no change between the looks that succeeded"),
                (None, _) => write!(text, "unchanged"),
            };
            let _ = write!(text, "; {} look(s), {} change(s)", verdict.read, verdict.changes);
            if let Some(why) = &verdict.first_unread {
                let _ = write!(text, ", {} unread ({})", verdict.unread, why.escape_debug());
            }
            let _ = writeln!(text);
        }
        if !any {
            let _ = writeln!(text, "process {pid}: no operator began watching");
        }
        for (count, why) in [
            (skipped, "too many threads at once"),
            (late, "the thread was elsewhere by then"),
            (merged, "the thread blocked SIGURG"),
        ] {
            if *count > 0 {
                let _ = writeln!(text, "process {pid}: {count} side(s) of operators passed unseen: {why}");
            }
        }
    }
    text
}
