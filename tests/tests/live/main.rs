//! The tracer under real probes, over simulated Ascend libraries with a journal that is the truth.
//!
//! Needs root, `MEMSCOPE_BIN` and `MEMSCOPE_SIM_DIR`: `./x test` sees to all three. Behaviour that depends on the
//! kernel is tested for how it degrades; nothing is skipped.

mod ahead;
mod atb;
mod attach;
mod bad_input;
mod clock;
mod containers;
mod daemon;
mod decompose;
mod diff;
mod errors;
mod explain;
mod first_screen;
mod fragmentation;
mod holders;
mod kills;
mod late;
mod layers;
mod leaks;
mod ledger;
mod library;
mod lifetimes;
mod messages;
mod mstx;
mod native_stacks;
mod operators;
mod outputs;
mod peaks;
mod pools;
mod privileges;
mod profiles;
mod python_hostile;
mod python_markers;
mod python_scripts;
mod python_snippets;
mod python_stacks;
mod replays;
mod rotation;
mod runs;
mod scenes;
mod select;
mod shared;
mod stack_faults;
mod stack_witness;
mod stat;
mod stops;
mod sums;
mod throughput;
mod top;
mod unasked_stacks;
mod usage;
mod watch;
mod watch_safety;
mod workloads;
