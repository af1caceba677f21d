//! The judged span, as text.

use std::io::{self, Write};

use super::{Exit, ExitCall, Span};
use crate::text::clock::Clock;
use crate::text::numbers::{counted, size};

/// Writes up to when leaks and growth are judged, and what shows that.
pub(super) fn write(span: &Span, clock: Clock, out: &mut dyn Write) -> io::Result<()> {
    let Exit { freed_blocks, freed_bytes, .. } = span.exit;
    let signs = signs(span.exit);
    writeln!(
        out,
        "The run is judged from {} to {}. There the exit begins ({signs}): {}, {}, freed in it count as held.",
        clock.since_start(span.start_ns),
        clock.exact(span.until_ns),
        counted(freed_blocks, "block"),
        size(freed_bytes)
    )
}

/// What shows the exit.
fn signs(Exit { finalized, called, ended, .. }: Exit) -> String {
    let calls = called.map(ExitCall::name).into_iter().chain(finalized.then_some("aclFinalize"));
    let calls = calls.collect::<Vec<_>>().join(", ");
    match (calls.is_empty(), ended) {
        (false, true) => format!("{calls} and the end of the process, with no work before"),
        (false, false) => format!("{calls}, with no work behind"),
        (true, _) => "the process ended, with no work before".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_are_shown() {
        let exit = Exit { finalized: true, called: None, ended: true, freed_blocks: 1, freed_bytes: 2048 };
        let span = |exit| Span { pid: 1, start_ns: 5_000_000_000, until_ns: 46_200_000_000, exit, freed: Vec::new() };
        let text = |exit| {
            let mut out = Vec::new();
            write(&span(exit), Clock::since(5_000_000_000), &mut out).expect("memory takes everything");
            String::from_utf8(out).expect("text")
        };
        let whole = text(exit);
        let (begin, rest) = whole.split_once(" (").expect("the wall clock");
        let (wall, rest) = rest.split_once("). ").expect("an end");
        assert_eq!(begin, "The run is judged from 0s to 41.2s");
        let wall: jiff::Timestamp = wall.parse().expect("a time");
        assert_eq!(wall.as_nanosecond(), 46_200_000_000);
        assert_eq!(
            rest,
            "There the exit begins (aclFinalize and the end of the process, with no work before): 1 block, 2.00 KiB (2048 bytes), \
             freed in it count as held.\n"
        );
        assert!(text(Exit { finalized: false, ..exit }).contains("(the process ended, with no work before)"));
        assert!(text(Exit { ended: false, ..exit }).contains("(aclFinalize, with no work behind)"));
        let all = text(Exit { called: Some(ExitCall::PyFinalize), ..exit });
        assert!(all.contains("(Py_FinalizeEx, aclFinalize and the end of the process, with no work before)"), "{all}");
    }
}
