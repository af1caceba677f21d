//! Prints reports of live traces and replays.

use std::path::Path;

use super::{
    args::{CollectArgs, LogLevel},
    message, select, terminal,
};
use crate::{
    analyses::{Finding, ledger},
    os::secure_env,
    pipeline::Outcome,
    session::outputs::leaks_wanted,
    sinks::{self, report::Report},
};

/// A library that the caller chooses is code that runs with our rights: they have to be the caller's own.
pub(super) fn refuse_borrowed_rights(library: Option<&Path>) -> Result<(), String> {
    match library {
        Some(_) if secure_env::has_borrowed_rights() => {
            Err("--usage-library is refused: this program has more rights than its caller".to_owned())
        }
        _ => Ok(()),
    }
}

/// Prints what the analyses found: text, or JSON for machines.
pub(super) fn print(args: &CollectArgs, outcome: &Outcome, selected_none: bool) -> std::io::Result<()> {
    if selected_none {
        message(args.level_of_messages(), LogLevel::Warning, format_args!("{}", select::NOTHING));
    }
    if args.json {
        return terminal::print_json(|mut out| sinks::report::write_json(&outcome.findings, &outcome.end, &mut out));
    }
    let leak_blocks = args.leak_blocks || args.verbose;
    let report = Report { step_hint: leaks_wanted(&args.options()), leak_blocks, ..Report::default() };
    terminal::print(|mut out| report.write_text(&outcome.findings, &outcome.end, &mut out))
}

/// Prints the ledgers of a trace that goes on; `recorded`: nothing but the capture is made of it.
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
