//! Made-up events for the tests of this folder.

use crate::backend::ascend::modules;
use crate::model::{
    Alloc, AllocApi, Asked, Block, Device, DriverFigures, Event, EventKind, Free, FreeCause, PageType, Pool, Stacks,
};

/// Event 5 of process 12, thread 34, at 1000 ns on device 0.
pub(super) fn event(kind: EventKind) -> Event {
    Event { id: 5, time_ns: 1000, pid: 12, tid: 34, device: Device::Npu(0), stacks: Stacks::default(), kind }
}

/// Event `id` at `id` microseconds, about memory of `device`.
pub(super) fn at(id: u64, device: Device, mut kind: EventKind) -> Event {
    if let EventKind::Alloc(Alloc { block, .. }) | EventKind::Free(Free { block, .. }) = &mut kind {
        block.device = device;
    }
    Event { id, time_ns: id * 1000, device, ..event(kind) }
}

/// A block of 10 bytes.
pub(super) fn block(pool: Pool, addr: u64, allocation_id: u64) -> Block {
    Block {
        requested_bytes: None,
        caller: None,
        stacks: Stacks::default(),
        owner: None,
        found: false,
        held_as: None,
        allocation_id,
        pool,
        device: Device::Npu(0),
        addr,
        size_bytes: 10,
        alloc_time_ns: 1000,
        alloc_id: 5,
        tid: 1,
        step: 0,
        kernel_index: 0,
        module_id: Some(modules::of(3)),
        page: PageType::Normal,
        api: AllocApi::Alloc,
    }
}

/// Its allocation: 10 bytes used, 2000 reserved.
pub(super) fn alloc(pool: Pool, addr: u64, allocation_id: u64) -> EventKind {
    let block = block(pool, addr, allocation_id);
    EventKind::Alloc(Alloc {
        block,
        used_bytes: 10,
        total_bytes: Some(2000),
        driver: DriverFigures::default(),
        restored: false,
        promoted: false,
        asked: Asked::default(),
    })
}

/// Its end: nothing used, 2000 reserved.
pub(super) fn free(pool: Pool, addr: u64, allocation_id: u64, cause: FreeCause) -> EventKind {
    let block = block(pool, addr, allocation_id);
    EventKind::Free(Free {
        block,
        used_bytes: 0,
        total_bytes: Some(2000),
        driver: DriverFigures::default(),
        cause,
        owner: None,
        row_time_ns: None,
        without_row: false,
    })
}
