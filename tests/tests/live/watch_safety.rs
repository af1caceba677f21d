//! Block watch under disturbance: whatever happens meanwhile, the program is not harmed, and unread bytes are not
//! reported as unchanged.

use std::time::{Duration, Instant};

use memscope_tests::harness::debugger::{debug, kill_at_step};
use memscope_tests::harness::tracer::{Target, Tracer, in_vm, signal_of};
use nix::libc;
use nix::sys::signal::Signal;

use super::watch::{CLEAN, SIDES, assert_unharmed, finish, has_handler, sums, target, watch};

/// Numbers that are the same every time and look like chance.
fn spread(index: u64, below: u64) -> u64 {
    ((index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) % below
}

/// A further tracer watches as if there had been none.
fn watch_to_the_end(target: Target) {
    let running = Tracer::attach(&[&target]).option("--watch=start,end").start();
    running.wait_for_message("block watch is on", 1);
    target.signal(Signal::SIGUSR1);
    running.wait_for_message("changed during `op5` (call 4", 1);
    finish(target);
    let run = running.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    assert!(run.stdout.contains(&format!("; {SIDES} look(s), 1 change(s)\n")), "{}", run.said());
}

/// A tracer that is killed at a step of its setting up leaves the program as it was, and is followed by another: before every second step, and
/// behind the others.
fn killed_at_steps(behind: bool) {
    const SET_REGISTERS: u32 = 0x4205;
    /// One further that asks for the handler which a tracer has left, where one has.
    const CALLS: usize = 6;
    let target = target(&["--warm", "100000"], 20);
    let (mut at, mut hit, mut longest, mut late) = (usize::from(behind), Vec::new(), Vec::new(), 0);
    loop {
        let running = Tracer::attach(&[&target]).option("--watch=start,end").start();
        let is_on = || running.stderr().contains("block watch is on");
        let (steps, killed) = kill_at_step(running.pid(), "memscope-setup", (at, behind), is_on);
        assert_eq!(signal_of(running.finish().status), Some(9));
        longest = if steps.len() > longest.len() { steps.clone() } else { longest };
        if !killed && steps.len() < at && late < 5 {
            // The thread had begun before it was looked at.
            late += 1;
            continue;
        }
        if !killed {
            break;
        }
        hit.extend(steps.last().copied());
        // Interpreted, each takes half a minute, and a machine that is silent for ten is stopped.
        at += if in_vm() { 15 } else { 2 };
    }
    println!("killed at {} of {} steps: {hit:x?}", hit.len(), longest.len());
    let count = |steps: &[u32], request: u32| steps.iter().filter(|step| **step == request).count();
    // Where few are killed, none may have come to its end who did not find the file of one before.
    let fewest = CALLS - usize::from(in_vm());
    assert!((fewest..=CALLS + 1).contains(&count(&longest, SET_REGISTERS)), "{longest:x?}");
    assert_eq!(longest.last(), Some(&libc::PTRACE_DETACH), "{longest:x?}");
    if !in_vm() {
        // Each call was about to be made, and was under way.
        for request in [SET_REGISTERS, libc::PTRACE_CONT] {
            assert!(count(&hit, request) >= CALLS / 2, "{hit:x?}");
        }
        assert_eq!(hit.len(), longest.iter().skip(usize::from(behind)).step_by(2).count(), "{hit:x?}");
    }
    watch_to_the_end(target);
}

/// Before each.
#[test]
fn killed_before_steps() {
    killed_at_steps(false);
}

/// Behind each.
#[test]
fn killed_behind_steps() {
    killed_at_steps(true);
}

/// Tracers that are killed at any moment, while they set up too, and while operators run.
fn killed_at_random(seed: u64) {
    let rounds = if in_vm() { 3 } else { 13 };
    let target = target(&["--warm", "100000"], 20);
    for round in 0..rounds {
        let running = Tracer::attach(&[&target]).option("--watch=warm,none").start();
        let moment = spread(seed * 1000 + round, 400_000);
        if round % 2 == 0 {
            running.wait_for_message("block watch is on", 1);
            std::thread::sleep(Duration::from_micros(moment / 10));
        } else {
            std::thread::sleep(Duration::from_micros(100_000 + moment));
        }
        running.signal(Signal::SIGKILL);
        assert_eq!(signal_of(running.finish().status), Some(9));
    }
    watch_to_the_end(target);
}

/// 104 of them in two tests, four programs at a time: such a round is mostly waiting for probes to be put up and taken down.
fn killed_at_random_together(seeds: [u64; 4]) {
    let seeds = if in_vm() { &seeds[..2] } else { &seeds };
    std::thread::scope(|scope| {
        for seed in seeds {
            scope.spawn(|| killed_at_random(*seed));
        }
    });
}

#[test]
fn killed_at_random_1() {
    killed_at_random_together([1, 2, 3, 4]);
}

/// The other half.
#[test]
fn killed_at_random_2() {
    killed_at_random_together([5, 6, 7, 8]);
}

/// An operator inside of a call of the runtime, which holds its lock, is not looked at: a look would wait for that lock for ever.
#[test]
fn runtime_lock_held() {
    let run = watch(&["--inside", "1"], 20, &["--watch=start,end"]);
    assert_unharmed(&run.stdout, &run.said());
    assert!(run.stdout.contains(&format!("; {SIDES} look(s), 1 change(s)\n")), "{}", run.said());
    assert!(sums(&run).iter().all(|(name, _)| !name.contains("inside")), "{}", run.said());
    // Both sides of one in each of six rounds.
    assert!(run.stdout.contains("watched blocks not looked at: inside of the runtime"), "{}", run.said());
    let reported = run.stdout.lines().find(|line| line.contains("watched blocks not looked at")).expect("a line");
    assert!(reported.contains("12"), "{reported}");
}

/// A lock that another thread holds is waited for, as each call of the program waits for it.
#[test]
fn runtime_lock_held_by_another_thread() {
    let run = watch(&["--hold", "1", "--rounds", "4"], 20, &["--watch=start,end"]);
    assert_unharmed(&run.stdout, &run.said());
    assert!(run.stdout.contains("first changed during `op5` (call 4"), "{}", run.said());
    assert!(run.stdout.contains(&format!("; {} look(s), 1 change(s)\n", 1 + 4 * 8 * 2 + 2)), "{}", run.said());
}

/// A debugger that is there first is waited for; one that comes later passes signals on, and nothing is different.
#[test]
fn debuggers() {
    // It goes on for a while after the change, which is not reported at once: only the debugger can wait for the end of
    // its process.
    let target = target(&["--warm", "100000", "--gap-us", "20000"], 20);
    let mut tracer = None;
    // Before: as long as it is there, nothing is put into the program.
    debug(target.pid(), || {
        let running = tracer.get_or_insert_with(|| Tracer::attach(&[&target]).option("--watch=start,end").start());
        assert!(!running.stderr().contains("block watch is on"), "{}", running.stderr());
        !running.stderr().contains("blocks are not watched yet: process ")
    });
    let running = tracer.expect("a tracer");
    assert!(running.stderr().contains("traces the program already (a debugger or strace)"), "{}", running.stderr());
    running.wait_for_message("block watch is on", 1);
    // During.
    let mut asked = false;
    debug(target.pid(), || {
        if !std::mem::replace(&mut asked, true) {
            target.signal(Signal::SIGUSR1);
        }
        !running.stderr().contains("changed during `op5` (call 4")
    });
    finish(target);
    let run = running.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    assert!(run.stdout.contains(&format!("; {SIDES} look(s), 1 change(s)\n")), "{}", run.said());
}

/// Signals of all kinds meanwhile: each is handled, and none is taken for ours.
#[test]
fn signals_meanwhile() {
    let run = watch(&["--storm", "1", "--rounds", "20"], 20, &["--watch=start,end"]);
    assert_unharmed(&run.stdout, &run.said());
    let verdict = run.stdout.lines().find(|line| line.contains("block `start` output 0 ")).expect("a verdict");
    assert!(verdict.contains("op5` (call 4"), "{verdict}");
    // The kernel keeps one of two signals of a number: where the program's own came first, there is a look all the same.
    assert!(verdict.ends_with(&format!("; {} look(s), 1 change(s)", 1 + 20 * 8 * 2 + 2)), "{}", run.said());
    assert!(!run.stdout.contains(" passed unseen: "), "{}", run.said());
    let line = run.stdout.lines().find_map(|line| line.strip_prefix("signals: ")).expect("a line of the program");
    let counts: Vec<u64> = line.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
    // The last one may come when the program is at its end.
    assert!(counts[0] > 50 && counts[0] - counts[1] <= 1, "{line}");
}

/// A thread that blocks the signal is waited for.
#[test]
fn blocked_signal() {
    let run = watch(&["--block", "300"], 20, &["--watch=start,end"]);
    assert_unharmed(&run.stdout, &run.said());
    assert!(run.stderr.contains("blocks are not watched yet: the thread blocks SIGURG"), "{}", run.said());
    assert!(run.stdout.contains(&format!("; {SIDES} look(s), 1 change(s)\n")), "{}", run.said());
}

/// What cannot be read is unread, with its reason, and its cell in the list is empty: it is never unchanged.
#[test]
fn unread() {
    let copy = "aclrtMemcpy gave error 507899";
    for (program, read, reason) in [
        (["--fail", "copy", "--bad", "4"], 1 + (8 + 7) * 2, copy),
        (["--fail", "wait", "--bad", "4"], 1 + (8 + 7) * 2, "aclrtSynchronizeDevice gave error 507899"),
    ] {
        let run = watch(&program, 20, &["--watch=start,end"]);
        let unread = SIDES - read;
        let verdict = run.stdout.lines().find(|line| line.contains("block `start` output 0 ")).expect("a verdict");
        assert!(verdict.contains(&format!("; {read} look(s), ")), "{verdict}\n{}", run.said());
        assert!(verdict.contains(&format!(", {unread} unread ({reason}")), "{verdict}");
        assert!(!verdict.contains("): unchanged"), "{verdict}");
        // The change lies where nothing could be read, and the program's end is behind the last look.
        assert!(verdict.contains("no change between the looks that succeeded"), "{verdict}");
        assert!(run.stdout.contains("byte 64 is 238; interrupted 0; urgent 0"), "{}", run.said());
        let sums = sums(&run);
        assert_eq!(sums.len(), SIDES);
        assert!(sums[..read].iter().all(|(_, sum)| sum.len() == 16), "{sums:?}");
        assert!(sums[read..].iter().all(|(_, sum)| sum.is_empty()), "{sums:?}");
    }
}

/// Looks until the third round's third operator has ended, behind which the block is freed.
const SIDES_TO_FREE: usize = 1 + (2 * 8 + 3) * 2;

/// Make sure that a watched block ends where it is freed, with the call that did that, and that what is written later to its place is no
/// change of it, whoever has the memory then.
#[test]
fn freed_block() {
    for (program, concluded, changes) in [
        (&["--free", "2", "--bad", "1"][..], "first changed during `op5` (call 2", 1),
        (&["--free", "2", "--bad", "100", "--reuse", "1"][..], "): unchanged until it was freed; ", 0),
    ] {
        let run = watch(program, 20, &["--watch=start,end"]);
        assert!(run.stdout.contains("interrupted 0; urgent 0"), "{}", run.said());
        assert_eq!(run.stdout.contains("reused 0x"), program.contains(&"--reuse"), "{}", run.said());
        let verdict = run.stdout.lines().find(|line| line.contains("block `start` output 0 ")).expect("a verdict");
        assert!(verdict.contains(concluded), "{verdict}\n{}", run.said());
        let freed = format!("; {SIDES_TO_FREE} look(s), {changes} change(s); freed by halMemFree (thread ");
        assert!(verdict.contains(&freed), "{verdict}");
        assert_eq!(run.stderr.matches(" changed during ").count(), changes, "{}", run.said());
        assert!(!run.stderr.contains(" changed between "), "{}", run.said());
    }
}

/// Make sure that a program that puts up a handler of its own for the signal, or ignores it, when blocks are watched already is not sent
/// any more of them, and that the operators that are not looked at then are named: one of them spoils the block, which is not "unchanged".
#[test]
fn handler_put_up_later() {
    for how in ["handler", "ignore"] {
        let run = watch(&["--take", how, "--gap-us", "500"], 20, &["--watch=start,end"]);
        assert_unharmed(&run.stdout, &run.said());
        let reported = "the program has put up a handler of its own for SIGURG, or ignores it";
        assert_eq!(run.stderr.matches(reported).count(), 1, "{}", run.said());
        let verdict = run.stdout.lines().find(|line| line.contains("block `start` output 0 ")).expect("a verdict");
        // From the end of the third round's fourth operator on.
        let read = 1 + (2 * 8 + 4) * 2;
        assert!(verdict.contains("): undecided: "), "{verdict}");
        assert!(verdict.contains(&format!("; {read} look(s), 0 change(s)")), "{verdict}");
        let passed = format!("{} side(s) of operators passed unseen: the program had a handler", SIDES - read);
        assert!(run.stdout.contains(&passed), "{}", run.said());
        let names =
            run.stdout.lines().find(|line| line.contains("operators that were not looked at: ")).expect("names");
        for name in ["`op3` (3)", "`op4` (4)", "`op5` (4)", "`end` (1)"] {
            assert!(names.contains(name), "{name} in {names}");
        }
    }
}

/// Make sure that nothing is sent to a thread before watching begins: it does not wait for us at any operator. With a `START` that comes it
/// does, on both sides of each.
#[test]
fn nothing_is_done_before_the_start() {
    let operators = 25 * 8;
    let waits = |start: &str| {
        let run = watch(&["--rounds", "25"], 0, &[&format!("--watch={start},end")]);
        assert_unharmed(&run.stdout, &run.said());
        assert_eq!(run.stdout.contains("no operator began watching"), start == "never", "{}", run.said());
        let line = run.stdout.lines().find_map(|line| line.strip_prefix("waits: ")).expect("a line of the program");
        line.parse::<u64>().expect("a number")
    };
    let (never, always) = (waits("never"), waits("start"));
    println!("waits without and with looks: {never}, {always}");
    assert!(never < operators / 2, "{never}");
    assert!(always > operators, "{always}");
}

/// How often the tracer's thread that reads the transport has gone to sleep, if it is there.
fn pauses_of_reader(tracer: u32) -> Option<u64> {
    let threads = std::fs::read_dir(format!("/proc/{tracer}/task")).ok()?;
    let mut status = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("status")).ok());
    let reader = status.find(|status| status.starts_with("Name:\tmemscope-ring\n"))?;
    reader.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok())
}

/// Make sure that operators before `START` do not wake the tracer: that would cost each of them more than all the rest.
#[test]
fn operators_before_the_start_wake_no_tracer() {
    let rounds = if in_vm() { 100 } else { 1000 };
    let mut target = target(&["--warm", "100000", "--rounds", &rounds.to_string(), "--bad", "3"], 0);
    let running = Tracer::attach(&[&target]).option("--watch=never,end").start();
    running.wait_for_message("block watch is on", 1);
    let before = pauses_of_reader(running.pid()).expect("a reader");
    target.signal(Signal::SIGUSR1);
    let mut last = before;
    while let Some(pauses) = pauses_of_reader(running.pid()) {
        last = pauses;
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(target.wait().success());
    assert_eq!(running.finish().code(), 0);
    let operators = rounds * 8;
    println!("{} pauses, {operators} operators", last - before);
    assert!(last - before < operators / 4, "{} pauses, {operators} operators", last - before);
}

/// A thread without a device can read nothing, and takes no harm.
#[test]
fn threads_without_a_device() {
    let run = watch(&["--threads", "2", "--lost-device", "1"], 20, &["--watch=start,end"]);
    assert_unharmed(&run.stdout, &run.said());
    let verdict = run.stdout.lines().find(|line| line.contains("block `start` output 0 ")).expect("a verdict");
    let unread = 6 * 8 * 2;
    assert!(
        verdict.contains(&format!("; {SIDES} look(s), 1 change(s), {unread} unread (the thread has no device (")),
        "{verdict}"
    );
    assert_eq!(sums(&run).iter().filter(|(_, sum)| sum.is_empty()).count(), unread);
}

/// A program that is killed ends the watch, nothing else; readings are reported.
#[test]
fn killed_target() {
    let mut target = target(&["--warm", "100000", "--rounds", "1000000", "--bad", "3000000"], 20);
    let running = Tracer::attach(&[&target]).option("--watch=start,end").start();
    running.wait_for_message("block watch is on", 1);
    target.signal(Signal::SIGUSR1);
    running.wait_for_message("watching began with operator `start`", 1);
    std::thread::sleep(Duration::from_millis(700));
    target.signal(Signal::SIGKILL);
    assert_eq!(signal_of(target.wait()), Some(9));
    let run = running.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    assert!(run.stdout.contains("block `start` output 0 ("), "{}", run.said());
    assert!(run.stdout.contains("): unchanged; "), "{}", run.said());
    let sums = sums(&run);
    assert!(sums.len() > 10 && sums.iter().all(|(_, sum)| sum == CLEAN), "{}", run.said());
}

/// Another program in the same process has nothing of ours, and is set up again.
#[test]
fn exec() {
    let run = watch(&["--exec", "1"], 20, &["--watch=start,end"]);
    assert_unharmed(&run.stdout, &run.said());
    assert_eq!(run.stderr.matches("block watch is on").count(), 2, "{}", run.said());
    assert!(run.stdout.contains("first changed during `op5` (call 4"), "{}", run.said());
    assert!(run.stdout.contains(&format!("; {SIDES} look(s), 1 change(s)\n")), "{}", run.said());
}

/// Make sure that a program which may be watched is, whatever ran in its process before, and that one which has a handler of its own is left
/// alone, whether the program before was watched or refused.
#[test]
fn exec_of_programs_with_handlers_of_their_own() {
    const OWN: &str = "blocks are not watched: the program has a handler of its own for SIGURG";
    for (program, refused, watched) in [
        (&["--handler", "1", "--warm", "300", "--exec", "1"][..], 1, 1),
        (&["--exec", "2"], 1, 1),
        (&["--handler", "1", "--warm", "300", "--exec", "2"], 2, 0),
    ] {
        let run = watch(program, 20, &["--watch=start,end"]);
        assert_unharmed(&run.stdout, &run.said());
        assert_eq!(run.stderr.matches("block watch is on").count(), watched, "{program:?}: {}", run.said());
        assert_eq!(run.stderr.matches(OWN).count(), refused, "{program:?}: {}", run.said());
        if program.ends_with(&["1"]) {
            assert!(run.stdout.contains(&format!("; {SIDES} look(s), 1 change(s)\n")), "{}", run.said());
        }
    }
}

/// Make sure that a handler which the program puts up once it is traced, behind the tracer's look at it, is neither replaced nor sent anything.
#[test]
fn handler_put_up_while_it_is_set_up() {
    let mut target = target(&["--warm", "100000", "--guard", "1"], 20);
    let mut said = String::new();
    let times_traced = |target: &Target| target.stdout().matches("traced\n").count();
    // The tracer may come between the program's look and its operator: then there is no handler, and ours is put up.
    for tries in 0..20 {
        if times_traced(&target) >= 3 {
            break;
        }
        assert!(tries < 19, "it does not see that it is traced: {}", target.stdout());
        let running = Tracer::attach(&[&target]).option("--watch=never,end").start();
        let deadline = Instant::now() + Duration::from_secs(60);
        // Of a refused program nothing more is heard.
        let is_decided =
            |said: &str| said.contains("block watch is on") || said.contains("a handler of its own for SIGURG");
        while times_traced(&target) < 3 && !is_decided(&running.stderr()) {
            assert!(Instant::now() < deadline, "{}\n{}", target.stdout(), running.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
        running.signal(Signal::SIGINT);
        let run = running.finish();
        assert_eq!(run.code(), 0, "{}", run.said());
        said += &run.said();
    }
    target.signal(Signal::SIGUSR1);
    assert!(target.wait().success(), "{}", target.stdout());
    assert!(target.stdout().contains("handlers taken away: 0\n"), "{}\n{said}", target.stdout());
    assert!(target.stdout().contains("interrupted 0; urgent 0"), "{}\n{said}", target.stdout());
}

/// A child has its parent's handler from the start, and gets one of its own when it is at an operator.
#[test]
fn fork() {
    let run = watch(&["--fork", "1"], 20, &["--watch=start,end"]);
    assert_unharmed(&run.stdout, &run.said());
    assert!(run.stdout.contains("child ended with 0\n"), "{}", run.said());
    assert_eq!(run.stderr.matches("block watch is on").count(), 2, "{}", run.said());
    assert!(run.stdout.contains(&format!("; {SIDES} look(s), 1 change(s)\n")), "{}", run.said());
}

/// Two programs are watched at once, each by itself.
#[test]
fn two_programs() {
    let targets = [50, 51].map(|kernel_us| target(&["--warm", "100000"], kernel_us));
    let running = Tracer::attach(&[&targets[0], &targets[1]]).option("--watch=start,end").start();
    running.wait_for_message("block watch is on", 2);
    let pids = targets.each_ref().map(Target::pid);
    for target in &targets {
        target.signal(Signal::SIGUSR1);
    }
    targets.into_iter().for_each(finish);
    let run = running.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    for pid in pids {
        let verdict = format!("process {pid}: block `start` output 0 ");
        let line =
            run.stdout.lines().find(|line| line.starts_with(&verdict)).unwrap_or_else(|| panic!("{}", run.said()));
        assert!(
            line.contains("first changed during `op5` (call 4") && line.contains(&format!("; {SIDES} look(s), ")),
            "{line}"
        );
    }
}

/// A second tracer leaves the program to the first, and has it when that has ended.
#[test]
fn two_tracers() {
    let target = target(&["--warm", "100000"], 20);
    let first = Tracer::attach(&[&target]).option("--watch=start,end").start();
    first.wait_for_message("block watch is on", 1);
    let second = Tracer::attach(&[&target]).option("--watch=start,end").start();
    second.wait_for_message("blocks are not watched yet: another tracer watches its blocks", 1);
    assert!(has_handler(target.pid()));
    first.signal(Signal::SIGINT);
    assert_eq!(first.finish().code(), 0);
    second.wait_for_message("block watch is on", 1);
    target.signal(Signal::SIGUSR1);
    finish(target);
    let run = second.finish();
    assert!(run.stdout.contains(&format!("; {SIDES} look(s), 1 change(s)\n")), "{}", run.said());
}

/// A tracer that hangs while threads come to it is given up after some seconds, and the program goes on.
#[test]
fn stopped_tracer() {
    let target = target(&["--warm", "100000"], 20);
    let running = Tracer::attach(&[&target]).option("--watch=warm,none").start();
    running.wait_for_message("watching began with operator `warm`", 1);
    running.signal(Signal::SIGSTOP);
    std::thread::sleep(Duration::from_millis(4500));
    running.signal(Signal::SIGCONT);
    running.wait_for_message("block watch has switched itself off: this tracer did not answer for two seconds", 1);
    target.signal(Signal::SIGUSR1);
    finish(target);
    let run = running.finish();
    assert!(run.stdout.contains("block `warm` output 0 ("), "{}", run.said());
}
