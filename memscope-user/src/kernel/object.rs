//! Loads the BPF object for this kernel.

use std::{collections::HashMap, sync::Arc};

use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, ProgramArray},
    programs::{ProgramError, UProbe, uprobe::UProbeLink},
    util::{nr_cpus, online_cpus},
};
use memscope_common::{
    Config, ProbeRow, SitePlaces,
    config::{ANY_USER, TRANSPORT_PERF, TRANSPORT_RING},
    row::{JUMP_ENTER, JUMP_LEAVE, JUMP_LEAVE_OWN, JUMPS},
    stack::{SCRATCH_PER_CPU, STACK_NATIVE, STACKS_VARY},
    unwind::RULES,
};
use nix::unistd::Uid;

use super::{
    error::{KernelError, map_error, no_map, refused},
    features::{Features, LinkMode},
    options::{KernelOptions, StackOptions, ring_size},
    placing::Placing,
    privileges,
    programs::{Programs, program, slot},
    task_layout,
    tracepoints::Tracepoints,
};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/memscope.bpf.o"));

/// Most threads with records of objects: those take 4 KiB each.
const OBJECT_THREADS: u32 = 4096;
/// The same where only scripts hand arrays over.
const SCRIPT_THREADS: u32 = 256;
/// Most threads without a slot: all of theirs were taken.
const THREADS_WITHOUT_SLOT: u32 = 1024;
/// Most ids of stacks known to have been sent; a forgotten stack is sent again.
const STACKS_SENT: u32 = 1 << 16;
/// Most recent requests for rules.
const RULES_ASKED: u32 = 1 << 14;

/// Most processes with known Python interpreters: as many as are traced.
const PYTHON_PROCESSES: u32 = 16_384;
/// Most processes with watched blocks.
const WATCHED_PROCESSES: u32 = 1024;
/// Most stacks and code objects known to have been sent; the oldest are sent again.
const PYTHON_SENT: u32 = 65_536;

/// The kernel side, loaded.
pub struct Kernel {
    pub(super) ebpf: Ebpf,
    pub(super) mode: LinkMode,
    pub(super) features: Features,
    pub(super) rows: u16,
    pub(super) max_rows: u16,
    /// Why Python stacks are wanted and not taken.
    pub(super) no_python: Option<String>,
    /// Texts can be brought into memory before they are read.
    pub(super) can_touch: bool,
    /// One program waits for a text, reads and reports it, where otherwise two run.
    pub(super) enters_text: bool,
    /// Threads can be held.
    pub(super) can_hold: bool,
    pub(super) stacks: StackOptions,
    pub(super) links: Vec<(LinkSet, UProbeLink)>,
    /// Number of sets of probes so far.
    pub(super) sets: u32,
    pub(super) tracepoints: Tracepoints,
    /// Numbers of places that the kernel side knows.
    pub(super) sites: HashMap<SitePlaces, u32>,
    /// Number of processes added to the trace or removed.
    pub(super) process_changes: u64,
    /// Whether a probe is being placed.
    pub(super) placing: Arc<Placing>,
}

/// Probes that are taken out together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkSet(pub(super) u32);

/// Whether this library was built without its BPF object.
#[must_use]
pub const fn lacks_object() -> bool {
    OBJECT.is_empty()
}

/// Whether Python stacks can be taken here: where a task has its thread pointer, or why not.
pub fn python_support(features: Features, mode: LinkMode) -> Result<u32, String> {
    if !features.loops {
        return Err("this kernel has no loops in BPF programs (bpf_loop)".to_owned());
    }
    if mode == LinkMode::Slots {
        return Err("probes without attach cookies cannot take them".to_owned());
    }
    task_layout::thread_pointer()
}

/// Entries for maps that hold threads or processes: grows with the machine.
fn thread_entries() -> u32 {
    let cpus = online_cpus().map_or(1, |cpus| cpus.len());
    u32::try_from(cpus * 64).unwrap_or(u32::MAX).clamp(16_384, 131_072)
}

/// Most concurrent walks of native stacks: each takes 78 KiB.
fn stack_slots() -> u32 {
    const AT_LEAST: u32 = 8;
    let cpus = online_cpus().map_or(1, |cpus| cpus.len());
    u32::try_from(cpus * 2).unwrap_or(u32::MAX).max(AT_LEAST)
}

/// The choice of this kernel's features.
struct Choice {
    features: Features,
    mode: LinkMode,
    perf: bool,
    stacks: StackOptions,
    no_python: Option<String>,
    thread_pointer: u32,
    /// Threads have their state by compare-and-exchange.
    exchanges: bool,
}

impl Choice {
    fn new(options: &KernelOptions, features: Features) -> Self {
        let mode = options.link_mode.unwrap_or_else(|| features.link_mode());
        let (mut stacks, mut no_python, mut thread_pointer) = (options.stacks, None, 0);
        if stacks.python_depth.is_some() {
            match python_support(features, mode) {
                Ok(offset) => thread_pointer = offset,
                Err(_) if stacks.automatic => stacks.python_depth = None,
                Err(why) => (stacks.python_depth, no_python) = (None, Some(why)),
            }
        }
        // Each would be sent as a copy of the stack.
        if stacks.automatic && !features.loops {
            stacks.native_depth = None;
        }
        let perf = options.perf || !features.ring_buffer;
        // Programs of single rows have to load on kernels without them.
        let exchanges = features.exchanges && mode != LinkMode::Slots;
        Self { features, mode, perf, stacks, no_python, thread_pointer, exchanges }
    }

    fn config(&self, options: &KernelOptions) -> Config {
        let Self { features, stacks, exchanges, .. } = *self;
        // Without it, a handler that the program has put up later is not noticed.
        let (sighand, urgent_handler) =
            if options.watch { task_layout::urgent_handler().unwrap_or_default() } else { (0, 0) };
        Config {
            transport: if self.perf { TRANSPORT_PERF } else { TRANSPORT_RING },
            wake_bytes: options.ring_bytes / 8,
            stacks: stacks.bits() | if options.stacks_vary { STACKS_VARY } else { 0 },
            native_depth: stacks.native_depth.unwrap_or(0),
            python_depth: stacks.python_depth.unwrap_or(0),
            loops: features.loops.into(),
            thread_pointer: self.thread_pointer,
            native_slots: stack_slots(),
            exchanges: exchanges.into(),
            thread_slots: if exchanges { thread_entries().next_power_of_two() } else { 0 },
            watch: options.watch.into(),
            task_sighand: sighand,
            urgent_handler,
            home_group: options.home_group,
            tracer: std::process::id(),
            offsets: task_layout::offsets(),
            stop_user: if privileges::may_signal_all() { ANY_USER } else { Uid::current().as_raw() },
            ..Config::default()
        }
    }

    fn load(&self, options: &KernelOptions, config: &Config) -> Result<Ebpf, KernelError> {
        let native = self.stacks.bits() & u32::from(STACK_NATIVE) != 0;
        // Unused maps have one entry.
        let if_native = |entries| if native { entries } else { 1 };
        let ring_bytes = if self.perf { 4096 } else { ring_size(options.ring_bytes) };
        // One entry where nothing is wanted.
        let python = |entries: u32| if self.stacks.python_depth.is_some() { entries } else { 1 };
        let slots = nr_cpus().map_or(1, u32::from).saturating_mul(SCRATCH_PER_CPU);
        EbpfLoader::new()
            .override_global("CONFIG", config, true)
            .map_max_entries("EVENTS", ring_bytes)
            .map_max_entries("THREADS", if self.exchanges { THREADS_WITHOUT_SLOT } else { thread_entries() })
            .map_max_entries("THREAD_SLOTS", config.thread_slots.max(1))
            .map_max_entries("TENSORS", if options.objects || options.arrays { OBJECT_THREADS } else { SCRIPT_THREADS })
            .map_max_entries("RESULTS", if options.objects { OBJECT_THREADS } else { 1 })
            .map_max_entries("PYTHON", python(PYTHON_PROCESSES))
            .map_max_entries("PYTHON_SENT", python(PYTHON_SENT))
            .map_max_entries("PYTHON_CODES", python(PYTHON_SENT))
            .map_max_entries("PYTHON_LOCKS", python(slots))
            .map_max_entries("PYTHON_LOCKED", python(slots))
            .map_max_entries("PYTHON_SCRATCH", python(slots))
            .map_max_entries("WATCHED", if options.watch { WATCHED_PROCESSES } else { 1 })
            .map_max_entries("WATCH_IDLE", if options.watch { WATCHED_PROCESSES } else { 1 })
            .map_max_entries("WATCH_SITES", if options.watch { thread_entries() } else { 1 })
            .map_max_entries("UNWIND_RULES", if_native(RULES))
            .map_max_entries("STACK_SLOTS", if_native(config.native_slots))
            .map_max_entries("STACK_LOCKS", if_native(config.native_slots))
            .map_max_entries("STACK_LOCKED", if_native(config.native_slots))
            .map_max_entries("STACKS_SENT", if_native(STACKS_SENT))
            .map_max_entries("RULES_ASKED", if_native(RULES_ASKED))
            .allow_unsupported_maps()
            .load(options.object.unwrap_or(OBJECT))
            .map_err(privileges::refused_object)
    }
}

impl Kernel {
    /// Checks privileges and kernel, then loads the object. The programs are attached by [`Self::follow`] and
    /// [`Self::attach`].
    pub fn load(options: &KernelOptions) -> Result<Self, KernelError> {
        let features = Features::probe();
        privileges::check(features, options.link_mode)?;
        // Some kernels that cannot link so load the programs for it all the same.
        if let Some(missing) = options.link_mode.and_then(|mode| features.missing_for(mode)) {
            return Err(KernelError::Link { missing });
        }
        match Self::load_with(options, features) {
            // The verifier of an older kernel gives up before it has seen all ways through the quicker programs, which are larger.
            Err(KernelError::Program { .. }) if features.exchanges => {
                Self::load_with(options, Features { exchanges: false, ..features })
            }
            loaded => loaded,
        }
    }

    fn load_with(options: &KernelOptions, features: Features) -> Result<Self, KernelError> {
        let tracepoints = Tracepoints::find(options.tracefs)?;
        privileges::raise_memlock();
        privileges::raise_open_files();
        let choice = Choice::new(options, features);
        let mut config = choice.config(options);
        tracepoints.configure(&mut config);
        let ebpf = choice.load(options, &config)?;
        let Choice { mode, stacks, no_python, .. } = choice;
        let max_rows = options.max_rows.unwrap_or(u16::MAX).min(mode.max_rows());
        let mut kernel = Self {
            ebpf,
            mode,
            features,
            rows: 0,
            max_rows,
            no_python,
            can_touch: false,
            enters_text: false,
            can_hold: false,
            stacks,
            links: Vec::new(),
            sets: 0,
            tracepoints,
            sites: HashMap::new(),
            process_changes: 0,
            placing: Arc::default(),
        };
        kernel.load_probes(options)?;
        Ok(kernel)
    }

    /// Whether a program can wait for a page that is not in memory.
    #[must_use]
    pub const fn can_touch(&self) -> bool {
        self.can_touch
    }

    /// Whether a thread can wait, invisible to others, until its new mappings are probed.
    #[must_use]
    pub const fn can_hold(&self) -> bool {
        self.can_hold
    }

    /// Loads the programs that every library gets, so that a refusal shows at once. Of programs for one row each, the
    /// first pair stands for all.
    fn load_probes(&mut self, options: &KernelOptions) -> Result<(), KernelError> {
        let Some(names) = self.shared_programs() else { return self.load_slots() };
        let needed = [names.enter, names.leave, names.leave_own];
        let wanted = [options.objects.then_some(names.tensors), options.arrays.then_some(names.tensor_array)];
        for name in needed.into_iter().chain(wanted.into_iter().flatten()) {
            self.load_once(name)?;
        }
        // Optional: needs sleepable uprobes (Linux 6.0).
        self.can_touch = self.program::<UProbe>(names.touch)?.load().is_ok();
        // Such a program cannot use perf buffers, and takes no stacks.
        let perf = options.perf || !self.features.ring_buffer;
        if self.can_touch && !perf && !options.watch && self.stacks.bits() == 0 {
            self.enters_text = self.program::<UProbe>(names.enter_text)?.load().is_ok();
        }
        self.can_hold = self.program::<UProbe>(names.hold)?.load().is_ok();
        Ok(())
    }

    /// Loads what programs of single rows jump to, and one that jumps.
    fn load_slots(&mut self) -> Result<(), KernelError> {
        const NAMES: [(u32, &str); JUMPS as usize] =
            [(JUMP_ENTER, "enter_slot"), (JUMP_LEAVE, "leave_slot"), (JUMP_LEAVE_OWN, "leave_own_slot")];
        for (number, name) in NAMES {
            self.load_once(name)?;
            let program: &mut UProbe = self.program(name)?;
            let fd =
                program.fd().and_then(|fd| fd.try_clone().map_err(Into::into)).map_err(|error| refused(name, error))?;
            let map = self.ebpf.map_mut("JUMPS").ok_or_else(|| no_map("JUMPS"))?;
            let mut jumps = ProgramArray::try_from(map).map_err(|error| map_error("JUMPS", &error))?;
            jumps.set(number, &fd, 0).map_err(|error| map_error("JUMPS", &error))?;
        }
        self.load_once(&slot("enter", 1))
    }

    /// Programs for all rows; `None` where every row has its own.
    pub(super) const fn shared_programs(&self) -> Option<Programs> {
        Programs::of(self.mode)
    }

    pub(super) fn load_once(&mut self, name: &str) -> Result<(), KernelError> {
        let program: &mut UProbe = self.program(name)?;
        if program.fd().is_ok() {
            return Ok(());
        }
        program.load().map_err(|error| refused(name, error))
    }

    /// The kernel's features.
    #[must_use]
    pub const fn features(&self) -> Features {
        self.features
    }

    /// How probes are linked.
    #[must_use]
    pub const fn link_mode(&self) -> LinkMode {
        self.mode
    }

    /// Rows that can still be added.
    #[must_use]
    pub const fn room(&self) -> u16 {
        self.max_rows.saturating_sub(self.rows)
    }

    /// Adds a row and gives its number.
    pub fn add_row(&mut self, row: &ProbeRow) -> Result<u16, KernelError> {
        if self.room() == 0 {
            return Err(KernelError::RowsFull { rows: self.rows });
        }
        let number = self.rows + 1;
        let map = self.ebpf.map_mut("ROWS").ok_or(no_map("ROWS"))?;
        let mut rows: Array<_, ProbeRow> = Array::try_from(map).map_err(|error| map_error("ROWS", &error))?;
        rows.set(u32::from(number), row, 0).map_err(|error| map_error("ROWS", &error))?;
        self.rows = number;
        Ok(number)
    }

    /// Attaches the programs that follow processes through fork, exec and exit.
    pub fn follow(&mut self) -> Result<(), KernelError> {
        let images = self.can_hold && self.features.find_vma && task_layout::offsets().known != 0;
        self.tracepoints.follow(&mut self.ebpf, images)
    }

    pub(super) fn program<'a, P>(&'a mut self, name: &str) -> Result<&'a mut P, KernelError>
    where
        &'a mut P: TryFrom<&'a mut aya::programs::Program, Error = ProgramError>,
    {
        program(&mut self.ebpf, name)
    }

    /// Which stacks are taken.
    #[must_use]
    pub const fn stacks(&self) -> StackOptions {
        self.stacks
    }

    /// Why requested Python stacks cannot be taken here.
    #[must_use]
    pub fn no_python(&self) -> Option<&str> {
        self.no_python.as_deref()
    }
}
