//! Which `libdcmi.so` is loaded, if any.
//!
//! The loader's own search is not used: `LD_LIBRARY_PATH` may lead through folders of the traced user, and a library is
//! code that runs with our privileges. Only fixed places are searched, and a file counts only if only root can have put
//! it there or can change it.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use thiserror::Error;

const NAME: &str = "libdcmi.so";
/// Default folder of DCMI, and those of the driver and of distributions (ascend-abi §1).
const FOLDERS: [&str; 3] = ["/usr/local/dcmi", "/usr/lib64", "/usr/lib"];
/// Below the driver's root.
const DRIVER_FOLDERS: [&str; 3] = ["driver/lib64", "driver/lib64/driver", "driver/lib64/common"];
const DRIVER_ROOT: &str = "/usr/local/Ascend";
/// Names the driver's folder, if it is elsewhere.
const INSTALL_INFO: &str = "/etc/ascend_install.info";

/// Bits of a mode: others may write; others' files cannot be replaced (sticky).
const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Why a file is not loaded.
#[derive(Debug, Error)]
pub(super) enum LibraryError {
    /// No such file in any place.
    #[error("no {NAME} in {}", looked.join(", "))]
    Absent {
        /// The places.
        looked: Vec<String>,
    },
    /// It is unreadable.
    #[error("cannot look at `{}`", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Others than root can change it.
    #[error("`{}` is not loaded: `{}` {what}", path.display(), at.display())]
    Untrusted {
        /// The file.
        path: PathBuf,
        /// The file or a folder above it.
        at: PathBuf,
        /// Its fault.
        what: &'static str,
    },
}

/// The library to load: `given`, or the first one in the fixed places.
pub(super) fn find(given: Option<&Path>) -> Result<PathBuf, LibraryError> {
    if let Some(path) = given {
        return trusted(path);
    }
    let places: Vec<PathBuf> = folders().into_iter().map(|folder| folder.join(NAME)).collect();
    match places.iter().find(|path| path.exists()) {
        Some(path) => trusted(path),
        None => Err(LibraryError::Absent { looked: places.iter().map(|path| path.display().to_string()).collect() }),
    }
}

/// `LD_LIBRARY_PATH` for the helper: the library needs others of the driver. Folders that others can change are left out.
pub(super) fn search_path() -> String {
    let folders = folders().into_iter().filter(|folder| checked(folder, Metadata::is_dir).is_ok());
    folders.map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(":")
}

fn folders() -> Vec<PathBuf> {
    let info = checked(Path::new(INSTALL_INFO), Metadata::is_file).ok();
    let info = info.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
    let root = driver_root(&info).unwrap_or(DRIVER_ROOT);
    let driver = DRIVER_FOLDERS.iter().map(|folder| Path::new(root).join(folder));
    FOLDERS.iter().map(PathBuf::from).chain(driver).collect()
}

/// The driver's root as its installer has noted it.
fn driver_root(info: &str) -> Option<&str> {
    let value = info.lines().find_map(|line| line.strip_prefix("Driver_Install_Path_Param="))?.trim();
    value.starts_with('/').then_some(value)
}

/// The file itself, links followed, if only root can have put it there and can change it.
fn trusted(path: &Path) -> Result<PathBuf, LibraryError> {
    checked(path, Metadata::is_file)
}

fn checked(path: &Path, kind: impl Fn(&Metadata) -> bool) -> Result<PathBuf, LibraryError> {
    let unreadable = |source| LibraryError::Unreadable { path: path.to_owned(), source };
    let real = path.canonicalize().map_err(unreadable)?;
    for at in real.ancestors() {
        let metadata = at.metadata().map_err(unreadable)?;
        let what = if at == real && !kind(&metadata) { Some("is of the wrong kind") } else { fault(&metadata) };
        if let Some(what) = what {
            return Err(LibraryError::Untrusted { path: path.to_owned(), at: at.to_owned(), what });
        }
    }
    Ok(real)
}

/// The reason why users other than root can change a file or folder. In a sticky folder they cannot replace root's
/// files.
fn fault(metadata: &Metadata) -> Option<&'static str> {
    let mode = metadata.mode();
    let sticky = metadata.is_dir() && mode & STICKY != 0;
    match metadata.uid() {
        0 if mode & WRITABLE_BY_OTHERS != 0 && !sticky => Some("can be written by others than root"),
        0 => None,
        _ => Some("does not belong to root"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installer_says_where_the_driver_is() {
        let info = "Driver_Install_Type=full\nDriver_Install_Path_Param=/opt/Ascend\nUserName=HwHiAiUser\n";
        assert_eq!(driver_root(info), Some("/opt/Ascend"));
        assert_eq!([driver_root(""), driver_root("Driver_Install_Path_Param=relative")], [None, None]);
    }

    /// System files are loaded; those of a user and those writable by all users are not, wherever a link to them is.
    #[test]
    fn only_what_is_roots_is_trusted() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let shell = Path::new("/bin/sh").canonicalize().expect("a shell");
        assert_eq!(trusted(Path::new("/bin/sh")).expect("root's"), shell);
        assert!(matches!(
            trusted(Path::new("/bin")),
            Err(LibraryError::Untrusted { what: "is of the wrong kind", .. })
        ));
        assert!(matches!(trusted(Path::new("/nowhere/x")), Err(LibraryError::Unreadable { .. })));
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("libdcmi.so");
        fs::write(&file, "").expect("written");
        let (link, mode) = (folder.path().join("link"), |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
        });
        symlink(&file, &link).expect("a link");
        mode(&file, 0o646);
        let refused = |path: &Path| matches!(trusted(path), Err(LibraryError::Untrusted { .. }));
        assert!(refused(&file) && refused(&link));
        mode(&file, 0o644);
        mode(folder.path(), 0o775);
        assert!(refused(&file) && refused(&link));
        mode(folder.path(), 0o755);
        // Run as another user than root, the file has the wrong owner.
        assert_eq!(refused(&file), !nix::unistd::Uid::effective().is_root());
        if nix::unistd::Uid::effective().is_root() {
            std::os::unix::fs::chown(&file, Some(1234), None).expect("given away");
            assert!(refused(&file) && refused(&link));
        }
    }
}
