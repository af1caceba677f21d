//! How long the tracer's BPF programs run, as the kernel counts: what a call costs besides the way into a program and back.

use std::{fs, process::Command, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};

use super::lab::Running;

const STATISTICS: &str = "/proc/sys/kernel/bpf_stats_enabled";
const POLL: Duration = Duration::from_millis(2);
/// How long a traced program may take.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The kernel counts, until this is dropped.
pub(super) struct Statistics {
    before: String,
}

impl Statistics {
    pub(super) fn on() -> Result<Self> {
        let before = fs::read_to_string(STATISTICS).with_context(|| format!("cannot read {STATISTICS}"))?;
        fs::write(STATISTICS, "1").with_context(|| format!("cannot write {STATISTICS}"))?;
        Ok(Self { before })
    }
}

impl Drop for Statistics {
    fn drop(&mut self) {
        // A failure has no reader here, and does no harm.
        let _ = fs::write(STATISTICS, self.before.trim());
    }
}

/// What a program has done.
#[derive(Clone, Copy, Default)]
struct Counted {
    time_ns: f64,
    runs: f64,
}

/// Nanoseconds of one run of the program that ran most often: the one at the entries of functions, where stacks are taken. Those that
/// see mappings and new programs run for longer, a few times.
pub(super) fn entry_ns(command: &mut Command) -> Result<f64> {
    let tracer = Running::start(command)?;
    let mut last = Counted::default();
    // Its end is seen by there being no programs any more.
    while let Some(now) = busiest(tracer.pid()).filter(|now| now.runs > 0.0 || last.runs == 0.0) {
        last = now;
        thread::sleep(POLL);
        ensure!(tracer.age() < TIMEOUT, "a traced program does not end");
    }
    tracer.finish()?;
    ensure!(last.runs > 0.0, "no program of the tracer ran");
    Ok(last.time_ns / last.runs)
}

/// Of the BPF programs of a process. `None`: it has ended.
fn busiest(pid: u32) -> Option<Counted> {
    let open = fs::read_dir(format!("/proc/{pid}/fdinfo")).ok()?;
    let counted = open.flatten().filter_map(|file| {
        let text = fs::read_to_string(file.path()).ok()?;
        let number = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
        Some(Counted { time_ns: number("run_time_ns:")?, runs: number("run_cnt:")? })
    });
    // A process that has ended and was not waited for has no descriptors.
    let mut counted = counted.peekable();
    let alive = counted.peek().is_some()
        || fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    let all = counted.fold(Counted::default(), |most, one| if one.runs > most.runs { one } else { most });
    alive.then_some(all)
}
