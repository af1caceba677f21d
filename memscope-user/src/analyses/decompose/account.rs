//! Sums of one pool's blocks by name: at the peak, at the end, on average.

use std::collections::BTreeMap;

use super::clamped;
use super::classify::{Classifier, LabelId};
use super::held::Parts;
use super::lives::{Back, Live, Went};
use super::timeline::Timeline;
use super::{Decomposition, OwnerNode, OwnerPart, Source};
use crate::hash::HashMap;
use crate::model::{Confidence, Device, Name, Pool};

/// One pool of one process on one device.
#[derive(Debug)]
pub(super) struct Account {
    start_ns: u64,
    live_bytes: u128,
    /// Bytes by the pool's own figure, or the pipeline's sum.
    reported_bytes: u64,
    peak: Peak,
    sums: BTreeMap<LabelId, Sum>,
    timeline: Timeline,
    /// Blocks held when the process's memory was taken from it.
    held: BTreeMap<Name, u128>,
    /// What holders and rules say of blocks.
    evidence: Parts,
}

/// The moment of the most live bytes.
#[derive(Debug, Default)]
struct Peak {
    bytes: u128,
    reported_bytes: u64,
    time_ns: u64,
    /// Its place among all allocations and frees: blocks from before that end later were live.
    moment: u64,
    /// Blocks that have ended since: number and bytes.
    ended: HashMap<LabelId, (u64, u128)>,
}

/// Sum of the ended blocks of one label.
#[derive(Debug, Default)]
struct Sum {
    blocks: u64,
    /// Size times lifetime of each.
    byte_ns: u128,
    end_blocks: u64,
    end_bytes: u128,
}

impl Account {
    pub(super) fn new(start_ns: u64) -> Self {
        Self {
            start_ns,
            live_bytes: 0,
            reported_bytes: 0,
            peak: Peak::default(),
            sums: BTreeMap::new(),
            timeline: Timeline::new(start_ns),
            held: BTreeMap::new(),
            evidence: Parts::default(),
        }
    }

    /// The process has memory again after its memory was taken: it executed another program, and nothing was held to
    /// the end.
    pub(super) fn goes_on(&mut self, time_ns: u64) {
        if self.held.is_empty() {
            return;
        }
        for (component, bytes) in std::mem::take(&mut self.held) {
            self.timeline.grow(component, time_ns, -bytes.cast_signed());
        }
        self.timeline.total(time_ns, self.live_bytes);
        for sum in self.sums.values_mut() {
            (sum.end_blocks, sum.end_bytes) = (0, 0);
        }
    }

    /// A block came that is older than the trace: it was there at the peak.
    pub(super) const fn was_there(&mut self, live: &Live) {
        if self.peak.bytes > 0 {
            self.peak.bytes += live.size_bytes as u128;
        }
    }

    /// A block came.
    pub(super) fn grow(&mut self, live: &Live, moment: u64, time_ns: u64, reported_bytes: u64) {
        self.live_bytes += u128::from(live.size_bytes);
        self.reported_bytes = reported_bytes;
        self.timeline.total(time_ns, self.live_bytes);
        if self.live_bytes > self.peak.bytes {
            self.peak = Peak { bytes: self.live_bytes, reported_bytes, time_ns, moment, ended: HashMap::default() };
        }
    }

    /// The pool's own figure of bytes handed out, as long as the program gives memory back itself.
    pub(super) const fn reported(&mut self, reported_bytes: u64, gave_back: bool) {
        if gave_back {
            self.reported_bytes = reported_bytes;
        }
    }

    /// A block has ended under its final name, or was held to the end.
    pub(super) fn end(&mut self, went: &Went, component: Name, time_ns: u64, gave_back: bool) {
        let Went { live, label, evidence, .. } = *went;
        if let Some(evidence) = evidence {
            self.evidence.add(evidence, live.size_bytes);
        }
        let bytes = u128::from(live.size_bytes);
        let sum = self.sums.entry(label).or_default();
        sum.blocks += 1;
        // Two products of the largest numbers are more than there is room for.
        sum.byte_ns = sum.byte_ns.saturating_add(bytes * u128::from(time_ns.saturating_sub(live.time_ns)));
        if live.moment <= self.peak.moment {
            let (blocks, sum) = self.peak.ended.entry(label).or_default();
            *blocks += 1;
            *sum += bytes;
        }
        self.live_bytes = self.live_bytes.saturating_sub(bytes);
        self.timeline.grow(component, live.time_ns, bytes.cast_signed());
        if gave_back {
            self.timeline.grow(component, time_ns, -bytes.cast_signed());
            self.timeline.total(time_ns, self.live_bytes);
        } else {
            sum.end_blocks += 1;
            sum.end_bytes += bytes;
            *self.held.entry(component).or_default() += bytes;
        }
    }

    /// Undoes [`Self::end`] of a block that the program had not given back.
    pub(super) fn take_back(&mut self, live: &Live, component: Name, back: &Back) {
        let Back { label, evidence, time_ns, moment } = *back;
        if let Some(evidence) = evidence {
            self.evidence.remove(evidence, live.size_bytes);
        }
        let bytes = u128::from(live.size_bytes);
        if let Some(sum) = self.sums.get_mut(&label) {
            sum.blocks -= 1;
            sum.byte_ns = sum.byte_ns.saturating_sub(bytes * u128::from(time_ns.saturating_sub(live.time_ns)));
        }
        self.timeline.grow(component, live.time_ns, -bytes.cast_signed());
        self.timeline.grow(component, time_ns, bytes.cast_signed());
        if live.moment > self.peak.moment {
            return;
        }
        if moment < self.peak.moment {
            // The peak came while it was thought to have ended.
            self.peak.bytes += bytes;
        } else if let Some((blocks, sum)) = self.peak.ended.get_mut(&label) {
            *blocks -= 1;
            *sum -= bytes;
        }
    }

    /// The account as a finding. All blocks have ended; process, device and confidence are left to fill in.
    pub(super) fn close(self, pool: Pool, end_ns: u64, names: &Classifier) -> Decomposition {
        let Self { start_ns, reported_bytes, peak, sums, timeline, evidence, .. } = self;
        let end_ns = end_ns.max(start_ns);
        let duration_ns = u128::from(end_ns - start_ns).max(1);
        let parts = sums.iter().filter(|(_, sum)| sum.blocks > 0).map(|(label, sum)| {
            let (peak_blocks, peak_bytes) = peak.ended.get(label).copied().unwrap_or_default();
            let known = names.get(*label);
            OwnerPart {
                owner: known.owner,
                component: known.component,
                rule: known.rule,
                source: known.source,
                peak_blocks,
                peak_bytes: clamped(peak_bytes),
                end_blocks: sum.end_blocks,
                end_bytes: clamped(sum.end_bytes),
                mean_bytes: clamped(sum.byte_ns / duration_ns),
                blocks: sum.blocks,
            }
        });
        let mut parts: Vec<OwnerPart> = parts.collect();
        parts.sort_by(|one, other| {
            let size = |part: &OwnerPart| (part.peak_bytes, part.end_bytes, part.mean_bytes);
            size(other).cmp(&size(one)).then_with(|| (one.owner, one.rule).cmp(&(other.owner, other.rule)))
        });
        let end_bytes = clamped(sums.values().map(|sum| sum.end_bytes).sum());
        let all_byte_ns = sums.values().map(|sum| sum.byte_ns).fold(0, u128::saturating_add);
        let by = |source: Source| parts.iter().filter(move |part| part.source == source).map(|part| part.peak_bytes);
        Decomposition {
            pid: 0,
            device: Device::None,
            pool,
            attached: false,
            steps: 0,
            start_ns,
            end_ns,
            peak_ns: peak.time_ns,
            peak_bytes: clamped(peak.bytes),
            peak_untracked_bytes: peak.reported_bytes.saturating_sub(clamped(peak.bytes)),
            end_bytes,
            end_untracked_bytes: reported_bytes.saturating_sub(end_bytes),
            mean_bytes: clamped(all_byte_ns / duration_ns),
            peak_by_source: Source::ALL.map(|source| by(source).fold(0, u64::saturating_add)),
            held: evidence.close(),
            tree: tree(&parts, pool),
            parts,
            timeline: timeline.close(end_ns),
            confidence: Confidence::Certain,
        }
    }
}

/// The parts by the labels of their owners.
fn tree(parts: &[OwnerPart], pool: Pool) -> Vec<OwnerNode> {
    let mut roots = Vec::new();
    for part in parts {
        let owner = part.owner.map_or(pool.event_type(), Name::as_str);
        let mut level = &mut roots;
        for label in owner.split('@').take(MAX_DEPTH) {
            level = &mut node(level, label, part).children;
        }
    }
    sort(&mut roots);
    roots
}

/// Labels of an owner: eight levels (contract §8.5).
const MAX_DEPTH: usize = 8;

fn node<'a>(level: &'a mut Vec<OwnerNode>, label: &str, part: &OwnerPart) -> &'a mut OwnerNode {
    let at = level.iter().position(|node| node.label == label).unwrap_or_else(|| {
        let (peak_bytes, end_bytes, mean_bytes) = (0, 0, 0);
        level.push(OwnerNode { label: label.to_owned(), peak_bytes, end_bytes, mean_bytes, children: Vec::new() });
        level.len() - 1
    });
    let node = &mut level[at];
    node.peak_bytes = node.peak_bytes.saturating_add(part.peak_bytes);
    node.end_bytes = node.end_bytes.saturating_add(part.end_bytes);
    node.mean_bytes = node.mean_bytes.saturating_add(part.mean_bytes);
    node
}

fn sort(level: &mut [OwnerNode]) {
    // Stable: parts came in order.
    level.sort_by_key(|node| std::cmp::Reverse((node.peak_bytes, node.end_bytes)));
    for node in level {
        sort(&mut node.children);
    }
}
