//! `prometheus`, `victoriametrics`, `rotel` and `containerd`: the node agent beside the real programs that it works with.

use std::path::PathBuf;

use anyhow::Result;

use crate::{
    arch::Arch,
    build, nextest,
    project::{run as run_command, target},
    sim, venv, vm,
};

/// A program, and its tests: a group of this name.
pub(crate) struct Peer {
    name: &'static str,
    from: Origin,
    /// Variable with the place: the folder of unpacked packages, or the interpreter that has them.
    place: &'static str,
}

/// Who has the program.
enum Origin {
    /// Packages of a release of Debian.
    Debian(&'static str, &'static [&'static str]),
    /// The package index of Python.
    Python(&'static str),
}

/// Version 2.42: the agent's rules and dashboard.
pub(crate) const PROMETHEUS: Peer =
    Peer { name: "prometheus", from: Origin::Debian("bookworm", &["prometheus"]), place: "MEMSCOPE_PROMETHEUS" };
/// Version 1.112, linked statically: receives OTLP, which Debian's Prometheus does not.
pub(crate) const VICTORIAMETRICS: Peer = Peer {
    name: "victoriametrics",
    from: Origin::Debian("trixie", &["victoria-metrics"]),
    place: "MEMSCOPE_VICTORIAMETRICS",
};
/// A collector for OpenTelemetry: takes logs, too. Its version before 1 that has packages for `CPython` 3.11.
pub(crate) const ROTEL: Peer = Peer { name: "rotel", from: Origin::Python("rotel==0.0.1a15"), place: "MEMSCOPE_ROTEL" };
/// Version 1.6, with a program for its one image: names and labels of pods.
pub(crate) const CONTAINERD: Peer = Peer {
    name: "containerd",
    from: Origin::Debian("bookworm", &["containerd", "runc", "busybox-static", "libbtrfs0"]),
    place: "MEMSCOPE_CONTAINERD",
};

pub(crate) fn run(peer: &Peer, arguments: &[String]) -> Result<()> {
    let host = Arch::host();
    let place = peer.place()?;
    build::run()?;
    sim::build_for_tests(host)?;
    let mut nextest = nextest::as_root(host)?;
    nextest.args(["--profile", peer.name, "--test", peer.name]).env(peer.place, place);
    run_command(nextest.args(arguments))
}

impl Peer {
    fn place(&self) -> Result<PathBuf> {
        match self.from {
            Origin::Debian(release, packages) => vm::unpacked(self.name, packages, release),
            Origin::Python(packages) => {
                venv::with(&target().join(self.name), packages, &format!("group `{}`", self.name))
            }
        }
    }
}
