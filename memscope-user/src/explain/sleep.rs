//! Rules about servers that sleep.

use super::advice;
use super::card::{About, Level, Rule};
use super::facts::{Out, Says, WORTH_BYTES, is_share, percent};
use crate::analyses::sleep::Sleeps;
use crate::text::numbers::{counted, rounded};

/// Memory that stays, in percent of the live memory before.
const STAYS_PERCENT: u64 = 10;
/// Fewest sleeps for a rise.
const RISING_SLEEPS: u64 = 3;

/// `sleep-expandable`.
pub(super) fn expandable(out: &mut Out<'_, '_>) {
    for sleeps in out.facts.sleeps() {
        match out.facts.in_force().has("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True") {
            None => out.cannot(Rule::SleepExpandable, "the settings of the program are not known"),
            Some(false) => {}
            Some(true) => out.say(
                Rule::SleepExpandable,
                Says {
                    device: sleeps.device,
                    level: Level::Warning,
                    text: format!(
                        "{} with expandable_segments:True: these two were reported not to work together; {} of {} stayed.",
                        counted(sleeps.sleeps, "sleep"),
                        rounded(sleeps.last_low_bytes.into()),
                        rounded(sleeps.before_bytes.into()),
                    ),
                    size_bytes: sleeps.last_low_bytes,
                    evidence: vec!["PYTORCH_NPU_ALLOC_CONF has expandable_segments:True at the start".to_owned()],
                    hints: &[advice::NOT_EXPANDABLE],
                    confidence: sleeps.confidence,
                    about: About::Asleep,
                },
            ),
        }
    }
}

/// `sleep-keeps`.
pub(super) fn keeps(out: &mut Out<'_, '_>) {
    for sleeps in out.facts.sleeps() {
        let &Sleeps { device, sleeps: count, before_bytes, first_low_bytes, last_low_bytes, confidence, .. } = sleeps;
        let rise = last_low_bytes.saturating_sub(first_low_bytes);
        let rises = count >= RISING_SLEEPS && rise >= WORTH_BYTES;
        let stays = last_low_bytes >= WORTH_BYTES && is_share(last_low_bytes, before_bytes, STAYS_PERCENT);
        if !rises && !stays {
            continue;
        }
        let text = format!(
            "{} of {} ({}) stayed in the last of {}.",
            rounded(last_low_bytes.into()),
            rounded(before_bytes.into()),
            percent(last_low_bytes, before_bytes),
            counted(count, "sleep"),
        );
        let each = rounded((rise / count.saturating_sub(1).max(1)).into());
        let evidence = vec![if rise > 0 {
            format!("{} in the first sleep: {each} more in each", rounded(first_low_bytes.into()))
        } else {
            format!("{} in the first sleep", rounded(first_low_bytes.into()))
        }];
        out.say(
            Rule::SleepKeeps,
            Says {
                device,
                level: Level::Warning,
                text,
                size_bytes: last_low_bytes,
                evidence,
                hints: &[advice::EMPTY_AFTER_SLEEP],
                confidence,
                about: About::Asleep,
            },
        );
    }
}
