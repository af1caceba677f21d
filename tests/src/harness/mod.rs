//! Runs the tracer over the simulated workloads, and compares what it wrote with what they did.
//!
//! [`tracer`] runs programs, as root or as a [`user`], [`daemon`] has scripts traced, [`debugger`] stops and kills programs, [`disk`] is soon full,
//! [`pythons`] finds interpreters, [`kernel`] says what there is to expect, [`journal`] reads the truth, [`rows`] the outputs,
//! [`document`] holds JSON to its schemas, [`terminal`] says what terminals obey, [`uprobes`] are another's probes on the same functions,
//! [`expect`] holds one against the other, [`holders`] asks who holds blocks, [`browser`] opens pages, [`promql`] runs
//! real servers and asks those of metrics, [`otlp`] has an agent send to them. Nothing here is shared with memscope-user: the formats are read as their documentation has them.

pub mod agent;
pub mod browser;
pub mod clock;
pub mod container;
pub mod daemon;
pub mod debugger;
pub mod disk;
pub mod document;
pub mod expect;
pub mod holders;
pub mod journal;
pub mod kernel;
pub mod otlp;
pub mod promql;
pub mod pythons;
pub mod rows;
pub mod terminal;
pub mod tracer;
pub mod uprobes;
pub mod user;
