//! The room as a whole: events in, figures worked out by hand or by brute force out.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::Value;

use super::data;
use super::*;
use crate::analyses::script::Script;
use crate::analyses::{Analysis, Finding, LedgerAnalysis, Observer, OomAnalysis, decompose::RuleSet, judged_leaks};
use crate::backend::ascend::pools;
use crate::model::{AllocFailed, Device, Event, EventKind, FreeCause, Mark, Name, OutOfMemory, Pool, RunEnd};

const NPU0: Device = Device::Npu(0);

fn reduced_with(events: &[Event], end: &RunEnd) -> Reduced {
    let (mut reducer, made) = Reducer::new();
    let mut owners = BTreeMap::new();
    for event in events {
        let mut event = event.clone();
        match &mut event.kind {
            EventKind::Alloc(alloc) => drop(owners.insert(alloc.block.allocation_id, alloc.block.owner)),
            EventKind::Free(free) => free.owner = owners.get(&free.block.allocation_id).copied().flatten(),
            _ => {}
        }
        reducer.observe(&event);
    }
    reducer.finish(end);
    made.recv().expect("a run")
}

/// The script's result, with its blocks ended as a trace ends them.
fn reduced(script: &Script) -> Reduced {
    reduced_with(script.events(), &RunEnd::default())
}

fn view(script: &Script) -> View {
    let run = reduced(script);
    assert_eq!((run.views.len(), run.left_out), (1, 0));
    run.views.into_iter().next().expect("a view")
}

fn moment<'a>(layer: &'a Layer, kind: &str) -> &'a Moment {
    layer.moments.iter().find(|moment| moment.kind == kind).expect("a moment")
}

/// Numbers are times, one for each event: 0 a of 100, 1 b of 50, 2 a goes, 3 c of 30, 4 b goes, 5 c is held.
fn small() -> Script {
    let mut script = Script::new(7, NPU0);
    script.stacks(&["/srv/a.py(1): f"], &[]).alloc(pools::PTA, 0x1000, 100).owned("PTA@weight");
    script.stacks(&["/srv/a.py(2): g"], &[]).alloc(pools::PTA, 0x2000, 50).owned("PTA@activation");
    script.free(pools::PTA, 0x1000).alloc(pools::PTA, 0x3000, 30).free(pools::PTA, 0x2000);
    script.end(FreeCause::TraceEnd, pools::PTA, 0x3000);
    script
}

/// The peak is 150 after event 1, of a and b; c was not there. At the last allocation there are b and c: 80.
#[test]
fn moments_have_what_was_live_then() {
    let view = view(&small());
    let layer = &view.layers[0];
    let blocks = |kind| moment(layer, kind).blocks.iter().map(|rec| rec.size_bytes).collect::<Vec<_>>();
    assert_eq!((moment(layer, "peak").bytes, moment(layer, "peak").time_ns, blocks("peak")), (150, 1, vec![100, 50]));
    assert_eq!((moment(layer, "end").bytes, moment(layer, "end").time_ns, blocks("end")), (80, 3, vec![50, 30]));
    assert_eq!((layer.allocations, layer.frees, layer.allocated_bytes, layer.exact), (3, 2, 180, true));
    let lives: Vec<_> = layer.blocks.iter().map(|rec| (rec.start_ns, rec.end_ns, rec.held)).collect();
    assert_eq!(lives, [(0, 2, false), (1, 4, false), (3, 5, true)]);
    let mut by_stack: Vec<_> = layer.by_stack.iter().map(|weight| (weight.bytes, weight.blocks)).collect();
    by_stack.sort_unstable();
    assert_eq!(by_stack, [(80, 2), (100, 1)]);
}

/// One bin holds it all: fullest with 150, of which 100 are a's and 50 b's.
#[test]
fn owners_of_a_bin_are_those_of_its_fullest_moment() {
    let view = view(&small());
    let curve = &view.layers[0].curve;
    assert_eq!((curve.bins.len(), curve.bins[0].high, curve.bins[0].low), (1, 150, 0));
    let owners: Vec<_> = curve.owners.iter().map(|owner| (owner.name.map(Name::as_str), owner.bytes[0])).collect();
    // Largest by bytes × time: a 100 × 2, b 50 × 3, c 30 × 2.
    assert_eq!(owners, [(Some("PTA@weight"), 100), (Some("PTA@activation"), 50), (None, 0)]);
}

/// With steps the end is that of the last step: memory freed behind it was live.
#[test]
fn the_end_is_that_of_the_last_step() {
    let mut script = Script::new(7, NPU0);
    script.step_start(1).alloc(pools::PTA, 0x1000, 64).step_end(1);
    script.step_start(2).alloc(pools::PTA, 0x2000, 32).step_end(2).free(pools::PTA, 0x1000).free(pools::PTA, 0x2000);
    let view = view(&script);
    let layer = &view.layers[0];
    assert_eq!((moment(layer, "step").bytes, moment(layer, "step").blocks.len()), (96, 2));
    assert!(layer.moments.iter().all(|moment| moment.kind != "end"));
    assert_eq!((view.steps.len(), view.steps_ended), (2, 2));
}

/// A request fails between two allocations: the live memory at that moment is kept, whatever happens later.
#[test]
fn what_was_live_when_memory_was_out() {
    let mut script = Script::new(7, NPU0);
    script.alloc(pools::PTA, 0x1000, 64).alloc(pools::PTA, 0x2000, 8);
    let failed = AllocFailed {
        pool: pools::HAL,
        size_bytes: 4096,
        status: 1,
        flags: 0,
        caller: None,
        out_of_memory: true,
        request: 1,
        attempt: 1,
    };
    script.event(EventKind::OutOfMemory(OutOfMemory::Trigger(failed)));
    script.free(pools::PTA, 0x1000).alloc(pools::PTA, 0x3000, 500).free(pools::PTA, 0x3000).free(pools::PTA, 0x2000);
    let view = view(&script);
    assert_eq!((moment(&view.layers[0], "oom").bytes, moment(&view.layers[0], "peak").bytes), (72, 508));
    assert_eq!((view.failed.len(), view.failed[0].size_bytes, view.failed[0].time_ns), (1, 4096, 2));
}

/// A final failure is certain only when the program has freed everything: memory was out at the last attempt, when 72
/// bytes were live. A request that succeeded at last, and attempts of another one in between, do not count.
#[test]
fn memory_was_out_at_the_last_attempt() {
    let mut script = Script::new(7, NPU0);
    script.alloc(pools::PTA, 0x1000, 64).alloc_failed(pools::HAL, 4096, (1, 1)).alloc(pools::PTA, 0x2000, 8);
    script.alloc_failed(pools::HAL, 9, (2, 1)).alloc_recovered(pools::HAL, 9, 2).alloc_failed(pools::HAL, 4096, (1, 2));
    script.free(pools::PTA, 0x1000).free(pools::PTA, 0x2000);
    let EventKind::AllocFailed(failed) = script.events()[5].kind else { panic!("the last attempt") };
    script.event(EventKind::OutOfMemory(OutOfMemory::Trigger(failed)));
    let view = view(&script);
    let oom = moment(&view.layers[0], "oom");
    assert_eq!((oom.bytes, oom.blocks.len(), oom.time_ns), (72, 2, 5));
    assert_eq!((view.failed.len(), view.failed[0].time_ns), (1, 5));
}

/// Two driver blocks; a pool hands out of one: it is the pool's segment, the other one is none. The mapping of a handle
/// is one, too.
#[test]
fn segments_are_driver_memory_of_pools() {
    let mut script = Script::new(7, NPU0);
    script.alloc(pools::HAL, 0x10_0000, 0x1000).alloc(pools::HAL, 0x20_0000, 0x1000).alloc(pools::PTA, 0x10_0800, 64);
    script.create(77, 0x2000).map(0x30_0000, 0x2000, 77).alloc(pools::PTA, 0x30_1000, 64);
    let last = script.events().len() as u64;
    script.free(pools::HAL, 0x10_0000).free(pools::PTA, 0x30_1000);
    script.end(FreeCause::TraceEnd, pools::PTA, 0x10_0800);
    let view = view(&script);
    let found: Vec<_> = view.segments.iter().map(|it| (it.pool, it.addr, it.size_bytes, it.end_ns, it.held)).collect();
    assert_eq!(found[0], (pools::PTA, 0x10_0000, 0x1000, last, false));
    assert_eq!((found[1].1, found[1].2, found[1].4, found.len()), (0x30_0000, 0x2000, true, 2));
    // Pools come first, whichever is fuller: bytes of both are never added up.
    let pools: Vec<Pool> = view.layers.iter().map(|layer| layer.pool).collect();
    assert_eq!(pools, [pools::PTA, pools::HAL]);
}

/// Processes and devices are separate, also when a later process has the number of one that has ended.
#[test]
fn each_process_and_device_is_a_view() {
    let mut script = Script::new(7, NPU0);
    script.alloc(pools::HAL, 0x1000, 10).free(pools::HAL, 0x1000).on(7, Device::Npu(1)).alloc(pools::HAL, 0x1000, 20);
    script.end(FreeCause::ProcessEnd, pools::HAL, 0x1000).process_end();
    script.on(7, NPU0).alloc(pools::HAL, 0x1000, 5).free(pools::HAL, 0x1000);
    script.on(3, NPU0).alloc(pools::HAL, 0x1000, 1).free(pools::HAL, 0x1000);
    let views: Vec<_> =
        reduced(&script).views.iter().map(|it| (it.pid, it.device, moment(&it.layers[0], "peak").bytes)).collect();
    assert_eq!(views, [(3, NPU0, 1), (7, NPU0, 10), (7, NPU0, 5), (7, Device::Npu(1), 20)]);
}

fn plain(run: &Reduced, findings: &[Finding]) -> (Value, Vec<u8>) {
    let plain = data::plain(run, findings, &Options { tells_failures: true, ..Options::default() });
    let head = u32::from_le_bytes(plain[..4].try_into().expect("four bytes")) as usize;
    (serde_json::from_slice(&plain[4..4 + head]).expect("JSON"), plain[4 + head..].to_vec())
}

/// The numbers of a column, undone by hand.
fn column(head: &Value, bytes: &[u8], name: &str) -> Vec<f64> {
    let mut at = 0;
    for entry in head["columns"].as_array().expect("a list") {
        let count = entry[2].as_u64().expect("a count") as usize;
        let width = match entry[1].as_str().expect("a type") {
            "u8" => 1,
            "u32" => 4,
            _ => 8,
        };
        if entry[0] == name {
            let value = |i: usize| (0..width).map(|plane| bytes[at + plane * count + i]).collect::<Vec<u8>>();
            let numbers = (0..count).map(|i| match width {
                1 => f64::from(value(i)[0]),
                4 => f64::from(u32::from_le_bytes(value(i).try_into().expect("four bytes"))),
                _ => f64::from_le_bytes(value(i).try_into().expect("eight bytes")),
            });
            let mut sum = 0.0;
            let undo = |value| {
                if entry[3] == 1 {
                    sum += value;
                    sum
                } else {
                    value
                }
            };
            return numbers.map(undo).collect();
        }
        at += width * count;
    }
    panic!("no column {name}");
}

/// Sums on the page equal those of the ledger: the pool's bytes at the driver's peak.
#[test]
fn sums_are_those_of_the_ledger() {
    let mut script = Script::new(7, NPU0);
    script.alloc(pools::HAL, 0x10_0000, 0x1000).alloc(pools::PTA, 0x10_0000, 0x300).alloc(pools::PTA, 0x10_0400, 0x200);
    script.free(pools::PTA, 0x10_0000).alloc(pools::PTA, 0x10_0800, 0x100);
    for addr in [0x10_0400, 0x10_0800] {
        script.end(FreeCause::TraceEnd, pools::PTA, addr);
    }
    script.end(FreeCause::TraceEnd, pools::HAL, 0x10_0000);
    let mut ledger = LedgerAnalysis::default();
    script.events().iter().for_each(|event| ledger.observe(event));
    let findings = ledger.finish(&RunEnd::default());
    let (head, bytes) = plain(&reduced(&script), &findings);
    let peak = head["findings"].as_array().expect("a list").iter().find(|it| it["moment"] == "peak").expect("a ledger");
    let allocated = peak["hal"]["parts"].as_array().expect("parts").iter().find(|it| it["item"] == "pool_allocated");
    let layers = &head["views"][0]["layers"];
    assert_eq!((&layers[0]["pool"], &layers[1]["pool"]), (&"PTA".into(), &"HAL".into()));
    assert_eq!(layers[0]["moments"][0]["bytes"], allocated.expect("a pool")["size_bytes"]);
    assert_eq!(layers[1]["moments"][0]["bytes"], peak["hal"]["total"]["size_bytes"]);
    // By stack they add up to the same: 0x500 bytes in two blocks.
    let sum = |name: &str| column(&head, &bytes, name).iter().sum::<f64>();
    assert!((sum("0.0.peak.python.bytes") - 1280.0).abs() < 0.5);
    assert!((sum("0.0.peak.native.blocks") - 2.0).abs() < 0.5);
}

/// Strings that attack a viewer: as a program may have them in frames, marks, names and owners.
fn hostile() -> Script {
    let bad = [
        "</script><script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "\u{202e}gnp.exe",
        "\u{1b}[2J",
        "{{data}}",
        "javascript:alert(1)",
        "__proto__",
    ];
    let mut script = Script::new(7, NPU0);
    for (at, bad) in (1_u64..).zip(bad) {
        let frame = format!("/{bad}/x.py(3): {bad}");
        script.stacks(&[&frame, bad], &[bad]).alloc(pools::PTA, at << 12, 64).owned(bad);
        script.event(EventKind::Mark(Mark::Point { text: Some(Arc::from(bad)) }));
        script.free(pools::PTA, at << 12);
    }
    script
}

fn page(script: &Script) -> String {
    let mut page = Vec::new();
    write(&reduced(script), &[], &Options { title: Some("</title><b>".to_owned()), ..Options::default() }, &mut page)
        .expect("written");
    String::from_utf8(page).expect("text")
}

/// Nothing of the program is in the page but inside of base64, so it has the markup of the shell alone.
#[test]
fn hostile_strings_are_data() {
    let (bad, fine) = (page(&hostile()), page(&small()));
    let without_data = |page: &str| {
        let (before, rest) = page.split_once("id=\"data\">").expect("data");
        let (data, after) = rest.split_once("</script>").expect("an end");
        assert!(data.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte)));
        format!("{before}{after}")
    };
    assert_eq!(without_data(&bad), without_data(&fine));
    assert!(bad.starts_with(PAGE_START));
    assert!(!bad.contains("{{"), "a place was not filled");
}

#[test]
fn equal_runs_give_equal_bytes() {
    assert_eq!(page(&hostile()), page(&hostile()));
    assert_eq!(page(&small()), page(&small()));
}

/// Each check has an answer, also where nothing could be judged.
#[test]
fn checks_say_found_not_found_or_why_not() {
    let status = |script: &Script| {
        let mut findings = Vec::new();
        let rules = Arc::new(RuleSet::builtin());
        let analyses: [Box<dyn Analysis>; 2] = [Box::new(judged_leaks()), Box::new(OomAnalysis::new(rules))];
        for mut analysis in analyses {
            script.events().iter().for_each(|event| analysis.observe(event));
            findings.extend(analysis.finish(&RunEnd::default()));
        }
        let (head, _) = plain(&reduced(script), &findings);
        let checks = head["views"][0]["checks"].as_array().expect("checks").clone();
        let of =
            |check: &Value| (check["check"].as_str().map(str::to_owned), check["status"].as_str().map(str::to_owned));
        checks
            .iter()
            .map(of)
            .map(|(a, b)| format!("{} {}", a.unwrap_or_default(), b.unwrap_or_default()))
            .collect::<Vec<_>>()
    };
    let expected = ["oom not_found", "steps not_judged", "growth not_judged", "fragmentation not_judged"];
    assert_eq!(status(&small()), expected);
    // Four steps that each leave 1 MiB behind.
    assert_eq!(status(&Script::golden_leaky())[1], "steps found");
}

/// Events of a made-up run: at each moment one block is allocated or freed.
fn actions() -> impl Strategy<Value = Vec<(u8, u64, u64)>> {
    proptest::collection::vec((0..6_u8, 1..1000_u64, 1..5000_u64), 1..400)
}

/// A time, and the live bytes of each owner after what happened then.
type History = Vec<(u64, Vec<u64>)>;

/// Events with gaps in time between them, and for each moment the live bytes of each owner.
fn made_up(actions: &[(u8, u64, u64)]) -> (Vec<Event>, History) {
    const OWNERS: [&str; 3] = ["PTA@a", "PTA@b", "PTA@c"];
    let mut script = Script::new(7, NPU0);
    let mut live: Vec<(u64, usize, u64)> = Vec::new();
    let (mut gaps, mut history): (Vec<u64>, Vec<Vec<u64>>) = (Vec::new(), Vec::new());
    for (at, (what, size, gap)) in (1_u64..).zip(actions) {
        let owner = usize::from(what % 3);
        if *what < 3 || live.is_empty() {
            script.alloc(pools::PTA, at << 20, *size).owned(OWNERS[owner]);
            live.push((at << 20, owner, *size));
        } else {
            let (addr, ..) = live.remove(*size as usize % live.len());
            script.free(pools::PTA, addr);
        }
        gaps.push(*gap);
        history.push((0..3).map(|of| live.iter().filter(|it| it.1 == of).map(|it| it.2).sum()).collect());
    }
    for (addr, ..) in live {
        script.end(FreeCause::TraceEnd, pools::PTA, addr);
        gaps.push(0);
    }
    let mut time_ns = 0;
    let mut events = script.events().to_vec();
    let mut times = Vec::new();
    for (event, gap) in events.iter_mut().zip(gaps) {
        time_ns += gap * gap;
        event.time_ns = time_ns;
        times.push(time_ns);
    }
    (events, times.into_iter().zip(history).collect())
}

proptest! {
    /// Against brute force: the highest of each bin, its lowest, and the owners of its fullest moment.
    #[test]
    fn bins_are_those_of_brute_force(actions in actions()) {
        let (events, history) = made_up(&actions);
        let run = reduced_with(&events, &RunEnd::default());
        let layer = &run.views[0].layers[0];
        let curve = &layer.curve;
        let names: Vec<Option<&str>> = curve.owners.iter().map(|owner| owner.name.map(Name::as_str)).collect();
        for (at, bin) in curve.bins.iter().enumerate() {
            let start = curve.start_ns + at as u64 * curve.width_ns;
            let inside = |time: u64| (start..start + curve.width_ns).contains(&time);
            // Live at the start of the bin, then all events in it.
            let before = history.iter().rev().find(|(time, _)| *time < start).map_or(vec![0; 3], |(_, live)| live.clone());
            let states: Vec<Vec<u64>> =
                std::iter::once(before).chain(history.iter().filter(|(time, _)| inside(*time)).map(|(_, live)| live.clone())).collect();
            let sum = |live: &Vec<u64>| live.iter().sum::<u64>();
            let high = states.iter().map(sum).max().expect("a state");
            prop_assert_eq!((bin.low, bin.high), (states.iter().map(sum).min().expect("a state"), high));
            let fullest = states.iter().find(|live| sum(live) == high).expect("it");
            for (of, name) in ["PTA@a", "PTA@b", "PTA@c"].into_iter().enumerate() {
                let shown = names.iter().position(|it| *it == Some(name)).map_or(0, |owner| curve.owners[owner].bytes[at]);
                prop_assert_eq!(shown, fullest[of], "bin {}", at);
            }
        }
        let peak = history.iter().map(|(_, live)| live.iter().sum::<u64>()).max().expect("a state");
        prop_assert_eq!(moment(layer, "peak").bytes, peak);
        prop_assert_eq!(curve.bins.iter().map(|bin| bin.high).max(), Some(peak));
        // Joined bins keep their fullest moments, and owners still add up.
        let joined = curve.joined(3);
        prop_assert!(joined.bins.len() <= 3);
        for (at, bin) in joined.bins.iter().enumerate() {
            prop_assert_eq!(joined.owners.iter().map(|owner| owner.bytes[at]).sum::<u64>(), bin.high);
        }
    }
}
