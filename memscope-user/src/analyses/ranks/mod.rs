//! Which rank of a job holds other memory than its peers, at which place, and since when?
//!
//! Ranks of a job do the same in each step, so what one of them holds at the end of a step is held against the median of all. Steps have numbers,
//! which makes clocks of hosts needless; how far these are apart shows in the ends of the steps. A rank differs that is farther from the median
//! than four times the usual distance (median absolute deviation, scaled) and 1 MiB, at the last step that all have. Jobs in which ranks
//! hold different parts of a model (pipelines) have a large usual distance, and no rank of them is named for that.

mod finding;
mod recorder;
#[cfg(test)]
mod tests;
mod text;

use std::cmp::Reverse;
use std::collections::BTreeSet;

use self::recorder::Place;
pub use self::{
    finding::{Rank, RankDifference, Ranks},
    recorder::{Part, Recorded, Recorder, Run},
    text::write_ranks,
};
use crate::model::Device;

/// Fewer have no median that says anything.
pub const LEAST_RANKS: usize = 3;
/// Differences that are reported.
const MAX_REPORTED: usize = 50;
/// Less is none.
const LEAST_BYTES: f64 = (1 << 20) as f64;
/// Usual distances from the median.
const DISTANCES: f64 = 4.0;
/// The median absolute deviation of normally distributed values times this is their standard deviation.
const NORMAL: f64 = 1.4826;

/// Compares the ranks of a job, each with the name of its input.
#[must_use]
pub fn compare(ranks: Vec<(String, Recorded)>) -> Ranks {
    let (names, runs): (Vec<_>, Vec<Run>) =
        ranks.into_iter().map(|(input, rank)| ((input, rank.pid, rank.devices), rank.run)).unzip();
    let runs = &runs[..];
    let steps = common_steps(runs);
    let last = steps.last().copied();
    let with_stacks = runs.iter().filter(|run| run.stacks).count();
    let places = with_stacks == 0 || with_stacks == runs.len();
    let mut differences = match last {
        Some(last) => differences(runs, &steps, last, places),
        None => Vec::new(),
    };
    differences.sort_by_key(|found| {
        let is_part = found.place.is_some() || found.size_bytes.is_some();
        (is_part, Reverse(found.difference_bytes.unsigned_abs()), found.rank, found.pool, found.place)
    });
    let left_out = differences.len().saturating_sub(MAX_REPORTED) as u64;
    differences.truncate(MAX_REPORTED);
    let has_steps = last.is_some_and(|last| last > 0);
    Ranks {
        ranks: names.into_iter().zip(runs).map(|(name, run)| rank(name, run, runs, &steps)).collect(),
        common_steps: if has_steps { steps.len() as u64 } else { 0 },
        last_step: last.filter(|_| has_steps),
        places,
        differences,
        left_out,
    }
}

/// Steps that all have.
fn common_steps(runs: &[Run]) -> Vec<u32> {
    let Some((first, others)) = runs.split_first() else { return Vec::new() };
    let has = |step: &&u32| others.iter().all(|run| run.ends.contains_key(*step));
    first.ends.keys().filter(has).copied().collect()
}

fn rank(
    (input, pid, devices): (String, Option<u32>, BTreeSet<Device>),
    run: &Run,
    runs: &[Run],
    steps: &[u32],
) -> Rank {
    let ahead = |step: &u32| {
        let [own, first] = [run.ends.get(step)?, runs.first()?.ends.get(step)?];
        Some(own.cast_signed().wrapping_sub(first.cast_signed()))
    };
    // One end says nothing of clocks.
    let mut offsets: Vec<i64> = if steps.len() > 1 { steps.iter().filter_map(ahead).collect() } else { Vec::new() };
    offsets.sort_unstable();
    let offset = offsets.get(offsets.len() / 2).copied();
    let spread = offset.map(|offset| offsets.iter().map(|other| other.abs_diff(offset)).max().unwrap_or_default());
    Rank {
        input,
        pid,
        devices: devices.into_iter().collect(),
        steps: run.ends.keys().filter(|step| **step > 0).count() as u64,
        steps_from: run.steps_from,
        clock_offset_ns: offset,
        clock_spread_ns: spread,
        cut: run.cut,
    }
}

fn differences(runs: &[Run], steps: &[u32], last: u32, parts: bool) -> Vec<RankDifference> {
    let all: BTreeSet<Place> = runs.iter().flat_map(|run| run.held.keys().copied()).collect();
    let compared = all.into_iter().filter(|place| parts || *place == Place::all_of(place.pool));
    compared.flat_map(|place| of_place(runs, steps, last, place)).collect()
}

/// Ranks that differ at a place.
fn of_place(runs: &[Run], steps: &[u32], last: u32, place: Place) -> Vec<RankDifference> {
    let at = |step| -> Vec<f64> { runs.iter().map(|run| run.bytes(&place, step) as f64).collect() };
    let end = Moment::new(at(last));
    let differing = (0..runs.len()).filter(|rank| end.sign(*rank) != 0);
    differing
        .map(|rank| {
            let mut since = (last, end.difference(rank));
            for step in steps.iter().rev() {
                let moment = Moment::new(at(*step));
                if moment.sign(rank) != end.sign(rank) {
                    break;
                }
                since = (*step, moment.difference(rank));
            }
            let (since_step, first) = since;
            let span = steps.iter().filter(|step| **step > since_step).count();
            let growth = (end.difference(rank) - first) / span.max(1) as f64;
            RankDifference {
                rank: rank as u32,
                pool: place.pool,
                place: Some(place.stacks).filter(|stacks| !stacks.is_empty()),
                size_bytes: place.size_bytes,
                since_step: (last > 0).then_some(since_step),
                since_ns: runs[rank].ends.get(&since_step).copied().unwrap_or_default(),
                bytes: runs[rank].bytes(&place, last),
                median_bytes: end.median as u64,
                difference_bytes: end.difference(rank) as i64,
                growth_bytes_per_step: (span > 0 && growth != 0.0).then_some(growth),
            }
        })
        .collect()
}

/// What all ranks hold at the end of a step.
struct Moment {
    bytes: Vec<f64>,
    median: f64,
    limit: f64,
}

impl Moment {
    fn new(bytes: Vec<f64>) -> Self {
        let median = median(bytes.clone());
        let usual = median_of(bytes.iter().map(|bytes| (bytes - median).abs()));
        Self { median, limit: LEAST_BYTES.max(DISTANCES * NORMAL * usual), bytes }
    }

    fn difference(&self, rank: usize) -> f64 {
        self.bytes[rank] - self.median
    }

    /// 1: it holds more than is usual, -1: less, 0: neither.
    fn sign(&self, rank: usize) -> i8 {
        let difference = self.difference(rank);
        i8::from(difference > self.limit) - i8::from(difference < -self.limit)
    }
}

/// The middle one, the lower of two.
fn median(mut values: Vec<f64>) -> f64 {
    let middle = values.len().saturating_sub(1) / 2;
    if values.is_empty() { 0.0 } else { *values.select_nth_unstable_by(middle, f64::total_cmp).1 }
}

fn median_of(values: impl Iterator<Item = f64>) -> f64 {
    median(values.collect())
}
