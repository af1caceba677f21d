//! Markers of the Python package (`python/src/markers.rs`): functions that do nothing but be called.

use memscope_common::{ArrayShape, Fetch, When};

use super::{CallKind, Field, Layer, ProbeSpec, ScriptCall, WatchCall};

/// The marker with the version of all in its name: these rows apply to no other version.
pub const PRESENCE: &str = "memscope_marks_1";
/// The kernel counts probes on [`PRESENCE`] in this: `uint16_t`.
pub const SEMAPHORE: &str = "memscope_semaphore";

const MARKER: ProbeSpec = ProbeSpec {
    layer: Layer::Script,
    libraries: &["_memscope_bpf*.so"],
    requires: Some(PRESENCE),
    when: When::Entry,
    returns_int: false,
    ..ProbeSpec::BASE
};

const BLOCK: &[(Field, Fetch)] =
    &[(Field::Addr, Fetch::arg(1)), (Field::Size, Fetch::arg(2)), (Field::Count, Fetch::arg(3))];
const ADDRESS: &[(Field, Fetch)] = &[(Field::Addr, Fetch::arg(0))];

/// A block that the script wants watched: `void memscope_mark_watch(const char *name, uint64_t addr, uint64_t size,
/// uint64_t looks)`, and its opposite.
pub const WATCH_MARKERS: &[ProbeSpec] = &[
    ProbeSpec {
        symbol: "memscope_mark_watch",
        meaning: CallKind::Watch(WatchCall::Watch),
        fields: BLOCK,
        text_arg: Some(0),
        ..MARKER
    },
    ProbeSpec {
        symbol: "memscope_mark_unwatch",
        meaning: CallKind::Watch(WatchCall::Unwatch),
        fields: ADDRESS,
        ..MARKER
    },
];

const TRACE_TEXT: &str = "memscope_mark_trace_text";
const TRACE: &str = "memscope_mark_trace";

/// Whether of a Python trace ranges are heard of, and calls are not, with probes on these functions.
pub fn lacks_python_calls(has: impl Fn(&str) -> bool) -> bool {
    has(TRACE_TEXT) && !has(TRACE)
}

const LABELS: [Field; 2] = [Field::LabelsLow, Field::LabelsHigh];

pub(super) const ROWS: &[ProbeSpec] = &[
    // void memscope_mark_settings(uint64_t analyses, uint64_t stack_depths, uint64_t named)
    ProbeSpec {
        symbol: "memscope_mark_settings",
        meaning: CallKind::Script(ScriptCall::Settings),
        fields: &[(Field::Analyses, Fetch::arg(0)), (Field::StackDepths, Fetch::arg(1)), (Field::Named, Fetch::arg(2))],
        ..MARKER
    },
    // void memscope_mark_config(uint64_t events, uint64_t levels, uint64_t devices)
    ProbeSpec {
        symbol: "memscope_mark_config",
        meaning: CallKind::Script(ScriptCall::Config),
        fields: &[(Field::Events, Fetch::arg(0)), (Field::Levels, Fetch::arg(1)), (Field::Devices, Fetch::arg(2))],
        ..MARKER
    },
    // void memscope_mark_start(void)
    ProbeSpec { symbol: "memscope_mark_start", meaning: CallKind::Script(ScriptCall::Start), ..MARKER },
    // void memscope_mark_stop(void)
    ProbeSpec { symbol: "memscope_mark_stop", meaning: CallKind::Script(ScriptCall::Stop), ..MARKER },
    // void memscope_mark_step(void)
    ProbeSpec { symbol: "memscope_mark_step", meaning: CallKind::Script(ScriptCall::Step), ..MARKER },
    // void memscope_mark_labels(uint64_t low, uint64_t high)
    ProbeSpec {
        symbol: "memscope_mark_labels",
        meaning: CallKind::Script(ScriptCall::ThreadLabels),
        fields: &[(LABELS[0], Fetch::arg(0)), (LABELS[1], Fetch::arg(1))],
        ..MARKER
    },
    // void memscope_mark_label_text(uint64_t id, const char *text)
    ProbeSpec {
        symbol: "memscope_mark_label_text",
        meaning: CallKind::Script(ScriptCall::LabelText),
        fields: &[(Field::LabelId, Fetch::arg(0))],
        text_arg: Some(1),
        ..MARKER
    },
    // void memscope_mark_label_addr(uint64_t addr, uint64_t low, uint64_t high)
    ProbeSpec {
        symbol: "memscope_mark_label_addr",
        meaning: CallKind::Script(ScriptCall::BlockLabels),
        fields: &[(Field::Addr, Fetch::arg(0)), (LABELS[0], Fetch::arg(1)), (LABELS[1], Fetch::arg(2))],
        ..MARKER
    },
    // void memscope_mark_snapshot(const char *name, const struct snapshot *record)
    // struct snapshot { uint64_t device, reserved, max_reserved, allocated, max_allocated, total, free; }
    ProbeSpec {
        symbol: "memscope_mark_snapshot",
        meaning: CallKind::Script(ScriptCall::Snapshot),
        fields: &[
            (Field::Device, Fetch::memory(1, 0)),
            (Field::PoolReserved, Fetch::memory(1, 8)),
            (Field::PoolMaxReserved, Fetch::memory(1, 16)),
            (Field::PoolAllocated, Fetch::memory(1, 24)),
            (Field::PoolMaxAllocated, Fetch::memory(1, 32)),
            (Field::DeviceTotal, Fetch::memory(1, 40)),
            (Field::DeviceFree, Fetch::memory(1, 48)),
        ],
        text_arg: Some(0),
        ..MARKER
    },
    // void memscope_mark_range(const char *name, uint64_t start_ns)
    ProbeSpec {
        symbol: "memscope_mark_range",
        meaning: CallKind::Script(ScriptCall::Range),
        fields: &[(Field::StartTime, Fetch::arg(1))],
        text_arg: Some(0),
        ..MARKER
    },
    // void memscope_mark_trace_text(uint64_t id, const char *text)
    ProbeSpec {
        symbol: TRACE_TEXT,
        meaning: CallKind::Script(ScriptCall::TraceText),
        fields: &[(Field::LabelId, Fetch::arg(0))],
        text_arg: Some(1),
        ..MARKER
    },
    // void memscope_mark_trace(const struct chunk *chunk)
    // struct chunk { const char *name; uint64_t elements_used; struct element elements[15]; uint64_t further; }
    ProbeSpec {
        symbol: TRACE,
        meaning: CallKind::Script(ScriptCall::TraceRows),
        when: When::Array,
        fields: &[(Field::Name, Fetch::text(0, 0)), (Field::TraceRows, Fetch::array(0, 0))],
        array: Some(ArrayShape { count_at: 8, elements_at: 16, stride: 104, room: 15, first: 0, most: 15 }),
        ..MARKER
    },
];
