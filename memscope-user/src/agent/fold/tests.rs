use super::*;
use crate::{
    agent::books::Books,
    analyses::script::Script,
    backend::ascend::pools,
    model::{Event, EventKind, FreeCause, ProcessStart},
};

fn place(pod: &str) -> Target {
    let place = Where { namespace: "train".into(), pod_name: pod.into(), container_name: "main".into() };
    Target { place, ..Target::default() }
}

fn started(books: &mut Books, script: &Script) {
    let start = ProcessStart { parent: 0, attached: false, command: "a".into(), pid_within: None };
    books.observe(&Event { kind: EventKind::ProcessStart(start), ..script.events()[0].clone() });
    script.events().iter().for_each(|event| books.observe(event));
}

fn number(samples: &[Sample], family: &str, labels: &[(&str, &str)]) -> Option<u64> {
    let has = |sample: &Sample, (name, value): &(&str, &str)| {
        sample.labels.iter().any(|(known, is)| known == name && is == value)
    };
    let mut fitting =
        samples.iter().filter(|sample| sample.family == family && labels.iter().all(|label| has(sample, label)));
    let found = fitting.next()?;
    assert!(fitting.next().is_none(), "more than one {family} {labels:?}");
    match found.number {
        Number::Whole(number) => Some(number),
        _ => None,
    }
}

/// Two processes of one pod are one series; its counters do not fall when one of them ends, and what it held is live no more.
#[test]
fn containers_outlive_their_processes() {
    let device = Device::Npu(3);
    let mut books = Books::default();
    let mut one = Script::new(7, device);
    one.alloc(pools::HAL, 0x1000, 100).alloc(pools::HAL, 0x2000, 50).free(pools::HAL, 0x2000);
    let mut other = Script::new(8, device);
    other.alloc(pools::HAL, 0x1000, 1000);
    started(&mut books, &one);
    started(&mut books, &other);
    let targets = BTreeMap::from([(7, place("a")), (8, place("a"))]);
    let mut fold = Fold::default();
    let pod = [("pod_name", "a"), ("id", "3"), ("layer", "hal"), ("pool", "hal")];
    let read = |samples: &[Sample]| {
        ["memscope_memory_live_bytes", "memscope_allocated_bytes", "memscope_frees"]
            .map(|family| number(samples, family, &pod))
    };
    let samples = fold.samples(&books.take(), &targets, 0, true);
    assert_eq!(read(&samples), [Some(1100), Some(1150), Some(1)]);
    let of_process = |pid| number(&samples, "memscope_process_memory_bytes", &[("process_id", pid)]);
    assert_eq!((of_process("7"), of_process("8")), (Some(100), Some(1000)));
    let mut end = Script::new(8, device);
    end.alloc(pools::HAL, 0x9000, 1).end(FreeCause::ProcessEnd, pools::HAL, 0x9000).process_end();
    end.events().iter().for_each(|event| books.observe(event));
    for _ in 0..3 {
        let samples = fold.samples(&books.take(), &targets, 0, true);
        assert_eq!(read(&samples), [Some(100), Some(1151), Some(1)]);
    }
}

/// A process goes on without its pools: their counters stay, and what they held is live no more; once traced again they count on.
#[test]
fn pools_that_are_left_out_stay_counted() {
    let mut books = Books::default();
    let mut script = Script::new(7, Device::Npu(3));
    script.alloc(pools::HAL, 0x1000, 4096).alloc(pools::PTA, 0x1000, 100).alloc(pools::PTA, 0x1100, 20);
    script.free(pools::PTA, 0x1100).end(FreeCause::TraceEnd, pools::PTA, 0x1000).event(EventKind::PoolsLeftOut);
    started(&mut books, &script);
    let targets = BTreeMap::from([(7, place("a"))]);
    let mut fold = Fold::default();
    let mut read = |books: &mut Books, pool| {
        let samples = fold.samples(&books.take(), &targets, 0, true);
        ["memscope_memory_live_bytes", "memscope_allocated_bytes", "memscope_frees"]
            .map(|family| number(&samples, family, &[("pool", pool)]))
    };
    for _ in 0..3 {
        assert_eq!(read(&mut books, "pta"), [None, Some(120), Some(1)]);
        assert_eq!(read(&mut books, "hal"), [Some(4096), Some(4096), Some(0)]);
    }
    let mut again = Script::new(7, Device::Npu(3));
    again.alloc(pools::PTA, 0x2000, 7);
    again.events().iter().for_each(|event| books.observe(event));
    assert_eq!(read(&mut books, "pta"), [Some(7), Some(127), Some(1)]);
}

/// A pod that is gone is forgotten, after a while.
#[test]
fn empty_containers_are_forgotten() {
    let mut books = Books::default();
    let mut script = Script::new(7, Device::Npu(0));
    script.alloc(pools::HAL, 0x1000, 100).end(FreeCause::ProcessEnd, pools::HAL, 0x1000).process_end();
    started(&mut books, &script);
    let mut fold = Fold::default();
    let targets = BTreeMap::from([(7, place("a"))]);
    let mut pages = 0;
    while number(&fold.samples(&books.take(), &targets, 0, true), "memscope_allocations", &[]).is_some() {
        pages += 1;
    }
    assert_eq!(pages, PAGES_KEPT + 1);
}

/// Counts begin with the agent, or with the last page that had none of them; also those that are back after they were forgotten.
#[test]
fn counts_have_a_start() {
    let mut script = Script::new(7, Device::Npu(0));
    script.alloc(pools::HAL, 0x1000, 100);
    let (mut books, mut fold) = (Books::default(), Fold::default());
    started(&mut books, &script);
    let targets = BTreeMap::from([(7, place("a")), (8, place("b"))]);
    let start = |samples: &[Sample], pod: &str| {
        let is_of = |sample: &&Sample| sample.labels.iter().any(|(_, value)| value == pod);
        samples.iter().filter(is_of).find(|sample| sample.family == "memscope_allocations").map(|it| it.start_ns)
    };
    let samples = fold.samples(&books.take(), &targets, 1_000, true);
    assert_eq!((start(&samples, "a"), start(&samples, "b")), (Some(None), None));
    let mut other = Script::new(8, Device::Npu(0));
    other.alloc(pools::HAL, 0x1000, 1).end(FreeCause::ProcessEnd, pools::HAL, 0x1000).process_end();
    started(&mut books, &other);
    for now_ns in 2_000..2_000 + u64::from(PAGES_KEPT) {
        let samples = fold.samples(&books.take(), &targets, now_ns, true);
        assert_eq!((start(&samples, "a"), start(&samples, "b")), (Some(None), Some(Some(1_000))));
    }
    for now_ns in [3_000, 4_000] {
        fold.samples(&books.take(), &targets, now_ns, true);
    }
    started(&mut books, &other);
    let samples = fold.samples(&books.take(), &targets, 5_000, true);
    assert_eq!((start(&samples, "a"), start(&samples, "b")), (Some(None), Some(Some(4_000))));
    // The clock is set back: they begin then, and once.
    for now_ns in [2_500, 2_600] {
        let samples = fold.samples(&books.take(), &targets, now_ns, true);
        assert_eq!((start(&samples, "a"), start(&samples, "b")), (Some(None), Some(Some(2_500))));
    }
}

/// Layers have their labels; names of programs become none.
#[test]
fn labels_are_a_fixed_list() {
    let mut books = Books::default();
    let mut script = Script::new(7, Device::Npu(0));
    let custom = Pool::custom("my_pool");
    script.alloc(custom, 0x1000, 1).alloc(pools::PTA_WORKSPACE, 0x2000, 2).alloc(pools::HOST, 0x3000, 3);
    started(&mut books, &script);
    let samples = Fold::default().samples(&books.take(), &BTreeMap::new(), 0, false);
    for (layer, pool, bytes) in [("custom", "custom", 1), ("workspace", "pta_workspace", 2), ("host_pinned", "host", 3)]
    {
        let found = number(&samples, "memscope_memory_live_bytes", &[("layer", layer), ("pool", pool)]);
        assert_eq!(found, Some(bytes), "{layer}");
    }
    assert!(!samples.iter().any(|sample| sample.labels.iter().any(|(_, value)| value.contains("my_pool"))));
    assert!(!samples.iter().any(|sample| sample.family == "memscope_process_memory_bytes"));
}

/// Of two processes on a device, the one that is full first; one that has no date does not hide it.
#[test]
fn the_soonest_counts() {
    let left = |middle: f64| Some([Some(middle / 2.0), Some(middle), None]);
    assert_eq!(soonest(left(50.0), left(40.0)), left(40.0));
    assert_eq!(soonest(left(50.0), Some([Some(1.0), None, None])), left(50.0));
    assert_eq!([soonest(None, left(9.0)), soonest(left(9.0), None), soonest(None, None)], [left(9.0), left(9.0), None]);
}
