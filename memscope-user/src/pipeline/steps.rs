//! Steps: the ranges with the exact text `step start`, and open ranges in general (contract §8.1, corrected: a step
//! ends with its own range, not with any).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::recent::Recent;
use crate::hash::HashMap;
use crate::model::Device;

/// Text of a range that is a step.
pub(super) const STEP_START: &str = "step start";
/// Most open steps per process; beyond that the oldest will not be seen to end.
const MAX_OPEN_STEPS: usize = 1024;
/// Most open ranges per thread; beyond that the outermost are forgotten.
const MAX_DEPTH: usize = 256;
/// Most threads, and ids, with open ranges.
const MAX_RANGES: usize = 4096;

/// Open ranges of one process.
#[derive(Debug)]
pub(super) struct Ranges {
    started: u64,
    /// Ranges with an id from the program's tool.
    by_id: Recent<(Domain, u64), u64>,
    /// The others, innermost last, by thread.
    by_thread: Recent<(Domain, u32), Vec<u64>>,
    /// Domain of the range that each thread has started last.
    last: Recent<u32, Domain>,
}

/// Handle of a domain with its own ranges; `None` is no domain.
type Domain = Option<u64>;

impl Default for Ranges {
    fn default() -> Self {
        Self {
            started: 0,
            by_id: Recent::new(MAX_RANGES),
            by_thread: Recent::new(MAX_RANGES),
            last: Recent::new(MAX_RANGES),
        }
    }
}

impl Ranges {
    /// A range begins; returns our own id of it, from 1.
    pub(super) fn start(&mut self, tid: u32, domain: Domain) -> u64 {
        self.started += 1;
        self.last.insert(tid, domain);
        let mut open = self.by_thread.remove(&(domain, tid)).unwrap_or_default();
        if open.len() >= MAX_DEPTH {
            open.remove(0);
        }
        open.push(self.started);
        self.by_thread.insert((domain, tid), open);
        self.started
    }

    /// The range that the thread has just started has an id after all.
    pub(super) fn named(&mut self, tid: u32, id: u64) {
        let domain = self.last.get(&tid).copied().flatten();
        if let Some(range) = self.innermost(tid, domain) {
            self.by_id.insert((domain, id), range);
        }
    }

    /// A range ends: that of the id, or without one the innermost one of the thread that has no id either.
    pub(super) fn end(&mut self, tid: u32, domain: Domain, id: u64) -> Option<u64> {
        if id == 0 { self.innermost(tid, domain) } else { self.by_id.remove(&(domain, id)) }
    }

    /// Forgets open ranges; ids continue.
    pub(super) fn reset(&mut self) {
        *self = Self { started: self.started, ..Self::default() };
    }

    fn innermost(&mut self, tid: u32, domain: Domain) -> Option<u64> {
        let mut open = self.by_thread.remove(&(domain, tid))?;
        let range = open.pop();
        if !open.is_empty() {
            self.by_thread.insert((domain, tid), open);
        }
        range
    }
}

/// A step with an open range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OpenStep {
    pub(super) step: u32,
    /// Device of the thread that started it.
    pub(super) device: Device,
    /// Devices with a reported start.
    pub(super) devices: Vec<Device>,
}

/// Steps of one process.
#[derive(Debug, Default)]
pub(super) struct Steps {
    started: u32,
    /// By range.
    open: BTreeMap<u64, OpenStep>,
    /// Step of all devices that are not in `by_device`.
    everywhere: u32,
    by_device: HashMap<Device, u32>,
    wanted: Arc<[u32]>,
    inside: bool,
    /// How steps are marked: by calls or ranges; `None` before the first.
    called: Option<bool>,
    /// A step was also marked the other way.
    refused: bool,
}

impl Steps {
    /// `wanted` are the steps to write; empty: all.
    pub(super) fn new(wanted: Arc<[u32]>) -> Self {
        Self { inside: wanted.is_empty(), wanted, ..Self::default() }
    }

    /// Whether steps are marked by calls of the script, or else by ranges: the first way that is seen counts (contract
    /// §8.1).
    pub(super) fn are_marked(&mut self, by_calls: bool) -> bool {
        let counts = *self.called.get_or_insert(by_calls) == by_calls;
        self.refused |= !counts;
        counts
    }

    /// Whether there was another way.
    pub(super) const fn refused(&self) -> bool {
        self.refused
    }

    /// The script ends a step of `device` (of all, if unknown) by a call; returns its number. The next one begins.
    pub(super) fn call(&mut self, device: Device) -> u32 {
        self.started += 1;
        self.set(device, self.started.saturating_add(1));
        self.started
    }

    fn set(&mut self, device: Device, step: u32) {
        if device == Device::None {
            self.everywhere = step;
            self.by_device.clear();
        } else {
            self.by_device.insert(device, step);
        }
    }

    /// A step begins on `device` (on all, if unknown), to be reported for `devices`.
    pub(super) fn start(&mut self, range: u64, device: Device, devices: Vec<Device>) -> u32 {
        self.started += 1;
        self.set(device, self.started);
        if self.open.len() >= MAX_OPEN_STEPS {
            self.open.pop_first();
        }
        self.open.insert(range, OpenStep { step: self.started, device, devices });
        self.look();
        self.started
    }

    /// The open step of this range.
    pub(super) fn of_range(&self, range: u64) -> Option<OpenStep> {
        self.open.get(&range).cloned()
    }

    /// The range has ended. Until the next start, time belongs to the step that ended.
    pub(super) fn end(&mut self, range: u64) {
        self.open.remove(&range);
        self.look();
    }

    /// Step of a device now; 0 before the first.
    pub(super) fn of_device(&self, device: Device) -> u32 {
        self.by_device.get(&device).copied().unwrap_or(self.everywhere)
    }

    /// Whether current events are written.
    pub(super) const fn inside(&self) -> bool {
        self.inside
    }

    /// Forgets open steps; numbers continue.
    pub(super) fn reset(&mut self) {
        *self = Self { started: self.started, ..Self::new(Arc::clone(&self.wanted)) };
    }

    fn look(&mut self) {
        self.inside = self.wanted.is_empty() || self.open.values().any(|open| self.wanted.contains(&open.step));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NPU: Device = Device::Npu(0);

    /// Without ids, ends match from the inside out, thread by thread.
    #[test]
    fn ranges_without_ids_nest() {
        let mut ranges = Ranges::default();
        assert_eq!([ranges.start(1, None), ranges.start(1, None), ranges.start(2, None)], [1, 2, 3]);
        assert_eq!(
            [ranges.end(1, None, 0), ranges.end(2, None, 0), ranges.end(1, None, 0), ranges.end(1, None, 0)],
            [Some(2), Some(3), Some(1), None]
        );
    }

    /// Ranges of a domain do not end those of another, with ids or without.
    #[test]
    fn domains_are_apart() {
        let mut ranges = Ranges::default();
        assert_eq!([ranges.start(1, None), ranges.start(1, Some(0)), ranges.start(1, Some(7))], [1, 2, 3]);
        ranges.named(1, 50);
        assert_eq!(
            [ranges.end(1, Some(0), 50), ranges.end(1, None, 0), ranges.end(1, Some(7), 50), ranges.end(1, Some(0), 0)],
            [None, Some(1), Some(3), Some(2)]
        );
    }

    /// With ids, ends match across threads and in any order; those without are not disturbed.
    #[test]
    fn ranges_with_ids_cross() {
        let mut ranges = Ranges::default();
        ranges.start(1, None);
        ranges.start(1, None);
        ranges.named(1, 77);
        assert_eq!(
            [ranges.end(2, None, 78), ranges.end(2, None, 77), ranges.end(2, None, 77), ranges.end(1, None, 0)],
            [None, Some(2), None, Some(1)]
        );
    }

    /// A thread that never ends its ranges costs a bounded amount of memory.
    #[test]
    fn depth_is_bounded() {
        let mut ranges = Ranges::default();
        for _ in 0..10_000 {
            ranges.start(1, None);
        }
        assert_eq!(ranges.end(1, None, 0), Some(10_000));
        assert_eq!(std::iter::from_fn(|| ranges.end(1, None, 0)).count(), MAX_DEPTH - 1);
    }

    /// Between an end and the next start, the earlier step continues.
    #[test]
    fn step_lasts_until_the_next() {
        let mut steps = Steps::new(Arc::new([]));
        assert_eq!(steps.of_device(NPU), 0);
        assert_eq!(steps.start(10, NPU, vec![NPU]), 1);
        steps.end(10);
        assert_eq!((steps.of_device(NPU), steps.of_device(Device::Npu(1))), (1, 0));
        assert_eq!(steps.start(11, NPU, vec![NPU]), 2);
        assert_eq!(steps.of_device(NPU), 2);
    }

    /// A step of a thread without a device is a step of all devices, until one of theirs begins.
    #[test]
    fn step_without_device_is_everywhere() {
        let mut steps = Steps::new(Arc::new([]));
        steps.start(1, NPU, vec![]);
        steps.start(2, Device::None, vec![]);
        assert_eq!((steps.of_device(NPU), steps.of_device(Device::Cpu)), (2, 2));
        steps.start(3, NPU, vec![]);
        assert_eq!((steps.of_device(NPU), steps.of_device(Device::Cpu)), (3, 2));
    }

    /// The filter is open while a wanted step's own range is.
    #[test]
    fn wanted_steps() {
        let mut steps = Steps::new(Arc::new([2]));
        let mut seen = vec![steps.inside()];
        for range in 1..=3 {
            steps.start(range, NPU, vec![]);
            seen.push(steps.inside());
            steps.end(99);
            seen.push(steps.inside());
            steps.end(range);
            seen.push(steps.inside());
        }
        assert_eq!(seen, [false, false, false, false, true, true, false, false, false, false]);
    }
}
