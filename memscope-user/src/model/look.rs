//! Looks at the holders of live blocks, from outside of a living process.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Block, Device, LiveSum, Name, Pool};

/// When holders were looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LookedAt {
    /// A request for memory had just failed.
    FailedRequest,
    /// While the program worked.
    Running,
    /// The program had begun to exit.
    Exit,
    /// The trace was about to end.
    End,
}

/// The purpose of a block, by the objects that hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldAs {
    /// A function of autograd has saved it for the backward pass.
    Activation,
    /// A cache of keys and values holds it.
    KvCache,
    /// An optimizer holds it, and it is no parameter.
    OptimizerState,
    /// It is the gradient of a tensor.
    Gradient,
    /// It is a parameter, or a module's buffer.
    Weight,
}

impl HeldAs {
    /// The component, as the rules of owners name it.
    #[must_use]
    pub const fn component(self) -> Name {
        match self {
            Self::Activation => Name::fixed(&"activation"),
            Self::KvCache => Name::fixed(&"kv_cache"),
            Self::OptimizerState => Name::fixed(&"optimizer_state"),
            Self::Gradient => Name::fixed(&"gradient"),
            Self::Weight => Name::fixed(&"weight"),
        }
    }
}

/// A path from a variable of the program down to blocks.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct HolderPath {
    /// `__main__.cache['layer0'][*]`; `*` stands for different numbers, or keys that hold one block each.
    pub path: String,
    /// False if it may be made of left-overs in memory.
    pub is_sure: bool,
    /// Blocks with this path, of those that were looked at.
    pub blocks: u64,
}

/// What was found of the blocks of one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceLook {
    /// One of the blocks, which stands for the place.
    pub block: Block,
    /// Live blocks of the place.
    pub live: LiveSum,
    /// Blocks that were looked at, and were live still when they had been.
    pub looked_at_blocks: u64,
    /// Their holders, the one with the most blocks first.
    pub holders: Vec<HolderPath>,
    /// Of these blocks those that only a ring of Python objects refers to.
    pub garbage_blocks: u64,
    /// Of these blocks those without a holder.
    pub unknown_blocks: u64,
    /// Why memory of the process was left out, if some was: holders may be missing.
    pub left_out: Option<String>,
    /// The purposes that holders show: numbers of blocks ([`Block::allocation_id`]).
    pub held_as: Vec<(u64, HeldAs)>,
}

/// The purpose of a block that was found at the attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundPurpose {
    /// Number of the block ([`Block::allocation_id`]).
    pub number: u64,
    /// Its size.
    pub size_bytes: u64,
    /// Its purpose.
    pub held_as: HeldAs,
}

/// Purposes of blocks that were found at the attach without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundHeld {
    /// Their pool.
    pub pool: Pool,
    /// Their device.
    pub device: Device,
    /// The blocks.
    pub blocks: Vec<FoundPurpose>,
}

/// The outcome of a look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Looked {
    /// Blocks of a place were looked at.
    Place(Box<PlaceLook>),
    /// Holders show the purposes of found blocks. The look has no number.
    Found(FoundHeld),
    /// Holders were not looked for, and why. Of process 0: of all processes without a look.
    NotLooked(Arc<str>),
}

/// A look, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// Its number, from 1; all places of a process that were looked at together have the same.
    pub number: u32,
    /// When.
    pub at: LookedAt,
    /// The outcome.
    pub outcome: Looked,
}
