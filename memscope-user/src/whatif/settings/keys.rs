//! Keys of the settings: allocators and releases that have them, and accepted values.
//!
//! For `torch_npu` the release is that of the first maintenance branch with the key in its sources; some of 26.0.0 and 26.1.0 are in those for newer
//! releases of `PyTorch` alone. For `PyTorch` sources and wheels of 2.9, 2.14 and main were looked at
//! (`CUDAAllocatorConfig.cpp`, `AllocatorConfig.cpp`): 2.9 stands for itself and what was before, 2.14 for a key that 2.9 has not.

use super::parse::{divisions, number, number_from, part, power, threshold, truth};
use super::{Family, Release, Settings};
use crate::whatif::{KIB, MIB};

/// Takes a value, or returns the accepted ones.
type Set = fn(&mut Settings, &str) -> Result<(), String>;

/// A key of the configuration.
pub struct Key {
    /// As it is spelled.
    pub name: &'static str,
    /// Release of `torch_npu` that introduced it; `None`: it has none.
    pub npu_since: Option<Release>,
    /// Release of `PyTorch` that is known to have it in CUDA's allocator; `None`: it has none.
    pub cuda_since: Option<Release>,
    /// Its effect, in a few words.
    pub about: &'static str,
    /// Takes its value, or returns the accepted ones.
    pub(super) set: Set,
}

impl Key {
    /// The release of an allocator that it came with.
    #[must_use]
    pub const fn since(&self, family: Family) -> Option<Release> {
        match family {
            Family::Npu => self.npu_since,
            Family::Cuda => self.cuda_since,
        }
    }

    /// Whether an allocator of that release knows it.
    #[must_use]
    pub fn is_known(&self, release: Release) -> bool {
        self.since(release.family()).is_some_and(|since| since <= release)
    }
}

const V6_0: Option<Release> = Some(Release::V6_0);
const V7_0: Option<Release> = Some(Release::V7_0);
const V7_2: Option<Release> = Some(Release::V7_2);
const V7_3: Option<Release> = Some(Release::V7_3);
const V26_0: Option<Release> = Some(Release::V26_0);
const V26_1: Option<Release> = Some(Release::V26_1);
const NEXT: Option<Release> = Some(Release::Next);
const T2_9: Option<Release> = Some(Release::Torch2_9);
const T2_14: Option<Release> = Some(Release::Torch2_14);
const MAIN: Option<Release> = Some(Release::TorchMain);

const LOCK: &str = "other threads go on while the driver is asked; requests keep their order here";
const HOST: &str = "of host memory: changes nothing here";
const EARLY: &str = "beyond the fraction the driver is not asked";
const RESERVE: &str = "addresses of an expandable segment";

/// Keys that affect the model, and those that do not.
pub static KEYS: &[Key] = &[
    key("max_split_size_mb", V6_0, T2_9, "larger blocks are not split", |settings, value| {
        settings.max_split_bytes = split(settings, value)?;
        Ok(())
    }),
    key(
        "garbage_collection_threshold",
        V6_0,
        T2_9,
        "gives old free segments back above this part of the fraction",
        |settings, value| {
            settings.gc_threshold = threshold(value)?;
            Ok(())
        },
    ),
    key("expandable_segments", V6_0, T2_9, "segments grow by pages", |settings, value| {
        settings.expandable = truth(value)?;
        Ok(())
    }),
    key("base_addr_aligned_kb", V6_0, None, "alignment of large blocks in expandable segments", |settings, value| {
        settings.align_bytes = number_from(value, 0, 16)? * KIB;
        Ok(())
    }),
    key(
        "page_size",
        V7_0,
        None,
        "1g: pages of 1 GiB; needs CANN 8.1.RC1 and driver 25.0.RC1, else torch_npu ignores it",
        |settings, value| {
            if value != "1g" {
                return Err("has to be 1g".to_owned());
            }
            settings.gigabyte_pages = true;
            Ok(())
        },
    ),
    key("roundup_power2_divisions", V7_3, T2_9, "rounds sizes to parts of powers of two", |settings, value| {
        settings.round_divisions = divisions(value)?;
        Ok(())
    }),
    key("segment_size_mb", V7_2, None, "page of expandable segments with large blocks", |settings, value| {
        settings.large_page_bytes = number_from(value, 20, 512)? * MIB;
        Ok(())
    }),
    key(
        "multi_stream_lazy_reclaim",
        V26_0,
        None,
        "looks for blocks that streams have done with only when it must",
        |settings, value| {
            settings.lazy_reclaim = truth(value)?;
            Ok(())
        },
    ),
    key(
        "max_non_split_rounding_mb",
        NEXT,
        T2_9,
        "how much larger than the request a block may be that is not split",
        |settings, value| {
            settings.non_split_rounding_bytes = match settings.release.family() {
                Family::Npu => number_from(value, 20, u64::MAX >> 20)? * MIB,
                Family::Cuda => split(settings, value)?,
            };
            Ok(())
        },
    ),
    key(
        "large_segment_size_mb",
        V26_1,
        T2_14,
        "segment of requests of 1 to 10 MiB, and page of expandable segments",
        large_segment,
    ),
    key("per_process_memory_fraction", V26_1, T2_14, "the memory fraction of the process", |settings, value| {
        settings.fraction = Some(part(value)?);
        Ok(())
    }),
    key("throw_on_cudamalloc_oom", None, T2_14, EARLY, early),
    key("throw_on_npumalloc_oom", NEXT, None, EARLY, early),
    key("backend", None, T2_9, "native: this allocator", |_, value| match value {
        "native" => Ok(()),
        "cudaMallocAsync" | "hipMallocAsync" => Err("is the driver's own pool, which is not modelled".to_owned()),
        _ => Err("has to be native or cudaMallocAsync".to_owned()),
    }),
    key("graph_capture_record_stream_reuse", None, T2_9, "of captured graphs: changes nothing here", flag),
    key("expandable_segments_reserve", None, MAIN, RESERVE, |_, _| Err("is not modelled".to_owned())),
    key("expandable_segments_reserve_by_class", None, MAIN, RESERVE, |_, _| Err("is not modelled".to_owned())),
    key("release_lock_on_npumalloc", NEXT, None, LOCK, flag),
    key("release_lock_on_cudamalloc", None, T2_9, LOCK, flag),
    key("release_lock_on_hipmalloc", None, T2_9, LOCK, flag),
    key("pinned_use_background_threads", V26_0, T2_9, HOST, flag),
    key("pin_memory_expandable_segments", V7_3, None, HOST, flag),
    key("pinned_mem_register", V26_0, None, HOST, flag),
    key("pinned_use_cuda_host_register", None, T2_9, HOST, flag),
    key("pinned_use_hip_host_register", None, T2_9, HOST, flag),
    key("pinned_num_register_threads", None, T2_9, HOST, |_, value| match power(value)? {
        1..=128 => Ok(()),
        _ => Err("has to be a power of two up to 128".to_owned()),
    }),
    key("pinned_reserve_segment_size_mb", V26_0, T2_14, HOST, |_, value| number_from(value, 1, u64::MAX).map(drop)),
    key("pinned_free_catch_all", None, T2_14, HOST, flag),
    key("pinned_max_round_threshold_mb", NEXT, T2_14, HOST, |_, value| number(value).map(drop)),
    key("pinned_max_cached_size_mb", NEXT, T2_14, HOST, |_, value| number(value).map(drop)),
];

const fn key(
    name: &'static str,
    npu_since: Option<Release>,
    cuda_since: Option<Release>,
    about: &'static str,
    set: Set,
) -> Key {
    Key { name, npu_since, cuda_since, about, set }
}

fn early(settings: &mut Settings, value: &str) -> Result<(), String> {
    settings.rejects_early = truth(value)?;
    Ok(())
}

/// True or False, without an effect on the model.
fn flag(_: &mut Settings, value: &str) -> Result<(), String> {
    truth(value).map(drop)
}

/// Bytes of a size that has to be greater than a segment of 20 MiB; from `PyTorch` 2.10 or later on it may be as large as one. The
/// wheel of 2.14 has it so.
fn split(settings: &Settings, value: &str) -> Result<u64, String> {
    let (mb, segment_mb) = (number(value)?, settings.large_segment_bytes / MIB);
    let takes_equal = settings.release > Release::Torch2_9;
    if mb < segment_mb || mb == segment_mb && !takes_equal {
        let how = if takes_equal { "at least" } else { "greater than" };
        return Err(format!("has to be {how} {segment_mb}"));
    }
    Ok(mb.saturating_mul(MIB))
}

fn large_segment(settings: &mut Settings, value: &str) -> Result<(), String> {
    let mb = match settings.release.family() {
        Family::Npu => number_from(value, 20, 512)?,
        Family::Cuda => number_from(value, 11, u64::MAX >> 20)?,
    };
    let bytes = mb * MIB;
    (settings.large_page_bytes, settings.large_segment_bytes) = (bytes, bytes);
    if settings.release.family() == Family::Cuda {
        settings.non_split_rounding_bytes = bytes;
    }
    Ok(())
}
