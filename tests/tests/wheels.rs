//! Real libraries, from the package index: functions are where the list says, and nowhere else.
//!
//! `./x test` fetches the small ones, `./x wheels` all that `wheels.txt` lists. Needs `MEMSCOPE_BIN`, `MEMSCOPE_WHEELS` (a
//! folder for each wheel) and `MEMSCOPE_WHEELS_SET`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use memchr::memmem;
use memscope::backend;
use memscope::explain::advice::HINTS;
use memscope::os::elf;
use memscope_tests::harness::tracer::tracer_path;
use serde_json::Value;

const LIST: &str = include_str!("../wheels.txt");

/// The one library that functions are located in.
const SEARCHED: &str = "libtorch_npu.so";

/// Has all of its functions in each version.
const MINDSPORE_POOL: &str = "libmindspore_memory_pool.so";

/// Where the largest libraries of a machine are.
const SYSTEM: [&str; 4] = ["/usr/lib", "/usr/local/lib", "/lib", "/usr/lib64"];
/// How many libraries of a machine are looked at.
const MAX_SYSTEM: usize = 50;

/// A line of the list.
struct Line {
    folder: PathBuf,
    file: &'static str,
    function: &'static str,
    address: &'static str,
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: `./x test` and `./x wheels` see to it, unless `--no-wheels` was given")
    })
}

fn folder() -> PathBuf {
    PathBuf::from(variable("MEMSCOPE_WHEELS"))
}

fn is_whole_set() -> bool {
    variable("MEMSCOPE_WHEELS_SET") == "all"
}

/// The lines of the set that was asked for.
fn lines() -> Vec<Line> {
    let whole = is_whole_set();
    let lines = LIST.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let words = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    words
        .filter(|words| whole || words[0] == "small")
        .map(|words| {
            let [_, package, version, machine, file, function, address] = words[..] else { panic!("{words:?}") };
            Line { folder: folder().join(format!("{package}-{version}-{machine}")), file, function, address }
        })
        .collect()
}

/// What `doctor` says of a file under this name.
fn look_into(file: &Path) -> Value {
    let output = Command::new(tracer_path()).args(["doctor", "--json", "--library"]).arg(file).output();
    let output = output.expect("the tracer runs");
    assert!(output.status.success(), "{}: {}", file.display(), String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    found["libraries"][0].clone()
}

fn name(path: &Path) -> String {
    path.file_name().expect("a file").to_string_lossy().into_owned()
}

/// Shared libraries in a folder, and below it.
fn libraries(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            found.extend(libraries(&entry.path()));
        } else if kind.is_file() && name(&entry.path()).contains(".so") {
            found.push(entry.path());
        }
    }
    found.sort();
    found
}

/// Every function of the list has one address, and it is the listed one: exported ones by our reader of symbols, hidden
/// ones by their structure.
#[test]
fn functions_are_where_the_list_says() {
    let mut wrong = Vec::new();
    let mut bytes: BTreeMap<PathBuf, Vec<u8>> = BTreeMap::new();
    for Line { folder, file, function, address } in lines().into_iter().filter(|line| line.file != "*") {
        let path = folder.join(file);
        let bytes = bytes.entry(path.clone()).or_insert_with(|| fs::read(&path).expect("a library that was fetched"));
        let exported: Vec<u64> =
            elf::resolve(bytes, &[function]).expect("a library").iter().map(|found| found.vaddr).collect();
        let (found, how) = if exported.is_empty() {
            let doctor = look_into(&path);
            let of_function = |key: &str| {
                let is_meant = |found: &&Value| found["symbol"] == function;
                doctor[key].as_array().into_iter().flatten().find(is_meant).unwrap_or(&Value::Null)
            };
            let located = &of_function("probes")["located"];
            let how = format!("{} callers, {}", located["callers"], located["allocator"]);
            let reason = of_function("not_located")["reason"].as_str().unwrap_or(&how).to_owned();
            (located["vaddr"].as_u64().into_iter().collect(), reason)
        } else {
            (exported, "exported".to_owned())
        };
        let listed = u64::from_str_radix(address.trim_start_matches("0x"), 16).expect("a hexadecimal address");
        let state = if found == [listed] { "ok" } else { "WRONG" };
        let line = format!("{state:<5} {:<34} {file:<34} {function} {address} {how}", name(&folder));
        println!("{line}");
        if found != [listed] {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Each `torch_npu` of the set.
fn searched() -> BTreeSet<PathBuf> {
    let lines = lines().into_iter().filter(|line| line.file == SEARCHED && line.function != "-");
    let libraries: BTreeSet<PathBuf> = lines.map(|line| line.folder.join(line.file)).collect();
    assert!(!libraries.is_empty(), "no torch_npu is in the set");
    libraries
}

/// The functions behind `torch.npu.empty_cache` and `set_per_process_memory_fraction` are found in each `torch_npu`, by the table of
/// methods alone, and the one behind `Tensor.record_stream`, by what it and its neighbour read.
#[test]
fn functions_of_every_release_are_found() {
    for path in searched() {
        let doctor = look_into(&path);
        let probes = doctor["probes"].as_array().expect("probes");
        for name in ["_npu_emptyCache", "_npu_setMemoryFraction", "NpuCachingAllocator::recordStream"] {
            let found = probes.iter().find(|probe| probe["symbol"] == name);
            let found = found.unwrap_or_else(|| panic!("{}: {doctor:#}", path.display()));
            println!("{} {name} {}", path.display(), found["located"]["vaddr"]);
            assert!(found["located"]["vaddr"].as_u64() > Some(0), "{found:#}");
        }
    }
}

/// Settings that `explain` advises are read by each `torch_npu`: variables, options in their values, and an option of process groups.
#[test]
fn advised_settings_are_in_torch_npu() {
    let libraries = searched();
    let variables = HINTS.iter().filter_map(|hint| hint.variable);
    let names: BTreeSet<&str> =
        variables.flat_map(|it| [Some(it.name), it.option]).flatten().chain(["hccl_buffer_size"]).collect();
    assert!(names.len() >= 8, "{names:?}");
    for path in libraries {
        let bytes = fs::read(&path).expect("a library that was fetched");
        let missing: Vec<&&str> = names.iter().filter(|name| memmem::find(&bytes, name.as_bytes()).is_none()).collect();
        assert_eq!(missing, [&""; 0], "{}", path.display());
    }
}

/// What the search starts from.
const IMPORT: &str = "_ZTVN9torch_npu7toolkit8profiler10MemoryDataE";
/// How many symbols of each library are renamed to it.
const RENAMED: usize = 3;

/// Every other library, under the name of the one that is searched, has no such function, and says why.
#[test]
fn nothing_is_found_elsewhere() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().join(SEARCHED);
    let mut reasons = Reasons::default();
    for path in others() {
        symlink(&path, &place).expect("a link");
        reasons.add(&path, &look_into(&place));
        fs::remove_file(&place).expect("the link");
    }
    reasons.print();
}

/// The same, when one of their other imports has the name that the search starts from, so that it goes further.
#[test]
fn nothing_is_found_from_another_import() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().join(SEARCHED);
    let mut reasons = Reasons::default();
    for path in others() {
        let Ok(mut bytes) = fs::read(&path) else { continue };
        for name in long_imports(&bytes) {
            let original = bytes[name.clone()].to_vec();
            bytes[name.start..][..IMPORT.len()].copy_from_slice(IMPORT.as_bytes());
            bytes[name.start + IMPORT.len()] = 0;
            fs::write(&place, &bytes).expect("writable");
            reasons.add(&path, &look_into(&place));
            bytes[name].copy_from_slice(&original);
        }
    }
    assert!(reasons.0.keys().any(|reason| reason.contains("refer to the vtable")), "{:?}", reasons.0);
    reasons.print();
}

/// Places of the names of imported symbols that have room for another name, some of them.
fn long_imports(bytes: &[u8]) -> Vec<Range<usize>> {
    let Some(symbols) = elf::ElfFile::parse(bytes).ok().and_then(|file| file.symbols().ok()) else { return Vec::new() };
    let imports = symbols.filter(|symbol| !symbol.defined && symbol.name.len() > IMPORT.len());
    // Tables of virtual functions first: they are what code refers to by the global offset table.
    let mut places: Vec<(bool, Range<usize>)> = imports
        .map(|symbol| {
            let start = symbol.name.as_ptr().addr() - bytes.as_ptr().addr();
            (!symbol.name.starts_with(b"_ZTV"), start..start + symbol.name.len())
        })
        .collect();
    places.sort_by_key(|(is_other, place)| (*is_other, place.start));
    places.into_iter().map(|(_, place)| place).take(RENAMED).collect()
}

/// Why nothing was found, and how often.
#[derive(Default)]
struct Reasons(BTreeMap<String, usize>);

impl Reasons {
    fn add(&mut self, path: &Path, found: &Value) {
        assert_eq!(found["probes"].as_array().map(Vec::len), Some(0), "{}: {found}", path.display());
        let reason = if found["error"].is_null() { &found["not_located"][0]["reason"] } else { &found["error"] };
        let reason = reason.as_str().unwrap_or_else(|| panic!("no reason for {}: {found}", path.display()));
        *self.0.entry(reason.to_owned()).or_default() += 1;
    }

    fn print(&self) {
        for (reason, count) in &self.0 {
            println!("{count:>5} {reason}");
        }
    }
}

/// All libraries of the set in which nothing is to be found, and the largest of this machine.
fn others() -> Vec<PathBuf> {
    let lines = lines();
    let named: BTreeSet<PathBuf> = lines.iter().map(|line| line.folder.join(line.file)).collect();
    let whole: BTreeSet<&Path> =
        lines.iter().filter(|line| line.file == "*").map(|line| line.folder.as_path()).collect();
    let mut others: Vec<PathBuf> = whole.into_iter().flat_map(libraries).collect();
    others.retain(|path| !(name(path) == SEARCHED && named.contains(path)));
    assert!(!is_whole_set() || others.len() >= 100, "only {} libraries in the wheels", others.len());
    others.extend(largest_of_the_system());
    others
}

fn largest_of_the_system() -> Vec<PathBuf> {
    let all: BTreeSet<PathBuf> = SYSTEM
        .iter()
        .flat_map(|folder| libraries(Path::new(folder)))
        .filter_map(|path| path.canonicalize().ok())
        .collect();
    let size = |path: &PathBuf| path.metadata().map_or(0, |metadata| metadata.len());
    let mut all: Vec<PathBuf> = all.into_iter().filter(|path| size(path) < 1 << 30).collect();
    all.sort_by_key(|path| std::cmp::Reverse(size(path)));
    all.truncate(MAX_SYSTEM);
    assert!(!all.is_empty(), "this machine has no shared libraries");
    all
}

/// Rows for libraries that are in the wheels: each library exports, or hides, at least one of its functions, and in the
/// whole set no row stands for a function that is in none of them.
#[test]
fn rows_fit_real_libraries() {
    let fetched: BTreeSet<PathBuf> = lines().into_iter().flat_map(|line| libraries(&line.folder)).collect();
    let mut present: BTreeSet<(&str, &str)> = BTreeSet::new();
    let mut wanted: BTreeSet<(&str, &str)> = BTreeSet::new();
    for path in &fetched {
        let file = name(path);
        let rows: Vec<_> = backend::builtin().filter(|row| row.libraries.contains(&file.as_str())).collect();
        if rows.is_empty() {
            continue;
        }
        let doctor = look_into(path);
        let probes = doctor["probes"].as_array().expect("a list");
        println!("{} {file}", name(path.parent().expect("a folder")));
        for row in rows {
            let library = row.libraries.iter().find(|library| **library == file).expect("it is among them");
            wanted.insert((library, row.symbol));
            let probe = probes.iter().find(|probe| probe["symbol"] == row.symbol);
            let site = probe.map(|probe| format!("+{} {}", probe["site_offset"], probe["instruction"]));
            println!("  {:<9} {} {}", probe.map_or("absent", |_| "ok"), row.symbol, site.unwrap_or_default());
            if probe.is_some() {
                present.insert((library, row.symbol));
            }
        }
        assert!(!probes.is_empty(), "none of the rows for {file} fits {}: {doctor}", path.display());
        // A pool with a missing function would be reported wrong.
        let missing = &doctor["absent"];
        let is_whole = file != MINDSPORE_POOL || missing.as_array().is_some_and(Vec::is_empty);
        assert!(is_whole, "{} lacks {missing}", path.display());
    }
    assert!(!wanted.is_empty(), "no row is for a library of the wheels");
    let layers = |rows: &BTreeSet<(&str, &str)>| -> BTreeSet<&str> {
        let of = |(library, symbol): &(&str, &str)| {
            let row = backend::builtin().find(|row| row.symbol == *symbol && row.libraries.contains(library));
            row.expect("a row").layer.name()
        };
        rows.iter().map(of).collect()
    };
    assert_eq!(layers(&present), layers(&wanted), "layers that no real library has a function of");
    // Rows may be for versions that only the whole set has.
    if is_whole_set() {
        assert_eq!(present, wanted, "rows for functions that no real library has");
    }
}
