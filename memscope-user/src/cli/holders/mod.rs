//! `holders`: what in a running process still holds device memory.

mod known;

use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};

use super::{FAILURE, args::HoldersArgs, error, input::exit, terminal};
use crate::{
    document, error_chain,
    holders::{Asked, Holders, Process, Question, Which, holders, write_text},
    os::priority,
};

/// `holders PID`.
pub(super) fn run(args: &HoldersArgs) -> ExitCode {
    // Before files are read: missing privileges are reported at once.
    let process = match Process::open(args.process()) {
        Ok(process) => process,
        Err(refused) => {
            error(error_chain(&refused));
            return ExitCode::from(FAILURE);
        }
    };
    // Threads that read the process would take processors from it.
    priority::give_way(priority::LOWEST);
    exit(|| {
        let question = Question { which: which(args)?, paths: args.paths as usize, keys: !args.no_keys };
        let found = holders(&process, &question)?;
        print(args, question.which == Which::All, &found).context("cannot print the answer")
    })
}

fn which(args: &HoldersArgs) -> Result<Which> {
    if let Some(count) = args.top {
        return Ok(Which::Largest(count as usize));
    }
    if !args.block.is_empty() {
        let asked = |(address, size_bytes): &(u64, Option<u64>)| Asked {
            address: *address,
            size_bytes: *size_bytes,
            allocated_at: None,
        };
        return Ok(Which::These(args.block.iter().map(asked).collect()));
    }
    let Some(file) = &args.capture else { return Ok(Which::All) };
    let blocks = match &args.place {
        Some(text) => known::of_place(file, args.process(), text)?,
        None => known::growing(file, args.process())?,
    };
    ensure!(!blocks.is_empty(), "{}", nothing(args));
    Ok(Which::These(blocks))
}

/// Message if the capture names no block.
fn nothing(args: &HoldersArgs) -> String {
    let pid = args.process();
    match &args.place {
        Some(text) => format!(
            "no block of process {pid} that was live at the end of the capture has `{text}` in its call stack; was it traced with --call-stack?"
        ),
        None => format!("no place of process {pid} grows in the capture; `memscope-bpf leaks` says what was judged"),
    }
}

fn print(args: &HoldersArgs, as_tree: bool, found: &Holders) -> std::io::Result<()> {
    if args.json {
        return terminal::print_json(|out| {
            document::write(found, out)?;
            writeln!(out)
        });
    }
    terminal::print(|mut out| write_text(found, as_tree, &mut out))
}
