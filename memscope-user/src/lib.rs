//! `memscope`: traces Ascend NPU memory from outside a running program.
//!
//! Data walks one way: `ring` → `decode` → `pipeline` (time order, blocks, steps) → `analyses` and `sinks`.
//! `capture` stores what came out of the ring and feeds it to `decode` again. `probes` says what is traced,
//! `attach` puts the probes there. See `docs/architecture.md`.

pub mod analyses;
pub mod model;
pub mod probes;
pub mod sinks;
