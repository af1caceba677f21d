//! What a run holds at the end of each step, by place.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, Sender};

use crate::analyses::Observer;
use crate::analyses::diff::Places;
use crate::analyses::inferred::InferredSteps;
use crate::hash::{HashMap, HashSet};
use crate::model::{Block, Event, EventKind, Pool, RunEnd, Stacks, StepsFrom};

/// Places that are kept apart; blocks of further ones are one place.
const MAX_PLACES: usize = 1 << 18;
/// Changes that are kept; the run seems to end where they are used up.
const MAX_CHANGES: usize = 8 << 20;

/// Where blocks were allocated: a call stack, else a size; neither stands for all blocks of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place {
    pub(super) pool: Pool,
    pub(super) stacks: Stacks,
    pub(super) size_bytes: Option<u64>,
}

impl Place {
    pub(super) fn all_of(pool: Pool) -> Self {
        Self { pool, stacks: Stacks::default(), size_bytes: None }
    }
}

/// A run by its steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// Bytes of each place from a step on, in the order of steps.
    pub(super) held: HashMap<Place, Vec<(u32, u64)>>,
    /// When each step ended, nanoseconds since the Unix epoch.
    pub(super) ends: BTreeMap<u32, u64>,
    /// How steps are known.
    pub(super) steps_from: StepsFrom,
    /// Some block has a call stack.
    pub(super) stacks: bool,
    /// There were more changes than are kept.
    pub(super) cut: bool,
}

impl Run {
    /// Bytes of a place at the end of a step.
    pub(super) fn bytes(&self, place: &Place, step: u32) -> u64 {
        let Some(held) = self.held.get(place) else { return 0 };
        let until = held.partition_point(|(since, _)| *since <= step);
        until.checked_sub(1).map_or(0, |last| held[last].1)
    }
}

/// Steps of one kind: marked, or inferred.
#[derive(Debug, Default)]
struct Timeline {
    run: Run,
    changed: HashSet<Place>,
    changes: usize,
}

impl Timeline {
    /// A step has ended.
    fn step(&mut self, step: u32, time_ns: u64, live: &HashMap<Place, u64>) {
        if self.run.ends.last_key_value().is_some_and(|(last, _)| *last >= step) {
            // Another device's.
            return;
        }
        if self.changes + self.changed.len() > MAX_CHANGES {
            self.run.cut = true;
        }
        if self.run.cut {
            return;
        }
        self.changes += self.changed.len();
        self.run.ends.insert(step, time_ns);
        for place in self.changed.drain() {
            let bytes = live.get(&place).copied().unwrap_or_default();
            self.run.held.entry(place).or_default().push((step, bytes));
        }
    }
}

/// Records a run, and sends it when it has ended.
#[derive(Debug)]
pub struct Recorder {
    places: Places,
    live: HashMap<Place, u64>,
    of_marks: Timeline,
    of_inferred: Timeline,
    steps: InferredSteps,
    inferred_from: StepsFrom,
    marked: bool,
    stacks: bool,
    last_ns: u64,
    out: Sender<Run>,
}

impl Recorder {
    /// A recorder, and the other end.
    #[must_use]
    pub fn new() -> (Self, Receiver<Run>) {
        let (out, run) = mpsc::channel();
        let recorder = Self {
            places: Places::default(),
            live: HashMap::default(),
            of_marks: Timeline::default(),
            of_inferred: Timeline::default(),
            steps: InferredSteps::default(),
            inferred_from: StepsFrom::default(),
            marked: false,
            stacks: false,
            last_ns: 0,
            out,
        };
        (recorder, run)
    }

    fn place(&mut self, block: &Block) -> Place {
        let stacks = self.places.of(block.stacks);
        self.stacks |= !stacks.is_empty();
        let size_bytes = stacks.is_empty().then_some(block.size_bytes);
        let place = Place { pool: block.pool, stacks, size_bytes };
        let has_room = self.live.len() < MAX_PLACES || self.live.contains_key(&place);
        if has_room { place } else { Place { size_bytes: Some(0), ..Place::all_of(block.pool) } }
    }

    fn change(&mut self, block: &Block, change: impl Fn(u64, u64) -> u64) {
        for place in [self.place(block), Place::all_of(block.pool)] {
            let live = self.live.entry(place).or_default();
            *live = change(*live, block.size_bytes);
            self.of_marks.changed.insert(place);
            if !self.marked {
                self.of_inferred.changed.insert(place);
            }
        }
    }

    fn infer(&mut self, event: &Event) {
        if self.marked {
            return;
        }
        let Some(standing) = self.steps.observe(event) else { return };
        if let Some(step) = standing.ended {
            self.inferred_from = standing.from;
            self.of_inferred.step(step, event.time_ns, &self.live);
        }
    }
}

impl Observer for Recorder {
    fn observe(&mut self, event: &Event) {
        self.last_ns = self.last_ns.max(event.time_ns);
        match &event.kind {
            EventKind::StepStart { .. } => self.marked = true,
            EventKind::StepEnd { step } => {
                self.marked = true;
                self.of_marks.step(*step, event.time_ns, &self.live);
            }
            EventKind::Alloc(alloc) => {
                self.infer(event);
                self.change(&alloc.block, u64::saturating_add);
            }
            EventKind::Free(free) => {
                self.infer(event);
                // What the end takes was held until then.
                if free.cause.gave_back() {
                    self.change(&free.block, u64::saturating_sub);
                }
            }
            _ => {}
        }
    }

    fn finish(&mut self, _: &RunEnd) {
        let (timeline, from) = if self.marked {
            (&mut self.of_marks, StepsFrom::Marks)
        } else {
            (&mut self.of_inferred, self.inferred_from)
        };
        if timeline.run.ends.is_empty() {
            // Without steps there is one moment, the end.
            timeline.step(0, self.last_ns, &self.live);
        }
        let run = Run { steps_from: from, stacks: self.stacks, ..std::mem::take(&mut timeline.run) };
        // Who does not want it has gone.
        let _ = self.out.send(run);
    }
}
