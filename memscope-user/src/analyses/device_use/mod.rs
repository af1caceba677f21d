//! How much does the driver itself count as in use? Its last figures of each device, with their time.

mod finding;

pub use self::finding::DeviceUse;

use std::collections::BTreeMap;

use super::{Analysis, Finding};
use crate::model::{Device, Event, EventKind, RunEnd};

/// Most devices; a host has 16.
const MAX_DEVICES: usize = 1024;

/// Keeps the last figures of each device.
#[derive(Debug, Default)]
pub struct DeviceUseAnalysis(BTreeMap<Device, DeviceUse>);

impl Analysis for DeviceUseAnalysis {
    fn observe(&mut self, event: &Event) {
        let EventKind::DeviceUsage(usage) = &event.kind else { return };
        if self.0.len() >= MAX_DEVICES && !self.0.contains_key(&event.device) {
            return;
        }
        let (device, time_ns) = (event.device, event.time_ns);
        let processes = usage.processes.as_ref().map(|processes| processes.to_vec());
        let (used_bytes, total_bytes) = (usage.used_bytes, usage.total_bytes);
        self.0.insert(device, DeviceUse { device, time_ns, used_bytes, total_bytes, processes });
    }

    fn finish(&mut self, _: &RunEnd) -> Vec<Finding> {
        self.now()
    }

    fn now(&self) -> Vec<Finding> {
        self.0.values().cloned().map(Finding::DeviceUse).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyses::script::Script;
    use crate::model::ProcessUsage;

    /// The last figures of each device count.
    #[test]
    fn last_figures_of_each_device() {
        let mut script = Script::new(7, Device::Npu(0));
        script.usage(100, Some(&[(7, 60), (8, 40)])).on(7, Device::Npu(1)).usage(5, None);
        script.on(7, Device::Npu(0)).usage(90, Some(&[(7, 90)]));
        let mut analysis = DeviceUseAnalysis::default();
        script.events().iter().for_each(|event| analysis.observe(event));
        let own = ProcessUsage { pid: 7, used_bytes: 90 };
        let of = |device, time_ns, used_bytes, processes| {
            let device = Device::Npu(device);
            Finding::DeviceUse(DeviceUse { device, time_ns, used_bytes, total_bytes: 1 << 36, processes })
        };
        let expected = [of(0, 2, 90, Some(vec![own])), of(1, 1, 5, None)];
        assert_eq!(analysis.now(), expected);
        assert_eq!(analysis.finish(&RunEnd::default()), expected);
    }
}
