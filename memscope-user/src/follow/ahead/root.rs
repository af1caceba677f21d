//! The root folder of a process. Files below it are under its owner's control: no path in there leads out of it, and
//! only regular files are opened.

use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    os::{fd::AsRawFd as _, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

use crate::{os::maps::FileId, regular};

/// Most entries of a folder that are read. The largest folders of libraries have some thousand.
const MAX_ENTRIES: usize = 1 << 15;

/// Identity of a root: mount namespace, and the folder.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RootId {
    namespace: PathBuf,
    folder: (u64, u64),
}

/// Which file it is, and when it was changed last (seconds and nanoseconds).
pub(super) type Stamp = (FileId, (i64, i64));

/// A root folder.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) id: RootId,
    /// `None`: our own.
    folder: Option<File>,
}

impl Root {
    /// Ours.
    pub(super) fn own() -> io::Result<Self> {
        Ok(Self { id: id(Path::new("/proc/self"))?, folder: None })
    }

    /// The root of a process.
    pub(super) fn of(pid: u32) -> io::Result<Self> {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let id = id(&process)?;
        let own = Self::own()?;
        if id == own.id {
            return Ok(own);
        }
        Ok(Self { id, folder: Some(File::open(process.join("root"))?) })
    }

    /// Opens a regular file; the path is as seen from in there.
    pub(super) fn open(&self, path: &Path) -> io::Result<File> {
        match &self.folder {
            None => regular::open(path),
            Some(root) => regular::open(&magic(&below(root, path)?)),
        }
    }

    /// Identity of the file now at this path.
    pub(super) fn stamp(&self, path: &Path) -> Option<Stamp> {
        let file = self.open(path).ok()?;
        let about = file.metadata().ok()?;
        Some((file_id(&file).ok()?, (about.ctime(), about.ctime_nsec())))
    }

    /// Names in a folder, sorted.
    pub(super) fn names(&self, path: &Path) -> Vec<OsString> {
        let entries = match &self.folder {
            None => fs::read_dir(path),
            Some(root) => below(root, path).and_then(|folder| fs::read_dir(magic(&folder))),
        };
        let entries = entries.into_iter().flatten().flatten().take(MAX_ENTRIES);
        let mut names: Vec<OsString> = entries.map(|entry| entry.file_name()).collect();
        names.sort_unstable();
        names
    }
}

fn id(process: &Path) -> io::Result<RootId> {
    let namespace = fs::read_link(process.join("ns/mnt"))?;
    let about = fs::metadata(process.join("root"))?;
    Ok(RootId { namespace, folder: (about.dev(), about.ino()) })
}

/// Finds the file of a path below a root. Opening it this way has no side effects, whatever its kind.
fn below(root: &File, path: &Path) -> io::Result<File> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    Ok(File::from(openat2(root, path, how)?))
}

fn magic(found: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

/// Which file it is.
pub(in crate::follow) fn file_id(file: &File) -> io::Result<FileId> {
    let about = file.metadata()?;
    Ok(FileId { device: (libc::major(about.dev()), libc::minor(about.dev())), inode: about.ino() })
}
