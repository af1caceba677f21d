//! The report of the last minutes, as a page.

use std::{path::PathBuf, sync::Arc, thread};

use anyhow::{Context as _, Result, bail};
use jiff::Zoned;

use super::listen::Shared;
use crate::{
    analyses::decompose::RuleSet,
    cli::page,
    explain,
    os::caller::Caller,
    report::{self, Reducer},
    sinks::folder::FilePlace,
    top::Recent,
};

/// Writes it on a thread of its own, so that the screen goes on. One at a time.
pub(super) fn start(shared: &Arc<Shared>) {
    if !shared.begin_writing() {
        return;
    }
    let of_thread = Arc::clone(shared);
    let write = move || {
        let (recent, lost) = of_thread.recent();
        let written = write(recent, lost);
        of_thread.end_writing(match written {
            Ok(path) => format!("report of the last minutes: {}", path.display()),
            Err(failure) => format!("no report: {failure:#}"),
        });
    };
    if let Err(failure) = thread::Builder::new().name("report".to_owned()).spawn(write) {
        shared.end_writing(format!("no report: {failure}"));
    }
}

/// Writes the page of these events into the working directory.
fn write(recent: Recent, lost: u64) -> Result<PathBuf> {
    let Some((start_ns, end_ns)) = recent.span() else { bail!("nothing was seen yet") };
    let rules = Arc::new(RuleSet::builtin());
    let (mut reducer, made) = Reducer::naming(Arc::clone(&rules));
    let mut analyses = explain::analyses(&rules);
    let end = recent.replay(lost, &mut |event| {
        reducer.observe(event);
        for analysis in &mut analyses {
            analysis.observe(event);
        }
    });
    reducer.finish(&end);
    let findings: Vec<_> = analyses.iter_mut().flat_map(|analysis| analysis.finish(&end)).collect();
    let run = made.try_recv().unwrap_or_default();
    if run.views.is_empty() {
        bail!("no block was seen yet");
    }
    let path = PathBuf::from(format!("memscope-top-{}.html", Zoned::now().strftime("%Y%m%d-%H%M%S")));
    let part = format!("the last {} s of `top`", (end_ns - start_ns) / 1_000_000_000);
    let options = report::Options { title: None, part: Some(part), tells_failures: true };
    let place = FilePlace::reach(&path, Caller::owner()?).context("cannot reach the working directory")?;
    page::save(&place, &run, &findings, &options).with_context(|| format!("cannot write `{}`", path.display()))?;
    Ok(path)
}
