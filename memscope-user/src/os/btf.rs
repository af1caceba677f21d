//! Offsets in the running kernel's structs, from the kernel's own description of its types (BTF), which any user may read.
//!
//! Reads only the needed part of the format. The kernel is trusted, but the file need not be well-formed.

use std::{
    fs::File,
    io::{self, Read as _},
};

/// The kernel's types.
pub const BTF: &str = "/sys/kernel/btf/vmlinux";
/// Real ones have some 8 MiB.
const MAX_BYTES: u64 = 128 << 20;
/// Types behind each other (`const`, `typedef`), and structs without a name inside of each other.
const MAX_NESTING: usize = 16;

/// The running kernel's types, for [`Btf::parse`].
pub fn read() -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(BTF)?.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The types and their names.
pub struct Btf<'a> {
    /// Start of each type, by number from 1.
    types: Vec<&'a [u8]>,
    strings: &'a [u8],
}

const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const HEAD: usize = 12;
const MEMBER: usize = 12;
const ENUMERATOR: usize = 8;

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_le_bytes)
}

const fn kind(info: u32) -> u32 {
    info >> 24 & 31
}

/// Bytes that follow a type's head.
const fn tail_bytes(info: u32) -> Option<usize> {
    let count = (info & 0xffff) as usize;
    Some(match kind(info) {
        // Pointers, forward declarations, names, qualifiers, functions, floats, tags of types.
        2 | 7..=12 | 16 | 18 => 0,
        // Integers, variables, tags of declarations.
        1 | 14 | 17 => 4,
        // Arrays.
        3 => 12,
        // Members, sections, enumerators of eight bytes.
        STRUCT | UNION | 15 | 19 => count * MEMBER,
        // Enumerators, parameters.
        ENUM | 13 => count * ENUMERATOR,
        _ => return None,
    })
}

impl<'a> Btf<'a> {
    /// Reads the tables of types and names; `None` if they are malformed.
    #[must_use]
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        const MAGIC: [u8; 2] = 0xeb9f_u16.to_le_bytes();
        if bytes.first_chunk() != Some(&MAGIC) {
            return None;
        }
        let header = word(bytes, 4)? as usize;
        let part = |at: usize| {
            let start = header.checked_add(word(bytes, at)? as usize)?;
            bytes.get(start..start.checked_add(word(bytes, at + 4)? as usize)?)
        };
        let (mut rest, strings) = (part(8)?, part(16)?);
        let mut types = Vec::new();
        while !rest.is_empty() {
            let len = HEAD + tail_bytes(word(rest, 4)?)?;
            types.push(rest.get(..len)?);
            rest = rest.get(len..)?;
        }
        Some(Self { types, strings })
    }

    fn name(&self, offset: u32) -> &'a [u8] {
        let rest = self.strings.get(offset as usize..).unwrap_or_default();
        rest.split(|byte| *byte == 0).next().unwrap_or_default()
    }

    fn of(&self, number: u32) -> Option<&'a [u8]> {
        self.types.get((number as usize).checked_sub(1)?).copied()
    }

    /// Whether an enumeration has a value of that name.
    #[must_use]
    pub fn enumerates(&self, name: &str) -> bool {
        let enums = self.types.iter().filter(|of| word(of, 4).is_some_and(|info| kind(info) == ENUM));
        let mut values = enums.flat_map(|of| of.get(HEAD..).unwrap_or_default().as_chunks::<ENUMERATOR>().0);
        values.any(|value| word(value, 0).is_some_and(|at| self.name(at) == name.as_bytes()))
    }

    /// Offset in `sighand_struct` of a member of a signal's action.
    #[must_use]
    pub fn action(&self, signal: i32, member: &str) -> Option<u32> {
        let actions = self.member("sighand_struct", &["action"])?;
        let member = self.member("k_sigaction", &["sa", member])?;
        let before = signal.unsigned_abs().checked_sub(1)?;
        actions.checked_add(before.checked_mul(self.size_bytes("k_sigaction")?)?)?.checked_add(member)
    }

    /// Size of a struct.
    fn size_bytes(&self, name: &str) -> Option<u32> {
        word(self.named(name)?, 8)
    }

    /// A struct.
    fn named(&self, name: &str) -> Option<&'a [u8]> {
        let is_it = |of: &&&[u8]| {
            let parts = word(of, 0).zip(word(of, 4));
            parts.is_some_and(|(at, info)| kind(info) == STRUCT && self.name(at) == name.as_bytes())
        };
        self.types.iter().find(is_it).copied()
    }

    /// Offset of a member of a member of a struct, in bytes.
    #[must_use]
    pub fn member(&self, name: &str, path: &[&str]) -> Option<u32> {
        let mut of = self.named(name)?;
        let mut offset = 0_u32;
        for name in path {
            let (bits, number) = self.find(of, name.as_bytes(), MAX_NESTING)?;
            offset = offset.checked_add(bits / 8)?;
            of = self.plain(number).unwrap_or_default();
        }
        Some(offset)
    }

    /// Offset in bits, and type, of a member; also of one in a member without a name.
    fn find(&self, of: &[u8], name: &[u8], nesting: usize) -> Option<(u32, u32)> {
        let info = word(of, 4)?;
        if !matches!(kind(info), STRUCT | UNION) {
            return None;
        }
        // With this flag the upper bits are the size of a bit field.
        let mask = if info >> 31 == 0 { u32::MAX } else { 0x00ff_ffff };
        of.get(HEAD..)?.as_chunks::<MEMBER>().0.iter().find_map(|member| {
            let (at, number, bits) = (word(member, 0)?, word(member, 4)?, word(member, 8)? & mask);
            let own = self.name(at);
            if own == name {
                return Some((bits, number));
            }
            let inner = self.plain(number).filter(|_| own.is_empty())?;
            let (inner_bits, number) = self.find(inner, name, nesting.checked_sub(1)?)?;
            Some((bits.checked_add(inner_bits)?, number))
        })
    }

    /// A type without qualifiers and other names.
    fn plain(&self, mut number: u32) -> Option<&'a [u8]> {
        for _ in 0..MAX_NESTING {
            let of = self.of(number)?;
            if !matches!(kind(word(of, 4)?), 8..=11 | 18) {
                return Some(of);
            }
            number = word(of, 8)?;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// `struct task_struct { int a; const struct thread thread; }`, `struct thread { union { struct { long uw; }; }; }`,
    /// `enum { first = 1, second = 2 }`.
    fn sample() -> Vec<u8> {
        let strings = b"\0task_struct\0a\0thread\0uw\0int\0first\0second\0";
        let (task, a, thread, uw, int, first, second) = (1, 13, 15, 22, 25, 29, 35);
        let info = |kind: u32, count: u32| kind << 24 | count;
        let types = words(
            &[
                &[int, info(1, 0), 4, 32][..],
                &[task, info(STRUCT, 2), 64, a, 1, 0, thread, 3, 128],
                &[0, info(10, 0), 4],
                &[thread, info(STRUCT, 1), 16, 0, 5, 64],
                &[0, info(UNION, 1), 8, 0, 6, 0],
                &[0, info(STRUCT, 1) | 1 << 31, 8, uw, 1, 7 << 24 | 32],
                &[0, info(ENUM, 2), 4, first, 1, second, 2],
            ]
            .concat(),
        );
        let mut bytes = words(&[0x0001_eb9f, 24, 0, types.len() as u32, types.len() as u32, strings.len() as u32]);
        bytes.extend(types);
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn members_are_found_through_names_qualifiers_and_nameless_structs() {
        let bytes = sample();
        let btf = Btf::parse(&bytes).expect("valid");
        assert_eq!(btf.member("task_struct", &["a"]), Some(0));
        assert_eq!(btf.member("task_struct", &["thread"]), Some(16));
        // 16 of the member, 8 of the union in it, 4 of the field.
        assert_eq!(btf.member("task_struct", &["thread", "uw"]), Some(28));
        assert_eq!(btf.member("task_struct", &["thread", "a"]), None);
        assert_eq!(btf.member("thread_struct", &["uw"]), None);
    }

    #[test]
    fn values_of_enumerations_are_found_by_their_names() {
        let bytes = sample();
        let btf = Btf::parse(&bytes).expect("valid");
        assert!(btf.enumerates("first") && btf.enumerates("second"));
        // The name of a member does not name a value.
        assert!(!btf.enumerates("uw") && !btf.enumerates("third"));
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let bytes = sample();
        let look = |bytes: &[u8]| {
            let _ =
                Btf::parse(bytes).map(|btf| (btf.member("task_struct", &["thread", "uw"]), btf.enumerates("third")));
        };
        (0..bytes.len()).for_each(|len| look(&bytes[..len]));
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] = 0xff;
            look(&bytes);
        }
    }
}
