//! Puts the probe rows into the mapped files of a process; `plan` decides where, `choice` which, `names` in which files.

mod choice;
mod images;
mod library;
mod names;
mod operators;
mod place;
mod plan;
mod presences;
mod unused;

pub use self::choice::RowChoice;
pub use self::library::{Library, LibraryOps, Placed};
#[cfg(feature = "cli")]
pub(crate) use self::names::is_vendor_library;

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io::{self, Read as _, Seek as _},
    path::{Path, PathBuf},
};

use memscope_common::{
    ProbeRow,
    config::{IMAGE_OPEN, ImageKey},
};

use self::{images::image_key, operators::OpRow, plan::Plan, presences::Presences};

use super::ahead::{Found, Needs, file_id};
use crate::{
    backend::{
        self,
        watch::{self, WatchLevels},
    },
    capture::Note,
    error_chain,
    kernel::{Kernel, KernelError, LinkSet, features::LinkMode, same_file::Likeness, semaphore::Place},
    locate::{
        hidden::Cache,
        mstx_copies,
        ops::{OpsChoice, OpsOptions},
        site,
    },
    os::{
        elf::ElfFile,
        maps::{FileId, Mapped, mapped_files},
    },
    probes::{CallKind, Layer, ProbeSpec, RowInfo},
    regular,
};

/// Larger files are no libraries of ours; reading is bounded.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// Most files known to have no copy of mstx. Further mapped files are not searched.
const MAX_WITHOUT_COPY: usize = 1 << 16;
/// Most files without probes that are kept open, so that the kernel side can recognise them by their inodes.
const MAX_LOOKED: usize = 256;
/// Rows kept back for loaders. A system has one or two: the host's, and one per kind of container.
const LOADER_ROWS: u16 = 4;

/// Places rows, each file once.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Libraries {
    rows: Vec<(u16, &'static ProbeSpec)>,
    unserved: Vec<&'static str>,
    files: HashMap<FileId, Library>,
    /// Processes with unreadable mappings.
    denied_maps: HashMap<u32, Library>,
    /// Files with probes. An open file cannot be confused with a later one.
    probed: Vec<Probed>,
    /// Files with one of our names and nothing to probe. While they are open, no later file gets the inode of one.
    unprobed: HashMap<FileId, File>,
    /// Files that no process had mapped at the last look.
    idle: HashSet<FileId>,
    /// Files that a program may map and that have nothing to probe.
    looked: HashMap<FileId, File>,
    /// Files seen in mappings.
    seen: HashSet<FileId>,
    /// Recently mapped files that name folders to search.
    naming: Vec<(PathBuf, Needs)>,
    /// With the time of the last change: a later file may have the same inode.
    without_copy: HashSet<(FileId, (i64, i64))>,
    /// A traced process has mapped a library of the Ascend stack.
    mapped_any: bool,
    loader_rows: HashMap<i64, u16>,
    sites: site::Kernel,
    cache: Option<Cache>,
    ops: OpsOptions,
    serves_arrays: bool,
    /// A probe can have the places of its arguments.
    has_cookies: bool,
    /// Blocks are watched.
    watches: bool,
    /// Choice among the optional rows.
    choice: RowChoice,
    /// Files that were probed before, with rows that were wanted later.
    extended: Vec<Library>,
    /// Rows of operators, which are made when a library needs them.
    op_rows: HashMap<OpRow, u16>,
    next_op: u32,
    on_note: Option<Box<dyn Fn(Note)>>,
    /// Our tool for mstx reports the calls of copies of mstx.
    mstx_tool: bool,
    /// Descriptors that announce the tracer to the Python packages while open.
    presences: Presences,
    /// Probed loaders, and files kept open, that the kernel side does not know yet.
    new_images: Vec<ImageKey>,
    /// Probed packages without an announcement.
    unannounced: Vec<(LinkSet, (Place, File, PathBuf))>,
}

/// A file with probes.
struct Probed {
    /// Its numbers: overlays give it others.
    ids: Vec<FileId>,
    links: LinkSet,
    likeness: Likeness,
    file: File,
    path: PathBuf,
}

impl Libraries {
    /// Hands the chosen built-in rows to the kernel side, as many as fit besides those of the user, and then these.
    pub fn new(
        kernel: &mut Kernel,
        ops: OpsOptions,
        user: &[&'static ProbeSpec],
        watch: Option<WatchLevels>,
        choice: RowChoice,
    ) -> Result<Self, KernelError> {
        let mut libraries = Self::planner_of(kernel.room(), user, choice);
        libraries.ops = ops;
        libraries.watches = watch.is_some();
        libraries.serves_arrays = kernel.link_mode().serves_arrays();
        libraries.has_cookies = kernel.link_mode() != LinkMode::Slots;
        for (number, spec) in &mut libraries.rows {
            let flags = watch.map_or(0, |levels| watch::flags(spec, levels));
            let row = spec.row();
            *number = kernel.add_row(&ProbeRow { flags: row.flags | flags, ..row })?;
        }
        libraries.cache = Cache::of_user();
        Ok(libraries)
    }

    /// Calls `on_note` with each note that a reader of the records needs, before the first of them can come.
    pub fn set_on_note(&mut self, on_note: impl Fn(Note) + 'static) {
        self.on_note = Some(Box::new(on_note));
    }

    /// The program will load our tool for mstx, which is probed: what stands in for it elsewhere is not.
    pub const fn leave_mstx_to_tool(&mut self) {
        self.mstx_tool = true;
    }

    /// A planner without a kernel side, with room for at most `max_rows`: attaches nothing. Ignores the cache.
    #[must_use]
    pub fn planner(max_rows: u16, user: &[&'static ProbeSpec]) -> Self {
        Self::planner_of(max_rows, user, RowChoice::ALL)
    }

    fn planner_of(max_rows: u16, user: &[&'static ProbeSpec], choice: RowChoice) -> Self {
        let room = usize::from(max_rows.saturating_sub(LOADER_ROWS));
        let (user, unserved_user) = user.split_at(room.min(user.len()));
        let (mut served, mut unserved) =
            by_importance(backend::builtin().filter(|spec| choice.takes(spec)).collect(), room - user.len());
        served.extend_from_slice(user);
        unserved.extend(unserved_user);
        Self {
            rows: (1..).zip(served).collect(),
            unserved: unserved.iter().map(|spec| spec.symbol).collect(),
            files: HashMap::new(),
            denied_maps: HashMap::new(),
            probed: Vec::new(),
            unprobed: HashMap::new(),
            idle: HashSet::new(),
            looked: HashMap::new(),
            seen: HashSet::new(),
            naming: Vec::new(),
            without_copy: HashSet::new(),
            mapped_any: false,
            loader_rows: HashMap::new(),
            sites: site::Kernel::default(),
            cache: None,
            ops: OpsOptions { choice: OpsChoice::Npu, accesses: true, cpu: false },
            serves_arrays: true,
            has_cookies: max_rows > LinkMode::Slots.max_rows(),
            watches: false,
            choice,
            extended: Vec::new(),
            op_rows: HashMap::new(),
            next_op: 0,
            on_note: None,
            mstx_tool: false,
            presences: Presences::default(),
            new_images: Vec::new(),
            unannounced: Vec::new(),
        }
    }

    /// Functions without a probe because the kernel side has no room for them.
    #[must_use]
    pub fn unserved(&self) -> &[&'static str] {
        &self.unserved
    }

    /// All rows that exist from the start, by number.
    #[must_use]
    pub fn rows(&self) -> &[(u16, &'static ProbeSpec)] {
        &self.rows
    }

    /// Descriptions of the rows, by number from 1.
    #[must_use]
    pub fn descriptions(&self) -> Vec<RowInfo> {
        self.rows.iter().map(|(_, spec)| spec.describe()).collect()
    }

    /// Whether a traced process was seen to map a library of the Ascend stack. An expected one does not count.
    #[must_use]
    pub const fn found_any(&self) -> bool {
        self.mapped_any
    }

    /// Whether calls of this kind are probed in a file.
    #[must_use]
    pub fn places(&self, meaning: CallKind) -> bool {
        let is_it = |row: u16| self.rows.iter().any(|(known, spec)| *known == row && spec.meaning == meaning);
        self.files.values().flat_map(|library| &library.placed).any(|placed| is_it(placed.row))
    }

    /// Whether a file is of the Ascend stack. The C library and Python are not: their rows are of the end of processes.
    pub(super) fn is_of_stack(&self, library: &Library) -> bool {
        let is_of = |row: u16| self.rows.iter().any(|(known, spec)| *known == row && spec.layer != Layer::Process);
        library.ops.is_some() || library.placed.iter().any(|placed| is_of(placed.row))
    }

    /// Probes all mapped files of `pid` that were not probed yet. Returns the new files.
    pub fn attach(&mut self, kernel: &mut Kernel, pid: u32) -> Result<Vec<Library>, KernelError> {
        let mut added = Vec::new();
        let mapped = match mapped_files(pid) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Ok(self.denied_maps(pid, &error).into_iter().collect());
            }
            // A process that is gone has no mappings left to probe.
            mapped => mapped.unwrap_or_default(),
        };
        for mapped in mapped {
            self.note_naming(&mapped, pid);
            if !self.files.contains_key(&mapped.id) && (self.is_wanted(&mapped) || self.may_have_copy(&mapped, pid)) {
                let library = self.attach_file(kernel, mapped.id, &mapped.path, mapped.open(pid))?;
                self.note_loader(mapped.id, &library);
                self.files.insert(mapped.id, library.clone());
                added.push(library);
            }
            self.mapped_any = self.mapped_any || self.files.get(&mapped.id).is_some_and(|file| self.is_of_stack(file));
        }
        added.append(&mut self.extended);
        Ok(added)
    }

    /// Notes that a process went on before these files were probed, or that it is `gone` and its files are unknown.
    pub(super) fn note_late(&self, files: &[Library], gone: Option<u32>) {
        let Some(on_note) = &self.on_note else { return };
        let mut rows: Vec<u16> = files.iter().flat_map(|file| &file.placed).map(|placed| placed.row).collect();
        rows.sort_unstable();
        rows.dedup();
        on_note(Note::Late { rows, operators: files.iter().any(|file| file.ops.is_some()), gone });
    }

    /// Mapped files of traced processes that may not be opened: their functions are not traced.
    pub fn denied(&self) -> impl Iterator<Item = &Library> {
        self.files.values().chain(self.denied_maps.values()).filter(|library| library.denied)
    }

    /// A process with unreadable mappings; returned once.
    fn denied_maps(&mut self, pid: u32, error: &io::Error) -> Option<Library> {
        if self.denied_maps.contains_key(&pid) {
            return None;
        }
        let text = format!("{error}; CAP_SYS_PTRACE is needed, or root");
        let library =
            Library { error: Some(text), denied: true, ..Library::at(Path::new(&format!("/proc/{pid}/maps"))) };
        self.denied_maps.insert(pid, library.clone());
        Some(library)
    }

    /// A file seen for the first time may name folders to search.
    fn note_naming(&mut self, mapped: &Mapped, pid: u32) {
        if self.seen.len() >= MAX_WITHOUT_COPY || !self.seen.insert(mapped.id) {
            return;
        }
        let needs = mapped.open(pid).ok().and_then(|file| Needs::of(&file));
        if let Some(needs) = needs.filter(Needs::names_folders) {
            self.naming.push((mapped.path.clone(), needs));
        }
    }

    /// Files that were mapped since the last call and name folders to search.
    pub(super) fn take_naming(&mut self) -> Vec<(PathBuf, Needs)> {
        std::mem::take(&mut self.naming)
    }

    /// Probes a file that a program may map, or finds nothing of ours in it. It is kept open as long as there is room,
    /// so that no thread has to wait when it is mapped.
    pub(super) fn attach_ahead(&mut self, kernel: &mut Kernel, found: Found) -> Result<Option<Library>, KernelError> {
        let Found { path, file } = found;
        let Ok(id) = file_id(&file) else { return Ok(None) };
        if self.files.contains_key(&id) || self.looked.contains_key(&id) {
            return Ok(None);
        }
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
        if self.is_wanted_name(name) || !self.mstx_tool && mstx_copies::may_be_in(&file) {
            let library = self.attach_file(kernel, id, &path, Ok(file))?;
            self.note_loader(id, &library);
            self.note_open(id, &library);
            self.files.insert(id, library.clone());
            // Another name of a mapped file is no news.
            return Ok(library.same_as.is_none().then_some(library));
        }
        if self.looked.len() < MAX_LOOKED {
            self.looked.insert(id, file);
            self.new_images.push(image_key(id, IMAGE_OPEN));
        }
        Ok(None)
    }

    /// Probes a file before any process has mapped it.
    pub fn attach_path(&mut self, kernel: &mut Kernel, path: &Path) -> Result<Option<Library>, KernelError> {
        use std::os::unix::fs::MetadataExt as _;
        let Ok(metadata) = path.metadata() else { return Ok(None) };
        let device = (nix::sys::stat::major(metadata.dev()) as u32, nix::sys::stat::minor(metadata.dev()) as u32);
        let id = FileId { device, inode: metadata.ino() };
        if self.files.contains_key(&id) || !metadata.is_file() {
            return Ok(None);
        }
        let library = self.attach_file(kernel, id, path, regular::open(path))?;
        // Nothing is missing unless a process maps it, and then it is tried by another way.
        if library.denied {
            return Ok(None);
        }
        self.note_loader(id, &library);
        self.note_open(id, &library);
        self.files.insert(id, library.clone());
        Ok(Some(library))
    }

    /// Announces the tracer to scripts, once their processes are traced. Returns files for which that failed.
    pub fn announce(&mut self, kernel: &mut Kernel) -> Vec<Library> {
        for (links, package) in self.unannounced.drain(..) {
            self.presences.announce(kernel, links, package);
        }
        self.presences.wait()
    }

    /// The probes that would be placed into the mapped Ascend libraries of `pid`.
    pub fn plan(&mut self, pid: u32) -> io::Result<Vec<Library>> {
        let mut found = Vec::new();
        for mapped in mapped_files(pid)? {
            let named = self.is_wanted(&mapped) && !self.is_of_process(mapped.file_name());
            let library = self.plan_file(None, &mapped.path, mapped.open(pid)).map_err(io::Error::other)?.library;
            if named || library.hidden_copy || self.is_of_stack(&library) {
                found.push(library);
            }
        }
        Ok(found)
    }

    /// The probes that would be placed into a file, whether or not a process has mapped it, and for either machine.
    pub fn plan_path(&mut self, path: &Path) -> io::Result<Library> {
        let file = regular::open(path)?;
        Ok(self.plan_file(None, path, Ok(file)).map_err(io::Error::other)?.library)
    }

    /// Whether to search a file without a known name for a copy of mstx. Once for each file.
    fn may_have_copy(&mut self, mapped: &Mapped, pid: u32) -> bool {
        if self.mstx_tool || self.without_copy.len() >= MAX_WITHOUT_COPY {
            return false;
        }
        let key = (mapped.id, mapped.changed(pid).unwrap_or_default());
        if self.without_copy.contains(&key) {
            return false;
        }
        let may = mapped.open(pid).is_ok_and(|file| mstx_copies::may_be_in(&file));
        if !may {
            self.without_copy.insert(key);
        }
        may
    }

    fn note(&self, note: Note) {
        if let Some(on_note) = &self.on_note {
            on_note(note);
        }
    }

    fn plan_file(
        &mut self,
        kernel: Option<&mut Kernel>,
        path: &Path,
        file: io::Result<File>,
    ) -> Result<Plan, KernelError> {
        let mut plan = Plan::new(path);
        // Reading the whole file also puts the probed pages into the page cache: some kernels warn when a probe is
        // installed on an absent page.
        let read = file.and_then(|file| read_whole(&file).map(|bytes| (file, bytes)));
        let (file, bytes) = match read {
            Ok(found) => found,
            Err(error) => {
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
                // Without a sign of the exit others are left.
                if !self.is_of_process(name) {
                    plan.library.denied = error.kind() == io::ErrorKind::PermissionDenied;
                    plan.library.error = Some(error_chain(&error));
                }
                return Ok(plan);
            }
        };
        match ElfFile::parse(&bytes) {
            Ok(elf) => {
                self.plan_elf(kernel, &elf, &mut plan)?;
                let offsets = plan.points.iter().map(|point| point.file_offset);
                let offsets = offsets.chain(plan.ops.points.iter().map(|point| point.file_offset)).collect();
                plan.likeness = Some(Likeness::new(&elf, offsets));
            }
            Err(error) => plan.library.error = Some(error_chain(&error)),
        }
        plan.file = Some(file);
        Ok(plan)
    }
}

/// The most important `room` rows, and the rest. Within a layer the order of its table counts.
fn by_importance(
    mut specs: Vec<&'static ProbeSpec>,
    room: usize,
) -> (Vec<&'static ProbeSpec>, Vec<&'static ProbeSpec>) {
    specs.sort_by_key(|spec| spec.layer);
    let unserved = specs.split_off(specs.len().min(room));
    (specs, unserved)
}

/// Reads a file from its beginning, wherever its cursor is.
fn read_whole(mut file: &File) -> io::Result<Vec<u8>> {
    file.rewind()?;
    let size = file.metadata()?.len();
    if size > MAX_FILE_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("{size} bytes is more than a library has")));
    }
    let mut bytes = Vec::with_capacity(size as usize);
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
