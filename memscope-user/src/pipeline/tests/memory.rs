//! Physical memory, address space, and allocations that fail.

use super::*;

const NPU1: (u64, u64) = (1, 1);
const APP_HUGE: (u64, u64) = (33, 1);
const MIB: u64 = 1 << 20;

/// vLLM's sleep and wake (ascend-abi §9): the addresses stay reserved, the memory is freed and comes back.
#[test]
fn sleep_and_wake() {
    check_before_end(
        &[
            main(1).returned("halMemAddressReserve", 0, &[0x7000_0000, 4 * MIB]),
            main(2).create(0xa0, 2 * MIB, NPU1, APP_HUGE),
            main(3).returned("halMemMap", 0, &[0x7000_0000, 2 * MIB, 0xa0]),
            main(4).entered("halMemUnmap", &[0x7000_0000]),
            main(5).release(0xa0),
            main(6).create(0xa0, 2 * MIB, NPU1, APP_HUGE),
            main(7).returned("halMemMap", 0, &[0x7000_0000, 2 * MIB, 0xa0]),
            main(8).entered("halMemUnmap", &[0x7000_0000]),
            main(9).release(0xa0),
            main(10).entered("halMemAddressFree", &[0x7000_0000]),
        ],
        &[
            "1 7 - Reservation begins 70000000+4194304 live 4194304",
            "2 7 npu1 alloc a0+2097152 used 2097152 step 0",
            "3 7 - Mapping begins 70000000+2097152 live 2097152",
            "4 7 - Mapping ends 70000000+2097152 live 0",
            "5 7 npu1 free a0+2097152 used 0 Program",
            "6 7 npu1 alloc a0+2097152 used 2097152 step 0",
            "7 7 - Mapping begins 70000000+2097152 live 2097152",
            "8 7 - Mapping ends 70000000+2097152 live 0",
            "9 7 npu1 free a0+2097152 used 0 Program",
            "10 7 - Reservation ends 70000000+4194304 live 0",
        ],
    );
}

/// Memory with a released handle lives as long as it is mapped, even if the driver uses the handle's value again.
#[test]
fn mapped_memory_outlives_its_handle() {
    check_before_end(
        &[
            main(1).create(0xa0, 100, NPU1, APP_HUGE),
            main(2).returned("halMemMap", 0, &[0x7000, 100, 0xa0]),
            main(3).release(0xa0),
            main(4).create(0xa0, 30, NPU1, APP_HUGE),
            main(5).entered("halMemUnmap", &[0x7000]),
            main(6).release(0xa0),
        ],
        &[
            "1 7 npu1 alloc a0+100 used 100 step 0",
            "2 7 - Mapping begins 7000+100 live 100",
            "4 7 npu1 alloc a0+30 used 130 step 0",
            "5 7 npu1 free a0+100 used 30 Program",
            "5 7 - Mapping ends 7000+100 live 0",
            "6 7 npu1 free a0+30 used 0 Program",
        ],
    );
}

/// A second reference has to be released, too; imported memory belongs to another process.
#[test]
fn references_are_counted() {
    check_before_end(
        &[
            main(1).create(0xa0, 100, NPU1, APP_HUGE),
            main(2).returned("halMemMap", 0, &[0x7000, 100, 0xa0]),
            main(3).returned("halMemRetainAllocationHandle", 0, &[0xb0, 0x7000]),
            main(4).release(0xa0),
            main(5).entered("halMemUnmap", &[0x7000]),
            main(6).release(0xb0),
            main(7).returned("halMemImportFromShareableHandle", 0, &[0xc0]),
            main(8).release(0xc0),
            main(9).release(0xc0),
        ],
        &[
            "1 7 npu1 alloc a0+100 used 100 step 0",
            "2 7 - Mapping begins 7000+100 live 100",
            "5 7 - Mapping ends 7000+100 live 0",
            "6 7 npu1 free a0+100 used 0 Program",
            "9 7 - unknown free c0 older false",
        ],
    );
}

/// A release or an unmapping that the driver refuses is undone, whether it is refused at once or late.
#[test]
fn refused_ends_are_taken_back() {
    const LATE: u64 = 20_000_000;
    check_before_end(
        &[
            main(1).create(0xa0, 100, NPU1, APP_HUGE),
            main(2).returned("halMemMap", 0, &[0x7000, 100, 0xa0]),
            main(3).release(0xa0),
            main(4).returned("halMemRelease", 3, &[]),
            main(5).entered("halMemUnmap", &[0x7000]),
            main(6).returned("halMemUnmap", 3, &[]),
            main(7).note(&Note::Watermark { mono_ns: LATE }),
            main(LATE).entered("halMemUnmap", &[0x7000]),
            main(LATE + 1).release(0xa0),
            main(LATE + 2).note(&Note::Watermark { mono_ns: 2 * LATE }),
            main(2 * LATE).returned("halMemRelease", 3, &[]),
            main(2 * LATE + 1).release(0xa0),
        ],
        &[
            "1 7 npu1 alloc a0+100 used 100 step 0",
            "2 7 - Mapping begins 7000+100 live 100",
            "20000000 7 - Mapping ends 7000+100 live 0",
            "20000001 7 npu1 free a0+100 used 0 Program",
            "40000000 7 npu1 restored a0+100 used 100 step 0",
            "40000001 7 npu1 free a0+100 used 0 Program",
        ],
    );
}

/// Only pinning registrations are memory, and their ends are known by them.
#[test]
fn pinned_host_memory() {
    const PINNED: u64 = 0x1000_0000;
    check_before_end(
        &[
            main(1).returned("aclrtHostRegisterV2", 0, &[0x4000, 64, PINNED | 2]),
            main(2).returned("aclrtHostRegisterV2", 0, &[0x5000, 64, 2]),
            main(3).entered("aclrtHostUnregister", &[0x4000]),
            main(4).entered("aclrtHostUnregister", &[0x5000]),
        ],
        &["1 7 cpu alloc 4000+64 used 64 step 0", "3 7 cpu free 4000+64 used 0 Program"],
    );
}

/// A driver call that fails inside of the runtime is an attempt with huge pages; the runtime then succeeds.
#[test]
fn attempts_of_the_runtime_are_no_failures() {
    let inside = |record| Who::within("aclrtMalloc", record);
    let records = [
        inside(main(1).alloc_failed(6, 4 * MIB, device(1))),
        inside(main(2).alloc(0x10, 4 * MIB, device(1))),
        main(3).alloc_failed(6, 5 * MIB, device(1)),
    ];
    check_before_end(
        &records,
        &[
            "2 7 npu1 alloc 10+4194304 used 4194304 step 0",
            "3 7 npu1 failed 5242880 status 6 oom request 1.1 halMemAlloc",
        ],
    );
    let callers: Vec<_> = events(&records)
        .into_iter()
        .filter_map(|event| match event.kind {
            EventKind::Alloc(alloc) => Some(alloc.block.caller.map(Name::as_str)),
            _ => None,
        })
        .collect();
    assert_eq!(callers, [Some("aclrtMalloc")]);
}

/// A program without a framework's pool: the driver's answer to the second attempt shows that the request succeeded.
#[test]
fn request_succeeds_at_the_second_attempt() {
    check_before_end(
        &[
            main(1).set_device(1),
            main(2).returned("aclrtMalloc", 207_001, &[1000, 0]),
            main(3).free(0),
            Who::within("aclrtMalloc", main(4).alloc(0x10, 1056, device(1))),
            main(5).returned("aclrtMalloc", 207_001, &[1000, 0]),
            main(6).returned("aclrtMalloc", 207_001, &[1000, 0]),
            main(7).entered("aclrtGetMemInfo", &[]),
            main(8).returned("aclrtMalloc", 207_001, &[1000, 0]),
            main(9).returned("rtMalloc", 107_000, &[0, 0]),
        ],
        &[
            "2 7 npu1 failed 1000 status 207001 oom request 1.1 aclrtMalloc",
            "4 7 npu1 alloc 10+1056 used 1056 step 0",
            "4 7 npu1 recovered request 1 after 1",
            "5 7 npu1 failed 1000 status 207001 oom request 2.1 aclrtMalloc",
            "6 7 npu1 failed 1000 status 207001 oom request 2.2 aclrtMalloc",
            "8 7 npu1 failed 1000 status 207001 oom request 3.1 aclrtMalloc",
            "9 7 npu1 failed 0 status 107000 refused request 4.1 rtMalloc",
        ],
    );
}

/// A thread's device is that of its context.
#[test]
fn contexts_carry_devices() {
    check_before_end(
        &[
            main(1).start(false, Some("4,5")),
            main(2).returned("aclrtCreateContext", 0, &[0xc1, 1]),
            main(3).mark("one"),
            at(4, 7, 8).mark("none"),
            at(5, 7, 8).returned("aclrtSetCurrentContext", 0, &[0xc1]),
            at(6, 7, 8).mark("two"),
            at(7, 7, 8).returned("aclrtSetCurrentContext", 0, &[0xc2]),
            at(8, 7, 8).mark("unknown context"),
        ],
        &[
            "1 7 - process prog",
            "3 7 npu5 mark one",
            "4 7 - mark none",
            "6 7 npu5 mark two",
            "8 7 npu5 mark unknown context",
        ],
    );
}

/// The driver's figures are in every row from there on, until they end; each process has its own.
#[test]
fn rows_carry_the_drivers_figures() {
    let usage = |used_bytes, processes: Option<&[(u32, u64)]>| Note::Usage {
        device: 1,
        used_bytes,
        total_bytes: 1 << 36,
        processes: processes.map(<[(u32, u64)]>::to_vec),
    };
    let records = [
        main(1).alloc(0x10, 1, device(1)),
        at(2, 0, 0).note(&usage(900, Some(&[(9, 40), (7, 70), (8, 30)]))),
        main(3).alloc(0x20, 1, device(1)),
        at(4, 8, 8).alloc(0x20, 1, device(1)),
        main(5).alloc(0x30, 1, device(2)),
        at(6, 0, 0).note(&usage(800, None)),
        main(7).free(0x10),
        at(8, 0, 0).note(&Note::UsageEnded),
        main(9).free(0x20),
    ];
    let figures = |event: Event| match event.kind {
        EventKind::Alloc(Alloc { driver, .. }) | EventKind::Free(Free { driver, cause: FreeCause::Program, .. }) => {
            Some((driver.process_used_bytes, driver.device_used_bytes))
        }
        _ => None,
    };
    let seen: Vec<_> = events(&records).into_iter().filter_map(figures).collect();
    let none = (None, None);
    let expected = [none, (Some(70), Some(900)), (Some(30), Some(900)), none, (None, Some(800)), none];
    assert_eq!(seen, expected);
    let usages: Vec<String> = lines(&records).into_iter().filter(|line| line.contains("usage")).collect();
    assert_eq!(usages, ["2 0 npu1 usage 900 of 68719476736", "6 0 npu1 usage 800 of 68719476736"]);
    // They are for analyses: no process has them, so no file has a place for them.
    let (mut pipeline, _seen, written) = tapped(config());
    pipeline.feed(&records.concat()).expect("fed");
    drop(pipeline.finish(&[]));
    assert!(written.try_iter().all(|event| event.pid != 0));
}
