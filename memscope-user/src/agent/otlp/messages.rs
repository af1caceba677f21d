//! Messages of the `OpenTelemetry` protocol, as far as they are sent: protobuf, with the numbers of its fields.
//!
//! Numbers and types are those of the repository `open-telemetry/opentelemetry-proto`, release 1.10: files `common.proto`,
//! `resource.proto`, `metrics.proto`, `logs.proto` and the two services below `opentelemetry/proto/`. Fields that are never sent are left out. The crate
//! `opentelemetry-proto` has all of them, and brings the whole SDK with it.

use prost::{Message, Oneof};

/// `AGGREGATION_TEMPORALITY_CUMULATIVE`.
pub(super) const CUMULATIVE: i32 = 2;
/// `SEVERITY_NUMBER_INFO`.
pub(super) const INFO: i32 = 9;
/// `SEVERITY_NUMBER_WARN`.
pub(super) const WARN: i32 = 13;
/// `SEVERITY_NUMBER_ERROR`.
pub(super) const ERROR: i32 = 17;

/// `ExportMetricsServiceRequest`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportMetrics {
    #[prost(message, repeated, tag = "1")]
    pub(super) resources: Vec<ResourceMetrics>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResourceMetrics {
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(super) scopes: Vec<ScopeMetrics>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ScopeMetrics {
    #[prost(message, optional, tag = "1")]
    pub(super) scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub(super) metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Metric {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) description: String,
    #[prost(string, tag = "3")]
    pub(super) unit: String,
    #[prost(oneof = "Data", tags = "5, 7, 9")]
    pub(super) data: Option<Data>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Data {
    #[prost(message, tag = "5")]
    Gauge(Gauge),
    #[prost(message, tag = "7")]
    Sum(Sum),
    #[prost(message, tag = "9")]
    Histogram(Histogram),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Gauge {
    #[prost(message, repeated, tag = "1")]
    pub(super) points: Vec<NumberPoint>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Sum {
    #[prost(message, repeated, tag = "1")]
    pub(super) points: Vec<NumberPoint>,
    #[prost(int32, tag = "2")]
    pub(super) temporality: i32,
    #[prost(bool, tag = "3")]
    pub(super) is_monotonic: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Histogram {
    #[prost(message, repeated, tag = "1")]
    pub(super) points: Vec<HistogramPoint>,
    #[prost(int32, tag = "2")]
    pub(super) temporality: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NumberPoint {
    #[prost(message, repeated, tag = "7")]
    pub(super) attributes: Vec<KeyValue>,
    #[prost(fixed64, tag = "2")]
    pub(super) start_time_ns: u64,
    #[prost(fixed64, tag = "3")]
    pub(super) time_ns: u64,
    #[prost(oneof = "PointValue", tags = "4, 6")]
    pub(super) value: Option<PointValue>,
}

#[derive(Clone, Copy, PartialEq, Oneof)]
pub(super) enum PointValue {
    #[prost(double, tag = "4")]
    Real(f64),
    #[prost(sfixed64, tag = "6")]
    Whole(i64),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HistogramPoint {
    #[prost(message, repeated, tag = "9")]
    pub(super) attributes: Vec<KeyValue>,
    #[prost(fixed64, tag = "2")]
    pub(super) start_time_ns: u64,
    #[prost(fixed64, tag = "3")]
    pub(super) time_ns: u64,
    #[prost(fixed64, tag = "4")]
    pub(super) count: u64,
    #[prost(double, optional, tag = "5")]
    pub(super) sum: Option<f64>,
    #[prost(fixed64, repeated, tag = "6")]
    pub(super) bucket_counts: Vec<u64>,
    #[prost(double, repeated, tag = "7")]
    pub(super) bounds: Vec<f64>,
}

/// `ExportLogsServiceRequest`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportLogs {
    #[prost(message, repeated, tag = "1")]
    pub(super) resources: Vec<ResourceLogs>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResourceLogs {
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(super) scopes: Vec<ScopeLogs>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ScopeLogs {
    #[prost(message, optional, tag = "1")]
    pub(super) scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub(super) records: Vec<LogRecord>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LogRecord {
    #[prost(fixed64, tag = "1")]
    pub(super) time_ns: u64,
    #[prost(fixed64, tag = "11")]
    pub(super) observed_time_ns: u64,
    #[prost(int32, tag = "2")]
    pub(super) severity: i32,
    #[prost(message, optional, tag = "5")]
    pub(super) body: Option<AnyValue>,
    #[prost(message, repeated, tag = "6")]
    pub(super) attributes: Vec<KeyValue>,
    #[prost(string, tag = "12")]
    pub(super) event_name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(super) attributes: Vec<KeyValue>,
}

/// `InstrumentationScope`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Scope {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 2, 3, 4")]
    pub(super) value: Option<Value>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Value {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(int64, tag = "3")]
    Whole(i64),
    #[prost(double, tag = "4")]
    Real(f64),
}

/// `ExportMetricsServiceResponse` and `ExportLogsServiceResponse`: their fields have the same numbers.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportAnswer {
    #[prost(message, optional, tag = "1")]
    pub(super) partial: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PartialSuccess {
    #[prost(int64, tag = "1")]
    pub(super) rejected: i64,
    #[prost(string, tag = "2")]
    pub(super) error: String,
}

impl From<Value> for AnyValue {
    fn from(value: Value) -> Self {
        Self { value: Some(value) }
    }
}

impl KeyValue {
    pub(super) fn new(key: &str, value: Value) -> Self {
        Self { key: key.to_owned(), value: Some(value.into()) }
    }

    pub(super) fn text(key: &str, value: impl Into<String>) -> Self {
        Self::new(key, Value::Text(value.into()))
    }

    /// A number that is beyond the type's largest becomes it.
    pub(super) fn whole(key: &str, number: u64) -> Self {
        Self::new(key, Value::Whole(i64::try_from(number).unwrap_or(i64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits = hex.as_bytes().chunks(2).map(|two| std::str::from_utf8(two).expect("digits"));
        digits.map(|two| u8::from_str_radix(two, 16).expect("a byte")).collect()
    }

    fn sender() -> (Option<Resource>, Option<Scope>) {
        let resource = Resource { attributes: vec![KeyValue::text("h", "n")] };
        (Some(resource), Some(Scope { name: "s".to_owned(), version: "1".to_owned() }))
    }

    fn metric(name: &str, description: &str, unit: &str, data: Data) -> Metric {
        Metric { name: name.into(), description: description.into(), unit: unit.into(), data: Some(data) }
    }

    /// The bytes were made by the Python package `opentelemetry-proto` 1.45.2, which is generated from the definitions.
    #[test]
    fn metrics_on_the_wire() {
        let wire = bytes(
            "0ac1010a0a0a080a016812030a016e12b2010a060a0173120131121f0a01671201641a01312a140a1219030000000000000021000000000000\
             e03f12330a01631a0242793a2a0a2411020000000000000019030000000000000031f9ffffffffffffff3a070a016b12021805100218011252\
             0a01684a4d0a491102000000000000001903000000000000002103000000000000002900000000000022403210010000000000000002000000\
             000000003a0800000000000010404a070a0162120210011002",
        );
        let real = NumberPoint { time_ns: 3, value: Some(PointValue::Real(0.5)), ..NumberPoint::default() };
        let whole = NumberPoint {
            attributes: vec![KeyValue::whole("k", 5)],
            start_time_ns: 2,
            time_ns: 3,
            value: Some(PointValue::Whole(-7)),
        };
        let classes = HistogramPoint {
            attributes: vec![KeyValue::new("b", Value::Bool(true))],
            start_time_ns: 2,
            time_ns: 3,
            count: 3,
            sum: Some(9.0),
            bucket_counts: vec![1, 2],
            bounds: vec![4.0],
        };
        let metrics = vec![
            metric("g", "d", "1", Data::Gauge(Gauge { points: vec![real] })),
            metric("c", "", "By", Data::Sum(Sum { points: vec![whole], temporality: CUMULATIVE, is_monotonic: true })),
            metric("h", "", "", Data::Histogram(Histogram { points: vec![classes], temporality: CUMULATIVE })),
        ];
        let (resource, scope) = sender();
        let scopes = vec![ScopeMetrics { scope, metrics }];
        let message = ExportMetrics { resources: vec![ResourceMetrics { resource, scopes }] };
        assert_eq!(message.encode_to_vec(), wire);
        assert_eq!(ExportMetrics::decode(&*wire), Ok(message));
    }

    /// Made in the same way.
    #[test]
    fn logs_and_answers_on_the_wire() {
        let wire = bytes(
            "0a440a0a0a080a016812030a016e12360a060a0173120131122c09010000000000000010112a030a0174320e0a0172120921000000000000f8\
             3f590200000000000000620165",
        );
        let record = LogRecord {
            time_ns: 1,
            observed_time_ns: 2,
            severity: ERROR,
            body: Some(Value::Text("t".to_owned()).into()),
            attributes: vec![KeyValue::new("r", Value::Real(1.5))],
            event_name: "e".to_owned(),
        };
        let (resource, scope) = sender();
        let scopes = vec![ScopeLogs { scope, records: vec![record] }];
        let message = ExportLogs { resources: vec![ResourceLogs { resource, scopes }] };
        assert_eq!(message.encode_to_vec(), wire);
        assert_eq!(ExportLogs::decode(&*wire), Ok(message));
        // Metrics and logs have the same answer.
        let partial = Some(PartialSuccess { rejected: 3, error: "m".to_owned() });
        assert_eq!(ExportAnswer::decode(&*bytes("0a05080312016d")), Ok(ExportAnswer { partial }));
    }
}
