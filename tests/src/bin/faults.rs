//! `faults [ROUNDS] [--seed N] [--only TEXT]`: makes faults at random moments, and prints what came of it as a table.
//!
//! Ends with 1 if a program was harmed, rows were lost without a word, or a capture could not be recovered.

use std::process::ExitCode;

use memscope_tests::faults::{Chance, FAULTS, Fault, HEAD, Tally};

struct Options {
    rounds: u64,
    seed: u64,
    only: Option<String>,
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options { rounds: 1000, seed: 1, only: None };
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("no value for {argument}"));
        let number = |text: &str| text.parse().map_err(|_| format!("`{text}` is no number"));
        match argument.as_str() {
            "--seed" => options.seed = number(&value()?)?,
            "--only" => options.only = Some(value()?),
            rounds => options.rounds = number(rounds)?,
        }
    }
    Ok(options)
}

/// Makes the rounds of a fault.
fn make(fault: &Fault, rounds: u64, seed: u64) -> Tally {
    let mut tally = Tally::default();
    for number in 0..rounds {
        let seed = seed.wrapping_mul(1_000_003).wrapping_add(number);
        let round = (fault.round)(&mut Chance::new(seed));
        tally.add(&round);
        if !round.is_good() {
            println!("{}, round {number} (seed {seed}): {round:#?}", fault.name);
        }
    }
    tally
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("faults: {message}\nusage: faults [ROUNDS] [--seed N] [--only TEXT]");
            return ExitCode::from(2);
        }
    };
    // Failed assertions are results.
    std::panic::set_hook(Box::new(|_| {}));
    let (mut all, mut rows) = (Tally::default(), Vec::new());
    for fault in &FAULTS {
        if options.only.as_ref().is_some_and(|only| !fault.name.contains(only.as_str())) {
            continue;
        }
        let tally = make(fault, (options.rounds * fault.share).div_ceil(100), options.seed);
        println!("{}", tally.row(fault.name));
        rows.push(tally.row(fault.name));
        all.add_all(&tally);
    }
    println!("\n{HEAD}");
    for row in &rows {
        println!("{row}");
    }
    println!("{}", all.row("all"));
    if all.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
