//! The signal handler that a watched process gets, and the memory that we share with it.
//!
//! Its first page is code, which the process may run and not write; then come a head and, for each thread that is in the handler at
//! the same time, a slot: what we ask of it, a stack, and room for bytes. The kernel saves and restores all registers around
//! a handler; this one keeps `errno`, works on the slot's own stack (the thread's may be small), and makes the calls that we ask for,
//! nothing else. Whoever waits for us for two seconds in which we show no life switches all of it off, and goes on.
//!
//! The code is data for us: it is never run in this process.

use std::{arch::global_asm, mem::offset_of};

/// Threads that can be in the handler at once; others pass by.
pub(super) const SLOTS: usize = 32;
const PAGE: usize = 4096;
/// Where the head is.
pub(super) const HEAD_AT: usize = PAGE;
/// Where the slots are.
pub(super) const SLOTS_AT: usize = 2 * PAGE;
const STACK_BYTES: usize = 256 << 10;
/// Bytes that a slot has room for.
pub(super) const BUFFER_BYTES: usize = 1 << 20;
/// Where a slot's buffer is in it.
pub(super) const BUFFER_AT: usize = PAGE + STACK_BYTES;
/// From one slot to the next.
pub(super) const STRIDE: usize = BUFFER_AT + BUFFER_BYTES;
/// All of it.
pub(super) const TOTAL_BYTES: usize = SLOTS_AT + SLOTS * STRIDE;
/// Calls that can be asked for at once.
pub(super) const CALLS: usize = 8;

/// Shared by all slots.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Head {
    /// 0: the handler returns at once.
    pub(super) on: u32,
    /// Rung when a thread has something to say.
    pub(super) bell: u32,
    /// Threads that found no slot.
    pub(super) skipped: u32,
    /// A thread has waited for us in vain.
    pub(super) given_up: u32,
    /// Changes while we live.
    pub(super) alive: u32,
    reserved: u32,
    /// `__errno_location` of the process.
    pub(super) errno_function: u64,
    /// `struct timespec`: how long a thread waits before it looks whether we live.
    pub(super) patience: [u64; 2],
    /// What the process is to have for the signal: `struct sigaction` as the kernel takes it.
    pub(super) action: Action,
    /// What it had.
    pub(super) old_action: Action,
}

/// `struct sigaction` as the kernel takes it on x86-64.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Action {
    /// Address of the handler.
    pub(super) handler: u64,
    /// `SA_*`.
    pub(super) flags: u64,
    /// Where handlers return to.
    pub(super) restorer: u64,
    /// Signals that are blocked meanwhile.
    pub(super) mask: u64,
}

/// One thread in the handler.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Slot {
    /// Its number as it knows it; 0: free.
    pub(super) owner: u32,
    /// Counts what the thread has told us.
    pub(super) done: u32,
    /// The last of those that we have answered.
    pub(super) order: u32,
    /// Calls that we ask for; 0: go on with the program.
    pub(super) count: u32,
    /// Stack pointer where it was interrupted.
    pub(super) stack_pointer: u64,
    /// Instruction pointer there.
    pub(super) instruction_pointer: u64,
    errno: u32,
    reserved: [u32; 7],
    /// The calls. The first that returns anything but 0 is the last that is made.
    pub(super) calls: [Call; CALLS],
}

/// A call that the thread is to make.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Call {
    /// Address of the function.
    pub(super) function: u64,
    /// Its arguments.
    pub(super) args: [u64; 5],
    /// What it returned; only the lower half counts.
    pub(super) returned: u64,
    reserved: u64,
}

impl Call {
    /// A call that has not been made.
    #[must_use]
    pub(super) const fn new(function: u64, args: [u64; 5]) -> Self {
        /// No function returns this: a call that was not made is not taken for one that succeeded.
        const NOT_MADE: u64 = 0x7fff_fffe;
        Self { function, args, returned: NOT_MADE, reserved: 0 }
    }
}

const _: () = assert!(size_of::<Head>() <= PAGE && size_of::<Slot>() <= PAGE);
const _: () = assert!(offset_of!(Call, returned) == 48 && size_of::<Call>() == 64);

#[cfg(target_arch = "x86_64")]
global_asm!(
    r#"
    .pushsection .rodata.memscope_watch, "a", @progbits
    .balign 16
memscope_watch_begin:
    .set HEAD, memscope_watch_begin + {head}
    .set SLOTS, memscope_watch_begin + {slots_at}
    // void handler(int signal, siginfo_t *info, void *context)
    endbr64
    cmpl $0x80, 8(%rsi)                 // si_code: only what the kernel sent
    jne 9f
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
3:  mov HEAD+{alive}(%rip), %r13d       // tell
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
6:  movl $0, HEAD+{on}(%rip)            // nobody answers
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

/// The code, and where in it the function for system calls is; the handler is its beginning.
#[must_use]
pub(super) fn code() -> (&'static [u8], u64) {
    unsafe extern "C" {
        static memscope_watch_begin: u8;
        static memscope_watch_system_call: u8;
        static memscope_watch_end: u8;
    }
    let (begin, end) = (&raw const memscope_watch_begin, &raw const memscope_watch_end);
    let system_call = (&raw const memscope_watch_system_call).addr() - begin.addr();
    // SAFETY: the bytes between two labels of one section.
    (unsafe { std::slice::from_raw_parts(begin, end.addr() - begin.addr()) }, system_call as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_fits_into_its_page() {
        let (code, system_call) = code();
        assert!(code.len() <= PAGE && system_call < code.len() as u64, "{} bytes", code.len());
        // endbr64
        assert_eq!(code[..4], [0xf3, 0x0f, 0x1e, 0xfa]);
    }
}
