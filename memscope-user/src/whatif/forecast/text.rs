//! Forecasts as text.

use std::io::{self, Write};

use super::{DeviceForecast, Forecast, Forecasts, Growth, HORIZON, LimitFrom};
use crate::printable::OneLine;
use crate::text::numbers::{rounded, time};

/// Writes the answers of `forecast`.
pub fn write_forecasts(found: &Forecasts, out: &mut dyn Write) -> io::Result<()> {
    if found.devices.is_empty() {
        return writeln!(
            out,
            "No figures of PyTorch's pool in {}: there is nothing to forecast.",
            OneLine(&found.input)
        );
    }
    found.devices.iter().try_for_each(|device| write_device(device, out))
}

fn write_device(device: &DeviceForecast, out: &mut dyn Write) -> io::Result<()> {
    let seen = time(device.reserved.seen_seconds);
    writeln!(out, "Process {} on npu:{}{}, from {seen}", device.pid, device.device, limit(device))?;
    write_figure("the pool holds", &device.reserved, device.limit_bytes, out)?;
    write_figure("the program has", &device.allocated, device.limit_bytes, out)?;
    if device.fragmentation {
        writeln!(
            out,
            "  The pool grows and the program's memory does not: fragmentation; `advise` looks for settings."
        )?;
    }
    if device.ended {
        writeln!(out, "  The process has ended: times count from its end.")?;
    }
    Ok(())
}

fn limit(device: &DeviceForecast) -> String {
    let Some(bytes) = device.limit_bytes else { return String::new() };
    let known = match device.limit_from {
        Some(LimitFrom::Driver) => " (its own memory and what the driver had free)",
        _ => "",
    };
    format!(", limit {}{known}", rounded(bytes.into()))
}

fn write_figure(name: &str, forecast: &Forecast, limit: Option<u64>, out: &mut dyn Write) -> io::Result<()> {
    let now = rounded(forecast.now_bytes.into());
    let is_full = limit.is_some_and(|limit| forecast.now_bytes >= limit);
    let full = if is_full { "; the limit is reached" } else { "" };
    match (forecast.growth, forecast.bytes_per_hour) {
        (Growth::TooShort, _) => {
            return writeln!(out, "  {name} {now}: the recording is too short for a forecast{full}");
        }
        (Growth::Grows, Some([low, middle, high])) => {
            let rate = |bytes: f64| rounded(bytes.max(0.0) as u128);
            writeln!(out, "  {name} {now}, growing {} an hour ({} to {}){full}", rate(middle), rate(low), rate(high))?;
        }
        _ => return writeln!(out, "  {name} {now}: no growth seen{full}"),
    }
    match forecast.seconds_left {
        Some(left) if !is_full => write_left(left, forecast.seen_seconds, out),
        _ => Ok(()),
    }
}

/// The time left. What was seen for a minute says nothing about tomorrow.
fn write_left(left: [Option<f64>; 3], seen_seconds: f64, out: &mut dyn Write) -> io::Result<()> {
    let horizon = time(HORIZON * seen_seconds);
    let [Some(early), middle, late] = left.map(|left| left.map(time)) else {
        return writeln!(out, "    does not reach the limit within {horizon}, 60 times what was seen");
    };
    let Some(middle) = middle else {
        return writeln!(
            out,
            "    reaches the limit in {early} at the earliest (90 %), or in over {horizon}, or never"
        );
    };
    let late = late.unwrap_or_else(|| format!("over {horizon}, or never"));
    writeln!(out, "    reaches the limit in {middle} ({early} to {late}, 90 %)")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last line of a figure, of 60 s with a limit of 2 MiB.
    fn last(growth: Growth, now_bytes: u64, seconds_left: [Option<f64>; 3]) -> String {
        let bytes_per_hour = Some([1.0, 2.0, 3.0]);
        let seconds_left = (growth == Growth::Grows).then_some(seconds_left);
        let forecast = Forecast { growth, now_bytes, bytes_per_hour, seconds_left, seen_seconds: 60.0 };
        let mut out = Vec::new();
        write_figure("the pool holds", &forecast, Some(2 << 20), &mut out).expect("written");
        let text = String::from_utf8(out).expect("UTF-8");
        text.lines().last().expect("a line").trim().to_owned()
    }

    /// A limit that is not reached is said so, without a date; one that may be has its earliest. From a minute nothing is said about
    /// more than an hour.
    #[test]
    fn limits_that_are_not_reached() {
        let last = |seconds_left| last(Growth::Grows, 1 << 20, seconds_left);
        assert_eq!(last([Some(60.0), Some(90.0), Some(7200.0)]), "reaches the limit in 90 s (60 s to 2.0 h, 90 %)");
        assert_eq!(
            last([Some(60.0), Some(90.0), None]),
            "reaches the limit in 90 s (60 s to over 60 min, or never, 90 %)"
        );
        assert_eq!(
            last([Some(60.0), None, None]),
            "reaches the limit in 60 s at the earliest (90 %), or in over 60 min, or never"
        );
        assert_eq!(last([None; 3]), "does not reach the limit within 60 min, 60 times what was seen");
    }

    /// What is full has no date.
    #[test]
    fn limits_that_are_reached() {
        let full = last(Growth::Grows, 2 << 20, [Some(0.0); 3]);
        assert_eq!(full, "the pool holds 2.00 MiB, growing 2 bytes an hour (1 byte to 3 bytes); the limit is reached");
        let full = last(Growth::NotSeen, 3 << 20, [None; 3]);
        assert_eq!(full, "the pool holds 3.00 MiB: no growth seen; the limit is reached");
    }
}
