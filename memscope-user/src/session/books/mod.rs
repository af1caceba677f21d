//! Made-up programs that keep books of their own. Every answer about them has to agree with the books: analyses as a
//! trace makes them, the first screen, the page and exports.
//!
//! The books know nothing of the analyses: each program itself states when it stops working, and the expected findings.

mod answers;
mod programs;

use std::collections::{BTreeMap, BTreeSet};

use crate::analyses::script::Script;
use crate::model::{Device, Event, EventKind, FreeCause, LiveSum, Pool, RunEnd};

/// Process, device and pool.
pub(super) type Place = (u32, Device, Pool);

/// Account of a process's pool on a device.
#[derive(Clone, Debug, Default)]
pub(super) struct Account {
    live: BTreeMap<u64, u64>,
    pub(super) peak_bytes: u64,
    pub(super) allocated: LiveSum,
    pub(super) frees: u64,
    /// Frees of blocks from before the attach.
    pub(super) older_frees: u64,
    /// When the process stopped working: live blocks, allocated blocks, and frees.
    pub(super) judged: Option<(LiveSum, LiveSum, u64)>,
    /// Live blocks when the process or the trace ended.
    pub(super) left: LiveSum,
}

/// A program that keeps books.
#[derive(Debug)]
pub(super) struct Book {
    pub(super) script: Script,
    at: (u32, Device),
    next: u64,
    pub(super) accounts: BTreeMap<Place, Account>,
    /// The most live bytes of a pool of a device, all processes together.
    pub(super) together: BTreeMap<(Device, Pool), u64>,
    /// Processes that the tracer attached to late: pools report more than was seen.
    pub(super) attached: BTreeSet<u32>,
}

impl Book {
    pub(super) fn new() -> Self {
        let at = (100, Device::Npu(0));
        Self {
            script: Script::new(at.0, at.1),
            at,
            next: 1 << 40,
            accounts: BTreeMap::new(),
            together: BTreeMap::new(),
            attached: BTreeSet::new(),
        }
    }

    pub(super) fn on(&mut self, pid: u32, device: u32) -> &mut Self {
        self.at = (pid, Device::Npu(device));
        self.script.on(pid, Device::Npu(device));
        self
    }

    fn account(&mut self, pool: Pool) -> &mut Account {
        self.accounts.entry((self.at.0, self.at.1, pool)).or_default()
    }

    /// Allocates at this line of the program, at a new address.
    pub(super) fn alloc(&mut self, pool: Pool, line: &str, size_bytes: u64) -> u64 {
        let addr = self.next;
        self.next += size_bytes.next_multiple_of(4096) + (1 << 30);
        self.alloc_at(pool, line, addr, size_bytes);
        addr
    }

    pub(super) fn alloc_at(&mut self, pool: Pool, line: &str, addr: u64, size_bytes: u64) {
        self.script.stacks(&[line, "/srv/main.py(1): main"], &[]).alloc(pool, addr, size_bytes);
        let account = self.account(pool);
        account.live.insert(addr, size_bytes);
        account.allocated.blocks += 1;
        account.allocated.size_bytes += size_bytes;
        account.peak_bytes = account.peak_bytes.max(account.bytes());
        let (device, accounts) = (self.at.1, &self.accounts);
        let of_pool = accounts.iter().filter(|((_, on, of), _)| (*on, *of) == (device, pool));
        let bytes: u64 = of_pool.map(|(_, account)| account.bytes()).sum();
        let most = self.together.entry((device, pool)).or_default();
        *most = bytes.max(*most);
    }

    pub(super) fn free(&mut self, pool: Pool, addr: u64) {
        self.script.free(pool, addr);
        let account = self.account(pool);
        account.live.remove(&addr).expect("is live");
        account.frees += 1;
    }

    /// Frees a block from before the attach.
    pub(super) fn free_older(&mut self, pool: Pool, addr: u64) {
        self.script.unknown_free(pool, addr, true);
        self.account(pool).older_frees += 1;
    }

    /// The process does its last work, a launch: its memory then is the memory held.
    pub(super) fn stops_working(&mut self) {
        self.script.launch();
        let pid = self.at.0;
        for (_, account) in self.accounts.iter_mut().filter(|((of, ..), _)| *of == pid) {
            account.judge();
        }
    }

    /// Frees all that the process has on all devices, as an interpreter does that ends: pools first.
    pub(super) fn frees_all(&mut self) {
        let (pid, device) = self.at;
        let mut live: Vec<(bool, Device, Pool, u64)> = Vec::new();
        for ((_, on, pool), account) in self.accounts.iter().filter(|((of, ..), _)| *of == pid) {
            live.extend(account.live.keys().map(|addr| (pool.is_driver(), *on, *pool, *addr)));
        }
        live.sort_unstable();
        for (_, on, pool, addr) in live {
            self.at.1 = on;
            self.script.on(pid, on);
            self.free(pool, addr);
        }
        self.at.1 = device;
        self.script.on(pid, device);
    }

    /// The process ends, and the system takes its remaining memory.
    pub(super) fn ends(&mut self) {
        self.takes(FreeCause::ProcessEnd);
        self.script.process_end();
    }

    /// The trace ends before the process.
    pub(super) fn trace_ends(&mut self) {
        self.takes(FreeCause::TraceEnd);
    }

    /// Forgets everything: the process executes another program.
    pub(super) fn forget(&mut self) {
        self.accounts.clear();
    }

    fn takes(&mut self, cause: FreeCause) {
        let (pid, device) = self.at;
        for ((_, on, pool), account) in self.accounts.iter_mut().filter(|((of, ..), _)| *of == pid) {
            account.judge();
            account.left = account.sum();
            for (addr, _) in std::mem::take(&mut account.live) {
                self.script.on(pid, *on).end(cause, *pool, addr);
            }
        }
        self.script.on(pid, device);
    }

    /// The events, at this distance. Memory is taken from a process at once.
    pub(super) fn events(&self, apart_ns: u64) -> (Vec<Event>, RunEnd) {
        let mut events = self.script.events().to_vec();
        let is_taken = |event: &Event| {
            let taken = [FreeCause::ProcessEnd, FreeCause::TraceEnd];
            matches!(&event.kind, EventKind::Free(free) if taken.contains(&free.cause))
        };
        let mut now_ns = 1;
        let mut times_ns = Vec::new();
        for event in &events {
            now_ns += if is_taken(event) { 0 } else { apart_ns };
            times_ns.push(now_ns);
        }
        for (event, time_ns) in events.iter_mut().zip(&times_ns) {
            event.time_ns = *time_ns;
            // A block has the number of its event as its time.
            match &mut event.kind {
                EventKind::Alloc(alloc) => alloc.block.alloc_time_ns = times_ns[alloc.block.alloc_time_ns as usize],
                EventKind::Free(free) => free.block.alloc_time_ns = times_ns[free.block.alloc_time_ns as usize],
                _ => {}
            }
        }
        (events, RunEnd { start_ns: 1, time_ns: now_ns, ..RunEnd::default() })
    }
}

impl Account {
    fn bytes(&self) -> u64 {
        self.live.values().sum()
    }

    fn sum(&self) -> LiveSum {
        LiveSum { blocks: self.live.len() as u64, size_bytes: self.bytes() }
    }

    fn judge(&mut self) {
        let now = (self.sum(), self.allocated, self.frees);
        self.judged.get_or_insert(now);
    }
}
