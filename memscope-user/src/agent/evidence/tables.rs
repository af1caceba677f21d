//! The tables' schemas, version 1, and their files. Queries of users rest on them: a change makes another version, in a folder of its own.

use std::{fs::File, io};

use super::rows::{FailureRow, Head, PlaceRow, PoolRow, Row, Table, TextRow};
use crate::{
    agent::fold::layer,
    model::Pool,
    parquet_table::{self, Cell, Form},
};

const PLACE_MINUTE: Form = Form {
    schema: "message place_minute {
        REQUIRED INT32 epoch_minute;
        REQUIRED BYTE_ARRAY job (STRING);
        REQUIRED INT32 rank;
        REQUIRED BYTE_ARRAY host (STRING);
        REQUIRED BYTE_ARRAY namespace (STRING);
        REQUIRED BYTE_ARRAY pod (STRING);
        REQUIRED BYTE_ARRAY container (STRING);
        REQUIRED INT32 pid;
        REQUIRED INT32 device_id;
        REQUIRED BYTE_ARRAY layer (STRING);
        REQUIRED BYTE_ARRAY pool (STRING);
        REQUIRED INT64 place_key;
        REQUIRED INT64 live_bytes;
        REQUIRED INT64 live_blocks;
        REQUIRED INT64 allocated_bytes;
        REQUIRED INT64 allocations;
        REQUIRED INT64 freed_bytes;
        REQUIRED INT64 frees;
        REQUIRED INT32 level;
    }",
    // Rank, device, place, minute.
    sorted_by: &[2, 8, 11, 0],
    delta: &[
        "epoch_minute",
        "rank",
        "pid",
        "device_id",
        "live_bytes",
        "live_blocks",
        "allocated_bytes",
        "allocations",
        "freed_bytes",
        "frees",
        "level",
    ],
};
const DEVICE_MINUTE: Form = Form {
    schema: "message device_minute {
        REQUIRED INT32 epoch_minute;
        REQUIRED BYTE_ARRAY job (STRING);
        REQUIRED INT32 rank;
        REQUIRED BYTE_ARRAY host (STRING);
        REQUIRED BYTE_ARRAY namespace (STRING);
        REQUIRED BYTE_ARRAY pod (STRING);
        REQUIRED BYTE_ARRAY container (STRING);
        REQUIRED INT32 pid;
        REQUIRED INT32 device_id;
        REQUIRED BYTE_ARRAY layer (STRING);
        REQUIRED BYTE_ARRAY pool (STRING);
        REQUIRED INT64 live_bytes;
        REQUIRED INT64 live_blocks;
        OPTIONAL INT64 used_bytes;
        OPTIONAL INT64 reserved_bytes;
        OPTIONAL INT64 active_bytes;
        REQUIRED INT64 untracked_bytes;
        REQUIRED INT64 allocations;
        REQUIRED INT64 frees;
        REQUIRED INT64 failures;
        REQUIRED INT64 lost;
        REQUIRED INT32 level;
    }",
    // Rank, device, minute.
    sorted_by: &[2, 8, 0],
    delta: &[
        "epoch_minute",
        "rank",
        "pid",
        "device_id",
        "live_bytes",
        "live_blocks",
        "used_bytes",
        "reserved_bytes",
        "active_bytes",
        "untracked_bytes",
        "allocations",
        "frees",
        "failures",
        "lost",
        "level",
    ],
};
const PLACES: Form = Form {
    schema: "message places {
        REQUIRED INT64 place_key;
        REQUIRED BYTE_ARRAY kind (STRING);
        REQUIRED BYTE_ARRAY place (STRING);
        REQUIRED BYTE_ARRAY frames (STRING);
        REQUIRED BYTE_ARRAY host (STRING);
    }",
    sorted_by: &[0],
    delta: &[],
};
const FAILURES: Form = Form {
    schema: "message failures {
        REQUIRED INT32 epoch_minute;
        REQUIRED INT64 time_ns;
        REQUIRED BYTE_ARRAY job (STRING);
        REQUIRED INT32 rank;
        REQUIRED BYTE_ARRAY host (STRING);
        REQUIRED BYTE_ARRAY namespace (STRING);
        REQUIRED BYTE_ARRAY pod (STRING);
        REQUIRED BYTE_ARRAY container (STRING);
        REQUIRED INT32 pid;
        REQUIRED INT32 device_id;
        REQUIRED BYTE_ARRAY layer (STRING);
        REQUIRED BYTE_ARRAY pool (STRING);
        REQUIRED INT64 place_key;
        REQUIRED INT64 requested_bytes;
        REQUIRED BOOLEAN recovered;
        REQUIRED BYTE_ARRAY bundle (STRING);
    }",
    // Rank, device, place, minute.
    sorted_by: &[3, 9, 12, 0],
    delta: &["epoch_minute", "time_ns", "rank", "pid", "device_id", "requested_bytes"],
};

const fn form(table: Table) -> &'static Form {
    match table {
        Table::PlaceMinute => &PLACE_MINUTE,
        Table::DeviceMinute => &DEVICE_MINUTE,
        Table::Places => &PLACES,
        Table::Failures => &FAILURES,
    }
}

/// Writes the rows of a table, in their order.
pub(super) fn write(file: File, table: Table, host: &str, rows: &[Row]) -> io::Result<u64> {
    let mut rows: Vec<&Row> = rows.iter().collect();
    rows.sort_by_key(|row| order(row));
    let about = [("memscope.evidence.version".to_owned(), super::VERSION.to_string())];
    let mut out = parquet_table::Table::new(file, form(table), &about)?;
    for row in rows {
        match row {
            Row::Place(row) => place(&mut out, host, row),
            Row::Pool(row) => pool(&mut out, host, row),
            Row::Text(row) => text(&mut out, host, row),
            Row::Failure(row) => failure(&mut out, host, row),
        }?;
    }
    out.finish()
}

/// Rank, device, place, minute; what follows makes files of the same rows equal.
fn order(row: &Row) -> (i32, i32, i64, i32, i32, Option<Pool>) {
    let of = |head: &Head, place| (head.who.rank, head.device_id, place, head.epoch_minute, head.pid, Some(head.pool));
    match row {
        Row::Place(row) => of(&row.head, row.place_key),
        Row::Pool(row) => of(&row.head, 0),
        Row::Text(row) => (0, 0, row.text.key, row.epoch_minute, 0, None),
        Row::Failure(row) => of(&row.head, row.place_key),
    }
}

/// A pool as the page's label has it; one that the program has named has its name.
fn pool_name(pool: Pool) -> String {
    pool.custom_name().map_or_else(|| pool.event_type().to_ascii_lowercase(), |name| name.as_str().to_owned())
}

fn number(number: i32) -> Cell<'static> {
    Cell::Number(number.into())
}

/// The process, device and pool of a row: the same in all tables by minute.
fn process<'a>(head: &'a Head, host: &'a str, pool_name: &'a str) -> [Cell<'a>; 10] {
    [
        Cell::Text(&head.who.job),
        number(head.who.rank),
        Cell::Text(host),
        Cell::Text(&head.who.namespace),
        Cell::Text(&head.who.pod),
        Cell::Text(&head.who.container),
        number(head.pid),
        number(head.device_id),
        Cell::Text(layer(head.pool)),
        Cell::Text(pool_name),
    ]
}

fn place(out: &mut parquet_table::Table, host: &str, row: &PlaceRow) -> io::Result<()> {
    let PlaceRow { head, place_key, live_bytes, live_blocks, changes, level } = row;
    let name = pool_name(head.pool);
    let time = [number(head.epoch_minute)];
    let own = [
        Cell::Number(*place_key),
        Cell::unsigned(*live_bytes),
        Cell::unsigned(*live_blocks),
        Cell::Number(changes.allocated_bytes),
        Cell::Number(changes.allocations),
        Cell::Number(changes.freed_bytes),
        Cell::Number(changes.frees),
        number(*level),
    ];
    out.row(time.into_iter().chain(process(head, host, &name)).chain(own))
}

fn pool(out: &mut parquet_table::Table, host: &str, row: &PoolRow) -> io::Result<()> {
    let PoolRow { head, pool, lost, level } = row;
    let name = pool_name(head.pool);
    let time = [number(head.epoch_minute)];
    let own = [
        Cell::unsigned(pool.live_bytes),
        Cell::unsigned(pool.live_blocks),
        Cell::optional(pool.used_bytes),
        Cell::optional(pool.reserved_bytes),
        Cell::optional(pool.active_bytes),
        Cell::unsigned(pool.untracked_bytes),
        Cell::Number(pool.changes.allocations),
        Cell::Number(pool.changes.frees),
        Cell::unsigned(pool.failures),
        Cell::unsigned(*lost),
        number(*level),
    ];
    out.row(time.into_iter().chain(process(head, host, &name)).chain(own))
}

fn text(out: &mut parquet_table::Table, host: &str, row: &TextRow) -> io::Result<()> {
    let text = &row.text;
    out.row([
        Cell::Number(text.key),
        Cell::Text(text.kind),
        Cell::Text(&text.place),
        Cell::Text(&text.frames),
        Cell::Text(host),
    ])
}

fn failure(out: &mut parquet_table::Table, host: &str, row: &FailureRow) -> io::Result<()> {
    let FailureRow { head, time_ns, place_key, requested_bytes, recovered, bundle } = row;
    let name = pool_name(head.pool);
    let time = [number(head.epoch_minute), Cell::unsigned(*time_ns)];
    let own = [Cell::Number(*place_key), Cell::unsigned(*requested_bytes), Cell::Bool(*recovered), Cell::Text(bundle)];
    out.row(time.into_iter().chain(process(head, host, &name)).chain(own))
}

#[cfg(test)]
mod tests;
