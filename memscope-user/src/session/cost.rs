//! What the BPF programs take, by the kernel's own statistics.

use std::{
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use crate::kernel::{Kernel, ProgramTime};

/// The statistics are on in one second of these: each run of a program costs some 45 ns more while they are.
const PERIOD: u32 = 10;

/// What the programs took over a span in which they were measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramCost {
    /// How long it was measured.
    pub span: Duration,
    /// How long programs ran, on all processors.
    pub run_time: Duration,
    /// How often programs ran.
    pub runs: u64,
}

/// Switches the statistics on and off.
#[derive(Debug, Default)]
pub(super) struct Meter {
    seconds: u32,
    /// They are on while this is open; since when, and what the programs had taken by then.
    on: Option<(OwnedFd, Instant, ProgramTime)>,
    last: Option<ProgramCost>,
}

impl Meter {
    /// A second has passed. Gives what is known.
    pub(super) fn second(&mut self, kernel: &Kernel) -> Option<ProgramCost> {
        if let Some((_open, since, before)) = self.on.take() {
            let now = kernel.program_time();
            self.last = Some(ProgramCost {
                span: since.elapsed(),
                run_time: now.run_time.saturating_sub(before.run_time),
                runs: now.runs.saturating_sub(before.runs),
            });
        }
        if self.seconds.is_multiple_of(PERIOD) {
            self.on = Kernel::measure_programs().map(|open| (open, Instant::now(), kernel.program_time()));
        }
        self.seconds = self.seconds.wrapping_add(1);
        self.last
    }
}
