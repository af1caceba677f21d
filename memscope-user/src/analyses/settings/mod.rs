//! Which settings that advice depends on was a program started with? Captures have them; dumps do not.

mod finding;

pub use self::finding::Settings;

use std::collections::BTreeMap;

use super::{Analysis, Finding, concluded::Concluded};
use crate::model::{Event, EventKind, RunEnd};

/// Keeps the last settings of each process: those of the program that it is now.
#[derive(Debug, Default)]
pub struct SettingsAnalysis {
    running: BTreeMap<u32, Settings>,
    concluded: Concluded<Settings>,
}

impl Analysis for SettingsAnalysis {
    fn observe(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Settings(settings) => {
                let (pid, settings) = (event.pid, settings.to_vec());
                self.running.insert(pid, Settings { pid, settings });
            }
            EventKind::ProcessEnd => self.concluded.extend(self.running.remove(&event.pid)),
            _ => {}
        }
    }

    fn finish(&mut self, _: &RunEnd) -> Vec<Finding> {
        self.concluded.extend(std::mem::take(&mut self.running).into_values());
        self.concluded.take(|settings| settings.pid, Finding::Settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyses::script::{Script, run};
    use crate::model::{Device, Setting};

    /// The settings of the program that a process is last count; a process of which none are known has no finding.
    #[test]
    fn last_settings_of_each_process() {
        let settings =
            |value: &str| EventKind::Settings([Setting { name: "HCCL_BUFFSIZE", value: value.to_owned() }].into());
        let mut script = Script::new(7, Device::Npu(0));
        script.event(settings("200")).event(settings("120"));
        script.on(8, Device::Npu(0)).event(EventKind::Settings([].into())).process_end();
        script.on(9, Device::Npu(0)).process_end();
        let found = run(SettingsAnalysis::default(), script.events(), &RunEnd::default());
        let of = |pid, values: &[&str]| {
            let setting = |value: &&str| Setting { name: "HCCL_BUFFSIZE", value: (*value).to_owned() };
            Finding::Settings(Settings { pid, settings: values.iter().map(setting).collect() })
        };
        assert_eq!(found, [of(7, &["120"]), of(8, &[])]);
    }
}
