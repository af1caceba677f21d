//! Many events, through every transport and every kind of link.

use std::fs::File;
use std::io::{BufRead, BufReader};

use memscope_tests::harness::expect::assert_equal;
use memscope_tests::harness::journal::{Call, Journal};
use memscope_tests::harness::rows::dump_files;
use memscope_tests::harness::tracer::{Run, Tracer, in_vm};

use super::shared::{DEFAULT, assert_nothing_lost, compare};

/// Four threads that free each other's blocks, with both transports.
#[test]
fn threads_share_blocks() {
    let events = if in_vm() { "20000" } else { "200000" };
    for transport in ["auto", "perf"] {
        let tracer = Tracer::run("share", &["--events", events, "--threads", "4"]).options(&["--transport", transport]);
        let (run, totals) = compare(tracer, DEFAULT);
        assert!(run.status.success(), "{}", run.said());
        assert_eq!(totals.allocs + totals.frees, events.parse::<u64>().expect("a number") + 6, "{transport}");
    }
}

/// Each kind of link gives the same rows; one that the kernel lacks is refused in words.
#[test]
fn links() {
    for link in ["multi", "cookie", "slots"] {
        let tracer = Tracer::run("share", &["--events", "4000", "--threads", "4"]).options(&["--link", link]);
        let run = tracer.finish();
        if run.code() == 125 && link != "slots" {
            assert!(run.stderr.contains("kernel"), "{link}: {}", run.said());
            continue;
        }
        assert!(run.status.success(), "{link}: {}", run.said());
        assert_nothing_lost(&run);
        let totals = assert_equal(&run.journal(), &run.rows(), DEFAULT);
        assert_eq!((totals.allocs, totals.frees), (2003, 2003), "{link}");
    }
}

/// With room for few rows, as on kernels without attach cookies, the driver's are served completely; one message lists
/// the functions that are not probed.
#[test]
fn little_room() {
    // Four rows are kept for loaders; the driver's 14 come before any other layer's.
    let tracer = Tracer::run("pairs", &["--pairs", "500", "--threads", "2", "--hal"]);
    let (run, totals) = compare(tracer.options(&["--link", "slots", "--max-rows", "18"]), DEFAULT);
    assert!(run.status.success(), "{}", run.said());
    assert_eq!((totals.allocs, totals.frees), (1000, 1000), "{}", run.said());
    let reported: Vec<&str> = run.stderr.lines().filter(|line| line.contains("are not probed")).collect();
    assert_eq!(reported.len(), 1, "{}", run.said());
    for symbol in ["rtSetDevice", "aclrtGetMemInfo", "aclInit", "mstxMarkA"] {
        assert!(reported[0].contains(symbol), "{symbol}: {}", reported[0]);
    }
    assert!(!reported[0].contains("halMem"), "{}", reported[0]);
}

/// With room for none, loaders included, the program runs as ever, and there is a message about both.
#[test]
fn no_room() {
    let run = Tracer::run("pairs", &["--pairs", "10", "--hal"]).options(&["--max-rows", "0"]).finish();
    assert!(run.status.success(), "{}", run.said());
    assert!(run.stderr.contains("are not probed") && run.stderr.contains("halMemAlloc"), "{}", run.said());
    assert!(run.stderr.contains("are not noticed: no room for a further probe"), "{}", run.said());
}

/// A program that allocates and frees as fast as it can loses nothing with the default settings.
#[test]
fn full_speed() {
    let pairs = if in_vm() { "20000" } else { "1000000" };
    let run = Tracer::run("pairs", &["--pairs", pairs, "--threads", "1", "--hal"]).succeed();
    assert_nothing_lost(&run);
    let files = dump_files(&run.folder.output_path());
    assert_eq!(files.len(), 1);
    let mut lines = BufReader::new(File::open(&files[0]).expect("dump")).lines();
    lines.next().expect("header").expect("text");
    let journal = run.journal();
    let expected = expected_lines(&journal);
    let mut found = 0_u64;
    for wanted in expected {
        let line = lines.next().unwrap_or_else(|| panic!("rows end after {found}")).expect("text");
        // ID, Event, Event Type, Name, Timestamp, and the rest.
        let mut cells = line.splitn(6, ',');
        let (event, rest) = (cells.nth(1), cells.nth(3));
        assert_eq!((event, rest), (Some(wanted.0), Some(wanted.1.as_str())), "row {found}: {line}");
        found += 1;
    }
    assert!(lines.next().is_none(), "more rows than calls");
    assert_eq!(found, 2 * pairs.parse::<u64>().expect("a number"));
}

/// Event, and everything from the process on, of each row of a single thread that has no two blocks at a time.
fn expected_lines(journal: &Journal) -> impl Iterator<Item = (&'static str, String)> {
    let mut number = 0_u64;
    let mut live = 0;
    journal.entries.iter().filter_map(move |entry| {
        let (pid, tid) = (entry.pid, entry.tid);
        match entry.call() {
            Call::Alloc { size, addr, .. } => {
                number += 1;
                live = size;
                let attr = format!(
                    "\"{{allocation_id:{number},addr:{addr:#018x},size:{size},used:{size},page_type:normal,alloc_type:alloc}}\""
                );
                Some(("MALLOC", format!("{pid},{tid},0,{addr:#018x},{attr},,")))
            }
            Call::Free { addr, ok: Some(true) } => {
                let attr = format!("\"{{allocation_id:{number},addr:{addr:#018x},size:{live},used:0}}\"");
                Some(("FREE", format!("{pid},{tid},0,{addr:#018x},{attr},,")))
            }
            _ => None,
        }
    })
}

/// Calls that a function lost because the ring was full.
fn lost(run: &Run, symbol: &str) -> u64 {
    let json = run.json();
    let losses = json["end"]["losses"].as_array().expect("losses").clone();
    let strange = losses.iter().find(|loss| loss["reason"] != "ring full");
    assert_eq!(strange, None, "{}", run.said());
    losses.iter().filter(|loss| loss["symbol"] == symbol).filter_map(|loss| loss["count"].as_u64()).sum()
}

/// What a buffer that is far too small loses is counted exactly, function by function.
#[test]
fn tiny_ring() {
    // An emulated machine takes a minute for what a real one does in a second.
    let (few, some, many) = if in_vm() { ("1000", "3000", "5000") } else { ("10000", "30000", "50000") };
    let variants: [(&str, &[&str], &[&str]); 3] = [
        ("4K", &["--pairs", some, "--threads", "1"], &[]),
        ("64K", &["--pairs", many, "--threads", "4"], &[]),
        ("4K", &["--pairs", few, "--threads", "2"], &["--transport", "perf"]),
    ];
    for (size, arguments, options) in variants {
        let tracer = Tracer::run("pairs", &[arguments, &["--hal"]].concat());
        let tracer = tracer.options(&["--json", "--ring-size", size]).options(options);
        let run = tracer.finish();
        assert!(run.status.success(), "{}", run.said());
        let (journal, rows, json) = (run.journal(), run.rows(), run.json());
        let calls = |symbol: &str| journal.entries.iter().filter(|entry| entry.symbol == symbol).count() as u64;
        let allocs = rows.count("MALLOC") as u64;
        assert_eq!(allocs + lost(&run, "halMemAlloc"), calls("halMemAlloc"), "{size} {options:?}");
        // Made up: blocks with a lost free end when their address comes back, or with the process.
        let frees = (rows.count("FREE") - rows.made_up()) as u64;
        let findings = json["findings"].as_array().expect("findings");
        let unknown: u64 = findings.iter().filter_map(|finding| finding["unknown_frees"].as_u64()).sum();
        assert_eq!(frees + unknown + lost(&run, "halMemFree"), calls("halMemFree"), "{size} {options:?}");
        // The call of `exit` is a record as well.
        let all: u64 = ["halMemAlloc", "halMemFree", "exit"].map(|symbol| lost(&run, symbol)).iter().sum();
        assert_eq!(json["end"]["lost"], all, "{size} {options:?}");
        // An emulated target can be too slow to fill any ring.
        assert!(size != "4K" || all > 0 || in_vm(), "nothing was lost, so nothing was tested: {options:?}");
        assert_eq!(allocs, frees + rows.made_up() as u64, "every block has its end");
    }
}
