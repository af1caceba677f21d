//! The BPF object in the kernel: loaded by `object`, for what `features` found and `privileges` allow.
//!
//! `links` puts probes into files, `tracepoints` follows processes, `processes` and `maps` write and read the object's
//! maps. `same_file` and `tracers` query the kernel by experiment, `semaphore` announces the tracer to scripts.

mod cost;
mod error;
pub mod features;
mod links;
mod maps;
mod object;
mod options;
mod placing;
pub mod privileges;
mod processes;
mod programs;
pub mod same_file;
pub mod semaphore;
pub(crate) mod task_layout;
mod tracepoints;
#[cfg(feature = "cli")]
pub mod tracers;

pub use cost::{LeftOutStacks, ProgramTime};
pub use error::KernelError;
pub(crate) use error::map_error;
pub use links::{ObjectPoint, Point, PointKind};
pub use maps::{NativeStacks, Processes, WAIT_MAPS, WatchMaps};
pub use object::{Kernel, LinkSet, lacks_object, python_support};
pub use options::{KernelOptions, StackOptions};
pub use placing::Placing;
