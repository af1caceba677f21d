//! The effect of a process's seccomp filters on the system calls of the setup: classic BPF, run here.

use super::arch::AUDIT_ARCH;

/// The fate of a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is made.
    Allowed,
    /// It fails, and the program continues.
    Fails,
    /// The thread or process is ended, or another process decides, or it is unknown.
    Unsafe,
}

const SCRATCH: usize = 16;

/// One instruction, as `struct sock_filter`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instruction {
    /// Operation.
    pub(super) code: u16,
    /// Instructions to skip if a comparison is true.
    pub(super) if_true: u8,
    /// Otherwise.
    pub(super) if_false: u8,
    /// Operand.
    pub(super) operand: u32,
}

impl Instruction {
    /// From its eight bytes.
    #[must_use]
    pub(super) const fn from_bytes(bytes: [u8; 8]) -> Self {
        let [code0, code1, if_true, if_false, operand @ ..] = bytes;
        Self { code: u16::from_le_bytes([code0, code1]), if_true, if_false, operand: u32::from_le_bytes(operand) }
    }
}

/// A filter's result for a system call with these arguments.
#[must_use]
pub(super) fn run(filter: &[Instruction], number: u32, args: [u64; 6]) -> Verdict {
    match value(filter, number, args) {
        // SECCOMP_RET_ALLOW and SECCOMP_RET_LOG, SECCOMP_RET_ERRNO; all others stop, end or ask.
        Some(value) if matches!(value & 0xffff_0000, 0x7fff_0000 | 0x7ffc_0000) => Verdict::Allowed,
        Some(value) if value & 0xffff_0000 == 0x0005_0000 => Verdict::Fails,
        _ => Verdict::Unsafe,
    }
}

/// `struct seccomp_data`, word by word.
fn data(number: u32, args: [u64; 6], offset: u32) -> Option<u32> {
    let half = |value: u64, high: bool| if high { (value >> 32) as u32 } else { value as u32 };
    match offset {
        0 => Some(number),
        4 => Some(AUDIT_ARCH),
        16..64 if offset.is_multiple_of(4) => Some(half(args[(offset as usize - 16) / 8], offset % 8 == 4)),
        // The instruction pointer (8) is unknown: no filter in use reads it.
        _ => None,
    }
}

fn value(filter: &[Instruction], number: u32, args: [u64; 6]) -> Option<u32> {
    let (mut accumulator, mut index, mut scratch) = (0_u32, 0_u32, [0_u32; SCRATCH]);
    let mut at = 0;
    // Jumps go forward only.
    while let Some(Instruction { code, if_true, if_false, operand }) = filter.get(at) {
        at += 1;
        let operand = *operand;
        let source = if code & 8 == 0 { operand } else { index };
        match (code & 7, code & 0xf0) {
            // Loads: of a word of the call's data, a constant, a scratch word, the length.
            (0, _) => {
                accumulator = match code & 0xe0 {
                    0x20 => data(number, args, operand)?,
                    0x00 => operand,
                    0x60 => *scratch.get(operand as usize)?,
                    0x80 => 64,
                    _ => return None,
                }
            }
            (1, _) => {
                index = match code & 0xe0 {
                    0x00 => operand,
                    0x60 => *scratch.get(operand as usize)?,
                    0x80 => 64,
                    _ => return None,
                }
            }
            (2, _) => *scratch.get_mut(operand as usize)? = accumulator,
            (3, _) => *scratch.get_mut(operand as usize)? = index,
            (4, operation) => accumulator = computed(operation, accumulator, source)?,
            (5, 0x00) => at = at.checked_add(operand as usize)?,
            (5, comparison) => {
                let holds = match comparison {
                    0x10 => accumulator == source,
                    0x20 => accumulator > source,
                    0x30 => accumulator >= source,
                    0x40 => accumulator & source != 0,
                    _ => return None,
                };
                at += usize::from(if holds { *if_true } else { *if_false });
            }
            (6, _) => return Some(if code & 0x18 == 0x10 { accumulator } else { operand }),
            (7, 0x00) => index = accumulator,
            (7, 0x80) => accumulator = index,
            _ => return None,
        }
    }
    None
}

/// The accumulator after an operation.
fn computed(operation: u16, accumulator: u32, source: u32) -> Option<u32> {
    Some(match operation {
        0x00 => accumulator.wrapping_add(source),
        0x10 => accumulator.wrapping_sub(source),
        0x20 => accumulator.wrapping_mul(source),
        0x30 => accumulator.checked_div(source)?,
        0x40 => accumulator | source,
        0x50 => accumulator & source,
        0x60 => accumulator.checked_shl(source)?,
        0x70 => accumulator.checked_shr(source)?,
        0x80 => accumulator.wrapping_neg(),
        0xa0 => accumulator ^ source,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn op(code: u16, if_true: u8, if_false: u8, operand: u32) -> Instruction {
        Instruction { code, if_true, if_false, operand }
    }

    /// `ld [nr]; jeq number → ret what; ret allow`, as programs write it.
    fn only(number: u32, what: u32) -> [Instruction; 4] {
        [op(0x20, 0, 0, 0), op(0x15, 0, 1, number), op(0x06, 0, 0, what), op(0x06, 0, 0, 0x7fff_0000)]
    }

    #[test]
    fn filters_of_single_calls() {
        let no_args = [0; 6];
        assert_eq!(run(&only(319, 0x0005_0001), 319, no_args), Verdict::Fails);
        assert_eq!(run(&only(319, 0x0005_0001), 9, no_args), Verdict::Allowed);
        // Kill the process, kill the thread, trap, notify, trace.
        for what in [0x8000_0000, 0, 0x0003_0000, 0x7fc0_0000, 0x7ff0_0000] {
            assert_eq!(run(&only(319, what), 319, no_args), Verdict::Unsafe, "{what:#x}");
        }
    }

    /// `ld [args[2] low]; and 4; jeq 4 → kill`: no code may be mapped.
    #[test]
    fn arguments_count() {
        let filter =
            [op(0x20, 0, 0, 32), op(0x54, 0, 0, 4), op(0x15, 0, 1, 4), op(0x06, 0, 0, 0), op(0x06, 0, 0, 0x7fff_0000)];
        assert_eq!(run(&filter, 9, [0, 0, 5, 0, 0, 0]), Verdict::Unsafe);
        assert_eq!(run(&filter, 9, [0, 0, 3, 0, 0, 0]), Verdict::Allowed);
    }

    /// An unknown or endless filter is not safe.
    #[test]
    fn strange_filters() {
        for filter in [&[][..], &[op(0x20, 0, 0, 8)], &[op(0xffff, 0, 0, 0)], &[op(0x05, 0, 0, u32::MAX)]] {
            assert_eq!(run(filter, 1, [0; 6]), Verdict::Unsafe);
        }
    }
}
