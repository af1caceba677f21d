//! The tracer under real probes, over simulated Ascend libraries whose journal is the truth.
//!
//! Needs root, `MEMSCOPE_BIN` and `MEMSCOPE_SIM_DIR`: `./x test` sees to all three. Behaviour that depends on the
//! kernel is tested for how it degrades; nothing is skipped.

#[path = "live/ahead.rs"]
mod ahead;
#[path = "live/atb.rs"]
mod atb;
#[path = "live/attach.rs"]
mod attach;
#[path = "live/bad_input.rs"]
mod bad_input;
#[path = "live/clock.rs"]
mod clock;
#[path = "live/containers.rs"]
mod containers;
#[path = "live/daemon.rs"]
mod daemon;
#[path = "live/decompose.rs"]
mod decompose;
#[path = "live/diff.rs"]
mod diff;
#[path = "live/errors.rs"]
mod errors;
#[path = "live/fragmentation.rs"]
mod fragmentation;
#[path = "live/kills.rs"]
mod kills;
#[path = "live/late.rs"]
mod late;
#[path = "live/layers.rs"]
mod layers;
#[path = "live/leaks.rs"]
mod leaks;
#[path = "live/ledger.rs"]
mod ledger;
#[path = "live/messages.rs"]
mod messages;
#[path = "live/mstx.rs"]
mod mstx;
#[path = "live/native_stacks.rs"]
mod native_stacks;
#[path = "live/operators.rs"]
mod operators;
#[path = "live/outputs.rs"]
mod outputs;
#[path = "live/peaks.rs"]
mod peaks;
#[path = "live/pools.rs"]
mod pools;
#[path = "live/privileges.rs"]
mod privileges;
#[path = "live/python_hostile.rs"]
mod python_hostile;
#[path = "live/python_markers.rs"]
mod python_markers;
#[path = "live/python_scripts.rs"]
mod python_scripts;
#[path = "live/python_snippets.rs"]
mod python_snippets;
#[path = "live/python_stacks.rs"]
mod python_stacks;
#[path = "live/replays.rs"]
mod replays;
#[path = "live/rotation.rs"]
mod rotation;
#[path = "live/runs.rs"]
mod runs;
#[path = "live/select.rs"]
mod select;
#[path = "live/shared.rs"]
mod shared;
#[path = "live/stack_faults.rs"]
mod stack_faults;
#[path = "live/stack_witness.rs"]
mod stack_witness;
#[path = "live/stat.rs"]
mod stat;
#[path = "live/stops.rs"]
mod stops;
#[path = "live/sums.rs"]
mod sums;
#[path = "live/throughput.rs"]
mod throughput;
#[path = "live/usage.rs"]
mod usage;
#[path = "live/watch.rs"]
mod watch;
#[path = "live/watch_safety.rs"]
mod watch_safety;
#[path = "live/workloads.rs"]
mod workloads;
