//! The size of each component over time, in bounded memory.
//!
//! Time is cut into intervals of one width. When they are used up, the width is doubled and neighbours are joined. Each
//! keeps the growth of a component in it, so a block can be added when it has ended, under its final name.

use std::collections::BTreeMap;

use super::super::scale::Scale;
use super::clamped;
use super::{OwnerSample, OwnerTimeline};
use crate::model::Name;

/// Most components.
const MAX_COMPONENTS: usize = 64;
/// Stands for those beyond.
const OTHERS: Name = Name::fixed(&"others");

/// Growth by component and interval.
#[derive(Debug)]
pub(super) struct Timeline {
    scale: Scale,
    growth: BTreeMap<Name, Vec<i128>>,
    /// Highest live bytes of all in each interval.
    highest: Vec<u128>,
    live_bytes: u128,
}

impl Timeline {
    pub(super) const fn new(start_ns: u64) -> Self {
        Self { scale: Scale::new(start_ns), growth: BTreeMap::new(), highest: Vec::new(), live_bytes: 0 }
    }

    /// From `time_ns` on there are `live_bytes` in all. Times never run backwards.
    pub(super) fn total(&mut self, time_ns: u64, live_bytes: u128) {
        let at = self.interval(time_ns);
        // Up to now nothing changed.
        while self.highest.len() <= at {
            self.highest.push(self.live_bytes);
        }
        self.highest[at] = self.highest[at].max(live_bytes);
        self.live_bytes = live_bytes;
    }

    /// `bytes` of a component came at a time, or went.
    pub(super) fn grow(&mut self, component: Name, time_ns: u64, bytes: i128) {
        let at = self.interval(time_ns);
        let known = self.growth.contains_key(&component) || self.growth.len() < MAX_COMPONENTS;
        let growth = self.growth.entry(if known { component } else { OTHERS }).or_default();
        if growth.len() <= at {
            growth.resize(at + 1, 0);
        }
        growth[at] += bytes;
    }

    /// The state at the end of each interval, up to `end_ns`.
    pub(super) fn close(mut self, end_ns: u64) -> OwnerTimeline {
        self.total(end_ns, self.live_bytes);
        let count = self.highest.len();
        // Components that never lasted have no column of zeros.
        let columns: Vec<(Name, Vec<u64>)> = self
            .growth
            .into_iter()
            .map(|(component, growth)| {
                let mut bytes: i128 = 0;
                let at = |at: usize| growth.get(at).copied().unwrap_or(0);
                let column = (0..count).map(|interval| {
                    bytes += at(interval);
                    clamped(bytes.max(0).unsigned_abs())
                });
                (component, column.collect())
            })
            .filter(|(_, column): &(Name, Vec<u64>)| column.iter().any(|bytes| *bytes > 0))
            .collect();
        let samples = (0..count).map(|at| OwnerSample {
            time_ns: self.scale.end_of(at).min(end_ns),
            highest_bytes: clamped(self.highest[at]),
            bytes: columns.iter().map(|(_, column)| column[at]).collect(),
        });
        let samples = samples.collect();
        OwnerTimeline { components: columns.into_iter().map(|(component, _)| component).collect(), samples }
    }

    /// Number of the interval of a time; makes room for it.
    fn interval(&mut self, time_ns: u64) -> usize {
        let Self { scale, growth, highest, .. } = self;
        scale.interval(time_ns, || {
            for growth in growth.values_mut() {
                *growth = growth.chunks(2).map(|pair| pair.iter().sum()).collect();
            }
            *highest = highest.chunks(2).map(|pair| pair.iter().copied().max().unwrap_or(0)).collect();
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyses::scale::{FIRST_WIDTH_NS as W, MAX_INTERVALS};

    const A: Name = Name::fixed(&"a");
    const B: Name = Name::fixed(&"b");

    /// 100 bytes of a from the first interval to the third, 7 of b within the second.
    fn timeline() -> Timeline {
        let mut timeline = Timeline::new(1000);
        timeline.total(1000, 100);
        timeline.total(1000 + W, 107);
        timeline.total(1010 + W, 100);
        timeline.total(1000 + 2 * W, 0);
        timeline.grow(A, 1000, 100);
        timeline.grow(A, 1000 + 2 * W, -100);
        timeline.grow(B, 1000 + W, 7);
        timeline.grow(B, 1010 + W, -7);
        timeline
    }

    #[test]
    fn samples_are_at_the_end_of_intervals() {
        let OwnerTimeline { components, samples } = timeline().close(1000 + 3 * W);
        // b never was there at an end.
        assert_eq!(components, [A]);
        let reported: Vec<_> = samples.iter().map(|it| (it.time_ns - 1000, it.highest_bytes, it.bytes[0])).collect();
        assert_eq!(reported, [(W, 100, 100), (2 * W, 107, 100), (3 * W, 100, 0), (3 * W, 0, 0)]);
    }

    /// However long it takes, the number of intervals is bounded, and joining loses nothing.
    #[test]
    fn intervals_are_joined() {
        let mut timeline = timeline();
        let late = 1000 + W * MAX_INTERVALS as u64 * 8;
        timeline.total(late, 5);
        timeline.grow(A, late, 5);
        let OwnerTimeline { samples, .. } = timeline.close(late);
        assert!(samples.len() <= MAX_INTERVALS, "{}", samples.len());
        assert_eq!((samples[0].highest_bytes, samples[0].bytes[0]), (107, 0));
        let last = samples.last().expect("a sample");
        assert_eq!((last.time_ns, last.highest_bytes, last.bytes[0]), (late, 5, 5));
    }
}
