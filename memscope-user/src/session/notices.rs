//! Sends users at once the messages that they should not have to search in the report.

use std::collections::{HashMap, HashSet};

use super::log::Speaker;
use crate::{
    analyses::{Observer, held::Held},
    model::{Event, EventKind, FreeCause, Pool, ProcessStart, Unmet},
    sinks::log::Level,
};

/// Sends the warnings that events call for.
pub(crate) struct Notices {
    speaker: Speaker,
    /// Living processes with another number in their own pid namespace that were introduced.
    introduced: HashSet<u32>,
    /// Blocks of each process and pool that ended because their addresses were handed out again; nothing once a free was seen, or
    /// the user was warned.
    replaced: HashMap<(u32, Pool), Option<u64>>,
}

impl Notices {
    /// Sends to this speaker.
    pub(crate) fn new(speaker: Speaker) -> Self {
        Self { speaker, introduced: HashSet::new(), replaced: HashMap::new() }
    }

    /// Counts what ends blocks of a pool. Gives whether its frees are not seen, once.
    fn ends(&mut self, pid: u32, pool: Pool, cause: FreeCause) -> bool {
        let replaced = self.replaced.entry((pid, pool)).or_insert(Some(0));
        match (cause, &mut *replaced) {
            (FreeCause::Program, _) => *replaced = None,
            (FreeCause::Replaced, Some(count)) => {
                *count += 1;
                if *count >= Held::REUSED_ADDRESSES {
                    *replaced = None;
                    return true;
                }
            }
            _ => {}
        }
        false
    }

    fn warn_of_frees(&self, pid: u32, pool: Pool) {
        let text = format_args!(
            "process {pid}: frees of pool {} are not seen, though it hands out its addresses again: what the report says that it \
             holds is too much (see `doctor --pid {pid}`)",
            pool.event_type()
        );
        self.speaker.warn(text);
    }

    /// Reports a process's own number, once; at a higher level for the first one of a namespace.
    fn introduce(&mut self, pid: u32, start: &ProcessStart) {
        let Some(within) = start.pid_within else { return };
        if self.introduced.insert(pid) {
            let known = self.introduced.contains(&start.parent);
            let level = if known { Level::Debug } else { Level::Info };
            let text = format_args!("process {pid} ({}) is process {within} in its own pid namespace", start.command);
            self.speaker.say(level, text);
        }
    }
}

impl Observer for Notices {
    fn observe(&mut self, event: &Event) {
        if let EventKind::ProbeDisabled { symbol } = event.kind {
            let text = format_args!(
                "what was taken for `{symbol}` in process {} is another function: its calls are passed over, and rows \
                 of that pool are missing; please report the library's build-id (see doctor --pid {})",
                event.pid, event.pid
            );
            self.speaker.error(text);
        }
        match &event.kind {
            EventKind::ProcessStart(start) => self.introduce(event.pid, start),
            EventKind::ProcessEnd => {
                self.introduced.remove(&event.pid);
                self.replaced.retain(|(pid, _), _| *pid != event.pid);
            }
            EventKind::Free(free) if self.ends(event.pid, free.block.pool, free.cause) => {
                self.warn_of_frees(event.pid, free.block.pool);
            }
            EventKind::UnknownFree(free) => {
                self.ends(event.pid, free.pool, FreeCause::Program);
            }
            _ => {}
        }
        if let EventKind::Unmet(Unmet { settings, options }) = &event.kind {
            let text = format_args!(
                "config() of process {} asks for {settings}, which this trace does not have; start the tracer with {options}",
                event.pid
            );
            self.speaker.warn(text);
        }
        if event.kind == EventKind::StepsRefused {
            let text = format_args!(
                "process {} marks steps by ranges and by step(); what it did first counts, the other is passed over",
                event.pid
            );
            self.speaker.error(text);
        }
    }
}
