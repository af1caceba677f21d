//! All kinds of findings. A question is a folder, and a line here.

use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;

use super::answer::{Answer, Context, Kind, Registered, Report, Subject};
use super::concluded::LeftOut;
use super::question::Question;
use super::{
    by_stack, decompose, device_use, fluctuation, fragmentation, growth, held, held_by, inefficient, judged, ledger,
    lifetimes, mark_leaks, oom, peaks, settings, silent, sleep, step_leaks, waits, watched,
};
use crate::model::StepsFrom;

/// In the order of the report: name and type of a finding, the field `finding` in outputs for programs, and the
/// question with the word by which users ask for it.
macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident($kind:ty) = $tag:literal $(, asked as $question:expr)?;)*) => {
        /// A conclusion.
        #[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
        #[serde(tag = "finding")]
        pub enum Finding {
            $($(#[$doc])* #[serde(rename = $tag)] $name($kind),)*
            /// Number of findings that were dropped.
            #[serde(rename = "left_out")]
            LeftOut(LeftOut),
        }

        $(
            impl From<$kind> for Finding {
                fn from(found: $kind) -> Self {
                    Self::$name(found)
                }
            }

            impl Registered for $kind {}

            impl Kind for $kind {
                const KIND: &'static str = $tag;

                fn of(finding: &Finding) -> Option<&Self> {
                    if let Finding::$name(found) = finding { Some(found) } else { None }
                }
            }
        )*

        impl Finding {
            /// Its subject; `None` for dropped findings.
            #[must_use]
            pub fn subject(&self) -> Option<Subject> {
                match self {
                    $(Self::$name(found) => Some(found.subject()),)*
                    Self::LeftOut(_) => None,
                }
            }

            /// Sets the origin of the steps, where the finding is by step.
            pub(super) fn set_steps_from(&mut self, steps_from: StepsFrom) {
                match self {
                    $(Self::$name(found) => found.set_steps_from(steps_from),)*
                    Self::LeftOut(_) => {}
                }
            }
        }

        /// Questions that users ask by a word.
        pub(super) static QUESTIONS: &[Question] = &[$($($question,)?)*];

        /// Writes the findings about a process, kind by kind.
        pub(crate) fn write_process(context: &Context<'_>, out: &mut dyn Write) -> io::Result<()> {
            $(write_kind::<$kind>(context, out)?;)*
            Ok(())
        }

        /// Writes the end of the report, after the findings of all processes.
        pub(crate) fn write_end(findings: &[Finding], report: Report, out: &mut dyn Write) -> io::Result<()> {
            $(<$kind>::write_end(&of_kind(findings), report, out)?;)*
            Ok(())
        }
    };
}

kinds! {
    /// A request for memory failed.
    Oom(oom::Oom) = "oom", asked as oom::QUESTION;
    /// Leaks of steps.
    StepLeaks(step_leaks::StepLeaks) = "step_leaks", asked as step_leaks::QUESTION;
    /// Leaks between marks.
    MarkLeaks(mark_leaks::MarkLeaks) = "mark_leaks";
    /// Variation of use inside steps.
    Fluctuation(fluctuation::Fluctuation) = "fluctuation";
    /// When the program worked, if its exit was seen.
    Span(judged::Span) = "span";
    /// What keeps growing.
    Growth(growth::Growth) = "growth";
    /// Blocks held longer than they were used.
    Inefficient(inefficient::Inefficient) = "inefficient", asked as inefficient::QUESTION;
    /// Owners of the memory of a pool.
    Decompose(decompose::Decomposition) = "decompose", asked as decompose::QUESTION;
    /// Live memory at the peak.
    Peak(peaks::Peak) = "peak", asked as peaks::QUESTION;
    /// In what pieces memory is free.
    Fragmentation(fragmentation::Fragmentation) = "fragmentation", asked as fragmentation::QUESTION;
    /// What waits for streams.
    Waits(waits::Waits) = "waits", asked as waits::QUESTION;
    /// How long blocks live.
    Lifetimes(lifetimes::Lifetimes) = "lifetimes", asked as lifetimes::QUESTION;
    /// Memory still held at the end.
    Held(held::Held) = "held";
    /// What held the blocks of a living process.
    HeldBy(held_by::HeldBy) = "held_by";
    /// From where memory was allocated.
    ByStack(by_stack::ByStack) = "by_stack";
    /// Where the memory of a device is.
    Ledger(ledger::Ledger) = "ledger";
    /// What stays while a server sleeps.
    Sleeps(sleep::Sleeps) = "sleeps";
    /// Settings that a program was started with.
    Settings(settings::Settings) = "settings";
    /// Processes with unknown memory.
    Silent(silent::Silent) = "silent";
    /// The driver's figures of a device.
    DeviceUse(device_use::DeviceUse) = "device_use";
    /// What block watch found.
    Watched(watched::Watched) = "watched";
}

fn write_kind<T: Registered + 'static>(context: &Context<'_>, out: &mut dyn Write) -> io::Result<()> {
    let mut found: Vec<&T> = context.others().collect();
    found.sort_by_key(|found| found.order());
    T::write_all(&found, context, out)
}

fn of_kind<T: Registered>(findings: &[Finding]) -> Vec<&T> {
    findings.iter().filter_map(T::of).collect()
}
