//! Commands on files.

use std::path::PathBuf;

use clap::{
    Args, ValueEnum,
    builder::{OsStringValueParser, TypedValueParser as _},
};

use super::{CollectArgs, DEFAULT_OUTPUT, ReportKind, collect::REPORT_VARIABLE, help_texts::OUTPUT};
use crate::{
    cli::{
        select::{FilterArgs, SelectArgs},
        values,
    },
    overview::Gate,
    session::RowLevel,
};

/// `replay`.
#[derive(Debug, Args)]
pub(in crate::cli) struct ReplayArgs {
    /// The capture, or the output folder of its trace [default: the newest run].
    #[arg(value_name = "FILE")]
    pub capture: Option<PathBuf>,
    /// What to write.
    #[command(flatten)]
    pub collect: CollectArgs,
}

/// `recover`.
#[derive(Debug, Args)]
pub(in crate::cli) struct RecoverArgs {
    /// Output folder of the killed tracer, or its capture [default: the newest run].
    #[arg(value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// What to write.
    #[command(flatten)]
    pub collect: CollectArgs,
}

/// `compare`.
#[derive(Debug, Args)]
pub(in crate::cli) struct CompareArgs {
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

/// `ranks`.
#[derive(Debug, Args)]
pub(in crate::cli) struct RanksArgs {
    /// Captures, folders of dumps, or dumps: several are one rank each, in their order; of one each process with memory of a device is a rank
    /// [default: the newest run].
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Also of several inputs each process is a rank: a capture of each host.
    #[arg(long)]
    pub each_process: bool,
    /// One JSON object on stdout.
    #[arg(long)]
    pub json: bool,
}

/// `diff`.
#[derive(Debug, Args)]
pub(in crate::cli) struct DiffArgs {
    /// The run to compare with: a capture, the output folder of a trace, or a dump (CSV or db, ours or msMemScope's)
    /// [default: the newest run, of which both moments are].
    #[arg(value_name = "A")]
    pub base: Option<PathBuf>,
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
pub(in crate::cli) struct InefficientArgs {
    /// A dump, a capture, or the output folder of a trace [default: the newest run].
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
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
pub(in crate::cli) struct DecomposeArgs {
    /// Dumps of one run, folders with such, or one capture [default: the newest run].
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// More rules, which come before the built-in ones.
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// Print the built-in rules, as a file for --rules has them.
    #[arg(long, exclusive = true)]
    pub print_rules: bool,
    /// Write a copy of the one dump, with the final owners in its rows.
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

/// A question about files with owners in its answer.
#[derive(Debug, Args)]
pub(in crate::cli) struct OwnerArgs {
    /// Dumps of one run, folders with such, or one capture [default: the newest run].
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
pub(in crate::cli) struct FileArgs {
    /// Dumps of one run, folders with such, or one capture [default: the newest run].
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
pub(in crate::cli) struct PageArgs {
    /// A capture, the output folder of a trace, or dumps of one run [default: the newest run].
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
    /// Try other settings of the pool however many requests there are (up to 200 000 of a process they are tried anyway).
    #[arg(long)]
    pub what_if: bool,
    /// More rules that name owners, which come before the built-in ones.
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// Which part of the run.
    #[command(flatten)]
    pub select: SelectArgs,
}

/// A page beside what a command does.
#[derive(Clone, Debug, Default, Args)]
pub(in crate::cli) struct HtmlArgs {
    /// Also write the page that `report` writes; without FILE beside what it is of.
    #[arg(help_heading = OUTPUT, long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "",
          value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub html: Option<PathBuf>,
    /// Open that page in the browser.
    #[arg(help_heading = OUTPUT, long, requires = "html")]
    pub open: bool,
}

/// `leaks`.
#[derive(Debug, Args)]
pub(in crate::cli) struct LeaksArgs {
    /// Dumps of one run, folders with such, or one capture [default: the newest run].
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
pub(in crate::cli) struct ExportArgs {
    /// A capture, the output folder of a trace, or dumps of one run [default: the newest run].
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
    /// Blocks that are live at the end (where an exit begins), or all that were allocated.
    #[arg(long, value_enum, default_value_t)]
    pub what: What,
    /// Which stacks: those of Python where there are any and of C elsewhere, or one kind alone.
    #[arg(long, value_enum, default_value_t)]
    pub stack: ExportStack,
    /// Python frames with their lines, in `folded`: places of one function are apart. Other formats always have lines.
    #[arg(long)]
    pub lines: bool,
    /// Where to write [default: stdout]; `parquet` makes a folder.
    #[arg(short = 'o', long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Which part of the run.
    #[command(flatten)]
    pub select: SelectArgs,
}

/// Format of `export`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum ExportFormat {
    /// `root;caller;function weight`, for flamegraph.pl and inferno.
    #[default]
    Folded,
    /// A profile for each moment, for speedscope.
    Speedscope,
    /// Live blocks at a moment and all allocations, for `go tool pprof`; compressed.
    Pprof,
    /// Counters of layers and owners, steps, large blocks, marks over time, for `ui.perfetto.dev`.
    Perfetto,
    /// A memory snapshot of `PyTorch`'s pool, as torch itself makes them: a pickle for `memory_viz`.
    Snapshot,
    /// Tables of events, blocks, stacks and findings in a folder, for `DuckDB`, Polars, Spark, `PyArrow`.
    #[cfg(feature = "parquet")]
    Parquet,
}

/// A moment of `export`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum ExportAt {
    /// When the most was live.
    Peak,
    /// When a request failed for want of memory, for the last time.
    Oom,
    /// When the last step ended; without steps, when the last block was allocated.
    End,
}

/// What a weight counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum WeightBy {
    /// Bytes.
    #[default]
    Bytes,
    /// Blocks.
    Count,
}

/// Which blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum What {
    /// Live at the end.
    #[default]
    Live,
    /// All that were allocated.
    Allocated,
}

/// Which stacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum ExportStack {
    /// Python where it has frames, else C.
    #[default]
    Auto,
    /// C.
    C,
    /// Python.
    Python,
    /// Both in one, Python frames where the interpreter runs them; C where that is not known.
    Mixed,
}
