//! Our tool for mstx, put where the program can load it: `run --mstx-injection`.

use std::{
    env, fs, io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use nix::sys::statvfs::{FsFlags, statvfs};
use tempfile::TempDir;
use thiserror::Error;

use crate::probes::MSTX_TOOL;

/// Where mstx looks for its tool (ascend-abi §5.2). It takes one.
pub const INJECTION_PATH: &str = "MSTX_INJECTION_PATH";

/// `mstx-tool.rs`, compiled by the build script.
const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libmemscope_mstx.so"));

/// The tool cannot be used.
#[derive(Debug, Error)]
pub enum MstxToolError {
    /// Another tool is asked for.
    #[error("--mstx-injection: {INJECTION_PATH} is set already, to `{}`; mstx takes one tool: unset it, or leave the option out", path.display())]
    Taken {
        /// As set.
        path: PathBuf,
    },
    /// The folder for temporary files does not do.
    #[error("--mstx-injection: no library can be put into `{}`: it {what}; set TMPDIR to another folder", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// Its fault.
        what: &'static str,
    },
    /// The file cannot be written.
    #[error("--mstx-injection: cannot write `{}`", path.display())]
    Write {
        /// File or folder.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// The tool as a file that everybody can read and only we can change; gone with this value.
#[derive(Debug)]
pub struct MstxTool {
    _folder: TempDir,
    path: PathBuf,
}

impl MstxTool {
    /// Writes it below the folder for temporary files. An error if the environment names another tool.
    pub fn install() -> Result<Self, MstxToolError> {
        match env::var_os(INJECTION_PATH) {
            Some(path) => Err(MstxToolError::Taken { path: path.into() }),
            None => Self::install_below(&env::temp_dir()),
        }
    }

    fn install_below(base: &Path) -> Result<Self, MstxToolError> {
        let write = |path: &Path| {
            let path = path.to_path_buf();
            move |source| MstxToolError::Write { path, source }
        };
        // The loader of a program that changes its folder, or its root, has to find it too.
        let base = base.canonicalize().map_err(write(base))?;
        if let Some(what) = fault(&base).map_err(write(&base))? {
            return Err(MstxToolError::Folder { folder: base, what });
        }
        let folder = tempfile::Builder::new().prefix("memscope-mstx-").tempdir_in(&base).map_err(write(&base))?;
        let path = folder.path().join(MSTX_TOOL);
        fs::write(&path, LIBRARY).map_err(write(&path))?;
        // For every user that the program may run as. No other user can have replaced either: see `fault`.
        for shared in [&path, folder.path()] {
            fs::set_permissions(shared, fs::Permissions::from_mode(0o755)).map_err(write(shared))?;
        }
        Ok(Self { _folder: folder, path })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The reason why a library in this folder would not be loaded, or could be replaced.
fn fault(folder: &Path) -> io::Result<Option<&'static str>> {
    const WRITABLE_BY_OTHERS: u32 = 0o022;
    const STICKY: u32 = 0o1000;
    let metadata = folder.metadata()?;
    let ours = [0, nix::unistd::geteuid().as_raw()].contains(&metadata.uid());
    if !ours || metadata.mode() & WRITABLE_BY_OTHERS != 0 && metadata.mode() & STICKY == 0 {
        return Ok(Some("can be changed by others"));
    }
    let noexec = statvfs(folder)?.flags().contains(FsFlags::ST_NOEXEC);
    Ok(noexec.then_some("is on a file system that no code may be loaded from (noexec)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::elf::{self, ElfFile, dynamic::Pointer};

    /// The library has its own function for each probed one of mstx, and the one that mstx looks up.
    #[test]
    fn every_function_of_mstx_has_its_own() {
        let rows = crate::backend::builtin().filter(|spec| spec.libraries.contains(&MSTX_TOOL));
        let mut names: Vec<&str> = rows.map(|spec| spec.symbol).collect();
        assert_eq!(names.len(), 12);
        names.push("InitInjectionMstx");
        let found = elf::resolve(LIBRARY, &names).expect("an ELF file");
        let mut places: Vec<u64> = found.iter().map(|function| function.vaddr).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!((found.len(), places.len()), (13, 13));
        // It refers to its own: with those of the program's library in the table, it would call itself forever.
        let library = ElfFile::parse(LIBRARY).expect("an ELF file");
        let pointers: Vec<Pointer<'_>> =
            library.relocations().expect("relocations").map(|relocation| relocation.pointer).collect();
        assert!(
            !pointers.is_empty() && pointers.iter().all(|pointer| matches!(pointer, Pointer::Local(_))),
            "{pointers:?}"
        );
    }

    #[test]
    fn everybody_may_read_it_and_only_we_may_change_it() {
        let base = tempfile::tempdir().expect("folder");
        let tool = MstxTool::install_below(base.path()).expect("installed");
        let path = tool.path().to_path_buf();
        assert_eq!(path.file_name().and_then(|name| name.to_str()), Some("libmemscope_mstx.so"));
        assert_eq!(fs::read(&path).expect("readable"), LIBRARY);
        for part in [path.as_path(), path.parent().expect("a folder")] {
            assert_eq!(part.metadata().expect("there").mode() & 0o7777, 0o755);
        }
        drop(tool);
        assert!(!path.exists() && fs::read_dir(base.path()).expect("readable").next().is_none());
    }

    #[test]
    fn folders_of_others_are_refused() {
        let base = tempfile::tempdir().expect("folder");
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o777)).expect("ours");
        let error = MstxTool::install_below(base.path()).expect_err("writable").to_string();
        assert!(error.contains("can be changed by others; set TMPDIR"), "{error}");
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o1777)).expect("ours");
        assert!(MstxTool::install_below(base.path()).is_ok());
        assert!(matches!(MstxTool::install_below(Path::new("/nowhere/at/all")), Err(MstxToolError::Write { .. })));
    }
}
