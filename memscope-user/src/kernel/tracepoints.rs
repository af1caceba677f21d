//! Tracepoints for processes that fork, execute, exit: raw ones where the kernel describes its types (BTF), which need
//! no file system and only BPF's privileges; else those with a layout in tracefs.

use std::{fs, path::Path};

use aya::{
    Ebpf,
    programs::{RawTracePoint, TracePoint},
};
use memscope_common::Config;

use super::{
    error::{KernelError, refused},
    features,
    programs::program,
    task_layout,
};

/// The source of a process's fields for the kernel side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tracepoints {
    /// A task has its number at this offset.
    Raw { task_pid: u32 },
    /// Offsets in events.
    Tracefs { newtask_pid: u32, newtask_flags: u32, free_pid: u32 },
}

const EXEC: &str = "sched_process_exec";

/// Category and name of an event, and its programs, normal and raw; the event that adds processes comes last.
const EVENTS: [(&str, &str, [&str; 2]); 4] = [
    ("sched", "sched_process_free", ["process_free_raw", "process_free"]),
    ("sched", "sched_process_exit", ["process_exit_raw", "process_exit"]),
    ("sched", EXEC, ["process_exec_raw", "process_exec"]),
    ("task", "task_newtask", ["task_newtask_raw", "task_newtask"]),
];

impl Tracepoints {
    /// The kernel's best; `tracefs`: the ones of tracefs. Call before other threads start.
    pub(super) fn find(tracefs: bool) -> Result<Self, KernelError> {
        if let (Ok(task_pid), false) = (task_layout::pid(), tracefs) {
            return Ok(Self::Raw { task_pid });
        }
        ensure_tracefs()?;
        Ok(Self::Tracefs {
            newtask_pid: field_offset("task/task_newtask", "pid")?,
            newtask_flags: field_offset("task/task_newtask", "clone_flags")?,
            free_pid: field_offset("sched/sched_process_free", "pid")?,
        })
    }

    /// Writes it into the configuration of the BPF object.
    pub(super) const fn configure(self, config: &mut Config) {
        match self {
            Self::Raw { task_pid } => config.task_pid = task_pid,
            Self::Tracefs { newtask_pid, newtask_flags, free_pid } => {
                config.newtask_pid = newtask_pid;
                config.newtask_flags = newtask_flags;
                config.free_pid = free_pid;
            }
        }
    }

    /// Loads and attaches the programs. `images`: the file that a process runs can be found.
    pub(super) fn follow(self, ebpf: &mut Ebpf, images: bool) -> Result<(), KernelError> {
        if task_layout::offsets().known != 0 {
            // Without it a stop of ours cannot be distinguished from another's.
            let signals: &mut RawTracePoint = program(ebpf, "signal_generate_raw")?;
            let _ = signals.load().and_then(|()| signals.attach("signal_generate").map(drop));
        }
        for (category, event, [raw, formatted]) in EVENTS {
            if images && event == EXEC && matches!(self, Self::Raw { .. }) {
                let program: &mut RawTracePoint = program(ebpf, "process_exec_image_raw")?;
                if program.load().and_then(|()| program.attach(event)).is_ok() {
                    continue;
                }
            }
            let (name, attached) = match self {
                Self::Raw { .. } => {
                    let program: &mut RawTracePoint = program(ebpf, raw)?;
                    (raw, program.load().and_then(|()| program.attach(event)).map(drop))
                }
                Self::Tracefs { .. } => {
                    let program: &mut TracePoint = program(ebpf, formatted)?;
                    (formatted, program.load().and_then(|()| program.attach(category, event)).map(drop))
                }
            };
            attached.map_err(|error| refused(name, error))?;
        }
        Ok(())
    }
}

/// Makes tracefs visible to this process alone when it is not mounted.
fn ensure_tracefs() -> Result<(), KernelError> {
    use nix::{
        mount::{MsFlags, mount},
        sched::{CloneFlags, unshare},
    };
    if features::tracefs().is_some() {
        return Ok(());
    }
    let none = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS)
        // Mounts of the host still reach us, ours never reach the host.
        .and_then(|()| mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none))
        .and_then(|()| mount(Some("tracefs"), "/sys/kernel/tracing", Some("tracefs"), MsFlags::empty(), none))
        .map_err(|errno| KernelError::Tracefs { source: errno.into() })
}

/// Offset of a field in a tracepoint's event, from its `format` file.
fn field_offset(event: &'static str, field: &'static str) -> Result<u32, KernelError> {
    let tracefs = features::tracefs().unwrap_or_else(|| Path::new("/sys/kernel/tracing"));
    let format = fs::read_to_string(tracefs.join("events").join(event).join("format")).unwrap_or_default();
    parse_field_offset(&format, field).ok_or(KernelError::Tracepoint { event, field })
}

fn parse_field_offset(format: &str, field: &str) -> Option<u32> {
    format.lines().find_map(|line| {
        let (declaration, rest) = line.trim().strip_prefix("field:")?.split_once(';')?;
        let name = declaration.rsplit(' ').next()?;
        let offset = rest.trim().strip_prefix("offset:")?.split(';').next()?;
        (name == field).then(|| offset.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_offsets_come_from_the_format_file() {
        let format = "name: task_newtask\nformat:\n\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\
                      \tfield:pid_t pid;\toffset:8;\tsize:4;\tsigned:1;\n\
                      \tfield:unsigned long clone_flags;\toffset:32;\tsize:8;\tsigned:0;\n";
        assert_eq!(parse_field_offset(format, "pid"), Some(8));
        assert_eq!(parse_field_offset(format, "clone_flags"), Some(32));
        assert_eq!(parse_field_offset(format, "comm"), None);
    }
}
