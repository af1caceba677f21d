use std::sync::Arc;

use parquet::{
    basic::{Compression, Encoding},
    file::{
        metadata::RowGroupMetaData,
        reader::{FileReader as _, SerializedFileReader},
    },
    record::Field,
};

use super::*;
use crate::{
    agent::{
        evidence::{
            key::PlaceText,
            minutes::{Changes, PoolMinute},
            rows::Who,
        },
        series::SeriesKey,
    },
    backend::ascend::pools,
    model::Device,
};

/// Queries of users rest on these names and types.
const SCHEMA: &str = "\
place_minute: epoch_minute i32, job str, rank i32, host str, namespace str, pod str, container str, pid i32, device_id i32, layer str, \
pool str, place_key i64, live_bytes i64, live_blocks i64, allocated_bytes i64, allocations i64, freed_bytes i64, frees i64, level i32
device_minute: epoch_minute i32, job str, rank i32, host str, namespace str, pod str, container str, pid i32, device_id i32, layer str, \
pool str, live_bytes i64, live_blocks i64, used_bytes i64?, reserved_bytes i64?, active_bytes i64?, untracked_bytes i64, allocations i64, \
frees i64, failures i64, lost i64, level i32
places: place_key i64, kind str, place str, frames str, host str
failures: epoch_minute i32, time_ns i64, job str, rank i32, host str, namespace str, pod str, container str, pid i32, device_id i32, \
layer str, pool str, place_key i64, requested_bytes i64, recovered bool, bundle str
";

fn written(table: Table, rows: &[Row]) -> SerializedFileReader<File> {
    let file = tempfile::tempfile().expect("a file");
    let again = file.try_clone().expect("a descriptor");
    assert_eq!(write(file, table, "node-7", rows).expect("written"), rows.len() as u64);
    SerializedFileReader::new(again).expect("a Parquet file")
}

fn cells(file: &SerializedFileReader<File>) -> Vec<Vec<(String, Field)>> {
    file.get_row_iter(None).expect("rows").map(|row| row.expect("a row").into_columns()).collect()
}

fn columns(file: &SerializedFileReader<File>) -> String {
    let schema = file.metadata().file_metadata().schema_descr().clone();
    let columns = schema.columns().iter().map(|column| {
        let kind = match column.physical_type() {
            parquet::basic::Type::INT32 => "i32",
            parquet::basic::Type::INT64 => "i64",
            parquet::basic::Type::BOOLEAN => "bool",
            parquet::basic::Type::BYTE_ARRAY => "str",
            other => panic!("no such type: {other}"),
        };
        let end = if column.max_def_level() > 0 { "?" } else { "" };
        format!("{} {kind}{end}", column.name())
    });
    columns.collect::<Vec<_>>().join(", ")
}

#[test]
fn schemas_are_as_documented() {
    let all = Table::ALL.map(|table| format!("{}: {}\n", table.name(), columns(&written(table, &[]))));
    assert_eq!(all.concat(), SCHEMA);
}

fn head(epoch_minute: i32, rank: i32, device_id: i32) -> Head {
    let who = Who { job: "train".into(), rank, namespace: "ns".into(), pod: "pod-0".into(), container: "main".into() };
    Head { epoch_minute, who: Arc::new(who), pid: 7, device_id, pool: pools::PTA }
}

fn place_row(epoch_minute: i32, rank: i32, device_id: i32, place_key: i64) -> Row {
    let changes = Changes { allocations: 1, allocated_bytes: 2, frees: -1, freed_bytes: -2 };
    let head = head(epoch_minute, rank, device_id);
    Row::Place(PlaceRow { head, place_key, live_bytes: u64::MAX >> 1, live_blocks: 3, changes, level: 2 })
}

/// By rank, device, place, minute, whatever order rows have come in; the file says so, with its version.
#[test]
fn rows_are_in_order() {
    let unordered = [(5, 1, 0, 3), (4, 0, 1, 9), (4, 0, 0, -9), (3, 0, 0, 2), (2, 0, 0, 2), (1, -1, 7, 7)];
    let rows = unordered.map(|(minute, rank, device_id, key)| place_row(minute, rank, device_id, key));
    let file = written(Table::PlaceMinute, &rows);
    let number = |row: &[(String, Field)], name: &str| match &row.iter().find(|(of, _)| of == name).expect("a column").1
    {
        Field::Int(number) => i64::from(*number),
        Field::Long(number) => *number,
        other => panic!("no number: {other:?}"),
    };
    let order: Vec<[i64; 4]> = cells(&file)
        .iter()
        .map(|row| ["epoch_minute", "rank", "device_id", "place_key"].map(|name| number(row, name)))
        .collect();
    assert_eq!(order, [[1, -1, 7, 7], [4, 0, 0, -9], [2, 0, 0, 2], [3, 0, 0, 2], [4, 0, 1, 9], [5, 1, 0, 3]]);
    let first = &cells(&file)[0];
    let values = ["live_bytes", "live_blocks", "allocated_bytes", "allocations", "freed_bytes", "frees", "level"]
        .map(|name| number(first, name));
    assert_eq!(values, [i64::MAX, 3, 2, 1, -2, -1, 2]);
    let metadata = file.metadata();
    let about = metadata.file_metadata().key_value_metadata().expect("metadata");
    let version = about.iter().find(|pair| pair.key == "memscope.evidence.version").expect("a version");
    assert_eq!(version.value.as_deref(), Some("1"));
    let group = metadata.row_group(0);
    let sorted: Vec<i32> = group.sorting_columns().expect("an order").iter().map(|column| column.column_idx).collect();
    let names: Vec<&str> = sorted.iter().map(|index| group.column(*index as usize).column_descr().name()).collect();
    assert_eq!(names, ["rank", "device_id", "place_key", "epoch_minute"]);
}

/// Text and keys by dictionary, numbers by their differences, all compressed as other tables are.
#[test]
fn columns_are_small() {
    let rows: Vec<Row> = (0..1000).map(|minute| place_row(minute, 0, 0, 5)).collect();
    let file = written(Table::PlaceMinute, &rows);
    for column in file.metadata().row_group(0).columns() {
        let name = column.column_descr().name();
        let is_text = column.column_type() == parquet::basic::Type::BYTE_ARRAY;
        assert_eq!(column.compression(), Compression::LZ4_RAW, "{name}");
        let has = |encoding| column.encodings().any(|of| of == encoding);
        assert_eq!(has(Encoding::RLE_DICTIONARY), is_text || name == "place_key", "{name}");
        assert_eq!(has(Encoding::DELTA_BINARY_PACKED), !is_text && name != "place_key", "{name}");
    }
    let bytes: i64 = file.metadata().row_groups().iter().map(RowGroupMetaData::compressed_size).sum();
    assert!(bytes < 5000, "{bytes}");
}

/// An hour of eight devices with 64 places each: sizes that change at random take less than 25 bytes a row.
#[test]
fn rows_of_an_hour_are_small() {
    let mut state = 1_u64;
    let mut random = |most: u64| {
        // Knuth's, of which the upper bits are good.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % most
    };
    let mut rows = Vec::new();
    for device_id in 0..8 {
        for place in 1..=64_i64 {
            let (place_key, mut live_blocks) = (place.wrapping_mul(0x1234_5678_9abc_def1), 1000);
            let size_bytes = 512 * (1 + random(1 << 14));
            for minute in 0..60 {
                let (allocations, frees) = (random(200), random(200).min(live_blocks));
                live_blocks = live_blocks + allocations - frees;
                let changes = Changes {
                    allocations: allocations as i64,
                    allocated_bytes: (allocations * size_bytes) as i64,
                    frees: frees as i64,
                    freed_bytes: (frees * size_bytes) as i64,
                };
                let (head, live_bytes) = (head(minute, device_id, device_id), live_blocks * size_bytes);
                rows.push(Row::Place(PlaceRow { head, place_key, live_bytes, live_blocks, changes, level: 0 }));
            }
        }
    }
    let file = written(Table::PlaceMinute, &rows);
    let bytes: i64 = file.metadata().row_groups().iter().map(RowGroupMetaData::compressed_size).sum();
    let per_row = bytes as f64 / rows.len() as f64;
    assert!(per_row < 25.0, "{per_row}");
}

/// Figures that a pool does not have are null; a failed request names its bundle; a place has its text.
#[test]
fn other_tables_have_their_cells() {
    let key = SeriesKey { pid: 7, device: Device::Npu(0), pool: pools::PTA };
    let pool = PoolMinute {
        key,
        live_bytes: 1,
        live_blocks: 2,
        used_bytes: Some(3),
        reserved_bytes: None,
        active_bytes: Some(4),
        untracked_bytes: 5,
        changes: Changes { allocations: 6, allocated_bytes: 0, frees: 7, freed_bytes: 0 },
        failures: 8,
    };
    let row = Row::Pool(PoolRow { head: head(1, 0, 0), pool: Arc::new(pool), lost: 9, level: 1 });
    let texts = |rows: Vec<Vec<(String, Field)>>| -> Vec<String> {
        rows[0].iter().map(|(name, field)| format!("{name}={field}")).collect()
    };
    let found = texts(cells(&written(Table::DeviceMinute, &[row])));
    let expected = "epoch_minute=1 job=\"train\" rank=0 host=\"node-7\" namespace=\"ns\" pod=\"pod-0\" container=\"main\" pid=7 \
        device_id=0 layer=\"pool\" pool=\"pta\" live_bytes=1 live_blocks=2 used_bytes=3 reserved_bytes=null active_bytes=4 \
        untracked_bytes=5 allocations=6 frees=7 failures=8 lost=9 level=1";
    assert_eq!(found.join(" "), expected);
    let failure = FailureRow {
        head: head(1, -1, -1),
        time_ns: 1_700_000_000_000_000_000,
        place_key: -3,
        requested_bytes: 1 << 40,
        recovered: true,
        bundle: "bundle_1_7.json".into(),
    };
    let found = texts(cells(&written(Table::Failures, &[Row::Failure(failure)])));
    let expected = "epoch_minute=1 time_ns=1700000000000000000 job=\"train\" rank=-1 host=\"node-7\" namespace=\"ns\" pod=\"pod-0\" \
        container=\"main\" pid=7 device_id=-1 layer=\"pool\" pool=\"pta\" place_key=-3 requested_bytes=1099511627776 recovered=true \
        bundle=\"bundle_1_7.json\"";
    assert_eq!(found.join(" "), expected);
    let text = PlaceText { key: -3, kind: "native", place: "a b".into(), frames: "f\na(b+0x1)".into() };
    let found = texts(cells(&written(Table::Places, &[Row::Text(TextRow { epoch_minute: 1, text })])));
    assert_eq!(found.join(" "), "place_key=-3 kind=\"native\" place=\"a b\" frames=\"f\na(b+0x1)\" host=\"node-7\"");
}

/// The disk is full: that is an error, not a panic.
#[test]
fn a_full_disk_is_an_error() {
    let full = File::options().write(true).open("/dev/full").expect("/dev/full");
    let error = write(full, Table::PlaceMinute, "a", &[place_row(1, 0, 0, 1)]).expect_err("full");
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error:?}");
}

/// A pool that a program has named keeps that name; its layer says so.
#[test]
fn custom_pools_have_their_names() {
    assert_eq!(
        (pool_name(pools::PTA_WORKSPACE), pool_name(Pool::custom("My_pool"))),
        ("pta_workspace".into(), "My_pool".into())
    );
    assert_eq!(layer(Pool::custom("My_pool")), "custom");
}
