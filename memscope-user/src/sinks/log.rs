//! The log of a run (contract §2.4).

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use jiff::Zoned;

use super::SinkError;
use super::tree::{FILE_MODE, OutputTree, ProcessDir, stamp};
use crate::printable::OneLine;

/// Severity of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// For developers.
    Debug,
    /// Progress.
    #[default]
    Info,
    /// The result is incomplete.
    Warn,
    /// A failure.
    Error,
}

impl Level {
    /// With its blank, so that texts line up.
    const fn tag(self) -> &'static str {
        match self {
            Self::Debug => "[DEBUG]",
            Self::Info => "[INFO] ",
            Self::Warn => "[WARN] ",
            Self::Error => "[ERROR]",
        }
    }
}

/// An open log file. Lines below its level are left out.
#[derive(Debug)]
pub struct LogFile {
    file: File,
    path: PathBuf,
    level: Level,
}

impl LogFile {
    /// Makes `msmemscope_logs/msmemscope_<time>.log` in the directory of a process.
    pub fn create(tree: &OutputTree, process: &ProcessDir, level: Level) -> Result<Self, SinkError> {
        let name = format!("msmemscope_{}.log", stamp(&Zoned::now()));
        let (file, place) = tree.create(process, &["msmemscope_logs"], &name, FILE_MODE)?;
        Ok(Self { file, path: place.path().to_owned(), level })
    }

    /// Absolute path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes one line; `file` and `line` are the caller's, from `file!()` and `line!()`.
    pub fn line(&mut self, level: Level, file: &str, line: u32, text: &str) -> Result<(), SinkError> {
        if level < self.level {
            return Ok(());
        }
        let whole = format_line(&Zoned::now(), level, file, line, text);
        self.file.write_all(&whole).map_err(SinkError::io(&self.path))
    }
}

/// Control characters in `text` are escaped: a line stays a line, and a terminal that shows the file does not obey it.
fn format_line(now: &Zoned, level: Level, file: &str, line: u32, text: &str) -> Vec<u8> {
    let file = file.rsplit('/').next().unwrap_or(file);
    format!("{} {} [{file}:{line}] {}\n", now.strftime("%Y-%m-%d %H:%M:%S"), level.tag(), OneLine(text)).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tags are padded to one width, and only the file's own name is written.
    #[test]
    fn lines_look_like_the_reference() {
        let now = jiff::civil::date(2026, 11, 21).at(0, 4, 41, 0).to_zoned(jiff::tz::TimeZone::UTC).expect("time");
        let line = |level, text| String::from_utf8(format_line(&now, level, "src/cli/run.rs", 35, text)).expect("text");
        assert_eq!(line(Level::Info, "started"), "2026-11-21 00:04:41 [INFO]  [run.rs:35] started\n");
        assert_eq!(line(Level::Warn, "odd"), "2026-11-21 00:04:41 [WARN]  [run.rs:35] odd\n");
        assert_eq!(line(Level::Error, "a\nb"), "2026-11-21 00:04:41 [ERROR] [run.rs:35] a\\nb\n");
        assert_eq!(line(Level::Debug, "x"), "2026-11-21 00:04:41 [DEBUG] [run.rs:35] x\n");
    }

    /// Lines below the level of the log are left out.
    #[test]
    fn level_filters() {
        let root = tempfile::tempdir().expect("temporary directory");
        let tree = OutputTree::open(root.path(), None).expect("directory");
        let dir = tree.make_process_dir(7).expect("directory");
        let mut log = LogFile::create(&tree, &dir, Level::Warn).expect("writable");
        for level in [Level::Debug, Level::Info, Level::Warn, Level::Error] {
            log.line(level, file!(), line!(), "text").expect("writable");
        }
        assert_eq!(std::fs::read_to_string(log.path()).expect("readable").lines().count(), 2);
        assert!(log.path().starts_with(dir.path().join("msmemscope_logs")));
    }
}
