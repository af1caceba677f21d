//! `compare`: two runs, operator by operator or kernel by kernel.

use std::{
    ffi::OsStr,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result, bail};

use super::{
    FAILURE, USAGE,
    args::{CompareArgs, LogLevel},
    error, input, message, progress,
    select::SelectArgs,
    terminal, values,
};
use crate::{
    analyses::{
        Observer,
        compare::{self, ComparedDevice, ComparedRow, Names, OfStep, Recorded, Recorder, Which},
    },
    document::{self, Comparison},
    input::Stage,
    model::StepsFrom,
    os::caller::Caller,
    session::RowLevel,
    sinks::compare::CompareFiles,
};

/// Names listed for each device.
const NAME_LINES: usize = 10;

/// `compare A B`.
pub(super) fn run(args: &CompareArgs) -> ExitCode {
    let which = Which { op: args.level.op, kernel: args.level.kernel };
    match work(args, which) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            // The reference's words.
            if let Err(failure) = terminal::print_line("Memory comparison failed!") {
                error(format_args!("cannot print the result: {failure}"));
            }
            error("the inputs have no operators or kernels of the level asked for; see --level");
            ExitCode::from(FAILURE)
        }
        Err(failure) => {
            error(format_args!("{failure:#}"));
            ExitCode::from(FAILURE)
        }
    }
}

/// `--compare --input-path=A,B`, as msMemScope spells it.
pub(super) fn run_option(paths: &OsStr, level: RowLevel, output_path: &Path, json: bool) -> ExitCode {
    let files = values::paths(paths);
    let [base, other] = files.as_slice() else {
        error(format_args!("--input-path takes exactly 2 files, not {}", files.len()));
        return ExitCode::from(USAGE);
    };
    let (base, other, output_path) = (base.clone(), other.clone(), output_path.to_path_buf());
    run(&CompareArgs { base, other, level, step: None, output_path, json, select: SelectArgs::default() })
}

fn work(args: &CompareArgs, which: Which) -> Result<bool> {
    let read = |path: &PathBuf, names: Names| -> Result<Recorded> {
        let (recorder, taken): (Box<dyn Observer>, _) = match args.step {
            Some(step) => boxed(OfStep::new(step, which, names)),
            None => boxed(Recorder::new(which, names)),
        };
        input::observe(std::slice::from_ref(path), args.select.selection(None), vec![recorder])?;
        taken.try_recv().with_context(|| format!("the reader of `{}` is still at work", path.display()))
    };
    let Recorded { sequences: base, names } = read(&args.base, Names::default())?;
    let Recorded { sequences: other, names } = read(&args.other, names)?;
    compare::check(&base, &other, which)?;
    if let Some(step) = args.step.filter(|_| base.is_empty() || other.is_empty()) {
        let path = if base.is_empty() { &args.base } else { &args.other };
        bail!("`{}` has no operators or kernels in step {step}: see --step and --level", path.display());
    }
    if base.is_empty() && other.is_empty() {
        return Ok(false);
    }
    let steps_from = args.step.map(|_| [base.steps_from(), other.steps_from()]);
    let mut files = CompareFiles::create(&args.output_path, Caller::owner()?)?;
    let mut failure = None;
    let write = |row: &ComparedRow| {
        if failure.is_none() {
            failure = files.write(row).err();
        }
    };
    let devices = compare::compare(&base, &other, &names, write, progress::of_stage(Stage::Comparing));
    if let Some(failure) = failure {
        return Err(failure.into());
    }
    let paths = files.paths().map(Path::to_owned);
    files.finish()?;
    let [reference, truth] = &paths;
    if args.json {
        let files = [reference, truth].map(|path| path.display().to_string());
        let json = document::to_string(Comparison { devices: &devices, steps_from, files: Some(files) });
        terminal::print_json(|out| writeln!(out, "{json}")).context("cannot print the comparison")?;
        return Ok(true);
    }
    for path in [reference, truth] {
        message(LogLevel::Info, LogLevel::Info, format_args!("create file {}", path.display()));
    }
    if let Some((step, [base, other])) = args.step.zip(steps_from) {
        let text = format_args!("step {step} of A{}, and of B{}", of(base), of(other));
        message(LogLevel::Info, LogLevel::Info, text);
    }
    let printed = terminal::print(|out| devices.iter().try_for_each(|device| print(device, out)));
    printed.context("cannot print the comparison")?;
    Ok(true)
}

fn boxed<O: Observer + 'static, T>((observer, other): (O, T)) -> (Box<dyn Observer>, T) {
    (Box::new(observer), other)
}

/// The origin of a step.
const fn of(steps: StepsFrom) -> &'static str {
    match steps {
        StepsFrom::Marks => ", marked",
        _ => steps.note(),
    }
}

fn print(found: &ComparedDevice, out: &mut dyn Write) -> io::Result<()> {
    let ComparedDevice { device, aligned, only_base, only_compare, .. } = found;
    writeln!(
        out,
        "Device {device}: {aligned} in both runs, {only_base} in the base run only, {only_compare} in the other only."
    )?;
    let (base, compare) = (found.nameless_base, found.nameless_compare);
    if base + compare > 0 {
        writeln!(
            out,
            "  {base} kernels of the base run and {compare} of the other are known by their address alone. They are not aligned: an \
             address says nothing in another run."
        )?;
    }
    if !found.shortest {
        writeln!(
            out,
            "  The runs differ so much that they were aligned piece by piece; shorter alignments may exist."
        )?;
    }
    let differing = found.names.iter().filter(|name| name.base_delta_bytes != name.compare_delta_bytes);
    let mut header = Some(format!(
        "  {:>8} {:>8} {:>16} {:>16} {:>16}  Name",
        "Base", "Compare", "Base(byte)", "Compare(byte)", "Diff(byte)"
    ));
    for name in differing.take(NAME_LINES) {
        if let Some(header) = header.take() {
            writeln!(out, "{header}")?;
        }
        let (base, compare) = (name.base_delta_bytes, name.compare_delta_bytes);
        writeln!(
            out,
            "  {:>8} {:>8} {base:>16} {compare:>16} {:>+16}  {}",
            name.base_count,
            name.compare_count,
            i128::from(compare) - i128::from(base),
            name.name.escape_debug()
        )?;
    }
    Ok(())
}
