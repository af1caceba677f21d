//! When will memory be full? From the memory held so far, with an interval; without growth there is no forecast.
//!
//! Peaks decide about a failure: the series is reduced to the highest value of each of 40 parts, and the last straight
//! stretch of those is continued. If the residuals are chance (`crossing`), the interval is of drawn residuals; if
//! growth itself is chance, of drawn increments.

mod crossing;
mod series;
#[cfg(test)]
mod tests;
mod text;

pub use self::series::{Collector, Held, Series};
pub use self::text::write_forecasts;

use schemars::JsonSchema;
use serde::Serialize;

use self::crossing::{Crossing, HORIZON, crossing};
use crate::robust;

/// Parts of a series; fewer than half of them are no evidence.
const PARTS: usize = 40;
const LEAST_PARTS: usize = 20;

/// Forecast of one figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Growth {
    /// Too little was seen.
    TooShort,
    /// No growth is seen: no date.
    NotSeen,
    /// It grows.
    Grows,
}

/// The forecast of one figure.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Forecast {
    /// Whether it grows.
    pub growth: Growth,
    /// Its last peak.
    pub now_bytes: u64,
    /// Bytes per hour: low end of the 90 % interval, middle, high end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_hour: Option<[f64; 3]>,
    /// Seconds from the end of the recording to the limit: earliest, middle, latest of the 90 % interval; null is later than 60 times
    /// what was seen, or never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<[Option<f64>; 3]>,
    /// Seconds of the recording that it is from.
    pub seen_seconds: f64,
}

/// How a limit is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitFrom {
    /// It was given.
    Given,
    /// What the pool holds, and what the driver had free on the device, when that was least.
    Driver,
}

/// Forecasts of one device of a process.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct DeviceForecast {
    /// Process.
    pub pid: u32,
    /// Device.
    pub device: u32,
    /// Bytes that the pool can have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    /// How that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_from: Option<LimitFrom>,
    /// End of the recording of the process, nanoseconds since the Unix epoch.
    pub until_ns: u64,
    /// The process ended before the recording did.
    pub ended: bool,
    /// Memory that the pool holds.
    pub reserved: Forecast,
    /// The program's part of it.
    pub allocated: Forecast,
    /// The pool grows and the program's part does not: fragmentation, which other settings may end.
    pub fragmentation: bool,
}

/// Answers of `forecast`.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Forecasts {
    /// The files, or the processes that were watched.
    pub input: String,
    /// By process and device.
    pub devices: Vec<DeviceForecast>,
}

/// The forecast of a device. Without a limit, that of the driver's figures counts where the recording has them.
#[must_use]
pub fn forecast(series: &Series, given_bytes: Option<u64>) -> DeviceForecast {
    let limit_bytes = given_bytes.or(series.room_bytes);
    let from = if given_bytes.is_some() { LimitFrom::Given } else { LimitFrom::Driver };
    let [reserved, allocated] = [Held::Reserved, Held::Allocated].map(|held| of_figure(series, held, limit_bytes));
    let fragmentation = reserved.growth == Growth::Grows && allocated.growth == Growth::NotSeen;
    DeviceForecast {
        pid: series.pid,
        device: series.device,
        limit_bytes,
        limit_from: limit_bytes.map(|_| from),
        until_ns: series.end_ns(),
        ended: series.ended,
        reserved,
        allocated,
        fragmentation,
    }
}

/// When the pool's memory reaches a limit, as [`Forecast::seconds_left`]; `None`: it does not grow, or too little was seen. Without growth this
/// is a small part of [`forecast`]'s work, which follows each future to its end then.
#[must_use]
pub fn seconds_left(series: &Series, limit_bytes: u64) -> Option<[Option<f64>; 3]> {
    let envelope = robust::envelope(&series.points(Held::Reserved), PARTS);
    if envelope.len() < LEAST_PARTS {
        return None;
    }
    let (slope, _) = robust::line(&envelope[robust::last_stretch(&envelope)..]);
    if slope <= 0.0 {
        return None;
    }
    let Crossing { grows, times, .. } = crossing(&envelope, series.seconds(), Some(limit_bytes as f64));
    times.filter(|_| grows)
}

fn of_figure(series: &Series, held: Held, limit_bytes: Option<u64>) -> Forecast {
    let points = series.points(held);
    let seen_seconds = series.seconds();
    let envelope = robust::envelope(&points, PARTS);
    let now_bytes = envelope.last().map_or(0, |point| point.1 as u64);
    let nothing =
        Forecast { growth: Growth::TooShort, now_bytes, bytes_per_hour: None, seconds_left: None, seen_seconds };
    if envelope.len() < LEAST_PARTS {
        return nothing;
    }
    let Crossing { grows, slope, times } = crossing(&envelope, seen_seconds, limit_bytes.map(|bytes| bytes as f64));
    let growth = if grows { Growth::Grows } else { Growth::NotSeen };
    Forecast {
        growth,
        bytes_per_hour: Some(slope.map(|per_second| per_second * 3600.0)),
        seconds_left: times.filter(|_| grows),
        ..nothing
    }
}
