//! The effect of one instruction on values, the same for both instruction sets.

/// What one instruction does to values. Offsets are in bytes; stores come before writes, and after the stack pointer has moved.
#[derive(Clone, Debug, Default)]
pub(super) struct Motion {
    /// Bytes by which the stack pointer moves.
    pub(super) stack: i64,
    /// What is stored.
    pub(super) stores: Vec<Store>,
    /// Registers that hold something else afterwards.
    pub(super) writes: u32,
    /// A register gets the value of another one, and this number more.
    pub(super) copy: Option<Copy>,
    /// What follows is not sure to run once, or cannot be followed.
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
    /// The whole register that is stored, if it is one.
    pub(super) register: Option<u32>,
}

impl Motion {
    /// The end of what can be followed.
    pub(super) fn end() -> Self {
        Self { ends: true, ..Self::default() }
    }
}
