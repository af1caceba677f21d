//! What the consoles said.

use std::{
    fmt::{self, Display, Write as _},
    time::Duration,
};

use super::guest::STATUS;

/// Lines of the console shown when a guest failed without naming a test.
const TAIL: usize = 30;
/// Tests that are tried again where they fail.
const MOST_REPEATED: usize = 12;

/// One kernel's run.
#[derive(Debug)]
pub(super) struct Outcome {
    kernel: String,
    took: Duration,
    /// Tests that passed and failed; none if the tests never came to their end.
    tests: Option<(u32, u32)>,
    status: Option<i32>,
    /// Names of those that failed.
    failed: Vec<String>,
    /// How many of those that passed did so at a second attempt.
    again: usize,
    /// What to show about a failure.
    details: String,
}

impl Outcome {
    pub(super) fn read(kernel: &str, console: &str, took: Duration, in_time: bool) -> Self {
        let status = console.lines().find_map(|line| line.strip_prefix(STATUS)?.trim().parse().ok());
        let tests = console.lines().find_map(summary);
        let mut outcome = Self {
            kernel: kernel.to_owned(),
            took,
            tests,
            status,
            failed: failed(console),
            again: 0,
            details: String::new(),
        };
        if !outcome.passed() {
            outcome.details = details(console, in_time);
        }
        outcome
    }

    /// Tests worth a second attempt: a few of a run that came to its end. Where more failed it is not for want of time.
    pub(super) fn to_repeat(&self) -> &[String] {
        if self.tests.is_some() && self.failed.len() <= MOST_REPEATED { &self.failed } else { &[] }
    }

    /// With what the second attempt of the tests that failed gave.
    pub(super) fn repeated(self, again: &Self) -> Self {
        let took = self.took + again.took;
        let Some(((passed, failed), (now_passed, now_failed))) = self.tests.zip(again.tests) else {
            return Self { took, ..self };
        };
        if !again.passed() || now_passed != failed {
            let details = format!("{}\nagain:\n{}", self.details, again.details);
            return Self { took, tests: Some((passed + now_passed, now_failed)), details, ..self };
        }
        Self {
            took,
            tests: Some((passed + now_passed, 0)),
            status: again.status,
            failed: Vec::new(),
            again: self.failed.len(),
            details: format!("at a second attempt: {}", self.failed.join(", ")),
            ..self
        }
    }

    fn verdict(&self) -> String {
        match (self.passed(), self.again) {
            (false, _) => "**failed**".to_owned(),
            (true, 0) => "passed".to_owned(),
            (true, again) => format!("passed, {again} at a second attempt"),
        }
    }

    /// A guest in which no test ran has not passed.
    pub(super) fn passed(&self) -> bool {
        self.status == Some(0) && self.tests.is_some_and(|(passed, failed)| passed > 0 && failed == 0)
    }
}

impl Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.passed() { "passed" } else { "FAILED" };
        write!(f, "{}: {verdict} after {:.0} s", self.kernel, self.took.as_secs_f64())?;
        if self.details.is_empty() { Ok(()) } else { write!(f, "\n{}", self.details) }
    }
}

/// `test result: ok. 12 passed; 0 failed; …`
fn summary(line: &str) -> Option<(u32, u32)> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut counts = counts.split("; ");
    let passed = counts.next()?.strip_suffix(" passed")?.parse().ok()?;
    let failed = counts.next()?.strip_suffix(" failed")?.parse().ok()?;
    Some((passed, failed))
}

/// From the list that ends the tests' report of failures.
fn failed(console: &str) -> Vec<String> {
    let lines: Vec<&str> = console.lines().collect();
    let from = lines.iter().rposition(|line| *line == "failures:").map_or(lines.len(), |at| at + 1);
    lines[from..].iter().map_while(|line| line.strip_prefix("    ")).map(str::to_owned).collect()
}

/// From the tests' own report of failures, else the end of the console.
fn details(console: &str, in_time: bool) -> String {
    let lines: Vec<&str> = console.lines().collect();
    let from = lines.iter().position(|line| *line == "failures:").unwrap_or(lines.len().saturating_sub(TAIL));
    let mut details = lines[from..].join("\n");
    if !in_time {
        details.push_str("\nno end was in sight; QEMU was stopped");
    }
    details
}

pub(super) fn table(outcomes: &[Outcome]) -> String {
    let mut text = format!("{:<14} {:>6} {:>6} {:>8}\n", "kernel", "passed", "failed", "seconds");
    for outcome in outcomes {
        let (passed, failed) =
            outcome.tests.map_or(("-".into(), "-".into()), |(passed, failed)| (passed.to_string(), failed.to_string()));
        let seconds = outcome.took.as_secs_f64();
        let _ = write!(text, "{:<14} {passed:>6} {failed:>6} {seconds:>8.0}", outcome.kernel);
        text.push_str(if outcome.passed() { "\n" } else { "  FAILED\n" });
    }
    text
}

/// Where the table of whole runs is, relative to the repository.
pub(super) const REPORT: &str = "docs/kernels.md";

/// Puts the rows of whole runs into the report's table, in place of older ones of the same kernels; others stay.
pub(super) fn update(report: &str, outcomes: &[Outcome], commit: &str) -> String {
    let mut lines: Vec<String> = report.lines().map(str::to_owned).collect();
    for outcome in outcomes {
        let start = format!("| {} |", outcome.kernel);
        let count = |count: fn(&(u32, u32)) -> u32| {
            outcome.tests.as_ref().map_or_else(|| "–".to_owned(), |tests| count(tests).to_string())
        };
        let verdict = outcome.verdict();
        let (passed, failed) = (count(|tests| tests.0), count(|tests| tests.1));
        let minutes = outcome.took.as_secs_f64() / 60.0;
        let row = format!("{start} {verdict} | {passed} | {failed} | {minutes:.0} | {commit} |");
        if let Some(line) = lines.iter_mut().find(|line| line.starts_with(&start)) {
            *line = row;
        } else {
            // Behind the last row of the table.
            let at = lines.iter().rposition(|line| line.starts_with('|')).map_or(lines.len(), |at| at + 1);
            lines.insert(at, row);
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSED: &str = "memscope-vm: booted 5.10\nrunning 2 tests\n\
        test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s\n\
        memscope-vm: status 0\n";

    fn read(console: &str) -> Outcome {
        Outcome::read("k", console, Duration::from_secs(9), true)
    }

    /// Make sure that only a whole run without failures passes.
    #[test]
    fn verdicts() {
        assert!(read(PASSED).passed());
        let none_ran = PASSED.replace("2 passed", "0 passed");
        let failed = PASSED.replace("0 failed", "1 failed").replace("status 0", "status 101");
        let cut_off = PASSED.split("memscope-vm: status").next().expect("a first part");
        for console in [&none_ran, &failed, cut_off, ""] {
            assert!(!read(console).passed(), "{console}");
        }
    }

    /// Make sure that a few failures are tried again, and that they count as passed only where all of them then pass.
    #[test]
    fn second_attempts() {
        let failed = "running 4 tests\nfailures:\n\n---- a::b stdout ----\nfailures:\n    x\n\nfailures:\n    a::b\n    c::d\n\n\
            test result: FAILED. 2 passed; 2 failed; 0 ignored\nmemscope-vm: status 101\n";
        assert_eq!(read(failed).to_repeat(), ["a::b", "c::d"]);
        assert!(read(PASSED).to_repeat().is_empty());
        assert!(read("failures:\n    a::b\n\n").to_repeat().is_empty(), "without an end");
        let list = (0..=MOST_REPEATED).fold(String::new(), |list, number| list + &format!("    t{number}\n"));
        let many = format!("failures:\n{list}\ntest result: FAILED. 2 passed; 13 failed; 0\nmemscope-vm: status 101\n");
        assert!(read(&many).to_repeat().is_empty());

        let passed = read(failed).repeated(&read(PASSED));
        assert_eq!((passed.passed(), passed.tests), (true, Some((4, 0))));
        assert_eq!(passed.verdict(), "passed, 2 at a second attempt");
        let one = "failures:\n    a::b\n\ntest result: FAILED. 1 passed; 1 failed; 0\nmemscope-vm: status 101\n";
        let still = read(failed).repeated(&read(one));
        assert_eq!((still.passed(), still.tests), (false, Some((3, 1))));
        let none_ran = "test result: ok. 0 passed; 0 failed; 0\nmemscope-vm: status 0\n";
        assert!(!read(failed).repeated(&read(none_ran)).passed());
        assert!(!read(failed).repeated(&read("")).passed());
    }

    /// Make sure that a failure shows what the tests said of it, and a crash what the kernel said last.
    #[test]
    fn shows_failures() {
        let console = "noise\nfailures:\n---- a stdout ----\nmemscope-vm: status 101\n";
        assert_eq!(read(console).details, "failures:\n---- a stdout ----\nmemscope-vm: status 101");
        assert!(read("Kernel panic\n").details.contains("Kernel panic"));
    }

    /// Make sure that a kernel's row takes the place of its last one, that a new kernel's is added, and that a failure is seen.
    #[test]
    fn reports() {
        let report = "# Kernels\n\n| kernel | a |\n|---|--:|\n| old | x |\n| k | y |\n\nMore.\n";
        let expected =
            "# Kernels\n\n| kernel | a |\n|---|--:|\n| old | x |\n| k | passed | 2 | 0 | 0 | abc |\n\nMore.\n";
        assert_eq!(update(report, &[read(PASSED)], "abc"), expected);
        let mut other = read("");
        other.kernel = "new".to_owned();
        let row = "| k | y |\n| new | **failed** | – | – | 0 | abc |\n\nMore.";
        assert!(update(report, &[other], "abc").contains(row));
    }

    /// Make sure that a run without an end stands out in the table.
    #[test]
    fn tables() {
        let table = table(&[read(PASSED), read("")]);
        let rows: Vec<&str> = table.lines().collect();
        assert_eq!(rows[1], "k                   2      0        9");
        assert_eq!(rows[2], "k                   -      -        9  FAILED");
    }
}
