//! Options of loading the BPF object.

use memscope_common::stack::{STACK_NATIVE, STACK_NATIVE_WITHOUT_PYTHON, STACK_PYTHON};

use super::features::LinkMode;
use crate::os::memory::page_size;

/// Options of loading.
#[expect(clippy::struct_excessive_bools, reason = "each is a choice of its own")]
#[derive(Clone, Copy, Debug)]
pub struct KernelOptions {
    /// Bytes of the ring, or of all perf buffers together; rounded up to a power of two of pages.
    pub ring_bytes: u32,
    /// Use perf buffers even where there is a ring buffer.
    pub perf: bool,
    /// Use a lesser way of linking than the kernel offers (for tests).
    pub link_mode: Option<LinkMode>,
    /// Serve fewer rows than the kernel could (for tests).
    pub max_rows: Option<u16>,
    /// Follow processes through tracefs even where that is not needed (for tests).
    pub tracefs: bool,
    /// A BPF object that replaces the built-in one (for tests, which are built without one).
    pub object: Option<&'static [u8]>,
    /// Rows with objects will be used.
    pub objects: bool,
    /// Rows with arrays will be used, by many threads: load their programs at once, not with the first such row.
    pub arrays: bool,
    /// Which stacks are taken.
    pub stacks: StackOptions,
    /// Stacks may be left out while the trace runs: each call that takes one looks for that.
    pub stacks_vary: bool,
    /// Blocks are watched.
    pub watch: bool,
    /// The process group of the program to run; 0 if none.
    pub home_group: u32,
}

/// Stacks to take, and the most frames of each; `None` or 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackOptions {
    /// Native frames.
    pub native_depth: Option<u32>,
    /// Python frames.
    pub python_depth: Option<u32>,
    /// As cheap as can be, where no stacks were asked for: native frames only of threads without Python frames, and only where the kernel
    /// walks them.
    pub automatic: bool,
}

impl StackOptions {
    pub(super) fn bits(self) -> u32 {
        let bit = |depth: Option<u32>, bit: u8| if depth.is_some_and(|frames| frames > 0) { u32::from(bit) } else { 0 };
        let without_python = if self.automatic { u32::from(STACK_NATIVE_WITHOUT_PYTHON) } else { 0 };
        match bit(self.native_depth, STACK_NATIVE) | bit(self.python_depth, STACK_PYTHON) {
            0 => 0,
            taken => taken | without_python,
        }
    }
}

/// The kernel wants a power of two of pages.
pub(super) fn ring_size(bytes: u32) -> u32 {
    bytes.clamp(page_size(), 1 << 31).checked_next_power_of_two().unwrap_or(1 << 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_sizes_are_powers_of_two_of_at_least_a_page() {
        assert_eq!(ring_size(1), page_size());
        assert_eq!(ring_size((1 << 20) + 1), 1 << 21);
        assert_eq!(ring_size(u32::MAX), 1 << 31);
    }
}
