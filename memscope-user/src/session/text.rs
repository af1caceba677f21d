//! Sizes, times and names as messages have them.

use std::time::Duration;

use crate::{
    kernel::features::LinkMode,
    probes::{MSTX_TOOL, ProbeSpec},
};

/// Bytes with a unit.
pub(crate) fn size(bytes: u64) -> String {
    if bytes < 1 << 30 {
        format!("{:.1} MiB", mebibytes(bytes))
    } else {
        format!("{:.1} GiB", mebibytes(bytes) / 1024.0)
    }
}

/// A time with one unit, rounded down.
pub(crate) fn time(time: Duration) -> String {
    match time.as_secs() {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

/// Bytes in MiB.
pub(crate) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Functions without room for a probe.
pub(crate) fn unserved_text(mode: LinkMode, unserved: &[&str]) -> Option<String> {
    let why = match mode {
        LinkMode::Slots => "without attach cookies (Linux 5.15) there is room for few",
        LinkMode::Multi | LinkMode::Cookie => "there is no room",
    };
    let (count, names) = (unserved.len(), unserved.join(", "));
    (count > 0).then(|| format!("{count} function(s) are not probed, as {why}: {names}"))
}

/// Process ids, for a sentence.
pub(crate) fn list(pids: &[u32]) -> String {
    pids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Libraries that are searched for.
pub(crate) fn library_names(user: &[&'static ProbeSpec]) -> String {
    let specs = crate::backend::builtin().chain(user.iter().copied());
    let mut names: Vec<&str> = specs.flat_map(|spec| spec.libraries.iter().copied()).collect();
    names.retain(|name| *name != MSTX_TOOL);
    names.sort_unstable();
    names.dedup();
    names.join(", ")
}
