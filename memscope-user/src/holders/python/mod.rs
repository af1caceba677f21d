//! `CPython`'s objects as bytes: types, dicts, frames, names. Versions 3.8 to 3.14; other interpreters are refused by name.

mod dict;
mod frames;
mod layout;
mod types;
mod value;

use std::{
    cell::{Ref, RefCell},
    rc::Rc,
};

use self::frames::Running;
pub(super) use self::{
    dict::{Keys, Part},
    frames::{Frame, Variable},
    layout::{Layout, of_object, of_type},
    types::{Builtin, Type},
};
use super::{
    heap::Block,
    memory::Memory,
    pointers::{Limits, UnaskedType},
    source::{Mapping, Source},
    symbols::{DEBUG_PYTHON, Symbols},
};
use crate::{
    hash::HashMap,
    locate::python::offsets::{self, Offsets, TABLE_BYTES},
};

/// Types of objects that hold no others.
const SCALARS: [&str; 5] = ["PyBytes_Type", "PyComplex_Type", "PyFloat_Type", "PyLong_Type", "PyUnicode_Type"];
/// Types of objects that the collector knows: only its lists lead to their heads.
const COLLECTED: [&str; 7] =
    ["PyCell_Type", "PyDict_Type", "PyFunction_Type", "PyList_Type", "PyMethod_Type", "PySet_Type", "PyTuple_Type"];
/// Bytes of the collector's words in front of an object.
const COLLECTORS: u64 = 16;
/// Files that may be an interpreter and are looked into.
const MAX_FILES: usize = 16;

/// The interpreter of a process.
#[derive(Debug)]
pub(super) struct Python<'a> {
    memory: &'a Memory<'a>,
    pub(super) layout: Layout,
    type_type: u64,
    str_type: u64,
    pub(super) list_type: Option<u64>,
    /// Types of objects that no path leads through, and of those that the collector knows, with the distance of the type's word from the start; sorted.
    unasked: Vec<UnaskedType>,
    runtime: u64,
    types: RefCell<HashMap<u64, Option<Rc<Type>>>>,
    running: RefCell<Running>,
}

impl<'a> Python<'a> {
    /// Finds the interpreter; the error is why an existing one cannot be read.
    pub(super) fn find(memory: &'a Memory<'a>) -> Result<Option<Self>, String> {
        let source = memory.source();
        let mut seen: Vec<&str> = Vec::new();
        let files = source.mappings().iter().enumerate().filter(|(at, mapping)| {
            mapping.is_file() && mapping.file_offset == 0 && (*at == 0 || may_be_python(mapping.file_name()))
        });
        for (_, mapping) in files {
            if seen.len() >= MAX_FILES || seen.contains(&mapping.name.as_str()) {
                continue;
            }
            seen.push(&mapping.name);
            let Some(symbols) = source.symbols(mapping) else { continue };
            if let Some(addresses) = Addresses::of(&symbols, mapping) {
                return Self::new(memory, mapping, &addresses).map(Some);
            }
        }
        Ok(None)
    }

    fn new(memory: &'a Memory<'a>, mapping: &Mapping, addresses: &Addresses) -> Result<Self, String> {
        let name = mapping.file_name();
        let number = addresses.version.and_then(|at| memory.half(at));
        let number = number.map(|number| offsets::minor(number.into())).transpose()?;
        let Some(minor) = number.or_else(|| minor_of_name(name)) else {
            return Err(format!("the version of `{}` is not known", name.escape_debug()));
        };
        if addresses.is_debug {
            return Err(format!("it is a debug build of Python 3.{minor}, which is not supported"));
        }
        let structs = structs(memory, minor, addresses.runtime)?;
        let python = Self {
            memory,
            layout: Layout { minor, structs },
            type_type: addresses.type_type,
            str_type: addresses.str_type,
            list_type: addresses.list_type,
            unasked: addresses.unasked.clone(),
            runtime: addresses.runtime,
            types: RefCell::default(),
            running: RefCell::default(),
        };
        python.forget();
        Ok(python)
    }

    /// Limits of a pass over a process with this interpreter.
    pub(super) fn limits(python: Option<&Self>) -> Limits<'_> {
        let unasked = python.map_or(&[][..], |python| &python.unasked);
        Limits { of_type: python.and_then(|python| python.list_type), unasked, ..Limits::default() }
    }

    /// Reads again what changes while the program runs.
    pub(super) fn forget(&self) {
        let running = self.read_running();
        *self.running.borrow_mut() = running;
    }

    /// Frames that run, by address.
    pub(super) fn frames(&self) -> Ref<'_, [Frame]> {
        Ref::map(self.running.borrow(), |running| running.frames.as_slice())
    }

    /// What `pthread_self` gives in each thread.
    pub(super) fn threads(&self) -> Ref<'_, [u64]> {
        Ref::map(self.running.borrow(), |running| running.threads.as_slice())
    }

    /// The frame with a place among its variables and values.
    pub(super) fn frame_at(&self, place: u64) -> Option<Frame> {
        let frames = self.frames();
        let behind = frames.partition_point(|frame| frame.start <= place);
        frames.get(behind.checked_sub(1)?).copied().filter(|frame| place < frame.end)
    }

    /// The object at the start of a block: at its start, behind the collector's two words, or behind two more where the
    /// interpreter manages its dict. Its type has to agree.
    pub(super) fn object(&self, block: &Block) -> Option<(u64, Rc<Type>)> {
        const WORDS: u64 = 16;
        [0, WORDS, 2 * WORDS].into_iter().find_map(|offset| {
            let object = block.start.checked_add(offset)?;
            if offset + 16 > block.size {
                return None;
            }
            let ty = self.type_of(object)?;
            let collected = if ty.has_collector_words() { WORDS } else { 0 };
            let in_front = if self.layout.has_words_in_front(ty.flags) { WORDS } else { 0 };
            let fits = ty.basic_size + offset <= block.size + 8;
            let is_alive = self.memory.word(object).is_some_and(|count| self.is_count(count));
            (offset == collected + in_front && fits && is_alive).then_some((object, ty))
        })
    }

    /// Whether a word can be a count of references. Without that an array of pointers would pass for a number with a
    /// left-over as its type.
    fn is_count(&self, word: u64) -> bool {
        let count = if self.layout.minor >= 12 { word & 0xffff_ffff } else { word };
        // From 3.14 on the upper half holds marks.
        let upper = word >> 32 == 0 || (self.layout.minor >= 14 && self.memory.mapping(word).is_none());
        count != 0 && upper && !self.is_low_address(count)
    }

    /// Whether a word points into a heap at low addresses, as a program that is not moved has it: the first word of a freed object leads to
    /// the next free block, and its type is left.
    fn is_low_address(&self, word: u64) -> bool {
        const LOWEST: u64 = 1 << 20;
        // From 3.12 on larger counts are those of objects that live for good.
        let end = if self.layout.minor >= 12 { 1 << 30 } else { 1 << 32 };
        let is_heap = || self.memory.mapping(word).is_some_and(|mapping| mapping.is_anonymous() && mapping.writable);
        (LOWEST..end).contains(&word) && word.is_multiple_of(8) && is_heap()
    }
}

/// Symbols of an interpreter, as addresses of the process.
#[derive(Debug)]
struct Addresses {
    type_type: u64,
    str_type: u64,
    list_type: Option<u64>,
    unasked: Vec<UnaskedType>,
    runtime: u64,
    version: Option<u64>,
    is_debug: bool,
}

impl Addresses {
    fn of(symbols: &Symbols, mapping: &Mapping) -> Option<Self> {
        let bias = mapping.start.wrapping_sub(symbols.first_vaddr);
        let address = |name: &str| symbols.vaddr_of(name).map(|vaddr| vaddr.wrapping_add(bias));
        let of = |names: &[&str], distance| {
            names.iter().filter_map(|name| Some((address(name)?, distance))).collect::<Vec<_>>()
        };
        let mut unasked = [of(&SCALARS, of_object::TYPE), of(&COLLECTED, of_object::TYPE + COLLECTORS)].concat();
        unasked.sort_unstable();
        Some(Self {
            type_type: address("PyType_Type")?,
            str_type: address("PyUnicode_Type")?,
            list_type: address("PyList_Type"),
            unasked,
            runtime: address("_PyRuntime")?,
            version: address("Py_Version"),
            is_debug: address(DEBUG_PYTHON).is_some(),
        })
    }
}

fn may_be_python(name: &str) -> bool {
    name.starts_with("python") || name.starts_with("libpython")
}

/// Minor version out of a file's name: `libpython3.8.so.1.0`, `python3.8`.
fn minor_of_name(name: &str) -> Option<u8> {
    let rest = &name[name.find("python3.")? + "python3.".len()..];
    rest.split(|character: char| !character.is_ascii_digit()).next()?.parse().ok()
}

fn structs(memory: &Memory<'_>, minor: u8, runtime: u64) -> Result<Offsets, String> {
    const SUPPORTED: std::ops::RangeInclusive<u8> = 8..=14;
    if !SUPPORTED.contains(&minor) {
        return Err(format!("it is Python 3.{minor}, and 3.8 to 3.14 are known"));
    }
    if let Some(structs) = offsets::of_version(minor) {
        return Ok(structs);
    }
    let table = memory.bytes(runtime, TABLE_BYTES).ok_or("its table of offsets cannot be read")?;
    offsets::of_table(&table)
}

/// Whether there is an interpreter of another make.
pub(super) fn other_interpreter(source: &dyn Source) -> Option<String> {
    let files = source.mappings().iter().filter(|mapping| mapping.is_file());
    let mut names = files.map(Mapping::file_name);
    names.find(|name| name.starts_with("libpypy") || name.starts_with("pypy3")).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_names() {
        assert_eq!(minor_of_name("libpython3.8.so.1.0"), Some(8));
        assert_eq!(minor_of_name("python3.10"), Some(10));
        for name in ["python3", "libpython2.7.so", "python3.", "perl"] {
            assert_eq!(minor_of_name(name), None, "{name}");
        }
    }
}
