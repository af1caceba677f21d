//! Times as every answer prints them: since the first event of the trace, which is what `--since` and `--until` count from.

use jiff::{Timestamp, tz::TimeZone};

use crate::model::RunEnd;

/// The clock of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// Time of the first event, nanoseconds since the Unix epoch.
    start_ns: u64,
}

impl Clock {
    /// The clock of a run that has ended.
    pub(crate) const fn of(end: &RunEnd) -> Self {
        Self { start_ns: end.start_ns }
    }

    /// To the nanosecond, with the wall clock of this machine's zone: `4.25s (2026-11-21T10:00:04.25+08:00)`. Either is taken by `--since`,
    /// `--until`, `--from` and `--to`.
    pub(crate) fn exact(self, time_ns: u64) -> String {
        let wall = Timestamp::from_nanosecond(time_ns.into()).unwrap_or_default().to_zoned(TimeZone::system());
        format!("{} ({})", self.since_start(time_ns), wall.strftime("%FT%T%.f%:z"))
    }

    /// For tables, as exact: `4.25s`.
    pub(crate) fn since_start(self, time_ns: u64) -> String {
        let since_ns = time_ns.saturating_sub(self.start_ns);
        let (seconds, fraction) = (since_ns / 1_000_000_000, format!("{:09}", since_ns % 1_000_000_000));
        let fraction = fraction.trim_end_matches('0');
        let point = if fraction.is_empty() { "" } else { "." };
        format!("{seconds}{point}{fraction}s")
    }
}

#[cfg(test)]
impl Clock {
    /// One that begins at this time.
    pub(crate) const fn since(start_ns: u64) -> Self {
        Self { start_ns }
    }
}

/// The text with `WALL` for each wall clock, which is of the machine's zone.
#[cfg(test)]
pub(crate) fn without_wall(text: &str) -> String {
    let mut parts = text.split('(');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((inner, rest)) if inner.parse::<Timestamp>().is_ok() => out.extend(["WALL", rest]),
            _ => out.extend(["(", part]),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact() {
        let clock = Clock::since(1_795_255_200_000_000_000);
        for (after_ns, text) in
            [(0, "0s"), (1, "0.000000001s"), (4_250_000_000, "4.25s"), (86_400_123_456_789, "86400.123456789s")]
        {
            let time_ns = clock.start_ns + after_ns;
            let exact = clock.exact(time_ns);
            let (since, wall) = exact.split_once(" (").expect("both");
            assert_eq!((since, clock.since_start(time_ns).as_str()), (text, text));
            let wall: Timestamp = wall.trim_end_matches(')').parse().expect("a time");
            assert_eq!(wall.as_nanosecond(), i128::from(time_ns));
        }
    }
}
