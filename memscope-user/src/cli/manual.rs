//! `completions` and `manual`: what the program says of itself, for shells and for packagers.

use std::{io, path::Path, process::ExitCode};

use anyhow::{Context as _, Result};
use clap::CommandFactory as _;

use super::{
    FAILURE,
    args::{Cli, CompletionsArgs, ManualArgs},
    error,
};

const NAME: &str = "memscope-bpf";

/// Prints the completions of a shell.
pub(super) fn completions(args: &CompletionsArgs) -> ExitCode {
    // Into memory first: a reader who goes away is no reason to panic.
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), NAME, &mut text);
    match io::Write::write_all(&mut io::stdout(), &text) {
        Err(failure) if failure.kind() != io::ErrorKind::BrokenPipe => {
            error(format_args!("cannot print the completions: {failure}"));
            ExitCode::from(FAILURE)
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Writes a manual page for each command.
pub(super) fn pages(args: &ManualArgs) -> ExitCode {
    match write(&args.directory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            error(format_args!("{failure:#}"));
            ExitCode::from(FAILURE)
        }
    }
}

fn write(directory: &Path) -> Result<()> {
    let what = || format!("cannot write manual pages to `{}`", directory.display());
    std::fs::create_dir_all(directory).with_context(what)?;
    clap_mangen::generate_to(Cli::command(), directory).with_context(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Make sure that each command that is shown has a page, and that hidden ones have none.
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
