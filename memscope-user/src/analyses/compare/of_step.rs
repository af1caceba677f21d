//! The operators and kernels of one step of a run.

use std::sync::mpsc::{self, Receiver, Sender};

use super::sequence::Recording;
use super::{Names, Recorded, Which};
use crate::analyses::Observer;
use crate::analyses::inferred::InferredSteps;
use crate::model::{Event, EventKind, RunEnd, StepsFrom};

/// Takes the sequences of a step out of a run's events: of marked steps, or, where no process marks any, of inferred ones.
#[derive(Debug)]
pub struct OfStep {
    step: u32,
    steps: InferredSteps,
    marked: bool,
    inferred_from: StepsFrom,
    of_marks: Recording,
    of_inferred: Recording,
    out: Sender<Recorded>,
}

impl OfStep {
    /// Records step `step` with these names; and the receiver.
    #[must_use]
    pub fn new(step: u32, which: Which, names: Names) -> (Self, Receiver<Recorded>) {
        let (out, recorded) = mpsc::channel();
        let of_step = Self {
            step,
            steps: InferredSteps::default(),
            marked: false,
            inferred_from: StepsFrom::default(),
            of_marks: Recording::new(which, names.clone()).only_within(),
            of_inferred: Recording::new(which, names).only_within(),
            out,
        };
        (of_step, recorded)
    }
}

impl Observer for OfStep {
    fn observe(&mut self, event: &Event) {
        match &event.kind {
            EventKind::StepStart { step } => {
                self.marked = true;
                self.of_marks.within(event.pid, event.device, *step == self.step);
            }
            EventKind::StepEnd { step } if *step == self.step => self.of_marks.within(event.pid, event.device, false),
            EventKind::Alloc(alloc) if !self.marked => self.infer(event, alloc.block.device),
            EventKind::Free(free) if !self.marked => self.infer(event, free.block.device),
            _ => {}
        }
        self.of_marks.observe(event);
        if !self.marked {
            self.of_inferred.observe(event);
        }
    }

    fn finish(&mut self, _: &RunEnd) {
        let (recording, from) = if self.marked {
            (&mut self.of_marks, StepsFrom::Marks)
        } else {
            (&mut self.of_inferred, self.inferred_from)
        };
        let mut recorded = recording.take();
        recorded.sequences.steps_from = from;
        // A receiver that is gone does not want it.
        let _ = self.out.send(recorded);
    }
}

impl OfStep {
    fn infer(&mut self, event: &Event, device: crate::model::Device) {
        let Some(standing) = self.steps.observe(event) else { return };
        if standing.step > 0 {
            self.inferred_from = standing.from;
        }
        self.of_inferred.within(event.pid, device, standing.step == self.step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyses::script::{Script, observe};
    use crate::backend::ascend::pools;
    use crate::model::Device;

    const NPU0: Device = Device::Npu(0);

    fn step_two(script: &Script) -> (Vec<i64>, StepsFrom) {
        let which = Which { op: false, kernel: true };
        let (of_step, recorded) = OfStep::new(2, which, Names::default());
        observe(of_step, script.events(), &RunEnd::default());
        let sequences = recorded.recv().expect("a recording").sequences;
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
