//! Rows as msMemScope has them, and texts made to break readers.

use proptest::prelude::*;

use super::*;
use crate::backend::ascend::pools;
use crate::dump_format::text::is_hidden;
use crate::model::{
    Access, Alloc, AllocApi, Asked, BlockReturned, DriverFigures, Free, FreeCause, Launch, Name as SymbolName, Op,
    PageType, System, UnknownFree,
};
use crate::sinks::fixtures::{alloc, at, block, event, free};

fn csv(event: &Event) -> String {
    let mut out = Vec::new();
    Row::of(event).expect("a row").write_csv(&mut out);
    String::from_utf8(out).expect("text")
}

/// Spelt as msMemScope does, in a file that it wrote.
#[test]
fn operators_and_accesses() {
    let name: std::sync::Arc<str> = "torch._ops.aten.mul.Tensor".into();
    let op = |phase| csv(&event(EventKind::Op(Op { phase, name: std::sync::Arc::clone(&name) })));
    assert_eq!(op(OpPhase::Start), "5,OP_LAUNCH,ATEN_START,torch._ops.aten.mul.Tensor,1000,12,34,0,N/A,,,\n");
    assert_eq!(op(OpPhase::End), "5,OP_LAUNCH,ATEN_END,torch._ops.aten.mul.Tensor,1000,12,34,0,N/A,,,\n");
    let access = |shape: &[i64]| Access {
        kind: AccessKind::Write,
        op: std::sync::Arc::clone(&name),
        allocation_id: 75,
        pool: pools::PTA,
        addr: 0x1680_0903_2000,
        size_bytes: 59756,
        dtype: "torch.uint8",
        format: None,
        shape: shape.into(),
    };
    assert_eq!(
        csv(&event(EventKind::Access(access(&[59756])))),
        "5,ACCESS,WRITE,torch._ops.aten.mul.Tensor,1000,12,34,0,0x0000168009032000,\"{allocation_id:75,addr:\
         0x0000168009032000,size:59756,type:PTA,dtype:torch.uint8,shape:torch.Size([59756])}\",,\n"
    );
    for (shape, text) in [(&[][..], "([])"), (&[2, 3], "([2, 3])")] {
        assert!(csv(&event(EventKind::Access(access(shape)))).contains(&format!("shape:torch.Size{text}}}")));
    }
    let atb = |shape: &[i64]| {
        let format = Some("ACL_FORMAT_ND");
        csv(&event(EventKind::Access(Access { pool: pools::ATB, dtype: "ACL_BF16", format, ..access(shape) })))
    };
    assert!(atb(&[1, 5]).contains("type:ATB,dtype:ACL_BF16,format:ACL_FORMAT_ND,shape:[1,5,]}\""), "{}", atb(&[1, 5]));
    assert!(atb(&[]).contains("format:ACL_FORMAT_ND,shape:[]}\""));
}

fn name_db(text: &str) -> String {
    let mut out = Vec::new();
    Name::Plain(text).write_db(&mut out);
    String::from_utf8(out).expect("text")
}

fn mark(text: &str) -> EventKind {
    EventKind::Mark(Mark::Point { text: Some(text.into()) })
}

fn mark_row(cell: &str) -> String {
    format!("5,MSTX,Mark,{cell},1000,12,34,0,N/A,,,\n")
}

/// Driver blocks: a free has fewer attributes than its allocation.
#[test]
fn driver_rows() {
    assert_eq!(
        csv(&at(3, Device::Npu(7), alloc(pools::HAL, 0x3039, 1))),
        "3,MALLOC,HAL,N/A,3000,12,34,7,0x0000000000003039,\
         \"{allocation_id:1,addr:0x0000000000003039,size:10,used:10,page_type:normal,alloc_type:alloc}\",,\n"
    );
    let kind = EventKind::Alloc(Alloc {
        block: Block { page: PageType::Giant, api: AllocApi::Create, ..block(pools::HAL, u64::MAX, 2) },
        used_bytes: u64::MAX,
        total_bytes: None,
        driver: DriverFigures::default(),
        restored: false,
        promoted: false,
        asked: Asked::default(),
    });
    assert_eq!(
        csv(&event(kind)),
        "5,MALLOC,HAL,N/A,1000,12,34,0,0xffffffffffffffff,\"{allocation_id:2,addr:0xffffffffffffffff,size:10,\
         used:18446744073709551615,page_type:giant,alloc_type:create}\",,\n"
    );
    assert_eq!(
        csv(&event(free(pools::HAL, 0x3039, 1, FreeCause::Program))),
        "5,FREE,HAL,N/A,1000,12,34,0,0x0000000000003039,\
         \"{allocation_id:1,addr:0x0000000000003039,size:10,used:0}\",,\n"
    );
}

/// Pools report their reserved bytes, if known; pinned host memory is marked.
#[test]
fn pool_and_host_rows() {
    assert_eq!(
        csv(&event(alloc(pools::PTA, 0x10, 1))),
        "5,MALLOC,PTA,N/A,1000,12,34,0,0x0000000000000010,\
         \"{allocation_id:1,addr:0x0000000000000010,size:10,used:10,total:2000}\",,\n"
    );
    let EventKind::Alloc(known) = alloc(pools::PTA, 0x10, 1) else { panic!("not an allocation") };
    let asked = Alloc { block: Block { requested_bytes: Some(7), ..known.block }, ..known };
    assert_eq!(
        csv(&event(EventKind::Alloc(asked))),
        "5,MALLOC,PTA,N/A,1000,12,34,0,0x0000000000000010,\
         \"{allocation_id:1,addr:0x0000000000000010,size:10,used:10,total:2000,requested:7}\",,\n"
    );
    let without_total = EventKind::Free(Free {
        block: block(pools::ATB, 0x10, 1),
        used_bytes: 0,
        total_bytes: None,
        driver: DriverFigures::default(),
        cause: FreeCause::Program,
        owner: None,
        row_time_ns: None,
        without_row: false,
    });
    assert_eq!(
        csv(&event(without_total)),
        "5,FREE,ATB,N/A,1000,12,34,0,0x0000000000000010,\
         \"{allocation_id:1,addr:0x0000000000000010,size:10,used:0}\",,\n"
    );
    assert_eq!(
        csv(&at(5, Device::Cpu, alloc(pools::HOST, 0x10, 1))),
        "5,MALLOC,HOST,N/A,5000,12,34,cpu,0x0000000000000010,\
         \"{allocation_id:1,addr:0x0000000000000010,size:10,pinned:true,used:10}\",,\n"
    );
}

/// The driver's figures stand behind the pool's; host memory and made-up rows have none (contract §6.2).
#[test]
fn rows_have_the_drivers_figures() {
    let driver = DriverFigures { process_used_bytes: Some(7), device_used_bytes: Some(9) };
    let row = |pool, restored| {
        let block = block(pool, 0x10, 1);
        let (used_bytes, total_bytes, promoted, asked) = (1, Some(2), false, Asked::default());
        csv(&event(EventKind::Alloc(Alloc { block, used_bytes, total_bytes, driver, restored, promoted, asked })))
    };
    assert!(
        row(pools::HAL, false).contains(",size:10,used:1,process_used:7,device_used:9,page_type:normal,alloc_type:")
    );
    assert!(row(pools::PTA, false).contains(",size:10,used:1,total:2,process_used:7,device_used:9"));
    assert!(row(pools::HOST, false).ends_with(",size:10,pinned:true,used:1}\",,\n"));
    assert!(row(pools::PTA, true).ends_with(",size:10,shadow:true}\",,\n"));
    let unlisted = DriverFigures { process_used_bytes: None, ..driver };
    let kind = EventKind::Free(Free {
        block: block(pools::HAL, 0x10, 1),
        used_bytes: 1,
        total_bytes: None,
        driver: unlisted,
        cause: FreeCause::Program,
        owner: None,
        row_time_ns: None,
        without_row: false,
    });
    assert!(csv(&event(kind)).ends_with(",size:10,used:1,device_used:9}\",,\n"));
}

/// The owner of a block stands behind the figures (contract §6.2), on its MALLOC row alone.
#[test]
fn rows_have_owners() {
    const FIGURES: &str = "process_used:7,device_used:9,owner:PTA@weight";
    let driver = DriverFigures { process_used_bytes: Some(7), device_used_bytes: Some(9) };
    let row = |pool, restored| {
        let (owner, requested_bytes) = (Some(SymbolName::keep("PTA@weight")), Some(3));
        let block = Block { requested_bytes, owner, ..block(pool, 0x10, 1) };
        let (used_bytes, total_bytes, promoted, asked) = (1, Some(2), false, Asked::default());
        csv(&event(EventKind::Alloc(Alloc { block, used_bytes, total_bytes, driver, restored, promoted, asked })))
    };
    assert!(row(pools::HAL, false).contains(&format!(",used:1,{FIGURES},page_type:normal,alloc_type:alloc}}")));
    assert!(row(pools::PTA, false).contains(&format!(",used:1,total:2,{FIGURES},requested:3}}")));
    assert!(row(pools::HOST, false).contains(",used:1,owner:PTA@weight,requested:3}"));
    assert!(!row(pools::PTA, true).contains("owner"));
    let EventKind::Free(free) = free(pools::PTA, 0x10, 1, FreeCause::Program) else { panic!("not a free") };
    let owned = Free { block: Block { owner: Some(SymbolName::keep("PTA")), ..free.block }, ..free };
    assert!(!csv(&event(EventKind::Free(owned))).contains("owner"));
}

/// A block from before the attach is marked; its figures are those of its pool.
#[test]
fn found_rows_are_marked() {
    const START: &str = ",\"{allocation_id:1,addr:0x0000000000000010,size:10,used:10,";
    let row = |pool| {
        let EventKind::Alloc(alloc) = alloc(pool, 0x10, 1) else { panic!() };
        let block = Block { found: true, requested_bytes: Some(7), ..alloc.block };
        csv(&event(EventKind::Alloc(Alloc { block, ..alloc })))
    };
    let pool = format!("{START}total:2000,found:true,requested:7}}\",,\n");
    assert!(row(pools::PTA).ends_with(&pool), "{}", row(pools::PTA));
    let driver = format!("{START}found:true,page_type:normal,alloc_type:alloc}}\",,\n");
    assert!(row(pools::HAL).ends_with(&driver), "{}", row(pools::HAL));
}

/// Rows without a call of the program have no totals, and are marked.
#[test]
fn made_up_rows_have_a_shadow() {
    const TAIL: &str = ",\"{allocation_id:1,addr:0x0000000000000010,size:10,shadow:true}\",,\n";
    for pool in [pools::HAL, pools::HOST, pools::PTA_WORKSPACE] {
        for cause in [FreeCause::ProcessEnd, FreeCause::Replaced, FreeCause::TraceEnd] {
            let text = csv(&event(free(pool, 0x10, 1, cause)));
            assert!(text.ends_with(TAIL), "{text}");
        }
    }
    let restored = |pool| {
        let block = block(pool, 0x10, 1);
        csv(&event(EventKind::Alloc(Alloc {
            block,
            used_bytes: 1,
            total_bytes: Some(2),
            driver: DriverFigures::default(),
            restored: true,
            promoted: false,
            asked: Asked::default(),
        })))
    };
    assert!(restored(pools::MIND_SPORE).ends_with(TAIL));
    // As msMemScope's promoted blocks (contract §7.3): the block is unchanged.
    assert!(restored(pools::HAL).ends_with(",size:10,shadow:true,page_type:normal,alloc_type:alloc}\",,\n"));
}

/// The stream is its number where known, else its pointer.
#[test]
fn launch_rows() {
    let launch =
        |name: &str, stream, stream_id| csv(&event(EventKind::Launch(Launch { name: name.into(), stream, stream_id })));
    assert_eq!(
        launch("Add_fp16", 0xffff, Some(2)),
        "5,KERNEL_LAUNCH,KERNEL_LAUNCH,Add_fp16,1000,12,34,0,N/A,\"{streamId:2,taskId:N/A}\",,\n"
    );
    assert!(launch("a", 0xffff, Some(-1)).contains("{streamId:-1,"));
    assert!(launch("a", 0xffff, None).contains("{streamId:65535,"));
    assert!(launch("a", 0, None).contains("{streamId:0,"));
    assert!(launch("", 0, None).contains(",N/A,1000,"));
    assert!(launch("f<a, b>", 0, None).contains(",\"f<a, b>\",1000,"));
    assert!(launch("f\"x", 0, None).contains(",\"f\"\"x\",1000,"));
}

/// Marks are quoted once; the end of a range names it by the id that pairs it.
#[test]
fn mark_rows() {
    let start = Mark::RangeStart { text: Some("step start".into()), range_id: 4 };
    assert_eq!(csv(&event(EventKind::Mark(start))), "5,MSTX,Range_start,\"step start\",1000,12,34,0,N/A,,,\n");
    let end = |range_id| csv(&event(EventKind::Mark(Mark::RangeEnd { range_id, passed_id: 9 })));
    assert_eq!(end(Some(4)), "5,MSTX,Range_end,\"Range end from id 4\",1000,12,34,0,N/A,,,\n");
    assert_eq!(end(None), "5,MSTX,Range_end,\"Range end from id 9\",1000,12,34,0,N/A,,,\n");
    assert_eq!(csv(&event(EventKind::Mark(Mark::Point { text: None }))), mark_row("N/A"));
    assert_eq!(csv(&event(mark(""))), mark_row("\"\""));
}

/// ACL rows.
#[test]
fn system_rows() {
    let row = |system| csv(&Event { device: Device::None, ..event(EventKind::System(system)) });
    assert_eq!(row(System::AclInit), "5,SYSTEM,ACL_INIT,N/A,1000,12,34,N/A,N/A,,,\n");
    assert_eq!(row(System::AclFinalize), "5,SYSTEM,ACL_FINI,N/A,1000,12,34,N/A,N/A,,,\n");
}

/// Kinds that only analyses look at have no row.
#[test]
fn other_kinds_have_no_row() {
    let kinds = [
        EventKind::StepStart { step: 1 },
        EventKind::StepEnd { step: 1 },
        EventKind::ProcessEnd,
        EventKind::UnknownFree(UnknownFree {
            pool: pools::HAL,
            addr: 1,
            size_bytes: None,
            maybe_older: false,
            refused: false,
        }),
        EventKind::ProbeDisabled { symbol: SymbolName::fixed(&"f") },
    ];
    for kind in kinds {
        assert_eq!(Row::of(&event(kind)), None);
    }
}

/// A pool has a block back for good; a row of ours.
#[test]
fn block_free_row() {
    let returned = BlockReturned {
        pool: pools::PTA,
        allocation_id: Some(9),
        addr: 0x1000,
        size_bytes: 512,
        used_bytes: 10,
        total_bytes: 2048,
        active_bytes: 20,
    };
    let expected = "5,BLOCK_FREE,PTA,N/A,1000,12,34,0,0x0000000000001000,\"{allocation_id:9,addr:0x0000000000001000,\
                    size:512,used:10,total:2048,active:20}\",,\n";
    assert_eq!(csv(&event(EventKind::BlockReturned(returned))), expected);
}

/// Texts made to break a reader, a terminal or a spreadsheet do neither.
#[test]
fn hostile_texts() {
    let cases = [
        ("a\",\"b", r#"a"",""b"#),
        ("two\nlines\r\n", r"two\nlines\r\n"),
        ("tab\there", r"tab\there"),
        (r"not\n", r"not\\n"),
        ("\x1b[31mred\x07\x7f", r"\u{1b}[31mred\u{7}\u{7f}"),
        ("\u{9b}31m", r"\u{9b}31m"),
        ("abc\u{202e}cba\u{2069}", r"abc\u{202e}cba\u{2069}"),
        ("中文，mark", "中文，mark"),
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@x", "'@x"),
        ("''=x", "'''=x"),
        ("'quoted'", "'quoted'"),
        ("a=b+c-d@e:{f}", "a=b+c-d@e:{f}"),
    ];
    for (text, cell) in cases {
        assert_eq!(csv(&event(mark(text))), mark_row(&format!("\"{cell}\"")), "{text:?}");
    }
}

/// Undoes the rules of the module's documentation, as a reader would.
fn recover(text: &str) -> String {
    let formula = text.starts_with('\'') && text.trim_start_matches('\'').starts_with(['=', '+', '-', '@']);
    let mut rest = if formula { &text[1..] } else { text };
    let mut out = String::new();
    while let Some((before, escape)) = rest.split_once('\\') {
        out.push_str(before);
        let (kind, tail) = escape.split_at(1);
        rest = tail;
        match kind {
            "n" => out.push('\n'),
            "r" => out.push('\r'),
            "t" => out.push('\t'),
            "u" => {
                let (code, tail) = rest[1..].split_once('}').expect("closed");
                out.extend(char::from_u32(u32::from_str_radix(code, 16).expect("hex")));
                rest = tail;
            }
            other => out.push_str(other),
        }
    }
    out + rest
}

proptest! {
    /// Any text can be recovered, and its cell holds no control characters.
    #[test]
    fn texts_can_be_recovered(
        head in proptest::collection::vec(proptest::sample::select(vec!['\'', '=', '+']), 0..3),
        tail in proptest::collection::vec(prop_oneof![
            any::<char>(),
            proptest::sample::select(vec!['\\', 'n', 'u', '{', '}', '\n', '\t', '"', '\u{202e}', '\x1b']),
        ], 0..20),
    ) {
        let text: String = head.into_iter().chain(tail).collect();
        let written = name_db(&text);
        prop_assert!(!written.chars().any(is_hidden));
        prop_assert_eq!(recover(&written), text);
    }

    /// A cell is one cell: quotes inside are doubled, and there is one line.
    #[test]
    fn cells_are_one_cell(text in any::<String>()) {
        let row = csv(&event(mark(&text)));
        prop_assert_eq!(row.matches('\n').count(), 1);
        let cell = row.strip_prefix("5,MSTX,Mark,\"").and_then(|rest| rest.strip_suffix("\",1000,12,34,0,N/A,,,\n"));
        prop_assert!(!cell.expect("quoted").replace("\"\"", "").contains('"'));
    }

    /// Own number writers agree with the library's.
    #[test]
    fn numbers(number in any::<u64>()) {
        let mut out = Vec::new();
        push_decimal(&mut out, number);
        out.push(b' ');
        push_address(&mut out, number);
        prop_assert_eq!(String::from_utf8(out).expect("text"), format!("{number} 0x{number:016x}"));
    }
}
