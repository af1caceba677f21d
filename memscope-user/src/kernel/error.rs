//! Reasons why the kernel side cannot be set up.

use std::io;

use aya::{EbpfError, programs::ProgramError};
use thiserror::Error;

use super::features;

/// Setting up the kernel side failed.
#[derive(Debug, Error)]
pub enum KernelError {
    /// The kernel is below the floor.
    #[error("this kernel ({release}) lacks {}; memscope-bpf needs Linux 5.10 or newer", missing.join(" and "))]
    TooOld {
        /// `uname -r`.
        release: String,
        /// The missing features.
        missing: Vec<&'static str>,
    },
    /// The process may not trace.
    #[error("not permitted to trace: {} missing; {advice}", names.join(", "))]
    Privileges {
        /// Missing capabilities.
        names: Vec<&'static str>,
        /// How to get them.
        advice: String,
    },
    /// Maps or programs need more locked memory than the user may have.
    #[error(
        "not permitted to load BPF maps and programs: before Linux 5.11 they count as locked memory, of which this user may have {} KiB; run with sudo, or lift the limit (`ulimit -l unlimited`, memlock in /etc/security/limits.conf)",
        limit_bytes >> 10
    )]
    LockedMemory {
        /// Its limit.
        limit_bytes: u64,
        /// The refusal.
        #[source]
        source: io::Error,
    },
    /// The kernel names processes by other numbers than this process does.
    #[error("{}", features::NESTED_PIDS)]
    NestedPids,
    /// The object was refused.
    #[error("the kernel refused the BPF object")]
    Load(#[source] Box<EbpfError>),
    /// The kernel cannot link probes in the requested way.
    #[error(
        "the kernel refused to link as `--link` says: it has no {missing}; without `--link` the best that it has is taken"
    )]
    Link {
        /// The missing feature.
        missing: &'static str,
    },
    /// A program was refused.
    #[error("the kernel refused BPF program `{name}`")]
    Program {
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: Box<ProgramError>,
    },
    /// A probe could not be placed.
    #[error("cannot attach `{name}`")]
    Attach {
        /// Program.
        name: String,
        /// Why.
        #[source]
        source: Box<ProgramError>,
    },
    /// A map could not be used.
    #[error("cannot use BPF map `{name}`: {reason}")]
    Map {
        /// Its name.
        name: &'static str,
        /// Why.
        reason: String,
    },
    /// No tracefs and no way to mount it.
    #[error(
        "tracefs is not mounted and could not be mounted for the tracer alone; as root: mount -t tracefs nodev /sys/kernel/tracing"
    )]
    Tracefs {
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A tracepoint has another layout than any kernel known.
    #[error("tracepoint `{event}` has no field `{field}`")]
    Tracepoint {
        /// The event.
        event: &'static str,
        /// The field.
        field: &'static str,
    },
    /// More rows than the kernel side can hold.
    #[error("no room for a further probe: {rows} rows are in use")]
    RowsFull {
        /// Rows.
        rows: u16,
    },
}

pub(super) fn no_map(name: &'static str) -> KernelError {
    KernelError::Map { name, reason: "it is not in the object".to_owned() }
}

pub(crate) fn map_error(name: &'static str, error: &dyn std::fmt::Display) -> KernelError {
    KernelError::Map { name, reason: error.to_string() }
}

pub(crate) fn refused(name: &str, error: ProgramError) -> KernelError {
    KernelError::Program { name: name.to_owned(), source: Box::new(error) }
}
