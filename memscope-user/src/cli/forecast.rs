//! `forecast`: when memory will be full, from the pool's use so far.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::{input, whatif};
use crate::analyses::select::Selection;
use crate::whatif::forecast::{Collector, Forecasts, forecast, write_forecasts};

/// `forecast`.
#[derive(Debug, Args)]
pub(super) struct ForecastArgs {
    /// A capture, or dumps (CSV or db) of one run [default: the newest run].
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// What `PyTorch`'s pool can have of a device: 28GiB. Without it there is no date.
    #[arg(long, value_name = "SIZE", value_parser = whatif::memory)]
    pub limit: Option<u64>,
    /// Answers as JSON on stdout instead of text.
    #[arg(long)]
    pub json: bool,
}

/// `forecast FILE…`.
pub(super) fn run(args: &ForecastArgs) -> ExitCode {
    input::exit(|| {
        let (collector, made) = Collector::new();
        input::observe(&args.files, Selection::default(), vec![Box::new(collector)])?;
        let all = made.try_recv().unwrap_or_default();
        let devices = all.iter().map(|series| forecast(series, args.limit)).collect();
        let found = Forecasts { input: whatif::name(&args.files), devices };
        whatif::print(args.json, &found, |out| write_forecasts(&found, out))
    })
}
