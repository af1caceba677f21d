//! Queries of `fleet/` on files of a real agent, against the journals of the programs that it traced; and `memscope-bpf fleet` on the same files.

use std::path::Path;
use std::process::Command;

use memscope_tests::checkers::page::Page;
use memscope_tests::harness::agent::{Agent, own_name, waiting_with};
use memscope_tests::harness::journal::pool_blocks;
use memscope_tests::harness::tracer::{Folder, Target, tracer_path};
use serde_json::{Value, json};

use super::{by_script, python};

const MIB: u64 = 1 << 20;

/// Each table has files, with the columns and types that the queries expect.
fn assert_columns(found: &Value) {
    let columns = found["columns"].as_object().expect("tables");
    assert_eq!(columns.keys().collect::<Vec<_>>(), ["device_minute", "failures", "place_minute", "places"]);
    for (table, columns) in columns {
        // Engines do not care for their order.
        let sorted = |columns: &Value| {
            let mut all: Vec<String> = columns.as_array().expect("columns").iter().map(ToString::to_string).collect();
            all.sort();
            all
        };
        assert_eq!(sorted(columns), sorted(&found["expected"][table]), "{table}");
    }
}

/// Some cells of each row.
fn cells(rows: &Value, names: &[&str]) -> Value {
    let of_row = |row: &Value| names.iter().map(|name| row[*name].clone()).collect::<Value>();
    rows.as_array().expect("rows").iter().map(of_row).collect()
}

/// What `memscope-bpf fleet` gives.
fn fleet(query: &str, directory: &Path) -> Value {
    fleet_in(query, directory, &[])
}

/// The same with variables.
pub(super) fn fleet_in(query: &str, from: &Path, variables: &[(&str, &str)]) -> Value {
    let engine = Path::new(&python()).with_file_name("duckdb");
    let mut command = Command::new(tracer_path());
    command.args(["fleet", query, "--json", "--from"]).arg(from).arg("--engine").arg(engine);
    let output = command.envs(variables.iter().copied()).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// A real agent over simulated programs: one that holds, one that has leaked at a known place, one that runs out of memory. Columns are those that the
/// queries expect, and rows are those of the programs' journals.
#[test]
fn queries_of_its_files() {
    let name = own_name("flee");
    let evidence = Folder::new();
    let agent = Agent::start_with(&name, &format!("[evidence]\ndirectory = \"{}\"\n", evidence.path().display()));
    let start = |rank, workload: &str, arguments: &[&str]| {
        let variables = [("JOB_NAME", "train"), ("RANK", rank), ("ASCEND_SIM_CAPACITY_MB", "256")];
        waiting_with(&name, workload, arguments, &variables)
    };
    let leaking = ["--rounds", "4", "--blocks", "3", "--size", "30000", "--leaks", "2", "--leak-size", "2000000"];
    let holding = ["--serve", "--idle", "--hold", "5", "--size", "3000000"];
    let mut leaky = start("1", "pool", &leaking);
    let mut full = start("2", "oom", &[]);
    let mut holder = start("0", "pool", &holding);
    let _ = agent.wait_for_processes(3);
    for target in [&leaky, &full, &holder] {
        std::fs::write(target.folder.path().join("go"), "\n").expect("it reads");
    }
    assert!(leaky.wait().success() && full.wait().success());
    let of_holder = |page: &Page| page.count("memscope_memory_live_blocks", &[("pool", "pta")]) == Some(5);
    let _ = agent.wait_for_page("blocks that are held", of_holder);
    let page = agent.wait_for_processes(1);
    assert_eq!(page.count("memscope_events_lost_total", &[]), Some(0));
    agent.end();
    let of_pool = |target: &Target| pool_blocks(&target.folder.journal().by_process()[&target.pid()]);
    let held_at_end: u64 = of_pool(&holder).values().sum();
    holder.stop();

    let found = by_script("agent_files.py", &[evidence.path()]);
    assert_columns(&found);
    let answers = &found["answers"];

    // What leaked is at one place, to the byte; what is beside it in the pool are the cached workspaces, of which none is live.
    let held = |pid: u32, layer: &str| -> Vec<(String, u64, u64)> {
        let rows = found["held"].as_array().expect("rows").iter();
        let own = rows.filter(|row| row[0] == pid && row[1] == layer);
        let number = |cell: &Value| cell.as_u64().expect("a number");
        own.map(|row| (row[2].as_str().expect("a place").to_owned(), number(&row[3]), number(&row[4]))).collect()
    };
    let leaked = of_pool(&leaky);
    assert_eq!(leaked.len(), 8);
    let [(place, bytes, blocks)] = &held(leaky.pid(), "pool")[..] else { panic!("{found:#}") };
    assert_eq!((*bytes, *blocks), (leaked.values().sum(), 8));
    assert!(place.contains("tensor"), "{place}");

    // The holder is what is on the device now.
    let top = answers["node_top"].as_array().expect("rows").iter();
    let of_holder: Vec<&Value> = top.filter(|row| row["pid"] == holder.pid() && row["layer"] == "pool").collect();
    let [row] = of_holder[..] else { panic!("{found:#}") };
    assert_eq!((&row["live_bytes"], &row["untracked_bytes"]), (&held_at_end.into(), &0.into()), "{row:#}");
    assert_eq!((&row["job"], &row["rank"], &row["device_id"]), (&"train".into(), &0.into(), &0.into()));
    assert_eq!(row["top_place_bytes"], held_at_end);

    // As often as the program says that it was refused: when the device is full, and again after half of it was given back.
    let failed = answers["out_of_memory"].as_array().expect("rows");
    let sum = |name: &str| failed.iter().filter_map(|row| row[name].as_u64()).sum::<u64>();
    assert_eq!(sum("requests"), 2, "{failed:#?}");
    for row in failed {
        assert_eq!((&row["rank"], &row["largest_request_bytes"]), (&2.into(), &(4 * MIB + 32).into()), "{row:#}");
        assert!(row["asked_place"].as_str().is_some_and(|place| place.contains("fill")), "{row:#}");
        assert!(row["bundle"].as_str().is_some_and(|name| name.starts_with("bundle_")), "{row:#}");
    }

    // A minute or two are too few for a verdict, and the queries say so.
    let by_rank = cells(&answers["leak_by_rank"], &["verdict", "reason", "job", "rank"]);
    assert_eq!(by_rank, json!([["not judged", "fewer than 30 minutes", "train", null]]));
    let gaps = cells(&answers["evidence_gaps"], &["verdict", "lost", "missing_minutes", "level"]);
    assert_eq!(gaps, json!([["not judged", 0, 0, 0]]));

    // The command gives the same rows.
    for query in ["node_top", "out_of_memory", "leak_by_rank", "evidence_gaps"] {
        assert_eq!(fleet(query, evidence.path()), answers[query], "{query}");
    }
}

/// One sentence for each thing that is missing.
#[test]
fn what_the_command_needs() {
    let folder = Folder::new();
    let refused = |arguments: &[&str]| {
        let mut command = Command::new(tracer_path());
        let output = command.arg("fleet").args(arguments).current_dir(folder.path()).output().expect("it runs");
        assert!(!output.status.success() && output.stdout.is_empty());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = refused(&["node_top", "--from", "."]);
    assert!(said.contains("`.` is no folder of evidence: it has no folder `v1`"), "{said}");
    std::fs::create_dir(folder.path().join("v1")).expect("a folder");
    let said = refused(&["node_top", "--from", ".", "--engine", "no-such-duckdb"]);
    assert!(said.contains("there is no program `no-such-duckdb`: install DuckDB's"), "{said}");
    let said = refused(&["node_top", "--from", ".", "--engine", "true"]);
    assert!(said.contains("`true` is not DuckDB's program"), "{said}");
    let said = refused(&["node_top", "--from", ".", "--days", "yesterday"]);
    assert!(said.contains("`yesterday` is not a day like 2026-11-20"), "{said}");
}
