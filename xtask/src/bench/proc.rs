//! What `/proc` says of a process.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

/// How long anything may take before the run is given up.
const TIMEOUT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(2);
/// Longer than a tracer at work ever waits.
const QUIET: Duration = Duration::from_millis(300);

/// Processor time so far of the threads of that name (of all, without one), in nanoseconds.
pub(super) fn cpu_ns(pid: u32, name: Option<&str>) -> f64 {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return 0.0 };
    let time = |folder: std::path::PathBuf| -> Option<f64> {
        let thread = fs::read_to_string(folder.join("comm")).ok()?;
        if name.is_some_and(|name| name != thread.trim_end()) {
            return None;
        }
        fs::read_to_string(folder.join("schedstat")).ok()?.split(' ').next()?.parse().ok()
    };
    threads.flatten().filter_map(|entry| time(entry.path())).sum()
}

/// A line of such a file of a process, in bytes; 0 if there is none (any more).
fn line_bytes(pid: u32, file: &str, name: &str) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kilobytes = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    kilobytes.unwrap_or(0.0) * 1024.0
}

/// Memory, each page counted once, in bytes: the ring is mapped twice in a row.
pub(super) fn memory_bytes(pid: u32) -> f64 {
    line_bytes(pid, "smaps_rollup", "Pss:")
}

/// Largest resident memory up to its end, in bytes, as far as one sees who looks every few milliseconds.
pub(super) fn peak_bytes_until_end(pid: u32) -> f64 {
    let mut peak: f64 = 0.0;
    loop {
        let now = line_bytes(pid, "status", "VmHWM:");
        if now == 0.0 {
            return peak;
        }
        peak = peak.max(now);
        thread::sleep(POLL);
    }
}

/// How many processes it waits for.
pub(super) fn pidfds(pid: u32) -> usize {
    let Ok(open) = fs::read_dir(format!("/proc/{pid}/fdinfo")) else { return 0 };
    let is_pidfd = |path| fs::read_to_string(path).is_ok_and(|text| text.lines().any(|line| line.starts_with("Pid:")));
    open.flatten().filter(|entry| is_pidfd(entry.path())).count()
}

/// Waits until it does next to nothing.
pub(super) fn wait_until_idle(pid: u32) {
    let begin = Instant::now();
    loop {
        let before = cpu_ns(pid, None);
        thread::sleep(QUIET);
        // A hundredth of the time: the tracer looks at its ring all the time.
        if cpu_ns(pid, None) - before < QUIET.as_nanos() as f64 / 100.0 || begin.elapsed() > TIMEOUT {
            return;
        }
    }
}

/// Waits until a count has stopped growing; gives it, and when it was reached.
pub(super) fn links_settled(pid: u32, count: impl Fn() -> Result<usize>) -> Result<(usize, Instant)> {
    let begin = Instant::now();
    let (mut last, mut at) = (0, begin);
    while last == 0 || at.elapsed() < QUIET {
        ensure!(begin.elapsed() < TIMEOUT, "process {pid} does not attach");
        let now = count()?;
        if now != last {
            (last, at) = (now, Instant::now());
        }
        thread::sleep(POLL);
    }
    Ok((last, at))
}
