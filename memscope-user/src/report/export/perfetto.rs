//! A run as a trace for Perfetto (`ui.perfetto.dev`): what each layer and owner has as counters, steps and large blocks as slices, marks
//! and failed requests as instants.
//!
//! All packets are of one sequence, with each name and stack once. Times are Unix times; a snapshot of clocks ties them to the one
//! that the importer sorts by.

mod packets;

use std::collections::BTreeMap;

use self::packets::{Kind, Packets, Track};
use crate::model::Name;
use crate::report::{Layer, Rec, Reduced, View};

/// Blocks from this size on are slices of their own, in bytes.
const LARGE: u64 = 1 << 20;
/// Such slices of a layer: the largest.
const MAX_SLICES: usize = 50_000;
/// Owners with a counter of their own: those with the most bytes × time; the others share one.
const MAX_OWNERS: usize = 9;

/// What happens at a time; of one time ends come first.
type Happens = (u64, Kind, Track, What);

/// The blocks of an owner, and their bytes × time.
type OfOwner<'a> = (u128, Vec<&'a Rec>);

/// What an event says.
#[derive(Clone, Debug)]
enum What {
    Nothing,
    Value(u64),
    Text(String),
    Block(String, Rec),
}

/// The trace of all processes and devices.
#[must_use]
pub fn write(run: &Reduced) -> Vec<u8> {
    let start_ns = run.views.iter().map(|view| view.start_ns).min().unwrap_or(0);
    let mut packets = Packets::new(start_ns);
    let mut happens: Vec<Happens> = Vec::new();
    for view in &run.views {
        of_view(view, &mut packets, &mut happens);
    }
    happens.sort_by_key(|&(time_ns, kind, ..)| (time_ns, kind));
    for (time_ns, kind, track, what) in happens {
        match what {
            What::Nothing => packets.event(time_ns, kind, track, None, None),
            What::Value(value) => packets.value(time_ns, track, value),
            What::Text(text) => packets.event(time_ns, kind, track, Some(&text), None),
            What::Block(text, rec) => packets.event(time_ns, kind, track, Some(&text), Some(&rec)),
        }
    }
    packets.into_bytes()
}

fn of_view(view: &View, packets: &mut Packets, happens: &mut Vec<Happens>) {
    let device = view.device.name_or("unknown device");
    let program = view.command.as_deref().unwrap_or("traced program");
    let process = packets.process(view.pid, &format!("{program}, {device}"));
    for (rank, layer) in (0..).zip(&view.layers) {
        of_layer(view, layer, packets.group(process, layer.pool.event_type(), rank), packets, happens);
    }
    if !view.steps.is_empty() {
        let track = packets.group(process, "steps", 20);
        for (number, &(begin, end)) in (1..).zip(&view.steps) {
            happens.push((begin, Kind::Begin, track, What::Text(format!("step {number}"))));
            happens.push((end, Kind::End, track, What::Nothing));
        }
    }
    if !view.marks.is_empty() {
        let track = packets.group(process, "marks", 21);
        happens.extend(
            view.marks.iter().map(|mark| (mark.time_ns, Kind::Instant, track, What::Text(mark.text.to_string()))),
        );
    }
    if !view.failed.is_empty() {
        let track = packets.group(process, "out of memory", 22);
        for failed in &view.failed {
            let text = format!("out of memory: {} asked for {} bytes", failed.pool.event_type(), failed.size_bytes);
            happens.push((failed.time_ns, Kind::Instant, track, What::Text(text)));
        }
    }
}

fn of_layer(view: &View, layer: &Layer, group: Track, packets: &mut Packets, happens: &mut Vec<Happens>) {
    let in_use = packets.counter(group, "in use", 0);
    if layer.exact {
        let all = layer.blocks.iter().collect::<Vec<_>>();
        happens.extend(counter(&all, in_use));
        for (rank, (name, blocks)) in (2..).zip(by_owner(layer)) {
            let track = packets.counter(group, &name, rank);
            happens.extend(counter(&blocks, track));
        }
    } else {
        // The most of each bin.
        let curve = &layer.curve;
        for (at, bin) in (0..).zip(&curve.bins) {
            happens.push((curve.start_ns + at * curve.width_ns, Kind::Counter, in_use, What::Value(bin.high)));
        }
    }
    if layer.curve.bins.iter().any(|bin| bin.reserved > 0) {
        let reserved = packets.counter(group, "reserved, as the pool says", 1);
        let curve = &layer.curve;
        let mut last = None;
        for (at, bin) in (0..).zip(&curve.bins) {
            let time_ns = curve.start_ns + at * curve.width_ns;
            if last.replace(bin.reserved) != Some(bin.reserved) {
                happens.push((time_ns, Kind::Counter, reserved, What::Value(bin.reserved)));
            }
        }
    }
    slices(view, layer, group, packets, happens);
}

/// Live bytes of blocks after each change.
fn counter(blocks: &[&Rec], track: Track) -> Vec<Happens> {
    let mut changes: Vec<(u64, u64, i128)> = Vec::new();
    for rec in blocks {
        changes.push((rec.start_ns, rec.start_seq, i128::from(rec.size_bytes)));
        if !rec.held {
            changes.push((rec.end_ns, rec.end_seq, -i128::from(rec.size_bytes)));
        }
    }
    changes.sort_unstable();
    let mut live = 0_i128;
    let value = |(time_ns, _, change): (u64, u64, i128)| {
        live += change;
        (time_ns, Kind::Counter, track, What::Value(u64::try_from(live).unwrap_or(0)))
    };
    changes.into_iter().map(value).collect()
}

fn by_owner(layer: &Layer) -> Vec<(String, Vec<&Rec>)> {
    let mut owners: BTreeMap<Option<Name>, OfOwner<'_>> = BTreeMap::new();
    for rec in &layer.blocks {
        let (weight, blocks) = owners.entry(rec.owner).or_default();
        *weight += u128::from(rec.size_bytes) * u128::from(rec.end_ns.saturating_sub(rec.start_ns).max(1));
        blocks.push(rec);
    }
    let mut owners: Vec<(Option<Name>, OfOwner<'_>)> = owners.into_iter().collect();
    owners.sort_by_key(|(name, (weight, _))| (std::cmp::Reverse(*weight), *name));
    let others = owners.split_off(owners.len().min(MAX_OWNERS));
    let name = |name: Option<Name>| name.map_or("not named", |name| name.as_str()).to_owned();
    let mut named: Vec<(String, Vec<&Rec>)> = owners.into_iter().map(|(owner, (_, all))| (name(owner), all)).collect();
    if !others.is_empty() {
        named.push(("other owners".to_owned(), others.into_iter().flat_map(|(_, (_, all))| all).collect()));
    }
    named
}

/// Large blocks, each on the first lane that is free: slices of a track must not overlap.
fn slices(view: &View, layer: &Layer, group: Track, packets: &mut Packets, happens: &mut Vec<Happens>) {
    let mut large: Vec<&Rec> = layer.blocks.iter().filter(|rec| rec.size_bytes >= LARGE).collect();
    if large.is_empty() {
        return;
    }
    large.sort_by_key(|rec| (std::cmp::Reverse(rec.size_bytes), rec.allocation_id));
    large.truncate(MAX_SLICES);
    large.sort_by_key(|rec| (rec.start_ns, rec.start_seq));
    let blocks = packets.group(group, "blocks from 1 MiB", 50);
    let mut lanes: Vec<(u64, Track)> = Vec::new();
    for rec in large {
        let end_ns = if rec.held { view.end_ns.max(rec.start_ns) } else { rec.end_ns };
        let lane = lanes.iter().position(|(free_ns, _)| *free_ns <= rec.start_ns).unwrap_or_else(|| {
            let rank = lanes.len() as u64;
            lanes.push((0, packets.group(blocks, "blocks", rank)));
            lanes.len() - 1
        });
        // A block that ends when it begins keeps its lane until later: its end would be sorted before its begin.
        let end_ns = end_ns.max(rec.start_ns + 1);
        lanes[lane].0 = end_ns;
        let owner = rec.owner.map_or("not named", |name| name.as_str());
        let text = format!("{owner} {:.1} MiB", rec.size_bytes as f64 / f64::from(1 << 20));
        happens.push((rec.start_ns, Kind::Begin, lanes[lane].1, What::Block(text, *rec)));
        happens.push((end_ns, Kind::End, lanes[lane].1, What::Nothing));
    }
}
