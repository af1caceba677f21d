//! How much a trace has written, and how fast. The files themselves are asked, so it does not matter which thread writes them.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Where a database has rows that are not in its file yet.
const LOG_SUFFIX: &str = "-wal";

/// Files that a trace writes: who creates one adds it.
#[derive(Clone, Debug, Default)]
pub(super) struct Files(Arc<Mutex<Vec<PathBuf>>>);

impl Files {
    /// Adds a file, which may not be there yet.
    pub(super) fn add(&self, path: &Path) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(path.to_owned());
    }

    /// Bytes of all of them. What cannot be looked at counts nothing.
    fn size_bytes(&self) -> u64 {
        let files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let size = |path: &Path| fs::symlink_metadata(path).map_or(0, |file| file.len());
        let log = |path: &Path| {
            let mut name = OsString::from(path);
            name.push(LOG_SUFFIX);
            size(Path::new(&name))
        };
        files
            .iter()
            .map(|path| size(path) + if path.extension().is_some_and(|end| end == "db") { log(path) } else { 0 })
            .sum()
    }
}

/// Size and rate of the files, as of the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DiskUse {
    /// Bytes of all files.
    pub(super) size_bytes: u64,
    /// Bytes that were added in each second between the last two looks.
    pub(super) bytes_per_second: u64,
}

/// Looks at the files again and again.
#[derive(Debug)]
pub(super) struct Disk {
    files: Files,
    last: Option<(Instant, u64)>,
}

impl Disk {
    pub(super) const fn new(files: Files) -> Self {
        Self { files, last: None }
    }

    /// Looks at them now.
    pub(super) fn look(&mut self, now: Instant) -> DiskUse {
        let size_bytes = self.files.size_bytes();
        let (before, then) =
            self.last.replace((now, size_bytes)).map_or((size_bytes, now), |(then, size)| (size, then));
        let passed = now.saturating_duration_since(then);
        let added = size_bytes.saturating_sub(before);
        let bytes_per_second =
            if passed < Duration::from_millis(1) { 0 } else { (added as f64 / passed.as_secs_f64()) as u64 };
        DiskUse { size_bytes, bytes_per_second }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes sure that sizes add up over files, logs of databases and files to come, and that the rate is that of the time
    /// between two looks: 1000 + 24 + 8 bytes, then 3000 more in two seconds.
    #[test]
    fn sizes_and_rates() {
        let folder = tempfile::tempdir().expect("temporary directory");
        let write = |name: &str, size: usize| fs::write(folder.path().join(name), vec![0; size]).expect("written");
        let files = Files::default();
        for name in ["a.csv", "b.db", "later.csv"] {
            files.add(&folder.path().join(name));
        }
        for (name, size) in [("a.csv", 1000), ("b.db", 24), ("b.db-wal", 8), ("a.csv-wal", 7), ("other", 9)] {
            write(name, size);
        }
        let mut disk = Disk::new(files);
        let start = Instant::now();
        assert_eq!(disk.look(start), DiskUse { size_bytes: 1032, bytes_per_second: 0 });
        write("later.csv", 3000);
        assert_eq!(disk.look(start + Duration::from_secs(2)), DiskUse { size_bytes: 4032, bytes_per_second: 1500 });
        assert_eq!(disk.look(start + Duration::from_secs(2)), DiskUse { size_bytes: 4032, bytes_per_second: 0 });
    }
}
