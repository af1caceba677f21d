//! Prologues of x86-64 functions.

use iced_x86::{
    Code, Decoder, DecoderOptions, EncodingKind, FastFormatter, FlowControl, Instruction, InstructionInfo,
    InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};

use super::{
    Effects, Kernel, Pad, SCAN_BYTES, SiteCost, Step, Targets,
    motion::{Copy, Motion, Store},
};

/// The registers of the integer arguments, in order.
const ARGS: [Register; 6] = [Register::RDI, Register::RSI, Register::RDX, Register::RCX, Register::R8, Register::R9];

/// Their numbers as instructions have them.
pub(super) const ARG_NUMBERS: [u32; 6] = [7, 6, 2, 1, 8, 9];
/// The number of the stack pointer.
pub(super) const STACK: u32 = 4;
/// Where the kernel keeps registers, by these numbers: offsets in `struct pt_regs` of `asm/ptrace.h`.
pub(super) const SAVED_AT: [i32; 16] = [80, 88, 96, 40, 152, 32, 104, 112, 72, 64, 56, 48, 24, 16, 8, 0];

/// A call that replaces a nop is written in one go only where it does not cross a page.
const PAGE_BYTES: u64 = 4096;

/// The nops that the kernel emulates, `x86_nops` in `arch/x86/include/asm/nops.h`, without the one-byte one.
const LONG_NOPS: [&[u8]; 7] = [
    &[0x66, 0x90],
    &[0x0f, 0x1f, 0x00],
    &[0x0f, 0x1f, 0x40, 0x00],
    NOP5,
    &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
    &[0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00],
    &[0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
];
const NOP5: &[u8] = &[0x0f, 0x1f, 0x44, 0x00, 0x00];

/// Decodes from the start of `body` to the first byte that is no instruction, at most [`SCAN_BYTES`].
pub(super) fn steps(address: u64, body: &[u8], kernel: Kernel) -> Vec<Step> {
    let mut prologue = Prologue { kernel, red_zone: false, info: InstructionInfoFactory::new() };
    let mut formatter = FastFormatter::new();
    let mut text = |instruction: &Instruction| {
        let mut text = String::new();
        formatter.format(instruction, &mut text);
        text
    };
    let mut steps = Vec::new();
    let mut decoder = Decoder::with_ip(64, body, address, DecoderOptions::NONE);
    while decoder.can_decode() && decoder.position() < SCAN_BYTES {
        let offset = decoder.position();
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            break;
        }
        let bytes = body.get(offset..decoder.position()).unwrap_or_default();
        steps.push(prologue.step(offset as u32, bytes, &instruction, text(&instruction)));
    }
    steps
}

/// Where the direct branches in `code` lead, which starts `start` bytes from the entry of a function.
///
/// Behind bytes that do not decode, instructions may be read out of step.
pub(super) fn inner_target(code: &[u8], start: i64) -> Targets {
    // Decoded as if the entry were at 0, offsets are addresses, and those before it are negative.
    let decoder = Decoder::with_ip(64, code, start as u64, DecoderOptions::NONE);
    decoder.into_iter().fold(Targets { lowest: u64::MAX, sure: true }, |found, instruction| {
        let target = Some(instruction.near_branch_target()).filter(|target| *target as i64 > 0);
        Targets { lowest: found.lowest.min(target.unwrap_or(u64::MAX)), sure: found.sure && !instruction.is_invalid() }
    })
}

/// Offsets of the return instructions in `body`; `None` if not all of it decodes, or one of them takes no probe.
pub(super) fn returns(body: &[u8]) -> Option<Vec<u32>> {
    let mut found = Vec::new();
    for instruction in Decoder::with_ip(64, body, 0, DecoderOptions::NONE) {
        let at = instruction.ip() as usize;
        if instruction.is_invalid() {
            return None;
        }
        if instruction.flow_control() == FlowControl::Return {
            let bytes = body.get(at..at + instruction.len())?;
            let plain = instruction.mnemonic() == Mnemonic::Ret && !is_refused(bytes, &instruction);
            found.push(plain.then_some(at as u32)?);
        }
    }
    Some(found)
}

/// Offsets of the jumps out of `body` that take the place of a call and a return: right behind the last instruction of an epilogue. Those that lead to a cold part of
/// the function stand behind others.
pub(super) fn tail_calls(body: &[u8]) -> Vec<u32> {
    let own = 0..body.len() as u64;
    let mut found = Vec::new();
    let mut is_epilogue = false;
    for instruction in Decoder::with_ip(64, body, 0, DecoderOptions::NONE) {
        let at = instruction.ip() as usize;
        let is_jump = match instruction.flow_control() {
            FlowControl::IndirectBranch => true,
            FlowControl::UnconditionalBranch => !own.contains(&instruction.near_branch_target()),
            _ => false,
        };
        let bytes = body.get(at..at + instruction.len()).unwrap_or_default();
        if is_epilogue && is_jump && !is_refused(bytes, &instruction) {
            found.push(at as u32);
        }
        let adds_to_stack = instruction.mnemonic() == Mnemonic::Add && instruction.op0_register() == Register::RSP;
        is_epilogue = adds_to_stack || matches!(instruction.mnemonic(), Mnemonic::Pop | Mnemonic::Leave);
    }
    found
}

/// Where the unconditional direct jumps of `code` lead.
pub(super) fn jumps(address: u64, code: &[u8]) -> Vec<u64> {
    let decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let jumps = decoder.into_iter().filter(Instruction::is_jmp_short_or_near);
    jumps.map(|instruction| instruction.near_branch_target()).collect()
}

struct Prologue {
    kernel: Kernel,
    /// A value was stored below `rsp`.
    red_zone: bool,
    info: InstructionInfoFactory,
}

impl Prologue {
    fn step(&mut self, offset: u32, bytes: &[u8], instruction: &Instruction, text: String) -> Step {
        let address = instruction.ip();
        // A `call` is emulated without its shadow stack; only where nothing else is the entry we take it.
        let cost = self.cost(address, bytes, instruction).filter(|_| offset == 0 || !instruction.is_call_near());
        let info = self.info.info(instruction);
        let (after, below_stack) = effects(instruction, info);
        let motion = motion(instruction, info);
        self.red_zone |= below_stack;
        let pad = if instruction.code() == Code::Endbr64 { Pad::Endbr } else { Pad::None };
        Step { offset, cost, pad, pushes: is_emulated_push(bytes), links: false, after, motion, text }
    }

    fn cost(&self, address: u64, bytes: &[u8], instruction: &Instruction) -> Option<SiteCost> {
        if is_refused(bytes, instruction) {
            return None;
        }
        if instruction.mnemonic() == Mnemonic::Nop {
            return self.nop_cost(address, bytes);
        }
        let emulated = is_emulated_push(bytes) || is_direct_branch(instruction);
        Some(if emulated { SiteCost::Emulated } else { SiteCost::SingleStepped })
    }

    fn nop_cost(&self, address: u64, bytes: &[u8]) -> Option<SiteCost> {
        // Newer kernels also optimise other 5-byte nops than the one they write themselves.
        if bytes.len() == NOP5.len() && self.red_zone {
            return None;
        }
        let in_page = address % PAGE_BYTES + NOP5.len() as u64 <= PAGE_BYTES;
        match bytes {
            NOP5 if self.kernel.optimizes_nop5 && in_page => Some(SiteCost::Nop5Optimizable),
            [0x90] => Some(SiteCost::Emulated),
            _ if LONG_NOPS.contains(&bytes) && self.kernel.emulates_nops => Some(SiteCost::Emulated),
            // Refused before 6.2.
            [0x66, 0x90] => None,
            _ => Some(SiteCost::SingleStepped),
        }
    }
}

/// Effects of an instruction, and whether it stores below `rsp`.
fn effects(instruction: &Instruction, info: &InstructionInfo) -> (Effects, bool) {
    let written = info.used_registers().iter().filter(|used| is_write(used.access()));
    let written: Vec<_> = written.map(|used| used.register().full_register()).collect();
    let writes =
        (0..).zip(ARGS).filter(|(_, register)| written.contains(register)).fold(0, |mask, (n, _)| mask | 1 << n);
    let moves_stack = written.contains(&Register::RSP);

    let mut stores = info.used_memory().iter().filter(|used| is_write(used.access())).peekable();
    let stores_any = stores.peek().is_some();
    let on_stack = stores.all(|used| used.base() == Register::RSP && used.index() == Register::None);
    // A push is the stack's own way of storing; all other explicit stores may hit the needed words.
    let explicit = stores_any && !moves_stack;
    let below = explicit && (instruction.memory_displacement64() as i64) < 0;

    let overwrites = explicit && !below;
    let ends = instruction.flow_control() != FlowControl::Next || !on_stack;
    let effects =
        Effects { writes, ends_return: moves_stack || overwrites, ends_stack_args: moves_stack || overwrites, ends };
    (effects, explicit && below)
}

/// Effect of an instruction on followed values.
fn motion(instruction: &Instruction, info: &InstructionInfo) -> Motion {
    let pushes = instruction.mnemonic() == Mnemonic::Push;
    if instruction.flow_control() != FlowControl::Next || instruction.is_stack_instruction() && !pushes {
        return Motion::end();
    }
    let mut motion = Motion { stack: i64::from(instruction.stack_pointer_increment()), ..Motion::default() };
    let written = info.used_registers().iter().filter(|used| is_write(used.access()));
    for register in written.filter_map(|used| number_of(used.register())) {
        motion.writes |= 1 << register;
    }
    // A push moves it by the number asked for above.
    if pushes {
        motion.writes &= !(1 << STACK);
    }
    let sources = (1..instruction.op_count()).find(|at| instruction.op_kind(*at) == OpKind::Register);
    let source = match instruction.code() {
        Code::Push_r64 => number_of(instruction.op0_register()),
        Code::Mov_rm64_r64 => sources.and_then(|at| number_of(instruction.op_register(at))),
        _ => None,
    };
    for used in info.used_memory().iter().filter(|used| is_write(used.access())) {
        let bytes = used.memory_size().size() as i64;
        let plain = used.index() == Register::None && !matches!(used.segment(), Register::FS | Register::GS);
        let (Some(base), true, 1..) = (whole_number_of(used.base()), plain, bytes) else {
            return Motion::end();
        };
        // A push stores at where the stack pointer goes; the offset of all other stores is from where it is.
        let offset = if pushes { 0 } else { used.displacement() as i64 };
        motion.stores.push(Store { base, offset, bytes, register: source });
    }
    motion.copy = copy(instruction);
    motion
}

/// Whether a register gets the value of another one, or an address relative to it.
fn copy(instruction: &Instruction) -> Option<Copy> {
    let to = number_of(instruction.op0_register())?;
    let (from, plus) = match instruction.code() {
        Code::Mov_r64_rm64 | Code::Mov_rm64_r64 if instruction.op1_kind() == OpKind::Register => {
            (number_of(instruction.op1_register())?, 0)
        }
        Code::Lea_r64_m if instruction.memory_index() == Register::None => {
            (whole_number_of(instruction.memory_base())?, instruction.memory_displacement64() as i64)
        }
        Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32 if instruction.op0_kind() == OpKind::Register => {
            (to, (instruction.immediate(1) as i64).wrapping_neg())
        }
        Code::Add_rm64_imm8 | Code::Add_rm64_imm32 if instruction.op0_kind() == OpKind::Register => {
            (to, instruction.immediate(1) as i64)
        }
        _ => return None,
    };
    Some(Copy { to, from, plus })
}

/// A general register's number, if it is the whole register.
fn whole_number_of(register: Register) -> Option<u32> {
    register.is_gpr64().then(|| register.number() as u32)
}

/// A general register's number, by the name of any part.
fn number_of(register: Register) -> Option<u32> {
    let whole = register.full_register();
    whole.is_gpr64().then(|| whole.number() as u32)
}

fn is_write(access: OpAccess) -> bool {
    !matches!(access, OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess)
}

fn is_direct_branch(instruction: &Instruction) -> bool {
    let direct = matches!(instruction.op0_kind(), OpKind::NearBranch64);
    // `loop`, `jrcxz` and `xbegin` have such an operand too, and are stepped.
    direct && (instruction.is_jcc_short_or_near() || instruction.is_jmp_short_or_near() || instruction.is_call_near())
}

/// `push` with no prefix but `REX.B`: `push_setup_xol_ops` takes no other.
fn is_emulated_push(bytes: &[u8]) -> bool {
    matches!(bytes, [0x50..=0x57] | [0x41, 0x50..=0x57])
}

/// Whether the kernel refuses a probe on it, or would then run another instruction instead.
fn is_refused(bytes: &[u8], instruction: &Instruction) -> bool {
    // VEX and its kin: taken for the one-byte opcode of the same number.
    if instruction.encoding() != EncodingKind::Legacy || instruction.flow_control() == FlowControl::XbeginXabortXend {
        return true;
    }
    let prefixes = bytes.iter().take_while(|byte| is_prefix(**byte)).count();
    let (prefixes, rest) = bytes.split_at(prefixes);
    if prefixes.iter().any(|prefix| matches!(prefix, 0x26 | 0x2e | 0x36 | 0x3e | 0xf0)) {
        return true;
    }
    let (rex, opcode) = match rest {
        [rex @ 0x40..=0x4f, opcode @ ..] => (*rex, opcode),
        opcode => (0, opcode),
    };
    let word_sized = prefixes.contains(&0x66);
    match opcode {
        [0xe8 | 0xe9 | 0xeb | 0x70..=0x7f, ..] | [0x0f, 0x80..=0x8f, ..] => word_sized,
        // `xchg`: taken for a nop.
        [0x90, ..] => rex & 1 != 0,
        // `mov` to a segment register: the one to `ss` masks the debug trap.
        [0x8e, ..] | [] => true,
        [0x0f, second, ..] => is_refused_after_0f(*second),
        [first, ..] => is_refused_opcode(*first),
    }
}

fn is_prefix(byte: u8) -> bool {
    matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3)
}

/// Zeroes of `good_insns_64` that are valid instructions: I/O, interrupts and what needs privilege.
fn is_refused_opcode(opcode: u8) -> bool {
    matches!(opcode, 0x6c..=0x6f | 0xcc | 0xcd | 0xcf | 0xe4..=0xe7 | 0xec..=0xef | 0xf1 | 0xf4 | 0xfa | 0xfb)
}

/// Zeroes of `good_2byte_insns`. Some kernels take them by mistake; the scan would end there anyway.
fn is_refused_after_0f(opcode: u8) -> bool {
    matches!(opcode, 0x00 | 0x01 | 0x05..=0x09 | 0x0b | 0x30 | 0x34 | 0x35 | 0x37 | 0x78 | 0x79 | 0xae)
}
