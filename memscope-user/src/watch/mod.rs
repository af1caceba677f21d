//! Block watch: which operator changed the bytes of a block (contract §1.6, §5.3, §8.10).
//!
//! [`spec`] is the option, [`items`] has the blocks to compare when an operator begins and ends, [`checksum`] the
//! checksums of their bytes, `memory` the frees of their memory, [`verdict`] the conclusions. All of that is pure:
//! `sinks::watch` writes the files, and `live` does the reading.

pub mod checksum;
pub mod items;
#[cfg(feature = "trace")]
pub mod live;
#[cfg(feature = "trace")]
pub(crate) mod memory;
pub mod spec;
pub mod verdict;

/// Bytes on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    /// Address.
    pub addr: u64,
    /// Bytes.
    pub size_bytes: u64,
}

impl Range {
    /// Whether they have bytes in common.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.addr < other.addr.saturating_add(other.size_bytes)
            && other.addr < self.addr.saturating_add(self.size_bytes)
    }
}

/// The side of an operator at which a block is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// It begins.
    Before,
    /// It has ended.
    After,
}

impl Phase {
    /// As in names of files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
        }
    }
}
