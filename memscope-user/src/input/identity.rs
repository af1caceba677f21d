//! Which rows are of one process. Ranks in containers have equal process numbers, so files may share one and be of different
//! processes.
//!
//! A process numbers its events, in whichever file their rows are. So rows of one process and number in two files are
//! of one event, and have the same time (those without a device are in every file), or they are of two processes. For
//! each process in each file a sample of numbers is kept with their times: those with the smallest hashes, hence the
//! same ones in all files. Files share a process unless most of their common numbers contradict. Other processes are
//! shown by unused numbers.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::runs::Place;
use crate::hash::HashMap;

/// Numbers kept of one process in one file.
const KEPT: usize = 256;
/// Most samples of all files: 32 MiB. Later processes are identified by their numbers alone.
const MAX_SKETCHES: usize = 4096;
/// Process numbers of Linux are smaller (2²² at most), so the digits before them separate processes.
const NEXT_PROCESS: u32 = 10_000_000;

/// A process that shares its number with another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renamed {
    /// Its number.
    pub pid: u32,
    /// The number that it is shown by.
    pub shown: u32,
    /// The first file of the process.
    pub path: PathBuf,
}

/// The times of some events of one process in one file, by the hashes of their numbers.
#[derive(Debug, Default)]
struct Sketch(BTreeMap<u64, u64>);

impl Sketch {
    fn take(&mut self, place: Place) {
        // Odd, so that no two numbers have one hash.
        let hash = place.id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let is_full = self.0.len() >= KEPT;
        if is_full && self.0.last_key_value().is_some_and(|(last, _)| hash > *last) {
            return;
        }
        self.0.entry(hash).or_insert(place.time_ns);
        if self.0.len() > KEPT {
            self.0.pop_last();
        }
    }

    /// Whether both may be of one process.
    fn agrees(&self, other: &Self) -> bool {
        let shared = self.0.iter().filter_map(|(hash, time_ns)| Some((*time_ns, *other.0.get(hash)?)));
        let (mut same, mut others) = (0, 0);
        shared.for_each(|(one, other)| *if one == other { &mut same } else { &mut others } += 1);
        others <= same
    }
}

/// Looks at the rows of all files.
#[derive(Debug, Default)]
pub(super) struct Census(BTreeMap<(u32, u32), Sketch>);

impl Census {
    /// Takes a row of a file.
    pub(super) fn take(&mut self, file: u32, place: Place) {
        let is_full = self.0.len() >= MAX_SKETCHES;
        match self.0.entry((place.pid, file)) {
            Entry::Occupied(sketch) => sketch.into_mut().take(place),
            Entry::Vacant(sketch) if !is_full => sketch.insert(Sketch::default()).take(place),
            Entry::Vacant(_) => {}
        }
    }

    /// The processes of these files' rows.
    pub(super) fn identities(self, files: &[PathBuf]) -> Identities {
        let mut found = Identities::default();
        let mut groups: Vec<Group<'_>> = Vec::new();
        let mut used: BTreeSet<u32> = self.0.keys().map(|(pid, _)| *pid).collect();
        let mut current = None;
        for ((pid, file), sketch) in &self.0 {
            let Some(path) = files.get(*file as usize) else { continue };
            if current.replace(*pid) != Some(*pid) {
                groups.clear();
            }
            let folder = process_folder(path);
            let agrees = |group: &Group<'_>| group.sketches.iter().all(|other| sketch.agrees(other));
            // Files in one folder of a process are likely to be its.
            let here = groups.iter().position(|group| folder.is_some() && group.folder == folder && agrees(group));
            let shown = if let Some(place) = here.or_else(|| groups.iter().position(&agrees)) {
                groups[place].join(sketch)
            } else {
                let shown = if groups.is_empty() { *pid } else { vacant(*pid, groups.len(), &used) };
                used.insert(shown);
                groups.push(Group { folder, sketches: vec![sketch], shown });
                if shown != *pid {
                    found.renamed.push(Renamed { pid: *pid, shown, path: path.clone() });
                }
                shown
            };
            if shown != *pid {
                found.shown.insert((*file, *pid), shown);
            }
        }
        found
    }
}

/// Files of one process.
struct Group<'a> {
    folder: Option<&'a Path>,
    sketches: Vec<&'a Sketch>,
    shown: u32,
}

impl<'a> Group<'a> {
    fn join(&mut self, sketch: &'a Sketch) -> u32 {
        self.sketches.push(sketch);
        self.shown
    }
}

/// A number for the n-th process with the same number: 20000007, 30000007 … for 7.
fn vacant(pid: u32, before: usize, used: &BTreeSet<u32>) -> u32 {
    let wanted = u32::try_from(before + 1)
        .ok()
        .filter(|_| pid < NEXT_PROCESS)
        .and_then(|place| place.checked_mul(NEXT_PROCESS)?.checked_add(pid))
        .filter(|number| !used.contains(number));
    wanted.or_else(|| (0..=u32::MAX).rev().find(|number| !used.contains(number))).unwrap_or(pid)
}

/// The folder `msmemscope_<process>_<time>_ascend` that a dump is in.
fn process_folder(path: &Path) -> Option<&Path> {
    path.ancestors().skip(1).find(|folder| {
        let name = folder.file_name().map(std::ffi::OsStr::to_string_lossy).unwrap_or_default();
        name.starts_with("msmemscope_") && name.ends_with("_ascend")
    })
}

/// The numbers under which the processes of files are shown.
#[derive(Clone, Debug, Default)]
pub(super) struct Identities {
    shown: HashMap<(u32, u32), u32>,
    pub(super) renamed: Vec<Renamed>,
}

impl Identities {
    /// The number that a process of a file is shown by.
    pub(super) fn of(&self, file: u32, pid: u32) -> u32 {
        if self.shown.is_empty() {
            return pid;
        }
        self.shown.get(&(file, pid)).copied().unwrap_or(pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn census(rows: &[(u32, u32, u64, u64)]) -> Census {
        let mut census = Census::default();
        for (file, pid, id, time_ns) in rows {
            census.take(*file, Place { pid: *pid, id: *id, time_ns: *time_ns });
        }
        census
    }

    fn shown(census: Census, files: &[&str], pid: u32) -> Vec<u32> {
        let files: Vec<PathBuf> = files.iter().map(PathBuf::from).collect();
        let found = census.identities(&files);
        (0..files.len() as u32).map(|file| found.of(file, pid)).collect()
    }

    /// Rows of one number and time are one event, however many files have them; other times are another process.
    #[test]
    fn contradicting_files_are_of_two_processes() {
        let rows = [(0, 7, 1, 100), (0, 7, 2, 101), (1, 7, 1, 100), (1, 7, 3, 102), (2, 7, 1, 500), (2, 7, 2, 501)];
        assert_eq!(shown(census(&rows), &["a", "b", "c"], 7), [7, 7, 20_000_007]);
        // One damaged row of many makes no other process.
        let rows: Vec<_> =
            (0..2).flat_map(|file| (1..9).map(move |id| (file, 7, id, id * 10 + u64::from(file) * (id / 8)))).collect();
        assert_eq!(shown(census(&rows), &["a", "b"], 7), [7, 7]);
    }

    /// Without a common number, files belong with those of their folder.
    #[test]
    fn folders_of_processes_decide_where_numbers_do_not() {
        let rows = [(0, 7, 1, 100), (1, 7, 1, 500), (2, 7, 2, 501), (3, 7, 9, 109)];
        let files = [
            "x/msmemscope_7_1_ascend/device_0/dump/a.csv",
            "y/msmemscope_7_2_ascend/device_1/dump/a.csv",
            "y/msmemscope_7_2_ascend/device_cpu/dump/a.csv",
            "x/msmemscope_7_1_ascend/device_cpu/dump/a.csv",
        ];
        assert_eq!(shown(census(&rows), &files, 7), [7, 20_000_007, 20_000_007, 7]);
    }

    /// Long files differ by their sampled rows, and used numbers are skipped.
    #[test]
    fn samples_meet_and_numbers_are_vacant() {
        let mut long = Census::default();
        for file in 0..4 {
            for id in 0..20_000 {
                // The second file has every third row of the first.
                let is_there = file != 1 || id % 3 == 0;
                if is_there {
                    long.take(file, Place { pid: 7, id, time_ns: id + 1000 * u64::from(file / 2 * file) });
                }
            }
        }
        long.take(0, Place { pid: 20_000_007, id: 1, time_ns: 1 });
        assert!(long.0.values().all(|sketch| sketch.0.len() <= KEPT));
        assert_eq!(shown(long, &["a", "b", "c", "d"], 7), [7, 7, u32::MAX, 30_000_007]);
        assert_eq!(vacant(u32::MAX, 1, &BTreeSet::from([u32::MAX])), u32::MAX - 1);
    }
}
