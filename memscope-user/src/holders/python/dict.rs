//! Dicts: tables of keys, with values in them or beside them, and the values of an object without a dict of its own.

use super::{
    Python,
    layout::{of_object, of_type},
};

/// Largest size of a table.
const MAX_LOG_SIZE: u8 = 40;
/// Keys that objects of a class share.
const MAX_SHARED: u64 = 30;
/// Most keys searched for a name.
const MAX_SEARCHED: u64 = 4000;
/// Words behind the fields of a type among which its shared keys are.
const CLASS_WORDS: usize = 80;

/// A table of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::holders) struct Keys {
    entries: u64,
    entry_bytes: u64,
    value_offset: u64,
    /// Used entries.
    pub(in crate::holders) used: u64,
    /// Values lie elsewhere.
    is_shared: bool,
}

/// Which part of an entry a place is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::holders) enum Part {
    Key,
    Value,
}

impl Keys {
    /// The entry and the part of it at a place.
    pub(in crate::holders) fn part_at(&self, place: u64) -> Option<(u64, Part)> {
        let into = place.checked_sub(self.entries)?;
        let (at, offset) = (into / self.entry_bytes, into % self.entry_bytes);
        let part = match offset {
            _ if offset == self.value_offset => Part::Value,
            _ if offset + 8 == self.value_offset => Part::Key,
            _ => return None,
        };
        (at < self.used).then_some((at, part))
    }

    /// Whether a place is in a used entry.
    pub(in crate::holders) fn has(&self, place: u64) -> bool {
        place >= self.entries && place < self.end()
    }

    pub(in crate::holders) fn end(&self) -> u64 {
        self.entries.saturating_add(self.used.saturating_mul(self.entry_bytes))
    }

    const fn key_place(&self, at: u64) -> u64 {
        self.entries + at * self.entry_bytes + self.value_offset - 8
    }
}

impl Python<'_> {
    /// The table of keys at an address: its sizes agree with each other, which other memory hardly does.
    pub(in crate::holders) fn keys(&self, address: u64) -> Option<Keys> {
        let words = self.memory.words(address, 5)?;
        if self.layout.minor >= 11 { self.new_keys(address, &words) } else { self.old_keys(address, &words) }
    }

    /// `references, u8 log size, u8 log bytes of indices, u8 kind, u32 version, usable, used`.
    fn new_keys(&self, address: u64, words: &[u64]) -> Option<Keys> {
        const GENERAL: u8 = 0;
        const SHARED: u8 = 2;
        let [log_size, log_index_bytes, kind, ..] = words[1].to_le_bytes();
        if !(3..=MAX_LOG_SIZE).contains(&log_size)
            || !(log_size..=log_size + 3).contains(&log_index_bytes)
            || kind > SHARED
        {
            return None;
        }
        let (usable, used) = (words[2], words[3]);
        let room = (1_u64 << log_size) * 2 / 3;
        let total = usable.checked_add(used)?;
        // Shared ones have room for as many keys as an object can have values.
        let agrees = if kind == SHARED { total <= room.max(31) } else { total == room };
        let (entry_bytes, value_offset) = if kind == GENERAL { (24, 16) } else { (16, 8) };
        let entries = address.checked_add(self.layout.keys_head())?.checked_add(1 << log_index_bytes)?;
        agrees.then_some(Keys { entries, entry_bytes, value_offset, used, is_shared: kind == SHARED })
    }

    /// `references, size, look-up function, usable, used`.
    fn old_keys(&self, address: u64, words: &[u64]) -> Option<Keys> {
        let (size, usable, used) = (words[1], words[3], words[4]);
        if !size.is_power_of_two() || !(4..=1 << MAX_LOG_SIZE).contains(&size) {
            return None;
        }
        if usable.checked_add(used)? > size * 2 / 3 + 1 {
            return None;
        }
        let index_bytes = match size {
            0..=0xff => 1,
            0x100..=0xffff => 2,
            0x1_0000..=0xffff_ffff => 4,
            _ => 8,
        };
        let entries = address.checked_add(self.layout.keys_head())?.checked_add(size * index_bytes)?;
        Some(Keys { entries, entry_bytes: 24, value_offset: 16, used, is_shared: false })
    }

    /// The key with this number.
    pub(in crate::holders) fn key(&self, table: u64, at: u64) -> Option<u64> {
        let keys = self.keys(table)?;
        // A shared table may have got more keys than were read.
        let key = (at < keys.used.max(MAX_SHARED)).then(|| self.memory.word(keys.key_place(at))).flatten()?;
        (key != 0).then_some(key)
    }

    /// The value behind a name in a dict.
    pub(in crate::holders) fn dict_item(&self, dict: u64, name: &str) -> Option<u64> {
        let table = self.memory.word(dict.checked_add(of_object::DICT_KEYS)?)?;
        let values = self.memory.word(dict + of_object::DICT_VALUES)?;
        let keys = self.keys(table)?;
        let found = (0..keys.used.min(MAX_SEARCHED)).find(|at| {
            let key = self.memory.word(keys.key_place(*at)).filter(|key| *key != 0);
            key.and_then(|key| self.text(key)).as_deref() == Some(name)
        })?;
        let place = if values == 0 {
            keys.key_place(found) + 8
        } else {
            values.checked_add(self.layout.values_head() + found * 8)?
        };
        self.memory.word(place)
    }

    /// The table of names that objects of a class share, found among the class's references.
    pub(in crate::holders) fn shared_keys(&self, class: u64) -> Option<u64> {
        let from = class.checked_add(of_type::BYTES - 8)?;
        let words = self.memory.words(from, CLASS_WORDS)?;
        let is_shared = |address: u64| {
            let keys = self.keys(address).filter(|keys| keys.is_shared && (1..=MAX_SHARED).contains(&keys.used));
            keys.is_some_and(|keys| self.memory.word(keys.key_place(0)).is_some_and(|first| self.text(first).is_some()))
        };
        words.into_iter().find(|address| address.is_multiple_of(8) && *address > 4096 && is_shared(*address))
    }

    /// Start of the values of an object that lie apart from it, by the word in front of it.
    pub(in crate::holders) fn values_of(&self, object: u64) -> Option<u64> {
        match self.layout.minor {
            ..=10 => None,
            11 => self.memory.word(object.checked_sub(32)?),
            12 => self.memory.word(object.checked_sub(24)?)?.checked_add(1),
            _ => self.memory.word(object.checked_sub(24)?)?.checked_add(8),
        }
    }
}
