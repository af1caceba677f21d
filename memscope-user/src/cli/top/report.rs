//! The report of the last minutes, as a page; and what they say of a place.

use std::{path::PathBuf, sync::Arc, thread};

use anyhow::{Context as _, Result, bail};
use jiff::Zoned;

use super::listen::Shared;
use crate::{
    analyses::{Finding, decompose::RuleSet},
    cli::page,
    explain::{self, Card, Explanation},
    model::RunEnd,
    os::caller::Caller,
    printable::OneLine,
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

/// Explains a place of a process, of which this is known, likewise.
pub(super) fn explain(shared: &Arc<Shared>, (pid, name, about): (u32, String, Vec<String>)) {
    if !shared.begin_writing() {
        return;
    }
    let of_thread = Arc::clone(shared);
    let explain = move || {
        let (recent, lost) = of_thread.recent();
        let (findings, end) = findings(recent, lost, |_| {});
        of_thread.end_explaining(explained((pid, &name), about, explain::explain(&findings, &end), &end));
    };
    if let Err(failure) = thread::Builder::new().name("explain".to_owned()).spawn(explain) {
        shared.end_writing(format!("no explanation: {failure}"));
    }
}

/// What is known of the place, then the cards of its process: those that name the place first.
fn explained((pid, name): (u32, &str), about: Vec<String>, explanation: Explanation, end: &RunEnd) -> Vec<String> {
    let names_it = |card: &Card| card.text.contains(name) || card.evidence.iter().any(|line| line.contains(name));
    let mut cards: Vec<Card> = explanation.cards.into_iter().filter(|card| card.pid == pid).collect();
    cards.sort_by_key(|card| !names_it(card));
    let mut not_judged = explanation.not_judged;
    not_judged.retain(|it| it.pid == pid);
    let explanation = Explanation { cards, left_out: explanation.left_out, not_judged };
    let mut text = Vec::new();
    // Memory takes everything.
    let _ = explain::text::write(&explanation, end, &mut text);
    let cards = String::from_utf8_lossy(&text);
    let cards = cards.lines().map(|line| format!(" {}", OneLine(line)));
    about.into_iter().map(|line| format!(" {line}")).chain([String::new()]).chain(cards).collect()
}

/// The answers that rules and the page need, of these events; each is shown to `seen`, too.
fn findings(recent: Recent, lost: u64, mut seen: impl FnMut(&crate::model::Event)) -> (Vec<Finding>, RunEnd) {
    let mut analyses = explain::analyses(&Arc::new(RuleSet::builtin()));
    let end = recent.replay(lost, &mut |event| {
        seen(event);
        for analysis in &mut analyses {
            analysis.observe(event);
        }
    });
    (analyses.iter_mut().flat_map(|analysis| analysis.finish(&end)).collect(), end)
}

/// Writes the page of these events into the working directory.
fn write(recent: Recent, lost: u64) -> Result<PathBuf> {
    let Some((start_ns, end_ns)) = recent.span() else { bail!("nothing was seen yet") };
    let (mut reducer, made) = Reducer::naming(Arc::new(RuleSet::builtin()));
    let (findings, end) = findings(recent, lost, |event| reducer.observe(event));
    reducer.finish(&end);
    let run = made.try_recv().unwrap_or_default();
    if run.views.is_empty() {
        bail!("no block was seen yet");
    }
    let path = PathBuf::from(format!("memscope-top-{}.html", Zoned::now().strftime("%Y%m%d-%H%M%S")));
    let part = format!("the last {} s of `top`", (end_ns - start_ns) / 1_000_000_000);
    let options = report::Options { part: Some(part), tells_failures: true, ..report::Options::default() };
    let place = FilePlace::reach(&path, Caller::owner()?).context("cannot reach the working directory")?;
    page::save(&place, &run, &findings, &options).with_context(|| format!("cannot write `{}`", path.display()))?;
    Ok(path)
}
