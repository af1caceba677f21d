//! `completions`, `schema` and `manual`: the program's description of itself, for shells and for packagers.

use std::{path::Path, process::ExitCode};

use anyhow::{Context as _, Result};
use clap::CommandFactory as _;

use super::{
    args::{Cli, CompletionsArgs, ManualArgs, SchemaArgs},
    input::exit,
    terminal,
};
use crate::document;

const NAME: &str = "memscope-bpf";

/// Prints the completions of a shell.
pub(super) fn completions(args: &CompletionsArgs) -> ExitCode {
    // Into memory first: what makes them panics when it cannot write.
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), NAME, &mut text);
    exit(|| terminal::print(|out| out.write_all(&text)).context("cannot print the completions"))
}

/// Prints the JSON Schema of a kind of document.
pub(super) fn schema(args: &SchemaArgs) -> ExitCode {
    let text = document::schema(args.name.as_str()).unwrap_or_default();
    exit(|| terminal::print(|out| writeln!(out, "{text}")).context("cannot print the schema"))
}

/// Writes a manual page for each command.
pub(super) fn pages(args: &ManualArgs) -> ExitCode {
    exit(|| write(&args.directory))
}

fn write(directory: &Path) -> Result<()> {
    let what = || format!("cannot write manual pages to `{}`", directory.display());
    std::fs::create_dir_all(directory).with_context(what)?;
    clap_mangen::generate_to(Cli::command(), directory).with_context(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each visible command has a page, and hidden ones have none.
    #[test]
    fn pages_of_all_commands() {
        let folder = tempfile::tempdir().expect("a folder");
        write(folder.path()).expect("written");
        let page = |name: &str| std::fs::read_to_string(folder.path().join(name));
        for command in Cli::command().get_subcommands() {
            let found = page(&format!("{NAME}-{}.1", command.get_name()));
            assert_eq!(found.is_ok(), !command.is_hide_set(), "{}", command.get_name());
        }
        let run = page("memscope-bpf-run.1").expect("the page of `run`");
        assert!(run.contains("mstx") && run.contains("\\-\\-call\\-stack"), "{run}");
    }
}
