//! Why a process has not waited until its new libraries were probed.

use memscope_common::record::{
    WITHHELD_DEBUGGER, WITHHELD_JOB, WITHHELD_PARENT, WITHHELD_ROOM, WITHHELD_SILENT, WITHHELD_STOPPED, WITHHELD_USER,
};

/// A wait that did not take place, or ended before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GivenUp {
    /// The kernel side did not begin it: one of `WITHHELD_*`.
    Withheld(u32),
    /// A thread was held for the longest allowed time.
    TooLong,
}

impl GivenUp {
    const fn reason(self) -> &'static str {
        match self {
            Self::TooLong => "the tracer took too long, and the thread went on",
            Self::Withheld(WITHHELD_ROOM) => "too many threads are held",
            Self::Withheld(WITHHELD_USER) => "it is another user's, whom the tracer may not continue",
            Self::Withheld(WITHHELD_DEBUGGER) => "a debugger has it, which would see a stop",
            Self::Withheld(WITHHELD_JOB) => "it is under job control, where a stop would be seen",
            Self::Withheld(WITHHELD_STOPPED) => "another process has stopped it",
            Self::Withheld(WITHHELD_SILENT) => "the tracer has not answered the last time",
            Self::Withheld(WITHHELD_PARENT) => "its parent asks for SIGCHLD, which a stop would send",
            Self::Withheld(_) => "the kernel side gave up",
        }
    }

    /// The message for the user about a process.
    pub(super) fn text(self, pid: u32, command: &str) -> String {
        let reason = self.reason();
        // It may have ended.
        let command = if command.is_empty() { String::new() } else { format!(" ({command})") };
        format!(
            "process {pid}{command} did not wait until its new libraries were probed: {reason}; their first calls may be missed"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each reason has its own words, which fit the consequence.
    #[test]
    fn each_reason_has_its_words() {
        let all = (WITHHELD_ROOM..=WITHHELD_SILENT).map(GivenUp::Withheld).chain([GivenUp::TooLong]);
        let texts: std::collections::BTreeSet<String> = all.map(|why| why.text(7, "python3")).collect();
        assert_eq!(texts.len(), 8);
        assert!(GivenUp::TooLong.text(7, "").starts_with("process 7 did not wait"));
        for text in texts {
            assert!(text.starts_with("process 7 (python3) ") && text.ends_with("first calls may be missed"), "{text}");
        }
    }
}
