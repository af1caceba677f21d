//! `daemon`: the checks before it listens, and the tracers that it starts.

mod client;
mod server;
mod tracer;

use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow, bail};
use nix::{
    sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit},
    unistd::{Group, Uid},
};

use super::{
    FAILURE,
    args::{DaemonArgs, DaemonTracerArgs, LogLevel},
    error, message,
    signals::Signals,
};
use crate::{
    daemon::{limits::Limits, listen},
    kernel::{
        features::{self, Features},
        privileges::Rights,
    },
};

/// Waits for requests of scripts and has them traced until a signal comes.
pub(super) fn run(args: &DaemonArgs) -> ExitCode {
    match serve(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            error(format_args!("{failure:#}"));
            ExitCode::from(FAILURE)
        }
    }
}

/// Traces one process for the daemon.
pub(super) fn trace(args: DaemonTracerArgs) -> ExitCode {
    tracer::run(args)
}

fn serve(args: &DaemonArgs) -> Result<()> {
    check()?;
    let group = args.group.as_deref().map(group_id).transpose()?;
    raise_limits();
    let limits = Limits {
        targets: args.max_targets as usize,
        targets_per_user: args.max_targets_per_user as usize,
        starts_per_minute: args.max_starts_per_minute,
    };
    // The file goes with the latter.
    let (listener, socket) = listen::open(&args.socket, group)?;
    Signals::block()?;
    let served = server::run(listener, limits, args.clone(), &socket);
    drop(socket);
    served
}

/// Refuses to listen where no process could be traced.
fn check() -> Result<()> {
    if !Uid::effective().is_root() {
        bail!("the daemon takes on the rights of those who ask, so it has to be started by root");
    }
    if features::has_nested_pids() {
        bail!(features::NESTED_PIDS);
    }
    let missing = Rights::look(Features::probe(), None).missing();
    if !missing.is_empty() {
        let names: Vec<&str> = missing.iter().map(|capability| capability.name).collect();
        bail!("the daemon lacks {}: a container or unit that it runs in has to leave it these", names.join(", "));
    }
    Ok(())
}

fn group_id(name: &str) -> Result<u32> {
    let found = Group::from_name(name).with_context(|| format!("cannot look up the group `{name}`"))?;
    found.map(|group| group.gid.as_raw()).ok_or_else(|| anyhow!("no such group: `{name}`"))
}

/// Tracers inherit them, and as ordinary users could not raise them: locked memory, which counts before Linux 5.11, and open files.
fn raise_limits() {
    let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

#[track_caller]
fn say(args: &DaemonArgs, text: std::fmt::Arguments<'_>) {
    message(if args.quiet { LogLevel::Error } else { LogLevel::Info }, LogLevel::Info, text);
}
