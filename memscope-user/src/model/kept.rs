//! What a run's events refer to by number: the texts of its call stacks, each kept once, and freed with the run.

use std::{
    borrow::Borrow,
    collections::VecDeque,
    fmt,
    num::NonZeroU32,
    ops::Deref,
    sync::{
        Arc, LazyLock, PoisonError, RwLock, RwLockReadGuard, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use memscope_common::StackEnd;
use serde::Serialize;

use super::stack::Stack;
use crate::hash::HashMap;

/// Most frames of one stack: those of the kernel side, those inlined into them, and the function itself.
const MAX_FRAMES: usize = 4 * memscope_common::stack::MAX_FRAMES;
/// Bytes of a frame's text; longer ones are cut.
const MAX_TEXT_BYTES: usize = 1024;
/// Most bytes of a stack's texts; the outer end is cut. So rows with both stacks can be read back, however much has to
/// be escaped.
const MAX_STACK_BYTES: usize = 256 << 10;

/// Bits of a stack's number that count the stacks of its run; those above are the run's own number.
const STACK_BITS: u32 = 20;
/// Runs at once that are kept apart; further ones use the process's table.
const MAX_RUNS: usize = (1 << (u32::BITS - STACK_BITS)) - 1;
/// Limits of one run.
const LIMITS: Limits =
    Limits { stacks: (1 << STACK_BITS) - 1, frames: 64 << 20, texts: 4 << 20, text_bytes: 512 << 20 };

/// Replaces stacks beyond the limit.
const OTHER_STACK: &str = "<not kept: too many different stacks>";
/// Replaces frames beyond the limit.
const OTHER_FRAME: &str = "<not kept: too many different frames>";

/// The runs that are kept, by their numbers from 1.
static RUNS: RwLock<Runs> = RwLock::new(Runs { kept: Vec::new(), free: VecDeque::new() });
/// What belongs to no run, under number 0.
static PROCESS: LazyLock<Kept> = LazyLock::new(|| Kept(Arc::new(Run { number: 0, made: 0, table: RwLock::default() })));
/// Runs made.
static MADE: AtomicU64 = AtomicU64::new(0);

/// Owns the texts of one run's call stacks: of a trace, or of files that are read together. The last clone that goes frees
/// them; a [`Stack`] that is left over has no frames from then on.
#[derive(Clone)]
pub struct Kept(Arc<Run>);

struct Run {
    number: u32,
    /// Which run it is of all that were made: numbers are used again.
    made: u64,
    table: RwLock<Table>,
}

struct Runs {
    kept: Vec<Weak<Run>>,
    /// Numbers to use again, longest unused first.
    free: VecDeque<u32>,
}

/// Text of a frame.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text(Arc<str>);

impl Kept {
    /// For a new run.
    #[must_use]
    pub fn of_run() -> Self {
        Self::with(LIMITS)
    }

    fn with(limits: Limits) -> Self {
        let mut runs = RUNS.write().unwrap_or_else(PoisonError::into_inner);
        let number = if runs.kept.len() < MAX_RUNS {
            runs.kept.push(Weak::new());
            runs.kept.len() as u32
        } else {
            match runs.free.pop_front() {
                Some(number) => number,
                None => return PROCESS.clone(),
            }
        };
        let made = MADE.fetch_add(1, Ordering::Relaxed) + 1;
        let run = Arc::new(Run { number, made, table: RwLock::new(Table::new(limits)) });
        runs.kept[number as usize - 1] = Arc::downgrade(&run);
        Self(run)
    }

    /// A further one with the same limits, for a run that lives long: what is in use moves to it, and the rest goes with this one. `None`:
    /// too many runs are kept.
    pub(crate) fn next(&self) -> Option<Self> {
        let limits = self.table().limits;
        Some(Self::with(limits)).filter(|next| next.0.number > 0)
    }

    /// How full it is, from 0 to 1.
    pub(crate) fn fill(&self) -> f64 {
        self.table().fill()
    }

    /// Whether it was made before another.
    #[cfg(feature = "cli")]
    pub(super) fn is_before(&self, other: &Self) -> bool {
        self.0.made < other.0.made
    }

    /// One that holds few stacks, for tests.
    #[cfg(test)]
    pub(crate) fn of_few(stacks: usize) -> Self {
        Self::with(Limits { stacks, ..LIMITS })
    }

    /// That of the process, which is never freed: for commands, which end with their process, and for made-up events.
    #[must_use]
    pub fn process() -> Self {
        PROCESS.clone()
    }

    /// The one that a stack is in, while its run is kept.
    pub(super) fn of(stack: Stack) -> Option<Self> {
        match run_number(stack) {
            0 => Some(Self::process()),
            number => {
                let runs = RUNS.read().unwrap_or_else(PoisonError::into_inner);
                runs.kept.get(number as usize - 1)?.upgrade().map(Self)
            }
        }
    }

    /// Keeps a stack, or finds the one kept before. Frames are texts of the traced program, innermost first; outputs
    /// escape them.
    ///
    /// Keeps at most a million stacks of four million different frames; all further ones become one placeholder.
    #[must_use]
    pub fn stack<'a>(&self, frames: impl IntoIterator<Item = &'a str>, end: StackEnd) -> Stack {
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
        let known = self.table().find(&kept, end);
        let number = known.unwrap_or_else(|| {
            let mut table = self.0.table.write().unwrap_or_else(PoisonError::into_inner);
            table.keep(&kept, end)
        });
        Stack::of_number(self.0.number << STACK_BITS | number.get()).unwrap_or(Stack::FIRST)
    }

    pub(super) fn frames(&self, stack: Stack) -> Vec<Text> {
        self.table().frames(number_in_run(stack))
    }

    pub(super) fn is_empty(&self, stack: Stack) -> bool {
        self.table().get(number_in_run(stack)).0.is_empty()
    }

    pub(super) fn end(&self, stack: Stack) -> StackEnd {
        self.table().get(number_in_run(stack)).1
    }

    fn table(&self) -> RwLockReadGuard<'_, Table> {
        self.0.table.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Kept {
    /// That of the process.
    fn default() -> Self {
        Self::process()
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("run", &self.0.number).field("made", &self.0.made).finish_non_exhaustive()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.number > 0 {
            RUNS.write().unwrap_or_else(PoisonError::into_inner).free.push_back(self.number);
        }
    }
}

/// Number of a stack's run, while that is kept.
pub(super) const fn run_number(stack: Stack) -> u32 {
    stack.number() >> STACK_BITS
}

fn number_in_run(stack: Stack) -> u32 {
    stack.number() & ((1 << STACK_BITS) - 1)
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Text {
    fn as_ref(&self) -> &str {
        self
    }
}

impl Borrow<str> for Text {
    fn borrow(&self) -> &str {
        self
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        **self == *other
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        **self == **other
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl Serialize for Text {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }
}

#[derive(Clone, Copy, Debug)]
struct Limits {
    stacks: usize,
    frames: usize,
    texts: usize,
    text_bytes: usize,
}

struct Table {
    limits: Limits,
    texts: Vec<Text>,
    text_bytes: usize,
    by_text: HashMap<Text, u32>,
    stacks: Vec<(Arc<[u32]>, StackEnd)>,
    frames: usize,
    /// By the end, as a key of frames alone can be looked up without making one.
    by_frames: HashMap<StackEnd, HashMap<Arc<[u32]>, NonZeroU32>>,
}

impl Default for Table {
    fn default() -> Self {
        Self::new(LIMITS)
    }
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
        table.add_stack(&[other], StackEnd::Root);
        table
    }

    fn fill(&self) -> f64 {
        let Limits { stacks, frames, texts, text_bytes } = self.limits;
        let parts = [
            (self.stacks.len(), stacks),
            (self.frames, frames),
            (self.texts.len(), texts),
            (self.text_bytes, text_bytes),
        ];
        parts.into_iter().map(|(part, limit)| part as f64 / limit as f64).fold(0.0, f64::max)
    }

    fn find(&self, frames: &[&str], end: StackEnd) -> Option<NonZeroU32> {
        let numbers: Option<Vec<u32>> = frames.iter().map(|text| self.by_text.get(*text).copied()).collect();
        self.find_numbers(&numbers?, end)
    }

    fn find_numbers(&self, frames: &[u32], end: StackEnd) -> Option<NonZeroU32> {
        self.by_frames.get(&end)?.get(frames).copied()
    }

    fn keep(&mut self, frames: &[&str], end: StackEnd) -> NonZeroU32 {
        if let Some(known) = self.find(frames, end) {
            return known;
        }
        if self.stacks.len() >= self.limits.stacks || self.frames + frames.len() > self.limits.frames {
            return NonZeroU32::MIN;
        }
        let numbers: Vec<u32> = frames.iter().map(|text| self.text(text)).collect();
        self.find_numbers(&numbers, end).unwrap_or_else(|| self.add_stack(&numbers, end))
    }

    fn add_stack(&mut self, frames: &[u32], end: StackEnd) -> NonZeroU32 {
        self.frames += frames.len();
        let frames: Arc<[u32]> = frames.into();
        self.stacks.push((Arc::clone(&frames), end));
        let stack = NonZeroU32::MIN.saturating_add(self.stacks.len() as u32 - 1);
        self.by_frames.entry(end).or_default().insert(frames, stack);
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
        let text = Text::from(text);
        let number = self.texts.len() as u32;
        self.texts.push(text.clone());
        self.by_text.insert(text, number);
        number
    }

    fn get(&self, stack: u32) -> (&[u32], StackEnd) {
        let stack = (stack as usize).checked_sub(1).and_then(|index| self.stacks.get(index));
        stack.map_or((&[], StackEnd::Root), |(frames, end)| (frames, *end))
    }

    fn frames(&self, stack: u32) -> Vec<Text> {
        let text = |number: &u32| self.texts.get(*number as usize).unwrap_or(&self.texts[0]).clone();
        self.get(stack).0.iter().map(text).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs keep their stacks apart, and free them with their last owner; what refers to them has no frames then.
    #[test]
    fn a_run_frees_its_stacks() {
        let (one, other) = (Kept::of_run(), Kept::of_run());
        let [first, second] = [&one, &other].map(|kept| kept.stack(["of a run"], StackEnd::Depth));
        assert_ne!(first, second);
        assert_eq!((first.texts(), second.texts()), (vec!["of a run"], vec!["of a run"]));
        assert_eq!(first.keep_beside(["of a run"], StackEnd::Depth), first);
        let table = Arc::downgrade(&one.0);
        let owner = one.clone();
        drop(one);
        assert_eq!((first.texts(), first.end()), (vec!["of a run"], StackEnd::Depth));
        drop(owner);
        assert!(table.upgrade().is_none());
        assert!(first.is_empty() && first.texts().is_empty());
        assert_eq!(second.texts(), ["of a run"]);
    }

    /// Numbers of runs are used again, those longest unused first, and never while a run has them.
    #[test]
    fn numbers_of_runs_are_used_again() {
        let lasting = Kept::of_run();
        let stack = lasting.stack(["lasting"], StackEnd::Root);
        for _ in 0..2 * MAX_RUNS {
            let kept = Kept::of_run();
            assert_ne!(kept.0.number, lasting.0.number);
            assert_eq!(kept.stack(["short"], StackEnd::Root).texts(), ["short"]);
        }
        assert_eq!(stack.texts(), ["lasting"]);
    }

    /// Endless texts and endless stacks are cut, and marked as cut.
    #[test]
    fn what_is_too_long_is_cut() {
        let long = "ä".repeat(MAX_TEXT_BYTES);
        let stack = Stack::keep([long.as_str(), ""], StackEnd::Root);
        assert_eq!((stack.texts(), stack.end()), (vec![&long[..MAX_TEXT_BYTES], "<unknown>"], StackEnd::Root));
        let deep = Stack::keep(std::iter::repeat_n("f", MAX_FRAMES + 1), StackEnd::Root);
        assert_eq!((deep.texts().len(), deep.end()), (MAX_FRAMES, StackEnd::Depth));
        let large = Stack::keep(std::iter::repeat_n(long.as_str(), 1000), StackEnd::Root);
        // 1025 bytes of each frame, with its end of line: 255 of them fit.
        assert_eq!((large.texts().len(), large.end()), (255, StackEnd::Depth));
    }

    fn texts(table: &Table, stack: NonZeroU32) -> Vec<&str> {
        table.get(stack.get()).0.iter().map(|text| &*table.texts[*text as usize]).collect()
    }

    /// A further run has the stacks that move to it, and outlives the first. Which is older shows by the stacks, whatever their numbers are.
    #[test]
    fn stacks_move_to_a_further_run() {
        let first = Kept::of_few(5);
        let [one, other] = ["a", "b"].map(|text| first.stack([text, "main"], StackEnd::Depth));
        // Beside the one that stands for all others.
        let is_filled = |kept: &Kept, stacks: f64| (kept.fill() - stacks / 5.0).abs() < 1e-9;
        assert!(is_filled(&first, 3.0));
        let next = first.next().expect("a further run");
        let moved = one.moved_to(&next);
        assert_eq!((moved.texts(), moved.end()), (vec!["a", "main"], StackEnd::Depth));
        assert!(is_filled(&next, 2.0));
        assert!(one.is_beside(other) && !one.is_beside(moved));
        assert!(one.is_before(moved) && !moved.is_before(one) && !one.is_before(other));
        assert_eq!(moved.moved_to(&next), moved);
        drop(first);
        assert_eq!((one.texts().len(), moved.texts()), (0, vec!["a", "main"]));
        assert!(!one.is_before(moved));
    }

    /// A full table gives a placeholder instead of growing, and still finds earlier stacks.
    #[test]
    fn full_tables_name_the_rest() {
        let mut table = Table::new(Limits { stacks: 3, frames: 100, texts: 4, text_bytes: 1000 });
        let known = table.keep(&["a", "b"], StackEnd::Root);
        let other = table.keep(&["a", "c"], StackEnd::Root);
        assert_eq!(texts(&table, other), ["a", OTHER_FRAME]);
        let beyond = table.keep(&["b", "a"], StackEnd::Root);
        assert_eq!(texts(&table, beyond), [OTHER_STACK]);
        assert_eq!(table.keep(&["a", "b"], StackEnd::Root), known);
        assert_eq!((table.texts.len(), table.stacks.len()), (4, 3));

        let mut table = Table::new(Limits { stacks: 100, frames: 3, texts: 100, text_bytes: 1000 });
        let (within, beyond) = (table.keep(&["a", "b"], StackEnd::Root), table.keep(&["a"], StackEnd::Root));
        assert_eq!((texts(&table, within), texts(&table, beyond)), (vec!["a", "b"], vec![OTHER_STACK]));
    }
}
