//! `bench cost`, `bench filtered`: what a traced call costs the thread that makes it.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;

use super::{
    kernel,
    lab::{Calls, Held, Lab},
    stats::Spread,
    table::Table,
};
use crate::project::{find, root, silent_output};

/// One row of a table.
struct Scenario {
    name: &'static str,
    /// `--kind` of the workload.
    kind: &'static str,
    /// Events that the tracer reports of one call.
    events: f64,
    /// Threads that call at a time.
    threads: u32,
    /// Frames of the native stack at least.
    frames: u32,
    /// Calls are made from Python, below this number of its frames.
    python_frames: u32,
    /// Options of the tracer.
    options: &'static [&'static str],
    /// Options of the tracer for the probes that the empty ones are compared with, if others.
    places: Option<&'static [&'static str]>,
    /// Ratio to the empty probe that is wanted.
    goal: Option<f64>,
    /// Nanoseconds per event that are wanted.
    goal_ns: Option<f64>,
}

const BASE: Scenario = Scenario {
    name: "",
    kind: "hal",
    events: 2.0,
    threads: 1,
    frames: 0,
    python_frames: 0,
    options: &[],
    places: None,
    goal: None,
    goal_ns: None,
};

/// Launches are probed with it.
const LAUNCHES: &[&str] = &["--level", "kernel"];
/// The allocations of ACL and the runtime are probed with it.
const REQUESTS: &[&str] = &["--analysis", "oom"];

const ALLOC_GOAL: Option<f64> = Some(1.35);

const EVENTS: &[Scenario] = &[
    Scenario { name: "pool event", kind: "pool", events: 3.0, goal: Some(1.25), goal_ns: Some(900.0), ..BASE },
    Scenario { name: "HAL alloc + free", goal: ALLOC_GOAL, goal_ns: Some(1100.0), ..BASE },
    Scenario {
        name: "HAL alloc + free, db",
        options: &["--format", "db"],
        goal: ALLOC_GOAL,
        goal_ns: Some(1100.0),
        ..BASE
    },
    // As of a script that does not collect: nothing of a call is written.
    Scenario { name: "HAL alloc + free, deferred, not started", options: &["--collect-mode", "deferred"], ..BASE },
    Scenario {
        name: "true path: aclrtMalloc, rtMalloc, halMemAlloc, and the frees (empty probes on every layer)",
        kind: "acl",
        places: Some(REQUESTS),
        goal_ns: Some(1300.0),
        ..BASE
    },
    Scenario {
        name: "true path, `--analysis oom`: each layer is probed",
        kind: "acl",
        options: REQUESTS,
        goal: ALLOC_GOAL,
        ..BASE
    },
    Scenario {
        name: "launch (runtime), default: nothing of it is written",
        kind: "launch",
        events: 1.0,
        places: Some(LAUNCHES),
        ..BASE
    },
    Scenario {
        name: "launch (ACL, 3 nested functions), default: nothing of it is written",
        kind: "acl-launch",
        events: 1.0,
        places: Some(LAUNCHES),
        ..BASE
    },
    Scenario {
        name: "launch (runtime), `--level kernel`",
        kind: "launch",
        events: 1.0,
        options: LAUNCHES,
        goal: Some(1.3),
        ..BASE
    },
    Scenario {
        name: "launch (ACL, 3 nested functions), `--level kernel`",
        kind: "acl-launch",
        events: 1.0,
        options: LAUNCHES,
        goal: Some(1.3),
        ..BASE
    },
    Scenario { name: "mark", kind: "mark", events: 1.0, goal_ns: Some(900.0), ..BASE },
];

const THREADS: &[Scenario] = &[
    Scenario { name: "2 threads", threads: 2, goal: ALLOC_GOAL, ..BASE },
    Scenario { name: "4 threads", threads: 4, goal: ALLOC_GOAL, ..BASE },
    Scenario { name: "16 threads", threads: 16, goal: ALLOC_GOAL, ..BASE },
];

const C_STACK: &[&str] = &["--call-stack", "c:100"];
const PYTHON_STACK: &[&str] = &["--call-stack", "python:100"];
const BOTH_STACKS: &[&str] = &["--call-stack", "c:100,python:100"];

const STACKS: &[Scenario] = &[
    Scenario { name: "C, 8 frames", frames: 8, options: C_STACK, ..BASE },
    Scenario { name: "C, 28 frames", frames: 28, options: C_STACK, goal_ns: Some(3500.0), ..BASE },
    Scenario { name: "C, 60 frames", frames: 60, options: C_STACK, ..BASE },
    Scenario { name: "Python, 10 frames", python_frames: 10, options: PYTHON_STACK, goal_ns: Some(5000.0), ..BASE },
    Scenario { name: "Python, 50 frames", python_frames: 50, options: PYTHON_STACK, ..BASE },
    Scenario { name: "Python, 10 frames, and C", python_frames: 10, options: BOTH_STACKS, ..BASE },
];

/// Reported at entry, all of them: no run of the program goes without a stack.
const AT_ENTRY: Scenario = Scenario { kind: "launch", events: 1.0, options: LAUNCHES, ..BASE };
const C_STACK_AT_ENTRY: &[&str] = &["--level", "kernel", "--call-stack", "c:100"];
const PYTHON_STACK_AT_ENTRY: &[&str] = &["--level", "kernel", "--call-stack", "python:100"];

const KERNEL_SIDE: &[Scenario] = &[
    Scenario { name: "none", ..AT_ENTRY },
    Scenario { name: "C, 46 frames", frames: 46, options: C_STACK_AT_ENTRY, goal_ns: Some(3000.0), ..AT_ENTRY },
    Scenario {
        name: "Python, 10 frames",
        python_frames: 10,
        options: PYTHON_STACK_AT_ENTRY,
        goal_ns: Some(3500.0),
        ..AT_ENTRY
    },
    Scenario { name: "Python, 50 frames", python_frames: 50, options: PYTHON_STACK_AT_ENTRY, ..AT_ENTRY },
];

/// What every tracer has to do, and where it sends its records.
const FLOOR: &[(Scenario, &str)] = &[
    (
        Scenario { name: "pool event: three entries, three records, 56 bytes read for each", kind: "pool", ..BASE },
        "read:e",
    ),
    (
        Scenario {
            name: "launch (runtime): one entry, one record",
            kind: "launch",
            events: 1.0,
            options: LAUNCHES,
            ..BASE
        },
        "record:e",
    ),
    (Scenario { name: "HAL alloc + free: two entries, two returns, two records", ..BASE }, "record:r"),
    (Scenario { name: "mark: one entry, one record, a text", kind: "mark", events: 1.0, ..BASE }, "text:e"),
];

/// How often more than other measurements those of filtered processes are made: their goal is closer to 1 than what one repetition differs from the next.
const FILTERED_TIMES: usize = 3;

/// All tables.
pub(super) fn run(lab: &Lab) -> Result<Vec<Table>> {
    let mut tables = vec![
        table(lab, "Cost in the target, by call", EVENTS)?,
        table(lab, "Cost in the target, by threads (HAL alloc + free)", THREADS)?,
        floor(lab)?,
    ];
    // Before 3.12 the texts of each frame's code have to be read, too.
    let python = find("python3").map(|python| silent_output(Command::new(python).arg("--version"))).transpose()?;
    let stacks: Vec<&Scenario> = STACKS.iter().filter(|stack| python.is_some() || stack.python_frames == 0).collect();
    let python = python.map_or_else(|| "no Python at hand".to_owned(), |version| version.trim().to_owned());
    let title = format!("Cost in the target, with call stacks (HAL alloc + free; {python})");
    tables.push(measured(lab, &title, &stacks)?);
    tables.push(kernel_side(lab, &python)?);
    Ok(tables)
}

fn table(lab: &Lab, title: &str, scenarios: &[Scenario]) -> Result<Table> {
    measured(lab, title, &scenarios.iter().collect::<Vec<_>>())
}

/// Nanoseconds of one call, each way, in one repetition.
struct Sample {
    untraced: f64,
    empty: f64,
    traced: f64,
}

impl Sample {
    /// Takes one; `traced` is the way that is compared.
    fn take(lab: &Lab, scenario: &Scenario, sites: &Path, traced: impl FnOnce() -> Result<f64>) -> Result<Self> {
        let empty = probed_ns(lab, scenario, sites, "empty")?;
        Ok(Self { empty, untraced: call_ns(&mut scenario.target(lab))?, traced: traced()? })
    }

    fn ratio(&self) -> f64 {
        (self.traced - self.untraced) / (self.empty - self.untraced)
    }
}

fn measured(lab: &Lab, title: &str, scenarios: &[&Scenario]) -> Result<Table> {
    let note = "µs of one call; *per event* is what one reported event adds.";
    let columns = ["call", "untraced", "empty probe", "traced", "ratio", "goal", "per event", "goal"];
    let mut table = Table::new(title, note, &columns);
    let sites = scenarios.iter().map(|scenario| scenario.sites(lab)).collect::<Result<Vec<PathBuf>>>()?;
    let mut samples: Vec<Vec<Sample>> = scenarios.iter().map(|_| Vec::new()).collect();
    for _ in 0..lab.repetitions {
        for ((scenario, sites), samples) in scenarios.iter().zip(&sites).zip(&mut samples) {
            samples.push(Sample::take(lab, scenario, sites, || call_ns(&mut scenario.traced(lab, &[])?))?);
        }
    }
    for (scenario, samples) in scenarios.iter().zip(&samples) {
        let per_event = samples.iter().map(|sample| (sample.traced - sample.untraced) / scenario.events / 1000.0);
        let goal = |goal: Option<f64>| goal.map_or_else(|| "–".to_owned(), |goal| format!("≤ {goal}"));
        table.row([
            scenario.name.to_owned(),
            microseconds(samples, |sample| sample.untraced),
            microseconds(samples, |sample| sample.empty),
            microseconds(samples, |sample| sample.traced),
            Spread::of(samples.iter().map(Sample::ratio)).to_string(),
            goal(scenario.goal),
            Spread::of(per_event).to_string(),
            goal(scenario.goal_ns.map(|ns| ns / 1000.0)),
        ]);
    }
    Ok(table)
}

/// Calls by two builds in one run, a repetition of each in turn, beside the empty probes where this build has its own.
pub(super) fn beside([other, ours]: [&Lab; 2]) -> Result<Table> {
    let mut table = Table::new(
        "Cost in the target, beside the other build",
        "µs of one call. *Empty probe* is at the places of this build: where the other one has more, its ratio says what they cost.",
        &["call", "untraced", "empty probe", "other build", "this build", "ratio, other", "ratio, this"],
    );
    let sites = EVENTS.iter().map(|scenario| scenario.sites(ours)).collect::<Result<Vec<PathBuf>>>()?;
    let mut samples: Vec<Vec<[Sample; 2]>> = EVENTS.iter().map(|_| Vec::new()).collect();
    for _ in 0..ours.repetitions {
        for ((scenario, sites), samples) in EVENTS.iter().zip(&sites).zip(&mut samples) {
            let take = |lab| Sample::take(lab, scenario, sites, || call_ns(&mut scenario.traced(lab, &[])?));
            samples.push([take(other)?, take(ours)?]);
        }
    }
    for (scenario, samples) in EVENTS.iter().zip(&samples) {
        let [other, ours]: [Vec<&Sample>; 2] = [0, 1].map(|at| samples.iter().map(|pair| &pair[at]).collect());
        let both = || other.iter().chain(&ours);
        let us = |ns: f64| ns / 1000.0;
        let cells = [
            Spread::of(both().map(|sample| us(sample.untraced))),
            Spread::of(both().map(|sample| us(sample.empty))),
            Spread::of(other.iter().map(|sample| us(sample.traced))),
            Spread::of(ours.iter().map(|sample| us(sample.traced))),
            Spread::of(other.iter().map(|sample| sample.ratio())),
            Spread::of(ours.iter().map(|sample| sample.ratio())),
        ];
        table.row([scenario.name.to_owned()].into_iter().chain(cells.map(|cell| cell.to_string())));
    }
    Ok(table)
}

/// Time in the program at a function's entry, without the way into it and back.
fn kernel_side(lab: &Lab, python: &str) -> Result<Table> {
    let title = format!("Time in the kernel side at an entry, with call stacks ({python})");
    let note = "µs of one run of the BPF program at the entry of `rtKernelLaunch`, as the kernel counts; each run takes a stack.";
    let mut table = Table::new(&title, note, &["stack", "program", "goal"]);
    let statistics = kernel::Statistics::on()?;
    for scenario in KERNEL_SIDE {
        let runs = (0..lab.repetitions).map(|_| kernel::entry_ns(&mut scenario.traced(lab, &[])?));
        let runs = runs.collect::<Result<Vec<f64>>>()?;
        table.row([
            scenario.name.to_owned(),
            Spread::of(runs.into_iter().map(|ns| ns / 1000.0)).to_string(),
            scenario.goal_ns.map_or_else(|| "–".to_owned(), |ns| format!("≤ {}", ns / 1000.0)),
        ]);
    }
    drop(statistics);
    Ok(table)
}

/// Processes of which nothing is reported: not traced, while another one is, with the same libraries; and of a device that is not traced.
pub(super) fn filtered(lab: &Lab) -> Result<Vec<Table>> {
    let scenario = Scenario { name: "HAL alloc + free", ..BASE };
    let elsewhere = Scenario { options: &["--device", "npu:1"], ..scenario };
    let sites = scenario.sites(lab)?;
    let [mut bystanders, mut left_out] = [Vec::new(), Vec::new()];
    let repetitions = lab.repetitions * FILTERED_TIMES;
    for _ in 0..repetitions {
        bystanders.push(Sample::take(lab, &scenario, &sites, || {
            let traced = Held::start(&mut scenario.traced(lab, &["--hold"])?)?;
            let beside = call_ns(&mut scenario.target(lab))?;
            traced.end()?;
            Ok(beside)
        })?);
        left_out.push(Sample::take(lab, &scenario, &sites, || call_ns(&mut elsewhere.traced(lab, &[])?))?);
    }
    let mut table = Table::new(
        "Cost in a process that is filtered out (HAL alloc + free)",
        &format!(
            "µs of one call, {repetitions} repetitions in place of {}. The process is checked in the kernel. The device is known from what was \
             allocated, which the tracer knows: such events are made, and dropped behind the ring.",
            lab.repetitions
        ),
        &["call", "untraced", "empty probe", "filtered out", "ratio", "goal"],
    );
    for (name, samples, goal) in [
        ("of a process that is not traced, another one is", &bystanders, "≤ 1.05"),
        ("of a device that is not traced (`--device npu:1`)", &left_out, "–"),
    ] {
        table.row([
            name.to_owned(),
            microseconds(samples, |sample| sample.untraced),
            microseconds(samples, |sample| sample.empty),
            microseconds(samples, |sample| sample.traced),
            Spread::of(samples.iter().map(Sample::ratio)).to_string(),
            goal.to_owned(),
        ]);
    }
    Ok(vec![table])
}

fn microseconds(samples: &[Sample], of: fn(&Sample) -> f64) -> String {
    Spread::of(samples.iter().map(of).map(|ns| ns / 1000.0)).to_string()
}

/// With programs of a few instructions at the same places: what no tracer can do without.
fn floor(lab: &Lab) -> Result<Table> {
    let note = "µs of one call, with hand-made programs where the tracer has its own: *look-up* asks a hash map for the process, *record* \
        reads what has to be read, and sends 64 bytes with the time. *Floor* is the ratio of that to the empty probe, *ratio* the tracer's.";
    let columns = ["call", "untraced", "empty probe", "look-up", "record", "traced", "floor", "ratio"];
    let mut table = Table::new("Where the floor is", note, &columns);
    for (scenario, record) in FLOOR {
        let sites = scenario.sites(lab)?;
        let mut samples: Vec<[f64; 5]> = Vec::new();
        for _ in 0..lab.repetitions {
            let untraced = call_ns(&mut scenario.target(lab))?;
            let probed = |what| probed_ns(lab, scenario, &sites, what);
            let traced = call_ns(&mut scenario.traced(lab, &[])?)?;
            samples.push([untraced, probed("empty")?, probed("lookup")?, probed(record)?, traced]);
        }
        let ratio = |[untraced, empty, _, record, traced]: &[f64; 5], ours: bool| {
            (if ours { traced } else { record } - untraced) / (empty - untraced)
        };
        let times = (0..5).map(|at| Spread::of(samples.iter().map(|sample| sample[at] / 1000.0)).to_string());
        let ratios = [false, true].map(|ours| Spread::of(samples.iter().map(|sample| ratio(sample, ours))).to_string());
        table.row(std::iter::once(scenario.name.to_owned()).chain(times).chain(ratios));
    }
    Ok(table)
}

/// The target with such probes.
fn probed_ns(lab: &Lab, scenario: &Scenario, sites: &Path, what: &str) -> Result<f64> {
    let probes = lab.probes(sites, what)?;
    let call = call_ns(&mut scenario.target(lab));
    drop(probes);
    call
}

/// Median of the blocks of one run.
fn call_ns(command: &mut Command) -> Result<f64> {
    Ok(Spread::of(Calls::parse(&silent_output(command)?)?.block_ns).median)
}

impl Scenario {
    fn words(&self, lab: &Lab) -> Vec<String> {
        let calls = lab.pick(2000, 10_000).to_string();
        if self.python_frames > 0 {
            let script = root().join("tests/workloads/calls.py");
            let library = lab.library("bench/libcalls.so");
            let frames = self.python_frames.to_string();
            let words = ["python3".into(), script.display().to_string(), library.display().to_string()];
            return words.into_iter().chain([self.kind.into(), calls, "5".into(), frames]).collect();
        }
        let program = lab.program("calls").display().to_string();
        let numbers =
            [("--calls", calls), ("--threads", self.threads.to_string()), ("--frames", self.frames.to_string())];
        let options = numbers.into_iter().flat_map(|(name, value)| [name.to_owned(), value]);
        [program, "--kind".into(), self.kind.into()].into_iter().chain(options).collect()
    }

    /// The target by itself.
    fn target(&self, lab: &Lab) -> Command {
        let words = self.words(lab);
        let mut command = lab.command(&words[0]);
        command.args(&words[1..]);
        command
    }

    /// The target below the tracer.
    fn traced(&self, lab: &Lab, more: &[&str]) -> Result<Command> {
        let mut command = lab.tracer("run", self.options)?;
        command.arg("--").args(self.words(lab)).args(more);
        Ok(command)
    }

    /// Where the tracer has its probes when it traces this.
    fn sites(&self, lab: &Lab) -> Result<PathBuf> {
        // Frames make no difference to that, and C can wait.
        let options = self.places.unwrap_or(self.options);
        let held = Held::start(&mut Scenario { python_frames: 0, options, ..*self }.traced(lab, &["--hold"])?)?;
        let sites = lab.sites_of(&held.tracer, &format!("{}.sites", self.kind))?;
        held.end()?;
        Ok(sites)
    }
}
