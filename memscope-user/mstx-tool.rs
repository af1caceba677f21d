//! `libmemscope_mstx.so`: the tool that `run --mstx-injection` has mstx lead its calls to.
//!
//! A copy of mstx in a program (`inline static` functions of its headers) calls no named function, but looks for a tool
//! at its first call (ascend-abi §5.2). This one does nothing: its functions exist to be probed, under the names of
//! `libms_tools_ext.so`'s exports. It returns handles, which distinguish domains, heaps, regions and ranges; without a
//! tool all of them are null.
//!
//! It runs in the traced program: no allocation, no lock, no call into any library, not even libc, and no global state
//! that the program could see but a counter. Compiled by the build script, alone: it is no part of a crate.
//!
//! Every probed function has instructions of its own, because a compiler may merge two equal ones.
#![no_std]

use core::arch::naked_asm;
use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};

const SUCCESS: c_int = 0;
const FAIL: c_int = 1;

/// `mstxFuncModule`.
const CORE: c_int = 1;
const CORE_DOMAIN: c_int = 2;
const CORE_MEM: c_int = 3;

/// `mstxFuncPointer`, of any prototype.
type Function = *const c_void;
/// `mstxFuncTable`: pointers to where pointers to functions are kept, from 1.
type Table = *const *mut Function;
/// `mstxGetModuleFuncTableFunc`.
type GetTable = unsafe extern "C" fn(module: c_int, table: *mut Table, size: *mut c_uint) -> c_int;

/// `mstxMemRegionsRegisterBatch_t`.
#[repr(C)]
pub struct Regions {
    heap: *const c_void,
    kind: c_uint,
    count: usize,
    ranges: *const c_void,
    handles: *mut usize,
}

/// Gives out numbers from 1, for all kinds of handles.
static LAST: AtomicUsize = AtomicUsize::new(0);

#[inline(always)]
fn next() -> usize {
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// A function that does nothing and can be probed cheaply.
macro_rules! silent {
    ($($name:ident)*) => { $(
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            naked_asm!("nop", "ret")
        }
    )* };
}

/// The same, but it returns a new handle or id.
macro_rules! numbering {
    ($($name:ident)*) => { $(
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() -> usize {
            #[cfg(target_arch = "x86_64")]
            naked_asm!("nop", "mov eax, 1", "lock xadd [rip + {last}], rax", "inc rax", "ret", last = sym LAST);
            #[cfg(target_arch = "aarch64")]
            naked_asm!(
                "nop",
                "adrp x9, {last}",
                "add x9, x9, :lo12:{last}",
                "2:",
                "ldaxr x0, [x9]",
                "add x0, x0, 1",
                "stlxr w10, x0, [x9]",
                "cbnz w10, 2b",
                "ret",
                last = sym LAST
            );
        }
    )* };
}

silent!(mstxMarkA mstxRangeEnd mstxDomainDestroy mstxDomainMarkA mstxDomainRangeEnd);
silent!(mstxMemHeapUnregister mstxMemRegionsUnregister);
numbering!(mstxRangeStartA mstxDomainCreateA mstxDomainRangeStartA mstxMemHeapRegister);

/// Gives each region a handle, where the caller wants to have them.
///
/// # Safety
///
/// By mstx's declaration: `regions` is null or a batch with arrays of `count` elements.
#[unsafe(no_mangle)]
unsafe extern "C" fn mstxMemRegionsRegister(_domain: *const c_void, regions: *const Regions) {
    // SAFETY: see above.
    let Some(regions) = (unsafe { regions.as_ref() }) else { return };
    if regions.handles.is_null() {
        return;
    }
    for index in 0..regions.count {
        // SAFETY: below the number of elements.
        unsafe { regions.handles.add(index).write(next()) };
    }
}

/// Called by each copy of mstx, at its first call.
///
/// # Safety
///
/// `get_table` is null or as in mstx's protocol of injection.
#[unsafe(no_mangle)]
unsafe extern "C" fn InitInjectionMstx(get_table: Option<GetTable>) -> c_int {
    let Some(get_table) = get_table else { return FAIL };
    // The fourth returns the kind of tool. None that a program would know.
    let core = [mstxMarkA as Function, mstxRangeStartA as Function, mstxRangeEnd as Function];
    let domain = [
        mstxDomainCreateA as Function,
        mstxDomainDestroy as Function,
        mstxDomainMarkA as Function,
        mstxDomainRangeStartA as Function,
        mstxDomainRangeEnd as Function,
    ];
    let memory = [
        mstxMemHeapRegister as Function,
        mstxMemHeapUnregister as Function,
        mstxMemRegionsRegister as Function,
        mstxMemRegionsUnregister as Function,
    ];
    // SAFETY: as promised; earlier versions of mstx have the first module alone.
    unsafe {
        fill(get_table, CORE_DOMAIN, &domain);
        fill(get_table, CORE_MEM, &memory);
        fill(get_table, CORE, &core)
    }
}

/// Puts `functions` into a module's table.
///
/// # Safety
///
/// As [`InitInjectionMstx`].
unsafe fn fill(get_table: GetTable, module: c_int, functions: &[Function]) -> c_int {
    let (mut table, mut size) = (core::ptr::null(), 0);
    // SAFETY: as promised.
    if unsafe { get_table(module, &mut table, &mut size) } != SUCCESS || table.is_null() {
        return FAIL;
    }
    for (number, function) in (1..=size as usize).zip(functions) {
        // SAFETY: the table has `size` entries behind the first.
        unsafe {
            let place = *table.add(number);
            if !place.is_null() {
                place.write(*function);
            }
        }
    }
    SUCCESS
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // Nothing above panics.
    loop {
        core::hint::spin_loop();
    }
}
