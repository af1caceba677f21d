//! Processes that are traced without the calls about blocks of their pools.

use super::*;
use crate::capture::note_record;

const MALLOC: (u8, u8) = (0, 0);
const FREE: (u8, u8) = (0, 1);
const NO_MEMORY: i64 = 207_001;

fn pool_blocks(time_ns: u64, traced: bool) -> Vec<u8> {
    note_record(time_ns, 0, &Note::PoolBlocks { pid: 7, traced })
}

fn malloc(time_ns: u64, addr: u64, used: u64) -> Vec<u8> {
    main(time_ns).pta(MALLOC, addr, 512, [used, 1 << 20, used])
}

/// Blocks of the pool end with the note, and what is reported afterwards is not taken; the driver's go on. A child has all of its calls.
#[test]
fn pools_are_let_go_of() {
    let records = [
        main(1).alloc(0x9000, 4096, device(4)),
        malloc(2, 0x1000, 512),
        malloc(3, 0x2000, 1024),
        main(4).pta(FREE, 0x1000, -512, [512, 1 << 20, 512]),
        pool_blocks(5, false),
        malloc(6, 0x3000, 1024),
        main(7).pta(FREE, 0x2000, -512, [512, 1 << 20, 512]),
        main(8).alloc(0xa000, 64, device(4)),
        main(9).free(0x9000),
        main(10).fork(9),
        at(11, 9, 9).pta(MALLOC, 0x4000, 512, [512, 1 << 20, 512]),
    ];
    check_before_end(
        &records,
        &[
            "1 7 npu4 alloc 9000+4096 used 4096 step 0",
            "2 7 npu1 alloc 1000+512 used 512 step 0",
            "3 7 npu1 alloc 2000+512 used 1024 step 0",
            "4 7 npu1 free 1000+512 used 512 Program",
            "5 7 - pools left out",
            "8 7 npu4 alloc a000+64 used 4160 step 0",
            "9 7 npu4 free 9000+4096 used 64 Program",
            "11 9 npu1 alloc 4000+512 used 512 step 0",
        ],
    );
    let ended: Vec<String> = lines(&records).into_iter().filter(|line| line.ends_with("TraceEnd")).collect();
    assert_eq!(ended[0], "5 7 npu1 free 2000+512 used 0 TraceEnd");
}

/// A request that the driver fails is followed to its end without the pool: a second attempt, and success.
#[test]
fn failed_requests_are_followed() {
    let fails = |time_ns| main(time_ns).returned("aclrtMallocAlign32", NO_MEMORY, &[500, 0]);
    check_before_end(
        &[
            main(1).set_device(1),
            malloc(2, 0x1000, 512),
            pool_blocks(3, false),
            fails(8),
            fails(9),
            main(10).alloc(0x9000, 500, device(1)),
            fails(20),
        ],
        &[
            "2 7 npu1 alloc 1000+512 used 512 step 0",
            "3 7 - pools left out",
            "8 7 npu1 failed 500 status 207001 oom request 1.1 aclrtMallocAlign32",
            "9 7 npu1 failed 500 status 207001 oom request 1.2 aclrtMallocAlign32",
            "10 7 npu1 alloc 9000+500 used 500 step 0",
            "10 7 npu1 recovered request 1 after 2",
            "20 7 npu1 failed 500 status 207001 oom request 2.1 aclrtMallocAlign32",
        ],
    );
}

/// Traced again, what the pool holds then is found as that of a process that joins. A second note of one kind changes nothing; nor does
/// another program that the process runs.
#[test]
fn pools_come_back() {
    let found = Note::PoolFound {
        pid: 7,
        pool: None,
        device: 1,
        used_bytes: 1024,
        reserved_bytes: 1 << 20,
        segments: vec![(0x1000, 1 << 20)],
        blocks: vec![(0x1000, 512, None), (0x1200, 512, None)],
    };
    check_before_end(
        &[
            main(1).exec(),
            main(2).alloc(0x1000, 1 << 20, device(1)),
            pool_blocks(3, false),
            pool_blocks(4, false),
            malloc(5, 0x1000, 512),
            pool_blocks(6, true),
            pool_blocks(7, true),
            note_record(8, 0, &Note::PoolAsked { pid: 7 }),
            malloc(9, 0x1400, 1536),
            note_record(10, 0, &found),
            note_record(11, 0, &Note::PoolRead { pid: 7 }),
            main(12).pta(FREE, 0x1200, -512, [1024, 1 << 20, 1024]),
        ],
        &[
            "2 7 npu1 alloc 1000+1048576 used 1048576 step 0",
            "3 7 - pools left out",
            "9 7 npu1 alloc 1400+512 used 1536 step 0",
            "10 7 npu1 found 1000+512 used 1536 step 0",
            "10 7 npu1 found 1200+512 used 1536 step 0",
            "12 7 npu1 free 1200+512 used 1024 Program",
        ],
    );
    check_before_end(
        &[pool_blocks(3, false), main(4).exec(), malloc(5, 0x1000, 512), main(6).alloc(0x9000, 64, device(1))],
        &["3 7 - pools left out", "6 7 npu1 alloc 9000+64 used 64 step 0"],
    );
}
