//! Processes that join a running trace, and leave it.

use super::{
    react::Loop,
    target::{self, Target, change_note},
};
use crate::{
    capture::Note,
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
        let Self { target, stream, monitor, .. } = self;
        let mut running = Vec::new();
        let note = |change| {
            if let Some(monitor) = monitor {
                monitor.changed(&change);
            }
            running.extend(if let Change::Started { pid, attached: true, .. } = change { Some(pid) } else { None });
            stream.note(&change_note(change));
        };
        target.follow.attach(&mut target.kernel, pid, note)?;
        // From here on no call is missed.
        self.read_pools(running);
        Ok(())
    }

    /// Has the pools of processes read. Of a pool of which no reports come, nothing that is found would ever end.
    fn read_pools(&self, pids: impl IntoIterator<Item = u32>) {
        let is_reported = |call| self.target.follow.libraries().places(CallKind::Pool(call));
        if let Some(pools) = self.side.pools.as_ref().filter(|_| REPORTS.into_iter().any(is_reported)) {
            pids.into_iter().for_each(|pid| pools.read(pid));
        }
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

    /// Has the calls of a process about blocks of pools passed over, or traced again.
    pub(super) fn reduce(&mut self, pid: u32, is_reduced: bool) {
        let note = |traced| self.stream.note(&Note::PoolBlocks { pid, traced });
        if !is_reduced {
            // What is reported from here on counts.
            note(true);
        }
        let Target { follow, kernel, .. } = &mut self.target;
        match follow.reduce(kernel, pid, is_reduced) {
            Ok(true) if is_reduced => note(false),
            Ok(true) => self.read_pools([pid]),
            Ok(false) => {}
            Err(error) => {
                let depth = if is_reduced { "with" } else { "without" };
                let why = error_chain(&error);
                self.speaker.warn(format_args!("process {pid} stays in the trace {depth} its pools: {why}"));
            }
        }
    }

    /// Has fewer call stacks taken, or all again.
    pub(super) fn leave_out_stacks(&mut self, which: LeftOutStacks) {
        if let Err(error) = self.target.kernel.leave_out_stacks(which) {
            self.speaker.warn(format_args!("call stacks are taken as before: {}", error_chain(&error)));
        }
    }
}
