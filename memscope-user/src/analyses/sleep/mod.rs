//! How much does a server hold while it sleeps? vLLM's sleep mode gives the physical memory behind its blocks back, and
//! takes it again when it wakes up.
//!
//! A sleep begins with the first driver block that the allocator's `sleep` frees, and ends with the first one that its
//! `wake_up` takes; so it needs Python stacks, and there is no finding without them.

mod finding;

pub use self::finding::Sleeps;

use super::{Analysis, Finding, concluded::Concluded, per_device::PerDevice};
use crate::hash::HashMap;
use crate::model::{Alloc, Confidence, Event, EventKind, Free, RunEnd, Stack, Stacks};
use crate::text::frame::Frame;

/// Files of vLLM's allocators for sleep mode: Ascend's, and the one that it follows.
const FILES: [&str; 2] = ["camem.py", "cumem.py"];
/// Most stacks in the cache; when full, it is emptied.
const MAX_KNOWN: usize = 1 << 16;

/// Follows the sleeps of each process and device.
#[derive(Debug, Default)]
pub struct SleepAnalysis {
    running: PerDevice<Device>,
    known: HashMap<Stack, Call>,
    concluded: Concluded<Sleeps>,
}

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Sleep,
    WakeUp,
    Other,
}

/// One process on one device.
#[derive(Debug, Default)]
struct Device {
    live_bytes: u64,
    is_asleep: bool,
    sleeps: u64,
    before_bytes: u64,
    first_low_bytes: u64,
    low_bytes: u64,
}

impl Analysis for SleepAnalysis {
    fn observe(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Alloc(Alloc { block, .. }) if block.pool.is_driver() => {
                let call = self.call(event.stacks);
                self.running.at(event.pid, block.device).takes(block.size_bytes, call);
            }
            EventKind::Free(Free { block, cause, .. }) if block.pool.is_driver() && cause.gave_back() => {
                let call = self.call(event.stacks);
                self.running.at(event.pid, block.device).gives(block.size_bytes, call);
            }
            EventKind::ProcessEnd => self.conclude(event.pid),
            _ => {}
        }
    }

    fn finish(&mut self, end: &RunEnd) -> Vec<Finding> {
        for pid in self.running.processes() {
            self.conclude(pid);
        }
        let confidence = Confidence::after(end);
        let finding = |sleeps| Finding::Sleeps(Sleeps { confidence, ..sleeps });
        self.concluded.take(|sleeps| (sleeps.pid, sleeps.device), finding)
    }
}

impl SleepAnalysis {
    /// The kind of an event's call.
    fn call(&mut self, stacks: Stacks) -> Call {
        let Some(stack) = stacks.mixed.or(stacks.python) else { return Call::Other };
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        *self.known.entry(stack).or_insert_with(|| of_stack(stack))
    }

    fn conclude(&mut self, pid: u32) {
        for (device, found) in self.running.take_process(pid) {
            if found.sleeps > 0 {
                self.concluded.add(Sleeps {
                    pid,
                    device,
                    sleeps: found.sleeps,
                    before_bytes: found.before_bytes,
                    first_low_bytes: found.first_low_bytes,
                    last_low_bytes: found.low_bytes,
                    confidence: Confidence::Certain,
                });
            }
        }
    }
}

fn of_stack(stack: Stack) -> Call {
    let frames = stack.frames();
    let of_allocator = frames
        .iter()
        .map(|text| Frame::of(text))
        .filter(|frame| frame.python && FILES.contains(&frame.file.rsplit('/').next().unwrap_or_default()));
    // Before Python 3.11 names have no class.
    let mut names = of_allocator.map(|frame| frame.name.rsplit('.').next().unwrap_or_default());
    names
        .find_map(|name| match name {
            "sleep" => Some(Call::Sleep),
            "wake_up" => Some(Call::WakeUp),
            _ => None,
        })
        .unwrap_or(Call::Other)
}

impl Device {
    fn takes(&mut self, size_bytes: u64, call: Call) {
        if call == Call::WakeUp {
            self.is_asleep = false;
        }
        self.live_bytes = self.live_bytes.saturating_add(size_bytes);
    }

    fn gives(&mut self, size_bytes: u64, call: Call) {
        if call == Call::Sleep && !self.is_asleep {
            self.is_asleep = true;
            self.sleeps += 1;
            (self.before_bytes, self.low_bytes) = (self.live_bytes, self.live_bytes);
        }
        self.live_bytes = self.live_bytes.saturating_sub(size_bytes);
        if self.is_asleep {
            self.low_bytes = self.low_bytes.min(self.live_bytes);
            if self.sleeps == 1 {
                self.first_low_bytes = self.low_bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyses::script::{Script, run};
    use crate::backend::ascend::pools;
    use crate::model::Device;

    const SLEEP: [&str; 2] =
        ["/site-packages/vllm_ascend/device_allocator/camem.py(200): CaMemAllocator.sleep", "serve.py(3): main"];
    const WAKE_UP: [&str; 1] = ["/site-packages/vllm_ascend/device_allocator/camem.py(240): wake_up"];

    /// Two sleeps of a server with 100 bytes of KV cache and 30 others: in the first 30 stay, 10 of which are given
    /// back meanwhile, in the second 25. Frees by others are no sleep.
    #[test]
    fn what_stays_in_each_sleep() {
        let mut script = Script::new(7, Device::Npu(0));
        script.stacks(&["serve.py(3): main"], &[]);
        script
            .alloc(pools::HAL, 0x1000, 20)
            .alloc(pools::HAL, 0x2000, 10)
            .alloc(pools::HAL, 0x3000, 9)
            .free(pools::HAL, 0x3000);
        script.alloc(pools::HAL, 0x10000, 60).alloc(pools::HAL, 0x20000, 40);
        script.stacks(&SLEEP, &[]).free(pools::HAL, 0x10000).free(pools::HAL, 0x20000);
        script.stacks(&["serve.py(9): empty_cache"], &[]).free(pools::HAL, 0x2000);
        script.stacks(&WAKE_UP, &[]).alloc(pools::HAL, 0x10000, 60).alloc(pools::HAL, 0x20000, 40);
        script.stacks(&["serve.py(3): main"], &[]).alloc(pools::HAL, 0x4000, 5);
        script.stacks(&SLEEP, &[]).free(pools::HAL, 0x10000).free(pools::HAL, 0x20000);
        let expected = Sleeps {
            pid: 7,
            device: Device::Npu(0),
            sleeps: 2,
            before_bytes: 125,
            first_low_bytes: 20,
            last_low_bytes: 25,
            confidence: Confidence::Certain,
        };
        assert_eq!(run(SleepAnalysis::default(), script.events(), &RunEnd::default()), [Finding::Sleeps(expected)]);
    }

    /// Without Python stacks sleeps are unknown, and there is no finding.
    #[test]
    fn without_stacks_there_is_no_finding() {
        let mut script = Script::new(7, Device::Npu(0));
        script.stacks(&[], &["libascendcl.so(sleep+0x1) [0x1]"]).alloc(pools::HAL, 0x1000, 20).free(pools::HAL, 0x1000);
        assert_eq!(run(SleepAnalysis::default(), script.events(), &RunEnd::default()), []);
    }
}
