//! A small process by hand: an interpreter like `CPython` 3.11 with a module, dicts, lists, a tensor and its storage.
//! Tests query it; the fuzzer changes words of it.

use super::{
    heap,
    image::Image,
    look::{self, Asked, Question, Which},
    source::{Backing, PAGE},
    symbols::{Symbol, Symbols},
};

const LIBRARY: u64 = 0x7f10_0000_0000;
const LIBRARY_BYTES: u64 = 8 * PAGE;
const HEAP: u64 = 0x5555_0000_0000;
const HEAP_BYTES: u64 = 8 * PAGE;
pub(super) const DEVICE: u64 = 0x12c1_0000_0000;
/// In the library: types, ...
const TYPES: u64 = LIBRARY + 0x1000;
const TYPE_BYTES: u64 = 0x200;
/// ... the runtime, and texts behind it.
const RUNTIME: u64 = LIBRARY + 0x4000;
const TEXTS: u64 = LIBRARY + 0x5000;

const COLLECTED: u64 = 1 << 14;
const LIST: u64 = 1 << 25;
const TEXT: u64 = 1 << 28;
const DICT: u64 = 1 << 29;
const CLASS: u64 = 1 << 31;

/// The process while it is made.
#[derive(Debug, Default)]
pub(super) struct Sample {
    pub(super) image: Image,
    next_type: u64,
    next_text: u64,
    next_chunk: u64,
    types: [u64; 6],
}

/// Types that objects are made of, by their place in the list.
#[derive(Clone, Copy)]
enum Of {
    Class,
    Text,
    List,
    Dict,
    Module,
    Tensor,
}

impl Sample {
    pub(super) fn new() -> Self {
        let mut sample = Self { next_type: TYPES, next_text: TEXTS, next_chunk: HEAP, ..Self::default() };
        sample.image.map(Image::plain(LIBRARY, LIBRARY_BYTES, Backing::File, "/usr/lib/libpython3.11.so.1.0"));
        sample.image.file(LIBRARY + (1 << 30), PAGE, "/lib/libc.so.6");
        sample.image.heap(HEAP, HEAP_BYTES);
        sample.types = [
            sample.add_type("type", 880, CLASS | COLLECTED),
            sample.add_type("str", 72, TEXT),
            sample.add_type("list", 40, LIST | COLLECTED),
            sample.add_type("dict", 48, DICT | COLLECTED),
            sample.add_type("module", 104, COLLECTED),
            sample.add_type("Tensor", 64, COLLECTED),
        ];
        let symbol = |name: &str, address: u64| Symbol { vaddr: address - LIBRARY, size_bytes: 8, name: name.into() };
        let mut objects = vec![
            symbol("PyType_Type", sample.types[Of::Class as usize]),
            symbol("PyUnicode_Type", sample.types[Of::Text as usize]),
            symbol("PyList_Type", sample.types[Of::List as usize]),
            symbol("_PyRuntime", RUNTIME),
        ];
        objects.sort_unstable();
        let symbols = Symbols { objects, first_vaddr: 0, end_vaddr: LIBRARY_BYTES };
        sample.image.set_symbols("/usr/lib/libpython3.11.so.1.0", symbols);
        sample
    }

    pub(super) fn put_words(&mut self, address: u64, words: &[u64]) {
        for (at, word) in (0..).zip(words) {
            self.image.put(address + at * 8, *word);
        }
    }

    fn add_text(&mut self, text: &str) -> u64 {
        let address = self.next_text;
        self.image.put_bytes(address, text.as_bytes());
        self.next_text += (text.len() as u64 + 1).next_multiple_of(8);
        address
    }

    pub(super) fn add_type(&mut self, name: &str, basic_size: u64, flags: u64) -> u64 {
        let address = self.next_type;
        self.next_type += TYPE_BYTES;
        let name = self.add_text(name);
        self.put_words(address, &[1, TYPES, 0, name, basic_size, 0]);
        self.image.put(address + 21 * 8, flags);
        address
    }

    /// A block of the heap, as malloc hands it out.
    pub(super) fn block(&mut self, bytes: u64) -> u64 {
        let size = (bytes + 8).next_multiple_of(16).max(32);
        let chunk = self.next_chunk;
        self.image.put(chunk + 8, size | 1);
        self.next_chunk += size;
        self.image.put(self.next_chunk + 8, (HEAP + HEAP_BYTES - self.next_chunk) | 1);
        chunk + 16
    }

    /// An object with the collector's words in front.
    fn object(&mut self, of: Of, fields: &[u64]) -> u64 {
        let bytes = 8 * fields.len() as u64 + 16;
        let object = self.block(bytes + 16) + 16;
        self.put_words(object, &[1, self.types[of as usize]]);
        self.put_words(object + 16, fields);
        object
    }

    pub(super) fn text(&mut self, text: &str) -> u64 {
        const COMPACT_ASCII: u64 = 1 << 2 | 1 << 5 | 1 << 6;
        let object = self.block(48 + text.len() as u64 + 25);
        let ty = self.types[Of::Text as usize];
        self.put_words(object, &[1, ty, text.len() as u64, u64::MAX, COMPACT_ASCII, 0]);
        self.image.put_bytes(object + 48, text.as_bytes());
        object
    }

    pub(super) fn list(&mut self, items: &[u64]) -> u64 {
        let place = self.block(8 * items.len() as u64 + 16);
        self.put_words(place, items);
        self.object(Of::List, &[items.len() as u64, place, items.len() as u64 + 2])
    }

    /// A dict of up to five keys.
    pub(super) fn dict(&mut self, items: &[(&str, u64)]) -> u64 {
        const LOG_SIZE: u64 = 3;
        const ROOM: u64 = 5;
        let used = items.len() as u64;
        let table = self.block(32 + 8 + ROOM * 24);
        self.put_words(table, &[1, LOG_SIZE | LOG_SIZE << 8, ROOM - used, used]);
        for (at, (key, value)) in (0..).zip(items) {
            let key = self.text(key);
            self.put_words(table + 40 + at * 24, &[0x1234, key, *value]);
        }
        self.object(Of::Dict, &[used, 0, table, 0])
    }

    pub(super) fn module(&mut self, name: &str, items: &[(&str, u64)]) -> u64 {
        let dict = self.dict(items);
        let name = self.text(name);
        self.object(Of::Module, &[dict, 0, 0, 0, name, 0, 0, 0, 0, 0, 0])
    }

    /// An object of C++: a class with its table in the library.
    pub(super) fn cpp(&mut self, mangled: &str, fields: &[u64]) -> u64 {
        let name = self.add_text(mangled);
        let table = self.next_text;
        self.next_text += 48;
        self.put_words(table, &[0, table + 24, 0, table, name]);
        let object = self.block(8 * fields.len() as u64 + 8);
        self.image.put(object, table + 16);
        self.put_words(object + 8, fields);
        object
    }

    /// A tensor on a block of the device.
    pub(super) fn tensor(&mut self, address: u64) -> u64 {
        let storage = self.cpp("N3c1011StorageImplE", &[1, address, address, 0]);
        let implementation = self.cpp("N3c1010TensorImplE", &[1, storage, 0, 0]);
        self.tensor_of(implementation)
    }

    /// The object of Python for an implementation.
    pub(super) fn tensor_of(&mut self, implementation: u64) -> u64 {
        self.object(Of::Tensor, &[0, implementation, 0, 0, 0, 0])
    }

    /// Autograd's data of a tensor: an empty name with its text inside, the gradient, the function that made it.
    #[cfg(test)]
    fn meta(&mut self, gradient: u64, function: u64) -> u64 {
        let meta = self.cpp("N5torch8autograd12AutogradMetaE", &[0, 0, 0, 0, gradient, function, 0]);
        self.image.put(meta + 8, meta + 24);
        meta
    }

    /// Paths of each block, and states of those without.
    pub(super) fn ask(&self, addresses: &[u64]) -> Vec<String> {
        addresses.iter().map(|address| self.ask_one(*address)).collect()
    }

    /// The answer about all blocks; panics without one.
    #[cfg(test)]
    pub(super) fn ask_all(&self) -> super::answer::Holders {
        look::look(&self.image, &Question { which: Which::All, paths: 3, keys: true }).expect("an answer")
    }

    fn ask_one(&self, address: u64) -> String {
        let which = Which::These(vec![Asked { address, size_bytes: Some(512), allocated_at: None }]);
        let question = Question { which, paths: 3, keys: true };
        let groups = look::look(&self.image, &question).map(|found| found.groups).unwrap_or_default();
        let Some(group) = groups.first() else { return String::new() };
        let mark = |sure: bool| if sure { "" } else { "?" };
        let paths = group.held_by.iter().map(|holder| format!("{}{}", mark(holder.is_sure), holder.path));
        let paths: Vec<String> = paths.collect();
        if paths.is_empty() { format!("{:?}", group.state) } else { paths.join(" and ") }
    }
}

/// Blocks that the program holds in different ways, each at an address of its own.
pub(super) fn program() -> (Sample, Vec<u64>) {
    let mut sample = Sample::new();
    let blocks: Vec<u64> = (0..5).map(|at| DEVICE + at * 4096).collect();
    let first = sample.tensor(blocks[0]);
    let second = sample.tensor(blocks[1]);
    let shared = sample.tensor(blocks[2]);
    let ring = sample.tensor(blocks[3]);
    let list = sample.list(&[first, second]);
    let cache = sample.dict(&[("k", list), ("odd key", shared)]);
    sample.module("__main__", &[("cache", cache), ("last", shared)]);
    // A list that contains itself.
    let alone = sample.list(&[ring, 0]);
    let items = alone + 24;
    let place = sample.image_word(items);
    sample.image.put(place + 8, alone);
    (sample, blocks)
}

impl Sample {
    pub(super) fn image_word(&self, address: u64) -> u64 {
        word(&self.image, address)
    }
}

fn word(image: &Image, address: u64) -> u64 {
    let mut bytes = [0; 8];
    super::source::Source::read(image, address, &mut bytes);
    u64::from_le_bytes(bytes)
}

/// Queries the program, and the heaps of other allocators, after some words of each were changed: each change has a
/// place, a kind and a value.
#[cfg_attr(not(feature = "fuzzing"), expect(dead_code, reason = "the fuzzer's"))]
pub(super) fn changed(bytes: &[u8]) {
    let (mut sample, blocks) = program();
    change(&mut sample.image, bytes);
    assert!(sample.ask(&blocks).len() <= blocks.len());
    for mut image in heap::samples() {
        change(&mut image, bytes);
        heap::look_at_all(&image);
    }
}

fn change(image: &mut Image, bytes: &[u8]) {
    const MAX_CHANGES: usize = 200;
    let words = image.words();
    let (changes, _) = bytes.as_chunks::<12>();
    for change in changes.iter().take(MAX_CHANGES) {
        let [a, b, c, way, rest @ ..] = *change;
        let Some(place) = image.place(usize::from_le_bytes([a, b, c, 0, 0, 0, 0, 0]) % words) else { continue };
        let value = u64::from_le_bytes(rest);
        let old = word(image, place);
        let new = match way % 4 {
            0 => value,
            1 => image.place(value as usize % words).unwrap_or(value),
            2 => old.wrapping_add(value),
            _ => old ^ 1 << (value % 64),
        };
        image.put(place, new);
    }
}

#[cfg(test)]
mod tests;
