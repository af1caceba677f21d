//! The node agent: traces all processes of a machine that use Ascend memory, always, within a budget, and publishes what they hold.
//!
//! ```text
//!  /proc ─▶ discover ─▶ rules ─▶ source (a trace that processes join) ─▶ books ─▶ fold ─┬▶ page ─▶ http
//!            cgroup, names ─┘            ▲                                   │            └▶ otlp ─▶ a collector
//!                                     budget                                 ├─▶ failures ─▶ bundles
//!                                     control ◀─ status, capture             └─▶ evidence ─▶ files
//! ```
//!
//! Of processes that the budget leaves out of the trace, or traces without their pools, `reader` reads the pools; `node` adds them to the account.
//!
//! Pure: `cgroup`, `rules`, `books`, `series`, `flight`, `fold`, `page`, `budget`, `control`. See `docs/agent.md`.

pub mod books;
pub mod budget;
mod bundles;
pub mod cgroup;
mod client;
pub mod config;
pub mod control;
mod cost;
mod cri;
mod curve;
pub mod discover;
pub mod evidence;
pub mod failures;
pub mod flight;
pub mod fold;
pub mod http;
pub mod metrics;
pub mod names;
mod node;
#[cfg(test)]
mod notes;
mod otlp;
pub mod page;
mod process;
pub mod reader;
pub mod rules;
mod run;
pub mod series;
mod serve;
pub mod source;
mod wire;

pub use self::{
    client::ask,
    run::{AgentError, RunOptions, run},
};

/// Where commands reach the agent unless its settings say otherwise.
pub const DEFAULT_SOCKET: &str = "/run/memscope-bpf/agent.sock";
