//! `demo`: a simulated training program with a leak, traced for real.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::ExitCode,
};

use super::{
    FAILURE, USAGE,
    args::{CollectArgs, DemoArgs, HtmlArgs, LogLevel, RunArgs, TraceArgs},
    error, message, offline, page, terminal, trace,
};
use crate::session::CallStacks;

/// Six steps; each leaks one block of 1 MiB.
const PROGRAM: [&str; 7] = ["steps", "--steps", "6", "--leaks", "1", "--leak-size", "1048576"];
/// Frames of its call stacks.
const DEPTH: u32 = 50;
const RING_BYTES: u32 = 16 << 20;

/// A trace of `demo/train.py`, for machines without a source tree. `./x demo --record` makes a new one.
const RECORDING: &[u8] = include_bytes!("../../demo/torch.capture");

/// Runs the demonstration, or shows the recording of one.
pub(super) fn run(args: &DemoArgs) -> ExitCode {
    let Some(sim) = args.sim.clone().or_else(find_sim) else { return show_recording(args) };
    if !sim.join("bin").join(PROGRAM[0]).is_file() {
        error(format_args!(
            "`{}` holds no simulated programs (bin/{} is missing): run `./x sim`",
            sim.display(),
            PROGRAM[0]
        ));
        return ExitCode::from(USAGE);
    }
    trace::run(&RunArgs { trace: trace_args(args), user: None, mstx_injection: false, program: command(&sim) })
}

/// Shows the recorded trace.
fn show_recording(args: &DemoArgs) -> ExitCode {
    let text = format_args!(
        "this is a recording: nothing runs and nothing is traced here. A training program of torch_npu 2.9, which keeps the losses of its \
         validation, was traced by `memscope-bpf run -- python train.py`; in a source tree `./x demo` traces a simulated program live"
    );
    message(args.collect.level_of_messages(), LogLevel::Info, text);
    // It is in no file, so its page is made here.
    let collect = CollectArgs { html: HtmlArgs::default(), ..args.collect.clone() };
    let code = offline::replay_bytes(RECORDING, "the recording of the demo", &collect);
    match page::of_bytes(&args.collect.html, RECORDING) {
        Ok(()) => {
            if args.collect.html.html.is_none() && !args.collect.json {
                // Whoever closed stdout wants no more of it.
                let _ = terminal::print_line(" next:  memscope-bpf demo --html --open");
            }
            code
        }
        Err(failure) => {
            error(format_args!("{failure:#}"));
            ExitCode::from(FAILURE)
        }
    }
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
    let call_stack = Some(CallStacks { c: Some(DEPTH), ..CallStacks::default() });
    let collect = args.collect.clone();
    TraceArgs { collect, call_stack, ring_size: RING_BYTES, no_progress: true, ..TraceArgs::default() }
}
