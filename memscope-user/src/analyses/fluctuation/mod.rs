//! How much does the use of each pool vary inside a step?
//!
//! Contract §8.3, for every pool of device memory, the driver's included. From step 2 on, the lowest and highest live
//! bytes after each allocation and free are kept; at the end of a step their ratio is compared with the smallest and
//! the largest so far. A low ratio means strong variation inside a step; smallest and largest far apart suggest that
//! memory changes from step to step.
//!
//! As in the reference, the time between the end of one step and the start of the next counts for the next one.

mod finding;
mod text;

pub use self::finding::{Fluctuation, RatioRecord};

use std::collections::BTreeMap;

use super::{Analysis, Finding, concluded::Concluded, per_device::PerDevice};
use crate::model::{Event, EventKind, FreeCause, Pool, RunEnd, StepsFrom};

/// Step 1 is not judged: it holds the warm-up.
const FIRST_JUDGED_STEP: u32 = 2;

/// Finds the steps in which the use of a pool varies least and most.
#[derive(Debug, Default)]
pub struct FluctuationAnalysis {
    running: PerDevice<DeviceUse>,
    concluded: Concluded<Fluctuation>,
}

/// Bytes of one process on one device.
#[derive(Debug, Default)]
struct DeviceUse {
    /// Step of the last boundary; 0 before the first.
    step: u32,
    pools: BTreeMap<Pool, PoolUse>,
}

/// Use of one pool: of the step under way, and the records.
#[derive(Debug, Default)]
struct PoolUse {
    /// 0 before the first use.
    step_max_bytes: u64,
    step_min_bytes: u64,
    min_gap: Option<RatioRecord>,
    max_gap: Option<RatioRecord>,
}

impl Analysis for FluctuationAnalysis {
    fn observe(&mut self, event: &Event) {
        match &event.kind {
            // A restored block has no figure of the pool, and one that is found was in use before.
            EventKind::Alloc(alloc) if !alloc.restored && !alloc.block.found => {
                self.running.at(event.pid, alloc.block.device).use_pool(alloc.block.pool, alloc.used_bytes);
            }
            EventKind::Free(free) if free.cause == FreeCause::Program => {
                self.running.at(event.pid, free.block.device).use_pool(free.block.pool, free.used_bytes);
            }
            EventKind::StepStart { step } => self.running.at(event.pid, event.device).step = *step,
            EventKind::StepEnd { step } => self.running.at(event.pid, event.device).end_step(*step),
            EventKind::ProcessEnd => self.conclude(event.pid),
            _ => {}
        }
    }

    fn finish(&mut self, _: &RunEnd) -> Vec<Finding> {
        for pid in self.running.processes() {
            self.conclude(pid);
        }
        self.concluded.take(|found| (found.pid, found.device, found.pool), Finding::Fluctuation)
    }
}

impl FluctuationAnalysis {
    fn conclude(&mut self, pid: u32) {
        for (device, state) in self.running.take_process(pid) {
            self.concluded.extend(state.pools.into_iter().map(|(pool, PoolUse { min_gap, max_gap, .. })| {
                Fluctuation { pid, device, pool, min_gap, max_gap, steps_from: StepsFrom::Marks }
            }));
        }
    }
}

impl DeviceUse {
    fn use_pool(&mut self, pool: Pool, used_bytes: u64) {
        if pool.is_host() {
            return;
        }
        let state = self.pools.entry(pool).or_default();
        if self.step >= FIRST_JUDGED_STEP {
            state.observe(used_bytes);
        }
    }

    fn end_step(&mut self, step: u32) {
        self.step = step;
        if step >= FIRST_JUDGED_STEP {
            self.pools.values_mut().for_each(|pool| pool.judge(step));
        }
    }
}

impl PoolUse {
    fn observe(&mut self, used_bytes: u64) {
        if self.step_max_bytes == 0 {
            (self.step_max_bytes, self.step_min_bytes) = (used_bytes, used_bytes);
        } else {
            self.step_max_bytes = self.step_max_bytes.max(used_bytes);
            self.step_min_bytes = self.step_min_bytes.min(used_bytes);
        }
    }

    fn judge(&mut self, step: u32) {
        if self.step_max_bytes == 0 {
            return;
        }
        let ratio = self.step_min_bytes as f64 / self.step_max_bytes as f64;
        let record = RatioRecord { ratio, min_used_bytes: self.step_min_bytes, step };
        if self.min_gap.is_none_or(|lowest| ratio < lowest.ratio) {
            self.min_gap = Some(record);
        }
        if self.max_gap.is_none_or(|highest| ratio > highest.ratio) {
            self.max_gap = Some(record);
        }
        (self.step_max_bytes, self.step_min_bytes) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::ascend::pools;
    use crate::{
        analyses::script::{Script, run},
        model::{Device, FreeCause},
    };

    const PID: u32 = 7;
    const NPU0: Device = Device::Npu(0);
    const NPU1: Device = Device::Npu(1);

    fn script() -> Script {
        Script::new(PID, NPU0)
    }

    fn judge(script: &Script) -> Vec<Fluctuation> {
        run(FluctuationAnalysis::default(), script.events(), &RunEnd::default())
            .into_iter()
            .map(|finding| match finding {
                Finding::Fluctuation(fluctuation) => fluctuation,
                other => panic!("not a fluctuation: {other:?}"),
            })
            .collect()
    }

    /// The records of a run with one process, device and pool: smallest, then largest ratio.
    fn judge_one(script: &Script) -> [Option<RatioRecord>; 2] {
        let found = judge(script);
        assert_eq!(found.len(), 1, "{found:#?}");
        [found[0].min_gap, found[0].max_gap]
    }

    fn record(min_used_bytes: u64, max_used_bytes: u64, step: u32) -> RatioRecord {
        RatioRecord { ratio: min_used_bytes as f64 / max_used_bytes as f64, min_used_bytes, step }
    }

    /// The golden run: 129 of 130 MiB in step 2, 130 of 131 in step 3, 131 of 132 in step 4.
    #[test]
    fn records_are_those_of_the_golden_run() {
        let mib = 1 << 20;
        let expected = [record(129 * mib, 130 * mib, 2), record(131 * mib, 132 * mib, 4)].map(Some);
        assert_eq!(judge_one(&Script::golden_leaky()), expected);
    }

    /// Step 1, however uneven, is not judged.
    #[test]
    fn first_step_is_ignored() {
        let mut script = script();
        script.alloc(pools::PTA, 0x1000, 10).step_start(1).alloc(pools::PTA, 0x2000, 90).step_end(1);
        assert_eq!(judge_one(&script), [None, None]);
        script.step_start(2).free(pools::PTA, 0x2000).alloc(pools::PTA, 0x2000, 10).step_end(2);
        assert_eq!(judge_one(&script), [Some(record(10, 20, 2)), Some(record(10, 20, 2))]);
    }

    /// Equal ratios keep the earlier step: replacement is strict.
    #[test]
    fn first_of_equal_ratios_is_kept() {
        let mut script = script();
        script.alloc(pools::PTA, 0x1000, 10).step(1);
        for step in 2..5 {
            script.step_start(step).alloc(pools::PTA, 0x2000, 10).free(pools::PTA, 0x2000).step_end(step);
        }
        assert_eq!(judge_one(&script), [Some(record(10, 20, 2)), Some(record(10, 20, 2))]);
    }

    /// A step without events, or with nothing used, has no ratio.
    #[test]
    fn step_without_use_is_not_judged() {
        let mut script = script();
        script.step(1).step_start(2).alloc(pools::PTA, 0x1000, 0).step_end(2).step(3);
        assert_eq!(judge_one(&script), [None, None]);
    }

    /// Use that starts at zero is unset: the minimum counts from the first use on.
    #[test]
    fn zero_use_is_unset() {
        let mut script = script();
        script.alloc(pools::PTA, 0x1000, 10).step(1).step_start(2).free(pools::PTA, 0x1000);
        script.alloc(pools::PTA, 0x1000, 10).alloc(pools::PTA, 0x2000, 10).step_end(2);
        assert_eq!(judge_one(&script), [Some(record(10, 20, 2)), Some(record(10, 20, 2))]);
        // After the first use, a fall to zero counts.
        script.step_start(3).free(pools::PTA, 0x1000).free(pools::PTA, 0x2000).step_end(3);
        assert_eq!(judge_one(&script)[0], Some(record(0, 10, 3)));
    }

    /// What happens between the end of a step and the next start counts for the next, as in the reference.
    #[test]
    fn time_between_steps_counts_for_the_next() {
        let mut script = script();
        script.alloc(pools::PTA, 0x1000, 10).step(1).step(2).alloc(pools::PTA, 0x2000, 10);
        script.step_start(3).alloc(pools::PTA, 0x3000, 20).step_end(3);
        assert_eq!(judge_one(&script), [Some(record(20, 40, 3)), Some(record(20, 40, 3))]);
    }

    /// Driver memory is judged beside the pools, host memory is not.
    #[test]
    fn driver_memory_is_judged_and_host_memory_is_not() {
        let mut script = script();
        script.step(1).step_start(2);
        script.alloc(pools::PTA, 0x1000, 10).alloc(pools::HAL, 0x1000, 30).alloc(pools::HOST, 0x1000, 50);
        script.alloc(pools::HAL, 0x2000, 10).step_end(2);
        let found: Vec<_> = judge(&script).iter().map(|found| (found.pool, found.min_gap)).collect();
        assert_eq!(found, [(pools::HAL, Some(record(30, 40, 2))), (pools::PTA, Some(record(10, 10, 2)))]);
    }

    /// A step judges its own process and device only.
    #[test]
    fn processes_and_devices_are_independent() {
        let mut script = script();
        for (pid, device) in [(PID, NPU1), (PID, NPU0), (PID - 1, NPU0)] {
            script.on(pid, device).step(1).step_start(2).alloc(pools::PTA, 0x1000, 10);
        }
        script.on(PID, NPU1).step_end(2);
        let found: Vec<_> =
            judge(&script).iter().map(|found| (found.pid, found.device, found.min_gap.is_some())).collect();
        assert_eq!(found, [(PID - 1, NPU0, false), (PID, NPU0, false), (PID, NPU1, true)]);
    }

    /// Blocks that end with their process after the last step change no record.
    #[test]
    fn end_of_the_process_is_no_variation() {
        let mut script = script();
        script.step(1).step_start(2).alloc(pools::PTA, 0x1000, 10).step_end(2);
        script.end(FreeCause::ProcessEnd, pools::PTA, 0x1000).process_end();
        assert_eq!(judge_one(&script), [Some(record(10, 10, 2)), Some(record(10, 10, 2))]);
    }
}
