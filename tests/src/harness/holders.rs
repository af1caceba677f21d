//! Programs that say how they hold blocks, and what `holders` says of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::document::document;
use super::tracer::tracer_path;

/// A block that a program holds in a way that it names: `CASES` on its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// What kind of holder it is.
    pub name: String,
    /// Address of the block.
    pub address: u64,
    /// The best path, or its end behind `…`, or one of `nothing` and `ring`.
    pub path: String,
}

/// What a program says it holds.
#[must_use]
pub fn cases(stdout: &str) -> Vec<Case> {
    listed(stdout.lines().find_map(|line| line.strip_prefix("CASES ")).expect("a line with the cases"))
}

/// Cases as a program prints them.
#[must_use]
pub fn listed(text: &str) -> Vec<Case> {
    let all: Vec<(String, u64, String)> = serde_json::from_str(text).expect("cases");
    all.into_iter().map(|(name, address, path)| Case { name, address, path }).collect()
}

/// Libraries with an allocator of their own, as servers preload them: `./x setup` installs them.
pub const ALLOCATORS: [&str; 2] = ["libjemalloc.so.2", "libtcmalloc_minimal.so.4"];

/// The path of one of [`ALLOCATORS`]; panics where it is not installed.
#[must_use]
pub fn allocator(library: &str) -> String {
    let folder = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let mut paths = [&folder, "/usr/lib64", "/usr/lib"].into_iter().map(|folder| Path::new(folder).join(library));
    let path = paths.find(|path| path.exists());
    path.unwrap_or_else(|| panic!("no `{library}`: `./x setup` installs it")).display().to_string()
}

/// Asks the program; panics if that fails.
#[must_use]
pub fn ask(pid: u32, options: &[&str]) -> Value {
    let mut command = Command::new(tracer_path());
    let output = command.args(["holders", &pid.to_string(), "--json"]).args(options).output().expect("the program");
    assert!(output.status.success(), "{options:?}: {}", String::from_utf8_lossy(&output.stderr));
    document(&output.stdout)
}

/// `--block` for all of these.
#[must_use]
pub fn blocks(cases: &[Case]) -> String {
    let addresses: Vec<String> = cases.iter().map(|case| format!("{:#x}", case.address)).collect();
    format!("--block={}", addresses.join(","))
}

/// What was said of each address: the paths that are sure, or the state.
#[must_use]
pub fn said(found: &Value) -> BTreeMap<u64, Vec<String>> {
    let mut said = BTreeMap::new();
    for group in found["groups"].as_array().expect("groups") {
        let holders = group["held_by"].as_array().expect("holders").iter();
        let sure = holders.filter(|holder| holder["is_sure"] == true);
        let mut paths: Vec<String> = sure.map(|holder| holder["path"].as_str().expect("a path").to_owned()).collect();
        if paths.is_empty() {
            paths.push(group["state"].as_str().expect("a state").to_owned());
        }
        for address in group["addresses"].as_array().expect("addresses") {
            said.insert(address.as_u64().expect("an address"), paths.clone());
        }
    }
    said
}

/// The cases that are answered otherwise than they should be.
#[must_use]
pub fn wrong(cases: &[Case], said: &BTreeMap<u64, Vec<String>>) -> Vec<String> {
    let is_wrong = |case: &&Case| {
        let paths = said.get(&case.address).map(Vec::as_slice).unwrap_or_default();
        match case.path.as_str() {
            // Nothing is sure to hold it: `held` is what a left-over seems to do.
            "ring" => !matches!(paths, [state] if state == "ring" || state == "held"),
            // The pool may know that it has the block back.
            "nothing" => !matches!(paths, [state] if ["nothing", "no_root", "held", "free"].contains(&state.as_str())),
            path => !paths.first().is_some_and(|found| is_alike(path, found)),
        }
    };
    let wrong = cases.iter().filter(is_wrong);
    wrong.map(|case| format!("{}: {} and not {:?}", case.name, case.path, said.get(&case.address))).collect()
}

/// Takes the cases out of which nothing was said: no path was found. That is no wrong path.
#[must_use]
pub fn take_absent(wrong: &mut Vec<String>) -> Vec<String> {
    wrong.extract_if(.., |text| text.ends_with(r#"["no_root"])"#)).collect()
}

/// Whether a path is the one of a group, in which numbers that differ are `*`.
fn is_alike(path: &str, of_group: &str) -> bool {
    if let Some(end) = path.strip_prefix('…') {
        return of_group.ends_with(end);
    }
    let (mut path, mut group) = (path, of_group);
    while let Some((head, rest)) = group.split_once("[*]") {
        let Some(behind) = path.strip_prefix(head).and_then(|rest| rest.strip_prefix('[')) else { return false };
        let digits = behind.len() - behind.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let Some(behind) = behind[digits..].strip_prefix(']').filter(|_| digits > 0) else { return false };
        (path, group) = (behind, rest);
    }
    path == group
}

#[cfg(test)]
mod tests {
    use super::is_alike;

    #[test]
    fn numbers_of_groups() {
        assert!(is_alike("a.b[3]['k'][17]", "a.b[*]['k'][*]") && is_alike("a[0]", "a[0]"));
        assert!(is_alike("… → x", "a.b → x") && !is_alike("… → x", "a → xy"));
        assert!(!is_alike("a.b['k']", "a.b[*]") && !is_alike("a[1]", "a[2]") && !is_alike("a[1].x", "a[*]"));
    }
}
