//! What a process's environment says of devices and libraries.

use std::path::PathBuf;

use crate::{backend, os::process::environment, probes::ProbeSpec};

/// The device list of a process, if it has one.
pub(crate) fn visible_devices(pid: u32) -> Option<String> {
    const LONGEST: usize = 1024;
    let environment = environment(pid)?;
    let value = environment
        .split(|byte| *byte == 0)
        .find_map(|pair| pair.strip_prefix(backend::current().visible_devices().as_bytes())?.strip_prefix(b"="))?;
    String::from_utf8(value.get(..LONGEST.min(value.len()))?.to_vec()).ok()
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
