//! Bundles as files.

use std::{
    fs, io,
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use serde::Serialize;

use super::{failures::Bundle, fold::Target};

const PREFIX: &str = "bundle_";
/// Folders are for us alone: bundles name functions of other users' programs.
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

#[derive(Serialize)]
struct Named<'a> {
    namespace: &'a str,
    pod: &'a str,
    container: &'a str,
    command: &'a str,
    #[serde(flatten)]
    bundle: &'a Bundle,
}

/// Writes a bundle, and removes the oldest where there are more than `max_files`.
pub(super) fn write(folder: &Path, max_files: usize, bundle: &Bundle, target: Option<&Target>) -> io::Result<PathBuf> {
    match fs::DirBuilder::new().mode(FOLDER_MODE).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let unknown = Target::default();
    let target = target.unwrap_or(&unknown);
    let named = Named {
        namespace: &target.place.namespace,
        pod: &target.place.pod_name,
        container: &target.place.container_name,
        command: &target.comm,
        bundle,
    };
    // Numbers alone: nothing of the program is in a path.
    let path = folder.join(format!("{PREFIX}{:020}_{}.json", bundle.time_ns, bundle.pid));
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&path)?;
    let mut text = serde_json::to_vec(&named)?;
    text.push(b'\n');
    file.write_all(&text)?;
    remove_oldest(folder, max_files, &path)?;
    Ok(path)
}

/// But not `newest`: others may have later times, of a clock that was set back since.
fn remove_oldest(folder: &Path, max_files: usize, newest: &Path) -> io::Result<()> {
    let files = fs::read_dir(folder)?.flatten().filter(|file| file.path() != newest);
    let files = files.filter_map(|file| file.file_name().into_string().ok());
    let mut bundles: Vec<String> = files
        .filter(|name| name.starts_with(PREFIX) && Path::new(name).extension().is_some_and(|end| end == "json"))
        .collect();
    bundles.sort_unstable();
    let surplus = (bundles.len() + 1).saturating_sub(max_files);
    bundles.iter().take(surplus).try_for_each(|name| fs::remove_file(folder.join(name)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;
    use crate::{
        backend::ascend::pools,
        model::{Device, Stacks},
    };

    fn bundle(time_ns: u64) -> Bundle {
        Bundle {
            time_ns,
            pid: 7,
            device: Device::Npu(0),
            pool: pools::PTA,
            requested_bytes: 1 << 30,
            status: 6,
            stacks: Stacks::default(),
            recovered: false,
            request: 1,
            not_looked_for: None,
            pools: Vec::new(),
            recent_events: None,
        }
    }

    /// The newest stay, for us alone, and other files are left alone.
    #[test]
    fn newest_bundles_stay() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = place.path().join("bundles");
        for time_ns in [9, 100, 1_000_000_000_000_000_000, 10] {
            write(&folder, 10, &bundle(time_ns), None).expect("written");
        }
        fs::write(folder.join("a_note.json"), "").expect("a file");
        let path = write(&folder, 2, &bundle(1_000_000_000_000_000_001), None).expect("written");
        let mut left: Vec<String> = fs::read_dir(&folder)
            .expect("a folder")
            .map(|file| file.expect("a file").file_name().into_string().expect("a name"))
            .collect();
        left.sort_unstable();
        assert_eq!(left, ["a_note.json", "bundle_01000000000000000000_7.json", "bundle_01000000000000000001_7.json"]);
        assert_eq!(path.metadata().expect("a file").mode() & 0o777, 0o600);
        let text: serde_json::Value = serde_json::from_slice(&fs::read(path).expect("read")).expect("JSON");
        // Of a clock that was set back since.
        let path = write(&folder, 2, &bundle(5), None).expect("written");
        assert!(path.exists() && fs::read_dir(&folder).expect("a folder").count() == 3);
        assert_eq!(
            (&text["requested_bytes"], &text["pool"], &text["pod"]),
            (&(1 << 30).into(), &"PTA".into(), &"".into())
        );
    }
}
