//! Blocks that a capture or a dump knows: of a place, or of the places that grow.

use std::{
    path::Path,
    sync::mpsc::{self, Receiver, Sender},
};

use anyhow::Result;

use super::super::input;
use crate::{
    analyses::{
        Finding, GrowthAnalysis, Kind as _, Observer,
        growth::{Growth, Site, site_of},
    },
    hash::HashMap,
    holders::Asked,
    input::Options,
    model::{Block, Event, EventKind, PoolLevel, RunEnd, Stack, Stacks, Text},
};

/// Most blocks kept: 16 Mi, as in a trace.
const MAX_LIVE: usize = 16 << 20;
/// Frames shown of a call stack.
const FRAMES: usize = 3;

/// Live blocks of one process by their addresses.
type Live = HashMap<u64, Block>;

/// Keeps the blocks of a process's pools that are live at the end.
#[derive(Debug)]
struct LiveBlocks {
    pid: u32,
    live: Live,
    out: Sender<Live>,
}

impl LiveBlocks {
    fn new(pid: u32) -> (Self, Receiver<Live>) {
        let (out, made) = mpsc::channel();
        (Self { pid, live: Live::default(), out }, made)
    }
}

impl Observer for LiveBlocks {
    fn observe(&mut self, event: &Event) {
        if event.pid != self.pid {
            return;
        }
        match &event.kind {
            EventKind::Alloc(alloc) if is_of_pool(&alloc.block) && self.live.len() < MAX_LIVE => {
                self.live.insert(alloc.block.addr, alloc.block);
            }
            EventKind::Free(free) if is_of_pool(&free.block) && free.cause.gave_back() => {
                self.live.remove(&free.block.addr);
            }
            _ => {}
        }
    }

    fn finish(&mut self, _end: &RunEnd) {
        // The receiver may be gone.
        let _ = self.out.send(std::mem::take(&mut self.live));
    }
}

/// The driver's blocks are segments of a pool, and those of the host are no device memory.
fn is_of_pool(block: &Block) -> bool {
    !matches!(block.pool.level(), PoolLevel::Driver | PoolLevel::Host)
}

fn read(file: &Path, pid: u32) -> Result<(Vec<Finding>, Live)> {
    let (live, made) = LiveBlocks::new(pid);
    let options = Options { observers: vec![Box::new(live)], ..Options::default() };
    let outcome = input::read_with(&[file.to_owned()], options, vec![Box::new(GrowthAnalysis::default())])?;
    Ok((outcome.findings, made.try_recv().unwrap_or_default()))
}

/// Live blocks with a text in their call stacks.
pub(super) fn of_place(file: &Path, pid: u32, text: &str) -> Result<Vec<Asked>> {
    let (_, live) = read(file, pid)?;
    let has_text = |block: &&Block| frames(block.stacks).iter().any(|frame| frame.contains(text));
    Ok(live.values().filter(has_text).map(asked).collect())
}

/// Live blocks of the places that grow.
pub(super) fn growing(file: &Path, pid: u32) -> Result<Vec<Asked>> {
    let (findings, live) = read(file, pid)?;
    let of_process = findings.iter().filter_map(Growth::of).filter(|growth| growth.pid == pid);
    let sites: Vec<Site> = of_process.flat_map(|growth| &growth.sites).filter_map(|growing| growing.site).collect();
    Ok(live.values().filter(|block| sites.contains(&site_of(block))).map(asked).collect())
}

fn frames(stacks: Stacks) -> Vec<Text> {
    [stacks.python, stacks.native_or_mixed()].into_iter().flatten().flat_map(Stack::frames).collect()
}

fn asked(block: &Block) -> Asked {
    let frames = block.stacks.best().map(Stack::frames).unwrap_or_default();
    let shown = frames.into_iter().take(FRAMES).collect::<Vec<_>>().join(" ← ");
    Asked {
        address: block.addr,
        size_bytes: Some(block.size_bytes.max(1)),
        allocated_at: (!shown.is_empty()).then_some(shown),
    }
}
