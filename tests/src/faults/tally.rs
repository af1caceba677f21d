//! What rounds have shown.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Result of one round.
#[derive(Debug, Default)]
pub struct Round {
    /// Why a program counts as harmed.
    pub harmed: Option<String>,
    /// Which rows are missing without a word.
    pub unsaid: Option<String>,
    /// Why a capture cannot be recovered.
    pub unrecovered: Option<String>,
    /// Anything else that is wrong: a program of the test that does not start, an end without a message.
    pub other: Option<String>,
    /// Rows that were held to the journal.
    pub rows: usize,
}

impl Round {
    /// Whether nothing is wrong.
    #[must_use]
    pub const fn is_good(&self) -> bool {
        self.harmed.is_none() && self.unsaid.is_none() && self.unrecovered.is_none() && self.other.is_none()
    }
}

/// The message of an assertion that fails; `None` if it holds.
pub(super) fn wrong<T>(check: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(check)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        text.unwrap_or("a panic without a message").to_owned()
    })
}

/// Sums over the rounds of one fault.
#[derive(Debug, Default)]
pub struct Tally {
    /// Rounds.
    pub rounds: u64,
    /// Of those, with harmed programs.
    pub harmed: u64,
    /// With missing rows that were not reported.
    pub unsaid: u64,
    /// With captures that cannot be recovered.
    pub unrecovered: u64,
    /// With anything else.
    pub other: u64,
    /// Rows that were held to the journal.
    pub rows: u64,
}

impl Tally {
    /// Adds a round.
    pub fn add(&mut self, round: &Round) {
        self.rounds += 1;
        self.harmed += u64::from(round.harmed.is_some());
        self.unsaid += u64::from(round.unsaid.is_some());
        self.unrecovered += u64::from(round.unrecovered.is_some());
        self.other += u64::from(round.other.is_some());
        self.rows += round.rows as u64;
    }

    /// Adds the sums of another fault.
    pub const fn add_all(&mut self, other: &Self) {
        self.rounds += other.rounds;
        self.harmed += other.harmed;
        self.unsaid += other.unsaid;
        self.unrecovered += other.unrecovered;
        self.other += other.other;
        self.rows += other.rows;
    }

    /// Whether each round was good.
    #[must_use]
    pub const fn is_good(&self) -> bool {
        self.harmed == 0 && self.unsaid == 0 && self.unrecovered == 0 && self.other == 0
    }

    /// A row of a table in Markdown, as `docs/reliability.md` has it.
    #[must_use]
    pub fn row(&self, name: &str) -> String {
        let Self { rounds, harmed, unsaid, unrecovered, other, rows } = self;
        format!("| {name} | {rounds} | {rows} | {harmed} | {unsaid} | {unrecovered} | {other} |")
    }
}

/// Head of that table.
pub const HEAD: &str = "\
| fault | rounds | rows held to the journal | programs harmed | rows lost unsaid | captures not recovered | anything else |
|---|--:|--:|--:|--:|--:|--:|";
