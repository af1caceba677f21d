//! The unwind information for one address, and the kernel side's rule made of it.

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EndianSlice, FrameDescriptionEntry, LittleEndian, Operation, Register,
    RegisterRule, UnwindContext, UnwindExpression, UnwindTableRow,
};
use memscope_common::unwind::{
    LINK_BEFORE_RA, RULE_CFA_STORED, RULE_END, RULE_FP, RULE_FP_AT_REGISTER, RULE_FP_LOST, RULE_FP_SAVED,
    RULE_LINK_SAVED, RULE_RA_AT_REGISTER, RULE_RA_SAVED, RULE_SIGNAL, RULE_SP, RULE_USER, Rule,
};
use object::elf;

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Most operations of an expression, and most values at once: more do not occur.
const MAX_OPERATIONS: usize = 64;
const MAX_VALUES: usize = 16;

/// A machine, by the numbers that DWARF gives its registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arch {
    X86_64,
    Aarch64,
}

impl Arch {
    pub(super) const fn of(machine: u16) -> Option<Self> {
        match machine {
            machine if machine == elf::EM_X86_64.0 => Some(Self::X86_64),
            machine if machine == elf::EM_AARCH64.0 => Some(Self::Aarch64),
            _ => None,
        }
    }

    /// That of this program, and so of the traced processes.
    pub(super) const fn own() -> Self {
        if cfg!(target_arch = "aarch64") { Self::Aarch64 } else { Self::X86_64 }
    }

    pub(super) const fn stack_pointer(self) -> u16 {
        match self {
            Self::X86_64 => 7,
            Self::Aarch64 => 31,
        }
    }

    pub(super) const fn frame_pointer(self) -> u16 {
        match self {
            Self::X86_64 => 6,
            Self::Aarch64 => 29,
        }
    }

    pub(super) const fn return_address(self) -> u16 {
        match self {
            Self::X86_64 => 16,
            Self::Aarch64 => 30,
        }
    }

    /// Registers that a function leaves as they were, the frame pointer among them.
    pub(super) const fn kept(self) -> &'static [u16] {
        match self {
            Self::X86_64 => &[3, 6, 12, 13, 14, 15],
            Self::Aarch64 => &[19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29],
        }
    }
}

/// The base of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    Register(u16),
    /// The canonical frame address.
    Cfa,
    /// It is a number.
    Nothing,
}

/// A base plus an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) base: Base,
    pub(super) offset: i64,
}

/// A value of the caller's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// This address.
    Is(Place),
    /// The value stored there.
    At(Place),
}

/// Where a register of the caller is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Saved {
    /// Nowhere.
    Lost,
    /// In an unknown form.
    Unknown,
    Value(Value),
}

/// The unwind information for an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) arch: Arch,
    /// The canonical frame address; `None`: in an unknown form.
    pub(super) cfa: Option<Value>,
    /// Changed registers. [`Arch::return_address`] is the return address.
    pub(super) saved: Vec<(u16, Saved)>,
    /// The frame was interrupted, not called from.
    pub(super) signal: bool,
    /// Place of the link register of the interrupted function.
    pub(super) link: Option<Place>,
}

/// Offsets in the frame that aarch64 kernels make for a signal handler, from the stack pointer on: `struct rt_sigframe`
/// is `siginfo_t` (128 bytes) and `struct ucontext`; in that `uc_mcontext` (`struct sigcontext`) begins at 176 with
/// `fault_address`, `regs[31]`, `sp`, `pc`. Part of the kernel's ABI (arch/arm64/include/uapi/asm/sigcontext.h).
mod signal_frame {
    const REGISTERS: i64 = 128 + 176 + 8;
    pub(super) const STACK_POINTER: i64 = register(31);
    pub(super) const PROGRAM_COUNTER: i64 = register(32);

    pub(super) const fn register(number: u16) -> i64 {
        REGISTERS + 8 * number as i64
    }
}

impl Row {
    /// `vaddr` is the address in the file, `address` that in the process. `None`: the entry is for other addresses, or
    /// in an unknown form.
    pub(super) fn new(
        arch: Arch,
        frames: &EhFrame<Slice<'_>>,
        bases: &BaseAddresses,
        entry: &FrameDescriptionEntry<Slice<'_>>,
        vaddr: u64,
        address: u64,
    ) -> Option<Self> {
        let mut context = UnwindContext::new();
        let row = entry.unwind_info_for_address(frames, bases, &mut context, vaddr).ok()?;
        Some(Self::of(arch, frames, entry, row, address))
    }

    /// A row of `entry`.
    pub(super) fn of(
        arch: Arch,
        frames: &EhFrame<Slice<'_>>,
        entry: &FrameDescriptionEntry<Slice<'_>>,
        row: &UnwindTableRow<usize>,
        address: u64,
    ) -> Self {
        let encoding = entry.cie().encoding();
        let expression = |of: &UnwindExpression<usize>, first| {
            let bytes = of.get(frames).ok()?;
            symbolic(arch, bytes.operations(encoding), first, address)
        };
        let register = |number: u16, offset| Place { base: Base::Register(number), offset };
        let cfa = match row.cfa() {
            CfaRule::RegisterAndOffset { register: number, offset } => Some(Value::Is(register(number.0, *offset))),
            CfaRule::Expression(of) => expression(of, None),
        };
        let at_cfa = |offset| Place { base: Base::Cfa, offset };
        let return_register = entry.cie().return_address_register();
        let mut saved = Vec::new();
        let interesting = arch.kept().iter().copied().chain([arch.stack_pointer()]);
        for (number, own) in
            interesting.map(|number| (number, Register(number))).chain([(arch.return_address(), return_register)])
        {
            let value = match row.register(own) {
                None | Some(RegisterRule::SameValue) => continue,
                Some(RegisterRule::Offset(offset)) => Some(Value::At(at_cfa(offset))),
                Some(RegisterRule::ValOffset(offset)) => Some(Value::Is(at_cfa(offset))),
                Some(RegisterRule::Register(other)) => Some(Value::Is(register(other.0, 0))),
                // The expression gives the address of the value.
                Some(RegisterRule::Expression(of)) => match expression(&of, Some(at_cfa(0))) {
                    Some(Value::Is(place)) => Some(Value::At(place)),
                    _ => None,
                },
                Some(RegisterRule::ValExpression(of)) => expression(&of, Some(at_cfa(0))),
                Some(RegisterRule::Undefined) => {
                    saved.push((number, Saved::Lost));
                    continue;
                }
                Some(_) => None,
            };
            saved.push((number, value.map_or(Saved::Unknown, Saved::Value)));
        }
        Self { arch, cfa, saved, signal: entry.is_signal_trampoline(), link: None }
    }

    /// The row of the code that a signal handler returns to on aarch64. It has no unwind information there.
    pub(super) fn of_signal_return() -> Self {
        let arch = Arch::Aarch64;
        let place = |offset| Place { base: Base::Register(arch.stack_pointer()), offset };
        let at = |offset| Saved::Value(Value::At(place(offset)));
        let mut saved: Vec<_> =
            arch.kept().iter().map(|number| (*number, at(signal_frame::register(*number)))).collect();
        saved.push((arch.return_address(), at(signal_frame::PROGRAM_COUNTER)));
        Self {
            arch,
            cfa: Some(Value::At(place(signal_frame::STACK_POINTER))),
            saved,
            signal: true,
            link: Some(place(signal_frame::register(arch.return_address()))),
        }
    }

    /// Place of a register of the caller; `None`: it is unchanged.
    pub(super) fn saved(&self, register: u16) -> Option<Saved> {
        self.saved.iter().find(|(number, _)| *number == register).map(|(_, saved)| *saved)
    }

    /// Whether it is the outermost frame's.
    pub(super) fn is_end(&self) -> bool {
        self.saved(self.arch.return_address()) == Some(Saved::Lost)
    }

    /// The rule for the kernel side.
    pub(super) fn rule(&self) -> Rule {
        const USER: Rule = Rule { kind: RULE_USER, flags: 0, reserved: 0, cfa: 0, ra: 0, fp: 0 };
        if self.is_end() {
            return Rule { kind: RULE_END, ..USER };
        }
        self.plain_rule().unwrap_or(USER)
    }

    fn plain_rule(&self) -> Option<Rule> {
        let (stored, place) = match self.cfa? {
            Value::Is(place) => (0, place),
            Value::At(place) => (RULE_CFA_STORED, place),
        };
        let base = place.base;
        let kind = match base {
            Base::Register(register) if register == self.arch.stack_pointer() => RULE_SP,
            Base::Register(register) if register == self.arch.frame_pointer() => RULE_FP,
            _ => return None,
        };
        let mut rule = Rule { kind, flags: stored, cfa: small(place.offset)?, ..Rule::default() };
        if self.signal {
            rule.flags |= RULE_SIGNAL;
        }
        match self.saved(self.arch.return_address()) {
            Some(Saved::Value(Value::At(Place { base: Base::Cfa, offset }))) => {
                rule.flags |= RULE_RA_SAVED;
                rule.ra = small(offset)?;
            }
            Some(Saved::Value(Value::At(Place { base: from, offset }))) if from == base => {
                rule.flags |= RULE_RA_SAVED | RULE_RA_AT_REGISTER;
                rule.ra = small(offset)?;
            }
            None if self.arch == Arch::Aarch64 => {}
            _ => return None,
        }
        if let Some(link) = self.link {
            if link.base != base || i64::from(rule.ra) - link.offset != LINK_BEFORE_RA.cast_signed() {
                return None;
            }
            rule.flags |= RULE_LINK_SAVED;
        }
        match self.saved(self.arch.frame_pointer()) {
            None => {}
            Some(Saved::Value(Value::At(Place { base: Base::Cfa, offset }))) if small(offset).is_some() => {
                rule.flags |= RULE_FP_SAVED;
                rule.fp = small(offset)?;
            }
            Some(Saved::Value(Value::At(Place { base: from, offset }))) if from == base && small(offset).is_some() => {
                rule.flags |= RULE_FP_SAVED | RULE_FP_AT_REGISTER;
                rule.fp = small(offset)?;
            }
            Some(_) => rule.flags |= RULE_FP_LOST,
        }
        // The caller's stack pointer is the canonical frame address, whatever the rule for it.
        match self.saved(self.arch.stack_pointer()) {
            None | Some(Saved::Value(Value::Is(Place { base: Base::Cfa, offset: 0 }))) => Some(rule),
            Some(Saved::Value(value)) if Some(value) == self.cfa => Some(rule),
            Some(_) => None,
        }
    }
}

/// An offset as rules have it.
fn small(offset: i64) -> Option<i32> {
    i32::try_from(offset).ok().filter(|offset| offset % 8 == 0)
}

/// The value of an expression, as far as it is known without the registers. The instruction pointer is known: the
/// expressions of `.plt` use it.
fn symbolic(
    arch: Arch,
    mut operations: gimli::OperationIter<Slice<'_>>,
    first: Option<Place>,
    address: u64,
) -> Option<Value> {
    let mut stack: Vec<Value> = first.map(Value::Is).into_iter().collect();
    for _ in 0..MAX_OPERATIONS {
        let Some(operation) = operations.next().ok()? else { return stack.pop() };
        let value = match operation {
            Operation::RegisterOffset { register, offset, base_type } if base_type.0 == 0 => {
                if arch == Arch::X86_64 && register.0 == arch.return_address() {
                    number(address.wrapping_add_signed(offset))
                } else {
                    Value::Is(Place { base: Base::Register(register.0), offset })
                }
            }
            Operation::CallFrameCFA => Value::Is(Place { base: Base::Cfa, offset: 0 }),
            Operation::UnsignedConstant { value } => number(value),
            Operation::SignedConstant { value } => number(value as u64),
            Operation::PlusConstant { value } => plus(stack.pop()?, number(value))?,
            Operation::Deref { size: 8, space: false, .. } => match stack.pop()? {
                Value::Is(place) => Value::At(place),
                Value::At(_) => return None,
            },
            Operation::Nop => continue,
            operation => {
                let (right, left) = (stack.pop()?, stack.pop()?);
                if matches!(operation, Operation::Plus) {
                    plus(left, right)?
                } else {
                    arithmetic(&operation, left, right)?
                }
            }
        };
        stack.push(value);
        if stack.len() > MAX_VALUES {
            return None;
        }
    }
    None
}

const fn number(value: u64) -> Value {
    Value::Is(Place { base: Base::Nothing, offset: value as i64 })
}

fn plus(left: Value, right: Value) -> Option<Value> {
    let (Value::Is(left), Value::Is(right)) = (left, right) else { return None };
    let offset = left.offset.wrapping_add(right.offset);
    match (left.base, right.base) {
        (base, Base::Nothing) | (Base::Nothing, base) => Some(Value::Is(Place { base, offset })),
        _ => None,
    }
}

/// Of numbers, but for differences.
fn arithmetic(operation: &Operation<Slice<'_>>, left: Value, right: Value) -> Option<Value> {
    let (Value::Is(left), Value::Is(Place { base: Base::Nothing, offset: right })) = (left, right) else {
        return None;
    };
    if matches!(operation, Operation::Minus) {
        return Some(Value::Is(Place { base: left.base, offset: left.offset.wrapping_sub(right) }));
    }
    if left.base != Base::Nothing {
        return None;
    }
    let left = left.offset;
    let result = match operation {
        Operation::And => left & right,
        Operation::Or => left | right,
        Operation::Xor => left ^ right,
        Operation::Mul => left.wrapping_mul(right),
        Operation::Shl => u32::try_from(right).ok().and_then(|by| left.checked_shl(by)).unwrap_or(0),
        Operation::Shr => {
            let by = u32::try_from(right).ok();
            by.and_then(|by| left.cast_unsigned().checked_shr(by)).unwrap_or(0).cast_signed()
        }
        Operation::Eq => (left == right).into(),
        Operation::Ne => (left != right).into(),
        Operation::Ge => (left >= right).into(),
        Operation::Gt => (left > right).into(),
        Operation::Le => (left <= right).into(),
        Operation::Lt => (left < right).into(),
        _ => return None,
    };
    Some(Value::Is(Place { base: Base::Nothing, offset: result }))
}
