//! Finds the processes of the node that map an Ascend library.
//!
//! Each process is looked at when it is first seen, and again after 1, 2, 4 … intervals up to the longest: a program maps its libraries soon
//! or never. A look costs one reading of `/proc/<pid>/maps`.

use std::{
    fs,
    time::{Duration, Instant},
};

use crate::{
    follow::libraries::is_vendor_library,
    hash::HashMap,
    os::{maps, process::start_ticks},
};

/// Processes that are looked after at once: as many as a kernel has numbers.
const MAX_SEEN: usize = 1 << 22;

/// A process that maps an Ascend library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its number.
    pub pid: u32,
    /// When it was started, in clock ticks since boot.
    pub start_ticks: u64,
}

/// Looks at processes.
#[derive(Debug)]
pub struct Discovery {
    interval: Duration,
    longest: Duration,
    seen: HashMap<u32, Seen>,
    round: u64,
}

#[derive(Debug)]
struct Seen {
    round: u64,
    next: Instant,
    pause: Duration,
    /// It maps one; when it was started.
    found: Option<u64>,
}

impl Discovery {
    /// Looks again after `interval`, and after twice the time each further time.
    #[must_use]
    pub fn new(interval: Duration, longest: Duration) -> Self {
        Self { interval, longest, seen: HashMap::default(), round: 0 }
    }

    /// Looks at the processes that are due. Gives those that were not given before.
    pub fn look(&mut self, now: Instant) -> Vec<Found> {
        self.look_at(&pids(), now, is_mapping)
    }

    /// A process is to be looked at again: it has left the trace, or could not join.
    pub fn forget(&mut self, pid: u32, until: Instant) {
        if let Some(seen) = self.seen.get_mut(&pid) {
            (seen.found, seen.next) = (None, until);
        }
    }

    /// A process joined in another way: as a child of one that is traced.
    pub fn know(&mut self, pid: u32, now: Instant) {
        let seen = Seen { round: self.round, next: now, pause: self.longest, found: Some(0) };
        self.seen.insert(pid, seen);
    }

    /// Processes that are known at the moment.
    #[must_use]
    pub fn seen(&self) -> usize {
        self.seen.len()
    }

    fn look_at(&mut self, pids: &[u32], now: Instant, mut is_mapping: impl FnMut(u32) -> Option<u64>) -> Vec<Found> {
        self.round += 1;
        let mut found = Vec::new();
        for &pid in pids {
            if self.seen.len() >= MAX_SEEN && !self.seen.contains_key(&pid) {
                break;
            }
            let (round, pause) = (self.round, self.interval);
            let seen = self.seen.entry(pid).or_insert(Seen { round, next: now, pause, found: None });
            seen.round = round;
            if seen.found.is_some() || seen.next > now {
                continue;
            }
            seen.next = now + seen.pause;
            seen.pause = (seen.pause * 2).min(self.longest);
            seen.found = is_mapping(pid);
            found.extend(seen.found.map(|start_ticks| Found { pid, start_ticks }));
        }
        self.seen.retain(|_, seen| seen.round == self.round);
        found
    }
}

/// All processes but this one.
fn pids() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let own = std::process::id();
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(|pid| *pid != own).collect()
}

/// When a process was started, if it maps an Ascend library.
fn is_mapping(pid: u32) -> Option<u64> {
    let files = maps::mapped_files(pid).ok()?;
    files.iter().any(|file| is_vendor_library(file.file_name())).then(|| start_ticks(pid))?
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Which processes are looked at in each second, in one of which a library is mapped in the sixth.
    #[test]
    fn looks_become_rare_and_never_end() {
        let mut discovery = Discovery::new(SECOND, SECOND * 4);
        let start = Instant::now();
        let mut looks = Vec::new();
        let mut found = Vec::new();
        for second in 0..16 {
            let new = discovery.look_at(&[7], start + SECOND * second, |pid| {
                looks.push(second);
                (second >= 13).then_some(u64::from(pid) * 10)
            });
            found.extend(new.iter().map(|found| (second, *found)));
        }
        // After 1, 2, 4, 4 … seconds; not again once it is found.
        assert_eq!(looks, [0, 1, 3, 7, 11, 15]);
        assert_eq!(found, [(15, Found { pid: 7, start_ticks: 70 })]);
    }

    /// A process that is gone is forgotten: who gets its number is looked at. One that has left is looked at when its time has come.
    #[test]
    fn numbers_are_used_again() {
        let mut discovery = Discovery::new(SECOND, SECOND);
        let start = Instant::now();
        let both = |discovery: &mut Discovery, pids: &[u32], second| {
            discovery.look_at(pids, start + SECOND * second, |_| Some(1)).len()
        };
        assert_eq!(both(&mut discovery, &[7, 8], 0), 2);
        assert_eq!(both(&mut discovery, &[7, 8], 1), 0);
        assert_eq!(both(&mut discovery, &[8], 2), 0);
        assert_eq!(both(&mut discovery, &[7, 8], 3), 1);
        discovery.forget(8, start + SECOND * 6);
        assert_eq!(both(&mut discovery, &[7, 8], 5), 0);
        assert_eq!(both(&mut discovery, &[7, 8], 6), 1);
        discovery.know(9, start);
        assert_eq!((both(&mut discovery, &[7, 8, 9], 7), discovery.seen()), (0, 3));
    }

    /// This machine has processes, and none of them is this one.
    #[test]
    fn processes_are_listed() {
        let parent = std::os::unix::process::parent_id();
        let pids = pids();
        assert!(pids.contains(&parent) && !pids.contains(&std::process::id()));
        assert_eq!(is_mapping(parent), None);
    }
}
