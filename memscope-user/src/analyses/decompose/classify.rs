//! Blocks to names: the rules, applied once per stack, module and pool, and remembered.
//!
//! Stacks are few and blocks are many, so the meaning of a stack is cached under its number. Frames are fewer still:
//! the patterns that match a frame are cached under the address of its text, which is never freed.

use std::sync::Arc;

use super::Source;
use super::held;
use super::pattern::{Pattern, glob, is_qualified, native_frame, native_module, python_frame};
use super::rules::{Life, Patterns, Phase, Rule, RuleSet};
use crate::hash::HashMap;
use crate::model::{Block, HeldAs, Module, Name, Pool, PoolLevel, Stack, StackEnd, Stacks, Text, module_name};

/// Most names; further ones become [`OTHER`].
const MAX_LABELS: usize = 1024;
/// Most different blocks and frames in a cache; when full, it is emptied.
const MAX_REMEMBERED: usize = 1 << 18;

/// A text, which stays where it is as long as this is kept, and the patterns that it has.
type OfText = (Text, Box<[u16]>);

/// The component of what no rule names.
pub(super) const UNKNOWN: Name = Name::fixed(&"unknown");
/// A driver block in which a pool hands out memory; rules name it by its stack, too.
const SEGMENT: Name = Name::fixed(&"pool_segment");
/// Number of the label of all that find no room.
const OTHER: u16 = 0;

/// Number of a [`Label`].
pub(super) type LabelId = u16;

/// The label of a block, and its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Label {
    /// As msMemScope spells it (contract §8.5); none for host memory without a rule.
    pub(super) owner: Option<Name>,
    pub(super) component: Name,
    pub(super) rule: Name,
    pub(super) source: Source,
    /// The owner came with the input, from a source that knew more than the rules.
    pub(super) given: bool,
}

/// The facts that a label depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    stacks: Stacks,
    pool: Pool,
    module_id: Option<Module>,
    given: Option<Name>,
    found: bool,
    held_as: Option<HeldAs>,
}

/// Names blocks by rules.
#[derive(Debug)]
pub struct Classifier {
    rules: Arc<RuleSet>,
    labels: Vec<Label>,
    numbers: HashMap<Label, LabelId>,
    blocks: HashMap<Key, LabelId>,
    phases: HashMap<Stacks, Option<Phase>>,
    frames: HashMap<(usize, FrameKind), OfText>,
    seen: Seen,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum FrameKind {
    Native,
    /// Names have their class or function in front.
    Qualified,
    /// They have not: before Python 3.11.
    Bare,
}

/// How deep the frames of each pattern are in one block's stacks: the innermost and the outermost.
#[derive(Debug, Default)]
struct Seen {
    python: Vec<Option<(u32, u32)>>,
    native: Vec<Option<(u32, u32)>>,
    /// Patterns of callers of ACL, the runtime or the driver.
    caller: Vec<u16>,
}

/// Libraries between a program and the driver: not the ones that want the memory.
const LAYERS: [&str; 4] = ["libascend_hal.so*", "libruntime*.so*", "libascendcl.so*", "libacl_rt*.so*"];

impl Classifier {
    /// Names blocks by these rules.
    #[must_use]
    pub fn new(rules: Arc<RuleSet>) -> Self {
        let (python, native) = (vec![None; rules.python.len()], vec![None; rules.native.len()]);
        let seen = Seen { python, native, caller: Vec::new() };
        let rule = Name::fixed(&"too-many-names");
        let other = Label { owner: None, component: UNKNOWN, rule, source: Source::Nothing, given: false };
        Self {
            rules,
            labels: vec![other],
            numbers: HashMap::from_iter([(other, OTHER)]),
            blocks: HashMap::default(),
            phases: HashMap::default(),
            frames: HashMap::default(),
            seen,
        }
    }

    /// The owner in a block's row: as known at its allocation.
    pub fn owner(&mut self, block: &Block) -> Option<Name> {
        let label = self.label(block);
        self.get(label).owner
    }

    pub(super) fn get(&self, label: LabelId) -> Label {
        self.labels.get(usize::from(label)).copied().unwrap_or(self.labels[usize::from(OTHER)])
    }

    /// The label of a block at its allocation.
    pub(super) fn label(&mut self, block: &Block) -> LabelId {
        let Block { stacks, pool, module_id, owner: given, found, held_as, .. } = *block;
        let key = Key { stacks, pool, module_id, given, found, held_as };
        if let Some(known) = self.blocks.get(&key) {
            return *known;
        }
        let label = self.name(&key);
        let label = self.number(label);
        remember(&mut self.blocks, key, label);
        label
    }

    /// The label of a block that has ended; unchanged unless a rule revises it. And whether the reason is that it is
    /// trained.
    pub(super) fn revised(
        &mut self,
        label: LabelId,
        pool: Pool,
        module_id: Option<Module>,
        life: &Life,
    ) -> (LabelId, bool) {
        let was = self.get(label);
        if was.source == Source::Label {
            // Its source knew more.
            return (label, false);
        }
        let rules = Arc::clone(&self.rules);
        let Some(rule) = rules.lifetimes.iter().find(|rule| rule.is_of(was.component, pool, life)) else {
            return (label, false);
        };
        let owner = if was.given { was.owner } else { owner(pool, module_id, &rule.owner) };
        let (component, name, trained) = (rule.component, rule.name, rule.trained == Some(true));
        (self.number(Label { owner, component, rule: name, source: Source::Lifetime, ..was }), trained)
    }

    /// The label of a block with this purpose by its holders; unchanged where the rules' word counts more.
    /// `trains`: an optimizer has stepped.
    pub(super) fn held(
        &mut self,
        label: LabelId,
        pool: Pool,
        module_id: Option<Module>,
        (held, trains): (HeldAs, bool),
    ) -> LabelId {
        let was = self.get(label);
        // A label comes from a source that knew more.
        if was.source == Source::Label || !held::counts_more(held, was.component, trains) {
            return label;
        }
        let component = held.component();
        let owner = if was.given { was.owner } else { owner(pool, module_id, component.as_str()) };
        self.number(Label { owner, component, rule: held::rule(held), source: Source::Holder, ..was })
    }

    /// The label of a found block with this purpose by its holders; unchanged where it has one.
    pub(super) fn found_held(
        &mut self,
        label: LabelId,
        pool: Pool,
        module_id: Option<Module>,
        held: HeldAs,
    ) -> LabelId {
        if self.get(label).source != Source::Nothing {
            return label;
        }
        self.held(label, pool, module_id, (held, false))
    }

    /// The label of a driver block that a pool has a block in; unchanged where a rule names it.
    pub(super) fn segment(&mut self, label: LabelId) -> LabelId {
        let was = self.get(label);
        if was.component != UNKNOWN {
            return label;
        }
        self.number(Label { component: SEGMENT, rule: Name::fixed(&"pool-in-it"), source: Source::Pool, ..was })
    }

    /// The phase of the program that a stack shows.
    pub(in crate::analyses) fn phase(&mut self, stacks: Stacks) -> Option<Phase> {
        if stacks.is_empty() {
            return None;
        }
        if let Some(known) = self.phases.get(&stacks) {
            return *known;
        }
        self.look(stacks);
        let seen = &self.seen;
        let fits = |python: &Patterns, without: &Patterns, native: &Patterns| {
            (python.is_empty() || seen.python(python).is_some())
                && seen.python(without).is_none()
                && (native.is_empty() || seen.native(native))
        };
        let rule = self.rules.phases.iter().find(|rule| fits(&rule.python, &rule.without, &rule.native));
        let phase = rule.map(|rule| rule.phase);
        remember(&mut self.phases, stacks, phase);
        phase
    }

    fn number(&mut self, label: Label) -> LabelId {
        if let Some(known) = self.numbers.get(&label) {
            return *known;
        }
        if self.labels.len() >= MAX_LABELS {
            return OTHER;
        }
        let number = self.labels.len() as LabelId;
        self.labels.push(label);
        self.numbers.insert(label, number);
        number
    }

    fn name(&mut self, key: &Key) -> Label {
        self.look(key.stacks);
        let rules = Arc::clone(&self.rules);
        let found = rules.rules.iter().find(|rule| self.fits(rule, key));
        let (component, rule, labels, source) = match found {
            Some(rule) => (rule.component, rule.name, &*rule.owner, source_of(rule)),
            None if let Some(held) = key.held_as => {
                (held.component(), held::rule(held), held.component().as_str(), Source::Holder)
            }
            None if key.found => (UNKNOWN, Name::fixed(&"before-the-attach"), "", Source::Nothing),
            None => (UNKNOWN, why_unknown(key.stacks), "", Source::Nothing),
        };
        // A source that gave an owner other labels than its pool's knew more.
        let ours = owner(key.pool, key.module_id, labels);
        let plain = owner(key.pool, key.module_id, "");
        let given = key.given.filter(|given| ![ours, plain].contains(&Some(*given)));
        Label { owner: given.or(ours), component, rule, source, given: given.is_some() }
    }

    fn fits(&self, rule: &Rule, key: &Key) -> bool {
        if !rule.is_of(key.pool) {
            return false;
        }
        if !rule.modules.is_empty() {
            let module = key.module_id.map(|module| module_name(Some(module)));
            if !rule.modules.iter().any(|name| Some(&**name) == module) {
                return false;
            }
        }
        if !rule.labels.is_empty() {
            let given = key.given.map_or("", Name::as_str);
            if !given.split('@').skip(1).any(|label| rule.labels.iter().any(|name| **name == *label)) {
                return false;
            }
        }
        if !rule.python.is_empty() {
            let Some(innermost) = self.seen.python(&rule.python) else { return false };
            let within =
                |pattern: &u16| self.seen.python[usize::from(*pattern)].is_some_and(|(_, out)| out > innermost);
            if !rule.within.is_empty() && !rule.within.iter().any(within) {
                return false;
            }
        }
        self.seen.python(&rule.without).is_none()
            && (rule.native.is_empty() || self.seen.native(&rule.native))
            && (rule.caller.is_empty() || self.seen.caller(&rule.caller))
    }

    /// Finds the patterns of all frames of these stacks.
    fn look(&mut self, stacks: Stacks) {
        self.seen.python.fill(None);
        self.seen.native.fill(None);
        self.seen.caller.clear();
        if let Some(stack) = stacks.python {
            let frames = stack.frames();
            let qualified = frames.iter().filter_map(|text| python_frame(text)).any(is_qualified);
            let kind = if qualified { FrameKind::Qualified } else { FrameKind::Bare };
            self.look_at(&frames, kind);
        }
        if let Some(stack) = stacks.native {
            let frames = stack.frames();
            self.look_at(&frames, FrameKind::Native);
            if let Some(caller) = frames.iter().find(|text| !is_layer(text)) {
                let patterns = self.frames.get(&(caller.as_ptr() as usize, FrameKind::Native));
                self.seen.caller.extend(patterns.map(|(_, found)| &**found).unwrap_or_default());
            }
        }
    }

    fn look_at(&mut self, frames: &[Text], kind: FrameKind) {
        for (text, depth) in frames.iter().zip(0..) {
            // A run keeps each text once, and the map keeps it where it is.
            let key = (text.as_ptr() as usize, kind);
            if !self.frames.contains_key(&key) {
                let found = patterns_of(&self.rules, text, kind);
                remember(&mut self.frames, key, (text.clone(), found));
            }
            let seen = if kind == FrameKind::Native { &mut self.seen.native } else { &mut self.seen.python };
            for pattern in self.frames.get(&key).map(|(_, found)| &**found).unwrap_or_default() {
                let place = &mut seen[usize::from(*pattern)];
                *place = Some(place.map_or((depth, depth), |(innermost, _)| (innermost, depth)));
            }
        }
    }
}

impl Seen {
    /// How deep the innermost frame of any of these is.
    fn python(&self, patterns: &Patterns) -> Option<u32> {
        patterns.iter().filter_map(|pattern| self.python[usize::from(*pattern)]).map(|(innermost, _)| innermost).min()
    }

    fn native(&self, patterns: &Patterns) -> bool {
        patterns.iter().any(|pattern| self.native[usize::from(*pattern)].is_some())
    }

    fn caller(&self, patterns: &Patterns) -> bool {
        patterns.iter().any(|pattern| self.caller.contains(pattern))
    }
}

/// Whether a frame is of a library through which memory is asked for. The probed function itself may be a name alone.
fn is_layer(text: &str) -> bool {
    let module = native_module(text);
    let is_name = module.is_empty() && !text.starts_with('[');
    is_name || LAYERS.iter().any(|layer| glob(layer, module))
}

fn remember<K: Eq + std::hash::Hash, V>(known: &mut HashMap<K, V>, key: K, value: V) {
    if known.len() >= MAX_REMEMBERED {
        known.clear();
    }
    known.insert(key, value);
}

fn patterns_of(rules: &RuleSet, text: &str, kind: FrameKind) -> Box<[u16]> {
    let (patterns, frame) = match kind {
        FrameKind::Native => (&rules.native, Some(native_frame(text))),
        FrameKind::Qualified | FrameKind::Bare => (&rules.python, python_frame(text)),
    };
    let Some(frame) = frame else { return Box::default() };
    let is_of = |pattern: &Pattern| pattern.matches(frame, kind != FrameKind::Bare);
    (0..).zip(patterns).filter(|(_, pattern)| is_of(pattern)).map(|(number, _)| number).collect()
}

fn source_of(rule: &Rule) -> Source {
    if [&rule.python, &rule.native, &rule.caller].iter().any(|patterns| !patterns.is_empty()) {
        Source::Stack
    } else if !rule.labels.is_empty() {
        Source::Label
    } else if !rule.modules.is_empty() {
        Source::Module
    } else {
        Source::Pool
    }
}

/// Placeholder rule where there is none.
fn why_unknown(stacks: Stacks) -> Name {
    let is_cut = |stack: Stack| {
        !matches!(stack.end(), StackEnd::Root | StackEnd::NotPython | StackEnd::NoInterpreter | StackEnd::OneOfSeveral)
    };
    match [stacks.python, stacks.native] {
        [None, None] => Name::fixed(&"no-stack"),
        both if both.into_iter().flatten().any(is_cut) => Name::fixed(&"no-rule-stack-cut"),
        _ => Name::fixed(&"no-rule"),
    }
}

/// What msMemScope calls the owner (contract §8.5): framework, then the labels.
pub(crate) fn owner(pool: Pool, module_id: Option<Module>, labels: &str) -> Option<Name> {
    let framework = match pool.level() {
        PoolLevel::Driver => format!("{}@{}", pool.owner(), module_name(module_id)),
        _ => pool.owner().to_owned(),
    };
    match (framework.as_str(), labels) {
        ("", "") => None,
        ("", only) | (only, "") => Some(Name::keep(only)),
        (framework, labels) => Some(Name::keep(&format!("{framework}@{labels}"))),
    }
}
