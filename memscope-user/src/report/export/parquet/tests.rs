use std::{fs::File, sync::Arc};

use parquet::{
    file::{
        metadata::RowGroupMetaData,
        reader::{FileReader as _, SerializedFileReader},
    },
    record::Field,
};

use super::{Files, Written, observer};
use crate::{
    analyses::{decompose::RuleSet, script::Script},
    backend::ascend::pools,
    model::{Device, FreeCause, RunEnd},
};

/// Rows of a file: each column by its name.
fn rows(file: File) -> Vec<Vec<(String, Field)>> {
    let reader = SerializedFileReader::new(file).expect("a Parquet file");
    let rows = reader.get_row_iter(None).expect("rows");
    rows.map(|row| row.expect("a row").into_columns()).collect()
}

fn cell<'a>(row: &'a [(String, Field)], name: &str) -> &'a Field {
    &row.iter().find(|(column, _)| column == name).expect("a column").1
}

fn open() -> (Files, [File; 2]) {
    let [events, blocks, python, native] = std::array::from_fn(|_| tempfile::tempfile().expect("a file"));
    let again = [&events, &blocks].map(|file| file.try_clone().expect("a descriptor"));
    (Files { events, blocks, python, native }, again)
}

fn write(files: Files, script: &Script) -> std::io::Result<Written> {
    let (mut tables, written) = observer(files, Arc::new(RuleSet::builtin()), &[])?;
    for event in script.events() {
        tables.observe(event);
    }
    tables.finish(&RunEnd::default());
    written.recv().expect("a result")
}

/// One block is freed, one freed and put back because the driver refused that, one outlives the trace; the largest address keeps its bits.
#[test]
fn each_block_is_one_row() {
    let mut script = Script::new(7, Device::Npu(1));
    script.step_start(1).alloc(pools::HAL, u64::MAX - 511, 512).free(pools::HAL, u64::MAX - 511).step_end(1);
    script.step_start(2).alloc(pools::HAL, 0x1000, 64).free(pools::HAL, 0x1000).restore(pools::HAL, 0x1000);
    script.alloc(pools::HOST, 0x9000, 32).end(FreeCause::TraceEnd, pools::HOST, 0x9000);
    script.end(FreeCause::TraceEnd, pools::HAL, 0x1000);
    let (files, [events, blocks]) = open();
    assert_eq!(write(files, &script).expect("written"), Written { events: 9, blocks: 3 });
    let blocks = rows(blocks);
    let about = |name: &str| blocks.iter().map(|row| cell(row, name).clone()).collect::<Vec<_>>();
    assert_eq!(about("addr"), [u64::MAX - 511, 0x9000, 0x1000].map(Field::ULong));
    assert_eq!(about("size_bytes"), [512, 32, 64].map(Field::ULong));
    assert_eq!(about("free_time").iter().map(|time| *time == Field::Null).collect::<Vec<_>>(), [false, true, true]);
    assert_eq!(about("layer"), ["HAL", "HOST", "HAL"].map(|layer| Field::Str(layer.into())));
    assert_eq!(about("step"), [1, 2, 2].map(Field::UInt));
    let kinds: Vec<_> = rows(events).iter().map(|row| cell(row, "kind").clone()).collect();
    let expected = ["step_start", "alloc", "free", "step_end", "step_start", "alloc", "free", "restored", "alloc"];
    assert_eq!(kinds, expected.map(|kind| Field::Str(kind.into())));
}

/// A block from before the attach is live already when it is found.
#[test]
fn found_blocks_are_no_allocations() {
    let mut script = Script::new(7, Device::Npu(0));
    script.older(pools::PTA, 0x1000, 64).free(pools::PTA, 0x1000);
    let (files, [events, _]) = open();
    assert_eq!(write(files, &script).expect("written"), Written { events: 2, blocks: 1 });
    let kinds: Vec<_> = rows(events).iter().map(|row| cell(row, "kind").clone()).collect();
    assert_eq!(kinds, ["restored", "free"].map(|kind| Field::Str(kind.into())));
}

/// More rows than a group holds.
#[test]
fn large_tables_have_several_groups() {
    let mut script = Script::new(7, Device::Npu(0));
    for _ in 0..150_000 {
        script.alloc(pools::HAL, 0x1000, 64).free(pools::HAL, 0x1000);
    }
    let (files, [events, _]) = open();
    assert_eq!(write(files, &script).expect("written"), Written { events: 300_000, blocks: 150_000 });
    let metadata = SerializedFileReader::new(events).expect("a Parquet file").metadata().clone();
    let groups: Vec<i64> = metadata.row_groups().iter().map(RowGroupMetaData::num_rows).collect();
    assert_eq!(groups, [1 << 18, 300_000 - (1 << 18)]);
}

/// The disk is full: that is the result, not a panic.
#[test]
fn a_full_disk_is_an_error() {
    let mut script = Script::new(7, Device::Npu(0));
    script.alloc(pools::HAL, 0x1000, 64);
    let (files, _) = open();
    let full = File::options().write(true).open("/dev/full").expect("/dev/full");
    let error = write(Files { blocks: full, ..files }, &script).expect_err("full");
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error:?}");
}
