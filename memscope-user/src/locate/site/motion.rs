//! The effect of one instruction on values, the same for both instruction sets.

/// Effect of one instruction on values. Offsets are in bytes; stores come before writes, and after the stack pointer
/// has moved.
#[derive(Clone, Debug, Default)]
pub(super) struct Motion {
    /// Bytes by which the stack pointer moves.
    pub(super) stack: i64,
    /// The stores.
    pub(super) stores: Vec<Store>,
    /// Registers with another value afterwards.
    pub(super) writes: u32,
    /// A register gets the value of another one, and this number more.
    pub(super) copy: Option<Copy>,
    /// The next instruction may run more than once or never, or cannot be followed.
    pub(super) ends: bool,
}

/// A copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copy {
    pub(super) to: u32,
    pub(super) from: u32,
    pub(super) plus: i64,
}

/// A store at `base + offset`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Store {
    pub(super) base: u32,
    pub(super) offset: i64,
    pub(super) bytes: i64,
    /// The stored register, if it is a whole one.
    pub(super) register: Option<u32>,
}

impl Motion {
    /// The end of following.
    pub(super) fn end() -> Self {
        Self { ends: true, ..Self::default() }
    }
}
