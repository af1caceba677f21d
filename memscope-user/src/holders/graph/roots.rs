//! Where paths end outside of heaps: variables of libraries and stacks of threads.

use std::{cell::RefCell, rc::Rc};

use super::Root;
use crate::{
    hash::HashMap,
    holders::{
        cpp,
        memory::Memory,
        python::Python,
        source::{Backing, Mapping},
        symbols::Symbols,
    },
};

/// Files that keep free lists and tables, with addresses that they do not hold: the C library's and the interpreter's
/// own data, the driver's.
const BOOK_KEEPERS: [&str; 6] = ["libc.so", "libc-2.", "ld-linux", "libpython", "python3", "libascend_hal"];
/// `pthread_self` is this close to the end of its thread's stack.
const THREAD_BYTES: u64 = 1 << 16;
/// Most threads read.
const MAX_THREADS: usize = 8192;

/// Whether a place is on a stack.
#[derive(Debug)]
pub(super) enum OnStack {
    No,
    /// Behind its end: no longer used.
    Unused,
    Used(Root),
}

#[derive(Debug)]
pub(super) struct Roots<'a> {
    memory: &'a Memory<'a>,
    symbols: RefCell<HashMap<String, Option<Rc<Symbols>>>>,
    /// Of each thread: where its stack ends now, where its mapping does, and its number.
    stacks: Vec<(u64, u64, u32)>,
}

impl<'a> Roots<'a> {
    pub(super) fn new(memory: &'a Memory<'a>, python: Option<&Python<'a>>) -> Self {
        let mut stacks: Vec<(u64, u64, u32)> = Vec::new();
        for thread in memory.source().threads().iter().take(MAX_THREADS) {
            let mapping = thread.stack_pointer.and_then(|pointer| Some((pointer, memory.mapping(pointer)?)));
            stacks.extend(mapping.map(|(pointer, mapping)| (pointer, mapping.end, thread.tid)));
        }
        for thread in python.map_or_else(Vec::new, |python| python.threads().to_vec()) {
            let Some(mapping) = memory.mapping(thread) else { continue };
            let is_stack = mapping.name.is_empty() && thread > mapping.end.saturating_sub(THREAD_BYTES);
            if is_stack && stacks.iter().all(|(_, end, _)| *end != mapping.end) {
                stacks.push((mapping.start, mapping.end, 0));
            }
        }
        Self { memory, symbols: RefCell::default(), stacks }
    }

    /// The stack that a place is on.
    pub(super) fn stack(&self, place: u64, mapping: &Mapping) -> OnStack {
        if mapping.backing == Backing::Stack && self.stacks.iter().all(|(_, end, _)| *end != mapping.end) {
            return OnStack::Used(Root::Stack { tid: 0 });
        }
        match self.stacks.iter().find(|(_, end, _)| *end == mapping.end) {
            None => OnStack::No,
            Some((pointer, ..)) if place < *pointer => OnStack::Unused,
            Some((_, _, tid)) => OnStack::Used(Root::Stack { tid: *tid }),
        }
    }

    fn symbols(&self, mapping: &Mapping) -> Option<Rc<Symbols>> {
        /// Most files with symbols at once.
        const MAX_FILES: usize = 64;
        if let Some(known) = self.symbols.borrow().get(&mapping.name) {
            return known.clone();
        }
        let found = self.memory.source().symbols(mapping).map(Rc::new);
        let mut symbols = self.symbols.borrow_mut();
        if symbols.len() >= MAX_FILES {
            symbols.clear();
        }
        symbols.insert(mapping.name.clone(), found.clone());
        found
    }

    /// The difference between addresses of the process and of a file.
    fn bias(&self, mapping: &Mapping, symbols: &Symbols) -> Option<u64> {
        let mappings = self.memory.source().mappings();
        let first = mappings.iter().find(|first| first.file_offset == 0 && first.name == mapping.name)?;
        Some(first.start.wrapping_sub(symbols.first_vaddr))
    }

    /// The variable at a place of a file's data.
    pub(super) fn global(&self, place: u64, mapping: &Mapping) -> Root {
        let file = mapping.file_name();
        let symbols = self.symbols(mapping);
        let named = symbols.as_deref().and_then(|symbols| {
            let vaddr = place.wrapping_sub(self.bias(mapping, symbols)?);
            let (symbol, into) = symbols.at(vaddr)?;
            let offset = if into == 0 { String::new() } else { format!("+{into:#x}") };
            Some(format!("global {}{offset} of {file}", cpp::demangled_symbol(&symbol.name)))
        });
        let name = named.unwrap_or_else(|| format!("static data of {file}"));
        Root::Global { is_known_holder: !keeps_books(file, &name), name }
    }

    /// The same for data that starts as zeros, in anonymous memory right behind a file's. It ends where the file's
    /// description ends: memory behind that is unrelated.
    pub(super) fn zeroed_global(&self, place: u64, mapping: &Mapping, before: Option<&Mapping>) -> Option<Root> {
        let before = before.filter(|before| before.is_file() && before.end == mapping.start)?;
        let symbols = self.symbols(before)?;
        let end = symbols.end_vaddr.wrapping_add(self.bias(before, &symbols)?);
        (mapping.name.is_empty() && place < end).then(|| self.global(place, before))
    }
}

/// Whether a variable of a file has addresses that it does not hold. `PyTorch`'s parsers of arguments have names and defaults (`PythonArgParser`,
/// `torch/csrc/utils/python_arg_parser.h`), and in short names what was there before. `NumPy` keeps the memory of freed arrays (`datacache`, alloc.cpp).
fn keeps_books(file: &str, variable: &str) -> bool {
    let is_parser = file.starts_with("libtorch_python") && variable.contains("::parser");
    let is_reserve = file.starts_with("_multiarray_umath") && variable.contains("cache");
    is_parser || is_reserve || BOOK_KEEPERS.iter().any(|keeper| file.starts_with(keeper))
}

#[cfg(test)]
mod tests {
    use super::keeps_books;

    #[test]
    fn what_keeps_books() {
        let parser = "global torch::autograd::THPVariable_linear(_object*, _object*, _object*)::parser+0x18 of libtorch_python.so";
        assert!(
            keeps_books("libtorch_python.so", parser) && keeps_books("libc.so.6", "global main_arena of libc.so.6")
        );
        let reserve = "global datacache+0x410 of _multiarray_umath.cpython-311-x86_64-linux-gnu.so";
        assert!(keeps_books("_multiarray_umath.cpython-311-x86_64-linux-gnu.so", reserve));
        assert!(!keeps_books("libtorch_python.so", "global torch::device of libtorch_python.so"));
        assert!(!keeps_books("libserver.so", "global server::parser of libserver.so"));
    }
}
