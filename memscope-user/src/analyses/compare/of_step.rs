//! The operators and kernels of one step of a run.

use std::sync::{Arc, Mutex, PoisonError};

use super::{Names, Recorder, Sequences, Which};
use crate::analyses::inferred::InferredSteps;
use crate::analyses::{Analysis, Finding};
use crate::model::{Event, EventKind, RunEnd, StepsFrom};

/// Takes the sequences of a step out of a run's events: of marked steps, or, where no process marks any, of inferred ones.
#[derive(Debug)]
pub struct OfStep {
    step: u32,
    steps: InferredSteps,
    marked: bool,
    inferred_from: StepsFrom,
    of_marks: (Recorder, Arc<Mutex<Sequences>>),
    of_inferred: (Recorder, Arc<Mutex<Sequences>>),
    chosen: Arc<Mutex<Sequences>>,
}

impl OfStep {
    /// Records step `step` to `sequences`.
    #[must_use]
    pub fn new(step: u32, which: Which, names: &Names, sequences: Arc<Mutex<Sequences>>) -> Self {
        let recorder = || {
            let recorded = Arc::default();
            (Recorder::new(which, names.clone(), Arc::clone(&recorded)).only_within(), recorded)
        };
        Self {
            step,
            steps: InferredSteps::default(),
            marked: false,
            inferred_from: StepsFrom::default(),
            of_marks: recorder(),
            of_inferred: recorder(),
            chosen: sequences,
        }
    }
}

impl Analysis for OfStep {
    fn observe(&mut self, event: &Event) {
        match &event.kind {
            EventKind::StepStart { step } => {
                self.marked = true;
                self.of_marks.0.within(event.pid, event.device, *step == self.step);
            }
            EventKind::StepEnd { step } if *step == self.step => self.of_marks.0.within(event.pid, event.device, false),
            EventKind::Alloc(alloc) if !self.marked => self.infer(event, alloc.block.device),
            EventKind::Free(free) if !self.marked => self.infer(event, free.block.device),
            _ => {}
        }
        self.of_marks.0.observe(event);
        if !self.marked {
            self.of_inferred.0.observe(event);
        }
    }

    fn finish(&mut self, _: &RunEnd) -> Vec<Finding> {
        let (recorded, from) =
            if self.marked { (&self.of_marks.1, StepsFrom::Marks) } else { (&self.of_inferred.1, self.inferred_from) };
        let mut recorded = std::mem::take(&mut *recorded.lock().unwrap_or_else(PoisonError::into_inner));
        recorded.steps_from = from;
        *self.chosen.lock().unwrap_or_else(PoisonError::into_inner) = recorded;
        Vec::new()
    }
}

impl OfStep {
    fn infer(&mut self, event: &Event, device: crate::model::Device) {
        let Some(standing) = self.steps.observe(event) else { return };
        if standing.step > 0 {
            self.inferred_from = standing.from;
        }
        self.of_inferred.0.within(event.pid, device, standing.step == self.step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyses::script::{Script, run};
    use crate::backend::ascend::pools;
    use crate::model::Device;

    const NPU0: Device = Device::Npu(0);

    fn step_two(script: &Script) -> (Vec<i64>, StepsFrom) {
        let (names, sequences) = (Names::default(), Arc::default());
        let which = Which { op: false, kernel: true };
        run(OfStep::new(2, which, &names, Arc::clone(&sequences)), script.events(), &RunEnd::default());
        let sequences = Arc::into_inner(sequences).expect("not shared").into_inner().expect("no panic");
        (sequences.of(0).iter().map(|entry| entry.delta_bytes).collect(), sequences.steps_from)
    }

    const FORWARD: [&str; 2] = [
        "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py(1786): Module._call_impl",
        "/home/me/train.py(40): main",
    ];
    const STEP: [&str; 2] =
        ["/usr/lib/python3.11/site-packages/torch/optim/adam.py(242): Adam.step", "/home/me/train.py(40): main"];

    /// Each step launches one kernel more than the step before it, each behind an allocation.
    fn training(marked: bool) -> Script {
        let mut script = Script::new(1, NPU0);
        for step in 1..=4_u32 {
            if marked {
                script.step_start(step);
            }
            for kernel in 0..u64::from(step) {
                let addr = u64::from(step) << 20 | kernel << 10;
                script.stacks(&FORWARD, &[]).alloc(pools::PTA, addr, 100 * u64::from(step) + kernel).launch();
            }
            let state = u64::from(step) << 30;
            script.stacks(&STEP, &[]).alloc(pools::PTA, state, 1).free(pools::PTA, state);
            if marked {
                script.step_end(step);
            }
        }
        script
    }

    /// The two kernels of the second step, by marks and by the optimizer. Bytes are those since the thread's launch before: 200 and 201.
    #[test]
    fn kernels_of_a_step() {
        assert_eq!(step_two(&training(true)), (vec![200, 201], StepsFrom::Marks));
        assert_eq!(step_two(&training(false)), (vec![200, 201], StepsFrom::Optimizer));
    }
}
