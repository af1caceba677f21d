//! Memory of a process that was recorded, or made up: tests and the fuzzer read this instead of a living one.

use std::collections::BTreeMap;

use super::{
    source::{ADDRESS_END, Backing, Mapping, PAGE, Source, Thread},
    symbols::Symbols,
};

/// Pages of an image at most: 16 MiB.
const MAX_PAGES: usize = 4096;

/// An image of a process.
#[derive(Debug, Default)]
pub(super) struct Image {
    mappings: Vec<Mapping>,
    pages: BTreeMap<u64, Box<[u8]>>,
    symbols: BTreeMap<String, Symbols>,
}

impl Image {
    /// Adds a mapping of zeros, all of its pages in memory. An overlapping one is left out.
    pub(super) fn map(&mut self, mapping: Mapping) {
        let room = (MAX_PAGES - self.pages.len()) as u64 * PAGE;
        let is_apart = |other: &Mapping| other.end <= mapping.start || mapping.end <= other.start;
        let is_whole = mapping.start.is_multiple_of(PAGE) && mapping.end.is_multiple_of(PAGE);
        let fits = mapping.start < mapping.end && mapping.end <= ADDRESS_END && mapping.end - mapping.start <= room;
        if is_whole && fits && self.mappings.iter().all(is_apart) {
            for page in (mapping.start..mapping.end).step_by(PAGE as usize) {
                self.pages.insert(page, vec![0; PAGE as usize].into());
            }
            let at = self.mappings.partition_point(|other| other.start < mapping.start);
            self.mappings.insert(at, mapping);
        }
    }

    /// Writes bytes, as far as there are pages.
    pub(super) fn put_bytes(&mut self, address: u64, bytes: &[u8]) {
        for (address, byte) in (address..ADDRESS_END).zip(bytes) {
            if let Some(page) = self.pages.get_mut(&(address & !(PAGE - 1))) {
                page[(address % PAGE) as usize] = *byte;
            }
        }
    }

    /// Number of words of all pages, for changing some of them.
    pub(super) fn words(&self) -> usize {
        self.pages.len() * (PAGE as usize / 8)
    }

    /// Address of the word with this number.
    pub(super) fn place(&self, word: usize) -> Option<u64> {
        let per_page = PAGE as usize / 8;
        let (page, _) = self.pages.iter().nth(word / per_page)?;
        Some(page + (word % per_page) as u64 * 8)
    }

    /// A mapping with the rights of a heap, or of a library's constants.
    pub(super) fn plain(start: u64, len: u64, backing: Backing, name: &str) -> Mapping {
        Mapping {
            start,
            end: start.saturating_add(len),
            readable: true,
            writable: backing != Backing::File,
            executable: false,
            private: true,
            file_offset: 0,
            backing,
            name: name.to_owned(),
        }
    }

    pub(super) fn set_symbols(&mut self, name: &str, symbols: Symbols) {
        self.symbols.insert(name.to_owned(), symbols);
    }
}

impl Image {
    #[cfg(test)]
    pub(super) fn anonymous(&mut self, start: u64, len: u64) {
        self.map(Self::plain(start, len, Backing::Anonymous, ""));
    }

    pub(super) fn heap(&mut self, start: u64, len: u64) {
        self.map(Self::plain(start, len, Backing::Heap, "[heap]"));
    }

    pub(super) fn file(&mut self, start: u64, len: u64, name: &str) {
        self.map(Self::plain(start, len, Backing::File, name));
    }

    pub(super) fn put(&mut self, address: u64, word: u64) {
        self.put_bytes(address, &word.to_le_bytes());
    }
}

impl Source for Image {
    fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    fn read(&self, address: u64, to: &mut [u8]) -> usize {
        let mut done = 0;
        while done < to.len() {
            let from = address.wrapping_add(done as u64);
            let Some(page) = self.pages.get(&(from & !(PAGE - 1))) else { break };
            let rest = &page[(from % PAGE) as usize..];
            let count = rest.len().min(to.len() - done);
            to[done..done + count].copy_from_slice(&rest[..count]);
            done += count;
        }
        done
    }

    fn present(&self, mapping: &Mapping) -> Vec<(u64, u64)> {
        let pages = self.pages.range(mapping.start..mapping.end);
        pages.map(|(start, _)| (*start, start + PAGE)).collect()
    }

    fn symbols(&self, mapping: &Mapping) -> Option<Symbols> {
        self.symbols.get(&mapping.name).cloned()
    }

    fn threads(&self) -> Vec<Thread> {
        Vec::new()
    }

    fn is_same(&self) -> bool {
        true
    }
}
