//! Options of a trace and its outputs. Plain values with defaults, independent of a command line.

mod wanted;

use std::{ffi::OsString, path::PathBuf, time::Duration};

pub(crate) use self::wanted::DEFAULT_BLOCKS;
pub use self::wanted::{Analyses, Devices, Events, RowLevel};
use super::{
    TraceError,
    looks::{HolderOptions, Looks},
    pools::Purposes,
};
use crate::{
    analyses::select::{Condition, Filter, Selection, Window},
    follow::spawn::RunAs,
    kernel::features::LinkMode,
    locate::ops::OpsChoice,
    probes::ProbeSpec,
    sinks::{Format, StackCells, log::Level, tree::Owner},
    watch::spec::WatchSpec,
};

/// Everything that a trace can be asked for.
///
/// ```
/// use memscope::session::TraceOptions;
///
/// let options = TraceOptions { children: false, ..TraceOptions::program(["./train", "--steps", "3"]) };
/// assert_eq!(options.ring_bytes, 64 << 20);
/// ```
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub struct TraceOptions {
    /// The traced processes.
    pub traced: Traced,
    /// Trace children, too.
    pub children: bool,
    /// The collected data.
    pub collect: CollectOptions,
    /// Files to write; `None`: only the listener gets the results.
    pub output: Option<OutputOptions>,
    /// Call stacks of allocations and other calls.
    pub call_stacks: CallStacks,
    /// Name inlined functions and source lines in native stacks, which reads debug information.
    pub inlined: bool,
    /// Operators to trace; `None`: all where accesses are collected, else none.
    pub operators: Option<OpsChoice>,
    /// Functions to probe besides the built-in ones (see [`probes::user`](crate::probes::user)).
    pub probes: Vec<&'static ProbeSpec>,
    /// Collect a process's data only once its script says so.
    pub deferred: bool,
    /// Blocks to watch. Changes the program's timing and puts a signal handler into it.
    pub watch: Option<WatchSpec>,
    /// End after this time.
    pub duration: Option<Duration>,
    /// Take samples instead of running the analyses.
    pub samples: Option<Samples>,
    /// What to do when a traced process maps a library without probes; `None`: the best that the kernel has.
    pub late_libraries: Option<LateLibraries>,
    /// Bytes of the buffer between kernel and tracer.
    pub ring_bytes: u32,
    /// The driver's own figures of the devices.
    pub usage: UsageOptions,
    /// Looks at the holders of blocks.
    pub holders: HolderOptions,
    /// Measure what the BPF programs take: the kernel's statistics are on for one second in ten, which costs each call some 45 ns then.
    pub measure_programs: bool,
    /// From one look at the files of the traced processes to the next; files that none has mapped at two of them are given back, and their
    /// probes taken out. So are call stacks that no live block has, when their table is half full: an event's stacks have no frames some time
    /// after it; and a wall clock that is set back is followed. `None`: all stays until the trace ends, and times never go back.
    pub forget_unused: Option<Duration>,
    /// Leave out processes of other users.
    pub only_user: Option<u32>,
    /// Stored in the capture, to document its origin.
    pub command_line: Vec<String>,
    /// Lesser ways than the kernel offers, for tests.
    pub kernel: KernelLimits,
    /// A thread of the tracer that fails on purpose, for tests.
    pub fail_thread: Option<String>,
}

impl Default for TraceOptions {
    /// Traces no process, with the analysis of leaks and no files.
    fn default() -> Self {
        Self {
            traced: Traced::Processes(Vec::new()),
            children: true,
            collect: CollectOptions::default(),
            output: None,
            call_stacks: CallStacks::default(),
            inlined: false,
            operators: None,
            probes: Vec::new(),
            deferred: false,
            watch: None,
            duration: None,
            samples: None,
            late_libraries: None,
            ring_bytes: 64 << 20,
            usage: UsageOptions::default(),
            holders: HolderOptions::default(),
            measure_programs: false,
            forget_unused: None,
            only_user: None,
            command_line: Vec::new(),
            kernel: KernelLimits::default(),
            fail_thread: None,
        }
    }
}

impl TraceOptions {
    /// Starts this program with these arguments and traces it from its first instruction.
    #[must_use]
    pub fn program<T: Into<OsString>>(command: impl IntoIterator<Item = T>) -> Self {
        let program = Program { command: command.into_iter().map(Into::into).collect(), ..Program::default() };
        Self { traced: Traced::Program(program), ..Self::default() }
    }

    /// Traces processes that join while it runs.
    #[must_use]
    pub fn joining() -> Self {
        Self { traced: Traced::Joining, ..Self::default() }
    }

    /// Traces running processes.
    #[must_use]
    pub fn processes(pids: impl IntoIterator<Item = u32>) -> Self {
        Self { traced: Traced::Processes(pids.into_iter().collect()), ..Self::default() }
    }

    /// Whether the options go together. [`Trace::start`](super::Trace::start) does this, too.
    ///
    /// # Errors
    ///
    /// [`TraceError::Options`] with the reason.
    pub fn check(&self) -> Result<(), TraceError> {
        self.collect.check().map_err(TraceError::Options)?;
        let RowLevel { op, kernel } = self.collect.level;
        if self.watch.is_some() && !op && !kernel {
            return Err(TraceError::Options("--watch needs --level=op, kernel or both".to_owned()));
        }
        match &self.traced {
            Traced::Program(Program { command, .. }) if command.is_empty() => {
                Err(TraceError::Options("no program was given".to_owned()))
            }
            Traced::Processes(pids) if pids.is_empty() => Err(TraceError::Options("no process was given".to_owned())),
            _ => Ok(()),
        }
    }

    /// The outputs made during the trace: none if only the capture is written.
    pub(crate) fn made_meanwhile(&self) -> CollectOptions {
        let mut collect = self.collect.clone();
        if self.writes_capture_alone() {
            collect.analyses = Analyses::NONE;
        }
        collect
    }

    /// Looks for an answer that is made meanwhile: without rows there is none.
    pub(crate) fn looks(&self) -> HolderOptions {
        let has_answer = !self.writes_capture_alone();
        if has_answer { self.holders } else { HolderOptions { looks: Looks::Never, ..self.holders } }
    }

    /// Whether pools are read: those of processes that are running already.
    pub(crate) const fn reads_pools(&self) -> bool {
        self.holders.pool && !matches!(self.traced, Traced::Program(_))
    }

    /// How the purposes of their blocks are known: rows with owners wait for them.
    pub(super) fn purposes(&self) -> Purposes {
        let has_rows = self.output.as_ref().is_some_and(|output| output.rows);
        match self.traced {
            _ if !self.holders.purposes => Purposes::Never,
            Traced::Processes(_) if has_rows && self.collect.analyses.decompose() => Purposes::First,
            Traced::Processes(_) => Purposes::Later,
            _ => Purposes::Never,
        }
    }

    /// Whether the capture is the only output.
    pub(crate) fn writes_capture_alone(&self) -> bool {
        self.output.as_ref().is_some_and(|output| !output.rows)
    }
}

/// The traced processes.
#[derive(Clone, Debug)]
pub enum Traced {
    /// A program that the trace starts.
    Program(Program),
    /// Running processes.
    Processes(Vec<u32>),
    /// Those that [`Control::join`](super::Control::join) names while the trace runs, which goes on until it is asked to end.
    Joining,
}

/// A program to start.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// The program, found as a shell does, and its arguments.
    pub command: Vec<OsString>,
    /// The user to run it as; `None`: the user of this process.
    pub run_as: Option<RunAs>,
    /// Let mstx load a library of ours into the program, which makes inlined calls of mstx visible.
    pub mstx_injection: bool,
}

/// Collected data, and analyses of it.
#[derive(Clone, Debug, Default)]
pub struct CollectOptions {
    /// Rows to write.
    pub events: Events,
    /// Their detail.
    pub level: RowLevel,
    /// Devices with written rows.
    pub devices: Devices,
    /// Steps with written rows, at most five; empty: all.
    pub steps: Vec<u32>,
    /// Analyses.
    pub analyses: Analyses,
    /// A file with rules that name owners, which come before the built-in ones.
    pub rules: Option<PathBuf>,
    /// When the reported part of the run begins and ends.
    pub window: Window,
    /// Blocks to report: those that match all of these.
    pub filter: Vec<Condition>,
}

impl CollectOptions {
    /// When, for analyses that look at blocks themselves.
    pub(crate) fn window(&self) -> Selection {
        Selection { window: self.window, filter: Filter::default() }
    }
}

/// Frames of a call stack without a given depth.
pub const DEFAULT_STACK_FRAMES: u32 = 50;

/// Depths of call stacks, where they are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallStacks {
    /// Native frames.
    pub c: Option<u32>,
    /// Python frames.
    pub python: Option<u32>,
    /// Both are merged.
    pub mixed: bool,
    /// Nothing was asked for: frames of Python where the thread has some, else native ones. They are for answers, and in no rows.
    pub automatic: bool,
}

impl CallStacks {
    /// Stacks for answers if none are requested.
    pub const AUTOMATIC: Self =
        Self { c: Some(DEFAULT_STACK_FRAMES), python: Some(DEFAULT_STACK_FRAMES), mixed: false, automatic: true };
}

/// Files to write.
#[derive(Clone, Debug)]
pub struct OutputOptions {
    /// The folder, made where missing.
    pub directory: PathBuf,
    /// Make a new folder: where its name is taken, `NAME-2` and so on.
    pub new_directory: bool,
    /// User and group that everything made is handed to.
    pub owner: Option<Owner>,
    /// Write rows and run the analyses. Without, only the capture is written, at the least cost.
    pub rows: bool,
    /// Format of the rows.
    pub format: Format,
    /// How rows have their call stacks.
    pub stacks: StackCells,
    /// Write the capture: a replay makes all other outputs from it.
    pub capture: bool,
    /// Bytes of all files, beyond which the trace ends, or (with `parts`) the oldest rows are removed.
    pub max_bytes: Option<u64>,
    /// Keep only the newest rows, in this many parts.
    pub parts: Option<u32>,
    /// The least level of lines in the log file.
    pub log_level: Level,
}

impl Default for OutputOptions {
    fn default() -> Self {
        Self {
            directory: PathBuf::from("memscopeDumpResults"),
            new_directory: false,
            owner: None,
            rows: true,
            format: Format::default(),
            stacks: StackCells::default(),
            capture: true,
            max_bytes: None,
            parts: None,
            log_level: Level::default(),
        }
    }
}

/// Samples of live, free and used memory, for the listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Samples {
    /// Time from one to the next.
    pub interval: Duration,
    /// End after this number; `None`: with the trace.
    pub count: Option<u64>,
}

/// What to do when a traced process maps a library without probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LateLibraries {
    /// The thread that loads it waits in the kernel, unseen by others, so that no call is missed (Linux 6.0).
    Hold,
    /// The process is stopped for a moment by SIGSTOP, so that no call is missed; it and its parent may see that.
    Stop,
    /// Probes are placed as soon as possible; the first calls may be missed.
    Notify,
}

/// When the driver is asked for its figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageOptions {
    /// Interval; zero: never.
    pub interval: Duration,
    /// After memory has changed, at most this many times a second; 0: never.
    pub per_second: u32,
    /// A library instead of the driver's, for tests.
    pub library: Option<PathBuf>,
}

impl Default for UsageOptions {
    fn default() -> Self {
        Self { interval: Duration::from_secs(1), per_second: 10, library: None }
    }
}

/// Lesser ways than the kernel offers, for tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelLimits {
    /// Link probes in this way.
    pub link_mode: Option<LinkMode>,
    /// Use perf buffers even where there is a ring buffer.
    pub perf: bool,
    /// Serve fewer rows.
    pub max_rows: Option<u16>,
    /// Learn of processes through tracefs.
    pub tracefs: bool,
    /// Load this BPF object instead of the built-in one.
    pub object: Option<&'static [u8]>,
}
