//! Values that an analysis keeps for each process and device.

use std::collections::BTreeMap;

use crate::model::Device;

/// A value for each process and device, ordered by process, then device.
#[derive(Debug)]
pub(super) struct PerDevice<T>(BTreeMap<(u32, Device), T>);

impl<T> Default for PerDevice<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Default> PerDevice<T> {
    /// The value of `pid` on `device`, made when first asked for.
    pub(super) fn at(&mut self, pid: u32, device: Device) -> &mut T {
        self.0.entry((pid, device)).or_default()
    }

    /// Takes out everything of one process.
    pub(super) fn take_process(&mut self, pid: u32) -> impl Iterator<Item = (Device, T)> {
        let keys = (pid, Device::Npu(0))..=(pid, Device::None);
        self.0.extract_if(keys, |_, _| true).map(|((_, device), value)| (device, value))
    }

    /// Whether there is a value.
    pub(super) fn has(&self, pid: u32, device: Device) -> bool {
        self.0.contains_key(&(pid, device))
    }

    /// Everything of one process.
    pub(super) fn of_process(&mut self, pid: u32) -> impl Iterator<Item = (Device, &mut T)> {
        let keys = (pid, Device::Npu(0))..=(pid, Device::None);
        self.0.range_mut(keys).map(|((_, device), value)| (*device, value))
    }

    /// Everything.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, Device, &T)> {
        self.0.iter().map(|(&(pid, device), value)| (pid, device, value))
    }

    /// The processes with a value.
    pub(super) fn processes(&self) -> Vec<u32> {
        let mut pids: Vec<u32> = self.0.keys().map(|&(pid, _)| pid).collect();
        pids.dedup();
        pids
    }
}
