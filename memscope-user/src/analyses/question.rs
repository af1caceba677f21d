//! Questions that users ask by a word: `--analysis=WORD` of a trace, the command `WORD FILE…`, and `ask` in Python.

use std::fmt;
use std::sync::Arc;

use super::decompose::RuleSet;
use super::registry::QUESTIONS;
use super::select::Filter;
use super::table::Table;
use super::{Analysis, Finding, Judged};

/// A question.
pub struct Question {
    /// The word.
    pub word: &'static str,
    /// Help of the command.
    pub about: &'static str,
    /// Message for files without a finding.
    pub none: &'static str,
    /// Its answer names owners, by rules.
    pub names_owners: bool,
    /// Blocks that its analysis has to see.
    pub sees: Sees,
    /// Whether only the judged span counts: its analysis does not see the exit.
    pub up_to_exit: bool,
    /// The bit by which scripts request it in a running trace; 0 if they cannot.
    pub script_bit: u64,
    /// Makes the analysis.
    pub analysis: fn(Asked) -> Box<dyn Analysis>,
    /// Its answer as a table.
    pub table: &'static dyn Table<Finding>,
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
#[derive(Clone, Debug)]
pub struct Asked {
    /// Rules that name owners.
    pub rules: Arc<RuleSet>,
    /// The filter, for an analysis that sees all blocks.
    pub filter: Filter,
}

impl Question {
    /// The question of a word.
    #[must_use]
    pub fn of(word: &str) -> Option<&'static Self> {
        QUESTIONS.iter().find(|question| question.word == word)
    }

    /// Its analysis, for a run with this question alone.
    #[must_use]
    pub fn alone(&self, asked: Asked) -> Box<dyn Analysis> {
        let analysis = (self.analysis)(asked);
        if self.up_to_exit { Box::new(Judged::default().freezing(analysis)) } else { analysis }
    }

    /// All of them, in the order of the registry.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        QUESTIONS.iter()
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

    /// The questions behind these bits of a script.
    #[must_use]
    pub fn of_script(bits: u64) -> Self {
        let asked = |question: &Question| question.script_bit & bits != 0;
        let numbers = QUESTIONS.iter().enumerate().filter(|(_, question)| asked(question));
        Self(numbers.fold(0, |chosen, (number, _)| chosen | 1 << number))
    }

    /// The bits by which scripts request these questions.
    #[must_use]
    pub fn script_bits(self) -> u64 {
        self.iter().fold(0, |bits, question| bits | question.script_bit)
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
        assert!(chosen.has("peaks") && !chosen.has("fragmentation") && !chosen.is_empty());
        for question in QUESTIONS {
            assert!(std::ptr::eq(Question::of(question.word).expect("a word"), question));
        }
    }
}
