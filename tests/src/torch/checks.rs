//! What every comparison of a run with its programs' own books consists of.

use std::collections::BTreeSet;

use crate::checkers::csv::{self, CsvRules};
use crate::harness::expect::{Expect, Totals, assert_equal};
use crate::harness::journal::{Call, Entry, Journal, Library};
use crate::harness::rows::{Row, Rows};
use crate::harness::tracer::Run;

use super::compare::{Begin, Comparison};
use super::pool::without_pools;
use super::table::Table;
use super::truth::Truth;

/// Modules with blocks that are no segments of a pool: the runtime's, and those of collectives.
const NO_SEGMENTS: [u64; 2] = [7, 3];
/// Pools of servers' own, which lie below torch's.
const OWN_POOLS: [&str; 1] = ["vllm"];
/// What names of kernels begin with: operators, collectives, graphs.
const OPERATORS: [&str; 3] = ["aclnn", "Hccl", "aclmdlRI"];

/// The allocator's rows against `torch_npu`'s account.
///
/// # Panics
///
/// The process has no rows.
#[must_use]
pub fn pools(truth: &Truth, journal: &Journal, rows: &Rows, begin: Begin) -> Table {
    let rows = rows.processes.get(&truth.pid()).expect("rows of the process");
    Comparison { rows, truth, begin, runtime: runtime_blocks(journal, truth.pid()) }.table()
}

/// All other rows against the journal of the simulated libraries.
///
/// # Panics
///
/// They are different.
#[must_use]
pub fn driver(journal: &Journal, rows: &Rows) -> Totals {
    let processes = rows.processes.iter().map(|(pid, rows)| (*pid, without_pools(rows))).collect();
    let rest = Rows { processes, files: rows.files.clone() };
    assert_equal(journal, &rest, Expect { launches: true, ..Expect::default() })
}

/// Addresses that a process took for its runtime and for collectives.
#[must_use]
pub fn runtime_blocks(journal: &Journal, pid: u32) -> BTreeSet<u64> {
    let of_driver = journal.entries.iter().filter(|entry| entry.pid == pid && entry.library == Library::Hal);
    of_driver
        .map(Entry::call)
        .filter_map(|call| match call {
            Call::Alloc { flag, addr, .. } if NO_SEGMENTS.contains(&(flag >> 56)) => Some(addr),
            _ => None,
        })
        .collect()
}

/// Every launch has a name, not a number.
pub fn names(table: &mut Table, rows: &[Row]) {
    let launches: Vec<&Row> = rows.iter().filter(|row| row.event == "KERNEL_LAUNCH").collect();
    let has_name = |name: &str| OPERATORS.iter().any(|prefix| name.starts_with(prefix));
    let nameless = launches.iter().find(|row| !row.name.as_deref().is_some_and(has_name));
    let difference = nameless.map(|row| format!("{row:?}"));
    table.add("launches that carry an operator's name", format!("{} launches", launches.len()), difference);
}

/// The report says that nothing was lost, but for what `expected` names.
///
/// # Panics
///
/// The run printed no report.
pub fn lost(table: &mut Table, run: &Run, expected: &[&str]) {
    let json = run.json();
    let losses = json["end"]["losses"].as_array().expect("losses");
    let strange = losses.iter().find(|loss| !expected.iter().any(|reason| loss["reason"] == *reason));
    table.add(
        "lost records",
        strange.map_or_else(|| "0".to_owned(), |_| "some".to_owned()),
        strange.map(ToString::to_string),
    );
}

/// The files pass the checker.
///
/// # Panics
///
/// A file cannot be read.
pub fn sound(table: &mut Table, rows: &Rows) {
    let rules = CsvRules { time_ordered: true, pools: &OWN_POOLS, ..CsvRules::default() };
    let violation = rows.files.iter().find_map(|path| {
        let bytes = std::fs::read(path).expect("readable dump");
        csv::check(&bytes, rules).first().map(|violation| format!("{}: {violation}", path.display()))
    });
    table.add("form of the files", format!("{} files", rows.files.len()), violation);
}
