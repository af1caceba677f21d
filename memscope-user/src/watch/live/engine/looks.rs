//! A thread at an operator: which blocks it looks at, and the bytes that it copies.

use std::time::{Duration, Instant};

use memscope_common::WatchSite;

use super::super::{
    blob::{BUFFER_BYTES, Call},
    change_text,
    memory::Memory,
    target::inner_id,
};
use super::{ACLNN, AT_ONCE, Engine, MAX_NAMES, Pending, State, Work, missing_between};
use crate::{
    os::clock::monotonic_ns,
    probes::{CallKind, Field, ProbeSpec, WatchCall},
    sinks::watch::WatchFiles,
    watch::{checksum::Checksum, items::Look, verdict::Reading},
};

/// Most bytes read of one block.
const MAX_BLOCK_BYTES: u64 = 1 << 34;
/// `ACL_MEMCPY_DEVICE_TO_HOST`
const DEVICE_TO_HOST: u64 = 2;

impl Engine {
    /// A thread waits for a request.
    pub(super) fn advance(&mut self, slot: usize, owner: u32, place: [u64; 2]) {
        let work = self.ready().and_then(|ready| ready.work[slot].take());
        let work = match work {
            Some(work) => self.go_on(slot, work),
            None => self.arrive(slot, owner, place),
        };
        let Some(ready) = self.ready() else { return };
        if work.is_none() {
            ready.shared.answer(slot, &[]);
        }
        ready.work[slot] = work;
    }

    /// A thread is at an operator: returns the bytes to read, if any.
    fn arrive(&mut self, slot: usize, owner: u32, place: [u64; 2]) -> Option<Work> {
        let tid = self.outer_id(owner)?;
        let id = u64::from(self.pid) << 32 | u64::from(tid);
        let site = self.maps.sites.get(&id, 0).ok()?;
        let ready = self.ready()?;
        // A signal that came late does not come from there: the thread may be anywhere.
        let (last_ns, last_sent) = ready.last_sites.insert(tid, (site.time_ns, site.sent)).unwrap_or_default();
        if last_ns == site.time_ns {
            // Another process's signal.
            return None;
        }
        let is_late = monotonic_ns().saturating_sub(site.time_ns) > AT_ONCE.as_nanos() as u64;
        let is_there = !is_late && ready.has_come_from(&site, place);
        self.missing += u64::from(missing_between(last_sent, site.sent));
        if !is_there {
            self.late += 1;
            return None;
        }
        let (spec, _) = *self.common.rows.get(&site.row)?;
        if matches!(spec.meaning, CallKind::Watch(WatchCall::Watch | WatchCall::Unwatch)) {
            self.take_call(spec, &site);
            return None;
        }
        let item = self.item(spec, &site)?;
        let mut looks = if site.returned == 0 {
            self.verdicts.begins(tid, &item);
            self.items.begins(tid, &item)
        } else {
            self.ends(tid, &item, spec, &site)
        };
        self.report_idle();
        for look in &mut looks {
            look.queued = spec.meaning == CallKind::Watch(WatchCall::NpuOpEnd);
        }
        if looks.is_empty() {
            return None;
        }
        let ready = self.ready()?;
        let calls = [
            Call::new(ready.functions.get_device, [ready.shared.buffer(slot), 0, 0, 0, 0]),
            Call::new(ready.functions.synchronize, [0; 5]),
        ];
        ready.shared.answer(slot, &calls);
        let sum = Checksum::default();
        Some(Work { tid, time_ns: site.time_ns, looks, device: None, at: 0, read_bytes: 0, sum, content: None })
    }

    /// An operator has ended: watching may begin with it.
    fn ends(&mut self, tid: u32, item: &str, spec: &'static ProbeSpec, site: &WatchSite) -> Vec<Look> {
        let Self { items, state, .. } = self;
        let State::Ready(ready) = state else { return Vec::new() };
        let mut without_outputs = false;
        let begins = items.begins_with(item);
        let looks = items.ends(tid, item, site.time_ns, || {
            let outputs = ready.memory.outputs(spec, site);
            without_outputs = outputs.is_empty();
            outputs
        });
        if without_outputs {
            self.warn_of_outputs(item);
        }
        if begins {
            let is_new = |look: &&Look| look.block.since_ns == site.time_ns;
            looks.iter().filter(is_new).for_each(|look| self.verdicts.window(&look.block));
            self.show_beginning(item);
        }
        looks
    }

    /// Reports once that a block is watched: until the first `START` there is none.
    fn show_beginning(&mut self, item: &str) {
        if self.items.is_active() && !std::mem::replace(&mut self.reported.beginning, true) {
            self.inform(&format!("watching began with operator `{}`", item.escape_debug()));
        }
    }

    /// Name of the operator; `None` if it is none here.
    fn item(&mut self, spec: &'static ProbeSpec, site: &WatchSite) -> Option<String> {
        if spec.meaning == CallKind::Watch(WatchCall::AclnnOp) {
            self.sees_aclnn = true;
            let (pid, Self { callers, state: State::Ready(ready), .. }) = (self.pid, self) else { return None };
            let name = callers.name(pid, site.caller, &mut || ready.shared.live());
            return Some(name.unwrap_or_else(|| format!("{ACLNN} at {:#x}", site.caller)));
        }
        if let Some(name) = self.ready()?.memory.text_of(spec, site) {
            // It is compared at its launch: here it may be put into a queue.
            let elsewhere =
                spec.meaning == CallKind::Watch(WatchCall::NpuOpEnd) && self.sees_aclnn && name.starts_with(ACLNN);
            return (!elsewhere).then_some(name);
        }
        let name = Memory::value(spec, site, Field::Handle).and_then(|handle| self.name_of(handle));
        Some(name.unwrap_or_else(|| spec.symbol.to_owned()))
    }

    /// The name that a kernel was registered with. The record of that may still be on its way.
    fn name_of(&mut self, handle: u64) -> Option<String> {
        const ON_ITS_WAY: Duration = Duration::from_millis(60);
        let start = Instant::now();
        while !self.names.contains_key(&handle) && !self.nameless.contains(&handle) {
            match self.inbox.recv_timeout(ON_ITS_WAY.saturating_sub(start.elapsed())) {
                Ok(input) => {
                    self.take(input);
                }
                // It was registered before we came.
                Err(_) if self.nameless.len() < MAX_NAMES => {
                    self.nameless.insert(handle);
                }
                Err(_) => break,
            }
        }
        self.names.get(&handle).cloned()
    }

    /// Number of a thread as we know it.
    fn outer_id(&mut self, inner: u32) -> Option<u32> {
        if let Some(tid) = self.threads.get(&inner) {
            return Some(*tid);
        }
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid)).ok()?;
        let pid = self.pid;
        let numbers = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse::<u32>().ok());
        self.threads = numbers.filter_map(|tid| Some((inner_id(pid, tid)?, tid))).collect();
        self.threads.get(&inner).copied()
    }

    /// The requested calls of a thread have been made, or one of them has failed.
    fn go_on(&mut self, slot: usize, mut work: Work) -> Option<Work> {
        let Some(device) = work.device else {
            return self.take_device(slot, work);
        };
        let look = work.looks.get(work.at).cloned()?;
        let ready = self.ready()?;
        let error = ready.shared.returned(slot, 0);
        if error != 0 {
            self.unread(&look, &mut work, device, &format!("aclrtMemcpy gave error {error}"));
            return self.next(slot, work, device);
        }
        let left = look.block.range.size_bytes - work.read_bytes;
        let mut bytes = vec![0; left.min(BUFFER_BYTES as u64) as usize];
        ready.shared.read(slot, &mut bytes);
        work.sum.update(&bytes);
        work.read_bytes += bytes.len() as u64;
        if let Some(content) = &mut work.content
            && let Err(error) = content.write(&bytes)
        {
            work.content = None;
            self.warn(&crate::error_chain(&error));
        }
        if work.read_bytes < look.block.range.size_bytes {
            return self.ask(slot, work);
        }
        self.done(&look, &mut work, device);
        self.next(slot, work, device)
    }

    /// The thread's device is known, and its streams have come to their ends; or not.
    fn take_device(&mut self, slot: usize, mut work: Work) -> Option<Work> {
        let ready = self.ready()?;
        let [device_error, sync_error] = [0, 1].map(|call| ready.shared.returned(slot, call));
        let mut number = [0; 4];
        ready.shared.read(slot, &mut number);
        let number = u32::from_le_bytes(number);
        let device = self.visible.get(number as usize).copied().unwrap_or(number);
        let failure = match (device_error, sync_error) {
            (0, 0) => None,
            (0, error) => Some(format!("aclrtSynchronizeDevice gave error {error}")),
            (error, _) => Some(format!("the thread has no device (aclrtGetDevice gave error {error})")),
        };
        if let Some(why) = failure {
            for look in std::mem::take(&mut work.looks) {
                self.unread(&look, &mut work, device, &why);
            }
            return None;
        }
        work.device = Some(device);
        work.at = 0;
        self.begin(slot, work, device)
    }

    fn next(&mut self, slot: usize, mut work: Work, device: u32) -> Option<Work> {
        work.at += 1;
        self.begin(slot, work, device)
    }

    /// Begins with the next block that can be read.
    fn begin(&mut self, slot: usize, mut work: Work, device: u32) -> Option<Work> {
        (work.read_bytes, work.sum, work.content) = (0, Checksum::default(), None);
        while let Some(look) = work.looks.get(work.at).cloned() {
            let size_bytes = look.block.range.size_bytes;
            if size_bytes != 0 && size_bytes <= MAX_BLOCK_BYTES {
                if self.common.spec.full_content {
                    let stem = look.stem(device, work.tid);
                    work.content = self.with_files(|files| files.create_content(device, &stem));
                }
                return self.ask(slot, work);
            }
            self.unread(&look, &mut work, device, "its size makes no sense");
            work.at += 1;
        }
        None
    }

    /// Requests the next copy of the thread's block.
    fn ask(&mut self, slot: usize, work: Work) -> Option<Work> {
        let range = work.looks.get(work.at)?.block.range;
        let ready = self.ready()?;
        let len = (range.size_bytes - work.read_bytes).min(BUFFER_BYTES as u64);
        let from = range.addr.wrapping_add(work.read_bytes);
        let to = ready.shared.buffer(slot);
        ready
            .shared
            .answer(slot, &[Call::new(ready.functions.copy, [to, BUFFER_BYTES as u64, from, len, DEVICE_TO_HOST])]);
        Some(work)
    }

    fn done(&mut self, look: &Look, work: &mut Work, device: u32) {
        let sum = work.sum.value();
        if !self.common.spec.full_content {
            let stem = look.stem(device, work.tid);
            self.with_files(|files| files.write_sum(device, &stem, sum));
        }
        if let Some(change) = self.verdicts.take(look, work.tid, work.time_ns, &Reading::Sum(sum)) {
            let (block, text) = (look.block.clone(), change_text(look, &change));
            self.pending.push_back(Pending { block, time_ns: work.time_ns, since: Instant::now(), text });
        }
    }

    fn unread(&mut self, look: &Look, work: &mut Work, device: u32, why: &str) {
        if let Some(content) = work.content.take() {
            let path = content.path().display().to_string();
            if let Err(error) = content.discard() {
                self.warn(&format!("cannot empty {path}: {error}"));
            }
        }
        if !self.common.spec.full_content {
            let stem = look.stem(device, work.tid);
            self.with_files(|files| files.write_unread(device, &stem));
        }
        self.verdicts.take(look, work.tid, work.time_ns, &Reading::Unread(why.into()));
    }

    /// Calls `act` with the process's files; a failure is reported once.
    fn with_files<T>(&mut self, act: impl FnOnce(&mut WatchFiles) -> Result<T, crate::sinks::SinkError>) -> Option<T> {
        let (pid, outputs) = (self.pid, &self.common.outputs);
        let files = self.files.get_or_insert_with(|| outputs(pid).map_err(|error| crate::error_chain(&error)));
        let result = match files {
            Ok(files) => act(files).map_err(|error| crate::error_chain(&error)),
            Err(error) if error.is_empty() => return None,
            Err(error) => Err(std::mem::take(error)),
        };
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.warn(&error);
                None
            }
        }
    }
}
