//! Files that rotate: no larger than they may be, and the newest rows in one piece.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use memscope_tests::harness::{journal::Call, tracer::Tracer};
use nix::sys::signal::Signal;

/// Files of rows below a folder.
fn dumps_below(folder: &Path) -> Vec<PathBuf> {
    let (mut found, mut left) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = left.pop() {
        // One may be removed while the folder is read.
        for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            match path.is_dir() {
                true => left.push(path),
                false if name.starts_with("memscope_dump_") => found.push(path),
                false => {}
            }
        }
    }
    found
}

/// Make sure that files which rotate stay within their size while the program runs, and that the rows that are left are the newest, in one
/// piece, up to the program's end.
#[test]
fn files_rotate_while_a_program_runs() {
    const MOST_BYTES: u64 = 1_600_000;
    // Each part is looked at every 512 rows, which have 300 bytes at most.
    const ON_TOP_BYTES: u64 = 4 * 512 * 300;
    let options = ["--max-size=1600K", "--rotate=4", "--no-capture", "--stacks=table", "--call-stack=c"];
    let running = Tracer::run("serve", &["--rate", "6000"]).options(&options).start();
    running.wait_for_output("ready ");
    let pid: u32 = running
        .stdout()
        .trim_start_matches("ready ")
        .lines()
        .next()
        .and_then(|pid| pid.parse().ok())
        .expect("a process");
    let part = |path: &Path| {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        name.rsplit_once("_part").and_then(|(_, number)| number.parse::<u64>().ok()).unwrap_or(0)
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let dumps = dumps_below(&running.folder.output_path());
        let size_bytes: u64 = dumps.iter().filter_map(|path| path.metadata().ok()).map(|about| about.len()).sum();
        assert!(size_bytes < MOST_BYTES + ON_TOP_BYTES, "{size_bytes} bytes");
        if dumps.iter().any(|path| part(path) >= 9) {
            break;
        }
        assert!(Instant::now() < deadline, "{dumps:?}");
        thread::sleep(Duration::from_millis(50));
    }
    running.signal(Signal::SIGTERM);
    let run = running.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    let mut parts: Vec<u64> = dumps_below(&run.folder.output_path()).iter().map(|path| part(path)).collect();
    parts.sort_unstable();
    assert!(parts.len() <= 4 && parts.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{parts:?}");
    // One thread at a time allocates and frees: the journal's calls in order, and the rows that are left of them.
    let journal = run.journal();
    let mut calls: Vec<(u64, bool, u64)> = journal
        .of(pid)
        .filter_map(|entry| match entry.call() {
            Call::Alloc { addr, .. } => Some((entry.time_ns, true, addr)),
            Call::Free { addr, .. } => Some((entry.time_ns, false, addr)),
            _ => None,
        })
        .collect();
    calls.sort_by_key(|(time_ns, ..)| *time_ns);
    let rows = run.rows();
    let mut found: Vec<_> = rows.processes[&pid].iter().filter(|row| row.event_type == "HAL").collect();
    found.sort_by_key(|row| row.id);
    assert!(found.len() > 2000 && found.len() < calls.len() / 2, "{} rows of {} calls", found.len(), calls.len());
    let expected = &calls[calls.len() - found.len()..];
    for (row, (_, is_alloc, addr)) in found.iter().zip(expected) {
        assert_eq!((row.event == "MALLOC", row.ptr), (*is_alloc, Some(*addr)), "{row:?}");
    }
}
