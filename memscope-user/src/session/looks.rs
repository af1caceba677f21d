//! Looks at the holders of blocks while their processes live: when a request has failed, now and then while places grow, when a
//! program begins to exit, and before the trace ends. A thread of its own reads; the processes are not stopped.
//!
//! Cost: at most one look a minute, and a twentieth of one processor; with `--holders` one in five seconds and a fourth. Bounds of a look:
//! 64 Mi pointers (0.6 GiB of memory while it lasts) and ten seconds, then what is left is not looked at.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use super::{TraceError, heap, log::Speaker};
use crate::{
    capture::{LookBlock, LookMoment, Note, note_record},
    crew::{self, Crew, Post},
    error_chain,
    holders::{Budget, Cut, FoundPlaces, NotLooked, OpenError, Process, of_places},
    os::{clock::monotonic_ns, priority},
    pipeline::ToLookAt,
    ring::{self, Reader},
};

/// How often the memory of traced processes is read, to find what holds their blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Looks {
    /// Never.
    #[default]
    Never,
    /// At a process with a failed request alone, at most once a minute, with at most a two-hundredth of a processor and a smaller bound of memory.
    Failures,
    /// When a request has failed and before the trace ends; while places grow and when a program with such begins to exit, at most once a
    /// minute, with at most a twentieth of a processor.
    Seldom,
    /// Also while nothing grows, every five seconds, with at most a fourth of a processor.
    Often,
}

/// What is read out of the memory of traced processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HolderOptions {
    /// How often.
    pub looks: Looks,
    /// Show keys of dicts, which are data of the program.
    pub keys: bool,
    /// Read the framework's pool of each process that is attached to, once: its blocks from before then count as found.
    pub pool: bool,
    /// Look for the purposes of those blocks, too, by a pass over the process's memory.
    pub purposes: bool,
}

impl Default for HolderOptions {
    fn default() -> Self {
        Self { looks: Looks::default(), keys: true, pool: false, purposes: true }
    }
}

/// All processes of a look, by the clock.
const PATIENCE: Duration = Duration::from_secs(10);
/// The pass over the memory of one process, and the search after that, in processor time.
const SCAN: Duration = Duration::from_secs(4);
const SEARCH: Duration = Duration::from_secs(2);
/// Most pointers kept, of eight bytes each.
const POINTERS: usize = 64 << 20;
/// The same beside a service with a budget.
const FEW_POINTERS: usize = 24 << 20;
/// A program that only starts grows as well.
const FIRST: Duration = Duration::from_secs(10);
/// From one choice of blocks to the next, where nothing was worth a look.
const CHOICE: Duration = Duration::from_secs(5);
/// From one look at an exit to the next: programs may start many that end at once.
const EXITS: Duration = Duration::from_secs(5);

/// How often.
#[derive(Clone, Copy, Debug)]
struct Rate {
    interval: Duration,
    /// Times that a look took, from its end to the next.
    pause: u32,
}

impl Rate {
    const fn of(looks: Looks) -> Option<Self> {
        match looks {
            Looks::Never => None,
            // A program may fail and recover all the time, beside a service with a budget of a few hundredths.
            Looks::Failures => Some(Self { interval: Duration::from_secs(60), pause: 199 }),
            Looks::Seldom => Some(Self { interval: Duration::from_secs(60), pause: 19 }),
            Looks::Often => Some(Self { interval: Duration::from_secs(5), pause: 3 }),
        }
    }

    fn after(self, took: Duration) -> Duration {
        self.interval.max(took.saturating_mul(self.pause))
    }
}

/// A look to take.
struct Job {
    look: u32,
    at: LookMoment,
    processes: Vec<ToLookAt>,
    /// Is dropped when it was taken.
    done: Option<oneshot::Sender<()>>,
}

/// Takes looks, or says when the next one is due.
#[derive(Clone)]
pub(super) struct Looker {
    jobs: mpsc::Sender<Job>,
    pace: Arc<Mutex<Pace>>,
    when: Looks,
}

#[derive(Debug)]
struct Pace {
    rate: Rate,
    looks: u32,
    is_busy: bool,
    /// The next look while the program works, ...
    next: Instant,
    /// ... at a failed request, ...
    next_failed: Instant,
    /// ... and at an exit.
    next_exit: Instant,
}

impl Pace {
    fn new(rate: Rate, now: Instant) -> Self {
        let next = now + FIRST.min(rate.interval);
        Self { rate, looks: 0, is_busy: false, next, next_failed: now, next_exit: now }
    }

    /// Whether to look now. The next time to ask is then settled.
    fn begins(&mut self, at: LookMoment, now: Instant) -> bool {
        let next = match at {
            LookMoment::End => return true,
            LookMoment::Running => &mut self.next,
            LookMoment::FailedRequest => &mut self.next_failed,
            LookMoment::Exit => &mut self.next_exit,
        };
        if self.is_busy || now < *next {
            return false;
        }
        *next = now + if at == LookMoment::Exit { EXITS } else { CHOICE.min(self.rate.interval) };
        true
    }

    /// A look has ended.
    fn ended(&mut self, at: LookMoment, took: Duration, now: Instant) {
        self.is_busy = false;
        let next = now + self.rate.after(took);
        self.next = next;
        if at == LookMoment::FailedRequest {
            self.next_failed = next;
        }
    }
}

impl Looker {
    fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a look is to be taken now, for this reason.
    pub(super) fn begins(&self, at: LookMoment) -> bool {
        self.looks_at(at) && self.pace().begins(at, Instant::now())
    }

    /// Whether looks are taken at such moments.
    pub(super) fn looks_at(&self, at: LookMoment) -> bool {
        self.when != Looks::Failures || at == LookMoment::FailedRequest
    }

    /// The processes that this look is worth its cost of, the one with a failed request first.
    pub(super) fn worth(&self, at: LookMoment, failed: Option<u32>, mut processes: Vec<ToLookAt>) -> Vec<ToLookAt> {
        if matches!(at, LookMoment::Running | LookMoment::Exit) && self.when != Looks::Often {
            processes.retain(|process| process.grows);
        }
        if self.when == Looks::Failures {
            processes.retain(|process| failed == Some(process.pid));
        }
        processes.sort_by_key(|process| failed != Some(process.pid));
        processes
    }

    /// Number of the next look.
    pub(super) fn number(&self) -> u32 {
        let mut pace = self.pace();
        pace.looks += 1;
        pace.is_busy = true;
        pace.looks
    }

    /// Takes a look. `done` is dropped when that is over.
    pub(super) fn look(&self, look: u32, at: LookMoment, processes: Vec<ToLookAt>, done: Option<oneshot::Sender<()>>) {
        // A thread that has ended has reported why.
        let _ = self.jobs.send(Job { look, at, processes, done });
    }
}

/// Starts the thread, if looks are wanted and anyone reads what they find.
pub(super) fn start(
    options: HolderOptions,
    reader: &Reader,
    speaker: Speaker,
    crew: &Crew,
) -> Result<Option<Looker>, TraceError> {
    let Some(rate) = Rate::of(options.looks) else { return Ok(None) };
    let (jobs, taken) = mpsc::channel();
    let pace = Arc::new(Mutex::new(Pace::new(rate, Instant::now())));
    let looker = Looker { jobs, pace, when: options.looks };
    let (notes, pace) = (reader.notes(), Arc::clone(&looker.pace));
    let pointers = if options.looks == Looks::Failures { FEW_POINTERS } else { POINTERS };
    let budget = Budget { scan: SCAN, search: SEARCH, longest: PATIENCE, pointers, keys: options.keys };
    let work = move |post: &mut Post| {
        for job in taken {
            let (begin, at) = (Instant::now(), job.at);
            // What holds the blocks is let go of soon.
            let is_hasty = matches!(at, LookMoment::FailedRequest | LookMoment::Exit);
            priority::give_way(if is_hasty { priority::NORMAL } else { priority::LOW });
            take(&job, &notes, budget, &speaker);
            heap::give_back();
            pace.lock().unwrap_or_else(PoisonError::into_inner).ended(at, begin.elapsed(), Instant::now());
            drop(job.done);
            post.round();
        }
    };
    crew.spawn("memscope-look", work).map_err(TraceError::system("cannot start the thread for holders"))?;
    Ok(Some(looker))
}

/// Why a process was not looked at.
fn reason(failure: &OpenError) -> String {
    match failure {
        OpenError::NoProcess { .. } => "the process has ended".to_owned(),
        failure => error_chain(failure),
    }
}

fn take(Job { look, at, processes, .. }: &Job, notes: &ring::Notes, budget: Budget, speaker: &Speaker) {
    let begin = Instant::now();
    for ToLookAt { pid, places, .. } in processes {
        let send = |note: &Note| notes.send(note_record(monotonic_ns(), 0, note));
        let not = |reason: String| send(&Note::NoLook { look: *look, pid: *pid, at: *at, reason });
        let left = PATIENCE.saturating_sub(begin.elapsed());
        if left.is_zero() {
            not("other processes took the time for it".to_owned());
            continue;
        }
        let process = match Process::open(*pid) {
            Ok(process) => process,
            Err(failure) => {
                not(reason(&failure));
                continue;
            }
        };
        let blocks: Vec<Vec<(u64, u64)>> = places.iter().map(|place| place.blocks.clone()).collect();
        let budget = Budget { longest: left, ..budget };
        // Memory of a process is hostile, and a trace without holders is better than none.
        match crew::quietly(|| of_places(&process, &blocks, budget)) {
            Some(Ok(found)) if found.places.iter().all(|place| place.blocks.is_empty()) => {
                not("its blocks were freed or changed meanwhile".to_owned());
            }
            Some(Ok(found)) => {
                report(&found, *pid, speaker);
                each(&found, (*look, *pid), send);
            }
            Some(Err(NotLooked::Gone)) => not("the process has ended".to_owned()),
            Some(Err(why)) => not(error_chain(&why)),
            None => not("its memory was not understood".to_owned()),
        }
    }
}

fn report(found: &FoundPlaces, pid: u32, speaker: &Speaker) {
    let (took, mib) = (Duration::from_nanos(found.effort.time_ns), found.effort.scanned_bytes >> 20);
    speaker.debug(format_args!("looked at who holds blocks of process {pid}: {took:.1?}, {mib} MiB of host memory"));
    if let Some(cut) = found.cut.filter(|cut| !matches!(cut, Cut::Swapped { .. })) {
        speaker.info(format_args!(
            "holders in process {pid} may be missing: {cut}; `memscope-bpf holders {pid}` looks at more"
        ));
    }
}

/// A note for each place.
fn each(found: &FoundPlaces, (look, pid): (u32, u32), send: impl Fn(&Note)) {
    let left_out = found.cut.map(|cut| cut.to_string());
    for (place, found) in (0..).zip(&found.places).filter(|(_, found)| !found.blocks.is_empty()) {
        let block = |block: &crate::holders::FoundBlock| LookBlock {
            addr: block.address,
            by: block.by.iter().filter_map(|at| u8::try_from(*at).ok()).collect(),
            garbage: block.is_garbage,
            held_as: block.held_as,
        };
        let blocks = found.blocks.iter().map(block).collect();
        let left_out = left_out.clone();
        send(&Note::LookEnds { look, pid, place, holders: found.holders.clone(), blocks, left_out });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn pace(looks: Looks) -> (Pace, Instant) {
        let now = Instant::now();
        (Pace::new(Rate::of(looks).expect("a rate"), now), now)
    }

    /// One look a minute, and a twentieth of the time, worked out by hand: a look of one second is followed by 60, one of ten by 190.
    #[test]
    fn looks_are_rare() {
        let (mut pace, start) = pace(Looks::Seldom);
        assert!(!pace.begins(LookMoment::Running, start + 9 * SECOND));
        assert!(pace.begins(LookMoment::Running, start + 10 * SECOND));
        // Nothing was worth a look: blocks are chosen again after 5 s.
        assert!(!pace.begins(LookMoment::Running, start + 14 * SECOND));
        assert!(pace.begins(LookMoment::Running, start + 15 * SECOND));
        pace.is_busy = true;
        assert!(!pace.begins(LookMoment::Running, start + 100 * SECOND));
        pace.ended(LookMoment::Running, SECOND, start + 100 * SECOND);
        assert!(!pace.begins(LookMoment::Running, start + 159 * SECOND));
        assert!(pace.begins(LookMoment::Running, start + 160 * SECOND));
        pace.ended(LookMoment::Running, 10 * SECOND, start + 200 * SECOND);
        assert!(!pace.begins(LookMoment::Running, start + 389 * SECOND));
        assert!(pace.begins(LookMoment::Running, start + 390 * SECOND));
    }

    /// A failed request is looked at at once, and further ones not before the next look; the end of a trace always is.
    #[test]
    fn failures_and_the_end() {
        let (mut pace, start) = pace(Looks::Seldom);
        assert!(pace.begins(LookMoment::FailedRequest, start + SECOND));
        pace.is_busy = true;
        assert!(pace.begins(LookMoment::End, start + SECOND));
        pace.ended(LookMoment::FailedRequest, SECOND, start + 2 * SECOND);
        assert!(!pace.begins(LookMoment::FailedRequest, start + 61 * SECOND));
        assert!(pace.begins(LookMoment::FailedRequest, start + 62 * SECOND));
        assert!(
            pace.begins(LookMoment::Exit, start + 63 * SECOND) && !pace.begins(LookMoment::Exit, start + 67 * SECOND)
        );
    }

    #[test]
    fn asked_for() {
        let (mut pace, start) = pace(Looks::Often);
        assert!(
            !pace.begins(LookMoment::Running, start + 4 * SECOND)
                && pace.begins(LookMoment::Running, start + 5 * SECOND)
        );
        pace.ended(LookMoment::Running, 4 * SECOND, start + 9 * SECOND);
        assert!(
            !pace.begins(LookMoment::Running, start + 20 * SECOND)
                && pace.begins(LookMoment::Running, start + 21 * SECOND)
        );
        assert!(Rate::of(Looks::Never).is_none());
        // 2 s are a two-hundredth of 400 s.
        let (mut pace, start) = self::pace(Looks::Failures);
        assert!(pace.begins(LookMoment::FailedRequest, start));
        pace.ended(LookMoment::FailedRequest, 2 * SECOND, start + 2 * SECOND);
        assert!(!pace.begins(LookMoment::FailedRequest, start + 399 * SECOND));
        assert!(pace.begins(LookMoment::FailedRequest, start + 400 * SECOND));
    }
}
