//! An account as sheets.

use super::account::{Account, PoolAccount, Sample};
use super::{Entry, Item, Ledger, Moment, PoolSheets, Sheet};
use crate::model::{Confidence, Device, Module, ModuleRole, Pool, ProcessUsage};

/// The ledger of an account. The caller adds its subject.
pub(super) fn ledger(device: Device, moment: Moment, time_ns: u64, account: &Account) -> Ledger {
    let sample = account.sample.as_ref();
    Ledger {
        pid: 0,
        device,
        moment,
        time_ns,
        attached: false,
        used: sample.map(|sample| used(sample, account)),
        used_time_ns: sample.map(|sample| sample.time_ns),
        capacity_bytes: sample.map(|sample| sample.total_bytes),
        hal: hal(account),
        pools: account.pools.iter().filter_map(|(pool, account)| pool_sheets(*pool, account)).collect(),
        confidence: Confidence::Certain,
    }
}

/// The part of `a` beyond `b`.
const fn excess(a: u128, b: u128) -> u128 {
    a.saturating_sub(b)
}

fn used(sample: &Sample, account: &Account) -> Sheet {
    let mut parts: Vec<Entry> = Vec::new();
    let modules = account.modules.iter().filter(|(_, sum)| sum.blocks > 0);
    parts.extend(modules.map(|(module, sum)| Entry::plus(Item::Module { module }, sum.size_bytes)));
    let (then, now) = (sample.hal_bytes, account.hal);
    let mut explained = then;
    let mut add = |entry: Entry| {
        if entry.size_bytes > 0 {
            parts.push(entry);
        }
    };
    add(Entry::plus(Item::GivenBackSince, excess(then, now)));
    add(Entry::minus(Item::AllocatedSince, excess(now, then)));
    if let Some(process) = sample.process_bytes.map(u128::from) {
        add(Entry::plus(Item::BeyondHal, excess(process, then)));
        add(Entry::minus(Item::NotInProcess, excess(then, process)));
        explained = process;
    }
    for ProcessUsage { pid, used_bytes } in others(sample) {
        add(Entry::plus(Item::OtherProcess { pid }, used_bytes.into()));
        explained += u128::from(used_bytes);
    }
    let total = u128::from(sample.used_bytes);
    add(Entry::minus(Item::Overexplained, excess(explained, total)));
    parts.push(Entry::plus(Item::Unexplained, excess(total, explained)));
    Sheet { total: Entry::plus(Item::DeviceUsed, total), parts }
}

/// Other processes, the largest first.
fn others(sample: &Sample) -> Vec<ProcessUsage> {
    let mut others: Vec<ProcessUsage> = sample.processes.iter().flat_map(|list| list.iter().copied()).collect();
    others.retain(|process| process.pid != sample.pid);
    others.sort_by_key(|process| (std::cmp::Reverse(process.used_bytes), process.pid));
    others
}

fn hal(account: &Account) -> Sheet {
    let mut parts: Vec<Entry> = Vec::new();
    for (&pool, PoolAccount { segments, filled, shared, .. }) in &account.pools {
        if segments.blocks == 0 {
            continue;
        }
        parts.push(Entry::plus(Item::PoolAllocated { pool }, *filled));
        parts.push(Entry::plus(Item::PoolCached { pool }, segments.size_bytes + shared - filled));
        if *shared > 0 {
            parts.push(Entry::minus(Item::PoolShared { pool }, *shared));
        }
    }
    let of = |role: ModuleRole| {
        let modules = account.unpooled.iter().filter(|(module, _)| module.map(Module::role) == Some(role));
        modules.map(|(_, sum)| sum.size_bytes).sum::<u128>()
    };
    let all: u128 = account.unpooled.values().map(|sum| sum.size_bytes).sum();
    let (runtime, hccl) = (of(ModuleRole::Runtime), of(ModuleRole::Communication));
    parts.push(Entry::plus(Item::Runtime, runtime));
    parts.push(Entry::plus(Item::Hccl, hccl));
    parts.push(Entry::plus(Item::Rest, all - runtime - hccl));
    Sheet { total: Entry::plus(Item::Hal, account.hal), parts }
}

/// A pool's own figures against the seen memory; `None` if it has none.
fn pool_sheets(pool: Pool, account: &PoolAccount) -> Option<PoolSheets> {
    let (used_bytes, reserved_bytes) = account.reported?;
    let PoolAccount { segments, inside, nested, handed, borrowed, borrowed_backed, .. } = *account;
    let seen = handed.size_bytes;
    let reported = u128::from(used_bytes);
    let mut parts = vec![Entry::plus(Item::PoolAllocated { pool }, inside)];
    let rest = [
        Entry::plus(Item::PoolNested { pool }, nested),
        Entry::plus(Item::PoolElsewhere { pool }, seen - inside - nested),
        Entry::plus(Item::PoolOlder { pool }, excess(reported, seen)),
        Entry::minus(Item::PoolNotCounted { pool }, excess(seen, reported)),
    ];
    parts.extend(rest.into_iter().filter(|entry| entry.size_bytes > 0));
    let allocated = Sheet { total: Entry::plus(Item::PoolOwnAllocated { pool }, reported), parts };

    let reported = u128::from(reserved_bytes);
    let mut parts = vec![Entry::plus(Item::PoolSegments { pool }, segments.size_bytes)];
    // Not all pools count blocks of others as their own.
    let beyond = excess(reported, segments.size_bytes);
    let in_others = borrowed_backed.min(beyond);
    let elsewhere = excess(borrowed.size_bytes, borrowed_backed).min(beyond - in_others);
    let rest = [
        Entry::plus(Item::SegmentsNested { pool }, in_others),
        Entry::plus(Item::SegmentsElsewhere { pool }, elsewhere),
        Entry::plus(Item::SegmentsOlder { pool }, beyond - in_others - elsewhere),
        Entry::minus(Item::SegmentsNewer { pool }, excess(segments.size_bytes, reported)),
    ];
    parts.extend(rest.into_iter().filter(|entry| entry.size_bytes > 0));
    let reserved = Sheet { total: Entry::plus(Item::PoolOwnReserved { pool }, reported), parts };
    Some(PoolSheets { pool, allocated, reserved })
}
