//! Maps and counters that other threads read.

use std::os::fd::{AsFd as _, OwnedFd};

use aya::{
    Pod,
    maps::{
        Array, HashMap as BpfHashMap, Map, MapData, MapError, PerCpuArray, PerfEventArray, RingBuf,
        perf::PerfEventArrayBuffer,
    },
    util::online_cpus,
};
use memscope_common::{Miss, WatchSite, WatchStart, WatchedProcess, config::ProcessState, miss, stack::STACK_NATIVE};

use super::{
    error::{KernelError, map_error, no_map},
    object::Kernel,
    options::KernelOptions,
};
use crate::{os::memory::page_size, ring::Source};

/// Maps of waiting and traced processes: held threads, stopped processes, traced processes.
pub const WAIT_MAPS: [&str; 3] = ["HOLDS", "STOPS", "PROCESSES"];

/// Maps by which user space completes native stacks.
pub struct NativeStacks {
    /// Frames of a stack at most.
    pub depth: usize,
    /// The table of rules, to be mapped: `RULES` entries.
    pub rules: OwnedFd,
    /// The traced processes.
    pub processes: Processes,
}

/// The traced processes, for reading.
pub struct Processes(BpfHashMap<MapData, u32, ProcessState>);

impl Processes {
    /// The generation of a process's mappings; `None` if it is not traced.
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
    /// Processes with threads that are sent to the handler.
    pub watched: BpfHashMap<MapData, u32, WatchedProcess>,
    /// Where threads were sent there, by `pid_tgid`.
    pub sites: BpfHashMap<MapData, u64, WatchSite>,
    /// Processes without a watched block yet.
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

impl Kernel {
    /// The maps of waiting and traced processes, in the order of [`WAIT_MAPS`].
    pub fn wait_maps(&self) -> Result<[OwnedFd; 3], KernelError> {
        let [holds, stops, processes] = WAIT_MAPS;
        Ok([self.map_fd(holds)?, self.map_fd(stops)?, self.map_fd(processes)?])
    }

    /// A descriptor of a hash map.
    fn map_fd(&self, name: &'static str) -> Result<OwnedFd, KernelError> {
        let Some(Map::HashMap(map)) = self.ebpf.map(name) else { return Err(no_map(name)) };
        map.fd().as_fd().try_clone_to_owned().map_err(|error| map_error(name, &error))
    }

    /// The maps for completing native stacks; `None` if none are taken.
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
        WatchMaps::open([self.map_fd("WATCHED")?, self.map_fd("WATCH_SITES")?, self.map_fd("WATCH_IDLE")?])
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

    /// All counters above zero: row, reason, calls.
    pub fn misses(&self) -> Result<Vec<(u16, Miss, u64)>, KernelError> {
        self.misses_of(&miss::ALL)
    }

    /// Those for one reason, of all rows. A call of the kernel for each row, where all reasons take one for each row and reason.
    pub fn count(&self, miss: Miss) -> Result<u64, KernelError> {
        Ok(self.misses_of(&[miss])?.into_iter().map(|(.., count)| count).sum())
    }

    fn misses_of(&self, reasons: &[Miss]) -> Result<Vec<(u16, Miss, u64)>, KernelError> {
        let map = self.ebpf.map("MISSES").ok_or(no_map("MISSES"))?;
        let counters: PerCpuArray<_, u64> = PerCpuArray::try_from(map).map_err(|error| map_error("MISSES", &error))?;
        let mut found = Vec::new();
        for row in 0..=self.rows {
            for &miss in reasons {
                let values = counters.get(&miss.counter(row), 0).map_err(|error| map_error("MISSES", &error))?;
                let count: u64 = values.iter().sum();
                if count != 0 {
                    found.push((row, miss, count));
                }
            }
        }
        Ok(found)
    }
}
