//! What memory is for, against what the program knows (`workloads/kinds.py`): a table of both by bytes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::Path;
use std::process::Command;

use memscope_tests::harness::rows::{Row, read_csv};
use memscope_tests::harness::tracer::{Tracer, tracer_path};
use memscope_tests::torch::bench::{Program, go_on};
use serde::Deserialize;

use super::version_name;

/// One moment of the program.
#[derive(Debug, Deserialize)]
struct Moment {
    mark: String,
    /// Kinds by address; none where the program says nothing.
    blocks: BTreeMap<u64, Option<String>>,
}

/// Bytes by kind and by owner of the rows.
type Matrix = BTreeMap<(String, String), u64>;

fn moments(folder: &Path) -> Vec<Moment> {
    let text = fs::read_to_string(folder.join("kinds.jsonl")).expect("what the program knows");
    text.lines().map(|line| serde_json::from_str(line).expect("a moment")).collect()
}

/// Each block once, by the first moment with a known kind.
fn matrix(rows: &[Row], moments: &[Moment]) -> Matrix {
    let (mut live, mut reported): (HashMap<u64, &Row>, BTreeSet<u64>) = Default::default();
    let mut moments = moments.iter();
    let mut matrix = Matrix::new();
    for row in rows {
        let is_mark = row.event == "MSTX" && row.name.as_deref().is_some_and(|name| name.starts_with("kinds "));
        if is_mark {
            let moment = moments.next().expect("as many moments as marks");
            assert_eq!(row.name.as_deref(), Some(moment.mark.as_str()));
            for (addr, kind) in &moment.blocks {
                let block = live.get(addr).unwrap_or_else(|| panic!("no block at {addr:#x} at `{}`", moment.mark));
                let Some(kind) = kind.clone().filter(|_| reported.insert(block.id)) else { continue };
                let owner = block.attr.get("owner").cloned().unwrap_or_default();
                *matrix.entry((kind, owner)).or_default() += block.number("size");
            }
        }
        match (row.event_type.as_str(), row.event.as_str(), row.ptr) {
            ("PTA", "MALLOC", Some(addr)) => drop(live.insert(addr, row)),
            ("PTA", "FREE", Some(addr)) => drop(live.remove(&addr)),
            _ => {}
        }
    }
    assert!(moments.next().is_none(), "as many marks as moments");
    matrix
}

/// At least 95 % of the bytes of each kind have its owner, and of these kinds the owner beside them.
fn compare(model: &str, more: &[(&str, &str)]) {
    let program = Program::new(&format!("kinds.py {model} 4"));
    let options = ["--call-stack=c,python", "--analysis=decompose", "--events=alloc,free"];
    let (run, folder) = program.traced_with(&options);
    let rows = run.rows();
    let [dump] = rows.files.as_slice() else { panic!("one file: {:?}", rows.files) };
    let copy = run.folder.path().join("with-owners.csv");
    let output = Command::new(tracer_path()).arg("decompose").arg(dump).arg("-o").arg(&copy).output().expect("run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let matrix = matrix(&read_csv(&copy), &moments(&folder));
    println!("{model}, torch_npu {}", version_name());
    let kinds = ["weight", "gradient", "optimizer_state", "activation"].map(|kind| (kind, kind));
    for (kind, owner) in kinds.iter().chain(more) {
        let of: Vec<(&str, u64)> =
            matrix.iter().filter(|((of, _), _)| of == kind).map(|((_, owner), n)| (owner.as_str(), *n)).collect();
        let sum: u64 = of.iter().map(|(_, bytes)| bytes).sum();
        let wanted = format!("PTA@{owner}");
        let right = of.iter().find(|(owner, _)| *owner == wanted).map_or(0, |(_, bytes)| *bytes);
        println!("  {kind}: {sum} bytes, of which {of:?}");
        assert!(sum > 0 && right * 100 >= sum * 95, "{kind}: {right} of {sum} bytes");
    }
}

/// Attached in the middle: what is found in the pool has the kind that its holders show. Nothing of a known kind has another one's
/// name, and of these bytes 99 % have one.
fn compare_found(model: &str, kinds: &[(&str, &str)]) {
    let program = Program::new(&format!("kinds.py {model} 4 2"));
    let (mut target, folder) = program.waiting();
    let options = ["--verbose", "--call-stack=python", "--analysis=decompose", "--events=alloc,free"];
    let running = Tracer::attach(&[&target]).options(&options).start();
    running.wait_for_message("found the purposes of", 1);
    go_on(&folder);
    assert!(target.wait().success());
    let run = running.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    let moments = moments(&folder);
    let moment = moments.iter().find(|moment| moment.mark == "kinds 2 forward").expect("the moment of the attach");
    let rows = run.rows();
    let mut matrix = Matrix::new();
    let is_found = |row: &&Row| row.event == "MALLOC" && row.event_type == "PTA" && row.attr.contains_key("found");
    for row in rows.all().filter(is_found) {
        let Some(Some(kind)) = row.ptr.map(|addr| moment.blocks.get(&addr).cloned().flatten()) else { continue };
        let owner = row.attr.get("owner").cloned().unwrap_or_default();
        *matrix.entry((kind, owner)).or_default() += row.number("size");
    }
    println!("{model}, found at the attach, torch_npu {}", version_name());
    let factors = matrix.keys().filter(|(kind, _)| kind == "factor");
    assert!(factors.into_iter().all(|(_, owner)| ["PTA", "PTA@weight"].contains(&owner.as_str())), "{matrix:?}");
    for (kind, component) in kinds {
        let of = || matrix.iter().filter(|((of, _), _)| of == kind).map(|((_, owner), bytes)| (owner.as_str(), *bytes));
        let sum: u64 = of().map(|(_, bytes)| bytes).sum();
        let wanted = format!("PTA@{component}");
        let right: u64 = of().filter(|(owner, _)| *owner == wanted).map(|(_, bytes)| bytes).sum();
        println!("  {kind}: {sum} bytes, of which {:?}", of().collect::<Vec<_>>());
        assert!(of().all(|(owner, _)| [wanted.as_str(), "PTA"].contains(&owner)), "{kind} has another name");
        assert!(sum > 0 && right * 100 >= sum * 99, "{kind}: {right} of {sum} bytes");
    }
}

#[test]
fn found_kinds_of_an_mlp() {
    compare_found("mlp", &[("weight", "weight"), ("gradient", "gradient"), ("optimizer_state", "optimizer_state")]);
}

#[test]
fn found_kinds_of_a_transformer() {
    let kinds = [("weight", "weight"), ("gradient", "gradient"), ("optimizer_state", "optimizer_state")];
    compare_found("transformer", &kinds);
}

/// No module and no `Parameter` has the factors: lists and closures hold them, which show no purpose, before the optimizer's groups do.
#[test]
fn found_beside_factors() {
    compare_found("lora", &[("weight", "weight"), ("optimizer_state", "optimizer_state")]);
}

#[test]
fn kinds_of_memory_of_an_mlp() {
    compare("mlp", &[]);
}

#[test]
fn kinds_of_memory_of_a_transformer() {
    compare("transformer", &[]);
}

/// A copy that follows the mean of the weights is none of them: no optimizer has it.
#[test]
fn averages_of_weights_are_no_weights() {
    compare("ema", &[("average", "persistent")]);
}

/// Factors that no module makes are weights: the optimizer trains them. The frozen ones are weights as well.
#[test]
fn factors_made_by_hand_are_weights() {
    compare("lora", &[("factor", "weight")]);
}
