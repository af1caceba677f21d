//! Free pieces of the pool, against its own table of blocks: segments without a block in use, and the rest.

use memscope_tests::torch::bench::Program;
use serde_json::Value;

#[test]
fn pieces_are_those_of_the_pools_table() {
    let random: Vec<String> = (1..=3).map(|seed| format!("random {seed}")).collect();
    let kinds = [("whole", "not_found"), ("every_second", "found")];
    let kinds = kinds.into_iter().chain(random.iter().map(|kind| (kind.as_str(), "")));
    for (kind, verdict) in kinds {
        let program = Program::new(&format!("pieces.py {kind}"));
        let run = program.traced_with(&["--analysis=fragmentation", "--json"]).0;
        let table = run.stdout.lines().find_map(|line| line.strip_prefix("PIECES ")).expect("the pool's table");
        let table: Value = serde_json::from_str(table).expect("figures");
        let document = run.json();
        let mut findings = document["findings"].as_array().expect("findings").iter();
        let is_meant = |found: &&Value| found["finding"] == "fragmentation" && found["pool"] == "PTA";
        let found = findings.find(is_meant).unwrap_or_else(|| panic!("{kind}: {document:#}"));
        let end = &found["end"];
        let number =
            |value: &Value, key: &str| value[key].as_u64().unwrap_or_else(|| panic!("{kind}: {key} in {value:#}"));
        let [held, free, unused, largest, segments] =
            ["held", "free", "unused", "largest", "segments"].map(|key| number(&table, key));
        println!("{kind}: {table}, {}", end["space"]);
        assert!(free > 64 << 20 && segments > 2, "{kind}: {table}");
        assert_eq!(number(end, "segments"), segments, "{kind}");
        let said =
            ["total_bytes", "free_bytes", "returnable_bytes", "scattered_bytes"].map(|key| number(&end["space"], key));
        assert_eq!(said, [held, free, unused, free - unused - largest], "{kind}: {table}");
        if !verdict.is_empty() {
            assert_eq!(found["verdict"], verdict, "{kind}: {end:#}");
        }
    }
}
