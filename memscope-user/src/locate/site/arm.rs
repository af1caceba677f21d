//! Prologues of aarch64 functions.
//!
//! Decoded by hand: instructions are words of fixed layout, only a few groups matter, and the available crates give
//! operands but no written registers, so the same table would be needed on top. An unknown instruction ends the scan.

use super::{
    Effects, Kernel, Pad, SCAN_BYTES, SiteCost, Step, Targets,
    motion::{Copy, Motion, Store},
};

/// Register number of the link register.
const LINK: u32 = 30;

/// In a base or destination that allows it, the stack pointer; elsewhere the zero register.
pub(super) const SP: u32 = 31;

/// Decodes from the start of `body`, at most [`SCAN_BYTES`].
pub(super) fn steps(body: &[u8], kernel: Kernel) -> Vec<Step> {
    let step = |(offset, word)| {
        let decoded = Decoded::of(word, kernel);
        Step {
            offset,
            cost: decoded.cost,
            pad: if decoded.name == "bti" { Pad::Bti } else { Pad::None },
            pushes: false,
            links: matches!(decoded.name, "bl" | "blr"),
            motion: motion(word, decoded.name),
            after: decoded.after,
            text: format!("{} ({word:#010x})", decoded.name),
        }
    };
    words(body).take(SCAN_BYTES / 4).map(step).collect()
}

/// Where the direct branches in `code` lead, which starts `start` bytes from the entry of a function.
///
/// Literals between the code are read as code too; at worst one looks like a branch and the probe stays at the entry.
pub(super) fn inner_target(code: &[u8], start: i64) -> Targets {
    let target = |(offset, word)| u64::try_from(start + i64::from(offset) + branch_distance(word)?).ok();
    let lowest = words(code).filter_map(target).filter(|target| *target > 0).min();
    Targets { lowest: lowest.unwrap_or(u64::MAX), sure: true }
}

/// Offsets of the return instructions in `body`; `None` if one of them takes no probe.
///
/// Literals between the code are read as code too: no pointer or constant of a program looks like a return.
pub(super) fn returns(body: &[u8]) -> Option<Vec<u32>> {
    const RET: u32 = 0xd65f_03c0;
    /// `retaa` and `retab`, which the kernel refuses.
    const RETAA: u32 = 0xd65f_0bff;
    const RETAB: u32 = 0xd65f_0fff;
    let found = words(body).filter(|(_, word)| [RET, RETAA, RETAB].contains(word));
    found.map(|(offset, word)| (word == RET).then_some(offset)).collect()
}

/// Offsets of the jumps out of `body` that take the place of a call and a return: `b` or `br` right behind `ldp x29, x30, [sp], #…`.
pub(super) fn tail_calls(body: &[u8]) -> Vec<u32> {
    let is_epilogue = |word: u32| word & 0xffc0_7fff == 0xa8c0_7bfd;
    let is_jump = |(offset, word): (u32, u32)| {
        let is_register = word & 0xffff_fc1f == 0xd61f_0000;
        let target = branch_distance(word).filter(|_| word & 0xfc00_0000 == 0x1400_0000);
        let leaves = |distance| !(0..body.len() as i64).contains(&(i64::from(offset) + distance));
        is_register || target.is_some_and(leaves)
    };
    let pairs = words(body).zip(words(body).skip(1));
    pairs.filter(|((_, before), jump)| is_epilogue(*before) && is_jump(*jump)).map(|(_, (offset, _))| offset).collect()
}

/// Where the unconditional direct jumps (`b`) of `code` lead.
pub(super) fn jumps(address: u64, code: &[u8]) -> Vec<u64> {
    let is_jump = |word: &u32| word & 0xfc00_0000 == 0x1400_0000;
    let target = |(offset, word): (u32, u32)| {
        address.checked_add(offset.into())?.checked_add_signed(branch_distance(word).filter(|_| is_jump(&word))?)
    };
    words(code).filter_map(target).collect()
}

/// The instructions of `code` and their offsets.
pub(in crate::locate) fn words(code: &[u8]) -> impl Iterator<Item = (u32, u32)> {
    let (words, _) = code.as_chunks::<4>();
    (0..).step_by(4).zip(words.iter().map(|word| u32::from_le_bytes(*word)))
}

/// Distance of a direct branch, in bytes.
pub(in crate::locate) fn branch_distance(word: u32) -> Option<i64> {
    let (shift, width) = match word {
        w if w & 0x7c00_0000 == 0x1400_0000 => (0, 26), // b, bl
        w if w & 0xff00_0000 == 0x5400_0000 => (5, 19), // b.cond
        w if w & 0x7e00_0000 == 0x3400_0000 => (5, 19), // cbz, cbnz
        w if w & 0x7e00_0000 == 0x3600_0000 => (5, 14), // tbz, tbnz
        _ => return None,
    };
    // Moved to the top and back down, the field is sign-extended.
    let field = (word << (32 - shift - width)) as i32 >> (32 - width);
    Some(i64::from(field) * 4)
}

struct Decoded {
    name: &'static str,
    cost: Option<SiteCost>,
    after: Effects,
}

impl Decoded {
    fn of(word: u32, kernel: Kernel) -> Self {
        match word >> 25 & 0xf {
            0b1000 | 0b1001 => immediate(word),
            0b1010 | 0b1011 => branch_or_system(word, kernel),
            0b0101 | 0b1101 => register(word),
            0b0100 | 0b0110 | 0b1100 | 0b1110 => memory(word),
            // Some of these move to general registers, so the destination is counted.
            0b0111 | 0b1111 => Self::stepped("simd", writes(word, field(word, 0))),
            _ => Self::unknown(),
        }
    }

    fn emulated(name: &'static str, after: Effects) -> Self {
        Self { name, cost: Some(SiteCost::Emulated), after }
    }

    fn stepped(name: &'static str, after: Effects) -> Self {
        Self { name, cost: Some(SiteCost::SingleStepped), after }
    }

    fn refused(name: &'static str, after: Effects) -> Self {
        Self { name, cost: None, after }
    }

    fn unknown() -> Self {
        Self::refused("other", LEAVES)
    }
}

const LEAVES: Effects = Effects { writes: 0, ends_return: true, ends_stack_args: true, ends: true };

fn field(word: u32, low_bit: u32) -> u32 {
    word >> low_bit & 0x1f
}

/// Effects of writing the register `destination`.
fn writes(word: u32, destination: u32) -> Effects {
    // Reading the link register may be saving it. Where these bits hold a part of a constant we stop for nothing, which
    // costs little: saving it is what most functions do next.
    let touches_link = [0, 5, 10, 16].into_iter().any(|low_bit| field(word, low_bit) == LINK);
    Effects { writes: argument(destination), ends_return: touches_link, ..Effects::default() }
}

/// The bit of an argument register in [`super::SiteUse::args`], 0 for any other.
fn argument(register: u32) -> u8 {
    1_u8.checked_shl(register).unwrap_or(0)
}

fn moves_stack(effects: Effects) -> Effects {
    Effects { ends_return: true, ends_stack_args: true, ..effects }
}

/// Constants, addresses relative to the program counter, bit fields.
fn immediate(word: u32) -> Decoded {
    let destination = field(word, 0);
    let after = writes(word, destination);
    let sets_flags = word >> 29 & 1 == 1;
    match word >> 23 & 0x7 {
        0b000 | 0b001 => Decoded::emulated("adr", Effects { ends_return: destination == LINK, ..after }),
        0b010 | 0b011 if destination == SP && !sets_flags => Decoded::stepped("add sp", moves_stack(after)),
        0b010 | 0b011 => Decoded::stepped("add", after),
        // Of the logical ones only `ands` (both bits) does not write `sp`.
        0b100 if destination == SP && word >> 29 & 3 != 3 => Decoded::stepped("logical sp", moves_stack(after)),
        0b100 => Decoded::stepped("logical", after),
        0b101 => Decoded::stepped("mov", after),
        0b110 => Decoded::stepped("bitfield", after),
        0b111 if word >> 29 & 3 == 3 => Decoded::unknown(), // autiasppc
        _ => Decoded::stepped("extr", after),
    }
}

/// Arithmetic between registers.
fn register(word: u32) -> Decoded {
    let after = writes(word, field(word, 0));
    let extended = word & 0x1fe0_0000 == 0x0b20_0000;
    let sets_flags = word >> 29 & 1 == 1;
    if extended && field(word, 0) == SP && !sets_flags {
        return Decoded::stepped("add sp", moves_stack(after));
    }
    Decoded::stepped("alu", after)
}

fn branch_or_system(word: u32, kernel: Kernel) -> Decoded {
    let name = match word {
        w if w & 0xfc00_0000 == 0x1400_0000 => "b",
        w if w & 0xfc00_0000 == 0x9400_0000 => "bl",
        w if w & 0xff00_0010 == 0x5400_0000 => "b.cond",
        w if w & 0x7e00_0000 == 0x3400_0000 => "cbz",
        w if w & 0x7e00_0000 == 0x3600_0000 => "tbz",
        w if w & 0xffff_fc1f == 0xd61f_0000 => "br",
        w if w & 0xffff_fc1f == 0xd63f_0000 => "blr",
        w if w & 0xffff_fc1f == 0xd65f_0000 => "ret",
        w if w & 0xffff_f01f == 0xd503_201f => return hint(w >> 5 & 0x7f, kernel),
        // A copy elsewhere may read another value, so the kernel does not step it; reading has no other effect.
        w if w & 0xfff0_0000 == 0xd530_0000 => {
            return Decoded::refused("mrs", writes(w, field(w, 0)));
        }
        _ => return Decoded::unknown(),
    };
    Decoded::emulated(name, LEAVES)
}

fn hint(number: u32, kernel: Kernel) -> Decoded {
    let none = Effects::default();
    match number {
        0 if kernel.emulates_nops => Decoded::emulated("nop", none),
        0 => Decoded::stepped("nop", none),
        7 => Decoded::stepped("xpaclri", Effects { ends_return: true, ..none }),
        8 | 10 => Decoded::stepped("pacia1716", none),
        24..=27 => Decoded::stepped("paciasp", Effects { ends_return: true, ..none }),
        32 | 34 | 36 | 38 => Decoded::stepped("bti", none),
        _ => Decoded::unknown(),
    }
}

/// Loads and stores of the plain kinds; exclusives, atomics and the rest end the scan.
fn memory(word: u32) -> Decoded {
    let vector = word >> 26 & 1 == 1;
    if word & 0x3b00_0000 == 0x1800_0000 {
        let after = writes(word, field(word, 0));
        return Decoded::refused("ldr literal", if vector { Effects { writes: 0, ..after } } else { after });
    }
    let pair = word & 0x3a00_0000 == 0x2800_0000;
    let single = word & 0x3b00_0000 == 0x3900_0000;
    let unscaled = word & 0x3b20_0000 == 0x3800_0000;
    let indexed = word & 0x3b20_0c00 == 0x3820_0800;
    // Pairs have the bit at another place than the others; `01` and `11` write the base back, post and pre.
    let (load, writes_back) = match (pair, unscaled) {
        (true, _) => (word >> 22 & 1 == 1, word >> 23 & 1 == 1),
        (false, true) => (is_load(word, vector), word >> 10 & 1 == 1),
        (false, false) => (is_load(word, vector), false),
    };
    if !(pair || single || unscaled || indexed) {
        return Decoded::unknown();
    }
    let loaded = if load && !vector { argument(field(word, 0)) } else { 0 };
    let second = if load && !vector && pair { argument(field(word, 10)) } else { 0 };
    let base = field(word, 5);
    let moved = if writes_back { argument(base) } else { 0 };
    let after = Effects {
        writes: loaded | second | moved,
        // The incoming arguments start at `sp` until that moves.
        ends_stack_args: !load && base == SP,
        ends: !load && base != SP,
        ..writes(word, SP)
    };
    let after = if writes_back && base == SP { moves_stack(after) } else { after };
    Decoded::stepped(if load { "load" } else { "store" }, after)
}

/// Effect of an instruction on followed values. An unknown one ends following.
fn motion(word: u32, name: &str) -> Motion {
    let (to, from) = (field(word, 0), field(word, 5));
    let copy = |from, plus| Motion { copy: Some(Copy { to, from, plus }), ..Motion::default() };
    // Register 31 of these is the zero register, which is not followed; the stack pointer has the same number.
    let writes = if to == SP { 0 } else { 1 << to };
    match word {
        // mov x, x (orr x, xzr, x)
        w if w & 0xffe0_ffe0 == 0xaa00_03e0 && to != SP && field(w, 16) != SP => copy(field(w, 16), 0),
        // add and sub of a constant, whole words, flags untouched
        w if w & 0xbf80_0000 == 0x9100_0000 => {
            let constant = i64::from(w >> 10 & 0xfff) << if w >> 22 & 1 == 1 { 12 } else { 0 };
            copy(from, if w >> 30 & 1 == 1 { -constant } else { constant })
        }
        w if name == "load" || name == "store" => transfer(w, name == "load"),
        // The last one signs the link register, which is not followed.
        _ if matches!(name, "nop" | "bti" | "paciasp") => Motion::default(),
        _ if matches!(name, "adr" | "mov" | "bitfield" | "extr" | "add" | "logical" | "alu" | "simd") => {
            Motion { writes, ..Motion::default() }
        }
        _ => Motion::end(),
    }
}

/// Loads and stores.
fn transfer(word: u32, load: bool) -> Motion {
    let vector = word >> 26 & 1 == 1;
    let pair = word & 0x3a00_0000 == 0x2800_0000;
    let unscaled = word & 0x3b20_0000 == 0x3800_0000;
    let base = field(word, 5);
    let sizes = word >> 30;
    let signed = |low_bit: u32, bits: u32| i64::from((word << (32 - low_bit - bits)) as i32 >> (32 - bits));
    let bytes = match (pair, vector) {
        (true, false) => {
            if sizes & 2 != 0 {
                8
            } else {
                4
            }
        }
        (true, true) => 4 << (sizes & 3),
        (false, false) => 1 << sizes,
        (false, true) => {
            if word >> 23 & 1 == 1 {
                16
            } else {
                1 << sizes
            }
        }
    };
    // In single ones the lower two bits are the write-back of the base, in pairs the next field.
    let (offset, before, after) = match (pair, unscaled) {
        (true, _) => (signed(15, 7) * bytes, word >> 23 & 3 == 3, word >> 23 & 3 == 1),
        (false, true) => (signed(12, 9), word >> 10 & 3 == 3, word >> 10 & 3 == 1),
        (false, false) if word & 0x3b00_0000 == 0x3900_0000 => (i64::from(word >> 10 & 0xfff) * bytes, false, false),
        _ => return Motion::end(),
    };
    // The last ones store tags, too.
    if after || before && (base != SP || load) || pair && !vector && !load && sizes == 1 {
        return Motion::end();
    }
    let mut motion = Motion { stack: if before { offset } else { 0 }, ..Motion::default() };
    let registers = if pair { vec![field(word, 0), field(word, 10)] } else { vec![field(word, 0)] };
    for (at, register) in (0..).zip(registers) {
        if load {
            motion.writes |= if vector || register == SP { 0 } else { 1 << register };
            continue;
        }
        let offset = if before { 0 } else { offset } + at * bytes;
        let register = Some(register).filter(|register| !vector && bytes == 8 && *register != SP);
        motion.stores.push(Store { base, offset, bytes, register });
    }
    motion
}

fn is_load(word: u32, vector: bool) -> bool {
    match word >> 22 & 3 {
        0b00 => false,
        0b10 => !vector,
        _ => true,
    }
}
