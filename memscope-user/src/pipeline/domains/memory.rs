//! Blocks and address space of the driver: allocated, released, mapped, refused.

mod physical;

use self::physical::{Gone, Physical};
use super::super::blocks::{Key, Live, NewBlock};
use super::super::recent::Recent;
use super::super::rows::{RawCall, Unusable};
use super::super::turn::Turn;
use super::failing::{Failing, Failure};
use super::{Interpreted, failing};
use crate::backend::Place;
use crate::decode::Phase;
use crate::model::{AllocApi, Asked, Device, EventKind, FreeCause, PageType, Region, RegionKind};
use crate::probes::{Field, MemoryCall};

pub(in crate::pipeline) use self::physical::PhysicalId;

/// Most threads with a kept last free, in case it failed.
const ENDING_THREADS: usize = 4096;

/// The effect of a call about memory.
#[derive(Clone, Copy, Debug)]
pub(in crate::pipeline) enum Effect {
    Alloc(NewBlock),
    /// A block, mapping or region ends; reported before it does.
    End(Ending),
    /// The thread's last end by this row has failed; some kernels' records repeat the address.
    EndFailed {
        addr: Option<u64>,
    },
    /// The handle is one more reference to the memory mapped at the address.
    Retain {
        handle: u64,
        addr: u64,
    },
    /// The handle stands for memory of another process.
    Import {
        handle: u64,
    },
    Map {
        addr: u64,
        size_bytes: u64,
        handle: u64,
    },
    Region {
        kind: RegionKind,
        addr: u64,
        size_bytes: u64,
    },
}

/// What ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pipeline) enum Ending {
    /// `halMemFree`, `aclrtHostUnregister`: the block; `halMemRelease`: one reference to it.
    Block { api: AllocApi, addr: u64 },
    /// `halMemUnmap`.
    Mapping { addr: u64 },
    /// Another region.
    Region { kind: RegionKind, addr: u64 },
}

impl Ending {
    pub(in crate::pipeline) const fn addr(self) -> u64 {
        match self {
            Self::Block { addr, .. } | Self::Mapping { addr } | Self::Region { addr, .. } => addr,
        }
    }
}

pub(super) fn interpret(kind: MemoryCall, call: &RawCall<'_>) -> Interpreted {
    use MemoryCall as Call;
    let addr = || call.field(Field::Addr);
    let size_bytes = || call.field(Field::Size);
    let effect = match (kind, call.called.phase) {
        (Call::Alloc, Phase::Return) => return driver_allocation(AllocApi::Alloc, call),
        (Call::Create, Phase::Return) => return driver_allocation(AllocApi::Create, call),
        (Call::Free, Phase::Enter) => Effect::End(Ending::Block { api: AllocApi::Alloc, addr: addr()? }),
        (Call::Release, Phase::Enter) => Effect::End(Ending::Block { api: AllocApi::Create, addr: addr()? }),
        (Call::Unpin, Phase::Enter) => Effect::End(Ending::Block { api: AllocApi::Register, addr: addr()? }),
        (Call::Unmap, Phase::Enter) => Effect::End(Ending::Mapping { addr: addr()? }),
        (Call::Unreserve, Phase::Enter) => Effect::End(Ending::Region { kind: RegionKind::Reservation, addr: addr()? }),
        (Call::Unregister, Phase::Enter) => {
            Effect::End(Ending::Region { kind: RegionKind::Registration, addr: addr()? })
        }
        (
            Call::Free | Call::Release | Call::Unpin | Call::Unmap | Call::Unreserve | Call::Unregister,
            Phase::Return,
        ) if call.code() != 0 => Effect::EndFailed { addr: addr().ok() },
        (_, Phase::Return) if call.code() != 0 => return Ok(None),
        (Call::Retain, Phase::Return) => Effect::Retain { handle: call.field(Field::Handle)?, addr: addr()? },
        (Call::Import, Phase::Return) => Effect::Import { handle: call.field(Field::Handle)? },
        (Call::Map, Phase::Return) => {
            Effect::Map { addr: addr()?, size_bytes: size_bytes()?, handle: call.field(Field::Handle)? }
        }
        (Call::Reserve, Phase::Return) => {
            Effect::Region { kind: RegionKind::Reservation, addr: addr()?, size_bytes: size_bytes()? }
        }
        (Call::Register, Phase::Return) => {
            Effect::Region { kind: RegionKind::Registration, addr: addr()?, size_bytes: size_bytes()? }
        }
        (Call::Pin, Phase::Return) => return host_pin(call),
        _ => return Ok(None),
    };
    Ok(Some(super::Effect::Memory(effect)))
}

/// A driver call that failed inside of a call of ACL or the runtime is an attempt of that one: it may try again with
/// smaller pages, and its returned value counts.
fn driver_allocation(api: AllocApi, call: &RawCall<'_>) -> Interpreted {
    let size_bytes = call.field(Field::Size)?;
    let field = |field| call.field(field).ok();
    let Place { pool, device, module_id, page, is_memory } = call.backend.place(api, &field).ok_or(Unusable)?;
    let flags = field(Field::Flags).unwrap_or(0);
    let status = call.code();
    if status != 0 {
        let (device, caller, huge) = (Some(device), Some(call.probe.symbol), page == PageType::Huge);
        let failure = Failure { pool, device, size_bytes, flags, status, caller, huge };
        return Ok(call.outer.is_none().then_some(super::Effect::Failing(failing::Effect::Failed(failure))));
    }
    let addr = call.field(Field::Addr).ok().filter(|addr| *addr != 0).ok_or(Unusable)?;
    let effect = if is_memory {
        let caller = call.outer;
        let requested_bytes = None;
        let asked = Asked::default();
        Effect::Alloc(NewBlock { addr, size_bytes, requested_bytes, pool, device, module_id, page, api, caller, asked })
    } else {
        Effect::Region { kind: RegionKind::Reservation, addr, size_bytes }
    };
    Ok(Some(super::Effect::Memory(effect)))
}

fn host_pin(call: &RawCall<'_>) -> Interpreted {
    if !call.backend.pins(call.field(Field::Flags)?) {
        return Ok(None);
    }
    let (addr, size_bytes) = (call.field(Field::Addr)?, call.field(Field::Size)?);
    let pinned = NewBlock::of_pool(call.backend.host_pool(), Device::Cpu, addr, size_bytes);
    Ok(Some(super::Effect::Memory(Effect::Alloc(NewBlock { api: AllocApi::Register, ..pinned }))))
}

/// How to take back what ended, if it turns out that it did not.
#[derive(Clone, Copy, Debug)]
enum Undo {
    /// A block was freed.
    Block { key: Key, live: Live },
    /// An unknown block was freed.
    Unknown { addr: u64 },
    /// A reference to a handle was released; maybe the last one.
    Release { handle: u64, freed: Option<(PhysicalId, Live)> },
    /// A mapping ended; its memory was freed with it if nothing else held it.
    Mapping { addr: u64, size_bytes: u64, id: Option<PhysicalId>, freed: Option<Live> },
    /// A region ended.
    Region { kind: RegionKind, addr: u64, size_bytes: u64 },
}

/// Memory and address space of one process.
#[derive(Debug)]
pub(in crate::pipeline) struct Memory {
    physical: Physical,
    /// By thread and row; `None` when the thread ended an unknown one.
    last_end: Recent<(u32, u16), Option<Undo>>,
}

impl Default for Memory {
    fn default() -> Self {
        Self { physical: Physical::default(), last_end: Recent::new(ENDING_THREADS) }
    }
}

impl Memory {
    pub(in crate::pipeline) fn apply(&mut self, effect: &Effect, turn: &mut Turn<'_>, failing: &mut Failing) {
        match *effect {
            Effect::Alloc(ref new) => self.allocated(new, turn, failing),
            Effect::End(ending) => {
                let undo = self.ends(ending, turn);
                self.last_end.insert((turn.at.tid, turn.row), undo);
            }
            Effect::EndFailed { addr } => self.end_failed(addr, turn),
            Effect::Retain { handle, addr } => self.physical.retain(handle, addr),
            Effect::Import { handle } => {
                let lost = self.physical.import(handle);
                gone(lost, FreeCause::Replaced, turn);
            }
            Effect::Map { addr, size_bytes, handle } => {
                let (id, lost) = self.physical.map(addr, handle);
                gone(lost, FreeCause::Replaced, turn);
                self.mapping_begins(addr, size_bytes, id, turn);
            }
            Effect::Region { kind, addr, size_bytes } => {
                if kind == RegionKind::Reservation {
                    failing.reserved(turn.at.tid);
                }
                self.region_begins(kind, addr, size_bytes, turn);
            }
        }
    }

    /// The driver gave memory.
    fn allocated(&mut self, new: &NewBlock, turn: &mut Turn<'_>, failing: &mut Failing) {
        let key = match new.api {
            AllocApi::Alloc => Key::Driver(new.addr),
            AllocApi::Register => Key::Pinned(new.addr),
            AllocApi::Create => {
                let (id, lost) = self.physical.create(new.addr);
                gone(lost, FreeCause::Replaced, turn);
                Key::Physical(id)
            }
        };
        turn.hand_out(key, new, None);
        failing.driver_gave(new.size_bytes, turn);
    }

    /// A block, mapping or region ends, unless the driver refuses.
    fn ends(&mut self, ending: Ending, turn: &mut Turn<'_>) -> Option<Undo> {
        match ending {
            Ending::Block { api: AllocApi::Alloc, addr } => Some(self.freed(Key::Driver(addr), addr, turn)),
            Ending::Block { api: AllocApi::Register, addr } => {
                // Most registrations pin nothing, so an unknown one is nothing to report.
                let key = Key::Pinned(addr);
                turn.free(key, FreeCause::Program, None).map(|live| Undo::Block { key, live })
            }
            Ending::Block { api: AllocApi::Create, addr } => Some(self.released(addr, turn)),
            Ending::Mapping { addr } => self.unmapped(addr, turn),
            Ending::Region { kind, addr } => self.region_ends(kind, addr, turn),
        }
    }

    fn freed(&mut self, key: Key, addr: u64, turn: &mut Turn<'_>) -> Undo {
        if let Some(live) = turn.free(key, FreeCause::Program, None) {
            return Undo::Block { key, live };
        }
        // `halMemAlloc` reserves addresses, too.
        if let Some(undo) = self.region_ends(RegionKind::Reservation, addr, turn) {
            return undo;
        }
        turn.unknown_free(turn.backend().driver_pool(), addr, false);
        Undo::Unknown { addr }
    }

    fn released(&mut self, handle: u64, turn: &mut Turn<'_>) -> Undo {
        let freed = match self.physical.release(handle) {
            Gone::Unknown => {
                turn.unknown_free(turn.backend().driver_pool(), handle, false);
                return Undo::Unknown { addr: handle };
            }
            Gone::Held => None,
            Gone::Freed(id) => turn.free(Key::Physical(id), FreeCause::Program, None).map(|live| (id, live)),
        };
        Undo::Release { handle, freed }
    }

    fn unmapped(&mut self, addr: u64, turn: &mut Turn<'_>) -> Option<Undo> {
        let id = self.physical.mapped_at(addr);
        if id.is_none()
            && let Some(undo) = found_unmapped(addr, turn)
        {
            return Some(undo);
        }
        let freed = gone(self.physical.unmap(addr), FreeCause::Program, turn);
        let (size_bytes, live_bytes) = self.physical.end_region(RegionKind::Mapping, addr)?;
        let allocation_id = freed.map(|live| live.block.allocation_id).or_else(|| number(id, turn));
        let region = Region { kind: RegionKind::Mapping, begins: false, addr, size_bytes, allocation_id, live_bytes };
        turn.emit(turn.device(), EventKind::Region(region));
        Some(Undo::Mapping { addr, size_bytes, id, freed })
    }

    /// The end by the thread's last call of this row failed: restores it.
    fn end_failed(&mut self, addr: Option<u64>, turn: &mut Turn<'_>) {
        let meant = |own: u64| addr.is_none_or(|addr| addr == own);
        match self.last_end.remove(&(turn.at.tid, turn.row)).flatten() {
            Some(Undo::Block { key, live }) if meant(live.block.addr) && !turn.home.blocks.contains(key) => {
                turn.put_back(key, &live);
            }
            Some(Undo::Unknown { addr }) if meant(addr) => turn.unknown_free(turn.backend().driver_pool(), addr, true),
            Some(Undo::Release { handle, freed }) if meant(handle) => {
                self.physical.release_failed(handle, freed.map(|(id, _)| id));
                if let Some((id, live)) = freed {
                    turn.put_back(Key::Physical(id), &live);
                }
            }
            Some(Undo::Mapping { addr, size_bytes, id, freed }) if meant(addr) => {
                if let Some(id) = id {
                    self.physical.map_again(addr, id);
                }
                if let (Some(id), Some(live)) = (id, freed) {
                    turn.put_back(Key::Physical(id), &live);
                }
                self.mapping_begins(addr, size_bytes, id, turn);
            }
            Some(Undo::Region { kind, addr, size_bytes }) if meant(addr) => {
                self.region_begins(kind, addr, size_bytes, turn);
            }
            _ => {}
        }
    }

    fn mapping_begins(&mut self, addr: u64, size_bytes: u64, id: Option<PhysicalId>, turn: &mut Turn<'_>) {
        let (kind, allocation_id) = (RegionKind::Mapping, number(id, turn));
        let live_bytes = self.physical.begin_region(kind, addr, size_bytes);
        let region = Region { kind, begins: true, addr, size_bytes, allocation_id, live_bytes };
        turn.emit(turn.device(), EventKind::Region(region));
    }

    /// Address space is taken.
    fn region_begins(&mut self, kind: RegionKind, addr: u64, size_bytes: u64, turn: &mut Turn<'_>) {
        let live_bytes = self.physical.begin_region(kind, addr, size_bytes);
        let region = Region { kind, begins: true, addr, size_bytes, allocation_id: None, live_bytes };
        turn.emit(turn.device(), EventKind::Region(region));
    }

    fn region_ends(&mut self, kind: RegionKind, addr: u64, turn: &mut Turn<'_>) -> Option<Undo> {
        let (size_bytes, live_bytes) = self.physical.end_region(kind, addr)?;
        let region = Region { kind, begins: false, addr, size_bytes, allocation_id: None, live_bytes };
        turn.emit(turn.device(), EventKind::Region(region));
        Some(Undo::Region { kind, addr, size_bytes })
    }
}

/// Memory of a pool from before the attach was a mapping of handles that are not known: the segment that was found there ends with it.
fn found_unmapped(addr: u64, turn: &mut Turn<'_>) -> Option<Undo> {
    let key = Key::Driver(addr);
    turn.home.blocks.get(key).filter(|live| live.block.found)?;
    turn.free(key, FreeCause::Program, None).map(|live| Undo::Block { key, live })
}

/// Ends the block of memory that nothing holds any more.
fn gone(memory: Gone, cause: FreeCause, turn: &mut Turn<'_>) -> Option<Live> {
    let Gone::Freed(id) = memory else { return None };
    turn.free(Key::Physical(id), cause, None)
}

/// Number of the block behind a mapping.
fn number(id: Option<PhysicalId>, turn: &Turn<'_>) -> Option<u64> {
    turn.home.blocks.number(Key::Physical(id?))
}
