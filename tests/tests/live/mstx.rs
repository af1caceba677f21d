//! Programs that use mstx without its library: with copies of its functions, and the Python module; and our tool for
//! functions that cannot be found.

use std::process::Command;

use memscope_tests::harness::journal::Library;
use memscope_tests::harness::tracer::{Run, Tracer, simulation, tracer_path};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::shared::{DEFAULT, compare};

const INJECTION: &str = "--mstx-injection";

/// Marks and ends that are written, of 2 threads with 19 texts each, as marks and as ranges, in and outside of domains.
const MARKS: u64 = 2 * 2 * 3 * 19;

fn marks(program: &str) -> Tracer {
    Tracer::run(program, &["--rounds", "2"])
}

/// Rows of mstx.
fn rows_of_mstx(run: &Run) -> usize {
    run.rows().all().filter(|row| row.event == "MSTX").count()
}

/// A copy with symbols is probed as the library is. The first call enters its function twice; it is one.
#[test]
fn copies_with_symbols() {
    let (run, totals) = compare(marks("marks-copy"), DEFAULT);
    assert_eq!(totals.marks, 2 * MARKS);
    assert_eq!(run.counted("marks") + 2 * run.counted("ranges"), 2 * MARKS);
}

/// A copy without symbols is seen with our tool alone; doctor says so.
#[test]
fn copies_without_symbols() {
    let run = marks("marks-hidden").succeed();
    let entries = run.journal().entries;
    let called = entries.iter().filter(|entry| entry.library == Library::Mstx && entry.symbol.starts_with("mstx"));
    // And the making and ending of a domain by each thread.
    assert_eq!(called.count() as u64, 2 * MARKS + 4);
    assert_eq!(rows_of_mstx(&run), 0, "{}", run.said());
    let (_, totals) = compare(marks("marks-hidden").option(INJECTION), DEFAULT);
    assert_eq!(totals.marks, 2 * MARKS);
    for (program, hidden) in [("marks-hidden", true), ("marks-copy", false), ("marks", false)] {
        let program = simulation().join("bin").join(program);
        let said = Command::new(tracer_path()).args(["doctor", "--library"]).arg(&program).output();
        let said = String::from_utf8_lossy(&said.expect("started").stdout).into_owned();
        assert_eq!(said.contains("only `run --mstx-injection` sees its calls"), hidden, "{said}");
    }
}

/// With our tool, a call that also passes a probed function is reported once.
#[test]
fn the_tool_tells_nothing_twice() {
    for program in ["marks", "marks-copy"] {
        let (_, totals) = compare(marks(program).option(INJECTION), DEFAULT);
        assert_eq!(totals.marks, 2 * MARKS, "{program}");
    }
}

/// Without a tool all domains have one handle; ours gives each its own, so marks and ranges are distinguished.
#[test]
fn domains_of_one_thread_differ_with_the_tool() {
    for program in ["domains", "domains-copy", "domains-hidden"] {
        let (run, totals) = compare(Tracer::run(program, &[]).option(INJECTION), DEFAULT);
        assert_eq!(totals.marks, 3 * 30, "{program}");
        let rows = run.rows();
        let named: Vec<_> =
            rows.all().filter(|row| ["Mark", "Range_start"].contains(&row.event_type.as_str())).collect();
        assert_eq!(named.len(), 60, "{program}");
        // The workload's texts are the names of its domains.
        assert!(named.iter().all(|row| row.attr.get("domain") == row.name.as_ref()), "{program}");
    }
    let run = Tracer::run("domains", &[]).succeed();
    let rows = run.rows();
    let guessed: Vec<&String> = rows.all().filter_map(|row| row.attr.get("domain")).collect();
    assert!(guessed.len() == 90 && guessed.iter().all(|domain| *domain == "third"), "{}", run.said());
}

/// The Python module, in both forms that compilers give it: its functions are found by its table of methods.
#[test]
fn marks_of_python() {
    for form in ["O0", "O2"] {
        let module = simulation().join("python").join(form).join("mstx.so");
        let arguments = ["--module", module.to_str().expect("a path")];
        for options in [&[][..], &[INJECTION]] {
            let (run, totals) = compare(Tracer::run("pymarks", &arguments).options(options), DEFAULT);
            // Five rounds of six texts: a mark, a start and an end.
            assert_eq!(totals.marks, 5 * 6 * 3, "{form} {options:?}");
            let rows = run.rows();
            let steps = rows.all().filter(|row| row.name.as_deref() == Some("step start"));
            assert_eq!(steps.count(), 10, "{form} {options:?}");
        }
    }
}

/// mstx takes one tool, and ours is not put in the place of another.
#[test]
fn another_tool_is_respected() {
    let run = marks("marks").option(INJECTION).env("MSTX_INJECTION_PATH", "/opt/profiler/libtool.so").finish();
    assert_eq!(run.code(), 125, "{}", run.said());
    let errors: Vec<&str> = run.stderr.lines().filter(|line| line.to_lowercase().contains("error:")).collect();
    assert_eq!(errors.len(), 1, "{}", run.stderr);
    assert!(errors[0].contains("MSTX_INJECTION_PATH is set already, to `/opt/profiler/libtool.so`"), "{}", errors[0]);
}

/// Where the tracer has probes, as the kernel says: kind, offset and file, a line for each; none before Linux 6.8.
fn places(options: &[&str]) -> Vec<String> {
    let running = Tracer::run("calls", &["--kind", "mark", "--hold"]).options(options).start();
    running.wait_for_output("ready ");
    let mut list = Command::new(simulation().join("bin/emptyprobes"));
    let listed = list.arg("list").arg(running.pid().to_string()).output().expect("emptyprobes runs");
    let target = running.stdout().lines().find_map(|line| line.strip_prefix("ready ")?.parse().ok()).expect("its id");
    kill(Pid::from_raw(target), Signal::SIGKILL).expect("it lives");
    drop(running.finish());
    String::from_utf8_lossy(&listed.stdout).lines().map(str::to_owned).collect()
}

/// One program waits for the text of a mark, reads and reports it: at none of its places two are run. What only options need is not
/// probed without them.
#[test]
fn places_cost_no_more_than_they_have_to() {
    let default = places(&[]);
    if default.is_empty() {
        return;
    }
    let of = |places: &[String], library: &str| places.iter().filter(|place| place.contains(library)).count();
    let marks: Vec<_> = default.iter().filter(|place| place.contains("libms_tools_ext.so")).collect();
    let apart: std::collections::BTreeSet<_> = marks.iter().collect();
    // Seven functions are reported at entry, with and without a text.
    assert!(apart.len() > 12, "{marks:?}");
    // The name of a domain is read at the return: its entry has a second program, which waits for the page.
    assert_eq!(marks.len(), apart.len() + 1, "{marks:?}");
    let (launches, requests) = (places(&["--level=kernel"]), places(&["--analysis=oom"]));
    for library in ["libruntime.so", "libacl_rt.so"] {
        let counts = [&default, &launches, &requests].map(|places| of(places, library));
        assert!(counts[0] < counts[1] && counts[1] < counts[2], "{library}: {counts:?}");
    }
}
