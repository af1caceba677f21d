//! A server at work: its memory, its places, and its requests.

use std::collections::HashMap;

use memscope::backend::ascend::pools;
use memscope::model::{Stack, StackEnd, Stacks};

use crate::heap::Heap;
use crate::load::Load;
use crate::program::{Program, Slot};
use crate::random::Random;
use crate::score::Place;

/// Where a server allocates: by stacks, or where it has none by sizes, each of which one place has alone.
pub(crate) struct Places {
    with_stacks: bool,
    known: HashMap<String, (Stacks, u64)>,
}

impl Places {
    /// Stack and size of a place.
    pub(crate) fn at(&mut self, name: &str) -> (Stacks, u64) {
        if let Some(known) = self.known.get(name) {
            return *known;
        }
        let frames = [name, "server.py(40): answer", "server.py(9): <module>"];
        let stack = self.with_stacks.then(|| Stack::keep(frames, StackEnd::Root));
        let place = (Stacks { python: stack, ..Stacks::default() }, 512 * (self.known.len() as u64 + 1));
        self.known.insert(name.to_owned(), place);
        place
    }

    /// Name of the place with these stacks, or of this size.
    pub(crate) fn name(&self, (stacks, size_bytes): Place) -> Option<&str> {
        let is_it = |place: &(Stacks, u64)| match size_bytes {
            Some(size_bytes) => place.1 == size_bytes,
            None => place.0 == stacks,
        };
        self.known.iter().find(|(_, place)| is_it(place)).map(|(name, _)| name.as_str())
    }
}

/// What a server has to do.
pub(crate) struct Work {
    pub(crate) requests: u64,
    pub(crate) load: Load,
    /// From one request to the next, on average.
    pub(crate) request_ns: u64,
}

/// A server at work.
pub(crate) struct Server<'a> {
    pub(crate) program: &'a mut Program,
    pub(crate) places: Places,
    pub(crate) random: Random,
    pub(crate) work: Work,
    heap: Heap,
    sizes: HashMap<usize, (u64, u64)>,
}

impl<'a> Server<'a> {
    pub(crate) fn new(program: &'a mut Program, with_stacks: bool, random: Random, work: Work) -> Self {
        let places = Places { with_stacks, known: HashMap::new() };
        Self { program, places, random, work, heap: Heap::default(), sizes: HashMap::new() }
    }

    pub(crate) fn alloc(&mut self, place: &str) -> Slot {
        let (stacks, size) = self.places.at(place);
        self.alloc_bytes(stacks, size)
    }

    pub(crate) fn alloc_bytes(&mut self, stacks: Stacks, size: u64) -> Slot {
        let placed = self.heap.alloc(size);
        if let Some((addr, size)) = placed.segment {
            self.program.alloc(pools::HAL, addr, size, Stacks::default());
        }
        let slot = self.program.alloc(pools::PTA, placed.addr, size, stacks);
        self.sizes.insert(slot.number(), (placed.addr, size));
        slot
    }

    pub(crate) fn free(&mut self, slot: Slot) {
        if let Some((addr, size)) = self.sizes.remove(&slot.number()) {
            self.heap.free(addr, size);
        }
        self.program.free(slot);
    }

    /// Requests, up to sixteen at a time, that end in any order; `each` is what one does besides, after a pause of so
    /// many nanoseconds.
    pub(crate) fn answer(&mut self, mut each: impl FnMut(&mut Self, u64, u64)) {
        let mut flying: Vec<Slot> = Vec::new();
        for request in 0..self.work.requests {
            let now_ns = self.program.elapsed_ns();
            let pause_ns = self.work.load.pause_ns(&mut self.random, request, now_ns, self.work.request_ns);
            self.program.pass(pause_ns);
            flying.push(self.alloc("answer"));
            while flying.len() as u64 > 1 + self.random.below(16) {
                let at = self.random.below(flying.len() as u64) as usize;
                let ended = flying.swap_remove(at);
                self.free(ended);
            }
            each(self, request, pause_ns);
        }
    }
}
