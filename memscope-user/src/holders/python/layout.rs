//! Offsets of the fields of `CPython`'s objects, by version (3.8 to 3.14, 64 bits, both architectures). Those that the
//! walker of stacks uses, too, come from there.

use super::types::{Builtin, Type};
use crate::locate::python::offsets::Offsets;

/// Fields of a type that are the same in all versions.
pub(in crate::holders) mod of_type {
    pub(in crate::holders) const NAME: usize = 3;
    pub(in crate::holders) const BASIC_SIZE: usize = 4;
    pub(in crate::holders) const ITEM_SIZE: usize = 5;
    pub(in crate::holders) const FLAGS: usize = 21;
    pub(in crate::holders) const MEMBERS: usize = 30;
    pub(in crate::holders) const BASE: usize = 32;
    pub(in crate::holders) const DICT: usize = 33;
    pub(in crate::holders) const DICT_OFFSET: usize = 36;
    /// Words up to there.
    pub(in crate::holders) const WORDS: usize = 37;
    /// Behind the fields of all types; those of classes made by Python follow.
    pub(in crate::holders) const BYTES: u64 = 408;
}

/// Objects, by offsets from their head.
pub(in crate::holders) mod of_object {
    pub(in crate::holders) const TYPE: u64 = 8;
    /// Number of items, if it has any.
    pub(in crate::holders) const SIZE: u64 = 16;
    pub(in crate::holders) const LIST_ITEMS: u64 = 24;
    pub(in crate::holders) const DICT_KEYS: u64 = 32;
    pub(in crate::holders) const DICT_VALUES: u64 = 40;
    /// Behind the last field of a plain dict.
    pub(in crate::holders) const DICT_BYTES: u64 = 48;
    pub(in crate::holders) const MODULE_DICT: u64 = 16;
    pub(in crate::holders) const MODULE_NAME: u64 = 48;
    pub(in crate::holders) const METHOD_SELF: u64 = 24;
    pub(in crate::holders) const FRAME_CODE: u64 = 32;
    pub(in crate::holders) const TOKEN_OLD_VALUE: u64 = 32;
    /// The frame that called this one; up to 3.10 it is elsewhere.
    pub(in crate::holders) const FRAME_BACK: u64 = 16;
    pub(in crate::holders) const OLD_FRAME_BACK: u64 = 24;
    /// Of a deque: first and last block, and the index of the first and the last item in these.
    pub(in crate::holders) const DEQUE_BLOCKS: [u64; 2] = [24, 32];
    /// Of a block of a deque: items between the links to the one before and to the one behind it.
    pub(in crate::holders) const DEQUE_NEXT: u64 = 8 + 64 * 8;
    pub(in crate::holders) const DEQUE_INDICES: [u64; 2] = [40, 48];
}

/// What differs between versions.
#[derive(Clone, Copy, Debug)]
pub(in crate::holders) struct Layout {
    pub(in crate::holders) minor: u8,
    pub(in crate::holders) structs: Offsets,
}

impl Layout {
    /// Size of a pool of small objects.
    pub(in crate::holders) const fn pool_bytes(&self) -> u64 {
        if self.minor >= 10 { 16 << 10 } else { 4 << 10 }
    }

    /// In a tuple: in front of its items, from 3.14 on, is its hash.
    pub(in crate::holders) const fn tuple_items(&self) -> u64 {
        if self.minor >= 14 { 32 } else { 24 }
    }

    /// Frames are objects of their own up to 3.10.
    pub(in crate::holders) const fn frames_are_objects(&self) -> bool {
        self.minor < 11
    }

    /// Offset of local variables in such a frame.
    pub(in crate::holders) const fn frame_locals(&self) -> u64 {
        self.structs.layout.frame_len as u64
    }

    /// Offset of the code in such a frame.
    pub(in crate::holders) const fn frame_code(&self) -> u64 {
        self.structs.layout.code as u64
    }

    pub(in crate::holders) const fn function_closure(&self) -> u64 {
        if self.minor >= 10 { 72 } else { 48 }
    }

    pub(in crate::holders) const fn function_code(&self) -> u64 {
        if self.minor >= 10 { 48 } else { 16 }
    }

    pub(in crate::holders) const fn function_defaults(&self) -> u64 {
        if self.minor >= 10 { 56 } else { 32 }
    }

    /// Where its full name is, `Engine.step.<locals>.hook`.
    pub(in crate::holders) const fn function_name(&self) -> u64 {
        if self.minor >= 10 { 40 } else { 104 }
    }

    /// Globals, and the built-in names from 3.10 on.
    pub(in crate::holders) const fn is_function_globals(&self, offset: u64) -> bool {
        if self.minor >= 10 { matches!(offset, 16 | 24) } else { offset == 24 }
    }

    /// Fields of exceptions and tracebacks, which Python shows by other means.
    pub(in crate::holders) fn own_field(&self, ty: &Type, offset: u64) -> Option<&'static str> {
        const OF_EXCEPTIONS: [&str; 3] = ["__traceback__", "__context__", "__cause__"];
        if ty.builtin == Builtin::Traceback {
            return [(16, "tb_next"), (24, "tb_frame")].into_iter().find(|(at, _)| *at == offset).map(|(_, name)| name);
        }
        if ty.builtin == Builtin::ContextToken {
            return (offset == of_object::TOKEN_OLD_VALUE).then_some("old_value");
        }
        if !ty.is_exception() {
            return None;
        }
        // Notes come before them from 3.11 on.
        let first = if self.minor >= 11 { 40 } else { 32 };
        match offset.checked_sub(first) {
            None => (offset == 24).then_some("args"),
            Some(into) => OF_EXCEPTIONS.get((into / 8) as usize).copied(),
        }
    }

    /// A table of keys: bytes in front of its indices.
    pub(in crate::holders) const fn keys_head(&self) -> u64 {
        if self.minor >= 11 { 32 } else { 40 }
    }

    /// In an object's values: bytes in front of the first one.
    pub(in crate::holders) const fn values_head(&self) -> u64 {
        if self.minor >= 13 { 8 } else { 0 }
    }

    /// Values lie right behind an object's own fields if its type has this flag.
    pub(in crate::holders) const fn has_inline_values(&self, flags: u64) -> bool {
        const INLINE_VALUES: u64 = 1 << 2;
        self.minor >= 13 && flags & INLINE_VALUES != 0
    }

    /// Two words in front of the collector's, for a dict or weak references that the interpreter manages.
    pub(in crate::holders) const fn has_words_in_front(&self, flags: u64) -> bool {
        const MANAGED_WEAKREF: u64 = 1 << 3;
        const MANAGED_DICT: u64 = 1 << 4;
        match self.minor {
            ..=10 => false,
            11 => flags & MANAGED_DICT != 0,
            _ => flags & (MANAGED_DICT | MANAGED_WEAKREF) != 0,
        }
    }

    /// In code: the names of all variables, from 3.11 on.
    pub(super) const CODE_NAMES: u64 = 96;
    /// Up to 3.10: names of local variables, of those from outside, and of those that inner functions use.
    pub(super) const CODE_OLD_NAMES: [u64; 3] = [72, 80, 88];
    /// Up to 3.10: number of local variables.
    pub(super) const CODE_OLD_LOCALS: u64 = 28;

    /// In code: number of variables, number of those from outside, and room on the evaluation stack.
    pub(super) const fn code_counts(&self) -> (u64, u64, u64) {
        if self.minor == 11 { (76, 92, 68) } else { (72, 88, 64) }
    }
}
