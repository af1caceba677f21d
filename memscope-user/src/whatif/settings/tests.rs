//! Values worked out by hand from the rules.

use super::*;

fn parse(text: &str) -> Result<Settings, Refused> {
    Settings::parse(text, Release::Next)
}

fn reason(text: &str, release: Release) -> String {
    Settings::parse(text, release).expect_err("refused").to_string()
}

/// 32 bytes more than asked, at least 512, in steps of 512.
#[test]
fn sizes_are_padded_and_rounded() {
    let settings = Settings::default();
    let cases = [(1, 512), (479, 512), (480, 512), (481, 1024), (MIB, MIB + 512), (25 * MIB, 25 * MIB + 512)];
    for (asked, size) in cases {
        assert_eq!(settings.round(asked), size, "{asked}");
    }
    assert_eq!(Settings::of(Family::Cuda).round(MIB), MIB);
}

/// Between two powers of two there are as many steps as requested; sizes of at most 512 times that are rounded as ever.
#[test]
fn sizes_are_rounded_to_parts_of_powers() {
    let settings = parse("roundup_power2_divisions:4").expect("settings");
    // 5 MiB + 32 lies between 4 and 8 MiB, in quarters of 1 MiB.
    let cases = [(5 * MIB, 6 * MIB), (1200 * KIB, 1280 * KIB), (2000, 2048)];
    for (asked, size) in cases {
        assert_eq!(settings.round(asked), size, "{asked}");
    }
}

#[test]
fn divisions_by_class() {
    let settings = parse("roundup_power2_divisions:[2:1,4:2,>:8]").expect("settings");
    let mut expected = [8; ROUND_CLASSES];
    expected[..3].copy_from_slice(&[1, 1, 2]);
    assert_eq!(settings.round_divisions, expected);
}

/// A request that no device can have does not overflow.
#[test]
fn absurd_sizes_stay_absurd() {
    assert_eq!(Settings::default().round(u64::MAX), (1 << 48) + 512);
}

#[test]
fn all_keys_are_taken_together() {
    let settings =
        parse("max_split_size_mb:64, max_non_split_rounding_mb:32,garbage_collection_threshold:0.8").expect("ok");
    assert_eq!((settings.max_split_bytes, settings.non_split_rounding_bytes), (64 * MIB, 32 * MIB));
    assert!((settings.gc_threshold - 0.8).abs() < 1e-9);
    let settings =
        parse("expandable_segments:True,segment_size_mb:128,base_addr_aligned_kb:0,page_size:1g").expect("ok");
    assert_eq!((settings.expandable, settings.large_page_bytes, settings.align_bytes), (true, 128 * MIB, 0));
    assert!(settings.gigabyte_pages);
    assert_eq!(parse(""), Ok(Settings::default()));
}

/// What `torch_npu` refuses is refused here.
#[test]
fn what_the_allocator_refuses_is_refused() {
    let refused = [
        ("max_split_size_mb:20", "greater than 20"),
        ("max_split_size_mb:x", "whole number"),
        ("garbage_collection_threshold:1.0", "less than 1"),
        ("garbage_collection_threshold:0", "greater than 0"),
        ("garbage_collection_threshold:nan", "greater than 0"),
        ("base_addr_aligned_kb:17", "0 to 16"),
        ("segment_size_mb:19", "20 to 512"),
        ("segment_size_mb:513", "20 to 512"),
        ("max_non_split_rounding_mb:19", "at least 20"),
        ("roundup_power2_divisions:3", "power of two"),
        ("expandable_segments:true", "True or False"),
        ("expandable_segments:True,max_split_size_mb:64", "excludes max_split_size_mb"),
        ("expandable_segments:True,garbage_collection_threshold:0.5", "excludes garbage_collection_threshold"),
        ("nothing:1", "not a setting"),
        ("max_split_size_mb", "has no value"),
        ("roundup_power2_divisions:[1:2", "without `]`"),
    ];
    for (text, part) in refused {
        let reason = reason(text, Release::Next);
        assert!(reason.contains(part), "{text}: {reason}");
    }
}

/// A setting is only known from its release on.
#[test]
fn releases_know_their_settings() {
    let text = "multi_stream_lazy_reclaim:True";
    assert_eq!(
        reason(text, Release::V7_3),
        "multi_stream_lazy_reclaim is not known in torch_npu 7.3.0: it came with 26.0.0"
    );
    assert!(Settings::parse(text, Release::V26_0).is_ok());
    assert!(reason(text, Release::TorchMain).contains("CUDA's allocator has no"));
    assert!(reason("release_lock_on_cudamalloc:True", Release::Next).contains("of CUDA's allocator"));
    let text = "throw_on_npumalloc_oom:True,per_process_memory_fraction:0.5,pinned_max_cached_size_mb:10";
    let early = Settings::parse(text, Release::Next).expect("known since 2.13");
    assert_eq!((early.rejects_early, early.fraction), (true, Some(0.5)));
    assert!(reason("throw_on_npumalloc_oom:True", Release::V26_1).contains("it came with master"));
    assert!(Settings::parse("per_process_memory_fraction:0.5,large_segment_size_mb:32", Release::V26_1).is_ok());
    assert!(reason("max_non_split_rounding_mb:32", Release::V26_1).contains("it came with master"));
    // In CUDA's allocator both may be set.
    let both = "expandable_segments:True,max_split_size_mb:64";
    assert!(Settings::parse(both, Release::TorchMain).is_ok());
    for release in Release::ALL {
        assert_eq!(Release::of(release.name()), Some(release));
    }
}

/// Collecting without a fraction is reported as without effect.
#[test]
fn collecting_needs_a_fraction() {
    let settings = parse("garbage_collection_threshold:0.8").expect("settings");
    assert!(settings.without_effect(None).is_some());
    assert_eq!(settings.without_effect(Some(0.5)), None);
}

#[test]
fn segments_of_sizes() {
    let settings = Settings::default();
    let cases = [(MIB, 2 * MIB), (MIB + 512, 20 * MIB), (10 * MIB, 10 * MIB), (25 * MIB + 512, 26 * MIB)];
    for (size, segment) in cases {
        assert_eq!(settings.segment_bytes(size), segment, "{size}");
    }
    let gigabytes = parse("page_size:1g").expect("settings");
    assert_eq!((gigabytes.segment_bytes(MIB), gigabytes.segment_bytes(3 * MIB)), (2 * MIB, GIB));
}

/// What a script sets replaces what it names; three settings return to their defaults where it does not name them, the others stay.
#[test]
fn a_script_changes_settings() {
    let before =
        parse("max_split_size_mb:64,garbage_collection_threshold:0.5,roundup_power2_divisions:4,segment_size_mb:32");
    let after = before.expect("settings").changed("expandable_segments:True").expect("settings");
    assert_eq!(after, parse("segment_size_mb:32,expandable_segments:True").expect("settings"));
    let refused = after.changed("max_split_size_mb:64").expect_err("refused").to_string();
    assert!(refused.contains("excludes max_split_size_mb"), "{refused}");
}

fn cuda(text: &str) -> Result<Settings, Refused> {
    Settings::parse(text, Release::TorchMain)
}

/// Without a pad a size that is a multiple of 512 stays, at the borders of all classes of segments.
#[test]
fn cuda_has_no_pad() {
    let settings = Settings::of(Family::Cuda);
    let sizes = [(1, 512), (512, 512), (513, 1024), (MIB, MIB), (MIB + 1, MIB + 512), (10 * MIB, 10 * MIB)];
    for (asked, size) in sizes {
        assert_eq!(settings.round(asked), size, "{asked}");
    }
    // A block of 1 MiB is a small one; torch_npu's, with 32 bytes more, is not.
    let segments = [(MIB, 2), (MIB + 512, 20), (10 * MIB - 512, 20), (10 * MIB, 10), (10 * MIB + 512, 12)];
    for (size, mib) in segments {
        assert_eq!(settings.segment_bytes(size), mib * MIB, "{size}");
    }
    assert_eq!((settings.page_bytes(true), settings.page_bytes(false), settings.align_bytes), (2 * MIB, 20 * MIB, 0));
    // 1200 lies between 1024 and 2048, in quarters of 256: but it is not above 4 times 512, so it is rounded as ever; 5000 is.
    let quarters = cuda("roundup_power2_divisions:4").expect("settings");
    assert_eq!((quarters.round(1200), quarters.round(5000), quarters.round(5 * MIB)), (1536, 5120, 5 * MIB));
}

/// What CUDA's allocator refuses is refused, for its own reasons.
#[test]
fn what_cuda_refuses_is_refused() {
    let refused = [
        ("max_split_size_mb:19", "at least 20"),
        ("max_non_split_rounding_mb:19", "at least 20"),
        ("max_split_size_mb:31,large_segment_size_mb:32", "at least 32"),
        ("large_segment_size_mb:10", "at least 11"),
        ("garbage_collection_threshold:1.0", "less than 1"),
        ("per_process_memory_fraction:1.1", "0 to 1"),
        ("per_process_memory_fraction:nan", "0 to 1"),
        ("backend:cudaMallocAsync", "not modelled"),
        ("backend:other", "native"),
        ("expandable_segments_reserve:0.5", "not modelled"),
        ("pinned_num_register_threads:3", "power of two"),
        ("pinned_num_register_threads:256", "up to 128"),
        ("throw_on_cudamalloc_oom:1", "True or False"),
        ("base_addr_aligned_kb:0", "of torch_npu"),
        ("nothing:1", "not a setting"),
    ];
    for (text, part) in refused {
        let reason = reason(text, Release::TorchMain);
        assert!(reason.contains(part), "{text}: {reason}");
    }
    for text in ["max_split_size_mb:20", "large_segment_size_mb:11", "large_segment_size_mb:600", "backend:native"] {
        assert!(cuda(text).is_ok(), "{text}");
    }
}

/// 2.9 wants more than 20 MiB where 2.14 takes 20, and has less keys.
#[test]
fn releases_of_torch() {
    assert!(reason("max_split_size_mb:20", Release::Torch2_9).contains("greater than 20"));
    let text = "per_process_memory_fraction:0.5";
    assert_eq!(
        reason(text, Release::Torch2_9),
        "per_process_memory_fraction is not known in torch-2.9: torch-2.14 has it"
    );
    assert_eq!(Settings::parse(text, Release::Torch2_14).expect("settings").fraction, Some(0.5));
    assert!(Release::Torch2_9.limits_whole_fraction() && !Release::Torch2_14.limits_whole_fraction());
    for family in [Family::Npu, Family::Cuda] {
        assert_eq!(family.newest().family(), family);
    }
}

/// The segment's size is read first, wherever it stands, and is the default of what an unsplit block may be larger.
#[test]
fn large_segments_are_read_first() {
    let settings = cuda("max_non_split_rounding_mb:40,large_segment_size_mb:32").expect("settings");
    assert_eq!((settings.large_segment_bytes, settings.non_split_rounding_bytes), (32 * MIB, 40 * MIB));
    let settings = cuda("large_segment_size_mb:32").expect("settings");
    assert_eq!((settings.large_page_bytes, settings.non_split_rounding_bytes), (32 * MIB, 32 * MIB));
}
