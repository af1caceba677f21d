//! Options of a live trace.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, ValueEnum};

use super::help_texts::{HOLDERS, HOW, LIMITS, MESSAGES, OUTPUT, RECORD};
use super::{CollectArgs, CollectMode, collect::NO_STACKS_VARIABLE};
use crate::{
    cli::{
        report, runs,
        values::{self, Ops},
    },
    follow::spawn::SpawnError,
    kernel::features::LinkMode,
    probes::{ProbeSpec, user},
    session::{
        self, CallStacks, HolderOptions, KernelLimits, Looks, OutputOptions, TraceError, TraceOptions, Traced,
        UsageOptions,
    },
    sinks::StackCells,
    watch::spec::WatchSpec,
};

/// Transport of records out of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum Transport {
    /// Ring buffer where the kernel has it.
    #[default]
    Auto,
    /// Perf event array.
    Perf,
}

/// How probes are linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum Link {
    /// One link for many probes.
    Multi,
    /// One link per probe.
    Cookie,
    /// One program per probe.
    Slots,
}

impl From<Link> for LinkMode {
    fn from(link: Link) -> Self {
        match link {
            Link::Multi => Self::Multi,
            Link::Cookie => Self::Cookie,
            Link::Slots => Self::Slots,
        }
    }
}

/// What to do when a traced process maps a library that is not probed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum LateLibraries {
    /// Have the thread that loads it wait in the kernel, unseen by others, so that not one call is missed (Linux 6.0).
    Hold,
    /// Stop the process for a moment by SIGSTOP, so that not one call is missed; it and its parent may see that.
    Stop,
    /// Attach as soon as possible; the first calls may be missed.
    Notify,
}

impl From<LateLibraries> for session::LateLibraries {
    fn from(how: LateLibraries) -> Self {
        match how {
            LateLibraries::Hold => Self::Hold,
            LateLibraries::Stop => Self::Stop,
            LateLibraries::Notify => Self::Notify,
        }
    }
}

/// Functions that the user wants to be probed.
#[derive(Clone, Debug, Default, Args)]
pub(in crate::cli) struct ProbeArgs {
    /// Also probe this function, e.g. `libmypool.so:my_alloc=alloc(size=0,ret=ptr)`; docs/commands.md has the kinds.
    #[arg(help_heading = RECORD, long = "probe", value_name = "SPEC", value_parser = user::parse)]
    pub probe: Vec<&'static ProbeSpec>,
    /// The same from a JSON file.
    #[arg(help_heading = RECORD, long, value_name = "FILE")]
    pub probes: Option<PathBuf>,
}

impl ProbeArgs {
    /// All of them, or what is wrong with one.
    pub(in crate::cli) fn specs(&self) -> Result<Vec<&'static ProbeSpec>, String> {
        let mut specs = self.probe.clone();
        if let Some(path) = &self.probes {
            specs.extend(user::read_file(path)?);
        }
        user::check_together(&specs)?;
        Ok(specs)
    }
}

/// Live tracing.
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
#[derive(Clone, Debug, Args)]
pub(in crate::cli) struct TraceArgs {
    /// What is collected.
    #[command(flatten)]
    pub collect: CollectArgs,
    /// Operators to trace: all, npu (those that `torch_npu` gives to the device), names such as add or add.Tensor, none
    /// [default: all if --events has access, otherwise none].
    #[arg(help_heading = RECORD, long, value_name = "LIST")]
    pub ops: Option<Ops>,
    /// What else to probe.
    #[command(flatten)]
    pub probes: ProbeArgs,
    /// Record these call stacks, in rows too: python, c, or mixed (both, merged), each with an optional depth, as in `python:20`
    /// [default: frames of Python where the thread has some, else of C, for the report; default depth: 50].
    #[arg(help_heading = RECORD, long, value_name = "LIST")]
    pub call_stack: Option<CallStacks>,
    /// Record no call stacks: an event costs the program about 2 µs less, and places have no lines.
    #[arg(help_heading = RECORD, long, env = NO_STACKS_VARIABLE, hide_env = true)]
    pub no_stacks: bool,
    /// Show inlined functions and source lines in C stacks (reads debug information).
    #[arg(help_heading = RECORD, hide_short_help = true, long)]
    pub inlined: bool,
    /// immediate, or deferred until the script starts it.
    #[arg(help_heading = RECORD, hide_short_help = true, long, value_enum, default_value_t)]
    pub collect_mode: CollectMode,
    /// Watch the outputs of an operator, or what a script names, until another one ends: [START[:OUTPUT]],END[,full-content].
    /// Changes the program's timing and puts a signal handler into it.
    #[arg(help_heading = RECORD, long, value_name = "SPEC")]
    pub watch: Option<WatchSpec>,
    /// Stop tracing after this time: 30s, 5m, 500ms.
    #[arg(help_heading = LIMITS, short = 'd', long, alias = "for", value_name = "TIME", value_parser = values::duration)]
    pub duration: Option<Duration>,
    /// Stop tracing when the rows and the capture have this size, looked at once a second: 500M, 20G. The program goes on.
    #[arg(help_heading = LIMITS, long, value_name = "SIZE", value_parser = values::size_limit)]
    pub max_size: Option<u64>,
    /// Do not end at --max-size: keep the newest rows, in N parts that are a file with a header each; the oldest is removed when the newest
    /// is full. Needs --no-capture, as a capture is in one piece.
    #[arg(help_heading = LIMITS, hide_short_help = true, long, value_name = "N", requires_all = ["max_size", "no_capture"], value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub rotate: Option<u32>,
    /// Do not trace children.
    #[arg(help_heading = HOW, long)]
    pub no_children: bool,
    /// Libraries mapped later: hold the thread that loads them while attaching (default; Linux 6.0), notify (default on older
    /// kernels), or stop the process by SIGSTOP, which it may see.
    #[arg(help_heading = HOW, hide_short_help = true, long, value_enum, value_name = "HOW")]
    pub late_libraries: Option<LateLibraries>,
    /// Bytes of the buffer between kernel and tracer.
    #[arg(help_heading = HOW, hide_short_help = true, long, value_name = "SIZE", value_parser = values::bytes, default_value = "64M")]
    pub ring_size: u32,
    /// auto or perf.
    #[arg(help_heading = HOW, hide_short_help = true, long, value_enum, default_value_t)]
    pub transport: Transport,
    /// Interval for reading device usage from the driver (DCMI); 0s turns it off.
    #[arg(help_heading = HOW, hide_short_help = true, long, value_name = "TIME", value_parser = values::interval, default_value = "1s")]
    pub usage_interval: Duration,
    /// Extra readings after allocations and frees, at most N per second; 0 turns them off.
    #[arg(help_heading = HOW, hide_short_help = true, long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1000), default_value_t = 10)]
    pub usage_rate: u32,
    /// Take them by this library instead of the driver's: for tests.
    #[arg(long, value_name = "FILE", hide = true)]
    pub usage_library: Option<PathBuf>,
    /// Use a lesser way of linking than this kernel offers.
    #[arg(long, value_enum, hide = true)]
    pub link: Option<Link>,
    /// Serve fewer probe rows than this kernel could.
    #[arg(long, value_name = "ROWS", hide = true)]
    pub max_rows: Option<u16>,
    /// Learn of processes through tracefs even where that is not needed.
    #[arg(long, hide = true)]
    pub tracefs: bool,
    /// Leave out processes of other users.
    #[arg(long, value_name = "UID", hide = true)]
    pub only_user: Option<u32>,
    /// Have this thread of the tracer fail: for tests.
    #[arg(long, value_name = "THREAD", hide = true)]
    pub fail_thread: Option<String>,
    /// Write no capture (no replay, no recovery, no page).
    #[arg(help_heading = OUTPUT, long, conflicts_with = "html")]
    pub no_capture: bool,
    /// Write only the capture, at the least cost: `replay` makes rows and a report from it.
    #[arg(help_heading = OUTPUT, long, conflicts_with_all = ["no_capture", "analysis", "format", "steps"])]
    pub capture_only: bool,
    /// Look more often at what still holds blocks: every 5 s, with at most a fourth of a processor [default: when a request has failed,
    /// while places grow and before the trace ends; at most once a minute, with at most a twentieth].
    #[arg(help_heading = HOLDERS, long, conflicts_with_all = ["no_holders", "capture_only"])]
    pub holders: bool,
    /// Do not look at what holds blocks, nor into the pool at the attach: the memory of the processes is not read.
    #[arg(help_heading = HOLDERS, long)]
    pub no_holders: bool,
    /// Do not read the pool of a process that is attached to: blocks from before the attach are known by their sum alone.
    #[arg(help_heading = HOLDERS, hide_short_help = true, long)]
    pub no_pool_at_attach: bool,
    /// Leave keys of dicts out of the names of holders: they are data of the program.
    #[arg(help_heading = HOLDERS, hide_short_help = true, long)]
    pub no_keys: bool,
    /// No status line.
    #[arg(help_heading = MESSAGES, hide_short_help = true, long)]
    pub no_progress: bool,
}

impl TraceArgs {
    /// The outputs made during the trace.
    pub(in crate::cli) fn made_meanwhile(&self) -> CollectArgs {
        let mut collect = self.collect.clone();
        if self.capture_only {
            collect.analysis.chosen = session::Analyses::NONE;
        }
        collect
    }

    /// Which stacks are taken.
    fn call_stacks(&self) -> CallStacks {
        let unasked = if self.no_stacks { CallStacks::default() } else { CallStacks::AUTOMATIC };
        self.call_stack.unwrap_or(unasked)
    }

    /// Looks at the holders of blocks.
    const fn holders(&self) -> HolderOptions {
        let looks = match (self.no_holders, self.holders) {
            (true, _) => Looks::Never,
            (false, true) => Looks::Often,
            (false, false) => Looks::Seldom,
        };
        HolderOptions { looks, keys: !self.no_keys, pool: !self.no_holders && !self.no_pool_at_attach, purposes: true }
    }

    /// The library's options for these processes, with output.
    pub(in crate::cli) fn writing(&self, traced: Traced) -> Result<TraceOptions, TraceError> {
        let folder = runs::folder_of(&traced);
        let options = self.options(traced)?;
        let output = OutputOptions {
            rows: !self.capture_only,
            capture: !self.no_capture,
            max_bytes: self.max_size,
            parts: self.rotate,
            ..self.collect.output_or(folder).map_err(SpawnError::from)?
        };
        let unasked = options.call_stacks.automatic && self.collect.stacks.is_none();
        let output = if unasked { OutputOptions { stacks: StackCells::Absent, ..output } } else { output };
        Ok(TraceOptions { output: Some(output), ..options })
    }

    /// The library's options for these processes.
    pub(in crate::cli) fn options(&self, traced: Traced) -> Result<TraceOptions, TraceError> {
        report::refuse_borrowed_rights(self.usage_library.as_deref()).map_err(TraceError::Options)?;
        let probes = self.probes.specs().map_err(TraceError::Options)?;
        Ok(TraceOptions {
            traced,
            children: !self.no_children,
            collect: self.collect.options(),
            output: None,
            call_stacks: self.call_stacks(),
            inlined: self.inlined,
            operators: self.ops.clone().map(|ops| ops.0),
            probes,
            deferred: self.collect_mode == CollectMode::Deferred,
            watch: self.watch.clone(),
            duration: self.duration,
            samples: None,
            late_libraries: self.late_libraries.map(Into::into),
            ring_bytes: self.ring_size,
            usage: UsageOptions {
                interval: self.usage_interval,
                per_second: self.usage_rate,
                library: self.usage_library.clone(),
            },
            holders: self.holders(),
            measure_programs: false,
            forget_unused: None,
            only_user: self.only_user,
            command_line: std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect(),
            kernel: KernelLimits {
                link_mode: self.link.map(Into::into),
                perf: self.transport == Transport::Perf,
                max_rows: self.max_rows,
                tracefs: self.tracefs,
                object: None,
            },
            fail_thread: self.fail_thread.clone(),
        })
    }
}

impl Default for TraceArgs {
    /// As without any option.
    fn default() -> Self {
        #[derive(Parser)]
        struct Nothing {
            #[command(flatten)]
            trace: TraceArgs,
        }
        Nothing::parse_from([""]).trace
    }
}
