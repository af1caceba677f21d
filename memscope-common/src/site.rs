//! Places of a call's arguments at a probe behind the function's entry, as data.

use crate::row::REGISTER_ARGS;

/// Descriptions that the table holds; number 0 is "where the calling convention puts them".
pub const MAX_SITES: u32 = 2048;

/// The place of one argument.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ArgPlace {
    /// One of the constants below.
    pub kind: u32,
    /// Bytes from the start of the thread's registers (`pt_regs`), or from the stack pointer at the
    /// probe.
    pub offset: i32,
}

impl ArgPlace {
    /// Unused, or lost.
    pub const NONE: u32 = 0;
    /// In a register.
    pub const REGISTER: u32 = 1;
    /// On the stack.
    pub const STACK: u32 = 2;
}

/// The places of all arguments.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SitePlaces {
    /// Bytes from the stack pointer at the probe to that at the entry.
    pub stack: u64,
    /// The arguments.
    pub args: [ArgPlace; REGISTER_ARGS],
}

#[cfg(feature = "user")]
mod pod {
    // SAFETY: `repr(C)`, integers only, no padding: every bit pattern is a value.
    unsafe impl aya::Pod for super::SitePlaces {}
}
