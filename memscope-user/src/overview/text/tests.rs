use super::*;
use crate::analyses::{
    Finding, HeldAnalysis, Kind as _, StepLeaksAnalysis,
    by_stack::{ByStack, FoundSum, StackSum},
    growth::{GrowingSite, Growth, Increase, NotJudged, Site},
    held_by::{HeldBy, HeldPlace},
    ledger::{Entry, Item, Ledger, PoolSheets, Sheet},
    oom::{Oom, PoolAtOom},
    script::{Script, run},
    settings::Settings,
    waits::{WaitSum, Waits},
};
use crate::backend::ascend::pools;
use crate::model::{
    Figures, HeldAs, HolderPath, LiveGroups, LiveSum, LookedAt, LossLine, PlaceSum, Setting, Stack, StackEnd, Stacks,
};

const NPU0: Device = Device::Npu(0);

const GROWTH_PAGES: [&str; 2] =
    [include_str!("../../../../docs/server-grows.md"), include_str!("../../../../docs/zh/server-grows.md")];
const OUT_OF_MEMORY_PAGES: [&str; 2] =
    [include_str!("../../../../docs/out-of-memory.md"), include_str!("../../../../docs/zh/out-of-memory.md")];

const TRAINING_PAGES: [&str; 2] =
    [include_str!("../../../../docs/training-memory.md"), include_str!("../../../../docs/zh/training-memory.md")];

/// Whether each page shows this screen, or this part of one.
fn in_pages(shown: &str, pages: &[&str]) -> bool {
    pages.iter().all(|page| page.contains(shown.trim_matches('\n')))
}

fn screen_of(findings: &[Finding], end: &RunEnd, look: Look) -> String {
    let next = ["memscope-bpf peaks x".to_owned()];
    let lines = write(&Overview::new(findings, end), end, "memscope-bpf", &next, look);
    let line = |pieces: Vec<Piece>| pieces.into_iter().map(|piece| piece.text).collect::<String>();
    lines.into_iter().map(|pieces| line(pieces) + "\n").collect()
}

fn screen(findings: &[Finding]) -> String {
    screen_of(
        findings,
        &RunEnd { start_ns: 1_000_000_000, time_ns: 31_000_000_000, ..RunEnd::default() },
        Look::default(),
    )
}

fn python(frames: &[&'static str]) -> Stacks {
    Stacks { python: Some(Stack::keep(frames.iter().copied(), StackEnd::Root)), ..Stacks::default() }
}

fn site(stacks: Stacks) -> Site {
    Site { pool: pools::PTA, stacks, size_bytes: None, module_id: None, caller: None }
}

fn growing(frame: &'static str, bytes_per_second: f64) -> GrowingSite {
    GrowingSite {
        site: Some(site(python(&[frame, "serve.py(34): main"]))),
        pool: pools::PTA,
        blocks: 40,
        size_bytes: 40 << 20,
        low_blocks: [0, 8, 16, 24, 32, 40],
        blocks_per_second: 1.0,
        bytes_per_second,
        allocations: 40,
        ages: [10; 4],
        owners: Vec::new(),
    }
}

/// 3 MiB more, in 3 of 9 blocks.
fn increase() -> Increase {
    Increase {
        site: site(python(&["a.py(3): f"])),
        blocks: 3,
        size_bytes: 3 << 20,
        low_bytes: None,
        live_blocks: 9,
        ages: [9, 0, 0, 0],
        owners: Vec::new(),
    }
}

fn growth(sites: Vec<GrowingSite>, increases: Vec<Increase>) -> Finding {
    Growth {
        pid: 7,
        device: NPU0,
        from_ns: 1_000_000_000,
        span_ns: 30_000_000_000,
        judged: true,
        not_judged: None,
        undetectable_bytes_per_hour: None,
        increases,
        sites,
        sites_full: false,
        confidence: Confidence::Certain,
    }
    .into()
}

/// 3 GiB of a pool, 1 GiB of it from before the attach, 1 GiB cached, and 512 MiB of the runtime.
fn ledger(moment: Moment) -> Finding {
    ledger_on(NPU0, moment)
}

fn ledger_on(device: Device, moment: Moment) -> Finding {
    const GIB: u128 = 1 << 30;
    let pool = pools::PTA;
    let sheet = |total: Item, size_bytes, parts| Sheet { total: Entry::plus(total, size_bytes), parts };
    let allocated = sheet(Item::PoolOwnAllocated { pool }, 3 * GIB, vec![Entry::plus(Item::PoolOlder { pool }, GIB)]);
    let reserved = sheet(Item::PoolOwnReserved { pool }, 4 * GIB, Vec::new());
    Ledger {
        pid: 7,
        device,
        moment,
        time_ns: 30_000_000_000,
        attached: true,
        used: None,
        used_time_ns: None,
        capacity_bytes: None,
        hal: sheet(Item::Hal, 5 * GIB, vec![Entry::plus(Item::Runtime, GIB / 2)]),
        pools: vec![PoolSheets { pool, allocated, reserved }],
        confidence: Confidence::Certain,
    }
    .into()
}

/// The golden run: two blocks of 1 MiB outlive their steps, at no known place.
#[test]
fn leaks_of_steps() {
    let script = Script::golden_leaky();
    let end = RunEnd { time_ns: 2_500_000_000, ..RunEnd::default() };
    let mut found = run(StepLeaksAnalysis::default(), script.events(), &end);
    found.extend(run(HeldAnalysis::default(), script.events(), &end));
    let expected = "\
memscope-bpf · pid 30057 · npu:0 · 2.5 s · nothing lost

 ✗ LEAK  2.00 MiB in 2 blocks stay, at 1 place

 #1  2.00 MiB in 2 blocks of 2 steps (2 to 3)  100 %
     blocks of 1.00 MiB of PyTorch pool; no call stack: add --call-stack=python

 CHECKS  oom: none, leaks: found, growth: not judged (needs 10 s of work),
         fragmentation: not judged (--analysis=fragmentation)

 next:  memscope-bpf peaks x
";
    assert_eq!(screen_of(&found, &end, Look::default()), expected);
}

/// Below the frames of a place stands what holds its blocks, and never at the cost of the place.
#[test]
fn holders_of_places() {
    let holder = |path: &str, blocks| HolderPath { path: path.to_owned(), is_sure: true, blocks };
    let place = |frame: &'static str, holders: Vec<HolderPath>| HeldPlace {
        pool: pools::PTA,
        each_bytes: None,
        stacks: python(&[frame, "serve.py(34): main"]),
        live: LiveSum { blocks: 512, size_bytes: 512 << 20 },
        looked_at_blocks: 40,
        holders,
        garbage_blocks: 0,
        unknown_blocks: 0,
        left_out: None,
    };
    let places = vec![
        place("serve.py(20): put", vec![holder("m.cache['k'][*]", 38), holder("m.b", 2), holder("m.c", 1)]),
        place("serve.py(9): log", vec![holder("m.log[*]", 40), holder("m.d", 1)]),
    ];
    let (not_looked_for, process_end_ns) = (None, None);
    let held =
        HeldBy { pid: 7, device: NPU0, looked_at: LookedAt::End, time_ns: 9, process_end_ns, not_looked_for, places };
    let sites = vec![growing("serve.py(20): put", 3.0), growing("serve.py(9): log", 1.0)];
    let text = screen(&[growth(sites, Vec::new()), held.into()]);
    let expected = "
     serve.py:20  put
     serve.py:34  main
     still held by: m.cache['k'][*]  (38 of 40)
     and by: m.b  (2 of 40)
 #2 ";
    assert!(text.contains(expected), "{text}");
    assert!(text.contains("     serve.py:9  log\n     still held by: m.log[*]  (40 of 40)\n TRY"), "{text}");
}

/// Of two devices each place names its own, and the table is of the one that grows: 4.50 GiB on each. The second place is of blocks
/// without stacks, in a trace that has them.
#[test]
fn growth_on_the_second_device() {
    let on = |device: Device, sites: Vec<GrowingSite>| {
        let Some(growth) = Growth::of(&growth(sites, Vec::new())).cloned() else { panic!("growth") };
        Finding::from(Growth { device, ..growth })
    };
    let unknown = Site { size_bytes: Some(1 << 20), ..site(Stacks::default()) };
    let sites = vec![growing("serve.py(20): put", 2048.0), GrowingSite { site: Some(unknown), ..growing("", 1024.0) }];
    let found = [
        on(NPU0, Vec::new()),
        on(Device::Npu(1), sites),
        ledger_on(NPU0, Moment::End),
        ledger_on(Device::Npu(1), Moment::End),
    ];
    let text = screen(&found);
    let places = "
 #1  7.03 MiB an hour   67 %  40.00 MiB in 40 blocks  npu:1  ▁▂▃▅▆█
     serve.py:20  put
     serve.py:34  main
 #2  3.52 MiB an hour   33 %  40.00 MiB in 40 blocks  npu:1  ▁▂▃▅▆█
     blocks of 1.00 MiB of PyTorch pool; no call stack
 TRY  Bound the list, cache or request state that keeps these blocks

 MEMORY AT THE END, npu:1
";
    assert!(text.contains(places), "{text}");
    assert!(
        text.contains("   = all                             4.50 GiB\n   other devices: npu:0 4.50 GiB\n"),
        "{text}"
    );
}

/// Blocks from before the attach have no call stack, but a purpose: two, and the rest of 32 blocks, which is 3 MiB and 300 KiB.
#[test]
fn memory_from_before_the_attach() {
    let sum = |held_as, blocks, size_bytes| FoundSum { held_as, live: LiveSum { blocks, size_bytes } };
    let purposes = vec![
        sum(Some(HeldAs::OptimizerState), 4, 24 << 30),
        sum(None, 2, 3 << 20),
        sum(Some(HeldAs::Weight), 25, 200 << 10),
    ];
    let older = StackSum { live_blocks: 32, live_bytes: (24 << 30) + (3 << 20) + (500 << 10), ..StackSum::default() };
    let known = StackSum { stacks: python(&["serve.py(3): put"]), live_blocks: 1, live_bytes: 512, ..older };
    let of = |found: &[FoundSum]| {
        let (sums, found) = (vec![older, known], found.to_vec());
        screen(&[Finding::ByStack(ByStack { pid: 1, device: NPU0, pool: pools::PTA, sums, found, left_out: 0 })])
    };
    let text = of(&purposes);
    let places = "
 HELD THE MOST
 #1  24.00 GiB in 32 blocks  100 %  ██████████████████
     from before: optimizer_state 24.00 GiB, weight 200.00 KiB, others 3.29 MiB
 #2  512 bytes in 1 block    0 %  █
     serve.py:3  put
";
    assert!(text.contains(places), "{text}");
    let text = of(&purposes[1..2]);
    assert!(text.contains("\n     from before the attach: no purpose is known\n"), "{text}");
    let text = of(&[]);
    assert!(text.contains("\n     blocks of PyTorch pool; no call stack"), "{text}");
}

/// A framework's own threads run no Python: the page says how their blocks get a call stack.
#[test]
fn memory_of_threads_without_python() {
    let stacks = Stacks { python: Some(Stack::keep([], StackEnd::NotPython)), ..Stacks::default() };
    let sums = vec![StackSum { stacks, live_blocks: 2, live_bytes: 4 << 20, ..StackSum::default() }];
    let text = screen(&[Finding::ByStack(ByStack {
        pid: 1,
        device: NPU0,
        pool: pools::PTA,
        sums,
        found: vec![],
        left_out: 0,
    })]);
    let place = "
     blocks of PyTorch pool; no call stack: no Python; try --call-stack=c
";
    assert!(text.contains(place), "{text}");
}

/// Of the 1 GiB that the pool had cached at the peak 512 MiB waited for streams: a part, not added. At another moment it is not said, nor more than is cached.
#[test]
fn memory_that_waits_for_streams() {
    let waits = |pool_peak_bytes: u64| -> Finding {
        Waits {
            pid: 7,
            device: NPU0,
            pool: pools::PTA,
            reserved_peak_bytes: 4 << 30,
            reserved_peak_time_ns: 30_000_000_000,
            all: WaitSum { blocks: 9, pool_peak_blocks: 2, pool_peak_bytes, ..WaitSum::default() },
            places: Vec::new(),
            places_left_out: 0,
            places_full: false,
            confidence: Confidence::Certain,
        }
        .into()
    };
    let expected = "\
   PyTorch pool, cached              1.00 GiB  22.2 %  ████
     waiting for streams           512.00 MiB  11.1 %  ██
   runtime                         512.00 MiB  11.1 %  ██
   = all                             4.50 GiB
";
    let shown = screen(&[ledger(Moment::Peak), waits(1 << 29)]);
    assert!(shown.contains(expected), "{shown}");
    for (moment, bytes) in [(Moment::End, 1 << 29), (Moment::Peak, (1 << 30) + 512)] {
        let shown = screen(&[ledger(moment), waits(bytes)]);
        assert!(shown.contains("cached") && !shown.contains("waiting for streams"), "{shown}");
    }
}

/// Rates are of an hour, shares of the sum of rates (3 to 1), memory is counted once.
#[test]
fn growth_of_a_server() {
    let mib = 1_048_576.0;
    let sites = vec![growing("serve.py(20): put", mib), growing("/a/site-packages/torch/nn.py(1): f", 3.0 * mib)];
    let expected = "\
memscope-bpf · pid 7 · npu:0 · 30.0 s · nothing lost

 ✗ GROWING  14.06 GiB more an hour, at 2 places

 #1  10.55 GiB an hour   75 %  40.00 MiB in 40 blocks  ▁▂▃▅▆█
     serve.py:34  main
 #2  3.52 GiB an hour   25 %  40.00 MiB in 40 blocks  ▁▂▃▅▆█
     serve.py:20  put

 MEMORY AT THE END, npu:0
   PyTorch pool, in use              3.00 GiB  66.7 %  ████████████
     from before the attach          1.00 GiB  22.2 %  ████
   PyTorch pool, cached              1.00 GiB  22.2 %  ████
   runtime                         512.00 MiB  11.1 %  ██
   = all                             4.50 GiB

 CHECKS  oom: not judged (no analysis of it), leaks: not judged (no steps were
         marked), growth: found, fragmentation: not judged (no pool was seen)

 next:  memscope-bpf peaks x
";
    let found = [growth(sites, Vec::new()), ledger(Moment::End)];
    let screen = screen(&found);
    assert_eq!(screen.lines().take(4).collect::<Vec<_>>(), expected.lines().take(4).collect::<Vec<_>>());
    let memory =
        |text: &str| text.lines().skip_while(|line| !line.contains("MEMORY")).take(6).collect::<Vec<_>>().join("\n");
    assert_eq!(memory(&screen), memory(expected));
    assert!(
        screen.contains(" #1  10.55 GiB an hour   75 %  40.00 MiB in 40 blocks  ▁▂▃▅▆█\n     serve.py:34  main\n"),
        "{screen}"
    );
    assert!(screen.contains(" #2  3.52 GiB an hour   25 %"), "{screen}");
    let shown: Vec<&str> = screen.lines().skip(2).take_while(|line| !line.starts_with(" TRY")).collect();
    assert!(shown.len() == 6 && in_pages(&shown.join("\n"), &GROWTH_PAGES), "{screen}");
}

/// An increase is undecided, and without any the answer is not found; a short run is not judged.
#[test]
fn three_answers() {
    let undecided = screen(&[growth(Vec::new(), vec![increase()])]);
    assert!(undecided.contains("\n ? UNDECIDED  1 place increased, too little to call it a leak\n"), "{undecided}");
    assert!(undecided.contains(" #1  +3.00 MiB in 3 blocks, 9 live\n     a.py:3  f\n"), "{undecided}");
    assert!(undecided.contains("growth: undecided"), "{undecided}");
    let nothing = screen(&[growth(Vec::new(), Vec::new())]);
    assert!(nothing.contains("\n ✓ NOTHING FOUND  no growth; leaks by steps were not judged\n"), "{nothing}");
    let Finding::Growth(judged) = growth(Vec::new(), Vec::new()) else { panic!("no growth") };
    let bounded = Growth { undetectable_bytes_per_hour: Some(3 << 20), ..judged.clone() };
    let bounded = screen(&[bounded.into()]);
    assert!(bounded.contains("FOUND  growth below 3.00 MiB an hour cannot be excluded\n"), "{bounded}");
    let short = Growth { judged: false, not_judged: Some(NotJudged::TooShort), ..judged };
    let short = screen(&[short.into()]);
    assert!(short.contains("\n ? NOT JUDGED  steps or 10 s of work"), "{short}");
    assert!(screen(&[]).contains("NOT JUDGED  no device memory was seen\n"));
}

/// Where no block is selected, nothing is said of leaks and growth; what was found of the whole run stays.
#[test]
fn no_block_is_selected() {
    let selected = |findings: &[Finding]| {
        screen_of(findings, &RunEnd { nothing_selected: true, ..RunEnd::default() }, Look::default())
    };
    let growth = selected(&[growth(Vec::new(), Vec::new())]);
    assert!(growth.contains("\n ? NOT JUDGED  no blocks match --filter, --since and --until\n"), "{growth}");
    assert!(growth.contains("growth: not judged (no block is selected)"), "{growth}");
    assert!(selected(&[]).contains("NOT JUDGED  no blocks match --filter, --since and --until\n"));
    assert!(selected(&[oom(2 << 30, 1 << 30)]).contains("OUT OF MEMORY"));
}

fn oom(size_bytes: u64, largest_free_bytes: u64) -> Finding {
    let place = |frame, blocks, size_bytes| PlaceSum { stacks: python(&[frame]), live: LiveSum { blocks, size_bytes } };
    let groups = LiveGroups {
        places: vec![place("kv.py(4): kv", 12, 768 << 20), place("w.py(3): load", 16, 256 << 20)],
        ..LiveGroups::default()
    };
    let pool = PoolAtOom {
        pool: pools::PTA,
        used_bytes: 1 << 30,
        reserved_bytes: Some((1 << 30) + (100 << 20)),
        largest_free_bytes: Some(largest_free_bytes),
        groups,
        live: LiveSum { blocks: 28, size_bytes: 1 << 30 },
        places_left_out: 0,
    };
    Oom {
        pid: 7,
        tid: 8,
        device: NPU0,
        time_ns: 13_300_000_000,
        function: None,
        size_bytes,
        stacks: python(&["oom.py(6): prefill"]),
        attempts: 2,
        retries: Vec::new(),
        cause: Cause::of(pools::HAL, size_bytes, std::slice::from_ref(&pool)),
        pools: vec![pool],
        unused_bytes: 100 << 20,
        missing_bytes: size_bytes.saturating_sub(100 << 20),
        late: false,
        recent: Vec::new(),
        top: Vec::new(),
        last_events: Vec::new(),
    }
    .into()
}

/// Fragmented, full, or free and not used; holders by share of the live memory (768 MiB of 1 GiB).
#[test]
fn out_of_memory() {
    let fragmented = screen(&[oom(32 << 20, 2 << 20)]);
    let expected = "
 ✗ OUT OF MEMORY  32.00 MiB asked for at 12.3 s, 2 attempts
   CAUSE    fragmentation: 100.00 MiB is cached in pieces, largest 2.00 MiB
   ASKED    oom.py:6  prefill
   ADVICE   PYTORCH_NPU_ALLOC_CONF=expandable_segments:True, unless in force

 #1  768.00 MiB in 12 blocks   75 %  ██████████████
     kv.py:4  kv
 #2  256.00 MiB in 16 blocks   25 %  █████
     w.py:3  load

 MEMORY AT THE FAILED REQUEST (12.3 s), npu:0
   PyTorch pool, in use              1.00 GiB  91.1 %  ████████████████
   PyTorch pool, cached            100.00 MiB   8.9 %  ██
   = all                             1.10 GiB
";
    assert!(fragmented.contains(expected), "{fragmented}");
    let (shown, _) = expected.split_once("\n MEMORY").expect("two parts");
    assert!(in_pages(shown, &OUT_OF_MEMORY_PAGES));
    let full = screen(&[oom(200 << 20, 2 << 20)]);
    assert!(full.contains("CAUSE    up to 100.00 MiB is missing, even without the cache (100.00 MiB)\n"), "{full}");
    assert!(!full.contains("ADVICE"), "{full}");
    let kept = screen(&[oom(2 << 20, 2 << 20)]);
    assert!(kept.contains("CAUSE    a free piece of 2.00 MiB was not given"), "{kept}");
}

/// A further process has the bytes behind its verdict, and else its memory where that was counted.
#[test]
fn further_processes() {
    let of = |pid, finding| match finding {
        Finding::Growth(growth) => Finding::from(Growth { pid, ..growth }),
        Finding::Ledger(ledger) => Ledger { pid, ..ledger }.into(),
        other => other,
    };
    let found = [
        growth(vec![growing("x.py(1): f", 1.0)], Vec::new()),
        of(8, growth(Vec::new(), vec![increase()])),
        of(9, growth(Vec::new(), Vec::new())),
        of(10, growth(Vec::new(), Vec::new())),
        of(10, ledger(Moment::End)),
    ];
    let text = screen(&found);
    assert!(text.contains("\n pid 8: undecided, 3.00 MiB at 1 place\n"), "{text}");
    assert!(text.contains("\n pid 9: nothing found\n"), "{text}");
    assert!(text.contains("\n pid 10: nothing found, 4.50 GiB\n"), "{text}");
}

/// However many places and processes: 24 lines, none wider than the terminal, and the next command is there.
#[test]
fn a_screen_has_24_lines() {
    let sites: Vec<GrowingSite> =
        (0..40).map(|number| growing("a_very_long_file_name.py(1): f", f64::from(number))).collect();
    let mut findings = vec![growth(sites, Vec::new()), ledger(Moment::End), ledger(Moment::Peak)];
    for pid in 100..120 {
        let Finding::Growth(other) = growth(Vec::new(), Vec::new()) else { panic!("no growth") };
        findings.push(Growth { pid, ..other }.into());
    }
    for width in [60, 80, 120] {
        let end = RunEnd { time_ns: 30_000_000_000, ..RunEnd::default() };
        let text = screen_of(&findings, &end, Look { width, unicode: true });
        assert!(text.lines().count() <= 24, "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
        assert!(text.contains("memscope-bpf peaks x") && text.contains("more places"), "{text}");
    }
}

/// Only lost events make figures doubtful; calls without a stack have a line of their own.
#[test]
fn losses_of_memory_and_of_stacks() {
    let screen = |losses: &[(u64, &'static [Figures])]| {
        let line = |(count, touches): &(u64, &'static [Figures])| LossLine {
            layer: "hal".to_owned(),
            symbol: "halMemAlloc".to_owned(),
            reason: "any".to_owned(),
            count: *count,
            touches: (*touches).into(),
        };
        let end = RunEnd { losses: losses.iter().map(line).collect(), ..RunEnd::default() };
        screen_of(&[growth(Vec::new(), Vec::new())], &end, Look::default())
    };
    let stacks: (u64, &[Figures]) = (40, &[Figures::Owners, Figures::Stacks]);
    let shown = screen(&[stacks]);
    assert!(shown.lines().next().is_some_and(|line| line.ends_with("· no memory event lost")), "{shown}");
    assert!(shown.contains("\n     no whole call stack of 40 calls: places may miss blocks\n"), "{shown}");
    let shown = screen(&[stacks, (2, &[Figures::Memory])]);
    assert!(shown.lines().next().is_some_and(|line| line.ends_with("· 2 events lost: figures may be off")), "{shown}");
    assert!(!screen(&[(2, &[Figures::Memory])]).contains("call stack"));
}

/// A program's own strings reach no terminal as commands, and ASCII is ASCII.
#[test]
fn hostile_frames_are_clean() {
    let found = [growth(vec![growing("x\u{1b}[31m\u{202e}.py(1): f\u{9b}", 1.0)], Vec::new())];
    let text = screen(&found);
    assert!(!text.contains(['\u{1b}', '\u{202e}', '\u{9b}']), "{text:?}");
    let plain = screen_of(
        &[growth(vec![growing("a.py(1): f", 1.0)], Vec::new())],
        &RunEnd::default(),
        Look { width: 80, unicode: false },
    );
    assert!(plain.contains("\n x GROWING") && plain.contains("  0 8 16 24 32 40\n"), "{plain}");
}

/// The first advice of the most urgent card: a setting behind the cause, any other below the places, and a setting in
/// force not at all.
#[test]
fn advice_of_the_cards() {
    let full = screen(&[oom(200 << 20, 2 << 20)]);
    assert!(
        full.contains("     w.py:3  load\n TRY  Ask for less at this place: a smaller batch, length or bucket\n\n"),
        "{full}"
    );
    let grows = screen(&[growth(vec![growing("serve.py(20): put", 1.0)], Vec::new())]);
    assert!(grows.contains("     serve.py:34  main\n TRY  Bound the list, cache or request state"), "{grows}");
    let setting = Setting { name: "PYTORCH_NPU_ALLOC_CONF", value: "expandable_segments:True".to_owned() };
    let in_force = screen(&[oom(32 << 20, 2 << 20), Settings { pid: 7, settings: vec![setting] }.into()]);
    assert!(!in_force.contains("ADVICE") && !in_force.contains("TRY"), "{in_force}");
    assert!(!screen(&[growth(Vec::new(), Vec::new())]).contains("TRY"));
}

/// Who owned the blocks at the peak: the largest first, the rest in one row. 32 + 16 + 16 + 8 + 5 + 2 + 1 = 80.
#[test]
fn owners_at_the_peak() {
    let row = |(label, mib): (&str, u128)| MemoryRow { label: label.to_owned(), size_bytes: mib << 20, is_part: false };
    let all = [
        ("optimizer_state", 32),
        ("weight", 16),
        ("gradient", 16),
        ("activation", 8),
        ("input", 5),
        ("temporary", 2),
        ("unknown", 1),
    ];
    let table = OwnersTable {
        device: NPU0,
        pool: pools::PTA,
        time_ns: 8_000_000_000,
        rows: all.map(row).into(),
        total_bytes: 80 << 20,
    };
    let mut page = Page { look: Look::default(), lines: Vec::new() };
    write_owners(&mut page, &table, &RunEnd::default());
    let text: String = page.lines.iter().flatten().map(|piece| piece.text.as_str()).collect::<Vec<_>>().join("\n");
    let expected = " OWNERS AT THE PEAK OF THE PyTorch pool (8.0 s), npu:0
   optimizer_state                  32.00 MiB  40.0 %  ███████
   weight                           16.00 MiB  20.0 %  ████
   gradient                         16.00 MiB  20.0 %  ████
   activation                        8.00 MiB  10.0 %  ██
   input                             5.00 MiB   6.2 %  █
   2 more owners (-v)                3.00 MiB   3.8 %  █
   = all                            80.00 MiB";
    assert_eq!(text, expected);
    assert!(in_pages(expected, &TRAINING_PAGES));
}

/// A helper that two places share names neither: the frame behind it does. What all frames of a place share with another is kept.
#[test]
fn helpers_are_passed_over() {
    let frame = |at: &str| UserFrame { at: at.to_owned(), function: "f".to_owned() };
    let frames = |all: &[&str]| all.iter().map(|at| frame(at)).collect::<Vec<_>>();
    let places = [frames(&["h:1", "a:2"]), frames(&["h:1", "b:3"]), frames(&["c:4"]), frames(&["h:1"])];
    let found: Vec<usize> = places.iter().map(|own| helpers(own, &places)).collect();
    assert_eq!(found, [1, 1, 0, 0]);
}
