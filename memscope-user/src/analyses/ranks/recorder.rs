//! What a rank holds at the end of each step, by place.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{self, Receiver, Sender};

use crate::analyses::Observer;
use crate::analyses::diff::Places;
use crate::analyses::inferred::InferredSteps;
use crate::hash::{HashMap, HashSet};
use crate::model::{Block, Device, Event, EventKind, Pool, RunEnd, Stacks, StepsFrom};

/// Places that are kept apart; blocks of further ones are one place.
const MAX_PLACES: usize = 1 << 18;
/// Changes that are kept of an input; ranks seem to end where they are used up.
const MAX_CHANGES: usize = 8 << 20;
/// Processes that are kept apart.
const MAX_PROCESSES: usize = 4096;

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

/// What of an input is a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// All of it: its processes and devices are added up.
    #[default]
    Whole,
    /// Each of its processes with memory of a device.
    Process,
}

/// A rank of an input.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recorded {
    /// The process, if it is one.
    pub pid: Option<u32>,
    /// Devices that it has memory of.
    pub devices: BTreeSet<Device>,
    /// Its run.
    pub run: Run,
}

/// Room for what is kept of an input.
#[derive(Debug)]
struct Room {
    places: usize,
    changes: usize,
}

/// Steps of one kind: marked, or inferred.
#[derive(Debug, Default)]
struct Timeline {
    run: Run,
    changed: HashSet<Place>,
}

impl Timeline {
    /// A step has ended.
    fn step(&mut self, step: u32, time_ns: u64, live: &HashMap<Place, u64>, room: &mut Room) {
        if self.run.ends.last_key_value().is_some_and(|(last, _)| *last >= step) {
            // Another device's.
            return;
        }
        self.run.cut |= self.changed.len() > room.changes;
        if self.run.cut {
            return;
        }
        room.changes -= self.changed.len();
        self.run.ends.insert(step, time_ns);
        for place in self.changed.drain() {
            let bytes = live.get(&place).copied().unwrap_or_default();
            self.run.held.entry(place).or_default().push((step, bytes));
        }
    }
}

/// Records the ranks of an input, and sends them when it has ended.
#[derive(Debug)]
pub struct Recorder {
    part: Part,
    places: Places,
    /// By process; one for all.
    members: BTreeMap<u32, Member>,
    room: Room,
    out: Sender<Vec<Recorded>>,
}

impl Recorder {
    /// A recorder, and the other end.
    #[must_use]
    pub fn new(part: Part) -> (Self, Receiver<Vec<Recorded>>) {
        let (out, runs) = mpsc::channel();
        let room = Room { places: MAX_PLACES, changes: MAX_CHANGES };
        (Self { part, places: Places::default(), members: BTreeMap::new(), room, out }, runs)
    }

    /// That of an event; none for a process too many.
    fn member(&mut self, pid: u32) -> Option<(&mut Member, &mut Places, &mut Room)> {
        let pid = if self.part == Part::Whole { 0 } else { pid };
        if self.members.len() >= MAX_PROCESSES && !self.members.contains_key(&pid) {
            return None;
        }
        Some((self.members.entry(pid).or_default(), &mut self.places, &mut self.room))
    }
}

impl Observer for Recorder {
    fn observe(&mut self, event: &Event) {
        // Of other events a process alone is no rank.
        let counts = matches!(
            event.kind,
            EventKind::StepStart { .. } | EventKind::StepEnd { .. } | EventKind::Alloc(_) | EventKind::Free(_)
        );
        if counts && let Some((member, places, room)) = self.member(event.pid) {
            member.observe(event, places, room);
        }
    }

    fn finish(&mut self, _: &RunEnd) {
        let part = self.part;
        if part == Part::Whole {
            self.members.entry(0).or_default();
        }
        let room = &mut self.room;
        let members = std::mem::take(&mut self.members).into_iter();
        let recorded = members.map(|(pid, member)| Recorded {
            pid: (part == Part::Process).then_some(pid),
            devices: member.devices.clone(),
            run: member.conclude(room),
        });
        let mut ranks: Vec<Recorded> = recorded.filter(|rank| rank.pid.is_none() || !rank.devices.is_empty()).collect();
        // Local ranks are in the order of devices.
        ranks.sort_by_key(|rank| (rank.devices.first().copied(), rank.pid));
        // Who does not want it has gone.
        let _ = self.out.send(ranks);
    }
}

/// A rank while its input is read.
#[derive(Debug, Default)]
struct Member {
    live: HashMap<Place, u64>,
    of_marks: Timeline,
    of_inferred: Timeline,
    steps: InferredSteps,
    inferred_from: StepsFrom,
    marked: bool,
    stacks: bool,
    devices: BTreeSet<Device>,
    last_ns: u64,
}

impl Member {
    fn observe(&mut self, event: &Event, places: &mut Places, room: &mut Room) {
        self.last_ns = self.last_ns.max(event.time_ns);
        match &event.kind {
            EventKind::StepStart { .. } => self.marked = true,
            EventKind::StepEnd { step } => {
                self.marked = true;
                self.of_marks.step(*step, event.time_ns, &self.live, room);
            }
            EventKind::Alloc(alloc) => {
                self.infer(event, room);
                if matches!(alloc.block.device, Device::Npu(_)) {
                    self.devices.insert(alloc.block.device);
                }
                self.change(&alloc.block, places, room, u64::saturating_add);
            }
            EventKind::Free(free) => {
                self.infer(event, room);
                // What the end takes was held until then.
                if free.cause.gave_back() {
                    self.change(&free.block, places, room, u64::saturating_sub);
                }
            }
            _ => {}
        }
    }

    fn place(&mut self, block: &Block, places: &mut Places, room: &mut Room) -> Place {
        let stacks = places.of(block.stacks);
        self.stacks |= !stacks.is_empty();
        let size_bytes = stacks.is_empty().then_some(block.size_bytes);
        let place = Place { pool: block.pool, stacks, size_bytes };
        if self.live.contains_key(&place) {
            return place;
        }
        match room.places.checked_sub(1) {
            Some(left) => {
                room.places = left;
                place
            }
            None => Place { size_bytes: Some(0), ..Place::all_of(block.pool) },
        }
    }

    fn change(&mut self, block: &Block, places: &mut Places, room: &mut Room, change: impl Fn(u64, u64) -> u64) {
        for place in [self.place(block, places, room), Place::all_of(block.pool)] {
            let live = self.live.entry(place).or_default();
            *live = change(*live, block.size_bytes);
            self.of_marks.changed.insert(place);
            if !self.marked {
                self.of_inferred.changed.insert(place);
            }
        }
    }

    fn infer(&mut self, event: &Event, room: &mut Room) {
        if self.marked {
            return;
        }
        let Some(standing) = self.steps.observe(event) else { return };
        if let Some(step) = standing.ended {
            self.inferred_from = standing.from;
            self.of_inferred.step(step, event.time_ns, &self.live, room);
        }
    }

    fn conclude(mut self, room: &mut Room) -> Run {
        let (timeline, from) = if self.marked {
            (&mut self.of_marks, StepsFrom::Marks)
        } else {
            (&mut self.of_inferred, self.inferred_from)
        };
        if timeline.run.ends.is_empty() {
            // Without steps there is one moment, the end.
            timeline.step(0, self.last_ns, &self.live, room);
        }
        Run { steps_from: from, stacks: self.stacks, ..std::mem::take(&mut timeline.run) }
    }
}
