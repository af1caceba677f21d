use std::{
    collections::BTreeMap,
    fs::File,
    io::Write as _,
    path::Path,
    sync::{Arc, Mutex},
};

use super::*;
use crate::agent::evidence::{rows::Table, store::Store};

const HOST: &str = "node-7";
const BOOT: &str = "0f1e2d3c4b5a";
/// 2024-02-29 20:00 UTC, the begin of an hour.
const MINUTE: i32 = 28_487_280;
const LONG: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
struct Objects {
    of_path: BTreeMap<String, Vec<u8>>,
    /// In the order in which they came.
    asked: Vec<String>,
    /// Ends of paths that are refused; an empty one refuses all.
    refused: Vec<&'static str>,
    hangs: bool,
}

#[derive(Clone, Debug, Default)]
struct Fake(Arc<Mutex<Objects>>);

impl Fake {
    fn paths(&self) -> Vec<String> {
        self.0.lock().expect("a lock").of_path.keys().cloned().collect()
    }

    fn refuse(&self, ends: &[&'static str]) {
        self.0.lock().expect("a lock").refused = ends.to_vec();
    }
}

impl Target for Fake {
    fn put(&mut self, path: &str, bytes: Vec<u8>) -> Result<(), String> {
        until(|| !self.0.lock().expect("a lock").hangs);
        let mut objects = self.0.lock().expect("a lock");
        objects.asked.push(path.to_owned());
        if objects.refused.iter().any(|end| path.ends_with(end)) {
            return Err("503".to_owned());
        }
        objects.of_path.insert(path.to_owned(), bytes);
        Ok(())
    }
}

fn store(directory: &Path, host: &str, first: u64, max_bytes: u64) -> Store {
    Store::new(directory.to_owned(), Owner::new(host, BOOT), first, max_bytes)
}

fn write(store: &mut Store, table: Table, hour: i32, text: &str) -> u64 {
    let write = |mut file: File| file.write_all(text.as_bytes()).map(|()| 1);
    store.put(table, MINUTE + 60 * hour, write).expect("stored").removed_files
}

fn uploader(directory: &Path, store: &Store, fake: &Fake) -> Uploader<Fake> {
    Uploader {
        directory: directory.to_owned(),
        owner: Owner::new(HOST, BOOT),
        turn: store.turn(),
        target: fake.clone(),
    }
}

fn path(table: &str, hour: i32, number: u64) -> String {
    format!("v1/{table}/date=2024-02-29/hour={}/{HOST}-{BOOT}-{number:016}.parquet", 20 + hour)
}

/// The oldest hour first, as they are, and no folder is left; another host's file stays.
#[test]
fn uploads_in_order_and_removes() {
    let directory = tempfile::tempdir().expect("a folder");
    let (fake, mut written) = (Fake::default(), store(directory.path(), HOST, 1, 1 << 20));
    write(&mut store(directory.path(), "other", 1, 1 << 20), Table::Places, 3, "theirs");
    write(&mut written, Table::PlaceMinute, 1, "second");
    write(&mut written, Table::Places, 0, "first");
    let mut uploader = uploader(directory.path(), &written, &fake);
    assert_eq!(uploader.round(), Round { uploaded_files: 2, ..Round::default() });
    let objects = fake.0.lock().expect("a lock");
    assert_eq!(objects.asked, [path("places", 0, 2), path("place_minute", 1, 1)]);
    assert_eq!(objects.of_path[&path("places", 0, 2)], b"first");
    drop(objects);
    assert!(!directory.path().join("v1/place_minute/date=2024-02-29").exists());
    assert_eq!(std::fs::read_dir(directory.path().join("v1/places/date=2024-02-29")).expect("a folder").count(), 1);
    assert_eq!(uploader.round(), Round::default());
    // The folders are made again.
    write(&mut written, Table::PlaceMinute, 1, "third");
    assert_eq!(uploader.round().uploaded_files, 1);
}

/// A file that the store does not want is left, and holds none of the others up. Three of them end the round.
#[test]
fn failures_leave_files() {
    let directory = tempfile::tempdir().expect("a folder");
    let (fake, mut written) = (Fake::default(), store(directory.path(), HOST, 1, 1 << 20));
    for hour in 0..3 {
        write(&mut written, Table::PlaceMinute, hour, "12345");
    }
    let mut uploader = uploader(directory.path(), &written, &fake);
    fake.refuse(&["1.parquet"]);
    let error = Some("503".to_owned());
    let round = Round { uploaded_files: 2, failed_files: 1, waiting_bytes: 5, error: error.clone() };
    assert_eq!(uploader.round(), round);
    for hour in 0..3 {
        write(&mut written, Table::PlaceMinute, hour, "12345");
    }
    fake.refuse(&[""]);
    assert_eq!(uploader.round(), Round { uploaded_files: 0, failed_files: 3, waiting_bytes: 20, error });
    fake.refuse(&[]);
    assert_eq!(uploader.round(), Round { uploaded_files: 4, ..Round::default() });
    assert_eq!(fake.paths().len(), 6);
}

/// While the store is away, the directory keeps to its bound: the oldest go, counted; the rest arrives later.
#[test]
fn directory_stays_within_its_bound() {
    let directory = tempfile::tempdir().expect("a folder");
    let (fake, mut written) = (Fake::default(), store(directory.path(), HOST, 1, 10));
    let mut uploader = uploader(directory.path(), &written, &fake);
    fake.refuse(&[""]);
    let mut removed_files = 0;
    for hour in 0..3 {
        removed_files += write(&mut written, Table::PlaceMinute, hour, "12345");
        uploader.round();
    }
    assert_eq!((removed_files, uploader.round().waiting_bytes), (1, 10));
    fake.refuse(&[]);
    uploader.round();
    assert_eq!(fake.paths(), [path("place_minute", 1, 2), path("place_minute", 2, 3)]);
    // Uploaded files take no room.
    assert_eq!(write(&mut written, Table::PlaceMinute, 3, "1234567890"), 0);
}

/// A link in the place of a folder or file leads nowhere.
#[test]
fn links_are_not_followed() {
    let directory = tempfile::tempdir().expect("a folder");
    let (fake, mut written) = (Fake::default(), store(directory.path(), HOST, 1, 1 << 20));
    write(&mut written, Table::PlaceMinute, 0, "12345");
    let folder = directory.path().join("v1/place_minute/date=2024-02-29/hour=20");
    let secret = directory.path().join("secret");
    std::fs::write(&secret, "secret").expect("a file");
    std::os::unix::fs::symlink(&secret, folder.join(format!("{HOST}-{BOOT}-{:016}.parquet", 9))).expect("a link");
    let round = uploader(directory.path(), &written, &fake).round();
    assert_eq!((round.uploaded_files, round.failed_files), (1, 1));
    assert_eq!(fake.paths(), [path("place_minute", 0, 1)]);
}

/// The thread: what an earlier agent left goes at once, further files when they come, and the rest at the end.
#[test]
fn thread_uploads_until_the_end() {
    let directory = tempfile::tempdir().expect("a folder");
    let (fake, mut written) = (Fake::default(), store(directory.path(), HOST, 1, 1 << 20));
    write(&mut written, Table::PlaceMinute, 0, "of before");
    fake.refuse(&["2.parquet"]);
    let mut upload = Upload::start(uploader(directory.path(), &written, &fake)).expect("a thread");
    until(|| fake.paths().len() == 1);
    write(&mut written, Table::PlaceMinute, 1, "1234567");
    upload.look();
    let mut messages = Vec::new();
    until(|| {
        messages.extend(upload.work());
        !messages.is_empty()
    });
    assert_eq!(messages, ["evidence cannot be uploaded (503): its files wait in the directory"]);
    assert_eq!(
        *upload.sum(),
        Round { uploaded_files: 1, failed_files: 1, waiting_bytes: 7, error: Some("503".to_owned()) }
    );
    fake.refuse(&[]);
    assert_eq!(upload.finish(LONG), None);
    assert_eq!((fake.paths().len(), upload.sum().uploaded_files), (2, 2));
}

/// What is left at the end is a message.
#[test]
fn end_says_what_is_left() {
    let directory = tempfile::tempdir().expect("a folder");
    let (fake, mut written) = (Fake::default(), store(directory.path(), HOST, 1, 1 << 20));
    write(&mut written, Table::PlaceMinute, 0, "1234567");
    fake.refuse(&[""]);
    let mut upload = Upload::start(uploader(directory.path(), &written, &fake)).expect("a thread");
    let message = upload.finish(LONG);
    assert_eq!(message.as_deref(), Some("7 bytes of evidence are not uploaded (503): they wait in the directory"));
    assert_eq!(upload.work().as_deref(), None);
}

/// A store that takes too long does not hold the end up, and that is a message, too.
#[test]
fn end_does_not_wait_for_the_store() {
    let directory = tempfile::tempdir().expect("a folder");
    let (fake, mut written) = (Fake::default(), store(directory.path(), HOST, 1, 1 << 20));
    let mut upload = Upload::start(uploader(directory.path(), &written, &fake)).expect("a thread");
    fake.0.lock().expect("a lock").hangs = true;
    write(&mut written, Table::PlaceMinute, 0, "1234567");
    let message = upload.finish(Duration::from_millis(50));
    assert_eq!(message.as_deref(), Some("evidence is not uploaded within 0.05 s: its files wait in the directory"));
    assert_eq!(files_left(directory.path()), 1);
    fake.0.lock().expect("a lock").hangs = false;
    until(|| fake.paths().len() == 1);
}

fn files_left(directory: &Path) -> usize {
    let root = Folder::open(directory).and_then(|root| root.enter(&version_folder())).expect("a folder");
    find(&root, &Owner::new(HOST, BOOT), |_, _| {}).len()
}

fn until(mut is_true: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !is_true() {
        assert!(Instant::now() < end, "it takes too long");
        std::thread::sleep(Duration::from_millis(5));
    }
}
