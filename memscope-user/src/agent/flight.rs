//! The flight record: the newest events of each process, for the bundle of a request that fails.

use std::collections::VecDeque;

use serde::Serialize;

use crate::{
    hash::HashMap,
    model::{Block, Device, Event, EventKind, Pool, Stack, Stacks},
};

/// Events of all processes together, some 13 MiB: beyond it each process has an equal part.
const MAX_EVENTS: usize = 1 << 17;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A block was handed out.
    Alloc,
    /// A block was freed.
    Free,
    /// A block was freed that is older than the trace, or was never seen.
    UnknownFree,
    /// A free failed: the block is live.
    FreeFailed,
    /// A request failed.
    AllocFailed,
    /// A request that had failed succeeded at a further attempt.
    AllocRecovered,
}

/// An event, as it is kept.
#[derive(Clone, Copy, Debug)]
struct Kept {
    row: RecentEvent,
    stacks: Stacks,
}

/// An event in a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RecentEvent {
    /// When, nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// What happened.
    pub event: What,
    /// Device.
    pub device: Device,
    /// Pool.
    pub pool: Pool,
    /// The block's address; of a request that failed there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub addr: Option<u64>,
    /// Size of the block, or of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// What was live in the pool on the device afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_bytes: Option<u64>,
    /// Where the block was allocated, or the request made: an index in the places of the record. None without call stacks, and for a block
    /// that was allocated before the agent came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<u32>,
}

/// The newest events of a process up to a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Recent {
    /// Call stacks, each once.
    pub places: Vec<Stacks>,
    /// The events, the oldest first.
    pub events: Vec<RecentEvent>,
}

/// Keeps the newest events of each process.
#[derive(Debug, Default)]
pub(super) struct Flight {
    /// Events of a process at most; 0: none are kept.
    most: usize,
    of: HashMap<u32, VecDeque<Kept>>,
}

impl Flight {
    /// Keeps the newest `most` events of a process.
    pub(super) fn of_most(most: usize) -> Self {
        Self { most: most.min(MAX_EVENTS), of: HashMap::default() }
    }

    pub(super) fn observe(&mut self, event: &Event) {
        if self.most == 0 {
            return;
        }
        let Some(kept) = Kept::of(event) else { return };
        if !self.of.contains_key(&event.pid) {
            self.make_room();
        }
        let part = self.part(self.of.len());
        let events = self.of.entry(event.pid).or_default();
        if events.len() >= part {
            events.pop_front();
        }
        events.push_back(kept);
    }

    /// What each of this number of processes may have.
    fn part(&self, processes: usize) -> usize {
        self.most.min(MAX_EVENTS / processes.max(1)).max(1)
    }

    /// One process more comes.
    fn make_room(&mut self) {
        let (now, then) = (self.part(self.of.len()), self.part(self.of.len() + 1));
        if then < now {
            for events in self.of.values_mut() {
                events.drain(..events.len().saturating_sub(then));
                events.shrink_to(then);
            }
        }
    }

    /// The record of a process.
    pub(super) fn recent(&self, pid: u32) -> Option<Recent> {
        (self.most > 0).then(|| Recent::of(self.of.get(&pid).into_iter().flatten()))
    }

    /// A process has ended.
    pub(super) fn forget(&mut self, pid: u32) {
        self.of.remove(&pid);
    }

    /// Forgets the processes that are not to stay.
    pub(super) fn retain(&mut self, stays: impl Fn(u32) -> bool) {
        self.of.retain(|pid, _| stays(*pid));
    }

    /// Call stacks are kept elsewhere from here on.
    pub(super) fn move_stacks(&mut self, mut moved: impl FnMut(Stack) -> Stack) {
        let events = self.of.values_mut().flatten();
        events.for_each(|event| event.stacks = event.stacks.map(&mut moved));
    }
}

impl Recent {
    fn of<'a>(kept: impl Iterator<Item = &'a Kept>) -> Self {
        let mut numbers: HashMap<Stacks, u32> = HashMap::default();
        let mut recent = Self::default();
        for Kept { row, stacks } in kept {
            let place = (!stacks.is_empty()).then(|| {
                *numbers.entry(*stacks).or_insert_with(|| {
                    recent.places.push(*stacks);
                    recent.places.len() as u32 - 1
                })
            });
            recent.events.push(RecentEvent { place, ..*row });
        }
        recent
    }
}

impl Kept {
    /// Of what is no call about a block, nothing.
    fn of(event: &Event) -> Option<Self> {
        let block = |what, block: &Block, live_bytes| {
            let (addr, size_bytes) = (Some(block.addr), Some(block.size_bytes));
            let row = row(event, what, block.device, block.pool);
            Self { row: RecentEvent { addr, size_bytes, live_bytes: Some(live_bytes), ..row }, stacks: block.stacks }
        };
        let other = |what, pool, addr, size_bytes, stacks| Self {
            row: RecentEvent { addr, size_bytes, ..row(event, what, event.device, pool) },
            stacks,
        };
        Some(match &event.kind {
            EventKind::Alloc(alloc) if alloc.restored => block(What::FreeFailed, &alloc.block, alloc.used_bytes),
            EventKind::Alloc(alloc) if alloc.is_call() => block(What::Alloc, &alloc.block, alloc.used_bytes),
            EventKind::Free(free) if free.cause.gave_back() => block(What::Free, &free.block, free.used_bytes),
            EventKind::UnknownFree(free) => {
                let what = if free.refused { What::FreeFailed } else { What::UnknownFree };
                other(what, free.pool, Some(free.addr), free.size_bytes, Stacks::default())
            }
            EventKind::AllocFailed(failed) => {
                other(What::AllocFailed, failed.pool, None, Some(failed.size_bytes), event.stacks)
            }
            EventKind::AllocRecovered(recovered) => {
                other(What::AllocRecovered, recovered.pool, None, None, event.stacks)
            }
            _ => return None,
        })
    }
}

const fn row(event: &Event, what: What, device: Device, pool: Pool) -> RecentEvent {
    let (addr, size_bytes, live_bytes, place) = (None, None, None, None);
    RecentEvent { time_ns: event.time_ns, event: what, device, pool, addr, size_bytes, live_bytes, place }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{analyses::script::Script, backend::ascend::pools, model::FreeCause};

    /// What happened, the size, what was live then, and the innermost frame.
    type Row = (What, Option<u64>, Option<u64>, Option<&'static str>);

    fn rows(recent: &Recent) -> Vec<Row> {
        let frame = |place: u32| recent.places[place as usize].python.expect("a stack").texts()[0];
        let row = |event: &RecentEvent| (event.event, event.size_bytes, event.live_bytes, event.place.map(frame));
        recent.events.iter().map(row).collect()
    }

    fn observed(most: usize, script: &Script) -> Flight {
        let mut flight = Flight::of_most(most);
        script.events().iter().for_each(|event| flight.observe(event));
        flight
    }

    /// The newest events in their order, each place once; a block's place is that of its allocation.
    #[test]
    fn newest_events_stay() {
        let mut script = Script::new(7, Device::Npu(0));
        script.stacks(&["a.py(1): load"], &[]).alloc(pools::PTA, 0x1000, 64);
        script.stacks(&["a.py(2): step"], &[]).alloc(pools::PTA, 0x2000, 32).alloc(pools::PTA, 0x3000, 16);
        script.stacks(&["a.py(3): clear"], &[]).free(pools::PTA, 0x1000).alloc_failed(pools::HAL, 1 << 30, (1, 1));
        let (load, step, clear) = (Some("a.py(1): load"), Some("a.py(2): step"), Some("a.py(3): clear"));
        let all = [
            (What::Alloc, Some(64), Some(64), load),
            (What::Alloc, Some(32), Some(96), step),
            (What::Alloc, Some(16), Some(112), step),
            (What::Free, Some(64), Some(48), load),
            (What::AllocFailed, Some(1 << 30), None, clear),
        ];
        let recent = observed(100, &script).recent(7).expect("a record");
        assert_eq!(rows(&recent), all);
        assert_eq!(recent.places.len(), 3);
        assert_eq!(rows(&observed(3, &script).recent(7).expect("a record")), all[2..]);
        assert_eq!(observed(0, &script).recent(7), None);
        assert_eq!(observed(3, &script).recent(8), Some(Recent::default()));
    }

    /// What the end of a process frees is no call; nor are blocks that were there before, and where these were freed is no place of theirs.
    #[test]
    fn calls_alone_are_kept() {
        let mut script = Script::new(7, Device::Npu(0));
        script.older(pools::PTA, 0x1000, 64);
        script.stacks(&["a.py(1): clear"], &[]).unknown_free(pools::HAL, 0x9000, true);
        script.stacks(&["a.py(2): load"], &[]).alloc(pools::HAL, 0x2000, 8);
        script.end(FreeCause::ProcessEnd, pools::HAL, 0x2000).process_end();
        let recent = observed(9, &script).recent(7).expect("a record");
        let kept: Vec<_> = recent.events.iter().map(|event| (event.event, event.addr, event.place)).collect();
        assert_eq!(kept, [(What::UnknownFree, Some(0x9000), None), (What::Alloc, Some(0x2000), Some(0))]);
    }

    /// Places have their frames although their run was given back.
    #[test]
    fn places_move_with_their_stacks() {
        let first = crate::model::Kept::of_few(10);
        let next = first.next().expect("a further run");
        let mut script = Script::new(7, Device::Npu(0));
        script.stacks(&["a.py(1): f"], &[]).alloc_failed(pools::HAL, 64, (1, 1));
        let mut event = script.events()[0].clone();
        event.stacks = event.stacks.map(|stack| stack.moved_to(&first));
        let mut flight = Flight::of_most(9);
        flight.observe(&event);
        flight.move_stacks(|stack| stack.moved_to(&next));
        drop(first);
        let recent = flight.recent(7).expect("a record");
        assert_eq!(rows(&recent), [(What::AllocFailed, Some(64), None, Some("a.py(1): f"))]);
    }

    /// Processes share the room: each has an equal part of it, also those that came first and do nothing more.
    #[test]
    fn processes_share_the_room() {
        let mut script = Script::new(7, Device::Npu(0));
        for at in 0..100 {
            script.alloc(pools::HAL, 0x1000 * (at + 1), at);
        }
        let mut flight = observed(100, &script);
        let processes = (MAX_EVENTS / 50) as u32;
        for pid in 1..processes {
            let of = |event: &Event| Event { pid: pid + 1000, ..event.clone() };
            script.events()[..2].iter().map(of).for_each(|event| flight.observe(&event));
        }
        let sizes = |flight: &Flight, pid| -> Vec<Option<u64>> {
            flight.recent(pid).expect("a record").events.iter().map(|event| event.size_bytes).collect()
        };
        assert_eq!(sizes(&flight, 7), (50..100).map(Some).collect::<Vec<_>>());
        assert_eq!(sizes(&flight, 1001), [Some(0), Some(1)]);
        flight.retain(|pid| pid == 7);
        assert_eq!((sizes(&flight, 1001).len(), flight.of.len()), (0, 1));
    }
}
