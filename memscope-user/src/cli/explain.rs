//! `explain`: problems found, their reasons, and advice, from files.

use std::process::ExitCode;

use anyhow::Context as _;

use super::{args::OwnerArgs, decompose::rules_of_user, input, page, terminal};
use crate::{
    document::{self, Explained},
    explain::{self, Explanation},
};

/// `explain FILE…`.
pub(super) fn run(args: &OwnerArgs) -> ExitCode {
    let rules = match rules_of_user(args.rules.as_deref()) {
        Ok(rules) => rules,
        Err(code) => return code,
    };
    input::exit(|| {
        let selection = args.select.selection(Some(&rules));
        let outcome = input::read(&args.files, selection, explain::analyses(&rules))?;
        let explanation = explain::explain(&outcome.findings, &outcome.end);
        let printed = if args.json {
            let Explanation { cards, left_out, not_judged } = &explanation;
            let content = Explained { cards, cards_left_out: *left_out, not_judged, end: &outcome.end };
            terminal::print_json(|out| {
                document::write(content, out)?;
                writeln!(out)
            })
        } else {
            terminal::print(|out| explain::text::write(&explanation, &outcome.end, out))
        };
        printed.context("cannot print the explanation")?;
        page::also(&args.html, &args.files, args.rules.as_deref(), &args.select)
    })
}
