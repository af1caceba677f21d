//! Live bytes over time, and their owners at the fullest moment of each bin, in bounded memory and one pass.
//!
//! Time is cut into bins of one width. When they are used up, the width is doubled and neighbours are joined: the
//! fuller moment of the two is that of both, so figures stay exact. A block's final owner is known when it ends; so its
//! bytes are added to the bins then, to each one with its fullest moment within the block's life. Owners of a bin add
//! up to its highest bytes.

use super::blocks::Rec;
use crate::model::Name;

/// Most levels; at least half as many once they have been joined.
pub(super) const MAX_BINS: usize = 4096;
/// Width of the first ones.
const FIRST_WIDTH_NS: u64 = 1 << 10;
/// Most owners; the rest is one.
const MAX_OWNERS: usize = 40;

/// One bin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bin {
    /// Fewest live bytes.
    pub low: u64,
    /// Most live bytes.
    pub high: u64,
    /// Event after which it was fullest for the first time.
    high_seq: u64,
    /// Most reserved bytes by the pool's own figure; 0 where it has none.
    pub reserved: u64,
}

/// Bytes of one owner.
#[derive(Debug, Default)]
struct Part {
    /// Differences of the figure from that of the bin before, modulo 2^64.
    steps: Vec<u64>,
    /// Of ended blocks, at the fullest moment of the last bin.
    last: u64,
    /// Bytes × time of all blocks.
    area: u128,
}

/// The curve of a layer.
#[derive(Debug)]
pub(super) struct Curve {
    start_ns: u64,
    width_ns: u64,
    bins: Vec<Bin>,
    owners: Vec<Option<Name>>,
    parts: Vec<Part>,
    used: u64,
    reserved: u64,
    seq: u64,
}

/// The finished curve.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Levels {
    /// When the first bin begins, nanoseconds since the Unix epoch.
    pub start_ns: u64,
    /// Width of a bin.
    pub width_ns: u64,
    /// In order of time.
    pub bins: Vec<Bin>,
    /// Owners by bytes × time, the largest first; `None`: without a rule.
    pub owners: Vec<Owner>,
}

/// An owner over time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Its name; `None` without a rule, and for the rest.
    pub name: Option<Name>,
    /// It stands for all further owners.
    pub rest: bool,
    /// Its bytes at the fullest moment of each bin.
    pub bytes: Vec<u64>,
    /// Bytes × time.
    area: u128,
}

impl Curve {
    pub(super) const fn new(start_ns: u64) -> Self {
        Self {
            start_ns,
            width_ns: FIRST_WIDTH_NS,
            bins: Vec::new(),
            owners: Vec::new(),
            parts: Vec::new(),
            used: 0,
            reserved: 0,
            seq: 0,
        }
    }

    /// Live bytes `used` after event `seq`, and the pool's own figure `reserved`.
    pub(super) fn total(&mut self, time_ns: u64, seq: u64, used: u64, reserved: Option<u64>) {
        self.reach(time_ns);
        self.reserved = reserved.unwrap_or(self.reserved);
        (self.used, self.seq) = (used, seq);
        let Some((at, bin)) = self.bins.len().checked_sub(1).zip(self.bins.last_mut()) else { return };
        bin.low = bin.low.min(used);
        bin.reserved = bin.reserved.max(self.reserved);
        if used > bin.high {
            (bin.high, bin.high_seq) = (used, seq);
            // Blocks that had ended by then are no part of it.
            for part in &mut self.parts {
                let ended = std::mem::take(&mut part.last);
                part.step(at, 0_u64.wrapping_sub(ended));
            }
        }
    }

    /// Makes bins up to a time.
    fn reach(&mut self, time_ns: u64) {
        let since = time_ns.saturating_sub(self.start_ns);
        while since / self.width_ns >= MAX_BINS as u64 {
            self.join();
        }
        let at = (since / self.width_ns) as usize;
        if self.bins.len() <= at {
            let next = self.bins.len();
            for part in &mut self.parts {
                let ended = std::mem::take(&mut part.last);
                part.step(next, 0_u64.wrapping_sub(ended));
            }
            // Up to now nothing changed.
            let bin = Bin { low: self.used, high: self.used, high_seq: self.seq, reserved: self.reserved };
            self.bins.resize(at + 1, bin);
        }
    }

    /// Doubles the width of the bins.
    fn join(&mut self) {
        self.width_ns *= 2;
        let fuller = fuller(&self.bins);
        for part in &mut self.parts {
            let bytes = pick(&part.bytes(self.bins.len()), &fuller);
            let mut before = 0_u64;
            // All blocks that have ended, as no bin is behind the last one.
            part.last = bytes.last().copied().unwrap_or(0);
            part.steps = bytes.iter().map(|now| now.wrapping_sub(std::mem::replace(&mut before, *now))).collect();
        }
        self.bins = join_bins(&self.bins, &fuller);
    }

    /// A block has ended, or is held.
    pub(super) fn ended(&mut self, rec: &Rec) {
        let owner = self.owner(rec.owner);
        let Some(last) = self.bins.len().checked_sub(1) else { return };
        let first = ((rec.start_ns.saturating_sub(self.start_ns) / self.width_ns) as usize).min(last);
        let first = if self.bins[first].high_seq >= rec.start_seq { first } else { first + 1 };
        let part = &mut self.parts[owner];
        part.area += rec.area();
        if first > last {
            return;
        }
        part.step(first, rec.size_bytes);
        if !rec.held {
            part.last = part.last.wrapping_add(rec.size_bytes);
        }
    }

    fn owner(&mut self, name: Option<Name>) -> usize {
        if let Some(known) = self.owners.iter().position(|owner| *owner == name) {
            return known;
        }
        if self.owners.len() > MAX_OWNERS {
            return MAX_OWNERS;
        }
        self.owners.push(name);
        self.parts.push(Part::default());
        self.owners.len() - 1
    }

    /// The curve up to a time.
    pub(super) fn close(mut self, end_ns: u64) -> Levels {
        self.reach(end_ns);
        let count = self.bins.len();
        let one = |(at, (name, part)): (usize, (Option<Name>, Part))| {
            let rest = at == MAX_OWNERS;
            Owner { name: name.filter(|_| !rest), rest, bytes: part.bytes(count), area: part.area }
        };
        let mut owners: Vec<Owner> = self.owners.into_iter().zip(self.parts).enumerate().map(one).collect();
        owners.sort_by(|a, b| a.rest.cmp(&b.rest).then(b.area.cmp(&a.area)).then(a.name.cmp(&b.name)));
        Levels { start_ns: self.start_ns, width_ns: self.width_ns, bins: self.bins, owners }
    }
}

/// Of each pair of bins whether the second one was fuller. An odd one at the end stays alone.
fn fuller(bins: &[Bin]) -> Vec<bool> {
    bins.chunks(2).map(|pair| pair.len() > 1 && pair[1].high > pair[0].high).collect()
}

fn pick(bytes: &[u64], fuller: &[bool]) -> Vec<u64> {
    fuller.iter().enumerate().map(|(at, second)| bytes[2 * at + usize::from(*second)]).collect()
}

fn join_bins(bins: &[Bin], fuller: &[bool]) -> Vec<Bin> {
    let join = |(pair, second): (&[Bin], &bool)| Bin {
        low: pair.iter().map(|bin| bin.low).min().unwrap_or(0),
        reserved: pair.iter().map(|bin| bin.reserved).max().unwrap_or(0),
        ..pair[usize::from(*second)]
    };
    bins.chunks(2).zip(fuller).map(join).collect()
}

impl Part {
    fn step(&mut self, at: usize, bytes: u64) {
        if bytes == 0 {
            return;
        }
        if self.steps.len() <= at {
            self.steps.resize(at + 1, 0);
        }
        self.steps[at] = self.steps[at].wrapping_add(bytes);
    }

    /// The figures of all bins.
    fn bytes(&self, count: usize) -> Vec<u64> {
        let mut bytes = 0_u64;
        (0..count)
            .map(|at| {
                bytes = bytes.wrapping_add(self.steps.get(at).copied().unwrap_or(0));
                bytes
            })
            .collect()
    }
}

impl Levels {
    /// The same with at most this many bins.
    #[must_use]
    pub(super) fn joined(&self, most: usize) -> Self {
        let mut all = self.clone();
        while all.bins.len() > most.max(1) {
            let fuller = fuller(&all.bins);
            for owner in &mut all.owners {
                owner.bytes = pick(&owner.bytes, &fuller);
            }
            (all.bins, all.width_ns) = (join_bins(&all.bins, &fuller), all.width_ns * 2);
        }
        all
    }

    /// Number of the bin of a time.
    #[must_use]
    pub fn at(&self, time_ns: u64) -> usize {
        let at = time_ns.saturating_sub(self.start_ns) / self.width_ns.max(1);
        (at as usize).min(self.bins.len().saturating_sub(1))
    }
}
