//! Reduces a run in one pass to the data of a page, however long it was.

use std::cmp::Reverse;
use std::sync::{
    Arc,
    mpsc::{self, Receiver, Sender},
};

use super::view::{Process, View, ViewMaking};
use crate::analyses::decompose::RuleSet;
use crate::analyses::{Named, Observer};
use crate::hash::HashMap;
use crate::model::{Device, Event, EventKind, RunEnd};

/// Most processes and devices: those with the highest peaks.
const MAX_VIEWS: usize = 64;
/// Processes with marks and a name of their own; further ones share the last.
const MAX_PROCESSES: usize = 4096;

/// A run for a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reduced {
    /// By process, then device.
    pub views: Vec<View>,
    /// Processes and devices that were left out, with lower peaks.
    pub left_out: u64,
    /// How the run ended.
    pub end: RunEnd,
}

/// Watches a run, and sends its result when the run has ended.
pub struct Reducer {
    done: Vec<(u64, View)>,
    current: HashMap<(u32, Device), (usize, ViewMaking)>,
    processes: Vec<Process>,
    current_process: HashMap<u32, usize>,
    left_out: u64,
    out: Sender<Reduced>,
}

impl Reducer {
    /// One that names owners by these rules; and the receiver.
    #[must_use]
    pub fn naming(rules: Arc<RuleSet>) -> (Box<dyn Observer>, Receiver<Reduced>) {
        let (reducer, made) = Self::new();
        (Box::new(Named::new(rules, reducer)), made)
    }

    pub(super) fn new() -> (Self, Receiver<Reduced>) {
        let (out, made) = mpsc::channel();
        let reducer = Self {
            done: Vec::new(),
            current: HashMap::default(),
            processes: Vec::new(),
            current_process: HashMap::default(),
            left_out: 0,
            out,
        };
        (reducer, made)
    }

    fn process(&mut self, pid: u32) -> usize {
        let Self { processes, current_process, .. } = self;
        *current_process.entry(pid).or_insert_with(|| {
            if processes.len() < MAX_PROCESSES {
                processes.push(Process::default());
            }
            processes.len() - 1
        })
    }

    /// The process on the device of an event, which may be its first.
    fn view(&mut self, event: &Event, device: Device) -> &mut ViewMaking {
        let process = self.process(event.pid);
        let new = || (process, ViewMaking::new(event.pid, device, event.time_ns));
        &mut self.current.entry((event.pid, device)).or_insert_with(new).1
    }

    /// A later process of this number is another one.
    fn conclude(&mut self, pid: u32) {
        let mut ended: Vec<(u32, Device)> = self.current.keys().filter(|(of, _)| *of == pid).copied().collect();
        ended.sort_unstable();
        for key in ended {
            let Some((process, view)) = self.current.remove(&key) else { continue };
            let weight = view.weight();
            self.done.extend(view.close(&self.processes[process]).map(|view| (weight, view)));
        }
        self.current_process.remove(&pid);
        if self.done.len() >= 2 * MAX_VIEWS {
            self.cut();
        }
    }

    fn cut(&mut self) {
        self.done.sort_by_key(|(weight, view)| (Reverse(*weight), view.pid, view.device, view.start_ns));
        self.left_out += self.done.len().saturating_sub(MAX_VIEWS) as u64;
        self.done.truncate(MAX_VIEWS);
    }
}

impl Observer for Reducer {
    fn observe(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Alloc(alloc) => self.view(event, alloc.block.device).observe(event),
            EventKind::Free(free) => self.view(event, free.block.device).observe(event),
            EventKind::ProcessEnd => self.conclude(event.pid),
            EventKind::StepStart { .. }
            | EventKind::StepEnd { .. }
            | EventKind::AllocFailed(_)
            | EventKind::AllocRecovered(_)
            | EventKind::OutOfMemory(_)
            | EventKind::Region(_) => self.view(event, event.device).observe(event),
            EventKind::ProcessStart(_) | EventKind::Mark(_) | EventKind::DomainMark { .. } => {
                let process = self.process(event.pid);
                self.processes[process].observe(event);
            }
            _ => {}
        }
    }

    fn finish(&mut self, end: &RunEnd) {
        let mut pids: Vec<u32> = self.current.keys().map(|(pid, _)| *pid).collect();
        pids.sort_unstable();
        pids.dedup();
        for pid in pids {
            self.conclude(pid);
        }
        self.cut();
        let mut views: Vec<View> = std::mem::take(&mut self.done).into_iter().map(|(_, view)| view).collect();
        views.sort_by_key(|view| (view.pid, view.device, view.start_ns));
        let reduced = Reduced { views, left_out: self.left_out, end: end.clone() };
        // A receiver that is gone does not want it.
        let _ = self.out.send(reduced);
    }
}
