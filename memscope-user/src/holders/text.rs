//! The answer for people.

use std::io::{self, Write};

use super::answer::{Branch, Group, Holder, Holders, PoolNow, PrivateNow, Purpose, State, Sum};
use crate::{
    printable::OneLine,
    text::numbers::{counted, rounded, seconds},
};

/// Groups shown.
const MAX_GROUPS: usize = 20;

/// Writes an answer; `tree`: by object as well.
///
/// # Errors
///
/// When `out` cannot be written.
pub fn write_text(found: &Holders, tree: bool, out: &mut dyn Write) -> io::Result<()> {
    let Holders { pid, command, python, pool, asked, .. } = found;
    let python = python.as_ref().map(|python| format!(", {python}")).unwrap_or_default();
    writeln!(out, "Process {pid} ({}{python})", OneLine(command))?;
    if let Some(pool) = pool {
        write_pool(pool, out)?;
    }
    writeln!(out, "Looked at {}", sum(*asked))?;
    write_purposes(&found.purposes, out)?;
    if tree && !found.tree.is_empty() {
        writeln!(
            out,
            "\nBy object: device memory that it leads to; in brackets what it alone keeps, if others lead to it as well"
        )?;
        write_branches(&found.tree, 1, out)?;
    }
    write_groups(&found.groups, out)?;
    for note in &found.notes {
        writeln!(out, "\nNote: {}", OneLine(note))?;
    }
    let effort = &found.effort;
    let scanned = rounded(effort.scanned_bytes.into());
    writeln!(out, "\nRead {scanned} of host memory in {}; the process was not stopped", seconds(effort.time_ns))
}

fn sum(sum: Sum) -> String {
    if sum.size_bytes == 0 {
        return counted(sum.blocks, "block");
    }
    format!("{}, {}", counted(sum.blocks, "block"), rounded(sum.size_bytes.into()))
}

fn write_pool(pool: &PoolNow, out: &mut dyn Write) -> io::Result<()> {
    let PoolNow { allocator, devices, segments, size_bytes, live, waiting, free, .. } = pool;
    let (segments, devices) = (counted(*segments, "segment"), counted(*devices, "device"));
    let waiting = match waiting.blocks {
        0 => String::new(),
        _ => format!("; freed, in use by another stream: {}", sum(*waiting)),
    };
    writeln!(
        out,
        "Pool {}: {} in {segments} on {devices}; live: {}{waiting}; free: {} in {}",
        OneLine(allocator),
        rounded((*size_bytes).into()),
        sum(*live),
        rounded(free.size_bytes.into()),
        counted(free.blocks, "piece"),
    )?;
    write_private(&pool.private, out)
}

/// In one line, if there are any.
fn write_private(pools: &[PrivateNow], out: &mut dyn Write) -> io::Result<()> {
    if pools.is_empty() {
        return Ok(());
    }
    let (mut bytes, mut live) = (0, Sum::default());
    for pool in pools {
        bytes += pool.size_bytes;
        (live.blocks, live.size_bytes) = (live.blocks + pool.live.blocks, live.size_bytes + pool.live.size_bytes);
    }
    let pools = counted(pools.len() as u64, "pool");
    writeln!(
        out,
        "of it {} in {pools} of captured graphs or of the program's own; live: {}",
        rounded(u128::from(bytes)),
        sum(live)
    )
}

/// In one line, if any holder shows a purpose.
fn write_purposes(purposes: &[Purpose], out: &mut dyn Write) -> io::Result<()> {
    if purposes.iter().all(|purpose| purpose.held_as.is_none()) {
        return Ok(());
    }
    let part = |Purpose { held_as, sum }: &Purpose| {
        let name = held_as.map_or("of no known purpose", |held| held.component().as_str());
        format!("{name} {} ({})", rounded(sum.size_bytes.into()), sum.blocks)
    };
    let parts: Vec<String> = purposes.iter().map(part).collect();
    writeln!(out, "By purpose, in brackets blocks: {}", parts.join(", "))
}

fn write_branches(branches: &[Branch], depth: usize, out: &mut dyn Write) -> io::Result<()> {
    for branch in branches {
        let alone = match branch.retained_bytes {
            0 => "  (shared)".to_owned(),
            bytes if bytes == branch.held.size_bytes => String::new(),
            bytes => format!("  ({} alone)", rounded(bytes.into())),
        };
        let bytes = rounded(branch.held.size_bytes.into());
        writeln!(out, "{:indent$}{bytes:>12}  {}{alone}", "", OneLine(&branch.name), indent = 2 * depth - 2)?;
        write_branches(&branch.children, depth + 1, out)?;
        if branch.left_out_bytes > 0 && !branch.children.is_empty() {
            let bytes = rounded(branch.left_out_bytes.into());
            writeln!(out, "{:indent$}{bytes:>12}  … smaller parts", "", indent = 2 * depth)?;
        }
    }
    Ok(())
}

fn write_groups(groups: &[Group], out: &mut dyn Write) -> io::Result<()> {
    for group in groups.iter().take(MAX_GROUPS) {
        writeln!(out, "\n{}{}", sum(group.sum), first_address(group))?;
        if let Some(place) = &group.allocated_at {
            writeln!(out, "  allocated at    {}", OneLine(place))?;
        }
        match group.state {
            State::Held => write_holders(&group.held_by, out)?,
            state => writeln!(out, "  {}", state_text(state))?,
        }
    }
    let more = groups.len().saturating_sub(MAX_GROUPS) as u64;
    if more > 0 {
        writeln!(out, "\n… and {} (see --json)", counted(more, "more group"))?;
    }
    Ok(())
}

/// Of a single block.
fn first_address(group: &Group) -> String {
    match group.addresses.as_slice() {
        [address] if group.sum.blocks == 1 => format!(" at {address:#x}"),
        _ => String::new(),
    }
}

fn write_holders(holders: &[Holder], out: &mut dyn Write) -> io::Result<()> {
    for (at, holder) in holders.iter().enumerate() {
        let what = match (holder.is_sure, at) {
            (false, _) => "perhaps held by",
            (true, 0) => "still held by",
            (true, _) => "and by",
        };
        writeln!(out, "  {what:<16}{}", OneLine(&holder.path))?;
    }
    Ok(())
}

/// Text for blocks without a named holder.
const fn state_text(state: State) -> &'static str {
    match state {
        State::Held => "held",
        State::Ring => "garbage not collected yet: only a ring of Python objects points at it; `gc.collect()` frees it",
        State::NoRoot => "nothing found: something points at it, but no path leads to a variable",
        State::Nothing => "nothing found: nothing in host memory points at it",
        State::Free => "free: the pool has it back",
        State::Waiting => "freed: another stream still uses it (`record_stream`), then the pool has it back",
        State::Changed => "nothing sure: what held it changed while it was read; ask again",
    }
}
