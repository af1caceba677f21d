//! Random programs of several threads with nested operators. What is expected is worked out from the whole log by the definition alone:
//! every pair of uses with every API between them.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::super::{InefficientAnalysis, InefficientKind, InefficientRules};
use crate::analyses::{
    Finding,
    script::{Script, run},
};
use crate::backend::ascend::pools;
use crate::model::{Device, RunEnd};

const SLOTS: u64 = 4;
const IDLE: u64 = 3;
/// Names by depth, so that an end is that of the innermost operator.
const NAMES: [&str; 3] = ["outer", "middle", "inner"];

#[derive(Clone, Copy, Debug)]
enum Step {
    Begin,
    End,
    Alloc(u64),
    Free(u64),
    Use(u64),
}

/// What a thread did, and in which API.
#[derive(Clone, Copy)]
struct Done {
    api: usize,
    at: usize,
    time_ns: u64,
}

#[derive(Default)]
struct Api {
    took: bool,
    gave: bool,
    /// Position in the log; what an operator did counts from its end on.
    ended_at: Option<usize>,
}

/// A block from its allocation on.
struct Life {
    number: u64,
    size_bytes: u64,
    born: Done,
    uses: Vec<Done>,
    freed: Option<Done>,
}

/// The program, as it was written down by itself.
#[derive(Default)]
struct Log {
    apis: Vec<Api>,
    open: BTreeMap<u32, Vec<usize>>,
    live: BTreeMap<u64, Life>,
    lives: Vec<Life>,
    /// Most live bytes so far, and since when.
    peak: (u64, u64),
}

type Expected = BTreeMap<u64, (BTreeSet<usize>, f64)>;

/// Blocks and bytes.
type Sum = (u64, u64);

impl Log {
    /// The API of an event of a block: the thread's innermost operator, else one of its own.
    fn done(&mut self, tid: u32, at: usize, time_ns: u64) -> Done {
        let innermost = self.open.get(&tid).and_then(|open| open.last()).copied();
        let api = innermost.unwrap_or_else(|| {
            self.apis.push(Api { ended_at: Some(at), ..Api::default() });
            self.apis.len() - 1
        });
        Done { api, at, time_ns }
    }

    /// Whether an API between two others, ended by now, took or gave memory.
    fn between(&self, (from, to): (Done, Done), of: fn(&Api) -> bool) -> bool {
        let between = self.apis.iter().enumerate().filter(|(number, _)| from.api < *number && *number < to.api);
        between.into_iter().any(|(_, api)| of(api) && api.ended_at.is_some_and(|ended| ended < to.at))
    }

    /// Blocks held too long; and of them those without use at the peak.
    fn expected(&self) -> (Expected, Sum) {
        let (mut expected, mut idle) = (Expected::new(), (0, 0));
        let at_peak = |(from, to): (Done, Done)| from.time_ns <= self.peak.1 && self.peak.1 < to.time_ns;
        for life in &self.lives {
            let (mut kinds, mut is_idle) = (BTreeMap::<usize, f64>::new(), false);
            let wasted = |(from, to): (Done, Done)| (to.time_ns - from.time_ns) as f64 / 1e9 * life.size_bytes as f64;
            let first = life.uses.iter().find(|used| used.api != life.born.api);
            if let Some(pair) = first.map(|used| (life.born, *used))
                && self.between(pair, |api| api.gave)
            {
                *kinds.entry(InefficientKind::EarlyAllocation as usize).or_default() += wasted(pair);
                is_idle |= at_peak(pair);
            }
            if let Some(pair) = life.uses.last().copied().zip(life.freed)
                && self.between(pair, |api| api.took)
            {
                *kinds.entry(InefficientKind::LateDeallocation as usize).or_default() += wasted(pair);
                is_idle |= at_peak(pair);
            }
            for pair in life.uses.windows(2).map(|pair| (pair[0], pair[1])) {
                if pair.1.api > pair.0.api && (pair.1.api - pair.0.api) as u64 > IDLE {
                    *kinds.entry(InefficientKind::TemporaryIdleness as usize).or_default() += wasted(pair);
                    is_idle |= at_peak(pair);
                }
            }
            idle = if is_idle { (idle.0 + 1, idle.1 + life.size_bytes) } else { idle };
            if !kinds.is_empty() {
                expected.insert(life.number, (kinds.keys().copied().collect(), kinds.values().sum()));
            }
        }
        (expected, idle)
    }
}

/// Plays the steps that make sense; gives the events and the log.
fn played(steps: &[(u32, Step)]) -> (Script, Log) {
    let (mut script, mut log) = (Script::new(1, Device::Npu(0)), Log::default());
    for (at, &(tid, step)) in steps.iter().enumerate() {
        let addr = |slot: u64| 0x1000 * (slot + 1);
        script.thread(tid);
        let depth = log.open.get(&tid).map_or(0, Vec::len);
        match step {
            Step::Begin if depth < NAMES.len() => {
                script.begin(NAMES[depth]);
                log.apis.push(Api::default());
                log.open.entry(tid).or_default().push(log.apis.len() - 1);
            }
            Step::End if depth > 0 => {
                script.end_op(NAMES[depth - 1]);
                let ended = log.open.get_mut(&tid).and_then(Vec::pop).expect("an open one");
                log.apis[ended].ended_at = Some(at);
            }
            Step::Alloc(slot) if !log.live.contains_key(&slot) => {
                let size_bytes = 64 << slot;
                script.alloc(pools::PTA, addr(slot), size_bytes);
                let born = log.done(tid, at, script.now());
                log.apis[born.api].took = true;
                let number = script.number_of(pools::PTA, addr(slot));
                log.live.insert(slot, Life { number, size_bytes, born, uses: Vec::new(), freed: None });
                let live = log.live.values().map(|life| life.size_bytes).sum();
                if live > log.peak.0 {
                    log.peak = (live, script.now());
                }
            }
            Step::Use(slot) if log.live.contains_key(&slot) => {
                script.access(addr(slot));
                let used = log.done(tid, at, script.now());
                log.live.get_mut(&slot).expect("live").uses.push(used);
            }
            Step::Free(slot) if log.live.contains_key(&slot) => {
                script.free(pools::PTA, addr(slot));
                let freed = log.done(tid, at, script.now());
                log.apis[freed.api].gave = true;
                let life = log.live.remove(&slot).expect("live");
                log.lives.push(Life { freed: Some(freed), ..life });
            }
            _ => {}
        }
    }
    let rest = std::mem::take(&mut log.live);
    log.lives.extend(rest.into_values());
    (script, log)
}

fn step() -> impl Strategy<Value = (u32, Step)> {
    let slot = || 0..SLOTS;
    let step = prop_oneof![
        3 => Just(Step::Begin),
        3 => Just(Step::End),
        2 => slot().prop_map(Step::Alloc),
        2 => slot().prop_map(Step::Free),
        4 => slot().prop_map(Step::Use),
    ];
    (1_u32..3, step)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Blocks, kinds, waste and sums are those of the definition.
    #[test]
    fn random_programs_are_judged_by_the_definition(steps in proptest::collection::vec(step(), 0..150)) {
        let (script, log) = played(&steps);
        let rules = InefficientRules { idle_threshold: IDLE, ..InefficientRules::default() };
        let found = run(InefficientAnalysis::new(rules), script.events(), &RunEnd::default());
        let found = match &found[..] {
            [] => {
                prop_assert!(log.lives.is_empty());
                return Ok(());
            }
            [Finding::Inefficient(found)] => found,
            other => panic!("{other:?}"),
        };
        let (expected, idle) = log.expected();
        let blocks: Expected = found.blocks.iter().map(|block| {
            let kinds = block.kinds.iter().map(|kind| *kind as usize).collect();
            (block.allocation_id, (kinds, block.wasted_byte_seconds))
        }).collect();
        let names = |of: &Expected| of.iter().map(|(number, (kinds, _))| (*number, kinds.clone())).collect::<Vec<_>>();
        prop_assert_eq!(names(&blocks), names(&expected));
        for (number, (_, wasted)) in &expected {
            prop_assert!((blocks[number].1 - wasted).abs() < 1e-12 * (1.0 + wasted), "waste of {}", number);
        }
        for kind in 0..3 {
            let of_kind = |life: &&Life| expected.get(&life.number).is_some_and(|(kinds, _)| kinds.contains(&kind));
            let (blocks, bytes) = log.lives.iter().filter(of_kind).fold((0, 0), |sum, life| (sum.0 + 1, sum.1 + life.size_bytes));
            prop_assert_eq!((found.kinds[kind].blocks, found.kinds[kind].size_bytes), (blocks, bytes));
        }
        prop_assert_eq!((found.idle_at_peak.blocks, found.idle_at_peak.size_bytes), idle);
        // Without stacks a place is a size.
        let places: BTreeMap<u64, u64> =
            found.places.iter().map(|place| (place.each_bytes.expect("a size"), place.blocks)).collect();
        let mut sizes = BTreeMap::new();
        for life in log.lives.iter().filter(|life| expected.contains_key(&life.number)) {
            *sizes.entry(life.size_bytes).or_insert(0) += 1;
        }
        prop_assert_eq!(places, sizes);
        let bytes: u64 = log.lives.iter().map(|life| life.size_bytes).sum();
        prop_assert_eq!((found.looked_at.blocks, found.looked_at.size_bytes), (log.lives.len() as u64, bytes));
        prop_assert_eq!(found.accesses, log.lives.iter().map(|life| life.uses.len() as u64).sum::<u64>());
    }
}
