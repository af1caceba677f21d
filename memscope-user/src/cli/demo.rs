//! `demo`: a simulated training program with a leak, traced for real.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::ExitCode,
};

use super::{
    USAGE,
    args::{DemoArgs, RunArgs, TraceArgs},
    error, session,
};

/// Six steps; each leaks one block of 1 MiB.
const PROGRAM: [&str; 7] = ["steps", "--steps", "6", "--leaks", "1", "--leak-size", "1048576"];
const RING_BYTES: u32 = 16 << 20;

/// Runs the demonstration.
pub(super) fn run(args: &DemoArgs) -> ExitCode {
    let Some(sim) = args.sim.clone().or_else(find_sim) else {
        error("the simulated Ascend libraries are not built: run `./x demo` in a source tree, or give --sim DIR");
        return ExitCode::from(USAGE);
    };
    if !sim.join("bin").join(PROGRAM[0]).is_file() {
        error(format_args!(
            "`{}` holds no simulated programs (bin/{} is missing): run `./x sim`",
            sim.display(),
            PROGRAM[0]
        ));
        return ExitCode::from(USAGE);
    }
    session::run(&RunArgs { trace: trace_args(args), user: None, mstx_injection: false, program: command(&sim) })
}

/// `env` sets the library path for the program alone.
fn command(sim: &Path) -> Vec<OsString> {
    let mut library_path = OsString::from("LD_LIBRARY_PATH=");
    library_path.push(sim.join("lib"));
    let mut command = vec![OsString::from("env"), library_path, sim.join("bin").join(PROGRAM[0]).into_os_string()];
    command.extend(PROGRAM[1..].iter().map(OsString::from));
    command
}

/// Beside this program in a source tree's `target`.
fn find_sim() -> Option<PathBuf> {
    let program = env::current_exe().ok()?;
    program.ancestors().map(|directory| directory.join("ascend-sim")).find(|sim| sim.join("bin").is_dir())
}

fn trace_args(args: &DemoArgs) -> TraceArgs {
    TraceArgs { collect: args.collect.clone(), ring_size: RING_BYTES, no_progress: true, ..TraceArgs::default() }
}
