//! What a program that was installed has to do: trace simulated allocations, lose none, and know where each was made.

use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::{
    findings,
    project::{as_root, run as run_command},
};

/// Allocations of the program that is traced.
const CALLS: usize = 1000;
/// The script, in the system that is tried.
const SCRIPT: &str = "trial.sh";
/// `$1` names the trace, `$2` is the command. The findings come first, then the rows, then the libraries' own journal.
const TEXT: &str = "set -e
mkdir \"/root/$1\" \"/root/$1/journal\"
cd \"/root/$1\"
ASCEND_SIM_JOURNAL=\"$PWD/journal\" LD_LIBRARY_PATH=/sim/lib \"$2\" run -q --json -o out -- /sim/bin/calls --blocks 1 --calls CALLS
cat out/*/device_0/dump/*.csv
/sim/bin/journal2text journal
";

/// Puts the script into a system, and the simulated libraries from a folder of them.
pub(super) fn put_into(system: &Path, sim: &Path) -> Result<()> {
    let text = TEXT.replace("CALLS", &CALLS.to_string());
    let write = ["-c", "printf %s \"$1\" > \"$0\""];
    run_command(as_root("sh").args(write).arg(system.join(SCRIPT)).arg(text))?;
    run_command(as_root("mkdir").arg(system.join("sim")))?;
    run_command(as_root("cp").arg("-r").args(["lib", "bin"].map(|part| sim.join(part))).arg(system.join("sim")))
}

/// What was said of each trace: each begins with its findings.
pub(super) fn traces(said: &str) -> Vec<&str> {
    let starts = std::iter::once(0).chain(said.match_indices('\n').map(|(at, _)| at + 1));
    let is_document = |at: &usize| findings::is_document(said[*at..].lines().next().unwrap_or_default());
    let starts: Vec<usize> = starts.filter(is_document).collect();
    let ends = starts.iter().skip(1).copied().chain([said.len()]);
    starts.iter().zip(ends).map(|(start, end)| &said[*start..end]).collect()
}

/// The trace lost nothing, and has each call that the journal has; each allocation has its whole stack.
pub(super) fn check(said: &str) -> Result<()> {
    let findings = findings::last(said)?;
    ensure!(findings["end"]["lost"] == 0, "events were lost: {}", findings["end"]);
    let count = |text: &str| said.lines().filter(|line| line.contains(text)).count();
    for (row, call) in [(",MALLOC,HAL,", "\thalMemAlloc\t"), (",FREE,HAL,", "\thalMemFree\t")] {
        let (rows, calls) = (count(row), count(call));
        ensure!(rows == calls && calls >= CALLS, "{rows} rows `{row}` of {calls} calls");
    }
    let whole = with_whole_stacks(&findings);
    let calls = count("\thalMemAlloc\t");
    ensure!(whole == Some(calls as u64), "{whole:?} of {calls} allocations have their whole stack");
    Ok(())
}

/// Allocations of the driver with a stack that begins at the call and has all frames. Neither musl, which starts programs and threads, nor
/// what Zig starts a program with has unwind information.
fn with_whole_stacks(findings: &Value) -> Option<u64> {
    let findings = findings["findings"].as_array()?;
    let by_stack = findings.iter().find(|row| row["finding"] == "by_stack" && row["pool"] == "HAL")?;
    let whole = by_stack["sums"].as_array()?.iter().filter(|sum| {
        let native = &sum["stacks"]["native"];
        let frames = native["frames"].as_array().map_or(&[][..], |frames| frames);
        let from_end = |at: usize| frames.iter().rev().nth(at).and_then(Value::as_str).unwrap_or_default();
        let is_start = from_end(0).starts_with("ld-musl-") || from_end(1).contains("(__libc_start_main");
        from_end(frames.len().saturating_sub(1)) == "halMemAlloc" && (native["end"] == "root" || is_start)
    });
    Some(whole.filter_map(|sum| sum["allocations"].as_u64()).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(end: &str, lost: u64, calls: usize) -> String {
        let sum = format!(
            "{{\"stacks\":{{\"native\":{{\"frames\":[\"halMemAlloc\",\"main\"],\"end\":\"{end}\"}}}},\"allocations\":{CALLS}}}"
        );
        let findings = format!(
            "{{\"findings\":[{{\"finding\":\"by_stack\",\"pool\":\"HAL\",\"sums\":[{sum}]}}],\"end\":{{\"lost\":{lost}}}}}\n"
        );
        let rows = "1,MALLOC,HAL,N/A\n2,FREE,HAL,N/A\n".repeat(CALLS);
        findings + &rows + &"0\thal\thalMemAlloc\t0\n0\thal\thalMemFree\t0\n".repeat(calls)
    }

    /// Make sure that what is lost, what is missing and stacks that end early are found.
    #[test]
    fn what_is_held() {
        check(&said("root", 0, CALLS)).expect("all of it");
        check(&said("root", 1, CALLS)).expect_err("one is lost");
        check(&said("root", 0, CALLS + 1)).expect_err("one is missing");
        check(&said("depth", 0, CALLS)).expect_err("cut stacks");
        let until = |frames: &str| check(&said("depth", 0, CALLS).replace("\"main\"", frames));
        until("\"main\",\"ld-musl-x86_64.so.1(+0x1)\"").expect("up to musl");
        until("\"libc.so.6(__libc_start_main+0x8)\",\"calls(+0x1)\"").expect("up to the start");
        until("\"libc.so.6(__libc_start_main+0x8)\"").expect_err("not as far");
        let two = said("root", 0, CALLS).repeat(2);
        assert_eq!(traces(&format!("booted\n{two}")).len(), 2);
    }
}
