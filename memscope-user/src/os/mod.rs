//! Linux and its file formats, without any knowledge of probes, records or Ascend.

#[cfg(feature = "trace")]
pub mod btf;
#[cfg(feature = "trace")]
pub mod caller;
#[cfg(feature = "trace")]
pub mod capabilities;
#[cfg(feature = "trace")]
pub mod clock;
pub mod elf;
#[cfg(feature = "trace")]
pub mod mapped;
pub mod maps;
#[cfg(feature = "trace")]
pub mod memory;
#[cfg(feature = "trace")]
pub mod perf_event;
#[cfg(feature = "trace")]
pub mod pidfd;
#[cfg(feature = "trace")]
pub mod priority;
#[cfg(feature = "trace")]
pub mod process;
#[cfg(feature = "trace")]
pub mod rights;
#[cfg(feature = "trace")]
pub mod secure_env;
