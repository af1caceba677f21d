//! What `agent status` shows.

use std::collections::BTreeMap;

use super::{Node, aside::LeftOut};
use crate::{
    agent::{
        books::Account,
        control::{GrowingPlace, LargestPlace, PoolStatus, ProcessStatus, Status},
        evidence::key,
        fold::Target,
        series::{Place, Series, SeriesKey},
        source::Source,
    },
    model::Stack,
};

/// Places of a pool.
const MAX_PLACES: usize = 5;

impl<S: Source> Node<S> {
    pub(super) fn new_status(&self, account: &Account, targets: &BTreeMap<u32, Target>) -> Status {
        let mut processes: BTreeMap<u32, ProcessStatus> = BTreeMap::new();
        for (pid, target) in targets {
            if account.processes.get(pid).is_none_or(|known| known.ended) {
                continue;
            }
            processes.insert(*pid, process_status(*pid, target, self.aside.of(*pid)));
        }
        for (key, series) in &account.series {
            let Some(process) = processes.get_mut(&key.pid) else { continue };
            process.pools.push(pool_status(key, series));
        }
        for process in processes.values_mut() {
            process.pools.sort_by(|one, other| (&one.device, &one.pool).cmp(&(&other.device, &other.pool)));
        }
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            level: self.budget.level().number(),
            changes: self.changes.iter().cloned().collect(),
            overhead_cores: self.meter.cores(),
            budget_cores: self.config.budget.cores,
            events: account.events,
            lost: self.last.lost,
            processes: processes.into_values().collect(),
            excluded: self.excluded.len(),
        }
    }
}

/// A process, with pools to come.
fn process_status(pid: u32, target: &Target, left_out: Option<LeftOut>) -> ProcessStatus {
    let place = target.place.clone();
    ProcessStatus {
        pid,
        uid: target.uid,
        command: target.comm.clone(),
        namespace: place.namespace,
        pod: place.pod_name,
        container: place.container_name,
        left_out: left_out == Some(LeftOut::All),
        reduced: left_out == Some(LeftOut::Pools),
        pools: Vec::new(),
    }
}

/// A pool of a process.
fn pool_status(key: &SeriesKey, series: &Series) -> PoolStatus {
    let frames = |place: &Place| place.stacks.best().map(Stack::frames).unwrap_or_default();
    let growing = series.growing_places(MAX_PLACES).into_iter().map(|(place, slope)| GrowingPlace {
        frames: frames(&place).iter().map(ToString::to_string).collect(),
        size_bytes: place.size_bytes,
        bytes_per_second: slope,
    });
    let largest = series.largest_place();
    PoolStatus {
        device: key.device.name_or("unknown"),
        pool: key.pool.event_type().to_owned(),
        live_bytes: series.live_bytes,
        untracked_bytes: series.untracked_bytes(),
        growth_bytes_per_second: series.growth(),
        seconds_left: series.seconds_left(),
        largest: largest.map(|(place, live_bytes)| LargestPlace { place: key::short(&place), live_bytes }),
        growing: growing.collect(),
    }
}
