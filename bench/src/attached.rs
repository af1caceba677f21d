//! A trace that attaches to a running program and detaches again: blocks from before it are unknown to it.

use std::collections::HashMap;

use memscope::analyses::{Analysis, Finding};
use memscope::model::{Alloc, Block, Event, EventKind, Free, FreeCause, ProcessStart, RunEnd, Stacks, UnknownFree};

/// When it begins: nanoseconds since the Unix epoch.
pub(crate) const START_NS: u64 = 1_790_000_000_000_000_000;

/// What one such trace sees.
pub(crate) struct Attached {
    to: Vec<Box<dyn Analysis>>,
    from_ns: u64,
    until_ns: u64,
    begun: bool,
    /// Steps that had begun before it.
    steps_before: u32,
    /// Live blocks by number.
    known: HashMap<u64, Block>,
    /// The last event: what the trace ends with is of the same process.
    last: Option<Event>,
    found: Option<Vec<Finding>>,
}

impl Attached {
    /// A trace from one time of the program to another, in nanoseconds since its start.
    pub(crate) fn new(to: Vec<Box<dyn Analysis>>, from_ns: u64, until_ns: u64) -> Self {
        Self {
            to,
            from_ns: START_NS + from_ns,
            until_ns: START_NS + until_ns,
            begun: false,
            steps_before: 0,
            known: HashMap::new(),
            last: None,
            found: None,
        }
    }

    /// Takes every event of the program; passes on those of its time.
    pub(crate) fn observe(&mut self, event: &Event) {
        if self.found.is_some() {
        } else if event.time_ns < self.from_ns {
            if let EventKind::StepStart { step } = event.kind {
                self.steps_before = step;
            }
        } else if event.time_ns >= self.until_ns {
            self.found = Some(self.conclude(self.until_ns));
        } else {
            if !self.begun {
                self.begun = true;
                let command = "server".into();
                let start = ProcessStart { parent: 0, attached: true, command, pid_within: None };
                let kind = EventKind::ProcessStart(start);
                self.pass_on(Event { time_ns: self.from_ns, stacks: Stacks::default(), kind, ..event.clone() });
            }
            if let Some(kind) = self.seen(&event.kind) {
                self.pass_on(Event { kind, ..event.clone() });
            }
        }
    }

    /// What it finds.
    pub(crate) fn finish(mut self) -> Vec<Finding> {
        let found = self.found.take();
        let end_ns = self.last.as_ref().map_or(self.from_ns, |last| last.time_ns);
        found.unwrap_or_else(|| self.conclude(end_ns))
    }

    /// An event as it looks to one who came late.
    fn seen(&mut self, kind: &EventKind) -> Option<EventKind> {
        match kind {
            EventKind::Alloc(alloc) => {
                let step = alloc.block.step.saturating_sub(self.steps_before);
                let alloc = Alloc { block: Block { step, ..alloc.block }, ..*alloc };
                self.known.insert(alloc.block.allocation_id, alloc.block);
                Some(EventKind::Alloc(alloc))
            }
            EventKind::Free(free) => match self.known.remove(&free.block.allocation_id) {
                Some(block) => Some(EventKind::Free(Free { block, ..*free })),
                None => free.cause.gave_back().then_some(EventKind::UnknownFree(UnknownFree {
                    pool: free.block.pool,
                    addr: free.block.addr,
                    size_bytes: None,
                    maybe_older: true,
                    refused: false,
                })),
            },
            EventKind::StepStart { step } => Some(EventKind::StepStart { step: step - self.steps_before }),
            EventKind::StepEnd { step } => {
                let step = step.checked_sub(self.steps_before).filter(|step| *step > 0)?;
                Some(EventKind::StepEnd { step })
            }
            other => Some(other.clone()),
        }
    }

    fn pass_on(&mut self, event: Event) {
        for analysis in &mut self.to {
            analysis.observe(&event);
        }
        self.last = Some(event);
    }

    /// The trace ends: what is live is reported, unless the process has ended before.
    fn conclude(&mut self, time_ns: u64) -> Vec<Finding> {
        let mut left: Vec<Block> = self.known.drain().map(|(_, block)| block).collect();
        left.sort_unstable_by_key(|block| block.allocation_id);
        for block in left {
            let Some(last) = self.last.clone() else { break };
            let cause = FreeCause::TraceEnd;
            let free = Free {
                block,
                used_bytes: 0,
                total_bytes: None,
                driver: memscope::model::DriverFigures::default(),
                cause,
                owner: None,
                row_time_ns: None,
                without_row: false,
            };
            self.pass_on(Event { time_ns, stacks: Stacks::default(), kind: EventKind::Free(free), ..last });
        }
        let end = RunEnd { time_ns, ..RunEnd::default() };
        self.to.iter_mut().flat_map(|analysis| analysis.finish(&end)).collect()
    }
}
