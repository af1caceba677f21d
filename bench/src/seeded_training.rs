//! Seeded training programs: what they keep from step to step, how their steps show, how they are traced, how they end.

use std::collections::VecDeque;

use memscope::backend::ascend::pools;
use memscope::model::{Stack, StackEnd, Stacks};

use crate::heap::Heap;
use crate::program::{Ending, Program, Slot};
use crate::random::Random;

/// How the steps of a program show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Steps {
    /// By marks.
    Marked,
    /// By the frames of an optimizer, which allocates once in each.
    Optimizer,
    /// Not at all.
    None,
}

impl Steps {
    pub(crate) const ALL: [Self; 3] = [Self::Marked, Self::Optimizer, Self::None];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Marked => "steps marked",
            Self::Optimizer => "steps by optimizer",
            Self::None => "no steps",
        }
    }
}

/// What a program keeps besides weights, optimizer state and the last step's gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeps {
    /// The loss of each step, in a list.
    Losses,
    /// Outputs of each step, in a list.
    Outputs,
    /// An output of every fifth step.
    EveryFifth,
    /// The last twenty losses.
    LastLosses,
    /// Means of the weights, made in the third step and kept.
    Means,
    Nothing,
}

impl Keeps {
    const ALL: [Self; 6] =
        [Self::Losses, Self::Outputs, Self::EveryFifth, Self::LastLosses, Self::Means, Self::Nothing];
}

/// One of the programs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lesson {
    pub(crate) steps: Steps,
    /// The trace attaches to it while it runs, and stays to the end.
    pub(crate) attached: bool,
    pub(crate) ending: Ending,
    keeps: Keeps,
}

impl Lesson {
    /// Neighbours differ.
    pub(crate) fn of(seed: u64) -> Self {
        let turn = |every: u64, of: usize| (seed / every) as usize % of;
        Self {
            steps: Steps::ALL[turn(1, 3)],
            attached: turn(3, 2) == 1,
            ending: Ending::ALL[turn(6, 4)],
            keeps: Keeps::ALL[Random::new(seed).below(Keeps::ALL.len() as u64) as usize],
        }
    }

    pub(crate) fn name(self) -> String {
        let how = if self.attached { "attached" } else { "run" };
        format!("{}, {how}, {}, keeps {:?}", self.steps.name(), self.ending.name(), self.keeps)
    }
}

/// What the truth is of a program that has trained.
pub(crate) struct Trained {
    /// The place that leaks.
    pub(crate) leaking: Option<&'static str>,
    pub(crate) random: Random,
}

const WEIGHTS: &str = "torch/nn/modules/module.py(915): _apply";
const STATE: &str = "torch/optim/adamw.py(187): step";
const TEMPORARY: &str = "torch/optim/adamw.py(322): _multi_tensor_adamw";
const FORWARD: &str = "model.py(20): forward";
const GRADIENTS: &str = "torch/autograd/__init__.py(266): backward";
const LOSS: &str = "train.py(31): loss";
const OUTPUT: &str = "train.py(30): outputs";
const MEANS: &str = "ema.py(12): copy";

/// Innermost frame of a place's stack: its name.
pub(crate) fn place(stacks: Stacks) -> Option<String> {
    stacks.python.and_then(|stack| stack.frames().first().map(ToString::to_string))
}

struct Training<'a> {
    program: &'a mut Program,
    random: Random,
    heap: Heap,
    /// Live blocks: address, size.
    live: Vec<Option<(u64, u64)>>,
    lesson: Lesson,
    layers: u64,
    kept: VecDeque<Slot>,
    gradients: Vec<Slot>,
}

/// Trains for 20 to 90 s; `attach` is given how long it takes, in nanoseconds, about.
pub(crate) fn train(
    lesson: Lesson,
    seed: u64,
    program: &mut Program,
    attach: impl FnOnce(&mut Program, u64),
) -> Trained {
    let mut random = Random::new(seed + (1 << 32));
    let (steps, step_ns) = (random.between(100, 300), random.between(200_000_000, 300_000_000));
    let layers = random.between(4, 24);
    attach(program, steps * step_ns);
    let (heap, live, kept, gradients) = (Heap::default(), Vec::new(), VecDeque::new(), Vec::new());
    let mut training = Training { program, random, heap, live, lesson, layers, kept, gradients };
    for _ in 0..layers {
        training.alloc(WEIGHTS, 4096);
    }
    for step in 1..=steps {
        training.step(step, step_ns);
    }
    training.done()
}

impl Training<'_> {
    fn step(&mut self, step: u64, step_ns: u64) {
        let marked = self.lesson.steps == Steps::Marked;
        if marked {
            self.program.step_start();
        }
        let pause_ns = step_ns / (3 * self.layers + 4);
        // `zero_grad`: the gradients of the step before.
        for gradient in std::mem::take(&mut self.gradients) {
            self.free(gradient);
        }
        let mut activations = Vec::new();
        for _ in 0..self.layers {
            self.program.pass(pause_ns);
            activations.push(self.alloc(FORWARD, 2048));
        }
        let loss = self.alloc(LOSS, 1);
        let output = self.alloc(OUTPUT, 64);
        self.program.pass(pause_ns);
        while let Some(activation) = activations.pop() {
            self.program.pass(pause_ns);
            let gradient = self.alloc(GRADIENTS, 1024);
            self.gradients.push(gradient);
            self.free(activation);
        }
        for _ in 0..self.layers {
            self.program.pass(pause_ns);
            if step == 1 {
                self.alloc(STATE, 4096);
            }
            if self.lesson.steps != Steps::None {
                let temporary = self.alloc(TEMPORARY, 512);
                self.free(temporary);
            }
        }
        self.keep(step, loss, output);
        if marked {
            self.program.step_end();
        }
    }

    fn keep(&mut self, step: u64, loss: Slot, output: Slot) {
        let (keep_loss, keep_output) = match self.lesson.keeps {
            Keeps::Losses | Keeps::LastLosses => (true, false),
            Keeps::Outputs => (false, true),
            Keeps::EveryFifth => (false, step.is_multiple_of(5)),
            Keeps::Means | Keeps::Nothing => (false, false),
        };
        if !keep_output {
            self.free(output);
        }
        if keep_loss {
            self.kept.push_back(loss);
        } else {
            self.free(loss);
        }
        if self.lesson.keeps == Keeps::LastLosses
            && self.kept.len() > 20
            && let Some(oldest) = self.kept.pop_front()
        {
            self.free(oldest);
        }
        if self.lesson.keeps == Keeps::Means && step == 3 {
            for _ in 0..self.layers {
                self.alloc(MEANS, 4096);
            }
        }
    }

    fn done(self) -> Trained {
        let leaking = match self.lesson.keeps {
            Keeps::Losses => Some(LOSS),
            Keeps::Outputs | Keeps::EveryFifth => Some(OUTPUT),
            _ => None,
        };
        Trained { leaking, random: self.random }
    }

    /// A block of `units` times 512 bytes.
    fn alloc(&mut self, place: &'static str, units: u64) -> Slot {
        let size = 512 * units;
        let stack = Stack::keep([place, "train.py(40): <module>"], StackEnd::Root);
        let placed = self.heap.alloc(size);
        if let Some((addr, size)) = placed.segment {
            self.program.alloc(pools::HAL, addr, size, Stacks::default());
        }
        let stacks = Stacks { python: Some(stack), ..Stacks::default() };
        let slot = self.program.alloc(pools::PTA, placed.addr, size, stacks);
        if self.live.len() <= slot.number() {
            self.live.resize(slot.number() + 1, None);
        }
        self.live[slot.number()] = Some((placed.addr, size));
        slot
    }

    fn free(&mut self, slot: Slot) {
        if let Some((addr, size)) = self.live[slot.number()].take() {
            self.heap.free(addr, size);
        }
        self.program.free(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks that the place of what is kept holds in the end, by hand: one of each step, of each fifth, twenty, one of each layer.
    #[test]
    fn lessons_keep_what_they_say() {
        for keeps in Keeps::ALL {
            let lesson = Lesson { steps: Steps::Marked, attached: false, ending: Ending::Killed, keeps };
            let mut program = Program::new(Vec::new());
            let trained = train(lesson, 5, &mut program, |_, _| {});
            let steps = program.steps() as usize;
            let count = |place| {
                let python = Some(Stack::keep([place, "train.py(40): <module>"], StackEnd::Root));
                program.count(crate::score::place_of(Stacks { python, ..Stacks::default() }, 0))
            };
            let layers = count(WEIGHTS);
            let (losses, outputs, means) = match keeps {
                Keeps::Losses => (steps, 0, 0),
                Keeps::Outputs => (0, steps, 0),
                Keeps::EveryFifth => (0, steps / 5, 0),
                Keeps::LastLosses => (20, 0, 0),
                Keeps::Means => (0, 0, layers),
                Keeps::Nothing => (0, 0, 0),
            };
            assert_eq!((count(LOSS), count(OUTPUT), count(MEANS)), (losses, outputs, means), "{keeps:?}");
            assert_eq!(trained.leaking.map_or(0, count), (losses + outputs) * usize::from(trained.leaking.is_some()));
            assert_eq!((count(STATE), count(GRADIENTS), count(FORWARD), count(TEMPORARY)), (layers, layers, 0, 0));
            assert!(steps >= 100 && layers >= 4);
        }
    }

    /// Of 60 each way of steps, of tracing and of ending comes at least twelve times, each leak at least five times.
    #[test]
    fn lessons_differ() {
        let lessons: Vec<Lesson> = (0..60).map(Lesson::of).collect();
        let count = |wanted: &dyn Fn(&Lesson) -> bool| lessons.iter().filter(|lesson| wanted(lesson)).count();
        assert!(Steps::ALL.iter().all(|steps| count(&|lesson| lesson.steps == *steps) == 20));
        assert_eq!(count(&|lesson| lesson.attached), 30);
        assert!(Ending::ALL.iter().all(|ending| count(&|lesson| lesson.ending == *ending) >= 12));
        assert!(Keeps::ALL.iter().all(|keeps| count(&|lesson| lesson.keeps == *keeps) >= 5));
    }
}
