//! Evidence: tables by minute, as Parquet files in a directory, for the engine that a site has. See `docs/agent.md`.
//!
//! ```text
//!  books ─▶ minutes ─▶ rows (with key, and who the process is) ─▶ spool ─▶ thread: tables ─▶ store ─▶ files
//!                                                                                                      │
//!                                                          object store ◀─ bucket ◀─ thread: upload ◀─┘
//! ```
//!
//! Pure: `minutes`, `key`, `rows`.

#[cfg(feature = "object-store")]
mod bucket;
mod files;
pub mod key;
pub mod minutes;
pub mod rows;
mod spool;
mod store;
#[cfg(feature = "parquet")]
mod tables;
#[cfg(test)]
mod tests;
#[cfg_attr(not(feature = "object-store"), expect(dead_code, reason = "nothing starts it"))]
mod upload;

use std::{
    collections::{BTreeMap, VecDeque},
    env, fs, io,
    sync::{Arc, mpsc},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

#[cfg(feature = "object-store")]
pub(super) use self::bucket::check as check_upload;
use self::{
    files::Owner,
    key::PlaceText,
    minutes::Minutes,
    rows::{About, Row, TextRow, Who},
    spool::{Counts, Done, Part, Spool, Writer},
    store::Store,
    upload::{Round, Upload},
};
use super::{
    config::{ConfigError, EvidenceSettings},
    fold::Target,
    metrics::Sample,
    series::Place,
};
use crate::{
    crew::Crew,
    hash::{HashMap, HashSet},
};

/// Version of the schema, and of the folder.
const VERSION: u32 = 1;
/// Places with known keys; beyond that all are worked out again. Some 4 MiB.
const MAX_KEYS: usize = 65_536;
/// Names of bundles that wait for the row of their request.
const MAX_BUNDLES: usize = 256;
/// Time to write what is left at the end, and to upload it.
const LONGEST_END: Duration = Duration::from_secs(10);
const MINUTES_OF_A_DAY: u32 = 24 * 60;
/// The node's name, where the agent runs in a pod with a name of its own.
const NODE_NAME: &str = "NODE_NAME";

/// Why no evidence is kept.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The settings make no sense here.
    #[error(transparent)]
    Settings(ConfigError),
    /// A thread cannot be started.
    #[error("cannot start a thread for evidence")]
    Thread(#[from] io::Error),
}

/// Makes rows of minutes, and has them written.
pub struct Evidence {
    spool: Spool,
    upload: Option<Upload>,
    keys: HashMap<Place, i64>,
    /// Keys that have a row of `places` on this day.
    described: HashSet<i64>,
    day: u32,
    bundles: VecDeque<(u32, u64, String)>,
    /// Highest level since the last minute ended.
    level: i32,
    /// Lost records, when the last minute ended.
    lost: u64,
    /// By the books, ever.
    dropped_rows: u64,
    is_failing: bool,
}

impl Evidence {
    /// Of this machine; `None` where none is asked for.
    pub(super) fn new(settings: &EvidenceSettings) -> Result<Option<Self>, StartError> {
        if settings.directory.as_os_str().is_empty() {
            return Ok(None);
        }
        let name = env::var(NODE_NAME).ok().filter(|name| !name.is_empty());
        let host = name.map_or_else(|| fs::read_to_string("/proc/sys/kernel/hostname"), Ok).unwrap_or_default();
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self::of_host(settings, &host, &boot).map(Some)
    }

    /// Of a host: its files have its name, and that of its boot.
    pub fn of_host(settings: &EvidenceSettings, host: &str, boot_id: &str) -> Result<Self, StartError> {
        let first = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64;
        let owner = Owner::new(host, boot_id);
        let store = Store::new(settings.directory.clone(), owner.clone(), first, settings.max_bytes);
        let upload = upload(settings, owner, &store)?;
        Ok(Self::over(Spool::new(settings.interval_minutes, writer(store)?), upload))
    }

    fn over(spool: Spool, upload: Option<Upload>) -> Self {
        Self {
            spool,
            upload,
            keys: HashMap::default(),
            described: HashSet::default(),
            day: 0,
            bundles: VecDeque::new(),
            level: 0,
            lost: 0,
            dropped_rows: 0,
            is_failing: false,
        }
    }

    /// The bundle of a failed request was written.
    pub fn bundle(&mut self, pid: u32, request: u64, name: String) {
        if self.bundles.len() >= MAX_BUNDLES {
            self.bundles.pop_front();
        }
        self.bundles.push_back((pid, request, name));
    }

    /// Takes minutes that have ended. `targets`: processes that have rows. `lost`: records, ever. `level`: up to now.
    pub fn take(&mut self, minutes: Minutes, targets: &BTreeMap<u32, Target>, lost: u64, level: i32) {
        self.dropped_rows = minutes.dropped_rows;
        self.level = self.level.max(level);
        if minutes.ready.is_empty() {
            return;
        }
        let known: BTreeMap<u32, Arc<Who>> =
            targets.iter().map(|(pid, target)| (*pid, Arc::new(Who::of(target)))).collect();
        for minute in minutes.ready {
            let (is_over, epoch_minute) = (minute.is_over, minute.minute);
            self.begin_day(epoch_minute / MINUTES_OF_A_DAY);
            let mut texts = Vec::new();
            let Self { keys, described, bundles, .. } = self;
            let bundle_of = |pid, request| {
                let found = bundles.iter().find(|(of, number, _)| (*of, *number) == (pid, request));
                found.map_or_else(String::new, |(_, _, name)| name.clone())
            };
            let mut key_of = |place: &Place| key(keys, described, &mut texts, place);
            let mut about = About {
                who: &|pid| known.get(&pid).cloned(),
                key: &mut key_of,
                bundle: &bundle_of,
                lost: lost.saturating_sub(self.lost),
                level: self.level,
            };
            let rows = rows::of_minute(minute, &mut about);
            let texts =
                texts.into_iter().map(|text| Row::Text(TextRow { epoch_minute: epoch_minute.cast_signed(), text }));
            for row in texts.chain(rows) {
                if self.spool.add(row) {
                    // Rows that say what places are may be among those that went.
                    self.described.clear();
                }
            }
            if is_over {
                (self.lost, self.level) = (lost, level);
            }
        }
    }

    fn begin_day(&mut self, day: u32) {
        if self.day != day {
            self.day = day;
            self.described.clear();
        }
    }

    /// Has files written that are due. Gives messages where that or uploading begins to fail, or succeeds again.
    pub fn work(&mut self, now_minute: u32, now: Instant) -> Vec<String> {
        let mut messages = Vec::new();
        let mut has_written = false;
        for result in self.spool.work(now_minute, now) {
            let was_failing = std::mem::replace(&mut self.is_failing, result.is_err());
            has_written |= result.is_ok();
            match result {
                // Rows that say what places are may be among those that went; uploaded files keep theirs.
                Ok(stored) if stored.removed_files > 0 => self.described.clear(),
                Ok(_) if was_failing => messages.push("evidence is written again".to_owned()),
                Err(error) if !was_failing => {
                    messages.push(format!("evidence cannot be written ({error}): it waits in memory"));
                }
                _ => {}
            }
        }
        if let Some(upload) = &mut self.upload {
            if has_written {
                upload.look();
            }
            messages.extend(upload.work());
        }
        messages
    }

    /// Writes what is left, and uploads it. Gives messages where either fails.
    pub fn finish(&mut self) -> Vec<String> {
        let mut messages = Vec::new();
        if let Some(error) = self.spool.finish(LONGEST_END) {
            let rows = self.spool.counts.dropped_rows;
            messages.push(format!("the last evidence is not written ({error}); rows dropped in all: {rows}"));
        }
        messages.extend(self.upload.as_mut().and_then(|upload| upload.finish(LONGEST_END)));
        messages
    }

    /// Its numbers on the page.
    pub(super) fn samples(&self) -> Vec<Sample> {
        let Counts { files, failed_files, removed_files, rows, dropped_rows } = self.spool.counts;
        let of = |result: &str, count| {
            Sample::whole("memscope_agent_evidence_files", vec![("result", result.to_owned())], count)
        };
        let mut samples = vec![
            of("ok", files),
            of("error", failed_files),
            of("removed", removed_files),
            Sample::whole("memscope_agent_evidence_rows", Vec::new(), rows),
            Sample::whole("memscope_agent_evidence_dropped_rows", Vec::new(), dropped_rows + self.dropped_rows),
        ];
        if let Some(Round { uploaded_files, failed_files, waiting_bytes, .. }) = self.upload.as_ref().map(Upload::sum) {
            let of = |result: &str, count| {
                Sample::whole("memscope_agent_evidence_uploads", vec![("result", result.to_owned())], count)
            };
            samples.extend([of("ok", *uploaded_files), of("error", *failed_files)]);
            samples.push(Sample::whole("memscope_agent_evidence_waiting_bytes", Vec::new(), *waiting_bytes));
        }
        samples
    }
}

impl Who {
    /// As rows have a process.
    fn of(target: &Target) -> Self {
        let place = target.place.clone();
        let job = if target.job.is_empty() { place.pod_name.clone() } else { target.job.clone() };
        let rank = target.rank.parse().unwrap_or(-1);
        Self { job, rank, namespace: place.namespace, pod: place.pod_name, container: place.container_name }
    }
}

/// The key of a place. What it is becomes a row, once a day.
fn key(keys: &mut HashMap<Place, i64>, described: &mut HashSet<i64>, texts: &mut Vec<PlaceText>, place: &Place) -> i64 {
    if let Some(key) = keys.get(place)
        && described.contains(key)
    {
        return *key;
    }
    let text = PlaceText::of(place);
    let key = text.key;
    if keys.len() >= MAX_KEYS {
        keys.clear();
    }
    keys.insert(*place, key);
    if described.len() >= MAX_KEYS {
        described.clear();
    }
    if described.insert(key) {
        texts.push(text);
    }
    key
}

/// Starts the thread that uploads, if the settings ask for it.
#[cfg(feature = "object-store")]
fn upload(settings: &EvidenceSettings, owner: Owner, store: &Store) -> Result<Option<Upload>, StartError> {
    let EvidenceSettings { directory, upload, .. } = settings;
    if upload.url.is_empty() {
        return Ok(None);
    }
    let target = bucket::Bucket::new(upload).map_err(|why| StartError::Settings(ConfigError::Value(why)))?;
    let uploader = upload::Uploader { directory: directory.clone(), owner, turn: store.turn(), target };
    Ok(Some(Upload::start(uploader)?))
}

/// Settings that ask for it were refused.
#[cfg(not(feature = "object-store"))]
#[expect(clippy::unnecessary_wraps, reason = "as the other one")]
fn upload(_: &EvidenceSettings, _: Owner, _: &Store) -> Result<Option<Upload>, StartError> {
    Ok(None)
}

/// Starts the thread that writes.
fn writer(mut store: Store) -> io::Result<Writer> {
    let (parts, to_write) = mpsc::sync_channel::<Part>(1);
    let (results, done) = mpsc::channel();
    // A failure shows by the channel's end.
    let (crew, _) = Crew::new(None);
    crew.spawn("memscope-evid", move |_| {
        for part in to_write {
            let result = write(&mut store, &part);
            if results.send(Done { part, result }).is_err() {
                return;
            }
        }
    })?;
    Ok(Writer { parts, done })
}

#[cfg(feature = "parquet")]
fn write(store: &mut Store, part: &Part) -> io::Result<store::Stored> {
    let host = store.host().to_owned();
    let minute = part.rows.first().map_or(0, Row::epoch_minute);
    store.put(part.table, minute, |file| tables::write(file, part.table, &host, &part.rows))
}

#[cfg(not(feature = "parquet"))]
fn write(store: &mut Store, part: &Part) -> io::Result<store::Stored> {
    let minute = part.rows.first().map_or(0, Row::epoch_minute);
    store.put(part.table, minute, |_| Err(io::Error::other("this program was built without Parquet")))
}
