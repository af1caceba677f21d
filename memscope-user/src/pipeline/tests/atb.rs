//! ATB's operations, their workspaces and their tensors.

use memscope_common::Kind;
use memscope_common::record::{OBJECT_FAULT, OBJECT_HEAD, OBJECT_INNER};

use super::*;
use crate::backend::ascend::pools;
use crate::backend::builtin;
use crate::probes::{AtbCall, CallKind, Field};
use crate::testing::Who;

/// An operation of ATB with another inside of it; the outer one throws, and has no end.
#[test]
fn operations_of_atb() {
    const EXECUTE: &str = "_ZN3atb6Runner7ExecuteERNS_17RunnerVariantPackE";
    let first = crate::testing::row(EXECUTE);
    let call = |who: Who, kind: Kind, name: &str, values: &[u64]| {
        let mut record = who.call(kind, EXECUTE, 0, values, Some(name.as_bytes()));
        // The second row of this function is its end.
        let row = if kind == Kind::Enter { first } else { first + 1 };
        record[18..20].copy_from_slice(&row.to_le_bytes());
        record
    };
    check(
        &[
            main(1).set_device(2),
            call(main(2), Kind::Enter, "Graph", &[0x9000, 100, 20]),
            call(main(3), Kind::Enter, "Linear", &[0, 0, 0]),
            call(main(4), Kind::Return, "Linear", &[0, 0, 0]),
        ],
        &[
            "2 7 npu2 Graph begins workspace 9000+120",
            "3 7 npu2 Linear begins workspace 0+0",
            "4 7 npu2 Linear ends workspace 0+0",
        ],
    );
}

/// Number of the row of this meaning with these values.
fn row_of(meaning: CallKind, field: Field) -> u16 {
    let rows = builtin().map(crate::probes::ProbeSpec::describe);
    let found = rows.zip(1..).find(|(row, _)| row.meaning == meaning && row.fields.contains(&field));
    found.expect("a built-in row").1
}

/// A copied object: which value, its flags, its bytes.
type Copied = (u8, u8, [u8; OBJECT_HEAD]);

fn name(text: &[u8]) -> Copied {
    let mut head = [0xee; OBJECT_HEAD];
    head[..text.len()].copy_from_slice(text);
    (0, 0, head)
}

/// An `atb::Tensor`: type and format, address, bytes, sizes.
fn tensor((dtype, format): (i32, i32), addr: u64, size_bytes: u64, sizes: &[i64]) -> Copied {
    let mut head = [0; OBJECT_HEAD];
    let mut put = |at: usize, bytes: &[u8]| head[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &dtype.to_le_bytes());
    put(4, &format.to_le_bytes());
    for (index, size) in sizes.iter().enumerate() {
        put(8 + 8 * index, &size.to_le_bytes());
    }
    put(72, &(sizes.len() as u64).to_le_bytes());
    put(80, &addr.to_le_bytes());
    put(88, &0xdead_u64.to_le_bytes());
    put(96, &size_bytes.to_le_bytes());
    (1, 0, head)
}

fn with(mut tensor: Copied, at: usize, word: u64) -> Copied {
    tensor.2[at..at + 8].copy_from_slice(&word.to_le_bytes());
    tensor
}

fn passed(time: u64, field: Field, left_out: u16, objects: &[Copied]) -> Vec<u8> {
    let mut body = [0; 4].to_vec();
    body.extend((objects.len() as u16).to_le_bytes());
    body.extend(left_out.to_le_bytes());
    // No stacks.
    body.extend([0; 16]);
    for (value, flags, head) in objects {
        body.extend([0; 8]);
        body.extend([*value, *flags, 0, 0, 0, 0, 0, 0]);
        body.extend(head);
        body.extend([0; OBJECT_INNER]);
    }
    main(time).record(Kind::Objects, row_of(CallKind::Atb(AtbCall::Tensors), field), &body)
}

fn workspace(who: Who, begins: bool, addr: u64, size_bytes: u64) -> Vec<u8> {
    const EXECUTE: &str = "_ZN3atb13OperationBase7ExecuteERKNS_11VariantPackEPhmPNS_7ContextE";
    let kind = if begins { Kind::Enter } else { Kind::Return };
    let mut record = who.call(kind, EXECUTE, 0, &[addr, size_bytes], None);
    let meaning = if begins { CallKind::Atb(AtbCall::WorkspaceBegin) } else { CallKind::Atb(AtbCall::WorkspaceEnd) };
    record[18..20].copy_from_slice(&row_of(meaning, Field::Addr).to_le_bytes());
    record
}

/// Whether an input is only read is unknown; outputs are written. Those in the thread's workspace are of its block.
#[test]
fn tensors_are_used() {
    check_before_end(
        &[
            main(1).set_device(2),
            workspace(main(2), true, 0x1000, 0x100),
            passed(
                3,
                Field::Inputs,
                0,
                &[
                    name(b"LinearOperation\0rest"),
                    tensor((1, 2), 0x1000, 20, &[2, 5]),
                    tensor((27, 29), 0x10ff, 2, &[]),
                    tensor((99, -7), 0x1100, 1, &[1; 8]),
                    // In host memory; without elements.
                    tensor((1, 2), 0, 20, &[2, 5]),
                    tensor((1, 2), 0x1000, 0, &[0]),
                ],
            ),
            passed(4, Field::Outputs, 0, &[name(b"LinearOperation\0"), tensor((-1, -1), 0xfff, 3, &[3])]),
            workspace(main(5), false, 0x1000, 0x100),
            passed(6, Field::Outputs, 0, &[name(b"\0"), tensor((0, 0), 0x1000, 4, &[1])]),
        ],
        &[
            "2 7 npu2 alloc 1000+256 used 256 step 0",
            "3 7 npu2 Unknown LinearOperation block 1 1000+20 ACL_FLOAT16 ACL_FORMAT_ND [2, 5]",
            "3 7 npu2 Unknown LinearOperation block 1 10ff+2 ACL_BF16 ACL_FORMAT_FRACTAL_NZ []",
            "3 7 npu2 Unknown LinearOperation block 0 1100+1 N/A N/A [1, 1, 1, 1, 1, 1, 1, 1]",
            "4 7 npu2 Write LinearOperation block 0 fff+3 ACL_DT_UNDEFINED ACL_FORMAT_UNDEFINED [3]",
            "5 7 npu2 free 1000+256 used 0 Program",
            "6 7 npu2 Write  block 0 1000+4 ACL_FLOAT ACL_FORMAT_NCHW [1]",
        ],
    );
}

/// An impossible tensor is counted, and so is one that did not fit.
#[test]
fn bytes_are_not_believed() {
    let good = || tensor((1, 2), 0x1000, 20, &[2, 5]);
    let objects = [
        // A name that could not be read, or has no end.
        (0, OBJECT_FAULT, [b'x'; OBJECT_HEAD]),
        // Nine dimensions, many, a negative one, and one that could not be read.
        with(good(), 72, 9),
        with(good(), 72, u64::MAX),
        with(good(), 8, u64::MAX),
        (1, OBJECT_FAULT, good().2),
        good(),
    ];
    let lossy = passed(1, Field::Inputs, 7, &objects);
    let endless = passed(2, Field::Outputs, 0, &[(0, 0, [b'n'; OBJECT_HEAD]), good()]);
    // A value that the row does not have.
    let strange = passed(3, Field::Inputs, 0, &[(2, 0, good().2)]);
    let (mut pipeline, seen, _written) = tapped(config());
    pipeline.feed(&[lossy, endless, strange].concat()).expect("fed");
    let losses = pipeline.finish(&[]).end.losses;
    let long = "n".repeat(OBJECT_HEAD);
    assert_eq!(
        seen.try_iter().map(|event| line(&event)).collect::<Vec<_>>(),
        [
            "1 7 - Unknown  block 0 1000+20 ACL_FLOAT16 ACL_FORMAT_ND [2, 5]".to_owned(),
            "1 7 - uses left out".to_owned(),
            format!("2 7 - Write {long} block 0 1000+20 ACL_FLOAT16 ACL_FORMAT_ND [2, 5]"),
        ]
    );
    let counted: Vec<_> = losses.iter().map(|line| (line.reason.as_str(), line.count)).collect();
    assert_eq!(counted, [("arguments not usable", 1), ("tensor not readable", 11)]);
}

/// A workspace is a block of ATB's pool while its operation runs; none is none.
#[test]
fn workspaces_are_blocks() {
    let events = events(&[
        main(1).set_device(2),
        at(1, 7, 8).set_device(2),
        workspace(main(2), true, 0x1000, 100),
        workspace(at(3, 7, 8), true, 0x2000, 10),
        workspace(main(4), false, 0x1000, 100),
        workspace(at(5, 7, 8), false, 0x2000, 10),
        workspace(main(6), true, 0, 0),
        workspace(main(7), false, 0, 0),
        workspace(main(8), true, 0x3000, 0),
        workspace(main(9), false, 0x3000, 0),
    ]);
    let shown = |event: &Event| match event.kind {
        EventKind::Alloc(Alloc { block, used_bytes, total_bytes, .. })
        | EventKind::Free(Free { block, used_bytes, total_bytes, .. }) => {
            (block.pool, event.device, block.addr, used_bytes, total_bytes)
        }
        _ => panic!("{event:?}"),
    };
    let npu = Device::Npu(2);
    assert_eq!(
        events.iter().map(shown).collect::<Vec<_>>(),
        [
            (pools::ATB, npu, 0x1000, 100, Some(100)),
            (pools::ATB, npu, 0x2000, 110, Some(110)),
            (pools::ATB, npu, 0x1000, 10, Some(10)),
            (pools::ATB, npu, 0x2000, 0, Some(0)),
        ]
    );
}

/// One that an exception left, or that a plugin's operation began inside of, ends with the next; ends without a match
/// are ignored, also when two threads have the same memory.
#[test]
fn workspaces_that_are_left_end() {
    check(
        &[
            workspace(main(1), true, 0x1000, 100),
            workspace(main(2), true, 0x1000, 50),
            workspace(main(3), true, 0, 0),
            workspace(main(4), false, 0x1000, 50),
            workspace(main(5), true, 0x2000, 10),
            workspace(at(6, 7, 8), true, 0x2000, 10),
            workspace(main(7), false, 0x2000, 10),
            workspace(at(8, 7, 8), false, 0x2000, 10),
            workspace(main(9), true, 0x3000, 5),
            workspace(main(10), false, 0x4000, 5),
        ],
        &[
            "1 7 - alloc 1000+100 used 100 step 0",
            "2 7 - free 1000+100 used 0 Replaced",
            "2 7 - alloc 1000+50 used 50 step 0",
            "3 7 - free 1000+50 used 0 Replaced",
            "5 7 - alloc 2000+10 used 10 step 0",
            "6 7 - free 2000+10 used 0 Replaced",
            "6 7 - alloc 2000+10 used 10 step 0",
            "7 7 - free 2000+10 used 0 Program",
            "9 7 - alloc 3000+5 used 5 step 0",
            "10 7 - free 3000+5 used 0 TraceEnd",
        ],
    );
}
