//! The tracer's privileges: capabilities, and locked memory.

use std::{fs, path::PathBuf};

use aya::{EbpfError, maps::MapError};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};

use super::{
    error::KernelError,
    features::{self, Features, LinkMode},
    task_layout,
};
use crate::os::perf_event;

/// A capability that tracing needs, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Name as `capabilities(7)` spells it.
    pub name: &'static str,
    /// The purpose.
    pub purpose: &'static str,
    bit: u32,
    /// Nothing goes without it.
    essential: bool,
    /// `CAP_SYS_ADMIN` does as well.
    has_stand_in: bool,
}

/// What tracing takes everywhere.
const CAPABILITIES: [Capability; 4] = [
    Capability {
        name: "CAP_BPF",
        purpose: "load BPF programs and maps",
        bit: CAP_BPF,
        essential: true,
        has_stand_in: true,
    },
    Capability {
        name: "CAP_PERFMON",
        purpose: "attach uprobes and read user memory from them",
        bit: CAP_PERFMON,
        essential: true,
        has_stand_in: true,
    },
    Capability {
        name: "CAP_SYS_PTRACE",
        purpose: "read another user's /proc/<pid>/maps",
        bit: 19,
        essential: false,
        has_stand_in: false,
    },
    Capability {
        name: "CAP_CHECKPOINT_RESTORE",
        purpose: "open the really mapped files in /proc/<pid>/map_files",
        bit: 40,
        essential: false,
        has_stand_in: true,
    },
];

/// Also needed where probes are made one by one.
const OF_SINGLE_LINKS: Capability = Capability {
    name: "CAP_SYS_ADMIN",
    purpose: "attach probes one by one, which is how this kernel links them, and for which it wants no less",
    bit: CAP_SYS_ADMIN,
    essential: true,
    has_stand_in: false,
};

const CAP_KILL: u32 = 5;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// Effective capabilities of this process.
fn effective() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0)
}

const fn has(effective: u64, bit: u32) -> bool {
    effective & (1 << bit) != 0
}

/// Whether signals can be sent to every process, also those of other users.
#[must_use]
pub fn may_signal_all() -> bool {
    has(effective(), CAP_KILL)
}

/// Whether the tracer can announce itself to scripts: by a probe of its own.
#[must_use]
pub fn may_announce() -> bool {
    perf_event::is_permitted()
}

/// Privileges needed to trace on this kernel, and the ones that this process has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    needed: Vec<Capability>,
    effective: u64,
}

impl Rights {
    /// Of this process. Probes are linked in the chosen way, or in the kernel's best.
    #[must_use]
    pub fn look(features: Features, chosen: Option<LinkMode>) -> Self {
        let effective = effective();
        let single = match chosen {
            Some(mode) => mode != LinkMode::Multi,
            None if may_ask(effective) => features.link_mode() != LinkMode::Multi,
            None => !task_layout::has_multi_links(),
        };
        Self::of(effective, single, perf_event::is_permitted)
    }

    /// `may_probe`: whether this process may make probes one by one.
    fn of(effective: u64, single: bool, may_probe: impl FnOnce() -> bool) -> Self {
        let mut needed = CAPABILITIES.to_vec();
        // Whether less is enough only shows without it.
        if single && (has(effective, CAP_SYS_ADMIN) || !may_probe()) {
            needed.push(OF_SINGLE_LINKS);
        }
        Self { needed, effective }
    }

    /// Whether this process can query the kernel's features; to others all look absent.
    #[must_use]
    pub const fn may_ask(&self) -> bool {
        may_ask(self.effective)
    }

    /// The missing privileges.
    #[must_use]
    pub fn missing(&self) -> Vec<Capability> {
        let stand_in = has(self.effective, CAP_SYS_ADMIN);
        let is_missing =
            |capability: &&Capability| !(has(self.effective, capability.bit) || capability.has_stand_in && stand_in);
        self.needed.iter().filter(is_missing).copied().collect()
    }

    /// How to get the missing ones.
    #[must_use]
    pub fn advice(&self) -> String {
        self.advice_to(nix::unistd::Uid::effective().is_root())
    }

    /// `root` that lacks some is in a container, or was given less.
    fn advice_to(&self, root: bool) -> String {
        if root {
            let missing = self.missing();
            let names = missing.iter().map(|capability| capability.name.trim_start_matches("CAP_")).collect::<Vec<_>>();
            return format!(
                "root of a container has what it was started with: add --cap-add={} (Kubernetes: securityContext.capabilities.add)",
                names.join(" --cap-add=")
            );
        }
        let names: Vec<_> = self.needed.iter().map(|capability| capability.name.to_lowercase()).collect();
        let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("memscope-bpf"));
        format!("run with sudo, or once: sudo setcap {}=ep {}", names.join(","), program.display())
    }
}

/// Whether a process of these capabilities can load programs, which is the way to query features.
const fn may_ask(effective: u64) -> bool {
    has(effective, CAP_SYS_ADMIN) || has(effective, CAP_BPF) && has(effective, CAP_PERFMON)
}

/// Refuses to start without what tracing takes, of the process and of the kernel.
pub(crate) fn check(features: Features, chosen: Option<LinkMode>) -> Result<(), KernelError> {
    let rights = Rights::look(features, chosen);
    let missing = rights.missing();
    if missing.iter().any(|capability| capability.essential) {
        let names = missing.iter().map(|capability| capability.name).collect();
        return Err(KernelError::Privileges { names, advice: rights.advice() });
    }
    if features::has_nested_pids() {
        return Err(KernelError::NestedPids);
    }
    let release = nix::sys::utsname::uname().map(|name| name.release().to_string_lossy().into_owned());
    new_enough(features, &release.unwrap_or_else(|_| "unknown".to_owned()))
}

/// Refuses a kernel that lacks what nothing can replace.
fn new_enough(features: Features, release: &str) -> Result<(), KernelError> {
    let missing = features.missing();
    if missing.is_empty() { Ok(()) } else { Err(KernelError::TooOld { release: release.to_owned(), missing }) }
}

/// Raises the limit that kernels before 5.11 charge maps to; elsewhere it does not matter.
pub(crate) fn raise_memlock() {
    let unlimited = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
    if unlimited.is_err()
        && let Ok((_, hard)) = getrlimit(Resource::RLIMIT_MEMLOCK)
    {
        let _ = setrlimit(Resource::RLIMIT_MEMLOCK, hard, hard);
    }
}

/// Raises the limit of open files to the maximum: each process takes one for waiting, each probed file and its links
/// some. Programs started before keep their own limit.
pub(crate) fn raise_open_files() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // With a lower limit the trace goes on as far as it reaches.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// Why the object was refused. Of all that creating a map asks for only locked memory is refused so late: privileges have been
/// checked before.
pub(crate) fn refused_object(error: EbpfError) -> KernelError {
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

/// Bytes of memory that this process may lock, if limited.
fn memlock_limit() -> Option<u64> {
    let (soft, _) = getrlimit(Resource::RLIMIT_MEMLOCK).ok()?;
    Some(soft).filter(|limit| *limit != RLIM_INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOUR: u64 = 1 << 19 | 1 << 38 | 1 << 39 | 1 << 40;
    const ADMIN: u64 = 1 << 21;

    fn missing(effective: u64, single: bool, may_probe: bool) -> Vec<&'static str> {
        Rights::of(effective, single, || may_probe).missing().iter().map(|capability| capability.name).collect()
    }

    #[test]
    fn sys_admin_stands_in_for_all_but_ptrace() {
        assert_eq!(missing(0, false, false), ["CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE", "CAP_CHECKPOINT_RESTORE"]);
        assert_eq!(missing(ADMIN, false, true), ["CAP_SYS_PTRACE"]);
        assert_eq!(missing(FOUR, false, false), [""; 0]);
    }

    #[test]
    fn single_links_take_what_the_kernel_wants() {
        assert_eq!(missing(FOUR, true, false), ["CAP_SYS_ADMIN"]);
        assert_eq!(missing(FOUR, true, true), [""; 0]);
        assert_eq!(missing(FOUR | ADMIN, true, true), [""; 0]);
        // A process without any privileges cannot know whether fewer would be enough.
        assert_eq!(missing(0, true, false).last(), Some(&"CAP_SYS_ADMIN"));
    }

    #[test]
    fn advice_is_of_this_kernel_and_of_this_program() {
        const NAMES: &str = "cap_bpf,cap_perfmon,cap_sys_ptrace,cap_checkpoint_restore";
        let program = std::env::current_exe().expect("this test has a file");
        let advice = |names: &str| format!("run with sudo, or once: sudo setcap {names}=ep {}", program.display());
        assert_eq!(Rights::of(0, false, || false).advice_to(false), advice(NAMES));
        assert_eq!(Rights::of(0, true, || false).advice_to(false), advice(&format!("{NAMES},cap_sys_admin")));
        assert_eq!(Rights::of(FOUR & !(1 << 19), true, || true).advice_to(false), advice(NAMES));
    }

    /// Sudo gives root nothing. Bit 19 is `CAP_SYS_PTRACE`, bit 38 `CAP_PERFMON`.
    #[test]
    fn advice_to_root_is_about_its_container() {
        let rights = Rights::of(FOUR & !(1 << 19 | 1 << 38), false, || false);
        let expected = "root of a container has what it was started with: add --cap-add=PERFMON --cap-add=SYS_PTRACE \
                        (Kubernetes: securityContext.capabilities.add)";
        assert_eq!(rights.advice_to(true), expected);
    }

    #[test]
    fn capabilities_before_cap_bpf_are_enough_to_ask() {
        // All that root has on Linux 4.19: its last capability is 37.
        assert!(may_ask((1 << 38) - 1) && may_ask(FOUR));
        assert!(!may_ask(1 << 39) && !may_ask(1 << 38) && !may_ask(0));
    }

    /// Linux 4.19 has neither global data nor `bpf_probe_read_user`, nor any of the optional features.
    #[test]
    fn a_kernel_below_the_floor_is_refused_with_its_missing_features() {
        let refusal = new_enough(Features::OF_LINUX_4_19, "4.19.0-27-amd64").expect_err("too old");
        assert_eq!(
            refusal.to_string(),
            "this kernel (4.19.0-27-amd64) lacks global data in BPF objects (Linux 5.2) and bpf_probe_read_user (Linux 5.5); \
             memscope-bpf needs Linux 5.10 or newer"
        );
    }
}
