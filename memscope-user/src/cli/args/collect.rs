//! Options of collecting, writing and reporting.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::help_texts::{MESSAGES, OUTPUT, RECORD, REPORT};
use super::{DEFAULT_OUTPUT, HtmlArgs};
use crate::{
    cli::{
        select::SelectArgs,
        values::{self, Analyses, Events, Steps},
    },
    os::caller::{Caller, CallerError},
    overview::Gate,
    session::{CollectOptions, Devices, OutputOptions, RowLevel},
    sinks::{self, StackCells, log},
};

/// File format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum Format {
    /// Text.
    #[default]
    Csv,
    /// SQLite, for `MindStudio` Insight.
    Db,
}

/// How rows have their call stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum Stacks {
    /// In full.
    Inline,
    /// By their number.
    Table,
}

/// The default of `--no-stacks`.
pub(super) const NO_STACKS_VARIABLE: &str = "MEMSCOPE_NO_STACKS";
/// The default of `--report`.
pub(super) const REPORT_VARIABLE: &str = "MEMSCOPE_REPORT";

/// Extent of a printed report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum ReportKind {
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
pub(in crate::cli) enum CollectMode {
    /// At the start.
    #[default]
    Immediate,
    /// When the script starts it.
    Deferred,
}

/// Message level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(in crate::cli) enum LogLevel {
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

/// Collected and written data.
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
#[derive(Clone, Debug, Args)]
pub(in crate::cli) struct CollectArgs {
    /// Rows to write: alloc, free, launch, access, none; `block_free` adds when a pool has a block back for good.
    #[arg(help_heading = RECORD, long, value_name = "LIST", default_value = "alloc,free,launch")]
    pub events: Events,
    /// Detail: op, kernel.
    #[arg(help_heading = RECORD, hide_short_help = true, long, value_name = "LIST", default_value = "op")]
    pub level: RowLevel,
    /// Devices: npu, npu:<0..31>, cpu.
    #[arg(help_heading = RECORD, hide_short_help = true, long, value_name = "LIST", default_value = "npu")]
    pub device: Devices,
    /// Only rows inside these steps, at most five.
    #[arg(help_heading = RECORD, hide_short_help = true, long, value_name = "LIST")]
    pub steps: Option<Steps>,
    /// Analyses.
    #[arg(help_heading = REPORT, long, value_name = "LIST", default_value = "leaks", help = format!("Analyses: {}", values::words_of_analyses()))]
    pub analysis: Analyses,
    /// More rules that name owners (analyses decompose, peaks and fragmentation), which come before the built-in ones.
    #[arg(help_heading = REPORT, hide_short_help = true, long, visible_alias = "rules", value_name = "FILE")]
    pub decompose_rules: Option<PathBuf>,
    /// Of which part of the run the report is; rows are of all of it.
    #[command(flatten)]
    pub select: SelectArgs,
    /// File format.
    #[arg(help_heading = OUTPUT, short = 'f', long, alias = "data-format", value_enum, default_value_t)]
    pub format: Format,
    /// How rows have their call stacks: inline, in full as msMemScope has them; table, by their number in a table beside the rows,
    /// which has each stack once (a small part of the size) [default: inline with --call-stack, otherwise not at all].
    #[arg(help_heading = OUTPUT, hide_short_help = true, long, value_enum)]
    pub stacks: Option<Stacks>,
    /// Where to write [default: a new folder memscope-NAME-TIME, of replay replayed-TIME; of recover: recovered beside the capture].
    #[arg(help_heading = OUTPUT, short = 'o', long, alias = "output", value_name = "DIR")]
    pub output_path: Option<PathBuf>,
    /// How much of the report to print.
    #[arg(help_heading = REPORT, long, value_enum, default_value_t, env = REPORT_VARIABLE, hide_env_values = true)]
    pub report: ReportKind,
    /// Exit with status 3 if this is found: leak, growth, oom, or 'peak>60G'.
    #[arg(help_heading = REPORT, long, value_name = "LIST", value_delimiter = ',', value_parser = values::gate)]
    pub fail_on: Vec<Gate>,
    /// List each block that outlived its step in msMemScope's lines, besides the places. Implies `--report=details`.
    #[arg(help_heading = REPORT, long)]
    pub leak_blocks: bool,
    /// Findings as JSON on stdout instead of the report.
    #[arg(help_heading = REPORT, long)]
    pub json: bool,
    /// Message level: debug, info, warning, error.
    #[arg(help_heading = MESSAGES, hide_short_help = true, long, value_enum)]
    pub log_level: Option<LogLevel>,
    /// More messages, `--report=full`, and --leak-blocks.
    #[arg(help_heading = MESSAGES, short = 'v', long, visible_alias = "debug")]
    pub verbose: bool,
    /// Errors only.
    #[arg(help_heading = MESSAGES, short = 'q', long)]
    pub quiet: bool,
    /// A page beside it.
    #[command(flatten)]
    pub html: HtmlArgs,
}

impl CollectArgs {
    /// Where msMemScope writes.
    #[must_use]
    pub(in crate::cli) fn output_path(&self) -> &Path {
        self.output_path.as_deref().unwrap_or(Path::new(DEFAULT_OUTPUT))
    }

    /// Explicit level, else verbose, else quiet, else info (contract §1.2).
    #[must_use]
    pub(in crate::cli) fn level_of_messages(&self) -> LogLevel {
        match (self.log_level, self.verbose, self.quiet) {
            (Some(level), _, _) => level,
            (None, true, _) => LogLevel::Debug,
            (None, false, true) => LogLevel::Error,
            (None, false, false) => LogLevel::Info,
        }
    }

    /// Extent of the printed report.
    #[must_use]
    pub(in crate::cli) const fn report(&self) -> ReportKind {
        match self.report {
            ReportKind::Summary if self.verbose => ReportKind::Full,
            ReportKind::Summary if self.leak_blocks => ReportKind::Details,
            report => report,
        }
    }

    /// Options for the library to collect.
    pub(in crate::cli) fn options(&self) -> CollectOptions {
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

    /// Output of the library, for the user behind sudo: where it was asked for, else in a new folder of this name.
    pub(in crate::cli) fn output_or(&self, new: PathBuf) -> Result<OutputOptions, CallerError> {
        Ok(OutputOptions {
            new_directory: self.output_path.is_none(),
            directory: self.output_path.clone().unwrap_or(new),
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
