//! An invented runtime: its driver, its pool and its words go from table to report, and no other code knows it.

use memscope_common::{Fetch, Kind, When};

use super::*;
use crate::analyses::{HeldAnalysis, Report};
use crate::backend::{Fields, Place};
use crate::model::{Module, ModuleInfo, ModuleRole, PoolInfo, PoolLevel};
use crate::probes::{Field, Layer, MemoryCall, PoolCall, ProbeSpec};

const DRIVER: ProbeSpec = ProbeSpec { layer: Layer::Hal, libraries: &["libquartz.so"], ..ProbeSpec::BASE };
const ARENA_CALL: ProbeSpec =
    ProbeSpec { libraries: &["libarena.so"], pool: Some("ARENA"), returns_int: false, ..DRIVER };

const ROWS: &[ProbeSpec] = &[
    // int qz_alloc(void **block, size_t size, uint32_t where): the upper half is the user, bit 0 is the host
    ProbeSpec {
        symbol: "qz_alloc",
        meaning: CallKind::Memory(MemoryCall::Alloc),
        fields: &[(Field::Addr, Fetch::out(0)), (Field::Size, Fetch::arg(1)), (Field::Flags, Fetch::arg(2))],
        ..DRIVER
    },
    // int qz_free(void *block)
    ProbeSpec {
        symbol: "qz_free",
        meaning: CallKind::Memory(MemoryCall::Free),
        when: When::EntryAndNonZero,
        fields: &[(Field::Addr, Fetch::arg(0))],
        ..DRIVER
    },
    // void *arena_take(size_t size, int device)
    ProbeSpec {
        symbol: "arena_take",
        meaning: CallKind::Pool(PoolCall::Alloc),
        fields: &[(Field::Size, Fetch::arg(0)), (Field::Device, Fetch::arg(1))],
        ..ARENA_CALL
    },
    // void arena_give(void *block)
    ProbeSpec {
        symbol: "arena_give",
        meaning: CallKind::Pool(PoolCall::Free),
        when: When::Entry,
        fields: &[(Field::Addr, Fetch::arg(0))],
        ..ARENA_CALL
    },
];

const fn pool(order: u8, level: PoolLevel, event_type: &'static str, display_name: &'static str) -> PoolInfo {
    PoolInfo { order, level, event_type, display_name, title: display_name, owner: event_type, ..PoolInfo::BASE }
}

static CARD_INFO: PoolInfo = pool(0, PoolLevel::Driver, "CARD", "Card memory");
static PAGES_INFO: PoolInfo = pool(1, PoolLevel::Host, "PAGES", "Locked pages");
static ARENA_INFO: PoolInfo = pool(2, PoolLevel::Framework, "ARENA", "Arena");
const CARD: Pool = Pool::known(&CARD_INFO);
const PAGES: Pool = Pool::known(&PAGES_INFO);
const ARENA: Pool = Pool::known(&ARENA_INFO);
static LOADER: ModuleInfo = ModuleInfo { id: 9, name: "LOADER", role: ModuleRole::Runtime };

#[derive(Debug)]
struct Quartz;

impl Backend for Quartz {
    fn name(&self) -> &'static str {
        "quartz"
    }

    fn tables(&self) -> &'static [&'static [ProbeSpec]] {
        &[ROWS]
    }

    fn visible_devices(&self) -> &'static str {
        "QUARTZ_CARDS"
    }

    fn pools(&self) -> &'static [Pool] {
        const { &[CARD, PAGES, ARENA] }
    }

    fn driver_pool(&self) -> Pool {
        CARD
    }

    fn host_pool(&self) -> Pool {
        PAGES
    }

    fn place(&self, _: AllocApi, field: Fields<'_>) -> Option<Place> {
        let flags = field(Field::Flags)?;
        let (pool, device) = if flags & 1 == 1 { (PAGES, Device::Cpu) } else { (CARD, Device::Npu(0)) };
        let module_id = Some(self.module((flags >> 32) as u8));
        Some(Place { pool, device, module_id, page: PageType::Normal, is_memory: true })
    }

    fn is_out_of_memory(&self, status: i32) -> bool {
        status == -12
    }

    fn module(&self, _: u8) -> Module {
        Module::known(&LOADER)
    }

    fn module_named(&self, _: &str) -> Option<Module> {
        None
    }
}

/// A call of row `row`, from 1.
fn call(who: Who, kind: Kind, row: u16, status: i64, values: &[u64]) -> Vec<u8> {
    let mut body = status.to_le_bytes().to_vec();
    body.extend([values.len() as u8, 0, 0, 0, 0, 0, 0, 0]);
    body.extend([0; 16]);
    body.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    who.record(kind, row, &body)
}

/// From a table by records to events, and to the report: the pool, the driver's module, device and host, and addresses
/// that are no memory are as the backend defines them.
#[test]
fn another_runtime_comes_from_table_to_report() {
    let records = [
        main(1).start(false, None),
        call(main(2), Kind::Return, 1, 0, &[0x1000, 4096, 9 << 32]),
        call(main(3), Kind::Return, 1, 0, &[0x9000, 64, 9 << 32 | 1]),
        call(main(4), Kind::Return, 3, 0x1000, &[1024, 0]),
        call(main(5), Kind::Return, 3, 0x1400, &[2048, 0]),
        call(main(6), Kind::Enter, 4, 0, &[0x1400]),
        call(main(7), Kind::Return, 1, -12, &[0, 1 << 40, 0]),
        call(main(8), Kind::Enter, 2, 0, &[0x9000]),
    ];
    let rows = Quartz.tables().iter().copied().flatten().map(ProbeSpec::describe).collect();
    let config = PipelineConfig { backend: &Quartz, rows, ..config() };
    let mut pipeline = Pipeline::new(config, Audience::of(vec![Box::new(HeldAnalysis::default())]));
    pipeline.feed(&records.concat()).expect("fed");
    let outcome = pipeline.finish(&[]);
    let mut report = Vec::new();
    Report { step_hint: false, losses: false, ..Report::default() }
        .write_text(&outcome.findings, &outcome.end, &mut report)
        .expect("written");
    let report = String::from_utf8(report).expect("text");
    let lines: Vec<&str> = report.lines().collect();
    assert_eq!(
        lines,
        [
            "Card memory held at the end on device 0: 4.00 KiB (4096 bytes) in 1 block; peak 4.00 KiB (4096 bytes); \
             1 allocation, 0 frees, 1 failed allocation",
            "  Module              Blocks  Size",
            "  LOADER                   1  4.00 KiB (4096 bytes)",
            "Arena held at the end on device 0: 1.00 KiB (1024 bytes) in 1 block; peak 3.00 KiB (3072 bytes); \
             2 allocations, 1 free",
            "Locked pages held at the end on device host: nothing; peak 64 bytes; 1 allocation, 1 free",
        ]
    );
}
