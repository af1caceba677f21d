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
    let left = |seconds: Option<f64>| seconds.map_or_else(|| "never".to_owned(), time);
    writeln!(out, "    reaches the limit in {} ({} to {}, 90 %)", left(middle), left(early), left(late))
}

fn time(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 120.0 => format!("{seconds:.0} s"),
        seconds if seconds < 7200.0 => format!("{:.0} min", seconds / 60.0),
        seconds if seconds < 48.0 * 3600.0 => format!("{:.1} h", seconds / 3600.0),
        seconds => format!("{:.1} days", seconds / 86400.0),
    }
}
