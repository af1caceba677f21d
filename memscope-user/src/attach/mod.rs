//! Where the probes go in this machine's processes, and how they get there.
//!
//! `maps` says which files a process has mapped, `elf` where a function is in a file, `locate` where one is that
//! the file does not name, `site` which instruction of
//! it is the cheapest to probe, `libraries` puts the three together, `kernel` makes the links. `spawn`, `follow`
//! and `guard` start, follow and never abandon the traced processes.

pub mod elf;
#[cfg(feature = "trace")]
pub mod features;
#[cfg(feature = "trace")]
pub mod follow;
#[cfg(feature = "trace")]
pub mod guard;
#[cfg(feature = "trace")]
pub mod kernel;
#[cfg(feature = "trace")]
pub mod libraries;
#[cfg(feature = "trace")]
pub mod locate;
pub mod maps;
#[cfg(feature = "trace")]
pub mod ops;
#[cfg(feature = "trace")]
pub mod python;
#[cfg(feature = "trace")]
pub mod site;
#[cfg(feature = "trace")]
pub mod spawn;
