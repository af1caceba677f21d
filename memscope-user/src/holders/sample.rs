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
mod tests {
    use super::*;
    use crate::holders::places::{self, Budget, FoundBlock, FoundPlace, NotLooked};
    use crate::holders::source::{Mapping, Source, Thread};
    use crate::model::HeldAs;

    /// The program's holders, by hand: a list in a dict, a key that is no name, a variable, a ring, none.
    #[test]
    fn holders_of_the_program() {
        let (sample, blocks) = program();
        let expected = [
            "__main__.cache['k'][0]",
            "__main__.cache['k'][1]",
            "__main__.last and __main__.cache['odd key']",
            "Ring",
            "Nothing",
        ];
        assert_eq!(sample.ask(&blocks), expected);
    }

    /// A program that is seen in one state up to the end of the first pass, and in another one behind that.
    #[derive(Debug)]
    struct Changing {
        states: [Image; 2],
        passes: std::sync::atomic::AtomicUsize,
    }

    impl Changing {
        fn now(&self) -> &Image {
            &self.states[self.passes.load(std::sync::atomic::Ordering::Relaxed).min(1)]
        }
    }

    impl Source for Changing {
        fn mappings(&self) -> &[Mapping] {
            self.states[0].mappings()
        }

        fn read(&self, address: u64, to: &mut [u8]) -> usize {
            self.now().read(address, to)
        }

        fn present(&self, mapping: &Mapping) -> Vec<(u64, u64)> {
            self.now().present(mapping)
        }

        fn symbols(&self, mapping: &Mapping) -> Option<Symbols> {
            self.now().symbols(mapping)
        }

        fn threads(&self) -> Vec<Thread> {
            self.now().threads()
        }

        fn is_same(&self) -> bool {
            self.passes.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            true
        }
    }

    /// The program with its list's items elsewhere and an old word with the address of a block, the program as it is, and its blocks.
    fn moved() -> ([Image; 2], Vec<u64>) {
        let [(mut moved, blocks), (mut whole, _)] = [program(), program()];
        for sample in [&mut moved, &mut whole] {
            let rest = sample.block(64);
            sample.image.put(rest + 24, blocks[0]);
            let (ty, own) = (sample.add_type("own.Pool", 32, 0), sample.block(32));
            sample.put_words(own, &[1, ty, rest, 0]);
            sample.module("extension", &[("rest", own)]);
        }
        // A count, items, and room for them.
        let words = moved.image.words();
        let mut places = (0..words).filter_map(|at| moved.image.place(at));
        let is_list = |place: &u64| [0, 16].map(|at| moved.image_word(place + at)) == [2, 4];
        let list = places.find(is_list).expect("the list");
        moved.image.put(list + 8, DEVICE);
        ([moved.image, whole.image], blocks)
    }

    /// The first pass meets a list with its items elsewhere, and finds no way from two tensors to the list.
    #[test]
    fn items_that_move_are_looked_at_again() {
        let changing = || {
            let (states, blocks) = moved();
            (Changing { states, passes: 0.into() }, blocks)
        };
        let (source, blocks) = changing();
        let asked =
            blocks[..2].iter().map(|address| Asked { address: *address, size_bytes: Some(512), allocated_at: None });
        let question = Question { which: Which::These(asked.collect()), paths: 3, keys: true };
        let found = look::look(&source, &question).expect("an answer");
        let paths: Vec<_> = found.groups.iter().flat_map(|group| &group.held_by).map(|holder| &holder.path).collect();
        assert_eq!(paths, ["__main__.cache['k'][*]"]);
        assert_eq!(source.passes.into_inner(), 2);
        let (source, blocks) = changing();
        let found = places::look(&source, &[place(&blocks[..2])], budget()).expect("an answer");
        assert_eq!(found.places[0].holders, [("__main__.cache['k'][*]".to_owned(), true)]);
        assert_eq!(source.passes.into_inner(), 2);
    }

    /// A program that a pass, which reads more than a page at a time, sees in another state, or with mappings from before.
    #[derive(Debug)]
    struct Late {
        in_passes: Option<Image>,
        at_once: Image,
        /// What it is with its mappings read again.
        renewed: Option<fn() -> Image>,
    }

    impl Source for Late {
        fn mappings(&self) -> &[Mapping] {
            self.at_once.mappings()
        }

        fn read(&self, address: u64, to: &mut [u8]) -> usize {
            let in_passes = self.in_passes.as_ref().filter(|_| to.len() > PAGE as usize);
            in_passes.unwrap_or(&self.at_once).read(address, to)
        }

        fn present(&self, mapping: &Mapping) -> Vec<(u64, u64)> {
            self.at_once.present(mapping)
        }

        fn symbols(&self, mapping: &Mapping) -> Option<Symbols> {
            self.at_once.symbols(mapping)
        }

        fn threads(&self) -> Vec<Thread> {
            self.at_once.threads()
        }

        fn is_same(&self) -> bool {
            true
        }

        fn renewed(&self) -> Option<Box<dyn Source>> {
            Some(Box::new(self.renewed?()))
        }
    }

    /// A list that grows faster than a pass takes: no pass finds the items at their list; reading the list and its items at once does.
    #[test]
    fn items_that_move_faster_than_a_pass_are_found() {
        let ([in_passes, at_once], blocks) = moved();
        let source = Late { in_passes: Some(in_passes), at_once, renewed: None };
        let found = places::look(&source, &[place(&blocks[..2])], budget()).expect("an answer");
        assert_eq!(found.places[0].holders, [("__main__.cache['k'][*]".to_owned(), true)]);
    }

    /// The second pass has the mappings of its own time: heaps grow.
    #[test]
    fn mappings_are_read_again() {
        let (_, blocks) = program();
        let source = Late { in_passes: None, at_once: Sample::new().image, renewed: Some(|| program().0.image) };
        let found = places::look(&source, &[place(&blocks[..2])], budget()).expect("an answer");
        assert_eq!(found.places[0].holders, [("__main__.cache['k'][*]".to_owned(), true)]);
        let asked = Asked { address: blocks[0], size_bytes: Some(512), allocated_at: None };
        let question = Question { which: Which::These(vec![asked]), paths: 1, keys: true };
        let found = look::look(&source, &question).expect("an answer");
        assert_eq!(found.groups[0].held_by[0].path, "__main__.cache['k'][0]");
    }

    fn budget() -> Budget {
        let time = std::time::Duration::from_secs(60);
        Budget { scan: time, search: time, longest: time, pointers: 1 << 20, keys: true }
    }

    fn place(blocks: &[u64]) -> Vec<(u64, u64)> {
        blocks.iter().map(|address| (*address, 512)).collect()
    }

    /// The same by place: each holder once, and which blocks it holds; a ring, and nothing.
    #[test]
    fn holders_of_places() {
        let (sample, blocks) = program();
        let asked = [place(&blocks[..2]), place(&blocks[2..])];
        let found = places::look(&sample.image, &asked, budget()).expect("an answer");
        let block = |address: u64, by: &[usize], is_garbage: bool| FoundBlock {
            address,
            by: by.to_vec(),
            is_garbage,
            held_as: None,
        };
        let holder = |path: &str| (path.to_owned(), true);
        let of_list = FoundPlace {
            holders: vec![holder("__main__.cache['k'][*]")],
            blocks: vec![block(blocks[0], &[0], false), block(blocks[1], &[0], false)],
        };
        let others = FoundPlace {
            holders: vec![holder("__main__.cache['odd key']"), holder("__main__.last")],
            blocks: vec![block(blocks[2], &[1, 0], false), block(blocks[3], &[], true), block(blocks[4], &[], false)],
        };
        assert_eq!((found.places, found.cut), (vec![of_list, others], None));
        let without = places::look(&sample.image, &asked, Budget { keys: false, ..budget() }).expect("an answer");
        assert_eq!(without.places[0].holders, [holder("__main__.cache[…][*]")]);
    }

    /// At the end of its time a look has what it found, and says that it is not all; without an interpreter there is none.
    #[test]
    fn looks_are_bounded() {
        let (sample, blocks) = program();
        let none = std::time::Duration::ZERO;
        let found = places::look(&sample.image, &[place(&blocks)], Budget { search: none, ..budget() });
        assert_eq!(found.expect("an answer").places, [FoundPlace::default()]);
        for late in [Budget { scan: none, ..budget() }, Budget { longest: none, ..budget() }] {
            let found = places::look(&sample.image, &[place(&blocks)], late).expect("an answer");
            assert_eq!(found.cut, Some(places::Cut::Time));
        }
        let empty = places::look(&Image::default(), &[place(&blocks)], budget());
        assert_eq!(empty, Err(NotLooked::NoPython(None)));
    }

    /// Left-overs in freed memory hold nothing: items behind the end of a list, keys that were never used, blocks that
    /// malloc has back.
    #[test]
    fn left_overs_hold_nothing() {
        let mut sample = Sample::new();
        let held = |sample: &mut Sample, at: u64| sample.tensor(DEVICE + at * 4096);
        let (behind, unused, freed) = (held(&mut sample, 0), held(&mut sample, 1), held(&mut sample, 2));
        let list = sample.list(&[0, behind]);
        sample.image.put(list + 16, 1);
        let dict = sample.dict(&[("a", list), ("b", unused)]);
        let table = sample.image_word(dict + 32);
        // One key of two is left.
        sample.put_words(table + 16, &[4, 1]);
        let other = sample.list(&[freed]);
        sample.module("__main__", &[("d", dict)]);
        let chunk = other - 32;
        // The next chunk marks this one as free.
        let size = sample.image_word(chunk + 8) & !7;
        let next = sample.image_word(chunk + size + 8);
        sample.image.put(chunk + size + 8, next & !1);
        let found = sample.ask(&[DEVICE, DEVICE + 4096, DEVICE + 8192]);
        assert!(found.iter().all(|found| found == "NoRoot" || found == "Ring"), "{found:?}");
    }

    /// A gradient, and a tensor that the graph of a loss keeps.
    #[test]
    fn tensors_of_autograd() {
        let mut sample = Sample::new();
        let storage = sample.cpp("N3c1011StorageImplE", &[1, DEVICE, DEVICE, 0]);
        let gradient = sample.cpp("N3c1010TensorImplE", &[1, storage, 0, 0]);
        let meta = sample.meta(gradient, 0);
        let weight = sample.tensor(DEVICE + 4096);
        let implementation = sample.image_word(weight + 24);
        sample.image.put(implementation + 24, meta);
        let saved = sample.cpp("N3c1011StorageImplE", &[1, DEVICE + 8192, DEVICE + 8192, 0]);
        let saved = sample.cpp("N3c1010TensorImplE", &[1, saved, 0, 0]);
        let power = sample.cpp("N5torch8autograd9generated12PowBackward0E", &[1, 0, saved]);
        let edges = sample.block(32);
        sample.image.put(edges, power);
        let mean = sample.cpp("N5torch8autograd9generated13MeanBackward0E", &[1, edges, edges + 16, edges + 16]);
        let loss_meta = sample.meta(0, mean);
        let loss = sample.tensor(DEVICE + 3 * 4096);
        let implementation = sample.image_word(loss + 24);
        sample.image.put(implementation + 24, loss_meta);
        let losses = sample.list(&[loss]);
        sample.module("__main__", &[("weight", weight), ("losses", losses)]);
        assert_eq!(
            sample.ask(&[DEVICE, DEVICE + 8192]),
            ["__main__.weight.grad", "__main__.losses[0] → MeanBackward0 → PowBackward0"]
        );
        // What each is for, in blocks of 512 bytes: the tensor in a list is for nothing that is known.
        let asked = |at: u64| Asked { address: DEVICE + at * 4096, size_bytes: Some(512), allocated_at: None };
        let which = Which::These((0..4).map(asked).collect());
        let found = look::look(&sample.image, &Question { which, paths: 3, keys: true }).expect("an answer");
        let purposes: Vec<_> = found.purposes.iter().map(|it| (it.held_as, it.sum.blocks, it.sum.size_bytes)).collect();
        let expected = [(None, 2, 1024), (Some(HeldAs::Activation), 1, 512), (Some(HeldAs::Gradient), 1, 512)];
        assert_eq!(purposes, expected);
    }

    /// Functions of a graph are held by the words of a vector, up to its end, and by nothing else where they count no more.
    #[test]
    fn left_overs_of_graphs_hold_nothing() {
        let mut sample = Sample::new();
        let function = |sample: &mut Sample, at: u64, count: u64| {
            let address = DEVICE + at * 4096;
            let storage = sample.cpp("N3c1011StorageImplE", &[1, address, address, 0]);
            let saved = sample.cpp("N3c1010TensorImplE", &[1, storage, 0, 0]);
            sample.cpp("N5torch8autograd9generated12PowBackward0E", &[1 << 32 | count, 0, saved])
        };
        let [next, behind, apart, counted] = [0, 1, 2, 3].map(|at| function(&mut sample, at, 1));
        let twice = function(&mut sample, 4, 2);
        let (edges, others) = (sample.block(32), sample.block(32));
        for (place, to) in [(edges, next), (edges + 8, counted), (edges + 16, behind), (others, apart)] {
            sample.image.put(place, to);
        }
        let more = sample.block(32);
        sample.image.put(more, twice);
        let words = [1 << 32 | 1, edges, edges + 16, edges + 16, others, 0, 0, more, more + 8, more + 8];
        let mean = sample.cpp("N5torch8autograd9generated13MeanBackward0E", &words);
        let graph = |sample: &mut Sample, mean: u64| {
            let meta = sample.meta(0, mean);
            let loss = sample.tensor(DEVICE + 9 * 4096 + mean);
            let implementation = sample.image_word(loss + 24);
            sample.image.put(implementation + 24, meta);
            loss
        };
        let loss = graph(&mut sample, mean);
        // Words in a function without a type, as of a queue: to one that counts the vector's word alone, and to one that counts one more.
        let other = sample.cpp("N5torch8autograd6EngineE", &[0, counted, twice]);
        let other_loss = graph(&mut sample, other);
        sample.module("__main__", &[("loss", loss), ("other", other_loss)]);
        let blocks = [0, 1, 2, 3, 4].map(|at| DEVICE + at * 4096);
        let which = |at: u64| Which::These(vec![Asked { address: at, size_bytes: Some(512), allocated_at: None }]);
        let paths = blocks.map(|at| {
            let question = Question { which: which(at), paths: 3, keys: true };
            let found = look::look(&sample.image, &question).expect("an answer");
            found.groups.into_iter().flat_map(|group| group.held_by).map(|way| way.path).collect::<Vec<_>>()
        });
        let (mean, engine) = ("__main__.loss → MeanBackward0 → PowBackward0", "__main__.other → Engine → PowBackward0");
        assert_eq!(paths.clone().map(|paths| paths.len()), [1, 0, 0, 1, 2], "{paths:?}");
        assert_eq!([&paths[0][0], &paths[3][0]], [mean; 2]);
        assert_eq!([&paths[4][0], &paths[4][1]], [engine, mean]);
    }

    /// A function has room for two inputs: what is in the second one's, if it has one alone, is old.
    #[test]
    fn room_for_inputs_holds_nothing() {
        const VECTOR: usize = 0x100 / 8;
        let held = |inputs: u64| {
            let mut sample = Sample::new();
            let storage = sample.cpp("N3c1011StorageImplE", &[1, DEVICE, DEVICE, 0]);
            let saved = sample.cpp("N3c1010TensorImplE", &[1, storage, 0, 0]);
            let mut words = [0; VECTOR + 2 + 2 * 12 - 1];
            // A word of the second input: 96 bytes for each, behind the two words of the vector.
            words[VECTOR - 1 + 2 + 12 + 3] = saved;
            let function = sample.cpp("N5torch8autograd9generated12PowBackward0E", &words);
            for (at, word) in [(0x100, function + 0x110), (0x108, 2 << 32 | inputs), (0x118, function + 0x128)] {
                sample.image.put(function + at, word);
            }
            let meta = sample.meta(0, function);
            let loss = sample.tensor(DEVICE + 4096);
            let implementation = sample.image_word(loss + 24);
            sample.image.put(implementation + 24, meta);
            sample.module("__main__", &[("loss", loss)]);
            sample.ask(&[DEVICE]).remove(0)
        };
        assert_eq!([held(1), held(2)], ["NoRoot", "__main__.loss → PowBackward0"]);
    }

    /// Left-overs in objects of C++: sizes of a tensor without any, and the text of an empty name. Each word holds when it lies where
    /// its field is.
    #[test]
    fn left_overs_of_tensors_hold_nothing() {
        let mut sample = Sample::new();
        let storage = |sample: &mut Sample, at: u64| {
            sample.cpp("N3c1011StorageImplE", &[1, DEVICE + at * 4096, DEVICE + at * 4096, 0])
        };
        let tensor = |sample: &mut Sample, at: u64| {
            let storage = storage(sample, at);
            sample.cpp("N3c1010TensorImplE", &[1, storage, 0, 0])
        };
        let [gradient, other, named] = [0, 1, 2].map(|at| tensor(&mut sample, at));
        let meta = sample.meta(gradient, 0);
        // The function that made a tensor, in the text of a name.
        let power = sample.cpp("N5torch8autograd9generated12PowBackward0E", &[1, 0, named]);
        let named_meta = sample.meta(0, 0);
        let step_storage = storage(&mut sample, 3);
        let step = sample.cpp("N3c1010TensorImplE", &[1, 1, step_storage, named_meta, 0, 0, 0, 0, 0, 1, 0, 0]);
        let object = sample.object(Of::Tensor, &[0, step, 0, 0, 0, 0]);
        sample.module("__main__", &[("step", object)]);
        let blocks = [0, 1, 2, 3].map(|at| DEVICE + at * 4096);
        let held = |sample: &Sample| {
            let found = sample.ask(&blocks);
            found.iter().map(|path| path.starts_with("__main__.step")).collect::<Vec<_>>()
        };
        assert_eq!(held(&sample), [false, false, false, true]);
        for (place, value, expected) in [
            // The last of ten sizes and strides, and the field itself.
            (step + 80, meta, [false, false, false, true]),
            (step + 32, meta, [true, false, false, true]),
            (named_meta + 32, other, [false, false, false, true]),
            (named_meta + 40, other, [false, true, false, true]),
            (named_meta + 24, power, [false, false, false, true]),
            (named_meta + 48, power, [false, false, true, true]),
        ] {
            let old = sample.image_word(place);
            sample.image.put(place, value);
            assert_eq!(held(&sample), expected, "{:#x}", place - step);
            sample.image.put(place, old);
        }
    }

    /// Data of a tensor on the host are numbers, even where one of them is the address of an object; data that an object lends are held by it.
    #[test]
    fn host_data_hold_nothing() {
        let mut sample = Sample::new();
        let storage = sample.cpp("N3c1011StorageImplE", &[1, DEVICE, DEVICE, 0]);
        let device = sample.cpp("N3c1010TensorImplE", &[1, storage, 0, 0]);
        let data = sample.block(64);
        sample.image.put(data + 16, device);
        let storage = sample.cpp("N3c1011StorageImplE", &[1, 1, data, data, 0]);
        let host = sample.cpp("N3c1010TensorImplE", &[1, storage, 0, 0]);
        let object = sample.object(Of::Tensor, &[0, host, 0, 0, 0, 0]);
        sample.module("__main__", &[("host", object)]);
        let is_held = |sample: &Sample| sample.ask(&[DEVICE])[0].starts_with("__main__.host");
        assert!(!is_held(&sample));
        // The same block as the context of memory that lies elsewhere.
        sample.image.put(storage + 24, 0x7000_0000_1000);
        assert!(is_held(&sample));
    }

    /// A deque of three blocks: its items are in all of them. A block that the one before it no longer leads to is none of its.
    #[test]
    fn items_in_the_middle_of_a_deque() {
        let mut sample = Sample::new();
        let ty = sample.add_type("collections.deque", 232, COLLECTED);
        let tensors: Vec<u64> = (0..3).map(|at| sample.tensor(DEVICE + at * 4096)).collect();
        let blocks: Vec<u64> = (0..3).map(|_| sample.block(66 * 8)).collect();
        // A link to the block before, 64 items, a link to the next one.
        let next = |block: u64| block + 65 * 8;
        for pair in blocks.windows(2) {
            sample.image.put(next(pair[0]), pair[1]);
            sample.image.put(pair[1], pair[0]);
        }
        // The last item of the first block, one in the middle, the first item of the last block.
        for (block, (at, tensor)) in blocks.iter().zip([64, 30, 1].into_iter().zip(tensors)) {
            sample.image.put(block + at * 8, tensor);
        }
        let deque = sample.block(16 + 232) + 16;
        sample.put_words(deque, &[1, ty, 66, blocks[0], blocks[2], 63, 0]);
        sample.module("__main__", &[("window", deque)]);
        let addresses = [DEVICE, DEVICE + 4096, DEVICE + 8192];
        assert_eq!(sample.ask(&addresses), ["__main__.window[deque item]"; 3]);
        sample.image.put(next(blocks[0]), blocks[2]);
        assert_eq!(sample.ask(&addresses)[1], "NoRoot");
    }

    /// A block of a deque where a text was before: its type is left, and the word before leads to the next free block. With a heap at low
    /// addresses that word is as small as a count of references.
    #[test]
    fn a_freed_object_is_none() {
        const LOW: u64 = 0x3a00_0000;
        let mut sample = Sample::new();
        sample.image.anonymous(LOW, PAGE);
        let ty = sample.add_type("collections.deque", 232, COLLECTED);
        let (tensor, block) = (sample.tensor(DEVICE), sample.block(66 * 8));
        sample.put_words(block, &[LOW + 0x440, sample.types[Of::Text as usize], tensor]);
        let deque = sample.block(16 + 232) + 16;
        sample.put_words(deque, &[1, ty, 1, block, block, 1, 1]);
        sample.module("__main__", &[("queue", deque)]);
        assert_eq!(sample.ask(&[DEVICE]), ["__main__.queue[deque item]"]);
        // As many references would be an object's.
        sample.image.put(block, LOW + 0x441);
        assert_eq!(sample.ask(&[DEVICE]), ["NoRoot"]);
    }

    /// A tensor's implementation points back at its object; only with its lowest bit set does it own that. The list that holds the object is
    /// not found, and that is no garbage.
    #[test]
    fn borrowed_objects_are_no_ring() {
        let mut sample = Sample::new();
        let tensor = sample.tensor(DEVICE);
        let implementation = sample.image_word(tensor + 24);
        // Behind the storage and autograd's data: an interpreter, and the object.
        let field = implementation + 32;
        sample.image.put(field, tensor);
        sample.module("__main__", &[]);
        assert_eq!(sample.ask(&[DEVICE]), ["NoRoot"]);
        sample.image.put(field, tensor | 1);
        // One reference each, and those are the two.
        assert_eq!(sample.ask(&[DEVICE]), ["Ring"]);
        // Another one, of an unknown place.
        sample.image.put(implementation + 8, 2);
        assert_eq!(sample.ask(&[DEVICE]), ["NoRoot"]);
    }

    /// Fixed changes of all kinds, many times: each answer ends.
    #[test]
    fn changed_programs_are_answered() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for _ in 0..20 {
            let (mut sample, blocks) = program();
            let words = sample.image.words();
            for _ in 0..40 {
                let place = sample.image.place(next() as usize % words).expect("a place");
                let value = if next() % 2 == 0 {
                    sample.image.place(next() as usize % words).expect("a place")
                } else {
                    next()
                };
                sample.image.put(place, value);
            }
            assert_eq!(sample.ask(&blocks).len(), blocks.len());
        }
    }
}
