//! Files that are not what they seem: each is answered with one sentence or a stated repair, in little memory, and left as it is.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use memscope_tests::harness::document::document;
use memscope_tests::harness::tracer::{Folder, Tracer, tracer_path};
use nix::sys::resource::{Resource, setrlimit};
use serde_json::Value;

const HEADER: &str =
    "ID,Event,Event Type,Name,Timestamp(ns),Process Id,Thread Id,Device Id,Ptr,Attr,Call Stack(Python),Call Stack(C)\n";
/// Larger than any memory that is used for it.
const HUGE_BYTES: u64 = 8 << 30;
/// Any of the commands may have this much.
const MOST_BYTES: u64 = 256 << 20;
/// Every command that reads one file.
const VERBS: [&str; 7] = ["leaks", "decompose", "peaks", "fragmentation", "inefficient", "export", "diff"];

fn row(id: u64, event: &str, time: u64, block: u64) -> String {
    format!(
        "{id},{event},PTA,N/A,{},7,7,0,{:#018x},\"{{allocation_id:{block},addr:{:#x},size:512,total:4096,used:512}}\",,\n",
        1_790_000_000_000_000_000 + time,
        block << 12,
        block << 12
    )
}

/// Two blocks, of which one is freed.
fn rows() -> [String; 3] {
    [row(1, "MALLOC", 10, 1), row(2, "MALLOC", 20, 2), row(3, "FREE", 30, 1)]
}

/// Runs a command, which gets little memory: with more it would be aborted.
fn output(command: &mut Command) -> Output {
    output_within(command, MOST_BYTES)
}

/// Runs a command with so much memory of its own.
fn output_within(command: &mut Command, most_bytes: u64) -> Output {
    // Not what the kernel says that it took: that includes what this process had when it forked.
    // SAFETY: one system call.
    unsafe {
        command.pre_exec(move || setrlimit(Resource::RLIMIT_DATA, most_bytes, most_bytes).map_err(Into::into));
    }
    command.stdin(Stdio::null()).output().expect("runs")
}

fn command(verb: &str, file: &Path) -> Output {
    let mut command = Command::new(tracer_path());
    command.arg(verb).arg(file);
    match verb {
        "diff" => command.args(["--from", "0s"]),
        // A refused file leaves no output.
        "inefficient" => command.arg("-o").arg(file.with_extension("marked")),
        _ => &mut command,
    };
    output(&mut command)
}

/// What a file is, without reading all of it.
fn looks(path: &Path) -> (u64, std::time::SystemTime) {
    let metadata = fs::metadata(path).expect("a file");
    (metadata.len(), metadata.modified().expect("a time"))
}

/// Commands of two files, and one that may change its file, of a file and one that is good.
fn commands_of_two(path: &Path) -> Vec<(&'static str, Output)> {
    let folder = Folder::new();
    let good = folder.path().join("good.csv");
    fs::write(&good, format!("{HEADER}{}", rows().concat())).expect("written");
    let run = |arguments: &[&Path]| {
        let mut command = Command::new(tracer_path());
        output(command.args(arguments).current_dir(folder.path()))
    };
    let [compare, diff, inefficient, in_place] = ["compare", "diff", "inefficient", "--in-place"].map(Path::new);
    vec![
        ("compare with it", run(&[compare, &good, path])),
        ("compare of it", run(&[compare, path, &good])),
        ("diff with it", run(&[diff, &good, path])),
        ("diff of it", run(&[diff, path, &good])),
        ("inefficient in place", run(&[inefficient, path, in_place])),
    ]
}

/// Every command refuses the file with one line, which names it.
fn assert_refused(path: &Path, says: &str) {
    let before = looks(path);
    let outputs = VERBS.map(|verb| (verb, command(verb, path)));
    for (verb, output) in outputs.into_iter().chain(commands_of_two(path)) {
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{verb} of {}: {said}", path.display());
        let name = path.file_name().expect("a name").to_string_lossy();
        assert!(said.contains(says) && said.contains(&*name), "{verb} of {}: {said}", path.display());
        assert_eq!(said.lines().count(), 1, "{verb}: {said}");
    }
    assert_eq!(looks(path), before, "{}", path.display());
}

struct Files(Folder);

impl Files {
    fn file(&self, name: &str, text: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, text).expect("written");
        path
    }

    /// Text, and then nothing for 8 GiB.
    fn huge(&self, name: &str, text: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        let mut file = File::create(&path).expect("a file");
        file.write_all(text).expect("written");
        file.set_len(HUGE_BYTES).expect("a large file");
        path
    }
}

/// Less than a thread's stack has.
const THREADLESS_BYTES: u64 = 2 << 20;

/// Where no thread can be started that is said in a sentence, as any error is.
#[test]
fn no_room_for_a_thread() {
    let folder = Folder::new();
    let good = folder.path().join("good.csv");
    fs::write(&good, format!("{HEADER}{}", rows().concat())).expect("written");
    let output = output_within(Command::new(tracer_path()).arg("leaks").arg(&good), THREADLESS_BYTES);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("cannot start a thread"), "{said}");
}

#[test]
fn foreign_files_are_refused() {
    let files = Files(Folder::new());
    assert_refused(&files.file("empty.csv", b""), "is no dump");
    assert_refused(&files.file("other.csv", b"a,b,c\n1,2,3\n"), "is no dump");
    let header = HEADER.replace("Event Type", "Kind");
    assert_refused(&files.file("header.csv", header.as_bytes()), "column 3 is `Kind` instead of `Event Type`");
    assert_refused(&files.file("noise.csv", &[0xff; 5000]), "is no dump");
    let sqlite = [b"SQLite format 3\0".as_slice(), &[7; 5000]].concat();
    assert_refused(&files.file("torn.db", &sqlite), "cannot read database");
    let cell = format!("{HEADER}1,MSTX,Mark,\"{}\n", "x".repeat(5 << 20));
    assert_refused(&files.file("cell.csv", cell.as_bytes()), "line 2");
}

/// Every command that reads files refuses, in one sentence, a database with a column whose name is no text.
#[test]
fn columns_that_are_no_text_are_refused() {
    const COLUMNS: &str = "\"ID\",\"Event\",\"Event@@\",\"Name\",\"Timestamp(ns)\",\"Process Id\",\"Thread Id\",\"Device Id\",\"Ptr\",\
        \"Attr\",\"Call Stack(Python)\",\"Call Stack(C)\"";
    let files = Files(Folder::new());
    let path = files.0.path().join("memscope_dump_1.db");
    let database = rusqlite::Connection::open(&path).expect("a database");
    database.execute_batch(&format!("CREATE TABLE memscope_dump ({COLUMNS})")).expect("a table");
    drop(database);
    let mut bytes = fs::read(&path).expect("readable");
    let marker = bytes.windows(2).position(|pair| pair == b"@@").expect("the name");
    bytes[marker..marker + 2].copy_from_slice(b"\xff\xfe");
    fs::write(&path, bytes).expect("written");
    assert_refused(&path, "column 3 of `memscope_dump` is `Event");
}

/// 8 GiB of nothing are no reason to read, or to keep, 8 GiB.
#[test]
fn huge_files_are_refused_soon() {
    let files = Files(Folder::new());
    assert_refused(&files.huge("zeros.csv", b""), "is no dump");
    let begun = format!("{HEADER}{}", rows().concat());
    assert_refused(&files.huge("begun.csv", begun.as_bytes()), "line 5");
    assert_refused(&files.huge("begun.db", b"SQLite format 3\0"), "cannot read database");
}

fn held(path: &Path) -> (Value, String) {
    let before = fs::read(path).expect("a file");
    let output = output(Command::new(tracer_path()).arg("leaks").arg(path).arg("--json"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let document = document(&output.stdout);
    let held = document["findings"].as_array().expect("findings").iter().find(|found| found["finding"] == "held");
    assert!(fs::read(path).expect("a file") == before, "{} was changed", path.display());
    (held.unwrap_or_else(|| panic!("nothing held: {document:#}")).clone(), said)
}

/// What can be put right is, and it is said: the account is that of the whole file each time.
#[test]
fn repairs_are_stated() {
    let files = Files(Folder::new());
    let [first, second, free] = rows();
    let later = row(4, "MALLOC", 40, 3);
    let torn = &later[..later.len() / 2];
    let backwards = row(3, "FREE", 5, 1);
    for (name, text, says) in [
        ("good.csv", [&first[..], &second, &free].concat(), ""),
        ("reordered.csv", [&free[..], &second, &first].concat(), ""),
        ("twice.csv", [&first[..], &second, &first, &free, &free].concat(), "2"),
        ("torn.csv", [&first[..], &second, &free, torn].concat(), "torn"),
        ("backwards.csv", [&first[..], &second, &backwards].concat(), "backwards"),
    ] {
        let (held, said) = held(&files.file(name, format!("{HEADER}{text}").as_bytes()));
        let figures = ["blocks", "size_bytes", "allocations", "frees"].map(|key| held[key].as_u64());
        assert_eq!(figures, [1, 512, 2, 1].map(Some), "{name}: {held:#}");
        assert!(said.contains(says) && said.is_empty() == says.is_empty(), "{name}: {said}");
    }
}

/// A capture that ends early, or goes on with nothing for 8 GiB, is good up to there; one that is noise is none.
#[test]
fn captures() {
    let run = Tracer::run("steps", &[]).option("--json").succeed();
    let capture = run.folder.capture();
    let whole = fs::read(&capture).expect("a capture");
    let files = Files(Folder::new());
    let events = |path: &Path| {
        let before = looks(path);
        let output = output(Command::new(tracer_path()).args(["leaks", "--json"]).arg(path));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        assert_eq!(looks(path), before);
        let document = document(&output.stdout);
        let all = document["findings"].as_array().expect("findings").iter();
        (
            all.filter(|found| found["finding"] == "held")
                .map(|held| held["allocations"].as_u64().expect("a number"))
                .sum::<u64>(),
            said,
        )
    };
    let (all, said) = events(&capture);
    assert!(all > 0 && said.is_empty(), "{said}");
    let (fewer, said) = events(&files.file("torn.capture", &whole[..whole.len() - 100]));
    assert!(fewer <= all && said.contains("is torn at byte"), "{said}");
    let (same, said) = events(&files.huge("zeros.capture", &whole));
    assert!(same == all && said.contains(&format!("is torn at byte {}", whole.len())), "{same} of {all}: {said}");
    assert_refused(&files.huge("nothing.capture", b""), "");
}
