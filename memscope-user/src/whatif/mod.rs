//! What if: a recorded run's requests through a model of the pool, under other settings or on a smaller device.
//!
//! ```text
//! events ─▶ requests ─▶ replay (pool, device) ─▶ check, bounds, least, answers ─▶ text, JSON
//! ```
//!
//! - `requests`: the program's requests, 24 bytes each, and the recorded answers;
//! - `settings`: the pool's settings, as data with the release that introduced each; `pool` and `device`: the model;
//! - `check`: whether the model reproduces the recording, which every answer begins with;
//! - `changes`, `early`: requests of a changed program: emptied caches, another batch size, blocks that are freed behind their last use;
//! - `answers`: questions to them;
//! - `forecast`: when a server's memory will be full, from what its pool held.
//!
//! All of it is a function of its input: no clock, no thread, no random order.

pub mod answers;
mod bounds;
#[cfg(test)]
mod cases;
mod changes;
mod check;
mod device;
mod early;
pub mod forecast;
mod least;
mod pool;
mod replay;
mod requests;
mod settings;
pub mod snapshot;
mod streams;

pub use self::bounds::{Bounds, bounds};
pub use self::changes::{Batches, EmptyAt, Scaled, scaled, with_empty_caches};
pub use self::check::{Difference, Differs, SelfCheck, check, find_settings};
pub use self::device::{Addresses, Calls, Card};
pub use self::early::{FreedEarly, freed_early};
pub use self::least::{Least, least};
pub use self::pool::{Figures, FreeMemory};
pub use self::replay::{OfDevice, Outcome, Parting, Setup, Until, replay};
pub use self::requests::{CallTime, CallTimes, Gaps, Lane, Mark, MarkOf, Recorder, Requests, Source};
pub use self::settings::{Family, KEYS, Key, ROUND_CLASSES, Refused, Release, Settings};

/// Bytes.
pub const KIB: u64 = 1 << 10;
/// Bytes.
pub const MIB: u64 = 1 << 20;
/// Bytes.
pub const GIB: u64 = 1 << 30;

/// Blocks are multiples of this.
const SMALLEST_BYTES: u64 = 512;
