//! Why was there no memory?
//!
//! For each request that failed for good: what was asked for, what the pools of the process held, the largest and the newest
//! blocks, and the last events before it (the flight recorder). The verdict compares the request with what the framework's pools
//! hold without having handed it out: if that is enough, memory is fragmented rather than short, and the largest free piece
//! says by how much.

use std::collections::{BTreeMap, VecDeque};

use super::{Analysis, fragmentation::Space};
use crate::hash::HashMap;
use crate::model::{
    Block, Device, Event, EventKind, Finding, Mark, Oom, OutOfMemory, Pool, PoolAtOom, RunEnd, Suspect,
};

/// Events of a process that are remembered.
const FLIGHT_RECORDER: usize = 64;
/// Failures that are told; later ones are in the rows.
const MAX_TOLD: usize = 100;
/// Processes with a flight recorder.
const MAX_PROCESSES: usize = 64 << 10;

/// Tells what was going on when memory was out.
#[derive(Debug, Default)]
pub struct OomAnalysis {
    processes: HashMap<u32, Process>,
    found: Vec<Oom>,
}

#[derive(Debug, Default)]
struct Process {
    last: VecDeque<Event>,
    /// Used and reserved bytes by device and pool.
    pools: BTreeMap<(Device, Pool), (u64, Option<u64>)>,
    space: Space,
    /// The same at the last failed attempt of each thread.
    failing: HashMap<u32, Vec<PoolAtOom>>,
}

/// Threads whose failed attempts are remembered.
const MAX_THREADS: usize = 4096;

impl Analysis for OomAnalysis {
    fn observe(&mut self, event: &Event) {
        match &event.kind {
            EventKind::OutOfMemory(out_of_memory) => return self.out_of_memory(event, out_of_memory),
            EventKind::ProcessEnd => {
                self.processes.remove(&event.pid);
                return;
            }
            EventKind::Access(_) => return,
            _ => {}
        }
        if self.processes.len() >= MAX_PROCESSES && !self.processes.contains_key(&event.pid) {
            return;
        }
        let process = self.processes.entry(event.pid).or_default();
        process.space.observe(event);
        match &event.kind {
            // The last events of a process that goes on would be pushed out by these.
            EventKind::Region(_) => return,
            EventKind::Alloc(alloc) => process.pool(&alloc.block, alloc.used_bytes, alloc.total_bytes),
            EventKind::Free(free) => process.pool(&free.block, free.used_bytes, free.total_bytes),
            EventKind::AllocFailed(failed) if failed.out_of_memory && process.failing.len() < MAX_THREADS => {
                let pools = process.pools_of(event.device);
                process.failing.insert(event.tid, pools);
            }
            EventKind::AllocRecovered(_) => drop(process.failing.remove(&event.tid)),
            EventKind::BlockReturned(returned) => {
                let totals = (returned.used_bytes, Some(returned.total_bytes));
                process.pools.insert((event.device, returned.pool), totals);
            }
            _ => {}
        }
        if process.last.len() == FLIGHT_RECORDER {
            process.last.pop_front();
        }
        process.last.push_back(event.clone());
    }

    fn finish(&mut self, _: &RunEnd) -> Vec<Finding> {
        std::mem::take(&mut self.found).into_iter().map(Finding::Oom).collect()
    }
}

impl Process {
    fn pool(&mut self, block: &Block, used_bytes: u64, reserved_bytes: Option<u64>) {
        let totals = self.pools.entry((block.device, block.pool)).or_default();
        *totals = (used_bytes, reserved_bytes.or(totals.1));
    }
}

impl Process {
    fn pools_of(&self, on: Device) -> Vec<PoolAtOom> {
        let of_device = self.pools.iter().filter(|((device, _), _)| *device == on);
        let told = |((device, pool), &(used_bytes, reserved_bytes)): (&(Device, Pool), &(u64, Option<u64>))| {
            let largest_free_bytes = self.space.largest_bytes((*device, *pool));
            PoolAtOom { pool: *pool, used_bytes, reserved_bytes, largest_free_bytes }
        };
        of_device.map(told).collect()
    }
}

impl OomAnalysis {
    fn out_of_memory(&mut self, event: &Event, out_of_memory: &OutOfMemory) {
        match out_of_memory {
            OutOfMemory::Trigger(failed) => {
                if self.found.len() >= MAX_TOLD {
                    return;
                }
                let failing = self.processes.get_mut(&event.pid).and_then(|process| process.failing.remove(&event.tid));
                let process = self.processes.get(&event.pid);
                let pools = failing.or_else(|| Some(process?.pools_of(event.device))).unwrap_or_default();
                let unused = |pool: &PoolAtOom| pool.reserved_bytes.unwrap_or(0).saturating_sub(pool.used_bytes);
                let unused_bytes = pools.iter().map(unused).sum();
                let (pid, tid, device, time_ns) = (event.pid, event.tid, event.device, event.time_ns);
                self.found.push(Oom {
                    pid,
                    tid,
                    device,
                    time_ns,
                    function: failed.caller,
                    size_bytes: failed.size_bytes,
                    stacks: event.stacks,
                    attempts: failed.attempt,
                    pools,
                    unused_bytes,
                    missing_bytes: failed.size_bytes.saturating_sub(unused_bytes),
                    recent: Vec::new(),
                    top: Vec::new(),
                    last_events: process.into_iter().flat_map(|process| &process.last).map(line).collect(),
                });
            }
            OutOfMemory::Recent(block) => {
                if let Some(found) = self.latest(event) {
                    found.recent.push(suspect(block));
                }
            }
            OutOfMemory::Top(block) => {
                if let Some(found) = self.latest(event) {
                    found.top.push(suspect(block));
                }
            }
        }
    }

    /// The failure that a block belongs to: its rows follow at once.
    fn latest(&mut self, event: &Event) -> Option<&mut Oom> {
        self.found
            .last_mut()
            .filter(|found| (found.pid, found.tid, found.time_ns) == (event.pid, event.tid, event.time_ns))
    }
}

const fn suspect(block: &Block) -> Suspect {
    let Block { pool, addr, size_bytes, alloc_time_ns, stacks, .. } = *block;
    Suspect { pool, addr, size_bytes, alloc_time_ns, stacks }
}

/// An event in one line.
fn line(event: &Event) -> String {
    let text = |text: &Option<std::sync::Arc<str>>| text.as_deref().unwrap_or("null").escape_debug().to_string();
    let what = match &event.kind {
        EventKind::Alloc(alloc) => {
            let Block { pool, addr, size_bytes, .. } = alloc.block;
            format!("{} alloc {addr:#x} {size_bytes} bytes, used {}", pool.event_type(), alloc.used_bytes)
        }
        EventKind::Free(free) => {
            let Block { pool, addr, size_bytes, .. } = free.block;
            format!("{} free {addr:#x} {size_bytes} bytes, used {}", pool.event_type(), free.used_bytes)
        }
        EventKind::AllocFailed(failed) => {
            let function = failed.caller.map_or("the driver", |name| name.as_str());
            format!("{function} failed for {} bytes, attempt {}", failed.size_bytes, failed.attempt)
        }
        EventKind::AllocRecovered(recovered) => format!("{} bytes were there after all", recovered.size_bytes),
        EventKind::Launch(launch) => format!("launch {}", launch.name.escape_debug()),
        EventKind::Op(op) => format!("operator {} {:?}", op.name.escape_debug(), op.phase),
        EventKind::Mark(Mark::Point { text: given }) => format!("mark {}", text(given)),
        EventKind::Mark(Mark::RangeStart { text: given, .. }) => format!("range {}", text(given)),
        EventKind::Mark(Mark::RangeEnd { .. }) => "range end".to_owned(),
        EventKind::StepStart { step } => format!("step {step} starts"),
        EventKind::StepEnd { step } => format!("step {step} ends"),
        EventKind::UnknownFree(free) => format!("{} free of unknown {:#x}", free.pool.event_type(), free.addr),
        EventKind::BlockReturned(returned) => format!("{} has {:#x} back", returned.pool.event_type(), returned.addr),
        EventKind::ProcessStart(_) => "process start".to_owned(),
        _ => "other".to_owned(),
    };
    format!("{} {}: {what}", event.time_ns, event.tid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyses::script::{Script, run};
    use crate::model::{AllocFailed, Name};

    fn trigger(size_bytes: u64) -> EventKind {
        let caller = Some(Name::fixed(&"aclrtMalloc"));
        let (pool, status, flags, out_of_memory) = (Pool::Hal, 207_001, 0, true);
        let failed = AllocFailed { pool, size_bytes, status, flags, caller, out_of_memory, request: 1, attempt: 2 };
        EventKind::OutOfMemory(OutOfMemory::Trigger(failed))
    }

    fn find(script: &Script) -> Vec<Oom> {
        run(OomAnalysis::default(), script.events(), &RunEnd::default())
            .into_iter()
            .map(|finding| match finding {
                Finding::Oom(oom) => oom,
                other => panic!("not out of memory: {other:?}"),
            })
            .collect()
    }

    /// 1000 reserved, 600 of them handed out: a request of 400 would fit, one of 401 lacks a byte. Blocks of another device and
    /// of the driver, which reserves nothing, do not count.
    #[test]
    fn verdict_compares_with_what_pools_hold() {
        for (size_bytes, missing_bytes) in [(400, 0), (401, 1)] {
            let mut script = Script::new(1, Device::Npu(0));
            script.alloc(Pool::Hal, 0x9000, 5000).pool_alloc(Pool::Pta, 0x1000, 600, 1000);
            script.on(1, Device::Npu(1)).pool_alloc(Pool::Pta, 0x1000, 1, 9999).on(1, Device::Npu(0));
            script.event(trigger(size_bytes));
            let found = find(&script);
            assert_eq!((found[0].unused_bytes, found[0].missing_bytes, found[0].attempts), (400, missing_bytes, 2));
            let pools: Vec<_> =
                found[0].pools.iter().map(|pool| (pool.pool, pool.used_bytes, pool.reserved_bytes)).collect();
            assert_eq!(pools, [(Pool::Hal, 5000, None), (Pool::Pta, 600, Some(1000))]);
        }
    }

    /// Of 1000 bytes 500 are free, in pieces of 300 and 200. Of the second failure's segments nothing is known.
    #[test]
    fn largest_free_piece_is_told() {
        let mut script = Script::new(1, Device::Npu(0));
        script.alloc(Pool::Hal, 0x1000, 1000).pool_alloc(Pool::Pta, 0x1000, 300, 1000);
        script.pool_alloc(Pool::Pta, 0x1000 + 300, 500, 1000).free(Pool::Pta, 0x1000).event(trigger(400));
        script.on(2, Device::Npu(0)).pool_alloc(Pool::Pta, 0x1000, 300, 1000).event(trigger(400));
        let largest = |oom: &Oom| oom.pools.last().map(|pool| (pool.pool, pool.largest_free_bytes));
        let found: Vec<_> = find(&script).iter().map(largest).collect();
        assert_eq!(found, [Some((Pool::Pta, Some(300))), Some((Pool::Pta, None))]);
    }

    /// The last events are there, the oldest of them dropped; those of another process are not.
    #[test]
    fn flight_recorder_keeps_the_last_events() {
        let mut script = Script::new(2, Device::Npu(0));
        script.launch().on(1, Device::Npu(0));
        for number in 0..100 {
            script.alloc(Pool::Hal, 0x1000 + number, 8);
        }
        script.event(trigger(1));
        let found = find(&script);
        assert_eq!(found[0].last_events.len(), FLIGHT_RECORDER);
        assert_eq!(found[0].last_events[0], "37 1: HAL alloc 0x1024 8 bytes, used 296");
        assert_eq!(found[0].last_events[63], "100 1: HAL alloc 0x1063 8 bytes, used 800");
    }
}
