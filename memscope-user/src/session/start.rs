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
    cost::Meter,
    disk::{Disk, Files, Waiting},
    gauge::{self, Gauge},
    listener::{Listener, Outputs},
    loaded::{Loaded, start_follow},
    log::{RunLog, Speaker},
    looks::{self, Looker},
    monitor::Monitor,
    notices::Notices,
    operators,
    options::{TraceOptions, Traced},
    outputs::{self, Chosen, Opened, Selecting},
    pools,
    react::{LOOP, LastLook, Loop},
    side::{self, Side},
    stacks,
    stream::Stream,
    target::Target,
    work::Work,
    writer,
};
use crate::{
    analyses::{Analysis, DeviceUseAnalysis, FragmentationAnalysis, HeldAnalysis, Observer, decompose::RuleSet},
    backend,
    capture::{self, CaptureHeader, Collected},
    crew::Crew,
    follow::{Follow, guard::Guard, interpreters::Interpreters, libraries::Libraries, waits::Waits},
    kernel::{Kernel, Placing, StackOptions},
    model::Event,
    os::clock::monotonic_ns,
    pipeline::{Audience, Demand, DumpFilter, Pipeline, PipelineConfig},
    ring::{Batch, OnRecord, Reader, Source, Urgent},
    sinks::{
        Format,
        tree::{OutputTree, ProcessDirs},
    },
    usage::Trigger,
    watch::live::Tap,
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
        let Loaded { mut kernel, libraries, source } = Loaded::new(&options, home, &speaker)?;
        let waits = Waits::of(&kernel)?;
        // A guard that was killed cannot help; the trace continues without it.
        let _ = guard.give(&waits);
        steps.loaded();
        let Plan { audience, tree, monitor, selected, dirs, files, trigger, dump, owners, demand, .. } = plan;
        let (counter, gauge) = gauge::gauge();
        let _ = handles.shared.gauge.set(gauge.clone());
        let config = pipeline_config(&options, &libraries, dump, owners, demand);
        let captured = tree.as_ref().filter(|_| plan.capture);
        let (capture_writer, capture) = open_capture(captured, &config, &options, &files)?.unzip();
        let pipeline = Pipeline::new(config, with_reader(audience, counter));
        let (crew, faults) = Crew::new(options.fail_thread.clone());
        let places = (tree.clone(), dirs);
        let (watch, tap) =
            side::start_watch(&options, &mut kernel, &libraries, places, speaker.clone(), &crew)?.unzip();
        let (urgent_sender, urgent) = unbounded_channel();
        let (reader, batches) =
            start_reader(&options, source, (&waits, kernel.placing()), (tap, urgent_sender), &crew)?;
        let interpreters = Interpreters::new();
        let (batches, stacks) = stacks::start(&options, &kernel, interpreters.layouts(), batches, &crew)?;
        let looker = looks::start(options.looks(), &reader, speaker.clone(), &crew)?;
        let read_pools = || pools::start(options.purposes(), &reader, speaker.clone(), &crew);
        let pools = options.reads_pools().then(read_pools).transpose()?;
        let results = Results { pipeline, capture: capture_writer, selected, gauge, files, tree };
        let heard = (looker.clone(), trigger.clone(), speaker.clone());
        let work = results.written_by((batches, &reader), heard, &options, &crew)?;
        let usage = side::start_usage(&options, trigger, &reader, speaker.clone(), &crew)?;
        let held = (guard, waits, home.is_some());
        let follow = start_follow(&options, (&kernel, libraries, interpreters), held, &reader, &speaker);
        Ok(Self {
            duration: options.duration,
            stays: matches!(options.traced, Traced::Joining),
            forget_unused: options.forget_unused,
            meter: options.measure_programs.then(Meter::default),
            target: target(kernel, follow, options, speaker.clone()),
            stream: Stream { reader, stacks, capture },
            work,
            side: Side { usage, watch, looker, pools },
            monitor,
            urgent,
            post: crew.post(LOOP),
            faults,
            handles,
            started: Instant::now(),
            waiting_reported: false,
            last_look: LastLook::ToCome,
            speaker,
        })
    }
}

/// Has one more reader see what is written.
fn with_reader(mut audience: Audience, reader: impl Observer + 'static) -> Audience {
    audience.readers.push(Box::new(reader));
    audience
}

/// The processes, with nothing started yet.
fn target(kernel: Kernel, follow: Follow, options: TraceOptions, speaker: Speaker) -> Target {
    let accesses = operators::wanted(&options).accesses;
    let (user, only_user) = (options.probes, options.only_user);
    Target { kernel, follow, user, accesses, only_user, child: None, behind_reported: false, speaker }
}

/// Starts the thread that takes records from the kernel.
fn start_reader(
    options: &TraceOptions,
    source: Source,
    (waits, placing): (&Waits, Arc<Placing>),
    (tap, urgent): (Option<Tap>, UnboundedSender<Urgent>),
    crew: &Crew,
) -> Result<(Reader, mpsc::Receiver<Batch>), TraceError> {
    // A snapshot wakes the reader by itself. What it takes soon besides is what a program does at its exit: its holders are
    // looked at then. A trace that processes join takes no such looks, and each round costs more than the records of a quiet node.
    let looks = !matches!(options.traced, Traced::Joining);
    let prompt = (looks && stacks::options(options).native_depth.is_some()) || options.watch.is_some();
    let mut waits = waits.try_clone()?;
    let on_held = Box::new(move |held| match held {
        Some(held) => waits.take(held),
        None if placing.hangs() => {}
        None => waits.live(),
    });
    let on_record = tap.map(|tap| Box::new(move |record: &[u8]| tap.take(record)) as OnRecord);
    let reader = Reader::start(source, prompt, urgent, on_held, on_record, crew);
    reader.map_err(TraceError::system("cannot start the thread for records"))
}

/// The outputs, before they are written.
struct Results {
    pipeline: Pipeline,
    capture: Option<capture::Writer>,
    selected: Selecting,
    gauge: Gauge,
    files: Files,
    tree: Option<OutputTree>,
}

impl Results {
    /// Starts the thread that writes them.
    fn written_by(
        self,
        (batches, reader): (mpsc::Receiver<Batch>, &Reader),
        (looker, trigger, speaker): (Option<Looker>, Trigger, Speaker),
        options: &TraceOptions,
        crew: &Crew,
    ) -> Result<Work, TraceError> {
        let Self { pipeline, capture, selected, gauge, files, tree } = self;
        let (errors, output_errors) = unbounded_channel();
        let (captured, is_captured) = mpsc::channel();
        let waiting = Waiting::default();
        let inputs = writer::Work {
            pipeline: Some(pipeline),
            capture,
            recorded: options.writes_capture_alone().then_some(trigger),
            spent: reader.spent(),
            looker,
            speaker,
            errors,
            captured: Some(captured),
            waiting: waiting.clone(),
        };
        let (asks, asked) = mpsc::channel();
        let (answer, answers) = unbounded_channel();
        let writer = writer::start(crew, batches, inputs, asked);
        let writer = Some(writer.map_err(TraceError::system("cannot start the thread for outputs"))?);
        let output = options.output.as_ref();
        let (max_bytes, rotates) = output.map_or((None, false), |output| (output.max_bytes, output.parts.is_some()));
        let disk = Disk::new(files, waiting);
        Ok(Work {
            writer,
            is_captured,
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
        renews_stacks: options.forget_unused.is_some(),
        follows_clock_back: options.forget_unused.is_some(),
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
