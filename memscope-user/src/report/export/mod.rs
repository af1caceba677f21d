//! Places of allocations in the formats of other viewers. The formats decide nothing: layer and moment are chosen here.
//!
//! Bytes of a pool are in blocks of the driver, too, so layers without a byte in common are written, and no byte twice.

#[cfg(feature = "parquet")]
pub mod parquet;
pub mod perfetto;
mod pickle;
pub mod pprof;
mod protobuf;
pub mod snapshot;
pub mod speedscope;

use std::collections::BTreeSet;

use super::layer::{Layer, Moment};
use super::reduce::Reduced;
use super::trie::end_frame;
use super::view::View;
use crate::hash::HashMap;
use crate::model::{Pool, PoolLevel, Stacks};
use crate::text::frame::{Frame, OwnedFrame};

/// A moment that a user names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum At {
    /// When the most was live.
    #[default]
    Peak,
    /// When the last request failed for good.
    OutOfMemory,
    /// When the last step ended, or the last block was allocated.
    End,
}

impl At {
    fn of(self, layer: &Layer) -> Option<&Moment> {
        let wanted = |moment: &&Moment| match self {
            Self::Peak => moment.kind == "peak",
            Self::OutOfMemory => moment.kind == "oom",
            Self::End => moment.kind == "step" || moment.kind == "end",
        };
        layer.moments.iter().find(wanted)
    }

    /// Whether the run has such a moment.
    #[must_use]
    pub fn is_in(self, run: &Reduced) -> bool {
        layers(run).any(|(_, layer)| self.of(layer).is_some())
    }
}

/// Layers of each process and device without a byte in common: the pools of frameworks, else the fullest pool, or the
/// driver without pools.
fn layers(run: &Reduced) -> impl Iterator<Item = (&View, &Layer)> {
    run.views.iter().flat_map(|view| exported(view).map(move |layer| (view, layer)))
}

fn exported(view: &View) -> impl Iterator<Item = &Layer> {
    let is_of_framework = |layer: &Layer| layer.pool.level() == PoolLevel::Framework;
    let any = view.layers.iter().any(is_of_framework);
    let chosen = move |(at, layer): &(usize, &Layer)| if any { is_of_framework(layer) } else { *at == 0 };
    view.layers.iter().enumerate().filter(chosen).map(|(_, layer)| layer)
}

/// Pools that are not exported, as each byte counts once: their memory may be another pool's.
#[must_use]
pub fn left_out(run: &Reduced) -> BTreeSet<Pool> {
    let of_view = |view: &'_ View| {
        let exported: BTreeSet<Pool> = exported(view).map(|layer| layer.pool).collect();
        let pools = view.layers.iter().map(|layer| layer.pool).filter(|pool| !pool.is_base());
        pools.filter(|pool| !exported.contains(pool)).collect::<Vec<Pool>>()
    };
    run.views.iter().flat_map(of_view).collect()
}

/// Frames by number, each once.
#[derive(Debug, Default)]
struct Frames {
    frames: Vec<OwnedFrame>,
    numbers: HashMap<OwnedFrame, u32>,
}

impl Frames {
    /// The numbers of the frames of a place, innermost first; with the stack's end behind.
    fn of(&mut self, stacks: Stacks) -> Vec<u32> {
        let Some(stack) = stacks.best() else { return vec![self.number(plain("<no stack>"))] };
        let mut numbers: Vec<u32> = stack.frames().iter().map(|text| self.number(Frame::of(text))).collect();
        numbers.extend(end_frame(stack.end()).map(|frame| self.number(frame)));
        numbers
    }

    fn number(&mut self, frame: Frame<'_>) -> u32 {
        let Self { frames, numbers } = self;
        *numbers.entry(frame.into()).or_insert_with_key(|frame| {
            frames.push(frame.clone());
            frames.len() as u32 - 1
        })
    }
}

const fn plain(name: &'static str) -> Frame<'static> {
    Frame { name, file: "", line: 0, python: false }
}

/// Text of a program for a viewer: control and direction characters replaced.
fn clean(text: &str) -> String {
    let plain = |c: char| {
        !(c.is_control()
            || matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'))
    };
    text.chars().map(|c| if plain(c) { c } else { '\u{fffd}' }).collect()
}
