use std::{io::Write as _, os::unix::fs::MetadataExt as _, path::Path};

use super::*;

fn store(directory: &Path, host: &str, first: u64, max_bytes: u64) -> Store {
    let owner = Owner::new(host, "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0\n");
    Store::new(directory.to_owned(), owner, first, max_bytes)
}

fn bytes(count: usize) -> impl FnOnce(File) -> io::Result<u64> {
    move |mut file| file.write_all(&vec![b'x'; count]).map(|()| 1)
}

/// Paths of all files below a folder.
fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(at).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            if entry.is_dir() {
                folders.push(entry);
            } else {
                found.push(entry.strip_prefix(folder).expect("below it").to_str().expect("a name").to_owned());
            }
        }
    }
    found.sort();
    found
}

/// 2024-02-29 23:59 UTC.
const MINUTE: i32 = 28_487_519;
const HOUR: &str = "v1/place_minute/date=2024-02-29/hour=23";

/// The layout that queries rest on, for us alone.
#[test]
fn files_lie_by_table_and_hour() {
    let directory = tempfile::tempdir().expect("a folder");
    let mut store = store(directory.path(), "node-7.example", 1_700_000_000_000_000, 1 << 20);
    let stored = store.put(Table::PlaceMinute, MINUTE, bytes(10)).expect("stored");
    assert_eq!(stored, Stored { rows: 1, removed_files: 0 });
    store.put(Table::Failures, MINUTE + 1, bytes(10)).expect("stored");
    let expected = [
        "v1/failures/date=2024-03-01/hour=00/node-7.example-0f1e2d3c4b5a-1700000000000001.parquet".to_owned(),
        format!("{HOUR}/node-7.example-0f1e2d3c4b5a-1700000000000000.parquet"),
    ];
    assert_eq!(files(directory.path()), expected);
    let mode = |path: &str| directory.path().join(path).metadata().expect("it is there").mode() & 0o777;
    assert_eq!((mode(&expected[1]), mode(HOUR), mode("v1")), (0o600, 0o700, 0o700));
}

/// A file that is there is left alone, whoever wrote it: the next name is taken.
#[test]
fn no_file_is_replaced() {
    let directory = tempfile::tempdir().expect("a folder");
    store(directory.path(), "a", 5, 1 << 20).put(Table::PlaceMinute, MINUTE, bytes(1)).expect("stored");
    store(directory.path(), "a", 5, 1 << 20).put(Table::PlaceMinute, MINUTE, bytes(2)).expect("stored");
    let sizes: Vec<u64> = files(directory.path())
        .iter()
        .map(|name| directory.path().join(name).metadata().expect("a file").len())
        .collect();
    assert_eq!(sizes, [1, 2]);
    // All names that are tried are there.
    for number in 0..MAX_NAMES {
        fs::write(directory.path().join(HOUR).join(format!("b-0f1e2d3c4b5a-{number:016}.parquet")), "")
            .expect("a file");
    }
    let before = files(directory.path());
    assert!(store(directory.path(), "b", 0, 1 << 20).put(Table::PlaceMinute, MINUTE, bytes(3)).is_err());
    assert_eq!(files(directory.path()), before);
}

/// A kill between the whole file and its name: no reader sees it, the rows are nowhere twice, and the next agent removes it. A kill behind
/// the name leaves one file under its name.
#[test]
fn killed_agent_leaves_nothing_readable() {
    let directory = tempfile::tempdir().expect("a folder");
    let mut killed = store(directory.path(), "a", 5, 1 << 20);
    let folder = ["v1", "place_minute", "date=2024-02-29", "hour=23"]
        .into_iter()
        .try_fold(Folder::open(directory.path()).expect("open"), Folder::make)
        .expect("folders");
    let written = killed.write(&folder, bytes(10)).expect("written");
    std::mem::forget(written);
    assert_eq!(files(directory.path()), [format!("{HOUR}/.a-0f1e2d3c4b5a-{:016}.tmp", 5)]);
    // One of another host is not ours to remove.
    let foreign = format!("{HOUR}/.a-b-0f1e2d3c4b5a-{:016}.tmp", 5);
    fs::write(directory.path().join(&foreign), "").expect("a file");
    store(directory.path(), "a", 9, 1 << 20).put(Table::PlaceMinute, MINUTE, bytes(10)).expect("stored");
    assert_eq!(files(directory.path()), [foreign.clone(), format!("{HOUR}/a-0f1e2d3c4b5a-{:016}.parquet", 9)]);

    let written = killed.write(&folder, bytes(10)).expect("written");
    killed.publish(&written).expect("published");
    std::mem::forget(written);
    store(directory.path(), "a", 10, 1 << 20).put(Table::Places, MINUTE, bytes(10)).expect("stored");
    let names = files(directory.path());
    assert_eq!(names.iter().filter(|name| name.contains("/.")).collect::<Vec<_>>(), [&foreign]);
    assert_eq!(names.iter().filter(|name| name.starts_with(HOUR) && name.ends_with(END)).count(), 2);
}

/// What cannot be written leaves no file.
#[test]
fn failed_file_leaves_nothing() {
    let directory = tempfile::tempdir().expect("a folder");
    let mut store = store(directory.path(), "a", 5, 1 << 20);
    let full = |mut file: File| {
        file.write_all(b"half")?;
        Err(io::Error::from_raw_os_error(libc::ENOSPC))
    };
    assert!(store.put(Table::PlaceMinute, MINUTE, full).is_err());
    assert_eq!(files(directory.path()), [""; 0]);
    store.put(Table::PlaceMinute, MINUTE, bytes(1)).expect("stored");
}

/// A directory that is not there is not made: it may be a mount point. It may come later.
#[test]
fn missing_directory_is_an_error() {
    let place = tempfile::tempdir().expect("a folder");
    let directory = place.path().join("mount");
    let mut store = store(&directory, "a", 5, 1 << 20);
    let error = store.put(Table::PlaceMinute, MINUTE, bytes(1)).expect_err("missing");
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    fs::create_dir(&directory).expect("a folder");
    store.put(Table::PlaceMinute, MINUTE, bytes(1)).expect("stored");
}

/// No link is followed below the directory.
#[test]
fn links_are_not_followed() {
    let place = tempfile::tempdir().expect("a folder");
    let [directory, elsewhere] = ["directory", "elsewhere"].map(|name| place.path().join(name));
    fs::create_dir_all(directory.join("v1")).expect("a folder");
    fs::create_dir(&elsewhere).expect("a folder");
    std::os::unix::fs::symlink(&elsewhere, directory.join("v1/place_minute")).expect("a link");
    assert!(store(&directory, "a", 5, 1 << 20).put(Table::PlaceMinute, MINUTE, bytes(1)).is_err());
    assert_eq!(files(&elsewhere), [""; 0]);
}

/// The oldest files of this host go, with their empty folders; those of a host with a similar name, and of others, stay. Files that were
/// moved away do not count.
#[test]
fn files_are_bounded() {
    let directory = tempfile::tempdir().expect("a folder");
    store(directory.path(), "a-b", 1, 1 << 20).put(Table::Places, MINUTE - 600, bytes(90)).expect("stored");
    let own = |name: &str| name.rsplit('/').next().is_some_and(|name| name.starts_with("a-0f"));
    let mut store = store(directory.path(), "a", 1, 100);
    let hours = |directory: &Path| -> Vec<String> {
        files(directory)
            .iter()
            .filter(|name| own(name))
            .map(|name| name.split('/').nth(3).unwrap_or("").to_owned())
            .collect()
    };
    for (hour, table) in [(0, Table::PlaceMinute), (1, Table::Places), (2, Table::PlaceMinute)] {
        assert_eq!(store.put(table, MINUTE - 600 + 60 * hour, bytes(30)).expect("stored").removed_files, 0);
    }
    assert_eq!(store.put(Table::Places, MINUTE - 600 + 180, bytes(30)).expect("stored").removed_files, 1);
    assert_eq!(hours(directory.path()), ["hour=15", "hour=14", "hour=16"].map(str::to_owned));
    assert!(!directory.path().join("v1/place_minute/date=2024-02-29/hour=13").exists());
    // Another tool moves one away.
    let moved = files(directory.path()).into_iter().find(|name| name.contains("hour=14")).expect("a file");
    fs::remove_file(directory.path().join(moved)).expect("removed");
    assert_eq!(store.put(Table::PlaceMinute, MINUTE - 600 + 240, bytes(30)).expect("stored").removed_files, 0);
    // A later agent knows these files.
    let mut later = Store::new(directory.path().to_owned(), store.owner.clone(), 50, 100);
    assert_eq!(later.put(Table::PlaceMinute, MINUTE, bytes(70)).expect("stored").removed_files, 2);
    assert_eq!(files(directory.path()).iter().filter(|name| !own(name)).count(), 1);
}

/// Files that go elsewhere as soon as they are written are not remembered for good, however small they are.
#[test]
fn files_that_have_gone_are_forgotten() {
    let directory = tempfile::tempdir().expect("a folder");
    let mut store = store(directory.path(), "a", 1, 1 << 40);
    store.put(Table::PlaceMinute, MINUTE, bytes(1)).expect("stored");
    store.look_at = 10;
    for _ in 0..30 {
        store.put(Table::PlaceMinute, MINUTE, bytes(1)).expect("stored");
        for file in files(directory.path()) {
            fs::remove_file(directory.path().join(file)).expect("removed");
        }
        assert!(store.own.as_ref().is_some_and(|own| own.len() <= 10));
        store.look_at = store.look_at.min(10);
    }
}
