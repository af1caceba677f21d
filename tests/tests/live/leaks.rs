//! The leak report, against the rule worked out again from the journal.

use std::collections::BTreeMap;

use memscope_tests::harness::expect::truth;
use memscope_tests::harness::journal::{Call, Journal};
use memscope_tests::harness::tracer::Tracer;

use super::shared::finding;

/// A block that is live at the end: address, bytes, its step, and the steps that ended after that one.
type Kept = (u64, u64, u32, u32);

/// What the rule says of a program with one process, one device and steps one after the other.
#[derive(Debug, Default)]
struct Verdict {
    leaks: Vec<Kept>,
    unjudged: Vec<Kept>,
    steps_ended: u32,
}

/// A block is of the step that started last before it. Blocks of the first step and before are never looked at. One
/// that the program does not free leaks if a later step has ended; if none has, it cannot be judged.
fn verdict(journal: &Journal) -> Verdict {
    let (mut step, mut ended) = (0, Vec::new());
    let mut open: Vec<Option<u32>> = Vec::new();
    let mut live: BTreeMap<u64, (u64, u32)> = BTreeMap::new();
    for entry in &journal.entries {
        match entry.call() {
            Call::RangeStart(text, _) => {
                let is_step = text.is_some_and(|(text, _)| text == b"step start");
                step += u32::from(is_step);
                open.push(is_step.then_some(step));
            }
            Call::RangeEnd(_) => ended.extend(open.pop().flatten()),
            Call::Alloc { size, addr, .. } => drop(live.insert(addr, (size, step))),
            Call::Free { addr, ok: Some(true) } => drop(live.remove(&addr)),
            _ => {}
        }
    }
    let mut verdict = Verdict { steps_ended: ended.len() as u32, ..Verdict::default() };
    for (addr, (size, step)) in live.into_iter().filter(|(_, (_, step))| *step > 1) {
        let survived = ended.iter().filter(|ended| **ended > step).count() as u32;
        let list = if survived > 0 { &mut verdict.leaks } else { &mut verdict.unjudged };
        list.push((addr, size, step, survived));
    }
    verdict.leaks.sort_by_key(|(addr, _, step, _)| (*step, *addr));
    verdict
}

/// C's `%g`: six digits that count.
fn general(value: f64) -> String {
    let whole = format!("{value:.0}").trim_start_matches('0').len();
    let text = format!("{value:.*}", 6_usize.saturating_sub(whole.max(1)));
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn mega(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// The lines about leaks, as msMemScope writes them.
fn report(verdict: &Verdict) -> String {
    if verdict.leaks.is_empty() {
        return String::new();
    }
    let head = "====== ERROR: Detected memory leaks on device 0 ======\n".to_owned();
    let lines = verdict.leaks.iter().map(|(addr, size, step, _)| {
        let size = mega(*size);
        format!("Direct Hal memory leak of {size:.6} Mb(s) at {addr:#x} in kernel_0 at step {step}.\n")
    });
    let lines: Vec<String> = lines.collect();
    let total = general(mega(verdict.leaks.iter().map(|leak| leak.1).sum()));
    let count = verdict.leaks.len();
    head + &lines.concat() + &format!("====== SUMMARY: {total} Mb(s) leaked in {count} allocation(s) ======\n")
}

/// Leaks, their steps and bytes, what cannot be judged, and the text of the report, for many shapes of training loops.
#[test]
fn leaks_of_steps() {
    let variants: [(&[&str], usize, usize, bool); 8] = [
        // Steps 2 to 4 leak, the last one is open.
        (&[], 3, 1, true),
        (&["--steps", "30", "--leaks", "3", "--leak-size", "100000"], 28 * 3, 3, true),
        (&["--steps", "8", "--first-leak", "5"], 3, 1, true),
        // Blocks freed two steps later are none; those of the last two steps stay: one outlived its step, one is open. Of two steps nothing is
        // concluded.
        (&["--steps", "8", "--free-later", "2"], 1, 1, false),
        (&["--steps", "6", "--nested", "4"], 4, 1, true),
        // The last step does not end: those of the last two are open, or were never judged.
        (&["--steps", "6", "--hold-last"], 3, 2, true),
        (&["--leaks", "0"], 0, 0, false),
        (&["--steps", "1"], 0, 0, false),
    ];
    for (arguments, leaks, unjudged, accused) in variants {
        let text = Tracer::run("steps", arguments).option("--leak-blocks").succeed();
        let expected = verdict(&text.journal());
        assert_eq!((expected.leaks.len(), expected.unjudged.len()), (leaks, unjudged), "{arguments:?}: {expected:?}");
        let found = text.stdout.lines().filter(|line| line.starts_with("======") && !line.starts_with("======="));
        let found = found.clone().count() + text.stdout.lines().filter(|line| line.starts_with("Direct ")).count();
        assert_eq!(found, report(&expected).lines().count(), "{arguments:?}: {}", text.said());
        assert!(text.stdout.contains(&report(&expected)), "{arguments:?}: {}\n{}", report(&expected), text.said());
        let is_open = text.stdout.contains("Not judged on device 0: ");
        assert_eq!(is_open, unjudged > 0, "{arguments:?}: {}", text.said());
        // The same by place, from the capture: there is one, since all blocks have one size.
        let places = Tracer::replay(&text.folder.capture()).succeed();
        assert!(!places.stdout.contains("Direct "), "{}", places.said());
        let bytes: u64 = expected.leaks.iter().map(|leak| leak.1).sum();
        let blocks = if leaks == 1 { "1 block of 1 place".to_owned() } else { format!("{leaks} blocks of 1 place") };
        for (start, end, is_said) in
            [("Leaks of steps", "", accused), ("Undecided", " outlived their steps", leaks > 0 && !accused)]
        {
            let line = places.stdout.lines().find(|line| line.starts_with(&format!("{start} on device 0: ")));
            assert_eq!(line.is_some(), is_said, "{arguments:?}: {}", places.said());
            let whole = |line: &str| line.ends_with(&format!(" ({bytes} bytes) in {blocks}{end}"));
            assert!(line.is_none_or(whole), "{arguments:?}: {}", places.said());
        }
        let clean = places.stdout.contains("No memory leaks detected on device 0");
        assert_eq!(clean, !accused, "{arguments:?}: {}", places.said());
    }
}

/// A list that keeps blocks of each step leaks, though the program frees it when it ends; a variable that keeps the last block is none.
/// The program's own journal knows how much it freed behind its last step.
#[test]
fn leaks_that_the_exit_frees() {
    let list =
        Tracer::run("steps", &["--steps", "12", "--leaks", "2", "--free-at-exit"]).option("--leak-blocks").succeed();
    assert_eq!(verdict(&list.journal()).leaks, [], "the program frees all");
    // Step 1 is a warm-up, step 12 the last. ACL asks for 32 bytes more than the program.
    let summary = "====== SUMMARY: 20.0006 Mb(s) leaked in 20 allocation(s) ======\n";
    assert!(list.stdout.contains(summary), "{}", list.said());
    assert!(
        list.stdout.contains("Not judged on device 0: 2 blocks, 2.00 MiB (2097216 bytes), live"),
        "{}",
        list.said()
    );
    // 24 of the program, and 3 of the runtime: 2166784 bytes, as its ledger has.
    let exit = "There the exit begins (exit, aclFinalize and the end of the process, with no work before): 27 blocks, 26.07 MiB (27333376";
    assert!(list.stdout.contains(exit), "{}", list.said());
    let held = "held at the end on device 0: nothing; freed by the exit: 26.07 MiB (27333376 bytes) in 27 blocks; peak";
    assert!(list.stdout.contains(held), "{}", list.said());

    // A handler that saves something at the exit changes nothing of it; its block was not held.
    let arguments = ["--steps", "12", "--leaks", "2", "--free-at-exit", "--exit-allocs", "1"];
    let saves = Tracer::run("steps", &arguments).option("--leak-blocks").succeed();
    assert!(saves.stdout.contains(summary) && saves.stdout.contains(exit), "{}", saves.said());

    let latest = Tracer::run("steps", &["--steps", "12", "--free-later", "1", "--free-at-exit"]).succeed();
    assert!(latest.stdout.contains("No memory leaks detected on device 0 (12 steps ended)."), "{}", latest.said());
    assert!(
        latest.stdout.contains("Kept on device 0: 1 block, 1.00 MiB (1048608 bytes), of steps"),
        "{}",
        latest.said()
    );
}

/// The same in numbers, exactly.
#[test]
fn leaks_as_json() {
    for arguments in [&["--steps", "12", "--leaks", "5"][..], &["--steps", "9", "--free-later", "3", "--nested", "2"]] {
        let run = Tracer::run("steps", arguments).option("--json").succeed();
        let journal = run.journal();
        let expected = verdict(&journal);
        let (pid, entries) = journal.by_process().pop_first().expect("a process");
        let leaks = finding(&run, "step_leaks", pid, 0);
        let kept = |list: &str| -> Vec<Kept> {
            let number = |leak: &serde_json::Value, key: &str| leak[key].as_u64().expect("a number");
            let list = leaks[list].as_array().expect("blocks").iter();
            let kept = list.map(|leak| {
                let (step, survived) = (number(leak, "step") as u32, number(leak, "survived_steps") as u32);
                (number(leak, "addr"), number(leak, "size_bytes"), step, survived)
            });
            kept.collect()
        };
        assert_eq!(kept("leaks"), expected.leaks, "{arguments:?}");
        assert_eq!(kept("unjudged"), expected.unjudged, "{arguments:?}");
        assert_eq!(leaks["steps_ended"], expected.steps_ended, "{arguments:?}");
        assert_eq!(leaks["confidence"], "certain", "{arguments:?}");
        let held = finding(&run, "held", pid, 0);
        let truth = truth(&entries, false);
        assert_eq!(held["blocks"], truth.held.len(), "{arguments:?}");
        assert_eq!(held["size_bytes"], truth.held.iter().map(|block| block.size).sum::<u64>(), "{arguments:?}");
    }
}

/// Without marked steps the report says so, and how to mark them.
#[test]
fn no_steps_no_leaks() {
    let run = Tracer::run("exits", &["--how", "return"]).succeed();
    assert!(run.stdout.contains("No steps were marked"), "{}", run.said());
    assert!(!run.stdout.contains("ERROR"), "{}", run.said());
}
