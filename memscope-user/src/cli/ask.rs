//! Questions of the registry as commands: `peaks`, `fragmentation` and others, answers from files.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use clap::{ArgMatches, Args as _, Command, Error, FromArgMatches, Subcommand, error::ErrorKind};

use super::{
    USAGE,
    args::{FileArgs, OwnerArgs},
    decompose::rules_of_user,
    error, input, page, terminal,
};
use crate::{
    analyses::{Asked, FilesCommand, Question, Sees},
    session::outputs::check_pools,
    sinks::report::Report,
};

/// A question with its options.
#[derive(Debug)]
pub(super) struct Ask {
    question: &'static Question,
    /// Message for files without a finding.
    none: &'static str,
    pub(super) args: OwnerArgs,
}

/// Questions with a command without further options, each with its help and the message for files without a finding.
fn commands() -> impl Iterator<Item = (&'static Question, &'static str, &'static str)> {
    Question::all().filter_map(|question| match question.command {
        FilesCommand::Plain { about, none } => Some((question, about, none)),
        FilesCommand::None | FilesCommand::Own => None,
    })
}

impl Subcommand for Ask {
    fn augment_subcommands(command: Command) -> Command {
        commands().fold(command, |command, (question, about, _)| {
            let own = Command::new(question.word);
            let own = if question.names_owners { OwnerArgs::augment_args(own) } else { FileArgs::augment_args(own) };
            // After the options: each of these structs has a help of its own.
            command.subcommand(own.about(about).long_about(None))
        })
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        commands().any(|(question, ..)| question.word == name)
    }
}

impl FromArgMatches for Ask {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let (word, matches) = matches.subcommand().ok_or_else(|| Error::new(ErrorKind::MissingSubcommand))?;
        let known = commands().find(|(question, ..)| question.word == word);
        let (question, _, none) = known.ok_or_else(|| Error::new(ErrorKind::InvalidSubcommand))?;
        if question.names_owners {
            return Ok(Self { question, none, args: OwnerArgs::from_arg_matches(matches)? });
        }
        let FileArgs { files, json, select, html } = FileArgs::from_arg_matches(matches)?;
        Ok(Self { question, none, args: OwnerArgs { files, rules: None, json, select, html } })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// `WORD FILE…`.
pub(super) fn run(Ask { question, none, args }: &Ask) -> ExitCode {
    let blocks = args.select.blocks.filter(None);
    if question.sees == Sees::WholePools
        && let Err(reason) = check_pools(&blocks)
    {
        error(reason);
        return ExitCode::from(USAGE);
    }
    let rules = match rules_of_user(args.rules.as_deref()) {
        Ok(rules) => rules,
        Err(code) => return code,
    };
    input::exit(|| {
        let selection = match question.sees {
            Sees::Chosen => args.select.selection(Some(&rules)),
            Sees::All | Sees::WholePools => args.select.window(),
        };
        let filter = args.select.blocks.filter(Some(&rules));
        let analyses = question.alone(Asked { rules: Some(Arc::clone(&rules)), filter, ..Asked::default() });
        let outcome = input::read(&args.files, selection, analyses)?;
        input::print(&outcome, Report { step_hint: false, ..Report::default() }, args.json)?;
        if outcome.findings.is_empty() && !args.json {
            terminal::print_line(none).context("cannot print the report")?;
        }
        page::also(&args.html, &args.files, args.rules.as_deref(), &args.select)
    })
}
