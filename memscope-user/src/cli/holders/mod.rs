//! `holders`: what in a running process still holds device memory.

mod known;
mod watched;

use std::{path::Path, process::ExitCode};

use anyhow::{Context as _, Result, ensure};

use self::watched::Watched;
use super::{FAILURE, args::HoldersArgs, error, input::exit, terminal};
use crate::{
    document, error_chain,
    holders::{Asked, Holders, Process, Question, Which, holders, write_text},
    os::priority,
    session::text::time,
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
    exit(|| {
        let is_asked = (args.place.is_some() || args.growing) && args.capture.is_none();
        let watched = is_asked.then(|| Watched::of(args.process(), args.duration)).transpose()?;
        // Threads that read the process would take processors from it.
        priority::give_way(priority::LOWEST);
        let capture = args.capture.as_deref().or(watched.as_ref().map(Watched::capture));
        let question = Question { which: which(args, capture)?, paths: args.paths as usize, keys: !args.no_keys };
        let found = holders(&process, &question)?;
        print(args, question.which == Which::All, &found).context("cannot print the answer")
    })
}

fn which(args: &HoldersArgs, capture: Option<&Path>) -> Result<Which> {
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
    let Some(file) = capture else { return Ok(Which::All) };
    let blocks = match &args.place {
        Some(text) => known::of_place(file, args.process(), text)?,
        None => known::growing(file, args.process())?,
    };
    ensure!(!blocks.is_empty(), nothing(args));
    Ok(Which::These(blocks))
}

/// Message if the capture, or the trace in place of one, names no block.
fn nothing(args: &HoldersArgs) -> String {
    let pid = args.process();
    match &args.place {
        Some(text) if args.capture.is_none() => {
            let time = time(args.duration);
            format!(
                "no block that process {pid} allocated in {time} and holds has `{text}` in its call stack; --for 5m watches longer"
            )
        }
        Some(text) => format!(
            "no block of process {pid} that was live at the end of the capture has `{text}` in its call stack; was it traced with --call-stack?"
        ),
        None if args.capture.is_none() => {
            format!("no place of process {pid} grew in {}; --for 5m watches longer", time(args.duration))
        }
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
