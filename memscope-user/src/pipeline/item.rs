//! What a record means: a call and its row become an [`Item`], the unit of the stages that follow.

use std::sync::Arc;

use crate::capture::Note;
use crate::decode::{Phase, Values};
use crate::model::{AllocApi, Device, PageType, Pool, System};
use crate::probes::{Field, Meaning, RowInfo};

/// Something that happened, not yet in time order.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) head: Head,
    pub(super) action: Action,
}

/// When, where, and as the how manieth record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) time_ns: u64,
    /// Number of the record in the stream: decides between equal times.
    pub(super) seq: u64,
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) row: u16,
}

#[derive(Debug)]
pub(super) enum Action {
    Alloc(Request),
    AllocFailed {
        request: Request,
        status: i32,
    },
    Free {
        api: AllocApi,
        addr: u64,
    },
    /// The thread's last free by this row has failed; some kernels' records repeat the address.
    FreeFailed {
        addr: Option<u64>,
    },
    SetDevice {
        device: u32,
    },
    Launch {
        handle: u64,
        stream: u64,
        name: Option<Arc<str>>,
    },
    KernelName {
        handle: u64,
        name: Arc<str>,
    },
    StreamId {
        stream: u64,
        id: i64,
    },
    System(System),
    Mark {
        text: Option<Arc<str>>,
    },
    RangeStart {
        text: Option<Arc<str>>,
    },
    /// The program's own id of the range that the thread has just started.
    RangeId {
        id: u64,
    },
    RangeEnd {
        id: u64,
    },
    Fork {
        child: u32,
    },
    Exec,
    Note(Box<Note>),
}

/// What an allocation asked for and got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) addr: u64,
    pub(super) size_bytes: u64,
    pub(super) flags: u64,
    pub(super) pool: Pool,
    pub(super) device: Device,
    pub(super) module_id: Option<u8>,
    pub(super) page: PageType,
    pub(super) api: AllocApi,
}

/// A call whose text is complete.
#[derive(Debug)]
pub(super) struct Called {
    pub(super) head: Head,
    pub(super) phase: Phase,
    pub(super) status: i64,
    pub(super) values: Values,
    /// `None` for a null pointer.
    pub(super) text: Option<String>,
}

/// The probe rows, by number.
#[derive(Debug, Default)]
pub(super) struct Rows(Vec<RowInfo>);

impl Rows {
    /// Rows 1 and following.
    pub(super) const fn new(rows: Vec<RowInfo>) -> Self {
        Self(rows)
    }

    pub(super) fn get(&self, number: u16) -> Option<&RowInfo> {
        self.0.get(usize::from(number).checked_sub(1)?)
    }

    /// Adds rows. Numbers that leave a gap are of no use and are passed over.
    pub(super) fn extend(&mut self, first: u16, rows: Vec<RowInfo>) {
        for (row, index) in rows.into_iter().zip(usize::from(first).saturating_sub(1)..usize::from(u16::MAX)) {
            if index == self.0.len() {
                self.0.push(row);
            } else if let Some(slot) = self.0.get_mut(index) {
                *slot = row;
            }
        }
    }

    /// Whether the row's calls have a text that is of use.
    pub(super) fn has_text(&self, number: u16) -> bool {
        use Meaning::{KernelName, Launch, Mark, RangeStart};
        self.get(number).is_some_and(|row| matches!(row.meaning, Mark | RangeStart | KernelName | Launch))
    }

    /// What a call means; `Ok(None)` when it means nothing, an error when what it means cannot be told.
    pub(super) fn action(&self, called: Called) -> Result<Option<Action>, Unusable> {
        let row = self.get(called.head.row).ok_or(Unusable)?;
        let field = |field| {
            let index = row.fields.iter().position(|name| *name == field);
            index.and_then(|index| called.values.get(index)).ok_or(Unusable)
        };
        let (enter, status) = (called.phase == Phase::Enter, called.status);
        let succeeded = !enter && status == 0;
        Ok(Some(match row.meaning {
            Meaning::HalAlloc | Meaning::HalCreate if !enter => {
                let api = if row.meaning == Meaning::HalAlloc { AllocApi::Alloc } else { AllocApi::Create };
                allocation(api, status, &field)?
            }
            Meaning::HalFree if enter => Action::Free { api: AllocApi::Alloc, addr: field(Field::Addr)? },
            Meaning::HalRelease if enter => Action::Free { api: AllocApi::Create, addr: field(Field::Addr)? },
            Meaning::HalFree | Meaning::HalRelease if status != 0 => {
                Action::FreeFailed { addr: field(Field::Addr).ok() }
            }
            Meaning::SetDevice if succeeded => Action::SetDevice { device: field(Field::Device)? as u32 },
            Meaning::Launch => Action::Launch {
                handle: field(Field::Handle).unwrap_or(0),
                stream: field(Field::Stream).unwrap_or(0),
                name: called.text.filter(|text| !text.is_empty()).map(Arc::from),
            },
            Meaning::KernelName if succeeded => match called.text {
                Some(name) if !name.is_empty() => {
                    Action::KernelName { handle: field(Field::Handle)?, name: name.into() }
                }
                _ => return Ok(None),
            },
            Meaning::StreamId if succeeded => {
                let id = i64::from((field(Field::StreamId)? as u32).cast_signed());
                Action::StreamId { stream: field(Field::Stream)?, id }
            }
            Meaning::AclInit if succeeded => Action::System(System::AclInit),
            Meaning::AclFinalize => Action::System(System::AclFinalize),
            Meaning::Mark => Action::Mark { text: called.text.map(Arc::from) },
            Meaning::RangeStart if enter => Action::RangeStart { text: called.text.map(Arc::from) },
            Meaning::RangeStart if status != 0 => Action::RangeId { id: status.cast_unsigned() },
            Meaning::RangeEnd if enter => Action::RangeEnd { id: field(Field::RangeId)? },
            _ => return Ok(None),
        }))
    }
}

/// A call of an unknown row, or one whose arguments could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unusable;

fn allocation(api: AllocApi, status: i64, field: &dyn Fn(Field) -> Result<u64, Unusable>) -> Result<Action, Unusable> {
    let size_bytes = field(Field::Size)?;
    let addr = if status == 0 { field(Field::Addr)? } else { 0 };
    if status == 0 && addr == 0 {
        return Err(Unusable);
    }
    let place = match api {
        AllocApi::Alloc => Place::of_flags(field(Field::Flags)?),
        AllocApi::Create => Place::of_prop(field(Field::PropSideDevice).ok(), field(Field::PropModulePage).ok()),
    };
    let flags = field(Field::Flags).unwrap_or(0);
    let Place { pool, device, module_id, page } = place;
    let request = Request { addr, size_bytes, flags, pool, device, module_id, page, api };
    Ok(match status {
        0 => Action::Alloc(request),
        status => Action::AllocFailed { request, status: status as i32 },
    })
}

/// Where memory is asked for, and by whom.
struct Place {
    pool: Pool,
    device: Device,
    module_id: Option<u8>,
    page: PageType,
}

/// Values of the address space field that mean host memory: `MEM_HOST`, and `MEM_HOST_UVA` of newer drivers.
const HOST_SPACES: [u64; 2] = [2, 6];

impl Place {
    /// From the flag word of `halMemAlloc` (ascend-abi §2.1).
    fn of_flags(flags: u64) -> Self {
        let host = HOST_SPACES.contains(&(flags >> 10 & 0xf));
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
