//! What a trace tells: the user in messages, the capture in notes.

use std::time::Duration;

use memscope_common::Miss;

use super::{Session, start::clocks};
use crate::{
    capture::{LossCount, Note, note_record},
    cli::{
        args::LogLevel,
        disk::{DiskUse, until},
        message, operators, terminal,
    },
    follow::Change,
    kernel::features::LinkMode,
    model::Device,
    os::clock::monotonic_ns,
    probes::{MSTX_TOOL, ProbeSpec, lacks_python_calls},
    ring::{Command, Reader},
};

impl Session<'_> {
    pub(super) fn note(&self, text: &Note) {
        note(&self.reader, text);
    }

    pub(super) fn note_changes(&mut self) {
        for change in self.follow.take_changes() {
            if let Some(monitor) = &mut self.monitor {
                monitor.changed(&change);
            }
            self.note(&change_note(change));
        }
    }

    pub(super) fn note_clock(&self) {
        let (mono_ns, real_ns) = clocks();
        self.note(&Note::Clock { mono_ns, real_ns });
        self.note_losses();
    }

    /// The kernel side's counters, so that a recovered trace knows of its losses too.
    fn note_losses(&self) {
        let Ok(misses) = self.kernel.misses() else { return };
        if !misses.is_empty() {
            let by =
                misses.into_iter().map(|(row, miss, count)| LossCount { row, reason: miss as u32, count }).collect();
            self.note(&Note::Losses { by });
        }
    }

    pub(super) fn tell_interpreters(&mut self) {
        for text in self.follow.take_told() {
            self.say(LogLevel::Warning, format_args!("{text}"));
        }
    }

    pub(super) fn tell_libraries(&mut self) {
        self.tell_interpreters();
        for library in self.follow.take_added() {
            let path = library.path.display();
            if let Some(known) = &library.same_as {
                let text = format_args!("{path}: the same file as {}, whose probes serve both", known.display());
                self.say(LogLevel::Debug, text);
                continue;
            }
            if let Some(error) = &library.error {
                self.say(LogLevel::Warning, format_args!("{path}: {error}"));
            }
            for (symbol, reason) in &library.not_located {
                self.say(LogLevel::Warning, format_args!("{path}: `{symbol}` is not traced: {reason}"));
            }
            for (symbol, (vaddr, evidence)) in library.placed.iter().filter_map(|p| Some((&p.symbol, p.located?))) {
                self.say(LogLevel::Debug, format_args!("{path}: `{symbol}` located at {vaddr:#x} ({evidence})"));
            }
            let stepped = library.placed.iter().filter(|placed| placed.is_stepped()).count();
            self.say(
                LogLevel::Debug,
                format_args!("{path}: {} probe(s), {stepped} of them single-stepped", library.placed.len()),
            );
            if lacks_python_calls(|symbol| library.placed.iter().any(|placed| placed.symbol == symbol)) {
                self.say(LogLevel::Info, format_args!("{path}: {UNTOLD_CALLS}"));
            }
            if let Some(ops) = library.ops {
                let (warns, text) = operators::describe(&library.path, ops, operators::wanted(self.args).accesses);
                self.say(if warns { LogLevel::Warning } else { LogLevel::Debug }, format_args!("{text}"));
            }
        }
    }

    #[track_caller]
    pub(super) fn say(&self, level: LogLevel, text: std::fmt::Arguments<'_>) {
        message(self.args.collect.level_of_messages(), level, text);
    }

    /// Records that the transport had no room for.
    pub(super) fn lost(&self) -> u64 {
        self.kernel.misses().map_or(0, |misses| {
            misses.iter().filter(|(_, miss, _)| *miss == Miss::RingFull).map(|(.., count)| count).sum()
        })
    }

    /// How often threads and processes had to wait until libraries were probed.
    pub(super) fn tell_waits(&self) {
        let misses = self.kernel.misses().unwrap_or_default();
        let sum = |wanted: Miss| misses.iter().filter(|(_, miss, _)| *miss == wanted).map(|(.., count)| count).sum();
        let [held, stopped]: [u64; 2] = [Miss::Held, Miss::Stopped].map(sum);
        self.say(LogLevel::Debug, format_args!("late libraries: {held} hold(s), {stopped} stop(s)"));
    }

    /// One line on a terminal that is ours: with `run`, only if the program does not write there.
    pub(super) fn show_status(&self, disk: DiskUse) {
        let shared = self.child.is_some() && terminal::shows_output();
        let quiet =
            self.args.no_progress || self.args.capture_only || self.args.collect.level_of_messages() > LogLevel::Info;
        if quiet || shared || !terminal::shows_messages() {
            return;
        }
        let figures = self.gauge.figures();
        let lost = self.lost();
        let devices: Vec<String> = figures
            .live_bytes
            .iter()
            .map(|(device, bytes)| format!("{} {:.1} MiB", device_name(*device), mebibytes(*bytes)))
            .collect();
        terminal::show_status(format_args!(
            "{} events | live: {} | disk: {:.1} MiB, {:.1} MiB/s{} | lost: {lost}",
            figures.events,
            devices.join(", "),
            mebibytes(disk.size_bytes),
            mebibytes(disk.bytes_per_second),
            disk.until_full.map(|left| format!(", full in {}", time(left))).unwrap_or_default()
        ));
    }
}

/// Of a script's trace, where the kernel lacks what its calls are read by.
const UNTOLD_CALLS: &str =
    "of Python traces ranges are told, calls are not: this kernel has no attach cookies (Linux 5.15)";

/// No process has loaded what we know: the program is another one, or it starts its work where we do not follow.
pub(super) fn tell_nothing_traced(wanted: LogLevel, user: &[&'static ProbeSpec]) {
    let own = if user.is_empty() { "" } else { ", and none that --probe names" };
    let text = format_args!(
        "nothing was traced: no traced process loaded an Ascend library (driver, runtime, ACL, torch_npu, MindSpore, \
         ATB or mstx){own}"
    );
    message(wanted, LogLevel::Warning, text);
    tell_names(wanted, user);
}

/// Which libraries are looked for.
pub(super) fn tell_names(wanted: LogLevel, user: &[&'static ProbeSpec]) {
    message(wanted, LogLevel::Debug, format_args!("looked for {}", library_names(user)));
}

/// Puts a note behind what is in the transport.
pub(super) fn note(reader: &Reader, note: &Note) {
    reader.send(Command::Note(note_record(monotonic_ns(), 0, note)));
}

pub(super) fn change_note(change: Change) -> Note {
    match change {
        Change::Started { pid, parent, attached, command, visible_devices, pid_within } => {
            Note::ProcessStart { pid, parent, attached, command, visible_devices, pid_within }
        }
        Change::Ended { pid } => Note::ProcessEnd { pid },
    }
}

/// How much was written, how fast, and for how long the disk has room. Of files that rotate only their size: the oldest are gone.
pub(super) fn disk_text(disk: DiskUse, took: Option<Duration>, free_bytes: Option<u64>) -> String {
    let Some(took) = took else { return format!("the files that stay have {}", size(disk.size_bytes)) };
    let rate = disk.size_bytes as f64 / took.as_secs_f64().max(1e-3);
    let room = free_bytes.map(|free| match until(free, rate) {
        Some(left) => format!("; {} are free: enough for {} at this rate", size(free), time(left)),
        None => format!("; {} are free", size(free)),
    });
    let rate = mebibytes(rate as u64);
    format!("wrote {}, {rate:.1} MiB/s{}", size(disk.size_bytes), room.unwrap_or_default())
}

/// Bytes with a unit.
pub(super) fn size(bytes: u64) -> String {
    if bytes < 1 << 30 {
        format!("{:.1} MiB", mebibytes(bytes))
    } else {
        format!("{:.1} GiB", mebibytes(bytes) / 1024.0)
    }
}

/// A time with one unit, rounded down.
pub(super) fn time(time: Duration) -> String {
    match time.as_secs() {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn device_name(device: Device) -> String {
    match device {
        Device::Npu(number) => format!("npu {number}"),
        Device::Cpu => "cpu".to_owned(),
        Device::None => "no device".to_owned(),
    }
}

/// What the user is told of functions that there is no room for.
pub(super) fn unserved_text(mode: LinkMode, unserved: &[&str]) -> Option<String> {
    let why = match mode {
        LinkMode::Slots => "without attach cookies (Linux 5.15) there is room for few",
        LinkMode::Multi | LinkMode::Cookie => "there is no room",
    };
    let (count, names) = (unserved.len(), unserved.join(", "));
    (count > 0).then(|| format!("{count} function(s) are not probed, as {why}: {names}"))
}

pub(super) fn list(pids: &[u32]) -> String {
    pids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn library_names(user: &[&'static ProbeSpec]) -> String {
    let specs = crate::probes::builtin().chain(user.iter().copied());
    let mut names: Vec<&str> = specs.flat_map(|spec| spec.libraries.iter().copied()).collect();
    names.retain(|name| *name != MSTX_TOOL);
    names.sort_unstable();
    names.dedup();
    names.join(", ")
}
