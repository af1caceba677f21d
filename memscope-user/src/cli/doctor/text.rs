//! The diagnosis as text.

use std::{fmt::Write as _, path::Path};

use super::{Diagnosis, LibraryLine, NotLocatedLine};
use crate::stacks::unwind::Survey;

pub(super) fn survey_text(survey: &Survey) -> String {
    let Survey { entries, broken_entries, rows, rows_outside, rows_not_understood } = survey;
    let walked = rows - rows_outside - rows_not_understood;
    let percent = walked as f64 * 100.0 / (*rows).max(1) as f64;
    format!(
        "unwinding: {rows} rows of {entries} functions; {percent:.3} % are walked in the kernel, {rows_outside} finished \
         outside, {rows_not_understood} not understood; {broken_entries} broken functions"
    )
}

/// Names every probe at which the kernel single-steps, and the cost of a call there.
pub(super) fn stepped_text(libraries: &[LibraryLine]) -> String {
    let probes = libraries.iter().flat_map(|library| library.probes.iter().map(move |probe| (library, probe)));
    let stepped: Vec<_> = probes.filter(|(_, probe)| probe.single_stepped).collect();
    let mut text = String::new();
    if stepped.is_empty() {
        return text;
    }
    let _ = writeln!(
        text,
        "\nsingle-stepped, µs that a call pays (measured in a virtual machine; an emulated site takes 0.6):"
    );
    for (library, probe) in stepped {
        let file = Path::new(&library.path).file_name().unwrap_or_default().to_string_lossy();
        let what = if probe.own_returns > 0 { "its return instructions, entry at" } else { "at" };
        let _ = writeln!(
            text,
            "  {:>5.1} {} in {}: {what} `{}`",
            probe.price_us,
            probe.symbol.escape_debug(),
            file.escape_debug(),
            probe.instruction
        );
    }
    text
}

pub(super) fn render(diagnosis: &Diagnosis) -> String {
    let mut text = String::new();
    for check in &diagnosis.checks {
        let _ = writeln!(text, "{:<9} {:<17} {}", check.state, check.name, check.found);
        if let Some(mend) = &check.mend {
            let _ = writeln!(text, "{:<9} {:<17} -> {mend}", "", "");
        }
    }
    text.push_str(&stepped_text(&diagnosis.libraries));
    for library in &diagnosis.libraries {
        let _ = writeln!(text, "\n{}", library.path.escape_debug());
        if let Some(survey) = &library.unwind {
            let _ = writeln!(text, "  {}", survey_text(survey));
        }
        if let Some(error) = &library.error {
            let _ = writeln!(text, "  error: {error}");
        }
        for probe in &library.probes {
            let _ = writeln!(
                text,
                "  {:<32} +{:<3} {:<9} {:>5.1} µs {:<28} {}",
                probe.symbol,
                probe.site_offset,
                if probe.single_stepped { "stepped" } else { "emulated" },
                probe.price_us,
                probe.instruction,
                match (probe.with_return, probe.own_returns) {
                    (true, _) => "entry+return".to_owned(),
                    (false, 0) => "entry".to_owned(),
                    (false, count) => format!("entry+{count} return instruction(s)"),
                },
            );
            if let Some(located) = &probe.located {
                let _ = writeln!(text, "  {:<32} located at {:#x} ({})", "", located.vaddr, located.text);
            }
        }
        for NotLocatedLine { symbol, reason } in &library.not_located {
            let _ = writeln!(text, "  {symbol:<32} not found: {reason}");
        }
        if library.hidden_copy {
            let _ = writeln!(
                text,
                "  has mstx's functions inlined or without symbols: only `run --mstx-injection` sees its calls"
            );
        }
        if library.has_nothing() {
            text.push_str("  no function that is probed: no library of Ascend\n");
        }
        if !library.absent.is_empty() {
            let _ = writeln!(text, "  not in this library: {}", library.absent.join(", "));
        }
    }
    text
}
