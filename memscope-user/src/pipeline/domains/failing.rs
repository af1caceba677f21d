//! Requests for memory that fail: which attempts are one request, whether it succeeds after all, when it has failed for
//! good, and the live blocks then.
//!
//! A pool that is refused memory gives its cache back and asks again, so a failed attempt is not final. Attempts of one
//! thread are one request until it ends: it succeeded, or the thread queried the free memory, as `torch_npu` does
//! before it raises its error, or it asks for another size, or [`PATIENCE_NS`] has passed. The creation of an
//! expandable segment makes the same query, and then reserves addresses: that is part of the next attempt. A block of a
//! pool answers what its thread asked the pool for last: a failure before that was of another request, which was the
//! program's own, or of a library.
//!
//! A request has failed for good when its thread makes the query twice, makes any call that is no part of a further
//! attempt, is silent for [`SILENCE_NS`], or ends. The rows leave at that moment, with the blocks live at the last
//! attempt: a program that fails cleans up.
//!
//! Times are compared by their distance: an agent's go back where the wall clock is set back.

mod suspects;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use self::suspects::Suspects;
use super::super::rows::RawCall;
use super::super::turn::{At, Turn};
use super::pools::{PoolRequest, Pools};
use super::{Interpreted, mstx};
use crate::decode::Phase;
use crate::model::{AllocFailed, AllocRecovered, Device, DeviceMemory, EventKind, Name, OutOfMemory, Pool, Stacks};
use crate::probes::{FailingCall, Field};

/// Most threads of a process with followed failures.
const MAX_THREADS: usize = 4096;
/// A pool synchronizes its device between two attempts, which takes as long as the work queued there; a program that
/// asks for the same size after more than this time makes another request.
const PATIENCE_NS: u64 = 60_000_000_000;
/// A thread that is silent for this time after a failure has given up. One that synchronizes its device before a
/// further attempt may take longer; then the rows are written already, and the report counts the request as succeeded.
const SILENCE_NS: u64 = 1_000_000_000;
/// Blocks are reported no more often than this (msMemScope's).
const QUIET_NS: u64 = 2_000_000_000;
/// A search through all live blocks takes time: attempts in faster succession share its result.
const LOOK_NS: u64 = 50_000_000;
/// The effect of a call that fails, or queries memory.
#[derive(Clone, Copy, Debug)]
pub(in crate::pipeline) enum Effect {
    Failed(Failure),
    /// A request has failed for good: a dump says so.
    FailedForGood(Failure),
    /// The thread queries the free memory: pools do so when a request has failed for good. The answer, where it is known.
    MemoryInfo(Option<DeviceMemory>),
}

/// An allocation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pipeline) struct Failure {
    pub(in crate::pipeline) pool: Pool,
    /// `None`: that of the thread.
    pub(in crate::pipeline) device: Option<Device>,
    pub(in crate::pipeline) size_bytes: u64,
    pub(in crate::pipeline) flags: u64,
    pub(in crate::pipeline) status: i32,
    pub(in crate::pipeline) caller: Option<Name>,
    /// The driver was asked for huge pages, and no outer function is known that shows the end of the request.
    pub(in crate::pipeline) huge: bool,
}

/// Calls of the driver that fail are [`memory`](super::memory)'s.
pub(super) fn interpret(kind: FailingCall, call: &RawCall<'_>) -> Interpreted {
    let (pool, device) = match (kind, call.called.phase) {
        // Captures of earlier versions have its entry alone.
        (FailingCall::MemoryInfo, _) => {
            return Ok(Some(super::Effect::Failing(Effect::MemoryInfo(device_memory(call)))));
        }
        (FailingCall::Alloc, Phase::Return) => (call.backend.driver_pool(), None),
        (FailingCall::AllocHost, Phase::Return) => (call.backend.host_pool(), Some(Device::Cpu)),
        _ => return Ok(None),
    };
    if call.code() == 0 {
        return Ok(None);
    }
    let failure = Failure {
        pool,
        device,
        size_bytes: call.field(Field::Size)?,
        flags: call.field(Field::Flags).unwrap_or(0),
        status: call.code(),
        caller: Some(call.probe.symbol),
        huge: false,
    };
    Ok(Some(super::Effect::Failing(Effect::Failed(failure))))
}

/// The answer of a query of the memory of the whole device.
fn device_memory(call: &RawCall<'_>) -> Option<DeviceMemory> {
    let kind = call.field(Field::MemoryKind).ok()?;
    let answer = DeviceMemory {
        total_bytes: call.field(Field::DeviceTotal).ok()?,
        free_bytes: call.field(Field::DeviceFree).ok()?,
    };
    let is_answered = call.code() == 0 && answer.free_bytes <= answer.total_bytes && answer.total_bytes > 0;
    (is_answered && call.backend.is_device_memory(kind)).then_some(answer)
}

/// Whether an effect shows that its thread does not try again.
const fn ends_request(effect: &super::Effect) -> bool {
    matches!(
        effect,
        super::Effect::Launch(super::launches::Effect::Launch { .. })
            | super::Effect::Torch(_)
            | super::Effect::Mstx(
                mstx::Effect::Mark { .. } | mstx::Effect::RangeStart { .. } | mstx::Effect::RangeEnd { .. }
            )
    )
}

/// The requested memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wish {
    pool: Pool,
    device: Device,
    size_bytes: u64,
}

/// A thread's failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    /// Number in the process, from 1.
    number: u64,
    attempts: u32,
    wish: Wish,
    /// The thread asked the driver, and no pool.
    is_direct: bool,
}

/// The report of a request, for when it has failed for good.
#[derive(Clone, Debug)]
struct Obituary {
    failed: AllocFailed,
    device: Device,
    time_ns: u64,
    stacks: Stacks,
    suspects: Arc<Suspects>,
}

/// A thread since its last failure.
#[derive(Clone, Debug, Default)]
struct Thread {
    /// When it failed.
    time_ns: u64,
    /// Number of queries of the free memory since.
    questions: u32,
    /// Number of them that were for segments.
    for_segments: u32,
    /// The request that a further attempt is of, and that may succeed.
    open: Option<Request>,
    /// The report, if it was not given.
    obituary: Option<Obituary>,
}

impl Thread {
    /// The request, unless the thread has given it up at this time.
    fn wanted(&self, time_ns: u64) -> Option<Request> {
        let is_soon = time_ns.abs_diff(self.time_ns) < PATIENCE_NS;
        self.open.filter(|_| is_soon && self.questions == self.for_segments)
    }

    const fn is_over(&self) -> bool {
        self.open.is_none() && self.obituary.is_none()
    }
}

/// Failed requests of one process so far.
#[derive(Debug, Default)]
pub(in crate::pipeline) struct Failing {
    threads: BTreeMap<u32, Thread>,
    count: u64,
    /// A framework's pool reports here: its report decides whether a request succeeded.
    has_pool: bool,
    /// When blocks were reported last.
    reported_ns: Option<u64>,
    /// Time, device and result of the last search for blocks.
    looked: Option<(u64, Device, Arc<Suspects>)>,
}

impl Failing {
    /// Another program replaces this one: requests and their numbers continue.
    pub(in crate::pipeline) fn exec(&mut self) {
        (self.has_pool, self.reported_ns, self.looked) = (false, None, None);
    }

    /// A framework's pool itself reports whether its request succeeded.
    pub(super) const fn pool_reports(&mut self) {
        self.has_pool = true;
    }

    /// No framework's pool reports from here on.
    pub(in crate::pipeline) const fn pool_is_silent(&mut self) {
        self.has_pool = false;
    }

    /// Looks at an effect before it is applied.
    pub(in crate::pipeline) fn before(&mut self, effect: &super::Effect, turn: &mut Turn<'_>) {
        if turn.shared.oom_pending > 0 && ends_request(effect) {
            let tid = turn.at.tid;
            self.failed_for_good(tid, turn);
            self.close(tid);
        }
    }

    pub(in crate::pipeline) fn apply(&mut self, effect: &Effect, turn: &mut Turn<'_>, pools: &mut Pools) {
        match effect {
            Effect::Failed(failure) => self.failed(failure, turn, pools),
            Effect::FailedForGood(failure) => self.listed(failure, turn),
            Effect::MemoryInfo(answer) => {
                pools.memory_queried(turn);
                self.asked(turn);
                if let Some(memory) = answer {
                    turn.emit(turn.device(), EventKind::DeviceMemory(*memory));
                }
            }
        }
    }

    /// An allocation failed for its caller.
    fn failed(&mut self, failure: &Failure, turn: &mut Turn<'_>, pools: &Pools) {
        let Failure { pool, device, size_bytes, flags, status, caller, .. } = *failure;
        let device = device.unwrap_or_else(|| turn.device());
        let (tid, time_ns) = (turn.at.tid, turn.at.time_ns);
        let out_of_memory = turn.backend().is_out_of_memory(status);
        let (wish, is_direct) = (Wish { pool, device, size_bytes }, pools.are_passed_by(tid));
        let request = if out_of_memory {
            self.attempt(tid, time_ns, wish, is_direct)
        } else {
            Request { number: self.number(), attempts: 1, wish, is_direct }
        };
        let (request, attempt) = (request.number, request.attempts);
        let failed = AllocFailed { pool, size_bytes, status, flags, caller, out_of_memory, request, attempt };
        turn.emit(device, EventKind::AllocFailed(failed));
        if out_of_memory {
            self.write_obituary(device, failed, turn);
        }
    }

    /// A dump has the request, and none of its attempts.
    fn listed(&mut self, failure: &Failure, turn: &mut Turn<'_>) {
        let Failure { pool, device, size_bytes, flags, status, caller, .. } = *failure;
        let (request, attempt, out_of_memory) = (self.number(), 1, true);
        let failed = AllocFailed { pool, size_bytes, status, flags, caller, out_of_memory, request, attempt };
        turn.emit(device.unwrap_or_else(|| turn.device()), EventKind::AllocFailed(failed));
    }

    /// Requests that have failed so far.
    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// A pool has refused a request for good, without a call of the driver: beyond the memory fraction, for instance. `stacks` are those of the
    /// request.
    pub(super) fn refused_by_pool(&mut self, asked: PoolRequest, stacks: Stacks, turn: &mut Turn<'_>) {
        let PoolRequest { pool, caller, size_bytes } = asked;
        let (tid, device) = (turn.at.tid, turn.device());
        if !known_or_room(&mut self.threads, tid) {
            return;
        }
        self.threads.entry(tid).or_default();
        let (request, caller) = (self.number(), Some(caller));
        let failed =
            AllocFailed { pool, size_bytes, status: 0, flags: 0, caller, out_of_memory: true, request, attempt: 1 };
        let turn = &mut turn.with(At { stacks, ..turn.at });
        turn.emit(device, EventKind::AllocFailed(failed));
        self.write_obituary(device, failed, turn);
        self.failed_for_good(tid, turn);
    }

    /// A number for a request.
    const fn number(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// An attempt of thread `tid` has failed: a further one of its open request, or the first of a new one.
    fn attempt(&mut self, tid: u32, time_ns: u64, wish: Wish, is_direct: bool) -> Request {
        let request = match self.threads.get(&tid).and_then(|thread| thread.wanted(time_ns)) {
            Some(open) if open.wish == wish => Request { attempts: open.attempts + 1, ..open },
            _ => Request { number: self.number(), attempts: 1, wish, is_direct },
        };
        if known_or_room(&mut self.threads, tid) {
            let thread = self.threads.entry(tid).or_default();
            (thread.time_ns, thread.questions, thread.for_segments) = (time_ns, 0, 0);
            thread.open = Some(request);
        }
        request
    }

    /// Keeps the report for the case that this attempt was the last. An earlier request of the thread has failed for
    /// good.
    fn write_obituary(&mut self, device: Device, failed: AllocFailed, turn: &mut Turn<'_>) {
        let count = rows_wanted(turn).unwrap_or(super::super::wishes::DEFAULT_BLOCKS);
        let tid = turn.at.tid;
        let earlier = self.threads.get(&tid).and_then(|thread| thread.obituary.as_ref());
        if earlier.is_some_and(|earlier| earlier.failed.request != failed.request) {
            self.failed_for_good(tid, turn);
        }
        let suspects = self.suspects(device, count, turn);
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        let At { time_ns, stacks, .. } = turn.at;
        let obituary = Obituary { failed, device, time_ns, stacks, suspects };
        if thread.obituary.replace(obituary).is_none() {
            turn.shared.oom_pending += 1;
        }
    }

    /// The newest and the largest live blocks.
    fn suspects(&mut self, device: Device, count: usize, turn: &Turn<'_>) -> Arc<Suspects> {
        let time_ns = turn.at.time_ns;
        if let Some((looked_ns, on, suspects)) = &self.looked
            && *on == device
            && time_ns.abs_diff(*looked_ns) < LOOK_NS
        {
            return Arc::clone(suspects);
        }
        let suspects =
            Arc::new(Suspects::among(|| turn.home.blocks.all().filter(|block| block.device == device), count));
        self.looked = Some((time_ns, device, Arc::clone(&suspects)));
        suspects
    }

    /// The thread queries the free memory: for an expandable segment, or, the second time, because it gives up.
    fn asked(&mut self, turn: &mut Turn<'_>) {
        let tid = turn.at.tid;
        if self.ask(tid) {
            self.failed_for_good(tid, turn);
        }
    }

    /// Counts a question; whether it is not the first.
    fn ask(&mut self, tid: u32) -> bool {
        let Some(thread) = self.threads.get_mut(&tid) else { return false };
        thread.questions = thread.questions.saturating_add(1);
        thread.questions > 1
    }

    /// The thread reserves addresses: its query just before was for them.
    pub(super) fn reserved(&mut self, tid: u32) {
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        match thread.questions - thread.for_segments {
            0 => {}
            1 => thread.for_segments = thread.questions,
            _ => thread.open = None,
        }
        self.tidy(tid);
    }

    /// The driver gave the thread memory: maybe for its failed request.
    pub(super) fn driver_gave(&mut self, size_bytes: u64, turn: &mut Turn<'_>) {
        let At { tid, time_ns, .. } = turn.at;
        let is_direct = |thread: &Thread| thread.wanted(time_ns).is_some_and(|request| request.is_direct);
        if (!self.has_pool || self.threads.get(&tid).is_some_and(is_direct))
            && let Some(request) = self.granted(tid, time_ns, size_bytes, turn.backend().padding_bytes())
        {
            self.recovered(request, turn);
        }
    }

    /// The request that a block of this size answers.
    fn granted(&mut self, tid: u32, time_ns: u64, size_bytes: u64, padding_bytes: u64) -> Option<Request> {
        let request = self.threads.get(&tid)?.wanted(time_ns)?;
        let fits = size_bytes.checked_sub(request.wish.size_bytes).is_some_and(|more| more <= padding_bytes);
        if fits { self.succeeded(tid, time_ns) } else { None }
    }

    /// A pool gave the thread a block: its failed request succeeded, unless it asked for this one later. `asked_ns`: when, if that is known.
    pub(super) fn pool_gave(&mut self, asked_ns: Option<u64>, turn: &mut Turn<'_>) {
        let At { tid, time_ns, .. } = turn.at;
        let failed_before = |asked_ns| self.threads.get(&tid).is_some_and(|thread| thread.time_ns < asked_ns);
        if asked_ns.is_some_and(failed_before) {
            return;
        }
        if let Some(request) = self.succeeded(tid, time_ns) {
            self.recovered(request, turn);
        }
    }

    /// The thread's request succeeded; returns it, unless it had been given up.
    fn succeeded(&mut self, tid: u32, time_ns: u64) -> Option<Request> {
        let request = self.threads.get(&tid)?.wanted(time_ns);
        self.close(tid);
        request
    }

    /// The thread makes no further attempt.
    fn close(&mut self, tid: u32) {
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.open = None;
            self.tidy(tid);
        }
    }

    /// A request that had failed succeeded.
    fn recovered(&mut self, request: Request, turn: &mut Turn<'_>) {
        let Request { number, attempts, wish: Wish { pool, device, size_bytes }, .. } = request;
        if self.take_obituary(turn.at.tid).is_some() {
            turn.shared.oom_pending = turn.shared.oom_pending.saturating_sub(1);
        }
        let recovered = AllocRecovered { pool, request: number, failed_attempts: attempts, size_bytes };
        turn.emit(device, EventKind::AllocRecovered(recovered));
    }

    fn take_obituary(&mut self, tid: u32) -> Option<Obituary> {
        let obituary = self.threads.get_mut(&tid)?.obituary.take();
        self.tidy(tid);
        obituary
    }

    fn tidy(&mut self, tid: u32) {
        if self.threads.get(&tid).is_some_and(Thread::is_over) {
            self.threads.remove(&tid);
        }
    }

    /// All requests have failed for good: the process has ended.
    pub(in crate::pipeline) fn all_failed(&mut self, turn: &mut Turn<'_>) {
        let with_obituary = |(tid, thread): (&u32, &Thread)| thread.obituary.as_ref().map(|_| *tid);
        for tid in self.threads.iter().filter_map(with_obituary).collect::<Vec<_>>() {
            self.failed_for_good(tid, turn);
        }
    }

    /// Time has passed: silent threads have given up.
    pub(in crate::pipeline) fn waited_long_enough(&mut self, turn: &mut Turn<'_>) {
        let time_ns = turn.at.time_ns;
        let is_silent = |last: &Obituary| time_ns.abs_diff(last.time_ns) >= SILENCE_NS;
        let is_overdue = |thread: &Thread| thread.obituary.as_ref().is_some_and(is_silent);
        let overdue = self.threads.iter().filter(|(_, thread)| is_overdue(thread)).map(|(tid, _)| *tid);
        for tid in overdue.collect::<Vec<_>>() {
            self.failed_for_good(tid, turn);
        }
    }

    /// The request of a thread has failed for good, if it has one: reports it, and the live blocks.
    fn failed_for_good(&mut self, tid: u32, turn: &mut Turn<'_>) {
        let Some(Obituary { failed, device, stacks, suspects, .. }) = self.take_obituary(tid) else { return };
        turn.shared.oom_pending = turn.shared.oom_pending.saturating_sub(1);
        let at = At { time_ns: turn.at.time_ns, tid, stacks };
        // Where they are asked for, these rows are written whatever steps were requested.
        let has_rows = rows_wanted(turn).is_some();
        turn.with(at).emit_if(device, EventKind::OutOfMemory(OutOfMemory::Trigger(failed)), has_rows);
        if self.reported_ns.is_some_and(|reported_ns| at.time_ns.abs_diff(reported_ns) < QUIET_NS) {
            return;
        }
        self.reported_ns = Some(at.time_ns);
        let newest = suspects.newest.iter().map(|block| (block.stacks, OutOfMemory::Recent(*block)));
        let largest = suspects.largest.iter().map(|block| (block.stacks, OutOfMemory::Top(*block)));
        for (stacks, suspect) in newest.chain(largest) {
            turn.with(At { stacks, ..at }).emit_if(device, EventKind::OutOfMemory(suspect), has_rows);
        }
    }
}

/// Number of blocks in the rows of a failed request, if the options or the script ask for such rows.
fn rows_wanted(turn: &Turn<'_>) -> Option<usize> {
    turn.home.collection.oom_blocks().or(turn.shared.oom_blocks)
}

/// Whether a failure of this thread can be kept: it is known, or there is room, if necessary instead of threads without
/// a report.
fn known_or_room(threads: &mut BTreeMap<u32, Thread>, tid: u32) -> bool {
    if threads.len() >= MAX_THREADS && !threads.contains_key(&tid) {
        threads.retain(|_, thread| thread.obituary.is_some());
    }
    threads.len() < MAX_THREADS || threads.contains_key(&tid)
}
