//! The limit of file sizes (`ulimit -f`, `RLIMIT_FSIZE`).

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

/// Advice after a write error; empty where files may have any size.
pub(crate) fn hint() -> String {
    match getrlimit(Resource::RLIMIT_FSIZE) {
        Ok((limit, _)) if limit != RLIM_INFINITY => format!(" (files may have {limit} bytes: `ulimit -f`)"),
        _ => String::new(),
    }
}
