//! Samples of a page, and records of events, as the bytes of one message. Pure.
//!
//! Counts are cumulative. They begin where the sample says so, and with the agent where it says nothing.

use prost::Message as _;

use super::{
    instruments::{ATTRIBUTES, INSTRUMENTS, Instrument, Kind, NUMBERS},
    messages::{
        CUMULATIVE, Data, ExportLogs, ExportMetrics, Gauge, Histogram, HistogramPoint, KeyValue, LogRecord, Metric,
        NumberPoint, PointValue, ResourceLogs, ResourceMetrics, ScopeLogs, ScopeMetrics, Sum,
    },
    origin::Origin,
    queue::{Batch, Signal},
};
use crate::agent::{
    metrics::{FAMILIES, Number, Sample},
    page,
};

/// All samples of a page.
pub(super) fn metrics(origin: &Origin, samples: &[Sample], now_ns: u64) -> Batch {
    let mut points = 0;
    let mut metrics = Vec::new();
    for instrument in INSTRUMENTS {
        let of_family: Vec<&Sample> = samples.iter().filter(|sample| sample.family == instrument.family).collect();
        if !of_family.is_empty() {
            points += of_family.len() as u64;
            metrics.push(metric(origin, instrument, &of_family, now_ns));
        }
    }
    let scope = ScopeMetrics { scope: Some(origin.scope.clone()), metrics };
    let resource = ResourceMetrics { resource: Some(origin.resource.clone()), scopes: vec![scope] };
    let body = ExportMetrics { resources: vec![resource] }.encode_to_vec();
    Batch { signal: Signal::Metrics, body: body.into(), records: points }
}

/// Records of events.
pub(super) fn logs(origin: &Origin, records: Vec<LogRecord>) -> Batch {
    let count = records.len() as u64;
    let scope = ScopeLogs { scope: Some(origin.scope.clone()), records };
    let resource = ResourceLogs { resource: Some(origin.resource.clone()), scopes: vec![scope] };
    let body = ExportLogs { resources: vec![resource] }.encode_to_vec();
    Batch { signal: Signal::Logs, body: body.into(), records: count }
}

fn metric(origin: &Origin, instrument: &Instrument, samples: &[&Sample], now_ns: u64) -> Metric {
    let times = |sample: &Sample| (sample.start_ns.unwrap_or(origin.start_ns).min(now_ns), now_ns);
    let numbers = || samples.iter().filter_map(|sample| number_point(sample, times(sample))).collect();
    let data = match instrument.kind {
        // A value of the moment has no start.
        Kind::Gauge => {
            Data::Gauge(Gauge { points: samples.iter().filter_map(|it| number_point(it, (0, now_ns))).collect() })
        }
        kind @ (Kind::Counter | Kind::UpDownCounter) => {
            let is_monotonic = kind == Kind::Counter;
            Data::Sum(Sum { points: numbers(), temporality: CUMULATIVE, is_monotonic })
        }
        Kind::Histogram => {
            let points = samples.iter().filter_map(|sample| histogram_point(sample, times(sample))).collect();
            Data::Histogram(Histogram { points, temporality: CUMULATIVE })
        }
    };
    let family = FAMILIES.iter().find(|family| family.name == instrument.family);
    Metric {
        name: instrument.name.to_owned(),
        description: family.map(|family| family.help.to_owned()).unwrap_or_default(),
        unit: instrument.unit.to_owned(),
        data: Some(data),
    }
}

fn number_point(sample: &Sample, (start_time_ns, time_ns): (u64, u64)) -> Option<NumberPoint> {
    let value = match sample.number {
        // The protocol has signed numbers alone.
        Number::Whole(number) => PointValue::Whole(i64::try_from(number).unwrap_or(i64::MAX)),
        Number::Real(number) => PointValue::Real(number),
        Number::Histogram { .. } => return None,
    };
    Some(NumberPoint { attributes: attributes(sample), start_time_ns, time_ns, value: Some(value) })
}

fn histogram_point(sample: &Sample, (start_time_ns, time_ns): (u64, u64)) -> Option<HistogramPoint> {
    let Number::Histogram { bounds, counts, sum } = &sample.number else { return None };
    Some(HistogramPoint {
        attributes: attributes(sample),
        start_time_ns,
        time_ns,
        count: counts.iter().fold(0, |all: u64, count| all.saturating_add(*count)),
        sum: Some(*sum as f64),
        bucket_counts: counts.clone(),
        bounds: bounds.iter().map(|bound| *bound as f64).collect(),
    })
}

/// Labels without a value are left out: there a label has to be, here an attribute need not be.
fn attributes(sample: &Sample) -> Vec<KeyValue> {
    let labels = sample.labels.iter().filter(|(_, value)| !value.is_empty());
    labels.map(|(label, value)| attribute(label, value)).collect()
}

fn attribute(label: &str, value: &str) -> KeyValue {
    let name = ATTRIBUTES.iter().find(|(known, _)| *known == label).map_or(label, |(_, name)| name);
    match value.parse() {
        Ok(number) if NUMBERS.contains(&label) => KeyValue::whole(name, number),
        _ => KeyValue::text(name, page::bounded(value).collect::<String>()),
    }
}

#[cfg(test)]
mod tests;
