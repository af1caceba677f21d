//! The table of rules: which stacks, modules, pools and lifetimes mean which component.
//!
//! The built-in one is `rules.json`; users put theirs before it by a file of the same form. Three lists:
//!
//! - `rules` name a block when it is allocated. The first that fits wins.
//! - `phases` map stacks to the program's phase; lifetimes are counted in phases.
//! - `lifetimes` rename blocks by their end, or by the lack of one. The first match wins.

mod written;

use std::io::Read as _;
use std::path::Path;

use serde::Deserialize;

use self::written::Table;
use super::pattern::{Pattern, glob};
use crate::model::{Name, Pool};
use crate::regular;

/// The built-in table.
pub const BUILTIN: &str = include_str!("rules.json");

/// A file of rules is read up to here.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Rules and lifetimes of all files together.
const MAX_RULES: usize = 1024;
/// Patterns of all files together.
const MAX_PATTERNS: usize = 8192;

/// The phase of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::analyses) enum Phase {
    Forward,
    Backward,
    Optimizer,
    ZeroGrad,
}

/// Numbers of patterns: Python and native frames are numbered separately.
pub(super) type Patterns = Vec<u16>;

/// A rule for blocks at their allocation. All its conditions have to hold.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) name: Name,
    pub(super) component: Name,
    /// Labels behind the framework's, joined with `@`; may be empty.
    pub(super) owner: Box<str>,
    /// One of these frames is there.
    pub(super) python: Patterns,
    /// One of these frames is further out than the innermost of `python`.
    pub(super) within: Patterns,
    /// None of these frames may be in the stack.
    pub(super) without: Patterns,
    /// One of these frames is there.
    pub(super) native: Patterns,
    /// One of these is the innermost frame outside of the driver's, the runtime's and ACL's libraries.
    pub(super) caller: Patterns,
    pools: Vec<Box<str>>,
    pub(super) modules: Vec<Box<str>>,
    pub(super) labels: Vec<Box<str>>,
}

/// Maps a stack to a phase of the program.
#[derive(Clone, Debug)]
pub(super) struct PhaseRule {
    pub(super) phase: Phase,
    pub(super) python: Patterns,
    pub(super) without: Patterns,
    pub(super) native: Patterns,
}

/// Numbers of starts and ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Counts {
    /// Forward passes that began.
    pub(super) forward: u32,
    /// Backward passes that began.
    pub(super) backward: u32,
    /// Optimizer's steps that began.
    pub(super) optimizer: u32,
    /// Optimizer's steps that ended.
    pub(super) optimizer_end: u32,
    /// Steps that ended: marked ones, or else the optimizer's.
    pub(super) step: u32,
}

/// Upper limits of [`Counts`]; a missing one does not apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Limits {
    forward: Option<u32>,
    backward: Option<u32>,
    optimizer: Option<u32>,
    optimizer_end: Option<u32>,
    step: Option<u32>,
}

impl Counts {
    fn each(self) -> [u32; 5] {
        [self.forward, self.backward, self.optimizer, self.optimizer_end, self.step]
    }

    fn reach(self, least: Self) -> bool {
        self.each().into_iter().zip(least.each()).all(|(count, least)| count >= least)
    }

    /// The increase since `before`.
    pub(super) const fn since(self, before: Self) -> Self {
        Self {
            forward: self.forward.saturating_sub(before.forward),
            backward: self.backward.saturating_sub(before.backward),
            optimizer: self.optimizer.saturating_sub(before.optimizer),
            optimizer_end: self.optimizer_end.saturating_sub(before.optimizer_end),
            step: self.step.saturating_sub(before.step),
        }
    }
}

impl Limits {
    fn hold(self, counts: Counts) -> bool {
        let limits = [self.forward, self.backward, self.optimizer, self.optimizer_end, self.step];
        counts.each().into_iter().zip(limits).all(|(count, most)| most.is_none_or(|most| count <= most))
    }
}

/// How a block ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Ended {
    /// The program gave it back.
    Freed,
    /// It was live to the end.
    Held,
}

/// Facts about a block at its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    /// Counts at its allocation.
    pub(super) born: Counts,
    /// What came in its life.
    pub(super) survived: Counts,
    pub(super) ended: Ended,
    /// The phase that the stack of its free shows.
    pub(super) freed_in: Option<Phase>,
    /// It has a stack.
    pub(super) stack: bool,
    /// A gradient of its size belongs to a parameter not identified otherwise.
    pub(super) trained: bool,
}

/// A rule for blocks at their end. All its conditions have to hold.
#[derive(Clone, Debug)]
pub(super) struct Lifetime {
    pub(super) name: Name,
    pub(super) component: Name,
    pub(super) owner: Box<str>,
    pub(super) from: Vec<Name>,
    pools: Vec<Box<str>>,
    freed_in: Vec<Phase>,
    ended: Option<Ended>,
    stack: Option<bool>,
    pub(super) trained: Option<bool>,
    born_from: Counts,
    born_before: Limits,
    survived: Counts,
    at_most: Limits,
}

impl Rule {
    /// Whether it applies to blocks of this pool. Without pools in the rule, a rule with modules applies to driver
    /// memory, any other to the pools of frameworks: the request of a pool to the driver says nothing about the owner.
    pub(super) fn is_of(&self, pool: Pool) -> bool {
        is_among(&self.pools, pool).unwrap_or_else(|| pool.is_base() != self.modules.is_empty())
    }
}

/// Whether these patterns match a pool; `None` if there are none.
fn is_among(patterns: &[Box<str>], pool: Pool) -> Option<bool> {
    (!patterns.is_empty()).then(|| patterns.iter().any(|pattern| glob(pattern, pool.event_type())))
}

impl Lifetime {
    /// Whether it applies to a block that was `component`. Without pools in the rule, those of frameworks match.
    pub(super) fn is_of(&self, component: Name, pool: Pool, life: &Life) -> bool {
        self.from.contains(&component)
            && is_among(&self.pools, pool).unwrap_or(!pool.is_base())
            && self.ended.is_none_or(|ended| ended == life.ended)
            && self.stack.is_none_or(|stack| stack == life.stack)
            && self.trained.is_none_or(|trained| trained == life.trained)
            && (self.freed_in.is_empty() || life.freed_in.is_some_and(|phase| self.freed_in.contains(&phase)))
            && life.born.reach(self.born_from)
            && self.born_before.hold_below(life.born)
            && life.survived.reach(self.survived)
            && self.at_most.hold(life.survived)
    }
}

impl Limits {
    fn hold_below(self, counts: Counts) -> bool {
        let limits = [self.forward, self.backward, self.optimizer, self.optimizer_end, self.step];
        counts.each().into_iter().zip(limits).all(|(count, end)| end.is_none_or(|end| count < end))
    }
}

/// All rules, checked.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    pub(super) rules: Vec<Rule>,
    pub(super) phases: Vec<PhaseRule>,
    pub(super) lifetimes: Vec<Lifetime>,
    pub(super) python: Vec<Pattern>,
    pub(super) native: Vec<Pattern>,
}

impl RuleSet {
    /// The built-in rules.
    #[must_use]
    pub fn builtin() -> Self {
        let mut rules = Self::default();
        if let Ok(table) = parse(BUILTIN) {
            // Checked by a test; a table that fails would be dropped.
            let _ = rules.add(table);
        }
        rules
    }

    /// The user's rules in a file, and the built-in ones behind them unless the file says `"builtin": false`.
    ///
    /// # Errors
    ///
    /// One sentence with the mistake and its line.
    pub fn read(path: &Path) -> Result<Self, String> {
        let name = path.display();
        let mut text = String::new();
        let read = regular::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text));
        read.map_err(|error| format!("cannot read the rules in `{name}`: {error}"))?;
        if text.len() as u64 > MAX_FILE_BYTES {
            return Err(format!("`{name}` is larger than 1 MiB; a table of rules is not"));
        }
        Self::of_text(&text).map_err(|reason| format!("`{name}` is no table of rules: {reason}"))
    }

    /// The same from a text.
    pub fn of_text(text: &str) -> Result<Self, String> {
        let table = parse(text)?;
        let mut rules = Self::default();
        let builtin = table.builtin.unwrap_or(true);
        rules.add(table)?;
        if builtin {
            rules.add(parse(BUILTIN)?)?;
        }
        Ok(rules)
    }

    fn add(&mut self, table: Table) -> Result<(), String> {
        for rule in table.rules {
            let rule = Rule {
                name: rule.name,
                component: rule.component,
                owner: rule.owner,
                python: number(&mut self.python, rule.python),
                within: number(&mut self.python, rule.within),
                without: number(&mut self.python, rule.without),
                native: number(&mut self.native, rule.native),
                caller: number(&mut self.native, rule.caller),
                pools: rule.pools,
                modules: rule.modules,
                labels: rule.labels,
            };
            self.rules.push(rule);
        }
        for rule in table.phases {
            self.phases.push(PhaseRule {
                phase: rule.phase,
                python: number(&mut self.python, rule.python),
                without: number(&mut self.python, rule.without),
                native: number(&mut self.native, rule.native),
            });
        }
        self.lifetimes.extend(table.lifetimes);
        let rules = [self.rules.len(), self.phases.len(), self.lifetimes.len()];
        if rules.into_iter().any(|count| count > MAX_RULES) {
            return Err(format!("more than {MAX_RULES} rules of a kind; leave some out"));
        }
        if self.python.len().max(self.native.len()) > MAX_PATTERNS {
            return Err(format!("more than {MAX_PATTERNS} different patterns; leave some out"));
        }
        Ok(())
    }
}

/// Gives patterns their numbers.
fn number(known: &mut Vec<Pattern>, patterns: Vec<Pattern>) -> Patterns {
    let mut number = |pattern: Pattern| {
        known.iter().position(|other| *other == pattern).unwrap_or_else(|| {
            known.push(pattern);
            known.len() - 1
        }) as u16
    };
    // More than fit are refused once all are counted.
    patterns.into_iter().take(MAX_PATTERNS + 1).map(&mut number).collect()
}

fn parse(text: &str) -> Result<Table, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}
