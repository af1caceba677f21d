//! Operators and their tensors, from records with bytes made by hand.

use super::*;
use crate::model::{Stack, StackEnd};
use crate::testing::ops::{Copied, ENTER, LEAVE, notes};

fn passed(time: u64, row: u16, detail: u32, tensors: &[(u8, Copied)]) -> Vec<u8> {
    main(time).passed(row, detail, tensors)
}

/// Reads come at the beginning, writes at the end; the block is that of the storage, also behind its start.
#[test]
fn tensors_are_used() {
    let part = Copied::of(0x100, &[3]).with(136, 7);
    check_before_end(
        &[
            notes(),
            main(1).pta((0, 0), 0x100, 512, [512, 2048, 512]),
            passed(
                2,
                ENTER,
                5,
                &[(0, part), (1, Copied::of(0x900, &[2, 5]).with(152, 6 | 20 << 16 | 1 << 24 | 1 << 32))],
            ),
            passed(3, LEAVE, 5, &[(0, Copied::of(0x100, &[]))]),
        ],
        &[
            "1 7 npu1 alloc 100+512 used 512 step 0",
            "2 7 - op Start torch._ops.aten.mul.Tensor",
            "2 7 npu1 Read torch._ops.aten.mul.Tensor block 1 107+3 torch.uint8 [3]",
            "2 7 npu1 Read torch._ops.aten.mul.Tensor block 0 900+40 torch.float32 [2, 5]",
            "3 7 npu1 Write torch._ops.aten.mul.Tensor block 1 100+1 torch.uint8 []",
            "3 7 - op End torch._ops.aten.mul.Tensor",
        ],
    );
}

/// Begin, end and accesses have the stacks of their record.
#[test]
fn operators_have_stacks() {
    let (mut pipeline, seen, _written) = tapped(config());
    let mut begin = passed(2, ENTER, 5, &[(0, Copied::of(0x100, &[3]))]);
    begin[32..40].copy_from_slice(&5_u64.to_le_bytes());
    begin[40..48].copy_from_slice(&6_u64.to_le_bytes());
    let records = [
        notes(),
        main(1).native(5, 1, &[0x1010], StackEnd::NoRule),
        main(1).python(6, 1, &[], StackEnd::NotPython),
        begin,
        passed(3, LEAVE, 5, &[]),
    ];
    pipeline.feed(&records.concat()).expect("fed");
    drop(pipeline.finish(&[]));
    let shown = |stack: Option<Stack>| stack.map(|stack| (stack.texts(), stack.end()));
    let stacks: Vec<_> =
        seen.try_iter().map(|event| (shown(event.stacks.native), shown(event.stacks.python))).collect();
    let both = (Some((vec!["[0x1010]"], StackEnd::NoRule)), Some((vec![], StackEnd::NotPython)));
    assert_eq!(stacks, [both.clone(), both, (None, None)]);
}

/// Impossible tensors are counted, irrelevant ones are not.
#[test]
fn bytes_are_not_believed() {
    let shape = || Copied::of(0x100, &[2, 3]);
    let tensors = [
        // A number of elements that differs from the sizes; sizes below 0, too many, too large; an unknown type; an
        // offset below 0; an address beyond all memory.
        shape().with(144, 7),
        shape().with(56, u64::MAX).with(144, 3_u64.wrapping_neg()),
        shape().with(48, 11),
        shape().with(48, u64::MAX),
        Copied::of(0x100, &[1 << 62, 4]).with(144, 0),
        shape().with(152, 0xc8 | 20 << 16 | 1 << 24 | 1 << 32),
        shape().with(136, u64::MAX),
        Copied::of(u64::MAX, &[1]).with(136, 5),
    ];
    let harmless = [
        // No device; a device that is not ours; no memory; no elements.
        shape().with(152, 0),
        shape().with(152, 1 << 16 | 1 << 32),
        Copied::of(0, &[2]),
        Copied::of(0x100, &[2, 0]),
    ];
    let all = tensors.into_iter().chain(harmless).map(|tensor| (0, tensor)).collect::<Vec<_>>();
    let records = [notes(), passed(1, ENTER, 5, &all)].concat();
    let (mut pipeline, seen, _written) = tapped(config());
    pipeline.feed(&records).expect("fed");
    let losses = pipeline.finish(&[]).end.losses;
    let events: Vec<EventKind> = seen.try_iter().map(|event| event.kind).collect();
    assert!(matches!(events[..], [EventKind::Op(_), EventKind::UsesLeftOut]), "{events:?}");
    let lines: Vec<_> = losses.iter().map(|line| (line.reason.as_str(), line.count)).collect();
    assert_eq!(lines, [("tensor not readable", 8)]);
}

/// Unknown operators, and records that contradict themselves, are counted.
#[test]
fn unknown_operators_are_counted() {
    let mut cut = passed(3, ENTER, 5, &[(0, Copied::of(0x100, &[1]))]);
    cut[28] = 2;
    let mut many = passed(4, ENTER, 5, &[]);
    many[28] = 17;
    let records = [notes(), passed(1, ENTER, 6, &[]), passed(2, 299, 5, &[]), cut, many].concat();
    let (mut pipeline, seen, _written) = tapped(config());
    pipeline.feed(&records).expect("fed");
    let losses = pipeline.finish(&[]).end.losses;
    assert_eq!(seen.try_iter().count(), 0);
    let lines: Vec<_> = losses.iter().map(|line| (line.reason.as_str(), line.count)).collect();
    assert_eq!(lines, [("not decodable", 2), ("arguments not usable", 2)]);
}
