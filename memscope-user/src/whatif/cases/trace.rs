//! Requests as lines: `A device id asked stream pool`, `F id` free, `D id` free while streams use it, `R id` they have done,
//! `E device` cache emptied, `O device asked stream` failed, `H device bytes` memory of others, `M text` a mark.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde_json::Value;

use super::{Conditions, addresses, digest, history, run};
use crate::whatif::device::Addresses;
use crate::whatif::replay::Until;
use crate::whatif::requests::{Lane, Mark, MarkOf, Op, Requests, Slots};

pub(in crate::whatif) struct Trace(Vec<String>);

impl Trace {
    pub(in crate::whatif) fn new(text: &str) -> Self {
        Self(text.lines().map(str::to_owned).collect())
    }

    /// With the cache of both devices emptied behind each third mark.
    pub(super) fn emptied(self, is: bool) -> Self {
        let mut marks = 0;
        let mut lines = Vec::new();
        for line in self.0 {
            marks += usize::from(line.starts_with("M "));
            let empties = is && line.starts_with("M ") && marks % 3 == 0;
            lines.push(line);
            if empties {
                lines.extend(["E 0".to_owned(), "E 1".to_owned()]);
            }
        }
        Self(lines)
    }

    /// The same with blocks coming back when they did in a real run, and its pointers of streams.
    fn retimed(self, case: &Value) -> Self {
        let streams = |device: u64| streams_of(case, device);
        let real: HashMap<(u64, u64), (u64, u64)> = case["returns"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|entry| {
                let number = |index: usize| entry[index].as_u64().expect("a number");
                ((number(0), number(1)), (number(2), number(3)))
            })
            .collect();
        let retimes = !case["returns"].is_null();
        let (mut mine, mut count) = (HashMap::<u64, Vec<String>>::new(), HashMap::<u64, u64>::new());
        let (mut ident, mut due) = (HashMap::new(), BTreeMap::<(u64, u64), Vec<(u64, String)>>::new());
        let mut lines = Vec::new();
        for line in self.0 {
            let fields: Vec<&str> = line.split(' ').collect();
            let mut line = line.clone();
            match fields[0] {
                "R" if retimes => continue,
                "A" => {
                    let device: u64 = fields[1].parse().expect("a device");
                    let number = *count.entry(device).or_default();
                    let mut back = due.remove(&(device, number)).unwrap_or_default();
                    back.sort();
                    lines.extend(back.into_iter().map(|(_, id)| format!("R {id}")));
                    ident.insert(fields[2].to_owned(), (device, number));
                    count.insert(device, number + 1);
                    let known = mine.entry(device).or_default();
                    let stream = fields[4].to_owned();
                    let index = known.iter().position(|known| *known == stream).unwrap_or_else(|| {
                        known.push(stream);
                        known.len() - 1
                    });
                    if let Some(stream) = streams(device).get(index) {
                        line = format!("A {} {} {} {stream} {}", fields[1], fields[2], fields[3], fields[5]);
                    }
                }
                "O" => {
                    let device: u64 = fields[1].parse().expect("a device");
                    let index = mine.get(&device).and_then(|known| known.iter().position(|known| known == fields[3]));
                    if let Some(stream) = index.and_then(|index| streams(device).get(index).cloned()) {
                        line = format!("O {} {} {stream}", fields[1], fields[2]);
                    }
                }
                "D" => {
                    if let Some(of) = ident.get(fields[1])
                        && let Some((at, order)) = real.get(of)
                    {
                        due.entry((of.0, *at)).or_default().push((*order, fields[1].to_owned()));
                    }
                }
                _ => {}
            }
            lines.push(line);
        }
        Self(lines)
    }

    pub(in crate::whatif) fn requests(&self) -> Requests {
        let mut requests = Requests::default();
        let (mut slots, mut live) = (Slots::default(), HashMap::<&str, u32>::new());
        for line in &self.0 {
            let fields: Vec<&str> = line.split(' ').collect();
            let number = |index: usize| fields[index].parse::<u64>().expect("a number");
            let op = match fields[0] {
                "A" => {
                    live.insert(fields[2], slots.take());
                    requests.see_place(0, 0);
                    let private = fields[5].parse().expect("a pool");
                    let lane = lane(&mut requests, number(1), number(4), private);
                    Op::Alloc { lane, asked: number(3) }
                }
                "F" => {
                    let slot = live.remove(fields[1]).expect("a live block");
                    slots.give_back(slot);
                    Op::Free { slot }
                }
                "D" => {
                    requests.frees_in_use += 1;
                    Op::FreeInUse { slot: live[fields[1]] }
                }
                "R" => {
                    let slot = live.remove(fields[1]).expect("a live block");
                    slots.give_back(slot);
                    Op::Returned { slot }
                }
                "E" => Op::EmptyCache { device: device(&mut requests, number(1)) },
                "O" => Op::Failed { lane: lane(&mut requests, number(1), number(3), 0), asked: number(2) },
                "H" => {
                    let device = device(&mut requests, number(1));
                    Op::Others { device, bytes: fields[2].parse().expect("a number") }
                }
                "M" => {
                    let text = MarkOf::Text(Arc::from(&line[2..]));
                    requests.marks.push(Mark { time_ns: 0, what: text });
                    Op::Mark { index: requests.marks.len() as u32 - 1 }
                }
                _ => panic!("{line}"),
            };
            requests.words.push(op);
        }
        requests
    }
}

/// Pointers of the streams of a real run, in the order of their first requests.
fn streams_of(case: &Value, device: u64) -> Vec<String> {
    let all = case["streams"][device.to_string()].as_array();
    all.map(|all| all.iter().map(Value::to_string).collect()).unwrap_or_default()
}

fn device(requests: &mut Requests, number: u64) -> u8 {
    // In the order of their numbers.
    (0..=number as u32).filter_map(|number| requests.device(number)).last().expect("a device")
}

fn lane(requests: &mut Requests, number: u64, stream: u64, private: u16) -> u16 {
    let lane = Lane { device: device(requests, number), stream, private };
    let known = requests.lanes.iter().position(|known| *known == lane);
    known.unwrap_or_else(|| {
        requests.lanes.push(lane);
        requests.lanes.len() - 1
    }) as u16
}

/// One of the 90 cases.
pub(super) fn check_case(case: &Value, text: &str, settings: &str) {
    let (workload, setting) = (case["workload"].as_str().expect("a word"), case["setting"].as_str().expect("a word"));
    let line = settings.lines().find(|line| line.split('|').next() == Some(setting)).expect("a setting");
    let fields: Vec<&str> = line.split('|').collect();
    let variable = |name: &str| fields[2].split(' ').find_map(|variable| variable.strip_prefix(name));
    let requests = Trace::new(text).retimed(case).emptied(setting == "empty").requests();
    let order = match case["addresses"]["0"].as_array() {
        Some(given) => Addresses::Recorded(given.iter().map(|addr| addr.as_u64().expect("an address")).collect()),
        None => addresses(case["policy"].as_str().expect("a word")),
    };
    let conditions = Conditions {
        configuration: fields[1],
        mib: variable("STUB_NPU_MEM_MB=").map_or(2048, |mib| mib.parse().expect("a number")),
        fraction: variable("WL_FRACTION=").map(|part| part.parse().expect("a number")),
        addresses: order,
        until: if case["go_on"] == Value::Bool(true) { Until::End } else { Until::Divergence },
    };
    let (outcome, found, pools) = run(&requests, &conditions);
    for (mark, found) in case["marks"].as_array().expect("marks").iter().zip(&found) {
        for (device, values) in mark[1].as_object().expect("devices") {
            let Some(found) = found.get(device.parse::<usize>().expect("a number")) else { continue };
            let values: Vec<u64> = values.as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
            assert_eq!(found[..], values[..], "{workload} {setting} {}", mark[0]);
        }
    }
    assert!(found.len() >= case["marks"].as_array().map_or(0, Vec::len), "{workload} {setting}");
    let failed = outcome.parting.filter(|parting| parting.fails).map(|parting| parting.number);
    assert_eq!(failed, case["oom"]["request"].as_u64(), "{workload} {setting}");
    if case["ordered"] == Value::Bool(true) {
        for (device, events) in case["events"].as_object().expect("devices") {
            let pool = &pools[device.parse::<usize>().expect("a number")];
            let history = history(pool, events[0].as_u64().expect("a number") as usize).expect("as many events");
            assert_eq!(Some(digest(&history).as_str()), events[1].as_str(), "{workload} {setting} {device}");
        }
    }
}
