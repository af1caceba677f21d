//! `doctor`: what works here, what not, and how to mend it.

mod agent;
mod text;

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use serde::Serialize;

use self::text::render;
use super::{FAILURE, USAGE, args::DoctorArgs, error, report, terminal};
use crate::{
    backend,
    follow::{
        expected_libraries, interpreters,
        libraries::{Libraries, Library},
    },
    kernel::{
        features::{self, Features, LinkMode},
        privileges::{self, Rights},
        python_support,
    },
    locate::hidden::{Checked, Evidence},
    os::secure_env,
    probes::{CallKind, PoolCall, ProbeSpec},
    stacks::unwind::Survey,
    usage::{self, Notice},
};

/// One check.
#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    /// `ok`, `degraded`, `missing` or `unknown`.
    state: &'static str,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    mend: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, state: "ok", found: found.into(), mend: None }
    }

    fn degraded(name: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { name, state: "degraded", found: found.into(), mend: Some(mend.into()) }
    }

    fn missing(name: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { name, state: "missing", found: found.into(), mend: Some(mend.into()) }
    }
}

/// A probe and where it sits.
#[derive(Debug, Serialize)]
struct ProbeLine {
    symbol: String,
    file_offset: u64,
    /// Bytes from the function's start.
    site_offset: u32,
    instruction: String,
    /// A call makes the kernel single-step an instruction.
    single_stepped: bool,
    /// Approximate cost of the probes per call, in microseconds.
    price_us: f64,
    with_return: bool,
    /// The function's own return instructions that are probed, where a return probe would be harmful.
    own_returns: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    located: Option<LocatedLine>,
}

/// How a function was found that its library does not export.
#[derive(Debug, Serialize)]
struct LocatedLine {
    /// Virtual address of the function, as the file states it.
    vaddr: u64,
    callers: usize,
    /// The argument's layout always agrees; whether the allocator's virtual functions lead there too.
    allocator: Checked,
    #[serde(skip)]
    text: String,
}

impl LocatedLine {
    fn new((vaddr, evidence): (u64, Evidence)) -> Self {
        Self { vaddr, callers: evidence.callers, allocator: evidence.allocator, text: evidence.to_string() }
    }
}

/// A function that was not found.
#[derive(Debug, Serialize)]
struct NotLocatedLine {
    symbol: &'static str,
    reason: String,
}

/// A library and the functions found in it.
#[derive(Debug, Serialize)]
struct LibraryLine {
    path: String,
    probes: Vec<ProbeLine>,
    absent: Vec<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_located: Vec<NotLocatedLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// If it was asked for; also absent if there is no unwind information.
    #[serde(skip_serializing_if = "Option::is_none")]
    unwind: Option<Survey>,
    /// It has a copy of mstx that no probe sees.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    hidden_copy: bool,
}

impl LibraryLine {
    /// It could be read, and is none of ours.
    fn has_nothing(&self) -> bool {
        self.error.is_none()
            && self.probes.is_empty()
            && self.absent.is_empty()
            && self.not_located.is_empty()
            && !self.hidden_copy
    }
}

#[derive(Debug, Serialize)]
struct Diagnosis {
    checks: Vec<Check>,
    libraries: Vec<LibraryLine>,
}

/// Runs all checks. The exit status shows whether tracing is possible.
pub(super) fn run(args: &DoctorArgs) -> ExitCode {
    let user = match args.probes.specs() {
        Ok(user) => user,
        Err(reason) => {
            error(reason);
            return ExitCode::from(USAGE);
        }
    };
    let mut checks = Vec::new();
    // The contents of a file do not depend on this machine.
    if args.library.is_empty() {
        let features = Features::probe();
        let rights = Rights::look(features, args.link.map(LinkMode::from));
        checks.push(privileges(&rights));
        checks.extend(kernel_for(&rights, features, &user));
        checks.push(processes());
        checks.push(scripts());
        if let Err(reason) = report::refuse_borrowed_rights(args.usage_library.as_deref()) {
            error(reason);
            return ExitCode::from(USAGE);
        }
        checks.push(dcmi(args.usage_library.clone()));
        checks.extend(if args.agent { agent::checks() } else { Vec::new() });
    }
    let libraries = match look_into(args.pid, &args.library, &user, &mut checks) {
        Ok(libraries) if args.unwind => libraries.into_iter().map(surveyed).collect(),
        Ok(libraries) => libraries,
        Err(text) => {
            error(text);
            return ExitCode::from(FAILURE);
        }
    };
    let possible = checks.iter().all(|check| check.state != "missing");
    let diagnosis = Diagnosis { checks, libraries };
    let printed = if args.json {
        terminal::print_json(|mut out| {
            serde_json::to_writer(&mut out, &diagnosis).map_err(io::Error::from)?;
            writeln!(out)
        })
    } else {
        terminal::print(|out| out.write_all(render(&diagnosis).as_bytes()))
    };
    if let Err(failure) = &printed {
        error(format_args!("cannot print the diagnosis: {failure}"));
    }
    if possible && printed.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(FAILURE) }
}

/// Whether the driver reports the use of its devices.
fn dcmi(library: Option<PathBuf>) -> Check {
    const NAME: &str = "DCMI";
    const WITHOUT: &str = "traces work without process_used, device_used and the device's lines of the ledger";
    match usage::look(library) {
        Ok((library, devices)) => {
            let devices: Vec<String> = devices.iter().map(ToString::to_string).collect();
            Check::ok(NAME, format!("{library}, device(s) {}", devices.join(", ")))
        }
        Err(Notice::Absent(why)) => {
            let mend = format!("{WITHOUT}; in a container, mount /usr/local/dcmi and /usr/local/Ascend/driver");
            Check::degraded(NAME, why, mend)
        }
        Err(Notice::GivenUp(why) | Notice::Found(why)) => Check::degraded(NAME, why, WITHOUT),
    }
}

fn privileges(rights: &Rights) -> Check {
    let missing = rights.missing();
    if missing.is_empty() {
        return Check::ok("privileges", "all capabilities that tracing needs");
    }
    let list: Vec<String> = missing.iter().map(|c| format!("{} (to {})", c.name, c.purpose)).collect();
    Check::missing("privileges", format!("missing {}", list.join(", ")), rights.advice())
}

/// Whether scripts learn that they are traced.
fn scripts() -> Check {
    const NAME: &str = "scripts";
    if privileges::may_announce() {
        return Check::ok(NAME, "listening() says whether a tracer is there");
    }
    let mend =
        "the kernel wants CAP_SYS_ADMIN for that: run with sudo, or add cap_sys_admin to the file's capabilities";
    Check::degraded(NAME, "listening() is False though a tracer is there; all else of scripts is traced", mend)
}

/// The kernel's features, which not every process may query.
fn kernel_for(rights: &Rights, features: Features, user: &[&'static ProbeSpec]) -> Vec<Check> {
    if rights.may_ask() {
        return kernel(features, user);
    }
    let found = "does not show its features without CAP_BPF and CAP_PERFMON";
    vec![Check { name: "kernel", state: "unknown", found: found.to_owned(), mend: None }]
}

fn kernel(features: Features, user: &[&'static ProbeSpec]) -> Vec<Check> {
    let missing = features.missing();
    let mut checks = vec![if missing.is_empty() {
        Check::ok("kernel", "everything that is needed")
    } else {
        Check::missing("kernel", format!("lacks {}", missing.join(" and ")), "use Linux 5.10 or newer")
    }];
    checks.push(if features.ring_buffer {
        Check::ok("transport", "BPF ring buffer")
    } else {
        Check::degraded("transport", "perf event array: no BPF ring buffer", "Linux 5.8 or newer has it")
    });
    let mode = features.link_mode();
    checks.push(match mode {
        LinkMode::Multi => Check::ok("links", "multi links: detaching takes milliseconds"),
        LinkMode::Cookie => Check::degraded(
            "links",
            "one link per probe: detaching may take about 0.1 s per probe",
            "Linux 6.6 or newer has multi links",
        ),
        LinkMode::Slots => Check::degraded("links", slots_text(mode, user), "Linux 5.15 or newer has attach cookies"),
    });
    checks.push(if features.send_signal {
        Check::ok("late libraries", "a thread or a process waits while probes are attached: no call is missed")
    } else {
        Check::degraded("late libraries", "first calls into a library mapped late may be missed", "Linux 5.3 or newer")
    });
    checks.push(if features.loops && mode.serves_walks() {
        Check::ok("native stacks", "--call-stack=c works: walked in the kernel")
    } else {
        Check::degraded(
            "native stacks",
            "--call-stack=c sends 16 KiB of the stack with every call, and what lies further out is left off: no walks in BPF",
            "Linux 5.17 or newer has what they need",
        )
    });
    checks.push(match python_support(features, mode) {
        Ok(_) => Check::ok("Python stacks", "--call-stack=python works"),
        Err(why) => Check::degraded(
            "Python stacks",
            format!("{why}: traces work without --call-stack=python"),
            "Linux 5.17 or newer, with BTF, can take them",
        ),
    });
    checks
}

/// Features lost without attach cookies.
fn slots_text(mode: LinkMode, user: &[&'static ProbeSpec]) -> String {
    let planner = Libraries::planner(mode.max_rows(), user);
    let (served, unserved) = (planner.descriptions().len(), planner.unserved());
    let head = format!("one program per probe, no cookies: at most {} rows", mode.max_rows());
    if unserved.is_empty() {
        format!("{head}, which all {served} functions have room in")
    } else {
        format!("{head}; {} function(s) are not probed: {}", unserved.len(), unserved.join(", "))
    }
}

/// How children, new programs and ends of processes are seen.
fn processes() -> Check {
    const NAME: &str = "processes";
    if features::has_nested_pids() {
        let (found, mend) = features::NESTED_PIDS.split_once(": ").unwrap_or((features::NESTED_PIDS, ""));
        return Check::missing(NAME, found, mend);
    }
    match features::tracefs() {
        _ if features::describes_tasks() => Check::ok(NAME, "followed by raw tracepoints"),
        Some(path) => Check::ok(NAME, format!("followed by tracepoints, with their layout in {}", path.display())),
        None => Check {
            name: NAME,
            state: "ok",
            found: "followed by tracepoints; tracefs, which has their layout, will be mounted for the tracer alone"
                .to_owned(),
            mend: Some("for all: mount -t tracefs nodev /sys/kernel/tracing".to_owned()),
        },
    }
}

/// Those files, or libraries of one process, or those that a program started from here would map.
fn look_into(
    pid: Option<u32>,
    files: &[PathBuf],
    user: &[&'static ProbeSpec],
    checks: &mut Vec<Check>,
) -> Result<Vec<LibraryLine>, String> {
    let mode = Features::probe().link_mode();
    let max_rows = mode.max_rows();
    if !files.is_empty() {
        let planned = files.iter().map(|path| look_into_file(path, max_rows, user)).collect::<Result<Vec<_>, _>>()?;
        checks.extend(unseen_calls(&planned, user));
        return Ok(planned.into_iter().map(line).collect());
    }
    let Some(pid) = pid else {
        let found = expected_libraries(&secure_env::program_environment(), user);
        checks.push(if found.is_empty() {
            Check::degraded(
                "Ascend libraries",
                "none in LD_LIBRARY_PATH, ASCEND_HOME_PATH or the driver's directories",
                "source CANN's set_env.sh; or look into a running program with --pid",
            )
        } else {
            let names: Vec<_> = found.iter().map(|path| path.display().to_string()).collect();
            Check::ok("Ascend libraries", names.join(", "))
        });
        return Ok(Vec::new());
    };
    let planned = Libraries::planner(max_rows, user).plan(pid).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("no process {pid}: it does not exist, or has ended"),
        _ => format!("cannot look into process {pid}: {error}"),
    })?;
    let probes: usize = planned.iter().map(|library| library.placed.len()).sum();
    let stepped: usize =
        planned.iter().flat_map(|library| &library.placed).filter(|placed| placed.is_stepped()).count();
    checks.push(if planned.iter().all(|library| library.absent.len() == library.placed.len()) && probes == 0 {
        Check::degraded(
            "Ascend libraries",
            format!("process {pid} has mapped none"),
            "is it the right process? they may be mapped later",
        )
    } else {
        Check::ok(
            "Ascend libraries",
            format!("{probes} probe(s) in {} file(s), {stepped} single-stepped", planned.len()),
        )
    });
    checks.extend(interpreter(pid));
    checks.extend(unseen_calls(&planned, user));
    Ok(planned.into_iter().map(line).collect())
}

/// Allocators with unseen calls: pools with frees that have no probe, and functions that calls bypass.
fn unseen_calls(planned: &[Library], user: &[&'static ProbeSpec]) -> Vec<Check> {
    let specs: Vec<_> = backend::builtin().chain(user.iter().copied()).collect();
    let placed = || planned.iter().flat_map(|library| &library.placed);
    let pools_with = |meaning: PoolCall| -> BTreeSet<&str> {
        let specs = specs.iter().filter(move |spec| spec.meaning == CallKind::Pool(meaning));
        let placed = specs.filter(|spec| placed().any(|placed| placed.symbol == spec.symbol));
        placed.filter_map(|spec| spec.pool).collect()
    };
    let (allocated, freed) = (pools_with(PoolCall::Alloc), pools_with(PoolCall::Free));
    let unfreed = allocated.difference(&freed).map(|pool| {
        let found =
            format!("frees of pool {pool} are not seen: none of its functions that free is in what was looked at");
        Check::degraded(
            "frees",
            found,
            format!("its memory is reported too high; name one: --probe LIBRARY:FUNCTION=free(ptr=0,pool={pool})"),
        )
    });
    let passed =
        planned.iter().flat_map(|library| library.bypassed.iter().map(move |(symbol, thunk)| (library, symbol, thunk)));
    let passed = passed.map(|(library, symbol, thunk)| {
        let file = library.path.file_name().unwrap_or_default().to_string_lossy();
        let found = format!(
            "calls of `{}` that come by `{}` are not seen: that holds a copy of it ({})",
            symbol.escape_debug(),
            thunk.escape_debug(),
            file.escape_debug()
        );
        Check::degraded("thunks", found, "probe a function that both of them call")
    });
    unfreed.chain(passed).collect()
}

/// The interpreter of a process, if it has one.
fn interpreter(pid: u32) -> Option<Check> {
    const NAME: &str = "Python";
    interpreters::look_into(pid).map(|found| match found {
        Ok(version) => Check::ok(NAME, format!("{version}, stacks can be taken")),
        Err(why) => {
            Check::degraded(NAME, format!("no stacks: {why}"), "CPython 3.8 to 3.14, release builds, with glibc")
        }
    })
}

fn look_into_file(path: &Path, max_rows: u16, user: &[&'static ProbeSpec]) -> Result<Library, String> {
    let planned = Libraries::planner(max_rows, user).plan_path(path);
    planned.map_err(|error| format!("cannot look into `{}`: {error}", path.display()))
}

fn line(library: Library) -> LibraryLine {
    let probes = library
        .placed
        .into_iter()
        .map(|placed| ProbeLine {
            single_stepped: placed.is_stepped(),
            price_us: placed.price_us(),
            symbol: placed.symbol,
            file_offset: placed.file_offset,
            site_offset: placed.site.offset,
            instruction: placed.site.instruction,
            with_return: placed.with_return,
            located: placed.located.map(LocatedLine::new),
            own_returns: placed.own_returns,
        })
        .collect();
    let not_located = library.not_located.into_iter().map(|(symbol, reason)| NotLocatedLine { symbol, reason });
    LibraryLine {
        path: library.path.display().to_string(),
        probes,
        absent: library.absent,
        not_located: not_located.collect(),
        error: library.error,
        unwind: None,
        hidden_copy: library.hidden_copy,
    }
}

fn surveyed(library: LibraryLine) -> LibraryLine {
    match Survey::of(Path::new(&library.path)) {
        Ok(unwind) => LibraryLine { unwind, ..library },
        Err(failure) => LibraryLine { error: Some(failure.to_string()), ..library },
    }
}

#[cfg(test)]
mod tests;
