//! The handler in the process: how it gets there, when it is set up again, how it leaves.

use std::{
    collections::HashMap,
    thread,
    time::{Duration, Instant},
};

use memscope_common::{WatchedProcess, watch::ANY_HANDLER};

use super::super::{
    blob::{Call, SLOTS},
    callers::Callers,
    memory::Memory,
    setup::{self, Failure},
    shared::Shared,
    target::{self, Functions, Refusal},
};
use super::{ACLNN, Engine, MAX_REASONS, RETRY, Ready, State, is_there};
use crate::{
    os::{clock::monotonic_ns, process::environment},
    probes::{CallKind, WatchCall},
};

/// An entry is replaced, not made.
const BPF_EXIST: u64 = 2;

impl Engine {
    pub(super) fn try_set_up(&mut self, tid: u32) {
        let State::Waiting(since) = self.state else { return };
        if Instant::now() < since || !self.is_wanted() {
            return;
        }
        match self.set_up(tid) {
            Ok((shared, functions, memory)) => {
                self.inform(
                    "block watch is on: the program has two mappings and a handler for SIGURG of ours, and waits for its devices at each \
                     operator while a block is watched",
                );
                self.was_set_up = true;
                let work = std::array::from_fn(|_| None);
                let ready = Ready { shared, functions, memory, work, last_sites: self.sites_so_far() };
                self.state = State::Ready(Box::new(ready));
                self.report_idle();
                let start = self.common.spec.start.clone();
                if self.sees_aclnn && start.starts_with(ACLNN) {
                    self.warn_of_outputs(&start);
                }
            }
            Err(failure) => {
                let _ = self.maps.watched.remove(&self.pid);
                self.state = State::Waiting(Instant::now() + RETRY);
                match failure {
                    Failure::NoOperator => {}
                    Failure::Refused(Refusal::Later(why)) => {
                        if self.reported.later.len() < MAX_REASONS && !self.reported.later.contains(&why) {
                            self.warn(&format!("blocks are not watched yet: {why}"));
                            self.reported.later.push(why);
                        }
                    }
                    Failure::Refused(Refusal::Never(why)) => {
                        self.give_up();
                        self.warn(&format!("blocks are not watched: {why}; the program is as it was"));
                    }
                }
            }
        }
    }

    /// Leaves the program alone. Its operators no longer wake us.
    pub(super) fn give_up(&mut self) {
        self.state = State::Over { marked: self.maps.idle.insert(&self.pid, &0, 0).is_ok() };
    }

    /// Another program runs in the process, without any state of the one before: it may be watched, whatever that one
    /// was. It is set up at an operator of its own: at one of the program before, its handlers would not be set yet.
    pub(super) fn begin_again(&mut self) {
        self.state = State::Waiting(Instant::now());
        self.begun_ns = monotonic_ns();
        self.ready_since_ns = u64::MAX;
        let _ = self.maps.idle.remove(&self.pid);
        self.idle = false;
        self.callers = Callers::default();
        self.items.another_program(self.begun_ns);
        self.passed.another_program();
    }

    fn set_up(&mut self, tid: u32) -> Result<(Shared, Functions, Memory), Failure> {
        let ours = self.common.memories.lock().map(|ours| ours.clone()).unwrap_or_default();
        let replaceable = target::check(self.pid, tid, &ours).map_err(Failure::Refused)?;
        let functions = target::functions(self.pid).map_err(Failure::Refused)?;
        let (pid, watched, sites) = (self.pid, &mut self.maps.watched, &self.maps.sites);
        let from = if replaceable.is_empty() { 0 } else { ANY_HANDLER };
        let armed = WatchedProcess { from, ..WatchedProcess::default() };
        let arm = move |on: bool| {
            let done = if on { watched.insert(&pid, &armed, 0) } else { watched.remove(&pid) };
            done.map_err(std::io::Error::other)
        };
        let id = u64::from(pid) << 32 | u64::from(tid);
        let is_at_operator = |place: [u64; 2]| sites.get(&id, 0).is_ok_and(|site| is_there(&site, place));
        // It traces, and its end lets go.
        let result = thread::scope(|scope| {
            let worker = thread::Builder::new().name("memscope-setup".to_owned());
            let worker = worker
                .spawn_scoped(scope, move || setup::run(pid, tid, functions, &replaceable, arm, &is_at_operator))?;
            worker.join().map_err(|_| std::io::Error::other("setting up failed"))
        });
        let shared = result.map_err(Failure::from)??;
        if let Ok(mut ours) = self.common.memories.lock() {
            ours.insert(shared.inode());
        }
        let (from, to) = shared.target_range();
        let process = WatchedProcess { from, to, ..WatchedProcess::default() };
        // Its entry is gone where it runs another program by now.
        self.maps.watched.insert(&self.pid, &process, BPF_EXIST).map_err(|_| Failure::NoOperator)?;
        let memory = Memory::of(self.pid)?;
        self.visible = environment(self.pid)
            .as_deref()
            .and_then(crate::follow::visible_devices)
            .and_then(|list| crate::pipeline::visible_devices(&list))
            .unwrap_or_default();
        let runs = self.common.rows.values().filter(|(spec, _)| spec.meaning == CallKind::Watch(WatchCall::AclnnOp));
        self.sees_aclnn =
            runs.into_iter().any(|(spec, _)| target::has_function(self.pid, spec.libraries, &[spec.symbol]));
        self.ready_since_ns = monotonic_ns();
        shared.switch(true);
        Ok((shared, functions, memory))
    }

    /// Removes the handler from the process, if one of its threads arrives to do that. The mappings stay.
    pub(super) fn leave(&mut self) {
        const PATIENCE: Duration = Duration::from_millis(300);
        let Some(system_call) = self.ready().map(|ready| ready.shared.system_call()) else {
            let _ = self.maps.watched.remove(&self.pid);
            let _ = self.maps.idle.remove(&self.pid);
            return;
        };
        let start = Instant::now();
        let mut asked: Option<usize> = None;
        let mut gone = false;
        while start.elapsed() < PATIENCE && !gone && self.is_alive() {
            let Some(ready) = self.ready() else { return };
            let bell = ready.shared.bell();
            ready.shared.live();
            for slot in 0..SLOTS {
                if ready.shared.waiting(slot).is_none() {
                    continue;
                }
                if asked == Some(slot) {
                    gone = ready.shared.returned(slot, 0) == 0;
                    ready.shared.answer(slot, &[]);
                } else if asked.is_none() && ready.work[slot].is_none() {
                    let (_, old) = ready.shared.actions();
                    let args = [libc::SYS_rt_sigaction as u64, libc::SIGURG as u64, old, 0, 8];
                    ready.shared.answer(slot, &[Call::new(system_call, args)]);
                    asked = Some(slot);
                } else {
                    // Its current work is no longer needed.
                    ready.work[slot] = None;
                    ready.shared.answer(slot, &[]);
                }
            }
            ready.shared.wait(bell, Duration::from_millis(5));
        }
        self.look_at_handler();
        let _ = self.maps.watched.remove(&self.pid);
        let _ = self.maps.idle.remove(&self.pid);
        let Some(ready) = self.ready() else { return };
        ready.shared.switch(false);
        for slot in 0..SLOTS {
            if ready.shared.waiting(slot).is_some() {
                ready.shared.answer(slot, &[]);
            }
        }
        self.skipped += self.ready().map_or(0, |ready| u64::from(ready.shared.skipped()));
        if !gone && !self.passed.is_going_on() && self.is_alive() {
            self.warn("the handler for SIGURG stays in the program, switched off: no thread came by to take it out");
        }
    }

    /// Reads the kernel side's count of signals that were not sent.
    pub(super) fn look_at_handler(&mut self) {
        let Ok(process) = self.maps.watched.get(&self.pid, 0) else { return };
        self.passed.took(&process);
        if process.unsent > 0 && !std::mem::replace(&mut self.reported.handler, true) {
            self.warn(
                "the program has put up a handler of its own for SIGURG, or ignores it: as long as it does, no blocks are looked at and \
                 nothing is sent to it",
            );
        }
    }

    /// Where the process's threads were sent before there was a handler.
    fn sites_so_far(&self) -> HashMap<u32, (u64, u32)> {
        let sites = self.maps.sites.iter().filter_map(Result::ok).filter(|(id, _)| (id >> 32) as u32 == self.pid);
        sites.map(|(id, site)| (id as u32, (site.time_ns, site.sent))).collect()
    }
}
