//! Disks that are soon full.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A small file system in memory at a folder, until dropped.
#[derive(Debug)]
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts one of this size; the folder is made where missing.
    #[must_use]
    pub fn mount(folder: &Path, megabytes: u64) -> Self {
        fs::create_dir_all(folder).expect("a folder");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={megabytes}M"), "tiny"]).arg(folder);
        assert!(mount.status().expect("started mount").success(), "cannot mount a tmpfs");
        Self(folder.to_owned())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}
