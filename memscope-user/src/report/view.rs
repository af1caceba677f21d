//! A view, which a reader chooses: one process on one device.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::layer::{Layer, Making, Which};
use super::segments::{Segment, Segments};
use crate::model::{AllocFailed, Device, Event, EventKind, Mark, OutOfMemory, Pool};

/// Most steps kept; further ones are counted.
const MAX_STEPS: usize = 20_000;
/// Most marks and ranges kept.
const MAX_MARKS: usize = 2000;
/// Most failed requests kept.
const MAX_FAILED: usize = 200;
/// Layers of a process and device.
const MAX_LAYERS: usize = 16;

/// A mark of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkAt {
    /// When, nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Its text.
    pub text: Arc<str>,
}

/// A request that failed for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// When, nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// The pool.
    pub pool: Pool,
    /// The requested bytes.
    pub size_bytes: u64,
}

/// A process on a device in the making.
#[derive(Debug)]
pub(super) struct ViewMaking {
    pid: u32,
    device: Device,
    start_ns: u64,
    last_ns: u64,
    layers: BTreeMap<Pool, Making>,
    segments: Segments,
    steps: Vec<(u64, u64)>,
    open_step: Option<u64>,
    steps_ended: u64,
    failed: Vec<Failed>,
}

/// A process on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Process.
    pub pid: u32,
    /// Device.
    pub device: Device,
    /// Short name of its program, where it is known.
    pub command: Option<Arc<str>>,
    /// It was running before the trace.
    pub attached: bool,
    /// First event, nanoseconds since the Unix epoch.
    pub start_ns: u64,
    /// Last event, nanoseconds since the Unix epoch.
    pub end_ns: u64,
    /// The pools, then the driver; the fullest first.
    pub layers: Vec<Layer>,
    /// Segments of the pools.
    pub segments: Vec<Segment>,
    /// Segments that were left out.
    pub segments_left_out: u64,
    /// Begin and end of steps, nanoseconds since the Unix epoch.
    pub steps: Vec<(u64, u64)>,
    /// All steps that ended.
    pub steps_ended: u64,
    /// Marks.
    pub marks: Vec<MarkAt>,
    /// Failed requests.
    pub failed: Vec<Failed>,
}

impl ViewMaking {
    pub(super) fn new(pid: u32, device: Device, start_ns: u64) -> Self {
        Self {
            pid,
            device,
            start_ns,
            last_ns: start_ns,
            layers: BTreeMap::new(),
            segments: Segments::default(),
            steps: Vec::new(),
            open_step: None,
            steps_ended: 0,
            failed: Vec::new(),
        }
    }

    pub(super) fn observe(&mut self, event: &Event) {
        self.last_ns = self.last_ns.max(event.time_ns);
        self.segments.observe(event);
        match &event.kind {
            EventKind::Alloc(alloc) => {
                let (known, room) = (self.layers.contains_key(&alloc.block.pool), self.layers.len() < MAX_LAYERS);
                if known || room {
                    self.layers
                        .entry(alloc.block.pool)
                        .or_insert_with(|| Making::new(self.start_ns))
                        .alloc(event, alloc);
                }
            }
            EventKind::Free(free) => {
                if let Some(layer) = self.layers.get_mut(&free.block.pool) {
                    layer.free(event, free);
                }
            }
            EventKind::StepStart { .. } => self.open_step = Some(event.time_ns),
            EventKind::StepEnd { .. } => self.step_ends(event.time_ns),
            EventKind::AllocFailed(failed) if failed.out_of_memory => {
                let request = (event.tid, failed.request);
                self.layers.values_mut().for_each(|layer| layer.attempt_failed(request, event.time_ns));
            }
            EventKind::AllocRecovered(recovered) => {
                let request = (event.tid, recovered.request);
                self.layers.values_mut().for_each(|layer| layer.attempt_settled(request));
            }
            EventKind::OutOfMemory(OutOfMemory::Trigger(failed)) => self.out_of_memory(event, failed),
            _ => {}
        }
    }

    fn step_ends(&mut self, time_ns: u64) {
        let start_ns = self.open_step.take().unwrap_or(self.start_ns);
        self.steps_ended += 1;
        if self.steps.len() < MAX_STEPS {
            self.steps.push((start_ns, time_ns));
        }
        self.mark(Which::LastStep, time_ns);
    }

    /// A final failure is certain only later, amid the frees of a program that ends because of it: memory was out at
    /// the last attempt.
    fn out_of_memory(&mut self, event: &Event, failed: &AllocFailed) {
        let request = (event.tid, failed.request);
        let known: Vec<Option<u64>> = self.layers.values_mut().map(|layer| layer.out_of_memory(request)).collect();
        let time_ns = known.into_iter().flatten().next();
        if time_ns.is_none() {
            self.mark(Which::OutOfMemory, event.time_ns);
        }
        if self.failed.len() < MAX_FAILED {
            let (pool, size_bytes) = (failed.pool, failed.size_bytes);
            self.failed.push(Failed { time_ns: time_ns.unwrap_or(event.time_ns), pool, size_bytes });
        }
    }

    fn mark(&mut self, which: Which, time_ns: u64) {
        self.layers.values_mut().for_each(|layer| layer.mark(which, time_ns, None));
    }

    /// Its fullest layer.
    pub(super) fn weight(&self) -> u64 {
        self.layers.values().map(Making::peak).max().unwrap_or(0)
    }

    pub(super) fn close(self, process: &Process) -> Option<View> {
        let end_ns = self.last_ns;
        let used = self.layers.into_iter().filter(|(_, layer)| layer.is_used());
        let mut layers: Vec<Layer> = used.map(|(pool, layer)| layer.close(pool, end_ns)).collect();
        if layers.is_empty() {
            return None;
        }
        let peak = |layer: &Layer| layer.moments.first().map_or(0, |moment| moment.bytes);
        layers.sort_by_key(|layer| {
            (layer.pool.is_base(), layer.pool.is_host(), std::cmp::Reverse(peak(layer)), layer.pool)
        });
        let (segments, segments_left_out) = self.segments.close(end_ns);
        Some(View {
            pid: self.pid,
            device: self.device,
            command: process.command.clone(),
            attached: process.attached,
            start_ns: self.start_ns,
            end_ns,
            layers,
            segments,
            segments_left_out,
            steps: self.steps,
            steps_ended: self.steps_ended,
            marks: process.marks.clone(),
            failed: self.failed,
        })
    }
}

/// The facts about a process as a whole.
#[derive(Debug, Default)]
pub(super) struct Process {
    pub(super) command: Option<Arc<str>>,
    pub(super) attached: bool,
    marks: Vec<MarkAt>,
}

impl Process {
    pub(super) fn observe(&mut self, event: &Event) {
        match &event.kind {
            EventKind::ProcessStart(start) => {
                self.command = Some(Arc::clone(&start.command)).filter(|command| !command.is_empty());
                self.attached = start.attached;
            }
            EventKind::Mark(Mark::Point { text: Some(text) } | Mark::RangeStart { text: Some(text), .. })
            | EventKind::DomainMark {
                mark: Mark::Point { text: Some(text) } | Mark::RangeStart { text: Some(text), .. },
                ..
            } if self.marks.len() < MAX_MARKS && &**text != "step start" => {
                self.marks.push(MarkAt { time_ns: event.time_ns, text: Arc::clone(text) });
            }
            _ => {}
        }
    }
}
