//! The command line. Spelling and defaults of the collection options are msMemScope's (contract §1).

mod agent;
mod collect;
mod files;
mod help_texts;
mod holders;
#[cfg(test)]
mod tests;
mod trace;

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand};

use crate::{
    cli::{
        ask::Ask,
        fleet::FleetArgs,
        forecast::ForecastArgs,
        values,
        whatif::{AdviseArgs, WhatIfArgs},
    },
    daemon::listen::DEFAULT_SOCKET,
};

pub(in crate::cli) use self::agent::{AgentArgs, AgentCaptureArgs, AgentCommand, AgentStatusArgs, AgentTopArgs, By};
pub(in crate::cli) use self::collect::{CollectArgs, CollectMode, LogLevel, ReportKind};
pub(in crate::cli) use self::files::{
    CompareArgs, DecomposeArgs, DiffArgs, ExportArgs, ExportAt, ExportFormat, ExportStack, FileArgs, HtmlArgs,
    InefficientArgs, LeaksArgs, OwnerArgs, PageArgs, RanksArgs, RecoverArgs, ReplayArgs, WeightBy, What,
};
pub(in crate::cli) use self::help_texts::PART;
pub(in crate::cli) use self::holders::HoldersArgs;
pub(in crate::cli) use self::trace::{Link, ProbeArgs, TraceArgs};

/// msMemScope's default.
pub(in crate::cli) const DEFAULT_OUTPUT: &str = "memscopeDumpResults";

/// Traces Ascend NPU memory from outside a program: nothing is preloaded, nothing is changed.
#[derive(Debug, Parser)]
#[command(name = "memscope-bpf", version, args_conflicts_with_subcommands = true, disable_version_flag = true)]
#[command(help_template = super::help::top_level())]
#[command(infer_long_args = true, args_override_self = true)]
#[command(after_help = "Exit status of `run`: the program's (128+N if signal N killed it); 125 tracing failed,
126 the program cannot be executed, 127 it was not found.
Otherwise 0 success, 1 failure, 2 bad usage; 3 if --fail-on found it.")]
pub(in crate::cli) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Attach to these running processes, all threads, and their children.
    #[arg(short = 'p', long, value_name = "PID", value_delimiter = ',', value_parser = values::pid)]
    pub pid: Vec<u32>,
    /// Compare two runs; the command `compare` does the same.
    #[arg(long, hide = true)]
    pub compare: bool,
    /// The two files to compare.
    #[arg(short = 'i', long, alias = "input", value_name = "A,B", hide = true)]
    pub input_path: Option<OsString>,
    /// Of msMemScope, whose Python interface needs variables.
    #[arg(long, hide = true)]
    pub load_api_env: bool,
    /// The same, to take them back.
    #[arg(long, hide = true)]
    pub unload_api_env: bool,
    /// How to trace.
    #[command(flatten)]
    pub trace: TraceArgs,
    /// Print the version.
    #[arg(short = 'V', long, action = clap::ArgAction::Version)]
    version: (),
    /// Program to start and its arguments, as msmemscope takes them; put `--` before it.
    #[arg(value_name = "PROG")]
    pub program: Vec<OsString>,
}

impl Cli {
    /// The options of collecting, if the command has them.
    pub(in crate::cli) fn collect(&self) -> Option<&CollectArgs> {
        match &self.command {
            None => Some(&self.trace.collect),
            Some(Command::Run(args)) => Some(&args.trace.collect),
            Some(Command::Attach(args)) => Some(&args.trace.collect),
            Some(Command::Replay(args)) => Some(&args.collect),
            Some(Command::Recover(args)) => Some(&args.collect),
            Some(Command::Demo(args)) => Some(&args.collect),
            Some(_) => None,
        }
    }
}

/// Verbs.
#[derive(Debug, Subcommand)]
pub(in crate::cli) enum Command {
    /// Start a program and trace it from its first instruction, with all children.
    #[command(after_help = help_texts::RUN)]
    Run(RunArgs),
    /// Attach to running processes.
    #[command(after_help = help_texts::ATTACH)]
    Attach(AttachArgs),
    /// Write the outputs of a capture again.
    Replay(ReplayArgs),
    /// Rebuild the outputs of a trace after its tracer was killed.
    Recover(RecoverArgs),
    /// Compare two runs, operator by operator or kernel by kernel.
    Compare(CompareArgs),
    /// Show what grew between two runs, or between two moments of one, by owner, call stack and size.
    #[command(after_help = help_texts::DIFF)]
    Diff(DiffArgs),
    /// Show which rank of a job holds other memory than its peers, at which place, and since when.
    Ranks(RanksArgs),
    /// Replay a run's requests to `PyTorch`'s pool under other settings, or on a smaller device.
    Whatif(WhatIfArgs),
    /// Find settings of `PyTorch`'s pool that serve a run better.
    Advise(AdviseArgs),
    /// Show when memory will be full, from the use of `PyTorch`'s pool so far.
    Forecast(ForecastArgs),
    /// Find blocks held longer than they were used, and mark their rows in a copy of the dump.
    Inefficient(InefficientArgs),
    /// Break memory down by owner over time: weights, gradients, KV cache, …
    Decompose(DecomposeArgs),
    /// Questions of the registry.
    #[command(flatten)]
    Ask(Ask),
    /// Explain the findings: rules with evidence, and advice.
    Explain(OwnerArgs),
    /// Write a page for a browser: memory over time by owner, places, blocks, segments, findings.
    #[command(after_help = help_texts::PAGE)]
    Report(PageArgs),
    /// Find leaks and growth in the files of a run.
    #[command(after_help = help_texts::LEAKS)]
    Leaks(LeaksArgs),
    /// Live screen: how full, by whom, what grows and where.
    #[command(after_help = help_texts::TOP)]
    Top(TopArgs),
    /// Figures of host, device and pool memory, sample by sample.
    Stat(StatArgs),
    /// Show what in a running process still holds device memory: variables, caches, the autograd graph.
    #[command(after_help = help_texts::OF_HOLDERS)]
    Holders(HoldersArgs),
    /// Write call stacks for flame-graph tools.
    #[command(after_help = help_texts::EXPORT)]
    Export(ExportArgs),
    /// Trace all processes of this machine that use Ascend memory, always, within a budget, and publish numbers.
    Agent(AgentArgs),
    /// Ask the evidence of many node agents: which rank leaks, who was out of memory, who holds most.
    #[command(after_help = help_texts::FLEET)]
    Fleet(FleetArgs),
    /// Trace unprivileged Python scripts on request.
    Daemon(DaemonArgs),
    /// Check this machine or a process: what works, what does not, how to fix it.
    Doctor(DoctorArgs),
    /// Trace a simulated training program with a leak.
    Demo(DemoArgs),
    /// Generate shell completions.
    Completions(CompletionsArgs),
    /// Print the JSON Schema of what `--json` prints.
    Schema(SchemaArgs),
    /// Write manual pages, for packages.
    #[command(hide = true)]
    Manual(ManualArgs),
    /// Ask the driver for the figures of the devices, in a process of its own.
    #[command(hide = true)]
    UsageHelper(UsageHelperArgs),
    /// Trace one process for the daemon.
    #[command(hide = true)]
    DaemonTracer(DaemonTracerArgs),
}

/// `daemon`.
#[derive(Clone, Debug, Args)]
pub(in crate::cli) struct DaemonArgs {
    /// Where to listen; a socket that systemd passes comes first.
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Let only members of this group, and root, connect.
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// Processes traced at once.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub max_targets: u32,
    /// Limit per user.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub max_targets_per_user: u32,
    /// Tracers started for one user within a minute.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=6000))]
    pub max_starts_per_minute: u32,
    /// Bytes of the buffer between kernel and tracer, of each traced process.
    #[arg(long, value_name = "SIZE", value_parser = values::bytes, default_value = "16M")]
    pub ring_size: u32,
    /// Print errors only.
    #[arg(short = 'q', long)]
    pub quiet: bool,
}

/// `daemon-tracer`: stdin is the pidfd of the process, stdout the way to the daemon.
#[derive(Debug, Args)]
pub(in crate::cli) struct DaemonTracerArgs {
    /// The process.
    #[arg(long)]
    pub pid: u32,
    /// Its user.
    #[arg(long)]
    pub uid: u32,
    /// Its group.
    #[arg(long)]
    pub gid: u32,
    /// How to trace.
    #[command(flatten)]
    pub trace: TraceArgs,
}

/// `completions`.
#[derive(Debug, Args)]
pub(in crate::cli) struct CompletionsArgs {
    /// The shell.
    pub shell: clap_complete::Shell,
}

/// `schema`.
#[derive(Debug, Args)]
pub(in crate::cli) struct SchemaArgs {
    /// Kind of document: of reports, `explain`, `diff`, `compare`, `ranks`, `stat`, `top`, `holders`, `whatif`, `advise` or `forecast`.
    #[arg(value_parser = crate::document::NAMES)]
    pub name: String,
}

/// `manual`.
#[derive(Debug, Args)]
pub(in crate::cli) struct ManualArgs {
    /// Where to put them.
    pub directory: PathBuf,
}

/// `run`.
#[derive(Debug, Args)]
pub(in crate::cli) struct RunArgs {
    /// How to trace.
    #[command(flatten)]
    pub trace: TraceArgs,
    /// Run the program as this user; under sudo the default is the user who called sudo.
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// Also see programs that have mstx's functions inlined: sets `MSTX_INJECTION_PATH`, so that mstx loads a library of
    /// ours into them. This and --watch change what runs in the program, and no other option does.
    #[arg(hide_short_help = true, long)]
    pub mstx_injection: bool,
    /// Program and arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROG")]
    pub program: Vec<OsString>,
}

/// `attach`.
#[derive(Debug, Args)]
pub(in crate::cli) struct AttachArgs {
    /// The processes.
    #[command(flatten)]
    pub processes: ProcessArgs,
    /// How to trace.
    #[command(flatten)]
    pub trace: TraceArgs,
}

/// Running processes: `1234 1235`, `1234,1235`, or the same behind `-p`.
#[derive(Debug, Args)]
pub(in crate::cli) struct ProcessArgs {
    /// The processes.
    #[arg(value_name = "PID", value_delimiter = ',', value_parser = values::pid)]
    pids: Vec<u32>,
    /// The same.
    #[arg(short = 'p', long, required_unless_present = "pids", value_name = "PID", value_delimiter = ',', value_parser = values::pid)]
    pid: Vec<u32>,
}

impl ProcessArgs {
    /// All of them, in the order of the line.
    pub(in crate::cli) fn all(&self) -> Vec<u32> {
        self.pids.iter().chain(&self.pid).copied().collect()
    }
}

/// Samples of running processes.
#[derive(Debug, Args)]
pub(in crate::cli) struct SamplesArgs {
    /// The processes, with their children.
    #[command(flatten)]
    pub processes: ProcessArgs,
    /// Time from sample to sample, at least 100ms.
    #[arg(long, value_name = "TIME", value_parser = values::sample_interval, default_value = "1s")]
    pub interval: Duration,
    /// Stop after N samples.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// One JSON object for each sample.
    #[arg(long)]
    pub json: bool,
    /// Leave children out.
    #[arg(long)]
    pub no_children: bool,
    /// Print errors only.
    #[arg(short = 'q', long)]
    pub quiet: bool,
    /// What else to probe.
    #[command(flatten)]
    pub probes: ProbeArgs,
    /// Ask this library instead of the driver's DCMI: for tests.
    #[arg(long, value_name = "FILE", hide = true)]
    pub usage_library: Option<PathBuf>,
    /// Use a lesser way of linking than this kernel offers.
    #[arg(long, value_enum, hide = true)]
    pub link: Option<Link>,
}

impl SamplesArgs {
    /// A trace that counts and keeps nothing.
    pub(in crate::cli) fn trace(&self, no_stacks: bool) -> TraceArgs {
        let mut trace = TraceArgs {
            probes: self.probes.clone(),
            no_children: self.no_children,
            usage_interval: self.interval,
            usage_rate: 0,
            usage_library: self.usage_library.clone(),
            link: self.link,
            no_capture: true,
            no_stacks,
            no_progress: true,
            ..TraceArgs::default()
        };
        trace.collect.log_level = self.quiet.then_some(LogLevel::Error);
        trace
    }
}

/// `stat`.
#[derive(Debug, Args)]
pub(in crate::cli) struct StatArgs {
    /// The samples.
    #[command(flatten)]
    pub samples: SamplesArgs,
    /// CSV output, a line for each figure: `time_ns,pid,device,layer,figure,value`.
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
}

/// What people type.
/// `top`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option")]
pub(in crate::cli) struct TopArgs {
    /// The samples.
    #[command(flatten)]
    pub samples: SamplesArgs,
    /// One sample as text (or as --csv or --json), after an interval.
    #[arg(long, conflicts_with = "count")]
    pub once: bool,
    /// CSV output, a line for each pool, owner and place.
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Record no call stacks: places are sizes then. Costs the program less.
    #[arg(long)]
    pub no_stacks: bool,
    /// Do not look at what holds the blocks of places that grow, nor into the pool at the attach: the memory of the processes is not read.
    #[arg(long)]
    pub no_holders: bool,
    /// Leave keys of dicts out of the names of holders: they are data of the program.
    #[arg(long)]
    pub no_keys: bool,
}

impl TopArgs {
    /// A trace that counts, looks and keeps nothing.
    pub(in crate::cli) fn trace(&self) -> TraceArgs {
        let (no_holders, no_keys) = (self.no_holders, self.no_keys);
        TraceArgs { no_holders, no_keys, ..self.samples.trace(self.no_stacks) }
    }
}

/// `doctor`.
#[derive(Debug, Args)]
pub(in crate::cli) struct DoctorArgs {
    /// Look into this process: libraries, probes, sites.
    #[arg(short = 'p', long, value_parser = values::pid)]
    pub pid: Option<u32>,
    /// Look into these files instead, for what would be probed in a program that maps them.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "pid")]
    pub library: Vec<PathBuf>,
    /// Say of these files, too, how much of their unwind information is walked inside of the kernel.
    #[arg(long, requires = "library")]
    pub unwind: bool,
    /// Also look for what the node agent needs, and whether one runs.
    #[arg(long, conflicts_with = "library")]
    pub agent: bool,
    /// One JSON object on stdout.
    #[arg(long)]
    pub json: bool,
    /// What else to probe.
    #[command(flatten)]
    pub probes: ProbeArgs,
    /// Ask this library instead of the driver's DCMI: for tests.
    #[arg(long, value_name = "FILE", hide = true)]
    pub usage_library: Option<PathBuf>,
    /// Say what a lesser way of linking than this kernel offers takes.
    #[arg(long, value_enum, hide = true)]
    pub link: Option<Link>,
}

/// `usage-helper`.
#[derive(Debug, Args)]
pub(in crate::cli) struct UsageHelperArgs {
    /// The library.
    #[arg(long)]
    pub library: Option<PathBuf>,
}

/// `demo`.
#[derive(Debug, Args)]
pub(in crate::cli) struct DemoArgs {
    /// Folder with the simulated libraries and programs; found by itself in a source tree.
    #[arg(long, env = "MEMSCOPE_SIM_DIR")]
    pub sim: Option<PathBuf>,
    /// What is collected.
    #[command(flatten)]
    pub collect: CollectArgs,
}
