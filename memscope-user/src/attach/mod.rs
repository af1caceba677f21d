//! Where the probes go in this machine's processes, and how they get there.
//!
//! `maps` says which files a process has mapped, `elf` where a function is in a file, `locate` where one is that
//! the file does not name, `copies` which files have functions of mstx in them, `site` which instruction of
//! it is the cheapest to probe, `inode` which files are one under several names, `libraries` puts these together,
//! `kernel` makes the links. `spawn`, `follow` and `guard` start, follow and never abandon the traced processes, `waits` knows
//! who of them waits.
//! `presence` tells scripts that a tracer is there, `tracers` whether a process has one. `privileges` says what tracing takes, and
//! `capabilities` gives up what is not needed any more. `mstx_tool` is the one thing that is put into a process, if the user wants it.

#[cfg(feature = "trace")]
mod ahead;
#[cfg(feature = "trace")]
pub mod caller;
#[cfg(feature = "trace")]
pub mod capabilities;
#[cfg(feature = "trace")]
mod copies;
pub mod elf;
#[cfg(feature = "trace")]
mod exchange;
#[cfg(feature = "trace")]
pub mod features;
#[cfg(feature = "trace")]
pub mod follow;
#[cfg(feature = "trace")]
mod given_up;
#[cfg(feature = "trace")]
pub mod guard;
#[cfg(feature = "trace")]
pub mod inherited;
#[cfg(feature = "trace")]
mod inode;
#[cfg(feature = "trace")]
pub mod kernel;
#[cfg(feature = "trace")]
pub mod libraries;
#[cfg(feature = "trace")]
mod lifecycle;
#[cfg(feature = "trace")]
mod literals;
#[cfg(feature = "trace")]
pub mod locate;
#[cfg(feature = "trace")]
pub mod mapped;
pub mod maps;
#[cfg(feature = "trace")]
pub mod memory;
#[cfg(feature = "trace")]
pub mod mstx_tool;
#[cfg(feature = "trace")]
pub mod ops;
#[cfg(feature = "trace")]
mod perf_event;
#[cfg(feature = "trace")]
mod presence;
#[cfg(feature = "trace")]
pub mod privileges;
#[cfg(feature = "trace")]
pub mod python;
#[cfg(feature = "trace")]
pub mod site;
#[cfg(feature = "trace")]
pub mod spawn;
#[cfg(feature = "trace")]
mod task;
#[cfg(feature = "trace")]
pub(crate) mod tracers;
#[cfg(feature = "trace")]
pub mod waits;
#[cfg(feature = "trace")]
pub mod withheld;
