//! The driver's own figures: the last ones of each device.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::{Device, DeviceUsage, DriverFigures, ProcessUsage};

/// Most devices with figures; a host has 16.
const MAX_DEVICES: usize = 1024;

/// The last figures of each device.
#[derive(Debug, Default)]
pub(super) struct Usage(BTreeMap<Device, DeviceUsage>);

impl Usage {
    /// Takes new figures of a device; gives them as an event has them.
    pub(super) fn update(
        &mut self,
        device: Device,
        (used_bytes, total_bytes): (u64, u64),
        processes: Option<Vec<(u32, u64)>>,
    ) -> DeviceUsage {
        let process = |(pid, used_bytes)| ProcessUsage { pid, used_bytes };
        let processes = processes.map(|list| {
            let mut list: Vec<ProcessUsage> = list.into_iter().map(process).collect();
            list.sort_unstable_by_key(|process| process.pid);
            Arc::from(list)
        });
        let usage = DeviceUsage { used_bytes, total_bytes, processes };
        if self.0.len() < MAX_DEVICES || self.0.contains_key(&device) {
            self.0.insert(device, usage.clone());
        }
        usage
    }

    /// Free and total bytes of a device.
    pub(super) fn free_and_total_bytes(&self, device: Device) -> Option<(u64, u64)> {
        let usage = self.0.get(&device)?;
        Some((usage.total_bytes.saturating_sub(usage.used_bytes), usage.total_bytes))
    }

    /// The figures of a process on a device.
    pub(super) fn of(&self, pid: u32, device: Device) -> DriverFigures {
        let Some(usage) = self.0.get(&device) else { return DriverFigures::default() };
        let processes = usage.processes.as_deref().unwrap_or_default();
        let own = processes.binary_search_by_key(&pid, |process| process.pid).ok();
        let process_used_bytes = own.and_then(|index| processes.get(index)).map(|process| process.used_bytes);
        DriverFigures { process_used_bytes, device_used_bytes: Some(usage.used_bytes) }
    }
}
