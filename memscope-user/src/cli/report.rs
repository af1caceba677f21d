//! Prints reports of live traces and replays.

use std::path::Path;

use super::{
    annotate,
    args::{CollectArgs, LogLevel, ReportKind},
    error, message, runs, terminal,
};
use crate::{
    analyses::{Finding, ledger},
    model::RunEnd,
    os::secure_env,
    overview::{self, Check, Checked, Failed, Gate, Overview, Unseen},
    session::outputs::compares_steps,
    sinks::{self, report::Report},
};

/// A library of the caller's choice is code that runs with our privileges: they have to be the caller's own.
pub(super) fn refuse_borrowed_rights(library: Option<&Path>) -> Result<(), String> {
    match library {
        Some(_) if secure_env::has_borrowed_rights() => {
            Err("--usage-library is refused: this program has more rights than its caller".to_owned())
        }
        _ => Ok(()),
    }
}

/// Prints the findings: text, or JSON for machines. `file` is the file to read them from again.
pub(super) fn print(
    args: &CollectArgs,
    (findings, end): (&[Finding], &RunEnd),
    file: Option<&Path>,
) -> std::io::Result<()> {
    if end.nothing_selected {
        message(args.level_of_messages(), LogLevel::Warning, format_args!("{}", overview::NOTHING_SELECTED));
    }
    if args.json {
        return terminal::print_json(|mut out| sinks::report::write_json(findings, end, &mut out));
    }
    let leak_blocks = args.leak_blocks || args.verbose;
    let report = Report { step_hint: compares_steps(&args.options()), leak_blocks, ..Report::default() };
    print_text(args.report(), report, (findings, end), file)
}

/// Reports the conditions of `--fail-on` that hold. Returns whether one does.
pub(super) fn is_failed(gates: &[Gate], findings: &[Finding], end: &RunEnd) -> bool {
    if gates.is_empty() {
        return false;
    }
    let overview = Overview::new(findings, end);
    let failed = overview.failed(gates);
    for Failed { gate, pid } in &failed {
        let what = match gate {
            Gate::Leak => "it leaks".to_owned(),
            Gate::Growth => "its memory grows".to_owned(),
            Gate::OutOfMemory => "it was out of memory".to_owned(),
            Gate::Peak(bytes) => format!("its peak is above {bytes} bytes"),
        };
        error(format_args!("--fail-on: process {pid}: {what}"));
    }
    for Unseen { pid, check: Check { topic, checked } } in overview.unseen_by(gates) {
        let (word, flag) = (topic.word(), topic.condition());
        let text = match checked {
            Checked::NotJudged(why) => format!("{word} not judged ({why})"),
            _ => format!("{word} found, which is not in the list (add `{flag}`)"),
        };
        message(LogLevel::Warning, LogLevel::Warning, format_args!("--fail-on: process {pid}: {text}"));
    }
    annotate::show(&overview, &failed.iter().map(|failed| failed.pid).collect::<Vec<_>>());
    !failed.is_empty()
}

/// Prints the first screen, the details, or both.
pub(super) fn print_text(
    kind: ReportKind,
    report: Report,
    (findings, end): (&[Finding], &RunEnd),
    file: Option<&Path>,
) -> std::io::Result<()> {
    if kind != ReportKind::Details {
        let next = next_commands(file, kind);
        terminal::print_screen(|look| {
            overview::write(&Overview::new(findings, end), end, "memscope-bpf", &next, look)
        })?;
    }
    if kind == ReportKind::Summary {
        return Ok(());
    }
    terminal::print(|mut out| {
        if kind == ReportKind::Full {
            writeln!(out)?;
        }
        report.write_text(findings, end, &mut out)
    })
}

/// Commands to type next.
fn next_commands(file: Option<&Path>, kind: ReportKind) -> Vec<String> {
    let Some(file) = file else { return Vec::new() };
    let file = terminal::from_here(runs::own_folder(file).unwrap_or(file)).display();
    let details = format!("memscope-bpf leaks {file} --report=details");
    let page = format!("memscope-bpf report {file} --open");
    if kind == ReportKind::Summary { vec![page, details] } else { vec![page] }
}

/// Prints the ledgers of a running trace; `recorded`: only the capture is written.
pub(super) fn print_ledgers(findings: &[Finding], recorded: bool) -> std::io::Result<()> {
    const NONE: &[u8] = b"No device memory was seen so far, so there is no ledger.\n";
    const LATER: &[u8] =
        b"Only the capture is written (--capture-only), so there is no ledger yet: a replay makes it.\n";
    let mut text = Vec::new();
    ledger::text::write_all(findings, &mut text)?;
    if text.is_empty() {
        text.extend_from_slice(if recorded { LATER } else { NONE });
    }
    terminal::say_lines(&text);
    Ok(())
}
