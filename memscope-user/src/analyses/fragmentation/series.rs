//! Figures over time, in bounded memory.

use super::super::scale::Scale;
use super::space::Figures;
use super::{FreeSpace, FreeSpaceSample};

/// Figures by interval.
#[derive(Clone, Debug)]
pub(super) struct Series {
    scale: Scale,
    cells: Vec<Cell>,
}

/// One interval.
#[derive(Clone, Copy, Debug)]
struct Cell {
    /// At its end.
    last: Figures,
    /// When the most was scattered.
    worst: Figures,
}

impl Series {
    /// From `start_ns` on, when there was nothing.
    pub(super) const fn new(start_ns: u64) -> Self {
        Self { scale: Scale::new(start_ns), cells: Vec::new() }
    }

    pub(super) const fn start_ns(&self) -> u64 {
        self.scale.start_ns()
    }

    /// From `time_ns` on it is like this. Times never run backwards.
    pub(super) fn add(&mut self, time_ns: u64, figures: Figures) {
        let at = self.reach(time_ns);
        let cell = &mut self.cells[at];
        cell.last = figures;
        cell.worst = worse(cell.worst, figures);
    }

    /// The intervals up to `end_ns`.
    pub(super) fn close(mut self, end_ns: u64) -> Vec<FreeSpaceSample> {
        self.reach(end_ns);
        let samples = self.cells.iter().enumerate().map(|(at, cell)| FreeSpaceSample {
            time_ns: self.scale.end_of(at).min(end_ns),
            last: free_space(cell.last),
            worst: free_space(cell.worst),
        });
        samples.collect()
    }

    /// Number of the interval of a time; all stayed the same up to it.
    fn reach(&mut self, time_ns: u64) -> usize {
        let Self { scale, cells } = self;
        let at = scale.interval(time_ns, || {
            let joined = cells.chunks(2).map(|pair| {
                let worst = pair.iter().map(|cell| cell.worst).reduce(worse).unwrap_or_default();
                Cell { last: pair[pair.len() - 1].last, worst }
            });
            *cells = joined.collect();
        });
        let last = cells.last().map(|cell| cell.last).unwrap_or_default();
        if cells.len() <= at {
            cells.resize(at + 1, Cell { last, worst: last });
        }
        at
    }
}

/// That with more scattered, the earlier one of two.
fn worse(one: Figures, other: Figures) -> Figures {
    if other.scattered_bytes() > one.scattered_bytes() { other } else { one }
}

/// As findings have it.
pub(super) fn free_space(figures: Figures) -> FreeSpace {
    let Figures { total_bytes, free_bytes, largest_bytes, returnable_bytes, .. } = figures;
    let scattered_bytes = figures.scattered_bytes();
    let ratio = match free_bytes {
        0 => 0.0,
        _ => scattered_bytes as f64 / free_bytes as f64,
    };
    FreeSpace {
        total_bytes,
        used_bytes: total_bytes - free_bytes,
        free_bytes,
        largest_free_bytes: largest_bytes,
        returnable_bytes,
        scattered_bytes,
        ratio,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyses::scale::{FIRST_WIDTH_NS as W, MAX_INTERVALS};

    const fn figures(total_bytes: u64, free_bytes: u64, largest_bytes: u64) -> Figures {
        Figures { total_bytes, free_bytes, largest_bytes, returnable_bytes: 0, largest_kept_bytes: largest_bytes }
    }

    /// Total, used, free and largest piece.
    fn brief(space: FreeSpace) -> [u64; 4] {
        [space.total_bytes, space.used_bytes, space.free_bytes, space.largest_free_bytes]
    }

    #[test]
    fn samples_are_of_intervals() {
        let mut series = Series::new(1000);
        series.add(1000, figures(100, 100, 100));
        series.add(1001, figures(100, 60, 20));
        series.add(1002, figures(100, 50, 50));
        series.add(1000 + 2 * W, figures(100, 8, 2));
        let samples = series.close(1010 + 2 * W);
        let reported: Vec<_> =
            samples.iter().map(|it| (it.time_ns - 1000, brief(it.last), brief(it.worst), it.worst.ratio)).collect();
        let calm = [100, 50, 50, 50];
        let expected = [
            (W, calm, [100, 40, 60, 20], 2.0 / 3.0),
            (2 * W, calm, calm, 0.0),
            (10 + 2 * W, [100, 92, 8, 2], [100, 92, 8, 2], 0.75),
        ];
        assert_eq!(reported, expected);
    }

    /// However long it takes, the number of intervals is bounded, and the worst of joined ones stays.
    #[test]
    fn intervals_are_joined() {
        let mut series = Series::new(0);
        series.add(W, figures(100, 60, 20));
        series.add(W + 1, figures(100, 0, 0));
        let late = W * MAX_INTERVALS as u64 * 8;
        series.add(late, figures(10, 5, 5));
        let samples = series.close(late);
        assert!(samples.len() <= MAX_INTERVALS, "{}", samples.len());
        assert_eq!((brief(samples[0].last), brief(samples[0].worst)), ([100, 100, 0, 0], [100, 40, 60, 20]));
        let last = samples.last().expect("a sample");
        assert_eq!((last.time_ns, brief(last.last)), (late, [10, 5, 5, 5]));
    }
}
