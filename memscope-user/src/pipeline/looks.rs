//! Looks at the holders of live blocks. What is looked at is noted where the look begins, and acts at once; what was found is in time
//! order, at the moment of reading. A block that was freed in between says nothing any more: its address may be another's.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Pipeline;
use super::blocks::Blocks;
use super::process::Process;
use super::turn::Shared;
use crate::capture::{LookBlock, LookMoment, LookPlace, Note};
use crate::hash::HashMap;
use crate::model::{Block, Device, Event, EventKind, HolderPath, LiveSum, Look, Looked, LookedAt, PlaceLook, Stacks};

/// Looks that may be under way. Of the oldest beyond that nothing is reported.
const MAX_LOOKS: usize = 64;
/// Places and blocks of a look that are followed.
const MAX_PLACES: usize = 256;
const MAX_BLOCKS: usize = 256;

/// Looks under way.
#[derive(Debug, Default)]
pub(super) struct Looks(VecDeque<Begun>);

#[derive(Debug)]
struct Begun {
    look: u32,
    pid: u32,
    at: LookedAt,
    places: Vec<Option<Place>>,
}

#[derive(Debug)]
struct Place {
    block: Block,
    live: LiveSum,
    /// Numbers of the blocks by address.
    numbers: HashMap<u64, u64>,
}

const fn moment(at: LookMoment) -> LookedAt {
    match at {
        LookMoment::FailedRequest => LookedAt::FailedRequest,
        LookMoment::Running => LookedAt::Running,
        LookMoment::Exit => LookedAt::Exit,
        LookMoment::End => LookedAt::End,
    }
}

impl Looks {
    /// A look begins, or goes on, at these places of a process with these blocks.
    pub(super) fn begin(&mut self, (look, pid): (u32, u32), at: LookMoment, places: &[LookPlace], blocks: &Blocks) {
        if self.0.back().is_none_or(|last| (last.look, last.pid) != (look, pid)) {
            if self.0.len() >= MAX_LOOKS {
                self.0.pop_front();
            }
            self.0.push_back(Begun { look, pid, at: moment(at), places: Vec::new() });
        }
        if let Some(begun) = self.0.back_mut() {
            let room = MAX_PLACES.saturating_sub(begun.places.len());
            begun.places.extend(places.iter().take(room).map(|place| Place::of(place, blocks)));
        }
    }

    /// A place was looked at; nothing if none of its blocks is live still.
    pub(super) fn end(
        &self,
        (look, pid): (u32, u32),
        place: u32,
        holders: Vec<(String, bool)>,
        found: &[LookBlock],
        left_out: Option<String>,
        blocks: Option<&Blocks>,
    ) -> Option<Look> {
        let begun = self.0.iter().rev().find(|begun| (begun.look, begun.pid) == (look, pid))?;
        let place = begun.places.get(place as usize)?.as_ref()?;
        let outcome = PlaceLook { left_out, ..place.looked(holders, found, blocks?)? };
        Some(Look { number: look, at: begun.at, outcome: Looked::Place(Box::new(outcome)) })
    }
}

impl Place {
    fn of(place: &LookPlace, blocks: &Blocks) -> Option<Self> {
        let found = place.blocks.iter().take(MAX_BLOCKS).filter_map(|(addr, _)| blocks.at(&place.pool, *addr));
        let found: Vec<Block> = found.collect();
        let block = *found.first()?;
        let numbers = found.iter().map(|block| (block.addr, block.allocation_id)).collect();
        let live = LiveSum { blocks: place.live_blocks, size_bytes: place.live_bytes };
        Some(Self { block, live, numbers })
    }

    fn looked(&self, holders: Vec<(String, bool)>, found: &[LookBlock], blocks: &Blocks) -> Option<PlaceLook> {
        let path = |(path, is_sure)| HolderPath { path, is_sure, blocks: 0 };
        let mut holders: Vec<HolderPath> = holders.into_iter().map(path).collect();
        let (mut looked_at_blocks, mut garbage_blocks, mut unknown_blocks) = (0, 0, 0);
        let mut purposes = Vec::new();
        let pool = self.block.pool.event_type();
        for LookBlock { addr, by, garbage, held_as } in found {
            let Some(number) = self.numbers.get(addr) else { continue };
            if blocks.at(pool, *addr).is_none_or(|block| block.allocation_id != *number) {
                continue;
            }
            purposes.extend(held_as.map(|held_as| (*number, held_as)));
            looked_at_blocks += 1;
            for holder in by {
                if let Some(holder) = holders.get_mut(usize::from(*holder)) {
                    holder.blocks += 1;
                }
            }
            garbage_blocks += u64::from(*garbage && by.is_empty());
            unknown_blocks += u64::from(!*garbage && by.is_empty());
        }
        holders.retain(|holder| holder.blocks > 0);
        holders.sort_by_key(|holder| (!holder.is_sure, std::cmp::Reverse(holder.blocks)));
        let (block, live) = (self.block, self.live);
        (looked_at_blocks > 0).then_some(PlaceLook {
            block,
            live,
            looked_at_blocks,
            holders,
            garbage_blocks,
            unknown_blocks,
            left_out: None,
            held_as: purposes,
        })
    }
}

impl Pipeline {
    /// Reports what came of a look.
    pub(super) fn apply_look(&mut self, time_ns: u64, note: Note) {
        match note {
            Note::LookEnds { look, pid, place, holders, blocks, left_out } => {
                let of_process = self.processes.get(&pid).map(Process::blocks);
                if let Some(look) = self.looks.end((look, pid), place, holders, &blocks, left_out, of_process) {
                    self.shared.looked(time_ns, pid, look);
                }
            }
            Note::NoLook { look, pid, at, reason } => {
                let look = Look { number: look, at: moment(at), outcome: Looked::NotLooked(Arc::from(reason)) };
                self.shared.looked(time_ns, pid, look);
            }
            _ => {}
        }
    }
}

impl Shared {
    /// Reports what came of a look. It is no call of the process, and has no row.
    pub(super) fn looked(&mut self, time_ns: u64, pid: u32, look: Look) {
        let (device, stacks) = match &look.outcome {
            Looked::Place(place) => (place.block.device, place.block.stacks),
            Looked::Found(found) => (found.device, Stacks::default()),
            Looked::NotLooked(_) => (Device::None, Stacks::default()),
        };
        let kind = EventKind::Looked(Arc::new(look));
        self.out.event(&Event { id: 0, time_ns, pid, tid: pid, device, stacks, kind }, false, true);
    }
}
