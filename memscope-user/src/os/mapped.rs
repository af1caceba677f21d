//! Opening the files that a process has mapped.
//!
//! `/proc/<pid>/map_files` gives the file itself, whatever its path names by now. For another user's process that takes
//! a capability that an ordinary user's tracer does not have (`CAP_DAC_READ_SEARCH`, which reads all files). The path
//! below the process's root, which `CAP_SYS_PTRACE` opens, is used instead if it names the same file.

use std::{
    fs::File,
    io,
    os::{fd::AsRawFd as _, unix::fs::MetadataExt as _},
    path::Path,
};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

use super::maps::{FileId, Mapped};

impl Mapped {
    /// Opens the mapped inode, through any mount namespace. The process must still exist.
    pub fn open(&self, pid: u32) -> io::Result<File> {
        open(pid, &self.range, &self.path, self.id)
    }

    /// Time of the mapped inode's last change (seconds and nanoseconds), where permitted.
    pub(crate) fn changed(&self, pid: u32) -> Option<(i64, i64)> {
        let about = std::fs::metadata(format!("/proc/{pid}/map_files/{}", self.range)).ok()?;
        Some((about.ctime(), about.ctime_nsec()))
    }
}

/// Opens the file that a process has mapped at `range` (as `map_files` names it), which was at `path` for it.
pub fn open(pid: u32, range: &str, path: &Path, id: FileId) -> io::Result<File> {
    match File::open(format!("/proc/{pid}/map_files/{range}")) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let path = path.strip_prefix("/").map_err(io::Error::other)?;
            open_below(Path::new(&format!("/proc/{pid}/root")), path, id).map_err(|error| refused(&error))
        }
        opened => regular(opened?),
    }
}

fn refused(error: &io::Error) -> io::Error {
    let text = format!("only root may open what this process has mapped, and its path does not lead there: {error}");
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

/// Devices can be mapped too, and reading them can have any effect.
fn regular(file: File) -> io::Result<File> {
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("not a regular file")) }
}

/// Opens a file of another root, if it is the expected one. Links and `..` are resolved inside of that root and never
/// lead out; and files with side effects (devices, pipes) are not opened.
fn open_below(root: &Path, path: &Path, id: FileId) -> io::Result<File> {
    let root = File::open(root)?;
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let found = File::from(openat2(&root, path, how)?);
    let about = found.metadata()?;
    let device = (libc::major(about.dev()), libc::minor(about.dev()));
    if !about.is_file() || about.ino() != id.inode || device != id.device {
        return Err(io::Error::other("another file than the one that is mapped"));
    }
    File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// No file outside of the root is opened, wherever links and `..` in there point, and only the expected file.
    #[test]
    fn traps_in_another_root() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().expect("a folder");
        let (root, outside) = (folder.path().join("root"), folder.path().join("outside"));
        fs::create_dir_all(root.join("lib")).expect("a folder");
        fs::write(&outside, "outside").expect("a file");
        fs::write(root.join("lib/real.so"), "inside").expect("a file");
        let id_of = |path: &Path| {
            let about = path.metadata().expect("metadata");
            FileId { device: (libc::major(about.dev()), libc::minor(about.dev())), inode: about.ino() }
        };
        let (inside, other) = (id_of(&root.join("lib/real.so")), id_of(&outside));
        symlink(&outside, root.join("lib/absolute.so")).expect("a link");
        symlink("../../outside", root.join("lib/relative.so")).expect("a link");
        symlink("/lib/real.so", root.join("lib/own.so")).expect("a link");
        symlink(format!("/proc/self/fd/../../{}", outside.display()), root.join("lib/magic.so")).expect("a link");
        nix::unistd::mkfifo(&root.join("lib/pipe.so"), nix::sys::stat::Mode::S_IRUSR).expect("a pipe");
        let open = |path: &str, id| {
            let mut text = String::new();
            io::Read::read_to_string(&mut open_below(&root, Path::new(path), id).ok()?, &mut text).ok().map(|_| text)
        };
        for path in ["lib/real.so", "lib/own.so", "../../lib/real.so", "lib/../../../lib/real.so"] {
            assert_eq!(open(path, inside).as_deref(), Some("inside"), "{path}");
        }
        for path in ["lib/absolute.so", "lib/relative.so", "../outside", "lib/magic.so", "lib/real.so"] {
            assert_eq!(open(path, other), None, "{path}");
        }
        assert_eq!(open("lib/pipe.so", id_of(&root.join("lib/pipe.so"))), None);
    }
}
