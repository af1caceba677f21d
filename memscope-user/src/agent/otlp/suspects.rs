//! Which of the fastest growing places are new among them. Pure.

use std::collections::BTreeMap;

use crate::{
    agent::{
        books::Account,
        fold::{SUSPECTS, Target, Where},
        series::{Place, SeriesKey},
    },
    hash::HashMap,
    model::Device,
};

/// Places that are remembered. At this bound the one that was not seen for the longest time is forgotten.
const MAX_KNOWN: usize = 4096;
/// Pages after which a place that is no suspect any more is forgotten: an hour with the default interval.
const PAGES_KEPT: u64 = 360;

/// A place that grows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Suspect {
    pub(super) key: SeriesKey,
    pub(super) place: Place,
    pub(super) bytes_per_second: f64,
}

/// Remembers suspects, each with the page that had it last.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    known: HashMap<(SeriesKey, Place), u64>,
    page: u64,
}

impl Suspects {
    /// Those of this page that were none before.
    pub(super) fn new_ones(&mut self, account: &Account, targets: &BTreeMap<u32, Target>) -> Vec<Suspect> {
        let found = fastest(account, targets);
        self.page += 1;
        let Self { known, page } = self;
        known.retain(|_, last| *page - *last <= PAGES_KEPT);
        let mut new = Vec::new();
        for suspect in found {
            if known.insert((suspect.key, suspect.place), *page).is_none() {
                new.push(suspect);
            }
        }
        while known.len() > MAX_KNOWN {
            let Some(oldest) = known.iter().min_by_key(|(_, last)| **last).map(|(key, _)| *key) else { break };
            known.remove(&oldest);
        }
        new
    }
}

/// The fastest growing places of each container and device, as the page has them.
fn fastest(account: &Account, targets: &BTreeMap<u32, Target>) -> Vec<Suspect> {
    let nowhere = Where::default();
    let mut found: BTreeMap<(&Where, Device), Vec<Suspect>> = BTreeMap::new();
    for (key, series) in &account.series {
        if account.processes.get(&key.pid).is_none_or(|known| known.ended) {
            continue;
        }
        let place = targets.get(&key.pid).map_or(&nowhere, |target| &target.place);
        let growing = series.growing_places(SUSPECTS).into_iter();
        let growing = growing.map(|(place, bytes_per_second)| Suspect { key: *key, place, bytes_per_second });
        found.entry((place, key.device)).or_default().extend(growing);
    }
    let mut fastest = Vec::new();
    for mut suspects in found.into_values() {
        suspects.sort_by(|one, other| other.bytes_per_second.total_cmp(&one.bytes_per_second));
        suspects.truncate(SUSPECTS);
        fastest.extend(suspects);
    }
    fastest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        agent::books::Books,
        analyses::script::Script,
        backend::ascend::pools,
        model::{Event, EventKind, ProcessStart},
    };

    const MIB: u64 = 1 << 20;

    /// Books of a process with places of these sizes, each of which gets a block a minute for half an hour.
    fn books(sizes: &[u64]) -> Books {
        let mut books = Books::default();
        let mut script = Script::new(7, Device::Npu(0));
        script.alloc(pools::HAL, 0x10, 1);
        let start = ProcessStart { parent: 0, attached: false, command: "a".into(), pid_within: None };
        books.observe(&Event { kind: EventKind::ProcessStart(start), ..script.events()[0].clone() });
        for minute in 0..30 {
            let mut script = Script::new(7, Device::Npu(0));
            for (number, size) in sizes.iter().enumerate() {
                script.alloc(pools::HAL, (minute << 32) + ((number as u64) << 24), *size);
            }
            script.events().iter().for_each(|event| books.observe(event));
            books.minute(minute as u32);
        }
        books
    }

    /// Of six growing places the fastest five are new, once.
    #[test]
    fn each_suspect_is_new_once() {
        let mut books = books(&[MIB, 2 * MIB, 3 * MIB, 4 * MIB, 5 * MIB, 6 * MIB]);
        let mut suspects = Suspects::default();
        let new = suspects.new_ones(&books.take(), &BTreeMap::new());
        let sizes: Vec<u64> = new.iter().map(|suspect| suspect.place.size_bytes / MIB).collect();
        assert_eq!(sizes, [6, 5, 4, 3, 2]);
        let rate = new[0].bytes_per_second;
        assert!((rate - 6.0 * MIB as f64 / 60.0).abs() < 1e-6, "{rate}");
        for _ in 0..3 {
            assert!(suspects.new_ones(&books.take(), &BTreeMap::new()).is_empty());
        }
        for _ in 0..=PAGES_KEPT {
            suspects.new_ones(&Account::default(), &BTreeMap::new());
        }
        assert!(suspects.known.is_empty(), "forgotten after a while");
        assert_eq!(suspects.new_ones(&books.take(), &BTreeMap::new()).len(), 5);
    }

    /// What is remembered is bounded; the last ones stay.
    #[test]
    fn memory_is_bounded() {
        let mut books = books(&[MIB]);
        let mut suspects = Suspects::default();
        for pid in 0..MAX_KNOWN as u32 {
            let key = SeriesKey { pid: pid + 100, device: Device::Npu(0), pool: pools::HAL };
            let place = Place { stacks: crate::model::Stacks::default(), size_bytes: 1 };
            suspects.known.insert((key, place), 0);
        }
        assert_eq!(suspects.new_ones(&books.take(), &BTreeMap::new()).len(), 1);
        assert_eq!(suspects.known.len(), MAX_KNOWN);
        assert!(suspects.new_ones(&books.take(), &BTreeMap::new()).is_empty());
    }
}
