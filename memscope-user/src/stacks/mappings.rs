//! Mappings of the traced processes by generation: an address of a stack can be looked up even when the process has
//! gone on, or is gone.
//!
//! Within a generation mappings are only added ([`ProcessState::generation`](memscope_common::config::ProcessState)).
//! So a known mapping stays right, and an unknown address makes the mappings be read again. A result counts only if the
//! process still has the generation afterwards.

use std::{
    collections::{HashMap, HashSet},
    ffi::OsStr,
    fmt,
    fs::File,
    io,
    os::unix::{ffi::OsStrExt as _, fs::FileExt as _},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use super::make_room;
use crate::os::{
    mapped,
    maps::{self, FileId, Line, plain_range},
};

/// Most generations kept; the one unused for the longest time goes first.
const MAX_GENERATIONS: usize = 256;
/// Most files held open, of all processes together; beyond that, those unused for the longest time are closed.
const MAX_FILES: usize = 768;
/// Most executable mappings of a process: more than the kernel allows by default.
const MAX_MAPPINGS: usize = 1 << 17;
/// The kernel's code in the process is smaller than this.
const MAX_VDSO_BYTES: u64 = 1 << 17;
/// Shortest time between two reads of a process's mappings: an odd one could cause reads all the time.
const PAUSE: Duration = Duration::from_millis(1);

/// Where a module's bytes are.
#[derive(Clone)]
pub enum Content {
    /// The mapped file, whatever its path names by now.
    File(Arc<File>),
    /// A copy of memory without a file (`[vdso]`).
    Memory(Arc<[u8]>),
    /// Nowhere: code made at run time, or a file that could not be opened.
    None,
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File(_) => "File",
            Self::Memory(_) => "Memory",
            Self::None => "None",
        })
    }
}

/// An executable mapping, and its contents.
#[derive(Clone, Debug)]
pub struct Module {
    /// First address.
    pub start: u64,
    /// Behind the last address.
    pub end: u64,
    /// Where in the file it begins.
    pub file_offset: u64,
    /// First address of the first mapping of the same file, which other tools count offsets from.
    pub first: u64,
    /// The file; inode 0 is none.
    pub id: FileId,
    /// Path, or a name in brackets, or nothing.
    pub path: Arc<Path>,
    /// Its bytes.
    pub content: Content,
    /// Distinguishes files that reuse an inode; 0 is none.
    pub(super) serial: u64,
}

impl Module {
    /// Where in the file an address of this mapping is.
    #[must_use]
    pub const fn offset_of(&self, address: u64) -> u64 {
        address.wrapping_sub(self.start).wrapping_add(self.file_offset)
    }

    const fn contains(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }
}

/// The result for an address.
#[derive(Clone, Debug)]
pub enum Found {
    /// It is in this module.
    Module(Module),
    /// Nothing is mapped there executable.
    Nothing,
    /// Unknown: the process has gone on, or has ended.
    Unknown,
}

/// Returns the current generation of a process; `None` if it is not traced.
pub type Current = Box<dyn Fn(u32) -> Option<u64> + Send>;

/// Mappings of all processes.
pub struct Mappings {
    current: Current,
    generations: HashMap<u64, Generation>,
    files: Files,
    /// Counts uses, to know which was the last.
    clock: u64,
    /// Files that were closed because no process had mapped them.
    forgotten: u64,
}

struct Generation {
    modules: Vec<Module>,
    used: u64,
    read: Instant,
}

impl Mappings {
    /// With the source of generations of processes.
    #[must_use]
    pub fn new(current: Current) -> Self {
        Self { current, generations: HashMap::new(), files: Files::default(), clock: 0, forgotten: 0 }
    }

    /// The module at an address of a stack that process `pid` had in this generation.
    pub fn lookup(&mut self, generation: u64, pid: u32, address: u64) -> Option<Module> {
        match self.find(generation, pid, address) {
            Found::Module(module) => Some(module),
            Found::Nothing | Found::Unknown => None,
        }
    }

    /// The same, with the reason where there is none.
    pub fn find(&mut self, generation: u64, pid: u32, address: u64) -> Found {
        self.clock += 1;
        if let Some(known) = self.generations.get_mut(&generation) {
            known.used = self.clock;
            if let Some(module) = at(&known.modules, address) {
                return Found::Module(self.files.with_file(module));
            }
            std::thread::sleep(PAUSE.saturating_sub(known.read.elapsed()));
        }
        let Some(modules) = self.renew(generation, pid) else { return Found::Unknown };
        let found = at(modules, address).cloned();
        found.map_or(Found::Nothing, |module| Found::Module(self.files.with_file(&module)))
    }

    /// Reads the mappings, if they are those of the generation.
    fn renew(&mut self, generation: u64, pid: u32) -> Option<&[Module]> {
        if !self.is_current(generation, pid) {
            return None;
        }
        let modules = self.read(pid).ok()?;
        if !self.is_current(generation, pid) {
            return None;
        }
        self.make_room();
        self.generations.insert(generation, Generation { modules, used: self.clock, read: Instant::now() });
        self.generations.get(&generation).map(|known| known.modules.as_slice())
    }

    /// Reads the current mappings of a process, for later: it may end soon.
    pub fn look_ahead(&mut self, pid: u32) {
        self.clock += 1;
        if let Some(generation) = (self.current)(pid) {
            self.renew(generation, pid);
        }
    }

    /// Whether the process still has this generation.
    #[must_use]
    pub fn is_current(&self, generation: u64, pid: u32) -> bool {
        (self.current)(pid) == Some(generation)
    }

    /// Files that are open here.
    pub fn files(&self) -> impl Iterator<Item = FileId> + '_ {
        self.files.open.keys().copied()
    }

    /// Closes these files, which no traced process has mapped.
    pub fn forget(&mut self, unused: &HashSet<FileId>) {
        let before = self.files.open.len();
        self.files.open.retain(|id, _| !unused.contains(id));
        self.forgotten += (before - self.files.open.len()) as u64;
    }

    /// How many files were forgotten so far.
    #[must_use]
    pub const fn forgotten(&self) -> u64 {
        self.forgotten
    }

    fn make_room(&mut self) {
        make_room(&mut self.generations, MAX_GENERATIONS, |generation| generation.used);
    }

    fn read(&mut self, pid: u32) -> io::Result<Vec<Module>> {
        let text = maps::read(pid)?;
        let files = &mut self.files;
        Ok(modules(&text, |line| files.open(pid, line)))
    }
}

/// All executable mappings that `text` lists, by address.
fn modules(text: &[u8], mut open: impl FnMut(&Line<'_>) -> (Content, u64)) -> Vec<Module> {
    let mut found: Vec<Module> = Vec::new();
    // Start of the last line's file, if known.
    let mut begun: Option<(FileId, u64)> = None;
    for line in maps::lines(text) {
        if line.id.inode != 0 && (line.file_offset == 0 || begun.is_none_or(|(id, _)| id != line.id)) {
            begun = Some((line.id, line.start));
        }
        if !line.executable || found.len() >= MAX_MAPPINGS {
            continue;
        }
        let first = begun.filter(|(id, _)| *id == line.id).map_or(line.start, |(_, first)| first);
        let same = found.iter().rev().take(16).find(|module| line.id.inode != 0 && module.id == line.id);
        let (path, content, serial) = if let Some(module) = same {
            (Arc::clone(&module.path), module.content.clone(), module.serial)
        } else {
            let (content, serial) = open(&line);
            (Path::new(OsStr::from_bytes(line.name)).into(), content, serial)
        };
        found.push(Module {
            start: line.start,
            end: line.end,
            file_offset: line.file_offset,
            first,
            id: line.id,
            path,
            content,
            serial,
        });
    }
    found.sort_by_key(|module| module.start);
    found
}

fn at(modules: &[Module], address: u64) -> Option<&Module> {
    let behind = modules.partition_point(|module| module.start <= address);
    modules.get(behind.checked_sub(1)?).filter(|module| module.contains(address))
}

/// Open files, by identity. Kept modules only name them.
#[derive(Default)]
struct Files {
    open: HashMap<FileId, OpenFile>,
    /// Counts uses, to know which was the last, and files.
    clock: u64,
}

/// While it is open, no other file gets its inode.
struct OpenFile {
    file: Arc<File>,
    serial: u64,
    used: u64,
}

impl Files {
    /// Opens the file if necessary, and returns its serial number, or the contents of memory without a file.
    fn open(&mut self, pid: u32, line: &Line<'_>) -> (Content, u64) {
        self.clock += 1;
        let clock = self.clock;
        if line.name == b"[vdso]" {
            return (vdso(pid, line).map_or(Content::None, Content::Memory), clock);
        }
        if line.id.inode == 0 {
            return (Content::None, 0);
        }
        if let Some(known) = self.open.get_mut(&line.id) {
            known.used = clock;
            return (Content::None, known.serial);
        }
        let Some(file) = open(pid, line) else { return (Content::None, 0) };
        make_room(&mut self.open, MAX_FILES, |file| file.used);
        self.open.insert(line.id, OpenFile { file: Arc::new(file), serial: clock, used: clock });
        (Content::None, clock)
    }

    /// The module for a caller.
    fn with_file(&mut self, module: &Module) -> Module {
        self.clock += 1;
        let mut given = module.clone();
        if let Some(known) = self.open.get_mut(&module.id)
            && known.serial == module.serial
        {
            known.used = self.clock;
            given.content = Content::File(Arc::clone(&known.file));
        }
        given
    }
}

fn open(pid: u32, line: &Line<'_>) -> Option<File> {
    mapped::open(pid, &plain_range(line.range), Path::new(OsStr::from_bytes(line.name)), line.id).ok()
}

fn vdso(pid: u32, line: &Line<'_>) -> Option<Arc<[u8]>> {
    let len = line.end.checked_sub(line.start).filter(|len| *len <= MAX_VDSO_BYTES)?;
    let mut bytes = vec![0; usize::try_from(len).ok()?];
    File::open(format!("/proc/{pid}/mem")).ok()?.read_exact_at(&mut bytes, line.start).ok()?;
    Some(bytes.into())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn modules_are_found_by_address() {
        let text = b"00400000-00401000 r--p 00000000 08:02 5 /bin/program\n\
            00401000-00403000 r-xp 00001000 08:02 5 /bin/program\n\
            00403000-00404000 rw-p 00003000 08:02 5 /bin/program\n\
            7000-8000 r-xp 00000000 00:00 0 \n\
            7f0000-7f1000 r--p 00000000 08:02 6 /lib/a.so\n\
            7f1000-7f2000 r-xp 00001000 08:02 6 /lib/a.so\n\
            7f2000-7f3000 r--p 00000000 08:02 6 /lib/a.so\n\
            7f3000-7f5000 r-xp 00001000 08:02 6 /lib/a.so\n\
            7ffe-7fff r-xp 00000000 00:00 0 [vdso]\n";
        let mut opened = Vec::new();
        let found = modules(text, |line| {
            opened.push(line.start);
            (Content::None, 0)
        });
        // Once for each file; memory without a file is read as well.
        assert_eq!(opened, [0x0040_1000, 0x7000, 0x007f_1000, 0x7ffe]);
        let name = |address| at(&found, address).map(|module| (module.first, module.offset_of(address)));
        assert_eq!(name(0x0040_0fff), None);
        assert_eq!(name(0x0040_1000), Some((0x0040_0000, 0x1000)));
        assert_eq!(name(0x0040_2fff), Some((0x0040_0000, 0x2fff)));
        assert_eq!(name(0x0040_3000), None);
        assert_eq!(name(0x7800), Some((0x7000, 0x800)));
        assert_eq!(name(0x007f_1004), Some((0x007f_0000, 0x1004)));
        // Mapped a second time.
        assert_eq!(name(0x007f_4010), Some((0x007f_2000, 0x2010)));
    }

    fn address_of_code() -> u64 {
        (address_of_code as fn() -> u64 as *const ()).expose_provenance() as u64
    }

    #[test]
    fn own_process_has_program_and_kernel_code() {
        let mut mappings = Mappings::new(Box::new(|_| Some(7)));
        let pid = std::process::id();
        let module = mappings.lookup(7, pid, address_of_code()).expect("this code");
        assert_eq!(*module.path, std::env::current_exe().expect("own path"));
        assert!(matches!(module.content, Content::File(_)));
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let vdso = maps.lines().find(|line| line.ends_with("[vdso]")).expect("a vdso");
        let start = u64::from_str_radix(vdso.split('-').next().expect("an address"), 16).expect("hexadecimal");
        let module = mappings.lookup(7, pid, start + 0x40).expect("the vdso");
        let Content::Memory(bytes) = module.content else { panic!("{:?}", module.content) };
        assert_eq!(&bytes[..4], b"\x7fELF");
    }

    /// A mapping made after the last read is found once it is announced.
    #[test]
    fn what_is_announced_is_read_at_once() {
        let mut mappings = Mappings::new(Box::new(|_| Some(7)));
        let pid = std::process::id();
        assert!(matches!(mappings.find(7, pid, 8), Found::Nothing));
        mappings.generations.get_mut(&7).expect("known").modules.clear();
        mappings.look_ahead(pid);
        assert!(at(&mappings.generations[&7].modules, address_of_code()).is_some());
    }

    /// The generation changes while the mappings are read.
    #[test]
    fn what_may_be_newer_is_not_used() {
        let asked = AtomicU64::new(0);
        let mut mappings = Mappings::new(Box::new(move |_| Some(7 + asked.fetch_add(1, Ordering::Relaxed))));
        assert!(matches!(mappings.find(7, std::process::id(), address_of_code()), Found::Unknown));
        let mut mappings = Mappings::new(Box::new(|_| Some(8)));
        assert!(matches!(mappings.find(7, std::process::id(), address_of_code()), Found::Unknown));
        let mut mappings = Mappings::new(Box::new(|_| Some(7)));
        assert!(matches!(mappings.find(7, std::process::id(), 8), Found::Nothing));
    }

    #[test]
    fn generations_are_bounded_and_old_ones_go_first() {
        let mut mappings = Mappings::new(Box::new(|_| None));
        let generation = |used| Generation { modules: Vec::new(), used, read: Instant::now() };
        for number in 0..MAX_GENERATIONS as u64 {
            mappings.generations.insert(number, generation(number + 10));
        }
        mappings.generations.insert(3, generation(1));
        mappings.make_room();
        assert_eq!(mappings.generations.len(), MAX_GENERATIONS - 1);
        assert!(!mappings.generations.contains_key(&3));
    }
}
