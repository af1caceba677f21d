//! The part of a file in memory: the current row, and some bytes behind it.

use std::io::{self, ErrorKind, Read};

use memchr::memchr;

/// Bytes read at once.
const BUFFER_BYTES: usize = 1 << 16;

/// Reads a file; rows are used in place.
#[derive(Debug)]
pub(super) struct Window<R> {
    input: R,
    /// Bytes of a row at most, and one more.
    most_bytes: usize,
    buffer: Vec<u8>,
    /// Start and end of the row, and the bytes read.
    start: usize,
    end: usize,
    filled: usize,
}

impl<R: Read> Window<R> {
    /// For rows of at most `most_bytes`. A longer one is cut one byte behind that.
    pub(super) fn new(input: R, most_bytes: usize) -> Self {
        Self { input, most_bytes: most_bytes + 1, buffer: vec![0; BUFFER_BYTES], start: 0, end: 0, filled: 0 }
    }

    /// The row.
    pub(super) fn row(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// The row, and the bytes read behind it.
    pub(super) fn ahead(&self) -> &[u8] {
        &self.buffer[self.start..self.filled]
    }

    /// Begins another row behind this one, still empty.
    pub(super) const fn next_row(&mut self) {
        self.start = self.end;
    }

    /// Makes the next bytes, which were read already, part of the row.
    pub(super) fn add(&mut self, len: usize) {
        self.end = (self.end + len).min(self.filled);
    }

    /// Makes the row end earlier; the bytes behind are read again.
    pub(super) fn shorten(&mut self, len: usize) {
        self.end = (self.start + len).min(self.end);
    }

    /// Adds a line, its end included, to the row; gives its bytes, 0 at the end of the file.
    pub(super) fn add_line(&mut self) -> io::Result<usize> {
        let before = self.row().len();
        let mut seen = before;
        let end = loop {
            if let Some(newline) = memchr(b'\n', &self.ahead()[seen..]) {
                break seen + newline + 1;
            }
            seen = self.ahead().len();
            if !self.more()? {
                break seen;
            }
        };
        self.end = self.start + end.min(self.most_bytes);
        Ok(self.row().len().saturating_sub(before))
    }

    /// Reads more; false at the end of the file, or with as much as the longest row.
    pub(super) fn more(&mut self) -> io::Result<bool> {
        if self.ahead().len() >= self.most_bytes {
            return Ok(false);
        }
        if self.filled == self.buffer.len() {
            self.buffer.copy_within(self.start..self.filled, 0);
            (self.end, self.filled, self.start) = (self.end - self.start, self.filled - self.start, 0);
            if self.filled > self.buffer.len() / 2 {
                self.buffer.resize((2 * self.buffer.len()).min(self.most_bytes + BUFFER_BYTES), 0);
            }
        }
        loop {
            match self.input.read(&mut self.buffer[self.filled..]) {
                Ok(read) => {
                    self.filled += read;
                    return Ok(read > 0);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of any length, read by any number of bytes, are those of the text.
    #[test]
    fn lines_are_those_of_the_text() {
        /// Returns few bytes at once.
        struct Slow<'a>(&'a [u8], usize);
        impl Read for Slow<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let most = self.1.min(buffer.len());
                self.0.read(&mut buffer[..most])
            }
        }
        let lines = [0, 1, 3, 70_000, 10, 200_000, 65_536, 65_535, 5].map(|length| "x".repeat(length));
        let text = lines.join("\n");
        for at_once in [7, 65_536, 1_000_000] {
            let mut window = Window::new(Slow(text.as_bytes(), at_once), 1 << 20);
            let mut found = Vec::new();
            while window.add_line().expect("readable") > 0 {
                found.push(String::from_utf8_lossy(window.row()).trim_end().to_owned());
                window.next_row();
            }
            assert!(found == lines, "{at_once}");
        }
    }

    /// A line without an end is cut one byte behind the longest row, and takes no more memory.
    #[test]
    fn endless_lines_are_cut() {
        let mut window = Window::new(io::repeat(b'x'), 100_000);
        assert_eq!(window.add_line().expect("readable"), 100_001);
        assert!(window.buffer.len() <= 100_001 + BUFFER_BYTES);
        assert_eq!(window.add_line().expect("readable"), 0);
    }
}
