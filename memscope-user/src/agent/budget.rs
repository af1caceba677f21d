//! How much the agent may take, and what it gives up to keep to that. Pure.
//!
//! Five levels. The agent goes down by one when it was over its budget three times in a row, or lost records; up by one when it was below half
//! of it for five minutes; never more than one step in a minute.

use std::{fmt, time::Duration};

/// Readings over the budget before the next level.
const OVER_READINGS: u32 = 3;
/// Lost of all records.
const MAX_LOSS: f64 = 0.001;
/// This long below half of the budget before the last level again.
const CALM: Duration = Duration::from_secs(300);
/// Least time from step to step.
const STEP: Duration = Duration::from_secs(60);
/// Time without any trace.
const DETACHED: Duration = Duration::from_secs(600);

/// How much is traced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// All that the settings ask for.
    #[default]
    All = 0,
    /// No call stacks of Python.
    NoPython = 1,
    /// No call stacks: places are sizes.
    NoStacks = 2,
    /// The processes with most events are traced without their pools.
    NoBusy = 3,
    /// Nothing is traced.
    Detached = 4,
}

impl Level {
    const ALL: [Self; 5] = [Self::All, Self::NoPython, Self::NoStacks, Self::NoBusy, Self::Detached];

    /// Its number, as it is on the page.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    fn below(self) -> Option<Self> {
        Self::ALL.get(usize::from(self.number()) + 1).copied()
    }

    fn above(self) -> Option<Self> {
        Some(Self::ALL[usize::from(self.number().checked_sub(1)?)])
    }
}

/// Why the level has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Processor time was over the budget.
    Cpu,
    /// Records were lost.
    Loss,
    /// There was room again.
    Recovered,
}

impl Reason {
    /// All of them, as they are on the page.
    pub const ALL: [Self; 3] = [Self::Cpu, Self::Loss, Self::Recovered];

    /// As a label.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Loss => "loss",
            Self::Recovered => "recovered",
        }
    }
}

/// What was measured since the last time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// Time since the agent began.
    pub now: Duration,
    /// Processor time of all parts, in cores.
    pub cores: f64,
    /// Records of the interval, and those lost of them.
    pub records: u64,
    /// Lost ones.
    pub lost: u64,
}

/// A step from one level to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Before.
    pub from: Level,
    /// From now on.
    pub to: Level,
    /// Why.
    pub reason: Reason,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "level {} -> {} ({})", self.from.number(), self.to.number(), self.reason.name())
    }
}

/// Keeps to a budget.
#[derive(Clone, Debug)]
pub struct Budget {
    cores: f64,
    level: Level,
    over: u32,
    /// Since when it is below half.
    calm_since: Option<Duration>,
    stepped: Option<Duration>,
}

impl Budget {
    /// At most this many cores, averaged over an interval.
    #[must_use]
    pub const fn new(cores: f64) -> Self {
        Self { cores, level: Level::All, over: 0, calm_since: None, stepped: None }
    }

    /// The level at the moment.
    #[must_use]
    pub const fn level(&self) -> Level {
        self.level
    }

    /// Takes a reading. Gives the step that follows from it.
    pub fn read(&mut self, reading: &Reading) -> Option<Step> {
        let is_over = reading.cores > self.cores;
        let all = reading.records.saturating_add(reading.lost);
        let is_lossy = reading.lost > 0 && reading.lost as f64 > MAX_LOSS * all as f64;
        self.over = if is_over { self.over + 1 } else { 0 };
        let is_calm = reading.cores < self.cores / 2.0 && !is_lossy;
        self.calm_since = if is_calm { self.calm_since.or(Some(reading.now)) } else { None };
        let since_step = self.stepped.map(|stepped| reading.now.saturating_sub(stepped));
        if since_step.is_some_and(|since| since < STEP) {
            return None;
        }
        let down = |reason| self.level.below().map(|level| (level, reason));
        let (to, reason) = if self.level == Level::Detached {
            // Nothing is measured while nothing is traced: it is tried again.
            let is_time = since_step.is_none_or(|since| since >= DETACHED);
            is_time.then_some((Level::NoBusy, Reason::Recovered))
        } else if is_lossy {
            down(Reason::Loss)
        } else if self.over >= OVER_READINGS {
            down(Reason::Cpu)
        } else if self.calm_since.is_some_and(|since| reading.now.saturating_sub(since) >= CALM) {
            self.level.above().map(|level| (level, Reason::Recovered))
        } else {
            None
        }?;
        let step = Step { from: self.level, to, reason };
        (self.level, self.over, self.calm_since, self.stepped) = (to, 0, None, Some(reading.now));
        Some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Readings every ten seconds; gives second and level of each step.
    fn steps(budget: &mut Budget, from: u64, readings: impl IntoIterator<Item = (f64, u64)>) -> Vec<(u64, u8, Reason)> {
        let mut found = Vec::new();
        for (number, (cores, lost)) in readings.into_iter().enumerate() {
            let second = from + number as u64 * 10;
            let reading = Reading { now: Duration::from_secs(second), cores, records: 10_000, lost };
            if let Some(step) = budget.read(&reading) {
                assert_eq!(step.to, budget.level());
                assert_eq!(step.from.number().abs_diff(step.to.number()), 1);
                found.push((second, step.to.number(), step.reason));
            }
        }
        found
    }

    /// Over the budget for good: the third reading is the first step, and each minute another one follows, down to the last.
    #[test]
    fn over_the_budget_it_goes_down_step_by_step() {
        let mut budget = Budget::new(0.02);
        let found = steps(&mut budget, 0, [(0.03, 0); 30]);
        let cpu = |second, level| (second, level, Reason::Cpu);
        assert_eq!(found, [cpu(20, 1), cpu(80, 2), cpu(140, 3), cpu(200, 4)]);
    }

    /// A reading that is not over begins the count again.
    #[test]
    fn short_bursts_are_borne() {
        let mut budget = Budget::new(0.02);
        let readings = (0..300).map(|number| (if number % 3 == 2 { 0.019 } else { 5.0 }, 0));
        assert_eq!(steps(&mut budget, 0, readings), []);
    }

    /// Loss does not wait; one of a thousand is borne.
    #[test]
    fn loss_goes_down_at_once() {
        let mut budget = Budget::new(0.02);
        assert_eq!(steps(&mut budget, 0, [(0.01, 10)]), []);
        assert_eq!(steps(&mut budget, 10, [(0.01, 11)]), [(10, 1, Reason::Loss)]);
    }

    /// Below half for five minutes it goes up, again after five more; between half and all it stays.
    #[test]
    fn it_recovers_slowly() {
        let mut budget = Budget::new(0.02);
        assert_eq!(steps(&mut budget, 0, [(0.03, 0); 9]).len(), 2);
        assert_eq!(steps(&mut budget, 90, [(0.015, 0); 100]), []);
        let recovered = |second, level| (second, level, Reason::Recovered);
        let found = steps(&mut budget, 2000, [(0.005, 0); 100]);
        assert_eq!(found, [recovered(2300, 1), recovered(2610, 0)]);
    }

    /// Detached, it tries again after ten minutes, whatever the figures are.
    #[test]
    fn detached_it_tries_again() {
        let mut budget = Budget::new(0.02);
        let down = steps(&mut budget, 0, [(0.03, 0); 21]);
        assert_eq!(down.last(), Some(&(200, 4, Reason::Cpu)));
        let found = steps(&mut budget, 210, [(0.0, 0); 70]);
        assert_eq!(found.first(), Some(&(800, 3, Reason::Recovered)));
    }
}
