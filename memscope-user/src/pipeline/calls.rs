//! Single calls as effects, for a reader that needs no time order: block watch. The rows and domains that interpret
//! them are the pipeline's.

use std::sync::Arc;

use super::domains::{Effect as AnyEffect, launches, memory, pools};
use super::item::{Called, Head, StackIds};
use super::rows::{RawCall, Rows};
use crate::backend::{Backend, PoolChange};
use crate::decode::{Call, Record};
use crate::model::{AllocApi, Pool, RegionKind};
use crate::probes::{CallKind, Field, MemoryCall, RowInfo, WatchCall};

/// The effect of a single call, as far as block watch needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Memory begins at an address.
    Begins { space: Space, addr: u64, size_bytes: u64 },
    /// The memory that began at the address ends.
    Ends { space: Space, addr: u64 },
    /// A kernel has a name.
    KernelName { handle: u64, name: Arc<str> },
    /// The script names a block; its contents are compared `looks` times, `u64::MAX` is without end.
    Watch { name: String, addr: u64, size_bytes: u64, looks: u64 },
    /// The script forgets the block.
    Unwatch { addr: u64 },
}

/// A name space of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Space {
    /// What the driver gives.
    Driver,
    /// Mappings of physical memory.
    Mappings,
    /// What a pool gives.
    Pool(Pool),
}

/// Interprets single calls.
#[derive(Debug)]
pub(crate) struct Calls {
    rows: Rows,
}

impl Calls {
    /// For calls of these rows.
    pub(crate) fn new(rows: impl IntoIterator<Item = (u16, RowInfo)>) -> Self {
        let mut known = Rows::new(<&dyn Backend>::default(), Vec::new());
        for (number, info) in rows {
            known.extend(number, vec![info]);
        }
        Self { rows: known }
    }

    /// The effect of a call; `None` if it has none that is of use here.
    pub(crate) fn effect(&self, record: &Record<'_>, call: &Call<'_>) -> Option<Effect> {
        let called = called(record, call);
        let kind = self.rows.get(record.row)?.info.meaning;
        if let CallKind::Watch(kind) = kind {
            return watched(kind, self.rows.raw(called).ok()?);
        }
        match self.rows.interpret(called).ok()?? {
            AnyEffect::Memory(effect) => of_memory(&effect, kind),
            AnyEffect::Pool(pools::Effect::Report(report)) => {
                let (space, addr) = (Space::Pool(report.pool), report.addr);
                Some(match report.change {
                    PoolChange::Alloc => Effect::Begins { space, addr, size_bytes: report.size_bytes.unwrap_or(0) },
                    PoolChange::Free | PoolChange::Returned => Effect::Ends { space, addr },
                })
            }
            AnyEffect::Launch(launches::Effect::KernelName { handle, name }) => {
                Some(Effect::KernelName { handle, name })
            }
            _ => None,
        }
    }

    /// A value of a call by its name.
    pub(crate) fn value(&self, record: &Record<'_>, call: &Call<'_>, field: Field) -> Option<u64> {
        self.rows.raw(called(record, call)).ok()?.field(field).ok()
    }
}

/// The call without what only the pipeline knows.
fn called(record: &Record<'_>, call: &Call<'_>) -> Called {
    let Record { time_ns, pid, tid, row, outer, .. } = *record;
    Called {
        head: Head { time_ns, seq: 0, pid, tid, row, outer, stacks: StackIds::default() },
        phase: call.phase,
        status: call.status,
        values: call.values,
        text: (!call.text.is_empty()).then(|| String::from_utf8_lossy(call.text).into_owned()),
    }
}

fn of_memory(effect: &memory::Effect, kind: CallKind) -> Option<Effect> {
    use memory::Ending;
    Some(match *effect {
        memory::Effect::Alloc(new) if new.api == AllocApi::Alloc => {
            Effect::Begins { space: Space::Driver, addr: new.addr, size_bytes: new.size_bytes }
        }
        // `halMemAlloc` reserves addresses, too, and its free ends what is mapped there.
        memory::Effect::Region { kind: RegionKind::Reservation, addr, size_bytes }
            if kind == CallKind::Memory(MemoryCall::Alloc) =>
        {
            Effect::Begins { space: Space::Driver, addr, size_bytes }
        }
        memory::Effect::Map { addr, size_bytes, .. } => Effect::Begins { space: Space::Mappings, addr, size_bytes },
        memory::Effect::End(Ending::Block { api: AllocApi::Alloc, addr }) => {
            Effect::Ends { space: Space::Driver, addr }
        }
        memory::Effect::End(Ending::Mapping { addr }) => Effect::Ends { space: Space::Mappings, addr },
        _ => return None,
    })
}

fn watched(kind: WatchCall, call: RawCall<'_>) -> Option<Effect> {
    let field = |field| call.field(field).ok();
    match kind {
        WatchCall::Watch => {
            let (addr, size_bytes, looks) = (field(Field::Addr)?, field(Field::Size)?, field(Field::Count)?);
            Some(Effect::Watch { name: call.called.text.unwrap_or_default(), addr, size_bytes, looks })
        }
        WatchCall::Unwatch => Some(Effect::Unwatch { addr: field(Field::Addr)? }),
        WatchCall::Capture | WatchCall::AclnnOp | WatchCall::NpuOpEnd => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::ascend::pools::PTA;
    use crate::decode::{Body, decode};
    use crate::testing::{device, main, rows};

    fn effects(records: &[Vec<u8>]) -> Vec<Option<Effect>> {
        let calls = Calls::new((1..).zip(rows()));
        let effect = |bytes: &Vec<u8>| {
            let record = decode(bytes).expect("a record");
            let Body::Call(call) = &record.body else { panic!("{record:?}") };
            calls.effect(&record, call)
        };
        records.iter().map(effect).collect()
    }

    /// A failed call and one about a handle are no memory at an address.
    #[test]
    fn memory_begins_and_ends() {
        let (driver, pool) = (Space::Driver, Space::Pool(PTA));
        assert_eq!(
            effects(&[
                main(1).alloc(0x1000, 64, device(0)),
                main(2).alloc_failed(6, 64, device(0)),
                main(3).create(0xa, 2 << 20, (0, 0), (0, 0)),
                main(4).pta((0, 0), 0x2000, 512, [512, 1024, 512]),
                main(5).pta((0, 1), 0x2000, -512, [0, 1024, 0]),
                main(6).free(0x1000),
                main(7).free_failed(0x1000),
            ]),
            [
                Some(Effect::Begins { space: driver, addr: 0x1000, size_bytes: 64 }),
                None,
                None,
                Some(Effect::Begins { space: pool, addr: 0x2000, size_bytes: 512 }),
                Some(Effect::Ends { space: pool, addr: 0x2000 }),
                Some(Effect::Ends { space: driver, addr: 0x1000 }),
                None,
            ]
        );
    }

    #[test]
    fn kernels_have_names() {
        let named = Effect::KernelName { handle: 0x77, name: "matmul".into() };
        assert_eq!(effects(&[main(1).kernel_name(0x77, "matmul"), main(2).launch(0x77, 0)]), [Some(named), None]);
    }
}
