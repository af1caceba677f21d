//! Unwind rules for single addresses, which user space has learnt and writes through shared memory.

use core::mem::offset_of;

use aya_ebpf::{macros::map, maps::Array};
use memscope_common::unwind::{RULE_PROBES, RULES, Rule, RuleEntry, first_place};

use super::slot::Walk;
use crate::verifier::read_once;

/// An open-addressed table. Sized by user space: one entry unless stacks are taken.
#[map]
static UNWIND_RULES: Array<RuleEntry> = Array::with_max_entries(1, BPF_F_MMAPABLE);
const BPF_F_MMAPABLE: u32 = 1 << 10;

/// The rule for an address, wherever it is.
#[inline(always)]
pub(super) fn find(walk: &Walk) -> Option<Rule> {
    let first = first_place(walk.at, walk.salt);
    for probe in 0..RULE_PROBES {
        let entry = UNWIND_RULES.get(first.wrapping_add(probe) & (RULES - 1))?;
        let (address, generation) = key(entry);
        if address == walk.at && generation == walk.generation {
            return Some(entry.rule);
        }
        if address == 0 {
            return None;
        }
    }
    None
}

/// The rule for an address, as two words, if it is in its first place. User space writes the
/// address last: it is read first.
#[inline(always)]
pub(super) fn find_first(walk: &Walk, at: u64) -> Option<[u64; 2]> {
    let entry = UNWIND_RULES.get(first_place(at, walk.salt))?;
    if key(entry) != (at, walk.generation) {
        return None;
    }
    // SAFETY: a live map value; sixteen bytes behind two words, so aligned to eight.
    Some(unsafe { read_once((&raw const *entry).cast::<[u64; 2]>().add(1)) })
}

/// The address and generation that an entry is for.
#[inline(always)]
fn key(entry: &RuleEntry) -> (u64, u64) {
    // SAFETY: a live map value.
    unsafe { (read_once(&raw const entry.address), read_once(&raw const entry.generation)) }
}
const _: () = assert!(offset_of!(RuleEntry, rule) == 16 && size_of::<Rule>() == 16);
const _: () = assert!(offset_of!(Rule, kind) == 0 && offset_of!(Rule, flags) == 1 && offset_of!(Rule, cfa) == 4);
const _: () = assert!(offset_of!(Rule, ra) == 8 && offset_of!(Rule, fp) == 12);
