//! Stops and kills programs at chosen moments, as a debugger does.

use std::collections::HashMap;
use std::fs;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

fn next_stop(tid: Pid) -> Option<WaitStatus> {
    let flags = WaitPidFlag::__WALL | WaitPidFlag::WNOHANG;
    waitpid(tid, Some(flags)).ok().filter(|status| *status != WaitStatus::StillAlive)
}

/// Traces the first thread of a process, and passes on whatever comes, as long as `goes_on` says so. The others are left alone: letting
/// go of a thread interrupts what it waits for.
pub fn debug(pid: u32, mut goes_on: impl FnMut() -> bool) {
    let tid = Pid::from_raw(pid.cast_signed());
    ptrace::seize(tid, Options::empty()).expect("a program to trace");
    let deadline = Instant::now() + PATIENCE;
    while goes_on() {
        assert!(Instant::now() < deadline, "nothing happened");
        if let Some(status) = next_stop(tid) {
            pass_on(tid, status);
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    // Only a stopped thread can be let go of.
    let _ = ptrace::interrupt(tid);
    while let Ok(status) = waitpid(tid, Some(WaitPidFlag::__WALL)) {
        if !matches!(status, WaitStatus::Stopped(..)) {
            break;
        }
        pass_on(tid, status);
    }
    let _ = ptrace::detach(tid, None);
}

fn pass_on(tid: Pid, status: WaitStatus) {
    let signal = match status {
        WaitStatus::Stopped(_, signal) => Some(signal),
        _ => None,
    };
    let _ = ptrace::cont(tid, signal);
}

/// A system call that a thread enters, or has made: its number and its first argument.
type Call = (bool, i64, u64);

/// The system call at whose start or end a thread is stopped. The number is known at the start only.
fn system_call(tid: Pid) -> Option<Call> {
    const GET_SYSCALL_INFO: libc::c_uint = 0x420e;
    const ENTRY: u8 = 1;
    let mut info = MaybeUninit::<[u64; 11]>::zeroed();
    // SAFETY: the kernel writes at most the given number of bytes.
    let size = unsafe { libc::ptrace(GET_SYSCALL_INFO, tid.as_raw(), size_of::<[u64; 11]>(), info.as_mut_ptr()) };
    // SAFETY: zeroes are a value, and the kernel has written over them.
    let words = unsafe { info.assume_init() };
    let entry = words[0].to_le_bytes()[0] == ENTRY;
    (size > 0).then_some((entry, words[3].cast_signed(), words[4]))
}

/// Kills a program before or behind step `at`, from 0, that a thread called `name` makes by `ptrace`, or else when it `is_over`. Gives the
/// steps until then by their `PTRACE_…`, and whether there was that step.
pub fn kill_at_step(pid: u32, name: &str, (at, behind): (usize, bool), is_over: impl Fn() -> bool) -> (Vec<u32>, bool) {
    let process = Pid::from_raw(pid.cast_signed());
    ptrace::seize(process, Options::PTRACE_O_TRACECLONE | Options::PTRACE_O_TRACESYSGOOD).expect("a program to trace");
    let (mut threads, mut steps, mut requests) = (vec![(process, false)], Vec::new(), HashMap::new());
    let deadline = Instant::now() + PATIENCE;
    while !is_over() {
        assert!(Instant::now() < deadline, "no such step; until then {steps:?}");
        for (tid, is_new) in threads.clone() {
            let Some(status) = next_stop(tid) else { continue };
            if let WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_CLONE) = status {
                let child = ptrace::getevent(tid).expect("a thread");
                threads.push((Pid::from_raw(child as i32), true));
            }
            if let WaitStatus::PtraceSyscall(_) = status
                && let Some((begins, number, argument)) = system_call(tid)
            {
                let is_named = fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm"));
                let is_wanted = is_named.is_ok_and(|found| found.trim_end() == name);
                if begins {
                    requests.insert(tid, (number == libc::SYS_ptrace).then_some(argument as u32));
                }
                let request = requests.get(&tid).copied().flatten();
                if let Some(request) = request.filter(|_| is_wanted && begins != behind) {
                    steps.push(request);
                    if steps.len() > at {
                        kill(process, Signal::SIGKILL).expect("a program to kill");
                        reap(&threads);
                        return (steps, true);
                    }
                }
            }
            let signal = match status {
                WaitStatus::Stopped(_, signal) => Some(signal),
                _ => None,
            };
            let _ = if is_new { ptrace::syscall(tid, signal) } else { ptrace::cont(tid, signal) };
        }
        std::thread::sleep(Duration::from_micros(20));
    }
    kill(process, Signal::SIGKILL).expect("a program to kill");
    reap(&threads);
    (steps, false)
}

/// Takes note of the ends of threads that are traced; that of the process is its parent's.
fn reap(threads: &[(Pid, bool)]) {
    for (tid, is_new) in threads {
        while *is_new && let Ok(status) = waitpid(*tid, Some(WaitPidFlag::__WALL)) {
            if matches!(status, WaitStatus::Exited(..) | WaitStatus::Signaled(..)) {
                break;
            }
        }
    }
}
