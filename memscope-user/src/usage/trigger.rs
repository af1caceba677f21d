//! Notifies the sampler that memory has changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::analyses::Observer;
use crate::model::{Device, Event, EventKind};

/// Devices with a flag of their own; figures of others are only taken with those of all.
const DEVICES: u32 = 64;

/// Set by the pipeline, read by the sampler. It sees every event.
#[derive(Clone, Debug, Default)]
pub struct Trigger(Arc<State>);

#[derive(Debug, Default)]
struct State {
    pulled: AtomicBool,
    devices: AtomicU64,
}

impl Trigger {
    /// Whether memory has changed since the last call.
    #[must_use]
    pub fn take(&self) -> bool {
        self.0.pulled.swap(false, Ordering::Relaxed)
    }

    /// Memory may have changed.
    pub fn pull(&self) {
        self.0.pulled.store(true, Ordering::Relaxed);
    }

    /// Devices on which traced programs have had memory; none at first.
    #[must_use]
    pub fn devices(&self) -> Vec<u32> {
        let devices = self.0.devices.load(Ordering::Relaxed);
        (0..DEVICES).filter(|device| devices & (1 << device) != 0).collect()
    }
}

impl Observer for Trigger {
    fn observe(&mut self, event: &Event) {
        if !matches!(event.kind, EventKind::Alloc(_) | EventKind::Free(_) | EventKind::AllocFailed(_)) {
            return;
        }
        if let Device::Npu(device) = event.device {
            if device < DEVICES {
                self.0.devices.fetch_or(1 << device, Ordering::Relaxed);
            }
            self.pull();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyses::script::Script;
    use crate::backend::ascend::pools;

    /// Only memory of NPUs pulls it.
    #[test]
    fn memory_of_devices_pulls() {
        let mut script = Script::new(1, Device::Npu(3));
        script.launch().on(1, Device::Cpu).alloc(pools::HOST, 0x1000, 1).on(1, Device::Npu(99)).alloc(
            pools::HAL,
            0x2000,
            1,
        );
        script.on(1, Device::Npu(5)).alloc(pools::PTA, 0x3000, 1);
        let mut trigger = Trigger::default();
        let pulled: Vec<bool> = script
            .events()
            .iter()
            .map(|event| {
                trigger.observe(event);
                trigger.take()
            })
            .collect();
        assert_eq!(pulled, [false, false, true, true]);
        assert_eq!(trigger.devices(), [5]);
    }
}
