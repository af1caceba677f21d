use super::*;
use crate::analyses::script::{Script, run};
use crate::backend::ascend::pools::PTA;

const MIB: u64 = 1 << 20;

fn found(script: &Script, large_alone: bool) -> Vec<Waits> {
    let analysis = WaitsAnalysis { large_alone, ..WaitsAnalysis::default() };
    let found = run(analysis, script.events(), &RunEnd::default());
    let of = |finding| if let Finding::Waits(found) = finding { found } else { panic!("{finding:?}") };
    found.into_iter().map(of).collect()
}

fn text(found: &Waits) -> String {
    let mut out = Vec::new();
    text::write(found, crate::text::clock::Clock::since(0), &mut out).expect("memory");
    String::from_utf8(out).expect("text")
}

/// A pool that says when blocks are back, by one that waits for nothing.
fn pool() -> Script {
    let mut script = Script::new(7, Device::Npu(0));
    script.pool_alloc(PTA, 0x1000, 512, 2 * MIB).returned(PTA, 0x1000).free(PTA, 0x1000);
    script
}

/// Of two blocks that wait one is back (4 ns later) before the pool grows to its peak of 40 MiB, and one behind it (6 ns): 4 MiB, a tenth. A third
/// one waits at the end.
#[test]
fn what_waits_at_the_peak() {
    let mut script = pool();
    script.stacks(&["a.py(1): f"], &[]).pool_alloc(PTA, 0x2000, 3 * MIB, 22 * MIB);
    script.stacks(&["b.py(2): g"], &[]).pool_alloc(PTA, 0x3000, 4 * MIB, 22 * MIB);
    // At 5, 6, ...
    script.free(PTA, 0x2000).free(PTA, 0x3000);
    script.stacks(&[], &[]).pool_alloc(PTA, 0x9000, MIB, 22 * MIB).free(PTA, 0x9000).returned(PTA, 0x2000);
    script.returned(PTA, 0x9000).pool_alloc(PTA, 0x4000, 18 * MIB, 40 * MIB).returned(PTA, 0x3000);
    script.stacks(&["a.py(1): f"], &[]).pool_alloc(PTA, 0x2000, 3 * MIB, 30 * MIB).free(PTA, 0x2000);
    let found = found(&script, true);
    let [found] = &found[..] else { panic!("{found:#?}") };
    let all = WaitSum {
        blocks: 4,
        most_bytes: 8 * MIB,
        pool_peak_bytes: 4 * MIB,
        pool_peak_blocks: 1,
        longest_ns: 6,
        open_blocks: 1,
    };
    assert_eq!((found.reserved_peak_bytes, found.reserved_peak_time_ns, found.all), (40 * MIB, 11, all));
    let places: Vec<_> = found.places.iter().map(|place| (place.stacks.is_empty(), place.sum)).collect();
    let of = |blocks, most_bytes, at_peak, longest_ns, open_blocks| WaitSum {
        blocks,
        most_bytes,
        pool_peak_bytes: at_peak,
        pool_peak_blocks: at_peak.min(1),
        longest_ns,
        open_blocks,
    };
    let expected =
        [(false, of(1, 4 * MIB, 4 * MIB, 6, 0)), (false, of(2, 3 * MIB, 0, 4, 1)), (true, of(1, MIB, 0, 2, 0))];
    assert_eq!(places, expected);
    let text = text(found);
    assert!(
        text.contains("At the pool's peak (40.00 MiB, at 0.000000011s): 4.00 MiB in 1 block, 10 % of it"),
        "{text}"
    );
    assert!(
        text.contains("4.00 MiB at the pool's peak, 4.00 MiB at most, 1 block, allocated at:\n      b.py(2): g"),
        "{text}"
    );
    assert!(text.contains("1 block at the end") && text.contains("record_stream"), "{text}");
}

/// Blocks of one line wait for calls in two lines: of a block with two, the last counts. That of a block without a wait, or of an
/// earlier block at the address, does not.
#[test]
fn the_call_that_has_a_stream_use_them() {
    let (alloc, first, second) = (["a.py(1): f"], ["s.py(7): first"], ["s.py(9): second"]);
    let mut script = pool();
    for (addr, calls) in [(0x2000, vec![first]), (0x3000, vec![first, second]), (0x4000, vec![])] {
        script.stacks(&alloc, &[]).pool_alloc(PTA, addr, MIB, 20 * MIB);
        for call in calls {
            script.stacks(&call, &[]).stream_use(PTA, addr);
        }
        script.free(PTA, addr);
    }
    script.stacks(&alloc, &[]).pool_alloc(PTA, 0x5000, MIB, 20 * MIB).stacks(&first, &[]).stream_use(PTA, 0x5000);
    script.returned(PTA, 0x5000).free(PTA, 0x5000);
    script.stacks(&alloc, &[]).pool_alloc(PTA, 0x5000, MIB, 20 * MIB).free(PTA, 0x5000);
    let found = found(&script, false);
    let [found] = &found[..] else { panic!("{found:#?}") };
    let line = |stacks: Stacks| stacks.python.map(|stack| stack.frames().join("|"));
    let mut places: Vec<_> =
        found.places.iter().map(|place| (line(place.stacks), line(place.record_stream), place.sum.blocks)).collect();
    places.sort();
    let at = |call: [&str; 1]| Some(call[0].to_owned());
    assert_eq!(places, [(at(alloc), None, 2), (at(alloc), at(first), 1), (at(alloc), at(second), 1)]);
    let text = text(found);
    assert!(
        text.contains("a.py(1): f\n    used by another stream since record_stream at:\n      s.py(9): second"),
        "{text}"
    );
}

/// A pool that never says when a block is back, such as an older one's, has none that waits.
#[test]
fn pools_that_do_not_say_it() {
    let mut script = Script::new(7, Device::Npu(0));
    script.pool_alloc(PTA, 0x1000, 512, 2 * MIB).free(PTA, 0x1000);
    script.pool_alloc(PTA, 0x2000, 512, 4 * MIB).free(PTA, 0x2000);
    assert_eq!(found(&script, false), []);
}

/// A block at an address that is handed out again is back. One from before the trace is none that waits.
#[test]
fn returns_that_are_not_seen() {
    let mut script = pool();
    script.returned(PTA, 0x5000).unknown_free(PTA, 0x5000, true);
    script.pool_alloc(PTA, 0x5000, MIB, 20 * MIB).free(PTA, 0x5000);
    script.pool_alloc(PTA, 0x5000, MIB, 30 * MIB);
    let found = found(&script, false);
    assert_eq!((found[0].all.blocks, found[0].all.longest_ns, found[0].all.open_blocks), (1, 0, 0));
    assert_eq!((found[0].all.most_bytes, found[0].all.pool_peak_bytes), (MIB, 0));
}

/// A return without a free that was seen says nothing of the next block at that address.
#[test]
fn frees_that_are_not_seen() {
    let mut script = pool();
    script.pool_alloc(PTA, 0x5000, MIB, 20 * MIB).returned(PTA, 0x5000).end(FreeCause::Replaced, PTA, 0x5000);
    script.pool_alloc(PTA, 0x5000, 2 * MIB, 20 * MIB).free(PTA, 0x5000).returned(PTA, 0x5000);
    let found = found(&script, false);
    assert_eq!((found[0].all.blocks, found[0].all.most_bytes, found[0].all.longest_ns), (1, 2 * MIB, 1));
}

/// Where it was not asked for, what is less than a twentieth of the pool is left out.
#[test]
fn small_waits_are_said_when_asked() {
    for (bytes, expected) in [(MIB, 1), (MIB - 512, 0)] {
        let mut script = pool();
        script.pool_alloc(PTA, 0x2000, bytes, 2 * MIB).free(PTA, 0x2000).pool_alloc(PTA, 0x3000, 512, 20 * MIB);
        assert_eq!((found(&script, true).len(), found(&script, false).len()), (expected, 1), "{bytes}");
    }
}
