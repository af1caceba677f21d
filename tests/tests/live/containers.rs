//! Programs in containers: other namespaces, another root, files that are replaced, and paths that are traps.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::Duration;

use memscope_tests::harness::container::{Contained, Image, LIBRARIES};
use memscope_tests::harness::expect::{Window, assert_equal, assert_unbroken};
use memscope_tests::harness::pythons::interpreters;
use memscope_tests::harness::tracer::{
    Folder, Run, Running, Target, Tracer, monotonic_ns, simulation, tracer_path, unix_offset_ns, workload_path,
};

use super::native_stacks::{self, is_same_function, taken_of};
use super::python_stacks::{stacks, truths, workload};
use super::shared::{DEFAULT, assert_nothing_lost, assert_nothing_lost_since_attach, assert_sound};

const SERVE: [&str; 5] = ["/bin/serve", "--threads", "2", "--rate", "1000"];

fn pause() {
    std::thread::sleep(Duration::from_millis(400));
}

/// Attaches to processes by the numbers that they have out here; gives a moment from which on every call is seen.
fn attach(pids: &[u32], libraries: usize, options: &[&str]) -> (Running, u64) {
    attach_until(pids, "libascend_hal.so: ", libraries, options)
}

/// The same, once the tracer has written a message this many times.
fn attach_until(pids: &[u32], message: &str, times: usize, options: &[&str]) -> (Running, u64) {
    let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
    let running = Tracer::attach_to(&pids.join(",")).option("--verbose").options(options).start();
    running.wait_for_message(message, times);
    pause();
    (running, monotonic_ns())
}

/// The trace of these programs has all their calls and no other, by their numbers out here.
fn hold(mut programs: Vec<Contained>, running: Running, from_ns: u64) -> Run {
    pause();
    let numbers: Vec<HashMap<u32, u32>> = programs.iter().map(Contained::numbers).collect();
    programs.iter_mut().for_each(Contained::stop);
    let window = Window { from_ns, to_ns: monotonic_ns() };
    let run = running.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    assert_nothing_lost_since_attach(&run);
    assert_sound(&run);
    for (program, numbers) in programs.iter().zip(&numbers) {
        let journal = program.journal(numbers);
        let compared = assert_unbroken(&journal, &run.rows(), program.pid, window, unix_offset_ns());
        assert!(compared > 100, "only {compared} rows");
    }
    run
}

/// Other mount, pid and user namespaces, another root with its own libraries. The process's own number is reported
/// once.
#[test]
fn contained_program() {
    let image = Image::new(&["serve"]);
    let program = Contained::start(&image.as_root(), &SERVE, "ready 1\n");
    let pid = program.pid;
    let (running, from_ns) = attach(&[pid], 1, &["--call-stack=c"]);
    let run = hold(vec![program], running, from_ns);
    let reported = format!("process {pid} (serve) is process 1 in its own pid namespace");
    assert_eq!(run.stderr.matches(&reported).count(), 1, "{}", run.said());
    // Frames of the libraries and of the C library that are in there.
    let text = fs::read_to_string(&run.rows().files[0]).expect("a dump");
    for frame in ["libascendcl.so(aclrtMalloc", "libc.so.6(", "serve("] {
        assert!(text.matches(frame).count() > 50, "`{frame}` is hardly in {text:.2000}");
    }
}

/// A container that is started by what is traced: followed into its namespaces.
#[test]
fn container_of_a_traced_program() {
    let image = Image::new(&["steps"]);
    let mut arguments = image.as_root();
    let journal = Folder::new();
    arguments.extend(
        ["--bind", journal.journal_path().to_str().expect("plain"), "/bin/steps", "--steps", "3"].map(Into::into),
    );
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let tracer = Tracer::run_program(workload_path("contain"), &arguments);
    let tracer = tracer.env("LD_LIBRARY_PATH", LIBRARIES).env("ASCEND_SIM_JOURNAL", journal.journal_path());
    let run = tracer.option("--json").succeed();
    assert_nothing_lost(&run);
    let rows = run.rows();
    let mut journal = journal.journal();
    let ([within], [pid]) =
        (&*journal.processes().into_iter().collect::<Vec<_>>(), &*rows.processes.keys().copied().collect::<Vec<_>>())
    else {
        panic!("not one process: {:?} and {:?}", journal.processes(), rows.files)
    };
    assert_eq!(*within, 1);
    journal.renumber(&HashMap::from([(*within, *pid)]));
    assert_equal(&journal, &rows, DEFAULT);
    assert!(run.stderr.contains("is process 1 in its own pid namespace"), "{}", run.said());
}

/// Containers of one image have the same files below their overlays, and so does who uses the image itself: each call is one
/// event, of whom it is.
#[test]
fn overlays_of_one_image() {
    let image = Image::new(&["serve"]);
    let mut programs: Vec<Contained> =
        (0..2).map(|_| Contained::start(&image.below_overlay(), &SERVE, "ready 1\n")).collect();
    programs.push(Contained::start(&image.as_root(), &SERVE, "ready 1\n"));
    let pids: Vec<u32> = programs.iter().map(|program| program.pid).collect();
    // A file for each process with events. The number of reported libraries varies: up to 5.x the kernel shows one file
    // mapped by all three, and later a file each, of one inode below.
    let (running, from_ns) = attach_until(&pids, "create file ", 3, &[]);
    hold(programs, running, from_ns);
}

/// A library that one container has changed is another file than the others have.
#[test]
fn overlay_with_a_library_of_its_own() {
    let (image, other) = (Image::new(&["serve"]), Image::new(&["serve"]));
    let library = other.root().join("sim/libascend_hal.so");
    let copy = other.root().join("copy");
    fs::rename(&library, &copy).expect("renamed");
    fs::copy(&copy, &library).expect("a copy");
    let programs: Vec<Contained> =
        [&image, &other].map(|image| Contained::start(&image.below_overlay(), &SERVE, "ready 1\n")).into();
    let pids: Vec<u32> = programs.iter().map(|program| program.pid).collect();
    let (running, from_ns) = attach(&pids, 2, &[]);
    let run = hold(programs, running, from_ns);
    assert!(!run.stderr.contains("the same file as"), "{}", run.said());
}

/// The mapped files count, wherever their paths lead by now: nowhere, to other files, to files that must not be opened,
/// or out of the root.
#[test]
fn paths_that_lead_elsewhere() {
    let image = Image::new(&["serve"]);
    let outside = Folder::new();
    fs::write(outside.path().join("libruntime.so"), "not a library").expect("a file");
    let program = Contained::start(&image.as_root(), &SERVE, "ready 1\n");
    let sim = |name: &str| image.root().join("sim").join(name);
    for name in ["libascend_hal.so", "libruntime.so", "libacl_rt.so", "libascendcl.so"] {
        fs::remove_file(sim(name)).expect("removed");
    }
    nix::unistd::mkfifo(&sim("libascend_hal.so"), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    symlink(outside.path().join("libruntime.so"), sim("libruntime.so")).expect("a link");
    symlink("../../../../../../../../../../etc/passwd", sim("libacl_rt.so")).expect("a link");
    fs::write(sim("libascendcl.so"), b"\x7fELF and nothing more").expect("a file");
    let (running, from_ns) = attach(&[program.pid], 1, &["--call-stack=c", "--inlined"]);
    let run = hold(vec![program], running, from_ns);
    assert!(!run.stderr.contains("Error"), "{}", run.said());
}

/// A library that is replaced on disk stays what it was for who has mapped it, before the trace and during it; who comes later has
/// the new one.
#[test]
fn replaced_libraries() {
    let image = Image::new(&["serve"]);
    let replace = |bytes: &[u8]| {
        let library = image.root().join("sim/libascend_hal.so");
        let new = library.with_file_name("new");
        fs::write(&new, bytes).expect("a file");
        fs::rename(&new, &library).expect("renamed");
    };
    let start = || Contained::start(&image.as_root(), &SERVE, "ready 1\n");
    let before = start();
    let library = fs::read(image.root().join("sim/libascend_hal.so")).expect("a library");
    replace(&library);
    let after = start();
    let (running, from_ns) = attach(&[before.pid, after.pid], 2, &["--call-stack=c"]);
    replace(b"not a library");
    let run = hold(vec![before, after], running, from_ns);
    assert!(!run.stderr.contains("the same file as") && !run.stderr.contains("Error"), "{}", run.said());
}

/// Native stacks of a program with its own loader and C library in another root.
#[test]
fn native_stacks_in_a_container() {
    let image = Image::new(&["chains-O2"]);
    let mut arguments = image.as_root();
    arguments.extend(["/bin/chains-O2", "pause", "recurse", "callbacks", "signal"].map(Into::into));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let tracer = Tracer::run_program(workload_path("contain"), &arguments).env("LD_LIBRARY_PATH", LIBRARIES);
    let run = tracer.env("ASCEND_SIM_JOURNAL", "").option("--call-stack=c:100").succeed();
    // One process, which calls itself 1.
    let truths: BTreeMap<u64, _> =
        native_stacks::truths(&run.stdout).into_iter().map(|((_, size), t)| (size, t)).collect();
    let taken: BTreeMap<u64, _> =
        taken_of(&run, "halMemAlloc", 1).into_iter().map(|((_, size), taken)| (size, taken)).collect();
    assert!(truths.len() > 1, "{}", run.said());
    for (size, truth) in truths {
        let taken = &taken[&size];
        assert!(is_same_function(taken.frames[0], truth.frames[0]), "{truth:x?} {taken:x?}");
        assert_eq!(taken.frames[1..], truth.frames[1..], "{}", truth.case);
    }
}

/// Python's stacks, of an interpreter in other namespaces.
#[test]
fn python_stacks_in_a_container() {
    for python in interpreters() {
        let place = Folder::new();
        let script = workload(place.path());
        let path = python.path.to_str().expect("a plain path");
        let arguments = [path, "-I", script.to_str().expect("a plain path"), "plain", "generators"];
        let tracer = Tracer::run_program(workload_path("contain"), &arguments);
        let run = tracer.option("--call-stack=python:100").succeed();
        let (truths, found) = (truths(&run.stdout), stacks(&run.folder.capture(), "halMemAlloc"));
        assert!(truths.len() > 5 && truths.iter().all(|truth| truth.pid == 1), "{}", run.said());
        let truths: Vec<_> = truths.into_iter().map(|truth| truth.frames).collect();
        let found: Vec<_> = found.into_iter().map(|found| found.frames).collect();
        assert_eq!(found, truths, "{python:?}");
    }
}

/// In a pid namespace of its own the tracer does not know processes by the kernel's numbers: it says so.
#[test]
fn tracer_in_a_container() {
    let folder = Folder::new();
    for arguments in [&["run", "--", "/bin/true"][..], &["doctor"]] {
        let mut command = Command::new("unshare");
        let command = command.args(["--pid", "--fork", "--mount-proc"]).arg(tracer_path());
        let output = command.args(arguments).current_dir(folder.path()).output().expect("unshare");
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(!output.status.success(), "{said}");
        assert!(said.contains("pid namespace of its own") && said.contains("--pid=host"), "{said}");
    }
}

/// A program with libraries that are gone from the disk.
#[test]
fn deleted_libraries() {
    let libraries = Folder::new();
    for entry in fs::read_dir(simulation().join("lib")).expect("libraries") {
        let path = entry.expect("a library").path();
        if path.is_file() {
            fs::copy(&path, libraries.path().join(path.file_name().expect("a name"))).expect("a copy");
        }
    }
    let mut command = Command::new(workload_path("serve"));
    command.args(&SERVE[1..]).env("LD_LIBRARY_PATH", libraries.path());
    let mut target = Target::start(command, Folder::new(), "ready ");
    drop(libraries);
    let (running, from_ns) = attach(&[target.pid()], 1, &["--call-stack=c"]);
    pause();
    target.stop();
    let window = Window { from_ns, to_ns: monotonic_ns() };
    let run = running.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    let compared = assert_unbroken(&target.folder.journal(), &run.rows(), target.pid(), window, unix_offset_ns());
    assert!(compared > 100, "only {compared} rows");
}
