//! `prometheus`, `victoriametrics` and `containerd`: the node agent beside the real programs that it works with, from Debian's packages.

use anyhow::Result;

use crate::{arch::Arch, build, nextest, project::run as run_command, sim, vm};

/// A program, and its tests: a group of this name.
pub(crate) struct Peer {
    name: &'static str,
    packages: &'static [&'static str],
    /// Debian's release that they are from.
    release: &'static str,
    /// Variable with the folder of the unpacked packages.
    folder: &'static str,
}

/// Version 2.42: the agent's rules and dashboard.
pub(crate) const PROMETHEUS: Peer =
    Peer { name: "prometheus", packages: &["prometheus"], release: "bookworm", folder: "MEMSCOPE_PROMETHEUS" };
/// Version 1.112, linked statically: receives OTLP, which Debian's Prometheus does not.
pub(crate) const VICTORIAMETRICS: Peer = Peer {
    name: "victoriametrics",
    packages: &["victoria-metrics"],
    release: "trixie",
    folder: "MEMSCOPE_VICTORIAMETRICS",
};
/// Version 1.6, with a program for its one image: names and labels of pods.
pub(crate) const CONTAINERD: Peer = Peer {
    name: "containerd",
    packages: &["containerd", "runc", "busybox-static", "libbtrfs0"],
    release: "bookworm",
    folder: "MEMSCOPE_CONTAINERD",
};

pub(crate) fn run(peer: &Peer, arguments: &[String]) -> Result<()> {
    let host = Arch::host();
    let folder = vm::unpacked(peer.name, peer.packages, peer.release)?;
    build::run()?;
    sim::build_for_tests(host)?;
    let mut nextest = nextest::as_root(host)?;
    nextest.args(["--profile", peer.name, "--test", peer.name]).env(peer.folder, folder);
    run_command(nextest.args(arguments))
}
