mod definition;

use super::*;
use crate::analyses::script::{Script, run};
use crate::backend::ascend::pools;
use crate::model::{Access, AccessKind, Op};

use InefficientKind::{EarlyAllocation, LateDeallocation, TemporaryIdleness};

const NPU0: Device = Device::Npu(0);
const A: u64 = 0x1000;
const B: u64 = 0x2000;

impl Script {
    fn begin(&mut self, name: &str) -> &mut Self {
        self.event(EventKind::Op(Op { phase: OpPhase::Start, name: name.into() }))
    }

    fn end_op(&mut self, name: &str) -> &mut Self {
        self.event(EventKind::Op(Op { phase: OpPhase::End, name: name.into() }))
    }

    /// The operator that runs now uses the block at `addr`.
    fn access(&mut self, addr: u64) -> &mut Self {
        let allocation_id = self.number_of(pools::PTA, addr);
        let shape = std::sync::Arc::from([]);
        let (kind, op, pool) = (AccessKind::Read, "op".into(), pools::PTA);
        self.event(EventKind::Access(Access {
            kind,
            op,
            allocation_id,
            pool,
            addr,
            size_bytes: 1,
            dtype: "",
            format: None,
            shape,
        }))
    }
}

fn judge(script: &Script, rules: InefficientRules) -> Vec<(u64, Vec<InefficientKind>)> {
    let found = run(InefficientAnalysis::new(rules), script.events(), &RunEnd::default());
    found
        .into_iter()
        .flat_map(|finding| match finding {
            Finding::Inefficient(found) => found.blocks,
            other => panic!("not inefficient use: {other:?}"),
        })
        .map(|block| (block.addr, block.kinds))
        .collect()
}

fn all(script: &Script) -> Vec<(u64, Vec<InefficientKind>)> {
    judge(script, InefficientRules::default())
}

/// A is allocated, another operator gives B back, then A is used for the first time.
#[test]
fn early_allocation() {
    let mut script = Script::new(1, NPU0);
    script.begin("b").alloc(pools::PTA, B, 64).end_op("b").begin("a").alloc(pools::PTA, A, 64).access(A).end_op("a");
    script.begin("f").free(pools::PTA, B).end_op("f").begin("u").access(A).end_op("u");
    assert_eq!(all(&script), [(A, vec![EarlyAllocation])]);
    // Freed within the operator that uses A: not between.
    let mut script = Script::new(1, NPU0);
    script.begin("b").alloc(pools::PTA, B, 64).end_op("b").begin("a").alloc(pools::PTA, A, 64).end_op("a");
    script.begin("u").free(pools::PTA, B).access(A).end_op("u");
    assert_eq!(all(&script), []);
}

/// A is used, another operator takes memory, then A is freed.
#[test]
fn late_deallocation() {
    let mut script = Script::new(1, NPU0);
    script.begin("a").alloc(pools::PTA, A, 64).access(A).end_op("a").begin("b").alloc(pools::PTA, B, 64).end_op("b");
    script.free(pools::PTA, A);
    assert_eq!(all(&script), [(A, vec![LateDeallocation])]);
    // No allocation in between; and a block that was never used is not late.
    let mut script = Script::new(1, NPU0);
    script.begin("a").alloc(pools::PTA, A, 64).access(A).end_op("a").free(pools::PTA, A);
    script.alloc(pools::PTA, B, 64).alloc(pools::PTA, A, 64).free(pools::PTA, B);
    assert_eq!(all(&script), []);
}

/// More APIs than the threshold between two uses: strictly more.
#[test]
fn temporary_idleness() {
    let mut script = Script::new(1, NPU0);
    script.begin("a").alloc(pools::PTA, A, 64).access(A).end_op("a");
    for _ in 0..4 {
        script.begin("x").end_op("x");
    }
    script.begin("u").access(A).end_op("u");
    let idle = |idle_threshold| judge(&script, InefficientRules { idle_threshold, ..InefficientRules::default() });
    assert_eq!((idle(4), idle(5)), (vec![(A, vec![TemporaryIdleness])], vec![]));
}

/// Fault of the reference: the end of an inner operator ended the outer one, so a free in the outer one then was an
/// API of its own, between allocation and use.
#[test]
fn inner_operators_do_not_end_outer_ones() {
    let mut script = Script::new(1, NPU0);
    script.alloc(pools::PTA, B, 64).begin("outer").begin("inner").end_op("inner").alloc(pools::PTA, A, 64);
    script.free(pools::PTA, B).access(A).end_op("outer").begin("u").access(A).end_op("u");
    assert_eq!(all(&script), []);
}

/// Fault of the reference: the operator of one thread ended by the end of another thread's.
#[test]
fn threads_have_operators_of_their_own() {
    let mut script = Script::new(1, NPU0);
    script.alloc(pools::PTA, B, 64).begin("x").alloc(pools::PTA, A, 64).thread(2).begin("y").end_op("y");
    script.thread(1).free(pools::PTA, B).access(A).end_op("x").begin("u").access(A).end_op("u");
    assert_eq!(all(&script), []);
}

/// With threads, an operator that began later may end earlier: the latest is not the one in between.
#[test]
fn overlapping_operators_hide_nothing() {
    let mut script = Script::new(1, NPU0);
    script.alloc(pools::PTA, B, 64).alloc(pools::PTA, 0x3000, 64).begin("a").alloc(pools::PTA, A, 64).end_op("a");
    script.begin("f").free(pools::PTA, B).end_op("f").begin("u");
    script.thread(2).begin("later").free(pools::PTA, 0x3000).end_op("later").thread(1).access(A).end_op("u");
    assert_eq!(all(&script), [(A, vec![EarlyAllocation])]);
}

/// The selected block is judged by the events of all others, so B, which is not selected, makes A early; and A is
/// not listed when B is selected.
#[test]
fn others_are_not_listed_but_count() {
    use crate::analyses::select::{Condition, Test};
    let mut script = Script::new(1, NPU0);
    script.begin("b").alloc(pools::PTA, B, 64).end_op("b").begin("a").alloc(pools::PTA, A, 65).access(A).end_op("a");
    script.begin("f").free(pools::PTA, B).end_op("f").begin("u").access(A).end_op("u");
    let listed = |size_bytes: u64| {
        let filter = Filter { conditions: vec![Condition { test: Test::Size(size_bytes), wanted: true }], rules: None };
        run(InefficientAnalysis::default().only(filter), script.events(), &RunEnd::default())
    };
    let addresses = |size_bytes| {
        let found = listed(size_bytes);
        let [Finding::Inefficient(found)] = &found[..] else { panic!("one device") };
        (found.looked_at.blocks, found.blocks.iter().map(|block| block.addr).collect::<Vec<_>>())
    };
    assert_eq!((addresses(65), addresses(64)), ((1, vec![A]), (1, vec![])));
    assert_eq!(listed(63), []);
}

/// Blocks are judged by their accesses: without any, blocks are counted and not judged. A is used twice.
#[test]
fn nothing_is_judged_without_uses() {
    let mut script = Script::new(1, NPU0);
    script.begin("a").alloc(pools::PTA, A, 64).end_op("a").alloc(pools::HAL, 0x9000, 7);
    let judged = |script: &Script, end: &RunEnd| {
        let found = run(InefficientAnalysis::default(), script.events(), end);
        let [Finding::Inefficient(found)] = &found[..] else { panic!("{found:?}") };
        (found.judged, found.looked_at.blocks, found.looked_at.size_bytes, found.accesses, found.confidence)
    };
    assert_eq!(judged(&script, &RunEnd::default()), (false, 1, 64, 0, Confidence::Certain));
    script.begin("u").access(A).end_op("u").begin("v").access(A).end_op("v");
    assert_eq!(judged(&script, &RunEnd::default()), (true, 1, 64, 2, Confidence::Certain));
    let lossy = RunEnd { lost: 1, ..RunEnd::default() };
    assert_eq!(judged(&script, &lossy), (true, 1, 64, 2, Confidence::Doubtful));
}

/// The use of a restored block is unknown: its next access is not its first.
#[test]
fn blocks_that_are_put_back_are_not_judged() {
    let mut script = Script::new(1, NPU0);
    script.begin("b").alloc(pools::PTA, B, 64).end_op("b").alloc(pools::PTA, A, 64).free(pools::PTA, A);
    script.restore(pools::PTA, A).begin("f").free(pools::PTA, B).end_op("f").begin("u").access(A).end_op("u");
    assert_eq!(all(&script), []);
}

/// Size and kind choose the listed blocks; waste is size times idle time, here 10 events of 1 ns.
#[test]
fn rules_and_waste() {
    let mut script = Script::new(1, NPU0);
    script.begin("a").alloc(pools::PTA, A, 1_000_000).end_op("a").alloc(pools::PTA, B, 64).free(pools::PTA, B);
    for _ in 0..3 {
        script.begin("x").end_op("x");
    }
    script.access(A);
    let rules = |min_size_bytes, kinds| InefficientRules { min_size_bytes, kinds, ..InefficientRules::default() };
    assert_eq!(judge(&script, rules(1_000_001, [true; 3])), []);
    assert_eq!(judge(&script, rules(0, [false, true, true])), []);
    let found = run(InefficientAnalysis::new(rules(1_000_000, [true; 3])), script.events(), &RunEnd::default());
    let [Finding::Inefficient(found)] = found.as_slice() else { panic!("{found:?}") };
    let Waste { blocks, size_bytes, wasted_byte_seconds, .. } = found.kinds[0];
    assert_eq!((blocks, size_bytes), (1, 1_000_000));
    assert!((wasted_byte_seconds - 0.01).abs() < 1e-9, "{wasted_byte_seconds}");
}
