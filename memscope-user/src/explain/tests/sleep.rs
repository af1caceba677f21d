//! Servers that sleep.

use super::*;
use crate::analyses::sleep::Sleeps;

fn sleeps(count: u64, before_bytes: u64, first: u64, last: u64) -> Finding {
    Sleeps {
        pid: PID,
        device: NPU0,
        sleeps: count,
        before_bytes,
        first_low_bytes: first,
        last_low_bytes: last,
        confidence: Confidence::Certain,
    }
    .into()
}

/// A tenth of 1000 MiB stays, or less; or the third sleep keeps 64 MiB more than the first.
#[test]
fn what_stays_while_a_server_sleeps() {
    let found = card(Rule::SleepKeeps, &[sleeps(1, 1000 * MIB, 100 * MIB, 100 * MIB)]).expect("a card");
    assert_eq!((found.level, found.size_bytes), (Level::Warning, 100 * MIB));
    assert_eq!(found.text, "100.00 MiB of 1000.00 MiB (10 %) stayed in the last of 1 sleep.");
    assert_eq!(rules(&[sleeps(1, 1000 * MIB, 100 * MIB, 100 * MIB - 1)]), []);
    let rising = card(Rule::SleepKeeps, &[sleeps(3, 64 * GIB, 500 * MIB, 980 * MIB)]).expect("a card");
    assert_eq!(rising.evidence, ["500.00 MiB in the first sleep: 240.00 MiB more in each"]);
    assert_eq!(rules(&[sleeps(2, 64 * GIB, 500 * MIB, 980 * MIB)]), []);
    assert_eq!(rules(&[sleeps(3, 64 * GIB, 500 * MIB, 564 * MIB - 1)]), []);
}

/// Sleep mode with expandable segments, as the program was started; without known settings there is no card.
#[test]
fn sleep_with_expandable_segments() {
    let of = |value| settings(&[("PYTORCH_NPU_ALLOC_CONF", value)]);
    let slept = sleeps(2, 1000 * MIB, 900 * MIB, 900 * MIB);
    // The more special one speaks.
    let both = [slept.clone(), of("expandable_segments:True")];
    assert_eq!(rules(&both), [Rule::SleepExpandable]);
    let found = card(Rule::SleepExpandable, &both).expect("a card");
    assert!(advice(&found)[0].ends_with("expandable_segments:False"), "{:?}", advice(&found));
    assert_eq!(rules(&[slept.clone(), of("expandable_segments:False")]), [Rule::SleepKeeps]);
    let explained = explain(&[slept], &end());
    assert!(explained.not_judged.iter().any(|it| it.rule == Rule::SleepExpandable), "{explained:?}");
}
