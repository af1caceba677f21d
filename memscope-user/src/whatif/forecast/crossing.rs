//! When a series reaches a limit: the interval of many drawn futures.

use crate::robust::{Chance, Point, last_stretch, line, median};

/// Number of drawn futures.
const DRAWS: usize = 300;
/// Both ends of the interval of 90 %.
const ENDS: [f64; 3] = [0.05, 0.5, 0.95];
/// Growth counts if fewer than this part of the futures shrink.
const SURE: f64 = 0.02;
/// Residuals that resemble their neighbours more than this are no noise around a line.
const RELATED: f64 = 0.35;
/// What intervals of drawn residuals miss, as a factor of the time left (`e^0.15`): by calibration on made-up servers.
const WIDER: f64 = 1.161_834_242_728_283;
/// The same for residuals and slopes themselves.
const RESIDUALS: f64 = 1.3;
const INCREMENTS: f64 = 1.25;
/// Futures end after this many times the observed time.
pub(super) const HORIZON: f64 = 60.0;

/// The result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Crossing {
    pub(super) grows: bool,
    /// Per second: low, middle, high.
    pub(super) slope: [f64; 3],
    /// Seconds left: earliest, middle, latest; `None` is never.
    pub(super) times: Option<[Option<f64>; 3]>,
}

/// A straight stretch and its residuals.
struct Stretch<'a> {
    points: &'a [Point],
    slope: f64,
    rest: f64,
    residuals: Vec<f64>,
    increments: Vec<f64>,
    step: f64,
    now: f64,
    horizon: f64,
    limit: f64,
}

/// Of the peaks of parts, in a recording that ends at `now`.
pub(super) fn crossing(envelope: &[Point], now: f64, limit: Option<f64>) -> Crossing {
    let points = &envelope[last_stretch(envelope)..];
    let (slope, rest) = line(points);
    let residuals: Vec<f64> = points.iter().map(|(time, value)| value - (slope * time + rest)).collect();
    let increments = points.windows(2).map(|pair| pair[1].1 - pair[0].1).collect();
    let step = points.get(1).map_or(1.0, |second| second.0 - points[0].0);
    let first = envelope.first().map_or(0.0, |point| point.0);
    let horizon = now + HORIZON * (now - first);
    let limit = limit.unwrap_or(f64::INFINITY);
    let stretch = Stretch { points, slope, rest, residuals, increments, step, now, horizon, limit };
    let wanders = related(&stretch.residuals) > RELATED && !stretch.increments.is_empty();
    let mut chance = Chance::new(1);
    let futures: Vec<(f64, f64)> =
        (0..DRAWS).map(|_| if wanders { stretch.wander(&mut chance) } else { stretch.straight(&mut chance) }).collect();
    let sorted = |of: fn(&(f64, f64)) -> f64| {
        let mut values: Vec<f64> = futures.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let (slopes, times) = (sorted(|future| future.0), sorted(|future| future.1));
    let at = |values: &[f64], part: f64| values[((part * values.len() as f64) as usize).min(values.len() - 1)];
    let left = |part: f64, factor: f64| {
        let time = at(&times, part);
        time.is_finite().then(|| (time - now).max(0.0) * factor)
    };
    let times = limit.is_finite().then(|| [left(ENDS[0], 1.0 / WIDER), left(ENDS[1], 1.0), left(ENDS[2], WIDER)]);
    Crossing { grows: at(&slopes, SURE) > 0.0, slope: [at(&slopes, ENDS[0]), slope, at(&slopes, ENDS[2])], times }
}

/// Similarity of residuals to their neighbours: their autocorrelation.
fn related(residuals: &[f64]) -> f64 {
    let mean = residuals.iter().sum::<f64>() / residuals.len().max(1) as f64;
    let variance: f64 = residuals.iter().map(|rest| (rest - mean).powi(2)).sum();
    let pairs: f64 = residuals.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum();
    if variance > 0.0 { pairs / variance } else { 0.0 }
}

impl Stretch<'_> {
    /// `count` values, drawn in blocks of neighbours.
    fn drawn(values: &[f64], count: usize, block: usize, chance: &mut Chance) -> Vec<f64> {
        let block = block.min(values.len()).max(1);
        let mut drawn = Vec::with_capacity(count + block);
        while drawn.len() < count {
            let start = chance.below(values.len() - block + 1);
            drawn.extend_from_slice(&values[start..start + block]);
        }
        drawn.truncate(count);
        drawn
    }

    /// Slope and time of crossing where noise is around a line.
    fn straight(&self, chance: &mut Chance) -> (f64, f64) {
        let count = self.points.len();
        let block = ((count as f64).cbrt().round() as usize + 1).max(2);
        let noise = Self::drawn(&self.residuals, count, block, chance);
        let again: Vec<Point> = self
            .points
            .iter()
            .zip(&noise)
            .map(|((time, _), noise)| (*time, self.slope * time + self.rest + RESIDUALS * noise))
            .collect();
        let slope = self.slope + RESIDUALS * (line(&again).0 - self.slope);
        let mut rests: Vec<f64> = self.points.iter().map(|(time, value)| value - slope * time).collect();
        let rest = median(&mut rests);
        if slope <= 0.0 || self.limit.is_infinite() {
            return (slope, f64::INFINITY);
        }
        let most = self.residuals.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let least = self.residuals.iter().copied().fold(f64::INFINITY, f64::min);
        let mut time = ((self.limit - rest - RESIDUALS * most) / slope).max(self.now + self.step / 2.0);
        let sure = ((self.limit - rest - least) / slope).max(time).min(self.horizon);
        let mut index = chance.below(count);
        while time < sure && slope * time + rest + self.residuals[index] < self.limit {
            time += self.step;
            let goes_on = chance.part() > 1.0 / block as f64;
            index = if goes_on { (index + 1) % count } else { chance.below(count) };
        }
        if time >= self.horizon {
            return (slope, f64::INFINITY);
        }
        (slope, (time - self.step * chance.part()).max(self.now))
    }

    /// The same where growth itself is chance: bursts, heavy tails.
    fn wander(&self, chance: &mut Chance) -> (f64, f64) {
        let count = self.increments.len();
        let block = (self.points.len() / 5).max(3);
        let mean = self.increments.iter().sum::<f64>() / count as f64;
        let drawn = Self::drawn(&self.increments, count, block, chance);
        let drift = mean + INCREMENTS * (drawn.iter().sum::<f64>() / count as f64 - mean);
        let slope = drift / self.step;
        if drift <= 0.0 || self.limit.is_infinite() {
            return (slope, f64::INFINITY);
        }
        let last = self.points.last().map_or(0.0, |point| point.1);
        let on_line = self.points.last().map_or(0.0, |point| self.slope * point.0 + self.rest);
        let mut level = if chance.part() < 0.5 { last } else { on_line };
        let (mut time, mut index, mut steps) = (self.now, 0, 0);
        while level < self.limit && time < self.horizon {
            if steps % block == 0 {
                index = chance.below(count);
            }
            level += self.increments[index % count] + drift - mean;
            (index, steps, time) = (index + 1, steps + 1, time + self.step);
        }
        (slope, if time < self.horizon { time } else { f64::INFINITY })
    }
}
