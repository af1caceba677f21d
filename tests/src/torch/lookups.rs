//! Paths that `holders` names, followed by the program itself: `lookups.py`.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::harness::tracer::Target;

/// What the program found at the ends of the paths.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Lookups {
    /// Paths that lead to their blocks.
    pub right: usize,
    /// Paths that are no expressions of Python: through graphs, variables of functions and objects of C++.
    pub unreadable: usize,
    /// The others, each with what the path leads to.
    pub wrong: Vec<(String, String)>,
}

/// Has a program that waits follow each path that is sure. `truth`: its folder.
#[must_use]
pub fn look_up(target: &Target, truth: &Path, found: &Value) -> Lookups {
    const ANSWER: &str = "LOOKED UP ";
    let mut asked = Vec::new();
    for group in found["groups"].as_array().expect("groups") {
        let holders = group["held_by"].as_array().expect("holders").iter();
        let sure = holders.filter(|holder| holder["is_sure"] == true);
        asked.extend(sure.map(|holder| json!([holder["path"], group["addresses"]])));
    }
    // It appears whole.
    let partial = truth.join("paths");
    std::fs::write(&partial, Value::Array(asked).to_string()).expect("file with the paths");
    std::fs::rename(&partial, truth.join("paths.json")).expect("file with the paths");
    target.wait_for_output(ANSWER);
    // A line may be written in parts.
    target.wait_for_output("]}\n");
    let stdout = target.stdout();
    let line = stdout.lines().find_map(|line| line.strip_prefix(ANSWER)).expect("an answer");
    serde_json::from_str(line).expect("an answer")
}

/// Addresses of blocks that no sure path leads to.
#[must_use]
pub fn unsure(found: &Value) -> Vec<u64> {
    let is_sure =
        |group: &&Value| group["held_by"].as_array().expect("holders").iter().any(|holder| holder["is_sure"] == true);
    let groups = found["groups"].as_array().expect("groups").iter().filter(|group| !is_sure(group));
    let addresses = groups.flat_map(|group| group["addresses"].as_array().expect("addresses"));
    addresses.map(|address| address.as_u64().expect("an address")).collect()
}
