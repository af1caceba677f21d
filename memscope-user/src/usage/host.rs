//! Host memory from the kernel's counters; `smaps` has more, but walking it page by page would block the process.

use crate::{analyses::sample::HostMemory, os::process};

/// The kernel's counters of a process; `None` when it has ended.
#[must_use]
pub fn of(pid: u32) -> Option<HostMemory> {
    parse(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

fn parse(status: &str) -> Option<HostMemory> {
    let field = |name: &str| process::status_bytes(status, name);
    Some(HostMemory {
        resident_bytes: field("VmRSS")?,
        heap_bytes: field("RssAnon")?,
        file_bytes: field("RssFile")?,
        shared_bytes: field("RssShmem")?,
        stack_bytes: field("VmStk")?,
        swapped_bytes: field("VmSwap")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Linux 6.12 writes it, shortened.
    const STATUS: &str = "Name:\tVmRSS: 9 kB\nState:\tS (sleeping)\nPid:\t77\nVmPeak:\t   10416 kB\nVmSize:\t   10416 kB\n\
        VmHWM:\t    5924 kB\nVmRSS:\t    5868 kB\nRssAnon:\t    1800 kB\nRssFile:\t    4048 kB\nRssShmem:\t      20 kB\n\
        VmData:\t    2072 kB\nVmStk:\t     132 kB\nVmSwap:\t       8 kB\nThreads:\t1\n";

    #[test]
    fn kilobytes_of_the_status() {
        let memory = parse(STATUS).expect("figures");
        let expected = HostMemory {
            resident_bytes: 5868 << 10,
            heap_bytes: 1800 << 10,
            file_bytes: 4048 << 10,
            shared_bytes: 20 << 10,
            stack_bytes: 132 << 10,
            swapped_bytes: 8 << 10,
        };
        assert_eq!(memory, expected);
    }

    /// A process that has ended has no memory; malformed figures count as none.
    #[test]
    fn no_figures() {
        assert_eq!(parse("Name:\tx\nState:\tZ (zombie)\n"), None);
        assert_eq!(parse(&STATUS.replace("1800 kB", "18446744073709551615 kB")), None);
        assert_eq!(parse(&STATUS.replace("132 kB", "132 MB")), None);
        assert_eq!(of(u32::MAX), None);
    }
}
