//! What the programs take, and having them take less.

use std::{os::fd::OwnedFd, time::Duration};

use aya::{
    maps::Array,
    sys::{Stats, enable_stats},
};
use memscope_common::stack::{STACK_NATIVE, STACK_PYTHON, STACKS_AT_ENDS};

use super::{
    error::{KernelError, map_error, no_map},
    object::Kernel,
};

/// How long the programs have run, and how often, since they were loaded, in the times when the kernel measured that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramTime {
    /// On all processors.
    pub run_time: Duration,
    /// How often.
    pub runs: u64,
}

/// Call stacks that are not taken, whatever the options ask for. Frees have stacks with [`None`](Self::None) alone: a block has its place by
/// its allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeftOutStacks {
    /// None: all that were asked for are taken.
    #[default]
    None,
    /// Those of frees.
    AtFrees,
    /// Python's.
    Python,
    /// All.
    All,
}

impl LeftOutStacks {
    const fn bits(self) -> u32 {
        match self {
            Self::None => 0,
            Self::AtFrees => STACKS_AT_ENDS as u32,
            Self::Python => (STACKS_AT_ENDS | STACK_PYTHON) as u32,
            Self::All => (STACK_PYTHON | STACK_NATIVE) as u32,
        }
    }
}

impl Kernel {
    /// Has the kernel measure its programs, all of the machine, while the descriptor is open (Linux 5.8, `CAP_SYS_ADMIN`).
    #[must_use]
    pub fn measure_programs() -> Option<OwnedFd> {
        enable_stats(Stats::RunTime).ok()
    }

    /// What the programs of this trace have taken.
    #[must_use]
    pub fn program_time(&self) -> ProgramTime {
        // Programs that are not loaded have nothing to say.
        let loaded = self.ebpf.programs().filter_map(|(_, program)| program.info().ok());
        loaded.fold(ProgramTime::default(), |sum, info| ProgramTime {
            run_time: sum.run_time + info.run_time(),
            runs: sum.runs + info.run_count(),
        })
    }

    /// From here on these call stacks are not taken.
    pub fn leave_out_stacks(&mut self, which: LeftOutStacks) -> Result<(), KernelError> {
        const NAME: &str = "STACKS_LEFT_OUT";
        let map = self.ebpf.map_mut(NAME).ok_or(no_map(NAME))?;
        let mut left_out: Array<_, u32> = Array::try_from(map).map_err(|error| map_error(NAME, &error))?;
        left_out.set(0, &which.bits(), 0).map_err(|error| map_error(NAME, &error))
    }
}
