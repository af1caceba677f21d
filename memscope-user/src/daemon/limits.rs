//! Limits of the daemon, per user and in all.

use std::{collections::HashMap, time::Instant};

/// Connections without an answer, of all users.
const MAX_CONNECTIONS: usize = 256;
/// Of one user: so none keeps others out.
const MAX_CONNECTIONS_PER_USER: usize = 16;
/// Most users with remembered starts; beyond, users without recent starts are forgotten.
const MAX_REMEMBERED: usize = 1024;

/// The command line's limits.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Processes traced at once.
    pub targets: usize,
    /// The same, per user.
    pub targets_per_user: usize,
    /// Tracers started for a user, in a minute and at once.
    pub starts_per_minute: u32,
}

/// The current use.
#[derive(Debug)]
pub struct Usage {
    limits: Limits,
    connections: HashMap<u32, usize>,
    targets: HashMap<u32, usize>,
    starts: HashMap<u32, Allowance>,
}

/// Starts that a user still has, as of then.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    starts: f64,
    at: Instant,
}

impl Usage {
    /// No user is there.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, connections: HashMap::new(), targets: HashMap::new(), starts: HashMap::new() }
    }

    /// Counts a user's connection, or returns why it is refused.
    pub fn connect(&mut self, uid: u32) -> Result<(), String> {
        if count(&self.connections, uid) >= MAX_CONNECTIONS_PER_USER {
            return Err(format!(
                "user {uid} has {MAX_CONNECTIONS_PER_USER} requests open, which is the limit; try again"
            ));
        }
        if total(&self.connections) >= MAX_CONNECTIONS {
            return Err(format!("{MAX_CONNECTIONS} requests are open, which is the limit; try again"));
        }
        *self.connections.entry(uid).or_default() += 1;
        Ok(())
    }

    /// It was answered.
    pub fn disconnect(&mut self, uid: u32) {
        release(&mut self.connections, uid);
    }

    /// Counts a process to trace, or returns why it is refused.
    pub fn trace(&mut self, uid: u32, now: Instant) -> Result<(), String> {
        let Limits { targets, targets_per_user, starts_per_minute } = self.limits;
        if count(&self.targets, uid) >= targets_per_user {
            return Err(format!(
                "user {uid} has {targets_per_user} processes traced, which is the limit (--max-targets-per-user)"
            ));
        }
        if total(&self.targets) >= targets {
            return Err(format!("{targets} processes are traced, which is the limit (--max-targets)"));
        }
        if !self.start(uid, now) {
            return Err(format!(
                "user {uid} has had {starts_per_minute} tracers started within a minute, which is the limit (--max-starts-per-minute)"
            ));
        }
        *self.targets.entry(uid).or_default() += 1;
        Ok(())
    }

    /// Its tracer has ended.
    pub fn end(&mut self, uid: u32) {
        release(&mut self.targets, uid);
    }

    fn start(&mut self, uid: u32, now: Instant) -> bool {
        let most = f64::from(self.limits.starts_per_minute);
        let current = |allowance: &Allowance| {
            let seconds = now.saturating_duration_since(allowance.at).as_secs_f64();
            (allowance.starts + seconds * most / 60.0).min(most)
        };
        if self.starts.len() >= MAX_REMEMBERED {
            self.starts.retain(|_, allowance| current(allowance) < most);
        }
        let starts = self.starts.get(&uid).map_or(most, current);
        // No room for one more user with a recent start: that user waits, too.
        if starts < 1.0 || (self.starts.len() >= MAX_REMEMBERED && !self.starts.contains_key(&uid)) {
            return false;
        }
        self.starts.insert(uid, Allowance { starts: starts - 1.0, at: now });
        true
    }
}

fn count(of: &HashMap<u32, usize>, uid: u32) -> usize {
    of.get(&uid).copied().unwrap_or_default()
}

fn total(of: &HashMap<u32, usize>) -> usize {
    of.values().sum()
}

/// Users without any use are not kept.
fn release(of: &mut HashMap<u32, usize>, uid: u32) {
    if let Some(count) = of.get_mut(&uid) {
        *count -= 1;
        if *count == 0 {
            of.remove(&uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn usage() -> Usage {
        Usage::new(Limits { targets: 5, targets_per_user: 3, starts_per_minute: 6 })
    }

    #[test]
    fn connections_are_counted_per_user_and_in_all() {
        let mut usage = usage();
        for uid in 1..=16 {
            for _ in 0..16 {
                usage.connect(uid).expect("room");
            }
            let refusal = format!("user {uid} has 16 requests open, which is the limit; try again");
            assert_eq!(usage.connect(uid), Err(refusal));
        }
        assert_eq!(usage.connect(17), Err("256 requests are open, which is the limit; try again".to_owned()));
        usage.disconnect(1);
        usage.connect(17).expect("room again");
    }

    #[test]
    fn targets_are_counted_per_user_and_in_all() {
        let (mut usage, now) = (usage(), Instant::now());
        for _ in 0..3 {
            usage.trace(1, now).expect("room");
        }
        assert!(usage.trace(1, now).expect_err("full").contains("(--max-targets-per-user)"));
        usage.trace(2, now).expect("room");
        usage.trace(2, now).expect("room");
        assert!(usage.trace(2, now).expect_err("full").contains("(--max-targets)"));
        usage.end(1);
        usage.trace(2, now).expect("room again");
        assert!(usage.trace(1, now).is_err());
    }

    /// Six at once, then one every ten seconds.
    #[test]
    fn starts_come_back_with_time() {
        let (mut usage, start) = (usage(), Instant::now());
        let mut at = |seconds| {
            let result = usage.trace(1, start + Duration::from_secs(seconds));
            if result.is_ok() {
                usage.end(1);
            }
            result.is_ok()
        };
        assert!((0..6).all(|_| at(0)));
        assert!(!at(0) && !at(9));
        assert!(at(10) && !at(10));
        assert!((0..6).all(|_| at(1000)) && !at(1000));
    }

    /// Users that look like new ones are forgotten; beyond the bound no new user can start.
    #[test]
    fn memory_is_bounded() {
        let (mut usage, start) = (usage(), Instant::now());
        let started = (0..5000).filter(|uid| usage.start(*uid, start)).count();
        assert_eq!((started, usage.starts.len()), (1024, 1024));
        assert!(usage.start(6000, start + Duration::from_secs(60)));
        assert_eq!(usage.starts.len(), 1);
    }
}
