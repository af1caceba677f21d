use super::*;
use crate::analyses::script::{Script, run};
use crate::analyses::table::Cell;
use crate::backend::ascend::pools;

const NPU0: Device = Device::Npu(0);
const S: u64 = 1_000_000_000;

/// Events at these times instead of 0, 1, 2 ns.
fn at_times(script: &Script, times_ns: &[u64]) -> Vec<Event> {
    let time = |number: u64| times_ns[number as usize];
    let moved = |event: &Event| {
        let mut event = Event { time_ns: time(event.time_ns), ..event.clone() };
        match &mut event.kind {
            EventKind::Alloc(alloc) => alloc.block.alloc_time_ns = time(alloc.block.alloc_time_ns),
            EventKind::Free(free) => free.block.alloc_time_ns = time(free.block.alloc_time_ns),
            _ => {}
        }
        event
    };
    script.events().iter().map(moved).collect()
}

fn found(events: &[Event]) -> Vec<Lifetimes> {
    let found = run(LifetimesAnalysis::default(), events, &RunEnd::default());
    let of = |finding| if let Finding::Lifetimes(found) = finding { found } else { panic!("{finding:?}") };
    found.into_iter().map(of).collect()
}

fn bars(freed: &[(usize, u64)]) -> [u64; 9] {
    let mut bars = [0; 9];
    for (bar, blocks) in freed {
        bars[*bar] = *blocks;
    }
    bars
}

/// A block of 512 bytes for 9999 ns and one for 10 µs, one of 600 for 2 s, one of 4096 until the end, and a driver block
/// for 200 s.
fn five() -> Vec<Event> {
    let mut script = Script::new(7, NPU0);
    script.stacks(&["a.py(1): f"], &[]).alloc(pools::PTA, 0x1000, 512).free(pools::PTA, 0x1000);
    script.alloc(pools::PTA, 0x1000, 512).free(pools::PTA, 0x1000);
    script.stacks(&["b.py(2): g"], &[]).alloc(pools::PTA, 0x2000, 600).free(pools::PTA, 0x2000);
    script.stacks(&[], &[]).alloc(pools::PTA, 0x3000, 4096);
    script.alloc(pools::HAL, 0x9000, 0).free(pools::HAL, 0x9000);
    at_times(&script, &[0, 9_999, 20_000, 30_000, S, 3 * S, 4 * S, 5 * S, 205 * S])
}

#[test]
fn lifetimes_by_size_and_place() {
    let found = found(&five());
    let [driver, pool] = &found[..] else { panic!("{found:#?}") };
    assert_eq!((driver.pool, driver.all.blocks, driver.all.freed), (pools::HAL, 1, bars(&[(8, 1)])));
    assert_eq!((driver.sizes[0].least_bytes, driver.places.len()), (0, 0));

    let freed = bars(&[(0, 1), (1, 1), (6, 1)]);
    assert_eq!(pool.all, Histogram { blocks: 4, freed, unseen_ends: 0, live_blocks: 1 });
    let sizes: Vec<_> = pool.sizes.iter().map(|it| (it.least_bytes, it.histogram)).collect();
    let small = Histogram { blocks: 3, freed, unseen_ends: 0, live_blocks: 0 };
    let large = Histogram { blocks: 1, live_blocks: 1, ..Histogram::default() };
    assert_eq!(sizes, [(512, small), (4096, large)]);
    let places: Vec<_> =
        pool.places.iter().map(|it| (it.stacks.best().map(|s| s.texts()[0]), it.histogram.freed)).collect();
    assert_eq!(places[0], (Some("a.py(1): f"), bars(&[(0, 1), (1, 1)])));
    assert_eq!(places.len(), 3);
    assert!(places.contains(&(Some("b.py(2): g"), bars(&[(6, 1)]))) && places.contains(&(None, bars(&[]))));
}

/// A refused free is none, an unseen end has no lifetime, and blocks that end with the process were live.
#[test]
fn ends_differ() {
    let mut script = Script::new(7, NPU0);
    script.alloc(pools::PTA, 0x1000, 1).free(pools::PTA, 0x1000).restore(pools::PTA, 0x1000);
    script.alloc(pools::PTA, 0x2000, 1).end(FreeCause::Replaced, pools::PTA, 0x2000).alloc(pools::PTA, 0x2000, 1);
    script.end(FreeCause::ProcessEnd, pools::PTA, 0x1000).end(FreeCause::ProcessEnd, pools::PTA, 0x2000).process_end();
    script.alloc(pools::PTA, 0x1000, 1);
    let found = found(script.events());
    let all: Vec<Histogram> = found.iter().map(|found| found.all).collect();
    let first = Histogram { blocks: 3, freed: bars(&[]), unseen_ends: 1, live_blocks: 2 };
    assert_eq!(all, [first, Histogram { blocks: 1, live_blocks: 1, ..Histogram::default() }]);
}

#[test]
fn text_is_a_table() {
    let found = found(&five());
    let mut out = Vec::new();
    let pool = Lifetimes { attached: true, confidence: Confidence::Doubtful, ..found[1].clone() };
    text::write(&pool, &mut out).expect("memory takes everything");
    let text = String::from_utf8(out).expect("text");
    let expected = "\
Lifetimes of blocks of Pytorch Caching memory pool on device 0: 4 blocks, 1 live at the end; blocks from before the attach are not counted
     <10us  <100us    <1ms   <10ms  <100ms     <1s    <10s   <100s  longer    Live  Size of each block
         1       1       0       0       0       0       1       0       0       0  512 bytes to less than 1.00 KiB
         0       0       0       0       0       0       0       0       0       1  4.00 KiB to less than 8.00 KiB
         1       1       0       0       0       0       0       0       0       0  allocated at:
      a.py(1): f
";
    assert!(text.starts_with(expected), "{text}");
    assert!(text.contains("       0  allocated at:\n      b.py(2): g\n"), "{text}");
    assert!(text.contains("       1  without a call stack\n"), "{text}");
    assert!(
        text.ends_with("  Doubtful: events were lost, so blocks may be missing, or counted as live that had gone.\n")
    );
}

/// 9999 ns lie below 10 µs, 10 000 ns do not; what lives on has no lifetime.
#[test]
fn rows_are_bars() {
    let finding = Finding::Lifetimes(found(&five()).remove(1));
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    table::TABLE.fill(&finding, &mut |column, cell| {
        if column == 0 {
            rows.push(Vec::new());
        }
        rows.last_mut().expect("a row").push(cell);
    });
    let row = |least_bytes: u64, at_least_ns: Option<u64>, blocks: u64| {
        let head = [Cell::Unsigned(7), Cell::Text("0".to_owned()), Cell::Text("PTA".to_owned())];
        [&head[..], &[Cell::Unsigned(least_bytes), at_least_ns.into(), Cell::Unsigned(blocks)]].concat()
    };
    let second = Some(1_000_000_000);
    assert_eq!(rows, [row(512, Some(0), 1), row(512, Some(10_000), 1), row(512, second, 1), row(4096, None, 1)]);
}
