//! speedscope's file format (`www.speedscope.app/file-format-schema.json`): one sampled profile of bytes for each moment, process and device.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde_json::{Value, json};

use super::{Frames, clean, layers};
use crate::model::Stack;
use crate::report::data::device_name;
use crate::report::{Layer, Reduced, StackWeight, View};

/// Writes the profiles: of each layer the peak first, all allocations last.
///
/// # Errors
///
/// When `out` cannot be written.
pub fn write(run: &Reduced, out: &mut dyn Write) -> io::Result<()> {
    let mut frames = Frames::default();
    let mut profiles = Vec::new();
    for (view, layer) in layers(run) {
        for moment in &layer.moments {
            let when = match moment.kind {
                "peak" => "at the peak",
                "oom" => "when memory was out",
                "step" => "at the end of the last step",
                _ => "at the last allocation",
            };
            profiles.push(profile(&name(view, layer, when), moment.by_stack(), &mut frames));
        }
        profiles.push(profile(&name(view, layer, "all allocations"), layer.by_stack.clone(), &mut frames));
    }
    let frame = |frame: &crate::text::frame::OwnedFrame| {
        let mut shown = json!({ "name": clean(&frame.name) });
        if !frame.file.is_empty() {
            shown["file"] = clean(&frame.file).into();
        }
        if frame.line > 0 {
            shown["line"] = frame.line.into();
        }
        shown
    };
    let file = json!({
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": concat!("memscope-bpf ", env!("CARGO_PKG_VERSION")),
        "activeProfileIndex": 0,
        "shared": { "frames": frames.frames.iter().map(frame).collect::<Vec<_>>() },
        "profiles": profiles,
    });
    serde_json::to_writer(&mut *out, &file)?;
    writeln!(out)
}

fn name(view: &View, layer: &Layer, when: &str) -> String {
    format!("{} of process {} on {}, {when}", layer.pool.event_type(), view.pid, device_name(view.device))
}

fn profile(name: &str, weights: Vec<StackWeight>, frames: &mut Frames) -> Value {
    let mut samples: BTreeMap<Vec<crate::model::Text>, (StackWeight, u64)> = BTreeMap::new();
    for weight in weights {
        let key = weight.stacks.best().map(Stack::frames).unwrap_or_default();
        samples.entry(key).or_insert((weight, 0)).1 += weight.bytes;
    }
    let total: u64 = samples.values().map(|(_, bytes)| bytes).sum();
    let (mut stacks, mut bytes) = (Vec::new(), Vec::new());
    for (weight, sum) in samples.values() {
        let mut outermost_first = frames.of(weight.stacks);
        outermost_first.reverse();
        stacks.push(outermost_first);
        bytes.push(*sum);
    }
    json!({
        "type": "sampled", "name": name, "unit": "bytes", "startValue": 0, "endValue": total, "samples": stacks, "weights": bytes,
    })
}
