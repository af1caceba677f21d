//! Call stacks, which events carry by the million: each is kept once, and copied like a number.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::num::NonZeroU32;
use std::sync::{PoisonError, RwLock};

pub use memscope_common::StackEnd;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};

use crate::hash::HashMap;

/// Most frames of one stack: those of the kernel side, those inlined into them, and the function itself.
const MAX_FRAMES: usize = 4 * memscope_common::stack::MAX_FRAMES;
/// Bytes of a frame's text; longer ones are cut.
const MAX_TEXT_BYTES: usize = 1024;
/// Most bytes of a stack's texts; the outer end is cut. So rows with both stacks can be read back, however much has to
/// be escaped.
const MAX_STACK_BYTES: usize = 256 << 10;

/// Limits of the table. Nothing is freed: an event may refer to it at any time.
const LIMITS: Limits = Limits { stacks: 1 << 20, frames: 64 << 20, texts: 4 << 20, text_bytes: 512 << 20 };

/// Replaces stacks beyond the limit.
const OTHER_STACK: &str = "<not kept: too many different stacks>";
/// Replaces frames beyond the limit.
const OTHER_FRAME: &str = "<not kept: too many different frames>";

static TABLE: RwLock<Option<Table>> = RwLock::new(None);

/// A call stack. Equal stacks have the same number: texts and reason of the end agree. Ordered by their texts: the
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
        let python = self.python.filter(|stack| !stack.frames().is_empty());
        self.mixed.or(python).or(self.native).or(self.python)
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.native.is_none() && self.python.is_none()
    }
}

impl Stack {
    /// Keeps a stack for good, or finds the one kept before. Frames are texts of the traced program, innermost first;
    /// outputs escape them.
    ///
    /// Keeps at most a million stacks of four million different frames; all further ones become one placeholder.
    #[must_use]
    pub fn keep<'a>(frames: impl IntoIterator<Item = &'a str>, end: StackEnd) -> Self {
        let mut bytes = 0;
        let mut kept: Vec<&str> = Vec::new();
        let mut cut = false;
        for text in frames {
            let text = &text[..text.floor_char_boundary(MAX_TEXT_BYTES)];
            bytes += text.len() + 1;
            if kept.len() >= MAX_FRAMES || bytes > MAX_STACK_BYTES {
                cut = true;
                break;
            }
            kept.push(if text.is_empty() { "<unknown>" } else { text });
        }
        let end = if cut { StackEnd::Depth } else { end };
        if let Some(known) =
            TABLE.read().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(|t| t.find(&kept, end))
        {
            return known;
        }
        let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
        table.get_or_insert_with(|| Table::new(LIMITS)).keep(&kept, end)
    }

    /// Its frames' texts, innermost first.
    #[must_use]
    pub fn frames(self) -> Vec<&'static str> {
        let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
        table.as_ref().map(|table| table.frames(self)).unwrap_or_default()
    }

    /// Its number in this process, not 0.
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
        let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
        table.as_ref().map_or(StackEnd::Root, |table| table.get(self).1)
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

#[derive(Clone, Copy, Debug)]
struct Limits {
    stacks: usize,
    frames: usize,
    texts: usize,
    text_bytes: usize,
}

#[derive(Debug)]
struct Table {
    limits: Limits,
    texts: Vec<&'static str>,
    text_bytes: usize,
    by_text: HashMap<&'static str, u32>,
    stacks: Vec<(&'static [u32], StackEnd)>,
    frames: usize,
    by_frames: HashMap<(&'static [u32], StackEnd), Stack>,
}

impl Table {
    fn new(limits: Limits) -> Self {
        let mut table = Self {
            limits,
            texts: Vec::new(),
            text_bytes: 0,
            by_text: HashMap::default(),
            stacks: Vec::new(),
            frames: 0,
            by_frames: HashMap::default(),
        };
        // Text 0 and stack 1 stand for all others.
        table.add_text(OTHER_FRAME);
        let other = table.add_text(OTHER_STACK);
        table.add_stack(vec![other], StackEnd::Root);
        table
    }

    fn find(&self, frames: &[&str], end: StackEnd) -> Option<Stack> {
        let numbers: Option<Vec<u32>> = frames.iter().map(|text| self.by_text.get(*text).copied()).collect();
        self.find_numbers(&numbers?, end)
    }

    fn find_numbers(&self, frames: &[u32], end: StackEnd) -> Option<Stack> {
        // As keys with the lifetime of `frames`.
        let by_frames: &HashMap<(&[u32], StackEnd), Stack> = &self.by_frames;
        by_frames.get(&(frames, end)).copied()
    }

    fn keep(&mut self, frames: &[&str], end: StackEnd) -> Stack {
        if let Some(known) = self.find(frames, end) {
            return known;
        }
        if self.stacks.len() >= self.limits.stacks || self.frames + frames.len() > self.limits.frames {
            return Stack(NonZeroU32::MIN);
        }
        let numbers: Vec<u32> = frames.iter().map(|text| self.text(text)).collect();
        self.find_numbers(&numbers, end).unwrap_or_else(|| self.add_stack(numbers, end))
    }

    fn add_stack(&mut self, frames: Vec<u32>, end: StackEnd) -> Stack {
        self.frames += frames.len();
        let frames: &'static [u32] = Box::leak(frames.into_boxed_slice());
        self.stacks.push((frames, end));
        let stack = Stack(NonZeroU32::MIN.saturating_add(self.stacks.len() as u32 - 1));
        self.by_frames.insert((frames, end), stack);
        stack
    }

    /// Number of a text.
    fn text(&mut self, text: &str) -> u32 {
        if let Some(known) = self.by_text.get(text) {
            return *known;
        }
        if self.texts.len() >= self.limits.texts || self.text_bytes + text.len() > self.limits.text_bytes {
            return 0;
        }
        self.add_text(text)
    }

    fn add_text(&mut self, text: &str) -> u32 {
        self.text_bytes += text.len();
        let text: &'static str = Box::leak(text.into());
        let number = self.texts.len() as u32;
        self.texts.push(text);
        self.by_text.insert(text, number);
        number
    }

    fn get(&self, stack: Stack) -> (&'static [u32], StackEnd) {
        let index = stack.0.get() as usize - 1;
        self.stacks.get(index).copied().unwrap_or((&[], StackEnd::Root))
    }

    fn frames(&self, stack: Stack) -> Vec<&'static str> {
        let text = |number: &u32| self.texts.get(*number as usize).copied().unwrap_or(OTHER_FRAME);
        self.get(stack).0.iter().map(text).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_stacks_are_one() {
        let stack = Stack::keep(["f", "main"], StackEnd::Root);
        assert_eq!(stack, Stack::keep([String::from("f").as_str(), "main"], StackEnd::Root));
        assert_eq!((stack.frames(), stack.end()), (vec!["f", "main"], StackEnd::Root));
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

    /// Endless texts and endless stacks are cut, and marked as cut.
    #[test]
    fn what_is_too_long_is_cut() {
        let long = "ä".repeat(MAX_TEXT_BYTES);
        let stack = Stack::keep([long.as_str(), ""], StackEnd::Root);
        assert_eq!((stack.frames(), stack.end()), (vec![&long[..MAX_TEXT_BYTES], "<unknown>"], StackEnd::Root));
        let deep = Stack::keep(std::iter::repeat_n("f", MAX_FRAMES + 1), StackEnd::Root);
        assert_eq!((deep.frames().len(), deep.end()), (MAX_FRAMES, StackEnd::Depth));
        let large = Stack::keep(std::iter::repeat_n(long.as_str(), 1000), StackEnd::Root);
        // 1025 bytes of each frame, with its end of line: 255 of them fit.
        assert_eq!((large.frames().len(), large.end()), (255, StackEnd::Depth));
    }

    /// A full table gives a placeholder instead of growing, and still finds earlier stacks.
    #[test]
    fn full_tables_name_the_rest() {
        let mut table = Table::new(Limits { stacks: 3, frames: 100, texts: 4, text_bytes: 1000 });
        let known = table.keep(&["a", "b"], StackEnd::Root);
        let other = table.keep(&["a", "c"], StackEnd::Root);
        assert_eq!(table.frames(other), ["a", OTHER_FRAME]);
        let beyond = table.keep(&["b", "a"], StackEnd::Root);
        assert_eq!(table.frames(beyond), [OTHER_STACK]);
        assert_eq!(table.keep(&["a", "b"], StackEnd::Root), known);
        assert_eq!((table.texts.len(), table.stacks.len()), (4, 3));

        let mut table = Table::new(Limits { stacks: 100, frames: 3, texts: 100, text_bytes: 1000 });
        let (within, beyond) = (table.keep(&["a", "b"], StackEnd::Root), table.keep(&["a"], StackEnd::Root));
        assert_eq!((table.frames(within), table.frames(beyond)), (vec!["a", "b"], vec![OTHER_STACK]));
    }
}
