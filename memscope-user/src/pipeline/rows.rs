//! What a record means: a call and its row become an [`Action`].

use std::sync::Arc;

use memscope_common::row::MAX_ROWS;

use super::domains::{MstxCall as Told, Range, Reference};
use super::item::{
    Action, Called, Ending, Failure, PoolChange, PoolReport, PoolTotals, Request, ScriptCall as Said, Wanted, Workspace,
};
use super::labels::LabelIds;
use super::ops::OpCall;
use super::wishes::Settings;
use crate::decode::Phase;
use crate::model::{AllocApi, AtbOp, Device, Name, PageType, Pool, RegionKind, Snapshot, System};
use crate::probes::{
    AtbCall, CallKind, FailingCall, Field, LaunchCall, MemoryCall, MstxCall, PoolCall, RowInfo, RuntimeCall,
    ScriptCall, TorchCall,
};

/// The probe rows, by number, with their functions' names.
#[derive(Debug, Default)]
pub(super) struct Rows(Vec<Option<(RowInfo, Name)>>);

/// A call of an unknown row, or one whose arguments could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unusable;

type Values<'a> = &'a dyn Fn(Field) -> Result<u64, Unusable>;

impl Rows {
    /// Rows 1 and following.
    pub(super) fn new(rows: Vec<RowInfo>) -> Self {
        Self(rows.into_iter().map(|row| Some(named(row))).collect())
    }

    pub(super) fn get(&self, number: u16) -> Option<&RowInfo> {
        self.row(number).map(|(row, _)| row)
    }

    /// Whether calls of this meaning were looked for.
    pub(super) fn have(&self, meaning: CallKind) -> bool {
        self.0.iter().flatten().any(|(row, _)| row.meaning == meaning)
    }

    /// Name of the row's function.
    pub(super) fn symbol(&self, number: u16) -> Option<Name> {
        self.row(number).map(|(_, symbol)| *symbol)
    }

    fn row(&self, number: u16) -> Option<&(RowInfo, Name)> {
        self.0.get(usize::from(number).checked_sub(1)?)?.as_ref()
    }

    /// Adds rows. Those of dynamic loaders are never described, so there may be gaps.
    pub(super) fn extend(&mut self, first: u16, rows: Vec<RowInfo>) {
        for (row, index) in rows.into_iter().zip(usize::from(first).saturating_sub(1)..MAX_ROWS as usize) {
            if index >= self.0.len() {
                self.0.resize_with(index + 1, || None);
            }
            if let Some(slot) = self.0.get_mut(index) {
                *slot = Some(named(row));
            }
        }
    }

    /// Whether the row's calls have a text that is of use.
    pub(super) fn has_text(&self, number: u16) -> bool {
        let with_text = |meaning| {
            matches!(
                meaning,
                CallKind::Launch(LaunchCall::KernelName | LaunchCall::Launch)
                    | CallKind::Torch(TorchCall::Submit)
                    | CallKind::Atb(AtbCall::Start | AtbCall::End)
                    | CallKind::Mstx(MstxCall::DomainCreate | MstxCall::Mark | MstxCall::RangeStart)
                    | CallKind::Script(
                        ScriptCall::LabelText | ScriptCall::Snapshot | ScriptCall::Range | ScriptCall::TraceText
                    )
            )
        };
        self.get(number).is_some_and(|row| with_text(row.meaning))
    }

    /// What a call means; `Ok(None)` when it means nothing, an error when what it means cannot be told.
    pub(super) fn action(&self, called: Called) -> Result<Option<Action>, Unusable> {
        let (row, symbol) = self.row(called.head.row).ok_or(Unusable)?;
        let values = called.values;
        let field = |field| {
            let index = row.fields.iter().position(|name| *name == field);
            index.and_then(|index| values.get(index)).ok_or(Unusable)
        };
        let outer = self.row(called.head.outer).map(|(_, symbol)| *symbol);
        let status = called.status as i32;
        match (row.meaning, called.phase) {
            (CallKind::Memory(MemoryCall::Alloc | MemoryCall::Create), Phase::Return) => {
                let api =
                    if row.meaning == CallKind::Memory(MemoryCall::Alloc) { AllocApi::Alloc } else { AllocApi::Create };
                driver_allocation(api, status, outer, *symbol, &field)
            }
            (CallKind::Failing(FailingCall::Alloc | FailingCall::AllocHost), Phase::Return) if status != 0 => {
                let host = row.meaning == CallKind::Failing(FailingCall::AllocHost);
                let failure = Failure {
                    pool: if host { Pool::Host } else { Pool::Hal },
                    device: host.then_some(Device::Cpu),
                    size_bytes: field(Field::Size)?,
                    flags: field(Field::Flags).unwrap_or(0),
                    status,
                    caller: Some(*symbol),
                    huge: false,
                };
                Ok(Some(Action::AllocFailed(failure)))
            }
            (
                CallKind::Mstx(MstxCall::DomainCreate | MstxCall::HeapRegister | MstxCall::RegionRegister),
                Phase::Return,
            ) => registered(row.meaning, called, &field),
            (CallKind::Pool(PoolCall::Alloc), Phase::Return) => pool_alloc(row, called.status, &field),
            (CallKind::Pool(PoolCall::Free), Phase::Enter) => Ok(Some(Action::Pool(PoolReport {
                pool: pool_of(row),
                change: PoolChange::Free,
                device: None,
                addr: field(Field::Addr)?,
                size_bytes: None,
                totals: None,
            }))),
            (CallKind::Atb(AtbCall::Start), Phase::Enter) | (CallKind::Atb(AtbCall::End), Phase::Return) => {
                let size = |name| field(name).unwrap_or(0);
                Ok(Some(Action::AtbOp(AtbOp {
                    begins: row.meaning == CallKind::Atb(AtbCall::Start),
                    name: called.text.unwrap_or_default().into(),
                    workspace_addr: size(Field::WorkspaceAddr),
                    workspace_bytes: size(Field::WorkspaceSize).saturating_add(size(Field::IntermediateSize)),
                })))
            }
            (CallKind::Atb(AtbCall::WorkspaceBegin), Phase::Enter)
            | (CallKind::Atb(AtbCall::WorkspaceEnd), Phase::Return) => Ok(Some(Action::Workspace(Workspace {
                begins: row.meaning == CallKind::Atb(AtbCall::WorkspaceBegin),
                addr: field(Field::Addr)?,
                size_bytes: field(Field::Size)?,
            }))),
            (CallKind::Pool(PoolCall::Report), _) => pta_report(*symbol, &field).map(Some),
            (CallKind::Pool(PoolCall::Request), _) => Ok(Some(Action::PoolRequest { size_bytes: field(Field::Size)? })),
            // Its return is the moment at which its text was there.
            (meaning @ CallKind::Mstx(MstxCall::Mark | MstxCall::RangeStart), Phase::Return) if row.own_return => {
                entered(meaning, called, &field)
            }
            (meaning, Phase::Enter) => entered(meaning, called, &field),
            (meaning, Phase::Return) if status != 0 => Ok(returned_non_zero(meaning, called.status, &field)),
            (meaning, Phase::Return) => succeeded(meaning, called, &field),
        }
    }
}

fn named(row: RowInfo) -> (RowInfo, Name) {
    let name = Name::keep(&row.symbol);
    (row, name)
}

/// A call that is reported at its entry.
fn entered(meaning: CallKind, called: Called, field: Values<'_>) -> Result<Option<Action>, Unusable> {
    let addr = || field(Field::Addr);
    let end = |ending| Ok(Some(Action::End(ending)));
    match meaning {
        CallKind::Memory(MemoryCall::Free) => end(Ending::Block { api: AllocApi::Alloc, addr: addr()? }),
        CallKind::Memory(MemoryCall::Release) => end(Ending::Block { api: AllocApi::Create, addr: addr()? }),
        CallKind::Memory(MemoryCall::Unpin) => end(Ending::Block { api: AllocApi::Register, addr: addr()? }),
        CallKind::Memory(MemoryCall::Unmap) => end(Ending::Mapping { addr: addr()? }),
        CallKind::Memory(MemoryCall::Unreserve) => end(Ending::Region { kind: RegionKind::Reservation, addr: addr()? }),
        CallKind::Memory(MemoryCall::Unregister) => {
            end(Ending::Region { kind: RegionKind::Registration, addr: addr()? })
        }
        CallKind::Launch(LaunchCall::Launch) => Ok(Some(Action::Launch {
            handle: field(Field::Handle).unwrap_or(0),
            stream: field(Field::Stream).unwrap_or(0),
            name: called.text.filter(|text| !text.is_empty()).map(Arc::from),
        })),
        CallKind::Runtime(RuntimeCall::Finalize) => Ok(Some(Action::System(System::AclFinalize))),
        CallKind::Mstx(MstxCall::Mark) => {
            Ok(Some(Action::Mark { text: called.text.map(Arc::from), domain: field(Field::Domain).ok() }))
        }
        CallKind::Mstx(MstxCall::RangeStart) => {
            Ok(Some(Action::RangeStart { text: called.text.map(Arc::from), domain: field(Field::Domain).ok() }))
        }
        // A function of the user's choice passes no id.
        CallKind::Mstx(MstxCall::RangeEnd) => {
            Ok(Some(Action::RangeEnd { id: field(Field::RangeId).unwrap_or(0), domain: field(Field::Domain).ok() }))
        }
        CallKind::Mstx(MstxCall::DomainDestroy | MstxCall::HeapUnregister | MstxCall::RegionUnregister) => {
            unregistered(meaning, field)
        }
        CallKind::Torch(TorchCall::Submit) => Ok(called.text.map(|name| Action::Op(Box::new(OpCall::submitted(name))))),
        CallKind::Failing(FailingCall::MemoryInfo) => Ok(Some(Action::MemoryInfo)),
        _ => Ok(script(meaning, called.text, field)?.map(Action::Script)),
    }
}

/// A marker of the Python package.
fn script(meaning: CallKind, text: Option<String>, field: Values<'_>) -> Result<Option<Said>, Unusable> {
    let ids = || Ok(LabelIds::new(field(Field::LabelsLow)?, field(Field::LabelsHigh)?));
    Ok(Some(match meaning {
        CallKind::Script(ScriptCall::Settings) => Said::Settings(Settings {
            analyses: field(Field::Analyses)?,
            stack_depths: field(Field::StackDepths)?,
            named: field(Field::Named)?,
        }),
        CallKind::Script(ScriptCall::Config) => Said::Config(Wanted {
            events: field(Field::Events)?,
            levels: field(Field::Levels)?,
            devices: field(Field::Devices)?,
        }),
        CallKind::Script(ScriptCall::Start) => Said::Start,
        CallKind::Script(ScriptCall::Stop) => Said::Stop,
        CallKind::Script(ScriptCall::Step) => Said::Step,
        CallKind::Script(ScriptCall::ThreadLabels) => Said::Labels(ids()?),
        CallKind::Script(ScriptCall::LabelText) => {
            Said::LabelText { id: field(Field::LabelId)? as u16, text: text.unwrap_or_default() }
        }
        CallKind::Script(ScriptCall::TraceText) => {
            Said::TraceText { id: field(Field::LabelId)? as u32, text: text.unwrap_or_default() }
        }
        CallKind::Script(ScriptCall::BlockLabels) => Said::LabelBlock { addr: field(Field::Addr)?, ids: ids()? },
        CallKind::Script(ScriptCall::Snapshot) => Said::Snapshot {
            device: field(Field::Device)? as u32,
            snapshot: Snapshot {
                name: text.unwrap_or_default().into(),
                reserved_bytes: field(Field::PoolReserved)?,
                max_reserved_bytes: field(Field::PoolMaxReserved)?,
                allocated_bytes: field(Field::PoolAllocated)?,
                max_allocated_bytes: field(Field::PoolMaxAllocated)?,
                total_bytes: field(Field::DeviceTotal)?,
                free_bytes: field(Field::DeviceFree)?,
            },
        },
        CallKind::Script(ScriptCall::Range) => {
            Said::Range { name: text.unwrap_or_default().into(), start_mono_ns: field(Field::StartTime)? }
        }
        _ => return Ok(None),
    }))
}

/// A call of mstx that returns a handle, or has others written.
fn registered(meaning: CallKind, called: Called, field: Values<'_>) -> Result<Option<Action>, Unusable> {
    let handle = called.status.cast_unsigned();
    if meaning == CallKind::Mstx(MstxCall::DomainCreate) {
        return Ok(Some(Action::Mstx(Told::DomainCreated { handle, name: called.text })));
    }
    let domain = field(Field::Domain)?;
    let range =
        Range { device: field(Field::Device)? as u32, addr: field(Field::Addr)?, size_bytes: field(Field::Size)? };
    Ok(Some(Action::Mstx(if meaning == CallKind::Mstx(MstxCall::HeapRegister) {
        Told::HeapRegistered { domain, handle, range }
    } else {
        Told::RegionRegistered { domain, handle: field(Field::Handle).unwrap_or(0), range }
    })))
}

fn unregistered(meaning: CallKind, field: Values<'_>) -> Result<Option<Action>, Unusable> {
    /// `mstxMemRegionRef_t::refType`.
    const HANDLE: u32 = 1;
    let domain = field(Field::Domain)?;
    Ok(Some(Action::Mstx(match meaning {
        CallKind::Mstx(MstxCall::DomainDestroy) => Told::DomainDestroyed { handle: domain },
        CallKind::Mstx(MstxCall::HeapUnregister) => Told::HeapUnregistered { domain, handle: field(Field::Handle)? },
        _ => {
            let value = field(Field::Addr)?;
            let by_handle = field(Field::ReferenceKind)? as u32 == HANDLE;
            let reference = if by_handle { Reference::Handle(value) } else { Reference::Addr(value) };
            Told::RegionUnregistered { domain, reference }
        }
    })))
}

fn pool_of(row: &RowInfo) -> Pool {
    row.pool.as_deref().map_or_else(|| Pool::custom(""), Pool::of_framework_or_custom)
}

/// A pool has handed out a block, or has none left.
fn pool_alloc(row: &RowInfo, status: i64, field: Values<'_>) -> Result<Option<Action>, Unusable> {
    let size_bytes = field(Field::Size)?.saturating_mul(field(Field::Count).unwrap_or(1));
    // An address that a failed call did not give is 0.
    let addr = if row.fields.contains(&Field::Addr) { field(Field::Addr)? } else { status.cast_unsigned() };
    let device = field(Field::Device).ok().map(|device| device as u32);
    Ok((addr != 0).then_some(Action::Pool(PoolReport {
        pool: pool_of(row),
        change: PoolChange::Alloc,
        device,
        addr,
        size_bytes: Some(size_bytes),
        totals: None,
    })))
}

/// A call that returned something else than 0: an error code, unless it is the id of a range.
fn returned_non_zero(meaning: CallKind, status: i64, field: Values<'_>) -> Option<Action> {
    match meaning {
        CallKind::Memory(
            MemoryCall::Free
            | MemoryCall::Release
            | MemoryCall::Unmap
            | MemoryCall::Unreserve
            | MemoryCall::Unregister
            | MemoryCall::Unpin,
        ) => Some(Action::EndFailed { addr: field(Field::Addr).ok() }),
        CallKind::Mstx(MstxCall::RangeStart) => Some(Action::RangeId { id: status.cast_unsigned() }),
        _ => None,
    }
}

/// A call that returned 0.
fn succeeded(meaning: CallKind, called: Called, field: Values<'_>) -> Result<Option<Action>, Unusable> {
    let region = |kind| -> Result<_, Unusable> {
        Ok(Some(Action::Region { kind, addr: field(Field::Addr)?, size_bytes: field(Field::Size)? }))
    };
    match meaning {
        CallKind::Memory(MemoryCall::Retain) => {
            Ok(Some(Action::Retain { handle: field(Field::Handle)?, addr: field(Field::Addr)? }))
        }
        CallKind::Memory(MemoryCall::Import) => Ok(Some(Action::Import { handle: field(Field::Handle)? })),
        CallKind::Memory(MemoryCall::Map) => Ok(Some(Action::Map {
            addr: field(Field::Addr)?,
            size_bytes: field(Field::Size)?,
            handle: field(Field::Handle)?,
        })),
        CallKind::Memory(MemoryCall::Reserve) => region(RegionKind::Reservation),
        CallKind::Memory(MemoryCall::Register) => region(RegionKind::Registration),
        CallKind::Memory(MemoryCall::Pin) => host_pin(field),
        CallKind::Runtime(RuntimeCall::SetDevice) => {
            Ok(Some(Action::SetDevice { device: field(Field::Device)? as u32 }))
        }
        CallKind::Runtime(RuntimeCall::CreateContext) => {
            Ok(Some(Action::CreateContext { context: field(Field::Handle)?, device: field(Field::Device)? as u32 }))
        }
        CallKind::Runtime(RuntimeCall::SetContext) => Ok(Some(Action::SetContext { context: field(Field::Handle)? })),
        CallKind::Launch(LaunchCall::KernelName) => match called.text {
            Some(name) if !name.is_empty() => {
                Ok(Some(Action::KernelName { handle: field(Field::Handle)?, name: name.into() }))
            }
            _ => Ok(None),
        },
        CallKind::Launch(LaunchCall::StreamId) => {
            let id = i64::from((field(Field::StreamId)? as u32).cast_signed());
            Ok(Some(Action::StreamId { stream: field(Field::Stream)?, id }))
        }
        CallKind::Runtime(RuntimeCall::Init) => Ok(Some(Action::System(System::AclInit))),
        _ => Ok(None),
    }
}

/// A driver call that failed inside of a call of ACL or the runtime is an attempt of that one: it may try again with
/// smaller pages, and what it returns is what counts.
fn driver_allocation(
    api: AllocApi,
    status: i32,
    outer: Option<Name>,
    symbol: Name,
    field: Values<'_>,
) -> Result<Option<Action>, Unusable> {
    let size_bytes = field(Field::Size)?;
    let Place { pool, device, module_id, page } = match api {
        AllocApi::Create => Place::of_prop(field(Field::PropSideDevice).ok(), field(Field::PropModulePage).ok()),
        AllocApi::Alloc | AllocApi::Register => Place::of_flags(field(Field::Flags)?),
    };
    let flags = field(Field::Flags).unwrap_or(0);
    let is_memory = api != AllocApi::Alloc || Space::of_flags(flags) != Space::AddressesOnly;
    if status != 0 {
        let (device, caller, huge) = (Some(device), Some(symbol), page == PageType::Huge);
        let failure = Failure { pool, device, size_bytes, flags, status, caller, huge };
        return Ok(outer.is_none().then_some(Action::AllocFailed(failure)));
    }
    let addr = field(Field::Addr).ok().filter(|addr| *addr != 0).ok_or(Unusable)?;
    if !is_memory {
        return Ok(Some(Action::Region { kind: RegionKind::Reservation, addr, size_bytes }));
    }
    Ok(Some(Action::Alloc(Request { addr, size_bytes, flags, pool, device, module_id, page, api, caller: outer })))
}

/// `ACL_HOST_REG_PINNED` of `aclrtHostRegisterV2` (ascend-abi §3); other registrations pin nothing.
const PINNED: u64 = 0x1000_0000;

fn host_pin(field: Values<'_>) -> Result<Option<Action>, Unusable> {
    let flags = field(Field::Flags)?;
    Ok((flags & PINNED != 0).then_some(Action::Alloc(Request {
        addr: field(Field::Addr)?,
        size_bytes: field(Field::Size)?,
        flags,
        pool: Pool::Host,
        device: Device::Cpu,
        module_id: None,
        page: PageType::Normal,
        api: AllocApi::Register,
        caller: None,
    })))
}

/// `c10::DeviceType::PrivateUse1`, which is the NPU.
const PRIVATE_USE: u8 = 20;

/// `torch_npu`'s `MemoryUsage` (ascend-abi §6.2). Its first bytes tell whether the function that was found is the one
/// that was looked for. Bytes 5 to 7 are padding that is not zero, and byte 4 is, too, before 2.5.
fn pta_report(symbol: Name, field: Values<'_>) -> Result<Action, Unusable> {
    let [kind, device, component, change, ..] = field(Field::PtaKind)?.to_le_bytes();
    let pool = match component {
        0 => Some(Pool::Pta),
        1 => Some(Pool::PtaWorkspace),
        _ => None,
    };
    let change = match change {
        0 => Some(PoolChange::Alloc),
        1 => Some(PoolChange::Free),
        2 => Some(PoolChange::Returned),
        _ => None,
    };
    let size = field(Field::Size)?.cast_signed();
    // A block that is handed out has a size; one that ends is told with a negative one.
    let sensible = kind == PRIVATE_USE
        && device.cast_signed() >= 0
        && change.is_some_and(|change| if change == PoolChange::Alloc { size >= 0 } else { size <= 0 });
    let (Some(pool), Some(change), true) = (pool, change, sensible) else {
        return Ok(Action::Mislocated { symbol });
    };
    let totals = PoolTotals {
        used_bytes: Some(field(Field::PoolAllocated)?),
        reserved_bytes: field(Field::PoolReserved)?,
        active_bytes: field(Field::PoolActive)?,
    };
    Ok(Action::Pool(PoolReport {
        pool,
        change,
        device: Some(device.into()),
        addr: field(Field::Addr)?,
        size_bytes: Some(size.unsigned_abs()),
        totals: Some(totals),
    }))
}

/// Where memory is asked for, and by whom.
struct Place {
    pool: Pool,
    device: Device,
    module_id: Option<u8>,
    page: PageType,
}

/// What the address space field of a flag word stands for (ascend-abi §2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    /// Memory of the NPU: `MEM_SVM`, `MEM_DEV`, `MEM_DVPP`.
    Device,
    /// Memory of the host: `MEM_HOST`, `MEM_HOST_AGENT`, `MEM_HOST_UVA`.
    Host,
    /// No memory of either yet: `MEM_RESERVE`, `MEM_UVM` (its pages follow their users), and values without a meaning.
    /// msMemScope passes over these calls.
    AddressesOnly,
}

impl Space {
    const fn of_flags(flags: u64) -> Self {
        match flags >> 10 & 0xf {
            0 | 1 | 3 => Self::Device,
            2 | 4 | 6 => Self::Host,
            _ => Self::AddressesOnly,
        }
    }
}

impl Place {
    /// From the flag word of `halMemAlloc` (ascend-abi §2.1).
    fn of_flags(flags: u64) -> Self {
        let host = Space::of_flags(flags) == Space::Host;
        let page = match (flags >> 31 & 1, flags >> 17 & 1) {
            (1, _) => PageType::Giant,
            (_, 1) => PageType::Huge,
            _ => PageType::Normal,
        };
        let (pool, device) =
            if host { (Pool::Host, Device::Cpu) } else { (Pool::Hal, Device::Npu((flags & 0x3ff) as u32)) };
        Self { pool, device, module_id: Some((flags >> 56) as u8), page }
    }

    /// From the first 16 bytes of `drv_mem_prop` (ascend-abi §2.3), as far as they could be read.
    fn of_prop(side_device: Option<u64>, module_page: Option<u64>) -> Self {
        let (pool, device) = match side_device.map(|word| (word as u32, (word >> 32) as u32)) {
            Some((0 | 2, _)) => (Pool::Host, Device::Cpu),
            Some((_, device)) => (Pool::Hal, Device::Npu(device)),
            None => (Pool::Hal, Device::None),
        };
        let page = match module_page.map(|word| word >> 32) {
            Some(1) => PageType::Huge,
            Some(2) => PageType::Giant,
            _ => PageType::Normal,
        };
        Self { pool, device, module_id: module_page.and_then(|word| u8::try_from(word as u32).ok()), page }
    }
}
