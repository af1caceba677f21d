//! Reads memory behind the arguments of a call, in a thread that waits for us. Hostile: every length is bounded.

use std::io;

use memscope_common::WatchSite;

use super::arch::{INTERRUPTED, RESTORE_ON_STACK};
use crate::{
    os,
    probes::{AtbCall, CallKind, Field, ProbeSpec},
    watch::Range,
};

/// Bytes read of an operator's name; only the first ones count anyway.
const MAX_NAME_BYTES: usize = 256;

/// A process's memory.
pub(super) struct Memory(os::memory::Memory);

impl Memory {
    pub(super) fn of(pid: u32) -> io::Result<Self> {
        os::memory::Memory::open(pid).map(Self)
    }

    fn word(&self, at: u64) -> Option<u64> {
        self.0.word(at)
    }

    /// Stack pointer and instruction pointer of a thread before the signal, now at the start of its handler.
    pub(super) fn interrupted(&self, [stack_pointer, _]: [u64; 2], restore: u64) -> Option<[u64; 2]> {
        if RESTORE_ON_STACK && self.word(stack_pointer)? != restore {
            return None;
        }
        let [saved_stack_pointer, saved_instruction_pointer] = INTERRUPTED;
        let word = |offset: u64| self.word(stack_pointer.checked_add(offset)?);
        Some([word(saved_stack_pointer)?, word(saved_instruction_pointer)?])
    }

    /// A C string, as far as it is readable.
    fn text(&self, at: u64) -> Option<String> {
        let mut bytes = [0; MAX_NAME_BYTES];
        let read = self.0.read_some(at, &mut bytes).ok().filter(|read| *read > 0)?;
        let text = bytes[..read].split(|byte| *byte == 0).next()?;
        Some(String::from_utf8_lossy(text).into_owned())
    }

    /// The text of a call, by its row.
    pub(super) fn text_of(&self, spec: &ProbeSpec, site: &WatchSite) -> Option<String> {
        let arg = *site.args.get(usize::from(spec.text_arg?))?;
        let at = match spec.text_at {
            Some(offset) => self.word(arg.checked_add(offset.into())?)?,
            None => arg,
        };
        self.text(at)
    }

    /// Outputs of an operation of ATB (ascend-abi §7): the second array of its pack.
    pub(super) fn outputs(&self, spec: &ProbeSpec, site: &WatchSite) -> Vec<Range> {
        /// `RunnerVariantPack::outTensors`; number of tensors, first of them, and the pointer to more than 65.
        const OUTPUTS: u64 = 6784;
        const COUNT: u64 = 8;
        const FIRST: u64 = 16;
        const STRIDE: u64 = 104;
        const ROOM: u64 = 65;
        const MAX_OUTPUTS: u64 = 256;
        /// `atb::Tensor`: address on the device, and bytes.
        const ADDR: u64 = 80;
        const SIZE: u64 = 96;
        if !matches!(spec.meaning, CallKind::Atb(AtbCall::End)) {
            return Vec::new();
        }
        let array = site.args[1].wrapping_add(OUTPUTS);
        let Some(count) = self.word(array.wrapping_add(COUNT)).filter(|count| *count <= MAX_OUTPUTS) else {
            return Vec::new();
        };
        let first = array.wrapping_add(FIRST);
        let elsewhere = self.word(first.wrapping_add(ROOM * STRIDE)).filter(|at| *at != 0);
        let first = elsewhere.filter(|_| count > ROOM).unwrap_or(first);
        let range = |index: u64| {
            let tensor = first.wrapping_add(index * STRIDE);
            let (addr, size_bytes) = (self.word(tensor.wrapping_add(ADDR))?, self.word(tensor.wrapping_add(SIZE))?);
            (addr != 0 && size_bytes != 0).then_some(Range { addr, size_bytes })
        };
        (0..count).filter_map(range).collect()
    }

    /// A value that a row fetches from the call's arguments.
    pub(super) fn value(spec: &ProbeSpec, site: &WatchSite, field: Field) -> Option<u64> {
        let (_, fetch) = spec.fields.iter().find(|(name, _)| *name == field)?;
        (fetch.source == memscope_common::Source::Arg as u8).then(|| site.args.get(usize::from(fetch.arg)).copied())?
    }
}
