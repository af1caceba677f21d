//! The programs, and their expected findings.

use super::Book;
use super::answers::{Answers, answers};
use crate::analyses::{Finding, oom::Cause};
use crate::backend::ascend::pools;
use crate::model::{AllocFailed, Device, EventKind, FreeCause, OutOfMemory, Pool, ProcessStart, System};

const S: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;
const MIB: u64 = 1 << 20;
const PTA: Pool = pools::PTA;

/// Weights in a segment of their own, as in a loaded model.
fn loads(book: &mut Book) -> u64 {
    let segment = book.alloc(pools::HAL, "/srv/model.py(2): load", 256 * MIB);
    book.alloc_at(PTA, "/srv/model.py(3): weights", segment, 200 * MIB);
    segment
}

/// A step with an activation, which leaves a loss.
fn step(book: &mut Book, number: u32) -> u64 {
    book.script.step_start(number);
    let activation = book.alloc(PTA, "/srv/model.py(20): forward", 8 * MIB);
    let loss = book.alloc(PTA, "/srv/train.py(7): loss", MIB);
    book.free(PTA, activation);
    book.script.step_end(number);
    loss
}

fn request(book: &mut Book) {
    let answer = book.alloc(PTA, "/srv/serve.py(6): answer", 4 * MIB);
    book.script.launch();
    book.free(PTA, answer);
}

fn checked(book: &Book, apart_ns: u64) -> Answers {
    let answers = answers(book, apart_ns);
    answers.check(book);
    answers
}

/// Bytes at places that leak.
fn leaked(answers: &Answers, pid: u32) -> u64 {
    let of = |finding: &Finding| match finding {
        Finding::StepLeaks(found) if found.pid == pid => found.leaks.iter().map(|leak| leak.size_bytes).sum(),
        _ => 0,
    };
    answers.findings.iter().map(of).sum()
}

/// A training keeps every loss in a list, and ends in order: the losses of all steps but the last, which is not judged, and the one before it, which
/// the last may have used.
#[test]
fn history_of_losses_and_an_exit_in_order() {
    for how in ["frees", "exit", "finalize"] {
        let mut book = Book::new();
        loads(&mut book);
        (1..=40).for_each(|number| {
            step(&mut book, number);
        });
        book.stops_working();
        match how {
            "exit" => {
                book.script.event(EventKind::System(System::Exit));
            }
            "finalize" => {
                book.script.event(EventKind::System(System::AclFinalize));
            }
            _ => {}
        }
        book.frees_all();
        book.ends();
        let answers = checked(&book, MS);
        assert_eq!(answers.verdicts(100), ["found", "not judged", "not found", "not found"], "{how}");
        assert_eq!(leaked(&answers, 100), 38 * MIB);
    }
}

/// Python's interpreter ends for a minute: its threads free one block after the other.
#[test]
fn a_slow_exit_is_one() {
    let mut book = Book::new();
    loads(&mut book);
    (1..=40).for_each(|number| {
        step(&mut book, number);
    });
    book.stops_working();
    book.script.event(EventKind::System(System::PythonEnds));
    book.frees_all();
    book.ends();
    let answers = checked(&book, 2 * S);
    assert_eq!(answers.verdicts(100)[0], "found");
    assert_eq!(leaked(&answers, 100), 38 * MIB);
}

/// The same training is killed: nothing is freed, and nothing else is different.
#[test]
fn killed_in_the_middle() {
    let mut book = Book::new();
    loads(&mut book);
    (1..=40).for_each(|number| {
        step(&mut book, number);
    });
    book.alloc(PTA, "/srv/model.py(20): forward", 8 * MIB);
    book.ends();
    let answers = checked(&book, MS);
    assert_eq!(answers.verdicts(100)[0], "found");
    assert_eq!(leaked(&answers, 100), 38 * MIB);
    assert_eq!(answers.process(100).exit_ns, None);
}

/// A list that keeps the last ten losses is full from step ten on.
#[test]
fn a_bounded_history_is_no_leak() {
    let mut book = Book::new();
    loads(&mut book);
    let mut losses = Vec::new();
    for number in 1..=60 {
        losses.push(step(&mut book, number));
        if losses.len() > 10 {
            book.free(PTA, losses.remove(0));
        }
    }
    book.stops_working();
    book.frees_all();
    book.ends();
    let answers = checked(&book, MS);
    assert_ne!(answers.verdicts(100)[0], "found");
    assert_eq!(leaked(&answers, 100), 0);
}

/// Two devices of one process: the second one leaks, the first one does not.
#[test]
fn one_of_two_devices_leaks() {
    let mut book = Book::new();
    for device in [0, 1] {
        book.on(100, device);
        loads(&mut book);
    }
    for number in 1..=30 {
        book.on(100, 0);
        let loss = step(&mut book, number);
        book.free(PTA, loss);
        book.on(100, 1);
        step(&mut book, number);
    }
    book.stops_working();
    book.frees_all();
    book.ends();
    let answers = checked(&book, MS);
    assert_eq!((answers.verdicts(100)[0], leaked(&answers, 100)), ("found", 28 * MIB));
    let places = answers.process(100).places;
    assert!(places.iter().all(|place| place.device == Device::Npu(1)), "{places:#?}");
}

/// A server keeps data of each request, is watched for a while, and goes on: 4 blocks of 1 MiB a second.
#[test]
fn a_server_that_remembers_is_growing() {
    let mut book = Book::new();
    loads(&mut book);
    for _ in 0..200 {
        request(&mut book);
        book.alloc(PTA, "/srv/serve.py(9): remember", MIB);
    }
    book.trace_ends();
    let answers = checked(&book, S / 16);
    assert_eq!(answers.verdicts(100), ["not judged", "found", "not found", "not found"]);
    let growth = answers.findings.iter().find_map(|it| if let Finding::Growth(it) = it { Some(it) } else { None });
    let [site] = &growth.expect("judged").sites[..] else { panic!("{growth:#?}") };
    assert_eq!((site.blocks, site.size_bytes), (200, 200 * MIB));
    let rate = site.bytes_per_second / (4.0 * MIB as f64);
    assert!((0.95..1.05).contains(&rate), "{rate}");
}

/// Requests come in bursts; each holds a hundred answers at once, and frees them.
#[test]
fn bursts_are_no_growth() {
    let mut book = Book::new();
    loads(&mut book);
    for _ in 0..8 {
        let answers: Vec<u64> = (0..100).map(|_| book.alloc(PTA, "/srv/serve.py(6): answer", 2 * MIB)).collect();
        book.script.launch();
        for answer in answers {
            book.free(PTA, answer);
        }
        book.script.launch();
    }
    book.trace_ends();
    let answers = checked(&book, S / 20);
    assert_eq!(answers.verdicts(100)[1], "not found");
}

/// It ran for three seconds, without steps: leaks are not judged, and there is no all-clear.
#[test]
fn a_short_program_without_steps_is_not_judged() {
    let mut book = Book::new();
    loads(&mut book);
    (0..10).for_each(|_| request(&mut book));
    book.stops_working();
    book.frees_all();
    book.ends();
    let answers = checked(&book, S / 12);
    assert_eq!(answers.verdicts(100), ["not judged", "not judged", "not found", "not found"]);
    assert_eq!(answers.process(100).verdict, crate::overview::Verdict::NotJudged);
}

fn failed(size_bytes: u64, request: u64, attempt: u32) -> AllocFailed {
    let caller = Some(crate::model::Name::fixed(&"aclrtMalloc"));
    AllocFailed { pool: pools::HAL, size_bytes, status: 6, flags: 0, caller, out_of_memory: true, request, attempt }
}

/// A request fails twice, the pool gives its cache back, the third attempt succeeds: none failed.
#[test]
fn a_request_that_succeeds_at_last() {
    let mut book = Book::new();
    loads(&mut book);
    let cached = book.alloc(pools::HAL, "/srv/model.py(20): forward", 64 * MIB);
    book.script.event(EventKind::AllocFailed(failed(96 * MIB, 1, 1)));
    book.free(pools::HAL, cached);
    book.script.event(EventKind::AllocFailed(failed(96 * MIB, 1, 2)));
    book.script.alloc_recovered(pools::HAL, 96 * MIB, 1);
    book.alloc(pools::HAL, "/srv/model.py(20): forward", 96 * MIB);
    book.script.launch();
    book.stops_working();
    book.frees_all();
    book.ends();
    assert_eq!(checked(&book, MS).verdicts(100)[2], "not found");
}

/// The second attempt fails as well, the exception is caught at the top, and the program ends: the report is of the
/// moment of the attempt. The cause follows from the pool's unused memory: 56 MiB of a segment in one piece, 28 + 28 in
/// two, none.
#[test]
fn a_request_that_fails_is_reported_as_it_was() {
    let unused_bytes = 56 * MIB;
    let cases = [
        (50 * MIB, false, Cause::NotGiven { largest_bytes: 56 * MIB }),
        (50 * MIB, true, Cause::Fragmented { unused_bytes, largest_bytes: Some(28 * MIB) }),
        (300 * MIB, false, Cause::Full { missing_bytes: 244 * MIB, unused_bytes }),
    ];
    for (size_bytes, in_pieces, cause) in cases {
        let mut book = Book::new();
        let segment = book.alloc(pools::HAL, "/srv/model.py(2): load", 256 * MIB);
        book.script.reported(Some((100 * MIB, 256 * MIB)));
        let first = if in_pieces { 28 * MIB } else { 0 };
        book.alloc_at(PTA, "/srv/model.py(3): weights", segment + first, 100 * MIB);
        book.script.reported(Some((200 * MIB, 256 * MIB)));
        book.alloc_at(PTA, "/srv/model.py(4): weights", segment + first + 100 * MIB, 100 * MIB);
        book.script.event(EventKind::AllocFailed(failed(size_bytes, 1, 1)));
        book.script.event(EventKind::AllocFailed(failed(size_bytes, 1, 2)));
        book.stops_working();
        book.script.reported(Some((0, 256 * MIB)));
        book.frees_all();
        book.script.event(EventKind::OutOfMemory(OutOfMemory::Trigger(failed(size_bytes, 1, 2))));
        book.ends();
        let answers = checked(&book, MS);
        assert_eq!(answers.verdicts(100)[2], "found");
        let ooms: Vec<_> =
            answers.findings.iter().filter_map(|it| if let Finding::Oom(it) = it { Some(it) } else { None }).collect();
        let [oom] = &ooms[..] else { panic!("{ooms:#?}") };
        let pool = oom.pools.iter().find(|at| at.pool == PTA).expect("the pool");
        assert_eq!((oom.cause, oom.attempts, oom.retries.len()), (cause, 2, 1));
        assert_eq!((pool.live.blocks, pool.live.size_bytes, pool.used_bytes), (2, 200 * MIB, 200 * MIB));
        assert_eq!(answers.process(100).failed_request.expect("a request").cause, cause);
        assert_eq!(answers.bytes_at_oom(PTA), 200 * MIB, "the page");
    }
}

/// A process and its child work at the same time, on two devices of the same host: the parent leaks, the child ends
/// before it. The memory of one never counts for the other, and the sum is that of both live at once.
#[test]
fn a_child_beside_its_parent() {
    let mut book = Book::new();
    loads(&mut book);
    let start = ProcessStart { parent: 100, attached: false, command: "worker".into(), pid_within: None };
    book.on(101, 0).script.event(EventKind::ProcessStart(start));
    loads(&mut book);
    for number in 1..=30 {
        book.on(100, 0);
        step(&mut book, number);
        if number <= 20 {
            book.on(101, 0);
            let loss = step(&mut book, number);
            book.free(PTA, loss);
        }
        if number == 20 {
            book.stops_working();
            book.frees_all();
            book.ends();
        }
    }
    book.on(100, 0).stops_working();
    book.frees_all();
    book.ends();
    let answers = checked(&book, MS);
    assert_eq!((leaked(&answers, 100), leaked(&answers, 101)), (28 * MIB, 0));
    assert_eq!((answers.verdicts(100)[0], answers.verdicts(101)[0]), ("found", "not found"));
}

/// Threads give back what others have allocated, in another order; the last one ends the program.
#[test]
fn threads_hand_blocks_around() {
    let mut book = Book::new();
    loads(&mut book);
    let mut waiting = Vec::new();
    for number in 0..300_u32 {
        book.script.thread(100 + number % 7);
        waiting.push(book.alloc(PTA, "/srv/queue.py(5): put", MIB));
        book.script.launch();
        if waiting.len() > 16 {
            let at = (number as usize * 5) % waiting.len();
            book.free(PTA, waiting.remove(at));
        }
    }
    book.stops_working();
    book.script.thread(106);
    book.frees_all();
    book.ends();
    let answers = checked(&book, S / 20);
    assert_ne!(answers.verdicts(100)[1], "found");
}

/// Every second block of a segment is freed. During work that is fragmentation: 15 of 16 free pieces of 16 MiB lie
/// outside of the largest. In an exit it is none.
#[test]
fn fragmentation_while_it_works_and_in_the_exit() {
    for works_on in [false, true] {
        let mut book = Book::new();
        let segment = book.alloc(pools::HAL, "/srv/model.py(2): load", 512 * MIB);
        let blocks: Vec<u64> = (0..32).map(|number| segment + number * 16 * MIB).collect();
        for addr in &blocks {
            book.alloc_at(PTA, "/srv/model.py(3): weights", *addr, 16 * MIB);
        }
        book.script.launch();
        if !works_on {
            book.stops_working();
        }
        blocks.iter().step_by(2).for_each(|addr| book.free(PTA, *addr));
        if works_on {
            book.script.launch();
            book.stops_working();
        }
        book.frees_all();
        book.ends();
        let answers = checked(&book, MS);
        assert_eq!(answers.verdicts(100)[3], if works_on { "found" } else { "not found" });
        let pieces =
            answers.findings.iter().find_map(|it| if let Finding::Fragmentation(it) = it { Some(it) } else { None });
        let scattered = pieces.expect("a pool").judged().space.scattered_bytes;
        assert_eq!(scattered, if works_on { 15 * 16 * MIB } else { 0 });
    }
}

/// The tracer attached to a server that held 1000 MiB: the pool reports so at each call, and two older blocks are
/// freed. Unseen memory is a figure of its own everywhere.
#[test]
fn attached_to_a_server() {
    let mut book = Book::new();
    book.attached.insert(100);
    let start = ProcessStart { parent: 0, attached: true, command: "server".into(), pid_within: None };
    book.script.event(EventKind::ProcessStart(start));
    let (mut older, mut own) = (1000 * MIB, 0);
    for number in 0..300 {
        own += 4 * MIB;
        book.script.reported(Some((older + own, 2048 * MIB)));
        let answer = book.alloc(PTA, "/srv/serve.py(6): answer", 4 * MIB);
        book.script.launch();
        own -= 4 * MIB;
        book.script.reported(Some((older + own, 2048 * MIB)));
        book.free(PTA, answer);
        if number == 100 || number == 200 {
            older -= 100 * MIB;
            book.free_older(PTA, 0x10 + number);
        }
    }
    own += 3 * MIB;
    book.script.reported(Some((older + own, 2048 * MIB)));
    book.alloc(PTA, "/srv/serve.py(9): remember", 3 * MIB);
    book.script.launch();
    book.trace_ends();
    let answers = checked(&book, S / 20);
    let held = answers.findings.iter().find_map(|it| match it {
        Finding::Held(held) if held.pool == PTA => Some(held),
        _ => None,
    });
    let held = held.expect("an account");
    assert_eq!((held.size_bytes, held.unseen_bytes, held.peak_bytes), (3 * MIB, 800 * MIB, 1004 * MIB));
    assert_eq!((held.older_frees, held.attached), (2, true));
    let peak = answers.findings.iter().find_map(|it| if let Finding::Peak(it) = it { Some(it) } else { None });
    let peak = peak.expect("a peak");
    assert_eq!((peak.peak_bytes, peak.seen.size_bytes, peak.unseen_bytes), (1004 * MIB, 4 * MIB, 1000 * MIB));
    // One block that came at the end is what the program works with.
    assert_eq!(answers.verdicts(100)[1], "not found");
}

/// The pool has 80 % of its memory from before: whether that is in pieces is unknown, and neither claimed nor denied.
#[test]
fn fragmentation_of_older_segments_is_not_judged() {
    let mut book = Book::new();
    book.attached.insert(100);
    let start = ProcessStart { parent: 0, attached: true, command: "server".into(), pid_within: None };
    book.script.event(EventKind::ProcessStart(start));
    let segment = book.alloc(pools::HAL, "/srv/serve.py(5): grow", 200 * MIB);
    book.script.reported(Some((810 * MIB, 1000 * MIB)));
    book.alloc_at(PTA, "/srv/serve.py(5): grow", segment, 10 * MIB);
    book.script.launch();
    book.trace_ends();
    assert_eq!(checked(&book, S).verdicts(100)[3], "not judged");
}

/// A warm-up fills tables in its first ten steps, a kind of block for each shape, and nothing after that.
#[test]
fn a_warm_up_is_no_leak() {
    let mut book = Book::new();
    loads(&mut book);
    for number in 1..=80 {
        if number <= 10 {
            book.alloc(PTA, "/srv/tables.py(3): table", MIB);
        }
        let loss = step(&mut book, number);
        book.free(PTA, loss);
    }
    book.stops_working();
    book.frees_all();
    book.ends();
    let answers = checked(&book, S / 10);
    assert_ne!(answers.verdicts(100)[0], "found");
    assert_ne!(answers.verdicts(100)[1], "found");
    assert_eq!(leaked(&answers, 100), 0);
}

/// The program frees its model half-way, and works on with another one; then it is killed. The first model is no exit.
/// The second one was loaded in a step, once, and stays: undecided.
#[test]
fn two_models_one_after_the_other() {
    let mut book = Book::new();
    for round in 0..2 {
        loads(&mut book);
        (1..=10).for_each(|number| {
            let loss = step(&mut book, 10 * round + number);
            book.free(PTA, loss);
        });
        if round == 0 {
            book.frees_all();
        }
    }
    book.script.launch();
    book.ends();
    let answers = checked(&book, S / 10);
    assert_eq!((answers.process(100).exit_ns, answers.verdicts(100)[0]), (None, "undecided"));
}

/// A process executes another program: the memory of the first one is gone, and not added to that of the second.
#[test]
fn another_program_in_the_same_process() {
    let mut book = Book::new();
    let segment = loads(&mut book);
    let places = [(PTA, segment), (pools::HAL, segment)];
    for (pool, addr) in places {
        book.script.end(FreeCause::ProcessEnd, pool, addr);
    }
    book.forget();
    loads(&mut book);
    (1..=20).for_each(|number| {
        step(&mut book, number);
    });
    book.stops_working();
    book.frees_all();
    book.ends();
    let answers = answers(&book, MS);
    assert_eq!((answers.verdicts(100)[0], leaked(&answers, 100)), ("found", 18 * MIB));
    let ends = answers
        .findings
        .iter()
        .filter_map(|it| if let Finding::Decompose(it) = it { Some(it.end_bytes) } else { None });
    assert_eq!(ends.sum::<u64>(), (200 + 20 + 256) * MIB);
}
