//! Which entries of its table of virtual functions a function uses of an object that a global pointer leads to.
//!
//! The global offset table has the address of the pointer, the pointer that of the object, and the object's first word
//! that of the table.

use std::collections::BTreeSet;

use super::{
    code::Code,
    functions::Function,
    op::Op,
    paths::{Known, known_before},
};

/// The entries that `function` uses; the address of the pointer is in `slot` of the global offset table.
pub(super) fn entries(code: &Code<'_>, function: Function, slot: u64) -> BTreeSet<usize> {
    entries_of(&code.ops(function), &code.loads_of(function, slot))
}

/// Registers on the way, by bit.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Way<'l> {
    /// Instructions that load the address of the pointer, by address, sorted.
    loads: &'l [u64],
    pointer: u32,
    object: u32,
    table: u32,
}

impl Known for Way<'_> {
    fn and(self, other: Self) -> Self {
        let Self { loads, pointer, object, table } = self;
        Self { loads, pointer: pointer & other.pointer, object: object & other.object, table: table & other.table }
    }

    fn behind(self, op: &Op) -> Self {
        let Self { loads, pointer, object, table } = self;
        let written = if op.clobbers.is_power_of_two() { op.clobbers } else { 0 };
        let first = op.read.filter(|read| read.size_bytes == 8 && read.offset == 0).map_or(0, |read| 1 << read.base);
        let loaded = |from: u32| if from & first != 0 { written } else { 0 };
        let kept = |registers: u32| registers & !op.clobbers | op.copied(registers);
        let start = if loads.binary_search(&op.address).is_ok() { written } else { 0 };
        Self {
            loads,
            pointer: kept(pointer) | start,
            object: kept(object) | loaded(pointer),
            table: kept(table) | loaded(object),
        }
    }
}

fn entries_of(ops: &[Op], loads: &[u64]) -> BTreeSet<usize> {
    let ways = known_before(ops, Way { loads, ..Way::default() });
    let entries = ops.iter().zip(ways).filter_map(|(op, way)| {
        let read = op.read.filter(|read| read.size_bytes == 8 && read.offset % 8 == 0)?;
        (way?.table & 1 << read.base != 0).then_some(usize::try_from(read.offset).ok()? / 8)
    });
    entries.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::locate::hidden::{arm, x86};

    const SLOT: u64 = 0x3000;

    fn of_arm(words: &[u32]) -> Vec<usize> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        entries_of(&arm::ops(&bytes, 0x1000), &arm::loads(&bytes, 0x1000, SLOT)).into_iter().collect()
    }

    fn of_x86(bytes: &[u8]) -> Vec<usize> {
        entries_of(&x86::ops(bytes, 0x1000), &x86::loads(bytes, 0x1000, SLOT)).into_iter().collect()
    }

    // adrp x0, 3000; ldr x0, [x0]
    const LOAD: [u32; 2] = [0xd000_0000, 0xf940_0000];

    /// As in `torch_npu` 2.9 for aarch64: ldar x0, [x0]; ldr x4, [x0]; ldr x4, [x4, #232]; blr x4.
    #[test]
    fn entries_of_aarch64() {
        let [adrp, load] = LOAD;
        assert_eq!(of_arm(&[adrp, load, 0xc8df_fc00, 0xf940_0004, 0xf940_7484, 0xd63f_0080]), [29]);
        // Through a copy: mov x5, x0.
        assert_eq!(of_arm(&[adrp, load, 0xaa00_03e5, 0xc8df_fca0, 0xf940_0004, 0xf940_7484]), [29]);
        // The object's second word is not the table: ldr x4, [x0, #8].
        assert_eq!(of_arm(&[adrp, load, 0xc8df_fc00, 0xf940_0404, 0xf940_7484]), [0; 0]);
        // mov x0, #0 between.
        assert_eq!(of_arm(&[adrp, load, 0xd280_0000, 0xc8df_fc00, 0xf940_0004, 0xf940_7484]), [0; 0]);
        // It returns before.
        assert_eq!(of_arm(&[adrp, load, 0xc8df_fc00, 0xd65f_03c0, 0xf940_0004, 0xf940_7484]), [0; 0]);
    }

    /// The pointer's register is used again behind a call, as in `torch_npu` 2.14: adrp and ldr of x19; ldar x0, [x19]; ldr x1, [x0]; ldr x1, [x1, #312];
    /// blr x1; ldar x0, [x19]; ldr x4, [x0]; ldr x4, [x4, #256]; on one path alone, x19 is changed before: cbz x0 over mov x19, x0.
    #[test]
    fn uses_behind_calls() {
        let load = [0xd000_0013, 0xf940_0273, 0xc8df_fe60, 0xf940_0001, 0xf940_9c21, 0xd63f_0020];
        let again = [0xc8df_fe60, 0xf940_0004, 0xf940_8084];
        assert_eq!(of_arm(&[&load[..], &again].concat()), [32, 39]);
        assert_eq!(of_arm(&[&load[..], &[0xb400_0040, 0xaa00_03f3], &again].concat()), [39]);
    }

    /// mov rax, [rip + slot]; mov rdi, [rax]; mov rax, [rdi]; then one of: call [rax + 0xe8]; mov rcx, [rax + 0xe0].
    #[test]
    fn entries_of_x86() {
        let load = [0x48, 0x8b, 0x05, 0xf9, 0x1f, 0x00, 0x00];
        let way = [0x48, 0x8b, 0x38, 0x48, 0x8b, 0x07];
        let calls = [&load[..], &way, &[0xff, 0x90, 0xe8, 0x00, 0x00, 0x00]].concat();
        assert_eq!(of_x86(&calls), [29]);
        let loads = [&load[..], &way, &[0x48, 0x8b, 0x88, 0xe0, 0x00, 0x00, 0x00]].concat();
        assert_eq!(of_x86(&loads), [28]);
        // xor eax, eax between.
        let other = [&load[..], &[0x31, 0xc0], &way, &[0xff, 0x90, 0xe8, 0x00, 0x00, 0x00]].concat();
        assert_eq!(of_x86(&other), [0; 0]);
    }
}
