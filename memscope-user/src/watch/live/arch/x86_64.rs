//! x86-64: the handler's code, signal frames as the kernel builds them, and the C library's functions they need.

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

/// A page: the code has it to itself.
pub(in super::super) const CODE_BYTES: usize = 4096;
/// `AUDIT_ARCH_X86_64`
pub(in super::super) const AUDIT_ARCH: u32 = 0xc000_003e;
/// Of a handler's action: the kernel has no code of its own to return from one.
pub(in super::super) const HANDLER_FLAGS: u64 = 0x0400_0000;
/// `syscall; ret`
pub(in super::super) const SYSTEM_CALL: &[u8] = &[0x0f, 0x05, 0xc3];
/// The first of these instructions.
pub(in super::super) const SYSTEM_CALL_BYTES: u64 = 2;
/// `mov $15, %rax; syscall`: how libc returns from a handler; debuggers look for the same bytes.
pub(in super::super) const RESTORE: &[u8] = &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// That code is in libc.
pub(in super::super) const RESTORE_IN_VDSO: bool = false;
/// Where instructions may begin.
pub(in super::super) const INSTRUCTION_ALIGN: u64 = 1;
/// This many bytes below the stack pointer belong to the thread, whatever they contain.
pub(in super::super) const RED_ZONE: u64 = 128;

/// `ucontext_t`: offsets of flags, of those of the stack, of the general registers, of the pointer to the others, of the mask.
const FLAGS: usize = 0;
const STACK_FLAGS: usize = 24;
const REGISTERS: usize = 40;
const OTHERS: usize = 224;
const SIGNAL_MASK: usize = 296;
/// Its bytes, up to the mask.
const CONTEXT_BYTES: usize = 304;
const _: () = assert!(offset_of!(libc::ucontext_t, uc_mcontext) == REGISTERS);
const _: () = assert!(offset_of!(libc::ucontext_t, uc_sigmask) == SIGNAL_MASK);

/// Of the frame of a handler that has just been entered: offsets from the stack pointer of the stack pointer and of the
/// instruction pointer that the handler returns to, and whether its return address is at the stack pointer.
pub(in super::super) const INTERRUPTED: [u64; 2] = [8 + REGISTERS as u64 + 15 * 8, 8 + REGISTERS as u64 + 16 * 8];
pub(in super::super) const RESTORE_ON_STACK: bool = true;

/// `UC_FP_XSTATE`
const WITH_OTHERS: u64 = 1;
/// `UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS`
const WITH_STACK_SEGMENT: u64 = 6;
/// Of no alternative stack: so the thread's stays as it is.
const NO_STACK: u32 = 0x1234;

/// Where `XSAVE` leaves room for software: magic, bytes in all, features, bytes of the state.
const SOFTWARE: usize = 464;
const FEATURES: usize = SOFTWARE;
const MAGIC: u32 = 0x4650_5853;
/// Behind the state.
const END_MAGIC: u32 = 0x4650_5845;

/// General registers.
pub(in super::super) type Registers = user_regs_struct;

/// The other registers, as `NT_X86_XSTATE` gives them.
#[derive(Clone)]
pub(in super::super) struct Others(Vec<u8>);

impl Others {
    /// Asks for them; `regset` gives a set by its number.
    pub(in super::super) fn read(regset: impl Fn(usize) -> io::Result<Vec<u8>>) -> Result<Self, Refusal> {
        const XSTATE: usize = 0x202;
        regset(XSTATE).map(Self).map_err(|error| Refusal::Later(error.to_string()))
    }
}

/// Frames in between leave them unchanged.
pub(in super::super) const LINKS_HAVE_OTHERS: bool = false;

/// Stack pointer and instruction pointer.
pub(in super::super) const fn place(registers: &Registers) -> [u64; 2] {
    [registers.rsp, registers.rip]
}

/// Whether the thread is in a system call.
pub(in super::super) const fn is_in_system_call(registers: &Registers) -> bool {
    registers.orig_rax != u64::MAX
}

/// Registers of a thread that is about to make a system call, and then returns from a signal with the frame at `frame`. The addresses
/// are those of [`SYSTEM_CALL`] and [`RESTORE`].
pub(in super::super) fn calling(
    registers: &Registers,
    call: SystemCall,
    [system_call, _]: [u64; 2],
    frame: u64,
) -> Registers {
    const PLAIN_FLAGS: u64 = 0x202;
    let [rdi, rsi, rdx, r10, r8, r9] = call.args;
    user_regs_struct {
        rip: system_call,
        rax: call.number,
        rdi,
        rsi,
        rdx,
        r10,
        r8,
        r9,
        rsp: frame,
        eflags: PLAIN_FLAGS,
        // Not in a system call: nothing has to be restarted.
        orig_rax: u64::MAX,
        ..*registers
    }
}

/// A frame below `top` that restores these registers; without `others` those stay as they are.
pub(in super::super) fn frame(
    top: u64,
    registers: &Registers,
    others: Option<&Others>,
    signal_mask: u64,
    restore: u64,
) -> Option<Frame> {
    let mut writes = Vec::new();
    let (mut below, mut others_at) = (top, 0);
    if let Some(others) = others {
        let bytes = state(&others.0)?;
        others_at = top.checked_sub(bytes.len() as u64 + 64)? & !63;
        below = others_at;
        writes.push((others_at, bytes));
    }
    let at = below.checked_sub(512)? & !63;
    writes.push((at, context(registers, others_at, signal_mask)));
    // The return address of the function for system calls.
    writes.push((at - 8, restore.to_le_bytes().to_vec()));
    Some(Frame { at: at - 8, writes })
}

fn context(registers: &Registers, others_at: u64, signal_mask: u64) -> Vec<u8> {
    let r = registers;
    let mut bytes = vec![0; CONTEXT_BYTES];
    let flags = WITH_STACK_SEGMENT | if others_at == 0 { 0 } else { WITH_OTHERS };
    put(&mut bytes, FLAGS, &flags.to_le_bytes());
    put(&mut bytes, STACK_FLAGS, &NO_STACK.to_le_bytes());
    let segments = r.cs & 0xffff | (r.ss & 0xffff) << 48;
    let general = [
        r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx, r.rax, r.rcx, r.rsp,
        r.rip, r.eflags, segments,
    ];
    for (index, value) in general.into_iter().enumerate() {
        put(&mut bytes, REGISTERS + 8 * index, &value.to_le_bytes());
    }
    put(&mut bytes, OTHERS, &others_at.to_le_bytes());
    put(&mut bytes, SIGNAL_MASK, &signal_mask.to_le_bytes());
    bytes
}

/// The other registers as a frame has them: with the fields reserved for software.
fn state(state: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = state.to_vec();
    let features: [u8; 8] = bytes.get(FEATURES..FEATURES + 8)?.try_into().ok()?;
    // The legacy area and the header at least.
    if bytes.len() < 576 {
        return None;
    }
    let len = u32::try_from(bytes.len()).ok()?;
    put(&mut bytes, SOFTWARE, &MAGIC.to_le_bytes());
    put(&mut bytes, SOFTWARE + 4, &(len + 4).to_le_bytes());
    put(&mut bytes, SOFTWARE + 8, &features);
    put(&mut bytes, SOFTWARE + 16, &len.to_le_bytes());
    bytes.extend_from_slice(&END_MAGIC.to_le_bytes());
    Some(bytes)
}

global_asm!(
    r#"
    .pushsection .rodata.memscope_watch, "a", @progbits
    .balign 16
memscope_watch_begin:
    .set HEAD, memscope_watch_begin + {head}
    .set SLOTS, memscope_watch_begin + {slots_at}
    // void handler(int signal, siginfo_t *info, void *context)
    endbr64
    cmpl $0, HEAD+{on}(%rip)
    je 9f
    push %rbx
    push %rbp
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rdx, %r15
    mov $186, %eax                      // gettid
    syscall
    mov %eax, %r13d
    lea SLOTS(%rip), %rbx
    mov ${slots}, %ecx
1:  xor %eax, %eax
    lock cmpxchg %r13d, {owner}(%rbx)
    je 2f
    add ${stride}, %rbx
    dec %ecx
    jnz 1b
    lock incl HEAD+{skipped}(%rip)
    jmp 8f
2:  mov 160(%r15), %rax                 // uc_mcontext.gregs[REG_RSP]
    mov %rax, {stack_pointer}(%rbx)
    mov 168(%r15), %rax                 // REG_RIP
    mov %rax, {instruction_pointer}(%rbx)
    mov %rsp, %rbp
    lea {stack_top}(%rbx), %rsp
    call *HEAD+{errno_function}(%rip)
    mov %rax, %r12
    mov (%rax), %eax
    mov %eax, {errno}(%rbx)
3:  mov HEAD+{alive}(%rip), %r13d       // report
    mov {done}(%rbx), %eax
    inc %eax
    mov %eax, {done}(%rbx)
    lock incl HEAD+{bell}(%rip)
    mov $202, %eax                      // futex(bell, FUTEX_WAKE, 1)
    lea HEAD+{bell}(%rip), %rdi
    mov $1, %esi
    mov $1, %edx
    syscall
4:  mov {order}(%rbx), %edx             // wait
    cmp {done}(%rbx), %edx
    je 5f
    mov $202, %eax                      // futex(order, FUTEX_WAIT, order, patience)
    lea {order}(%rbx), %rdi
    xor %esi, %esi
    lea HEAD+{patience}(%rip), %r10
    syscall
    test %eax, %eax
    je 4b
    cmp $-11, %eax                      // EAGAIN: it has changed
    je 4b
    cmp $-4, %eax                       // EINTR
    je 4b
    cmp $-110, %eax                     // ETIMEDOUT
    jne 6f
    mov HEAD+{alive}(%rip), %eax
    cmp %eax, %r13d
    mov %eax, %r13d
    jne 4b
6:  movl $0, HEAD+{on}(%rip)            // no answer
    movl $1, HEAD+{given_up}(%rip)
    jmp 7f
5:  mov {count}(%rbx), %r14d
    cmp ${calls}, %r14d
    ja 7f
    test %r14d, %r14d
    jz 7f
    lea {calls_at}(%rbx), %r15
10: mov 8(%r15), %rdi
    mov 16(%r15), %rsi
    mov 24(%r15), %rdx
    mov 32(%r15), %rcx
    mov 40(%r15), %r8
    xor %r9d, %r9d
    xor %eax, %eax
    call *(%r15)
    mov %rax, 48(%r15)
    test %eax, %eax
    jne 3b
    add $64, %r15
    dec %r14d
    jnz 10b
    jmp 3b
7:  mov {errno}(%rbx), %eax
    mov %eax, (%r12)
    mov %rbp, %rsp
    movl $0, {owner}(%rbx)
8:  pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbp
    pop %rbx
9:  ret
    .balign 16
    // long system_call(long number, long first, long second, long third, long fourth)
memscope_watch_system_call:
    endbr64
    mov %rdi, %rax
    mov %rsi, %rdi
    mov %rdx, %rsi
    mov %rcx, %rdx
    mov %r8, %r10
    syscall
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
    options(att_syntax)
);

#[cfg(test)]
mod tests {
    use super::*;

    /// The C library's declarations of a frame agree with the numbers above.
    #[test]
    fn frames_are_what_the_c_library_takes_them_for() {
        // SAFETY: zeroes are registers.
        let registers =
            Registers { rip: 0x401_000, rsp: 0x7000, r15: 15, eflags: 0x246, ..unsafe { std::mem::zeroed() } };
        let others = Others(vec![7; 832]);
        let Frame { at, writes } = frame(0x10_0000, &registers, Some(&others), 0x55, 0xdead).expect("room");
        let written =
            |at: u64| writes.iter().find(|(place, _)| *place == at).map(|(_, bytes)| bytes.clone()).expect("bytes");
        assert_eq!(written(at), 0xdead_u64.to_le_bytes());
        let mut bytes = written(at + 8);
        bytes.resize(size_of::<libc::ucontext_t>(), 0);
        // SAFETY: as many bytes as it has, and any are a value but for pointers, which are not followed.
        let context: libc::ucontext_t = unsafe { bytes.as_ptr().cast::<libc::ucontext_t>().read_unaligned() };
        let general = context.uc_mcontext.gregs;
        let value = |register: i32| general[register as usize] as u64;
        assert_eq!([value(libc::REG_RIP), value(libc::REG_RSP), value(libc::REG_R15)], [0x401_000, 0x7000, 15]);
        assert_eq!(value(libc::REG_EFL), 0x246);
        let others_at = context.uc_mcontext.fpregs.addr() as u64;
        assert_eq!((others_at % 64, written(others_at).len()), (0, 836));
        assert_eq!(bytes[SIGNAL_MASK..SIGNAL_MASK + 8], 0x55_u64.to_le_bytes());
        // A frame of unknown kind begins where its handler's stack does.
        assert_eq!(INTERRUPTED, [8 + 40 + 15 * 8, 8 + 40 + 16 * 8]);
    }
}
