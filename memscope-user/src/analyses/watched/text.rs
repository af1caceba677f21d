//! What block watch found, as text.

use std::io::{self, Write};

use super::{Conclusion, PassedOperator, Watched, WatchedBlock, WatchedFree};

/// Writes what block watch found, process by process.
pub fn write(found: &[Watched], out: &mut dyn Write) -> io::Result<()> {
    found.iter().try_for_each(|found| process(found, out))
}

fn process(found: &Watched, out: &mut dyn Write) -> io::Result<()> {
    let Watched { pid, was_set_up, blocks, quiet_blocks, passed, operators, operators_left_out } = found;
    if !was_set_up {
        return writeln!(out, "process {pid}: no block was watched");
    }
    for watched in blocks {
        write!(out, "process {pid}: ")?;
        block(watched, out)?;
    }
    if *quiet_blocks > 0 {
        writeln!(out, "process {pid}: {quiet_blocks} more block(s), unchanged until they were freed")?;
    }
    if blocks.is_empty() {
        writeln!(out, "process {pid}: no operator began watching")?;
    }
    for sides in passed {
        writeln!(out, "process {pid}: {} side(s) of operators passed unseen: {}", sides.sides, sides.reason)?;
    }
    if !operators.is_empty() {
        let named =
            operators.iter().map(|PassedOperator { name, calls }| format!("`{}` ({calls})", name.escape_debug()));
        let named = named.collect::<Vec<_>>().join(", ");
        let more = if *operators_left_out > 0 { format!(" and {operators_left_out} more") } else { String::new() };
        writeln!(out, "process {pid}: operators that were not looked at: {named}{more}")?;
    }
    Ok(())
}

fn block(block: &WatchedBlock, out: &mut dyn Write) -> io::Result<()> {
    let WatchedBlock { name, output, addr, size_bytes, conclusion, looks, changes, .. } = block;
    let name = name.escape_debug();
    write!(out, "block `{name}` output {output} ({addr:#x}, {size_bytes} bytes): ")?;
    write!(out, "{}; {looks} look(s), {changes} change(s)", verdict(conclusion))?;
    if let Some(why) = &block.failed_because {
        write!(out, ", {} unread ({})", block.failed_looks, why.escape_debug())?;
    }
    if let Some(WatchedFree { function, tid }) = &block.freed {
        write!(out, "; freed by {function} (thread {tid}), and not watched from there on")?;
    }
    writeln!(out)
}

fn verdict(conclusion: &Conclusion) -> String {
    let text = match conclusion {
        Conclusion::Changed { when } => return format!("first changed {when}"),
        Conclusion::NeverRead => "never read, so nothing is known of it",
        Conclusion::Undecided => "undecided: no change between the looks, but operators passed that were not looked at",
        Conclusion::UnchangedWhereRead => "no change between the looks that succeeded",
        Conclusion::UnchangedUntilFreed => "unchanged until it was freed",
        Conclusion::Unchanged => "unchanged",
    };
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::PassedSides;
    use super::*;

    #[test]
    fn watched_blocks_are_reported() {
        let unchanged = WatchedBlock {
            name: "kv\n".to_owned(),
            output: 1,
            addr: 0x1000,
            size_bytes: 64,
            conclusion: Conclusion::Unchanged,
            looks: 4,
            changes: 0,
            failed_looks: 0,
            failed_because: None,
            freed: None,
        };
        let changed = WatchedBlock {
            name: "w".to_owned(),
            conclusion: Conclusion::Changed { when: "during `add` (call 2, thread 7)".to_owned() },
            changes: 1,
            failed_looks: 2,
            failed_because: Some("why".to_owned()),
            freed: Some(WatchedFree { function: "halMemFree".to_owned(), tid: 8 }),
            ..unchanged.clone()
        };
        let none = Watched {
            pid: 5,
            was_set_up: false,
            blocks: Vec::new(),
            quiet_blocks: 0,
            passed: Vec::new(),
            operators: Vec::new(),
            operators_left_out: 0,
        };
        let found = Watched {
            pid: 6,
            was_set_up: true,
            blocks: vec![unchanged, changed],
            quiet_blocks: 3,
            passed: vec![PassedSides { sides: 9, reason: "too many threads at once" }],
            operators: vec![PassedOperator { name: "mul".to_owned(), calls: 2 }],
            operators_left_out: 1,
        };
        let mut text = Vec::new();
        write(&[none, found], &mut text).expect("memory");
        assert_eq!(
            String::from_utf8_lossy(&text),
            "process 5: no block was watched\n\
             process 6: block `kv\\n` output 1 (0x1000, 64 bytes): unchanged; 4 look(s), 0 change(s)\n\
             process 6: block `w` output 1 (0x1000, 64 bytes): first changed during `add` (call 2, thread 7); \
             4 look(s), 1 change(s), 2 unread (why); freed by halMemFree (thread 8), and not watched from there on\n\
             process 6: 3 more block(s), unchanged until they were freed\n\
             process 6: 9 side(s) of operators passed unseen: too many threads at once\n\
             process 6: operators that were not looked at: `mul` (2) and 1 more\n"
        );
    }
}
