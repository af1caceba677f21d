//! Call stacks, which events carry by the million: each is [kept](Kept) once, and copied like a number.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::num::NonZeroU32;

pub use memscope_common::StackEnd;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};

#[cfg(feature = "cli")]
use super::kept::run_number;
use super::kept::{Kept, Text};

/// A call stack, a number in the [`Kept`] of its run. Equal stacks of a run have the same number: texts and reason of the end agree. Ordered by their texts: the
/// order of arrival differs between runs, and between replays.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stack(NonZeroU32);

/// Where a call was made from, as far as it was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize)]
pub struct Stacks {
    /// Native frames.
    pub native: Option<Stack>,
    /// Frames of Python.
    pub python: Option<Stack>,
    /// Both in one, with Python frames where the interpreter runs them; if requested, and possible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mixed: Option<Stack>,
}

impl Stacks {
    /// What stands for the native ones in outputs: with Python's frames in it, if they could be merged.
    #[must_use]
    pub fn native_or_mixed(&self) -> Option<Stack> {
        self.mixed.or(self.native)
    }

    /// The most useful single list: both in one; else Python frames, if there are any; else native ones.
    #[must_use]
    pub fn best(&self) -> Option<Stack> {
        let python = self.python.filter(|stack| !stack.is_empty());
        self.mixed.or(python).or(self.native).or(self.python)
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.native.is_none() && self.python.is_none()
    }

    /// One of them, if there is any.
    #[cfg(feature = "cli")]
    pub(crate) fn any(&self) -> Option<Stack> {
        self.native.or(self.python).or(self.mixed)
    }

    /// Each in another way.
    pub(crate) fn map(self, mut change: impl FnMut(Stack) -> Stack) -> Self {
        let Self { native, python, mixed } = self;
        Self { native: native.map(&mut change), python: python.map(&mut change), mixed: mixed.map(change) }
    }
}

impl Stack {
    /// Stands for stacks that are not kept.
    pub(super) const FIRST: Self = Self(NonZeroU32::MIN);

    /// Keeps a stack for good, or finds the one kept before: [`Kept::stack`] of the process.
    #[must_use]
    pub fn keep<'a>(frames: impl IntoIterator<Item = &'a str>, end: StackEnd) -> Self {
        Kept::process().stack(frames, end)
    }

    /// Keeps another stack where this one is kept.
    #[must_use]
    pub fn keep_beside<'a>(self, frames: impl IntoIterator<Item = &'a str>, end: StackEnd) -> Self {
        Kept::of(self).map_or(self, |kept| kept.stack(frames, end))
    }

    /// Whether both are of one run.
    #[cfg(feature = "cli")]
    pub(crate) fn is_beside(self, other: Self) -> bool {
        run_number(self) == run_number(other)
    }

    /// Whether its run was made before another's; false where either is over.
    #[cfg(feature = "cli")]
    pub(crate) fn is_before(self, other: Self) -> bool {
        let runs = Kept::of(self).zip(Kept::of(other));
        runs.is_some_and(|(own, other)| own.is_before(&other))
    }

    /// The same stack, kept where another is.
    #[cfg(feature = "cli")]
    pub(crate) fn moved_beside(self, other: Self) -> Self {
        Kept::of(other).map_or(self, |kept| self.moved_to(&kept))
    }

    /// How full the table of its run is, from 0 to 1.
    #[cfg(feature = "cli")]
    pub(crate) fn fill_of_run(self) -> f64 {
        Kept::of(self).map_or(0.0, |kept| kept.fill())
    }

    /// The same stack, kept by another run. It has no frames if its own run is over.
    pub(crate) fn moved_to(self, kept: &Kept) -> Self {
        let frames = self.frames();
        kept.stack(frames.iter().map(|text| &**text), self.end())
    }

    /// Its frames' texts, innermost first. None of a run that is over: who shows stacks holds its [`Kept`].
    #[must_use]
    pub fn frames(self) -> Vec<Text> {
        Kept::of(self).map(|kept| kept.frames(self)).unwrap_or_default()
    }

    /// Its frames' texts, for tests to compare.
    #[cfg(test)]
    pub(crate) fn texts(self) -> Vec<&'static str> {
        self.frames().iter().map(|text| &*Box::leak(Box::from(&**text))).collect()
    }

    /// Whether it has no frames.
    #[must_use]
    pub fn is_empty(self) -> bool {
        Kept::of(self).is_none_or(|kept| kept.is_empty(self))
    }

    /// Its number in this process, not 0, while its run is kept.
    pub(crate) const fn number(self) -> u32 {
        self.0.get()
    }

    /// The stack of a number.
    pub(crate) fn of_number(number: u32) -> Option<Self> {
        NonZeroU32::new(number).map(Self)
    }

    /// Why it ends where it does.
    #[must_use]
    pub fn end(self) -> StackEnd {
        Kept::of(self).map_or(StackEnd::Root, |kept| kept.end(self))
    }
}

impl Ord for Stack {
    fn cmp(&self, other: &Self) -> Ordering {
        if self == other {
            return Ordering::Equal;
        }
        let texts = self.frames().cmp(&other.frames());
        // The table may be full: stacks of texts that were not kept differ by their numbers only.
        texts.then_with(|| self.end().cmp(&other.end())).then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for Stack {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl std::fmt::Debug for Stack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stack").field("frames", &self.frames()).field("end", &self.end()).finish()
    }
}

impl Serialize for Stack {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Stack", 2)?;
        fields.serialize_field("frames", &self.frames())?;
        fields.serialize_field("end", end_text(self.end()).unwrap_or("root"))?;
        fields.end()
    }
}

impl JsonSchema for Stack {
    fn schema_name() -> Cow<'static, str> {
        "Stack".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Frames, innermost first, and why the stack ends: `root` where it is whole.",
            "type": "object",
            "properties": {
                "frames": { "type": "array", "items": { "type": "string" } },
                "end": { "type": "string" },
            },
            "required": ["frames", "end"],
            "additionalProperties": false,
        })
    }
}

/// The reason in plain words; `None` for a whole stack.
#[must_use]
pub const fn end_text(end: StackEnd) -> Option<&'static str> {
    match end {
        StackEnd::Root => None,
        StackEnd::Depth => Some("as deep as was asked for"),
        StackEnd::Fault => Some("memory of the program could not be read"),
        StackEnd::NoRule => Some("no unwind rule at hand"),
        StackEnd::NoUnwindInfo => Some("code without unwind information"),
        StackEnd::NoProgress => Some("the stack leads nowhere"),
        StackEnd::Busy => Some("too many stacks at a time"),
        StackEnd::NotPython => Some("no Python in this thread"),
        StackEnd::BadState => Some("the interpreter's state is not understood"),
        StackEnd::NoInterpreter => Some("no interpreter that is understood"),
        StackEnd::OneOfSeveral => Some("the process has several interpreters"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_stacks_are_one() {
        let stack = Stack::keep(["f", "main"], StackEnd::Root);
        assert_eq!(stack, Stack::keep([String::from("f").as_str(), "main"], StackEnd::Root));
        assert_eq!((stack.texts(), stack.end()), (vec!["f", "main"], StackEnd::Root));
        assert_ne!(stack, Stack::keep(["f", "main"], StackEnd::Depth));
        assert_ne!(stack, Stack::keep(["main", "f"], StackEnd::Root));
        assert_eq!(size_of::<Stacks>(), 12);
    }

    /// Whichever came first, texts decide, frame by frame; then the reason of the end.
    #[test]
    fn stacks_are_in_the_order_of_their_texts() {
        let [c, ab, a, cut] = [
            (&["order c"][..], StackEnd::Root),
            (&["order a", "b"], StackEnd::Root),
            (&["order a"], StackEnd::Root),
            (&["order a"], StackEnd::Depth),
        ]
        .map(|(frames, end)| Stack::keep(frames.iter().copied(), end));
        let mut stacks = [c, cut, ab, a];
        stacks.sort_unstable();
        assert_eq!(stacks, [a, cut, ab, c]);
    }
}
