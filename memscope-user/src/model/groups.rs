//! Live blocks in groups: by owner, by place, by size.

use schemars::JsonSchema;
use serde::Serialize;

use super::{Name, Stacks};

/// Blocks and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct LiveSum {
    /// Blocks.
    pub blocks: u64,
    /// Their bytes.
    pub size_bytes: u64,
}

impl LiveSum {
    /// With one block more of this size.
    pub(crate) const fn add(&mut self, size_bytes: u64) {
        self.blocks += 1;
        self.size_bytes = self.size_bytes.saturating_add(size_bytes);
    }

    /// With one block less.
    pub(crate) const fn remove(&mut self, size_bytes: u64) {
        self.blocks = self.blocks.saturating_sub(1);
        self.size_bytes = self.size_bytes.saturating_sub(size_bytes);
    }
}

/// Blocks of one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct OwnerSum {
    /// The owner; `None` for host memory without a rule.
    pub owner: Option<Name>,
    /// Its blocks.
    #[serde(flatten)]
    pub live: LiveSum,
}

/// Blocks allocated at one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct PlaceSum {
    /// The place; empty where no stack is known.
    pub stacks: Stacks,
    /// Its blocks.
    #[serde(flatten)]
    pub live: LiveSum,
}

/// Blocks of similar size: at least `least_bytes`, which is 0 or a power of two, and less than twice that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct SizeSum {
    /// The least size of the class in bytes.
    pub least_bytes: u64,
    /// Its blocks.
    #[serde(flatten)]
    pub live: LiveSum,
}

/// Live blocks, grouped three times. Each list has the same sum. The largest group comes first (of sizes the smallest
/// size); empty groups are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct LiveGroups {
    /// By owner.
    pub owners: Vec<OwnerSum>,
    /// By place.
    pub places: Vec<PlaceSum>,
    /// By size class.
    pub sizes: Vec<SizeSum>,
    /// The limit of places was reached; blocks of further ones count as without a stack.
    pub places_full: bool,
}

impl LiveGroups {
    /// Whether there is a place with a stack.
    #[must_use]
    pub fn has_stacks(&self) -> bool {
        self.places.iter().any(|sum| !sum.stacks.is_empty())
    }
}
