//! Memory of the process by pages, each of which is read once: an answer shows one moment of each page.

use std::cell::RefCell;

use super::source::{ADDRESS_END, Mapping, PAGE, Source};
use crate::hash::HashMap;

/// Most pages kept: 64 MiB. Beyond, all are dropped and read again when needed.
const MAX_PAGES: usize = 16 << 10;
/// Longest piece read at once.
const MAX_PIECE: usize = 64 << 20;

type Page = [u8; PAGE as usize];

/// Reads a process through a cache.
#[derive(Debug)]
pub(super) struct Memory<'a> {
    source: &'a dyn Source,
    pages: RefCell<HashMap<u64, Option<Box<Page>>>>,
}

impl<'a> Memory<'a> {
    pub(super) fn new(source: &'a dyn Source) -> Self {
        Self { source, pages: RefCell::default() }
    }

    pub(super) const fn source(&self) -> &'a dyn Source {
        self.source
    }

    /// Drops all pages: later reads see the memory as it is then.
    pub(super) fn forget(&self) {
        self.pages.borrow_mut().clear();
    }

    /// The mapping of an address.
    pub(super) fn mapping(&self, address: u64) -> Option<&'a Mapping> {
        self.mapping_at(address).map(|at| &self.source.mappings()[at])
    }

    /// The same by its number.
    pub(super) fn mapping_at(&self, address: u64) -> Option<usize> {
        let mappings = self.source.mappings();
        let at = mappings.partition_point(|mapping| mapping.end <= address);
        mappings.get(at).filter(|mapping| mapping.contains(address)).map(|_| at)
    }

    /// Calls `look` with the page of an address.
    fn with_page<T>(&self, address: u64, look: impl FnOnce(&Page) -> T) -> Option<T> {
        let start = address & !(PAGE - 1);
        let mut pages = self.pages.borrow_mut();
        if pages.len() >= MAX_PAGES && !pages.contains_key(&start) {
            pages.clear();
        }
        let page = pages.entry(start).or_insert_with(|| self.read_page(start));
        page.as_deref().map(look)
    }

    /// Never outside of mappings.
    fn read_page(&self, start: u64) -> Option<Box<Page>> {
        self.mapping(start).filter(|mapping| mapping.readable)?;
        let mut page = Box::new([0; PAGE as usize]);
        (self.source.read(start, &mut page[..]) == page.len()).then_some(page)
    }

    /// `len` bytes.
    pub(super) fn bytes(&self, address: u64, len: usize) -> Option<Vec<u8>> {
        let end = address.checked_add(len as u64)?;
        if len > MAX_PIECE || end > ADDRESS_END {
            return None;
        }
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let from = address + bytes.len() as u64;
            let into = (from % PAGE) as usize;
            let count = (PAGE as usize - into).min(len - bytes.len());
            self.with_page(from, |page| bytes.extend_from_slice(&page[into..into + count]))?;
        }
        Some(bytes)
    }

    fn array<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let into = (address % PAGE) as usize;
        if address >= ADDRESS_END {
            return None;
        }
        if into + N <= PAGE as usize {
            return self.with_page(address, |page| page[into..].first_chunk().copied()).flatten();
        }
        self.bytes(address, N)?.first_chunk().copied()
    }

    pub(super) fn word(&self, address: u64) -> Option<u64> {
        self.array(address).map(u64::from_le_bytes)
    }

    /// A word, or 0.
    pub(super) fn word_or_0(&self, address: u64) -> u64 {
        self.word(address).unwrap_or(0)
    }

    pub(super) fn half(&self, address: u64) -> Option<u32> {
        self.array(address).map(u32::from_le_bytes)
    }

    pub(super) fn words(&self, address: u64, count: usize) -> Option<Vec<u64>> {
        let bytes = self.bytes(address, count.checked_mul(8)?)?;
        Some(bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
    }

    /// The text up to a NUL, if that comes within `max` bytes and all before it is UTF-8.
    pub(super) fn text(&self, address: u64, max: usize) -> Option<String> {
        const STEP: u64 = 64;
        let mut text = Vec::new();
        while text.len() < max {
            let from = address.checked_add(text.len() as u64)?;
            let bytes = self.bytes(from, (PAGE - from % PAGE).min(STEP) as usize)?;
            if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
                text.extend_from_slice(&bytes[..end]);
                return String::from_utf8(text).ok().filter(|text| text.len() <= max);
            }
            text.extend_from_slice(&bytes);
        }
        None
    }
}
