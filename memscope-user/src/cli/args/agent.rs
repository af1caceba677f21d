//! Options of the node agent.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand, ValueEnum};

use crate::{agent::DEFAULT_SOCKET, cli::values};

/// `agent`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(in crate::cli) struct AgentArgs {
    /// Ask a running agent instead of being one.
    #[command(subcommand)]
    pub command: Option<AgentCommand>,
    /// Settings, as TOML; docs/agent.md has them all. Without, all have their defaults.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print one page of numbers, made after one interval, and end. Nothing is listened on.
    #[arg(long)]
    pub once: bool,
    /// Print errors only.
    #[arg(short = 'q', long)]
    pub quiet: bool,
}

/// What a running agent can be asked.
#[derive(Debug, Subcommand)]
pub(in crate::cli) enum AgentCommand {
    /// Show how the agent is, and whom it traces.
    Status(AgentStatusArgs),
    /// Show who holds the memory of this machine: live, or once where stdout is no terminal.
    Top(AgentTopArgs),
    /// Have a process or a pod traced in full for a while; the agent goes on meanwhile.
    Capture(AgentCaptureArgs),
}

/// `agent status`.
#[derive(Debug, Args)]
pub(in crate::cli) struct AgentStatusArgs {
    /// Where the agent listens.
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// One JSON object on stdout.
    #[arg(long)]
    pub json: bool,
}

/// `agent top`.
#[derive(Debug, Args)]
pub(in crate::cli) struct AgentTopArgs {
    /// Where the agent listens.
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// What a row is of, beside device and pool.
    #[arg(long, value_enum, default_value_t)]
    pub by: By,
    /// One table as text, also on a terminal.
    #[arg(long)]
    pub once: bool,
    /// One JSON object on stdout.
    #[arg(long)]
    pub json: bool,
}

/// What is counted together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum By {
    /// All processes of a pod.
    Pod,
    /// A process.
    #[default]
    Process,
    /// All processes of a device.
    Device,
}

/// `agent capture`.
#[derive(Debug, Args)]
pub(in crate::cli) struct AgentCaptureArgs {
    /// Where the agent listens.
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// The process.
    #[arg(short = 'p', long, value_name = "PID", value_parser = values::pid, required_unless_present = "pod")]
    pub pid: Option<u32>,
    /// All traced processes of this pod.
    #[arg(long, value_name = "NAME", conflicts_with = "pid")]
    pub pod: Option<String>,
    /// Trace for this time: 30s, 10m.
    #[arg(short = 'd', long = "for", alias = "duration", value_name = "TIME", value_parser = values::duration, default_value = "60s")]
    pub duration: Duration,
    /// Where the agent writes: a folder of its machine.
    #[arg(short = 'o', long, value_name = "DIR", default_value = super::DEFAULT_OUTPUT)]
    pub output_path: PathBuf,
}
