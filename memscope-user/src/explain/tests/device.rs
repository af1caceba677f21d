//! A device's memory outside of pools.

use super::*;
use crate::analyses::held::HeldModule;

/// 5 % of 64 GiB are 3.2 GiB; without the driver's figures 10 % of the process's memory, and 64 MiB at least.
#[test]
fn buffers_of_communicators() {
    let least = 64 * GIB * 5 / 100 + 1;
    let of = |bytes| ledger(32 * GIB, &[(Item::Hccl, bytes)]);
    let module = HeldModule { module: "HCCL", blocks: 8, size_bytes: least };
    let held: Finding = Held { by_module: vec![module], ..held(GIB) }.into();
    let found = card(Rule::HcclBuffers, &[with_figures(of(least), 33 * GIB, &[]).into(), held]).expect("a card");
    assert!(found.text.starts_with("HCCL holds 3.20 GiB, 5 % of the device."), "{}", found.text);
    assert_eq!(found.evidence, ["8 blocks of module HCCL at the end: 3.20 GiB"]);
    assert_eq!(rules(&[with_figures(of(least - 2), 33 * GIB, &[]).into()]), []);
    let unknown = |hccl, hal| rules(&[ledger(hal, &[(Item::Hccl, hccl)]).into()]);
    assert_eq!(unknown(64 * MIB, 640 * MIB), [Rule::HcclBuffers]);
    assert_eq!(unknown(64 * MIB, 641 * MIB), []);
    assert_eq!(unknown(64 * MIB - 1, 100 * MIB), []);
}

/// 3.2 GiB that nothing explains: a part of it the process's own, the rest of no process. Without figures nothing is
/// judged.
#[test]
fn memory_that_no_block_explains() {
    let least = 64 * GIB * 5 / 100 + 1;
    let of = |rest: u64, attached| -> [Finding; 1] {
        let parts = [(Item::BeyondHal, GIB), (Item::Unexplained, rest)];
        [Ledger { attached, ..with_figures(ledger(32 * GIB, &[]), 40 * GIB, &parts) }.into()]
    };
    let found = card(Rule::Unexplained, &of(least - GIB, false)).expect("a card");
    assert_eq!((found.level, found.size_bytes), (Level::Info, least));
    assert_eq!(found.evidence[..2], ["of this process, beyond its blocks: 1.00 GiB", "of no process: 2.20 GiB"]);
    assert_eq!(advice(&found).len(), 1);
    let late = card(Rule::Unexplained, &of(least - GIB, true)).expect("a card");
    assert!(advice(&late)[0].contains("memscope-bpf run"), "{:?}", advice(&late));
    assert_eq!(rules(&of(least - GIB - 2, false)), []);
    let explained = explain(&[ledger(GIB, &[]).into()], &end());
    assert!(explained.not_judged.iter().any(|it| it.rule == Rule::Unexplained), "{explained:?}");
}
