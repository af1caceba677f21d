//! Whether BPF programs may compare and exchange. No helper comes with that feature, so the probe loads a program that
//! does it.

use std::os::fd::{FromRawFd as _, OwnedFd};

/// `BPF_PROG_LOAD` and `BPF_PROG_TYPE_KPROBE` (`linux/bpf.h`).
const PROG_LOAD: libc::c_long = 5;
const KPROBE: u32 = 2;

/// Instructions in their binary form: operation in the lowest byte, then target and source register in half a byte each, an offset
/// and a number.
const PROGRAM: [u64; 5] = [
    // r0 = 0
    0x0000_0000_0000_00b7,
    // *(u64 *)(r10 - 8) = r0
    0x0000_0000_fff8_0a7b,
    // r0 = cmpxchg_64(r10 - 8, r0, r0)
    0x0000_00f1_fff8_0adb,
    // r0 = 0
    0x0000_0000_0000_00b7,
    // exit
    0x0000_0000_0000_0095,
];

/// The first fields of what `bpf(2)` takes to load a program; those behind are zero.
#[repr(C)]
struct Load {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    rest: [u64; 4],
}

/// Asks the kernel.
pub(super) fn is_supported() -> bool {
    let load = Load {
        kind: KPROBE,
        instruction_count: PROGRAM.len() as u32,
        instructions: PROGRAM.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        rest: [0; 4],
    };
    // SAFETY: the kernel reads that many bytes, and what they point to.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, PROG_LOAD, &raw const load, size_of::<Load>()) };
    // SAFETY: a new descriptor, owned here alone.
    let program = (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as i32) });
    program.is_some()
}
