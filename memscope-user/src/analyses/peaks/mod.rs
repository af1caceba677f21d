//! Which blocks were live at the peak? For each pool of each process and device: by owner, by place, by size.
//!
//! One pass: a new maximum only marks the moment. Owners are those of [decompose](super::decompose): a block that ended
//! under another name than it was allocated with moves to that name in the marked moment. Each live block takes some 70
//! bytes; places are call stacks, and those beyond a million count as one.

mod finding;
mod table;
mod text;

pub use self::finding::Peak;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::decompose::{Came, Lives, RuleSet, Went};
use super::groups::{Change, Groups, Room};
use super::inferred::{InferredSteps, Standing};
use super::question::{AnalysisBit, Automatic, FilesCommand, Question, Sees};
use super::{Analysis, Finding, concluded::Concluded, in_order, per_device::PerDevice};
use crate::model::{Alloc, Confidence, Device, Event, EventKind, Free, Name, Pool, ProcessStart, RunEnd, StepsFrom};

/// Places listed of each peak, those with the most bytes first.
const MAX_PLACES: usize = 100;

/// Live memory at the peak of each pool.
pub(super) const QUESTION: Question = Question {
    word: "peaks",
    parameter: "",
    command: FilesCommand::Plain {
        about: "Show live memory at the peak: \
            dumps (CSV or db, ours or msMemScope's) of one run, or a capture",
        none: "No blocks were seen, so there is no peak.",
    },
    names_owners: true,
    sees: Sees::Chosen,
    compares_steps: false,
    automatic: Automatic::Never,
    collects: 0,
    script_bit: Some(AnalysisBit::PEAKS),
    add: |asked, set| set.whole(PeaksAnalysis::new(asked.rules())),
    table: table::TABLE,
};

/// Follows the usage of every pool.
#[derive(Debug)]
pub struct PeaksAnalysis {
    lives: Lives,
    running: PerDevice<BTreeMap<Pool, Account>>,
    room: Room,
    steps: InferredSteps,
    attached: BTreeSet<u32>,
    concluded: Concluded<Peak>,
}

/// One pool of one process on one device.
#[derive(Debug)]
struct Account {
    start_ns: u64,
    time_ns: u64,
    step: u32,
    /// The same without marks.
    inferred: Standing,
    peak_bytes: u64,
    /// Of the seen blocks.
    live_bytes: u64,
    /// The peak's place among all allocations and frees.
    moment: u64,
    /// The marked moment is the peak.
    groups: Groups,
}

impl Default for PeaksAnalysis {
    fn default() -> Self {
        Self::new(Arc::new(RuleSet::builtin()))
    }
}

impl Analysis for PeaksAnalysis {
    fn observe(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Alloc(alloc) => self.alloc(event, alloc),
            EventKind::Free(free) => self.free(event, free),
            EventKind::StepStart { .. } => drop(self.steps.mark(event.pid)),
            EventKind::StepEnd { .. } => {
                self.steps.mark(event.pid);
                self.lives.note(event);
            }
            EventKind::Region(_) | EventKind::Looked(_) => self.lives.note(event),
            EventKind::ProcessStart(ProcessStart { attached: true, .. }) => drop(self.attached.insert(event.pid)),
            EventKind::ProcessEnd => {
                self.conclude(event.pid);
                self.steps.end(event.pid);
            }
            _ => {}
        }
    }

    fn finish(&mut self, end: &RunEnd) -> Vec<Finding> {
        for pid in self.lives.processes() {
            self.conclude(pid);
        }
        let confidence = Confidence::after(end);
        let finding = |peak| Finding::Peak(Peak { confidence, ..peak });
        self.concluded.take(|peak| in_order(peak.pid, peak.device, peak.pool), finding)
    }
}

impl PeaksAnalysis {
    /// Names owners by these rules.
    #[must_use]
    pub fn new(rules: Arc<RuleSet>) -> Self {
        Self {
            lives: Lives::new(rules),
            running: PerDevice::default(),
            room: Room::default(),
            steps: InferredSteps::default(),
            attached: BTreeSet::new(),
            concluded: Concluded::default(),
        }
    }

    fn alloc(&mut self, event: &Event, alloc: &Alloc) {
        let Alloc { block, used_bytes, .. } = alloc;
        let inferred = self.steps.observe(event).unwrap_or_default();
        let Some(Came { live, moment, back }) = self.lives.came(event, alloc, true) else { return };
        let (owner, time_ns) = (self.lives.owner(&live), event.time_ns);
        let pools = self.running.at(event.pid, block.device);
        let account = pools.entry(block.pool).or_insert_with(|| Account::new(time_ns));
        if let Some(back) = back.filter(|_| live.moment <= account.moment) {
            if back.moment <= account.moment {
                // The peak came while it was thought to have ended.
                account.groups.join(owner, block, &mut self.room);
                account.peak_bytes = account.peak_bytes.saturating_add(block.size_bytes);
            } else if let Some(owners) = self.lives.named_back(&live, &back) {
                account.groups.rename(owners, live.size_bytes);
            }
        }
        if live.is_older() && back.is_none() && account.peak_bytes > 0 {
            account.was_there(owner, alloc, &mut self.room);
        }
        account.groups.change(owner, block, Change::Comes, &mut self.room);
        account.live_bytes = account.live_bytes.saturating_add(block.size_bytes);
        // A workspace that grows is reported with the pool's figure from before.
        let is_stale = block.pool.grows_in_place();
        let used_bytes = if is_stale { account.live_bytes.max(*used_bytes) } else { *used_bytes };
        if used_bytes > account.peak_bytes {
            (account.peak_bytes, account.time_ns) = (used_bytes, time_ns);
            (account.step, account.inferred) = (block.step, inferred);
            account.moment = moment;
            account.groups.mark();
        }
    }

    /// For every cause: after an exec, the program does not hold the blocks of the one before.
    fn free(&mut self, event: &Event, free: &Free) {
        self.steps.observe(event);
        let Some(went) = self.lives.went(event, free) else { return };
        if let Some(account) = self.running.at(event.pid, free.block.device).get_mut(&went.live.pool) {
            account.groups.change(self.lives.owner(&went.live), &free.block, Change::Goes, &mut self.room);
            account.live_bytes = account.live_bytes.saturating_sub(free.block.size_bytes);
            account.named(&went, &self.lives);
        }
    }

    fn conclude(&mut self, pid: u32) {
        for left in self.lives.left(pid) {
            let pools = self.running.at(pid, left.device);
            for went in &left.blocks {
                if let Some(account) = pools.get_mut(&went.live.pool) {
                    account.named(went, &self.lives);
                }
            }
        }
        let attached = self.attached.remove(&pid);
        let is_marked = self.steps.is_marked(pid);
        for (device, pools) in self.running.take_process(pid) {
            for (pool, account) in pools {
                account.groups.leave(&mut self.room);
                let peak = account.close(device, pool, is_marked);
                self.concluded.add(Peak { pid, attached, ..peak });
            }
        }
    }
}

impl Account {
    fn new(start_ns: u64) -> Self {
        let (inferred, groups) = (Standing::default(), Groups::default());
        Self { start_ns, time_ns: start_ns, step: 0, inferred, peak_bytes: 0, live_bytes: 0, moment: 0, groups }
    }

    /// A block is found that is older than the trace: it was live at the peak.
    fn was_there(&mut self, owner: Option<Name>, alloc: &Alloc, room: &mut Room) {
        self.groups.join(owner, &alloc.block, room);
        // A pool's own figure has had it all the time.
        if alloc.total_bytes.is_none() {
            self.peak_bytes = self.peak_bytes.saturating_add(alloc.block.size_bytes);
        }
    }

    /// A block has its final name.
    fn named(&mut self, went: &Went, lives: &Lives) {
        if went.live.moment <= self.moment
            && let Some(owners) = lives.renamed(went)
        {
            self.groups.rename(owners, went.live.size_bytes);
        }
    }

    /// The peak as a finding; process and confidence are left to fill in.
    fn close(self, device: Device, pool: Pool, is_marked: bool) -> Peak {
        let Self { start_ns, time_ns, step, inferred, peak_bytes, groups, .. } = self;
        let (step, steps_from) = if is_marked { (step, StepsFrom::Marks) } else { (inferred.step, inferred.from) };
        let seen = groups.sum();
        let (groups, places_left_out) = groups.largest(MAX_PLACES);
        Peak {
            pid: 0,
            device,
            pool,
            attached: false,
            start_ns,
            time_ns,
            step,
            steps_from,
            peak_bytes,
            seen,
            unseen_bytes: peak_bytes.saturating_sub(seen.size_bytes),
            groups,
            places_left_out,
            confidence: Confidence::Certain,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::analyses::decompose::Classifier;
    use crate::analyses::script::{Script, run};
    use crate::backend::ascend::pools;
    use crate::model::{Block, EventKind, FreeCause, LiveGroups, LiveSum, Name};

    const NPU0: Device = Device::Npu(0);
    const NPU1: Device = Device::Npu(1);
    const HCCL: Option<u8> = Some(3);

    fn peaks(script: &Script) -> Vec<Peak> {
        let found = run(PeaksAnalysis::default(), script.events(), &RunEnd::default());
        found.into_iter().map(|finding| if let Finding::Peak(peak) = finding { peak } else { panic!() }).collect()
    }

    fn peak(script: &Script) -> Peak {
        let mut found = peaks(script);
        assert_eq!(found.len(), 1, "{found:#?}");
        found.remove(0)
    }

    const fn live(blocks: u64, size_bytes: u64) -> LiveSum {
        LiveSum { blocks, size_bytes }
    }

    /// Six iterations of a training program without marks, the highest in the fifth: four steps of the optimizer have
    /// ended. With marks from the sixth on the marks count, and the peak is before the first; in the first iteration no
    /// step has ended.
    #[test]
    fn steps_are_inferred_where_none_are_marked() {
        const STEP: [&str; 1] = ["/usr/lib/python3.11/site-packages/torch/optim/adam.py(242): Adam.step"];
        const FORWARD: [&str; 1] =
            ["/usr/lib/python3.11/site-packages/torch/nn/modules/module.py(1786): Module._call_impl"];
        for (highest, marked, expected) in
            [(5, false, (5, StepsFrom::Optimizer)), (5, true, (0, StepsFrom::Marks)), (1, false, (0, StepsFrom::Marks))]
        {
            let mut script = Script::new(7, NPU0);
            for iteration in 1..=6 {
                if marked && iteration == 6 {
                    script.step_start(1);
                }
                let size = if iteration == highest { 9000 } else { 100 };
                script.stacks(&FORWARD, &[]).alloc(pools::PTA, 0x1000, size);
                script.stacks(&STEP, &[]).alloc(pools::PTA, 0x9000, 64).free(pools::PTA, 0x9000);
                script.stacks(&FORWARD, &[]).free(pools::PTA, 0x1000);
            }
            let found = peak(&script);
            assert_eq!((found.step, found.steps_from), expected, "{highest} {marked}");
            assert_eq!(found.peak_bytes, 9064);
        }
    }

    fn owners(groups: &LiveGroups) -> Vec<(&'static str, LiveSum)> {
        groups.owners.iter().map(|sum| (sum.owner.map_or("", Name::as_str), sum.live)).collect()
    }

    fn places(groups: &LiveGroups) -> Vec<(Option<&'static str>, LiveSum)> {
        let function = |stacks: crate::model::Stacks| stacks.native.map(|stack| stack.texts()[0]);
        groups.places.iter().map(|sum| (function(sum.stacks), sum.live)).collect()
    }

    fn sizes(groups: &LiveGroups) -> Vec<(u64, LiveSum)> {
        groups.sizes.iter().map(|sum| (sum.least_bytes, sum.live)).collect()
    }

    /// By hand: 100, 400, 430 (the peak), 330, 30, 130, 430 (not higher), 0.
    #[test]
    fn peak_is_reported_in_groups() {
        let mut script = Script::new(7, NPU0);
        script.step_start(3).module(HCCL).stacks(&[], &["f"]).alloc(pools::HAL, 0x1000, 100);
        script.stacks(&[], &["g"]).alloc(pools::HAL, 0x2000, 300).module(None).alloc(pools::HAL, 0x3000, 30);
        script.step_start(4).free(pools::HAL, 0x1000).free(pools::HAL, 0x2000);
        script.alloc(pools::HAL, 0x4000, 100).alloc(pools::HAL, 0x5000, 300);
        script.free(pools::HAL, 0x3000).free(pools::HAL, 0x4000).free(pools::HAL, 0x5000);
        let found = peak(&script);
        assert_eq!((found.start_ns, found.time_ns, found.step, found.peak_bytes), (1, 3, 3, 430));
        assert_eq!((found.seen, found.unseen_bytes), (live(3, 430), 0));
        assert_eq!(owners(&found.groups), [("CANN@HCCL", live(2, 400)), ("CANN@UNKNOWN", live(1, 30))]);
        assert_eq!(places(&found.groups), [(Some("g"), live(2, 330)), (Some("f"), live(1, 100))]);
        assert_eq!(sizes(&found.groups), [(16, live(1, 30)), (64, live(1, 100)), (256, live(1, 300))]);
        assert!(!found.groups.places_full && found.places_left_out == 0);
    }

    /// A process that ends at its peak, one with a peak that grew while groups came and went before, and one without
    /// stacks.
    #[test]
    fn peak_at_the_end() {
        for cause in [FreeCause::TraceEnd, FreeCause::ProcessEnd] {
            let mut script = Script::new(7, NPU0);
            script.alloc(pools::PTA, 0x1000, 8).free(pools::PTA, 0x1000).alloc(pools::PTA, 0x2000, 5);
            script.alloc(pools::PTA, 0x1000, 9).end(cause, pools::PTA, 0x1000).end(cause, pools::PTA, 0x2000);
            let found = peak(&script);
            assert_eq!((found.time_ns, found.peak_bytes, found.seen), (3, 14, live(2, 14)));
            assert_eq!(sizes(&found.groups), [(4, live(1, 5)), (8, live(1, 9))]);
            assert_eq!(places(&found.groups), []);
        }
    }

    /// Memory that a program held before an exec is not added to that of the next one.
    #[test]
    fn programs_are_apart() {
        let mut script = Script::new(7, NPU0);
        script.alloc(pools::HAL, 0x1000, 80).end(FreeCause::ProcessEnd, pools::HAL, 0x1000);
        script.alloc(pools::HAL, 0x2000, 50).alloc(pools::HAL, 0x3000, 40);
        let found = peak(&script);
        assert_eq!((found.peak_bytes, found.seen), (90, live(2, 90)));
    }

    /// A failed free: the block was live all the time, and the sum with it is a peak once that is known.
    #[test]
    fn restored_block_counts() {
        let mut script = Script::new(7, NPU0);
        script.alloc(pools::HAL, 0x1000, 64).free(pools::HAL, 0x1000).alloc(pools::HAL, 0x2000, 10);
        script.restore(pools::HAL, 0x1000).free(pools::HAL, 0x2000);
        let found = peak(&script);
        assert_eq!((found.time_ns, found.peak_bytes, found.seen), (3, 74, live(2, 74)));
    }

    /// Attached late: the pool's own figure is the height, and the unseen part is named, not guessed.
    #[test]
    fn older_blocks_are_unseen() {
        let mut script = Script::new(7, NPU0);
        let start = ProcessStart { parent: 0, attached: true, command: "server".into(), pid_within: None };
        script.event(EventKind::ProcessStart(start));
        script.reported(Some((1010, 4096))).alloc(pools::PTA, 0x1000, 10);
        // Of the older ones much has gone: more is seen, and it is no peak.
        script.reported(Some((520, 4096))).alloc(pools::PTA, 0x2000, 20);
        let found = peak(&script);
        assert_eq!((found.attached, found.peak_bytes), (true, 1010));
        assert_eq!((found.seen, found.unseen_bytes), (live(1, 10), 1000));
    }

    /// Blocks of before the attach that are found later were there at the peak, too: by the pool's figure, which has them, or beside it.
    #[test]
    fn found_blocks_were_there() {
        let mut script = Script::new(7, NPU0);
        script.reported(Some((1110, 4096))).alloc(pools::PTA, 0x1000, 110);
        script.reported(Some((1000, 4096))).free(pools::PTA, 0x1000);
        script.older(pools::PTA, 0x2000, 400).older(pools::PTA, 0x3000, 600).free(pools::PTA, 0x2000);
        let found = peak(&script);
        assert_eq!((found.time_ns, found.peak_bytes, found.seen, found.unseen_bytes), (0, 1110, live(3, 1110), 0));
        let mut script = Script::new(7, NPU0);
        script.alloc(pools::HAL, 0x1000, 64).free(pools::HAL, 0x1000).alloc(pools::HAL, 0x2000, 10);
        script.older(pools::HAL, 0x3000, 100);
        let found = peak(&script);
        assert_eq!((found.time_ns, found.peak_bytes, found.seen), (0, 164, live(2, 164)));
        // Nothing before: they are the peak.
        let mut script = Script::new(7, NPU0);
        script.reported(Some((1000, 4096))).older(pools::PTA, 0x2000, 400).older(pools::PTA, 0x3000, 600);
        let found = peak(&script);
        assert_eq!((found.peak_bytes, found.seen, found.unseen_bytes), (1000, live(2, 1000), 0));
    }

    /// Every process, device and pool has its own peak, in that order; a process number can come back.
    #[test]
    fn peaks_are_separate() {
        let mut script = Script::new(7, NPU0);
        script.alloc(pools::PTA, 0x1000, 1).on(7, NPU1).alloc(pools::PTA, 0x1000, 2);
        script.on(6, NPU0).alloc(pools::PTA, 0x1000, 4).alloc(pools::HAL, 0x1000, 8);
        script.process_end().alloc(pools::HAL, 0x1000, 16);
        let reported: Vec<_> = peaks(&script).iter().map(|it| (it.pid, it.device, it.pool, it.peak_bytes)).collect();
        let expected = [
            (6, NPU0, pools::PTA, 4),
            (6, NPU0, pools::HAL, 8),
            (6, NPU0, pools::HAL, 16),
            (7, NPU0, pools::PTA, 1),
            (7, NPU1, pools::PTA, 2),
        ];
        assert_eq!(reported, expected);
    }

    #[test]
    fn losses_make_doubtful() {
        let mut script = Script::new(7, NPU0);
        script.alloc(pools::HAL, 0x1000, 1);
        let found = run(PeaksAnalysis::default(), script.events(), &RunEnd { lost: 1, ..RunEnd::default() });
        assert!(matches!(&found[..], [Finding::Peak(Peak { confidence: Confidence::Doubtful, .. })]), "{found:?}");
    }

    /// Sizes that only a liar can have add up all the same.
    #[test]
    fn huge_sizes_add_up() {
        let mut script = Script::new(7, NPU0);
        script.reported(Some((u64::MAX, u64::MAX)));
        script.alloc(pools::PTA, 1, u64::MAX - 20).alloc(pools::PTA, 2, 19);
        assert_eq!(peak(&script).seen, live(1, u64::MAX - 20));
    }

    /// A call: the address, one of four places, the module, the size; at a live address, a free.
    fn calls() -> impl Strategy<Value = Vec<(bool, u64, usize, u8, u64)>> {
        let pta = prop::bool::weighted(0.3);
        prop::collection::vec((pta, 0..24_u64, 0..4_usize, 0..4_u8, 0..5000_u64), 0..300)
    }

    proptest! {
        /// The peak, its time and its groups are those of a search through the list of live blocks after every event,
        /// and all three groupings have its sum.
        #[test]
        fn peaks_are_those_of_a_search(calls in calls()) {
            let mut script = Script::new(7, NPU0);
            let mut lives: BTreeMap<Pool, Vec<(u64, Block)>> = BTreeMap::new();
            let mut best: BTreeMap<Pool, (u64, u64, Vec<Block>)> = BTreeMap::new();
            for (pta, addr, place, module, size) in calls {
                let pool = if pta { pools::PTA } else { pools::HAL };
                let list = lives.entry(pool).or_default();
                if script.is_live(pool, addr) {
                    script.free(pool, addr);
                    list.retain(|(at, _)| *at != addr);
                    continue;
                }
                let stack: &[&str] = [&[][..], &["f"], &["g"], &["h"]][place];
                script.stacks(&[], stack).module(Some(module)).alloc(pool, addr, size);
                let Some(EventKind::Alloc(alloc)) = script.events().last().map(|event| event.kind.clone()) else {
                    panic!("no allocation")
                };
                list.push((addr, alloc.block));
                let total = list.iter().map(|(_, block)| block.size_bytes).sum();
                let blocks = || list.iter().map(|(_, block)| *block).collect();
                let time_ns = script.events().len() as u64 - 1;
                let top = best.entry(pool).or_insert_with(|| (0, 0, Vec::new()));
                if total > top.0 {
                    *top = (total, time_ns, blocks());
                }
            }
            let found = peaks(&script);
            prop_assert_eq!(found.len(), best.len());
            for found in found {
                let (total, time_ns, blocks) = &best[&found.pool];
                prop_assert_eq!((found.peak_bytes, found.seen), (*total, live(blocks.len() as u64, *total)));
                if *total > 0 {
                    prop_assert_eq!(found.time_ns, *time_ns);
                }
                let sum = |keep: &dyn Fn(&Block) -> bool| {
                    let kept: Vec<u64> = blocks.iter().filter(|block| keep(block)).map(|it| it.size_bytes).collect();
                    live(kept.len() as u64, kept.iter().sum())
                };
                let groups = &found.groups;
                for place in &groups.places {
                    prop_assert_eq!(place.live, sum(&|block| block.stacks == place.stacks));
                }
                for size in &groups.sizes {
                    let least = size.least_bytes;
                    let is_of = |block: &Block| block.size_bytes >= least && block.size_bytes < (least * 2).max(1);
                    prop_assert_eq!(size.live, sum(&is_of));
                }
                let mut classifier = Classifier::new(Arc::new(RuleSet::builtin()));
                let named: Vec<_> = blocks.iter().map(|block| (classifier.owner(block), block.size_bytes)).collect();
                for owner in &groups.owners {
                    let of = named.iter().filter(|(name, _)| *name == owner.owner);
                    prop_assert_eq!(owner.live.size_bytes, of.map(|(_, size)| size).sum::<u64>());
                }
                let all = |sums: Vec<LiveSum>| {
                    live(sums.iter().map(|it| it.blocks).sum(), sums.iter().map(|it| it.size_bytes).sum())
                };
                prop_assert_eq!(all(groups.owners.iter().map(|it| it.live).collect()), found.seen);
                prop_assert_eq!(all(groups.sizes.iter().map(|it| it.live).collect()), found.seen);
                if blocks.iter().any(|block| !block.stacks.is_empty()) {
                    prop_assert_eq!(all(groups.places.iter().map(|it| it.live).collect()), found.seen);
                } else {
                    prop_assert!(groups.places.is_empty());
                }
            }
        }
    }
}
