//! Measures the analyses by made-up programs: what they find, and what that costs. `./x bench` runs it.

mod files;
mod heap;
mod leaks;
mod program;
mod random;
mod records;
mod servers;
mod sizes;
mod training;

use std::process::ExitCode;

use anyhow::{Result, bail};

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
        ["leaks"] => Ok(leaks::run()),
        ["sizes", tool] => sizes::run(tool),
        ["case", case @ ..] => sizes::case(case).map(|()| true),
        _ => bail!("usage: memscope-bench leaks, or sizes PATH_OF_MEMSCOPE_BPF"),
    }
}
