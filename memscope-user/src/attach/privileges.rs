//! What the tracer may do: capabilities, and memory that counts as locked.

use std::path::PathBuf;

use aya::{EbpfError, maps::MapError};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};

use super::{
    features::{self, Features},
    kernel::KernelError,
};

/// Refuses to start without what tracing takes, of the process and of the kernel.
pub(super) fn check(features: Features) -> Result<(), KernelError> {
    let missing = features::missing_capabilities(features::effective_capabilities());
    let essential: Vec<_> = missing.iter().filter(|c| matches!(c.name, "CAP_BPF" | "CAP_PERFMON")).collect();
    if !essential.is_empty() {
        let names: Vec<_> = features::CAPABILITIES.iter().map(|c| c.name.to_lowercase()).collect();
        return Err(KernelError::Privileges {
            names: missing.iter().map(|capability| capability.name).collect(),
            setcap: format!("{}=ep", names.join(",")),
            program: std::env::current_exe().unwrap_or_else(|_| PathBuf::from("memscope-bpf")),
        });
    }
    if features::has_nested_pids() {
        return Err(KernelError::NestedPids);
    }
    let missing = features.missing();
    if missing.is_empty() {
        return Ok(());
    }
    let release = nix::sys::utsname::uname().map(|name| name.release().to_string_lossy().into_owned());
    Err(KernelError::TooOld { release: release.unwrap_or_else(|_| "unknown".to_owned()), missing })
}

/// Raises the limit that kernels before 5.11 charge maps to; elsewhere it does not matter.
pub(super) fn raise_memlock() {
    let unlimited = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
    if unlimited.is_err()
        && let Ok((_, hard)) = getrlimit(Resource::RLIMIT_MEMLOCK)
    {
        let _ = setrlimit(Resource::RLIMIT_MEMLOCK, hard, hard);
    }
}

/// As many open files as may be: each process takes one to be waited for by, each probed file and its links some. What was
/// started before keeps its own limit.
pub(super) fn raise_open_files() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // With less it goes on as far as that reaches.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// Why the object was refused. Of all that creating a map asks for only locked memory is refused so late: privileges have been
/// checked before.
pub(super) fn refused_object(error: EbpfError) -> KernelError {
    match error {
        EbpfError::MapError(MapError::CreateError { io_error: source, .. })
            if source.raw_os_error() == Some(libc::EPERM)
                && let Some(limit_bytes) = memlock_limit() =>
        {
            KernelError::LockedMemory { limit_bytes, source }
        }
        error => KernelError::Load(Box::new(error)),
    }
}

/// Bytes of memory that this process may lock, if that is limited.
fn memlock_limit() -> Option<u64> {
    let (soft, _) = getrlimit(Resource::RLIMIT_MEMLOCK).ok()?;
    Some(soft).filter(|limit| *limit != RLIM_INFINITY)
}
