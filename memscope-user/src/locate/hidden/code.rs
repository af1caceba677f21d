//! Machine code, reduced to the needs of the search; the same for both instruction sets.

use super::{arm, functions::Function, op::Op, x86};
use crate::os::elf::{ElfFile, Machine, dynamic::Mapping};

/// Longer functions are not decoded. Some generated code is that long; the function searched for and its callers are
/// not.
const MAX_FUNCTION: u64 = 256 * 1024;

/// Most apparent references to one place. Random bytes look like a reference once in 4 GiB of code, and the functions
/// searched for are called from a handful of places.
pub(super) const MAX_SITES: usize = 256;

/// The executable part of a file.
pub(super) struct Code<'a> {
    machine: Machine,
    mappings: Vec<Mapping<'a>>,
}

impl<'a> Code<'a> {
    /// `None` for a machine that we cannot decode, or segments that no linker makes.
    pub(super) fn of(elf: &ElfFile<'a>) -> Option<Self> {
        let machine = elf.machine();
        matches!(machine, Machine::X86_64 | Machine::Aarch64).then_some(())?;
        Some(Self { machine, mappings: elf.mappings(true)? })
    }

    /// The register of C argument `number`, from 0; of those in registers.
    pub(super) fn argument(&self, number: u8) -> u8 {
        let registers = match self.machine {
            Machine::X86_64 => x86::ARGUMENTS,
            _ => arm::ARGUMENTS,
        };
        registers[usize::from(number) % registers.len()]
    }

    /// The register of the stack.
    pub(super) const fn stack_pointer(&self) -> u8 {
        match self.machine {
            Machine::X86_64 => x86::STACK_POINTER,
            _ => arm::STACK_POINTER,
        }
    }

    /// The instructions of a function, up to the first bytes that are none.
    pub(super) fn ops(&self, function: Function) -> Vec<Op> {
        let bytes = self.bytes(function).unwrap_or_default();
        match self.machine {
            Machine::X86_64 => x86::ops(bytes, function.start),
            _ => arm::ops(bytes, function.start),
        }
    }

    /// Whether an instruction of `function` loads the pointer in `slot`.
    pub(super) fn loads(&self, function: Function, slot: u64) -> bool {
        !self.loads_of(function, slot).is_empty()
    }

    /// The instructions of `function` that load the pointer in `slot`, by address, sorted.
    pub(super) fn loads_of(&self, function: Function, slot: u64) -> Vec<u64> {
        let bytes = self.bytes(function).unwrap_or_default();
        match self.machine {
            Machine::X86_64 => x86::loads(bytes, function.start, slot),
            _ => arm::loads(bytes, function.start, slot),
        }
    }

    /// Addresses where the pointer in `slot` seems to be loaded. All real ones are among them.
    ///
    /// At most one more than [`MAX_SITES`].
    pub(super) fn load_sites(&self, slot: u64) -> Vec<u64> {
        self.sites(|mapping| -> Box<dyn Iterator<Item = u64>> {
            match self.machine {
                Machine::X86_64 => Box::new(x86::load_sites(mapping, slot)),
                _ => Box::new(arm::load_sites(mapping, slot)),
            }
        })
    }

    /// Addresses where `target` seems to be called or jumped to. All real ones are among them.
    ///
    /// At most one more than [`MAX_SITES`].
    pub(super) fn call_sites(&self, target: u64) -> Vec<u64> {
        self.sites(|mapping| -> Box<dyn Iterator<Item = u64>> {
            match self.machine {
                Machine::X86_64 => Box::new(x86::call_sites(mapping, target)),
                _ => Box::new(arm::call_sites(mapping, target)),
            }
        })
    }

    fn sites<'s>(&'s self, scan: impl Fn(&'s Mapping<'a>) -> Box<dyn Iterator<Item = u64> + 's>) -> Vec<u64> {
        self.mappings.iter().flat_map(scan).take(MAX_SITES + 1).collect()
    }

    fn bytes(&self, function: Function) -> Option<&'a [u8]> {
        (function.end.checked_sub(function.start)? <= MAX_FUNCTION).then_some(())?;
        self.mappings.iter().find_map(|mapping| mapping.between(function.start, function.end))
    }
}
