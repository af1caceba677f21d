//! A training program: weights that stay, and steps of a forward and a backward pass, some of which leak.

use std::collections::VecDeque;

use memscope::analyses::Finding;
use memscope::backend::ascend::pools;
use memscope::model::{Stack, StackEnd, Stacks};

use crate::heap::Heap;
use crate::program::{Program, Slot};
use crate::random::Random;

/// Layers, each with stacks of its own.
const LAYERS: u64 = 100;

/// How large it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Blocks that live all the time.
    live_blocks: u64,
    /// Their places, each with ten frames of its own; 0: the two of loading and of the optimizer.
    places: u64,
    steps: u64,
    /// Blocks that each step allocates and frees.
    step_blocks: u64,
    /// Blocks that each step leaves behind.
    leaks: u64,
}

impl Shape {
    /// About this number of events: 2000 blocks a step, of each step one stays.
    pub(crate) const fn large(events: u64) -> Self {
        Self { live_blocks: 1000, places: 0, steps: events / 4005, step_blocks: 2000, leaks: 1 }
    }

    /// This number of live blocks besides, among which each step's come and go.
    pub(crate) const fn with_live_blocks(live_blocks: u64, events: u64) -> Self {
        Self { live_blocks, places: 0, steps: events / 4004, step_blocks: 2000, leaks: 0 }
    }

    /// This number of steps, each with a leak.
    pub(crate) const fn with_leaking_steps(steps: u64) -> Self {
        Self { live_blocks: 1000, places: 0, steps, step_blocks: 500, leaks: 100 }
    }

    /// As many blocks and frames as a page keeps one by one: 59 015 blocks, half of them at the same time, with 200 000 frames.
    pub(crate) const fn varied() -> Self {
        Self { live_blocks: 29_000, places: 20_000, steps: 15, step_blocks: 2000, leaks: 1 }
    }

    /// Leaks of the pool that the step rule finds: those of neither the first step, which it passes over, nor the last, after
    /// which no other one ends.
    pub(crate) const fn leaks_found(self) -> u64 {
        (self.steps - 2) * self.leaks
    }
}

/// Stacks as Python has them.
struct Lines {
    load: Stacks,
    forward: Vec<Stacks>,
    backward: Vec<Stacks>,
    optimizer: Stacks,
}

impl Lines {
    fn new() -> Self {
        let keep = |frames: &[&str]| Stacks {
            python: Some(Stack::keep(frames.iter().copied(), StackEnd::Root)),
            ..Stacks::default()
        };
        let layer = |number: u64, rest: &[&str]| {
            let own = format!("model.py({}): forward", 10 + number);
            let mut frames = vec![own.as_str(), "torch/nn/modules/module.py(1562): _call_impl"];
            frames.extend(rest);
            keep(&frames)
        };
        Self {
            load: keep(&["torch/nn/modules/module.py(915): _apply", "train.py(12): <module>"]),
            forward: (0..LAYERS).map(|number| layer(number, &["train.py(30): step"])).collect(),
            backward: (0..LAYERS)
                .map(|number| layer(number, &["torch/autograd/__init__.py(266): backward", "train.py(31): step"]))
                .collect(),
            optimizer: keep(&["torch/optim/adamw.py(187): step", "train.py(32): step"]),
        }
    }
}

/// A place with ten frames of its own.
fn place_of(number: u64) -> Stacks {
    let frames: Vec<String> =
        (0..10).map(|depth| format!("pkg{}/part{number}.py({depth}): call_{number}_{depth}", number % 97)).collect();
    let python = Stack::keep(frames.iter().map(String::as_str), StackEnd::Root);
    Stacks { python: Some(python), ..Stacks::default() }
}

/// Trains to the end; gives what is found.
pub(crate) fn train(program: Program, shape: Shape) -> Vec<Finding> {
    let lines = Lines::new();
    let mut training = Training { program, random: Random::new(7), heap: Heap::default(), sizes: Vec::new() };
    let places: Vec<Stacks> = (0..shape.places).map(place_of).collect();
    for block in 0..shape.live_blocks {
        let stacks = match places.len() {
            0 if block % 3 == 0 => lines.optimizer,
            0 => lines.load,
            count => places[block as usize % count],
        };
        training.alloc(stacks);
    }
    for _ in 0..shape.steps {
        training.step(&lines, shape);
    }
    training.program.finish()
}

struct Training {
    program: Program,
    random: Random,
    heap: Heap,
    /// Address and size of each live block, by number.
    sizes: Vec<(u64, u64)>,
}

impl Training {
    fn step(&mut self, lines: &Lines, shape: Shape) {
        self.program.step_start();
        let mut activations: VecDeque<Slot> = VecDeque::new();
        for block in 0..shape.step_blocks / 2 {
            let layer = (block % LAYERS) as usize;
            activations.push_back(self.alloc(lines.forward[layer]));
        }
        for block in 0..shape.step_blocks / 2 {
            let layer = (LAYERS - 1 - block % LAYERS) as usize;
            let gradient = self.alloc(lines.backward[layer]);
            if let Some(activation) = activations.pop_back() {
                self.free(activation);
            }
            self.free(gradient);
        }
        for _ in 0..shape.leaks {
            self.alloc(lines.forward[0]);
        }
        self.program.step_end();
    }

    fn alloc(&mut self, stacks: Stacks) -> Slot {
        let size = 512 * self.random.between(1, 64);
        self.program.pass(1000);
        let placed = self.heap.alloc(size);
        if let Some((addr, size)) = placed.segment {
            self.program.alloc(pools::HAL, addr, size, Stacks::default());
        }
        let slot = self.program.alloc(pools::PTA, placed.addr, size, stacks);
        if self.sizes.len() <= slot.number() {
            self.sizes.resize(slot.number() + 1, (0, 0));
        }
        self.sizes[slot.number()] = (placed.addr, size);
        slot
    }

    fn free(&mut self, slot: Slot) {
        let (addr, size) = self.sizes[slot.number()];
        self.heap.free(addr, size);
        self.program.pass(500);
        self.program.free(slot);
    }
}
