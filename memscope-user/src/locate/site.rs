//! Chooses the cheapest place for a uprobe near the start of a function.
//!
//! A uprobe costs one trap where the kernel emulates the probed instruction, and two traps and a copied instruction
//! where it single-steps it: about 0.6 µs against 12 µs in a VM. Most functions start with `endbr64` or `sub rsp`,
//! which are single-stepped, so moving the probe by a few bytes saves a factor of 20. The probe must still see the same
//! as at the entry: same arguments, same return address, once per call, and before the function has any effect.
//!
//! # What the kernel does with an instruction
//!
//! x86-64, `arch/x86/kernel/uprobes.c` (`branch_setup_xol_ops`, `push_setup_xol_ops`, `uprobe_init_insn`):
//!
//! | instruction | bytes | kernel | since |
//! |---|---|---|---|
//! | `jmp`, `call`, `jcc` to a direct target | `eb` `e9` `e8` `70`–`7f` `0f 80`–`0f 8f` | emulated | before 5.10 |
//! | `nop` | `90` | emulated | before 5.10 |
//! | `push` of a register | `50`–`57`, `41 50`–`41 57` | emulated | before 5.10 |
//! | long `nop` as the kernel writes it | `66 90`, `0f 1f …` up to 8 bytes | emulated | 6.16 (`610f6e14c29d`) |
//! | the 5-byte one of these, not across a page | `0f 1f 44 00 00` | turned into a `call` | 6.18 |
//! | a branch with a `66` prefix; before 6.2 also `66 90` (`cefa72129e45`) | | refused | |
//! | any with a `lock`, `cs`, `ds`, `es` or `ss` prefix | `f0` `2e` `3e` `26` `36` | refused | |
//! | port I/O, `int`, `iret`, `hlt`, `cli`, `mov ss`, `syscall`, `ud2`, group `0f ae` … | | refused | |
//! | all others, `endbr64` and `sub rsp` among them | | single-stepped | |
//!
//! Four traps in it. Before 6.18 `90` counts as a nop with any prefix, so `xchg rax, r8` (`49 90`) would be skipped.
//! Opcodes are compared without regard to VEX, so `vpcmpeqb` (`c5 f9 74 …`) would be taken for `je`. An emulated `call`
//! does not update a user shadow stack (until `abf08854d224`, 2026), so the return from it kills the program. The
//! `call` of an optimised nop writes below `rsp`, where a leaf function may keep variables. Such sites are not chosen
//! here, except for a `call` that is the entry itself. For the last reason later kernels (`554ba38456da`, 2026)
//! optimise a 10-byte nop instead, which has a refused prefix elsewhere; the 5-byte one is then emulated.
//!
//! aarch64, `arch/arm64/kernel/probes/decode-insn.c` (`arm_probe_decode_insn`, `aarch64_insn_is_steppable`):
//!
//! | instruction | kernel | since |
//! |---|---|---|
//! | `b`, `bl`, `b.cond`, `cbz`, `cbnz`, `tbz`, `tbnz`, `br`, `blr`, `ret`, `adr`, `adrp` | emulated | 4.10 |
//! | `nop` | emulated | 6.13 (`ac4ad5c09b34`) |
//! | `bti`, `paciasp` and its kin, `xpaclri` | single-stepped | 5.8 |
//! | `ldr` from a literal | refused (was simulated wrongly) | 2024, stable too |
//! | exclusives, `mrs`, `msr`, exceptions, `aut…`, other hints, `retaa` and its kin | refused | |
//! | all others, `stp x29, x30, [sp, #-n]!` among them | single-stepped | |
//!
//! # Conditions for a return probe
//!
//! On x86-64 the kernel replaces the word at `[rsp]`, so `rsp` must not have moved. On aarch64 it replaces `x30`, so that
//! must not have been saved, changed or signed (`paciasp` signs it, and `autiasp` would then trip over the new one); and
//! `sp` must not have moved either, because a nested call that is probed at an equal `sp` makes the kernel drop the outer
//! return (`arch_uretprobe_is_alive`).

pub(crate) mod arm;
mod follow;
mod motion;
mod x86;

use memscope_common::SitePlaces;
use thiserror::Error;

use self::motion::Motion;
use crate::os::elf::{ElfFile, Machine, Resolved};

/// Bytes of a function in which a site may lie.
const SCAN_BYTES: usize = 64;

/// Bytes of a function that are searched for branches back to its start.
const MAX_BODY: usize = 64 * 1024;

/// Bytes before and after a function that are searched too: hand-written functions share code with their neighbours, as
/// `__memcpy_chk` jumps to `memcpy` + 3 in glibc.
const NEIGHBOURHOOD: usize = 256;

/// Why a function gets no probe.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum SiteError {
    /// No decoder.
    #[error("no probe sites on machine {machine:?}, expected x86-64 or aarch64")]
    Machine {
        /// The machine of the file.
        machine: Machine,
    },
    /// No code, or none that decodes.
    #[error("no instruction at {address:#x}")]
    NoCode {
        /// Virtual address of the function.
        address: u64,
    },
    /// The kernel takes no probe on any place that would do.
    #[error("no instruction at {address:#x} can be probed, the first is `{instruction}`")]
    Refused {
        /// Virtual address of the function.
        address: u64,
        /// The instruction there.
        instruction: String,
    },
}

/// A function to be probed.
#[derive(Clone, Copy, Debug)]
pub struct Function<'a> {
    machine: Machine,
    address: u64,
    body: &'a [u8],
    /// Whether `body` is the whole function, with every branch back to its start.
    whole: bool,
    before: &'a [u8],
    after: &'a [u8],
    /// Offset of another symbol inside the function: its callers must not hit our probe.
    inner_entry: Option<u64>,
}

impl<'a> Function<'a> {
    /// A function at the virtual address `address`, in bytes that start `bytes`; `size_bytes` 0 is unknown.
    #[must_use]
    pub fn new(machine: Machine, address: u64, bytes: &'a [u8], size_bytes: u64) -> Self {
        let size = usize::try_from(size_bytes).unwrap_or(usize::MAX);
        let known = if size == 0 { MAX_BODY } else { size.min(MAX_BODY) };
        let body = bytes.get(..known).unwrap_or(bytes);
        Self { machine, address, body, whole: body.len() == size, before: &[], after: &[], inner_entry: None }
    }

    /// The function that `resolved` names in `file`.
    #[must_use]
    pub fn in_file(file: &ElfFile<'a>, resolved: &Resolved) -> Option<Self> {
        let room = resolved.next_vaddr.map_or(u64::MAX, |next| next.saturating_sub(resolved.vaddr));
        let size_bytes = resolved.size_bytes;
        // Without a size the next symbol bounds the decoded part, but the function need not end there.
        let readable = if size_bytes == 0 { room } else { size_bytes };
        let bytes = file.bytes_at(resolved.vaddr, usize::try_from(readable).unwrap_or(usize::MAX).min(MAX_BODY))?;
        let mut function = Self::new(file.machine(), resolved.vaddr, bytes, size_bytes);
        function.inner_entry = Some(room).filter(|room| *room < size_bytes);
        let before = resolved.vaddr.saturating_sub(NEIGHBOURHOOD as u64);
        function.before = file.bytes_at(before, (resolved.vaddr - before) as usize).unwrap_or_default();
        let after = resolved.vaddr.saturating_add(function.body.len() as u64);
        function.after = file.bytes_at(after, NEIGHBOURHOOD).unwrap_or_default();
        Some(function)
    }

    /// The lowest offset behind the entry that a branch in or around the function leads to, if `body` is sure to show it.
    fn inner_target(&self) -> Option<u64> {
        let scan = match self.machine {
            Machine::X86_64 => x86::inner_target,
            _ => arm::inner_target,
        };
        let inside = scan(self.body, 0);
        let before = scan(self.before, -(self.before.len() as i64));
        let after = scan(self.after, self.body.len() as i64);
        let lowest = inside.lowest.min(before.lowest).min(after.lowest);
        (self.whole && inside.sure).then_some(lowest)
    }
}

/// Where the branches in some code lead.
struct Targets {
    /// The lowest offset behind the entry of the function, or `u64::MAX`.
    lowest: u64,
    /// Whether all of the code could be read.
    sure: bool,
}

/// Requirements of a probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SiteUse {
    /// Bit *n* set: the register of integer argument *n* is read (`rdi rsi rdx rcx r8 r9`; `x0` to `x7`).
    pub args: u8,
    /// A return probe shares the site.
    pub needs_return: bool,
    /// Arguments on the stack are read, at their offsets from the stack pointer at the entry.
    pub stack_args: bool,
    /// The kernel side takes moved arguments from their new places ([`Site::places`]), and no return probe shares the
    /// site.
    pub follows: bool,
}

/// Features of the running kernel; all false is correct for every kernel from 5.10 on, only slower on newer ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// Emulates the nops that older kernels single-step: on x86-64 surely where kernel BTF has `arch_uprobe_optimize`
    /// (6.18; 6.16 and 6.17 show no sign of it), on aarch64 where it has `simulate_nop` (6.13).
    pub emulates_nops: bool,
    /// Turns a probed 5-byte nop into a call: x86-64 kernels with `arch_uprobe_optimize` in their BTF.
    pub optimizes_nop5: bool,
}

/// The cost of a hit, cheapest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SiteCost {
    /// A 5-byte nop that the kernel replaces by a call: about 0.5 µs.
    Nop5Optimizable,
    /// One trap: about 0.6 µs.
    Emulated,
    /// Two traps and a copy of the instruction: about 12 µs in a VM.
    SingleStepped,
}

impl SiteCost {
    /// Approximate time of a hit, in microseconds, measured in a virtual machine (docs/overhead.md).
    #[must_use]
    pub const fn price_us(self) -> f64 {
        match self {
            Self::Nop5Optimizable => 0.5,
            Self::Emulated => 0.6,
            Self::SingleStepped => 12.0,
        }
    }

    /// Whether the kernel has to single-step the instruction.
    #[must_use]
    pub const fn is_stepped(self) -> bool {
        matches!(self, Self::SingleStepped)
    }
}

/// A place for a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Bytes from the start of the function.
    pub offset: u32,
    /// The cost of a hit there.
    pub cost: SiteCost,
    /// The instruction there, for people.
    pub instruction: String,
    /// Where the arguments and the stack pointer are, if not where they were at the entry.
    pub places: Option<SitePlaces>,
}

/// The best site for a probe; see [`candidates`].
pub fn choose(function: &Function<'_>, usage: SiteUse, kernel: Kernel) -> Result<Site, SiteError> {
    candidates(function, usage, kernel).map(|mut sites| sites.swap_remove(0))
}

/// All sites where a probe sees what `usage` asks for, cheapest first, then nearest to the entry; never empty.
///
/// The scan ends behind the first instruction that changes a needed register, moves a needed word on the stack, writes
/// memory visible to others, or may branch, and before any place that another symbol or a branch in the function or its
/// neighbours leads to: a probe there would be hit more than once per call, or by other callers. Branches from far away
/// and jump tables are not seen; compilers do not aim them at a prologue.
///
/// If all of these would be single-stepped, and `usage` follows arguments, the one site is the first that is not,
/// behind instructions that move the arguments to other registers or into the function's own frame.
pub fn candidates(function: &Function<'_>, usage: SiteUse, kernel: Kernel) -> Result<Vec<Site>, SiteError> {
    let steps = decode(function, kernel)?;
    let first = steps.first().ok_or(SiteError::NoCode { address: function.address })?;
    let refused = SiteError::Refused { address: function.address, instruction: first.text.clone() };

    let reach = Reach::of(function, first);
    let seen = steps.iter().take(1 + steps.iter().take_while(|step| !step.after.ends(usage)).count());
    let fit = |step: &&Step| step.fits(usage) && reach.allows(step);
    let mut sites: Vec<_> = seen.filter(fit).filter_map(|step| Some((step.cost?, step))).collect();
    if usage.follows
        && sites.iter().all(|(cost, _)| cost.is_stepped())
        && let Some((at, places)) = follow::find(function.machine, &steps, usage, |step| reach.allows(step))
        && let Some(cost) = at.cost
    {
        return Ok(vec![Site { offset: at.offset, cost, instruction: at.text.clone(), places: Some(places) }]);
    }
    // An Arm landing pad costs as much as the next instruction, and a probe on it fires with the branch type still
    // pending.
    sites.sort_by_key(|(cost, step)| (*cost, step.pad == Pad::Bti, step.offset));
    if sites.is_empty() {
        return Err(refused);
    }
    let site = |(cost, step): (SiteCost, &Step)| Site {
        offset: step.offset,
        cost,
        instruction: step.text.clone(),
        places: None,
    };
    Ok(sites.into_iter().map(site).collect())
}

/// Return instructions of one function that get a probe; generated code has few.
const MAX_RETURNS: usize = 64;

/// The cost of a hit at a function's own return instruction: on x86-64 the kernel emulates none.
#[must_use]
pub const fn return_cost(machine: Machine) -> SiteCost {
    match machine {
        Machine::Aarch64 => SiteCost::Emulated,
        _ => SiteCost::SingleStepped,
    }
}

/// Offsets of a function's ends: its own return instructions and, unless `with_result`, the calls that take the place of its last ones (`jmp` behind the
/// epilogue), at which nothing is returned yet. `None` if it cannot be read to its end, has none or too many, or one of its returns takes no probe.
///
/// A call of that kind in a function that keeps nothing on its stack is not among them.
#[must_use]
pub fn ends(function: &Function<'_>, with_result: bool) -> Option<Vec<u32>> {
    let (mut found, calls) = match function.machine {
        Machine::X86_64 => (x86::returns(function.body)?, x86::tail_calls(function.body)),
        Machine::Aarch64 => (arm::returns(function.body)?, arm::tail_calls(function.body)),
        Machine::Other(_) => return None,
    };
    if !with_result {
        found.extend(calls);
    }
    (function.whole && !found.is_empty() && found.len() <= MAX_RETURNS).then_some(found)
}

/// Where the unconditional direct jumps of some code lead.
pub(super) fn jumps(machine: Machine, address: u64, code: &[u8]) -> Vec<u64> {
    match machine {
        Machine::X86_64 => x86::jumps(address, code),
        Machine::Aarch64 => arm::jumps(address, code),
        Machine::Other(_) => Vec::new(),
    }
}

fn decode(function: &Function<'_>, kernel: Kernel) -> Result<Vec<Step>, SiteError> {
    match function.machine {
        Machine::X86_64 => Ok(x86::steps(function.address, function.body, kernel)),
        Machine::Aarch64 => Ok(arm::steps(function.body, kernel)),
        machine @ Machine::Other(_) => Err(SiteError::Machine { machine }),
    }
}

/// One decoded instruction of a prologue.
#[derive(Debug)]
struct Step {
    offset: u32,
    /// `None` where the kernel refuses a probe, or where one would be harmful.
    cost: Option<SiteCost>,
    pad: Pad,
    /// Pushes a register, so no balanced loop can start here.
    pushes: bool,
    /// Overwrites the link register itself, after a return probe would have put its own address there.
    links: bool,
    after: Effects,
    /// Its effect on followed values.
    motion: Motion,
    text: String,
}

/// Whether an instruction is a landing pad for indirect calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pad {
    None,
    Endbr,
    Bti,
}

/// Conditions that an instruction ends.
#[derive(Clone, Copy, Debug, Default)]
struct Effects {
    /// Written argument registers, as in [`SiteUse::args`].
    writes: u8,
    /// The return address is no longer at the place that the kernel reads.
    ends_return: bool,
    /// Stack arguments have moved or may have changed.
    ends_stack_args: bool,
    /// Nothing behind it is sure to run once per call, or others have seen an effect of the call.
    ends: bool,
}

impl Effects {
    fn ends(self, usage: SiteUse) -> bool {
        self.ends
            || self.writes & usage.args != 0
            || self.ends_return && usage.needs_return
            || self.ends_stack_args && usage.stack_args
    }
}

impl Step {
    fn fits(&self, usage: SiteUse) -> bool {
        self.offset == 0 || !(self.links && usage.needs_return)
    }
}

/// Up to where a site is hit exactly once per call.
enum Reach {
    /// Offsets below are.
    Before(u64),
    /// Branches may be out of sight: only the entry is, and a push right behind its landing pad of this length.
    Unknown { pad_len: Option<u32> },
}

impl Reach {
    fn of(function: &Function<'_>, first: &Step) -> Self {
        match function.inner_target() {
            Some(target) => Self::Before(target.min(function.inner_entry.unwrap_or(u64::MAX))),
            None => Self::Unknown { pad_len: (first.pad != Pad::None).then_some(4) },
        }
    }

    fn allows(&self, step: &Step) -> bool {
        step.offset == 0
            || match self {
                Self::Before(limit) => u64::from(step.offset) < *limit,
                Self::Unknown { pad_len } => step.pushes && Some(step.offset) == *pad_len,
            }
    }
}

#[cfg(test)]
mod tests;
