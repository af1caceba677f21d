//! Settings of the pool, as `PYTORCH_NPU_ALLOC_CONF` names them. Keys are data: see [`keys`].

mod keys;
mod parse;
mod release;
mod sizes;
#[cfg(test)]
mod tests;

pub use self::keys::{KEYS, Key};
pub use self::parse::Refused;
pub use self::release::{Family, Release};

#[cfg(test)]
use super::GIB;
use super::{KIB, MIB};

/// Classes of sizes in `roundup_power2_divisions`: 1 MiB to 64 GiB by powers of two.
pub const ROUND_CLASSES: usize = 16;

/// Settings of the allocator, in bytes. The default is that of the newest release of `torch_npu`.
///
/// Both allocators have the same rules (`NPUCachingAllocator.cpp`, `CUDACachingAllocator.cpp`); they differ in these numbers, and in the
/// [`KEYS`] that they know.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "keys that are True or False")]
pub struct Settings {
    /// Which allocator, and its release.
    pub release: Release,
    /// Bytes added to a request.
    pub pad_bytes: u64,
    /// Larger blocks are not split.
    pub max_split_bytes: u64,
    /// Largest excess of an unsplit block over its request.
    pub non_split_rounding_bytes: u64,
    /// Part of the allowed memory above which old free segments are given back; 0 is never.
    pub gc_threshold: f64,
    /// Segments grow and shrink by pages.
    pub expandable: bool,
    /// Blocks of 2 MiB and more in expandable segments begin at multiples of this; 0 is anywhere.
    pub align_bytes: u64,
    /// Page of expandable segments with large blocks.
    pub large_page_bytes: u64,
    /// Plain segment for requests of more than 1 and less than 10 MiB.
    pub large_segment_bytes: u64,
    /// Part of the device's memory that the process may have, by a key of its own.
    pub fraction: Option<f64>,
    /// What goes beyond that part, or beyond the device, fails before the driver is asked, also where the part is the whole.
    pub rejects_early: bool,
    /// Segments with large blocks come in pages of 1 GiB.
    pub gigabyte_pages: bool,
    /// Parts of a power of two that sizes are rounded to, by class of size; 0: they are not.
    pub round_divisions: [u64; ROUND_CLASSES],
    /// Blocks that streams have finished with are collected only when no other block is found.
    pub lazy_reclaim: bool,
}

impl Settings {
    /// The defaults of an allocator.
    #[must_use]
    pub const fn of(family: Family) -> Self {
        let (pad_bytes, align_bytes) = match family {
            Family::Npu => (32, 16 * KIB),
            Family::Cuda => (0, 0),
        };
        Self {
            release: family.newest(),
            pad_bytes,
            max_split_bytes: u64::MAX,
            non_split_rounding_bytes: 20 * MIB,
            gc_threshold: 0.0,
            expandable: false,
            align_bytes,
            large_page_bytes: 20 * MIB,
            large_segment_bytes: 20 * MIB,
            fraction: None,
            rejects_early: false,
            gigabyte_pages: false,
            round_divisions: [0; ROUND_CLASSES],
            lazy_reclaim: false,
        }
    }
}

impl Settings {
    /// The device is waited for before a part of the cache is given back: `torch_npu` does, CUDA's allocator leaves that to the driver's
    /// call.
    #[must_use]
    pub fn waits_for_parts(&self) -> bool {
        self.release.family() == Family::Npu
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self::of(Family::Npu)
    }
}
