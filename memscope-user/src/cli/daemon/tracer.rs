//! The tracer of one process, started by the daemon: takes on the rights of the process's user, then traces as `--pid` does.
//!
//! stdin is the pidfd of the process. Into stdout goes one line: that it begins, or why not. From then on stdout is a file beside the
//! outputs, which gets the report.

use std::{
    fs::File,
    io::{self, Write as _},
    os::fd::{AsFd as _, OwnedFd},
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context as _, Result};
use nix::unistd::dup2_stdout;

use crate::{
    cli::{
        FAILURE,
        args::{DaemonTracerArgs, ReportKind},
        error, terminal,
        trace::{Console, attach_for},
    },
    daemon::{
        peer::Peer,
        place::{self, Place},
        protocol::Reply,
        rights,
    },
    session::Traced,
    sinks::tree::{OutputTree, stamp},
};

/// The command that this is.
pub(super) const VERB: &str = "daemon-tracer";
/// Written when the probes are placed.
pub(super) const READY: &str = "ready";

pub(super) fn run(args: DaemonTracerArgs) -> ExitCode {
    let (Ok(pidfd), Ok(daemon)) = (io::stdin().as_fd().try_clone_to_owned(), terminal::clone_output()) else {
        return ExitCode::from(FAILURE);
    };
    let daemon = Arc::new(File::from(daemon));
    match trace(args, pidfd, &daemon) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            let text = Reply::refused(format_args!("{failure:#}")).text;
            // A ready tracer has written so, and the daemon no longer reads.
            let _ = writeln!(&*daemon, "{text}");
            error(text);
            ExitCode::from(FAILURE)
        }
    }
}

fn trace(args: DaemonTracerArgs, pidfd: OwnedFd, daemon: &Arc<File>) -> Result<u8> {
    let DaemonTracerArgs { pid, uid, gid, mut trace } = args;
    let peer = Peer { pid, uid, gid, pidfd };
    let groups = peer.check()?;
    rights::take_on(uid, gid, &groups).with_context(|| format!("cannot take on the rights of user {uid}"))?;
    let wanted = trace.collect.output_path().to_owned();
    let found = place::of(pid, &wanted).with_context(|| format!("cannot open `{}` as user {uid}", wanted.display()))?;
    // That was its root.
    peer.check()?;
    let Place { path, foreign } = found;
    trace.collect.output_path = Some(path);
    // It is read later, when nothing can be asked for.
    trace.collect.report = ReportKind::Full;
    let (mut console, moments) = Console::new(&trace);
    let daemon = Arc::clone(daemon);
    let on_attached = move || {
        // It has not become another one while the probes were placed.
        peer.check()?;
        writeln!(&*daemon, "{READY}").context("the daemon is gone")?;
        Ok(())
    };
    console.on_opened = Some(Box::new(|tree| Ok(report_into(tree)?)));
    console.on_attached = Some(Box::new(on_attached));
    let options = trace.writing(Traced::Processes(vec![pid]))?;
    let status = attach_for(options, console, moments);
    // Outputs are reached through it.
    drop(foreign);
    Ok(status?)
}

/// The report goes into a file of its own: the script's output belongs to the script.
fn report_into(tree: &OutputTree) -> Result<()> {
    let name = format!("memscope_{}_{}.report.txt", std::process::id(), stamp(&jiff::Zoned::now()));
    let (file, path) = tree.create_top(&name)?;
    dup2_stdout(&file).with_context(|| format!("cannot write `{}`", path.display()))
}
