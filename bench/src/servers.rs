//! Servers that answer requests, and what else they do with memory: keep caches, come and go in waves, fragment, leak.

use std::collections::{HashMap, HashSet, VecDeque};

use memscope::model::{Pool, Stack, StackEnd, Stacks};

use crate::heap::Heap;
use crate::program::{Program, Slot};
use crate::random::Random;

/// Requests that each of them answers, in six to sixteen minutes.
const REQUESTS: (u64, u64) = (40_000, 100_000);
/// From one request to the next, on average.
const REQUEST_NS: u64 = 10_000_000;

/// What a server does besides answering requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Caches that fill within the first half, one that exchanges what it holds, buffers of the start.
    Caches,
    /// Memory that grows and is given back, three times or more.
    Waves,
    /// Blocks of all sizes and ages in a pool that holds more and more pieces, but never more blocks.
    Fragmentation,
    /// Of one request in a thousand a block stays.
    SlowLeak,
    /// One place of fifty keeps one in twenty of its blocks.
    OneOfFifty,
    /// A slow leak beside caches and waves.
    Mixed,
}

impl Kind {
    pub(crate) const ALL: [Self; 6] =
        [Self::Caches, Self::Waves, Self::Fragmentation, Self::SlowLeak, Self::OneOfFifty, Self::Mixed];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Caches => "caches that fill and stop",
            Self::Waves => "periodic growth",
            Self::Fragmentation => "fragmentation without a leak",
            Self::SlowLeak => "slow leak, 0.1 % of requests",
            Self::OneOfFifty => "leak in one of 50 stacks",
            Self::Mixed => "slow leak, caches, waves",
        }
    }
}

/// Where a server allocates: by stacks, or where it has none by sizes, each of which one place has alone.
pub(crate) struct Places {
    with_stacks: bool,
    known: HashMap<String, (Stacks, u64)>,
}

impl Places {
    /// Stack and size of a place.
    fn at(&mut self, name: &str) -> (Stacks, u64) {
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
    pub(crate) fn name(&self, stacks: Stacks, size_bytes: Option<u64>) -> Option<&str> {
        let is_it = |place: &(Stacks, u64)| match size_bytes {
            Some(size_bytes) => place.1 == size_bytes,
            None => place.0 == stacks,
        };
        self.known.iter().find(|(_, place)| is_it(place)).map(|(name, _)| name.as_str())
    }
}

/// A server at work.
struct Server<'a> {
    program: &'a mut Program,
    places: Places,
    random: Random,
    requests: u64,
    heap: Heap,
    sizes: HashMap<usize, (u64, u64)>,
}

/// Lets a server run to its end; gives its places, and that of them which leaks.
pub(crate) fn serve(kind: Kind, seed: u64, program: &mut Program) -> (Places, Option<String>) {
    let places = Places { with_stacks: seed.is_multiple_of(2), known: HashMap::new() };
    let mut random = Random::new(seed * 16 + kind as u64);
    let requests = random.between(REQUESTS.0, REQUESTS.1);
    let mut server = Server { program, places, random, requests, heap: Heap::default(), sizes: HashMap::new() };
    let leaking = match kind {
        Kind::Caches => {
            let mut caches = Caches::new(&mut server);
            server.answer(|server, request| caches.request(server, request));
            None
        }
        Kind::Waves => {
            let mut waves = Waves::new(&mut server);
            server.answer(|server, request| waves.request(server, request));
            None
        }
        Kind::Fragmentation => {
            server.fragments();
            None
        }
        Kind::SlowLeak => {
            server.answer(|server, _| server.leak_slowly());
            Some("context".to_owned())
        }
        Kind::OneOfFifty => Some(server.leaks_in_one_of_fifty()),
        Kind::Mixed => {
            let (mut caches, mut waves) = (Caches::new(&mut server), Waves::new(&mut server));
            server.answer(|server, request| {
                caches.request(server, request);
                waves.request(server, request);
                server.leak_slowly();
            });
            Some("context".to_owned())
        }
    };
    (server.places, leaking)
}

impl Server<'_> {
    fn alloc(&mut self, place: &str) -> Slot {
        let (stacks, size) = self.places.at(place);
        self.alloc_bytes(stacks, size)
    }

    fn alloc_bytes(&mut self, stacks: Stacks, size: u64) -> Slot {
        let placed = self.heap.alloc(size);
        if let Some((addr, size)) = placed.segment {
            self.program.alloc(Pool::Hal, addr, size, Stacks::default());
        }
        let slot = self.program.alloc(Pool::Pta, placed.addr, size, stacks);
        self.sizes.insert(slot.number(), (placed.addr, size));
        slot
    }

    fn free(&mut self, slot: Slot) {
        if let Some((addr, size)) = self.sizes.remove(&slot.number()) {
            self.heap.free(addr, size);
        }
        self.program.free(slot);
    }

    /// Requests, up to sixteen at a time, that end in any order; `each` is what one does besides.
    fn answer(&mut self, mut each: impl FnMut(&mut Self, u64)) {
        let mut flying: Vec<Slot> = Vec::new();
        for request in 0..self.requests {
            let pause = self.random.between(REQUEST_NS / 2, REQUEST_NS * 3 / 2);
            self.program.pass(pause);
            flying.push(self.alloc("answer"));
            while flying.len() as u64 > 1 + self.random.below(16) {
                let at = self.random.below(flying.len() as u64) as usize;
                let ended = flying.swap_remove(at);
                self.free(ended);
            }
            each(self, request);
        }
    }

    /// Sizes from 512 bytes to 1 MiB; most live for a few requests, some for thousands.
    fn fragments(&mut self) {
        const SIZES: u64 = 48;
        let mut ends: HashMap<u64, Vec<Slot>> = HashMap::new();
        self.answer(|server, request| {
            for slot in ends.remove(&request).unwrap_or_default() {
                server.free(slot);
            }
            let class = server.random.below(SIZES);
            let (stacks, _) = server.places.at(&format!("tensor {class}"));
            // A size of its own for each class, so that sizes tell places apart, too.
            let size = ((1 << 20 | class << 9) >> (class % 11)) / 512 * 512;
            let slot = server.alloc_bytes(stacks, size.max(512));
            let lives =
                if server.random.once_in(20) { server.random.between(100, 4000) } else { server.random.between(1, 20) };
            ends.entry(request + lives).or_default().push(slot);
        });
    }

    fn leak_slowly(&mut self) {
        let block = self.alloc("context");
        if !self.random.once_in(1000) {
            self.free(block);
        }
    }

    fn leaks_in_one_of_fifty(&mut self) -> String {
        let leaking = self.random.below(50);
        let mut held: VecDeque<Slot> = VecDeque::new();
        self.answer(|server, _| {
            for _ in 0..3 {
                let place = server.random.below(50);
                let block = server.alloc(&format!("layer {place}"));
                if place != leaking || !server.random.once_in(20) {
                    held.push_back(block);
                }
            }
            while held.len() as u64 > 200 + server.random.below(100) {
                if let Some(oldest) = held.pop_front() {
                    server.free(oldest);
                }
            }
        });
        format!("layer {leaking}")
    }
}

/// One that fills as keys are asked for, one that holds the last answers, and buffers of the start.
struct Caches {
    keys: u64,
    known: HashSet<u64>,
    held: u64,
    last: VecDeque<Slot>,
    start: u64,
}

impl Caches {
    fn new(server: &mut Server<'_>) -> Self {
        let (random, requests) = (&mut server.random, server.requests);
        // Of random keys 98 % are known after four times as many requests: within the first half.
        let (keys, held) = (random.between(500, requests / 8), random.between(100, 5000));
        let start = random.between(1000, requests / 6);
        Self { keys, known: HashSet::new(), held, last: VecDeque::new(), start }
    }

    fn request(&mut self, server: &mut Server<'_>, request: u64) {
        if self.known.insert(server.random.below(self.keys)) {
            server.alloc("cache of keys");
        }
        self.last.push_back(server.alloc("last answers"));
        if self.last.len() as u64 > self.held
            && let Some(oldest) = self.last.pop_front()
        {
            server.free(oldest);
        }
        if request < self.start && server.random.once_in(10) {
            server.alloc("start");
        }
    }
}

/// A block of each request, all of which are given back at the end of a period.
struct Waves {
    period: u64,
    blocks: Vec<Slot>,
}

impl Waves {
    fn new(server: &mut Server<'_>) -> Self {
        let requests = server.requests;
        Self { period: server.random.between(requests / 40, requests / 3), blocks: Vec::new() }
    }

    fn request(&mut self, server: &mut Server<'_>, request: u64) {
        self.blocks.push(server.alloc("wave"));
        if request % self.period == self.period - 1 {
            for slot in self.blocks.drain(..) {
                server.free(slot);
            }
        }
    }
}
