//! Threads that the kernel side holds, and processes that it has stopped.
//!
//! The guard keeps the maps when the tracer is killed, so that no process waits for it forever.

use std::os::fd::{AsFd as _, OwnedFd};

use aya::{
    Pod,
    maps::{HashMap, Map, MapData, MapError},
};
use memscope_common::config::{HOLD_ASKED, HOLD_GIVEN_UP, ProcessState, STOP_AGAIN, STOP_OURS, STOP_THEIRS, Wait};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    kernel::{Kernel, KernelError, WAIT_MAPS, map_error},
    os::{
        clock::monotonic_ns,
        process::{is_alive, state},
    },
};

/// The maps of waiting threads and processes.
pub struct Waits {
    holds: HashMap<MapData, Wait, u64>,
    stops: HashMap<MapData, u32, u32>,
    processes: HashMap<MapData, u32, ProcessState>,
    fds: [OwnedFd; 3],
    /// Waits that were noticed.
    taken: Vec<Wait>,
}

fn open<K: Pod, V: Pod>(name: &'static str, fd: OwnedFd) -> Result<HashMap<MapData, K, V>, KernelError> {
    let map = MapData::from_fd(fd).and_then(|map| HashMap::try_from(Map::HashMap(map)));
    map.map_err(|error| map_error(name, &error))
}

impl Waits {
    /// Opens those of the loaded object.
    pub fn of(kernel: &Kernel) -> Result<Self, KernelError> {
        Self::open(kernel.wait_maps()?)
    }

    /// Opens them by their descriptors, in the order of [`WAIT_MAPS`].
    pub(crate) fn open(fds: [OwnedFd; 3]) -> Result<Self, KernelError> {
        let [holds, stops, processes] = again(&fds)?;
        let (holds, stops) = (open(WAIT_MAPS[0], holds)?, open(WAIT_MAPS[1], stops)?);
        Ok(Self { holds, stops, processes: open(WAIT_MAPS[2], processes)?, fds, taken: Vec::new() })
    }

    /// The same for another thread.
    pub fn try_clone(&self) -> Result<Self, KernelError> {
        Self::open(again(&self.fds)?)
    }

    /// The descriptors.
    pub(crate) const fn fds(&self) -> &[OwnedFd; 3] {
        &self.fds
    }

    /// Whether the maps can be read with the remaining privileges: before Linux 5.19 that takes some.
    pub(crate) fn is_readable(&self) -> bool {
        const NO_PROCESS: u32 = 0;
        match self.stops.get(&NO_PROCESS, 0) {
            Ok(_) | Err(MapError::KeyNotFound) => true,
            Err(_) => false,
        }
    }

    /// Whether a traced process lives, which may still be made to wait.
    pub(crate) fn has_living(&self) -> bool {
        self.processes.keys().filter_map(Result::ok).any(is_alive)
    }

    /// Notes a held thread: it may take longer now, as long as [`live`](Self::live) is called.
    pub fn take(&mut self, held: Wait) {
        if self.holds.get(&held, 0).is_ok_and(|state| state == HOLD_ASKED) {
            self.sign(held);
            self.taken.push(held);
        }
    }

    /// Gives a sign of life to the noted waits that go on.
    pub fn live(&mut self) {
        let mut taken = std::mem::take(&mut self.taken);
        taken.retain(|&held| {
            let waits = self.holds.get(&held, 0).is_ok_and(|state| state != HOLD_GIVEN_UP);
            if waits {
                self.sign(held);
            }
            waits
        });
        self.taken = taken;
    }

    /// One that gives up at this moment is not seen to have: it is counted.
    fn sign(&mut self, held: Wait) {
        const EXISTS: u64 = 2;
        let _ = self.holds.insert(&held, &monotonic_ns(), EXISTS);
    }

    /// Ends a wait. Returns false if the thread had given up before.
    pub fn release(&mut self, held: Wait) -> bool {
        let gave_up = self.holds.get(&held, 0).is_ok_and(|state| state == HOLD_GIVEN_UP);
        let _ = self.holds.remove(&held);
        !gave_up
    }

    /// Releases all held threads.
    pub fn release_all(&mut self) {
        let all: Vec<Wait> = self.holds.keys().filter_map(Result::ok).collect();
        for held in all {
            self.release(held);
        }
    }

    /// Whether a process waits only for us to continue it.
    #[must_use]
    pub fn is_ours(&self, pid: u32) -> bool {
        self.stops.get(&pid, 0).is_ok_and(|by| by & (STOP_OURS | STOP_THEIRS) == STOP_OURS)
    }

    /// Continues a process that we have stopped; one that another process has stopped as well stays stopped.
    pub fn resume(&mut self, pid: u32) {
        if self.is_ours(pid) {
            let target = Pid::from_raw(pid.cast_signed());
            let _ = kill(target, Signal::SIGCONT);
            // Their stop came between our look and our signal, which has undone it.
            if self.stops.get(&pid, 0).is_ok_and(|by| by == STOP_AGAIN) {
                let _ = kill(target, Signal::SIGSTOP);
            }
        }
    }

    /// Notes that a process we have continued runs: where the kernel side does not see signals, it has not seen ours
    /// either.
    pub fn settle(&mut self, pid: u32) {
        if self.is_ours(pid) {
            let _ = self.stops.remove(&pid);
        }
    }

    /// Continues all processes that we have stopped.
    pub fn resume_all(&mut self) {
        let pids: Vec<u32> = self.stops.keys().filter_map(Result::ok).collect();
        for pid in pids {
            if self.is_ours(pid) && state(pid) == Some('T') {
                self.resume(pid);
            }
        }
    }
}

fn again(fds: &[OwnedFd; 3]) -> Result<[OwnedFd; 3], KernelError> {
    let clone = |at: usize| fds[at].as_fd().try_clone_to_owned().map_err(|error| map_error(WAIT_MAPS[at], &error));
    Ok([clone(0)?, clone(1)?, clone(2)?])
}
