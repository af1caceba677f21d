//! What was held, minute by minute: how fast it grows, and when a pool is full.

use std::collections::VecDeque;

use crate::{robust, whatif::forecast};

/// Points of growth, one a minute.
const MAX_POINTS: usize = 60;
/// Fewer say nothing of growth.
const LEAST_POINTS: usize = 10;
const MINUTE_NS: u64 = 60_000_000_000;

/// What was held at the end of each minute, the newest last.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Points {
    held: VecDeque<(u32, u64)>,
    /// As of the last one.
    slope: Option<f64>,
}

impl Points {
    pub(super) fn add(&mut self, minute: u32, bytes: u64) {
        if self.held.len() >= MAX_POINTS {
            self.held.pop_front();
        }
        // The clock was set back: what was before has no place on it.
        if self.held.back().is_some_and(|(last, _)| *last > minute) {
            self.held.clear();
        }
        self.held.push_back((minute, bytes));
        self.slope = self.median_slope();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// In bytes a second.
    pub(super) const fn slope(&self) -> Option<f64> {
        self.slope
    }

    fn median_slope(&self) -> Option<f64> {
        if self.held.len() < LEAST_POINTS {
            return None;
        }
        let point = |&(minute, bytes): &(u32, u64)| (f64::from(minute) * 60.0, bytes as f64);
        robust::slope(&self.held.iter().map(point).collect::<Vec<robust::Point>>())
    }
}

/// What a pool says it holds, at most in each minute.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Curve {
    /// The most that it held, and had handed out of that, since the last minute.
    peak: [u64; 2],
    held: Option<forecast::Series>,
    /// As of the last minute.
    full: Option<[Option<f64>; 3]>,
}

impl Curve {
    pub(super) fn reported(&mut self, reserved_bytes: u64, used_bytes: u64) {
        self.peak = [self.peak[0].max(reserved_bytes), self.peak[1].max(used_bytes)];
    }

    /// A minute is over, at the end of which the pool holds the first of `now`, and has handed out the second. `free_bytes`: what the
    /// driver has free on the device.
    pub(super) fn minute(&mut self, minute: u32, now: [u64; 2], free_bytes: Option<u64>) {
        let time_ns = u64::from(minute) * MINUTE_NS;
        // As in `Points`.
        self.held.take_if(|held| held.end_ns() > time_ns);
        let held = self.held.get_or_insert_with(|| forecast::Series::by_minute(time_ns));
        held.add(time_ns, self.peak);
        self.peak = now;
        self.full = free_bytes.and_then(|free| forecast::seconds_left(held, now[0].saturating_add(free)));
    }

    /// As [`Series::seconds_left`](super::series::Series::seconds_left).
    pub(super) const fn seconds_left(&self) -> Option<[Option<f64>; 3]> {
        self.full
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pool that holds this much at the end of each minute, on a device where the driver has this much free then, in MiB.
    fn watched(minutes: impl Iterator<Item = (u64, u64)>) -> Option<[Option<f64>; 3]> {
        let mut curve = Curve::default();
        for (minute, (reserved, free)) in minutes.enumerate() {
            let [reserved, used] = [reserved << 20, reserved << 19];
            curve.reported(reserved, used);
            curve.minute(1000 + minute as u32, [reserved, used], Some(free << 20));
        }
        curve.seconds_left()
    }

    /// A pool of 100 MiB takes one more each minute of the 100 that are free: after 40 minutes 61 are left, an hour and a minute.
    #[test]
    fn full_pools_are_foreseen() {
        let grows = |minutes| watched((0..minutes).map(|minute| (100 + minute, 100 - minute)));
        let [early, middle, late] = grows(40).expect("it grows").map(|time| time.expect("a time"));
        assert!(early <= 3660.0 && 3660.0 <= late, "{early} to {late}");
        assert!((middle / 3660.0 - 1.0).abs() < 0.05, "{middle}");
        assert_eq!(grows(15), None, "too little was seen");
        assert_eq!(watched((0..40).map(|_| (100, 100))), None, "it does not grow");
        assert_eq!(watched((0..40).map(|minute| (100 + minute % 3, 100))), None, "it goes up and down");
        assert_eq!(watched((0..40).map(|minute| (140 - minute, 100))), None, "it shrinks");
    }

    /// Where others fill the device the pool has less to grow into: the room of the last minute counts.
    #[test]
    fn others_fill_the_device() {
        let middle = |left: Option<[Option<f64>; 3]>| left.expect("it grows")[1].expect("a time");
        let alone = middle(watched((0..40).map(|minute| (100 + minute, 1000))));
        let beside = middle(watched((0..40).map(|minute| (100 + minute, 1000 - 20 * minute))));
        assert!((alone / 60_000.0 - 1.0).abs() < 0.05, "{alone}");
        assert!((beside / 13_200.0 - 1.0).abs() < 0.05, "{beside}");
    }

    /// What a pool held within a minute counts: here a request of 60 MiB in each, more and more of which stays.
    #[test]
    fn peaks_count() {
        let mut curve = Curve::default();
        for minute in 0..40_u32 {
            let held = 100 + u64::from(minute);
            curve.reported((held + 60) << 20, 0);
            curve.reported(held << 20, 0);
            curve.minute(minute, [held << 20, 0], Some((300 - held) << 20));
        }
        // 300 MiB in all, of which the last minute took 199: 101 minutes.
        let middle = curve.seconds_left().expect("it grows")[1].expect("a time");
        assert!((middle / 6060.0 - 1.0).abs() < 0.05, "{middle}");
    }

    /// A clock that is set back begins both again: a pool that shrinks ever since does not grow, though what it held then is more than what it held at
    /// these times before.
    #[test]
    fn a_clock_that_is_set_back() {
        let (mut points, mut curve) = (Points::default(), Curve::default());
        let minutes = (1000..1040).map(|minute| (minute, 100 + u64::from(minute)));
        let set_back = (900..940).map(|minute| (minute, 3000 - u64::from(minute)));
        for (minute, held) in minutes.chain(set_back) {
            points.add(minute, held << 20);
            curve.reported(held << 20, 0);
            curve.minute(minute, [held << 20, 0], Some(100 << 20));
        }
        assert_eq!(curve.seconds_left(), None);
        let a_minute = points.slope().expect("points") * 60.0 / f64::from(1 << 20);
        assert!((a_minute + 1.0).abs() < 1e-9, "{a_minute}");
    }

    /// Weeks take no more memory than hours, and a growth that goes on is still seen.
    #[test]
    fn weeks_are_bounded() {
        let mut curve = Curve::default();
        for minute in 0..40_000_u32 {
            let held = u64::from(1000 + minute) << 20;
            curve.reported(held, 0);
            curve.minute(minute, [held, 0], None);
        }
        curve.minute(40_000, [40_999 << 20, 0], Some(10_000 << 20));
        let middle = curve.seconds_left().expect("it grows")[1].expect("a time");
        assert!((middle / 600_000.0 - 1.0).abs() < 0.05, "{middle}");
        assert!(curve.held.expect("a series").len() <= 256);
    }
}
