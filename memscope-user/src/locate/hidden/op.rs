//! One instruction, the same for both instruction sets.

/// Where control goes after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// On.
    Next,
    /// There or on.
    Branch(u64),
    /// There.
    Jump(u64),
    /// A call that returns; `None` for a target known at run time only.
    Call(Option<u64>),
    /// Out of the function, or to where only the running program knows.
    Leave,
}

/// A read of memory relative to a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Read {
    pub(super) base: u8,
    pub(super) offset: i64,
    pub(super) size_bytes: u8,
}

/// One instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Op {
    pub(super) address: u64,
    pub(super) flow: Flow,
    pub(super) read: Option<Read>,
    /// The first register becomes a copy of the whole second one.
    pub(super) copy: Option<(u8, u8)>,
    /// Registers that may hold another value afterwards, by bit; that of a copy is among them.
    pub(super) clobbers: u32,
}

impl Op {
    /// The register that becomes a copy of one of `registers`, by bit, or none.
    pub(super) const fn copied(&self, registers: u32) -> u32 {
        match self.copy {
            Some((to, from)) if registers & 1 << from != 0 => 1 << to,
            _ => 0,
        }
    }
}
