//! What is live now, by place and by owner, and how has it changed lately? For the live screen: figures of the moment, no verdict.
//!
//! A process that has ended keeps its last figures, until others push it out. Blocks that the end of the trace ends count as live.
//!
//! Memory: about 1.5 KiB for each of at most 16 384 places of a process (further ones count as one of each pool), and for each
//! live block what naming it takes.

#[cfg(test)]
mod tests;
mod values;

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

pub use self::values::{Moment, OwnerUse, PlaceHolders, PlaceUse, ProcessName};
use super::{
    decompose::{Lives, RuleSet},
    growth::{
        Site,
        running::{Course, Running},
        site_of,
    },
    held_by,
    sample::{Past, Sample},
};
use crate::hash::HashMap;
use crate::model::{Block, Device, Event, EventKind, Looked, Name, PlaceLook, Pool, Stacks, UnknownFree};

/// Most places of one process.
const MAX_PLACES: usize = 1 << 14;
/// Ended processes with kept last figures.
const MAX_ENDED: usize = 16;

/// Counts what is live.
#[derive(Debug)]
pub struct LiveUse {
    lives: Lives,
    running: BTreeMap<u32, Process>,
    /// The latest last.
    ended: Vec<(u32, Process)>,
}

#[derive(Debug)]
struct Process {
    command: Option<Arc<str>>,
    course: Course,
    places: HashMap<(Device, Site), Place>,
    owners: HashMap<(Device, Pool, Option<Name>), Sum>,
    places_full: bool,
}

#[derive(Debug, Default)]
struct Place {
    sum: Sum,
    running: Running,
    /// Live ones from before the attach.
    older_blocks: u64,
    held_by: Option<PlaceHolders>,
}

#[derive(Clone, Debug, Default)]
struct Sum {
    blocks: u64,
    bytes: u64,
    peak_bytes: u64,
    /// 14 moments at most.
    past: Past<5>,
}

impl LiveUse {
    /// Owners are named by these rules.
    #[must_use]
    pub fn new(rules: Arc<RuleSet>) -> Self {
        Self { lives: Lives::new(rules), running: BTreeMap::new(), ended: Vec::new() }
    }

    /// Takes an event, in time order.
    pub fn observe(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Alloc(alloc) => {
                let owner = self.lives.came(event, alloc, true).and_then(|came| self.lives.owner(&came.live));
                self.process(event).came(&alloc.block, owner);
            }
            // What the end of the process or of the trace ends was live to the last.
            EventKind::Free(free) if !free.cause.gave_back() => {}
            EventKind::Free(free) => {
                let owner = self.lives.went(event, free).and_then(|went| self.lives.owner(&went.live));
                if self.running.contains_key(&event.pid) {
                    self.process(event).went(&free.block, owner);
                }
            }
            EventKind::UnknownFree(UnknownFree { pool, maybe_older: true, refused: false, .. }) => {
                self.process(event).course.older_freed(event.device, *pool);
            }
            EventKind::StepEnd { .. } | EventKind::Region(_) => self.lives.note(event),
            EventKind::Looked(look) => {
                if let Looked::Place(place) = &look.outcome {
                    self.process(event).looked(event.time_ns, place);
                }
                self.lives.note(event);
            }
            EventKind::ProcessStart(start) => {
                self.process(event).command = Some(Arc::clone(&start.command));
            }
            EventKind::ProcessEnd => self.end(event.pid),
            _ => {}
        }
    }

    /// The process of an event, at its time.
    fn process(&mut self, event: &Event) -> &mut Process {
        let process = self.running.entry(event.pid).or_insert_with(|| Process::new(event.time_ns));
        process.course.advance(event.time_ns);
        process
    }

    fn end(&mut self, pid: u32) {
        drop(self.lives.left(pid));
        self.ended.extend(self.running.remove(&pid).map(|process| (pid, process)));
        let excess = self.ended.len().saturating_sub(MAX_ENDED);
        self.ended.drain(..excess);
    }

    /// Everything at the moment of a sample: places and owners with live blocks, those with the most bytes first.
    pub fn look(&mut self, sample: Sample) -> Moment {
        let mut moment =
            Moment { sample, names: Vec::new(), owners: Vec::new(), places: Vec::new(), places_full: false };
        let time_ns = moment.sample.time_ns;
        self.running.values_mut().for_each(|process| process.course.advance(time_ns));
        let ended = self.ended.iter_mut().map(|(pid, process)| (*pid, process));
        for (pid, process) in self.running.iter_mut().map(|(pid, process)| (*pid, process)).chain(ended) {
            process.look(pid, time_ns, &mut moment);
        }
        moment
            .places
            .sort_unstable_by_key(|it| (Reverse(it.live_bytes), it.pid, it.device, it.site.pool, it.site.stacks));
        moment.owners.sort_unstable_by_key(|it| (Reverse(it.live_bytes), it.pid, it.device, it.pool, it.owner));
        moment
    }
}

impl Process {
    fn new(start_ns: u64) -> Self {
        let (places, owners) = (HashMap::default(), HashMap::default());
        Self { command: None, course: Course::new(start_ns), places, owners, places_full: false }
    }

    fn came(&mut self, block: &Block, owner: Option<Name>) {
        let mut key = (block.device, site_of(block));
        if self.places.len() >= MAX_PLACES && !self.places.contains_key(&key) {
            self.places_full = true;
            key.1 = others(block.pool);
        }
        let place = self.places.entry(key).or_default();
        place.sum.rise(block.size_bytes);
        if block.found {
            place.older_blocks += 1;
        } else {
            place.running.rise(block, &self.course);
        }
        self.owners.entry((block.device, block.pool, owner)).or_default().rise(block.size_bytes);
    }

    fn went(&mut self, block: &Block, owner: Option<Name>) {
        let mut key = (block.device, site_of(block));
        if !self.places.contains_key(&key) {
            key.1 = others(block.pool);
        }
        let owner = (block.device, block.pool, owner);
        if let Some(place) = self.places.get_mut(&key) {
            place.sum.fall(block.size_bytes);
            if block.found {
                place.older_blocks = place.older_blocks.saturating_sub(1);
                self.course.older_freed(block.device, block.pool);
            } else {
                place.running.fall(block, &self.course);
            }
        }
        if let Some(sum) = self.owners.get_mut(&owner) {
            sum.fall(block.size_bytes);
        }
    }

    fn looked(&mut self, time_ns: u64, look: &PlaceLook) {
        if let Some(place) = self.places.get_mut(&(look.block.device, site_of(&look.block))) {
            let PlaceLook { looked_at_blocks, ref holders, .. } = *look;
            let (holders, lines) = (holders.clone(), held_by::lines_of_look(look));
            place.held_by = Some(PlaceHolders { time_ns, looked_at_blocks, holders, lines });
        }
    }

    fn look(&mut self, pid: u32, time_ns: u64, moment: &mut Moment) {
        moment.places_full |= self.places_full;
        moment.names.extend(self.command.as_ref().map(|command| ProcessName { pid, command: command.to_string() }));
        for (&(device, site), Place { sum, running, older_blocks, held_by }) in &mut self.places {
            let change = sum.past.take(time_ns, sum.bytes);
            let Sum { blocks, bytes, peak_bytes, ref past } = *sum;
            if blocks == 0 {
                *held_by = None;
                continue;
            }
            let recent = past.bytes().collect();
            let oldest_ns = if *older_blocks > 0 { self.course.elapsed_ns() } else { running.oldest_ns(&self.course) };
            let trend = running.trend((device, site.pool), &mut self.course);
            let (live_bytes, held_by) = (bytes, held_by.clone());
            let place = PlaceUse {
                pid,
                device,
                site,
                blocks,
                live_bytes,
                peak_bytes,
                oldest_ns,
                trend,
                change,
                held_by,
                recent,
            };
            moment.places.push(place);
        }
        for (&(device, pool, owner), sum) in &mut self.owners {
            let change = sum.past.take(time_ns, sum.bytes);
            let Sum { blocks, bytes, peak_bytes, .. } = *sum;
            let owner = OwnerUse { pid, device, pool, owner, blocks, live_bytes: bytes, peak_bytes, change };
            moment.owners.extend((blocks > 0).then_some(owner));
        }
    }
}

impl Sum {
    fn rise(&mut self, bytes: u64) {
        self.blocks += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        self.peak_bytes = self.peak_bytes.max(self.bytes);
    }

    fn fall(&mut self, bytes: u64) {
        self.blocks = self.blocks.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// Stands for the places beyond [`MAX_PLACES`].
fn others(pool: Pool) -> Site {
    Site { pool, stacks: Stacks::default(), size_bytes: None, module_id: None, caller: None }
}
