use super::*;

#[test]
fn blocks_of_a_device() {
    assert_eq!(device_block("0x12c100400000"), Ok((0x12c1_0040_0000, None)));
    assert_eq!(device_block("0x12c100400000:2M"), Ok((0x12c1_0040_0000, Some(2 << 20))));
    assert_eq!(device_block("4096:512"), Ok((4096, Some(512))));
    for wrong in ["", "0x", "0", "0x+1", "-5", "x:1", "0x1000:", "0x1000:0", "0x1000:1:2"] {
        assert!(device_block(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn lists_split_at_both_commas_and_never_inside_a_character() {
    assert_eq!(items("alloc，free,,launch,").collect::<Vec<_>>(), ["alloc", "free", "launch"]);
    // U+FF0D shares two bytes with the full-width comma.
    assert_eq!(items("a－b").collect::<Vec<_>>(), ["a－b"]);
}

/// Paths are split at both commas, and bytes that are no UTF-8 are unchanged.
#[test]
fn paths_are_bytes() {
    let odd = OsStr::from_bytes(b"a\xff\xef\xbc\x8c b,,\xef\xbc/c,");
    let found: Vec<Vec<u8>> = paths(odd).iter().map(|path| path.as_os_str().as_bytes().to_vec()).collect();
    assert_eq!(found, [&b"a\xff"[..], b"b", b"\xef\xbc/c"]);
}

#[test]
fn events_none_clears_all() {
    let cleared = "alloc,none".parse::<Events>().expect("valid");
    assert_eq!((cleared.rows.bits(), cleared.cleared), (0, true));
    assert!(!"none".parse::<Events>().expect("valid").cleared);
    assert!("leaks,none".parse::<Analyses>().expect("valid").cleared);
    let traceback = "traceback,alloc".parse::<Events>().expect("valid");
    assert_eq!((traceback.rows.bits(), traceback.traceback), (1, true));
    assert_eq!("".parse::<Events>().map(|events| events.rows.bits()), Ok(0));
    assert_eq!("alloc,access".parse::<Events>().map(|events| events.rows.bits()), Ok(9));
    assert_eq!(Events::default().rows.bits(), 7);
    assert!("allocs".parse::<Events>().is_err());
}

/// Written events are collected, and those that they and the analyses need, as in the table of contract §1.5.
#[test]
fn analyses_widen_what_is_collected() {
    let collected = |events: &str, analyses: &str| {
        let analyses: Analyses = analyses.parse().expect("valid");
        let events: Events = events.parse().expect("valid");
        analyses.chosen.collect_bits(events.rows)
    };
    // alloc 1, free 2, launch 4, access 8.
    assert_eq!(Chosen::default().collect_bits(Rows::default()), 7);
    assert_eq!(collected("alloc,free,launch", "inefficient"), 15);
    assert_eq!(collected("alloc,free,launch", "leaks,decompose"), 15);
    assert_eq!(collected("alloc", "inefficient"), 15);
    assert_eq!(collected("none", "decompose"), 11);
    assert_eq!(collected("none", "leaks"), 3);
    assert_eq!(collected("none", "oom:3"), 3);
    assert_eq!(collected("free", "none"), 3);
    assert_eq!(collected("access", "none"), 11);
    assert_eq!(collected("launch", "none"), 4);
    assert_eq!(collected("launch", "peaks"), 4);
}

#[test]
fn device_numbers_are_decimal_and_below_32() {
    let parsed: Devices = "npu:0,npu:2".parse().expect("valid");
    assert_eq!((parsed.slots, parsed.all_npu, parsed.cpu), (5, false, false));
    assert_eq!("0,2".parse::<Devices>(), Ok(parsed));
    for bad in ["npu:32", "npu:xx", "npu:-1", "gpu", "", "npu:0x1", "32", "0x1", "-1"] {
        assert!(bad.parse::<Devices>().is_err(), "{bad}");
    }
}

#[test]
fn steps_have_limits() {
    assert_eq!("1,4294967295".parse(), Ok(Steps(vec![1, 4_294_967_295])));
    for bad in ["0", "01", "4294967296", "1,2,3,4,5,6", "", "a", "-1", "+1"] {
        assert!(bad.parse::<Steps>().is_err(), "{bad}");
    }
}

#[test]
fn oom_takes_a_count_within_the_range() {
    assert_eq!("oom".parse::<Analyses>().map(|a| a.chosen.oom()), Ok(Some(10)));
    let peaks = Chosen::NONE.with("peaks");
    assert_eq!("peaks".parse(), Ok(Analyses { chosen: peaks, cleared: false }));
    assert_eq!("leaks,oom:1000".parse::<Analyses>().map(|a| (a.chosen.bits(), a.chosen.oom())), Ok((9, Some(1000))));
    for bad in ["oom:", "oom:0", "oom:1001", "oom:abc", "oomfoo"] {
        assert!(bad.parse::<Analyses>().is_err(), "{bad}");
    }
}

/// `auto` is all that costs no probe; what is asked for by name is that alone, as msMemScope takes it.
#[test]
fn automatic_analyses_are_cheap() {
    let chosen = |text: &str| text.parse::<Analyses>().map(|a| a.chosen);
    assert_eq!(chosen("auto"), Ok(Chosen::automatic()));
    assert_eq!(chosen("leaks"), Ok(Chosen::default()));
    assert_eq!(chosen("auto").map(Chosen::bits), Ok(1));
    assert_eq!(chosen("auto,oom:3").map(|chosen| (chosen.oom(), chosen.cheap)), Ok((Some(3), true)));
}

#[test]
fn call_stack_depths() {
    assert_eq!("c,python:7".parse(), Ok(CallStacks { c: Some(50), python: Some(7), ..CallStacks::default() }));
    assert_eq!("mixed:9".parse(), Ok(CallStacks { c: Some(9), python: Some(9), mixed: true, automatic: false }));
    assert_eq!("c:1000,c:0".parse(), Ok(CallStacks { c: Some(0), ..CallStacks::default() }));
    for bad in ["c:1001", "c:-1", "c:", "java"] {
        assert!(bad.parse::<CallStacks>().is_err(), "{bad}");
    }
}

#[test]
fn kinds_of_inefficient_use() {
    assert_eq!("late_deallocation,".parse(), Ok(InefficientKinds([false, true, false])));
    for bad in ["", "late", "late_deallocation,x"] {
        assert!(bad.parse::<InefficientKinds>().is_err(), "{bad}");
    }
}

#[test]
fn moments_of_runs() {
    let after = |millis| At::When(Moment::After(std::time::Duration::from_millis(millis)));
    for (text, at, shown) in [
        ("end", At::End, "end"),
        ("peak", At::Peak, "peak"),
        ("0", after(0), "0s"),
        ("1.5", after(1_500), "1.5s"),
        ("250ms", after(250), "0.25s"),
        ("2026-11-21T11:00:00.25+01:00", At::When(Moment::At(1_795_255_200_250_000_000)), "2026-11-21T10:00:00.25Z"),
        ("1795255200000000001", At::When(Moment::At(1_795_255_200_000_000_001)), "2026-11-21T10:00:00.000000001Z"),
    ] {
        let when: When = text.parse().expect("valid");
        assert_eq!((when, when.to_string().as_str()), (When(at), shown));
    }
    for bad in ["", "start", "-1s", "5d", "nan", "1000000000000h", "inf"] {
        assert!(bad.parse::<When>().is_err(), "{bad}");
    }
}

#[test]
fn sizes_and_durations() {
    assert_eq!((size("0"), size("3k"), size("8G")), (Ok(0), Ok(3072), Ok(8 << 30)));
    assert_eq!((size("1MB"), size("2KiB"), size("7B")), (Ok(1 << 20), Ok(2048), Ok(7)));
    assert!(["", "K", "1KK", "1MiBs", "1.5M", "-1", "99999999999G"].iter().all(|text| size(text).is_err()));
    for bad in ["", "K", "-1", "+1", "1T", "99999999999G"] {
        assert!(size(bad).is_err(), "{bad}");
    }
    assert_eq!(size_limit("2G"), Ok(2 << 30));
    assert!(size_limit("0").is_err());
    assert_eq!(bytes("64M"), Ok(64 << 20));
    for bad in ["0", "1", "2G", "M", "-5K", "99999999999G"] {
        assert!(bytes(bad).is_err(), "{bad}");
    }
    assert_eq!(duration("1.5m").map(|d| d.as_secs()), Ok(90));
    for bad in ["0", "-1s", "5d", "", "nan", "inf"] {
        assert!(duration(bad).is_err_and(|text| !text.contains("too long")), "{bad}");
    }
    assert_eq!(duration("8760h").map(|d| d.as_secs()), Ok(31_536_000));
    for long in ["8761h", "99999999999999999999s", "31536001"] {
        assert!(duration(long).is_err_and(|text| text.contains("is too long")), "{long}");
    }
}
