//! Native stacks are what the program's own unwinder says, frame for frame, or end early and say so.

use std::collections::{BTreeMap, HashMap};

use memscope::capture;
use memscope::decode::{Body, decode};
use memscope_tests::harness::tracer::{Run, Tracer};

/// Builds of one program by GCC.
pub(crate) const BUILDS: [&str; 6] = ["chains-O0", "chains-O2", "chains-O3", "chains-fp", "chains-lto", "chains-now"];

/// Ends of stacks, as captures have them.
pub(crate) const ROOT: u8 = 1;
const DEPTH: u8 = 2;
const NO_RULE: u8 = 4;
const NO_UNWIND_INFO: u8 = 5;

/// Where a block came from, by the program itself: it says so before it allocates.
#[derive(Debug)]
pub(crate) struct Truth {
    pub(crate) case: String,
    pub(crate) frames: Vec<u64>,
}

/// Where a block came from, by the capture.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) frames: Vec<u64>,
    pub(crate) end: u8,
    generation: u64,
}

pub(crate) type ByBlock<T> = BTreeMap<(u32, u64), T>;

/// The same by Clang.
pub(crate) fn by_clang(build: &str) -> String {
    build.replace("chains", "chains-clang")
}

/// Whether this kernel has the loops that walks need (Linux 5.17).
pub(crate) fn walks() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    let mut numbers = release.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(5), Some(17))
}

pub(crate) fn truths(stdout: &str) -> ByBlock<Truth> {
    let lines = stdout.lines().filter_map(|line| line.strip_prefix("stack "));
    let truths = lines.map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |word: &str| word.parse::<u64>().expect("a number");
        let address = |word: &&str| u64::from_str_radix(word.trim_start_matches("0x"), 16).expect("an address");
        let key = (u32::try_from(number(words[0])).expect("a process"), number(words[1]));
        (key, Truth { case: words[2].to_owned(), frames: words[3..].iter().map(address).collect() })
    });
    truths.collect()
}

/// All stacks of `halMemAlloc`.
fn taken(run: &Run) -> ByBlock<Taken> {
    taken_of(run, "halMemAlloc", 1)
}

/// All stacks of a function with the block's size as this value in its records; ends of stacks that were sent more than
/// once.
pub(crate) fn taken_of(run: &Run, symbol: &str, size_at: usize) -> ByBlock<Taken> {
    let mut reader = capture::Reader::open(&run.folder.capture()).expect("a capture");
    let row = reader.header().rows.iter().position(|row| row.symbol == symbol).expect("the row") + 1;
    let mut stacks: HashMap<u64, (Vec<u64>, u8, u64)> = HashMap::new();
    let mut found = ByBlock::new();
    while let Some(chunk) = reader.next_chunk().expect("readable") {
        let mut rest = chunk;
        while !rest.is_empty() {
            let record = decode(rest).expect("decodable");
            let len = usize::from(u16::from_le_bytes([rest[20], rest[21]]));
            let (tgid, of_row) = (u32::from_le_bytes([rest[8], rest[9], rest[10], rest[11]]), rest[18..20].to_vec());
            rest = &rest[len..];
            match record.body {
                Body::Stack(stack) => {
                    let frames = stack.frames.addresses().collect();
                    stacks.insert(stack.id.get(), (frames, stack.end as u8, stack.generation));
                }
                Body::Call(call) if of_row == (row as u16).to_le_bytes() => {
                    let size = call.values.get(size_at).expect("a size");
                    let id = call.native_stack.expect("a stack").get();
                    let (frames, end, generation) = stacks.get(&id).expect("sent before").clone();
                    found.insert((tgid, size), Taken { frames, end, generation });
                }
                _ => {}
            }
        }
    }
    found
}

/// Where the program's unwinder was called from, and where the allocator was: both in the same small function.
pub(crate) fn is_same_function(one: u64, other: u64) -> bool {
    one.abs_diff(other) < 1024
}

/// Every frame that is there is right. Gives each block's case, end, and how many frames are missing.
fn compare(run: &Run) -> Vec<(String, u8, usize)> {
    let (truths, taken) = (truths(&run.stdout), taken(run));
    assert!(!truths.is_empty(), "{}", run.said());
    let pairs = truths.iter().map(|(block, truth)| {
        let taken = taken.get(block).unwrap_or_else(|| panic!("{block:?} has no stack\n{}", run.said()));
        let what = format!("{block:?} {}\n  truth {:x?}\n  taken {:x?}", truth.case, truth.frames, taken);
        assert!(is_same_function(taken.frames[0], truth.frames[0]), "{what}");
        let shorter = taken.frames.len().min(truth.frames.len());
        assert_eq!(taken.frames[1..shorter], truth.frames[1..shorter], "{what}");
        assert!(taken.frames.len() <= truth.frames.len(), "{what}");
        // By wrong information, as code in assembly may have, the program's unwinder takes any word for its last frame. At
        // the start of a page it is what return probes leave behind, and no frame.
        let no_frame = taken.end == NO_UNWIND_INFO && truth.frames.last().is_some_and(|last| last.is_multiple_of(4096));
        let missing = truth.frames.len() - taken.frames.len();
        (truth.case.clone(), taken.end, missing.saturating_sub(no_frame.into()))
    });
    pairs.collect()
}

fn trace(build: &str, depth: u32, cases: &[&str]) -> Run {
    // The same rule is not asked for all the time, so there is time in between.
    let cases: Vec<&str> = ["pause"].iter().chain(cases).copied().collect();
    Tracer::run(build, &cases).option(format!("--call-stack=c:{depth}")).succeed()
}

fn assert_whole(run: &Run) {
    for (case, end, missing) in compare(run) {
        assert!((end, missing) == (ROOT, 0) || (!walks() && is_cut_short(&case, end)), "{case}: {end} {missing}");
    }
}

/// Kernels that cannot walk send 16 KiB of a stack, and some of these cases have more on it.
fn is_cut_short(case: &str, end: u8) -> bool {
    const FAULT: u8 = 3;
    ["alloca", "realigned"].contains(&case) && end == FAULT
}

fn hold_in_all_kinds_of_code(build: &str) {
    const CASES: [&str; 9] =
        ["recurse", "alloca", "realigned", "exceptions", "callbacks", "signal", "fault", "thread", "recurse"];
    assert_whole(&trace(build, 100, &CASES));
}

/// Optimised or not, with and without frame pointers, lazily bound or not, stripped, whole-program.
#[test]
fn every_frame_is_right_in_all_builds() {
    for build in BUILDS {
        hold_in_all_kinds_of_code(build);
    }
}

#[test]
fn every_frame_is_right_in_all_builds_by_clang() {
    for build in BUILDS {
        hold_in_all_kinds_of_code(&by_clang(build));
    }
}

/// A stack at every instruction of prologues, epilogues, the linkage table, and the loader as it binds.
#[test]
#[cfg(target_arch = "x86_64")]
fn every_frame_is_right_at_every_instruction() {
    for build in BUILDS {
        let run = Tracer::run(build, &["stepped"]).option("--call-stack=c:100").succeed();
        let compared = compare(&run);
        for (case, end, missing) in &compared {
            // Where there is nothing to go by, the program's unwinder ends too. Rules are not asked for without end, so a few
            // may be cut until the answer is there.
            let as_truth = *missing == 0 && [ROOT, NO_UNWIND_INFO].contains(end);
            assert!(as_truth || *end == NO_RULE, "{build} {case}: {end} {missing}");
        }
        // In the end all of them are known.
        let again = compared.iter().filter(|(case, ..)| case == "again");
        let again: Vec<_> = again.map(|(_, end, missing)| (*end, *missing)).collect();
        assert!(again.len() > 10, "{build}: {}", again.len());
        assert!(again.iter().all(|(_, missing)| *missing == 0), "{build}: {again:?}");
    }
}

#[test]
fn a_thousand_frames_are_walked_and_fewer_if_asked_for() {
    const FAULT: u8 = 3;
    let compared = compare(&trace("chains-O2", 1000, &["deep"; 8]));
    let ends: Vec<(u8, usize)> = compared.iter().map(|(_, end, missing)| (*end, *missing)).collect();
    // More than is sent to be finished: the first ones end there, walks go on.
    assert_eq!(ends.last().is_some_and(|end| *end == (ROOT, 0)), walks(), "{ends:?}");
    assert!(ends[0].0 == FAULT && ends[0].1 > 0, "{ends:?}");
    let run = trace("chains-O2", 20, &["deep", "recurse"]);
    let compared = compare(&run);
    assert!(!compared.is_empty());
    let lens: Vec<usize> = taken(&run).values().map(|stack| stack.frames.len()).collect();
    assert!(lens.iter().all(|len| *len == 20), "{lens:?}");
    assert!(compared.iter().all(|(_, end, _)| *end == DEPTH));
}

/// Pages of the stack that are not there keep the frames behind them from being sent. Those are learnt one by one: every stack
/// says where it ends, and the last ones are whole.
#[test]
fn stacks_with_holes_become_whole() {
    let compared = compare(&trace("chains-O2", 100, &["hole"]));
    assert_eq!(compared.len(), 12);
    let missing: Vec<usize> = compared.iter().map(|(.., missing)| *missing).collect();
    // That the outermost frame is the last is a rule, too.
    assert!(
        compared.iter().all(|(_, end, missing)| *end == NO_RULE || (*end == ROOT) == (*missing == 0)),
        "{compared:?}"
    );
    assert!(compared[0].2 > 0, "{compared:?}");
    assert_eq!(compared[11].1 == ROOT, walks(), "{compared:?}");
    assert!(missing.is_sorted_by(|before, after| before >= after), "{compared:?}");
}

/// Code that is made at run time ends the stack; nothing is guessed.
#[test]
fn code_without_unwind_information_ends_the_stack() {
    // Bytes up to the one behind its call.
    const CALLED: u64 = if cfg!(target_arch = "x86_64") { 6 } else { 12 };
    let run = trace("chains-O2", 100, &["made", "made"]);
    let page = run.stdout.lines().filter_map(|line| line.strip_prefix("made 0x"));
    let pages: Vec<u64> = page.map(|page| u64::from_str_radix(page, 16).expect("an address")).collect();
    let taken = taken(&run);
    assert_eq!(taken.len(), 4);
    for (stack, page) in taken.values().zip(pages) {
        assert_eq!(
            (stack.frames.len(), stack.frames.last().copied(), stack.end),
            (2, Some(page + CALLED), NO_UNWIND_INFO)
        );
    }
}

/// Two libraries with the same code but for the size of a frame, in turn at the same address.
#[test]
fn rules_do_not_outlive_their_code() {
    let run = trace("chains-O2", 100, &["plugins"]);
    assert_whole(&run);
    let taken = taken(&run);
    assert_eq!(taken.len(), 20);
    let second: Vec<u64> = taken.values().map(|stack| stack.frames[1]).collect();
    assert!(second.iter().all(|address| *address == second[0]), "not at the same address: {second:x?}");
    let mut generations: Vec<u64> = taken.values().map(|stack| stack.generation).collect();
    generations.dedup();
    assert_eq!(generations.len(), 20);
}

/// Parent and child share their mappings until one of them adds something.
#[test]
fn rules_of_a_parent_are_not_those_of_its_child() {
    let run = trace("chains-O2", 100, &["forked"]);
    assert_whole(&run);
    let taken = taken(&run);
    // The last call of each.
    let last: BTreeMap<u32, u64> = taken.iter().map(|((pid, _), stack)| (*pid, stack.frames[1])).collect();
    let plugins: Vec<u64> = last.into_values().collect();
    assert_eq!(plugins.len(), 2);
    assert_eq!(plugins[0], plugins[1], "not at the same address");
}

/// A signal is handled on a stack of its own, which may lie deeper or not.
#[test]
fn another_stack_is_followed_or_ends_the_walk() {
    for build in BUILDS.iter().flat_map(|build| [(*build).to_owned(), by_clang(build)]) {
        for (case, end, missing) in compare(&trace(&build, 100, &["altstack"])) {
            assert!((end == ROOT) == (missing == 0), "{build} {case} {end} {missing}");
        }
    }
}

/// Kernels that cannot walk send a piece of the stack with every call. It is no different for who looks at the outputs,
/// as long as the piece is large enough.
#[test]
fn without_walks_every_stack_is_finished_outside() {
    let run = Tracer::run("chains-O2", &["recurse", "realigned", "exceptions", "signal", "thread"])
        .options(&["--call-stack=c:100", "--link=slots"])
        .succeed();
    let compared = compare(&run);
    assert!(compared.len() > 15, "{}", compared.len());
    for (case, end, missing) in compared {
        assert!((end, missing) == (ROOT, 0) || is_cut_short(&case, end), "{case}: {end} {missing}");
    }
}

/// Perf buffers carry the same.
#[test]
fn both_transports_carry_stacks() {
    for link in [&[][..], &["--link=multi"], &["--link=cookie"]] {
        let tracer = Tracer::run("chains-O3", &["pause", "recurse", "signal"]).options(link);
        let run = tracer.options(&["--call-stack=c:100", "--transport=perf"]).finish();
        if run.code() == 125 && !link.is_empty() {
            assert!(run.stderr.contains("the kernel refused"), "{link:?}: {}", run.said());
            continue;
        }
        assert_eq!(run.code(), 0, "{link:?}: {}", run.said());
        assert_whole(&run);
    }
}

/// The second time a stack is met it is known: one record stands for all.
#[test]
fn stacks_that_repeat_are_sent_once() {
    let run = trace("chains-O2", 100, &["repeat"]);
    assert_whole(&run);
    let mut reader = capture::Reader::open(&run.folder.capture()).expect("a capture");
    let mut reported = 0;
    while let Some(chunk) = reader.next_chunk().expect("readable") {
        let mut rest = chunk;
        while !rest.is_empty() {
            reported += usize::from(matches!(decode(rest).expect("decodable").body, Body::Stack(_)));
            rest = &rest[usize::from(u16::from_le_bytes([rest[20], rest[21]]))..];
        }
    }
    // 200 allocations and as many frees; each first finished outside, and then walked; without walks each has its own.
    assert_eq!(reported < 40, walks(), "{reported}");
    assert!(walks() || reported >= 400, "{reported}");
}
