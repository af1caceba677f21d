//! With which settings was a program started? Those that advice depends on. Captures have them; dumps do not. Processes
//! that never asked for memory have no finding.

mod finding;

pub use self::finding::Settings;

use std::collections::BTreeMap;

use super::{Analysis, Finding, concluded::Concluded};
use crate::model::{Event, EventKind, RunEnd};

/// Keeps the last settings of each process: those of its current program.
#[derive(Debug, Default)]
pub struct SettingsAnalysis {
    running: BTreeMap<u32, Running>,
    concluded: Concluded<Settings>,
}

/// A process.
#[derive(Debug)]
struct Running {
    settings: Settings,
    /// It has asked for memory.
    has_memory: bool,
}

impl Running {
    fn finding(self) -> Option<Settings> {
        self.has_memory.then_some(self.settings)
    }
}

impl Analysis for SettingsAnalysis {
    fn observe(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Settings(settings) => {
                let (pid, settings) = (event.pid, settings.to_vec());
                let has_memory = self.running.get(&pid).is_some_and(|running| running.has_memory);
                self.running.insert(pid, Running { settings: Settings { pid, settings }, has_memory });
            }
            EventKind::Alloc(_) | EventKind::AllocFailed(_) => {
                if let Some(running) = self.running.get_mut(&event.pid) {
                    running.has_memory = true;
                }
            }
            EventKind::ProcessEnd => {
                self.concluded.extend(self.running.remove(&event.pid).and_then(Running::finding));
            }
            _ => {}
        }
    }

    fn finish(&mut self, _: &RunEnd) -> Vec<Finding> {
        self.concluded.extend(std::mem::take(&mut self.running).into_values().filter_map(Running::finding));
        self.concluded.take(|settings| settings.pid, Finding::Settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyses::script::{Script, run};
    use crate::backend::ascend::pools;
    use crate::model::{Device, Setting};

    /// The settings of the process's last program count; a process without known settings has no finding, nor one
    /// without memory.
    #[test]
    fn last_settings_of_each_process() {
        let settings =
            |value: &str| EventKind::Settings([Setting { name: "HCCL_BUFFSIZE", value: value.to_owned() }].into());
        let mut script = Script::new(7, Device::Npu(0));
        script.event(settings("200")).alloc(pools::HAL, 0x1000, 64).event(settings("120"));
        script.on(8, Device::Npu(0)).event(EventKind::Settings([].into())).alloc_failed(pools::HAL, 64, (1, 1));
        script.process_end();
        script.on(9, Device::Npu(0)).alloc(pools::HAL, 0x1000, 64).process_end();
        script.on(10, Device::Npu(0)).event(settings("200")).process_end();
        let found = run(SettingsAnalysis::default(), script.events(), &RunEnd::default());
        let of = |pid, values: &[&str]| {
            let setting = |value: &&str| Setting { name: "HCCL_BUFFSIZE", value: (*value).to_owned() };
            Finding::Settings(Settings { pid, settings: values.iter().map(setting).collect() })
        };
        assert_eq!(found, [of(7, &["120"]), of(8, &[])]);
    }
}
