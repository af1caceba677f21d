//! Memory held at the end, as text.

use std::io::{self, Write};

use super::{Held, HeldModule};
use crate::analyses::judged::ExitFreed;
use crate::text::{
    DeviceName,
    numbers::{counted, size},
};

/// Writes one finding, and the pool's memory that the exit freed.
pub(super) fn write<'a>(
    held: &Held,
    freed_by_exit: impl Iterator<Item = &'a ExitFreed>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let Held { pool, blocks, size_bytes, unseen_bytes, peak_bytes, .. } = held;
    write!(out, "{} held at the end on device {}: ", pool.display_name(), DeviceName(held.device))?;
    let seen = match blocks {
        0 => "nothing".to_owned(),
        _ => format!("{} in {}", size(*size_bytes), counted(*blocks, "block")) + &found(held),
    };
    match unseen_bytes {
        0 => write!(out, "{seen}")?,
        unseen => {
            let why = if held.attached { "from before the attach" } else { "not seen" };
            write!(out, "{}: {seen}, and {} {why}", size(size_bytes.saturating_add(*unseen)), size(*unseen))?;
        }
    }
    for ExitFreed { blocks, size_bytes, .. } in freed_by_exit {
        write!(out, "; freed by the exit: {} in {}", size(*size_bytes), counted(*blocks, "block"))?;
    }
    write!(out, "; peak {}; {}", size(*peak_bytes), traffic(held))?;
    let is_partial = held.attached && *unseen_bytes == 0 && !held.older_known;
    let others = if held.found.blocks > 0 { "other blocks" } else { "blocks" };
    let unknown = if is_partial { format!("; {others} from before the attach are not known") } else { String::new() };
    writeln!(out, "{unknown}")?;
    if held.frees_are_not_seen() {
        writeln!(
            out,
            "  Frees of this pool are not seen: {} ended only when their addresses were handed out again, so it holds less than this. \
             Its library may free by a function that is not probed: see `doctor --pid`.",
            counted(held.replaced, "block")
        )?;
    }
    if held.by_module.is_empty() {
        return Ok(());
    }
    writeln!(out, "  {:<16}  {:>8}  Size", "Module", "Blocks")?;
    for HeldModule { module, blocks, size_bytes } in &held.by_module {
        writeln!(out, "  {module:<16}  {blocks:>8}  {}", size(*size_bytes))?;
    }
    Ok(())
}

/// Those of the blocks that are older than the trace.
fn found(Held { blocks, found, .. }: &Held) -> String {
    match found.blocks {
        0 => String::new(),
        all if all == *blocks => ", from before the attach".to_owned(),
        _ => {
            format!(", {} in {} of them from before the attach", size(found.size_bytes), counted(found.blocks, "block"))
        }
    }
}

/// The counts of calls; unusual ones only if they occurred.
fn traffic(held: &Held) -> String {
    let mut parts = vec![counted(held.allocations, "allocation"), counted(held.frees, "free")];
    let unusual = [
        (held.failed, "failed allocation", ""),
        (held.recovered, "allocation", " that succeeded at a further attempt"),
        (held.older_frees, "free", " of blocks older than the trace"),
        (held.unknown_frees, "free", " of unknown blocks"),
    ];
    let unusual = unusual.into_iter().filter(|&(count, ..)| count > 0);
    parts.extend(unusual.map(|(count, noun, which)| counted(count, noun) + which));
    parts.join(", ")
}
