//! What the numbers were measured on.

use std::{fs, thread::available_parallelism};

use super::lab::Lab;
use crate::project::{output, program};

/// Machine, kernel and commit, as lines of the report.
pub(super) fn describe(lab: &Lab) -> String {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let cpuinfo = text("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, model)| model.to_owned());
    let hypervisor = if cpuinfo.contains(" hypervisor ") { ", in a virtual machine" } else { "" };
    let processors = available_parallelism().map_or(1, usize::from);
    let git = |arguments: &[&str]| {
        output(program("git").args(arguments)).map_or_else(|_| "?".into(), |text| text.trim().to_owned())
    };
    let changed =
        if git(&["status", "--porcelain", "--untracked-files=no"]).is_empty() { "" } else { ", changed since" };
    let load = text("/proc/loadavg");
    let load: Vec<&str> = load.split(' ').take(3).collect();
    format!(
        "\n- machine: {processors} processors of {model}{hypervisor}\n- kernel: {}\n- commit: {}{changed}\n- load before: {}\n- repetitions: {}\n",
        version(&text("/proc/sys/kernel/osrelease")),
        git(&["rev-parse", "--short", "HEAD"]),
        load.join(" "),
        lab.repetitions,
    )
}

/// Without what a builder has added to the version.
fn version(release: &str) -> &str {
    release.split_once('-').map_or(release, |(version, _)| version)
}
