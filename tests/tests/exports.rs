//! What `export` writes, as other programs read it: `protoc` and Python's `pickle` and `json`. Needs `MEMSCOPE_BIN`.

#[path = "browser/run.rs"]
mod run;

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use memscope_tests::harness::tracer::tracer_path;
use serde_json::Value;
use tempfile::TempDir;

/// 24 weights of 1 MiB, the activation of 4 MiB, five kept blocks of 256 KiB.
const AT_PEAK: u64 = (24 << 20) + (4 << 20) + 5 * (256 << 10);
/// The same weights, six activations, six kept blocks.
const ALLOCATED: u64 = (24 << 20) + 6 * (4 << 20) + 6 * (256 << 10);

/// `profile.proto` of github.com/google/pprof, as far as it is written.
const SCHEMA: &str = r#"syntax = "proto3";
message ValueType { int64 type = 1; int64 unit = 2; }
message Label { int64 key = 1; int64 str = 2; int64 num = 3; }
message Sample { repeated uint64 location_id = 1; repeated int64 value = 2; repeated Label label = 3; }
message Line { uint64 function_id = 1; int64 line = 2; }
message Location { uint64 id = 1; uint64 mapping_id = 2; uint64 address = 3; repeated Line line = 4; }
message Function { uint64 id = 1; int64 name = 2; int64 system_name = 3; int64 filename = 4; }
message Profile {
  repeated ValueType sample_type = 1; repeated Sample sample = 2; repeated Location location = 4; repeated Function function = 5;
  repeated string string_table = 6; int64 drop_frames = 7; int64 time_nanos = 9; int64 duration_nanos = 10;
  repeated int64 comment = 13; int64 default_sample_type = 14;
}
"#;

/// `perfetto/trace/trace.proto` of github.com/google/perfetto, as far as it is written.
const TRACE: &str = r#"syntax = "proto2";
message Clock { optional uint32 clock_id = 1; optional uint64 timestamp = 2; }
message ClockSnapshot { repeated Clock clocks = 1; }
message Process { optional int32 pid = 1; optional string process_name = 6; }
message Counter { optional uint32 unit = 3; }
message TrackDescriptor {
  optional uint64 uuid = 1; optional string name = 2; optional Process process = 3; optional uint64 parent_uuid = 5;
  optional Counter counter = 8; optional uint32 child_ordering = 11; optional int32 sibling_order_rank = 12;
}
message Annotation { optional uint64 uint_value = 3; optional string string_value = 6; optional string name = 10; }
message TrackEvent {
  repeated Annotation debug_annotations = 4; optional uint32 type = 9; optional uint64 name_iid = 10; optional uint64 track_uuid = 11;
  optional int64 counter_value = 30; optional uint64 callstack_iid = 56;
}
message Named { optional uint64 iid = 1; optional string str = 2; }
message Frame { optional uint64 iid = 1; optional uint64 function_name_id = 2; }
message Callstack { optional uint64 iid = 1; repeated uint64 frame_ids = 2; }
message InternedData {
  repeated Named event_names = 2; repeated Named function_names = 5; repeated Frame frames = 6; repeated Callstack callstacks = 7;
}
message Defaults { optional uint32 timestamp_clock_id = 58; }
message Packet {
  optional ClockSnapshot clock_snapshot = 6; optional uint64 timestamp = 8; optional uint32 trusted_packet_sequence_id = 10;
  optional TrackEvent track_event = 11; optional InternedData interned_data = 12; optional uint32 sequence_flags = 13;
  optional bool incremental_state_cleared = 41; optional Defaults trace_packet_defaults = 59; optional TrackDescriptor track_descriptor = 60;
}
message Trace { repeated Packet packet = 1; }
"#;

/// What a format makes of the made-up run.
fn export(format: &str, more: &[&str]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let (dump, out) = (folder.path().join("memscope_dump_1.csv"), folder.path().join("out"));
    std::fs::write(&dump, run::dump(false)).expect("a dump");
    let mut command = Command::new(tracer_path());
    let made = command.arg("export").arg(&dump).args(["--format", format, "-o"]).arg(&out).args(more).output();
    let made = made.expect("the program");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    (folder, out)
}

/// Runs a shell line with the file as its last argument.
fn output(command: &mut Command) -> String {
    let output = command.stderr(Stdio::inherit()).output().expect("the program");
    assert!(output.status.success(), "{command:?}");
    String::from_utf8(output.stdout).expect("text")
}

fn decoded(folder: &Path, profile: &Path) -> String {
    std::fs::File::create(folder.join("profile.proto"))
        .and_then(|mut file| file.write_all(SCHEMA.as_bytes()))
        .expect("a schema");
    let line = r#"gunzip -c < "$1" | protoc -I "$0" --decode=Profile profile.proto"#;
    output(Command::new("sh").args(["-c", line]).args([folder, profile]))
}

/// Sums of the four values of all samples.
fn sums(text: &str) -> [u64; 4] {
    let mut sums = [0; 4];
    for sample in text.split("\nsample {").skip(1) {
        let values = sample.lines().filter_map(|line| line.strip_prefix("  value: "));
        values.zip(&mut sums).for_each(|(value, sum)| *sum += value.parse::<u64>().expect("a number"));
    }
    sums
}

/// Live at the peak: 24 + 1 + 5 blocks; all: 24 + 6 + 6. The driver's bytes are in none of them.
#[test]
fn pprof_counts_each_byte_once() {
    let (folder, file) = export("pprof", &[]);
    let text = decoded(folder.path(), &file);
    assert_eq!(sums(&text), [30, AT_PEAK, 36, ALLOCATED]);
    for name in ["inuse_space", "Metrics.update", "/srv/model.py", "PTA", "npu:0"] {
        assert!(text.contains(&format!("string_table: \"{name}\"")), "{name}: {text}");
    }
    assert!(!text.contains("system_name") && !text.contains("\"HAL\""), "{text}");
}

/// When the last step has ended the activation has gone, and the sixth block is kept.
#[test]
fn pprof_of_another_moment() {
    let (folder, file) = export("pprof", &["--at", "end"]);
    let live = AT_PEAK - (4 << 20) + (256 << 10);
    assert_eq!(sums(&decoded(folder.path(), &file)), [30, live, 36, ALLOCATED]);
}

/// The numbers of all lines with this name.
fn numbers(text: &str, name: &str) -> Vec<u64> {
    let lines = text.lines().filter_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(": "));
    lines.map(|number| number.parse().expect("a number")).collect()
}

/// Every field is in the schema; each number of a track, name or stack is defined before its use, times never run backwards, slices of a
/// track open and close in turn; the counter of the pool has the peak, and ends with what stays.
#[test]
fn perfetto_traces_hold_together() {
    let (folder, file) = export("perfetto", &[]);
    std::fs::write(folder.path().join("trace.proto"), TRACE).expect("a schema");
    let line = r#"protoc -I "$0" --decode=Trace trace.proto < "$1""#;
    let text = output(Command::new("sh").args(["-c", line]).args([folder.path(), &file]));
    // What no schema names is written by its number.
    assert!(!text.lines().any(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit())), "{text}");
    let (mut tracks, mut names, mut stacks) = (vec![], vec![], vec![]);
    let (mut last_ns, mut open, mut values) = (0, std::collections::BTreeMap::<u64, i64>::new(), vec![]);
    let (mut pool, mut in_use) = (None, None);
    for packet in text.split("packet {").skip(1) {
        assert_eq!(numbers(packet, "trusted_packet_sequence_id"), [1], "{packet}");
        if packet.contains("track_descriptor {") {
            let ids = [numbers(packet, "uuid"), numbers(packet, "parent_uuid")];
            assert!(ids[1].iter().all(|parent| tracks.contains(parent)), "{packet}");
            if packet.contains("name: \"PTA\"") {
                pool = ids[0].first().copied();
            }
            if packet.contains("name: \"in use\"") && pool.is_some() && ids[1].first() == pool.as_ref() {
                in_use = ids[0].first().copied();
            }
            tracks.extend(ids[0].iter().copied());
        }
        for (kind, known) in [("event_names {", &mut names), ("callstacks {", &mut stacks)] {
            known.extend(packet.split(kind).skip(1).map(|part| numbers(part, "iid")[0]));
        }
        if packet.contains("track_event {") {
            let [time_ns] = numbers(packet, "timestamp")[..] else { panic!("no time: {packet}") };
            assert!(time_ns >= last_ns && numbers(packet, "sequence_flags") == [2], "{packet}");
            last_ns = time_ns;
            let track = numbers(packet, "track_uuid")[0];
            assert!(tracks.contains(&track), "{packet}");
            assert!(numbers(packet, "name_iid").iter().all(|name| names.contains(name)), "{packet}");
            assert!(numbers(packet, "callstack_iid").iter().all(|stack| stacks.contains(stack)), "{packet}");
            match numbers(packet, "type")[0] {
                1 => *open.entry(track).or_default() += 1,
                2 => *open.entry(track).or_default() -= 1,
                4 if in_use == Some(track) => values.extend(numbers(packet, "counter_value")),
                _ => {}
            }
            assert!(open.values().all(|open| matches!(open, 0 | 1)), "{packet}");
        }
    }
    assert!(!stacks.is_empty() && open.len() > 1 && open.values().all(|open| *open == 0), "{open:?}");
    assert_eq!(values.iter().max(), Some(&AT_PEAK), "{text}");
    assert_eq!(values.last(), Some(&(ALLOCATED - 6 * (4 << 20))), "{values:?}");
}

/// Each profile adds up, and each frame that it names is there.
#[test]
fn speedscope_profiles_add_up() {
    let (_folder, file) = export("speedscope", &[]);
    let read = Command::new("python3")
        .args(["-c", "import json, sys; print(json.dumps(json.load(open(sys.argv[1]))))"])
        .arg(file)
        .output();
    let file: Value = serde_json::from_slice(&read.expect("python3").stdout).expect("JSON");
    assert_eq!(file["$schema"], "https://www.speedscope.app/file-format-schema.json");
    let frames = file["shared"]["frames"].as_array().expect("frames").len() as u64;
    let sum = |profile: &Value| {
        let samples = profile["samples"].as_array().expect("samples");
        let numbers = samples.iter().flat_map(|sample| sample.as_array().expect("a stack"));
        assert!(numbers.clone().all(|number| number.as_u64().is_some_and(|number| number < frames)));
        let weights = profile["weights"].as_array().expect("weights");
        assert_eq!((weights.len(), &profile["unit"]), (samples.len(), &"bytes".into()));
        let sum: u64 = weights.iter().filter_map(Value::as_u64).sum();
        assert_eq!(profile["endValue"], sum);
        (profile["name"].as_str().expect("a name").rsplit(", ").next().expect("a moment").to_owned(), sum)
    };
    let profiles: Vec<(String, u64)> = file["profiles"].as_array().expect("profiles").iter().map(sum).collect();
    let end = AT_PEAK - (4 << 20) + (256 << 10);
    let expected = [("at the peak", AT_PEAK), ("at the end of the last step", end), ("all allocations", ALLOCATED)];
    assert_eq!(profiles, expected.map(|(name, bytes)| (name.to_owned(), bytes)));
}

/// The same input gives the same bytes; a page of ours is written over, another file is not; only its owner reads it.
#[test]
fn pages_are_written_with_care() {
    let folder = tempfile::tempdir().expect("a folder");
    let (dump, page) = (folder.path().join("memscope_dump_1.csv"), folder.path().join("report.html"));
    std::fs::write(&dump, run::dump(false)).expect("a dump");
    let report = || Command::new(tracer_path()).arg("report").arg(&dump).output().expect("the program");
    assert!(report().status.success());
    let first = std::fs::read(&page).expect("a page");
    assert_eq!(std::fs::metadata(&page).expect("a page").permissions().mode() & 0o777, 0o600);
    assert!(report().status.success());
    assert!(first == std::fs::read(&page).expect("a page"), "two pages of one run differ");
    std::fs::write(&page, "<!doctype html>mine").expect("a file");
    let refused = report();
    assert_eq!(refused.status.code(), Some(1));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("is no report of memscope-bpf, so it is not overwritten"), "{text}");
    assert_eq!(std::fs::read_to_string(&page).expect("a file"), "<!doctype html>mine");
}

/// Commands on files write the page as well, beside what they are of.
#[test]
fn html_beside_an_answer() {
    let folder = tempfile::tempdir().expect("a folder");
    let dump = folder.path().join("memscope_dump_1.csv");
    std::fs::write(&dump, run::dump(false)).expect("a dump");
    for command in ["leaks", "peaks", "decompose"] {
        let page = folder.path().join(format!("{command}.html"));
        let html = format!("--html={}", page.display());
        let made = Command::new(tracer_path()).arg(command).arg(&dump).arg(html).output().expect("the program");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        assert!(
            std::fs::read_to_string(&page)
                .expect("a page")
                .starts_with("<!doctype html>\n<!-- memscope-bpf report -->")
        );
    }
}

/// Without a name the page lies beside what it is of; that of the demo's recording, which is in no file, lies here.
#[test]
fn html_without_a_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let dump = folder.path().join("memscope_dump_1.csv");
    std::fs::write(&dump, run::dump(false)).expect("a dump");
    let page = folder.path().join("report.html");
    // An installed program has no simulated one beside it.
    let program = folder.path().join("memscope-bpf");
    std::fs::copy(tracer_path(), &program).expect("a copy");
    for arguments in
        [&["leaks", "memscope_dump_1.csv", "--html"][..], &["demo", "--html"], &["demo", "--html=report.html"]]
    {
        let mut command = Command::new(&program);
        command.args(arguments).current_dir(folder.path()).env_remove("MEMSCOPE_SIM_DIR");
        let made = command.output().expect("the program");
        assert!(made.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&made.stderr));
        let text = std::fs::read_to_string(&page).unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
        assert!(text.starts_with("<!doctype html>\n<!-- memscope-bpf report -->"), "{arguments:?}");
        std::fs::remove_file(&page).expect("removed");
    }
}

/// Python's own loader, and what a viewer takes: 4 segments, 30 live blocks, and the trace up to the end of the last step.
#[test]
fn snapshot_is_loaded_by_python() {
    const READ: &str = "
import collections, json, pickle, sys
snapshot = pickle.load(open(sys.argv[1], 'rb'))
trace = snapshot['device_traces'][0]
blocks = [block for segment in snapshot['segments'] for block in segment['blocks']]
live = [block for block in blocks if block['state'] == 'active_allocated']
for segment in snapshot['segments']:
    assert segment['total_size'] == sum(block['size'] for block in segment['blocks']), segment
    assert segment['allocated_size'] == sum(block['size'] for block in segment['blocks'] if block['state'] != 'inactive')
print(json.dumps([len(snapshot['segments']), len(live), sum(block['size'] for block in live),
    dict(collections.Counter(entry['action'] for entry in trace)), live[0]['frames'], [entry['action'] for entry in trace[:2]]]))
";
    let (_folder, file) = export("snapshot", &[]);
    let text = output(Command::new("python3").args(["-c", READ]).arg(file));
    let found: Value = serde_json::from_str(&text).expect("JSON");
    // Blocks lie in three of the four driver blocks: a fourth that no pool hands out of is none of its segments.
    let end = AT_PEAK - (4 << 20) + (256 << 10);
    let actions = serde_json::json!({ "segment_alloc": 3, "alloc": 36, "free_requested": 6, "free_completed": 6 });
    let frames = serde_json::json!([
        { "name": "__init__", "filename": "/srv/model.py", "line": 7 },
        { "name": "<module>", "filename": "/srv/train.py", "line": 3 },
    ]);
    assert_eq!(found, serde_json::json!([3, 30, end, actions, frames, ["segment_alloc", "segment_alloc"]]));
}

/// What an installed program does for `demo`: one outside of the source tree, as a user has it.
fn demo(folder: &Path, options: &[&str]) -> String {
    let program = folder.join("memscope-bpf");
    std::fs::copy(tracer_path(), &program).expect("a copy");
    let mut command = Command::new(&program);
    command.arg("demo").args(options).env("LC_ALL", "C.UTF-8");
    command.env_remove("MEMSCOPE_REPORT").env_remove("MEMSCOPE_SIM_DIR").current_dir(folder);
    let made = command.output().expect("the program");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    String::from_utf8(made.stdout).expect("text")
}

/// A file of the repository.
fn own(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)).expect("a file")
}

/// The screen in the readme, and in its picture, is what an installed program prints: `./x pictures` writes both.
#[test]
fn the_readme_has_todays_screen() {
    let folder = tempfile::tempdir().expect("a folder");
    let screen = demo(folder.path(), &[]);
    let expected = format!("```text\n$ memscope-bpf demo\n{}\n```", screen.trim_end());
    assert!(screen.contains("LEAK"), "{screen}");
    for readme in ["README.md", "README.zh-CN.md"] {
        assert!(own(readme).contains(&expected), "{readme}: `./x pictures` writes this:\n{screen}");
    }
    let picture = own("docs/pictures/demo.svg");
    let lines: Vec<&str> = picture.lines().filter_map(|line| line.split_once('>')?.1.strip_suffix("</text>")).collect();
    let shown: Vec<&str> = screen.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(lines[1..], shown, "`./x pictures` draws it");
}

/// The picture of the page is of the page that today's program makes: the same input gives the same bytes.
#[test]
fn the_picture_is_of_todays_page() {
    let folder = tempfile::tempdir().expect("a folder");
    demo(folder.path(), &["--html=page.html"]);
    let sums = Command::new("sha256sum").arg(folder.path().join("page.html")).output().expect("sha256sum");
    let sums = String::from_utf8(sums.stdout).expect("text");
    let sum = own("docs/pictures/page.sha256");
    assert_eq!(sums.split_whitespace().next(), Some(sum.trim()), "`./x pictures` takes it");
}
