//! What the node agent needs besides what any trace needs.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    path::Path,
};

use super::Check;
use crate::{
    agent::{
        self,
        config::Config,
        control::{Answer, Request},
    },
    kernel::Kernel,
    text::numbers::counted,
};

/// All checks.
pub(super) fn checks() -> Vec<Check> {
    let config = Config::default();
    let running = running(&config.control.socket);
    let is_running = running.state == "ok";
    let address = config.listen().ok().flatten();
    let page = address.map(|address| page(address, is_running));
    let others = [cgroups(), names(&config.names.container_logs), statistics(), running];
    others.into_iter().chain(page).collect()
}

/// Whether cgroups show as the host sees them.
fn cgroups() -> Check {
    const NAME: &str = "agent cgroups";
    const MEND: &str = "without the host's cgroup namespace containers cannot be distinguished: run the agent on the host, or with \
                        hostPID and the host's cgroup namespace";
    let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/cgroup"));
    match (of("self"), of("1")) {
        (Ok(own), Ok(first)) if own == first => Check::ok(NAME, "those of the host"),
        (Ok(_), Ok(_)) => Check::degraded(NAME, "this process has a cgroup namespace of its own", MEND),
        (Err(error), _) | (_, Err(error)) => Check::degraded(NAME, format!("cannot look: {error}"), MEND),
    }
}

/// Whether the kubelet's links name containers.
fn names(folder: &Path) -> Check {
    const NAME: &str = "agent pods";
    match fs::read_dir(folder) {
        Ok(files) => Check::ok(NAME, format!("{}: {} container log(s)", folder.display(), files.count())),
        Err(error) => {
            let mend =
                "pods are known by UID, containers by number: mount /var/log/containers read-only where a kubelet runs";
            Check::degraded(NAME, format!("{}: {error}", folder.display()), mend)
        }
    }
}

/// Whether the kernel measures BPF programs for us.
fn statistics() -> Check {
    const NAME: &str = "agent BPF stats";
    match Kernel::measure_programs() {
        Some(_) => Check::ok(NAME, "the kernel measures what the programs take"),
        None => Check::degraded(
            NAME,
            "the kernel does not measure BPF programs for this process",
            "the budget counts the agent's own process alone: Linux 5.8 and CAP_SYS_ADMIN are needed",
        ),
    }
}

/// Whether an agent runs, and answers.
fn running(socket: &Path) -> Check {
    const NAME: &str = "agent running";
    let mut found = None;
    let asked = agent::ask(socket, &Request::Status {}, |answer| found = Some(answer));
    match (asked, found) {
        (Ok(()), Some(Answer::Status(status))) => Check::ok(
            NAME,
            format!(
                "version {}, level {}, {}",
                status.version,
                status.level,
                counted(status.processes.len() as u64, "process")
            ),
        ),
        (Ok(()), Some(Answer::Refused { why })) => Check::degraded(NAME, format!("it refuses: {why}"), "ask as root"),
        (Ok(()), _) => Check::degraded(NAME, "it gives no answer", "see its log"),
        (Err(error), _) => Check::degraded(
            NAME,
            format!("none at {}: {error}", socket.display()),
            "start one: systemctl start memscope-agent (docs/agent.md)",
        ),
    }
}

/// Whether the page has an address.
fn page(address: SocketAddr, is_running: bool) -> Check {
    const NAME: &str = "agent page";
    match TcpListener::bind(address) {
        Ok(_) => Check::ok(NAME, format!("{address} is free")),
        Err(_) if is_running => Check::ok(NAME, format!("http://{address}/metrics")),
        Err(error) => Check::degraded(
            NAME,
            format!("{address}: {error}"),
            "choose another address by metrics.listen in the agent's settings",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is missing is said with what to do, and does not make tracing impossible.
    #[test]
    fn missing_parts_are_mended() {
        let folder = tempfile::tempdir().expect("a folder");
        let nowhere = folder.path().join("nowhere");
        for check in [names(&nowhere), running(&nowhere)] {
            assert_eq!((check.state, check.mend.is_some()), ("degraded", true), "{}", check.name);
        }
        assert_eq!(names(folder.path()).state, "ok");
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = taken.local_addr().expect("an address");
        assert_eq!((page(address, false).state, page(address, true).state), ("degraded", "ok"));
        drop(taken);
        assert_eq!(page(address, false).state, "ok");
    }
}
