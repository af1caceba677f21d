//! Requests that fail for good, and others.

use super::*;

const SECOND: u64 = 1_000_000_000;
const NO_MEMORY: i64 = 207_001;

/// Lines about memory being out, of a pipeline that reports two blocks of each kind.
fn reported(records: &[Vec<u8>]) -> Vec<String> {
    let dump = DumpFilter { oom_blocks: Some(2), ..DumpFilter::default() };
    let (mut pipeline, seen, _written) = tapped(PipelineConfig { dump, ..config() });
    pipeline.feed(&records.concat()).expect("fed");
    drop(pipeline.finish(&[]));
    let is_report = |line: &String| ["out of memory", "recent", "top"].iter().any(|word| line.contains(word));
    seen.try_iter().map(|event| line(&event)).filter(is_report).collect()
}

/// Three blocks on device 1, one on device 0.
fn blocks() -> Vec<Vec<u8>> {
    vec![
        main(1).set_device(1),
        main(2).alloc(0x1000, 30, device(1)),
        main(3).alloc(0x2000, 10, device(1)),
        main(4).alloc(0x3000, 20, device(1)),
        main(5).alloc(0x4000, 99, device(0)),
    ]
}

fn fails(time_ns: u64, size: u64) -> Vec<u8> {
    main(time_ns).returned("aclrtMallocAlign32", NO_MEMORY, &[size, 0])
}

fn expected(time_ns: u64, size: u64) -> Vec<String> {
    ["out of memory SIZE", "recent 3000+20", "recent 2000+10", "top 1000+30", "top 3000+20"]
        .map(|text| {
            format!("TIME 7 npu1 {text}").replace("SIZE", &size.to_string()).replace("TIME", &time_ns.to_string())
        })
        .to_vec()
}

/// The thread's next action shows that it has given up; blocks of other devices are not named.
#[test]
fn the_next_action_tells() {
    for next in [main(9).mark("x"), main(9).launch(0x77, 0)] {
        assert_eq!(reported(&[blocks(), vec![fails(8, 500), next]].concat()), expected(9, 500));
    }
}

/// `torch_npu` queries the free memory, twice, before it raises its error.
#[test]
fn asking_twice_tells() {
    let ask = |time_ns| main(time_ns).entered("aclrtGetMemInfo", &[]);
    assert_eq!(reported(&[blocks(), vec![fails(8, 500), ask(9), ask(10)]].concat()), expected(10, 500));
}

/// A request that succeeds at the second attempt has not failed, even if the pool gave memory back in between.
#[test]
fn recovered_requests_are_not_reported() {
    let recovers =
        vec![fails(8, 500), main(9).free(0x2000), main(10).alloc(0x9000, 500, device(1)), main(11).mark("x")];
    assert_eq!(reported(&[blocks(), recovers].concat()), [""; 0]);
}

/// A failing program cleans up: the blocks of the failed attempt are named all the same, those of the last attempt.
#[test]
fn blocks_are_those_of_the_last_attempt() {
    let frees = |time_ns| [0x1000, 0x2000, 0x3000].map(|addr| main(time_ns).free(addr)).to_vec();
    let after = vec![main(9 * SECOND).mark("x")];
    assert_eq!(reported(&[blocks(), vec![fails(8, 500)], frees(9), after.clone()].concat()), expected(9 * SECOND, 500));
    let again = vec![fails(8, 500), main(9).free(0x1000), fails(SECOND, 500)];
    let lines = reported(&[blocks(), again, frees(SECOND + 1), after].concat());
    assert!(lines.len() == 5 && lines[3].ends_with("top 3000+20") && lines[4].ends_with("top 2000+10"), "{lines:?}");
}

/// The process dies: reported at once.
#[test]
fn death_tells() {
    assert_eq!(reported(&[blocks(), vec![fails(8, 500), main(9).end()]].concat()), expected(9, 500));
    assert_eq!(reported(&[blocks(), vec![fails(8, 500), main(9).exec()]].concat()), expected(9, 500));
    // The trace ends.
    assert_eq!(reported(&[blocks(), vec![fails(8, 500)]].concat()), expected(8, 500));
}

/// A thread that hangs: a watermark a second later ends the request, not one before.
#[test]
fn silence_tells() {
    let watermark = |mono_ns: u64| at(mono_ns, 0, 0).note(&Note::Watermark { mono_ns });
    let silent = vec![fails(8, 500), watermark(SECOND / 2), watermark(2 * SECOND), at(3 * SECOND, 9, 9).mark("x")];
    let lines = reported(&[blocks(), silent].concat());
    assert_eq!(lines.len(), 5);
    let time_ns: u64 = lines[0].split(' ').next().and_then(|time| time.parse().ok()).expect("a time");
    assert!((SECOND..3 * SECOND).contains(&time_ns), "{lines:?}");
}

/// Each failure is reported; blocks only if it is two seconds since the last time.
#[test]
fn blocks_are_reported_with_pauses() {
    let again = |time_ns, size| vec![fails(time_ns, size), main(time_ns + 1).mark("x")];
    let lines = reported(&[blocks(), again(10, 500), again(20, 600), again(10 * SECOND, 700)].concat());
    let kinds: Vec<&str> = lines.iter().map(|line| line.split(' ').nth(3).expect("a word")).collect();
    assert_eq!(kinds, ["out", "recent", "recent", "top", "top", "out", "out", "recent", "recent", "top", "top"]);
}
