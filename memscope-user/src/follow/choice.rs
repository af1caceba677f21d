//! Options of tracing processes, and the changes of processes to report.

use memscope_common::config::{PROCESS_FOLLOW, PROCESS_HOLD, PROCESS_HOLD_ALWAYS, PROCESS_STOP, ProcessState};

use crate::os::clock::monotonic_ns;

/// How processes are traced.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a choice of its own")]
pub struct FollowOptions {
    /// Children join.
    pub children: bool,
    /// Hold a thread in the kernel while its new mappings are probed.
    pub hold: bool,
    /// Have it wait even if all that it has mapped is known.
    pub always: bool,
    /// Stop a process for it; with `hold`, only where nothing else will have it wait.
    pub stop: bool,
}

impl FollowOptions {
    pub(super) fn process_state(self, parent: u32) -> ProcessState {
        let children = if self.children { PROCESS_FOLLOW } else { 0 };
        let stop = if self.stop { PROCESS_STOP } else { 0 };
        let hold = if self.hold { PROCESS_HOLD } else { 0 };
        let always = if self.always { PROCESS_HOLD_ALWAYS } else { 0 };
        ProcessState {
            flags: children | stop | hold | always,
            parent,
            generation: monotonic_ns(),
            unmapping: 0,
            first_ended: 0,
        }
    }
}

/// A change for the session to record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A process is traced from now on.
    Started {
        /// The process.
        pid: u32,
        /// Its parent; 0 if the user named it.
        parent: u32,
        /// It was running before.
        attached: bool,
        /// Its short name.
        command: String,
        /// Which devices its environment lets it see.
        visible_devices: Option<String>,
        /// Its number in its own pid namespace, if different from ours.
        pid_within: Option<u32>,
    },
    /// Settings of the program that a process is.
    Set {
        /// The process.
        pid: u32,
        /// Name and value.
        settings: Vec<(String, String)>,
    },
    /// A process is gone; everything it did is in the transport.
    Ended {
        /// The process.
        pid: u32,
    },
}
