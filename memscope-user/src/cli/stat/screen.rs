//! Where samples go: standard output, as text, CSV or JSON.

use std::io::{self, Write as _};

use crate::analyses::sample::{SAMPLE_CSV_HEADER, Sample, write_sample, write_sample_csv};
use crate::cli::terminal::{self, Control};
use crate::printable;

/// How samples are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// Text; each sample replaces the last one on a terminal.
    Text,
    /// CSV.
    Csv,
    /// One JSON object to a line.
    Json,
}

/// Standard output.
#[derive(Debug)]
pub(in crate::cli) struct Screen {
    style: Style,
    is_terminal: bool,
    begun: bool,
}

impl Screen {
    pub(super) fn new(style: Style) -> Self {
        Self { style, is_terminal: terminal::shows_output(), begun: false }
    }

    /// Writes a sample in one piece.
    pub(in crate::cli) fn show(&mut self, sample: &Sample) -> io::Result<()> {
        let mut text = Vec::new();
        self.render(sample, &mut text)?;
        let style = if self.style == Style::Json { printable::Style::Json } else { printable::Style::Text };
        terminal::print_as(style, self.control(), |out| out.write_all(&text))
    }

    /// Text replaces what a terminal showed before.
    fn control(&self) -> Option<Control> {
        (self.style == Style::Text && self.is_terminal).then_some(Control::ClearScreen)
    }

    fn render(&mut self, sample: &Sample, text: &mut Vec<u8>) -> io::Result<()> {
        let is_first = !std::mem::replace(&mut self.begun, true);
        match self.style {
            Style::Text => {
                if !self.is_terminal && !is_first {
                    text.push(b'\n');
                }
                write_sample(sample, text)
            }
            Style::Csv => {
                if is_first {
                    writeln!(text, "{SAMPLE_CSV_HEADER}")?;
                }
                write_sample_csv(sample, text)
            }
            Style::Json => {
                crate::document::write(sample, text)?;
                writeln!(text)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(style: Style, is_terminal: bool) -> String {
        let sample = Sample { time_ns: 1, interval_ns: 2, last: false, lost: 3, devices: None, processes: Vec::new() };
        let mut screen = Screen { style, is_terminal, begun: false };
        let mut text = Vec::new();
        for _ in 0..2 {
            screen.render(&sample, &mut text).expect("written");
        }
        String::from_utf8(text).expect("UTF-8")
    }

    #[test]
    fn only_terminals_are_cleared() {
        let clears = |style, is_terminal| Screen { style, is_terminal, begun: true }.control().is_some();
        assert!(clears(Style::Text, true) && !clears(Style::Text, false) && !clears(Style::Csv, true));
        assert!(!shown(Style::Text, true).contains('\x1b'));
        assert_eq!(shown(Style::Text, false).matches("\n\n").count(), 1);
        assert_eq!(shown(Style::Text, true).matches("\n\n").count(), 0);
    }

    #[test]
    fn lines_for_programs() {
        assert_eq!(shown(Style::Csv, true).matches("time_ns,pid").count(), 1);
        let sample = r#""time_ns":1,"interval_ns":2,"last":false,"lost":3,"devices":null,"processes":[]}"#;
        let version = env!("CARGO_PKG_VERSION");
        let object = format!(r#"{{"schema":"memscope/sample/1","tool_version":"{version}",{sample}"#);
        assert_eq!(shown(Style::Json, true), format!("{object}\n{object}\n"));
    }
}
