//! Watches the blocks of one process: a thread of ours that serves the process's threads at operators.
//!
//! `records` takes what records say, `presence` keeps the handler in the process, `looks` serves a thread at an
//! operator.

mod looks;
mod presence;
mod records;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    panic::Location,
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError},
    },
    time::{Duration, Instant},
};

use aya::maps::MapError;
use memscope_common::WatchSite;

use super::{
    Notice, Notify, Outputs, blob::SLOTS, callers::Callers, memory::Memory, passed::Passed, shared::Shared,
    target::Functions,
};
use crate::{
    kernel::WatchMaps,
    os::process::is_alive,
    pipeline::calls::Calls,
    probes::ProbeSpec,
    sinks::watch::{Content, WatchFiles},
    watch::{
        checksum::Checksum,
        items::{Block, Items, Look},
        memory::Allocations,
        spec::WatchSpec,
        verdict::Verdicts,
    },
};

/// Longest idle time before a check.
const TICK: Duration = Duration::from_millis(50);
/// Most handles with known names.
const MAX_NAMES: usize = 65_536;
/// Largest distance of the stack pointer from its value when the thread was sent: the probed instruction, and the
/// kernel's emulation of it, put values there.
const STACK_SLACK: u64 = 64;
/// Longest instruction, in bytes.
const MAX_INSTRUCTION: u64 = 15;
/// A thread that was sent arrives at once, unless it blocks the signal, or has no processor.
const AT_ONCE: Duration = Duration::from_secs(1);
/// Most reasons reported why nothing is watched yet.
const MAX_REASONS: usize = 4;
/// Pause after a failed try.
const RETRY: Duration = Duration::from_millis(200);
/// A thread that was answered mostly comes back within this time; a wake-up would take as long.
const SOON: Duration = Duration::from_micros(60);

/// What operators of CANN's library are called.
const ACLNN: &str = "aclnn";
/// Delay of a change's report: the record of an earlier free may be on its way.
const HELD_BACK: Duration = Duration::from_millis(100);

/// Messages to an engine.
pub(super) enum Input {
    /// A record of the process.
    Record(Vec<u8>),
    /// Leave the process alone; dropped when that is done. Records may follow.
    Leave(Sender<()>),
    /// End.
    Finish,
}

/// What all engines have in common.
pub(super) struct Common {
    pub(super) spec: WatchSpec,
    /// Rows by number, with their flags.
    pub(super) rows: HashMap<u16, (&'static ProbeSpec, u16)>,
    /// Interprets their calls.
    pub(super) calls: Calls,
    pub(super) outputs: Outputs,
    pub(super) notify: Notify,
    /// The files that are memory of processes, by inode: children have them, too.
    pub(super) memories: Mutex<HashSet<u64>>,
}

impl Common {
    /// Sends a message to the user; its place is the caller's.
    #[track_caller]
    pub(super) fn say(&self, warns: bool, text: &str) {
        (self.notify)(&Notice { warns, place: Location::caller(), text });
    }
}

/// The results for a process.
pub(super) struct Seen {
    pub(super) pid: u32,
    pub(super) verdicts: Verdicts,
    /// Sides of operators without a look, for lack of a slot.
    pub(super) skipped: u64,
    /// The same, because the thread had gone on.
    pub(super) late: u64,
    /// The same, because the thread was sent there again before it came: the kernel keeps one of two signals.
    pub(super) merged: u64,
    /// The same, because the program had another handler for the signal, or ignored it.
    pub(super) unsent: u64,
    /// Operators with such sides, and their number.
    pub(super) passed: Vec<(Arc<str>, u64)>,
    /// When that began.
    pub(super) unsent_since_ns: u64,
    /// Whether the handler was ever there.
    pub(super) was_set_up: bool,
}

pub(super) struct Engine {
    pid: u32,
    common: Arc<Common>,
    maps: WatchMaps,
    inbox: Receiver<Input>,
    items: Items,
    verdicts: Verdicts,
    names: HashMap<u64, String>,
    /// Handles without a name.
    nameless: HashSet<u64>,
    files: Option<Result<WatchFiles, String>>,
    state: State,
    skipped: u64,
    /// Signals that came when the thread was elsewhere.
    late: u64,
    /// Signals that were sent and did not arrive, those of `skipped` included.
    missing: u64,
    /// Threads' own numbers, and ours for them.
    threads: HashMap<u32, u32>,
    visible: Vec<u32>,
    stage: Stage,
    /// Dropped when the process is left alone.
    leaving: Option<Sender<()>>,
    was_set_up: bool,
    /// Last state given to the kernel side: nothing is watched.
    idle: bool,
    /// Operators without a look.
    passed: Passed,
    allocations: Allocations,
    /// Changes not reported yet: the record of an earlier free may be on its way.
    pending: VecDeque<Pending>,
    reported: Reported,
    /// Operators of CANN's library are seen where they launch.
    sees_aclnn: bool,
    callers: Callers,
    /// Since when the handler is there.
    ready_since_ns: u64,
    /// Time at which the program was seen to be another one: older records do not concern it.
    begun_ns: u64,
}

/// The stage of the setup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It watches.
    Watches,
    /// The process is to be left alone, or no more messages can come.
    Leaves,
    /// No more messages come.
    Over,
}

/// Messages that are sent once.
#[derive(Default)]
struct Reported {
    /// Nothing is set up yet, for each of these reasons.
    later: Vec<String>,
    /// An operator has no known outputs.
    outputs: bool,
    /// The program has its own handler now.
    handler: bool,
    /// That an operator's outputs are watched.
    beginning: bool,
}

/// A change of a block.
struct Pending {
    block: Block,
    /// When the thread came there that saw it: `CLOCK_MONOTONIC`, in nanoseconds.
    time_ns: u64,
    /// Since when it waits.
    since: Instant,
    text: String,
}

enum State {
    /// Nothing is in the process yet; not before this time.
    Waiting(Instant),
    Ready(Box<Ready>),
    /// Nothing is, and nothing will be, until the process runs another program. `marked`: the kernel side has it among the idle ones, which
    /// ends with the program.
    Over {
        marked: bool,
    },
}

struct Ready {
    shared: Shared,
    functions: Functions,
    memory: Memory,
    work: [Option<Work>; SLOTS],
    /// For each thread the time of its last site, and the number of its signals by then.
    last_sites: HashMap<u32, (u64, u32)>,
}

impl Ready {
    /// Whether a thread that was interrupted at this place comes from there. Of signals that come together, one's
    /// handler starts inside of the other's, before that has done anything.
    fn has_come_from(&self, site: &WatchSite, mut place: [u64; 2]) -> bool {
        const MAX_TOGETHER: usize = 4;
        for _ in 0..MAX_TOGETHER {
            if is_there(site, place) {
                return true;
            }
            let Some(before) = self.memory.interrupted(place, self.functions.restore) else { return false };
            place = before;
        }
        false
    }
}

/// The current work of a thread in the handler.
struct Work {
    tid: u32,
    /// When it came to the operator's side.
    time_ns: u64,
    looks: Vec<Look>,
    /// The device, once it is known, or why not.
    device: Option<u32>,
    /// The current look.
    at: usize,
    read_bytes: u64,
    sum: Checksum,
    content: Option<Content>,
}

impl Engine {
    pub(super) fn new(pid: u32, common: Arc<Common>, maps: WatchMaps, inbox: Receiver<Input>) -> Self {
        let items = Items::new(Some(common.spec.clone()));
        Self {
            pid,
            common,
            maps,
            inbox,
            items,
            verdicts: Verdicts::default(),
            names: HashMap::new(),
            nameless: HashSet::new(),
            files: None,
            state: State::Waiting(Instant::now()),
            skipped: 0,
            late: 0,
            missing: 0,
            threads: HashMap::new(),
            visible: Vec::new(),
            stage: Stage::Watches,
            leaving: None,
            was_set_up: false,
            idle: false,
            passed: Passed::default(),
            allocations: Allocations::default(),
            pending: VecDeque::new(),
            reported: Reported::default(),
            sees_aclnn: false,
            callers: Callers::default(),
            ready_since_ns: u64::MAX,
            begun_ns: 0,
        }
    }

    pub(super) fn run(mut self) -> Seen {
        // A thread served a moment ago is alive; skip the liveness check.
        let mut has_served = false;
        while self.stage == Stage::Watches && (has_served || self.is_alive()) {
            has_served = match self.state {
                State::Ready(_) => self.serve(),
                State::Waiting(_) | State::Over { .. } => {
                    self.wait();
                    false
                }
            };
            self.report_changes(HELD_BACK);
        }
        self.leave();
        self.leaving = None;
        self.take_what_comes();
        self.report_changes(Duration::ZERO);
        let (unsent, unsent_since_ns) = self.passed.sides();
        Seen {
            unsent,
            unsent_since_ns,
            passed: self.passed.operators(),
            pid: self.pid,
            verdicts: self.verdicts,
            skipped: self.skipped,
            late: self.late,
            merged: self.missing.saturating_sub(self.skipped),
            was_set_up: self.was_set_up,
        }
    }

    /// The process is left alone, or has ended: earlier records may still be on their way.
    fn take_what_comes(&mut self) {
        /// Records of a process that has ended come soon, and its number may be used again later.
        const QUIET: Duration = Duration::from_millis(300);
        while self.stage != Stage::Over {
            match self.inbox.recv_timeout(QUIET) {
                Ok(input) => {
                    self.take(input);
                    self.leaving = None;
                }
                Err(RecvTimeoutError::Timeout) if self.stage == Stage::Leaves => {}
                Err(_) => return,
            }
        }
    }

    fn is_alive(&self) -> bool {
        is_alive(self.pid)
    }

    #[track_caller]
    fn warn(&self, text: &str) {
        self.common.say(true, &format!("process {}: {text}", self.pid));
    }

    #[track_caller]
    fn inform(&self, text: &str) {
        self.common.say(false, &format!("process {}: {text}", self.pid));
    }

    /// Nothing is there to talk with.
    fn wait(&mut self) {
        if matches!(self.state, State::Over { marked: true })
            && matches!(self.maps.idle.get(&self.pid, 0), Err(MapError::KeyNotFound))
        {
            self.begin_again();
        }
        match self.inbox.recv_timeout(TICK) {
            Ok(input) => {
                if let Some(tid) = self.take(input) {
                    self.try_set_up(tid);
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => self.stage = Stage::Leaves,
        }
    }

    /// Reports the changes that have waited for this time.
    fn report_changes(&mut self, waited: Duration) {
        while let Some(pending) = self.pending.pop_front_if(|pending| pending.since.elapsed() >= waited) {
            self.inform(&pending.text);
        }
    }

    /// Whether there would be work at an operator.
    fn is_wanted(&self) -> bool {
        !self.common.spec.start.is_empty() || self.items.is_active()
    }

    /// The handler is there. Gives whether a thread waited for us.
    fn serve(&mut self) -> bool {
        let bell = self.ready().map_or(0, |ready| ready.shared.bell());
        self.drain();
        let mut any = false;
        for slot in 0..SLOTS {
            let Some(ready) = self.ready() else { return any };
            ready.shared.live();
            if let Some((owner, place)) = ready.shared.waiting(slot) {
                any = true;
                self.advance(slot, owner, place);
            }
        }
        let Some(ready) = self.ready() else { return any };
        if ready.shared.given_up() {
            self.skipped += u64::from(ready.shared.skipped());
            self.give_up();
            self.warn("block watch has switched itself off: this tracer did not answer for two seconds");
            return any;
        }
        if any {
            ready.shared.await_soon(bell, SOON);
        } else {
            ready.shared.wait(bell, TICK);
            self.look_at_handler();
            // Another program has none of this.
            if self.maps.watched.get(&self.pid, 0).is_err() {
                self.skipped += self.ready().map_or(0, |ready| u64::from(ready.shared.skipped()));
                self.begin_again();
            }
        }
        any
    }

    fn ready(&mut self) -> Option<&mut Ready> {
        match &mut self.state {
            State::Ready(ready) => Some(ready),
            _ => None,
        }
    }

    fn drain(&mut self) {
        loop {
            match self.inbox.try_recv() {
                Ok(input) => {
                    self.take(input);
                }
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.stage = Stage::Leaves;
                    return;
                }
            }
        }
    }
}

/// Number of signals between two that arrived. A new thread, with the number of one that has ended, counts from 0.
const fn missing_between(last_sent: u32, sent: u32) -> u32 {
    if sent > last_sent { sent - last_sent - 1 } else { sent.saturating_sub(1) }
}

/// Whether a thread interrupted at this stack pointer and instruction is where it was sent from: right behind the
/// probed instruction, which may have moved the stack pointer, or at its target.
const fn is_there(site: &WatchSite, [stack_pointer, instruction_pointer]: [u64; 2]) -> bool {
    let behind = instruction_pointer.wrapping_sub(site.instruction_pointer);
    site.stack_pointer.abs_diff(stack_pointer) <= STACK_SLACK || (behind >= 1 && behind <= MAX_INSTRUCTION)
}
