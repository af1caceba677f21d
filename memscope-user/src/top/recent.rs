//! The last minutes of a trace, for a report of them.

use std::collections::VecDeque;

use crate::analyses::select::Before;
use crate::hash::HashMap;
use crate::model::{Block, DriverFigures, Event, EventKind, Free, FreeCause, RunEnd, Stacks};

/// Events that are kept: about 60 MiB.
const MAX_EVENTS: usize = 200_000;
/// For this time at most.
const SPAN_NS: u64 = 600_000_000_000;

/// Keeps the last ten minutes, or less where there are more than 200 000 events in them; of the time before, what is still live.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recent {
    before: Before,
    events: VecDeque<Event>,
}

impl Recent {
    /// Takes an event, in time order.
    pub(crate) fn take(&mut self, event: &Event) {
        let kept = match &event.kind {
            // The report has its own end.
            EventKind::Free(free) => free.cause != FreeCause::TraceEnd,
            EventKind::Launch(_) | EventKind::Op(_) | EventKind::Access(_) | EventKind::AtbOp(_) => false,
            _ => true,
        };
        if kept {
            self.events.push_back(event.clone());
        }
        let oldest_ns = event.time_ns.saturating_sub(SPAN_NS);
        while self.events.len() > MAX_EVENTS || self.events.front().is_some_and(|first| first.time_ns < oldest_ns) {
            let Some(event) = self.events.pop_front() else { return };
            self.before.take(&event);
        }
    }

    /// First and last moment, nanoseconds since the Unix epoch; `None` without events.
    pub(crate) fn span(&self) -> Option<(u64, u64)> {
        Some((self.events.front()?.time_ns, self.events.back()?.time_ns))
    }

    /// Passes a whole run to `out`: what was live before, the events, and the end of every block. Gives how the run ended.
    pub(crate) fn replay(self, lost: u64, out: &mut dyn FnMut(&Event)) -> RunEnd {
        let Some((start_ns, time_ns)) = self.span() else { return RunEnd::default() };
        let mut live = Live::default();
        self.before.report(start_ns, &mut |event| {
            live.take(event);
            out(event);
        });
        for event in &self.events {
            live.take(event);
            out(event);
        }
        live.end(time_ns, out);
        RunEnd { start_ns, time_ns, lost, ..RunEnd::default() }
    }
}

/// Blocks whose end is still to come.
#[derive(Default)]
struct Live(HashMap<(u32, u64), (Block, u64)>);

impl Live {
    fn take(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Alloc(alloc) => {
                self.0.insert((event.pid, alloc.block.allocation_id), (alloc.block, event.id));
            }
            EventKind::Free(free) => drop(self.0.remove(&(event.pid, free.block.allocation_id))),
            _ => {}
        }
    }

    /// Every block ends with the trace.
    fn end(self, time_ns: u64, out: &mut dyn FnMut(&Event)) {
        let mut blocks: Vec<((u32, u64), (Block, u64))> = self.0.into_iter().collect();
        blocks.sort_unstable_by_key(|(key, _)| *key);
        for ((pid, _), (block, id)) in blocks {
            let kind = EventKind::Free(Free {
                block,
                used_bytes: 0,
                total_bytes: None,
                driver: DriverFigures::default(),
                cause: FreeCause::TraceEnd,
                owner: None,
                row_time_ns: None,
                without_row: false,
            });
            out(&Event { id, time_ns, pid, tid: block.tid, device: block.device, stacks: Stacks::default(), kind });
        }
    }
}
