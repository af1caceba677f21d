//! Losses: what was seen and not reported, and which figures that affects.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::Serialize;

/// A kind of figures: those computed from the same calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Figures {
    /// Bytes and blocks of the driver and of pools, and all conclusions from them.
    Memory,
    /// Requests that failed.
    Failures,
    /// Kernel launches, their number and names.
    Launches,
    /// Steps, marks and ranges.
    Marks,
    /// Operators, and the uses of blocks.
    Operators,
    /// Owners of blocks.
    Owners,
    /// Call stacks.
    Stacks,
    /// The Python trace of a script.
    PythonTrace,
    /// Results of block watch.
    Watch,
    /// Rows of outputs; no finding.
    Rows,
}

impl Figures {
    /// All of them, in order.
    pub const ALL: [Self; 10] = [
        Self::Memory,
        Self::Failures,
        Self::Launches,
        Self::Marks,
        Self::Operators,
        Self::Owners,
        Self::Stacks,
        Self::PythonTrace,
        Self::Watch,
        Self::Rows,
    ];

    /// Name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Failures => "failed requests",
            Self::Launches => "launches",
            Self::Marks => "steps and marks",
            Self::Operators => "operators",
            Self::Owners => "owners",
            Self::Stacks => "call stacks",
            Self::PythonTrace => "Python trace",
            Self::Watch => "watched blocks",
            Self::Rows => "rows",
        }
    }
}

/// Reason of a loss: operators used tensors that are in no [`Access`](super::Access). [`UsesLeftOut`](super::EventKind::UsesLeftOut) says which.
pub const TENSOR_NOT_READABLE: &str = "tensor not readable";

/// One line of the loss report.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct LossLine {
    /// Layer, e.g. `hal`.
    pub layer: String,
    /// Function.
    pub symbol: String,
    /// Reason, e.g. `ring full`.
    pub reason: String,
    /// Calls.
    pub count: u64,
    /// Figures that may be wrong because of it; empty if all are right.
    pub touches: Cow<'static, [Figures]>,
}

/// Calls with a stack that ends early, for one reason.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct CutStacks {
    /// `C` or `Python`.
    pub kind: &'static str,
    /// Why, as at the end of the stack itself.
    pub reason: &'static str,
    /// Calls.
    pub count: u64,
}

/// How the trace ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct RunEnd {
    /// Time of its first event, nanoseconds since the Unix epoch. Printed times count from it, as those of `--since`
    /// do.
    pub start_ns: u64,
    /// When it ended, nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Records that the transport had no room for.
    pub lost: u64,
    /// Misses by function and reason; zeros left out.
    pub losses: Vec<LossLine>,
    /// Calls with stacks that are neither whole nor of the requested depth; zeros left out.
    pub cut_stacks: Vec<CutStacks>,
    /// The tracer itself failed, for this reason: losses are unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Files that traced processes had mapped and that the tracer may not open: nothing in them was probed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unopened: Vec<String>,
    /// A part of the run was asked for, and no block is in it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub nothing_selected: bool,
}

impl RunEnd {
    /// Whether one of these figures depends on something that is missing. Losses without a line, and files without
    /// probes, affect all of them.
    #[must_use]
    pub fn touches(&self, figures: &[Figures]) -> bool {
        let of_line = |line: &LossLine| line.touches.iter().any(|figure| figures.contains(figure));
        self.fault.is_some()
            || !self.unopened.is_empty()
            || (self.lost > 0 && self.losses.is_empty())
            || self.losses.iter().any(of_line)
    }

    /// Number of losses that may touch figures of memory.
    #[must_use]
    pub fn lost_of_memory(&self) -> u64 {
        // Lines count records without room as well.
        if self.losses.is_empty() { self.lost } else { self.count(|touches| touches.contains(&Figures::Memory)) }
    }

    /// Number of reported calls without their call stack, or without a part of it.
    #[must_use]
    pub fn without_stack(&self) -> u64 {
        self.count(|touches| touches.contains(&Figures::Stacks) && !touches.contains(&Figures::Memory))
    }

    fn count(&self, is_wanted: impl Fn(&[Figures]) -> bool) -> u64 {
        let lines = self.losses.iter().filter(|line| is_wanted(&line.touches));
        lines.map(|line| line.count).fold(0, u64::saturating_add)
    }
}

/// How sure a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// The rule was fully applied to complete data.
    Certain,
    /// Events were lost, so the finding may name blocks with an unseen free, or miss some.
    Doubtful,
}

impl Confidence {
    /// Trust in a finding about memory, after the losses of a run.
    #[must_use]
    pub fn after(end: &RunEnd) -> Self {
        Self::of(end, &[Figures::Memory])
    }

    /// Trust in a finding that depends on these figures, after the losses of a run.
    #[must_use]
    pub fn of(end: &RunEnd, figures: &[Figures]) -> Self {
        if end.touches(figures) { Self::Doubtful } else { Self::Certain }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(lost: u64, touches: &[&'static [Figures]]) -> RunEnd {
        let line = |touches: &&'static [Figures]| LossLine {
            layer: String::new(),
            symbol: String::new(),
            reason: String::new(),
            count: 1,
            touches: (*touches).into(),
        };
        RunEnd { lost, losses: touches.iter().map(line).collect(), ..RunEnd::default() }
    }

    /// Only the figures that a loss may touch are doubtful; of losses without a line, and of a tracer that failed, all are.
    #[test]
    fn consequences() {
        use Figures::{Launches, Marks, Memory};
        let doubtful = |end: &RunEnd| [&[Memory][..], &[Launches], &[Memory, Marks]].map(|it| end.touches(it));
        assert_eq!(doubtful(&end(0, &[])), [false; 3]);
        assert_eq!(doubtful(&end(0, &[&[]])), [false; 3]);
        assert_eq!(doubtful(&end(4, &[&[Launches], &[]])), [false, true, false]);
        assert_eq!(doubtful(&end(0, &[&[], &[Marks]])), [false, false, true]);
        assert_eq!(doubtful(&end(1, &[])), [true; 3]);
        assert_eq!(doubtful(&RunEnd { fault: Some("it failed".to_owned()), ..RunEnd::default() }), [true; 3]);
        assert_eq!(doubtful(&RunEnd { unopened: vec!["/lib/a".to_owned()], ..RunEnd::default() }), [true; 3]);
        assert_eq!(Confidence::after(&end(1, &[&[Launches]])), Confidence::Certain);
        assert_eq!(Confidence::after(&end(1, &[&Figures::ALL])), Confidence::Doubtful);
    }

    /// Records without room count once, with lines or without; a call without its stack is no lost call.
    #[test]
    fn counts() {
        use Figures::{Launches, Memory, Owners, Stacks};
        let counts = |end: &RunEnd| (end.lost_of_memory(), end.without_stack());
        assert_eq!(counts(&end(0, &[])), (0, 0));
        assert_eq!(counts(&end(4, &[])), (4, 0));
        assert_eq!(counts(&end(2, &[&[Memory], &Figures::ALL, &[Owners, Stacks], &[Launches], &[]])), (2, 1));
        assert_eq!(counts(&end(0, &[&[Owners, Stacks], &[Stacks]])), (0, 2));
    }
}
