use super::*;
use crate::analyses::growth::Trend;
use crate::analyses::script::Script;
use crate::backend::ascend::pools;
use crate::model::{EventKind, FreeCause, HolderPath, LiveSum, Look, LookedAt};

const SECOND: u64 = 1_000_000_000;

fn sample(time_ns: u64) -> Sample {
    Sample { time_ns, interval_ns: SECOND, last: false, lost: 0, devices: None, processes: Vec::new() }
}

fn shown(live: &mut LiveUse, time_ns: u64) -> Vec<(u64, u64, u64, Option<i64>)> {
    let change = |place: &PlaceUse| place.change.map(|change| change.change_bytes);
    let moment = live.look(sample(time_ns));
    moment.places.iter().map(|it| (it.blocks, it.live_bytes, it.peak_bytes, change(it))).collect()
}

/// Two places: of the first three blocks of 100 bytes and one that goes, of the second one of 50 which the trace ends.
#[test]
fn places_and_their_changes() {
    let mut script = Script::new(7, Device::Npu(0));
    script.stacks(&["a.py(1): f"], &[]);
    script.alloc(pools::PTA, 0x100, 100).alloc(pools::PTA, 0x200, 100);
    let first = script.events().len();
    script.alloc(pools::PTA, 0x300, 100).free(pools::PTA, 0x100);
    script.stacks(&["b.py(2): g"], &[]);
    script.alloc(pools::PTA, 0x400, 50).end(FreeCause::TraceEnd, pools::PTA, 0x400);
    let mut live = LiveUse::new(Arc::new(RuleSet::builtin()));
    script.events()[..first].iter().for_each(|event| live.observe(event));
    assert_eq!(shown(&mut live, 10 * SECOND), [(2, 200, 200, None)]);
    script.events()[first..].iter().for_each(|event| live.observe(event));
    // Three were live at once. The second place is new.
    assert_eq!(shown(&mut live, 40 * SECOND), [(2, 200, 300, Some(0)), (1, 50, 50, None)]);
    // The first point is a minute old now and counts; one later it is gone.
    assert_eq!(shown(&mut live, 70 * SECOND), [(2, 200, 300, Some(0)), (1, 50, 50, Some(0))]);
}

/// For a minute one place keeps a block of each second; the other keeps the five of the first seconds.
#[test]
fn trends_and_ages() {
    let mut script = Script::new(7, Device::Npu(0));
    let mut seconds = Vec::new();
    for second in 1..=60 {
        script.stacks(&["a.py(1): keep"], &[]).alloc(pools::PTA, second << 20, 100);
        if second <= 5 {
            script.stacks(&["b.py(2): load"], &[]).alloc(pools::PTA, second << 40, 1);
        }
        seconds.resize(script.events().len(), second);
    }
    let mut live = LiveUse::new(Arc::new(RuleSet::builtin()));
    let mut trends = |until: u64| {
        let due = script.events().iter().zip(&seconds).skip_while(|(_, second)| until > 5 && **second <= 5);
        for (event, second) in due.take_while(|(_, second)| **second <= until) {
            let mut event = event.clone();
            event.time_ns = second * SECOND;
            if let EventKind::Alloc(alloc) = &mut event.kind {
                alloc.block.alloc_time_ns = event.time_ns;
            }
            live.observe(&event);
        }
        let moment = live.look(sample((until + 1) * SECOND));
        moment.places.iter().map(|it| (it.blocks, it.trend, it.oldest_ns / SECOND)).collect::<Vec<_>>()
    };
    assert_eq!(trends(5), [(5, Trend::NotJudged, 5), (5, Trend::NotJudged, 5)]);
    assert_eq!(trends(60), [(60, Trend::Grows, 60), (5, Trend::Steady, 60)]);
}

/// A block from before the attach is older than all that the trace has seen: 30 s, until it is freed.
#[test]
fn found_blocks_are_the_oldest() {
    let mut script = Script::new(7, Device::Npu(0));
    script.alloc(pools::PTA, 0x100, 512).alloc(pools::PTA, 0x400, 512).free(pools::PTA, 0x100);
    let mut events = script.events().to_vec();
    for (event, second) in events.iter_mut().zip([1, 21, 26]) {
        event.time_ns = second * SECOND;
        match &mut event.kind {
            EventKind::Alloc(alloc) => {
                alloc.block.alloc_time_ns = event.time_ns;
                alloc.block.found = second == 1;
            }
            EventKind::Free(free) => free.block.found = true,
            _ => {}
        }
    }
    let mut live = LiveUse::new(Arc::new(RuleSet::builtin()));
    let oldest = |live: &mut LiveUse| live.look(sample(31 * SECOND)).places[0].oldest_ns / SECOND;
    events[..2].iter().for_each(|event| live.observe(event));
    assert_eq!(oldest(&mut live), 30);
    live.observe(&events[2]);
    assert_eq!(oldest(&mut live), 10);
}

/// The last look says what holds the blocks of a place, until none of them is left.
#[test]
fn holders_of_the_last_look() {
    let mut script = Script::new(7, Device::Npu(0));
    script.stacks(&["serve.py(3): keep"], &[]).alloc(pools::PTA, 0x1000, 64).alloc(pools::PTA, 0x2000, 64);
    let of = |event: &Event| if let EventKind::Alloc(alloc) = &event.kind { Some(alloc.block) } else { None };
    let block = script.events().iter().find_map(of).expect("a block");
    let holders = vec![HolderPath { path: "m.cache[*]".to_owned(), is_sure: true, blocks: 2 }];
    let place = PlaceLook {
        block,
        live: LiveSum { blocks: 2, size_bytes: 128 },
        looked_at_blocks: 2,
        holders: holders.clone(),
        garbage_blocks: 0,
        unknown_blocks: 0,
        left_out: None,
        held_as: Vec::new(),
    };
    let outcome = Looked::Place(Box::new(place));
    script.event(EventKind::Looked(Arc::new(Look { number: 1, at: LookedAt::Running, outcome })));
    let time_ns = script.events().last().expect("the look").time_ns;
    script.free(pools::PTA, 0x1000).free(pools::PTA, 0x2000).alloc(pools::PTA, 0x1000, 64);
    let mut live = LiveUse::new(Arc::new(RuleSet::builtin()));
    let mut held_by = |events: &[Event]| {
        for event in events {
            live.observe(event);
        }
        live.look(sample(time_ns)).places.pop().map(|place| place.held_by)
    };
    let lines = vec!["still held by: m.cache[*]  (2 of 2)".to_owned()];
    let expected = Some(PlaceHolders { time_ns, looked_at_blocks: 2, holders, lines });
    assert_eq!(held_by(&script.events()[..2]), Some(None));
    assert_eq!(held_by(&script.events()[2..4]), Some(expected));
    assert_eq!(held_by(&script.events()[4..5]), None);
    assert_eq!(held_by(&script.events()[5..]), Some(None));
}

/// Owners add up to the places, and a process that has ended keeps what it held.
#[test]
fn ended_processes_keep_their_last_figures() {
    let mut script = Script::new(7, Device::Npu(0));
    script.alloc(pools::PTA, 0x100, 512).alloc(pools::PTA, 0x400, 1024).free(pools::PTA, 0x100);
    script.end(FreeCause::ProcessEnd, pools::PTA, 0x400).process_end();
    let mut live = LiveUse::new(Arc::new(RuleSet::builtin()));
    script.events().iter().for_each(|event| live.observe(event));
    let moment = live.look(sample(SECOND));
    let sizes: Vec<_> = moment.places.iter().map(|it| (it.site.size_bytes, it.live_bytes)).collect();
    // Without stacks a place is a size.
    assert_eq!(sizes, [(Some(1024), 1024)]);
    assert_eq!(moment.owners.iter().map(|it| (it.blocks, it.live_bytes)).collect::<Vec<_>>(), [(1, 1024)]);
    for pid in 100..150 {
        let mut script = Script::new(pid, Device::Npu(0));
        script.alloc(pools::PTA, 0x100, 1).end(FreeCause::ProcessEnd, pools::PTA, 0x100).process_end();
        script.events().iter().for_each(|event| live.observe(event));
    }
    assert_eq!(live.look(sample(SECOND)).places.len(), MAX_ENDED);
}

/// Beyond the most places blocks count as one place of their pool, also when they go.
#[test]
fn places_are_bounded() {
    let mut script = Script::new(7, Device::Npu(0));
    let most = MAX_PLACES as u64;
    for size in 1..=most + 3 {
        script.alloc(pools::PTA, size << 20, size);
    }
    script.free(pools::PTA, (most + 2) << 20);
    let mut live = LiveUse::new(Arc::new(RuleSet::builtin()));
    script.events().iter().for_each(|event| live.observe(event));
    let moment = live.look(sample(SECOND));
    assert!(moment.places_full && moment.places.len() == MAX_PLACES + 1);
    // Of the last three the middle one is gone: 16385 and 16387 bytes are left.
    let others: Vec<_> = moment.places.iter().filter(|it| it.site.size_bytes.is_none()).collect();
    assert_eq!(others.iter().map(|it| (it.blocks, it.live_bytes)).collect::<Vec<_>>(), [(2, 2 * most + 4)]);
}
