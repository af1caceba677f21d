//! Measures the analyses by made-up programs: what they find, and what that costs. `./x bench` runs it.

mod attached;
mod attaches;
mod evidence;
mod extent;
mod files;
mod habits;
mod heap;
mod leaks;
mod load;
mod program;
mod random;
mod records;
mod score;
mod seeded_training;
mod server;
mod servers;
mod sizes;
mod training;
mod whatif;

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::extent::Extent;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("memscope-bench: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Gives whether the goals are met.
fn run(words: &[&str]) -> Result<bool> {
    match words {
        ["leaks"] => Ok(leaks::run(Extent::full(false))),
        ["leaks", "details"] => Ok(leaks::run(Extent::full(true))),
        ["leaks", "details", seeds] => Ok(leaks::run(Extent::first(seeds.parse()?, true))),
        ["sizes", tool] => sizes::run(tool),
        ["report", folder] => sizes::pages(folder),
        ["whatif"] => whatif::run(),
        ["evidence", folder, hosts] => evidence::run(folder.as_ref(), hosts.parse()?).map(|()| true),
        ["case", case @ ..] => sizes::case(case).map(|()| true),
        _ => {
            bail!(
                "usage: memscope-bench leaks [details [SEEDS]], sizes PATH_OF_MEMSCOPE_BPF, report FOLDER, whatif, or \
                 evidence FOLDER HOSTS"
            )
        }
    }
}
