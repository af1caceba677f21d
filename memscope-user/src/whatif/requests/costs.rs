//! What a driver call costs: requests that made the pool grow took longer than those that did not.
//!
//! A recording has the time of a request and of its answer. The median of requests that were answered from the cache is taken off, and what is
//! left is divided by the driver calls inside. Requests that were retried, or had segments given back for them, do not count.

use schemars::JsonSchema;
use serde::Serialize;

use super::thread::OfPool;
use crate::robust::median;

/// Times that are kept of each kind. Beyond, each second one is dropped, so that those that are left are spread over the recording.
const MAX_TIMES: usize = 1 << 12;
/// Fewer say nothing.
const LEAST_TIMES: usize = 4;

/// Times of a kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct CallTime {
    /// Requests that it is from.
    pub requests: u64,
    /// Nanoseconds: a quarter of the calls takes less, half, and three quarters.
    pub quartiles_ns: [u64; 3],
}

impl CallTime {
    /// The middle.
    #[must_use]
    pub const fn median_ns(&self) -> u64 {
        self.quartiles_ns[1]
    }
}

/// What driver calls took, as far as the recording shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct CallTimes {
    /// To make a plain segment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segment: Option<CallTime>,
    /// To make and map a page of an expandable one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page: Option<CallTime>,
}

/// Times of requests that made no call, or that many.
#[derive(Clone, Debug, Default)]
struct Sample {
    /// Nanoseconds, and calls.
    times: Vec<(u64, u32)>,
    seen: u64,
    /// One of that many is kept, as a power of two.
    every: u32,
}

impl Sample {
    fn add(&mut self, time_ns: u64, calls: u32) {
        if self.seen.is_multiple_of(1 << self.every) {
            self.times.push((time_ns, calls));
        }
        self.seen += 1;
        if self.times.len() >= MAX_TIMES {
            let mut index = 0;
            self.times.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.every += 1;
        }
    }

    /// Of one call, beyond what a request takes without one.
    fn conclude(&self, without_ns: f64) -> Option<CallTime> {
        let of_one = |(time_ns, calls): &(u64, u32)| (*time_ns as f64 - without_ns).max(0.0) / f64::from(*calls);
        let mut times: Vec<f64> = self.times.iter().map(of_one).collect();
        if times.len() < LEAST_TIMES {
            return None;
        }
        times.sort_unstable_by(f64::total_cmp);
        let at = |quarter: usize| times[quarter * (times.len() - 1) / 4].round() as u64;
        Some(CallTime { requests: self.seen, quartiles_ns: [at(1), at(2), at(3)] })
    }
}

/// Collects them.
#[derive(Clone, Debug, Default)]
pub(super) struct Costs {
    cached: Sample,
    segments: Sample,
    pages: Sample,
}

impl Costs {
    /// A request that took that long, with the driver calls inside.
    pub(super) fn add(&mut self, time_ns: u64, inside: &OfPool) {
        let pages = inside.segments.iter().filter(|grown| grown.is_page()).count();
        let segments = inside.segments.len() - pages;
        if !inside.is_clean || !inside.reservations.is_empty() {
            return;
        }
        match (segments, pages) {
            (0, 0) => self.cached.add(time_ns, 1),
            (segments, 0) => self.segments.add(time_ns, segments as u32),
            (0, pages) => self.pages.add(time_ns, pages as u32),
            _ => {}
        }
    }

    pub(super) fn conclude(&self) -> CallTimes {
        let mut cached: Vec<f64> = self.cached.times.iter().map(|(time_ns, _)| *time_ns as f64).collect();
        if cached.len() < LEAST_TIMES {
            return CallTimes::default();
        }
        let without_ns = median(&mut cached);
        CallTimes { segment: self.segments.conclude(without_ns), page: self.pages.conclude(without_ns) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::whatif::requests::thread::{Grown, HANDLE, Reserved};

    fn inside(segments: usize, pages: usize) -> OfPool {
        let grown = |key| Grown { time_ns: 0, key, device: 0, bytes: 1, at: 0 };
        let segments = (0..segments).map(|_| grown(5)).chain((0..pages).map(|_| grown(5 | HANDLE))).collect();
        OfPool { segments, reservations: Vec::new(), is_clean: true }
    }

    /// Requests take 10, one of them 500 by chance; segments take 110 to 150, pages 40 each.
    #[test]
    fn calls_cost_what_is_beyond() {
        let mut costs = Costs::default();
        for time in [10, 10, 500, 10, 10] {
            costs.add(time, &inside(0, 0));
        }
        for time in [120, 130, 140, 150, 160] {
            costs.add(time, &inside(1, 0));
        }
        for pages in [1, 2, 5, 10] {
            costs.add(10 + 40 * pages as u64, &inside(0, pages));
        }
        // Both kinds in one request, a retry, and a range of addresses say nothing of a kind.
        costs.add(9000, &inside(1, 1));
        costs.add(9000, &OfPool { is_clean: false, ..inside(1, 0) });
        let reservations = vec![Reserved { time_ns: 0, device: 0, addr: 0 }];
        costs.add(9000, &OfPool { reservations, ..inside(0, 1) });
        let CallTimes { segment, page } = costs.conclude();
        assert_eq!(segment, Some(CallTime { requests: 5, quartiles_ns: [120, 130, 140] }));
        assert_eq!(page, Some(CallTime { requests: 4, quartiles_ns: [40; 3] }));
    }

    #[test]
    fn few_requests_say_nothing() {
        let mut costs = Costs::default();
        for _ in 0..LEAST_TIMES - 1 {
            costs.add(10, &inside(0, 0));
            costs.add(90, &inside(1, 0));
        }
        assert_eq!(costs.conclude(), CallTimes::default());
        costs.add(10, &inside(0, 0));
        assert_eq!(costs.conclude(), CallTimes::default());
        costs.add(90, &inside(1, 0));
        let found = CallTime { requests: 4, quartiles_ns: [80; 3] };
        assert_eq!(costs.conclude(), CallTimes { segment: Some(found), page: None });
    }

    /// Of a million requests a few thousand are kept, from all of the recording.
    #[test]
    fn times_are_bounded() {
        let mut sample = Sample::default();
        for time in 0..1_000_000 {
            sample.add(time, 1);
        }
        assert!((MAX_TIMES / 4..MAX_TIMES).contains(&sample.times.len()), "{}", sample.times.len());
        let found = sample.conclude(0.0).expect("times");
        assert_eq!(found.requests, 1_000_000);
        for (quarter, time) in (1..).zip(found.quartiles_ns) {
            assert!(time.abs_diff(250_000 * quarter) < 2_500, "{time}");
        }
    }
}
