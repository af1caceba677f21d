//! Which blocks are of interest.

use std::sync::Arc;

use crate::analyses::decompose::{Classifier, RuleSet};
use crate::hash::{HashMap, HashSet};
use crate::model::{Alloc, Block, Device, Event, EventKind, Free, Name, OutOfMemory, Pool, Stack, Stacks, Text};

/// Most different stacks with a cached answer; when full, the cache is emptied.
const MAX_REMEMBERED: usize = 1 << 18;

/// The property of a block that a condition tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// The block is smaller than this many bytes.
    Below(u64),
    /// It is larger than this many bytes.
    Above(u64),
    /// It has exactly this many bytes.
    Size(u64),
    /// Its owner as known at the allocation. A block without a name has an empty owner.
    Owner(String),
    /// Its owner has this text in it.
    OwnerHas(String),
    /// It was handed out by the pool with this `Event Type`, in capitals or not.
    Layer(String),
    /// It was allocated by this thread.
    Tid(u32),
    /// It is of this process.
    Pid(u32),
    /// It is on this device.
    Device(Device),
    /// A frame of the stack that it was allocated from has this text in it.
    StackHas(String),
}

/// A test, or its opposite. An unknown property satisfies neither.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The test.
    pub test: Test,
    /// The required outcome.
    pub wanted: bool,
}

/// Conditions that all have to hold.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// The conditions.
    pub conditions: Vec<Condition>,
    /// The rules that name owners; `None`: the built-in ones.
    pub rules: Option<Arc<RuleSet>>,
}

impl Filter {
    /// Whether every block satisfies it.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.conditions.is_empty()
    }

    /// Whether it asks for owners.
    fn names_owners(&self) -> bool {
        self.conditions.iter().any(|condition| matches!(condition.test, Test::Owner(_) | Test::OwnerHas(_)))
    }

    /// Whether some blocks of a pool of a process on a device may match, and others not. The pool's own figures then do
    /// not apply to the matching blocks.
    #[must_use]
    pub fn parts_pools(&self) -> bool {
        !self
            .conditions
            .iter()
            .all(|condition| matches!(condition.test, Test::Layer(_) | Test::Pid(_) | Test::Device(_)))
    }

    /// Whether the blocks of a pool satisfy the conditions on pools.
    #[must_use]
    pub fn holds_for_pool(&self, pid: u32, device: Device, pool: Pool) -> bool {
        let subject = Subject { pid, device, pool, details: None };
        self.conditions.iter().all(|Condition { test, wanted }| test.plain(subject).is_none_or(|it| it == *wanted))
    }

    /// Whether events of a process on a device, which may be none, can match at all.
    fn reaches(&self, pid: u32, device: Device) -> bool {
        self.conditions.iter().all(|Condition { test, wanted }| match test {
            // The driver's figures of a device are of no process.
            Test::Pid(of) => pid == 0 || (*of == pid) == *wanted,
            Test::Device(of) => device == Device::None || (*of == device) == *wanted,
            _ => true,
        })
    }
}

/// A block, or the known facts about one.
#[derive(Clone, Copy)]
struct Subject {
    pid: u32,
    device: Device,
    pool: Pool,
    details: Option<Details>,
}

/// The facts about a block with a seen allocation.
#[derive(Clone, Copy)]
struct Details {
    tid: u32,
    size_bytes: u64,
    owner: Option<Name>,
    stacks: Stacks,
}

impl Subject {
    /// A requested block.
    const fn request(event: &Event, pool: Pool, size_bytes: u64) -> Self {
        let details = Details { tid: event.tid, size_bytes, owner: None, stacks: event.stacks };
        Self { details: Some(details), ..Self::unknown(event, pool) }
    }

    /// A block without a seen allocation.
    const fn unknown(event: &Event, pool: Pool) -> Self {
        Self { pid: event.pid, device: event.device, pool, details: None }
    }
}

/// A filter in use, with cached answers by stack.
#[derive(Debug, Default)]
pub struct Matcher {
    filter: Filter,
    /// Names owners, if they are asked for.
    owners: Option<Classifier>,
    /// Whether all conditions on stacks hold.
    stacks: HashMap<Stacks, bool>,
}

impl From<Filter> for Matcher {
    fn from(filter: Filter) -> Self {
        let rules = || filter.rules.clone().unwrap_or_else(|| Arc::new(RuleSet::builtin()));
        let owners = filter.names_owners().then(|| Classifier::new(rules()));
        Self { filter, owners, stacks: HashMap::default() }
    }
}

impl Matcher {
    /// The filter.
    #[must_use]
    pub const fn filter(&self) -> &Filter {
        &self.filter
    }

    /// Whether a block of a process satisfies the filter: the same from its allocation to its end.
    pub fn holds(&mut self, pid: u32, block: &Block) -> bool {
        if self.filter.is_empty() {
            return true;
        }
        let owner = self.owners.as_mut().and_then(|owners| owners.owner(block));
        let Block { device, pool, tid, size_bytes, stacks, .. } = *block;
        self.holds_for(Subject { pid, device, pool, details: Some(Details { tid, size_bytes, owner, stacks }) })
    }

    fn holds_for(&mut self, subject: Subject) -> bool {
        let plain = self.filter.conditions.iter().filter(|condition| !matches!(condition.test, Test::StackHas(_)));
        let mut plain = plain.map(|condition| (condition, condition.test.plain(subject)));
        plain.all(|(condition, outcome)| outcome == Some(condition.wanted)) && self.stacks_hold(subject)
    }

    fn stacks_hold(&mut self, subject: Subject) -> bool {
        let mut conditions = self.filter.conditions.iter().filter_map(|condition| match &condition.test {
            Test::StackHas(text) => Some((text, condition.wanted)),
            _ => None,
        });
        let Some(Details { stacks, .. }) = subject.details else { return conditions.next().is_none() };
        if let Some(known) = self.stacks.get(&stacks) {
            return *known;
        }
        let all = [stacks.native, stacks.python, stacks.mixed];
        let frames: Vec<Text> = all.into_iter().flatten().flat_map(Stack::frames).collect();
        let holds = conditions.all(|(text, wanted)| frames.iter().any(|frame| frame.contains(text.as_str())) == wanted);
        if self.stacks.len() >= MAX_REMEMBERED {
            self.stacks.clear();
        }
        self.stacks.insert(stacks, holds);
        holds
    }
}

impl Test {
    /// The outcome, if known; stacks are tested separately.
    fn plain(&self, subject: Subject) -> Option<bool> {
        let owner = |details: Details| details.owner.map_or("", Name::as_str);
        let details = subject.details;
        match self {
            Self::Below(bytes) => details.map(|details| details.size_bytes < *bytes),
            Self::Above(bytes) => details.map(|details| details.size_bytes > *bytes),
            Self::Size(bytes) => details.map(|details| details.size_bytes == *bytes),
            Self::Owner(text) => details.map(|details| owner(details) == text),
            Self::OwnerHas(text) => details.map(|details| owner(details).contains(text.as_str())),
            Self::Tid(tid) => details.map(|details| details.tid == *tid),
            Self::Layer(name) => Some(subject.pool.event_type().eq_ignore_ascii_case(name)),
            Self::Pid(pid) => Some(subject.pid == *pid),
            Self::Device(device) => Some(subject.device == *device),
            Self::StackHas(_) => None,
        }
    }
}

/// Passes events of blocks with a matching allocation, and events of no block.
#[derive(Debug)]
pub(super) struct Sieve {
    matcher: Matcher,
    /// Live blocks by process: at most as many as are live in the run.
    processes: HashMap<u32, Kept>,
}

/// Live blocks of one process that satisfy the filter.
#[derive(Debug, Default)]
struct Kept {
    numbers: HashSet<u64>,
    used_bytes: HashMap<(Pool, Device), u128>,
}

impl Sieve {
    pub(super) fn new(filter: Filter) -> Self {
        Self { matcher: filter.into(), processes: HashMap::default() }
    }

    /// Takes an event; passes it to `out` if it matches, with figures of the selected blocks.
    pub(super) fn pass(&mut self, event: &Event, out: &mut dyn FnMut(&Event)) {
        if !self.matcher.filter.reaches(event.pid, event.device) {
            return;
        }
        match &event.kind {
            EventKind::Alloc(alloc) => {
                if self.matcher.holds(event.pid, &alloc.block) {
                    self.alloc(event, alloc, out);
                }
            }
            EventKind::Free(free) => {
                if self.matcher.holds(event.pid, &free.block) {
                    self.free(event, free, out);
                }
            }
            EventKind::ProcessEnd => {
                self.processes.remove(&event.pid);
                out(event);
            }
            _ if self.is_selected(event) => out(event),
            _ => {}
        }
    }

    /// Blocks in the table.
    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.processes.values().map(|kept| kept.numbers.len()).sum()
    }

    fn alloc(&mut self, event: &Event, alloc: &Alloc, out: &mut dyn FnMut(&Event)) {
        let kept = self.processes.entry(event.pid).or_default();
        let used = kept.used_bytes.entry((alloc.block.pool, alloc.block.device)).or_default();
        if kept.numbers.insert(alloc.block.allocation_id) {
            *used += u128::from(alloc.block.size_bytes);
        }
        if !self.matcher.filter.parts_pools() {
            return out(event);
        }
        let used_bytes = u64::try_from(*used).unwrap_or(u64::MAX);
        out(&Event { kind: EventKind::Alloc(Alloc { used_bytes, total_bytes: None, ..*alloc }), ..event.clone() });
    }

    fn free(&mut self, event: &Event, free: &Free, out: &mut dyn FnMut(&Event)) {
        let kept = self.processes.entry(event.pid).or_default();
        let used = kept.used_bytes.entry((free.block.pool, free.block.device)).or_default();
        if kept.numbers.remove(&free.block.allocation_id) {
            *used -= u128::from(free.block.size_bytes);
        }
        if !self.matcher.filter.parts_pools() {
            return out(event);
        }
        let used_bytes = u64::try_from(*used).unwrap_or(u64::MAX);
        out(&Event { kind: EventKind::Free(Free { used_bytes, total_bytes: None, ..*free }), ..event.clone() });
    }

    /// Whether an event is of a selected block, or of a pool that is selected whole.
    fn is_of_selected(&mut self, event: &Event, allocation_id: u64, pool: Pool) -> bool {
        let kept = self.processes.get(&event.pid);
        kept.is_some_and(|kept| kept.numbers.contains(&allocation_id))
            || self.matcher.holds_for(Subject::unknown(event, pool))
    }

    /// Whether an event other than an allocation or free is passed.
    fn is_selected(&mut self, event: &Event) -> bool {
        match &event.kind {
            EventKind::OutOfMemory(OutOfMemory::Recent(block) | OutOfMemory::Top(block)) => {
                self.matcher.holds(event.pid, block)
            }
            EventKind::AllocFailed(failed) | EventKind::OutOfMemory(OutOfMemory::Trigger(failed)) => {
                self.matcher.holds_for(Subject::request(event, failed.pool, failed.size_bytes))
            }
            EventKind::AllocRecovered(recovered) => {
                self.matcher.holds_for(Subject::request(event, recovered.pool, recovered.size_bytes))
            }
            EventKind::UnknownFree(free) => self.matcher.holds_for(Subject::unknown(event, free.pool)),
            EventKind::Access(access) => self.is_of_selected(event, access.allocation_id, access.pool),
            EventKind::StreamUse(used) => self.is_of_selected(event, used.allocation_id, used.pool),
            // Reported for the pool's own sums.
            EventKind::BlockReturned(returned) => self.matcher.holds_for(Subject::unknown(event, returned.pool)),
            _ => true,
        }
    }
}
