//! What records say: names of kernels, memory that begins and ends, the script's blocks, operators that pass.

use memscope_common::{WatchSite, row::ROW_BOUNDARY};

use super::super::{freed_text, memory::Memory};
use super::{Engine, Input, MAX_NAMES, Stage, State};
use crate::{
    decode::{Body, Call as CallRecord, Phase as CallPhase, Record, decode},
    probes::{CallKind, Field, LaunchCall, MemoryCall, PoolCall, ProbeSpec, WatchCall},
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
        self.take_memory(spec, &record, &call);
        let value = |field: Field| {
            let index = spec.fields.iter().position(|(name, _)| *name == field)?;
            call.values.get(index)
        };
        let text = || (!call.text.is_empty()).then(|| String::from_utf8_lossy(call.text).into_owned());
        match spec.meaning {
            CallKind::Launch(LaunchCall::KernelName) => {
                if let (Some(handle), Some(name)) = (value(Field::Handle), text())
                    && (self.names.len() < MAX_NAMES || self.names.contains_key(&handle))
                {
                    self.names.insert(handle, name);
                }
                None
            }
            // From here on the script's thread reports that itself.
            CallKind::Watch(WatchCall::Watch | WatchCall::Unwatch) if record.time_ns >= self.ready_since_ns => None,
            CallKind::Watch(WatchCall::Watch) => {
                let block = [value(Field::Addr)?, value(Field::Size)?, value(Field::Count)?];
                self.watch(&text().unwrap_or_default(), block, record.time_ns);
                Some(record.tid)
            }
            CallKind::Watch(WatchCall::Unwatch) => {
                self.items.forget(value(Field::Addr)?, record.time_ns);
                Some(record.tid)
            }
            _ if flags & ROW_BOUNDARY == 0 => None,
            _ => {
                let of_handle = || self.names.get(&value(Field::Handle)?).cloned();
                let name = text().or_else(of_handle).unwrap_or_else(|| spec.symbol.to_owned());
                if spec.meaning == CallKind::Launch(LaunchCall::Launch) && self.items.begins_with(&name) {
                    self.warn_of_outputs(&name);
                }
                self.passed.operator(record.time_ns, &name);
                (record.time_ns >= self.begun_ns).then_some(record.tid)
            }
        }
    }

    /// Handles a record about memory.
    fn take_memory(&mut self, spec: &'static ProbeSpec, record: &Record<'_>, call: &CallRecord<'_>) {
        /// Mappings of physical memory have addresses of their own.
        const MAPPINGS: &str = "mappings";
        const DRIVER: &str = "driver";
        let value = |field: Field| {
            let index = spec.fields.iter().position(|(name, _)| *name == field)?;
            call.values.get(index)
        };
        let pool = spec.pool.unwrap_or(spec.layer.name());
        let (space, begins) = match (spec.meaning, call.phase) {
            (CallKind::Memory(MemoryCall::Alloc), CallPhase::Return) if call.status as i32 == 0 => (DRIVER, true),
            (CallKind::Memory(MemoryCall::Free), CallPhase::Enter) => (DRIVER, false),
            (CallKind::Memory(MemoryCall::Map), CallPhase::Return) if call.status as i32 == 0 => (MAPPINGS, true),
            (CallKind::Memory(MemoryCall::Unmap), CallPhase::Enter) => (MAPPINGS, false),
            (CallKind::Pool(PoolCall::Alloc), CallPhase::Return) => (pool, true),
            (CallKind::Pool(PoolCall::Free), CallPhase::Enter) => (pool, false),
            // The size of a block that ends is negative.
            (CallKind::Pool(PoolCall::Report), _) => {
                (pool, value(Field::Size).is_some_and(|size| size.cast_signed() > 0))
            }
            _ => return,
        };
        // A pool's function returns the address, or writes it.
        let returned = (spec.meaning == CallKind::Pool(PoolCall::Alloc)).then(|| call.status.cast_unsigned());
        let Some(addr) = value(Field::Addr).or(returned).filter(|addr| *addr != 0) else { return };
        if begins {
            if let Some(size_bytes) = value(Field::Size) {
                let size_bytes = size_bytes.saturating_mul(value(Field::Count).unwrap_or(1));
                self.allocations.begins(space, Range { addr, size_bytes });
            }
            return;
        }
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
                (self.common.notify)(false, &format!("process {}: {}", self.pid, freed_text(&block, freed)));
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
