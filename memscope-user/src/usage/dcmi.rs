//! Calls of `libdcmi.so` (ascend-abi §11). Only ever made in the helper process.

use std::ffi::{CStr, CString, c_int, c_uint, c_ulong, c_ulonglong, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use thiserror::Error;

use super::DeviceFigures;

const MIB: u64 = 1 << 20;
/// Most cards and processes; the driver writes at most 64 of either.
const MAX_CARDS: usize = 256;
const MAX_PROCESSES: usize = 1024;
/// Chips of a card.
const MAX_CHIPS: c_int = 64;

type Init = unsafe extern "C" fn() -> c_int;
type CardList = unsafe extern "C" fn(*mut c_int, *mut c_int, c_int) -> c_int;
type DeviceNum = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;
type LogicId = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
type HbmInfo = unsafe extern "C" fn(c_int, c_int, *mut Hbm) -> c_int;
type MemoryInfo = unsafe extern "C" fn(c_int, c_int, *mut Memory) -> c_int;
type ProcessInfo = unsafe extern "C" fn(c_int, c_int, *mut Process, *mut c_int) -> c_int;

/// `struct dcmi_hbm_info`.
#[repr(C)]
#[derive(Default)]
struct Hbm {
    memory_size_mb: c_ulonglong,
    freq: c_uint,
    memory_usage_mb: c_ulonglong,
    temp: c_int,
    bandwidth_util: c_uint,
}
const _: () = assert!(size_of::<Hbm>() == 32);

/// `struct dcmi_get_memory_info_stru`: chips without HBM.
#[repr(C)]
struct Memory {
    size_mb: c_ulonglong,
    available_mb: c_ulonglong,
    freq: c_uint,
    hugepage_size_kb: c_ulong,
    hugepages_total: c_ulong,
    hugepages_free: c_ulong,
    util: c_uint,
    reserve: [u8; 60],
}
const _: () = assert!(size_of::<Memory>() == 112);

/// `struct dcmi_proc_mem_info`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Process {
    pid: c_int,
    usage_bytes: c_ulong,
}
const _: () = assert!(size_of::<Process>() == 16);

/// DCMI cannot be used.
#[derive(Debug, Error)]
pub(super) enum DcmiError {
    /// The library does not load.
    #[error("cannot load `{}`: {reason}", path.display())]
    Load {
        /// The library.
        path: PathBuf,
        /// The loader's message.
        reason: String,
    },
    /// It has not this function.
    #[error("`{}` has no function `{symbol}`", path.display())]
    Symbol {
        /// The library.
        path: PathBuf,
        /// The function.
        symbol: &'static str,
    },
    /// A function failed.
    #[error("{symbol} returned {code}")]
    Call {
        /// The function.
        symbol: &'static str,
        /// Its error.
        code: c_int,
    },
}

/// The library, and the devices that it knows.
pub(super) struct Dcmi {
    chips: Vec<Place>,
    hbm_info: Option<HbmInfo>,
    memory_info: Option<MemoryInfo>,
    /// The documented function, then the one behind it: boards differ in which of them works.
    process_info: [Option<ProcessInfo>; 2],
}

/// A device by its logical number, and by what DCMI calls it.
#[derive(Clone, Copy)]
struct Place {
    device: u32,
    card: c_int,
    chip: c_int,
}

impl Dcmi {
    /// Loads the library and asks for the devices.
    pub(super) fn open(path: &Path) -> Result<Self, DcmiError> {
        let library = Library::open(path)?;
        let needed = |symbol| DcmiError::Symbol { path: path.to_owned(), symbol };
        // SAFETY: the types of all functions are those of DCMI's header.
        let (init, card_list, device_num, logic_id) = unsafe {
            (
                library.get::<Init>(c"dcmi_init").ok_or_else(|| needed("dcmi_init"))?,
                library.get::<CardList>(c"dcmi_get_card_list").ok_or_else(|| needed("dcmi_get_card_list"))?,
                library
                    .get::<DeviceNum>(c"dcmi_get_device_num_in_card")
                    .ok_or_else(|| needed("dcmi_get_device_num_in_card"))?,
                library
                    .get::<LogicId>(c"dcmi_get_device_logic_id")
                    .ok_or_else(|| needed("dcmi_get_device_logic_id"))?,
            )
        };
        // SAFETY: takes nothing.
        check("dcmi_init", unsafe { init() })?;
        let chips = chips(card_list, device_num, logic_id)?;
        // SAFETY: as above.
        let (hbm_info, memory_info, process_info) = unsafe {
            (
                library.get(c"dcmi_get_device_hbm_info"),
                library.get(c"dcmi_get_device_memory_info_v3"),
                [c"dcmi_get_device_resource_info", c"dcmi_get_npu_proc_mem_info"].map(|name| library.get(name)),
            )
        };
        Ok(Self { chips, hbm_info, memory_info, process_info })
    }

    /// Logical numbers of the devices.
    pub(super) fn devices(&self) -> Vec<u32> {
        self.chips.iter().map(|chip| chip.device).collect()
    }

    /// Figures of the devices of `wanted`, or of all if it is empty. A device without an answer is left out, unless
    /// none answers.
    pub(super) fn figures(&self, wanted: &[u32]) -> Result<Vec<DeviceFigures>, DcmiError> {
        let is_wanted = |chip: &&Place| wanted.is_empty() || wanted.contains(&chip.device);
        let asked = self.chips.iter().filter(is_wanted).map(|chip| self.of_chip(*chip));
        let (mut answered, mut failed) = (Vec::new(), None);
        for figures in asked {
            match figures {
                Ok(figures) => answered.push(figures),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if answered.is_empty() => Err(error),
            _ => Ok(answered),
        }
    }

    fn of_chip(&self, place: Place) -> Result<DeviceFigures, DcmiError> {
        let (used_bytes, total_bytes) = self.memory(place)?;
        Ok(DeviceFigures { device: place.device, used_bytes, total_bytes, processes: self.processes(place) })
    }

    /// Bytes in use, and total bytes. Chips without HBM return an error, or a size of 0.
    fn memory(&self, Place { card, chip, .. }: Place) -> Result<(u64, u64), DcmiError> {
        const HBM: &str = "dcmi_get_device_hbm_info";
        let mut hbm = Hbm::default();
        // SAFETY: `hbm` has the size that the function writes.
        let code = self.hbm_info.map_or(0, |hbm_info| unsafe { hbm_info(card, chip, &raw mut hbm) });
        if code == 0 && hbm.memory_size_mb > 0 {
            return Ok((hbm.memory_usage_mb.saturating_mul(MIB), hbm.memory_size_mb.saturating_mul(MIB)));
        }
        let Some(memory_info) = self.memory_info else { return Err(DcmiError::Call { symbol: HBM, code }) };
        let mut memory = Memory {
            size_mb: 0,
            available_mb: 0,
            freq: 0,
            hugepage_size_kb: 0,
            hugepages_total: 0,
            hugepages_free: 0,
            util: 0,
            reserve: [0; 60],
        };
        // SAFETY: `memory` has the size that the function writes.
        check("dcmi_get_device_memory_info_v3", unsafe { memory_info(card, chip, &raw mut memory) })?;
        let used_mb = memory.size_mb.saturating_sub(memory.available_mb);
        Ok((used_mb.saturating_mul(MIB), memory.size_mb.saturating_mul(MIB)))
    }

    fn processes(&self, Place { card, chip, .. }: Place) -> Option<Vec<(u32, u64)>> {
        self.process_info.iter().flatten().find_map(|process_info| {
            let mut list = [Process::default(); MAX_PROCESSES];
            let mut count = MAX_PROCESSES as c_int;
            // SAFETY: there is more room than the function ever writes.
            let code = unsafe { process_info(card, chip, list.as_mut_ptr(), &raw mut count) };
            let listed = list.get(..usize::try_from(count).ok()?)?;
            let process = |process: &Process| Some((u32::try_from(process.pid).ok()?, process.usage_bytes));
            (code == 0).then(|| listed.iter().filter_map(process).collect())
        })
    }
}

/// A loaded library. It stays to the process's end, and so do its functions.
struct Library(NonNull<c_void>);

impl Library {
    fn open(path: &Path) -> Result<Self, DcmiError> {
        let failed = |reason| DcmiError::Load { path: path.to_owned(), reason };
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| failed(error.to_string()))?;
        // SAFETY: loading runs the library's initializers. The caller has checked that none but root can have
        // written it, and this process does nothing else.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(handle).map(Self).ok_or_else(|| failed(loader_error()))
    }

    /// A function.
    ///
    /// # Safety
    ///
    /// `F` is the function's type.
    unsafe fn get<F: Copy>(&self, symbol: &CStr) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: the handle is that of a loaded library.
        let address = NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), symbol.as_ptr()) })?;
        // SAFETY: the sizes are the same, and the caller vouches for the type.
        Some(unsafe { std::mem::transmute_copy::<NonNull<c_void>, F>(&address) })
    }
}

fn loader_error() -> String {
    // SAFETY: gives a text that lives until the next call of the loader, which this thread alone makes.
    let text = NonNull::new(unsafe { libc::dlerror() });
    // SAFETY: as above.
    text.map_or_else(String::new, |text| unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
}

fn chips(card_list: CardList, device_num: DeviceNum, logic_id: LogicId) -> Result<Vec<Place>, DcmiError> {
    let (mut count, mut cards) = (0, [0; MAX_CARDS]);
    // SAFETY: there is room for as many cards as we say.
    check("dcmi_get_card_list", unsafe { card_list(&raw mut count, cards.as_mut_ptr(), MAX_CARDS as c_int) })?;
    let mut chips = Vec::new();
    for &card in cards.iter().take(usize::try_from(count).unwrap_or(0)) {
        let mut number = 0;
        // SAFETY: it writes one number.
        check("dcmi_get_device_num_in_card", unsafe { device_num(card, &raw mut number) })?;
        for chip in 0..number.min(MAX_CHIPS) {
            let mut device = -1;
            // SAFETY: it writes one number.
            let code = unsafe { logic_id(&raw mut device, card, chip) };
            // A card also has chips that are no NPU.
            if let (0, Ok(device)) = (code, u32::try_from(device)) {
                chips.push(Place { device, card, chip });
            }
        }
    }
    Ok(chips)
}

const fn check(symbol: &'static str, code: c_int) -> Result<(), DcmiError> {
    if code == 0 { Ok(()) } else { Err(DcmiError::Call { symbol, code }) }
}
