//! Follows arguments from register to register and into the function's own frame, to a site that the kernel emulates.
//!
//! Only whole words count: an argument copied as 32 bits is lost with its register.

use std::collections::BTreeMap;

use memscope_common::{ArgPlace, SitePlaces, row::REGISTER_ARGS};

use super::{
    Machine, SiteUse, Step, arm,
    motion::{Copy, Motion, Store},
    x86,
};

/// Number of registers; the numbers are the architecture's own.
const REGISTERS: usize = 32;
/// Bytes of a register.
const WORD: i64 = 8;
/// Bytes below the stack pointer that keep stored values: `System V` promises them on x86-64, Arm none.
const RED_ZONE: i64 = 128;

/// The known value of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Argument(u8),
    /// The stack pointer at the entry plus this many bytes.
    Stack(i64),
}

/// The known values between two instructions.
struct State {
    stack_register: usize,
    red_zone: i64,
    registers: [Option<Value>; REGISTERS],
    /// Words of the frame that hold arguments, by their offset from the stack pointer at the entry.
    frame: BTreeMap<i64, u8>,
}

/// The first site that is not single-stepped, has all arguments that `usage` reads, and is `allowed`.
pub(super) fn find(
    machine: Machine,
    steps: &[Step],
    usage: SiteUse,
    allowed: impl Fn(&Step) -> bool,
) -> Option<(&Step, SitePlaces)> {
    let mut state = State::at_entry(machine)?;
    for step in steps {
        if step.cost.is_some_and(|cost| !cost.is_stepped())
            && allowed(step)
            && let Some(places) = state.places(machine, usage.args)
        {
            return Some((step, places));
        }
        state.pass(&step.motion)?;
    }
    None
}

impl State {
    fn at_entry(machine: Machine) -> Option<Self> {
        let (arguments, stack_register, red_zone): ([u32; REGISTER_ARGS], _, _) = match machine {
            Machine::X86_64 => (x86::ARG_NUMBERS, x86::STACK, RED_ZONE),
            Machine::Aarch64 => ([0, 1, 2, 3, 4, 5], arm::SP, 0),
            Machine::Other(_) => return None,
        };
        let mut registers = [None; REGISTERS];
        for (number, register) in (0..).zip(arguments) {
            registers[register as usize] = Some(Value::Argument(number));
        }
        let stack_register = stack_register as usize;
        registers[stack_register] = Some(Value::Stack(0));
        Some(Self { stack_register, red_zone, registers, frame: BTreeMap::new() })
    }

    /// Where the stack pointer is, from where it was at the entry.
    fn stack(&self) -> Option<i64> {
        match self.registers[self.stack_register] {
            Some(Value::Stack(offset)) => Some(offset),
            _ => None,
        }
    }

    /// `None`: the instruction ends following.
    fn pass(&mut self, motion: &Motion) -> Option<()> {
        let stack = self.stack()? + motion.stack;
        if motion.ends || stack > 0 {
            return None;
        }
        self.registers[self.stack_register] = Some(Value::Stack(stack));
        for store in &motion.stores {
            self.store(store)?;
        }
        let copied = motion.copy.map(|copy| (copy, self.copied(copy)));
        for (register, value) in self.registers.iter_mut().enumerate() {
            if motion.writes >> register & 1 == 1 {
                *value = None;
            }
        }
        if let Some((copy, value)) = copied {
            *self.registers.get_mut(copy.to as usize)? = value;
        }
        let kept = self.stack()?;
        if kept > 0 {
            return None;
        }
        let kept = kept - self.red_zone;
        self.frame.retain(|offset, _| *offset >= kept);
        Some(())
    }

    fn copied(&self, copy: Copy) -> Option<Value> {
        match (*self.registers.get(copy.from as usize)?)? {
            Value::Stack(offset) => Some(Value::Stack(offset + copy.plus)),
            argument @ Value::Argument(_) => (copy.plus == 0).then_some(argument),
        }
    }

    /// `None`: others may see the stored value, or it may be part of the caller's words on the stack.
    fn store(&mut self, store: &Store) -> Option<()> {
        let Value::Stack(base) = (*self.registers.get(store.base as usize)?)? else { return None };
        let (from, to) = (base + store.offset, base + store.offset + store.bytes);
        if to > 0 {
            return None;
        }
        self.frame.retain(|offset, _| *offset + WORD <= from || *offset >= to);
        if let Some(Some(Value::Argument(number))) = store.register.map(|register| self.registers[register as usize])
            && store.bytes == WORD
        {
            self.frame.insert(from, number);
        }
        Some(())
    }

    /// Where these arguments are.
    fn places(&self, machine: Machine, args: u8) -> Option<SitePlaces> {
        let stack = self.stack()?;
        let mut places = SitePlaces { stack: stack.checked_neg()? as u64, ..SitePlaces::default() };
        for (number, place) in (0_u8..).zip(&mut places.args).filter(|(number, _)| args >> number & 1 == 1) {
            *place = self.place(machine, number, stack)?;
        }
        Some(places)
    }

    fn place(&self, machine: Machine, number: u8, stack: i64) -> Option<ArgPlace> {
        let held = self.registers.iter().position(|value| *value == Some(Value::Argument(number)));
        if let Some(register) = held {
            let saved_at = if machine == Machine::X86_64 { x86::SAVED_AT[register & 15] } else { 8 * register as i32 };
            return Some(ArgPlace { kind: ArgPlace::REGISTER, offset: saved_at });
        }
        let (offset, _) = self.frame.iter().find(|(_, held)| **held == number)?;
        Some(ArgPlace { kind: ArgPlace::STACK, offset: i32::try_from(offset - stack).ok()? })
    }
}
