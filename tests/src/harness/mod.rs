//! Runs the tracer over the simulated workloads, and compares what it wrote with what they did.
//!

pub mod container;
pub mod daemon;
pub mod debugger;
pub mod expect;
pub mod journal;
pub mod pythons;
pub mod rows;
pub mod tracer;
pub mod uprobes;
pub mod user;
