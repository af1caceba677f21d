//! Where frees go, worked out by hand.

use super::*;
use crate::analyses::script::{Script, observe};
use crate::analyses::select::{Condition, Filter, Test};
use crate::backend::ascend::pools;
use crate::model::{
    Access, AccessKind, AtbOp, Device, EventKind, Figures, Graph, GraphChange, LossLine, Op as Operator, OpPhase,
    RunEnd, TENSOR_NOT_READABLE,
};
use crate::whatif::{Recorder, Source};

const NPU: Device = Device::Npu(3);
/// Blocks that are asked about are larger than this.
const ASKED_BYTES: u64 = 1 << 20;
const A: u64 = 0x1200_0000_0000;
const B: u64 = A + (1 << 28);
const C: u64 = B + (1 << 28);

/// The program's side of a script.
struct Run(Script);

impl Run {
    fn new() -> Self {
        Self(Script::new(7, NPU))
    }

    /// A request of this size, behind those that are asked about.
    fn large(&mut self, addr: u64, name: u64) -> &mut Self {
        self.request(addr, ASKED_BYTES + name)
    }

    /// One that is not asked about.
    fn small(&mut self, addr: u64, name: u64) -> &mut Self {
        self.request(addr, name)
    }

    fn request(&mut self, addr: u64, bytes: u64) -> &mut Self {
        let now = self.0.now();
        self.0.pool_alloc(pools::PTA, addr, (bytes + 32).next_multiple_of(512), 1 << 30).asked(now, 5, bytes);
        self
    }

    fn free(&mut self, addr: u64) -> &mut Self {
        self.0.returned(pools::PTA, addr).free(pools::PTA, addr);
        self
    }

    fn event(&mut self, kind: EventKind) -> &mut Self {
        self.0.event(kind);
        self
    }

    fn thread(&mut self, tid: u32) -> &mut Self {
        self.0.thread(tid);
        self
    }

    fn begins(&mut self, name: &str) -> &mut Self {
        self.event(EventKind::Op(Operator { phase: OpPhase::Start, name: name.into() }))
    }

    fn ends(&mut self, name: &str) -> &mut Self {
        self.event(EventKind::Op(Operator { phase: OpPhase::End, name: name.into() }))
    }

    fn uses(&mut self, addr: u64) -> &mut Self {
        self.event(EventKind::Access(Access {
            kind: AccessKind::Read,
            op: "op".into(),
            allocation_id: 0,
            pool: pools::PTA,
            addr,
            size_bytes: 1,
            dtype: "",
            format: None,
            shape: [].into(),
        }))
    }

    fn recorded(&self, end: &RunEnd) -> Requests {
        let asked = Condition { test: Test::Above(ASKED_BYTES), wanted: true };
        let filter = Filter { conditions: vec![asked], rules: None };
        let (recorder, made) = Recorder::new(Source::Capture);
        observe(recorder.with_last_uses(filter), self.0.events(), end);
        made.try_recv().expect("a run").remove(0)
    }

    /// What the changed program does, and how many blocks match, are moved, have no known use, and stay for other reasons.
    fn early(&self) -> (String, [u64; 4]) {
        let (changed, found) = freed_early(&self.recorded(&RunEnd::default())).expect("asked for");
        (story(&changed), [found.blocks, found.moved, found.without_use, found.kept])
    }
}

/// Requests (`+`), frees (`-`), and those of blocks that streams use (`~`, and `=` when they are back), by their names.
fn story(requests: &Requests) -> String {
    let (mut slots, mut names, mut words) = (Slots::default(), std::collections::BTreeMap::new(), Vec::new());
    for op in requests.words.iter() {
        match op {
            Op::Alloc { asked, .. } => {
                let name = asked % ASKED_BYTES;
                names.insert(slots.take(), name);
                words.push(format!("+{name}"));
            }
            Op::Free { slot } => {
                slots.give_back(slot);
                words.push(format!("-{}", names.remove(&slot).expect("live")));
            }
            Op::FreeInUse { slot } => words.push(format!("~{}", names[&slot])),
            Op::Returned { slot } => {
                slots.give_back(slot);
                words.push(format!("={}", names.remove(&slot).expect("live")));
            }
            _ => {}
        }
    }
    words.join(" ")
}

/// Two operators read a block. It goes behind the end of the second one, which asks for its result in between; a block that is not asked about stays.
#[test]
fn behind_the_end_of_the_last_operator() {
    let mut run = Run::new();
    run.large(A, 1).begins("mul").uses(A).small(B, 2).uses(B).ends("mul");
    run.begins("add").uses(A + 4096).uses(B).small(C, 3).uses(C).ends("add");
    run.small(C + 4096, 4).free(A).free(B).free(C);
    assert_eq!(run.early(), ("+1 +2 +3 -1 +4 -2 -3".into(), [1, 1, 0, 0]));
    assert_eq!(story(&run.recorded(&RunEnd::default())), "+1 +2 +3 +4 -1 -2 -3");
}

/// A use belongs to the block that lies there at that time. Of the first one it is right before its free: nothing is moved.
#[test]
fn addresses_that_are_used_again() {
    let mut run = Run::new();
    run.large(A, 1).begins("mul").uses(A).ends("mul").free(A);
    run.large(A, 2).begins("mul").uses(A).ends("mul").small(B, 3).free(A).free(B);
    assert_eq!(run.early(), ("+1 -1 +2 -2 +3 -3".into(), [2, 1, 0, 0]));
    // Behind its end there is no block.
    let mut run = Run::new();
    run.large(A, 1).small(B, 2).begins("mul").uses(A + (1 << 21)).ends("mul").free(A);
    assert_eq!(run.early(), ("+1 +2 -1".into(), [1, 0, 1, 0]));
}

/// Slots of the changed program are not those of the recording: blocks of three ages, freed the other way round.
#[test]
fn many_blocks_at_once() {
    let mut run = Run::new();
    run.large(A, 1).large(B, 2).large(C, 3);
    for addr in [B, A, C] {
        run.begins("mul").uses(addr).ends("mul").small(addr + (1 << 27), 9);
    }
    run.small(A - 4096, 4).free(C).free(B).small(B, 5).free(A).free(B);
    assert_eq!(run.early(), ("+1 +2 +3 -2 +9 -1 +9 -3 +9 +4 +5 -5".into(), [3, 3, 0, 0]));
}

/// Threads have operators of their own; the last of them counts, also if it began first.
#[test]
fn operators_of_other_threads() {
    let mut run = Run::new();
    run.large(A, 1).thread(8).begins("mul").uses(A).thread(9).begins("add").uses(A).ends("add").small(B, 2);
    run.thread(8).small(B + 4096, 3).ends("mul").thread(9).small(C, 4).free(A);
    assert_eq!(run.early(), ("+1 +2 +3 -1 +4".into(), [1, 1, 0, 0]));
}

/// An operator that throws has no end: it may go on until its thread's next one. What is written is reported behind the end.
#[test]
fn operators_without_an_end() {
    let mut run = Run::new();
    run.large(A, 1).begins("mul").uses(A).small(B, 2).begins("add").ends("add").uses(B).small(C, 3).free(A);
    assert_eq!(run.early(), ("+1 +2 -1 +3".into(), [1, 1, 0, 0]));
    let mut run = Run::new();
    run.begins("ones").large(A, 1).ends("ones").uses(A).small(B, 2).free(A);
    assert_eq!(run.early(), ("+1 -1 +2".into(), [1, 1, 0, 0]));
    // The run ends within it.
    let mut run = Run::new();
    run.large(A, 1).begins("mul").uses(A).small(B, 2).free(A).small(C, 3);
    assert_eq!(run.early(), ("+1 +2 -1 +3".into(), [1, 0, 0, 0]));
}

/// Operations of ATB lie in each other, and in those of torch.
#[test]
fn operations_of_atb() {
    let atb = |begins| EventKind::AtbOp(AtbOp { begins, name: "Linear".into(), workspace_addr: 0, workspace_bytes: 0 });
    let mut run = Run::new();
    run.large(A, 1).event(atb(true)).event(atb(true)).uses(A).event(atb(false)).small(B, 2).event(atb(false));
    run.small(C, 3).free(A);
    assert_eq!(run.early(), ("+1 +2 -1 +3".into(), [1, 1, 0, 0]));
}

/// Without a use, used by a stream at the free, or of a captured graph: freed as recorded.
#[test]
fn blocks_that_stay() {
    let mut run = Run::new();
    run.large(A, 1).small(B, 2).free(A).free(B);
    assert_eq!(run.early(), ("+1 +2 -1 -2".into(), [1, 0, 1, 0]));
    let mut run = Run::new();
    run.small(C, 9).free(C);
    run.large(A, 1).begins("mul").uses(A).ends("mul").small(B, 2);
    run.0.free(pools::PTA, A).returned(pools::PTA, A);
    assert_eq!(run.early(), ("+9 -9 +1 +2 ~1 =1".into(), [1, 0, 0, 1]));
    let graph = |change| EventKind::Graph(Graph { handle: 9, change });
    let mut run = Run::new();
    run.event(graph(GraphChange::Begins { pool: (0, 0) })).large(A, 1).begins("mul").uses(A).ends("mul");
    run.event(graph(GraphChange::Ends)).small(B, 2).free(A);
    assert_eq!(run.early(), ("+1 +2 -1".into(), [1, 0, 0, 1]));
}

/// A block that is never freed goes behind its last use, if the process has ended: else it may be used later.
#[test]
fn blocks_that_are_never_freed() {
    let mut run = Run::new();
    run.large(A, 1).begins("mul").uses(A).ends("mul").small(B, 2);
    assert_eq!(run.early(), ("+1 +2".into(), [1, 0, 1, 0]));
    run.0.process_end();
    assert_eq!(run.early(), ("+1 -1 +2".into(), [1, 1, 0, 0]));
    let mut run = Run::new();
    run.large(A, 1).small(B, 2).begins("mul").uses(A).ends("mul");
    run.0.process_end();
    assert_eq!(run.early(), ("+1 +2 -1".into(), [1, 1, 0, 0]));
}

/// An operator with more tensors than are recorded may use any block that there is; a block without a known use stays so.
#[test]
fn operators_with_uses_left_out() {
    let mut run = Run::new();
    run.large(A, 1).large(B, 2).begins("mul").uses(A).ends("mul").small(A - 4096, 3);
    run.begins("foreach").event(EventKind::UsesLeftOut).small(C, 4).ends("foreach");
    run.large(C + 4096, 5).uses(C + 4096).small(A - 8192, 6).free(A).free(B).free(C + 4096);
    assert_eq!(run.early(), ("+1 +2 +3 +4 -1 +5 -5 +6 -2".into(), [3, 2, 1, 0]));
    // Such losses are known one by one, and others are not.
    let line = |reason: &str| LossLine {
        layer: String::new(),
        symbol: String::new(),
        reason: reason.to_owned(),
        count: 1,
        touches: (&[Figures::Operators]).into(),
    };
    for (reason, lost) in [(TENSOR_NOT_READABLE, false), ("ring full", true)] {
        let end = RunEnd { losses: vec![line(reason)], ..RunEnd::default() };
        let (_, found) = freed_early(&run.recorded(&end)).expect("asked for");
        assert_eq!((found.left_out, found.uses_lost, found.uses), (1, lost, 2), "{reason}");
    }
}

/// Four bytes a request, only if they are asked for.
#[test]
fn last_uses_are_small() {
    let mut run = Run::new();
    for _ in 0..1000 {
        run.large(A, 1).uses(A).free(A);
    }
    let (recorder, made) = Recorder::new(Source::Capture);
    observe(recorder, run.0.events(), &RunEnd::default());
    let plain = made.try_recv().expect("a run").remove(0);
    assert!(freed_early(&plain).is_none());
    assert_eq!(run.recorded(&RunEnd::default()).memory_bytes(), plain.memory_bytes() + 4 * 1000);
}
