//! The command line. Spelling and defaults of the collection options are msMemScope's (contract §1).

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, Parser, Subcommand, ValueEnum};

use super::{
    ask::Ask,
    report,
    select::{FilterArgs, SelectArgs},
    values::{self, Analyses, Events, Ops, Steps},
};
use crate::{
    daemon::listen::DEFAULT_SOCKET,
    follow::spawn::SpawnError,
    kernel::features::LinkMode,
    os::caller::{Caller, CallerError},
    overview::Gate,
    probes::{ProbeSpec, user},
    session::{
        self, CallStacks, CollectOptions, Devices, KernelLimits, OutputOptions, RowLevel, TraceError, TraceOptions,
        Traced, UsageOptions,
    },
    sinks::{self, StackCells, log},
    watch::spec::WatchSpec,
};

/// msMemScope's default.
pub(super) const DEFAULT_OUTPUT: &str = "memscopeDumpResults";

/// Traces Ascend NPU memory from outside a program: nothing is preloaded, nothing is changed.
#[derive(Debug, Parser)]
#[command(name = "memscope-bpf", version, args_conflicts_with_subcommands = true, disable_version_flag = true)]
#[command(help_template = super::help::top_level())]
#[command(infer_long_args = true, args_override_self = true)]
#[command(after_help = "Exit status of `run`: the program's (128+N if signal N killed it); 125 tracing failed,
126 the program cannot be executed, 127 it was not found.
Otherwise 0 success, 1 failure, 2 bad usage; 3 if --fail-on found it.")]
pub(super) struct Cli {
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
    /// What is collected, if the command collects.
    pub(super) fn collect(&self) -> Option<&CollectArgs> {
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
pub(super) enum Command {
    /// Start a program and trace it from its first instruction, with all children.
    Run(RunArgs),
    /// Attach to running processes.
    Attach(AttachArgs),
    /// Write the outputs of a capture again.
    Replay(ReplayArgs),
    /// Rebuild the outputs of a trace whose tracer was killed.
    Recover(RecoverArgs),
    /// Compare two runs, operator by operator or kernel by kernel.
    Compare(CompareArgs),
    /// Show what grew between two runs, or between two moments of one, by owner, call stack and size.
    Diff(DiffArgs),
    /// Find blocks held longer than they were used, and mark their rows in a copy of the dump.
    Inefficient(InefficientArgs),
    /// Break memory down by owner over time: weights, gradients, KV cache, …
    Decompose(DecomposeArgs),
    /// Questions of the registry.
    #[command(flatten)]
    Ask(Ask),
    /// Write a page for a browser: memory over time by owner, places, blocks, segments, findings.
    Report(PageArgs),
    /// Find leaks and growth in the files of a run.
    Leaks(LeaksArgs),
    /// Live view of host, device and pool memory.
    #[command(visible_alias = "top")]
    Stat(StatArgs),
    /// Write call stacks for flame-graph tools.
    Export(ExportArgs),
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
pub(super) struct DaemonArgs {
    /// Where to listen; a socket that systemd passes comes first.
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Let members of this group connect, and root, and nobody else.
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
pub(super) struct DaemonTracerArgs {
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
pub(super) struct CompletionsArgs {
    /// The shell.
    pub shell: clap_complete::Shell,
}

/// `schema`.
#[derive(Debug, Args)]
pub(super) struct SchemaArgs {
    /// Kind of document: of reports, `diff`, `compare` or `stat`.
    #[arg(value_parser = crate::document::NAMES)]
    pub name: String,
}

/// `manual`.
#[derive(Debug, Args)]
pub(super) struct ManualArgs {
    /// Where to put them.
    pub directory: PathBuf,
}

/// `run`.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// How to trace.
    #[command(flatten)]
    pub trace: TraceArgs,
    /// Run the program as this user; under sudo the default is the user who called sudo.
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// Also see programs that have mstx's functions inlined: sets `MSTX_INJECTION_PATH`, so that mstx loads a library of
    /// ours into them. The only option that changes what runs in the program.
    #[arg(hide_short_help = true, long)]
    pub mstx_injection: bool,
    /// Program and arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROG")]
    pub program: Vec<OsString>,
}

/// `attach`.
#[derive(Debug, Args)]
pub(super) struct AttachArgs {
    /// The processes.
    #[command(flatten)]
    pub processes: ProcessArgs,
    /// How to trace.
    #[command(flatten)]
    pub trace: TraceArgs,
}

/// Running processes: `1234 1235`, `1234,1235`, or the same behind `-p`.
#[derive(Debug, Args)]
pub(super) struct ProcessArgs {
    /// The processes.
    #[arg(value_name = "PID", value_delimiter = ',', value_parser = values::pid)]
    pids: Vec<u32>,
    /// The same.
    #[arg(short = 'p', long, required_unless_present = "pids", value_name = "PID", value_delimiter = ',', value_parser = values::pid)]
    pid: Vec<u32>,
}

impl ProcessArgs {
    /// All of them, in the order of the line.
    pub(super) fn all(&self) -> Vec<u32> {
        self.pids.iter().chain(&self.pid).copied().collect()
    }
}

/// `stat`.
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
#[derive(Debug, Args)]
pub(super) struct StatArgs {
    /// The processes, with their children.
    #[command(flatten)]
    pub processes: ProcessArgs,
    /// Time from sample to sample, at least 100ms.
    #[arg(long, value_name = "TIME", value_parser = values::sample_interval, default_value = "1s")]
    pub interval: Duration,
    /// Stop after N samples.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// CSV output, a line for each figure: `time_ns,pid,device,layer,figure,value`.
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
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
    /// Say what a lesser way of linking than this kernel offers takes.
    #[arg(long, value_enum, hide = true)]
    pub link: Option<Link>,
}

/// `replay`.
#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// The capture.
    pub capture: PathBuf,
    /// What to write.
    #[command(flatten)]
    pub collect: CollectArgs,
}

/// `recover`.
#[derive(Debug, Args)]
pub(super) struct RecoverArgs {
    /// Output directory of the killed tracer.
    pub directory: PathBuf,
    /// What to write.
    #[command(flatten)]
    pub collect: CollectArgs,
}

/// `compare`.
#[derive(Debug, Args)]
pub(super) struct CompareArgs {
    /// The run to compare with: a dump, a folder of dumps, or a capture.
    #[arg(value_name = "A")]
    pub base: PathBuf,
    /// The other run.
    #[arg(value_name = "B")]
    pub other: PathBuf,
    /// What is compared: op, kernel.
    #[arg(long, value_name = "LIST", default_value = "op")]
    pub level: RowLevel,
    /// Only step N of either run: a marked one, or, where none is marked, one inferred from the optimizer (from 2 on).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub step: Option<u32>,
    /// Where to write.
    #[arg(short = 'o', long, alias = "output", value_name = "DIR", default_value = DEFAULT_OUTPUT)]
    pub output_path: PathBuf,
    /// The summary as JSON on stdout.
    #[arg(long)]
    pub json: bool,
    /// Which part of the run.
    #[command(flatten)]
    pub select: SelectArgs,
}

/// `diff`.
#[derive(Debug, Args)]
pub(super) struct DiffArgs {
    /// The run to compare with: a dump (CSV or db, ours or msMemScope's), a folder of dumps, or a capture.
    #[arg(value_name = "A")]
    pub base: PathBuf,
    /// The other run; without it both moments are of A.
    #[arg(value_name = "B")]
    pub other: Option<PathBuf>,
    /// Moment of A: end, peak, a time after its first event such as 30s or 500ms, or a time with its zone such as
    /// 2026-11-21T10:00:00Z.
    #[arg(long, value_name = "TIME", default_value_t)]
    pub from: values::When,
    /// Moment of B, or the second one of A: the same.
    #[arg(long, value_name = "TIME", default_value_t)]
    pub to: values::When,
    /// More rules that name owners, which come before the built-in ones.
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// The differences as JSON on stdout instead of the report.
    #[arg(long)]
    pub json: bool,
    /// Which blocks.
    #[command(flatten)]
    pub blocks: FilterArgs,
}

/// `inefficient`.
#[derive(Debug, Args)]
pub(super) struct InefficientArgs {
    /// A dump or a capture.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Leave smaller blocks out.
    #[arg(long, value_name = "SIZE", value_parser = values::size, default_value = "0")]
    pub mem_size: u64,
    /// What to look for: `early_allocation`, `late_deallocation`, `temporary_idleness` [default: all].
    #[arg(long = "type", value_name = "LIST")]
    pub kinds: Option<values::InefficientKinds>,
    /// Operators between two uses, beyond which a block is idle.
    #[arg(long, value_name = "N", default_value_t = crate::analyses::inefficient::DEFAULT_IDLE_THRESHOLD)]
    pub idle_threshold: u64,
    /// Mark the rows of the dump itself.
    #[arg(long, conflicts_with = "output_path")]
    pub in_place: bool,
    /// Where to write the marked copy [default: inefficient/ beside the dump].
    #[arg(short = 'o', long, value_name = "FILE")]
    pub output_path: Option<PathBuf>,
    /// Overwrite the copy of an earlier run.
    #[arg(long)]
    pub force: bool,
    /// Findings as JSON on stdout instead of the report.
    #[arg(long)]
    pub json: bool,
    /// Which part of the run.
    #[command(flatten)]
    pub select: SelectArgs,
}

/// `decompose`.
#[derive(Debug, Args)]
pub(super) struct DecomposeArgs {
    /// Dumps of one run, folders with such, or one capture [default: the newest in memscopeDumpResults].
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// More rules, which come before the built-in ones.
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// Print the built-in rules, as a file for --rules has them.
    #[arg(long, exclusive = true)]
    pub print_rules: bool,
    /// Write a copy of the one dump, whose rows have the final owners.
    #[arg(short = 'o', long, value_name = "FILE")]
    pub output_path: Option<PathBuf>,
    /// Overwrite the copy of an earlier run.
    #[arg(long, requires = "output_path")]
    pub force: bool,
    /// Findings as JSON on stdout instead of the report.
    #[arg(long)]
    pub json: bool,
    /// Which part of the run.
    #[command(flatten)]
    pub select: SelectArgs,
    /// A page beside it.
    #[command(flatten)]
    pub html: HtmlArgs,
}

/// A question about files whose answer names owners.
#[derive(Debug, Args)]
pub(super) struct OwnerArgs {
    /// Dumps of one run, folders with such, or one capture [default: the newest in memscopeDumpResults].
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// More rules that name owners, which come before the built-in ones.
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// Findings as JSON on stdout instead of the report.
    #[arg(long)]
    pub json: bool,
    /// Which part of the run.
    #[command(flatten)]
    pub select: SelectArgs,
    /// A page beside it.
    #[command(flatten)]
    pub html: HtmlArgs,
}

/// A question about files.
#[derive(Debug, Args)]
pub(super) struct FileArgs {
    /// Dumps of one run, folders with such, or one capture [default: the newest in memscopeDumpResults].
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Findings as JSON on stdout instead of the report.
    #[arg(long)]
    pub json: bool,
    /// Which part of the run.
    #[command(flatten)]
    pub select: SelectArgs,
    /// A page beside it.
    #[command(flatten)]
    pub html: HtmlArgs,
}

/// `report`.
#[derive(Debug, Args)]
pub(super) struct PageArgs {
    /// A capture, the output folder of a trace, or dumps of one run [default: the newest capture in memscopeDumpResults].
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Where to write [default: report.html beside FILE].
    #[arg(short = 'o', long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Open the page in the browser.
    #[arg(long)]
    pub open: bool,
    /// Title of the page.
    #[arg(long, value_name = "TEXT")]
    pub title: Option<String>,
    /// More rules that name owners, which come before the built-in ones.
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// Which part of the run.
    #[command(flatten)]
    pub select: SelectArgs,
}

/// A page beside what a command does.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct HtmlArgs {
    /// Also write the page that `report` writes; without FILE beside what it is of.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub html: Option<PathBuf>,
    /// Open that page in the browser.
    #[arg(long, requires = "html")]
    pub open: bool,
}

/// `leaks`.
#[derive(Debug, Args)]
pub(super) struct LeaksArgs {
    /// Dumps of one run, folders with such, or one capture [default: the newest in memscopeDumpResults].
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Judge by marks with this text, not by steps: what is allocated between two of them and not freed until the third.
    #[arg(long, value_name = "TEXT")]
    pub mark: Option<String>,
    /// Number of the first of the three marks, from 0.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "mark")]
    pub start_index: u64,
    /// How much of the report to print.
    #[arg(long, value_enum, default_value_t, env = REPORT_VARIABLE, hide_env_values = true)]
    pub report: ReportKind,
    /// Exit with status 3 if this is found: leak, growth, oom, or 'peak>60G'.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::gate)]
    pub fail_on: Vec<Gate>,
    /// List each block that outlived its step in msMemScope's lines, besides the places. Implies `--report=details`.
    #[arg(long)]
    pub leak_blocks: bool,
    /// Findings as JSON on stdout instead of the report.
    #[arg(long)]
    pub json: bool,
    /// Which part of the run.
    #[command(flatten)]
    pub select: SelectArgs,
    /// A page beside it.
    #[command(flatten)]
    pub html: HtmlArgs,
}

/// `export`.
#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    /// A capture, the output folder of a trace, or dumps of one run [default: the newest capture in memscopeDumpResults].
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// For which viewer.
    #[arg(short = 'f', long, value_enum, default_value_t)]
    pub format: ExportFormat,
    /// Which moment live blocks are of [default: of pprof the peak; of a snapshot the failed request if there is one, else the end].
    #[arg(long, value_enum)]
    pub at: Option<ExportAt>,
    /// What the weight counts.
    #[arg(long, value_enum, default_value_t)]
    pub weight: WeightBy,
    /// Blocks that are live at the end, or all that were allocated.
    #[arg(long, value_enum, default_value_t)]
    pub what: What,
    /// Which stacks: those of Python where there are any and of C elsewhere, or one kind alone.
    #[arg(long, value_enum, default_value_t)]
    pub stack: ExportStack,
    /// Where to write [default: stdout].
    #[arg(short = 'o', long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Which part of the run.
    #[command(flatten)]
    pub select: SelectArgs,
}

/// Format of `export`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum ExportFormat {
    /// `root;caller;function weight`, for flamegraph.pl and inferno.
    #[default]
    Folded,
    /// A profile for each moment, for speedscope.
    Speedscope,
    /// Live blocks at a moment and all allocations, for `go tool pprof`; compressed.
    Pprof,
    /// A memory snapshot of `PyTorch`'s pool, as torch itself makes them: a pickle for `memory_viz`.
    Snapshot,
}

/// A moment of `export`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ExportAt {
    /// When the most was live.
    Peak,
    /// When a request failed for want of memory, for the last time.
    Oom,
    /// When the last step ended; without steps, when the last block was allocated.
    End,
}

/// What a weight counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum WeightBy {
    /// Bytes.
    #[default]
    Bytes,
    /// Blocks.
    Count,
}

/// Which blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum What {
    /// Live at the end.
    #[default]
    Live,
    /// All that were allocated.
    Allocated,
}

/// Which stacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum ExportStack {
    /// Python where it has frames, else C.
    #[default]
    Auto,
    /// C.
    C,
    /// Python.
    Python,
    /// Both in one, Python frames where the interpreter runs them; C where that cannot be told.
    Mixed,
}

/// `doctor`.
#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Look into this process: libraries, probes, sites.
    #[arg(short = 'p', long, value_parser = values::pid)]
    pub pid: Option<u32>,
    /// Look into these files instead, for what would be probed in a program that maps them.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "pid")]
    pub library: Vec<PathBuf>,
    /// Say of these files, too, how much of their unwind information is walked inside of the kernel.
    #[arg(long, requires = "library")]
    pub unwind: bool,
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
pub(super) struct UsageHelperArgs {
    /// The library.
    #[arg(long)]
    pub library: Option<PathBuf>,
}

/// `demo`.
#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    /// Folder with the simulated libraries and programs; found by itself in a source tree.
    #[arg(long, env = "MEMSCOPE_SIM_DIR")]
    pub sim: Option<PathBuf>,
    /// What is collected.
    #[command(flatten)]
    pub collect: CollectArgs,
}

/// File format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// Text.
    #[default]
    Csv,
    /// SQLite, for `MindStudio` Insight.
    Db,
}

/// How rows have their call stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Stacks {
    /// In full.
    Inline,
    /// By their number.
    Table,
}

/// The default of `--no-stacks`.
const NO_STACKS_VARIABLE: &str = "MEMSCOPE_NO_STACKS";
/// The default of `--report`.
const REPORT_VARIABLE: &str = "MEMSCOPE_REPORT";

/// How much of a report is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum ReportKind {
    /// The first screen: verdict, places, memory, checks.
    #[default]
    Summary,
    /// The first screen, then all details.
    Full,
    /// The details alone.
    Details,
}

/// When collection begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum CollectMode {
    /// At once.
    #[default]
    Immediate,
    /// When the script says so.
    Deferred,
}

/// Message level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum LogLevel {
    /// Everything.
    Debug,
    /// The default.
    Info,
    /// Warnings and errors.
    #[value(alias = "warn")]
    Warning,
    /// Errors.
    Error,
}

impl From<LogLevel> for log::Level {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Debug => Self::Debug,
            LogLevel::Info => Self::Info,
            LogLevel::Warning => Self::Warn,
            LogLevel::Error => Self::Error,
        }
    }
}

impl From<log::Level> for LogLevel {
    fn from(level: log::Level) -> Self {
        match level {
            log::Level::Debug => Self::Debug,
            log::Level::Info => Self::Info,
            log::Level::Warn => Self::Warning,
            log::Level::Error => Self::Error,
        }
    }
}

/// What is collected and written.
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
#[derive(Clone, Debug, Args)]
pub(super) struct CollectArgs {
    /// Rows to write: alloc, free, launch, access, none; `block_free` adds when a pool has a block back for good.
    #[arg(long, value_name = "LIST", default_value = "alloc,free,launch")]
    pub events: Events,
    /// Detail: op, kernel.
    #[arg(hide_short_help = true, long, value_name = "LIST", default_value = "op")]
    pub level: RowLevel,
    /// Devices: npu, npu:<0..31>, cpu.
    #[arg(hide_short_help = true, long, value_name = "LIST", default_value = "npu")]
    pub device: Devices,
    /// Only rows inside these steps, at most five.
    #[arg(hide_short_help = true, long, value_name = "LIST")]
    pub steps: Option<Steps>,
    /// Analyses.
    #[arg(long, value_name = "LIST", default_value = "leaks", help = format!("Analyses: {}", values::words_of_analyses()))]
    pub analysis: Analyses,
    /// More rules that name owners (analyses decompose, peaks and fragmentation), which come before the built-in ones.
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    pub decompose_rules: Option<PathBuf>,
    /// Of which part of the run the report is; rows are of all of it.
    #[command(flatten)]
    pub select: SelectArgs,
    /// File format.
    #[arg(short = 'f', long, alias = "data-format", value_enum, default_value_t)]
    pub format: Format,
    /// How rows have their call stacks: inline, in full as msMemScope has them; table, by their number in a table beside the rows,
    /// which has each stack once (a small part of the size) [default: inline with --call-stack, otherwise not at all].
    #[arg(hide_short_help = true, long, value_enum)]
    pub stacks: Option<Stacks>,
    /// Where to write [default: memscopeDumpResults; of recover: DIR/recovered].
    #[arg(short = 'o', long, alias = "output", value_name = "DIR")]
    pub output_path: Option<PathBuf>,
    /// How much of the report to print.
    #[arg(long, value_enum, default_value_t, env = REPORT_VARIABLE, hide_env_values = true)]
    pub report: ReportKind,
    /// Exit with status 3 if this is found: leak, growth, oom, or 'peak>60G'.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::gate)]
    pub fail_on: Vec<Gate>,
    /// List each block that outlived its step in msMemScope's lines, besides the places. Implies `--report=details`.
    #[arg(long)]
    pub leak_blocks: bool,
    /// Findings as JSON on stdout instead of the report.
    #[arg(long)]
    pub json: bool,
    /// Message level: debug, info, warning, error.
    #[arg(hide_short_help = true, long, value_enum)]
    pub log_level: Option<LogLevel>,
    /// More messages, `--report=full`, and --leak-blocks.
    #[arg(short = 'v', long, visible_alias = "debug")]
    pub verbose: bool,
    /// Errors only.
    #[arg(short = 'q', long)]
    pub quiet: bool,
    /// A page beside it.
    #[command(flatten)]
    pub html: HtmlArgs,
}

impl CollectArgs {
    /// Where to write.
    #[must_use]
    pub(super) fn output_path(&self) -> &Path {
        self.output_path.as_deref().unwrap_or(Path::new(DEFAULT_OUTPUT))
    }

    /// Explicit level, else verbose, else quiet, else info (contract §1.2).
    #[must_use]
    pub(super) fn level_of_messages(&self) -> LogLevel {
        match (self.log_level, self.verbose, self.quiet) {
            (Some(level), _, _) => level,
            (None, true, _) => LogLevel::Debug,
            (None, false, true) => LogLevel::Error,
            (None, false, false) => LogLevel::Info,
        }
    }

    /// How much of the report is printed.
    #[must_use]
    pub(super) const fn report(&self) -> ReportKind {
        match self.report {
            ReportKind::Summary if self.verbose => ReportKind::Full,
            ReportKind::Summary if self.leak_blocks => ReportKind::Details,
            report => report,
        }
    }

    /// What the library is to collect.
    pub(super) fn options(&self) -> CollectOptions {
        CollectOptions {
            events: self.events.rows,
            level: self.level,
            devices: self.device,
            steps: self.steps.clone().unwrap_or_default().0,
            analyses: self.analysis.chosen,
            rules: self.decompose_rules.clone(),
            window: self.select.window().window,
            filter: self.select.blocks.conditions.clone(),
        }
    }

    /// Where the library is to write, for the user behind sudo.
    pub(super) fn output(&self) -> Result<OutputOptions, CallerError> {
        Ok(OutputOptions {
            directory: self.output_path().to_owned(),
            owner: Caller::owner()?,
            format: match self.format {
                Format::Csv => sinks::Format::Csv,
                Format::Db => sinks::Format::Db,
            },
            stacks: match self.stacks {
                Some(Stacks::Table) => StackCells::Table,
                Some(Stacks::Inline) | None => StackCells::Inline,
            },
            log_level: self.level_of_messages().into(),
            ..OutputOptions::default()
        })
    }
}

/// Transport of records out of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Transport {
    /// Ring buffer where the kernel has it.
    #[default]
    Auto,
    /// Perf event array.
    Perf,
}

/// How probes are linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Link {
    /// One link for many probes.
    Multi,
    /// One link per probe.
    Cookie,
    /// One program per probe.
    Slots,
}

impl From<Link> for LinkMode {
    fn from(link: Link) -> Self {
        match link {
            Link::Multi => Self::Multi,
            Link::Cookie => Self::Cookie,
            Link::Slots => Self::Slots,
        }
    }
}

/// What to do when a traced process maps a library that is not probed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum LateLibraries {
    /// Have the thread that loads it wait in the kernel, unseen by others, so that not one call is missed (Linux 6.0).
    Hold,
    /// Stop the process for a moment by SIGSTOP, so that not one call is missed; it and its parent may see that.
    Stop,
    /// Attach as soon as possible; the first calls may be missed.
    Notify,
}

impl From<LateLibraries> for session::LateLibraries {
    fn from(how: LateLibraries) -> Self {
        match how {
            LateLibraries::Hold => Self::Hold,
            LateLibraries::Stop => Self::Stop,
            LateLibraries::Notify => Self::Notify,
        }
    }
}

/// Functions that the user wants to be probed.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct ProbeArgs {
    /// Also probe this function, e.g. `libmypool.so:my_alloc=alloc(size=0,ret=ptr)`; the readme has the kinds.
    #[arg(long = "probe", value_name = "SPEC", value_parser = user::parse)]
    pub probe: Vec<&'static ProbeSpec>,
    /// The same from a JSON file.
    #[arg(long, value_name = "FILE")]
    pub probes: Option<PathBuf>,
}

impl ProbeArgs {
    /// All of them, or what is wrong with one.
    pub(super) fn specs(&self) -> Result<Vec<&'static ProbeSpec>, String> {
        let mut specs = self.probe.clone();
        if let Some(path) = &self.probes {
            specs.extend(user::read_file(path)?);
        }
        user::check_together(&specs)?;
        Ok(specs)
    }
}

/// Live tracing.
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
#[derive(Clone, Debug, Args)]
pub(super) struct TraceArgs {
    /// What is collected.
    #[command(flatten)]
    pub collect: CollectArgs,
    /// Operators to trace: all, npu (those that `torch_npu` gives to the device), names such as add or add.Tensor, none
    /// [default: all if --events has access, otherwise none].
    #[arg(long, value_name = "LIST")]
    pub ops: Option<Ops>,
    /// What else to probe.
    #[command(flatten)]
    pub probes: ProbeArgs,
    /// Record these call stacks, in rows too: python, c, or mixed (both, merged), each with an optional depth, as in `python:20`
    /// [default: frames of Python where the thread has some, else of C, for the report; default depth: 50].
    #[arg(long, value_name = "LIST")]
    pub call_stack: Option<CallStacks>,
    /// Record no call stacks: an event costs the program about 2 µs less, and places have no lines.
    #[arg(long, env = NO_STACKS_VARIABLE, hide_env = true)]
    pub no_stacks: bool,
    /// Show inlined functions and source lines in C stacks (reads debug information).
    #[arg(hide_short_help = true, long)]
    pub inlined: bool,
    /// immediate, or deferred until the script starts it.
    #[arg(hide_short_help = true, long, value_enum, default_value_t)]
    pub collect_mode: CollectMode,
    /// Watch the outputs of an operator, or what a script names, until another one ends: [START[:OUTPUT]],END[,full-content].
    /// Changes the program's timing and puts a signal handler into it.
    #[arg(long, value_name = "SPEC")]
    pub watch: Option<WatchSpec>,
    /// Stop tracing after this time: 30s, 5m, 500ms.
    #[arg(short = 'd', long, value_name = "TIME", value_parser = values::duration)]
    pub duration: Option<Duration>,
    /// Stop tracing when the rows and the capture have this size, looked at once a second: 500M, 20G. The program goes on.
    #[arg(long, value_name = "SIZE", value_parser = values::size_limit)]
    pub max_size: Option<u64>,
    /// Do not end at --max-size: keep the newest rows, in N parts that are a file with a header each; the oldest is removed when the newest
    /// is full. Needs --no-capture, as a capture is in one piece.
    #[arg(hide_short_help = true, long, value_name = "N", requires_all = ["max_size", "no_capture"], value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub rotate: Option<u32>,
    /// Do not trace children.
    #[arg(long)]
    pub no_children: bool,
    /// Libraries mapped later: hold the thread that loads them while attaching (default; Linux 6.0), notify (default on older
    /// kernels), or stop the process by SIGSTOP, which it may see.
    #[arg(hide_short_help = true, long, value_enum, value_name = "HOW")]
    pub late_libraries: Option<LateLibraries>,
    /// Bytes of the buffer between kernel and tracer.
    #[arg(hide_short_help = true, long, value_name = "SIZE", value_parser = values::bytes, default_value = "64M")]
    pub ring_size: u32,
    /// auto or perf.
    #[arg(hide_short_help = true, long, value_enum, default_value_t)]
    pub transport: Transport,
    /// Interval for reading device usage from the driver (DCMI); 0s turns it off.
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = values::interval, default_value = "1s")]
    pub usage_interval: Duration,
    /// Extra readings after allocations and frees, at most N per second; 0 turns them off.
    #[arg(hide_short_help = true, long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1000), default_value_t = 10)]
    pub usage_rate: u32,
    /// Take them by this library instead of the driver's: for tests.
    #[arg(long, value_name = "FILE", hide = true)]
    pub usage_library: Option<PathBuf>,
    /// Use a lesser way of linking than this kernel offers.
    #[arg(long, value_enum, hide = true)]
    pub link: Option<Link>,
    /// Serve fewer probe rows than this kernel could.
    #[arg(long, value_name = "ROWS", hide = true)]
    pub max_rows: Option<u16>,
    /// Learn of processes through tracefs even where that is not needed.
    #[arg(long, hide = true)]
    pub tracefs: bool,
    /// Leave processes out that are another user's.
    #[arg(long, value_name = "UID", hide = true)]
    pub only_user: Option<u32>,
    /// Have this thread of the tracer fail: for tests.
    #[arg(long, value_name = "THREAD", hide = true)]
    pub fail_thread: Option<String>,
    /// Write no capture (no replay, no recovery, no page).
    #[arg(long, conflicts_with = "html")]
    pub no_capture: bool,
    /// Write the capture and nothing else, at the least cost: no rows and no report until `replay` makes them of it.
    #[arg(long, conflicts_with_all = ["no_capture", "analysis", "format", "steps"])]
    pub capture_only: bool,
    /// No status line.
    #[arg(hide_short_help = true, long)]
    pub no_progress: bool,
}

impl TraceArgs {
    /// What is to be made of the records while they come.
    pub(super) fn made_meanwhile(&self) -> CollectArgs {
        let mut collect = self.collect.clone();
        if self.capture_only {
            collect.analysis.chosen = session::Analyses::NONE;
        }
        collect
    }

    /// Which stacks are taken.
    fn call_stacks(&self) -> CallStacks {
        let unasked = if self.no_stacks { CallStacks::default() } else { CallStacks::AUTOMATIC };
        self.call_stack.unwrap_or(unasked)
    }

    /// What the library is to do with these processes, and to write.
    pub(super) fn writing(&self, traced: Traced) -> Result<TraceOptions, TraceError> {
        let options = self.options(traced)?;
        let output = OutputOptions {
            rows: !self.capture_only,
            capture: !self.no_capture,
            max_bytes: self.max_size,
            parts: self.rotate,
            ..self.collect.output().map_err(SpawnError::from)?
        };
        let unasked = options.call_stacks.automatic && self.collect.stacks.is_none();
        let output = if unasked { OutputOptions { stacks: StackCells::Absent, ..output } } else { output };
        Ok(TraceOptions { output: Some(output), ..options })
    }

    /// What the library is to do with these processes.
    pub(super) fn options(&self, traced: Traced) -> Result<TraceOptions, TraceError> {
        report::refuse_borrowed_rights(self.usage_library.as_deref()).map_err(TraceError::Options)?;
        let probes = self.probes.specs().map_err(TraceError::Options)?;
        Ok(TraceOptions {
            traced,
            children: !self.no_children,
            collect: self.collect.options(),
            output: None,
            call_stacks: self.call_stacks(),
            inlined: self.inlined,
            operators: self.ops.clone().map(|ops| ops.0),
            probes,
            deferred: self.collect_mode == CollectMode::Deferred,
            watch: self.watch.clone(),
            duration: self.duration,
            samples: None,
            late_libraries: self.late_libraries.map(Into::into),
            ring_bytes: self.ring_size,
            usage: UsageOptions {
                interval: self.usage_interval,
                per_second: self.usage_rate,
                library: self.usage_library.clone(),
            },
            only_user: self.only_user,
            command_line: std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect(),
            kernel: KernelLimits {
                link_mode: self.link.map(Into::into),
                perf: self.transport == Transport::Perf,
                max_rows: self.max_rows,
                tracefs: self.tracefs,
                object: None,
            },
            fail_thread: self.fail_thread.clone(),
        })
    }
}

impl Default for TraceArgs {
    /// As without any option.
    fn default() -> Self {
        #[derive(Parser)]
        struct Nothing {
            #[command(flatten)]
            trace: TraceArgs,
        }
        Nothing::parse_from([""]).trace
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse(line: &str) -> Cli {
        Cli::try_parse_from(line.split(' ')).expect("valid")
    }

    #[test]
    fn definition_is_consistent() {
        Cli::command().debug_assert();
    }

    /// What has no options of its own begins with those of a trace.
    #[test]
    fn defaults_of_a_trace() {
        let trace = TraceArgs::default();
        assert_eq!((trace.ring_size, trace.usage_rate, trace.no_capture), (64 << 20, 10, false));
        assert!(trace.collect.analysis.chosen.leaks);
    }

    #[test]
    fn options_behind_the_program_are_ours_unless_dashes_stand_between() {
        let cli = parse("memscope-bpf python x.py --steps=1");
        assert_eq!((cli.program.len(), cli.trace.collect.steps), (2, Some(Steps(vec![1]))));
        let cli = parse("memscope-bpf --format db -- python x.py --steps=1");
        assert_eq!((cli.program.len(), cli.trace.collect.format), (3, Format::Db));
    }

    #[test]
    fn run_leaves_the_programs_options_alone() {
        let Some(Command::Run(run)) = parse("memscope-bpf run --quiet python x.py --steps=1").command else {
            panic!("not run")
        };
        assert_eq!(run.program.len(), 3);
        assert!(run.trace.collect.quiet);
    }

    #[test]
    fn explicit_level_wins_in_any_order() {
        assert_eq!(parse("memscope-bpf -v --log-level error x").trace.collect.level_of_messages(), LogLevel::Error);
        assert_eq!(parse("memscope-bpf -q -v x").trace.collect.level_of_messages(), LogLevel::Debug);
        assert_eq!(parse("memscope-bpf x").trace.collect.level_of_messages(), LogLevel::Info);
    }
}
