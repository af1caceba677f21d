//! What `--fail-on` found, as annotations of GitHub's workflows: they show beside the line of the source.

use std::{env, path::Path};

use super::terminal;
use crate::{
    overview::{Overview, Place, Role},
    text::{numbers::rounded, user_frames},
};

/// Annotations of one process: GitHub shows no more than ten of a step.
const MOST: usize = 10;

/// Writes them where a workflow of GitHub runs, by the variable that it sets.
pub(super) fn show(overview: &Overview, pids: &[u32]) {
    if env::var_os("GITHUB_ACTIONS").is_none_or(|value| value != "true") {
        return;
    }
    let workspace = env::var("GITHUB_WORKSPACE").unwrap_or_default();
    for process in overview.processes.iter().filter(|process| pids.contains(&process.pid)) {
        for place in process.places.iter().take(MOST) {
            terminal::say(annotation(place, process.pid, &workspace));
        }
    }
}

/// One line that the workflow's runner reads.
fn annotation(place: &Place, pid: u32, workspace: &str) -> String {
    let (title, does) = match place.role {
        Role::Leaks => ("Memory leak", "stay allocated here, step after step"),
        Role::Grows => ("Memory growth", "are live here and become more"),
        Role::Undecided => ("Memory increased", "are live here, more than before"),
        Role::Holds => ("Memory held", "are live here"),
    };
    let at = match user_frames::line_of(place.stacks) {
        Some((file, line)) => {
            let file = Path::new(&file).strip_prefix(workspace).map_or(file.as_str().into(), Path::to_string_lossy);
            format!("file={},line={line},", property(&file))
        }
        None => String::new(),
    };
    let bytes = rounded(place.live.size_bytes.into());
    let text = format!("{bytes} in {} blocks {does} (process {pid})", place.live.blocks);
    format!("::error {at}title={title}::{}", data(&text))
}

/// As the runner escapes the text of a command.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// As it escapes a property.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        backend::ascend::pools,
        model::{Device, LiveSum, Stack, StackEnd, Stacks},
        overview::Detail,
    };

    fn place(frames: &[&str]) -> Place {
        let python = (!frames.is_empty()).then(|| Stack::keep(frames.iter().copied(), StackEnd::Root));
        Place {
            role: Role::Leaks,
            device: Device::Npu(0),
            pool: pools::PTA,
            live: LiveSum { blocks: 4, size_bytes: 4 << 20 },
            share: 1.0,
            detail: Detail::None,
            stacks: Stacks { python, ..Stacks::default() },
            each_bytes: None,
            found: Vec::new(),
            held_by: Vec::new(),
        }
    }

    /// The format of GitHub's documentation: `::error file={name},line={line},title={title}::{message}`.
    #[test]
    fn annotations_name_the_line() {
        const TEXT: &str = "title=Memory leak::4.00 MiB in 4 blocks stay allocated here, step after step (process 7)";
        let torch = "/usr/lib/python3/site-packages/torch/nn.py(3): forward";
        let own = place(&[torch, "/home/runner/work/a/src/train.py(15): step"]);
        let expected = format!("::error file=src/train.py,line=15,{TEXT}");
        assert_eq!(annotation(&own, 7, "/home/runner/work/a"), expected);
        // A name that would end the property, or the line, is escaped.
        let hostile = place(&["/x,line=1::y%\n::set-env.py(2): f"]);
        let expected = format!("::error file=/x%2Cline=1%3A%3Ay%25%0A%3A%3Aset-env.py,line=2,{TEXT}");
        assert_eq!(annotation(&hostile, 7, ""), expected);
        assert_eq!(annotation(&place(&[]), 7, ""), format!("::error {TEXT}"));
    }
}
