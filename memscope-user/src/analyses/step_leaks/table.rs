//! Blocks that leak, by steps or between marks, as rows.

use super::{Leak, StepLeaks};
use crate::analyses::{
    Finding,
    answer::Kind as _,
    mark_leaks::{MarkLeak, MarkLeaks},
    table::{Cell, Rows, Table, Type, column},
};
use crate::model::{Confidence, Device, Pool, Stacks};

/// Cells that the rows of a finding share.
struct Head {
    pid: u32,
    device: Device,
    confidence: Confidence,
}

/// A block by either rule.
struct Block {
    verdict: &'static str,
    pool: Pool,
    addr: u64,
    size_bytes: u64,
    allocation_id: u64,
    stacks: Stacks,
    of_steps: Option<OfSteps>,
    of_marks: Option<OfMarks>,
}

/// Cells of the rule for steps.
#[derive(Clone, Copy)]
struct OfSteps {
    step: u32,
    survived_steps: u32,
    kernel_index: u64,
}

/// Cells of the rule for marks.
#[derive(Clone, Copy)]
struct OfMarks {
    event_id: u64,
    freed_later: bool,
}

impl Block {
    fn of_steps(verdict: &'static str, leak: &Leak) -> Self {
        let Leak { pool, addr, size_bytes, step, survived_steps, kernel_index, allocation_id, stacks } = *leak;
        let of_steps = Some(OfSteps { step, survived_steps, kernel_index });
        Self { verdict, pool, addr, size_bytes, allocation_id, stacks, of_steps, of_marks: None }
    }

    fn of_marks(leak: &MarkLeak) -> Self {
        let MarkLeak { pool, addr, size_bytes, allocation_id, event_id, freed_later, stacks } = *leak;
        let of_marks = Some(OfMarks { event_id, freed_later });
        Self { verdict: LEAK, pool, addr, size_bytes, allocation_id, stacks, of_steps: None, of_marks }
    }
}

const LEAK: &str = "leak";
const UNJUDGED: &str = "unjudged";

/// A row for each block.
pub(super) const TABLE: &dyn Table<Finding> = &Rows::<Finding, Head, Block> {
    columns: &[
        column("verdict", Type::Text, |_, block| Cell::text(block.verdict)),
        column("pid", Type::Unsigned, |head, _| head.pid.into()),
        column("device", Type::Text, |head, _| Cell::device(head.device)),
        column("pool", Type::Text, |_, block| Cell::word(block.pool)),
        column("addr", Type::Unsigned, |_, block| block.addr.into()),
        column("size_bytes", Type::Unsigned, |_, block| block.size_bytes.into()),
        column("step", Type::Unsigned, |_, block| block.of_steps.map(|it| it.step).into()),
        column("survived_steps", Type::Unsigned, |_, block| block.of_steps.map(|it| it.survived_steps).into()),
        column("kernel_index", Type::Unsigned, |_, block| block.of_steps.map(|it| it.kernel_index).into()),
        column("allocation_id", Type::Unsigned, |_, block| block.allocation_id.into()),
        column("event_id", Type::Unsigned, |_, block| block.of_marks.map(|it| it.event_id).into()),
        column("freed_later", Type::Flag, |_, block| block.of_marks.map(|it| it.freed_later).into()),
        column("confidence", Type::Text, |head, _| Cell::word(head.confidence)),
        column("python_stack", Type::Text, |_, block| Cell::frames(block.stacks.python)),
        column("native_stack", Type::Text, |_, block| Cell::frames(block.stacks.native)),
    ],
    each: |finding, row| {
        if let Some(StepLeaks { pid, device, leaks, unjudged, confidence, .. }) = StepLeaks::of(finding) {
            let head = Head { pid: *pid, device: *device, confidence: *confidence };
            for (verdict, leaks) in [(LEAK, leaks), (UNJUDGED, unjudged)] {
                for leak in leaks {
                    row(&head, &Block::of_steps(verdict, leak));
                }
            }
        }
        if let Some(MarkLeaks { pid, device, leaks, confidence, .. }) = MarkLeaks::of(finding) {
            let head = Head { pid: *pid, device: *device, confidence: *confidence };
            for leak in leaks {
                row(&head, &Block::of_marks(leak));
            }
        }
    },
};
