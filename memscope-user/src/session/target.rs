//! The kernel side, the followed processes, and the started program.

use std::{io, path::Path, sync::Arc};

use memscope_common::Miss;
use nix::{
    errno::Errno,
    sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid},
    unistd::Pid,
};

use super::{Shared, TraceError, log::Speaker, operators, pools, text::library_names};
use crate::{
    capture::{LossCount, Note},
    follow::{Change, Follow, expected_libraries, mstx_tool::MstxTool},
    kernel::{Kernel, KernelError},
    os::secure_env,
    probes::{ProbeSpec, lacks_python_calls},
    sinks::log::Level,
};

/// Of a script's trace, where the kernel lacks what its calls are read by.
const NO_CALLS: &str =
    "of Python traces only ranges are available, no calls: this kernel has no attach cookies (Linux 5.15)";

/// Everything that touches traced processes.
pub(super) struct Target {
    pub(super) kernel: Kernel,
    pub(super) follow: Follow,
    /// Probes of the options.
    pub(super) user: Vec<&'static ProbeSpec>,
    /// Accesses of operators are wanted.
    pub(super) accesses: bool,
    pub(super) only_user: Option<u32>,
    pub(super) child: Option<Child>,
    /// The user knows that call stacks are left out.
    pub(super) behind_reported: bool,
    pub(super) speaker: Speaker,
}

/// The started program.
pub(super) struct Child {
    pub(super) pid: Pid,
    end: Option<ChildEnd>,
    shared: Arc<Shared>,
}

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChildEnd {
    Status(u8),
    /// Another part of this process has taken its status, or it is not kept.
    Unknown,
}

impl Child {
    /// A forked program; handles of the trace see it from now on.
    pub(super) fn new(pid: Pid, shared: Arc<Shared>) -> Self {
        *shared.program() = Some(pid);
        Self { pid, end: None, shared }
    }

    /// Takes its status if it has ended. Block watch traces its threads from a thread of ours, and must get their
    /// stops, so the child is first checked without waiting.
    pub(super) fn look(&mut self) {
        if self.end.is_some() {
            return;
        }
        let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        match waitid(Id::Pid(self.pid), look) {
            Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(Errno::ECHILD) => self.take(),
            _ => {}
        }
    }

    /// Waits for its end.
    pub(super) fn wait(&mut self) {
        if self.end.is_none() {
            let _ = waitid(Id::Pid(self.pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
            self.take();
        }
    }

    /// From here on its number may be another process's, so handles lose it at the same time.
    fn take(&mut self) {
        let mut program = self.shared.program();
        let status = exit_status(waitpid(self.pid, None));
        *program = None;
        drop(program);
        self.end = Some(status.map_or(ChildEnd::Unknown, ChildEnd::Status));
    }

    pub(super) const fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    pub(super) const fn status(&self) -> Option<u8> {
        match self.end {
            Some(ChildEnd::Status(status)) => Some(status),
            Some(ChildEnd::Unknown) | None => None,
        }
    }
}

/// Exit status as shells give it; `None` if unknown.
fn exit_status(waited: nix::Result<WaitStatus>) -> Option<u8> {
    const KILLED: u8 = 128;
    match waited {
        Ok(WaitStatus::Exited(_, code)) => Some(code as u8),
        Ok(WaitStatus::Signaled(_, signal, _)) => Some(KILLED.wrapping_add(signal as i32 as u8)),
        _ => None,
    }
}

impl Target {
    /// A trace that cannot see its target does not start.
    pub(super) fn refuse_denied(&self, pid: u32) -> Result<(), TraceError> {
        match self.follow.libraries().denied().next() {
            None => Ok(()),
            Some(library) => {
                let error = library.error.as_deref().unwrap_or_default();
                let path = library.path.display();
                Err(TraceError::Process(format!("cannot attach to process {pid}: {path}: {error}; run with sudo")))
            }
        }
    }

    /// Files of the processes that could not be opened, which are reported.
    pub(super) fn unopened(&self) -> Vec<String> {
        let files: Vec<_> =
            self.follow.libraries().denied().map(|library| library.path.display().to_string()).collect();
        if !files.is_empty() {
            let text = format_args!(
                "{} file(s) of traced processes may not be opened: calls in them are missing",
                files.len()
            );
            self.speaker.error(text);
        }
        files
    }

    /// Libraries that the program will probably map are probed before it starts.
    pub(super) fn expect_libraries(&mut self, program: &Path, tool: Option<&MstxTool>) -> Result<(), TraceError> {
        const LOADERS: [&str; 3] =
            ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1", "/lib/ld-musl-x86_64.so.1"];
        let environment = secure_env::program_environment();
        let loaders = LOADERS.iter().filter_map(|path| Path::new(path).canonicalize().ok());
        for path in loaders.chain(expected_libraries(&environment, &self.user)) {
            self.follow.expect(&mut self.kernel, &path)?;
        }
        let pairs = environment.iter().map(|(name, value)| format!("{name}={value}\0"));
        self.follow.expect_program(&mut self.kernel, program, pairs.collect::<String>().as_bytes())?;
        self.report_libraries();
        if let Some(tool) = tool {
            self.follow.expect_mstx_tool(&mut self.kernel, tool.path())?;
        }
        Ok(())
    }

    /// Removes processes that have changed to other rights, if requested.
    pub(super) fn leave_others(&mut self) -> Result<(), KernelError> {
        self.only_user.map_or(Ok(()), |uid| self.follow.leave_others(&mut self.kernel, uid))
    }

    /// Looks whether the program has ended.
    pub(super) fn look_at_child(&mut self) {
        if let Some(child) = &mut self.child {
            child.look();
        }
    }

    /// The kernel side's counters, so that a recovered trace knows its losses too.
    pub(super) fn losses(&mut self) -> Option<Note> {
        let misses = self.kernel.misses().ok().filter(|misses| !misses.is_empty())?;
        if misses.iter().any(|(_, miss, _)| *miss == Miss::StackLeftOut) {
            self.report_behind();
        }
        let by = misses.into_iter().map(|(row, miss, count)| LossCount { row, reason: miss as u32, count }).collect();
        Some(Note::Losses { by })
    }

    /// Records that the transport had no room for.
    pub(super) fn lost(&self) -> u64 {
        self.kernel.count(Miss::RingFull).unwrap_or(0)
    }

    /// Reports, once, that call stacks are left out.
    fn report_behind(&mut self) {
        if !self.behind_reported {
            self.behind_reported = true;
            self.speaker.warn(format_args!(
                "the tracer is behind: calls have no call stack until it has caught up; they are counted"
            ));
        }
    }

    /// Reports how often threads and processes had to wait until libraries were probed.
    pub(super) fn report_waits(&self) {
        let [held, stopped] = [Miss::Held, Miss::Stopped].map(|miss| self.kernel.count(miss).unwrap_or(0));
        self.speaker.debug(format_args!("late libraries: {held} hold(s), {stopped} stop(s)"));
    }

    pub(super) fn report_interpreters(&mut self) {
        for text in self.follow.take_messages() {
            self.speaker.warn(format_args!("{text}"));
        }
    }

    pub(super) fn report_libraries(&mut self) {
        self.report_interpreters();
        for library in self.follow.take_added() {
            let path = library.path.display();
            if let Some(known) = &library.same_as {
                let text = format_args!("{path}: the same file as {}, its probes cover both", known.display());
                self.speaker.debug(text);
                continue;
            }
            if let Some(error) = &library.error {
                self.speaker.warn(format_args!("{path}: {error}"));
            }
            for (symbol, reason) in &library.not_located {
                self.speaker.warn(format_args!("{path}: `{symbol}` is not traced: {reason}"));
            }
            for (symbol, (vaddr, evidence)) in library.placed.iter().filter_map(|p| Some((&p.symbol, p.located?))) {
                self.speaker.debug(format_args!("{path}: `{symbol}` located at {vaddr:#x} ({evidence})"));
            }
            let stepped = library.placed.iter().filter(|placed| placed.is_stepped()).count();
            let probes = library.placed.len();
            self.speaker.debug(format_args!("{path}: {probes} probe(s), {stepped} of them single-stepped"));
            if lacks_python_calls(|symbol| library.placed.iter().any(|placed| placed.symbol == symbol)) {
                self.speaker.info(format_args!("{path}: {NO_CALLS}"));
            }
            if let Some(ops) = library.ops {
                let (warns, text) = operators::describe(&library.path, ops, self.accesses);
                self.speaker.say(if warns { Level::Warn } else { Level::Debug }, format_args!("{text}"));
            }
        }
    }

    /// No process has loaded a known library: the program is another one, or it works in a process that is not
    /// followed.
    pub(super) fn report_nothing_traced(&self) {
        let own = if self.user.is_empty() { "" } else { ", and none that --probe names" };
        let text = format_args!(
            "nothing was traced: no traced process loaded an Ascend library (driver, runtime, ACL, torch_npu, MindSpore, \
             ATB or mstx){own}"
        );
        self.speaker.warn(text);
        self.report_names();
    }

    /// Reports the libraries that are searched for.
    pub(super) fn report_names(&self) {
        self.speaker.debug(format_args!("looked for {}", library_names(&self.user)));
    }
}

/// The capture's note of a change.
pub(super) fn change_note(change: Change) -> Note {
    match change {
        Change::Started { pid, parent, attached, command, visible_devices, pid_within } => {
            let device = attached.then(|| pools::device(pid)).flatten();
            Note::ProcessStart { pid, parent, attached, command, visible_devices, pid_within, device }
        }
        Change::Set { pid, settings } => Note::Settings { pid, settings },
        Change::Ended { pid } => Note::ProcessEnd { pid },
    }
}

/// Reports clearly the problem with a process id.
pub(super) fn check(pid: u32) -> Result<(), TraceError> {
    let wrong = |text: String| Err(TraceError::Process(text));
    let status = match std::fs::read_to_string(format!("/proc/{pid}/status")) {
        Ok(status) => status,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return wrong(format!("no process {pid}: it does not exist, or has ended"));
        }
        Err(source) => return Err(TraceError::Look { pid, source }),
    };
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    if let Some(group) = field("Tgid:")
        && group != pid.to_string()
    {
        return wrong(format!("{pid} is a thread of process {group}: use --pid {group}"));
    }
    if field("State:").is_some_and(|state| state.starts_with(['Z', 'X'])) {
        return wrong(format!("process {pid} has ended and only waits for its parent"));
    }
    if pid == std::process::id() {
        return wrong(format!("{pid} is this tracer itself"));
    }
    Ok(())
}
