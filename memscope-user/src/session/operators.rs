//! The meaning of `--ops` for a trace, and messages about the operators found.

use std::path::Path;

use super::options::{RowLevel, TraceOptions};
use crate::{
    follow::libraries::LibraryOps,
    kernel::features::LinkMode,
    locate::ops::{OpsChoice, OpsOptions},
};

/// Most named operators where every probe has a link of its own, which takes a file descriptor and, when the trace
/// ends, its time.
const MOST_SINGLE: usize = 128;

/// The requested operators.
pub(super) fn wanted(options: &TraceOptions) -> OpsOptions {
    let collect = &options.collect;
    let RowLevel { op, .. } = collect.level;
    // The analysis of inefficient use has to see accesses, whether they are written or not (contract §1.5).
    let accesses = (collect.events.access || collect.analyses.inefficient()) && op;
    let choice = match &options.operators {
        _ if !op => OpsChoice::None,
        Some(choice) => choice.clone(),
        None if accesses => OpsChoice::All,
        None => OpsChoice::None,
    };
    OpsOptions { choice, accesses, cpu: collect.devices.cpu }
}

/// Whether this kernel can trace them.
pub(super) fn check(options: &OpsOptions, mode: LinkMode) -> Result<(), String> {
    match (mode, &options.choice) {
        (LinkMode::Slots, OpsChoice::All | OpsChoice::Named(_)) => {
            Err("operators cannot be traced on this kernel: it has no attach cookies (Linux 5.15)".to_owned())
        }
        (LinkMode::Cookie, OpsChoice::All) => {
            Err("all operators cannot be traced on this kernel: it has no links for \
            many probes (Linux 6.6); name those of interest with --ops"
                .to_owned())
        }
        (LinkMode::Cookie, OpsChoice::Named(names)) if names.len() > MOST_SINGLE => Err(format!(
            "{} operators cannot be traced on this kernel: it has no links for many probes (Linux 6.6); at most \
             {MOST_SINGLE} can be named",
            names.len()
        )),
        _ => Ok(()),
    }
}

/// Requested data that this kernel cannot report, though operators are traced.
pub(super) fn unavailable(options: &OpsOptions, mode: LinkMode) -> Option<&'static str> {
    (options.accesses && !mode.serves_arrays()).then_some(
        "accesses of ATB's operations are not available on this kernel: it has no attach cookies (Linux 5.15)",
    )
}

/// The message about a library's operators, and whether it is a warning.
pub(super) fn describe(path: &Path, ops: LibraryOps, accesses: bool) -> (bool, String) {
    let LibraryOps { probed, probes, with_tensors, figures } = ops;
    let path = path.display();
    if probed == 0 {
        let functions = figures.functions;
        return (true, format!("{path}: none of its {functions} operators is among those of --ops"));
    }
    if accesses && !with_tensors {
        let text =
            "only names of operators, no accesses: this libtorch lays out its tensors in a way that is not known";
        return (true, format!("{path}: {text}"));
    }
    let text = format!(
        "{path}: {probed} of {} operators probed ({probes} probes); left out: {} that call others, {} without a schema, \
         {} that cannot be probed; {} without an end, {} with tensors that are not found",
        figures.functions,
        figures.composites,
        figures.without_schema,
        figures.refused,
        figures.without_end,
        figures.without_tensors
    );
    (false, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(choice: OpsChoice) -> OpsOptions {
        OpsOptions { choice, ..OpsOptions::default() }
    }

    #[test]
    fn accesses_need_cookies() {
        let npu = OpsOptions { accesses: true, ..options(OpsChoice::Npu) };
        assert!(unavailable(&npu, LinkMode::Slots).is_some_and(|text| text.contains("Linux 5.15")));
        assert_eq!(unavailable(&npu, LinkMode::Cookie), None);
        assert_eq!(unavailable(&options(OpsChoice::Npu), LinkMode::Slots), None);
    }

    #[test]
    fn old_kernels_have_a_message() {
        let all = options(OpsChoice::All);
        let few = options(OpsChoice::Named(vec!["add".to_owned()]));
        let many = options(OpsChoice::Named(vec!["add".to_owned(); 129]));
        for (choice, mode, part) in [
            (&all, LinkMode::Slots, "cookies"),
            (&few, LinkMode::Slots, "cookies"),
            (&all, LinkMode::Cookie, "name those"),
            (&many, LinkMode::Cookie, "at most 128"),
        ] {
            assert!(check(choice, mode).expect_err("refused").contains(part), "{choice:?} {mode:?}");
        }
        for (choice, mode) in [(&all, LinkMode::Multi), (&many, LinkMode::Multi), (&few, LinkMode::Cookie)] {
            assert_eq!(check(choice, mode), Ok(()));
        }
        assert_eq!(check(&options(OpsChoice::Npu), LinkMode::Slots), Ok(()));
    }
}
