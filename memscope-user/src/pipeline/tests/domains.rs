//! Domains and pools of mstx, and pools by functions that return their blocks.

use memscope_common::Kind;

use super::*;
use crate::probes::{CallKind, Field, Layer, MemoryCall, RowInfo, user};

const NO_TOOL: u64 = 0;

/// What users of mstx do, as the kernel side reports it.
trait Mstx {
    fn domain(self, name: &str, handle: i64) -> Vec<u8>;
    fn heap(self, domain: u64, range: [u64; 3], handle: i64) -> Vec<u8>;
    fn region(self, domain: u64, range: [u64; 3], handle: u64) -> Vec<u8>;
    fn region_end(self, domain: u64, kind: u64, value: u64) -> Vec<u8>;
}

/// Memory's padding behind the 32-bit numbers is not zero in real programs.
const PADDING: u64 = 0xdead_beef << 32;

impl Mstx for Who {
    fn domain(self, name: &str, handle: i64) -> Vec<u8> {
        self.call(Kind::Return, "mstxDomainCreateA", handle, &[], Some(name.as_bytes()))
    }

    fn heap(self, domain: u64, [device, addr, size]: [u64; 3], handle: i64) -> Vec<u8> {
        self.returned("mstxMemHeapRegister", handle, &[domain, device | PADDING, addr, size, 0])
    }

    fn region(self, domain: u64, [device, addr, size]: [u64; 3], handle: u64) -> Vec<u8> {
        self.returned("mstxMemRegionsRegister", 0, &[domain, device | PADDING, addr, size, handle])
    }

    fn region_end(self, domain: u64, kind: u64, value: u64) -> Vec<u8> {
        self.entered("mstxMemRegionsUnregister", &[domain, kind | PADDING, value, 0, 0])
    }
}

/// Event type, used and total of every allocation and free.
fn sums(records: &[Vec<u8>]) -> Vec<(&'static str, u64, Option<u64>)> {
    let sums = |event: Event| match event.kind {
        EventKind::Alloc(alloc) => Some((alloc.block.pool.event_type(), alloc.used_bytes, alloc.total_bytes)),
        EventKind::Free(free) if free.cause != FreeCause::TraceEnd => {
            Some((free.block.pool.event_type(), free.used_bytes, free.total_bytes))
        }
        _ => None,
    };
    events(records).into_iter().filter_map(sums).collect()
}

/// A pool without a tool: two threads with pools of their own, on the devices that they name.
#[test]
fn custom_pools_are_pools() {
    let records = [
        main(1).start(false, Some("4,5")),
        main(2).domain("mine", 0),
        at(3, 7, 8).domain("other", 0),
        main(4).heap(NO_TOOL, [1, 0x1000, 4096], 0),
        main(5).region(NO_TOOL, [1, 0x1000, 512], 0),
        at(6, 7, 8).region(NO_TOOL, [0, 0x1000, 64], 0),
        main(7).region(NO_TOOL, [1, 0x1200, 100], 0),
        main(8).region_end(NO_TOOL, 0, 0x1000),
        at(9, 7, 8).region_end(NO_TOOL, 0, 0x1000),
        main(10).region_end(NO_TOOL, 0, 0x9000),
    ];
    check_before_end(
        &records,
        &[
            "1 7 - process prog",
            "5 7 npu5 alloc 1000+512 used 512 step 0",
            "6 7 npu4 alloc 1000+64 used 64 step 0",
            "7 7 npu5 alloc 1200+100 used 612 step 0",
            "8 7 npu5 free 1000+512 used 100 Program",
            "9 7 npu4 free 1000+64 used 0 Program",
            "10 7 - unknown free 9000 older false",
        ],
    );
    assert_eq!(
        sums(&records),
        [
            ("mine", 512, Some(4096)),
            ("other", 64, None),
            ("mine", 612, Some(4096)),
            ("mine", 100, Some(4096)),
            ("other", 0, None)
        ]
    );
}

/// With a tool there are handles: of domains, which then count in every thread, and of blocks.
#[test]
fn handles_of_a_tool_are_followed() {
    let records = [
        main(1).domain("mine", 0xd1),
        main(2).domain("other", 0xd2),
        at(3, 7, 8).region(0xd1, [0, 0x1000, 10], 0xa1),
        at(4, 7, 9).region(0xd2, [0, 0x1000, 20], 0xa1),
        main(5).region_end(0xd1, 1, 0xa1),
        main(6).region_end(0xd1, 1, 0xa1),
    ];
    assert_eq!(sums(&records), [("mine", 10, None), ("other", 20, None), ("mine", 0, None)]);
}

/// A framework that reports by mstx and by its own function reports everything twice: the function wins, whichever was
/// first.
#[test]
fn frameworks_are_not_counted_twice() {
    let records = [
        main(1).domain("ptaCaching", 0),
        main(2).heap(NO_TOOL, [1, 0, 2048], 0),
        main(3).region(NO_TOOL, [1, 0x100, 512], 0),
        main(4).pta((0, 0), 0x100, 512, [512, 2048, 512]),
        main(5).region(NO_TOOL, [1, 0x300, 512], 0),
        main(6).pta((0, 0), 0x300, 512, [1024, 2048, 1024]),
        main(7).region_end(NO_TOOL, 0, 0x100),
        main(8).pta((0, 1), 0x100, -512, [512, 2048, 512]),
    ];
    assert_eq!(sums(&records), [("PTA", 512, Some(2048)), ("PTA", 1024, Some(2048)), ("PTA", 512, Some(2048))]);
}

/// Reports by mstx alone count, under the frameworks' own names; heaps of those are totals.
#[test]
fn frameworks_may_tell_by_mstx_alone() {
    let mut records = Vec::new();
    for (domain, time) in [("msleaks", 10), ("ptaWorkspace", 20), ("mindsporeMemPool", 30)] {
        records.push(main(time).domain(domain, 0));
        records.push(main(time + 1).heap(NO_TOOL, [0, 0x10, 5000], 0));
        records.push(main(time + 2).heap(NO_TOOL, [0, 0x20, 7000], 0));
        records.push(main(time + 3).region(NO_TOOL, [0, 0x1000, 10], 0));
    }
    let pools: Vec<_> = sums(&records);
    assert_eq!(pools, [("PTA", 10, Some(7000)), ("PTA_WORKSPACE", 10, Some(7000)), ("MINDSPORE", 10, Some(7000))]);
}

/// Marks of domains carry their names, are never steps, and do not disturb other ranges.
#[test]
fn marks_of_domains_are_apart() {
    let mark = |who: Who, text: &str| who.call(Kind::Enter, "mstxDomainMarkA", 0, &[0], Some(text.as_bytes()));
    let start = |who: Who, text: &str| who.call(Kind::Enter, "mstxDomainRangeStartA", 0, &[0], Some(text.as_bytes()));
    let end = |who: Who| who.entered("mstxDomainRangeEnd", &[0, 0]);
    check(
        &[
            mark(main(1), "early"),
            main(2).domain("comm, \"x\"", 0),
            main(3).range_start("outer"),
            start(main(4), "step start"),
            mark(main(5), "now"),
            main(6).range_end(0),
            end(main(7)),
            end(main(8)),
        ],
        &[
            "1 7 - unknown: mark early",
            "3 7 - start outer 1",
            "4 7 - comm___x_: start step start 2",
            "5 7 - comm___x_: mark now",
            "6 7 - end Some(1)",
            "7 7 - comm___x_: end Some(2)",
            "8 7 - comm___x_: end None",
        ],
    );
}

/// Rows that the user defined, numbered behind ours: the device is that of the thread, unless an argument has it.
#[test]
fn pools_of_the_user() {
    let specs = [
        "libp.so:get=alloc(size=0,ret=ptr)",
        "libp.so:put=free(ptr=0)",
        "libp.so:calloc_on=alloc(size=1,count=2,device=3,out=0)",
        "libp.so:old_mindspore=alloc(size=1,ret=ptr,pool=MINDSPORE)",
    ];
    let own: Vec<RowInfo> = specs.iter().map(|text| user::parse(text).expect("valid").describe()).collect();
    let first = rows().len() as u16 + 1;
    let (mut pipeline, seen, _written) = tapped(PipelineConfig { rows: [rows(), own].concat(), ..config() });
    let call = |who: Who, kind: Kind, row: u16, status: i64, values: &[u64]| {
        let mut body = status.to_le_bytes().to_vec();
        body.extend([values.len() as u8, 0, 0, 0, 0, 0, 0, 0]);
        // No stacks.
        body.extend([0; 16]);
        body.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        who.record(kind, first + row, &body)
    };
    let records = [
        main(1).set_device(3),
        call(main(2), Kind::Return, 0, 0x1000, &[100]),
        call(main(3), Kind::Return, 0, 0, &[1 << 40]),
        // size, count, device, pointer
        call(main(4), Kind::Return, 2, 0, &[8, 5, 2, 0x2000]),
        call(main(5), Kind::Return, 2, 12, &[8, 5, 2, 0]),
        call(main(6), Kind::Enter, 1, 0, &[0x1000]),
        call(main(7), Kind::Return, 3, 0x1000, &[77]),
    ];
    pipeline.feed(&records.concat()).expect("fed");
    drop(pipeline.finish(&[]));
    let found: Vec<String> = seen
        .try_iter()
        .filter_map(|event| match &event.kind {
            EventKind::Alloc(alloc) => Some(format!("{} {}", alloc.block.pool.event_type(), line(&event))),
            EventKind::Free(free) if free.cause == FreeCause::Program => Some(line(&event)),
            _ => None,
        })
        .collect();
    assert_eq!(
        found,
        [
            "p 2 7 npu3 alloc 1000+100 used 100 step 0",
            "p 4 7 npu2 alloc 2000+40 used 40 step 0",
            "6 7 npu3 free 1000+100 used 0 Program",
            "MINDSPORE 7 7 npu3 alloc 1000+77 used 77 step 0",
        ]
    );
}

/// Captures of before there were pools in rows are read as they were.
#[test]
fn older_rows_have_no_pool() {
    let json = r#"{"layer":"hal","symbol":"halMemFree","meaning":"hal_free","fields":["addr"]}"#;
    let row: RowInfo = serde_json::from_str(json).expect("a row");
    let expected = RowInfo {
        layer: Layer::Hal,
        symbol: "halMemFree".to_owned(),
        meaning: CallKind::Memory(MemoryCall::Free),
        fields: vec![Field::Addr],
        pool: None,
        own_return: false,
    };
    assert_eq!(row, expected);
    assert_eq!(serde_json::to_string(&row).expect("JSON"), json);
}

/// Marks of `torch_npu`'s sanitizer are accesses, no marks; what only begins like one is a mark.
#[test]
fn marks_of_the_sanitizer_are_accesses() {
    let text = "sanitizer-op: name=aten::add;read=self:0x100:12;write=out:0x900:4";
    check_before_end(
        &[main(1).pta((0, 0), 0x100, 512, [512, 2048, 512]), main(2).mark(text), main(3).mark("sanitizer-op: of mine")],
        &[
            "1 7 npu1 alloc 100+512 used 512 step 0",
            "2 7 npu1 Read aten::add block 1 100+12 N/A []",
            "2 7 - Write aten::add block 0 900+4 N/A []",
            "3 7 - mark sanitizer-op: of mine",
        ],
    );
}

/// A block of the pool that another stream uses is known by its address, on its own device. Memory of others, an address of none, blocks that are freed, and
/// those of a process without its pools are not.
#[test]
fn streams_use_blocks_of_pools() {
    let uses = |time_ns, addr| main(time_ns).entered("NpuCachingAllocator::recordStream", &[addr]);
    check_before_end(
        &[
            main(1).set_device(4),
            main(2).alloc(0x1000, 1 << 20, device(1)),
            main(3).pta((0, 0), 0x1000, 512, [512, 1 << 20, 512]),
            uses(4, 0x1000),
            uses(5, 0x1200),
            uses(6, 0),
            main(7).pta((0, 1), 0x1000, -512, [0, 1 << 20, 512]),
            uses(8, 0x1000),
            main(20).note(&Note::PoolBlocks { pid: 7, traced: false }),
            uses(21, 0x1000),
        ],
        &[
            "2 7 npu1 alloc 1000+1048576 used 1048576 step 0",
            "3 7 npu1 alloc 1000+512 used 512 step 0",
            "4 7 npu1 stream uses PTA 2 at 0x1000",
            "7 7 npu1 free 1000+512 used 0 Program",
            "20 7 - pools left out",
        ],
    );
}
