//! Numbers in few columns.

use crate::analyses::sample::Change;
use crate::printable::OneLine;

/// Changes over less than this say nothing of a minute.
const LEAST_SPAN_NS: u64 = 4_000_000_000;
const MINUTE_NS: f64 = 60e9;

/// Bytes in at most 9 columns: `38.0 GiB`, `1023 B`.
pub(super) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let power = bytes.checked_ilog2().map_or(0, |log| (log as usize / 10).min(UNITS.len()));
    match power.checked_sub(1) {
        Some(unit) => format!("{:.1} {}", bytes as f64 / (1_u64 << (10 * power)) as f64, UNITS[unit]),
        None => format!("{bytes} B"),
    }
}

/// A change for each minute, in bytes; `None` while it is not known.
pub(super) fn per_minute(change: Option<Change>) -> Option<i64> {
    let Change { span_ns, change_bytes } = change.filter(|change| change.span_ns >= LEAST_SPAN_NS)?;
    Some((change_bytes as f64 * MINUTE_NS / span_ns as f64) as i64)
}

/// The same in words: `+12.0 MiB`, `0`, `–`.
pub(super) fn rate(per_minute: Option<i64>) -> String {
    match per_minute {
        None => "–".to_owned(),
        Some(0) => "0".to_owned(),
        Some(rate) => format!("{}{}", if rate < 0 { '-' } else { '+' }, bytes(rate.unsigned_abs())),
    }
}

/// Events for each second, in at most 7 columns.
pub(super) fn count(count: f64) -> String {
    match count {
        ..10.0 => format!("{count:.1}"),
        ..10_000.0 => format!("{count:.0}"),
        ..1e7 => format!("{:.1} k", count / 1e3),
        _ => format!("{:.1} M", count / 1e6),
    }
}

/// A time with one unit, rounded down.
pub(super) fn time(seconds: f64) -> String {
    match seconds as u64 {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

/// A bar of this many columns.
pub(super) fn bar(share: f64, columns: usize) -> String {
    let full = ((share.clamp(0.0, 1.0) * columns as f64).round() as usize).min(columns);
    format!("{}{}", "█".repeat(full), "░".repeat(columns - full))
}

/// The last figures as a curve, from zero to the largest.
pub(super) fn curve(figures: &[u64], columns: usize) -> String {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let figures = &figures[figures.len().saturating_sub(columns)..];
    let most = figures.iter().copied().max().unwrap_or(0).max(1);
    figures.iter().map(|figure| LEVELS[(u128::from(*figure) * 7 / u128::from(most)) as usize]).collect()
}

/// Text of a traced program on one line.
pub(super) fn clean(text: &str) -> String {
    OneLine(text).to_string()
}

/// A line in lines of this width at most, where it has blanks; further ones begin as it does, and two columns later.
pub(super) fn wrap(text: &str, width: usize) -> Vec<String> {
    let indent = text.chars().take_while(|letter| *letter == ' ').count();
    let mut lines = Vec::new();
    let mut line = " ".repeat(indent);
    let mut is_empty = true;
    for word in text.split_whitespace() {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(std::mem::replace(&mut line, " ".repeat(indent + 2)));
            is_empty = true;
        }
        line.push_str(if is_empty { "" } else { " " });
        line.push_str(word);
        is_empty = false;
    }
    lines.push(if is_empty { String::new() } else { line });
    lines
}

/// The end of a text that is too long, or its begin, with `…` for the rest.
pub(super) fn cut(text: &str, columns: usize) -> String {
    let count = text.chars().count();
    if count <= columns {
        return text.to_owned();
    }
    text.chars().take(columns.saturating_sub(1)).chain(std::iter::once('…')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!([0, 1023, 1024, 3 << 29, u64::MAX].map(bytes), ["0 B", "1023 B", "1.0 KiB", "1.5 GiB", "16.0 EiB"]);
        // 3 MiB in half a minute, a fall of 1 KiB in two.
        let change = |seconds: u64, change_bytes| Some(Change { span_ns: seconds * 1_000_000_000, change_bytes });
        let rates = [change(30, 3 << 20), change(120, -1024), change(60, 0), change(3, 7), None];
        assert_eq!(rates.map(|it| rate(per_minute(it))), ["+6.0 MiB", "-512 B", "0", "–", "–"]);
        assert_eq!([0.0, 9.96, 812.4, 12_345.0, 2.5e7].map(count), ["0.0", "10.0", "812", "12.3 k", "25.0 M"]);
        assert_eq!([119.9, 600.0, 7200.0, 200_000.0].map(time), ["119 s", "10 min", "2 h", "2 days"]);
    }

    #[test]
    fn pictures_are_in_scale() {
        assert_eq!([0.0, 0.5, 2.0].map(|share| bar(share, 4)), ["░░░░", "██░░", "████"]);
        // Sevenths of the largest of the last three: 0, 3.5, 7.
        assert_eq!(curve(&[99, 0, 5, 10], 3), "▁▄█");
        assert_eq!(curve(&[0, 0], 3), "▁▁");
        assert_eq!(wrap(" one two three", 9), [" one two", "   three"]);
        assert_eq!(
            (wrap("", 9), wrap("longer than", 3)),
            (vec![String::new()], vec!["longer".into(), "  than".into()])
        );
        assert_eq!((cut("serve.py", 8), cut("serve.py", 5)), ("serve.py".to_owned(), "serv…".to_owned()));
    }
}
