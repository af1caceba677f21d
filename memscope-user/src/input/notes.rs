//! Repaired and dropped rows of the dumps read.

use std::collections::BTreeMap;

use super::row::MissingStacks;
use super::{BadRow, Renamed};

/// Most dropped rows reported with their place.
const MAX_BAD_ROWS: usize = 4;
/// Most renumbered processes reported.
const MAX_RENAMED: usize = 8;
/// Most kinds of unused rows reported by name.
const MAX_UNUSED: usize = 16;

/// Repaired and dropped rows of the dumps read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// Rows used.
    pub rows: u64,
    /// Rows cut off at the end of a file.
    pub torn_rows: u64,
    /// Rows that could not be understood and were left out.
    pub bad_rows: u64,
    /// The first of them.
    pub bad_examples: Vec<BadRow>,
    /// Processes that share their number with another one.
    pub renamed: Vec<Renamed>,
    /// Repeated rows, within one file.
    pub duplicates: u64,
    /// Rows that share process and ID with another one, or the number of a live block, with other contents.
    pub contradictions: u64,
    /// Rows with a time before that of an earlier row of their process.
    pub clock_back: u64,
    /// The largest such difference, in nanoseconds.
    pub clock_back_ns: u64,
    /// Frees of blocks without a row.
    pub unmatched_frees: u64,
    /// Call stacks that rows refer to and no table has.
    pub(super) missing_stacks: MissingStacks,
    /// Kinds of rows that no analysis needs, and their number.
    pub unused: BTreeMap<String, u64>,
}

impl Notes {
    pub(super) fn bad_row(&mut self, row: BadRow) {
        self.bad_rows += 1;
        if self.bad_examples.len() < MAX_BAD_ROWS {
            self.bad_examples.push(row);
        }
    }

    pub(super) fn unused(&mut self, kind: String) {
        let known = self.unused.contains_key(&kind) || self.unused.len() < MAX_UNUSED;
        *self.unused.entry(if known { kind } else { "others".to_owned() }).or_default() += 1;
    }

    /// Adds what another part of the reading has noted.
    pub(super) fn add(&mut self, other: Self) {
        self.rows += other.rows;
        self.torn_rows += other.torn_rows;
        self.bad_rows += other.bad_rows;
        let room = MAX_BAD_ROWS.saturating_sub(self.bad_examples.len());
        self.bad_examples.extend(other.bad_examples.into_iter().take(room));
        self.renamed.extend(other.renamed);
        self.duplicates += other.duplicates;
        self.contradictions += other.contradictions;
        self.clock_back += other.clock_back;
        self.clock_back_ns = self.clock_back_ns.max(other.clock_back_ns);
        self.unmatched_frees += other.unmatched_frees;
        self.missing_stacks.add(other.missing_stacks);
        for (kind, count) in other.unused {
            *self.unused.entry(kind).or_default() += count;
        }
    }

    /// Messages for the user, one sentence each.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut say = |count: u64, text: String| {
            if count > 0 {
                lines.push(text);
            }
        };
        say(self.torn_rows, format!("{} row(s) at the end of a file are torn and were left out", self.torn_rows));
        if self.bad_rows > 0 {
            let examples: Vec<String> = self.bad_examples.iter().map(ToString::to_string).collect();
            let more = if self.bad_rows > examples.len() as u64 { "; …" } else { "" };
            say(
                self.bad_rows,
                format!(
                    "{} row(s) cannot be understood and were left out: {}{more}",
                    self.bad_rows,
                    examples.join("; ")
                ),
            );
        }
        for Renamed { pid, shown, path } in self.renamed.iter().take(MAX_RENAMED) {
            say(
                1,
                format!(
                    "process {pid} of `{}` is another one than that of the file before: it is shown as {shown}",
                    path.display()
                ),
            );
        }
        let more = self.renamed.len().saturating_sub(MAX_RENAMED);
        say(
            more as u64,
            format!("{more} more processes share their number with another one, and are shown by new ones"),
        );
        say(self.duplicates, format!("{} row(s) were there more than once and were taken once", self.duplicates));
        say(
            self.contradictions,
            format!(
                "{} row(s) share process and number with another one and say something else: are these files of one run?",
                self.contradictions
            ),
        );
        say(
            self.clock_back,
            format!(
                "the clock ran backwards before {} row(s), by {} ns at most; their time was set to that of the row before",
                self.clock_back, self.clock_back_ns
            ),
        );
        say(self.unmatched_frees, format!("{} free(s) are of blocks without an allocation row", self.unmatched_frees));
        let MissingStacks { count, why } = &self.missing_stacks;
        say(*count, format!("{count} call stack(s) that rows refer to are in no table and count as none: {why}"));
        lines
    }
}
