//! What was compared, for people to read, and for a test to fail on.

use std::fmt::{self, Display, Write as _};

/// One thing that was compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// What.
    pub what: String,
    /// How much of it.
    pub compared: String,
    /// The first difference.
    pub difference: Option<String>,
}

/// All that was compared of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// In the order of the comparisons.
    pub lines: Vec<Line>,
}

impl Table {
    /// Adds a line.
    pub fn add(&mut self, what: impl Into<String>, compared: impl Into<String>, difference: Option<String>) {
        self.lines.push(Line { what: what.into(), compared: compared.into(), difference });
    }

    /// Panics, naming what is different, unless nothing is. A table of nothing is a failure, too.
    pub fn assert_equal(&self) {
        assert!(!self.lines.is_empty(), "nothing was compared");
        let mut text = String::new();
        for line in &self.lines {
            if let Some(difference) = &line.difference {
                let _ = writeln!(text, "{}: {difference}", line.what);
            }
        }
        assert!(text.is_empty(), "\n{text}");
    }
}

impl Display for Table {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |text: fn(&Line) -> &str| self.lines.iter().map(|line| text(line).chars().count()).max();
        let what = width(|line| &line.what).unwrap_or(0);
        let compared = width(|line| &line.compared).unwrap_or(0);
        for line in &self.lines {
            let verdict = line.difference.as_deref().map_or("equal", |_| "DIFFERENT");
            writeln!(out, "  {:what$}  {:>compared$}  {verdict}", line.what, line.compared)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A difference fails the table, whatever else is equal; so does an empty one.
    #[test]
    fn differences_fail() {
        let mut table = Table::default();
        assert!(std::panic::catch_unwind(|| Table::default().assert_equal()).is_err());
        table.add("order", "3", None);
        table.assert_equal();
        table.add("reserved", "2", Some("at mark `x`".into()));
        assert_eq!(table.to_string(), "  order     3  equal\n  reserved  2  DIFFERENT\n");
        assert!(std::panic::catch_unwind(|| table.assert_equal()).is_err());
    }
}
