//! What the agent takes: its own process, the BPF programs, and the stops of traced threads at probes.

use std::time::{Duration, Instant};

use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeVal,
};

use super::metrics::Sample;
use crate::{session::ProgramCost, usage::host};

/// Adds it up.
#[derive(Debug)]
pub(super) struct Meter {
    trap_ns: u32,
    read: Option<(Instant, Duration)>,
    /// Seconds so far.
    process: f64,
    program: f64,
    trap: f64,
    cores: f64,
}

impl Meter {
    pub(super) const fn new(trap_ns: u32) -> Self {
        Self { trap_ns, read: None, process: 0.0, program: 0.0, trap: 0.0, cores: 0.0 }
    }

    /// Processor time of all parts since the last time, in cores.
    pub(super) fn read(&mut self, now: Instant, programs: Option<ProgramCost>) -> f64 {
        let own = own_time();
        let Some((before, own_before)) = self.read.replace((now, own)) else { return 0.0 };
        let seconds = now.duration_since(before).as_secs_f64().max(1e-3);
        let process = own.saturating_sub(own_before).as_secs_f64();
        let (program, trap) = rates(programs, self.trap_ns);
        self.process += process;
        self.program += program * seconds;
        self.trap += trap * seconds;
        self.cores = process / seconds + program + trap;
        self.cores
    }

    /// As of the last time.
    pub(super) const fn cores(&self) -> f64 {
        self.cores
    }

    pub(super) fn samples(&self) -> Vec<Sample> {
        let part =
            |part: &str, seconds| Sample::real("memscope_agent_cpu_seconds", vec![("part", part.to_owned())], seconds);
        let resident = host::of(std::process::id()).map(|memory| memory.resident_bytes).unwrap_or_default();
        vec![
            part("process", self.process),
            part("program", self.program),
            part("trap", self.trap),
            Sample::real("memscope_agent_overhead_ratio", Vec::new(), self.cores),
            Sample::whole("memscope_agent_memory_bytes", vec![("part", "rss".to_owned())], resident),
        ]
    }
}

/// What programs and stops took in a second while they were measured, in cores.
fn rates(programs: Option<ProgramCost>, trap_ns: u32) -> (f64, f64) {
    let Some(ProgramCost { span, run_time, runs }) = programs else { return (0.0, 0.0) };
    let seconds = span.as_secs_f64().max(1e-3);
    (run_time.as_secs_f64() / seconds, runs as f64 * f64::from(trap_ns) / 1e9 / seconds)
}

/// Processor time of this process, all threads.
fn own_time() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return Duration::ZERO };
    let time = |time: TimeVal| {
        Duration::from_micros((time.tv_sec().unsigned_abs() * 1_000_000).saturating_add(time.tv_usec().unsigned_abs()))
    };
    time(usage.user_time()) + time(usage.system_time())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10 000 runs in two seconds, of 1 µs each, with stops of 800 ns: half a percent, and four thousandths of a core.
    #[test]
    fn programs_and_stops_by_hand() {
        let span = Duration::from_secs(2);
        let programs = ProgramCost { span, run_time: Duration::from_millis(10), runs: 10_000 };
        let (program, trap) = rates(Some(programs), 800);
        assert!((program - 0.005).abs() < 1e-12 && (trap - 0.004).abs() < 1e-12, "{program} {trap}");
        assert_eq!(rates(None, 800), (0.0, 0.0));
    }

    /// Time that this thread has spent shows.
    #[test]
    fn own_time_is_measured() {
        let mut meter = Meter::new(0);
        let start = Instant::now();
        assert!(meter.read(start, None).abs() < f64::EPSILON);
        let before = own_time();
        let mut number = 1_u64;
        while own_time() < before + Duration::from_millis(30) {
            number = std::hint::black_box(number.wrapping_mul(3));
        }
        assert!(meter.read(start + Duration::from_secs(1), None) >= 0.03);
    }
}
