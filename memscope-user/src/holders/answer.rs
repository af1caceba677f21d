//! What `holders` answers: plain values, for text and JSON.

use schemars::JsonSchema;
use serde::Serialize;

use crate::model::HeldAs;

/// Holders of device memory in a living process.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct Holders {
    /// The process.
    pub pid: u32,
    /// Its short name.
    pub command: String,
    /// Its interpreter, such as `CPython 3.11`; absent without a known one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
    /// The framework's pool as it is now; absent where none was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<PoolNow>,
    /// The requested blocks.
    pub asked: Sum,
    /// Blocks with the same holders and the same state, most bytes first.
    pub groups: Vec<Group>,
    /// All of these blocks by holder, as a tree; most bytes first.
    pub tree: Vec<Branch>,
    /// The same by purpose, as far as holders show it; most bytes first.
    pub purposes: Vec<Purpose>,
    /// What limits this answer, each a sentence.
    pub notes: Vec<String>,
    /// Effort of the answer.
    pub effort: Effort,
}

/// A number of blocks and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Sum {
    /// Blocks.
    pub blocks: u64,
    /// Bytes; 0 for a block that was named without its size and is in no pool.
    pub size_bytes: u64,
}

impl Sum {
    const fn is_zero(&self) -> bool {
        self.blocks == 0
    }
}

#[cfg(feature = "trace")]
impl Sum {
    pub(super) const fn add(&mut self, size_bytes: u64) {
        self.blocks += 1;
        self.size_bytes = self.size_bytes.saturating_add(size_bytes);
    }
}

/// Blocks of one purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Purpose {
    /// The purpose; absent where no holder shows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_as: Option<HeldAs>,
    /// The blocks.
    #[serde(flatten)]
    pub sum: Sum,
}

/// A pool, by its allocator's own structures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PoolNow {
    /// Class of the allocator.
    pub allocator: String,
    /// Devices with blocks.
    pub devices: u64,
    /// Segments.
    pub segments: u64,
    /// Bytes of all segments.
    pub size_bytes: u64,
    /// Live blocks.
    pub live: Sum,
    /// Freed blocks that another stream still uses (`record_stream`).
    #[serde(skip_serializing_if = "Sum::is_zero")]
    pub waiting: Sum,
    /// Free pieces.
    pub free: Sum,
    /// Devices with blocks that changed while they were read: the sums are approximate.
    pub unsure_devices: Vec<u32>,
    /// Parts of it that are pools of their own, as captured graphs have: other requests get no memory of theirs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub private: Vec<PrivateNow>,
}

/// A pool of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PrivateNow {
    /// Device.
    pub device: u32,
    /// Its number, as `PyTorch` has it.
    pub number: (u64, u64),
    /// Segments.
    pub segments: u64,
    /// Bytes of its segments.
    pub size_bytes: u64,
    /// Live blocks.
    pub live: Sum,
    /// Freed blocks that another stream still uses (`record_stream`).
    #[serde(skip_serializing_if = "Sum::is_zero")]
    pub waiting: Sum,
    /// Free pieces.
    pub free: Sum,
}

/// How blocks are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// By what `held_by` names.
    Held,
    /// Only objects that hold each other refer to it: garbage that is not collected yet.
    Ring,
    /// No path to a root was found, though there are references to it.
    NoRoot,
    /// Nothing points at it.
    Nothing,
    /// The pool has it back.
    Free,
    /// It was freed, and another stream still uses it.
    Waiting,
    /// Its holders changed while they were read.
    Changed,
}

/// Blocks with the same holders.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Group {
    /// State of the blocks.
    pub state: State,
    /// Their number and bytes.
    #[serde(flatten)]
    pub sum: Sum,
    /// Place of their allocation, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocated_at: Option<String>,
    /// Their holders, best first. To free the blocks, each sure one has to let go.
    pub held_by: Vec<Holder>,
    /// Addresses of the first few.
    pub addresses: Vec<u64>,
}

/// A way from a root to blocks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
pub struct Holder {
    /// `__main__.cache['layer0'][*]`; `*` stands for different numbers, or keys that hold one block each.
    pub path: String,
    /// False if it may be made of left-overs in memory.
    pub is_sure: bool,
    /// The objects of the path, from the block outwards.
    pub through: Vec<String>,
}

/// A part of the tree: an object and the objects it leads to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Branch {
    /// Text added to the name of the branch above.
    pub name: String,
    /// Blocks that are held through it, by their best path.
    #[serde(flatten)]
    pub held: Sum,
    /// Bytes of these that no other path was found to: they go when it goes.
    pub retained_bytes: u64,
    /// Parts of it, most bytes first.
    pub children: Vec<Branch>,
    /// Bytes of parts that are left out here.
    #[serde(skip_serializing_if = "is_zero")]
    pub left_out_bytes: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// Effort of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Effort {
    /// Time in all.
    pub time_ns: u64,
    /// Host memory that was scanned.
    pub scanned_bytes: u64,
    /// Pointers in it.
    pub pointers: u64,
    /// Host memory that is swapped out and was not read.
    pub swapped_bytes: u64,
}
