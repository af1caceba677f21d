//! Finds libraries before a program maps them, wherever its loader will look for them.
//!
//! Found libraries are probed by inode, so that no thread has to wait when they are mapped. A missed place costs a hold
//! at that moment, and one too many costs a probe that is never hit: so all of the loader's places are searched, in any
//! order.

mod cache;
mod needs;
mod root;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    ffi::{OsStr, OsString},
    fs::{self, File},
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

pub(super) use needs::Needs;
pub(super) use root::file_id;
use root::{Root, RootId, Stamp};

use crate::{
    backend,
    os::{maps::FileId, process::variable},
    probes::ProbeSpec,
};

/// The start of a path with the folder that Debian has for this machine.
macro_rules! concat_triplet {
    ($start:literal) => {
        if cfg!(target_arch = "aarch64") {
            concat!($start, "aarch64-linux-gnu")
        } else {
            concat!($start, "x86_64-linux-gnu")
        }
    };
}
/// Files of one search.
const MAX_FILES: usize = 512;
/// Folders that one variable, or one file, names.
const MAX_FOLDERS: usize = 128;
/// Longest time of one search: a network file system may be slow, and the tracer has other work.
const MAX_TIME: Duration = Duration::from_millis(300);
/// Most roots and programs kept.
const MAX_ROOTS: usize = 256;
const MAX_PROGRAMS: usize = 4096;

const CACHE: &str = "/etc/ld.so.cache";
const CONFIGURATION: &str = "/etc/ld.so.conf";
/// Default folders of loaders: glibc's on several distributions, musl's.
const FOLDERS: [&str; 7] = [
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
    concat_triplet!("/lib/"),
    concat_triplet!("/usr/lib/"),
    "/usr/local/lib",
];
/// Folders of libraries for newer processors, below each searched folder (`ld.so(8)`, glibc 2.33).
const PROCESSORS: &str = "glibc-hwcaps";
/// Possible values of `$LIB`; loaders are built with one of them.
const LIB: [&str; 3] = ["lib64", "lib", concat_triplet!("lib/")];

/// A file that a program may map.
#[derive(Debug)]
pub(super) struct Found {
    /// As the program sees it.
    pub(super) path: PathBuf,
    pub(super) file: File,
}

/// What decides where a program's libraries are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Program {
    root: RootId,
    file: Option<FileId>,
    /// Folders of its environment.
    folders: Vec<PathBuf>,
}

/// The system below one root.
#[derive(Debug, Default)]
struct System {
    /// Libraries in the cache.
    libraries: HashMap<OsString, Vec<PathBuf>>,
    /// Folders that need no variable.
    folders: Vec<PathBuf>,
    /// Searched folders.
    visited: HashSet<PathBuf>,
    /// Identity of the cache.
    stamp: Option<Stamp>,
    is_read: bool,
}

/// The results of all searches.
#[derive(Debug)]
pub(super) struct Ahead {
    /// Names of libraries with rows.
    names: Vec<&'static str>,
    systems: HashMap<RootId, System>,
    programs: HashSet<Program>,
    /// A search has reached its limit since the last check.
    is_cut: bool,
}

impl Ahead {
    /// Without any search. `user`: rows besides the built-in ones.
    pub(super) fn new(user: &[&'static ProbeSpec]) -> Self {
        let specs = backend::builtin().chain(user.iter().copied());
        // Those with a star are in folders that no loader searches.
        let mut names: Vec<&str> =
            specs.flat_map(|spec| spec.libraries.iter().copied()).filter(|name| !name.contains('*')).collect();
        names.sort_unstable();
        names.dedup();
        Self { names, systems: HashMap::new(), programs: HashSet::new(), is_cut: false }
    }

    /// Libraries that a program started from here with this environment will find.
    pub(super) fn of_program(&mut self, program: &Path, environment: &[u8]) -> Vec<Found> {
        let Ok(root) = Root::own() else { return Vec::new() };
        let folder = std::env::current_dir().unwrap_or_default();
        self.search(
            &root,
            &fs::canonicalize(program).unwrap_or_default(),
            root.open(program).ok(),
            environment,
            &folder,
        )
    }

    /// Libraries that a process will find.
    pub(super) fn of_process(&mut self, pid: u32, environment: &[u8]) -> Vec<Found> {
        let link = |name: &str| fs::read_link(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let Ok(root) = Root::of(pid) else { return Vec::new() };
        let program = File::open(format!("/proc/{pid}/exe")).ok();
        self.search(&root, &link("exe"), program, environment, &link("cwd"))
    }

    /// What libraries that a process has mapped will find.
    pub(super) fn of_libraries(&mut self, pid: u32, libraries: Vec<(PathBuf, Needs)>) -> Vec<Found> {
        let Ok(root) = Root::of(pid) else { return Vec::new() };
        let names = &self.names;
        let Some(system) = system(&mut self.systems, &root) else { return Vec::new() };
        let mut search = Search::new(&root, system, names, Vec::new());
        for (path, needs) in libraries {
            search.follow(&path, &needs);
        }
        search.run(&mut self.is_cut)
    }

    /// Whether a search has reached its limit since the last call: missed libraries are probed once a process maps
    /// them.
    pub(super) const fn take_cut(&mut self) -> bool {
        std::mem::replace(&mut self.is_cut, false)
    }

    fn search(
        &mut self,
        root: &Root,
        path: &Path,
        program: Option<File>,
        environment: &[u8],
        folder: &Path,
    ) -> Vec<Found> {
        let origin = path.parent().unwrap_or(Path::new("/"));
        let folders = of_environment(environment, origin, folder);
        let file = program.as_ref().and_then(|file| file_id(file).ok());
        let key = Program { root: root.id.clone(), file, folders: folders.clone() };
        if self.programs.len() >= MAX_PROGRAMS {
            self.programs.clear();
        }
        if !self.programs.insert(key) {
            return Vec::new();
        }
        let names = &self.names;
        let Some(system) = system(&mut self.systems, root) else { return Vec::new() };
        let mut search = Search::new(root, system, names, folders);
        search.look_everywhere();
        if let Some(file) = program {
            search.take(path.to_owned(), file);
        }
        search.run(&mut self.is_cut)
    }
}

/// The system below a root, read once and whenever its cache has changed.
fn system<'a>(systems: &'a mut HashMap<RootId, System>, root: &Root) -> Option<&'a mut System> {
    if systems.len() >= MAX_ROOTS && !systems.contains_key(&root.id) {
        return None;
    }
    let stamp = root.stamp(Path::new(CACHE));
    let system = systems.entry(root.id.clone()).or_default();
    if !system.is_read || system.stamp != stamp {
        *system = System { is_read: true, stamp, ..System::read(root) };
    }
    Some(system)
}

impl System {
    fn read(root: &Root) -> Self {
        let bytes = cache::read(root, Path::new(CACHE)).unwrap_or_default();
        let mut libraries: HashMap<OsString, Vec<PathBuf>> = HashMap::new();
        for (name, path) in cache::parse(&bytes) {
            libraries.entry(name.to_owned()).or_default().push(path.to_owned());
        }
        let mut folders = cache::folders(root, Path::new(CONFIGURATION));
        folders.extend(FOLDERS.iter().chain(backend::current().driver_folders()).map(PathBuf::from));
        Self { libraries, folders, ..Self::default() }
    }
}

/// One search.
struct Search<'a> {
    root: &'a Root,
    system: &'a mut System,
    names: &'a [&'static str],
    /// Of the environment.
    folders: Vec<PathBuf>,
    paths: HashSet<PathBuf>,
    files: HashSet<FileId>,
    found: Vec<Found>,
    queue: VecDeque<(PathBuf, Needs)>,
    until: Instant,
    is_cut: bool,
}

impl<'a> Search<'a> {
    fn new(root: &'a Root, system: &'a mut System, names: &'a [&'static str], folders: Vec<PathBuf>) -> Self {
        let (paths, files, found, queue) = (HashSet::new(), HashSet::new(), Vec::new(), VecDeque::new());
        let until = Instant::now() + MAX_TIME;
        Self { root, system, names, folders, paths, files, found, queue, until, is_cut: false }
    }

    /// Finds our libraries in the folders that every program searches.
    fn look_everywhere(&mut self) {
        let mut folders = self.folders.clone();
        folders.extend_from_slice(&self.system.folders);
        for folder in &folders {
            self.look_into(folder);
        }
        let cached = self.system.libraries.iter().filter(|(name, _)| self.is_ours(name));
        let cached: Vec<PathBuf> = cached.flat_map(|(_, paths)| paths.clone()).collect();
        for path in cached {
            self.open(path);
        }
    }

    fn is_ours(&self, name: &OsStr) -> bool {
        self.names.iter().any(|ours| is_version(name, ours))
    }

    /// Finds our libraries in a folder, and in its folders for newer processors.
    fn look_into(&mut self, folder: &Path) {
        let processors = folder.join(PROCESSORS);
        let names = self.look_at(folder);
        if names.iter().any(|name| name == PROCESSORS) {
            for name in self.root.names(&processors) {
                self.look_at(&processors.join(name));
            }
        }
    }

    /// Finds our libraries in one folder. Returns all names in it, none if it was searched before.
    fn look_at(&mut self, folder: &Path) -> Vec<OsString> {
        if self.system.visited.len() >= MAX_PROGRAMS || !self.system.visited.insert(folder.to_owned()) {
            return Vec::new();
        }
        let names = self.root.names(folder);
        for name in &names {
            if self.is_ours(name) {
                self.open(folder.join(name));
            }
        }
        names
    }

    /// Takes a file if it exists. Returns whether it did, or had been taken before.
    fn open(&mut self, path: PathBuf) -> bool {
        if self.paths.contains(&path) {
            return true;
        }
        if self.found.len() >= MAX_FILES || Instant::now() >= self.until {
            self.is_cut = true;
            return false;
        }
        self.root.open(&path).is_ok_and(|file| self.take(path, file))
    }

    fn take(&mut self, path: PathBuf, file: File) -> bool {
        let (Ok(id), Some(needs)) = (file_id(&file), Needs::of(&file)) else { return false };
        self.paths.insert(path.clone());
        if self.files.insert(id) {
            self.queue.push_back((path.clone(), needs));
            self.found.push(Found { path, file });
        }
        true
    }

    fn run(mut self, is_cut: &mut bool) -> Vec<Found> {
        while let Some((path, needs)) = self.queue.pop_front() {
            self.follow(&path, &needs);
        }
        *is_cut |= self.is_cut;
        self.found
    }

    /// Finds the libraries that a file needs.
    fn follow(&mut self, path: &Path, needs: &Needs) {
        let origin = path.parent().unwrap_or(Path::new("/"));
        let of =
            |text: &Option<OsString>| text.iter().flat_map(|text| expanded(text, origin, None)).collect::<Vec<_>>();
        let (before, behind) = (of(&needs.rpath), of(&needs.runpath));
        for folder in before.iter().chain(&behind) {
            self.look_into(folder);
        }
        for name in &needs.needed {
            let by_path = name.as_bytes().contains(&b'/');
            let paths: Vec<PathBuf> = if by_path {
                // The loader searches nothing for it; one below its folder of the moment is not known.
                Some(PathBuf::from(name)).filter(|path| path.is_absolute()).into_iter().collect()
            } else {
                let folders = before.iter().chain(&self.folders).chain(&behind).map(|folder| folder.join(name));
                let cached = self.system.libraries.get(name).into_iter().flatten().cloned();
                let system = self.system.folders.iter().map(|folder| folder.join(name));
                folders.chain(cached).chain(system).collect()
            };
            // The loader takes the first.
            let _ = paths.into_iter().any(|path| self.open(path));
        }
    }
}

/// Whether a file is called as a library is, with or without a version behind it.
fn is_version(name: &OsStr, library: &str) -> bool {
    let rest = name.as_bytes().strip_prefix(library.as_bytes());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"."))
}

/// Folders that an environment names.
fn of_environment(environment: &[u8], origin: &Path, current: &Path) -> Vec<PathBuf> {
    let value = |name: &str| variable(environment, name).map(|value| OsString::from_vec(value.to_vec()));
    let listed = value("LD_LIBRARY_PATH").map(|text| expanded(&text, origin, Some(current))).unwrap_or_default();
    let homes = backend::current()
        .home_variables()
        .iter()
        .copied()
        .filter_map(value)
        .map(|home| PathBuf::from(home).join("lib64"));
    listed.into_iter().chain(homes.filter(|home| home.is_absolute())).collect()
}

/// Folders of a list, with what `$ORIGIN`, `$LIB` and `$PLATFORM` stand for. `current`: what relative ones are relative to.
fn expanded(list: &OsStr, origin: &Path, current: Option<&Path>) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for part in list.as_bytes().split(|byte| matches!(byte, b':' | b';')).take(MAX_FOLDERS) {
        let part = replaced(part, "ORIGIN", origin.as_os_str().as_bytes());
        let part = replaced(&part, "PLATFORM", std::env::consts::ARCH.as_bytes());
        let libs = if replaced(&part, "LIB", b"") == part { &LIB[..1] } else { &LIB };
        for lib in libs {
            let path = PathBuf::from(OsString::from_vec(replaced(&part, "LIB", lib.as_bytes())));
            let path = current.map_or_else(|| path.clone(), |current| current.join(&path));
            if path.is_absolute() && !found.contains(&path) {
                found.push(path);
            }
        }
    }
    found
}

/// The text with `$name` and `${name}` replaced.
fn replaced(text: &[u8], name: &str, by: &[u8]) -> Vec<u8> {
    let (mut rest, mut out) = (text, Vec::with_capacity(text.len()));
    while let Some(at) = rest.iter().position(|byte| *byte == b'$') {
        out.extend_from_slice(&rest[..at]);
        rest = &rest[at..];
        let braced = [b"${", name.as_bytes(), b"}"].concat();
        let plain = [b"$", name.as_bytes()].concat();
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        if let Some(behind) = rest.strip_prefix(&braced[..]) {
            out.extend_from_slice(by);
            rest = behind;
        } else if let Some(behind) = rest.strip_prefix(&plain[..]).filter(|rest| !rest.first().is_some_and(is_word)) {
            out.extend_from_slice(by);
            rest = behind;
        } else {
            out.push(b'$');
            rest = &rest[1..];
        }
    }
    out.extend_from_slice(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists are split as `ld.so(8)` describes.
    #[test]
    fn lists_of_folders() {
        let of = |list: &str, current: Option<&str>| {
            let found = expanded(OsStr::new(list), Path::new("/app/bin"), current.map(Path::new));
            found.into_iter().map(|path| path.to_str().expect("text").to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(of("$ORIGIN/../lib:${ORIGIN}", None), ["/app/bin/../lib", "/app/bin"]);
        assert_eq!(of("/a;/b:rel::/a", None), ["/a", "/b"]);
        assert_eq!(of("/a:rel:", Some("/now")), ["/a", "/now/rel", "/now/"]);
        assert_eq!(of("/opt/$LIB", None)[..2], ["/opt/lib64", "/opt/lib"]);
        assert_eq!(of("/opt/${PLATFORM}/x", None), [format!("/opt/{}/x", std::env::consts::ARCH)]);
        assert_eq!(of("/$ORIGINAL/$", None), ["/$ORIGINAL/$"]);
    }

    /// Makes sure that folders come from the environment, and others' variables do not count.
    #[test]
    fn folders_of_environments() {
        let environment =
            b"XLD_LIBRARY_PATH=/x\0LD_LIBRARY_PATH=/a:b\0ASCEND_HOME_PATH=/cann\0ASCEND_TOOLKIT_HOME=rel\0\xff\0";
        let found = of_environment(environment, Path::new("/app"), Path::new("/now"));
        assert_eq!(found, ["/a", "/now/b", "/cann/lib64"].map(PathBuf::from));
    }

    /// A library needed by its path is found, and a search that reaches its limit reports that once.
    #[test]
    fn libraries_by_their_paths() {
        let own = std::env::current_exe().expect("a path");
        let root = Root::own().expect("a root");
        let mut system = System::default();
        let needed = vec![own.clone().into_os_string(), "relative/libx.so".into()];
        let needs = Needs { needed, ..Needs::default() };
        let find = |system: &mut System, until: Option<Instant>| {
            let mut is_cut = false;
            let mut search = Search::new(&root, system, &[], Vec::new());
            search.until = until.unwrap_or(search.until);
            search.follow(Path::new("/app/lib/liby.so"), &needs);
            let found = search.run(&mut is_cut);
            (found.iter().any(|found| found.path == own), is_cut)
        };
        assert_eq!(find(&mut system, None), (true, false));
        assert_eq!(find(&mut system, Some(Instant::now())), (false, true));
    }

    /// Makes sure that a program's libraries are found where this test's own loader has found them.
    #[test]
    fn libraries_of_this_program() {
        let own = std::env::current_exe().expect("a path");
        let mut ahead = Ahead::new(&[]);
        let found = ahead.of_program(&own, b"");
        let ids: HashSet<FileId> = found.iter().filter_map(|found| file_id(&found.file).ok()).collect();
        let mapped = crate::os::maps::mapped_files(std::process::id()).expect("readable");
        let is_library = |name: &str| name.starts_with("libc.so") || name.starts_with("libgcc_s.so");
        let libraries: Vec<_> = mapped.iter().filter(|mapped| is_library(mapped.file_name())).collect();
        assert!(!libraries.is_empty());
        for library in libraries {
            let file = File::open(&library.path).expect("open");
            assert!(ids.contains(&file_id(&file).expect("a file")), "{library:?}: {found:?}");
        }
        assert!(ahead.of_program(&own, b"").is_empty());
    }
}
