//! Where is the memory of each device? One account for each process and device; their sums agree.
//!
//! Driver blocks are the base; calls of ACL and the runtime lie above them and do not count. A driver block in which a
//! pool was seen to hand out memory is a *segment* of that pool from then on. Mappings give physical memory its
//! addresses. A reservation in which a pool has been seen belongs to that pool, and so does memory mapped there later,
//! at once.
//!
//! Made when a process ends, at its peak on each device, and on request.

mod finding;
pub(crate) mod text;

pub(super) mod account;
pub(super) mod memory;
mod segment;
mod sheets;
pub(super) mod shift;
#[cfg(test)]
mod tests;

pub use self::finding::{Entry, Item, Ledger, Moment, PoolSheets, Sheet, Sign};

use std::collections::BTreeMap;

use self::memory::{Figures, Memory};
use super::{Analysis, Finding, concluded::Concluded};
use crate::model::{Confidence, Device, Event, EventKind, FreeCause, RunEnd};

/// Most devices with figures.
const MAX_DEVICES: usize = 64;

/// Keeps the ledgers.
#[derive(Debug, Default)]
pub struct LedgerAnalysis {
    processes: BTreeMap<u32, Process>,
    figures: BTreeMap<Device, Figures>,
    concluded: Concluded<Ledger>,
}

/// One process.
#[derive(Debug, Default)]
struct Process {
    attached: bool,
    memory: Memory,
    /// Made just before the process's memory was taken from it: final, unless it asks for more.
    last: Option<Vec<Ledger>>,
}

impl Analysis for LedgerAnalysis {
    fn observe(&mut self, event: &Event) {
        match &event.kind {
            EventKind::DeviceUsage(usage) => {
                let figures = (event.time_ns, usage.clone());
                self.processes.values_mut().for_each(|process| process.memory.sampled(event.device, &figures));
                if self.figures.len() < MAX_DEVICES || self.figures.contains_key(&event.device) {
                    self.figures.insert(event.device, figures);
                }
            }
            EventKind::ProcessEnd => self.conclude(event.pid),
            EventKind::Looked(_) => {}
            _ => {
                let new = || Process { memory: Memory::new(event.pid, self.figures.clone()), ..Process::default() };
                self.processes.entry(event.pid).or_insert_with(new).observe(event);
            }
        }
    }

    fn finish(&mut self, end: &RunEnd) -> Vec<Finding> {
        let left: Vec<u32> = self.processes.keys().copied().collect();
        for pid in left {
            self.conclude(pid);
        }
        let confidence = Confidence::after(end);
        let finding = |ledger| Finding::Ledger(Ledger { confidence, ..ledger });
        self.concluded.take(|ledger| (ledger.pid, ledger.device, ledger.moment), finding)
    }

    fn now(&self) -> Vec<Finding> {
        let ledgers = self.processes.iter().flat_map(|(pid, process)| process.ledgers(*pid, Moment::Now));
        ledgers.map(Finding::Ledger).collect()
    }
}

impl LedgerAnalysis {
    fn conclude(&mut self, pid: u32) {
        let Some(mut process) = self.processes.remove(&pid) else { return };
        let last = process.last.take().unwrap_or_else(|| process.ledgers(pid, Moment::End));
        let attached = process.attached;
        // A process that ends at its peak needs one ledger.
        let same = |peak: &Ledger| last.iter().any(|end| end.device == peak.device && end.hal == peak.hal);
        let peaks = process.memory.peaks().filter(|peak| !same(peak));
        self.concluded.extend(peaks.map(|peak| Ledger { pid, attached, ..peak }));
        self.concluded.extend(last);
    }
}

impl Process {
    fn observe(&mut self, event: &Event) {
        let ends = matches!(&event.kind, EventKind::Free(free)
            if matches!(free.cause, FreeCause::ProcessEnd | FreeCause::TraceEnd));
        if ends && self.last.is_none() {
            let ledgers = self.ledgers(event.pid, Moment::End).into_iter();
            self.last = Some(ledgers.map(|ledger| Ledger { time_ns: event.time_ns, ..ledger }).collect());
        }
        if !ends && self.last.take().is_some() {
            // Its memory ended and it goes on: it runs another program now.
            self.memory.forget_addresses();
        }
        if let EventKind::ProcessStart(start) = &event.kind {
            self.attached = start.attached;
        }
        self.memory.observe(event);
    }

    fn ledgers(&self, pid: u32, moment: Moment) -> Vec<Ledger> {
        let devices = self.memory.devices().filter(|device| *device != Device::Cpu);
        devices
            .filter_map(|device| self.memory.ledger(device, moment))
            .map(|ledger| Ledger { pid, attached: self.attached, ..ledger })
            .collect()
    }
}
