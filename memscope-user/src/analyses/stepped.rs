//! Analyses of steps, marked or inferred.
//!
//! The analyses inside of [`Stepped`] see inferred steps (`inferred`) as if they were marked, from the end of the first
//! one on. If a process marks a step later, its inferred ones are dropped.

use std::collections::BTreeMap;

use super::{Analysis, Finding, inferred::InferredSteps};
use crate::model::{Alloc, Block, Device, Event, EventKind, Free, RunEnd, StepsFrom};

/// An analysis of steps, which are marked or inferred.
pub struct Stepped {
    of_marks: Box<dyn Analysis>,
    of_inferred: Box<dyn Analysis>,
    steps: InferredSteps,
    /// Where steps were inferred, and from what.
    inferred: BTreeMap<(u32, Device), StepsFrom>,
}

impl Stepped {
    /// Of two analyses of one kind.
    #[must_use]
    pub fn new<A: Analysis + Default + 'static>() -> Self {
        Self {
            of_marks: Box::new(A::default()),
            of_inferred: Box::new(A::default()),
            steps: InferredSteps::default(),
            inferred: BTreeMap::new(),
        }
    }

    /// Takes an event of a block, `number`ed by its step.
    fn work(&mut self, event: &Event, device: Device, number: impl Fn(u32) -> EventKind) {
        let Some(standing) = self.steps.observe(event) else { return };
        if let Some(step) = standing.ended {
            self.inferred.insert((event.pid, device), standing.from);
            for kind in [EventKind::StepEnd { step }, EventKind::StepStart { step: step + 1 }] {
                self.of_inferred.observe(&Event { device, kind, ..event.clone() });
            }
        }
        if standing.step > 0 {
            let kind = number(standing.step);
            self.of_inferred.observe(&Event { kind, ..event.clone() });
        }
    }

    /// A process marks its steps.
    fn mark(&mut self, event: &Event) {
        if self.steps.mark(event.pid) {
            let had = self.steps.forget(event.pid);
            self.leave(event, had);
            self.inferred.retain(|(pid, _), _| *pid != event.pid);
        }
    }

    /// Nothing more is inferred of a process.
    fn leave(&mut self, event: &Event, had_steps: bool) {
        if had_steps {
            self.of_inferred.observe(&Event { kind: EventKind::ProcessEnd, ..event.clone() });
        }
    }

    /// For each place the findings by marks, or by inferred steps where there are no marks.
    fn chosen(&self, of_marks: Vec<Finding>, of_inferred: Vec<Finding>) -> Vec<Finding> {
        let from = |finding: &Finding| self.inferred.get(&place(finding)?).copied();
        let mut found: Vec<Finding> = of_marks.into_iter().filter(|finding| from(finding).is_none()).collect();
        found.extend(of_inferred.into_iter().filter_map(|mut finding| {
            finding.set_steps_from(from(&finding)?);
            Some(finding)
        }));
        // Stable: pools stay in their order. Findings of no process come last.
        found.sort_by_key(|finding| {
            place(finding).map_or((true, 0, Device::None), |(pid, device)| (false, pid, device))
        });
        found
    }
}

/// Process and device of a finding.
fn place(finding: &Finding) -> Option<(u32, Device)> {
    let subject = finding.subject()?;
    Some((subject.pid?, subject.device))
}

impl Analysis for Stepped {
    fn observe(&mut self, event: &Event) {
        self.of_marks.observe(event);
        match &event.kind {
            EventKind::StepStart { .. } | EventKind::StepEnd { .. } => self.mark(event),
            EventKind::ProcessEnd => {
                let had = self.steps.end(event.pid);
                self.leave(event, had);
            }
            EventKind::Alloc(alloc) => {
                let block = |step| Block { step, ..alloc.block };
                let kind = |step| EventKind::Alloc(Alloc { block: block(step), ..*alloc });
                self.work(event, alloc.block.device, kind);
            }
            EventKind::Free(free) => {
                // Blocks have numbers: after the first step, the step of a block does not matter.
                let block = |step| Block { step, ..free.block };
                let kind = |step| EventKind::Free(Free { block: block(step), ..*free });
                self.work(event, free.block.device, kind);
            }
            _ => {}
        }
    }

    fn finish(&mut self, end: &RunEnd) -> Vec<Finding> {
        let (of_marks, of_inferred) = (self.of_marks.finish(end), self.of_inferred.finish(end));
        self.chosen(of_marks, of_inferred)
    }

    fn now(&self) -> Vec<Finding> {
        self.chosen(self.of_marks.now(), self.of_inferred.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyses::step_leaks::{StepLeaks, StepVerdict};
    use crate::analyses::{
        FluctuationAnalysis, StepLeaksAnalysis,
        script::{Script, run},
    };
    use crate::backend::ascend::pools;

    const NPU0: Device = Device::Npu(0);
    const TRAIN: &str = "/home/me/train.py(40): main";
    const FORWARD: [&str; 2] =
        ["/usr/lib/python3.11/site-packages/torch/nn/modules/module.py(1786): Module._call_impl", TRAIN];
    const BACKWARD: [&str; 2] = ["/usr/lib/python3.11/site-packages/torch/_tensor.py(625): Tensor.backward", TRAIN];
    const STEP: [&str; 2] = ["/usr/lib/python3.11/site-packages/torch/optim/adam.py(242): Adam.step", TRAIN];

    /// Iterations of training; each keeps its loss. `optimizer`: it allocates a temporary block. `marked`: the first
    /// iteration with marks.
    fn training(iterations: u64, optimizer: bool, marked: Option<u64>) -> Script {
        let mut script = Script::new(7, NPU0);
        script.stacks(&[TRAIN], &[]).alloc(pools::PTA, 0x1000, 1 << 20);
        for number in 0..iterations {
            let mark = marked.filter(|first| number >= *first).map(|first| (number - first + 1) as u32);
            if let Some(step) = mark {
                script.step_start(step);
            }
            script.stacks(&FORWARD, &[]).alloc(pools::PTA, 0x10_0000, 4096);
            script.stacks(&[TRAIN], &[]).alloc(pools::PTA, 0x20_0000 + number * 0x1000, 512);
            script.stacks(&BACKWARD, &[]).alloc(pools::PTA, 0x11_0000, 64).free(pools::PTA, 0x10_0000);
            if optimizer {
                script.stacks(&STEP, &[]).alloc(pools::PTA, 0x12_0000, 128).free(pools::PTA, 0x12_0000);
            }
            script.stacks(&FORWARD, &[]).free(pools::PTA, 0x11_0000);
            if let Some(step) = mark {
                script.step_end(step);
            }
        }
        script
    }

    fn leaks(script: &Script) -> Option<StepLeaks> {
        let mut found = run(Stepped::new::<StepLeaksAnalysis>(), script.events(), &RunEnd::default());
        assert!(found.len() <= 1, "{found:#?}");
        found.pop().map(|finding| match finding {
            Finding::StepLeaks(leaks) => leaks,
            other => panic!("not step leaks: {other:?}"),
        })
    }

    /// Twelve iterations end twelve steps of the optimizer; of the second step to the eleventh a loss stays past a
    /// later step, and one is of the last step that ended. Without an optimizer the fourth backward pass ends the first
    /// step, so nine end.
    #[test]
    fn steps_are_those_of_the_optimizer_or_of_backward_passes() {
        for (optimizer, from, ended) in [(true, StepsFrom::Optimizer, 12), (false, StepsFrom::Backward, 9)] {
            let found = leaks(&training(12, optimizer, None)).expect("steps");
            assert_eq!((found.steps_ended, found.steps_from), (ended, from));
            let [place] = &found.places[..] else { panic!("{:#?}", found.places) };
            assert_eq!(
                (place.verdict, place.blocks, place.size_bytes),
                (StepVerdict::Leak, u64::from(ended) - 2, 512 * (u64::from(ended) - 2))
            );
            assert_eq!(place.step_range, [2, ended - 1]);
            assert_eq!(found.unjudged.len(), 1);
        }
    }

    /// With marks, from the first iteration or from the sixth on, only the marks count.
    #[test]
    fn marks_come_first() {
        for first in [0, 5] {
            let script = training(12, true, Some(first));
            let found = leaks(&script).expect("steps");
            let alone = run(StepLeaksAnalysis::default(), script.events(), &RunEnd::default());
            assert_eq!(alone, [Finding::StepLeaks(found.clone())]);
            assert_eq!((found.steps_ended, found.steps_from), (12 - first as u32, StepsFrom::Marks));
        }
    }

    /// Another process or device has its own steps; a program without phases, or without stacks, has none.
    #[test]
    fn others_have_no_steps() {
        let mut script = training(6, true, None);
        script.on(8, NPU0);
        for number in 0..50 {
            script.stacks(&FORWARD, &[]).alloc(pools::PTA, 0x90_0000 + number * 0x1000, 512);
            script.stacks(&[], &[]).alloc(pools::PTA, 0x190_0000 + number * 0x1000, 512);
        }
        let found = leaks(&script).expect("steps");
        assert_eq!((found.pid, found.steps_ended), (7, 6));
    }

    /// The pool holds 1 MiB and the losses; a step adds 4096, and 64 bytes, and gives them back. The second step has two losses less than the
    /// fourth.
    #[test]
    fn use_varies_within_inferred_steps() {
        let script = training(5, true, None);
        let found = run(Stepped::new::<FluctuationAnalysis>(), script.events(), &RunEnd::default());
        let [Finding::Fluctuation(gap)] = &found[..] else { panic!("{found:#?}") };
        assert_eq!((gap.pid, gap.pool, gap.steps_from), (7, pools::PTA, StepsFrom::Optimizer));
        let (lowest, highest) = (gap.min_gap.expect("steps"), gap.max_gap.expect("steps"));
        let base = (1_u64 << 20) + 512;
        // Least behind the free of the last step's gradient; most with activation, loss and gradient.
        assert_eq!((lowest.step, lowest.min_used_bytes), (2, base));
        assert!((lowest.ratio - base as f64 / (base + 512 + 4096 + 64) as f64).abs() < 1e-12, "{lowest:?}");
        assert!(highest.ratio > lowest.ratio && highest.step > lowest.step);
    }
}
