//! How much does each process hold, of which pool, on which device, when it or the trace ends?
//!
//! No rule is involved: this is the account of the seen blocks. Blocks that end with their process or with the trace
//! count as held; blocks that were replaced count as gone, but not as freed by the program.

mod finding;
mod text;

pub use self::finding::{Held, HeldModule};

use std::collections::{BTreeMap, BTreeSet};

use super::{Analysis, Finding, concluded::Concluded, per_device::PerDevice};
use crate::model::{
    Alloc, Block, Device, Event, EventKind, Free, FreeCause, LiveSum, Pool, ProcessStart, RunEnd, UnknownFree,
    module_name,
};

/// Keeps account of every pool.
#[derive(Debug, Default)]
pub struct HeldAnalysis {
    running: PerDevice<BTreeMap<Pool, Account>>,
    attached: BTreeSet<u32>,
    concluded: Concluded<Held>,
}

/// Account of one pool of one process on one device.
#[derive(Debug, Default)]
struct Account {
    peak_bytes: u64,
    /// Bytes handed out by the pool's figure in its last call; the sum of the live blocks where it has none.
    used_bytes: u64,
    allocations: u64,
    frees: u64,
    replaced: u64,
    older_frees: u64,
    unknown_frees: u64,
    failed: u64,
    recovered: u64,
    /// Live blocks that were found at the attach.
    found: LiveSum,
    older_known: bool,
    /// Live blocks and their bytes by the module that asked for them.
    modules: BTreeMap<&'static str, Live>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Live {
    blocks: u64,
    /// Sizes come from the program: the sum of two may exceed their type.
    size_bytes: u128,
}

impl Analysis for HeldAnalysis {
    fn observe(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Alloc(alloc) => self.account(event.pid, alloc.block.device, alloc.block.pool).alloc(alloc),
            EventKind::Free(free) => self.account(event.pid, free.block.device, free.block.pool).free(free),
            EventKind::UnknownFree(free) => {
                self.account(event.pid, event.device, free.pool).unknown_free(free);
            }
            // Attempts of one request are one failure, or none if it succeeded in the end.
            EventKind::AllocFailed(failed) if failed.attempt == 1 => {
                self.account(event.pid, event.device, failed.pool).failed += 1;
            }
            EventKind::AllocRecovered(recovered) => {
                let account = self.account(event.pid, event.device, recovered.pool);
                account.failed = account.failed.saturating_sub(1);
                account.recovered += 1;
            }
            EventKind::ProcessStart(ProcessStart { attached: true, .. }) => {
                self.attached.insert(event.pid);
            }
            EventKind::ProcessEnd => self.conclude(event.pid),
            _ => {}
        }
    }

    fn finish(&mut self, _: &RunEnd) -> Vec<Finding> {
        for pid in self.running.processes() {
            self.conclude(pid);
        }
        self.concluded.take(|held| (held.pid, held.device, held.pool), Finding::Held)
    }

    fn now(&self) -> Vec<Finding> {
        let held = self.running.iter().flat_map(|(pid, device, pools)| {
            let attached = self.attached.contains(&pid);
            pools.iter().map(move |(pool, account)| Held { attached, ..account.held(pid, device, *pool) })
        });
        held.map(Finding::Held).collect()
    }
}

impl HeldAnalysis {
    fn account(&mut self, pid: u32, device: Device, pool: Pool) -> &mut Account {
        self.running.at(pid, device).entry(pool).or_default()
    }

    fn conclude(&mut self, pid: u32) {
        let attached = self.attached.remove(&pid);
        for (device, pools) in self.running.take_process(pid) {
            let closed = pools.into_iter().map(|(pool, account)| Held { attached, ..account.held(pid, device, pool) });
            self.concluded.extend(closed);
        }
    }
}

impl Account {
    fn alloc(&mut self, alloc: &Alloc) {
        if alloc.restored {
            // The free that put it away did not happen.
            let frees = if alloc.block.found { &mut self.older_frees } else { &mut self.frees };
            *frees = frees.saturating_sub(1);
        } else if !alloc.block.found {
            self.allocations += 1;
        }
        self.peak_bytes = self.peak_bytes.max(alloc.used_bytes);
        if alloc.block.found {
            // Of the driver's blocks those are found that are segments of a pool, and no others.
            self.older_known = !alloc.block.pool.is_driver();
            self.found.add(alloc.block.size_bytes);
        }
        let live = self.live(&alloc.block);
        live.blocks += 1;
        live.size_bytes += u128::from(alloc.block.size_bytes);
        self.used_bytes = alloc.used_bytes;
    }

    /// An unknown block was freed.
    fn unknown_free(&mut self, free: &UnknownFree) {
        let count = if free.maybe_older { &mut self.older_frees } else { &mut self.unknown_frees };
        if free.refused {
            // By the driver alone, which has no figure of its own.
            *count = count.saturating_sub(1);
        } else {
            *count += 1;
            self.used_bytes = self.used_bytes.saturating_sub(free.size_bytes.unwrap_or(0));
        }
    }

    fn free(&mut self, free: &Free) {
        match free.cause {
            FreeCause::ProcessEnd | FreeCause::TraceEnd | FreeCause::Exit => return,
            FreeCause::Program if free.block.found => self.older_frees += 1,
            FreeCause::Program => self.frees += 1,
            FreeCause::Replaced => self.replaced += 1,
            FreeCause::Unwatched => {}
        }
        if free.block.found {
            self.found.remove(free.block.size_bytes);
        }
        let live = self.live(&free.block);
        live.blocks = live.blocks.saturating_sub(1);
        live.size_bytes = live.size_bytes.saturating_sub(u128::from(free.block.size_bytes));
        self.used_bytes = free.used_bytes;
    }

    fn live(&mut self, block: &Block) -> &mut Live {
        self.modules.entry(module_name(block.module_id)).or_default()
    }

    fn held(&self, pid: u32, device: Device, pool: Pool) -> Held {
        let mut by_module: Vec<HeldModule> = self
            .modules
            .iter()
            .filter(|(_, live)| live.blocks > 0)
            .map(|(&module, &Live { blocks, size_bytes })| HeldModule {
                module,
                blocks,
                size_bytes: clamped(size_bytes),
            })
            .collect();
        // Stable, and the map was ordered by name.
        by_module.sort_by_key(|module| std::cmp::Reverse(module.size_bytes));
        let size_bytes = clamped(self.modules.values().map(|live| live.size_bytes).sum());
        Held {
            pid,
            device,
            pool,
            attached: false,
            blocks: by_module.iter().map(|module| module.blocks).sum(),
            size_bytes,
            found: self.found,
            older_known: self.older_known,
            unseen_bytes: self.used_bytes.saturating_sub(size_bytes),
            peak_bytes: self.peak_bytes,
            allocations: self.allocations,
            frees: self.frees,
            replaced: self.replaced,
            older_frees: self.older_frees,
            unknown_frees: self.unknown_frees,
            failed: self.failed,
            recovered: self.recovered,
            by_module: if pool.is_driver() { by_module } else { Vec::new() },
        }
    }
}

fn clamped(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyses::script::{Script, run};
    use crate::backend::ascend::pools;

    const PID: u32 = 7;
    const NPU0: Device = Device::Npu(0);
    const NPU1: Device = Device::Npu(1);
    const HCCL: Option<u8> = Some(3);
    const APP: Option<u8> = Some(33);

    fn script() -> Script {
        Script::new(PID, NPU0)
    }

    fn account(script: &Script) -> Vec<Held> {
        run(HeldAnalysis::default(), script.events(), &RunEnd::default())
            .into_iter()
            .map(|finding| match finding {
                Finding::Held(held) => held,
                other => panic!("not held memory: {other:?}"),
            })
            .collect()
    }

    fn account_one(script: &Script) -> Held {
        let mut found = account(script);
        assert_eq!(found.len(), 1, "{found:#?}");
        found.remove(0)
    }

    /// Live blocks, the peak, and every kind of count.
    #[test]
    fn everything_is_counted() {
        let mut script = script();
        script.alloc(pools::PTA, 0x1000, 100).alloc(pools::PTA, 0x2000, 50).free(pools::PTA, 0x1000);
        script.alloc(pools::PTA, 0x3000, 20).alloc_failed(pools::PTA, 1 << 40, (1, 1)).alloc_failed(
            pools::PTA,
            1 << 40,
            (1, 2),
        );
        script.alloc_failed(pools::PTA, 9, (2, 1)).alloc_recovered(pools::PTA, 9, 2);
        script.unknown_free(pools::PTA, 0x9000, true).unknown_free(pools::PTA, 0xa000, false);
        script.unknown_free(pools::PTA, 0xb000, true);
        let expected = Held {
            attached: false,
            pid: PID,
            device: NPU0,
            pool: pools::PTA,
            blocks: 2,
            size_bytes: 70,
            found: LiveSum::default(),
            older_known: false,
            unseen_bytes: 0,
            peak_bytes: 150,
            allocations: 3,
            frees: 1,
            replaced: 0,
            older_frees: 2,
            unknown_frees: 1,
            failed: 1,
            recovered: 1,
            by_module: vec![],
        };
        assert_eq!(account_one(&script), expected);
    }

    /// Attached late: each call of the pool has its figure of all bytes handed out. The rest is older than the trace,
    /// and an older block that is freed, in this or another way, reduces it.
    #[test]
    fn what_is_older_is_the_rest() {
        let mut script = script();
        script.reported(Some((1100, 4096))).alloc(pools::PTA, 0x1000, 100);
        assert_eq!((account_one(&script).size_bytes, account_one(&script).unseen_bytes), (100, 1000));
        script.unknown_free(pools::PTA, 0x9000, true);
        script.reported(Some((750, 4096))).alloc(pools::PTA, 0x2000, 50);
        assert_eq!((account_one(&script).size_bytes, account_one(&script).unseen_bytes), (150, 600));
        script.reported(Some((650, 4096))).free(pools::PTA, 0x1000);
        let held = account_one(&script);
        assert_eq!((held.size_bytes, held.unseen_bytes, held.peak_bytes), (50, 600, 1100));
        // The end of the process frees nothing.
        script.reported(None).end(FreeCause::ProcessEnd, pools::PTA, 0x2000).process_end();
        assert_eq!((account_one(&script).size_bytes, account_one(&script).unseen_bytes), (50, 600));
    }

    /// Blocks of before the attach are live and were not allocated in the trace; their frees are of older blocks.
    #[test]
    fn older_blocks_are_found() {
        let mut script = script();
        let start = ProcessStart { parent: 0, attached: true, command: "server".into(), pid_within: None };
        script.event(EventKind::ProcessStart(start)).reported(Some((150, 4096)));
        script.older(pools::PTA, 0x1000, 100).older(pools::PTA, 0x2000, 50);
        script.reported(Some((160, 4096))).alloc(pools::PTA, 0x3000, 10);
        script.reported(Some((60, 4096))).free(pools::PTA, 0x1000);
        let held = account_one(&script);
        assert_eq!((held.blocks, held.size_bytes, held.unseen_bytes, held.peak_bytes), (2, 60, 0, 160));
        assert_eq!((held.found, held.older_known), (LiveSum { blocks: 1, size_bytes: 50 }, true));
        assert_eq!((held.allocations, held.frees, held.older_frees), (1, 0, 1));
        let text = |held: &Held| {
            let mut out = Vec::new();
            text::write(held, std::iter::empty(), &mut out).expect("written");
            String::from_utf8(out).expect("text")
        };
        let line = text(&held);
        assert!(
            line.contains("60 bytes in 2 blocks, 50 bytes in 1 block of them from before the attach; peak"),
            "{line}"
        );
        assert!(!line.contains("not known"), "{line}");
        script.reported(Some((50, 4096))).free(pools::PTA, 0x3000);
        let line = text(&account_one(&script));
        assert!(line.contains("50 bytes in 1 block, from before the attach; peak"), "{line}");
        // Of the driver's blocks others may be older.
        script.reported(None).older(pools::HAL, 0x9000, 8);
        let driver = account(&script).remove(0);
        assert_eq!((driver.pool, driver.older_known, driver.found.blocks), (pools::HAL, false, 1));
        assert!(text(&driver).contains("; other blocks from before the attach are not known"));
    }

    /// During the run the account is of the running processes.
    #[test]
    fn account_so_far() {
        let mut script = script();
        script.alloc(pools::PTA, 0x1000, 100).alloc(pools::HAL, 0x1000, 8).free(pools::PTA, 0x1000);
        script.on(8, NPU1).alloc(pools::PTA, 0x1000, 1).process_end();
        let mut analysis = HeldAnalysis::default();
        script.events().iter().for_each(|event| analysis.observe(event));
        let sums = |found: &[Finding]| -> Vec<_> {
            let sum = |found: &Finding| match found {
                Finding::Held(held) => (held.pid, held.pool, held.size_bytes, held.allocations, held.frees),
                other => panic!("not held memory: {other:?}"),
            };
            found.iter().map(sum).collect()
        };
        let running = [(PID, pools::HAL, 8, 1, 0), (PID, pools::PTA, 0, 1, 1)];
        assert_eq!(sums(&analysis.now()), running);
        assert_eq!(sums(&analysis.finish(&RunEnd::default())), [running[0], running[1], (8, pools::PTA, 1, 1, 0)]);
    }

    /// Blocks that their process or the trace ended with are held; a replaced one is gone, and not by a free.
    #[test]
    fn what_ends_a_block_decides() {
        let mut script = script();
        script.alloc(pools::HAL, 0x1000, 1).alloc(pools::HAL, 0x2000, 2).alloc(pools::HAL, 0x3000, 4);
        script.alloc(pools::HAL, 0x4000, 8).free(pools::HAL, 0x1000).end(FreeCause::Replaced, pools::HAL, 0x2000);
        script.end(FreeCause::ProcessEnd, pools::HAL, 0x3000).end(FreeCause::TraceEnd, pools::HAL, 0x4000);
        let held = account_one(&script);
        assert_eq!((held.blocks, held.size_bytes, held.allocations, held.frees), (2, 12, 4, 1));
        assert_eq!(held.replaced, 1);
    }

    /// A pool that reuses its addresses and never frees is suspected; one with a seen free is not.
    #[test]
    fn pool_without_frees_is_suspected() {
        let reused = |count: u64| {
            let mut script = script();
            for addr in 0..count {
                script.alloc(pools::MIND_SPORE, 0x1000 * addr, 512).end(
                    FreeCause::Replaced,
                    pools::MIND_SPORE,
                    0x1000 * addr,
                );
            }
            script
        };
        assert!(account_one(&reused(16)).frees_are_not_seen());
        assert!(!account_one(&reused(15)).frees_are_not_seen(), "too few to judge");
        let mut freed = reused(16);
        freed.alloc(pools::MIND_SPORE, 0x9000, 1).free(pools::MIND_SPORE, 0x9000);
        assert!(!account_one(&freed).frees_are_not_seen());
        let mut unknown = reused(16);
        unknown.unknown_free(pools::MIND_SPORE, 0x9000, false);
        assert!(!account_one(&unknown).frees_are_not_seen());
    }

    /// A free that failed is no free, and the block is no second allocation.
    #[test]
    fn restored_block_is_held() {
        let mut script = script();
        script.alloc(pools::HAL, 0x1000, 64).free(pools::HAL, 0x1000).restore(pools::HAL, 0x1000);
        let held = account_one(&script);
        assert_eq!((held.blocks, held.size_bytes, held.allocations, held.frees), (1, 64, 1, 0));
    }

    /// A free of an unknown block that the driver refused after all is no free of either kind.
    #[test]
    fn refused_unknown_free_is_none() {
        let mut script = script();
        script.unknown_free(pools::HAL, 0x9000, false).unknown_free(pools::HAL, 0xa000, false);
        script.refused_free(pools::HAL, 0xa000, false);
        script.unknown_free(pools::HAL, 0xb000, true).refused_free(pools::HAL, 0xb000, true);
        let held = account_one(&script);
        assert_eq!((held.unknown_frees, held.older_frees), (1, 0));
    }

    /// Modules come largest first, equal ones by name; empty ones are left out, and unnamed ids are one.
    #[test]
    fn driver_memory_is_listed_by_module() {
        let mut script = script();
        script.module(HCCL).alloc(pools::HAL, 0x1000, 40);
        script.module(APP).alloc(pools::HAL, 0x2000, 10).alloc(pools::HAL, 0x3000, 30);
        script.module(Some(200)).alloc(pools::HAL, 0x4000, 60).module(None).alloc(pools::HAL, 0x5000, 5);
        script.module(Some(7)).alloc(pools::HAL, 0x6000, 99).free(pools::HAL, 0x6000);
        let modules: Vec<_> = account_one(&script)
            .by_module
            .iter()
            .map(|module| (module.module, module.blocks, module.size_bytes))
            .collect();
        assert_eq!(modules, [("UNKNOWN", 2, 65), ("APP", 2, 40), ("HCCL", 1, 40)]);
    }

    /// Each process, device and pool has its own account, in that order; a free of an unknown block has no device.
    #[test]
    fn accounts_are_separate() {
        let mut script = script();
        script.alloc(pools::PTA, 0x1000, 1).on(PID, NPU1).alloc(pools::PTA, 0x1000, 2);
        script.on(PID, Device::None).unknown_free(pools::HAL, 0x1000, false);
        script.on(PID - 1, NPU0).alloc(pools::PTA, 0x1000, 4).alloc(pools::HOST, 0x1000, 8);
        let found: Vec<_> =
            account(&script).iter().map(|held| (held.pid, held.device, held.pool, held.size_bytes)).collect();
        let expected = [
            (PID - 1, NPU0, pools::HOST, 8),
            (PID - 1, NPU0, pools::PTA, 4),
            (PID, NPU0, pools::PTA, 1),
            (PID, NPU1, pools::PTA, 2),
            (PID, Device::None, pools::HAL, 0),
        ];
        assert_eq!(found, expected);
    }

    /// A process that gets the id of one that ended has its own account.
    #[test]
    fn reused_process_id_is_another_process() {
        let mut script = script();
        script.alloc(pools::HAL, 0x1000, 64).end(FreeCause::ProcessEnd, pools::HAL, 0x1000).process_end();
        script.alloc(pools::HAL, 0x1000, 32);
        let sizes: Vec<u64> = account(&script).iter().map(|held| held.size_bytes).collect();
        assert_eq!(sizes, [64, 32]);
    }

    /// Attached late: a note says that the figures leave out older memory.
    #[test]
    fn attached_processes_are_marked() {
        let mut events = Script::new(PID, Device::Npu(0)).alloc(pools::HAL, 0x1000, 64).events().to_vec();
        let start = ProcessStart { parent: 0, attached: true, command: "server".into(), pid_within: None };
        events.insert(0, Event { kind: EventKind::ProcessStart(start), ..events[0].clone() });
        let found = run(HeldAnalysis::default(), &events, &RunEnd::default());
        assert!(matches!(&found[..], [Finding::Held(Held { attached: true, blocks: 1, .. })]), "{found:?}");
    }
}
