//! The process that calls the driver: answers each line on its standard input with one on its standard output.

use std::io::{self, BufRead as _, Write as _};
use std::path::Path;
use std::process::ExitCode;

use super::Answer;
use super::dcmi::Dcmi;
use super::library::{self, LibraryError};
use crate::error_chain;

/// Reports whether DCMI can be used, then answers until the parent has gone. A line holds the numbers of the wanted
/// devices; an empty one asks for all.
#[must_use]
pub fn serve(given: Option<&Path>) -> ExitCode {
    match answer_all(given) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn answer_all(given: Option<&Path>) -> io::Result<()> {
    let dcmi = match open(given) {
        Ok((dcmi, answer)) => {
            say(&answer)?;
            dcmi
        }
        Err(answer) => return say(&answer),
    };
    for line in io::stdin().lock().lines() {
        let wanted: Vec<u32> = line?.split(' ').filter_map(|number| number.parse().ok()).collect();
        say(&match dcmi.figures(&wanted) {
            Ok(devices) => Answer::Figures { devices },
            Err(error) => Answer::Failed { reason: error_chain(&error) },
        })?;
    }
    Ok(())
}

fn open(given: Option<&Path>) -> Result<(Dcmi, Answer), Answer> {
    let failed = |error: &dyn std::error::Error| Answer::Failed { reason: error_chain(error) };
    let path = library::find(given).map_err(|error| match error {
        LibraryError::Absent { looked } => Answer::Absent { looked },
        error => failed(&error),
    })?;
    let dcmi = Dcmi::open(&path).map_err(|error| failed(&error))?;
    let ready = Answer::Ready { library: path.display().to_string(), devices: dcmi.devices() };
    Ok((dcmi, ready))
}

#[expect(clippy::disallowed_methods, reason = "a pipe to the tracer that started us")]
fn say(answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line)?;
    out.flush()
}
