//! What was typed: the answers of the program to slips of the hand and to inputs that are no files. Needs no rights.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use memscope_tests::harness::document::document;
use memscope_tests::harness::tracer::tracer_path;
use tempfile::TempDir;

/// What came of a command.
struct Said {
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Said {
    #[track_caller]
    fn assert_error(&self, status: i32, parts: &[&str]) {
        assert_eq!(self.status, Some(status), "{}", self.stderr);
        for part in parts {
            assert!(self.stderr.contains(part), "no `{part}` in: {}", self.stderr);
        }
    }
}

/// Runs the program in `folder`, for at most half a minute.
fn memscope<S: AsRef<OsStr>>(program: &Path, arguments: &[S], folder: &Path) -> Said {
    let mut command = Command::new("timeout");
    command.arg("30").arg(program).args(arguments).current_dir(folder);
    command.env_remove("MEMSCOPE_SIM_DIR").env("PATH", search_path(folder));
    let output = command.output().expect("timeout");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Said { status: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

/// The folder's own programs first.
fn search_path(folder: &Path) -> String {
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default())
}

fn folder() -> TempDir {
    TempDir::new().expect("temporary folder")
}

/// Of a simulated program of six steps, each of which leaves 1 MiB behind; made by an earlier version.
fn recording() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("captures/steps.capture")
}

/// Makes sure that a mistyped command is not executed, although a program of that name is in PATH, and that under
/// msMemScope's name a word is a program.
#[test]
fn mistyped_commands_are_not_executed() {
    let folder = folder();
    let script = folder.path().join("live");
    fs::write(&script, "#!/bin/sh\ntouch was-executed\n").expect("a script");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("executable");
    for arguments in [&["live"][..], &["--events=alloc", "live"], &["live", "--", "x"]] {
        let said = memscope(&tracer_path(), arguments, folder.path());
        said.assert_error(2, &["no such command: `live`", "did you mean `top`?", "run -- live"]);
        assert_eq!(said.stdout, "");
    }
    let link = folder.path().join("msmemscope");
    symlink(tracer_path(), &link).expect("a link");
    memscope(&link, &["no-such-program"], folder.path()).assert_error(127, &["program not found: `no-such-program`"]);
    let names: Vec<_> =
        fs::read_dir(folder.path()).expect("entries").map(|entry| entry.expect("entry").file_name()).collect();
    assert_eq!(names.len(), 2, "only the script and the link: {names:?}");
}

/// No command waits for a pipe without a writer, wherever one is given.
#[test]
fn pipes_are_refused_at_once() {
    let folder = folder();
    let made = Command::new("mkfifo").arg(folder.path().join("p")).arg(folder.path().join("p.capture")).status();
    assert!(made.expect("mkfifo").success());
    let capture = recording();
    let capture = capture.to_str().expect("plain");
    for arguments in [
        &["replay", "p"][..],
        &["recover", "."],
        &["leaks", "p"],
        &["peaks", "p"],
        &["fragmentation", "p"],
        &["inefficient", "p"],
        &["decompose", "p"],
        &["export", "p"],
        &["compare", "p", capture],
        &["diff", capture, "p"],
        &["decompose", "--rules", "p", capture],
        &["replay", "--analysis=peaks", "--decompose-rules", "p", capture],
        &["run", "--probes", "p", "--", "true"],
        &["doctor", "--library", "p"],
    ] {
        let said = memscope(&tracer_path(), arguments, folder.path());
        assert!(matches!(said.status, Some(1 | 2)), "{arguments:?}: {:?} {}", said.status, said.stderr);
        let reported: Vec<&str> = said.stderr.lines().filter(|line| line.contains("Error")).collect();
        assert!(
            matches!(reported.as_slice(), [line] if line.contains("it is a pipe, and a regular file is needed")),
            "{reported:?}"
        );
    }
    memscope(&tracer_path(), &["replay", "/dev/zero"], folder.path()).assert_error(1, &["it is a device"]);
}

/// Makes sure that a program without a source tree has a demo, on its first screen: of 20 validations (`demo/train.py`) each keeps four tensors of
/// two blocks, the result of `relu` and the sum; the first step is a warm-up, and the last is not judged. It is called a recording, and small.
#[test]
fn demo_without_a_source_tree() {
    let recording = Path::new(env!("CARGO_MANIFEST_DIR")).join("../memscope-user/demo/torch.capture");
    assert!(fs::metadata(recording).expect("the recording").len() < 200 << 10);
    let folder = folder();
    let installed = folder.path().join("memscope-bpf");
    fs::copy(tracer_path(), &installed).expect("a copy");
    let mut command = Command::new(&installed);
    command.arg("demo").current_dir(folder.path()).env("LC_ALL", "C.UTF-8");
    let said = command.env_remove("MEMSCOPE_SIM_DIR").env_remove("MEMSCOPE_REPORT").output().expect("the demo");
    let [stdout, stderr] = [&said.stdout, &said.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(said.status.success(), "{stderr}");
    assert!(stderr.contains("this is a recording: nothing runs and nothing is traced here"), "{stderr}");
    let first = stdout.lines().find(|line| line.starts_with(" #1 ")).unwrap_or_default();
    assert!(first.contains(" in 72 blocks of 18 steps (2 to 19) "), "{stdout}");
    let place = "\n     train.py:20  Block.forward\n     train.py:31  Model.forward\n     train.py:37  validate\n";
    assert!(stdout.contains(place), "{stdout}");
    assert!(stdout.contains("still held by: __main__.history[*] → NllLossBackward0 → "), "{stdout}");
    assert!(!stdout.contains("/home/") && !stdout.contains("/root/"), "a path of the machine that made it: {stdout}");
}

fn only_dump(folder: &Path) -> PathBuf {
    let found = Command::new("find").arg(folder).args(["-name", "memscope_dump_*.csv"]).output().expect("find");
    PathBuf::from(String::from_utf8_lossy(&found.stdout).trim())
}

/// Makes sure that a second copy names the way out, that the way works, and that the dump itself is not overwritten.
#[test]
fn second_copy_names_the_way_out() {
    let folder = folder();
    let capture = recording();
    let said = memscope(&tracer_path(), &[OsStr::new("replay"), capture.as_os_str()], folder.path());
    assert_eq!(said.status, Some(0), "{}", said.stderr);
    let dump = only_dump(folder.path());
    let before = fs::read(&dump).expect("a dump");
    let dump = dump.to_str().expect("plain");
    for (command, copy) in [("inefficient", "a.csv"), ("decompose", "b.csv")] {
        let run = |more: &[&str]| memscope(&tracer_path(), &[&[command, dump][..], more].concat(), folder.path());
        assert_eq!(run(&["-o", copy]).status, Some(0));
        let again = run(&["-o", copy]);
        again.assert_error(1, &["exists already: overwrite it with --force, or name another file with --output-path"]);
        assert_eq!(again.stdout, "", "asked after the work");
        assert_eq!(run(&["--force", "-o", copy]).status, Some(0));
        run(&["--force", "-o", dump]).assert_error(1, &["is the dump itself"]);
    }
    assert_eq!(fs::read(dump).expect("a dump"), before);
}

/// Makes sure that folded text does not land in a file that claims to be something else, and that the file is named that is
/// written: one line, as all six blocks come from one call.
#[test]
fn export_refuses_a_wrong_extension() {
    let folder = folder();
    let capture = recording();
    let capture = capture.to_str().expect("plain");
    for name in ["x.html", "x.JSON", "x.svg", "x.pb.gz"] {
        let said = memscope(&tracer_path(), &["export", capture, "-o", name], folder.path());
        said.assert_error(2, &[name, "export writes folded stacks", "x"]);
        assert!(!folder.path().join(name).exists(), "{name}");
    }
    let said = memscope(&tracer_path(), &["export", capture, "-o", "x.folded"], folder.path());
    // What leaks, and what `aclFinalize` frees: both are held when the exit begins.
    said.assert_error(0, &["2 stack(s), folded, one a line, written to x.folded"]);
    let written = fs::read_to_string(folder.path().join("x.folded")).expect("written");
    let bytes = |line: &str| line.rsplit(' ').next().and_then(|bytes| bytes.parse::<u64>().ok());
    assert_eq!(written.lines().filter_map(bytes).collect::<Vec<_>>(), [6_291_648, 2_166_784]);
}

/// Makes sure that words of the reference that do nothing here are accepted with a warning, not refused.
#[test]
fn words_without_effect_are_warned_of() {
    let folder = folder();
    let capture = recording();
    let capture = capture.to_str().expect("plain");
    for (list, wanted) in
        [("alloc,none", "`none` clears the whole list"), ("traceback", "`traceback` has no effect here")]
    {
        let events = format!("--events={list}");
        let said = memscope(&tracer_path(), &["replay", "--ana=none", &events, capture], folder.path());
        said.assert_error(0, &["Warning: --events: ", wanted]);
    }
    for option in ["--load-api-env", "--unload-api-env"] {
        memscope(&tracer_path(), &[option], folder.path()).assert_error(0, &["no environment is needed"]);
    }
    memscope(&tracer_path(), &["--duration", "99999999h", "--", "true"], folder.path())
        .assert_error(2, &["`99999999h` is too long: a year (8760h) is the longest time"]);
}

/// Makes sure that `config.json` says what is collected (alloc 1, free 2, launch 4, access 8), which analyses widen, and what is written.
#[test]
fn configuration_has_what_is_collected() {
    let folder = folder();
    let capture = recording();
    let capture = capture.to_str().expect("plain");
    for (options, collected, written) in [
        (&["--ana=none"][..], 7, 7),
        (&["--ana=leaks"], 7, 7),
        (&["--ana=decompose"], 15, 7),
        (&["--ana=inefficient"], 15, 7),
        (&["--ana=none", "--events=free"], 3, 2),
    ] {
        let place = options.concat().replace("--", "");
        let line = [&["replay", "-o", &place][..], options, &[capture]].concat();
        memscope(&tracer_path(), &line, folder.path()).assert_error(0, &[]);
        let found =
            Command::new("find").arg(folder.path().join(&place)).args(["-name", "config.json"]).output().expect("find");
        let path = String::from_utf8_lossy(&found.stdout).trim().to_owned();
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{options:?}: {error}"));
        let configuration: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let bits = ["eventType", "dumpEventType"].map(|key| configuration[key].as_u64());
        assert_eq!(bits, [Some(collected), Some(written)], "{options:?}");
    }
}

/// Writes a snapshot of `PyTorch`: a block of 1 MiB stays, one of 64 KiB for each of `batch` comes and goes, and so does another one of 64 KiB with
/// `more`.
fn snapshot(folder: &Path, name: &str, batch: u32, more: bool) {
    const WRITE: &str = "
import pickle, sys
name, batch, more = sys.argv[1], int(sys.argv[2]), sys.argv[3] == 'true'
kib = 1 << 10
events = [('segment_alloc', 1 << 40, 64 * 1024 * kib), ('alloc', 1 << 40, 1024 * kib)]
for _ in range(3):
    for size in [64 * kib * batch] + [64 * kib] * more:
        events += [(action, 1 << 41, size) for action in ('alloc', 'free_requested', 'free_completed')]
trace = [dict(action=action, addr=addr, size=size, stream=0, time_us=at) for at, (action, addr, size) in enumerate(events)]
pickle.dump({'segments': [], 'device_traces': [trace]}, open(name, 'wb'), protocol=4)
";
    let mut write = Command::new("python3");
    write.args(["-c", WRITE, name, &batch.to_string(), &more.to_string()]).current_dir(folder);
    assert!(write.status().expect("an interpreter").success());
}

/// Makes sure that two recordings answer for a third batch size, and that what cannot be replayed is refused with its reason.
#[test]
fn changes_of_the_program() {
    let folder = folder();
    for (name, batch, more) in [("16", 16, false), ("32", 32, false), ("other", 32, true)] {
        snapshot(folder.path(), name, batch, more);
    }
    let what_if = |options: &[&str]| {
        let line = [&["whatif", "16", "--quick"], options].concat();
        memscope(&tracer_path(), &line, folder.path())
    };
    let said = what_if(&["--second", "32", "--batches", "16,32,48", "--json"]);
    said.assert_error(0, &[]);
    let found = document(said.stdout.as_bytes());
    let process = &found["processes"][0];
    let counts = ["growing", "uneven"].map(|key| process["scaled"][key].as_u64());
    assert_eq!(counts, [Some(3), Some(0)]);
    // 1 MiB and 48 · 64 KiB; torch_npu adds 32 bytes to each request, and its blocks are multiples of 512.
    let peak = &process["recorded"]["devices"][0]["allocated_peak_bytes"];
    let wanted = (1 << 20) + 512 + 48 * (64 << 10) + 512;
    assert_eq!((peak["least"].as_u64(), peak["most"].as_u64()), (Some(wanted), Some(wanted)));
    let text = what_if(&["--second", "32", "--batches", "16,32,48"]).stdout;
    assert!(text.contains("Requests are those of batch 48, by the recordings of 16 and 32: 3 of 4 change"), "{text}");
    assert!(text.contains("Changed, with the recorded settings: fits [estimate"), "{text}");
    let refusals: [(&[&str], i32, &[&str]); 6] = [
        (
            &["--second", "other", "--batches", "16,32,48"],
            1,
            &["the recordings differ behind 4 requests: its end in the first one"],
        ),
        (&["--second", "32"], 2, &["--batches"]),
        (&["--second", "32", "--batches", "16,16,48"], 2, &["the first two different"]),
        (&["--second", "none", "--batches", "16,32,48"], 1, &["none"]),
        (&["--empty-at", "steps"], 1, &["no such moment in the recording: --empty-at needs its steps or marks"]),
        (&["--empty-at", "step"], 2, &["`step` is not `steps`, `steps:NUMBER` or `mark:TEXT`"]),
    ];
    for (options, status, parts) in refusals {
        what_if(options).assert_error(status, parts);
    }
}
