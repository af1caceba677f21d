//! Which blocks allocated between two marks are still live at a third?
//!
//! Contract §8.7, for every pool of device memory, the driver's included: A, B and C are the marks number `start_index`
//! (from 0), + 1 and + 2 with the given text. A block allocated from A to B and not freed until C is a leak. Put a mark
//! at the same point of each iteration: then memory that outlives its iteration has one more to end, until C.
//!
//! Each process and device has its own marks; one without a device counts for all devices of its process. Differences
//! to the reference, which is wrong there: all layers are judged, not the driver's memory alone; a free ends the block
//! of its own process, not every one with that address; and a device with too few marks is a finding, too.

mod finding;
mod text;

pub use self::finding::{MarkLeak, MarkLeaks};

use std::collections::BTreeMap;

use super::{Analysis, Finding, concluded::Concluded, per_device::PerDevice};
use crate::hash::HashMap;
use crate::model::{Block, Confidence, Device, Event, EventKind, Figures, Mark, RunEnd};

/// Number of marks needed.
const MARKS: u64 = 3;

/// Finds the blocks that outlive the interval after their own.
#[derive(Debug)]
pub struct MarkLeaksAnalysis {
    text: String,
    start_index: u64,
    running: PerDevice<Marked>,
    /// Marks without a device, by process: ids of their events.
    everywhere: BTreeMap<u32, Vec<u64>>,
    concluded: Concluded<MarkLeaks>,
}

/// Marks and candidates of one process on one device.
#[derive(Debug, Default)]
struct Marked {
    /// Marks so far, those without a device included.
    marks: u64,
    /// Ids of the marks A, B and C.
    window: Vec<u64>,
    /// Blocks allocated in the window and not freed, by allocation id.
    live: HashMap<u64, MarkLeak>,
    has_blocks: bool,
}

impl MarkLeaksAnalysis {
    /// Looks for marks with this text, from number `start_index` on, counted from 0.
    #[must_use]
    pub fn new(text: String, start_index: u64) -> Self {
        let (running, everywhere) = (PerDevice::default(), BTreeMap::new());
        Self { text, start_index, running, everywhere, concluded: Concluded::default() }
    }

    fn mark(&mut self, event: &Event) {
        let start = self.start_index;
        if event.device == Device::None {
            self.everywhere.entry(event.pid).or_default().push(event.id);
            for (_, marked) in self.running.of_process(event.pid) {
                marked.mark(event.id, start);
            }
        } else {
            self.at(event.pid, event.device).mark(event.id, start);
        }
    }

    /// A device that appears later has the marks of the whole process behind it.
    fn at(&mut self, pid: u32, device: Device) -> &mut Marked {
        let start = self.start_index;
        let is_new = !self.running.has(pid, device);
        let marked = self.running.at(pid, device);
        if is_new {
            self.everywhere.get(&pid).into_iter().flatten().for_each(|&id| marked.mark(id, start));
        }
        marked
    }

    fn conclude(&mut self, pid: u32) {
        self.everywhere.remove(&pid);
        for (device, marked) in self.running.take_process(pid) {
            let Marked { marks, window, live, has_blocks } = marked;
            if !has_blocks {
                continue;
            }
            let judged = window.len() as u64 == MARKS;
            let mut leaks: Vec<MarkLeak> = if judged { live.into_values().collect() } else { Vec::new() };
            leaks.sort_unstable_by_key(|leak| leak.event_id);
            let (text, start_index, confidence) = (self.text.clone(), self.start_index, Confidence::Certain);
            self.concluded.add(MarkLeaks { pid, device, text, start_index, marks, judged, leaks, confidence });
        }
    }
}

impl Analysis for MarkLeaksAnalysis {
    fn observe(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Mark(Mark::Point { text: Some(text) }) if **text == *self.text => self.mark(event),
            EventKind::Alloc(alloc) if !alloc.block.pool.is_host() && !alloc.block.found => {
                self.at(event.pid, alloc.block.device).alloc(&alloc.block, alloc.restored);
            }
            EventKind::Free(free) if !free.block.pool.is_host() && free.cause.gave_back() => {
                self.at(event.pid, free.block.device).free(&free.block);
            }
            EventKind::ProcessEnd => self.conclude(event.pid),
            _ => {}
        }
    }

    fn finish(&mut self, end: &RunEnd) -> Vec<Finding> {
        for pid in self.running.processes() {
            self.conclude(pid);
        }
        let confidence = Confidence::of(end, &[Figures::Memory, Figures::Marks]);
        let finding = |leaks| Finding::MarkLeaks(MarkLeaks { confidence, ..leaks });
        self.concluded.take(|leaks| (leaks.pid, leaks.device), finding)
    }
}

impl Marked {
    fn mark(&mut self, id: u64, start: u64) {
        if (start..start.saturating_add(MARKS)).contains(&self.marks) {
            self.window.push(id);
        }
        self.marks += 1;
    }

    fn alloc(&mut self, block: &Block, restored: bool) {
        self.has_blocks = true;
        let inside = match *self.window {
            // A restored block is one of an earlier event.
            [a] => block.alloc_id > a,
            [a, b] => restored && (a..b).contains(&block.alloc_id),
            _ => false,
        };
        if inside {
            let Block { pool, addr, size_bytes, allocation_id, alloc_id, stacks, .. } = *block;
            let (event_id, freed_later) = (alloc_id, false);
            let leak = MarkLeak { pool, addr, size_bytes, allocation_id, event_id, freed_later, stacks };
            self.live.insert(allocation_id, leak);
        }
    }

    fn free(&mut self, block: &Block) {
        if self.window.len() as u64 == MARKS {
            if let Some(leak) = self.live.get_mut(&block.allocation_id) {
                leak.freed_later = true;
            }
        } else {
            self.live.remove(&block.allocation_id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::analyses::script::{Script, run};
    use crate::backend::ascend::pools;

    const NPU0: Device = Device::Npu(0);

    fn judge(script: &Script, start_index: u64) -> Vec<MarkLeaks> {
        run(MarkLeaksAnalysis::new("iter".to_owned(), start_index), script.events(), &RunEnd::default())
            .into_iter()
            .map(|finding| match finding {
                Finding::MarkLeaks(leaks) => leaks,
                other => panic!("not leaks by marks: {other:?}"),
            })
            .collect()
    }

    /// Device, marks, whether judged; addresses and whether freed later.
    type Brief = (Device, u64, bool, Vec<(u64, bool)>);

    fn brief(found: &[MarkLeaks]) -> Vec<Brief> {
        let leaks = |found: &MarkLeaks| found.leaks.iter().map(|leak| (leak.addr, leak.freed_later)).collect();
        found.iter().map(|found| (found.device, found.marks, found.judged, leaks(found))).collect()
    }

    /// Blocks around all three marks; each address encodes when the block was allocated and freed.
    fn three_marks() -> Script {
        let mut script = Script::new(1, NPU0);
        script.alloc(pools::HAL, 0x1000, 64).mark("iter"); // before A
        script.alloc(pools::HAL, 0x2000, 64).alloc(pools::PTA, 0x3000, 64).alloc(pools::ATB, 0x4000, 64);
        script.alloc(pools::HOST, 0x5000, 64).alloc(pools::HAL, 0x6000, 64).mark("other").free(pools::HAL, 0x6000);
        script.mark("iter").alloc(pools::HAL, 0x7000, 64).free(pools::ATB, 0x4000); // between B and C
        script.mark("iter").free(pools::PTA, 0x3000).alloc(pools::HAL, 0x8000, 64).mark("iter");
        script
    }

    /// Allocated between A and B, not freed until C: on every layer. A later free is listed, and no excuse.
    #[test]
    fn all_layers_are_judged() {
        let found = judge(&three_marks(), 0);
        assert_eq!(brief(&found), [(NPU0, 4, true, vec![(0x2000, false), (0x3000, true)])]);
        let found = judge(&three_marks(), 1);
        assert_eq!(brief(&found), [(NPU0, 4, true, vec![(0x7000, false)])]);
    }

    /// Too few marks are a finding.
    #[test]
    fn too_few_marks_are_a_finding() {
        assert_eq!(brief(&judge(&three_marks(), 2)), [(NPU0, 4, false, vec![])]);
        assert_eq!(brief(&judge(&three_marks(), u64::MAX)), [(NPU0, 4, false, vec![])]);
    }

    /// Fault of the reference: a free at the same address of another process took the block away.
    #[test]
    fn processes_and_devices_are_apart() {
        let mut script = Script::new(1, NPU0);
        script.alloc(pools::HAL, 0x9000, 64).mark("iter").alloc(pools::HAL, 0x1000, 64);
        script.on(2, NPU0).alloc(pools::HAL, 0x1000, 64).free(pools::HAL, 0x1000);
        script.on(1, Device::Npu(1)).alloc(pools::HAL, 0x1000, 64).free(pools::HAL, 0x1000);
        script.on(1, NPU0).mark("iter").mark("iter");
        let found = judge(&script, 0);
        assert_eq!(
            brief(&found),
            [(NPU0, 3, true, vec![(0x1000, false)]), (Device::Npu(1), 0, false, vec![]), (NPU0, 0, false, vec![]),]
        );
    }

    /// A mark of a thread without a device counts for all devices, later ones included.
    #[test]
    fn marks_without_a_device_count_everywhere() {
        let mut script = Script::new(1, Device::None);
        script.mark("iter").on(1, Device::Npu(1)).alloc(pools::HAL, 0x1000, 64).on(1, Device::None);
        script.mark("iter").mark("iter");
        assert_eq!(brief(&judge(&script, 0)), [(Device::Npu(1), 3, true, vec![(0x1000, false)])]);
    }

    /// A free that failed after all did not happen.
    #[test]
    fn restored_blocks_leak_again() {
        let mut script = Script::new(1, NPU0);
        script.mark("iter").alloc(pools::HAL, 0x1000, 64).mark("iter").free(pools::HAL, 0x1000);
        script.restore(pools::HAL, 0x1000).mark("iter");
        assert_eq!(brief(&judge(&script, 0)), [(NPU0, 3, true, vec![(0x1000, false)])]);
    }

    impl Script {
        /// A mark.
        fn mark(&mut self, text: &str) -> &mut Self {
            self.event(EventKind::Mark(Mark::Point { text: Some(Arc::from(text)) }))
        }
    }
}
