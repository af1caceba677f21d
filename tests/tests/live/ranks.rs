//! Ranks of a job in one trace.

use std::process::Command;

use memscope_tests::harness::tracer::{Tracer, simulation, tracer_path};
use serde_json::{Value, json};

use super::peaks::offline;

/// ACL asks the driver for 32 bytes more than the program asks it for.
const BLOCK: u64 = (2 << 20) + 32;
/// Eight at once, each on its device; of each step all keep a block of 2 MiB, and one keeps a second.
const JOB: &str = r#"for rank in 0 1 2 3 4 5 6 7; do
    "$0/steps" --device $rank --steps 6 --leak-size 2097152 --leaks $((rank == 5 ? 2 : 1)) &
done
wait"#;

/// After six steps the odd rank holds six blocks more, of the driver in all and at their place; since the first step, 2 MiB a step.
#[test]
fn the_odd_rank_of_one_trace_is_named() {
    let programs = simulation().join("bin");
    let programs = programs.to_str().expect("UTF-8");
    let run = Tracer::run_program("bash", &["-c", JOB, programs]).succeed();
    let found = offline("ranks", &run.folder.capture());
    let ranks = found["ranks"].as_array().expect("ranks");
    let devices: Vec<&Value> = ranks.iter().map(|rank| &rank["devices"]).collect();
    assert_eq!(
        devices,
        (0..8).map(|device| json!([format!("npu:{device}")])).collect::<Vec<_>>().iter().collect::<Vec<_>>()
    );
    assert!(ranks.iter().all(|rank| rank["steps"] == 6), "{ranks:#?}");
    let journal = run.journal();
    let pids = journal.by_process();
    assert!(
        ranks.iter().all(|rank| pids.contains_key(&(rank["pid"].as_u64().expect("a number") as u32))),
        "{ranks:#?}"
    );
    let differences = found["differences"].as_array().expect("differences");
    let facts = |found: &Value| {
        let names =
            ["rank", "pool", "bytes", "median_bytes", "difference_bytes", "since_step", "growth_bytes_per_step"];
        names.map(|name| found[name].clone())
    };
    let whole = differences.iter().find(|found| found["size_bytes"].is_null() && found["place"].is_null());
    let [rank, pool, bytes, median, difference, since, growth] = facts(whole.expect("a difference in all"));
    assert_eq!((&rank, &pool, &since), (&json!(5), &json!("HAL"), &json!(1)), "{differences:#?}");
    assert_eq!((difference, growth.as_f64()), (json!(6 * BLOCK), Some(BLOCK as f64)));
    assert_eq!(bytes.as_u64().zip(median.as_u64()).map(|(bytes, median)| bytes - median), Some(6 * BLOCK));
    assert!(differences.iter().all(|found| found["rank"] == 5), "{differences:#?}");
}

/// Two processes have no median: one sentence, and an exit status.
#[test]
fn two_ranks_are_refused() {
    let programs = simulation().join("bin");
    let job = JOB.replace("0 1 2 3 4 5 6 7", "0 1");
    let run = Tracer::run_program("bash", &["-c", &job, programs.to_str().expect("UTF-8")]).succeed();
    let output = Command::new(tracer_path()).arg("ranks").arg(run.folder.capture()).output().expect("started");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("2 processes with memory of a device: a median needs 3 ranks at least"), "{said}");
}
