//! A tiny process that never leaves a traced program stopped.
//!
//! The kernel side stops a process while the tracer looks for new libraries. If the tracer is killed in that
//! moment, nobody would continue it. The guard holds the reading end of a pipe: when that closes without a
//! farewell, it continues every process it was told of, and their descendants.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::fd::OwnedFd,
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask},
    unistd::{ForkResult, Pid, fork, pipe2, setsid},
};

use super::capabilities;

/// Said instead of a process id: the tracer ends in order.
const FAREWELL: u32 = 0;
/// Said with a process id: it has ended. Numbers of processes are smaller.
const ENDED: u32 = 1 << 31;
/// After the tracer's death the kernel may still stop a process until the last link is gone.
const VIGIL: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);

/// The tracer's end of the pipe.
#[derive(Debug)]
pub struct Guard {
    pipe: File,
    pid: Pid,
}

impl Guard {
    /// Forks the guard. To be called while this process has one thread.
    pub fn start() -> io::Result<Self> {
        let (reader, writer) = pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        // SAFETY: the process has one thread, so the child may use everything.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => Ok(Self { pipe: File::from(writer), pid: child }),
            ForkResult::Child => {
                drop(writer);
                watch(reader);
                // SAFETY: ends the child without running the parent's exit handlers.
                unsafe { libc::_exit(0) }
            }
        }
    }

    /// Puts a process under the guard.
    pub fn add(&mut self, pid: u32) {
        // A guard that was killed cannot help; the trace goes on without it.
        let _ = self.pipe.write_all(&pid.to_ne_bytes());
    }

    /// A process has ended; its number may be somebody else's from now on.
    pub fn remove(&mut self, pid: u32) {
        let _ = self.pipe.write_all(&(pid | ENDED).to_ne_bytes());
    }

    /// Ends the guard: nothing is left to be continued.
    pub fn dismiss(mut self) {
        let _ = self.pipe.write_all(&FAREWELL.to_ne_bytes());
        let _ = nix::sys::wait::waitpid(self.pid, None);
    }
}

fn watch(reader: OwnedFd) {
    // Not of the terminal's group any more: Ctrl-C is for the tracer.
    let _ = setsid();
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
    // SAFETY: a constant name.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"memscope-guard".as_ptr()) };
    // With more than it needs it works as well.
    let _ = capabilities::keep_for_guard();
    let mut pipe = File::from(reader);
    let mut pids = BTreeSet::new();
    let mut word = [0; 4];
    while pipe.read_exact(&mut word).is_ok() {
        match u32::from_ne_bytes(word) {
            FAREWELL => return,
            ended if ended & ENDED != 0 => {
                pids.remove(&(ended & !ENDED));
            }
            pid => {
                pids.insert(pid);
            }
        }
    }
    let start = Instant::now();
    while start.elapsed() < VIGIL && !pids.is_empty() {
        pids = continue_all(&pids);
        thread::sleep(PAUSE);
    }
}

/// Continues the stopped ones; gives those that live, with their children.
fn continue_all(pids: &BTreeSet<u32>) -> BTreeSet<u32> {
    let mut living = BTreeSet::new();
    for &pid in pids {
        let Some(state) = state(pid) else { continue };
        living.insert(pid);
        living.extend(children(pid));
        if state == 'T' {
            let _ = kill(Pid::from_raw(pid as i32), Signal::SIGCONT);
        }
    }
    living
}

/// State letter from `/proc/<pid>/stat`; `None` when the process is gone.
#[must_use]
pub fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything, parentheses too.
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Direct children of all threads of a process.
#[must_use]
pub fn children(pid: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|list| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}
