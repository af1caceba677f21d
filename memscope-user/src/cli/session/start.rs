//! Sets up everything that a trace needs.

use std::{
    sync::mpsc,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, anyhow};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::{Plan, Session, tell::unserved_text, watch};
use crate::{
    attach::{
        capabilities,
        features::LinkMode,
        follow::{Follow, FollowOptions},
        guard::Guard,
        kernel::{Kernel, KernelOptions, StackOptions},
        libraries::Libraries,
        ops::OpsOptions,
        python::Interpreters,
        spawn,
    },
    capture::{self, CaptureHeader, Note, WriterOptions, note_record},
    cli::{
        args::{CollectMode, LateLibraries, LogLevel, TraceArgs, Transport},
        message, operators,
        signals::Signals,
        stacks,
        writer::{self, Work},
    },
    pipeline::{Pipeline, PipelineConfig},
    probes::ProbeSpec,
    ring::{Reader, Source, monotonic_ns},
    sinks::gauge::GaugeSink,
    usage::{Options, Sampler, Tell, Trigger},
};

impl<'a> Session<'a> {
    pub(super) fn start(args: &'a TraceArgs, guard: Guard, plan: Plan, late: LateLibraries) -> Result<Self> {
        let Loaded { mut kernel, libraries, user, stacks: stack_options, source } = Loaded::new(args)?;
        let rows = libraries.descriptions();
        let (start_mono_ns, start_real_ns) = clocks();
        let Plan { mut sinks, analyses, dump, owners, capture, trigger, selected, monitor, dirs } = plan;
        let deferred = args.collect_mode == CollectMode::Deferred;
        let mixed_stacks = args.call_stack.is_some_and(|stacks| stacks.mixed);
        let header = CaptureHeader {
            tool_version: env!("CARGO_PKG_VERSION").to_owned(),
            arch: std::env::consts::ARCH.to_owned(),
            kernel: kernel_release(),
            start_mono_ns,
            start_real_ns,
            options: std::env::args().collect(),
            rows: rows.clone(),
            mixed_stacks,
            deferred,
        };
        let capture_writer = match &capture {
            Some(path) => {
                let options = WriterOptions { owner: spawn::sudo_ids(), sync: true };
                Some(capture::Writer::create(path, &header, options)?)
            }
            None => None,
        };
        let recorded = args.capture_only.then(|| trigger.clone());
        let (gauge_sink, gauge) = GaugeSink::new();
        sinks.push(Box::new(gauge_sink));
        let config = PipelineConfig { rows, start_mono_ns, start_real_ns, dump, owners, mixed_stacks, deferred };
        let pipeline = Pipeline::new(config, sinks, analyses);
        let (urgent_sender, urgent) = unbounded_channel();
        let (error_sender, output_errors): (UnboundedSender<String>, _) = unbounded_channel();
        // Signals are blocked before the first thread starts, so that they reach the loop alone.
        Signals::block()?;
        let prompt = stack_options.native_depth.is_some() || args.watch.is_some();
        let (watch, tap) = watch::start(args, &mut kernel, &libraries, dirs)?.unzip();
        let (reader, batches) = Reader::start(source, args.ring_size as usize, prompt, urgent_sender, tap)?;
        let interpreters = Interpreters::new();
        let (batches, stacks) = stacks::start(args, &kernel, interpreters.layouts(), batches)?;
        let (asks, asked) = mpsc::channel();
        let (answer, answers) = unbounded_channel();
        let work = Work { pipeline, capture: capture_writer, recorded, spent: reader.spent(), errors: error_sender };
        let writer = writer::start(batches, work, asked)?;
        let usage = start_usage(args, trigger, &reader)?;
        let how = args.late_libraries.unwrap_or(late);
        let stop = how == LateLibraries::Stop && kernel.features().send_signal;
        let follow_options = FollowOptions { children: !args.no_children, stop };
        let mut follow = Follow::new(follow_options, libraries, guard);
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
            gauge,
            usage,
            watch,
            stacks,
            capture,
            started: Instant::now(),
            child: None,
            waiting_told: false,
            user,
        })
    }
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
    fn new(args: &TraceArgs) -> Result<Self> {
        let wanted_ops = operators::wanted(args);
        let options = kernel_options(args, &wanted_ops);
        let mut kernel = Kernel::load(&options)?;
        let source = kernel.source(&options)?;
        operators::check(&wanted_ops, kernel.link_mode()).map_err(|reason| anyhow!(reason))?;
        if let Some(text) = operators::untold(&wanted_ops, kernel.link_mode()) {
            message(args.collect.level_of_messages(), LogLevel::Warning, format_args!("{text}"));
        }
        let user = args.probes.specs().map_err(|reason| anyhow!(reason))?;
        let libraries = Libraries::new(&mut kernel, wanted_ops, &watch::with_rows(args, &user), watch::levels(args))?;
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

/// What the options mean for the kernel side.
fn kernel_options(args: &TraceArgs, wanted_ops: &OpsOptions) -> KernelOptions {
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
    }
}

/// Starts asking the driver for its figures, unless nobody wants them.
fn start_usage(args: &TraceArgs, trigger: Trigger, reader: &Reader) -> Result<Option<Sampler>> {
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
        Sampler::start(options, trigger, send, tell).context("cannot start asking for the driver's figures")?;
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
