//! Features of this kernel. They are probed; versions are never compared.

mod atomics;

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use aya::{
    maps::MapType,
    programs::ProgramType,
    sys::{self, BpfHelper, UProbeMultiFeature},
};
use memscope_common::row::{MAX_ROWS, SLOTS};

use super::task_layout;

/// How probes are linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkMode {
    /// One link for many probes (6.6): detaching takes milliseconds.
    Multi,
    /// One link per probe, with a cookie (5.15).
    Cookie,
    /// One small program per row: no cookies.
    Slots,
}

impl LinkMode {
    /// Whether native stacks can be walked in the kernel: programs that serve one row alone have no loops.
    #[must_use]
    pub const fn serves_walks(self) -> bool {
        !matches!(self, Self::Slots)
    }

    /// Whether rows with arrays can be served: programs that serve one row alone are for calls.
    #[must_use]
    pub const fn serves_arrays(self) -> bool {
        !matches!(self, Self::Slots)
    }

    /// Most rows that can be served; row 0 is none.
    #[must_use]
    pub const fn max_rows(self) -> u16 {
        match self {
            Self::Multi | Self::Cookie => MAX_ROWS as u16 - 1,
            Self::Slots => SLOTS - 1,
        }
    }
}

/// The probed features.
#[expect(clippy::struct_excessive_bools, reason = "one field per feature")]
#[derive(Clone, Copy, Debug)]
pub struct Features {
    /// `.rodata` in BPF objects (5.2): the floor.
    pub global_data: bool,
    /// `bpf_probe_read_user` (5.5): the floor.
    pub read_user: bool,
    /// BPF ring buffer (5.8); without it the perf transport serves.
    pub ring_buffer: bool,
    /// Attach cookies (5.15).
    pub cookies: bool,
    /// Multi links (6.6).
    pub multi: bool,
    /// Stopping a process from BPF (5.3).
    pub send_signal: bool,
    /// Loops in the kernel (`bpf_loop`, 5.17): deep stacks.
    pub loops: bool,
    /// Finds a process's mapping at an address (`bpf_find_vma`, 5.17): few programs have to be stopped at their start.
    pub find_vma: bool,
    /// Programs can compare and exchange (5.12; on aarch64 5.18).
    pub exchanges: bool,
}

impl Features {
    /// Probes the kernel. A feature that cannot be probed, for lack of privileges, counts as absent.
    #[must_use]
    pub fn probe() -> Self {
        let helper = |helper| sys::is_helper_supported(ProgramType::KProbe, helper).unwrap_or(false);
        Self {
            global_data: sys::is_bpf_global_data_supported().unwrap_or(false),
            read_user: helper(BpfHelper::BPF_FUNC_probe_read_user),
            ring_buffer: sys::is_map_supported(MapType::RingBuf).unwrap_or(false),
            cookies: helper(BpfHelper::BPF_FUNC_get_attach_cookie),
            multi: sys::is_uprobe_multi_supported(UProbeMultiFeature::LinkCreation).unwrap_or(false),
            send_signal: helper(BpfHelper::BPF_FUNC_send_signal),
            loops: helper(BpfHelper::BPF_FUNC_loop),
            find_vma: helper(BpfHelper::BPF_FUNC_find_vma),
            exchanges: atomics::is_supported(),
        }
    }

    /// Of Linux 4.19: none of them.
    #[cfg(test)]
    pub(crate) const OF_LINUX_4_19: Self = Self {
        global_data: false,
        read_user: false,
        ring_buffer: false,
        cookies: false,
        multi: false,
        send_signal: false,
        loops: false,
        find_vma: false,
        exchanges: false,
    };

    /// The feature missing to link in this way, if any.
    #[must_use]
    pub const fn missing_for(self, mode: LinkMode) -> Option<&'static str> {
        match mode {
            LinkMode::Multi | LinkMode::Cookie if !self.cookies => Some("attach cookies (Linux 5.15)"),
            LinkMode::Multi if !self.multi => Some("links for many probes (Linux 6.6)"),
            LinkMode::Multi | LinkMode::Cookie | LinkMode::Slots => None,
        }
    }

    /// The best way to link.
    #[must_use]
    pub const fn link_mode(self) -> LinkMode {
        if self.multi && self.cookies {
            LinkMode::Multi
        } else if self.cookies {
            LinkMode::Cookie
        } else {
            LinkMode::Slots
        }
    }

    /// The features missing to run at all, in words.
    #[must_use]
    pub fn missing(self) -> Vec<&'static str> {
        let mut missing = Vec::new();
        if !self.global_data {
            missing.push("global data in BPF objects (Linux 5.2)");
        }
        if !self.read_user {
            missing.push("bpf_probe_read_user (Linux 5.5)");
        }
        missing
    }
}

/// The problem in a container with its own process numbers.
pub const NESTED_PIDS: &str = "this tracer is in a pid namespace of its own, and knows no process by the number that the \
    kernel reports: trace from the host, or start the container with --pid=host";

/// Whether processes have other numbers here than for the kernel.
#[must_use]
pub fn has_nested_pids() -> bool {
    /// `PROC_PID_INIT_INO` (`linux/proc_ns.h`), the same since Linux 3.8.
    const INITIAL: u64 = 0xefff_fffc;
    fs::metadata("/proc/self/ns/pid").is_ok_and(|namespace| namespace.ino() != INITIAL)
}

/// Whether processes are followed without tracefs: the kernel describes its types (BTF).
#[must_use]
pub fn describes_tasks() -> bool {
    task_layout::pid().is_ok()
}

/// Where tracefs is mounted, if it is.
#[must_use]
pub fn tracefs() -> Option<&'static Path> {
    ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"]
        .into_iter()
        .map(Path::new)
        .find(|path| path.join("events").is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Features = Features {
        global_data: true,
        read_user: true,
        ring_buffer: true,
        cookies: true,
        multi: true,
        send_signal: true,
        loops: true,
        find_vma: true,
        exchanges: true,
    };

    #[test]
    fn link_mode_degrades_step_by_step() {
        assert_eq!(ALL.link_mode(), LinkMode::Multi);
        assert_eq!(Features { multi: false, ..ALL }.link_mode(), LinkMode::Cookie);
        assert_eq!(Features { multi: false, cookies: false, ..ALL }.link_mode(), LinkMode::Slots);
    }

    #[test]
    fn ways_to_link_that_a_kernel_lacks() {
        const MODES: [LinkMode; 3] = [LinkMode::Multi, LinkMode::Cookie, LinkMode::Slots];
        let (cookies, many) = (Some("attach cookies (Linux 5.15)"), Some("links for many probes (Linux 6.6)"));
        let missing = |features: Features| MODES.map(|mode| features.missing_for(mode));
        assert_eq!(missing(ALL), [None; 3]);
        assert_eq!(missing(Features { multi: false, ..ALL }), [many, None, None]);
        assert_eq!(missing(Features { multi: false, cookies: false, ..ALL }), [cookies, cookies, None]);
    }

    #[test]
    fn missing_features_of_an_old_kernel_are_listed() {
        let old = Features::OF_LINUX_4_19;
        assert_eq!(old.missing(), ["global data in BPF objects (Linux 5.2)", "bpf_probe_read_user (Linux 5.5)"]);
        assert_eq!(Features { read_user: true, ..old }.missing(), ["global data in BPF objects (Linux 5.2)"]);
        assert!(ALL.missing().is_empty());
    }
}
