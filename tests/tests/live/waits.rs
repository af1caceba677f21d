//! Memory that waits for streams, of a program that has a second stream use some of its blocks.

use memscope_tests::harness::tracer::Tracer;
use serde_json::Value;

use super::peaks::offline;

fn waits(document: &Value) -> Vec<&Value> {
    let findings = document["findings"].as_array().expect("findings");
    findings.iter().filter(|found| found["finding"] == "waits").collect()
}

/// Three rounds with two blocks each that another stream uses: 65 536 and 66 313 bytes, in multiples of 512. They wait from their free to the round's
/// end. The pool has its 2 MiB from the first block on, when nothing waits.
#[test]
fn blocks_of_another_stream() {
    let program = ["--rounds", "3", "--blocks", "16", "--size", "65536", "--shared", "2", "--workspaces", "0"];
    let asked =
        |word: &str| Tracer::run("pool", &program).option(format!("--analysis={word}")).option("--json").succeed();
    let run = asked("waits");
    let (first, second) = (128 * 512, 130 * 512);
    for document in [run.json(), offline("waits", &run.folder.capture())] {
        let [found] = waits(&document)[..] else { panic!("{document:#}") };
        assert_eq!((&found["blocks"], &found["most_bytes"]), (&6.into(), &(first + second).into()), "{found:#}");
        assert_eq!((&found["pool_peak_bytes"], &found["open_blocks"]), (&0.into(), &0.into()), "{found:#}");
        assert!(found["longest_ns"].as_u64().is_some_and(|longest_ns| longest_ns > 0), "{found:#}");
    }
    // Of a dump without rows of returns nothing is known.
    let dump = run.rows().files.first().expect("a dump").clone();
    assert!(waits(&offline("waits", &dump)).is_empty());
    // By itself it is of no interest: none at the peak.
    assert!(waits(&asked("auto").json()).is_empty());
}

/// All of them are allocated by one call, and another one has the stream use them.
#[test]
fn the_call_that_has_a_stream_use_blocks() {
    let program = ["--rounds", "3", "--blocks", "16", "--size", "65536", "--shared", "2", "--workspaces", "0"];
    let run =
        Tracer::run("pool", &program).option("--call-stack=c").option("--analysis=waits").option("--json").succeed();
    for document in [run.json(), offline("waits", &run.folder.capture())] {
        let [found] = waits(&document)[..] else { panic!("{document:#}") };
        let [place] = &found["places"].as_array().expect("places")[..] else { panic!("{found:#}") };
        let calls = |of: &str, function: &str| place[of]["native"]["frames"].to_string().contains(function);
        assert_eq!(place["blocks"], 6, "{place:#}");
        assert!(calls("stacks", "simpta_malloc") && !calls("stacks", "simpta_record_stream"), "{place:#}");
        assert!(
            calls("record_stream", "simpta_record_stream") && !calls("record_stream", "simpta_malloc"),
            "{place:#}"
        );
    }
}
