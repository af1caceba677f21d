//! Resolves the output folder of a peer's tracer: a path means the same as in the peer.

use std::{
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io,
    os::{
        fd::{AsFd, AsRawFd as _},
        unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Component, Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, openat2},
    sys::stat::{Mode, mkdirat},
};

const DIRECTORY_MODE: Mode = Mode::S_IRWXU.union(Mode::S_IRGRP).union(Mode::S_IXGRP);

/// A folder for outputs.
#[derive(Debug)]
pub struct Place {
    /// Its path for this process.
    pub path: PathBuf,
    /// The folder, if it is in another root.
    pub foreign: Option<File>,
}

/// The folder at this path of a process. In another root (a container) it is opened, and made, below that root and
/// never out of it, and used through the open folder. Call with the rights of the process's user, and check afterwards
/// that the process is still the same.
pub fn of(pid: u32, path: &Path) -> io::Result<Place> {
    if shares_root(pid)? {
        return Ok(Place { path: path.to_owned(), foreign: None });
    }
    let root = open_path(&format!("/proc/{pid}/root"))?;
    let folder = open_below(&root, path)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
    Ok(Place { path, foreign: Some(folder) })
}

/// Whether paths mean the same to a process as here.
fn shares_root(pid: u32) -> io::Result<bool> {
    let identity = |path: String| fs::metadata(path).map(|about| (about.dev(), about.ino()));
    let same = |what: &str| {
        Ok::<_, io::Error>(identity(format!("/proc/{pid}/{what}"))? == identity(format!("/proc/self/{what}"))?)
    };
    Ok(same("ns/mnt")? && same("root")?)
}

fn open_path(path: &str) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC).open(path)
}

/// Opens a folder, making the missing parts of its path. Links are followed as if `root` were the root.
fn open_below(root: &File, path: &Path) -> io::Result<File> {
    let mut above = root.try_clone()?;
    let mut so_far = PathBuf::new();
    for part in path.components() {
        let Component::Normal(name) = part else { continue };
        so_far.push(name);
        above = match open(root, so_far.as_os_str(), OFlag::O_PATH, ResolveFlag::RESOLVE_IN_ROOT) {
            Err(Errno::ENOENT) => make(&above, name)?,
            opened => opened?,
        };
    }
    Ok(open(&above, OsStr::new("."), OFlag::O_RDONLY, ResolveFlag::RESOLVE_BENEATH)?)
}

fn make(above: &File, name: &OsStr) -> io::Result<File> {
    match mkdirat(above, name, DIRECTORY_MODE) {
        // A link to nowhere is not followed, or another program was faster.
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    Ok(open(above, name, OFlag::O_PATH, ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS)?)
}

fn open(from: impl AsFd, name: &OsStr, flags: OFlag, resolve: ResolveFlag) -> nix::Result<File> {
    let flags = flags | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let how = OpenHow::new().flags(flags).resolve(resolve | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    openat2(from, name, how).map(File::from)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn leads_to(folder: &File) -> PathBuf {
        fs::read_link(format!("/proc/self/fd/{}", folder.as_raw_fd())).expect("a folder")
    }

    #[test]
    fn own_root_is_shared() {
        assert!(shares_root(std::process::id()).expect("own folder"));
    }

    #[test]
    fn missing_folders_are_made() {
        let outside = tempfile::tempdir().expect("temporary directory");
        let root = open_path(outside.path().to_str().expect("plain")).expect("a folder");
        let folder = open_below(&root, Path::new("/a/b//c")).expect("made");
        assert_eq!(leads_to(&folder), outside.path().join("a/b/c"));
        let mode = outside.path().join("a").metadata().expect("made").permissions().mode() & 0o7777;
        assert_eq!(mode & !0o750, 0);
        assert_eq!(leads_to(&open_below(&root, Path::new("/a/b")).expect("there")), outside.path().join("a/b"));
    }

    /// Absolute links and `..` in links stay below the root.
    #[test]
    fn links_do_not_lead_out() {
        let place = tempfile::tempdir().expect("temporary directory");
        let inside = place.path().join("root");
        fs::create_dir_all(inside.join("tmp")).expect("folders");
        fs::create_dir(place.path().join("target")).expect("a folder");
        symlink("/tmp", inside.join("absolute")).expect("a link");
        symlink("../../../../../../tmp", inside.join("dots")).expect("a link");
        symlink(place.path().join("target"), inside.join("out")).expect("a link");
        symlink("/proc/self/root/tmp", inside.join("magic")).expect("a link");
        let root = open_path(inside.to_str().expect("plain")).expect("a folder");
        for name in ["/absolute/x", "/dots/x"] {
            assert_eq!(leads_to(&open_below(&root, Path::new(name)).expect("made")), inside.join("tmp/x"), "{name}");
        }
        for name in ["/out/x", "/magic/x", "/out"] {
            assert!(open_below(&root, Path::new(name)).is_err(), "{name}");
        }
        assert_eq!(fs::read_dir(place.path().join("target")).expect("a folder").count(), 0);
    }

    #[test]
    fn files_are_no_folders() {
        let place = tempfile::tempdir().expect("temporary directory");
        fs::write(place.path().join("file"), "").expect("a file");
        let root = open_path(place.path().to_str().expect("plain")).expect("a folder");
        assert!(open_below(&root, Path::new("/file")).is_err());
        assert!(open_below(&root, Path::new("/file/x")).is_err());
    }
}
