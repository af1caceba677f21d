//! What ids of stacks become.

use super::*;
use crate::model::{Kept, Stack, StackEnd, Stacks};

const NPU: u64 = device(0);

/// Frames of a stack, and why it ends.
fn shown(stack: Option<Stack>) -> Option<(Vec<&'static str>, StackEnd)> {
    stack.map(|stack| (stack.texts(), stack.end()))
}

fn stacks_of(records: &[Vec<u8>]) -> Vec<Stacks> {
    events(records).iter().map(|event| event.stacks).collect()
}

fn native(records: &[Vec<u8>]) -> Vec<Option<(Vec<&'static str>, StackEnd)>> {
    stacks_of(records).into_iter().map(|stacks| shown(stacks.native)).collect()
}

fn python(records: &[Vec<u8>]) -> Vec<Option<Vec<&'static str>>> {
    stacks_of(records).into_iter().map(|stacks| stacks.python.map(Stack::texts)).collect()
}

const SYMBOLS: &[(u64, &str, u64, &str, u64)] = &[
    (0x1010, "app", 0x10, "f(int)", 0x10),
    (0x1020, "app", 0x20, "", 0),
    (0x2000, "libascend_hal.so", 0, "halMemFree", 4),
];

/// A return is seen when the function has gone: it is named by the row. An entry is in the function.
#[test]
fn native_stacks_of_entry_and_return() {
    let records = [
        main(1).symbols(1, SYMBOLS),
        main(1).native(5, 1, &[0x1010, 0x1020, 0x9999], StackEnd::Root),
        Who::stacked(main(1).alloc(0x10, 1, NPU), 5, 0),
        main(2).native(6, 1, &[0x2000, 0x1010], StackEnd::Depth),
        Who::stacked(main(2).free(0x10), 6, 0),
        main(3).alloc(0x20, 1, NPU),
    ];
    let caller = "app(f(int)+0x10) [0x1010]";
    let alloc = vec!["halMemAlloc", caller, "app(+0x20) [0x1020]", "[0x9999]"];
    let free = vec!["libascend_hal.so(halMemFree+0x4) [0x2000]", caller];
    assert_eq!(native(&records), [Some((alloc.clone(), StackEnd::Root)), Some((free, StackEnd::Depth)), None, None]);
    // The block remembers where it came from, also where its end was not seen.
    for event in events(&records) {
        let EventKind::Free(Free { block, cause, .. }) = event.kind else { continue };
        let expected = (cause == FreeCause::Program).then(|| (alloc.clone(), StackEnd::Root));
        assert_eq!(shown(block.stacks.native), expected);
    }
}

/// A function with a probed return instruction is still on the stack.
#[test]
fn own_returns_are_on_the_stack() {
    let symbol = rows().into_iter().find(|row| row.own_return).expect("such a row").symbol;
    let records = [
        main(1).native(5, 1, &[0x1010], StackEnd::Root),
        Who::stacked(main(1).returned(&symbol, 0x10, &[64, 0, 0, 0]), 5, 0),
    ];
    assert_eq!(native(&records)[0], Some((vec!["[0x1010]"], StackEnd::Root)));
}

/// Records of different processors may come in any order: an id is looked up when it is needed.
#[test]
fn late_frames_are_found() {
    let call = Who::stacked(main(5).alloc(0x10, 1, NPU), 5, 6);
    let records = [
        call,
        main(4).python(6, 1, &[(0xc0, 2, 3)], StackEnd::Root),
        main(4).native(5, 1, &[0x1010], StackEnd::Root),
        main(3).symbols(1, SYMBOLS),
        main(3).code((0xc0, 3), "a.py", "f", &[]),
    ];
    let Stacks { native, python, .. } = stacks_of(&records)[0];
    assert_eq!(shown(native), Some((vec!["halMemAlloc", "app(f(int)+0x10) [0x1010]"], StackEnd::Root)));
    assert_eq!(shown(python), Some((vec!["a.py(?): f"], StackEnd::Root)));
}

/// Lost frames are shown as lost, and counted.
#[test]
fn lost_frames_are_shown() {
    let (mut pipeline, seen, _written) = tapped(config());
    pipeline.feed(&Who::stacked(main(1).alloc(0x10, 1, NPU), 5, 6)).expect("fed");
    let outcome = pipeline.finish(&[]);
    let Stacks { native, python, .. } = seen.try_iter().next().expect("an event").stacks;
    assert_eq!(native.map(Stack::texts), Some(vec!["halMemAlloc", "<lost>"]));
    assert_eq!(python.map(Stack::texts), Some(vec!["<lost>"]));
    let lost: Vec<_> = outcome.end.losses.iter().map(|loss| (loss.reason.as_str(), loss.count)).collect();
    assert_eq!(lost, [("stack without its frames", 2)]);
}

/// Each call with a stack that ends early counts. Not: the requested depth, a thread without Python, one interpreter of
/// several.
#[test]
fn stacks_that_end_early_are_counted() {
    let (mut pipeline, _seen, _written) = tapped(config());
    let ends = [
        (StackEnd::NoRule, StackEnd::Root),
        (StackEnd::Root, StackEnd::NotPython),
        (StackEnd::Depth, StackEnd::OneOfSeveral),
        (StackEnd::NoRule, StackEnd::BadState),
        (StackEnd::Busy, StackEnd::Depth),
    ];
    for (id, (native, python)) in (1..).zip(ends) {
        let records = [main(id).native(id, 1, &[0x1010], native), main(id).python(100 + id, 1, &[], python)];
        let call = Who::stacked(main(id).alloc(id << 12, 1, NPU), id, 100 + id);
        pipeline.feed(&[records.concat(), call].concat()).expect("fed");
    }
    let cut: Vec<_> = pipeline.finish(&[]).end.cut_stacks;
    let cut: Vec<_> = cut.iter().map(|cut| (cut.kind, cut.reason, cut.count)).collect();
    let expected = [
        ("C", "no unwind rule at hand", 2),
        ("C", "too many stacks at a time", 1),
        ("Python", "the interpreter's state is not understood", 1),
    ];
    assert_eq!(cut, expected);
}

/// A child has its parent's code objects until either makes others; another program has none.
#[test]
fn code_objects_belong_to_a_process() {
    let stack = |who: Who, id| {
        [who.python(id, id, &[(0xc0, 2, 3)], StackEnd::Root), Who::stacked(who.alloc(id, 1, NPU), 0, id)].concat()
    };
    let records = [
        main(1).code((0xc0, 3), "a.py", "f", &[]),
        stack(main(2), 1),
        main(3).fork(9),
        stack(at(4, 9, 9), 2),
        at(5, 9, 9).code((0xc0, 3), "b.py", "g", &[]),
        stack(at(6, 9, 9), 3),
        stack(main(7), 4),
        main(8).exec(),
        stack(main(9), 5),
        main(10).code((0xc0, 3), "c.py", "h", &[]),
        Who::stacked(main(11).alloc(0x99, 1, NPU), 0, 5),
        // Two processes with the same id.
        at(12, 9, 9).alloc(0x98, 1, NPU),
        Who::stacked(at(13, 9, 9).alloc(0x97, 1, NPU), 0, 1),
    ];
    let files: Vec<_> = python(&records).into_iter().flatten().map(|frames| frames[0]).collect();
    let (a, b) = ("a.py(?): f", "b.py(?): g");
    assert_eq!(files, [a, a, b, a, "<unknown code>", "c.py(?): h", b]);
}

/// Names in code objects have one, two or four bytes for each character; a cut one is marked.
#[test]
fn names_of_any_script() {
    let mut wide = main(1).code((0xc0, 3), "a.py", "\u{44}\u{4}", &[]);
    // Two bytes for each character of the name: one character, U+0444. The file's is cut.
    wide[24 + 17] = 2;
    wide[24 + 19] = memscope_common::stack::CODE_FILE_CUT;
    let records =
        [wide, main(2).python(6, 1, &[(0xc0, 2, 3)], StackEnd::Root), Who::stacked(main(2).alloc(0x10, 1, NPU), 0, 6)];
    assert_eq!(python(&records)[0], Some(vec!["a.py…(?): ф"]));
}

/// Threads without Python have a stack that says so, and others of the same id are not mixed up with it.
#[test]
fn threads_without_python() {
    let records = [main(1).python(6, 1, &[], StackEnd::NotPython), Who::stacked(main(2).alloc(0x10, 1, NPU), 6, 6)];
    let Stacks { native, python, .. } = stacks_of(&records)[0];
    assert_eq!(shown(python), Some((vec![], StackEnd::NotPython)));
    assert_eq!(native.map(Stack::texts), Some(vec!["halMemAlloc", "<lost>"]));
}

/// If requested, Python frames replace the interpreter's native ones.
#[test]
fn native_and_python_frames_in_one() {
    const EVAL: (u64, &str, u64, &str, u64) = (0x3000, "python3", 0x30, "_PyEval_EvalFrameDefault", 4);
    let records = [
        main(1).symbols(1, &[SYMBOLS, &[EVAL]].concat()),
        main(1).code((0xc0, 3), "a.py", "f", &[]),
        main(1).code((0xd0, 4), "a.py", "g", &[]),
        main(1).native(5, 1, &[0x1010, 0x3000, 0x1020], StackEnd::Root),
        // `g`, which C has called, has called `f`.
        main(1).python(6, 1, &[(0xc0, 2, 3), (0xd1, 2, 4)], StackEnd::Root),
        main(1).python(7, 1, &[(0xc1, 2, 3), (0xd1, 2, 4)], StackEnd::Root),
        Who::stacked(main(2).alloc(0x10, 1, NPU), 5, 6),
        Who::stacked(main(2).alloc(0x20, 1, NPU), 5, 7),
        Who::stacked(main(2).alloc(0x30, 1, NPU), 5, 6),
        Who::stacked(main(2).alloc(0x40, 1, NPU), 5, 0),
    ];
    let mixed = |mixed_stacks| {
        let (mut pipeline, seen, _written) = tapped(PipelineConfig { mixed_stacks, ..config() });
        pipeline.feed(&records.concat()).expect("fed");
        let _ = pipeline.finish(&[]);
        let is_alloc = |event: &Event| matches!(event.kind, EventKind::Alloc(_));
        seen.try_iter().filter(is_alloc).map(|event| shown(event.stacks.mixed)).collect::<Vec<_>>()
    };
    let both = (
        vec!["halMemAlloc", "app(f(int)+0x10) [0x1010]", "a.py(?): f", "a.py(?): g", "app(+0x20) [0x1020]"],
        StackEnd::Root,
    );
    assert_eq!(mixed(true), [Some(both.clone()), None, Some(both), None]);
    assert_eq!(mixed(false), [None, None, None, None]);
}

/// Rows of blocks when memory is out carry where those were allocated; the request's own, where it was made.
#[test]
fn blocks_at_the_end_of_memory() {
    let (mut pipeline, seen, _written) =
        tapped(PipelineConfig { dump: DumpFilter { oom_blocks: Some(1), ..DumpFilter::default() }, ..config() });
    let records = [
        main(1).native(5, 1, &[0x1010], StackEnd::Root),
        main(1).native(6, 1, &[0x1020], StackEnd::Root),
        Who::stacked(main(1).alloc(0x10, 1, NPU), 5, 0),
        Who::stacked(main(2).alloc_failed(6, 1 << 40, NPU), 6, 0),
        main(3).mark("gives up"),
        main(4).end(),
    ];
    pipeline.feed(&records.concat()).expect("fed");
    drop(pipeline.finish(&[]));
    let rows: Vec<_> = seen
        .try_iter()
        .filter(|event| matches!(event.kind, EventKind::OutOfMemory(_)))
        .map(|event| event.stacks.native.map(Stack::texts))
        .collect();
    let (block, request) = (Some(vec!["halMemAlloc", "[0x1010]"]), Some(vec!["halMemAlloc", "[0x1020]"]));
    assert_eq!(rows, [request, block.clone(), block]);
}

/// With rules, blocks have owners: those of their module, and those of their stacks. Without, they have none.
#[test]
fn blocks_have_owners() {
    use crate::analyses::decompose::RuleSet;
    let rules = r#"{"rules": [{"name": "mine", "component": "mine", "pools": ["HAL"], "native": ["app: f(int)"]}]}"#;
    let records = [
        main(1).symbols(1, SYMBOLS),
        main(1).native(5, 1, &[0x1010], StackEnd::Root),
        Who::stacked(main(1).alloc(0x10, 1, 3 << 56 | 1 << 10), 5, 0),
        main(2).alloc(0x20, 1, 3 << 56 | 1 << 10),
        main(3).free(0x10),
    ];
    let owners = |owners: Option<Arc<RuleSet>>| -> Vec<Option<&'static str>> {
        let (mut pipeline, seen, _written) = tapped(PipelineConfig { owners, ..config() });
        pipeline.feed(&records.concat()).expect("fed");
        drop(pipeline.finish(&[]));
        let owner = |event: Event| match event.kind {
            EventKind::Alloc(Alloc { block, .. }) | EventKind::Free(Free { block, .. }) => {
                Some(block.owner.map(Name::as_str))
            }
            _ => None,
        };
        seen.try_iter().filter_map(owner).collect()
    };
    let mine = Some("CANN@HCCL@mine");
    let rules = Arc::new(RuleSet::of_text(rules).expect("valid"));
    assert_eq!(owners(Some(rules)), [mine, Some("CANN@HCCL"), mine, Some("CANN@HCCL")]);
    assert_eq!(owners(None), [None; 4]);
}

/// A trace that sees ever new stacks gives those back that no live block has: each event has its frames when it comes, and a block that stays
/// has them at its end. A table that is not renewed is full after a few.
#[test]
fn stacks_in_use_outlive_the_others() {
    const STAYS: u64 = 1;
    const LAST: u64 = 60;
    let run = |renews_stacks| {
        let kept = Some(Kept::of_few(8));
        let (mut pipeline, seen, _written) = tapped(PipelineConfig { kept, renews_stacks, ..config() });
        let mut all = Vec::new();
        for id in STAYS..=LAST {
            let time = id * 1_000_000_000;
            let stack = main(time).native(id, 1, &[id], StackEnd::Root);
            let call = Who::stacked(main(time).alloc(id << 12, 1, NPU), id, 0);
            let freed = if id > STAYS + 1 { main(time + 1).free((id - 1) << 12) } else { Vec::new() };
            pipeline.feed(&[stack, call, freed].concat()).expect("fed");
            pipeline.advance(time + 900_000_000).expect("fed");
            all.extend(seen.try_iter().filter_map(|event| match event.kind {
                EventKind::Alloc(Alloc { block, .. }) | EventKind::Free(Free { block, .. }) => {
                    Some((block.addr >> 12, shown(block.stacks.native)?.0))
                }
                _ => None,
            }));
        }
        pipeline.feed(&main(LAST * 2_000_000_000).free(STAYS << 12)).expect("fed");
        // Owns the stacks.
        let _outcome = pipeline.finish(&[]);
        let ends = seen.try_iter().filter_map(|event| match event.kind {
            EventKind::Free(Free { block, cause: FreeCause::Program, .. }) => Some(block.stacks.native?.texts()),
            _ => None,
        });
        (all, ends.last())
    };
    let frames = |id: u64| vec!["halMemAlloc".to_owned(), format!("[{id:#x}]")];
    let (all, last) = run(true);
    assert_eq!(all.len() as u64, 2 * LAST - 2);
    for (id, found) in all {
        assert_eq!(found, frames(id), "{id}");
    }
    assert_eq!(last.expect("a free"), frames(STAYS));
    let (all, _) = run(false);
    assert!(all.iter().any(|(_, found)| found[..] == ["<not kept: too many different stacks>"]), "{all:?}");
}
