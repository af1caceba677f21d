//! `forecast`: when memory will be full, from the pool's use so far.

mod live;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::{input, runs, values, whatif};
use crate::analyses::select::Selection;
use crate::whatif::forecast::{Collector, Forecasts, Series, forecast, write_forecasts};

/// `forecast`.
#[derive(Clone, Debug, Args)]
pub(super) struct ForecastArgs {
    /// A capture, or dumps (CSV or db) of one run [default: the newest run].
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Watch these running processes instead, until --for is over, they end, or Ctrl-C.
    #[arg(short = 'p', long, value_name = "PID", value_delimiter = ',', value_parser = values::pid, conflicts_with = "files")]
    pub pid: Vec<u32>,
    /// Watch for this time: 30s, 10m [default: until Ctrl-C].
    #[arg(short = 'd', long = "for", alias = "duration", value_name = "TIME", value_parser = values::duration, requires = "pid", conflicts_with = "files")]
    pub duration: Option<Duration>,
    /// What `PyTorch`'s pool can have of a device: 28GiB [default: its own memory and what the driver had free; where that is not known
    /// there is no date].
    #[arg(long, value_name = "SIZE", value_parser = whatif::memory)]
    pub limit: Option<u64>,
    /// Answers as JSON on stdout instead of text.
    #[arg(long)]
    pub json: bool,
    /// Ask this library instead of the driver's DCMI: for tests.
    #[arg(long, value_name = "FILE", hide = true, requires = "pid")]
    pub usage_library: Option<PathBuf>,
}

/// `forecast FILE…`, or `forecast --pid PID`.
pub(super) fn run(args: ForecastArgs) -> ExitCode {
    if args.pid.is_empty() { runs::on(args, |args| &mut args.files, of_files) } else { live::run(args) }
}

fn of_files(args: &ForecastArgs) -> ExitCode {
    input::exit(|| {
        let (collector, made) = Collector::new();
        input::observe(&args.files, Selection::default(), vec![Box::new(collector)])?;
        print(args, whatif::name(&args.files), &made.try_recv().unwrap_or_default())
    })
}

fn print(args: &ForecastArgs, input: String, all: &[Series]) -> anyhow::Result<()> {
    let devices = all.iter().map(|series| forecast(series, args.limit)).collect();
    let found = Forecasts { input, devices };
    whatif::print(args.json, &found, |out| write_forecasts(&found, out))
}
