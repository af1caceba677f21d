//! Size and growth of a trace's files. Read from the files themselves, so it does not matter which thread writes them.

use std::{
    collections::VecDeque,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Suffix of a database's log: rows that are not in its file yet.
const LOG_SUFFIX: &str = "-wal";

/// Files that a trace writes: their creator adds them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Files(Arc<Mutex<Vec<PathBuf>>>);

impl Files {
    /// Adds a file, which may not exist yet.
    pub(crate) fn add(&self, path: &Path) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(path.to_owned());
    }

    /// A file is not there any more.
    pub(crate) fn remove(&self, path: &Path) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|file| file != path);
    }

    /// Bytes of all files. An unreadable one counts as 0.
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

/// What waits in the capture, as its writer last said.
#[derive(Clone, Debug, Default)]
pub(super) struct Waiting(Arc<[AtomicU64; 2]>);

impl Waiting {
    /// The capture's size, and the bytes of it that wait for the pipeline.
    pub(super) fn set(&self, capture_bytes: u64, waiting_bytes: u64) {
        let [capture, waiting] = &*self.0;
        capture.store(capture_bytes, Ordering::Relaxed);
        waiting.store(waiting_bytes, Ordering::Relaxed);
    }

    /// Bytes of the other files to come, by what those of `size_bytes` took of the same capture so far.
    fn rows_bytes(&self, size_bytes: u64) -> u64 {
        let [capture, waiting] = &*self.0;
        let (capture, waiting) = (capture.load(Ordering::Relaxed), waiting.load(Ordering::Relaxed));
        let (rows, read) = (size_bytes.saturating_sub(capture), capture.saturating_sub(waiting).max(1));
        u64::try_from(u128::from(waiting) * u128::from(rows) / u128::from(read)).unwrap_or(u64::MAX)
    }
}

/// Readings for the time until the disk is full; fewer are no evidence.
const LOOKS: usize = 11;
const MIN_LOOKS: usize = 4;
/// With less time left there is a warning.
const SOON: Duration = Duration::from_mins(5);
/// Longer times are not reported.
const FAR: Duration = Duration::from_hours(24 * 365);

/// Size and rate of the files, as of the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUse {
    /// Bytes of all files.
    pub size_bytes: u64,
    /// Bytes to come of what waits in the capture, an estimate.
    pub waiting_bytes: u64,
    /// Bytes added per second between the last two readings, those that wait included.
    pub bytes_per_second: u64,
    /// When the disk is full, at the rate of the last looks; not if the files may not become so large.
    pub until_full: Option<Duration>,
}

/// Room for growth of files, as far as known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Room {
    /// Free bytes on the disk.
    pub(super) free_bytes: Option<u64>,
    /// Bytes that the files have at most.
    pub(super) max_bytes: Option<u64>,
}

/// Time until this many bytes are written, if soon enough to report.
pub(crate) fn until(bytes: u64, bytes_per_second: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(bytes as f64 / bytes_per_second).ok().filter(|left| *left < FAR)
}

/// Looks at the files again and again.
#[derive(Debug)]
pub(super) struct Disk {
    files: Files,
    waiting: Waiting,
    /// The last looks, oldest first.
    looks: VecDeque<(Instant, u64)>,
    warned: bool,
}

impl Disk {
    pub(super) const fn new(files: Files, waiting: Waiting) -> Self {
        Self { files, waiting, looks: VecDeque::new(), warned: false }
    }

    /// Looks at them now.
    pub(super) fn look(&mut self, now: Instant, room: Room) -> DiskUse {
        let size_bytes = self.files.size_bytes();
        let waiting_bytes = self.waiting.rows_bytes(size_bytes);
        let all_bytes = size_bytes.saturating_add(waiting_bytes);
        let bytes_per_second = self.looks.back().map_or(0.0, |&last| rate(last, (now, all_bytes))) as u64;
        self.looks.push_back((now, all_bytes));
        if self.looks.len() > LOOKS {
            self.looks.pop_front();
        }
        let first = self.looks.front().copied().filter(|_| self.looks.len() >= MIN_LOOKS);
        let until_full = room.free_bytes.zip(first).and_then(|(free_bytes, first)| {
            let free_bytes = free_bytes.saturating_sub(waiting_bytes);
            let may_grow = room.max_bytes.is_none_or(|most| most.saturating_sub(all_bytes) > free_bytes);
            if may_grow { until(free_bytes, rate(first, (now, all_bytes))) } else { None }
        });
        DiskUse { size_bytes, waiting_bytes, bytes_per_second, until_full }
    }

    /// The remaining time, once, when it is short.
    pub(super) fn warning(&mut self, disk: DiskUse) -> Option<Duration> {
        let left = disk.until_full.filter(|left| *left < SOON && !self.warned)?;
        self.warned = true;
        Some(left)
    }
}

/// Bytes added in each second between two looks.
fn rate((then, before): (Instant, u64), (now, size_bytes): (Instant, u64)) -> f64 {
    let passed = now.saturating_duration_since(then);
    let added = size_bytes.saturating_sub(before);
    if passed < Duration::from_millis(1) { 0.0 } else { added as f64 / passed.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes add up over files, logs of databases and files to come, and the rate is that of the time between two
    /// readings: 1000 + 24 + 8 bytes, then 3000 more in two seconds.
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
        let mut disk = Disk::new(files.clone(), Waiting::default());
        let start = Instant::now();
        let mut look = |seconds| {
            let DiskUse { size_bytes, bytes_per_second, .. } =
                disk.look(start + Duration::from_secs(seconds), Room::default());
            (size_bytes, bytes_per_second)
        };
        assert_eq!(look(0), (1032, 0));
        write("later.csv", 3000);
        assert_eq!(look(2), (4032, 1500));
        assert_eq!(look(2), (4032, 0));
        files.remove(&folder.path().join("later.csv"));
        assert_eq!(look(3), (1032, 0));
    }

    /// A capture of 100 bytes, of which 20 were read, and 300 bytes of rows of these: the 80 that wait make 1200 more.
    #[test]
    fn rows_to_come_count() {
        let folder = tempfile::tempdir().expect("temporary directory");
        let files = Files::default();
        for (name, size) in [("a.capture", 100), ("b.csv", 300)] {
            fs::write(folder.path().join(name), vec![0; size]).expect("written");
            files.add(&folder.path().join(name));
        }
        let waiting = Waiting::default();
        let (mut disk, start) = (Disk::new(files, waiting.clone()), Instant::now());
        let mut look = |seconds| {
            let used = disk.look(start + Duration::from_secs(seconds), Room::default());
            (used.size_bytes, used.waiting_bytes, used.bytes_per_second)
        };
        assert_eq!(look(0), (400, 0, 0));
        waiting.set(100, 80);
        assert_eq!(look(2), (400, 1200, 600));
        waiting.set(100, 100);
        assert_eq!(look(3).1, 30_000);
        waiting.set(100, 0);
        assert_eq!(look(4).1, 0);
    }

    /// The remaining time is that of the free space at the rate of the last readings; it is reported after a few of
    /// them, not where the limit of the files comes first, and the warning comes once: 100 bytes a second, 40 000 and
    /// then 20 000 free.
    #[test]
    fn a_full_disk_is_foreseen() {
        let folder = tempfile::tempdir().expect("temporary directory");
        let path = folder.path().join("a.csv");
        let files = Files::default();
        files.add(&path);
        let (mut disk, start) = (Disk::new(files, Waiting::default()), Instant::now());
        let mut look = |seconds: u64, free_bytes, max_bytes| {
            fs::write(&path, vec![0; 100 * seconds as usize]).expect("written");
            let room = Room { free_bytes: Some(free_bytes), max_bytes };
            let used = disk.look(start + Duration::from_secs(seconds), room);
            (used.until_full.map(|left| left.as_secs()), disk.warning(used).map(|left| left.as_secs()))
        };
        for seconds in 0..3 {
            assert_eq!(look(seconds, 40_000, None), (None, None));
        }
        assert_eq!(look(3, 40_000, None), (Some(400), None));
        // At 400 bytes, 39 600 more are allowed: less than the free space.
        assert_eq!(look(4, 40_000, Some(40_000)), (None, None));
        assert_eq!(look(5, 20_000, Some(40_000)), (Some(200), Some(200)));
        assert_eq!(look(6, 20_000, None), (Some(200), None));
        // No writes in all of the readings.
        let idle = (7..18).map(|seconds| {
            disk.look(start + Duration::from_secs(seconds), Room { free_bytes: Some(1), max_bytes: None })
        });
        assert_eq!(idle.last().expect("a look").until_full, None);
    }
}
