//! Cards as text.

use std::io::{self, Write};

use super::{Advice, Card, Explanation, Level};
use crate::model::{Confidence, RunEnd};
use crate::text::numbers::counted;

/// Writes the cards, and the rules that could not be judged.
///
/// # Errors
///
/// When `out` cannot be written.
pub fn write(explanation: &Explanation, end: &RunEnd, out: &mut dyn Write) -> io::Result<()> {
    let Explanation { cards, left_out, not_judged } = explanation;
    if cards.is_empty() {
        writeln!(out, "No rule applies to what was found.")?;
    }
    for card in cards {
        write_card(card, out)?;
    }
    if *left_out > 0 {
        writeln!(out, "… and {} about fewer bytes", counted(*left_out, "more card"))?;
    }
    let mut silent: Vec<String> = not_judged.iter().map(|it| format!("{}: {}", it.rule.id(), it.why)).collect();
    silent.sort();
    silent.dedup();
    if !silent.is_empty() {
        writeln!(out, "Not judged: {}.", silent.join("; "))?;
    }
    if Confidence::after(end) == Confidence::Doubtful {
        writeln!(out, "Events were lost, so figures may be off.")?;
    }
    Ok(())
}

fn write_card(card: &Card, out: &mut dyn Write) -> io::Result<()> {
    let level = match card.level {
        Level::Error => "ERROR",
        Level::Warning => "WARNING",
        Level::Info => "INFO",
    };
    let device = card.device.name_or("no device");
    writeln!(out, "{level}  {} ({}), process {}, {device}", card.title, card.rule.id(), card.pid)?;
    writeln!(out, "  {}", card.text)?;
    for line in &card.evidence {
        writeln!(out, "  - {line}")?;
    }
    for advice in &card.advice {
        write_advice(advice, out)?;
    }
    if card.confidence == Confidence::Doubtful {
        writeln!(out, "  Doubtful: events were lost, or the moment was not kept.")?;
    }
    writeln!(out)
}

fn write_advice(advice: &Advice, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "  try: {}", advice.text)?;
    if let Some(versions) = advice.versions {
        writeln!(out, "       for {versions}")?;
    }
    advice.sources.iter().try_for_each(|source| writeln!(out, "       see {source}"))
}
