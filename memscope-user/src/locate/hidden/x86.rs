//! x86-64.
//!
//! Instructions have no alignment, so decoding a hundred megabytes in step is slow, and decoding them out of step is
//! wrong. The scans search for the four bytes that a reference must have, at any place; to be sure, a caller decodes
//! the function around them from its start.

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfo, InstructionInfoFactory, OpAccess, OpKind,
    Register,
};

use super::op::{Flow, Op, Read};
use crate::os::elf::dynamic::Mapping;

/// `rdi rsi rdx rcx r8 r9`.
pub(super) const ARGUMENTS: [u8; 6] = [7, 6, 2, 1, 8, 9];
/// `rsp`.
pub(super) const STACK_POINTER: u8 = 4;

/// `rax rcx rdx rsi rdi r8 r9 r10 r11`: a called function need not keep them.
const CALL_CLOBBERS: u32 = 0b0000_1111_1100_0111;

/// Bytes of code searched at a time.
const BLOCK: usize = 4096;

/// `call` and `jmp` with a displacement of 32 bits.
const NEAR: [u8; 2] = [0xe8, 0xe9];

pub(super) fn ops(bytes: &[u8], start: u64) -> Vec<Op> {
    let mut info = InstructionInfoFactory::new();
    let decoded = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE).into_iter();
    let valid = decoded.take_while(|instruction| !instruction.is_invalid());
    valid.map(|instruction| op(&instruction, info.info(&instruction))).collect()
}

pub(super) fn loads(bytes: &[u8], start: u64, slot: u64) -> Vec<u64> {
    let decoded = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE).into_iter();
    let loads = decoded
        .take_while(|instruction| !instruction.is_invalid())
        .filter(|instruction| instruction.is_ip_rel_memory_operand() && instruction.ip_rel_memory_address() == slot);
    loads.map(|instruction| instruction.ip()).collect()
}

/// The displacement ends an instruction that loads a pointer: none with a constant behind it loads one.
pub(super) fn load_sites<'m>(mapping: &'m Mapping<'_>, slot: u64) -> impl Iterator<Item = u64> + use<'m> {
    displacements(mapping, slot).map(|(at, _)| at)
}

/// The first byte of each `call` and `jmp`; short jumps are never used as calls, and calls through a register name no
/// place.
pub(super) fn call_sites<'m>(mapping: &'m Mapping<'_>, target: u64) -> impl Iterator<Item = u64> + use<'m> {
    let near = displacements(mapping, target).filter(|(_, before)| before.is_some_and(|byte| NEAR.contains(&byte)));
    near.map(|(at, _)| at - 1)
}

/// Addresses of four bytes that hold the distance from behind them to `target`, and the byte before.
///
/// Searches in blocks; a first test of each block compiles to vector instructions.
fn displacements<'m>(mapping: &'m Mapping<'_>, target: u64) -> impl Iterator<Item = (u64, Option<u8>)> + use<'m> {
    let (vaddr, bytes) = (mapping.vaddr, mapping.bytes);
    let distance = move |at: usize| target.wrapping_sub(vaddr).wrapping_sub(4).wrapping_sub(at as u64);
    let blocks = (0..bytes.len()).step_by(BLOCK).filter(move |start| {
        let end = bytes.len().min(start + BLOCK + 3);
        // The lower half decides in all but absurd cases.
        bytes.get(*start..end).is_some_and(|block| may_have(block, distance(*start) as u32))
    });
    blocks.flat_map(|start| start..start + BLOCK).filter_map(move |at| {
        let found = i32::from_le_bytes(bytes.get(at..)?.first_chunk().copied()?);
        let before = at.checked_sub(1).and_then(|before| bytes.get(before).copied());
        (i64::from(found).cast_unsigned() == distance(at)).then(|| (vaddr.wrapping_add(at as u64), before))
    })
}

/// Whether four bytes somewhere in `block` hold `distance` less their offset.
fn may_have(block: &[u8], distance: u32) -> bool {
    (0..4).any(|phase| {
        let (words, _) = block.get(phase..).unwrap_or_default().as_chunks::<4>();
        let offsets = (phase as u32..).step_by(4);
        let hits = words.iter().zip(offsets).map(|(word, at)| u32::from_le_bytes(*word).wrapping_add(at) == distance);
        hits.fold(0_u32, |any, hit| any | u32::from(hit)) != 0
    })
}

fn op(instruction: &Instruction, info: &InstructionInfo) -> Op {
    let flow = flow(instruction);
    let written = info.used_registers().iter().filter(|used| is_write(used.access()));
    let called = if matches!(flow, Flow::Call(_)) { CALL_CLOBBERS } else { 0 };
    Op {
        address: instruction.ip(),
        flow,
        read: read(info),
        copy: copy(instruction),
        clobbers: written.filter_map(|used| number(used.register())).fold(called, |mask, n| mask | 1 << n),
    }
}

fn flow(instruction: &Instruction) -> Flow {
    let direct = instruction.op_count() > 0 && instruction.op0_kind() == OpKind::NearBranch64;
    let target = direct.then(|| instruction.near_branch_target());
    match (instruction.flow_control(), target) {
        (FlowControl::Next, _) => Flow::Next,
        (FlowControl::Call | FlowControl::IndirectCall, target) => Flow::Call(target),
        (FlowControl::ConditionalBranch, Some(target)) => Flow::Branch(target),
        (FlowControl::UnconditionalBranch, Some(target)) => Flow::Jump(target),
        _ => Flow::Leave,
    }
}

fn read(info: &InstructionInfo) -> Option<Read> {
    let plain = info.used_memory().iter().find(|used| is_read(used.access()) && used.index() == Register::None)?;
    let size_bytes = u8::try_from(plain.memory_size().size()).ok()?;
    Some(Read { base: number(plain.base())?, offset: plain.displacement().cast_signed(), size_bytes })
}

fn copy(instruction: &Instruction) -> Option<(u8, u8)> {
    let registers = matches!(instruction.code(), Code::Mov_r64_rm64 | Code::Mov_rm64_r64)
        && instruction.op0_kind() == OpKind::Register
        && instruction.op1_kind() == OpKind::Register;
    registers.then(|| Some((number(instruction.op0_register())?, number(instruction.op1_register())?)))?
}

/// Of a general register, by the name of any part.
fn number(register: Register) -> Option<u8> {
    let full = register.full_register();
    full.is_gpr64().then(|| full.number() as u8)
}

fn is_write(access: OpAccess) -> bool {
    !matches!(access, OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess)
}

fn is_read(access: OpAccess) -> bool {
    matches!(access, OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}
