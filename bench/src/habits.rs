//! What servers do with memory besides answering: keep caches, come and go in waves, load versions, queue, retry.

use std::collections::{HashSet, VecDeque};

use memscope::backend::ascend::pools;

use crate::program::Slot;
use crate::random::Random;
use crate::server::Server;

/// Done with every request.
pub(crate) trait Habit {
    /// Once, after `paused_ns` without a request.
    fn request(&mut self, server: &mut Server<'_>, request: u64, paused_ns: u64);
}

/// One that fills as keys are asked for, one that holds the last answers, and buffers of the start.
pub(crate) struct Caches {
    keys: u64,
    known: HashSet<u64>,
    held: u64,
    last: VecDeque<Slot>,
    start: u64,
}

impl Caches {
    pub(crate) fn new(server: &mut Server<'_>) -> Self {
        let (random, requests) = (&mut server.random, server.work.requests);
        // Of random keys 98 % are known after four times as many requests: within the first half.
        let (keys, held) = (random.between(500, requests / 8), random.between(100, 5000));
        let start = random.between(1000, requests / 6);
        Self { keys, known: HashSet::new(), held, last: VecDeque::new(), start }
    }
}

impl Habit for Caches {
    fn request(&mut self, server: &mut Server<'_>, request: u64, _: u64) {
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
pub(crate) struct Waves {
    period: u64,
    blocks: Vec<Slot>,
}

impl Waves {
    pub(crate) fn new(server: &mut Server<'_>) -> Self {
        let requests = server.work.requests;
        Self { period: server.random.between(requests / 40, requests / 3), blocks: Vec::new() }
    }
}

impl Habit for Waves {
    fn request(&mut self, server: &mut Server<'_>, request: u64, _: u64) {
        self.blocks.push(server.alloc("wave"));
        if request % self.period == self.period - 1 {
            for slot in self.blocks.drain(..) {
                server.free(slot);
            }
        }
    }
}

/// A cache with a bound: each request adds an entry until it is full, late in the run or early; then entries are replaced.
pub(crate) struct SlowCache {
    full: u64,
    /// Requests from one new entry to the next.
    each: u64,
    entries: VecDeque<Slot>,
}

impl SlowCache {
    /// Full when this share of the requests, in percent, was answered.
    pub(crate) fn new(server: &mut Server<'_>, least: u64, most: u64) -> Self {
        let share = server.random.between(least, most);
        let each = server.random.between(1, 8);
        Self { full: (server.work.requests * share / 100 / each).max(1), each, entries: VecDeque::new() }
    }
}

impl Habit for SlowCache {
    fn request(&mut self, server: &mut Server<'_>, request: u64, _: u64) {
        if !request.is_multiple_of(self.each) {
            return;
        }
        if self.entries.len() as u64 >= self.full
            && let Some(oldest) = self.entries.pop_front()
        {
            server.free(oldest);
        }
        self.entries.push_back(server.alloc("entry of a bounded cache"));
    }
}

/// Requests that wait: they queue while others follow at once, and are done when there is time.
#[derive(Default)]
pub(crate) struct Queue {
    waiting: VecDeque<Slot>,
}

impl Habit for Queue {
    fn request(&mut self, server: &mut Server<'_>, _: u64, paused_ns: u64) {
        const LONG_NS: u64 = 50_000_000;
        self.waiting.push_back(server.alloc("queue"));
        let done = if paused_ns > LONG_NS { self.waiting.len() } else { server.random.below(2) as usize };
        for _ in 0..done.min(self.waiting.len()) {
            if let Some(first) = self.waiting.pop_front() {
                server.free(first);
            }
        }
    }
}

/// Versions of a model: a new one is loaded block by block while requests go on, then the old one is given back.
pub(crate) struct Deploys {
    starts: Vec<u64>,
    ramp: u64,
    new: Vec<Slot>,
    old: Vec<Slot>,
}

impl Deploys {
    pub(crate) fn new(server: &mut Server<'_>) -> Self {
        let (random, requests) = (&mut server.random, server.work.requests);
        let ramp = random.between(requests / 50, requests / 10);
        let mut starts = vec![0];
        for _ in 0..random.between(1, 3) {
            starts.push(random.between(requests / 10, requests * 8 / 10));
        }
        // One at a time.
        starts.sort_unstable();
        starts.dedup_by(|late, early| *late - *early < 2 * ramp);
        Self { starts, ramp, new: Vec::new(), old: Vec::new() }
    }
}

impl Habit for Deploys {
    fn request(&mut self, server: &mut Server<'_>, request: u64, _: u64) {
        let Some(&start) = self.starts.iter().rfind(|start| **start <= request) else { return };
        if request == start {
            self.old = std::mem::take(&mut self.new);
        }
        if request < start + self.ramp {
            self.new.push(server.alloc("weights of a version"));
        } else {
            for slot in self.old.drain(..) {
                server.free(slot);
            }
        }
    }
}

/// Sessions that live for a while, so their number follows the load.
pub(crate) struct Sessions {
    lives_ns: u64,
    open: VecDeque<(u64, Slot)>,
}

impl Sessions {
    pub(crate) const fn new(lives_ns: u64) -> Self {
        Self { lives_ns, open: VecDeque::new() }
    }
}

impl Habit for Sessions {
    fn request(&mut self, server: &mut Server<'_>, _: u64, _: u64) {
        let now = server.program.elapsed_ns();
        while let Some(&(_, slot)) = self.open.front().filter(|(end, _)| *end <= now) {
            self.open.pop_front();
            server.free(slot);
        }
        self.open.push_back((now + self.lives_ns, server.alloc("session")));
    }
}

/// Requests fail, now and then and all of them in outages, and are tried again when the outage is over.
pub(crate) struct Retries {
    outages: Vec<u64>,
    length: u64,
    waiting: VecDeque<Slot>,
    /// Once in this number of failures, a request that failed leaves something behind.
    leaks_once_in: Option<u64>,
}

impl Retries {
    pub(crate) fn new(server: &mut Server<'_>, leaks: bool) -> Self {
        let (random, requests) = (&mut server.random, server.work.requests);
        let outages = (0..random.between(2, 5)).map(|_| random.below(requests * 9 / 10)).collect();
        let length = random.between(requests / 100, requests / 30);
        let leaks_once_in = leaks.then(|| random.between(1, 3));
        Self { outages, length, waiting: VecDeque::new(), leaks_once_in }
    }

    fn fails(&self, random: &mut Random, request: u64) -> bool {
        random.once_in(30) || self.outages.iter().any(|start| (*start..start + self.length).contains(&request))
    }
}

impl Habit for Retries {
    fn request(&mut self, server: &mut Server<'_>, request: u64, _: u64) {
        if self.fails(&mut server.random, request) {
            server.program.alloc_failed(pools::PTA, 1 << 30, request);
            self.waiting.push_back(server.alloc("to be tried again"));
            let partial = server.alloc(LEAK);
            if !self.leaks_once_in.is_some_and(|times| server.random.once_in(times)) {
                server.free(partial);
            }
        } else {
            for _ in 0..3 {
                if let Some(first) = self.waiting.pop_front() {
                    server.free(first);
                }
            }
        }
    }
}

/// Keeps the block of a request once in this number of requests.
pub(crate) struct Leak(pub(crate) u64);

/// The place that leaks where any does.
pub(crate) const LEAK: &str = "context";

impl Habit for Leak {
    fn request(&mut self, server: &mut Server<'_>, _: u64, _: u64) {
        let block = server.alloc(LEAK);
        if self.0 == 0 || !server.random.once_in(self.0) {
            server.free(block);
        }
    }
}
