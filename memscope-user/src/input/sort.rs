//! Sorting more rows than fit into memory: sorted runs in temporary files, then a merge.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};

/// What rows are sorted by.
pub(super) type Key = [u64; 4];

/// Bytes of rows kept in memory.
const RUN_BYTES: usize = 96 << 20;
/// Bytes that a row takes beside its own.
const INDEX_BYTES: usize = size_of::<(Key, u32, u32)>();

/// Takes rows.
#[derive(Debug)]
pub(super) struct Sorter {
    bytes: Vec<u8>,
    index: Vec<(Key, u32, u32)>,
    runs: Vec<File>,
    run_bytes: usize,
}

impl Default for Sorter {
    fn default() -> Self {
        Self::new(RUN_BYTES)
    }
}

impl Sorter {
    pub(super) fn new(run_bytes: usize) -> Self {
        Self { bytes: Vec::new(), index: Vec::new(), runs: Vec::new(), run_bytes }
    }

    /// Takes a row; rows of one key keep their order.
    pub(super) fn push(&mut self, key: Key, write: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let start = self.bytes.len();
        write(&mut self.bytes);
        self.index.push((key, start as u32, (self.bytes.len() - start) as u32));
        if self.bytes.len() + self.index.len() * INDEX_BYTES >= self.run_bytes { self.spill() } else { Ok(()) }
    }

    fn spill(&mut self) -> io::Result<()> {
        self.index.sort_unstable();
        let mut out = BufWriter::with_capacity(1 << 18, tempfile::tempfile()?);
        for (key, start, len) in self.index.drain(..) {
            for number in key {
                out.write_all(&number.to_le_bytes())?;
            }
            out.write_all(&len.to_le_bytes())?;
            out.write_all(&self.bytes[start as usize..][..len as usize])?;
        }
        let mut file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.seek(SeekFrom::Start(0))?;
        self.runs.push(file);
        self.bytes.clear();
        Ok(())
    }

    /// All rows in order.
    pub(super) fn finish(mut self) -> io::Result<Sorted> {
        if self.runs.is_empty() {
            self.index.sort_unstable();
            return Ok(Sorted::Memory { bytes: self.bytes, index: self.index.into_iter() });
        }
        if !self.index.is_empty() {
            self.spill()?;
        }
        let mut runs: Vec<Run> = self
            .runs
            .into_iter()
            .map(|file| Run { input: BufReader::with_capacity(1 << 16, file), row: Vec::new() })
            .collect();
        let mut heads = BinaryHeap::new();
        for (number, run) in runs.iter_mut().enumerate() {
            heads.extend(run.next()?.map(|key| Reverse((key, number))));
        }
        Ok(Sorted::Files { runs, heads })
    }
}

/// A sorted file being read again, and its next row.
#[derive(Debug)]
pub(super) struct Run {
    input: BufReader<File>,
    row: Vec<u8>,
}

impl Run {
    fn next(&mut self) -> io::Result<Option<Key>> {
        if self.input.fill_buf()?.is_empty() {
            return Ok(None);
        }
        let mut head = [0; 36];
        self.input.read_exact(&mut head)?;
        let word = |at: usize| u64::from_le_bytes(head[at * 8..at * 8 + 8].try_into().unwrap_or_default());
        let len = u32::from_le_bytes(head[32..].try_into().unwrap_or_default());
        self.row.resize(len as usize, 0);
        self.input.read_exact(&mut self.row)?;
        Ok(Some([word(0), word(1), word(2), word(3)]))
    }
}

/// Gives the rows back in order.
#[derive(Debug)]
pub(super) enum Sorted {
    Memory { bytes: Vec<u8>, index: std::vec::IntoIter<(Key, u32, u32)> },
    Files { runs: Vec<Run>, heads: BinaryHeap<Reverse<(Key, usize)>> },
}

impl Sorted {
    /// The next row, put into `row`.
    pub(super) fn next(&mut self, row: &mut Vec<u8>) -> io::Result<bool> {
        row.clear();
        match self {
            Self::Memory { bytes, index } => {
                let Some((_, start, len)) = index.next() else { return Ok(false) };
                row.extend_from_slice(&bytes[start as usize..][..len as usize]);
            }
            Self::Files { runs, heads } => {
                let Some(Reverse((_, number))) = heads.pop() else { return Ok(false) };
                std::mem::swap(row, &mut runs[number].row);
                heads.extend(runs[number].next()?.map(|key| Reverse((key, number))));
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    fn sorted(run_bytes: usize, rows: &[(u64, String)]) -> (usize, Vec<String>) {
        let mut sorter = Sorter::new(run_bytes);
        for (key, text) in rows {
            sorter.push([*key, 0, 0, 0], |out| out.extend(text.bytes())).expect("written");
        }
        let runs = sorter.runs.len();
        let (mut all, mut row, mut texts) = (sorter.finish().expect("sorted"), Vec::new(), Vec::new());
        while all.next(&mut row).expect("read") {
            texts.push(String::from_utf8(row.clone()).expect("text"));
        }
        (runs, texts)
    }

    /// In memory and in files, with rows of equal keys in their original order.
    #[test]
    fn files_sort_like_memory() {
        let mut random = Random(7);
        let rows: Vec<(u64, String)> =
            (0..5000).map(|n| (random.next() % 300, format!("{n}{}", "x".repeat(n % 50)))).collect();
        let mut expected = rows.clone();
        expected.sort_by_key(|(key, _)| *key);
        let expected: Vec<String> = expected.into_iter().map(|(_, text)| text).collect();
        assert_eq!(sorted(1 << 30, &rows), (0, expected.clone()));
        let (runs, texts) = sorted(20_000, &rows);
        assert!(runs > 10 && texts == expected, "{runs}");
        assert_eq!(sorted(100, &[]), (0, vec![]));
    }
}
