//! Whether any tracer has a process, by whomever it was started: from the kernel's list.

use aya::maps::{HashMap, Map, MapData, MapError, loaded_maps};
use memscope_common::config::ProcessState;

/// The tracer's map of traced processes, as the kernel side calls it.
const NAME: &str = "PROCESSES";

/// Whether a process is in the list of a tracer that runs. Takes `CAP_SYS_ADMIN`.
pub(crate) fn have(pid: u32) -> Result<bool, MapError> {
    for info in loaded_maps() {
        let info = match info {
            Ok(info) if info.name_as_str() == Some(NAME) => info,
            Ok(_) => continue,
            // Gone in the meantime.
            Err(error) if is_gone(&error) => continue,
            Err(error) => return Err(error),
        };
        match MapData::from_id(info.id()) {
            // Others may have maps of that name, of other kinds and sizes.
            Ok(data) => {
                let list = HashMap::<_, u32, ProcessState>::try_from(Map::HashMap(data));
                if list.is_ok_and(|list| list.get(&pid, 0).is_ok()) {
                    return Ok(true);
                }
            }
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

fn is_gone(error: &MapError) -> bool {
    matches!(error, MapError::SyscallError(error) if error.io_error.kind() == std::io::ErrorKind::NotFound)
}
