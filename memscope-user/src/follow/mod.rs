//! Keeps up with the traced processes: new children, new programs, new libraries, ends.

mod ahead;
mod choice;
mod environment;
mod expected;
mod given_up;
pub mod guard;
pub mod inherited;
pub mod interpreters;
pub mod libraries;
pub mod mstx_tool;
mod prefault;
pub mod spawn;
mod unused;
pub mod waits;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs,
    os::fd::{AsFd as _, OwnedFd},
    thread,
    time::{Duration, Instant},
};

use memscope_common::{config::IMAGE_LOADER, record::Kind};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

pub(crate) use self::environment::visible_devices;
use self::{
    ahead::Ahead,
    environment::settings_of,
    given_up::GivenUp,
    guard::Guard,
    interpreters::Interpreters,
    libraries::{Libraries, Library},
    waits::Waits,
};
pub use self::{
    choice::{Change, FollowOptions},
    environment::expected_libraries,
    unused::mapped_by,
};
use crate::{
    capture::Note,
    kernel::{Kernel, KernelError},
    os::{
        memory::page_size,
        pidfd,
        process::{children, command, environment, is_alive, pid_within, start_ticks, state},
        rights::has_other_rights,
    },
    probes::ProbeSpec,
    ring::Urgent,
};

/// Longest time from `SIGSTOP` until a process stops.
const STOP_PATIENCE: Duration = Duration::from_millis(50);
/// After this time a process that we continued is checked: whether it is stopped, still or again; and once more after
/// as long. If both times it is, and no stop was reported meanwhile, it is continued. One check is not enough: the
/// report of another stop may be on its way to us, and a process continued before it makes unseen calls.
const SECOND_LOOK: Duration = Duration::from_millis(100);

/// A traced process.
#[derive(Debug)]
struct Process {
    /// Its parent; 0 if the user named it.
    parent: u32,
    /// Readable when the process is gone; `None` when it was gone already, or at the limit of open files.
    pidfd: Option<OwnedFd>,
    /// When it was started, in clock ticks since boot: numbers are used again.
    start_ticks: Option<u64>,
}

impl Process {
    /// Whether the number is another process's now.
    fn is_another(&self, pid: u32) -> bool {
        let has_ended = self.pidfd.as_ref().is_some_and(|fd| pidfd::has_ended(fd.as_fd()) == Some(true));
        // A tick is long enough for two processes.
        has_ended && is_alive(pid) || self.start_ticks.zip(start_ticks(pid)).is_some_and(|(one, other)| one != other)
    }
}

/// A check of a process that was continued.
#[derive(Clone, Copy, Debug)]
struct SecondLook {
    when: Instant,
    pid: u32,
    /// It was checked before.
    was_stopped: bool,
}

/// All traced processes.
pub struct Follow {
    options: FollowOptions,
    libraries: Libraries,
    ahead: Ahead,
    guard: Guard,
    waits: Waits,
    /// Messages for the user.
    messages: Vec<String>,
    /// Processes with a warning that first calls may be missed.
    warned: BTreeSet<u32>,
    /// Processes of such a message, each time.
    warnings: u32,
    /// Programs without a loader that need not be stopped: while they are open, their inodes are no other file's.
    static_programs: Vec<fs::File>,
    /// The message was sent that a search for libraries has reached its limit.
    was_cut: bool,
    /// If Python stacks are taken.
    interpreters: Option<Interpreters>,
    processes: BTreeMap<u32, Process>,
    /// In the order of their times.
    second_looks: VecDeque<SecondLook>,
    changes: Vec<Change>,
    added: Vec<Library>,
    /// Readable while a process has ended that was not reaped.
    ended: Option<Epoll>,
}

impl Follow {
    /// Without any process.
    #[must_use]
    pub fn new(
        options: FollowOptions,
        libraries: Libraries,
        user: &[&'static ProbeSpec],
        guard: Guard,
        waits: Waits,
    ) -> Self {
        Self {
            options,
            libraries,
            ahead: Ahead::new(user),
            guard,
            waits,
            messages: Vec::new(),
            warned: BTreeSet::new(),
            warnings: 0,
            static_programs: Vec::new(),
            was_cut: false,
            interpreters: None,
            processes: BTreeMap::new(),
            second_looks: VecDeque::new(),
            changes: Vec::new(),
            added: Vec::new(),
            ended: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).ok(),
        }
    }

    /// A descriptor that is readable while [`reap`](Self::reap) would find a process.
    #[must_use]
    pub fn ended(&self) -> Option<OwnedFd> {
        self.ended.as_ref()?.0.try_clone().ok()
    }

    /// The placed probes.
    #[must_use]
    pub const fn libraries(&self) -> &Libraries {
        &self.libraries
    }

    /// Follows Python interpreters, too.
    pub fn follow_python(&mut self, interpreters: Interpreters) {
        self.interpreters = Some(interpreters);
    }

    /// Messages for the user about processes and Python interpreters, since the last call.
    pub fn take_messages(&mut self) -> Vec<String> {
        let mut messages = std::mem::take(&mut self.messages);
        messages.extend(self.interpreters.as_mut().map(Interpreters::take_messages).unwrap_or_default());
        messages
    }

    /// As [`Libraries::set_on_note`].
    pub fn set_on_note(&mut self, on_note: impl Fn(Note) + 'static) {
        self.libraries.set_on_note(on_note);
    }

    /// What happened since the last call.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Files probed since the last call.
    pub fn take_added(&mut self) -> Vec<Library> {
        std::mem::take(&mut self.added)
    }

    /// Traces a child of ours that has not executed yet.
    pub fn start(&mut self, kernel: &mut Kernel, pid: u32) -> Result<(), KernelError> {
        self.enter(pid, 0, false);
        kernel.trace(pid, self.options.process_state(0))
    }

    /// Traces a running process, and its children if wanted. `on_change` is called before the first call of a process
    /// can be seen.
    pub fn attach(
        &mut self,
        kernel: &mut Kernel,
        pid: u32,
        mut on_change: impl FnMut(Change),
    ) -> Result<(), KernelError> {
        let mut queue = VecDeque::from([(pid, 0)]);
        while let Some((pid, parent)) = queue.pop_front() {
            if self.processes.contains_key(&pid) {
                continue;
            }
            // Probes first, then the filter: from there on every call of every probe is seen.
            self.scan(kernel, pid)?;
            self.look_ahead(kernel, pid)?;
            self.enter(pid, parent, true);
            self.take_changes().into_iter().for_each(&mut on_change);
            kernel.trace(pid, self.options.process_state(parent))?;
            self.scan(kernel, pid)?;
            self.added.extend(self.libraries.announce(kernel));
            if self.options.children {
                queue.extend(children(pid).into_iter().map(|child| (child, pid)));
            }
        }
        Ok(())
    }

    /// Handles a report of the kernel side.
    pub fn handle(&mut self, kernel: &mut Kernel, urgent: Urgent) -> Result<(), KernelError> {
        if urgent.kind == Kind::Fork {
            self.warned.remove(&urgent.child);
            // The number was another process's, with an unhandled end.
            if self.processes.get(&urgent.child).is_some_and(|process| process.is_another(urgent.child)) {
                self.remove(urgent.child);
            }
            if !self.processes.contains_key(&urgent.child) {
                self.enter(urgent.child, urgent.pid, false);
                // It has its parent's mappings, but not all of their pages.
                bring_in_texts(kernel, urgent.child);
                if let Some(interpreters) = &mut self.interpreters {
                    interpreters.forked(urgent.pid, urgent.child);
                }
            }
            return Ok(());
        }
        let known = self.added.len();
        let ahead = if urgent.kind == Kind::Exec { self.look_ahead(kernel, urgent.pid) } else { Ok(()) };
        let scanned = ahead.and(self.look(kernel, urgent));
        let took_too_long = urgent.held.is_some_and(|held| !self.waits.release(held));
        let given_up = took_too_long.then_some(GivenUp::TooLong).or(urgent.withheld.map(GivenUp::Withheld));
        if let Some(why) = given_up {
            self.went_on(urgent, why, known, scanned.is_ok());
        }
        if urgent.stopped {
            if scanned.is_ok() {
                self.learn(kernel, urgent.pid);
            }
            self.resume(urgent.pid);
        }
        scanned
    }

    /// A process went on before its new libraries were probed. Those from `known` on were found since; nothing is
    /// known of a process that is gone.
    fn went_on(&mut self, urgent: Urgent, why: GivenUp, known: usize, was_scanned: bool) {
        let pid = urgent.pid;
        let is_gone = !is_alive(pid);
        let added = self.added.get(known..).unwrap_or_default();
        let is_harmless = !is_gone
            && was_scanned
            && !added.iter().any(|file| self.libraries.is_of_stack(file))
            // A program's libraries come later, and are reported then.
            && (urgent.kind == Kind::Library || self.libraries.has_probed_loader(pid));
        if was_scanned {
            self.libraries.note_late(added, is_gone.then_some(pid));
        }
        if !is_harmless {
            self.warn_given_up(pid, why);
        }
    }

    /// Warns once per process that its first calls may be missed, up to a number of processes.
    fn warn_given_up(&mut self, pid: u32, why: GivenUp) {
        /// A script of many short programs must not bury other messages.
        const MOST: u32 = 20;
        if !self.warned.insert(pid) || self.warnings > MOST {
            return;
        }
        self.warnings += 1;
        self.messages.push(if self.warnings > MOST {
            "more processes did not wait until their new libraries were probed: the summary counts them".to_owned()
        } else {
            why.text(pid, &command(pid))
        });
    }

    /// Examines a process that has mapped a file.
    fn look(&mut self, kernel: &mut Kernel, urgent: Urgent) -> Result<(), KernelError> {
        let mut scanned = self.scan(kernel, urgent.pid);
        self.added.extend(self.libraries.announce(kernel));
        if let Some(interpreters) = self.interpreters.as_mut().filter(|_| urgent.kind == Kind::Exec) {
            scanned = scanned.and(interpreters.executed(kernel, urgent.pid));
        }
        if urgent.kind == Kind::Exec
            && let Some(parent) = self.processes.get(&urgent.pid).map(|process| process.parent)
        {
            // Another name, and maybe another environment.
            self.describe(urgent.pid, parent, false);
        }
        scanned
    }

    /// The file that a stopped process has begun to run is known now: a later process that runs it need not be stopped.
    fn learn(&mut self, kernel: &mut Kernel, pid: u32) {
        const MAX_STATIC: usize = 256;
        let Some(image) = kernel.new_image(pid) else { return };
        if image.kind == IMAGE_LOADER {
            if self.libraries.has_probed_loader(pid) {
                kernel.know_image(image);
            }
        } else if self.static_programs.len() < MAX_STATIC
            && let Ok(program) = fs::File::open(format!("/proc/{pid}/exe"))
        {
            self.static_programs.push(program);
            kernel.know_image(image);
        }
    }

    fn scan(&mut self, kernel: &mut Kernel, pid: u32) -> Result<(), KernelError> {
        self.added.extend(self.libraries.attach(kernel, pid)?);
        let naming = self.libraries.take_naming();
        let found = if naming.is_empty() { Vec::new() } else { self.ahead.of_libraries(pid, naming) };
        self.probe_ahead(kernel, found)?;
        bring_in_texts(kernel, pid);
        match &mut self.interpreters {
            Some(interpreters) => interpreters.look(kernel, pid),
            None => Ok(()),
        }
    }

    fn enter(&mut self, pid: u32, parent: u32, attached: bool) {
        // Closed with the process's entry, it leaves the set by itself.
        let pidfd = pidfd::open(pid).ok().filter(|pidfd| {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, 0);
            self.ended.as_ref().is_some_and(|ended| ended.add(pidfd, event).is_ok())
        });
        self.processes.insert(pid, Process { parent, pidfd, start_ticks: start_ticks(pid) });
        self.describe(pid, parent, attached);
    }

    fn describe(&mut self, pid: u32, parent: u32, attached: bool) {
        let environment = environment(pid);
        self.changes.push(Change::Started {
            pid,
            parent,
            attached,
            command: command(pid),
            visible_devices: environment.as_deref().and_then(visible_devices),
            pid_within: pid_within(pid),
        });
        // An unreadable process has no note, and its settings are unknown.
        if let Some(environment) = environment {
            self.changes.push(Change::Set { pid, settings: settings_of(&environment) });
        }
    }

    /// Continues a process that the kernel side has sent `SIGSTOP`. The signal comes after the record, so the stop is
    /// awaited: continuing too early would leave the process stopped for good.
    fn resume(&mut self, pid: u32) {
        let start = Instant::now();
        while start.elapsed() < STOP_PATIENCE {
            match state(pid) {
                Some('T') => break,
                None | Some('Z' | 'X') => return,
                Some(_) => thread::sleep(Duration::from_micros(20)),
            }
        }
        self.waits.resume(pid);
        self.second_looks.retain(|look| look.pid != pid);
        self.look_soon(pid, false);
    }

    fn look_soon(&mut self, pid: u32, was_stopped: bool) {
        self.second_looks.push_back(SecondLook { when: Instant::now() + SECOND_LOOK, pid, was_stopped });
    }

    /// Checks processes that were continued, and interpreters that have not started; call regularly.
    pub fn look_again(&mut self, kernel: &mut Kernel) -> Result<(), KernelError> {
        while let Some(look) = self.second_looks.pop_front_if(|look| look.when <= Instant::now()) {
            match state(look.pid) {
                Some('T') if !self.waits.is_ours(look.pid) => {}
                Some('T') if look.was_stopped => self.waits.resume(look.pid),
                Some('T') => self.look_soon(look.pid, true),
                _ => self.waits.settle(look.pid),
            }
        }
        match &mut self.interpreters {
            Some(interpreters) => interpreters.look_again(kernel),
            None => Ok(()),
        }
    }

    /// Whether a check is due soon: of a process that was continued, is about to run Python, or ends without a report.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        !self.second_looks.is_empty()
            || self.interpreters.as_ref().is_some_and(Interpreters::is_waiting)
            || self.processes.values().any(|process| process.pidfd.is_none())
    }

    /// Finds processes that have ended. Returns the number of living ones.
    pub fn reap(&mut self) -> usize {
        let gone: Vec<u32> = self
            .processes
            .iter()
            .filter(|(pid, process)| match &process.pidfd {
                Some(fd) => pidfd::has_ended(fd.as_fd()).unwrap_or(false),
                None => !is_alive(**pid),
            })
            .map(|(pid, _)| *pid)
            .collect();
        for pid in gone {
            self.remove(pid);
        }
        self.processes.len()
    }

    /// Whether a child lives with its report still on its way to us. The kernel side puts it into the trace before its
    /// parent can end, so a visible child is there by then.
    pub fn expects_more(&self, kernel: &mut Kernel) -> Result<bool, KernelError> {
        let is_unknown = |pid: &u32| !self.processes.contains_key(pid) && is_alive(*pid);
        Ok(kernel.traced()?.iter().any(is_unknown))
    }

    /// Removes processes of other users from the trace, also those that became so: they run a program with other
    /// rights.
    pub fn leave_others(&mut self, kernel: &mut Kernel, uid: u32) -> Result<(), KernelError> {
        let others: Vec<u32> = self.processes.keys().copied().filter(|pid| has_other_rights(*pid, uid)).collect();
        for pid in others {
            kernel.forget(pid)?;
            self.remove(pid);
        }
        Ok(())
    }

    /// A process leaves the trace. Its children stay.
    pub fn leave(&mut self, kernel: &mut Kernel, pid: u32) -> Result<(), KernelError> {
        kernel.forget(pid)?;
        if self.processes.contains_key(&pid) {
            self.remove(pid);
        }
        Ok(())
    }

    /// Has the calls of a process about single blocks of pools passed over, or traced again. False: it is not in the trace.
    pub fn reduce(&self, kernel: &mut Kernel, pid: u32, is_reduced: bool) -> Result<bool, KernelError> {
        let is_known = self.processes.contains_key(&pid);
        if is_known {
            kernel.reduce(pid, is_reduced)?;
        }
        Ok(is_known)
    }

    fn remove(&mut self, pid: u32) {
        self.processes.remove(&pid);
        if let Some(interpreters) = &mut self.interpreters {
            interpreters.ended(pid);
        }
        self.changes.push(Change::Ended { pid });
    }

    /// No process stays behind stopped by us.
    pub fn end(mut self) {
        self.let_go();
        self.guard.dismiss();
    }

    /// As [`end`](Self::end), where records of stops may be lost: the guard is not dismissed and continues all that still wait.
    pub fn abandon(mut self) {
        self.let_go();
    }

    /// Releases all waiting threads and processes.
    pub fn let_go(&mut self) {
        self.waits.release_all();
        self.waits.resume_all();
    }
}

/// Texts that the kernel side could not wait for.
fn bring_in_texts(kernel: &Kernel, pid: u32) {
    if !kernel.can_touch() {
        prefault::bring_in(pid, page_size());
    }
}
