//! Requests that fail for want of memory: when they have failed for good, and what was live then.
//!
//! A pool that is refused memory gives its cache back and asks again, so a failed attempt says nothing yet. A request has failed
//! for good when its thread asks twice how much memory is left (as `torch_npu` does before it raises its error), does anything
//! else that is no part of a further attempt, has done nothing for [`PATIENCE_NS`], or is no more. The rows leave at that moment, and
//! name the blocks that were live at the last attempt: whoever fails cleans up.

use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use super::super::item::Action;
use super::{At, Process, Shared};
use crate::hash::HashMap;
use crate::model::{AllocFailed, Block, Device, EventKind, OutOfMemory, Stacks};

/// A thread that does nothing after a failure has given up after this time. One that synchronizes its device before a further
/// attempt may take longer; then the rows are there, and the report counts the request as succeeded.
const PATIENCE_NS: u64 = 1_000_000_000;
/// Blocks are told no more often than this (msMemScope's).
const QUIET_NS: u64 = 2_000_000_000;
/// Looking through all live blocks takes time: attempts that follow each other faster share what was found.
const LOOK_NS: u64 = 50_000_000;
/// Threads whose requests are followed at a time.
const MAX_FAILING: usize = 4096;

/// Requests of a process that may have failed for good, by thread.
#[derive(Debug, Default)]
pub(super) struct Failing {
    requests: BTreeMap<u32, Request>,
    /// When blocks were told last.
    told_ns: Option<u64>,
    /// When and on which device blocks were looked for last.
    looked: Option<(u64, Device, Arc<Suspects>)>,
}

/// Blocks that were live at an attempt.
#[derive(Debug)]
struct Suspects {
    newest: Vec<Block>,
    largest: Vec<Block>,
}

#[derive(Clone, Debug)]
struct Request {
    failed: AllocFailed,
    device: Device,
    time_ns: u64,
    stacks: Stacks,
    suspects: Arc<Suspects>,
    /// How often the thread has asked how much is left, since.
    questions: u32,
}

/// Whether an action says that its thread does not try again.
pub(super) const fn is_past_failing(action: &Action) -> bool {
    matches!(
        action,
        Action::Launch { .. }
            | Action::Op(_)
            | Action::Mark { .. }
            | Action::RangeStart { .. }
            | Action::RangeEnd { .. }
    )
}

impl Process {
    /// An attempt has failed for want of memory.
    pub(super) fn fails(&mut self, at: At, device: Device, failed: AllocFailed, shared: &mut Shared) {
        let Some(count) = self.script.oom_blocks().or(shared.oom_blocks) else { return };
        let other = self.failing.requests.get(&at.tid).is_some_and(|open| open.failed.request != failed.request);
        if other || self.failing.requests.len() >= MAX_FAILING {
            self.failed_for_good(at, at.tid, shared);
        }
        let suspects = self.suspects(at.time_ns, device, count);
        let At { time_ns, stacks, .. } = at;
        let request = Request { failed, device, time_ns, stacks, suspects, questions: 0 };
        if self.failing.requests.insert(at.tid, request).is_none() {
            shared.oom_pending += 1;
        }
    }

    /// The newest and the largest blocks that are live.
    fn suspects(&mut self, time_ns: u64, device: Device, count: usize) -> Arc<Suspects> {
        if let Some((looked_ns, on, suspects)) = &self.failing.looked
            && *on == device
            && time_ns.saturating_sub(*looked_ns) < LOOK_NS
        {
            return Arc::clone(suspects);
        }
        let on_device = || self.blocks.all().filter(|block| block.device == device);
        let newest = largest_by(on_device(), count, |block| block.allocation_id);
        let largest = largest_by(on_device(), count, |block| block.size_bytes);
        let suspects = Arc::new(Suspects { newest, largest });
        self.failing.looked = Some((time_ns, device, Arc::clone(&suspects)));
        suspects
    }

    /// The thread got what it wanted.
    pub(super) fn fails_no_more(&mut self, tid: u32, shared: &mut Shared) {
        if self.failing.requests.remove(&tid).is_some() {
            shared.oom_pending = shared.oom_pending.saturating_sub(1);
        }
    }

    /// The thread asks how much is left: for an expandable segment, or, the second time, because it gives up.
    pub(super) fn asked_while_failing(&mut self, at: At, shared: &mut Shared) {
        let Some(open) = self.failing.requests.get_mut(&at.tid) else { return };
        open.questions += 1;
        if open.questions > 1 {
            self.failed_for_good(at, at.tid, shared);
        }
    }

    /// All requests have failed for good: the process is no more.
    pub(in crate::pipeline) fn all_failed(&mut self, at: At, shared: &mut Shared) {
        while let Some(tid) = self.failing.requests.first_key_value().map(|(tid, _)| *tid) {
            self.failed_for_good(At { tid, ..at }, tid, shared);
        }
    }

    /// Time has passed: who was silent has given up.
    pub(in crate::pipeline) fn waited_long_enough(&mut self, time_ns: u64, shared: &mut Shared) {
        let overdue = |request: &Request| time_ns.saturating_sub(request.time_ns) >= PATIENCE_NS;
        let tids: Vec<u32> =
            self.failing.requests.iter().filter(|(_, request)| overdue(request)).map(|(tid, _)| *tid).collect();
        for tid in tids {
            self.failed_for_good(At::new(time_ns, tid), tid, shared);
        }
    }

    /// The request of a thread has failed for good, if it has one: tells of it, and of what is live.
    pub(super) fn failed_for_good(&mut self, at: At, tid: u32, shared: &mut Shared) {
        let Some(Request { failed, device, stacks, suspects, .. }) = self.failing.requests.remove(&tid) else { return };
        shared.oom_pending = shared.oom_pending.saturating_sub(1);
        let at = At { tid, stacks, ..at };
        // These rows are always written, whatever steps were asked for.
        self.emit(at, device, EventKind::OutOfMemory(OutOfMemory::Trigger(failed)), true, shared);
        if self.failing.told_ns.is_some_and(|told_ns| at.time_ns.saturating_sub(told_ns) < QUIET_NS) {
            return;
        }
        self.failing.told_ns = Some(at.time_ns);
        for block in &suspects.newest {
            let at = At { stacks: block.stacks, ..at };
            self.emit(at, device, EventKind::OutOfMemory(OutOfMemory::Recent(*block)), true, shared);
        }
        for block in &suspects.largest {
            let at = At { stacks: block.stacks, ..at };
            self.emit(at, device, EventKind::OutOfMemory(OutOfMemory::Top(*block)), true, shared);
        }
    }
}

/// The `count` blocks with the highest keys, highest first; of equals the older first.
fn largest_by(blocks: impl Iterator<Item = Block>, count: usize, key: impl Fn(&Block) -> u64) -> Vec<Block> {
    use std::cmp::Reverse;

    let mut kept = BinaryHeap::with_capacity(count + 1);
    let mut found: HashMap<u64, Block> = HashMap::default();
    for block in blocks {
        let number = block.allocation_id;
        kept.push(Reverse((key(&block), Reverse(number))));
        found.insert(number, block);
        if kept.len() > count
            && let Some(Reverse((_, Reverse(least)))) = kept.pop()
        {
            found.remove(&least);
        }
    }
    let mut kept: Vec<_> = kept.into_iter().map(|Reverse(kept)| kept).collect();
    kept.sort_unstable_by(|one, other| other.cmp(one));
    kept.into_iter().filter_map(|(_, Reverse(number))| found.remove(&number)).collect()
}
