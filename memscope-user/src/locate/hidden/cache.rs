//! Caches results by build-id: a library is the same in each process and container that has it.
//!
//! An entry is only a hint. Build-ids can be forged, so an entry from a hostile program's library may be used for an
//! honest one; every entry is checked against the file at hand before it is used. The folder belongs to the user who
//! traces and is writable by no other user; otherwise there is no cache. Failures are silent: the search is then done
//! again.

use std::{
    env,
    fmt::Write as _,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{Read as _, Write as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
    process,
};

use nix::{
    fcntl::{OFlag, openat, renameat},
    sys::stat::Mode,
    unistd::{UnlinkatFlags, geteuid, unlinkat},
};
use serde::{Deserialize, Serialize};

use super::{Checked, Evidence, VERSION};
use crate::{os::elf::ElfFile, probes::Locator};

/// Root's folder: root's environment may be that of the user who called `sudo`.
const ROOT_FOLDER: &str = "/var/cache/memscope-bpf";
const FOLDER: &str = "memscope-bpf";

/// No entry is longer.
const MAX_ENTRY: u64 = 4096;

/// Rights of others that must not be there.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// A folder of earlier answers.
#[derive(Debug)]
pub struct Cache {
    folder: OwnedFd,
}

impl Cache {
    /// The cache of the user who runs this program, made if missing.
    #[must_use]
    pub fn of_user() -> Option<Self> {
        Self::in_folder(&default_folder()?)
    }

    /// In `folder`, made if missing. `None` if it cannot be made, is a link, or can be written by other users.
    #[must_use]
    pub fn in_folder(folder: &Path) -> Option<Self> {
        if let Some(parent) = folder.parent().filter(|parent| !parent.exists()) {
            fs::create_dir_all(parent).ok()?;
        }
        // If it exists, the checks below decide.
        let _ = DirBuilder::new().mode(0o700).create(folder);
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
        let opened = OpenOptions::new().read(true).custom_flags(flags.bits()).open(folder).ok()?;
        is_ours(&opened).then(|| Self { folder: opened.into() })
    }

    /// The entry for a file. `None` without a build-id, which distinguishes versions.
    pub(super) fn key(&self, locator: Locator, elf: &ElfFile<'_>) -> Option<Key<'_>> {
        let mut name = String::new();
        for byte in elf.build_id()? {
            let _ = write!(name, "{byte:02x}");
        }
        name.push_str(match locator {
            Locator::PtaReport => "-pta-report.json",
            // Quickly found again.
            Locator::PtaAllocate
            | Locator::PtaRawAlloc
            | Locator::PtaRawAllocWithStream
            | Locator::PtaEmptyCache
            | Locator::PtaRecordStream
            | Locator::PtaPool(_)
            | Locator::MstxMethod(_)
            | Locator::PtaMethod { .. }
            | Locator::MstxParse { .. } => return None,
        });
        Some(Key { cache: self, name, file_bytes: elf.len_bytes() })
    }
}

/// Where an answer is kept.
pub(super) struct Key<'c> {
    cache: &'c Cache,
    name: String,
    file_bytes: u64,
}

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    version: u32,
    file_bytes: u64,
    pub(super) vaddr: u64,
    callers: usize,
    allocator: Checked,
}

impl Entry {
    pub(super) fn evidence(&self) -> Evidence {
        Evidence { callers: self.callers, allocator: self.allocator, cached: true, ..Evidence::NONE }
    }
}

impl Key<'_> {
    /// `None` too where the entry is of another version or file, or damaged.
    pub(super) fn read(&self) -> Option<Entry> {
        // Without waiting, should a pipe lie there.
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = File::from(openat(self.cache.folder.as_fd(), self.name.as_str(), flags, Mode::empty()).ok()?);
        (is_ours(&file) && file.metadata().ok()?.is_file()).then_some(())?;
        let mut text = Vec::new();
        file.take(MAX_ENTRY).read_to_end(&mut text).ok()?;
        let entry: Entry = serde_json::from_slice(&text).ok()?;
        (entry.version == VERSION && entry.file_bytes == self.file_bytes).then_some(entry)
    }

    /// Whole or not at all: under another name first.
    pub(super) fn write(&self, vaddr: u64, evidence: Evidence) {
        let Evidence { callers, allocator, .. } = evidence;
        let entry = Entry { version: VERSION, file_bytes: self.file_bytes, vaddr, callers, allocator };
        let Ok(text) = serde_json::to_vec(&entry) else { return };
        let folder = self.cache.folder.as_fd();
        let temporary = format!("{}.{}", self.name, process::id());
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let Ok(file) = openat(folder, temporary.as_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR) else { return };
        let written = File::from(file).write_all(&text).is_ok()
            && renameat(folder, temporary.as_str(), folder, self.name.as_str()).is_ok();
        if !written {
            let _ = unlinkat(folder, temporary.as_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

fn default_folder() -> Option<PathBuf> {
    if geteuid().is_root() {
        return Some(PathBuf::from(ROOT_FOLDER));
    }
    let absolute = |variable: &str| env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(caches.join(FOLDER))
}

fn is_ours(file: &File) -> bool {
    let ours =
        |metadata: fs::Metadata| metadata.uid() == geteuid().as_raw() && metadata.mode() & WRITABLE_BY_OTHERS == 0;
    file.metadata().is_ok_and(ours)
}
