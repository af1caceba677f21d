//! Values worked out by hand from the rules.

use super::*;

fn parse(text: &str) -> Result<Settings, Refused> {
    Settings::parse(text, Family::Npu, Release::Next)
}

fn reason(text: &str, family: Family, release: Release) -> String {
    Settings::parse(text, family, release).expect_err("refused").to_string()
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
        let reason = reason(text, Family::Npu, Release::Next);
        assert!(reason.contains(part), "{text}: {reason}");
    }
}

/// A setting is only known from its release on.
#[test]
fn releases_know_their_settings() {
    let text = "multi_stream_lazy_reclaim:True";
    assert_eq!(
        reason(text, Family::Npu, Release::V7_3),
        "multi_stream_lazy_reclaim is not known in torch_npu 7.3.0: it came with 26.0.0"
    );
    assert!(Settings::parse(text, Family::Npu, Release::V26_0).is_ok());
    assert!(reason(text, Family::Cuda, Release::Next).contains("CUDA's allocator has no"));
    assert!(reason("release_lock_on_cudamalloc:True", Family::Npu, Release::Next).contains("of CUDA's allocator"));
    // In CUDA's allocator both may be set.
    let both = "expandable_segments:True,max_split_size_mb:64";
    assert!(Settings::parse(both, Family::Cuda, Release::Next).is_ok());
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
