//! The library, used without the program: a trace is started, listened to and stopped by this test's own process.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use memscope::backend::ascend::pools;
use memscope::{
    analyses::Finding,
    model::{Event, EventKind, FreeCause, Pool},
    session::{
        CallStacks, CollectOptions, End, KernelLimits, LateLibraries, LeftOutStacks, Listener, Message, OutputOptions,
        Phase, Trace, TraceError, TraceOptions,
    },
    sinks::log::Level,
};
use memscope_tests::harness::{
    expect::truth,
    journal::Journal,
    kernel,
    tracer::{Folder, Target, bpf_object, simulation, workload_path},
};
use nix::sys::signal::Signal;

/// Address, bytes, and whether it begins.
type Call = (u64, u64, bool);

/// Keeps what it hears.
#[derive(Default)]
struct Heard {
    calls: Mutex<Vec<Call>>,
    phases: Mutex<Vec<Phase>>,
    /// Level, place and text of the messages.
    messages: Mutex<Vec<(Level, String, String)>>,
    attached: AtomicBool,
    findings: AtomicUsize,
}

impl Heard {
    fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Listener for Heard {
    fn attached(&self) -> Result<(), memscope::session::Refusal> {
        self.attached.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn phase(&self, phase: Phase) {
        self.phases.lock().unwrap_or_else(PoisonError::into_inner).push(phase);
    }

    fn message(&self, message: &Message<'_>) {
        let place = format!("{}:{}", message.place.file(), message.place.line());
        let heard = (message.level, place, message.text.to_string());
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).push(heard);
    }

    fn event(&self, event: &Event) {
        let call = match &event.kind {
            EventKind::Alloc(alloc) if alloc.block.pool == pools::HAL => {
                (alloc.block.addr, alloc.block.size_bytes, true)
            }
            EventKind::Free(free) if free.block.pool == pools::HAL && free.cause == FreeCause::Program => {
                (free.block.addr, free.block.size_bytes, false)
            }
            _ => return,
        };
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
    }

    fn findings_so_far(&self, findings: &[Finding]) {
        self.findings.fetch_add(findings.len(), Ordering::Relaxed);
    }
}

/// A workload with its libraries and its journal; `env` sets variables for the program alone.
fn workload(folder: &Folder, name: &str, arguments: &[&str]) -> TraceOptions {
    let variable = |name: &str, value: OsString| {
        let mut pair = OsString::from(format!("{name}="));
        pair.push(value);
        pair
    };
    let mut command = vec![
        OsString::from("env"),
        variable("LD_LIBRARY_PATH", simulation().join("lib").into()),
        variable("ASCEND_SIM_JOURNAL", folder.journal_path().into()),
        workload_path(name).into(),
    ];
    command.extend(arguments.iter().map(OsString::from));
    let late_libraries = (!kernel::has_sleepable_probes()).then_some(LateLibraries::Stop);
    with_object(TraceOptions { late_libraries, ..TraceOptions::program(command) })
}

/// Tests are built without the BPF object.
fn with_object(options: TraceOptions) -> TraceOptions {
    let kernel = KernelLimits { object: Some(bpf_object()), ..KernelLimits::default() };
    TraceOptions { kernel, ..options }
}

/// What the simulated driver wrote down.
fn of_journal(folder: &Folder) -> Vec<Call> {
    let journal: Journal = folder.journal();
    let mut calls = Vec::new();
    for entries in journal.by_process().into_values() {
        calls.extend(truth(&entries, false).calls.iter().map(|call| (call.block.addr, call.block.size, call.is_alloc)));
    }
    calls
}

/// Waits until something is so.
fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    const PATIENCE: Duration = Duration::from_secs(60);
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what} does not come");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Every block of the journal comes to the listener, the phases in their order, leaks in the summary, and no file is made. A second
/// trace in the same process, of other steps, sees its own program alone.
#[test]
fn two_programs_one_after_the_other() {
    for leaks in [1, 2] {
        let folder = Folder::new();
        let heard = Arc::new(Heard::default());
        let arguments = ["--steps", "6", "--leaks", &leaks.to_string(), "--leak-size", "1048576"];
        let listener: Arc<Heard> = Arc::clone(&heard);
        let trace = Trace::start(workload(&folder, "steps", &arguments), listener).expect("a trace");
        let summary = trace.wait().expect("an end");
        assert_eq!((summary.program_status, &summary.results.end), (Some(0), &End::Processes));
        assert!(summary.results.complete && summary.results.traced_any, "{:?}", summary.results);
        let wanted = of_journal(&folder);
        assert!(wanted.len() > 10, "{wanted:?}");
        assert_eq!(heard.calls(), wanted);
        let phases = heard.phases.lock().expect("not poisoned").clone();
        let order = [Phase::Tracing, Phase::Ending, Phase::Writing, Phase::Written, Phase::Detaching, Phase::Ended];
        assert_eq!(phases, order);
        // Those of the first step are never looked at, and those of the last cannot be judged.
        let outcome = summary.results.outcome.expect("findings");
        let leaked: u64 = outcome
            .findings
            .iter()
            .map(|finding| if let Finding::StepLeaks(found) = finding { found.leaks.len() as u64 } else { 0 })
            .sum();
        assert_eq!(leaked, 4 * leaks, "{:?}", outcome.findings);
        assert_eq!(outcome.end.lost, 0);
        assert!(!folder.output_path().exists());
    }
}

/// A running process is traced from the return of `start` until the stop; it lives on. Rows and capture are written
/// where the options say, and lines of the log name different places.
#[test]
fn a_running_process() {
    let target = Target::serve(&[]);
    let folder = Folder::new();
    let heard = Arc::new(Heard::default());
    let output = OutputOptions { directory: folder.output_path(), log_level: Level::Debug, ..OutputOptions::default() };
    let options = TraceOptions { output: Some(output), ..TraceOptions::processes([target.pid()]) };
    let listener: Arc<Heard> = Arc::clone(&heard);
    let trace = Trace::start(with_object(options), listener).expect("a trace");
    assert!(heard.attached.load(Ordering::Relaxed));
    assert_eq!(trace.status().phase, Phase::Tracing);
    wait_for("a block", || heard.calls().len() > 100);
    assert_eq!(trace.control().program(), None);
    trace.control().ask();
    wait_for("an answer", || heard.findings.load(Ordering::Relaxed) > 0);
    trace.control().stop("the test has seen enough");
    let summary = trace.wait().expect("an end");
    assert_eq!(summary.results.end, End::Asked("the test has seen enough".to_owned()));
    assert!(summary.results.complete && summary.program_status.is_none(), "{:?}", summary.results);
    assert!(fs::exists(format!("/proc/{}", target.pid())).expect("/proc"));
    assert_eq!(summary.results.capture, Some(folder.capture()));
    assert!(folder.rows().processes.contains_key(&target.pid()));
    let messages = heard.messages.lock().expect("not poisoned").clone();
    let place = |part: &str| {
        let found = messages.iter().find(|(.., text)| text.contains(part));
        found.map_or_else(|| panic!("no `{part}` in {messages:?}"), |(_, place, _)| place.clone())
    };
    let (made, waits, detached) = (place("create file"), place("late libraries:"), place("detached in"));
    assert!(made != waits && waits != detached && made != detached, "{made} {waits} {detached}");
    // A place is a file's name with a line, as the log has it.
    let in_log = |place: &str| place.rsplit('/').next().expect("a name").to_owned();
    let log = log_of(&folder);
    for place in [made, waits] {
        assert!(log.contains(&format!("[{}]", in_log(&place))), "{place}: {log}");
    }
}

fn log_of(folder: &Folder) -> String {
    let mut logs = Vec::new();
    for process in fs::read_dir(folder.output_path()).expect("a folder").flatten() {
        if let Ok(files) = fs::read_dir(process.path().join("msmemscope_logs")) {
            logs.extend(files.flatten().map(|file| fs::read_to_string(file.path()).expect("a log")));
        }
    }
    assert_eq!(logs.len(), 1, "{logs:?}");
    logs.remove(0)
}

/// A process loses the calls about blocks of its pools for a while: none of them comes meanwhile, and all of the driver's do, from begin to end.
#[test]
fn a_process_without_its_pools() {
    #[derive(Default)]
    struct Pools {
        driver: Heard,
        /// Reports of the pool before, and after.
        reports: [AtomicUsize; 2],
        left_out: AtomicUsize,
        meanwhile: AtomicUsize,
        is_restored: AtomicBool,
    }
    impl Listener for Pools {
        fn event(&self, event: &Event) {
            self.driver.event(event);
            let pool = match &event.kind {
                EventKind::PoolsLeftOut => {
                    self.left_out.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                EventKind::Alloc(alloc) => alloc.block.pool,
                EventKind::Free(free) if free.cause == FreeCause::Program => free.block.pool,
                _ => return,
            };
            if pool == pools::PTA {
                let count = match (self.left_out.load(Ordering::Relaxed), self.is_restored.load(Ordering::Relaxed)) {
                    (0, _) => &self.reports[0],
                    (_, false) => &self.meanwhile,
                    (_, true) => &self.reports[1],
                };
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    let folder = Folder::new();
    let heard = Arc::new(Pools::default());
    let listener: Arc<Pools> = Arc::clone(&heard);
    let trace = Trace::start(workload(&folder, "pool", &["--serve", "--leaks", "0"]), listener).expect("a trace");
    let control = trace.control();
    let count = |of: &AtomicUsize| of.load(Ordering::Relaxed);
    wait_for("a report", || count(&heard.reports[0]) > 100);
    let pid = control.program().expect("it runs");
    control.reduce(pid);
    wait_for("the end of reports", || count(&heard.left_out) == 1);
    let known = heard.driver.calls().len();
    wait_for("calls of the driver", || heard.driver.calls().len() > known + 100);
    assert_eq!(count(&heard.meanwhile), 0);
    heard.is_restored.store(true, Ordering::Relaxed);
    control.restore(pid);
    wait_for("a report", || count(&heard.reports[1]) > 100);
    assert!(control.signal_program(Signal::SIGTERM));
    let summary = trace.wait().expect("an end");
    assert_eq!((summary.program_status, &summary.results.end), (Some(0), &End::Processes));
    let outcome = summary.results.outcome.expect("findings");
    assert_eq!((outcome.end.lost, count(&heard.left_out), count(&heard.meanwhile)), (0, 1, 0));
    assert_eq!(heard.driver.calls(), of_journal(&folder));
}

/// Which events have call stacks is changed while the trace runs: those of allocations and frees, of allocations alone, none.
#[test]
fn stacks_of_frees_are_left_out() {
    /// Events with a stack, and without, since the last look: of allocations and of frees, the driver's and the pool's.
    #[derive(Default)]
    struct Stacks(Mutex<BTreeMap<(Pool, bool), [usize; 2]>>);
    impl Listener for Stacks {
        fn event(&self, event: &Event) {
            let key = match &event.kind {
                EventKind::Alloc(alloc) if !alloc.block.found => (alloc.block.pool, true),
                EventKind::Free(free) if free.cause == FreeCause::Program => (free.block.pool, false),
                EventKind::BlockReturned(returned) => (returned.pool, false),
                _ => return,
            };
            let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            seen.entry(key).or_default()[usize::from(event.stacks.is_empty())] += 1;
        }
    }
    let kinds = [(pools::HAL, true), (pools::HAL, false), (pools::PTA, true), (pools::PTA, false)];
    let target = Target::workload("pool", &["--serve", "--leaks", "0"]);
    let heard = Arc::new(Stacks::default());
    let listener: Arc<Stacks> = Arc::clone(&heard);
    let call_stacks = CallStacks { c: Some(8), python: None, mixed: false, automatic: false };
    let trace =
        Trace::start(with_object(TraceOptions { call_stacks, ..TraceOptions::joining() }), listener).expect("a trace");
    let control = trace.control();
    control.join(target.pid()).blocking_recv().expect("an answer").expect("it joins");
    for (left_out, wanted) in [
        (LeftOutStacks::None, [true; 4]),
        (LeftOutStacks::AtFrees, [true, false, true, false]),
        (LeftOutStacks::All, [false; 4]),
        (LeftOutStacks::Python, [true, false, true, false]),
    ] {
        control.leave_out_stacks(left_out);
        // What was on its way has the stacks of before; what comes after has those alone.
        wait_for("only these stacks", || {
            heard.0.lock().expect("not poisoned").clear();
            let many = |seen: &BTreeMap<_, [usize; 2]>| {
                kinds.iter().all(|kind| seen.get(kind).is_some_and(|[with, without]| with + without > 20))
            };
            wait_for("events", || many(&heard.0.lock().expect("not poisoned")));
            let seen = heard.0.lock().expect("not poisoned").clone();
            kinds.iter().zip(wanted).all(|(kind, has)| seen[kind][usize::from(has)] == 0)
        });
    }
    trace.control().stop("the test has seen enough");
    let summary = trace.wait().expect("an end");
    assert_eq!(summary.results.outcome.expect("findings").end.lost, 0);
}

/// What cannot begin is an error with its reason, and leaves nothing behind.
#[test]
fn traces_that_do_not_begin() {
    let folder = Folder::new();
    let output = || Some(OutputOptions { directory: folder.output_path(), ..OutputOptions::default() });
    let start = |options: TraceOptions| {
        let options = TraceOptions { output: output(), ..options };
        Trace::start(options, Arc::new(())).expect_err("refused")
    };
    assert!(matches!(start(TraceOptions::default()), TraceError::Options(_)));
    let gone = start(TraceOptions::processes([0x7fff_ffff]));
    assert_eq!(gone.to_string(), "no process 2147483647: it does not exist, or has ended");
    let own = start(TraceOptions::processes([std::process::id()]));
    assert_eq!(own.to_string(), format!("{} is this tracer itself", std::process::id()));
    let missing = start(TraceOptions::program(["/no/such/program"]));
    assert!(matches!(missing, TraceError::Spawn(_)), "{missing}");
    let collect = CollectOptions { rules: Some("/no/such/rules".into()), ..CollectOptions::default() };
    let rules = start(TraceOptions { collect, ..TraceOptions::program(["true"]) });
    assert!(matches!(rules, TraceError::Options(_)), "{rules}");
    assert!(!folder.output_path().exists());
}

/// A listener that refuses gives the trace up before it begins: the process is not traced, and no file stays.
#[test]
fn a_listener_that_refuses() {
    struct Refuses;
    impl Listener for Refuses {
        fn attached(&self) -> Result<(), memscope::session::Refusal> {
            Err("this is another process".into())
        }
    }
    let target = Target::serve(&[]);
    let folder = Folder::new();
    let output = OutputOptions { directory: folder.output_path(), ..OutputOptions::default() };
    let options = TraceOptions { output: Some(output), ..TraceOptions::processes([target.pid()]) };
    let refused = Trace::start(with_object(options), Arc::new(Refuses)).expect_err("refused");
    assert_eq!(refused.to_string(), "this is another process");
    assert!(!folder.output_path().exists());
}

/// Make sure that each program that runs in a thread of the target has the instruction that keeps it on the thread's stack
/// (`verifier::keep_stack`): a kernel may give the others one stack for each processor, and two threads share it.
#[test]
fn programs_keep_their_stack() {
    use object::{Object as _, ObjectSection as _, ObjectSymbol as _};
    /// `call bpf_tail_call`: operation 0x85, no source register, number 12 (`linux/bpf.h`).
    const TAIL_CALL: [u8; 8] = [0x85, 0, 0, 0, 12, 0, 0, 0];
    let file = object::File::parse(bpf_object()).expect("an object");
    let mut programs = 0;
    for symbol in file.symbols().filter(|symbol| symbol.size() > 0) {
        let Some(section) = symbol.section_index().and_then(|index| file.section_by_index(index).ok()) else {
            continue;
        };
        let section_name = section.name().expect("a name");
        if section_name.starts_with("uprobe") || section_name.starts_with("uretprobe") {
            let code = section.data().expect("code");
            let code = &code[symbol.address() as usize..][..symbol.size() as usize];
            assert!(code.as_chunks::<8>().0.contains(&TAIL_CALL), "{:?}", symbol.name());
            programs += 1;
        }
    }
    assert!(programs >= 15, "{programs} programs");
}
