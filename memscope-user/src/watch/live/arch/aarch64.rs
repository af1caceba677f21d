//! aarch64: the handler's code, signal frames as the kernel builds them, and addresses of the functions they need.

use std::{arch::global_asm, io, mem::offset_of};

use libc::user_regs_struct;

use super::{
    super::{
        blob::{BUFFER_AT, CALLS, HEAD_AT, Head, SLOTS, SLOTS_AT, STRIDE, Slot},
        frames::{Frame, SystemCall},
        target::Refusal,
    },
    put,
};

/// The largest page of any kernel: the code has it to itself.
pub(in super::super) const CODE_BYTES: usize = 65_536;
/// `AUDIT_ARCH_AARCH64`
pub(in super::super) const AUDIT_ARCH: u32 = 0xc000_00b7;
/// Of a handler's action: the kernel returns from handlers by its own code.
pub(in super::super) const HANDLER_FLAGS: u64 = 0;
/// `svc #0; ret`
pub(in super::super) const SYSTEM_CALL: &[u8] = &[0x01, 0, 0, 0xd4, 0xc0, 0x03, 0x5f, 0xd6];
/// The first of these instructions.
pub(in super::super) const SYSTEM_CALL_BYTES: u64 = 4;
/// `mov x8, #139; svc #0`: how the kernel has programs return from a handler; debuggers look for the same bytes.
pub(in super::super) const RESTORE: &[u8] = &[0x68, 0x11, 0x80, 0xd2, 0x01, 0, 0, 0xd4];
/// That code is in the kernel's own mapping.
pub(in super::super) const RESTORE_IN_VDSO: bool = true;
/// Where instructions may begin.
pub(in super::super) const INSTRUCTION_ALIGN: u64 = 4;
/// Memory below the stack pointer is unused; this much is kept clear all the same.
pub(in super::super) const RED_ZONE: u64 = 128;

/// `struct rt_sigframe`: what precedes `ucontext_t`; and offsets in that: of the flags of its stack, of the mask, of the registers, of
/// the records behind them.
const INFO_BYTES: usize = 128;
const STACK_FLAGS: usize = 24;
const SIGNAL_MASK: usize = 40;
const REGISTERS: usize = 176 + 8;
const RECORDS: usize = 176 + 288;
const _: () = assert!(offset_of!(libc::ucontext_t, uc_sigmask) == SIGNAL_MASK);
const _: () = assert!(offset_of!(libc::ucontext_t, uc_mcontext) + offset_of!(libc::mcontext_t, regs) == REGISTERS);
const _: () = assert!(offset_of!(libc::mcontext_t, pstate) + 16 == 288);
/// Room that the kernel gives to records.
const MAX_RECORDS: usize = 4096;

/// Of the frame of a handler that has just been entered: offsets from the stack pointer of the stack pointer and of the
/// instruction pointer that the handler returns to, and whether its return address is at the stack pointer.
pub(in super::super) const INTERRUPTED: [u64; 2] =
    [(INFO_BYTES + REGISTERS + 31 * 8) as u64, (INFO_BYTES + REGISTERS + 32 * 8) as u64];
pub(in super::super) const RESTORE_ON_STACK: bool = false;

/// Of no alternative stack: so the thread's stays as it is.
const NO_STACK: u32 = 0x1234;
/// `FPSIMD_MAGIC`
const PLAIN_MAGIC: u32 = 0x4650_8001;
/// `SVE_MAGIC`
const SCALABLE_MAGIC: u32 = 0x5356_4501;
/// Magic and length of a record.
const RECORD_HEAD: usize = 8;
/// Of a record of the plain vector registers: the head, two status words, 32 registers.
const PLAIN_BYTES: usize = RECORD_HEAD + 8 + 32 * 16;
/// `PSR_BTYPE_MASK`: how the thread came to the next instruction.
const BRANCH_TYPE: u64 = 0xc00;

/// General registers.
pub(in super::super) type Registers = user_regs_struct;

/// The other registers, as records of a signal frame.
#[derive(Clone)]
pub(in super::super) struct Others(Vec<u8>);

impl Others {
    /// Asks for them; `regset` gives a set by its number.
    pub(in super::super) fn read(regset: impl Fn(usize) -> io::Result<Vec<u8>>) -> Result<Self, Refusal> {
        const PLAIN: usize = 2;
        const SCALABLE: usize = 0x405;
        const STREAMING: usize = 0x40b;
        const MATRIX: usize = 0x40c;
        const SHADOW_STACK: usize = 0x410;
        /// Of an empty set.
        const HEAD_BYTES: usize = 16;
        let plain = regset(PLAIN).map_err(|error| Refusal::Later(error.to_string()))?;
        let records = plain_record(&plain).ok_or_else(|| Refusal::Never("its registers are not known".to_owned()))?;
        // A machine without these has no such set.
        if regset(SHADOW_STACK).is_ok_and(|set| set.first().is_some_and(|enabled| enabled & 1 != 0)) {
            return Err(Refusal::Never("the program runs with a shadow stack".to_owned()));
        }
        for set in [STREAMING, MATRIX] {
            if regset(set).is_ok_and(|set| set.len() > HEAD_BYTES) {
                return Err(Refusal::Later("the thread uses matrix registers (SME)".to_owned()));
            }
        }
        let scalable = match regset(SCALABLE) {
            Ok(set) => scalable_record(&set),
            Err(_) => Some(Vec::new()),
        };
        let records = scalable.map(|scalable| [records, scalable].concat());
        let fitting = records.filter(|records| records.len() + RECORD_HEAD <= MAX_RECORDS);
        fitting.map(Self).ok_or_else(|| Refusal::Never("its vector registers are longer than is known".to_owned()))
    }
}

/// `struct fpsimd_context`, of a set with the registers first.
fn plain_record(set: &[u8]) -> Option<Vec<u8>> {
    const VECTORS: usize = 512;
    let (vectors, status) = (set.get(..VECTORS)?, set.get(VECTORS..VECTORS + 8)?);
    let mut record = Vec::with_capacity(PLAIN_BYTES);
    record.extend_from_slice(&PLAIN_MAGIC.to_le_bytes());
    record.extend_from_slice(&(PLAIN_BYTES as u32).to_le_bytes());
    record.extend_from_slice(status);
    record.extend_from_slice(vectors);
    Some(record)
}

/// `struct sve_context` with its registers: empty, if the thread has none of these in use. `None` if malformed.
fn scalable_record(set: &[u8]) -> Option<Vec<u8>> {
    /// `struct user_sve_header`, and where in it the bytes of a vector are, and whether there are more than plain registers.
    const HEAD_BYTES: usize = 16;
    const LENGTH_AT: usize = 8;
    const FLAGS_AT: usize = 12;
    let half = |at: usize| Some(u16::from_le_bytes(*set.get(at..at + 2)?.first_chunk()?));
    if half(FLAGS_AT)? & 1 == 0 {
        return Some(Vec::new());
    }
    let length = half(LENGTH_AT)?;
    // 32 vectors, 16 predicates of a bit for each byte of a vector, and another.
    let bytes = 32 * usize::from(length) + 17 * usize::from(length / 8);
    let mut record = vec![0; (HEAD_BYTES + bytes).next_multiple_of(16)];
    let record_bytes = record.len() as u32;
    put(&mut record, 0, &SCALABLE_MAGIC.to_le_bytes());
    put(&mut record, 4, &record_bytes.to_le_bytes());
    put(&mut record, 8, &length.to_le_bytes());
    put(&mut record, HEAD_BYTES, set.get(HEAD_BYTES..HEAD_BYTES + bytes)?);
    Some(record)
}

/// Frames in between have them: a frame without them is invalid.
pub(in super::super) const LINKS_HAVE_OTHERS: bool = true;

/// Stack pointer and instruction pointer.
pub(in super::super) const fn place(registers: &Registers) -> [u64; 2] {
    [registers.sp, registers.pc]
}

/// Whether the thread is in a system call. The kernel has cleared that by then, and any restart: the saved state is
/// right in any case.
pub(in super::super) const fn is_in_system_call(_: &Registers) -> bool {
    false
}

/// Registers of a thread that is about to make a system call, and then returns from a signal with the frame at `frame`.
/// The addresses are those of [`SYSTEM_CALL`] and [`RESTORE`].
pub(in super::super) fn calling(
    registers: &Registers,
    call: SystemCall,
    [system_call, restore]: [u64; 2],
    frame: u64,
) -> Registers {
    const NUMBER: usize = 8;
    const LINK: usize = 30;
    let mut calling = *registers;
    calling.regs[..call.args.len()].copy_from_slice(&call.args);
    calling.regs[NUMBER] = call.number;
    calling.regs[LINK] = restore;
    calling.sp = frame;
    calling.pc = system_call;
    calling.pstate &= !BRANCH_TYPE;
    calling
}

/// A frame below `top` that restores these registers.
pub(in super::super) fn frame(
    top: u64,
    registers: &Registers,
    others: Option<&Others>,
    signal_mask: u64,
    _restore: u64,
) -> Option<Frame> {
    let records = &others?.0;
    // The last record is empty.
    let len = INFO_BYTES + RECORDS + records.len() + RECORD_HEAD;
    let at = top.checked_sub(len as u64)? & !15;
    let mut bytes = vec![0; len];
    let context = &mut bytes[INFO_BYTES..];
    put(context, STACK_FLAGS, &NO_STACK.to_le_bytes());
    put(context, SIGNAL_MASK, &signal_mask.to_le_bytes());
    let general = registers.regs.into_iter().chain([registers.sp, registers.pc, registers.pstate]);
    for (index, value) in general.enumerate() {
        put(context, REGISTERS + 8 * index, &value.to_le_bytes());
    }
    put(context, RECORDS, records);
    Some(Frame { at, writes: vec![(at, bytes)] })
}

global_asm!(
    r#"
    .pushsection .rodata.memscope_watch, "a", @progbits
    .balign 16
memscope_watch_begin:
    .set HEAD, memscope_watch_begin + {head}
    .set SLOTS, memscope_watch_begin + {slots_at}
    // void handler(int signal, siginfo_t *info, void *context)
    hint #34                            // bti c
    adr x9, HEAD
    ldr w10, [x9, #{on}]
    cbz w10, 9f
    stp x29, x30, [sp, #-96]!
    mov x29, sp
    stp x19, x20, [sp, #16]
    stp x21, x22, [sp, #32]
    stp x23, x24, [sp, #48]
    str x25, [sp, #64]
    mov x20, x9                         // head
    mov x21, x2
    mov x8, #178                        // gettid
    svc #0
    mov w22, w0
    adr x19, SLOTS
    mov w23, #{slots}
1:  add x9, x19, #{owner}
    ldaxr w10, [x9]
    cbnz w10, 11f
    stlxr w11, w22, [x9]
    cbnz w11, 1b
    b 2f
11: clrex
    mov w9, #({stride} & 0xffff)
    movk w9, #({stride} >> 16), lsl #16
    add x19, x19, x9
    subs w23, w23, #1
    b.ne 1b
    add x9, x20, #{skipped}
12: ldaxr w10, [x9]
    add w10, w10, #1
    stlxr w11, w10, [x9]
    cbnz w11, 12b
    b 8f
2:  ldr x9, [x21, #(176 + 256)]         // uc_mcontext.sp
    str x9, [x19, #{stack_pointer}]
    ldr x9, [x21, #(176 + 264)]         // uc_mcontext.pc
    str x9, [x19, #{instruction_pointer}]
    mov x25, sp
    mov w9, #({stack_top} & 0xffff)
    movk w9, #({stack_top} >> 16), lsl #16
    add x9, x19, x9
    mov sp, x9
    ldr x9, [x20, #{errno_function}]
    blr x9
    mov x24, x0
    ldr w9, [x0]
    str w9, [x19, #{errno}]
3:  ldr w22, [x20, #{alive}]            // report
    ldr w9, [x19, #{done}]
    add w9, w9, #1
    add x10, x19, #{done}
    stlr w9, [x10]
    add x9, x20, #{bell}
13: ldaxr w10, [x9]
    add w10, w10, #1
    stlxr w11, w10, [x9]
    cbnz w11, 13b
    dmb ish
    mov x8, #98                         // futex(bell, FUTEX_WAKE, 1)
    mov x0, x9
    mov x1, #1
    mov x2, #1
    svc #0
4:  add x9, x19, #{order}               // wait
    ldar w2, [x9]
    ldr w10, [x19, #{done}]
    cmp w2, w10
    b.eq 5f
    mov x8, #98                         // futex(order, FUTEX_WAIT, order, patience)
    mov x0, x9
    mov x1, #0
    add x3, x20, #{patience}
    svc #0
    cbz w0, 4b
    cmn w0, #11                         // EAGAIN: it has changed
    b.eq 4b
    cmn w0, #4                          // EINTR
    b.eq 4b
    cmn w0, #110                        // ETIMEDOUT
    b.ne 6f
    ldr w9, [x20, #{alive}]
    cmp w9, w22
    mov w22, w9
    b.ne 4b
6:  str wzr, [x20, #{on}]               // no answer
    mov w9, #1
    str w9, [x20, #{given_up}]
    b 7f
5:  ldr w23, [x19, #{count}]
    cmp w23, #{calls}
    b.hi 7f
    cbz w23, 7f
    add x21, x19, #{calls_at}
10: ldr x9, [x21]
    ldp x0, x1, [x21, #8]
    ldp x2, x3, [x21, #24]
    ldr x4, [x21, #40]
    mov x5, #0
    blr x9
    str x0, [x21, #48]
    cbnz w0, 3b
    add x21, x21, #64
    subs w23, w23, #1
    b.ne 10b
    b 3b
7:  ldr w9, [x19, #{errno}]
    str w9, [x24]
    mov sp, x25
    add x9, x19, #{owner}
    stlr wzr, [x9]
8:  ldr x25, [sp, #64]
    ldp x23, x24, [sp, #48]
    ldp x21, x22, [sp, #32]
    ldp x19, x20, [sp, #16]
    ldp x29, x30, [sp], #96
9:  ret
    .balign 16
    // long system_call(long number, long first, long second, long third, long fourth)
memscope_watch_system_call:
    hint #34
    mov x8, x0
    mov x0, x1
    mov x1, x2
    mov x2, x3
    mov x3, x4
    svc #0
    ret
memscope_watch_end:
    .popsection
    .globl memscope_watch_begin
    .globl memscope_watch_system_call
    .globl memscope_watch_end
    .hidden memscope_watch_begin
    .hidden memscope_watch_system_call
    .hidden memscope_watch_end
    "#,
    head = const HEAD_AT,
    slots_at = const SLOTS_AT,
    slots = const SLOTS,
    stride = const STRIDE,
    stack_top = const BUFFER_AT,
    calls = const CALLS,
    calls_at = const offset_of!(Slot, calls),
    on = const offset_of!(Head, on),
    bell = const offset_of!(Head, bell),
    skipped = const offset_of!(Head, skipped),
    given_up = const offset_of!(Head, given_up),
    alive = const offset_of!(Head, alive),
    errno_function = const offset_of!(Head, errno_function),
    patience = const offset_of!(Head, patience),
    owner = const offset_of!(Slot, owner),
    done = const offset_of!(Slot, done),
    order = const offset_of!(Slot, order),
    count = const offset_of!(Slot, count),
    stack_pointer = const offset_of!(Slot, stack_pointer),
    instruction_pointer = const offset_of!(Slot, instruction_pointer),
    errno = const offset_of!(Slot, errno),
);

#[cfg(test)]
mod tests {
    use super::*;

    /// The C library's declarations of a frame agree with the numbers above; the records follow each other to an empty
    /// one.
    #[test]
    fn frames_are_what_the_c_library_takes_them_for() {
        // SAFETY: zeroes are registers.
        let mut registers: Registers = unsafe { std::mem::zeroed() };
        (registers.regs[30], registers.sp, registers.pc, registers.pstate) = (30, 0x7000, 0x401_000, 0x6000_0000);
        let others = Others(plain_record(&[7; 528]).expect("a record"));
        let Frame { at, writes } = frame(0x10_0000, &registers, Some(&others), 0x55, 0).expect("room");
        assert_eq!((at % 16, writes[0].0), (0, at));
        let mut bytes = writes[0].1[128..].to_vec();
        assert_eq!(bytes[176 + 288..176 + 288 + 8], [0x01, 0x80, 0x50, 0x46, 0x10, 0x02, 0, 0]);
        assert_eq!(bytes[176 + 288 + 528..], [0; 8]);
        bytes.resize(size_of::<libc::ucontext_t>(), 0);
        // SAFETY: as many bytes as it has, and any are a value but for pointers, which are not followed.
        let context: libc::ucontext_t = unsafe { bytes.as_ptr().cast::<libc::ucontext_t>().read_unaligned() };
        let machine = context.uc_mcontext;
        assert_eq!((machine.regs[30], machine.sp, machine.pc, machine.pstate), (30, 0x7000, 0x401_000, 0x6000_0000));
        assert_eq!(bytes[SIGNAL_MASK..SIGNAL_MASK + 8], 0x55_u64.to_le_bytes());
    }

    /// A set of SVE registers of 16 bytes each: 32 of those and 17 predicates of two bytes; without them none.
    #[test]
    fn scalable_registers() {
        let mut set = vec![0; 16 + 512 + 34 + 16];
        set[8] = 16;
        assert_eq!(scalable_record(&set), Some(Vec::new()));
        set[12] = 1;
        set[16..16 + 546].fill(9);
        let record = scalable_record(&set).expect("a record");
        assert_eq!(record.len(), 576);
        assert_eq!(record[..10], [0x01, 0x45, 0x56, 0x53, 0x40, 0x02, 0, 0, 16, 0]);
        assert!(record[16..16 + 546].iter().all(|byte| *byte == 9) && record[16 + 546..] == [0; 14]);
        assert_eq!(scalable_record(&set[..100]), None);
    }
}
