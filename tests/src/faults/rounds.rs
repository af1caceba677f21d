//! The faults, one function each: makes it once, and says what it did.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::chance::Chance;
use super::tally::{Round, wrong};
use crate::harness::clock::WallClock;
use crate::harness::daemon::{Daemon, Script};
use crate::harness::disk::SmallDisk;
use crate::harness::expect::{Expect, Window, assert_beginning, assert_equal, assert_unbroken};
use crate::harness::rows::Rows;
use crate::harness::tracer::{
    Folder, Run, Running, Target, Tracer, assert_nobody_is_left, children, monotonic_ns, signal_of, unix_offset_ns,
    workload_path,
};

/// A fault.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// What happens.
    pub name: &'static str,
    /// Of a hundred rounds.
    pub share: u64,
    /// Makes it once.
    pub round: fn(&mut Chance) -> Round,
}

/// All of them; shares add up to 100.
pub const FAULTS: [Fault; 11] = [
    Fault { name: "tracer killed, attached to a server", share: 24, round: tracer_killed },
    Fault { name: "tracer killed, at the root of a tree of processes", share: 16, round: tracer_of_a_tree_killed },
    Fault { name: "guard killed, then the trace ended", share: 6, round: guard_killed },
    Fault { name: "guard and tracer killed", share: 6, round: guard_and_tracer_killed },
    Fault { name: "traced program killed", share: 12, round: program_killed },
    Fault { name: "daemon killed", share: 6, round: daemon_killed },
    Fault { name: "INT, TERM, HUP, QUIT, after a stop or none", share: 10, round: signalled },
    Fault { name: "disk full (1 to 4 MB)", share: 6, round: disk_full },
    Fault { name: "address space or descriptors run short", share: 6, round: limited },
    Fault { name: "ring of 4 to 64 KiB", share: 4, round: tiny_ring },
    Fault { name: "wall clock set, by a minute to a year", share: 4, round: clock_set },
];

/// A capture with less than its head holds nothing.
const HEAD_BYTES: u64 = 64;
/// A capture lacks at most this of the time before the tracer was killed: it is written once a second, on a busy machine a
/// little later.
const UNWRITTEN_NS: u64 = 1_500_000_000;
/// Any moment is before this one.
const NEVER_NS: u64 = u64::MAX;

/// A server with a tracer.
struct Traced {
    target: Target,
    running: Running,
}

impl Traced {
    fn attach(chance: &mut Chance) -> Self {
        Self::attach_in(chance, &[])
    }

    /// The tracer has variables of its own.
    fn attach_in(chance: &mut Chance, variables: &[(&str, String)]) -> Self {
        let rate = chance.pick(&["500", "2000", "4000"]);
        let target = Target::serve(&["--threads", "2", "--rate", rate]);
        let how = chance.pick(&["hold", "stop", "notify"]);
        let tracer = Tracer::attach(&[&target]).options(&["--verbose", "--late-libraries", how]);
        let running = variables.iter().fold(tracer, |tracer, (key, value)| tracer.env(key, value)).start();
        Self { target, running }
    }

    /// Waits until each call is seen, and gives a moment after it.
    fn wait_until_attached(&self) -> u64 {
        self.running.wait_for_message("libascend_hal.so: ", 1);
        std::thread::sleep(std::time::Duration::from_millis(300));
        monotonic_ns()
    }

    /// Waits for the tracer, looks after the server, and ends it.
    fn settle(self, round: &mut Round) -> (Target, Run) {
        let Self { mut target, running } = self;
        let run = running.finish();
        round.harmed = end(&mut target);
        (target, run)
    }
}

/// Sees to it that a server goes on, and ends it. Gives what is wrong with it.
fn end(target: &mut Target) -> Option<String> {
    wrong(|| target.assert_unharmed()).and_then(|()| wrong(|| target.stop())).err()
}

fn send(pid: u32, signal: Signal) {
    // It may have ended by itself.
    let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
}

/// Whether the report counts a loss. One without a word on losses is wrong.
fn says_loss(run: &Run, round: &mut Round) -> bool {
    let is_lossy = !run.lost_nothing_since_attach();
    if is_lossy && !run.stdout.lines().any(|line| line.starts_with("lost: ")) {
        round.other = Some(format!("no word on losses: {}", run.said()));
    }
    is_lossy
}

/// Rows are a piece of what the server did, whole in the window.
fn hold(target: &Target, rows: &Rows, window: Window, round: &mut Round) {
    match wrong(|| assert_unbroken(&target.folder.journal(), rows, target.pid(), window, unix_offset_ns())) {
        Ok(rows) => round.rows += rows,
        Err(message) => round.unsaid = Some(message),
    }
}

/// A trace that ended in order has all from one moment to another, or says what it lost.
fn hold_ended(target: &Target, run: &Run, window: Window, round: &mut Round) {
    if says_loss(run, round) {
        return;
    }
    match wrong(|| run.rows()) {
        Ok(rows) => hold(target, &rows, window, round),
        Err(message) => round.unsaid = Some(message),
    }
}

/// The one capture below a folder, if it has more than a head.
fn capture_below(folder: &Path) -> bool {
    let Ok(files) = fs::read_dir(folder) else { return false };
    files.flatten().any(|file| {
        file.path().extension().is_some_and(|extension| extension == "capture")
            && file.metadata().is_ok_and(|about| about.len() >= HEAD_BYTES)
    })
}

/// Rows that `recover` makes.
fn recovered(run: &Run, round: &mut Round) -> Option<Run> {
    if !capture_below(&run.folder.output_path()) {
        return None;
    }
    let recovered = Tracer::recover(&run.folder.output_path()).finish();
    if !recovered.status.success() {
        round.unrecovered = Some(recovered.said());
        return None;
    }
    // Nothing was recorded yet.
    recovered.folder.output_path().exists().then_some(recovered)
}

fn tracer_killed(chance: &mut Chance) -> Round {
    let mut round = Round::default();
    let traced = Traced::attach(chance);
    chance.wait_below_ms(2500);
    let killed_ns = monotonic_ns();
    traced.running.signal(Signal::SIGKILL);
    let (target, run) = traced.settle(&mut round);
    if let Some(recovered) = recovered(&run, &mut round) {
        let window = Window { from_ns: NEVER_NS, to_ns: killed_ns.saturating_sub(UNWRITTEN_NS) };
        hold(&target, &recovered.rows(), window, &mut round);
    }
    round
}

fn tracer_of_a_tree_killed(chance: &mut Chance) -> Round {
    let mut round = Round::default();
    // Long enough to have been written to the capture, in half of the rounds.
    let script = format!("for i in 1 2 3 4 5 6 7 8; do '{}'; sleep 0.2; done", workload_path("forktree.sh").display());
    let running = Tracer::run_program("sh", &["-c", &script]).start();
    chance.wait_below_ms(3500);
    send(running.pid(), Signal::SIGKILL);
    let run = running.finish();
    round.harmed = wrong(|| assert_nobody_is_left(run.folder.path(), "killed tracer of a tree")).err();
    if let Some(recovered) = recovered(&run, &mut round) {
        let rows = recovered.rows();
        round.unsaid = wrong(|| assert_beginning(&run.journal(), &rows)).err();
        round.rows += rows.processes.values().map(Vec::len).sum::<usize>();
    }
    round
}

/// Ends the guard of a tracer.
fn kill_guard(traced: &Traced) {
    for child in children(traced.running.pid()) {
        send(child, Signal::SIGKILL);
    }
}

fn guard_killed(chance: &mut Chance) -> Round {
    let mut round = Round::default();
    let traced = Traced::attach(chance);
    chance.wait_below_ms(600);
    kill_guard(&traced);
    let from_ns = traced.wait_until_attached();
    chance.wait_below_ms(500);
    let to_ns = monotonic_ns();
    traced.running.signal(Signal::SIGINT);
    let (target, run) = traced.settle(&mut round);
    hold_ended(&target, &run, Window { from_ns, to_ns }, &mut round);
    round
}

fn guard_and_tracer_killed(chance: &mut Chance) -> Round {
    let mut round = Round::default();
    let traced = Traced::attach(chance);
    chance.wait_below_ms(2500);
    kill_guard(&traced);
    chance.wait_below_ms(20);
    traced.running.signal(Signal::SIGKILL);
    let (target, run) = traced.settle(&mut round);
    if let Some(recovered) = recovered(&run, &mut round) {
        hold(&target, &recovered.rows(), Window { from_ns: NEVER_NS, to_ns: 0 }, &mut round);
    }
    round
}

fn program_killed(chance: &mut Chance) -> Round {
    let mut round = Round::default();
    let running = Tracer::run("serve", &["--threads", "3", "--rate", "3000", "--hold", "40"]).start();
    running.wait_for_output("ready ");
    chance.wait_below_ms(600);
    let pid = running.stdout().trim_start_matches("ready ").lines().next().and_then(|pid| pid.parse().ok());
    match pid {
        Some(pid) => send(pid, Signal::SIGKILL),
        None => round.other = Some("no process".to_owned()),
    }
    let run = running.finish();
    if run.code() != 137 {
        round.other = Some(run.said());
    } else if !says_loss(&run, &mut round) {
        let expect = Expect { killed: true, ..Expect::default() };
        match wrong(|| assert_equal(&run.journal(), &run.rows(), expect)) {
            Ok(totals) => round.rows += (totals.allocs + totals.frees) as usize,
            Err(message) => round.unsaid = Some(message),
        }
    }
    round
}

fn daemon_killed(chance: &mut Chance) -> Round {
    let mut round = Round::default();
    let mut daemon = Daemon::start(&[]);
    let mut target = Script::new("twice", &daemon.socket()).set("output_path=output").start("ready ");
    chance.wait_below_ms(500);
    let _ = daemon.end(Signal::SIGKILL);
    chance.wait_below_ms(300);
    let go = fs::write(target.folder.path().join("go"), "");
    let status = target.wait();
    if go.is_err() || !status.success() {
        round.harmed = Some(format!("{status}: {}", target.stderr()));
    }
    round
}

fn signalled(chance: &mut Chance) -> Round {
    let mut round = Round::default();
    let traced = Traced::attach(chance);
    let from_ns = traced.wait_until_attached();
    chance.wait_below_ms(400);
    if chance.below(2) == 0 {
        traced.running.signal(Signal::SIGSTOP);
        chance.wait_below_ms(400);
        traced.running.signal(Signal::SIGCONT);
        chance.wait_below_ms(200);
    }
    let to_ns = monotonic_ns();
    let signal = *chance.pick(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT]);
    traced.running.signal(signal);
    let (target, run) = traced.settle(&mut round);
    if signal_of(run.status).is_some() {
        round.other = Some(format!("{signal} ended the tracer: {}", run.said()));
    }
    hold_ended(&target, &run, Window { from_ns, to_ns }, &mut round);
    round
}

fn disk_full(chance: &mut Chance) -> Round {
    let mut round = Round::default();
    let mut target = Target::serve(&["--threads", "4", "--rate", "9000"]);
    let tracer = Tracer::attach(&[&target]);
    let output = tracer.folder().join("output");
    let disk = match wrong(|| SmallDisk::mount(&output, 1 + chance.below(4))) {
        Ok(disk) => disk,
        Err(message) => return Round { other: Some(message), ..round },
    };
    let running = tracer.option("--verbose").start();
    chance.wait_below_ms(3000);
    send(running.pid(), Signal::SIGINT);
    let run = running.finish();
    round.harmed = end(&mut target);
    let is_full = run.stderr.contains("full") || run.stderr.contains("No space left");
    if !run.status.success() && !is_full && !ended_by_ctrl_c(&run) {
        round.other = Some(run.said());
    }
    // What is on the disk is a piece of the truth; there is no room for what is recovered but elsewhere.
    if let Some(recovered) = recovered(&run, &mut round) {
        hold(&target, &recovered.rows(), Window { from_ns: NEVER_NS, to_ns: 0 }, &mut round);
    }
    drop(disk);
    round
}

/// Before it has begun, and has said anything, Ctrl-C ends it like any program.
fn ended_by_ctrl_c(run: &Run) -> bool {
    run.stderr.trim().is_empty() && signal_of(run.status) == Some(Signal::SIGINT as i32)
}

fn limited(chance: &mut Chance) -> Round {
    let mut round = Round::default();
    let traced = Traced::attach(chance);
    chance.wait_below_ms(600);
    let limit = if chance.below(2) == 0 {
        format!("--nofile={0}:{0}", 8 + chance.below(60))
    } else {
        format!("--as={0}:{0}", (64 + chance.below(1024)) << 20)
    };
    let _ = Command::new("prlimit").args(["--pid", &traced.running.pid().to_string(), &limit]).status();
    chance.wait_below_ms(900);
    let to_ns = monotonic_ns();
    // It may have ended.
    send(traced.running.pid(), Signal::SIGINT);
    let (target, run) = traced.settle(&mut round);
    if run.status.success() {
        hold_ended(&target, &run, Window { from_ns: NEVER_NS, to_ns }, &mut round);
    } else {
        if run.stderr.trim().is_empty() && !ended_by_ctrl_c(&run) {
            round.other = Some(format!("ended without a word: {}", run.status));
        }
        if let Some(recovered) = recovered(&run, &mut round) {
            hold(&target, &recovered.rows(), Window { from_ns: NEVER_NS, to_ns: 0 }, &mut round);
        }
    }
    round
}

fn tiny_ring(chance: &mut Chance) -> Round {
    let mut round = Round::default();
    let size = *chance.pick(&["4K", "16K", "64K"]);
    let run = Tracer::run("share", &["--events", "40000", "--threads", "4"]).options(&["--ring-size", size]).finish();
    if !run.status.success() {
        round.other = Some(run.said());
    } else if !says_loss(&run, &mut round) {
        match wrong(|| assert_equal(&run.journal(), &run.rows(), Expect::default())) {
            Ok(totals) => round.rows += (totals.allocs + totals.frees) as usize,
            Err(message) => round.unsaid = Some(message),
        }
    }
    round
}

/// Shortest step of the clock. Traces are shorter, so that a row's time says which steps it has seen.
const STEP_NS: i64 = 60_000_000_000;

/// The clock of the tracer alone is set, forwards and backwards: rows stay in order, and lie between the same moments.
fn clock_set(chance: &mut Chance) -> Round {
    let mut round = Round::default();
    let folder = Folder::new();
    let clock = WallClock::new(folder.path());
    let began_ns = monotonic_ns();
    let traced = Traced::attach_in(chance, &clock.variables());
    let from_ns = traced.wait_until_attached();
    // Only a clock that is ahead of all before it moves rows.
    let (mut offset_ns, mut ahead_ns) = (0, vec![0]);
    for _ in 0..=chance.below(3) {
        chance.wait_below_ms(4000);
        let step_ns = STEP_NS << chance.below(20);
        offset_ns += if chance.below(2) == 0 { step_ns } else { -step_ns };
        clock.set(offset_ns);
        if ahead_ns.iter().all(|before| offset_ns > *before) {
            ahead_ns.push(offset_ns);
        }
    }
    chance.wait_below_ms(4000);
    let to_ns = monotonic_ns();
    traced.running.signal(Signal::SIGINT);
    let (target, run) = traced.settle(&mut round);
    if says_loss(&run, &mut round) {
        return round;
    }
    let machine_ns = began_ns..monotonic_ns();
    match wrong(|| without_steps(run.rows(), &machine_ns, &ahead_ns)) {
        Ok(rows) => hold(&target, &rows, Window { from_ns, to_ns }, &mut round),
        Err(message) => round.unsaid = Some(message),
    }
    round
}

/// Rows with times of the machine's clock. In their order they have seen ever more of the steps.
fn without_steps(mut rows: Rows, machine_ns: &Range<u64>, ahead_ns: &[i64]) -> Rows {
    let offset_ns = unix_offset_ns();
    for rows in rows.processes.values_mut() {
        let mut steps = ahead_ns;
        for row in rows {
            let of_machine =
                |ahead_ns: &i64| row.time_ns.wrapping_sub(offset_ns).wrapping_sub(ahead_ns.cast_unsigned());
            let at = steps.iter().position(|step| machine_ns.contains(&of_machine(step)));
            steps = &steps[at.unwrap_or_else(|| panic!("a time of no clock: {row:?}"))..];
            row.time_ns = of_machine(&steps[0]) + offset_ns;
        }
    }
    rows
}
