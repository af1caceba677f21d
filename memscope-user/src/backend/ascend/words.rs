//! Words of the driver and of pools: flags, properties, codes.

use super::{modules, pools};
use crate::backend::{Fields, Place, PoolChange, PoolWord};
use crate::model::{AllocApi, Device, PageType};
use crate::probes::Field;

/// Codes for memory being out: the driver's, then those of ACL and the runtime (ascend-abi §2, §3).
pub(super) const OUT_OF_MEMORY: [i32; 5] = [6, 207_001, 200_000, 300_000, 0x0702_0016];
/// The driver is asked for a little more than the caller of ACL or the runtime wanted (ascend-abi §2.1).
pub(super) const PADDING_BYTES: u64 = 4096;
/// `ACL_HOST_REG_PINNED` of `aclrtHostRegisterV2` (ascend-abi §3); other registrations pin nothing.
pub(super) const PINNED: u64 = 0x1000_0000;
/// `c10::DeviceType::PrivateUse1`, which is the NPU.
pub(super) const PRIVATE_USE: u8 = 20;

/// Meaning of the address space field of a flag word (ascend-abi §2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    /// Memory of the NPU: `MEM_SVM`, `MEM_DEV`, `MEM_DVPP`.
    Device,
    /// Memory of the host: `MEM_HOST`, `MEM_HOST_AGENT`, `MEM_HOST_UVA`.
    Host,
    /// No memory of either yet: `MEM_RESERVE`, `MEM_UVM` (its pages follow their users), and unused values. msMemScope
    /// ignores these calls.
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

/// Where a call of the driver asks for memory.
pub(super) fn place(api: AllocApi, field: Fields<'_>) -> Option<Place> {
    Some(match api {
        AllocApi::Create => of_prop(field(Field::PropSideDevice), field(Field::PropModulePage)),
        AllocApi::Alloc => of_flags(field(Field::Flags)?),
        AllocApi::Register => Place { is_memory: true, ..of_flags(field(Field::Flags)?) },
    })
}

/// From the flag word of `halMemAlloc` (ascend-abi §2.1).
fn of_flags(flags: u64) -> Place {
    let space = Space::of_flags(flags);
    let page = match (flags >> 31 & 1, flags >> 17 & 1) {
        (1, _) => PageType::Giant,
        (_, 1) => PageType::Huge,
        _ => PageType::Normal,
    };
    let (pool, device) = if space == Space::Host {
        (pools::HOST, Device::Cpu)
    } else {
        (pools::HAL, Device::Npu((flags & 0x3ff) as u32))
    };
    let (module_id, is_memory) = (Some(modules::of((flags >> 56) as u8)), space != Space::AddressesOnly);
    Place { pool, device, module_id, page, is_memory }
}

/// From the first 16 bytes of `drv_mem_prop` (ascend-abi §2.3), as far as they could be read.
fn of_prop(side_device: Option<u64>, module_page: Option<u64>) -> Place {
    let (pool, device) = match side_device.map(|word| (word as u32, (word >> 32) as u32)) {
        Some((0 | 2, _)) => (pools::HOST, Device::Cpu),
        Some((_, device)) => (pools::HAL, Device::Npu(device)),
        None => (pools::HAL, Device::None),
    };
    let page = match module_page.map(|word| word >> 32) {
        Some(1) => PageType::Huge,
        Some(2) => PageType::Giant,
        _ => PageType::Normal,
    };
    let module_id = module_page.and_then(|word| u8::try_from(word as u32).ok()).map(modules::of);
    Place { pool, device, module_id, page, is_memory: true }
}

/// The first bytes of `torch_npu`'s `MemoryUsage` (ascend-abi §6.2). Bytes 5 to 7 are padding that is not zero, and so
/// is byte 4 before 2.5.
pub(super) fn pool_report(word: u64, size: i64) -> Option<PoolWord> {
    let [kind, device, component, change, ..] = word.to_le_bytes();
    let pool = match component {
        0 => pools::PTA,
        1 => pools::PTA_WORKSPACE,
        _ => return None,
    };
    let change = match change {
        0 => PoolChange::Alloc,
        1 => PoolChange::Free,
        2 => PoolChange::Returned,
        _ => return None,
    };
    // A block that is handed out has a size; at its end the size is negative.
    let is_sensible = if change == PoolChange::Alloc { size >= 0 } else { size <= 0 };
    let is_ours = kind == PRIVATE_USE && device.cast_signed() >= 0;
    (is_ours && is_sensible).then_some(PoolWord { pool, change, device: device.into() })
}
