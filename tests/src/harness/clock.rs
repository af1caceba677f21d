//! A wall clock that a test sets, of the programs that have it: the machine's is not touched.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::tracer::simulation;

/// The clock; it is the machine's until it is set.
#[derive(Debug)]
pub struct WallClock {
    file: File,
    path: PathBuf,
}

impl WallClock {
    /// With its file in a folder.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        let path = folder.join("wall-clock");
        let file = File::create(&path).expect("a file for the clock");
        let clock = Self { file, path };
        clock.set(0);
        clock
    }

    /// Sets it, to nanoseconds before or behind the machine's.
    pub fn set(&self, offset_ns: i64) {
        self.file.write_all_at(&offset_ns.to_ne_bytes(), 0).expect("written");
    }

    /// Variables of a program that has it.
    #[must_use]
    pub fn variables(&self) -> [(&'static str, String); 2] {
        let library = simulation().join("lib/libwallclock.so");
        [("LD_PRELOAD", library.display().to_string()), ("WALL_CLOCK", self.path.display().to_string())]
    }
}
