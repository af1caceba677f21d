//! Where outputs are put (contract §2.1, §2.2), and how files get there safely.
//!
//! The tracer often runs as root and writes into a folder of another user. So the output folder is opened once
//! (`folder`), and nothing below it is opened by its full path: each step is opened from the handle of the step before,
//! never through a symbolic link, and files are made with `O_EXCL`. Folders of processes are always new: where the name
//! exists, the next second's name is taken. A file or process folder that is opened again has to be the same inode as
//! before.
//!
//! Modes are set explicitly, regardless of the umask. Under sudo everything is handed to the calling user at once.
//! Files of a refused run are removed again.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::{ToSpan, Zoned};

use super::SinkError;
pub use super::folder::Owner;
use super::folder::{Folder, Identity, Made};
use crate::hash::HashMap;

/// Mode of dumps and logs.
pub const FILE_MODE: u32 = 0o600;
/// Mode of `config.json`.
pub const CONFIG_MODE: u32 = 0o640;

/// Names tried for the directory of a process, one second apart.
const MAX_STAMPS: i64 = 600;
/// Names tried for a new output directory.
const MAX_NUMBERS: u32 = 1000;

/// The output directory. Copies share the open folder.
#[derive(Clone, Debug)]
pub struct OutputTree {
    root: Arc<Folder>,
    owner: Option<Owner>,
    made: Made,
}

/// The directory of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessDir {
    name: String,
    path: PathBuf,
    stamp: String,
    identity: Identity,
}

/// Directories of processes, for all writers.
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

impl OutputTree {
    /// Opens the output directory, making it and those above it where missing.
    ///
    /// Links on the way *to* the output directory are followed if they are the user's own choice: of root, or of the
    /// user behind sudo, where this process is root.
    pub fn open(root: &Path, owner: Option<Owner>) -> Result<Self, SinkError> {
        let made = Made::default();
        match Folder::open(root, owner, &made) {
            Ok(root) => Ok(Self { root: Arc::new(root), owner, made }),
            Err(error) => {
                made.discard();
                let path = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
                Err(SinkError::io(path)(error))
            }
        }
    }

    /// Makes an output directory that does not exist yet; where its name is taken, `NAME-2` and so on.
    pub fn open_new(root: &Path, owner: Option<Owner>) -> Result<Self, SinkError> {
        let made = Made::default();
        match new_folder(root, owner, &made) {
            Ok(root) => Ok(Self { root: Arc::new(root), owner, made }),
            Err(error) => {
                made.discard();
                let path = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
                Err(SinkError::io(path)(error))
            }
        }
    }

    /// Absolute path of the output directory, for messages.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.root.path
    }

    /// Bytes free for all users where outputs go.
    pub fn free_bytes(&self) -> io::Result<u64> {
        self.root.free_bytes()
    }

    /// The run has begun: its files stay.
    pub fn keep(&self) {
        self.made.keep();
    }

    /// The run was refused: removes its files, unless they are to be kept.
    pub fn discard(&self) {
        self.made.discard();
    }

    /// Makes a new directory for a process, named after the local time.
    pub fn make_process_dir(&self, pid: u32) -> Result<ProcessDir, SinkError> {
        self.make_process_dir_at(pid, &Zoned::now())
    }

    fn make_process_dir_at(&self, pid: u32, now: &Zoned) -> Result<ProcessDir, SinkError> {
        for second in 0..MAX_STAMPS {
            let stamp = stamp(&now.saturating_add(second.seconds()));
            let name = format!("msmemscope_{pid}_{stamp}_ascend");
            let path = self.root.path.join(&name);
            let make = || {
                let made = self.root.make(&name, self.owner, &self.made)?;
                made.map(|dir| dir.identity()).transpose()
            };
            if let Some(identity) = make().map_err(SinkError::io(&path))? {
                return Ok(ProcessDir { name, path, stamp, identity });
            }
        }
        let path = self.root.path.join(format!("msmemscope_{pid}_{}_ascend", stamp(now)));
        Err(SinkError::Io { path, source: io::ErrorKind::AlreadyExists.into() })
    }

    /// Creates a file in the output directory itself, to append to. It must not exist. Gives its path, for messages.
    pub fn create_top(&self, name: &str) -> Result<(File, PathBuf), SinkError> {
        let path = self.root.path.join(name);
        let file = self.root.create(name, FILE_MODE, self.owner, &self.made).map_err(SinkError::io(&path))?;
        Ok((file, path))
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
            let next = match dir.make(step, self.owner, &self.made) {
                Ok(None) => dir.enter(step),
                Ok(Some(new)) => Ok(new),
                Err(error) => Err(error),
            };
            dir = next.map_err(SinkError::io(dir.path.join(step)))?;
        }
        let path = dir.path.join(name);
        let make = || {
            let file = dir.create(name, mode, self.owner, &self.made)?;
            let identity = Identity::of(&file.metadata()?);
            Ok((file, identity))
        };
        let (file, identity) = make().map_err(SinkError::io(&path))?;
        let directories = directories.iter().map(|&step| step.to_owned()).collect();
        Ok((file, Place { process: process.clone(), directories, name: name.to_owned(), path, identity }))
    }

    /// Creates a file in the folder of another one. It must not exist.
    pub(super) fn create_beside(&self, place: &Place, name: &str, mode: u32) -> Result<(File, Place), SinkError> {
        let directories: Vec<&str> = place.directories.iter().map(String::as_str).collect();
        self.create(&place.process, &directories, name, mode)
    }

    /// Opens a file again, to append.
    pub(super) fn reopen(&self, place: &Place) -> Result<File, SinkError> {
        let dir = self.folder(place)?;
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

    /// Removes a file of ours; one that was replaced stays.
    pub(super) fn remove(&self, place: &Place) -> Result<(), SinkError> {
        let folder = self.folder(place)?;
        let remove = || {
            place.identity.expect(&folder.child(&place.name).symlink_metadata()?)?;
            std::fs::remove_file(folder.child(&place.name))
        };
        match remove() {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(SinkError::io(&place.path)(error)),
            _ => Ok(()),
        }
    }

    /// The folder of a file.
    pub(super) fn folder(&self, place: &Place) -> Result<Folder, SinkError> {
        let mut dir = self.walk(&place.process)?;
        for step in &place.directories {
            dir = dir.enter(step).map_err(SinkError::io(dir.path.join(step)))?;
        }
        Ok(dir)
    }

    fn walk(&self, process: &ProcessDir) -> Result<Folder, SinkError> {
        let enter = || {
            let dir = self.root.enter(&process.name)?;
            process.identity.expect(&dir.handle.metadata()?)?;
            Ok(dir)
        };
        enter().map_err(SinkError::io(&process.path))
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
    /// Absolute path, for messages.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Its name in its folder.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Makes sure that the name still stands for the file, for a library that can only open names.
    pub(super) fn verify(&self, folder: &Folder) -> Result<(), SinkError> {
        let check = || self.identity.expect(&folder.child(&self.name).symlink_metadata()?);
        check().map_err(SinkError::io(&self.path))
    }
}

fn new_folder(root: &Path, owner: Option<Owner>, made: &Made) -> io::Result<Folder> {
    let path = std::path::absolute(root)?;
    let (Some(above), Some(name)) = (path.parent(), path.file_name().and_then(OsStr::to_str)) else {
        return Err(io::ErrorKind::InvalidFilename.into());
    };
    let above = Folder::open(above, owner, made)?;
    for number in 1..=MAX_NUMBERS {
        let name = if number == 1 { name.to_owned() } else { format!("{name}-{number}") };
        if let Some(folder) = above.make(&name, owner, made)? {
            return Ok(folder);
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// `YYYYMMDDhhmmss` in local time.
#[must_use]
pub fn stamp(time: &Zoned) -> String {
    time.strftime("%Y%m%d%H%M%S").to_string()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;

    fn noon() -> Zoned {
        jiff::civil::date(2026, 1, 2).at(12, 0, 59, 0).to_zoned(jiff::tz::TimeZone::UTC).expect("time")
    }

    /// An existing name, of any kind, is left alone.
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

    /// Each run has a directory of its own: a taken name is passed over, a refused run leaves nothing.
    #[test]
    fn new_output_directories_are_new() {
        let root = tempfile::tempdir().expect("temporary directory");
        let path = root.path().join("memscope-7-20260102-120059");
        fs::create_dir(&path).expect("directory");
        fs::write(root.path().join("memscope-7-20260102-120059-2"), "theirs").expect("file");
        let tree = OutputTree::open_new(&path, None).expect("free name");
        assert_eq!(tree.path(), root.path().join("memscope-7-20260102-120059-3"));
        tree.create_top("x.capture").expect("a file");
        tree.discard();
        assert!(!root.path().join("memscope-7-20260102-120059-3").exists());
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
