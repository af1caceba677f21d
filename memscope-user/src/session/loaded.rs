//! The kernel side of a trace that begins: what is loaded, and how processes are followed.

use nix::unistd::Pid;

use super::{
    TraceError,
    log::Speaker,
    operators,
    options::{LateLibraries, TraceOptions, Traced},
    side, stacks,
    text::unserved_text,
};
use crate::{
    capture::note_record,
    follow::{
        Follow, FollowOptions,
        guard::Guard,
        interpreters::Interpreters,
        libraries::{Libraries, RowChoice},
        waits::Waits,
    },
    kernel::{Kernel, KernelOptions, StackOptions},
    locate::ops::OpsOptions,
    os::{capabilities, clock::monotonic_ns},
    ring::{Reader, Source},
    sinks::log::Level,
};

/// Message when stacks are taken without a request.
const UNASKED_STACKS: &str = "call stacks are taken: of Python where a thread has frames of it, else of C, about 2 µs for each event; --no-stacks takes none";

/// State before the loop's first thread.
pub(super) struct Loaded {
    pub(super) kernel: Kernel,
    pub(super) libraries: Libraries,
    pub(super) source: Source,
}

impl Loaded {
    /// Loads the kernel side, has it follow processes, and gives up the rights that this took.
    pub(super) fn new(options: &TraceOptions, home: Option<Pid>, speaker: &Speaker) -> Result<Self, TraceError> {
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
        // An agent has a budget, and does not hurry.
        let hurries = !matches!(options.traced, Traced::Joining);
        let kept = if hurries { capabilities::keep_for_threads() } else { capabilities::keep_for_trace() };
        if let Err(error) = kept {
            speaker.warn(format_args!("capabilities that are not needed any more could not be dropped: {error}"));
        }
        Ok(Self { kernel, libraries, source })
    }
}

/// The optional rows that the options need, each at every launch or allocation. Block watch has to know when the
/// runtime may hold its locks; a thread's next action shows whether a request failed for good. Of a capture any question is asked later.
fn choice(options: &TraceOptions) -> RowChoice {
    let analyses = options.collect.analyses;
    let all = options.watch.is_some() || analyses.oom().is_some();
    let waits = analyses.cheap || analyses.questions.has("waits");
    let stream_uses = waits || options.output.as_ref().is_some_and(|output| output.capture);
    RowChoice { launches: all || options.collect.level.kernel, requests: all, stream_uses }
}

/// Follows processes, which are not known yet; `starts`: we start the program.
pub(super) fn start_follow(
    options: &TraceOptions,
    (kernel, libraries, interpreters): (&Kernel, Libraries, Interpreters),
    (guard, waits, starts): (Guard, Waits, bool),
    reader: &Reader,
    speaker: &Speaker,
) -> Follow {
    let stacks = kernel.stacks();
    let looks_at_processes = stacks != StackOptions::default() || options.watch.is_some();
    let follow_options =
        FollowOptions { always: looks_at_processes, ..follow_options(options, starts, kernel, speaker) };
    let mut follow = Follow::new(follow_options, libraries, &options.probes, guard, waits);
    // A trace that processes join documents its stacks elsewhere.
    let is_asked = matches!(options.traced, Traced::Joining) || !stacks.automatic;
    if !is_asked && stacks != (StackOptions { automatic: true, ..StackOptions::default() }) {
        speaker.info(format_args!("{UNASKED_STACKS}"));
    }
    if let Some(why) = kernel.no_python() {
        speaker.warn(format_args!("no Python stacks are taken: {why}"));
    } else if stacks.python_depth.is_some() {
        follow.follow_python(interpreters);
    }
    let notes = reader.first_notes();
    follow.set_on_note(move |note| notes.send(note_record(monotonic_ns(), 0, &note)));
    follow
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
        stacks_vary: matches!(options.traced, Traced::Joining),
        watch: options.watch.is_some(),
        home_group: home.map_or(0, |group| group.as_raw().cast_unsigned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::options::{Analyses, CollectOptions, OutputOptions};

    /// Calls of `record_stream` are recorded where `waits` is asked, by its word or by `auto`, or may be asked later.
    #[test]
    fn stream_uses_are_recorded_where_they_are_asked_for() {
        let records = |analyses, output| {
            let collect = CollectOptions { analyses, ..CollectOptions::default() };
            choice(&TraceOptions { collect, output, ..TraceOptions::program(["true"]) }).stream_uses
        };
        let with = |analyses| records(analyses, None);
        assert!(!with(Analyses::NONE) && !with(Analyses::NONE.with("leaks")));
        assert!(with(Analyses::NONE.with("waits")) && with(Analyses { cheap: true, ..Analyses::NONE }));
        let written = |capture| records(Analyses::NONE, Some(OutputOptions { capture, ..OutputOptions::default() }));
        assert_eq!([written(true), written(false)], [true, false]);
    }
}
