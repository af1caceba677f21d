//! The loaded BPF object: rows in, links made, processes named, misses read.

pub mod features;
pub mod privileges;
pub mod same_file;
pub mod semaphore;
mod tracepoints;
#[cfg(feature = "cli")]
pub mod tracers;

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use aya::{
    Ebpf, EbpfError, EbpfLoader, Pod,
    maps::{
        Array, HashMap as BpfHashMap, Map, MapData, MapError, PerCpuArray, PerfEventArray, ProgramArray, RingBuf,
        perf::PerfEventArrayBuffer,
    },
    programs::{
        ProgramError, UProbe,
        uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeLink, UProbeScope},
    },
    util::{nr_cpus, online_cpus},
};
use memscope_common::{
    Config, Miss, ProbeRow, PythonLayout, SitePlaces, WatchSite, WatchStart, WatchedProcess,
    config::{ANY_USER, ImageKey, OUTER_CHANGES, ProcessState, TRANSPORT_PERF, TRANSPORT_RING},
    miss,
    row::{JUMP_ENTER, JUMP_LEAVE, JUMP_LEAVE_OWN, JUMPS},
    site::MAX_SITES,
    stack::{SCRATCH_PER_CPU, STACK_NATIVE, STACK_PYTHON},
    unwind::RULES,
};
use nix::unistd::Uid;
use thiserror::Error;

use self::{
    features::{Features, LinkMode},
    tracepoints::Lifecycle,
};
use crate::{
    follow::waits::{MAPS as WAIT_MAPS, Waits},
    os::{btf, memory::page_size},
    ring::Source,
};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/memscope.bpf.o"));

/// Threads whose records with objects are built: those take 4 KiB each.
const OBJECT_THREADS: u32 = 4096;
/// The same where only scripts hand arrays over.
const SCRIPT_THREADS: u32 = 256;
/// Threads that found the places taken in which theirs could be.
const THREADS_WITHOUT_SEAT: u32 = 1024;
/// Stacks whose ids are known to have been told; of those forgotten the record is sent again.
const STACKS_TOLD: u32 = 1 << 16;
/// Rules that were asked for a moment ago.
const RULES_ASKED: u32 = 1 << 14;

/// Processes whose Python interpreters are known: as many as are traced.
const PYTHON_PROCESSES: u32 = 16_384;
/// Processes in which blocks are watched.
const WATCHED_PROCESSES: u32 = 1024;
/// Stacks and code objects that are not told again; of more, the oldest are.
const PYTHON_TOLD: u32 = 65_536;

/// Setting up the kernel side failed.
#[derive(Debug, Error)]
pub enum KernelError {
    /// The kernel is below the floor.
    #[error("this kernel ({release}) lacks {}; memscope-bpf needs Linux 5.10 or newer", missing.join(" and "))]
    TooOld {
        /// `uname -r`.
        release: String,
        /// What it lacks.
        missing: Vec<&'static str>,
    },
    /// The process may not trace.
    #[error("not permitted to trace: {} missing; {advice}", names.join(", "))]
    Privileges {
        /// Missing capabilities.
        names: Vec<&'static str>,
        /// How to get them.
        advice: String,
    },
    /// Maps or programs need more locked memory than the user may have.
    #[error(
        "not permitted to load BPF maps and programs: before Linux 5.11 they count as locked memory, of which this user may have {} KiB; run with sudo, or lift the limit (`ulimit -l unlimited`, memlock in /etc/security/limits.conf)",
        limit_bytes >> 10
    )]
    LockedMemory {
        /// What it may have.
        limit_bytes: u64,
        /// The refusal.
        #[source]
        source: io::Error,
    },
    /// The kernel names processes by other numbers than this process does.
    #[error("{}", features::NESTED_PIDS)]
    NestedPids,
    /// The object was refused.
    #[error("the kernel refused the BPF object")]
    Load(#[source] Box<EbpfError>),
    /// Probes cannot be linked in the way that was asked for.
    #[error(
        "the kernel refused to link as `--link` says: it has no {missing}; without `--link` the best that it has is taken"
    )]
    Link {
        /// What it lacks.
        missing: &'static str,
    },
    /// A program was refused.
    #[error("the kernel refused BPF program `{name}`")]
    Program {
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: Box<ProgramError>,
    },
    /// A probe could not be placed.
    #[error("cannot attach `{name}`")]
    Attach {
        /// Program.
        name: String,
        /// Why.
        #[source]
        source: Box<ProgramError>,
    },
    /// A map could not be used.
    #[error("cannot use BPF map `{name}`: {reason}")]
    Map {
        /// Its name.
        name: &'static str,
        /// Why.
        reason: String,
    },
    /// No tracefs and no way to mount it.
    #[error(
        "tracefs is not mounted and could not be mounted for the tracer alone; as root: mount -t tracefs nodev /sys/kernel/tracing"
    )]
    Tracefs {
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A tracepoint has another layout than any kernel known.
    #[error("tracepoint `{event}` has no field `{field}`")]
    Tracepoint {
        /// The event.
        event: &'static str,
        /// The field.
        field: &'static str,
    },
    /// More rows than the kernel side can hold.
    #[error("no room for a further probe: {rows} rows are in use")]
    RowsFull {
        /// Rows.
        rows: u16,
    },
}

/// Whether this library was built without its BPF object.
#[must_use]
pub const fn lacks_object() -> bool {
    OBJECT.is_empty()
}

/// What is chosen before loading.
#[expect(clippy::struct_excessive_bools, reason = "each is a choice of its own")]
#[derive(Clone, Copy, Debug)]
pub struct KernelOptions {
    /// Bytes of the ring, or of all perf buffers together; rounded up to a power of two of pages.
    pub ring_bytes: u32,
    /// Use perf buffers even where there is a ring buffer.
    pub perf: bool,
    /// Use a lesser way of linking than the kernel offers (for tests).
    pub link_mode: Option<LinkMode>,
    /// Serve fewer rows than the kernel could (for tests).
    pub max_rows: Option<u16>,
    /// Learn of processes through tracefs even where that is not needed (for tests).
    pub tracefs: bool,
    /// A BPF object instead of the built-in one (for tests, which are built without one).
    pub object: Option<&'static [u8]>,
    /// Rows with objects will be used.
    pub objects: bool,
    /// Rows with arrays will be used, by many threads: they are loaded at once then, else with the first such row.
    pub arrays: bool,
    /// Which stacks are taken.
    pub stacks: StackOptions,
    /// Blocks are watched.
    pub watch: bool,
    /// The process group of the program that is to be run; 0 if none is.
    pub home_group: u32,
}

/// Which stacks are taken, and how many frames of each at most; `None` or 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackOptions {
    /// Native frames.
    pub native_depth: Option<u32>,
    /// Python frames.
    pub python_depth: Option<u32>,
}

impl StackOptions {
    fn bits(self) -> u32 {
        let bit = |depth: Option<u32>, bit: u8| if depth.is_some_and(|frames| frames > 0) { u32::from(bit) } else { 0 };
        bit(self.native_depth, STACK_NATIVE) | bit(self.python_depth, STACK_PYTHON)
    }
}

/// What is needed to finish native stacks outside of the kernel.
pub struct NativeStacks {
    /// Frames of a stack at most.
    pub depth: usize,
    /// The table of rules, to be mapped: [`RULES`] entries.
    pub rules: OwnedFd,
    /// The traced processes.
    pub processes: Processes,
}

/// The traced processes, to be looked at.
pub struct Processes(BpfHashMap<MapData, u32, ProcessState>);

impl Processes {
    /// The generation of a process's mappings; `None` if it is not traced (any more).
    #[must_use]
    pub fn generation(&self, pid: u32) -> Option<u64> {
        self.0.get(&pid, 0).ok().map(|state| state.generation)
    }

    /// The generations of all processes.
    pub fn generations(&self) -> Result<Vec<u64>, MapError> {
        self.0.iter().map(|entry| entry.map(|(_, state)| state.generation)).collect()
    }
}

/// What block watch shares with the kernel side.
pub struct WatchMaps {
    /// Processes whose threads are sent to the handler.
    pub watched: BpfHashMap<MapData, u32, WatchedProcess>,
    /// Where threads were sent there, by `pid_tgid`.
    pub sites: BpfHashMap<MapData, u64, WatchSite>,
    /// Processes in which nothing is watched yet.
    pub idle: BpfHashMap<MapData, u32, u32>,
    fds: [OwnedFd; 3],
}

impl WatchMaps {
    fn open([watched, sites, idle]: [OwnedFd; 3]) -> Result<Self, KernelError> {
        fn map<K: Pod, V: Pod>(name: &'static str, fd: OwnedFd) -> Result<BpfHashMap<MapData, K, V>, KernelError> {
            let map = MapData::from_fd(fd).and_then(|map| BpfHashMap::try_from(Map::HashMap(map)));
            map.map_err(|error| map_error(name, &error))
        }
        let again = |fd: &OwnedFd| fd.try_clone().map_err(|error| map_error("WATCHED", &error));
        let fds = [again(&watched)?, again(&sites)?, again(&idle)?];
        let (watched, sites) = (map("WATCHED", watched)?, map("WATCH_SITES", sites)?);
        Ok(Self { watched, sites, idle: map("WATCH_IDLE", idle)?, fds })
    }

    /// The same maps for another thread.
    pub fn try_clone(&self) -> Result<Self, KernelError> {
        let again = |fd: &OwnedFd| fd.try_clone().map_err(|error| map_error("WATCHED", &error));
        let [watched, sites, idle] = &self.fds;
        Self::open([again(watched)?, again(sites)?, again(idle)?])
    }
}

/// One place to probe in one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Row number.
    pub row: u16,
    /// Offset in the file, in bytes.
    pub file_offset: u64,
    /// Whether the return is probed too.
    pub with_return: bool,
    /// Whether a text is read at entry.
    pub with_text: bool,
    /// What is seen there.
    pub sees: Sees,
    /// Where the arguments are, if not where they were at the entry.
    pub places: Option<SitePlaces>,
}

/// What is seen at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sees {
    /// The entry of a call.
    Entry,
    /// The entry of a call that is reported at once, with a text.
    Text,
    /// One of the function's own return instructions.
    OwnReturn,
    /// The entry of a call, and an array that its arguments lead to.
    Array,
    /// The loader has mapped something: the thread waits.
    Loader,
}

/// One place to probe whose row has objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectPoint {
    /// Row number.
    pub row: u16,
    /// What its records say of it.
    pub detail: u32,
    /// Offset in the file, in bytes.
    pub file_offset: u64,
}

/// Names of the programs that serve all rows.
#[derive(Clone, Copy)]
struct Programs {
    enter: &'static str,
    leave: &'static str,
    leave_own: &'static str,
    touch: &'static str,
    enter_text: &'static str,
    hold: &'static str,
    pass: &'static str,
    pass_array: &'static str,
    code_freed: &'static str,
}

/// The kernel side, loaded.
pub struct Kernel {
    ebpf: Ebpf,
    mode: LinkMode,
    features: Features,
    rows: u16,
    max_rows: u16,
    /// Why Python stacks are wanted and not taken.
    no_python: Option<String>,
    /// Texts can be brought into memory before they are read.
    can_touch: bool,
    /// One program waits for a text, reads and reports it, where otherwise two run.
    enters_text: bool,
    /// Threads can be held.
    can_hold: bool,
    stacks: StackOptions,
    links: Vec<UProbeLink>,
    lifecycle: Lifecycle,
    /// Numbers of places that the kernel side knows.
    sites: HashMap<SitePlaces, u32>,
    /// How often processes were put into the trace or taken out.
    process_changes: u64,
}

/// Whether Python stacks can be taken here: where a task has its thread pointer, or why not.
pub fn python_support(features: Features, mode: LinkMode) -> Result<u32, String> {
    if !features.loops {
        return Err("this kernel has no loops in BPF programs (bpf_loop)".to_owned());
    }
    if mode == LinkMode::Slots {
        return Err("probes without attach cookies cannot take them".to_owned());
    }
    btf::thread_pointer()
}

/// Entries for maps that hold threads or processes: grows with the machine.
fn thread_entries() -> u32 {
    let cpus = online_cpus().map_or(1, |cpus| cpus.len());
    u32::try_from(cpus * 64).unwrap_or(u32::MAX).clamp(16_384, 131_072)
}

/// Native stacks that can be walked at once: each takes 78 KiB.
fn stack_slots() -> u32 {
    const AT_LEAST: u32 = 8;
    let cpus = online_cpus().map_or(1, |cpus| cpus.len());
    u32::try_from(cpus * 2).unwrap_or(u32::MAX).max(AT_LEAST)
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
        let lifecycle = Lifecycle::find(options.tracefs)?;
        privileges::raise_memlock();
        privileges::raise_open_files();
        let perf = options.perf || !features.ring_buffer;
        let mode = options.link_mode.unwrap_or_else(|| features.link_mode());
        let (mut stacks, mut no_python, mut thread_pointer) = (options.stacks, None, 0);
        if stacks.python_depth.is_some() {
            match python_support(features, mode) {
                Ok(offset) => thread_pointer = offset,
                Err(why) => (stacks.python_depth, no_python) = (None, Some(why)),
            }
        }
        // Without it, a handler that the program has put up later is not noticed.
        let (sighand, urgent_handler) = if options.watch { btf::urgent_handler().unwrap_or_default() } else { (0, 0) };
        // Programs of single rows have to load where there are none.
        let exchanges = features.exchanges && mode != LinkMode::Slots;
        let mut config = Config {
            transport: if perf { TRANSPORT_PERF } else { TRANSPORT_RING },
            wake_bytes: options.ring_bytes / 8,
            stacks: stacks.bits(),
            native_depth: stacks.native_depth.unwrap_or(0),
            python_depth: stacks.python_depth.unwrap_or(0),
            loops: features.loops.into(),
            thread_pointer,
            native_slots: stack_slots(),
            exchanges: exchanges.into(),
            seats: if exchanges { thread_entries().next_power_of_two() } else { 0 },
            watch: options.watch.into(),
            task_sighand: sighand,
            urgent_handler,
            home_group: options.home_group,
            tracer: std::process::id(),
            offsets: btf::offsets(),
            stop_user: if privileges::may_signal_all() { ANY_USER } else { Uid::current().as_raw() },
            ..Config::default()
        };
        lifecycle.tell(&mut config);
        let native = stacks.bits() & u32::from(STACK_NATIVE) != 0;
        // Maps that nobody uses take no room.
        let if_native = |entries| if native { entries } else { 1 };
        let ring_bytes = if perf { 4096 } else { ring_size(options.ring_bytes) };
        // One entry where nothing is wanted.
        let python = |entries: u32| if stacks.python_depth.is_some() { entries } else { 1 };
        let slots = nr_cpus().map_or(1, u32::from).saturating_mul(SCRATCH_PER_CPU);
        let ebpf = EbpfLoader::new()
            .override_global("CONFIG", &config, true)
            .map_max_entries("EVENTS", ring_bytes)
            .map_max_entries("THREADS", if exchanges { THREADS_WITHOUT_SEAT } else { thread_entries() })
            .map_max_entries("SEATS", config.seats.max(1))
            .map_max_entries("OBJECTS", if options.objects || options.arrays { OBJECT_THREADS } else { SCRIPT_THREADS })
            .map_max_entries("RESULTS", if options.objects { OBJECT_THREADS } else { 1 })
            .map_max_entries("PYTHON", python(PYTHON_PROCESSES))
            .map_max_entries("PYTHON_SEEN", python(PYTHON_TOLD))
            .map_max_entries("PYTHON_CODES", python(PYTHON_TOLD))
            .map_max_entries("PYTHON_OWNERS", python(slots))
            .map_max_entries("PYTHON_CLAIMS", python(slots))
            .map_max_entries("PYTHON_SCRATCH", python(slots))
            .map_max_entries("WATCHED", if options.watch { WATCHED_PROCESSES } else { 1 })
            .map_max_entries("WATCH_IDLE", if options.watch { WATCHED_PROCESSES } else { 1 })
            .map_max_entries("WATCH_SITES", if options.watch { thread_entries() } else { 1 })
            .map_max_entries("UNWIND_RULES", if_native(RULES))
            .map_max_entries("STACK_SLOTS", if_native(config.native_slots))
            .map_max_entries("STACK_OWNERS", if_native(config.native_slots))
            .map_max_entries("STACK_CLAIMS", if_native(config.native_slots))
            .map_max_entries("STACKS_TOLD", if_native(STACKS_TOLD))
            .map_max_entries("RULES_ASKED", if_native(RULES_ASKED))
            .allow_unsupported_maps()
            .load(options.object.unwrap_or(OBJECT))
            .map_err(privileges::refused_object)?;
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
            lifecycle,
            sites: HashMap::new(),
            process_changes: 0,
        };
        kernel.load_probes(options)?;
        Ok(kernel)
    }

    /// Whether a page that is not in memory can be waited for.
    #[must_use]
    pub const fn can_touch(&self) -> bool {
        self.can_touch
    }

    /// Whether a thread can wait, unseen by others, until what it has mapped is probed.
    #[must_use]
    pub const fn can_hold(&self) -> bool {
        self.can_hold
    }

    /// Who waits for us.
    pub fn waits(&self) -> Result<Waits, KernelError> {
        let fd = |name: &'static str| {
            let Some(Map::HashMap(map)) = self.ebpf.map(name) else { return Err(no_map(name)) };
            map.fd().as_fd().try_clone_to_owned().map_err(|error| map_error(name, &error))
        };
        let [holds, stops, processes] = WAIT_MAPS;
        Waits::open([fd(holds)?, fd(stops)?, fd(processes)?])
    }

    /// The file that a stopped process has begun to run, and that was not known; told once.
    pub fn new_image(&mut self, pid: u32) -> Option<ImageKey> {
        let mut images = BpfHashMap::<_, u32, ImageKey>::try_from(self.ebpf.map_mut("NEW_IMAGES")?).ok()?;
        let found = images.get(&pid, 0).ok()?;
        let _ = images.remove(&pid);
        (found.inode != 0).then_some(found)
    }

    /// Programs with this loader, or of this file, need not be stopped from now on. What finds no room is stopped each time.
    pub fn know_image(&mut self, image: ImageKey) {
        let images = self.ebpf.map_mut("KNOWN_IMAGES").map(BpfHashMap::<_, ImageKey, u32>::try_from);
        if let Some(Ok(mut images)) = images {
            let _ = images.insert(&image, &1, 0);
        }
    }

    /// Loads what is attached to every library, so that a refusal shows at once. Of programs that serve one row each,
    /// the first pair stands for all.
    fn load_probes(&mut self, options: &KernelOptions) -> Result<(), KernelError> {
        let Some(names) = self.shared_programs() else { return self.load_slots() };
        let needed = [names.enter, names.leave, names.leave_own];
        let wanted = [options.objects.then_some(names.pass), options.arrays.then_some(names.pass_array)];
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

    /// Programs that serve all rows; `None` where every row has its own.
    const fn shared_programs(&self) -> Option<Programs> {
        match self.mode {
            LinkMode::Multi => Some(Programs {
                enter: "enter_multi",
                leave: "leave_multi",
                leave_own: "leave_own_multi",
                touch: "touch_multi",
                enter_text: "enter_text_multi",
                hold: "hold_multi",
                pass: "pass_multi",
                pass_array: "pass_array_multi",
                code_freed: "code_freed_multi",
            }),
            LinkMode::Cookie => Some(Programs {
                enter: "enter",
                leave: "leave",
                leave_own: "leave_own",
                touch: "touch",
                enter_text: "enter_text",
                hold: "hold",
                pass: "pass",
                pass_array: "pass_array",
                code_freed: "code_freed",
            }),
            LinkMode::Slots => None,
        }
    }

    fn load_once(&mut self, name: &str) -> Result<(), KernelError> {
        let program: &mut UProbe = self.program(name)?;
        if program.fd().is_ok() {
            return Ok(());
        }
        program.load().map_err(|error| refused(name, error))
    }

    /// What the kernel can do.
    #[must_use]
    pub const fn features(&self) -> Features {
        self.features
    }

    /// How probes are linked.
    #[must_use]
    pub const fn link_mode(&self) -> LinkMode {
        self.mode
    }

    /// What user space needs to finish native stacks; `None` if none are taken.
    pub fn native_stacks(&self) -> Result<Option<NativeStacks>, KernelError> {
        const RULE_MAP: &str = "UNWIND_RULES";
        const PROCESS_MAP: &str = "PROCESSES";
        if self.stacks.bits() & u32::from(STACK_NATIVE) == 0 {
            return Ok(None);
        }
        let (Some(Map::Array(rules)), Some(Map::HashMap(processes))) =
            (self.ebpf.map(RULE_MAP), self.ebpf.map(PROCESS_MAP))
        else {
            return Err(no_map(RULE_MAP));
        };
        let fd = |map: &MapData| map.fd().as_fd().try_clone_to_owned();
        let processes = fd(processes).map_err(|error| map_error(PROCESS_MAP, &error))?;
        let processes = MapData::from_fd(processes).and_then(|map| BpfHashMap::try_from(Map::HashMap(map)));
        Ok(Some(NativeStacks {
            depth: self.stacks.native_depth.unwrap_or(0) as usize,
            rules: fd(rules).map_err(|error| map_error(RULE_MAP, &error))?,
            processes: Processes(processes.map_err(|error| map_error(PROCESS_MAP, &error))?),
        }))
    }

    /// What block watch shares with the kernel side; watching begins with the operator of this name.
    pub fn watch_maps(&mut self, start: &str) -> Result<WatchMaps, KernelError> {
        let map = self.ebpf.map_mut("WATCH_START").ok_or(no_map("WATCH_START"))?;
        let written = Array::try_from(map).and_then(|mut map: Array<_, _>| map.set(0, &WatchStart::new(start), 0));
        written.map_err(|error| map_error("WATCH_START", &error))?;
        let fd = |name: &'static str| {
            let Some(Map::HashMap(map)) = self.ebpf.map(name) else { return Err(no_map(name)) };
            map.fd().as_fd().try_clone_to_owned().map_err(|error| map_error(name, &error))
        };
        WatchMaps::open([fd("WATCHED")?, fd("WATCH_SITES")?, fd("WATCH_IDLE")?])
    }

    /// Takes the reading end of the transport; can be done once.
    pub fn source(&mut self, options: &KernelOptions) -> Result<Source, KernelError> {
        if options.perf || !self.features.ring_buffer {
            return self.perf_source(options.ring_bytes);
        }
        let map = self.ebpf.take_map("EVENTS").ok_or(no_map("EVENTS"))?;
        RingBuf::try_from(map).map(|ring| Source::Ring(Box::new(ring))).map_err(|error| map_error("EVENTS", &error))
    }

    fn perf_source(&mut self, bytes: u32) -> Result<Source, KernelError> {
        const NAME: &str = "PERF_EVENTS";
        let map = self.ebpf.map_mut(NAME).ok_or(no_map(NAME))?;
        let mut array = PerfEventArray::try_from(map).map_err(|error| map_error(NAME, &error))?;
        let cpus = online_cpus().map_err(|(what, error)| map_error(NAME, &format!("{what}: {error}")))?;
        let page = page_size() as usize;
        let pages = (bytes as usize / page / cpus.len().max(1)).max(1).next_power_of_two();
        let mut buffers = Vec::with_capacity(cpus.len());
        for cpu in cpus {
            let buffer = PerfEventArrayBuffer::open(cpu, pages).map_err(|error| map_error(NAME, &error))?;
            array.set(cpu, &buffer).map_err(|error| map_error(NAME, &error))?;
            buffers.push(buffer);
        }
        Ok(Source::Perf(buffers))
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
        let images = self.can_hold && self.features.find_vma && btf::offsets().known != 0;
        self.lifecycle.follow(&mut self.ebpf, images)
    }

    /// Probes `points` of the open file. Return probes go first: a call whose return alone is seen is counted
    /// as such, while one whose entry alone is seen would look as if it never returned.
    pub fn attach(&mut self, file: BorrowedFd<'_>, points: &[Point]) -> Result<(), KernelError> {
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let only = |wanted: fn(&Point) -> bool| points.iter().copied().filter(wanted).collect::<Vec<Point>>();
        let returns = only(|point| point.with_return);
        let own_returns = only(|point| point.sees == Sees::OwnReturn);
        let arrays = only(|point| point.sees == Sees::Array);
        let (mut points, texts) = (only(|point| point.sees == Sees::Entry), only(|point| point.sees == Sees::Text));
        let loaders = only(|point| point.sees == Sees::Loader);
        points.extend(&loaders);
        let told_by_one = if self.enters_text {
            texts
        } else {
            points.extend(texts);
            Vec::new()
        };
        let points = &*points;
        if let Some(Programs { enter, leave, leave_own, touch, enter_text, pass_array, hold, .. }) =
            self.shared_programs()
        {
            // Of several programs at one place the kernel runs the last one attached first: a call is told before its arrays.
            if !arrays.is_empty() {
                self.load_once(pass_array)?;
                self.attach_many(pass_array, &path, &arrays)?;
            }
            // As above: it is told who waits before the thread does.
            if self.can_hold {
                self.attach_many(hold, &path, &loaders)?;
            }
            self.attach_many(leave, &path, &returns)?;
            self.attach_many(leave_own, &path, &own_returns)?;
            self.attach_many(enter, &path, points)?;
            self.attach_many(enter_text, &path, &told_by_one)?;
            if self.can_touch {
                let texts: Vec<Point> = points.iter().copied().filter(|point| point.with_text).collect();
                // So they are there when the call is told.
                self.attach_many(touch, &path, &texts)?;
            }
            return Ok(());
        }
        for (half, points) in [("leave", &*returns), ("leave_own", &*own_returns), ("enter", points)] {
            for point in points {
                let name = slot(half, point.row);
                self.load_once(&name)?;
                self.attach_many(&name, &path, &[*point])?;
            }
        }
        Ok(())
    }

    /// Probes `points` of the open file whose rows have objects, ends before beginnings if that is their order.
    ///
    /// # Errors
    ///
    /// When the kernel refuses, or has no attach cookies: such points are too many for programs of their own.
    pub fn attach_objects(&mut self, file: BorrowedFd<'_>, points: &[ObjectPoint]) -> Result<(), KernelError> {
        /// In one link. The kernel takes a million, and allocates for all of them at once.
        const MOST: usize = 16_384;
        if points.is_empty() {
            return Ok(());
        }
        let Some(Programs { pass, .. }) = self.shared_programs() else {
            return Err(KernelError::Map { name: "OBJECTS", reason: "this kernel has no attach cookies".to_owned() });
        };
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let most = if self.mode == LinkMode::Multi { MOST } else { 1 };
        for points in points.chunks(most) {
            let cookie = |point: &ObjectPoint| u64::from(point.row) | u64::from(point.detail) << 32;
            self.link(pass, &path, points.iter().map(|point| (point.file_offset, Some(cookie(point)))))?;
        }
        Ok(())
    }

    fn attach_many(&mut self, name: &str, path: &Path, points: &[Point]) -> Result<(), KernelError> {
        let with_cookie = self.mode != LinkMode::Slots;
        if points.is_empty() {
            return Ok(());
        }
        let mut places = Vec::with_capacity(points.len());
        for point in points {
            let site = point.places.map_or(Ok(0), |places| self.site_number(places))?;
            places.push((point.file_offset, with_cookie.then_some(u64::from(point.row) | u64::from(site) << 32)));
        }
        self.link(name, path, places.into_iter())
    }

    /// The number by which a probe's cookie names these places.
    fn site_number(&mut self, places: SitePlaces) -> Result<u32, KernelError> {
        const NAME: &str = "SITES";
        if let Some(number) = self.sites.get(&places) {
            return Ok(*number);
        }
        let number = self.sites.len() as u32 + 1;
        if number >= MAX_SITES {
            return Err(KernelError::Map { name: NAME, reason: format!("all {} places are taken", MAX_SITES - 1) });
        }
        let map = self.ebpf.map_mut(NAME).ok_or(no_map(NAME))?;
        let mut sites: Array<_, SitePlaces> = Array::try_from(map).map_err(|error| map_error(NAME, &error))?;
        sites.set(number, &places, 0).map_err(|error| map_error(NAME, &error))?;
        self.sites.insert(places, number);
        Ok(number)
    }

    /// Makes one link for places with their cookies.
    fn link(
        &mut self,
        name: &str,
        path: &Path,
        places: impl Iterator<Item = (u64, Option<u64>)>,
    ) -> Result<(), KernelError> {
        let program: &mut UProbe = self.program(name)?;
        let points = places.map(|(file_offset, cookie)| UProbeAttachPoint {
            location: UProbeAttachLocation::AbsoluteOffset(file_offset),
            cookie,
        });
        let refuse = |error| KernelError::Attach { name: name.to_owned(), source: Box::new(error) };
        let id = program.attach(points, path, UProbeScope::AllProcesses).map_err(refuse)?;
        let link = program.take_link(id).map_err(refuse)?;
        self.links.push(link);
        Ok(())
    }

    /// Has a probe at one place of the open file while `look` runs. It belongs to no row, so it must be where no traced
    /// process comes by.
    pub(crate) fn with_probe<T>(
        &mut self,
        file: BorrowedFd<'_>,
        file_offset: u64,
        look: impl FnOnce() -> T,
    ) -> Result<T, KernelError> {
        let Some(Programs { enter, .. }) = self.shared_programs() else {
            return Err(KernelError::Map { name: "programs", reason: "this kernel has no attach cookies".to_owned() });
        };
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        self.link(enter, &path, [(file_offset, Some(0))].into_iter())?;
        let seen = look();
        // Detaching takes its time, and nobody has to wait for it, unless there may be no more threads.
        let link = self.links.pop();
        drop(thread::Builder::new().spawn(move || drop(link)));
        Ok(seen)
    }

    fn program<'a, P>(&'a mut self, name: &str) -> Result<&'a mut P, KernelError>
    where
        &'a mut P: TryFrom<&'a mut aya::programs::Program, Error = ProgramError>,
    {
        program(&mut self.ebpf, name)
    }

    /// Puts a process into the trace.
    pub fn trace(&mut self, pid: u32, state: ProcessState) -> Result<(), KernelError> {
        self.processes()?.insert(&pid, &state, 0).map_err(|error| map_error("PROCESSES", &error))?;
        self.processes_changed()
    }

    /// Has the kernel side look again who is traced.
    fn processes_changed(&mut self) -> Result<(), KernelError> {
        const NAME: &str = "PROCESS_CHANGES";
        self.process_changes += 1;
        let map = self.ebpf.map_mut(NAME).ok_or(no_map(NAME))?;
        let mut changes: Array<_, u64> = Array::try_from(map).map_err(|error| map_error(NAME, &error))?;
        changes.set(OUTER_CHANGES, &self.process_changes, 0).map_err(|error| map_error(NAME, &error))
    }

    /// Takes a process out of the trace, if it is in it.
    pub fn forget(&mut self, pid: u32) -> Result<(), KernelError> {
        match self.processes()?.remove(&pid) {
            Ok(()) => self.processes_changed(),
            Err(MapError::KeyNotFound) => Ok(()),
            Err(MapError::SyscallError(error)) if error.io_error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            Err(error) => Err(map_error("PROCESSES", &error)),
        }
    }

    /// Processes that are in the trace, children that nothing was told of yet among them.
    pub fn traced(&mut self) -> Result<Vec<u32>, KernelError> {
        Ok(self.processes()?.keys().filter_map(Result::ok).collect())
    }

    /// Takes every process out of the trace: all programs return at once from here on.
    pub fn silence(&mut self) -> Result<(), KernelError> {
        const TRIES: usize = 100;
        // A fork may add a child while its parent is being removed.
        for _ in 0..TRIES {
            let pids = self.traced()?;
            if pids.is_empty() {
                break;
            }
            let mut processes = self.processes()?;
            for pid in pids {
                let _ = processes.remove(&pid);
            }
        }
        self.processes_changed()
    }

    fn processes(&mut self) -> Result<BpfHashMap<&mut MapData, u32, ProcessState>, KernelError> {
        let map = self.ebpf.map_mut("PROCESSES").ok_or(no_map("PROCESSES"))?;
        BpfHashMap::try_from(map).map_err(|error| map_error("PROCESSES", &error))
    }

    /// Why Python stacks are wanted and cannot be taken here.
    #[must_use]
    pub fn no_python(&self) -> Option<&str> {
        self.no_python.as_deref()
    }

    /// Has the kernel side see when code objects are freed by the interpreter in an open file. Where that is not possible,
    /// each walk looks at all its code again.
    pub fn see_freed_code(&mut self, file: BorrowedFd<'_>, file_offset: u64) -> Result<(), KernelError> {
        let Some(Programs { code_freed, .. }) = self.shared_programs() else {
            return Err(KernelError::Map { name: "PYTHON", reason: "this kernel has no attach cookies".to_owned() });
        };
        self.load_once(code_freed)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        self.link(code_freed, &path, [(file_offset, None)].into_iter())
    }

    /// Says where a process's Python interpreter has what.
    pub fn set_python(&mut self, pid: u32, layout: &PythonLayout) -> Result<(), KernelError> {
        self.interpreters()?.insert(&pid, layout, 0).map_err(|error| map_error("PYTHON", &error))
    }

    /// Forgets a process's Python interpreter.
    pub fn forget_python(&mut self, pid: u32) -> Result<(), KernelError> {
        // It is not an error if there was none.
        let _ = self.interpreters()?.remove(&pid);
        Ok(())
    }

    fn interpreters(&mut self) -> Result<BpfHashMap<&mut MapData, u32, PythonLayout>, KernelError> {
        let map = self.ebpf.map_mut("PYTHON").ok_or(no_map("PYTHON"))?;
        BpfHashMap::try_from(map).map_err(|error| map_error("PYTHON", &error))
    }

    /// Every counter that is not zero: row, reason, calls.
    pub fn misses(&self) -> Result<Vec<(u16, Miss, u64)>, KernelError> {
        let map = self.ebpf.map("MISSES").ok_or(no_map("MISSES"))?;
        let counters: PerCpuArray<_, u64> = PerCpuArray::try_from(map).map_err(|error| map_error("MISSES", &error))?;
        let mut found = Vec::new();
        for row in 0..=self.rows {
            for miss in miss::ALL {
                let values = counters.get(&miss.counter(row), 0).map_err(|error| map_error("MISSES", &error))?;
                let count: u64 = values.iter().sum();
                if count != 0 {
                    found.push((row, miss, count));
                }
            }
        }
        Ok(found)
    }

    /// Detaches everything, and gives how long it took. With single links kernels from 6.1 on take about 0.1 s per probe for this.
    #[must_use]
    pub fn detach(self) -> Duration {
        let start = Instant::now();
        // The kernel waits for all CPUs once per link: those waits pass together, as far as there may be threads.
        thread::scope(|scope| {
            for link in self.links {
                drop(thread::Builder::new().spawn_scoped(scope, || drop(link)));
            }
            drop(self.ebpf);
        });
        start.elapsed()
    }
}

/// Name of one of the programs that serve this row alone (`slots.rs` in the BPF crate).
fn slot(half: &str, row: u16) -> String {
    format!("{half}_{row:03}")
}

/// The kernel wants a power of two of pages.
fn ring_size(bytes: u32) -> u32 {
    bytes.clamp(page_size(), 1 << 31).checked_next_power_of_two().unwrap_or(1 << 31)
}

fn no_map(name: &'static str) -> KernelError {
    KernelError::Map { name, reason: "it is not in the object".to_owned() }
}

pub(crate) fn map_error(name: &'static str, error: &dyn std::fmt::Display) -> KernelError {
    KernelError::Map { name, reason: error.to_string() }
}

/// A program of the object.
pub(crate) fn program<'a, P>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut P, KernelError>
where
    &'a mut P: TryFrom<&'a mut aya::programs::Program, Error = ProgramError>,
{
    let missing = || KernelError::Map { name: "programs", reason: format!("the object has no program `{name}`") };
    let program = ebpf.program_mut(name).ok_or_else(missing)?;
    program.try_into().map_err(|error| refused(name, error))
}

pub(crate) fn refused(name: &str, error: ProgramError) -> KernelError {
    KernelError::Program { name: name.to_owned(), source: Box::new(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_sizes_are_powers_of_two_of_at_least_a_page() {
        assert_eq!(ring_size(1), page_size());
        assert_eq!(ring_size((1 << 20) + 1), 1 << 21);
        assert_eq!(ring_size(u32::MAX), 1 << 31);
    }
}
