//! What records say: names of kernels, memory that begins and ends, the script's blocks, operators that pass.

use memscope_common::{WatchSite, row::ROW_BOUNDARY};

use super::super::{freed_text, memory::Memory};
use super::{Engine, Input, MAX_NAMES, Stage, State};
use crate::{
    decode::{Body, Record, decode},
    pipeline::calls::{Effect, Space},
    probes::{CallKind, Field, LaunchCall, ProbeSpec, WatchCall},
    watch::{Range, verdict::Freed},
};

impl Engine {
    /// Handles a record. Returns the thread if it was at an operator.
    pub(super) fn take(&mut self, input: Input) -> Option<u32> {
        let bytes = match input {
            Input::Record(bytes) => bytes,
            Input::Leave(done) => {
                (self.stage, self.leaving) = (Stage::Leaves, Some(done));
                return None;
            }
            Input::Finish => {
                self.stage = Stage::Over;
                return None;
            }
        };
        let record = decode(&bytes).ok()?;
        let (spec, flags) = *self.common.rows.get(&record.row)?;
        let Body::Call(call) = record.body else { return None };
        match self.common.calls.effect(&record, &call) {
            Some(Effect::Begins { space, addr, size_bytes }) if addr != 0 => {
                self.allocations.begins(space, Range { addr, size_bytes });
            }
            Some(Effect::Ends { space, addr }) if addr != 0 => self.memory_ends(space, addr, spec, &record),
            Some(Effect::KernelName { handle, name }) => self.name_kernel(handle, &name),
            // From here on the script's thread reports that itself.
            Some(Effect::Watch { .. } | Effect::Unwatch { .. }) if record.time_ns >= self.ready_since_ns => {
                return None;
            }
            Some(Effect::Watch { name, addr, size_bytes, looks }) => {
                self.watch(&name, [addr, size_bytes, looks], record.time_ns);
                return Some(record.tid);
            }
            Some(Effect::Unwatch { addr }) => {
                self.items.forget(addr, record.time_ns);
                return Some(record.tid);
            }
            _ => {}
        }
        let is_marker = matches!(spec.meaning, CallKind::Watch(WatchCall::Watch | WatchCall::Unwatch));
        let is_name = spec.meaning == CallKind::Launch(LaunchCall::KernelName);
        if is_marker || is_name || flags & ROW_BOUNDARY == 0 {
            return None;
        }
        let text = (!call.text.is_empty()).then(|| String::from_utf8_lossy(call.text).into_owned());
        let of_handle = || self.names.get(&self.common.calls.value(&record, &call, Field::Handle)?).cloned();
        let name = text.or_else(of_handle).unwrap_or_else(|| spec.symbol.to_owned());
        if spec.meaning == CallKind::Launch(LaunchCall::Launch) && self.items.begins_with(&name) {
            self.warn_of_outputs(&name);
        }
        self.passed.operator(record.time_ns, &name);
        (record.time_ns >= self.begun_ns).then_some(record.tid)
    }

    fn name_kernel(&mut self, handle: u64, name: &str) {
        if self.names.len() < MAX_NAMES || self.names.contains_key(&handle) {
            self.names.insert(handle, name.to_owned());
        }
    }

    fn memory_ends(&mut self, space: Space, addr: u64, spec: &'static ProbeSpec, record: &Record<'_>) {
        let range = self.allocations.ends(space, addr);
        let outer = self.common.rows.get(&record.outer).filter(|_| record.outer != 0).map(|(outer, _)| outer.symbol);
        let by = outer.map_or_else(|| spec.symbol.to_owned(), |outer| format!("{} (in {outer})", spec.symbol));
        self.freed(range, &Freed { by: by.into(), tid: record.tid, time_ns: record.time_ns });
    }

    /// Memory was freed: ends the watch of blocks in it; later readings there are another block's.
    fn freed(&mut self, range: Range, freed: &Freed) {
        for block in self.items.free(range, freed.time_ns) {
            self.pending.retain(|pending| pending.block != block || pending.time_ns < freed.time_ns);
            if self.verdicts.free(&block, freed) {
                self.inform(&freed_text(&block, freed));
            }
        }
        self.report_idle();
    }

    /// Reports to the kernel side whether a block is watched: if not, only `START` sends a thread to the handler.
    pub(super) fn report_idle(&mut self) {
        let idle = !self.items.is_active() && matches!(self.state, State::Ready(_));
        if idle == self.idle {
            return;
        }
        // If it fails, threads are sent for nothing.
        let set = if idle { self.maps.idle.insert(&self.pid, &0, 0) } else { self.maps.idle.remove(&self.pid) };
        self.idle = idle && set.is_ok();
    }

    /// The script has named a block.
    fn watch(&mut self, name: &str, [addr, size_bytes, looks]: [u64; 3], now_ns: u64) {
        const NO_LIMIT: u64 = u64::MAX;
        let range = Range { addr, size_bytes };
        if !self.items.watch(name, range, (looks != NO_LIMIT).then_some(looks), now_ns) {
            self.warn("the script names more blocks than can be watched at once (256); the last is not watched");
        }
    }

    pub(super) fn warn_of_outputs(&mut self, item: &str) {
        if !std::mem::replace(&mut self.reported.outputs, true) {
            self.warn(&format!(
                "watching does not begin with `{}`: no outputs of it are known; they are of operations of ATB alone, other blocks have to be \
                 named by a script",
                item.escape_debug()
            ));
        }
    }

    /// Handles a call of the script, at once in its thread.
    pub(super) fn take_call(&mut self, spec: &'static ProbeSpec, site: &WatchSite) {
        let value = |field| Memory::value(spec, site, field);
        let Some(addr) = value(Field::Addr) else { return };
        if spec.meaning == CallKind::Watch(WatchCall::Unwatch) {
            self.items.forget(addr, site.time_ns);
            self.report_idle();
            return;
        }
        let name = self.ready().and_then(|ready| ready.memory.text_of(spec, site)).unwrap_or_default();
        if let (Some(size), Some(looks)) = (value(Field::Size), value(Field::Count)) {
            self.watch(&name, [addr, size, looks], site.time_ns);
        }
        self.report_idle();
    }
}
