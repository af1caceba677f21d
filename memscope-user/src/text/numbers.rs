//! Numbers as the report spells them.

/// A quantity of bytes: `192.00 MiB (201326592 bytes)`, `1 byte`.
pub(crate) fn size(bytes: u64) -> String {
    let exact = counted(bytes, "byte");
    if bytes < 1024 { exact } else { format!("{} ({exact})", rounded(bytes.into())) }
}

/// The same for people alone: `192.00 MiB`, `1 byte`.
pub(crate) fn rounded(bytes: u128) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let power = bytes.checked_ilog2().map_or(0, |log| (log as usize / 10).min(UNITS.len()));
    match power.checked_sub(1) {
        Some(unit) => format!("{:.2} {}", bytes as f64 / (1_u64 << (10 * power)) as f64, UNITS[unit]),
        None => counted(bytes as u64, "byte"),
    }
}

/// `1 block`, `2 blocks`.
pub(crate) fn counted(count: u64, noun: &str) -> String {
    let plural = match count {
        1 => "",
        _ if noun.ends_with('s') => "es",
        _ => "s",
    };
    format!("{count} {noun}{plural}")
}

/// A span of time: `2.500 s`.
pub(crate) fn seconds(time_ns: u64) -> String {
    format!("{:.3} s", time_ns as f64 / 1e9)
}

/// Bytes in the reference's unit, which it calls MB and Mb: 1048576 bytes.
pub(crate) fn mega(bytes: u64) -> f64 {
    bytes as f64 / 1_048_576.0
}

/// A non-negative number as a C++ stream writes it by default: `%g`, six significant digits without trailing zeros,
/// with an exponent below -4 or above 5.
pub(crate) fn general(value: f64) -> String {
    const DIGITS: i32 = 6;
    let scientific = format!("{value:.5e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..DIGITS).contains(&exponent) {
        return trimmed(&format!("{value:.*}", (DIGITS - 1 - exponent) as usize)).to_owned();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trimmed(mantissa), exponent.abs())
}

/// A non-negative number as Python prints it: the fewest digits that identify it, always with a fraction or an
/// exponent; an exponent below -4 and above 15.
pub(crate) fn shortest(value: f64) -> String {
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    match exponent {
        -4..=15 => format!("{value:?}"),
        _ => format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs()),
    }
}

/// Without zeros at the end of the fraction, and without the point if the fraction is empty.
fn trimmed(number: &str) -> &str {
    if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number }
}

/// A time in seconds, with a unit that keeps two digits or more.
pub(crate) fn time(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 120.0 => format!("{seconds:.0} s"),
        seconds if seconds < 7200.0 => format!("{:.0} min", seconds / 60.0),
        seconds if seconds < 48.0 * 3600.0 => format!("{:.1} h", seconds / 3600.0),
        seconds => format!("{:.1} days", seconds / 86400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spellings taken from Python's `repr`.
    #[test]
    fn shortest_is_python() {
        let cases = [
            (0.0, "0.0"),
            (1.0, "1.0"),
            (0.056_987_762_451_171_875, "0.056987762451171875"),
            (0.000_1, "0.0001"),
            (9.5e-7, "9.5e-07"),
            (17_592_186_044_416.0, "17592186044416.0"),
            (1e16, "1e+16"),
        ];
        for (value, text) in cases {
            assert_eq!(shortest(value), text);
        }
    }

    /// Spellings taken from `printf("%g")`.
    #[test]
    fn general_is_printf_g() {
        let cases = [
            (0.0, "0"),
            (2.0, "2"),
            (1.5, "1.5"),
            (100.0, "100"),
            (123_456.0, "123456"),
            (100_000.0, "100000"),
            (999_999.5, "1e+06"),
            (1_234_567.0, "1.23457e+06"),
            (0.000_1, "0.0001"),
            (16.0 / 1_048_576.0, "1.52588e-05"),
            (59_756.0 / 1_048_576.0, "0.0569878"),
            (1.0 / 3.0, "0.333333"),
            (1e100, "1e+100"),
        ];
        for (value, spelt) in cases {
            assert_eq!(general(value), spelt, "{value}");
        }
    }

    /// The unit is the largest that the size fills at least once; below 1 KiB there is none.
    #[test]
    fn sizes_are_readable_and_exact() {
        let cases = [
            (0, "0 bytes"),
            (1, "1 byte"),
            (1023, "1023 bytes"),
            (1024, "1.00 KiB (1024 bytes)"),
            (201_326_592, "192.00 MiB (201326592 bytes)"),
            (u64::MAX, "16.00 EiB (18446744073709551615 bytes)"),
        ];
        for (bytes, spelt) in cases {
            assert_eq!(size(bytes), spelt);
        }
    }

    /// Sums may be larger than any size.
    #[test]
    fn sums_are_readable() {
        let cases = [(1023, "1023 bytes"), (3 << 29, "1.50 GiB"), (1 << 71, "2048.00 EiB")];
        for (bytes, spelt) in cases {
            assert_eq!(rounded(bytes), spelt);
        }
    }
}
