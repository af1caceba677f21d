//! A small page by hand, and the same samples as text: both say the same.

use std::collections::BTreeMap;

use super::*;
use crate::agent::{
    otlp::messages::{AnyValue, Value},
    page::Format,
};

const START_NS: u64 = 1_000_000_000_000_000_000;
const NOW_NS: u64 = START_NS + 60_000_000_000;

fn origin() -> Origin {
    Origin::new("host-1", "node-1", START_NS)
}

fn pod(more: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
    let fixed = [("namespace", "infer"), ("pod_name", "vllm-0"), ("container_name", "server")];
    fixed.into_iter().chain(more.iter().copied()).map(|(name, value)| (name, value.to_owned())).collect()
}

fn samples() -> Vec<Sample> {
    let pool = [("id", "3"), ("layer", "pool"), ("pool", "pta")];
    let failed = [("id", "3"), ("layer", "pool"), ("pool", "pta"), ("reason", "oom")];
    let later = Some(START_NS + 5);
    vec![
        Sample::whole("memscope_memory_live_bytes", pod(&pool), 4096).since(later),
        Sample::whole("memscope_allocated_bytes", pod(&pool), 99_000).since(later),
        Sample::whole("memscope_allocation_failures", pod(&failed), 2).since(later),
        Sample {
            family: "memscope_allocation_size_bytes",
            labels: pod(&pool),
            number: Number::Histogram { bounds: &[512, 4096], counts: vec![1, 2, 4], sum: 99_000 },
            start_ns: later,
        },
        Sample::whole("memscope_process", pod(&[("process_id", "77"), ("container_id", "0123abc"), ("rank", "")]), 1),
        Sample::whole("memscope_events", Vec::new(), u64::MAX),
        Sample::real("memscope_agent_cpu_seconds", vec![("part", "process".to_owned())], 1.5),
        Sample::real("memscope_agent_overhead_ratio", Vec::new(), 0.0125),
    ]
}

fn decoded(batch: &Batch) -> ResourceMetrics {
    let message = ExportMetrics::decode(batch.body.clone()).expect("a message");
    let [resource] = message.resources.try_into().expect("one resource");
    resource
}

fn metric_of<'a>(resource: &'a ResourceMetrics, name: &str) -> &'a Metric {
    resource.scopes[0].metrics.iter().find(|metric| metric.name == name).expect("a metric")
}

fn text(key: &str, value: &str) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(Value::Text(value.to_owned())) }) }
}

fn of_pod() -> Vec<KeyValue> {
    [("k8s.namespace.name", "infer"), ("k8s.pod.name", "vllm-0"), ("k8s.container.name", "server")]
        .map(|(key, value)| text(key, value))
        .to_vec()
}

fn of_pool() -> Vec<KeyValue> {
    let mut all = of_pod();
    all.extend([("hw.id", "3"), ("memscope.layer", "pool"), ("memscope.pool", "pta")].map(|(k, v)| text(k, v)));
    all
}

/// Names, units, kinds, times and attributes of sums, written by hand.
#[test]
fn sums_by_hand() {
    let batch = metrics(&origin(), &samples(), NOW_NS);
    assert_eq!((batch.signal, batch.records), (Signal::Metrics, 8));
    let resource = decoded(&batch);
    assert_eq!(resource.resource, Some(origin().resource));
    let live = metric_of(&resource, "memscope.memory.live");
    assert_eq!(live.unit, "By");
    let point = NumberPoint {
        attributes: of_pool(),
        start_time_ns: START_NS + 5,
        time_ns: NOW_NS,
        value: Some(PointValue::Whole(4096)),
    };
    let expected = Sum { points: vec![point.clone()], temporality: CUMULATIVE, is_monotonic: false };
    assert_eq!(live.data, Some(Data::Sum(expected)));
    let point = NumberPoint { value: Some(PointValue::Whole(99_000)), ..point };
    let expected = Sum { points: vec![point], temporality: CUMULATIVE, is_monotonic: true };
    assert_eq!(metric_of(&resource, "memscope.memory.allocated").data, Some(Data::Sum(expected)));
    let Some(Data::Sum(failures)) = &metric_of(&resource, "memscope.allocation.failures").data else { panic!("a sum") };
    assert_eq!(failures.points[0].attributes.last(), Some(&text("memscope.reason", "oom")));
    let Some(Data::Sum(events)) = &metric_of(&resource, "memscope.events").data else { panic!("a sum") };
    let first = &events.points[0];
    assert_eq!((first.start_time_ns, first.value), (START_NS, Some(PointValue::Whole(i64::MAX))));
}

/// A gauge has no start; a histogram has its counts by class, not added up.
#[test]
fn gauges_and_histograms_by_hand() {
    let resource = decoded(&metrics(&origin(), &samples(), NOW_NS));
    let point = |value| NumberPoint {
        attributes: Vec::new(),
        start_time_ns: 0,
        time_ns: NOW_NS,
        value: Some(PointValue::Real(value)),
    };
    let overhead = metric_of(&resource, "memscope.agent.overhead");
    assert_eq!(
        (overhead.unit.as_str(), &overhead.data),
        ("1", &Some(Data::Gauge(Gauge { points: vec![point(0.0125)] })))
    );
    let Some(Data::Gauge(info)) = &metric_of(&resource, "memscope.process.info").data else { panic!("a gauge") };
    let mut expected = of_pod();
    expected.push(KeyValue::whole("process.pid", 77));
    expected.push(text("container.id", "0123abc"));
    assert_eq!(info.points[0].attributes, expected, "a rank without a value is left out");
    let Some(Data::Histogram(sizes)) = &metric_of(&resource, "memscope.allocation.size").data else {
        panic!("classes")
    };
    let expected = HistogramPoint {
        attributes: of_pool(),
        start_time_ns: START_NS + 5,
        time_ns: NOW_NS,
        count: 7,
        sum: Some(99_000.0),
        bucket_counts: vec![1, 2, 4],
        bounds: vec![512.0, 4096.0],
    };
    assert_eq!((sizes.temporality, &sizes.points), (CUMULATIVE, &vec![expected]));
}

/// What both say of a series: its numbers by their names on the page.
type Said = BTreeMap<(String, Vec<(String, String)>), f64>;

/// The page's lines.
fn of_page(page: &str) -> Said {
    let mut said = Said::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').expect("a value");
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels = labels.trim_end_matches('}').split(',').filter_map(|label| {
            let (name, value) = label.split_once('=')?;
            let value = value.trim_matches('"');
            (!value.is_empty()).then(|| (name.to_owned(), value.to_owned()))
        });
        said.insert((name.to_owned(), labels.collect()), value.parse().expect("a number"));
    }
    said
}

fn labels(attributes: &[KeyValue]) -> Vec<(String, String)> {
    let of = |pair: &KeyValue| {
        let label = ATTRIBUTES.iter().find(|(_, name)| *name == pair.key).expect("known").0;
        let value = match pair.value.clone().and_then(|value| value.value).expect("a value") {
            Value::Text(text) => text,
            Value::Whole(number) => number.to_string(),
            other => panic!("{other:?}"),
        };
        (label.to_owned(), value)
    };
    attributes.iter().map(of).collect()
}

/// The message's points, as lines of the page.
fn of_message(resource: &ResourceMetrics) -> Said {
    let mut said = Said::new();
    for metric in &resource.scopes[0].metrics {
        let family = INSTRUMENTS.iter().find(|it| it.name == metric.name).expect("known").family;
        let family = FAMILIES.iter().find(|known| known.name == family).expect("known");
        let points = match metric.data.as_ref().expect("data") {
            Data::Gauge(gauge) => &gauge.points,
            Data::Sum(sum) => &sum.points,
            Data::Histogram(histogram) => {
                for point in &histogram.points {
                    let mut below = 0;
                    for (number, count) in point.bucket_counts.iter().enumerate() {
                        below += count;
                        let end = point.bounds.get(number).map_or("+Inf".to_owned(), |bound| format!("{bound:.1}"));
                        let mut labels = labels(&point.attributes);
                        labels.push(("le".to_owned(), end));
                        said.insert((format!("{}_bucket", family.name), labels), below as f64);
                    }
                    let labels = labels(&point.attributes);
                    said.insert((format!("{}_count", family.name), labels.clone()), point.count as f64);
                    said.insert((format!("{}_sum", family.name), labels), point.sum.expect("a sum"));
                }
                continue;
            }
        };
        for point in points {
            let value = match point.value.expect("a value") {
                PointValue::Whole(number) => number as f64,
                PointValue::Real(number) => number,
            };
            said.insert((format!("{}{}", family.name, family.kind.suffix()), labels(&point.attributes)), value);
        }
    }
    said
}

/// Text and message are of the same samples, so they have the same series with the same numbers.
#[test]
fn page_and_message_agree() {
    let mut samples = samples();
    samples.retain(|sample| sample.family != "memscope_events");
    samples.push(Sample::whole("memscope_events", Vec::new(), 12_345));
    let page = of_page(&page::write(&samples, Format::Text));
    assert_eq!(page.len(), 12, "{page:#?}");
    assert_eq!(of_message(&decoded(&metrics(&origin(), &samples, NOW_NS))), page);
}

/// A text of a program is cut and cleaned as on the page; a number that is none stays text.
#[test]
fn hostile_values_are_bounded() {
    let KeyValue { key, value } = attribute("comm", &format!("a\u{1b}\n{}", "ä".repeat(100)));
    let Some(Value::Text(value)) = value.and_then(|value| value.value) else { panic!("a text") };
    assert_eq!(
        (key.as_str(), value.starts_with("a\u{fffd}"), value.len() <= 70),
        ("process.executable.name", true, true)
    );
    assert_eq!(attribute("process_id", "x"), text("process.pid", "x"));
}

/// Records go out with their names.
#[test]
fn records_of_events() {
    let record = LogRecord { time_ns: 5, event_name: "memscope.oom".to_owned(), ..LogRecord::default() };
    let batch = logs(&origin(), vec![record.clone(), record.clone()]);
    assert_eq!((batch.signal, batch.records), (Signal::Logs, 2));
    let message = ExportLogs::decode(batch.body).expect("a message");
    assert_eq!(message.resources[0].resource, Some(origin().resource));
    assert_eq!(message.resources[0].scopes[0].records, [record.clone(), record]);
}
