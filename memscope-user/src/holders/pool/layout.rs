//! The fields of a block's description. `next` and `previous` are inverse to each other, and a block's address and size
//! give the address of the next one: no other fields fulfil that by chance.

use super::{Groups, Owners};
use crate::{hash::HashMap, holders::memory::Memory};

/// Blocks that the fields are learnt from.
const MAX_SAMPLE: usize = 2000;
/// Most fields tried as links.
const MAX_LINKS: usize = 8;
/// Of a hundred blocks, these have to agree: some are read while they change.
const AGREE: usize = 95;
/// Sizes of blocks are multiples of this.
pub(super) const SIZE_STEP: u64 = 512;
/// No device has addresses below.
const LOWEST_ADDRESS: u64 = 1 << 20;

/// Words of a description, by its address.
pub(super) type Rows = HashMap<u64, Box<[u64]>>;

/// The meaning of the words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fields {
    /// Words of a description.
    pub(super) words: usize,
    pool: usize,
    address: usize,
    size: usize,
    requested: Option<usize>,
    previous: usize,
    next: usize,
}

const fn at(row: &[u64], word: usize) -> u64 {
    if word < row.len() { row[word] } else { 0 }
}

/// One byte of a description.
pub(super) const fn byte(row: &[u64], offset: usize) -> u8 {
    at(row, offset / 8).to_le_bytes()[offset % 8]
}

/// The second word.
pub(super) const fn stream(row: &[u64]) -> u64 {
    at(row, 1)
}

impl Fields {
    pub(super) const fn pool(&self, row: &[u64]) -> u64 {
        at(row, self.pool)
    }

    pub(super) const fn address(&self, row: &[u64]) -> u64 {
        at(row, self.address)
    }

    pub(super) const fn size(&self, row: &[u64]) -> u64 {
        at(row, self.size)
    }

    pub(super) fn requested(&self, row: &[u64]) -> Option<u64> {
        self.requested.map(|word| at(row, word))
    }

    pub(super) const fn previous(&self, row: &[u64]) -> u64 {
        at(row, self.previous)
    }

    pub(super) const fn next(&self, row: &[u64]) -> u64 {
        at(row, self.next)
    }

    /// Whether it waits for events of other streams: their number is behind the link to the next block.
    pub(super) const fn waits(&self, row: &[u64]) -> bool {
        const MAX_EVENTS: u64 = 1 << 16;
        let events = at(row, self.next + 1) & 0xffff_ffff;
        0 < events && events < MAX_EVENTS
    }

    /// Bytes that may be the flag of a block that is handed out: those behind the address.
    pub(super) fn flags(&self) -> std::ops::Range<usize> {
        let from = (self.address + 1) * 8;
        from..from + 8
    }

    /// The same fields with the requested size: the word behind the size, if it is never larger in blocks that are handed out. Others keep
    /// what they had before they were split.
    pub(super) fn with_requested<'a>(self, mut live: impl Iterator<Item = &'a [u64]>) -> Self {
        let word = self.size + 1;
        let fits = word < self.words && live.all(|row| at(row, word) <= self.size(row));
        Self { requested: fits.then_some(word), ..self }
    }

    /// The blocks that have their pool where these fields have it.
    pub(super) fn owners(&self, mut groups: Groups) -> Owners {
        groups.remove(&(self.pool as u64 * 8, self.words as u64 * 8)).unwrap_or_default()
    }

    pub(super) fn end(&self, row: &[u64]) -> u64 {
        self.address(row).saturating_add(self.size(row))
    }
}

/// Learns the fields from equal blocks that have a pointer to their pool at `pool_offset`.
pub(super) fn find(memory: &Memory<'_>, pool_offset: u64, size: u64, owners: &[(u64, u64)]) -> Option<Fields> {
    let words = (size / 8) as usize;
    let sample = owners.iter().take(MAX_SAMPLE);
    let rows: Rows =
        sample.filter_map(|(owner, _)| Some((*owner, memory.words(*owner, words)?.into_boxed_slice()))).collect();
    let pool = (pool_offset / 8) as usize;
    let mut links: Vec<(usize, usize)> = (0..words)
        .filter(|word| *word != pool)
        .map(|word| (rows.values().filter(|row| rows.contains_key(&row[word])).count(), word))
        .filter(|(count, _)| *count > 0)
        .collect();
    links.sort_unstable_by_key(|(count, word)| (std::cmp::Reverse(*count), *word));
    links.truncate(MAX_LINKS);
    let mut best: Option<(usize, Fields)> = None;
    for (count, next) in &links {
        for (_, previous) in links.iter().filter(|(_, word)| word != next) {
            let pairs = pairs(&rows, *next, *previous);
            if pairs.is_empty() || pairs.len() * 100 < count * AGREE {
                continue;
            }
            let Some((agreeing, address, size)) = extent(&pairs, words) else { continue };
            if best.is_none_or(|(known, _)| agreeing > known) {
                let fields = Fields { words, pool, address, size, requested: None, previous: *previous, next: *next };
                best = Some((agreeing, fields));
            }
        }
    }
    best.map(|(_, fields)| fields)
}

type Pair<'a> = (&'a [u64], &'a [u64]);

/// Blocks and the ones behind them, as far as these point back.
fn pairs(rows: &Rows, next: usize, previous: usize) -> Vec<Pair<'_>> {
    let linked = rows.iter().filter_map(|(at, row)| {
        let behind = rows.get(&row[next])?;
        (behind[previous] == *at).then_some((&**row, &**behind))
    });
    linked.collect()
}

/// The words with address and size, and the number of pairs that agree.
fn extent(pairs: &[Pair<'_>], words: usize) -> Option<(usize, usize, usize)> {
    let fits = |address: usize, size: usize, (row, behind): &Pair<'_>| {
        row[size] != 0
            && row[size].is_multiple_of(SIZE_STEP)
            && row[address].wrapping_add(row[size]) == behind[address]
            && row[address] > LOWEST_ADDRESS
    };
    let allowed = pairs.len() - pairs.len() * AGREE / 100;
    let all = (0..words).flat_map(|address| (0..words).map(move |size| (address, size)));
    let agreeing = all.filter(|(address, size)| address != size).filter_map(|(address, size)| {
        let misfits = pairs.iter().filter(|pair| !fits(address, size, pair)).take(allowed + 1).count();
        let agreeing = pairs.len() - misfits;
        (misfits <= allowed && agreeing > 0).then_some((agreeing, address, size))
    });
    // Of equal ones the first.
    agreeing.max_by_key(|(agreeing, address, size)| (*agreeing, std::cmp::Reverse((*address, *size))))
}
