//! The class of a C++ object, by its first word: that points into a table of virtual functions, and in front of that
//! lies the description of the type, with its name. This works in stripped libraries.

use std::{cell::RefCell, fmt, rc::Rc};

use cpp_demangle::{DemangleOptions, ParseOptions, Symbol};

use super::{memory::Memory, source::ADDRESS_END};
use crate::hash::HashMap;

/// Longest mangled name that is read.
const MAX_MANGLED: usize = 1024;
/// Longest name that is kept.
const MAX_NAME: usize = 300;
/// Most tables kept; beyond, they are read each time.
const MAX_KNOWN: usize = 1 << 16;

/// Class names by table.
#[derive(Debug)]
pub(super) struct Classes<'a> {
    memory: &'a Memory<'a>,
    known: RefCell<HashMap<u64, Option<Rc<str>>>>,
}

impl<'a> Classes<'a> {
    pub(super) fn new(memory: &'a Memory<'a>) -> Self {
        Self { memory, known: RefCell::default() }
    }

    /// The class of objects that begin with this word.
    pub(super) fn class(&self, word: u64) -> Option<Rc<str>> {
        if !word.is_multiple_of(8) || word >= ADDRESS_END || !self.is_constant(word) {
            return None;
        }
        if let Some(known) = self.known.borrow().get(&word) {
            return known.clone();
        }
        let class = self.mangled(word).map(|name| Rc::from(demangled(&name)));
        let mut known = self.known.borrow_mut();
        if known.len() < MAX_KNOWN {
            known.insert(word, class.clone());
        }
        class
    }

    /// Memory of a library that the program does not change: a file, or made read-only by the loader.
    fn is_constant(&self, address: u64) -> bool {
        self.memory.mapping(address).is_some_and(|mapping| {
            !mapping.executable && (mapping.is_file() || (mapping.is_anonymous() && !mapping.writable))
        })
    }

    /// `offset to top, type` in front of the functions; of the type, `its own table, name`.
    fn mangled(&self, table: u64) -> Option<String> {
        /// Flag: names are compared by their address.
        const BY_ADDRESS: u64 = 1 << 63;
        let head = self.memory.words(table.checked_sub(16)?, 2)?;
        let (to_top, type_info) = (head[0], head[1]);
        if to_top != 0 || !type_info.is_multiple_of(8) || !self.is_constant(type_info) {
            return None;
        }
        let words = self.memory.words(type_info, 2)?;
        let (own_table, name) = (words[0], words[1] & !BY_ADDRESS);
        // Linkers without `-z separate-code` put names beside the code.
        let has_name = self.memory.mapping(name).is_some_and(|mapping| mapping.is_file() && !mapping.writable);
        if !self.is_constant(own_table) || !(has_name || self.is_constant(name)) {
            return None;
        }
        let name = self.memory.text(name, MAX_MANGLED)?;
        let plain = name.trim_start_matches('*');
        let is_class = plain.len() > 2
            && (plain.starts_with(['N', 'S']) || plain.as_bytes().first().is_some_and(u8::is_ascii_digit));
        (is_class && plain.bytes().all(|byte| byte.is_ascii_graphic())).then(|| plain.to_owned())
    }
}

/// The demangled name of a type, or the mangled one if that fails.
pub(super) fn demangled(mangled: &str) -> String {
    /// Names of types are parts of symbols; this one stands for the name of a type.
    const PREFIX: &str = "typeinfo name for ";
    let text = spelt(&format!("_ZTS{mangled}"));
    text.as_deref().and_then(|text| text.strip_prefix(PREFIX)).unwrap_or(mangled).chars().take(MAX_NAME).collect()
}

/// A variable's name as the program has it.
pub(super) fn demangled_symbol(mangled: &str) -> String {
    let text = mangled.starts_with("_Z").then(|| spelt(mangled)).flatten();
    text.as_deref().unwrap_or(mangled).chars().take(MAX_NAME).collect()
}

/// A short name can stand for one of any length, so writing ends at a bound.
fn spelt(symbol: &str) -> Option<String> {
    const RECURSION: u32 = 64;
    let parsed = Symbol::new_with_options(symbol, &ParseOptions::default().recursion_limit(RECURSION)).ok()?;
    let mut text = Bounded(String::new());
    let options = DemangleOptions::default().recursion_limit(RECURSION);
    let written = parsed.structured_demangle(&mut text, &options);
    (written.is_ok() || text.0.len() > MAX_NAME).then_some(text.0)
}

struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.push_str(text);
        if self.0.len() > 2 * MAX_NAME { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holders::image::Image;

    /// By the rules of the C++ ABI, as `c++filt` shows them.
    #[test]
    fn names_of_types() {
        assert_eq!(demangled("N3c1010TensorImplE"), "c10::TensorImpl");
        assert_eq!(
            demangled("N5torch8autograd9generated13MeanBackward0E"),
            "torch::autograd::generated::MeanBackward0"
        );
        assert_eq!(demangled("St6vectorIiSaIiEE"), "std::vector<int, std::allocator<int> >");
        assert_eq!(demangled("4Pool"), "Pool");
        assert_eq!(demangled("99short"), "99short");
        assert_eq!(demangled_symbol("_ZN3c104cuda9allocatorE"), "c10::cuda::allocator");
        assert_eq!(demangled_symbol("stdin"), "stdin");
    }

    const TABLE: u64 = 0x7f00_0000_0000;
    const TYPE: u64 = TABLE + 0x100;
    const NAME: u64 = TABLE + 0x200;

    fn class(change: impl FnOnce(&mut Image)) -> Option<String> {
        let mut image = Image::default();
        image.file(TABLE, 4096, "/lib/libx.so");
        image.anonymous(0x5555_0000_0000, 4096);
        image.put(TABLE + 8, TYPE);
        image.put(TYPE, TABLE + 0x300);
        image.put(TYPE + 8, NAME);
        image.put_bytes(NAME, b"4Pool\0");
        change(&mut image);
        Classes::new(&Memory::new(&image)).class(TABLE + 16).map(|class| class.to_string())
    }

    /// A table, its type and its name, by hand; and each mistake that makes it none.
    #[test]
    fn classes_by_their_tables() {
        assert_eq!(class(|_| {}).as_deref(), Some("Pool"));
        // Of another base class.
        assert_eq!(class(|image| image.put(TABLE, 0u64.wrapping_sub(8))), None);
        assert_eq!(class(|image| image.put(TABLE + 8, 0x5555_0000_0000)), None);
        assert_eq!(class(|image| image.put(TYPE, 0)), None);
        assert_eq!(class(|image| image.put(TYPE + 8, 0x5555_0000_0000)), None);
        assert_eq!(class(|image| image.put_bytes(NAME, b"4Po\x1bl\0")), None);
        assert_eq!(class(|image| image.put_bytes(NAME, &[b'4'; 3000])), None);
    }
}
