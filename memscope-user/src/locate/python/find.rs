//! Finds the interpreter of a process, and its layout for the kernel side.
//!
//! Files and memory are the process's own and hostile: everything is bounded, and what makes no sense is a reason.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs::{self, File},
    io::{self, Read as _},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use memscope_common::PythonLayout;

use super::{
    glibc::Pthread,
    offsets::{self, COOKIE, Offsets, TABLE_BYTES},
};
use crate::{
    locate::site::{self, Function, SiteUse},
    os::{
        elf::{ElfFile, dynamic::Pointer},
        mapped,
        maps::{self, FileId, Line},
        memory::{Memory, page_size},
    },
};

/// Larger files are no interpreters.
const MAX_FILE_BYTES: u64 = 256 << 20;
/// Most interpreters of a process, and states of threads, that are read.
const MAX_INTERPRETERS: usize = 64;
const MAX_THREADS: usize = 256;

/// Why a process has no Python stacks, for now or for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// It has mapped no interpreter.
    Interpreter,
    /// The interpreter has not begun.
    Start,
    /// The data make no sense: it may be about to start or to end.
    Sense(&'static str),
    /// It is not supported.
    Support(String),
}

/// Facts from a file, independent of where it is mapped.
#[derive(Clone, Debug)]
enum Facts {
    Python(PythonFile),
    Libc(Pthread),
    Other,
}

#[derive(Clone, Debug)]
struct PythonFile {
    runtime: u64,
    code_type: u64,
    /// From a number in the file; before 3.11 there is none.
    version: Option<u64>,
    /// Compiled with checks that change structs.
    debug: bool,
    /// File offset of an instruction that every call of `code_dealloc` executes.
    frees_code: Option<u64>,
    /// File offset and address of the executable segments.
    segments: Vec<(u64, u64)>,
}

/// Examined files. They stay open, so that no later file gets the inode of one.
#[derive(Debug, Default)]
pub(crate) struct Files(HashMap<FileId, (Facts, Option<File>)>);

/// A running interpreter.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) layout: PythonLayout,
    /// Where it is seen that it frees code.
    pub(crate) frees_code: Option<FreesCode>,
}

/// A place in the file of an interpreter.
#[derive(Debug)]
pub(crate) struct FreesCode {
    pub(crate) file: FileId,
    /// A mapping of the process, as `map_files` names it.
    pub(crate) range: String,
    /// Its path, as the process sees it.
    pub(crate) path: PathBuf,
    pub(crate) file_offset: u64,
}

/// A file mapped at some address.
struct Placed<'a> {
    line: Line<'a>,
    facts: Facts,
}

impl Files {
    /// Looks at a process.
    pub(crate) fn find(&mut self, pid: u32) -> Result<Found, Missing> {
        let Ok(text) = maps::read(pid) else { return Err(Missing::Interpreter) };
        let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let (mut python, mut libc, mut other_libc) = (None, None, false);
        let lines = maps::lines(&text);
        for line in lines.filter(|line| line.executable && line.id.inode != 0) {
            let name = file_name(line.name);
            other_libc |= is_musl(name);
            let wanted = match name {
                _ if is_python(name) || (line.name == program.as_os_str().as_bytes()) => python.is_none(),
                _ if is_libc(name) => libc.is_none(),
                _ => false,
            };
            if !wanted {
                continue;
            }
            match self.look(pid, &line)? {
                facts @ Facts::Python(_) => python = Some(Placed { line, facts }),
                Facts::Libc(pthread) => libc = Some(pthread),
                // Older releases have a separate library for threads, and none of its functions in the other one.
                Facts::Other => other_libc |= is_libc(name),
            }
        }
        let Some(Placed { line, facts: Facts::Python(file) }) = python else { return Err(Missing::Interpreter) };
        let pthread = match libc {
            Some(pthread) => pthread,
            None if other_libc => {
                let why = "its C library is not glibc, or hides where threads keep values";
                return Err(Missing::Support(why.to_owned()));
            }
            // The loader has not reached it yet.
            None => return Err(Missing::Start),
        };
        let memory = Memory::open(pid).map_err(|error| Missing::Support(format!("its memory: {error}")))?;
        let place = |file_offset| FreesCode {
            file: line.id,
            range: maps::plain_range(line.range),
            path: path_of(&line).to_owned(),
            file_offset,
        };
        Ok(Found { layout: layout(&memory, &file, &line, pthread)?, frees_code: file.frees_code.map(place) })
    }

    /// Files that were examined.
    pub(crate) fn ids(&self) -> impl Iterator<Item = FileId> + '_ {
        self.0.keys().copied()
    }

    /// Closes these files.
    pub(crate) fn forget(&mut self, unused: &HashSet<FileId>) {
        self.0.retain(|id, _| !unused.contains(id));
    }

    /// Facts about the mapped file. A mapping that is gone again shows nothing about its file: the loader maps a file
    /// as a whole first, and then others over parts of that.
    fn look(&mut self, pid: u32, line: &Line<'_>) -> Result<Facts, Missing> {
        if let Some((facts, _)) = self.0.get(&line.id) {
            return Ok(facts.clone());
        }
        let found = match mapped::open(pid, &maps::plain_range(line.range), path_of(line), line.id) {
            Ok(file) => {
                let kept = file.try_clone().ok();
                (facts(file, line).unwrap_or(Facts::Other), kept)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Missing::Start),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(Missing::Support(format!("{}: {error}", path_of(line).display())));
            }
            Err(_) => (Facts::Other, None),
        };
        let (facts, kept) = found;
        self.0.insert(line.id, (facts.clone(), kept));
        Ok(facts)
    }
}

fn path_of<'a>(line: &Line<'a>) -> &'a Path {
    Path::new(std::ffi::OsStr::from_bytes(line.name))
}

fn file_name(path: &[u8]) -> &str {
    Path::new(std::ffi::OsStr::from_bytes(path)).file_name().and_then(|name| name.to_str()).unwrap_or("")
}

fn is_python(name: &str) -> bool {
    name.starts_with("libpython") && name.contains(".so")
}

fn is_libc(name: &str) -> bool {
    name == "libc.so.6" || name.starts_with("libc-2.") || name.starts_with("libpthread")
}

fn is_musl(name: &str) -> bool {
    name.starts_with("ld-musl") || name.starts_with("libc.musl")
}

fn facts(file: File, line: &Line<'_>) -> Option<Facts> {
    if file.metadata().ok()?.len() > MAX_FILE_BYTES {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).ok()?;
    let elf = ElfFile::parse(&bytes).ok()?;
    if is_libc(file_name(line.name)) {
        return Pthread::of_file(&elf).map(Facts::Libc);
    }
    python_file(&elf).map(Facts::Python)
}

fn python_file(elf: &ElfFile<'_>) -> Option<PythonFile> {
    const NAMES: [&[u8]; 4] = [b"_PyRuntime", b"PyCode_Type", b"Py_Version", b"_Py_NegativeRefcount"];
    let mut found = [None; NAMES.len()];
    for symbol in elf.symbols().ok()?.filter(|symbol| symbol.defined) {
        if let Some(at) = NAMES.iter().position(|name| *name == symbol.name) {
            found[at] = Some(symbol.vaddr);
        }
    }
    let [runtime, code_type, version, debug] = found;
    let number = |vaddr| elf.bytes_at(vaddr, 8)?.first_chunk().copied().map(u64::from_le_bytes);
    Some(PythonFile {
        runtime: runtime?,
        code_type: code_type?,
        version: version.and_then(number),
        debug: debug.is_some(),
        frees_code: frees_code(elf, code_type?),
        segments: elf.executable_segments(),
    })
}

/// File offset of the function that frees code objects: `PyCode_Type.tp_dealloc`, from the file, not from the process,
/// which could name any place for a probe.
fn frees_code(elf: &ElfFile<'_>, code_type: u64) -> Option<u64> {
    // Behind the object's head with its size, the name, and two sizes; in all versions.
    const TP_DEALLOC: u64 = 48;
    let slot = code_type.checked_add(TP_DEALLOC)?;
    let moved = elf.relocations().ok()?.find(|relocation| relocation.slot == slot);
    let vaddr = match moved.map(|relocation| relocation.pointer) {
        Some(Pointer::Local(vaddr)) => vaddr,
        Some(_) => return None,
        // A program at a fixed address has the address itself.
        None => u64::from_le_bytes(*elf.bytes_at(slot, 8)?.first_chunk()?),
    };
    let code = elf.mappings(true)?.into_iter().find_map(|mapping| {
        let from = vaddr.checked_sub(mapping.vaddr)?;
        mapping.bytes.get(usize::try_from(from).ok()?..).filter(|bytes| !bytes.is_empty())
    })?;
    let function = Function::new(elf.machine(), vaddr, code, 0);
    let site = site::choose(&function, SiteUse::default(), site::Kernel::default()).ok()?;
    elf.file_offset(vaddr.checked_add(site.offset.into())?)
}

impl PythonFile {
    /// The difference between an address of the process and one of the file.
    fn bias(&self, line: &Line<'_>) -> Option<u64> {
        // The kernel maps whole pages: a mapping can begin before its segment.
        let page = u64::from(page_size());
        let begins = |(offset, _): &&(u64, u64)| offset / page * page <= line.file_offset;
        let (offset, vaddr) = self.segments.iter().rev().find(begins)?;
        let start = vaddr.wrapping_sub(*offset).wrapping_add(line.file_offset);
        Some(line.start.wrapping_sub(start))
    }
}

/// Minor version out of a file's name: `libpython3.8.so.1.0`, `python3.8`, `libpython3.8d.so.1.0`.
fn version_of_name(name: &str) -> Option<(u8, bool)> {
    let rest = &name[name.find("python3.")? + "python3.".len()..];
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let minor = rest[..digits].parse().ok()?;
    Some((minor, rest[digits..].starts_with('d')))
}

fn layout(memory: &Memory, file: &PythonFile, line: &Line<'_>, pthread: Pthread) -> Result<PythonLayout, Missing> {
    let bias = file.bias(line).ok_or(Missing::Sense("its file is not mapped as it says"))?;
    let runtime = bias.wrapping_add(file.runtime);
    let offsets = offsets_of(memory, file, line, runtime)?;
    let newest = word(memory, runtime.wrapping_add(offsets.interpreters))?;
    if newest == 0 {
        return Err(Missing::Start);
    }
    let (first, threads) = threads(memory, &offsets, newest)?;
    let mut layout = offsets.layout;
    layout.code_type = bias.wrapping_add(file.code_type);
    layout.interpreters = runtime.wrapping_add(offsets.interpreters);
    layout.first_interpreter = first;
    pthread.fill(&mut layout, key(memory, pthread, &threads)?);
    Ok(layout)
}

fn offsets_of(memory: &Memory, file: &PythonFile, line: &Line<'_>, runtime: u64) -> Result<Offsets, Missing> {
    let name = file_name(line.name);
    let named = version_of_name(name);
    let number = file.version.map(offsets::minor).transpose().map_err(Missing::Support)?;
    let Some(minor) = number.or(named.map(|(minor, _)| minor)) else {
        return Err(Missing::Support(format!("the version of `{}` is not known", name.escape_debug())));
    };
    if minor >= 13 {
        let mut table = [0; TABLE_BYTES];
        memory.read(runtime, &mut table).ok_or(Missing::Sense("its table of offsets cannot be read"))?;
        // A library that is being loaded has no data yet.
        if !table.starts_with(&COOKIE) {
            return Err(Missing::Start);
        }
        return offsets::of_table(&table).map_err(Missing::Support);
    }
    if file.debug || named.is_some_and(|(_, debug)| debug) {
        return Err(Missing::Support(format!("it is a debug build of Python 3.{minor}, which is not supported")));
    }
    let known = offsets::of_version(minor);
    known.ok_or_else(|| Missing::Support(format!("it is Python 3.{minor}, which is not supported")))
}

fn word(memory: &Memory, at: u64) -> Result<u64, Missing> {
    memory.word(at).ok_or(Missing::Sense("its structures lead nowhere"))
}

/// The first interpreter, and the states of all threads, by what `pthread_self` gives there.
fn threads(memory: &Memory, offsets: &Offsets, newest: u64) -> Result<(u64, BTreeMap<u64, Vec<u64>>), Missing> {
    let mut found: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut interpreter = newest;
    for _ in 0..MAX_INTERPRETERS {
        let first = interpreter;
        let mut state = word(memory, interpreter.wrapping_add(offsets.threads))?;
        for _ in 0..MAX_THREADS {
            if state == 0 {
                break;
            }
            if word(memory, state.wrapping_add(offsets.interpreter))? != interpreter {
                return Err(Missing::Sense("a thread's state names another interpreter"));
            }
            let thread = word(memory, state.wrapping_add(offsets.layout.thread_id.into()))?;
            // A thread that has not started has no number.
            if thread != 0 {
                found.entry(thread).or_default().push(state);
            }
            state = word(memory, state.wrapping_add(offsets.next_thread))?;
        }
        interpreter = word(memory, interpreter.wrapping_add(offsets.next_interpreter))?;
        if interpreter == 0 {
            return Ok((first, found));
        }
    }
    Err(Missing::Support("it has too many interpreters".to_owned()))
}

/// The key with which every thread keeps its state. A thread that is starting or ending keeps none. Libraries that bind
/// C++ to Python (pybind11, so torch) keep it with a key of their own as well, for the threads that they know; the
/// interpreter made its key before any of them was loaded, and keys are assigned from the lowest.
fn key(memory: &Memory, pthread: Pthread, threads: &BTreeMap<u64, Vec<u64>>) -> Result<u32, Missing> {
    let mut common: Option<Vec<u32>> = None;
    for (thread, states) in threads.iter().take(MAX_THREADS) {
        let keys = pthread.keys(memory, *thread, states);
        if !keys.is_empty() {
            common = Some(match common {
                None => keys,
                Some(common) => common.into_iter().filter(|key| keys.contains(key)).collect(),
            });
        }
    }
    match common.as_deref() {
        Some([lowest, ..]) => Ok(*lowest),
        None => Err(Missing::Start),
        Some([]) => Err(Missing::Sense("its threads keep their states in different places")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_names() {
        assert_eq!(version_of_name("libpython3.8.so.1.0"), Some((8, false)));
        assert_eq!(version_of_name("libpython3.10d.so.1.0"), Some((10, true)));
        assert_eq!(version_of_name("python3.9"), Some((9, false)));
        for name in ["python3", "libpython2.7.so", "python3.", "python3.999", "perl"] {
            assert_eq!(version_of_name(name), None, "{name}");
        }
    }

    #[test]
    fn a_mapping_that_is_gone_says_nothing_of_its_file() {
        let maps = maps::read(std::process::id()).expect("our mappings");
        let lines = || maps::lines(&maps);
        let libc = lines().find(|line| line.executable && is_libc(file_name(line.name))).expect("our C library");
        let mut files = Files::default();
        let gone = Line { range: "1000-2000", ..libc };
        assert_eq!(files.look(std::process::id(), &gone).map(|_| ()), Err(Missing::Start));
        assert!(matches!(files.look(std::process::id(), &libc), Ok(Facts::Libc(_))));
    }

    #[test]
    fn a_bias_is_what_the_file_is_moved_by() {
        let file =
            |segments| PythonFile { runtime: 0, code_type: 0, version: None, debug: false, frees_code: None, segments };
        let text = b"7f0000020000-7f0000030000 r-xp 00020000 08:02 17 /x/libpython3.8.so.1.0";
        let line = maps::line(text).expect("a line");
        assert_eq!(file(vec![(0x20000, 0x20000)]).bias(&line), Some(0x7f00_0000_0000));
        // Not position-independent, and a segment that begins within a page.
        let text = b"00420000-00430000 r-xp 0001f000 08:02 17 /usr/bin/python3.11";
        let line = maps::line(text).expect("a line");
        assert_eq!(file(vec![(0x1f010, 0x42_0010)]).bias(&line), Some(0));
        assert_eq!(file(Vec::new()).bias(&line), None);
    }
}
