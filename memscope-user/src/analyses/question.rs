//! Questions that users ask by a word: `--analysis=WORD` of a trace, the command `WORD FILE…`, and `ask` in Python.

use std::fmt;
use std::sync::Arc;

use super::decompose::RuleSet;
use super::registry::QUESTIONS;
use super::select::Filter;
use super::set::AnalysisSet;
use super::table::Table;
use super::{Analysis, Finding};

/// A question.
pub struct Question {
    /// The word.
    pub word: &'static str,
    /// What may follow the word in `--analysis`, as help has it: `[:K]`, or nothing.
    pub parameter: &'static str,
    /// Its command for files.
    pub command: FilesCommand,
    /// Its answer names owners, by rules.
    pub names_owners: bool,
    /// Blocks that its analysis has to see.
    pub sees: Sees,
    /// It compares steps: not made where only some of them are written.
    pub compares_steps: bool,
    /// When it costs no probe, and is answered without being asked.
    pub automatic: Automatic,
    /// Events that have to be collected for it, in the bits of contract §1.5.
    pub collects: u32,
    /// The bit by which scripts request it in a running trace; `None` if they cannot.
    pub script_bit: Option<AnalysisBit>,
    /// Adds its analyses.
    pub add: fn(Asked, AnalysisSet) -> AnalysisSet,
    /// Its answer as a table.
    pub table: &'static dyn Table<Finding>,
}

/// When a question costs no probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Automatic {
    /// It has a cost, in probes or in memory.
    Never,
    /// As far as it goes by what is recorded anyway.
    Always,
    /// Where uses of tensors are written.
    WithAccesses,
}

/// The command of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilesCommand {
    /// None: it is asked of a trace.
    None,
    /// With options of its own.
    Own,
    /// With the options that all such commands have.
    Plain {
        /// Help.
        about: &'static str,
        /// Message for files without a finding.
        none: &'static str,
    },
}

/// Events that are collected, in the bits of contract §1.5.
pub(super) mod collected {
    /// Allocations and frees.
    pub(crate) const BLOCKS: u32 = 1 | 2;
    /// Launches.
    pub(crate) const LAUNCHES: u32 = 4;
    /// Uses of tensors.
    pub(crate) const ACCESSES: u32 = 8;
}

/// An analysis that scripts can ask for, by its bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnalysisBit(pub u64);

impl AnalysisBit {
    /// Step leaks and fluctuation.
    pub const LEAKS: Self = Self(1);
    /// Owners.
    pub const DECOMPOSE: Self = Self(2);
    /// Inefficient use, which shows in what operators use.
    pub const INEFFICIENT: Self = Self(4);
    /// Blocks when memory is out.
    pub const OOM: Self = Self(8);
    /// Live memory at peaks.
    pub const PEAKS: Self = Self(16);
    /// Free pieces of pools.
    pub const FRAGMENTATION: Self = Self(32);

    /// Whether it is among these.
    #[must_use]
    pub const fn is_in(self, bits: u64) -> bool {
        bits & self.0 != 0
    }
}

/// Blocks that an analysis has to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sees {
    /// Those that match the filter.
    Chosen,
    /// All: it takes the filter itself.
    All,
    /// All, and of the filter only what chooses whole pools.
    WholePools,
}

/// Parameters of a question.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Rules that name owners; `None`: the built-in ones, where owners are needed.
    pub rules: Option<Arc<RuleSet>>,
    /// Nothing is asked for by name: nothing is kept of single blocks for owners alone.
    pub automatic: bool,
    /// The filter, for an analysis that sees all blocks.
    pub filter: Filter,
}

impl Asked {
    /// The rules that name owners.
    pub(super) fn rules(&self) -> Arc<RuleSet> {
        self.rules.clone().unwrap_or_else(|| Arc::new(RuleSet::builtin()))
    }
}

impl Question {
    /// The question of a word.
    #[must_use]
    pub fn of(word: &str) -> Option<&'static Self> {
        QUESTIONS.iter().find(|question| question.word == word)
    }

    /// Its analyses, for a run with this question alone.
    #[must_use]
    pub fn alone(&self, asked: Asked) -> Vec<Box<dyn Analysis>> {
        (self.add)(asked, AnalysisSet::default()).into_vec()
    }

    /// All of them, in the order of the registry.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        QUESTIONS.iter()
    }

    /// All of them, in the order of the contract, ours last: as users read them.
    #[must_use]
    pub fn all_for_users() -> Vec<&'static Self> {
        let mut all: Vec<&Self> = QUESTIONS.iter().collect();
        all.sort_by_key(|question| question.script_bit.map_or(u64::MAX, |bit| bit.0));
        all
    }
}

impl fmt::Debug for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Question").field(&self.word).finish()
    }
}

/// A choice of questions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Questions(u32);

impl Questions {
    /// None of them.
    pub const NONE: Self = Self(0);

    /// Adds the question of a word; `false` if there is none.
    #[must_use]
    pub fn add(&mut self, word: &str) -> bool {
        let number = QUESTIONS.iter().position(|question| question.word == word);
        if let Some(number) = number {
            self.0 |= 1 << number;
        }
        number.is_some()
    }

    /// With the question of a word added.
    #[must_use]
    pub fn with(mut self, word: &str) -> Self {
        let _ = self.add(word);
        self
    }

    /// Without the question of a word.
    #[must_use]
    pub fn without(self, word: &str) -> Self {
        let kept = QUESTIONS.iter().map(|question| question.word).filter(|other| *other != word && self.has(other));
        kept.fold(Self::NONE, Self::with)
    }

    /// The questions behind these bits of a script.
    #[must_use]
    pub fn of_script(bits: u64) -> Self {
        let asked = |question: &Question| question.script_bit.is_some_and(|bit| bit.is_in(bits));
        let numbers = QUESTIONS.iter().enumerate().filter(|(_, question)| asked(question));
        Self(numbers.fold(0, |chosen, (number, _)| chosen | 1 << number))
    }

    /// The bits by which scripts request these questions.
    #[must_use]
    pub fn script_bits(self) -> u64 {
        self.iter().filter_map(|question| question.script_bit).fold(0, |bits, bit| bits | bit.0)
    }

    /// Whether the question of a word is among them.
    #[must_use]
    pub fn has(self, word: &str) -> bool {
        self.iter().any(|question| question.word == word)
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Each of them, in the order of the registry.
    pub fn iter(self) -> impl Iterator<Item = &'static Question> {
        QUESTIONS.iter().enumerate().filter(move |(number, _)| self.0 >> number & 1 == 1).map(|(_, question)| question)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each word is asked once, and fits into a choice.
    #[test]
    fn words_are_chosen() {
        assert!(QUESTIONS.len() <= 32);
        let mut chosen = Questions::NONE;
        assert!(chosen.add("peaks") && chosen.add("decompose") && !chosen.add("peak"));
        let words: Vec<&str> = chosen.iter().map(|question| question.word).collect();
        assert_eq!(words, ["decompose", "peaks"]);
        assert_eq!((chosen.script_bits(), Questions::of_script(2 | 16)), (18, chosen));
        // As contract §1.8 lists them, ours behind.
        let words: Vec<&str> = Question::all_for_users().iter().map(|question| question.word).collect();
        assert_eq!(words, ["leaks", "decompose", "inefficient", "oom", "peaks", "fragmentation", "waits", "lifetimes"]);
        assert!(chosen.has("peaks") && !chosen.has("fragmentation") && !chosen.is_empty());
        for question in QUESTIONS {
            assert!(std::ptr::eq(Question::of(question.word).expect("a word"), question));
        }
    }
}
