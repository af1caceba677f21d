//! The table of rules, in memory shared with the kernel side.

use std::{
    collections::HashSet,
    io,
    num::NonZeroUsize,
    os::fd::AsFd,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use memscope_common::unwind::{RULE_PROBES, RULES, Rule, RuleEntry, first_place, mix};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// Words of an entry.
const WORDS: usize = size_of::<RuleEntry>() / 8;
const BYTES: usize = RULES as usize * size_of::<RuleEntry>();
/// Order of the words of an entry.
const ADDRESS: usize = 0;
const GENERATION: usize = 1;
const RULE: usize = 2;
const _: () = assert!(WORDS == RULE + 2);

/// A walk is over within this time.
const GRACE: Duration = Duration::from_secs(1);

/// The table.
pub(super) struct Table {
    words: &'static [AtomicU64],
    mapped: Option<std::ptr::NonNull<libc::c_void>>,
    swept: Option<Instant>,
    /// Generations that had rules and no process at the last sweep: they do not come back.
    gone: HashSet<u64>,
}

// SAFETY: the memory is a mapping of its own, which lives as long as this does, and is only used atomically.
unsafe impl Send for Table {}

impl Table {
    /// Maps the table of the kernel side.
    pub(super) fn map(rules: impl AsFd) -> io::Result<Self> {
        let len = NonZeroUsize::new(BYTES).ok_or(io::ErrorKind::InvalidInput)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping, anywhere.
        let mapped = unsafe { mmap(None, len, protection, MapFlags::MAP_SHARED, rules, 0) }?;
        // SAFETY: as many bytes as were mapped, aligned to a page; they stay until `drop`.
        let words = unsafe { std::slice::from_raw_parts(mapped.as_ptr().cast::<AtomicU64>(), BYTES / 8) };
        Ok(Self { words, mapped: Some(mapped), swept: None, gone: HashSet::new() })
    }

    /// A private table.
    #[cfg(test)]
    pub(super) fn alone() -> Self {
        let words: Vec<AtomicU64> = (0..BYTES / 8).map(|_| AtomicU64::new(0)).collect();
        Self { words: Vec::leak(words), mapped: None, swept: None, gone: HashSet::new() }
    }

    fn place(&self, address: u64, generation: u64, probe: u32) -> Option<&[AtomicU64]> {
        let place = first_place(address, mix(generation)).wrapping_add(probe) & (RULES - 1);
        self.words.get(place as usize * WORDS..)?.get(..WORDS)
    }

    /// Adds a rule in a slot that the kernel side searches. Returns whether there was room. An existing rule stays:
    /// within a generation there is only one.
    pub(super) fn insert(&self, generation: u64, address: u64, rule: Rule) -> bool {
        for probe in 0..RULE_PROBES {
            let Some(place) = self.place(address, generation, probe) else { return false };
            let there = place[ADDRESS].load(Ordering::Relaxed);
            if there == address && place[GENERATION].load(Ordering::Relaxed) == generation {
                return true;
            }
            if there == 0 {
                for (word, value) in place[RULE..].iter().zip(words(rule)) {
                    word.store(value, Ordering::Relaxed);
                }
                place[GENERATION].store(generation, Ordering::Relaxed);
                place[ADDRESS].store(address, Ordering::Release);
                return true;
            }
        }
        false
    }

    /// Makes room, at most once in a while: removes generations that no process had at the last sweep, and none has
    /// now.
    pub(super) fn sweep(&mut self, living: impl FnOnce() -> Option<Vec<u64>>) {
        if self.swept.is_some_and(|swept| swept.elapsed() < GRACE) {
            return;
        }
        let Some(living) = living() else { return };
        self.swept = Some(Instant::now());
        let living: HashSet<u64> = living.into_iter().collect();
        let mut gone = HashSet::new();
        for place in self.words.as_chunks::<WORDS>().0 {
            let generation = place[GENERATION].load(Ordering::Relaxed);
            if place[ADDRESS].load(Ordering::Relaxed) == 0 || living.contains(&generation) {
                continue;
            }
            if self.gone.contains(&generation) {
                place[ADDRESS].store(0, Ordering::Release);
            } else {
                gone.insert(generation);
            }
        }
        self.gone = gone;
    }

    /// The rule that the kernel side would find.
    #[cfg(test)]
    pub(super) fn get(&self, generation: u64, address: u64) -> Option<Rule> {
        let places = (0..RULE_PROBES).filter_map(|probe| self.place(address, generation, probe));
        places.take_while(|place| place[ADDRESS].load(Ordering::Acquire) != 0).find_map(|place| {
            let same = place[ADDRESS].load(Ordering::Relaxed) == address
                && place[GENERATION].load(Ordering::Relaxed) == generation;
            let word = |at: usize| place[RULE + at].load(Ordering::Relaxed);
            let (low, high) = (word(0).to_le_bytes(), word(1).to_le_bytes());
            let int = |bytes: &[u8]| i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            let rule = Rule {
                kind: low[0],
                flags: low[1],
                reserved: 0,
                cfa: int(&low[4..]),
                ra: int(&high[..4]),
                fp: int(&high[4..]),
            };
            same.then_some(rule)
        })
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        if let Some(mapped) = self.mapped {
            self.words = &[];
            // SAFETY: what was mapped, and is not used any more.
            let _ = unsafe { munmap(mapped, BYTES) };
        }
    }
}

/// The rule's two words in memory.
const fn words(rule: Rule) -> [u64; 2] {
    let Rule { kind, flags, reserved, cfa, ra, fp } = rule;
    [
        kind as u64 | (flags as u64) << 8 | (reserved as u64) << 16 | (cfa as u32 as u64) << 32,
        ra as u32 as u64 | (fp as u32 as u64) << 32,
    ]
}

#[cfg(test)]
mod tests {
    use memscope_common::unwind::{RULE_FP, RULE_RA_SAVED, RULE_SP};

    use super::*;

    const RULE: Rule = Rule { kind: RULE_SP, flags: RULE_RA_SAVED, reserved: 0, cfa: 0x1_0010, ra: -8, fp: -16 };

    /// As both sides declare it.
    #[test]
    fn words_are_the_rule_in_memory() {
        // SAFETY: no padding, all integers.
        let bytes: [u8; 16] = unsafe { std::mem::transmute(RULE) };
        let there: Vec<u8> = words(RULE).iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(there, bytes);
        assert_eq!(bytes, [2, 1, 0, 0, 0x10, 0, 1, 0, 0xf8, 0xff, 0xff, 0xff, 0xf0, 0xff, 0xff, 0xff]);
    }

    #[test]
    fn a_rule_holds_for_its_address_and_generation_and_never_changes() {
        let table = Table::alone();
        assert!(table.insert(5, 0x1234, RULE));
        assert_eq!(table.get(5, 0x1234), Some(RULE));
        assert_eq!(table.get(6, 0x1234), None);
        assert_eq!(table.get(5, 0x1235), None);
        assert!(table.insert(5, 0x1234, Rule { kind: RULE_FP, ..RULE }));
        assert_eq!(table.get(5, 0x1234), Some(RULE));
        assert!(table.insert(6, 0x1234, Rule { kind: RULE_FP, ..RULE }));
        assert_eq!(table.get(6, 0x1234).map(|rule| rule.kind), Some(RULE_FP));
    }

    /// Full, and emptied only of generations gone for a while.
    #[test]
    fn room_is_made_of_generations_that_are_gone() {
        let mut table = Table::alone();
        let fill = |table: &Table, generation| {
            (1..=u64::from(2 * RULES)).filter(|a| table.insert(generation, *a, RULE)).count()
        };
        let filled = fill(&table, 1);
        assert!(filled > RULES as usize / 2, "{filled}");
        let refused = (1..1 << 40_u64).find(|address| !table.insert(2, *address, RULE)).expect("a full table");
        table.sweep(|| Some(vec![2]));
        // A walk may be under way.
        assert!(!table.insert(2, refused, RULE));
        table.sweep(|| panic!("too soon"));
        table.swept = None;
        table.sweep(|| Some(vec![2]));
        assert!(table.insert(2, refused, RULE));
        assert_eq!(table.get(1, 1), None);
        assert_eq!(table.get(2, 1), Some(RULE));
    }
}
