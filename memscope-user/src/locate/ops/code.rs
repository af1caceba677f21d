//! Facts from the code of an operator's function: its returns, and this libtorch's layout of tensors.

use std::collections::BTreeSet;

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};
use memscope_common::ObjectShape;

use crate::{
    os::elf::{ElfFile, Machine},
    probes::ops::TensorLayout,
};

/// Longer functions are not decoded.
pub(super) const MAX_BODY: usize = 64 * 1024;
/// `ret`.
const ARM_RET: u32 = 0xd65f_03c0;
/// Return instructions of one function that get a probe.
const MAX_RETURNS: usize = 16;

/// Offsets of the return instructions of a function, if it can be read from its first to its last byte.
pub(super) fn returns(machine: Machine, body: &[u8]) -> Option<Vec<u32>> {
    let found: Vec<u32> = match machine {
        Machine::X86_64 => {
            let mut found = Vec::new();
            for instruction in Decoder::with_ip(64, body, 0, DecoderOptions::NONE) {
                if instruction.is_invalid() {
                    return None;
                }
                if instruction.flow_control() == FlowControl::Return && instruction.mnemonic() == Mnemonic::Ret {
                    found.push(instruction.ip() as u32);
                }
            }
            found
        }
        Machine::Aarch64 => words(body).filter(|(_, word)| *word == ARM_RET).map(|(at, _)| at).collect(),
        Machine::Other(_) => return None,
    };
    (!found.is_empty() && found.len() <= MAX_RETURNS).then_some(found)
}

fn words(body: &[u8]) -> impl Iterator<Item = (u32, u32)> {
    let word = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes);
    (0..).step_by(4).zip(body.as_chunks::<4>().0.iter().map(word))
}

/// Layouts of `c10::TensorImpl` and `c10::StorageImpl` by the offset of `key_set_`, which every operator reads from its
/// tensors to find its kernel.
const LAYOUTS: [(u32, Layout); 3] = [(184, V2_1), (176, V2_3), (168, V2_14)];

/// A layout: the parts to copy, and their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) shape: ObjectShape,
    pub(super) tensor: TensorLayout,
}

/// 2.1.
const V2_1: Layout = layout(24, 72);
/// 2.3 to 2.12.
const V2_3: Layout = layout(16, 64);
/// 2.14.
const V2_14: Layout = layout(16, 56);

/// The fields after `sizes_and_strides_` have kept their order: 88 bytes later `storage_offset_`, `numel_`,
/// `data_type_`, `device_opt_`. In the storage, `data_ptr_` is 32 bytes long, and `size_bytes_` follows it.
const fn layout(storage: u8, sizes: u8) -> Layout {
    let list_at = sizes - storage;
    let tensor = TensorLayout {
        sizes_at: list_at as u16,
        offset_at: list_at as u16 + 88,
        count_at: list_at as u16 + 96,
        type_at: list_at as u16 + 104,
        device_at: list_at as u16 + 106,
    };
    let shape = ObjectShape {
        head_from: storage,
        // The storage begins as the tensor does, with what counts its references.
        inner_from: storage,
        list_at,
        device_at: list_at + 106,
        skip_device: ObjectShape::SKIP_NONE,
    };
    Layout { shape, tensor }
}

/// Bytes read of a function that a witness calls; the relevant ones are short.
const CALLEE_BYTES: usize = 512;

/// Finds the layout from the code of some operators with tensors, `witnesses` by their addresses: the one known offset
/// that nearly all of them read, themselves or in their callees.
pub(super) fn tensor_layout(elf: &ElfFile<'_>, witnesses: &[(u64, &[u8])]) -> Option<Layout> {
    let mut counts = [0_usize; LAYOUTS.len()];
    for (address, body) in witnesses {
        let mut read = offsets_read(elf.machine(), body);
        for callee in calls(elf.machine(), *address, body) {
            let code = elf.bytes_at(callee, CALLEE_BYTES).unwrap_or_default();
            read.extend(offsets_read(elf.machine(), until_return(elf.machine(), code)));
        }
        for (count, (offset, _)) in counts.iter_mut().zip(LAYOUTS) {
            *count += usize::from(read.contains(&offset));
        }
    }
    choose(counts, witnesses.len())
}

/// The layout that nearly all speak for, and few for another.
fn choose(counts: [usize; LAYOUTS.len()], witnesses: usize) -> Option<Layout> {
    let nearly_all = |count: usize| count > 0 && count * 10 >= witnesses * 9;
    let few = |count: usize| count * 10 <= witnesses;
    let best = counts.iter().position(|count| nearly_all(*count))?;
    let others_are_few = counts.iter().enumerate().all(|(index, count)| index == best || few(*count));
    others_are_few.then_some(LAYOUTS[best].1)
}

/// Offsets at which a function reads eight bytes behind a pointer in memory: `(*argument)->field`.
fn offsets_read(machine: Machine, body: &[u8]) -> BTreeSet<u32> {
    match machine {
        Machine::X86_64 => x86_offsets_read(body),
        Machine::Aarch64 => arm_offsets_read(body),
        Machine::Other(_) => BTreeSet::new(),
    }
}

fn x86_offsets_read(body: &[u8]) -> BTreeSet<u32> {
    let mut info = InstructionInfoFactory::new();
    let (mut found, mut pointers) = (BTreeSet::new(), BTreeSet::new());
    for instruction in Decoder::with_ip(64, body, 0, DecoderOptions::NONE) {
        let base = instruction.memory_base();
        let from_object = instruction.op_count() == 2
            && instruction.op1_kind() == OpKind::Memory
            && instruction.memory_size().size() == 8
            && !matches!(base, Register::None | Register::RIP | Register::RSP | Register::RBP);
        let offset = instruction.memory_displacement64();
        if from_object && pointers.contains(&base) {
            found.extend(u32::try_from(offset));
        }
        for used in info.info(&instruction).used_registers() {
            if !matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::None) {
                pointers.remove(&used.register().full_register());
            }
        }
        if from_object && instruction.mnemonic() == Mnemonic::Mov && offset == 0 {
            pointers.insert(instruction.op0_register());
        }
    }
    found
}

fn arm_offsets_read(body: &[u8]) -> BTreeSet<u32> {
    const STACK: [u32; 2] = [29, 31];
    let (mut found, mut pointers) = (BTreeSet::new(), BTreeSet::new());
    for (_, word) in words(body) {
        // ldr xt, [xn, #offset]
        let (to, base, offset) = (word & 31, word >> 5 & 31, (word >> 10 & 0xfff) * 8);
        let loads = word & 0xffc0_0000 == 0xf940_0000 && !STACK.contains(&base);
        if loads && pointers.contains(&base) {
            found.insert(offset);
        }
        // Most instructions write the register in the lowest bits.
        pointers.remove(&to);
        if loads && offset == 0 {
            pointers.insert(to);
        }
    }
    found
}

/// Where the direct calls of a function lead.
fn calls(machine: Machine, address: u64, body: &[u8]) -> BTreeSet<u64> {
    match machine {
        Machine::X86_64 => Decoder::with_ip(64, body, address, DecoderOptions::NONE)
            .into_iter()
            .filter(Instruction::is_call_near)
            .map(|instruction| instruction.near_branch_target())
            .collect(),
        Machine::Aarch64 => words(body)
            .filter(|(_, word)| word & 0xfc00_0000 == 0x9400_0000)
            .map(|(at, word)| {
                let words = (word << 6).cast_signed() >> 6;
                address.wrapping_add(u64::from(at)).wrapping_add_signed(i64::from(words) * 4)
            })
            .collect(),
        Machine::Other(_) => BTreeSet::new(),
    }
}

/// The code up to the first return.
fn until_return(machine: Machine, code: &[u8]) -> &[u8] {
    let end = match machine {
        Machine::X86_64 => Decoder::with_ip(64, code, 0, DecoderOptions::NONE)
            .into_iter()
            .find(|instruction| instruction.is_invalid() || instruction.flow_control() == FlowControl::Return)
            .map(|instruction| instruction.next_ip()),
        _ => words(code).find(|(_, word)| *word == ARM_RET).map(|(at, _)| u64::from(at) + 4),
    };
    end.and_then(|end| code.get(..end as usize)).unwrap_or(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `push rbp; mov rax, [rsi]; mov rbx, [rax+offset]; ret`.
    fn function(offset: u8) -> Vec<u8> {
        [&[0x55, 0x48, 0x8b, 0x06, 0x48, 0x8b, 0x98, offset, 0, 0, 0][..], &[0x5d, 0xc3]].concat()
    }

    #[test]
    fn returns_are_found() {
        assert_eq!(returns(Machine::X86_64, &function(0xa8)), Some(vec![12]));
        // A constant that looks like a return is none: mov eax, 0xc3; ret.
        assert_eq!(returns(Machine::X86_64, &[0xb8, 0xc3, 0, 0, 0, 0xc3]), Some(vec![5]));
        // Ends in another function: jmp.
        assert_eq!(returns(Machine::X86_64, &[0xe9, 0, 0, 0, 0]), None);
        assert_eq!(returns(Machine::X86_64, &[0xc3, 0x06]), None);
        // nop; ret; nop; ret
        let code: Vec<u8> =
            [0xd503_201f_u32, 0xd65f_03c0, 0xd503_201f, 0xd65f_03c0].iter().flat_map(|w| w.to_le_bytes()).collect();
        assert_eq!(returns(Machine::Aarch64, &code), Some(vec![4, 12]));
    }

    /// Offsets as measured with `offsetof` on the headers of these versions.
    #[test]
    fn layouts_are_the_measured_ones() {
        let absolute = |layout: Layout, at: u16| u16::from(layout.shape.head_from) + at;
        let facts = |layout: Layout| {
            let TensorLayout { sizes_at, offset_at, count_at, type_at, device_at } = layout.tensor;
            [sizes_at, offset_at, count_at, type_at, device_at].map(|at| absolute(layout, at))
        };
        assert_eq!((V2_1.shape.head_from, facts(V2_1)), (24, [72, 160, 168, 176, 178]));
        assert_eq!((V2_3.shape.head_from, facts(V2_3)), (16, [64, 152, 160, 168, 170]));
        assert_eq!((V2_14.shape.head_from, facts(V2_14)), (16, [56, 144, 152, 160, 162]));
    }

    #[test]
    fn offsets_are_those_behind_a_pointer() {
        assert_eq!(offsets_read(Machine::X86_64, &function(0xa8)), [0xa8].into());
        // The pointer is gone: mov rax, [rsi]; xor eax, eax; mov rbx, [rax+0xa8].
        let gone = [0x48, 0x8b, 0x06, 0x31, 0xc0, 0x48, 0x8b, 0x98, 0xa8, 0, 0, 0];
        assert_eq!(offsets_read(Machine::X86_64, &gone), [].into());
        // ldr x1, [x0]; ldr x2, [x1, #176]; ldr x3, [x2, #168]; ldr x4, [sp]; ldr x5, [x4, #184]
        let load = |to: u32, base: u32, offset: u32| (0xf940_0000 | (offset / 8) << 10 | base << 5 | to).to_le_bytes();
        let arm = [load(1, 0, 0), load(2, 1, 176), load(3, 2, 168), load(4, 31, 0), load(5, 4, 184)].concat();
        assert_eq!(offsets_read(Machine::Aarch64, &arm), [176].into());
    }

    #[test]
    fn calls_are_followed() {
        // call +5 (to 0x100a); ret
        assert_eq!(calls(Machine::X86_64, 0x1000, &[0xe8, 5, 0, 0, 0, 0xc3]), [0x100a].into());
        // nop; bl -4
        let arm = [0xd503_201f_u32, 0x97ff_ffff].map(u32::to_le_bytes).concat();
        assert_eq!(calls(Machine::Aarch64, 0x1000, &arm), [0x1000].into());
        assert_eq!(until_return(Machine::X86_64, &[0x90, 0xc3, 0x90]), [0x90, 0xc3]);
    }

    #[test]
    fn layout_needs_agreement() {
        assert_eq!(choose([0, 0, 10], 10), Some(V2_14));
        assert_eq!(choose([1, 9, 0], 10), Some(V2_3));
        assert_eq!(choose([10, 0, 0], 10), Some(V2_1));
        assert_eq!(choose([0, 10, 2], 10), None);
        assert_eq!(choose([5, 5, 0], 10), None);
        assert_eq!(choose([0; 3], 0), None);
    }
}
