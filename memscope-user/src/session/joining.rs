//! Processes that join a running trace, and leave it.

use super::{
    react::Loop,
    target::{self, change_note},
};
use crate::{
    error_chain,
    follow::Change,
    kernel::{KernelError, LeftOutStacks},
    probes::{CallKind, PoolCall},
};

/// Calls that report the end of a pool's blocks.
const REPORTS: [PoolCall; 2] = [PoolCall::Report, PoolCall::Free];

impl Loop {
    /// Puts a running process into the trace.
    pub(super) fn add(&mut self, pid: u32) -> Result<(), KernelError> {
        let Self { target, stream, monitor, side, .. } = self;
        let mut running = Vec::new();
        let note = |change| {
            if let Some(monitor) = monitor {
                monitor.changed(&change);
            }
            running.extend(if let Change::Started { pid, attached: true, .. } = change { Some(pid) } else { None });
            stream.note(&change_note(change));
        };
        target.follow.attach(&mut target.kernel, pid, note)?;
        // From here on no call is missed. Of a pool of which no reports come, nothing that is found would ever end.
        if let Some(pools) = &side.pools
            && REPORTS.iter().any(|call| target.follow.libraries().places(CallKind::Pool(*call)))
        {
            for pid in running {
                pools.read(pid);
            }
        }
        Ok(())
    }

    /// The same, where a failure is the process's alone: the trace of the others goes on.
    pub(super) fn join(&mut self, pid: u32) -> Result<(), String> {
        target::check(pid).map_err(|error| error_chain(&error))?;
        if let Err(error) = self.add(pid) {
            self.leave(pid);
            return Err(error_chain(&error));
        }
        self.stream.stacks.look_ahead(pid);
        self.note_changes();
        self.target.report_libraries();
        Ok(())
    }

    /// Takes a process out of the trace.
    pub(super) fn leave(&mut self, pid: u32) {
        let left = self.target.follow.leave(&mut self.target.kernel, pid);
        self.note_changes();
        if let Err(error) = left {
            self.speaker.warn(format_args!("process {pid} stays in the trace: {}", error_chain(&error)));
        }
    }

    /// Has fewer call stacks taken, or all again.
    pub(super) fn leave_out_stacks(&mut self, which: LeftOutStacks) {
        if let Err(error) = self.target.kernel.leave_out_stacks(which) {
            self.speaker.warn(format_args!("call stacks are taken as before: {}", error_chain(&error)));
        }
    }
}
