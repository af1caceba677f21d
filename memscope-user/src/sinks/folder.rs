//! Folders that were opened once: all output is made below one of them, by name, through its handle.
//!
//! The tracer often runs as root and writes into a folder of another user, who can swap any part of a path at any
//! moment. So a path is walked here, step by step, each step from the handle of the step before
//! (`/proc/self/fd/<n>/<name>` is `openat` without `unsafe`), and afterwards never used again. Symbolic links are
//! resolved here: root follows only links of root and of the user behind sudo. Another user's link could lead anywhere
//! by the time it is followed.

use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// User and group that outputs are handed to.
pub type Owner = (u32, u32);

const FOLDER_MODE: u32 = 0o750;
/// As many links as the kernel follows in one path.
const MAX_LINKS: usize = 40;
/// Longest target of a link, in bytes.
const MAX_TARGET_BYTES: usize = 4096;
/// Most entries kept for removal, in case the run is refused. Each keeps its folder open.
const MAX_MADE: usize = 64;

/// Device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity(u64, u64);

impl Identity {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self(metadata.dev(), metadata.ino())
    }

    pub(super) fn expect(self, found: &Metadata) -> io::Result<()> {
        if self == Self::of(found) { Ok(()) } else { Err(io::Error::other("replaced by another program while in use")) }
    }
}

/// The entries that a run has made, as long as it may still be refused.
#[derive(Clone, Debug)]
pub(super) struct Made(Arc<Mutex<Option<Vec<Entry>>>>);

#[derive(Debug)]
struct Entry {
    folder: File,
    name: OsString,
    identity: Identity,
    is_folder: bool,
}

impl Default for Made {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Some(Vec::new()))))
    }
}

impl Made {
    fn note(&self, folder: &File, name: &OsStr, made: &File, is_folder: bool) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(list) = entries.as_mut().filter(|list| list.len() < MAX_MADE) else { return };
        if let (Ok(folder), Ok(metadata)) = (folder.try_clone(), made.metadata()) {
            list.push(Entry { folder, name: name.to_owned(), identity: Identity::of(&metadata), is_folder });
        }
    }

    /// Keeps the entries.
    pub(super) fn keep(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Removes the entries, unless they were kept. Files that others have put there stay.
    pub(super) fn discard(&self) {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        for Entry { folder, name, identity, is_folder } in entries.into_iter().flatten().rev() {
            let path = child(&folder, &name);
            let is_ours = path.symlink_metadata().is_ok_and(|found| identity.expect(&found).is_ok());
            let remove = if is_folder { std::fs::remove_dir } else { std::fs::remove_file };
            // A folder with entries stays; a failure has no remedy.
            let _ = if is_ours { remove(&path) } else { Ok(()) };
        }
    }
}

/// An open folder.
#[derive(Debug)]
pub(super) struct Folder {
    pub(super) handle: File,
    /// Path for messages. Never opened.
    pub(super) path: PathBuf,
}

impl Folder {
    /// Bytes free for all users on its file system.
    pub(super) fn free_bytes(&self) -> io::Result<u64> {
        let mut about = MaybeUninit::<libc::statvfs>::uninit();
        // SAFETY: the kernel fills the structure if it returns 0.
        if unsafe { libc::fstatvfs(self.handle.as_raw_fd(), about.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above.
        let about = unsafe { about.assume_init() };
        Ok(about.f_bavail.saturating_mul(about.f_frsize))
    }

    /// Opens a folder, making it and those above it where missing.
    pub(super) fn open(path: &Path, owner: Option<Owner>, made: &Made) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        let handle = Walk::start(&path, Making { owner, made })?.folder()?;
        let handle = open_folder(&handle_path(&handle), 0)?;
        Ok(Self { handle, path })
    }

    /// A path that means `name` in this very folder.
    pub(super) fn child(&self, name: impl AsRef<OsStr>) -> PathBuf {
        child(&self.handle, name.as_ref())
    }

    pub(super) fn enter(&self, name: &str) -> io::Result<Self> {
        let handle = open_folder(&self.child(name), libc::O_NOFOLLOW)?;
        Ok(Self { handle, path: self.path.join(name) })
    }

    /// Makes a folder; `None` if the name exists.
    pub(super) fn make(&self, name: &str, owner: Option<Owner>, made: &Made) -> io::Result<Option<Self>> {
        match make_folder(&self.handle, OsStr::new(name), owner, made) {
            Ok(handle) => Ok(Some(Self { handle, path: self.path.join(name) })),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes a file, which must not exist, to append to and to read back.
    pub(super) fn create(&self, name: &str, mode: u32, owner: Option<Owner>, record: &Made) -> io::Result<File> {
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create_new(true)
            .mode(mode)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(self.child(name))?;
        record.note(&self.handle, OsStr::new(name), &file, false);
        seal(&file, mode, owner)?;
        Ok(file)
    }

    pub(super) fn identity(&self) -> io::Result<Identity> {
        Ok(Identity::of(&self.handle.metadata()?))
    }
}

/// A file by its name in an open folder; the folder was reached once.
#[derive(Debug)]
pub struct FilePlace {
    folder: File,
    name: OsString,
    /// A link of the kernel's, as `/dev/stdout` leads to, which only the kernel can follow.
    is_magic: bool,
    owner: Option<Owner>,
}

impl FilePlace {
    /// Opens the folder of a file, makes it where missing, and follows links at the last step. New folders are handed
    /// to `owner`.
    pub fn reach(path: &Path, owner: Option<Owner>) -> io::Result<Self> {
        let (folder, name, is_magic) =
            Walk::start(&std::path::absolute(path)?, Making { owner, made: &Made::default() })?.file()?;
        Ok(Self { folder, name, is_magic, owner })
    }

    /// A path to this very file, valid for the lifetime of this value.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        child(&self.folder, &self.name)
    }

    /// A file of the same folder, with `suffix` behind the name.
    pub(crate) fn beside(&self, suffix: &str) -> io::Result<Self> {
        let mut name = self.name.clone();
        name.push(suffix);
        Ok(Self { folder: self.folder.try_clone()?, name, is_magic: false, owner: self.owner })
    }

    /// A file of the same folder, of another name.
    pub(crate) fn sibling(&self, name: &str) -> io::Result<Self> {
        Ok(Self { folder: self.folder.try_clone()?, name: name.into(), is_magic: false, owner: self.owner })
    }

    /// Makes the file, which must not exist, not even as a link.
    pub fn create_new(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC);
        let file = options.open(self.path())?;
        if let Some((user, group)) = self.owner {
            fchown(&file, Some(user), Some(group))?;
        }
        Ok(file)
    }

    /// Opens the file to write it from its beginning, making it where missing.
    pub fn overwrite(&self) -> io::Result<File> {
        let flags = if self.is_magic { 0 } else { libc::O_NOFOLLOW };
        match self.create_new() {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                OpenOptions::new().write(true).truncate(true).custom_flags(flags | libc::O_CLOEXEC).open(self.path())
            }
            made => made,
        }
    }

    /// Replaces another file of the same folder by this one.
    pub(crate) fn replace(&self, other: &Self) -> io::Result<()> {
        std::fs::rename(self.path(), other.path())
    }

    /// Removes the file, if it is there. Devices, pipes and links stay: root must not take `/dev/null` away.
    pub(crate) fn remove_old(&self) -> io::Result<()> {
        let path = self.path();
        match path.symlink_metadata() {
            Ok(old) if old.is_file() => std::fs::remove_file(path),
            Ok(_) => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes the file.
    pub(crate) fn remove(&self) {
        // It is in the way of nothing where this fails.
        let _ = std::fs::remove_file(self.path());
    }
}

/// The owner of folders that are made.
#[derive(Clone, Copy)]
struct Making<'a> {
    owner: Option<Owner>,
    made: &'a Made,
}

/// A path on its way.
struct Walk<'a> {
    making: Making<'a>,
    at: File,
    /// The names to come, last first, and whether a link gave them.
    pending: Vec<(OsString, bool)>,
    links: usize,
}

impl<'a> Walk<'a> {
    fn start(path: &Path, making: Making<'a>) -> io::Result<Self> {
        let mut walk = Self { making, at: open_folder(Path::new("/"), libc::O_PATH)?, pending: Vec::new(), links: 0 };
        walk.push(path, false);
        Ok(walk)
    }

    fn push(&mut self, path: &Path, of_link: bool) {
        let name = |part: Component<'_>| match part {
            Component::Normal(name) => Some((name.to_owned(), of_link)),
            Component::ParentDir => Some(("..".into(), of_link)),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        };
        self.pending.extend(path.components().rev().filter_map(name));
    }

    /// Walks to the end.
    fn folder(mut self) -> io::Result<File> {
        while let Some((name, of_link)) = self.pending.pop() {
            self.step(&name, of_link)?;
        }
        Ok(self.at)
    }

    /// Walks to the folder of the last name. Returns it, the name, and whether that is a link of the kernel's.
    fn file(mut self) -> io::Result<(File, OsString, bool)> {
        while let Some((name, of_link)) = self.pending.pop() {
            if !self.pending.is_empty() || name == ".." {
                self.step(&name, of_link)?;
                continue;
            }
            match look(&self.at, &name)? {
                Some(link) if link.metadata()?.is_symlink() => {
                    if is_procfs(&self.at)? {
                        return Ok((self.at, name, true));
                    }
                    self.follow(&link, &name)?;
                }
                _ => return Ok((self.at, name, false)),
            }
        }
        Err(io::ErrorKind::IsADirectory.into())
    }

    fn step(&mut self, name: &OsStr, of_link: bool) -> io::Result<()> {
        let Some(found) = look(&self.at, name)? else {
            // A link to nowhere is not followed.
            if of_link {
                return Err(io::ErrorKind::NotFound.into());
            }
            return match make_folder(&self.at, name, self.making.owner, self.making.made) {
                Ok(made) => {
                    self.at = made;
                    Ok(())
                }
                // Another one was faster.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    self.at = open_folder(&child(&self.at, name), libc::O_NOFOLLOW | libc::O_PATH)?;
                    Ok(())
                }
                Err(error) => Err(error),
            };
        };
        let about = found.metadata()?;
        if about.is_symlink() {
            return self.follow(&found, name);
        }
        if !about.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        self.at = found;
        Ok(())
    }

    fn follow(&mut self, link: &File, name: &OsStr) -> io::Result<()> {
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(io::Error::from_raw_os_error(libc::ELOOP));
        }
        let uid = link.metadata()?.uid();
        if !is_trusted(uid, self.making.owner) {
            let name = name.display();
            let text = format!("`{name}` is a link of user {uid}, which root does not follow: give the folder itself");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        if is_procfs(&self.at)? {
            self.at = open_folder(&child(&self.at, name), libc::O_PATH)?;
            return Ok(());
        }
        let target = target(link)?;
        if target.is_absolute() {
            self.at = open_folder(Path::new("/"), libc::O_PATH)?;
        }
        self.push(&target, true);
        Ok(())
    }
}

/// Whether a link of this user may decide where root writes.
fn is_trusted(uid: u32, owner: Option<Owner>) -> bool {
    // SAFETY: has no arguments and cannot fail.
    let own = unsafe { libc::geteuid() };
    own != 0 || uid == 0 || owner.is_some_and(|(user, _)| user == uid)
}

/// The entry of a name in a folder: not a link's target.
fn look(folder: &File, name: &OsStr) -> io::Result<Option<File>> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    match OpenOptions::new().read(true).custom_flags(flags).open(child(folder, name)) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Target of an open link: of that very link, whatever has its name by now.
fn target(link: &File) -> io::Result<PathBuf> {
    let mut bytes = vec![0; MAX_TARGET_BYTES];
    // SAFETY: the buffer has as many bytes as are said; an empty name is the open link itself.
    let len = unsafe { libc::readlinkat(link.as_raw_fd(), c"".as_ptr(), bytes.as_mut_ptr().cast(), bytes.len()) };
    let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    bytes.truncate(len);
    Ok(OsString::from_vec(bytes).into())
}

fn is_procfs(folder: &File) -> io::Result<bool> {
    let mut about = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the kernel fills the structure if it returns 0.
    if unsafe { libc::fstatfs(folder.as_raw_fd(), about.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    Ok(unsafe { about.assume_init() }.f_type == libc::PROC_SUPER_MAGIC)
}

fn make_folder(above: &File, name: &OsStr, owner: Option<Owner>, made: &Made) -> io::Result<File> {
    let path = child(above, name);
    DirBuilder::new().mode(FOLDER_MODE).create(&path)?;
    let folder = open_folder(&path, libc::O_NOFOLLOW)?;
    made.note(above, name, &folder, true);
    seal(&folder, FOLDER_MODE, owner)?;
    Ok(folder)
}

fn handle_path(handle: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", handle.as_raw_fd()))
}

fn child(folder: &File, name: &OsStr) -> PathBuf {
    handle_path(folder).join(name)
}

fn open_folder(path: &Path, flags: i32) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_CLOEXEC | flags).open(path)
}

/// Sets the mode regardless of the umask, and hands the file over.
fn seal(file: &File, mode: u32, owner: Option<Owner>) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(mode))?;
    match owner {
        Some((user, group)) => fchown(file, Some(user), Some(group)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
