//! Where outputs are put (contract §2.1, §2.2), and how files get there safely.
//!
//! The tracer often runs as root and writes into a directory of somebody else. So below the output directory
//! nothing is opened by its full path: each step is opened from the handle of the step before
//! (`/proc/self/fd/<n>/<name>`, which is `openat` without `unsafe`), never through a symbolic link, and files are
//! made with `O_EXCL`. Directories of processes are always new: where one of that name exists, the next second's
//! name is taken. A file or process directory that is opened again has to be the same inode as before.
//!
//! Modes are set explicitly, whatever the umask. Under sudo everything is handed to the calling user at once.

use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::{ToSpan, Zoned};

use super::SinkError;
use crate::hash::HashMap;

const DIRECTORY_MODE: u32 = 0o750;
/// Mode of dumps and logs.
pub const FILE_MODE: u32 = 0o600;
/// Mode of `config.json`.
pub const CONFIG_MODE: u32 = 0o640;

/// Names tried for the directory of a process, one second apart.
const MAX_STAMPS: i64 = 600;

/// User and group that outputs are handed to.
pub type Owner = (u32, u32);

/// The output directory.
#[derive(Debug)]
pub struct OutputTree {
    root: Dir,
    owner: Option<Owner>,
}

/// The directory of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessDir {
    name: String,
    path: PathBuf,
    stamp: String,
    identity: Identity,
}

/// Directories of processes, for all who write into them.
#[derive(Clone, Debug, Default)]
pub struct ProcessDirs(Arc<Mutex<HashMap<u32, ProcessDir>>>);

impl ProcessDirs {
    /// The directory of a process, made when it is first asked for.
    pub fn of(&self, tree: &OutputTree, pid: u32) -> Result<ProcessDir, SinkError> {
        let mut dirs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(dir) = dirs.get(&pid) {
            return Ok(dir.clone());
        }
        let dir = tree.make_process_dir(pid)?;
        dirs.insert(pid, dir.clone());
        Ok(dir)
    }

    /// The process has ended: its number may be used again.
    pub fn forget(&self, pid: u32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&pid);
    }
}

/// A file in the tree that can be opened again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    process: ProcessDir,
    directories: Vec<String>,
    name: String,
    path: PathBuf,
    identity: Identity,
}

/// Device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity(u64, u64);

#[derive(Debug)]
struct Dir {
    handle: File,
    path: PathBuf,
}

impl OutputTree {
    /// Opens the output directory, making it and those above it where missing.
    ///
    /// Links on the way *to* the output directory are the user's own choice and are followed.
    pub fn open(root: &Path, owner: Option<Owner>) -> Result<Self, SinkError> {
        let root = std::path::absolute(root).map_err(SinkError::io(root))?;
        let missing: Vec<&Path> = root.ancestors().take_while(|path| path.symlink_metadata().is_err()).collect();
        for path in missing.into_iter().rev() {
            make_directory(path).map_err(SinkError::io(path))?;
            let made = open_directory(path, libc::O_NOFOLLOW).map_err(SinkError::io(path))?;
            seal(&made, DIRECTORY_MODE, owner).map_err(SinkError::io(path))?;
        }
        let handle = open_directory(&root, 0).map_err(SinkError::io(&root))?;
        Ok(Self { root: Dir { handle, path: root }, owner })
    }

    /// Absolute path of the output directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.root.path
    }

    /// Makes a new directory for a process, named after the local time.
    pub fn make_process_dir(&self, pid: u32) -> Result<ProcessDir, SinkError> {
        self.make_process_dir_at(pid, &Zoned::now())
    }

    fn make_process_dir_at(&self, pid: u32, now: &Zoned) -> Result<ProcessDir, SinkError> {
        for second in 0..MAX_STAMPS {
            let stamp = stamp(&now.saturating_add(second.seconds()));
            let name = format!("msmemscope_{pid}_{stamp}_ascend");
            if let Some(dir) = self.root.make(&name, self.owner)? {
                let identity = dir.identity()?;
                return Ok(ProcessDir { name, path: dir.path, stamp, identity });
            }
        }
        let path = self.root.path.join(format!("msmemscope_{pid}_{}_ascend", stamp(now)));
        Err(SinkError::Io { path, source: io::ErrorKind::AlreadyExists.into() })
    }

    /// Creates a file below a process directory. It must not exist.
    pub(super) fn create(
        &self,
        process: &ProcessDir,
        directories: &[&str],
        name: &str,
        mode: u32,
    ) -> Result<(File, Place), SinkError> {
        let mut dir = self.walk(process)?;
        for step in directories {
            dir = match dir.make(step, self.owner)? {
                Some(next) => next,
                None => dir.enter(step)?,
            };
        }
        let path = dir.path.join(name);
        let file = dir.create(name, mode).map_err(SinkError::io(&path))?;
        seal(&file, mode, self.owner).map_err(SinkError::io(&path))?;
        let identity = Identity::of(&file.metadata().map_err(SinkError::io(&path))?);
        let directories = directories.iter().map(|&step| step.to_owned()).collect();
        Ok((file, Place { process: process.clone(), directories, name: name.to_owned(), path, identity }))
    }

    /// Opens a file again, to append.
    pub(super) fn reopen(&self, place: &Place) -> Result<File, SinkError> {
        let mut dir = self.walk(&place.process)?;
        for step in &place.directories {
            dir = dir.enter(step)?;
        }
        let open = || {
            let file = OpenOptions::new()
                .append(true)
                .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK)
                .open(dir.child(&place.name))?;
            place.identity.expect(&file.metadata()?)?;
            Ok(file)
        };
        open().map_err(SinkError::io(&place.path))
    }

    fn walk(&self, process: &ProcessDir) -> Result<Dir, SinkError> {
        let dir = self.root.enter(&process.name)?;
        let check = || process.identity.expect(&dir.handle.metadata()?);
        check().map_err(SinkError::io(&dir.path))?;
        Ok(dir)
    }
}

impl ProcessDir {
    /// Absolute path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The time in its name, `YYYYMMDDhhmmss`.
    #[must_use]
    pub fn stamp(&self) -> &str {
        &self.stamp
    }
}

impl Place {
    /// Absolute path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes sure that the path still leads to the file, for a library that can only open paths.
    pub(super) fn verify(&self) -> Result<(), SinkError> {
        let check = || self.identity.expect(&self.path.symlink_metadata()?);
        check().map_err(SinkError::io(&self.path))
    }
}

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        Self(metadata.dev(), metadata.ino())
    }

    fn expect(self, found: &Metadata) -> io::Result<()> {
        if self == Self::of(found) { Ok(()) } else { Err(io::Error::other("replaced by somebody while in use")) }
    }
}

impl Dir {
    /// A path that means `name` in this very directory.
    fn child(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.handle.as_raw_fd()))
    }

    fn enter(&self, name: &str) -> Result<Self, SinkError> {
        let path = self.path.join(name);
        let handle = open_directory(&self.child(name), libc::O_NOFOLLOW).map_err(SinkError::io(&path))?;
        Ok(Self { handle, path })
    }

    /// Makes a directory; `None` if something of that name is there.
    fn make(&self, name: &str, owner: Option<Owner>) -> Result<Option<Self>, SinkError> {
        match make_directory(&self.child(name)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
            Err(error) => return Err(SinkError::io(self.path.join(name))(error)),
        }
        let made = self.enter(name)?;
        seal(&made.handle, DIRECTORY_MODE, owner).map_err(SinkError::io(&made.path))?;
        Ok(Some(made))
    }

    fn create(&self, name: &str, mode: u32) -> io::Result<File> {
        OpenOptions::new()
            .append(true)
            .create_new(true)
            .mode(mode)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(self.child(name))
    }

    fn identity(&self) -> Result<Identity, SinkError> {
        let metadata = self.handle.metadata().map_err(SinkError::io(&self.path))?;
        Ok(Identity::of(&metadata))
    }
}

/// `YYYYMMDDhhmmss` in local time.
#[must_use]
pub fn stamp(time: &Zoned) -> String {
    time.strftime("%Y%m%d%H%M%S").to_string()
}

fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(DIRECTORY_MODE).create(path)
}

fn open_directory(path: &Path, flags: i32) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_CLOEXEC | flags).open(path)
}

/// Sets the mode whatever the umask, and hands the file over.
fn seal(file: &File, mode: u32, owner: Option<Owner>) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(mode))?;
    match owner {
        Some((user, group)) => fchown(file, Some(user), Some(group)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn noon() -> Zoned {
        jiff::civil::date(2026, 1, 2).at(12, 0, 59, 0).to_zoned(jiff::tz::TimeZone::UTC).expect("time")
    }

    /// A name that is taken, by whatever, is left alone.
    #[test]
    fn taken_names_are_passed_over() {
        let root = tempfile::tempdir().expect("temporary directory");
        fs::create_dir(root.path().join("msmemscope_7_20260102120059_ascend")).expect("directory");
        symlink("/nowhere", root.path().join("msmemscope_7_20260102120100_ascend")).expect("link");
        let tree = OutputTree::open(root.path(), None).expect("directory");
        let dir = tree.make_process_dir_at(7, &noon()).expect("free name");
        assert_eq!(dir.path(), root.path().join("msmemscope_7_20260102120101_ascend"));
        assert_eq!(dir.stamp(), "20260102120101");
    }

    /// Existing files are never written over.
    #[test]
    fn existing_file_is_an_error() {
        let root = tempfile::tempdir().expect("temporary directory");
        let tree = OutputTree::open(root.path(), None).expect("directory");
        let dir = tree.make_process_dir(7).expect("directory");
        fs::write(dir.path().join("config.json"), "theirs").expect("write");
        let error = tree.create(&dir, &[], "config.json", CONFIG_MODE).expect_err("exists");
        assert!(error.to_string().contains("/config.json`"), "{error}");
    }

    /// The output directory itself may be a link of the user's.
    #[test]
    fn output_directory_may_be_a_link() {
        let root = tempfile::tempdir().expect("temporary directory");
        fs::create_dir(root.path().join("real")).expect("directory");
        symlink("real", root.path().join("link")).expect("link");
        let tree = OutputTree::open(&root.path().join("link"), None).expect("directory");
        let dir = tree.make_process_dir_at(7, &noon()).expect("directory");
        assert!(root.path().join("real").join(dir.path().file_name().expect("name")).is_dir());
    }

    /// Everything made is handed to the owner, directories above included.
    #[test]
    fn outputs_are_handed_over() {
        let root = tempfile::tempdir().expect("temporary directory");
        let own = root.path().metadata().expect("metadata");
        // Only root can give files away; others can give them to themselves.
        let owner = if own.uid() == 0 { (12_345, 23_456) } else { (own.uid(), own.gid()) };
        let tree = OutputTree::open(&root.path().join("x/y"), Some(owner)).expect("directory");
        let dir = tree.make_process_dir(7).expect("directory");
        let (_, place) = tree.create(&dir, &["device_0", "dump"], "f", FILE_MODE).expect("file");
        for path in place.path().ancestors().take_while(|path| *path != root.path()) {
            let metadata = path.metadata().expect("metadata");
            assert_eq!((metadata.uid(), metadata.gid()), owner, "{}", path.display());
        }
    }
}
