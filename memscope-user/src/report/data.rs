//! The data of a page: its head as JSON, and its columns.

use std::cmp::Reverse;

use serde_json::{Map, Value, json};

use super::Options;
use super::blocks::{Rec, keep_largest};
use super::checks::checks;
use super::curve::{Levels, MAX_BINS};
use super::layer::{Layer, Moment, StackWeight};
use super::pack::Pack;
use super::reduce::Reduced;
use super::segments::Segment;
use super::trie::Trie;
use super::view::View;
use super::what_if;
use crate::analyses::{Finding, Kind as _, fragmentation::Fragmentation, held_by::HeldBy, ledger::Ledger, oom::Oom};
use crate::explain::explain;
use crate::hash::HashMap;
use crate::model::{Device, Name, Stack, Stacks};

/// Version of the layout that the page's script reads.
const VERSION: u32 = 1;
/// Owners with a colour of their own; the rest is one.
const NAMED: usize = 9;
/// Blocks one by one, of all layers.
const MAX_BLOCKS: usize = 80_000;
/// Levels of all layers.
const ALL_BINS: usize = 10 * MAX_BINS;
/// Fewest bins of a layer.
const LEAST_BINS: usize = 256;
/// Places of a moment in each layer; the rest is one without a stack.
const MAX_PLACES: usize = 20_000;
/// Segments of all processes and devices.
const ALL_SEGMENTS: usize = 16_384;
/// Most bytes of findings that are shown unchanged.
const MAX_FINDINGS: usize = 1 << 20;

/// Head and columns before deflate.
pub(super) fn plain(run: &Reduced, findings: &[Finding], options: &Options) -> Vec<u8> {
    let mut maker = Maker::new(run, options.tells_failures);
    maker.plant(run);
    let views: Vec<Value> = run.views.iter().enumerate().map(|(at, view)| maker.view(at, view, findings)).collect();
    let (trie, mut pack) = (maker.trie, maker.pack);
    pack.u32("parent", &trie.parent);
    pack.u32("frame", &trie.frame);
    let frames: Vec<Value> =
        trie.frames.iter().map(|it| json!([it.name, it.file, it.line, u8::from(it.python)])).collect();
    let explained = explain(findings, &run.end);
    let head = json!({
        "version": VERSION,
        "tool": concat!("memscope-bpf ", env!("CARGO_PKG_VERSION")),
        "title": options.title,
        "part": options.part,
        "start_ns": maker.time.start_ns.to_string(),
        "unit_ns": maker.time.unit_ns,
        "span": maker.time.tick(maker.time.end_ns),
        "views": views,
        "left_out": run.left_out,
        "end": { "lost_of_memory": run.end.lost_of_memory(), "without_stack": run.end.without_stack(), "losses": run.end.losses, "cut_stacks": run.end.cut_stacks, "fault": run.end.fault,
                 "unopened": run.end.unopened },
        "stacks_cut": trie.cut,
        "frames": frames,
        "findings": shown(findings),
        "cards": explained.cards,
        "cards_left_out": explained.left_out,
        "what_if": what_if::value(&options.what_if),
    });
    let Value::Object(head) = head else { return pack.plain(Map::new()) };
    pack.plain(head)
}

/// Findings that the page shows in full, as `--json` has them, as far as there is room.
fn shown(findings: &[Finding]) -> Vec<Value> {
    let mut room = MAX_FINDINGS;
    let wanted = |it: &&Finding| {
        let is_table = Ledger::of(it).is_some() || Fragmentation::of(it).is_some() || HeldBy::of(it).is_some();
        is_table || Oom::of(it).is_some()
    };
    let values = findings.iter().filter(wanted).filter_map(|it| serde_json::to_value(it).ok());
    values
        .filter(|value| {
            let bytes = value.to_string().len();
            let fits = bytes <= room;
            room -= if fits { bytes } else { 0 };
            fits
        })
        .collect()
}

/// Time as a page counts it, in whole units from the first event on.
#[expect(clippy::struct_field_names, reason = "units end names")]
#[derive(Clone, Copy, Debug)]
struct Ticks {
    start_ns: u64,
    end_ns: u64,
    unit_ns: u64,
}

impl Ticks {
    fn of(run: &Reduced) -> Self {
        let start_ns = run.views.iter().map(|view| view.start_ns).min().unwrap_or(0);
        // Printed times count from the first event of the trace.
        let start_ns = if (1..start_ns).contains(&run.end.start_ns) { run.end.start_ns } else { start_ns };
        let end_ns = run.views.iter().map(|view| view.end_ns).max().unwrap_or(0).max(start_ns + 1);
        Self { start_ns, end_ns, unit_ns: (end_ns - start_ns).div_ceil(u64::from(u32::MAX) - 1).max(1) }
    }

    fn tick(self, time_ns: u64) -> u32 {
        (time_ns.clamp(self.start_ns, self.end_ns).saturating_sub(self.start_ns) / self.unit_ns) as u32
    }
}

struct Maker {
    trie: Trie,
    pack: Pack,
    time: Ticks,
    /// Most bins of a layer.
    bins: usize,
    /// Blocks of all layers.
    blocks: usize,
    /// Most segments of a view.
    segments: usize,
    tells_failures: bool,
}

impl Maker {
    fn new(run: &Reduced, tells_failures: bool) -> Self {
        let layers: usize = run.views.iter().map(|view| view.layers.len()).sum();
        Self {
            trie: Trie::new(),
            pack: Pack::default(),
            time: Ticks::of(run),
            bins: (ALL_BINS / layers.max(1)).clamp(LEAST_BINS, MAX_BINS),
            blocks: run.views.iter().flat_map(|view| &view.layers).map(|layer| layer.blocks.len()).sum(),
            segments: ALL_SEGMENTS / run.views.len().max(1),
            tells_failures,
        }
    }

    /// Plants the stacks with the most bytes first: if not all fit, theirs are whole.
    fn plant(&mut self, run: &Reduced) {
        let mut sums: HashMap<Stack, u64> = HashMap::default();
        let mut add = |weight: &StackWeight| {
            for stack in [weight.stacks.python, weight.stacks.native_or_mixed()].into_iter().flatten() {
                let bytes = sums.entry(stack).or_default();
                *bytes = bytes.saturating_add(weight.bytes);
            }
        };
        for layer in run.views.iter().flat_map(|view| &view.layers) {
            layer.by_stack.iter().for_each(&mut add);
            layer.moments.iter().flat_map(Moment::by_stack).for_each(|weight| add(&weight));
        }
        let mut stacks: Vec<(Stack, u64)> = sums.into_iter().collect();
        // Numbers of stacks are of this process alone, so equal ones are sorted by their frames.
        stacks.sort_by_cached_key(|(stack, bytes)| (Reverse(*bytes), stack.frames()));
        for (stack, _) in stacks {
            self.trie.node(Some(stack));
        }
    }

    fn view(&mut self, number: usize, view: &View, findings: &[Finding]) -> Value {
        let segments = self.segments(view);
        let ranges = Ranges::of(&segments);
        let layers: Vec<Value> = view
            .layers
            .iter()
            .enumerate()
            .map(|(at, layer)| self.layer(&format!("{number}.{at}"), layer, &ranges))
            .collect();
        let pool = |segment: &Segment| view.layers.iter().position(|layer| layer.pool == segment.pool);
        let time = self.time;
        let segment = |it: &Segment| {
            json!([
                it.addr as f64,
                it.size_bytes,
                time.tick(it.start_ns),
                time.tick(it.end_ns),
                u8::from(it.held),
                pool(it)
            ])
        };
        json!({
            "pid": view.pid,
            "device": view.device,
            "command": view.command.as_deref(),
            "attached": view.attached,
            "start": time.tick(view.start_ns),
            "end": time.tick(view.end_ns),
            "layers": layers,
            "segments": segments.iter().map(segment).collect::<Vec<_>>(),
            "segments_left_out": view.segments_left_out + (view.segments.len() - segments.len()) as u64,
            "steps": view.steps.iter().map(|(a, b)| [time.tick(*a), time.tick(*b)]).collect::<Vec<_>>(),
            "steps_ended": view.steps_ended,
            "marks": view.marks.iter().map(|mark| json!([time.tick(mark.time_ns), *mark.text])).collect::<Vec<_>>(),
            "failed": view.failed.iter().map(|it| json!([time.tick(it.time_ns), it.size_bytes, it.pool])).collect::<Vec<_>>(),
            "checks": checks(findings, view, self.tells_failures, &mut self.trie),
        })
    }

    /// Those with the most bytes × time, in order of address.
    fn segments(&self, view: &View) -> Vec<Segment> {
        let mut segments = view.segments.clone();
        if segments.len() > self.segments {
            let area = |it: &Segment| u128::from(it.size_bytes) * u128::from(it.end_ns - it.start_ns);
            segments.sort_by_key(|it| (Reverse(area(it)), it.addr, it.start_ns));
            segments.truncate(self.segments);
            segments.sort_by_key(|it| (it.addr, it.start_ns));
        }
        segments
    }

    fn layer(&mut self, name: &str, layer: &Layer, ranges: &Ranges) -> Value {
        let curve = layer.curve.joined(self.bins);
        let parts = Parts::of(&curve);
        self.curve(name, &curve, &parts);
        let (blocks, exact) = self.blocks_of(layer);
        self.blocks(name, &blocks, &parts, ranges, layer.pool.is_base());
        self.weights(&format!("{name}.all"), &layer.by_stack);
        let moments: Vec<Value> = layer
            .moments
            .iter()
            .map(|moment| {
                self.weights(&format!("{name}.{}", moment.kind), &moment.by_stack());
                json!({
                    "kind": moment.kind, "t": self.time.tick(moment.time_ns), "bytes": moment.bytes, "reserved": moment.reserved,
                    "blocks": moment.blocks.len(), "owners": owners(&moment.blocks),
                })
            })
            .collect();
        json!({
            "pool": layer.pool, "name": layer.pool.display_name(), "base": layer.pool.is_base(),
            "host": layer.device_is_host(), "parts": parts.names, "moments": moments,
            "bins": curve.bins.len(), "bins_start": self.time.tick(curve.start_ns),
            "bin_width": curve.width_ns as f64 / self.time.unit_ns as f64,
            "allocations": layer.allocations, "frees": layer.frees, "allocated_bytes": layer.allocated_bytes,
            "reported_peak": layer.reported_peak, "exact": exact, "shown": blocks.len(),
        })
    }

    fn curve(&mut self, name: &str, curve: &Levels, parts: &Parts) {
        self.pack.numbers(&format!("{name}.low"), curve.bins.iter().map(|bin| bin.low));
        self.pack.numbers(&format!("{name}.high"), curve.bins.iter().map(|bin| bin.high));
        self.pack.numbers(&format!("{name}.reserved"), curve.bins.iter().map(|bin| bin.reserved));
        self.pack.numbers(&format!("{name}.parts"), parts.bytes.iter().flatten().copied());
    }

    /// The layer's share of the blocks that are shown one by one.
    fn blocks_of(&self, layer: &Layer) -> (Vec<Rec>, bool) {
        let mut blocks = layer.blocks.clone();
        if self.blocks > MAX_BLOCKS {
            let share = MAX_BLOCKS as u128 * blocks.len() as u128 / self.blocks.max(1) as u128;
            keep_largest(&mut blocks, (share as usize).max(200));
            blocks.sort_unstable_by_key(|rec| (rec.start_seq, rec.allocation_id));
        }
        let exact = layer.exact && blocks.len() == layer.blocks.len();
        (blocks, exact)
    }

    fn blocks(&mut self, name: &str, blocks: &[Rec], parts: &Parts, ranges: &Ranges, base: bool) {
        let own = base.then(|| Ranges::of_blocks(blocks));
        let ranges = own.as_ref().unwrap_or(ranges);
        let column = |what: &str| format!("{name}.b.{what}");
        let ticks: Vec<(u32, u32)> =
            blocks.iter().map(|rec| (self.time.tick(rec.start_ns), self.time.tick(rec.end_ns))).collect();
        self.pack.sorted(&column("t0"), &ticks.iter().map(|(start, _)| *start).collect::<Vec<_>>());
        self.pack.u32(&column("life"), &ticks.iter().map(|(start, end)| end - start).collect::<Vec<_>>());
        self.pack.u8(&column("held"), &blocks.iter().map(|rec| u8::from(rec.held)).collect::<Vec<_>>());
        self.pack.numbers(&column("size"), blocks.iter().map(|rec| rec.size_bytes));
        self.pack.numbers(&column("addr"), blocks.iter().map(|rec| rec.addr));
        self.pack.numbers(&column("y"), blocks.iter().map(|rec| ranges.place(rec.addr).map_or(0, |y| y + 1)));
        self.pack.u8(&column("part"), &blocks.iter().map(|rec| parts.of_owner(rec.owner)).collect::<Vec<_>>());
        self.pack.numbers(&column("id"), blocks.iter().map(|rec| rec.allocation_id));
        let python: Vec<u32> = blocks.iter().map(|rec| self.trie.node(rec.stacks.python)).collect();
        let native: Vec<u32> = blocks.iter().map(|rec| self.trie.node(rec.stacks.native_or_mixed())).collect();
        self.pack.u32(&column("python"), &python);
        self.pack.u32(&column("native"), &native);
    }

    /// Bytes and blocks by node, once for each kind of stacks.
    fn weights(&mut self, name: &str, weights: &[StackWeight]) {
        for (kind, stack) in
            [("python", python as fn(Stacks) -> Option<Stack>), ("native", |stacks| stacks.native_or_mixed())]
        {
            let mut sums: HashMap<u32, (u64, u64)> = HashMap::default();
            for weight in weights {
                let (bytes, blocks) = sums.entry(self.trie.node(stack(weight.stacks))).or_default();
                (*bytes, *blocks) = (bytes.saturating_add(weight.bytes), *blocks + weight.blocks);
            }
            let sums = largest(sums.into_iter().map(|(node, (bytes, blocks))| (node, bytes, blocks)).collect());
            self.pack.sorted(&format!("{name}.{kind}.node"), &sums.iter().map(|sum| sum.0).collect::<Vec<_>>());
            self.pack.numbers(&format!("{name}.{kind}.bytes"), sums.iter().map(|sum| sum.1));
            self.pack.numbers(&format!("{name}.{kind}.blocks"), sums.iter().map(|sum| sum.2));
        }
    }
}

const fn python(stacks: Stacks) -> Option<Stack> {
    stacks.python
}

/// The largest, by node; the rest goes to the root.
fn largest(mut sums: Vec<(u32, u64, u64)>) -> Vec<(u32, u64, u64)> {
    if sums.len() > MAX_PLACES {
        sums.sort_unstable_by_key(|(node, bytes, _)| (*node != 0, Reverse(*bytes), *node));
        let rest = sums.split_off(MAX_PLACES);
        let (bytes, blocks) = rest.iter().fold((0_u64, 0), |sum, one| (sum.0.saturating_add(one.1), sum.1 + one.2));
        if let Some(root) = sums.first_mut().filter(|(node, ..)| *node == 0) {
            (root.1, root.2) = (root.1.saturating_add(bytes), root.2 + blocks);
        } else {
            sums.push((0, bytes, blocks));
        }
    }
    sums.sort_unstable_by_key(|(node, ..)| *node);
    sums
}

/// Owners of blocks: name, bytes, blocks; the largest first.
fn owners(blocks: &[Rec]) -> Vec<Value> {
    let mut sums: HashMap<Option<Name>, (u64, u64)> = HashMap::default();
    for rec in blocks {
        let (bytes, count) = sums.entry(rec.owner).or_default();
        (*bytes, *count) = (bytes.saturating_add(rec.size_bytes), *count + 1);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(name, (bytes, _))| (Reverse(*bytes), *name));
    sums.into_iter().take(40).map(|(name, (bytes, count))| json!([name, bytes, count])).collect()
}

impl Layer {
    fn device_is_host(&self) -> bool {
        self.pool.is_host()
    }
}

/// Owners with a colour of their own, over time; number 0 is the rest.
struct Parts {
    names: Vec<Value>,
    owners: Vec<Option<Name>>,
    bytes: Vec<Vec<u64>>,
}

impl Parts {
    fn of(curve: &Levels) -> Self {
        let known = curve.owners.iter().filter(|owner| !owner.rest).count();
        let named = if known == curve.owners.len() && known <= NAMED { known } else { known.min(NAMED - 1) };
        let mut rest = vec![0_u64; curve.bins.len()];
        for owner in &curve.owners[named..] {
            rest.iter_mut().zip(&owner.bytes).for_each(|(sum, bytes)| *sum = sum.saturating_add(*bytes));
        }
        let shown = &curve.owners[..named];
        let mut labels = vec![json!("rest")];
        labels.extend(shown.iter().map(|owner| json!(owner.name)));
        let bytes = std::iter::once(rest).chain(shown.iter().map(|owner| owner.bytes.clone())).collect();
        Self { names: labels, owners: shown.iter().map(|owner| owner.name).collect(), bytes }
    }

    fn of_owner(&self, owner: Option<Name>) -> u8 {
        self.owners.iter().position(|known| *known == owner).map_or(0, |at| at as u8 + 1)
    }
}

/// Address space without its gaps.
struct Ranges(Vec<(u64, u64, u64)>);

impl Ranges {
    fn of(segments: &[Segment]) -> Self {
        Self::merged(segments.iter().map(|it| (it.addr, it.size_bytes)).collect())
    }

    fn of_blocks(blocks: &[Rec]) -> Self {
        Self::merged(blocks.iter().map(|rec| (rec.addr, rec.size_bytes)).collect())
    }

    fn merged(mut extents: Vec<(u64, u64)>) -> Self {
        extents.sort_unstable();
        let mut ranges: Vec<(u64, u64, u64)> = Vec::new();
        let mut y = 0_u64;
        for (start, size) in extents {
            let end = start.saturating_add(size);
            if let Some(last) = ranges.last_mut().filter(|last| start <= last.1) {
                y = y.saturating_add(end.saturating_sub(last.1));
                last.1 = last.1.max(end);
            } else {
                ranges.push((start, end, y));
                y = y.saturating_add(end - start);
            }
        }
        Self(ranges)
    }

    /// Where an address is in it; nothing outside.
    fn place(&self, addr: u64) -> Option<u64> {
        let at = self.0.partition_point(|(start, ..)| *start <= addr).checked_sub(1)?;
        let (start, end, y) = self.0[at];
        (addr < end).then(|| y + (addr - start))
    }
}

/// Name of the device in file names and titles.
pub(super) fn device_name(device: Device) -> String {
    match device {
        Device::Npu(number) => format!("NPU {number}"),
        Device::Cpu => "host".to_owned(),
        Device::None => "no device".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two segments that touch are one range; the gap behind them is left out.
    #[test]
    fn gaps_between_segments_are_left_out() {
        let ranges = Ranges::merged(vec![(0x3000, 0x100), (0x1000, 0x100), (0x1100, 0x80)]);
        let places = [0xfff, 0x1000, 0x117f, 0x1180, 0x3000, 0x30ff, 0x3100].map(|addr| ranges.place(addr));
        assert_eq!(places, [None, Some(0), Some(0x17f), None, Some(0x180), Some(0x27f), None]);
    }

    /// Beyond the bound the smallest go to the root, and the sum stays.
    #[test]
    fn small_places_are_one() {
        let all: Vec<(u32, u64, u64)> = (1..=MAX_PLACES as u32 + 3).map(|node| (node, u64::from(node), 1)).collect();
        let places = largest(all);
        // 1 + 2 + 3 bytes of three blocks.
        assert_eq!((places.len(), places[0]), (MAX_PLACES + 1, (0, 6, 3)));
        assert_eq!(places[1], (4, 4, 1));
    }
}
