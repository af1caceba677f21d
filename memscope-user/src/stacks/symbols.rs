//! Symbolizes native frames.
//!
//! Modules come from the process's mappings ([`mappings`](super::mappings)), functions from the symbol tables of the
//! mapped files: those stay open, so processes that have ended, deleted files and other mount namespaces make no
//! difference. A function is named only if the address lies within its symbol's size; otherwise there is module and
//! offset, never the nearest exported function.

use std::{
    collections::HashMap,
    fs::File,
    io::Write as _,
    os::fd::{AsRawFd as _, FromRawFd as _},
    path::Path,
    sync::Arc,
    thread,
    time::Duration,
};

use blazesym::symbolize::{
    CodeInfo, Input, Sym, Symbolizer,
    source::{Elf, Source},
};

use super::{
    SharedMappings,
    mappings::{Content, Found, Module},
};
use crate::{
    capture::{Function, Symbol},
    crew,
    os::maps::FileId,
};

/// Most places in files with known functions.
const MAX_PLACES: usize = 256 << 10;
/// Most files with symbol tables in memory.
const MAX_FILES: usize = 512;
/// Mappings read within this time are not read again.
const MOMENT: Duration = Duration::from_millis(6);

/// Name for code in no file: made at run time.
const ANONYMOUS: &str = "[anon]";

/// Options of the search for symbols.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SymbolOptions {
    /// Debug information is read, too: for inlined functions and lines of sources.
    pub inlined: bool,
}

/// A file, and its number among those that had the inode in turn.
type FileKey = (FileId, u64);

/// The kernel's code has no file, and is one for all.
const fn key(module: &Module) -> FileKey {
    (module.id, if module.id.inode == 0 { 0 } else { module.serial })
}

/// Finds functions. Belongs to one thread.
pub struct Symbols {
    options: SymbolOptions,
    symbolizer: Symbolizer,
    files: HashMap<FileKey, bool>,
    places: HashMap<(FileKey, u64), Arc<[Function]>>,
    /// The kernel's code in all processes: equal ones are one.
    vdso: Option<(Arc<[u8]>, File)>,
    may_wait: bool,
    /// Files that the mappings had forgotten when the symbolizer was made: it keeps the files that it has read.
    forgotten: u64,
}

impl Symbols {
    /// Without any file yet.
    #[must_use]
    pub fn new(options: SymbolOptions) -> Self {
        Self {
            options,
            symbolizer: symbolizer(options),
            files: HashMap::new(),
            places: HashMap::new(),
            vdso: None,
            may_wait: true,
            forgotten: 0,
        }
    }

    /// The symbol at an address of a stack of process `pid`; `None` if unknown (yet). `returns`: it is a return
    /// address, so it belongs to the instruction before.
    pub fn find(
        &mut self,
        mappings: &SharedMappings,
        (generation, pid): (u64, u32),
        (address, returns): (u64, bool),
    ) -> Option<Symbol> {
        // Others wait for the mappings while their processes wait, so they are not kept while symbols are read.
        let look = || mappings.lock().find(generation, pid, address);
        let mut found = look();
        if matches!(found, Found::Unknown) && self.may_wait && mappings.lock().is_current(generation, pid) {
            // A library mapped just now.
            self.may_wait = false;
            thread::sleep(MOMENT);
            found = look();
        }
        let module = match found {
            Found::Module(module) => module,
            Found::Nothing => {
                return Some(Symbol { address, module: String::new(), module_offset: 0, functions: Vec::new() });
            }
            Found::Unknown => return None,
        };
        Some(Symbol {
            address,
            module: name(&module.path),
            module_offset: address.wrapping_sub(module.first),
            functions: self.functions(&module, address, returns).to_vec(),
        })
    }

    /// Allows waiting for mappings once from here on, if they were read just now.
    pub const fn next_batch(&mut self) {
        self.may_wait = true;
    }

    /// Gives files back that the mappings have forgotten.
    pub fn forget(&mut self, mappings: &SharedMappings) {
        let forgotten = mappings.lock().forgotten();
        if std::mem::replace(&mut self.forgotten, forgotten) != forgotten {
            self.files.clear();
            self.symbolizer = symbolizer(self.options);
        }
    }

    fn functions(&mut self, module: &Module, address: u64, returns: bool) -> Arc<[Function]> {
        let none = || Arc::from([]);
        let path = match &module.content {
            Content::None => return none(),
            Content::File(file) => fd_path(file),
            Content::Memory(bytes) => match self.vdso(bytes) {
                Some(path) => path,
                None => return none(),
            },
        };
        // A call may be a function's last instruction.
        let offset = module.offset_of(address);
        if returns {
            return self.within(key(module), &path, offset.wrapping_sub(1), 1);
        }
        let found = self.within(key(module), &path, offset, 0);
        // The first address may be one that a call has returned to; in a function it makes no difference but for lines.
        match found.last() {
            Some(function) if function.offset > 0 && self.options.inlined => {
                self.within(key(module), &path, offset.wrapping_sub(1), 1)
            }
            _ => found,
        }
    }

    /// The functions at a place of a file; `more` is added to their offsets.
    fn within(&mut self, id: FileKey, path: &str, offset: u64, more: u64) -> Arc<[Function]> {
        if let Some(known) = self.places.get(&(id, offset)) {
            return shifted(known, more);
        }
        if !self.is_usable(id) {
            return Arc::from([]);
        }
        let found: Arc<[Function]> = self.look_up(id, path, offset).into();
        if self.places.len() >= MAX_PLACES {
            self.places.clear();
        }
        self.places.insert((id, offset), Arc::clone(&found));
        shifted(&found, more)
    }

    /// Whether the file's symbols are worth asking for.
    fn is_usable(&mut self, id: FileKey) -> bool {
        if let Some(known) = self.files.get(&id) {
            return *known;
        }
        if self.files.len() >= MAX_FILES {
            self.files.clear();
            self.symbolizer = symbolizer(self.options);
        }
        self.files.insert(id, true);
        true
    }

    fn look_up(&mut self, id: FileKey, path: &str, offset: u64) -> Vec<Function> {
        let mut elf = Elf::new(path);
        elf.debug_syms = self.options.inlined;
        let source = Source::Elf(elf);
        let by = &self.symbolizer;
        // The file may contain anything: a panic of the parser must not end the trace.
        let found = crew::quietly(|| {
            let found = by.symbolize_single(&source, Input::FileOffset(offset)).ok()?;
            found.as_sym().and_then(functions)
        });
        let Some(found) = found else {
            self.files.insert(id, false);
            self.symbolizer = symbolizer(self.options);
            return Vec::new();
        };
        found.unwrap_or_default()
    }

    /// A file with the kernel's code.
    fn vdso(&mut self, bytes: &Arc<[u8]>) -> Option<String> {
        if self.vdso.as_ref().is_none_or(|(known, _)| known != bytes) {
            // By its number: releases run with C libraries that have no function for it (before 2.27).
            // SAFETY: a name, and flags that the call knows.
            let fd = unsafe { libc::syscall(libc::SYS_memfd_create, c"vdso".as_ptr(), libc::MFD_CLOEXEC) };
            let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
            // SAFETY: a new descriptor without another owner.
            let mut file = unsafe { File::from_raw_fd(fd) };
            file.write_all(bytes).ok()?;
            self.vdso = Some((Arc::clone(bytes), file));
            self.places.retain(|((id, _), _), _| id.inode != 0);
        }
        self.vdso.as_ref().map(|(_, file)| fd_path(file))
    }
}

fn symbolizer(SymbolOptions { inlined }: SymbolOptions) -> Symbolizer {
    Symbolizer::builder().enable_code_info(inlined).enable_inlined_fns(inlined).build()
}

/// The same functions, with offsets of `more` bytes more.
fn shifted(functions: &Arc<[Function]>, more: u64) -> Arc<[Function]> {
    if more == 0 {
        return Arc::clone(functions);
    }
    functions.iter().map(|function| Function { offset: function.offset + more, ..function.clone() }).collect()
}

/// Functions of a symbol, inlined ones first; `None` if the address may not belong to it.
fn functions(symbol: &Sym<'_>) -> Option<Vec<Function>> {
    let certain = match symbol.size {
        Some(size) => symbol.offset < size,
        None => symbol.offset == 0,
    };
    if !certain || symbol.name.is_empty() {
        return None;
    }
    let offset = symbol.offset as u64;
    let function = |name: &str, code: Option<&CodeInfo<'_>>, inlined| Function {
        name: name.to_owned(),
        offset,
        source: code.and_then(|code| Some((code.to_path().to_string_lossy().into_owned(), code.line?))),
        inlined,
    };
    let inlined = symbol.inlined.iter().rev().map(|inner| function(&inner.name, inner.code_info.as_ref(), true));
    Some(inlined.chain([function(&symbol.name, symbol.code_info.as_deref(), false)]).collect())
}

fn fd_path(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Name of a module: the last part of its path, or a placeholder.
fn name(path: &Path) -> String {
    let text = path.as_os_str().to_string_lossy();
    let text = text.strip_suffix(" (deleted)").unwrap_or(&text);
    let last = text.rsplit('/').next().filter(|last| !last.is_empty()).unwrap_or(text);
    if last.is_empty() { ANONYMOUS.to_owned() } else { last.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader},
        process::{Child, Command, Stdio},
    };

    use super::{super::mappings::Mappings, *};

    fn own() -> SharedMappings {
        SharedMappings::new(Mappings::new(Box::new(|_| Some(7))))
    }

    fn address(function: *const ()) -> u64 {
        function.expose_provenance() as u64
    }

    fn find(symbols: &mut Symbols, address: u64, returns: bool) -> Symbol {
        symbols.find(&own(), (7, std::process::id()), (address, returns)).expect("known")
    }

    /// Offsets and names as the dynamic loader has them.
    #[test]
    fn functions_of_libc() {
        let mut symbols = Symbols::new(SymbolOptions::default());
        let strtoul = address(libc::strtoul as *const ());
        let Symbol { module, module_offset, functions, .. } = find(&mut symbols, strtoul + 4, false);
        // SAFETY: filled in by the call; the address is one of libc's.
        let about = unsafe {
            let mut about: libc::Dl_info = std::mem::zeroed();
            assert_ne!(libc::dladdr(libc::strtoul as *const _, &raw mut about), 0);
            about
        };
        let base = about.dli_fbase.expose_provenance() as u64;
        assert_eq!((module.as_str(), module_offset), ("libc.so.6", strtoul + 4 - base));
        assert_eq!((functions.len(), functions[0].offset), (1, 4));
        assert!(functions[0].name.contains("strtoul"), "{functions:?}");
        // One behind the call: of the function before.
        let before = find(&mut symbols, strtoul, true).functions;
        assert_ne!(before.first().map(|function| &function.name), Some(&functions[0].name));
        assert_eq!(find(&mut symbols, strtoul + 1, true).functions[0].offset, 1);
    }

    #[inline(never)]
    fn of_this_program(number: u64) -> u64 {
        std::hint::black_box(number) + 1
    }

    #[test]
    fn names_are_demangled() {
        let mut symbols = Symbols::new(SymbolOptions::default());
        let symbol = find(&mut symbols, address(of_this_program as *const ()), false);
        assert_eq!(symbol.functions.len(), 1);
        assert!(symbol.functions[0].name.ends_with("symbols::tests::of_this_program"), "{symbol:?}");
        assert_eq!(symbol.functions[0].source, None);
        assert_eq!(of_this_program(1), 2);
    }

    #[test]
    fn code_of_the_kernel_has_names() {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let vdso = maps.lines().find(|line| line.ends_with("[vdso]")).expect("a vdso");
        let start = u64::from_str_radix(vdso.split('-').next().expect("an address"), 16).expect("hexadecimal");
        let mut symbols = Symbols::new(SymbolOptions::default());
        let known: Vec<Symbol> = (0..0x2000).step_by(4).map(|at| find(&mut symbols, start + at, false)).collect();
        assert!(known.iter().all(|symbol| symbol.module == "[vdso]"));
        let getcpu = known.iter().filter(|symbol| symbol.functions.iter().any(|f| f.name.contains("getcpu")));
        assert!(getcpu.count() > 0);
    }

    /// A program of this source that prints addresses and waits; and the addresses.
    fn program(folder: &Path, source: &str, options: &[&str]) -> (Child, Vec<u64>) {
        let (file, program) = (folder.join("a.cpp"), folder.join("program"));
        std::fs::write(&file, source).expect("written");
        let compiler = Command::new("c++").args(options).arg("-o").arg(&program).arg(&file).status();
        assert!(compiler.expect("a compiler").success());
        let mut child = Command::new(&program).stdout(Stdio::piped()).spawn().expect("started");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        let number = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).expect("hexadecimal");
        (child, line.split_whitespace().map(number).collect())
    }

    /// A program, its mappings known, is deleted, and ends: its functions are still found. C++ names are spelt out.
    #[test]
    fn ended_programs_and_deleted_files() {
        // The second function has no size, as hand-written code may have none.
        const SOURCE: &str = r#"
            #include <cstdio>
            #include <unistd.h>
            namespace n { struct S { int f(int); }; __attribute__((noinline)) int S::f(int x) { return x + 1; } }
            asm(".type sizeless,@function\nsizeless: nop\nnop\nret");
            extern "C" void sizeless();
            int main() {
                auto f = &n::S::f; n::S s;
                printf("%p %p\n", (void *)(s.*f), (void *)&sizeless);
                fflush(stdout); pause(); return (s.*f)(1);
            }
        "#;
        let folder = tempfile::tempdir().expect("folder");
        let (mut child, addresses) = program(folder.path(), SOURCE, &["-O1", "-Wno-pmf-conversions"]);
        let &[method, sizeless] = addresses.as_slice() else { panic!("{addresses:?}") };
        let native = own();
        native.look_ahead(child.id());
        std::fs::remove_file(folder.path().join("program")).expect("removed");
        child.kill().expect("killed");
        child.wait().expect("waited for");
        let mut symbols = Symbols::new(SymbolOptions::default());
        let mut find = |address| symbols.find(&native, (7, child.id()), (address, false)).expect("known");
        let Symbol { module, functions, .. } = find(method + 1);
        let names: Vec<_> = functions.iter().map(|f| (f.name.as_str(), f.offset)).collect();
        assert_eq!((module.as_str(), names), ("program", vec![("n::S::f(int)", 1)]));
        assert_eq!(find(sizeless).functions[0].name, "sizeless");
        assert_eq!((find(sizeless + 1).functions, find(sizeless + 1).module.as_str()), (vec![], "program"));
    }

    /// Inlined functions are named if debug information is requested, with their lines.
    #[test]
    fn inlined_functions_and_lines() {
        const SOURCE: &str = r#"#include <cstdio>
            #include <unistd.h>
            extern char place[];
            static inline __attribute__((always_inline)) void inner() {
                asm volatile("place: nop\nnop\n.globl place");
            }
            __attribute__((noinline)) void outer() {
                inner();
            }
            int main() { printf("%p\n", place); fflush(stdout); pause(); outer(); }
        "#;
        let folder = tempfile::tempdir().expect("folder");
        let (mut child, addresses) = program(folder.path(), SOURCE, &["-g", "-O1"]);
        let of = |inlined| {
            let mut symbols = Symbols::new(SymbolOptions { inlined });
            let symbol = symbols.find(&own(), (7, child.id()), (addresses[0] + 1, false)).expect("known");
            let brief = |f: &Function| {
                let source = f.source.as_ref().map(|(file, line)| (file.ends_with("/a.cpp"), *line));
                (f.name.clone(), f.inlined, source)
            };
            symbol.functions.iter().map(brief).collect::<Vec<_>>()
        };
        let (inlined, plain) = (of(true), of(false));
        child.kill().expect("killed");
        child.wait().expect("waited for");
        assert_eq!(plain, [("outer()".to_owned(), false, None)]);
        assert_eq!(
            inlined,
            [("inner".to_owned(), true, Some((true, 5))), ("outer()".to_owned(), false, Some((true, 8)))]
        );
    }

    /// An unknown symbol is never invented.
    #[test]
    fn nothing_is_made_up() {
        let mut symbols = Symbols::new(SymbolOptions::default());
        let nothing = find(&mut symbols, 8, false);
        assert_eq!((nothing.module.as_str(), nothing.functions.len()), ("", 0));
        assert_eq!(symbols.find(&own(), (6, std::process::id()), (8, false)), None);
        assert_eq!(
            ["/lib/a.so (deleted)", "[vdso]", "", "/memfd:x (deleted)"].map(|path| name(Path::new(path))),
            ["a.so", "[vdso]", "[anon]", "memfd:x"]
        );
    }
}
