//! Findings as rows: what the commands print with `--json` is nested, a table is not. Columns are there without rows, too.

use serde_json::Value;

use super::arrow::{Cell, Column, Type};

/// Where rows come from: lists inside of findings.
#[derive(Debug)]
pub(super) struct Shape {
    /// Which findings, by their tag (everything, if empty); the list in them; what the column `=` says of its rows.
    lists: &'static [(&'static str, &'static str, &'static str)],
    columns: &'static [(&'static str, Kind, &'static str)],
}

/// What a column holds, and what of a value goes there.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Plain(Type),
    /// A list, its members joined by this.
    Joined(&'static str),
    /// An NPU's number as text, or `host`.
    Device,
}

const UNSIGNED: Kind = Kind::Plain(Type::Unsigned);
const SIGNED: Kind = Kind::Plain(Type::Signed);
const FLOAT: Kind = Kind::Plain(Type::Float);
const FLAG: Kind = Kind::Plain(Type::Flag);
const TEXT: Kind = Kind::Plain(Type::Text);
/// Frames, innermost first.
const FRAMES: Kind = Kind::Joined("\n");

/// Of places: `..` is the finding, `=` what the list is, everything else within the list's member.
pub(super) const LEAKS: Shape = Shape {
    lists: &[
        ("step_leaks", "/leaks", "leak"),
        ("step_leaks", "/unjudged", "unjudged"),
        ("mark_leaks", "/leaks", "leak"),
    ],
    columns: &[
        ("verdict", TEXT, "="),
        ("pid", UNSIGNED, "../pid"),
        ("device", Kind::Device, "../device"),
        ("pool", TEXT, "/pool"),
        ("addr", UNSIGNED, "/addr"),
        ("size_bytes", UNSIGNED, "/size_bytes"),
        ("step", UNSIGNED, "/step"),
        ("survived_steps", UNSIGNED, "/survived_steps"),
        ("kernel_index", UNSIGNED, "/kernel_index"),
        ("allocation_id", UNSIGNED, "/allocation_id"),
        ("event_id", UNSIGNED, "/event_id"),
        ("freed_later", FLAG, "/freed_later"),
        ("confidence", TEXT, "../confidence"),
        ("python_stack", FRAMES, "/stacks/python/frames"),
        ("native_stack", FRAMES, "/stacks/native/frames"),
    ],
};

pub(super) const INEFFICIENT: Shape = Shape {
    lists: &[("inefficient", "/blocks", "")],
    columns: &[
        ("pid", UNSIGNED, "../pid"),
        ("device", Kind::Device, "../device"),
        ("pool", TEXT, "/pool"),
        ("addr", UNSIGNED, "/addr"),
        ("size_bytes", UNSIGNED, "/size_bytes"),
        ("allocation_id", UNSIGNED, "/allocation_id"),
        ("event_id", UNSIGNED, "/event_id"),
        ("kinds", Kind::Joined(","), "/kinds"),
        ("wasted_byte_seconds", FLOAT, "/wasted_byte_seconds"),
    ],
};

pub(super) const DECOMPOSE: Shape = Shape {
    lists: &[("decompose", "/parts", "")],
    columns: &[
        ("pid", UNSIGNED, "../pid"),
        ("device", Kind::Device, "../device"),
        ("pool", TEXT, "../pool"),
        ("owner", TEXT, "/owner"),
        ("component", TEXT, "/component"),
        ("rule", TEXT, "/rule"),
        ("source", TEXT, "/source"),
        ("peak_blocks", UNSIGNED, "/peak_blocks"),
        ("peak_bytes", UNSIGNED, "/peak_bytes"),
        ("end_blocks", UNSIGNED, "/end_blocks"),
        ("end_bytes", UNSIGNED, "/end_bytes"),
        ("mean_bytes", UNSIGNED, "/mean_bytes"),
        ("blocks", UNSIGNED, "/blocks"),
    ],
};

pub(super) const PEAKS: Shape = Shape {
    lists: &[("peak", "/groups/owners", "")],
    columns: &[
        ("pid", UNSIGNED, "../pid"),
        ("device", Kind::Device, "../device"),
        ("pool", TEXT, "../pool"),
        ("time_ns", UNSIGNED, "../time_ns"),
        ("step", UNSIGNED, "../step"),
        ("peak_bytes", UNSIGNED, "../peak_bytes"),
        ("owner", TEXT, "/owner"),
        ("blocks", UNSIGNED, "/blocks"),
        ("size_bytes", UNSIGNED, "/size_bytes"),
    ],
};

pub(super) const FRAGMENTATION: Shape = Shape {
    lists: &[("fragmentation", "/series", "")],
    columns: &[
        ("pid", UNSIGNED, "../pid"),
        ("device", Kind::Device, "../device"),
        ("pool", TEXT, "../pool"),
        ("time_ns", UNSIGNED, "/time_ns"),
        ("total_bytes", UNSIGNED, "/last/total_bytes"),
        ("used_bytes", UNSIGNED, "/last/used_bytes"),
        ("free_bytes", UNSIGNED, "/last/free_bytes"),
        ("largest_free_bytes", UNSIGNED, "/last/largest_free_bytes"),
        ("ratio", FLOAT, "/last/ratio"),
        ("worst_ratio", FLOAT, "/worst/ratio"),
    ],
};

/// Its findings are the pools of the difference.
pub(super) const DIFF: Shape = Shape {
    lists: &[("", "/owners", "")],
    columns: &[
        ("device", Kind::Device, "../device"),
        ("pool", TEXT, "../pool"),
        ("owner", TEXT, "/owner"),
        ("from_blocks", UNSIGNED, "/from/blocks"),
        ("from_bytes", UNSIGNED, "/from/size_bytes"),
        ("to_blocks", UNSIGNED, "/to/blocks"),
        ("to_bytes", UNSIGNED, "/to/size_bytes"),
        ("grown_blocks", SIGNED, "/grown_blocks"),
        ("grown_bytes", SIGNED, "/grown_bytes"),
    ],
};

impl Shape {
    /// The rows of findings, in their order.
    pub(super) fn columns(&self, findings: &[Value]) -> Vec<Column> {
        let new = |(name, kind, _): &(&'static str, Kind, _)| {
            Column::new(name, if let Kind::Plain(kind) = kind { *kind } else { Type::Text })
        };
        let mut columns: Vec<Column> = self.columns.iter().map(new).collect();
        for finding in findings {
            let tag = finding.get("finding").and_then(Value::as_str).unwrap_or("");
            for (_, list, label) in self.lists.iter().filter(|(of, ..)| *of == tag) {
                for member in finding.pointer(list).and_then(Value::as_array).into_iter().flatten() {
                    for (column, (_, kind, place)) in columns.iter_mut().zip(self.columns) {
                        let cell = match place.strip_prefix("..") {
                            Some(place) => cell(*kind, finding.pointer(place)),
                            None if *place == "=" => Cell::Text((*label).to_owned()),
                            None => cell(*kind, member.pointer(place)),
                        };
                        column.push(&cell);
                    }
                }
            }
        }
        columns
    }
}

fn cell(kind: Kind, value: Option<&Value>) -> Cell {
    let Some(value) = value else { return Cell::Missing };
    let found = match kind {
        Kind::Plain(Type::Unsigned) => value.as_u64().map(Cell::Unsigned),
        Kind::Plain(Type::Signed) => value.as_i64().map(Cell::Signed),
        Kind::Plain(Type::Float) => value.as_f64().map(Cell::Float),
        Kind::Plain(Type::Flag) => value.as_bool().map(Cell::Flag),
        Kind::Plain(Type::Text) => value.as_str().map(|text| Cell::Text(text.to_owned())),
        // As the column `Device Id` of dumps has it: the number of an NPU, else a word.
        Kind::Device => value.as_str().map(|text| Cell::Text(text.strip_prefix("npu:").unwrap_or(text).to_owned())),
        Kind::Joined(by) => value.as_array().map(|members| {
            let texts: Vec<&str> = members.iter().filter_map(Value::as_str).collect();
            Cell::Text(texts.join(by))
        }),
    };
    found.unwrap_or(Cell::Missing)
}
