//! A day of a large fleet by the agent's own writer: how many bytes a row takes, and how long writing does. `fleet/tests/scale.py` asks the
//! queries of the same folder.
//!
//! Each host has 8 processes with a device each, and each of these 8 places: what `scale.py` makes itself, with sizes to 512 bytes, as pools
//! hand them out, instead of whole blocks of 2 MiB.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use memscope::agent::config::EvidenceSettings;
use memscope::agent::evidence::Evidence;
use memscope::agent::evidence::minutes::{Changes, Minute, Minutes, PlaceMinute, PoolMinute};
use memscope::agent::fold::{Target, Where};
use memscope::agent::series::{Place, SeriesKey};
use memscope::backend::ascend::pools;
use memscope::model::{Device, Stack, StackEnd, Stacks};

use crate::random::Random;

/// 2026-11-20 00:00 UTC.
const START: u32 = 29_918_880;
const HOURS: u32 = 24;
const DEVICES: u32 = 8;
const PLACES: u64 = 8;
const RANKS: u32 = 512;
const MAX_JOB: u32 = 15;
/// Of job-08, rank 146: it gains 2 MiB a minute at place 3.
const LEAKING: u32 = 4242;
const LEAK_BYTES: u64 = 2 << 20;
const GRAIN: u64 = 512;

/// Writes the day of these hosts.
pub(crate) fn run(folder: &Path, hosts: u32) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let places: Vec<Place> = (0..PLACES).map(place).collect();
    let begin = Instant::now();
    for host in 0..hosts {
        write(folder, host, &places)?;
    }
    let seconds = begin.elapsed().as_secs_f64();
    let rows = u64::from(hosts) * u64::from(DEVICES * HOURS * 60);
    for (table, rows) in [("place_minute", rows * PLACES), ("device_minute", rows * 2)] {
        let (files, size_bytes) = size(&folder.join("v1").join(table))?;
        let each = size_bytes as f64 / rows as f64;
        println!("{table}: {rows} rows, {files} files, {size_bytes} bytes, {each:.1} bytes a row");
    }
    println!("all in {seconds:.0} s");
    Ok(())
}

/// Seven places of a model, and one of the driver.
fn place(number: u64) -> Place {
    let own = format!("/srv/model.py({number}): step");
    let python = [
        "/usr/lib/python3/dist-packages/torch/nn/functional.py(2): linear",
        "/usr/lib/python3/dist-packages/torch/nn/modules/module.py(7): __call__",
        &own,
        "/srv/train.py(15): main",
    ];
    let stacks = Stacks { python: Some(Stack::keep(python, StackEnd::Root)), ..Stacks::default() };
    Place { stacks, size_bytes: 0 }
}

/// A host's day, as its agent writes it.
fn write(folder: &Path, host: u32, places: &[Place]) -> Result<()> {
    let settings =
        EvidenceSettings { directory: folder.to_owned(), max_bytes: u64::MAX, ..EvidenceSettings::default() };
    let mut evidence = Evidence::of_host(&settings, &format!("node-{host:04}"), "0123456789ab")?;
    let processes: Vec<u32> = (host * DEVICES..(host + 1) * DEVICES).collect();
    let targets: BTreeMap<u32, Target> = processes.iter().map(|process| (pid(*process), target(*process))).collect();
    let mut random = Random::new(host.into());
    for hour in 0..HOURS {
        let minutes = (hour * 60..(hour + 1) * 60).map(|minute| rows(minute, &processes, places, &mut random));
        evidence.take(Minutes { ready: minutes.collect(), dropped_rows: 0 }, &targets, 0, 0);
        if let [why, ..] = &evidence.finish()[..] {
            bail!("{why}");
        }
    }
    Ok(())
}

const fn pid(process: u32) -> u32 {
    10_000 + process
}

fn target(process: u32) -> Target {
    let (job, rank) = ((process / RANKS).min(MAX_JOB), process % RANKS);
    let pod_name = format!("train-{job}-worker-{}", rank / DEVICES);
    let place = Where { namespace: "train".into(), pod_name, container_name: "main".into() };
    Target { place, rank: rank.to_string(), job: format!("job-{job:02}"), ..Target::default() }
}

/// A minute of all processes of a host.
fn rows(minute: u32, processes: &[u32], places: &[Place], random: &mut Random) -> Minute {
    let mut rows = Minute { minute: START + minute, is_over: true, ..Minute::default() };
    for process in processes {
        let key = |pool| SeriesKey { pid: pid(*process), device: Device::Npu(process % DEVICES), pool };
        let mut used_bytes = 0;
        for (number, place) in (0..).zip(places) {
            let is_driver = number + 1 == PLACES;
            let base = (64 << 20) * (1 + Random::new(number + PLACES * u64::from(process / RANKS)).below(64));
            // Weights, states of the optimizer and segments stay; the others come and go.
            let wave = if number < 2 || is_driver { 0 } else { GRAIN * random.below(65_536) };
            let leaks = *process == LEAKING && number == 3;
            let leak = if leaks { LEAK_BYTES * u64::from(minute) } else { 0 };
            let live_bytes = base + wave + leak;
            let (count, bytes) = if number < 2 || is_driver {
                (0, 0)
            } else {
                let count = random.between(30, 50);
                (count, count * GRAIN * random.between(1, 4096))
            };
            let [count, bytes] = [count, bytes].map(u64::cast_signed);
            let changes = Changes { allocations: count, allocated_bytes: bytes, frees: count, freed_bytes: bytes };
            let pool = if is_driver { pools::HAL } else { pools::PTA };
            let live_blocks = live_bytes / (2 << 20) + 1;
            rows.places.push(PlaceMinute { key: key(pool), place: *place, live_bytes, live_blocks, changes });
            if !is_driver {
                used_bytes += live_bytes;
            }
        }
        for pool in [pools::HAL, pools::PTA] {
            let says = pool == pools::PTA;
            rows.pools.push(PoolMinute {
                key: key(pool),
                live_bytes: used_bytes,
                live_blocks: used_bytes / (2 << 20) + 1,
                used_bytes: says.then_some(used_bytes),
                reserved_bytes: says.then_some(used_bytes + (1 << 30)),
                active_bytes: says.then_some(used_bytes + (8 << 20)),
                untracked_bytes: 0,
                changes: Changes { allocations: 300, allocated_bytes: 0, frees: 300, freed_bytes: 0 },
                failures: 0,
            });
        }
    }
    rows
}

/// Files below a folder, and their bytes.
fn size(folder: &Path) -> Result<(u64, u64)> {
    let mut sum = (0, 0);
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        let about = entry.metadata()?;
        let (files, size_bytes) = if about.is_dir() { size(&entry.path())? } else { (1, about.len()) };
        sum = (sum.0 + files, sum.1 + size_bytes);
    }
    Ok(sum)
}
