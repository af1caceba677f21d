//! `holders`.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use crate::cli::values;

/// `holders`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("which"))]
pub(in crate::cli) struct HoldersArgs {
    /// The process.
    #[arg(value_name = "PID", value_parser = values::pid)]
    process: Option<u32>,
    /// The same.
    #[arg(short = 'p', long, required_unless_present = "process", conflicts_with = "process", value_name = "PID", value_parser = values::pid)]
    pid: Option<u32>,
    /// The N largest live blocks of the pool [default: all live blocks, by object].
    #[arg(long, value_name = "N", group = "which", value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub top: Option<u32>,
    /// Blocks at these addresses, each with its size if wanted: 0x12c100400000 or 0x12c100400000:2M.
    #[arg(long, value_name = "ADDR[:SIZE]", group = "which", value_delimiter = ',', value_parser = values::device_block)]
    pub block: Vec<(u64, Option<u64>)>,
    /// Blocks that were live at the end of the capture, with TEXT in their call stack; without one, of those that come in the next 20 s.
    #[arg(long, value_name = "TEXT", group = "which")]
    pub place: Option<String>,
    /// Blocks of the places that grow in the capture; without one, in the next 20 s.
    #[arg(long, group = "which")]
    pub growing: bool,
    /// A capture or a dump of this process, for --place and --growing.
    #[arg(long, value_name = "FILE", requires = "which")]
    pub capture: Option<PathBuf>,
    /// Watch the process for this time, for --place and --growing without a capture.
    #[arg(short = 'd', long = "for", alias = "duration", value_name = "TIME", requires = "which", conflicts_with = "capture", value_parser = values::duration, default_value = "20s")]
    pub duration: Duration,
    /// Different paths for each block, at most.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=20))]
    pub paths: u32,
    /// Leave the keys of dicts out, which are data of the program.
    #[arg(long)]
    pub no_keys: bool,
    /// The answer as JSON on stdout.
    #[arg(long)]
    pub json: bool,
}

impl HoldersArgs {
    /// The process.
    pub(in crate::cli) fn process(&self) -> u32 {
        self.process.or(self.pid).unwrap_or_default()
    }
}
