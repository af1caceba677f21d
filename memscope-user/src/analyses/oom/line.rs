//! An event of the flight recorder, in words.

use crate::model::{Block, Event, EventKind, Mark};

/// An event in one line.
pub(super) fn line(event: &Event) -> String {
    let text = |text: &Option<std::sync::Arc<str>>| text.as_deref().unwrap_or("null").escape_debug().to_string();
    let what = match &event.kind {
        EventKind::Alloc(alloc) => {
            let Block { pool, addr, size_bytes, .. } = alloc.block;
            format!("{} alloc {addr:#x} {size_bytes} bytes, used {}", pool.event_type(), alloc.used_bytes)
        }
        EventKind::Free(free) => {
            let Block { pool, addr, size_bytes, .. } = free.block;
            format!("{} free {addr:#x} {size_bytes} bytes, used {}", pool.event_type(), free.used_bytes)
        }
        EventKind::AllocFailed(failed) => {
            let function = failed.caller.map_or("the driver", |name| name.as_str());
            format!("{function} failed for {} bytes, attempt {}", failed.size_bytes, failed.attempt)
        }
        EventKind::AllocRecovered(recovered) => format!("{} bytes were there after all", recovered.size_bytes),
        EventKind::Launch(launch) => format!("launch {}", launch.name.escape_debug()),
        EventKind::Op(op) => format!("operator {} {:?}", op.name.escape_debug(), op.phase),
        EventKind::Mark(Mark::Point { text: given }) => format!("mark {}", text(given)),
        EventKind::Mark(Mark::RangeStart { text: given, .. }) => format!("range {}", text(given)),
        EventKind::Mark(Mark::RangeEnd { .. }) => "range end".to_owned(),
        EventKind::StepStart { step } => format!("step {step} starts"),
        EventKind::StepEnd { step } => format!("step {step} ends"),
        EventKind::UnknownFree(free) => format!("{} free of unknown {:#x}", free.pool.event_type(), free.addr),
        EventKind::BlockReturned(returned) => format!("{} has {:#x} back", returned.pool.event_type(), returned.addr),
        EventKind::ProcessStart(_) => "process start".to_owned(),
        _ => "other".to_owned(),
    };
    format!("{} {}: {what}", event.time_ns, event.tid)
}
