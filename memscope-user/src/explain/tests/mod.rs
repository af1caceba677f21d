//! For each rule a run that must fire it, and one just below that must not. Findings are made by hand, figures are worked out here.

mod device;
mod owners;
mod places;
mod pools;
mod requests;
mod sleep;
mod whole;

use super::*;
use crate::analyses::{
    device_use::DeviceUse,
    held::Held,
    ledger::{Entry, Item, Ledger, Moment, PoolSheets, Sheet},
    oom::{Cause, Oom, PoolAtOom},
    peaks::Peak,
    settings::Settings,
};
use crate::backend::ascend::pools as known;
use crate::model::{
    Confidence, Device, LiveGroups, LiveSum, PlaceSum, Pool, Setting, Stack, StackEnd, Stacks, StepsFrom,
};

pub(super) const NPU0: Device = Device::Npu(0);
pub(super) const PID: u32 = 7;
pub(super) const MIB: u64 = 1 << 20;
pub(super) const GIB: u64 = 1 << 30;
pub(super) const SECOND_NS: u64 = 1_000_000_000;
const PTA: Pool = known::PTA;
const HAL: Pool = known::HAL;
const WORKSPACE: Pool = known::PTA_WORKSPACE;

/// A run of 100 s.
pub(super) fn end() -> RunEnd {
    RunEnd { start_ns: SECOND_NS, time_ns: 101 * SECOND_NS, ..RunEnd::default() }
}

pub(super) fn cards(findings: &[Finding]) -> Vec<Card> {
    explain(findings, &end()).cards
}

/// The one card of a rule; `None` if it is silent.
pub(super) fn card(rule: Rule, findings: &[Finding]) -> Option<Card> {
    let mut all: Vec<Card> = cards(findings).into_iter().filter(|card| card.rule == rule).collect();
    assert!(all.len() <= 1, "{all:?}");
    all.pop()
}

/// Rules with a card.
pub(super) fn rules(findings: &[Finding]) -> Vec<Rule> {
    cards(findings).into_iter().map(|card| card.rule).collect()
}

/// Texts of a card's advice.
pub(super) fn advice(card: &Card) -> Vec<&str> {
    card.advice.iter().map(|advice| advice.text.as_str()).collect()
}

pub(super) fn python(frames: &[&'static str]) -> Stacks {
    Stacks { python: Some(Stack::keep(frames.iter().copied(), StackEnd::Root)), ..Stacks::default() }
}

/// A request of torch's pool that failed 50 s after the begin, with one pool of 1 GiB in use.
pub(super) fn oom(size_bytes: u64, unused_bytes: u64, largest_free_bytes: u64) -> Oom {
    let place = PlaceSum { stacks: python(&["kv.py(4): kv"]), live: LiveSum { blocks: 12, size_bytes: 768 * MIB } };
    let pool = PoolAtOom {
        pool: PTA,
        used_bytes: GIB,
        reserved_bytes: Some(GIB + unused_bytes),
        largest_free_bytes: Some(largest_free_bytes),
        groups: LiveGroups { places: vec![place], ..LiveGroups::default() },
        live: LiveSum { blocks: 28, size_bytes: GIB },
        places_left_out: 0,
    };
    let pools = vec![pool];
    Oom {
        pid: PID,
        tid: 8,
        device: NPU0,
        time_ns: 51 * SECOND_NS,
        function: None,
        size_bytes,
        stacks: python(&["oom.py(6): prefill"]),
        attempts: 2,
        retries: Vec::new(),
        cause: Cause::of(crate::backend::ascend::pools::HAL, size_bytes, &pools),
        pools,
        unused_bytes,
        missing_bytes: size_bytes.saturating_sub(unused_bytes),
        late: false,
        recent: Vec::new(),
        top: Vec::new(),
        last_events: Vec::new(),
    }
}

pub(super) fn sheet(total: Item, size_bytes: u64, parts: &[(Item, u64)]) -> Sheet {
    let parts = parts.iter().map(|(item, size_bytes)| Entry::plus(*item, u128::from(*size_bytes))).collect();
    Sheet { total: Entry::plus(total, size_bytes.into()), parts }
}

/// A ledger of the peak with these parts of the driver's memory.
pub(super) fn ledger(hal_bytes: u64, parts: &[(Item, u64)]) -> Ledger {
    Ledger {
        pid: PID,
        device: NPU0,
        moment: Moment::Peak,
        time_ns: 51 * SECOND_NS,
        attached: false,
        used: None,
        used_time_ns: None,
        capacity_bytes: None,
        hal: sheet(Item::Hal, hal_bytes, parts),
        pools: Vec::new(),
        confidence: Confidence::Certain,
    }
}

/// The same with the driver's figures of a device of 64 GiB.
pub(super) fn with_figures(ledger: Ledger, used_bytes: u64, parts: &[(Item, u64)]) -> Ledger {
    Ledger {
        used: Some(sheet(Item::DeviceUsed, used_bytes, parts)),
        used_time_ns: Some(50 * SECOND_NS),
        capacity_bytes: Some(64 * GIB),
        ..ledger
    }
}

pub(super) fn pool_sheets(in_use: u64, reserved: u64) -> PoolSheets {
    PoolSheets {
        pool: PTA,
        allocated: sheet(Item::PoolOwnAllocated { pool: PTA }, in_use, &[]),
        reserved: sheet(Item::PoolOwnReserved { pool: PTA }, reserved, &[]),
    }
}

pub(super) fn device_use(used_bytes: u64) -> Finding {
    DeviceUse { device: NPU0, time_ns: 100 * SECOND_NS, used_bytes, total_bytes: 64 * GIB, processes: None }.into()
}

pub(super) fn held(peak_bytes: u64) -> Held {
    Held {
        pid: PID,
        device: NPU0,
        pool: HAL,
        attached: false,
        blocks: 0,
        size_bytes: 0,
        found: LiveSum::default(),
        older_known: false,
        unseen_bytes: 0,
        peak_bytes,
        allocations: 1,
        frees: 1,
        replaced: 0,
        older_frees: 0,
        unknown_frees: 0,
        failed: 0,
        recovered: 0,
        by_module: Vec::new(),
    }
}

pub(super) fn peak(pool: Pool, peak_bytes: u64, step: u32) -> Finding {
    Peak {
        pid: PID,
        device: NPU0,
        pool,
        attached: false,
        start_ns: SECOND_NS,
        time_ns: 51 * SECOND_NS,
        step,
        steps_from: StepsFrom::Marks,
        peak_bytes,
        seen: LiveSum::default(),
        unseen_bytes: 0,
        groups: LiveGroups::default(),
        places_left_out: 0,
        confidence: Confidence::Certain,
    }
    .into()
}

pub(super) fn settings(all: &[(&'static str, &str)]) -> Finding {
    let setting = |&(name, value): &(&'static str, &str)| Setting { name, value: value.to_owned() };
    Settings { pid: PID, settings: all.iter().map(setting).collect() }.into()
}
