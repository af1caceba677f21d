//! `memscope`: traces Ascend NPU memory from outside a running program.
//!
//! Data walks one way: `ring` → `decode` → `pipeline` (time order, blocks, steps) → `analyses` and `sinks`. `capture`
//! stores the records of the ring and feeds them to `decode` again. `probes` describes the traced functions, `locate`
//! finds them in a file, `kernel` places the probes, `follow` keeps up with the processes. See `docs/architecture.md`.
//!
#![cfg_attr(feature = "trace", doc = include_str!("first_page.md"))]
#![deny(clippy::print_stdout, clippy::print_stderr, reason = "cli/terminal.rs writes to terminals")]

#[cfg(feature = "cli")]
pub mod agent;
pub mod analyses;
pub mod backend;
mod calm;
pub mod capture;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "trace")]
pub mod crew;
#[cfg(feature = "trace")]
pub mod daemon;
pub mod decode;
mod digest;
pub mod document;
pub mod dump_format;
pub mod explain;
#[cfg(feature = "trace")]
pub mod follow;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod hash;
pub mod holders;
pub mod input;
#[cfg(feature = "trace")]
pub mod kernel;
#[cfg(feature = "trace")]
pub mod locate;
pub mod model;
pub mod os;
pub mod overview;
#[cfg(feature = "parquet")]
mod parquet_table;
pub mod pipeline;
pub mod printable;
pub mod probes;
pub mod python;
mod regular;
pub mod report;
#[cfg(feature = "trace")]
pub mod ring;
mod robust;
#[cfg(feature = "trace")]
pub mod session;
pub mod settings;
pub mod sinks;
#[cfg(feature = "trace")]
pub mod stacks;
#[cfg(test)]
pub(crate) mod testing;
mod text;
#[cfg(feature = "cli")]
mod top;
#[cfg(feature = "trace")]
pub mod usage;
pub mod watch;
pub mod whatif;

/// An error with its causes, on one line.
#[must_use]
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
