//! An ordinary user, who may trace because the tracer's file has the capabilities for it.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, chown, lchown};
use std::path::{Path, PathBuf};

use nix::libc;
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
use tempfile::TempDir;

use super::kernel;
use super::tracer::{python_package, simulation, tracer_path, workload_path};

/// Bits of `CAP_SYS_PTRACE`, `CAP_PERFMON`, `CAP_BPF` and `CAP_CHECKPOINT_RESTORE` (`capability.h`).
pub const FOUR: u64 = 1 << 19 | 1 << 38 | 1 << 39 | 1 << 40;
/// With `CAP_SYS_ADMIN`, which probes that are linked one by one take.
pub const FIVE: u64 = FOUR | 1 << 21;

/// Has copies of the tracer, the libraries and the workloads, since the originals may be unreadable for it.
#[derive(Debug)]
pub struct User(TempDir);

impl Default for User {
    fn default() -> Self {
        Self::new()
    }
}

impl User {
    /// Its number and that of its group: unused ones.
    pub const ID: u32 = 54_321;

    /// Prepares all it needs on this kernel.
    #[must_use]
    pub fn new() -> Self {
        Self::with(Self::needed())
    }

    /// The capabilities that it needs on this kernel.
    #[must_use]
    pub fn needed() -> u64 {
        if kernel::has_multi_links() { FOUR } else { FIVE }
    }

    /// The tracer's file has these capabilities.
    #[must_use]
    pub fn with(capabilities: u64) -> Self {
        // Before Linux 5.11 an ordinary user needs it for BPF; whoever we start inherits it. Not every root may lift it, which
        // matters nowhere else.
        let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
        let folder = tempfile::Builder::new().prefix("memscope-user-").tempdir().expect("temporary directory");
        allow(folder.path(), 0o755);
        let user = Self(folder);
        fs::copy(tracer_path(), user.tracer()).expect("a copy of the tracer");
        allow(&user.tracer(), 0o755);
        set_capabilities(&user.tracer(), capabilities);
        fs::create_dir(user.libraries()).expect("a folder");
        for library in fs::read_dir(simulation().join("lib")).expect("libraries") {
            let library = library.expect("a library");
            if library.path().is_file() {
                fs::copy(library.path(), user.libraries().join(library.file_name())).expect("a copy of a library");
            }
        }
        user
    }

    /// The tracer.
    #[must_use]
    pub fn tracer(&self) -> PathBuf {
        self.0.path().join("memscope-bpf")
    }

    /// Folder of the simulated libraries.
    #[must_use]
    pub fn libraries(&self) -> PathBuf {
        self.0.path().join("lib")
    }

    /// The Python package, for `PYTHONPATH`.
    #[must_use]
    pub fn python_package(&self) -> PathBuf {
        let to = self.0.path().join("python");
        copy_folder(&python_package(), &to);
        to
    }

    /// A simulated workload, with these rights.
    #[must_use]
    pub fn workload(&self, name: &str, mode: u32) -> PathBuf {
        let copy = self.0.path().join(name);
        fs::copy(workload_path(name), &copy).expect("a copy of a workload");
        allow(&copy, mode);
        copy
    }

    /// Gives a folder, and what is in it, to the user.
    pub fn take(&self, folder: &Path) {
        for entry in fs::read_dir(folder).expect("a folder") {
            lchown(entry.expect("an entry").path(), Some(Self::ID), Some(Self::ID)).expect("given away");
        }
        chown(folder, Some(Self::ID), Some(Self::ID)).expect("given away");
    }
}

fn allow(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("changed rights");
}

/// As `setcap …=ep` does (`struct vfs_cap_data` of `capability.h`, revision 2).
fn set_capabilities(path: &Path, capabilities: u64) {
    const REVISION_2_EFFECTIVE: u32 = 0x0200_0001;
    let words = [REVISION_2_EFFECTIVE, capabilities as u32, 0, (capabilities >> 32) as u32, 0];
    let value: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).expect("a path");
    let name = c"security.capability";
    // SAFETY: the pointers are to texts that end, and to as many bytes as are said.
    let result = unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    assert_eq!(result, 0, "no file capabilities here: {}", std::io::Error::last_os_error());
}

/// Copies a folder with all that is below it.
pub fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder").map(|entry| entry.expect("an entry")) {
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy_folder(&path, &to);
        } else {
            fs::copy(path, to).expect("a copy of a file");
        }
    }
}
