//! Which blocks outlive the step after their own?
//!
//! The step rule (contract §8.2), for every pool of device memory, the driver's included: a block that was allocated in
//! step `a`, with `a` past the skipped steps, and is live at the end of a step at least [`DURATION_THRESHOLD`] later on
//! its device, is a leak. Differences to the reference, which is wrong there:
//!
//! - a block that the program frees later is no leak (the reference never takes one back);
//! - driver memory has the step rule too;
//! - what lives at the end of the trace and no later step could judge is reported as *unjudged*, not passed over.
//!
//! The verdict is on the blocks' *place* (call stack, or size). A list that keeps a tensor of each step is a leak; a
//! variable that keeps the last one, a queue of the last twenty, a full cache are none. So a place leaks if its blocks
//! come from at least three steps, the oldest from a quarter of the run ago or more, the newest from less, and its
//! freed blocks lived for at most half as many steps as the oldest. Other places are undecided ([`StepVerdict`]).
//! Blocks that the program frees while it ends ([`FreeCause::Exit`]) were held until then; at places that do not leak
//! they count as *kept*.
//!
//! A block that the pool handed out again without a free in between ([`FreeCause::Replaced`]) was freed unseen: no
//! leak. One that its process or the trace ended with stays live, and so does one that a script frees after its last
//! `stop()`, as when Python ends.
//!
//! Cost: the end of a step walks nothing. Every block still live at the end has seen the end of all steps after its
//! own, so the numbers of the ended steps and the live blocks suffice, and one search per block counts the steps it
//! survived.

mod finding;
mod table;
mod text;

pub use self::finding::{Kept, Leak, StepLeakPlace, StepLeaks, StepVerdict};

use std::collections::HashSet;

use super::{
    Analysis, Finding, FluctuationAnalysis, Stepped,
    concluded::Concluded,
    judged_leaks, judged_leaks_by,
    per_device::PerDevice,
    question::{AnalysisBit, Automatic, FilesCommand, Question, Sees, collected},
};
use crate::hash::HashMap;
use crate::model::{Block, Confidence, Event, EventKind, Figures, Free, FreeCause, Pool, RunEnd, Stacks, StepsFrom};

/// Steps at the start with blocks that are not judged: memory of the first step is often kept for the whole run.
pub const SKIPPED_STEPS: u32 = 1;

/// A block leaks when it is live at the end of a step at least this many steps after its own.
pub const DURATION_THRESHOLD: u32 = 1;

/// Steps that the blocks of a place that leaks come from at least.
const MIN_STEPS: u32 = 3;

/// Most places, of a process on a device, with blocks that were freed after the end of their step. The lifetimes at
/// further ones are unknown.
const MAX_FREED_PLACES: usize = 65_536;

/// Leaks: by steps, growth, and variation of use inside steps.
pub(super) const QUESTION: Question = Question {
    word: "leaks",
    parameter: "",
    command: FilesCommand::Own,
    names_owners: false,
    sees: Sees::Chosen,
    compares_steps: true,
    automatic: Automatic::Never,
    collects: collected::BLOCKS,
    script_bit: Some(AnalysisBit::LEAKS),
    add: |asked, set| {
        let rules = asked.rules.as_ref().filter(|_| !asked.automatic);
        let judged = rules.map_or_else(judged_leaks, judged_leaks_by);
        set.leaks(judged).whole(Stepped::new::<FluctuationAnalysis>())
    },
    table: table::TABLE,
};

/// Finds the blocks that outlive the step after their own.
#[derive(Debug, Default)]
pub struct StepLeaksAnalysis {
    running: PerDevice<DeviceSteps>,
    concluded: Concluded<StepLeaks>,
}

/// Steps and candidates of one process on one device.
#[derive(Debug, Default)]
struct DeviceSteps {
    /// Numbers of the steps that ended, in order.
    ended: Vec<u32>,
    /// Live blocks past the skipped steps, by allocation id: an address alone may come back.
    live: HashMap<u64, Leak>,
    /// Those of them that the exit freed.
    exit: HashSet<u64>,
    /// By place, the most steps that ended while a block lived that the program freed; absent where none did.
    freed: HashMap<Place, u32>,
}

/// The origin of blocks: their call stacks, or their size where there are none.
type Place = (Pool, Stacks, Option<u64>);

fn place_of(leak: &Leak) -> Place {
    (leak.pool, leak.stacks, leak.stacks.is_empty().then_some(leak.size_bytes))
}

/// The fate of the held blocks.
#[derive(Default)]
struct Judged {
    places: Vec<StepLeakPlace>,
    leaks: Vec<Leak>,
    unjudged: Vec<Leak>,
    kept: Kept,
}

impl Analysis for StepLeaksAnalysis {
    fn observe(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Alloc(alloc) if may_leak(&alloc.block) => self.track(event.pid, &alloc.block),
            EventKind::Free(free) if may_leak(&free.block) => {
                self.running.at(event.pid, free.block.device).free(free);
            }
            EventKind::StepEnd { step } => self.running.at(event.pid, event.device).end(*step),
            EventKind::ProcessEnd => self.conclude(event.pid),
            _ => {}
        }
    }

    fn finish(&mut self, end: &RunEnd) -> Vec<Finding> {
        for pid in self.running.processes() {
            self.conclude(pid);
        }
        let confidence = Confidence::of(end, &[Figures::Memory, Figures::Marks]);
        let finding = |leaks| Finding::StepLeaks(StepLeaks { confidence, ..leaks });
        self.concluded.take(|leaks| (leaks.pid, leaks.device), finding)
    }
}

impl StepLeaksAnalysis {
    fn track(&mut self, pid: u32, block: &Block) {
        let leak = Leak {
            pool: block.pool,
            addr: block.addr,
            size_bytes: block.size_bytes,
            step: block.step,
            survived_steps: 0,
            kernel_index: block.kernel_index,
            allocation_id: block.allocation_id,
            stacks: block.stacks,
        };
        self.running.at(pid, block.device).live.insert(block.allocation_id, leak);
    }

    fn conclude(&mut self, pid: u32) {
        for (device, steps) in self.running.take_process(pid) {
            let (steps_ended, Judged { places, leaks, unjudged, kept }) = steps.judge();
            if steps_ended > 0 || !unjudged.is_empty() {
                let confidence = Confidence::Certain;
                let steps_from = StepsFrom::Marks;
                self.concluded.add(StepLeaks {
                    pid,
                    device,
                    places,
                    leaks,
                    unjudged,
                    kept,
                    steps_ended,
                    steps_from,
                    confidence,
                });
            }
        }
    }
}

impl DeviceSteps {
    fn free(&mut self, free: &Free) {
        let number = free.block.allocation_id;
        if gave_back(free) {
            if let Some(leak) = self.live.remove(&number) {
                self.lived(&leak);
            }
        } else if free.cause == FreeCause::Exit {
            self.exit.insert(number);
        }
    }

    /// A block was freed while the program worked.
    fn lived(&mut self, leak: &Leak) {
        let (steps, place) = (self.survived(leak.step), place_of(leak));
        if steps > 0 && (self.freed.len() < MAX_FREED_PLACES || self.freed.contains_key(&place)) {
            let longest = self.freed.entry(place).or_default();
            *longest = steps.max(*longest);
        }
    }

    /// Steps may end in another order than they began.
    fn end(&mut self, step: u32) {
        let at = self.ended.partition_point(|ended| *ended < step);
        if self.ended.get(at) != Some(&step) {
            self.ended.insert(at, step);
        }
    }

    /// Steps after this one that have ended.
    fn survived(&self, step: u32) -> u32 {
        (self.ended.len() - self.ended.partition_point(|ended| *ended <= step)) as u32
    }

    /// Number of ended steps, and the fate of the blocks.
    fn judge(self) -> (u32, Judged) {
        let last_ended = self.ended.last().copied().unwrap_or(0);
        let mut blocks: Vec<Leak> =
            self.live.values().map(|leak| Leak { survived_steps: self.survived(leak.step), ..*leak }).collect();
        blocks.sort_unstable_by_key(|leak| (leak.step, leak.pool, leak.addr, leak.allocation_id));
        let held = held_places(&blocks);
        let steps_ended = self.ended.len() as u32;
        let verdict = |place: &Place| held[place].verdict(steps_ended, self.freed.get(place).copied().unwrap_or(0));
        let mut judged = Judged::default();
        for leak in blocks {
            if self.exit.contains(&leak.allocation_id) && verdict(&place_of(&leak)) != StepVerdict::Leak {
                judged.kept.blocks += 1;
                judged.kept.size_bytes = judged.kept.size_bytes.saturating_add(leak.size_bytes);
            } else if leak.step + DURATION_THRESHOLD <= last_ended {
                judged.leaks.push(leak);
            } else {
                judged.unjudged.push(leak);
            }
        }
        judged.places = by_place(&judged.leaks, verdict);
        (steps_ended, judged)
    }
}

/// Steps of the blocks that a place holds.
#[derive(Default)]
struct HeldSteps {
    steps: u32,
    last: Option<u32>,
    /// Step ends that the oldest survived.
    oldest: u32,
    /// Step ends that the newest survived.
    newest: u32,
}

impl HeldSteps {
    /// `freed`: the most steps that ended while a block of the place lived that was freed.
    fn verdict(&self, steps_ended: u32, freed: u32) -> StepVerdict {
        let quarter = (steps_ended / 4).max(1);
        if self.steps < MIN_STEPS {
            StepVerdict::FewSteps
        } else if self.oldest < quarter.max(2) {
            StepVerdict::Young
        } else if self.newest > quarter {
            StepVerdict::Stopped
        } else if self.oldest < freed.saturating_mul(2) {
            StepVerdict::Replaced
        } else {
            StepVerdict::Leak
        }
    }
}

/// The places of blocks, which are in the order of their steps.
fn held_places(blocks: &[Leak]) -> HashMap<Place, HeldSteps> {
    let mut places: HashMap<Place, HeldSteps> = HashMap::default();
    for leak in blocks {
        let held = places.entry(place_of(leak)).or_default();
        held.steps += u32::from(held.last != Some(leak.step));
        held.last = Some(leak.step);
        held.oldest = held.oldest.max(leak.survived_steps);
        held.newest = leak.survived_steps;
    }
    places
}

/// Leaks, in the order of their steps, by place.
fn by_place(leaks: &[Leak], verdict: impl Fn(&Place) -> StepVerdict) -> Vec<StepLeakPlace> {
    let mut places: HashMap<Place, StepLeakPlace> = HashMap::default();
    for leak in leaks {
        let place = place_of(leak);
        let (pool, stacks, each_bytes) = place;
        let known = places.entry(place).or_insert_with(|| StepLeakPlace {
            pool,
            verdict: verdict(&place),
            blocks: 0,
            size_bytes: 0,
            steps: 0,
            step_range: [leak.step, 0],
            each_bytes,
            stacks,
        });
        known.blocks += 1;
        known.size_bytes = known.size_bytes.saturating_add(leak.size_bytes);
        known.steps += u32::from(known.step_range[1] != leak.step);
        known.step_range[1] = leak.step;
    }
    let mut places: Vec<StepLeakPlace> = places.into_values().collect();
    places.sort_unstable_by_key(|place| {
        let is_undecided = place.verdict != StepVerdict::Leak;
        (
            is_undecided,
            std::cmp::Reverse(place.size_bytes),
            place.step_range,
            place.pool,
            place.each_bytes,
            place.stacks,
        )
    });
    places
}

/// Whether the program gave it back during collection. Frees after its last `stop()` are reported at its end, with
/// their own time.
fn gave_back(free: &Free) -> bool {
    free.cause.gave_back() && !(free.cause == FreeCause::Unwatched && free.row_time_ns.is_some())
}

/// Whether the rule applies to the block at all.
fn may_leak(block: &Block) -> bool {
    // The step of a block that is older than the trace is not known.
    !block.pool.is_host() && block.step > SKIPPED_STEPS && !block.found
}

#[cfg(test)]
mod tests;
