//! What several of the tests do.

use std::fs;

use memscope_tests::checkers::csv::CsvRules;
use memscope_tests::checkers::db::DbRules;
use memscope_tests::checkers::{csv, db};
use memscope_tests::harness::document::npu;
use memscope_tests::harness::expect::{Expect, Totals, assert_equal};
pub(crate) use memscope_tests::harness::journal::pool_blocks;
use memscope_tests::harness::journal::{Entry, Library};
use memscope_tests::harness::tracer::{Run, Tracer, in_vm, simulation};
use serde_json::Value;

/// What the options' defaults lead to.
pub(crate) const DEFAULT: Expect = Expect { launches: false, host: false, killed: false };

/// The dumps pass the checkers.
pub(crate) fn assert_sound(run: &Run) {
    assert_sound_with(run, &[]);
}

/// The same of a run with pools of the program's or the user's own.
pub(crate) fn assert_sound_with(run: &Run, pools: &'static [&'static str]) {
    for path in run.rows().files {
        let violations = if path.extension().is_some_and(|extension| extension == "db") {
            db::check(&path, DbRules { time_ordered: true })
        } else {
            let bytes = fs::read(&path).expect("readable dump");
            csv::check(&bytes, CsvRules { time_ordered: true, pools, ..CsvRules::default() })
        };
        assert_eq!(violations, [], "{}", path.display());
    }
}

/// The report says that nothing was lost. Kernels before 6.0, of the virtual machines, hold no thread: there a process may have gone on
/// before it was looked at, if all that it had mapped was probed before.
pub(crate) fn assert_nothing_lost(run: &Run) {
    const WENT_ON: &str = "process not stopped";
    let lost = if run.stdout.contains("{\"schema\"") {
        let is_none = |loss: &Value| {
            in_vm() && loss["reason"] == WENT_ON && loss["touches"].as_array().is_some_and(Vec::is_empty)
        };
        run.json()["end"]["losses"].as_array().is_none_or(|losses| !losses.iter().all(is_none))
    } else {
        let line = format!("({WENT_ON}), touches no figure");
        let listed = || {
            let report = run.stdout.lines().skip_while(|line| *line != "lost: 0 (ring full)").skip(1);
            let lines: Vec<&str> = report.take_while(|line| line.starts_with("  ")).collect();
            !lines.is_empty() && lines.iter().all(|listed| listed.ends_with(&line))
        };
        let nothing = run.stdout.contains("lost: 0 (ring full), 0 (any other reason)");
        !(nothing || in_vm() && listed())
    };
    assert!(!lost, "{}", run.said());
}

/// The same of a trace that was attached: a call that a thread was inside of at that moment is older than the trace, and
/// is counted as such.
pub(crate) fn assert_nothing_lost_since_attach(run: &Run) {
    assert!(run.lost_nothing_since_attach(), "{}", run.said());
}

/// What one library's journal says, in the order of its times.
pub(crate) fn entries(run: &Run, library: Library) -> Vec<Entry> {
    let mut entries: Vec<Entry> = run.journal().entries.into_iter().filter(|entry| entry.library == library).collect();
    entries.sort_by_key(|entry| entry.time_ns);
    entries
}

/// Traces a workload from its start to its end, and compares everything.
pub(crate) fn compare(tracer: Tracer, expect: Expect) -> (Run, Totals) {
    let run = tracer.finish();
    assert_nothing_lost(&run);
    assert_sound(&run);
    let totals = assert_equal(&run.journal(), &run.rows(), expect);
    (run, totals)
}

/// The same of processes that end at once, started by a shell that takes SIGCHLD: kernels before 6.0, of the virtual machines, hold none of them, and
/// of those that are gone before they are looked at the report says that calls may be missing. That none is missing is compared all the same.
pub(crate) fn compare_short(tracer: Tracer, expect: Expect) -> (Run, Totals) {
    let run = tracer.finish();
    if !in_vm() {
        assert_nothing_lost(&run);
    }
    assert_sound(&run);
    let totals = assert_equal(&run.journal(), &run.rows(), expect);
    (run, totals)
}

/// The one finding of this kind, of a process, on a device.
pub(crate) fn finding(run: &Run, kind: &str, pid: u32, device: u32) -> Value {
    let json = run.json();
    let findings = json["findings"].as_array().expect("findings");
    let is_meant =
        |found: &&Value| found["finding"] == kind && found["pid"] == pid && npu(found) == Some(device.into());
    let meant: Vec<_> = findings.iter().filter(is_meant).collect();
    assert_eq!(meant.len(), 1, "findings `{kind}` of process {pid} on device {device}: {findings:#?}");
    meant[0].clone()
}

/// A folder with the simulated libraries, `libascendcl.so` but under the name that is given.
pub(crate) fn libraries_with(acl: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("temporary directory");
    for entry in fs::read_dir(simulation().join("lib")).expect("libraries") {
        let entry = entry.expect("a library");
        let name = entry.file_name();
        if entry.path().is_file() {
            let to = folder.path().join(if name == "libascendcl.so" { acl.as_ref() } else { name.as_os_str() });
            fs::create_dir_all(to.parent().expect("a folder")).expect("made");
            fs::copy(entry.path(), to).expect("copied");
        }
    }
    folder
}
