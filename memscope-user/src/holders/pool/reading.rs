//! All blocks of a device at one moment, without stopping the process: they are read again until their sums are the
//! allocator's own, and as many are free as its trees have nodes.

use std::time::Instant;

use super::{
    MAX_BLOCKS, Owners, PATIENCE, UsedBy,
    devices::Device,
    layout::{Fields, Rows, SIZE_STEP, byte, stream},
    trees::{self, Header},
};
use crate::{
    hash::HashSet,
    holders::{graph::Graph, heap::Block, source::ADDRESS_END, source::Source},
};

const MIN_TRIES: u32 = 2;
const MAX_TRIES: u32 = 200;
/// Times that neighbours which were not known are followed, in one reading.
const MAX_HOPS: u32 = 8;

/// The result.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) fields: Fields,
    pub(super) rows: Rows,
    /// The byte that shows whether a block was handed out.
    pub(super) live: usize,
    /// Freed blocks wait for other streams.
    pub(super) some_wait: bool,
    /// The byte that shows whether it has memory, with segments that can grow.
    pub(super) mapped: Option<usize>,
    pub(super) is_proved: bool,
    /// Where the allocator has its sums, of a proved reading.
    sums: Option<Sums>,
}

/// Where a device that was proved has everything: others have it there, too.
#[derive(Debug)]
pub(super) struct Learnt {
    pub(super) fields: Fields,
    /// Offsets of pools in the device's allocator.
    pools: Vec<u64>,
    sums: Sums,
}

/// Words of a device's allocator: bytes of live blocks, and of all. The first with the value, as the highest value is behind the one of now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sums {
    used: usize,
    all: usize,
}

/// What a proof shows.
#[derive(Clone, Copy)]
struct Proof {
    live: usize,
    some_wait: bool,
    sums: Sums,
}

impl Reading {
    pub(super) fn used_by(&self, row: &[u64]) -> UsedBy {
        match byte(row, self.live) {
            1 => UsedBy::Program,
            _ if self.some_wait && self.fields.waits(row) => UsedBy::Stream,
            _ => UsedBy::Pool,
        }
    }

    /// For the other devices, if this one is proved and has blocks.
    pub(super) fn learnt(&self, device: &Device) -> Option<Learnt> {
        let Block { start, size, .. } = device.block;
        let mut pools: Vec<u64> =
            self.rows.values().filter_map(|row| self.fields.pool(row).checked_sub(start)).collect();
        pools.retain(|offset| *offset < size);
        pools.sort_unstable();
        pools.dedup();
        let sums = self.sums.filter(|_| !pools.is_empty())?;
        Some(Learnt { fields: self.fields, pools, sums })
    }
}

/// State of reading one device.
struct Reader<'a> {
    source: &'a dyn Source,
    graph: &'a Graph<'a>,
    device: &'a Device,
    fields: Fields,
    /// What blocks point at as their pool, in order.
    pools: Vec<u64>,
    /// Where its sums are, if that is known from another device.
    sums: Option<Sums>,
}

/// One reading.
struct Moment {
    rows: Rows,
    /// Of the device's allocator itself.
    words: Vec<u64>,
    headers: Vec<Header>,
}

pub(super) fn read(
    graph: &Graph<'_>,
    device: &Device,
    fields: Fields,
    owners: &Owners,
    learnt: Option<&Learnt>,
) -> Reading {
    let mut pools: Vec<u64> = owners.iter().map(|(_, pool)| *pool).collect();
    let elsewhere = learnt.iter().flat_map(|learnt| &learnt.pools);
    pools.extend(elsewhere.map(|offset| device.block.start + offset));
    pools.sort_unstable();
    pools.dedup();
    let sums = learnt.map(|learnt| learnt.sums);
    let reader = Reader { source: graph.memory.source(), graph, device, fields, pools, sums };
    let mut known: HashSet<u64> = owners.iter().map(|(owner, _)| *owner).collect();
    let live = reader.learn_live(&known);
    let begin = Instant::now();
    let mut tries = 0;
    loop {
        tries += 1;
        let moment = reader.moment(&known);
        let proof = reader.proof(&moment, live);
        let is_late = tries >= MIN_TRIES && (tries >= MAX_TRIES || begin.elapsed() > PATIENCE);
        if proof.is_some() || is_late {
            let (live, some_wait) = proof.map_or((live, false), |proof| (proof.live, proof.some_wait));
            let mapped = mapped_byte(&moment.rows, &fields, live);
            let handed_out = moment.rows.values().map(|row| &**row).filter(|row| byte(row, live) == 1);
            let fields = fields.with_requested(handed_out);
            let (is_proved, sums) = (proof.is_some(), proof.map(|proof| proof.sums));
            return Reading { fields, rows: moment.rows, live, some_wait, mapped, is_proved, sums };
        }
        known.extend(moment.rows.keys().take(MAX_BLOCKS.saturating_sub(known.len())));
    }
}

/// The byte that is 1 for all live blocks, behind the flag.
fn mapped_byte(rows: &Rows, fields: &Fields, live: usize) -> Option<usize> {
    let candidates = live + 1..fields.flags().end;
    let is_live = |row: &[u64]| byte(row, live) == 1;
    let live_rows = || rows.values().filter(|row| is_live(row));
    let mut fitting =
        candidates.into_iter().filter(|at| live_rows().next().is_some() && live_rows().all(|row| byte(row, *at) == 1));
    fitting.next()
}

impl Reader<'_> {
    /// Where it starts, and its words, of the allocator and of each pool of its own.
    fn area_words(&self) -> Vec<(u64, Vec<u64>)> {
        let words = |area: Block| {
            let bytes = self.source.read_pieces(&[area.start], (area.size & !7) as usize);
            (area.start, bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
        };
        self.device.areas().map(words).collect()
    }

    /// Headers of the trees of all pools.
    fn headers(&self, areas: &[(u64, Vec<u64>)]) -> Vec<Header> {
        let of_area = |(start, words): &(u64, Vec<u64>)| {
            let from = self.pools.partition_point(|pool| pool < start);
            let to = self.pools.partition_point(|pool| *pool < start + words.len() as u64 * 8);
            trees::headers(words, *start, &self.pools[from..to])
        };
        areas.iter().flat_map(of_area).collect()
    }

    fn rows(&self, blocks: &[u64]) -> Vec<(u64, Box<[u64]>)> {
        let bytes = self.source.read_pieces(blocks, self.fields.words * 8);
        let rows = bytes.chunks_exact(self.fields.words * 8);
        let words = rows.map(|row| row.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect());
        blocks.iter().copied().zip(words).collect()
    }

    /// The byte that is 0 for exactly the blocks in trees. If no trees were whole, the first candidate.
    fn learn_live(&self, known: &HashSet<u64>) -> usize {
        let rows: Rows = self.rows(&known.iter().copied().collect::<Vec<_>>()).into_iter().collect();
        let is_block = |block: u64| rows.contains_key(&block);
        let mut free = HashSet::default();
        for (start, words) in self.area_words() {
            free.extend(trees::free_blocks(self.graph.memory, start, &words, is_block));
        }
        let blocks = || rows.iter().filter(|(_, row)| self.fields.address(row) != 0);
        let says =
            |at: usize| blocks().all(|(block, row)| byte(row, at) <= 1 && (byte(row, at) == 0) == free.contains(block));
        let mut candidates = self.fields.flags();
        let first = candidates.start;
        if free.is_empty() { first } else { candidates.find(|at| says(*at)).unwrap_or(first) }
    }

    /// Reads all blocks, new neighbours, and segments that are wholly free, which only the trees refer to.
    fn moment(&self, known: &HashSet<u64>) -> Moment {
        let mut rows: Rows = self.rows(&known.iter().copied().collect::<Vec<_>>()).into_iter().collect();
        for _ in 0..MAX_HOPS {
            let new = self.unknown_neighbours(&rows);
            if new.is_empty() || rows.len() + new.len() > MAX_BLOCKS {
                break;
            }
            rows.extend(self.rows(&new));
        }
        let mut areas = self.area_words();
        let headers = self.headers(&areas);
        let mut free = trees::blocks_now(self.source, &headers);
        free.retain(|block| !rows.contains_key(block));
        free.sort_unstable();
        free.dedup();
        rows.extend(self.rows(&free));
        self.drop_what_is_none(&mut rows);
        let words = if areas.is_empty() { Vec::new() } else { areas.swap_remove(0).1 };
        Moment { rows, words, headers }
    }

    fn is_of_pool(&self, row: &[u64]) -> bool {
        self.pools.binary_search(&self.fields.pool(row)).is_ok()
    }

    fn unknown_neighbours(&self, rows: &Rows) -> Vec<u64> {
        let of_pool = rows.values().filter(|row| self.is_of_pool(row));
        let neighbours = of_pool.flat_map(|row| [self.fields.previous(row), self.fields.next(row)]);
        let is_new =
            |block: &u64| *block != 0 && block.is_multiple_of(8) && *block < ADDRESS_END && !rows.contains_key(block);
        let mut new: Vec<u64> = neighbours.filter(is_new).collect();
        new.sort_unstable();
        new.dedup();
        new
    }

    /// Drops blocks freed by malloc or merged away: they point at their neighbours, which do not point back.
    fn drop_what_is_none(&self, rows: &mut Rows) {
        let fields = &self.fields;
        rows.retain(|_, row| {
            let size = fields.size(row);
            let is_block = self.is_of_pool(row) && fields.address(row) != 0 && size != 0;
            is_block && size.is_multiple_of(SIZE_STEP) && !self.graph.heap.is_cached(stream(row))
        });
        let stale: Vec<u64> =
            rows.iter().filter(|(at, row)| self.is_stale(rows, **at, row)).map(|(at, _)| *at).collect();
        for at in stale {
            rows.remove(&at);
        }
        // Of a segment of its own no neighbour says that it is gone.
        let lone = rows.iter().filter(|(_, row)| fields.previous(row) == 0 && fields.next(row) == 0);
        for at in self.graph.heap.free_now(&lone.map(|(at, _)| *at).collect::<Vec<_>>()) {
            rows.remove(&at);
        }
    }

    fn is_stale(&self, rows: &Rows, at: u64, row: &[u64]) -> bool {
        let fields = &self.fields;
        let (previous, next) = (fields.previous(row), fields.next(row));
        let before = previous == 0
            || rows
                .get(&previous)
                .is_some_and(|before| fields.next(before) == at && fields.end(before) == fields.address(row));
        let behind = next == 0 || rows.get(&next).is_some_and(|behind| fields.previous(behind) == at);
        !(before && behind)
    }

    /// The byte that marks live blocks, if everything agrees with it: no two blocks overlap, the allocator has the sum
    /// of the live ones and that of all, and as many are free as its trees have nodes. Freed blocks that other streams
    /// still use are in no tree, and with them the allocator has a sum of its own. That there are none is proved where the
    /// place of the sums is known.
    fn proof(&self, moment: &Moment, likely: usize) -> Option<Proof> {
        let Moment { rows, words, headers } = moment;
        let free: u64 = headers.iter().map(|header| header.count).sum();
        if headers.is_empty() || !self.are_apart(rows) || rows.is_empty() && !self.is_unused(words) {
            return None;
        }
        let near = self.fields.flags().start..self.fields.flags().start + 4;
        let mut candidates = std::iter::once(likely).chain(near);
        candidates.find_map(|at| {
            let flag = |row: &[u64], at: usize| byte(row, at);
            let sum = |such: &dyn Fn(&[u64]) -> bool| {
                let sizes = rows.values().filter(|row| such(row)).map(|row| self.fields.size(row));
                sizes.fold(0_u64, u64::wrapping_add)
            };
            let used = sum(&|row| flag(row, at) == 1);
            // With segments that can grow some have no memory.
            let all = sum(&|row| flag(row, at) == 1 || flag(row, at + 1) == 1);
            let is_flag = rows.values().all(|row| flag(row, at) <= 1);
            let count = |such: &dyn Fn(&[u64]) -> bool| rows.values().filter(|row| such(row)).count() as u64;
            let waits = |row: &[u64]| flag(row, at) == 0 && self.fields.waits(row);
            let active = || used.wrapping_add(sum(&waits));
            let beyond = count(&|row| flag(row, at) == 0).checked_sub(free)?;
            let some_wait = beyond > 0;
            let are_free = !some_wait || beyond == count(&waits) && words.contains(&active());
            let place = |sum: u64| words.iter().position(|word| *word == sum);
            let sums = Sums { used: place(used)?, all: place(all)? };
            (is_flag && are_free).then_some(Proof { live: at, some_wait, sums })
        })
    }

    fn is_unused(&self, words: &[u64]) -> bool {
        self.sums.is_some_and(|sums| [sums.used, sums.all].iter().all(|sum| words.get(*sum) == Some(&0)))
    }

    fn are_apart(&self, rows: &Rows) -> bool {
        let mut extents: Vec<(u64, u64)> =
            rows.values().map(|row| (self.fields.address(row), self.fields.end(row))).collect();
        extents.sort_unstable();
        extents.windows(2).all(|two| two[0].1 <= two[1].0)
    }
}
