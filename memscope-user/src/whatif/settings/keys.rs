//! Keys of the settings: pools and releases that have them, and accepted values.

use super::parse::{divisions, number, number_from, threshold, truth};
use super::{Family, Release, Settings};
use crate::whatif::{KIB, MIB};

/// A key of the configuration.
pub struct Key {
    /// As it is spelled.
    pub name: &'static str,
    /// Release of `torch_npu` that introduced it; `None`: it has none.
    pub npu_since: Option<Release>,
    /// CUDA's allocator has it.
    pub cuda: bool,
    /// Its effect, in a few words.
    pub about: &'static str,
    /// Takes its value, or returns the accepted ones.
    pub(super) set: fn(&mut Settings, &str) -> Result<(), String>,
}

impl Key {
    /// Whether an allocator knows it.
    #[must_use]
    pub fn is_known(&self, family: Family, release: Release) -> bool {
        match family {
            Family::Npu => self.npu_since.is_some_and(|since| since <= release),
            Family::Cuda => self.cuda,
        }
    }
}

/// Keys that affect the model, and those that do not.
pub static KEYS: &[Key] = &[
    Key {
        name: "max_split_size_mb",
        npu_since: Some(Release::V6_0),
        cuda: true,
        about: "larger blocks are not split",
        set: |settings, value| {
            let mb = number(value)?;
            if mb <= 20 {
                return Err("has to be greater than 20".to_owned());
            }
            settings.max_split_bytes = mb.saturating_mul(MIB);
            Ok(())
        },
    },
    Key {
        name: "garbage_collection_threshold",
        npu_since: Some(Release::V6_0),
        cuda: true,
        about: "gives old free segments back above this part of the fraction",
        set: |settings, value| {
            settings.gc_threshold = threshold(value)?;
            Ok(())
        },
    },
    Key {
        name: "expandable_segments",
        npu_since: Some(Release::V6_0),
        cuda: true,
        about: "segments grow by pages",
        set: |settings, value| {
            settings.expandable = truth(value)?;
            Ok(())
        },
    },
    Key {
        name: "base_addr_aligned_kb",
        npu_since: Some(Release::V6_0),
        cuda: false,
        about: "alignment of large blocks in expandable segments",
        set: |settings, value| {
            settings.align_bytes = number_from(value, 0, 16)? * KIB;
            Ok(())
        },
    },
    Key {
        name: "page_size",
        npu_since: Some(Release::V7_0),
        cuda: false,
        about: "1g: pages of 1 GiB; needs CANN 8.1.RC1 and driver 25.0.RC1, else torch_npu ignores it",
        set: |settings, value| {
            if value != "1g" {
                return Err("has to be 1g".to_owned());
            }
            settings.gigabyte_pages = true;
            Ok(())
        },
    },
    Key {
        name: "roundup_power2_divisions",
        npu_since: Some(Release::V7_3),
        cuda: true,
        about: "rounds sizes to parts of powers of two",
        set: |settings, value| {
            settings.round_divisions = divisions(value)?;
            Ok(())
        },
    },
    Key {
        name: "segment_size_mb",
        npu_since: Some(Release::V7_3),
        cuda: false,
        about: "page of expandable segments with large blocks",
        set: |settings, value| {
            settings.large_page_bytes = number_from(value, 20, 512)? * MIB;
            Ok(())
        },
    },
    Key {
        name: "multi_stream_lazy_reclaim",
        npu_since: Some(Release::V26_0),
        cuda: false,
        about: "looks for blocks that streams have done with only when it must",
        set: |settings, value| {
            settings.lazy_reclaim = truth(value)?;
            Ok(())
        },
    },
    Key {
        name: "max_non_split_rounding_mb",
        npu_since: Some(Release::V26_1),
        cuda: true,
        about: "how much larger than the request a block may be that is not split",
        set: |settings, value| {
            settings.non_split_rounding_bytes = number_from(value, 20, u64::MAX >> 20)? * MIB;
            Ok(())
        },
    },
    Key {
        name: "large_segment_size_mb",
        npu_since: Some(Release::Next),
        cuda: true,
        about: "segment of requests of 1 to 10 MiB, and page of expandable segments",
        set: |settings, value| {
            let bytes = number_from(value, 20, 512)? * MIB;
            (settings.large_page_bytes, settings.large_segment_bytes) = (bytes, bytes);
            Ok(())
        },
    },
    Key {
        name: "release_lock_on_npumalloc",
        npu_since: Some(Release::V26_1),
        cuda: false,
        about: "other threads go on while the driver is asked; requests keep their order here",
        set: |_, value| truth(value).map(drop),
    },
    Key {
        name: "release_lock_on_cudamalloc",
        npu_since: None,
        cuda: true,
        about: "other threads go on while the driver is asked; requests keep their order here",
        set: |_, value| truth(value).map(drop),
    },
    Key {
        name: "pinned_use_background_threads",
        npu_since: Some(Release::V7_3),
        cuda: true,
        about: "of host memory: changes nothing here",
        set: |_, value| truth(value).map(drop),
    },
    Key {
        name: "pin_memory_expandable_segments",
        npu_since: Some(Release::V26_0),
        cuda: false,
        about: "of host memory: changes nothing here",
        set: |_, value| truth(value).map(drop),
    },
    Key {
        name: "pinned_mem_register",
        npu_since: Some(Release::V7_3),
        cuda: false,
        about: "of host memory: changes nothing here",
        set: |_, value| truth(value).map(drop),
    },
];
