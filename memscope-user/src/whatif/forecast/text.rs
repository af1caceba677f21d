//! Forecasts as text.

use std::io::{self, Write};

use super::{DeviceForecast, Forecast, Forecasts, Growth};
use crate::printable::OneLine;
use crate::text::numbers::rounded;

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
    let limit = device.limit_bytes.map(|bytes| format!(", limit {}", rounded(bytes.into()))).unwrap_or_default();
    writeln!(
        out,
        "Process {} on npu:{}{limit}, from {}",
        device.pid,
        device.device,
        time(device.reserved.seen_seconds)
    )?;
    write_figure("the pool holds", &device.reserved, out)?;
    write_figure("the program has", &device.allocated, out)?;
    if device.fragmentation {
        writeln!(
            out,
            "  The pool grows and the program's memory does not: fragmentation; `advise` looks for settings."
        )?;
    }
    Ok(())
}

fn write_figure(name: &str, forecast: &Forecast, out: &mut dyn Write) -> io::Result<()> {
    let now = rounded(forecast.now_bytes.into());
    match (forecast.growth, forecast.bytes_per_hour) {
        (Growth::TooShort, _) => return writeln!(out, "  {name} {now}: the recording is too short for a forecast"),
        (Growth::Grows, Some([low, middle, high])) => {
            let rate = |bytes: f64| rounded(bytes.max(0.0) as u128);
            writeln!(out, "  {name} {now}, growing {} an hour ({} to {})", rate(middle), rate(low), rate(high))?;
        }
        _ => return writeln!(out, "  {name} {now}: no growth seen"),
    }
    let Some([early, middle, late]) = forecast.seconds_left else { return Ok(()) };
    let Some(early) = early.map(time) else { return writeln!(out, "    does not reach the limit at this rate") };
    let Some(middle) = middle.map(time) else {
        return writeln!(out, "    reaches the limit in {early} at the earliest (90 %), or never");
    };
    let late = late.map_or_else(|| "never".to_owned(), time);
    writeln!(out, "    reaches the limit in {middle} ({early} to {late}, 90 %)")
}

fn time(seconds: f64) -> String {
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

    /// A limit that is never reached is said so, without a date; one that may be has its earliest.
    #[test]
    fn limits_that_are_not_reached() {
        let last = |seconds_left: [Option<f64>; 3]| {
            let bytes_per_hour = Some([1.0, 2.0, 3.0]);
            let forecast = Forecast {
                growth: Growth::Grows,
                now_bytes: 1 << 20,
                bytes_per_hour,
                seconds_left: Some(seconds_left),
                seen_seconds: 60.0,
            };
            let mut out = Vec::new();
            write_figure("the pool holds", &forecast, &mut out).expect("written");
            let text = String::from_utf8(out).expect("UTF-8");
            text.lines().last().expect("a line").trim().to_owned()
        };
        assert_eq!(last([Some(60.0), Some(90.0), Some(7200.0)]), "reaches the limit in 90 s (60 s to 2.0 h, 90 %)");
        assert_eq!(last([Some(60.0), Some(90.0), None]), "reaches the limit in 90 s (60 s to never, 90 %)");
        assert_eq!(last([Some(60.0), None, None]), "reaches the limit in 60 s at the earliest (90 %), or never");
        assert_eq!(last([None; 3]), "does not reach the limit at this rate");
    }
}
