//! Who still holds the blocks of a place? Not concluded from events: facts that the session reads out of a living process, and hands in as
//! events. Of a process and device the last look counts; that at a failed request is kept apart.
//!
//! Memory: about 2 KiB for each of at most 256 places of a look.

mod finding;
mod text;

pub use self::finding::{HeldBy, HeldPlace};
pub(crate) use self::finding::{PlaceKey, place_of};
pub(crate) use self::text::{lines, lines_of_look, short_lines, why_not, write_lines};

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{Analysis, Finding, concluded::Concluded};
use crate::model::{Device, Event, EventKind, Look, Looked, LookedAt, PlaceLook, RunEnd};

/// Places kept of a look.
const MAX_PLACES: usize = 256;
/// Processes that have ended without a look and may still get the reason.
const MAX_ENDED: usize = 4096;

/// Keeps what was found of each place.
#[derive(Debug, Default)]
pub struct HeldByAnalysis {
    running: BTreeMap<u32, Process>,
    /// Of those that have ended without a look.
    ended: BTreeMap<u32, (Process, u64)>,
    /// Why others were not looked at.
    reason: Option<Arc<str>>,
    concluded: Concluded<HeldBy>,
    last: Option<(u32, Device)>,
}

#[derive(Debug, Default)]
struct Process {
    /// Devices on which it has memory.
    devices: BTreeSet<Device>,
    /// By device, those at failed requests apart.
    looks: BTreeMap<(Device, bool), (u32, HeldBy)>,
    reason: Option<Arc<str>>,
}

impl Analysis for HeldByAnalysis {
    fn observe(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Alloc(alloc) => {
                let at = (event.pid, alloc.block.device);
                if self.last.replace(at) != Some(at) && matches!(at.1, Device::Npu(_)) {
                    self.running.entry(at.0).or_default().devices.insert(at.1);
                }
            }
            EventKind::Looked(look) => match &look.outcome {
                Looked::Place(place) => self.running.entry(event.pid).or_default().looked(event, look, place),
                Looked::NotLooked(why) if event.pid == 0 => self.reason = Some(Arc::clone(why)),
                Looked::NotLooked(why) => {
                    self.running.entry(event.pid).or_default().reason = Some(Arc::clone(why));
                }
                Looked::Found(..) => {}
            },
            EventKind::ProcessEnd => {
                self.last = None;
                let Some(process) = self.running.remove(&event.pid) else { return };
                if process.looks.is_empty() && process.reason.is_none() {
                    if self.ended.len() < MAX_ENDED {
                        self.ended.insert(event.pid, (process, event.time_ns));
                    }
                } else {
                    self.concluded.extend(process.conclude(event.pid, Some(event.time_ns), None));
                }
            }
            _ => {}
        }
    }

    fn finish(&mut self, _: &RunEnd) -> Vec<Finding> {
        let reason = self.reason.take();
        for (pid, process) in std::mem::take(&mut self.running) {
            self.concluded.extend(process.conclude(pid, None, reason.as_ref()));
        }
        for (pid, (process, end_ns)) in std::mem::take(&mut self.ended) {
            self.concluded.extend(process.conclude(pid, Some(end_ns), reason.as_ref()));
        }
        self.concluded.take(|found| (found.pid, found.device, found.looked_at), Finding::HeldBy)
    }
}

impl Process {
    fn looked(&mut self, event: &Event, look: &Look, place: &PlaceLook) {
        let key = (place.block.device, look.at == LookedAt::FailedRequest);
        let none = || (look.number, HeldBy::new(event.pid, place.block.device, look.at, event.time_ns));
        let (number, found) = self.looks.entry(key).or_insert_with(none);
        let exits = look.at == LookedAt::Exit;
        if *number != look.number {
            *number = look.number;
            if !exits {
                found.places.clear();
            }
        }
        let new = HeldPlace::of(place);
        let known = found.places.iter().position(|known| known.key() == new.key());
        // A program that exits lets go of everything while it is looked at: what was surer before that stays.
        if exits && known.is_some_and(|at| new.is_less_sure(&found.places[at])) {
            return;
        }
        (found.looked_at, found.time_ns) = (look.at, event.time_ns);
        match known {
            Some(at) => found.places[at] = new,
            None if found.places.len() < MAX_PLACES => found.places.push(new),
            None => {}
        }
    }

    fn conclude(self, pid: u32, end_ns: Option<u64>, others: Option<&Arc<str>>) -> Vec<HeldBy> {
        if self.looks.is_empty() {
            let Some(why) = self.reason.as_ref().or(others) else { return Vec::new() };
            let of = |device: Device| HeldBy {
                not_looked_for: Some(why.as_ref().to_owned()),
                process_end_ns: end_ns,
                ..HeldBy::new(pid, device, LookedAt::End, 0)
            };
            return self.devices.into_iter().map(of).collect();
        }
        self.looks.into_values().map(|(_, found)| HeldBy { process_end_ns: end_ns, ..found }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyses::script::{Script, run};
    use crate::backend::ascend::pools;
    use crate::model::{Block, HolderPath, LiveSum};

    const NPU0: Device = Device::Npu(0);

    fn block(script: &Script) -> Block {
        let of = |event: &Event| if let EventKind::Alloc(alloc) = &event.kind { Some(alloc.block) } else { None };
        script.events().iter().rev().find_map(of).expect("a block")
    }

    fn look(number: u32, at: LookedAt, block: Block, paths: &[(&str, u64)]) -> EventKind {
        let path =
            |(path, blocks): &(&str, u64)| HolderPath { path: (*path).to_owned(), is_sure: true, blocks: *blocks };
        let live = LiveSum { blocks: 9, size_bytes: 900 };
        let (garbage_blocks, unknown_blocks) = (0, 0);
        let holders = paths.iter().map(path).collect();
        let place = PlaceLook {
            block,
            live,
            looked_at_blocks: 5,
            holders,
            garbage_blocks,
            unknown_blocks,
            left_out: None,
            held_as: Vec::new(),
        };
        EventKind::Looked(Arc::new(Look { number, at, outcome: Looked::Place(Box::new(place)) }))
    }

    fn no_look(why: &str) -> EventKind {
        EventKind::Looked(Arc::new(Look { number: 1, at: LookedAt::End, outcome: Looked::NotLooked(why.into()) }))
    }

    fn found(script: &Script) -> Vec<(u32, LookedAt, Option<String>, Vec<String>)> {
        let findings = run(HeldByAnalysis::default(), script.events(), &RunEnd::default());
        let of = |finding: &Finding| {
            let Finding::HeldBy(found) = finding else { panic!("{finding:?}") };
            let paths = found.places.iter().flat_map(|place| &place.holders).map(|holder| holder.path.clone());
            (found.pid, found.looked_at, found.not_looked_for.clone(), paths.collect())
        };
        findings.iter().map(of).collect()
    }

    /// The last look counts, as a whole; that at a failed request is kept; at the exit what was found before is not forgotten.
    #[test]
    fn the_last_look_counts() {
        let mut script = Script::new(7, NPU0);
        script.stacks(&["a.py(1): f"], &[]).alloc(pools::PTA, 0x1000, 100);
        let first = block(&script);
        script.stacks(&["a.py(2): g"], &[]).alloc(pools::PTA, 0x2000, 100);
        let second = block(&script);
        script.event(look(1, LookedAt::Running, first, &[("m.old", 5)]));
        script.event(look(1, LookedAt::Running, second, &[("m.gone", 5)]));
        script.event(look(2, LookedAt::FailedRequest, first, &[("m.at_failure", 5)]));
        script.event(look(3, LookedAt::Running, first, &[("m.new", 5)]));
        script.event(look(4, LookedAt::Exit, first, &[]));
        script.event(look(4, LookedAt::Exit, second, &[("m.other", 5)]));
        script.event(look(5, LookedAt::Exit, second, &[("m.some", 4)]));
        let texts = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>();
        let expected = [
            (7, LookedAt::FailedRequest, None, texts(&["m.at_failure"])),
            (7, LookedAt::Exit, None, texts(&["m.new", "m.other"])),
        ];
        assert_eq!(found(&script), expected);
    }

    /// A program that exits is looked at in vain: the look before that counts, with its time; one that shows as much counts itself.
    #[test]
    fn an_exit_takes_nothing_away() {
        let mut script = Script::new(7, NPU0);
        script.alloc(pools::PTA, 0x1000, 100);
        let place = block(&script);
        script.event(look(1, LookedAt::Running, place, &[("m.list", 5)]));
        let of = |script: &Script| {
            let findings = run(HeldByAnalysis::default(), script.events(), &RunEnd::default());
            let [Finding::HeldBy(found)] = &findings[..] else { panic!("{findings:?}") };
            let holders = &found.places[0].holders;
            (found.looked_at, found.time_ns, holders.iter().map(|holder| holder.path.clone()).collect::<Vec<_>>())
        };
        let before = of(&script);
        assert_eq!((before.0, &before.2[..]), (LookedAt::Running, &["m.list".to_owned()][..]));
        let EventKind::Looked(unsure) = look(2, LookedAt::Exit, place, &[("stack of a thread", 5)]) else { panic!() };
        let mut unsure = Arc::unwrap_or_clone(unsure);
        let Looked::Place(found) = &mut unsure.outcome else { panic!() };
        found.holders[0].is_sure = false;
        script.event(EventKind::Looked(Arc::new(unsure)));
        assert_eq!(of(&script), before);
        script.event(look(3, LookedAt::Exit, place, &[("m.other", 5)]));
        assert_eq!((of(&script).0, &of(&script).2[..]), (LookedAt::Exit, &["m.other".to_owned()][..]));
    }

    /// A reason is that of the process, or of all without a look; what was found counts more.
    #[test]
    fn reasons() {
        let mut script = Script::new(7, NPU0);
        script.alloc(pools::PTA, 0x1000, 100).event(no_look("no CPython")).process_end();
        script.on(8, NPU0).alloc(pools::PTA, 0x1000, 100).process_end();
        script.on(9, NPU0).alloc(pools::PTA, 0x1000, 100);
        let of_ninth = block(&script);
        script.event(look(2, LookedAt::Running, of_ninth, &[("m.x", 5)])).event(no_look("gone"));
        assert_eq!(found(&script).len(), 2);
        script.on(0, Device::None).event(no_look("it ended before"));
        let why = |why: &str| Some(why.to_owned());
        let expected = [
            (7, LookedAt::End, why("no CPython"), Vec::new()),
            (8, LookedAt::End, why("it ended before"), Vec::new()),
            (9, LookedAt::Running, None, vec!["m.x".to_owned()]),
        ];
        assert_eq!(found(&script), expected);
    }
}
