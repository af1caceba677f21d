use std::time::{Duration, Instant};

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
    // Much memory takes long to read; the search has its own time.
    let begin = Instant::now().checked_sub(Duration::from_secs(61)).expect("a machine that runs for a minute");
    let late = look::look_since(&moved().0[1], &question, begin).expect("an answer");
    assert_eq!((late.groups.len(), late.notes.len()), (1, 0), "{late:#?}");
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
    let time = Duration::from_secs(60);
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
    let none = Duration::ZERO;
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
            let value =
                if next() % 2 == 0 { sample.image.place(next() as usize % words).expect("a place") } else { next() };
            sample.image.put(place, value);
        }
        assert_eq!(sample.ask(&blocks).len(), blocks.len());
    }
}
