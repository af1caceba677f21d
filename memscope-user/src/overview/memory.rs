//! Where the memory of a device is: the ledger as a table that counts bytes once.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::analyses::{
    Finding, Kind as _,
    decompose::Decomposition,
    ledger::{Item, Ledger, Moment, PoolSheets},
    oom::Oom,
    waits::Waits,
};
use crate::model::{Device, Pool};

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryRow {
    /// The meaning of the row.
    pub label: String,
    /// Bytes.
    pub size_bytes: u128,
    /// It is a part of the row before it, and not added.
    pub is_part: bool,
}

/// When a table was drawn up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// When a request failed.
    FailedRequest,
    /// A moment of the ledger.
    At(Moment),
}

/// The memory of a process on a device at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryTable {
    /// Device.
    pub device: Device,
    /// When.
    pub when: When,
    /// The same, nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// The rows; those that are no parts add up to `total_bytes`.
    pub rows: Vec<MemoryRow>,
    /// The sum.
    pub total_bytes: u128,
    /// Bytes in use on the device, by all processes, and bytes of the device; `None` if the driver's figures are
    /// unknown.
    pub device_bytes: Option<(u128, u64)>,
}

/// The owners of a pool's blocks when the most were live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnersTable {
    /// Device.
    pub device: Device,
    /// Pool.
    pub pool: Pool,
    /// When, nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// By component, the largest first.
    pub rows: Vec<MemoryRow>,
    /// The sum.
    pub total_bytes: u128,
}

/// Owners at the peak of the fullest pool, or of the driver's memory where there is none. `None` where they were not asked for.
pub(super) fn owners(findings: &[&Finding]) -> Option<OwnersTable> {
    let all = findings.iter().filter_map(|finding| Decomposition::of(finding)).filter(|found| found.peak_bytes > 0);
    let found = all.max_by_key(|found| (!found.pool.is_base(), found.peak_bytes, Reverse(found.device)))?;
    let mut bytes: BTreeMap<&str, u128> = BTreeMap::new();
    for part in &found.parts {
        *bytes.entry(part.component.as_str()).or_default() += u128::from(part.peak_bytes);
    }
    bytes.insert("from before the attach", found.peak_untracked_bytes.into());
    let mut rows = Vec::new();
    for (label, size_bytes) in bytes {
        add(&mut rows, label.to_owned(), size_bytes, false);
    }
    rows.sort_by_key(|row| Reverse(row.size_bytes));
    let total_bytes = rows.iter().map(|row| row.size_bytes).sum();
    Some(OwnersTable { device: found.device, pool: found.pool, time_ns: found.peak_ns, rows, total_bytes })
}

/// The table of a failed request: bytes in use and cached of pools, and the driver's outside of pools.
pub(super) fn at_failure(oom: &Oom) -> MemoryTable {
    let mut rows = Vec::new();
    for pool in &oom.pools {
        if pool.pool.is_driver() {
            add(&mut rows, "driver memory outside of pools".to_owned(), pool.live.size_bytes.into(), false);
        } else {
            let cached = pool.reserved_bytes.unwrap_or(pool.used_bytes).saturating_sub(pool.used_bytes);
            add(&mut rows, format!("{}, in use", pool.pool.title()), pool.used_bytes.into(), false);
            add(&mut rows, format!("{}, cached", pool.pool.title()), cached.into(), false);
        }
    }
    let total_bytes = rows.iter().map(|row| row.size_bytes).sum();
    let (device, time_ns) = (oom.device, oom.time_ns);
    MemoryTable { device, when: When::FailedRequest, time_ns, rows, total_bytes, device_bytes: None }
}

/// The table of a device: at the end, or at the peak if the process has exited and so given its memory back.
pub(super) fn of(device: Device, findings: &[&Finding], exited: bool) -> Option<MemoryTable> {
    let ledger_at = |moment: Moment| {
        let is_it = |ledger: &&Ledger| ledger.device == device && ledger.moment == moment;
        findings.iter().filter_map(|finding| Ledger::of(finding)).find(is_it)
    };
    let at_end = ledger_at(Moment::End).or_else(|| ledger_at(Moment::Now));
    let (first, second) = if exited { (ledger_at(Moment::Peak), at_end) } else { (at_end, ledger_at(Moment::Peak)) };
    let waits: Vec<&Waits> =
        findings.iter().filter_map(|finding| Waits::of(finding)).filter(|found| found.device == device).collect();
    let tables = [first, second].into_iter().flatten().map(|ledger| table(ledger, &waits));
    tables.into_iter().find(|table| table.total_bytes > 0)
}

fn table(ledger: &Ledger, waits: &[&Waits]) -> MemoryTable {
    let mut rows = Vec::new();
    for sheets in &ledger.pools {
        add_pool(sheets, ledger, &mut rows);
        let cached_bytes = rows.last().map_or(0, |row| row.size_bytes);
        let waits = waits.iter().filter(|found| found.pool == sheets.pool && ledger.moment == Moment::Peak);
        // The pool's own peak may be at another moment.
        for bytes in waits.map(|found| found.all.pool_peak_bytes.into()).filter(|bytes| *bytes <= cached_bytes) {
            add(&mut rows, "waiting for streams".to_owned(), bytes, true);
        }
    }
    for (pool, in_use, cached) in pools_without_sheets(ledger) {
        add(&mut rows, format!("{}, in use", pool.title()), in_use, false);
        add(&mut rows, format!("{}, cached", pool.title()), cached, false);
    }
    let driver = [(Item::Runtime, "runtime"), (Item::Hccl, "HCCL"), (Item::Rest, "other driver memory")];
    for (item, label) in driver {
        add(&mut rows, label.to_owned(), ledger.hal.bytes(item), false);
    }
    let total_bytes = rows.iter().filter(|row| !row.is_part).map(|row| row.size_bytes).sum();
    let used = ledger.used.as_ref().map(|sheet| sheet.total.size_bytes);
    MemoryTable {
        device: ledger.device,
        when: When::At(ledger.moment),
        time_ns: ledger.time_ns,
        rows,
        total_bytes,
        device_bytes: used.zip(ledger.capacity_bytes),
    }
}

/// Rows without bytes are left out.
fn add(rows: &mut Vec<MemoryRow>, label: String, size_bytes: u128, is_part: bool) {
    if size_bytes > 0 {
        rows.push(MemoryRow { label, size_bytes, is_part });
    }
}

/// Rows of a pool with its own figures. Blocks within another pool's memory are that pool's bytes.
fn add_pool(PoolSheets { pool, allocated, reserved }: &PoolSheets, ledger: &Ledger, rows: &mut Vec<MemoryRow>) {
    let nested = allocated.bytes(Item::PoolNested { pool: *pool });
    let in_use = allocated.total.size_bytes.saturating_sub(nested);
    let cached = match reserved.total.size_bytes {
        0 => ledger.hal.bytes(Item::PoolCached { pool: *pool }),
        reserved => reserved.saturating_sub(allocated.total.size_bytes),
    };
    add(rows, format!("{}, in use", pool.title()), in_use, false);
    let why = if ledger.attached { "from before the attach" } else { "not seen" };
    add(rows, why.to_owned(), allocated.bytes(Item::PoolOlder { pool: *pool }).min(in_use), true);
    add(rows, format!("{}, cached", pool.title()), cached, false);
}

/// Pools without figures of their own: pool, bytes in use, bytes cached.
fn pools_without_sheets(ledger: &Ledger) -> impl Iterator<Item = (Pool, u128, u128)> {
    let has_sheets = |pool: Pool| ledger.pools.iter().any(|sheets| sheets.pool == pool);
    ledger.hal.parts.iter().filter_map(move |part| match part.item {
        Item::PoolAllocated { pool } if !has_sheets(pool) => {
            Some((pool, part.size_bytes, ledger.hal.bytes(Item::PoolCached { pool })))
        }
        _ => None,
    })
}
