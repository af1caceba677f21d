//! Completes stacks and code objects that BPF had to truncate.

use memscope_common::{Kind, StackEnd};

use super::{CompleteCode, FinishStacks, SharedMappings};
use crate::decode::{Body, Frames, Records, Stack};

/// Finishes stacks and code objects.
pub(super) struct Finish {
    pub(super) mappings: Option<SharedMappings>,
    pub(super) unfinished: Option<Box<dyn FinishStacks>>,
    pub(super) codes: Option<CompleteCode>,
}

impl Finish {
    /// The records, all of them complete.
    pub(super) fn process(&mut self, bytes: Vec<u8>) -> Vec<u8> {
        if !Records::new(&bytes).any(|record| record.is_ok_and(|record| is_work(&record.body))) {
            return bytes;
        }
        let mut out = Vec::with_capacity(bytes.len());
        for (raw, record) in Records::new(&bytes).with_bytes() {
            match record.map(|record| record.body) {
                Ok(Body::Unknown { kind }) if kind == Kind::Snapshot as u16 => out.extend(self.snapshot(raw)),
                Ok(Body::Code(_)) => {
                    let complete = self.codes.as_mut().and_then(|complete| complete(raw));
                    out.extend_from_slice(complete.as_deref().unwrap_or(raw));
                }
                Ok(Body::Stack(stack)) if lacks_rule(&stack) => {
                    if let (Some(mappings), Some(unfinished)) = (&self.mappings, &mut self.unfinished) {
                        unfinished.learn(raw, &mut mappings.lock());
                    }
                    out.extend_from_slice(raw);
                }
                _ => out.extend_from_slice(raw),
            }
        }
        out
    }

    /// The whole stack. Snapshots end here: they are large.
    fn snapshot(&mut self, raw: &[u8]) -> Vec<u8> {
        let (Some(mappings), Some(unfinished)) = (&self.mappings, &mut self.unfinished) else { return Vec::new() };
        unfinished.finish(raw, &mut mappings.lock()).unwrap_or_default()
    }
}

fn lacks_rule(stack: &Stack<'_>) -> bool {
    stack.end == StackEnd::NoRule && matches!(stack.frames, Frames::Native(_))
}

fn is_work(body: &Body<'_>) -> bool {
    match body {
        Body::Stack(stack) => lacks_rule(stack),
        Body::Code(_) => true,
        Body::Unknown { kind } => *kind == Kind::Snapshot as u16,
        _ => false,
    }
}
