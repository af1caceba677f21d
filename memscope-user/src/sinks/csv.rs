//! One CSV file, appended to. A write that fails part way keeps the rest, so rows are never torn by a full disk.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::SinkError;
use crate::calm;

/// Bytes gathered before they are written.
const BLOCK_BYTES: usize = 64 << 10;
/// Bytes kept while the disk is full; rows beyond are refused.
const MAX_PENDING_BYTES: usize = 4 << 20;

/// An open CSV file.
#[derive(Debug)]
pub(super) struct CsvFile {
    file: File,
    path: PathBuf,
    pending: Vec<u8>,
    /// Length of the unfinished row at the end of the file.
    torn_bytes: usize,
    /// Bytes written since [`Self::take_written`].
    written_bytes: u64,
}

impl CsvFile {
    /// Starts a new file with a header of these columns.
    pub(super) fn create(file: File, path: &Path, columns: &[&str]) -> Self {
        let mut new = Self::append(file, path);
        new.pending.extend_from_slice(columns.join(",").as_bytes());
        new.pending.push(b'\n');
        new
    }

    /// Continues a file.
    pub(super) fn append(file: File, path: &Path) -> Self {
        Self {
            file,
            path: path.to_owned(),
            pending: Vec::with_capacity(BLOCK_BYTES + 1024),
            torn_bytes: 0,
            written_bytes: 0,
        }
    }

    /// Takes a line that `put` appends, and writes nothing yet. The caller checks [`Self::is_due`] and
    /// [`Self::is_full`].
    pub(super) fn take(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        put(&mut self.pending);
    }

    /// There is enough to be written.
    pub(super) const fn is_due(&self) -> bool {
        self.pending.len() >= BLOCK_BYTES
    }

    /// Bytes written since the last time.
    pub(super) fn take_written(&mut self) -> u64 {
        std::mem::take(&mut self.written_bytes)
    }

    /// No room for more rows until a flush succeeds.
    pub(super) const fn is_full(&self) -> bool {
        self.pending.len() >= MAX_PENDING_BYTES
    }

    /// Writes the pending rows; those that could not be written stay.
    pub(super) fn flush(&mut self) -> Result<(), SinkError> {
        let mut done = 0;
        let result = loop {
            if done == self.pending.len() {
                break Ok(());
            }
            match self.file.write(&self.pending[done..]) {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => done += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        self.torn_bytes = match self.pending[..done].iter().rposition(|&byte| byte == b'\n') {
            Some(end) => done - end - 1,
            None => self.torn_bytes + done,
        };
        self.written_bytes += done as u64;
        self.pending.drain(..done);
        calm::buffer(&mut self.pending, done);
        result.map_err(SinkError::io(&self.path))
    }

    /// Flushes, and returns the number of rows that were dropped. The file ends in a whole row in any case.
    pub(super) fn close(mut self) -> (Result<(), SinkError>, u64) {
        let result = self.flush();
        (result, self.give_up())
    }

    /// Ends the file without the pending rows; returns the number of rows in it.
    pub(super) fn give_up(self) -> u64 {
        if !self.pending.is_empty() && self.torn_bytes > 0 {
            let length = self.file.metadata().map(|metadata| metadata.len());
            // Nothing is left to try where even this fails; the error is on its way already.
            let _ = length.and_then(|length| self.file.set_len(length - self.torn_bytes as u64));
        }
        self.pending.split(|&byte| byte == b'\n').skip(1).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::{PipeReader, Read, pipe};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;

    use super::*;
    use crate::backend::ascend::pools;
    use crate::sinks::fixtures::{alloc, event};
    use crate::sinks::row::Row;

    /// A file that takes about 64 KiB, and more only when it is read.
    fn small_file() -> (PipeReader, File) {
        let (reader, writer) = pipe().expect("pipe");
        let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
        let file = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path).expect("pipe");
        (reader, file)
    }

    /// When a write ends in the middle of a row, the rest follows later: no byte twice, none missing.
    #[test]
    fn rows_are_not_torn() {
        let (mut reader, file) = small_file();
        let mut csv = CsvFile::append(file, Path::new("small"));
        let event = event(alloc(pools::HAL, 0x10, 1));
        let row = Row::of(&event).expect("a row");
        let mut write = || {
            csv.take(|out| row.write_csv(out));
            if csv.is_due() { csv.flush() } else { Ok(()) }
        };
        let failures = (0..800).filter(|_| write().is_err()).count();
        assert!(failures > 0);

        let mut text = vec![0; 64 << 10];
        reader.read_exact(&mut text).expect("readable");
        csv.flush().expect("room again");
        drop(csv);
        reader.read_to_end(&mut text).expect("readable");
        let mut expected = Vec::new();
        (0..800).for_each(|_| row.write_csv(&mut expected));
        assert_eq!(text, expected);
    }

    /// A full disk is an error that names the file; the rows wait, and are counted when they are dropped.
    #[test]
    fn full_disk_is_an_error() {
        let file = OpenOptions::new().write(true).open("/dev/full").expect("device");
        let mut csv = CsvFile::append(file, Path::new("full.csv"));
        let event = event(alloc(pools::HAL, 0x10, 1));
        let row = Row::of(&event).expect("a row");
        csv.take(|out| row.write_csv(out));
        csv.take(|out| row.write_csv(out));
        let message = crate::error_chain(&csv.flush().expect_err("full"));
        assert!(message.starts_with("cannot write `full.csv`: No space left on device"), "{message}");
        let (result, lost) = csv.close();
        assert!(result.is_err());
        assert_eq!(lost, 2);
    }
}
