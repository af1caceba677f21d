//! The agent over a source with figures of the test.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use tokio::{sync::oneshot, task::LocalSet};

use super::*;
use crate::{
    agent::{
        books::Books,
        books::Known,
        otlp::receiver::Receiver,
        reader::PoolReading,
        series::{Series, SeriesKey},
        source::Spent,
    },
    analyses::script::Script,
    backend::ascend::pools,
    model::{Device, Event, EventKind, ProcessStart},
    session::PoolSums,
};

/// A source without a trace.
#[derive(Default)]
struct Said {
    account: RefCell<Account>,
    spent: Cell<Spent>,
    left: RefCell<Vec<u32>>,
    reduced: RefCell<Vec<u32>>,
    restored: RefCell<Vec<u32>>,
    levels: RefCell<Vec<Level>>,
    asked: RefCell<Vec<Vec<u32>>>,
    readings: RefCell<Vec<PoolReading>>,
}

impl Source for Said {
    fn join(&self, _: u32) -> oneshot::Receiver<Result<(), String>> {
        oneshot::channel().1
    }

    fn leave(&self, pid: u32) {
        self.left.borrow_mut().push(pid);
    }

    fn reduce(&self, pid: u32) {
        self.reduced.borrow_mut().push(pid);
    }

    fn restore(&self, pid: u32) {
        self.restored.borrow_mut().push(pid);
    }

    fn set_level(&self, level: Level) {
        self.levels.borrow_mut().push(level);
    }

    fn minute(&self, _: u32) {}

    fn end_minute(&self) {}

    fn account(&self) -> Account {
        self.account.borrow().clone()
    }

    fn spent(&self) -> Spent {
        self.spent.get()
    }

    fn read_pools(&self, pids: Vec<u32>) {
        self.asked.borrow_mut().push(pids);
    }

    fn take_readings(&self) -> Vec<PoolReading> {
        self.readings.take()
    }

    fn has_ended(&self) -> bool {
        false
    }

    fn end(&mut self) -> Result<(), String> {
        Ok(())
    }
}

fn node(config: Config) -> Node<Said> {
    Node::new(config, Said::default(), Pages::default(), Feed::default(), Speaker::new(Arc::new(())))
}

/// This process and its parent exist, whatever else does: rules can be asked about them.
fn living() -> [u32; 2] {
    [std::process::id(), std::os::unix::process::parent_id()]
}

/// As many as are allowed at once join, also in one look.
#[test]
fn processes_beyond_the_limit_are_refused() {
    for (max_processes, joining, refused) in [(2, 2, 0), (1, 1, 1), (0, 0, 2)] {
        let mut config = Config::default();
        config.discovery.max_processes = max_processes;
        let mut node = node(config);
        assert_eq!(node.choose(living().into_iter(), Instant::now()).len(), joining);
        assert_eq!((node.targets.len(), node.refused), (joining, refused), "{max_processes}");
    }
}

fn events(node: &Node<Said>, counts: &[(u32, u64)]) {
    let mut account = node.source.account.borrow_mut();
    for (pid, events) in counts {
        account.processes.entry(*pid).or_default().events += events;
        account.events += events;
    }
}

fn value(node: &Node<Said>, line: &str) -> Option<String> {
    let page = node.pages.text();
    page.lines().find_map(|of_page| of_page.strip_prefix(line)?.strip_prefix(' ').map(str::to_owned))
}

const SECOND: Duration = Duration::from_secs(1);

/// After two pages, the second one 10 s after the first: a thousand events a second are allowed, and the first process had one more.
fn flooded([first, second]: [u32; 2], start: Instant) -> Node<Said> {
    let mut config = Config::default();
    config.budget.events_per_process = 1000;
    config.budget.cores = 1000.0;
    let mut node = node(config);
    events(&node, &[(first, 10), (second, 10)]);
    node.page(start);
    events(&node, &[(first, 10_001), (second, 9_999)]);
    node.page(start + SECOND * 10);
    node
}

/// Two pages more, the last one 30 s after the first: what is left of the first process floods, too. The page between has its last events of
/// pools.
fn flooded_without_pools([first, second]: [u32; 2], start: Instant) -> Node<Said> {
    let mut node = flooded([first, second], start);
    for seconds in [20, 30] {
        node.source.account.borrow_mut().processes.entry(first).or_default().reductions = 1;
        events(&node, &[(first, 10_001), (second, 9_999)]);
        node.page(start + SECOND * seconds);
    }
    node
}

fn targets(node: &Node<Said>) -> [Option<u64>; 4] {
    ["traced", "reduced", "left_out", "refused"].map(|state| {
        let count = value(node, &format!("memscope_targets{{state=\"{state}\"}}"));
        count.and_then(|count| count.parse().ok())
    })
}

/// A process with more events than one may have loses those of its pools; the other one keeps all of its, and the level stays. It is traced whole
/// again after ten minutes.
#[test]
fn flooding_process_loses_its_pools() {
    let [own, parent] = living();
    let start = Instant::now();
    let mut node = flooded([own, parent], start);
    assert_eq!((node.source.reduced.take(), node.source.left.take()), (vec![own], vec![]));
    assert!(node.source.levels.borrow().is_empty());
    assert_eq!(targets(&node), [Some(1), Some(1), Some(0), Some(0)]);
    assert_eq!(value(&node, "memscope_agent_level").as_deref(), Some("0"));
    let of = |node: &Node<Said>| -> Vec<_> {
        node.status().processes.iter().map(|process| (process.pid, process.reduced, process.left_out)).collect()
    };
    let mut expected = vec![(own, true, false), (parent, false, false)];
    expected.sort_unstable();
    assert_eq!(of(&node), expected);
    node.page(start + SECOND * 609);
    assert!(node.source.restored.borrow().is_empty());
    node.page(start + SECOND * 611);
    assert_eq!((node.source.restored.take(), node.source.left.take()), (vec![own], vec![]));
    node.page(start + SECOND * 620);
    assert_eq!(targets(&node), [Some(2), Some(0), Some(0), Some(0)]);
}

/// One that floods without its pools, too, is left out; what it did before it lost them does not count, for half a minute at most.
#[test]
fn flooding_process_is_left_out_alone() {
    let [own, parent] = living();
    let node = flooded_without_pools([own, parent], Instant::now());
    assert_eq!((node.source.reduced.take(), node.source.left.take()), (vec![own], vec![own]));
    assert!(node.source.levels.borrow().is_empty());
    assert_eq!(targets(&node), [Some(1), Some(0), Some(1), Some(0)]);
    let start = Instant::now();
    let mut node = flooded([own, parent], start);
    for seconds in [20, 30, 40, 50] {
        assert!(node.source.left.borrow().is_empty(), "{seconds}");
        events(&node, &[(own, 10_001)]);
        node.page(start + SECOND * seconds);
    }
    // The account of 41 s and later does not wait for the event.
    events(&node, &[(own, 10_001)]);
    node.page(start + SECOND * 60);
    assert_eq!(*node.source.left.borrow(), [own]);
}

/// A trace that was behind and catches up has the events of a minute in ten seconds: they are no flood. One that is left out is so once, whatever
/// is still on its way.
#[test]
fn flood_is_of_the_time_of_its_events() {
    let [own, parent] = living();
    let start = Instant::now();
    let minute_ns = 60_000_000_000;
    let page = |node: &mut Node<Said>, seconds, newest_ns, count| {
        node.source.account.borrow_mut().newest_ns = newest_ns;
        events(node, &[(own, count)]);
        node.page(start + SECOND * seconds);
    };
    let mut node = flooded([own, parent], start);
    node.source.account.borrow_mut().processes.entry(own).or_default().reductions = 1;
    page(&mut node, 20, minute_ns, 10_001);
    page(&mut node, 30, minute_ns * 2, 60_000);
    assert!(node.source.left.borrow().is_empty(), "a thousand events in each of 60 s");
    page(&mut node, 40, minute_ns * 3, 60_001);
    assert_eq!(*node.source.left.borrow(), [own]);
    page(&mut node, 50, minute_ns * 3, 60_001);
    assert_eq!(*node.source.left.borrow(), [own]);
    assert_eq!(targets(&node), [Some(1), Some(0), Some(1), Some(0)]);
}

/// The pool of a process that is traced without it is on the page by what was read, beside what is traced of it; what it held at a failed
/// request, too.
#[test]
fn pools_of_reduced_processes_are_read() {
    let [own, parent] = living();
    let start = Instant::now();
    let mut node = flooded([own, parent], start);
    let mut script = Script::new(own, Device::Npu(0));
    script.alloc(pools::HAL, 0x1000, 1 << 20).alloc_failed(pools::HAL, 1 << 40, (1, 1)).alloc(pools::PTA, 0x1000, 5);
    script.failed_for_good(pools::HAL, 1 << 40, (1, 1));
    let mut books = Books::default();
    let start_of = ProcessStart { parent: 0, attached: true, command: "server".into(), pid_within: None };
    books.observe(&Event { kind: EventKind::ProcessStart(start_of), ..script.events()[0].clone() });
    script.events().iter().for_each(|event| books.observe(event));
    let Account { series, mut bundles, .. } = books.take();
    // The last page that has the pool as it was traced.
    node.source.account.borrow_mut().series = series;
    let sums = PoolSums {
        device: Device::Npu(0),
        pool: pools::PTA,
        used_bytes: 700,
        reserved_bytes: 4096,
        live_blocks: 3,
        live_bytes: 690,
    };
    *node.source.readings.borrow_mut() = vec![PoolReading { pid: own, pools: Ok(vec![sums]) }];
    let live = |node: &Node<Said>| {
        ["hal", "pta"].map(|pool| {
            let page = node.pages.text();
            let mut lines = page.lines().filter(|line| line.starts_with("memscope_memory_live_bytes{"));
            let line = lines.find(|line| line.contains(&format!("pool=\"{pool}\"")))?;
            line.rsplit(' ').next()?.parse::<u64>().ok()
        })
    };
    node.page(start + SECOND * 20);
    assert_eq!(live(&node), [Some(1 << 20), Some(5)]);
    node.source.account.borrow_mut().series.retain(|(key, _)| key.pool == pools::HAL);
    node.page(start + SECOND * 30);
    assert_eq!(live(&node), [Some(1 << 20), Some(690)]);
    // In the minute in which it lost its pool, that has the rows of when it was traced.
    let minute = node.minute as u32;
    let rows = |ended| -> Vec<_> {
        let (rows, targets) = node.aside.minute_rows(ended);
        assert_eq!(targets.len(), rows.len());
        rows.iter().map(|row| (row.key.pid, row.key.pool, row.live_bytes, row.reserved_bytes)).collect()
    };
    assert_eq!((rows(minute - 1), rows(minute + 1)), (vec![], vec![(own, pools::PTA, 690, Some(4096))]));
    node.aside.complete(&mut bundles, start + SECOND * 31);
    let of_bundle: Vec<_> =
        bundles[0].pools.iter().map(|pool| (pool.pool, pool.live_bytes, pool.read_time_ns.is_some())).collect();
    assert_eq!(of_bundle, [(pools::HAL, 1 << 20, false), (pools::PTA, 690, true)]);
}

/// What a process holds that is left out is on the page by what was read of its pool, beside what is traced: sums and no ages, and the last
/// ones where a reading fails. It is asked for with each page.
#[test]
fn processes_left_out_are_read() {
    let [own, parent] = living();
    let start = Instant::now();
    let mut node = flooded_without_pools([own, parent], start);
    assert_eq!(node.source.asked.take(), [vec![], vec![own], vec![own], vec![own]]);
    // The engine has forgotten it meanwhile.
    node.source.account.borrow_mut().processes.remove(&own);
    let sums = |device| PoolSums {
        device: Device::Npu(device),
        pool: pools::PTA,
        used_bytes: 700 + u64::from(device),
        reserved_bytes: 4096,
        live_blocks: 3,
        live_bytes: 690,
    };
    *node.source.readings.borrow_mut() = vec![
        PoolReading { pid: own, pools: Ok(vec![sums(0), sums(5)]) },
        // It has joined once more.
        PoolReading { pid: parent, pools: Ok(vec![sums(1)]) },
    ];
    node.page(start + SECOND * 40);
    *node.source.readings.borrow_mut() = vec![PoolReading { pid: own, pools: Err("it changed".to_owned()) }];
    node.page(start + SECOND * 50);
    let page = node.pages.text();
    let of_device = |family: &str, id: u32| {
        let label = format!(",id=\"{id}\",layer=\"pool\",pool=\"pta\"");
        let mut lines = page.lines().filter(|line| line.starts_with(&format!("{family}{{")) && line.contains(&label));
        lines.next().and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
    };
    let families = ["live_bytes", "live_blocks", "untracked_bytes", "live_older_bytes"];
    let memory = |id| families.map(|family| of_device(&format!("memscope_memory_{family}"), id));
    assert_eq!(memory(0), [Some(690), Some(3), Some(700), None]);
    assert_eq!(memory(5), [Some(690), Some(3), Some(705), None]);
    assert_eq!(memory(1), [None; 4]);
    let pool = ["reserved", "allocated"].map(|family| of_device(&format!("memscope_pool_{family}_bytes"), 5));
    assert_eq!(pool, [Some(4096), Some(705)]);
    let count = |line: &str| value(&node, line).and_then(|count| count.parse::<u64>().ok());
    let readings =
        ["ok", "error"].map(|result| count(&format!("memscope_agent_pool_readings_total{{result=\"{result}\"}}")));
    assert_eq!(readings, [Some(2), Some(1)]);
    // Read at 40 s, on the page of 50 s.
    assert_eq!(value(&node, "memscope_agent_pool_reading_age_seconds").as_deref(), Some("10"));
    assert_eq!(targets(&node), [Some(1), Some(0), Some(1), Some(0)]);
    let status = node.status();
    let processes: Vec<_> = status.processes.iter().map(|process| (process.pid, process.left_out)).collect();
    let mut expected = vec![(own, true), (parent, false)];
    expected.sort_unstable();
    assert_eq!(processes, expected);
    // It may join after ten minutes, and is read no more.
    node.page(start + SECOND * 631);
    node.page(start + SECOND * 640);
    assert!(!node.pages.text().contains("memscope_pool_reserved_bytes{"), "{}", node.pages.text());
    assert_eq!(node.source.asked.take().pop(), Some(vec![]));
}

/// Lost records take the level down, with their reason on the page; the busiest process loses its pools at level 3, all leave at level 4.
#[test]
fn loss_takes_the_level_down() {
    let mut config = Config::default();
    config.budget.cores = 1000.0;
    let mut node = node(config);
    let [own, parent] = living();
    let start = Instant::now();
    events(&node, &[(own, 1), (parent, 1)]);
    node.page(start);
    for minute in 1..=4_u32 {
        events(&node, &[(own, 100), (parent, 50)]);
        node.source.spent.set(Spent { lost: u64::from(minute) * 50, programs: None });
        node.page(start + SECOND * 60 * minute);
    }
    let levels = [Level::NoPython, Level::NoStacks, Level::NoBusy, Level::Detached];
    assert_eq!(*node.source.levels.borrow(), levels);
    let mut left = node.source.left.take();
    left.sort_unstable();
    let mut expected = vec![own, parent];
    expected.sort_unstable();
    assert_eq!((left, node.source.reduced.take()), (expected, vec![own]));
    assert_eq!(value(&node, "memscope_agent_level").as_deref(), Some("4"));
    assert_eq!(value(&node, "memscope_agent_level_changes_total{reason=\"loss\"}").as_deref(), Some("4"));
    assert_eq!(value(&node, "memscope_agent_level_changes_total{reason=\"cpu\"}").as_deref(), Some("0"));
    assert_eq!(value(&node, "memscope_events_lost_total{reason=\"ring_full\"}").as_deref(), Some("200"));
    assert!(node.look(start).is_empty(), "nothing joins while all is left out");
    assert_eq!(node.status().changes.len(), 4);
}

/// More series than the page may have: those of single processes go first, the agent's own never; what is missing is counted.
#[test]
fn page_is_bounded() {
    let mut config = Config::default();
    config.metrics.max_series = 200;
    let mut node = node(config);
    {
        let mut account = node.source.account.borrow_mut();
        let [own, _] = living();
        account.processes.insert(own, Known::default());
        account.series = (0..300)
            .map(|number| (SeriesKey { pid: own, device: Device::Npu(number), pool: pools::HAL }, Series::default()))
            .collect();
    }
    node.page(Instant::now());
    let page = node.pages.text();
    let series = page.lines().filter(|line| !line.starts_with('#')).count();
    assert!(series <= 200, "{series}");
    assert!(series > 150, "{series}");
    assert!(!page.contains("memscope_process_"), "{page}");
    assert!(value(&node, "memscope_agent_level").is_some());
    node.page(Instant::now());
    let dropped = value(&node, "memscope_agent_series_dropped_total").and_then(|dropped| dropped.parse::<u64>().ok());
    assert!(dropped > Some(300), "{dropped:?}");
}

/// A child that the rules exclude leaves the trace.
#[test]
fn excluded_children_leave() {
    let mut config = Config::default();
    config.rules.otherwise = Action::Exclude;
    let mut node = node(config);
    let [own, parent] = living();
    events(&node, &[(own, 1), (parent, 1)]);
    node.page(Instant::now());
    let mut left = node.source.left.borrow().clone();
    left.sort_unstable();
    let mut expected = [own, parent];
    expected.sort_unstable();
    assert_eq!(left, expected);
    assert_eq!(value(&node, "memscope_targets{state=\"excluded\"}").as_deref(), Some("2"));
}

/// A receiver gets what the page says, when it is time and at the end, and each event as a record.
#[test]
fn receiver_gets_pages_and_events() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let test = async {
        let receiver = Receiver::default();
        let mut config = Config::default();
        config.budget.cores = 1000.0;
        config.otlp.endpoint = format!("http://{}", receiver.listen().await);
        let speaker = Speaker::new(Arc::new(()));
        let (feed, sending) = otlp::start(&config.otlp, &speaker).expect("started");
        let mut node = Node::new(config, Said::default(), Pages::default(), feed, speaker);
        let [own, _] = living();
        let start = Instant::now();
        events(&node, &[(own, 3)]);
        node.page(start);
        events(&node, &[(own, 4)]);
        node.source.spent.set(Spent { lost: 50, programs: None });
        node.page(start + SECOND * 50);
        events(&node, &[(own, 5)]);
        node.page(start + Duration::from_millis(59_995));
        events(&node, &[(own, 6)]);
        node.finish(start + SECOND * 61);
        assert_eq!(value(&node, "memscope_events_total").as_deref(), Some("18"));
        assert_eq!(value(&node, "memscope_agent_otlp_dropped_total").as_deref(), Some("0"));
        sending.expect("a task").end().await;
        assert_eq!(receiver.values("memscope.events"), [Some(3.0), Some(12.0), Some(18.0)]);
        assert_eq!(receiver.values("memscope.agent.level"), [Some(0.0), Some(1.0), Some(1.0)]);
        assert_eq!(receiver.events(), ["memscope.level_changed"]);
    };
    LocalSet::new().block_on(&runtime, test);
}

/// What a process held is in files when the agent ends, and the page counts them; a directory that is missing does not hold the agent.
#[cfg(feature = "parquet")]
#[test]
fn evidence_is_written_at_the_end() {
    use crate::agent::{
        books::Books,
        evidence::minutes::{Changes, Minute, Minutes, PoolMinute},
    };

    let place = tempfile::tempdir().expect("a folder");
    for (directory, files) in [(place.path().to_owned(), 1), (place.path().join("missing"), 0)] {
        let mut config = Config::default();
        config.evidence.directory = directory.clone();
        let mut node = node(config);
        node.record().expect("a thread");
        let [own, _] = living();
        events(&node, &[(own, 1)]);
        let pool = PoolMinute {
            key: SeriesKey { pid: own, device: Device::Npu(0), pool: pools::HAL },
            live_bytes: 64,
            live_blocks: 1,
            used_bytes: None,
            reserved_bytes: None,
            active_bytes: None,
            untracked_bytes: 64,
            changes: Changes::default(),
            failures: 0,
        };
        let minute = Minute { minute: 28_400_040, is_over: true, pools: vec![pool], ..Minute::default() };
        node.source.account.borrow_mut().minutes = Minutes { ready: vec![minute], dropped_rows: 3 };
        node.finish(Instant::now());
        let hour = directory.join("v1/device_minute/date=2023-12-31/hour=06");
        assert_eq!(std::fs::read_dir(hour).into_iter().flatten().count(), files);
        assert_eq!(value(&node, "memscope_agent_evidence_dropped_rows_total").as_deref(), Some("3"));
        assert!(value(&node, "memscope_agent_evidence_files_total{result=\"ok\"}").is_some());
    }
    let mut without = node(Config::default());
    without.record().expect("nothing to start");
    without.page(Instant::now());
    assert_eq!(value(&without, "memscope_agent_evidence_rows_total"), None);
    assert_eq!(Books::default().take().minutes, Minutes::default());
}
