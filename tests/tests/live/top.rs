//! The live screen without a terminal, against the journal.

use memscope_tests::harness::expect::truth;
use memscope_tests::harness::tracer::{Target, Tracer};
use serde_json::Value;

use super::shared::pool_blocks;
use super::stat::{go, number, samples, wait_for_samples, waiting};

/// Blocks and bytes of all places, or owners, of a layer.
fn sum(list: &Value, pool: impl Fn(&Value) -> bool) -> [u64; 2] {
    let of_pool: Vec<&Value> = list.as_array().expect("a list").iter().filter(|it| pool(it)).collect();
    ["blocks", "live_bytes"].map(|key| of_pool.iter().map(|it| number(it, key)).sum())
}

/// In the last moment places and owners have each block that the journal says is live, by the driver and by the pool, and each place has
/// a stack.
#[test]
fn places_and_owners_agree_with_the_journal() {
    let arguments = [
        "--rounds",
        "4",
        "--blocks",
        "3",
        "--size",
        "30000000",
        "--leaks",
        "2",
        "--leak-size",
        "200000",
        "--workspaces",
        "0",
    ];
    let mut target = waiting("pool", &arguments);
    let pid = target.pid();
    let running = Tracer::top(pid).options(&["--json", "--interval", "200ms"]).start();
    wait_for_samples(&running, 1);
    go(&target);
    assert!(target.wait().success());
    let last = samples(&running.finish()).pop().expect("samples");
    let journal = target.folder.journal();
    let entries = &journal.by_process()[&pid];
    let held = truth(entries, false).held;
    let driver = [held.len() as u64, held.iter().map(|block| block.size).sum()];
    let live = pool_blocks(entries);
    let pool = [live.len() as u64, live.values().sum()];
    assert!(driver[0] > 0 && pool[0] > 0, "{driver:?} {pool:?}");
    assert_eq!(sum(&last["places"], |it| it["site"]["pool"] == "HAL"), driver, "{last:#}");
    assert_eq!(sum(&last["places"], |it| it["site"]["pool"] == "PTA"), pool, "{last:#}");
    assert_eq!(sum(&last["owners"], |it| it["pool"] == "HAL"), driver, "{last:#}");
    assert_eq!(sum(&last["owners"], |it| it["pool"] == "PTA"), pool, "{last:#}");
    let places = last["places"].as_array().expect("places");
    assert!(places.iter().all(|it| !it["site"]["stacks"]["native"].is_null()), "{last:#}");
}

/// One look: one object, or one text; without a terminal the screen is refused with a way out.
#[test]
fn once() {
    let target = Target::serve(&["--rate", "200", "--hold", "3"]);
    let pid = target.pid();
    let run = Tracer::top(pid).options(&["--once", "--json", "--interval", "500ms"]).finish();
    let [moment] = &samples(&run)[..] else { panic!("one sample: {}", run.said()) };
    assert_eq!((&moment["schema"], &moment["names"][0]["pid"]), (&"memscope/top/1".into(), &pid.into()));
    let run = Tracer::top(pid).options(&["--once", "--interval", "500ms", "--no-stacks"]).finish();
    let first = run.stdout.lines().next().unwrap_or_default();
    assert!(first.contains(&format!("(pid {pid})")) && run.stdout.contains("PLACE"), "{}", run.said());
    assert!(run.stdout.lines().all(|line| line.chars().count() <= 100), "{}", run.said());
    let run = Tracer::top(pid).finish();
    assert_eq!(run.code(), 2, "{}", run.said());
    assert!(run.stderr.contains("top needs a terminal: use --once"), "{}", run.said());
    target.assert_unharmed();
}
