//! Scripts: effects of the Python package's markers on events (contract §7.3, §8.1, §8.5, §8.9). Expectations are
//! worked out by hand.

use super::*;
use crate::analyses::StepLeaksAnalysis;
use crate::analyses::decompose::RuleSet;
use crate::capture::Collected;
use crate::capture::Note;
use crate::sinks::row::Row;
use memscope_common::Kind;

/// All events, of processes that are reported only once their scripts say so.
fn deferred(records: &[Vec<u8>]) -> Vec<String> {
    let (mut pipeline, seen, _written) = tapped(PipelineConfig { deferred: true, ..config() });
    pipeline.feed(&records.concat()).expect("fed");
    drop(pipeline.finish(&[]));
    seen.try_iter().map(|event| line(&event)).collect()
}

/// Rows of all events, without number, process and thread.
fn rows_of(config: PipelineConfig, records: &[Vec<u8>]) -> Vec<String> {
    let (mut pipeline, _seen, written) = tapped(config);
    pipeline.feed(&records.concat()).expect("fed");
    drop(pipeline.finish(&[]));
    let csv = |event: Event| {
        let mut bytes = Vec::new();
        Row::of(&event)?.write_csv(&mut bytes);
        let line = String::from_utf8(bytes).expect("text");
        let cells: Vec<&str> = line.trim_end().splitn(9, ',').collect();
        Some([&cells[1..5], &cells[7..]].concat().join(","))
    };
    written.try_iter().filter_map(csv).collect()
}

fn script(who: Who, marker: &str, values: &[u64]) -> Vec<u8> {
    who.entered(&format!("memscope_mark_{marker}"), values)
}

fn label_text(who: Who, id: u64, text: &str) -> Vec<u8> {
    who.call(Kind::Enter, "memscope_mark_label_text", 0, &[id], Some(text.as_bytes()))
}

fn owners() -> PipelineConfig {
    PipelineConfig { owners: Some(Arc::new(RuleSet::builtin())), ..config() }
}

/// Owner in each row's Attr, in the order of the rows; only of rows with blocks.
fn owner_cells(records: &[Vec<u8>]) -> Vec<String> {
    let rows = rows_of(owners(), records);
    let of = |row: &String| {
        let owner = row.split_once("owner:").map_or("-", |(_, rest)| rest.split([',', '}']).next().unwrap_or("-"));
        format!("{} {owner}", row.split(',').next().unwrap_or_default())
    };
    rows.iter().filter(|row| row.starts_with("MALLOC") || row.starts_with("FREE")).map(of).collect()
}

const ALL: [u64; 3] = [7, 1, 1 << 32];

/// Two windows. Blocks live at the start of one are reported then; those that end between them, at the start of the
/// next one.
#[test]
fn only_windows_are_reported() {
    let found = deferred(&[
        main(1).start(false, None),
        main(2).alloc(0x10, 1, NPU),
        main(3).alloc(0x20, 2, NPU),
        main(4).free(0x10),
        main(5).mark("before"),
        script(main(10), "start", &[]),
        main(11).alloc(0x30, 4, NPU),
        main(12).alloc(0x40, 8, NPU),
        main(13).free(0x30),
        main(14).mark("inside"),
        script(main(20), "stop", &[]),
        main(21).free(0x20),
        main(22).alloc(0x50, 16, NPU),
        main(23).alloc(0x60, 32, NPU),
        main(24).free(0x50),
        main(25).mark("between"),
        script(main(30), "start", &[]),
        main(31).free(0x40),
        main(32).free(0x60),
        script(main(40), "stop", &[]),
        main(41).end(),
    ]);
    assert_eq!(
        found,
        [
            "1 7 - process prog",
            "10 7 npu0 promoted 20+2 used 2 step 0",
            "10 7 - TraceStart { free_and_total_bytes: None }",
            "11 7 npu0 alloc 30+4 used 6 step 0",
            "12 7 npu0 alloc 40+8 used 14 step 0",
            "13 7 npu0 free 30+4 used 10 Program",
            "14 7 - mark inside",
            "20 7 - TraceStop",
            "30 7 npu0 free 20+2 used 40 Unwatched",
            "30 7 npu0 promoted 60+32 used 40 step 0",
            "30 7 - TraceStart { free_and_total_bytes: None }",
            "31 7 npu0 free 40+8 used 32 Program",
            "32 7 npu0 free 60+32 used 0 Program",
            "40 7 - TraceStop",
            "41 7 - process end",
        ]
    );
}

/// Without a script's call all events are reported, as ever; a script that calls `config()` also calls `start()`, so
/// collection waits for it.
#[test]
fn configuring_waits_for_start() {
    let records = |configured| {
        let config = if configured { script(main(2), "config", &ALL) } else { Vec::new() };
        [main(1).alloc(0x10, 1, NPU), config, main(3).alloc(0x20, 2, NPU), script(main(4), "start", &[])]
    };
    check_before_end(
        &records(false),
        &[
            "1 7 npu0 alloc 10+1 used 1 step 0",
            "3 7 npu0 alloc 20+2 used 3 step 0",
            "4 7 - TraceStart { free_and_total_bytes: None }",
        ],
    );
    check_before_end(
        &records(true),
        &[
            "1 7 npu0 alloc 10+1 used 1 step 0",
            "4 7 npu0 promoted 20+2 used 3 step 0",
            "4 7 - TraceStart { free_and_total_bytes: None }",
        ],
    );
    // Once it has started, settings change and nothing else.
    let started = [script(main(1), "start", &[]), script(main(2), "config", &ALL), main(3).alloc(0x20, 2, NPU)];
    check_before_end(
        &started,
        &["1 7 - TraceStart { free_and_total_bytes: None }", "3 7 npu0 alloc 20+2 used 2 step 0"],
    );
}

/// A start when started and a stop when stopped have no effect; a start shows the driver's figures.
#[test]
fn only_changes_are_reported() {
    let usage = Note::Usage { device: 0, used_bytes: 30, total_bytes: 100, processes: None };
    let found = rows_of(
        PipelineConfig { deferred: true, ..config() },
        &[
            script(main(1), "stop", &[]),
            at(2, 0, 0).note(&usage),
            script(main(3), "start", &[]),
            script(main(4), "start", &[]),
            script(main(5), "stop", &[]),
            script(main(6), "stop", &[]),
        ],
    );
    assert_eq!(
        found,
        ["SYSTEM,START_TRACE,N/A,1003,N/A,N/A,\"{free:70,total:100}\",,", "SYSTEM,STOP_TRACE,N/A,1005,N/A,N/A,,,"]
    );
}

/// Blocks live when collection stops, and those that end after it, both end a moment after the stop, as far as rows go;
/// later blocks are not reported.
#[test]
fn rows_end_just_behind_the_last_stop() {
    let found = rows_of(
        config(),
        &[
            main(1).alloc(0x10, 1, NPU),
            main(2).alloc(0x20, 2, NPU),
            script(main(3), "stop", &[]),
            main(4).free(0x10),
            main(5).alloc(0x30, 4, NPU),
            main(6).end(),
        ],
    );
    let block = |id: u32, addr: u32, size: u32| format!("\"{{allocation_id:{id},addr:0x{addr:016x},size:{size},");
    assert_eq!(
        found,
        [
            format!(
                "MALLOC,HAL,N/A,1001,0,0x0000000000000010,{}used:1,page_type:normal,alloc_type:alloc}}\",,",
                block(1, 0x10, 1)
            ),
            format!(
                "MALLOC,HAL,N/A,1002,0,0x0000000000000020,{}used:3,page_type:normal,alloc_type:alloc}}\",,",
                block(2, 0x20, 2)
            ),
            "SYSTEM,STOP_TRACE,N/A,1003,N/A,N/A,,,".to_owned(),
            format!("FREE,HAL,N/A,1004,0,0x0000000000000010,{}shadow:true}}\",,", block(1, 0x10, 1)),
            format!("FREE,HAL,N/A,1004,0,0x0000000000000020,{}shadow:true}}\",,", block(2, 0x20, 2)),
        ]
    );
}

/// A free that the driver refuses ends nothing, whether it was seen or not.
#[test]
fn refused_frees_between_windows() {
    const LATE: u64 = 100_000_000;
    let found = deferred(&[
        main(1).alloc(0x10, 1, NPU),
        script(main(2), "start", &[]),
        main(3).alloc(0x20, 2, NPU),
        script(main(4), "stop", &[]),
        main(5).free(0x20),
        main(LATE).free_failed(0x20),
        main(LATE + 1).free(0x10),
        main(2 * LATE).free_failed(0x10),
        script(main(3 * LATE), "start", &[]),
        main(3 * LATE + 1).free(0x20),
        main(3 * LATE + 2).free(0x10),
    ]);
    assert_eq!(
        found,
        [
            "2 7 npu0 promoted 10+1 used 1 step 0",
            "2 7 - TraceStart { free_and_total_bytes: None }",
            "3 7 npu0 alloc 20+2 used 3 step 0",
            "4 7 - TraceStop",
            "300000000 7 - TraceStart { free_and_total_bytes: None }",
            "300000001 7 npu0 free 20+2 used 1 Program",
            "300000002 7 npu0 free 10+1 used 0 Program",
        ]
    );
}

/// Call k ends step k and begins the next, on the thread's device; calls outside of windows are none.
#[test]
fn calls_are_steps() {
    let found = deferred(&[
        main(1).set_device(0),
        script(main(2), "step", &[]),
        script(main(3), "start", &[]),
        main(4).alloc(0x10, 1, NPU),
        script(main(5), "step", &[]),
        main(6).alloc(0x20, 1, NPU),
        script(main(7), "step", &[]),
        main(8).alloc(0x30, 1, NPU),
        main(9).range_start("step start"),
        main(10).alloc(0x40, 1, NPU),
        main(11).range_start("step start"),
    ]);
    assert_eq!(
        found[1..13],
        [
            "4 7 npu0 alloc 10+1 used 1 step 0",
            "5 7 npu0 step() 1",
            "5 7 npu0 step end 1",
            "5 7 npu0 step start 2",
            "6 7 npu0 alloc 20+1 used 2 step 2",
            "7 7 npu0 step() 2",
            "7 7 npu0 step end 2",
            "7 7 npu0 step start 3",
            "8 7 npu0 alloc 30+1 used 3 step 3",
            "9 7 - steps refused",
            "9 7 npu0 start step start 1",
            "10 7 npu0 alloc 40+1 used 4 step 3",
        ]
    );
    assert_eq!(found[13], "11 7 npu0 start step start 2");
}

/// After ranges, calls do not count.
#[test]
fn ranges_before_calls() {
    check(
        &[
            main(1).set_device(0),
            main(2).range_start("step start"),
            script(main(3), "step", &[]),
            script(main(4), "step", &[]),
            main(5).range_end(0),
        ],
        &[
            "2 7 npu0 start step start 1",
            "2 7 npu0 step start 1",
            "3 7 - steps refused",
            "5 7 npu0 end Some(1)",
            "5 7 npu0 step end 1",
        ],
    );
}

/// Rows that the script does not want are not written; analyses see them.
#[test]
fn settings_choose_rows() {
    // Frees and the host's memory; of the NPUs number 1.
    let wanted = script(main(1), "config", &[2, 0, 1 << 33 | 1 << 1]);
    let records = [
        wanted,
        script(main(2), "start", &[]),
        main(3).alloc(0x10, 1, device(0)),
        main(4).alloc(0x20, 1, device(1)),
        main(5).free(0x10),
        main(6).free(0x20),
        main(7).mark("always"),
    ];
    let rows = rows_of(config(), &records);
    let kinds: Vec<&str> = rows.iter().filter_map(|row| row.split(',').next()).collect();
    assert_eq!(kinds, ["SYSTEM", "FREE", "MSTX"]);
    assert_eq!(events(&records).len(), 6);
}

/// Labels are those of the allocating thread, at that moment; without any the rules name the owner.
#[test]
fn labels_are_the_threads() {
    let other = |time_ns| at(time_ns, 7, 8);
    let user = |id: u64| [0, id << 16];
    assert_eq!(
        owner_cells(&[
            label_text(main(1), 1, "train"),
            label_text(main(1), 2, "inner loop"),
            main(2).alloc(0x10, 1, NPU),
            script(main(3), "labels", &user(1)),
            main(4).alloc(0x20, 1, NPU),
            other(5).alloc(0x30, 1, NPU),
            script(main(6), "labels", &user(1 | 2 << 16)),
            main(7).alloc(0x40, 1, NPU),
            script(other(8), "labels", &[1 << 16 | 2 << 32, 9 << 16]),
            other(9).alloc(0x50, 1, NPU),
            script(main(10), "labels", &[0, 0]),
            main(11).alloc(0x60, 1, NPU),
        ])[..6],
        [
            "MALLOC CANN@APP",
            "MALLOC CANN@APP@train",
            "MALLOC CANN@APP",
            "MALLOC CANN@APP@train@inner_loop",
            // Levels 1 and 2 of the system's, and a label without a known text.
            "MALLOC CANN@APP@train@inner_loop@label_9",
            "MALLOC CANN@APP",
        ]
    );
}

/// A label of level 0 stands in place of the allocator's name, of a thread and of a block; levels behind it follow.
#[test]
fn labels_of_level_0_name_the_allocator() {
    let pta = |time_ns, what, addr, size| main(time_ns).pta((0, what), addr, size, [512, 1024, 512]);
    assert_eq!(
        owner_cells(&[
            label_text(main(1), 1, "mine"),
            label_text(main(1), 2, "weight"),
            label_text(main(1), 3, "train"),
            script(main(2), "labels", &[1, 0]),
            main(3).alloc(0x10, 1, NPU),
            pta(4, 0, 0x1000, 512),
            script(main(5), "labels", &[1 | 2 << 48, 3 << 16]),
            main(6).alloc(0x20, 1, NPU),
            script(main(7), "labels", &[0, 0]),
            pta(8, 0, 0x2000, 512),
            script(main(9), "label_addr", &[0x2000, 1 | 2 << 48, 0]),
            pta(10, 1, 0x2000, -512),
        ])[..5],
        ["MALLOC mine", "MALLOC mine", "MALLOC mine@weight@train", "MALLOC PTA", "FREE mine@weight"]
    );
}

/// A block of `PyTorch`'s pool that is labelled later has its owner on its FREE row; others are unchanged.
#[test]
fn blocks_are_labelled_later() {
    let pta = |time_ns, what, addr, size| main(time_ns).pta((0, what), addr, size, [512, 1024, 512]);
    assert_eq!(
        owner_cells(&[
            main(1).set_device(1),
            label_text(main(1), 1, "weight"),
            label_text(main(1), 2, "mine"),
            pta(2, 0, 0x1000, 512),
            pta(3, 0, 0x2000, 512),
            main(4).alloc(0x1000, 1, NPU),
            script(main(5), "label_addr", &[0x1000, 1 << 48, 0]),
            script(main(6), "label_addr", &[0x1000, 0, 2 << 16]),
            script(main(7), "label_addr", &[0x2008, 1 << 48, 0]),
            script(main(8), "label_addr", &[0x9000, 1 << 48, 0]),
            pta(9, 1, 0x1000, -512),
            pta(10, 1, 0x2000, -512),
        ])[..5],
        ["MALLOC PTA", "MALLOC PTA", "MALLOC CANN@APP", "FREE PTA@weight@mine", "FREE -"]
    );
    // Another device's block at that address is another block.
    assert_eq!(
        owner_cells(&[
            main(1).set_device(0),
            label_text(main(1), 1, "weight"),
            pta(2, 0, 0x1000, 512),
            script(main(3), "label_addr", &[0x1000, 1 << 48, 0]),
            pta(4, 1, 0x1000, -512),
        ])[1],
        "FREE -"
    );
}

/// Names of hostile programs stay in their cells.
#[test]
fn hostile_labels_are_one_word() {
    let found = owner_cells(&[
        label_text(main(1), 1, "a,b:c\"d}\n\u{202e}=x"),
        script(main(2), "labels", &[0, 1 << 16]),
        main(3).alloc(0x10, 1, NPU),
    ]);
    assert_eq!(found[0], "MALLOC CANN@APP@a_b_c_d");
}

/// Without the analysis no block has an owner.
#[test]
fn labels_without_decompose() {
    let records =
        [label_text(main(1), 1, "train"), script(main(2), "labels", &[0, 1 << 16]), main(3).alloc(0x10, 1, NPU)];
    assert!(rows_of(config(), &records).iter().all(|row| !row.contains("owner")));
}

/// A child continues with its parent's state; another program in its place does not.
#[test]
fn children_are_as_their_parents() {
    let child = |time_ns| at(time_ns, 9, 9);
    assert_eq!(
        owner_cells(&[
            label_text(main(1), 1, "train"),
            script(at(2, 7, 8), "labels", &[0, 1 << 16]),
            at(3, 7, 8).fork(9),
            child(4).alloc(0x10, 1, NPU),
            child(5).exec(),
            child(6).alloc(0x10, 1, NPU),
        ]),
        ["MALLOC CANN@APP@train", "FREE -", "MALLOC CANN@APP", "FREE -"]
    );
    let found = deferred(&[
        script(main(1), "start", &[]),
        main(2).fork(9),
        child(3).alloc(0x10, 1, NPU),
        child(4).exec(),
        child(5).alloc(0x20, 1, NPU),
    ]);
    assert_eq!(found[1..], ["3 9 npu0 alloc 10+1 used 1 step 0", "4 9 npu0 free 10+1 used 0 ProcessEnd"]);
}

/// With and without a window; of a device in the program's numbering. Rates are of the total.
#[test]
fn snapshots_are_rows() {
    let snapshot = |who: Who, name: &str, values: &[u64]| {
        who.call(Kind::Enter, "memscope_mark_snapshot", 0, values, Some(name.as_bytes()))
    };
    let found = rows_of(
        PipelineConfig { deferred: true, ..config() },
        &[
            main(1).start(false, Some("4,5")),
            snapshot(main(2), "a b", &[1, 400, 500, 300, 350, 900, 600]),
            snapshot(main(3), "nothing", &[7, 0, 0, 0, 0, 0, 1]),
        ],
    );
    assert_eq!(
        found,
        [
            "SNAPSHOT,SNAPSHOT,a b,1002,5,N/A,\"{reserved:400,max_reserved:500,allocated:300,max_allocated:350,total:900,\
             free:600,device_rate:33.333333,reserved_rate:75.000000}\",,",
            "SNAPSHOT,SNAPSHOT,nothing,1003,7,N/A,\"{reserved:0,max_reserved:0,allocated:0,max_allocated:0,total:0,\
             free:1,device_rate:0.000000,reserved_rate:0.000000}\",,",
        ]
    );
}

/// A range is reported when it ends, if events are collected then; one that would begin after its end, or before all
/// time, has no start.
#[test]
fn ranges_are_reported_at_their_end() {
    let range = |time_ns, start_ns: u64, name: &str| {
        main(time_ns).call(Kind::Enter, "memscope_mark_range", 0, &[start_ns], Some(name.as_bytes()))
    };
    let found = deferred(&[
        range(5, 1, "before"),
        script(main(10), "start", &[]),
        range(20, 4, "forward"),
        range(30, 31, "later"),
        range(5000, 0, "long"),
        script(main(6000), "stop", &[]),
        range(7000, 6500, "after"),
    ]);
    assert_eq!(
        found[1..4],
        [
            "20 7 - range forward since Some(1004)",
            "30 7 - range later since None",
            "5000 7 - range long since Some(1000)"
        ]
    );
    assert_eq!(found.len(), 5);
}

/// A trace that collects what every trace does.
fn plain() -> PipelineConfig {
    let rows_of_options = Some(RowBits { events: 7, levels: 1, devices: 1 << 32, fixed: false });
    PipelineConfig { collected: Some(Collected::default()), rows_of_options, ..config() }
}

/// Each setting that a plain trace lacks is named once, however often and by however many scripts it is requested. It
/// has no row.
#[test]
fn unmet_settings_are_reported_once() {
    let (c_10, watch) = ([4, 11, 0], [4, 11, 1 << 3]);
    let child = at(5, 9, 9);
    let records = [
        script(main(1), "settings", &c_10),
        script(main(1), "config", &ALL),
        script(main(2), "settings", &c_10),
        script(main(2), "config", &ALL),
        main(3).fork(9),
        script(child, "settings", &c_10),
        script(child, "config", &ALL),
        script(main(6), "settings", &watch),
        script(main(6), "config", &ALL),
        // A setting that is not named again is no longer requested.
        script(main(7), "config", &ALL),
    ];
    let (mut pipeline, seen, _written) = tapped(plain());
    pipeline.feed(&records.concat()).expect("fed");
    drop(pipeline.finish(&[]));
    let reported: Vec<String> = seen.try_iter().map(|event| line(&event)).collect();
    assert_eq!(
        reported,
        [
            "1 7 - unmet call_stack=c:10, analysis=inefficient (--call-stack=c:10 --analysis=inefficient)",
            "6 7 - unmet watch (--watch)",
        ]
    );
    assert_eq!(rows_of(plain(), &records), [""; 0]);
}

/// Settings named in `events`, `level` and `device` replace the options'; others are chosen from them.
#[test]
fn named_settings_replace_those_of_the_options() {
    let only_allocations = || PipelineConfig {
        rows_of_options: Some(RowBits { events: 1, levels: 1, devices: 1 << 32, fixed: false }),
        dump: DumpFilter { free: false, ..DumpFilter::default() },
        ..plain()
    };
    let records = |named: u64| {
        [
            script(main(1), "settings", &[0, 0, named]),
            script(main(1), "config", &[7, 3, 1 << 32]),
            script(main(2), "start", &[]),
            main(3).alloc(0x10, 1, NPU),
            main(4).launch(0x77, 0),
            main(5).free(0x10),
        ]
    };
    let kinds = |named| -> Vec<String> {
        rows_of(only_allocations(), &records(named))
            .iter()
            .map(|row| row.split(',').next().unwrap_or("").to_owned())
            .collect()
    };
    assert_eq!(kinds(0), ["SYSTEM", "MALLOC"]);
    assert_eq!(kinds(1), ["SYSTEM", "MALLOC", "FREE"]);
    assert_eq!(kinds(3), ["SYSTEM", "MALLOC", "KERNEL_LAUNCH", "FREE"]);
    // A package of before names nothing.
    let unnamed = [&records(0)[1..]].concat();
    assert_eq!(rows_of(only_allocations(), &unnamed).len(), 2);
}

/// A script that asks for owners has them in its rows, and others have none; out of memory names as many blocks as it
/// asks for.
#[test]
fn analyses_of_scripts_are_made() {
    let demand = Demand { given: 0, make: Arc::new(|_| Vec::new()) };
    let with = || PipelineConfig { demand: Some(demand.clone()), ..plain() };
    let other = |time_ns| at(time_ns, 9, 9);
    let rows = rows_of(
        with(),
        &[
            script(main(1), "settings", &[2, 0, 0]),
            script(main(1), "config", &ALL),
            script(main(2), "start", &[]),
            main(3).alloc(0x10, 1, NPU),
            other(4).alloc(0x20, 1, NPU),
            // The next one does not ask for it.
            script(main(5), "config", &ALL),
            main(6).alloc(0x30, 1, NPU),
        ],
    );
    let owners: Vec<bool> =
        rows.iter().filter(|row| row.starts_with("MALLOC")).map(|row| row.contains("owner:CANN@APP")).collect();
    assert_eq!(owners, [true, false, false]);

    let fails = main(5).returned("aclrtMallocAlign32", 207_001, &[500, 0]);
    let rows = rows_of(
        with(),
        &[
            script(main(1), "settings", &[8 | 1 << 16, 0, 0]),
            script(main(1), "config", &ALL),
            script(main(2), "start", &[]),
            main(2).set_device(0),
            main(3).alloc(0x10, 1, device(0)),
            main(4).alloc(0x20, 1, device(0)),
            fails,
            main(6).mark("next"),
        ],
    );
    let oom: Vec<&str> =
        rows.iter().filter(|row| row.starts_with("OOM")).filter_map(|row| row.split(',').nth(1)).collect();
    assert_eq!(oom, ["OOM_TRIGGER", "OOM_RECENT_ALLOC", "OOM_TOP_ALLOC"], "{rows:?}");
}

/// Analyses are made once for all requests; blocks from before are no leaks in them.
#[test]
fn analyses_are_asked_for_once() {
    let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let make = move |bits| {
        seen.lock().expect("not poisoned").push(bits);
        vec![Box::new(StepLeaksAnalysis::default()) as Box<dyn Analysis>]
    };
    let config = PipelineConfig { demand: Some(Demand { given: 2, make: Arc::new(make) }), ..plain() };
    let (mut pipeline, _seen, _written) = tapped(config);
    let wants = |time_ns, bits: u64| {
        [script(main(time_ns), "settings", &[bits, 0, 0]), script(main(time_ns), "config", &ALL)].concat()
    };
    let records = [main(1).alloc(0x10, 1, NPU), wants(2, 3), wants(3, 1), wants(4, 5), wants(5, 8)];
    pipeline.feed(&records.concat()).expect("fed");
    pipeline.feed(&[script(main(6), "start", &[]), main(7).free(0x10)].concat()).expect("fed");
    assert_eq!(pipeline.finish(&[]).findings, []);
    // Owners exist already, and inefficient use cannot be seen in this trace.
    assert_eq!(*asked.lock().expect("not poisoned"), [1, 8]);
}
