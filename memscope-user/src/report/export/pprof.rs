//! `profile.proto`, as `go tool pprof` and its kin read it: gzip around a `Profile` of github.com/google/pprof.
//!
//! Four values as in Go's heap profiles: live objects and bytes at the moment, and all allocations. `system_name` stays
//! empty: if it equals the name, pprof takes `<module>` and `<lambda>` for arguments of templates and removes them.

use super::protobuf::Message;
use super::{At, Frames, clean, layers};
use crate::hash::HashMap;
use crate::model::{Device, Name, Stack, Stacks, Text};
use crate::report::{Layer, Rec, Reduced, View};

/// Value types, and the default.
const VALUES: [(&str, &str); 4] =
    [("inuse_objects", "count"), ("inuse_space", "bytes"), ("alloc_objects", "count"), ("alloc_space", "bytes")];
const DEFAULT: &str = "inuse_space";
/// Frames of pools themselves: flat bytes belong to their callers.
const DROPPED: &str = r"halMem.*|aclrtMalloc.*|rtMalloc.*|\+0x[0-9a-f]+";

/// Texts by number; number 0 is the empty one.
#[derive(Debug)]
struct Texts {
    texts: Vec<String>,
    numbers: HashMap<String, u64>,
}

impl Texts {
    fn new() -> Self {
        Self { texts: vec![String::new()], numbers: HashMap::from_iter([(String::new(), 0)]) }
    }

    fn number(&mut self, text: &str) -> u64 {
        let text = clean(text);
        if let Some(known) = self.numbers.get(&text) {
            return *known;
        }
        let number = self.texts.len() as u64;
        self.texts.push(text.clone());
        self.numbers.insert(text, number);
        number
    }
}

/// The profile at a moment. Runs without it have only allocations.
#[must_use]
pub fn write(run: &Reduced, at: At, part: Option<&str>) -> Vec<u8> {
    let mut writer = Writer { profile: Message::default(), texts: Texts::new(), frames: Frames::default() };
    writer.values();
    for (view, layer) in layers(run) {
        writer.layer(view, layer, at);
    }
    writer.places();
    writer.about(run, at, part);
    gzip(&writer.profile.into_bytes())
}

struct Writer {
    profile: Message,
    texts: Texts,
    frames: Frames,
}

impl Writer {
    fn values(&mut self) {
        for (kind, unit) in VALUES {
            let mut value = Message::default();
            value.number(1, self.texts.number(kind)).number(2, self.texts.number(unit));
            self.profile.message(1, &value);
        }
    }

    fn layer(&mut self, view: &View, layer: &Layer, at: At) {
        let Self { profile, texts, frames } = self;
        let mut labels = vec![(texts.number("layer"), texts.number(layer.pool.event_type()), 0)];
        if let Device::Npu(number) = view.device {
            labels.push((texts.number("device"), texts.number(&format!("npu:{number}")), 0));
        }
        labels.push((texts.number("pid"), 0, u64::from(view.pid)));
        let live = at.of(layer).map(|moment| by_owner(&moment.blocks)).unwrap_or_default();
        for (stacks, owner, [blocks, bytes]) in live {
            let mut labels = labels.clone();
            labels.extend(owner.map(|owner| (texts.number("owner"), texts.number(owner.as_str()), 0)));
            profile.message(2, &sample(&frames.of(stacks), [blocks, bytes, 0, 0], &labels));
        }
        let mut all = layer.by_stack.clone();
        all.sort_by_cached_key(|weight| (key(weight.stacks), weight.bytes, weight.blocks));
        for weight in all {
            profile.message(2, &sample(&frames.of(weight.stacks), [0, 0, weight.blocks, weight.bytes], &labels));
        }
    }

    /// A location and a function for each frame.
    fn places(&mut self) {
        for (number, frame) in (1_u64..).zip(&self.frames.frames) {
            let (mut line, mut location, mut function) = (Message::default(), Message::default(), Message::default());
            line.number(1, number).number(2, u64::from(frame.line));
            location.number(1, number).message(4, &line);
            let (name, file) = (self.texts.number(&frame.name), self.texts.number(&frame.file));
            function.number(1, number).number(2, name).number(4, file);
            self.profile.message(4, &location).message(5, &function);
        }
    }

    /// When it was, and all texts.
    fn about(&mut self, run: &Reduced, at: At, part: Option<&str>) {
        let start_ns = run.views.iter().map(|view| view.start_ns).min().unwrap_or(0);
        let end_ns = run.views.iter().map(|view| view.end_ns).max().unwrap_or(0);
        let moment = match at {
            At::Peak => "at the peak",
            At::OutOfMemory => "when memory was out",
            At::End => "at the end of the last step, or at the last allocation",
        };
        let Self { profile, texts, .. } = self;
        let comments = [Some(format!("in use: {moment}")), part.map(|part| format!("only a part of the run: {part}"))];
        let comments: Vec<u64> = comments.into_iter().flatten().map(|text| texts.number(&text)).collect();
        let (dropped, default) = (texts.number(DROPPED), texts.number(DEFAULT));
        for text in &texts.texts {
            profile.bytes(6, text.as_bytes());
        }
        profile.number(7, dropped).number(9, start_ns).number(10, end_ns.saturating_sub(start_ns));
        profile.packed(13, comments).number(14, default);
    }
}

/// Numbers of stacks are of this process alone: files are in the order of their frames.
fn key(stacks: Stacks) -> Vec<Text> {
    stacks.best().map(Stack::frames).unwrap_or_default()
}

type Sum = (Stacks, Option<Name>, [u64; 2]);

fn by_owner(blocks: &[Rec]) -> Vec<Sum> {
    let mut sums: HashMap<(Stacks, Option<Name>), [u64; 2]> = HashMap::default();
    for rec in blocks {
        let sum = sums.entry((rec.stacks, rec.owner)).or_default();
        *sum = [sum[0] + 1, sum[1].saturating_add(rec.size_bytes)];
    }
    let mut sums: Vec<Sum> = sums.into_iter().map(|((stacks, owner), sum)| (stacks, owner, sum)).collect();
    sums.sort_by_cached_key(|(stacks, owner, sum)| (key(*stacks), *owner, *sum));
    sums
}

fn sample(frames: &[u32], values: [u64; 4], labels: &[(u64, u64, u64)]) -> Message {
    let mut sample = Message::default();
    sample.packed(1, frames.iter().map(|frame| u64::from(*frame) + 1)).packed(2, values);
    for (name, text, number) in labels {
        let mut label = Message::default();
        label.number(1, *name).number(2, *text).number(3, *number);
        sample.message(3, &label);
    }
    sample
}

/// RFC 1952, without a name and a time: equal input gives equal bytes.
fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut out = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    out.extend(miniz_oxide::deflate::compress_to_vec(plain, 9));
    out.extend(crc32fast::hash(plain).to_le_bytes());
    out.extend((plain.len() as u32).to_le_bytes());
    out
}
