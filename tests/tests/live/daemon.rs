//! Scripts without rights of their own, traced by the daemon: rows against what was worked out by hand, and peers that mean harm.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use memscope_tests::harness::daemon::{Daemon, Script};
use memscope_tests::harness::pythons::interpreters;
use memscope_tests::harness::rows::Rows;
use memscope_tests::harness::terminal::obeyed;
use memscope_tests::harness::tracer::{Folder, Target, Tracer, python_package, workload_path};
use memscope_tests::harness::user::User;
use nix::sys::signal::Signal;

/// What `window` is to show: what was between start and stop.
const WINDOW: [&str; 5] = ["START_TRACE", "MALLOC 2000", "FREE 2000", "STEP", "STOP_TRACE"];

/// The rows of a process in a few words, in the order of their numbers.
fn reported(rows: &Rows, pid: u32) -> Vec<String> {
    let brief = |row: &memscope_tests::harness::rows::Row| match row.event.as_str() {
        "MALLOC" | "FREE" => format!("{} {}", row.event, row.number("size")),
        "SYSTEM" => row.event_type.clone(),
        other => format!("{other} {}", row.name.as_deref().unwrap_or("-")),
    };
    rows.processes.get(&pid).map(|rows| rows.iter().map(brief).collect()).unwrap_or_default()
}

/// Lets a waiting script go on.
fn go(target: &Target) {
    fs::write(target.folder.path().join("go"), "").expect("a file");
}

/// The one line of the tool in a script's messages.
fn line_of(target: &Target) -> String {
    let said = target.stderr();
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("[msmemscope]")).collect();
    assert_eq!(lines.len(), 1, "{said}");
    lines[0].to_owned()
}

/// All files and folders below one, and itself.
fn below(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![folder.to_owned()];
    if folder.symlink_metadata().expect("metadata").is_dir() {
        found.extend(fs::read_dir(folder).expect("a folder").flat_map(|entry| below(&entry.expect("an entry").path())));
    }
    found
}

/// The text of the one report.
fn report_in(folder: &Path) -> String {
    let is_report = |path: &PathBuf| path.to_str().is_some_and(|path| path.ends_with(".report.txt"));
    let reports: Vec<PathBuf> = below(folder).into_iter().filter(is_report).collect();
    assert_eq!(reports.len(), 1, "{reports:?}");
    fs::read_to_string(&reports[0]).expect("a report")
}

/// A script that just runs has its window traced, whatever the interpreter; the journal knows of all three allocations.
#[test]
fn daemon_traces_a_script() {
    let daemon = Daemon::start(&[]);
    for python in interpreters() {
        let script = Script::new("window", &daemon.socket()).with(&python).set("output_path=output");
        let target = script.finish();
        assert!(!target.stderr().contains("[msmemscope]"), "{python:?} {}", target.stderr());
        daemon.wait_for_end_of(target.pid());
        assert_eq!(reported(&target.folder.rows(), target.pid()), WINDOW, "{python:?} {}", daemon.messages());
        let journal = target.folder.journal();
        let sizes: Vec<u64> =
            journal.entries.iter().filter(|entry| entry.symbol == "halMemAlloc").map(|entry| entry.args[0]).collect();
        assert_eq!(sizes, [1000, 2000, 3000], "{python:?}");
        assert!(report_in(&target.folder.output_path()).contains("lost: 0 (ring full), 0 (any other reason)"));
    }
}

/// Settings are the script's, also without `config()`: then the reference's folder for outputs, where the script is.
#[test]
fn daemon_traces_as_the_script_wants() {
    let daemon = Daemon::start(&[]);
    let target = Script::new("window", &daemon.socket()).finish();
    daemon.wait_for_end_of(target.pid());
    let rows = Rows::read(&target.folder.path().join("memscopeDumpResults"));
    assert_eq!(reported(&rows, target.pid()), WINDOW);
    let script = Script::new("window", &daemon.socket()).set("output_path=./a/../output").set("events=free,traceback");
    let target = script.set("format=db").finish();
    daemon.wait_for_end_of(target.pid());
    let rows = target.folder.rows();
    assert!(rows.files.iter().all(|file| file.extension().is_some_and(|kind| kind == "db")), "{:?}", rows.files);
    assert_eq!(reported(&rows, target.pid()), ["START_TRACE", "FREE 2000", "STEP", "STOP_TRACE"]);
}

/// With `MEMSCOPE_BPF_EARLY=1` the tracer comes with `config()`: a block that lives at `start()` has a row, with its size.
#[test]
fn daemon_comes_early() {
    let daemon = Daemon::start(&[]);
    for (early, rows) in [
        ("MEMSCOPE_BPF_EARLY=0", &["START_TRACE", "STOP_TRACE"][..]),
        ("MEMSCOPE_BPF_EARLY=1", &["MALLOC 1000", "START_TRACE", "FREE 1000", "STOP_TRACE"]),
    ] {
        let script = Script::new("older", &daemon.socket()).set("output_path=output");
        let target = script.below(Path::new("/usr/bin/env"), &[early]).finish();
        assert!(!target.stderr().contains("[msmemscope]"), "{}", target.stderr());
        daemon.wait_for_end_of(target.pid());
        assert_eq!(reported(&target.folder.rows(), target.pid()), rows, "{early}");
    }
}

/// A tracer that comes with `start()` knows the labels from before at once.
#[test]
fn daemon_traces_with_labels_from_before() {
    let daemon = Daemon::start(&[]);
    let script = Script::new("labelled", &daemon.socket()).set("analysis=decompose").set("output_path=output");
    let target = script.finish();
    daemon.wait_for_end_of(target.pid());
    let rows = target.folder.rows();
    let owners: Vec<(u64, &str)> = rows
        .all()
        .filter(|row| row.event == "MALLOC")
        .map(|row| (row.number("size"), row.attr.get("owner").map_or("", String::as_str)))
        .collect();
    assert_eq!(owners, [(2000, "CANN@APP@early@range"), (3000, "CANN@APP@early")]);
}

/// Each has a tracer of its own, though both use the same files; and so has a third that comes while they are traced.
#[test]
fn daemon_traces_two_at_once() {
    let daemon = Daemon::start(&[]);
    let start = || Script::new("waits", &daemon.socket()).set("output_path=output").start("ready ");
    let mut targets = [start(), start()];
    daemon.wait_for("is traced by", 2);
    targets.iter().for_each(go);
    for target in &mut targets {
        assert!(target.wait().success(), "{}", target.stderr());
        daemon.wait_for_end_of(target.pid());
        let rows = target.folder.rows();
        assert_eq!(rows.processes.keys().collect::<Vec<_>>(), [&target.pid()]);
        let expected = ["START_TRACE", "MALLOC 2000", "FREE 2000", "MALLOC 4000", "FREE 4000", "STOP_TRACE"];
        assert_eq!(reported(&rows, target.pid()), expected);
    }
}

/// A child is its parent's tracer's.
#[test]
fn daemon_traces_children_once() {
    let daemon = Daemon::start(&[]);
    let target = Script::new("forks", &daemon.socket()).set("output_path=output").finish();
    daemon.wait_for_end_of(target.pid());
    assert_eq!(daemon.messages().matches("is traced by").count(), 1, "{}", daemon.messages());
    let rows = target.folder.rows();
    let child = *rows.processes.keys().find(|pid| **pid != target.pid()).expect("the child");
    assert!(reported(&rows, child).contains(&"MALLOC 6000".to_owned()), "{:?}", reported(&rows, child));
}

/// A process traced by another tracer is not traced twice.
#[test]
fn daemon_leaves_traced_processes_alone() {
    let daemon = Daemon::start(&[]);
    let place = tempfile::tempdir().expect("a folder");
    let script = place.path().join("daemon.py");
    fs::write(&script, include_str!("../../workloads/daemon.py")).expect("the workload");
    let python = interpreters().pop().expect("an interpreter");
    let arguments = ["-B", script.to_str().expect("a plain path"), "window", "output_path=other"];
    let tracer = Tracer::run_program(&python.path, &arguments).env("PYTHONPATH", python_package());
    let run = tracer.env("MEMSCOPE_BPF_SOCKET", daemon.socket()).succeed();
    assert!(!run.stderr.contains("[msmemscope]"), "{}", run.said());
    let rows = run.rows();
    let pid = *rows.processes.keys().next().expect("a process");
    assert_eq!(reported(&rows, pid), WINDOW);
    assert!(!run.folder.path().join("other").exists());
    assert!(!daemon.messages().contains("is traced by"), "{}", daemon.messages());
}

/// Another pid and mount namespace: the path is the script's, the numbers are those out here. Databases are written into there as well.
#[test]
fn daemon_traces_in_a_container() {
    let daemon = Daemon::start(&[]);
    for (format, lines) in [("csv", 1), ("db", 2)] {
        // A folder that is only in there.
        let folder = Folder::new();
        let inside = folder.path().join("mounted");
        fs::create_dir(&inside).expect("a folder");
        let contain = ["--bind", inside.to_str().expect("a plain path")];
        let script =
            Script::new("window", &daemon.socket()).set("output_path=mounted/output").set(format!("format={format}"));
        let mut target = script.below(&workload_path("contain"), &contain).start_in(folder, "end\n");
        assert!(target.wait().success(), "{}", target.stderr());
        daemon.wait_for("the tracer of process ", lines);
        let rows = Rows::read(&inside.join("output"));
        let [pid] = rows.processes.keys().copied().collect::<Vec<_>>()[..] else { panic!("not one process: {rows:?}") };
        assert_eq!(reported(&rows, pid), WINDOW, "{}", target.stderr());
        assert!(daemon.messages().contains(&format!("process {pid} of user 0 is traced")), "{}", daemon.messages());
    }
}

/// Without a daemon there is one line, and the script goes on.
#[test]
fn no_daemon() {
    let folder = Folder::new();
    let target = Script::new("window", &folder.path().join("none")).set("output_path=output").finish();
    assert!(line_of(&target).starts_with("[msmemscope] Warn: no tracer is there"), "{}", target.stderr());
    assert!(!target.folder.output_path().exists());
}

/// What was traced until the daemon was killed is written, and the script neither ends nor stops.
#[test]
fn daemon_killed() {
    let mut daemon = Daemon::start(&[]);
    let mut target = Script::new("twice", &daemon.socket()).set("output_path=output").start("ready ");
    let _ = daemon.end(Signal::SIGKILL);
    let report = || {
        below(&target.folder.output_path()).into_iter().any(|path| {
            path.to_str().is_some_and(|path| path.ends_with(".report.txt"))
                && fs::metadata(&path).is_ok_and(|about| about.len() > 0)
        })
    };
    for _ in 0..20_000 {
        if report() {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(report(), "the tracer goes on");
    go(&target);
    assert!(target.wait().success(), "{}", target.stderr());
    assert!(line_of(&target).starts_with("[msmemscope] Warn: no tracer is there"), "{}", target.stderr());
    assert_eq!(reported(&target.folder.rows(), target.pid()), ["START_TRACE", "MALLOC 2000", "FREE 2000"]);
}

/// A daemon that ends takes its tracers along, in order, and its socket; a new one takes its place.
#[test]
fn daemon_ends_and_comes_back() {
    let mut daemon = Daemon::start(&[]);
    let mut target = Script::new("twice", &daemon.socket()).set("output_path=output").start("ready ");
    let socket = daemon.socket();
    assert!(daemon.end(Signal::SIGTERM).success(), "{}", daemon.messages());
    assert!(!socket.exists());
    assert_eq!(reported(&target.folder.rows(), target.pid()), ["START_TRACE", "MALLOC 2000", "FREE 2000"]);
    // Numbers of rows start again.
    fs::rename(target.folder.output_path(), target.folder.path().join("first")).expect("renamed");
    let again = Daemon::start(&[]);
    symlink(again.socket(), &socket).expect("a link");
    go(&target);
    assert!(target.wait().success(), "{}", target.stderr());
    assert!(!target.stderr().contains("[msmemscope]"), "{}", target.stderr());
    again.wait_for_end_of(target.pid());
    let rows = target.folder.rows();
    // There was another window before, which began while no tracer was there.
    assert_eq!(reported(&rows, target.pid()), ["START_TRACE", "MALLOC 5000", "FREE 5000", "STOP_TRACE"]);
}

/// An ordinary user is traced, and all that is written is that user's.
#[test]
fn daemon_traces_a_user() {
    let (user, daemon) = (User::new(), Daemon::start(&[]));
    let target = Script::new("window", &daemon.socket()).by(&user).set("output_path=deep/output").finish();
    assert!(!target.stderr().contains("[msmemscope]"), "{}", target.stderr());
    daemon.wait_for_end_of(target.pid());
    let output = target.folder.path().join("deep/output");
    assert_eq!(reported(&Rows::read(&output), target.pid()), WINDOW);
    let files = below(&target.folder.path().join("deep"));
    // Two folders, those of process and tracer with settings, log and dump, the capture, the report.
    assert!(files.len() > 8, "{files:?}");
    for path in files {
        let about = path.symlink_metadata().expect("metadata");
        assert_eq!((about.uid(), about.gid(), about.mode() & 0o007), (User::ID, User::ID, 0), "{}", path.display());
    }
}

/// What a traced script starts as its own user is its tracer's; what has other rights (set-uid programs) leaves the trace, and is traced for
/// its own user if it asks.
#[test]
fn daemon_leaves_other_users_alone() {
    let (user, daemon) = (User::new(), Daemon::start(&[]));
    let become_other = format!("{} {} /bin/sh -c", user.workload("become", 0o4755).display(), User::ID + 1);
    for (program, tracers, place) in [("/bin/sh -c", 1, "output"), (become_other.as_str(), 3, "other")] {
        let folder = Folder::new();
        let script = Script::new("runs", &daemon.socket()).by(&user).set("output_path=output");
        let again = format!("exec {} -B daemon.py window output_path=other", script.python().display());
        let libraries = user.libraries();
        let variables = format!("ASCEND_SIM_JOURNAL= LD_LIBRARY_PATH={}", libraries.display());
        fs::write(folder.path().join("command"), format!("{program} 'sleep 1; {variables} {again}'"))
            .expect("a command");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("changed rights");
        let mut target = script.start_in(folder, "end\nend\n");
        assert!(target.wait().success(), "{}", target.stderr());
        assert!(!target.stderr().contains("[msmemscope]"), "{}", target.stderr());
        // Of this and the earlier ones.
        daemon.wait_for("has ended", tracers);
        assert_eq!(daemon.messages().matches("is traced by").count(), tracers, "{}", daemon.messages());
        let own = target.folder.rows();
        assert_eq!(reported(&own, target.pid())[..2], ["START_TRACE", "MALLOC 2000"]);
        let rows = Rows::read(&target.folder.path().join(place));
        let child = *rows.processes.keys().find(|pid| **pid != target.pid()).expect("the child");
        assert_eq!(reported(&rows, child), WINDOW, "{program}");
        assert_eq!(own.processes.contains_key(&child), place == "output", "{program}");
    }
}

/// Where the user may not write, the tracer does not either: neither by the path itself, nor through a link.
#[test]
fn daemon_writes_with_the_users_rights() {
    let (user, daemon) = (User::new(), Daemon::start(&[]));
    let roots = tempfile::tempdir().expect("a folder");
    fs::set_permissions(roots.path(), fs::Permissions::from_mode(0o755)).expect("changed rights");
    let direct = roots.path().to_str().expect("a plain path").to_owned();
    for (output, below_it) in [(direct.as_str(), "/x"), ("link", ""), ("link", "/x")] {
        let folder = Folder::new();
        symlink(roots.path(), folder.path().join("link")).expect("a link");
        let script = Script::new("window", &daemon.socket()).by(&user).set(format!("output_path={output}{below_it}"));
        let mut target = script.start_in(folder, "end\n");
        assert!(target.wait().success(), "{}", target.stderr());
        assert!(line_of(&target).contains("Permission denied"), "{}", target.stderr());
        assert_eq!(fs::read_dir(roots.path()).expect("a folder").count(), 0, "{output}{below_it}");
    }
}

/// Beyond the limit there is a line that names it; when there is room again, there is a tracer again.
#[test]
fn daemon_limits_a_user() {
    let daemon = Daemon::start(&["--max-targets-per-user", "1"]);
    let script = |scenario| Script::new(scenario, &daemon.socket()).set("output_path=output");
    let mut first = script("waits").start("ready ");
    let second = script("window").finish();
    let why = "user 0 has 1 processes traced, which is the limit (--max-targets-per-user).";
    assert!(line_of(&second).ends_with(why), "{}", second.stderr());
    assert!(!second.folder.output_path().exists());
    go(&first);
    assert!(first.wait().success(), "{}", first.stderr());
    daemon.wait_for_end_of(first.pid());
    let third = script("window").finish();
    daemon.wait_for_end_of(third.pid());
    assert_eq!(reported(&third.folder.rows(), third.pid()), WINDOW);
}

/// Starting tracers is costly, so it is limited, too.
#[test]
fn daemon_limits_starts() {
    let daemon = Daemon::start(&["--max-starts-per-minute", "1"]);
    let script = || Script::new("window", &daemon.socket()).set("output_path=output").finish();
    daemon.wait_for_end_of(script().pid());
    let second = script();
    let why = "user 0 has had 1 tracers started within a minute, which is the limit (--max-starts-per-minute).";
    assert!(line_of(&second).ends_with(why), "{}", second.stderr());
}

fn refusal(answer: &str) -> String {
    let answer: serde_json::Value = serde_json::from_str(answer).unwrap_or_else(|error| panic!("{error}: {answer}"));
    assert_eq!((&answer["version"], &answer["status"]), (&1.into(), &"refused".into()), "{answer}");
    answer["text"].as_str().expect("a text").to_owned()
}

/// What is no request is refused by a line, starts nothing, and leaves the daemon as it was.
#[test]
fn hostile_requests() {
    let daemon = Daemon::start(&[]);
    let request = |settings: &str| format!("{{\"version\":1,\"settings\":{settings}}}\n").into_bytes();
    let hostile = "\u{202e}\u{9b}31m\\u001b[2J\\nforged";
    let table: [(Vec<u8>, &str); 15] = [
        (vec![0; 64 << 10], "longer than 65536 bytes"),
        (vec![b'x'; 1 << 20], "longer than 65536 bytes"),
        (b"\xff\xfe\n".to_vec(), "is not understood"),
        (b"{\"version\":1,\"sett".to_vec(), "ends before its line does"),
        (Vec::new(), "ends before its line does"),
        // A request cannot even name another user's process.
        (b"{\"version\":1,\"pid\":1,\"settings\":{\"output_path\":\"/x\"}}\n".to_vec(), "unknown field `pid`"),
        (request("{\"output_path\":\"/x\",\"pid\":\"1\"}"), "unknown field `pid`"),
        (request("{\"output_path\":\"../x\"}"), "not an absolute path"),
        (request("{\"output_path\":\"/x\",\"events\":\"alloc --pid=1\\u001b[2J\\n\"}"), "is not one of alloc,"),
        (request("{\"output_path\":\"/x\",\"watch\":\"--usage-library=/tmp/x\"}"), "watch: "),
        (request(&format!("{{\"output_path\":\"{hostile}\"}}")), "not an absolute path"),
        (request(&format!("{{\"output_path\":\"/x\",\"level\":\"{hostile}\"}}")), "level"),
        (request(&format!("{{\"output_path\":\"/x\",\"{hostile}\":1}}")), "unknown field"),
        (format!("{{\"version\":\"{hostile}\"}}\n").into_bytes(), "is not understood"),
        ([request("{\"output_path\":\"/x\"}"), request("{\"output_path\":\"/x\"}")].concat(), "more than one request"),
    ];
    for (bytes, why) in &table {
        let reported = refusal(&daemon.answer(bytes));
        assert!(reported.contains(why) && obeyed(&reported).is_none() && !reported.contains('\n'), "{reported:?}");
    }
    // Only what was printed may control a terminal.
    assert_eq!(obeyed(&daemon.messages()), None, "{}", daemon.messages());
    assert!(!daemon.messages().lines().any(|line| line.starts_with("forged")), "{}", daemon.messages());
    assert!(!daemon.messages().contains("is traced by"), "{}", daemon.messages());
    assert_still_works(&daemon);
}

/// Half a message is waited for no longer than a moment, byte by byte neither; other peers do not wait for that.
#[test]
fn slow_peers() {
    let daemon = Daemon::start(&[]);
    let mut half = daemon.connect();
    half.write_all(b"{\"version\":1,").expect("taken");
    let mut slow = daemon.connect();
    let writer = std::thread::spawn(move || {
        while slow.write_all(b" ").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
        read(&mut slow)
    });
    assert_still_works(&daemon);
    for answer in [read(&mut half), writer.join().expect("it ended")] {
        assert_eq!(refusal(&answer), "the request was not there within 2 s");
    }
}

fn read(stream: &mut UnixStream) -> String {
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    text
}

/// A thousand connections of one user: all beyond its share are refused at once, the others when their time is over; others do not notice.
#[test]
fn a_thousand_connections() {
    let (user, daemon) = (User::new(), Daemon::start(&[]));
    let open = || fs::read_dir(format!("/proc/{}/fd", daemon.pid())).expect("it lives").count();
    let before = open();
    let mut streams: Vec<UnixStream> = (0..1000).map(|_| daemon.connect()).collect();
    assert_still_works_for(Script::new("window", &daemon.socket()).by(&user), &daemon);
    let answers: Vec<String> = streams.iter_mut().map(|stream| refusal(&read(stream))).collect();
    let refused =
        answers.iter().filter(|text| *text == "user 0 has 16 requests open, which is the limit; try again").count();
    assert!(refused >= 900, "{refused}");
    let late = answers.iter().filter(|text| *text == "the request was not there within 2 s").count();
    assert_eq!(refused + late, 1000);
    drop(streams);
    assert_still_works(&daemon);
    assert_eq!(open(), before);
    // Not a line for each.
    assert!(daemon.messages().lines().count() < 100, "{}", daemon.messages());
}

/// Who does not wait for the answer is not traced.
#[test]
fn impatient_peer() {
    let daemon = Daemon::start(&[]);
    let place = tempfile::tempdir().expect("a folder");
    let output = place.path().join("output");
    let request = format!("{{\"version\":1,\"settings\":{{\"output_path\":\"{}\"}}}}\n", output.display());
    let mut stream = daemon.connect();
    stream.write_all(request.as_bytes()).expect("taken");
    drop(stream);
    daemon.wait_for_end_of(std::process::id());
    assert!(!daemon.messages().contains("is traced by"), "{}", daemon.messages());
    assert_still_works(&daemon);
}

fn assert_still_works(daemon: &Daemon) {
    assert_still_works_for(Script::new("window", &daemon.socket()), daemon);
}

fn assert_still_works_for(script: Script<'_>, daemon: &Daemon) {
    let target = script.set("output_path=output").finish();
    assert!(!target.stderr().contains("[msmemscope]"), "{}", target.stderr());
    daemon.wait_for_end_of(target.pid());
    assert_eq!(reported(&target.folder.rows(), target.pid()), WINDOW);
}
