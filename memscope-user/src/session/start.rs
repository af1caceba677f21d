//! Sets up everything that a trace needs.

use std::{
    path::PathBuf,
    sync::mpsc,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, anyhow};
use nix::unistd::Pid;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::{LOOP, Plan, Session, tell::unserved_text, watch};
use crate::{
    capture::{self, CaptureHeader, Collected, Note, WriterOptions, note_record},
    cli::{
        args::{CollectMode, Format, LateLibraries, LogLevel, TraceArgs, Transport},
        disk::{Disk, Files},
        message, operators, outputs,
        signals::Signals,
        stacks,
        writer::{self, Work},
    },
    crew::Crew,
    follow::{
        Follow, FollowOptions,
        guard::Guard,
        interpreters::Interpreters,
        libraries::{Libraries, RowChoice},
    },
    kernel::{Kernel, KernelOptions, StackOptions, features::LinkMode},
    locate::ops::OpsOptions,
    os::{capabilities, clock::monotonic_ns},
    pipeline::{Pipeline, PipelineConfig},
    probes::ProbeSpec,
    ring::{OnRecord, Reader, Source},
    sinks::{gauge::GaugeSink, tree::OutputTree},
    usage::{Options, Sampler, Tell, Trigger},
};

impl<'a> Session<'a> {
    /// `started`: the process group of the program that we start.
    pub(super) fn start(args: &'a TraceArgs, guard: Guard, plan: Plan, started: Option<Pid>) -> Result<Self> {
        let Loaded { mut kernel, libraries, user, stacks: stack_options, source } = Loaded::new(args, started)?;
        let waits = kernel.waits()?;
        // A guard that was killed cannot help; the trace goes on without it.
        let _ = guard.give(&waits);
        let rows = libraries.descriptions();
        let (start_mono_ns, start_real_ns) = clocks();
        let Plan { mut sinks, analyses, dump, owners, demand, tree, capture, trigger, selected, monitor, dirs, files } =
            plan;
        let deferred = args.collect_mode == CollectMode::Deferred;
        let mixed_stacks = args.call_stack.is_some_and(|stacks| stacks.mixed);
        let uncounted_launches = !dump.launch;
        let collected = Some(collected(args));
        let recorded = args.capture_only.then(|| trigger.clone());
        let (gauge_sink, gauge) = GaugeSink::new();
        sinks.push(Box::new(gauge_sink));
        let rows_of_options = Some(outputs::row_bits(&args.collect, false));
        let config = PipelineConfig {
            rows,
            start_mono_ns,
            start_real_ns,
            dump,
            owners,
            mixed_stacks,
            deferred,
            uncounted_launches,
            collected,
            rows_of_options,
            demand,
        };
        let (capture_writer, capture_path) = open_capture(tree.as_ref().filter(|_| capture), &config, &files)?.unzip();
        let pipeline = Pipeline::new(config, sinks, analyses);
        let (urgent_sender, urgent) = unbounded_channel();
        let (error_sender, output_errors): (UnboundedSender<String>, _) = unbounded_channel();
        // Signals are blocked before the first thread starts, so that they reach the loop alone.
        Signals::block()?;
        let prompt = stack_options.native_depth.is_some() || args.watch.is_some();
        let (crew, faults) = Crew::new(args.fail_thread.clone());
        let (watch, tap) = watch::start(args, &mut kernel, &libraries, tree.clone(), dirs, &crew)?.unzip();
        let on_record = tap.map(|tap| Box::new(move |record: &[u8]| tap.take(record)) as OnRecord);
        let mut held = waits.try_clone()?;
        let on_held = Box::new(move |thread| match thread {
            Some(thread) => held.take(thread),
            None => held.live(),
        });
        let (reader, batches) =
            Reader::start(source, args.ring_size as usize, prompt, urgent_sender, on_held, on_record, &crew)?;
        let interpreters = Interpreters::new();
        let (batches, stacks) = stacks::start(args, &kernel, interpreters.layouts(), batches, &crew)?;
        let (asks, asked) = mpsc::channel();
        let (answer, answers) = unbounded_channel();
        let work = Work {
            pipeline: Some(pipeline),
            capture: capture_writer,
            recorded,
            spent: reader.spent(),
            errors: error_sender,
        };
        let writer = writer::start(&crew, batches, work, asked)?;
        let usage = start_usage(args, trigger, &reader, &crew)?;
        let looks_at_processes = stack_options != StackOptions::default() || args.watch.is_some();
        let follow_options =
            FollowOptions { always: looks_at_processes, ..follow_options(args, started.is_some(), &kernel) };
        let mut follow = Follow::new(follow_options, libraries, &user, guard, waits);
        if let Some(why) = kernel.no_python() {
            let text = format_args!("no Python stacks are taken: {why}");
            message(args.collect.level_of_messages(), LogLevel::Warning, text);
        } else if stack_options.python_depth.is_some() {
            follow.follow_python(interpreters);
        }
        let notes = reader.first_notes();
        follow.tell(move |note| notes.send(note_record(monotonic_ns(), 0, &note)));
        Ok(Self {
            args,
            kernel,
            follow,
            reader,
            writer,
            asks,
            answer,
            answers,
            selected,
            monitor,
            urgent,
            output_errors,
            post: crew.post(LOOP),
            faults,
            gauge,
            disk: Disk::new(files),
            usage,
            watch,
            stacks,
            tree,
            capture: capture_path,
            started: Instant::now(),
            child: None,
            waiting_told: false,
            user,
        })
    }
}

/// Makes the capture, if one is wanted.
fn open_capture(
    tree: Option<&OutputTree>,
    config: &PipelineConfig,
    files: &Files,
) -> Result<Option<(capture::Writer, PathBuf)>> {
    let Some(tree) = tree else { return Ok(None) };
    let header = CaptureHeader {
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        arch: std::env::consts::ARCH.to_owned(),
        kernel: kernel_release(),
        start_mono_ns: config.start_mono_ns,
        start_real_ns: config.start_real_ns,
        options: std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect(),
        rows: config.rows.clone(),
        mixed_stacks: config.mixed_stacks,
        deferred: config.deferred,
        uncounted_launches: config.uncounted_launches,
        collected: config.collected.clone(),
    };
    let (file, path) = tree.create_top(&outputs::capture_name())?;
    files.add(&path);
    Ok(Some((capture::Writer::new(file, &path, &header, WriterOptions { sync: true })?, path)))
}

/// What is there before the first thread.
struct Loaded {
    kernel: Kernel,
    libraries: Libraries,
    user: Vec<&'static ProbeSpec>,
    stacks: StackOptions,
    source: Source,
}

impl Loaded {
    /// Loads the kernel side, has it follow processes, and gives up the rights that this took.
    fn new(args: &TraceArgs, started: Option<Pid>) -> Result<Self> {
        let wanted_ops = operators::wanted(args);
        let options = kernel_options(args, &wanted_ops, started);
        let mut kernel = Kernel::load(&options)?;
        let source = kernel.source(&options)?;
        operators::check(&wanted_ops, kernel.link_mode()).map_err(|reason| anyhow!(reason))?;
        if let Some(text) = operators::untold(&wanted_ops, kernel.link_mode()) {
            message(args.collect.level_of_messages(), LogLevel::Warning, format_args!("{text}"));
        }
        let user = args.probes.specs().map_err(|reason| anyhow!(reason))?;
        let rows = watch::with_rows(args, &user);
        let libraries = Libraries::new(&mut kernel, wanted_ops, &rows, watch::levels(args), choice(args))?;
        if let Some(text) = unserved_text(kernel.link_mode(), libraries.unserved()) {
            message(args.collect.level_of_messages(), LogLevel::Warning, format_args!("{text}"));
        }
        kernel.follow()?;
        // Before the first thread: each has capabilities of its own.
        if let Err(error) = capabilities::keep_for_trace() {
            let text = format_args!("capabilities that are not needed any more could not be dropped: {error}");
            message(args.collect.level_of_messages(), LogLevel::Warning, text);
        }
        Ok(Self { kernel, libraries, user, stacks: options.stacks, source })
    }
}

/// Which rows the options need, of those that cost every launch or allocation. Block watch has to know when the runtime may hold its
/// locks; whether memory was out for good shows in what its thread does next.
const fn choice(args: &TraceArgs) -> RowChoice {
    let all = args.watch.is_some() || args.collect.analysis.oom.is_some();
    RowChoice { launches: all || args.collect.level.kernel, requests: all }
}

/// What scripts can have of what a trace collects if its options ask for it.
fn collected(args: &TraceArgs) -> Collected {
    let StackOptions { native_depth, python_depth } = stacks::options(args);
    let db = args.collect.format == Format::Db;
    Collected {
        native_depth,
        python_depth,
        accesses: operators::wanted(args).accesses,
        watch: args.watch.is_some(),
        db,
    }
}

/// How processes are followed; `starts`: we start the program.
fn follow_options(args: &TraceArgs, starts: bool, kernel: &Kernel) -> FollowOptions {
    let wanted = args.late_libraries.unwrap_or(LateLibraries::Hold);
    let hold = kernel.can_hold() && wanted == LateLibraries::Hold;
    if wanted == LateLibraries::Hold && !hold {
        let level = if args.late_libraries.is_some() { LogLevel::Warning } else { LogLevel::Info };
        let text = format_args!(
            "this kernel cannot hold a thread (Linux 6.0): first calls into a library that is loaded by its path may be missed; \
             --late-libraries=stop stops the process for a moment, which the program can see"
        );
        message(args.collect.level_of_messages(), level, text);
    }
    // With holds, a stop is left for a loader that is not known yet.
    let stop = (wanted == LateLibraries::Stop || hold && starts) && kernel.features().send_signal;
    FollowOptions { children: !args.no_children, hold, always: false, stop }
}

/// What the options mean for the kernel side.
fn kernel_options(args: &TraceArgs, wanted_ops: &OpsOptions, started: Option<Pid>) -> KernelOptions {
    KernelOptions {
        ring_bytes: args.ring_size,
        perf: args.transport == Transport::Perf,
        link_mode: args.link.map(LinkMode::from),
        max_rows: args.max_rows,
        tracefs: args.tracefs,
        objects: wanted_ops.choice.torch(),
        arrays: wanted_ops.accesses,
        stacks: stacks::options(args),
        watch: args.watch.is_some(),
        home_group: started.map_or(0, |group| group.as_raw().cast_unsigned()),
    }
}

/// Starts asking the driver for its figures, unless nobody wants them.
fn start_usage(args: &TraceArgs, trigger: Trigger, reader: &Reader, crew: &Crew) -> Result<Option<Sampler>> {
    let options =
        Options { interval: args.usage_interval, per_second: args.usage_rate, library: args.usage_library.clone() };
    if options.interval.is_zero() && options.per_second == 0 {
        return Ok(None);
    }
    let (notes, level) = (reader.notes(), args.collect.level_of_messages());
    let send = move |note: &Note| notes.send(note_record(monotonic_ns(), 0, note));
    let tell = move |tell| match tell {
        Tell::Found(what) => message(level, LogLevel::Debug, format_args!("the driver's figures come from {what}")),
        Tell::Absent(why) => message(
            level,
            LogLevel::Debug,
            format_args!("{why}: process_used, device_used and the device's line of the ledger are left out"),
        ),
        Tell::GivenUp(why) => message(
            level,
            LogLevel::Warning,
            format_args!(
                "the driver is not asked for its figures (DCMI) any more: {why}; rows are without process_used and device_used"
            ),
        ),
    };
    let started =
        Sampler::start(options, trigger, send, tell, crew).context("cannot start asking for the driver's figures")?;
    Ok(Some(started))
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
