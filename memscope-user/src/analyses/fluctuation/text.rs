//! Variation of use inside steps, with the lines of the reference (contract §8.3).

use std::io::{self, Write};

use super::{Fluctuation, RatioRecord};
use crate::model::StepsFrom;
use crate::text::{DeviceName, numbers::mega};

/// Nothing where no step could be judged: a table of zeros would claim the strongest variation there is.
pub(super) fn write(found: &Fluctuation, out: &mut dyn Write) -> io::Result<()> {
    let Fluctuation { device, pool, min_gap, max_gap, steps_from, .. } = found;
    let (Some(min_gap), Some(max_gap)) = (min_gap, max_gap) else { return Ok(()) };
    writeln!(out, "======= {} Gap Analysis of Device {} =======", pool.display_name(), DeviceName(*device))?;
    writeln!(out, "\t{:<25}{:<25}{:<25}", "MinAlloc/MaxAlloc(%)", "MinAllocMem(MB)", "StepId")?;
    for (name, RatioRecord { ratio, min_used_bytes, step }) in [("MinGap", min_gap), ("MaxGap", max_gap)] {
        writeln!(out, "{name}\t{:<25.4}{:<25.4}{step:<25}", ratio * 100.0, mega(*min_used_bytes))?;
    }
    if *steps_from != StepsFrom::Marks {
        writeln!(out, "Steps{}", steps_from.note().trim_start_matches(','))?;
    }
    Ok(())
}
