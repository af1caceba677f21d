//! What grew between runs and moments, against what the programs say that they did.

use std::path::Path;
use std::process::{Command, Output};

use memscope_tests::harness::document::document;
use memscope_tests::harness::tracer::{Run, Tracer, tracer_path};
use serde_json::Value;

use super::shared::assert_nothing_lost;

const LEAK_BYTES: u64 = 1 << 20;

/// Five rounds; each leaves this many tensors behind, by a call stack of its own.
fn leaving(leaks: &str) -> Run {
    let tracer = Tracer::run("pool", &["--rounds", "5", "--leaks", leaks]).options(&["--call-stack=c", "--json"]);
    let run = tracer.succeed();
    assert_nothing_lost(&run);
    run
}

fn diff(inputs: &[&Path], options: &[&str]) -> Output {
    Command::new(tracer_path()).arg("diff").args(inputs).args(options).output().expect("runs")
}

fn pool(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let document = document(&output.stdout);
    let pools = document["pools"].as_array().expect("pools");
    pools.iter().find(|pool| pool["pool"] == "PTA").unwrap_or_else(|| panic!("no pool: {document:#}")).clone()
}

fn grown(change: &Value) -> (i64, i64) {
    let number = |key: &str| change[key].as_i64().unwrap_or_else(|| panic!("no {key}: {change:#}"));
    (number("grown_bytes"), number("grown_blocks"))
}

/// Two tensors more in each of five rounds, of one place, though its addresses differ from run to run; from captures and
/// from dumps, and back again.
#[test]
fn runs_are_compared() {
    let (one, two) = (leaving("1"), leaving("3"));
    let bytes = (two.counted("allocated") - one.counted("allocated")).cast_signed();
    assert_eq!(bytes, 10 * LEAK_BYTES.cast_signed());
    let dump = |run: &Run| run.rows().files.first().expect("a dump").clone();
    for [one, two] in [[one.folder.capture(), two.folder.capture()], [dump(&one), dump(&two)]] {
        let found = pool(&diff(&[&one, &two], &["--json"]));
        assert_eq!(grown(&found), (bytes, 10), "{found:#}");
        let places = found["places"].as_array().expect("places");
        let sums = places.iter().map(grown).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        assert_eq!(sums, (bytes, 10), "{places:#?}");
        // First calls may have stacks that are cut, and are places of their own then.
        let mut whole = places.iter().filter(|place| place["stacks"]["native"]["end"] == "root");
        let (place, none) = (whole.next().expect("a whole stack"), whole.next());
        assert_eq!(none, None, "{places:#?}");
        let frames = place["stacks"]["native"]["frames"].as_array().expect("frames");
        assert!(frames.iter().any(|frame| frame.as_str().is_some_and(|text| text.contains("one_round"))), "{frames:?}");
        assert_eq!(grown(&found["owners"][0]), (bytes, 10));
        assert_eq!(grown(&pool(&diff(&[&two, &one], &["--json"]))), (-bytes, -10));
    }
}

/// From nothing at the beginning to what is left at the end, and from the end to the peak, of one capture.
#[test]
fn moments_are_compared() {
    let run = leaving("2");
    let left = run.counted("allocated").cast_signed();
    let capture = run.folder.capture();
    let found = pool(&diff(&[&capture], &["--from", "0", "--json"]));
    assert_eq!((grown(&found), &found["from"]["blocks"]), ((left, 10), &0.into()), "{found:#}");
    let reports = run.journal();
    let (_, entries) = reports.by_process().pop_first().expect("a process");
    let reports = entries.iter().filter_map(|entry| entry.pta_report()).filter(|report| report.component == 0);
    let peak = reports.map(|report| report.allocated).max().expect("reports").cast_signed();
    assert_eq!(grown(&pool(&diff(&[&capture], &["--to", "peak", "--json"]))).0, peak - left);
    let text = diff(&[&capture], &["--from", "0"]);
    assert!(String::from_utf8_lossy(&text.stdout).contains("Pytorch Caching memory pool on device 0: +"));
}

/// Moments that are not there, or are one, are answered with a sentence.
#[test]
fn mistakes_are_reported() {
    let capture = leaving("1").folder;
    let capture = capture.capture();
    for (options, status, says) in [
        (&["--to", "1h"][..], 1, "there is no moment 3600s in it"),
        (&[], 2, "one input needs two moments"),
        (&["--from", "soon"], 2, "`soon` is not one of end, peak, or a time like"),
    ] {
        let output = diff(&[&capture], options);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(status) && said.contains(says), "{options:?}: {said}");
    }
}
