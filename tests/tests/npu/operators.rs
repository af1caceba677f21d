//! Operators of real `PyTorch` against what a `TorchDispatchMode` in the same process saw of them.

use std::collections::BTreeMap;
use std::path::Path;

use memscope_tests::harness::rows::{Row, Rows};
use memscope_tests::torch::bench::Program;
use serde_json::Value;

use super::version_name;

/// One line of the comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Event {
    kind: String,
    operator: String,
    /// Address, bytes, type, shape; address 0 for a Python number.
    tensor: Option<(u64, u64, String, Vec<i64>)>,
}

type Events = BTreeMap<u32, Vec<Event>>;

fn read_truth(folder: &Path) -> Events {
    let text = std::fs::read(folder.join("operators.json")).expect("the program's truth");
    let threads: Vec<Value> = serde_json::from_slice(&text).expect("JSON");
    let event = |event: &Value| Event {
        kind: event[0].as_str().expect("kind").to_owned(),
        operator: event[1].as_str().expect("operator").to_owned(),
        tensor: event[2].as_u64().map(|addr| {
            let shape = event[5].as_array().expect("shape").iter().map(|size| size.as_i64().expect("size")).collect();
            (addr, event[3].as_u64().expect("bytes"), event[4].as_str().expect("type").to_owned(), shape)
        }),
    };
    let thread = |thread: &Value| {
        let events = thread["events"].as_array().expect("events").iter().map(event).collect();
        (thread["tid"].as_u64().expect("thread") as u32, events)
    };
    threads.iter().map(thread).collect()
}

fn event_of(row: &Row) -> Option<Event> {
    let kind = match (row.event.as_str(), row.event_type.as_str()) {
        ("OP_LAUNCH", "ATEN_START") => "START",
        ("OP_LAUNCH", "ATEN_END") => "END",
        ("ACCESS", kind) => kind,
        _ => return None,
    };
    let tensor = (row.event == "ACCESS").then(|| {
        let shape = row.attr["shape"].trim_start_matches("torch.Size([").trim_end_matches("])");
        let sizes = shape.split(", ").filter(|size| !size.is_empty());
        let sizes = sizes.map(|size| size.parse().expect("size")).collect();
        (row.ptr.expect("address"), row.number("size"), row.attr["dtype"].clone(), sizes)
    });
    Some(Event { kind: kind.to_owned(), operator: row.name.clone().expect("operator"), tensor })
}

fn events_of(rows: &Rows) -> Events {
    let mut events = Events::new();
    for row in rows.all() {
        if let Some(event) = event_of(row) {
            events.entry(row.tid).or_default().push(event);
        }
    }
    events
}

/// What only the mode sees: operators that Python code calls through its own registry (those of the profiler), and the
/// `detach` by which the mode itself wraps what autograd saves. The programs call no `detach`.
fn without_modes_own(events: Vec<Event>) -> Vec<Event> {
    let own = |name: &str| name.starts_with("torch._ops.profiler.") || name == "torch._ops.aten.detach.default";
    events.into_iter().filter(|event| !own(&event.operator)).collect()
}

/// What the mode does not see: `torch.tensor()` switches it off, but for `lift_fresh`, while it makes its tensor (`empty`)
/// and hands it out (`detach_`).
fn without_constructor(events: &[Event]) -> Vec<Event> {
    let name = |event: &Event| event.operator.trim_start_matches("torch._ops.aten.").to_owned();
    let mut kept: Vec<Event> = Vec::new();
    for event in events {
        let name_of_it = name(event);
        if matches!(name_of_it.as_str(), "detach_.default" | "detach.default") {
            continue;
        }
        if name_of_it == "lift_fresh.default" && event.kind == "START" {
            // A number that C++ makes a tensor of is lifted, too, without `empty`.
            let made = kept.iter().rposition(|event| event.kind == "START");
            if let Some(made) = made.filter(|made| name(&kept[*made]) == "empty.memory_format") {
                kept.truncate(made);
            }
        }
        kept.push(event.clone());
    }
    kept
}

/// Names, order, addresses, sizes, types and shapes, line by line. Of a Python number all but the address is known.
fn assert_same(tid: u32, wanted: &[Event], found: &[Event]) {
    let equal = |wanted: &Event, found: &Event| {
        let mut found = found.clone();
        if let (Some((0, ..)), Some((addr, ..))) = (&wanted.tensor, &mut found.tensor) {
            *addr = 0;
        }
        *wanted == found
    };
    let different = wanted.iter().zip(found).position(|(wanted, found)| !equal(wanted, found));
    let at = different.unwrap_or(wanted.len().min(found.len()));
    let around = |events: &[Event]| format!("{:#?}", &events[at.saturating_sub(3)..events.len().min(at + 4)]);
    assert!(
        different.is_none() && wanted.len() == found.len(),
        "thread {tid}, event {at} of {} and {}\nmode {}\nrows {}",
        wanted.len(),
        found.len(),
        around(wanted),
        around(found)
    );
}

/// 2000 random operators on two threads: in place, with `out`, views, lists, indices, eight dimensions, autograd,
/// exceptions.
#[test]
fn random_operators() {
    for seed in ["1", "1000"] {
        let program = Program::new(&format!("random_ops.py 2000 {seed}")).env("TORCH_DEVICE_BACKEND_AUTOLOAD", "0");
        let (run, truth) = program.traced_with(&["--events=launch,access", "--device=npu,cpu"]);
        assert_eq!(run.json()["end"]["lost"], 0, "{}", run.said());
        let (wanted, mut found) = (read_truth(&truth), events_of(&run.rows()));
        let mut compared = 0;
        for (tid, events) in wanted {
            let wanted = without_modes_own(events);
            let found = without_constructor(&found.remove(&tid).unwrap_or_default());
            assert_same(tid, &wanted, &found);
            compared += wanted.len();
        }
        assert!(compared > 5000, "only {compared} events");
        println!("torch_npu {}: {compared} events of operators, all equal", version_name());
    }
}
