//! Devices, libraries and settings in a process's environment.

use std::path::PathBuf;

use crate::{backend, os::process::variable, probes::ProbeSpec, settings};

/// The device list of a process with this environment, if it has one.
pub(crate) fn visible_devices(environment: &[u8]) -> Option<String> {
    const LONGEST: usize = 1024;
    let value = variable(environment, backend::current().visible_devices())?;
    String::from_utf8(value.get(..LONGEST.min(value.len()))?.to_vec()).ok()
}

/// The settings in an environment, in the order of [`settings::NAMES`].
pub(super) fn settings_of(environment: &[u8]) -> Vec<(String, String)> {
    let value = |name| Some(settings::kept(&String::from_utf8_lossy(variable(environment, name)?)));
    settings::NAMES.iter().filter_map(|name| Some(((*name).to_owned(), value(name)?))).collect()
}

/// Libraries that a program started with this environment will probably map.
#[must_use]
pub fn expected_libraries(environment: &[(String, String)], user: &[&'static ProbeSpec]) -> Vec<PathBuf> {
    let value = |name: &str| environment.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let search_path = value("LD_LIBRARY_PATH").unwrap_or_default();
    let homes = backend::current().home_variables().iter().copied().filter_map(value);
    let directories = search_path
        .split(':')
        .filter(|directory| directory.starts_with('/'))
        .map(PathBuf::from)
        .chain(homes.map(|home| PathBuf::from(home).join("lib64")))
        .chain(backend::current().driver_folders().iter().map(PathBuf::from));
    let specs = backend::builtin().chain(user.iter().copied());
    let mut names: Vec<&str> = specs.flat_map(|spec| spec.libraries.iter().copied()).collect();
    names.sort_unstable();
    names.dedup();
    let mut found = Vec::new();
    for directory in directories {
        for name in &names {
            if let Ok(path) = directory.join(name).canonicalize()
                && !found.contains(&path)
            {
                found.push(path);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of all that an environment holds the four names come out, each as the program's `getenv` gives it.
    #[test]
    fn other_variables_are_not_kept() {
        let environment = b"TOKEN=secret\0HCCL_BUFFSIZE=120\0XHCCL_BUFFSIZE=1\0HCCL_BUFFSIZE_=2\0HCCL_BUFFSIZE=7\0\
            PYTORCH_NPU_ALLOC_CONF=a:1,b=2\0TASK_QUEUE_ENABLE\0MULTI_STREAM_MEMORY_REUSE=\0";
        let found = settings_of(environment);
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let expected = [
            pair("PYTORCH_NPU_ALLOC_CONF", "a:1,b=2"),
            pair("HCCL_BUFFSIZE", "120"),
            pair("MULTI_STREAM_MEMORY_REUSE", ""),
        ];
        assert_eq!(found, expected);
        assert_eq!(settings_of(b""), []);
    }

    /// A value of any length and of any bytes is bounded.
    #[test]
    fn values_are_bounded() {
        let mut environment = b"HCCL_BUFFSIZE=".to_vec();
        environment.extend([0xff; 4000]);
        let [(_, value)] = &settings_of(&environment)[..] else { panic!("one") };
        // Each byte outside of UTF-8 became a character of three bytes; 170 of them are 510.
        assert_eq!((value.len(), value.chars().count()), (510, 170));
    }
}
