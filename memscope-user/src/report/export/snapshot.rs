//! `PyTorch`'s memory snapshot, as `torch.cuda.memory._snapshot()` gives it and its viewers read it (`_memory_viz`, `pytorch.org/memory_viz`).
//!
//! Sizes in traces are the requested ones, where known; those of blocks are the pool's. The trace ends at the chosen
//! moment.

use super::pickle::Pickle;
use super::{At, clean};
use crate::hash::HashMap;
use crate::model::{Device, PoolOperators, Stack};
use crate::report::{Failed, Layer, Rec, Reduced, Segment, View};
use crate::text::frame::Frame;

/// Largest segment of small blocks, in bytes.
const SMALL: u64 = 2 << 20;

/// Why there is no snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// `PyTorch`'s pool is not in the run.
    #[error("there is no block of PyTorch's pool in it")]
    NoPool,
    /// A snapshot is of one process.
    #[error("it has several processes with a pool of PyTorch: choose one with --filter pid=N")]
    SeveralProcesses,
    /// Not all blocks were kept.
    #[error("it has more blocks than a snapshot takes: choose a part with --since and --until")]
    TooMany,
    /// The run has no such moment.
    #[error("there is no such moment: no request failed for want of memory")]
    NoMoment,
}

/// What happens, in the order of `PyTorch`'s own trace where times agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Action {
    SegmentAlloc,
    SegmentFree,
    Alloc,
    FreeRequested,
    FreeCompleted,
    Oom,
}

impl Action {
    const fn name(self) -> &'static str {
        match self {
            Self::SegmentAlloc => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::Alloc => "alloc",
            Self::FreeRequested => "free_requested",
            Self::FreeCompleted => "free_completed",
            Self::Oom => "oom",
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    time_ns: u64,
    seq: u64,
    action: Action,
    addr: u64,
    size: u64,
    stack: Option<Stack>,
}

/// The snapshot of the run's one process at a moment.
///
/// # Errors
///
/// When a snapshot cannot represent the run.
pub fn write(run: &Reduced, at: At) -> Result<Vec<u8>, SnapshotError> {
    let of_pool =
        |view: &'_ View| view.layers.iter().position(|layer| layer.pool.operators() == Some(PoolOperators::Torch));
    let views: Vec<(&View, &Layer)> =
        run.views.iter().filter_map(|view| of_pool(view).map(|at| (view, &view.layers[at]))).collect();
    let (first, _) = views.first().ok_or(SnapshotError::NoPool)?;
    if views.iter().any(|(view, _)| (view.pid, view.command.as_ref()) != (first.pid, first.command.as_ref())) {
        return Err(SnapshotError::SeveralProcesses);
    }
    if views.iter().any(|(_, layer)| !layer.exact) {
        return Err(SnapshotError::TooMany);
    }
    let until = views.iter().filter_map(|(_, layer)| at.of(layer)).map(|moment| moment.time_ns).max();
    let until = until.ok_or(SnapshotError::NoMoment)?;
    let mut writer = Writer { out: Pickle::new(), stacks: HashMap::default(), until };
    writer.write(&views);
    Ok(writer.out.into_bytes())
}

const fn number(device: Device) -> u32 {
    if let Device::Npu(number) = device { number } else { 0 }
}

struct Writer {
    out: Pickle,
    /// Written lists of frames.
    stacks: HashMap<Option<Stack>, u32>,
    until: u64,
}

impl Writer {
    fn write(&mut self, views: &[(&View, &Layer)]) {
        self.out.dict().text("segments").list();
        for (view, layer) in views {
            self.segments(view, layer);
        }
        self.out.end_list().text("device_traces").list();
        // The place in the list is the device's number.
        let devices = views.iter().map(|(view, _)| number(view.device)).max().unwrap_or(0);
        for device in 0..=devices {
            self.out.list();
            for (view, layer) in views.iter().filter(|(view, _)| number(view.device) == device) {
                self.trace(view, layer);
            }
            self.out.end_list();
        }
        self.out.end_list().end_dict();
    }

    fn trace(&mut self, view: &View, layer: &Layer) {
        let mut entries = Vec::new();
        let segments = view.segments.iter().filter(|it| it.pool == layer.pool);
        for it in segments {
            let at =
                |time_ns, action| Entry { time_ns, seq: 0, action, addr: it.addr, size: it.size_bytes, stack: None };
            entries.push(at(it.start_ns, Action::SegmentAlloc));
            entries.extend((!it.held).then(|| at(it.end_ns, Action::SegmentFree)));
        }
        for rec in &layer.blocks {
            let size = rec.requested_bytes.unwrap_or(rec.size_bytes);
            let at =
                |time_ns, seq, action| Entry { time_ns, seq, action, addr: rec.addr, size, stack: rec.stacks.python };
            entries.push(at(rec.start_ns, rec.start_seq, Action::Alloc));
            if !rec.held {
                let freed = [Action::FreeRequested, Action::FreeCompleted];
                entries.extend(freed.map(|action| at(rec.end_ns, rec.end_seq, action)));
            }
        }
        let failed = |it: &Failed| Entry {
            time_ns: it.time_ns,
            seq: u64::MAX,
            action: Action::Oom,
            addr: 0,
            size: it.size_bytes,
            stack: None,
        };
        entries.extend(view.failed.iter().map(failed));
        entries.retain(|entry| entry.time_ns <= self.until);
        entries.sort_by_key(|entry| (entry.time_ns, entry.seq, entry.action));
        for entry in &entries {
            self.entry(entry);
        }
    }

    fn entry(&mut self, entry: &Entry) {
        self.out.dict().text("action").text(entry.action.name());
        match entry.action {
            Action::Oom => self.out.text("device_free").number(0),
            _ => self.out.text("addr").number(entry.addr),
        };
        self.out.text("size").number(entry.size).text("stream").number(0);
        self.frames(entry.stack);
        self.out.end_dict();
    }

    fn segments(&mut self, view: &View, layer: &Layer) {
        let live = |start: u64, end: u64, held: bool| start <= self.until && (held || end > self.until);
        let segments = view.segments.iter().filter(|it| it.pool == layer.pool && live(it.start_ns, it.end_ns, it.held));
        let segments: Vec<Segment> = segments.copied().collect();
        let mut blocks: Vec<&Rec> =
            layer.blocks.iter().filter(|rec| live(rec.start_ns, rec.end_ns, rec.held)).collect();
        blocks.sort_by_key(|rec| (rec.addr, rec.start_seq));
        for segment in &segments {
            let from = blocks.partition_point(|rec| rec.addr < segment.addr);
            let end = segment.addr.saturating_add(segment.size_bytes);
            let to = blocks.partition_point(|rec| rec.addr < end);
            self.segment(number(view.device), segment, &blocks[from..to]);
        }
    }

    fn segment(&mut self, device: u32, segment: &Segment, blocks: &[&Rec]) {
        let sum = |size: fn(&Rec) -> u64| blocks.iter().fold(0_u64, |sum, rec| sum.saturating_add(size(rec)));
        let (used, requested) = (sum(|rec| rec.size_bytes), sum(|rec| rec.requested_bytes.unwrap_or(rec.size_bytes)));
        let kind = if segment.size_bytes <= SMALL { "small" } else { "large" };
        self.out.dict().text("device").number(device.into()).text("address").number(segment.addr);
        self.out
            .text("total_size")
            .number(segment.size_bytes)
            .text("allocated_size")
            .number(used)
            .text("active_size")
            .number(used);
        self.out.text("requested_size").number(requested).text("stream").number(0).text("segment_pool_id").pair(0, 0);
        self.out.text("segment_type").text(kind).text("is_expandable").boolean(false);
        self.frames(None);
        self.out.text("blocks").list();
        let mut at = segment.addr;
        for rec in blocks {
            self.gap(at, rec.addr);
            let requested = rec.requested_bytes.unwrap_or(rec.size_bytes);
            self.block(rec.addr, rec.size_bytes, Some(requested), rec.stacks.python);
            at = rec.addr.saturating_add(rec.size_bytes);
        }
        self.gap(at, segment.addr.saturating_add(segment.size_bytes));
        self.out.end_list().end_dict();
    }

    fn gap(&mut self, from: u64, to: u64) {
        if to > from {
            self.block(from, to - from, None, None);
        }
    }

    /// A block that is handed out, or a free piece.
    fn block(&mut self, addr: u64, size: u64, requested: Option<u64>, stack: Option<Stack>) {
        let state = if requested.is_some() { "active_allocated" } else { "inactive" };
        self.out.dict().text("address").number(addr).text("size").number(size);
        self.out.text("requested_size").number(requested.unwrap_or(0)).text("state").text(state);
        self.frames(stack);
        self.out.end_dict();
    }

    /// The frames, innermost first; the second time a reference.
    fn frames(&mut self, stack: Option<Stack>) {
        self.out.text("frames");
        if let Some(known) = self.stacks.get(&stack) {
            self.out.get(*known);
            return;
        }
        self.out.list();
        for text in stack.map(Stack::frames).unwrap_or_default() {
            let Frame { name, file, line, .. } = Frame::of(&text);
            // As `co_name` has it: the last part of a qualified name.
            let name = name.rsplit('.').next().unwrap_or(name);
            self.out.dict().text("name").text(&clean(name)).text("filename").text(&clean(file));
            self.out.text("line").number(line.into()).end_dict();
        }
        self.out.end_list();
        let number = self.out.put();
        self.stacks.insert(stack, number);
    }
}
