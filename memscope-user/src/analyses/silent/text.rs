//! Processes without any known memory, as text.

use std::io::{self, Write};

use super::Silent;

/// Processes that are named.
const NAMED: usize = 8;

/// Writes the processes with unknown memory.
pub(super) fn write(Silent { pids, left_out }: &Silent, out: &mut dyn Write) -> io::Result<()> {
    let named: Vec<String> = pids.iter().take(NAMED).map(u32::to_string).collect();
    let more = (pids.len() - named.len()) as u64 + left_out;
    let (processes, more) = match (pids.len(), more) {
        (1, _) => ("process", String::new()),
        (_, 0) => ("processes", String::new()),
        (_, more) => ("processes", format!(" and {more} more")),
    };
    writeln!(
        out,
        "No allocation or free of {processes} {}{more} was seen: what is held from before the attach is not known",
        named.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(pids: impl IntoIterator<Item = u32>, left_out: u64) -> String {
        let mut out = Vec::new();
        write(&Silent { pids: pids.into_iter().collect(), left_out }, &mut out).expect("memory takes everything");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn silent_processes_are_named() {
        let end = "was seen: what is held from before the attach is not known\n";
        assert_eq!(text([7], 0), format!("No allocation or free of process 7 {end}"));
        assert_eq!(text([7, 9], 0), format!("No allocation or free of processes 7, 9 {end}"));
        assert_eq!(
            text(1..=10, 5),
            format!("No allocation or free of processes 1, 2, 3, 4, 5, 6, 7, 8 and 7 more {end}")
        );
    }
}
