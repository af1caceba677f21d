//! Watches the blocks of one process: a thread of ours that serves the process's threads at operators.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError},
    },
    thread,
    time::{Duration, Instant},
};

use aya::maps::MapError;
use memscope_common::{WatchSite, WatchedProcess, row::ROW_BOUNDARY, watch::ANY_HANDLER};

use super::{
    Notify, Outputs,
    blob::{BUFFER_BYTES, Call, SLOTS},
    callers::Callers,
    memory::Memory,
    passed::Passed,
    setup::{self, Failure},
    shared::Shared,
    target::{self, Functions, Refusal, inner_id},
};
use crate::{
    decode::{Body, Call as CallRecord, Phase as CallPhase, Record, decode},
    kernel::WatchMaps,
    os::{
        clock::monotonic_ns,
        process::{environment, is_alive},
    },
    probes::{CallKind, Field, LaunchCall, MemoryCall, PoolCall, ProbeSpec, WatchCall},
    sinks::watch::{Content, WatchFiles},
    watch::{
        Range,
        checksum::Checksum,
        items::{Block, Items, Look},
        memory::Allocations,
        spec::WatchSpec,
        verdict::{Freed, Reading, Verdicts},
    },
};

/// Longest idle time before a check.
const TICK: Duration = Duration::from_millis(50);
/// Most handles with known names.
const MAX_NAMES: usize = 65_536;
/// Most bytes read of one block.
const MAX_BLOCK_BYTES: u64 = 1 << 34;
/// `ACL_MEMCPY_DEVICE_TO_HOST`
const DEVICE_TO_HOST: u64 = 2;
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

/// An entry is replaced, not made.
const BPF_EXIST: u64 = 2;
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
    pub(super) rows: HashMap<u16, (&'static ProbeSpec, u8)>,
    pub(super) outputs: Outputs,
    pub(super) notify: Notify,
    /// The files that are memory of processes, by inode: children have them, too.
    pub(super) memories: Mutex<HashSet<u64>>,
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

    fn warn(&self, text: &str) {
        (self.common.notify)(true, &format!("process {}: {text}", self.pid));
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

    /// Handles a record. Returns the thread if it was at an operator.
    fn take(&mut self, input: Input) -> Option<u32> {
        let bytes = match input {
            Input::Record(bytes) => bytes,
            Input::Leave(done) => {
                (self.stage, self.leaving) = (Stage::Leaves, Some(done));
                return None;
            }
            Input::Finish => {
                self.stage = Stage::Over;
                return None;
            }
        };
        let record = decode(&bytes).ok()?;
        let (spec, flags) = *self.common.rows.get(&record.row)?;
        let Body::Call(call) = record.body else { return None };
        self.take_memory(spec, &record, &call);
        let value = |field: Field| {
            let index = spec.fields.iter().position(|(name, _)| *name == field)?;
            call.values.get(index)
        };
        let text = || (!call.text.is_empty()).then(|| String::from_utf8_lossy(call.text).into_owned());
        match spec.meaning {
            CallKind::Launch(LaunchCall::KernelName) => {
                if let (Some(handle), Some(name)) = (value(Field::Handle), text())
                    && (self.names.len() < MAX_NAMES || self.names.contains_key(&handle))
                {
                    self.names.insert(handle, name);
                }
                None
            }
            // From here on the script's thread reports that itself.
            CallKind::Watch(WatchCall::Watch | WatchCall::Unwatch) if record.time_ns >= self.ready_since_ns => None,
            CallKind::Watch(WatchCall::Watch) => {
                let block = [value(Field::Addr)?, value(Field::Size)?, value(Field::Count)?];
                self.watch(&text().unwrap_or_default(), block, record.time_ns);
                Some(record.tid)
            }
            CallKind::Watch(WatchCall::Unwatch) => {
                self.items.forget(value(Field::Addr)?, record.time_ns);
                Some(record.tid)
            }
            _ if flags & ROW_BOUNDARY == 0 => None,
            _ => {
                let of_handle = || self.names.get(&value(Field::Handle)?).cloned();
                let name = text().or_else(of_handle).unwrap_or_else(|| spec.symbol.to_owned());
                if spec.meaning == CallKind::Launch(LaunchCall::Launch) && self.items.begins_with(&name) {
                    self.warn_of_outputs(&name);
                }
                self.passed.operator(record.time_ns, &name);
                (record.time_ns >= self.begun_ns).then_some(record.tid)
            }
        }
    }

    /// Handles a record about memory.
    fn take_memory(&mut self, spec: &'static ProbeSpec, record: &Record<'_>, call: &CallRecord<'_>) {
        /// Mappings of physical memory have addresses of their own.
        const MAPPINGS: &str = "mappings";
        const DRIVER: &str = "driver";
        let value = |field: Field| {
            let index = spec.fields.iter().position(|(name, _)| *name == field)?;
            call.values.get(index)
        };
        let pool = spec.pool.unwrap_or(spec.layer.name());
        let (space, begins) = match (spec.meaning, call.phase) {
            (CallKind::Memory(MemoryCall::Alloc), CallPhase::Return) if call.status as i32 == 0 => (DRIVER, true),
            (CallKind::Memory(MemoryCall::Free), CallPhase::Enter) => (DRIVER, false),
            (CallKind::Memory(MemoryCall::Map), CallPhase::Return) if call.status as i32 == 0 => (MAPPINGS, true),
            (CallKind::Memory(MemoryCall::Unmap), CallPhase::Enter) => (MAPPINGS, false),
            (CallKind::Pool(PoolCall::Alloc), CallPhase::Return) => (pool, true),
            (CallKind::Pool(PoolCall::Free), CallPhase::Enter) => (pool, false),
            // The size of a block that ends is negative.
            (CallKind::Pool(PoolCall::Report), _) => {
                (pool, value(Field::Size).is_some_and(|size| size.cast_signed() > 0))
            }
            _ => return,
        };
        // A pool's function returns the address, or writes it.
        let returned = (spec.meaning == CallKind::Pool(PoolCall::Alloc)).then(|| call.status.cast_unsigned());
        let Some(addr) = value(Field::Addr).or(returned).filter(|addr| *addr != 0) else { return };
        if begins {
            if let Some(size_bytes) = value(Field::Size) {
                let size_bytes = size_bytes.saturating_mul(value(Field::Count).unwrap_or(1));
                self.allocations.begins(space, Range { addr, size_bytes });
            }
            return;
        }
        let range = self.allocations.ends(space, addr);
        let outer = self.common.rows.get(&record.outer).filter(|_| record.outer != 0).map(|(outer, _)| outer.symbol);
        let by = outer.map_or_else(|| spec.symbol.to_owned(), |outer| format!("{} (in {outer})", spec.symbol));
        self.freed(range, &Freed { by: by.into(), tid: record.tid, time_ns: record.time_ns });
    }

    /// Memory was freed: ends the watch of blocks in it; later readings there are another block's.
    fn freed(&mut self, range: Range, freed: &Freed) {
        for block in self.items.free(range, freed.time_ns) {
            self.pending.retain(|pending| pending.block != block || pending.time_ns < freed.time_ns);
            if self.verdicts.free(&block, freed) {
                (self.common.notify)(false, &format!("process {}: {}", self.pid, super::freed_text(&block, freed)));
            }
        }
        self.report_idle();
    }

    /// Reports to the kernel side whether a block is watched: if not, only `START` sends a thread to the handler.
    fn report_idle(&mut self) {
        let idle = !self.items.is_active() && matches!(self.state, State::Ready(_));
        if idle == self.idle {
            return;
        }
        // If it fails, threads are sent for nothing.
        let set = if idle { self.maps.idle.insert(&self.pid, &0, 0) } else { self.maps.idle.remove(&self.pid) };
        self.idle = idle && set.is_ok();
    }

    /// Reports the changes that have waited for this time.
    fn report_changes(&mut self, waited: Duration) {
        while let Some(pending) = self.pending.pop_front_if(|pending| pending.since.elapsed() >= waited) {
            (self.common.notify)(false, &format!("process {}: {}", self.pid, pending.text));
        }
    }

    /// Reads the kernel side's count of signals that were not sent.
    fn look_at_handler(&mut self) {
        let Ok(process) = self.maps.watched.get(&self.pid, 0) else { return };
        self.passed.took(&process);
        if process.unsent > 0 && !std::mem::replace(&mut self.reported.handler, true) {
            self.warn(
                "the program has put up a handler of its own for SIGURG, or ignores it: as long as it does, no blocks are looked at and \
                 nothing is sent to it",
            );
        }
    }

    /// The script has named a block.
    fn watch(&mut self, name: &str, [addr, size_bytes, looks]: [u64; 3], now_ns: u64) {
        const NO_LIMIT: u64 = u64::MAX;
        let range = Range { addr, size_bytes };
        if !self.items.watch(name, range, (looks != NO_LIMIT).then_some(looks), now_ns) {
            self.warn("the script names more blocks than can be watched at once (256); the last is not watched");
        }
    }

    /// Whether there would be work at an operator.
    fn is_wanted(&self) -> bool {
        !self.common.spec.start.is_empty() || self.items.is_active()
    }

    fn try_set_up(&mut self, tid: u32) {
        let State::Waiting(since) = self.state else { return };
        if Instant::now() < since || !self.is_wanted() {
            return;
        }
        match self.set_up(tid) {
            Ok((shared, functions, memory)) => {
                (self.common.notify)(
                    false,
                    &format!(
                        "process {}: block watch is on: the program has two mappings and a handler for SIGURG of ours, and waits for its \
                         devices at each operator while a block is watched",
                        self.pid
                    ),
                );
                self.was_set_up = true;
                let work = std::array::from_fn(|_| None);
                let ready = Ready { shared, functions, memory, work, last_sites: self.sites_so_far() };
                self.state = State::Ready(Box::new(ready));
                self.report_idle();
                let start = self.common.spec.start.clone();
                if self.sees_aclnn && start.starts_with(ACLNN) {
                    self.warn_of_outputs(&start);
                }
            }
            Err(failure) => {
                let _ = self.maps.watched.remove(&self.pid);
                self.state = State::Waiting(Instant::now() + RETRY);
                match failure {
                    Failure::NoOperator => {}
                    Failure::Refused(Refusal::Later(why)) => {
                        if self.reported.later.len() < MAX_REASONS && !self.reported.later.contains(&why) {
                            self.warn(&format!("blocks are not watched yet: {why}"));
                            self.reported.later.push(why);
                        }
                    }
                    Failure::Refused(Refusal::Never(why)) => {
                        self.give_up();
                        self.warn(&format!("blocks are not watched: {why}; the program is as it was"));
                    }
                }
            }
        }
    }

    /// Leaves the program alone. Its operators no longer wake us.
    fn give_up(&mut self) {
        self.state = State::Over { marked: self.maps.idle.insert(&self.pid, &0, 0).is_ok() };
    }

    /// Another program runs in the process, without any state of the one before: it may be watched, whatever that one
    /// was. It is set up at an operator of its own: at one of the program before, its handlers would not be set yet.
    fn begin_again(&mut self) {
        self.state = State::Waiting(Instant::now());
        self.begun_ns = monotonic_ns();
        self.ready_since_ns = u64::MAX;
        let _ = self.maps.idle.remove(&self.pid);
        self.idle = false;
        self.callers = Callers::default();
        self.items.another_program(self.begun_ns);
        self.passed.another_program();
    }

    fn set_up(&mut self, tid: u32) -> Result<(Shared, Functions, Memory), Failure> {
        let ours = self.common.memories.lock().map(|ours| ours.clone()).unwrap_or_default();
        let replaceable = target::check(self.pid, tid, &ours).map_err(Failure::Refused)?;
        let functions = target::functions(self.pid).map_err(Failure::Refused)?;
        let (pid, watched, sites) = (self.pid, &mut self.maps.watched, &self.maps.sites);
        let from = if replaceable.is_empty() { 0 } else { ANY_HANDLER };
        let armed = WatchedProcess { from, ..WatchedProcess::default() };
        let arm = move || watched.insert(&pid, &armed, 0).map_err(std::io::Error::other);
        let id = u64::from(pid) << 32 | u64::from(tid);
        let is_at_operator = |place: [u64; 2]| sites.get(&id, 0).is_ok_and(|site| is_there(&site, place));
        // It traces, and its end lets go.
        let result = thread::scope(|scope| {
            let worker = thread::Builder::new().name("memscope-setup".to_owned());
            let worker = worker
                .spawn_scoped(scope, move || setup::run(pid, tid, functions, &replaceable, arm, &is_at_operator))?;
            worker.join().map_err(|_| std::io::Error::other("setting up failed"))
        });
        let shared = result.map_err(Failure::from)??;
        if let Ok(mut ours) = self.common.memories.lock() {
            ours.insert(shared.inode());
        }
        let (from, to) = shared.target_range();
        let process = WatchedProcess { from, to, ..WatchedProcess::default() };
        // Its entry is gone where it runs another program by now.
        self.maps.watched.insert(&self.pid, &process, BPF_EXIST).map_err(|_| Failure::NoOperator)?;
        let memory = Memory::of(self.pid)?;
        self.visible = environment(self.pid)
            .as_deref()
            .and_then(crate::follow::visible_devices)
            .and_then(|list| crate::pipeline::visible_devices(&list))
            .unwrap_or_default();
        let runs = self.common.rows.values().filter(|(spec, _)| spec.meaning == CallKind::Watch(WatchCall::AclnnOp));
        self.sees_aclnn =
            runs.into_iter().any(|(spec, _)| target::has_function(self.pid, spec.libraries, &[spec.symbol]));
        self.ready_since_ns = monotonic_ns();
        shared.switch(true);
        Ok((shared, functions, memory))
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

    /// Number of a thread as we know it.
    fn outer_id(&mut self, inner: u32) -> Option<u32> {
        if let Some(tid) = self.threads.get(&inner) {
            return Some(*tid);
        }
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid)).ok()?;
        let pid = self.pid;
        let numbers = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse::<u32>().ok());
        self.threads = numbers.filter_map(|tid| Some((inner_id(pid, tid)?, tid))).collect();
        self.threads.get(&inner).copied()
    }

    /// A thread waits for a request.
    fn advance(&mut self, slot: usize, owner: u32, place: [u64; 2]) {
        let work = self.ready().and_then(|ready| ready.work[slot].take());
        let work = match work {
            Some(work) => self.go_on(slot, work),
            None => self.arrive(slot, owner, place),
        };
        let Some(ready) = self.ready() else { return };
        if work.is_none() {
            ready.shared.answer(slot, &[]);
        }
        ready.work[slot] = work;
    }

    /// Where the process's threads were sent before there was a handler.
    fn sites_so_far(&self) -> HashMap<u32, (u64, u32)> {
        let sites = self.maps.sites.iter().filter_map(Result::ok).filter(|(id, _)| (id >> 32) as u32 == self.pid);
        sites.map(|(id, site)| (id as u32, (site.time_ns, site.sent))).collect()
    }

    /// A thread is at an operator: returns the bytes to read, if any.
    fn arrive(&mut self, slot: usize, owner: u32, place: [u64; 2]) -> Option<Work> {
        let tid = self.outer_id(owner)?;
        let id = u64::from(self.pid) << 32 | u64::from(tid);
        let site = self.maps.sites.get(&id, 0).ok()?;
        let ready = self.ready()?;
        // A signal that came late does not come from there: the thread may be anywhere.
        let (last_ns, last_sent) = ready.last_sites.insert(tid, (site.time_ns, site.sent)).unwrap_or_default();
        if last_ns == site.time_ns {
            // Another process's signal.
            return None;
        }
        let is_late = monotonic_ns().saturating_sub(site.time_ns) > AT_ONCE.as_nanos() as u64;
        let is_there = !is_late && ready.has_come_from(&site, place);
        self.missing += u64::from(missing_between(last_sent, site.sent));
        if !is_there {
            self.late += 1;
            return None;
        }
        let (spec, _) = *self.common.rows.get(&site.row)?;
        if matches!(spec.meaning, CallKind::Watch(WatchCall::Watch | WatchCall::Unwatch)) {
            self.take_call(spec, &site);
            return None;
        }
        let item = self.item(spec, &site)?;
        let mut looks = if site.returned == 0 {
            self.verdicts.begins(tid, &item);
            self.items.begins(tid, &item)
        } else {
            self.ends(tid, &item, spec, &site)
        };
        self.report_idle();
        for look in &mut looks {
            look.queued = spec.meaning == CallKind::Watch(WatchCall::NpuOpEnd);
        }
        if looks.is_empty() {
            return None;
        }
        let ready = self.ready()?;
        let calls = [
            Call::new(ready.functions.get_device, [ready.shared.buffer(slot), 0, 0, 0, 0]),
            Call::new(ready.functions.synchronize, [0; 5]),
        ];
        ready.shared.answer(slot, &calls);
        let sum = Checksum::default();
        Some(Work { tid, time_ns: site.time_ns, looks, device: None, at: 0, read_bytes: 0, sum, content: None })
    }

    /// An operator has ended: watching may begin with it.
    fn ends(&mut self, tid: u32, item: &str, spec: &'static ProbeSpec, site: &WatchSite) -> Vec<Look> {
        let Self { items, state, .. } = self;
        let State::Ready(ready) = state else { return Vec::new() };
        let mut without_outputs = false;
        let begins = items.begins_with(item);
        let looks = items.ends(tid, item, site.time_ns, || {
            let outputs = ready.memory.outputs(spec, site);
            without_outputs = outputs.is_empty();
            outputs
        });
        if without_outputs {
            self.warn_of_outputs(item);
        }
        if begins {
            let is_new = |look: &&Look| look.block.since_ns == site.time_ns;
            looks.iter().filter(is_new).for_each(|look| self.verdicts.window(&look.block));
            self.show_beginning(item);
        }
        looks
    }

    /// Reports once that a block is watched: until the first `START` there is none.
    fn show_beginning(&mut self, item: &str) {
        if self.items.is_active() && !std::mem::replace(&mut self.reported.beginning, true) {
            let text = format!("process {}: watching began with operator `{}`", self.pid, item.escape_debug());
            (self.common.notify)(false, &text);
        }
    }

    fn warn_of_outputs(&mut self, item: &str) {
        if !std::mem::replace(&mut self.reported.outputs, true) {
            self.warn(&format!(
                "watching does not begin with `{}`: no outputs of it are known; they are of operations of ATB alone, other blocks have to be \
                 named by a script",
                item.escape_debug()
            ));
        }
    }

    /// Handles a call of the script, at once in its thread.
    fn take_call(&mut self, spec: &'static ProbeSpec, site: &WatchSite) {
        let value = |field| Memory::value(spec, site, field);
        let Some(addr) = value(Field::Addr) else { return };
        if spec.meaning == CallKind::Watch(WatchCall::Unwatch) {
            self.items.forget(addr, site.time_ns);
            self.report_idle();
            return;
        }
        let name = self.ready().and_then(|ready| ready.memory.text_of(spec, site)).unwrap_or_default();
        if let (Some(size), Some(looks)) = (value(Field::Size), value(Field::Count)) {
            self.watch(&name, [addr, size, looks], site.time_ns);
        }
        self.report_idle();
    }

    /// Name of the operator; `None` if it is none here.
    fn item(&mut self, spec: &'static ProbeSpec, site: &WatchSite) -> Option<String> {
        if spec.meaning == CallKind::Watch(WatchCall::AclnnOp) {
            self.sees_aclnn = true;
            let (pid, Self { callers, state: State::Ready(ready), .. }) = (self.pid, self) else { return None };
            let name = callers.name(pid, site.caller, &mut || ready.shared.live());
            return Some(name.unwrap_or_else(|| format!("{ACLNN} at {:#x}", site.caller)));
        }
        if let Some(name) = self.ready()?.memory.text_of(spec, site) {
            // It is compared at its launch: here it may be put into a queue.
            let elsewhere =
                spec.meaning == CallKind::Watch(WatchCall::NpuOpEnd) && self.sees_aclnn && name.starts_with(ACLNN);
            return (!elsewhere).then_some(name);
        }
        let name = Memory::value(spec, site, Field::Handle).and_then(|handle| self.name_of(handle));
        Some(name.unwrap_or_else(|| spec.symbol.to_owned()))
    }

    /// The name that a kernel was registered with. The record of that may still be on its way.
    fn name_of(&mut self, handle: u64) -> Option<String> {
        const ON_ITS_WAY: Duration = Duration::from_millis(60);
        let start = Instant::now();
        while !self.names.contains_key(&handle) && !self.nameless.contains(&handle) {
            match self.inbox.recv_timeout(ON_ITS_WAY.saturating_sub(start.elapsed())) {
                Ok(input) => {
                    self.take(input);
                }
                // It was registered before we came.
                Err(_) if self.nameless.len() < MAX_NAMES => {
                    self.nameless.insert(handle);
                }
                Err(_) => break,
            }
        }
        self.names.get(&handle).cloned()
    }

    /// The requested calls of a thread have been made, or one of them has failed.
    fn go_on(&mut self, slot: usize, mut work: Work) -> Option<Work> {
        let Some(device) = work.device else {
            return self.take_device(slot, work);
        };
        let look = work.looks.get(work.at).cloned()?;
        let ready = self.ready()?;
        let error = ready.shared.returned(slot, 0);
        if error != 0 {
            self.unread(&look, &mut work, device, &format!("aclrtMemcpy gave error {error}"));
            return self.next(slot, work, device);
        }
        let left = look.block.range.size_bytes - work.read_bytes;
        let mut bytes = vec![0; left.min(BUFFER_BYTES as u64) as usize];
        ready.shared.read(slot, &mut bytes);
        work.sum.update(&bytes);
        work.read_bytes += bytes.len() as u64;
        if let Some(content) = &mut work.content
            && let Err(error) = content.write(&bytes)
        {
            work.content = None;
            self.warn(&crate::error_chain(&error));
        }
        if work.read_bytes < look.block.range.size_bytes {
            return self.ask(slot, work);
        }
        self.done(&look, &mut work, device);
        self.next(slot, work, device)
    }

    /// The thread's device is known, and its streams have come to their ends; or not.
    fn take_device(&mut self, slot: usize, mut work: Work) -> Option<Work> {
        let ready = self.ready()?;
        let [device_error, sync_error] = [0, 1].map(|call| ready.shared.returned(slot, call));
        let mut number = [0; 4];
        ready.shared.read(slot, &mut number);
        let number = u32::from_le_bytes(number);
        let device = self.visible.get(number as usize).copied().unwrap_or(number);
        let failure = match (device_error, sync_error) {
            (0, 0) => None,
            (0, error) => Some(format!("aclrtSynchronizeDevice gave error {error}")),
            (error, _) => Some(format!("the thread has no device (aclrtGetDevice gave error {error})")),
        };
        if let Some(why) = failure {
            for look in std::mem::take(&mut work.looks) {
                self.unread(&look, &mut work, device, &why);
            }
            return None;
        }
        work.device = Some(device);
        work.at = 0;
        self.begin(slot, work, device)
    }

    fn next(&mut self, slot: usize, mut work: Work, device: u32) -> Option<Work> {
        work.at += 1;
        self.begin(slot, work, device)
    }

    /// Begins with the next block that can be read.
    fn begin(&mut self, slot: usize, mut work: Work, device: u32) -> Option<Work> {
        (work.read_bytes, work.sum, work.content) = (0, Checksum::default(), None);
        while let Some(look) = work.looks.get(work.at).cloned() {
            let size_bytes = look.block.range.size_bytes;
            if size_bytes != 0 && size_bytes <= MAX_BLOCK_BYTES {
                if self.common.spec.full_content {
                    let stem = look.stem(device, work.tid);
                    work.content = self.with_files(|files| files.create_content(device, &stem));
                }
                return self.ask(slot, work);
            }
            self.unread(&look, &mut work, device, "its size makes no sense");
            work.at += 1;
        }
        None
    }

    /// Requests the next copy of the thread's block.
    fn ask(&mut self, slot: usize, work: Work) -> Option<Work> {
        let range = work.looks.get(work.at)?.block.range;
        let ready = self.ready()?;
        let len = (range.size_bytes - work.read_bytes).min(BUFFER_BYTES as u64);
        let from = range.addr.wrapping_add(work.read_bytes);
        let to = ready.shared.buffer(slot);
        ready
            .shared
            .answer(slot, &[Call::new(ready.functions.copy, [to, BUFFER_BYTES as u64, from, len, DEVICE_TO_HOST])]);
        Some(work)
    }

    fn done(&mut self, look: &Look, work: &mut Work, device: u32) {
        let sum = work.sum.value();
        if !self.common.spec.full_content {
            let stem = look.stem(device, work.tid);
            self.with_files(|files| files.write_sum(device, &stem, sum));
        }
        if let Some(change) = self.verdicts.take(look, work.tid, work.time_ns, &Reading::Sum(sum)) {
            let (block, text) = (look.block.clone(), super::change_text(look, &change));
            self.pending.push_back(Pending { block, time_ns: work.time_ns, since: Instant::now(), text });
        }
    }

    fn unread(&mut self, look: &Look, work: &mut Work, device: u32, why: &str) {
        if let Some(content) = work.content.take() {
            let path = content.path().display().to_string();
            if let Err(error) = content.discard() {
                self.warn(&format!("cannot empty {path}: {error}"));
            }
        }
        if !self.common.spec.full_content {
            let stem = look.stem(device, work.tid);
            self.with_files(|files| files.write_unread(device, &stem));
        }
        self.verdicts.take(look, work.tid, work.time_ns, &Reading::Unread(why.into()));
    }

    /// Calls `act` with the process's files; a failure is reported once.
    fn with_files<T>(&mut self, act: impl FnOnce(&mut WatchFiles) -> Result<T, crate::sinks::SinkError>) -> Option<T> {
        let (pid, outputs) = (self.pid, &self.common.outputs);
        let files = self.files.get_or_insert_with(|| outputs(pid).map_err(|error| crate::error_chain(&error)));
        let result = match files {
            Ok(files) => act(files).map_err(|error| crate::error_chain(&error)),
            Err(error) if error.is_empty() => return None,
            Err(error) => Err(std::mem::take(error)),
        };
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.warn(&error);
                None
            }
        }
    }

    /// Removes the handler from the process, if one of its threads arrives to do that. The mappings stay.
    fn leave(&mut self) {
        const PATIENCE: Duration = Duration::from_millis(300);
        let Some(system_call) = self.ready().map(|ready| ready.shared.system_call()) else {
            let _ = self.maps.watched.remove(&self.pid);
            let _ = self.maps.idle.remove(&self.pid);
            return;
        };
        let start = Instant::now();
        let mut asked: Option<usize> = None;
        let mut gone = false;
        while start.elapsed() < PATIENCE && !gone && self.is_alive() {
            let Some(ready) = self.ready() else { return };
            let bell = ready.shared.bell();
            ready.shared.live();
            for slot in 0..SLOTS {
                if ready.shared.waiting(slot).is_none() {
                    continue;
                }
                if asked == Some(slot) {
                    gone = ready.shared.returned(slot, 0) == 0;
                    ready.shared.answer(slot, &[]);
                } else if asked.is_none() && ready.work[slot].is_none() {
                    let (_, old) = ready.shared.actions();
                    let args = [libc::SYS_rt_sigaction as u64, libc::SIGURG as u64, old, 0, 8];
                    ready.shared.answer(slot, &[Call::new(system_call, args)]);
                    asked = Some(slot);
                } else {
                    // Its current work is no longer needed.
                    ready.work[slot] = None;
                    ready.shared.answer(slot, &[]);
                }
            }
            ready.shared.wait(bell, Duration::from_millis(5));
        }
        self.look_at_handler();
        let _ = self.maps.watched.remove(&self.pid);
        let _ = self.maps.idle.remove(&self.pid);
        let Some(ready) = self.ready() else { return };
        ready.shared.switch(false);
        for slot in 0..SLOTS {
            if ready.shared.waiting(slot).is_some() {
                ready.shared.answer(slot, &[]);
            }
        }
        self.skipped += self.ready().map_or(0, |ready| u64::from(ready.shared.skipped()));
        if !gone && !self.passed.is_going_on() && self.is_alive() {
            self.warn("the handler for SIGURG stays in the program, switched off: no thread came by to take it out");
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

#[cfg(test)]
mod tests;
