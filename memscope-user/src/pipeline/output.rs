//! Fan-out: every event to all analyses, and the events to write to the sinks.

use std::collections::VecDeque;

use super::wishes::Demand;
use crate::analyses::{Analysis, Finding, Observer};
use crate::hash::HashSet;
use crate::model::{Device, Event, EventKind, Kept, RunEnd};
use crate::sinks::{Sink, SinkError};

/// The results of a finished run.
#[derive(Debug)]
pub struct Outcome {
    /// Conclusions of the analyses, in their order.
    pub findings: Vec<Finding>,
    /// End and losses.
    pub end: RunEnd,
    /// Reason of the [`Note::End`](crate::capture::Note::End); `None` without one: the tracer did not get to write it.
    pub end_reason: Option<String>,
    /// Records taken, good or not.
    pub records: u64,
    /// Outputs that could not be finished, and errors that were not reported before.
    pub errors: Vec<SinkError>,
    /// Owns the call stacks that the findings refer to.
    pub kept: Kept,
}

/// Which rows are written (contract §1.4, §1.5, §8.1). Analyses see everything.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a choice of its own")]
pub struct DumpFilter {
    /// Allocations are written.
    pub alloc: bool,
    /// Frees are written.
    pub free: bool,
    /// Returns of blocks to their pools are written.
    pub block_free: bool,
    /// Launches are written: they are among the events asked for, and the level is `kernel`.
    pub launch: bool,
    /// Operators are written: launches are among the events asked for, and the level is `op`.
    pub op: bool,
    /// Uses of tensors by operators are written.
    pub access: bool,
    /// When a request fails because memory is out: number of newest and of largest blocks to write. Analyses see ten of
    /// each where none are written.
    pub oom_blocks: Option<usize>,
    /// Devices with written events. Events of no device always are.
    pub devices: DeviceFilter,
    /// Steps with written events; empty: all. A block's free goes with its allocation.
    pub steps: Vec<u32>,
}

/// Devices with written events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFilter {
    /// NPUs.
    pub npus: Npus,
    /// Host memory.
    pub cpu: bool,
}

/// A choice of NPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Npus {
    /// All of them.
    All,
    /// Those with these numbers; may be empty.
    Only(Vec<u32>),
}

impl Default for DumpFilter {
    /// The options' defaults: allocations and frees on all NPUs.
    fn default() -> Self {
        let devices = DeviceFilter { npus: Npus::All, cpu: false };
        Self {
            alloc: true,
            free: true,
            block_free: false,
            launch: false,
            op: true,
            access: false,
            oom_blocks: None,
            devices,
            steps: Vec::new(),
        }
    }
}

impl DumpFilter {
    /// Whether events of this kind and device are written.
    pub(super) fn passes(&self, event: &Event) -> bool {
        let kind = match event.kind {
            EventKind::Alloc(_) => self.alloc,
            EventKind::Free(_) | EventKind::UnknownFree(_) => self.free,
            EventKind::BlockReturned(_) => self.block_free,
            EventKind::Launch(_) => self.launch,
            EventKind::Op(_) | EventKind::AtbOp(_) => self.op,
            EventKind::Access(_) => self.access,
            _ => true,
        };
        kind && self.devices.passes(event.device)
    }
}

impl DeviceFilter {
    fn passes(&self, device: Device) -> bool {
        match (device, &self.npus) {
            (Device::None, _) | (Device::Npu(_), Npus::All) => true,
            (Device::Npu(number), Npus::Only(numbers)) => numbers.contains(&number),
            (Device::Cpu, _) => self.cpu,
        }
    }
}

/// Most different errors reported before the end.
const MAX_REPORTED: usize = 64;

/// The readers of a run's events.
#[derive(Default)]
pub struct Audience {
    /// Get the events to write.
    pub sinks: Vec<Box<dyn Sink>>,
    /// See the same, and write nothing.
    pub readers: Vec<Box<dyn Observer>>,
    /// Get everything.
    pub analyses: Vec<Box<dyn Analysis>>,
    /// See everything, and conclude nothing.
    pub observers: Vec<Box<dyn Observer>>,
}

impl Audience {
    /// Analyses alone.
    #[must_use]
    pub fn of(analyses: Vec<Box<dyn Analysis>>) -> Self {
        Self { analyses, ..Self::default() }
    }
}

/// Where events go.
pub(super) struct Output {
    filter: DumpFilter,
    to: Audience,
    demand: Option<Demand>,
    /// Time of the first event, nanoseconds since the Unix epoch.
    start_ns: Option<u64>,
    errors: VecDeque<SinkError>,
    /// Errors already reported, by message.
    reported: HashSet<String>,
}

impl Output {
    pub(super) fn new(filter: DumpFilter, to: Audience, demand: Option<Demand>) -> Self {
        Self { filter, to, demand, start_ns: None, errors: VecDeque::new(), reported: HashSet::default() }
    }

    /// A script asks for analyses: new ones see the events of all processes from here on.
    pub(super) fn demand(&mut self, asked: u64) {
        let Some(Demand { given, make }) = &mut self.demand else { return };
        let further = asked & !*given;
        if further != 0 {
            *given |= further;
            self.to.analyses.extend(make(further));
        }
    }

    /// Whether scripts can ask for analyses.
    pub(super) const fn takes_demands(&self) -> bool {
        self.demand.is_some()
    }

    /// Hands an event on; `written`: whether to write it, by steps and scripts; `of_options`: whether the options
    /// decide, too.
    pub(super) fn event(&mut self, event: &Event, written: bool, of_options: bool) {
        if event.kind.is_of_run() {
            self.start_ns.get_or_insert(event.time_ns);
        }
        for analysis in &mut self.to.analyses {
            analysis.observe(event);
        }
        for observer in &mut self.to.observers {
            observer.observe(event);
        }
        if written && (!of_options || self.filter.passes(event)) {
            for reader in &mut self.to.readers {
                reader.observe(event);
            }
            self.each_sink(|sink| sink.write(event));
        }
    }

    pub(super) fn flush(&mut self) {
        for observer in self.to.readers.iter_mut().chain(&mut self.to.observers) {
            observer.flush();
        }
        self.each_sink(|sink| sink.flush());
    }

    /// The next error that was not reported yet.
    pub(super) fn error(&mut self) -> Result<(), SinkError> {
        self.errors.pop_front().map_or(Ok(()), Err)
    }

    /// Ends the sinks; returns the errors not reported yet, and the number of rows that no sink could write.
    pub(super) fn finish(&mut self) -> (Vec<SinkError>, u64) {
        self.reported.clear();
        self.each_sink(|sink| sink.finish());
        (self.errors.drain(..).collect(), self.to.sinks.iter().map(|sink| sink.lost_rows()).sum())
    }

    /// Time of the first event, nanoseconds since the Unix epoch; 0 if there was none.
    pub(super) fn start_ns(&self) -> u64 {
        self.start_ns.unwrap_or(0)
    }

    /// Asks the analyses.
    pub(super) fn conclude(&mut self, end: &RunEnd) -> Vec<Finding> {
        for observer in self.to.readers.iter_mut().chain(&mut self.to.observers) {
            observer.finish(end);
        }
        self.to.analyses.iter_mut().flat_map(|analysis| analysis.finish(end)).collect()
    }

    /// Findings so far, while the run goes on.
    pub(super) fn now(&self) -> Vec<Finding> {
        self.to.analyses.iter().flat_map(|analysis| analysis.now()).collect()
    }

    /// Calls `act` with every sink. One that fails is called again the next time: a disk may get room again, and a sink
    /// may have other files. An error is reported once.
    fn each_sink(&mut self, mut act: impl FnMut(&mut dyn Sink) -> Result<(), SinkError>) {
        for sink in &mut self.to.sinks {
            if let Err(error) = act(sink.as_mut())
                && self.reported.len() < MAX_REPORTED
                && self.reported.insert(error.to_string())
            {
                self.errors.push_back(error);
            }
        }
    }
}
