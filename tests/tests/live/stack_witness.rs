//! Native stacks are those that debuggers print of the same call, to the outermost frame.
//!
//! The program waits inside of a function that is probed. Needs `eu-stack` and `gdb`, which `./x setup` installs.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use memscope_tests::harness::tracer::{Run, Running, Tracer};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::native_stacks::{BUILDS, ROOT, by_clang, is_same_function, taken_of};

/// What a debugger prints of a thread: addresses, innermost first.
type Debugger = fn(&str, &Path) -> Vec<u64>;

fn said(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}; `./x setup` installs it"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

fn addresses<'a>(words: impl Iterator<Item = &'a str>) -> Vec<u64> {
    words.map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).expect("an address")).collect()
}

/// Of elfutils, which reads `.eh_frame`.
fn eu_stack(thread: &str, _: &Path) -> Vec<u64> {
    let text = said(Command::new("eu-stack").args(["-1", "-q", "-n", "0", "-p", thread]));
    // `#0  0x00007f8b5c0f1a30`
    addresses(text.lines().filter(|line| line.starts_with('#')).filter_map(|line| line.split_whitespace().nth(1)))
}

/// Knows prologues besides.
fn gdb(thread: &str, folder: &Path) -> Vec<u64> {
    // With debug information of libraries it shows frames that are none: inlined, and left by a jump.
    const SCRIPT: &str = "\
set backtrace past-main on
set backtrace past-entry on
python
frame = gdb.newest_frame()
while frame is not None:
    if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
        print('frame %x' % frame.pc())
    frame = frame.older()
";
    // Reading them takes time.
    const NO_DEBUG_FILES: &str = "set debug-file-directory /nowhere";
    let script = folder.join("frames.gdb");
    std::fs::write(&script, SCRIPT).expect("a script");
    let text =
        said(Command::new("gdb").args(["--batch", "-nx", "-iex", NO_DEBUG_FILES, "-p", thread, "-x"]).arg(script));
    addresses(text.lines().filter_map(|line| line.strip_prefix("frame ")))
}

/// A call in which the program was looked at, and its frames by the debugger.
struct Seen {
    size_bytes: u64,
    frames: Vec<u64>,
}

/// What programs read from that wait.
pub(crate) fn pipe(tracer: &Tracer) -> File {
    let path = tracer.folder().join("go");
    mkfifo(&path, Mode::S_IRWXU).expect("a pipe");
    // For both directions: so it needs no other end.
    OpenOptions::new().read(true).write(true).open(path).expect("a pipe")
}

/// Looks at each call that waits, and lets it go on.
fn look(running: &Running, mut go: File, debugger: Debugger) -> Vec<Seen> {
    let folder = running.folder.path();
    let mut seen = Vec::new();
    loop {
        let end = format!(" at {}\n", seen.len() + 1);
        running.wait_for_output(&end);
        let output = running.stdout();
        // Or the program has ended.
        let Some((before, _)) = output.split_once(&end) else { return seen };
        let (_, call) = before.rsplit_once("parked ").expect("a call that waits");
        let (thread, size) = call.split_once(' ').expect("a thread and a size");
        seen.push(Seen { size_bytes: size.parse().expect("a size"), frames: debugger(thread, folder) });
        go.write_all(b"g").expect("written");
    }
}

fn traced(build: &str, cases: &[&str], debugger: Debugger) -> (Run, Vec<Seen>) {
    let arguments: Vec<&str> = ["parked"].iter().chain(cases).copied().collect();
    let tracer = Tracer::run(build, &arguments).option("--call-stack=c:100");
    let tracer = tracer.option("--probe").option(format!("{build}:park=free(ptr=0)"));
    let go = pipe(&tracer);
    let running = tracer.start();
    let seen = look(&running, go, debugger);
    let run = running.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    (run, seen)
}

/// Holds the stack of each call against what the debugger has printed; gives how many there were.
fn compare(build: &str, cases: &[&str], debugger: Debugger) -> usize {
    let (run, seen) = traced(build, cases, debugger);
    let taken = taken_of(&run, "park", 0);
    assert_eq!(taken.len(), seen.len(), "{build}: {}", run.said());
    let by_size = |size| taken.iter().find(|((_, of), _)| *of == size).map(|(_, stack)| stack).expect("a stack");
    for Seen { size_bytes, frames } in &seen {
        let stack = by_size(*size_bytes);
        // The debugger's first frames are in what `park` calls to wait. Its own is where ours begins: at its entry.
        let park = frames.iter().position(|frame| is_same_function(*frame, stack.frames[0])).expect("`park`");
        let what = format!("{build} block {size_bytes}\n  debugger {frames:x?}\n  taken {stack:x?}\n{}", run.said());
        assert_eq!(stack.frames[1..], frames[park + 1..], "{what}");
        assert_eq!(stack.end, ROOT, "{what}");
    }
    seen.len()
}

/// Builds by both compilers, and programs that are whole in themselves.
fn builds() -> impl Iterator<Item = String> {
    BUILDS.iter().chain(&["chains-static"]).flat_map(|build| [(*build).to_owned(), by_clang(build)])
}

#[test]
fn stacks_are_those_of_eu_stack() {
    const CASES: [&str; 9] =
        ["recurse", "alloca", "realigned", "exceptions", "callbacks", "signal", "fault", "thread", "plugins"];
    for build in builds() {
        let count = compare(&build, &CASES, eu_stack);
        // Two of each; a program that is whole in itself loads no libraries.
        assert_eq!(count, if build.ends_with("static") { 16 } else { 18 }, "{build}");
    }
}

fn hold_against_gdb(builds: impl Iterator<Item = String>) {
    for build in builds {
        assert_eq!(compare(&build, &["exceptions", "signal", "thread"], gdb), 6, "{build}");
    }
}

#[test]
fn stacks_are_those_of_gdb() {
    hold_against_gdb(builds().filter(|build| !build.contains("clang")));
}

#[test]
fn stacks_are_those_of_gdb_by_clang() {
    hold_against_gdb(builds().filter(|build| build.contains("clang")));
}

/// In the linkage table, and in the loader as it binds: where libraries are bound when they are first called. For the table
/// that lld makes there is no unwind information.
#[test]
#[cfg(target_arch = "x86_64")]
fn stacks_are_those_of_eu_stack_at_each_instruction() {
    for build in builds().filter(|build| !["now", "static", "clang-lto"].iter().any(|other| build.ends_with(other))) {
        assert_eq!(compare(&build, &["stepped"], eu_stack), 24, "{build}");
    }
}
