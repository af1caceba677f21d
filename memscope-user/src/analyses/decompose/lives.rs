//! One owner of each block, for all analyses that name owners.
//!
//! A block is named at its allocation, and for good at its end. Counts that an analysis made under the first name move
//! to the second one: [`Went`] and [`Back`] have both names, and the moments of the change.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Source;
use super::classify::{Classifier, Label, LabelId};
use super::held::Evidence;
use super::phases::{Phase, Phases};
use super::rules::{Counts, Ended, Life, RuleSet};
use super::trained::Trained;
use crate::analyses::per_device::PerDevice;
use crate::analyses::segments::Segments;
use crate::hash::HashMap;
use crate::model::{Alloc, Block, Device, Event, EventKind, Free, FreeCause, HeldAs, Looked, Module, Name, Pool};

/// Ended blocks of a device that are remembered, in case their free failed.
const MAX_ENDED: usize = 1024;

/// A live block.
#[derive(Clone, Copy, Debug)]
pub(in crate::analyses) struct Live {
    /// Its label while it lives.
    pub(super) label: LabelId,
    pub(in crate::analyses) pool: Pool,
    module_id: Option<Module>,
    /// It has a stack.
    stack: bool,
    /// Its purpose, if a look at its holders has shown it.
    held_as: Option<HeldAs>,
    /// It is the driver's, and a pool has a block in it.
    is_segment: bool,
    born: Counts,
    pub(in crate::analyses) size_bytes: u64,
    pub(in crate::analyses) time_ns: u64,
    /// Its place among all allocations and frees; 0 if it is older than the trace.
    pub(in crate::analyses) moment: u64,
}

/// A block that came.
#[derive(Debug)]
pub(in crate::analyses) struct Came {
    pub(in crate::analyses) live: Live,
    /// The place of this event among all allocations and frees.
    pub(in crate::analyses) moment: u64,
    /// Set if it was thought to have ended.
    pub(in crate::analyses) back: Option<Back>,
}

/// How a block was thought to have ended.
#[derive(Clone, Copy, Debug)]
pub(in crate::analyses) struct Back {
    pub(super) label: LabelId,
    pub(super) evidence: Option<Evidence>,
    pub(super) time_ns: u64,
    pub(in crate::analyses) moment: u64,
}

/// A block that has ended, or was live when its process ended.
#[derive(Clone, Copy, Debug)]
pub(in crate::analyses) struct Went {
    pub(in crate::analyses) allocation_id: u64,
    pub(in crate::analyses) live: Live,
    /// Its final label.
    pub(super) label: LabelId,
    /// What holders and rules say, if holders say something.
    pub(super) evidence: Option<Evidence>,
}

/// The live blocks of an ended process on a device.
#[derive(Debug)]
pub(in crate::analyses) struct Left {
    pub(in crate::analyses) device: Device,
    /// Steps that ended: marked ones, or else the optimizer's.
    pub(super) steps: u32,
    /// The live blocks, oldest first.
    pub(in crate::analyses) blocks: Vec<Went>,
}

/// Names the blocks of all processes.
#[derive(Debug)]
pub(in crate::analyses) struct Lives {
    names: Classifier,
    devices: PerDevice<OnDevice>,
    segments: HashMap<u32, Segments>,
    /// Allocations and frees so far.
    moments: u64,
}

/// The blocks of one process on one device.
#[derive(Debug, Default)]
struct OnDevice {
    phases: Phases,
    trained: Trained,
    live: HashMap<u64, Live>,
    ended: VecDeque<(u64, Live, Back)>,
}

impl Lives {
    /// Names blocks by these rules.
    pub(in crate::analyses) fn new(rules: Arc<RuleSet>) -> Self {
        Self { names: Classifier::new(rules), devices: PerDevice::default(), segments: HashMap::default(), moments: 0 }
    }

    pub(super) const fn names(&self) -> &Classifier {
        &self.names
    }

    /// The label behind an id.
    pub(super) fn get(&self, label: LabelId) -> Label {
        self.names.get(label)
    }

    /// The owner of a block while it lives.
    pub(in crate::analyses) fn owner(&self, live: &Live) -> Option<Name> {
        self.get(live.label).owner
    }

    /// The final owner of a block that has ended.
    pub(in crate::analyses) fn for_good(&self, went: &Went) -> Option<Name> {
        self.get(went.label).owner
    }

    /// The owners that a block had while it lived and has for good, if they differ.
    pub(in crate::analyses) fn renamed(&self, went: &Went) -> Option<(Option<Name>, Option<Name>)> {
        self.change(went.live.label, went.label)
    }

    /// The owner of a block when it was thought to have ended, and the one before, if they differ.
    pub(in crate::analyses) fn named_back(&self, live: &Live, back: &Back) -> Option<(Option<Name>, Option<Name>)> {
        self.change(back.label, live.label)
    }

    fn change(&self, from: LabelId, to: LabelId) -> Option<(Option<Name>, Option<Name>)> {
        let owners = (self.get(from).owner, self.get(to).owner);
        (owners.0 != owners.1).then_some(owners)
    }

    /// Allocations and frees so far: the place of the last one.
    pub(in crate::analyses) const fn moment(&self) -> u64 {
        self.moments
    }

    /// A marked step has ended, memory was mapped, or holders were looked at. Other events are nothing to it.
    pub(in crate::analyses) fn note(&mut self, event: &Event) {
        match &event.kind {
            EventKind::StepEnd { .. } => self.devices.at(event.pid, event.device).phases.counts.step += 1,
            EventKind::Region(region) => self.segments.entry(event.pid).or_default().mapped(region),
            EventKind::Looked(look) => self.looked(event, &look.outcome),
            _ => {}
        }
    }

    fn looked(&mut self, event: &Event, looked: &Looked) {
        match looked {
            // Driver blocks begin where pools' blocks do: their holders are those blocks'.
            Looked::Place(place) if !place.block.pool.is_driver() => {
                self.held(event, place.held_as.iter().copied());
            }
            Looked::Found(found) => self.held(event, found.blocks.iter().map(|found| (found.number, found.held_as))),
            Looked::Place(_) | Looked::NotLooked(_) => {}
        }
    }

    fn held(&mut self, event: &Event, purposes: impl Iterator<Item = (u64, HeldAs)>) {
        let OnDevice { live, trained, .. } = self.devices.at(event.pid, event.device);
        for (number, held_as) in purposes {
            if let Some(live) = live.get_mut(&number) {
                trained.change(purpose(&self.names, live), live.size_bytes, false);
                live.held_as = Some(held_as);
                trained.change(purpose(&self.names, live), live.size_bytes, true);
            }
        }
    }

    /// Takes an allocation. One that is not `kept` only shows the phase of the program.
    pub(in crate::analyses) fn came(&mut self, event: &Event, alloc: &Alloc, kept: bool) -> Option<Came> {
        let block = &alloc.block;
        let on = self.devices.at(event.pid, block.device);
        let is_segment = self.segments.entry(event.pid).or_default().came(block, &mut |segment| {
            if let Some(live) = on.live.get_mut(&segment.allocation_id) {
                live.is_segment = true;
            }
        });
        self.moments += 1;
        on.enter(self.names.phase(event.stacks));
        if !kept {
            return None;
        }
        let known = on.ended.iter().rposition(|(id, ..)| alloc.restored && *id == block.allocation_id);
        let (live, back) = if let Some((_, live, back)) = known.and_then(|at| on.ended.remove(at)) {
            (live, Some(back))
        } else {
            let live = Live {
                label: self.names.label(block),
                pool: block.pool,
                module_id: block.module_id,
                stack: !block.stacks.is_empty(),
                held_as: block.held_as,
                is_segment,
                born: on.phases.counts,
                size_bytes: block.size_bytes,
                time_ns: event.time_ns,
                moment: if block.found { 0 } else { self.moments },
            };
            (live, None)
        };
        on.trained.change(purpose(&self.names, &live), live.size_bytes, true);
        on.live.insert(block.allocation_id, live);
        Some(Came { live, moment: self.moments, back })
    }

    /// Takes a free of any cause. `None` for blocks that were not kept.
    pub(in crate::analyses) fn went(&mut self, event: &Event, free: &Free) -> Option<Went> {
        let Free { block: Block { allocation_id, device, .. }, cause, .. } = *free;
        if free.block.pool.is_driver() {
            self.segments.entry(event.pid).or_default().ends(&free.block);
        }
        let on = self.devices.at(event.pid, device);
        let phase = self.names.phase(event.stacks).filter(|_| matches!(cause, FreeCause::Program | FreeCause::Exit));
        self.moments += 1;
        on.enter(phase);
        let live = on.live.remove(&allocation_id)?;
        let mut known = live;
        if free.owner.is_some() {
            known.label = self.names.label(&Block { owner: free.owner, ..free.block });
        }
        on.trained.change(purpose(&self.names, &live), live.size_bytes, false);
        let (label, evidence) = end_of(&mut self.names, &known, (on.phases.counts, &mut on.trained), cause, phase);
        if cause == FreeCause::Program {
            if on.ended.len() >= MAX_ENDED {
                on.ended.pop_front();
            }
            on.ended.push_back((
                allocation_id,
                live,
                Back { label, evidence, time_ns: event.time_ns, moment: self.moments },
            ));
        }
        Some(Went { allocation_id, live, label, evidence })
    }

    /// The process has ended, or the trace has: its live blocks, by device.
    pub(in crate::analyses) fn left(&mut self, pid: u32) -> Vec<Left> {
        self.segments.remove(&pid);
        let names = &mut self.names;
        let left = self.devices.take_process(pid).map(|(device, on)| {
            let OnDevice { phases: Phases { counts, .. }, mut trained, live, .. } = on;
            let mut live: Vec<(u64, Live)> = live.into_iter().collect();
            live.sort_unstable_by_key(|(_, live)| live.moment);
            let went = |(allocation_id, live): (u64, Live)| {
                let (label, evidence) = end_of(names, &live, (counts, &mut trained), FreeCause::TraceEnd, None);
                Went { allocation_id, live, label, evidence }
            };
            let blocks = live.into_iter().map(went).collect();
            let steps = if counts.step > 0 { counts.step } else { counts.optimizer_end };
            Left { device, steps, blocks }
        });
        left.collect()
    }

    /// The processes with events.
    pub(in crate::analyses) fn processes(&self) -> Vec<u32> {
        self.devices.processes()
    }
}

/// The final name of a block that has ended.
fn end_of(
    names: &mut Classifier,
    block: &Live,
    (now, trained): (Counts, &mut Trained),
    cause: FreeCause,
    freed_in: Option<Phase>,
) -> (LabelId, Option<Evidence>) {
    if block.is_segment {
        return (names.segment(block.label), None);
    }
    // How it came to be what it is was not seen.
    if block.is_older() {
        let Some(held_as) = block.held_as else { return (block.label, None) };
        let label = names.found_held(block.label, block.pool, block.module_id, held_as);
        return (label, Some(Evidence::found(held_as, names.get(label))));
    }
    // Marked steps count where there are any. Before the end of the first one, a block was in none.
    let in_steps =
        |counts: Counts| Counts { step: if now.step > 0 { counts.step } else { counts.optimizer_end }, ..counts };
    let born = in_steps(block.born);
    // The owner is the same with the exit and without.
    let freed = cause.gave_back() || cause == FreeCause::Exit;
    let ended = if freed { Ended::Freed } else { Ended::Held };
    let survived = in_steps(now).since(born);
    let life = Life { born, survived, ended, freed_in, stack: block.stack, trained: trained.lacks(block.size_bytes) };
    let (label, by_training) = names.revised(block.label, block.pool, block.module_id, &life);
    if by_training {
        trained.find(block.size_bytes);
    }
    let Some(held_as) = block.held_as else { return (label, None) };
    let by_rule = names.get(label).component;
    let label = names.held(label, block.pool, block.module_id, (held_as, now.optimizer_end > 0));
    (label, Some(Evidence { held_as, by_rule, taken: names.get(label).component }))
}

/// What a live block is for, as far as that is known.
fn purpose(names: &Classifier, block: &Live) -> Name {
    let label = names.get(block.label);
    let held_as = block.held_as.filter(|_| block.is_older() && label.source == Source::Nothing);
    held_as.map_or(label.component, HeldAs::component)
}

impl Live {
    /// It is older than the trace, so it was live at every moment before it was found.
    pub(in crate::analyses) const fn is_older(&self) -> bool {
        self.moment == 0
    }
}

impl OnDevice {
    /// The program is seen in a phase.
    fn enter(&mut self, phase: Option<Phase>) {
        let begun = self.phases.counts.optimizer;
        self.phases.enter(phase);
        if self.phases.counts.optimizer != begun {
            self.trained.step();
        }
    }
}
