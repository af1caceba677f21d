//! Tables of the report, as Markdown.

use std::fmt;

/// One table under its own heading.
#[derive(Debug)]
pub(super) struct Table {
    /// Heading.
    pub(super) title: String,
    /// What one has to know to read it; may be empty.
    pub(super) note: String,
    /// Names of the columns.
    pub(super) columns: Vec<String>,
    /// As many cells as columns in each.
    pub(super) rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub(super) fn new(title: &str, note: &str, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|&name| name.to_owned()).collect();
        Self { title: title.to_owned(), note: note.to_owned(), columns, rows: Vec::new() }
    }

    /// Adds a row.
    pub(super) fn row<T: ToString>(&mut self, cells: impl IntoIterator<Item = T>) {
        let cells: Vec<String> = cells.into_iter().map(|cell| cell.to_string()).collect();
        assert_eq!(cells.len(), self.columns.len(), "cells of `{}`", self.title);
        self.rows.push(cells);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n## {}\n", self.title)?;
        if !self.note.is_empty() {
            writeln!(f, "{}\n", self.note)?;
        }
        writeln!(f, "| {} |", self.columns.join(" | "))?;
        writeln!(f, "|---{}|", "|--:".repeat(self.columns.len() - 1))?;
        for row in &self.rows {
            writeln!(f, "| {} |", row.join(" | "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    /// Make sure that what is written is a table to Markdown.
    #[test]
    fn markdown() {
        let mut table = Table::new("Title", "", &["a", "b"]);
        table.row(["1", "2"]);
        assert_eq!(table.to_string(), "\n## Title\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n");
    }
}
