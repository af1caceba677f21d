//! Sets up everything that a trace needs.

use std::{
    path::PathBuf,
    sync::{Arc, mpsc},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use nix::unistd::Pid;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{
    Ask, Shared, Steps, TraceError,
    disk::{Disk, Files},
    gauge,
    listener::{Listener, Outputs},
    log::{RunLog, Speaker},
    monitor::Monitor,
    notices::Notices,
    operators,
    options::{LateLibraries, TraceOptions},
    outputs::{self, Chosen, Opened, Selecting},
    react::{LOOP, Loop},
    side::{self, Side},
    stacks,
    stream::Stream,
    target::Target,
    text::unserved_text,
    work::Work,
    writer,
};
use crate::{
    analyses::{Analysis, DeviceUseAnalysis, FragmentationAnalysis, HeldAnalysis, Observer, decompose::RuleSet},
    backend,
    capture::{self, CaptureHeader, Collected, note_record},
    crew::Crew,
    follow::{
        Follow, FollowOptions,
        guard::Guard,
        interpreters::Interpreters,
        libraries::{Libraries, RowChoice},
        waits::Waits,
    },
    kernel::{Kernel, KernelOptions, StackOptions},
    locate::ops::OpsOptions,
    model::Event,
    os::{capabilities, clock::monotonic_ns},
    pipeline::{Audience, Demand, DumpFilter, Pipeline, PipelineConfig},
    ring::{OnRecord, Reader, Source},
    sinks::{
        Format,
        log::Level,
        tree::{OutputTree, ProcessDirs},
    },
    usage::Trigger,
};

/// The outputs of a trace, before any process is traced.
pub(super) struct Plan {
    /// The readers of events.
    audience: Audience,
    /// Which rows there are.
    dump: DumpFilter,
    /// The rules that name owners in rows.
    owners: Option<Arc<RuleSet>>,
    /// Where outputs go.
    pub(super) tree: Option<OutputTree>,
    log: Option<Arc<RunLog>>,
    /// Whether everything is kept as it came.
    capture: bool,
    /// Makes what scripts ask for.
    demand: Option<Demand>,
    /// Has the driver asked for its figures when memory changes.
    trigger: Trigger,
    /// Whether the analyses were shown any block.
    selected: Selecting,
    monitor: Option<Monitor>,
    /// Directories of processes, for all writers.
    dirs: ProcessDirs,
    files: Files,
    pub(super) speaker: Speaker,
}

impl Plan {
    /// By the options. Opens the outputs.
    pub(super) fn new(options: &TraceOptions, listener: Arc<dyn Listener>) -> Result<Self, TraceError> {
        let collect = &options.made_meanwhile();
        let rules = outputs::rules(collect).map_err(TraceError::Options)?;
        let (dirs, files) = (ProcessDirs::default(), Files::default());
        let mut speaker = Speaker::new(listener);
        let (mut audience, mut tree, mut log) = (Audience::default(), None, None);
        if let Some(output) = &options.output {
            let opened = outputs::open(options, output, speaker, dirs.clone(), files.clone())?;
            let Opened { dump, tree: of_output, speaker: with_log, log: of_run } = opened;
            (speaker, tree, log) = (with_log, Some(of_output), Some(of_run));
            audience.sinks.push(dump);
        }
        audience.readers.push(Box::new(Notices::new(speaker.clone())));
        let trigger = Trigger::default();
        let alone = options.writes_capture_alone();
        let (analyses, selected): (Vec<Box<dyn Analysis>>, _) = match options.samples {
            Some(_) => (sampled(), Selecting::ALL),
            None if alone => (Vec::new(), Selecting::ALL),
            None => {
                let Chosen { analyses, selected } = outputs::analyses(collect, rules.as_ref());
                (analyses, selected)
            }
        };
        audience.analyses = analyses;
        if options.samples.is_none() {
            // Where it is not pulled, the driver is asked for all devices, also for those on which nothing happens.
            audience.observers.push(Box::new(trigger.clone()));
        }
        if speaker.listener().wants_events() {
            audience.observers.push(Box::new(Heard(Arc::clone(speaker.listener()))));
        }
        let demand = (options.samples.is_none() && !alone).then(|| outputs::demand(collect, rules.as_ref()));
        Ok(Self {
            audience,
            dump: outputs::filter(collect),
            owners: outputs::owners(collect, rules.as_ref()),
            capture: options.output.as_ref().is_some_and(|output| output.capture),
            demand,
            tree,
            log,
            trigger,
            selected,
            monitor: options.samples.map(Monitor::new),
            dirs,
            files,
            speaker,
        })
    }

    /// The listener's view of it.
    pub(super) fn outputs(&self) -> Option<Outputs<'_>> {
        Some(Outputs { tree: self.tree.as_ref()?, log: self.log.as_ref()? })
    }
}

/// The analyses of samples.
fn sampled() -> Vec<Box<dyn Analysis>> {
    vec![
        Box::new(HeldAnalysis::default()),
        Box::new(FragmentationAnalysis::default()),
        Box::new(DeviceUseAnalysis::default()),
    ]
}

/// Hands events to the listener.
struct Heard(Arc<dyn Listener>);

impl Observer for Heard {
    fn observe(&mut self, event: &Event) {
        self.0.event(event);
    }
}

/// Handles that the loop shares.
pub(super) struct Handles {
    pub(super) shared: Arc<Shared>,
    pub(super) asked: UnboundedReceiver<Ask>,
}

impl Loop {
    /// `home`: the process group of the program that we start.
    pub(super) fn start(
        options: TraceOptions,
        plan: Plan,
        guard: Guard,
        home: Option<Pid>,
        (handles, steps): (Handles, &Steps),
    ) -> Result<Self, TraceError> {
        let speaker = plan.speaker.clone();
        let Loaded { mut kernel, libraries, stacks: stack_options, source } = Loaded::new(&options, home, &speaker)?;
        let waits = Waits::of(&kernel)?;
        // A guard that was killed cannot help; the trace continues without it.
        let _ = guard.give(&waits);
        steps.loaded();
        let recorded = options.writes_capture_alone().then(|| plan.trigger.clone());
        let Plan { mut audience, tree, monitor, selected, dirs, files, trigger, .. } = plan;
        let (counter, gauge) = gauge::gauge();
        audience.readers.push(Box::new(counter));
        let _ = handles.shared.gauge.set(gauge.clone());
        let config = pipeline_config(&options, &libraries, plan.dump, plan.owners, plan.demand);
        let (capture_writer, capture) =
            open_capture(tree.as_ref().filter(|_| plan.capture), &config, &options, &files)?.unzip();
        let pipeline = Pipeline::new(config, audience);
        let (urgent_sender, urgent) = unbounded_channel();
        let (error_sender, output_errors): (UnboundedSender<String>, _) = unbounded_channel();
        let prompt = stack_options.native_depth.is_some() || options.watch.is_some();
        let (crew, faults) = Crew::new(options.fail_thread.clone());
        let places = (tree.clone(), dirs);
        let watch = side::start_watch(&options, &mut kernel, &libraries, places, speaker.clone(), &crew)?;
        let (watch, tap) = watch.unzip();
        let mut held = waits.try_clone()?;
        let on_held = Box::new(move |thread| match thread {
            Some(thread) => held.take(thread),
            None => held.live(),
        });
        let on_record = tap.map(|tap| Box::new(move |record: &[u8]| tap.take(record)) as OnRecord);
        let ring_bytes = options.ring_bytes as usize;
        let reader = Reader::start(source, ring_bytes, prompt, urgent_sender, on_held, on_record, &crew);
        let (reader, batches) = reader.map_err(TraceError::system("cannot start the thread for records"))?;
        let interpreters = Interpreters::new();
        let (batches, stacks) = stacks::start(&options, &kernel, interpreters.layouts(), batches, &crew)?;
        let (asks, asked) = mpsc::channel();
        let (answer, answers) = unbounded_channel();
        let work = writer::Work {
            pipeline: Some(pipeline),
            capture: capture_writer,
            recorded,
            spent: reader.spent(),
            speaker: speaker.clone(),
            errors: error_sender,
        };
        let writer = writer::start(&crew, batches, work, asked);
        let writer = writer.map_err(TraceError::system("cannot start the thread for outputs"))?;
        let usage = side::start_usage(&options, trigger, &reader, speaker.clone(), &crew)?;
        let looks_at_processes = stack_options != StackOptions::default() || options.watch.is_some();
        let follow_options =
            FollowOptions { always: looks_at_processes, ..follow_options(&options, home.is_some(), &kernel, &speaker) };
        let mut follow = Follow::new(follow_options, libraries, &options.probes, guard, waits);
        if stack_options.automatic && stack_options != (StackOptions { automatic: true, ..StackOptions::default() }) {
            speaker.info(format_args!("{UNASKED_STACKS}"));
        }
        if let Some(why) = kernel.no_python() {
            speaker.warn(format_args!("no Python stacks are taken: {why}"));
        } else if stack_options.python_depth.is_some() {
            follow.follow_python(interpreters);
        }
        let notes = reader.first_notes();
        follow.set_on_note(move |note| notes.send(note_record(monotonic_ns(), 0, &note)));
        let output = options.output.as_ref();
        let (max_bytes, rotates) = output.map_or((None, false), |output| (output.max_bytes, output.parts.is_some()));
        let (disk, accesses) = (Disk::new(files), operators::wanted(&options).accesses);
        Ok(Self {
            target: Target {
                kernel,
                follow,
                user: options.probes,
                accesses,
                only_user: options.only_user,
                child: None,
                speaker: speaker.clone(),
            },
            stream: Stream { reader, stacks, capture },
            work: Work {
                writer: Some(writer),
                asks,
                answer,
                answers,
                output_errors,
                selected,
                gauge,
                disk,
                tree,
                max_bytes,
                rotates,
            },
            side: Side { usage, watch },
            duration: options.duration,
            monitor,
            urgent,
            post: crew.post(LOOP),
            faults,
            handles,
            started: Instant::now(),
            waiting_reported: false,
            speaker,
        })
    }
}

/// The pipeline's part of the options. The trace begins here.
fn pipeline_config(
    options: &TraceOptions,
    libraries: &Libraries,
    dump: DumpFilter,
    owners: Option<Arc<RuleSet>>,
    demand: Option<Demand>,
) -> PipelineConfig {
    let (start_mono_ns, start_real_ns) = clocks();
    PipelineConfig {
        backend: backend::current(),
        rows: libraries.descriptions(),
        start_mono_ns,
        start_real_ns,
        uncounted_launches: !dump.launch,
        dump,
        owners,
        mixed_stacks: options.call_stacks.mixed,
        deferred: options.deferred,
        collected: Some(collected(options)),
        rows_of_options: Some(outputs::row_bits(&options.collect, false)),
        kept: None,
        demand,
    }
}

/// Makes the capture, if one is wanted.
fn open_capture(
    tree: Option<&OutputTree>,
    config: &PipelineConfig,
    options: &TraceOptions,
    files: &Files,
) -> Result<Option<(capture::Writer, PathBuf)>, TraceError> {
    let Some(tree) = tree else { return Ok(None) };
    let header = CaptureHeader {
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        arch: std::env::consts::ARCH.to_owned(),
        kernel: kernel_release(),
        start_mono_ns: config.start_mono_ns,
        start_real_ns: config.start_real_ns,
        options: options.command_line.clone(),
        rows: config.rows.clone(),
        mixed_stacks: config.mixed_stacks,
        deferred: config.deferred,
        uncounted_launches: config.uncounted_launches,
        collected: config.collected.clone(),
    };
    let (file, path) = tree.create_top(&outputs::capture_name())?;
    files.add(&path);
    let writer_options = capture::WriterOptions { sync: true };
    Ok(Some((capture::Writer::new(file, &path, &header, writer_options)?, path)))
}

/// Message when stacks are taken without a request.
const UNASKED_STACKS: &str = "call stacks are taken: of Python where a thread has frames of it, else of C, about 2 µs for each event; --no-stacks takes none";

/// State before the loop's first thread.
struct Loaded {
    kernel: Kernel,
    libraries: Libraries,
    stacks: StackOptions,
    source: Source,
}

impl Loaded {
    /// Loads the kernel side, has it follow processes, and gives up the rights that this took.
    fn new(options: &TraceOptions, home: Option<Pid>, speaker: &Speaker) -> Result<Self, TraceError> {
        let wanted_ops = operators::wanted(options);
        let kernel_options = kernel_options(options, &wanted_ops, home);
        let mut kernel = Kernel::load(&kernel_options)?;
        let source = kernel.source(&kernel_options)?;
        operators::check(&wanted_ops, kernel.link_mode()).map_err(TraceError::Unsupported)?;
        if let Some(text) = operators::unavailable(&wanted_ops, kernel.link_mode()) {
            speaker.warn(format_args!("{text}"));
        }
        let rows = side::with_rows(options, &options.probes);
        let libraries = Libraries::new(&mut kernel, wanted_ops, &rows, side::levels(options), choice(options))?;
        if let Some(text) = unserved_text(kernel.link_mode(), libraries.unserved()) {
            speaker.warn(format_args!("{text}"));
        }
        kernel.follow()?;
        // Before this thread starts others: each has capabilities of its own.
        if let Err(error) = capabilities::keep_for_trace() {
            speaker.warn(format_args!("capabilities that are not needed any more could not be dropped: {error}"));
        }
        let stacks = kernel.stacks();
        Ok(Self { kernel, libraries, stacks, source })
    }
}

/// The optional rows that the options need, each at every launch or allocation. Block watch has to know when the
/// runtime may hold its locks; a thread's next action shows whether a request failed for good.
const fn choice(options: &TraceOptions) -> RowChoice {
    let all = options.watch.is_some() || options.collect.analyses.oom.is_some();
    RowChoice { launches: all || options.collect.level.kernel, requests: all }
}

/// Collected data that scripts can request.
fn collected(options: &TraceOptions) -> Collected {
    let StackOptions { native_depth, python_depth, automatic } = stacks::options(options);
    let db = options.output.as_ref().is_some_and(|output| output.format == Format::Db);
    Collected {
        native_depth,
        python_depth,
        accesses: operators::wanted(options).accesses,
        watch: options.watch.is_some(),
        db,
        automatic_stacks: automatic,
    }
}

/// How processes are followed; `starts`: we start the program.
fn follow_options(options: &TraceOptions, starts: bool, kernel: &Kernel, speaker: &Speaker) -> FollowOptions {
    let wanted = options.late_libraries.unwrap_or(LateLibraries::Hold);
    let hold = kernel.can_hold() && wanted == LateLibraries::Hold;
    if wanted == LateLibraries::Hold && !hold {
        let level = if options.late_libraries.is_some() { Level::Warn } else { Level::Info };
        let text = format_args!(
            "this kernel cannot hold a thread (Linux 6.0): first calls into a library that is loaded by its path may be missed; \
             --late-libraries=stop stops the process for a moment, which the program can see"
        );
        speaker.say(level, text);
    }
    // With holds, stops are only for unknown loaders.
    let stop = (wanted == LateLibraries::Stop || hold && starts) && kernel.features().send_signal;
    FollowOptions { children: options.children, hold, always: false, stop }
}

/// The options of the kernel side.
fn kernel_options(options: &TraceOptions, wanted_ops: &OpsOptions, home: Option<Pid>) -> KernelOptions {
    KernelOptions {
        ring_bytes: options.ring_bytes,
        perf: options.kernel.perf,
        link_mode: options.kernel.link_mode,
        max_rows: options.kernel.max_rows,
        tracefs: options.kernel.tracefs,
        object: options.kernel.object,
        objects: wanted_ops.choice.torch(),
        arrays: wanted_ops.accesses,
        stacks: stacks::options(options),
        watch: options.watch.is_some(),
        home_group: home.map_or(0, |group| group.as_raw().cast_unsigned()),
    }
}

/// `CLOCK_MONOTONIC` and the time since the Unix epoch at the same moment, in nanoseconds: the best of a few tries.
pub(super) fn clocks() -> (u64, u64) {
    const TRIES: usize = 5;
    let sample = || {
        let before = monotonic_ns();
        let real = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        let after = monotonic_ns();
        (after - before, u64::midpoint(before, after), real)
    };
    let best = (0..TRIES).map(|_| sample()).min().unwrap_or_default();
    (best.1, best.2)
}

fn kernel_release() -> String {
    nix::sys::utsname::uname().map(|name| name.release().to_string_lossy().into_owned()).unwrap_or_default()
}
