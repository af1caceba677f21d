//! Cards over real runs: what must be said, what must not, and what was in force.

use memscope_tests::harness::document::document;
use memscope_tests::harness::tracer::{Tracer, tracer_path};
use serde_json::{Value, json};

use super::peaks::offline;

/// Rules with a card.
fn rules(document: &Value) -> Vec<&str> {
    let cards = document["cards"].as_array().expect("cards");
    cards.iter().map(|card| card["rule"].as_str().expect("a rule")).collect()
}

/// Workloads that free what they take, at their own places: no card says otherwise.
#[test]
fn calm_workloads_are_silent() {
    let workloads = ["launches", "share", "badfree", "physical", "pool", "vllm", "devices", "pairs", "mstxpool"];
    let steps: (&str, &[&str]) = ("steps", &["--steps", "6", "--leaks", "0"]);
    let calm = workloads.into_iter().map(|workload| (workload, &[] as &[&str])).chain([steps]);
    for (workload, arguments) in calm {
        let run = Tracer::run(workload, arguments).options(&["--call-stack=c", "--json"]).finish();
        let explained = offline("explain", &run.folder.capture());
        assert_eq!(rules(&explained), [""; 0], "{workload}: {explained:#}");
        let silent = explained["not_judged"].as_array().expect("a list");
        // Growth is judged after ten seconds, which one may take where the processor is interpreted.
        let [start_ns, end_ns] = ["start_ns", "time_ns"].map(|key| explained["end"][key].as_u64().expect("a time"));
        let is_silent = silent.iter().any(|it| it["rule"] == "growth");
        assert!(is_silent || end_ns - start_ns >= 10_000_000_000, "{workload}: {explained:#}");
    }
}

/// A workload that leaves a block of each step: a card at the place, of as many bytes as the leak report has.
#[test]
fn a_leak_has_a_card() {
    let run = Tracer::run("scenes", &["killed"]).options(&["--call-stack=c", "--json"]).finish();
    let explained = offline("explain", &run.folder.capture());
    let cards = explained["cards"].as_array().expect("cards");
    let [card] = cards.as_slice() else { panic!("{explained:#}") };
    // As in the leak report: the last step did not end, and none judges the one before it.
    let leaked = run.counted("kept") - 2;
    assert_eq!((&card["rule"], &card["level"]), (&json!("step-leak"), &json!("warning")), "{card:#}");
    assert_eq!(card["size_bytes"], leaked * ((1 << 20) + 32), "{card:#}");
    assert!(card["text"].as_str().is_some_and(|text| text.contains("scenes keep_here")), "{card:#}");
    let text = std::process::Command::new(tracer_path()).arg("explain").arg(run.folder.capture()).output();
    let text = String::from_utf8(text.expect("the program").stdout).expect("text");
    assert!(text.starts_with("WARNING  Each step leaves blocks behind (step-leak), process "), "{text}");
    assert!(text.contains("\n  try: Bound the list, cache or request state"), "{text}");
}

/// Four variables of the environment of a program that was started are known; no other is.
#[test]
fn settings_of_the_environment() {
    let run = Tracer::run("steps", &["--steps", "2"])
        .env("HCCL_BUFFSIZE", "120")
        .env("TASK_QUEUE_ENABLE", "2")
        .env("MEMSCOPE_TEST_SECRET", "hunter2")
        .option("--json")
        .finish();
    let expected = json!([{ "name": "TASK_QUEUE_ENABLE", "value": "2" }, { "name": "HCCL_BUFFSIZE", "value": "120" }]);
    let replayed = Tracer::replay(&run.folder.capture()).option("--json").finish();
    for document in [run.json(), document(replayed.stdout.as_bytes())] {
        let found = document["findings"].as_array().expect("findings").iter().find(|it| it["finding"] == "settings");
        assert_eq!(found.expect("settings")["settings"], expected);
        assert!(!document.to_string().contains("hunter2"));
    }
}
