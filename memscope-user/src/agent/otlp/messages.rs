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
