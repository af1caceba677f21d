//! Statistics that outliers do not lead astray.

/// A time in seconds and a value.
pub(crate) type Point = (f64, f64);

/// The middle of values, the upper one of two.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    let middle = values.len() / 2;
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}

/// The median of the slopes of all pairs (Theil, Sen): a jump or a dip changes it little. `None` where all times are equal.
pub(crate) fn slope(points: &[Point]) -> Option<f64> {
    let mut slopes = Vec::with_capacity(points.len() * points.len() / 2);
    for (index, (time, value)) in points.iter().enumerate() {
        let later = points[index + 1..].iter().filter(|(other, _)| other > time);
        slopes.extend(later.map(|(other, higher)| (higher - value) / (other - time)));
    }
    (!slopes.is_empty()).then(|| median(&mut slopes))
}

/// Slope and intercept by Theil and Sen: the medians over all pairs.
pub(crate) fn line(points: &[Point]) -> (f64, f64) {
    let slope = slope(points).unwrap_or(0.0);
    let mut rests: Vec<f64> = points.iter().map(|(time, value)| value - slope * time).collect();
    (slope, median(&mut rests))
}

/// The highest value of each part, at the middle of its time.
pub(crate) fn envelope(points: &[Point], parts: usize) -> Vec<Point> {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return Vec::new() };
    let width = (last.0 - first.0) / parts as f64;
    if width <= 0.0 {
        return Vec::new();
    }
    let mut best: Vec<Option<f64>> = vec![None; parts];
    for (time, value) in points {
        let part = (((time - first.0) / width) as usize).min(parts - 1);
        best[part] = Some(best[part].map_or(*value, |known: f64| known.max(*value)));
    }
    let middle = |part: usize| first.0 + (part as f64 + 0.5) * width;
    best.into_iter().enumerate().filter_map(|(part, value)| Some((middle(part), value?))).collect()
}

/// Where the last straight stretch begins: growth may have set in late.
pub(crate) fn last_stretch(points: &[Point]) -> usize {
    let mut start = 0;
    while points.len() - start >= 16 {
        let middle = start + (points.len() - start) / 2;
        let (before, _) = line(&points[start..middle]);
        let (behind, _) = line(&points[middle..]);
        let mut jumps: Vec<f64> = points[start..].windows(2).map(|pair| (pair[1].1 - pair[0].1).abs()).collect();
        let seconds = (points[points.len() - 1].0 - points[middle].0).max(1e-9);
        // Three deviations of the difference between neighbouring parts, over half of the time.
        let spread = 3.0 * 1.4826 * median(&mut jumps) / seconds;
        if (before - behind).abs() <= spread.max(0.5 * behind.abs()) {
            break;
        }
        start = if middle - start > 8 { middle - (middle - start) / 2 } else { middle };
    }
    start
}

/// Numbers that look like chance and are the same each time.
#[derive(Clone, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// `SplitMix64`.
    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Less than `end`, which is not 0.
    pub(crate) const fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// From 0 to 1.
    pub(crate) fn part(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
