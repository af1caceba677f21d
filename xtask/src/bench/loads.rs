//! `bench loads`: what loading a library takes while its thread is held, or its process stopped, until the library is probed.

use std::{fs, path::PathBuf, process::Stdio};

use anyhow::{Context as _, Result, ensure};

use super::{lab::Lab, stats::Spread, table::Table};
use crate::project::{program, run_quietly};

/// Libraries that no program has loaded before.
const FILES: usize = 40;
/// Loads of one that was.
const AGAIN: usize = 400;
/// All loads of the program: one more is found by the loader.
const LOADS: f64 = (1 + FILES + AGAIN) as f64;

/// How the program is run.
struct Way {
    name: &'static str,
    /// Options of the tracer; none: no tracer.
    options: Option<&'static [&'static str]>,
}

const WAYS: [Way; 5] = [
    Way { name: "untraced", options: None },
    Way { name: "traced, nothing waits (`--late-libraries=notify`)", options: Some(&["--late-libraries=notify"]) },
    Way { name: "with holds (the default)", options: Some(&["--late-libraries=hold"]) },
    Way {
        name: "with holds, call stacks of C: each load is looked at",
        options: Some(&["--late-libraries=hold", "--call-stack=c"]),
    },
    Way { name: "with stops (`--late-libraries=stop`)", options: Some(&["--late-libraries=stop"]) },
];

/// What one run took.
struct Loads {
    /// Nanoseconds of a load: of a library that the loader looks for, of another one for the first time, and again.
    ns: [f64; 3],
    /// Threads that were held, processes that were stopped, calls that were interrupted.
    counts: [f64; 3],
}

pub(super) fn run(lab: &Lab) -> Result<Vec<Table>> {
    let folder = libraries(lab)?;
    let mut found: Vec<Vec<Loads>> = WAYS.iter().map(|_| Vec::new()).collect();
    for _ in 0..lab.repetitions {
        for (way, found) in WAYS.iter().zip(&mut found) {
            found.push(way.loads(lab, &folder).with_context(|| way.name.to_owned())?);
        }
    }
    let note = format!(
        "µs of one `dlopen` by the clock: of libascendcl.so and what it needs, which the tracer has probed before the program maps it; of \
         {FILES} libraries that are loaded by their paths, for the first time; and of one of these again, {AGAIN} times. *Held* and *stopped* \
         are of all loads of a run, *interrupted* counts the calls of `epoll_wait` in another thread that end with EINTR."
    );
    let columns = ["way", "libascendcl.so", "first", "again", "held", "held per load", "stopped", "interrupted by it"];
    let mut table = Table::new("Loading libraries", &note, &columns);
    for (way, found) in WAYS.iter().zip(&found) {
        let us = |at: usize| Spread::of(found.iter().map(|loads| loads.ns[at] / 1000.0)).to_string();
        let count = |at: usize| Spread::of(found.iter().map(|loads| loads.counts[at]));
        let whole = |at: usize| format!("{:.0}", count(at).median);
        let per_load = format!("{:.2}", count(0).median / LOADS);
        table.row([way.name.to_owned(), us(0), us(1), us(2), whole(0), per_load, whole(1), whole(2)]);
    }
    Ok(vec![table])
}

/// Makes the libraries: copies are other files.
fn libraries(lab: &Lab) -> Result<PathBuf> {
    let folder = lab.own("loads");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let (source, first) = (folder.join("a.c"), folder.join("0.so"));
    fs::write(&source, "int loaded(void) { return 7; }\n")?;
    run_quietly(program("cc").args(["-O1", "-g0", "-shared", "-fPIC", "-o"]).arg(&first).arg(&source))?;
    for number in 1..FILES {
        fs::copy(&first, folder.join(format!("{number}.so")))?;
    }
    Ok(folder)
}

impl Way {
    fn loads(&self, lab: &Lab, folder: &std::path::Path) -> Result<Loads> {
        let mut command = match self.options {
            None => lab.command(lab.program("loads")),
            Some(options) => {
                let mut command = lab.tracer("run", &[options, &["--log-level=debug"]].concat())?;
                command.arg("--").arg(lab.program("loads"));
                command
            }
        };
        command.arg(folder).args(["--files", &FILES.to_string(), "--again", &AGAIN.to_string()]);
        let output =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().context("cannot run the program")?;
        let [said, messages] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        ensure!(output.status.success(), "the program failed ({}): {said}{messages}", output.status);
        let ns = ["found: ", "first: ", "again: "].map(|start| number_behind(&said, start));
        let [Some(found), Some(first), Some(again)] = ns else {
            anyhow::bail!("the program did not say what it took: {said}")
        };
        let interrupted = number_behind(&said, "interrupted: ").context("no count of interruptions")?;
        let (held, stopped) = match self.options {
            None => (0.0, 0.0),
            Some(_) => waits(&messages).with_context(|| format!("the tracer did not count who waited: {messages}"))?,
        };
        Ok(Loads { ns: [found, first, again], counts: [held, stopped, interrupted] })
    }
}

/// The number that follows in a line that starts so.
fn number_behind(text: &str, start: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(start))?;
    line.split_whitespace().next()?.parse().ok()
}

/// How often threads were held, and processes stopped, as the tracer's log says it.
fn waits(messages: &str) -> Option<(f64, f64)> {
    let (_, counts) = messages.lines().find_map(|line| line.split_once("late libraries: "))?;
    let mut numbers = counts.split_whitespace().filter_map(|word| word.parse().ok());
    Some((numbers.next()?, numbers.next()?))
}

#[cfg(test)]
mod tests {
    use super::{number_behind, waits};

    #[test]
    fn numbers_of_both_programs() {
        let said = "found: 120 ns\nfirst: 35 ns\nagain: 7 ns\ninterrupted: 3\n";
        assert_eq!(number_behind(said, "again: "), Some(7.0));
        assert_eq!(number_behind(said, "interrupted: "), Some(3.0));
        assert_eq!(number_behind(said, "later: "), None);
        assert_eq!(waits("[x] Debug: late libraries: 41 hold(s), 2 stop(s)"), Some((41.0, 2.0)));
    }
}
