//! Signal frames as the kernel builds them on x86-64: what `rt_sigreturn` puts back into a thread, whether we live or not.

use libc::user_regs_struct;

/// `ucontext_t`: offsets of flags, of those of the stack, of the general registers, of the pointer to the others, of the mask.
const FLAGS: usize = 0;
const STACK_FLAGS: usize = 24;
const REGISTERS: usize = 40;
const OTHERS: usize = 224;
const SIGNAL_MASK: usize = 296;
/// Its bytes, up to the mask.
const CONTEXT_BYTES: usize = 304;

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

/// What a thread was doing.
#[derive(Clone)]
pub(super) struct Saved {
    pub(super) registers: user_regs_struct,
    /// As `NT_X86_XSTATE` gives it.
    pub(super) others: Vec<u8>,
    pub(super) signal_mask: u64,
}

/// A chain of frames: bytes and where they go, and the registers with which the thread sets out.
pub(super) struct Chain {
    pub(super) writes: Vec<(u64, Vec<u8>)>,
    pub(super) registers: user_regs_struct,
}

/// A system call.
#[derive(Clone, Copy, Debug)]
pub(super) struct SystemCall {
    pub(super) number: u64,
    pub(super) args: [u64; 6],
}

/// Below this the stack is the thread's own, whatever it has there.
const RED_ZONE: u64 = 128;

/// First address below the thread's stack that nobody uses.
pub(super) const fn scratch(saved: &Saved) -> u64 {
    (saved.registers.rsp - RED_ZONE - 256) & !63
}

/// The thread makes `call`, then `report`, and then goes on as it was saved. Each step leads to the next by a frame.
pub(super) fn chain(
    saved: &Saved,
    call: SystemCall,
    report: SystemCall,
    system_call: u64,
    restore: u64,
) -> Option<Chain> {
    let len = saved.others.len() as u64;
    // One line of it is for a text.
    let top = scratch(saved).checked_sub(64)?;
    let others_at = top.checked_sub(len + 64)? & !63;
    let home_at = (others_at - 512) & !63;
    let report_at = home_at - 1024;
    let mut writes = vec![(others_at, others(&saved.others)?)];
    writes.push((home_at, context(&saved.registers, others_at, saved.signal_mask)));
    let reporting = calling(saved, report, system_call, home_at);
    writes.push((home_at - 8, restore.to_le_bytes().to_vec()));
    writes.push((report_at, context(&reporting, 0, saved.signal_mask)));
    writes.push((report_at - 8, restore.to_le_bytes().to_vec()));
    Some(Chain { writes, registers: calling(saved, call, system_call, report_at) })
}

/// Registers of a thread that is about to make a system call, and then returns from a signal with the frame at `frame`.
fn calling(saved: &Saved, call: SystemCall, system_call: u64, frame: u64) -> user_regs_struct {
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
        rsp: frame - 8,
        eflags: PLAIN_FLAGS,
        // Not in a system call: nothing is to be restarted.
        orig_rax: u64::MAX,
        ..saved.registers
    }
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}

fn context(registers: &user_regs_struct, others_at: u64, signal_mask: u64) -> Vec<u8> {
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

/// The other registers as a frame has them: with what software says of them.
fn others(state: &[u8]) -> Option<Vec<u8>> {
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
