//! Log records of what happens: a name, figures and the place, as the page has it. No stacks, and of paths only a bundle's file name.
//! Pure.

use super::{
    messages::{AnyValue, ERROR, INFO, KeyValue, LogRecord, Value, WARN},
    suspects::Suspect,
};
use crate::{
    agent::{
        budget::{Reason, Step},
        failures::Bundle,
        fold::{self, Target},
        page,
    },
    model::{Device, Pool},
};

/// Names of the events. `docs/agent.md` has them.
pub(super) const OOM: &str = "memscope.oom";
pub(super) const LEAK_SUSPECT: &str = "memscope.leak_suspect";
pub(super) const LEVEL_CHANGED: &str = "memscope.level_changed";

/// A request failed for want of memory. `file`: name of its bundle.
pub(super) fn oom(bundle: &Bundle, target: Option<&Target>, file: Option<&str>, now_ns: u64) -> LogRecord {
    let mut attributes = place(target, bundle.pid, bundle.device, bundle.pool);
    let of_pool = bundle.pools.iter().find(|pool| (pool.device, pool.pool) == (bundle.device, bundle.pool));
    attributes.extend([
        KeyValue::whole("memscope.requested", bundle.requested_bytes),
        KeyValue::new("memscope.status", Value::Whole(bundle.status.into())),
        KeyValue::new("memscope.recovered", Value::Bool(bundle.recovered)),
    ]);
    if let Some(pool) = of_pool {
        attributes.push(KeyValue::whole("memscope.memory.live", pool.live_bytes));
        let reserved = pool.reserved_bytes.map(|bytes| KeyValue::whole("memscope.pool.reserved", bytes));
        attributes.extend(reserved);
    }
    attributes.extend(file.map(|file| KeyValue::text("memscope.bundle", file)));
    let severity = if bundle.recovered { WARN } else { ERROR };
    let text = format!("a request for {} bytes failed for want of memory", bundle.requested_bytes);
    record(OOM, severity, text, attributes, (bundle.time_ns, now_ns))
}

/// A place is among the fastest growing ones for the first time.
pub(super) fn leak_suspect(suspect: &Suspect, target: Option<&Target>, now_ns: u64) -> LogRecord {
    let mut attributes = place(target, suspect.key.pid, suspect.key.device, suspect.key.pool);
    attributes.push(KeyValue::new("memscope.memory.growth", Value::Real(suspect.bytes_per_second)));
    if suspect.place.size_bytes > 0 {
        attributes.push(KeyValue::whole("memscope.allocation.size", suspect.place.size_bytes));
    }
    let rate = suspect.bytes_per_second * 60.0;
    let text = format!("a place grows by {rate:.0} bytes a minute: `memscope-bpf agent status` shows it");
    record(LEAK_SUSPECT, WARN, text, attributes, (now_ns, now_ns))
}

/// The agent traces less, or more.
pub(super) fn level_changed(step: Step, now_ns: u64) -> LogRecord {
    let attributes = vec![
        KeyValue::whole("memscope.level.from", step.from.number().into()),
        KeyValue::whole("memscope.level.to", step.to.number().into()),
        KeyValue::text("memscope.reason", step.reason.name()),
    ];
    let severity = if step.reason == Reason::Recovered { INFO } else { WARN };
    record(LEVEL_CHANGED, severity, step.to_string(), attributes, (now_ns, now_ns))
}

fn record(
    name: &str,
    severity: i32,
    text: String,
    attributes: Vec<KeyValue>,
    (time_ns, observed_time_ns): (u64, u64),
) -> LogRecord {
    let body = Some(AnyValue::from(Value::Text(text)));
    LogRecord { time_ns, observed_time_ns, severity, body, attributes, event_name: name.to_owned() }
}

fn place(target: Option<&Target>, pid: u32, device: Device, pool: Pool) -> Vec<KeyValue> {
    let none = Target::default();
    let Target { place, container_id, .. } = target.unwrap_or(&none);
    let pool = fold::known(pool);
    let names = [
        ("k8s.namespace.name", place.namespace.as_str()),
        ("k8s.pod.name", &place.pod_name),
        ("k8s.container.name", &place.container_name),
        ("container.id", container_id),
        ("hw.id", &fold::id(device)),
        ("memscope.layer", fold::layer(pool)),
        ("memscope.pool", &pool.event_type().to_ascii_lowercase()),
    ];
    let filled = names.into_iter().filter(|(_, value)| !value.is_empty());
    let mut attributes: Vec<KeyValue> =
        filled.map(|(key, value)| KeyValue::text(key, page::bounded(value).collect::<String>())).collect();
    attributes.push(KeyValue::whole("process.pid", pid.into()));
    attributes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        agent::{
            budget::Level,
            failures::BundlePool,
            fold::Where,
            series::{Place, SeriesKey},
        },
        backend::ascend::pools,
        model::Stacks,
    };

    fn target() -> Target {
        let place = Where { namespace: "n".into(), pod_name: "p".into(), container_name: "c".into() };
        Target { place, container_id: "0123".into(), comm: "python3".into(), ..Target::default() }
    }

    fn text(record: &LogRecord) -> Vec<String> {
        let value = |pair: &KeyValue| match pair.value.clone().and_then(|value| value.value).expect("a value") {
            Value::Text(text) => text,
            Value::Bool(is) => is.to_string(),
            Value::Whole(number) => number.to_string(),
            Value::Real(number) => number.to_string(),
        };
        record.attributes.iter().map(|pair| format!("{}={}", pair.key, value(pair))).collect()
    }

    const PLACE: [&str; 8] = [
        "k8s.namespace.name=n",
        "k8s.pod.name=p",
        "k8s.container.name=c",
        "container.id=0123",
        "hw.id=2",
        "memscope.layer=pool",
        "memscope.pool=pta",
        "process.pid=7",
    ];

    /// The request's figures, those of the pool that was asked, and the file's name.
    #[test]
    fn failed_request_by_hand() {
        let pool = BundlePool {
            device: Device::Npu(2),
            pool: pools::PTA,
            live_blocks: 3,
            live_bytes: 900,
            used_bytes: Some(1000),
            reserved_bytes: Some(4096),
            untracked_bytes: 100,
            read_time_ns: None,
            places: Vec::new(),
        };
        let other = BundlePool { pool: pools::HAL, live_bytes: 1, ..pool.clone() };
        let mut bundle = Bundle {
            time_ns: 5,
            pid: 7,
            device: Device::Npu(2),
            pool: pools::PTA,
            requested_bytes: 1 << 30,
            status: -6,
            stacks: Stacks::default(),
            recovered: false,
            request: 1,
            not_looked_for: None,
            pools: vec![other, pool],
            recent_events: None,
        };
        let record = oom(&bundle, Some(&target()), Some("bundle_5_7.json"), 9);
        assert_eq!((record.event_name.as_str(), record.severity), ("memscope.oom", ERROR));
        assert_eq!((record.time_ns, record.observed_time_ns), (5, 9));
        let mut expected = PLACE.to_vec();
        expected.extend(["memscope.requested=1073741824", "memscope.status=-6", "memscope.recovered=false"]);
        expected.extend(["memscope.memory.live=900", "memscope.pool.reserved=4096", "memscope.bundle=bundle_5_7.json"]);
        assert_eq!(text(&record), expected);
        bundle.recovered = true;
        assert_eq!(oom(&bundle, None, None, 9).severity, WARN);
    }

    /// The table for readers has each event with the attributes that it may have beside its place, and no other.
    #[test]
    fn docs_have_every_event() {
        let docs = include_str!("../../../../docs/agent.md");
        let names = [OOM, LEAK_SUSPECT, LEVEL_CHANGED].map(|name| format!("| `{name}` | "));
        let events: Vec<&str> = docs
            .lines()
            .skip_while(|line| !line.starts_with("| event |"))
            .skip(2)
            .take_while(|line| !line.is_empty())
            .collect();
        assert_eq!(events.len(), names.len());
        assert!(events.iter().zip(&names).all(|(line, name)| line.starts_with(name)), "{events:#?}");
    }

    /// A place without a stack has the size of its blocks.
    #[test]
    fn suspects_and_levels_by_hand() {
        let key = SeriesKey { pid: 7, device: Device::Npu(2), pool: pools::PTA };
        let place = Place { stacks: Stacks::default(), size_bytes: 512 };
        let record = leak_suspect(&Suspect { key, place, bytes_per_second: 2.5 }, Some(&target()), 9);
        assert_eq!(record.event_name, "memscope.leak_suspect");
        let mut expected = PLACE.to_vec();
        expected.extend(["memscope.memory.growth=2.5", "memscope.allocation.size=512"]);
        assert_eq!(text(&record), expected);
        let step = Step { from: Level::All, to: Level::NoPython, reason: Reason::Cpu };
        let record = level_changed(step, 9);
        assert_eq!((record.event_name.as_str(), record.severity), ("memscope.level_changed", WARN));
        assert_eq!(text(&record), ["memscope.level.from=0", "memscope.level.to=1", "memscope.reason=cpu"]);
        let up = Step { from: Level::NoPython, to: Level::All, reason: Reason::Recovered };
        assert_eq!(level_changed(up, 9).severity, INFO);
    }
}
