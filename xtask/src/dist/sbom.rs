//! The parts of what is given out, as `CycloneDX` 1.5 lists them: each crate in the program or its BPF object, with version, licence and
//! checksum, for scanners of weaknesses and licences.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::{
    arch,
    project::{cargo, output, root},
};

/// Its file.
pub(super) const NAME: &str = "memscope-bpf.cdx.json";
/// Crates that are given out: in the program, its BPF object, and the Python package.
const ROOTS: [&str; 3] = ["memscope-user", "memscope-ebpf", "memscope-python"];

/// Packages that any of the architectures needs, as cargo's metadata has them, by name and version.
pub(super) fn packages() -> Result<BTreeMap<String, Value>> {
    let mut found = BTreeMap::new();
    for arch in arch::all() {
        let text =
            output(cargo().args(["metadata", "--format-version=1", "--locked", "--filter-platform", arch.target]))?;
        let metadata: Value = serde_json::from_str(&text).context("cargo metadata is no JSON")?;
        found.extend(linked(&metadata)?);
    }
    Ok(found)
}

/// Writes the list of packages.
pub(super) fn write(packages: &BTreeMap<String, Value>, folder: &Path) -> Result<()> {
    let lock = fs::read_to_string(root().join("Cargo.lock")).context("failed to read Cargo.lock")?;
    let checksums = checksums(&lock);
    let components: Vec<Value> = packages.values().map(|package| component(package, &checksums)).collect();
    let path = folder.join(NAME);
    let list = document(&components);
    fs::write(&path, format!("{list:#}\n")).with_context(|| format!("failed to write `{}`", path.display()))
}

/// The same crates give the same bytes: without a time and a serial number.
fn document(components: &[Value]) -> Value {
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": {
            "type": "application", "name": "memscope-bpf", "version": env!("CARGO_PKG_VERSION"),
            "licenses": [{ "expression": "MIT OR Apache-2.0" }],
        } },
        "components": components,
    })
}

/// Checksums of registry crates by name and version.
fn checksums(lock: &str) -> BTreeMap<(&str, &str), &str> {
    lock.split("[[package]]").filter_map(of_package).collect()
}

/// A package of Cargo.lock, unless it has no checksum.
fn of_package(block: &str) -> Option<((&str, &str), &str)> {
    let field = |name: &str| {
        let line = block.lines().find_map(|line| line.strip_prefix(name))?;
        line.strip_prefix(" = \"")?.strip_suffix('"')
    };
    Some(((field("name")?, field("version")?), field("checksum")?))
}

/// Packages by name and version: what the roots reach through normal dependencies. Derive macros run in the compiler and are no part.
fn linked(metadata: &Value) -> Result<BTreeMap<String, Value>> {
    let packages: BTreeMap<&str, &Value> =
        list(metadata, "packages").filter_map(|package| Some((package["id"].as_str()?, package))).collect();
    let nodes: BTreeMap<&str, &Value> =
        list(&metadata["resolve"], "nodes").filter_map(|node| Some((node["id"].as_str()?, node))).collect();
    let is_root = |package: &Value| ROOTS.iter().any(|root| package["name"] == *root);
    let mut open: Vec<&str> = packages.iter().filter(|(_, package)| is_root(package)).map(|(id, _)| *id).collect();
    ensure!(open.len() == ROOTS.len(), "cargo metadata lacks one of {ROOTS:?}");
    let mut seen = BTreeSet::new();
    while let Some(id) = open.pop() {
        if seen.insert(id) {
            let dependencies = nodes.get(id).into_iter().flat_map(|node| list(node, "deps"));
            let linked =
                dependencies.filter(|dependency| list(dependency, "dep_kinds").any(|kind| kind["kind"].is_null()));
            let ids = linked.filter_map(|dependency| dependency["pkg"].as_str());
            open.extend(ids.filter(|id| packages.get(id).is_some_and(|package| !is_macro(package))));
        }
    }
    let named = |package: &&Value| {
        let text = |key: &str| package[key].as_str().with_context(|| format!("a package without {key}"));
        Ok((format!("{} {}", text("name")?, text("version")?), (*package).clone()))
    };
    seen.into_iter().filter_map(|id| packages.get(id)).map(named).collect()
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

fn is_macro(package: &Value) -> bool {
    list(package, "targets").any(|target| list(target, "kind").any(|kind| kind == "proc-macro"))
}

/// One crate; those of this repository have no checksum.
fn component(package: &Value, checksums: &BTreeMap<(&str, &str), &str>) -> Value {
    let text = |key: &str| package[key].as_str().unwrap_or_default();
    let (name, version) = (text("name"), text("version"));
    let mut component = json!({ "type": "library", "name": name, "version": version });
    if let Some(licence) = package["license"].as_str() {
        component["licenses"] = json!([{ "expression": licence.replace('/', " OR ") }]);
    }
    if let Some(checksum) = checksums.get(&(name, version)) {
        component["purl"] = format!("pkg:cargo/{name}@{version}").into();
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    component
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only what is linked: neither tests' crates nor build scripts' nor macros.
    #[test]
    fn parts_are_what_is_linked() {
        let package = |name: &str, kind: &str| {
            json!({ "id": name, "name": name, "version": "1.0.0", "license": "MIT/Zlib",
            "targets": [{ "kind": [kind] }] })
        };
        let node = |name: &str, deps: &[(&str, Value)]| {
            let deps: Vec<Value> =
                deps.iter().map(|(pkg, kind)| json!({ "pkg": pkg, "dep_kinds": [{ "kind": kind }] })).collect();
            json!({ "id": name, "deps": deps })
        };
        let metadata = json!({
            "packages": [package("memscope-user", "lib"), package("memscope-ebpf", "bin"), package("memscope-python", "cdylib"), package("linked", "lib"), package("deep", "lib"),
                package("derive", "proc-macro"), package("tests", "lib"), package("script", "lib"), package("other", "lib")],
            "resolve": { "nodes": [
                node("memscope-user", &[("linked", Value::Null), ("derive", Value::Null), ("tests", "dev".into()), ("script", "build".into())]),
                node("linked", &[("deep", Value::Null)]), node("derive", &[("other", Value::Null)]),
            ] },
        });
        let lock = "[[package]]\nname = \"deep\"\nversion = \"1.0.0\"\nchecksum = \"ab\"\n\n[[package]]\nname = \"memscope-user\"\n";
        let packages = linked(&metadata).expect("packages").into_iter();
        let checksums = checksums(lock);
        let parts: BTreeMap<_, _> = packages.map(|(name, package)| (name, component(&package, &checksums))).collect();
        let names: Vec<&str> = parts.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            ["deep 1.0.0", "linked 1.0.0", "memscope-ebpf 1.0.0", "memscope-python 1.0.0", "memscope-user 1.0.0"]
        );
        assert_eq!(parts["deep 1.0.0"]["hashes"], json!([{ "alg": "SHA-256", "content": "ab" }]));
        assert_eq!(parts["linked 1.0.0"]["licenses"], json!([{ "expression": "MIT OR Zlib" }]));
        assert!(parts["linked 1.0.0"]["purl"].is_null());
    }

    /// The real list: all crates of the registry in it have a licence and a checksum.
    #[test]
    fn the_list_is_whole() {
        let folder = std::env::temp_dir().join(format!("memscope-sbom-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        write(&packages().expect("packages"), &folder).expect("a list");
        let text = fs::read_to_string(folder.join(NAME)).expect("a list");
        fs::remove_dir_all(&folder).expect("a folder");
        let list_of: Value = serde_json::from_str(&text).expect("JSON");
        let components: Vec<&Value> = list(&list_of, "components").collect();
        let named = |name: &str| components.iter().find(|part| part["name"] == name);
        for name in ["aya", "aya-ebpf", "blazesym", "libsqlite3-sys", "tokio", "pyo3", "memscope-common"] {
            assert!(named(name).is_some(), "{name} is missing");
        }
        for name in ["xtask", "memscope-tests", "jsonschema", "syn", "proptest"] {
            assert!(named(name).is_none(), "{name} is not linked");
        }
        for part in components {
            assert!(part["licenses"][0]["expression"].is_string(), "{part}");
            let ours = part["name"].as_str().is_some_and(|name| name.starts_with("memscope-"));
            assert_eq!(part["hashes"].is_array(), !ours, "{part}");
        }
    }
}
