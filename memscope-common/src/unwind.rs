//! Rules by which the kernel side walks native stacks, learnt by user space for single addresses.
//!
//! A rule is valid for one address in one generation of mappings
//! ([`ProcessState::generation`](crate::config::ProcessState::generation)). It is made when a stack first needs it, and
//! never changes within its generation.

/// The outermost frame: the stack ends here.
pub const RULE_END: u8 = 1;
/// The canonical frame address (the stack pointer before the call) is the stack pointer plus `cfa`.
pub const RULE_SP: u8 = 2;
/// The same with the frame pointer.
pub const RULE_FP: u8 = 3;
/// No unwind information for the address, or an unknown form of it: the walk ends.
pub const RULE_NONE: u8 = 4;
/// Too complex for a rule: only user space can go on.
pub const RULE_USER: u8 = 5;

/// The return address is in memory; else in the link register, possible for the innermost frame only.
pub const RULE_RA_SAVED: u8 = 1;
/// The caller's frame pointer is in memory; else in the register.
pub const RULE_FP_SAVED: u8 = 1 << 1;
/// The caller's frame pointer is lost.
pub const RULE_FP_LOST: u8 = 1 << 2;
/// The frame was interrupted, not left by a call: its address is looked up unchanged.
pub const RULE_SIGNAL: u8 = 1 << 3;
/// Register plus `cfa` is where the canonical frame address is stored.
pub const RULE_CFA_STORED: u8 = 1 << 4;
/// `ra` counts from the register of the rule, not from the canonical frame address.
pub const RULE_RA_AT_REGISTER: u8 = 1 << 5;
/// The same for `fp`.
pub const RULE_FP_AT_REGISTER: u8 = 1 << 6;
/// The caller's link register is in memory, [`LINK_BEFORE_RA`] before the return address.
pub const RULE_LINK_SAVED: u8 = 1 << 7;

/// Bytes from the link register to the program counter in `struct sigcontext` of aarch64
/// (`regs[30]`, `sp`, `pc`).
pub const LINK_BEFORE_RA: u64 = 16;

/// The way from a frame to its caller.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// `RULE_END` to `RULE_USER`; 0 is no rule.
    pub kind: u8,
    /// The other `RULE_*` bits.
    pub flags: u8,
    /// Padding, zero.
    pub reserved: u16,
    /// Bytes from the register to the canonical frame address.
    pub cfa: i32,
    /// Bytes from there to the return address.
    pub ra: i32,
    /// Bytes from there to the caller's frame pointer.
    pub fp: i32,
}
const _: () = assert!(size_of::<Rule>() == 16);

/// A slot in the table of rules. User space writes the address last, so that a reader sees a whole rule or none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleEntry {
    /// The rule's address; 0: the slot is free.
    pub address: u64,
    /// Generation of mappings for which the rule is valid.
    pub generation: u64,
    /// The rule.
    pub rule: Rule,
}
const _: () = assert!(size_of::<RuleEntry>() == 32);

/// The table has 2 to this power slots.
pub const RULE_BITS: u32 = 17;
/// Slots of the table.
pub const RULES: u32 = 1 << RULE_BITS;
/// A rule is in one of this many consecutive slots, which wrap around at the end.
pub const RULE_PROBES: u32 = 8;

/// Spreads a word over all bits, one to one.
#[inline]
#[must_use]
pub const fn mix(mut word: u64) -> u64 {
    word ^= word >> 32;
    word = word.wrapping_mul(0xd6e8_feb8_6659_fd93);
    word ^= word >> 32;
    word = word.wrapping_mul(0xd6e8_feb8_6659_fd93);
    word ^ word >> 32
}

/// First slot for the rule of an address; `salt` is [`mix`] of the generation.
#[inline]
#[must_use]
pub const fn first_place(address: u64, salt: u64) -> u32 {
    ((address ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - RULE_BITS)) as u32
}

/// The address without the signature that the hardware may have added.
#[inline]
#[must_use]
pub const fn without_signature(address: u64) -> u64 {
    address & 0x0000_ffff_ffff_ffff
}

/// Return probes redirect calls to the start of a page; return addresses hardly ever lie there.
#[inline]
#[must_use]
pub const fn may_be_trampoline(address: u64) -> bool {
    const PAGE: u64 = 4096;
    address != 0 && address.is_multiple_of(PAGE)
}

/// Most bytes copied of a stack.
pub const STACK_BYTES: u32 = 60 << 10;
/// Most bytes of a stack sent with every call where the kernel side cannot walk.
pub const WALKLESS_BYTES: u32 = 16 << 10;
